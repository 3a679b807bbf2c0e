//! The clients against the real binary, on both databases: the SDK's `http`, the packages for Python and TypeScript,
//! and the blocks of docs/clients.md. Each package has tests in its own language; here they get a server, a key and a
//! database.

mod blocks;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::SystemTime;

use postcommit::{Error, Notification, Recipient, http, key};
use postcommit_testkit::TestDatabase;
use serde_json::json;
use tempfile::TempDir;

use crate::docs::{python, succeeds};
use crate::door::TestServer;

/// A server on a database that other processes may open, too.
struct Place {
    server: TestServer,
    /// The environment variables that the tests of the clients expect.
    environment: Vec<(&'static str, String)>,
    _folder: TempDir,
    _database: Option<TestDatabase>,
}

impl Place {
    async fn postgres() -> Self {
        let database = crate::installation::copied().await;
        Self::on(database.url.clone(), tempfile::tempdir().unwrap(), Some(database))
    }

    fn sqlite() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("app.db").display());
        Self::on(url, folder, None)
    }

    fn on(url: String, folder: TempDir, database: Option<TestDatabase>) -> Self {
        let server = TestServer::with(&[("DATABASE_URL", &url), ("EGRESS_ALLOW", "127.0.0.0/8")]);
        let made = server.shell.run(&["keys", "create", "clients", "--scope", "admin", "-o", "json"]).ends(0).json();
        let token = made["token"].as_str().unwrap().to_owned();
        let base_url = format!("http://{}", server.address);
        let file = url.trim_start_matches("sqlite:").to_owned();
        let for_tests =
            [("POSTCOMMIT_URL", base_url), ("POSTCOMMIT_KEY", token), ("POSTCOMMIT_DATABASE_URL", url.clone())];
        let for_snippets = [("DATABASE_URL", url), ("DATABASE_FILE", file)];
        let environment = for_tests.into_iter().chain(for_snippets).collect();
        Self { server, environment, _folder: folder, _database: database }
    }

    fn told(&self, name: &str) -> &str {
        self.environment.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str()).unwrap()
    }

    fn run(&self, mut command: Command) -> String {
        command.envs(self.environment.iter().map(|(name, value)| (name, value.as_str())));
        let what = format!("{command:?}");
        let output = command.output().unwrap_or_else(|error| panic!("{what}: {error}"));
        succeeds(&what, &output)
    }
}

fn package(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients").join(name).canonicalize().unwrap()
}

fn python_command() -> Command {
    let mut command = Command::new(python());
    // Warnings are errors: an unclosed connection is one.
    command.args(["-W", "error"]).env("PYTHONPATH", package("python").join("src")).env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// The tests of one folder. Each fails when a variable that it needs is missing.
fn python_tests(folder: &str) -> Command {
    let mut command = python_command();
    command
        .args(["-m", "unittest", "discover", "-t", ".", "-s"])
        .arg(Path::new("tests").join(folder))
        .current_dir(package("python"));
    command
}

#[tokio::test]
async fn the_python_client_on_both_databases() {
    let (postgres, sqlite) = (Place::postgres().await, Place::sqlite());
    for (place, folders) in [(&postgres, ["alone", "server", "postgres"]), (&sqlite, ["alone", "server", "sqlite"])] {
        for folder in folders {
            place.run(python_tests(folder));
        }
    }
}

/// The first word printed is the id of a notification that the server knows.
fn knows(place: &Place, name: &str, printed: &str) {
    let id = printed.split_whitespace().next().unwrap_or_else(|| panic!("{name} printed nothing"));
    place.server.shell.run(&["notifications", "show", id]).ends(0);
}

/// The package is built once. Its tests and other importers use the build.
fn node(arguments: &[&str]) -> Command {
    let mut command = Command::new("node");
    command.args(arguments).current_dir(package("typescript"));
    command
}

/// Builds the package and its tests, once: tests run beside each other, and none may import what another is writing.
fn built() {
    let folder = package("typescript");
    let (compiler, stamp) = ("node_modules/typescript/bin/tsc", folder.join("build/stamp"));
    assert!(folder.join(compiler).exists(), "run npm ci in clients/typescript first, as scripts/test does");
    std::fs::create_dir_all(folder.join("build")).unwrap();
    let turn = std::fs::File::create(folder.join("build/lock")).unwrap();
    turn.lock().unwrap();
    let sources = ["src", "test", "tsconfig.json", "tsconfig.test.json"].map(|name| newest(&folder.join(name)));
    if folder.join("dist").exists() && newest(&stamp) > sources.into_iter().max().flatten() {
        return;
    }
    for project in ["tsconfig.json", "tsconfig.test.json"] {
        let output: Output = node(&[compiler, "-p", project]).output().unwrap();
        succeeds(project, &output);
    }
    std::fs::write(&stamp, "").unwrap();
}

/// When the newest file of a folder was changed.
fn newest(path: &Path) -> Option<SystemTime> {
    let own = std::fs::metadata(path).and_then(|file| file.modified()).ok();
    let inside = std::fs::read_dir(path).into_iter().flatten().flatten().filter_map(|entry| newest(&entry.path()));
    inside.chain(own).max()
}

#[tokio::test]
async fn the_typescript_client_on_both_databases() {
    built();
    let (postgres, sqlite) = (Place::postgres().await, Place::sqlite());
    postgres.run(node(&["--test", "build/test/alone/", "build/test/server/", "build/test/postgres/"]));
    sqlite.run(node(&["--test", "build/test/server/"]));
}

/// A server with a self-signed certificate that no client trusts.
fn server_with_untrusted_certificate(folder: &Path) -> TestServer {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let path = |name: &str| folder.join(name).display().to_string();
    std::fs::write(path("certificate.pem"), made.cert.pem()).unwrap();
    std::fs::write(path("key.pem"), made.signing_key.serialize_pem()).unwrap();
    TestServer::with(&[("SERVER_TLS_CERTIFICATE", &path("certificate.pem")), ("SERVER_TLS_KEY", &path("key.pem"))])
}

const PYTHON_UNTRUSTED: &str = r#"
import os, time
from postcommit import Postcommit, Untrusted
time.sleep = lambda _: exit("it was tried again")
client = Postcommit(os.environ["POSTCOMMIT_URL"], "pc_1_secret")
for act in (lambda: client.enqueue("e"), lambda: next(client.inbox("u").stream())):
    try:
        act()
        exit("it was trusted")
    except Untrusted as error:
        print(error)
"#;

#[test]
fn the_python_client_does_not_repeat_after_an_untrusted_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let server = server_with_untrusted_certificate(folder.path());
    let ran = python_command()
        .args(["-c", PYTHON_UNTRUSTED])
        .env("POSTCOMMIT_URL", format!("https://{}", server.address))
        .output()
        .unwrap();
    let said = succeeds("python", &ran);
    assert!(said.matches("is not trusted: self").count() == 2 && !said.contains("secret"), "{said}");
}

