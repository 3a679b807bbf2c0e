//! The hosts of lanes that send to many receivers. A host that asked Postcommit to wait is held, and a host that
//! refuses the provider's account is paused. The lane's other hosts are not affected (docs/decisions/0028).

use std::time::Duration;

use postcommit::Timestamp;
use serde::Serialize;
use serde_json::json;

use crate::db::{DbError, Row, Value};
use crate::store::audit::{RECOVER, TRIP};
use crate::store::providers::turn;
use crate::store::secret_key::unopened_lanes;
use crate::store::unreadable::legible;
use crate::store::{AuditEntry, Store};

/// How many hosts of one lane can be closed, which means held or paused. Beyond this limit, a host's response affects
/// only the delivery that received it.
pub const MAX_CLOSED_HOSTS: i64 = 1000;

/// The code of a delivery that waits for a held host. The detail of the delivery is [`waits_for`], by which the
/// delivery is found when the host is opened.
pub const HOST_HELD: &str = "host_held";
/// The code of a delivery that waits for a paused host. The detail of the delivery is [`waits_for`].
pub const HOST_PAUSED: &str = "host_paused";

/// How many deliveries one statement makes due at most. On SQLite the application's writes wait while the statement
/// runs.
const FORWARD: i64 = 2000;
/// How many statements of [`FORWARD`] deliveries one resume of a host runs at most. The remaining deliveries become due
/// by themselves within an hour.
const FORWARDS: usize = 500;
/// How long the row of an opened host is kept, so that every process reads that the host is open. Every process reads
/// all rows at shorter intervals.
const KEPT: Duration = Duration::from_secs(3600);

/// The condition that the host of row `h` is closed.
const IS_CLOSED: &str = "(h.paused IS NOT NULL OR h.held_until > {now})";

/// Returns the detail of a delivery that waits for its host.
pub fn waits_for(host: &str) -> String {
    format!("waits for {host}")
}

/// A host that is held or paused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClosedHost {
    /// The number of the lane.
    #[serde(skip)]
    pub lane: i32,
    /// The name and port of the host, such as `example.com:443`.
    pub host: String,
    /// The time until which the host is held, because it asked to wait or its breaker tripped.
    pub held_until: Option<Timestamp>,
    /// The reason why the breaker of the host tripped. `null` if the host asked to wait.
    pub hold_reason: Option<String>,
    /// The reason why the host is paused. `null` if it is not paused.
    pub paused: Option<String>,
    /// When the host was last held or paused.
    pub since: Timestamp,
}

/// A change of a host that a process has not read yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostChange {
    pub lane: i32,
    /// The host's name and port.
    pub host: String,
    /// The time until which the host is held. `None` or a past time means that it is not held.
    pub held_until: Option<Timestamp>,
    pub paused: bool,
    /// How often the breaker of the host tripped since the last successful send.
    pub trips: i32,
    /// The number of the change. Later changes have higher numbers.
    pub changed: i64,
}

/// The result of a request to hold or pause a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseOutcome {
    /// This call closed the host.
    Now,
    /// The host was already closed: paused, or held for at least as long.
    Already,
    /// The provider was changed, resumed or deleted in the meantime. A response to old settings says nothing about the
    /// new ones.
    Outdated,
    /// [`MAX_CLOSED_HOSTS`] other hosts of this lane are already closed.
    TooMany,
}

/// How many lanes and hosts are closed: paused, or held because they asked to wait.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClosedCount {
    /// The number of paused lanes.
    pub lanes_paused: i64,
    /// The number of lanes that are held, because the provider asked to wait or its breaker tripped.
    pub lanes_held: i64,
    /// The number of paused hosts.
    pub hosts_paused: i64,
    /// The number of hosts that are held, because they asked to wait or their breaker tripped.
    pub hosts_held: i64,
    /// The number of lanes that no worker can serve, because none can decrypt the secrets of their provider or set up its
    /// driver.
    pub lanes_unopened: i64,
    /// The number of lanes whose breaker tripped and that had no successful send since. Some are held, the others are
    /// probed with one send at a time.
    pub lanes_tripped: i64,
    /// The number of hosts whose breaker tripped and that had no successful send since.
    pub hosts_tripped: i64,
}

impl Store {
    /// Holds a host of a lane for `wait` from now, by the database's clock. A longer hold is kept. `revision` works as
    /// in [`Store::pause_lane`].
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
             ON CONFLICT (tenant, lane, host) DO UPDATE SET held_until = excluded.held_until, hold_reason = NULL,
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

