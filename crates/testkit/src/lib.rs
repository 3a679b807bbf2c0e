//! What Postcommit's tests stand on. Development only: nothing here is built into the product.
//!
//! Every server in this crate runs on threads of its own, so a test may block (wait for a child
//! process, say) or pause tokio's clock without stopping the other side of the conversation.
//!
//! - [`postgres`]: a database per test on the run's shared cluster, fresh or a copy; a private cluster to crash
//! - [`sqlite`]: a file per test, a copy of one that was prepared
//! - [`client`]: a plain HTTP client that says exactly what it is told
//! - [`http`]: a scripted HTTP server that answers as told, or misbehaves as told
//! - [`receiver`]: a webhook receiver that journals each request before it answers
//! - [`proxy`]: a TCP proxy that turns into a black hole, resets, or is cut
//! - [`browser`]: Chromium without a window, for what only a browser can show
//! - [`refusal`]: a database that refuses one kind of our writes
//! - [`process`]: the product's executable as a child: its lines, signals and exit
//!
//! All waiting is for a signal, under one guard ([`GUARD`]) that panics with what was seen.

use std::time::Duration;

mod background;
pub mod browser;
pub mod client;
pub mod http;
pub mod postgres;
pub mod process;
pub mod proxy;
pub mod receiver;
pub mod refusal;
pub mod sqlite;

pub use browser::Browser;
pub use client::{Answer, Client};
pub use http::{HttpServer, Reply, Request};
pub use postgres::{Cluster, Postgres, TestDatabase, TestLogin, database};
pub use process::Child;
pub use proxy::{Mode, Proxy};
pub use receiver::{Fault, Receiver};
pub use refusal::Refusal;

/// How long any wait of this crate lasts before it panics. Reaching it means the test failed;
/// no passing test depends on it.
pub const GUARD: Duration = Duration::from_secs(60);
