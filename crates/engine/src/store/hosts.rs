//! Hosts of lanes that serve many receivers. A host that asked to wait is held and a host that refuses our account is
//! paused, while the other hosts of the lane go on (docs/decisions/0028).

use std::time::Duration;

use postcommit::Timestamp;
use serde::Serialize;
use serde_json::json;

use crate::db::{DbError, Row, Value};
use crate::store::providers::turn;
use crate::store::unreadable::legible;
use crate::store::{AuditEntry, Store};

/// The most closed (held or paused) hosts of one lane. Beyond that, the answer of a host affects only its own delivery.
pub const MAX_CLOSED_HOSTS: i64 = 1000;

/// A delivery that waits for its host has this code and [`waits_for`] as its detail. So it is found when the host is
/// opened.
pub const HOST_HELD: &str = "host_held";
/// As [`HOST_HELD`], for a host that is paused.
pub const HOST_PAUSED: &str = "host_paused";

/// The most rows that one statement brings forward. On SQLite the application waits for each statement.
const FORWARD: i64 = 2000;
/// The most such statements of one resume. The remaining rows become due by themselves within the hour.
const FORWARDS: usize = 500;
/// How long the row of an opened host is kept, so that processes can read that it is open. They read all rows again
/// more often than that.
const KEPT: Duration = Duration::from_secs(3600);

/// The condition that the host of row `h` is closed.
const IS_CLOSED: &str = "(h.paused IS NOT NULL OR h.held_until > {now})";

/// The detail of a delivery that waits for its host.
#[must_use]
pub fn waits_for(host: &str) -> String {
    format!("waits for {host}")
}

/// A host that is held or paused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClosedHost {
    /// The lane.
    #[serde(skip)]
    pub lane: i32,
    /// Name and port, such as `example.com:443`.
    pub host: String,
    /// Until when it is held because it asked to wait.
    pub held_until: Option<Timestamp>,
    /// Why it is paused. `null` if it is not.
    pub paused: Option<String>,
    /// When it was last held or paused.
    pub since: Timestamp,
}

/// A change of a host that a process has not read yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostChange {
    /// The lane.
    pub lane: i32,
    /// Name and port.
    pub host: String,
    /// Until when it is held. `None` or a time in the past: not held.
    pub held_until: Option<Timestamp>,
    /// Whether it is paused.
    pub paused: bool,
    /// The number of the change. Numbers grow.
    pub changed: i64,
}

/// The result of a request to hold or pause a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseOutcome {
    /// This call closed the host.
    Now,
    /// The host was closed already: paused, or held for at least as long.
    Already,
    /// The provider was changed, resumed or deleted since. An answer to old settings says nothing about the new ones.
    Outdated,
    /// Too many hosts of this lane are closed: [`MAX_CLOSED_HOSTS`].
    TooMany,
}

/// How many lanes and hosts are closed: paused, or held because they asked to wait.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClosedCount {
    /// Paused lanes.
    pub lanes_paused: i64,
    /// Lanes that are held because the provider asked to wait.
    pub lanes_held: i64,
    /// Paused hosts.
    pub hosts_paused: i64,
    /// Hosts that are held because they asked to wait.
    pub hosts_held: i64,
}

impl Store {
    /// Holds a host of a lane for `wait` from now, by the database's clock. A longer hold stays. For `revision` see
    /// [`Store::pause_lane`].
    pub async fn hold_host(
        &self,
        lane: i32,
        host: &str,
        revision: Option<i32>,
        wait: Duration,
    ) -> Result<CloseOutcome, DbError> {
        let until = self.db.seconds_from_now(4);
        let sql = format!(
            "INSERT INTO postcommit.lane_host AS h (tenant, lane, host, held_until, updated_at)
             SELECT p.tenant, p.id, $2, {until}, {{now}} {}
             ON CONFLICT (tenant, lane, host) DO UPDATE SET held_until = excluded.held_until,
               updated_at = excluded.updated_at
             WHERE h.held_until IS NULL OR h.held_until < excluded.held_until",
            closable_host()
        );
        let parameters = vec![lane.into(), host.into(), revision.into(), Value::Real(wait.as_secs_f64())];
        match self.db.execute_one(&sql, parameters).await? {
            0 => self.why_not(lane, host, revision).await,
            _ => Ok(CloseOutcome::Now),
        }
    }

