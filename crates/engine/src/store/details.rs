//! The details of one notification, and the deliveries of one entity.

use std::collections::BTreeMap;

use postcommit::Timestamp;
use postcommit_channel::model::StoredNotification;
use serde::Serialize;
use serde_json::Value as Json;
use uuid::Uuid;

use crate::db::DbError;
use crate::store::lists::keyset::{Page, Position};
use crate::store::lists::notifications::LIVE_STATE;
use crate::store::{AttemptRow, AuditRow, Conflict, DeliveryFilter, DeliveryRow, Store, masked};

/// A notification with its deliveries, attempts, conflicts and changes. Addresses are masked.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NotificationDetails {
    /// The notification as it was enqueued.
    #[serde(flatten)]
    pub notification: StoredNotification,
    /// The least finished state of the notification's deliveries.
    pub state: String,
    /// When one of the notification's deliveries was last sent.
    pub sent_at: Option<Timestamp>,
    /// When the last of the notification's deliveries was known to have arrived. Set only if the state is `delivered`.
    pub delivered_at: Option<Timestamp>,
    /// When the last attempt of the notification's deliveries began.
    pub last_attempt_at: Option<Timestamp>,
    /// Whether a driver for development recorded one of the deliveries instead of sending it.
    pub captured: bool,
    /// The deliveries, one per target.
    pub deliveries: Vec<DeliveryRow>,
    /// The attempts of all deliveries, in the order in which they began.
    pub attempt_log: Vec<AttemptRow>,
    /// Enqueues that were refused because this notification holds the idempotency key.
    pub conflicts: Vec<Conflict>,
    /// The audit log of the notification and its deliveries, oldest first.
    pub acts: Vec<AuditRow>,
}

/// A short status of a notification.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Status {
    /// The id of the notification, a UUIDv7.
    pub id: Uuid,
    /// The least finished state of the notification's deliveries.
    pub state: String,
    /// The number of attempts after the first, of the delivery with the most attempts.
    pub retries: i64,
    /// The text of the latest error.
    pub last_error: Option<String>,
    /// When the notification was enqueued. For a notification from a site, when the site enqueued it.
    pub enqueued_at: Timestamp,
    /// When the provider accepted the last delivery. Set only if the state is `sent` or `delivered`.
    pub sent_at: Option<Timestamp>,
    /// When the last delivery was known to have arrived: by a receipt, by a person, or because the channel is the
    /// destination. Set only if the state is `delivered`.
    pub delivered_at: Option<Timestamp>,
    /// When the last attempt began.
    pub last_attempt_at: Option<Timestamp>,
    /// Whether a driver for development recorded a delivery instead of sending it.
    pub captured: bool,
    /// When the next attempt is due.
    pub next_attempt_at: Option<Timestamp>,
    /// The origin of the notification.
    pub source: Provenance,
}

/// The origin of a notification, and its times. All times are UTC.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Provenance {
    /// The site, which is the remote place that enqueued the notification.
    pub site: Option<String>,
    /// The process or machine at the site.
    pub instance: Option<String>,
    /// The script that created the notification.
    pub script: Option<String>,
    /// The rule that created the notification.
    pub rule: Option<String>,
    /// When the site enqueued the notification.
    pub enqueued_at: Option<Timestamp>,
    /// When this server received the notification.
    pub received_at: Option<Timestamp>,
}

impl Provenance {
    fn of(note: &StoredNotification) -> Self {
        let source = note.source.as_ref();
        let text = |name: &str| source.and_then(|source| source.get(name)).and_then(Json::as_str);
        let owned = |name: &str| text(name).map(str::to_owned);
        Self {
            site: owned("site"),
            instance: owned("instance"),
            script: owned("script"),
            rule: owned("rule"),
            // The value may be anything, because applications can write the source with plain SQL. A value that is not
            // a time is ignored.
            enqueued_at: text("enqueued_at").and_then(|at| at.parse().ok()),
            received_at: Some(note.created_at),
        }
    }
}

/// How many deliveries of a notification are counted at most in each group: waiting, parked, and otherwise ended.
pub const COUNTED: i64 = 10_000;

/// The number of a notification's deliveries by state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateCounts(pub(in crate::store) BTreeMap<String, i64>);

impl StateCounts {
    /// Returns the number of deliveries in these states.
    #[must_use]
    pub fn of(&self, states: &[&str]) -> i64 {
        states.iter().filter_map(|state| self.0.get(*state)).sum()
    }

    /// Returns the number of all deliveries.
    #[must_use]
    pub fn total(&self) -> i64 {
        self.0.values().sum()
    }

    /// Returns the state that all deliveries have in common, or `None` if their states differ.
    #[must_use]
    pub fn only(&self) -> Option<&str> {
        Some(self.0.keys().next()?.as_str()).filter(|_| self.0.len() == 1)
    }

    /// Returns whether all deliveries were counted. If not, the numbers are lower bounds.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        let live = self.of(&["pending", "sending", "retrying"]);
        let parked = self.of(&["parked"]);
        [live, parked, self.total() - live - parked].iter().all(|part| *part < COUNTED)
    }
}

