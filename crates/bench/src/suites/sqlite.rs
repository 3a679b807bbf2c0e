//! `sqlite`: the drain on SQLite, and how many durable enqueues share one commit.

use postcommit::Notification;
use postcommit_channel::clock;
use postcommit_engine::store::Store;
use postcommit_server::output::Exit;
use tokio::task::JoinSet;

use super::{Fits, Found, Kind};
use crate::bare;
use crate::failure::Failure;
use crate::load::Load;
use crate::place::Spot;
use crate::profile::{Pace, pace};
use crate::report::{Bar, Finding, Series};
use crate::run::Bench;
use crate::running;

pub const SUITE: Kind = Kind {
    name: "sqlite",
    about: "delivers a backlog of 50,000 from a SQLite file, against a bare drain; and enqueues durably with 64 clients, against 1",
    bars: "P11 drain ÷ bare ≥ 0.4; P11 group: 64 ÷ 1 ≥ 15",
    fits: Fits::Sqlite,
    run: |bench| Box::pin(run(bench)),
};

const CLIENTS: u64 = 64;

/// What is known about a drain that is too slow.
const KNOWN_DRAIN: &str = "The one thread that writes is the limit: under perf settle takes 9 µs a delivery, claim 6, commits 2, and the bare drain 6 in all. Brought something and stayed: \
    statements looked up once for a batch, borrowed parameters, one clock reading for a batch, no look before a claim while there is work. Brought nothing: \
    SQLite's compile-time options, DELETE … RETURNING, UPDATE … FROM";
/// And about enqueues that share too little.
const KNOWN_GROUP: &str = "With 64 clients the writing thread has no time left: an enqueue takes 18 to 20 µs of it for its rows and 14 to 20 for its share of the commit, most of that \
    writing pages to the log. Brought something and stayed: no trigger for a new key, joining a transaction that runs, no savepoints. Brought nothing: waiting for the last crowd";

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
    let drain =
        Finding::ratio("P11 drain", format!("drain of {count} ÷ bare"), Series::paces("engine", &ours), Series::paces("bare", &bare))
            .must(Bar::AtLeast(0.4))
            .explained("a delivery", &ours, &bare, KNOWN_DRAIN);
    let what = format!("durable enqueues through the store, {CLIENTS} clients ÷ 1");
    let group =
        Finding::ratio("P11 group", what, Series::paces(format!("{CLIENTS} clients"), &together), Series::paces("1 client", &alone))
            .must(Bar::AtLeast(15.0))
            .explained("an enqueue", &together, &alone, KNOWN_GROUP);
    Ok(Found { findings: vec![drain, group], charts: vec![] })
}

async fn by_hand(bench: &Bench, count: u64) -> Result<Pace, Failure> {
    bench.progress.step("bare: filling and draining");
    drop(bench.place.fresh().await?);
    let Spot::Sqlite(file) = bench.place.spot() else { return Err(Failure::new(Exit::Usage, "this suite needs SQLite")) };
    let file = file.path();
    let filled = file.clone();
    let fill = tokio::task::spawn_blocking(move || {
        bare::sqlite::fresh(&filled)?;
        bare::sqlite::fill(&filled, count)?;
        bare::sqlite::checkpoint(&filled)
    });
    fill.await??;
    let drain = async {
        let (settled, took) = tokio::task::spawn_blocking(move || bare::sqlite::drain(&file)).await??;
        if settled == count { Ok(took) } else { Err(Failure::new(Exit::Failed, format!("the bare drain settled {settled} of {count}"))) }
    };
    pace(count, drain).await
}

async fn by_us(bench: &Bench, count: u64) -> Result<Pace, Failure> {
    bench.progress.step("engine: filling");
    let store = running::ready(bench).await?;
    Load::captured().feed(&bench.place, count).await?;
    bench.place.settle().await?;
    bench.progress.step("engine: draining");
    pace(count, running::drain(bench, &store, count)).await
}

/// So many clients, each waiting for one commit before it asks for the next; how many per second they get in all.
async fn enqueue(bench: &Bench, clients: u64, each: u64) -> Result<Pace, Failure> {
    bench.progress.step(format!("enqueueing, {clients} clients"));
    let store = bench.place.fresh().await?;
    let mut ready = Vec::new();
    for _ in 0..clients {
        ready.push(notes(&Load::captured(), each)?);
    }
    let enqueueing = async {
        let started = clock::monotonic();
        let mut working = JoinSet::new();
        for notes in ready {
            working.spawn(enqueue_all(store.clone(), notes));
        }
        while let Some(done) = working.join_next().await {
            done??;
        }
        Ok(started.elapsed())
    };
    pace(clients * each, enqueueing).await
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
