//! Operators' actions on deliveries. Each call is one transaction. If a delivery's state does not allow the action, the
//! delivery stays unchanged and the result reports it.

use postcommit::Timestamp;
use postcommit_channel::model::{DeliveryKey, Facts, MAX_MOVES};
use rusqlite::Connection;
use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;

use crate::db::columns::names;
use crate::db::{Db, DbError, Row, Transaction, Value, postgres, sqlite};
use crate::store::audit::COUNT_PARAMETERS_FROM;
use crate::store::queue::settle;
use crate::store::{AuditEntry, Store};

/// The maximum number of deliveries in one call of [`Store::act_on_many`].
pub const MAX_IDS: usize = 1000;
/// The state of a delivery that was tried and waits for its next attempt.
const RETRYING: &str = "retrying";

/// An operator's action on deliveries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Act {
    /// Sets parked deliveries back to pending and resets their counters and their age. A delivery that was scheduled
    /// for later stays scheduled. A sent delivery is never retried. A delivery that may have arrived is retried only if
    /// the request allows it. A job whose filter has the state `retrying` brings deliveries forward instead: they
    /// become due now and keep their counters.
    Retry,
    /// Ends parked deliveries with the state `discarded`. Their rows stay in the ledger.
    Discard,
    /// Cancels deliveries that wait to be sent. A delivery that is being sent is refused.
    Cancel,
}

/// The result of an action on one delivery.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "result")]
pub enum Acted {
    /// The action changed the delivery.
    Done,
    /// The delivery's state does not allow the action. Nothing was changed.
    Refused {
        /// The delivery's current state.
        state: String,
        /// The reason why the delivery is parked, if it is.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// The delivery is parked and may have arrived, and the request did not allow sending such deliveries again.
    /// Nothing was changed.
    Unclear {
        /// The reason why the delivery is parked.
        reason: Option<String>,
    },
    /// The delivery does not exist.
    NotFound,
}

impl Act {
    pub fn name(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Discard => "discard",
            Self::Cancel => "cancel",
        }
    }

    /// Returns the state that the action gives a delivery.
    pub fn result(self) -> &'static str {
        match self {
            Self::Retry => "pending",
            Self::Discard => "discarded",
            Self::Cancel => "cancelled",
        }
    }

    /// Returns the action's name in the audit log.
    fn action(self) -> &'static str {
        match self {
            Self::Retry => "delivery.retry",
            Self::Discard => "delivery.discard",
            Self::Cancel => "delivery.cancel",
        }
    }

    /// Returns whether the action makes deliveries in these states due now. It does so only for a retry of deliveries
    /// that wait for their next attempt.
    pub(in crate::store) fn brings_forward(self, states: &[String]) -> bool {
        self == Self::Retry && states == [RETRYING]
    }

    /// Returns the states in which a delivery allows the action.
    pub(in crate::store) fn states(self) -> Vec<String> {
        let states: &[&str] = if self == Self::Cancel { &["pending", "retrying"] } else { &["parked"] };
        states.iter().map(|&state| state.to_owned()).collect()
    }

    /// Returns the action's statement for PostgreSQL, and how many parameters the statement has.
    fn postgres(self, which: Allowed) -> (String, usize) {
        let (sql, parameters) = match self {
            Self::Retry if which.retrying => (FORWARD_POSTGRES, 3),
            Self::Retry => (RETRY_POSTGRES, 5),
            Self::Discard => (DISCARD_POSTGRES, 4),
            Self::Cancel => (CANCEL_POSTGRES, 3),
        };
        (with_facts(sql), parameters)
    }

    fn sqlite(self, which: Allowed) -> Vec<String> {
        let statements: &[&str] = match self {
            Self::Retry if which.retrying => &FORWARD_SQLITE,
            Self::Retry => &RETRY_SQLITE,
            Self::Discard => &DISCARD_SQLITE,
            Self::Cancel => &CANCEL_SQLITE,
        };
        statements.iter().map(|sql| sqlite::dialect(&with_facts(sql))).collect()
    }
}

impl Store {
    /// Sets a parked delivery back to pending and resets its counters. Returns false if the delivery is not parked, or
    /// if it may have arrived.
    pub async fn retry(&self, key: DeliveryKey) -> Result<bool, DbError> {
        Ok(!self.act(Act::Retry, &[key], Allowed::by_id(false)).await?.is_empty())
    }

