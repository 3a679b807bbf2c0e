//! Providers: the configured accounts, and the state of their lanes.

use std::collections::BTreeMap;
use std::time::Duration;

use postcommit::Timestamp;
use postcommit_channel::model::{
    BREAKER_COOL_DOWN_S, BREAKER_FAILURES, Bucket, FAILOVER_AFTER_S, Guarantee, PROVIDERS, Policy, Provider,
    ProviderChange, ProviderDraft, TIMEOUT_MS,
};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::db::{DbError, Row, Statement, Value};
use crate::store::audit::{RECOVER, TRIP};
use crate::store::secret_key::{SealedWith, key_allowed};
use crate::store::unreadable::{Reader, legible};
use crate::store::{AuditEntry, Store};

const COLUMNS: &str =
    "tenant, id, name, channel, driver, settings, secrets, guarantee, policy, concurrency, timeout_ms,
    is_default, enabled, paused, held_until, revision, guarantee_since,
    tenant IN (SELECT t.id FROM postcommit.tenant t WHERE t.suspended_at IS NOT NULL), rate_per_s, burst,
    breaker_failures, breaker_cool_down_s, trips, hold_reason, failover, failover_after_s";

/// How many changes of providers may run concurrently in one process. An application's transaction may lock the rows,
/// and a waiting change occupies a connection.
static CHANGES: Semaphore = Semaphore::const_new(2);
/// How long a change of a provider waits for one of the permits in [`CHANGES`].
const TURN: Duration = Duration::from_secs(5);

/// How many past versions of the provider table can be read as changes. Older deletions are not kept, so a process that
/// is further behind reads all providers.
const KEPT: i64 = 100_000;

/// Changes of providers, and of the tenants' data that dispatchers use.
#[derive(Debug, Clone)]
pub struct ProviderChanges {
    /// The version of the provider table after these changes.
    pub version: i64,
    /// The time of the last change that could alter the routing.
    pub rerouted_at: Timestamp,
    /// Whether `providers` contains all providers instead of only the changed ones.
    pub is_all: bool,
    /// Providers that are new or changed, or whose tenant was suspended or resumed.
    pub providers: Vec<Provider>,
    /// Lanes of deleted providers.
    pub gone: Vec<i32>,
    /// Tenants and their weights. With `is_all`, only tenants whose weight is not 1.
    pub weights: Vec<(i32, u32)>,
}

/// The condition that the channel has no default provider yet.
const UNSERVED: &str =
    "NOT EXISTS (SELECT 1 FROM postcommit.provider WHERE tenant = $1 AND channel = $3 AND is_default)";

pub(in crate::store) async fn turn() -> Result<SemaphorePermit<'static>, DbError> {
    let busy = || {
        DbError::Unreachable(
            "other changes of providers are still running, or the rows of providers are locked; try again".into(),
        )
    };
    match tokio::time::timeout(TURN, CHANGES.acquire()).await {
        Ok(Ok(permit)) => Ok(permit),
        _ => Err(busy()),
    }
}

/// Returns the SQL that inserts a draft. The new provider becomes the default immediately if its channel has none.
/// Otherwise [`take_over`] makes it the default.
fn insert() -> String {
    format!(
        "INSERT INTO postcommit.provider (tenant, name, channel, driver, settings, secrets, guarantee, policy,
           concurrency, timeout_ms, is_default, rate_per_s, burst, enabled, breaker_failures, breaker_cool_down_s,
           failover, failover_after_s, created_at, updated_at)
         SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11 AND {UNSERVED}, $12, $13, $14, $15, $16, $17, $18,
           {{now}}, {{now}}"
    )
}

impl Store {
    /// Reads how many permits of its rate limit each lane uses, for at most 1,000 lanes. Lanes without a rate limit are
    /// left out.
    pub async fn permits_in_use(&self, tenant: Option<i32>) -> Result<BTreeMap<i32, Bucket>, DbError> {
        let of_tenant = if tenant.is_some() { " AND p.tenant = $1" } else { "" };
        let sql = format!(
            "SELECT r.lane, r.used, r.as_of
             FROM postcommit.lane_rate r
             JOIN postcommit.provider p ON p.id = r.lane
             WHERE p.rate_per_s IS NOT NULL{of_tenant}
             LIMIT 1000"
        );
        let rows = self.db.query(&sql, tenant.map(Value::from).into_iter().collect()).await?;
        let bucket = |row: &Row| Ok((row.get::<i32>(0)?, Bucket { used: row.get(1)?, as_of: row.get(2)? }));
        rows.iter().map(bucket).collect()
    }

