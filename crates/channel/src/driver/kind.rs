//! The properties of each driver that are known without building one. Other modules use them instead of comparing
//! driver names.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};
use std::time::Duration;

use serde_json::{Value, json};

use super::recipe::SHIPPED;
use super::{
    Callback, Driver, Parts, Recipe, capture, in_app, mqtt, nats, rabbitmq, redis_streams, smtp, web_push, webhook,
};
use crate::model::{
    BREAKER_COOL_DOWN_S, BREAKER_FAILURES, FAILOVER_AFTER_S, Guarantee, Policy, Provider, ProviderDraft, TIMEOUT_MS,
};
use crate::secret::Secret;

/// A string that is compiled in or was read at run time.
type Text = Cow<'static, str>;

/// Builds a driver. The closure may hold data that was read at run time.
pub(super) type Build = Arc<dyn Fn(&Parts<'_>) -> Result<Box<dyn Driver>, String> + Send + Sync>;

/// A driver that providers can be configured with. It consists of data and closures, so that a driver could also be
/// described by a file that is read at run time.
pub struct Kind {
    /// The name of the driver in a provider's configuration.
    pub name: Text,
    /// The default channel of its providers. `*` means every channel.
    pub channel: Text,
    /// The default guarantee: whether a send with an unclear outcome is repeated.
    pub guarantee: Guarantee,
    /// The default retry policy.
    pub policy: Policy,
    /// The destination of the driver's messages.
    pub destination: Destination,
    /// The names of the secrets that the driver takes.
    pub secrets: Vec<Text>,
    /// The settings that decide where the secrets are sent.
    pub secret_routes: Vec<Text>,
    /// The secret that is generated for a provider that is configured without one.
    pub new_secret: Option<NewSecret>,
    /// The time for which a receiver remembers the key of a delivery.
    pub key_window: KeyWindow,
    /// Settings that only an operator on the server's own machine may change.
    pub local_settings: Vec<LocalSetting>,
    /// The provider that is created automatically, if the driver has one.
    pub ready_made: Option<ReadyMade>,
    /// Reads the callbacks of this driver's providers. `None` if the service sends no callbacks.
    pub callback: Option<Arc<dyn Callback>>,
    /// The recipe, if the driver is described by one.
    pub recipe: Option<Arc<Recipe>>,
    pub(super) build: Build,
}

/// The destination of a driver's messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination {
    /// A service outside of this installation.
    Service,
    /// An inbox in our own database. The transaction that settles the delivery writes the message.
    Inbox,
    /// A record of the messages, which are not sent.
    Record,
}

/// A secret that is generated for a new provider.
pub struct NewSecret {
    /// The name of the secret.
    pub name: Text,
    /// Generates the secret.
    pub make: fn() -> MadeSecret,
    /// The setting that has the public half of the secret, if the secret has one.
    pub public: Option<Text>,
    /// Tells the operator what the secret, or its public half, is for.
    pub about: Text,
}

/// A generated secret.
#[derive(Clone)]
pub struct MadeSecret {
    pub secret: Secret,
    /// The public half, which is a setting of the provider. If there is one, it is shown to the operator instead of the
    /// secret, and stays visible. Otherwise the secret is shown once.
    pub public: Option<String>,
}

/// A setting that only an operator on the server's own machine may change.
pub struct LocalSetting {
    pub name: Text,
    /// The reason for the restriction, as the end of a sentence that begins with the setting's name.
    pub reason: Text,
}

/// The provider of a driver that is created automatically. It has the driver's name and is the default of its channel.
pub struct ReadyMade {
    /// The occasion on which the provider is created.
    pub occasion: Occasion,
    pub settings: Value,
    /// The maximum number of concurrent sends in one server process.
    pub concurrency: i32,
}

/// The occasion on which a provider is created automatically.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Occasion {
    /// `serve` creates a new embedded database.
    NewDatabase,
    /// A notification needs the provider's channel for the first time.
    FirstUse,
}

/// The time for which a receiver remembers the key of a delivery. The setting `key_window_s` can override the default.
#[derive(Debug, Clone)]
pub struct KeyWindow {
    /// The default window, in seconds.
    pub default_s: u64,
    /// The allowed range of the setting `key_window_s`, in seconds.
    pub allowed_s: RangeInclusive<u64>,
}

impl KeyWindow {
    /// A window with a default of one day.
    pub(super) const fn day(allowed_s: RangeInclusive<u64>) -> Self {
        Self { default_s: 86_400, allowed_s }
    }

    /// The window that applies with these settings.
    pub fn of(&self, settings: &Value) -> Duration {
        Duration::from_secs(settings.get("key_window_s").and_then(Value::as_u64).unwrap_or(self.default_s))
    }

    /// Returns an error if the setting is out of range.
    pub(super) fn check(&self, seconds: u64) -> Result<(), String> {
        if self.allowed_s.contains(&seconds) {
            return Ok(());
        }
        let (least, most) = (self.allowed_s.start(), self.allowed_s.end());
        Err(format!("settings.key_window_s: is {seconds}; {least} to {most} are allowed"))
    }
}

