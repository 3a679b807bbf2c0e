//! SQLite: one writer thread that commits the work of concurrent callers together, and separate read connections.

use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use postcommit::Timestamp;
use postcommit_channel::clock;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{CachedStatement, Connection, OpenFlags, Params, ToSql, TransactionBehavior, params_from_iter};
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use super::files::Files;
use super::gaps::Gaps;
use super::trips::{TripCounter, note_statement};
use super::value::{Cells, FromValue, Row, Value, read};
use super::writable::Writable;
use super::{DbError, Statement};

/// How many commands one commit includes at most. The application also writes to the file and must get its turn.
const GROUP: usize = 256;
/// How long a transaction accepts further commands after it began. The limit lets the application write in between.
const OPEN: Duration = Duration::from_millis(2);
/// How long a connection waits for a lock that another connection holds.
const BUSY: Duration = Duration::from_secs(10);
/// How many idle read connections are kept at most.
const READERS: usize = 4;

/// The SQL expression for the database's clock in microseconds.
pub(crate) const NOW: &str = "(CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000)";

/// A SQLite file, its writer thread and its read connections.
#[derive(Clone)]
pub struct Sqlite {
    path: PathBuf,
    writer: mpsc::UnboundedSender<Box<dyn Command>>,
    readers: Arc<Mutex<Vec<Connection>>>,
    files: Files,
    writable: Writable,
    pub(super) counter: Arc<TripCounter>,
}

/// Translates a statement that is written for both databases into SQLite's dialect.
pub(crate) fn dialect(sql: &str) -> String {
    let numbered = sql.replace('$', "?");
    numbered.replace("postcommit.", "postcommit_").replace("{now}", NOW)
}

