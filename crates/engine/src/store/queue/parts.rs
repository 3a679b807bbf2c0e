//! Large expansions, in parts. The members of the lists are copied when the expansion begins, so that later changes of
//! the lists have no effect. Each part is a transaction: it writes its targets, removes its members from the copy, and
//! releases the notification's row. If a worker dies between two parts, nothing is lost.
//!
//! The progress of the expansion follows from the rows themselves: the next target's number follows the highest number
//! so far, and the next members are the first members in the copy. So the expansion also continues after the
//! notification was parked and retried.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::sync::LazyLock;

use postcommit_channel::model::{ListMember, comparable};
use rusqlite::Connection;
use serde_json::json;
use uuid::Uuid;

use crate::crash_point;
use crate::db::sqlite::{Cursor, Prepared};
use crate::db::{Cells, Db, DbError, Row, Statement, Value, postgres, sqlite};
use crate::store::audience::INSIDE;
use crate::store::queue::expand::{
    EXPAND_ONCE_POSTGRES, EXPAND_PART_POSTGRES, Expanded, OwnRow, Told, Written, expand_sqlite, written,
};
use crate::store::queue::pacing::{is_paced, pace_postgres, pace_sqlite};
use crate::store::unreadable::legible;
use crate::store::{Lease, Store};

/// The start of the next part of a large expansion.
#[derive(Debug, Clone)]
pub struct NextPart {
    /// The number of the part's first target.
    pub first: i32,
    /// The next members in the copy of the lists' members.
    pub members: Vec<ListMember>,
    /// The position of the last of these members in the copy.
    pub until: i32,
    /// Whether the copy has no members after these.
    pub is_last: bool,
}

/// A part of a large expansion, ready to be written.
#[derive(Debug, Clone)]
pub struct Part {
    pub expanded: Expanded,
    /// The position of the last member that the part expands.
    pub until: i32,
    /// Whether this is the last part, so that the notification's row is removed.
    pub is_last: bool,
}

/// Returns the PostgreSQL statement that copies the members of the lists, each once.
fn copied_members(lease: Lease, after: usize, lists: &[String]) -> Statement {
    let given = "(SELECT $1::int AS tenant, value #>> '{}' AS a FROM jsonb_array_elements($3::jsonb)) AS g";
    let inside = INSIDE.replace("{given}", given);
    let sql = format!(
        "WITH {inside}
         INSERT INTO postcommit.expansion_member (tenant, notification_id, position, kind, member, channel)
         SELECT $1, $2, $4 + row_number() OVER (ORDER BY kind, member, channel), kind, member, channel
         FROM (SELECT DISTINCT m.kind, m.member, m.channel
           FROM inside g
           JOIN postcommit.list_member m ON m.tenant = g.tenant AND m.list = g.list
           WHERE m.kind <> 'list') each"
    );
    let after = i64::try_from(after).unwrap_or_default();
    let lists = Value::Json(json!(lists).to_string());
    (sql, vec![lease.key.tenant.into(), lease.key.notification.into(), lists, Value::Int(after)])
}

/// Finds the given lists and all lists inside them, on SQLite.
static LISTS_SQLITE: LazyLock<String> = LazyLock::new(|| {
    let given = "(SELECT $1 AS tenant, value AS a FROM json_each($2)) AS g";
    let inside = INSIDE.replace("= ANY (ARRAY[g.tenant])", "= g.tenant").replace("{given}", given);
    sqlite::dialect(&format!("WITH {inside} SELECT DISTINCT list FROM inside"))
});
/// Reads the members of one list in the order of the table's key.
const MEMBERS_SQLITE: &str = "SELECT kind, member, channel FROM postcommit_list_member
    WHERE tenant = ?1 AND list = ?2 AND kind <> 'list' ORDER BY kind, member, channel";
const COPY_SQLITE: &str = "INSERT INTO postcommit_expansion_member
    (tenant, notification_id, position, kind, member, channel) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";

