//! Tenants: who owns data and keys. A suspended one's lanes are as good as paused.

use std::collections::BTreeMap;

use postcommit::Timestamp;
use postcommit_channel::model::short_name;
use serde::Serialize;
use uuid::Uuid;

use crate::db::{DbError, Row};
use crate::store::AuditEntry;
use crate::store::Store;
use crate::store::unreadable::{Reader, legible};

/// Characters of the reason for a suspension; at least one.
pub const REASON_CHARS: usize = 255;

/// The greatest weight of a tenant; the least is 1.
pub const MAX_WEIGHT: i32 = 100;

/// Why a tenant was not made or suspended.
#[derive(Debug, thiserror::Error)]
pub enum TenantError {
    /// A field is beyond its limit.
    #[error("{0}")]
    Refused(String),
    /// There is one of that name.
    #[error("name: there is a tenant {0:?} already")]
    Taken(String),
    /// The database could not be asked.
    #[error(transparent)]
    Database(#[from] DbError),
}

/// One tenant, as people see it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TenantRow {
    /// The number that leads every key.
    pub id: i32,
    /// What people call it.
    pub name: String,
    /// When it was made.
    pub created_at: Timestamp,
    /// Since when nothing of it is sent.
    pub suspended_at: Option<Timestamp>,
    /// And why.
    pub suspended_reason: Option<String>,
    /// How large its share is when several tenants have something due: 1 to 100.
    pub weight: i32,
}

/// Tenants with unreadable names that are listed at most.
const UNREADABLE_SHOWN: i64 = 10;

const COLUMNS: &str = "id, name, created_at, suspended_at, suspended_reason, weight";
const INSERT: &str = "INSERT INTO postcommit.tenant (name, created_at) VALUES ($1, {now}) ON CONFLICT DO NOTHING";

impl Store {
    /// Makes a tenant. Returns its number.
    ///
    /// # Errors
    /// When the name is beyond its limit or taken, or as the database says.
    pub async fn create_tenant(&self, name: &str) -> Result<i32, TenantError> {
        short_name("name", name).map_err(TenantError::Refused)?;
        if !self.insert_tenant(name).await? {
            return Err(TenantError::Taken(name.to_owned()));
        }
        let made = self.tenant(name).await?;
        Ok(made.ok_or_else(|| DbError::Unreadable(format!("tenant {name:?} is gone")))?)
    }

    /// The number behind a tenant's name; one not known yet is made, as its first notification would.
    ///
    /// # Errors
    /// When the name is refused, or as the database says.
    pub async fn tenant_or_new(&self, name: &str) -> Result<i32, DbError> {
        if let Some(known) = self.tenant(name).await? {
            return Ok(known);
        }
        self.insert_tenant(name).await?;
        self.tenant(name).await?.ok_or_else(|| DbError::Unreadable(format!("tenant {name:?} is gone")))
    }

    async fn insert_tenant(&self, name: &str) -> Result<bool, DbError> {
        self.change(INSERT, vec![name.into()], AuditEntry::of_tenant(name, "tenant.create")).await
    }

    /// Lets nothing of a tenant be sent any more. What waits stays in the queue, and its application may go on enqueueing by SQL: a notification must not
    /// abort somebody's booking. False when there is none, or it is suspended already.
    ///
    /// # Errors
    /// When the reason is beyond its limit, or as the database says.
    pub async fn suspend_tenant(&self, tenant: i32, reason: &str) -> Result<bool, TenantError> {
        let chars = reason.chars().count();
        if !(1..=REASON_CHARS).contains(&chars) || reason.contains('\0') {
            return Err(TenantError::Refused(format!("reason: has {chars} characters; 1 to {REASON_CHARS} are allowed")));
        }
        let sql = "UPDATE postcommit.tenant SET suspended_at = {now}, suspended_reason = $2 WHERE id = $1 AND suspended_at IS NULL";
        let entry = AuditEntry::of_owner(tenant, "tenant.suspend").details(serde_json::json!({"reason": reason}));
        // A trigger numbers the change, and so dispatchers hear of it.
        Ok(self.change(sql, vec![tenant.into(), reason.into()], entry).await?)
    }

    /// Lets a tenant go on. False when there is none, or it is not suspended.
    pub async fn resume_tenant(&self, tenant: i32) -> Result<bool, DbError> {
        let sql = "UPDATE postcommit.tenant SET suspended_at = NULL, suspended_reason = NULL WHERE id = $1 AND suspended_at IS NOT NULL";
        let entry = AuditEntry::of_owner(tenant, "tenant.resume");
        self.change(sql, vec![tenant.into()], entry).await
    }