impl Sqlite {
    /// Opens the file, and creates it and its folder if they are missing.
    pub fn open(path: &Path) -> Result<Self, DbError> {
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).map_err(|e| DbError::Unreachable(format!("{}: {e}", folder.display())))?;
        }
        let connection = open_writer(path)?;
        let (writer, commands) = mpsc::unbounded_channel();
        let counter = Arc::<TripCounter>::default();
        let (writable, files) = (Writable::default(), Files::opened(path));
        let (counting, noting, watching) = (counter.clone(), writable.clone(), files.clone());
        std::thread::Builder::new()
            .name("sqlite-writer".into())
            .spawn(move || write_all(connection, commands, &counting, &noting, &watching))
            .map_err(|e| DbError::Unreachable(e.to_string()))?;
        Ok(Self { path: path.to_owned(), writer, readers: Arc::default(), files, writable, counter })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Checks whether a file of the database was moved, deleted or replaced. Writes to the opened file would then be
    /// invisible to other processes.
    pub(super) fn check_identity(&self) {
        self.files.look();
    }

    fn still_ours(&self) -> Result<(), DbError> {
        self.files.replaced().map_or(Ok(()), |what| Err(DbError::Unreachable(what.to_owned())))
    }

    /// Runs `work` in a write transaction that it may share with other callers, and returns after the commit. If any
    /// work in the transaction fails, the transaction is rolled back and the other work runs once more. On an error
    /// nothing of `work` was written.
    pub async fn write<T, F>(&self, work: F) -> Result<T, DbError>
    where
        T: Send + 'static,
        F: Fn(&Connection) -> Result<T, DbError> + Send + 'static,
    {
        self.still_ours()?;
        self.counter.trips(1);
        let (reply, answer) = oneshot::channel();
        let command = Work { work, result: None, reply };
        self.writer.send(Box::new(command)).map_err(|_| {
            DbError::Unreachable("the thread that writes to the SQLite file has ended; restart postcommit".into())
        })?;
        answer.await.map_err(|_| {
            DbError::Unreachable("the thread that writes to the SQLite file has ended; restart postcommit".into())
        })?
    }

    /// Runs `work` on a read-only connection in one transaction, so that it sees one state of the file and locks the
    /// file once.
    pub async fn read<T, F>(&self, work: F) -> Result<T, DbError>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, DbError> + Send + 'static,
    {
        self.still_ours()?;
        self.counter.trips(1);
        let this = self.clone();
        let ran = tokio::task::spawn_blocking(move || {
            let idle = this.readers.lock().ok().and_then(|mut readers| readers.pop());
            let connection = idle.map_or_else(|| open_reader(&this.path), Ok)?;
            let result = this.counter.around(|| read_within(&connection, work));
            if let Ok(mut readers) = this.readers.lock()
                && readers.len() < READERS
            {
                readers.push(connection);
            }
            result
        });
        ran.await.map_err(|e| DbError::Unreachable(e.to_string()))?
    }

    /// Returns whether the file is read-only. To find out, it writes to the file and rolls back. The result is reused
    /// for one second.
    ///
    /// # Errors
    /// Fails if the file cannot be written for another reason: the disk is full or nearly full, the last write failed,
    /// or another connection holds a lock.
    pub async fn is_read_only(&self) -> Result<bool, DbError> {
        self.check_identity();
        self.still_ours()?;
        self.counter.trips(1);
        self.writable.is_read_only(&self.path).await
    }

    /// Switches the file permanently to write-ahead logging. This is done when the schema is created and not when the
    /// file is opened, because the file may belong to another application.
    pub fn use_wal(&self) -> Result<(), DbError> {
        let connection = Connection::open(&self.path).map_err(|e| at(&self.path, e))?;
        connection.busy_timeout(BUSY).map_err(refused)?;
        connection.execute_batch("PRAGMA journal_mode = WAL").map_err(|e| at(&self.path, e))
    }

    /// Moves the write-ahead log into the file, so that a copy of the file after a stop is complete. It can fail while
    /// another connection reads, and the failure is only logged.
    pub fn checkpoint(&self) {
        // Another log has replaced ours. A new connection would move that log into the file.
        if self.files.replaced().is_some() {
            return;
        }
        let checkpointed = Connection::open(&self.path)
            .and_then(|connection| connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)"));
        if let Err(problem) = checkpointed {
            tracing::debug!(%problem, "could not copy the write-ahead log into the SQLite file (checkpoint); keep the file together with its -wal file");
        }
    }

    /// Opens a separate read connection for watching the file.
    pub fn reader(&self) -> Result<Connection, DbError> {
        open_reader(&self.path)
    }
}

fn open_writer(path: &Path) -> Result<Connection, DbError> {
    let connection = Connection::open(path).map_err(|e| at(path, e))?;
    connection.busy_timeout(BUSY).map_err(refused)?;
    // With `synchronous = FULL` an acknowledged commit survives a power failure. It costs little because callers share
    // commits. The log is moved into the file every 16 MB instead of every 4 MB, so that frequently written pages are
    // copied less often.
    connection
        .execute_batch(
            "PRAGMA synchronous = FULL;
             PRAGMA foreign_keys = OFF;
             PRAGMA temp_store = MEMORY;
             PRAGMA journal_size_limit = 67108864;
             PRAGMA wal_autocheckpoint = 4000",
        )
        .map_err(|e| at(path, e))?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

fn open_reader(path: &Path) -> Result<Connection, DbError> {
    let connection =
        Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)
            .map_err(|e| at(path, e))?;
    connection.busy_timeout(BUSY).map_err(refused)?;
    connection.execute_batch("PRAGMA query_only = ON").map_err(|e| at(path, e))?;
    Ok(connection)
}

fn at(path: &Path, error: rusqlite::Error) -> DbError {
    DbError::Unreachable(format!("{}: {error}", path.display()))
}

/// One caller's work in a group commit.
trait Command: Send {
    fn run(&mut self, connection: &Connection) -> Result<(), ()>;
    fn answer(self: Box<Self>, committed: Result<(), String>);
}

struct Work<T, F> {
    work: F,
    result: Option<Result<T, DbError>>,
    reply: oneshot::Sender<Result<T, DbError>>,
}

