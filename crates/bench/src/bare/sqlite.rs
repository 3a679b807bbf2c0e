//! Bare SQL on SQLite: rusqlite, prepared statements, WAL mode with `synchronous = FULL`, one thread.
//!
//! The design is the same as on PostgreSQL: a queue for live rows and a ledger for finished ones, claimed under a lease
//! and settled with an attempt row each.

use std::path::Path;
use std::time::Duration;

use postcommit_channel::clock;
use rusqlite::{Connection, TransactionBehavior, params};
use uuid::Uuid;

use crate::load::payload;

/// Rows that are claimed and settled in one transaction.
const BATCH: u64 = 500;
const LEASE_US: i64 = 60_000_000;

const TABLES: &str = "
CREATE TABLE bench_notification (id BLOB PRIMARY KEY, payload TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE bench_queue (id BLOB PRIMARY KEY, due_at INTEGER NOT NULL, lease_token BLOB, lease_until INTEGER) WITHOUT ROWID;
CREATE INDEX bench_queue_due ON bench_queue (due_at);
CREATE TABLE bench_ledger (id BLOB PRIMARY KEY, state TEXT NOT NULL, finished_at INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE bench_attempt (id BLOB, seq INTEGER, at INTEGER NOT NULL, outcome TEXT NOT NULL, latency_ms INTEGER NOT NULL, PRIMARY KEY (id, seq)) WITHOUT ROWID;
CREATE TABLE bench_plain (id BLOB PRIMARY KEY, key TEXT NOT NULL UNIQUE, event_type TEXT NOT NULL, recipients TEXT NOT NULL, payload TEXT NOT NULL,
  created_at INTEGER NOT NULL);
";

const CLAIM: &str = "
UPDATE bench_queue SET lease_token = ?1, lease_until = ?2
WHERE id IN (SELECT id FROM bench_queue WHERE due_at <= ?3 AND (lease_until IS NULL OR lease_until < ?3) ORDER BY due_at LIMIT ?4)
RETURNING id";

/// Opens a connection that is as durable as Postcommit's.
pub fn open(file: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(file)?;
    connection.busy_timeout(Duration::from_secs(10))?;
    connection.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA temp_store = MEMORY")?;
    Ok(connection)
}

/// Writes the content of the write-ahead log into the database file.
pub fn checkpoint(file: &Path) -> rusqlite::Result<()> {
    open(file)?.execute_batch("PRAGMA wal_checkpoint(TRUNCATE); PRAGMA optimize")
}

/// Creates empty tables.
pub fn fresh(file: &Path) -> rusqlite::Result<()> {
    open(file)?.execute_batch(TABLES)
}

/// Puts `count` rows into the queue.
pub fn fill(file: &Path, count: u64) -> rusqlite::Result<()> {
    let mut connection = open(file)?;
    let mut from = 0;
    while from < count {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        for i in from..count.min(from + BATCH) {
            let id = *Uuid::now_v7().as_bytes();
            transaction
                .prepare_cached("INSERT INTO bench_notification (id, payload) VALUES (?1, ?2)")?
                .execute(params![id, payload(i)])?;
            transaction
                .prepare_cached("INSERT INTO bench_queue (id, due_at) VALUES (?1, ?2)")?
                .execute(params![id, now()])?;
        }
        transaction.commit()?;
        from += BATCH;
    }
    Ok(())
}

/// Drains the queue. Returns the number of rows and how long that took.
pub fn drain(file: &Path) -> rusqlite::Result<(u64, Duration)> {
    let mut connection = open(file)?;
    let started = clock::monotonic();
    let mut all = 0;
    loop {
        let token = *Uuid::new_v4().as_bytes();
        let claimed = claim(&mut connection, &token)?;
        if claimed.is_empty() {
            return Ok((all, clock::monotonic().duration_since(started)));
        }
        all += claimed.len() as u64;
        settle(&mut connection, &token, &claimed)?;
    }
}

fn claim(connection: &mut Connection, token: &[u8; 16]) -> rusqlite::Result<Vec<[u8; 16]>> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let claimed = {
        let mut statement = transaction.prepare_cached(CLAIM)?;
        let rows = statement.query_map(params![token, now() + LEASE_US, now(), BATCH as i64], |row| row.get(0))?;
        rows.collect::<Result<_, _>>()?
    };
    transaction.commit()?;
    Ok(claimed)
}

fn settle(connection: &mut Connection, token: &[u8; 16], claimed: &[[u8; 16]]) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for id in claimed {
        let gone = transaction
            .prepare_cached("DELETE FROM bench_queue WHERE id = ?1 AND lease_token = ?2")?
            .execute(params![id, token])?;
        if gone == 1 {
            let ledger = "INSERT INTO bench_ledger (id, state, finished_at) VALUES (?1, 'sent', ?2)";
            transaction.prepare_cached(ledger)?.execute(params![id, now()])?;
            let attempt = "INSERT INTO bench_attempt (id, seq, at, outcome, latency_ms) VALUES (?1, 1, ?2, 'sent', 1)";
            transaction.prepare_cached(attempt)?.execute(params![id, now()])?;
        }
    }
    transaction.commit()
}

/// Inserts a row into a plain table with a unique key.
pub fn insert_plain(
    connection: &Connection,
    key: &str,
    event_type: &str,
    recipients: &str,
    payload: &str,
) -> rusqlite::Result<()> {
    let sql = "\
        INSERT INTO bench_plain (id, key, event_type, recipients, payload, created_at)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    let id = *Uuid::now_v7().as_bytes();
    connection.prepare_cached(sql)?.execute(params![id, key, event_type, recipients, payload, now()]).map(drop)
}

fn now() -> i64 {
    clock::now().as_micros()
}
