//! The server and the command line of the `postcommit` binary. The benchmark also uses [`output`], [`settings`],
//! [`html`] and [`ui::chart`].
//! - [`cli`]: one file per command;
//! - `serve`: `postcommit serve` in its roles; `router`: all routes of a process;
//! - `demo`: `postcommit demo`, a server with sample data and fakes to send to;
//! - `signals`: handles SIGTERM and SIGINT;
//! - `app`: the state that handlers, pages and commands share;
//! - `door`: the accept loop; `auth` and `rate`: authentication and rate limits;
//! - `read` and `problem`: parsing of requests, and error answers;
//! - `api`: the routes of the API and their handlers;
//! - [`ui`]: the pages for browsers; [`html`]: their frame;
//! - `tally`: the counts that pages show;
//! - `health`: probes; `hosts`: the host names allowed on loopback; `watching`: `/metrics`;
//! - `folder`: the configuration of a tenant as files; `table_file`: CSV and JSONL files for import and export;
//! - `go_live`: the checklist before messages go to real people;
//! - `acts`, `callbacks`, `notifications`, `providers`, `templates`: the rules that the API and the command line share, by subject;
//! - [`settings`], [`output`], [`telemetry`]: configuration, output of commands, logs and traces.

mod acts;
mod api;
mod app;
mod auth;
mod callbacks;
pub mod cli;
mod demo;
mod door;
mod folder;
mod go_live;
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
mod secrets;
mod serve;
pub mod settings;
mod signals;
mod table_file;
mod tally;
pub mod telemetry;
mod templates;
pub mod ui;
mod watching;