    /// Sets how large a tenant's share is when several have something due. False when there is none, or it has that weight already.
    ///
    /// # Errors
    /// When the weight is not 1 to 100, or as the database says.
    pub async fn weigh_tenant(&self, tenant: i32, weight: i32) -> Result<bool, TenantError> {
        if !(1..=MAX_WEIGHT).contains(&weight) {
            return Err(TenantError::Refused(format!("weight: is {weight}; 1 to {MAX_WEIGHT} are allowed")));
        }
        let sql = "UPDATE postcommit.tenant SET weight = $2 WHERE id = $1 AND weight <> $2";
        let entry = AuditEntry::of_owner(tenant, "tenant.weigh").details(serde_json::json!({"weight": weight}));
        Ok(self.change(sql, vec![tenant.into(), weight.into()], entry).await?)
    }

    /// A page of tenants by name, those after this one.
    pub async fn tenant_rows(&self, after: Option<&str>, limit: i64) -> Result<Vec<TenantRow>, DbError> {
        let (is_text, is_bytes) = self.kinds_of_name();
        let sql = format!("SELECT {COLUMNS} FROM postcommit.tenant WHERE name > $1 AND {is_text} ORDER BY name LIMIT $2");
        let rows = self.db.query(&sql, vec![after.unwrap_or("").into(), limit.into()]).await?;
        let mut tenants = legible("tenants", rows.iter().map(listed));
        // Names that are no text have no place in the order, and no page after them could begin there: they stand on the first page, before the others,
        // and never alone.
        if after.is_none() {
            let sql = format!("SELECT {COLUMNS} FROM postcommit.tenant WHERE {is_bytes} ORDER BY id LIMIT $1");
            let rows = self.db.query(&sql, vec![UNREADABLE_SHOWN.min(limit - 2).max(0).into()]).await?;
            tenants.splice(..0, legible("tenants", rows.iter().map(listed)));
        }
        Ok(tenants)
    }

    /// Whether a name is text, and whether it is not, which PostgreSQL's never is.
    fn kinds_of_name(&self) -> (&'static str, &'static str) {
        if self.db.kind() == "postgres" { ("true", "false") } else { ("typeof(name) = 'text'", "typeof(name) <> 'text'") }
    }

    /// Those of whom nothing is sent, by name; 100 at most.
    pub async fn suspended_tenants(&self) -> Result<Vec<TenantRow>, DbError> {
        let sql = format!("SELECT {COLUMNS} FROM postcommit.tenant WHERE suspended_at IS NOT NULL ORDER BY name LIMIT 100");
        Ok(legible("tenants", self.db.query(&sql, vec![]).await?.iter().map(listed)))
    }

    /// One tenant.
    pub async fn tenant_row(&self, tenant: i32) -> Result<Option<TenantRow>, DbError> {
        let sql = format!("SELECT {COLUMNS} FROM postcommit.tenant WHERE id = $1");
        self.db.query(&sql, vec![tenant.into()]).await?.first().map(listed).transpose()
    }

    /// The names behind the tenants' numbers.
    pub async fn tenants(&self) -> Result<BTreeMap<i32, String>, DbError> {
        let rows = self.db.query("SELECT id, name FROM postcommit.tenant", vec![]).await?;
        Ok(legible("tenants", rows.iter().map(|row| Ok((row.get(0)?, row.get(1)?)))).into_iter().collect())
    }

    /// The number behind a tenant's name.
    pub async fn tenant(&self, name: &str) -> Result<Option<i32>, DbError> {
        // PostgreSQL would refuse to look for it.
        if name.contains('\0') {
            return Ok(None);
        }
        let rows = self.db.query("SELECT id FROM postcommit.tenant WHERE name = $1", vec![name.into()]).await?;
        rows.first().map(|row| row.get(0)).transpose()
    }

    /// The tenant asked for, or whoever owns the notification.
    pub(in crate::store) async fn owner(&self, tenant: Option<i32>, id: Uuid) -> Result<Option<i32>, DbError> {
        if tenant.is_some() { Ok(tenant) } else { self.tenant_of(id).await }
    }

    /// Who owns a notification.
    pub(in crate::store) async fn tenant_of(&self, id: Uuid) -> Result<Option<i32>, DbError> {
        let sql = "SELECT tenant FROM postcommit.notification WHERE id = $1 AND tenant IN (SELECT id FROM postcommit.tenant)";
        self.db.query(sql, vec![id.into()]).await?.first().map(|row| row.get(0)).transpose()
    }
}

fn listed(row: &Row) -> Result<TenantRow, DbError> {
    let mut read = Reader::of(row);
    let (created_at, suspended_at) = (read.or(2, "created_at", Timestamp::from_micros(0)), read.or(3, "suspended_at", None));
    Ok(TenantRow {
        id: row.get(0)?,
        name: row.get(1)?,
        created_at,
        suspended_at,
        weight: read.or(5, "weight", 1),
        suspended_reason: row.get::<Option<String>>(4)?.or(read.problem()),
    })
}
