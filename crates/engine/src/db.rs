//! The two databases under the store: connections, values, migrations. What is said to them is the store's business.

mod client;
pub(crate) mod columns;
mod files;
mod installation;
mod isolation;
mod migrate;
pub mod postgres;
mod repeatable;
mod roles;
mod session;
pub mod sqlite;
mod tls;
mod trips;
mod value;
mod watch;
mod writable;

use std::path::PathBuf;

pub use client::{Asked, Client, Transaction};
pub use migrate::{LATEST, MIGRATIONS, Migrated, Migration, MigrationPlan};
pub use repeatable::schema_hash;
pub use trips::Trips;
pub use value::{Cells, FromValue, Row, Value};
pub use watch::Bell;

use postgres::Postgres;
use sqlite::Sqlite;

/// Why the database did not do as asked.
#[derive(Debug, thiserror::Error)]
pub enum DbError {
    /// It cannot be reached, or the connection broke.
    #[error("cannot reach the database: {0}")]
    Unreachable(String),
    /// Its schema was made by a newer version of this program.
    #[error("the database has schema version {found}, this program knows {known}; run a newer postcommit")]
    TooNew {
        /// What is there.
        found: i32,
        /// What we know.
        known: i32,
    },
    /// Its schema is missing or older than this program's.
    #[error("the database has schema version {found}, this program needs {needed}; run `postcommit migrate`")]
    TooOld {
        /// What is there; 0 is nothing.
        found: i32,
        /// What we need.
        needed: i32,
    },
    /// Its functions, triggers and views are those of another version of this program.
    #[error("the functions of the database are those of another version of this program; run `postcommit migrate`")]
    OtherFunctions,
    /// The URL is not one of ours.
    #[error("database.url: {0}; allowed are postgres://… and sqlite:path")]
    Url(String),
    /// It refused a statement.
    #[error("{message}")]
    Refused {
        /// SQLSTATE, or SQLite's extended code.
        code: String,
        /// What it said.
        message: String,
    },
    /// It answered with something that cannot be read.
    #[error("the database holds something unreadable: {0}")]
    Unreadable(String),
}

/// What is said to a database: a text, and the values for its `$1`, `$2`, ….
pub type Statement = (String, Vec<Value>);

/// One of the two.
#[derive(Clone)]
pub enum Db {
    /// PostgreSQL 15 or newer.
    Postgres(Postgres),
    /// SQLite, in a file that may also be the application's.
    Sqlite(Sqlite),
}

/// Where the database is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A `postgres://` URL.
    Postgres(String),
    /// A file.
    Sqlite(PathBuf),
}

impl Address {
    /// Reads `postgres://…`, `postgresql://…`, `sqlite:path`, `sqlite://path`.
    ///
    /// # Errors
    /// For anything else.
    pub fn parse(url: &str) -> Result<Self, DbError> {
        if url.starts_with("postgres://") || url.starts_with("postgresql://") {
            return Ok(Self::Postgres(url.to_owned()));
        }
        let path = url.strip_prefix("sqlite:").map(|rest| rest.strip_prefix("//").unwrap_or(rest));
        match path {
            Some(path) if !path.is_empty() => Ok(Self::Sqlite(path.into())),
            // The URL may hold a password: only its scheme is repeated.
            _ => Err(DbError::Url(format!("scheme {:?} is not known", url.split(':').next().unwrap_or("")))),
        }
    }
}

impl Db {
    /// Opens the database; a missing SQLite file is made.
    ///
    /// # Errors
    /// When it cannot be reached or the URL is not one of ours.
    pub async fn open(url: &str) -> Result<Self, DbError> {
        match Address::parse(url)? {
            Address::Postgres(url) => Ok(Self::Postgres(Postgres::open(&url).await?)),
            Address::Sqlite(path) => Ok(Self::Sqlite(Sqlite::open(&path)?)),
        }
    }

    /// Leaves nothing beside the file, on SQLite; for the end of a process.
    pub fn settle_file(&self) {
        if let Self::Sqlite(db) = self {
            db.checkpoint();
        }
    }

    /// Its kind, for people.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Postgres(_) => "postgres",
            Self::Sqlite(_) => "sqlite",
        }
    }

    /// What it was asked so far.
    #[must_use]
    pub fn trips(&self) -> Trips {
        match self {
            Self::Postgres(db) => db.counter.read(),
            Self::Sqlite(db) => db.counter.read(),
        }
    }

    /// How its pools of connections are doing; SQLite has none to wait for.
    #[must_use]
    pub fn pools(&self) -> Vec<postgres::PoolReading> {
        match self {
            Self::Postgres(db) => db.pools(),
            Self::Sqlite(_) => vec![],
        }
    }

    /// Runs a statement written for both: `postcommit.` becomes `postcommit_` on SQLite, and `{now}` each one's clock.
    pub async fn query(&self, sql: &str, parameters: Vec<Value>) -> Result<Vec<Row>, DbError> {
        match self {
            Self::Postgres(db) => db.query(&postgres::dialect(sql), &parameters).await,
            Self::Sqlite(db) => {
                let sql = sqlite::dialect(sql);
                db.read(move |connection| sqlite::query(connection, &sql, &parameters)).await
            }
        }
    }

    /// As [`Db::query`], for a statement that is put together anew for every question: it is planned for what is asked, and not kept. There are more of them than a
    /// connection should remember.
    pub async fn query_once(&self, sql: &str, parameters: Vec<Value>) -> Result<Vec<Row>, DbError> {
        match self {
            Self::Postgres(db) => db.query_once(&postgres::dialect(sql), &parameters).await,
            // SQLite's connections remember the last few alone.
            Self::Sqlite(_) => self.query(sql, parameters).await,
        }
    }

    /// As [`Db::query`], for statements that write: all of them or none. Returns how many rows each touched.
    ///
    /// # Errors
    /// As the database says; nothing was written then.
    pub async fn execute(&self, statements: Vec<Statement>) -> Result<Vec<u64>, DbError> {
        self.execute_while(statements, usize::MAX).await
    }

    /// As [`Db::execute`], but the statement at that place decides: if it touches no row, what comes after it is left out. True when it touched one.
    ///
    /// # Errors
    /// As the database says; nothing was written then.
    pub async fn execute_if(&self, statements: Vec<Statement>, deciding: usize) -> Result<bool, DbError> {
        Ok(self.execute_while(statements, deciding).await?.get(deciding).is_some_and(|rows| *rows > 0))
    }

    /// The same; returns how many rows each touched that was not left out.
    pub(crate) async fn execute_while(&self, statements: Vec<Statement>, deciding: usize) -> Result<Vec<u64>, DbError> {
        match self {
            Self::Postgres(db) => db.execute(&statements, deciding).await,
            Self::Sqlite(db) => db.write(move |connection| sqlite::execute(connection, &statements, deciding)).await,
        }
    }

    /// How a statement says: so many seconds from now, as the parameter at that place tells.
    pub(crate) fn seconds_from_now(&self, place: usize) -> String {
        match self {
            Self::Postgres(_) => format!("clock_timestamp() + ${place}::float8 * interval '1 second'"),
            Self::Sqlite(_) => format!("{{now}} + CAST(${place} * 1000000 AS INTEGER)"),
        }
    }

    /// One statement that writes.
    pub async fn execute_one(&self, sql: &str, parameters: Vec<Value>) -> Result<u64, DbError> {
        Ok(self.execute(vec![(sql.to_owned(), parameters)]).await?.first().copied().unwrap_or(0))
    }
}
