//! Finds lanes with due rows without a query for each lane. The search steps from one lane to the next along the
//! claim's index, so its cost grows with the number of lanes that have rows and not with the number of all lanes. One
//! claim examines a limited number of index positions, and the next claim continues from there.

use std::sync::LazyLock;

use postcommit::Timestamp;
use postcommit_channel::model::StoredNotification;
use rusqlite::Connection;

use crate::db::columns::{names_as, place};
use crate::db::sqlite::Prepared;
use crate::db::{Cells, DbError};
use crate::store::Want;
use crate::store::notifications::reading_postgres;
use crate::store::queue::claim::{IS_DUE, IS_DUE_SQLITE, PICK, Term, claim_lane_sqlite, lease, want};
use crate::store::queue::closed::{closed_postgres, closed_sqlite};
use crate::store::queue::row::{Leased, width};

/// The ranges in which a claim searches for lanes with due rows, in addition to the lanes that it claims from.
#[derive(Debug, Clone, Default)]
pub struct Search {
    /// The ranges of lanes to search, both ends excluded. If empty, there is no search. Lanes below 0 hold
    /// notifications that are not expanded yet, and lanes above 0 belong to providers.
    pub between: Vec<(i32, i32)>,
    /// Lanes that the search skips, sorted: the lanes the claim asks for, and lanes that are known to wait.
    pub around: Vec<i32>,
    /// How many index positions to examine in each range. It must exceed the number of priorities.
    pub visits: i32,
    /// How many unexpanded notifications the search may claim in total.
    pub quota: i32,
    /// How many unexpanded notifications the search may claim per tenant.
    pub each: i32,
}

/// The result of a search for lanes with due rows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Searched {
    /// Providers' lanes that are open and have due rows. The search claims nothing from them.
    pub lanes: Vec<i32>,
    /// For each range, its end and the lane where the search stopped. If both are equal, the range was searched
    /// completely.
    pub reached: Vec<(i32, i32)>,
}

/// Steps from one lane and priority to the next that has a row, and skips the lanes in `$9`. `$7` and `$8` are the
/// beginnings and ends of the ranges, and `$10` is how many positions to examine. A result without a due time is not a
/// queue row: it is the beginning of a range, a skipped lane or the end.
const SCAN: &str = "scan (until, lane, priority, due_at, visit) AS (
      SELECT side.until, side.after, 32767::smallint, NULL::timestamptz, 0 FROM unnest($7::int[], $8::int[]) AS side (after, until){commit}
      UNION ALL
      SELECT s.until, coalesce(next.lane, before.lane), coalesce(next.priority, 32767::smallint), next.due_at, s.visit + 1
      FROM scan s CROSS JOIN LATERAL (SELECT least(($9::int[])[width_bucket(s.lane, $9::int[]) + 1], s.until) AS lane) before
      LEFT JOIN LATERAL (
        SELECT q.lane, q.priority, q.due_at FROM postcommit.delivery_queue q
        WHERE (q.lane, q.priority) > (s.lane, s.priority) AND q.lane < before.lane ORDER BY q.lane, q.priority, q.due_at LIMIT 1
      ) next ON true
      WHERE s.visit < $10::int AND s.lane < s.until
    ), due AS MATERIALIZED (SELECT s.lane, s.priority FROM scan s WHERE s.due_at <= least(now(), $5::timestamptz))";
/// Computes how many unexpanded notifications to claim for each tenant that has due notifications: an equal part of the
/// total quota, plus one, up to the limit per tenant.
const FRESH: &str = "fresh AS MATERIALIZED (
      SELECT due.lane, array_agg(due.priority ORDER BY due.priority DESC) AS priorities, least($11::int / count(*) OVER () + 1, $12::int) AS quota
      FROM due WHERE due.lane < 0 GROUP BY due.lane ORDER BY due.lane
    )";
const FREE: &str = "q.lane = {of}.lane AND q.priority = {p}.priority AND q.due_at <= least(now(), $5) AND (q.lease_until IS NULL OR q.lease_until < now())";
const PICK_FRESH: &str = "SELECT c.ctid, fresh.lane FROM fresh CROSS JOIN LATERAL (
        SELECT r.ctid FROM unnest(fresh.priorities) AS p (priority) CROSS JOIN LATERAL (
          SELECT q.ctid FROM postcommit.delivery_queue q WHERE {free} ORDER BY q.due_at LIMIT fresh.quota FOR UPDATE SKIP LOCKED
        ) r LIMIT fresh.quota
      ) c LIMIT $11";
/// Reports where the search stopped and which providers' lanes have due rows, including rate-limited ones. Nothing is
/// claimed from these lanes, because only the dispatcher of a lane knows how many deliveries the lane can start.
const SEEN: &str = "seen AS (
      SELECT max(s.lane) AS lane, s.until FROM scan s GROUP BY s.until
      UNION ALL
      SELECT DISTINCT due.lane, NULL::int FROM due CROSS JOIN LATERAL (SELECT 1 FROM postcommit.delivery_queue q WHERE {free} LIMIT 1) free
      WHERE due.lane > 0 AND NOT EXISTS (
        SELECT FROM postcommit.provider p WHERE p.id = due.lane AND {closed})
    )";
/// The prefix of the notification's columns in a claim that also reads the notification.
pub(in crate::store) const NOTE: &str = "note_";

/// The claim with a search for other lanes.
pub(in crate::store) static CLAIM_SEARCHING_POSTGRES: LazyLock<String> =
    LazyLock::new(|| format!("{} SELECT * FROM told", searching("")));
