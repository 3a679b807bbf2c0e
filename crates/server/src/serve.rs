//! The command `postcommit serve`: runs the API, the dispatcher, or both.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use postcommit_channel::driver::{self, Destination, Occasion};
use postcommit_channel::model::{IN_APP, Provider, Scope, Scopes};
use postcommit_engine::dispatch::{Dispatcher, Stop};
use postcommit_engine::store::{Access, KeyDraft, KeyError, Store};

use crate::app::{self, App, AppState};
use crate::cli::keys::login_link;
use crate::demo::Demo;
use crate::output::{CommandResult, Exit, Failure};
use crate::router::router;
use crate::settings::{Settings, without_password};
use crate::signals::Signals;
use crate::telemetry::say;
use crate::{door, telemetry};

/// The interval at which the use of keys is stored.
const NOTE_USE: Duration = Duration::from_secs(30);

/// The role of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Role {
    /// Serve the API and send deliveries
    All,
    /// Serve the API only
    Api,
    /// Send deliveries, and serve only /healthz, /readyz and /metrics
    Worker,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Api => "api",
            Self::Worker => "worker",
        }
    }
}

#[derive(Clone)]
pub struct ServeOptions {
    pub role: Role,
    /// Whether to update the schema before the start.
    pub migrate: bool,
    /// Whether to stop when stdin ends.
    pub while_stdin: bool,
    /// The demo that this server is part of.
    pub demo: Option<Arc<Demo>>,
}

/// Serves until a stop signal arrives.
pub async fn serve(settings: &Settings, how: ServeOptions, signals: &Signals) -> CommandResult {
    telemetry::start(&settings.log);
    if how.demo.is_none() {
        app::say_database(settings);
    }
    let store = open(settings, &how).await?;
    let mut tools = app::tools(settings, store.clone())?;
    if let Some(demo) = &how.demo
        && !demo.plant(settings, &tools, &signals.stop()).await?
    {
        return Ok(Exit::Ok);
    }
    let traces = telemetry::otlp::start(&settings.telemetry, &settings.egress, &tools.metrics);
    let (tracer, exporter) = traces.map_err(|e| Failure::new(Exit::Usage, e))?;
    tools.tracer = tracer;
    let stop = signals.stop();
    if how.while_stdin {
        signals.stop_with_stdin();
    }
    let grace = Duration::from_secs(settings.dispatch.stop_grace_s);
    let app = (how.role != Role::Worker).then(|| Arc::new(App::new(settings, &store, &tools, how.demo.clone())));
    app.iter().for_each(|app| drop(tokio::spawn(note_use_forever(app.clone()))));
    let routes = router(settings, &tools, app.clone());
    let door =
        door::open(&settings.server, routes, stop.clone(), grace, &tools.metrics).await.map_err(|e| match e {
            door::OpenError::Listen(..) => Failure::new(Exit::Refused, e.to_string()),
            door::OpenError::Tls(_) => Failure::new(Exit::Usage, e.to_string()),
        })?;
    let dispatcher = if how.role == Role::Api { None } else { Some(Dispatcher::new(tools).await?) };
    let greeting = Greeting::prepare(settings, &door.url(), &store, how.role).await?;
    signals.are_requests();
    signals.end_late_stop(grace);
    match (&how.demo, &app) {
        (Some(demo), Some(app)) => {
            demo.greet(settings, &greeting);
            demo.begin(app, stop.clone());
        }
        _ => greeting.say(settings),
    }
    // Log the start without the secrets that the greeting on the terminal shows.
    let (version, database, listen) = (env!("CARGO_PKG_VERSION"), store.db().kind(), door.url());
    tracing::info!(version, role = how.role.name(), listen, database, "ready");
    note_access(&store).await;
    match dispatcher {
        Some(dispatcher) => dispatcher.run(stop).await,
        None => {
            let mut told = stop;
            let _ = told.wait_for(|stop| *stop != Stop::No).await;
        }
    }
    door.closed().await;
    if let Some(exporter) = exporter {
        exporter.finish().await;
    }
    store.db().settle_file();
    tracing::info!("stopped");
    Ok(Exit::Ok)
}

/// Opens the store and checks its schema and the isolation of tenants.
async fn open(settings: &Settings, how: &ServeOptions) -> Result<Store, Failure> {
    // Only a database file that this start creates gets a first provider. An existing file of an application does not.
    let missing = app::missing_file(settings);
    if let (Some(path), false) = (&missing, how.migrate) {
        return Err(app::no_database(path));
    }
    let store = settings.database.open().await?;
    if how.migrate {
        store.db().migrate().await?;
    }
    store.db().check_schema().await?;
    store.check_isolation().await?;
    if missing.is_some() && how.demo.is_none() {
        make_first_providers(&store).await?;
    }
    Ok(store)
}

/// Logs the other logins that can access the database.
async fn note_access(store: &Store) {
    match store.access().await {
        Ok(access) => access.iter().flat_map(Access::notes).for_each(|note| tracing::warn!("{note}")),
        Err(problem) => tracing::debug!(%problem, "could not read which other logins may connect to the database"),
    }
}

async fn note_use_forever(app: AppState) {
    loop {
        tokio::time::sleep(NOTE_USE).await;
        if let Err(problem) = app.auth.note_used_once(&app.store).await {
            tracing::debug!(%problem, "could not store when API keys were last used");
        }
    }
}

