//! Providers as an operator describes them: the same rules for the command line and the API.

use postcommit_channel::driver::{self, FailOn, NewSecret, Parts};
use postcommit_channel::egress::Egress;
use postcommit_channel::model::{Guarantee, PROVIDERS, Policy, Provider, ProviderChange, ProviderDraft};
use postcommit_channel::secret::{KeySource, Secret, SecretError, Secrets};
use postcommit_engine::db::DbError;
use postcommit_engine::store::Store;
use serde_json::{Map, Value, json};

/// How often a change is made anew over what others have changed meanwhile. Of so many who change one provider at once none is sent away.
const TRIES: usize = 64;

/// What stands in the way.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// A field: its name, then what is wrong.
    #[error("{0}")]
    Field(String),
    /// The name is taken.
    #[error("provider {0:?} exists; update it instead")]
    Exists(String),
    /// The tenant has as many as it may.
    #[error("the tenant has {PROVIDERS} providers, which is the most it may have; delete one that is not needed")]
    TooMany,
    /// The change was made for another revision than it has.
    #[error("provider {name:?} has revision {found} by now, not {asked}; read it again, and send the change for that revision")]
    Outdated { name: String, asked: i32, found: i32 },
    /// Others were always faster.
    #[error("others changed provider {0:?} {TRIES} times while this was to be done; nothing was done, try again")]
    Overtaken(String),
    /// There is none of that name.
    #[error("there is no provider {0:?}")]
    Unknown(String),
    /// So many deliveries wait for it.
    #[error("{1} deliveries wait for provider {0}; let them finish, cancel them, or pause it instead")]
    Waited(String, i64),
    /// The key that seals secrets.
    #[error(transparent)]
    Secrets(#[from] SecretError),
    /// The database.
    #[error(transparent)]
    Database(#[from] DbError),
}

/// What is given; the rest stays, or is the driver's default.
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
    /// Sends a second and at once; `Some(None)` takes it off.
    pub rate_per_s: Option<Option<f64>>,
    pub burst: Option<Option<i32>>,
    pub enabled: Option<bool>,
}

/// What providers are made with.
pub struct Workshop<'a> {
    pub store: &'a Store,
    pub keys: &'a KeySource,
    pub egress: &'a Egress,
    /// Whether the operator is on the server's own machine.
    pub is_local: bool,
}

