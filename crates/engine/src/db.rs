//! The two databases below the store: connections, values and migrations. The statements themselves are written in the
//! store.

mod client;
pub(crate) mod columns;
mod files;
mod gaps;
mod installation;
mod isolation;
mod migrate;
pub mod postgres;
mod repeatable;
mod roles;
mod scratch;
mod session;
pub mod sqlite;
mod tls;
mod trips;
mod value;
mod watch;
mod writable;

use std::path::PathBuf;
use std::time::Duration;

pub use client::{Client, Transaction};
pub use migrate::{LATEST, MIGRATIONS, Migrated, Migration, MigrationPlan};
pub use repeatable::schema_hash;
pub use roles::MadeRoles;
pub use scratch::{Scratch, with_database};
pub use trips::Trips;
pub use value::{Cells, FromValue, Row, Value};
pub use watch::Signal;

use postgres::Postgres;
use sqlite::Sqlite;

#[derive(Debug, thiserror::Error)]
pub enum DbError {
    /// The database cannot be reached now, or cannot take writes now. The same call may succeed later.
    #[error("cannot reach the database: {0}")]
    Unreachable(String),
    /// A newer version of this program has migrated the schema.
    #[error(
        "the database has schema version {found}, but this program only knows versions up to {known}; run a newer \
         postcommit"
    )]
    TooNew {
        /// The schema version of the database.
        found: i32,
        /// The newest schema version that this program knows.
        known: i32,
    },
    /// The schema is missing or older than this program needs.
    #[error("the database has schema version {found}, this program needs {needed}; run `postcommit migrate`")]
    TooOld {
        /// The schema version of the database; 0 where there is no schema.
        found: i32,
        /// The schema version that this program needs.
        needed: i32,
    },
    /// The functions, triggers and views in the database belong to another version of this program.
    #[error(
        "the SQL functions and views in the database are of another version of postcommit; run `postcommit migrate`"
    )]
    OtherFunctions,
    /// The URL has an unknown scheme or cannot be parsed.
    #[error("database.url: {0}; allowed are postgres://… and sqlite:path")]
    Url(String),
    /// The database refused a statement. The same statement would fail again.
    #[error("{message}")]
    Refused {
        /// The SQLSTATE, or the extended result code of SQLite.
        code: String,
        /// The message of the database.
        message: String,
    },
    /// A value in the database does not have the expected type.
    #[error("unexpected data from the database: {0}")]
    Unreadable(String),
}

impl DbError {
    /// Returns whether this login may not connect or lacks a privilege. Only an administrator can change that. Returns
    /// false if row-level security refused a row, because the cause is then in this program.
    #[must_use]
    pub fn is_lack_of_rights(&self) -> bool {
        const INSUFFICIENT_PRIVILEGE: &str = "42501";
        const INVALID_AUTHORIZATION: &str = "28";
        matches!(self, Self::Refused { code, message }
            if (code == INSUFFICIENT_PRIVILEGE && !message.contains("row-level security"))
                || code.len() == 5 && code.starts_with(INVALID_AUTHORIZATION))
    }
}

/// A statement: its text, and the values of its `$1`, `$2`, ….
pub type Statement = (String, Vec<Value>);

/// A database of either kind.
#[derive(Clone)]
pub enum Db {
    /// PostgreSQL 15 or newer.
    Postgres(Postgres),
    /// SQLite. The file may also be the application's own.
    Sqlite(Sqlite),
}

/// The address of a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A `postgres://` URL.
    Postgres(String),
    /// The path of a SQLite file.
    Sqlite(PathBuf),
}

impl Address {
    /// Reads `postgres://…`, `postgresql://…`, `sqlite:path`, `sqlite://path`.
    pub fn parse(url: &str) -> Result<Self, DbError> {
        if url.starts_with("postgres://") || url.starts_with("postgresql://") {
            return Ok(Self::Postgres(url.to_owned()));
        }
        let path = url.strip_prefix("sqlite:").map(|rest| rest.strip_prefix("//").unwrap_or(rest));
        match path {
            Some(path) if !path.is_empty() => Ok(Self::Sqlite(path.into())),
            // The URL may hold a password, so the error repeats only its scheme.
            _ => Err(DbError::Url(format!("scheme {:?} is not known", url.split(':').next().unwrap_or("")))),
        }
    }
}

