//! Measures, suite by suite, and leaves nothing behind however it ends.

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
use crate::place::Place;
use crate::progress::Progress;
use crate::report::{Machine, Report, Suite};
use crate::suites::{Found, Kind};

/// What was asked for.
pub struct Wish {
    /// In this order.
    pub suites: Vec<&'static Kind>,
    /// How often each pair is measured.
    pub rounds: usize,
    /// Multiplies all counts and durations.
    pub scale: f64,
    /// Where other programs are that take part, or why none do.
    pub peers: Result<PathBuf, String>,
    /// The program that is measured.
    pub program: PathBuf,
    /// How to repeat it.
    pub command: String,
}

/// What every suite works with.
pub struct Bench {
    pub place: Place,
    pub rounds: usize,
    pub progress: Progress,
    /// As the settings say: the benchmark measures the product as it is set up.
    pub dispatch: DispatchSettings,
    /// Other programs that take part.
    pub peers: Peers,
    /// The program that is measured.
    pub program: PathBuf,
    /// The sinks are on this machine.
    pub egress: Egress,
    scale: f64,
}

impl Bench {
    /// A count at the scale of this run.
    pub fn count(&self, full: u64) -> u64 {
        ((full as f64 * self.scale).round() as u64).max(1)
    }

    /// A duration at the scale of this run.
    pub fn span(&self, full: Duration) -> Duration {
        full.mul_f64(self.scale)
    }
}

/// Measures, and leaves nothing behind however it ends.
pub async fn run(wish: Wish, settings: &Settings) -> Result<Report, Failure> {
    let told = told_to_stop().map_err(|e| Failure::new(Exit::Failed, format!("signals: {e}")))?;
    let allow = "127.0.0.0/8".parse().into_iter().collect();
    let egress = Egress::new(&EgressSettings { allow, ..settings.egress.clone() }).map_err(|e| Failure::new(Exit::Usage, e.to_string()))?;
    let (place, dispatch) = (Place::make(settings).await?, settings.dispatch.clone());
    let (rounds, program, scale) = (wish.rounds, wish.program.clone(), wish.scale);
    let mut bench = Bench { place, rounds, progress: Progress::start(), dispatch, peers: Peers::default(), program, egress, scale };
    bench.peers = invite(&bench, &wish.peers).await;
    let bench = Arc::new(bench);
    let measured = measure(&bench, wish, told).await;
    bench.progress.step("removing what was made");
    let removed = bench.place.remove().await;
    let mut report = measured?;
    report.problems.extend(removed.err().map(|failure| failure.to_string()));
    Ok(report)
}

/// Other programs make schemas as they like: they take part only where the whole database is ours.
async fn invite(bench: &Bench, folder: &Result<PathBuf, String>) -> Peers {
    match (folder, bench.place.postgres()) {
        (Err(why), _) => Peers::none(why),
        (Ok(_), Err(_)) => Peers::none("peers need PostgreSQL"),
        (Ok(_), Ok(ground)) if !ground.is_own() => Peers::none("peers need a database of their own, and this login may create none"),
        (Ok(folder), Ok(_)) => peers::installed(folder).await,
    }
}

/// Comes to an end when somebody wants us to. From here on signals end nothing by themselves.
fn told_to_stop() -> std::io::Result<impl Future<Output = ()>> {
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

/// Under `nohup` a run goes on when its terminal is closed.
fn ignores_hang_up() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    // A bit for each signal; SIGHUP is the first.
    ignored.is_some_and(|ignored| ignored & 1 == 1)
}

/// Suite by suite. One that fails does not take what the others found with it.
async fn measure(bench: &Arc<Bench>, wish: Wish, told: impl Future<Output = ()>) -> Result<Report, Failure> {
    let mut told = pin!(told);
    let mut report = Report {
        version: env!("CARGO_PKG_VERSION").into(),
        started_at: clock::now().to_string(),
        command: wish.command,
        rounds: bench.rounds,
        scale: bench.scale,
        machine: Machine::here(),
        database: bench.place.describe().await?,
        peers: vec![],
        suites: vec![],
        problems: vec![],
    };
    for kind in wish.suites {
        bench.progress.suite(kind.name);
        let started = clock::monotonic();
        let here = bench.clone();
        // On a task of its own: a panic in there must not keep us from taking things away.
        let mut measuring = tokio::spawn(async move { (kind.run)(&here).await });
        let found = tokio::select! {
            found = &mut measuring => found.unwrap_or_else(|e| Err(e.into())),
            () = &mut told => {
                measuring.abort();
                let _ = measuring.await;
                if report.suites.is_empty() {
                    return Err(Failure::new(Exit::Failed, "interrupted; what was made is removed"));
                }
                report.problems.push(format!("interrupted in {}: what follows was not measured", kind.name));
                break;
            }
        };
        let seconds = clock::monotonic().duration_since(started).as_secs_f64();
        let (found, problem) = match found {
            Ok(found) => (found, None),
            Err(failure) => {
                bench.progress.note(&format!("{} failed: {failure}", kind.name));
                (Found::default(), Some(failure.to_string()))
            }
        };
        let (name, about) = (kind.name.into(), kind.about.into());
        report.suites.push(Suite { name, about, seconds, findings: found.findings, charts: found.charts, problem });
    }
    // Now it is known what they could not do.
    report.peers = bench.peers.listed();
    Ok(report)
}