    /// Reads all providers of all tenants.
    pub async fn providers(&self) -> Result<Vec<Provider>, DbError> {
        let sql = format!("SELECT {COLUMNS} FROM postcommit.provider ORDER BY tenant, id");
        Ok(legible("providers", self.db.query(&sql, vec![]).await?.iter().map(provider)))
    }

    /// Reads the changes of providers since a version. Without a version, or if the version is too old, it reads all
    /// providers.
    pub async fn provider_changes(&self, since: Option<i64>) -> Result<ProviderChanges, DbError> {
        // The version is read first, so that a concurrent change may be read twice but is never missed.
        let (version, rerouted_at) = self.providers_version().await?;
        // A version that is higher than the current version was read before the database was restored from a backup.
        let Some(since) = since.filter(|since| (version - KEPT..=version).contains(since)) else {
            let weights = self.db.query("SELECT id, weight FROM postcommit.tenant WHERE weight <> 1", vec![]).await?;
            let (providers, weights) = (self.providers().await?, weighed(&weights)?);
            return Ok(ProviderChanges { version, rerouted_at, is_all: true, providers, gone: vec![], weights });
        };
        // Each query uses its own index. Deletions and tenants are few and share a statement, in which weight 0 marks a
        // deleted provider.
        let changed = format!("SELECT {COLUMNS} FROM postcommit.provider WHERE changed > $1 ORDER BY changed");
        let others = "SELECT id, 0 FROM postcommit.provider_gone WHERE changed > $1
            UNION ALL SELECT id, weight FROM postcommit.tenant WHERE changed > $1 AND changed > 0";
        let (changed, others) =
            tokio::try_join!(self.db.query(&changed, vec![since.into()]), self.db.query(others, vec![since.into()]))?;
        let mut providers = legible("providers", changed.iter().map(provider));
        let (gone, tenants): (Vec<_>, Vec<_>) = weighed(&others)?.into_iter().partition(|(_, weight)| *weight == 0);
        for (tenant, _) in &tenants {
            providers.extend(self.providers_of(*tenant).await?);
        }
        let gone = gone.into_iter().map(|(id, _)| id).collect();
        Ok(ProviderChanges { version, rerouted_at, is_all: false, providers, gone, weights: tenants })
    }

    /// Returns the version of the provider table and the time of the last change that could alter routing.
    pub async fn providers_version(&self) -> Result<(i64, Timestamp), DbError> {
        let rows = self.db.query("SELECT version, rerouted_at FROM postcommit.provider_version", vec![]).await?;
        let row = rows.first().ok_or_else(|| {
            DbError::Unreadable("the table provider_version has no row; restore it from a backup".into())
        })?;
        // If the time of the change is unreadable, the current time is used, because the change may have just happened.
        let rerouted_at = match row.get(1) {
            Ok(at) => at,
            Err(_) => self.now().await?,
        };
        Ok((row.get(0).unwrap_or_default(), rerouted_at))
    }

    /// Reads a tenant's provider by name.
    pub async fn provider(&self, tenant: i32, name: &str) -> Result<Option<Provider>, DbError> {
        let sql = format!("SELECT {COLUMNS} FROM postcommit.provider WHERE tenant = $1 AND name = $2");
        self.db.query(&sql, vec![tenant.into(), name.into()]).await?.first().map(provider).transpose()
    }

    pub async fn providers_of(&self, tenant: i32) -> Result<Vec<Provider>, DbError> {
        let sql = format!("SELECT {COLUMNS} FROM postcommit.provider WHERE tenant = $1 ORDER BY id");
        Ok(legible("providers", self.db.query(&sql, vec![tenant.into()]).await?.iter().map(provider)))
    }

    /// Creates a provider. If it is the default, it replaces the former default. Returns false if the name is taken or
    /// the tenant already has [`PROVIDERS`] providers.
    pub async fn create_provider(&self, tenant: i32, draft: &ProviderDraft) -> Result<bool, DbError> {
        self.insert_provider(tenant, draft, true, None).await
    }

