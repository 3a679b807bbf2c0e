//! Reads notifications as they were enqueued, and their status.

use std::sync::LazyLock;
use std::time::Duration;

use postcommit::Timestamp;
use postcommit_channel::model::StoredNotification;
use serde::Serialize;
use uuid::Uuid;

use crate::crash::held_to;
use crate::db::columns::{Columns, columns, in_order, list_postgres, list_sqlite, places};
use crate::db::{Db, DbError, Row, Value, postgres, sqlite};
use crate::store::Store;
use crate::store::lists::keyset::{Page, Position};
use crate::store::lists::notifications::NotificationList;
use crate::store::lists::rows::RowQuery;
use crate::store::unreadable::{AsShown, Reader, legible};

/// A notification in a list.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NotificationRow {
    /// The id of the notification, a UUIDv7.
    pub id: Uuid,
    /// The tenant that owns the notification.
    pub tenant: String,
    /// The event type of the notification.
    pub event_type: String,
    /// The entity that the event is about.
    pub entity: Option<String>,
    /// The idempotency key, unique within the tenant.
    pub idempotency_key: String,
    /// The least finished state of the notification's deliveries.
    pub state: String,
    /// The number of attempts of all deliveries of the notification.
    pub attempts: i64,
    /// The number of deliveries of the notification.
    pub deliveries: i64,
    /// When the earliest next attempt of its deliveries is due.
    pub next_attempt_at: Option<Timestamp>,
    /// The text of the latest error.
    pub last_error: Option<String>,
    /// When the notification was enqueued.
    pub created_at: Timestamp,
    /// When one of the notification's deliveries was last sent.
    pub sent_at: Option<Timestamp>,
    /// When the last of the notification's deliveries was known to have arrived. Set only if its state is `delivered`.
    pub delivered_at: Option<Timestamp>,
    /// When the last attempt of the notification's deliveries began.
    pub last_attempt_at: Option<Timestamp>,
    /// Whether a driver for development recorded one of the deliveries instead of sending it.
    pub captured: bool,
    /// The subject or heading of the notification.
    pub title: Option<String>,
}

/// An enqueue that was refused because its idempotency key belongs to other content.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Conflict {
    /// The event type of the refused enqueue.
    pub event_type: String,
    /// The entity of the refused enqueue.
    pub entity: Option<String>,
    /// When the conflict was recorded.
    pub noted_at: Timestamp,
}

/// The filter for a list of notifications. The newest come first.
#[derive(Debug, Clone, Default)]
pub struct NotificationFilter {
    /// Only notifications of this tenant. `None` means all tenants.
    pub tenant: Option<i32>,
    /// Only notifications in one of these states. Empty means any state.
    pub states: Vec<String>,
    /// Only notifications of this event type.
    pub event_type: Option<String>,
    /// Only notifications about this entity.
    pub entity: Option<String>,
    /// Only notifications from this site.
    pub site: Option<String>,
    /// Only notifications to this list.
    pub list: Option<String>,
    /// Only notifications to this user id or address, which must match exactly.
    pub recipient: Option<String>,
    /// Only the notification with this idempotency key, in each tenant.
    pub idempotency_key: Option<String>,
    /// Only notifications with a delivery on this channel, or that ask for this channel.
    pub channel: Option<String>,
    /// Only notifications of this priority.
    pub priority: Option<i16>,
    /// Only notifications that were enqueued at this time or later.
    pub from: Option<Timestamp>,
    /// Only notifications that were enqueued before this time.
    pub until: Option<Timestamp>,
    /// Only notifications with a delivery that was first due longer ago than this and is not being sent.
    pub stuck: Option<Duration>,
    /// Only notifications whose deliveries have at least this many attempts in total.
    pub attempts: Option<i64>,
    /// Only notifications with each of these words in the title, ignoring case. At most 8 words are used.
    pub words: Vec<String>,
    /// The position where the previous page ended.
    pub before: Option<Position>,
    /// The maximum number of rows to return.
    pub limit: i64,
}

