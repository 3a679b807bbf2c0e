//! Reads deliveries, live and finished, and their attempts.

use std::time::Duration;

use postcommit::Timestamp;
use postcommit_channel::model::{DeliveryId, DeliveryKey, Facts, QuietWindow};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::db::columns::{Columns, in_order, names};
use crate::db::{DbError, Row, Value};
use crate::store::Store;
use crate::store::lists::deliveries::DeliveryList;
use crate::store::lists::keyset::{Page, Position};
use crate::store::lists::rows::RowQuery;
use crate::store::unreadable::{Reader, legible};

/// A delivery as lists show it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeliveryRow {
    /// The id of the delivery, `{notification}.{n}`.
    pub id: String,
    /// The tenant that owns the delivery.
    pub tenant: String,
    /// The notification that the delivery belongs to.
    pub notification_id: Uuid,
    /// The number of the target within the notification, from 1. 0 while the notification is not expanded.
    pub n: i32,
    /// The event type of the notification.
    pub event_type: String,
    /// The entity that the event is about.
    pub entity: Option<String>,
    /// The title of the notification. `null` if a template makes the subject.
    pub title: Option<String>,
    /// The channel of the delivery.
    pub channel: Option<String>,
    /// The name of the provider.
    pub provider: Option<String>,
    /// The address of the recipient, masked.
    pub target: Option<String>,
    /// The full address. Set only if the request asked for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The state of the delivery.
    pub state: String,
    /// The reason why the delivery is parked, if it is.
    pub reason: Option<String>,
    /// Attempts since the delivery was enqueued or last retried by an operator.
    pub attempts: i64,
    /// When the next attempt is due.
    pub next_attempt_at: Option<Timestamp>,
    /// What an unfinished delivery waits for, in words: its due time, the end of its user's quiet hours, its provider,
    /// which is paused, or a process that delivers. `null` when it is finished.
    pub waits_for: Option<String>,
    /// The end of the user's quiet hours, in words, if the delivery is due at that end.
    #[serde(skip)]
    pub(in crate::store) quiet_until: Option<String>,
    /// Code of the last error.
    pub error_code: Option<String>,
    /// The class of the last error. The classes are the same for all providers.
    pub error_class: Option<String>,
    /// The text of the last error.
    pub last_error: Option<String>,
    /// The warning of the template in the last attempt, such as placeholders without a value, if the attempt had no
    /// error.
    pub warning: Option<String>,
    /// The provider's id of the message.
    pub provider_ref: Option<String>,
    /// When the delivery was enqueued.
    pub created_at: Timestamp,
    /// When the provider accepted the message.
    pub sent_at: Option<Timestamp>,
    /// When the message was known to have arrived: by a receipt, by a person, or because the channel is the
    /// destination.
    pub delivered_at: Option<Timestamp>,
    /// When the last attempt began.
    pub last_attempt_at: Option<Timestamp>,
    /// When the delivery last changed.
    pub updated_at: Timestamp,
    /// Whether an attempt since the last retry may have arrived although its outcome is unknown.
    pub unclear: bool,
    /// Whether a driver for development recorded the message instead of sending it.
    pub captured: bool,
    /// The idempotency key of the notification.
    pub idempotency_key: String,
    /// The template with which the delivery is rendered. `null` if the notification's own title and body are sent.
    pub template: Option<String>,
    /// The version of the template.
    pub template_version: Option<i32>,
    /// The language of the message.
    pub language: Option<String>,
    /// The user who has the address. `null` for an address without a user.
    pub user_id: Option<String>,
    /// The send key. For a template that is sent once per entity: `{entity}:{event type}:{channel}:{template}`. For a
    /// resend with a template: the resend's own key.
    pub send_key: Option<String>,
    /// For a resend, the id of the original notification.
    pub copy_of: Option<Uuid>,
    /// For a resend, the actor that requested it.
    pub asked_by: Option<String>,
}