    /// Creates a provider that no operator requested. Also returns false if the channel already has a default provider.
    pub async fn create_first_provider(&self, tenant: i32, draft: &ProviderDraft) -> Result<bool, DbError> {
        self.insert_provider(tenant, draft, false, None).await
    }

    /// Creates a provider with encrypted secrets, and records the key in the same transaction. Also returns false if
    /// the installation has another key by now. Needs a store handle for all tenants, because all tenants share one
    /// key. `displaces` says whether the provider may replace the default of its channel.
    pub async fn create_sealed_provider(
        &self,
        tenant: i32,
        draft: &ProviderDraft,
        displaces: bool,
        key: &SealedWith,
    ) -> Result<bool, DbError> {
        self.insert_provider(tenant, draft, displaces, Some(key)).await
    }

    async fn insert_provider(
        &self,
        tenant: i32,
        draft: &ProviderDraft,
        displaces: bool,
        key: Option<&SealedWith>,
    ) -> Result<bool, DbError> {
        let allowed = key.map(|_| format!("AND {}", key_allowed(COLUMN_COUNT + 3))).unwrap_or_default();
        let (limit, may_displace) = (COLUMN_COUNT + 1, COLUMN_COUNT + 2);
        let insert = format!(
            "{}
             WHERE (SELECT count(*) FROM postcommit.provider WHERE tenant = $1) < ${limit}
               AND (${may_displace} OR {UNSERVED}) {allowed}
             ON CONFLICT (tenant, name) DO NOTHING",
            insert()
        );
        let mut parameters = columns(tenant, draft);
        parameters.extend([Value::Int(i64::try_from(PROVIDERS).unwrap_or(i64::MAX)), displaces.into()]);
        parameters.extend(key.into_iter().flat_map(SealedWith::parameters));
        self.describe(tenant, draft, (insert, parameters), entry(tenant, draft), key).await
    }

    /// Stores a provider that the program creates by itself, unless its name is taken or its channel has a default
    /// provider.
    pub async fn create_missing_provider(&self, tenant: i32, draft: &ProviderDraft) -> Result<(), DbError> {
        let mut statements = self.alone(tenant, draft);
        // Two processes may find the provider missing concurrently. The second process then changes nothing.
        statements.push((format!("{} WHERE {UNSERVED} ON CONFLICT DO NOTHING", insert()), columns(tenant, draft)));
        self.db.execute(statements).await.map(drop)
    }

    /// Changes a provider if it still has the revision that was read. Returns false if it was changed or deleted in the
    /// meantime.
    pub async fn update_provider(&self, change: &ProviderChange) -> Result<bool, DbError> {
        self.update(change, None).await
    }

    /// Changes a provider whose secrets were encrypted again, and records the key in the same transaction. Also returns
    /// false if the installation has another key by now. Needs a store handle for all tenants, because all tenants
    /// share one key.
    pub async fn update_sealed_provider(&self, change: &ProviderChange, key: &SealedWith) -> Result<bool, DbError> {
        self.update(change, Some(key)).await
    }

    async fn update(&self, change: &ProviderChange, key: Option<&SealedWith>) -> Result<bool, DbError> {
        let allowed = key.map(|_| format!(" AND {}", key_allowed(COLUMN_COUNT + 2))).unwrap_or_default();
        // A provider that stays the default of its channel remains the default during the change, so that no delivery
        // is routed elsewhere.
        let revision = COLUMN_COUNT + 1;
        let update = format!(
            "UPDATE postcommit.provider
            SET channel = $3, driver = $4, settings = $5, secrets = $6,
              guarantee_since = CASE WHEN guarantee = $7 THEN guarantee_since ELSE {{now}} END, guarantee = $7,
              policy = $8, concurrency = $9, timeout_ms = $10, is_default = is_default AND channel = $3 AND $11,
              rate_per_s = $12, burst = $13, enabled = $14, breaker_failures = $15, breaker_cool_down_s = $16,
              failover = $17, failover_after_s = $18, revision = revision + 1, updated_at = {{now}}
            WHERE tenant = $1 AND name = $2 AND revision = ${revision}{allowed}"
        );
        let (tenant, draft) = (change.from.tenant, &change.to);
        let mut parameters = columns(tenant, draft);
        parameters.push(change.from.revision.into());
        parameters.extend(key.into_iter().flat_map(SealedWith::parameters));
        let entry = AuditEntry::new(tenant, "provider.update", draft.name.as_str()).details(change.fields());
        self.describe(tenant, draft, (update, parameters), entry, key).await
    }