    /// Holds a host of a lane because its breaker tripped, like [`Store::trip_lane`].
    pub async fn trip_host(
        &self,
        (lane, host): (i32, &str),
        revision: Option<i32>,
        (trips, wait, why): (i32, Duration, &str),
    ) -> Result<CloseOutcome, DbError> {
        let until = self.db.seconds_from_now(4);
        let sql = format!(
            "INSERT INTO postcommit.lane_host AS h (tenant, lane, host, held_until, trips, hold_reason, updated_at)
             SELECT p.tenant, p.id, $2, {until}, $5 + 1, $6, {{now}} {}
             ON CONFLICT (tenant, lane, host) DO UPDATE SET trips = excluded.trips, hold_reason = excluded.hold_reason,
               held_until = CASE WHEN h.held_until > excluded.held_until THEN h.held_until ELSE excluded.held_until END,
               updated_at = excluded.updated_at
             WHERE h.trips = $5",
            closable_host()
        );
        let wait = Value::Real(wait.as_secs_f64());
        let parameters = vec![lane.into(), host.into(), revision.into(), wait, trips.into(), why.into()];
        let entry = AuditEntry::of_lane(lane, TRIP).details(json!({"host": host, "reason": why}));
        let is_tripped = match trips {
            0 => self.change(&sql, parameters, entry).await?,
            _ => self.db.execute_one(&sql, parameters).await? > 0,
        };
        if is_tripped { Ok(CloseOutcome::Now) } else { self.why_not(lane, host, revision).await }
    }

    /// Records that a send to a tripped host succeeded, like [`Store::recover_lane`].
    pub async fn recover_host(&self, lane: i32, host: &str, trips: i32) -> Result<bool, DbError> {
        let sql = "UPDATE postcommit.lane_host SET trips = 0, hold_reason = NULL, updated_at = {now}
            WHERE lane = $1 AND host = $2 AND trips = $3";
        let entry = AuditEntry::of_lane(lane, RECOVER).details(json!({"host": host, "trips": trips}));
        self.change(sql, vec![lane.into(), host.into(), trips.into()], entry).await
    }

    /// Pauses a host of a lane. A host that is already paused keeps its reason. `revision` works as in
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

    /// Returns why a host could not be closed.
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

    /// Opens a host of a lane, whether it is held or paused, and makes the deliveries due that wait for it. Returns
    /// false if the host was not closed.
    pub async fn resume_host(&self, lane: i32, host: &str) -> Result<bool, DbError> {
        let turn = turn().await?;
        let held_until = self.held_until(lane, Some(host)).await?;
        // The revision is raised so that responses to sends that are still running do not close the host again. The
        // provider's row is locked before the counter of changes, as everywhere else, so that transactions do not
        // deadlock.
        let decide = format!(
            "UPDATE postcommit.provider
             SET revision = revision + 1, updated_at = {{now}}
             WHERE id = $1
               AND EXISTS (SELECT 1
                 FROM postcommit.lane_host h
                 WHERE h.tenant = postcommit.provider.tenant AND h.lane = $1 AND h.host = $2
                   AND ({IS_CLOSED} OR h.trips > 0))"
        );
        let open = "UPDATE postcommit.lane_host
            SET held_until = NULL, paused = NULL, trips = 0, hold_reason = NULL, updated_at = {now}
            WHERE lane = $1 AND host = $2";
        let parameters = || vec![lane.into(), host.into()];
        let entry = AuditEntry::of_lane(lane, "provider.resume").details(json!({"host": host}));
        let statements = vec![(self.own_name(&decide), parameters()), (open.to_owned(), parameters())];
        let opened = self.change_all(statements, 0, entry).await?;
        drop(turn);
        // Deliveries become due even if the host was not closed, because an earlier call may have ended before it
        // reached all of them.
        self.bring_hosts_forward(lane, Some(host)).await?;
        if let Some(until) = held_until {
            self.bring_held_forward(lane, Some(host), until).await?;
        }
        Ok(opened)
    }

    /// Adapts a statement that names its updated table in a subquery. For PostgreSQL the schema is removed from the
    /// name, and SQLite needs the full name.
    pub(in crate::store) fn own_name(&self, sql: &str) -> String {
        if self.db.kind() == "postgres" { sql.replace("postcommit.provider.", "provider.") } else { sql.to_owned() }
    }

