//! Hosts of lanes that serve many receivers: one that asked to wait is held, one that refuses our account is paused, and the others of the lane go on
//! (docs/decisions/0028).

use std::time::Duration;

use postcommit::Timestamp;
use serde::Serialize;
use serde_json::json;

use crate::db::{DbError, Row, Value};
use crate::store::providers::turn;
use crate::store::unreadable::legible;
use crate::store::{AuditEntry, Store};

/// Hosts of one lane that are held or paused, at most. Beyond that a host's answer concerns its own delivery alone.
pub const SHUT_HOSTS: i64 = 1000;

/// A delivery that waits for its host carries one of these codes, and [`waits_for`] as its detail: so it is found when the host is opened.
pub const HOST_HELD: &str = "host_held";
/// As [`HOST_HELD`], for a host that is paused.
pub const HOST_PAUSED: &str = "host_paused";

/// Rows brought forward with one statement: on SQLite the application waits for each.
const FORWARD: i64 = 2000;
/// Statements of that kind for one resume. What is left comes by itself within the hour.
const FORWARDS: usize = 500;
/// For so long the row of an opened host is kept, for processes to read that it is open. They read all rows anew more often than that.
const KEPT: Duration = Duration::from_secs(3600);

/// The row `h` holds its host shut.
const IS_SHUT: &str = "(h.paused IS NOT NULL OR h.held_until > {now})";

/// What the row of a delivery says while it waits for its host.
#[must_use]
pub fn waits_for(host: &str) -> String {
    format!("waits for {host}")
}

/// A host that is held or paused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ShutHost {
    /// The lane.
    #[serde(skip)]
    pub lane: i32,
    /// Name and port, such as `example.com:443`.
    pub host: String,
    /// Until when its own wish holds it.
    pub held_until: Option<Timestamp>,
    /// Why it is paused, if it is.
    pub paused: Option<String>,
    /// Since when it is as it is.
    pub since: Timestamp,
}

/// What a process has not read yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostChange {
    /// The lane.
    pub lane: i32,
    /// Name and port.
    pub host: String,
    /// Until when it is held; none, or in the past, when it is not.
    pub held_until: Option<Timestamp>,
    /// Whether it is paused.
    pub paused: bool,
    /// The number of the change; they grow.
    pub changed: i64,
}

/// What became of a wish to hold or pause a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shut {
    /// This call did it.
    Now,
    /// It is shut already: paused, or held for at least as long.
    Already,
    /// The provider was changed or resumed since: an answer to old settings says nothing about the new ones.
    Outdated,
    /// Too many hosts of this lane are shut: [`SHUT_HOSTS`].
    TooMany,
}

/// How many lanes and hosts are shut.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ShutCount {
    /// Lanes that are paused.
    pub lanes_paused: i64,
    /// Lanes that are held because their provider asked to wait.
    pub lanes_held: i64,
    /// Hosts of lanes that are paused.
    pub hosts_paused: i64,
    /// Hosts of lanes that are held because they asked to wait.
    pub hosts_held: i64,
}

impl Store {
    /// Holds a host of a lane for so long from now, by the database's clock; a longer hold stays. The revision as in [`Store::pause_lane`].
    pub async fn hold_host(&self, lane: i32, host: &str, revision: Option<i32>, wait: Duration) -> Result<Shut, DbError> {
        let until = self.db.seconds_from_now(4);
        let sql = format!(
            "INSERT INTO postcommit.lane_host AS h (tenant, lane, host, held_until, updated_at) SELECT p.tenant, p.id, $2, {until}, {{now}} {}
             ON CONFLICT (tenant, lane, host) DO UPDATE SET held_until = excluded.held_until, updated_at = excluded.updated_at
             WHERE h.held_until IS NULL OR h.held_until < excluded.held_until",
            room()
        );
        let parameters = vec![lane.into(), host.into(), revision.into(), Value::Real(wait.as_secs_f64())];
        match self.db.execute_one(&sql, parameters).await? {
            0 => self.why_not(lane, host, revision).await,
            _ => Ok(Shut::Now),
        }
    }

