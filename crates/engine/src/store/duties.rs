//! Background tasks, called duties. Each runs at most once per interval, in the first process that takes it.

use std::time::Duration;

use uuid::Uuid;

use crate::db::{DbError, Value};
use crate::store::numbers::kpis::before;
use crate::store::{Opener, Store};

/// The prefix of a worker's name in the duty table. The worker's id follows it.
pub(in crate::store) const WORKER: &str = "worker:";
pub(in crate::store) const PASS: &str = "pass";
/// The name in the duty table for the time of the pass (`dispatch --once`) before the last one.
pub(in crate::store) const EARLIER_PASS: &str = "earlier_pass";
/// The name of the duty that a running pass holds, so that only one pass runs.
const PASSING: &str = "passing";
/// A pass whose last heartbeat is older than this counts as ended.
const PASSING_FOR: Duration = Duration::from_secs(30);
/// How often a running pass writes its heartbeat.
pub(crate) const PASSING_SAID: Duration = Duration::from_secs(10);
/// How many months ahead partitions are created. For that time an application can enqueue without a running server.
pub const PARTITION_MONTHS_AHEAD: i32 = 24;

/// A worker whose last heartbeat is older than this counts as gone.
pub(in crate::store) const PRESENT: Duration = Duration::from_secs(60);
/// How long the heartbeat of a worker that ended abruptly is kept. Each start has a new id, so a worker that is killed
/// and restarted every few seconds leaves many rows, and every reader of heartbeats reads all of them.
const REMEMBERED: Duration = Duration::from_secs(2 * 3600);

const NOTE_DUTY: &str = "INSERT INTO postcommit.duty (name, ran_at)
    VALUES ($1, {now})
    ON CONFLICT (name) DO UPDATE SET ran_at = {now}";

impl Store {
    /// Writes the heartbeat of a worker.
    pub async fn be_present(&self, worker: Uuid) -> Result<(), DbError> {
        self.note_duty(&format!("{WORKER}{worker}")).await
    }

    /// Removes old heartbeats of workers that ended abruptly.
    pub async fn forget_workers(&self) -> Result<(), DbError> {
        let long_gone = before(self.now().await?, REMEMBERED);
        let sql = format!("DELETE FROM postcommit.duty WHERE name LIKE '{WORKER}%' AND ran_at < $1");
        let unopened = format!(
            "DELETE FROM postcommit.unopened_secret
             WHERE noted_at < $1 AND worker NOT IN (SELECT name FROM postcommit.duty WHERE name LIKE '{WORKER}%')"
        );
        let parameters = || vec![long_gone.into()];
        self.db.execute(vec![(sql, parameters()), (unopened, parameters())]).await.map(drop)
    }

    /// Removes the heartbeat of a worker and its list of secrets that it could not decrypt.
    pub async fn leave(&self, worker: Uuid) -> Result<(), DbError> {
        self.note_unopened(Opener::Worker(worker), &[]).await?;
        self.give_back_duty(&format!("{WORKER}{worker}")).await
    }

    /// Records that a pass begins. Where cron runs passes and no worker has a heartbeat, this time shows that
    /// deliveries are sent. The time of the previous pass is kept too, because it distinguishes cron from a single pass
    /// by hand.
    pub async fn note_pass(&self) -> Result<(), DbError> {
        let earlier = "INSERT INTO postcommit.duty (name, ran_at)
            SELECT $1, ran_at FROM postcommit.duty WHERE name = $2
            ON CONFLICT (name) DO UPDATE SET ran_at = excluded.ran_at";
        let earlier = (earlier.to_owned(), vec![EARLIER_PASS.into(), PASS.into()]);
        self.db.execute(vec![earlier, (NOTE_DUTY.to_owned(), vec![PASS.into()])]).await.map(drop)
    }

    /// Begins a pass and returns true, unless a pass is running in any process. A pass whose process was killed blocks
    /// other passes for 30 seconds.
    pub async fn begin_pass(&self) -> Result<bool, DbError> {
        self.take_duty(PASSING, PASSING_FOR).await
    }

    /// Writes the heartbeat of the running pass.
    pub async fn go_on_passing(&self) -> Result<(), DbError> {
        self.note_duty(PASSING).await
    }

    /// Ends the running pass.
    pub async fn end_pass(&self) -> Result<(), DbError> {
        self.give_back_duty(PASSING).await
    }

    async fn note_duty(&self, name: &str) -> Result<(), DbError> {
        self.db.execute_one(NOTE_DUTY, vec![name.into()]).await.map(drop)
    }

    /// Takes a duty and returns true, unless a process has taken it within the interval. All duties can be repeated, so
    /// a crash after this call only delays the duty.
    pub async fn take_duty(&self, name: &str, interval: Duration) -> Result<bool, DbError> {
        let stale = match self.db.kind() {
            "postgres" => "postcommit.duty.ran_at < clock_timestamp() - $2::float8 * interval '1 second'",
            _ => "ran_at < {now} - CAST($2 * 1000000 AS INTEGER)",
        };
        let sql = format!(
            "INSERT INTO postcommit.duty (name, ran_at)
             VALUES ($1, {{now}})
             ON CONFLICT (name) DO UPDATE SET ran_at = {{now}}
             WHERE {stale}"
        );
        Ok(self.db.execute_one(&sql, vec![name.into(), Value::Real(interval.as_secs_f64())]).await? > 0)
    }

    /// Releases a duty that failed, so that the next check tries it again.
    pub async fn give_back_duty(&self, name: &str) -> Result<(), DbError> {
        self.db.execute_one("DELETE FROM postcommit.duty WHERE name = $1", vec![name.into()]).await.map(drop)
    }

    /// Creates partitions for the next [`PARTITION_MONTHS_AHEAD`] months. Returns the number of created partitions.
    pub async fn make_partitions_once(&self) -> Result<i64, DbError> {
        self.db.make_partitions(PARTITION_MONTHS_AHEAD).await
    }

    /// Moves deliveries in lanes that no longer exist to their tenant's lane, so that they are routed again. Returns
    /// the number of moved deliveries. For each lane in use, only one index entry is read, so this is cheap even with a
    /// long queue.
    pub async fn reroute_strays_once(&self) -> Result<u64, DbError> {
        // If a lease ran out in a deleted lane, the outcome of its attempt is unknown.
        let sql = "UPDATE postcommit.delivery_queue
            SET lane = -tenant,
              unclear = (CASE WHEN lease_token IS NULL AND lost_since IS NULL THEN unclear ELSE 1 = 1 END),
              lease_token = NULL, lease_until = NULL
            WHERE (lease_token IS NULL OR lease_until < {now})
              AND lane IN (
                WITH RECURSIVE used (lane) AS (
                  SELECT min(q.lane) FROM postcommit.delivery_queue q WHERE q.lane > 0
                  UNION ALL
                  SELECT (SELECT min(q.lane) FROM postcommit.delivery_queue q WHERE q.lane > used.lane)
                  FROM used WHERE used.lane IS NOT NULL)
                SELECT used.lane FROM used
                WHERE used.lane IS NOT NULL AND NOT EXISTS (SELECT 1 FROM postcommit.provider p WHERE p.id = used.lane))";
        self.db.execute_one(sql, vec![]).await
    }

    /// Counts all outcomes that arrived after the lease of their delivery was lost.
    pub async fn stale_settles(&self) -> Result<i64, DbError> {
        let rows = self.db.query("SELECT count(*) FROM postcommit.stale_settle", vec![]).await?;
        rows.first().map_or(Ok(0), |row| row.get(0))
    }
}
