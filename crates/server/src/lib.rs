//! The server and the command line of the `postcommit` binary. The benchmark also uses [`output`], [`settings`],
//! [`html`] and [`ui::chart`].
//! - [`cli`]: one file per command;
//! - `serve`: `postcommit serve` in its roles; `router`: all routes of a process;
//! - `signals`: handles SIGTERM and SIGINT;
//! - `app`: the state that handlers, pages and commands share;
//! - `door`: the accept loop; `auth` and `rate`: authentication and rate limits;
//! - `read` and `problem`: parsing of requests, and error answers;
//! - `api`: the routes of the API and their handlers;
//! - [`ui`]: the pages for browsers; [`html`]: their frame;
//! - `doctor`: checks of the installation, which the command and a page show;
//! - `tally`: the counts that pages show;
//! - `health`: probes; `hosts`: the host names allowed on loopback; `watching`: `/metrics`;
//! - `folder`: the configuration of a tenant as files; `table_file`: CSV and JSONL files for import and export;
//! - `acts`, `callbacks`, `notifications`, `people`, `providers`, `templates`: the rules that the API, the pages and the command line share, by subject;
//! - [`settings`], [`output`], [`telemetry`]: configuration, output of commands, logs and traces.

mod acts;
mod api;
mod app;
mod auth;
mod callbacks;
pub mod cli;
mod doctor;
mod door;
mod folder;
mod health;
mod hosts;
pub mod html;
mod notifications;
pub mod output;
mod people;
mod previews;
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
