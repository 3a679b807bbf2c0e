//! Functions for `tokio_postgres` clients and transactions, and for those of `deadpool-postgres`, which deref to them.

use std::slice;

use ::tokio_postgres::types::ToSql;
use ::tokio_postgres::{Error as PgError, GenericClient};
use uuid::Uuid;

use crate::{Error, Notification, enqueue as shared};

/// Enqueues in the current transaction of `client`. Returns the notification's id. When the key was used before,
/// returns the id of the first notification.
///
/// # Errors
/// [`Error::Conflict`] for a strict notification whose key was used with other content; [`Error::Invalid`] for a field
/// beyond its limit; [`Error::Database`] otherwise. After each of them PostgreSQL accepts only a rollback: of the
/// transaction, or to an earlier savepoint.
pub async fn enqueue(client: &impl GenericClient, note: &Notification) -> Result<Uuid, Error> {
    let arguments = shared::arguments(note, shared::postgres_channels(note));
    let parameters: Vec<&(dyn ToSql + Sync)> = arguments.iter().map(|a| a as _).collect();
    let row =
        client.query_one(shared::POSTGRES_ENQUEUE, &parameters).await.map_err(|e| refused(e, slice::from_ref(note)))?;
    shared::parse_id(row.get(0))
}

/// Enqueues up to 1,000 notifications in one round trip. Returns their ids in the order given. Notifications with the
/// same key are enqueued once.
///
/// # Errors
/// [`Error::Invalid`] for more than 1,000, otherwise as [`enqueue`].
pub async fn enqueue_many(client: &impl GenericClient, notes: &[Notification]) -> Result<Vec<Uuid>, Error> {
    let batch = shared::batch(notes)?;
    let rows = client.query(shared::POSTGRES_ENQUEUE_MANY, &[&batch]).await.map_err(|e| refused(e, notes))?;
    rows.iter().map(|row| shared::parse_id(row.get(0))).collect()
}

/// Cancels the deliveries of `entity` that are not yet sent, of all event types or of one. Returns the number of
/// cancelled deliveries. A delivery that is being sent is not counted, but it will not be retried.
///
/// # Errors
/// [`Error::Database`].
pub async fn cancel(
    client: &impl GenericClient,
    tenant: &str,
    entity: &str,
    event_type: Option<&str>,
) -> Result<u64, Error> {
    let row = client.query_one(shared::POSTGRES_CANCEL, &[&tenant, &entity, &event_type]).await.map_err(database)?;
    Ok(u64::from(row.get::<_, i32>(0).unsigned_abs()))
}

fn refused(error: PgError, notes: &[Notification]) -> Error {
    let refusal = error.as_db_error().map(|db| {
        let (code, message, detail, constraint) = (db.code().code(), db.message(), db.detail(), db.constraint());
        shared::Refusal { code, message, detail, constraint }
    });
    let known = refusal.and_then(|refusal| shared::postgres_refusal(&refusal, notes));
    known.unwrap_or_else(|| database(error))
}

fn database(error: PgError) -> Error {
    Error::Database(Box::new(error))
}
