//! What the commands stand on: the store opened, the tools made; and `serve` itself.

use postcommit_engine::channel::FailOn;
use postcommit_engine::db::Address;
use postcommit_engine::dispatch::{Dispatcher, Stop, Tools};
use postcommit_engine::egress::Egress;
use postcommit_engine::model::{Guarantee, Policy, ProviderDraft};
use postcommit_engine::secret::Keyring;
use postcommit_engine::store::Store;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::output::{Done, Exit, Failure};
use crate::settings::{Settings, without_password};
use crate::{health, telemetry};

/// Opens the store and insists on the schema this program knows.
pub async fn store(settings: &Settings) -> Result<Store, Failure> {
    if let Ok(Address::Sqlite(path)) = Address::parse(&settings.database.url)
        && !path.exists()
    {
        let message = format!("there is no database at {}; `postcommit serve` or `postcommit migrate` makes it", path.display());
        return Err(Failure::new(Exit::Unreachable, message));
    }
    let store = Store::open(&settings.database.url).await?;
    store.db().check_schema().await?;
    Ok(store)
}

/// The key that opens providers' secrets.
pub fn keyring(settings: &Settings) -> Result<Keyring, Failure> {
    let secrets = &settings.secrets;
    let ring = if secrets.key.is_empty() { Keyring::from_file(&secrets.key_file) } else { Keyring::from_base64(&secrets.key) };
    ring.map_err(|e| Failure::new(Exit::Usage, e.to_string()))
}

/// Everything a dispatcher works with.
pub fn tools(settings: &Settings, store: Store) -> Result<Tools, Failure> {
    let egress = Egress::new(&settings.egress).map_err(|e| Failure::new(Exit::Usage, e.to_string()))?;
    let capture_fail_on = FailOn::parse(&settings.capture.fail_on).map_err(|e| Failure::new(Exit::Usage, e))?;
    Ok(Tools { store, egress, keyring: keyring(settings)?, capture_fail_on, settings: settings.dispatch.clone() })
}

/// Runs dispatcher and health endpoints until told to stop.
pub async fn serve(settings: &Settings, migrate: bool) -> Done {
    telemetry::start(&settings.log);
    let store = Store::open(&settings.database.url).await?;
    let fresh = store.db().migration_plan().await?.found == 0;
    if migrate {
        store.db().migrate().await?;
    }
    store.db().check_schema().await?;
    if fresh && store.db().kind() == "sqlite" {
        make_capture(&store).await?;
    }
    let listener = TcpListener::bind(&settings.server.listen)
        .await
        .map_err(|e| Failure::new(Exit::Refused, format!("server.listen: {}: {e}", settings.server.listen)))?;
    let tools = tools(settings, store.clone())?;
    let stop = stop_on_signals().map_err(|e| Failure::new(Exit::Failed, format!("signals: {e}")))?;
    let dispatcher = Dispatcher::new(tools).await?;
    greet(settings, &store).await?;
    tokio::spawn(health::serve(listener, store));
    dispatcher.run(stop).await;
    tracing::info!("stopped");
    Ok(Exit::Ok)
}

/// The first signal asks to finish, the second to stop at once.
fn stop_on_signals() -> std::io::Result<watch::Receiver<Stop>> {
    let (tell, told) = watch::channel(Stop::No);
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
        timeout_ms: 30_000,
        is_default: true,
    };
    let tenant = store.tenant("default").await?.unwrap_or(1);
    Ok(store.create_provider(tenant, &draft).await?)
}

async fn greet(settings: &Settings, store: &Store) -> Result<(), Failure> {
    let me = std::env::args().next().unwrap_or_else(|| "postcommit".into());
    let providers = store.providers().await?;
    eprintln!("postcommit {} is ready", env!("CARGO_PKG_VERSION"));
    eprintln!("  database   {}", without_password(&settings.database.url));
    eprintln!("  health     http://{}/healthz", settings.server.listen);
    for provider in &providers {
        let channel = if provider.channel == "*" { "every channel" } else { &provider.channel };
        let note = if provider.driver == "capture" { "; records, sends nothing" } else { "" };
        eprintln!("  provider   {} ({}, {channel}{note})", provider.name, provider.driver);
    }
    if providers.is_empty() {
        eprintln!("  provider   none yet: `{me} providers create --help`");
    }
    eprintln!("\nTry, in another terminal:\n  {me} enqueue booking.confirmed --to email:guest@example.com --title 'See you soon' --wait");
    Ok(())
}
