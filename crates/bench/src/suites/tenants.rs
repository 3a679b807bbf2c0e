//! `tenants`: how the providers of other tenants affect a tenant's latency.

use std::time::Duration;

use postcommit_engine::store::Store;

use super::latency::{Latencies, sample};
use super::{Fits, SuiteFindings, SuiteSpec};
use crate::dispatcher::{self, RunningDispatcher};
use crate::failure::Failure;
use crate::load::Load;
use crate::report::{Finding, Series, Threshold};
use crate::run::Bench;
use crate::sink::Arrivals;

pub const SUITE: SuiteSpec = SuiteSpec {
    name: "tenants",
    about: "commits one notification at a time and measures the time until its webhook arrives, with 50 and with \
        40,000 providers of other tenants, of which one is held every 50 ms",
    bars: "P14 p50 and p99 with 40,000 ÷ with 50 ≤ 2",
    fits: Fits::Both,
    run: |bench| Box::pin(run(bench)),
};

const FEW: u64 = 50;
const MANY: u64 = 40_000;
const OF_ONE_TENANT: u64 = 50;
/// The number of providers that one statement creates.
const TOGETHER: u64 = 500;
/// How often a provider is held, as after a 429. Each hold changes a provider, which every process reads.
const HELD_EVERY: Duration = Duration::from_millis(50);

async fn run(bench: &Bench) -> Result<SuiteFindings, Failure> {
    let count = bench.count(MANY).max(2 * FEW);
    let (mut few, mut many) = (vec![], vec![]);
    for round in 1..=bench.rounds {
        bench.progress.round(round, bench.rounds);
        few.push(measure(bench, FEW).await?);
        many.push(measure(bench, count).await?);
    }
    let series =
        |name: &str, runs: &[Latencies], share| Series::of(name, "ms", runs.iter().map(|run| run.at(share)).collect());
    let finding = |(id, share): (&str, f64)| {
        let what = format!("commit → request, {}, with {count} providers of other tenants ÷ with {FEW}", &id[4..]);
        Finding::ratio(id, what, series("many", &many, share), series("few", &few, share)).must(Threshold::AtMost(2.0))
    };
    Ok(SuiteFindings { findings: [("P14 p50", 0.5), ("P14 p99", 0.99)].map(finding).into(), charts: vec![] })
}

async fn measure(bench: &Bench, others: u64) -> Result<Latencies, Failure> {
    let store = bench.workspace.fresh().await?;
    let mut arrivals = Arrivals::listen().await?;
    dispatcher::create_provider(&store, &dispatcher::webhook(&bench.workspace, 64)?).await?;
    dispatcher::create_provider(&store, &dispatcher::capture()).await?;
    bench.progress.step(format!("entering {others} providers"));
    create_providers(&store, others).await?;
    dispatcher::warm_up(bench, &store, &Load::to("webhook", &arrivals.bulk_url())).await?;
    bench.workspace.quiesce().await?;
    let lanes = lanes(&store).await?;
    let running = RunningDispatcher::start(bench, &store).await?;
    bench.progress.step("committing one at a time");
    let latencies = tokio::select! {
        latencies = sample(bench, &mut arrivals, &running, 0) => latencies?,
        problem = hold(&store, &lanes) => return Err(problem),
    };
    running.finish().await;
    Ok(latencies)
}

/// Creates copies of the capture provider, each in a tenant of its own.
async fn create_providers(store: &Store, count: u64) -> Result<(), Failure> {
    let numbers = |from: u64, to: u64| {
        format!("WITH RECURSIVE g (x) AS (SELECT {from} UNION ALL SELECT x + 1 FROM g WHERE x < {to})")
    };
    let tenants = count.div_ceil(OF_ONE_TENANT);
    let made = format!(
        "{}
         INSERT INTO postcommit.tenant (name, created_at)
         SELECT 'other-' || x, {{now}} FROM g ORDER BY x",
        numbers(0, tenants - 1)
    );
    store.db().execute_one(&made, vec![]).await?;
    let mut from = 0;
    while from < count {
        let to = count.min(from + TOGETHER);
        let columns = "channel, driver, settings, guarantee, policy, concurrency, timeout_ms";
        let copied = format!(
            "{}
             INSERT INTO postcommit.provider (tenant, name, {columns}, is_default, created_at, updated_at)
             SELECT t.id, 'other-' || g.x, {columns}, 1 = 0, {{now}}, {{now}}
             FROM g
             JOIN postcommit.tenant t ON t.name = 'other-' || (g.x / {OF_ONE_TENANT})
             CROSS JOIN postcommit.provider p
             WHERE p.tenant = 1 AND p.name = 'capture'",
            numbers(from, to - 1)
        );
        store.db().execute_one(&copied, vec![]).await?;
        from = to;
    }
    Ok(())
}

async fn lanes(store: &Store) -> Result<Vec<i32>, Failure> {
    let rows =
        store.db().query("SELECT id FROM postcommit.provider WHERE tenant <> 1 ORDER BY id LIMIT 1000", vec![]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect::<Result<_, _>>()?)
}

/// Holds the lanes one after the other, each for [`HELD_EVERY`], until an error occurs.
async fn hold(store: &Store, lanes: &[i32]) -> Failure {
    for lane in lanes.iter().cycle() {
        tokio::time::sleep(HELD_EVERY).await;
        if let Err(problem) = store.hold_lane(*lane, None, HELD_EVERY).await {
            return problem.into();
        }
    }
    std::future::pending().await
}