impl<T: Send, F: Fn(&Connection) -> Result<T, DbError> + Send> Command for Work<T, F> {
    fn run(&mut self, connection: &Connection) -> Result<(), ()> {
        self.result = None;
        let result = (self.work)(connection);
        let ok = result.is_ok();
        self.result = Some(result);
        if ok { Ok(()) } else { Err(()) }
    }

    fn answer(self: Box<Self>, committed: Result<(), String>) {
        let result = match (self.result, committed) {
            (Some(Err(error)), _) => Err(error),
            (_, Err(problem)) => Err(DbError::Unreachable(problem)),
            (Some(result), Ok(())) => result,
            (None, Ok(())) => Err(DbError::Unreachable(
                "the code that wrote to the SQLite file panicked; nothing was written; report it as a bug".into(),
            )),
        };
        // If the caller has stopped waiting, its work is committed nevertheless.
        let _ = self.reply.send(result);
    }
}

type Commands = mpsc::UnboundedReceiver<Box<dyn Command>>;

fn write_all(
    mut connection: Connection,
    mut commands: Commands,
    counter: &TripCounter,
    writable: &Writable,
    files: &Files,
) {
    let mut gaps = Gaps::new();
    while let Some(first) = commands.blocking_recv() {
        let (mut group, began) = (vec![first], clock::monotonic());
        let changes = connection.total_changes();
        let written = counter.around(|| match write_together(&mut connection, &mut group, &mut commands)? {
            true => Ok(true),
            false => write_apart(&mut connection, &mut group).map(|()| false),
        });
        match &written {
            // A transaction without changes wrote nothing, so it does not show that the disk is writable.
            Ok(all) if *all && connection.total_changes() > changes => writable.succeeded(),
            Ok(_) => {}
            Err(problem) => writable.failed(problem),
        }
        let committed = written.map(drop).map_err(|e: rusqlite::Error| e.to_string());
        if committed.is_ok() {
            counter.commit();
            files.note_log();
        }
        for command in group {
            command.answer(committed.clone());
        }
        gaps.leave(began.elapsed(), &connection);
    }
}

/// Runs the group in one transaction and includes commands that arrive while it runs. After a commit its callers send
/// their next commands immediately, and the first of these must not get a commit of its own. If a command fails, it
/// returns false and nothing is written.
fn write_together(
    connection: &mut Connection,
    group: &mut Vec<Box<dyn Command>>,
    more: &mut Commands,
) -> rusqlite::Result<bool> {
    let began = clock::monotonic();
    join(group, more);
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let mut done = 0;
    while let Some(command) = group.get_mut(done) {
        if !run_alone(&transaction, command)? {
            transaction.rollback()?;
            return Ok(false);
        }
        done += 1;
        if began.elapsed() < OPEN {
            join(group, more);
        }
    }
    transaction.commit()?;
    Ok(true)
}

/// Adds waiting commands to the group.
fn join(group: &mut Vec<Box<dyn Command>>, more: &mut Commands) {
    while group.len() < GROUP
        && let Ok(next) = more.try_recv()
    {
        group.push(next);
    }
}

/// Runs the group again after a command has failed. Each command gets a savepoint, so that only failing commands are
/// undone. Savepoints are not used on the first run, because SQLite copies every page that is written under one, which
/// adds 3 µs to an enqueue.
fn write_apart(connection: &mut Connection, group: &mut [Box<dyn Command>]) -> rusqlite::Result<()> {
    // These statements are prepared once. The savepoints of rusqlite would be parsed for every command.
    let run =
        |connection: &Connection, sql| connection.prepare_cached(sql).and_then(|mut statement| statement.execute([]));
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for command in group {
        run(&transaction, "SAVEPOINT one")?;
        if !run_alone(&transaction, command)? {
            run(&transaction, "ROLLBACK TO one")?;
        }
        run(&transaction, "RELEASE one")?;
    }
    transaction.commit()
}

