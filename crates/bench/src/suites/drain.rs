//! `drain`: the rate at which a backlog is delivered, from the first claim until the last outcome is in the ledger.

use postcommit_engine::store::Store;

use super::{Fits, SuiteFindings, SuiteSpec};
use crate::bare;
use crate::dispatcher;
use crate::failure::Failure;
use crate::load::Load;
use crate::peers::{Comparison, PeerFigures};
use crate::profile::{MeasuredRate, measure_rate};
use crate::report::{Finding, Series, Threshold};
use crate::run::Bench;

pub const SUITE: SuiteSpec = SuiteSpec {
    name: "drain",
    about: "delivers a backlog of 200,000 through the engine and a capture driver that records nothing, against a \
        bare queue-and-ledger drain in plain SQL",
    bars: "P1 ÷ bare, 2 workers ≥ 0.6; P2 ÷ best peer ≥ 2; trips ≤ 12 per 1,000; wal ÷ bare ≤ 1.3",
    fits: Fits::Postgres,
    run: |bench| Box::pin(run(bench)),
};

/// The result of one drain.
struct Drained {
    measured: MeasuredRate,
    /// Bytes of write-ahead log per delivery.
    wal: f64,
    /// Round trips to the database per 1,000 deliveries. `None` for the bare drain.
    trips: Option<f64>,
}

/// The known reasons why P1 (engine ÷ bare) may miss its limit, for the report.
const KNOWN: &str = "\
    The bare drain reads no payload and writes less of everything: inside the server, settle takes 10 µs per row \
    against 5 µs, and reading the notification takes 5 µs against none. Kept: sending from the notification's own row, \
    plans made once. Tried, not worth its cost: finding rows by their place on the page (1 µs), fewer columns for \
    deliveries without errors (1.5 µs)";

/// The known reasons why P2 (engine ÷ best peer) may miss its limit, for the report.
const KNOWN_BESIDE: &str = "\
    The profile is the one of P1. No peer keeps a row for every attempt, and graphile-worker deletes finished jobs";

async fn run(bench: &Bench) -> Result<SuiteFindings, Failure> {
    let count = bench.count(200_000);
    // The comparison with peers uses fewer notifications on both sides, because some peers are slow.
    let count_beside = bench.count(50_000);
    let (mut one, mut two, mut ours, mut ours_beside, mut peers) =
        (vec![], vec![], vec![], vec![], PeerFigures::default());
    for round in 1..=bench.rounds {
        bench.progress.round(round, bench.rounds);
        one.push(by_hand(bench, count, 1).await?);
        two.push(by_hand(bench, count, 2).await?);
        ours.push(by_us(bench, count).await?);
        if !bench.peers.runners.is_empty() {
            ours_beside.push(by_us(bench, count_beside).await?);
        }
        for runner in &bench.peers.runners {
            peers.add(runner, runner.drain(bench, count_beside, 2).await);
        }
    }
    let measured_rates = |drains: &[Drained]| drains.iter().map(|d| d.measured).collect::<Vec<_>>();
    let rates = |name: &str, drains: &[Drained]| Series::rates(name, drains.iter().map(|d| d.measured.rate).collect());
    let wal = |name: &str, drains: &[Drained]| Series::of(name, "bytes", drains.iter().map(|d| d.wal).collect());
    let what = format!("drain of {count}");
    let mut findings = vec![
        Finding::ratio(
            "P1",
            format!("{what} ÷ bare, 2 workers"),
            rates("engine", &ours),
            rates("bare, 2 workers", &two),
        )
        .must(Threshold::AtLeast(0.6))
        .explained("a delivery", &measured_rates(&ours), &measured_rates(&two), KNOWN),
        Finding::ratio(
            "bare-1",
            format!("{what} ÷ bare, 1 worker"),
            rates("engine", &ours),
            rates("bare, 1 worker", &one),
        ),
        Finding::ratio(
            "wal",
            "write-ahead log per delivery ÷ bare",
            wal("engine", &ours),
            wal("bare, 2 workers", &two),
        )
        .must(Threshold::AtMost(1.3)),
    ];
    let trips: Option<Vec<f64>> = ours.iter().map(|d| d.trips).collect();
    findings.extend(trips.map(|trips| {
        Finding::figure(
            "trips",
            "round trips to the database per 1,000 deliveries",
            Series::of("engine", "trips", trips),
        )
        .must(Threshold::AtMost(12.0))
    }));
    let what = format!("drain of {count_beside} ÷ {{}}, 2 processes");
    let comparison =
        Comparison { id: "P2", what: &what, bar: Threshold::AtLeast(2.0), missing: bench.peers.missing("drain") };
    let beside = comparison.of(&rates("engine", &ours_beside), peers.series("/s").into_iter().rev().collect());
    let explain = |finding: Finding| match finding {
        missed if missed.held == Some(false) && missed.note.is_none() => missed.noting(KNOWN_BESIDE),
        other => other,
    };
    findings.extend(beside.into_iter().map(explain));
    Ok(SuiteFindings { findings, charts: vec![] })
}

async fn by_hand(bench: &Bench, count: u64, workers: usize) -> Result<Drained, Failure> {
    let workspace = &bench.workspace;
    bench.progress.step(format!("bare, {workers} workers: filling"));
    workspace.postgres()?.clear().await?;
    bare::postgres::fresh(workspace).await?;
    bare::postgres::fill(workspace, count).await?;
    workspace.quiesce().await?;
    bench.progress.step(format!("bare, {workers} workers: draining"));
    let client = workspace.client().await?;
    let before = bare::postgres::wal(&client).await?;
    let measured = measure_rate(count, bare::postgres::drain(workspace, count, workers)).await?;
    let wal = bare::postgres::wal(&client).await? - before;
    Ok(Drained { measured, wal: wal / count as f64, trips: None })
}

async fn by_us(bench: &Bench, count: u64) -> Result<Drained, Failure> {
    let workspace = &bench.workspace;
    bench.progress.step("engine: filling");
    bare::postgres::fresh(workspace).await?;
    let store = dispatcher::warm_store(bench).await?;
    Load::captured().feed(workspace, count).await?;
    workspace.quiesce().await?;
    bench.progress.step("engine: draining");
    let client = workspace.client().await?;
    let (before, trips_before) = (bare::postgres::wal(&client).await?, trips(&store));
    let measured = measure_rate(count, dispatcher::drain(bench, &store, count)).await?;
    let wal = bare::postgres::wal(&client).await? - before;
    let trips = trips(&store).zip(trips_before).map(|(after, before)| (after - before) as f64 * 1000.0 / count as f64);
    Ok(Drained { measured, wal: wal / count as f64, trips })
}

/// Round trips to the database so far, without those that prepare a statement: each statement is prepared only once.
fn trips(store: &Store) -> Option<u64> {
    let trips = store.db().trips();
    Some(trips.trips - trips.prepared)
}
