//! Enqueue inside the application's transaction: one module per database driver, each behind a feature with the
//! driver's name.
//!
//! Every module has the same three functions. `enqueue` returns the notification's id; when the key was used before, it
//! returns the id of the first notification with that key. `enqueue_many` enqueues up to 1,000 notifications, on
//! PostgreSQL in one round trip. `cancel` cancels the deliveries of an entity that are not yet sent. No function
//! opens, commits or rolls back a transaction.

#[cfg(feature = "rusqlite")]
pub mod rusqlite;
#[cfg(any(feature = "sqlx-postgres", feature = "sqlx-sqlite"))]
pub mod sqlx;
#[cfg(feature = "tokio-postgres")]
pub mod tokio_postgres;