/// Runs one command. Returns false if it failed. A panic fails only that command, and the thread continues.
fn run_alone(transaction: &Connection, command: &mut Box<dyn Command>) -> rusqlite::Result<bool> {
    let ran = std::panic::catch_unwind(AssertUnwindSafe(|| command.run(transaction)));
    // Some errors, such as a full disk, roll back the whole transaction. After such an error, later commands must not
    // be committed without the earlier ones, and the earlier ones must not be reported as done.
    if transaction.is_autocommit() {
        let lost = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_ABORT_ROLLBACK);
        return Err(rusqlite::Error::SqliteFailure(lost, Some("the transaction was rolled back".into())));
    }
    Ok(matches!(ran, Ok(Ok(()))))
}

fn read_within<T>(connection: &Connection, work: impl FnOnce(&Connection) -> Result<T, DbError>) -> Result<T, DbError> {
    let transaction = connection.unchecked_transaction().map_err(refused)?;
    let result = work(&transaction);
    transaction.finish().map_err(refused)?;
    result
}

/// A prepared statement that is executed for many rows. It is looked up once, and its parameters are borrowed.
pub(crate) struct Prepared<'c>(CachedStatement<'c>);

impl<'c> Prepared<'c> {
    pub(crate) fn on(connection: &'c Connection, sql: &str) -> Result<Self, DbError> {
        connection.prepare_cached(sql).map(Self).map_err(refused)
    }

    /// Executes the statement and returns how many rows it changed.
    pub(crate) fn run(&mut self, parameters: impl Params) -> Result<usize, DbError> {
        note_statement();
        self.0.execute(parameters).map_err(refused)
    }

    /// Executes the statement and reads every row.
    pub(crate) fn rows<T>(
        &mut self,
        parameters: impl Params,
        mut read: impl FnMut(&mut Current<'_>) -> T,
    ) -> Result<Vec<T>, DbError> {
        note_statement();
        let mut rows = self.0.query(parameters).map_err(refused)?;
        let mut all = Vec::new();
        while let Some(row) = rows.next().map_err(refused)? {
            all.push(read(&mut Current(row)));
        }
        Ok(all)
    }

    /// Executes the statement and returns a cursor over its rows.
    pub(crate) fn cursor(&mut self, parameters: impl Params) -> Result<Cursor<'_>, DbError> {
        note_statement();
        self.0.query(parameters).map(Cursor).map_err(refused)
    }

    /// Executes the statement and reads the first row, if there is one.
    pub(crate) fn first<T>(
        &mut self,
        parameters: impl Params,
        read: impl FnOnce(&mut Current<'_>) -> Result<T, DbError>,
    ) -> Result<Option<T>, DbError> {
        self.cursor(parameters)?.next(read)
    }
}

/// A running statement whose rows are read one at a time.
pub(crate) struct Cursor<'s>(rusqlite::Rows<'s>);

impl Cursor<'_> {
    /// Reads the next row, if there is one.
    pub(crate) fn next<T>(
        &mut self,
        read: impl FnOnce(&mut Current<'_>) -> Result<T, DbError>,
    ) -> Result<Option<T>, DbError> {
        self.0.next().map_err(refused)?.map(|row| read(&mut Current(row))).transpose()
    }
}

/// The current row of a running statement.
pub(crate) struct Current<'a>(&'a rusqlite::Row<'a>);

impl Cells for Current<'_> {
    fn take<T: FromValue>(&mut self, place: usize) -> Result<T, DbError> {
        read(self.0.get_ref(place).map(from_sqlite).map_err(refused)?, place)
    }
}

/// A UUID as a parameter. It is the text that the columns hold, formatted on the stack.
pub(crate) struct Id([u8; 36]);

impl From<Uuid> for Id {
    fn from(id: Uuid) -> Self {
        let mut text = [0; 36];
        id.hyphenated().encode_lower(&mut text);
        Self(text)
    }
}

impl ToSql for Id {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(ValueRef::Text(&self.0)))
    }
}

