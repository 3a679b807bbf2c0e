//! `postcommit providers`.

mod shut;
mod test;

use std::collections::BTreeMap;

use clap::{Args, Subcommand};
use postcommit::Timestamp;
use postcommit_channel::driver::{self, Destination};
use postcommit_channel::egress::Egress;
use postcommit_channel::model::Provider;
use postcommit_channel::secret::{KeySource, Secret, Secrets};
use postcommit_engine::store::{ClosedHost, Store};
use serde_json::{Map, Value, json};

use super::enqueue::{parse, read_text};
use crate::app;
use crate::output::{self, CommandResult, Exit, Failure, Format};
use crate::providers::{Change, ProviderError, Workshop};
use crate::settings::Settings;
use crate::telemetry::say;

/// Most paused or held hosts shown, of one provider and in a list. The KPIs count all.
const HOSTS_SHOWN: i64 = 100;
const HOSTS_LISTED: i64 = 1000;

#[derive(Debug, Subcommand)]
pub enum Providers {
    /// Configure a new provider
    Create(Description),
    /// All of them
    List {
        /// Only this tenant's [default: every tenant's]
        #[arg(long)]
        tenant: Option<String>,
    },
    /// One, without its secrets
    Show {
        name: String,
        #[arg(long, default_value = "default")]
        tenant: String,
    },
    /// Change what is given, keep the rest
    Update(Description),
    /// Pause its lane, or one host of it; what is enqueued waits
    Pause {
        name: String,
        #[arg(long, default_value = "default")]
        tenant: String,
        /// Only this host: a name or an address, with its port unless that is 443
        #[arg(long, value_parser = driver::host_of)]
        host: Option<String>,
        /// The reason, shown to operators
        #[arg(long, default_value = "by hand")]
        reason: String,
    },
    /// Resume its lane and all its hosts, whether paused or held
    Resume {
        name: String,
        #[arg(long, default_value = "default")]
        tenant: String,
        /// Only this host: a name or an address, with its port unless that is 443
        #[arg(long, value_parser = driver::host_of)]
        host: Option<String>,
    },
    /// Send a test message immediately, past the queue; exits 1 when it was not sent
    Test(test::Test),
    /// Remove a provider that no delivery waits for
    Delete {
        name: String,
        #[arg(long, default_value = "default")]
        tenant: String,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
    },
}

#[derive(Debug, Args)]
pub struct Description {
    name: String,
    #[arg(long, default_value = "default")]
    tenant: String,
    #[arg(long, help = drivers())]
    driver: Option<String>,
    /// The channel it serves; * is every channel [default: the driver's]
    #[arg(long)]
    channel: Option<String>,
    /// A setting of the driver; the value is JSON or plain text; repeatable
    #[arg(long = "set", value_name = "NAME=VALUE")]
    settings: Vec<String>,
    /// A secret of the driver; VALUE, @FILE, or - for stdin; repeatable
    #[arg(long = "secret", value_name = "NAME=VALUE")]
    secrets: Vec<String>,
    /// idempotent, at_most_once or at_least_once [default: the driver's]
    #[arg(long)]
    guarantee: Option<String>,
    /// doubling, marketplace, or JSON: {"name": "fixed", "interval_s": 60, "max_attempts": 5}
    #[arg(long)]
    policy: Option<String>,
    /// Concurrent sends, 1 to 1000 [default: 16]
    #[arg(long)]
    concurrency: Option<i32>,
    /// Sends per second, of all processes together, 0.001 to 10000 [default: no limit]
    #[arg(long)]
    rate_per_s: Option<f64>,
    /// Sends allowed together after a pause, 1 to 10000 [default: what fits one second]
    #[arg(long)]
    burst: Option<i32>,
    /// Remove rate and burst
    #[arg(long, conflicts_with_all = ["rate_per_s", "burst"])]
    no_rate: bool,
    /// Longest time one send may take, 100 to 300000 [default: 30000]
    #[arg(long)]
    timeout_ms: Option<i32>,
    /// A disabled provider takes no new deliveries [default: true]
    #[arg(long, value_name = "BOOL")]
    enabled: Option<bool>,
    /// Whether it serves recipients that name no provider [default: true when its channel has no default yet]
    #[arg(long = "default", value_name = "BOOL")]
    is_default: Option<bool>,
}

