//! The load: notifications with a payload of about 300 bytes and one recipient each.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use postcommit_channel::secret::random;
use postcommit_engine::db::Value;
use tokio_postgres::Client;
use tokio_postgres::types::ToSql;

use crate::failure::Failure;
use crate::workspace::{Backend, Workspace};

/// The largest batch of `enqueue_many`.
pub const BATCH: u64 = 1000;
/// Connections that enqueue concurrently. More than two were not faster on the machines that run the benchmark.
const FEEDERS: usize = 2;

/// Rows that are inserted in one commit.
pub const ROWS_PER_COMMIT: u64 = 5000;

/// A kind of notification. Its keys never repeat within a run.
#[derive(Debug, Clone)]
pub struct Load {
    /// The event type of the notifications. The capture driver can be configured to be slow for one event type.
    pub event_type: &'static str,
    /// The recipients of each notification, as JSON.
    pub recipients: String,
    /// The priority, 0 to 9.
    pub priority: u8,
    /// Whether each notification is about an entity of its own.
    has_entity: bool,
    /// The beginning of every idempotency key.
    prefix: String,
}

impl Load {
    /// Notifications to a mail address, which a capture provider accepts.
    pub fn captured() -> Self {
        Self::to("email", "guest@example.com")
    }

    /// Notifications to an address of a channel.
    pub fn to(channel: &str, address: &str) -> Self {
        let prefix = u64::from_be_bytes(random::<8>());
        Self {
            event_type: "bench.booking",
            recipients: format!("[{{\"{channel}\":\"{address}\"}}]"),
            priority: 5,
            has_entity: false,
            prefix: format!("{prefix:016x}"),
        }
    }

    pub fn of_type(self, event_type: &'static str) -> Self {
        Self { event_type, ..self }
    }

    pub fn with_priority(self, priority: u8) -> Self {
        Self { priority, ..self }
    }

    /// Creates events without recipients: their template names the recipient. Each event is about an entity of its own.
    pub fn to_template() -> Self {
        Self { recipients: "[]".to_owned(), has_entity: true, ..Self::captured() }
    }

    /// Creates the same kind of notification with other keys and entities.
    pub fn again(&self) -> Self {
        Self { prefix: Self::captured().prefix, ..self.clone() }
    }

    /// The entity of notification `i`.
    fn entity(&self, i: u64) -> Option<String> {
        self.has_entity.then(|| format!("booking:{}:{i}", self.prefix))
    }

    /// Returns the idempotency key of notification `i`.
    pub fn key(&self, i: u64) -> String {
        format!("bench:{}:{i}", self.prefix)
    }

    /// Notification `i` as JSON.
    pub fn one(&self, i: u64) -> String {
        let entity = self.entity(i).map(|entity| format!("\"entity\":\"{entity}\",")).unwrap_or_default();
        format!(
            "{{{entity}\"event_type\":\"{}\",\"payload\":{},\"idempotency_key\":\"{}\",\"recipients\":{},\"priority\":{}}}",
            self.event_type,
            payload(i),
            self.key(i),
            self.recipients,
            self.priority
        )
    }

    /// Notifications as a JSON array for `enqueue_many`.
    pub fn batch(&self, from: u64, count: u64) -> String {
        format!("[{}]", (from..from + count).map(|i| self.one(i)).collect::<Vec<_>>().join(","))
    }

    /// Enqueues `count` notifications as fast as possible.
    pub async fn feed(&self, workspace: &Workspace, count: u64) -> Result<(), Failure> {
        match workspace.backend() {
            Backend::Postgres(_) => self.feed_postgres(workspace, count).await,
            Backend::Sqlite(file) => {
                let (load, file) = (self.clone(), file.path());
                let fed = tokio::task::spawn_blocking(move || load.feed_sqlite(&file, count));
                Ok(fed.await??)
            }
        }
    }

    /// Puts `count` notifications into the queue, for suites that do not measure the enqueue itself. On PostgreSQL
    /// their rows are inserted directly, which is faster.
    pub async fn insert_rows(&self, workspace: &Workspace, count: u64) -> Result<(), Failure> {
        match workspace.backend() {
            Backend::Postgres(_) => DirectInserter::on(workspace.client().await?, self).await?.insert_rows(count).await,
            Backend::Sqlite(_) => self.feed(workspace, count).await,
        }
    }

    async fn feed_postgres(&self, workspace: &Workspace, count: u64) -> Result<(), Failure> {
        let next = Arc::new(AtomicU64::new(0));
        let mut feeders = tokio::task::JoinSet::new();
        for _ in 0..FEEDERS {
            let (client, load, next) = (workspace.client().await?, self.clone(), next.clone());
            feeders.spawn(async move {
                let mut feeder = Feeder::on(client).await?;
                loop {
                    let from = next.fetch_add(BATCH, Ordering::Relaxed);
                    if from >= count {
                        return Ok::<_, Failure>(());
                    }
                    feeder.enqueue(&load.batch(from, BATCH.min(count - from))).await?;
                }
            });
        }
        while let Some(fed) = feeders.join_next().await {
            fed??;
        }
        Ok(())
    }