    /// Discards a parked delivery. It stays in the ledger with the state `discarded`. Returns false if the delivery is
    /// not parked.
    pub async fn discard(&self, key: DeliveryKey) -> Result<bool, DbError> {
        Ok(!self.act(Act::Discard, &[key], Allowed::by_id(false)).await?.is_empty())
    }

    /// Cancels a delivery that is waiting to be sent. Returns false if it is being sent or has ended.
    pub async fn cancel_delivery(&self, key: DeliveryKey) -> Result<bool, DbError> {
        Ok(!self.act(Act::Cancel, &[key], Allowed::by_id(false)).await?.is_empty())
    }

    /// Acts on up to [`MAX_IDS`] deliveries in one transaction. Returns one result per key, in the order of `keys`. A
    /// repeated key is acted on once. On an error nothing was changed. `unclear` allows the retry of deliveries that
    /// may have arrived. Other actions ignore it.
    pub async fn act_on_many(&self, act: Act, keys: &[DeliveryKey], unclear: bool) -> Result<Vec<Acted>, DbError> {
        if keys.len() > MAX_IDS {
            return Err(DbError::Refused {
                code: "ids".into(),
                message: format!("{} ids were given; at most {MAX_IDS} are allowed", keys.len()),
            });
        }
        let done = self.act(act, keys, Allowed::by_id(unclear)).await?;
        let mut all = Vec::with_capacity(keys.len());
        for key in keys {
            all.push(if done.contains(key) { Acted::Done } else { self.refused(Some(act), *key).await? });
        }
        Ok(all)
    }

    /// Marks a delivery as delivered if it was sent or is parked as `outcome_unknown`. Any other delivery is refused.
    pub async fn mark_delivered(&self, key: DeliveryKey) -> Result<Acted, DbError> {
        let sql = "UPDATE postcommit.delivery_ledger
            SET state = 'delivered', reason = NULL, unclear = (1 = 0), sent_at = coalesce(sent_at, {now}),
              finished_at = {now}
            WHERE tenant = $1 AND notification_id = $2 AND n = $3
              AND (state = 'sent' OR (state = 'parked' AND reason = 'outcome_unknown'))";
        let entry = AuditEntry::new(key.tenant, "delivery.mark_delivered", key.id().to_string());
        if self.change(sql, vec![key.tenant.into(), key.notification.into(), key.n.into()], entry).await? {
            return Ok(Acted::Done);
        }
        self.refused(None, key).await
    }

    /// Cancels the deliveries of a notification that are still queued. Returns how many were cancelled, and how many
    /// are being sent and will not be tried again after this attempt. Returns `None` if the notification does not exist
    /// or belongs to another tenant.
    pub async fn cancel_notification(&self, tenant: Option<i32>, id: Uuid) -> Result<Option<(i64, i64)>, DbError> {
        let Some(owner) = self.owner(tenant, id).await? else { return Ok(None) };
        if self.notification_as_shown(Some(owner), id).await?.is_none() {
            return Ok(None);
        }
        let entry = AuditEntry::new(owner, "notification.cancel", id.to_string());
        self.cancel_live(owner, |at| format!("q.notification_id = ${at}"), vec![id.into()], entry).await.map(Some)
    }