/// An attempt to send a delivery.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AttemptRow {
    /// The id of the delivery, `{notification}.{n}`.
    pub delivery_id: String,
    /// The number of the attempt, from 1. A retry by an operator does not reset it.
    pub seq: i32,
    /// When the attempt began.
    pub at: Timestamp,
    /// The name of the provider.
    pub provider: Option<String>,
    /// The outcome of the attempt.
    pub outcome: String,
    /// The code of the error.
    pub code: Option<String>,
    /// The class of the error. The classes are the same for all providers.
    pub error_class: Option<String>,
    /// The text of the error, and the warning of the template: `warning: …`. Without a code only the warning.
    pub detail: Option<String>,
    /// How long the attempt took.
    pub latency_ms: i32,
    /// The provider's id of the message.
    pub provider_ref: Option<String>,
    /// The beginning of the provider's answer, redacted.
    pub excerpt: Option<String>,
    /// Whether a driver for development recorded the message instead of sending it.
    pub captured: bool,
}

/// A filter of deliveries. Lists are ordered newest first. Its JSON form, without tenant, position and page size, is
/// the filter of a job.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct DeliveryFilter {
    /// Only deliveries of this tenant. `None` means all tenants.
    #[serde(skip)]
    pub tenant: Option<i32>,
    /// Only deliveries in one of these states. Empty means any state.
    #[serde(rename = "state", skip_serializing_if = "Vec::is_empty")]
    pub states: Vec<String>,
    /// Only deliveries that are parked for this reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Only deliveries over this channel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
    /// Only deliveries of this provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// Only deliveries of this event type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event_type: Option<String>,
    /// Only deliveries about this entity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entity: Option<String>,
    /// Only deliveries whose notification came from this site.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub site: Option<String>,
    /// Only deliveries of notifications to this list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub list: Option<String>,
    /// Only deliveries with each of these words in the title of the notification, or in its event type if it has no
    /// title. Case is ignored; on SQLite only for ASCII letters. At most 8 words are used.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub words: Vec<String>,
    /// Only deliveries of this notification.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notification_id: Option<Uuid>,
    /// Only deliveries that were enqueued at this time or later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<Timestamp>,
    /// Only deliveries that were enqueued before this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// Only deliveries with at least this many attempts since they were enqueued or last retried by an operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts: Option<i64>,
    /// Only deliveries whose last error has this code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
    /// Only deliveries whose last error has this class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_class: Option<String>,
    /// Only deliveries to exactly this user id or address.
    #[serde(skip_serializing_if = "Option::is_none", alias = "target")]
    pub recipient: Option<String>,
    /// Only deliveries whose notification has this correlation id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// True: only deliveries that may have arrived although the outcome is unknown. False: only deliveries without an
    /// unclear attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unclear: Option<bool>,
    /// Only deliveries that were first due longer ago than this and are not being sent.
    #[serde(skip)]
    pub stuck: Option<Duration>,
    /// Whether to list only deliveries that a driver for development recorded instead of sending them.
    #[serde(skip)]
    pub captured: bool,
    /// Whether the rows include the full address in addition to the masked address.
    #[serde(skip)]
    pub full: bool,
    /// The position where the previous page ended.
    #[serde(skip)]
    pub before: Option<Position>,
    /// The maximum number of rows to return.
    #[serde(skip)]
    pub limit: i64,
}

impl DeliveryFilter {
    /// Returns the filter for all deliveries of one notification.
    #[must_use]
    pub fn of_notification(id: Uuid) -> Self {
        // The limit allows 1,000 recipients, the most in a notification, with ten addresses each. Deliveries beyond it,
        // which only a large list can have, are left out.
        Self { notification_id: Some(id), limit: 10_000, ..Self::default() }
    }
}