    fn feed_sqlite(&self, file: &std::path::Path, count: u64) -> rusqlite::Result<()> {
        let mut connection = crate::bare::sqlite::open(file)?;
        let mut from = 0;
        while from < count {
            let transaction = connection.transaction()?;
            for i in from..count.min(from + BATCH) {
                self.insert_sqlite(&transaction, i)?;
            }
            transaction.commit()?;
            from += BATCH;
        }
        Ok(())
    }

    /// Enqueues notification `i` by an insert into the view.
    pub fn insert_sqlite(&self, connection: &rusqlite::Connection, i: u64) -> rusqlite::Result<()> {
        let sql = "\
            INSERT INTO postcommit_enqueue (event_type, payload, idempotency_key, recipients, priority, entity)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
        let mut statement = connection.prepare_cached(sql)?;
        let entity = self.entity(i);
        statement.execute((self.event_type, payload(i), self.key(i), &self.recipients, self.priority, entity)).map(drop)
    }
}

/// A connection that enqueues batches.
pub struct Feeder {
    client: Client,
    enqueue: tokio_postgres::Statement,
}

impl Feeder {
    pub async fn on(client: Client) -> Result<Self, Failure> {
        let enqueue = client.prepare("SELECT count(*) FROM postcommit.enqueue_many($1::jsonb)").await?;
        Ok(Self { client, enqueue })
    }

    /// Enqueues one batch in one commit.
    pub async fn enqueue(&mut self, batch: &str) -> Result<(), Failure> {
        self.client.query_one(&self.enqueue, &[&Value::Json(batch.to_owned())]).await?;
        Ok(())
    }
}

/// A connection that inserts the rows which `enqueue` would insert.
pub struct DirectInserter {
    client: Client,
    insert: tokio_postgres::Statement,
    load: Load,
}

impl DirectInserter {
    pub async fn on(client: Client, load: &Load) -> Result<Self, Failure> {
        let sql = "\
            WITH fresh AS MATERIALIZED (
              SELECT postcommit.new_id() AS id, i FROM generate_series(1, $1::int) i
            ), noted AS (
              INSERT INTO postcommit.notification (tenant, id, event_type, idempotency_key, payload, recipients, channels,
                priority, due_at, expires_at)
              SELECT 1, id, $2::text, id::text, $3::jsonb, $4::jsonb, '{}',
                $5::int::smallint, now(), now() + interval '30 days'
              FROM fresh
            )
            INSERT INTO postcommit.delivery_queue (tenant, notification_id, n, lane, priority, due_at, first_due_at)
            SELECT 1, id, 0, -1, $5::int::smallint, now(), now() FROM fresh";
        let insert = client.prepare(sql).await?;
        Ok(Self { client, insert, load: load.clone() })
    }

    /// Inserts `count` notifications, in commits of [`ROWS_PER_COMMIT`].
    pub async fn insert_rows(&self, count: u64) -> Result<(), Failure> {
        let (payload, recipients) = (Value::Json(payload(1)), Value::Json(self.load.recipients.clone()));
        let mut left = count;
        while left > 0 {
            let now = left.min(ROWS_PER_COMMIT);
            let rows = i32::try_from(now).unwrap_or(i32::MAX);
            let parameters: [&(dyn ToSql + Sync); 5] =
                [&rows, &self.load.event_type, &payload, &recipients, &i32::from(self.load.priority)];
            self.client.execute(&self.insert, &parameters).await?;
            // Wakes an idle dispatcher, as `enqueue` does.
            self.client.batch_execute("SELECT postcommit.ring(now())").await?;
            left -= now;
        }
        Ok(())
    }
}

/// A payload of about 300 bytes of JSON, like an event of an application.
pub fn payload(i: u64) -> String {
    format!(
        "{{\"booking\":{i},\"guest\":{{\"name\":\"Ada Lovelace\",\"email\":\"guest{i}@example.com\",\"language\":\"en\"}},\
        \"house\":\"Villa Aurora, 14 Harbour Road\",\"arrival\":\"2031-05-04\",\"departure\":\"2031-05-11\",\"price\":{{\"amount\":129900,\"currency\":\"EUR\"}},\
        \"note\":\"Late arrival; please leave the key in the box by the gate.\",\"paid\":true}}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_json_with_payloads_of_about_300_bytes_and_keys_of_its_own() {
        let load = Load::captured();
        let batch: serde_json::Value = serde_json::from_str(&load.batch(7, 3)).unwrap();
        assert_eq!(batch.as_array().unwrap().len(), 3);
        assert_eq!(batch[0]["idempotency_key"], load.key(7));
        assert!((270..=330).contains(&payload(123_456).len()), "{}", payload(123_456).len());
        assert_ne!(load.key(1), Load::captured().key(1));
    }
}
