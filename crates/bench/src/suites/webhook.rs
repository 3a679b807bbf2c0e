//! `webhook`: signed webhooks from the queue to a receiver, against a bare client with the same concurrency to the same receiver.

use super::{Fits, Found, Kind};
use crate::bare;
use crate::child::Sink;
use crate::failure::Failure;
use crate::load::Load;
use crate::profile::{Pace, pace};
use crate::report::{Bar, Finding, Series};
use crate::run::Bench;
use crate::running;

pub const SUITE: Kind = Kind {
    name: "webhook",
    about: "sends 20,000 signed webhooks to a sink in a process of its own, 64 at once, against a bare HTTP client with 64 connections",
    bars: "P10 ÷ bare client ≥ 0.7",
    fits: Fits::Both,
    run: |bench| Box::pin(run(bench)),
};

const CONCURRENCY: u64 = 64;

/// What is known about webhooks that are too slow.
const KNOWN: &str = "On two cores with the database and the receiver beside it, what the bar allows is used up by those two alone. Brought something and stayed: connections \
    driven by the call on them, as many kept as are in use, a slot that takes the next delivery itself. Brought nothing: smaller futures, other batches";

async fn run(bench: &Bench) -> Result<Found, Failure> {
    let count = bench.count(20_000);
    let sink = Sink::start().await?;
    let (mut bare, mut ours) = (vec![], vec![]);
    for round in 1..=bench.rounds {
        bench.progress.round(round, bench.rounds);
        bench.progress.step("bare client");
        bench.place.settle().await?;
        bare.push(pace(count, bare::webhook::post(sink.port, count, CONCURRENCY)).await?);
        ours.push(by_us(bench, sink.port, count).await?);
    }
    let what = format!("{count} signed webhooks, {CONCURRENCY} at once ÷ bare client");
    let finding = Finding::ratio("P10", what, Series::paces("engine", &ours), Series::paces("bare client", &bare));
    Ok(Found { findings: vec![finding.must(Bar::AtLeast(0.7)).explained("a webhook", &ours, &bare, KNOWN)], charts: vec![] })
}

async fn by_us(bench: &Bench, port: u16, count: u64) -> Result<Pace, Failure> {
    bench.progress.step("engine: filling");
    let load = || Load::to("webhook", &format!("http://127.0.0.1:{port}/hook"));
    let store = bench.place.fresh().await?;
    running::provide(&store, &running::webhook(&bench.place, CONCURRENCY)?).await?;
    running::warm_up(bench, &store, &load()).await?;
    load().feed(&bench.place, count).await?;
    bench.place.settle().await?;
    bench.progress.step("engine: sending");
    pace(count, running::drain(bench, &store, count)).await
}
