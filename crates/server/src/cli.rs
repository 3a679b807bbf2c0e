//! The command line: the list of commands. Each command has a file with its name.

mod apply;
mod audit;
mod config;
mod content;
mod deliveries;
mod demo;
mod dispatch;
pub mod doctor;
mod enqueue;
mod event_types;
mod export;
mod jobs;
pub mod keys;
mod kpis;
mod layouts;
mod member_lists;
mod migrate;
mod notifications;
mod providers;
mod recipes;
mod secrets;
mod suppressions;
mod templates;
mod tenants;
mod transfer;
mod users;
mod value;

use std::io::{BufRead, IsTerminal, Write};
use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand};
use postcommit_channel::model::DeliveryId;
use postcommit_engine::store::{NotAccepted, Page, Position, Store};
use uuid::Uuid;

use crate::app;
use crate::output::{self, CommandResult, Exit, Failure, Format};
use crate::serve::{Role, ServeOptions, serve};
use crate::settings::{Flag, Layers, Settings};
use crate::signals::Signals;

/// Commit the notification with your data. Postcommit delivers it, once, and can prove it.
///
/// Exit codes: 0 ok, 1 failed, 2 usage error, 3 not found, 4 refused, 5 the database cannot be reached, 7 partly done;
/// 130 ended by Ctrl-C, 143 ended by SIGTERM.
#[derive(Debug, Parser)]
#[command(name = "postcommit", version, max_term_width = 110)]
pub struct Cli {
    #[command(flatten)]
    global: GlobalOptions,
    #[command(subcommand)]
    command: Command,
}