    /// Pauses a host of a lane; one paused already keeps its reason. The revision as in [`Store::pause_lane`].
    pub async fn pause_host(&self, lane: i32, host: &str, revision: Option<i32>, why: &str) -> Result<Shut, DbError> {
        let sql = format!(
            "INSERT INTO postcommit.lane_host AS h (tenant, lane, host, paused, updated_at) SELECT p.tenant, p.id, $2, $4, {{now}} {}
             ON CONFLICT (tenant, lane, host) DO UPDATE SET paused = excluded.paused, updated_at = excluded.updated_at WHERE h.paused IS NULL",
            room()
        );
        let entry = AuditEntry::of_lane(lane, "provider.pause").details(json!({"host": host, "reason": why}));
        let _turn = turn().await?;
        match self.change(&sql, vec![lane.into(), host.into(), revision.into(), why.into()], entry).await? {
            true => Ok(Shut::Now),
            false => self.why_not(lane, host, revision).await,
        }
    }

    /// Why a host was not shut just now.
    async fn why_not(&self, lane: i32, host: &str, revision: Option<i32>) -> Result<Shut, DbError> {
        let sql = format!(
            "SELECT p.revision = coalesce($3, p.revision), EXISTS (SELECT 1 FROM postcommit.lane_host h WHERE h.tenant = p.tenant AND h.lane = p.id AND h.host = $2 AND {IS_SHUT})
             FROM postcommit.provider p WHERE p.id = $1"
        );
        let rows = self.db.query(&sql, vec![lane.into(), host.into(), revision.into()]).await?;
        let Some(row) = rows.first() else { return Ok(Shut::Outdated) };
        Ok(match (row.get(0)?, row.get(1)?) {
            (false, _) => Shut::Outdated,
            (true, true) => Shut::Already,
            (true, false) => Shut::TooMany,
        })
    }

    /// Opens a host of a lane again, whatever shut it, and brings forward what waits for it. False when nothing did: then nothing is changed.
    pub async fn resume_host(&self, lane: i32, host: &str) -> Result<bool, DbError> {
        let turn = turn().await?;
        // A revision, so that the answer to what is under way shuts nothing again; and the provider's row before the counter of changes, as everybody does.
        let decide = format!(
            "UPDATE postcommit.provider SET revision = revision + 1, updated_at = {{now}} WHERE id = $1
             AND EXISTS (SELECT 1 FROM postcommit.lane_host h WHERE h.tenant = postcommit.provider.tenant AND h.lane = $1 AND h.host = $2 AND {IS_SHUT})"
        );
        let open = "UPDATE postcommit.lane_host SET held_until = NULL, paused = NULL, updated_at = {now} WHERE lane = $1 AND host = $2";
        let parameters = || vec![lane.into(), host.into()];
        let entry = AuditEntry::of_lane(lane, "provider.resume").details(json!({"host": host}));
        let statements = vec![(self.own_name(&decide), parameters()), (open.to_owned(), parameters())];
        let opened = self.change_all(statements, 0, entry).await?;
        drop(turn);
        // Also where nothing was shut: the call before this one may have ended before it brought everything forward.
        self.bring_hosts_forward(lane, Some(host)).await?;
        Ok(opened)
    }

    /// A statement that names the table it updates in a subquery: PostgreSQL knows it there without its schema, SQLite by its whole name.
    pub(in crate::store) fn own_name(&self, sql: &str) -> String {
        if self.db.kind() == "postgres" { sql.replace("postcommit.provider.", "provider.") } else { sql.to_owned() }
    }

