//! Functions for `rusqlite` connections and transactions on the application's own database file.

use ::rusqlite::{Connection, Error as SqliteError, params_from_iter};
use uuid::Uuid;

use crate::{Error, Notification, enqueue as shared};

/// Enqueues in the current transaction of `connection`. A `rusqlite::Transaction` derefs to its connection. Returns the
/// notification's id. When the key was used before, returns the id of the first notification.
///
/// # Errors
/// [`Error::Conflict`] for a strict notification whose key was used with other content; [`Error::Invalid`] for a field
/// beyond its limit; [`Error::Database`] otherwise. After the first two the transaction goes on.
pub fn enqueue(connection: &Connection, note: &Notification) -> Result<Uuid, Error> {
    let arguments = shared::arguments(note, shared::sqlite_channels(note));
    let inserted =
        connection.prepare_cached(shared::SQLITE_ENQUEUE).and_then(|mut s| s.execute(params_from_iter(&arguments)));
    let first = || id_of_key(connection, note);
    match inserted {
        Ok(_) => first(),
        Err(error) if shared::is_sqlite_conflict(&error.to_string()) => {
            Err(Error::Conflict { key: note.idempotency_key.clone(), first: first()?, aborted: false })
        }
        Err(error) => Err(shared::sqlite_limit(&error.to_string()).unwrap_or_else(|| database(error))),
    }
}

/// Enqueues up to 1,000 notifications. Returns their ids in the order given. Notifications with the same key are
/// enqueued once.
///
/// # Errors
/// [`Error::Invalid`] for more than 1,000, otherwise as [`enqueue`]. The notifications before the failed one stay in
/// the transaction: roll it back.
pub fn enqueue_many(connection: &Connection, notes: &[Notification]) -> Result<Vec<Uuid>, Error> {
    shared::check_batch(notes.len())?;
    notes.iter().map(|note| enqueue(connection, note)).collect()
}

/// Cancels the deliveries of `entity` that are not yet sent, of all event types or of one. Returns the number of
/// cancelled deliveries. A delivery that is being sent is not counted, but it will not be retried.
///
/// # Errors
/// [`Error::Database`].
pub fn cancel(connection: &Connection, tenant: &str, entity: &str, event_type: Option<&str>) -> Result<u64, Error> {
    let what = (tenant, entity, event_type);
    let count: i64 = connection.query_row(shared::SQLITE_CANCELLABLE, what, |row| row.get(0)).map_err(database)?;
    connection.execute(shared::SQLITE_CANCEL, what).map_err(database)?;
    Ok(count.unsigned_abs())
}

fn id_of_key(connection: &Connection, note: &Notification) -> Result<Uuid, Error> {
    let id: String = connection
        .prepare_cached(shared::SQLITE_ID_OF_KEY)
        .and_then(|mut s| s.query_row((&note.tenant, &note.idempotency_key), |row| row.get(0)))
        .map_err(database)?;
    shared::parse_id(&id)
}

fn database(error: SqliteError) -> Error {
    Error::Database(Box::new(error))
}
