//! `postcommit-bench`: measures this build on this machine. Every figure is a ratio of two things that are measured
//! alternately in one run.
//!
//! - `cli`: the command line; [`run`]: runs the suites; [`suites`]: the list of suites, one file each;
//! - `workspace`: a private database or file, removed after the run;
//! - `load`: the notifications that are enqueued; `application`: a client that enqueues and commits; `dispatcher`: the
//!   engine's dispatcher in this process; `child`: child processes; `sink`: receivers of webhooks;
//! - `bare`: the same work written by hand without Postcommit; `http_client`: a bare HTTP client; `peers`: the same
//!   work by other programs;
//! - `series`: medians and spreads; `profile`: processor time; `report`: the results as data; `html`: the results as a
//!   page; `machine`: a description of this machine;
//! - `progress`: the progress line on stderr; `failure`: errors and exit codes.

mod application;
mod bare;
mod child;
mod cli;
mod dispatcher;
mod failure;
mod html;
mod http_client;
mod load;
mod machine;
mod peers;
mod profile;
mod progress;
mod report;
mod run;
mod series;
mod sink;
mod suites;
mod workspace;

use std::process::ExitCode;

use clap::Parser;
use postcommit_server::say;

#[tokio::main]
async fn main() -> ExitCode {
    match cli::Cli::parse().run().await {
        Ok(exit) => exit.into(),
        Err(failure) => {
            say!("postcommit-bench: {failure}");
            failure.exit().into()
        }
    }
}