impl Providers {
    pub async fn run(&self, format: Format, settings: &Settings) -> CommandResult {
        let store = super::acting(settings).await?;
        match self {
            Self::Create(description) => description.create(format, settings, &store).await,
            Self::Update(description) => description.update(format, settings, &store).await,
            Self::List { tenant } => list(format, &store, super::tenant(&store, tenant.as_deref()).await?).await,
            Self::Test(test) => test.run(format, settings, &store).await,
            Self::Show { name, tenant } => {
                let (tenant, provider) = find(&store, tenant, name).await?;
                let hosts = store.closed_hosts(Some(tenant), Some(provider.id), HOSTS_SHOWN).await?;
                let provider = held_now(provider, store.now().await?);
                output::one(format, &shown(&provider, &store.tenants().await?, &hosts), text);
                Ok(Exit::Ok)
            }
            Self::Pause { name, tenant, reason, host } => {
                let provider = find(&store, tenant, name).await?.1;
                say(format, name, &shut::pause(&store, &provider, host.as_deref(), reason).await?)
            }
            Self::Resume { name, tenant, host } => {
                let (tenant, provider) = find(&store, tenant, name).await?;
                match host {
                    Some(host) => shut::resume_host(&store, tenant, &provider, host)
                        .await
                        .and_then(|result| say(format, name, &result)),
                    None if store.resume_lane(provider.id).await? => say(format, name, "resumed"),
                    None => say(format, name, "was neither paused nor held"),
                }
            }
            Self::Delete { name, tenant, yes } => {
                let (tenant, provider) = find(&store, tenant, name).await?;
                let left = after(&provider, &store.providers_of(tenant).await?);
                if !yes {
                    super::confirm(&format!("provider {name} will be deleted; {left}"), "")?;
                }
                let (keys, egress) = (app::keys(settings), egress(settings)?);
                workshop(&store, &keys, &egress).delete(tenant, name).await?;
                say!("postcommit: {left}");
                say(format, name, "deleted")
            }
        }
    }
}

impl Description {
    async fn create(&self, format: Format, settings: &Settings, store: &Store) -> CommandResult {
        let driver = self.driver.as_deref().ok_or_else(|| usage(format!("--driver is needed: {}", drivers())))?;
        // An unknown driver makes no tenant.
        driver::kind(driver).map_err(usage)?;
        let tenant = store.tenant_or_new(&self.tenant).await?;
        let (keys, egress) = (app::keys(settings), egress(settings)?);
        let made = workshop(store, &keys, &egress).create(tenant, &self.name, driver, self.change()?).await?;
        // Printed once.
        let made = made.map(|secret| secret.reveal().to_owned());
        if let (Some(secret), Format::Text) = (&made, format) {
            say!("receivers verify with this secret; it is not shown again:\n  {secret}");
        }
        let mut result = json!({"provider": self.name, "result": "created"});
        if let Some(secret) = made {
            result["secret"] = secret.into();
        }
        output::one(format, &result, |_| format!("provider {} created", self.name));
        Ok(Exit::Ok)
    }

    async fn update(&self, format: Format, settings: &Settings, store: &Store) -> CommandResult {
        let (tenant, old) = find(store, &self.tenant, &self.name).await?;
        if self.driver.as_ref().is_some_and(|driver| *driver != old.driver) {
            return Err(usage("--driver: cannot be changed; create another provider"));
        }
        let (keys, egress) = (app::keys(settings), egress(settings)?);
        let changed = workshop(store, &keys, &egress).update(tenant, &self.name, None, &self.change()?).await?;
        say(format, &self.name, if changed { "updated" } else { "is so already" })
    }

    /// The change by the options.
    fn change(&self) -> Result<Change, Failure> {
        let policy = |text: &String| match text.trim_start().starts_with(['{', '@']) {
            true => parse("--policy", text),
            false => Ok(Value::from(text.as_str())),
        };
        let rate = |given: bool| given.then_some(()).or(self.no_rate.then_some(()));
        Ok(Change {
            channel: self.channel.clone(),
            settings: self.given_settings()?,
            secrets: self.secrets()?,
            guarantee: self.guarantee.clone(),
            policy: self.policy.as_ref().map(policy).transpose()?,
            concurrency: self.concurrency,
            timeout_ms: self.timeout_ms,
            is_default: self.is_default,
            rate_per_s: rate(self.rate_per_s.is_some()).map(|()| self.rate_per_s),
            burst: rate(self.burst.is_some()).map(|()| self.burst),
            enabled: self.enabled,
        })
    }

