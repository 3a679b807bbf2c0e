//! The engine behind Postcommit: everything between an application's COMMIT and a provider's answer.
//!
//! In the order in which a notification meets them:
//! - [`gate`]: where those that come over the network share a commit;
//! - [`store`]: what is kept, on PostgreSQL and SQLite; it stands on [`db`];
//! - [`dispatch`]: claim → expand → check → permit → render → send → judge → settle;
//! - [`model`]: the nouns and the pure rules, among them [`model::expand`] and [`model::judge`];
//! - [`channel`]: the drivers, which turn a message into an outcome;
//! - [`egress`]: the only way out of this process;
//! - [`inbox`] and [`user_token`]: what users see of `in_app` at once, and what lets a browser in;
//! - [`metrics`] and [`trace`]: what is told about it;
//! - [`secret`]: what must not be readable in a backup;
//! - [`clock`] and [`crash`]: the one clock, and the places where tests may end the process.

#[cfg(feature = "bench-points")]
#[doc(hidden)]
pub mod bench_points;
pub mod channel;
pub mod clock;
pub mod crash;
pub mod db;
pub mod dispatch;
pub mod egress;
pub mod gate;
pub mod inbox;
pub mod metrics;
pub mod model;
pub mod secret;
pub mod store;
pub mod trace;
pub mod user_token;
