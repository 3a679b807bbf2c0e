//! `processes`: whether the rates of worker processes add up, while the database is not the limit.

use std::time::Duration;

use postcommit_channel::clock;
use postcommit_channel::model::ProviderDraft;
use postcommit_engine::store::Store;

use super::{Fits, SuiteFindings, SuiteSpec};
use crate::child::ServeProcess;
use crate::dispatcher;
use crate::failure::Failure;
use crate::load::Load;
use crate::report::{Chart, Finding, Series, Threshold};
use crate::run::Bench;
use crate::series::rate;

pub const SUITE: SuiteSpec = SuiteSpec {
    name: "processes",
    about: "runs 1, 2 and 4 `serve` processes on one PostgreSQL, each held by a slow provider to a sixth of what the \
        database can do",
    bars: "P12 two and four processes, each against one ≥ 0.8",
    fits: Fits::Postgres,
    run: |bench| Box::pin(run(bench)),
};

const SLOW: &str = "bench.slow";
const SPAN: Duration = Duration::from_secs(10);
/// The time before counting begins, in which every slot is used at least once.
const WARM_UP: Duration = Duration::from_secs(3);
const LIMIT_COUNT: u64 = 50_000;
/// The share of the limit that one process should reach, so that four stay below it.
const SHARE: f64 = 1.0 / 6.0;

async fn run(bench: &Bench) -> Result<SuiteFindings, Failure> {
    let (mut limits, mut one, mut two, mut four) = (vec![], vec![], vec![], vec![]);
    let limit = limit(bench).await?;
    let slow = SlowProvider::of(limit);
    limits.push(limit);
    for round in 1..=bench.rounds {
        bench.progress.round(round, bench.rounds);
        for (processes, rates) in [(1, &mut one), (2, &mut two), (4, &mut four)] {
            rates.push(together(bench, &slow, processes).await?);
        }
    }
    let each =
        |count: f64, rates: &[f64]| Series::rates("each process", rates.iter().map(|rate| rate / count).collect());
    let alone = || Series::rates("one alone", one.clone());
    let two_each =
        Finding::ratio("P12 two", "deliveries per process, two together ÷ one alone", each(2.0, &two), alone());
    let four_each =
        Finding::ratio("P12 four", "deliveries per process, four together ÷ one alone", each(4.0, &four), alone());
    let limit =
        Finding::figure("limit", "drain of one process without a slow provider", Series::rates("limit", limits));
    let middle = |rates: &[f64]| Series::rates("", rates.to_vec()).median;
    let measured: Vec<(f64, f64)> = [(1.0, middle(&one)), (2.0, middle(&two)), (4.0, middle(&four))].into();
    let linear = [1.0, 2.0, 4.0].map(|n| (n, n * middle(&one))).into();
    let lines = vec![("measured".into(), measured), ("linear".into(), linear)];
    let chart =
        Chart { title: "deliveries by processes".into(), x: "processes".into(), y: "deliveries/s".into(), lines };
    Ok(SuiteFindings {
        findings: vec![two_each.must(Threshold::AtLeast(0.8)), four_each.must(Threshold::AtLeast(0.8)), limit],
        charts: vec![chart],
    })
}

/// The rate of one process when no provider is slow.
async fn limit(bench: &Bench) -> Result<f64, Failure> {
    bench.progress.step("finding the limit");
    let (store, count) = (dispatcher::warm_store(bench).await?, bench.count(LIMIT_COUNT));
    Load::captured().insert_rows(&bench.workspace, count).await?;
    bench.workspace.quiesce().await?;
    Ok(rate(count, dispatcher::drain(bench, &store, count).await?))
}

/// A slow provider that holds a process to its share.
struct SlowProvider {
    rate: f64,
    provider: ProviderDraft,
}

impl SlowProvider {
    fn of(limit: f64) -> Self {
        let (rate, mut provider) = (limit * SHARE, dispatcher::capture());
        let slow_ms = (f64::from(provider.concurrency) * 1000.0 / rate).round() as u64;
        provider.settings["fail_on"] = format!("slow={SLOW}").into();
        provider.settings["slow_ms"] = slow_ms.into();
        Self { rate, provider }
    }
}

/// Deliveries per second by `processes` processes.
async fn together(bench: &Bench, slow: &SlowProvider, processes: u32) -> Result<f64, Failure> {
    bench.progress.step(format!("{processes} processes: filling"));
    let (store, span) = (bench.workspace.fresh().await?, bench.span(SPAN));
    dispatcher::create_provider(&store, &slow.provider).await?;
    let seconds = (span + WARM_UP).as_secs_f64() * 1.5;
    Load::captured()
        .of_type(SLOW)
        .insert_rows(&bench.workspace, (slow.rate * f64::from(processes) * seconds) as u64)
        .await?;
    bench.workspace.quiesce().await?;
    bench.progress.step(format!("{processes} processes: delivering"));
    let mut servers = vec![];
    for _ in 0..processes {
        servers.push(ServeProcess::start(bench).await?);
    }
    tokio::time::sleep(WARM_UP).await;
    let (from, before) = (clock::monotonic(), finished(&store).await?);
    tokio::time::sleep(span).await;
    let (to, after) = (clock::monotonic(), finished(&store).await?);
    for server in servers {
        server.stop().await?;
    }
    Ok((after - before) as f64 / to.duration_since(from).as_secs_f64())
}

async fn finished(store: &Store) -> Result<i64, Failure> {
    let rows = store.db().query("SELECT count(*) FROM postcommit.delivery_ledger", vec![]).await?;
    Ok(rows.first().map(|row| row.get(0)).transpose()?.unwrap_or(0))
}