columns! {
    impl StoredNotification {
        tenant: "note.tenant",
        tenant_name: "t.name",
        id: "note.id",
        event_type: "note.event_type",
        entity: "note.entity",
        topic: "note.topic",
        schema_version: "note.schema_version",
        idempotency_key: "note.idempotency_key",
        payload: "note.payload",
        recipients: "note.recipients",
        channels: "note.channels",
        title: "note.title",
        body: "note.body",
        action_url: "note.action_url",
        data: "note.data",
        priority: "note.priority",
        due_at: "note.due_at",
        expires_at: "note.expires_at",
        source: "note.source",
        correlation_id: "note.correlation_id",
        created_at: "note.created_at",
        // Cancel requests are rare, so one subquery checks whether any exist before they are looked up per
        // notification. Each database has its own function that joins their numbers into a string.
        cancelled: "CASE WHEN (SELECT EXISTS (SELECT 1 FROM postcommit.cancel_request)) THEN (SELECT string_agg(c.n::text, ',')
            FROM postcommit.cancel_request c WHERE c.tenant = note.tenant AND c.notification_id = note.id) END"
          | "CASE WHEN (SELECT EXISTS (SELECT 1 FROM postcommit.cancel_request)) THEN (SELECT group_concat(c.n, ',')
            FROM postcommit.cancel_request c WHERE c.tenant = note.tenant AND c.notification_id = note.id) END"
          => |numbers: Option<String>| numbers.unwrap_or_default().split(',').filter_map(|n| n.parse().ok()).collect(),
    }
}
const TABLES: &str = "postcommit.notification note JOIN postcommit.tenant t ON t.id = note.tenant";

/// Returns the statement that reads the notifications that match the condition `which`.
pub(in crate::store) fn reading_postgres(which: &str) -> String {
    format!("SELECT {} FROM {TABLES} WHERE {which}", list_postgres::<StoredNotification>())
}

/// Reads notifications of one tenant. The bounds `$3` and `$4` let the executor open only the partitions that contain
/// these ids. The name of the tenant is read once, because a join would look it up for every row, which takes 0.5 µs.
pub(in crate::store) static LOAD_POSTGRES: LazyLock<String> = LazyLock::new(|| {
    let name = "(SELECT t.name FROM postcommit.tenant t WHERE t.id = ($1::int[])[1]) AS tenant_name";
    let columns = list_postgres::<StoredNotification>().replace("t.name AS tenant_name", name);
    format!(
        "SELECT {columns}
         FROM postcommit.notification note
         WHERE note.tenant = ANY ($1) AND note.id = ANY ($2) AND note.id BETWEEN $3 AND $4"
    )
});
/// Reads notifications of several tenants. This statement looks up key by key, because [`LOAD_POSTGRES`] would look up
/// every id in every tenant. For a single tenant it would be slower by 1.5 µs per row.
pub(in crate::store) static LOAD_OF_MANY_POSTGRES: LazyLock<String> = LazyLock::new(|| {
    let read = reading_postgres("note.tenant = k.tenant AND note.id = k.id AND note.id BETWEEN $3 AND $4");
    format!(
        "SELECT found.*
         FROM unnest($1::int[], $2::uuid[]) AS k (tenant, id)
         CROSS JOIN LATERAL ({read} OFFSET 0) found"
    )
});
static LOAD_SQLITE: LazyLock<String> = LazyLock::new(|| {
    let columns = list_sqlite::<StoredNotification>();
    sqlite::dialect(&format!("SELECT {columns} FROM {TABLES} WHERE note.tenant = $1 AND note.id = $2"))
});
/// The columns of a notification in a list.
const ROW_QUERY: RowQuery = RowQuery {
    columns:
        "id, tenant, event_type, entity, idempotency_key, state, attempts, deliveries, next_attempt_at, last_error,
        created_at, sent_at, title, delivered_at, last_attempt_at, captured",
    of_one: "postcommit.notification_status WHERE tenant_id = $1 AND id = $2",
};

