//! The reason why an unfinished delivery waits, in words for a person.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use postcommit::Timestamp;
use uuid::Uuid;

use crate::db::DbError;
use crate::store::Store;
use crate::store::deliveries::DeliveryRow;
use crate::store::duties::{PASS, PRESENT, WORKER};
use crate::store::hosts::{HOST_HELD, HOST_PAUSED, waits_for};
use crate::store::numbers::kpis::before;
use crate::store::secret_key::{Lacking, UnopenedLane, unopened_lanes};

/// If a pass began within this time, deliveries are taken to be sent. Cron usually starts a pass every minute.
const PASS_DELIVERS: Duration = Duration::from_secs(120);

const NO_PROCESS: &str = "a process that delivers: start `postcommit serve` or `postcommit serve --role worker`";

/// The reasons why a lane is closed.
#[derive(Debug, Default)]
struct ClosedLane {
    paused: Option<String>,
    held_until: Option<Timestamp>,
    /// Why the lane's breaker tripped. `None` if the provider asked to wait.
    hold_reason: Option<String>,
    unopened: Option<UnopenedLane>,
}

/// The reasons why deliveries wait, as read from the database at `now`.
#[derive(Debug)]
pub(in crate::store) struct Obstacles {
    now: Timestamp,
    /// Whether a process delivers now.
    is_attended: bool,
    /// The names of suspended tenants. The reason of the suspension is left out: it is for operators, and a tenant may
    /// read this text.
    suspended: HashSet<String>,
    /// Closed lanes by tenant and provider.
    closed: HashMap<(String, String), ClosedLane>,
}

impl Obstacles {
    /// Returns the strongest reason why a live delivery waits. `None` if the delivery is finished.
    fn of(&self, row: &DeliveryRow) -> Option<String> {
        let next = row.next_attempt_at?;
        if row.state == "sending" {
            return Some("the end of its attempt".into());
        }
        if self.suspended.contains(&row.tenant) {
            return Some("its tenant, which is suspended".into());
        }
        let lane = row.provider.as_ref().and_then(|name| self.closed.get(&(row.tenant.clone(), name.clone())));
        if let Some(why) = lane.and_then(|lane| self.closed_lane(lane)) {
            return Some(why);
        }
        if next > self.now {
            return Some(until(row, next));
        }
        Some(if self.is_attended { "its turn in the queue" } else { NO_PROCESS }.into())
    }

    fn closed_lane(&self, lane: &ClosedLane) -> Option<String> {
        let ClosedLane { paused, held_until, hold_reason, unopened } = lane;
        let paused = paused.as_ref().map(|why| format!("its provider, which is paused: {why}"));
        let unserved = || {
            let UnopenedLane { lacking, reason, .. } = unopened.as_ref()?;
            Some(match lacking {
                Lacking::Secrets => format!("its provider, whose secrets cannot be decrypted: {reason}"),
                Lacking::Driver => format!("its provider, whose driver no running process can set up: {reason}"),
            })
        };
        let held = || held_until.filter(|until| *until > self.now);
        let hold = || {
            let until = full_second(held()?);
            Some(match hold_reason {
                Some(why) => format!("its provider, which is held until {until}: {why}"),
                None => format!("its provider, which asked to wait until {until}"),
            })
        };
        paused.or_else(unserved).or_else(hold)
    }
}

/// Returns the text for a delivery that is not due yet: what it waits for, and until when.
fn until(row: &DeliveryRow, next: Timestamp) -> String {
    let next = full_second(next);
    let host = row.last_error.as_deref().and_then(|text| text.strip_prefix(&waits_for("")));
    match (row.error_code.as_deref(), host, &row.quiet_until) {
        (Some(HOST_HELD), Some(host), _) => format!("the host {host}, which is held until {next}"),
        (Some(HOST_PAUSED), Some(host), _) => format!("the host {host}, which is paused"),
        (_, _, Some(quiet)) => quiet.clone(),
        _ if row.state == "pending" => format!("its due time, {next}"),
        _ => format!("its next attempt, at {next}"),
    }
}

/// Rounds up to a full second, because fractions of a second make a time hard to read.
fn full_second(at: Timestamp) -> Timestamp {
    const SECOND: i64 = 1_000_000;
    let seconds = at.as_micros().div_euclid(SECOND) + i64::from(at.as_micros().rem_euclid(SECOND) > 0);
    Timestamp::from_micros(seconds.saturating_mul(SECOND))
}

