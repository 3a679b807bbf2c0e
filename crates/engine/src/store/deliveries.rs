//! Deliveries, live and finished, their attempts, and what an operator does with them.

use postcommit::Timestamp;
use serde::Serialize;
use uuid::Uuid;

use super::notifications::readable;
use super::{AuditEntry, Store};
use crate::db::{DbError, Row, Value};
use crate::model::{DeliveryId, DeliveryKey};

/// One delivery, as people see it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DeliveryRow {
    /// `{notification}.{n}`.
    pub id: String,
    /// Its owner.
    pub tenant: String,
    /// The notification it belongs to.
    pub notification_id: Uuid,
    /// Which of its targets.
    pub n: i32,
    /// What happened.
    pub event_type: String,
    /// About what.
    pub entity: Option<String>,
    /// The medium.
    pub channel: Option<String>,
    /// The provider's name.
    pub provider: Option<String>,
    /// The address, masked.
    pub target: Option<String>,
    /// Where it stands.
    pub state: String,
    /// Why, when parked.
    pub reason: Option<String>,
    /// Attempts in this round.
    pub attempts: i64,
    /// When it is next tried.
    pub next_attempt_at: Option<Timestamp>,
    /// Code of the last error.
    pub error_code: Option<String>,
    /// The last error.
    pub last_error: Option<String>,
    /// The provider's own id.
    pub provider_ref: Option<String>,
    /// When it was enqueued.
    pub created_at: Timestamp,
    /// When it was sent.
    pub sent_at: Option<Timestamp>,
    /// When anything last happened to it.
    pub updated_at: Timestamp,
    /// Some attempt of this round may have arrived without our knowing.
    pub unclear: bool,
}

/// One try.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AttemptRow {
    /// `{notification}.{n}` of the delivery.
    pub delivery: String,
    /// Its number, from 1, over all rounds.
    pub seq: i32,
    /// When it began.
    pub at: Timestamp,
    /// By which provider.
    pub provider: Option<String>,
    /// What the channel saw.
    pub outcome: String,
    /// The error's code.
    pub code: Option<String>,
    /// The error.
    pub detail: Option<String>,
    /// How long it took.
    pub latency_ms: i32,
    /// The provider's own id.
    pub provider_ref: Option<String>,
    /// The beginning of the answer, redacted.
    pub excerpt: Option<String>,
}

/// Which deliveries to list, newest first.
#[derive(Debug, Clone, Default)]
pub struct DeliveryFilter {
    /// Only this tenant's.
    pub tenant: Option<String>,
    /// Only in this state.
    pub state: Option<String>,
    /// Only parked for this reason.
    pub reason: Option<String>,
    /// Only on this channel.
    pub channel: Option<String>,
    /// Only of this provider.
    pub provider: Option<String>,
    /// Only of this event type.
    pub event_type: Option<String>,
    /// Only about this entity.
    pub entity: Option<String>,
    /// Only of this notification.
    pub notification: Option<Uuid>,
    /// Only of notifications older than this: the page after the one that ended there.
    pub before: Option<Uuid>,
    /// At most so many.
    pub limit: i64,
}

const COLUMNS: &str = "id, tenant, notification_id, n, event_type, entity, channel, provider, target, state, reason, attempts, next_attempt_at, error_code, last_error, provider_ref,
    created_at, sent_at, updated_at, unclear";

/// The key without its tenant finds its row by the tenant table: small, and it keeps the tenant first in every index.
const OF_KEY: &str = "tenant = $1 AND notification_id = $2 AND n = $3";

