//! Inboxes: the messages that `in_app` has delivered to each user, newest first, with their read and archive marks.
//! Each inbox also records its changes.
//!
//! Every change of an inbox gets a position: the next number in the user's inbox row. The change locks that row until
//! it commits, so the changes of one user become visible in the order of their positions. A reader that asks for
//! `position > last seen` misses nothing, however late a transaction commits. Positions may have gaps, and a gap is
//! never filled later.

use std::collections::{BTreeSet, HashMap};
use std::sync::LazyLock;

use postcommit::Timestamp;
use postcommit_channel::model::{Actor, DeliveryId, DeliveryKey, InboxMessage};
use postcommit_channel::secret::random;
use rusqlite::{Connection, params};
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::db::columns::{Columns, arrays, columns, in_order, insert, list_postgres, unnest};
use crate::db::sqlite::{Id, Prepared};
use crate::db::{Cells, Db, DbError, FromValue, Row, Transaction, Value, postgres};
use crate::store::unreadable::legible;
use crate::store::{AuditEntry, Store};

/// How many changes of an inbox are reported one by one. Beyond this number, reading the list of messages again is
/// cheaper.
pub const MAX_CHANGES: usize = 200;

/// A delivery to an inbox, and its message.
pub(in crate::store) struct Received<'a> {
    pub(in crate::store) key: DeliveryKey,
    pub(in crate::store) message: &'a InboxMessage,
}

/// A message in an inbox.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = InboxMessage))]
pub struct InboxRow {
    /// The id of the delivery that brought the message, `{notification}.{n}`.
    pub id: String,
    /// The position of the message among the changes of this inbox. Later changes have higher numbers.
    pub position: i64,
    /// The event type of the notification.
    pub event_type: String,
    /// The entity that the event is about.
    pub entity: Option<String>,
    /// The heading of the message.
    pub title: Option<String>,
    /// The text of the message. It is never markup.
    pub body: Option<String>,
    /// The link for the reader: http(s), mailto or tel.
    pub action_url: Option<String>,
    /// The notification's `data` for `in_app`.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub data: Option<Box<RawValue>>,
    /// When the message arrived.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub created_at: Timestamp,
    /// When the message was read.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub read_at: Option<Timestamp>,
    /// When the message was archived.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub archived_at: Option<Timestamp>,
}

/// The key that signs user tokens. It does not implement `Debug`, so that it is never printed.
pub struct TokenKey {
    /// The key, 32 random bytes.
    pub key: Vec<u8>,
    /// When the key was read, by the database's clock. The same clock decides when tokens expire.
    pub now: Timestamp,
}

/// A selection of the messages in an inbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Folder {
    /// All messages that are not archived.
    #[default]
    Current,
    /// All messages that are neither archived nor read.
    Unread,
    /// All archived messages.
    Archived,
}

impl Folder {
    fn condition(self) -> &'static str {
        match self {
            Self::Current => "m.archived_at IS NULL",
            Self::Unread => "m.archived_at IS NULL AND m.read_at IS NULL",
            Self::Archived => "m.archived_at IS NOT NULL",
        }
    }
}

/// A change that a user makes to a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// Marks the message as read.
    Read,
    /// Marks the message as unread again.
    Unread,
    /// Moves the message into the archive. It no longer counts as unread.
    Archive,
    /// Moves the message out of the archive. It stays read or unread.
    Unarchive,
}

impl Mark {
    /// Returns the change's name in the audit log.
    fn action(self) -> &'static str {
        match self {
            Self::Read => "message.read",
            Self::Unread => "message.unread",
            Self::Archive => "message.archive",
            Self::Unarchive => "message.unarchive",
        }
    }

    /// Returns the SQL assignment, and the condition that it changes the message.
    fn change(self) -> (&'static str, &'static str) {
        match self {
            Self::Read => ("read_at = {now}", "read_at IS NULL"),
            Self::Unread => ("read_at = NULL", "read_at IS NOT NULL"),
            Self::Archive => ("archived_at = {now}", "archived_at IS NULL"),
            Self::Unarchive => ("archived_at = NULL", "archived_at IS NOT NULL"),
        }
    }
}

