//! Accepts notifications that arrive over the network. One commit takes many notifications, and each notification gets
//! its own result.

use std::collections::HashSet;
use std::sync::Arc;

use postcommit::{Notification, Source, Timestamp};
use rusqlite::{Connection, params};
use serde::Serialize;
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::crash_point;
use crate::db::postgres::Postgres;
use crate::db::sqlite::{Prepared, Sqlite};
use crate::db::{Cells, Db, DbError, Transaction, Value, postgres};
use crate::store::Store;
use crate::store::intake::enqueue::NewNotification;
use crate::store::intake::request::{NotAccepted, NotificationRequest};

/// The maximum number of notifications in one commit.
pub const BATCH: usize = postcommit::limits::BATCH;

/// The result for an accepted notification, which is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Accepted {
    /// The id of the notification. If the idempotency key was used before, the id of the first notification with that
    /// key.
    pub id: Uuid,
    /// Whether the idempotency key was used before. If so, nothing was enqueued.
    pub duplicate: bool,
    /// Whether the idempotency key was used before with other content. Such a conflict is recorded.
    pub conflict: bool,
}

pub(in crate::store) type AcceptResult = Result<Accepted, NotAccepted>;

impl Store {
    /// Enqueues and commits a batch. Returns one result per request, in the same order. A refused request does not
    /// affect the others. An id is returned only when the notification is durable.
    pub async fn accept(&self, batch: Vec<NotificationRequest>) -> Vec<AcceptResult> {
        crash_point!("enqueue.before");
        let mut answers = Vec::with_capacity(batch.len());
        let mut rest = batch;
        while !rest.is_empty() {
            let next = rest.split_off(rest.len().min(BATCH));
            let mut part = match &self.db {
                Db::Postgres(db) => accept_postgres(db, &rest).await,
                Db::Sqlite(db) => accept_sqlite(db, &rest).await,
            };
            self.answer_known(&rest, &mut part).await;
            answers.extend(part);
            rest = next;
        }
        crash_point!("enqueue.after_commit");
        answers
    }
}

/// Accepts a batch on PostgreSQL in one statement. If the statement is refused, the batch is split in halves until only
/// the faulty requests are refused. If an idempotency key is locked, the requests are accepted one by one, so that an
/// application's open transaction delays only requests with that key.
async fn accept_postgres(db: &Postgres, batch: &[NotificationRequest]) -> Vec<AcceptResult> {
    let mut answers = Vec::with_capacity(batch.len());
    let mut parts = vec![batch];
    let mut held = HashSet::new();
    while let Some(part) = parts.pop() {
        if let [one] = part
            && held.contains(&key_of(one))
        {
            answers.push(Err(NotAccepted::Held));
            continue;
        }
        match enter_postgres(db, part).await {
            Ok(accepted) => answers.extend(accepted.into_iter().map(Ok)),
            Err(DbError::Refused { .. }) if part.len() > 1 => {
                let (first, second) = part.split_at(part.len() / 2);
                parts.extend([second, first]);
            }
            Err(problem) if postgres::is_held(&problem) => match part {
                [one] => {
                    held.insert(key_of(one));
                    answers.push(Err(NotAccepted::Held));
                }
                many => parts.extend(many.chunks(1).rev()),
            },
            Err(problem) => {
                let refusal = NotAccepted::from(problem);
                answers.extend(part.iter().map(|_| Err(refusal.clone())));
            }
        }
    }
    answers
}

/// Returns the tenant and the idempotency key of a request. Another transaction may have locked that key.
pub(crate) fn key_of(request: &NotificationRequest) -> (String, String) {
    (request.note().tenant.clone(), request.note().idempotency_key.clone())
}

/// Accepts a batch. The statement waits at most one second for a locked idempotency key.
const ACCEPT_POSTGRES: &str = "WITH patience AS MATERIALIZED (SELECT set_config('lock_timeout', '1s', true))
    SELECT a.id, a.duplicate, a.conflict
    FROM patience, LATERAL postcommit.accept(CASE WHEN patience IS NOT NULL THEN $1::jsonb END) a
    ORDER BY a.place";

