//! The benchmark program: it measures in a private database or folder, leaves nothing behind, and exits with the right
//! code.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use postcommit_engine::store::Store;
use serde_json::Value;
use tempfile::TempDir;

/// Options of a run that finishes in seconds. Its figures mean nothing.
const TINY: [&str; 6] = ["--scale", "0.002", "--rounds", "1", "-o", "json"];

/// An empty folder to run the program in.
struct Shell(TempDir);

impl Shell {
    fn empty() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_postcommit-bench"));
        command.args(arguments).current_dir(self.path());
        for variable in ["POSTCOMMIT_DATABASE_URL", "POSTCOMMIT_CRASH", "POSTCOMMIT_OUTPUT"] {
            command.env_remove(variable);
        }
        command
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        program();
        self.command(arguments).output().unwrap().into()
    }
}

/// The program to measure. A build of all tests builds it; when only these tests are built, it is built here.
fn program() -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_postcommit-bench")).with_file_name("postcommit");
    if !program.exists() {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../server/Cargo.toml");
        let built = Command::new(cargo).args(["build", "--quiet", "--manifest-path"]).arg(manifest).status().unwrap();
        assert!(built.success() && program.exists(), "cargo build makes {}", program.display());
    }
    program
}

/// The output and exit code of a run.
struct Ran {
    code: i32,
    stdout: String,
    stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code().unwrap_or(-1), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

impl Ran {
    fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {}", self.stdout))
    }

