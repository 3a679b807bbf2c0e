//! Tenants, which own data and keys. The lanes of a suspended tenant are closed.

use std::collections::BTreeMap;

use postcommit::Timestamp;
use postcommit_channel::model::short_name;
use serde::Serialize;
use uuid::Uuid;

use crate::db::{DbError, Row};
use crate::store::AuditEntry;
use crate::store::Store;
use crate::store::unreadable::{Reader, legible};

/// The maximum length of a suspension reason in characters. The minimum is 1.
pub const REASON_CHARS: usize = 255;

/// The highest weight of a tenant. The lowest is 1.
pub const MAX_WEIGHT: i32 = 100;

/// The reason why a tenant was not created or changed.
#[derive(Debug, thiserror::Error)]
pub enum TenantError {
    /// A field is beyond its limit.
    #[error("{0}")]
    Refused(String),
    #[error("name: a tenant {0:?} already exists; choose another name")]
    Taken(String),
    #[error(transparent)]
    Database(#[from] DbError),
}

/// A tenant, which owns data and keys.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TenantRow {
    /// The number of the tenant, the first part of every key.
    pub id: i32,
    /// The name of the tenant.
    pub name: String,
    /// When the tenant was created.
    pub created_at: Timestamp,
    /// When the tenant was suspended. Nothing is sent for a suspended tenant.
    pub suspended_at: Option<Timestamp>,
    /// The reason why the tenant is suspended.
    pub suspended_reason: Option<String>,
    /// The share of the tenant when several tenants have due deliveries: 1 to 100.
    pub weight: i32,
}

/// How many tenants with unreadable names a list of tenants shows at most.
const UNREADABLE_SHOWN: i64 = 10;

const COLUMNS: &str = "id, name, created_at, suspended_at, suspended_reason, weight";
const INSERT: &str = "INSERT INTO postcommit.tenant (name, created_at) VALUES ($1, {now}) ON CONFLICT DO NOTHING";

impl Store {
    /// Creates a tenant and returns its number.
    pub async fn create_tenant(&self, name: &str) -> Result<i32, TenantError> {
        short_name("name", name).map_err(TenantError::Refused)?;
        if !self.insert_tenant(name).await? {
            return Err(TenantError::Taken(name.to_owned()));
        }
        let made = self.tenant(name).await?;
        Ok(made.ok_or_else(|| {
            DbError::Unreadable(format!("tenant {name:?} was created, but cannot be found; report it as a bug"))
        })?)
    }

    /// Returns the number of a tenant. An unknown tenant is created, just as its first notification would create it.
    pub async fn tenant_or_new(&self, name: &str) -> Result<i32, DbError> {
        if let Some(known) = self.tenant(name).await? {
            return Ok(known);
        }
        self.insert_tenant(name).await?;
        self.tenant(name).await?.ok_or_else(|| {
            DbError::Unreadable(format!("tenant {name:?} was created, but cannot be found; report it as a bug"))
        })
    }

    async fn insert_tenant(&self, name: &str) -> Result<bool, DbError> {
        self.change(INSERT, vec![name.into()], AuditEntry::of_tenant(name, "tenant.create")).await
    }

    /// Suspends a tenant: nothing of it is sent, and its deliveries stay in the queue. Its application may continue to
    /// enqueue with SQL, because a notification must not abort a business transaction. Returns false if the tenant does
    /// not exist or is already suspended.
    pub async fn suspend_tenant(&self, tenant: i32, reason: &str) -> Result<bool, TenantError> {
        let chars = reason.chars().count();
        if !(1..=REASON_CHARS).contains(&chars) || reason.contains('\0') {
            return Err(TenantError::Refused(format!(
                "reason: has {chars} characters; 1 to {REASON_CHARS} are allowed"
            )));
        }
        let sql = "UPDATE postcommit.tenant
            SET suspended_at = {now}, suspended_reason = $2
            WHERE id = $1 AND suspended_at IS NULL";
        let entry = AuditEntry::of_owner(tenant, "tenant.suspend").details(serde_json::json!({"reason": reason}));
        // A trigger raises the version of the provider table, so dispatchers notice the change.
        Ok(self.change(sql, vec![tenant.into(), reason.into()], entry).await?)
    }

    /// Resumes a tenant. Returns false if the tenant does not exist or is not suspended.
    pub async fn resume_tenant(&self, tenant: i32) -> Result<bool, DbError> {
        let sql = "UPDATE postcommit.tenant
            SET suspended_at = NULL, suspended_reason = NULL
            WHERE id = $1 AND suspended_at IS NOT NULL";
        let entry = AuditEntry::of_owner(tenant, "tenant.resume");
        self.change(sql, vec![tenant.into()], entry).await
    }

