//! Expansion: a notification's own row becomes one row per target, in one transaction, fenced by its token.

use std::sync::LazyLock;

use postcommit_channel::model::{Facts, Fate, Target};
use rusqlite::{Connection, params};
use uuid::Uuid;

use crate::crash_point;
use crate::db::columns::{arrays, insert, names, unnest};
use crate::db::sqlite::{Id, Prepared};
use crate::db::{Cells, Db, DbError, postgres, sqlite};
use crate::store::queue::row::{FactArrays, fact_values};
use crate::store::{Lease, Store};

/// A notification's targets.
#[derive(Debug, Clone)]
pub struct Expanded {
    /// The right to expand it; its key has n = 0.
    pub lease: Lease,
    /// Numbered from 1 in this order.
    pub targets: Vec<Target>,
}

arrays! {
    /// One target of a notification, beside its facts.
    struct Given<'a>, GivenArrays {
        tenant: i32,
        notification_id: Uuid,
        token: Uuid,
        n: i32,
        lane: i32,
        state: Option<&'a str>,
        reason: Option<&'a str>,
        code: Option<&'a str>,
        detail: Option<&'a str>,
    }
}
/// What names the notification's row, among the columns of a target.
const OF_NOTIFICATION: &str = "tenant, notification_id, token";

/// New rows keep the notification's due time and priority: who waited longest goes first on every lane. A notification's targets travel with its row as
/// arrays: joining them to it afterwards would compare every target with every notification.
pub(in crate::store) static EXPAND_POSTGRES: LazyLock<String> = LazyLock::new(|| {
    let columns = [GivenArrays::COLUMNS, FactArrays::COLUMNS].concat();
    let of_target =
        columns.iter().map(|(name, _)| *name).filter(|name| OF_NOTIFICATION.split(", ").all(|of_it| of_it != *name));
    let each = |write: fn(&str) -> String| of_target.clone().map(write).collect::<Vec<_>>().join(", ");
    let (given, facts) = (unnest(&columns), names::<Facts>(""));
    let (gathered, passed_on) =
        (each(|name| format!("array_agg(g.{name}) AS all_{name}")), each(|name| format!("g.all_{name}")));
    let (apart, named) = (each(|name| format!("all_{name}")), each(str::to_owned));
    format!(
        "WITH given AS MATERIALIZED (
          SELECT {OF_NOTIFICATION}, 0 AS n, {gathered} FROM {given} GROUP BY {OF_NOTIFICATION}
        ), gone AS (
          DELETE FROM postcommit.delivery_queue q USING given g
          WHERE q.tenant = ANY (ARRAY[g.tenant]) AND q.notification_id = g.notification_id AND q.n = g.n AND q.lease_token = g.token
          RETURNING q.tenant, q.notification_id, q.priority, q.due_at, {passed_on}
        ), target AS (
          SELECT gone.tenant, gone.notification_id, gone.priority, gone.due_at, t.* FROM gone CROSS JOIN LATERAL unnest({apart}) AS t ({named})
        ), queued AS (
          INSERT INTO postcommit.delivery_queue (tenant, notification_id, n, lane, priority, due_at, {facts})
          SELECT tenant, notification_id, n, lane, priority, due_at, {facts} FROM target WHERE state IS NULL ORDER BY tenant, notification_id, n
        ), entered AS (
          INSERT INTO postcommit.delivery_ledger (tenant, notification_id, n, lane, state, reason, code, detail, attempts, seq, finished_at, {facts})
          SELECT tenant, notification_id, n, 0, state, reason, code, detail, 0, 0, clock_timestamp(), {facts} FROM target WHERE state IS NOT NULL
          ORDER BY tenant, notification_id, n
        )
        SELECT count(*) FROM gone"
    )
});