/// Creates a key with the scope `ops` at the first start, because the API cannot be used without a key.
async fn first_key(store: &Store) -> Result<Option<String>, Failure> {
    if store.any_key().await? {
        return Ok(None);
    }
    let draft = KeyDraft {
        name: "made at the first start".into(),
        scopes: [Scope::Ops].into_iter().collect(),
        expires_at: None,
    };
    let tenant = store.tenant("default").await?.unwrap_or(1);
    match store.create_key(tenant, &draft).await {
        // The secret is revealed here to show it once to the person who started the server.
        Ok(made) => Ok(Some(made.token.reveal().to_owned())),
        Err(KeyError::Database(problem)) => Err(problem.into()),
        Err(refused) => Err(Failure::new(Exit::Refused, refused.to_string())),
    }
}

/// Creates the provider of a new embedded database. It serves every channel and sends nothing.
async fn make_first_providers(store: &Store) -> Result<(), Failure> {
    let tenant = store.tenant("default").await?.unwrap_or(1);
    for draft in driver::ready_made(Occasion::NewDatabase) {
        store.create_provider(tenant, &draft).await?;
    }
    Ok(())
}

/// The greeting on the terminal. It is printed after all steps that can fail. Otherwise a new key could exist that was
/// never shown.
pub struct Greeting {
    pub url: String,
    role: Role,
    /// A sign-in link, in roles that serve the API.
    pub sign_in: Option<String>,
    pub first_key: Option<String>,
    providers: Vec<Provider>,
    tenants: BTreeMap<i32, String>,
}

impl Greeting {
    async fn prepare(settings: &Settings, url: &str, store: &Store, role: Role) -> Result<Self, Failure> {
        let (providers, tenants) = (store.providers().await?, store.tenants().await?);
        let (mut sign_in, mut key) = (None, None);
        if role != Role::Worker {
            let everything: Scopes = [Scope::Ops].into_iter().collect();
            let tenant = store.tenant("default").await?.unwrap_or(1);
            sign_in = Some(login_link(store, tenant, everything, &settings.api.base_url(url)).await?);
            key = first_key(store).await?;
        }
        Ok(Self { url: url.to_owned(), role, sign_in, first_key: key, providers, tenants })
    }

    fn say(&self, settings: &Settings) {
        let (me, url) = (std::env::args().next().unwrap_or_else(|| "postcommit".into()), &self.url);
        say!("postcommit {} is ready", env!("CARGO_PKG_VERSION"));
        say!("  database   {}", without_password(&settings.database.url));
        say!("  health     {url}/healthz");
        if let Some(link) = &self.sign_in {
            say!("  API        {url}/v1, described at {url}/openapi.json");
            say!("  sign in    {link} (once, within 15 minutes)");
        }
        if let Some(key) = &self.first_key {
            say!(
                "  key        {key}\n             may do everything; it is not shown again: `{me} keys create` creates \
                 others"
            );
        }
        if self.role == Role::Api {
            say!("  delivers   nothing: another process must deliver, e.g. `{me} serve --role worker`");
        }
        self.providers.iter().for_each(|provider| self.say_provider(provider));
        if self.providers.is_empty() {
            say!("  provider   none yet: `{me} providers create --help`");
        }
        // The example uses `--wait`, which needs a process that delivers, so a process that serves only the API prints
        // none.
        if let (Some(somebody), false) = (self.somebody(), self.role == Role::Api) {
            let same = if is_secret(settings) { ", with the same database.url" } else { "" };
            let database = which_database(settings);
            say!(
                "\nTry, in another terminal{same}:\n  {me}{database} enqueue booking.confirmed --to {somebody} --title 'See you soon' --wait"
            );
        }
    }

    /// A recipient that works in this installation: an email address if email is captured, otherwise an inbox, which
    /// needs no configured provider.
    fn somebody(&self) -> Option<&'static str> {
        let is_default_s =
            |provider: &&Provider| self.tenants.get(&provider.tenant).is_none_or(|name| name == "default");
        let mut own = self.providers.iter().filter(is_default_s);
        let works = |provider: &Provider| provider.enabled && provider.paused.is_none();
        let serves_mail =
            |provider: &Provider| provider.is_default && ["email", "*"].contains(&provider.channel.as_str());
        if own.clone().any(|provider| records(provider) && serves_mail(provider) && works(provider)) {
            return Some("email:guest@example.com");
        }
        own.all(|provider| provider.channel != IN_APP || works(provider)).then_some("user:alice")
    }

    fn say_provider(&self, provider: &Provider) {
        let channel = if provider.channel == "*" { "every channel" } else { &provider.channel };
        let note = if records(provider) { "; only records, sends nothing" } else { "" };
        let tenant = self
            .tenants
            .get(&provider.tenant)
            .filter(|name| *name != "default")
            .map(|name| format!("{name}/"))
            .unwrap_or_default();
        say!("  provider   {tenant}{} ({}, {channel}{note})", provider.name, provider.driver);
    }
}

/// Whether the provider only records messages.
fn records(provider: &Provider) -> bool {
    driver::destination(&provider.driver) == Destination::Record
}

/// The flag that a command in another terminal needs to use this database. It is empty if the URL holds a password.
fn which_database(settings: &Settings) -> String {
    let url = &settings.database.url;
    let origin = &settings.database.origin;
    let is_known = origin == "default" || origin.starts_with("environment ");
    if is_known || is_secret(settings) { String::new() } else { format!(" --database-url {url}") }
}

/// Whether the URL of the database holds a password.
fn is_secret(settings: &Settings) -> bool {
    without_password(&settings.database.url) != settings.database.url
}
