//! apalis as it is measured: its schema, how a job is pushed, how workers run.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use apalis::prelude::*;
use apalis_postgres::{Config, PgTask, PostgresStorage, queries};
use serde::{Deserialize, Serialize};
use sqlx::{Connection, PgConnection, PgPool, postgres::PgPoolOptions};

const QUEUE: &str = "book";

/// Put on the schema, whose name apalis fixes, so that nobody's real queue is ever dropped.
const MARK: &str = "postcommit bench";

const NOTE: &str = "Late arrival, about eleven in the evening; please leave the key with the night porter, put a cot into the room and keep one place in the garage free for a small car. Breakfast at seven.";

#[derive(Clone, Serialize, Deserialize)]
pub struct Booking {
    pub booking: u64,
    guest: String,
    room: String,
    from: String,
    to: String,
    note: String,
}

impl Booking {
    /// The same object for every peer: about 300 bytes as JSON.
    pub fn new(booking: u64) -> Self {
        let text = str::to_owned;
        let (guest, room) = (text("Ada Lovelace"), text("sea view"));
        Self { booking, guest, room, from: text("2026-07-01"), to: text("2026-07-08"), note: text(NOTE) }
    }
}

/// Pushes one or many jobs with one statement, in the transaction of the connection if there is one.
pub async fn push(conn: &mut PgConnection, bookings: impl Iterator<Item = u64>) -> Result<()> {
    let task = |i| Ok(TaskBuilder::new(serde_json::to_vec(&Booking::new(i))?).build());
    let tasks: Vec<PgTask> = bookings.map(task).collect::<Result<_>>()?;
    Ok(queries::push_tasks(conn, QUEUE, tasks).await?)
}

/// Runs `workers` workers that call `handle` for every job, until the future is dropped.
pub async fn work<F>(url: &str, workers: u32, batch: usize, handle: F) -> Result<()>
where
    F: Fn(u64) + Clone + Send + Sync + 'static,
{
    // A worker holds a connection while it fetches or acknowledges, and one to listen.
    let pool = PgPoolOptions::new().max_connections(2 * workers + 2).connect(url).await?;
    let mut running = tokio::task::JoinSet::new();
    for n in 0..workers {
        // A fetched job is already marked with its worker; `lock_tasks` would only mark it once more.
        let config = Config::default().queue(QUEUE).batch_size(batch).lock_tasks(false);
        let storage = PostgresStorage::<Booking>::new(&pool).with_config(config).with_pubsub();
        let handle = handle.clone();
        let worker = WorkerBuilder::new(format!("bench-{}-{n}", std::process::id())).backend(storage).build(move |job: Booking| {
            handle(job.booking);
            async { Ok::<(), BoxDynError>(()) }
        });
        running.spawn(worker.run());
    }
    let ended = running.join_next().await.context("no workers")?;
    ended??;
    anyhow::bail!("a worker ended by itself")
}

pub async fn install(conn: &mut PgConnection, pool: &PgPool) -> Result<()> {
    sqlx::raw_sql("create schema apalis").execute(&mut *conn).await?;
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!("comment on schema apalis is '{MARK}'"))).execute(&mut *conn).await?;
    PostgresStorage::setup(pool).await?;
    Ok(())
}

/// Drops the schema, and nothing that the bench has not made.
pub async fn drop(conn: &mut PgConnection) -> Result<()> {
    let foreign: bool = sqlx::query_scalar(
        "select exists (select from pg_namespace
                        where nspname = 'apalis' and obj_description(oid, 'pg_namespace') is distinct from $1)",
    )
    .bind(MARK)
    .fetch_one(&mut *conn)
    .await?;
    ensure!(!foreign, "there is a schema apalis that the bench has not made; use another database");
    sqlx::raw_sql("set client_min_messages = warning; drop schema if exists apalis cascade").execute(conn).await?;
    Ok(())
}

pub async fn extensions(conn: &mut PgConnection) -> Result<Vec<String>> {
    Ok(sqlx::query_scalar("select extname::text from pg_extension").fetch_all(conn).await?)
}

/// The migrations of apalis add extensions; those that were there before stay.
pub async fn drop_extensions_but(conn: &mut PgConnection, before: &[String]) -> Result<()> {
    for name in ["hstore", "pgcrypto"].into_iter().filter(|name| !before.iter().any(|b| b == name)) {
        sqlx::raw_sql(sqlx::AssertSqlSafe(format!("drop extension if exists {name}"))).execute(&mut *conn).await?;
    }
    Ok(())
}

pub async fn connect(url: &str) -> Result<PgConnection> {
    Ok(PgConnection::connect(url).await?)
}

pub async fn stored(conn: &mut PgConnection) -> Result<i64> {
    Ok(sqlx::query_scalar("select count(*) from apalis.jobs").fetch_one(conn).await?)
}

pub async fn analyze(conn: &mut PgConnection) -> Result<()> {
    sqlx::raw_sql("analyze apalis.jobs").execute(conn).await?;
    Ok(())
}

pub async fn unfinished(conn: &mut PgConnection) -> Result<bool> {
    Ok(sqlx::query_scalar("select exists (select from apalis.jobs where status <> 'Done')").fetch_one(conn).await?)
}

/// The listeners of the workers need a moment; nothing tells when they are there.
pub const LISTENING: Duration = Duration::from_millis(500);
