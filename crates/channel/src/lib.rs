//! The parts of Postcommit that do not use a database.
//! - [`model`]: the data types and the pure rules, such as [`model::expand`] and [`model::judge`];
//! - [`render`]: renders the content of a delivery from its notification;
//! - [`template`]: compiles and renders templates;
//! - [`driver`]: the drivers, which send a message and report the outcome;
//! - [`egress`]: makes every outgoing connection;
//! - [`tls`]: the TLS configuration of every client;
//! - `keys`: private keys that sign, and the encryption of Web Push;
//! - [`secret`]: encrypted secrets, and tokens;
//! - [`clock`]: the clock of this process.

#[cfg(feature = "bench-points")]
#[doc(hidden)]
pub mod bench_points;
pub mod clock;
pub mod driver;
pub mod egress;
mod keys;
pub mod model;
pub mod render;
pub mod secret;
pub mod template;
pub mod tls;
