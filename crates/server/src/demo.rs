//! `postcommit demo`: a server in a temporary folder with sample tenants, users and templates. Its drivers send to fake
//! services in this process, and new notifications keep coming. All data is removed when the demo ends.
//! - `fakes`: the fake services; `chaos`: how often they fail and how slow they are;
//! - `story`: the objects that are created before the start; `trickle`: the notifications that are enqueued afterwards;
//! - `seed`: finished deliveries of the past (`--seed`); `folder`: the temporary folder.

pub mod chaos;
pub mod fakes;
mod folder;
mod seed;
mod story;
mod trickle;

use std::io::ErrorKind;
use std::net::TcpListener;
use std::sync::Arc;

use postcommit_channel::egress::Egress;
use postcommit_engine::db::{Address, Scratch};
use postcommit_engine::dispatch::{Stop, Tools};
use tokio::sync::watch;

use crate::app::AppState;
use crate::output::{CommandResult, Exit, Failure};
use crate::serve::{Greeting, Role, ServeOptions, serve};
use crate::settings::{Flag, Layers, Settings, without_password};
use crate::signals::Signals;
use crate::telemetry::say;
use fakes::{Fakes, Kind};
use folder::Folder;
use trickle::Trickle;

/// The address that the demo listens on if it is free.
const LISTEN: &str = "127.0.0.1:7410";
/// The seed of the random numbers of the demo.
const SEED: u64 = 20_260_315;

#[derive(Debug, Clone)]
pub struct DemoOptions {
    pub listen: Option<String>,
    /// The URL of a PostgreSQL server. With `None`, the demo creates a SQLite file.
    pub database_url: Option<String>,
    /// How many finished deliveries of the past are generated.
    pub seed: u64,
    /// More settings, as names and values. They override the settings of the demo.
    pub settings: Vec<(String, String)>,
}

/// A demo that runs in this process.
pub struct Demo {
    pub fakes: Fakes,
    egress: Egress,
    /// How many finished deliveries of the past are generated.
    seed: u64,
}

/// Runs the demo until a stop signal arrives.
pub async fn run(options: &DemoOptions, signals: &Signals) -> CommandResult {
    // From here on, a signal must not end the process before the temporary folder is removed.
    signals.are_requests();
    let folder = Folder::make().map_err(|e| {
        Failure::new(
            Exit::Failed,
            format!("cannot create a folder for temporary files: {e}; set TMPDIR to a folder that can be written"),
        )
    })?;
    let scratch = match &options.database_url {
        None => None,
        Some(url) if matches!(Address::parse(url)?, Address::Postgres(_)) => Some(Scratch::make(url).await?),
        Some(_) => {
            let detail =
                "--database-url: the demo creates its own SQLite file; name a PostgreSQL server, or omit the option";
            return Err(Failure::new(Exit::Usage, detail));
        }
    };
    let url =
        scratch.as_ref().map_or_else(|| format!("sqlite:{}", folder.path("demo.db").display()), |own| own.url.clone());
    let ended = run_on(url, options, &folder, signals).await;
    let removed = match scratch {
        Some(scratch) => scratch.remove().await,
        None => Ok(()),
    };
    drop(folder);
    // Why the demo failed matters more than a database that is left behind.
    let ended = ended.and_then(|exit| removed.map(|()| exit).map_err(Into::into));
    if ended.is_ok() {
        say!("postcommit: the demo has ended, and its data is removed");
    }
    ended
}

async fn run_on(database: String, options: &DemoOptions, folder: &Folder, signals: &Signals) -> CommandResult {
    let problem = |what: &str, e: std::io::Error| Failure::new(Exit::Failed, format!("{what}: {e}"));
    let settings = settings(database, options, folder)?;
    let egress = Egress::new(&settings.egress).map_err(|e| Failure::new(Exit::Usage, e.to_string()))?;
    let fakes = Fakes::start(SEED, &egress)
        .await
        .map_err(|e| problem("the fake services of the demo cannot listen on 127.0.0.1", e))?;
    let demo = Arc::new(Demo { fakes, egress, seed: options.seed });
    let how = ServeOptions { role: Role::All, migrate: true, while_stdin: false, demo: Some(demo) };
    serve(&settings, how, signals).await
}

