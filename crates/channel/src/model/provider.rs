use std::collections::BTreeSet;
use std::time::Duration;

use postcommit::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{Policy, Rate};

/// Bytes of a provider's settings, as JSON text: every process keeps them.
pub const SETTINGS_BYTES: usize = 64 * 1024;
/// Providers of one tenant; one that is made without an operator does not count. Every process keeps all of them, and
/// looks at each lane's queue.
pub const PROVIDERS: usize = 200;

/// What may happen when an attempt's outcome is unclear.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Guarantee {
    /// The provider honours our key: repeated under the same key inside the key's window, afterwards parked.
    Idempotent,
    /// Parked as `outcome_unknown`, for a receipt or a person.
    AtMostOnce,
    /// Repeated under the same key; counted as a possible duplicate.
    AtLeastOnce,
}

impl Guarantee {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Idempotent, Self::AtMostOnce, Self::AtLeastOnce];

    /// Its name, as stored.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Idempotent => "idempotent",
            Self::AtMostOnce => "at_most_once",
            Self::AtLeastOnce => "at_least_once",
        }
    }

    /// The guarantee of that name.
    ///
    /// # Errors
    /// Listing the names.
    pub fn from_name(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|g| g.name() == name).ok_or_else(|| {
            format!("guarantee: {name:?} is not known; allowed are idempotent, at_most_once, at_least_once")
        })
    }
}

/// A configured account of a driver on a channel.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Provider {
    /// Its owner.
    pub tenant: i32,
    /// Its lane in the queue.
    pub id: i32,
    /// Unique in the tenant.
    pub name: String,
    /// The medium it serves; `*` serves every one.
    pub channel: String,
    /// Which code talks to it.
    pub driver: String,
    /// The driver's own settings, without secrets.
    pub settings: Value,
    /// Sealed secrets, as stored.
    #[serde(skip)]
    pub secrets: Option<Vec<u8>>,
    /// What happens when an outcome is unclear.
    pub guarantee: Guarantee,
    /// When the guarantee was last changed; 1970 if never.
    #[serde(skip)]
    pub guarantee_since: Timestamp,
    /// When and how often a failed attempt is repeated.
    pub policy: Policy,
    /// Concurrent sends per server process.
    pub concurrency: i32,
    /// Sends a second, by all processes together; none is no limit.
    pub rate_per_s: Option<f64>,
    /// Sends that may follow each other immediately after a pause, where there is a rate; none is the sends of one
    /// second.
    pub burst: Option<i32>,
    /// Longest time one send may take.
    pub timeout_ms: i32,
    /// Whether it serves recipients that name no provider.
    pub is_default: bool,
    /// A disabled provider takes nothing new.
    pub enabled: bool,
    /// Why its lane is paused, if it is.
    pub paused: Option<String>,
    /// Whether its tenant is suspended. Then its lane is closed, as if it were paused.
    pub suspended: bool,
    /// The end of the hold that the provider's own answer asked for.
    pub not_before: Option<Timestamp>,
    /// Counts changes.
    pub revision: i32,
    /// False when the row was edited by hand and cannot be read. Its unreadable fields then have defaults, and any
    /// change of the provider writes them.
    #[serde(skip)]
    pub is_readable: bool,
}

impl Provider {
    /// Whether its lane is closed until an operator opens it.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.paused.is_some() || self.suspended
    }

    /// Longest time one send may take.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        Duration::from_millis(u64::try_from(self.timeout_ms).unwrap_or(0))
    }

    /// How often it may be called, if that is limited.
    #[must_use]
    pub fn rate(&self) -> Option<Rate> {
        self.rate_per_s.map(|per_s| Rate::new(per_s, self.burst))
    }
}

