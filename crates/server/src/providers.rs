//! The rules for configuring and testing providers that the API and the command line share.

use postcommit::Recipient;
use postcommit_channel::driver::{self, Destination, FailOn, NewSecret, Parts};
use postcommit_channel::egress::Egress;
use postcommit_channel::model::{Guarantee, PROVIDERS, Policy, Provider, ProviderChange, ProviderDraft};
use postcommit_channel::secret::{KeySource, Secret, SecretError, Secrets};
use postcommit_engine::db::DbError;
use postcommit_engine::dispatch::{Tools, try_provider};
use postcommit_engine::store::{AuditEntry, Store, masked};
use serde::Serialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

/// How often a change is retried over concurrent changes. This many concurrent changes of one provider all succeed.
const TRIES: usize = 64;

/// Why a provider was not made, changed, removed or tested.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    /// A field: its name, then what is wrong.
    #[error("{0}")]
    Field(String),
    /// The name is taken.
    #[error("provider {0:?} exists; update it instead")]
    Exists(String),
    /// The tenant has the most providers allowed.
    #[error("the tenant has {PROVIDERS} providers, which is the most it may have; delete one that is not needed")]
    TooMany,
    /// The change names another revision than the provider has.
    #[error(
        "provider {name:?} has revision {found} by now, not {asked}; read it again, and send the change for that revision"
    )]
    Outdated { name: String, asked: i32, found: i32 },
    /// Concurrent changes won every time.
    #[error("others changed provider {0:?} {TRIES} times while this was to be done; nothing was done, try again")]
    Overtaken(String),
    /// There is no provider of that name.
    #[error("there is no provider {0:?}")]
    Unknown(String),
    /// This many deliveries wait for it.
    #[error("{1} deliveries wait for provider {0}; let them finish, cancel them, or pause it instead")]
    Waited(String, i64),
    /// A test makes no delivery, and a message in an inbox is written by a delivery.
    #[error("an in-app message is written by the delivery that brings it; enqueue one to the user instead")]
    InApp,
    /// No driver could be made to test the provider.
    #[error("{0}")]
    Untestable(String),
    /// The key that seals secrets.
    #[error(transparent)]
    Secrets(#[from] SecretError),
    /// The database.
    #[error(transparent)]
    Database(#[from] DbError),
}

/// What to set; the rest keeps its value, or the driver's default.
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
    /// Sends per second and burst; `Some(None)` removes the limit.
    pub rate_per_s: Option<Option<f64>>,
    pub burst: Option<Option<i32>>,
    pub enabled: Option<bool>,
}

/// What providers are made and changed with.
pub struct Workshop<'a> {
    pub store: &'a Store,
    pub keys: &'a KeySource,
    pub egress: &'a Egress,
    /// Whether the operator is on the server's own machine.
    pub is_local: bool,
}

impl Workshop<'_> {
    /// Makes a provider. If its driver makes a secret and none is given, the new secret is returned this once.
    pub async fn create(
        &self,
        tenant: i32,
        name: &str,
        driver: &str,
        mut change: Change,
    ) -> Result<Option<Secret>, ProviderError> {
        let kind = driver::kind(driver).map_err(ProviderError::Field)?;
        self.check_local(driver, &change)?;
        let new_secret = kind.new_secret.as_ref().filter(|_| change.secrets.is_empty());
        let made = new_secret.map(|NewSecret { name, make }| (name.clone().into_owned(), make()));
        change.secrets.extend(made.clone());
        for _ in 0..TRIES {
            let known = self.store.providers_of(tenant).await?;
            if known.iter().any(|provider| provider.name == name) {
                return Err(ProviderError::Exists(name.to_owned()));
            }
            if known.len() >= PROVIDERS {
                return Err(ProviderError::TooMany);
            }
            let mut draft = laid_over(kind.draft(name), &change)?;
            self.check(&draft, &change.secrets)?;
            if !change.secrets.is_empty() {
                draft.secrets = Some(self.keys.or_new()?.seal(&change.secrets, tenant, name));
            }
            // Unless told otherwise, the first provider of its channel is the default. It does not replace a default
            // made meanwhile.
            let is_first = change.is_default.is_none()
                && !known.iter().any(|other| other.channel == draft.channel && other.is_default);
            draft.is_default |= is_first;
            let is_made = match is_first {
                true => self.store.create_first_provider(tenant, &draft).await?,
                false => self.store.create_provider(tenant, &draft).await?,
            };
            if is_made {
                return Ok(made.map(|(_, secret)| secret));
            }
        }
        Err(ProviderError::Overtaken(name.to_owned()))
    }

    /// Changes what is given; with a revision, only if the provider still has it. Concurrent changes of other fields
    /// are kept. False when nothing differs: then nothing is written.
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
            let change = self.change_of(from, change)?;
            if change.is_empty() {
                return Ok(false);
            }
            if self.store.update_provider(&change).await? {
                return Ok(true);
            }
        }
        Err(ProviderError::Overtaken(name.to_owned()))
    }

    fn change_of(&self, from: Provider, change: &Change) -> Result<ProviderChange, ProviderError> {
        self.check_local(&from.driver, change)?;
        let mut secrets = self.opened(&from, &change.secrets)?;
        let is_new = |(name, value): &(&String, &Secret)| secrets.get(*name) != Some(*value);
        let anew: Vec<String> = change.secrets.iter().filter(is_new).map(|(name, _)| name.clone()).collect();
        secrets.extend(change.secrets.clone());
        let mut to = laid_over(from.clone().into(), change)?;
        self.check(&to, &secrets)?;
        if !anew.is_empty() {
            to.secrets = Some(self.keys.or_new()?.seal(&secrets, from.tenant, &from.name));
        }
        Ok(ProviderChange { from, to, secrets: anew })
    }

    /// The secrets it has now.
    fn opened(&self, known: &Provider, given: &Secrets) -> Result<Secrets, ProviderError> {
        let Some(sealed) = &known.secrets else { return Ok(Secrets::new()) };
        match self.keys.existing().and_then(|ring| ring.open(sealed, known.tenant, &known.name)) {
            // All secrets are set anew: the old ones, perhaps sealed with a lost key, no longer matter.
            Err(_)
                if driver::kind(&known.driver)
                    .is_ok_and(|kind| kind.secrets.iter().all(|name| given.contains_key(name.as_ref()))) =>
            {
                Ok(Secrets::new())
            }
            opened => Ok(opened?),
        }
    }

    /// Removes a provider that no delivery waits for.
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

    /// Refuses over the network what only an operator on the server's machine may set.
    fn check_local(&self, driver: &str, change: &Change) -> Result<(), ProviderError> {
        let kind = driver::kind(driver).map_err(ProviderError::Field)?;
        let given = kind.local_settings.iter().find(|local| change.settings.contains_key(local.name.as_ref()));
        match given.filter(|_| !self.is_local) {
            Some(local) => Err(ProviderError::Field(format!(
                "settings.{}: {}; only `postcommit providers` on the server sets it",
                local.name, local.reason
            ))),
            None => Ok(()),
        }
    }
}