/// One page of an inbox, newest first.
#[derive(Debug, Clone)]
pub struct InboxPage {
    /// The position of the last change that the page includes. [`Store::inbox_changes`] continues from here. 0 if the
    /// inbox never had a message.
    pub position: i64,
    /// How many messages of the inbox are unread in total.
    pub unread: i64,
    /// The messages of the page.
    pub messages: Vec<InboxRow>,
}

/// A change of a message after a given position.
#[derive(Debug, Clone)]
pub enum InboxChange {
    /// A new message. It may already have been read.
    Came(InboxRow),
    /// An earlier message that was marked, e.g. as read.
    Marked(InboxRow),
}

/// The changes of an inbox after a given position.
#[derive(Debug, Clone)]
pub struct InboxChanges {
    /// The last position that these changes include. The next call of [`Store::inbox_changes`] begins after it.
    pub position: i64,
    /// How many messages are unread now.
    pub unread: i64,
    /// Each new or marked message, in the order of its last change. `None` means that the list must be read again,
    /// because there are more than [`MAX_CHANGES`] changes or the given position is not from this inbox.
    pub changes: Option<Vec<InboxChange>>,
}

columns! {
    impl InboxRow {
        // The message id has the same form as the delivery id in the view `delivery`.
        id: "m.notification_id || '.' || m.n",
        position: "m.position",
        event_type: "m.event_type",
        entity: "m.entity",
        title: "m.title",
        body: "m.body",
        action_url: "m.action_url",
        data: "m.data",
        created_at: "m.created_at",
        read_at: "m.read_at",
        archived_at: "m.archived_at",
    }
}
columns! {
    /// Columns of the inbox, which are repeated in each of its message rows. An inbox without messages gives one row
    /// that has only these columns.
    struct Inbox {
        changed: Value = "m.changed",
        last: Value = "coalesce(i.position, 0)",
        unread: i64 = "{unread}",
    }
}

/// Counts the unread messages from their index alone. The clock is in a subquery, because a volatile clock function in
/// the condition would prevent the use of the index.
const UNREAD: &str = "(SELECT count(*) FROM postcommit.inbox_message u WHERE u.tenant = $1 AND u.user_id = $2 AND u.read_at IS NULL AND u.archived_at IS NULL AND u.expires_at > (SELECT {now}))";

fn beside(rows: &str) -> String {
    let (message, inbox) = (list_postgres::<InboxRow>(), list_postgres::<Inbox>().replace("{unread}", UNREAD));
    format!(
        "SELECT {message}, {inbox} FROM (SELECT 1) AS one
         LEFT JOIN postcommit.inbox i ON i.tenant = $1 AND i.user_id = $2 LEFT JOIN ({rows}) m ON 1 = 1"
    )
}

impl Store {
    /// Reads one page of a user's inbox before the given position, newest first and without expired messages.
    pub async fn inbox(
        &self,
        tenant: i32,
        user: &str,
        folder: Folder,
        before: Option<i64>,
        limit: i64,
    ) -> Result<InboxPage, DbError> {
        let rows = format!(
            "SELECT * FROM postcommit.inbox_message m WHERE m.tenant = $1 AND m.user_id = $2 AND m.position < $3 AND {} AND m.expires_at > (SELECT {{now}})
             ORDER BY m.position DESC LIMIT $4",
            folder.condition()
        );
        let sql = format!("{} ORDER BY m.position DESC", beside(&rows));
        let parameters = vec![tenant.into(), user.into(), before.unwrap_or(i64::MAX).into(), limit.into()];
        let found = self.db.query(&sql, parameters).await?;
        let (position, unread) = inbox_of(&found)?;
        Ok(InboxPage { position, unread, messages: legible("inbox", messages(&found)?.map(listed)) })
    }

    /// Counts the messages that are unread and neither archived nor expired.
    pub async fn inbox_unread(&self, tenant: i32, user: &str) -> Result<i64, DbError> {
        let rows = self.db.query(&format!("SELECT {UNREAD}"), vec![tenant.into(), user.into()]).await?;
        rows.first().map_or(Ok(0), |row| row.get(0))
    }

