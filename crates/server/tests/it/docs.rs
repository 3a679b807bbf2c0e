//! The snippets of the documentation are run against new databases.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

use postcommit_engine::db::Value;
use postcommit_engine::store::Store;
use postcommit_testkit::{Child, Cluster};

use crate::installation::wait_until;

mod requirements;

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

/// One sentence says what Postcommit does: neither `--help` nor the API's description claims more than the README.
#[test]
fn help_and_description_claim_what_the_readme_claims() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |file: &str| std::fs::read_to_string(root.join(file)).unwrap();
    let readme = read("README.md");
    let claim = readme.lines().nth(2).unwrap();
    let help = Command::new(env!("CARGO_BIN_EXE_postcommit")).arg("--help").output().unwrap();
    assert_eq!(succeeds("--help", &help).lines().next(), Some(claim));
    let description: serde_json::Value = serde_json::from_str(&read("docs/openapi.json")).unwrap();
    assert_eq!(description["info"]["description"], claim);
}

/// Every `section.name` between backticks whose section is one of the settings is an existing setting.
#[test]
fn settings_in_the_documentation_exist() {
    let shown = crate::cli::Shell::ready().run(&["config", "show", "-o", "json"]).ends(0).json();
    let known: BTreeSet<&str> = shown.as_array().unwrap().iter().filter_map(|row| row["setting"].as_str()).collect();
    let sections: BTreeSet<&str> = known.iter().filter_map(|name| Some(name.split_once('.')?.0)).collect();
    let mut seen = BTreeSet::new();
    for (page, text) in pages() {
        for span in text.split('`').skip(1).step_by(2) {
            let is_setting = span.split_once('.').is_some_and(|(section, name)| {
                sections.contains(section)
                    && !name.is_empty()
                    && name.chars().all(|c| c.is_ascii_lowercase() || c == '_')
            });
            // The last words of a file's name, such as `server.md`.
            if is_setting && !span.ends_with(".md") {
                assert!(known.contains(span), "{page}: `{span}` is no setting");
                seen.insert(span.to_owned());
            }
        }
    }
    assert!(seen.len() > 30, "only {seen:?} were found: has the form of the pages changed?");
}

/// The heading's name in a link, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

/// Links between pages lead to files and sections that are there.
#[test]
fn links_in_the_documentation_lead_somewhere() {
    let prose = |text: &str| text.split("```").step_by(2).collect::<String>().replace('\n', " ");
    let mut followed = 0;
    for (page, text) in pages() {
        for link in prose(&text).split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.starts_with("http") {
                continue;
            }
            let (file, section) = link.split_once('#').unwrap_or((link, ""));
            let target = Path::new(&page).parent().unwrap().join(file);
            let target = if file.is_empty() { Path::new(&page) } else { &target };
            assert!(target.exists(), "{page}: {link} leads to no file");
            if !section.is_empty() {
                let there = std::fs::read_to_string(target).unwrap();
                let mut headings = there.lines().filter(|line| line.starts_with('#'));
                let is_there = headings.any(|line| anchor(line.trim_start_matches('#').trim()) == section);
                assert!(is_there, "{page}: {link} leads to no section");
            }
            followed += 1;
        }
    }
    assert!(followed > 60, "only {followed} were found: has the form of the pages changed?");
}

/// Whether a quote of the command does not end in it.
fn is_open(command: &str) -> bool {
    let is_odd = |quote: char| command.replace("\\\"", "").matches(quote).count() % 2 == 1;
    is_odd('\'') || is_odd('"')
}

/// The walk-through of the README, command by command, on a cluster of its own.
#[test]
fn the_walk_through_on_postgresql_ends_in_sent() {
    let (cluster, folder) = (Cluster::start(), tempfile::tempdir().unwrap());
    let commands = console("README.md");
    let place = |wanted: &str| commands.iter().position(|command| command.starts_with(wanted)).expect(wanted);
    let walk = &commands[place("export ADMIN=")..=place("postcommit deliveries list")];
    let binaries = Path::new(env!("CARGO_BIN_EXE_postcommit")).parent().unwrap().display().to_string();
    let path = format!("{binaries}:{}", std::env::var("PATH").unwrap());
    let mut environment = vec![("PATH".to_owned(), path), ("POSTCOMMIT_SERVER_LISTEN".into(), "127.0.0.1:0".into())];
    let (mut server, mut said) = (None, String::new());
    for command in walk {
        let command = command.replace("localhost", &cluster.addr().to_string());
        let shell = |command: &str, environment: &[(String, String)]| {
            let mut shell = Command::new("bash");
            shell.args(["-o", "pipefail", "-c", command]).current_dir(folder.path());
            shell.env_remove("DATABASE_URL").env_remove("POSTCOMMIT_DATABASE_URL");
            shell.envs(environment.iter().cloned());
            shell
        };
        if let Some((name, value)) = command.strip_prefix("export ").and_then(|pair| pair.split_once('=')) {
            environment.push((name.to_owned(), value.to_owned()));
        } else if let Some(command) = command.strip_suffix(" &") {
            let child = Child::spawn(shell(&format!("exec {command}"), &environment));
            child.wait_for_line("is ready");
            server = Some(child);
        } else if command == "postcommit deliveries list" {
            let list = || String::from_utf8(shell(&command, &environment).output().unwrap().stdout).unwrap();
            wait_until("the notification is sent", || list().contains("  sent "));
        } else {
            let ran = shell(&command, &environment).output().unwrap();
            said.push_str(&String::from_utf8_lossy(&ran.stderr));
            succeeds(&command, &ran);
        }
    }
    let server = server.expect("a command that serves");
    said.push_str(&server.output().join("\n"));
    assert!(
        said.contains("/booking (flag --database-url)") && said.contains("/booking (environment DATABASE_URL)"),
        "{said}"
    );
    assert!(!said.contains("choose-"), "a password is not printed: {said}");
    server.term();
    server.wait();
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
            goes_on = is_open(command);
        } else if let (true, true, Some(command)) = (inside, goes_on, commands.last_mut()) {
            command.push_str(&format!("\n{line}"));
            goes_on = is_open(command);
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

/// The keys `booking:1:confirmed:1` in a block, also those made by `key.of("booking", 1, "confirmed", 1)`.
fn keys_in(block: &str) -> BTreeSet<String> {
    let plain: String = block.chars().filter(|c| !matches!(c, '"' | '\'' | ' ' | '(' | ')')).collect();
    let plain = plain.replace(',', ":");
    let key = |rest: &str| {
        let mut parts = rest.splitn(4, |c: char| !c.is_ascii_alphanumeric());
        let (id, event, version) = (parts.next()?, parts.next()?, parts.next()?);
        let all_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        (all_digits(id) && all_digits(version)).then(|| format!("booking:{id}:{event}:{version}"))
    };
    plain.match_indices("booking:").filter_map(|(at, word)| key(&plain[at + word.len()..])).collect()
}

/// A reader who tries one example after the other in one database must not meet a conflict.
#[test]
fn no_two_examples_share_a_key() {
    let pages =
        ["README.md", "docs/enqueue.md", "docs/clients.md", "clients/python/README.md", "clients/typescript/README.md"];
    let mut seen = BTreeSet::new();
    for page in pages.into_iter().chain(["docs/api.md"]) {
        let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(page)).unwrap();
        let blocks = text.split("\n```").skip(1).step_by(2);
        for key in blocks.flat_map(keys_in) {
            assert!(seen.insert(key.clone()), "{page}: {key} is used by an earlier example");
        }
    }
    assert!(seen.len() > 15, "{seen:?}");
}
