//! `latency`: the time from an application's COMMIT to the first bytes of the request at the receiver, on an idle
//! system and during a backlog.

use std::time::Duration;

use postcommit_channel::secret::random;
use postcommit_server::output::Exit;

use super::{Fits, SuiteFindings, SuiteSpec};
use crate::application::Application;
use crate::dispatcher::{self, RunningDispatcher};
use crate::failure::Failure;
use crate::load::Load;
use crate::peers::{Comparison, PeerFigures};
use crate::report::{Chart, Finding, Series, Threshold};
use crate::run::Bench;
use crate::series::quantile;
use crate::sink::Arrivals;
use crate::workspace::Backend;

pub const SUITE: SuiteSpec = SuiteSpec {
    name: "latency",
    about: "commits one notification at a time on an idle system and measures the time until its webhook arrives; \
        then the same during a bulk backlog",
    bars: "P5 p50 and p99 ÷ best peer ≤ 1",
    fits: Fits::Both,
    run: |bench| Box::pin(run(bench)),
};

const SAMPLES: u64 = 300;
/// Samples before the measurement, after which the application's statements are planned.
const WARM_UP: u64 = 5;
/// The average pause between two commits.
const PAUSE_MS: u64 = 25;
const BULK: u64 = 100_000;
/// A webhook that takes longer to arrive than this is an error.
const LONGEST: Duration = Duration::from_secs(20);

/// Latencies in milliseconds, sorted.
pub struct Latencies(Vec<f64>);

impl Latencies {
    pub fn at(&self, share: f64) -> f64 {
        quantile(&self.0, share)
    }
}

/// The load during the measurement.
#[derive(Clone, Copy, PartialEq)]
enum Beside {
    Nothing,
    /// A backlog for another provider.
    OtherLane,
    /// A backlog for the same provider.
    SameLane,
}

async fn run(bench: &Bench) -> Result<SuiteFindings, Failure> {
    let (mut idle, mut other, mut same) = (vec![], vec![], vec![]);
    let (mut p50, mut p99) = (PeerFigures::default(), PeerFigures::default());
    for round in 1..=bench.rounds {
        bench.progress.round(round, bench.rounds);
        idle.push(measure(bench, Beside::Nothing).await?);
        other.push(measure(bench, Beside::OtherLane).await?);
        same.push(measure(bench, Beside::SameLane).await?);
        for runner in &bench.peers.runners {
            let latency = runner.latency(bench, samples(bench), PAUSE_MS).await;
            p50.add(runner, latency.as_ref().map(|l| l.p50));
            p99.add(runner, latency.as_ref().map(|l| l.p99));
        }
    }
    let series =
        |name: &str, runs: &[Latencies], share| Series::of(name, "ms", runs.iter().map(|run| run.at(share)).collect());
    let under_load = |id: &str, what: &str, runs: &[Latencies]| {
        let what = format!("commit → request p99, priority 9, during a backlog {what} ÷ idle");
        let finding = Finding::ratio(id, what, series("under load", runs, 0.99), series("idle", &idle, 0.99));
        let fewest = runs.iter().map(|run| run.0.len()).min().unwrap_or(0);
        if fewest < 100 {
            finding.noting(format!("only {fewest} samples were taken while the backlog lasted"))
        } else {
            finding
        }
    };
    let mut findings = vec![];
    for (id, share, peers) in [("P5 p50", 0.5, p50), ("P5 p99", 0.99, p99)] {
        let (what, ours) = (format!("commit → request, idle, {}", &id[3..]), series("webhook", &idle, share));
        findings.extend(match bench.workspace.backend() {
            Backend::Postgres(_) => {
                let (what, missing) = (format!("{what} ÷ commit → handler of {{}}"), bench.peers.missing("latency"));
                Comparison { id, what: &what, bar: Threshold::AtMost(1.0), missing }.of(&ours, peers.series("ms"))
            }
            // No peer runs on SQLite, so there is nothing to compare with.
            Backend::Sqlite(_) => vec![Finding::figure(id, what, ours)],
        });
    }
    findings.push(under_load("load-other", "for another provider", &other));
    findings.push(under_load("load-same", "for the same provider", &same));
    let lines = vec![
        line("idle", &idle),
        line("backlog for another provider", &other),
        line("backlog for the same provider", &same),
    ];
    let chart = Chart { title: "commit → request".into(), x: "share of all, %".into(), y: "ms".into(), lines };
    Ok(SuiteFindings { findings, charts: vec![chart] })
}

