//! API keys of the form `pc_<id>_<secret>`. The secret is shown once, and only its hash is stored.

use postcommit::Timestamp;
use postcommit_channel::clock;
use postcommit_channel::model::{Scope, Scopes};
use postcommit_channel::secret::{Hash, Secret, Token, random};
use serde::Serialize;

use crate::db::{DbError, Row, Value};
use crate::store::AuditEntry;
use crate::store::Store;
use crate::store::unreadable::{Reader, legible};

/// The maximum length of a key's name in characters. The minimum is 1.
pub const KEY_NAME_CHARS: usize = 255;

/// The reason why a key was not created or not accepted.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// A field of the draft is invalid.
    #[error("{0}")]
    Refused(String),
    /// The id is unknown or the secret is wrong. Both give the same error, so that guessing reveals nothing.
    #[error("the API key is not known; check it, or create another key")]
    Unknown,
    /// The key has expired.
    #[error("the API key expired at {0}; create another key")]
    Expired(Timestamp),
    /// The key was revoked.
    #[error("the API key was revoked at {0}; create another key")]
    Revoked(Timestamp),
    #[error(transparent)]
    Database(#[from] DbError),
}

/// The description of a new key.
#[derive(Debug, Clone)]
pub struct KeyDraft {
    /// The key's purpose in 1 to 255 characters, without line breaks.
    pub name: String,
    /// The scopes of the key. At least one is required.
    pub scopes: Scopes,
    /// When the key expires. `None` means never.
    pub expires_at: Option<Timestamp>,
}

impl KeyDraft {
    /// Checks that the name, the scopes and the expiry are allowed.
    pub fn check(&self, now: Timestamp) -> Result<(), String> {
        let chars = self.name.chars().count();
        if !(1..=KEY_NAME_CHARS).contains(&chars) || self.name.contains(char::is_control) {
            return Err(format!("name: has {chars} characters; 1 to {KEY_NAME_CHARS} are allowed, and no line breaks"));
        }
        if self.scopes == Scopes::default() {
            return Err(format!(
                "scopes: at least one is needed; allowed are {}",
                Scope::ALL.map(Scope::name).join(", ")
            ));
        }
        match self.expires_at {
            Some(at) if at <= now => Err(format!("expires_at: is {at}; it must be later than now")),
            _ => Ok(()),
        }
    }
}

#[derive(Debug, Clone)]
pub struct NewKey {
    /// The public part of the key.
    pub id: String,
    /// The whole key. It cannot be read again.
    pub token: Secret,
}

/// A key, without its secret.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Key {
    /// The public part of the key.
    pub id: String,
    /// The number of the tenant.
    #[serde(skip)]
    pub tenant: i32,
    /// The name of the tenant that owns the key.
    #[serde(rename = "tenant")]
    pub tenant_name: String,
    /// Whether the tenant is suspended.
    #[serde(skip)]
    pub suspended: bool,
    /// The purpose of the key.
    pub name: String,
    /// The scopes of the key.
    #[serde(serialize_with = "names")]
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
    pub scopes: Scopes,
    /// When the key was created.
    pub created_at: Timestamp,
    /// The actor that created the key.
    pub created_by: String,
    /// When the key expires. `null` means never.
    pub expires_at: Option<Timestamp>,
    /// When the key was last used, to the minute.
    pub last_used_at: Option<Timestamp>,
    /// When the key was revoked.
    pub revoked_at: Option<Timestamp>,
}

fn names<S: serde::Serializer>(scopes: &Scopes, serializer: S) -> Result<S::Ok, S::Error> {
    scopes.names().serialize(serializer)
}

/// The filter for a list of keys. The newest come first.
#[derive(Debug, Clone, Default)]
pub struct KeyFilter {
    /// Only keys of this tenant. `None` means all tenants.
    pub tenant: Option<i32>,
    /// The creation time and id of the last key on the previous page.
    pub before: Option<(Timestamp, String)>,
    /// The maximum number of keys to return.
    pub limit: i64,
}

