//! The command `postcommit demo`.

use clap::Args;

use crate::demo::{self, DemoOptions};
use crate::output::{CommandResult, Exit, Failure};
use crate::signals::Signals;

/// Show Postcommit with sample data, on a temporary database, sending only to simulated services in this process
///
/// Everything is removed when the demo ends. The demo reads no settings file and no environment variables. With
/// `--database-url postgres://…` it creates a new database on that server, and drops the database at the end.
#[derive(Debug, Args)]
pub struct Demo {
    /// Address and port to listen on [default: 127.0.0.1:7410, or a free port if that one is taken]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// First create this many finished deliveries with invented data, spread over the last 28 days
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=100_000_000))]
    seed: u64,
}

impl Demo {
    /// Runs the demo. `database_url` and `settings` are the values of `--database-url` and `--setting`.
    pub async fn run(&self, database_url: Option<&str>, settings: &[String], signals: &Signals) -> CommandResult {
        let pair = |pair: &String| {
            let (name, value) = pair
                .split_once('=')
                .ok_or_else(|| Failure::new(Exit::Usage, format!("--setting {pair}: has no '='; write NAME=VALUE")))?;
            Ok((name.to_owned(), value.to_owned()))
        };
        let settings = settings.iter().map(pair).collect::<Result<_, Failure>>()?;
        let (listen, database_url) = (self.listen.clone(), database_url.map(str::to_owned));
        demo::run(&DemoOptions { listen, database_url, seed: self.seed, settings }, signals).await
    }
}
