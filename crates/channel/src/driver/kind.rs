//! What is known of each driver without making one. Other modules ask for these facts instead of comparing names.

use std::borrow::Cow;
use std::ops::RangeInclusive;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use serde_json::{Value, json};

use super::{Driver, Parts, capture, in_app, webhook};
use crate::model::{Guarantee, Policy, Provider, ProviderDraft};
use crate::secret::Secret;

/// A text of this program, or one that was read at run time.
type Text = Cow<'static, str>;

/// Makes a driver; it may hold data that was read at run time.
pub(super) type Build = Arc<dyn Fn(&Parts<'_>) -> Result<Box<dyn Driver>, String> + Send + Sync>;

/// A driver that can be configured. All of it is data or closures, so that a recipe read at run time can be one.
pub struct Kind {
    /// Its name in a provider's description.
    pub name: Text,
    /// The channel it serves unless told otherwise; `*` is every one.
    pub channel: Text,
    /// What happens when an outcome is unclear, unless told otherwise.
    pub guarantee: Guarantee,
    /// Where its messages go.
    pub destination: Destination,
    /// The names of its secrets.
    pub secrets: Vec<Text>,
    /// The secret that is made for a provider whose description brings none.
    pub new_secret: Option<NewSecret>,
    /// How long a receiver remembers the key of a delivery.
    pub key_window: KeyWindow,
    /// Settings that only an operator on the server's own machine may set.
    pub local_settings: Vec<LocalSetting>,
    /// The provider that is made without an operator, if there is one.
    pub ready_made: Option<ReadyMade>,
    pub(super) build: Build,
}

/// Where the messages of a driver go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination {
    /// To a service outside this installation.
    Service,
    /// Into an inbox in our own database. The transaction that settles the delivery writes the message.
    Inbox,
    /// Nowhere: messages are recorded, not sent.
    Record,
}

/// A secret that is made, and shown once.
pub struct NewSecret {
    /// Which of the driver's secrets it is.
    pub name: Text,
    /// Makes it.
    pub make: fn() -> Secret,
}

/// A setting that only an operator on the server's own machine may set.
pub struct LocalSetting {
    /// Its name.
    pub name: Text,
    /// Why, as the end of a sentence that begins with its name.
    pub reason: Text,
}

/// The provider of a driver that is made without an operator: the default of its channel, named after the driver.
pub struct ReadyMade {
    /// When it is made.
    pub occasion: Occasion,
    /// Its settings.
    pub settings: Value,
    /// Concurrent sends per server process.
    pub concurrency: i32,
}

/// When a provider is made without an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Occasion {
    /// When `serve` makes a new embedded database.
    NewDatabase,
    /// When a notification first needs its channel.
    FirstUse,
}

/// How long a receiver remembers the key of a delivery. The setting `key_window_s` may say so.
#[derive(Debug, Clone)]
pub struct KeyWindow {
    /// Seconds, without the setting.
    pub default_s: u64,
    /// Seconds that the setting may say.
    pub allowed_s: RangeInclusive<u64>,
}

impl KeyWindow {
    /// A day by default.
    pub(super) const fn day(allowed_s: RangeInclusive<u64>) -> Self {
        Self { default_s: 86_400, allowed_s }
    }

    /// The window under these settings.
    #[must_use]
    pub fn of(&self, settings: &Value) -> Duration {
        Duration::from_secs(settings.get("key_window_s").and_then(Value::as_u64).unwrap_or(self.default_s))
    }

    /// Refuses a setting that is out of range.
    pub(super) fn check(&self, seconds: u64) -> Result<(), String> {
        if self.allowed_s.contains(&seconds) {
            return Ok(());
        }
        let (least, most) = (self.allowed_s.start(), self.allowed_s.end());
        Err(format!("settings.key_window_s: is {seconds}; {least} to {most} are allowed"))
    }
}

impl Kind {
    /// A provider of this driver with the driver's defaults, and not the default of its channel.
    #[must_use]
    pub fn draft(&self, name: &str) -> ProviderDraft {
        ProviderDraft {
            name: name.to_owned(),
            channel: self.channel.clone().into_owned(),
            driver: self.name.clone().into_owned(),
            settings: json!({}),
            secrets: None,
            guarantee: self.guarantee,
            policy: Policy::default(),
            concurrency: 16,
            timeout_ms: 30_000,
            is_default: false,
            enabled: true,
            rate_per_s: None,
            burst: None,
        }
    }

    /// Makes a driver, checking its settings and secrets.
    ///
    /// # Errors
    /// Naming the setting and what is allowed.
    pub fn build(&self, parts: &Parts<'_>) -> Result<Box<dyn Driver>, String> {
        if let Some(unknown) = parts.secrets.keys().find(|name| !self.secrets.iter().any(|known| known == *name)) {
            return Err(format!(
                "secret: driver {:?} has none named {unknown:?}; it has {:?}",
                self.name, self.secrets
            ));
        }
        (self.build)(parts)
    }
}