    /// Writes a provider, makes it the default if the draft says so, and records the key of its secrets. If `write`
    /// changes no row, nothing else is written.
    async fn describe(
        &self,
        tenant: i32,
        draft: &ProviderDraft,
        write: Statement,
        entry: AuditEntry,
        key: Option<&SealedWith>,
    ) -> Result<bool, DbError> {
        let noted = match key {
            Some(key) => self.note_key(key).await?,
            None => vec![],
        };
        let _turn = turn().await?;
        let mut statements: Vec<Statement> = key.and_then(|key| self.key_turn(key)).into_iter().collect();
        statements.extend(self.alone(tenant, draft));
        let deciding = statements.len();
        statements.push(write);
        statements.extend(take_over(tenant, draft));
        statements.extend(noted);
        self.change_all(statements, deciding, entry).await
    }

    /// Returns the statements that make concurrent writes of a tenant's providers run one after another. So a channel
    /// has at most one default, and a tenant keeps to its limit of providers. SQLite has only one writer and needs no
    /// statements.
    ///
    /// The rows are locked before the first write, because a write also locks the counter of all changes. Otherwise a
    /// deadlock is possible: this transaction holds the counter and waits for a row, and another transaction that
    /// pauses that row's provider waits for the counter.
    fn alone(&self, tenant: i32, draft: &ProviderDraft) -> Vec<Statement> {
        if self.db.kind() != "postgres" {
            return vec![];
        }
        let one_by_one = "SELECT pg_advisory_xact_lock(hashtext('postcommit.provider'), $1)";
        let rows = "SELECT
             FROM postcommit.provider
             WHERE tenant = $1 AND (name = $2 OR (channel = $3 AND is_default))
             ORDER BY id
             FOR UPDATE";
        let (name, channel) = (draft.name.as_str(), draft.channel.as_str());
        vec![
            (one_by_one.to_owned(), vec![tenant.into()]),
            (rows.to_owned(), vec![tenant.into(), name.into(), channel.into()]),
        ]
    }

    /// Counts the deliveries that wait for a provider.
    pub async fn waiting_for(&self, lane: i32) -> Result<i64, DbError> {
        let sql = "SELECT count(*) FROM postcommit.delivery_queue WHERE lane = $1";
        self.db.query(sql, vec![lane.into()]).await?.first().map_or(Ok(0), |row| row.get(0))
    }

    /// Deletes a provider that has no waiting deliveries. Returns `None` if the provider does not exist. Otherwise
    /// returns how many deliveries prevent the deletion, where 0 means that the provider was deleted.
    pub async fn delete_provider(&self, tenant: i32, name: &str) -> Result<Option<i64>, DbError> {
        let Some(found) = self.provider(tenant, name).await? else { return Ok(None) };
        let waiting = self.waiting_for(found.id).await?;
        if waiting == 0 {
            let _turn = turn().await?;
            let sql = "DELETE FROM postcommit.provider
                WHERE tenant = $1 AND id = $2 AND NOT EXISTS (SELECT 1 FROM postcommit.delivery_queue WHERE lane = $2)";
            let deleted = self
                .change(sql, vec![tenant.into(), found.id.into()], AuditEntry::new(tenant, "provider.delete", name))
                .await?;
            // If no row was deleted, a delivery entered the lane after the count.
            return Ok(Some(i64::from(!deleted)));
        }
        Ok(Some(waiting))
    }

    /// Pauses a lane, and returns whether this call paused it. A lane that is already paused keeps its reason. With a
    /// revision, the lane is paused only if the provider was not changed or resumed since, because a response to old
    /// settings says nothing about the new ones.
    pub async fn pause_lane(&self, lane: i32, revision: Option<i32>, why: &str) -> Result<bool, DbError> {
        let sql = "UPDATE postcommit.provider SET paused = $2, revision = revision + 1, updated_at = {now}
            WHERE id = $1 AND paused IS NULL AND revision = coalesce($3, revision)";
        let _turn = turn().await?;
        let entry = AuditEntry::of_lane(lane, "provider.pause").details(serde_json::json!({"reason": why}));
        self.change(sql, vec![lane.into(), why.into(), revision.into()], entry).await
    }