    fn given_settings(&self) -> Result<Map<String, Value>, Failure> {
        let pair = |text: &String| {
            let (name, value) = text.split_once('=').ok_or_else(|| usage(format!("--set {text}: write NAME=VALUE")))?;
            Ok((name.to_owned(), serde_json::from_str(value).unwrap_or_else(|_| Value::from(value))))
        };
        self.settings.iter().map(pair).collect()
    }

    fn secrets(&self) -> Result<Secrets, Failure> {
        let pair = |text: &String| {
            // The value is a secret: it is not repeated.
            let (name, value) =
                text.split_once('=').ok_or_else(|| usage("--secret: write NAME=VALUE, NAME=@FILE or NAME=-"))?;
            let value = read_text(value).map_err(|e| usage(format!("--secret {name}: {e}")))?;
            Ok((name.to_owned(), Secret::new(value.trim())))
        };
        self.secrets.iter().map(pair).collect()
    }
}

fn egress(settings: &Settings) -> Result<Egress, Failure> {
    Egress::new(&settings.egress).map_err(|e| usage(e.to_string()))
}

fn workshop<'a>(store: &'a Store, keys: &'a KeySource, egress: &'a Egress) -> Workshop<'a> {
    Workshop { store, keys, egress, is_local: true }
}

/// The names of all drivers, as a sentence lists them.
fn drivers() -> String {
    let kinds = driver::kinds();
    let names: Vec<&str> = kinds.iter().map(|kind| kind.name.as_ref()).collect();
    match names.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}

impl From<ProviderError> for Failure {
    fn from(error: ProviderError) -> Self {
        match error {
            ProviderError::Field(problem) => Self::new(Exit::Usage, problem),
            ProviderError::Unknown(_) => Self::new(Exit::NotFound, error.to_string()),
            ProviderError::Untestable(problem) => Self::new(Exit::Failed, problem),
            ProviderError::Database(problem) => problem.into(),
            error => Self::new(Exit::Refused, error.to_string()),
        }
    }
}

async fn find(store: &Store, tenant: &str, name: &str) -> Result<(i32, Provider), Failure> {
    let id = store
        .tenant(tenant)
        .await?
        .ok_or_else(|| Failure::new(Exit::NotFound, format!("there is no tenant {tenant:?}")))?;
    let provider = store.provider(id, name).await?.ok_or_else(|| unknown(name))?;
    Ok((id, provider))
}

fn unknown(name: &str) -> Failure {
    Failure::new(Exit::NotFound, format!("there is no provider {name:?}"))
}

fn usage(problem: impl Into<String>) -> Failure {
    Failure::new(Exit::Usage, problem)
}

fn say(format: Format, name: &str, result: &str) -> CommandResult {
    output::one(format, &json!({"provider": name, "result": result}), |_| format!("provider {name} {result}"));
    Ok(Exit::Ok)
}

/// A provider as it may be shown: with its tenant's name, without its secrets.
fn shown(provider: &Provider, tenants: &BTreeMap<i32, String>, hosts: &[ClosedHost]) -> Value {
    let mut value = json!(provider);
    value["hosts"] = json!(hosts.iter().filter(|host| host.lane == provider.id).collect::<Vec<_>>());
    value["tenant"] = json!(tenants.get(&provider.tenant));
    value["secrets"] = json!(provider.secrets.is_some());
    value["burst"] = json!(provider.rate().map(|rate| rate.burst));
    value
}