impl Store {
    /// A page of deliveries, newest first.
    ///
    /// # Errors
    /// As the database says.
    pub async fn delivery_rows(&self, filter: &DeliveryFilter) -> Result<Vec<DeliveryRow>, DbError> {
        let mut sql = format!("SELECT {COLUMNS} FROM postcommit.delivery WHERE notification_id < $1");
        let mut parameters: Vec<Value> = vec![filter.before.unwrap_or(Uuid::max()).into()];
        // The tenant leads every key: without it the history would be searched.
        let of_notification = match filter.notification {
            Some(id) => self.tenant_of(id).await?,
            None => None,
        };
        let mut narrow = |column: &str, wanted: Option<Value>| {
            if let Some(wanted) = wanted {
                parameters.push(wanted);
                sql.push_str(&format!(" AND {column} = ${}", parameters.len()));
            }
        };
        let texts = [
            ("tenant", &filter.tenant),
            ("state", &filter.state),
            ("reason", &filter.reason),
            ("channel", &filter.channel),
            ("provider", &filter.provider),
            ("event_type", &filter.event_type),
            ("entity", &filter.entity),
        ];
        for (column, wanted) in texts {
            narrow(column, wanted.as_deref().map(Value::from));
        }
        if let Some(id) = filter.notification {
            let Some(tenant) = of_notification else { return Ok(vec![]) };
            narrow("tenant_id", Some(tenant.into()));
            narrow("notification_id", Some(id.into()));
        }
        parameters.push(filter.limit.into());
        sql.push_str(&format!(" ORDER BY notification_id DESC, n LIMIT ${}", parameters.len()));
        Ok(readable(self.db.query(&sql, parameters).await?.iter().map(listed)))
    }

    /// One delivery.
    ///
    /// # Errors
    /// As the database says.
    pub async fn delivery_row(&self, id: DeliveryId) -> Result<Option<DeliveryRow>, DbError> {
        let Some(tenant) = self.tenant_of(id.notification).await? else { return Ok(None) };
        let sql = format!("SELECT {COLUMNS} FROM postcommit.delivery WHERE tenant_id = $1 AND notification_id = $2 AND n = $3");
        self.db.query(&sql, vec![tenant.into(), id.notification.into(), id.n.into()]).await?.first().map(listed).transpose()
    }

    /// The store's key of a delivery, live or finished.
    ///
    /// # Errors
    /// As the database says.
    pub async fn delivery_key(&self, id: DeliveryId) -> Result<Option<DeliveryKey>, DbError> {
        let sql = "SELECT tenant FROM postcommit.delivery_queue WHERE notification_id = $1 AND n = $2 AND tenant IN (SELECT id FROM postcommit.tenant)
            UNION ALL SELECT tenant FROM postcommit.delivery_ledger WHERE notification_id = $1 AND n = $2 AND tenant IN (SELECT id FROM postcommit.tenant)";
        let rows = self.db.query(sql, vec![id.notification.into(), id.n.into()]).await?;
        rows.first().map(|row| Ok(DeliveryKey { tenant: row.get(0)?, notification: id.notification, n: id.n })).transpose()
    }

    /// The attempts of a notification's deliveries, in order.
    ///
    /// # Errors
    /// As the database says.
    pub async fn attempts(&self, tenant: i32, notification: Uuid) -> Result<Vec<AttemptRow>, DbError> {
        let sql =
            "SELECT notification_id, n, seq, at, provider, outcome, code, detail, latency_ms, provider_ref, excerpt FROM postcommit.attempt
            WHERE tenant = $1 AND notification_id = $2 ORDER BY n, seq";
        self.db.query(sql, vec![tenant.into(), notification.into()]).await?.iter().map(attempt).collect()
    }

    /// The attempts that began after `since`, of notifications enqueued after `oldest`, in order: for following along.
    ///
    /// # Errors
    /// As the database says.
    pub async fn attempts_since(&self, since: Timestamp, oldest: Uuid, limit: i64) -> Result<Vec<AttemptRow>, DbError> {
        let sql = "SELECT notification_id, n, seq, at, provider, outcome, code, detail, latency_ms, provider_ref, excerpt FROM postcommit.attempt
            WHERE at > $1 AND tenant IN (SELECT id FROM postcommit.tenant) AND notification_id >= $2 ORDER BY at, notification_id, n, seq LIMIT $3";
        self.db.query(sql, vec![since.into(), oldest.into(), limit.into()]).await?.iter().map(attempt).collect()
    }

    /// Sets a parked delivery back to pending with its counters reset; what was scheduled for later still is. What was sent is never sent again
    /// by this. False when it was not parked.
    ///
    /// # Errors
    /// As the database says.
    pub async fn retry(&self, key: DeliveryKey) -> Result<bool, DbError> {
        self.move_row(key, RETRY_POSTGRES, &RETRY_SQLITE, "delivery.retry").await
    }

