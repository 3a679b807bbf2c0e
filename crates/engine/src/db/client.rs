//! A PostgreSQL connection that counts its round trips.

use std::sync::Arc;

use deadpool_postgres::{Object, StatementCache};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row, Statement, ToStatement};

use super::trips::TripCounter;

type Parameters<'a> = &'a [&'a (dyn ToSql + Sync)];

/// A statement in a form that can be executed.
pub trait Executable: ToStatement {
    /// The round trips that one execution takes.
    const TRIPS: u64;
}

impl Executable for Statement {
    const TRIPS: u64 = 1;
}

/// A text is prepared for every execution, so this is for rare statements.
impl Executable for str {
    const TRIPS: u64 = 2;
}

/// A connection from the pool for lists and the API.
pub struct Client {
    object: Object,
    counter: Arc<TripCounter>,
}

impl Client {
    pub(super) fn new(object: Object, counter: Arc<TripCounter>) -> Self {
        Self { object, counter }
    }

    /// Prepares the statement unless this connection has it prepared already.
    pub async fn prepare_cached(&self, sql: &str) -> Result<Statement, Error> {
        let known = self.object.statement_cache.size();
        let prepared = self.object.prepare_cached(sql).await;
        count_preparing(&self.counter, &self.object.statement_cache, known);
        prepared
    }

    pub async fn query<T: Executable + ?Sized>(
        &self,
        statement: &T,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, Error> {
        self.count::<T>();
        self.object.query(statement, parameters).await
    }

    pub async fn query_one<T: Executable + ?Sized>(
        &self,
        statement: &T,
        parameters: Parameters<'_>,
    ) -> Result<Row, Error> {
        self.count::<T>();
        self.object.query_one(statement, parameters).await
    }

    /// Returns how many rows were touched.
    pub async fn execute<T: Executable + ?Sized>(
        &self,
        statement: &T,
        parameters: Parameters<'_>,
    ) -> Result<u64, Error> {
        self.count::<T>();
        self.object.execute(statement, parameters).await
    }

    /// Runs any number of statements without parameters. They count as one.
    pub async fn batch_execute(&self, sql: &str) -> Result<(), Error> {
        self.count::<Statement>();
        self.object.batch_execute(sql).await
    }

    pub async fn transaction(&mut self) -> Result<Transaction<'_>, Error> {
        self.counter.trips(1);
        Ok(Transaction { inner: self.object.transaction().await?, counter: &self.counter })
    }

    /// A statement outside a transaction is a transaction of its own.
    fn count<T: Executable + ?Sized>(&self) {
        self.counter.trips(T::TRIPS);
        self.counter.statements(1);
        self.counter.commit();
    }
}

/// A transaction that counts its round trips. Dropped without a commit it is rolled back, and no caller waits for that.
pub struct Transaction<'a> {
    inner: deadpool_postgres::Transaction<'a>,
    counter: &'a TripCounter,
}

impl<'a> Transaction<'a> {
    /// Prepares the statement unless this connection has it prepared already.
    pub async fn prepare_cached(&self, sql: &str) -> Result<Statement, Error> {
        let known = self.inner.statement_cache.size();
        let prepared = self.inner.prepare_cached(sql).await;
        count_preparing(self.counter, &self.inner.statement_cache, known);
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

    /// Returns how many rows were touched.
    pub async fn execute<T: Executable + ?Sized>(
        &self,
        statement: &T,
        parameters: Parameters<'_>,
    ) -> Result<u64, Error> {
        self.count::<T>();
        self.inner.execute(statement, parameters).await
    }

    /// Runs any number of statements without parameters. They count as one.
    pub async fn batch_execute(&self, sql: &str) -> Result<(), Error> {
        self.count::<Statement>();
        self.inner.batch_execute(sql).await
    }

    /// The transaction for the SDK, which runs one statement as text.
    #[must_use]
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

/// A statement that the cache already held cost no round trip.
fn count_preparing(counter: &TripCounter, cache: &StatementCache, known: usize) {
    if cache.size() > known {
        counter.prepared();
    }
}
