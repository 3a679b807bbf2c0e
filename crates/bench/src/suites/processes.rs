//! `processes`: whether worker processes add up, as long as the database is not the limit.

use std::time::Duration;

use postcommit_channel::clock;
use postcommit_channel::model::ProviderDraft;
use postcommit_engine::store::Store;

use super::{Fits, Found, Kind};
use crate::child::Server;
use crate::failure::Failure;
use crate::load::Load;
use crate::report::{Bar, Chart, Finding, Series};
use crate::run::Bench;
use crate::running;
use crate::series::rate;

pub const SUITE: Kind = Kind {
    name: "processes",
    about: "1, 2 and 4 `serve` processes on one PostgreSQL, each held by a slow provider to a sixth of what the database can do",
    bars: "P12 two and four processes, each against one ≥ 0.8",
    fits: Fits::Postgres,
    run: |bench| Box::pin(run(bench)),
};

const SLOW: &str = "bench.slow";
const SPAN: Duration = Duration::from_secs(10);
/// Before counting begins: every slot has been taken and given back.
const WARM_UP: Duration = Duration::from_secs(3);
const LIMIT_COUNT: u64 = 50_000;
/// A process is to reach this share of the limit, so that four stay below it.
const SHARE: f64 = 1.0 / 6.0;

async fn run(bench: &Bench) -> Result<Found, Failure> {
    let (mut limits, mut one, mut two, mut four) = (vec![], vec![], vec![], vec![]);
    let limit = limit(bench).await?;
    let pace = Pace::of(limit);
    limits.push(limit);
    for round in 1..=bench.rounds {
        bench.progress.round(round, bench.rounds);
        for (processes, rates) in [(1, &mut one), (2, &mut two), (4, &mut four)] {
            rates.push(together(bench, &pace, processes).await?);
        }
    }
    let each = |count: f64, rates: &[f64]| Series::rates("each process", rates.iter().map(|rate| rate / count).collect());
    let alone = || Series::rates("one alone", one.clone());
    let two_each = Finding::ratio("P12 two", "deliveries per process, two together ÷ one alone", each(2.0, &two), alone());
    let four_each = Finding::ratio("P12 four", "deliveries per process, four together ÷ one alone", each(4.0, &four), alone());
    let limit = Finding::figure("limit", "drain of one process without a slow provider", Series::rates("limit", limits));
    let middle = |rates: &[f64]| Series::rates("", rates.to_vec()).median;
    let measured: Vec<(f64, f64)> = [(1.0, middle(&one)), (2.0, middle(&two)), (4.0, middle(&four))].into();
    let linear = [1.0, 2.0, 4.0].map(|n| (n, n * middle(&one))).into();
    let lines = vec![("measured".into(), measured), ("linear".into(), linear)];
    let chart = Chart { title: "deliveries by processes".into(), x: "processes".into(), y: "deliveries/s".into(), lines };
    Ok(Found { findings: vec![two_each.must(Bar::AtLeast(0.8)), four_each.must(Bar::AtLeast(0.8)), limit], charts: vec![chart] })
}

/// What the database gives when nothing is slow.
async fn limit(bench: &Bench) -> Result<f64, Failure> {
    bench.progress.step("finding the limit");
    let (store, count) = (running::ready(bench).await?, bench.count(LIMIT_COUNT));
    Load::captured().pour(&bench.place, count).await?;
    bench.place.settle().await?;
    Ok(rate(count, running::drain(bench, &store, count).await?))
}

/// How slow a provider holds a process to its share.
struct Pace {
    rate: f64,
    provider: ProviderDraft,
}

impl Pace {
    fn of(limit: f64) -> Self {
        let (rate, mut provider) = (limit * SHARE, running::capture());
        let slow_ms = (f64::from(provider.concurrency) * 1000.0 / rate).round() as u64;
        provider.settings["fail_on"] = format!("slow={SLOW}").into();
        provider.settings["slow_ms"] = slow_ms.into();
        Self { rate, provider }
    }
}

/// Deliveries per second by so many processes.
async fn together(bench: &Bench, pace: &Pace, processes: u32) -> Result<f64, Failure> {
    bench.progress.step(format!("{processes} processes: filling"));
    let (store, span) = (bench.place.fresh().await?, bench.span(SPAN));
    running::provide(&store, &pace.provider).await?;
    let seconds = (span + WARM_UP).as_secs_f64() * 1.5;
    Load::captured().of_type(SLOW).pour(&bench.place, (pace.rate * f64::from(processes) * seconds) as u64).await?;
    bench.place.settle().await?;
    bench.progress.step(format!("{processes} processes: delivering"));
    let mut servers = vec![];
    for _ in 0..processes {
        servers.push(Server::start(bench).await?);
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