const ROW_QUERY: RowQuery = RowQuery {
    columns: "id, tenant, notification_id, n, event_type, entity, channel, {provider}, target, state, reason, attempts,
        next_attempt_at, error_code, last_error, provider_ref, created_at, sent_at, updated_at, unclear,
        error_class, delivered_at, last_attempt_at, captured, idempotency_key, template, copy_of, asked_by,
        template_version, language, user_id, send_key, warning, expires_at,
        (SELECT q.context FROM postcommit.delivery_queue q WHERE q.tenant = $1 AND q.notification_id = $2 AND q.n = $3),
        (SELECT note.title FROM postcommit.notification note WHERE note.tenant = $1 AND note.id = $2)",
    of_one: "postcommit.delivery WHERE tenant_id = $1 AND notification_id = $2 AND n = $3",
};

impl Store {
    /// Reads one page of deliveries, newest first.
    pub async fn delivery_rows(&self, filter: &DeliveryFilter) -> Result<Page<DeliveryRow>, DbError> {
        let list = DeliveryList::new(filter, self.stuck_since(filter.stuck).await?, self.dialect());
        let page = self.list_rows(&list, Some(ROW_QUERY), list.start(), filter.limit).await?;
        let mut rows = legible("deliveries", page.rows.iter().map(|(_, row)| listed(row, filter.full)));
        self.say_waits(filter.tenant, &mut rows).await?;
        Ok(Page { rows, more: page.more })
    }

    /// Returns the statements that list a window of `step` rows. A test checks their plans.
    #[doc(hidden)]
    pub async fn delivery_statements(
        &self,
        filter: &DeliveryFilter,
        step: i64,
    ) -> Result<Vec<(String, Vec<Value>)>, DbError> {
        let list = DeliveryList::new(filter, self.stuck_since(filter.stuck).await?, self.dialect());
        self.statements(&list, Some(ROW_QUERY), list.start(), step, filter.limit).await
    }

    /// Reads one delivery. With a tenant, it returns the delivery only if that tenant owns it. With `full`, the full
    /// address is included next to the masked one.
    pub async fn delivery_row(
        &self,
        tenant: Option<i32>,
        id: DeliveryId,
        full: bool,
    ) -> Result<Option<DeliveryRow>, DbError> {
        let Some(tenant) = self.owner(tenant, id.notification).await? else { return Ok(None) };
        let key = vec![tenant.into(), id.notification.into(), id.n.into()];
        let rows = self.db.query(&ROW_QUERY.statement(), key).await?;
        let mut rows = rows.first().map(|row| listed(row, full)).transpose()?.into_iter().collect::<Vec<_>>();
        self.say_waits(Some(tenant), &mut rows).await?;
        Ok(rows.pop())
    }

    /// Returns the key of a delivery, live or finished. With a tenant, it returns the key only if that tenant owns the
    /// delivery.
    pub async fn delivery_key(&self, tenant: Option<i32>, id: DeliveryId) -> Result<Option<DeliveryKey>, DbError> {
        let Some(tenant) = self.owner(tenant, id.notification).await? else { return Ok(None) };
        let key = DeliveryKey { tenant, notification: id.notification, n: id.n };
        Ok(self.state_of(key).await?.map(|_| key))
    }

    /// Reads the attempts of all deliveries of a notification, ordered by delivery and number.
    pub async fn attempts(&self, tenant: i32, notification: Uuid) -> Result<Vec<AttemptRow>, DbError> {
        let sql =
            "SELECT notification_id, n, seq, at, provider, outcome, code, detail, latency_ms, provider_ref, excerpt,
               error_class, captured
             FROM postcommit.attempt
             WHERE tenant = $1 AND notification_id = $2
             ORDER BY n, seq";
        Ok(legible("attempts", self.db.query(sql, vec![tenant.into(), notification.into()]).await?.iter().map(attempt)))
    }