    /// Reads the changes of an inbox after a position.
    pub async fn inbox_changes(&self, tenant: i32, user: &str, after: i64) -> Result<InboxChanges, DbError> {
        let rows = "SELECT * FROM postcommit.inbox_message m WHERE m.tenant = $1 AND m.user_id = $2 AND m.changed > $3 AND m.expires_at > (SELECT {now})
            ORDER BY m.changed, m.position LIMIT $4";
        let sql = format!("{} ORDER BY m.changed, m.position", beside(rows));
        let limit = i64::try_from(MAX_CHANGES + 1).unwrap_or(i64::MAX);
        let found = self.db.query(&sql, vec![tenant.into(), user.into(), after.into(), limit.into()]).await?;
        let (position, unread) = inbox_of(&found)?;
        let told = after <= position && found.len() <= MAX_CHANGES;
        let changes = legible("inbox", messages(&found)?.map(|row| Ok(changed(listed(row)?, after))));
        Ok(InboxChanges { position, unread, changes: told.then_some(changes) })
    }

    /// Returns the positions of several inboxes in the given order. The position is 0 for an inbox that never had a
    /// message.
    pub async fn inbox_positions(&self, users: &[(i32, String)]) -> Result<Vec<i64>, DbError> {
        let given = match self.db {
            Db::Postgres(_) => "jsonb_array_elements($1::jsonb) WITH ORDINALITY AS g (value, place)",
            Db::Sqlite(_) => "(SELECT value, key + 1 AS place FROM json_each($1)) AS g",
        };
        let sql = format!(
            "SELECT g.place, i.position FROM {given} JOIN postcommit.inbox i ON i.tenant = CAST(g.value ->> 0 AS int) AND i.user_id = g.value ->> 1"
        );
        let mut positions = vec![0; users.len()];
        for row in self.db.query(&sql, vec![serde_json::json!(users).into()]).await? {
            if let Some(position) = positions.get_mut(usize::try_from(row.get::<i64>(0)? - 1).unwrap_or(usize::MAX)) {
                *position = row.get(1)?;
            }
        }
        Ok(positions)
    }

    /// Marks a message. A repeated call changes nothing. Returns false if the user has no message with this id.
    pub async fn mark_message(&self, tenant: i32, user: &str, id: DeliveryId, mark: Mark) -> Result<bool, DbError> {
        const OF_USER: &str = "tenant = $1 AND user_id = $2 AND notification_id = $3 AND n = $4";
        let parameters: Vec<Value> = vec![tenant.into(), user.into(), id.notification.into(), id.n.into()];
        let (set, unless_so) = mark.change();
        let entry = AuditEntry::new(tenant, mark.action(), id.to_string()).details(json!({"user": user}));
        if self
            .change_inbox(set, &format!("{OF_USER} AND {unless_so}"), parameters.clone(), self.unless_own(user, entry))
            .await?
            > 0
        {
            return Ok(true);
        }
        let known = format!("SELECT 1 FROM postcommit.inbox_message WHERE {OF_USER}");
        Ok(!self.db.query(&known, parameters).await?.is_empty())
    }

    /// Marks messages up to a position as read, and returns how many were changed. `up_to` is the position of the list
    /// that the user saw, so that later messages stay unread.
    pub async fn mark_all_read(&self, tenant: i32, user: &str, up_to: i64) -> Result<u64, DbError> {
        let which = "tenant = $1 AND user_id = $2 AND position <= $3 AND read_at IS NULL AND archived_at IS NULL";
        // Counts the messages that were marked: only they have the inbox's new position in `changed`.
        let changed = "SELECT count(*) FROM postcommit.inbox_message m WHERE m.tenant = $1 AND m.user_id = $7
            AND m.changed = (SELECT i.position FROM postcommit.inbox i WHERE i.tenant = $1 AND i.user_id = $7)";
        let entry = AuditEntry::new(tenant, "inbox.read_all", user)
            .details(json!({"up_to": up_to}))
            .counted(changed.into(), vec![]);
        let parameters = vec![tenant.into(), user.into(), up_to.into()];
        self.change_inbox("read_at = {now}", which, parameters, self.unless_own(user, entry)).await
    }

