//! The command `postcommit keys`.

use clap::{Args, Subcommand};
use postcommit::Timestamp;
use postcommit_channel::model::Scopes;
use postcommit_engine::store::{Key, KeyDraft, KeyError, KeyFilter, Login, Store};
use serde_json::json;

use super::{LimitArgs, acting, known_tenant};
use crate::output::{self, CommandResult, Exit, Failure, Format, or_dash};
use crate::people::LINK_LASTS;
use crate::settings::Settings;
use crate::telemetry::say;

#[derive(Debug, Subcommand)]
pub enum Keys {
    /// Create an API key and print it; it is not shown again
    Create(Create),
    /// List API keys, newest first, without their secrets
    List {
        /// Only keys of this tenant [default: every tenant]
        #[arg(long)]
        tenant: Option<String>,
        #[command(flatten)]
        page: LimitArgs,
    },
    /// Revoke an API key immediately and permanently
    Revoke {
        /// Id of the key, which is the middle part of pc_<id>_<secret>; or the whole key
        id: String,
    },
    /// Print a sign-in link that can be used once, within 15 minutes
    LoginLink {
        /// Tenant of the session
        #[arg(long, default_value = "default")]
        tenant: String,
        /// Scope of the session; repeatable, or several with commas
        #[arg(long = "scope", value_name = "SCOPE", value_delimiter = ',', default_value = "ops")]
        scopes: Vec<String>,
    },
}

#[derive(Debug, Args)]
pub struct Create {
    /// Name of the key, e.g. its purpose
    name: String,
    /// Tenant of the key
    #[arg(long, default_value = "default")]
    tenant: String,
    /// Scope of the key: enqueue, read, operate, edit, admin (everything in its tenant), ops (all tenants) or site (no
    /// rights yet); repeatable, or several with commas
    #[arg(long = "scope", value_name = "SCOPE", value_delimiter = ',', required = true)]
    scopes: Vec<String>,
    /// Expiry of the key, RFC 3339 [default: never]
    #[arg(long, value_name = "TIME")]
    expires_at: Option<Timestamp>,
}

impl Keys {
    pub async fn run(&self, format: Format, settings: &Settings) -> CommandResult {
        let store = acting(settings).await?;
        match self {
            Self::Create(new) => new.run(format, &store).await,
            Self::List { tenant: named, page } => {
                let tenant = super::tenant(&store, named.as_deref()).await?;
                let keys = store.key_rows(&KeyFilter { tenant, before: None, limit: page.limit }).await?;
                output::list(format, &keys, &COLUMNS);
                Ok(Exit::Ok)
            }
            Self::Revoke { id } => revoke(format, &store, id).await,
            Self::LoginLink { tenant: named, scopes } => {
                let scopes = Scopes::from_names(scopes).map_err(|e| Failure::new(Exit::Usage, e))?;
                let link = login_link(
                    &store,
                    known_tenant(&store, named).await?,
                    scopes,
                    &settings.api.base_url(&settings.server.url()),
                )
                .await?;
                output::one(format, &json!({"link": link, "lasts_s": LINK_LASTS.as_secs()}), |_| link.clone());
                Ok(Exit::Ok)
            }
        }
    }
}

impl Create {
    async fn run(&self, format: Format, store: &Store) -> CommandResult {
        let scopes = Scopes::from_names(&self.scopes).map_err(|e| Failure::new(Exit::Usage, e))?;
        let tenant = known_tenant(store, &self.tenant).await?;
        let draft = KeyDraft { name: self.name.clone(), scopes, expires_at: self.expires_at };
        let made = store.create_key(tenant, &draft).await.map_err(failure)?;
        // The key is revealed here to print it once, only on stdout.
        let token = made.token.reveal().to_owned();
        say!("the key is not shown again:");
        output::one(format, &json!({"id": made.id, "token": token}), |_| token.clone());
        Ok(Exit::Ok)
    }
}

async fn revoke(format: Format, store: &Store, given: &str) -> CommandResult {
    // If the whole key is given, only its public part is used and printed.
    let id = given.strip_prefix("pc_").map_or(given, |rest| rest.split('_').next().unwrap_or(rest));
    let key = store.key_row(None, id).await?.ok_or_else(|| {
        Failure::new(Exit::NotFound, format!("there is no key {id:?}; `postcommit keys list` lists them"))
    })?;
    let revoked = store.revoke_key(key.tenant, id).await?;
    let result = if revoked { "revoked" } else { "was revoked before" };
    output::one(format, &json!({"key": id, "result": result}), |_| format!("key {id} {result}"));
    Ok(Exit::Ok)
}

const COLUMNS: [output::Column<Key>; 7] = [
    ("id", |key| key.id.clone()),
    ("tenant", |key| key.tenant_name.clone()),
    ("name", |key| key.name.clone()),
    ("scopes", |key| key.scopes.names().join(",")),
    ("last used", |key| key.last_used_at.map_or_else(|| "never".into(), output::seconds)),
    ("expires", |key| or_dash(&key.expires_at.map(output::seconds))),
    ("revoked", |key| or_dash(&key.revoked_at.map(output::seconds))),
];

/// Creates a sign-in link that can be used once.
pub async fn login_link(store: &Store, tenant: i32, scopes: Scopes, base: &str) -> Result<String, Failure> {
    let login = Login { tenant, key_id: None, actor: crate::app::operator().name, scopes };
    let token = store.create_login_link(&login, LINK_LASTS).await?;
    // The token is revealed here to print the link.
    Ok(format!("{base}/login?token={}", token.reveal()))
}

fn failure(error: KeyError) -> Failure {
    match error {
        KeyError::Database(problem) => problem.into(),
        refused => Failure::new(Exit::Usage, refused.to_string()),
    }
}
