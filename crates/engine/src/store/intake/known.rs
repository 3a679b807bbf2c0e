//! Answers repeated requests while the database cannot write, for example because the disk is full, the database is
//! read-only or a lock is held. A request that was accepted before gets its first result again.

use rusqlite::{Connection, params};
use uuid::Uuid;

use crate::db::sqlite::Prepared;
use crate::db::{Cells, Db, DbError};
use crate::store::Store;
use crate::store::intake::accept::{AcceptResult, Accepted, ViewRow, said};
use crate::store::intake::request::{NotAccepted, NotificationRequest};

/// For each request of a batch, finds the notification that has the same idempotency key, and whether its content is
/// the same.
const KNOWN_POSTGRES: &str = "SELECT CAST(g.place AS int), k.notification_id,
      k.content_hash = postcommit.fingerprint_of(g.item)
    FROM jsonb_array_elements($1::jsonb) WITH ORDINALITY AS g (item, place)
    JOIN postcommit.tenant t ON t.name = g.item ->> 'tenant'
    JOIN postcommit.idempotency k ON k.tenant = t.id AND k.key_hash = postcommit.hash(g.item ->> 'idempotency_key')";

/// The lookup on SQLite, for one request. It compares the content in the same way as the trigger of the enqueue view.
const KNOWN_SQLITE: &str = "SELECT i.notification_id, n.event_type IS ?3 AND n.entity IS ?4 AND n.title IS ?5
      AND n.body IS ?6 AND n.action_url IS ?7 AND n.topic IS ?8 AND n.schema_version IS ?9 AND {payload}
      AND {recipients} AND {channels} AND {data}
    FROM postcommit_idempotency i
    JOIN postcommit_tenant t ON t.id = i.tenant
    JOIN postcommit_notification n ON n.tenant = i.tenant AND n.id = i.notification_id
    WHERE t.name = ?1 AND i.key = ?2";

impl Store {
    /// Replaces the results of requests that could not be written, if their idempotency keys were used before.
    pub(in crate::store) async fn answer_known(&self, batch: &[NotificationRequest], answers: &mut [AcceptResult]) {
        let is_open = |answer: &AcceptResult| matches!(answer, Err(NotAccepted::Unavailable(_)));
        if !answers.iter().any(is_open) {
            return;
        }
        match self.known(batch).await {
            Ok(known) => {
                for (answer, known) in answers.iter_mut().zip(known).filter(|(answer, _)| is_open(answer)) {
                    if let Some((id, is_same)) = known {
                        *answer = Ok(Accepted { id, duplicate: true, conflict: !is_same });
                    }
                }
            }
            Err(problem) => {
                tracing::debug!(
                    %problem,
                    "could not look up earlier notifications with the same idempotency keys; the requests are \
                     answered as unavailable"
                );
            }
        }
    }

    async fn known(&self, batch: &[NotificationRequest]) -> Result<Vec<Option<(Uuid, bool)>>, DbError> {
        let mut known = vec![None; batch.len()];
        match &self.db {
            Db::Postgres(_) => {
                for row in self.db.query(KNOWN_POSTGRES, vec![said(batch)?]).await? {
                    let place = usize::try_from(row.get::<i64>(0)? - 1).unwrap_or(usize::MAX);
                    if let Some(slot) = known.get_mut(place) {
                        *slot = Some((row.get(1)?, row.get(2)?));
                    }
                }
            }
            Db::Sqlite(db) => {
                let rows: Vec<ViewRow> = batch.iter().map(ViewRow::of).collect::<Result<_, _>>()?;
                known =
                    db.read(move |connection| rows.iter().map(|row| known_sqlite(connection, row)).collect()).await?;
            }
        }
        Ok(known)
    }
}

fn known_sqlite(connection: &Connection, ViewRow { new, .. }: &ViewRow) -> Result<Option<(Uuid, bool)>, DbError> {
    let same = |column: &str, given: &str, none: &str| {
        let (kept, given) =
            (format!("json_tree(coalesce(n.{column}, '{none}'))"), format!("json_tree(coalesce({given}, '{none}'))"));
        let only_in = |one: &str, other: &str| {
            format!("EXISTS (SELECT fullkey, type, atom FROM {one} EXCEPT SELECT fullkey, type, atom FROM {other})")
        };
        format!("NOT ({} OR {})", only_in(&kept, &given), only_in(&given, &kept))
    };
    let sql = KNOWN_SQLITE
        .replace("{payload}", &same("payload", "?10", "{}"))
        .replace("{recipients}", &same("recipients", "?11", "[]"))
        .replace("{channels}", &same("channels", "?12", "[]"))
        .replace("{data}", &same("data", "?13", "null"));
    let parameters = params![
        new.tenant,
        new.key,
        new.event_type,
        new.entity,
        new.title,
        new.body,
        new.action_url,
        new.topic,
        new.schema_version,
        new.payload,
        new.recipients,
        new.channels,
        new.data,
    ];
    Prepared::on(connection, &sql)?.first(parameters, |row| Ok((row.take(0)?, row.take(1)?)))
}
