//! `doorbell`: what waking a dispatcher costs those who commit. NOTIFY takes a lock that all commits share; ours is rung only when somebody sleeps.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use postcommit_engine::clock;
use tokio::task::JoinSet;

use super::{Fits, Found, Kind};
use crate::bench::Bench;
use crate::bench::application::Writer;
use crate::bench::load::Load;
use crate::bench::report::{Bar, Finding, Series};
use crate::bench::running::{self, Running};
use crate::output::Failure;

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
        without.push(commits(bench, true).await?);
        with.push(commits(bench, false).await?);
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
    let rate = commit_for(bench, bench.span(SPAN)).await?;
    running.finish().await;
    Ok(rate)
}

async fn commit_for(bench: &Bench, span: Duration) -> Result<f64, Failure> {
    let over = Arc::new(AtomicBool::new(false));
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(Writer::on(&bench.place).await?);
    }
    let started = clock::monotonic();
    let mut working = JoinSet::new();
    for client in clients {
        let over = over.clone();
        working.spawn(async move {
            let load = Load::captured();
            let mut done = 0;
            while !over.load(Ordering::Relaxed) {
                client.enqueue(&load, done).await?;
                done += 1;
            }
            Ok::<u64, Failure>(done)
        });
    }
    tokio::time::sleep(span).await;
    over.store(true, Ordering::Relaxed);
    let mut all = 0;
    while let Some(done) = working.join_next().await {
        all += done??;
    }
    Ok(all as f64 / clock::monotonic().duration_since(started).as_secs_f64())
}