    /// Ends a parked delivery for good; the row stays. False when it was not parked.
    ///
    /// # Errors
    /// As the database says.
    pub async fn discard(&self, key: DeliveryKey) -> Result<bool, DbError> {
        let sql =
            format!("UPDATE postcommit.delivery_ledger SET state = 'discarded', finished_at = {{now}} WHERE {OF_KEY} AND state = 'parked'");
        let entry = AuditEntry::new(key.tenant, "delivery.discard", key.id().to_string());
        self.change(&sql, vec![key.tenant.into(), key.notification.into(), key.n.into()], entry).await
    }

    /// Takes back a delivery that is not under way. False when it is, or is over.
    ///
    /// # Errors
    /// As the database says.
    pub async fn cancel_delivery(&self, key: DeliveryKey) -> Result<bool, DbError> {
        self.move_row(key, CANCEL_POSTGRES, &CANCEL_SQLITE, "delivery.cancel").await
    }

    /// Moves a row between queue and ledger. True when it was there to be moved: the first statement tells.
    async fn move_row(&self, key: DeliveryKey, postgres: &str, sqlite: &[&str], action: &'static str) -> Result<bool, DbError> {
        let of_key = || vec![Value::from(key.tenant), key.notification.into(), key.n.into()];
        let statements = if self.db.kind() == "postgres" { &[postgres][..] } else { sqlite };
        let statements = statements.iter().map(|sql| ((*sql).to_owned(), of_key())).collect();
        self.change_all(statements, 0, AuditEntry::new(key.tenant, action, key.id().to_string())).await
    }
}

/// What leaves one table enters the other in the same statement: two statements would see two states of a row that others move as well, and lose it.
const RETRY_POSTGRES: &str = "
    WITH gone AS (
      DELETE FROM postcommit.delivery_ledger WHERE tenant = $1 AND notification_id = $2 AND n = $3 AND state = 'parked' RETURNING *
    ), heard AS (
      DELETE FROM postcommit.cancel_request c USING gone WHERE c.tenant = gone.tenant AND c.notification_id = gone.notification_id AND c.n IN (0, gone.n)
    )
    INSERT INTO postcommit.delivery_queue (tenant, notification_id, n, lane, priority, due_at, seq, channel, target)
    SELECT gone.tenant, gone.notification_id, gone.n, CASE WHEN p.id IS NULL THEN 0 ELSE gone.lane END, note.priority, greatest(note.due_at, clock_timestamp()), gone.seq, gone.channel, gone.target
    FROM gone JOIN postcommit.notification note ON note.tenant = gone.tenant AND note.id = gone.notification_id
    LEFT JOIN postcommit.provider p ON p.tenant = gone.tenant AND p.id = gone.lane";
/// SQLite's transaction lets nobody in between. Every statement takes the same parameters.
const RETRY_SQLITE: [&str; 3] = [
    "INSERT INTO postcommit_delivery_queue (tenant, notification_id, n, lane, priority, due_at, seq, channel, target)
     SELECT l.tenant, l.notification_id, l.n, CASE WHEN p.id IS NULL THEN 0 ELSE l.lane END, note.priority, max(note.due_at, {now}), l.seq, l.channel, l.target
     FROM postcommit_delivery_ledger l JOIN postcommit_notification note ON note.tenant = l.tenant AND note.id = l.notification_id
     LEFT JOIN postcommit_provider p ON p.tenant = l.tenant AND p.id = l.lane
     WHERE l.tenant = ?1 AND l.notification_id = ?2 AND l.n = ?3 AND l.state = 'parked'",
    "DELETE FROM postcommit_delivery_ledger WHERE tenant = ?1 AND notification_id = ?2 AND n = ?3 AND state = 'parked'",
    "DELETE FROM postcommit_cancel_request WHERE tenant = ?1 AND notification_id = ?2 AND n IN (0, ?3)
     AND EXISTS (SELECT 1 FROM postcommit_delivery_queue q WHERE q.tenant = ?1 AND q.notification_id = ?2 AND q.n = ?3 AND q.lease_token IS NULL)",
];
const CANCEL_POSTGRES: &str = "
    WITH gone AS (
      DELETE FROM postcommit.delivery_queue WHERE tenant = $1 AND notification_id = $2 AND n = $3 AND lease_token IS NULL RETURNING *
    )
    INSERT INTO postcommit.delivery_ledger (tenant, notification_id, n, lane, channel, target, state, code, attempts, seq, unclear, finished_at)
    SELECT tenant, notification_id, n, lane, channel, target, 'cancelled', 'cancelled', attempts, seq, unclear OR lost_since IS NOT NULL, clock_timestamp() FROM gone";