/// The global options, which every command accepts.
#[derive(Debug, Args)]
pub struct GlobalOptions {
    /// Output format of the data
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
    /// Settings file [default: postcommit.toml, if that file exists]
    #[arg(long, global = true, help_heading = "Global options", value_name = "FILE", env = "POSTCOMMIT_CONFIG")]
    config: Option<PathBuf>,
    /// Database: sqlite:PATH or postgres://… [default: the setting database.url, otherwise the environment variable
    /// DATABASE_URL]
    #[arg(long, global = true, help_heading = "Global options", value_name = "URL")]
    database_url: Option<String>,
    /// Override a setting, e.g. --setting dispatch.lease_s=30; repeatable
    #[arg(long = "setting", global = true, help_heading = "Global options", value_name = "NAME=VALUE")]
    setting: Vec<String>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the server: the API, and the dispatcher that sends deliveries
    Serve {
        /// Address and port to listen on [default: the setting server.listen]
        #[arg(long, value_name = "ADDRESS")]
        listen: Option<String>,
        /// Parts to run in this process: the API, the dispatcher, or all
        #[arg(long, value_enum, default_value = "all")]
        role: Role,
        /// Do not migrate the schema; refuse to start if the schema is out of date
        #[arg(long)]
        no_migrate: bool,
        /// Stop when stdin ends, so that the server does not outlive the benchmark that started it
        #[arg(long, hide = true)]
        while_stdin: bool,
    },
    Demo(demo::Demo),
    /// Create or update the schema of the database
    Migrate(migrate::Migrate),
    /// Enqueue a notification
    Enqueue(Box<enqueue::Enqueue>),
    /// List, show and cancel notifications
    #[command(subcommand)]
    Notifications(notifications::Notifications),
    /// List, show, retry, discard, cancel, resend and follow deliveries
    #[command(subcommand)]
    Deliveries(deliveries::Deliveries),
    /// List, show and cancel jobs that act on many deliveries
    #[command(subcommand)]
    Jobs(jobs::Jobs),
    /// Create, change, test, pause and delete providers
    #[command(subcommand)]
    Providers(providers::Providers),
    /// Create, change, list, preview and delete templates
    #[command(subcommand)]
    Templates(Box<templates::Templates>),
    /// Create, change, list and delete layouts and partials of templates
    #[command(subcommand)]
    Layouts(layouts::Layouts),
    /// Show and change the settings that all templates of a tenant share: language, time zone, date format, brand
    #[command(subcommand)]
    Content(content::Content),
    /// Create, change, delete, import and export users, and set their preferences
    #[command(subcommand)]
    Users(users::Users),
    /// Create, change, delete, import and export lists of recipients
    #[command(subcommand)]
    Lists(member_lists::Lists),
    /// List, add, remove, import and export suppressions: addresses that receive no messages
    #[command(subcommand)]
    Suppressions(suppressions::Suppressions),
    /// Declare, list, change and delete event types
    #[command(subcommand)]
    EventTypes(event_types::EventTypes),
    /// Show and replace the key that encrypts the providers' secrets
    #[command(subcommand)]
    Secrets(secrets::Secrets),
    /// Create and change templates, layouts, lists, providers and event types from a folder of files
    Apply(apply::Apply),
    /// Write templates, layouts, lists, providers and event types to a folder of files
    Export(export::Export),
    /// Create, list and revoke API keys; create sign-in links
    #[command(subcommand)]
    Keys(keys::Keys),
    /// Create, list and suspend tenants, and change their weights (shares of the sending capacity)
    #[command(subcommand)]
    Tenants(tenants::Tenants),
    /// Show the audit log, newest first
    Audit(audit::Audit),
    /// Send the due deliveries in one pass of limited duration, then exit
    Dispatch(dispatch::Dispatch),
    /// Show the KPIs: how many deliveries are queued, stuck, parked and delivered
    Kpis(kpis::Show),
    /// Check the installation; exits 1 if it finds a problem
    ///
    /// Warnings and notes alone exit 0. A database that cannot be reached is a problem.
    Doctor,
    /// Show the settings in force, or print the defaults
    #[command(subcommand)]
    Config(config::Config),
    /// Print a shell completion script, e.g. source <(postcommit completions bash)
    Completions {
        /// The shell that will read the script
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
        let signals = Signals::end_the_process()
            .map_err(|e| Failure::new(Exit::Failed, format!("cannot install the signal handlers: {e}")))?;
        if let Command::Demo(command) = &self.command {
            return command.run(self.global.database_url.as_deref(), &self.global.setting, &signals).await;
        }
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
        if let Command::Providers(providers::Providers::Check { files }) = &self.command {
            return recipes::check(format, files);
        }
        let loaded = recipes::load(&settings.recipes);
        if matches!(self.command, Command::Serve { .. }) {
            loaded?;
        } else if let Err(problem) = loaded {
            crate::telemetry::say!("postcommit: {problem}; this command continues without the recipe");
        }
        match self.command {
            Command::Serve { role, no_migrate, while_stdin, .. } => {
                serve(&settings, ServeOptions { role, migrate: !no_migrate, while_stdin, demo: None }, &signals).await
            }
            Command::Keys(command) => command.run(format, &settings).await,
            Command::Secrets(command) => command.run(format, &settings).await,
            Command::Tenants(command) => command.run(format, &settings).await,
            Command::Audit(command) => command.run(format, &settings).await,
            Command::Migrate(command) => command.run(format, &settings).await,
            Command::Enqueue(command) => command.run(format, &settings).await,
            Command::Notifications(command) => command.run(format, &settings).await,
            Command::Deliveries(command) => command.run(format, &settings).await,
            Command::Jobs(command) => command.run(format, &settings).await,
            Command::Providers(command) => command.run(format, &settings).await,
            Command::Templates(command) => command.run(format, &settings).await,
            Command::Layouts(command) => command.run(format, &settings).await,
            Command::Content(command) => command.run(format, &settings).await,
            Command::Apply(command) => command.run(format, &settings).await,
            Command::Export(command) => command.run(format, &settings).await,
            Command::Users(command) => command.run(format, &settings).await,
            Command::Lists(command) => command.run(format, &settings).await,
            Command::Suppressions(command) => command.run(format, &settings).await,
            Command::EventTypes(command) => command.run(format, &settings).await,
            Command::Dispatch(command) => command.run(format, &settings).await,
            Command::Kpis(command) => command.run(format, &settings).await,
            Command::Doctor => doctor::run(format, &settings).await,
            Command::Demo(_) | Command::Config(_) | Command::Completions { .. } => Ok(Exit::Ok),
        }
    }
}