    /// Cancels the queued deliveries of an entity, or only those of one event type. Returns the same counts as
    /// [`Store::cancel_notification`].
    pub async fn cancel_entity(
        &self,
        tenant: i32,
        entity: &str,
        event_type: Option<&str>,
    ) -> Result<(i64, i64), DbError> {
        let about = |at: usize| {
            format!(
                "EXISTS (SELECT 1
                 FROM postcommit.notification note
                 WHERE note.tenant = q.tenant AND note.id = q.notification_id AND note.entity = ${at}
                   AND note.event_type = coalesce(${}, note.event_type))",
                at + 1
            )
        };
        let mut entry = AuditEntry::new(tenant, "entity.cancel", entity);
        if let Some(event_type) = event_type {
            entry = entry.details(json!({"event_type": event_type}));
        }
        self.cancel_live(tenant, about, vec![entity.into(), event_type.into()], entry).await
    }

    /// Cancels the queue rows that match a condition. `which` gets the number of its first parameter and returns the
    /// condition.
    async fn cancel_live(
        &self,
        tenant: i32,
        which: impl Fn(usize) -> String,
        parameters: Vec<Value>,
        entry: AuditEntry,
    ) -> Result<(i64, i64), DbError> {
        let live = |at: usize| format!("postcommit.delivery_queue q WHERE q.tenant = $1 AND {}", which(at));
        // The audit entry's count includes deliveries that are being sent, which get no entry of their own.
        let entry = entry.counted(format!("SELECT count(*) FROM {}", live(COUNT_PARAMETERS_FROM)), parameters.clone());
        let parameters: Vec<Value> = [Value::from(tenant)].into_iter().chain(parameters).collect();
        let live = live(2);
        // The cancel requests are written first. So a delivery that is leased now is not tried again, even if its lease
        // ends before the next statement.
        let word = format!(
            "INSERT INTO postcommit.cancel_request (tenant, notification_id, n, asked_at)
             SELECT q.tenant, q.notification_id, q.n, {{now}}
             FROM {live}
             ON CONFLICT DO NOTHING"
        );
        self.change(&word, parameters.clone(), entry).await?;
        let rows = self.db.query(&format!("SELECT q.notification_id, q.n FROM {live}"), parameters).await?;
        let key = |row: &Row| Ok(DeliveryKey { tenant, notification: row.get(0)?, n: row.get(1)? });
        let keys = rows.iter().map(key).collect::<Result<Vec<_>, DbError>>()?;
        let mut taken = 0;
        for some in keys.chunks(MAX_IDS) {
            taken += self.act(Act::Cancel, some, Allowed::by_id(false)).await?.len();
        }
        let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        Ok((count(taken), count(keys.len() - taken)))
    }

    /// Returns why the action changed nothing on a delivery.
    async fn refused(&self, act: Option<Act>, key: DeliveryKey) -> Result<Acted, DbError> {
        Ok(match self.state_of(key).await? {
            Some((state, reason, true)) if act == Some(Act::Retry) && state == "parked" => Acted::Unclear { reason },
            Some((state, reason, _)) => Acted::Refused { state, reason },
            None => Acted::NotFound,
        })
    }

    /// Returns the state of a delivery, its reason, and whether it may have arrived.
    pub(in crate::store) async fn state_of(
        &self,
        key: DeliveryKey,
    ) -> Result<Option<(String, Option<String>, bool)>, DbError> {
        let sql = "SELECT state, reason, unclear
            FROM postcommit.delivery
            WHERE tenant_id = $1 AND notification_id = $2 AND n = $3";
        let rows = self.db.query(sql, vec![key.tenant.into(), key.notification.into(), key.n.into()]).await?;
        rows.first().map(|row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).transpose()
    }

    /// Makes deliveries due that wait for their next attempt. Their counters stay. Deliveries that are being sent or
    /// cancelled are left out.
    pub(in crate::store) async fn make_due(&self, keys: &[DeliveryKey]) -> Result<(), DbError> {
        for some in keys.chunks(MAX_IDS) {
            self.act(Act::Retry, some, Allowed { retrying: true, ..Allowed::by_id(false) }).await?;
        }
        Ok(())
    }

    /// Retries, discards or cancels the deliveries, as `act` says, if `which` allows it, and writes audit entries.
    /// Returns the keys of the deliveries that were changed.
    async fn act(&self, act: Act, keys: &[DeliveryKey], which: Allowed) -> Result<Vec<DeliveryKey>, DbError> {
        match &self.db {
            Db::Postgres(db) => {
                let mut client = db.client().await?;
                let transaction = db.begin(&mut client).await?;
                let done = act_postgres(&transaction, act, keys, which).await?;
                postgres::run(&transaction, &self.audit_each(which.action(act), &done)).await?;
                transaction.commit().await.map_err(postgres::refused)?;
                Ok(done)
            }
            Db::Sqlite(db) => {
                let (this, keys) = (self.clone(), keys.to_vec());
                db.write(move |connection| {
                    let done = act_sqlite(connection, act, &keys, which)?;
                    let (sql, parameters) = this.audit_each(which.action(act), &done);
                    sqlite::run(connection, &sqlite::dialect(&sql), &parameters)?;
                    Ok(done)
                })
                .await
            }
        }
    }
}

/// The deliveries that an action may change.
#[derive(Debug, Clone, Copy)]
pub(in crate::store) struct Allowed {
    /// Only deliveries that were parked before this time.
    pub bound: Option<Timestamp>,
    /// Whether a retry may include deliveries that may have arrived. Nothing else protects such deliveries from a
    /// retry. Every delivery that is parked as `outcome_unknown` is marked as unclear.
    pub unclear: bool,
    /// Whether a retry concerns deliveries that wait for their next attempt, and not parked ones. Such deliveries are
    /// tried again in any case, so `unclear` has no meaning for them.
    pub retrying: bool,
}

