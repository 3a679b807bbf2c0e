//! `pinned`: the drain while somebody keeps a transaction open, so that no dead row can be removed. Queues on PostgreSQL slow down then.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use postcommit_channel::clock;
use tokio::task::JoinSet;
use tokio_postgres::Client;

use super::{Fits, Found, Kind};
use crate::bare::postgres::{self as bare, Filler, Worker};
use crate::failure::Failure;
use crate::load::{Load, POURED, Pourer};
use crate::report::{Bar, Chart, Finding, Series};
use crate::run::Bench;
use crate::running::{self, Running};

pub const SUITE: Kind = Kind {
    name: "pinned",
    about: "drains for 90 s under a steady feed while a REPEATABLE READ transaction stays open; six windows, the last against the first",
    bars: "P7 last window ÷ first ≥ 0.8",
    fits: Fits::Postgres,
    run: |bench| Box::pin(run(bench)),
};

const WINDOWS: u32 = 6;
const SPAN: Duration = Duration::from_secs(90);
/// The backlog is kept between these, at every scale: a shorter one would be gone between two looks.
const LOW: u64 = 30_000;
const HIGH: u64 = 60_000;
const BARE_WORKERS: usize = 2;
const LOOK: Duration = Duration::from_millis(10);

/// Rates window by window, and the smallest backlog seen.
struct Windows {
    rates: Vec<f64>,
    lowest: u64,
    each: Duration,
}

async fn run(bench: &Bench) -> Result<Found, Failure> {
    let mut ours = vec![];
    bench.progress.step("bare queue, for comparison");
    let bare = by_hand(bench).await?;
    for round in 1..=bench.rounds {
        bench.progress.round(round, bench.rounds);
        bench.progress.step("engine");
        ours.push(by_us(bench).await?);
    }
    let of = |name: &str, place: fn(&[f64]) -> Option<&f64>| {
        Series::rates(name, ours.iter().filter_map(|windows: &Windows| place(&windows.rates).copied()).collect())
    };
    let what = format!("drain beside a transaction open for {:.0} s, last window ÷ first", bench.span(SPAN).as_secs_f64());
    let mut finding =
        Finding::ratio("P7", what, of("last window", <[f64]>::last), of("first window", <[f64]>::first)).must(Bar::AtLeast(0.8));
    let lowest = ours.iter().map(|windows| windows.lowest).min().unwrap_or(0);
    if lowest < LOW {
        finding = finding.noting(format!("the feed did not keep up: the backlog fell to {lowest}"));
    }
    let mut lines: Vec<_> = ours.iter().enumerate().map(|(round, windows)| windows.line(&format!("engine, round {}", round + 1))).collect();
    lines.push(bare.line("bare SKIP LOCKED queue"));
    let chart = Chart { title: "drain beside a pinned transaction".into(), x: "seconds".into(), y: "deliveries/s".into(), lines };
    Ok(Found { findings: vec![finding], charts: vec![chart] })
}

impl Windows {
    fn line(&self, name: &str) -> (String, Vec<(f64, f64)>) {
        let point = |(place, rate): (usize, &f64)| (self.each.as_secs_f64() * (place + 1) as f64, *rate);
        (name.to_owned(), self.rates.iter().enumerate().map(point).collect())
    }
}

/// A transaction with a number and a snapshot, open until dropped.
async fn pin(bench: &Bench) -> Result<Client, Failure> {
    let client = bench.place.client().await?;
    client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT txid_current()").await?;
    Ok(client)
}

/// What fills the queue.
trait Source {
    /// [`POURED`] more.
    fn pour(&self) -> impl Future<Output = Result<(), Failure>> + Send;
}

impl Source for Pourer {
    async fn pour(&self) -> Result<(), Failure> {
        Pourer::pour(self, POURED).await
    }
}

impl Source for Filler {
    async fn pour(&self) -> Result<(), Failure> {
        self.fill(POURED).await
    }
}

/// What is in the queue: what was fed and is not done.
struct Level<F> {
    fed: AtomicU64,
    done: F,
}

impl<F: Fn() -> u64> Level<F> {
    fn full(done: F) -> Self {
        Self { fed: AtomicU64::new(HIGH), done }
    }

    fn backlog(&self) -> u64 {
        self.fed.load(Ordering::Relaxed).saturating_sub((self.done)())
    }

    /// Until it fails.
    async fn keep(&self, source: &impl Source) -> Failure {
        loop {
            if self.backlog() + POURED > HIGH {
                tokio::time::sleep(LOOK).await;
                continue;
            }
            if let Err(problem) = source.pour().await {
                return problem;
            }
            self.fed.fetch_add(POURED, Ordering::Relaxed);
        }
    }
}

async fn by_us(bench: &Bench) -> Result<Windows, Failure> {
    let (place, load) = (&bench.place, Load::captured());
    let store = running::ready(bench).await?;
    load.pour(place, HIGH).await?;
    place.settle().await?;
    let pourers = (Pourer::on(place.client().await?, &load).await?, Pourer::on(place.client().await?, &load).await?);
    let pinned = pin(bench).await?;
    let running = Running::start(bench, &store).await?;
    let level = Level::full(|| running.sent());
    let windows = tokio::select! {
        windows = watch(bench.span(SPAN), &level) => windows,
        problem = level.keep(&pourers.0) => return Err(problem),
        problem = level.keep(&pourers.1) => return Err(problem),
    };
    running.finish().await;
    drop(pinned);
    Ok(windows)
}

/// Counts what is finished, window by window, once the first backlog is gone and the feed has found its pace.
async fn watch<F: Fn() -> u64>(span: Duration, level: &Level<F>) -> Windows {
    let each = span / WINDOWS;
    tokio::time::sleep(each / 3).await;
    let (mut rates, mut lowest) = (vec![], u64::MAX);
    let (mut at, mut before) = (clock::monotonic(), (level.done)());
    for _ in 0..WINDOWS {
        let end = at + each;
        while clock::monotonic() < end {
            tokio::time::sleep(LOOK).await;
            lowest = lowest.min(level.backlog());
        }
        let (now, count) = (clock::monotonic(), (level.done)());
        rates.push((count - before) as f64 / now.duration_since(at).as_secs_f64());
        (at, before) = (now, count);
    }
    Windows { rates, lowest, each }
}

/// A third of the time is enough to see where it goes.
async fn by_hand(bench: &Bench) -> Result<Windows, Failure> {
    let place = &bench.place;
    place.postgres()?.clear().await?;
    bare::fresh(place).await?;
    bare::fill(place, HIGH).await?;
    place.settle().await?;
    let fillers = (Filler::on(place).await?, Filler::on(place).await?);
    let pinned = pin(bench).await?;
    let done = Arc::new(AtomicU64::new(0));
    let mut working = JoinSet::new();
    for _ in 0..BARE_WORKERS {
        working.spawn(work_on(Worker::on(place).await?, done.clone()));
    }
    let level = Level::full(|| done.load(Ordering::Relaxed));
    let windows = tokio::select! {
        windows = watch(bench.span(SPAN) / 3, &level) => windows,
        problem = level.keep(&fillers.0) => return Err(problem),
        problem = level.keep(&fillers.1) => return Err(problem),
        Some(problem) = working.join_next() => return Err(problem?),
    };
    drop(pinned);
    Ok(windows)
}

/// Until it fails or is dropped.
async fn work_on(worker: Worker, done: Arc<AtomicU64>) -> Failure {
    loop {
        match worker.work().await {
            Ok(settled) => done.fetch_add(settled, Ordering::Relaxed),
            Err(problem) => return problem,
        };
    }
}