impl GlobalOptions {
    /// Loads the settings from these options, the environment, the settings file and `more` flags of the command.
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
                pair.split_once('=').ok_or_else(|| usage(format!("--setting {pair}: has no '='; write NAME=VALUE")))?;
            flags.push(Flag { setting: name, value: value.to_owned(), flag: "--setting" });
        }
        let environment = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .filter(|(name, _)| name.starts_with("POSTCOMMIT_") || name == "DATABASE_URL")
            .collect();
        Layers::load(self.config.as_deref(), &environment, &flags).map_err(usage)
    }
}

/// The id of the tenant with this name. `None` if no name was given.
async fn tenant(store: &Store, name: Option<&str>) -> Result<Option<i32>, Failure> {
    Ok(match name {
        Some(name) => Some(known_tenant(store, name).await?),
        None => None,
    })
}

/// The length of a page of a list.
#[derive(Debug, Args)]
pub struct LimitArgs {
    /// Show at most this many rows, 1 to 200
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(i64).range(1..=200))]
    limit: i64,
}

/// Selects a page of a list of deliveries or notifications.
#[derive(Debug, Args)]
struct PageArgs {
    /// Only rows older than this position: the position that the previous page printed, or the id of a notification
    #[arg(long, value_name = "POSITION")]
    before: Option<Position>,
    #[command(flatten)]
    size: LimitArgs,
}

/// Prints a page of the rows of one tenant or of all tenants, and the option for the next page. The tenant column is
/// left out if the rows belong to one tenant.
async fn print_page<T: serde::Serialize>(
    format: Format,
    store: &Store,
    only: Option<i32>,
    page: Page<T>,
    columns: &[output::Column<T>],
) -> CommandResult {
    let tenant = only.is_none() && store.tenants().await?.len() > 1;
    let shown: Vec<_> = columns.iter().copied().filter(|(name, _)| tenant || *name != "tenant").collect();
    output::list(format, &page.rows, &shown);
    if let (Format::Text, Some(place)) = (format, page.more) {
        crate::telemetry::say!("there are more rows: add --before {place}");
    }
    Ok(Exit::Ok)
}

/// The store for commands that change data, with the operator as the actor.
async fn acting(settings: &Settings) -> Result<Store, Failure> {
    Ok(app::store(settings).await?.by(app::operator()))
}

/// The id of the tenant with this name. The tenant must exist.
async fn known_tenant(store: &Store, name: &str) -> Result<i32, Failure> {
    store.tenant(name).await?.ok_or_else(|| {
        Failure::new(Exit::NotFound, format!("there is no tenant {name:?}; `postcommit tenants list` lists them"))
    })
}

/// Selects a page of a list that is ordered by tenant and name.
#[derive(Debug, Args)]
struct NamePageArgs {
    /// Only rows of this tenant [default: every tenant]
    #[arg(long)]
    tenant: Option<String>,
    /// Only rows after this name: the last name of the previous page
    #[arg(long, value_name = "NAME", requires = "tenant")]
    after: Option<String>,
    #[command(flatten)]
    size: LimitArgs,
}

impl NamePageArgs {
    /// The tenant of the rows, and the position after which the page begins.
    async fn place(&self, store: &Store) -> Result<(Option<i32>, Option<(i32, String)>), Failure> {
        let tenant = tenant(store, self.tenant.as_deref()).await?;
        Ok((tenant, tenant.zip(self.after.clone())))
    }
}

/// The name of an object, and its tenant.
#[derive(Debug, Args)]
struct NameArgs {
    /// Name, or for a user the id, as the command `list` prints it
    name: String,
    /// Name of the tenant
    #[arg(long, default_value = "default")]
    tenant: String,
}

/// The object to delete.
#[derive(Debug, Args)]
struct DeleteArgs {
    #[command(flatten)]
    which: NameArgs,
    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,
}