impl Store {
    /// Sets the reason why each live row among `rows` waits. With a tenant, only data of that tenant is read.
    pub(in crate::store) async fn say_waits(
        &self,
        tenant: Option<i32>,
        rows: &mut [DeliveryRow],
    ) -> Result<(), DbError> {
        if rows.iter().all(|row| row.next_attempt_at.is_none()) {
            return Ok(());
        }
        let obstacles = self.obstacles(tenant).await?;
        rows.iter_mut().for_each(|row| row.waits_for = obstacles.of(row));
        self.say_leases(rows).await
    }

    /// Adds the ends of the leases, if all rows that are being sent belong to one notification.
    async fn say_leases(&self, rows: &mut [DeliveryRow]) -> Result<(), DbError> {
        let is_sent = |row: &&mut DeliveryRow| row.state == "sending";
        let Some(one) = rows.iter_mut().find(is_sent).map(|row| row.notification_id) else { return Ok(()) };
        if rows.iter_mut().filter(is_sent).any(|row| row.notification_id != one) {
            return Ok(());
        }
        let ends = self.lease_ends(one).await?;
        for row in rows.iter_mut().filter(is_sent) {
            let end = ends.get(&row.n).map(|end| format!("; its lease ends at {end}")).unwrap_or_default();
            row.waits_for = Some(format!("the end of its attempt{end}"));
        }
        Ok(())
    }

    async fn lease_ends(&self, notification: Uuid) -> Result<HashMap<i32, Timestamp>, DbError> {
        let sql = "SELECT q.n, q.lease_until FROM postcommit.delivery_queue q
            WHERE q.tenant IN (SELECT id FROM postcommit.tenant) AND q.notification_id = $1
              AND q.lease_until IS NOT NULL";
        let rows = self.db.query(sql, vec![notification.into()]).await?;
        // A delivery with an unreadable time is left out, so that the list is shown without that time.
        Ok(rows.iter().filter_map(|row| Some((row.get(0).ok()?, row.get(1).ok()?))).collect())
    }

    async fn obstacles(&self, tenant: Option<i32>) -> Result<Obstacles, DbError> {
        let now = self.now().await?;
        let sql = format!(
            "SELECT t.name, t.suspended_at, p.name, p.paused, p.held_until, s.told, p.hold_reason
             FROM postcommit.tenant t
             LEFT JOIN postcommit.provider p ON p.tenant = t.id
             LEFT JOIN ({}) s ON s.lane = p.id
             WHERE t.id = coalesce($1, t.id)
               AND (t.suspended_at IS NOT NULL OR p.paused IS NOT NULL OR p.held_until > {{now}} OR s.lane IS NOT NULL)",
            unopened_lanes()
        );
        let mut found = Obstacles {
            now,
            is_attended: self.is_attended(now).await?,
            suspended: HashSet::new(),
            closed: HashMap::new(),
        };
        for row in self.db.query(&sql, self.who_opens(tenant).await?).await? {
            // Unreadable values must not hide the list of deliveries. Any value but NULL in `suspended_at` counts as
            // suspended.
            let Ok(tenant) = row.get::<String>(0) else { continue };
            if !matches!(row.get::<Option<Timestamp>>(1), Ok(None)) {
                found.suspended.insert(tenant.clone());
            }
            let [paused, told, hold_reason]: [Option<String>; 3] =
                [3, 5, 6].map(|place| row.get(place).unwrap_or_default());
            let unopened = told.as_deref().map(UnopenedLane::read);
            let lane = ClosedLane { paused, held_until: row.get(4).unwrap_or_default(), hold_reason, unopened };
            if let Ok(Some(provider)) = row.get::<Option<String>>(2) {
                found.closed.insert((tenant, provider), lane);
            }
        }
        Ok(found)
    }

    /// Returns whether a worker has a current heartbeat, or a pass began a short time ago.
    async fn is_attended(&self, now: Timestamp) -> Result<bool, DbError> {
        let sql = format!(
            "SELECT count(*) FROM postcommit.duty
             WHERE (name LIKE '{WORKER}%' AND ran_at > $1) OR (name = '{PASS}' AND ran_at > $2)"
        );
        let rows = self.db.query(&sql, vec![before(now, PRESENT).into(), before(now, PASS_DELIVERS).into()]).await?;
        Ok(rows.first().map_or(Ok(0), |row| row.get::<i64>(0))? > 0)
    }
}
