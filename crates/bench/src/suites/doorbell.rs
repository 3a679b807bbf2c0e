//! `doorbell`: how much waking a dispatcher costs a commit. NOTIFY takes a lock that all commits share. Postcommit
//! sends NOTIFY only when a dispatcher is idle.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use postcommit_channel::clock;
use tokio::task::JoinSet;

use super::{Fits, SuiteFindings, SuiteSpec};
use crate::application::Enqueuer;
use crate::dispatcher::{self, RunningDispatcher};
use crate::failure::Failure;
use crate::load::Load;
use crate::report::{Finding, Series, Threshold};
use crate::run::Bench;
use crate::series::rate;

pub const SUITE: SuiteSpec = SuiteSpec {
    name: "doorbell",
    about: "32 clients commit one enqueue after the other while a dispatcher delivers, with the wake-up by NOTIFY and \
        without it",
    bars: "P8 with ÷ without ≥ 0.9",
    fits: Fits::Postgres,
    run: |bench| Box::pin(run(bench)),
};

const CLIENTS: usize = 32;
const SPAN: Duration = Duration::from_secs(10);

/// Makes every dispatcher look busy, so that `enqueue` never sends NOTIFY.
const MUTE: &str = "CREATE OR REPLACE VIEW postcommit.asleep AS SELECT worker FROM postcommit.idle WHERE false";

async fn run(bench: &Bench) -> Result<SuiteFindings, Failure> {
    let (mut without, mut with) = (vec![], vec![]);
    for round in 1..=bench.rounds {
        bench.progress.round(round, bench.rounds);
        // The side that is measured first alternates, because the second one pays for disk writes that the first one
        // caused.
        let muted_first = round % 2 == 1;
        for mute in [muted_first, !muted_first] {
            let rates = if mute { &mut without } else { &mut with };
            rates.push(commits(bench, mute).await?);
        }
    }
    let what = format!("commits of {CLIENTS} clients with the wake-up by NOTIFY ÷ without");
    let finding = Finding::ratio("P8", what, Series::rates("with", with), Series::rates("without", without));
    Ok(SuiteFindings { findings: vec![finding.must(Threshold::AtLeast(0.9))], charts: vec![] })
}

/// Returns the commits per second while a dispatcher runs. Each call has a new database, so the view that [`MUTE`]
/// replaces need not be restored.
async fn commits(bench: &Bench, mute: bool) -> Result<f64, Failure> {
    bench.progress.step(if mute { "without the wake-up by NOTIFY" } else { "with the wake-up by NOTIFY" });
    let store = dispatcher::warm_store(bench).await?;
    if mute {
        bench.workspace.client().await?.batch_execute(MUTE).await?;
    }
    bench.workspace.quiesce().await?;
    let running = RunningDispatcher::start(bench, &store).await?;
    let rate = commit_for(bench, &running, bench.span(SPAN)).await?;
    running.finish().await;
    Ok(rate)
}

/// Counts commits after the dispatcher has begun to deliver. Without NOTIFY the dispatcher is idle at first, which
/// would favour that side.
async fn commit_for(bench: &Bench, running: &RunningDispatcher, span: Duration) -> Result<f64, Failure> {
    let (over, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut working = JoinSet::new();
    for _ in 0..CLIENTS {
        let (client, over, done) = (Enqueuer::on(&bench.workspace).await?, over.clone(), done.clone());
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