impl Kind {
    /// A driver that sends to a service, on the channel with its name: with the default retry policy, and without
    /// secrets, local settings, a ready-made provider or callbacks.
    pub(super) fn new(
        name: impl Into<Text>,
        guarantee: Guarantee,
        key_window: KeyWindow,
        build: impl Fn(&Parts<'_>) -> Result<Box<dyn Driver>, String> + Send + Sync + 'static,
    ) -> Self {
        let name = name.into();
        Self {
            channel: name.clone(),
            name,
            guarantee,
            policy: Policy::default(),
            destination: Destination::Service,
            secrets: vec![],
            secret_routes: vec![],
            new_secret: None,
            key_window,
            local_settings: vec![],
            ready_made: None,
            callback: None,
            recipe: None,
            build: Arc::new(build),
        }
    }

    /// A provider with the driver's default values. It is not the default of its channel.
    pub fn draft(&self, name: &str) -> ProviderDraft {
        ProviderDraft {
            name: name.to_owned(),
            channel: self.channel.clone().into_owned(),
            driver: self.name.clone().into_owned(),
            settings: json!({}),
            secrets: None,
            guarantee: self.guarantee,
            policy: self.policy.clone(),
            concurrency: 16,
            timeout_ms: TIMEOUT_MS,
            breaker_failures: BREAKER_FAILURES,
            breaker_cool_down_s: BREAKER_COOL_DOWN_S,
            failover: None,
            failover_after_s: FAILOVER_AFTER_S,
            is_default: false,
            enabled: true,
            rate_per_s: self.recipe.as_ref().and_then(|recipe| recipe.rate_per_s),
            burst: self.recipe.as_ref().and_then(|recipe| recipe.burst),
        }
    }

    /// Checks the settings and the secrets and builds the driver.
    pub fn build(&self, parts: &Parts<'_>) -> Result<Box<dyn Driver>, String> {
        if let Some(unknown) = parts.secrets.keys().find(|name| !self.secrets.iter().any(|known| known == *name)) {
            return Err(format!(
                "secret: driver {:?} has no secret named {unknown:?}; allowed are {:?}",
                self.name, self.secrets
            ));
        }
        (self.build)(parts)
    }
}

/// The compiled drivers, in contrast to recipes.
static COMPILED: LazyLock<[Arc<Kind>; 9]> = LazyLock::new(|| {
    [
        capture::kind(),
        in_app::kind(),
        mqtt::kind(),
        nats::kind(),
        rabbitmq::kind(),
        redis_streams::kind(),
        smtp::kind(),
        web_push::kind(),
        webhook::kind(),
    ]
    .map(Arc::new)
});

/// The drivers of the recipes that an operator added.
static ADDED: RwLock<BTreeMap<String, Arc<Kind>>> = RwLock::new(BTreeMap::new());

/// The names of all drivers, sorted.
pub fn names() -> Vec<String> {
    let shipped = SHIPPED.iter().map(|shipped| shipped.name.to_owned());
    let added = ADDED.read().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect::<Vec<_>>();
    let compiled = COMPILED.iter().map(|kind| kind.name.clone().into_owned());
    compiled.chain(shipped).chain(added).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Finds the driver with this name.
pub fn kind(name: &str) -> Result<Arc<Kind>, String> {
    if let Some(kind) = COMPILED.iter().find(|kind| kind.name == name) {
        return Ok(Arc::clone(kind));
    }
    if let Some(shipped) = SHIPPED.iter().find(|shipped| shipped.name == name) {
        return shipped.kind();
    }
    let added = ADDED.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned();
    added.ok_or_else(|| format!("driver: {name:?} is not known; allowed are {}", names().join(", ")))
}

/// Adds the recipe of an operator.
/// # Errors
/// Another driver has this name.
pub fn add_recipe(recipe: Recipe) -> Result<(), String> {
    let name = recipe.name.clone();
    let mut added = ADDED.write().unwrap_or_else(PoisonError::into_inner);
    let is_taken = COMPILED.iter().any(|kind| kind.name == name) || SHIPPED.iter().any(|shipped| shipped.name == name);
    if is_taken || added.contains_key(&name) {
        return Err(format!("name: another driver is named {name:?}; choose another name"));
    }
    added.insert(name, Arc::new(recipe.into_kind()));
    Ok(())
}

/// The destination of a driver's messages. An unknown driver counts as a service.
pub fn destination(driver: &str) -> Destination {
    kind(driver).map_or(Destination::Service, |kind| kind.destination)
}

/// The time for which the provider remembers the key of a delivery. If the driver of the provider is unknown, the
/// setting `key_window_s` decides, or else it is one day.
pub fn key_window(provider: &Provider) -> Duration {
    match kind(&provider.driver) {
        Ok(kind) => kind.key_window.of(&provider.settings),
        Err(_) => KeyWindow::day(0..=u64::MAX).of(&provider.settings),
    }
}

/// The providers that are created automatically on this occasion.
pub fn ready_made(occasion: Occasion) -> Vec<ProviderDraft> {
    let draft = |kind: &Arc<Kind>| {
        let made = kind.ready_made.as_ref().filter(|made| made.occasion == occasion)?;
        let (settings, concurrency) = (made.settings.clone(), made.concurrency);
        Some(ProviderDraft { settings, concurrency, is_default: true, ..kind.draft(&kind.name) })
    };
    COMPILED.iter().filter_map(draft).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{FailOn, Message, Sending};
    use crate::egress::{Egress, EgressSettings};
    use crate::model::{Outcome, Report};
    use crate::secret::Secrets;

    /// A driver that is described only by data.
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
        let window = KeyWindow { default_s: 60, allowed_s: 1..=60 };
        Kind {
            channel: format!("{name}-channel").into(),
            secrets: vec![format!("{name}-token").into()],
            ..Kind::new(name.to_owned(), Guarantee::AtMostOnce, window, move |_| Ok(Box::new(Recipe(host.clone()))))
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
        assert!(built("other").err().unwrap().starts_with("secret: driver \"letters\" has no secret named \"other\""));
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
