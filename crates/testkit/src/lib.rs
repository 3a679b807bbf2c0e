//! Test support: databases, scripted servers, a faulty proxy, a browser and child processes. Nothing here is built into
//! the product.
//!
//! Every server in this crate runs on its own threads. So a test may block, for example on a child process, or pause
//! tokio's clock, without stopping the server that it talks to.
//!
//! - [`postgres`]: a database per test on the shared cluster of the test run, empty or copied from a template; also
//!   private clusters that a test can crash
//! - [`sqlite`]: a database file per test, copied from a prepared file
//! - [`client`]: a plain HTTP client that sends exactly what the test specifies
//! - [`http`]: a scripted HTTP server that can misbehave
//! - [`smtp`]: a scripted SMTP server that can misbehave
//! - [`postfix`]: a real mail server
//! - [`broker`]: real brokers, and clients that read their messages
//! - [`receiver`]: a webhook receiver that writes each request to a journal before it answers
//! - [`proxy`]: a TCP proxy that can hold bytes back or reset connections
//! - [`browser`]: headless Chromium
//! - [`refused_write`]: makes the database refuse one kind of write
//! - [`process`]: a program under test as a child process, with its output, signals and exit status
//!
//! Every wait is for an event. A wait that is longer than [`GUARD`] panics, and the message shows what was received.

use std::time::Duration;

mod background;
pub mod broker;
pub mod browser;
pub mod client;
pub mod http;
pub mod postfix;
pub mod postgres;
pub mod process;
pub mod proxy;
pub mod receiver;
pub mod refused_write;
pub mod smtp;
pub mod sqlite;

pub use browser::Browser;
pub use client::{HttpClient, HttpResponse, forged};
pub use http::{HttpServer, Reply, Request};
pub use postfix::Postfix;
pub use postgres::{Cluster, Postgres, TestDatabase, TestLogin, database};
pub use process::Child;
pub use proxy::{Proxy, ProxyMode};
pub use receiver::{Fault, Receiver};
pub use refused_write::RefusedWrite;
pub use smtp::{Heard, ReceivedMail, SmtpAct, SmtpServer, SmtpTls};

/// How long any wait of this crate lasts before it panics. A wait that reaches this limit is a failed test. No passing
/// test depends on it.
pub const GUARD: Duration = Duration::from_secs(60);
