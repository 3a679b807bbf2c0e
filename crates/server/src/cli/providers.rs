//! `postcommit providers`.

use std::collections::BTreeMap;

use clap::{Args, Subcommand};
use postcommit_engine::channel::{self, FailOn, Parts};
use postcommit_engine::egress::Egress;
use postcommit_engine::model::{Guarantee, Policy, Provider, ProviderDraft};
use postcommit_engine::secret::{Secret, SecretError, Secrets, random};
use postcommit_engine::store::Store;
use serde_json::{Map, Value, json};

use super::enqueue::{parse, read_text};
use crate::app;
use crate::output::{self, Done, Exit, Failure, Format};
use crate::settings::Settings;
use crate::telemetry::say;

#[derive(Debug, Subcommand)]
pub enum Providers {
    /// Configure a new provider
    Create(Description),
    /// All of them
    List,
    /// One, without its secrets
    Show {
        name: String,
        #[arg(long, default_value = "default")]
        tenant: String,
    },
    /// Change what is given, keep the rest
    Update(Description),
    /// Stop its lane; what is enqueued waits
    Pause {
        name: String,
        #[arg(long, default_value = "default")]
        tenant: String,
        /// Shown to whoever wonders
        #[arg(long, default_value = "by hand")]
        reason: String,
    },
    /// Open its lane again, whatever held it
    Resume {
        name: String,
        #[arg(long, default_value = "default")]
        tenant: String,
    },
    /// Remove one that nothing waits for
    Delete {
        name: String,
        #[arg(long, default_value = "default")]
        tenant: String,
    },
}

#[derive(Debug, Args)]
pub struct Description {
    name: String,
    #[arg(long, default_value = "default")]
    tenant: String,
    /// capture, in_app or webhook
    #[arg(long)]
    driver: Option<String>,
    /// The medium it serves; * is every one [default: the driver's]
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
    /// Sends under way at once, 1 to 1000 [default: 16]
    #[arg(long)]
    concurrency: Option<i32>,
    /// Longest time one send may take, 100 to 300000 [default: 30000]
    #[arg(long)]
    timeout_ms: Option<i32>,
    /// Whether it serves recipients that name no provider [default: true when its channel has no default yet]
    #[arg(long = "default", value_name = "BOOL")]
    is_default: Option<bool>,
}

impl Providers {
    pub async fn run(&self, format: Format, settings: &Settings) -> Done {
        let store = super::store(settings).await?;
        match self {
            Self::Create(description) => description.create(format, settings, &store).await,
            Self::Update(description) => description.update(format, settings, &store).await,
            Self::List => list(format, &store).await,
            Self::Show { name, tenant } => {
                let provider = find(&store, tenant, name).await?.1;
                output::one(format, &shown(&provider, &store.tenants().await?), |value| {
                    serde_json::to_string_pretty(value).unwrap_or_default()
                });
                Ok(Exit::Ok)
            }
            Self::Pause { name, tenant, reason } => {
                let provider = find(&store, tenant, name).await?.1;
                let paused = store.pause_lane(provider.id, None, reason).await?;
                say(format, name, if paused { "paused" } else { "was paused already" })
            }
            Self::Resume { name, tenant } => {
                store.resume_lane(find(&store, tenant, name).await?.1.id).await?;
                say(format, name, "resumed")
            }
            Self::Delete { name, tenant } => {
                let (tenant, _) = find(&store, tenant, name).await?;
                match store.delete_provider(tenant, name).await? {
                    Some(0) => say(format, name, "deleted"),
                    Some(n) => Err(Failure::new(
                        Exit::Refused,
                        format!("{n} deliveries wait for provider {name}; let them finish, cancel them, or pause it instead"),
                    )),
                    None => Err(unknown(name)),
                }
            }
        }
    }
}