async fn enter_postgres(db: &Postgres, batch: &[NotificationRequest]) -> Result<Vec<Accepted>, DbError> {
    let said = said(batch)?;
    let client = db.client().await?;
    let statement = client.prepare_cached(ACCEPT_POSTGRES).await.map_err(postgres::refused)?;
    let rows = client.query(&statement, &[&said]).await.map_err(postgres::refused)?;
    if rows.len() != batch.len() {
        return Err(DbError::Unreadable(format!(
            "the database returned {} results for {} notifications; report it as a bug",
            rows.len(),
            batch.len()
        )));
    }
    Ok(rows.iter().map(accepted).collect())
}

/// Accepts one notification as part of the caller's transaction on PostgreSQL.
pub(in crate::store) async fn enter_one_postgres(
    transaction: &Transaction<'_>,
    one: &NotificationRequest,
) -> Result<Accepted, DbError> {
    let said = said(std::slice::from_ref(one))?;
    let statement = transaction.prepare_cached(ACCEPT_POSTGRES).await.map_err(postgres::refused)?;
    let rows = transaction.query(&statement, &[&said]).await.map_err(postgres::refused)?;
    rows.first().map(accepted).ok_or_else(|| {
        DbError::Unreadable("the database returned no result for a notification; report it as a bug".into())
    })
}

pub(in crate::store) fn said(batch: &[NotificationRequest]) -> Result<Value, DbError> {
    let said: Vec<BatchItem<'_>> = batch.iter().map(BatchItem::of).collect();
    Ok(Value::Json(serde_json::to_string(&said).map_err(|e| DbError::Unreadable(e.to_string()))?))
}

fn accepted(row: &tokio_postgres::Row) -> Accepted {
    Accepted { id: row.get(0), duplicate: row.get(1), conflict: row.get(2) }
}

/// A notification as the SQL function `postcommit.accept` reads it. The payload and the data keep their original JSON
/// text.
#[derive(Serialize)]
pub(in crate::store) struct BatchItem<'a> {
    pub(in crate::store) event_type: &'a str,
    pub(in crate::store) payload: &'a RawValue,
    pub(in crate::store) idempotency_key: &'a str,
    pub(in crate::store) tenant: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::store) entity: Option<&'a str>,
    pub(in crate::store) recipients: &'a [postcommit::Recipient],
    pub(in crate::store) channels: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::store) title: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::store) body: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::store) action_url: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::store) data: Option<&'a RawValue>,
    pub(in crate::store) priority: i16,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::store) due_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::store) expires_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::store) source: Option<&'a Source>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::store) correlation_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::store) topic: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::store) schema_version: Option<i32>,
}

impl<'a> BatchItem<'a> {
    fn of(request: &'a NotificationRequest) -> Self {
        let note: &Notification = request.note();
        Self {
            event_type: &note.event_type,
            payload: request.payload(),
            idempotency_key: &note.idempotency_key,
            tenant: &note.tenant,
            entity: note.entity.as_deref(),
            recipients: &note.recipients,
            channels: &note.channels,
            title: note.title.as_deref(),
            body: note.body.as_deref(),
            action_url: note.action_url.as_deref(),
            data: request.data(),
            priority: note.priority,
            due_at: note.due_at,
            expires_at: note.expires_at,
            source: (note.source != Source::default()).then_some(&note.source),
            correlation_id: note.correlation_id.as_deref(),
            topic: note.topic.as_deref(),
            schema_version: note.schema_version,
        }
    }
}

/// Accepts a batch on SQLite in one write transaction. A refused notification rolls back only its own statement.
async fn accept_sqlite(db: &Sqlite, batch: &[NotificationRequest]) -> Vec<AcceptResult> {
    let count = batch.len();
    let rows: Result<Vec<ViewRow>, DbError> = batch.iter().map(ViewRow::of).collect();
    let rows: Arc<[ViewRow]> = match rows {
        Ok(rows) => rows.into(),
        Err(problem) => return vec![Err(problem.into()); count],
    };
    let written = db.write(move |connection| {
        let answers: Result<Vec<AcceptResult>, DbError> = rows.iter().map(|row| row.enter(connection)).collect();
        crash_point!("enqueue.in_tx");
        answers
    });
    match written.await {
        Ok(answers) => answers,
        Err(problem) => vec![Err(problem.into()); count],
    }
}

