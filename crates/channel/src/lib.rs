//! Everything of Postcommit that never sees a database.
//!
//! - [`model`]: the nouns and the pure rules, among them [`model::expand`] and [`model::judge`];
//! - [`render`]: what a delivery says, made from its notification;
//! - [`driver`]: the drivers, which turn a message into an outcome;
//! - [`egress`]: makes every outgoing connection; [`tls`]: the TLS of every client;
//! - [`secret`]: secrets, encrypted at rest, and tokens;
//! - [`clock`]: the one clock.

#[cfg(feature = "bench-points")]
#[doc(hidden)]
pub mod bench_points;
pub mod clock;
pub mod driver;
pub mod egress;
pub mod model;
pub mod render;
pub mod secret;
pub mod tls;