impl Description {
    async fn create(&self, format: Format, settings: &Settings, store: &Store) -> Done {
        let driver = self.driver.clone().ok_or_else(|| usage("--driver is needed: capture, in_app or webhook"))?;
        let kind = channel::kind(&driver).map_err(usage)?;
        let tenant = store.tenant_or_new(&self.tenant).await?;
        if store.provider(tenant, &self.name).await?.is_some() {
            return Err(Failure::new(Exit::Refused, format!("provider {:?} exists; `providers update` changes it", self.name)));
        }
        let channel = self.channel.clone().unwrap_or_else(|| kind.channel.to_owned());
        let taken = store.providers().await?.iter().any(|p| p.tenant == tenant && p.channel == channel && p.is_default);
        let mut secrets = self.secrets()?;
        let made = (driver == "webhook" && secrets.is_empty()).then(signing_secret);
        if let Some(secret) = &made {
            secrets.insert("secret".to_owned(), Secret::new(secret.clone()));
        }
        let base = ProviderDraft {
            name: self.name.clone(),
            channel,
            driver,
            settings: json!({}),
            secrets: None,
            guarantee: kind.guarantee,
            policy: Policy::default(),
            concurrency: 16,
            timeout_ms: 30_000,
            is_default: !taken,
        };
        let draft = self.change(base, &secrets, settings, tenant)?;
        store.create_provider(tenant, &draft).await?;
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

    async fn update(&self, format: Format, settings: &Settings, store: &Store) -> Done {
        let (tenant, old) = find(store, &self.tenant, &self.name).await?;
        if self.driver.as_ref().is_some_and(|driver| *driver != old.driver) {
            return Err(usage("--driver: cannot be changed; create another provider"));
        }
        let refused = |e: SecretError| Failure::new(Exit::Refused, e.to_string());
        let given = self.secrets()?;
        // All set anew: what was sealed before, perhaps with a key that is lost, no longer matters.
        let all_anew = channel::kind(&old.driver).is_ok_and(|kind| kind.secrets.iter().all(|name| given.contains_key(*name)));
        let mut secrets = match &old.secrets {
            Some(sealed) if !all_anew => {
                app::keys(settings).existing().and_then(|ring| ring.open(sealed, tenant, &old.name)).map_err(refused)?
            }
            _ => Secrets::new(),
        };
        secrets.extend(given);
        let base = ProviderDraft {
            name: old.name,
            channel: self.channel.clone().unwrap_or(old.channel),
            driver: old.driver,
            settings: old.settings,
            secrets: None,
            guarantee: old.guarantee,
            policy: old.policy,
            concurrency: old.concurrency,
            timeout_ms: old.timeout_ms,
            is_default: old.is_default,
        };
        let draft = self.change(base, &secrets, settings, tenant)?;
        store.update_provider(tenant, &draft).await?;
        say(format, &self.name, "updated")
    }

    /// Lays what was given over the draft, and checks the whole with the driver itself.
    fn change(&self, mut draft: ProviderDraft, secrets: &Secrets, settings: &Settings, tenant: i32) -> Result<ProviderDraft, Failure> {
        for (name, value) in self.given_settings()? {
            draft.settings[name] = value;
        }
        if let Some(name) = &self.guarantee {
            draft.guarantee = Guarantee::from_name(name).map_err(usage)?;
        }
        if let Some(text) = &self.policy {
            let value = if text.trim_start().starts_with(['{', '@']) { parse("--policy", text)? } else { Value::from(text.as_str()) };
            draft.policy = Policy::from_json(&value).map_err(|e| usage(e.to_string()))?;
        }
        draft.concurrency = self.concurrency.unwrap_or(draft.concurrency);
        draft.timeout_ms = self.timeout_ms.unwrap_or(draft.timeout_ms);
        draft.is_default = self.is_default.unwrap_or(draft.is_default);
        draft.check().map_err(usage)?;
        let egress = Egress::new(&settings.egress).map_err(|e| usage(e.to_string()))?;
        let parts =
            Parts { settings: &draft.settings, secrets, guarantee: draft.guarantee, egress: &egress, capture_fail_on: &FailOn::default() };
        channel::build(&draft.driver, &parts).map_err(usage)?;
        draft.secrets = seal(secrets, settings, tenant, &draft.name)?;
        Ok(draft)
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
            let (name, value) = text.split_once('=').ok_or_else(|| usage("--secret: write NAME=VALUE, NAME=@FILE or NAME=-"))?;
            let value = read_text(value).map_err(|e| usage(format!("--secret {name}: {e}")))?;
            Ok((name.to_owned(), Secret::new(value.trim())))
        };
        self.secrets.iter().map(pair).collect()
    }
}