const NODE_UNTRUSTED: &str = r#"
import { Postcommit, Untrusted } from "@postcommit/client";
let asked = 0;
const counted = (...args) => (asked++, fetch(...args));
const client = new Postcommit(process.env.POSTCOMMIT_URL, "pc_1_secret", { fetch: counted });
for (const act of [() => client.enqueue({ event_type: "e" }), () => client.inbox("u").stream().next()]) {
  await act().then(() => { throw new Error("it was trusted"); }, (error) => { if (!(error instanceof Untrusted)) throw error; console.log(error.message); });
}
if (asked !== 2) throw new Error(`asked ${asked} times`);
"#;

#[test]
fn the_typescript_client_does_not_repeat_after_an_untrusted_certificate() {
    built();
    let folder = tempfile::tempdir().unwrap();
    let server = server_with_untrusted_certificate(folder.path());
    let file = package("typescript").join("build").join("untrusted.mjs");
    std::fs::write(&file, NODE_UNTRUSTED).unwrap();
    let ran =
        node(&[file.to_str().unwrap()]).env("POSTCOMMIT_URL", format!("https://{}", server.address)).output().unwrap();
    let said = succeeds("node", &ran);
    assert!(said.matches("is not trusted: ").count() == 2 && !said.contains("secret"), "{said}");
}

async fn the_sdk_speaks_with(place: &Place) {
    let client = http::Client::new(place.told("POSTCOMMIT_URL"), place.told("POSTCOMMIT_KEY")).unwrap();
    let booking = |title: &str| {
        Notification::event("booking.confirmed", json!({"bookingId": 12345}))
            .key(key::of("booking", &["12345", "confirmed", "1"]))
            .entity("room 7?é")
            .to(Recipient::email("guest@example.com"))
            .title(title)
            .due_at("2090-01-01T00:00:00Z".parse::<postcommit::Timestamp>().unwrap())
            .build()
            .unwrap()
    };
    let first = client.enqueue(&booking("See you soon")).await.unwrap();
    let again = client.enqueue(&booking("See you soon")).await.unwrap();
    assert_eq!((first.duplicate, again.duplicate, again.id), (false, true, first.id));
    let conflict = client.enqueue(&booking("See you later")).await.unwrap_err();
    assert!(matches!(&conflict, Error::Conflict { first: holder, .. } if *holder == first.id), "{conflict}");

    let other = Notification::message("Hello", "world").build().unwrap();
    let results = client.enqueue_many(&[booking("See you later"), other]).await.unwrap();
    assert!(
        matches!(&results[0], Err(Error::Conflict { key, .. }) if key == "booking:12345:confirmed:1"),
        "{results:?}"
    );
    assert!(!results[1].as_ref().unwrap().duplicate);

    let status = client.status(first.id).await.unwrap();
    assert_eq!((status.state.as_str(), status.captured), ("pending", false));
    assert_eq!((status.sent_at, status.delivered_at, status.last_attempt_at), (None, None, None));
    assert_eq!(client.cancel("room 7?é", Some("booking.reminder")).await.unwrap(), 0);
    assert_eq!(client.cancel("room 7?é", None).await.unwrap(), 1);
    assert_eq!(client.status(first.id).await.unwrap().state, "cancelled");
    let unknown = client.status(uuid::Uuid::max()).await.unwrap_err();
    assert!(matches!(&unknown, Error::Refused { status: 404, kind, .. } if kind == "not-found"), "{unknown}");
    let stranger = http::Client::new(place.told("POSTCOMMIT_URL"), "pc_none_at-all").unwrap();
    let refused = stranger.enqueue(&booking("See you soon")).await.unwrap_err();
    assert!(matches!(&refused, Error::Refused { status: 401, kind, .. } if kind == "unauthenticated"), "{refused}");
}

#[tokio::test]
async fn the_sdk_speaks_http_on_both_databases() {
    the_sdk_speaks_with(&Place::postgres().await).await;
    the_sdk_speaks_with(&Place::sqlite()).await;
}