const CANCEL_SQLITE: [&str; 2] = [
    "INSERT INTO postcommit_delivery_ledger (tenant, notification_id, n, lane, channel, target, state, code, attempts, seq, unclear, finished_at)
     SELECT tenant, notification_id, n, lane, channel, target, 'cancelled', 'cancelled', attempts, seq, unclear OR lost_since IS NOT NULL, {now}
     FROM postcommit_delivery_queue WHERE tenant = ?1 AND notification_id = ?2 AND n = ?3 AND lease_token IS NULL",
    "DELETE FROM postcommit_delivery_queue WHERE tenant = ?1 AND notification_id = ?2 AND n = ?3 AND lease_token IS NULL",
];

/// Enough of an address to recognise it, not enough to use it.
#[must_use]
pub fn masked(target: &str) -> String {
    if let Some((scheme, rest)) = target.split_once("://") {
        let authority = rest.split(['/', '?', '#', '\\']).next().unwrap_or("");
        return format!("{scheme}://{}/…", authority.rsplit('@').next().unwrap_or(""));
    }
    let keep = |text: &str, n: usize| text.chars().take(n).collect::<String>();
    match target.rsplit_once('@') {
        Some((local, domain)) => format!("{}…@{domain}", keep(local, 1)),
        None if target.chars().count() > 6 => {
            let tail: Vec<char> = target.chars().rev().take(2).collect();
            format!("{}…{}", keep(target, 3), tail.iter().rev().collect::<String>())
        }
        None => "…".into(),
    }
}

fn listed(row: &Row) -> Result<DeliveryRow, DbError> {
    Ok(DeliveryRow {
        id: row.get(0)?,
        tenant: row.get(1)?,
        notification_id: row.get(2)?,
        n: row.get(3)?,
        event_type: row.get(4)?,
        entity: row.get(5)?,
        channel: row.get(6)?,
        provider: row.get(7)?,
        target: row.get::<Option<String>>(8)?.map(|target| masked(&target)),
        state: row.get(9)?,
        reason: row.get(10)?,
        attempts: row.get(11)?,
        next_attempt_at: row.get(12)?,
        error_code: row.get(13)?,
        last_error: row.get(14)?,
        provider_ref: row.get(15)?,
        created_at: row.get(16)?,
        sent_at: row.get(17)?,
        updated_at: row.get(18)?,
        unclear: row.get(19)?,
    })
}

fn attempt(row: &Row) -> Result<AttemptRow, DbError> {
    Ok(AttemptRow {
        delivery: DeliveryId { notification: row.get(0)?, n: row.get(1)? }.to_string(),
        seq: row.get(2)?,
        at: row.get(3)?,
        provider: row.get(4)?,
        outcome: row.get(5)?,
        code: row.get(6)?,
        detail: row.get(7)?,
        latency_ms: row.get(8)?,
        provider_ref: row.get(9)?,
        excerpt: row.get(10)?,
    })
}

#[cfg(test)]
mod tests {
    use super::masked;

    #[test]
    fn an_address_is_recognisable_but_not_usable() {
        for (target, shown) in [
            ("guest@example.com", "g…@example.com"),
            ("+919876543210", "+91…10"),
            ("https://hooks.example.com/services/T0/B0/secret?x=1", "https://hooks.example.com/…"),
            ("https://user:hush@h.example/x", "https://h.example/…"),
            ("short", "…"),
        ] {
            assert_eq!(masked(target), shown);
        }
    }
}
