//! `pinned`: the drain while somebody keeps a transaction open, so that no dead row can be removed. Queues on PostgreSQL slow down then.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use postcommit_engine::clock;
use tokio::task::JoinSet;
use tokio_postgres::Client;

use super::{Fits, Found, Kind};
use crate::bench::Bench;
use crate::bench::bare::postgres::{self as bare, Worker};
use crate::bench::load::{BATCH, Feeder, Load};
use crate::bench::report::{Bar, Chart, Finding, Series};
use crate::bench::running::{self, Running};
use crate::output::Failure;

pub const SUITE: Kind = Kind {
    name: "pinned",
    about: "drains for 90 s under a steady feed while a REPEATABLE READ transaction stays open; six windows, the last against the first",
    bars: "P7 last window ÷ first ≥ 0.8",
    fits: Fits::Postgres,
    run: |bench| Box::pin(run(bench)),
};

const WINDOWS: u32 = 6;
const SPAN: Duration = Duration::from_secs(90);
/// The backlog is kept between these.
const LOW: u64 = 30_000;
const HIGH: u64 = 60_000;
const FEEDERS: usize = 2;
const BARE_WORKERS: usize = 2;

/// Rates window by window, and the smallest backlog seen.
struct Windows {
    rates: Vec<f64>,
    lowest: u64,
    each: Duration,
}

async fn run(bench: &Bench) -> Result<Found, Failure> {
    let (mut ours, mut bare) = (vec![], None);
    for round in 1..=bench.rounds {
        bench.progress.round(round, bench.rounds);
        if bare.is_none() {
            bare = Some(by_hand(bench).await?);
        }
        ours.push(by_us(bench).await?);
    }
    let of = |name: &str, place: fn(&[f64]) -> Option<&f64>| {
        Series::rates(name, ours.iter().filter_map(|windows: &Windows| place(&windows.rates).copied()).collect())
    };
    let what = format!("drain beside a transaction open for {:.0} s, last window ÷ first", bench.span(SPAN).as_secs_f64());
    let mut finding =
        Finding::ratio("P7", what, of("last window", <[f64]>::last), of("first window", <[f64]>::first)).must(Bar::AtLeast(0.8));
    let lowest = ours.iter().map(|windows| windows.lowest).min().unwrap_or(0);
    if lowest < low(bench) {
        finding = finding.noting(format!("the feed did not keep up: the backlog fell to {lowest}"));
    }
    let mut lines: Vec<_> = ours.iter().enumerate().map(|(round, windows)| windows.line(&format!("engine, round {}", round + 1))).collect();
    lines.extend(bare.map(|windows| windows.line("bare SKIP LOCKED queue")));
    let chart = Chart { title: "drain beside a pinned transaction".into(), x: "seconds".into(), y: "deliveries/s".into(), lines };
    Ok(Found { findings: vec![finding], charts: vec![chart] })
}

impl Windows {
    fn line(&self, name: &str) -> (String, Vec<(f64, f64)>) {
        let point = |(place, rate): (usize, &f64)| (self.each.as_secs_f64() * (place + 1) as f64, *rate);
        (name.to_owned(), self.rates.iter().enumerate().map(point).collect())
    }
}

fn low(bench: &Bench) -> u64 {
    bench.count(LOW)
}

fn high(bench: &Bench) -> u64 {
    bench.count(HIGH).max(2 * BATCH)
}

/// A transaction with a number and a snapshot, open until dropped.
async fn pin(bench: &Bench) -> Result<Client, Failure> {
    let client = bench.place.client().await?;
    client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT txid_current()").await?;
    Ok(client)
}

async fn by_us(bench: &Bench) -> Result<Windows, Failure> {
    bench.progress.step("engine");
    let store = running::ready(bench).await?;
    Load::captured().feed(&bench.place, high(bench)).await?;
    bench.place.settle().await?;
    let pinned = pin(bench).await?;
    let running = Running::start(bench, &store).await?;
    let fed = Arc::new(AtomicU64::new(high(bench)));
    let mut feeding = JoinSet::new();
    for _ in 0..FEEDERS {
        let (mut feeder, tally, fed, high) = (Feeder::on(bench.place.client().await?).await?, running.tally(), fed.clone(), high(bench));
        feeding.spawn(async move {
            let (load, mut from) = (Load::captured(), 0);
            loop {
                if fed.load(Ordering::Relaxed) - tally.sent.load(Ordering::Relaxed) > high {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    continue;
                }
                if let Err(problem) = feeder.enqueue(&load.batch(from, BATCH)).await {
                    return problem;
                }
                from += BATCH;
                fed.fetch_add(BATCH, Ordering::Relaxed);
            }
        });
    }
    let tally = running.tally();
    let watching = watch(bench.span(SPAN) / WINDOWS, || tally.sent.load(Ordering::Relaxed), || fed.load(Ordering::Relaxed));
    let windows = tokio::select! {
        windows = watching => windows,
        Some(problem) = feeding.join_next() => return Err(problem?),
    };
    drop(feeding);
    running.finish().await;
    drop(pinned);
    Ok(windows)
}

/// Counts what is finished, window by window.
async fn watch(each: Duration, done: impl Fn() -> u64, fed: impl Fn() -> u64) -> Windows {
    let (mut rates, mut lowest) = (vec![], u64::MAX);
    let (mut at, mut before) = (clock::monotonic(), done());
    for _ in 0..WINDOWS {
        let end = at + each;
        while clock::monotonic() < end {
            tokio::time::sleep(Duration::from_millis(10)).await;
            lowest = lowest.min(fed().saturating_sub(done()));
        }
        let (now, count) = (clock::monotonic(), done());
        rates.push((count - before) as f64 / now.duration_since(at).as_secs_f64());
        (at, before) = (now, count);
    }
    Windows { rates, lowest, each }
}

/// A third of the time is enough to see where it goes.
async fn by_hand(bench: &Bench) -> Result<Windows, Failure> {
    bench.progress.step("bare queue, for comparison");
    bench.place.postgres()?.clear().await?;
    bare::fresh(&bench.place).await?;
    bare::fill(&bench.place, high(bench)).await?;
    bench.place.settle().await?;
    let pinned = pin(bench).await?;
    let (fed, done, over) = (AtomicU64::new(high(bench)), Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let mut working = JoinSet::new();
    for _ in 0..BARE_WORKERS {
        let (worker, done, over) = (Worker::on(&bench.place).await?, done.clone(), over.clone());
        working.spawn(async move {
            while !over.load(Ordering::Relaxed) {
                done.fetch_add(worker.work().await?, Ordering::Relaxed);
            }
            Ok::<(), Failure>(())
        });
    }
    let feeding = async {
        loop {
            if fed.load(Ordering::Relaxed) - done.load(Ordering::Relaxed) > high(bench) {
                tokio::time::sleep(Duration::from_millis(5)).await;
                continue;
            }
            if let Err(problem) = bare::fill(&bench.place, BATCH).await {
                return problem;
            }
            fed.fetch_add(BATCH, Ordering::Relaxed);
        }
    };
    let windows = tokio::select! {
        windows = watch(bench.span(SPAN) / 3 / WINDOWS, || done.load(Ordering::Relaxed), || fed.load(Ordering::Relaxed)) => windows,
        problem = feeding => return Err(problem),
    };
    over.store(true, Ordering::Relaxed);
    while let Some(worked) = working.join_next().await {
        worked??;
    }
    drop(pinned);
    Ok(windows)
}
