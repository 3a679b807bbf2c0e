//! Functions for `sqlx` connections and transactions on PostgreSQL and SQLite.
//!
//! Up to sqlx 0.9.0 a `PgPool::begin()` whose future is dropped half-way (a timeout, a `select!`) returns a connection
//! to the pool that is still inside a transaction. The next user of that connection then loses writes that were
//! reported as committed. Call `begin()` in a task of its own, or give the pool an `after_release` hook that issues
//! `ROLLBACK`, as `examples/sqlx_postgres.rs` does. SQLite pools need no hook, because sqlx itself rolls back such a
//! `BEGIN` on SQLite.

use ::sqlx::Error as SqlxError;

use crate::Error;

/// The functions of the schema `postcommit` through `sqlx::PgConnection`.
#[cfg(feature = "sqlx-postgres")]
pub mod postgres {
    use std::slice;

    use ::sqlx::postgres::PgDatabaseError;
    use ::sqlx::{PgConnection, query_scalar};
    use uuid::Uuid;

    use super::{SqlxError, database};
    use crate::{Error, Notification, enqueue as shared};

    /// Enqueues in the current transaction of `connection`: pass `&mut *transaction`. Returns the notification's id.
    /// When the key was used before, returns the id of the first notification.
    ///
    /// # Errors
    /// [`Error::Conflict`] for a strict notification whose key was used with other content; [`Error::Invalid`] for a
    /// field beyond its limit; [`Error::Database`] otherwise. After each of them PostgreSQL accepts only a rollback: of
    /// the transaction, or to an earlier savepoint.
    pub async fn enqueue(connection: &mut PgConnection, note: &Notification) -> Result<Uuid, Error> {
        let mut query = query_scalar::<_, String>(shared::POSTGRES_ENQUEUE);
        for argument in shared::arguments(note, shared::postgres_channels(note)) {
            query = query.bind(argument);
        }
        let id = query.fetch_one(connection).await.map_err(|e| refused(e, slice::from_ref(note)))?;
        shared::parse_id(&id)
    }

    /// Enqueues up to 1,000 notifications in one round trip. Returns their ids in the order given. Notifications with
    /// the same key are enqueued once.
    ///
    /// # Errors
    /// [`Error::Invalid`] for more than 1,000, otherwise as [`enqueue`].
    pub async fn enqueue_many(connection: &mut PgConnection, notes: &[Notification]) -> Result<Vec<Uuid>, Error> {
        let query = query_scalar::<_, String>(shared::POSTGRES_ENQUEUE_MANY).bind(shared::batch(notes)?);
        let ids = query.fetch_all(connection).await.map_err(|e| refused(e, notes))?;
        ids.iter().map(|id| shared::parse_id(id)).collect()
    }

    /// Cancels the deliveries of `entity` that are not yet sent, of all event types or of one. Returns the number of
    /// cancelled deliveries. A delivery that is being sent is not counted, but it will not be retried.
    ///
    /// # Errors
    /// [`Error::Database`].
    pub async fn cancel(
        connection: &mut PgConnection,
        tenant: &str,
        entity: &str,
        event_type: Option<&str>,
    ) -> Result<u64, Error> {
        let query = query_scalar::<_, i32>(shared::POSTGRES_CANCEL).bind(tenant).bind(entity).bind(event_type);
        Ok(u64::from(query.fetch_one(connection).await.map_err(database)?.unsigned_abs()))
    }

    fn refused(error: SqlxError, notes: &[Notification]) -> Error {
        let refusal = error.as_database_error().and_then(|db| db.try_downcast_ref::<PgDatabaseError>()).map(|db| {
            let (code, message, detail, constraint) = (db.code(), db.message(), db.detail(), db.constraint());
            shared::Refusal { code, message, detail, constraint }
        });
        let known = refusal.and_then(|refusal| shared::postgres_refusal(&refusal, notes));
        known.unwrap_or_else(|| database(error))
    }
}

/// The view `postcommit_enqueue` through `sqlx::SqliteConnection`.
#[cfg(feature = "sqlx-sqlite")]
pub mod sqlite {
    use ::sqlx::{SqliteConnection, query, query_scalar};
    use uuid::Uuid;

    use super::database;
    use crate::{Error, Notification, enqueue as shared};

    /// Enqueues in the current transaction of `connection`: pass `&mut *transaction`. Returns the notification's id.
    /// When the key was used before, returns the id of the first notification.
    ///
    /// # Errors
    /// [`Error::Conflict`] for a strict notification whose key was used with other content; [`Error::Invalid`] for a
    /// field beyond its limit; [`Error::Database`] otherwise. After the first two the transaction goes on.
    pub async fn enqueue(connection: &mut SqliteConnection, note: &Notification) -> Result<Uuid, Error> {
        let mut insert = query(shared::SQLITE_ENQUEUE);
        for argument in shared::arguments(note, shared::sqlite_channels(note)) {
            insert = insert.bind(argument);
        }
        match insert.execute(&mut *connection).await {
            Ok(_) => id_of_key(connection, note).await,
            Err(error) if shared::is_sqlite_conflict(&error.to_string()) => {
                let first = id_of_key(connection, note).await?;
                Err(Error::Conflict { key: note.idempotency_key.clone(), first, aborted: false })
            }
            Err(error) => Err(shared::sqlite_limit(&error.to_string()).unwrap_or_else(|| database(error))),
        }
    }

    /// Enqueues up to 1,000 notifications. Returns their ids in the order given. Notifications with the same key are
    /// enqueued once.
    ///
    /// # Errors
    /// [`Error::Invalid`] for more than 1,000, otherwise as [`enqueue`]. The notifications before the failed one stay
    /// in the transaction: roll it back.
    pub async fn enqueue_many(connection: &mut SqliteConnection, notes: &[Notification]) -> Result<Vec<Uuid>, Error> {
        shared::check_batch(notes.len())?;
        let mut ids = Vec::with_capacity(notes.len());
        for note in notes {
            ids.push(enqueue(connection, note).await?);
        }
        Ok(ids)
    }

    /// Cancels the deliveries of `entity` that are not yet sent, of all event types or of one. Returns the number of
    /// cancelled deliveries. A delivery that is being sent is not counted, but it will not be retried.
    ///
    /// # Errors
    /// [`Error::Database`].
    pub async fn cancel(
        connection: &mut SqliteConnection,
        tenant: &str,
        entity: &str,
        event_type: Option<&str>,
    ) -> Result<u64, Error> {
        let count = query_scalar::<_, i64>(shared::SQLITE_CANCELLABLE).bind(tenant).bind(entity).bind(event_type);
        let count = count.fetch_one(&mut *connection).await.map_err(database)?;
        let cancel = query(shared::SQLITE_CANCEL).bind(tenant).bind(entity).bind(event_type);
        cancel.execute(connection).await.map_err(database)?;
        Ok(count.unsigned_abs())
    }

    async fn id_of_key(connection: &mut SqliteConnection, note: &Notification) -> Result<Uuid, Error> {
        let select = query_scalar::<_, String>(shared::SQLITE_ID_OF_KEY).bind(&note.tenant).bind(&note.idempotency_key);
        shared::parse_id(&select.fetch_one(connection).await.map_err(database)?)
    }
}

fn database(error: SqlxError) -> Error {
    Error::Database(Box::new(error))
}
