//! The rules for configuring and testing providers that the API and the command line share.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use postcommit::{Recipient, channel_name};
use postcommit_channel::driver::{self, Destination, FailOn, Kind, MadeSecret, NewSecret, Parts, Recipe};
use postcommit_channel::egress::Egress;
use postcommit_channel::model::{
    self, ErrorClass, Guarantee, Link, PROVIDERS, Policy, Provider, ProviderChange, ProviderDraft,
};
use postcommit_channel::secret::{KeySource, Keyring, Secret, SecretError, Secrets};
use postcommit_engine::db::DbError;
use postcommit_engine::dispatch::{Tools, TrialContent, try_provider};
use postcommit_engine::store::{AuditEntry, Sealed, SealedWith, Store, masked};
use serde::Serialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::app::App;
use crate::auth::Caller;

/// The number of encrypted secrets that are tried with a key if the database has no fingerprint to compare.
const PROBED: i64 = 100;
/// The maximum number of tries of a change if concurrent changes interfere. Up to this many concurrent changes of one
/// provider all succeed.
const TRIES: usize = 64;

/// The reason why a provider was not created, changed, deleted or tested.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    /// A field is wrong. The text is the field's name and the problem.
    #[error("{0}")]
    Field(String),
    #[error("provider {0:?} already exists; change it instead")]
    Exists(String),
    /// The tenant already has as many providers as allowed.
    #[error("the tenant has {PROVIDERS} providers, which is the limit; delete a provider that is not needed")]
    TooMany,
    /// The change was made for another revision than the provider has now.
    #[error(
        "provider {name:?} was changed meanwhile and has revision {found}, not {asked}; read it again and send the \
         change for the new revision"
    )]
    Outdated { name: String, asked: i32, found: i32 },
    /// Every try of the change failed because of a concurrent change.
    #[error("other requests changed provider {0:?} {TRIES} times during this change; nothing was done, try again")]
    Overtaken(String),
    /// No provider has this name.
    #[error("there is no provider {0:?}; `postcommit providers list` lists them")]
    Unknown(String),
    /// The provider cannot be deleted, because deliveries wait for it. The number is their count.
    #[error("{1} deliveries wait for provider {0}; let them finish, cancel them, or pause the provider instead")]
    Waited(String, i64),
    /// The provider writes to inboxes. A test creates no delivery, and only a delivery can write to an inbox.
    #[error(
        "an in-app provider cannot be tested, because only a delivery writes to an inbox; enqueue a notification to \
         the user instead"
    )]
    InApp,
    /// The driver could not be built from the provider's settings, so `providers test` sent nothing.
    #[error("{0}")]
    Untestable(String),
    /// The key on this machine is not the key that encrypts the secrets of this installation.
    #[error(
        "{0}: the secrets of this installation are encrypted with another key, and the server could not decrypt a \
         secret that is encrypted with this one; nothing was changed. Run the command on the server's host, or name \
         the server's key by secrets.key_file or secrets.key. If that key is lost, add --new-secrets-key, and then set \
         the secrets of every other provider again"
    )]
    OtherKey(String),
    /// With `--new-secrets-key`: a concurrent command has already replaced the lost key by another one.
    #[error(
        "{0}: another command replaced the key of this installation's secrets while this one ran; nothing was changed. \
         Use the key of the other command: run this command on its host, or name that key by secrets.key_file or \
         secrets.key"
    )]
    KeyReplaced(String),
    /// The key that encrypts secrets cannot be read or is invalid.
    #[error(transparent)]
    Secrets(#[from] SecretError),
    #[error(transparent)]
    Database(#[from] DbError),
}

/// The fields to set. Other fields keep their value, or get the driver's default if the provider is new.
#[derive(Default)]
pub struct Change {
    pub channel: Option<String>,
    pub settings: Map<String, Value>,
    pub secrets: Secrets,
    pub guarantee: Option<String>,
    pub policy: Option<Value>,
    pub concurrency: Option<i32>,
    pub timeout_ms: Option<i32>,
    pub is_default: Option<bool>,
    /// Sends per second. `Some(None)` removes the rate limit.
    pub rate_per_s: Option<Option<f64>>,
    /// The number of sends without a wait after an idle time. `Some(None)` removes the burst.
    pub burst: Option<Option<i32>>,
    pub breaker_failures: Option<i32>,
    pub breaker_cool_down_s: Option<i32>,
    /// The provider that takes over. `Some(None)` removes it.
    pub failover: Option<Option<String>>,
    pub failover_after_s: Option<i32>,
    pub enabled: Option<bool>,
}

/// The maximum number of characters of the reason of a pause.
const REASON_CHARS: usize = 255;

/// Checks the reason of a pause.
pub fn check_reason(reason: &str) -> Result<(), ProviderError> {
    let length = reason.chars().count();
    if (1..=REASON_CHARS).contains(&length) && !reason.contains('\0') {
        return Ok(());
    }
    Err(ProviderError::Field(format!("reason: has {length} characters; 1 to {REASON_CHARS} are allowed, and no NUL")))
}

/// The names of the secrets that a provider has. `None` if they cannot be decrypted here.
pub fn stored_secrets(keys: &KeySource, provider: &Provider) -> Option<BTreeSet<String>> {
    let Some(sealed) = &provider.secrets else { return Some(BTreeSet::new()) };
    let opened = keys.existing().and_then(|ring| ring.open(sealed, provider.tenant, &provider.name));
    opened.ok().map(|secrets| secrets.into_keys().collect())
}

/// Returns the workshop of a caller of the API or the pages, who is not on the server's own machine.
pub fn workshop<'a>(app: &'a App, store: &'a Store, caller: &Caller) -> Workshop<'a> {
    let (keys, egress) = (&app.tools.keys, &app.tools.egress);
    Workshop { store, installation: caller.store_of_all(app), keys, egress, is_local: false, new_key: false }
}

/// The dependencies for creating and changing providers.
pub struct Workshop<'a> {
    pub store: &'a Store,
    /// The store of all tenants, because one key encrypts the secrets of all tenants. Its changes have the same actor
    /// as those of `store`.
    pub installation: Store,
    pub keys: &'a KeySource,
    pub egress: &'a Egress,
    /// Whether the operator works on the server's own machine, by the command line. Only then may the settings change
    /// that name files and programs of that machine.
    pub is_local: bool,
    /// Whether a new key may replace the previous key, because the previous key is lost.
    pub new_key: bool,
}

