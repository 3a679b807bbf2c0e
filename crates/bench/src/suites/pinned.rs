//! `pinned`: the drain while another session keeps a transaction open, so that VACUUM cannot remove dead rows. Many
//! queues on PostgreSQL become slow in this case.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use postcommit_channel::clock;
use tokio::task::JoinSet;
use tokio_postgres::Client;

use super::{Fits, SuiteFindings, SuiteSpec};
use crate::bare::postgres::{self as bare, Filler, Worker};
use crate::dispatcher::{self, RunningDispatcher};
use crate::failure::Failure;
use crate::load::{DirectInserter, Load, ROWS_PER_COMMIT};
use crate::report::{Chart, Finding, Series, Threshold};
use crate::run::Bench;

pub const SUITE: SuiteSpec = SuiteSpec {
    name: "pinned",
    about: "delivers for 90 s while new notifications keep coming and a REPEATABLE READ transaction stays open; \
        compares the last of six windows with the first",
    bars: "P7 last window ÷ first ≥ 0.8",
    fits: Fits::Postgres,
    run: |bench| Box::pin(run(bench)),
};

const WINDOWS: u32 = 6;
const SPAN: Duration = Duration::from_secs(90);
/// The backlog is kept between these limits at every scale. A shorter one could be drained between two reads.
const LOW: u64 = 30_000;
const HIGH: u64 = 60_000;
const BARE_WORKERS: usize = 2;
const LOOK: Duration = Duration::from_millis(10);

/// The rates in the windows, and the smallest backlog seen.
struct Windows {
    rates: Vec<f64>,
    lowest: u64,
    each: Duration,
}

async fn run(bench: &Bench) -> Result<SuiteFindings, Failure> {
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
    let what =
        format!("drain during a transaction open for {:.0} s, last window ÷ first", bench.span(SPAN).as_secs_f64());
    let mut finding = Finding::ratio("P7", what, of("last window", <[f64]>::last), of("first window", <[f64]>::first))
        .must(Threshold::AtLeast(0.8));
    let lowest = ours.iter().map(|windows| windows.lowest).min().unwrap_or(0);
    if lowest < LOW {
        finding = finding.noting(format!("too few notifications were enqueued in time: the backlog fell to {lowest}"));
    }
    let mut lines: Vec<_> =
        ours.iter().enumerate().map(|(round, windows)| windows.line(&format!("engine, round {}", round + 1))).collect();
    lines.push(bare.line("bare SKIP LOCKED queue"));
    let chart = Chart {
        title: "drain during a pinned transaction".into(),
        x: "seconds".into(),
        y: "deliveries/s".into(),
        lines,
    };
    Ok(SuiteFindings { findings: vec![finding], charts: vec![chart] })
}

impl Windows {
    fn line(&self, name: &str) -> (String, Vec<(f64, f64)>) {
        let point = |(place, rate): (usize, &f64)| (self.each.as_secs_f64() * (place + 1) as f64, *rate);
        (name.to_owned(), self.rates.iter().enumerate().map(point).collect())
    }
}

/// Opens a transaction with an id and a snapshot. It stays open until the client is dropped.
async fn pin(bench: &Bench) -> Result<Client, Failure> {
    let client = bench.workspace.client().await?;
    client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT txid_current()").await?;
    Ok(client)
}

/// A side of the comparison that can fill its queue.
trait Feed {
    /// Adds [`ROWS_PER_COMMIT`] rows.
    fn insert_rows(&self) -> impl Future<Output = Result<(), Failure>> + Send;
}

impl Feed for DirectInserter {
    async fn insert_rows(&self) -> Result<(), Failure> {
        DirectInserter::insert_rows(self, ROWS_PER_COMMIT).await
    }
}

impl Feed for Filler {
    async fn insert_rows(&self) -> Result<(), Failure> {
        self.fill(ROWS_PER_COMMIT).await
    }
}

/// The backlog: rows that were fed and are not finished.
struct Backlog<F> {
    fed: AtomicU64,
    done: F,
}

impl<F: Fn() -> u64> Backlog<F> {
    fn full(done: F) -> Self {
        Self { fed: AtomicU64::new(HIGH), done }
    }

    fn backlog(&self) -> u64 {
        self.fed.load(Ordering::Relaxed).saturating_sub((self.done)())
    }

    /// Adds rows whenever the backlog has room for them below [`HIGH`]. Returns only if that fails.
    async fn keep(&self, source: &impl Feed) -> Failure {
        loop {
            if self.backlog() + ROWS_PER_COMMIT > HIGH {
                tokio::time::sleep(LOOK).await;
                continue;
            }
            if let Err(problem) = source.insert_rows().await {
                return problem;
            }
            self.fed.fetch_add(ROWS_PER_COMMIT, Ordering::Relaxed);
        }
    }
}

async fn by_us(bench: &Bench) -> Result<Windows, Failure> {
    let (workspace, load) = (&bench.workspace, Load::captured());
    let store = dispatcher::warm_store(bench).await?;
    load.insert_rows(workspace, HIGH).await?;
    workspace.quiesce().await?;
    let inserters = (
        DirectInserter::on(workspace.client().await?, &load).await?,
        DirectInserter::on(workspace.client().await?, &load).await?,
    );
    let pinned = pin(bench).await?;
    let running = RunningDispatcher::start(bench, &store).await?;
    let level = Backlog::full(|| running.sent());
    let windows = tokio::select! {
        windows = watch(bench.span(SPAN), &level) => windows,
        problem = level.keep(&inserters.0) => return Err(problem),
        problem = level.keep(&inserters.1) => return Err(problem),
    };
    running.finish().await;
    drop(pinned);
    Ok(windows)
}

/// Counts finished rows window by window, after the first backlog is drained and the feed is steady.
async fn watch<F: Fn() -> u64>(span: Duration, level: &Backlog<F>) -> Windows {
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

/// Measures the bare queue for a third of the time, which is enough to see the trend.
async fn by_hand(bench: &Bench) -> Result<Windows, Failure> {
    let workspace = &bench.workspace;
    workspace.postgres()?.clear().await?;
    bare::fresh(workspace).await?;
    bare::fill(workspace, HIGH).await?;
    workspace.quiesce().await?;
    let fillers = (Filler::on(workspace).await?, Filler::on(workspace).await?);
    let pinned = pin(bench).await?;
    let done = Arc::new(AtomicU64::new(0));
    let mut working = JoinSet::new();
    for _ in 0..BARE_WORKERS {
        working.spawn(work_on(Worker::on(workspace).await?, done.clone()));
    }
    let level = Backlog::full(|| done.load(Ordering::Relaxed));
    let windows = tokio::select! {
        windows = watch(bench.span(SPAN) / 3, &level) => windows,
        problem = level.keep(&fillers.0) => return Err(problem),
        problem = level.keep(&fillers.1) => return Err(problem),
        Some(problem) = working.join_next() => return Err(problem?),
    };
    drop(pinned);
    Ok(windows)
}

/// Claims and settles batches until an error occurs or the task is dropped.
async fn work_on(worker: Worker, done: Arc<AtomicU64>) -> Failure {
    loop {
        match worker.work().await {
            Ok(settled) => done.fetch_add(settled, Ordering::Relaxed),
            Err(problem) => return problem,
        };
    }
}
