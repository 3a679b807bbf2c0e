//! Providers: configured accounts, and the state of their lanes.

use std::time::Duration;

use postcommit::Timestamp;

use super::{AuditEntry, Store};
use crate::db::{DbError, Row, Statement, Value};
use crate::model::{Guarantee, Policy, Provider, ProviderDraft};

const COLUMNS: &str = "tenant, id, name, channel, driver, settings, secrets, guarantee, policy, concurrency, timeout_ms, is_default, enabled, paused, not_before, revision,
    guarantee_since, tenant IN (SELECT t.id FROM postcommit.tenant t WHERE t.suspended_at IS NOT NULL), rate_per_s, burst";

const INSERT: &str = "INSERT INTO postcommit.provider (tenant, name, channel, driver, settings, secrets, guarantee, policy, concurrency, timeout_ms, is_default, rate_per_s, burst,
      created_at, updated_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, {now}, {now})";

impl Store {
    /// All providers of all tenants.
    ///
    /// # Errors
    /// As the database says.
    pub async fn providers(&self) -> Result<Vec<Provider>, DbError> {
        let sql = format!("SELECT {COLUMNS} FROM postcommit.provider ORDER BY tenant, id");
        self.db.query(&sql, vec![]).await?.iter().map(provider).collect()
    }

    /// Counts the changes of all providers; and when something may last have been sent by another provider than it would be now.
    ///
    /// # Errors
    /// As the database says.
    pub async fn providers_version(&self) -> Result<(i64, Timestamp), DbError> {
        let rows = self.db.query("SELECT version, rerouted_at FROM postcommit.provider_version", vec![]).await?;
        rows.first().map_or(Err(DbError::Unreadable("no provider_version".into())), |row| Ok((row.get(0)?, row.get(1)?)))
    }

    /// A tenant's provider by name.
    ///
    /// # Errors
    /// As the database says.
    pub async fn provider(&self, tenant: i32, name: &str) -> Result<Option<Provider>, DbError> {
        let sql = format!("SELECT {COLUMNS} FROM postcommit.provider WHERE tenant = $1 AND name = $2");
        self.db.query(&sql, vec![tenant.into(), name.into()]).await?.first().map(provider).transpose()
    }

    /// Stores a new provider. A default takes the place of the one before.
    ///
    /// # Errors
    /// When the name is taken, or as the database says.
    pub async fn create_provider(&self, tenant: i32, draft: &ProviderDraft) -> Result<(), DbError> {
        let mut statements = step_down(tenant, draft);
        statements.push((INSERT.to_owned(), columns(tenant, draft)));
        let deciding = statements.len() - 1;
        self.change_all(statements, deciding, entry(tenant, "provider.create", draft)).await.map(drop)
    }

    /// Makes the provider of a tenant's inboxes, unless it is there or somebody has taken its name.
    ///
    /// # Errors
    /// As the database says.
    pub async fn make_in_app(&self, tenant: i32) -> Result<(), DbError> {
        // Two processes may find it missing at once: the second changes nothing.
        let insert = format!("{INSERT} ON CONFLICT DO NOTHING");
        self.db.execute_one(&insert, columns(tenant, &ProviderDraft::in_app())).await.map(drop)
    }

    /// Replaces a provider's description. False when there is none of that name.
    ///
    /// # Errors
    /// As the database says.
    pub async fn update_provider(&self, tenant: i32, draft: &ProviderDraft) -> Result<bool, DbError> {
        let update = "UPDATE postcommit.provider SET channel = $3, driver = $4, settings = $5, secrets = $6,
            guarantee_since = CASE WHEN guarantee = $7 THEN guarantee_since ELSE {now} END, guarantee = $7, policy = $8, concurrency = $9, timeout_ms = $10,
            is_default = $11, rate_per_s = $12, burst = $13, revision = revision + 1, updated_at = {now} WHERE tenant = $1 AND name = $2";
        let mut statements = step_down(tenant, draft);
        statements.push((update.to_owned(), columns(tenant, draft)));
        let deciding = statements.len() - 1;
        self.change_all(statements, deciding, entry(tenant, "provider.update", draft)).await
    }

    /// Deletes a provider nothing waits for. `Ok(None)` when there is none, `Ok(Some(n))` when n deliveries still wait.
    ///
    /// # Errors
    /// As the database says.
    pub async fn delete_provider(&self, tenant: i32, name: &str) -> Result<Option<i64>, DbError> {
        let Some(found) = self.provider(tenant, name).await? else { return Ok(None) };
        let rows = self.db.query("SELECT count(*) FROM postcommit.delivery_queue WHERE lane = $1", vec![found.id.into()]).await?;
        let waiting: i64 = rows.first().map_or(Ok(0), |row| row.get(0))?;
        if waiting == 0 {
            let sql = "DELETE FROM postcommit.provider WHERE tenant = $1 AND id = $2 AND NOT EXISTS (SELECT 1 FROM postcommit.delivery_queue WHERE lane = $2)";
            let deleted = self.change(sql, vec![tenant.into(), found.id.into()], AuditEntry::new(tenant, "provider.delete", name)).await?;
            // Work arrived in between.
            return Ok(Some(i64::from(!deleted)));
        }
        Ok(Some(waiting))
    }