    /// Returns the audit entry, or `None` if the actor is the user, because changes of one's own inbox are not audited.
    fn unless_own(&self, user: &str, entry: AuditEntry) -> Option<AuditEntry> {
        (*self.actor != Actor::user(user)).then_some(entry)
    }

    /// Changes messages of user `$2` of tenant `$1` under a new position, if any match. The user's inbox row is locked
    /// first, as in every other write to an inbox.
    async fn change_inbox(
        &self,
        set: &str,
        which: &str,
        parameters: Vec<Value>,
        entry: Option<AuditEntry>,
    ) -> Result<u64, DbError> {
        let step = format!(
            "UPDATE postcommit.inbox SET position = position + 1 WHERE tenant = $1 AND user_id = $2 AND EXISTS (SELECT 1 FROM postcommit.inbox_message WHERE {which})"
        );
        let change = format!(
            "UPDATE postcommit.inbox_message SET {set}, changed = (SELECT i.position FROM postcommit.inbox i WHERE i.tenant = $1 AND i.user_id = $2) WHERE {which}"
        );
        let mut statements = vec![(step, parameters.clone()), (change, parameters)];
        statements.extend(entry.map(|entry| self.audit(entry)));
        let touched = self.db.execute_while(statements, 0).await?;
        Ok(touched.get(1).copied().unwrap_or(0))
    }

    /// Records for `for_s` seconds that the process `watcher` has open inbox pages. Changes of inboxes send NOTIFY only
    /// while such a record exists. On SQLite it does nothing, because there a process watches the file's version.
    pub async fn watch_inboxes(&self, watcher: Uuid, for_s: f64) -> Result<(), DbError> {
        let Db::Postgres(_) = self.db else { return Ok(()) };
        let sql = "INSERT INTO postcommit.inbox_watch (watcher, until) VALUES ($1, clock_timestamp() + $2::float8 * interval '1 second')
            ON CONFLICT (watcher) DO UPDATE SET until = EXCLUDED.until";
        self.db.execute_one(sql, vec![watcher.into(), Value::Real(for_s)]).await.map(drop)
    }

    /// Records that the process `watcher` has no open inbox pages any more.
    pub async fn unwatch_inboxes(&self, watcher: Uuid) -> Result<(), DbError> {
        let Db::Postgres(_) = self.db else { return Ok(()) };
        let sql =
            "DELETE FROM postcommit.inbox_watch WHERE watcher = $1 OR until < clock_timestamp() - interval '1 hour'";
        self.db.execute_one(sql, vec![watcher.into()]).await.map(drop)
    }

    /// Returns the key for the hash in the NOTIFY of an inbox change, and creates the key if it is missing. The key is
    /// stored for tenant 0, which is not a real tenant. Returns `None` on SQLite, which has no NOTIFY.
    pub async fn inbox_bell_key(&self) -> Result<Option<Vec<u8>>, DbError> {
        let Db::Postgres(_) = self.db else { return Ok(None) };
        Ok(Some(self.inbox_token_key_or(0, random()).await?.key))
    }

    /// Returns the key that signs the tokens of a tenant's users, if there is one.
    pub async fn inbox_token_key(&self, tenant: i32) -> Result<Option<TokenKey>, DbError> {
        let rows = self
            .db
            .query("SELECT key, {now} FROM postcommit.inbox_token_key WHERE tenant = $1", vec![tenant.into()])
            .await?;
        rows.first().map(|row| Ok(TokenKey { key: row.get(0)?, now: row.get(1)? })).transpose()
    }

