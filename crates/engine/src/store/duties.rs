//! Background duties: each is done by whichever process comes first, at most once per interval.

use std::time::Duration;

use uuid::Uuid;

use crate::db::{DbError, Value};
use crate::store::Store;
use crate::store::numbers::kpis::before;

/// What the duty of a worker to be here is called, before its own name; and the doing of a pass.
pub(in crate::store) const WORKER: &str = "worker:";
pub(in crate::store) const PASS: &str = "pass";
/// And the pass that is under way.
const PASSING: &str = "passing";
/// A pass that has not said for so long that it goes on has ended without a word.
const PASSING_FOR: Duration = Duration::from_secs(30);
/// How often it says so.
pub(crate) const PASSING_SAID: Duration = Duration::from_secs(10);
/// How far ahead partitions are made: an application may enqueue for so long with no server running.
pub const PARTITION_MONTHS_AHEAD: i32 = 24;

/// A worker that has not said for so long that it is here is not.
pub(in crate::store) const PRESENT: Duration = Duration::from_secs(60);
/// For so long a worker that ended without a word is remembered. Each start has a name of its own: one that is killed and started again every few seconds
/// leaves a row each time, and all are read by whoever asks who is here.
const REMEMBERED: Duration = Duration::from_secs(2 * 3600);

impl Store {
    /// A worker says that it is here. To say so is a duty of each, under a name of its own.
    pub async fn be_present(&self, worker: Uuid) -> Result<(), DbError> {
        self.note_duty(&format!("{WORKER}{worker}")).await
    }

    /// Forgets workers that ended without a word, long ago.
    pub async fn forget_workers(&self) -> Result<(), DbError> {
        let long_gone = before(self.now().await?, REMEMBERED);
        let sql = format!("DELETE FROM postcommit.duty WHERE name LIKE '{WORKER}%' AND ran_at < $1");
        self.db.execute_one(&sql, vec![long_gone.into()]).await.map(drop)
    }

    /// A worker says that it is here no longer.
    pub async fn leave(&self, worker: Uuid) -> Result<(), DbError> {
        self.give_back_duty(&format!("{WORKER}{worker}")).await
    }

    /// Somebody does a pass: where cron delivers, there is no worker to be seen.
    pub async fn note_pass(&self) -> Result<(), DbError> {
        self.note_duty(PASS).await
    }

    /// Begins a pass over everything, unless one is under way, in whatever process. One that was killed is no longer under way 30 seconds later.
    pub async fn begin_pass(&self) -> Result<bool, DbError> {
        self.take_duty(PASSING, PASSING_FOR).await
    }

    /// The pass goes on.
    pub async fn go_on_passing(&self) -> Result<(), DbError> {
        self.note_duty(PASSING).await
    }

    /// The pass is over.
    pub async fn end_pass(&self) -> Result<(), DbError> {
        self.give_back_duty(PASSING).await
    }

    async fn note_duty(&self, name: &str) -> Result<(), DbError> {
        let sql = "INSERT INTO postcommit.duty (name, ran_at) VALUES ($1, {now}) ON CONFLICT (name) DO UPDATE SET ran_at = {now}";
        self.db.execute_one(sql, vec![name.into()]).await.map(drop)
    }

    /// Takes a duty, if nobody has within the interval. All duties are repeatable: a crash after this only delays one.
    pub async fn take_duty(&self, name: &str, interval: Duration) -> Result<bool, DbError> {
        let stale = match self.db.kind() {
            "postgres" => "postcommit.duty.ran_at < clock_timestamp() - $2::float8 * interval '1 second'",
            _ => "ran_at < {now} - CAST($2 * 1000000 AS INTEGER)",
        };
        let sql = format!(
            "INSERT INTO postcommit.duty (name, ran_at) VALUES ($1, {{now}}) ON CONFLICT (name) DO UPDATE SET ran_at = {{now}} WHERE {stale}"
        );
        Ok(self.db.execute_one(&sql, vec![name.into(), Value::Real(interval.as_secs_f64())]).await? > 0)
    }

    /// Gives a duty back that failed, so that the next look tries again.
    pub async fn give_back_duty(&self, name: &str) -> Result<(), DbError> {
        self.db.execute_one("DELETE FROM postcommit.duty WHERE name = $1", vec![name.into()]).await.map(drop)
    }

    /// Makes partitions far ahead of need.
    pub async fn make_partitions_once(&self) -> Result<i64, DbError> {
        self.db.make_partitions(PARTITION_MONTHS_AHEAD).await
    }

    /// Sends what waits on a lane that no longer exists back to be routed anew. Returns how many.
    pub async fn reroute_strays_once(&self) -> Result<u64, DbError> {
        // A lease that ran out on a lane that is gone: what its attempt did, nobody can say.
        let sql = "UPDATE postcommit.delivery_queue SET lane = -tenant, unclear = (CASE WHEN lease_token IS NULL AND lost_since IS NULL THEN unclear ELSE 1 = 1 END), lease_token = NULL, lease_until = NULL
            WHERE lane > 0 AND (lease_token IS NULL OR lease_until < {now})
            AND NOT EXISTS (SELECT 1 FROM postcommit.provider p WHERE p.id = postcommit.delivery_queue.lane)";
        let sql = if self.db.kind() == "postgres" {
            sql.replace("postcommit.delivery_queue.lane", "delivery_queue.lane")
        } else {
            sql.to_owned()
        };
        self.db.execute_one(&sql, vec![]).await
    }

    /// Settles that came too late, ever.
    pub async fn stale_settles(&self) -> Result<i64, DbError> {
        let rows = self.db.query("SELECT count(*) FROM postcommit.stale_settle", vec![]).await?;
        rows.first().map_or(Ok(0), |row| row.get(0))
    }
}
