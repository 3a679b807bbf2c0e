//! For `tokio_postgres` clients and transactions (and those of `deadpool-postgres`, which deref to them).

use std::slice;

use ::tokio_postgres::types::ToSql;
use ::tokio_postgres::{Error as PgError, GenericClient};
use uuid::Uuid;

use crate::{Error, Notification, enqueue as shared};

/// Enqueues in the transaction that `client` is in. Returns the notification's id; the first one's, when the key was used
/// before.
///
/// # Errors
/// [`Error::Conflict`] for a strict notification whose key stands for other content; [`Error::Database`] otherwise. After
/// either PostgreSQL takes nothing but a rollback, of the transaction or to a savepoint before.
pub async fn enqueue(client: &impl GenericClient, note: &Notification) -> Result<Uuid, Error> {
    let arguments = shared::arguments(note, shared::postgres_channels(note));
    let parameters: Vec<&(dyn ToSql + Sync)> = arguments.iter().map(|a| a as _).collect();
    let row = client.query_one(shared::POSTGRES_ENQUEUE, &parameters).await.map_err(|e| conflict(e, slice::from_ref(note)))?;
    shared::parse_id(row.get(0))
}

/// Enqueues up to 1,000 in one round trip; the ids come in the order given. A key that comes twice is enqueued once.
///
/// # Errors
/// [`Error::Invalid`] for more than 1,000, otherwise as [`enqueue`].
pub async fn enqueue_many(client: &impl GenericClient, notes: &[Notification]) -> Result<Vec<Uuid>, Error> {
    let batch = shared::batch(notes)?;
    let rows = client.query(shared::POSTGRES_ENQUEUE_MANY, &[&batch]).await.map_err(|e| conflict(e, notes))?;
    rows.iter().map(|row| shared::parse_id(row.get(0))).collect()
}

/// Takes back what is not yet sent for `entity`, all event types or one. Returns how many deliveries; one that is under way
/// is too late and not counted, but it will not be tried again.
///
/// # Errors
/// [`Error::Database`].
pub async fn cancel(client: &impl GenericClient, tenant: &str, entity: &str, event_type: Option<&str>) -> Result<u64, Error> {
    let row = client.query_one(shared::POSTGRES_CANCEL, &[&tenant, &entity, &event_type]).await.map_err(database)?;
    Ok(u64::from(row.get::<_, i32>(0).unsigned_abs()))
}

fn conflict(error: PgError, notes: &[Notification]) -> Error {
    let known = error.as_db_error().and_then(|db| shared::postgres_conflict(db.code().code(), db.message(), db.detail(), notes));
    known.unwrap_or_else(|| database(error))
}

fn database(error: PgError) -> Error {
    Error::Database(Box::new(error))
}