static KINDS: LazyLock<Vec<Arc<Kind>>> =
    LazyLock::new(|| [capture::kind(), in_app::kind(), webhook::kind()].map(Arc::new).to_vec());

/// All drivers there are, by name.
#[must_use]
pub fn kinds() -> Vec<Arc<Kind>> {
    KINDS.clone()
}

/// The driver of that name.
///
/// # Errors
/// Listing the names.
pub fn kind(name: &str) -> Result<Arc<Kind>, String> {
    let names = || KINDS.iter().map(|kind| kind.name.as_ref()).collect::<Vec<_>>().join(", ");
    let found = KINDS.iter().find(|kind| kind.name == name).cloned();
    found.ok_or_else(|| format!("driver: {name:?} is not known; known are {}", names()))
}

/// Where the messages of a driver go; to a service, when it is not known.
#[must_use]
pub fn destination(driver: &str) -> Destination {
    kind(driver).map_or(Destination::Service, |kind| kind.destination)
}

/// How long the provider remembers the key of a delivery; a day or what its settings say, when its driver is not known.
#[must_use]
pub fn key_window(provider: &Provider) -> Duration {
    match kind(&provider.driver) {
        Ok(kind) => kind.key_window.of(&provider.settings),
        Err(_) => KeyWindow::day(0..=u64::MAX).of(&provider.settings),
    }
}

/// The providers that are made on that occasion without an operator.
#[must_use]
pub fn ready_made(occasion: Occasion) -> Vec<ProviderDraft> {
    let draft = |kind: &Arc<Kind>| {
        let made = kind.ready_made.as_ref().filter(|made| made.occasion == occasion)?;
        let (settings, concurrency) = (made.settings.clone(), made.concurrency);
        Some(ProviderDraft { settings, concurrency, is_default: true, ..kind.draft(&kind.name) })
    };
    KINDS.iter().filter_map(draft).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{FailOn, Message, Sending};
    use crate::egress::{Egress, EgressSettings};
    use crate::model::{Outcome, Report};
    use crate::secret::Secrets;

    /// A driver that is nothing but data.
    struct Recipe(String);

    impl Driver for Recipe {
        fn send<'a>(&'a self, _: Message<'a>) -> Sending<'a> {
            Box::pin(std::future::ready(Report::from(Outcome::unclear(&self.0))))
        }

        fn host_of(&self, _: &str) -> Option<String> {
            Some(self.0.clone())
        }
    }

    fn recipe(name: &str, host: String) -> Kind {
        Kind {
            name: name.to_owned().into(),
            channel: format!("{name}-channel").into(),
            guarantee: Guarantee::AtMostOnce,
            destination: Destination::Service,
            secrets: vec![format!("{name}-token").into()],
            new_secret: None,
            key_window: KeyWindow { default_s: 60, allowed_s: 1..=60 },
            local_settings: vec![],
            ready_made: None,
            build: Arc::new(move |_| Ok(Box::new(Recipe(host.clone())))),
        }
    }

    #[test]
    fn a_driver_can_be_made_of_data_read_at_run_time() {
        let kind = recipe("letters", "post.example:25".to_owned());
        let draft = kind.draft("mine");
        assert_eq!((draft.driver.as_str(), draft.channel.as_str()), ("letters", "letters-channel"));
        assert_eq!(kind.key_window.of(&json!({})), Duration::from_secs(60));
        assert_eq!(kind.key_window.of(&json!({"key_window_s": 5})), Duration::from_secs(5));
        let egress = Egress::new(&EgressSettings::default()).unwrap();
        let built = |secret: &str| {
            let secrets = Secrets::from([(secret.to_owned(), Secret::new("x"))]);
            let (settings, guarantee, capture_fail_on) = (&json!({}), kind.guarantee, &FailOn::default());
            kind.build(&Parts { settings, secrets: &secrets, guarantee, egress: &egress, capture_fail_on })
        };
        assert_eq!(
            built("letters-token").ok().and_then(|driver| driver.host_of("")).as_deref(),
            Some("post.example:25")
        );
        assert!(built("other").err().unwrap().starts_with("secret: driver \"letters\" has none named \"other\""));
    }

    #[test]
    fn every_ready_made_provider_can_be_used() {
        let egress = Egress::new(&EgressSettings::default()).unwrap();
        for draft in [Occasion::NewDatabase, Occasion::FirstUse].into_iter().flat_map(ready_made) {
            draft.check().unwrap();
            let (settings, secrets, guarantee) = (&draft.settings, &Secrets::new(), draft.guarantee);
            let parts = Parts { settings, secrets, guarantee, egress: &egress, capture_fail_on: &FailOn::default() };
            assert!(kind(&draft.driver).unwrap().build(&parts).is_ok(), "{}", draft.name);
        }
    }
}
