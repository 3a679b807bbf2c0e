//! `drain`: how fast a backlog is delivered, from the first claim until the last outcome is in the ledger.

use postcommit_engine::store::Store;

use super::{Fits, Found, Kind};
use crate::bare;
use crate::failure::Failure;
use crate::load::Load;
use crate::peers::{Comparison, Figures};
use crate::profile::{Pace, pace};
use crate::report::{Bar, Finding, Series};
use crate::run::Bench;
use crate::running;

pub const SUITE: Kind = Kind {
    name: "drain",
    about: "delivers a backlog of 200,000 through the engine and a capture driver that records nothing, against a bare queue-and-ledger drain in plain SQL",
    bars: "P1 ÷ bare, 2 workers ≥ 0.6; P2 ÷ best peer ≥ 2; trips ≤ 12 per 1,000; wal ÷ bare ≤ 1.3",
    fits: Fits::Postgres,
    run: |bench| Box::pin(run(bench)),
};

/// One drain.
struct Drained {
    pace: Pace,
    /// Bytes of write-ahead log for each delivery.
    wal: f64,
    /// Exchanges with the database for 1,000 deliveries, where the engine counts them.
    trips: Option<f64>,
}

/// What is known about a drain that is too slow.
const KNOWN: &str = "The bare drain reads no payload and writes less of everything: inside the server settle takes 10 µs a row against 5, and reading the notification 5 \
    against none. Brought something and stayed: sending from the notification's own row, plans made once. Brought too \
    little for what it would cost: finding rows by their place on the page (1 µs), fewer columns for what was simply sent (1.5 µs)";

/// And about one that is, beside others'.
const KNOWN_BESIDE: &str =
    "The profile of P1 is ours here, too. No peer keeps a row for every attempt, and graphile-worker deletes what is done";

async fn run(bench: &Bench) -> Result<Found, Failure> {
    let count = bench.count(200_000);
    // Peers get fewer, and so do we beside them: some take long.
    let count_beside = bench.count(50_000);
    let (mut one, mut two, mut ours, mut ours_beside, mut peers) = (vec![], vec![], vec![], vec![], Figures::default());
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
    let paces = |drains: &[Drained]| drains.iter().map(|d| d.pace).collect::<Vec<_>>();
    let rates = |name: &str, drains: &[Drained]| Series::rates(name, drains.iter().map(|d| d.pace.rate).collect());
    let wal = |name: &str, drains: &[Drained]| Series::of(name, "bytes", drains.iter().map(|d| d.wal).collect());
    let what = format!("drain of {count}");
    let mut findings = vec![
        Finding::ratio("P1", format!("{what} ÷ bare, 2 workers"), rates("engine", &ours), rates("bare, 2 workers", &two))
            .must(Bar::AtLeast(0.6))
            .explained("a delivery", &paces(&ours), &paces(&two), KNOWN),
        Finding::ratio("bare-1", format!("{what} ÷ bare, 1 worker"), rates("engine", &ours), rates("bare, 1 worker", &one)),
        Finding::ratio("wal", "write-ahead log per delivery ÷ bare", wal("engine", &ours), wal("bare, 2 workers", &two))
            .must(Bar::AtMost(1.3)),
    ];
    let trips: Option<Vec<f64>> = ours.iter().map(|d| d.trips).collect();
    findings.extend(trips.map(|trips| {
        Finding::figure("trips", "round trips to the database per 1,000 deliveries", Series::of("engine", "trips", trips))
            .must(Bar::AtMost(12.0))
    }));
    let what = format!("drain of {count_beside} ÷ {{}}, 2 processes");
    let comparison = Comparison { id: "P2", what: &what, bar: Bar::AtLeast(2.0), missing: bench.peers.missing("drain") };
    let beside = comparison.of(&rates("engine", &ours_beside), peers.series("/s").into_iter().rev().collect());
    let explain = |finding: Finding| match finding {
        missed if missed.held == Some(false) && missed.note.is_none() => missed.noting(KNOWN_BESIDE),
        other => other,
    };
    findings.extend(beside.into_iter().map(explain));
    Ok(Found { findings, charts: vec![] })
}

async fn by_hand(bench: &Bench, count: u64, workers: usize) -> Result<Drained, Failure> {
    let place = &bench.place;
    bench.progress.step(format!("bare, {workers} workers: filling"));
    place.postgres()?.clear().await?;
    bare::postgres::fresh(place).await?;
    bare::postgres::fill(place, count).await?;
    place.settle().await?;
    bench.progress.step(format!("bare, {workers} workers: draining"));
    let client = place.client().await?;
    let before = bare::postgres::wal(&client).await?;
    let pace = pace(count, bare::postgres::drain(place, count, workers)).await?;
    let wal = bare::postgres::wal(&client).await? - before;
    Ok(Drained { pace, wal: wal / count as f64, trips: None })
}

async fn by_us(bench: &Bench, count: u64) -> Result<Drained, Failure> {
    let place = &bench.place;
    bench.progress.step("engine: filling");
    bare::postgres::fresh(place).await?;
    let store = running::ready(bench).await?;
    Load::captured().feed(place, count).await?;
    place.settle().await?;
    bench.progress.step("engine: draining");
    let client = place.client().await?;
    let (before, trips_before) = (bare::postgres::wal(&client).await?, trips(&store));
    let pace = pace(count, running::drain(bench, &store, count)).await?;
    let wal = bare::postgres::wal(&client).await? - before;
    let trips = trips(&store).zip(trips_before).map(|(after, before)| (after - before) as f64 * 1000.0 / count as f64);
    Ok(Drained { pace, wal: wal / count as f64, trips })
}

/// Exchanges with the database so far, preparing statements apart: that happens once.
fn trips(store: &Store) -> Option<u64> {
    let trips = store.db().trips();
    Some(trips.trips - trips.prepared)
}