    /// Pauses a lane; one paused already keeps its reason. With a revision, only if nobody has changed or resumed it since: an answer to old settings
    /// says nothing about the new ones. True when this call paused it.
    ///
    /// # Errors
    /// As the database says.
    pub async fn pause_lane(&self, lane: i32, revision: Option<i32>, why: &str) -> Result<bool, DbError> {
        let sql = "UPDATE postcommit.provider SET paused = $2, revision = revision + 1, updated_at = {now}
            WHERE id = $1 AND paused IS NULL AND revision = coalesce($3, revision)";
        let entry = AuditEntry::of_lane(lane, "provider.pause").details(serde_json::json!({"reason": why}));
        self.change(sql, vec![lane.into(), why.into(), revision.into()], entry).await
    }

    /// Lets a provider take new work, or no more. False when there is none of that name.
    ///
    /// # Errors
    /// As the database says.
    pub async fn enable_provider(&self, tenant: i32, name: &str, enabled: bool) -> Result<bool, DbError> {
        let sql =
            "UPDATE postcommit.provider SET enabled = $3, revision = revision + 1, updated_at = {now} WHERE tenant = $1 AND name = $2";
        let entry = AuditEntry::new(tenant, if enabled { "provider.enable" } else { "provider.disable" }, name);
        self.change(sql, vec![tenant.into(), name.into(), enabled.into()], entry).await
    }

    /// Opens a lane again, whatever held it.
    ///
    /// # Errors
    /// As the database says.
    pub async fn resume_lane(&self, lane: i32) -> Result<bool, DbError> {
        let sql =
            "UPDATE postcommit.provider SET paused = NULL, not_before = NULL, revision = revision + 1, updated_at = {now} WHERE id = $1";
        self.change(sql, vec![lane.into()], AuditEntry::of_lane(lane, "provider.resume")).await
    }

    /// Holds a whole lane for so long from now, by the database's clock; a longer hold stays. The revision as in [`Store::pause_lane`].
    ///
    /// # Errors
    /// As the database says.
    pub async fn hold_lane(&self, lane: i32, revision: Option<i32>, wait: Duration) -> Result<(), DbError> {
        let until = match self.db.kind() {
            "postgres" => "clock_timestamp() + $2::float8 * interval '1 second'",
            _ => "{now} + CAST($2 * 1000000 AS INTEGER)",
        };
        let sql = format!(
            "UPDATE postcommit.provider SET not_before = {until} WHERE id = $1 AND (not_before IS NULL OR not_before < {until}) AND revision = coalesce($3, revision)"
        );
        self.db.execute_one(&sql, vec![lane.into(), Value::Real(wait.as_secs_f64()), revision.into()]).await.map(drop)
    }
}

/// At most one default per channel: a new one asks the old one to step down.
fn step_down(tenant: i32, draft: &ProviderDraft) -> Vec<Statement> {
    let sql = "UPDATE postcommit.provider SET is_default = $4, revision = revision + 1 WHERE tenant = $1 AND channel = $2 AND name <> $3 AND is_default";
    let parameters = vec![tenant.into(), draft.channel.as_str().into(), draft.name.as_str().into(), false.into()];
    if draft.is_default { vec![(sql.to_owned(), parameters)] } else { vec![] }
}

/// What is worth knowing later of how it was described; settings may hold what is nobody else's business.
fn entry(tenant: i32, action: &'static str, draft: &ProviderDraft) -> AuditEntry {
    let details =
        serde_json::json!({"channel": draft.channel, "driver": draft.driver, "guarantee": draft.guarantee, "is_default": draft.is_default});
    AuditEntry::new(tenant, action, draft.name.as_str()).details(details)
}

fn columns(tenant: i32, draft: &ProviderDraft) -> Vec<Value> {
    let policy = serde_json::to_value(&draft.policy).unwrap_or_default();
    vec![
        tenant.into(),
        draft.name.as_str().into(),
        draft.channel.as_str().into(),
        draft.driver.as_str().into(),
        draft.settings.clone().into(),
        draft.secrets.clone().into(),
        draft.guarantee.name().into(),
        policy.into(),
        draft.concurrency.into(),
        draft.timeout_ms.into(),
        draft.is_default.into(),
        draft.rate_per_s.map_or(Value::Null, Value::Real),
        draft.burst.into(),
    ]
}

fn provider(row: &Row) -> Result<Provider, DbError> {
    // A row that somebody edited by hand is shown as paused with the reason, so that it can be mended and holds up no other.
    let (guarantee, policy) = (Guarantee::from_name(&row.get::<String>(7)?), Policy::from_json(&row.get(8)?));
    let unreadable = guarantee.as_ref().err().cloned().or_else(|| policy.as_ref().err().map(ToString::to_string));
    Ok(Provider {
        tenant: row.get(0)?,
        id: row.get(1)?,
        name: row.get(2)?,
        channel: row.get(3)?,
        driver: row.get(4)?,
        settings: row.get(5)?,
        secrets: row.get(6)?,
        guarantee: guarantee.unwrap_or(Guarantee::AtMostOnce),
        policy: policy.unwrap_or_default(),
        concurrency: row.get(9)?,
        timeout_ms: row.get(10)?,
        is_default: row.get(11)?,
        enabled: row.get(12)?,
        paused: row.get::<Option<String>>(13)?.or(unreadable),
        not_before: row.get(14)?,
        suspended: row.get(17)?,
        revision: row.get(15)?,
        guarantee_since: row.get(16)?,
        rate_per_s: row.get(18)?,
        burst: row.get(19)?,
    })
}