/// Which provider takes over its channel.
fn after(gone: &Provider, all: &[Provider]) -> String {
    if !(gone.is_default && gone.enabled) {
        return format!("what names it from then on is parked; the channel {} does not depend on it", gone.channel);
    }
    let serving =
        |channel: &str| all.iter().find(|p| p.name != gone.name && p.is_default && p.enabled && p.channel == channel);
    let note = |next: &Provider| match driver::destination(&next.driver) {
        Destination::Record => ", which records and sends nothing",
        _ => "",
    };
    match serving(&gone.channel).or_else(|| serving("*")) {
        Some(next) => format!("the channel {} then goes to {}{}", gone.channel, next.name, note(next)),
        None if gone.channel == "*" => {
            "nothing then serves a channel without a default of its own: what comes for one is parked".into()
        }
        None => format!("nothing then serves the channel {}: what comes for it is parked", gone.channel),
    }
}

/// A provider for people: its state, then its settings.
fn text(provider: &Value) -> String {
    let word = |value: &Value| match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        Value::Bool(is) => Some(if *is { "yes" } else { "no" }.to_owned()),
        other => Some(other.to_string()),
    };
    let pairs = |name: &str| Some(output::pairs(&provider[name])).filter(|pairs| !pairs.is_empty());
    let rate = provider["rate_per_s"].as_f64().map(|per_s| format!("{per_s} a second, burst {}", provider["burst"]));
    let fields = [
        ("tenant", word(&provider["tenant"])),
        ("channel", word(&provider["channel"])),
        ("driver", word(&provider["driver"])),
        ("default", word(&provider["is_default"])),
        ("held until", word(&provider["not_before"])),
        ("guarantee", word(&provider["guarantee"])),
        ("policy", pairs("policy").or_else(|| word(&provider["policy"]))),
        ("concurrency", word(&provider["concurrency"])),
        ("rate", rate),
        ("timeout", provider["timeout_ms"].as_i64().map(|ms| format!("{ms} ms"))),
        ("settings", pairs("settings")),
        ("secrets", word(&provider["secrets"])),
    ];
    let lines = fields.iter().filter_map(|(name, value)| Some(format!("  {name:<13}{}", value.as_ref()?)));
    let hosts = shut::lines(&provider["hosts"]);
    std::iter::once(format!("{}  {}", plain(&provider["name"]), lane(provider)))
        .chain(lines)
        .chain(hosts)
        .collect::<Vec<_>>()
        .join("\n")
}

fn lane(provider: &Value) -> String {
    match (provider["paused"].as_str(), provider["suspended"] == true, provider["enabled"] == true) {
        (Some(why), ..) => format!("paused: {why}"),
        (None, true, _) => "tenant suspended".to_owned(),
        (None, false, false) => "disabled".to_owned(),
        (None, false, true) => "open".to_owned(),
    }
}

async fn list(format: Format, store: &Store, only: Option<i32>) -> CommandResult {
    let (tenants, now) = (store.tenants().await?, store.now().await?);
    let providers = match only {
        Some(tenant) => store.providers_of(tenant).await?,
        None => store.providers().await?,
    };
    let hosts = store.closed_hosts(only, None, HOSTS_LISTED).await?;
    let rows: Vec<Value> = providers.into_iter().map(|p| shown(&held_now(p, now), &tenants, &hosts)).collect();
    let columns: [output::Column<Value>; 10] = [
        ("tenant", |p| plain(&p["tenant"])),
        ("name", |p| plain(&p["name"])),
        ("channel", |p| plain(&p["channel"])),
        ("driver", |p| plain(&p["driver"])),
        ("guarantee", |p| plain(&p["guarantee"])),
        ("default", |p| if p["is_default"] == true { "yes" } else { "no" }.to_owned()),
        ("lane", lane),
        ("rate", |p| match (p["rate_per_s"].as_f64(), p["burst"].as_i64()) {
            (Some(per_s), Some(burst)) => format!("{per_s}/s, burst {burst}"),
            _ => "-".to_owned(),
        }),
        ("held until", |p| plain(&p["not_before"])),
        ("hosts", |p| shut::summary(&p["hosts"])),
    ];
    output::list(format, &rows, &columns);
    Ok(Exit::Ok)
}

/// A hold that has ended is not shown.
fn held_now(provider: Provider, now: Timestamp) -> Provider {
    Provider { not_before: provider.not_before.filter(|until| *until > now), ..provider }
}

fn plain(value: &Value) -> String {
    value.as_str().unwrap_or("-").to_owned()
}