/// A provider as an operator describes it, before it is stored.
#[derive(Debug, Clone, PartialEq)]
pub struct ProviderDraft {
    /// Unique in the tenant.
    pub name: String,
    /// The medium it serves; `*` serves every one.
    pub channel: String,
    /// Which code talks to it.
    pub driver: String,
    /// The driver's own settings, without secrets.
    pub settings: Value,
    /// Sealed secrets.
    pub secrets: Option<Vec<u8>>,
    /// What happens when an outcome is unclear.
    pub guarantee: Guarantee,
    /// When and how often a failed attempt is repeated.
    pub policy: Policy,
    /// Concurrent sends per server process: 1 to 1,000.
    pub concurrency: i32,
    /// Sends a second, by all processes together: 0.001 to 10,000; none is no limit.
    pub rate_per_s: Option<f64>,
    /// Sends that may follow each other immediately after a pause: 1 to 10,000, and only with a rate; none is the sends
    /// of one second.
    pub burst: Option<i32>,
    /// Longest time one send may take, in milliseconds: 100 to 300,000.
    pub timeout_ms: i32,
    /// Whether it serves recipients that name no provider.
    pub is_default: bool,
    /// A disabled provider takes nothing new.
    pub enabled: bool,
}

impl From<Provider> for ProviderDraft {
    fn from(known: Provider) -> Self {
        Self {
            name: known.name,
            channel: known.channel,
            driver: known.driver,
            settings: known.settings,
            secrets: known.secrets,
            guarantee: known.guarantee,
            policy: known.policy,
            concurrency: known.concurrency,
            rate_per_s: known.rate_per_s,
            burst: known.burst,
            timeout_ms: known.timeout_ms,
            is_default: known.is_default,
            enabled: known.enabled,
        }
    }
}

impl ProviderDraft {
    /// Checks numbers and names against their limits.
    ///
    /// # Errors
    /// Naming the field and what is allowed.
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
        Rate::check(self.rate_per_s, self.burst)
    }
}

/// A change of a provider: from what it was seen to be to what it is to be.
#[derive(Debug, Clone)]
pub struct ProviderChange {
    /// As it was read; it is changed only if it still has this revision.
    pub from: Provider,
    /// As it is to be.
    pub to: ProviderDraft,
    /// The names of the secrets that are set anew.
    pub secrets: Vec<String>,
}

impl ProviderChange {
    /// Whether there is nothing to write.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.from.is_readable && self.to == self.from.clone().into()
    }

    /// What changes, field by field: the value before and after. Of settings and secrets only the names: a setting may
    /// be a URL or a header with a token in it.
    #[must_use]
    pub fn fields(&self) -> Value {
        let (was, is) = (written(&self.from.clone().into()), written(&self.to));
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

    /// The names of the settings that change.
    fn settings(&self) -> Vec<&str> {
        let (was, is) = (self.from.settings.as_object(), self.to.settings.as_object());
        let names: BTreeSet<&String> = was.into_iter().chain(is).flat_map(Map::keys).collect();
        let differ = |name: &&String| was.and_then(|all| all.get(*name)) != is.and_then(|all| all.get(*name));
        names.into_iter().filter(differ).map(String::as_str).collect()
    }
}

/// The fields that a log may repeat.
fn written(draft: &ProviderDraft) -> [(&'static str, Value); 9] {
    [
        ("channel", json!(draft.channel)),
        ("guarantee", json!(draft.guarantee)),
        ("policy", json!(draft.policy)),
        ("concurrency", json!(draft.concurrency)),
        ("rate_per_s", json!(draft.rate_per_s)),
        ("burst", json!(draft.burst)),
        ("timeout_ms", json!(draft.timeout_ms)),
        ("is_default", json!(draft.is_default)),
        ("enabled", json!(draft.enabled)),
    ]
}

/// Checks the name of a tenant, channel or provider. `.` and `..` are refused: HTTP clients remove them from the path
/// of a URL.
pub fn short_name(field: &str, name: &str) -> Result<(), String> {
    let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'));
    if plain && (1..=63).contains(&name.len()) && !matches!(name, "." | "..") {
        return Ok(());
    }
    Err(format!(
        "{field}: {name:?} is refused; 1 to 63 letters, digits, '_', '-' and '.' are allowed, but neither \".\" nor \"..\""
    ))
}