/// The claim with a search that also reads the unexpanded notifications, and whose commit does not wait for the disk
/// (docs/decisions/0015). With little traffic this claim saves one round trip and one wait for the disk per
/// notification. In a backlog it would save nothing, because other deliveries are sent and settled during the wait.
pub(in crate::store) static CLAIM_READING_POSTGRES: LazyLock<String> = LazyLock::new(|| {
    let read = reading_postgres("told.n = 0 AND note.tenant = told.tenant AND note.id = told.notification_id");
    let told = searching(", set_config('synchronous_commit', 'off', true)");
    let note = names_as::<StoredNotification>("note.", NOTE);
    format!("{told} SELECT told.*, {note} FROM told LEFT JOIN LATERAL ({read} OFFSET 0) note ON true")
});

fn searching(commit: &str) -> String {
    let (want, scan) = (want(commit), SCAN.replace("{commit}", commit));
    let (pick, fresh) = (PICK.replace("{is_due}", IS_DUE), PICK_FRESH.replace("{free}", &free("fresh", "p")));
    let seen = SEEN.replace("{free}", &free("due", "due")).replace("{closed}", &closed_postgres("p"));
    let (lease, nothing) = (lease(), vec!["NULL"; width()].join(", "));
    format!(
        "WITH RECURSIVE {want}, {scan}, {FRESH}, picked AS MATERIALIZED ({pick} UNION ALL ({fresh})), claimed AS ({lease}), {seen},
        told AS (SELECT claimed.*, NULL::int AS seen, NULL::int AS until FROM claimed UNION ALL SELECT {nothing}, seen.lane, seen.until FROM seen)"
    )
}

fn free(of: &str, p: &str) -> String {
    FREE.replace("{of}", of).replace("{p}", p)
}

/// Separates the claimed rows from the rows that report the result of the search.
pub(in crate::store) fn split(rows: Vec<tokio_postgres::Row>) -> Result<(Vec<tokio_postgres::Row>, Searched), DbError> {
    let mut searched = Searched::default();
    let mut leased = Vec::with_capacity(rows.len());
    let (seen, end) = (place(&rows, "seen")?, place(&rows, "until")?);
    for mut row in rows {
        match (row.take::<Option<i32>>(seen)?, row.take::<Option<i32>>(end)?) {
            (None, _) => leased.push(row),
            (Some(lane), None) => searched.lanes.push(lane),
            (Some(lane), Some(until)) => searched.reached.push((until, lane)),
        }
    }
    Ok((leased, searched))
}

/// Finds the next lane and priority that has a row. A row with a lane, priority or due time of the wrong type is
/// skipped, so that it blocks no other row. `doctor` reports such rows.
const NEXT_SQLITE: &str = "SELECT lane, priority, due_at FROM postcommit_delivery_queue WHERE (lane, priority) > (?1, ?2) AND lane < ?3
    AND typeof(lane) = 'integer' AND typeof(priority) = 'integer' AND +priority BETWEEN 0 AND 9 AND typeof(due_at) = 'integer' ORDER BY lane, priority, due_at LIMIT 1";
static CLOSED_SQLITE: LazyLock<String> =
    LazyLock::new(|| format!("SELECT 1 FROM postcommit_provider p WHERE p.id = ?1 AND {}", closed_sqlite("p", "?2")));

/// Searches for lanes with due rows on SQLite, without claiming. Returns the tenants' lanes with notifications to
/// expand, and the other lanes with due rows.
pub(in crate::store) fn search_sqlite(
    connection: &Connection,
    search: &Search,
    now: Timestamp,
    latest: Timestamp,
) -> Result<(Vec<i32>, Searched), DbError> {
    let (mut next, mut is_due) = (Prepared::on(connection, NEXT_SQLITE)?, Prepared::on(connection, IS_DUE_SQLITE)?);
    let mut closed = Prepared::on(connection, &CLOSED_SQLITE)?;
    let (mut fresh, mut searched) = (vec![], Searched::default());
    for (after, until) in &search.between {
        let (mut lane, mut priority) = (*after, i32::from(i16::MAX));
        for _ in 0..search.visits {
            if lane >= *until {
                break;
            }
            let before = search
                .around
                .get(search.around.partition_point(|known| *known <= lane))
                .map_or(*until, |known| *known.min(until));
            let found =
                next.first((lane, priority, before), |row| Ok((row.take(0)?, row.take(1)?, row.take::<i64>(2)?)))?;
            let Some((found_lane, found_priority, due_at)) = found else {
                (lane, priority) = (before, i32::from(i16::MAX));
                continue;
            };
            (lane, priority) = (found_lane, found_priority);
            let known = fresh.last() == Some(&lane) || searched.lanes.last() == Some(&lane);
            let times = (lane, priority, latest.as_micros(), now.as_micros());
            if known || due_at > latest.as_micros() || is_due.first(times, |_| Ok(()))?.is_none() {
                continue;
            }
            if lane < 0 {
                fresh.push(lane);
            } else if closed.first((lane, now.as_micros()), |_| Ok(()))?.is_none() {
                searched.lanes.push(lane);
            }
        }
        searched.reached.push((*until, lane));
    }
    Ok((fresh, searched))
}

/// Claims the unexpanded notifications that the search found, with the same shares as [`FRESH`].
pub(in crate::store) fn claim_fresh_sqlite(
    connection: &Connection,
    fresh: &[i32],
    search: &Search,
    term: &Term,
) -> Result<Vec<Leased>, DbError> {
    let quota = search.quota;
    let each = (quota / i32::try_from(fresh.len().max(1)).unwrap_or(quota) + 1).min(search.each);
    let mut rows = Vec::new();
    for lane in fresh {
        let left = quota - i32::try_from(rows.len()).unwrap_or(quota);
        if left <= 0 {
            break;
        }
        rows.extend(claim_lane_sqlite(connection, Want { lane: *lane, quota: each.min(left) }, term)?);
    }
    Ok(rows)
}