    /// Returns the keys of these tenants. A tenant without a key is missing from the result.
    pub async fn inbox_token_keys(&self, tenants: &BTreeSet<i32>) -> Result<HashMap<i32, Vec<u8>>, DbError> {
        let given = match self.db.kind() {
            "postgres" => "SELECT value::int FROM jsonb_array_elements_text($1::jsonb)",
            _ => "SELECT value FROM json_each($1)",
        };
        let sql = format!("SELECT tenant, key FROM postcommit.inbox_token_key WHERE tenant IN ({given})");
        let rows = self.db.query(&sql, vec![Value::Json(json!(tenants).to_string())]).await?;
        rows.iter().map(|row| Ok((row.get(0)?, row.get(1)?))).collect()
    }

    /// Returns the key that signs the tokens of a tenant's users. If it is missing, it is created from the given bytes.
    pub async fn inbox_token_key_or(&self, tenant: i32, new: [u8; 32]) -> Result<TokenKey, DbError> {
        if let Some(key) = self.inbox_token_key(tenant).await? {
            return Ok(key);
        }
        let sql = "INSERT INTO postcommit.inbox_token_key (tenant, key, created_at) VALUES ($1, $2, {now}) ON CONFLICT DO NOTHING";
        self.db.execute_one(sql, vec![tenant.into(), new.to_vec().into()]).await?;
        self.inbox_token_key(tenant).await?.ok_or_else(|| {
            DbError::Unreadable(
                "the key that signs user tokens was created, but cannot be found; report it as a bug".into(),
            )
        })
    }
}

fn inbox_of(rows: &[Row]) -> Result<(i64, i64), DbError> {
    let Some(row) = rows.first() else { return Ok((0, 0)) };
    let inbox = behind(row)?;
    // An unreadable position counts as 0. The next message gives the inbox a new position.
    Ok((i64::from_value(inbox.last).unwrap_or_default(), inbox.unread))
}

/// Returns the rows that contain a message. An inbox without messages gives one row without a message.
fn messages(rows: &[Row]) -> Result<impl Iterator<Item = &Row>, DbError> {
    let is_empty = rows.first().map(behind).transpose()?.is_none_or(|inbox| inbox.changed == Value::Null);
    Ok(rows.iter().filter(move |_| !is_empty))
}

fn behind(mut row: &Row) -> Result<Inbox, DbError> {
    let places: Vec<usize> = in_order::<Inbox>().iter().map(|place| place + InboxRow::COLUMNS.len()).collect();
    Inbox::read(&mut row, &places)
}

fn changed(row: InboxRow, after: i64) -> InboxChange {
    if row.position > after { InboxChange::Came(row) } else { InboxChange::Marked(row) }
}

fn listed(mut row: &Row) -> Result<InboxRow, DbError> {
    InboxRow::read(&mut row, &in_order::<InboxRow>())
}

/// Reserves one position for each message in the inbox row of its user. All batches lock the users in the same order,
/// so that two batches cannot deadlock.
pub(in crate::store) const STEP_POSTGRES: &str = "
    INSERT INTO postcommit.inbox AS i (tenant, user_id, position)
    SELECT tenant, user_id, count(*) FROM unnest($1::int[], $2::text[]) AS g (tenant, user_id) GROUP BY tenant, user_id ORDER BY tenant, user_id
    ON CONFLICT (tenant, user_id) DO UPDATE SET position = i.position + EXCLUDED.position RETURNING i.tenant, i.user_id, i.position";

arrays! {
    /// The values of a new inbox message.
    struct Given<'a>, GivenArrays {
        tenant: i32,
        notification_id: Uuid,
        n: i32,
        user_id: &'a str,
        position: i64,
        event_type: &'a str,
        entity: Option<&'a str>,
        title: Option<&'a str>,
        body: Option<&'a str>,
        action_url: Option<&'a str>,
        data: Option<&'a str>,
        expires_at: postgres::Time,
    }
}

fn given<'a>(Received { key, message }: &Received<'a>, position: i64) -> Given<'a> {
    Given {
        tenant: key.tenant,
        notification_id: key.notification,
        n: key.n,
        user_id: &message.user,
        position,
        event_type: &message.event_type,
        entity: message.entity.as_deref(),
        title: message.title.as_deref(),
        body: message.body.as_deref(),
        action_url: message.action_url.as_deref(),
        data: message.data.as_deref(),
        expires_at: postgres::Time(Some(message.expires_at)),
    }
}

