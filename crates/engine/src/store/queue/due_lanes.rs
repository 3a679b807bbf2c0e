//! Looking for lanes that have something due, without asking each: from one to the next along the claim's index. So it costs in proportion to the lanes that
//! have rows, not to those that exist, and it is done in pieces: a claim looks at so many places at most, and the next goes on from there.

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

/// Where a claim looks for lanes with due work beside those it asks for.
#[derive(Debug, Clone, Default)]
pub struct Search {
    /// Lanes after the first and before the second number; none: no search. What is not expanded yet is below 0, providers are above.
    pub between: Vec<(i32, i32)>,
    /// Lanes that are left out, sorted: those the claim asks for, and those of which is known that they wait.
    pub around: Vec<i32>,
    /// Places of the index that are looked at, at most, in each of these; more than there are priorities.
    pub visits: i32,
    /// How much of what is not expanded may be claimed at once of what is found, in all.
    pub quota: i32,
    /// And of one tenant.
    pub each: i32,
}

/// What a search came across.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Searched {
    /// Providers' lanes with something due and free that are neither paused nor held. Nothing of them is claimed yet.
    pub lanes: Vec<i32>,
    /// How far it came, by the end that it was given: when it reached that, there is nothing more.
    pub reached: Vec<(i32, i32)>,
}

/// From a lane and priority to the next that has a row, over the lanes that are left out. `$7` and `$8` are where to begin and to end, `$9` what to leave
/// out, `$10` how many places to look at. A row whose time is not known was only jumped to.
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
/// What is found of what is not expanded is claimed at once: each tenant gets the same, at least one more than would do if all had as much.
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
/// Of providers' lanes it is told that they have something: how much they can start, their dispatcher knows. Those whose rate is limited are told, too.
const SEEN: &str = "seen AS (
      SELECT max(s.lane) AS lane, s.until FROM scan s GROUP BY s.until
      UNION ALL
      SELECT DISTINCT due.lane, NULL::int FROM due CROSS JOIN LATERAL (SELECT 1 FROM postcommit.delivery_queue q WHERE {free} LIMIT 1) free
      WHERE due.lane > 0 AND NOT EXISTS (
        SELECT FROM postcommit.provider p WHERE p.id = due.lane AND {closed})
    )";
/// Stands before the names of a notification's columns, where a claim reads it along.
pub(in crate::store) const NOTE: &str = "note_";

/// A claim that searches as well.
pub(in crate::store) static CLAIM_SEARCHING_POSTGRES: LazyLock<String> =
    LazyLock::new(|| format!("{} SELECT * FROM told", searching("")));
/// A claim that reads what it claims along, as far as it is not expanded yet, and whose commit does not wait for the disk (docs/decisions/0015). On a quiet
/// day that saves an exchange and a wait on the way of each notification. In a backlog there is nothing to save: meanwhile others are sent and settled.
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

/// Takes what was come across out of the rows of a claim.
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

/// A row whose place was edited into something that is no number stands in nobody's way: it is passed over, and `doctor` tells of it.
const NEXT_SQLITE: &str = "SELECT lane, priority, due_at FROM postcommit_delivery_queue WHERE (lane, priority) > (?1, ?2) AND lane < ?3
    AND typeof(lane) = 'integer' AND typeof(priority) = 'integer' AND +priority BETWEEN 0 AND 9 AND typeof(due_at) = 'integer' ORDER BY lane, priority, due_at LIMIT 1";
static CLOSED_SQLITE: LazyLock<String> =
    LazyLock::new(|| format!("SELECT 1 FROM postcommit_provider p WHERE p.id = ?1 AND {}", closed_sqlite("p", "?2")));

/// The same on SQLite, apart from the claim: lanes of tenants that have something to expand, and what is told of the rest.
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

/// Claims what is found of what is not expanded, as [`FRESH`] does.
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