impl Workshop<'_> {
    /// Creates a provider. If its driver generates a secret and none is given, the new secret is returned. A secret
    /// without a public half is shown only this once.
    pub async fn create(
        &self,
        tenant: i32,
        name: &str,
        driver: &str,
        mut change: Change,
    ) -> Result<Option<MadeSecret>, ProviderError> {
        let kind = driver::kind(driver).map_err(ProviderError::Field)?;
        self.check_local(driver, &change)?;
        let made = add_made_secret(&kind, &mut change);
        for _ in 0..TRIES {
            let known = self.check_new(tenant, name).await?;
            let mut draft = laid_over(kind.draft(name), &change)?;
            self.check(&draft, &change.secrets)?;
            check_chains(&draft, &links(&known))?;
            let mut key = None;
            if !change.secrets.is_empty() {
                let (ring, with) = self.sealing().await?;
                draft.secrets = Some(ring.seal(&change.secrets, tenant, name));
                key = Some(with);
            }
            // By default, the first provider of a channel becomes its default. It does not replace a default provider
            // that was created concurrently.
            let is_first = change.is_default.is_none()
                && !known.iter().any(|other| other.channel == draft.channel && other.is_default);
            draft.is_default |= is_first;
            let is_made = match (&key, is_first) {
                (Some(key), _) => self.installation.create_sealed_provider(tenant, &draft, !is_first, key).await?,
                (None, true) => self.store.create_first_provider(tenant, &draft).await?,
                (None, false) => self.store.create_provider(tenant, &draft).await?,
            };
            if is_made {
                return Ok(made);
            }
            self.check_not_replaced(key.as_ref()).await?;
        }
        Err(ProviderError::Overtaken(name.to_owned()))
    }

    /// Changes the given fields. With a revision, it does so only if the provider still has that revision. Concurrent
    /// changes of other fields are kept. Returns false and writes nothing if no field differs.
    pub async fn update(
        &self,
        tenant: i32,
        name: &str,
        revision: Option<i32>,
        change: &Change,
    ) -> Result<bool, ProviderError> {
        for _ in 0..TRIES {
            let from = self.find(tenant, name).await?;
            if let Some(asked) = revision.filter(|asked| *asked != from.revision) {
                return Err(ProviderError::Outdated { name: name.to_owned(), asked, found: from.revision });
            }
            let (change, key) = self.change_of(from, change).await?;
            if change.is_empty() {
                return Ok(false);
            }
            if (&change.from.failover, &change.from.channel) != (&change.to.failover, &change.to.channel) {
                check_chains(&change.to, &links(&self.store.providers_of(tenant).await?))?;
            }
            let is_changed = match &key {
                Some(key) => self.installation.update_sealed_provider(&change, key).await?,
                None => self.store.update_provider(&change).await?,
            };
            if is_changed {
                return Ok(true);
            }
            self.check_not_replaced(key.as_ref()).await?;
        }
        Err(ProviderError::Overtaken(name.to_owned()))
    }

    /// Returns the change, and the key if the change encrypts secrets.
    async fn change_of(
        &self,
        from: Provider,
        change: &Change,
    ) -> Result<(ProviderChange, Option<SealedWith>), ProviderError> {
        let (mut change, secrets) = self.checked_change(from, change)?;
        let mut key = None;
        if !change.secrets.is_empty() {
            let (ring, with) = self.sealing().await?;
            change.to.secrets = Some(ring.seal(&secrets, change.from.tenant, &change.from.name));
            key = Some(with);
        }
        Ok((change, key))
    }

    /// Returns the change before secrets are encrypted, and all secrets of the provider.
    fn checked_change(&self, from: Provider, change: &Change) -> Result<(ProviderChange, Secrets), ProviderError> {
        self.check_local(&from.driver, change)?;
        let mut secrets = self.opened(&from, &change.secrets)?;
        self.check_routes(&from, change, &secrets)?;
        let is_new = |(name, value): &(&String, &Secret)| secrets.get(*name) != Some(*value);
        let anew: Vec<String> = change.secrets.iter().filter(is_new).map(|(name, _)| name.clone()).collect();
        secrets.extend(change.secrets.clone());
        let to = laid_over(from.draft.clone(), change)?;
        self.check(&to, &secrets)?;
        Ok((ProviderChange { from, to, secrets: anew }, secrets))
    }

    /// Refuses to send stored secrets to a new destination. A caller of the API may change a provider but not read its
    /// secrets, so a change of the destination must give the secrets again.
    fn check_routes(&self, from: &Provider, change: &Change, stored: &Secrets) -> Result<(), ProviderError> {
        if self.is_local || stored.keys().all(|name| change.secrets.contains_key(name)) {
            return Ok(());
        }
        let routes = driver::kind(&from.driver).map(|kind| kind.secret_routes.clone()).unwrap_or_default();
        let is_moved = |(name, value): &(&String, &Value)| {
            routes.iter().any(|route| route == *name) && from.settings.get(*name).unwrap_or(&Value::Null) != *value
        };
        match change.settings.iter().find(is_moved) {
            Some((name, _)) => Err(ProviderError::Field(format!(
                "settings.{name}: decides where the secrets are sent; give the secrets again in the same change"
            ))),
            None => Ok(()),
        }
    }

    /// Checks a new provider, or the change of one, as [`Workshop::create`] and [`Workshop::update`] do before they
    /// encrypt and write. `rehearsed` holds the providers that earlier calls checked; this provider is added to it.
    pub async fn rehearse(
        &self,
        tenant: i32,
        name: &str,
        new_driver: Option<&str>,
        mut change: Change,
        rehearsed: &mut BTreeMap<String, Link>,
    ) -> Result<(), ProviderError> {
        let draft = match new_driver {
            None => self.checked_change(self.find(tenant, name).await?, &change)?.0.to,
            Some(driver) => {
                let kind = driver::kind(driver).map_err(ProviderError::Field)?;
                self.check_local(driver, &change)?;
                add_made_secret(&kind, &mut change);
                self.check_new(tenant, name).await?;
                let draft = laid_over(kind.draft(name), &change)?;
                self.check(&draft, &change.secrets)?;
                draft
            }
        };
        let stored = links(&self.store.providers_of(tenant).await?);
        let others = stored.into_iter().filter(|link| !rehearsed.contains_key(&link.name));
        check_chains(&draft, &others.chain(rehearsed.values().cloned()).collect::<Vec<_>>())?;
        rehearsed.insert(name.to_owned(), Link::from(&draft));
        Ok(())
    }

    /// Refuses a name that is taken, and a provider beyond the limit. Returns the tenant's providers.
    async fn check_new(&self, tenant: i32, name: &str) -> Result<Vec<Provider>, ProviderError> {
        let known = self.store.providers_of(tenant).await?;
        if known.iter().any(|provider| provider.name == name) {
            return Err(ProviderError::Exists(name.to_owned()));
        }
        if known.len() >= PROVIDERS {
            return Err(ProviderError::TooMany);
        }
        Ok(known)
    }

    /// The key to encrypt with. It must be the key that already encrypts this installation's secrets, because the
    /// server decrypts all of them with one key. A missing key is created only if there are no encrypted secrets yet or
    /// the lost key is to be replaced. The write of the secrets checks again that the installation has no other key,
    /// because another process may concurrently begin with one.
    async fn sealing(&self) -> Result<(Keyring, SealedWith), ProviderError> {
        let (known, sealed) = (self.installation.secret_key().await?, self.installation.sealed(PROBED).await?);
        let may_begin = sealed.is_empty() || self.new_key;
        let ring = match self.keys.existing() {
            Err(SecretError::File(_)) if may_begin => self.keys.or_new()?,
            Err(SecretError::File(problem)) => return Err(ProviderError::OtherKey(problem)),
            ring => ring?.led_by(known.as_ref()),
        };
        // Older versions stored no fingerprint. In that case the key is right if it decrypts any of the secrets.
        let opens = |one: &Sealed| ring.open(&one.secrets, one.tenant, &one.provider).is_ok();
        let is_same = known.as_ref().map_or_else(|| sealed.iter().any(opens), |known| known == ring.fingerprint());
        if !is_same && !may_begin {
            return Err(ProviderError::OtherKey(self.keys.to_string()));
        }
        let with = SealedWith { fingerprint: ring.fingerprint().clone(), known, may_follow: is_same || self.new_key };
        Ok((ring, with))
    }

    /// Refuses to replace a key that a concurrent command has just put in place of the lost one. Replacing it would
    /// make the secrets useless that the other command encrypted.
    async fn check_not_replaced(&self, key: Option<&SealedWith>) -> Result<(), ProviderError> {
        let Some(key) = key.filter(|_| self.new_key) else { return Ok(()) };
        let known = self.installation.secret_key().await?;
        match known == key.known || known.as_ref() == Some(&key.fingerprint) {
            true => Ok(()),
            false => Err(ProviderError::KeyReplaced(self.keys.to_string())),
        }
    }

    /// Decrypts the current secrets of the provider.
    fn opened(&self, known: &Provider, given: &Secrets) -> Result<Secrets, ProviderError> {
        let Some(sealed) = &known.secrets else { return Ok(Secrets::new()) };
        match self.keys.existing().and_then(|ring| ring.open(sealed, known.tenant, &known.name)) {
            // All secrets get new values, so the old secrets are not needed, even if their key is lost.
            Err(_)
                if driver::kind(&known.driver)
                    .is_ok_and(|kind| kind.secrets.iter().all(|name| given.contains_key(name.as_ref()))) =>
            {
                Ok(Secrets::new())
            }
            opened => Ok(opened?),
        }
    }

    /// Deletes a provider if no delivery waits for it.
    pub async fn delete(&self, tenant: i32, name: &str) -> Result<(), ProviderError> {
        match self.store.delete_provider(tenant, name).await? {
            Some(0) => Ok(()),
            Some(waiting) => Err(ProviderError::Waited(name.to_owned(), waiting)),
            None => Err(ProviderError::Unknown(name.to_owned())),
        }
    }

    pub async fn find(&self, tenant: i32, name: &str) -> Result<Provider, ProviderError> {
        self.store.provider(tenant, name).await?.ok_or_else(|| ProviderError::Unknown(name.to_owned()))
    }

    /// Checks the limits, and lets the driver check its settings.
    fn check(&self, draft: &ProviderDraft, secrets: &Secrets) -> Result<(), ProviderError> {
        draft.check().map_err(ProviderError::Field)?;
        let (settings, guarantee) = (&draft.settings, draft.guarantee);
        let parts = Parts { settings, secrets, guarantee, egress: self.egress, capture_fail_on: &FailOn::default() };
        let built = driver::kind(&draft.driver).and_then(|kind| kind.build(&parts));
        built.map(drop).map_err(ProviderError::Field)
    }

    /// Refuses settings that only an operator on the server's own machine may change.
    fn check_local(&self, driver: &str, change: &Change) -> Result<(), ProviderError> {
        let kind = driver::kind(driver).map_err(ProviderError::Field)?;
        let given = kind.local_settings.iter().find(|local| change.settings.contains_key(local.name.as_ref()));
        match given.filter(|_| !self.is_local) {
            Some(local) => Err(ProviderError::Field(format!(
                "settings.{}: {}; it can only be set by `postcommit providers` on the server's host",
                local.name, local.reason
            ))),
            None => Ok(()),
        }
    }
}

