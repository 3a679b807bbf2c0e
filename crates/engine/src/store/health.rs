//! The health of the store, for `doctor` and for metrics.

pub(in crate::store) mod access;
pub(in crate::store) mod running;
pub(in crate::store) mod server;

use std::collections::BTreeMap;
use std::time::Duration;

use postcommit::Timestamp;
use uuid::Uuid;

use crate::db::{Db, DbError, Row};
use crate::store::Store;
use crate::store::duties::{EARLIER_PASS, PASS, PRESENT, WORKER};
use crate::store::numbers::kpis::before;
use crate::store::queue::closed::closed_on_both;

/// The state of the partitions on PostgreSQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionHealth {
    /// The number of months after the current one for which partitions exist.
    pub months_ahead: i64,
    /// Rows that are in a default partition because there was no partition for their month.
    pub in_default: i64,
}

/// Counts of the queue and of parked deliveries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueHealth {
    /// The number of rows in the queue.
    pub waiting: i64,
    /// The number of parked deliveries.
    pub parked: i64,
    /// The number of seconds for which the oldest due row has been due. 0 if no row is due.
    pub oldest_due_s: i64,
    /// How many outcomes arrived after their lease was lost, counted since the installation.
    pub stale_settles: i64,
}

/// Idempotency keys that were used again with other content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyConflicts {
    /// How often an idempotency key was used again with other content.
    pub count: i64,
    /// The notification that has the idempotency key of the latest conflict.
    pub notification: Uuid,
    /// The event type of the refused enqueue.
    pub event_type: String,
}

/// Values that metrics report in addition to the KPIs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// The time for which the oldest due row in an open lane has been due. Zero if no row is due.
    pub oldest_due: Duration,
    /// How often an idempotency key was used again with other content, counted since the installation.
    pub key_conflicts: i64,
}

/// A channel that a tenant uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelInUse {
    /// The number of the tenant.
    pub tenant: i32,
    /// The name of the channel.
    pub channel: String,
    /// Whether deliveries are parked because no provider serves the channel.
    pub is_parked: bool,
}

/// The workers that have a heartbeat, and the work that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attendance {
    /// Workers with a current heartbeat.
    pub workers: i64,
    /// The latest heartbeat of any worker. A worker that was stopped regularly has removed its heartbeat.
    pub last_worker_at: Option<Timestamp>,
    /// The oldest of the current heartbeats. A worker that was killed keeps its heartbeat current for a minute.
    pub oldest_worker_at: Option<Timestamp>,
    /// When the last pass began.
    pub last_pass_at: Option<Timestamp>,
    /// When the pass before the last one began.
    pub earlier_pass_at: Option<Timestamp>,
    /// Due deliveries in open lanes that are not being sent.
    pub due: i64,
    /// The due time of the oldest due delivery.
    pub oldest_due_at: Option<Timestamp>,
    /// Jobs that have not ended.
    pub jobs: i64,
}

/// Returns the condition that row `q` of the queue can be claimed now.
fn is_due() -> String {
    let closed = closed_on_both("p");
    format!(
        "due_at <= {{now}} AND lease_token IS NULL AND NOT EXISTS (SELECT 1 FROM postcommit.provider p WHERE p.id = q.lane AND {closed})"
    )
}