/// Copies the members of the lists on SQLite, each once. The lists are merged in the order of their members, so that
/// only one member of each list is in memory. With DISTINCT or a window function SQLite would keep all members in
/// memory.
fn copy_members(connection: &Connection, lease: Lease, after: usize, lists: &str) -> Result<(), DbError> {
    let (tenant, id) = (lease.key.tenant, sqlite::Id::from(lease.key.notification));
    let lists: Vec<String> = Prepared::on(connection, &LISTS_SQLITE)?
        .rows((tenant, lists), |row| row.take(0))?
        .into_iter()
        .collect::<Result<_, _>>()?;
    let mut members = lists.iter().map(|_| Prepared::on(connection, MEMBERS_SQLITE)).collect::<Result<Vec<_>, _>>()?;
    let mut cursors =
        members.iter_mut().zip(&lists).map(|(all, list)| all.cursor((tenant, list))).collect::<Result<Vec<_>, _>>()?;
    let mut copy = Prepared::on(connection, COPY_SQLITE)?;
    let mut next = BinaryHeap::new();
    for (list, cursor) in cursors.iter_mut().enumerate() {
        next.extend(member_of(cursor)?.map(|member| Reverse((member, list))));
    }
    let (mut position, mut last) = (after, None);
    while let Some(Reverse((member, list))) = next.pop() {
        next.extend(member_of(&mut cursors[list])?.map(|member| Reverse((member, list))));
        if last.as_ref() != Some(&member) {
            position += 1;
            let (kind, name, channel) = &member;
            copy.run((tenant, &id, i64::try_from(position).unwrap_or(i64::MAX), kind, name, channel))?;
            last = Some(member);
        }
    }
    Ok(())
}

/// Returns the next member of a list. A member that cannot be read is left out, so that it does not block the other
/// members.
fn member_of(cursor: &mut Cursor<'_>) -> Result<Option<(String, String, String)>, DbError> {
    loop {
        match cursor.next(|row| Ok((row.take(0)?, row.take(1)?, row.take(2)?))) {
            Err(problem @ DbError::Unreadable(_)) => {
                tracing::error!(%problem, "a member of a list cannot be read from the database; it is skipped");
            }
            read => return read,
        }
    }
}