    /// Asserts the exit code.
    fn ends(self, code: i32) -> Self {
        assert_eq!(self.code, code, "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        self
    }
}

fn bench(shell: &Shell, arguments: &[&str]) -> Ran {
    shell.run(&[arguments, &TINY].concat())
}

/// Checks the fields that every report must have, and returns the ids of its findings.
fn ids(ran: &Ran) -> Vec<String> {
    let report = ran.json();
    for field in ["version", "started_at", "command", "database"] {
        assert!(report[field].as_str().is_some_and(|text| !text.is_empty()), "{field}: {report}");
    }
    let findings: Vec<Value> =
        report["suites"].as_array().unwrap().iter().flat_map(|s| s["findings"].as_array().unwrap().clone()).collect();
    let (judged, unjudged): (Vec<&Value>, Vec<&Value>) = findings.iter().partition(|f| f["figure"].is_number());
    assert!(judged.iter().all(|f| f["ours"]["median"].as_f64().is_some_and(|median| median > 0.0)), "{report}");
    let excused =
        |f: &Value| f["held"].is_null() && f["note"].as_str().is_some_and(|note| note.starts_with("not measured: "));
    assert!(unjudged.iter().all(|f| excused(f)), "{report}");
    let missed = findings.iter().any(|finding| finding["held"] == false);
    assert_eq!(ran.code, i32::from(missed), "1 when a bar is missed, else 0: {}", ran.stderr);
    findings.iter().map(|finding| finding["id"].as_str().unwrap().to_owned()).collect()
}

/// The names of the files in the folder of the given one.
fn names(shell: &Shell) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(shell.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

async fn benchmark_databases(store: &Store) -> i64 {
    let rows = store
        .db()
        .query("SELECT count(*) FROM pg_database WHERE datname LIKE 'postcommit\\_bench\\_%'", vec![])
        .await
        .unwrap();
    rows[0].get(0).unwrap()
}

#[test]
fn on_sqlite_it_measures_in_a_file_of_its_own_and_removes_it() {
    let shell = Shell::empty();
    std::fs::write(shell.path().join("app.db"), "not even a database").unwrap();
    let ran = bench(
        &shell,
        &[
            "enqueue",
            "sqlite",
            "enqueue",
            "templates",
            "tenants",
            "--database-url",
            "sqlite:app.db",
            "--html",
            "report.html",
        ],
    );
    let measured =
        ["enqueue", "enqueue-batch", "P11 drain", "P11 group", "templates", "templates entity", "P14 p50", "P14 p99"];
    assert_eq!(ids(&ran), measured);
    assert_eq!(names(&shell), ["app.db", "report.html"]);
    assert_eq!(
        std::fs::read_to_string(shell.path().join("app.db")).unwrap(),
        "not even a database",
        "the given file is not touched"
    );
    assert!(std::fs::read_to_string(shell.path().join("report.html")).unwrap().contains("P11 drain"));
    assert!(ran.stderr.contains("bench: sqlite: round 1 of 1"), "progress is on stderr: {}", ran.stderr);
}

#[test]
fn a_relative_path_is_resolved_for_child_processes() {
    let shell = Shell::empty();
    std::fs::create_dir(shell.path().join("sub")).unwrap();
    for url in ["sqlite:app.db", "sqlite:sub/app.db"] {
        let ran = bench(&shell, &["binary", "memory", "lists", "--database-url", url]);
        assert_eq!(ids(&ran), ["P13 size", "P13 start", "P9 growth", "P9 total", "lists growth", "lists rate"]);
        let folder = shell.path().join(url.trim_start_matches("sqlite:")).parent().unwrap().canonicalize().unwrap();
        let database = ran.json()["database"].as_str().unwrap().to_owned();
        assert!(database.ends_with(&format!(", in {}", folder.display())), "{database}");
    }
    let refused = bench(&shell, &["binary", "--database-url", "sqlite:nowhere/app.db"]).ends(2);
    assert!(refused.stderr.contains("/nowhere of the SQLite file does not exist"), "{}", refused.stderr);
}

/// One test covers everything that creates databases, so that it can check that none is left.
#[tokio::test(flavor = "multi_thread")]
async fn on_postgresql_it_measures_in_a_database_of_its_own_and_drops_it() {
    let given = postcommit_testkit::database().await;
    let store = Store::open(&given.url).await.unwrap();
    store.db().execute_one("CREATE TABLE public.mine (id int)", vec![]).await.unwrap();
    // A database like the one that a killed run would leave.
    let psql = Command::new("psql")
        .arg(&given.url)
        .args(["-c", "CREATE DATABASE postcommit_bench_0123456789abcdef"])
        .output()
        .unwrap();
    assert!(psql.status.success(), "{psql:?}");

    let shell = Shell::empty();
    let ran = bench(
        &shell,
        &["drain", "enqueue", "growth", "lists", "templates", "tenants", "--no-peers", "--database-url", &given.url],
    );
    let found = ids(&ran);
    for id in ["P1", "P2", "wal", "P3", "P4", "P6 history", "P6 backlog", "lists growth", "templates entity", "P14 p50"]
    {
        assert!(found.contains(&id.to_owned()), "{id}: {found:?}");
    }
    assert_eq!(benchmark_databases(&store).await, 0, "its own database and the leftover are dropped");

    for signal in ["-INT", "-HUP"] {
        interrupt_one(&shell, &given.url, signal);
    }
    assert_eq!(benchmark_databases(&store).await, 0, "also when interrupted");
    assert_eq!(store.db().schema_version().await.unwrap(), 0, "nothing was made in the given database");
    assert_eq!(names(&shell), Vec::<String>::new());
}

/// Starts a long run, sends a signal when it has begun to measure, and waits for its end.
fn interrupt_one(shell: &Shell, url: &str, signal: &str) {
    let mut command = shell.command(&["drain", "--no-peers", "--database-url", url]);
    let mut running = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(running.stderr.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "bench: drain: round 1 of 3");
    assert!(Command::new("kill").args([signal, &running.id().to_string()]).status().unwrap().success());
    assert_eq!(running.wait().unwrap().code(), Some(1));
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    assert_eq!(rest, ["postcommit-bench: interrupted; the files and databases of the benchmark are removed"]);
}

/// `serve` as the benchmark starts it: it ends when the other end of its stdin is closed.
#[test]
fn a_server_of_the_benchmark_ends_with_it() {
    let shell = Shell::empty();
    let mut command = Command::new(program());
    command
        .args(["serve", "--while-stdin", "--listen", "127.0.0.1:0"])
        .current_dir(shell.path())
        .env_remove("POSTCOMMIT_DATABASE_URL");
    let mut server = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(server.stderr.as_mut().unwrap()).lines().map(Result::unwrap);
    assert!(said.any(|line| line.ends_with("is ready")));
    assert_eq!(server.try_wait().unwrap(), None, "it runs while stdin is open");
    drop(server.stdin.take());
    // The output is read to the end, so that the server never blocks on a full pipe.
    assert_eq!(server.wait_with_output().unwrap().status.code(), Some(0));
}

#[tokio::test]
async fn without_createdb_it_uses_the_given_database_only_if_nothing_is_lost() {
    let given = postcommit_testkit::database().await;
    let store = Store::open(&given.url).await.unwrap();
    let login = format!("bench_{}", uuid::Uuid::new_v4().simple());
    store.db().execute_one(&format!("CREATE ROLE {login} LOGIN"), vec![]).await.unwrap();
    let (shell, url) = (Shell::empty(), given.url.replacen("postgres@", &format!("{login}@"), 1));
    let refusal = || bench(&shell, &["enqueue", "--no-peers", "--database-url", &url]).ends(4).stderr;
    let grant = format!("GRANT CREATE ON DATABASE {} TO {login}", given.name());
    let refused = refusal();
    assert!(refused.contains(&grant) && !refused.contains("postcommit_worker"), "{refused}");
    store.db().execute_one(&grant, vec![]).await.unwrap();

    store.db().execute_one("CREATE SCHEMA postcommit_bench", vec![]).await.unwrap();
    let refused = refusal();
    assert!(
        refused.contains(
            "a killed run may have left it: if it holds none of your data, DROP SCHEMA postcommit_bench CASCADE"
        ),
        "{refused}"
    );
    store.db().execute_one("DROP SCHEMA postcommit_bench", vec![]).await.unwrap();

    assert!(ids(&bench(&shell, &["enqueue", "--no-peers", "--database-url", &url])).contains(&"P3".to_owned()));
    let schemas = "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'postcommit%'";
    let left: i64 = store.db().query(schemas, vec![]).await.unwrap()[0].get(0).unwrap();
    assert_eq!(left, 0, "its schemas are gone");

    store.db().migrate().await.unwrap();
    let refused = refusal();
    assert!(
        refused.contains("may not create databases, and the given database has a schema postcommit already"),
        "{refused}"
    );
    store.db().check_schema().await.unwrap();
    store.db().execute_one(&format!("REVOKE ALL ON DATABASE {} FROM {login}", given.name()), vec![]).await.unwrap();
    store.db().execute_one(&format!("DROP ROLE {login}"), vec![]).await.unwrap();
}

#[test]
fn an_unknown_suite_or_wrong_option_is_a_usage_error() {
    let shell = Shell::empty();
    for (arguments, expected) in [
        (&["speed"][..], "there is no suite \"speed\"; the suites are drain, enqueue, latency"),
        (&["drain"], "suite drain needs PostgreSQL"),
        (&["--scale", "0"], "0.0001 to 100 are allowed"),
        (&["--rounds", "0"], "0 is not in 1..=99"),
        (&["--peers", "nowhere"], "--peers nowhere: is not a folder"),
        (&["--html", "nowhere/report.html"], "--html nowhere/report.html: No such file or directory"),
        (&["--peers", ".", "--no-peers"], "cannot be used with"),
        (&["--html", "."], "--html .: Is a directory"),
    ] {
        let ran = shell.run(arguments).ends(2);
        assert!(ran.stderr.contains(expected), "{}", ran.stderr);
    }
    assert_eq!(names(&shell), Vec::<String>::new());
}

#[test]
fn the_suites_are_listed_with_their_bars() {
    let listed = Shell::empty().run(&["--list", "-o", "json"]).ends(0).json();
    let bars: String = listed.as_array().unwrap().iter().map(|suite| suite["bars"].as_str().unwrap()).collect();
    for bar in 1..=14 {
        assert!(bars.contains(&format!("P{bar} ")), "P{bar}: {bars}");
    }
}
