//! All code of Postcommit that uses a database: from an application's COMMIT to the recorded outcome.
//!
//! The modules, in the order in which a notification passes through them:
//! - [`store`]: the stored data, on PostgreSQL and SQLite; it is built on [`db`];
//! - [`dispatch`]: claim → expand → check → permit → render → send → judge → settle;
//! - [`inbox`] and [`user_token`]: live updates of users' inboxes, and the tokens with which browsers read them;
//! - [`unsubscribe`]: signed links with which a person stops messages;
//! - [`metrics`] and [`trace`]: counters and spans for operators;
//! - [`crash`]: places where tests can end the process.

pub mod crash;
pub mod db;
pub mod dispatch;
pub mod inbox;
pub mod metrics;
pub mod store;
pub mod trace;
pub mod unsubscribe;
pub mod user_token;

/// A hash map for the hot path. Each delivery needs ten lookups in such maps, and std's hasher takes ten times as long.
/// This hasher's seed is random too, because applications choose some keys, such as event types.
pub(crate) type FastMap<K, V> = std::collections::HashMap<K, V, foldhash::fast::RandomState>;