    /// Pauses a host of a lane. A host that is paused already keeps its reason. For `revision` see
    /// [`Store::pause_lane`].
    pub async fn pause_host(
        &self,
        lane: i32,
        host: &str,
        revision: Option<i32>,
        why: &str,
    ) -> Result<CloseOutcome, DbError> {
        let sql = format!(
            "INSERT INTO postcommit.lane_host AS h (tenant, lane, host, paused, updated_at)
             SELECT p.tenant, p.id, $2, $4, {{now}} {}
             ON CONFLICT (tenant, lane, host) DO UPDATE SET paused = excluded.paused, updated_at = excluded.updated_at
             WHERE h.paused IS NULL",
            closable_host()
        );
        let entry = AuditEntry::of_lane(lane, "provider.pause").details(json!({"host": host, "reason": why}));
        let _turn = turn().await?;
        match self.change(&sql, vec![lane.into(), host.into(), revision.into(), why.into()], entry).await? {
            true => Ok(CloseOutcome::Now),
            false => self.why_not(lane, host, revision).await,
        }
    }

    /// Why a host could not be closed.
    async fn why_not(&self, lane: i32, host: &str, revision: Option<i32>) -> Result<CloseOutcome, DbError> {
        let sql = format!(
            "SELECT p.revision = coalesce($3, p.revision),
               EXISTS (SELECT 1
                 FROM postcommit.lane_host h
                 WHERE h.tenant = p.tenant AND h.lane = p.id AND h.host = $2 AND {IS_CLOSED})
             FROM postcommit.provider p
             WHERE p.id = $1"
        );
        let rows = self.db.query(&sql, vec![lane.into(), host.into(), revision.into()]).await?;
        let Some(row) = rows.first() else { return Ok(CloseOutcome::Outdated) };
        Ok(match (row.get(0)?, row.get(1)?) {
            (false, _) => CloseOutcome::Outdated,
            (true, true) => CloseOutcome::Already,
            (true, false) => CloseOutcome::TooMany,
        })
    }

    /// Opens a host of a lane, whether held or paused, and makes deliveries that wait for it due. Returns false if the
    /// host was not closed; then nothing is changed.
    pub async fn resume_host(&self, lane: i32, host: &str) -> Result<bool, DbError> {
        let turn = turn().await?;
        // The revision is raised so that answers to sends in flight do not close the host again. The provider's row is
        // locked before the counter of changes, in the same order as everywhere else.
        let decide = format!(
            "UPDATE postcommit.provider
             SET revision = revision + 1, updated_at = {{now}}
             WHERE id = $1
               AND EXISTS (SELECT 1
                 FROM postcommit.lane_host h
                 WHERE h.tenant = postcommit.provider.tenant AND h.lane = $1 AND h.host = $2 AND {IS_CLOSED})"
        );
        let open = "UPDATE postcommit.lane_host
            SET held_until = NULL, paused = NULL, updated_at = {now}
            WHERE lane = $1 AND host = $2";
        let parameters = || vec![lane.into(), host.into()];
        let entry = AuditEntry::of_lane(lane, "provider.resume").details(json!({"host": host}));
        let statements = vec![(self.own_name(&decide), parameters()), (open.to_owned(), parameters())];
        let opened = self.change_all(statements, 0, entry).await?;
        drop(turn);
        // Also where the host was not closed: an earlier call may have ended before all deliveries were brought
        // forward.
        self.bring_hosts_forward(lane, Some(host)).await?;
        Ok(opened)
    }

    /// Adapts a statement that names its updated table in a subquery. PostgreSQL knows that table there without its
    /// schema, SQLite by its full name.
    pub(in crate::store) fn own_name(&self, sql: &str) -> String {
        if self.db.kind() == "postgres" { sql.replace("postcommit.provider.", "provider.") } else { sql.to_owned() }
    }