fn links(providers: &[Provider]) -> Vec<Link> {
    providers.iter().map(|provider| Link::from(&provider.draft)).collect()
}

/// Refuses a failover of a provider of inboxes, and a chain of failovers that is not allowed.
fn check_chains(draft: &ProviderDraft, others: &[Link]) -> Result<(), ProviderError> {
    if draft.failover.is_some() && driver::destination(&draft.driver) == Destination::Inbox {
        let problem = "failover: a provider of inboxes has none, because it is the destination itself; remove it";
        return Err(ProviderError::Field(problem.into()));
    }
    model::check_chains(&Link::from(draft), others).map_err(ProviderError::Field)
}

/// The recipe of a provider, if its driver is described by one.
pub fn recipe_of(provider: &Provider) -> Option<Arc<Recipe>> {
    driver::kind(&provider.driver).ok()?.recipe.clone()
}

/// The text of a test message if none is given.
pub const TEST_TEXT: &str = "This is a test of the provider.";
/// The maximum number of bytes of a test message's text.
const TEST_TEXT_BYTES: usize = 1000;
/// The maximum number of bytes of a test message's channel data.
const TEST_DATA_BYTES: usize = 65_536;

/// The outcome of a provider test.
#[derive(Debug, Serialize, ToSchema)]
pub struct TestResult {
    /// The outcome: sent, delivered, deferred, rejected or unclear.
    pub outcome: &'static str,
    /// Whether a driver for development recorded the message instead of sending it.
    pub captured: bool,
    /// The code of the error.
    pub code: Option<String>,
    /// The class of the error. The classes are the same for all providers.
    pub error_class: Option<&'static str>,
    /// A description of the error.
    pub detail: Option<String>,
    /// The provider's own id of the message.
    pub provider_ref: Option<String>,
    /// The request as text, without secrets. Absent if the driver makes none.
    pub request: Option<String>,
    /// The beginning of the provider's answer, redacted.
    pub excerpt: Option<String>,
    /// The duration of the test, in milliseconds.
    pub latency_ms: u64,
}

