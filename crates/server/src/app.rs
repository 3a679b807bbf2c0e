//! The state that handlers, pages and commands share: the store, the tools of a dispatcher, and [`App`] for the server.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use postcommit_channel::driver::FailOn;
use postcommit_channel::egress::Egress;
use postcommit_channel::model::Actor;
use postcommit_channel::secret::{KeySource, Secret};
use postcommit_engine::db::Address;
use postcommit_engine::dispatch::Tools;
use postcommit_engine::inbox::Inboxes;
use postcommit_engine::metrics::Metrics;
use postcommit_engine::store::Store;
use postcommit_engine::store::group_commit::GroupCommit;
use postcommit_engine::trace::Tracer;
use rustix::process::getuid;
use rustix::system::uname;

use crate::auth::Auth;
use crate::demo::Demo;
use crate::output::{Exit, Failure};
use crate::previews::Previews;
use crate::settings::{InboxSettings, Settings, UiSettings};
use crate::tally::Tallies;
use crate::telemetry::say;

/// The state that handlers and pages share.
pub struct App {
    pub store: Store,
    /// Accepts single notifications and commits many of them together.
    pub gate: GroupCommit,
    pub tools: Tools,
    pub auth: Auth,
    /// The lock that `POST /v1/dispatch` holds during a pass, so that only one pass runs at a time.
    pub passing: Arc<tokio::sync::Mutex<()>>,
    /// The inboxes that browsers have open in this process.
    pub inboxes: Inboxes,
    pub inbox: InboxSettings,
    pub ui: UiSettings,
    /// The counts that pages show.
    pub tallies: Tallies,
    /// The HTML of the mails that are previewed.
    pub previews: Previews,
    /// The address of the database without its password, and the source of the address.
    pub database: String,
    /// The URL of this server for browsers, without a slash at its end.
    pub base_url: String,
    /// A delivery that was first due longer ago than this counts as stuck.
    pub stuck_after: Duration,
    /// Whether `/metrics` is refused, because the server is reached from outside and no token is set.
    pub has_closed_metrics: bool,
    /// The demo, if this server is part of one.
    pub demo: Option<Arc<Demo>>,
}

/// The state that axum passes to every handler.
pub type AppState = Arc<App>;

impl App {
    pub fn new(settings: &Settings, store: &Store, tools: &Tools, demo: Option<Arc<Demo>>) -> Self {
        Self {
            store: store.clone(),
            gate: GroupCommit::new(store.clone()),
            tools: tools.clone(),
            auth: Auth::new(&settings.api),
            passing: Arc::default(),
            inboxes: Inboxes::new(store.clone()),
            inbox: settings.inbox.clone(),
            ui: settings.ui.clone(),
            tallies: Tallies::default(),
            previews: Previews::default(),
            database: settings.database.told(),
            base_url: settings.api.base_url(&settings.server.url()),
            stuck_after: settings.kpi.stuck_after(),
            has_closed_metrics: settings.metrics.token.is_empty() && !settings.server.is_loopback(),
            demo,
        }
    }
}

/// Opens the store. Refuses a schema of another version.
pub async fn store(settings: &Settings) -> Result<Store, Failure> {
    if let Some(path) = missing_file(settings) {
        return Err(no_database(&path));
    }
    let store = settings.database.open().await?;
    store.db().check_schema().await?;
    Ok(store)
}

/// Prints which database a command uses and which setting named it. Using a different database by mistake looks like
/// lost data.
pub fn say_database(settings: &Settings) {
    say!("postcommit: database {}", settings.database.told());
}

/// The path of the SQLite file, if the file does not exist.
pub fn missing_file(settings: &Settings) -> Option<PathBuf> {
    match Address::parse(&settings.database.url) {
        Ok(Address::Sqlite(path)) if !path.exists() => Some(path),
        _ => None,
    }
}

/// The source of the key that encrypts the providers' secrets.
pub fn keys(settings: &Settings) -> KeySource {
    let secrets = &settings.secrets;
    if secrets.key.is_empty() {
        KeySource::File(secrets.key_file.clone())
    } else {
        KeySource::Given(Secret::new(&secrets.key))
    }
}

pub fn tools(settings: &Settings, store: Store) -> Result<Tools, Failure> {
    let egress = Egress::new(&settings.egress).map_err(|e| Failure::new(Exit::Usage, e.to_string()))?;
    let capture_fail_on = FailOn::parse(&settings.capture.fail_on).map_err(|e| Failure::new(Exit::Usage, e))?;
    Ok(Tools {
        store,
        egress,
        keys: keys(settings),
        capture_fail_on,
        public_url: settings.api.public_url.clone(),
        settings: settings.dispatch.clone(),
        kpi: settings.kpi.clone(),
        metrics: Metrics::new(settings.metrics.event_types),
        tracer: Tracer::default(),
    })
}

pub fn no_database(path: &Path) -> Failure {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    Failure::new(
        Exit::Unreachable,
        format!(
            "there is no database at {}; `postcommit serve` or `postcommit migrate` creates it",
            absolute.display()
        ),
    )
}

/// The actor of a command in the audit log: `cli:<user>@<host>`. Containers often set no USER, so the user's name is
/// looked up, and the host name tells containers apart.
pub fn operator() -> Actor {
    let named = ["SUDO_USER", "USER", "LOGNAME"]
        .iter()
        .find_map(|name| std::env::var(name).ok().filter(|name| !name.is_empty()));
    let name = named.or_else(|| user_name(getuid().as_raw())).unwrap_or_else(|| format!("uid {}", getuid().as_raw()));
    let host = uname();
    Actor::new(format!("cli:{name}@{}", host.nodename().to_string_lossy()))
}

/// The name of the user in `/etc/passwd`.
fn user_name(uid: u32) -> Option<String> {
    let passwd = std::fs::read("/etc/passwd").ok()?;
    let passwd = String::from_utf8_lossy(&passwd);
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, id) = (fields.next()?, fields.nth(1)?);
        (id.parse() == Ok(uid) && !name.is_empty()).then(|| name.to_owned())
    })
}
