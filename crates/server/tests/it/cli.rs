//! The command line: what it prints, where, and its exit codes.

mod access;
mod act;
mod audience;
mod failover;
mod files;
mod first_days;
mod mail;
mod operate;
mod passes;
mod quick_start;
mod recipes;
mod secrets;
mod settings;
mod templates;
mod transfer;

use std::path::Path;
use std::process::{Command, Output};

use postcommit_testkit::TestDatabase;
use serde_json::Value;
use tempfile::TempDir;

use crate::installation::Kind;

/// A folder with a migrated database, and the binary. The database is an SQLite file in the folder by default.
pub struct Shell {
    folder: TempDir,
    _database: Option<TestDatabase>,
    environment: Vec<(String, String)>,
}

/// The output and exit code of a command.
pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {}", self.stdout))
    }

    /// Asserts the exit code.
    pub fn ends(self, code: i32) -> Self {
        assert_eq!(self.code, code, "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        self
    }
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code().unwrap_or(-1), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

impl Shell {
    /// An empty folder.
    pub fn empty() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), _database: None, environment: vec![] }
    }

    /// A shell with a schema and a capture provider.
    pub fn ready() -> Self {
        Self::ready_on(Kind::Sqlite)
    }

    /// A shell with a schema and a capture provider on the given database.
    pub fn ready_on(kind: Kind) -> Self {
        let shell = if kind == Kind::Sqlite { Self::empty() } else { Self::on(crate::installation::copied()) };
        shell.run(&["migrate"]).ends(0);
        shell.run(&["providers", "create", "capture", "--driver", "capture"]).ends(0);
        shell
    }

    /// An empty folder, and on PostgreSQL an empty database.
    pub fn empty_on(kind: Kind) -> Self {
        if kind == Kind::Sqlite { Self::empty() } else { Self::on(postcommit_testkit::database()) }
    }

    fn on(database: impl Future<Output = TestDatabase>) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let database = runtime.block_on(database);
        let url = database.url.clone();
        Self { _database: Some(database), ..Self::empty() }.with("POSTCOMMIT_DATABASE_URL", &url)
    }

    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The value of an environment variable of this shell.
    pub fn setting(&self, name: &str) -> String {
        self.environment.iter().find(|(known, _)| known == name).unwrap().1.clone()
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_postcommit"));
        command.args(arguments).current_dir(self.folder.path());
        for variable in ["POSTCOMMIT_DATABASE_URL", "DATABASE_URL", "POSTCOMMIT_CRASH", "POSTCOMMIT_OUTPUT"] {
            command.env_remove(variable);
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Ran {
        self.command(arguments).output().unwrap().into()
    }

    /// Runs a line of the documentation that calls the command `postcommit`.
    pub fn sh(&self, line: &str) -> Ran {
        let postcommit = self.command(&[]);
        let folder = Path::new(postcommit.get_program()).parent().unwrap().display();
        let mut command = Command::new("sh");
        command.args(["-c", line]).current_dir(self.path());
        command.envs(postcommit.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{folder}:{path}")).output().unwrap().into()
    }

    /// An empty folder elsewhere, with the same database.
    pub fn elsewhere(&self) -> Self {
        let own = format!("sqlite:{}", self.path().join("postcommit-data/postcommit.db").display());
        let known = self.environment.iter().find(|(name, _)| name == "POSTCOMMIT_DATABASE_URL").map(|(_, url)| url);
        Self::empty().with("POSTCOMMIT_DATABASE_URL", known.unwrap_or(&own))
    }

    /// Enqueues and returns the id.
    pub fn enqueue(&self, event_type: &str, more: &[&str]) -> String {
        let mut arguments = vec!["enqueue", event_type, "--to", "email:guest@example.com"];
        arguments.extend(more);
        self.run(&arguments).ends(0).stdout.trim().to_owned()
    }

    /// Runs one pass over everything that is due.
    pub fn dispatch(&self) -> Value {
        self.run(&["dispatch", "--once", "-o", "json"]).ends(0).json()
    }
}