/// Sends a test message with this text as [`test_with`] does.
pub async fn test(
    tools: &Tools,
    store: &Store,
    provider: &Provider,
    tenant_name: &str,
    address: &str,
    text: &str,
    data: Option<&Value>,
) -> Result<TestResult, ProviderError> {
    if text.len() > TEST_TEXT_BYTES || text.contains('\0') {
        let problem = format!("text: has {} bytes; at most {TEST_TEXT_BYTES} are allowed, and no NUL", text.len());
        return Err(ProviderError::Field(problem));
    }
    if data.is_some_and(|data| data.to_string().len() > TEST_DATA_BYTES) {
        return Err(ProviderError::Field(format!("data: has more than {TEST_DATA_BYTES} bytes as JSON")));
    }
    let (subject, text) = (Some("Test".to_owned()), Some(text.to_owned()));
    let content = TrialContent { subject, text, html: None, data: data.cloned() };
    test_with(tools, store, provider, tenant_name, address, &content).await
}

/// Sends a test message immediately, without the queue, and writes the result to the audit log. `store` carries the
/// actor for the audit log.
pub async fn test_with(
    tools: &Tools,
    store: &Store,
    provider: &Provider,
    tenant_name: &str,
    address: &str,
    content: &TrialContent,
) -> Result<TestResult, ProviderError> {
    if driver::destination(&provider.driver) == Destination::Inbox {
        return Err(ProviderError::InApp);
    }
    Recipient::at(&provider.name, address)
        .check()
        .map_err(|problem| ProviderError::Field(format!("address: {problem}")))?;
    let trial =
        try_provider(tools, provider, tenant_name, address, content).await.map_err(ProviderError::Untestable)?;
    let (error_class, captured) = (trial.report.class().map(ErrorClass::name), trial.report.captured);
    let (outcome, evidence) = (trial.report.outcome, trial.report.evidence);
    let result = TestResult {
        outcome: outcome.name(),
        captured,
        code: outcome.code().map(str::to_owned),
        error_class,
        detail: evidence.detail,
        provider_ref: evidence.provider_ref,
        request: trial.request,
        excerpt: evidence.excerpt,
        latency_ms: u64::try_from(trial.latency.as_millis()).unwrap_or(u64::MAX),
    };
    // The audit log gets no excerpt, because some drivers return the message itself with the full address.
    let details = json!({
        "address": masked(address), "outcome": result.outcome, "code": result.code, "error_class": result.error_class,
        "detail": result.detail, "provider_ref": result.provider_ref, "latency_ms": result.latency_ms,
    });
    store.note(AuditEntry::new(provider.tenant, "provider.test", provider.name.as_str()).details(details)).await?;
    Ok(result)
}

