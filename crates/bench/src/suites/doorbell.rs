//! `doorbell`: what waking a dispatcher costs those who commit. NOTIFY takes a lock that all commits share; ours is rung only when somebody sleeps.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use postcommit_channel::clock;
use tokio::task::JoinSet;

use super::{Fits, Found, Kind};
use crate::application::Writer;
use crate::failure::Failure;
use crate::load::Load;
use crate::report::{Bar, Finding, Series};
use crate::run::Bench;
use crate::running::{self, Running};
use crate::series::rate;

pub const SUITE: Kind = Kind {
    name: "doorbell",
    about: "32 clients commit one enqueue after the other while a dispatcher delivers, with the doorbell and without",
    bars: "P8 with ÷ without ≥ 0.9",
    fits: Fits::Postgres,
    run: |bench| Box::pin(run(bench)),
};

const CLIENTS: usize = 32;
const SPAN: Duration = Duration::from_secs(10);

/// Nobody is ever asleep: neither looked for nor rung for.
const MUTE: &str = "CREATE OR REPLACE VIEW postcommit.asleep AS SELECT worker FROM postcommit.idle WHERE false";

async fn run(bench: &Bench) -> Result<Found, Failure> {
    let (mut without, mut with) = (vec![], vec![]);
    for round in 1..=bench.rounds {
        bench.progress.round(round, bench.rounds);
        // In turns which comes first: what the disk still owes to the one is paid by the other.
        let muted_first = round % 2 == 1;
        for mute in [muted_first, !muted_first] {
            let rates = if mute { &mut without } else { &mut with };
            rates.push(commits(bench, mute).await?);
        }
    }
    let what = format!("commits of {CLIENTS} clients with the doorbell ÷ without");
    let finding = Finding::ratio("P8", what, Series::rates("with", with), Series::rates("without", without));
    Ok(Found { findings: vec![finding.must(Bar::AtLeast(0.9))], charts: vec![] })
}

/// Commits per second while a dispatcher runs. The database is fresh each time, so the view need not be put back.
async fn commits(bench: &Bench, mute: bool) -> Result<f64, Failure> {
    bench.progress.step(if mute { "without the doorbell" } else { "with the doorbell" });
    let store = running::ready(bench).await?;
    if mute {
        bench.place.client().await?.batch_execute(MUTE).await?;
    }
    bench.place.settle().await?;
    let running = Running::start(bench, &store).await?;
    let rate = commit_for(bench, &running, bench.span(SPAN)).await?;
    running.finish().await;
    Ok(rate)
}

/// Counted from when the dispatcher has begun to deliver: without a doorbell it sleeps through the first moments, which is no gain of anybody's.
async fn commit_for(bench: &Bench, running: &Running, span: Duration) -> Result<f64, Failure> {
    let (over, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut working = JoinSet::new();
    for _ in 0..CLIENTS {
        let (client, over, done) = (Writer::on(&bench.place).await?, over.clone(), done.clone());
        working.spawn(async move {
            let load = Load::captured();
            let mut i = 0;
            while !over.load(Ordering::Relaxed) {
                client.enqueue(&load, i).await?;
                i += 1;
                done.fetch_add(1, Ordering::Relaxed);
            }
            Ok::<(), Failure>(())
        });
    }
    running.until(1).await?;
    let (started, before) = (clock::monotonic(), done.load(Ordering::Relaxed));
    tokio::time::sleep(span).await;
    let (committed, took) = (done.load(Ordering::Relaxed) - before, started.elapsed());
    over.store(true, Ordering::Relaxed);
    while let Some(client) = working.join_next().await {
        client??;
    }
    Ok(rate(committed, took))
}