const COLUMNS: &str =
    "k.id, k.tenant, t.name, t.suspended_at IS NOT NULL, k.name, k.scopes, k.created_at, k.created_by,
    k.expires_at, k.last_used_at, k.revoked_at";
const TABLES: &str = "postcommit.api_key k JOIN postcommit.tenant t ON t.id = k.tenant";

impl Store {
    /// Creates a key. Only this call returns the whole key.
    pub async fn create_key(&self, tenant: i32, draft: &KeyDraft) -> Result<NewKey, KeyError> {
        draft.check(clock::now()).map_err(KeyError::Refused)?;
        let (id, secret) = (new_id(), Token::new());
        let insert = "INSERT INTO postcommit.api_key (tenant, id, name, scopes, secret_hash, created_at, created_by,
              expires_at)
            VALUES ($1, $2, $3, $4, $5, {now}, $6, $7)";
        let parameters = vec![
            tenant.into(),
            id.as_str().into(),
            draft.name.as_str().into(),
            Value::Texts(draft.scopes.names()),
            secret.hash().into(),
            self.actor.name.as_str().into(),
            draft.expires_at.into(),
        ];
        let details =
            serde_json::json!({"name": draft.name, "scopes": draft.scopes.names(), "expires_at": draft.expires_at});
        self.change(insert, parameters, AuditEntry::new(tenant, "key.create", id.as_str()).details(details)).await?;
        // The secret is revealed only to build the whole key, which is a secret again.
        let token = Secret::new(format!("pc_{id}_{}", secret.text().reveal()));
        Ok(NewKey { id, token })
    }

    /// Finds the key of a token. The caller must check whether the tenant is suspended.
    ///
    /// # Errors
    /// Returns why the token is not accepted. That a key is expired or revoked is reported only if the secret is right.
    pub async fn find_key(&self, token: &str) -> Result<Key, KeyError> {
        let mut parts = token.splitn(3, '_');
        let (Some("pc"), Some(id), Some(secret)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(KeyError::Unknown);
        };
        let given = Token::parse(secret).ok_or(KeyError::Unknown)?;
        let sql = format!("SELECT {COLUMNS}, k.secret_hash, {{now}} FROM {TABLES} WHERE k.id = $1");
        let rows = self.db.query(&sql, vec![id.into()]).await?;
        let row = rows.first().ok_or(KeyError::Unknown)?;
        if !row.get::<Hash>(11)?.is_of(&given) {
            return Err(KeyError::Unknown);
        }
        let (key, now) = (readable(row)?, row.get::<Timestamp>(12)?);
        match (key.revoked_at, key.expires_at) {
            (Some(at), _) => Err(KeyError::Revoked(at)),
            (None, Some(at)) if at <= now => Err(KeyError::Expired(at)),
            _ => Ok(key),
        }
    }

    /// Reads one page of keys, newest first, including revoked and expired ones.
    pub async fn key_rows(&self, filter: &KeyFilter) -> Result<Vec<Key>, DbError> {
        let mut parameters: Vec<Value> = vec![filter.limit.into()];
        let mut sql = format!("SELECT {COLUMNS} FROM {TABLES} WHERE 1 = 1");
        if let Some(tenant) = filter.tenant {
            parameters.push(tenant.into());
            sql.push_str(&format!(" AND k.tenant = ${}", parameters.len()));
        }
        if let Some((at, id)) = &filter.before {
            parameters.extend([Value::from(*at), id.as_str().into()]);
            sql.push_str(&format!(" AND (k.created_at, k.id) < (${}, ${})", parameters.len() - 1, parameters.len()));
        }
        sql.push_str(" ORDER BY k.created_at DESC, k.id DESC LIMIT $1");
        Ok(legible("keys", self.db.query(&sql, parameters).await?.iter().map(shown)))
    }

    /// Reads one key. With a tenant, it returns the key only if that tenant owns it.
    pub async fn key_row(&self, tenant: Option<i32>, id: &str) -> Result<Option<Key>, DbError> {
        let sql = format!("SELECT {COLUMNS} FROM {TABLES} WHERE k.id = $1 AND k.tenant = coalesce($2, k.tenant)");
        self.db.query(&sql, vec![id.into(), tenant.into()]).await?.first().map(shown).transpose()
    }

    /// Revokes a key. Sessions and sign-in links that depend on it become invalid. Returns false if the key does not
    /// exist or was already revoked.
    pub async fn revoke_key(&self, tenant: i32, id: &str) -> Result<bool, DbError> {
        let sql =
            "UPDATE postcommit.api_key SET revoked_at = {now} WHERE tenant = $1 AND id = $2 AND revoked_at IS NULL";
        self.change(sql, vec![tenant.into(), id.into()], AuditEntry::new(tenant, "key.revoke", id)).await
    }

    /// Records the last use of keys, at most once a minute per key. Callers collect used keys and call this method
    /// rarely.
    pub async fn note_keys_used(&self, ids: &[String]) -> Result<(), DbError> {
        let sql = match self.db.kind() {
            "postgres" => {
                "UPDATE postcommit.api_key SET last_used_at = {now}
                 WHERE id = ANY ($1) AND (last_used_at IS NULL OR last_used_at < {now} - interval '1 minute')"
            }
            _ => {
                "UPDATE postcommit.api_key
                 SET last_used_at = {now}
                 WHERE id IN (SELECT value FROM json_each($1))
                   AND (last_used_at IS NULL OR last_used_at < {now} - 60000000)"
            }
        };
        self.db.execute_one(sql, vec![Value::Texts(ids.to_vec())]).await.map(drop)
    }

    /// Returns whether a valid key exists. Without one, no client can authenticate with a key.
    pub async fn any_key(&self) -> Result<bool, DbError> {
        let sql = "SELECT EXISTS (SELECT 1
             FROM postcommit.api_key
             WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > {now}))";
        self.db.query(sql, vec![]).await?.first().map_or(Ok(false), |row| row.get(0))
    }
}

