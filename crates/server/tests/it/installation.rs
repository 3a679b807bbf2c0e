//! A database, a settings folder and a webhook provider: what the binary needs to run, possibly as several processes.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

pub use postcommit_channel::model::Guarantee;
use postcommit_engine::db::schema_hash;
use postcommit_engine::store::Store;
use postcommit_testkit::{Child, Postgres, TestDatabase};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

/// How long a condition may take to become true. A wait that reaches it is a failed test.
pub const GUARD: Duration = Duration::from_secs(120);

/// A row as text; NULL is the empty string.
pub type Row = Vec<String>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Postgres,
    Sqlite,
}

/// The settings of the provider `hooks` that tests choose.
#[derive(Clone, Copy)]
pub struct Hooks {
    pub guarantee: Guarantee,
    pub concurrency: u32,
    /// The send timeout. The lane's lease is four seconds longer.
    pub timeout_ms: u32,
    /// Gives every target a row of its own, because the lease of a notification's row is too short to send under.
    /// Otherwise a single target is sent from the notification's own row.
    pub by_rows: bool,
}

impl Hooks {
    pub fn of(guarantee: Guarantee) -> Self {
        Self { guarantee, concurrency: 32, timeout_ms: 1000, by_rows: false }
    }
}

/// A database that `migrate` has been run on. As a copy it still lacks roles of its own, which the next `migrate` makes.
pub async fn copied() -> TestDatabase {
    let prepare = async |url: String| drop(Store::open(&url).await.unwrap().db().migrate().await.unwrap());
    Postgres::shared().copy(schema_hash(true), prepare).await
}

/// A migrated database with one provider, `hooks`.
pub struct Installation {
    place: Place,
    folder: TempDir,
    batch: u32,
    lease_s: u32,
    /// Further settings, by the names of their variables without `POSTCOMMIT_`.
    more: Vec<(String, String)>,
}

enum Place {
    Postgres { database: TestDatabase, reader: Box<Mutex<Reader>> },
    Sqlite(PathBuf),
}

impl Installation {
    pub fn new(kind: Kind, hooks: Hooks) -> Self {
        let folder = folder();
        let place = match kind {
            Kind::Postgres => Place::on(Reader::new().runtime.block_on(copied())),
            Kind::Sqlite => Place::Sqlite(folder.path().join("app.db")),
        };
        Self::prepared(place, folder, hooks)
    }

    /// An installation on a PostgreSQL cluster of the test.
    pub fn on(cluster: &postcommit_testkit::Cluster, hooks: Hooks) -> Self {
        let database = Reader::new().runtime.block_on(cluster.postgres().database());
        Self::prepared(Place::on(database), folder(), hooks)
    }

    fn prepared(place: Place, folder: TempDir, hooks: Hooks) -> Self {
        let lease_s = if hooks.by_rows { 2 } else { hooks.timeout_ms.div_ceil(1000) + 4 };
        let this = Self { place, folder, batch: 500, lease_s, more: vec![] };
        this.run(&["migrate"]);
        let (timeout, concurrency) = (hooks.timeout_ms.to_string(), hooks.concurrency.to_string());
        let create = ["providers", "create", "hooks", "--driver", "webhook", "--guarantee", hooks.guarantee.name()];
        let limits = ["--timeout-ms", &timeout, "--concurrency", &concurrency];
        let policy = ["--policy", r#"{"name":"fixed","interval_s":0.2,"max_attempts":100}"#];
        this.run(&[&create[..], &limits[..], &policy[..]].concat());
        this
    }

    /// Limits how many rows are claimed together: small batches pass each crash point more often.
    pub fn in_batches_of(mut self, batch: u32) -> Self {
        self.batch = batch;
        self
    }

    /// Adds a setting to all later commands, such as `EGRESS_CA_FILE`.
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.more.push((name.to_owned(), value.to_owned()));
        self
    }