/// Runs a statement that returns rows.
pub(crate) fn query(connection: &Connection, sql: &str, parameters: &[Value]) -> Result<Vec<Row>, DbError> {
    let mut statement = connection.prepare_cached(sql).map_err(refused)?;
    let width = statement.column_count();
    note_statement();
    let mut rows = statement.query(params_from_iter(parameters)).map_err(refused)?;
    let mut all = Vec::new();
    while let Some(row) = rows.next().map_err(refused)? {
        let cells = (0..width).map(|place| row.get_ref(place).map(from_sqlite).map_err(refused));
        all.push(Row(cells.collect::<Result<_, _>>()?));
    }
    Ok(all)
}

/// Returns the time of the database's clock.
pub(crate) fn now(connection: &Connection) -> Result<Timestamp, DbError> {
    static SELECT_NOW: LazyLock<String> = LazyLock::new(|| format!("SELECT {NOW}"));
    let now = Prepared::on(connection, &SELECT_NOW)?.first((), |row| row.take(0))?;
    now.ok_or_else(|| DbError::Unreadable("the query for the current time returned no row; report it as a bug".into()))
}

/// Runs statements that write. If the statement at index `deciding` changes no row, the statements after it are
/// skipped.
pub(crate) fn execute(connection: &Connection, statements: &[Statement], deciding: usize) -> Result<Vec<u64>, DbError> {
    let mut touched = Vec::with_capacity(statements.len());
    for (place, (sql, parameters)) in statements.iter().enumerate() {
        let rows = run(connection, &dialect(sql), parameters)?;
        touched.push(rows);
        if place == deciding && rows == 0 {
            break;
        }
    }
    Ok(touched)
}

/// Runs one statement that writes, and returns how many rows it changed.
pub(crate) fn run<'a>(
    connection: &Connection,
    sql: &str,
    parameters: impl IntoIterator<Item = &'a Value>,
) -> Result<u64, DbError> {
    note_statement();
    let mut statement = connection.prepare_cached(sql).map_err(refused)?;
    statement.execute(params_from_iter(parameters)).map(|touched| touched as u64).map_err(refused)
}

fn from_sqlite(cell: ValueRef<'_>) -> Value {
    match cell {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(x) => Value::Int(x),
        ValueRef::Real(x) => Value::Real(x),
        ValueRef::Text(x) => Value::Text(String::from_utf8_lossy(x).into_owned()),
        ValueRef::Blob(x) => Value::Bytes(x.to_vec()),
    }
}

impl ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self {
            Self::Null => ToSqlOutput::Borrowed(ValueRef::Null),
            Self::Int(x) => (*x).into(),
            Self::Real(x) => (*x).into(),
            Self::Bool(x) => i64::from(*x).into(),
            Self::Text(x) | Self::Json(x) => x.as_str().into(),
            Self::Bytes(x) => x.as_slice().into(),
            Self::Uuid(x) => x.to_string().into(),
            Self::Time(x) => x.as_micros().into(),
            Self::Texts(x) => serde_json::json!(x).to_string().into(),
        })
    }
}

/// Converts an error, and distinguishes a file that cannot be used now from a refused statement.
pub(crate) fn refused(error: rusqlite::Error) -> DbError {
    use rusqlite::ErrorCode::{
        CannotOpen, DatabaseBusy, DatabaseCorrupt, DatabaseLocked, DiskFull, ReadOnly, SystemIoFailure,
    };
    match &error {
        rusqlite::Error::SqliteFailure(failure, message) => {
            let text = message.clone().unwrap_or_else(|| error.to_string());
            match failure.code {
                DatabaseBusy | DatabaseLocked | CannotOpen | SystemIoFailure | DiskFull | ReadOnly
                | DatabaseCorrupt => DbError::Unreachable(text),
                _ => DbError::Refused { code: failure.extended_code.to_string(), message: text },
            }
        }
        other => DbError::Unreadable(other.to_string()),
    }
}
