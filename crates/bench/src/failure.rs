//! The error of a measurement, and the exit code of the program.

use std::fmt;

use postcommit_engine::db::DbError;
use postcommit_server::output::{self, Exit};

/// An error text and an exit code.
#[derive(Debug)]
pub struct Failure(output::Failure);

impl Failure {
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self(output::Failure::new(exit, message))
    }

    pub fn exit(&self) -> Exit {
        self.0.exit()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<output::Failure> for Failure {
    fn from(failure: output::Failure) -> Self {
        Self(failure)
    }
}

impl From<DbError> for Failure {
    fn from(error: DbError) -> Self {
        Self(error.into())
    }
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        match error.as_db_error() {
            Some(db) => {
                let (code, message) = (db.code().code().to_owned(), format!("{} ({})", db.message(), db.code().code()));
                DbError::Refused { code, message }.into()
            }
            None => DbError::Unreachable(error.to_string()).into(),
        }
    }
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::new(Exit::Failed, format!("SQLite: {error}"))
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::new(Exit::Failed, error.to_string())
    }
}

impl From<tokio::task::JoinError> for Failure {
    fn from(error: tokio::task::JoinError) -> Self {
        Self::new(Exit::Failed, format!("a task of the benchmark ended early: {error}"))
    }
}
