//! The command line. One list of commands; each is a file of its name.

mod audit;
mod config;
mod deliveries;
mod dispatch;
mod doctor;
mod enqueue;
mod jobs;
pub mod keys;
mod kpis;
mod migrate;
mod notifications;
mod providers;
mod tenants;

use std::io::{BufRead, IsTerminal, Write};
use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand};
use postcommit_engine::store::{NotAccepted, Store};
use uuid::Uuid;

use crate::app;
use crate::output::{self, CommandResult, Exit, Failure, Format};
use crate::serve::{Role, ServeOptions, serve};
use crate::settings::{Flag, Layers, Settings};

/// Commit the notification with your data. Postcommit delivers it, once, on every channel, and can prove it.
///
/// Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 refused, 5 cannot reach, 7 partly.
#[derive(Debug, Parser)]
#[command(name = "postcommit", version, max_term_width = 110)]
pub struct Cli {
    #[command(flatten)]
    global: GlobalOptions,
    #[command(subcommand)]
    command: Command,
}

/// The options of every command.
#[derive(Debug, Args)]
pub struct GlobalOptions {
    /// How data is printed
    #[arg(
        short,
        long,
        global = true,
        help_heading = "Global options",
        value_enum,
        default_value = "text",
        env = "POSTCOMMIT_OUTPUT"
    )]
    pub output: Format,
    /// Settings file [default: postcommit.toml, when it is there]
    #[arg(long, global = true, help_heading = "Global options", value_name = "FILE", env = "POSTCOMMIT_CONFIG")]
    config: Option<PathBuf>,
    /// sqlite:path or postgres://… [setting database.url]
    #[arg(long, global = true, help_heading = "Global options", value_name = "URL")]
    database_url: Option<String>,
    /// Any setting, e.g. --setting dispatch.lease_s=30; repeatable
    #[arg(long = "setting", global = true, help_heading = "Global options", value_name = "NAME=VALUE")]
    setting: Vec<String>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve the API and deliver
    Serve {
        /// Address and port [setting server.listen]
        #[arg(long, value_name = "ADDRESS")]
        listen: Option<String>,
        /// The role of this process
        #[arg(long, value_enum, default_value = "all")]
        role: Role,
        /// Do not migrate the schema; refuse to start when it is out of date
        #[arg(long)]
        no_migrate: bool,
        /// Stop when stdin ends: the process must not outlive the benchmark that started it, even if that is killed
        #[arg(long, hide = true)]
        while_stdin: bool,
    },
    /// Migrate the database's schema
    Migrate(migrate::Migrate),
    /// Enqueue a notification
    Enqueue(Box<enqueue::Enqueue>),
    /// List and show notifications, cancel one
    #[command(subcommand)]
    Notifications(notifications::Notifications),
    /// List and show deliveries, retry, discard, cancel, resend, follow
    #[command(subcommand)]
    Deliveries(deliveries::Deliveries),
    /// Jobs that act on many deliveries: list, show, cancel
    #[command(subcommand)]
    Jobs(jobs::Jobs),
    /// Configure providers
    #[command(subcommand)]
    Providers(providers::Providers),
    /// API keys, and links to sign in
    #[command(subcommand)]
    Keys(keys::Keys),
    /// Tenants: make, list, weigh, suspend
    #[command(subcommand)]
    Tenants(tenants::Tenants),
    /// The audit log, newest first
    Audit(audit::Audit),
    /// Make one bounded pass over what is due, and exit
    Dispatch(dispatch::Dispatch),
    /// The KPIs: queue, stuck, parked, delivered
    Kpis(kpis::Show),
    /// Examine the installation; exits 1 when there is a problem, not for warnings and notes
    Doctor,
    /// Settings in force
    #[command(subcommand)]
    Config(config::Config),
    /// Print a completion script, e.g. source <(postcommit completions bash)
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