    /// Reads the attempts of one delivery, in order. At most `limit` are read, the newest.
    pub async fn attempts_of(&self, key: DeliveryKey, limit: i64) -> Result<Vec<AttemptRow>, DbError> {
        let sql =
            "SELECT notification_id, n, seq, at, provider, outcome, code, detail, latency_ms, provider_ref, excerpt,
               error_class, captured
             FROM postcommit.attempt
             WHERE tenant = $1 AND notification_id = $2 AND n = $3
             ORDER BY seq DESC
             LIMIT $4";
        let key = vec![key.tenant.into(), key.notification.into(), key.n.into(), limit.into()];
        let mut attempts = legible("attempts", self.db.query(sql, key).await?.iter().map(attempt));
        attempts.reverse();
        Ok(attempts)
    }

    /// Reads the provider and the latency in milliseconds of a tenant's newest attempts, ordered from the newest
    /// notification on.
    pub async fn newest_latencies(&self, tenant: i32, limit: i64) -> Result<Vec<(String, i32)>, DbError> {
        let sql = "SELECT provider, latency_ms
             FROM postcommit.attempt
             WHERE tenant = $1
             ORDER BY notification_id DESC, n DESC
             LIMIT $2";
        let read = |row: &Row| Ok((row.get::<Option<String>>(0)?, row.get::<i32>(1)?));
        let rows = self.db.query(sql, vec![tenant.into(), limit.into()]).await?;
        let read = legible("attempts", rows.iter().map(read));
        Ok(read.into_iter().filter_map(|(provider, took)| Some((provider?, took))).collect())
    }

    /// Reads the attempts of the newest notifications of a tenant, at most `limit`, the newest attempts first.
    pub async fn newest_attempts(&self, tenant: i32, limit: i64) -> Result<Vec<AttemptRow>, DbError> {
        let sql =
            "SELECT notification_id, n, seq, at, provider, outcome, code, detail, latency_ms, provider_ref, excerpt,
               error_class, captured
             FROM postcommit.attempt
             WHERE tenant = $1
             ORDER BY notification_id DESC, n DESC
             LIMIT $2";
        let rows = self.db.query(sql, vec![tenant.into(), limit.into()]).await?;
        let mut attempts = legible("attempts", rows.iter().map(attempt));
        attempts.sort_by_key(|attempt| std::cmp::Reverse((attempt.at, attempt.seq)));
        Ok(attempts)
    }

    /// Reads the facts of a delivery, live or finished.
    pub async fn facts(&self, key: DeliveryKey) -> Result<Option<Facts>, DbError> {
        let columns = names::<Facts>("");
        let of = |table: &str| {
            format!("SELECT {columns} FROM postcommit.{table} WHERE tenant = $1 AND notification_id = $2 AND n = $3")
        };
        let sql = format!("{} UNION ALL {}", of("delivery_queue"), of("delivery_ledger"));
        let rows = self.db.query(&sql, vec![key.tenant.into(), key.notification.into(), key.n.into()]).await?;
        rows.into_iter().next().map(|mut row| Facts::read(&mut row, &in_order::<Facts>())).transpose()
    }

    /// Reads attempts that began after `since`, in order of time. Only notifications with an id of at least `oldest`
    /// are read. Used to follow new attempts.
    pub async fn attempts_since(&self, since: Timestamp, oldest: Uuid, limit: i64) -> Result<Vec<AttemptRow>, DbError> {
        let sql = "SELECT notification_id, n, seq, at, provider, outcome, code, detail, latency_ms, provider_ref,
              excerpt, error_class, captured
            FROM postcommit.attempt
            WHERE at > $1 AND tenant IN (SELECT id FROM postcommit.tenant) AND notification_id >= $2
            ORDER BY at, notification_id, n, seq
            LIMIT $3";
        Ok(legible(
            "attempts",
            self.db.query(sql, vec![since.into(), oldest.into(), limit.into()]).await?.iter().map(attempt),
        ))
    }
}