    /// Sets the tenant's weight, which is its share when several tenants have due deliveries. Returns false if the
    /// tenant does not exist or already has this weight.
    pub async fn weigh_tenant(&self, tenant: i32, weight: i32) -> Result<bool, TenantError> {
        if !(1..=MAX_WEIGHT).contains(&weight) {
            return Err(TenantError::Refused(format!("weight: is {weight}; 1 to {MAX_WEIGHT} are allowed")));
        }
        let sql = "UPDATE postcommit.tenant SET weight = $2 WHERE id = $1 AND weight <> $2";
        let entry = AuditEntry::of_owner(tenant, "tenant.weigh").details(serde_json::json!({"weight": weight}));
        Ok(self.change(sql, vec![tenant.into(), weight.into()], entry).await?)
    }

    /// Reads one page of tenants, ordered by name and after the given name.
    pub async fn tenant_rows(&self, after: Option<&str>, limit: i64) -> Result<Vec<TenantRow>, DbError> {
        let (is_text, is_bytes) = self.kinds_of_name();
        let sql =
            format!("SELECT {COLUMNS} FROM postcommit.tenant WHERE name > $1 AND {is_text} ORDER BY name LIMIT $2");
        let rows = self.db.query(&sql, vec![after.unwrap_or("").into(), limit.into()]).await?;
        let mut tenants = legible("tenants", rows.iter().map(listed));
        // Tenants whose names are not text have no place in the order, so no page could begin after them. They come
        // first on the first page, and they never fill that page completely.
        if after.is_none() {
            let sql = format!("SELECT {COLUMNS} FROM postcommit.tenant WHERE {is_bytes} ORDER BY id LIMIT $1");
            let rows = self.db.query(&sql, vec![UNREADABLE_SHOWN.min(limit - 2).max(0).into()]).await?;
            tenants.splice(..0, legible("tenants", rows.iter().map(listed)));
        }
        Ok(tenants)
    }

    /// Returns the conditions that a name is text, and that it is not. On PostgreSQL every name is text.
    fn kinds_of_name(&self) -> (&'static str, &'static str) {
        if self.db.kind() == "postgres" {
            ("true", "false")
        } else {
            ("typeof(name) = 'text'", "typeof(name) <> 'text'")
        }
    }

    /// Reads the suspended tenants ordered by name, at most 100.
    pub async fn suspended_tenants(&self) -> Result<Vec<TenantRow>, DbError> {
        let sql = format!(
            "SELECT {COLUMNS}
             FROM postcommit.tenant
             WHERE suspended_at IS NOT NULL
             ORDER BY name
             LIMIT 100"
        );
        Ok(legible("tenants", self.db.query(&sql, vec![]).await?.iter().map(listed)))
    }

    pub async fn tenant_row(&self, tenant: i32) -> Result<Option<TenantRow>, DbError> {
        let sql = format!("SELECT {COLUMNS} FROM postcommit.tenant WHERE id = $1");
        self.db.query(&sql, vec![tenant.into()]).await?.first().map(listed).transpose()
    }

    /// Returns the names of all tenants by their numbers.
    pub async fn tenants(&self) -> Result<BTreeMap<i32, String>, DbError> {
        let rows = self.db.query("SELECT id, name FROM postcommit.tenant", vec![]).await?;
        Ok(legible("tenants", rows.iter().map(|row| Ok((row.get(0)?, row.get(1)?)))).into_iter().collect())
    }

    /// Returns the number of a tenant.
    pub async fn tenant(&self, name: &str) -> Result<Option<i32>, DbError> {
        // PostgreSQL refuses NUL in a parameter, and no tenant has such a name.
        if name.contains('\0') {
            return Ok(None);
        }
        let rows = self.db.query("SELECT id FROM postcommit.tenant WHERE name = $1", vec![name.into()]).await?;
        rows.first().map(|row| row.get(0)).transpose()
    }

    /// Returns the given tenant, or else the tenant that owns the notification.
    pub(in crate::store) async fn owner(&self, tenant: Option<i32>, id: Uuid) -> Result<Option<i32>, DbError> {
        if tenant.is_some() { Ok(tenant) } else { self.tenant_of(id).await }
    }

    /// Returns the tenant that owns a notification.
    pub(in crate::store) async fn tenant_of(&self, id: Uuid) -> Result<Option<i32>, DbError> {
        let sql = "SELECT tenant
            FROM postcommit.notification
            WHERE id = $1 AND tenant IN (SELECT id FROM postcommit.tenant)";
        self.db.query(sql, vec![id.into()]).await?.first().map(|row| row.get(0)).transpose()
    }
}

fn listed(row: &Row) -> Result<TenantRow, DbError> {
    let mut read = Reader::of(row);
    let (created_at, suspended_at) =
        (read.or(2, "created_at", Timestamp::from_micros(0)), read.or(3, "suspended_at", None));
    Ok(TenantRow {
        id: row.get(0)?,
        name: row.get(1)?,
        created_at,
        suspended_at,
        weight: read.or(5, "weight", 1),
        suspended_reason: row.get::<Option<String>>(4)?.or(read.problem()),
    })
}
