//! Commit a notification in the same transaction as your data.
//!
//! The application builds a [`Notification`] and passes it to one of the [`adapters`] inside its own transaction.
//! Commit publishes the notification; rollback leaves nothing. The Postcommit server, which uses the same database,
//! delivers it. Without the feature `http` this crate opens no connection of its own. It never depends on parts of the
//! server.
//!
//! In the order in which a notification passes through them:
//! - [`Notification`] and its builder: the content, checked against [`limits`] when built;
//! - [`Recipient`]: a user, a list or an address;
//! - [`key`]: deterministic idempotency keys;
//! - [`adapters`]: `enqueue`, `enqueue_many` and `cancel` for tokio-postgres, sqlx and rusqlite, each behind a feature;
//! - [`http`]: a client of the HTTP API, behind the feature `http`, for applications that share no database with the
//!   server;
//! - [`webhook`]: verifies webhooks that Postcommit sends, behind the feature `webhook`, for applications that receive
//!   them;
//! - [`testing`]: `assert_enqueued` and `refute_enqueued` inside the transaction under test;
//! - [`Timestamp`]: microseconds since 1970, UTC; [`TraceParent`]: the trace that a notification belongs to.
//!
//! ```
//! use postcommit::{Notification, Recipient, key};
//!
//! let note = Notification::event("booking.confirmed", serde_json::json!({"bookingId": 12345}))
//!     .key(key::of("booking", (12345, "confirmed", 1)))
//!     .entity("12345")
//!     .to(Recipient::email("guest@example.com"))
//!     .build()?;
//! assert_eq!(note.idempotency_key, "booking:12345:confirmed:1");
//! # Ok::<(), postcommit::Error>(())
//! ```

#![warn(missing_docs)]

pub mod adapters;
#[doc(hidden)]
pub mod check;
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
#[cfg(feature = "webhook")]
pub mod webhook;

pub use error::Error;
pub use notification::{Builder, Notification, Source, channel_name};
pub use recipient::Recipient;
pub use timestamp::Timestamp;
pub use traceparent::TraceParent;

/// Compiles the code blocks of this documentation page as tests.
#[cfg(all(doctest, feature = "http", feature = "tokio-postgres", feature = "sqlx-postgres", feature = "webhook"))]
#[doc = include_str!("../../../docs/clients.md")]
struct ClientsPage;