/// Writes messages into inboxes. If the message of a delivery was already written, it is not written again, and the new
/// position stays unused.
pub(in crate::store) static RECEIVE_POSTGRES: LazyLock<String> = LazyLock::new(|| {
    let names: Vec<&str> = GivenArrays::COLUMNS.iter().map(|(name, _)| *name).collect();
    let (names, given) = (names.join(", "), unnest(GivenArrays::COLUMNS));
    let read = names.replace("data,", "data::jsonb,");
    format!(
        "INSERT INTO postcommit.inbox_message ({names}, changed, created_at) SELECT {read}, position, now() FROM {given}
        ON CONFLICT (tenant, notification_id, n) DO NOTHING"
    )
});

/// Writes messages into their inboxes, in the transaction that settles their deliveries.
pub(in crate::store) async fn receive_postgres(
    transaction: &Transaction<'_>,
    received: &[Received<'_>],
) -> Result<(), DbError> {
    let (tenants, users): (Vec<i32>, Vec<&str>) =
        received.iter().map(|r| (r.key.tenant, r.message.user.as_str())).unzip();
    let step = transaction.prepare_cached(STEP_POSTGRES).await.map_err(postgres::refused)?;
    let stepped = transaction.query(&step, &[&tenants, &users]).await.map_err(postgres::refused)?;
    let positions = positions(received, stepped.iter().map(|row| ((row.get(0), row.get(1)), row.get(2))).collect());
    let given: GivenArrays<'_> =
        received.iter().zip(positions).map(|(received, position)| given(received, position)).collect();
    let receive = transaction.prepare_cached(&RECEIVE_POSTGRES).await.map_err(postgres::refused)?;
    transaction.execute(&receive, &given.parameters()).await.map(drop).map_err(postgres::refused)
}

/// Computes the position of each message. The last message of a user gets the position that the user's row now has.
fn positions<'a>(received: &'a [Received<'a>], mut last: HashMap<(i32, &'a str), i64>) -> Vec<i64> {
    let mut positions = vec![0; received.len()];
    for (position, Received { key, message }) in positions.iter_mut().zip(received).rev() {
        if let Some(next) = last.get_mut(&(key.tenant, message.user.as_str())) {
            *position = *next;
            *next -= 1;
        }
    }
    positions
}

const STEP_SQLITE: &str = "INSERT INTO postcommit_inbox (tenant, user_id, position) VALUES (?1, ?2, 1)
    ON CONFLICT (tenant, user_id) DO UPDATE SET position = position + 1 RETURNING position";
static RECEIVE_SQLITE: LazyLock<String> = LazyLock::new(|| {
    let columns = "tenant, notification_id, n, user_id, position, event_type, entity, title, body, action_url, data, expires_at, changed, created_at";
    insert("postcommit_inbox_message", columns) + " ON CONFLICT DO NOTHING"
});

/// Writes one message into its inbox, in the transaction that settles its delivery.
pub(in crate::store) fn receive_sqlite(
    connection: &Connection,
    received: &Received<'_>,
    now: i64,
) -> Result<(), DbError> {
    let Received { key, message } = received;
    // All rows are read, because SQLite completes a statement with RETURNING only then.
    let stepped = Prepared::on(connection, STEP_SQLITE)?.rows((key.tenant, &message.user), |row| row.take::<i64>(0))?;
    let position = stepped.into_iter().next().unwrap_or_else(|| {
        Err(DbError::Unreadable("the database returned no new position of an inbox; report it as a bug".into()))
    })?;
    let written = Prepared::on(connection, &RECEIVE_SQLITE)?.run(params![
        key.tenant,
        Id::from(key.notification),
        key.n,
        message.user,
        position,
        message.event_type,
        message.entity,
        message.title,
        message.body,
        message.action_url,
        message.data,
        message.expires_at.as_micros(),
        position,
        now,
    ]);
    written.map(drop)
}
