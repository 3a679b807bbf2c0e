//! Bare SQL on PostgreSQL: prepared statements, one commit per statement.
//!
//! The drain is the fastest durable design we know: a queue for live rows and a ledger for finished ones, claimed under
//! a lease and settled with an attempt row each. It reads no payload, resolves no recipient, keeps no key and sends
//! nothing.

use std::time::Duration;

use postcommit_channel::clock;
use postcommit_engine::db::Value;
use postcommit_server::output::Exit;
use tokio_postgres::Client;
use uuid::Uuid;

use crate::failure::Failure;
use crate::load::payload;
use crate::workspace::Workspace;

/// Rows that one statement claims or settles. Larger batches were not faster.
const BATCH: i64 = 500;
/// The number of rows that one statement inserts.
const FILL: u64 = 5000;

const TABLES: &str = "
DROP SCHEMA IF EXISTS postcommit_bench CASCADE;
CREATE SCHEMA postcommit_bench;
CREATE TABLE postcommit_bench.notification (id uuid PRIMARY KEY, payload jsonb NOT NULL);
CREATE TABLE postcommit_bench.queue (
  id uuid PRIMARY KEY, due_at timestamptz NOT NULL, lease_token uuid, lease_until timestamptz)
  WITH (
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0);
CREATE INDEX queue_due ON postcommit_bench.queue (due_at);
CREATE TABLE postcommit_bench.ledger (id uuid PRIMARY KEY, state text NOT NULL, finished_at timestamptz NOT NULL);
CREATE TABLE postcommit_bench.attempt (
  id uuid, seq smallint, at timestamptz NOT NULL, outcome text NOT NULL, latency_ms int NOT NULL,
  PRIMARY KEY (id, seq));
CREATE TABLE postcommit_bench.plain (
  id uuid PRIMARY KEY DEFAULT gen_random_uuid(), key text NOT NULL UNIQUE, event_type text NOT NULL,
  recipients jsonb NOT NULL, payload jsonb NOT NULL, created_at timestamptz NOT NULL DEFAULT now());
";

const INSERT: &str = "
WITH noted AS (
  INSERT INTO postcommit_bench.notification (id, payload)
  SELECT * FROM unnest($1::uuid[], $2::jsonb[])
  RETURNING id
)
INSERT INTO postcommit_bench.queue (id, due_at)
SELECT id, now() FROM noted";

const CLAIM: &str = "
UPDATE postcommit_bench.queue SET lease_token = $1, lease_until = now() + interval '60 seconds'
WHERE ctid = ANY (ARRAY(
  SELECT ctid FROM postcommit_bench.queue
  WHERE due_at <= now() AND (lease_until IS NULL OR lease_until < now())
  ORDER BY due_at LIMIT $2
  FOR UPDATE SKIP LOCKED))
RETURNING id";

const SETTLE: &str = "
WITH result AS (
  SELECT * FROM unnest($2::uuid[], $3::int[]) AS r (id, latency_ms)
), done AS (
  DELETE FROM postcommit_bench.queue q USING result r
  WHERE q.id = r.id AND q.lease_token = $1
  RETURNING q.id, r.latency_ms
), entered AS (
  INSERT INTO postcommit_bench.ledger (id, state, finished_at)
  SELECT id, 'sent', clock_timestamp() FROM done
)
INSERT INTO postcommit_bench.attempt (id, seq, at, outcome, latency_ms)
SELECT id, 1, clock_timestamp(), 'sent', latency_ms FROM done";

/// Creates empty tables.
pub async fn fresh(workspace: &Workspace) -> Result<(), Failure> {
    Ok(workspace.client().await?.batch_execute(TABLES).await?)
}

/// Puts `count` rows into the queue.
pub async fn fill(workspace: &Workspace, count: u64) -> Result<(), Failure> {
    Filler::on(workspace).await?.fill(count).await
}

/// A connection that puts rows into the queue.
pub struct Filler {
    client: Client,
    insert: tokio_postgres::Statement,
}

impl Filler {
    pub async fn on(workspace: &Workspace) -> Result<Self, Failure> {
        let client = workspace.client().await?;
        let insert = client.prepare(INSERT).await?;
        Ok(Self { client, insert })
    }

    /// Inserts `count` rows, at most `FILL` in one commit.
    pub async fn fill(&self, count: u64) -> Result<(), Failure> {
        let mut from = 0;
        while from < count {
            let numbers = from..count.min(from + FILL);
            let ids: Vec<Uuid> = numbers.clone().map(|_| Uuid::now_v7()).collect();
            let payloads: Vec<Value> = numbers.map(|i| Value::Json(payload(i))).collect();
            self.client.execute(&self.insert, &[&ids, &payloads]).await?;
            from += FILL;
        }
        Ok(())
    }
}

/// A connection that claims and settles.
pub struct Worker {
    client: Client,
    claim: tokio_postgres::Statement,
    settle: tokio_postgres::Statement,
}

impl Worker {
    /// Connects and prepares the statements.
    pub async fn on(workspace: &Workspace) -> Result<Self, Failure> {
        let client = workspace.client().await?;
        let (claim, settle) = (client.prepare(CLAIM).await?, client.prepare(SETTLE).await?);
        Ok(Self { client, claim, settle })
    }

    /// Claims and settles one batch. Returns its size.
    pub async fn work(&self) -> Result<u64, Failure> {
        let token = Uuid::new_v4();
        let rows = self.client.query(&self.claim, &[&token, &BATCH]).await?;
        let ids: Vec<Uuid> = rows.iter().map(|row| row.get(0)).collect();
        if ids.is_empty() {
            return Ok(0);
        }
        let latencies = vec![1_i32; ids.len()];
        Ok(self.client.execute(&self.settle, &[&token, &ids, &latencies]).await?)
    }
}

/// Drains a queue of `count` rows with `workers` workers and returns how long that took.
pub async fn drain(workspace: &Workspace, count: u64, workers: usize) -> Result<Duration, Failure> {
    let mut ready = Vec::new();
    for _ in 0..workers {
        ready.push(Worker::on(workspace).await?);
    }
    let started = clock::monotonic();
    let mut working = tokio::task::JoinSet::new();
    for worker in ready {
        working.spawn(async move {
            let mut all = 0;
            loop {
                match worker.work().await? {
                    0 => return Ok::<u64, Failure>(all),
                    settled => all += settled,
                }
            }
        });
    }
    let mut all = 0;
    while let Some(settled) = working.join_next().await {
        all += settled??;
    }
    let took = clock::monotonic().duration_since(started);
    if all == count {
        Ok(took)
    } else {
        Err(Failure::new(Exit::Failed, format!("the drain in plain SQL finished only {all} of {count} rows")))
    }
}

/// The bytes of write-ahead log written so far.
pub async fn wal(client: &Client) -> Result<f64, Failure> {
    let row = client.query_one("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8", &[]).await?;
    Ok(row.get(0))
}
