//! The server and the command line of the `postcommit` binary. The benchmark shares [`output`], [`settings`],
//! [`html`] and [`ui::chart`].
//!
//! - [`cli`]: one file per command;
//! - `serve`: `postcommit serve`, by role; `router`: everything that a process serves;
//! - `app`: the state that handlers, pages and commands share;
//! - `door`: the accept loop; `auth` and `rate`: the caller, its rights and its rate limit;
//! - `read` and `problem`: a request read, a request refused;
//! - `api`: the route table of the API and its handlers;
//! - [`ui`]: the pages for browsers; [`html`]: their frame;
//! - `health`, `hosts`, `watching`: probes, names on loopback, `/metrics`;
//! - `acts`, `notifications`, `providers`: the rules that the API and the command line share, by noun;
//! - [`settings`], [`output`], [`telemetry`]: what goes in, and what comes out.

mod acts;
mod api;
mod app;
mod auth;
pub mod cli;
mod door;
mod health;
mod hosts;
pub mod html;
mod notifications;
pub mod output;
mod problem;
mod providers;
mod rate;
mod read;
mod router;
mod serve;
pub mod settings;
pub mod telemetry;
pub mod ui;
mod watching;