    /// Makes what waits for a host of this lane due now; without a host, for any. What is still to wait waits again, without a trace.
    pub async fn bring_hosts_forward(&self, lane: i32, host: Option<&str>) -> Result<(), DbError> {
        // An application that is about to cancel one of them must neither be waited for nor be deadlocked with.
        let unlocked = if self.db.kind() == "postgres" { "FOR UPDATE SKIP LOCKED" } else { "" };
        let sql = format!(
            "UPDATE postcommit.delivery_queue SET due_at = {{now}} WHERE (tenant, notification_id, n) IN (SELECT q.tenant, q.notification_id, q.n FROM postcommit.delivery_queue q
               WHERE q.lane = $1 AND q.lease_token IS NULL AND q.due_at > {{now}} AND q.code IN ('{HOST_HELD}', '{HOST_PAUSED}') AND q.detail = coalesce($2, q.detail) LIMIT {FORWARD} {unlocked})
             AND lease_token IS NULL"
        );
        for _ in 0..FORWARDS {
            let moved = self.db.execute_one(&sql, vec![lane.into(), host.map(waits_for).into()]).await?;
            if moved < u64::try_from(FORWARD).unwrap_or(u64::MAX) {
                break;
            }
        }
        Ok(())
    }

    /// Hosts that are held or paused: of one tenant or of all, of one lane or of all; those that wait for a person first. At most `limit`.
    pub async fn shut_hosts(&self, tenant: Option<i32>, lane: Option<i32>, limit: i64) -> Result<Vec<ShutHost>, DbError> {
        let sql = format!(
            "SELECT h.lane, h.host, CASE WHEN h.held_until > {{now}} THEN h.held_until END, h.paused, h.updated_at FROM postcommit.lane_host h
             WHERE h.tenant = coalesce($1, h.tenant) AND h.lane = coalesce($2, h.lane) AND {IS_SHUT} ORDER BY (h.paused IS NULL), h.lane, h.host LIMIT $3"
        );
        let rows = self.db.query(&sql, vec![tenant.into(), lane.into(), limit.into()]).await?;
        Ok(legible("hosts", rows.iter().map(shut_host)))
    }

    /// What was changed after that number; 0 reads every host that is shut.
    pub async fn host_changes(&self, after: i64) -> Result<Vec<HostChange>, DbError> {
        let which = if after == 0 { IS_SHUT } else { "h.changed > $1" };
        let sql = format!("SELECT h.lane, h.host, h.held_until, h.paused IS NOT NULL, h.changed FROM postcommit.lane_host h WHERE {which}");
        let parameters = if after == 0 { vec![] } else { vec![after.into()] };
        let rows = self.db.query(&sql, parameters).await?;
        Ok(legible("hosts", rows.iter().map(host_change)))
    }

    /// How many lanes and hosts are shut. `None` is every tenant.
    pub async fn count_shut(&self, tenant: Option<i32>) -> Result<ShutCount, DbError> {
        let sql = "SELECT (SELECT count(*) FROM postcommit.provider p WHERE p.tenant = coalesce($1, p.tenant) AND p.paused IS NOT NULL),
              (SELECT count(*) FROM postcommit.provider p WHERE p.tenant = coalesce($1, p.tenant) AND p.not_before > {now}),
              (SELECT count(*) FROM postcommit.lane_host h WHERE h.tenant = coalesce($1, h.tenant) AND h.paused IS NOT NULL),
              (SELECT count(*) FROM postcommit.lane_host h WHERE h.tenant = coalesce($1, h.tenant) AND h.held_until > {now})";
        let rows = self.db.query(sql, vec![tenant.into()]).await?;
        let Some(row) = rows.first() else { return Ok(ShutCount::default()) };
        Ok(ShutCount { lanes_paused: row.get(0)?, lanes_held: row.get(1)?, hosts_paused: row.get(2)?, hosts_held: row.get(3)? })
    }

    /// Forgets hosts that have been open for a while. Returns how many.
    pub async fn forget_open_hosts_once(&self) -> Result<u64, DbError> {
        let sql =
            "DELETE FROM postcommit.lane_host WHERE paused IS NULL AND (held_until IS NULL OR held_until <= {now}) AND updated_at < $1";
        self.db.execute_one(sql, vec![crate::store::numbers::kpis::before(self.now().await?, KEPT).into()]).await
    }
}

/// The provider of lane $1 at revision $3, if its host $2 may be shut: it is already known, or there is room for one more. On SQLite the condition also keeps
/// `ON CONFLICT` from being read as a join.
fn room() -> String {
    format!(
        "FROM postcommit.provider p WHERE p.id = $1 AND p.revision = coalesce($3, p.revision)
         AND (SELECT count(*) FROM postcommit.lane_host h WHERE h.tenant = p.tenant AND h.lane = p.id AND h.host <> $2 AND {IS_SHUT}) < {SHUT_HOSTS}"
    )
}

fn shut_host(row: &Row) -> Result<ShutHost, DbError> {
    Ok(ShutHost { lane: row.get(0)?, host: row.get(1)?, held_until: row.get(2)?, paused: row.get(3)?, since: row.get(4)? })
}

fn host_change(row: &Row) -> Result<HostChange, DbError> {
    Ok(HostChange { lane: row.get(0)?, host: row.get(1)?, held_until: row.get(2)?, paused: row.get(3)?, changed: row.get(4)? })
}