impl Db {
    /// Opens the database. A missing SQLite file is created. A new connection to PostgreSQL may take `connect_timeout`
    /// until its first answer.
    pub async fn open(url: &str, connect_timeout: Duration) -> Result<Self, DbError> {
        match Address::parse(url)? {
            Address::Postgres(url) => Ok(Self::Postgres(Postgres::open(&url, connect_timeout).await?)),
            Address::Sqlite(path) => Ok(Self::Sqlite(Sqlite::open(&path)?)),
        }
    }

    /// On SQLite, moves the write-ahead log into the file. Call it when the process ends.
    pub fn settle_file(&self) {
        if let Self::Sqlite(db) = self {
            db.checkpoint();
        }
    }

    /// Returns the kind of the database, `postgres` or `sqlite`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Postgres(_) => "postgres",
            Self::Sqlite(_) => "sqlite",
        }
    }

    /// Returns how often the database was called since it was opened.
    pub fn trips(&self) -> Trips {
        match self {
            Self::Postgres(db) => db.counter.read(),
            Self::Sqlite(db) => db.counter.read(),
        }
    }

    /// Returns the measurements of the connection pools. Empty on SQLite, which has no connection pool.
    pub fn pools(&self) -> Vec<postgres::PoolReading> {
        match self {
            Self::Postgres(db) => db.pools(),
            Self::Sqlite(_) => vec![],
        }
    }

    /// Runs a statement that is written for both databases. On SQLite `postcommit.` becomes `postcommit_`; `{now}`
    /// becomes the clock of the database.
    pub async fn query(&self, sql: &str, parameters: Vec<Value>) -> Result<Vec<Row>, DbError> {
        match self {
            Self::Postgres(db) => db.query(&postgres::dialect(sql), &parameters).await,
            Self::Sqlite(db) => {
                let sql = sqlite::dialect(sql);
                db.read(move |connection| sqlite::query(connection, &sql, &parameters)).await
            }
        }
    }

    /// Runs a query like [`Db::query`], for a statement whose text is built for each call. The statement is planned
    /// with its parameters and not kept prepared, because there are more such texts than a connection should cache.
    pub async fn query_once(&self, sql: &str, parameters: Vec<Value>) -> Result<Vec<Row>, DbError> {
        match self {
            Self::Postgres(db) => db.query_once(&postgres::dialect(sql), &parameters).await,
            // The statement cache of a SQLite connection is bounded.
            Self::Sqlite(_) => self.query(sql, parameters).await,
        }
    }

    /// Runs writing statements in one transaction. Returns how many rows each statement changed. On an error nothing
    /// was written.
    pub async fn execute(&self, statements: Vec<Statement>) -> Result<Vec<u64>, DbError> {
        self.execute_while(statements, usize::MAX).await
    }

    /// Runs statements like [`Db::execute`]. If the statement at index `deciding` changes no row, the statements after
    /// it are skipped. Returns whether that statement changed a row.
    pub async fn execute_if(&self, statements: Vec<Statement>, deciding: usize) -> Result<bool, DbError> {
        Ok(self.execute_while(statements, deciding).await?.get(deciding).is_some_and(|rows| *rows > 0))
    }

    /// Runs statements like [`Db::execute_if`]. Returns how many rows each statement changed, without the skipped
    /// statements.
    pub(crate) async fn execute_while(&self, statements: Vec<Statement>, deciding: usize) -> Result<Vec<u64>, DbError> {
        match self {
            Self::Postgres(db) => db.execute(&statements, deciding).await,
            Self::Sqlite(db) => db.write(move |connection| sqlite::execute(connection, &statements, deciding)).await,
        }
    }

    /// Returns the SQL expression for the database's clock plus the seconds in parameter number `place`.
    pub(crate) fn seconds_from_now(&self, place: usize) -> String {
        match self {
            Self::Postgres(_) => format!("clock_timestamp() + ${place}::float8 * interval '1 second'"),
            Self::Sqlite(_) => format!("{{now}} + CAST(${place} * 1000000 AS INTEGER)"),
        }
    }

    /// Runs one writing statement. Returns how many rows it changed.
    pub async fn execute_one(&self, sql: &str, parameters: Vec<Value>) -> Result<u64, DbError> {
        Ok(self.execute(vec![(sql.to_owned(), parameters)]).await?.first().copied().unwrap_or(0))
    }
}