impl DeleteArgs {
    /// Asks for confirmation, then returns the tenant and the name of the object to delete.
    async fn agreed(&self, store: &Store, what: &str) -> Result<(i32, &str), Failure> {
        let (tenant, name) = (known_tenant(store, &self.which.tenant).await?, self.which.name.as_str());
        if !self.yes {
            confirm(&format!("{what} {name} will be deleted"), "")?;
        }
        Ok((tenant, name))
    }
}

/// Prints the result of a command for one object.
fn said(format: Format, what: &str, name: &str, result: &str) -> CommandResult {
    let value = serde_json::json!({what.replace(' ', "_"): name, "result": result});
    output::one(format, &value, |_| format!("{what} {name} {result}"));
    Ok(Exit::Ok)
}

/// The id of a notification or a job.
#[derive(Debug, Args)]
pub struct IdArg {
    /// Id, as the command `list` prints it
    #[arg(value_parser = id)]
    id: Uuid,
}

/// Parses an id of the command line. The error shows an example, which the UUID parser's own error does not.
fn id(text: &str) -> Result<Uuid, String> {
    text.parse().map_err(|_| "is not an id; an id looks like 0199a5c2-6a3e-7c1d-9a31-0f5f6c1b2d3e".to_owned())
}

/// The kinds of recipients that `enqueue --to` accepts before the address.
const KINDS: [&str; 9] = ["user", "email", "phone", "webhook", "slack", "teams", "push", "web_push", "list"];

/// Parses the user id or address of a recipient. The form of `enqueue --to` is accepted, too, e.g. `user:ada`.
fn address(text: &str) -> Result<String, std::convert::Infallible> {
    let address = match text.split_once(':') {
        Some((kind, address)) if KINDS.contains(&kind) => address,
        Some(("provider", rest)) => rest.split_once(':').map_or(text, |(_, address)| address),
        _ => text,
    };
    Ok(address.to_owned())
}

/// The id of a notification or of a delivery.
#[derive(Debug, Clone, Copy)]
enum AnyId {
    Notification(Uuid),
    Delivery(DeliveryId),
}

impl AnyId {
    /// Shows the notification or the delivery with this id.
    async fn show(self, format: Format, store: &Store, full: bool) -> CommandResult {
        match self {
            Self::Notification(id) => notifications::show(format, store, id).await,
            Self::Delivery(id) => deliveries::show(format, store, id, full).await,
        }
    }
}

/// Parses the id of a notification or of a delivery.
fn any_id(text: &str) -> Result<AnyId, String> {
    if text.contains('.') { text.parse().map(AnyId::Delivery) } else { id(text).map(AnyId::Notification) }
}

/// Asks for confirmation on the terminal. Without a terminal it refuses, and the error names `--yes` and `hint`.
fn confirm(what: &str, hint: &str) -> Result<(), Failure> {
    let refused = |why: String| Err(Failure::new(Exit::Refused, format!("{what}: {why}")));
    match ask(what) {
        Some(true) => Ok(()),
        Some(false) => refused("nothing was done".into()),
        None => refused(format!("nothing was done; add --yes to confirm{hint}")),
    }
}

/// Asks on the terminal whether to continue. Returns `None` without a terminal.
fn ask(what: &str) -> Option<bool> {
    if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
        return None;
    }
    let _ = write!(std::io::stderr(), "{what}. Continue? [y/N] ");
    let mut answer = String::new();
    let _ = std::io::stdin().lock().read_line(&mut answer);
    Some(["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str()))
}

/// Converts the refusal of a notification to an exit code and an error text.
fn refused(refusal: NotAccepted) -> Failure {
    let exit = match refusal {
        NotAccepted::Invalid { .. } => Exit::Usage,
        NotAccepted::NoRights(_) => Exit::Refused,
        NotAccepted::Held | NotAccepted::Unavailable(_) => Exit::Unreachable,
    };
    Failure::new(exit, refusal.to_string())
}