impl Store {
    /// Reads the details of a notification. With a tenant, returns `None` if another tenant owns the notification.
    pub async fn notification_details(
        &self,
        tenant: Option<i32>,
        id: Uuid,
    ) -> Result<Option<NotificationDetails>, DbError> {
        let Some(mut notification) = self.notification_as_shown(tenant, id).await? else { return Ok(None) };
        let Some(row) = self.notification_row_of(notification.tenant, id).await? else { return Ok(None) };
        mask(&mut notification.recipients);
        let of_it = DeliveryFilter { tenant: Some(notification.tenant), ..DeliveryFilter::of_notification(id) };
        let mut attempt_log = self.attempts(notification.tenant, id).await?;
        attempt_log.sort_by_key(|attempt| attempt.at);
        let deliveries = self.delivery_rows(&of_it).await?.rows;
        let subjects =
            deliveries.iter().map(|delivery| delivery.id.clone()).chain([id.to_string(), format!("{id}.0")]).collect();
        Ok(Some(NotificationDetails {
            state: row.state,
            sent_at: row.sent_at,
            delivered_at: row.delivered_at,
            last_attempt_at: row.last_attempt_at,
            captured: row.captured,
            deliveries,
            acts: self.audit_of(notification.tenant, subjects).await?,
            attempt_log,
            conflicts: self.conflicts(notification.tenant, id).await?,
            notification,
        }))
    }

    /// Reads the status of a notification. With a tenant, returns `None` if another tenant owns the notification.
    pub async fn status(&self, tenant: Option<i32>, id: Uuid) -> Result<Option<Status>, DbError> {
        let Some(notification) = self.notification_as_shown(tenant, id).await? else { return Ok(None) };
        let Some(row) = self.notification_row_of(notification.tenant, id).await? else { return Ok(None) };
        let sql = "SELECT max(seq) FROM postcommit.attempt WHERE tenant = $1 AND notification_id = $2";
        let tried = self.db.query(sql, vec![notification.tenant.into(), id.into()]).await?;
        let tried = tried.first().map_or(Ok(None), |row| row.get::<Option<i64>>(0))?.unwrap_or(0);
        let source = Provenance::of(&notification);
        let is_through = ["sent", "delivered"].contains(&row.state.as_str());
        Ok(Some(Status {
            id,
            state: row.state,
            retries: (tried - 1).max(0),
            last_error: row.last_error,
            enqueued_at: source.enqueued_at.unwrap_or(notification.created_at),
            sent_at: row.sent_at.filter(|_| is_through),
            delivered_at: row.delivered_at,
            last_attempt_at: row.last_attempt_at,
            captured: row.captured,
            next_attempt_at: row.next_attempt_at,
            source,
        }))
    }

    /// Counts the deliveries of a notification by state, or only those on one channel. The deliveries that wait, that
    /// are parked and that ended otherwise are each counted up to [`COUNTED`].
    pub async fn delivery_states(&self, tenant: i32, id: Uuid, channel: Option<&str>) -> Result<StateCounts, DbError> {
        let mut parameters = vec![tenant.into(), id.into(), COUNTED.into()];
        let mut which = "q.tenant = $1 AND q.notification_id = $2".to_owned();
        if let Some(channel) = channel {
            parameters.push(channel.into());
            which.push_str(" AND q.channel = $4");
        }
        let part = |state: &str, table: &str, of: &str| {
            format!("SELECT * FROM (SELECT {state} AS state FROM postcommit.{table} q WHERE {which}{of} LIMIT $3) part")
        };
        let parts = [
            part(LIVE_STATE, "delivery_queue", ""),
            part("q.state", "delivery_ledger", " AND q.state = 'parked'"),
            part("q.state", "delivery_ledger", " AND q.state <> 'parked'"),
        ];
        let sql = format!("SELECT state, count(*) FROM ({}) counted GROUP BY state", parts.join(" UNION ALL "));
        let rows = self.db.query(&sql, parameters).await?;
        let by_state = rows.iter().map(|row| Ok((row.get(0)?, row.get(1)?)));
        Ok(StateCounts(by_state.collect::<Result<_, DbError>>()?))
    }

    /// Reads the deliveries of one entity, newest first, including scheduled ones.
    pub async fn entity_rows(
        &self,
        tenant: i32,
        entity: &str,
        before: Option<Position>,
        limit: i64,
    ) -> Result<Page<DeliveryRow>, DbError> {
        let filter = DeliveryFilter {
            tenant: Some(tenant),
            entity: Some(entity.to_owned()),
            before,
            limit,
            ..DeliveryFilter::default()
        };
        self.delivery_rows(&filter).await
    }
}

/// Masks the addresses of recipients. The names of users, lists and providers stay readable.
fn mask(recipients: &mut Json) {
    for entry in recipients.as_array_mut().into_iter().flatten() {
        for (kind, value) in entry.as_object_mut().into_iter().flatten() {
            if let (false, Some(address)) = (["user", "list", "provider"].contains(&kind.as_str()), value.as_str()) {
                *value = masked(address).into();
            }
        }
    }
}