fn seal(secrets: &Secrets, settings: &Settings, tenant: i32, name: &str) -> Result<Option<Vec<u8>>, Failure> {
    if secrets.is_empty() {
        return Ok(None);
    }
    let ring = app::keys(settings).or_new().map_err(|e| Failure::new(Exit::Refused, e.to_string()))?;
    Ok(Some(ring.seal(secrets, tenant, name)))
}

/// A new secret in the form that Standard Webhooks libraries expect.
fn signing_secret() -> String {
    use base64::Engine as _;
    format!("whsec_{}", base64::engine::general_purpose::STANDARD.encode(random::<32>()))
}

async fn find(store: &Store, tenant: &str, name: &str) -> Result<(i32, Provider), Failure> {
    let id = store.tenant(tenant).await?.ok_or_else(|| Failure::new(Exit::NotFound, format!("there is no tenant {tenant:?}")))?;
    let provider = store.provider(id, name).await?.ok_or_else(|| unknown(name))?;
    Ok((id, provider))
}

fn unknown(name: &str) -> Failure {
    Failure::new(Exit::NotFound, format!("there is no provider {name:?}"))
}

fn usage(problem: impl Into<String>) -> Failure {
    Failure::new(Exit::Usage, problem)
}

fn say(format: Format, name: &str, result: &str) -> Done {
    output::one(format, &json!({"provider": name, "result": result}), |_| format!("provider {name} {result}"));
    Ok(Exit::Ok)
}

/// A provider as it may be shown: its tenant by name; whether there are secrets, never which.
fn shown(provider: &Provider, tenants: &BTreeMap<i32, String>) -> Value {
    let mut value = json!(provider);
    value["tenant"] = json!(tenants.get(&provider.tenant));
    value["secrets"] = json!(provider.secrets.is_some());
    value
}

async fn list(format: Format, store: &Store) -> Done {
    let (tenants, now) = (store.tenants().await?, store.now().await?);
    let mut providers = store.providers().await?;
    // A hold that is over holds nothing.
    providers.iter_mut().filter(|p| p.not_before.is_some_and(|at| at <= now)).for_each(|p| p.not_before = None);
    let rows: Vec<Value> = providers.iter().map(|p| shown(p, &tenants)).collect();
    let columns: [output::Column<Value>; 8] = [
        ("tenant", |p| plain(&p["tenant"])),
        ("name", |p| plain(&p["name"])),
        ("channel", |p| plain(&p["channel"])),
        ("driver", |p| plain(&p["driver"])),
        ("guarantee", |p| plain(&p["guarantee"])),
        ("default", |p| if p["is_default"] == true { "yes" } else { "no" }.to_owned()),
        ("lane", |p| match (p["paused"].as_str(), p["enabled"] == true) {
            (Some(why), _) => format!("paused: {why}"),
            (None, false) => "disabled".to_owned(),
            (None, true) => "open".to_owned(),
        }),
        ("held until", |p| plain(&p["not_before"])),
    ];
    output::list(format, &rows, &columns);
    Ok(Exit::Ok)
}

fn plain(value: &Value) -> String {
    value.as_str().unwrap_or("-").to_owned()
}
