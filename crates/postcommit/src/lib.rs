//! Commit a notification in the same transaction as your data.
//!
//! The application builds a [`Notification`] and hands it to one of the [`adapters`] inside its own
//! transaction. Commit publishes it, rollback leaves nothing. The Postcommit server, which reads the
//! same database, delivers it. Without the feature `http` this crate does no network I/O of its own; it never pulls in server parts.
//!
//! In the order in which a notification meets them:
//! - [`Notification`] and its builder: what to say, checked against [`limits`] when built;
//! - [`Recipient`]: to whom;
//! - [`key`]: idempotency keys that are the same every time;
//! - [`adapters`]: `enqueue`, `enqueue_many` and `cancel` for tokio-postgres, sqlx and rusqlite, each behind a feature;
//! - [`http`]: the same over HTTP, behind the feature `http`, for those who share no database with the server;
//! - [`testing`]: `assert_enqueued` and `refute_enqueued` inside the transaction under test;
//! - [`Timestamp`]: microseconds since 1970, UTC; [`TraceParent`]: the trace it belongs to.
//!
//! ```
//! use postcommit::{Notification, Recipient, key};
//!
//! let note = Notification::event("booking.confirmed", serde_json::json!({"bookingId": 12345}))
//!     .key(key::of("booking", &["12345", "confirmed", "1"]))
//!     .entity("12345")
//!     .to(Recipient::email("guest@example.com"))
//!     .build()?;
//! assert_eq!(note.idempotency_key, "booking:12345:confirmed:1");
//! # Ok::<(), postcommit::Error>(())
//! ```

#![warn(missing_docs)]

pub mod adapters;
mod check;
#[cfg(any(feature = "tokio-postgres", feature = "sqlx-postgres", feature = "sqlx-sqlite", feature = "rusqlite"))]
mod enqueue;
mod error;
#[cfg(feature = "http")]
pub mod http;
pub mod key;
pub mod limits;
mod notification;
mod recipient;
pub mod testing;
mod timestamp;
mod traceparent;

pub use error::Error;
pub use notification::{Builder, Notification, Source};
pub use recipient::Recipient;
pub use timestamp::Timestamp;
pub use traceparent::TraceParent;