impl Store {
    /// Reads which workers have a heartbeat, and which work is due.
    pub async fn attendance(&self) -> Result<Attendance, DbError> {
        let (present, is_due) = (before(self.now().await?, PRESENT), is_due());
        let sql = format!(
            "SELECT (SELECT count(*) FROM postcommit.duty WHERE name LIKE '{WORKER}%' AND ran_at > $1),
             (SELECT max(ran_at) FROM postcommit.duty WHERE name LIKE '{WORKER}%'),
             (SELECT ran_at FROM postcommit.duty WHERE name = '{PASS}'),
             (SELECT count(*) FROM postcommit.delivery_queue q WHERE {is_due}),
             (SELECT count(*) FROM postcommit.job WHERE state IN ('queued', 'running')),
             (SELECT min(due_at) FROM postcommit.delivery_queue q WHERE {is_due}),
             (SELECT min(ran_at) FROM postcommit.duty WHERE name LIKE '{WORKER}%' AND ran_at > $1),
             (SELECT ran_at FROM postcommit.duty WHERE name = '{EARLIER_PASS}')"
        );
        let rows = self.db.query(&sql, vec![present.into()]).await?;
        let row =
            rows.first().ok_or_else(|| DbError::Unreadable("a query returned no row; report it as a bug".into()))?;
        Ok(Attendance {
            workers: row.get(0)?,
            last_worker_at: row.get(1).unwrap_or_default(),
            last_pass_at: row.get(2).unwrap_or_default(),
            due: row.get(3)?,
            jobs: row.get(4)?,
            oldest_due_at: row.get(5).unwrap_or_default(),
            oldest_worker_at: row.get(6).unwrap_or_default(),
            earlier_pass_at: row.get(7).unwrap_or_default(),
        })
    }

    /// Returns whether deliveries are due and no worker has a current heartbeat. The queue is only read if there is no
    /// worker, and only until a due delivery is found.
    pub async fn is_unattended(&self) -> Result<bool, DbError> {
        let (present, is_due) = (before(self.now().await?, PRESENT), is_due());
        let sql = format!("SELECT 1 FROM postcommit.duty WHERE name LIKE '{WORKER}%' AND ran_at > $1 LIMIT 1");
        if !self.db.query(&sql, vec![present.into()]).await?.is_empty() {
            return Ok(false);
        }
        let sql = format!("SELECT 1 FROM postcommit.delivery_queue q WHERE {is_due} LIMIT 1");
        Ok(!self.db.query(&sql, vec![]).await?.is_empty())
    }

    /// Counts the deliveries that are parked as `config`, by lane. Resuming the lane does not retry these deliveries.
    pub async fn parked_as_config(&self) -> Result<BTreeMap<i32, i64>, DbError> {
        let sql = "SELECT lane, count(*) FROM postcommit.delivery_ledger
            WHERE state = 'parked' AND reason = 'config' AND lane IS NOT NULL
            GROUP BY lane";
        self.db.query(sql, vec![]).await?.iter().map(|row| Ok((row.get(0)?, row.get(1)?))).collect()
    }

    /// Returns the channels on which a delivery was sent or parked within `window`, and the channels with deliveries
    /// that are parked because no provider serves them.
    pub async fn channels_in_use(&self, window: Duration) -> Result<Vec<ChannelInUse>, DbError> {
        let counted = "WHERE slot > $1 AND channel <> '' AND state IN ('sent', 'delivered', 'captured', 'parked')";
        let sql = format!(
            "SELECT tenant, channel, max(is_parked)
             FROM (SELECT tenant, channel, 0 AS is_parked FROM postcommit.rollup_fresh {counted}
               UNION ALL SELECT tenant, channel, 0 FROM postcommit.rollup_hour {counted}
               UNION ALL SELECT tenant, channel, 1
               FROM postcommit.delivery_ledger
               WHERE state = 'parked' AND code = 'no_provider' AND channel <> '') used
             GROUP BY tenant, channel
             ORDER BY tenant, channel"
        );
        let rows = self.db.query(&sql, vec![before(self.now().await?, window).into()]).await?;
        let channel = |row: &Row| -> Result<ChannelInUse, DbError> {
            Ok(ChannelInUse { tenant: row.get(0)?, channel: row.get(1)?, is_parked: row.get::<i64>(2)? > 0 })
        };
        rows.iter().map(channel).collect()
    }