impl Store {
    /// Reads the notifications of a batch of deliveries, each once. Unreadable notifications are left out.
    pub async fn notifications(&self, keys: &[(i32, Uuid)]) -> Result<Vec<StoredNotification>, DbError> {
        match &self.db {
            Db::Postgres(db) => {
                let client = db.hot().await?;
                let (mut tenants, ids): (Vec<i32>, Vec<Uuid>) = keys.iter().copied().unzip();
                let of_one = tenants.iter().all(|tenant| Some(tenant) == tenants.first());
                tenants.truncate(if of_one { 1 } else { tenants.len() });
                let statement = client
                    .prepare_cached(if of_one { &LOAD_POSTGRES } else { &LOAD_OF_MANY_POSTGRES })
                    .await
                    .map_err(postgres::refused)?;
                let (first, last) = (ids.iter().min(), ids.iter().max());
                let rows =
                    client.query(&statement, &[&tenants, &ids, &first, &last]).await.map_err(postgres::refused)?;
                let places = places::<StoredNotification>(&rows, "")?;
                Ok(readable(rows.into_iter().map(|mut row| StoredNotification::read(&mut row, &places))))
            }
            Db::Sqlite(db) => {
                let keys = keys.to_vec();
                db.read(move |connection| {
                    let mut load = sqlite::Prepared::on(connection, &LOAD_SQLITE)?;
                    let (mut rows, places) = (Vec::with_capacity(keys.len()), in_order::<StoredNotification>());
                    for (tenant, id) in keys {
                        rows.extend(
                            load.rows((tenant, sqlite::Id::from(id)), |row| StoredNotification::read(row, &places))?,
                        );
                    }
                    Ok(readable(rows))
                })
                .await
            }
        }
    }

    /// Reads one notification by id. With a tenant, it returns the notification only if that tenant owns it.
    pub async fn notification(&self, tenant: Option<i32>, id: Uuid) -> Result<Option<StoredNotification>, DbError> {
        let row = self.read_notification(tenant, id).await?;
        row.map(|mut row| StoredNotification::read(&mut row, &in_order::<StoredNotification>())).transpose()
    }

    /// Reads a notification like [`Store::notification`], but for display: unreadable numbers and times are shown as 0.
    pub(in crate::store) async fn notification_as_shown(
        &self,
        tenant: Option<i32>,
        id: Uuid,
    ) -> Result<Option<StoredNotification>, DbError> {
        let row = self.read_notification(tenant, id).await?;
        row.map(|row| StoredNotification::read(&mut AsShown(row), &in_order::<StoredNotification>())).transpose()
    }

    async fn read_notification(&self, tenant: Option<i32>, id: Uuid) -> Result<Option<Row>, DbError> {
        let Some(tenant) = self.owner(held_to(tenant, "notification"), id).await? else { return Ok(None) };
        let columns = match self.db {
            Db::Postgres(_) => list_postgres::<StoredNotification>(),
            Db::Sqlite(_) => list_sqlite::<StoredNotification>(),
        };
        let sql = format!("SELECT {columns} FROM {TABLES} WHERE note.tenant = $1 AND note.id = $2");
        Ok(self.db.query(&sql, vec![tenant.into(), id.into()]).await?.into_iter().next())
    }

    /// Reads one page of notifications with their status, newest first. A search in titles examines a limited part of
    /// the history per page, as [`Page::more`] explains.
    pub async fn notification_rows(&self, filter: &NotificationFilter) -> Result<Page<NotificationRow>, DbError> {
        let list = self.notification_list(filter).await?;
        let page = self.list_keys(&list, list.start(), filter.limit).await?;
        let rows = self.read_rows(&page.rows, ROW_QUERY).await?;
        Ok(Page { rows: legible("notifications", rows.iter().map(listed)), more: page.more })
    }