    /// A path in the installation's folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn url(&self) -> String {
        match &self.place {
            Place::Postgres { database, .. } => database.url.clone(),
            Place::Sqlite(path) => format!("sqlite:{}", path.display()),
        }
    }

    pub fn sqlite_path(&self) -> Option<&PathBuf> {
        if let Place::Sqlite(path) = &self.place { Some(path) } else { None }
    }

    /// A command of the binary; all settings come from the environment.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_postcommit"));
        command.args(args).current_dir(self.folder.path());
        for (name, value) in [
            ("DATABASE_URL", self.url().as_str()),
            ("DISPATCH_LEASE_S", self.lease_s.to_string().as_str()),
            ("DISPATCH_INTERVAL_MS", "50"),
            ("DISPATCH_BATCH", self.batch.to_string().as_str()),
            ("DISPATCH_STOP_GRACE_S", "20"),
            ("EGRESS_ALLOW", "127.0.0.0/8"),
            ("SERVER_LISTEN", "127.0.0.1:0"),
            ("SECRETS_KEY_FILE", self.path("secret.key").to_str().unwrap()),
        ] {
            command.env(format!("POSTCOMMIT_{name}"), value);
        }
        command.envs(self.more.iter().map(|(name, value)| (format!("POSTCOMMIT_{name}"), value)));
        command
    }

    /// Runs a command that must succeed, and returns its output.
    pub fn run(&self, args: &[&str]) -> String {
        let output = self.command(args).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "postcommit {args:?}: {}: {said}", output.status);
        String::from_utf8(output.stdout).unwrap()
    }

    /// Starts a server, and waits until it works.
    pub fn serve(&self) -> Child {
        let server = Child::spawn(self.command(&["serve"]));
        server.wait_for_line("is ready");
        server
    }

    /// Starts a process that will crash at a crash point (`name:nth:action`).
    pub fn doomed(&self, args: &[&str], crash: &str) -> Child {
        let mut command = self.command(args);
        command.env("POSTCOMMIT_CRASH", crash);
        Child::spawn(command)
    }

    /// Reads with the database's own client library, without any code of the product. `postcommit.` becomes
    /// `postcommit_` on SQLite.
    pub fn rows(&self, sql: &str) -> Vec<Row> {
        match &self.place {
            Place::Postgres { database, reader } => reader.lock().unwrap().rows(&database.url, sql),
            Place::Sqlite(path) => sqlite_rows(path, &sql.replace("postcommit.", "postcommit_")),
        }
    }

    pub fn count(&self, sql: &str) -> usize {
        self.rows(sql)[0][0].parse().unwrap()
    }

    /// Whether nothing is left to do.
    pub fn is_quiet(&self) -> bool {
        self.count("SELECT count(*) FROM postcommit.delivery_queue") == 0
    }

    pub fn wait_until_quiet(&self) {
        let left = || {
            format!(
                "the queue to be empty; left are {:#?}",
                self.rows("SELECT * FROM postcommit.delivery_queue LIMIT 5")
            )
        };
        assert!(within(GUARD, || self.is_quiet()), "waited for {}", left());
    }

    /// Whether no lease runs any more.
    pub fn leases_are_over(&self) -> bool {
        let now = match self.place {
            Place::Postgres { .. } => "clock_timestamp()",
            Place::Sqlite(_) => "(julianday('now') - 2440587.5) * 86400000000",
        };
        self.count(&format!("SELECT count(*) FROM postcommit.delivery_queue WHERE lease_until >= {now}")) == 0
    }

    /// Whether some process, perhaps a frozen one, holds SQLite's write lock. PostgreSQL has no such lock.
    pub fn file_is_held(&self) -> bool {
        let Place::Sqlite(path) = &self.place else { return false };
        let connection = rusqlite::Connection::open(path).unwrap();
        connection.busy_timeout(Duration::ZERO).unwrap();
        connection.execute_batch("BEGIN IMMEDIATE; ROLLBACK").is_err()
    }
}

impl Place {
    fn on(database: TestDatabase) -> Self {
        Self::Postgres { database, reader: Box::new(Mutex::new(Reader::new())) }
    }
}