    /// Opens a lane and all its hosts, whether they are held or paused. Deliveries that wait for a host or for the end
    /// of a hold become due. Returns false without any change if nothing was closed or the lane does not exist.
    pub async fn resume_lane(&self, lane: i32) -> Result<bool, DbError> {
        let _turn = turn().await?;
        let held_until = self.held_until(lane, None).await?;
        let decide = "UPDATE postcommit.provider
            SET paused = NULL, held_until = NULL, trips = 0, hold_reason = NULL, revision = revision + 1,
              updated_at = {now}
            WHERE id = $1
              AND (paused IS NOT NULL OR held_until > {now} OR trips > 0
                OR EXISTS (SELECT 1
                  FROM postcommit.lane_host h
                  WHERE h.tenant = postcommit.provider.tenant AND h.lane = $1
                    AND (h.paused IS NOT NULL OR h.held_until > {now} OR h.trips > 0)))";
        let open = "UPDATE postcommit.lane_host
            SET held_until = NULL, paused = NULL, trips = 0, hold_reason = NULL, updated_at = {now}
            WHERE lane = $1 AND (paused IS NOT NULL OR held_until > {now} OR trips > 0)";
        let statements = vec![(self.own_name(decide), vec![lane.into()]), (open.to_owned(), vec![lane.into()])];
        let opened = self.change_all(statements, 0, AuditEntry::of_lane(lane, "provider.resume")).await?;
        if opened {
            self.bring_hosts_forward(lane, None).await?;
        }
        if let Some(until) = held_until.filter(|_| opened) {
            self.bring_held_forward(lane, None, until).await?;
        }
        Ok(opened)
    }

    /// Holds a lane for `wait` from now, by the database's clock, and returns whether this call changed the hold. A
    /// longer hold is kept. `revision` works as in [`Store::pause_lane`].
    pub async fn hold_lane(&self, lane: i32, revision: Option<i32>, wait: Duration) -> Result<bool, DbError> {
        let until = self.db.seconds_from_now(2);
        let sql = format!(
            "UPDATE postcommit.provider
             SET held_until = {until}, hold_reason = NULL
             WHERE id = $1 AND (held_until IS NULL OR held_until < {until}) AND revision = coalesce($3, revision)"
        );
        let parameters = vec![lane.into(), Value::Real(wait.as_secs_f64()), revision.into()];
        Ok(self.db.execute_one(&sql, parameters).await? > 0)
    }

    /// Holds a lane because its breaker tripped, and returns whether this call did so. `trips` is the number of earlier
    /// trips that the caller knows. If another process has counted a trip or a success since then, nothing is changed.
    /// A longer hold is kept. `revision` works as in [`Store::pause_lane`]. The first trip after a success is written to
    /// the audit log; the trips that follow while the provider keeps failing are not.
    pub async fn trip_lane(
        &self,
        lane: i32,
        revision: Option<i32>,
        (trips, wait, why): (i32, Duration, &str),
    ) -> Result<bool, DbError> {
        let until = self.db.seconds_from_now(2);
        let sql = format!(
            "UPDATE postcommit.provider
             SET held_until = CASE WHEN held_until > {until} THEN held_until ELSE {until} END, trips = trips + 1,
               hold_reason = $5
             WHERE id = $1 AND revision = coalesce($3, revision) AND trips = $4"
        );
        let parameters = vec![lane.into(), Value::Real(wait.as_secs_f64()), revision.into(), trips.into(), why.into()];
        if trips > 0 {
            return Ok(self.db.execute_one(&sql, parameters).await? > 0);
        }
        let entry = AuditEntry::of_lane(lane, TRIP).details(serde_json::json!({"reason": why}));
        self.change(&sql, parameters, entry).await
    }

    /// Records that a send over a tripped lane succeeded. Returns false if another process has counted a trip or a
    /// success since.
    pub async fn recover_lane(&self, lane: i32, trips: i32) -> Result<bool, DbError> {
        let sql = "UPDATE postcommit.provider SET trips = 0, hold_reason = NULL WHERE id = $1 AND trips = $2";
        let entry = AuditEntry::of_lane(lane, RECOVER).details(serde_json::json!({"trips": trips}));
        self.change(sql, vec![lane.into(), trips.into()], entry).await
    }
}