/// Returns a line of the chart: the latency of all rounds at several percentiles.
fn line(name: &str, runs: &[Latencies]) -> (String, Vec<(f64, f64)>) {
    let mut all: Vec<f64> = runs.iter().flat_map(|run| run.0.iter().copied()).collect();
    all.sort_by(f64::total_cmp);
    let points = [1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9];
    (name.to_owned(), points.iter().map(|percent| (*percent, quantile(&all, percent / 100.0))).collect())
}

async fn measure(bench: &Bench, beside: Beside) -> Result<Latencies, Failure> {
    let store = bench.workspace.fresh().await?;
    let mut arrivals = Arrivals::listen().await?;
    dispatcher::create_provider(&store, &dispatcher::webhook(&bench.workspace, 64)?).await?;
    dispatcher::create_provider(&store, &dispatcher::capture()).await?;
    // The warm-up uses the bulk URL, whose arrivals are not timed.
    dispatcher::warm_up(bench, &store, &Load::to("webhook", &arrivals.bulk_url())).await?;
    let bulk = fill(bench, beside, &arrivals).await?;
    let running = RunningDispatcher::start(bench, &store).await?;
    bench.progress.step("committing one at a time");
    let latencies = sample(bench, &mut arrivals, &running, bulk).await?;
    running.finish().await;
    Ok(latencies)
}

/// Fills the queue with the backlog, if there is one. Returns its size.
async fn fill(bench: &Bench, beside: Beside, arrivals: &Arrivals) -> Result<u64, Failure> {
    let bulk = match beside {
        Beside::Nothing => return Ok(0),
        Beside::OtherLane => Load::captured(),
        Beside::SameLane => Load::to("webhook", &arrivals.bulk_url()),
    };
    bench.progress.step("filling");
    let count = bench.count(BULK);
    bulk.with_priority(1).insert_rows(&bench.workspace, count).await?;
    bench.workspace.quiesce().await?;
    Ok(count)
}

/// Takes samples while the backlog lasts, or a fixed number without one.
pub async fn sample(
    bench: &Bench,
    arrivals: &mut Arrivals,
    running: &RunningDispatcher,
    bulk: u64,
) -> Result<Latencies, Failure> {
    let load = Load::to("webhook", &arrivals.urgent_url()).with_priority(9);
    let mut application = Application::on(&bench.workspace).await?;
    let mut latencies = Vec::new();
    for i in 0..samples(bench) + WARM_UP {
        tokio::time::sleep(pause(bulk > 0)).await;
        let given = application.commit(&load, i).await?;
        let arrival = tokio::time::timeout(LONGEST, arrivals.urgent()).await.ok().flatten();
        let arrival = arrival.ok_or_else(|| {
            Failure::new(Exit::Failed, format!("no webhook arrived within {LONGEST:?} after its commit"))
        })?;
        if i >= WARM_UP {
            latencies.push(arrival.at.saturating_duration_since(given).as_secs_f64() * 1000.0);
        }
        if bulk > 0 && running.sent() >= bulk {
            break;
        }
    }
    latencies.sort_by(f64::total_cmp);
    Ok(Latencies(latencies))
}

/// The number of samples, at least 30: with fewer, a percentile would say nothing.
fn samples(bench: &Bench) -> u64 {
    bench.count(SAMPLES).max(30)
}

/// Returns a pause of 15 to 35 ms: long enough for the dispatcher to become idle, and not in step with its poll. During
/// a backlog the dispatcher is never idle and time is short, so there is no long pause.
fn pause(hurry: bool) -> Duration {
    let middle = Duration::from_millis(if hurry { PAUSE_MS / 5 } else { PAUSE_MS });
    middle.mul_f64(0.6 + 0.8 * f64::from(random::<1>()[0]) / 255.0)
}
