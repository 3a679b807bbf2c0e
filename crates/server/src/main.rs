//! The `postcommit` binary. It parses the command line, loads the settings and runs the command.

use std::process::ExitCode;

use clap::Parser;
use postcommit_server::{cli, telemetry::say};

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
    // Tasks that still run must not delay the exit. All important data is already durable.
    runtime.shutdown_background();
    match result {
        Ok(code) => code.into(),
        Err(failure) => {
            say!("postcommit: {failure}");
            failure.exit().into()
        }
    }
}