    /// Reads the values that metrics report in addition to the KPIs.
    pub async fn standing(&self) -> Result<Standing, DbError> {
        let now = self.now().await?;
        let count = async |sql: &str| -> Result<i64, DbError> {
            self.db.query(sql, vec![]).await?.first().map_or(Ok(0), |row| row.get(0))
        };
        Ok(Standing {
            oldest_due: self.oldest_due().await?.map_or(Duration::ZERO, |at| now.since(at)),
            // Rows of `key_conflict` are never deleted, so the highest id is their number.
            key_conflicts: count("SELECT CAST(coalesce(max(id), 0) AS BIGINT) FROM postcommit.key_conflict").await?,
        })
    }

    async fn oldest_due(&self) -> Result<Option<Timestamp>, DbError> {
        let due = format!("SELECT min(due_at) FROM postcommit.delivery_queue q WHERE {}", is_due());
        self.db.query(&due, vec![]).await?.first().map_or(Ok(None), |row| row.get(0))
    }

    /// Returns whether the database is read-only: a standby, or a SQLite file that cannot be written.
    ///
    /// # Errors
    /// Fails if the database fails. On SQLite it also fails if the disk is full.
    pub async fn is_read_only(&self) -> Result<bool, DbError> {
        if let Db::Sqlite(db) = &self.db {
            return db.is_read_only().await;
        }
        let rows = self.db.query("SELECT current_setting('transaction_read_only') = 'on'", vec![]).await?;
        rows.first().map_or(Ok(false), |row| row.get(0))
    }

    /// Reads the state of the partitions. `None` on SQLite, which has no partitions.
    pub async fn partition_health(&self) -> Result<Option<PartitionHealth>, DbError> {
        let Db::Postgres(_) = self.db else { return Ok(None) };
        let sql = "SELECT
              (SELECT count(*)
                FROM pg_class
                WHERE relnamespace = 'postcommit'::regnamespace AND relname ~ '^notification_[0-9]{4}_[0-9]{2}$'
                  AND relname > 'notification_' || to_char(now() AT TIME ZONE 'UTC', 'YYYY_MM')),
              (SELECT count(*) FROM postcommit.notification_default)
                + (SELECT count(*) FROM postcommit.delivery_ledger_default)
                + (SELECT count(*) FROM postcommit.logged_attempt_default)";
        let rows = self.db.query(sql, vec![]).await?;
        rows.first().map(|row| Ok(PartitionHealth { months_ahead: row.get(0)?, in_default: row.get(1)? })).transpose()
    }

    /// Counts queued deliveries, parked deliveries and late outcomes.
    pub async fn queue_health(&self) -> Result<QueueHealth, DbError> {
        let now = self.now().await?;
        let count = async |sql: &str| -> Result<i64, DbError> {
            self.db.query(sql, vec![]).await?.first().map_or(Ok(0), |row| row.get(0))
        };
        let oldest = self.oldest_due().await?;
        Ok(QueueHealth {
            waiting: count("SELECT count(*) FROM postcommit.delivery_queue").await?,
            parked: count("SELECT count(*) FROM postcommit.delivery_ledger WHERE state = 'parked'").await?,
            oldest_due_s: oldest.map_or(0, |at| i64::try_from(now.since(at).as_secs()).unwrap_or(i64::MAX)),
            stale_settles: self.stale_settles().await?,
        })
    }

    /// Reads the key conflicts within `window`. `None` if there were none.
    pub async fn key_conflicts(&self, window: Duration) -> Result<Option<KeyConflicts>, DbError> {
        let sql = "SELECT (SELECT count(*) FROM postcommit.key_conflict WHERE noted_at > $1), notification_id,
              event_type
            FROM postcommit.key_conflict
            WHERE noted_at > $1
            ORDER BY id DESC
            LIMIT 1";
        let rows = self.db.query(sql, vec![before(self.now().await?, window).into()]).await?;
        rows.first()
            .map(|row| {
                Ok(KeyConflicts {
                    count: row.get(0)?,
                    notification: row.get(1).unwrap_or_default(),
                    event_type: row.get(2)?,
                })
            })
            .transpose()
    }
}
