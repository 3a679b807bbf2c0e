//! A PostgreSQL connection that counts its round trips.

use std::sync::Arc;

use deadpool_postgres::Object;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row, Statement, ToStatement};

use super::trips::TripCounter;

type Parameters<'a> = &'a [&'a (dyn ToSql + Sync)];

/// A statement that can be executed: prepared, or as SQL text.
pub trait Executable: ToStatement {
    /// How many round trips one execution takes.
    const TRIPS: u64;
}

impl Executable for Statement {
    const TRIPS: u64 = 1;
}

/// SQL text is prepared again for every execution, so this is for rare statements.
impl Executable for str {
    const TRIPS: u64 = 2;
}

/// Declares the methods that connections and transactions share. Each method counts its round trips and calls the
/// driver.
macro_rules! statements {
    () => {
        /// Prepares the statement, unless it is already prepared on this connection.
        pub async fn prepare_cached(&self, sql: &str) -> Result<Statement, Error> {
            let known = self.inner.statement_cache.size();
            let prepared = self.inner.prepare_cached(sql).await;
            // A statement from the cache needs no round trip.
            if self.inner.statement_cache.size() > known {
                self.counter.prepared();
            }
            prepared
        }

        pub async fn query<T: Executable + ?Sized>(
            &self,
            statement: &T,
            parameters: Parameters<'_>,
        ) -> Result<Vec<Row>, Error> {
            self.count::<T>();
            self.inner.query(statement, parameters).await
        }

        pub async fn query_one<T: Executable + ?Sized>(
            &self,
            statement: &T,
            parameters: Parameters<'_>,
        ) -> Result<Row, Error> {
            self.count::<T>();
            self.inner.query_one(statement, parameters).await
        }

        /// Executes a statement and returns how many rows it changed.
        pub async fn execute<T: Executable + ?Sized>(
            &self,
            statement: &T,
            parameters: Parameters<'_>,
        ) -> Result<u64, Error> {
            self.count::<T>();
            self.inner.execute(statement, parameters).await
        }

        /// Runs several statements without parameters, and counts them as one statement.
        pub async fn batch_execute(&self, sql: &str) -> Result<(), Error> {
            self.count::<Statement>();
            self.inner.batch_execute(sql).await
        }
    };
}

/// A connection from the pool for lists and the API.
pub struct Client {
    inner: Object,
    counter: Arc<TripCounter>,
}

impl Client {
    pub(super) fn new(inner: Object, counter: Arc<TripCounter>) -> Self {
        Self { inner, counter }
    }

    statements!();

    pub async fn transaction(&mut self) -> Result<Transaction<'_>, Error> {
        self.counter.trips(1);
        Ok(Transaction { inner: self.inner.transaction().await?, counter: &self.counter })
    }

    /// Counts one statement. Outside a transaction, each statement is its own transaction.
    fn count<T: Executable + ?Sized>(&self) {
        self.counter.trips(T::TRIPS);
        self.counter.statements(1);
        self.counter.commit();
    }
}

/// A transaction that counts its round trips. If it is dropped without a commit, it is rolled back in the background.
pub struct Transaction<'a> {
    inner: deadpool_postgres::Transaction<'a>,
    counter: &'a TripCounter,
}

impl<'a> Transaction<'a> {
    statements!();

    /// Returns the driver's transaction for the SDK, which runs one statement as SQL text. That statement is counted
    /// here.
    pub fn for_sdk(&self) -> &tokio_postgres::Transaction<'a> {
        self.count::<str>();
        &self.inner
    }

    pub async fn commit(self) -> Result<(), Error> {
        self.counter.trips(1);
        self.counter.commit();
        self.inner.commit().await
    }

    fn count<T: Executable + ?Sized>(&self) {
        self.counter.trips(T::TRIPS);
        self.counter.statements(1);
    }
}
