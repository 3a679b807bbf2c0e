//! Runs the suites, and removes the workspace afterwards, even if the run fails.

use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use postcommit_channel::clock;
use postcommit_channel::egress::{Egress, EgressSettings};
use postcommit_engine::dispatch::DispatchSettings;
use postcommit_server::output::Exit;
use postcommit_server::settings::Settings;
use tokio::signal::unix::{SignalKind, signal};

use crate::failure::Failure;

use crate::peers::{self, Peers};
use crate::progress::Progress;
use crate::report::{Machine, Report, Suite};
use crate::suites::{SuiteFindings, SuiteSpec};
use crate::workspace::Workspace;

/// The options of a run.
pub struct RunOptions {
    /// The suites, in the order in which they run.
    pub suites: Vec<&'static SuiteSpec>,
    /// How often each pair is measured.
    pub rounds: usize,
    /// The factor of all counts and durations.
    pub scale: f64,
    /// The folder of the peers, or the reason why none take part.
    pub peers: Result<PathBuf, String>,
    /// The program to measure.
    pub program: PathBuf,
    /// The command line, for the report.
    pub command: String,
}

/// The workspace, settings and peers that every suite uses.
pub struct Bench {
    pub workspace: Workspace,
    pub rounds: usize,
    pub progress: Progress,
    /// The dispatcher's settings. The benchmark measures the product as it is configured.
    pub dispatch: DispatchSettings,
    /// The peers: other programs that are measured for comparison.
    pub peers: Peers,
    /// The program to measure.
    pub program: PathBuf,
    /// The outgoing connections. Loopback is allowed, because the sinks listen there.
    pub egress: Egress,
    scale: f64,
}

impl Bench {
    /// A count, multiplied by the scale of this run.
    pub fn count(&self, full: u64) -> u64 {
        ((full as f64 * self.scale).round() as u64).max(1)
    }

    /// A duration, multiplied by the scale of this run.
    pub fn span(&self, full: Duration) -> Duration {
        full.mul_f64(self.scale)
    }
}

/// Runs the suites, and removes the workspace afterwards, even if the run fails.
pub async fn run(options: RunOptions, settings: &Settings) -> Result<Report, Failure> {
    let stop =
        stop_requested().map_err(|e| Failure::new(Exit::Failed, format!("cannot listen for stop signals: {e}")))?;
    let allow = "127.0.0.0/8".parse().into_iter().collect();
    let egress = Egress::new(&EgressSettings { allow, ..settings.egress.clone() })
        .map_err(|e| Failure::new(Exit::Usage, e.to_string()))?;
    let (workspace, dispatch) = (Workspace::make(settings).await?, settings.dispatch.clone());
    let (rounds, program, scale) = (options.rounds, options.program.clone(), options.scale);
    let mut bench = Bench {
        workspace,
        rounds,
        progress: Progress::start(),
        dispatch,
        peers: Peers::default(),
        program,
        egress,
        scale,
    };
    bench.peers = find_peers(&bench, &options.peers).await;
    let bench = Arc::new(bench);
    let measured = measure(&bench, options, stop).await;
    bench.progress.step("removing the files and databases of the benchmark");
    let removed = bench.workspace.remove().await;
    let mut report = measured?;
    report.problems.extend(removed.err().map(|failure| failure.to_string()));
    Ok(report)
}

/// Finds the peers. They create schemas of their own, so they take part only when the whole database belongs to this
/// run.
async fn find_peers(bench: &Bench, folder: &Result<PathBuf, String>) -> Peers {
    match (folder, bench.workspace.postgres()) {
        (Err(why), _) => Peers::none(why),
        (Ok(_), Err(_)) => Peers::none("peers need PostgreSQL"),
        (Ok(_), Ok(postgres)) if !postgres.is_own() => {
            Peers::none("peers need a database of their own, and this login may not create one")
        }
        (Ok(folder), Ok(_)) => peers::installed(folder).await,
    }
}

/// Completes when a signal asks the program to stop. After this call the signals no longer end the program by
/// themselves.
fn stop_requested() -> std::io::Result<impl Future<Output = ()>> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let mut hang_up = if ignores_hang_up() { None } else { Some(signal(SignalKind::hangup())?) };
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            Some(_) = async { hang_up.as_mut()?.recv().await } => {}
        }
    })
}

/// Returns whether SIGHUP is ignored, as under `nohup`. If it is, the run continues when the terminal is closed.
fn ignores_hang_up() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    // The mask has one bit per signal. SIGHUP is the first.
    ignored.is_some_and(|ignored| ignored & 1 == 1)
}

/// Runs the suites one after the other. A failed suite does not discard the results of the others.
async fn measure(bench: &Arc<Bench>, options: RunOptions, stop: impl Future<Output = ()>) -> Result<Report, Failure> {
    let mut stop = pin!(stop);
    let mut report = Report {
        version: env!("CARGO_PKG_VERSION").into(),
        started_at: clock::now().to_string(),
        command: options.command,
        rounds: bench.rounds,
        scale: bench.scale,
        machine: Machine::here(),
        database: bench.workspace.describe().await?,
        peers: vec![],
        suites: vec![],
        problems: vec![],
    };
    for suite in options.suites {
        bench.progress.suite(suite.name);
        let started = clock::monotonic();
        let here = bench.clone();
        // The suite runs in a task of its own, so that a panic does not prevent the removal of the workspace.
        let mut measuring = tokio::spawn(async move { (suite.run)(&here).await });
        let found = tokio::select! {
            found = &mut measuring => found.unwrap_or_else(|e| Err(e.into())),
            () = &mut stop => {
                measuring.abort();
                let _ = measuring.await;
                if report.suites.is_empty() {
                    return Err(Failure::new(Exit::Failed, "interrupted; the files and databases of the benchmark are \
                        removed"));
                }
                report.problems.push(format!("interrupted in {}: the following suites were not measured", suite.name));
                break;
            }
        };
        let seconds = clock::monotonic().duration_since(started).as_secs_f64();
        let (found, problem) = match found {
            Ok(found) => (found, None),
            Err(failure) => {
                bench.progress.note(&format!("{} failed: {failure}", suite.name));
                (SuiteFindings::default(), Some(failure.to_string()))
            }
        };
        let (name, about) = (suite.name.into(), suite.about.into());
        report.suites.push(Suite { name, about, seconds, findings: found.findings, charts: found.charts, problem });
    }
    // The peers are listed last, because their problems are known only now.
    report.peers = bench.peers.listed();
    Ok(report)
}