impl Allowed {
    /// Returns the limits of an action on deliveries that an operator named by id.
    fn by_id(unclear: bool) -> Self {
        Self { bound: None, unclear, retrying: false }
    }

    /// Returns the name of `act` in the audit log.
    pub fn action(self, act: Act) -> &'static str {
        if act == Act::Retry && self.retrying { "delivery.bring_forward" } else { act.action() }
    }
}

/// Acts on the deliveries whose state still allows the action, and returns their keys.
pub(in crate::store) async fn act_postgres(
    transaction: &Transaction<'_>,
    act: Act,
    keys: &[DeliveryKey],
    which: Allowed,
) -> Result<Vec<DeliveryKey>, DbError> {
    // Forces a nested loop over the primary key. The statistics of a table that has just been emptied could mislead the
    // planner.
    transaction
        .batch_execute("SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off")
        .await
        .map_err(postgres::refused)?;
    let (sql, used) = act.postgres(which);
    let statement = transaction.prepare_cached(&sql).await.map_err(postgres::refused)?;
    // The keys are sorted, so that two transactions with common rows do not deadlock.
    let mut sorted = keys.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let (first, last) =
        (sorted.iter().map(|key| key.notification).min(), sorted.iter().map(|key| key.notification).max());
    let keys = Value::Json(
        json!(
            sorted
                .iter()
                .map(|key| json!({"tenant": key.tenant, "id": key.notification, "n": key.n}))
                .collect::<Vec<_>>()
        )
        .to_string(),
    );
    let parameters = [keys, first.into(), last.into(), which.bound.into(), which.unclear.into()];
    let parameters: Vec<_> = parameters.iter().take(used).map(|p| p as _).collect();
    let rows = transaction.query(&statement, &parameters).await.map_err(postgres::refused)?;
    Ok(rows.iter().map(|row| DeliveryKey { tenant: row.get(0), notification: row.get(1), n: row.get(2) }).collect())
}

/// Acts on deliveries like [`act_postgres`], on SQLite. A write transaction is exclusive there, so the rows are changed
/// one by one.
pub(in crate::store) fn act_sqlite(
    connection: &Connection,
    act: Act,
    keys: &[DeliveryKey],
    which: Allowed,
) -> Result<Vec<DeliveryKey>, DbError> {
    let mut done = Vec::new();
    let statements = act.sqlite(which);
    for key in keys {
        let parameters: [Value; 5] =
            [key.tenant.into(), key.notification.into(), key.n.into(), which.bound.into(), which.unclear.into()];
        for (place, sql) in statements.iter().enumerate() {
            let used = (4..=5).rev().find(|n| sql.contains(&format!("?{n}"))).unwrap_or(3);
            match (place, sqlite::run(connection, sql, &parameters[..used])?) {
                (0, 0) => break,
                (0, _) => done.push(*key),
                _ => {}
            }
        }
    }
    Ok(done)
}

/// Begins a statement with the keys of the deliveries to change. The statement compares keys in a form for which the
/// planner can use only the primary key.
macro_rules! given {
    ($rest:literal) => {
        concat!(
            "WITH given AS MATERIALIZED (SELECT * FROM jsonb_to_recordset($1::jsonb) AS k (tenant int, id uuid, n int)),
             gone AS (",
            $rest
        )
    };
}

/// Fills the placeholders of a statement: the columns that a delivery keeps when it moves between the queue and the
/// ledger, and the lane and the template version that a retry sets.
fn with_facts(sql: &str) -> String {
    let version = format!("CASE WHEN {UNSENT} THEN NULL ELSE gone.template_version END");
    let gone = names::<Facts>("gone.").replace("gone.template_version", &version);
    let lane = format!("CASE WHEN p.id IS NULL OR {UNSENT} OR {MOVED} THEN -gone.tenant ELSE gone.lane END");
    let sql = sql.replace("{moves}", &moves()).replace("{logged}", settle::LOGGED).replace("{kept}", KEPT_ATTEMPT);
    sql.replace("{facts}", &names::<Facts>("")).replace("{gone.facts}", &gone).replace("{lane}", &lane)
}

/// The condition that a delivery of a template was parked before anything was sent. A retry of such a delivery goes
/// through the expansion again, where the throttle or digest decides, and is rendered by the current version of the
/// template (`queue/enter.rs`), because the template may have been corrected in the meantime. Any other delivery keeps
/// its version in every attempt, and the throttle has already counted it.
const UNSENT: &str = "(gone.n > 0 AND gone.seq = 0 AND NOT gone.unclear AND gone.template IS NOT NULL)";

/// The condition that a delivery may have come to its provider by failover. A retry of such a delivery is routed again,
/// so that it begins with the first provider of its channel. A delivery that may have arrived stays with the provider
/// that may have sent it.
const MOVED: &str = "(gone.n > 0 AND gone.provider IS NULL AND NOT gone.unclear
      AND EXISTS (SELECT 1 FROM postcommit.provider o WHERE o.tenant = gone.tenant AND o.failover = p.name))";