/// Masks an address so that it can be recognised but not used.
#[must_use]
pub fn masked(target: &str) -> String {
    if let Some((scheme, rest)) = target.split_once("://") {
        // The URL may be inside JSON, as in a browser's push subscription, and the text before the URL is confidential.
        let scheme = scheme.rsplit(['"', '{', ' ']).next().unwrap_or("");
        let authority = rest.split(['/', '?', '#', '\\', '"']).next().unwrap_or("");
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

fn listed(row: &Row, full: bool) -> Result<DeliveryRow, DbError> {
    let (mut read, never) = (Reader::of(row), Timestamp::from_micros(0));
    let mut listed = DeliveryRow {
        id: row.get(0)?,
        tenant: row.get(1)?,
        notification_id: row.get(2)?,
        n: row.get(3)?,
        event_type: row.get(4)?,
        entity: row.get(5)?,
        title: row.get(35)?,
        channel: row.get(6)?,
        provider: row.get(7)?,
        target: row.get::<Option<String>>(8)?.map(|target| masked(&target)),
        address: if full { row.get(8)? } else { None },
        state: row.get(9)?,
        reason: row.get(10)?,
        attempts: read.or(11, "attempts", 0),
        next_attempt_at: read.or(12, "due_at", None),
        waits_for: None,
        quiet_until: None,
        error_code: row.get(13)?,
        last_error: row.get(14)?,
        provider_ref: row.get(15)?,
        created_at: read.or(16, "created_at", never),
        sent_at: read.or(17, "sent_at", None),
        updated_at: read.or(18, "finished_at", never),
        unclear: read.or(19, "unclear", true),
        error_class: row.get(20)?,
        delivered_at: read.or(21, "finished_at", None),
        last_attempt_at: read.or(22, "at", None),
        captured: read.or(23, "captured", false),
        idempotency_key: row.get(24)?,
        template: row.get(25)?,
        copy_of: row.get(26)?,
        asked_by: row.get(27)?,
        template_version: read.or(28, "template_version", None),
        language: row.get(29)?,
        user_id: row.get(30)?,
        send_key: row.get(31)?,
        warning: row.get(32)?,
    };
    let (expires_at, context) = (row.get(33).ok(), row.get::<Option<String>>(34).ok().flatten());
    let due = listed.next_attempt_at.zip(expires_at);
    listed.quiet_until = due.and_then(|due| quiet_until(context.as_deref(), due));
    listed.last_error = read.problem().or(listed.last_error);
    Ok(listed)
}

/// Describes the end of the quiet hours that a delivery waits for. `next` is the due time of the delivery: the end of
/// the quiet hours, or its expiry if that is earlier.
fn quiet_until(context: Option<&str>, (next, expires_at): (Timestamp, Timestamp)) -> Option<String> {
    let window = QuietWindow::of(context)?;
    let end = window.end(Timestamp::from_micros(next.as_micros() - 1))?;
    let local = window.local(end).map(|local| format!(" ({local})")).unwrap_or_default();
    let expiry =
        if expires_at < end { format!("; the delivery expires before that, at {expires_at}") } else { String::new() };
    Some(format!("the end of its user's quiet hours, {end}{local}{expiry}"))
}

fn attempt(row: &Row) -> Result<AttemptRow, DbError> {
    let mut read = Reader::of(row);
    let mut attempt = AttemptRow {
        delivery_id: DeliveryId { notification: row.get(0)?, n: row.get(1)? }.to_string(),
        seq: row.get(2)?,
        at: read.or(3, "at", Timestamp::from_micros(0)),
        provider: row.get(4)?,
        outcome: row.get(5)?,
        code: row.get(6)?,
        detail: row.get(7)?,
        latency_ms: read.or(8, "latency_ms", 0),
        provider_ref: row.get(9)?,
        excerpt: row.get(10)?,
        error_class: row.get(11)?,
        captured: read.or(12, "captured", false),
    };
    attempt.detail = read.problem().or(attempt.detail);
    Ok(attempt)
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
            (r#"{"keys":{"auth":"hush"},"endpoint":"https://push.example:8443/hush"}"#, "https://push.example:8443/…"),
            (r#"{"endpoint":"https://push.example"}"#, "https://push.example/…"),
            ("short", "…"),
        ] {
            assert_eq!(masked(target), shown);
        }
    }
}