impl Store {
    /// Replaces each notification's own row by its targets'. One whose lease is gone is left alone. Returns how many were replaced.
    ///
    /// # Errors
    /// As the database says; nothing was written then.
    pub async fn expand(&self, mut batch: Vec<Expanded>) -> Result<usize, DbError> {
        crash_point!("expand.before");
        batch.sort_by_key(|e| e.lease.key);
        let expanded = match &self.db {
            Db::Postgres(db) => {
                let client = db.hot().await?;
                let statement = client.prepare_cached(&EXPAND_POSTGRES).await.map_err(postgres::refused)?;
                let targets =
                    || batch.iter().flat_map(|one| (1..).zip(&one.targets).map(|(n, target)| (one.lease, n, target)));
                let given: GivenArrays<'_> = targets().map(|(lease, n, target)| given(lease, n, target)).collect();
                let facts: FactArrays<'_> = targets().map(|(_, _, target)| (&target.facts).into()).collect();
                let parameters = [given.parameters(), facts.parameters()].concat();
                let row = client.query_one(&statement, &parameters).await.map_err(postgres::refused)?;
                usize::try_from(row.get::<_, i64>(0)).unwrap_or(0)
            }
            Db::Sqlite(db) => {
                db.write(move |connection| {
                    let (mut expanded, now) = (0, sqlite::now(connection)?.as_micros());
                    for one in &batch {
                        expanded += usize::from(expand_sqlite(connection, one, now)?);
                    }
                    crash_point!("expand.in_tx");
                    Ok(expanded)
                })
                .await?
            }
        };
        crash_point!("expand.after_commit");
        Ok(expanded)
    }

    /// Moves an unrouted delivery into its lane. False when its lease is gone.
    pub async fn enter_lane(&self, lease: Lease, lane: i32) -> Result<bool, DbError> {
        let sql = "UPDATE postcommit.delivery_queue SET lane = $5, lease_token = NULL, lease_until = NULL
            WHERE tenant = $1 AND notification_id = $2 AND n = $3 AND lease_token = $4";
        let key = lease.key;
        let parameters =
            vec![key.tenant.into(), key.notification.into(), key.n.into(), lease.token.into(), lane.into()];
        Ok(self.db.execute_one(sql, parameters).await? > 0)
    }
}

fn given(lease: Lease, n: i32, target: &Target) -> Given<'_> {
    let (lane, ended) = match &target.fate {
        Fate::Lane(lane) => (*lane, None),
        Fate::Ended { state, code, detail } => (0, Some((*state, *code, detail.as_str()))),
    };
    Given {
        tenant: lease.key.tenant,
        notification_id: lease.key.notification,
        token: lease.token,
        n,
        lane,
        state: ended.map(|(state, _, _)| state.name()),
        reason: ended.and_then(|(state, _, _)| state.reason()),
        code: ended.map(|(_, code, _)| code),
        detail: ended.map(|(_, _, detail)| detail),
    }
}

const LEAVE_SQLITE: &str = "DELETE FROM postcommit_delivery_queue
    WHERE tenant = ?1 AND notification_id = ?2 AND n = 0 AND lease_token = ?3 RETURNING priority, due_at";
static QUEUE_SQLITE: LazyLock<String> = LazyLock::new(|| {
    insert(
        "postcommit_delivery_queue",
        &format!("tenant, notification_id, n, lane, priority, due_at, {}", names::<Facts>("")),
    )
});
static ENTER_SQLITE: LazyLock<String> = LazyLock::new(|| {
    let columns = "tenant, notification_id, n, lane, state, reason, code, detail, attempts, seq, finished_at";
    insert("postcommit_delivery_ledger", &format!("{columns}, {}", names::<Facts>("")))
});

fn expand_sqlite(connection: &Connection, one: &Expanded, now: i64) -> Result<bool, DbError> {
    let (key, id) = (one.lease.key, Id::from(one.lease.key.notification));
    let left = Prepared::on(connection, LEAVE_SQLITE)?
        .rows(params![key.tenant, id, Id::from(one.lease.token)], |row| {
            Ok((row.take::<i64>(0)?, row.take::<i64>(1)?))
        })?;
    let Some((priority, due_at)) = left.into_iter().next().transpose()? else { return Ok(false) };
    for (n, target) in (1_i32..).zip(&one.targets) {
        let given = given(one.lease, n, target);
        let own = params![given.tenant, id, n, given.lane];
        let (sql, rest) = match given.state {
            None => (&QUEUE_SQLITE, params![priority, due_at]),
            Some(_) => (&ENTER_SQLITE, params![given.state, given.reason, given.code, given.detail, 0, 0, now]),
        };
        Prepared::on(connection, sql)?.run([own, rest, &fact_values(&target.facts)].concat().as_slice())?;
    }
    Ok(true)
}