/// In memory where possible: processes crash in these tests, not machines, and a worker that waits for the disk holds
/// SQLite's lock.
fn folder() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Polls until `done`, for at most `limit`.
pub fn within(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        if done() {
            return true;
        }
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(25));
    }
}

/// Polls until `done`. Panics after [`GUARD`].
pub fn wait_until(what: &str, done: impl FnMut() -> bool) {
    assert!(within(GUARD, done), "waited for {what}");
}

/// Waits for a process that freezes itself at a crash point. A signal in addition could freeze it twice.
pub fn wait_until_frozen(process: &Child) {
    let stat = format!("/proc/{}/stat", process.pid());
    let state = || std::fs::read_to_string(&stat).ok()?.rsplit_once(") ")?.1.chars().next();
    wait_until("a crash point to freeze its process", || state() == Some('T'));
}

/// Whether the full form was requested.
pub fn full_form() -> bool {
    std::env::var("POSTCOMMIT_SWEEP").is_ok_and(|form| form == "full")
}

/// A connection that is opened again when it breaks.
struct Reader {
    client: Option<Client>,
    runtime: Runtime,
}

impl Reader {
    fn new() -> Self {
        Self { client: None, runtime: Builder::new_current_thread().enable_all().build().unwrap() }
    }

    fn rows(&mut self, url: &str, sql: &str) -> Vec<Row> {
        let deadline = Instant::now() + GUARD;
        loop {
            match self.try_rows(url, sql) {
                Ok(rows) => return rows,
                Err(problem) => {
                    assert!(Instant::now() < deadline, "{sql}: {problem:?}");
                    self.client = None;
                    std::thread::sleep(Duration::from_millis(25));
                }
            }
        }
    }

    fn try_rows(&mut self, url: &str, sql: &str) -> Result<Vec<Row>, tokio_postgres::Error> {
        let Self { client, runtime } = self;
        runtime.block_on(async {
            if client.is_none() {
                let (made, connection) = tokio_postgres::connect(url, NoTls).await?;
                tokio::spawn(connection);
                *client = Some(made);
            }
            let answer = client.as_ref().unwrap().simple_query(sql).await?;
            Ok(answer.iter().filter_map(text_of).collect())
        })
    }
}

fn text_of(message: &SimpleQueryMessage) -> Option<Row> {
    let SimpleQueryMessage::Row(row) = message else { return None };
    Some((0..row.len()).map(|place| row.get(place).unwrap_or_default().to_owned()).collect())
}

fn sqlite_rows(path: &PathBuf, sql: &str) -> Vec<Row> {
    let mut read = None;
    // A frozen process may hold a lock of the write-ahead log, for which SQLite waits ten seconds and not longer.
    let is_read = || {
        let result = try_sqlite_rows(path, sql);
        let is_locked = result
            .as_ref()
            .is_err_and(|e| e.sqlite_error_code() == Some(rusqlite::ErrorCode::FileLockingProtocolFailed));
        read = Some(result);
        !is_locked
    };
    within(GUARD, is_read);
    read.unwrap().unwrap()
}

fn try_sqlite_rows(path: &PathBuf, sql: &str) -> rusqlite::Result<Vec<Row>> {
    use rusqlite::types::ValueRef;
    let connection = rusqlite::Connection::open(path)?;
    connection.busy_timeout(GUARD)?;
    let mut statement = connection.prepare(sql)?;
    let width = statement.column_count();
    let cell = |value: ValueRef<'_>| match value {
        ValueRef::Null => String::new(),
        ValueRef::Integer(x) => x.to_string(),
        ValueRef::Real(x) => x.to_string(),
        ValueRef::Text(x) | ValueRef::Blob(x) => String::from_utf8_lossy(x).into_owned(),
    };
    let rows = statement.query_map([], |row| (0..width).map(|place| row.get_ref(place).map(cell)).collect())?;
    rows.collect()
}
