//! Enqueue inside the caller's transaction, one module per database driver, each behind the feature of its name.
//!
//! All have the same three functions: `enqueue` returns the notification's id (the first one's, when the key was
//! used before), `enqueue_many` does so for up to 1,000 in one round trip where the database can, and `cancel` takes
//! back what is not yet sent for an entity. None opens, commits or rolls back a transaction.

#[cfg(feature = "rusqlite")]
pub mod rusqlite;
#[cfg(any(feature = "sqlx-postgres", feature = "sqlx-sqlite"))]
pub mod sqlx;
#[cfg(feature = "tokio-postgres")]
pub mod tokio_postgres;