/// Adds the secret that the driver generates for a new provider, and its public half, if neither is given.
fn add_made_secret(kind: &Kind, change: &mut Change) -> Option<MadeSecret> {
    let NewSecret { name, make, public, .. } = kind.new_secret.as_ref().filter(|_| change.secrets.is_empty())?;
    if public.as_ref().is_some_and(|name| change.settings.contains_key(name.as_ref())) {
        return None;
    }
    let made = make();
    change.secrets.insert(name.clone().into_owned(), made.secret.clone());
    if let (Some(name), Some(value)) = (public, &made.public) {
        change.settings.insert(name.clone().into_owned(), value.as_str().into());
    }
    Some(made)
}

/// Applies the change to the draft, except for secrets.
fn laid_over(mut draft: ProviderDraft, change: &Change) -> Result<ProviderDraft, ProviderError> {
    for (name, value) in &change.settings {
        // The value null removes a setting.
        match (value, draft.settings.as_object_mut()) {
            (Value::Null, Some(settings)) => drop(settings.remove(name)),
            (value, Some(settings)) => drop(settings.insert(name.clone(), value.clone())),
            (value, None) => draft.settings = json!({ name: value }),
        }
    }
    if let Some(name) = &change.guarantee {
        draft.guarantee = Guarantee::from_name(name).map_err(ProviderError::Field)?;
    }
    if let Some(policy) = &change.policy {
        draft.policy = Policy::from_json(policy).map_err(|e| ProviderError::Field(e.to_string()))?;
    }
    draft.channel = change.channel.as_deref().map_or(draft.channel, |channel| channel_name(channel).to_owned());
    draft.concurrency = change.concurrency.unwrap_or(draft.concurrency);
    draft.timeout_ms = change.timeout_ms.unwrap_or(draft.timeout_ms);
    draft.is_default = change.is_default.unwrap_or(draft.is_default);
    draft.enabled = change.enabled.unwrap_or(draft.enabled);
    draft.rate_per_s = change.rate_per_s.unwrap_or(draft.rate_per_s);
    draft.burst = change.burst.unwrap_or(draft.burst);
    draft.breaker_failures = change.breaker_failures.unwrap_or(draft.breaker_failures);
    draft.breaker_cool_down_s = change.breaker_cool_down_s.unwrap_or(draft.breaker_cool_down_s);
    draft.failover = change.failover.clone().unwrap_or(draft.failover);
    draft.failover_after_s = change.failover_after_s.unwrap_or(draft.failover_after_s);
    Ok(draft)
}