impl Store {
    /// Returns the notifications among the given ones that are being expanded in parts.
    pub async fn in_parts(&self, notifications: &[(i32, Uuid)]) -> Result<HashSet<Uuid>, DbError> {
        if notifications.is_empty() {
            return Ok(HashSet::new());
        }
        let given = match &self.db {
            Db::Postgres(_) => "jsonb_to_recordset($1::jsonb) AS g (tenant int, id uuid)",
            Db::Sqlite(_) => "(SELECT value ->> 'tenant' AS tenant, value ->> 'id' AS id FROM json_each($1)) AS g",
        };
        let sql = format!(
            "SELECT g.id
             FROM {given}
             WHERE EXISTS (SELECT 1 FROM postcommit.expansion_member e
               WHERE e.tenant = g.tenant AND e.notification_id = g.id)"
        );
        let keys: Vec<_> = notifications.iter().map(|(tenant, id)| json!({"tenant": tenant, "id": id})).collect();
        let rows = self.db.query(&sql, vec![Value::Json(json!(keys).to_string())]).await?;
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// Begins a large expansion: copies the recipients and the members of the lists, and releases the notification's
    /// row. Returns false if the lease is lost.
    pub async fn begin_parts(&self, lease: Lease, named: &[ListMember], lists: &[String]) -> Result<bool, DbError> {
        crash_point!("expand.before");
        let (key, token) = (lease.key, lease.token);
        let give_back = "UPDATE postcommit.delivery_queue
            SET lease_token = NULL, lease_until = NULL, lost_since = NULL, losses = 0
            WHERE tenant = $1 AND notification_id = $2 AND n = 0 AND lease_token = $3";
        let mut statements = vec![
            (give_back.to_owned(), vec![key.tenant.into(), key.notification.into(), token.into()]),
            self.copied_names(lease, named),
        ];
        let begun = match &self.db {
            Db::Postgres(_) => {
                statements.push(copied_members(lease, named.len(), lists));
                self.db.execute_if(statements, 0).await?
            }
            Db::Sqlite(db) => {
                let (after, lists) = (named.len(), json!(lists).to_string());
                db.write(move |connection| {
                    let is_held = sqlite::execute(connection, &statements, 0)?.first() > Some(&0);
                    if is_held {
                        copy_members(connection, lease, after, &lists)?;
                    }
                    Ok(is_held)
                })
                .await?
            }
        };
        crash_point!("expand.after_commit");
        Ok(begun)
    }

    fn copied_names(&self, lease: Lease, named: &[ListMember]) -> Statement {
        let given = match &self.db {
            Db::Postgres(_) => "jsonb_array_elements($3::jsonb) WITH ORDINALITY AS g (value, place)",
            Db::Sqlite(_) => "(SELECT value, key + 1 AS place FROM json_each($3)) AS g",
        };
        let sql = format!(
            "INSERT INTO postcommit.expansion_member (tenant, notification_id, position, kind, member, channel)
             SELECT $1, $2, g.place, g.value ->> 0, g.value ->> 1, g.value ->> 2 FROM {given}"
        );
        let named: Vec<_> = named.iter().map(|one| json!([one.kind, one.member, one.channel])).collect();
        let named = Value::Json(json!(named).to_string());
        (sql, vec![lease.key.tenant.into(), lease.key.notification.into(), named])
    }

    /// Reads the next part of a large expansion, with at most `size` members.
    pub async fn next_part(&self, tenant: i32, id: Uuid, size: usize) -> Result<NextPart, DbError> {
        let highest = "SELECT max(n)
            FROM (SELECT max(q.n) AS n FROM postcommit.delivery_queue q WHERE q.tenant = $1 AND q.notification_id = $2
              UNION ALL
              SELECT max(l.n) FROM postcommit.delivery_ledger l WHERE l.tenant = $1 AND l.notification_id = $2) each";
        let members = "SELECT position, kind, member, channel
            FROM postcommit.expansion_member
            WHERE tenant = $1 AND notification_id = $2
            ORDER BY position
            LIMIT $3";
        let key = || vec![tenant.into(), id.into()];
        let limit = i64::try_from(size + 1).unwrap_or(i64::MAX);
        let highest = self.db.query(highest, key()).await?;
        let rows = self.db.query(members, [key(), vec![Value::Int(limit)]].concat()).await?;
        let read = |row: &Row| {
            Ok((row.get::<i32>(0)?, ListMember { kind: row.get(1)?, member: row.get(2)?, channel: row.get(3)? }))
        };
        // Members that cannot be read count here as well, or one of them would end the expansion early.
        let is_last = rows.len() <= size;
        let read = legible("members of an expansion", rows.iter().take(size).map(read));
        let until = read.last().map_or(i32::MAX, |(position, _)| *position);
        let highest: Option<i32> = highest.first().map_or(Ok(None), |row| row.get(0))?;
        let members = read.into_iter().map(|(_, member)| member).collect();
        Ok(NextPart { first: highest.unwrap_or(0).max(0) + 1, members, until, is_last })
    }

    /// Returns the addresses among the given ones that the notification already has targets for, by channel. Addresses
    /// are compared in the form of [`comparable`].
    pub async fn addresses_of(
        &self,
        tenant: i32,
        id: Uuid,
        addresses: &[&str],
    ) -> Result<HashSet<(String, String)>, DbError> {
        let given = match &self.db {
            Db::Postgres(_) => "SELECT value #>> '{}' FROM jsonb_array_elements($3::jsonb)",
            Db::Sqlite(_) => "SELECT value FROM json_each($3)",
        };
        let of_it =
            format!("tenant = $1 AND notification_id = $2 AND (target IN ({given}) OR lower(target) IN ({given}))");
        let sql = format!(
            "SELECT channel, target FROM postcommit.delivery_queue WHERE {of_it}
             UNION ALL SELECT channel, target FROM postcommit.delivery_ledger WHERE {of_it} AND state <> 'skipped'"
        );
        let addresses: Vec<_> = addresses.iter().map(|address| comparable(address)).collect();
        let rows =
            self.db.query(&sql, vec![tenant.into(), id.into(), Value::Json(json!(addresses).to_string())]).await?;
        let read = |row: &Row| Ok((row.get::<String>(0)?, comparable(&row.get::<String>(1)?).into_owned()));
        Ok(legible("targets", rows.iter().map(read)).into_iter().collect())
    }

    /// Writes a part of a large expansion. If the lease is lost, nothing is written.
    pub async fn expand_part(&self, part: Part) -> Result<Written, DbError> {
        crash_point!("expand.before");
        let key = part.expanded.lease.key;
        let remove = "DELETE FROM postcommit.expansion_member
            WHERE tenant = $1 AND notification_id = $2 AND position <= $3";
        let removed = vec![key.tenant.into(), key.notification.into(), part.until.into()];
        let pacing = is_paced(std::slice::from_ref(&part.expanded)).then(|| self.pacing_sql());
        let done = match &self.db {
            Db::Postgres(db) => {
                let sql = if part.is_last { &EXPAND_ONCE_POSTGRES } else { &EXPAND_PART_POSTGRES };
                let mut client = db.hot().await?;
                let statement = client.prepare_cached(sql).await.map_err(postgres::refused)?;
                let transaction = client.transaction().await.map_err(postgres::refused)?;
                let mut batch = vec![part.expanded];
                let paced = match &pacing {
                    Some(sql) => pace_postgres(&transaction, sql, &mut batch).await?,
                    None => Written::default(),
                };
                let told = Told::of(&batch, true);
                let row = transaction.query_one(&statement, &told.parameters()).await.map_err(postgres::refused)?;
                let done = written(&row).with(paced);
                if done.expanded > 0 {
                    postgres::run(&transaction, &(remove.to_owned(), removed)).await?;
                }
                crash_point!("expand.in_tx");
                transaction.commit().await.map_err(postgres::refused)?;
                done
            }
            Db::Sqlite(db) => {
                let remove = sqlite::dialect(remove);
                db.write(move |connection| {
                    let (mut done, now) = (Written::default(), sqlite::now(connection)?.as_micros());
                    let own_row = if part.is_last { OwnRow::Leaves } else { OwnRow::Stays };
                    let given = std::slice::from_ref(&part.expanded);
                    let paced = pacing.as_ref().map(|sql| pace_sqlite(connection, sql, given)).transpose()?;
                    if let Some((_, paced)) = &paced {
                        done = paced.clone();
                    }
                    for one in paced.as_ref().map_or(given, |(kept, _)| kept) {
                        expand_sqlite(connection, own_row, one, now, &mut done)?;
                    }
                    if done.expanded > 0 {
                        sqlite::run(connection, &remove, &removed)?;
                    }
                    crash_point!("expand.in_tx");
                    Ok(done)
                })
                .await?
            }
        };
        crash_point!("expand.after_commit");
        Ok(done)
    }

    /// Deletes the copies of large expansions that were cancelled, expired or discarded before they were complete.
    /// Returns the number of deleted members.
    pub async fn forget_parts_once(&self) -> Result<u64, DbError> {
        let sql = "DELETE FROM postcommit.expansion_member AS e
            WHERE NOT EXISTS (SELECT 1 FROM postcommit.delivery_queue q
                WHERE q.tenant = e.tenant AND q.notification_id = e.notification_id AND q.n = 0)
              AND NOT EXISTS (SELECT 1 FROM postcommit.delivery_ledger l
                WHERE l.tenant = e.tenant AND l.notification_id = e.notification_id AND l.n = 0
                  AND l.state = 'parked')";
        self.db.execute_one(sql, vec![]).await
    }
}