/// Accepts one notification as part of the caller's write transaction on SQLite.
pub(in crate::store) fn enter_one_sqlite(
    one: &NotificationRequest,
) -> Result<impl Fn(&Connection) -> Result<Accepted, DbError> + Send + 'static, DbError> {
    let row = ViewRow::of(one)?;
    Ok(move |connection: &Connection| row.enter_new(connection))
}

/// A notification as it is inserted into the view `postcommit_enqueue`.
pub(in crate::store) struct ViewRow {
    pub(in crate::store) new: NewNotification,
    due_at: Option<Timestamp>,
    expires_at: Option<Timestamp>,
}

const FIRST_SQLITE: &str = "SELECT i.notification_id,
      (SELECT count(*)
        FROM postcommit_key_conflict c
        WHERE c.tenant = i.tenant AND c.notification_id = i.notification_id)
    FROM postcommit_idempotency i
    JOIN postcommit_tenant t ON t.id = i.tenant
    WHERE t.name = ?1 AND i.key = ?2";
const VIEW_SQLITE: &str = "INSERT INTO postcommit_enqueue (event_type, payload, idempotency_key, tenant, entity,
      recipients, channels, title, body, action_url, data, priority, due_at, expires_at, source, correlation_id, topic,
      schema_version)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)";

impl ViewRow {
    pub(in crate::store) fn of(request: &NotificationRequest) -> Result<Self, DbError> {
        let note = request.note();
        let mut new = NewNotification::of(note).map_err(|e| DbError::Unreadable(e.to_string()))?;
        new.payload = request.payload().get().to_owned();
        new.data = request.data().map(|data| data.get().to_owned());
        Ok(Self { new, due_at: note.due_at, expires_at: note.expires_at })
    }

    fn enter(&self, connection: &Connection) -> Result<AcceptResult, DbError> {
        match self.enter_new(connection) {
            Ok(accepted) => Ok(Ok(accepted)),
            Err(problem @ DbError::Refused { .. }) => Ok(Err(problem.into())),
            Err(problem) => Err(problem),
        }
    }

    fn enter_new(&self, connection: &Connection) -> Result<Accepted, DbError> {
        if self.due_at.is_none()
            && self.expires_at.is_none()
            && let Some(id) = self.new.enter(connection)?
        {
            return Ok(Accepted { id, duplicate: false, conflict: false });
        }
        // The request has times to check, its key was used before, or the tenant is unknown. The view's trigger handles
        // these cases, and a new recorded conflict shows whether the content differs.
        let before = self.first(connection)?;
        self.enter_by_view(connection)?;
        let (id, noted) = self.first(connection)?.ok_or_else(|| {
            DbError::Unreadable("a notification was enqueued, but cannot be found; report it as a bug".into())
        })?;
        Ok(Accepted { id, duplicate: before.is_some(), conflict: before.is_some_and(|(_, before)| noted > before) })
    }

    /// Returns the notification that has the idempotency key, and how many conflicts are recorded for it.
    fn first(&self, connection: &Connection) -> Result<Option<(Uuid, i64)>, DbError> {
        Prepared::on(connection, FIRST_SQLITE)?
            .first((&self.new.tenant, &self.new.key), |row| Ok((row.take(0)?, row.take(1)?)))
    }

    fn enter_by_view(&self, connection: &Connection) -> Result<(), DbError> {
        let (new, time) = (&self.new, |at: Option<Timestamp>| at.map(|at| at.to_string()));
        let parameters = params![
            new.event_type,
            new.payload,
            new.key,
            new.tenant,
            new.entity,
            new.recipients,
            new.channels,
            new.title,
            new.body,
            new.action_url,
            new.data,
            new.priority,
            time(self.due_at),
            time(self.expires_at),
            new.source,
            new.correlation_id,
            new.topic,
            new.schema_version,
        ];
        Prepared::on(connection, VIEW_SQLITE)?.run(parameters).map(drop)
    }
}
