//! The runner of apalis-postgres; the verbs are described in ../README.md.

mod drain;
mod info;
mod queue;

use std::{
    collections::HashMap,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection, PgPool};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
    time::{sleep, timeout},
};

const WARM_UP: u64 = 10;

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("apalis-postgres: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let verb = words.next().unwrap_or_default();
    let args = Args::parse(words)?;
    match verb.as_str() {
        "info" => println!("{}", info::info()),
        "drain" | "latency" | "enqueue" | "enqueue-batch" => println!("{}", measure(&verb, &args).await?),
        "work" => drain::work(&args).await?,
        _ => bail!("verbs: info, drain, latency, enqueue, enqueue-batch"),
    }
    Ok(())
}

/// Runs the verb on a fresh schema and drops it afterwards, also on failure, SIGINT and SIGTERM.
async fn measure(verb: &str, args: &Args) -> Result<Value> {
    let url = args.text("database")?;
    let mut conn = queue::connect(url).await?;
    queue::drop(&mut conn).await?;
    let extensions = queue::extensions(&mut conn).await?;
    let mut terminated = signal(SignalKind::terminate())?;
    let answer = tokio::select! {
        answer = on_fresh_schema(verb, args) => answer,
        _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
        _ = terminated.recv() => Err(anyhow::anyhow!("terminated")),
    };
    queue::drop(&mut conn).await?;
    queue::drop_extensions_but(&mut conn, &extensions).await?;
    answer
}

async fn on_fresh_schema(verb: &str, args: &Args) -> Result<Value> {
    let url = args.text("database")?;
    let mut conn = queue::connect(url).await?;
    let pool = PgPool::connect(url).await?;
    queue::install(&mut conn, &pool).await?;
    pool.close().await;
    match verb {
        "drain" => drain::drain(&mut conn, args).await,
        "latency" => latency(&mut conn, args).await,
        "enqueue" => enqueue(args).await,
        _ => {
            let (count, batch) = (args.number("count")?, args.number_or("batch", 1000)?);
            Ok(json!({ "count": count, "seconds": fill(&mut conn, count, batch).await? }))
        }
    }
}

/// Enqueues in batches and verifies; returns the seconds that the enqueueing took.
async fn fill(conn: &mut PgConnection, count: u64, batch: u64) -> Result<f64> {
    let started = Instant::now();
    for first in (0..count).step_by(batch as usize) {
        queue::push(conn, first..(first + batch).min(count)).await?;
    }
    let seconds = started.elapsed().as_secs_f64();
    let stored = queue::stored(conn).await?;
    ensure!(stored as u64 == count, "{stored} of {count} jobs were stored");
    Ok(seconds)
}

async fn enqueue(args: &Args) -> Result<Value> {
    let (url, count) = (args.text("database")?, args.number("count")?);
    let mut connections = Vec::new();
    for _ in 0..args.number("connections")? {
        connections.push(queue::connect(url).await?);
    }
    let next = Arc::new(AtomicU64::new(0));
    let mut running = tokio::task::JoinSet::new();
    let started = Instant::now();
    for mut conn in connections {
        let next = next.clone();
        running.spawn(async move {
            loop {
                let booking = next.fetch_add(1, Relaxed);
                if booking >= count {
                    return anyhow::Ok(());
                }
                queue::push(&mut conn, std::iter::once(booking)).await?;
            }
        });
    }
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    Ok(json!({ "count": count, "seconds": started.elapsed().as_secs_f64() }))
}

async fn latency(conn: &mut PgConnection, args: &Args) -> Result<Value> {
    let (count, pause) = (args.number("count")?, args.number("pause-ms")?);
    let (called, mut calls) = mpsc::unbounded_channel();
    let url = args.text("database")?.to_owned();
    let worker = tokio::spawn(async move {
        queue::work(&url, 1, 10, move |booking| {
            let _ = called.send((booking, Instant::now()));
        })
        .await
    });
    sleep(queue::LISTENING).await;
    let mut values = Vec::new();
    for i in 0..count + WARM_UP {
        // A little jitter, so that no rhythm of the database is hit every time.
        let jitter = 0.75 + (i * 37 % 100) as f64 / 200.0;
        sleep(Duration::from_secs_f64(pause as f64 / 1000.0 * jitter)).await;
        let mut tx = conn.begin().await?;
        queue::push(&mut tx, std::iter::once(i)).await?;
        let committing = Instant::now();
        tx.commit().await?;
        let called = timeout(Duration::from_secs(30), calls.recv()).await.context("no handler call within 30 s")?;
        let (booking, at) = called.context("the worker ended")?;
        ensure!(booking == i, "booking {booking} came when {i} was due");
        if i >= WARM_UP {
            values.push((at - committing).as_secs_f64() * 1000.0);
        }
    }
    worker.abort();
    let (p50, p99) = (percentile(&values, 0.5), percentile(&values, 0.99));
    Ok(json!({ "count": count, "p50_ms": p50, "p99_ms": p99, "values_ms": values }))
}

/// Nearest rank.
fn percentile(values: &[f64], p: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[(p * sorted.len() as f64).ceil() as usize - 1]
}

/// `--name value` pairs.
struct Args(HashMap<String, String>);

impl Args {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self> {
        let mut pairs = HashMap::new();
        while let Some(word) = words.next() {
            let name = word.strip_prefix("--").with_context(|| format!("{word} is no option"))?;
            pairs.insert(name.to_owned(), words.next().with_context(|| format!("{word} has no value"))?);
        }
        Ok(Self(pairs))
    }

    fn text(&self, name: &str) -> Result<&str> {
        Ok(self.0.get(name).with_context(|| format!("--{name} is missing"))?)
    }

    fn text_or<'a>(&'a self, name: &str, fallback: &'a str) -> &'a str {
        self.0.get(name).map_or(fallback, |value| value)
    }

    fn number(&self, name: &str) -> Result<u64> {
        let number = self.text(name)?.parse().ok().filter(|&n| n > 0);
        number.with_context(|| format!("--{name} must be a positive whole number"))
    }

    fn number_or(&self, name: &str, fallback: u64) -> Result<u64> {
        if self.0.contains_key(name) { self.number(name) } else { Ok(fallback) }
    }
}
