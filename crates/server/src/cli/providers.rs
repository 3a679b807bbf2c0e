//! The command `postcommit providers`.

mod callback;
mod shut;
mod test;

use std::collections::BTreeMap;

use clap::{Args, Subcommand};
use postcommit::Timestamp;
use postcommit_channel::driver::{self, Destination};
use postcommit_channel::egress::Egress;
use postcommit_channel::model::Provider;
use postcommit_channel::secret::{KeySource, Secret, Secrets};
use postcommit_engine::store::{ClosedHost, Store, UnopenedLane};
use serde_json::{Map, Value, json};

use super::value::{self, read_text};
use crate::app;
use crate::output::{self, CommandResult, Exit, Failure, Format};
use crate::providers::{Change, ProviderError, Workshop};
use crate::settings::Settings;
use crate::telemetry::say;

/// The maximum number of paused or held hosts that are shown, for one provider and in a list. The KPIs count all.
const HOSTS_SHOWN: i64 = 100;
const HOSTS_LISTED: i64 = 1000;

#[derive(Debug, Subcommand)]
pub enum Providers {
    /// Create a provider
    Create(Description),
    /// List providers
    List {
        /// Only providers of this tenant [default: every tenant]
        #[arg(long)]
        tenant: Option<String>,
    },
    /// Show one provider, without its secrets
    Show {
        /// Name of the provider
        name: String,
        /// Tenant of the provider
        #[arg(long, default_value = "default")]
        tenant: String,
    },
    /// Change the given options of a provider and keep the others
    Update(Description),
    /// Pause a provider, or only one host that it sends to; its deliveries wait
    Pause {
        /// Name of the provider
        name: String,
        /// Tenant of the provider
        #[arg(long, default_value = "default")]
        tenant: String,
        /// Pause only this host: a name or an IP address, with the port if it is not 443
        #[arg(long, value_parser = driver::host_of)]
        host: Option<String>,
        /// Reason, shown to operators
        #[arg(long, default_value = "by hand")]
        reason: String,
    },
    /// Resume a provider and all hosts that it sends to, whether paused or held
    Resume {
        /// Name of the provider
        name: String,
        /// Tenant of the provider
        #[arg(long, default_value = "default")]
        tenant: String,
        /// Resume only this host: a name or an IP address, with the port if it is not 443
        #[arg(long, value_parser = driver::host_of)]
        host: Option<String>,
    },
    /// List the drivers, or show what one of them needs
    Drivers {
        /// Name of the driver
        name: Option<String>,
    },
    /// Check the files of recipes; exits 1 if one is not valid
    Check {
        /// Files of recipes
        #[arg(required = true, value_name = "FILE")]
        files: Vec<std::path::PathBuf>,
    },
    /// Show the URL to which the provider sends its callbacks; the first call creates it
    Callback(callback::CallbackArgs),
    /// Send a test message immediately, without the queue; exits 1 if it was not sent
    Test(test::Test),
    /// Delete a provider; refused while deliveries wait for it
    Delete {
        /// Name of the provider
        name: String,
        /// Tenant of the provider
        #[arg(long, default_value = "default")]
        tenant: String,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
}

#[derive(Debug, Args)]
pub struct Description {
    /// Name of the provider
    name: String,
    /// Tenant of the provider
    #[arg(long, default_value = "default")]
    tenant: String,
    #[arg(long, help = format!("Driver of the provider: {}", drivers()))]
    driver: Option<String>,
    /// Channel that the provider serves; * means every channel [default: the default channel of the driver]
    #[arg(long)]
    channel: Option<String>,
    /// Setting of the driver; the value is JSON or plain text; repeatable
    #[arg(long = "set", value_name = "NAME=VALUE")]
    settings: Vec<String>,
    /// Secret of the driver; VALUE is the text, @FILE, or - for stdin; repeatable
    #[arg(long = "secret", value_name = "NAME=VALUE")]
    secrets: Vec<String>,
    /// Guarantee, which decides what happens after an unclear outcome: idempotent, at_most_once or at_least_once
    /// [default: the default guarantee of the driver]
    #[arg(long)]
    guarantee: Option<String>,
    /// Retry policy: doubling, marketplace or standard_webhooks by name; or JSON, also for fixed and exponential, such as
    /// {"name": "fixed", "interval_s": 60, "max_attempts": 5} [default: the default policy of the driver]
    #[arg(long)]
    policy: Option<String>,
    /// Maximum number of concurrent sends per server process, 1 to 1000 [default: 16]
    #[arg(long)]
    concurrency: Option<i32>,
    /// Maximum number of messages per second over this provider, from all processes together, 0.001 to 10000
    /// [default: no limit]
    #[arg(long)]
    rate_per_s: Option<f64>,
    /// Maximum number of messages without a wait after an idle time, 1 to 10000 [default: the messages of one second]
    #[arg(long)]
    burst: Option<i32>,
    /// Remove the rate limit, both --rate-per-s and --burst
    #[arg(long, conflicts_with_all = ["rate_per_s", "burst"])]
    no_rate: bool,
    /// Time limit of one send in milliseconds, 100 to 300000 [default: 15000]
    #[arg(long)]
    timeout_ms: Option<i32>,
    /// Failures of the service in a row after which nothing is sent for a while, 0 to 100; 0 switches this breaker off
    /// [default: 5]
    #[arg(long, value_name = "COUNT")]
    breaker_failures: Option<i32>,
    /// Seconds for which nothing is sent when the breaker trips, 1 to 300; doubled each time, up to 300 [default: 5]
    #[arg(long, value_name = "SECONDS")]
    breaker_cool_down_s: Option<i32>,
    /// Next provider of the same channel, which takes over while this one cannot send [default: none]
    #[arg(long, value_name = "NAME")]
    failover: Option<String>,
    /// Remove the next provider
    #[arg(long, conflicts_with = "failover")]
    no_failover: bool,
    /// Seconds that this provider may ask to wait before the next one takes over, 0 to 86400 [default: 30]
    #[arg(long, value_name = "SECONDS")]
    failover_after_s: Option<i32>,
    /// Whether the provider accepts new deliveries [default: true]
    #[arg(long, value_name = "BOOL")]
    enabled: Option<bool>,
    /// Whether the provider serves recipients that name no provider [default: true if its channel has no default yet]
    #[arg(long, value_name = "BOOL")]
    is_default: Option<bool>,
    /// Use the key of this host (secrets.key or secrets.key_file) from now on, and create the key file if it is
    /// missing. Use this only if the key that encrypted the installation's secrets is lost. Then set the secrets of
    /// every other provider again
    #[arg(long)]
    new_secrets_key: bool,
}

impl Providers {
    pub async fn run(&self, format: Format, settings: &Settings) -> CommandResult {
        if let Self::Drivers { name } = self {
            return super::recipes::drivers(format, name.as_deref());
        }
        let store = super::acting(settings).await?;
        match self {
            // `drivers` and `check` have already run, because they need no database.
            Self::Drivers { .. } | Self::Check { .. } => Ok(Exit::Ok),
            Self::Create(description) => description.create(format, settings, &store).await,
            Self::Update(description) => description.update(format, settings, &store).await,
            Self::List { tenant } => list(format, &store, super::tenant(&store, tenant.as_deref()).await?).await,
            Self::Test(test) => test.run(format, settings, &store).await,
            Self::Callback(callback) => callback.run(format, settings, &store).await,
            Self::Show { name, tenant } => {
                let (tenant, provider) = find(&store, tenant, name).await?;
                let hosts = store.closed_hosts(Some(tenant), Some(provider.id), HOSTS_SHOWN).await?;
                let provider = held_now(provider, store.now().await?);
                let closed = Closed { hosts, unopened: store.unopened(Some(tenant)).await? };
                let mut value = shown(&provider, &store.tenants().await?, &closed);
                value["callbacks"] = callback::shown(&app::keys(settings), &provider);
                output::one(format, &value, text);
                Ok(Exit::Ok)
            }
            Self::Pause { name, tenant, reason, host } => {
                let provider = find(&store, tenant, name).await?.1;
                say(format, name, &shut::pause(&store, &provider, host.as_deref(), reason).await?)
            }
            Self::Resume { name, tenant: tenant_name, host } => {
                let (tenant, provider) = find(&store, tenant_name, name).await?;
                match host {
                    Some(host) => shut::resume_host(&store, tenant, &provider, host)
                        .await
                        .and_then(|result| say(format, name, &result)),
                    None => {
                        let was_closed = store.resume_lane(provider.id).await?;
                        shut::say_parked(&store, &provider, tenant_name).await?;
                        say(format, name, if was_closed { "resumed" } else { "was neither paused nor held" })
                    }
                }
            }
            Self::Delete { name, tenant, yes } => {
                let (tenant, provider) = find(&store, tenant, name).await?;
                let left = after(&provider, &store.providers_of(tenant).await?);
                if !yes {
                    super::confirm(&format!("provider {name} will be deleted; {left}"), "")?;
                }
                let (keys, egress) = (app::keys(settings), egress(settings)?);
                workshop(&store, &keys, &egress, false).delete(tenant, name).await?;
                say!("postcommit: {left}");
                say(format, name, "deleted")
            }
        }
    }
}

impl Description {
    async fn create(&self, format: Format, settings: &Settings, store: &Store) -> CommandResult {
        let driver =
            self.driver.as_deref().ok_or_else(|| usage(format!("--driver is missing; allowed are {}", drivers())))?;
        // Check the driver first, so that a misspelt driver does not create the tenant.
        let kind = driver::kind(driver).map_err(usage)?;
        let tenant = store.tenant_or_new(&self.tenant).await?;
        let (keys, egress) = (app::keys(settings), egress(settings)?);
        let workshop = workshop(store, &keys, &egress, self.new_secrets_key);
        let made = workshop.create(tenant, &self.name, driver, self.change()?).await?;
        let mut result = json!({"provider": self.name, "result": "created"});
        if let (Some(made), Some(new)) = (made, &kind.new_secret) {
            // The secret is revealed here to print it once. Of a key pair, only the public key is printed.
            let shown = made.public.clone().unwrap_or_else(|| made.secret.reveal().to_owned());
            if format == Format::Text {
                say!("{}:\n  {shown}", new.about);
            }
            result[if made.public.is_some() { "public_key" } else { "secret" }] = shown.into();
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
        let workshop = workshop(store, &keys, &egress, self.new_secrets_key);
        let changed = workshop.update(tenant, &self.name, None, &self.change()?).await?;
        say(format, &self.name, if changed { "updated" } else { "already has these values" })
    }

    /// Converts the options to a change.
    fn change(&self) -> Result<Change, Failure> {
        let policy = |text: &String| match text.trim_start().starts_with(['{', '@']) {
            true => value::json("--policy", r#"{"name": "fixed", "interval_s": 60, "max_attempts": 5}"#, text),
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
            breaker_failures: self.breaker_failures,
            breaker_cool_down_s: self.breaker_cool_down_s,
            failover: self.failover.clone().map(Some).or(self.no_failover.then_some(None)),
            failover_after_s: self.failover_after_s,
            enabled: self.enabled,
        })
    }

    fn given_settings(&self) -> Result<Map<String, Value>, Failure> {
        let pair = |text: &String| {
            let (name, value) = text.split_once('=').ok_or_else(|| usage(format!("--set {text}: write NAME=VALUE")))?;
            // A value that begins like a JSON object or list must be valid JSON. Any other value may be plain text.
            let setting = match value.starts_with(['{', '[']) {
                true => value::json(&format!("--set {name}"), r#"["a", "b"]"#, value)?,
                false => serde_json::from_str(value).unwrap_or_else(|_| Value::from(value)),
            };
            Ok((name.to_owned(), setting))
        };
        self.settings.iter().map(pair).collect()
    }

    fn secrets(&self) -> Result<Secrets, Failure> {
        let pair = |text: &String| {
            // The error must not contain the value, because it is a secret.
            let (name, value) = text
                .split_once('=')
                .ok_or_else(|| usage("--secret: has no '='; write NAME=VALUE, NAME=@FILE or NAME=-"))?;
            let value = read_text(value).map_err(|e| usage(format!("--secret {name}: {e}")))?;
            Ok((name.to_owned(), Secret::new(value.trim())))
        };
        self.secrets.iter().map(pair).collect()
    }
}

pub fn egress(settings: &Settings) -> Result<Egress, Failure> {
    Egress::new(&settings.egress).map_err(|e| usage(e.to_string()))
}

fn workshop<'a>(store: &'a Store, keys: &'a KeySource, egress: &'a Egress, new_key: bool) -> Workshop<'a> {
    Workshop { store, installation: store.clone(), keys, egress, is_local: true, new_key }
}

/// The names of all drivers, as words of a sentence.
fn drivers() -> String {
    let names = driver::names();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
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
    let id = super::known_tenant(store, tenant).await?;
    let provider = store.provider(id, name).await?.ok_or_else(|| ProviderError::Unknown(name.to_owned()))?;
    Ok((id, provider))
}

fn usage(problem: impl Into<String>) -> Failure {
    Failure::new(Exit::Usage, problem)
}

fn say(format: Format, name: &str, result: &str) -> CommandResult {
    output::one(format, &json!({"provider": name, "result": result}), |_| format!("provider {name} {result}"));
    Ok(Exit::Ok)
}

/// The paused and held hosts, and the providers that no worker can serve, by provider id.
struct Closed {
    hosts: Vec<ClosedHost>,
    unopened: BTreeMap<i32, UnopenedLane>,
}

/// A provider as JSON for the output: with the name of its tenant, without its secrets.
fn shown(provider: &Provider, tenants: &BTreeMap<i32, String>, closed: &Closed) -> Value {
    let mut value = json!(provider);
    let unopened = closed.unopened.get(&provider.id);
    value["unopened"] = json!(unopened.map(|not| &not.reason));
    value["lacking"] = json!(unopened.map(|not| not.lacking));
    value["hosts"] = json!(closed.hosts.iter().filter(|host| host.lane == provider.id).collect::<Vec<_>>());
    value["tenant"] = json!(tenants.get(&provider.tenant));
    value["secrets"] = json!(provider.secrets.is_some());
    value["burst"] = json!(provider.rate().map(|rate| rate.burst));
    value
}

/// Describes the channel after the provider is deleted: its next provider, or none.
fn after(gone: &Provider, all: &[Provider]) -> String {
    if !(gone.is_default && gone.enabled) {
        return format!(
            "notifications that name the provider are then parked; the channel {} does not depend on the provider",
            gone.channel
        );
    }
    let serving =
        |channel: &str| all.iter().find(|p| p.name != gone.name && p.is_default && p.enabled && p.channel == channel);
    let note = |next: &Provider| match driver::destination(&next.driver) {
        Destination::Record => ", which only records messages and sends nothing",
        _ => "",
    };
    match serving(&gone.channel).or_else(|| serving("*")) {
        Some(next) => format!("the channel {} is then served by {}{}", gone.channel, next.name, note(next)),
        None if gone.channel == "*" => {
            "channels without a default provider of their own then have no provider: their deliveries are parked".into()
        }
        None => format!("the channel {} then has no provider: its deliveries are parked", gone.channel),
    }
}

/// A provider as text: its state, then its settings.
fn text(provider: &Value) -> String {
    let word = |value: &Value| match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        Value::Bool(is) => Some(if *is { "yes" } else { "no" }.to_owned()),
        other => Some(other.to_string()),
    };
    let pairs = |name: &str| Some(output::pairs(&provider[name])).filter(|pairs| !pairs.is_empty());
    let rate = provider["rate_per_s"].as_f64().map(|per_s| format!("{per_s} a second, burst {}", provider["burst"]));
    let breaker = match (provider["breaker_failures"].as_i64(), provider["breaker_cool_down_s"].as_i64()) {
        (Some(0), _) => Some("off".to_owned()),
        (Some(failures), Some(first)) => Some(format!("after {failures} failures in a row, {first} s first")),
        _ => None,
    };
    let failover = word(&provider["failover"]).map(|next| match provider["failover_after_s"].as_i64() {
        Some(after) => format!("{next}, when held for more than {after} s"),
        None => next,
    });
    let fields = [
        ("tenant", word(&provider["tenant"])),
        ("channel", word(&provider["channel"])),
        ("driver", word(&provider["driver"])),
        ("default", word(&provider["is_default"])),
        ("held until", word(&provider["held_until"])),
        ("because", word(&provider["hold_reason"])),
        ("guarantee", word(&provider["guarantee"])),
        ("policy", pairs("policy").or_else(|| word(&provider["policy"]))),
        ("concurrency", word(&provider["concurrency"])),
        ("rate", rate),
        ("timeout", provider["timeout_ms"].as_i64().map(|ms| format!("{ms} ms"))),
        ("breaker", breaker),
        ("failover", failover),
        ("settings", pairs("settings")),
        ("secrets", word(&provider["secrets"])),
        ("callbacks", callback::text(&provider["callbacks"])),
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
    match (provider["paused"].as_str(), provider["unopened"].as_str()) {
        (Some(why), _) => format!("paused: {why}"),
        (None, _) if provider["suspended"] == true => "tenant suspended".to_owned(),
        (None, Some(why)) => match provider["lacking"].as_str() {
            Some("driver") => format!("closed: no running process can set up its driver: {why}"),
            _ => format!("closed: its secrets cannot be decrypted: {why}"),
        },
        (None, None) if provider["enabled"] == false => "disabled".to_owned(),
        (None, None) if provider["trips"].as_i64().unwrap_or(0) > 0 && provider["held_until"].is_null() => {
            "probed: one send at a time, after failures".to_owned()
        }
        (None, None) => "open".to_owned(),
    }
}

async fn list(format: Format, store: &Store, only: Option<i32>) -> CommandResult {
    let (tenants, now) = (store.tenants().await?, store.now().await?);
    let providers = match only {
        Some(tenant) => store.providers_of(tenant).await?,
        None => store.providers().await?,
    };
    let (hosts, unopened) = (store.closed_hosts(only, None, HOSTS_LISTED).await?, store.unopened(only).await?);
    let closed = Closed { hosts, unopened };
    let rows: Vec<Value> = providers.into_iter().map(|p| shown(&held_now(p, now), &tenants, &closed)).collect();
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
        ("held until", |p| plain(&p["held_until"])),
        ("hosts", |p| shut::summary(&p["hosts"])),
    ];
    output::list(format, &rows, &columns);
    Ok(Exit::Ok)
}

/// Removes a hold that has ended.
fn held_now(provider: Provider, now: Timestamp) -> Provider {
    Provider { held_until: provider.held_until.filter(|until| *until > now), ..provider }
}

fn plain(value: &Value) -> String {
    value.as_str().unwrap_or("-").to_owned()
}
