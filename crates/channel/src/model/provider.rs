use std::collections::BTreeSet;
use std::ops::Deref;
use std::time::Duration;

use postcommit::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{Policy, Rate, breaker, failover};

/// The maximum number of bytes of a provider's settings as JSON. They are limited because every process keeps them in
/// memory.
pub const SETTINGS_BYTES: usize = 64 * 1024;
/// The maximum number of providers of one tenant, not counting providers that are created automatically. Every process
/// keeps all providers in memory and polls the queue of each.
pub const PROVIDERS: usize = 200;
/// The default time limit of one send, in milliseconds. With margins it fits into the default lease of a worker, so
/// that a notification can be sent from its own row.
pub const TIMEOUT_MS: i32 = 15_000;

/// The treatment of an attempt with an unclear outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Guarantee {
    /// The provider honours our idempotency key. The attempt is repeated with the same key while the provider remembers
    /// it. After that the delivery is parked.
    Idempotent,
    /// The delivery is parked as `outcome_unknown` until a receipt or an operator decides.
    AtMostOnce,
    /// The attempt is repeated with the same key and counted as a possible duplicate.
    AtLeastOnce,
}

impl Guarantee {
    pub const ALL: [Self; 3] = [Self::Idempotent, Self::AtMostOnce, Self::AtLeastOnce];

    pub fn name(self) -> &'static str {
        match self {
            Self::Idempotent => "idempotent",
            Self::AtMostOnce => "at_most_once",
            Self::AtLeastOnce => "at_least_once",
        }
    }

    /// Finds the guarantee with this name.
    pub fn from_name(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|g| g.name() == name).ok_or_else(|| {
            format!("guarantee: {name:?} is not known; allowed are idempotent, at_most_once, at_least_once")
        })
    }
}

/// A configured account of a driver on a channel: its configuration and its state.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Provider {
    pub tenant: i32,
    /// The id of the provider, which is also the number of its lane in the queue.
    pub id: i32,
    #[serde(flatten)]
    pub draft: ProviderDraft,
    /// The time of the last change of the guarantee, or 1970 if it was never changed.
    #[serde(skip)]
    pub guarantee_since: Timestamp,
    /// The reason why the lane is paused. `None` if it is not paused.
    pub paused: Option<String>,
    /// Whether the tenant is suspended. The lanes of a suspended tenant are closed.
    pub suspended: bool,
    /// The time until which the lane is held, because the provider asked us to wait (`Retry-After`) or its breaker
    /// tripped.
    pub held_until: Option<Timestamp>,
    /// The reason of the last trip of the breaker. `None` if the provider asked us to wait.
    pub hold_reason: Option<String>,
    /// How often the breaker tripped since the last success. While it is above 0, one send is made at a time.
    pub trips: i32,
    /// The revision. Every change of this provider increments it.
    pub revision: i32,
    /// False if the row was edited by hand and cannot be parsed. The unreadable fields then have default values, and
    /// any change of the provider writes these defaults.
    #[serde(skip)]
    pub is_readable: bool,
}

impl Deref for Provider {
    type Target = ProviderDraft;

    fn deref(&self) -> &ProviderDraft {
        &self.draft
    }
}

impl Provider {
    /// Whether the lane is closed until an operator opens it.
    pub fn is_paused(&self) -> bool {
        self.paused.is_some() || self.suspended
    }

    /// The time limit of one send.
    pub fn timeout(&self) -> Duration {
        Duration::from_millis(u64::try_from(self.timeout_ms).unwrap_or(0))
    }

    /// Whether the breaker has tripped and no send has succeeded since. Then one send is made at a time, to probe the
    /// service.
    pub fn is_tripped(&self) -> bool {
        self.trips > 0 && self.breaker_failures > 0
    }

    /// How long this provider may ask us to wait before the next provider of its chain takes over.
    pub fn failover_after(&self) -> Duration {
        Duration::from_secs(u64::try_from(self.failover_after_s).unwrap_or(0))
    }

    /// The rate limit of the provider, if it has one.
    pub fn rate(&self) -> Option<Rate> {
        self.rate_per_s.map(|per_s| Rate::new(per_s, self.burst))
    }
}

