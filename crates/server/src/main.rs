//! The `postcommit` binary: parse, load settings, run the command.

mod api;
mod app;
mod assets;
mod auth;
mod bench;
mod cli;
mod door;
mod health;
mod hosts;
mod output;
mod providers;
mod rate;
mod serve;
mod settings;
mod telemetry;
mod watching;

use std::process::ExitCode;

use clap::Parser;
use telemetry::say;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(problem) => {
            say!("postcommit: cannot start: {problem}");
            return ExitCode::FAILURE;
        }
    };
    let result = runtime.block_on(cli.run());
    // Nothing that still runs may delay the exit; what matters is durable.
    runtime.shutdown_background();
    match result {
        Ok(code) => code.into(),
        Err(failure) => {
            say!("postcommit: {failure}");
            failure.exit().into()
        }
    }
}
