//! Everything of Postcommit that sees a database: from an application's COMMIT to the recorded outcome.
//!
//! In the order in which a notification meets them:
//! - [`store`]: what is kept, on PostgreSQL and SQLite; it stands on [`db`];
//! - [`dispatch`]: claim → expand → check → permit → render → send → judge → settle;
//! - [`inbox`] and [`user_token`]: what users see of `in_app`, and what lets a browser in;
//! - [`metrics`] and [`trace`]: what is told about it;
//! - [`crash`]: the places where tests may end the process.

pub mod crash;
pub mod db;
pub mod dispatch;
pub mod inbox;
pub mod metrics;
pub mod store;
pub mod trace;
pub mod user_token;