/// The ledger columns that describe the last attempt, in the order of `LOGGED`. When a retry takes a delivery out of
/// the ledger, e.g. after a bounce, that attempt gets a row of its own.
const KEPT_ATTEMPT: &str = "gone.tenant, gone.notification_id, gone.n, gone.seq, gone.attempted_at, gone.attempted_by, gone.outcome, NULL, NULL, NULL, gone.latency_ms, gone.provider_ref, gone.excerpt, gone.captured, gone.token";

/// Returns the SQL for the number of failovers that a retried delivery has used. A delivery that may have arrived has
/// used all of them, so that it never moves to another provider: that provider does not know the delivery's key and
/// would send it twice.
fn moves() -> String {
    format!("CASE WHEN gone.unclear THEN {MAX_MOVES} ELSE 0 END")
}

/// Moves parked rows back to the queue in one statement. Two statements could see two versions of a row that another
/// transaction moves, and the row would be lost.
const RETRY_POSTGRES: &str = given!(
    "
     DELETE FROM postcommit.delivery_ledger l
         USING given g
         WHERE l.tenant = ANY (ARRAY[g.tenant]) AND l.notification_id = g.id AND l.n = g.n
           AND l.notification_id BETWEEN $2 AND $3 AND l.state = 'parked'
           AND ($4::timestamptz IS NULL OR l.finished_at < $4) AND ($5::bool OR NOT l.unclear)
         RETURNING l.*),
       logged AS (INSERT INTO postcommit.logged_attempt ({logged})
         SELECT {kept} FROM gone WHERE gone.attempted_at IS NOT NULL),
       heard AS (DELETE FROM postcommit.cancel_request c
         USING gone
         WHERE c.tenant = gone.tenant AND c.notification_id = gone.notification_id AND c.n IN (0, gone.n))
     INSERT INTO postcommit.delivery_queue (tenant, notification_id, n, lane, priority, due_at, first_due_at, seq,
       moves, {facts})
     SELECT gone.tenant, gone.notification_id, gone.n, {lane}, note.priority, greatest(note.due_at, clock_timestamp()), greatest(note.due_at, clock_timestamp()), gone.seq,
       {moves}, {gone.facts}
     FROM gone
     JOIN postcommit.notification note ON note.tenant = gone.tenant AND note.id = gone.notification_id
       AND note.id BETWEEN $2 AND $3
     LEFT JOIN postcommit.provider p ON p.tenant = gone.tenant AND p.id = gone.lane
     RETURNING tenant, notification_id, n"
);
/// The statements of a retry on SQLite, all with the same parameters. The second and later statements run only if the
/// first one changed a row.
const RETRY_SQLITE: [&str; 4] = [
    "INSERT INTO postcommit_delivery_queue (tenant, notification_id, n, lane, priority, due_at, first_due_at, seq,
       moves, {facts})
     SELECT gone.tenant, gone.notification_id, gone.n, {lane}, note.priority, max(note.due_at, {now}), max(note.due_at, {now}), gone.seq, {moves}, {gone.facts}
     FROM postcommit_delivery_ledger gone
     JOIN postcommit_notification note ON note.tenant = gone.tenant AND note.id = gone.notification_id
     LEFT JOIN postcommit_provider p ON p.tenant = gone.tenant AND p.id = gone.lane
     WHERE gone.tenant = ?1 AND gone.notification_id = ?2 AND gone.n = ?3 AND gone.state = 'parked'
       AND (?4 IS NULL OR gone.finished_at < ?4) AND (?5 OR NOT gone.unclear)",
    "INSERT INTO postcommit_logged_attempt ({logged})
     SELECT {kept} FROM postcommit_delivery_ledger gone
     WHERE gone.tenant = ?1 AND gone.notification_id = ?2 AND gone.n = ?3 AND gone.state = 'parked' AND gone.attempted_at IS NOT NULL",
    "DELETE FROM postcommit_delivery_ledger WHERE tenant = ?1 AND notification_id = ?2 AND n = ?3 AND state = 'parked'",
    "DELETE FROM postcommit_cancel_request
     WHERE tenant = ?1 AND notification_id = ?2 AND n IN (0, ?3)
       AND EXISTS (SELECT 1
         FROM postcommit_delivery_queue q
         WHERE q.tenant = ?1 AND q.notification_id = ?2 AND q.n = ?3 AND q.lease_token IS NULL)",
];
/// Makes retrying rows due. A locked row is being claimed, or an application's open transaction is cancelling it. The
/// statement skips such a row, so it neither waits nor deadlocks.
const FORWARD_POSTGRES: &str = given!(
    "
     SELECT q.tenant, q.notification_id, q.n
       FROM given g
       JOIN postcommit.delivery_queue q ON q.tenant = ANY (ARRAY[g.tenant]) AND q.notification_id = g.id AND q.n = g.n
       WHERE q.notification_id BETWEEN $2 AND $3 AND q.lease_token IS NULL AND (q.attempts > 0 OR q.losses > 0)
       FOR UPDATE OF q SKIP LOCKED)
     UPDATE postcommit.delivery_queue q
     SET due_at = least(q.due_at, clock_timestamp())
     FROM gone
     WHERE q.tenant = ANY (ARRAY[gone.tenant]) AND q.notification_id = gone.notification_id AND q.n = gone.n
       AND q.notification_id BETWEEN $2 AND $3
     RETURNING q.tenant, q.notification_id, q.n"
);
const FORWARD_SQLITE: [&str; 1] = ["UPDATE postcommit_delivery_queue SET due_at = min(due_at, {now})
    WHERE tenant = ?1 AND notification_id = ?2 AND n = ?3 AND lease_token IS NULL AND (attempts > 0 OR losses > 0)"];
const DISCARD_POSTGRES: &str = given!(
    "
     UPDATE postcommit.delivery_ledger l
       SET state = 'discarded', finished_at = clock_timestamp()
       FROM given g
       WHERE l.tenant = ANY (ARRAY[g.tenant]) AND l.notification_id = g.id AND l.n = g.n
         AND l.notification_id BETWEEN $2 AND $3 AND l.state = 'parked'
         AND ($4::timestamptz IS NULL OR l.finished_at < $4)
       RETURNING l.tenant, l.notification_id, l.n)
     SELECT tenant, notification_id, n
     FROM gone"
);
const DISCARD_SQLITE: [&str; 1] = ["UPDATE postcommit_delivery_ledger SET state = 'discarded', finished_at = {now}
    WHERE tenant = ?1 AND notification_id = ?2 AND n = ?3 AND state = 'parked' AND (?4 IS NULL OR finished_at < ?4)"];
const CANCEL_POSTGRES: &str = given!(
    "
     DELETE FROM postcommit.delivery_queue q
       USING given g
       WHERE q.tenant = ANY (ARRAY[g.tenant]) AND q.notification_id = g.id AND q.n = g.n
         AND q.notification_id BETWEEN $2 AND $3 AND q.lease_token IS NULL
       RETURNING q.*)
     INSERT INTO postcommit.delivery_ledger (tenant, notification_id, n, lane, state, code, attempts, seq, unclear,
       finished_at, {facts})
     SELECT tenant, notification_id, n, lane, 'cancelled', 'cancelled', attempts, seq,
       unclear OR lost_since IS NOT NULL, clock_timestamp(), {facts}
     FROM gone
     RETURNING tenant, notification_id, n"
);
const CANCEL_SQLITE: [&str; 2] = [
    "INSERT INTO postcommit_delivery_ledger (tenant, notification_id, n, lane, state, code, attempts, seq, unclear,
       finished_at, {facts})
     SELECT tenant, notification_id, n, lane, 'cancelled', 'cancelled', attempts, seq,
       unclear OR lost_since IS NOT NULL, {now}, {facts}
     FROM postcommit_delivery_queue
     WHERE tenant = ?1 AND notification_id = ?2 AND n = ?3 AND lease_token IS NULL",
    "DELETE FROM postcommit_delivery_queue WHERE tenant = ?1 AND notification_id = ?2 AND n = ?3 AND lease_token IS NULL",
];
