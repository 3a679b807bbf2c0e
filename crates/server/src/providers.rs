//! Providers as an operator describes them: the same rules for the command line and the API.

use postcommit_engine::channel::{self, FailOn, Parts};
use postcommit_engine::db::DbError;
use postcommit_engine::egress::Egress;
use postcommit_engine::model::{Guarantee, Policy, Provider, ProviderDraft};
use postcommit_engine::secret::{KeySource, Secret, SecretError, Secrets, random};
use postcommit_engine::store::Store;
use serde_json::{Map, Value, json};

/// What stands in the way.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// A field: its name, then what is wrong.
    #[error("{0}")]
    Field(String),
    /// The name is taken.
    #[error("provider {0:?} exists; update it instead")]
    Exists(String),
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
}

impl Workshop<'_> {
    /// Makes a provider. A webhook without a secret gets one, which is returned this once.
    pub async fn create(&self, tenant: i32, name: &str, driver: &str, mut change: Change) -> Result<Option<Secret>, Refusal> {
        let kind = channel::kind(driver).map_err(Refusal::Field)?;
        if self.store.provider(tenant, name).await?.is_some() {
            return Err(Refusal::Exists(name.to_owned()));
        }
        let channel = change.channel.clone().unwrap_or_else(|| kind.channel.to_owned());
        let taken = self.store.providers().await?.iter().any(|p| p.tenant == tenant && p.channel == channel && p.is_default);
        let made = (driver == "webhook" && change.secrets.is_empty()).then(signing_secret);
        if let Some(secret) = &made {
            change.secrets.insert("secret".to_owned(), secret.clone());
        }
        let base = ProviderDraft {
            name: name.to_owned(),
            channel,
            driver: driver.to_owned(),
            settings: json!({}),
            secrets: None,
            guarantee: kind.guarantee,
            policy: Policy::default(),
            concurrency: 16,
            timeout_ms: 30_000,
            is_default: !taken,
            rate_per_s: None,
            burst: None,
        };
        let enabled = change.enabled;
        let draft = self.laid_over(base, change, tenant)?;
        self.store.create_provider(tenant, &draft).await.map_err(|problem| taken_meanwhile(problem, name))?;
        if let Some(enabled) = enabled {
            self.store.enable_provider(tenant, name, enabled).await?;
        }
        Ok(made)
    }

    /// Changes what is given.
    pub async fn update(&self, tenant: i32, name: &str, mut change: Change) -> Result<(), Refusal> {
        let old = self.find(tenant, name).await?;
        // All set anew: what was sealed before, perhaps with a key that is lost, no longer matters.
        let all_anew = channel::kind(&old.driver).is_ok_and(|kind| kind.secrets.iter().all(|name| change.secrets.contains_key(*name)));
        if let (Some(sealed), false) = (&old.secrets, all_anew) {
            let mut kept = self.keys.existing().and_then(|ring| ring.open(sealed, tenant, &old.name))?;
            kept.extend(std::mem::take(&mut change.secrets));
            change.secrets = kept;
        }
        let base = ProviderDraft {
            name: old.name,
            channel: old.channel,
            driver: old.driver,
            settings: old.settings,
            secrets: None,
            guarantee: old.guarantee,
            policy: old.policy,
            concurrency: old.concurrency,
            timeout_ms: old.timeout_ms,
            is_default: old.is_default,
            rate_per_s: old.rate_per_s,
            burst: old.burst,
        };
        let enabled = change.enabled;
        let draft = self.laid_over(base, change, tenant)?;
        self.store.update_provider(tenant, &draft).await?;
        if let Some(enabled) = enabled {
            self.store.enable_provider(tenant, name, enabled).await?;
        }
        Ok(())
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

    /// Lays what was given over the draft, and checks the whole with the driver itself.
    fn laid_over(&self, mut draft: ProviderDraft, change: Change, tenant: i32) -> Result<ProviderDraft, Refusal> {
        for (name, value) in change.settings {
            // What is null is taken away.
            match (value, draft.settings.as_object_mut()) {
                (Value::Null, Some(settings)) => drop(settings.remove(&name)),
                (value, Some(settings)) => drop(settings.insert(name, value)),
                (value, None) => draft.settings = json!({ name: value }),
            }
        }
        if let Some(name) = &change.guarantee {
            draft.guarantee = Guarantee::from_name(name).map_err(Refusal::Field)?;
        }
        if let Some(policy) = &change.policy {
            draft.policy = Policy::from_json(policy).map_err(|e| Refusal::Field(e.to_string()))?;
        }
        draft.channel = change.channel.unwrap_or(draft.channel);
        draft.concurrency = change.concurrency.unwrap_or(draft.concurrency);
        draft.timeout_ms = change.timeout_ms.unwrap_or(draft.timeout_ms);
        draft.is_default = change.is_default.unwrap_or(draft.is_default);
        draft.rate_per_s = change.rate_per_s.unwrap_or(draft.rate_per_s);
        draft.burst = change.burst.unwrap_or(draft.burst);
        draft.check().map_err(Refusal::Field)?;
        let (settings, secrets) = (&draft.settings, &change.secrets);
        let parts = Parts { settings, secrets, guarantee: draft.guarantee, egress: self.egress, capture_fail_on: &FailOn::default() };
        channel::build(&draft.driver, &parts).map_err(Refusal::Field)?;
        if !change.secrets.is_empty() {
            draft.secrets = Some(self.keys.or_new()?.seal(&change.secrets, tenant, &draft.name));
        }
        Ok(draft)
    }
}

/// Somebody was faster: the name, or the place of the channel's default, is theirs.
fn taken_meanwhile(problem: DbError, name: &str) -> Refusal {
    match problem {
        // The codes of both databases for what must be unique.
        DbError::Refused { code, .. } if ["23505", "2067"].contains(&code.as_str()) => Refusal::Exists(name.to_owned()),
        other => other.into(),
    }
}

/// A new secret in the form that Standard Webhooks libraries expect.
fn signing_secret() -> Secret {
    use base64::Engine as _;
    Secret::new(format!("whsec_{}", base64::engine::general_purpose::STANDARD.encode(random::<32>())))
}