/// The configuration of a provider, before it is stored.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProviderDraft {
    /// The name, unique within the tenant.
    pub name: String,
    /// The channel that the provider serves. `*` means every channel.
    pub channel: String,
    /// The name of the driver.
    pub driver: String,
    /// The settings of the driver, without secrets.
    pub settings: Value,
    /// The encrypted secrets, as they are stored.
    #[serde(skip)]
    pub secrets: Option<Vec<u8>>,
    /// The treatment of an attempt with an unclear outcome.
    pub guarantee: Guarantee,
    /// The retry policy.
    pub policy: Policy,
    /// The maximum number of concurrent sends in one server process, 1 to 1,000.
    pub concurrency: i32,
    /// The maximum number of sends per second of all processes together, 0.001 to 10,000. `None` means no limit.
    pub rate_per_s: Option<f64>,
    /// The maximum number of sends without a wait after an idle time, 1 to 10,000. It is allowed only with a rate. The
    /// default is the number of sends in one second.
    pub burst: Option<i32>,
    /// The time limit of one send in milliseconds, 100 to 300,000.
    pub timeout_ms: i32,
    /// The number of failures of the service in a row after which the lane or host is held, 0 to 100. 0 switches the
    /// breaker off.
    pub breaker_failures: i32,
    /// The length of the first hold in seconds, 1 to 300. It doubles with each further failure, to five minutes.
    pub breaker_cool_down_s: i32,
    /// The name of the next provider, which takes over while this one cannot send.
    pub failover: Option<String>,
    /// How long this provider may ask us to wait before the next provider takes over, in seconds, 0 to 86,400.
    pub failover_after_s: i32,
    /// Whether the provider serves recipients that name no provider.
    pub is_default: bool,
    /// Whether the provider is enabled. A disabled provider accepts no new deliveries.
    pub enabled: bool,
}

impl ProviderDraft {
    /// Checks numbers and names against their limits.
    pub fn check(&self) -> Result<(), String> {
        short_name("name", &self.name)?;
        if self.channel != "*" {
            short_name("channel", &self.channel)?;
        }
        let bytes = self.settings.to_string().len();
        if bytes > SETTINGS_BYTES {
            return Err(format!("settings: has {bytes} bytes; at most {SETTINGS_BYTES} are allowed"));
        }
        if !(1..=1000).contains(&self.concurrency) {
            return Err(format!("concurrency: is {}; 1 to 1000 are allowed", self.concurrency));
        }
        if !(100..=300_000).contains(&self.timeout_ms) {
            return Err(format!("timeout_ms: is {}; 100 to 300000 are allowed", self.timeout_ms));
        }
        breaker::check(self.breaker_failures, self.breaker_cool_down_s)?;
        failover::check_after(self.failover_after_s)?;
        Rate::check(self.rate_per_s, self.burst)
    }
}

/// A change of a provider, from a state that was read to a new configuration.
#[derive(Debug, Clone)]
pub struct ProviderChange {
    /// The provider as it was read. The change is made only if the provider still has this revision.
    pub from: Provider,
    pub to: ProviderDraft,
    /// The names of the secrets that get a new value.
    pub secrets: Vec<String>,
}

impl ProviderChange {
    /// Whether the change writes nothing.
    pub fn is_empty(&self) -> bool {
        self.from.is_readable && self.to == self.from.draft
    }

    /// The changed fields with their values before and after. For settings and secrets only the names are listed,
    /// because a setting may be a URL or a header that contains a token.
    pub fn fields(&self) -> Value {
        let (was, is) = (written(&self.from.draft), written(&self.to));
        let pairs = was.into_iter().zip(is).filter(|(was, is)| was != is);
        let mut fields: Map<String, Value> =
            pairs.map(|((name, was), (_, is))| (name.to_owned(), json!({"from": was, "to": is}))).collect();
        for (field, names) in
            [("settings", self.settings()), ("secrets", self.secrets.iter().map(String::as_str).collect())]
        {
            if !names.is_empty() {
                fields.insert(field.to_owned(), json!(names));
            }
        }
        fields.into()
    }

    /// The names of the changed settings.
    fn settings(&self) -> Vec<&str> {
        let (was, is) = (self.from.settings.as_object(), self.to.settings.as_object());
        let names: BTreeSet<&String> = was.into_iter().chain(is).flat_map(Map::keys).collect();
        let differ = |name: &&String| was.and_then(|all| all.get(*name)) != is.and_then(|all| all.get(*name));
        names.into_iter().filter(differ).map(String::as_str).collect()
    }
}

/// The fields whose values may appear in the audit log.
fn written(draft: &ProviderDraft) -> [(&'static str, Value); 13] {
    [
        ("channel", json!(draft.channel)),
        ("guarantee", json!(draft.guarantee)),
        ("policy", json!(draft.policy)),
        ("concurrency", json!(draft.concurrency)),
        ("rate_per_s", json!(draft.rate_per_s)),
        ("burst", json!(draft.burst)),
        ("timeout_ms", json!(draft.timeout_ms)),
        ("breaker_failures", json!(draft.breaker_failures)),
        ("breaker_cool_down_s", json!(draft.breaker_cool_down_s)),
        ("failover", json!(draft.failover)),
        ("failover_after_s", json!(draft.failover_after_s)),
        ("is_default", json!(draft.is_default)),
        ("enabled", json!(draft.enabled)),
    ]
}

/// Checks the name of a tenant, channel or provider. `.` and `..` are refused, because HTTP clients remove them from
/// the path of a URL.
pub fn short_name(field: &str, name: &str) -> Result<(), String> {
    let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'));
    if plain && (1..=63).contains(&name.len()) && !matches!(name, "." | "..") {
        return Ok(());
    }
    Err(format!(
        "{field}: {name:?} is not allowed; 1 to 63 letters, digits, '_', '-' and '.' are allowed, but neither \".\" nor \"..\""
    ))
}
