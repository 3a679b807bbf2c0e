//! `sqlite`: the drain on SQLite, and how many durable enqueues share one commit.

use std::time::Duration;

use postcommit::Notification;
use postcommit_engine::clock;
use postcommit_engine::store::Store;
use tokio::task::JoinSet;

use super::{Fits, Found, Kind};
use crate::bench::Bench;
use crate::bench::bare;
use crate::bench::load::Load;
use crate::bench::place::Spot;
use crate::bench::report::{Bar, Finding, Series};
use crate::bench::running;
use crate::bench::series::rate;
use crate::output::{Exit, Failure};

pub const SUITE: Kind = Kind {
    name: "sqlite",
    about: "delivers a backlog of 50,000 from a SQLite file, against a bare drain; and enqueues durably with 64 clients, against 1",
    bars: "P11 drain ÷ bare ≥ 0.4; P11 group: 64 ÷ 1 ≥ 15",
    fits: Fits::Sqlite,
    run: |bench| Box::pin(run(bench)),
};

const CLIENTS: u64 = 64;

async fn run(bench: &Bench) -> Result<Found, Failure> {
    let count = bench.count(50_000);
    let (mut bare, mut ours, mut alone, mut together) = (vec![], vec![], vec![], vec![]);
    for round in 1..=bench.rounds {
        bench.progress.round(round, bench.rounds);
        bare.push(by_hand(bench, count).await?);
        ours.push(by_us(bench, count).await?);
        alone.push(enqueue(bench, 1, bench.count(1000)).await?);
        together.push(enqueue(bench, CLIENTS, bench.count(400)).await?);
    }
    let drain = Finding::ratio("P11 drain", format!("drain of {count} ÷ bare"), Series::rates("engine", ours), Series::rates("bare", bare));
    let what = format!("durable enqueues through the store, {CLIENTS} clients ÷ 1");
    let group = Finding::ratio("P11 group", what, Series::rates(format!("{CLIENTS} clients"), together), Series::rates("1 client", alone));
    Ok(Found { findings: vec![drain.must(Bar::AtLeast(0.4)), group.must(Bar::AtLeast(15.0))], charts: vec![] })
}

async fn by_hand(bench: &Bench, count: u64) -> Result<f64, Failure> {
    bench.progress.step("bare: filling and draining");
    drop(bench.place.fresh().await?);
    let Spot::Sqlite(file) = bench.place.spot() else { return Err(Failure::new(Exit::Usage, "this suite needs SQLite")) };
    let file = file.path();
    let drained = tokio::task::spawn_blocking(move || {
        bare::sqlite::fresh(&file)?;
        bare::sqlite::fill(&file, count)?;
        bare::sqlite::checkpoint(&file)?;
        bare::sqlite::drain(&file)
    });
    let (settled, took) = drained.await??;
    if settled == count {
        Ok(rate(count, took))
    } else {
        Err(Failure::new(Exit::Failed, format!("the bare drain settled {settled} of {count}")))
    }
}

async fn by_us(bench: &Bench, count: u64) -> Result<f64, Failure> {
    bench.progress.step("engine: filling");
    let store = running::ready(bench).await?;
    Load::captured().feed(&bench.place, count).await?;
    bench.place.settle().await?;
    bench.progress.step("engine: draining");
    Ok(rate(count, running::drain(bench, &store, count).await?))
}

/// So many clients, each waiting for one commit before it asks for the next; how many per second they get in all.
async fn enqueue(bench: &Bench, clients: u64, each: u64) -> Result<f64, Failure> {
    bench.progress.step(format!("enqueueing, {clients} clients"));
    let store = bench.place.fresh().await?;
    let mut ready = Vec::new();
    for _ in 0..clients {
        ready.push(notes(&Load::captured(), each)?);
    }
    let started = clock::monotonic();
    let mut working = JoinSet::new();
    for notes in ready {
        working.spawn(enqueue_all(store.clone(), notes));
    }
    while let Some(done) = working.join_next().await {
        done??;
    }
    let took: Duration = clock::monotonic().duration_since(started);
    Ok(rate(clients * each, took))
}

async fn enqueue_all(store: Store, notes: Vec<Notification>) -> Result<(), Failure> {
    for note in notes {
        store.enqueue(&note).await.map_err(|e| Failure::new(Exit::Failed, e.to_string()))?;
    }
    Ok(())
}

fn notes(load: &Load, count: u64) -> Result<Vec<Notification>, Failure> {
    serde_json::from_str(&load.batch(0, count)).map_err(|e| Failure::new(Exit::Failed, e.to_string()))
}