    pub(in crate::store) async fn notification_list<'a>(
        &self,
        filter: &'a NotificationFilter,
    ) -> Result<NotificationList<'a>, DbError> {
        Ok(NotificationList::new(filter, self.stuck_since(filter.stuck).await?, self.dialect()))
    }

    /// Returns the time before which a delivery must have been first due to count as stuck.
    pub(in crate::store) async fn stuck_since(&self, stuck: Option<Duration>) -> Result<Option<Timestamp>, DbError> {
        let Some(stuck) = stuck else { return Ok(None) };
        let micros = i64::try_from(stuck.as_micros()).unwrap_or(i64::MAX);
        Ok(Some(Timestamp::from_micros(self.now().await?.as_micros().saturating_sub(micros).max(0))))
    }

    /// Returns the statements that list a window of `step` rows. A test checks their plans.
    #[doc(hidden)]
    pub async fn notification_statements(
        &self,
        filter: &NotificationFilter,
        step: i64,
    ) -> Result<Vec<(String, Vec<Value>)>, DbError> {
        let list = self.notification_list(filter).await?;
        self.statements(&list, None, list.start(), step, filter.limit).await
    }

    /// Reads the status of one notification.
    pub async fn notification_row(&self, id: Uuid) -> Result<Option<NotificationRow>, DbError> {
        let Some(tenant) = self.tenant_of(id).await? else { return Ok(None) };
        self.notification_row_of(tenant, id).await
    }

    pub(in crate::store) async fn notification_row_of(
        &self,
        tenant: i32,
        id: Uuid,
    ) -> Result<Option<NotificationRow>, DbError> {
        self.db.query(&ROW_QUERY.statement(), vec![tenant.into(), id.into()]).await?.first().map(listed).transpose()
    }

    /// Reads the enqueues that were refused because this notification has their idempotency key.
    pub async fn conflicts(&self, tenant: i32, id: Uuid) -> Result<Vec<Conflict>, DbError> {
        let sql = "SELECT event_type, entity, noted_at
            FROM postcommit.key_conflict
            WHERE tenant = $1 AND notification_id = $2
            ORDER BY id";
        let rows = self.db.query(sql, vec![tenant.into(), id.into()]).await?;
        Ok(legible(
            "conflicts",
            rows.iter().map(|row| Ok(Conflict { event_type: row.get(0)?, entity: row.get(1)?, noted_at: row.get(2)? })),
        ))
    }
}

/// Leaves out unreadable rows and logs them, so that they do not block the others. A delivery whose notification is
/// left out is parked.
pub(in crate::store) fn readable<T>(rows: impl IntoIterator<Item = Result<T, DbError>>) -> Vec<T> {
    let tell = |problem: &DbError| {
        tracing::error!(
            %problem,
            "a claimed delivery or its notification cannot be read from the database; it is skipped"
        );
    };
    let rows = rows.into_iter();
    let mut read = Vec::with_capacity(rows.size_hint().0);
    read.extend(rows.filter_map(|row| row.inspect_err(tell).ok()));
    read
}

fn listed(row: &Row) -> Result<NotificationRow, DbError> {
    let mut read = Reader::of(row);
    let mut listed = NotificationRow {
        id: row.get(0)?,
        tenant: row.get(1)?,
        event_type: row.get(2)?,
        entity: row.get(3)?,
        idempotency_key: row.get(4)?,
        state: row.get(5)?,
        attempts: read.or(6, "attempts", 0),
        deliveries: read.or(7, "deliveries", 0),
        next_attempt_at: read.or(8, "due_at", None),
        last_error: row.get(9)?,
        created_at: read.or(10, "created_at", Timestamp::from_micros(0)),
        sent_at: read.or(11, "sent_at", None),
        title: row.get(12)?,
        delivered_at: read.or(13, "finished_at", None),
        last_attempt_at: read.or(14, "at", None),
        captured: read.or(15, "captured", false),
    };
    listed.last_error = read.problem().or(listed.last_error);
    Ok(listed)
}
