//! What the commands stand on: the store opened, the tools made; and `serve` itself.

use std::path::{Path, PathBuf};

use postcommit_engine::channel::FailOn;
use postcommit_engine::db::Address;
use postcommit_engine::dispatch::{Dispatcher, Stop, Tools};
use postcommit_engine::egress::Egress;
use postcommit_engine::model::{Guarantee, Policy, Provider, ProviderDraft};
use postcommit_engine::secret::{KeySource, Secret};
use postcommit_engine::store::Store;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::output::{Done, Exit, Failure};
use crate::settings::{DEFAULTS, Settings, without_password};
use crate::telemetry::say;
use crate::{health, telemetry};

/// Opens the store and insists on the schema this program knows.
pub async fn store(settings: &Settings) -> Result<Store, Failure> {
    if let Some(path) = missing_file(settings) {
        return Err(no_database(&path));
    }
    let store = Store::open(&settings.database.url).await?;
    store.db().check_schema().await?;
    Ok(store)
}

/// The SQLite file, if it does not exist yet.
pub fn missing_file(settings: &Settings) -> Option<PathBuf> {
    match Address::parse(&settings.database.url) {
        Ok(Address::Sqlite(path)) if !path.exists() => Some(path),
        _ => None,
    }
}

/// Where the key is that opens providers' secrets.
pub fn keys(settings: &Settings) -> KeySource {
    let secrets = &settings.secrets;
    if secrets.key.is_empty() { KeySource::File(secrets.key_file.clone()) } else { KeySource::Given(Secret::new(&secrets.key)) }
}

/// Everything a dispatcher works with.
pub fn tools(settings: &Settings, store: Store) -> Result<Tools, Failure> {
    let egress = Egress::new(&settings.egress).map_err(|e| Failure::new(Exit::Usage, e.to_string()))?;
    let capture_fail_on = FailOn::parse(&settings.capture.fail_on).map_err(|e| Failure::new(Exit::Usage, e))?;
    Ok(Tools { store, egress, keys: keys(settings), capture_fail_on, settings: settings.dispatch.clone() })
}

/// Runs dispatcher and health endpoints until told to stop; `while_stdin`: or stdin ends.
pub async fn serve(settings: &Settings, migrate: bool, while_stdin: bool) -> Done {
    telemetry::start(&settings.log);
    // An application's own file is never taken for ours: only a database that this start makes gets a provider.
    let missing = missing_file(settings);
    if let (Some(path), false) = (&missing, migrate) {
        return Err(no_database(path));
    }
    let store = Store::open(&settings.database.url).await?;
    if migrate {
        store.db().migrate().await?;
    }
    store.db().check_schema().await?;
    if missing.is_some() {
        make_capture(&store).await?;
    }
    let listener = TcpListener::bind(&settings.server.listen).await.map_err(|e| {
        Failure::new(
            Exit::Refused,
            format!("server.listen: {}: {e}; is another one running? --listen chooses another address", settings.server.listen),
        )
    })?;
    let tools = tools(settings, store.clone())?;
    let stop = stop_on_signals(while_stdin).map_err(|e| Failure::new(Exit::Failed, format!("signals: {e}")))?;
    let dispatcher = Dispatcher::new(tools).await?;
    let address = listener.local_addr().map_or_else(|_| settings.server.listen.clone(), |at| at.to_string());
    greet(settings, &address, &store).await?;
    tokio::spawn(health::serve(listener, store.clone()));
    dispatcher.run(stop).await;
    store.db().settle_file();
    tracing::info!("stopped");
    Ok(Exit::Ok)
}

fn no_database(path: &Path) -> Failure {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    Failure::new(
        Exit::Unreachable,
        format!("there is no database at {}; `postcommit serve` or `postcommit migrate` makes it", absolute.display()),
    )
}

/// The first signal asks to finish, the second to stop at once.
fn stop_on_signals(while_stdin: bool) -> std::io::Result<watch::Receiver<Stop>> {
    let (tell, told) = watch::channel(Stop::No);
    if while_stdin {
        let tell = tell.clone();
        tokio::spawn(async move {
            let _ = tokio::io::copy(&mut tokio::io::stdin(), &mut tokio::io::sink()).await;
            let _ = tell.send(Stop::Now);
        });
    }
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(async move {
        for stop in [Stop::Finish, Stop::Now] {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            tracing::info!(
                "{}",
                if stop == Stop::Finish { "stopping: finishing what is under way; once more to stop at once" } else { "stopping at once" }
            );
            let _ = tell.send(stop);
        }
    });
    Ok(told)
}

/// A new embedded database begins with a provider that serves every channel and sends nothing.
async fn make_capture(store: &Store) -> Result<(), Failure> {
    let draft = ProviderDraft {
        name: "capture".into(),
        channel: "*".into(),
        driver: "capture".into(),
        settings: serde_json::json!({}),
        secrets: None,
        guarantee: Guarantee::Idempotent,
        policy: Policy::default(),
        concurrency: 16,
        rate_per_s: None,
        burst: None,
        timeout_ms: 30_000,
        is_default: true,
    };
    let tenant = store.tenant("default").await?.unwrap_or(1);
    Ok(store.create_provider(tenant, &draft).await?)
}

async fn greet(settings: &Settings, address: &str, store: &Store) -> Result<(), Failure> {
    let me = std::env::args().next().unwrap_or_else(|| "postcommit".into());
    let providers = store.providers().await?;
    let tenants = store.tenants().await?;
    say!("postcommit {} is ready", env!("CARGO_PKG_VERSION"));
    say!("  database   {}", without_password(&settings.database.url));
    say!("  health     http://{address}/healthz");
    for provider in &providers {
        let channel = if provider.channel == "*" { "every channel" } else { &provider.channel };
        let note = if provider.driver == "capture" { "; records, sends nothing" } else { "" };
        let tenant = tenants.get(&provider.tenant).filter(|name| *name != "default").map(|name| format!("{name}/")).unwrap_or_default();
        say!("  provider   {tenant}{} ({}, {channel}{note})", provider.name, provider.driver);
    }
    if providers.is_empty() {
        say!("  provider   none yet: `{me} providers create --help`");
    }
    say!(
        "\nTry, in another terminal:\n  {me}{} enqueue booking.confirmed --to {} --title 'See you soon' --wait",
        which_database(settings),
        somebody(&providers)
    );
    Ok(())
}

/// The flag that another terminal needs; a URL with a password is not printed.
fn which_database(settings: &Settings) -> String {
    let url = &settings.database.url;
    match url.as_str() {
        _ if DEFAULTS.contains(&format!("url = \"{url}\"")) || std::env::var("POSTCOMMIT_DATABASE_URL").is_ok() => String::new(),
        url => format!(" --database-url {}", without_password(url)),
    }
}

/// An address that the providers at hand can serve.
fn somebody(providers: &[Provider]) -> &'static str {
    let serves = |channel: &str| providers.iter().any(|p| p.is_default && (p.channel == channel || p.channel == "*"));
    if serves("webhook") && !serves("email") { "webhook:https://example.com/hook" } else { "email:guest@example.com" }
}
