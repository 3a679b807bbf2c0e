//! Expansion: a notification's own row becomes one row per target, in one transaction, fenced by its token.

use postcommit_channel::model::{Fate, Target};
use rusqlite::Connection;
use uuid::Uuid;

use crate::crash_point;
use crate::db::{Db, DbError, Value, postgres, sqlite};
use crate::store::{Lease, Store};

/// A notification's targets.
#[derive(Debug, Clone)]
pub struct Expanded {
    /// The right to expand it; its key has n = 0.
    pub lease: Lease,
    /// Numbered from 1 in this order.
    pub targets: Vec<Target>,
}

/// New rows keep the notification's due time and priority: who waited longest goes first on every lane. A notification's targets travel with its row as
/// arrays: joining them to it afterwards would compare every target with every notification.
pub(in crate::store) const EXPAND_POSTGRES: &str = "
    WITH given AS MATERIALIZED (
      SELECT tenant, notification_id, 0 AS n, token, array_agg(g.n) AS ns, array_agg(lane) AS lanes, array_agg(channel) AS channels, array_agg(target) AS targets, array_agg(state) AS states,
        array_agg(reason) AS reasons, array_agg(code) AS codes, array_agg(detail) AS details
      FROM unnest($1::int[], $2::uuid[], $3::uuid[], $4::int[], $5::int[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[], $11::text[])
        AS g (tenant, notification_id, token, n, lane, channel, target, state, reason, code, detail)
      GROUP BY tenant, notification_id, token
    ), gone AS (
      DELETE FROM postcommit.delivery_queue q USING given g
      WHERE q.tenant = ANY (ARRAY[g.tenant]) AND q.notification_id = g.notification_id AND q.n = g.n AND q.lease_token = g.token
      RETURNING q.tenant, q.notification_id, q.priority, q.due_at, g.ns, g.lanes, g.channels, g.targets, g.states, g.reasons, g.codes, g.details
    ), target AS (
      SELECT gone.tenant, gone.notification_id, gone.priority, gone.due_at, t.*
      FROM gone CROSS JOIN LATERAL unnest(ns, lanes, channels, targets, states, reasons, codes, details) AS t (n, lane, channel, target, state, reason, code, detail)
    ), queued AS (
      INSERT INTO postcommit.delivery_queue (tenant, notification_id, n, lane, priority, due_at, channel, target)
      SELECT tenant, notification_id, n, lane, priority, due_at, channel, target FROM target WHERE state IS NULL ORDER BY tenant, notification_id, n
    ), entered AS (
      INSERT INTO postcommit.delivery_ledger (tenant, notification_id, n, lane, channel, target, state, reason, code, detail, attempts, seq, finished_at)
      SELECT tenant, notification_id, n, 0, channel, target, state, reason, code, detail, 0, 0, clock_timestamp() FROM target WHERE state IS NOT NULL
      ORDER BY tenant, notification_id, n
    )
    SELECT count(*) FROM gone";

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
                let statement = client.prepare_cached(EXPAND_POSTGRES).await.map_err(postgres::refused)?;
                let c = Columns::of(&batch);
                let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 11] =
                    [&c.tenant, &c.id, &c.token, &c.n, &c.lane, &c.channel, &c.target, &c.state, &c.reason, &c.code, &c.detail];
                let row = client.query_one(&statement, &parameters).await.map_err(postgres::refused)?;
                usize::try_from(row.get::<_, i64>(0)).unwrap_or(0)
            }
            Db::Sqlite(db) => {
                db.write(move |connection| {
                    let mut expanded = 0;
                    for one in &batch {
                        expanded += usize::from(expand_sqlite(connection, one)?);
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
        let parameters = vec![key.tenant.into(), key.notification.into(), key.n.into(), lease.token.into(), lane.into()];
        Ok(self.db.execute_one(sql, parameters).await? > 0)
    }
}

#[derive(Default)]
struct Columns<'a> {
    tenant: Vec<i32>,
    id: Vec<Uuid>,
    token: Vec<Uuid>,
    n: Vec<i32>,
    lane: Vec<i32>,
    channel: Vec<&'a str>,
    target: Vec<&'a str>,
    state: Vec<Option<&'static str>>,
    reason: Vec<Option<&'static str>>,
    code: Vec<Option<&'static str>>,
    detail: Vec<Option<&'a str>>,
}

impl<'a> Columns<'a> {
    fn of(batch: &'a [Expanded]) -> Self {
        let mut columns = Self::default();
        for Expanded { lease, targets } in batch {
            for (n, target) in (1..).zip(targets) {
                columns.push(*lease, n, target);
            }
        }
        columns
    }

    fn push(&mut self, lease: Lease, n: i32, target: &'a Target) {
        let (lane, ended) = match &target.fate {
            Fate::Lane(lane) => (*lane, None),
            Fate::Ended { state, code, detail } => (0, Some((*state, *code, detail.as_str()))),
        };
        self.tenant.push(lease.key.tenant);
        self.id.push(lease.key.notification);
        self.token.push(lease.token);
        self.n.push(n);
        self.lane.push(lane);
        self.channel.push(target.facts.channel());
        self.target.push(target.facts.target());
        self.state.push(ended.map(|(state, _, _)| state.name()));
        self.reason.push(ended.and_then(|(state, _, _)| state.reason()));
        self.code.push(ended.map(|(_, code, _)| code));
        self.detail.push(ended.map(|(_, _, detail)| detail));
    }
}

fn expand_sqlite(connection: &Connection, one: &Expanded) -> Result<bool, DbError> {
    let key = one.lease.key;
    let gone = "DELETE FROM postcommit_delivery_queue WHERE tenant = ?1 AND notification_id = ?2 AND n = 0 AND lease_token = ?3 RETURNING priority, due_at";
    let rows = sqlite::query(connection, gone, &[key.tenant.into(), key.notification.into(), one.lease.token.into()])?;
    let Some(row) = rows.first() else { return Ok(false) };
    for (n, target) in (1_i32..).zip(&one.targets) {
        let base: [Value; 5] =
            [key.tenant.into(), key.notification.into(), n.into(), target.facts.channel().into(), target.facts.target().into()];
        let (sql, rest) = match &target.fate {
            Fate::Lane(lane) => (
                "INSERT INTO postcommit_delivery_queue (tenant, notification_id, n, channel, target, lane, priority, due_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)".to_owned(),
                vec![(*lane).into(), row.get::<i64>(0)?.into(), row.get::<i64>(1)?.into()],
            ),
            Fate::Ended { state, code, detail } => (
                format!(
                    "INSERT INTO postcommit_delivery_ledger (tenant, notification_id, n, channel, target, lane, state, reason, code, detail, attempts, seq, finished_at)
                     VALUES (?1, ?2, ?3, ?4, ?5, 0, ?6, ?7, ?8, ?9, 0, 0, {})",
                    sqlite::NOW
                ),
                vec![state.name().into(), state.reason().into(), (*code).into(), detail.as_str().into()],
            ),
        };
        sqlite::run(connection, &sql, base.iter().chain(&rest))?;
    }
    Ok(true)
}
