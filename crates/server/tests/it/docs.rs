//! What the documentation tells people to run is run: the snippets of docs/enqueue.md, against fresh databases.

use std::path::Path;
use std::process::{Command, Output};

use postcommit_engine::db::Value;
use postcommit_engine::store::Store;

/// The fenced block of that name on a page.
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

/// What the snippet printed is what the database holds: one notification for each id.
async fn check(store: &Store, printed: &str) {
    let rows = store.db().query("SELECT id FROM postcommit.notification", vec![]).await.unwrap();
    assert!(!rows.is_empty(), "{printed}");
    for row in &rows {
        let id: uuid::Uuid = row.get(0).unwrap();
        assert!(printed.contains(&id.to_string()), "{id} was not printed: {printed}");
    }
    let queued = store.db().query("SELECT count(*) FROM postcommit.delivery_queue WHERE n = $1", vec![Value::Int(0)]).await.unwrap();
    assert_eq!(queued[0].get::<i64>(0).unwrap(), i64::try_from(rows.len()).unwrap(), "each waits to be delivered");
}

#[tokio::test]
async fn a1_the_psql_snippet_does_what_the_page_says() {
    let database = postcommit_testkit::database().await;
    let store = migrated(&database.url).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("snippet.sql");
    std::fs::write(&file, snippet("docs/enqueue.md", "psql-run")).unwrap();
    let ran = Command::new("psql").arg(&database.url).args(["-v", "ON_ERROR_STOP=1", "-f"]).arg(&file).output().unwrap();
    check(&store, &succeeds("psql", &ran)).await;
}

#[tokio::test]
async fn a1_the_python_snippet_for_postgresql_does_what_the_page_says() {
    let database = postcommit_testkit::database().await;
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
    let ran = Command::new("sqlite3").arg("-bail").arg(&file).stdin(std::fs::File::open(&script).unwrap()).output().unwrap();
    check(&store, &succeeds("sqlite3", &ran)).await;
}

#[tokio::test]
async fn a1_the_python_snippet_for_sqlite_does_what_the_page_says() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("app.db");
    let store = migrated(&format!("sqlite:{}", file.display())).await;
    let ran =
        Command::new(python()).args(["-c", &snippet("docs/enqueue.md", "python-sqlite-run")]).env("DATABASE_FILE", &file).output().unwrap();
    check(&store, &succeeds("python", &ran)).await;
}

/// Every `postcommit …` line of the pages is a command the binary knows.
#[test]
fn commands_in_the_documentation_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let pages = ["README.md", "docs/clients.md", "docs/enqueue.md", "docs/operations.md", "docs/providers.md", "docs/sql.md"];
    let known =
        |words: &[&str]| Command::new(env!("CARGO_BIN_EXE_postcommit")).args(words).arg("--help").output().unwrap().status.success();
    let mut seen = 0;
    for page in pages {
        let text = std::fs::read_to_string(root.join(page)).unwrap();
        for line in
            text.lines().filter_map(|line| line.trim().strip_prefix("postcommit ").or_else(|| line.trim().strip_prefix("$ postcommit ")))
        {
            // The greeting begins with the version.
            if line.starts_with(|c: char| c.is_ascii_digit()) {
                continue;
            }
            let words: Vec<&str> =
                line.split_whitespace().take_while(|word| word.chars().all(|c| c.is_ascii_lowercase() || c == '-')).take(2).collect();
            let noun = words.first().copied().unwrap_or("");
            let depth = if ["notifications", "deliveries", "providers", "config"].contains(&noun) { 2 } else { 1 };
            assert!(!noun.is_empty() && known(&words[..depth.min(words.len())]), "{page}: postcommit {line}");
            seen += 1;
        }
    }
    assert!(seen > 3, "only {seen} commands were found: has the form of the pages changed?");
}
