//! A connection to PostgreSQL that counts what it is asked.

use std::sync::Arc;

use deadpool_postgres::{Object, StatementCache};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row, Statement, ToStatement};

use super::trips::Counter;

type Parameters<'a> = &'a [&'a (dyn ToSql + Sync)];

/// What can be executed, and what that takes.
pub trait Asked: ToStatement {
    /// Requests that wait for an answer.
    const TRIPS: u64;
}

impl Asked for Statement {
    const TRIPS: u64 = 1;
}

/// A text is prepared first, every time: for what is rarely said.
impl Asked for str {
    const TRIPS: u64 = 2;
}

/// A connection from the pool.
pub struct Client {
    object: Object,
    counter: Arc<Counter>,
}

impl Client {
    pub(super) fn new(object: Object, counter: Arc<Counter>) -> Self {
        Self { object, counter }
    }

    /// Prepares, the first time on this connection.
    ///
    /// # Errors
    /// As the database says. So for all of these.
    pub async fn prepare_cached(&self, sql: &str) -> Result<Statement, Error> {
        let known = self.object.statement_cache.size();
        let prepared = self.object.prepare_cached(sql).await;
        count_preparing(&self.counter, &self.object.statement_cache, known);
        prepared
    }

    /// All rows.
    pub async fn query<T: Asked + ?Sized>(&self, statement: &T, parameters: Parameters<'_>) -> Result<Vec<Row>, Error> {
        self.count::<T>();
        self.object.query(statement, parameters).await
    }

    /// The one row.
    pub async fn query_one<T: Asked + ?Sized>(&self, statement: &T, parameters: Parameters<'_>) -> Result<Row, Error> {
        self.count::<T>();
        self.object.query_one(statement, parameters).await
    }

    /// How many rows were touched.
    pub async fn execute<T: Asked + ?Sized>(&self, statement: &T, parameters: Parameters<'_>) -> Result<u64, Error> {
        self.count::<T>();
        self.object.execute(statement, parameters).await
    }

    /// Statements without parameters, however many, counted as one.
    pub async fn batch_execute(&self, sql: &str) -> Result<(), Error> {
        self.count::<Statement>();
        self.object.batch_execute(sql).await
    }

    /// Begins.
    pub async fn transaction(&mut self) -> Result<Transaction<'_>, Error> {
        self.counter.trips(1);
        Ok(Transaction { inner: self.object.transaction().await?, counter: &self.counter })
    }

    /// Outside a transaction, each is its own.
    fn count<T: Asked + ?Sized>(&self) {
        self.counter.trips(T::TRIPS);
        self.counter.statements(1);
        self.counter.commit();
    }
}

/// A transaction on such a connection. Dropped without a commit it is rolled back, which nobody waits for.
pub struct Transaction<'a> {
    inner: deadpool_postgres::Transaction<'a>,
    counter: &'a Counter,
}

impl<'a> Transaction<'a> {
    /// Prepares, the first time on this connection.
    ///
    /// # Errors
    /// As the database says. So for all of these.
    pub async fn prepare_cached(&self, sql: &str) -> Result<Statement, Error> {
        let known = self.inner.statement_cache.size();
        let prepared = self.inner.prepare_cached(sql).await;
        count_preparing(self.counter, &self.inner.statement_cache, known);
        prepared
    }

    /// All rows.
    pub async fn query<T: Asked + ?Sized>(&self, statement: &T, parameters: Parameters<'_>) -> Result<Vec<Row>, Error> {
        self.count::<T>();
        self.inner.query(statement, parameters).await
    }

    /// The one row.
    pub async fn query_one<T: Asked + ?Sized>(&self, statement: &T, parameters: Parameters<'_>) -> Result<Row, Error> {
        self.count::<T>();
        self.inner.query_one(statement, parameters).await
    }

    /// How many rows were touched.
    pub async fn execute<T: Asked + ?Sized>(&self, statement: &T, parameters: Parameters<'_>) -> Result<u64, Error> {
        self.count::<T>();
        self.inner.execute(statement, parameters).await
    }

    /// Statements without parameters, however many, counted as one.
    pub async fn batch_execute(&self, sql: &str) -> Result<(), Error> {
        self.count::<Statement>();
        self.inner.batch_execute(sql).await
    }

    /// For the SDK, which says one statement as a text.
    #[must_use]
    pub fn for_sdk(&self) -> &tokio_postgres::Transaction<'a> {
        self.count::<str>();
        &self.inner
    }

    /// Commits.
    pub async fn commit(self) -> Result<(), Error> {
        self.counter.trips(1);
        self.counter.commit();
        self.inner.commit().await
    }

    fn count<T: Asked + ?Sized>(&self) {
        self.counter.trips(T::TRIPS);
        self.counter.statements(1);
    }
}

/// Only what was not known on this connection was asked for.
fn count_preparing(counter: &Counter, cache: &StatementCache, known: usize) {
    if cache.size() > known {
        counter.prepared();
    }
}