/// Returns 16 random hexadecimal digits, so that ids do not reveal the number of keys.
fn new_id() -> String {
    random::<8>().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads a key for display. If a column is unreadable, the problem is appended to the key's name.
fn shown(row: &Row) -> Result<Key, DbError> {
    let (mut key, problem) = key(row)?;
    if let Some(problem) = problem {
        key.name = format!("{} ({problem})", key.name);
    }
    Ok(key)
}

/// Reads a key for authentication. A key with an unreadable column is refused.
fn readable(row: &Row) -> Result<Key, DbError> {
    let (key, problem) = key(row)?;
    problem.map_or(Ok(key), |problem| Err(DbError::Unreadable(problem)))
}

fn key(row: &Row) -> Result<(Key, Option<String>), DbError> {
    let (mut read, never) = (Reader::of(row), Timestamp::from_micros(0));
    let key = Key {
        id: row.get(0)?,
        tenant: row.get(1)?,
        tenant_name: row.get(2)?,
        suspended: row.get(3)?,
        name: row.get(4)?,
        scopes: known(&row.get::<Vec<String>>(5)?),
        created_at: read.or(6, "created_at", never),
        created_by: row.get(7)?,
        expires_at: read.or(8, "expires_at", Some(never)),
        last_used_at: read.or(9, "last_used_at", None),
        revoked_at: read.or(10, "revoked_at", Some(never)),
    };
    Ok((key, read.problem()))
}

/// Reads stored scopes. A scope that this program does not know is ignored.
pub(in crate::store) fn known(names: &[String]) -> Scopes {
    names.iter().filter_map(|name| Scope::from_name(name).ok()).collect()
}