    /// Makes deliveries due that wait for a host of this lane, or for any host of the lane if `host` is `None`. If a
    /// delivery's host is still closed, the delivery is postponed again without an attempt.
    pub async fn bring_hosts_forward(&self, lane: i32, host: Option<&str>) -> Result<(), DbError> {
        // An application's transaction may be cancelling one of the deliveries. This statement must neither wait for
        // that transaction nor deadlock with it.
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

    /// Reads the closed hosts of one tenant or of all, and of one lane or of all. Paused hosts come first, because they
    /// need an operator.
    pub async fn closed_hosts(
        &self,
        tenant: Option<i32>,
        lane: Option<i32>,
        limit: i64,
    ) -> Result<Vec<ClosedHost>, DbError> {
        let sql = format!(
            "SELECT h.lane, h.host, CASE WHEN h.held_until > {{now}} THEN h.held_until END, h.paused, h.updated_at,
               CASE WHEN h.held_until > {{now}} THEN h.hold_reason END
             FROM postcommit.lane_host h
             WHERE h.tenant = coalesce($1, h.tenant) AND h.lane = coalesce($2, h.lane) AND {IS_CLOSED}
             ORDER BY (h.paused IS NULL), h.lane, h.host
             LIMIT $3"
        );
        let rows = self.db.query(&sql, vec![tenant.into(), lane.into(), limit.into()]).await?;
        Ok(legible("hosts", rows.iter().map(closed_host)))
    }

    /// Reads the changes of hosts after the number `after`. 0 reads every closed or tripped host.
    pub async fn host_changes(&self, after: i64) -> Result<Vec<HostChange>, DbError> {
        let which = if after == 0 { format!("({IS_CLOSED} OR h.trips > 0)") } else { "h.changed > $1".to_owned() };
        let sql = format!(
            "SELECT h.lane, h.host, h.held_until, h.paused IS NOT NULL, h.changed, h.trips
             FROM postcommit.lane_host h
             WHERE {which}"
        );
        let parameters = if after == 0 { vec![] } else { vec![after.into()] };
        let rows = self.db.query(&sql, parameters).await?;
        Ok(legible("hosts", rows.iter().map(host_change)))
    }

    /// Counts closed lanes and hosts. `None` means all tenants.
    pub async fn count_closed(&self, tenant: Option<i32>) -> Result<ClosedCount, DbError> {
        let unopened = unopened_lanes();
        let sql = format!(
            "SELECT (SELECT count(*)
              FROM postcommit.provider p
              WHERE p.tenant = coalesce($1, p.tenant) AND p.paused IS NOT NULL),
            (SELECT count(*)
              FROM postcommit.provider p
              WHERE p.tenant = coalesce($1, p.tenant) AND p.held_until > {{now}}),
            (SELECT count(*)
              FROM postcommit.lane_host h
              WHERE h.tenant = coalesce($1, h.tenant) AND h.paused IS NOT NULL),
            (SELECT count(*)
              FROM postcommit.lane_host h
              WHERE h.tenant = coalesce($1, h.tenant) AND h.held_until > {{now}}),
            (SELECT count(*) FROM ({unopened}) closed),
            (SELECT count(*)
              FROM postcommit.provider p
              WHERE p.tenant = coalesce($1, p.tenant) AND p.trips > 0 AND p.breaker_failures > 0),
            (SELECT count(*)
              FROM postcommit.lane_host h
              WHERE h.tenant = coalesce($1, h.tenant) AND h.trips > 0)"
        );
        let rows = self.db.query(&sql, self.who_opens(tenant).await?).await?;
        let Some(row) = rows.first() else { return Ok(ClosedCount::default()) };
        Ok(ClosedCount {
            lanes_paused: row.get(0)?,
            lanes_held: row.get(1)?,
            hosts_paused: row.get(2)?,
            hosts_held: row.get(3)?,
            lanes_unopened: row.get(4)?,
            lanes_tripped: row.get(5)?,
            hosts_tripped: row.get(6)?,
        })
    }

    /// Deletes the rows of hosts that have been open for more than an hour, and returns how many.
    pub async fn forget_open_hosts_once(&self) -> Result<u64, DbError> {
        let sql = "DELETE FROM postcommit.lane_host
             WHERE paused IS NULL AND (held_until IS NULL OR held_until <= {now}) AND updated_at < $1";
        self.db.execute_one(sql, vec![crate::store::numbers::kpis::before(self.now().await?, KEPT).into()]).await
    }
}

/// The FROM and WHERE clauses that select the provider of lane `$1` at revision `$3`, if fewer than
/// [`MAX_CLOSED_HOSTS`] hosts other than `$2` are closed. On SQLite the WHERE clause also keeps `ON CONFLICT` from
/// being parsed as a join.
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
        hold_reason: row.get(5)?,
    })
}

fn host_change(row: &Row) -> Result<HostChange, DbError> {
    Ok(HostChange {
        lane: row.get(0)?,
        host: row.get(1)?,
        held_until: row.get(2)?,
        paused: row.get(3)?,
        changed: row.get(4)?,
        trips: row.get(5)?,
    })
}