/// The text of a test that brings none.
pub const TEST_TEXT: &str = "This is a test of the provider.";
/// Most bytes of a test's text.
const TEST_TEXT_BYTES: usize = 1000;

/// How a test of a provider ended.
#[derive(Debug, Serialize, ToSchema)]
pub struct TestResult {
    /// sent, delivered, deferred, rejected or unclear.
    pub outcome: &'static str,
    /// The error's code.
    pub code: Option<String>,
    /// A sentence for people.
    pub detail: Option<String>,
    /// The provider's own id of the message.
    pub provider_ref: Option<String>,
    /// The beginning of the answer, redacted.
    pub excerpt: Option<String>,
    /// How long it took.
    pub latency_ms: u64,
}

/// Sends a test message immediately, past the queue, and enters the result in the audit log. `store` names the actor.
pub async fn test(
    tools: &Tools,
    store: &Store,
    provider: &Provider,
    tenant_name: &str,
    address: &str,
    text: &str,
) -> Result<TestResult, ProviderError> {
    if driver::destination(&provider.driver) == Destination::Inbox {
        return Err(ProviderError::InApp);
    }
    Recipient::at(&provider.name, address)
        .check()
        .map_err(|problem| ProviderError::Field(format!("address: {problem}")))?;
    if text.len() > TEST_TEXT_BYTES || text.contains('\0') {
        let problem = format!("text: has {} bytes; at most {TEST_TEXT_BYTES} are allowed, and no NUL", text.len());
        return Err(ProviderError::Field(problem));
    }
    let trial = try_provider(tools, provider, tenant_name, address, text).await.map_err(ProviderError::Untestable)?;
    let (outcome, evidence) = (trial.report.outcome, trial.report.evidence);
    let result = TestResult {
        outcome: outcome.name(),
        code: outcome.code().map(str::to_owned),
        detail: evidence.detail,
        provider_ref: evidence.provider_ref,
        excerpt: evidence.excerpt,
        latency_ms: u64::try_from(trial.latency.as_millis()).unwrap_or(u64::MAX),
    };
    // The log has no excerpt: what a driver records may be the message itself, with the address in full.
    let details = json!({
        "address": masked(address), "outcome": result.outcome, "code": result.code, "detail": result.detail,
        "provider_ref": result.provider_ref, "latency_ms": result.latency_ms,
    });
    store.note(AuditEntry::new(provider.tenant, "provider.test", provider.name.as_str()).details(details)).await?;
    Ok(result)
}

/// Applies the change to the draft, except for secrets.
fn laid_over(mut draft: ProviderDraft, change: &Change) -> Result<ProviderDraft, ProviderError> {
    for (name, value) in &change.settings {
        // Null removes a setting.
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
    draft.channel = change.channel.clone().unwrap_or(draft.channel);
    draft.concurrency = change.concurrency.unwrap_or(draft.concurrency);
    draft.timeout_ms = change.timeout_ms.unwrap_or(draft.timeout_ms);
    draft.is_default = change.is_default.unwrap_or(draft.is_default);
    draft.enabled = change.enabled.unwrap_or(draft.enabled);
    draft.rate_per_s = change.rate_per_s.unwrap_or(draft.rate_per_s);
    draft.burst = change.burst.unwrap_or(draft.burst);
    Ok(draft)
}