/// Returns the settings of the demo: the defaults, the database, a secrets key in the folder, and outgoing connections
/// only to this machine.
fn settings(database: String, options: &DemoOptions, folder: &Folder) -> Result<Settings, Failure> {
    let listen = address(options.listen.as_deref())?;
    let own = [
        ("database.url", database),
        ("secrets.key_file", folder.path("secret.key").display().to_string()),
        ("api.public_url", format!("http://{listen}")),
        ("server.listen", listen),
        ("egress.allow", "127.0.0.1/32".to_owned()),
        ("egress.public", "false".to_owned()),
        ("ui.environment", "demo".to_owned()),
        ("dispatch.interval_ms", "200".to_owned()),
        // A send takes at most 5 seconds, so a stop waits for every send.
        ("dispatch.stop_grace_s", "6".to_owned()),
        ("telemetry.sample_ratio", "0".to_owned()),
        // Only errors are logged: warnings about parked deliveries, which the demo causes on purpose, would hide the
        // links on the terminal.
        ("log.level", "error".to_owned()),
    ];
    let own = own.iter().map(|(setting, value)| Flag { setting, value: value.clone(), flag: "of the demo" });
    let more = options.settings.iter();
    let more = more.map(|(setting, value)| Flag { setting, value: value.clone(), flag: "--setting" });
    let layers = Layers::of_flags(&own.chain(more).collect::<Vec<_>>());
    layers.and_then(|layers| layers.settings()).map_err(|problem| Failure::new(Exit::Usage, problem))
}

/// Returns the address to listen on. Its port is chosen here, because links and callbacks need it before the server
/// listens. Without `wished`, it is [`LISTEN`], or a free port if another server listens there.
fn address(wished: Option<&str>) -> Result<String, Failure> {
    let refused = |at: &str, e| {
        Failure::new(Exit::Refused, format!("cannot listen on {at}: {e}; choose another address with --listen"))
    };
    match wished {
        Some(wished) if wished.ends_with(":0") => free(wished).map_err(|e| refused(wished, e)),
        Some(wished) => Ok(wished.to_owned()),
        None => match free(LISTEN) {
            Err(e) if e.kind() == ErrorKind::AddrInUse => {
                let free = free("127.0.0.1:0").map_err(|e| refused("127.0.0.1:0", e))?;
                say!("postcommit: another server listens on {LISTEN}, so the demo listens on {free}");
                Ok(free)
            }
            free => free.map_err(|e| refused(LISTEN, e)),
        },
    }
}

/// Returns the address if no other server listens on it. Port 0 becomes a free port.
fn free(address: &str) -> std::io::Result<String> {
    Ok(TcpListener::bind(address)?.local_addr()?.to_string())
}

impl Demo {
    /// Creates the sample objects and the history in the new database. Returns false if a stop was requested meanwhile.
    pub async fn plant(
        &self,
        settings: &Settings,
        tools: &Tools,
        stop: &watch::Receiver<Stop>,
    ) -> Result<bool, Failure> {
        story::plant(tools, &self.egress, &self.fakes, &settings.api.public_url).await?;
        if self.seed == 0 {
            return Ok(true);
        }
        Ok(seed::seed(tools, self.seed, &self.fakes.get(Kind::Webhook).url(), stop).await?)
    }

    /// Starts to enqueue sample notifications, until the process stops.
    pub fn begin(&self, app: &AppState, stop: watch::Receiver<Stop>) {
        let partner = self.fakes.get(Kind::Webhook).url();
        let trickle = Trickle::new(app.store.clone(), app.gate.clone(), SEED, partner);
        tokio::spawn(trickle.run(stop));
    }

    /// Prints the link to open and commands to try.
    pub fn greet(&self, settings: &Settings, greeting: &Greeting) {
        let text = |told: &Option<String>| told.clone().unwrap_or_default();
        let (url, link, key) = (&greeting.url, text(&greeting.sign_in), text(&greeting.first_key));
        let me = std::env::args().next().unwrap_or_else(|| "postcommit".into());
        let database = without_password(&settings.database.url);
        say!("postcommit {} demo: a sample of hotels, sending to fakes in this process", env!("CARGO_PKG_VERSION"));
        say!("  open       {link} (once, within 15 minutes)");
        say!("  key        {key}");
        say!("  data       {database}; it is removed when the demo ends");
        say!("\nIn the browser: Overview, then Demo. Watch one delivered, break it, mend it and retry what is parked.");
        say!("\nTry, in another terminal:");
        say!(
            "  curl -s {url}/v1/notifications -H 'Authorization: Bearer {key}' -H 'Content-Type: application/json' \
             -d '{{\"event_type\": \"booking.confirmed\", \"recipients\": [{{\"user\": \"guest-ada\"}}], \"payload\": \
             {{\"bookingId\": 1, \"guestName\": \"Ada\", \"nights\": 2, \"checkinDate\": \"2026-12-24\", \"hotel\": \"goa-beach\"}}}}'"
        );
        say!("  {me} deliveries list --database-url {database}");
        say!("  {me} enqueue desk.note --to email:you@example.com --title Hello --wait --database-url {database}");
        say!("\nCtrl-C ends the demo.");
    }
}
