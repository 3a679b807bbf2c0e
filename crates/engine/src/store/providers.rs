//! Providers: configured accounts, and the state of their lanes.

use std::time::Duration;

use postcommit::Timestamp;

use super::Store;
use crate::db::{DbError, Row, Value};
use crate::model::{Guarantee, Policy, Provider, ProviderDraft};

const COLUMNS: &str = "tenant, id, name, channel, driver, settings, secrets, guarantee, policy, concurrency, timeout_ms, is_default, enabled, paused, not_before, revision,
    guarantee_since, rate_per_s, burst";

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
        let insert = "INSERT INTO postcommit.provider (tenant, name, channel, driver, settings, secrets, guarantee, policy, concurrency, timeout_ms, is_default, rate_per_s, burst, created_at, updated_at)
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, {now}, {now})";
        let mut statements = step_down(tenant, draft);
        statements.push((insert.to_owned(), columns(tenant, draft)));
        self.db.execute(statements).await.map(drop)
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
        Ok(self.db.execute(statements).await?.last().copied().unwrap_or(0) > 0)
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
            let deleted = self.db.execute_one(sql, vec![tenant.into(), found.id.into()]).await?;
            // Work arrived in between.
            return Ok(Some(i64::from(deleted == 0)));
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
        Ok(self.db.execute_one(sql, vec![lane.into(), why.into(), revision.into()]).await? > 0)
    }

    /// Opens a lane again, whatever held it.
    ///
    /// # Errors
    /// As the database says.
    pub async fn resume_lane(&self, lane: i32) -> Result<bool, DbError> {
        let sql =
            "UPDATE postcommit.provider SET paused = NULL, not_before = NULL, revision = revision + 1, updated_at = {now} WHERE id = $1";
        Ok(self.db.execute_one(sql, vec![lane.into()]).await? > 0)
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
fn step_down(tenant: i32, draft: &ProviderDraft) -> Vec<(String, Vec<Value>)> {
    let sql = "UPDATE postcommit.provider SET is_default = $4, revision = revision + 1 WHERE tenant = $1 AND channel = $2 AND name <> $3 AND is_default";
    let parameters = vec![tenant.into(), draft.channel.as_str().into(), draft.name.as_str().into(), false.into()];
    if draft.is_default { vec![(sql.to_owned(), parameters)] } else { vec![] }
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
        revision: row.get(15)?,
        guarantee_since: row.get(16)?,
        rate_per_s: row.get(17)?,
        burst: row.get(18)?,
    })
}