    /// Makes deliveries that wait for a host of this lane due now; without a host, for any host of the lane. A delivery
    /// whose host is still closed is put off again and leaves no attempt.
    pub async fn bring_hosts_forward(&self, lane: i32, host: Option<&str>) -> Result<(), DbError> {
        // A transaction of an application may be cancelling one of them. This statement must neither wait for it nor
        // deadlock with it.
        let unlocked = if self.db.kind() == "postgres" { "FOR UPDATE SKIP LOCKED" } else { "" };
        let sql = format!(
            "UPDATE postcommit.delivery_queue
             SET due_at = {{now}}
             WHERE (tenant, notification_id, n) IN (SELECT q.tenant, q.notification_id, q.n
                 FROM postcommit.delivery_queue q
                 WHERE q.lane = $1 AND q.lease_token IS NULL AND q.due_at > {{now}}
                   AND q.code IN ('{HOST_HELD}', '{HOST_PAUSED}') AND q.detail = coalesce($2, q.detail)
                 LIMIT {FORWARD} {unlocked})
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

    /// Closed hosts of one tenant or of all, of one lane or of all. Paused hosts, which need an operator, come first.
    pub async fn closed_hosts(
        &self,
        tenant: Option<i32>,
        lane: Option<i32>,
        limit: i64,
    ) -> Result<Vec<ClosedHost>, DbError> {
        let sql = format!(
            "SELECT h.lane, h.host, CASE WHEN h.held_until > {{now}} THEN h.held_until END, h.paused, h.updated_at
             FROM postcommit.lane_host h
             WHERE h.tenant = coalesce($1, h.tenant) AND h.lane = coalesce($2, h.lane) AND {IS_CLOSED}
             ORDER BY (h.paused IS NULL), h.lane, h.host
             LIMIT $3"
        );
        let rows = self.db.query(&sql, vec![tenant.into(), lane.into(), limit.into()]).await?;
        Ok(legible("hosts", rows.iter().map(closed_host)))
    }

    /// Changes after the number `after`. 0 reads every closed host.
    pub async fn host_changes(&self, after: i64) -> Result<Vec<HostChange>, DbError> {
        let which = if after == 0 { IS_CLOSED } else { "h.changed > $1" };
        let sql = format!(
            "SELECT h.lane, h.host, h.held_until, h.paused IS NOT NULL, h.changed
             FROM postcommit.lane_host h
             WHERE {which}"
        );
        let parameters = if after == 0 { vec![] } else { vec![after.into()] };
        let rows = self.db.query(&sql, parameters).await?;
        Ok(legible("hosts", rows.iter().map(host_change)))
    }

    /// Counts closed lanes and hosts. `None` is all tenants.
    pub async fn count_closed(&self, tenant: Option<i32>) -> Result<ClosedCount, DbError> {
        let sql = "SELECT (SELECT count(*)
              FROM postcommit.provider p
              WHERE p.tenant = coalesce($1, p.tenant) AND p.paused IS NOT NULL),
            (SELECT count(*)
              FROM postcommit.provider p
              WHERE p.tenant = coalesce($1, p.tenant) AND p.not_before > {now}),
            (SELECT count(*)
              FROM postcommit.lane_host h
              WHERE h.tenant = coalesce($1, h.tenant) AND h.paused IS NOT NULL),
            (SELECT count(*)
              FROM postcommit.lane_host h
              WHERE h.tenant = coalesce($1, h.tenant) AND h.held_until > {now})";
        let rows = self.db.query(sql, vec![tenant.into()]).await?;
        let Some(row) = rows.first() else { return Ok(ClosedCount::default()) };
        Ok(ClosedCount {
            lanes_paused: row.get(0)?,
            lanes_held: row.get(1)?,
            hosts_paused: row.get(2)?,
            hosts_held: row.get(3)?,
        })
    }

    /// Deletes rows of hosts that have been open for a while. Returns how many.
    pub async fn forget_open_hosts_once(&self) -> Result<u64, DbError> {
        let sql = "DELETE FROM postcommit.lane_host
             WHERE paused IS NULL AND (held_until IS NULL OR held_until <= {now}) AND updated_at < $1";
        self.db.execute_one(sql, vec![crate::store::numbers::kpis::before(self.now().await?, KEPT).into()]).await
    }
}

/// Selects the provider of lane $1 at revision $3, if its host $2 may be closed: it is closed already, or fewer than
/// [`MAX_CLOSED_HOSTS`] others are. On SQLite the WHERE clause also keeps `ON CONFLICT` from being parsed as a join.
fn closable_host() -> String {
    format!(
        "FROM postcommit.provider p
         WHERE p.id = $1 AND p.revision = coalesce($3, p.revision)
           AND (SELECT count(*)
             FROM postcommit.lane_host h
             WHERE h.tenant = p.tenant AND h.lane = p.id AND h.host <> $2 AND {IS_CLOSED}) < {MAX_CLOSED_HOSTS}"
    )
}

fn closed_host(row: &Row) -> Result<ClosedHost, DbError> {
    Ok(ClosedHost {
        lane: row.get(0)?,
        host: row.get(1)?,
        held_until: row.get(2)?,
        paused: row.get(3)?,
        since: row.get(4)?,
    })
}

fn host_change(row: &Row) -> Result<HostChange, DbError> {
    Ok(HostChange {
        lane: row.get(0)?,
        host: row.get(1)?,
        held_until: row.get(2)?,
        paused: row.get(3)?,
        changed: row.get(4)?,
    })
}
