//! Test support: databases, scripted servers, a faulty proxy, a browser and child processes. Nothing here is built into
//! the product.
//!
//! Every server in this crate runs on threads of its own. A test may therefore block, for example on a child process,
//! or pause tokio's clock without stopping the server it talks to.
//!
//! - [`postgres`]: a database per test on the run's shared cluster, fresh or a copy; private clusters that a test can crash
//! - [`sqlite`]: a file per test, a copy of a prepared one
//! - [`client`]: a plain HTTP client that sends exactly what the test says
//! - [`http`]: a scripted HTTP server that can misbehave
//! - [`receiver`]: a webhook receiver that journals each request before it answers
//! - [`proxy`]: a TCP proxy that can hold bytes back, or reset connections
//! - [`browser`]: headless Chromium
//! - [`refused_write`]: a database that refuses one kind of write
//! - [`process`]: a program under test as a child process: its output, signals and exit
//!
//! Every wait is for an event. After [`GUARD`] it panics and shows what was seen.

use std::time::Duration;

mod background;
pub mod browser;
pub mod client;
pub mod http;
pub mod postgres;
pub mod process;
pub mod proxy;
pub mod receiver;
pub mod refused_write;
pub mod sqlite;

pub use browser::Browser;
pub use client::{HttpClient, HttpResponse};
pub use http::{HttpServer, Reply, Request};
pub use postgres::{Cluster, Postgres, TestDatabase, TestLogin, database};
pub use process::Child;
pub use proxy::{Proxy, ProxyMode};
pub use receiver::{Fault, Receiver};
pub use refused_write::RefusedWrite;

/// How long any wait of this crate lasts before it panics. A wait that reaches it is a failed test; no passing test
/// depends on it.
pub const GUARD: Duration = Duration::from_secs(60);
