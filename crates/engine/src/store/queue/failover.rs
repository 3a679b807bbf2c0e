//! Moves deliveries that wait in a closed lane into the lane of the next provider (docs/decisions/0040). The move of a
//! delivery after its own attempt is part of settling that attempt.

use postcommit::Timestamp;
use postcommit_channel::model::{MAX_MOVES, Provider};

use crate::crash_point;
use crate::db::{Db, DbError, Value, sqlite};
use crate::store::Store;

/// The code of a delivery that was moved while it waited. The detail names the former provider.
pub const FAILED_OVER: &str = "failed_over";

/// Selects the rows `q` that may move from lane `$1` to lane `$2`. The statement reads both providers itself, because
/// the caller's knowledge may be outdated. A leased row stays, even if the lease ran out: the worker that lost the
/// lease may have sent the message. A delivery that may have arrived stays. Under `at_most_once` every attempted
/// delivery stays. Otherwise an attempted delivery moves only if the class of its error proves that nothing was sent
/// (`model::may_move`). `until` is `$3` seconds from now. Now is the parameter `$4` and priorities are listed one by
/// one: with a volatile clock or a range of priorities, the scheduled rows of the lane would be read as well. If the
/// next provider's breaker has tripped, only one row moves, as a probe.
fn movable(until: &str) -> String {
    format!(
        "FROM postcommit.delivery_queue q
         JOIN postcommit.provider f ON f.id = q.lane
         JOIN postcommit.provider t ON t.id = $2
         WHERE q.lane = $1 AND q.priority IN (0, 1, 2, 3, 4, 5, 6, 7, 8, 9) AND q.due_at <= $4
           AND q.lease_token IS NULL AND q.lost_since IS NULL
           AND q.intent IS NULL AND NOT q.unclear AND q.provider IS NULL AND q.moves < {MAX_MOVES}
           AND (q.first_try_at IS NULL OR (f.guarantee <> 'at_most_once' AND (q.attempts = 0 OR q.error_class IN
             ('network', 'timeout', 'server_error', 'rate_limited', 'auth_failed', 'forbidden', 'account', 'config'))))
           AND (f.paused IS NOT NULL OR (f.held_until > {{now}} AND (f.trips > 0 OR f.held_until > {until})))
           AND t.tenant = f.tenant AND t.enabled AND t.paused IS NULL
           AND (t.trips = 0 OR t.breaker_failures = 0 OR $5 = 1)
           AND (t.held_until IS NULL OR t.held_until <= {{now}}) AND t.channel IN (q.channel, '*')
         LIMIT $5"
    )
}

fn sql(until: &str, unlocked: &str) -> String {
    format!(
        "UPDATE postcommit.delivery_queue
         SET lane = $2, attempts = 0, first_try_at = NULL, moves = moves + 1, code = '{FAILED_OVER}', detail = $6,
           error_class = NULL
         WHERE (tenant, notification_id, n) IN (SELECT q.tenant, q.notification_id, q.n
             {} {unlocked})
           AND lease_token IS NULL",
        movable(until)
    )
}

impl Store {
    /// Moves deliveries into the lane `to` from a lane that is paused, tripped or held for longer than its
    /// `failover_after_s`. At most `most` deliveries that are due at `now` move. Returns how many moved. Nothing moves
    /// if the lane is open by now or if `to` is closed.
    pub async fn move_waiting(&self, from: &Provider, to: i32, now: Timestamp, most: u32) -> Result<u64, DbError> {
        let detail = format!("moved from provider {}, which cannot send now", from.name);
        let after = Value::Real(from.failover_after().as_secs_f64());
        let mut parameters = vec![Value::from(from.id), to.into(), after, now.into(), 1_i64.into()];
        // A read comes first, because it nearly always finds nothing. On SQLite this leaves the write lock to the
        // application.
        let look = format!("SELECT 1 {}", movable(&self.db.seconds_from_now(3)));
        if self.db.query(&look, parameters.clone()).await?.is_empty() {
            return Ok(0);
        }
        parameters[4] = i64::from(most).into();
        parameters.push(detail.into());
        crash_point!("move.before");
        let until = self.db.seconds_from_now(3);
        let moved = match &self.db {
            Db::Postgres(_) => self.db.execute_one(&sql(&until, "FOR UPDATE OF q SKIP LOCKED"), parameters).await?,
            Db::Sqlite(db) => {
                let statement = [(sql(&until, ""), parameters)];
                db.write(move |connection| {
                    let moved = sqlite::execute(connection, &statement, 0)?;
                    crash_point!("move.in_tx");
                    Ok(moved.first().copied().unwrap_or(0))
                })
                .await?
            }
        };
        crash_point!("move.after_commit");
        Ok(moved)
    }
}