impl Workshop<'_> {
    /// Makes a provider. If its driver makes a secret and none is given, the new secret is returned this once.
    pub async fn create(&self, tenant: i32, name: &str, driver: &str, mut change: Change) -> Result<Option<Secret>, Refusal> {
        let kind = driver::kind(driver).map_err(Refusal::Field)?;
        self.check_local(driver, &change)?;
        let new_secret = kind.new_secret.as_ref().filter(|_| change.secrets.is_empty());
        let made = new_secret.map(|NewSecret { name, make }| (name.clone().into_owned(), make()));
        change.secrets.extend(made.clone());
        for _ in 0..TRIES {
            let known = self.store.providers_of(tenant).await?;
            if known.iter().any(|provider| provider.name == name) {
                return Err(Refusal::Exists(name.to_owned()));
            }
            if known.len() >= PROVIDERS {
                return Err(Refusal::TooMany);
            }
            let mut draft = laid_over(kind.draft(name), &change)?;
            self.check(&draft, &change.secrets)?;
            if !change.secrets.is_empty() {
                draft.secrets = Some(self.keys.or_new()?.seal(&change.secrets, tenant, name));
            }
            // Nobody asked for it: the first of its channel is the default, and takes it from nobody who came in between.
            let is_first = change.is_default.is_none() && !known.iter().any(|other| other.channel == draft.channel && other.is_default);
            draft.is_default |= is_first;
            let is_made = match is_first {
                true => self.store.create_first_provider(tenant, &draft).await?,
                false => self.store.create_provider(tenant, &draft).await?,
            };
            if is_made {
                return Ok(made.map(|(_, secret)| secret));
            }
        }
        Err(Refusal::Overtaken(name.to_owned()))
    }

    /// Changes what is given; with a revision, only if it still has that one. What others change at the same moment stays. False when nothing is other than
    /// before: then nothing is written.
    pub async fn update(&self, tenant: i32, name: &str, revision: Option<i32>, change: &Change) -> Result<bool, Refusal> {
        for _ in 0..TRIES {
            let from = self.find(tenant, name).await?;
            if let Some(asked) = revision.filter(|asked| *asked != from.revision) {
                return Err(Refusal::Outdated { name: name.to_owned(), asked, found: from.revision });
            }
            let change = self.change_of(from, change)?;
            if change.is_empty() {
                return Ok(false);
            }
            if self.store.update_provider(&change).await? {
                return Ok(true);
            }
        }
        Err(Refusal::Overtaken(name.to_owned()))
    }

    fn change_of(&self, from: Provider, change: &Change) -> Result<ProviderChange, Refusal> {
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

    /// The secrets it has.
    fn opened(&self, known: &Provider, given: &Secrets) -> Result<Secrets, Refusal> {
        let Some(sealed) = &known.secrets else { return Ok(Secrets::new()) };
        match self.keys.existing().and_then(|ring| ring.open(sealed, known.tenant, &known.name)) {
            // All set anew: what was sealed before, perhaps with a key that is lost, no longer matters.
            Err(_) if driver::kind(&known.driver).is_ok_and(|kind| kind.secrets.iter().all(|name| given.contains_key(name.as_ref()))) => {
                Ok(Secrets::new())
            }
            opened => Ok(opened?),
        }
    }

    /// Removes one that nothing waits for.
    pub async fn delete(&self, tenant: i32, name: &str) -> Result<(), Refusal> {
        match self.store.delete_provider(tenant, name).await? {
            Some(0) => Ok(()),
            Some(waiting) => Err(Refusal::Waited(name.to_owned(), waiting)),
            None => Err(Refusal::Unknown(name.to_owned())),
        }
    }

    pub async fn find(&self, tenant: i32, name: &str) -> Result<Provider, Refusal> {
        self.store.provider(tenant, name).await?.ok_or_else(|| Refusal::Unknown(name.to_owned()))
    }

    /// Holds the whole to its limits, and has the driver itself look at it.
    fn check(&self, draft: &ProviderDraft, secrets: &Secrets) -> Result<(), Refusal> {
        draft.check().map_err(Refusal::Field)?;
        let (settings, guarantee) = (&draft.settings, draft.guarantee);
        let parts = Parts { settings, secrets, guarantee, egress: self.egress, capture_fail_on: &FailOn::default() };
        let built = driver::kind(&draft.driver).and_then(|kind| kind.build(&parts));
        built.map(drop).map_err(Refusal::Field)
    }

    /// Refuses over the network what only an operator on the server's machine may set.
    fn check_local(&self, driver: &str, change: &Change) -> Result<(), Refusal> {
        let kind = driver::kind(driver).map_err(Refusal::Field)?;
        let given = kind.local_settings.iter().find(|local| change.settings.contains_key(local.name.as_ref()));
        match given.filter(|_| !self.is_local) {
            Some(local) => {
                Err(Refusal::Field(format!("settings.{}: {}; only `postcommit providers` on the server sets it", local.name, local.reason)))
            }
            None => Ok(()),
        }
    }
}

/// Lays what was given over the draft; secrets are another matter.
fn laid_over(mut draft: ProviderDraft, change: &Change) -> Result<ProviderDraft, Refusal> {
    for (name, value) in &change.settings {
        // What is null is taken away.
        match (value, draft.settings.as_object_mut()) {
            (Value::Null, Some(settings)) => drop(settings.remove(name)),
            (value, Some(settings)) => drop(settings.insert(name.clone(), value.clone())),
            (value, None) => draft.settings = json!({ name: value }),
        }
    }
    if let Some(name) = &change.guarantee {
        draft.guarantee = Guarantee::from_name(name).map_err(Refusal::Field)?;
    }
    if let Some(policy) = &change.policy {
        draft.policy = Policy::from_json(policy).map_err(|e| Refusal::Field(e.to_string()))?;
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
