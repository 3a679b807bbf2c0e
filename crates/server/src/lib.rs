//! The server and the command line. What stands here serves the `postcommit` binary; the benchmark shares [`output`], [`settings`] and [`ui::chart`].
//!
//! - [`cli`]: one file per command;
//! - `serve`: `postcommit serve`, by role; `app`: the store opened, the tools made;
//! - `door`: the accept loop; `auth` and `rate`: who calls, what they may, and how often;
//! - `api`: the one route table and its handlers;
//! - [`ui`]: what browsers are given;
//! - `health`, `hosts`, `watching`: probes, names on loopback, `/metrics`;
//! - `providers`: the rules for providers that the command line and the API share;
//! - [`settings`], [`output`], [`telemetry`]: what goes in, and what comes out.

mod api;
mod app;
mod assets;
mod auth;
pub mod cli;
mod door;
mod health;
mod hosts;
pub mod output;
mod providers;
mod rate;
mod serve;
pub mod settings;
pub mod telemetry;
pub mod ui;
mod watching;