impl Cli {
    /// Runs the command.
    pub async fn run(self) -> CommandResult {
        let listen = match &self.command {
            Command::Serve { listen: Some(listen), .. } => {
                Some(Flag { setting: "server.listen", value: listen.clone(), flag: "--listen" })
            }
            _ => None,
        };
        let layers = self.global.layers(listen)?;
        let format = self.global.output;
        if let Command::Completions { shell } = self.command {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Self::command(), "postcommit", &mut script);
            output::print(String::from_utf8_lossy(&script).trim_end());
            return Ok(Exit::Ok);
        }
        if let Command::Config(command) = &self.command {
            return command.run(format, &layers);
        }
        let settings = layers.settings().map_err(|problem| Failure::new(Exit::Usage, problem))?;
        match self.command {
            Command::Serve { role, no_migrate, while_stdin, .. } => {
                serve(&settings, ServeOptions { role, migrate: !no_migrate, while_stdin }).await
            }
            Command::Keys(command) => command.run(format, &settings).await,
            Command::Tenants(command) => command.run(format, &settings).await,
            Command::Audit(command) => command.run(format, &settings).await,
            Command::Migrate(command) => command.run(format, &settings).await,
            Command::Enqueue(command) => command.run(format, &settings).await,
            Command::Notifications(command) => command.run(format, &settings).await,
            Command::Deliveries(command) => command.run(format, &settings).await,
            Command::Jobs(command) => command.run(format, &settings).await,
            Command::Providers(command) => command.run(format, &settings).await,
            Command::Dispatch(command) => command.run(format, &settings).await,
            Command::Kpis(command) => command.run(format, &settings).await,
            Command::Doctor => doctor::run(format, &settings).await,
            Command::Config(_) | Command::Completions { .. } => Ok(Exit::Ok),
        }
    }
}

impl GlobalOptions {
    /// The settings by these options, the environment and the settings file, and further flags of the command.
    pub fn layers(&self, more: impl IntoIterator<Item = Flag<'static>>) -> Result<Layers, Failure> {
        let usage = |problem: String| Failure::new(Exit::Usage, problem);
        let mut flags: Vec<Flag<'_>> = more.into_iter().collect();
        flags.extend(self.database_url.clone().map(|value| Flag {
            setting: "database.url",
            value,
            flag: "--database-url",
        }));
        for pair in &self.setting {
            let (name, value) =
                pair.split_once('=').ok_or_else(|| usage(format!("--setting {pair}: write NAME=VALUE")))?;
            flags.push(Flag { setting: name, value: value.to_owned(), flag: "--setting" });
        }
        let environment = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .filter(|(name, _)| name.starts_with("POSTCOMMIT_"))
            .collect();
        Layers::load(self.config.as_deref(), &environment, &flags).map_err(usage)
    }
}

/// The id of a tenant by its name, if one was given.
async fn tenant(store: &Store, name: Option<&str>) -> Result<Option<i32>, Failure> {
    let Some(name) = name else { return Ok(None) };
    let known = store.tenant(name).await?;
    known.map(Some).ok_or_else(|| Failure::new(Exit::NotFound, format!("there is no tenant {name:?}")))
}

/// Whether a list needs a tenant column: it shows every tenant's rows, and there are several.
async fn tenant_column(store: &Store, only: Option<i32>) -> Result<bool, Failure> {
    Ok(only.is_none() && store.tenants().await?.len() > 1)
}

/// Tells a person how to get the next page.
fn say_more(format: Format, more: Option<postcommit_engine::store::Position>) {
    if let (Format::Text, Some(place)) = (format, more) {
        crate::telemetry::say!("more: --before {place}");
    }
}

/// The store for commands that change something, with the operator as the actor.
async fn acting(settings: &Settings) -> Result<Store, Failure> {
    Ok(store(settings).await?.by(app::operator()))
}

/// The id of a tenant that must exist.
async fn known_tenant(store: &Store, name: &str) -> Result<i32, Failure> {
    store.tenant(name).await?.ok_or_else(|| Failure::new(Exit::NotFound, format!("there is no tenant {name:?}")))
}

/// An id given on the command line. The parser's own error does not help a person.
fn id(text: &str) -> Result<Uuid, String> {
    text.parse().map_err(|_| "is no id: one looks like 0199a5c2-6a3e-7c1d-9a31-0f5f6c1b2d3e".to_owned())
}

/// Asks a person to confirm. Without a terminal it refuses, and names `--yes` and `hint`.
fn confirm(what: &str, hint: &str) -> Result<(), Failure> {
    let refused = |why: String| Err(Failure::new(Exit::Refused, format!("{what}: {why}")));
    if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
        return refused(format!("nothing is done without --yes{hint}"));
    }
    let _ = write!(std::io::stderr(), "{what}. Go on? [y/N] ");
    let mut answer = String::new();
    let _ = std::io::stdin().lock().read_line(&mut answer);
    if ["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str()) {
        Ok(())
    } else {
        refused("nothing was done".into())
    }
}

/// The store, for commands that need nothing else.
async fn store(settings: &Settings) -> Result<Store, Failure> {
    app::store(settings).await
}

/// The exit code of a refused notification.
fn refused(refusal: NotAccepted) -> Failure {
    let exit = if matches!(refusal, NotAccepted::Invalid { .. }) { Exit::Usage } else { Exit::Unreachable };
    Failure::new(exit, refusal.to_string())
}