/// Reads rows with the number of a lane or tenant and its weight. An unreadable weight counts as 1.
fn weighed(rows: &[Row]) -> Result<Vec<(i32, u32)>, DbError> {
    rows.iter()
        .map(|row| Ok((row.get(0)?, row.get::<i32>(1).map_or(1, |weight| u32::try_from(weight).unwrap_or(1)))))
        .collect()
}

/// Returns the statements that make the draft the default of its channel. A channel has at most one default, so the
/// former default is cleared first.
fn take_over(tenant: i32, draft: &ProviderDraft) -> Vec<Statement> {
    if !draft.is_default {
        return vec![];
    }
    let step_down = "UPDATE postcommit.provider SET is_default = $4, revision = revision + 1, updated_at = {now}
        WHERE tenant = $1 AND channel = $2 AND name <> $3 AND is_default";
    let take = "UPDATE postcommit.provider
        SET is_default = $4
        WHERE tenant = $1 AND channel = $2 AND name = $3 AND NOT is_default";
    let parameters =
        |to: bool| vec![tenant.into(), draft.channel.as_str().into(), draft.name.as_str().into(), to.into()];
    vec![(step_down.to_owned(), parameters(false)), (take.to_owned(), parameters(true))]
}

/// Returns the audit entry for a new provider. Settings are left out because they may be confidential.
fn entry(tenant: i32, draft: &ProviderDraft) -> AuditEntry {
    let details = serde_json::json!({"channel": draft.channel, "driver": draft.driver, "guarantee": draft.guarantee, "is_default": draft.is_default});
    AuditEntry::new(tenant, "provider.create", draft.name.as_str()).details(details)
}

/// How many values [`columns`] returns.
const COLUMN_COUNT: usize = 18;

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
        draft.enabled.into(),
        draft.breaker_failures.into(),
        draft.breaker_cool_down_s.into(),
        draft.failover.as_deref().into(),
        draft.failover_after_s.into(),
    ]
}

fn provider(row: &Row) -> Result<Provider, DbError> {
    // A row that was edited by hand and is invalid is shown as paused, with the reason. So an operator can repair it,
    // and it does not block other providers.
    let (guarantee, policy) = (Guarantee::from_name(&row.get::<String>(7)?), Policy::from_json(&row.get(8)?));
    let mut read = Reader::of(row);
    let draft = ProviderDraft {
        name: row.get(2)?,
        channel: row.get(3)?,
        driver: row.get(4)?,
        settings: row.get(5)?,
        secrets: read.or(6, "secrets", None),
        guarantee: guarantee.clone().unwrap_or(Guarantee::AtMostOnce),
        policy: policy.as_ref().cloned().unwrap_or_default(),
        concurrency: read.or(9, "concurrency", 1),
        timeout_ms: read.or(10, "timeout_ms", TIMEOUT_MS),
        is_default: read.or(11, "is_default", false),
        enabled: read.or(12, "enabled", false),
        rate_per_s: read.or(18, "rate_per_s", None),
        burst: read.or(19, "burst", None),
        breaker_failures: read.or(20, "breaker_failures", BREAKER_FAILURES),
        breaker_cool_down_s: read.or(21, "breaker_cool_down_s", BREAKER_COOL_DOWN_S),
        failover: read.or(24, "failover", None),
        failover_after_s: read.or(25, "failover_after_s", FAILOVER_AFTER_S),
    };
    let mut provider = Provider {
        tenant: row.get(0)?,
        id: row.get(1)?,
        draft,
        paused: row.get(13)?,
        held_until: read.or(14, "held_until", None),
        trips: read.or(22, "trips", 0),
        hold_reason: read.or(23, "hold_reason", None),
        suspended: row.get(17)?,
        revision: read.or(15, "revision", 0),
        is_readable: true,
        guarantee_since: read.or(16, "guarantee_since", Timestamp::from_micros(0)),
    };
    let unreadable =
        guarantee.err().or_else(|| policy.err().map(|problem| problem.to_string())).or_else(|| read.problem());
    provider.is_readable = unreadable.is_none();
    provider.paused = provider.paused.or(unreadable);
    Ok(provider)
}
