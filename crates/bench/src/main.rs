//! `postcommit-bench`: what this build does on this machine, each figure a ratio of two things measured in turns in one run.
//!
//! - `cli`: the command line; [`run`]: suite by suite; [`suites`]: what is measured, one file each, in one list;
//! - `place`: where: a database or file of its own, gone afterwards;
//! - `load`: what is enqueued; `application`: by whom; `running`: our dispatcher at work in this process; `child`: processes of our own; `sink`: receivers;
//! - `bare`: the same work without us, by hand; `posts`: a bare HTTP client; `peers`: the same work by other programs;
//! - `series`: measurements, their middle and spread; `profile`: what they took of the processors; `report`: what was found; `html`: as a page; `machine`: on what;
//! - `progress`: what is going on, for who waits; `failure`: why it went no further.

mod application;
mod bare;
mod child;
mod cli;
mod failure;
mod html;
mod load;
mod machine;
mod peers;
mod place;
mod posts;
mod profile;
mod progress;
mod report;
mod run;
mod running;
mod series;
mod sink;
mod suites;

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
