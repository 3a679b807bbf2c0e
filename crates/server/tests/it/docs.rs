//! The snippets of the documentation are run against new databases.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

use postcommit_engine::db::Value;
use postcommit_engine::store::Store;

/// The fenced block of this name on a page.
pub fn snippet(page: &str, name: &str) -> String {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(page)).unwrap();
    let fence = text
        .lines()
        .position(|line| line.starts_with("```") && line.ends_with(name))
        .unwrap_or_else(|| panic!("{page} has no block {name}"));
    text.lines().skip(fence + 1).take_while(|line| !line.starts_with("```")).collect::<Vec<_>>().join("\n")
}

pub fn succeeds(name: &str, output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{name}\n{}\n{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

pub fn python() -> String {
    std::env::var("TEST_PYTHON").unwrap_or_else(|_| "python3".into())
}

async fn migrated(url: &str) -> Store {
    let store = Store::open(url).await.unwrap();
    store.db().migrate().await.unwrap();
    store
}

/// The snippet printed one id for each notification in the database.
async fn check(store: &Store, printed: &str) {
    let rows = store.db().query("SELECT id FROM postcommit.notification", vec![]).await.unwrap();
    assert!(!rows.is_empty(), "{printed}");
    for row in &rows {
        let id: uuid::Uuid = row.get(0).unwrap();
        assert!(printed.contains(&id.to_string()), "{id} was not printed: {printed}");
    }
    let queued = store
        .db()
        .query("SELECT count(*) FROM postcommit.delivery_queue WHERE n = $1", vec![Value::Int(0)])
        .await
        .unwrap();
    assert_eq!(queued[0].get::<i64>(0).unwrap(), i64::try_from(rows.len()).unwrap(), "each waits to be delivered");
}

#[tokio::test]
async fn a1_the_psql_snippet_does_what_the_page_says() {
    let database = crate::installation::copied().await;
    let store = migrated(&database.url).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("snippet.sql");
    std::fs::write(&file, snippet("docs/enqueue.md", "psql-run")).unwrap();
    let ran =
        Command::new("psql").arg(&database.url).args(["-v", "ON_ERROR_STOP=1", "-f"]).arg(&file).output().unwrap();
    check(&store, &succeeds("psql", &ran)).await;
}

#[tokio::test]
async fn a1_the_python_snippet_for_postgresql_does_what_the_page_says() {
    let database = crate::installation::copied().await;
    let store = migrated(&database.url).await;
    let ran = Command::new(python())
        .args(["-c", &snippet("docs/enqueue.md", "python-postgres-run")])
        .env("DATABASE_URL", &database.url)
        .output()
        .unwrap();
    check(&store, &succeeds("python", &ran)).await;
}

#[tokio::test]
async fn a1_the_sqlite_shell_snippet_does_what_the_page_says() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("app.db");
    let store = migrated(&format!("sqlite:{}", file.display())).await;
    let script = folder.path().join("snippet.sql");
    std::fs::write(&script, snippet("docs/enqueue.md", "sqlite-run")).unwrap();
    let ran =
        Command::new("sqlite3").arg("-bail").arg(&file).stdin(std::fs::File::open(&script).unwrap()).output().unwrap();
    check(&store, &succeeds("sqlite3", &ran)).await;
}

#[tokio::test]
async fn a1_the_python_snippet_for_sqlite_does_what_the_page_says() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("app.db");
    let store = migrated(&format!("sqlite:{}", file.display())).await;
    let ran = Command::new(python())
        .args(["-c", &snippet("docs/enqueue.md", "python-sqlite-run")])
        .env("DATABASE_FILE", &file)
        .output()
        .unwrap();
    check(&store, &succeeds("python", &ran)).await;
}

/// Every page of the documentation.
fn pages() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let files = std::fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages = files.chain([root.join("README.md")]).filter(|path| path.extension().is_some_and(|kind| kind == "md"));
    pages.map(|path| (path.display().to_string(), std::fs::read_to_string(path).unwrap())).collect()
}

/// The words after `postcommit ` in command lines, and in text between backticks.
fn commands(text: &str) -> Vec<&str> {
    let lines = text.lines().map(|line| line.trim().trim_start_matches("$ "));
    let spans = text.split('`').skip(1).step_by(2);
    lines.chain(spans).filter_map(|said| said.strip_prefix("postcommit ")).collect()
}

/// Every `postcommit …` of the pages is an existing command.
#[test]
fn commands_in_the_documentation_exist() {
    let known = |words: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_postcommit")).args(words).arg("--help").output().unwrap().status.success()
    };
    let mut seen = BTreeSet::new();
    for (page, text) in pages() {
        for line in commands(&text) {
            let words: Vec<&str> = line
                .split_whitespace()
                .take_while(|word| word.chars().all(|c| c.is_ascii_lowercase() || c == '-'))
                .take(2)
                .collect();
            // Skips text that is not a command, such as the version in the greeting.
            let Some(noun) = words.first().copied().filter(|noun| known(&[noun])) else {
                assert!(!line.starts_with(|c: char| c.is_ascii_lowercase()), "{page}: postcommit {line}");
                continue;
            };
            let has_verbs =
                ["notifications", "deliveries", "jobs", "providers", "keys", "tenants", "config"].contains(&noun);
            let depth = if has_verbs { 2 } else { 1 };
            if seen.insert(words[..depth.min(words.len())].join(" ")) {
                assert!(known(&words[..depth.min(words.len())]), "{page}: postcommit {line}");
            }
        }
    }
    assert!(seen.len() > 15, "only {seen:?} were found: has the form of the pages changed?");
}

/// The commands of a page's `console` blocks, with their continuation lines.
fn console(page: &str) -> Vec<String> {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(page)).unwrap();
    let mut commands: Vec<String> = Vec::new();
    let (mut inside, mut goes_on) = (false, false);
    for line in text.lines() {
        if line.starts_with("```") {
            inside = line == "```console";
        } else if let (true, Some(command)) = (inside, line.strip_prefix("$ ")) {
            commands.push(command.to_owned());
            goes_on = command.matches('\'').count() % 2 == 1;
        } else if let (true, true, Some(command)) = (inside, goes_on, commands.last_mut()) {
            command.push_str(&format!("\n{line}"));
            goes_on = command.matches('\'').count() % 2 == 1;
        }
    }
    commands
}

/// The requests of the API page are sent unchanged, except for the server's address.
#[test]
fn the_requests_of_the_documentation_are_answered() {
    let app = crate::api::App::at_rest(crate::installation::Kind::Sqlite);
    let key = app.first_key();
    let mut typed = 0;
    for command in ["docs/api.md", "docs/inbox.md"].into_iter().flat_map(console) {
        // A stream does not end, and the key is this server's own.
        if command.starts_with("curl -N") || command.starts_with("export ") {
            continue;
        }
        let here = app.address().to_string();
        let command =
            command.replace("localhost:7410", &here).replace("https://notify.example.com", &format!("http://{here}"));
        let ran =
            Command::new("sh").args(["-c", &command]).env("KEY", key).env("POSTCOMMIT_KEY", key).output().unwrap();
        let answer: serde_json::Value =
            serde_json::from_str(&succeeds(&command, &ran)).unwrap_or_else(|e| panic!("{command}: {e}"));
        assert!(answer.get("type").is_none(), "{command}: {answer}");
        typed += 1;
    }
    assert!(typed >= 5, "only {typed} were found: has the form of the pages changed?");
}
