//! Peers: other programs that do the same work on the same database, measured alternately with Postcommit. Each is a
//! folder with a program `run`; see bench/peers.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Mutex;

use postcommit_server::output::Exit;
use serde_json::Value;
use tokio::process::Command;

use crate::failure::Failure;
use crate::report::{Finding, Peer, Series, Threshold};
use crate::run::Bench;

/// The peers of this run, and the reasons why others are missing.
#[derive(Default)]
pub struct Peers {
    pub runners: Vec<InstalledPeer>,
    /// Peers whose `run info` failed.
    mute: Vec<Peer>,
    /// The reason why there are no peers.
    reason_for_none: String,
}

/// A peer that is installed and works.
pub struct InstalledPeer {
    peer: Peer,
    program: PathBuf,
    problems: Mutex<Vec<PeerProblem>>,
}

/// A subcommand (`verb`) of a peer's program that failed, and its error.
#[derive(Debug, Clone, PartialEq)]
struct PeerProblem {
    verb: String,
    what: String,
}

/// The time of a peer from COMMIT to its handler, in milliseconds.
pub struct Latency {
    pub p50: f64,
    pub p99: f64,
}

impl Peers {
    /// Creates a list without peers, with the reason.
    pub fn none(why: impl Into<String>) -> Self {
        Self { reason_for_none: why.into(), ..Self::default() }
    }

    /// Returns all peers, each with its problems so far.
    pub fn listed(&self) -> Vec<Peer> {
        self.runners.iter().map(|runner| runner.as_seen(|_| true)).chain(self.mute.iter().cloned()).collect()
    }

    /// Returns the peers that have no figure for the subcommand `verb`, with the reasons. `None` when all have one.
    pub fn missing(&self, verb: &str) -> Option<String> {
        let seen = self
            .runners
            .iter()
            .map(|runner| runner.as_seen(|problem| problem.verb == verb))
            .chain(self.mute.iter().cloned());
        let missing: Vec<String> = seen.filter_map(|peer| Some(format!("{}: {}", peer.name, peer.problem?))).collect();
        match missing.as_slice() {
            [] if self.runners.is_empty() => Some(self.reason_for_none.clone()),
            [] => None,
            missing => Some(missing.join("; ")),
        }
    }
}

/// Returns the peers that are installed in the folder: each subfolder with a program `run` is one.
pub async fn installed(folder: &Path) -> Peers {
    let mut programs: Vec<PathBuf> =
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path().join("run")).collect();
    programs.retain(|program| program.is_file());
    programs.sort();
    let mut peers = Peers::none(format!("no peer is installed in {}", folder.display()));
    for program in programs {
        match ask(&program, &["info"]).await {
            Ok(info) => {
                let text = |field: &str| info[field].as_str().unwrap_or_default().to_owned();
                let peer =
                    Peer { name: text("name"), version: text("version"), settings: text("settings"), problem: None };
                peers.runners.push(InstalledPeer { peer, program, problems: Mutex::default() });
            }
            Err(failure) => {
                let name =
                    program.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned();
                let problem = Some(format!("not compared, because its `run info` failed: {failure}"));
                peers.mute.push(Peer { name, version: String::new(), settings: String::new(), problem });
            }
        }
    }
    peers
}

impl InstalledPeer {
    /// Returns the peer with the problems that `these` selects.
    fn as_seen(&self, these: impl Fn(&PeerProblem) -> bool) -> Peer {
        let problems = self.problems.lock().map(|problems| problems.clone()).unwrap_or_default();
        let told: Vec<String> = problems
            .into_iter()
            .filter(these)
            .map(|problem| format!("{} failed: {}", problem.verb, problem.what))
            .collect();
        Peer { problem: (!told.is_empty()).then(|| told.join("; ")), ..self.peer.clone() }
    }

    /// Returns the jobs per second, out of a backlog.
    pub async fn drain(&self, bench: &Bench, count: u64, processes: u32) -> Option<f64> {
        self.rate(bench, &["drain", "--count", &count.to_string(), "--processes", &processes.to_string()]).await
    }

    /// Returns the enqueues per second, one per commit.
    pub async fn enqueue(&self, bench: &Bench, count: u64, connections: u64) -> Option<f64> {
        self.rate(bench, &["enqueue", "--count", &count.to_string(), "--connections", &connections.to_string()]).await
    }

    /// Returns the enqueues per second, in batches.
    pub async fn enqueue_batches(&self, bench: &Bench, count: u64, batch: u64) -> Option<f64> {
        self.rate(bench, &["enqueue-batch", "--count", &count.to_string(), "--batch", &batch.to_string()]).await
    }

    pub async fn latency(&self, bench: &Bench, count: u64, pause_ms: u64) -> Option<Latency> {
        let read = |answer: &Value| Some(Latency { p50: answer["p50_ms"].as_f64()?, p99: answer["p99_ms"].as_f64()? });
        self.ask(bench, &["latency", "--count", &count.to_string(), "--pause-ms", &pause_ms.to_string()], read).await
    }

    async fn rate(&self, bench: &Bench, arguments: &[&str]) -> Option<f64> {
        self.ask(bench, arguments, |answer| Some(answer["count"].as_f64()? / answer["seconds"].as_f64()?)).await
    }

    /// Runs a subcommand of the peer's program. A failure is printed and recorded in the report; the peer then has no
    /// figure.
    async fn ask<T>(&self, bench: &Bench, arguments: &[&str], read: impl Fn(&Value) -> Option<T>) -> Option<T> {
        let verb = arguments.first().unwrap_or(&"");
        bench.progress.step(format!("{}: {verb}", self.peer.name));
        let url = bench.workspace.url();
        let settled = bench.workspace.quiesce().await;
        let answered = ask(&self.program, &[arguments, &["--database", &url]].concat()).await;
        let unread = || Failure::new(Exit::Failed, "the last line of the peer's output lacks a number that is needed");
        match settled.and(answered).and_then(|answer| read(&answer).ok_or_else(unread)) {
            Ok(figure) => Some(figure),
            Err(failure) => {
                bench.progress.note(&format!("{}: {verb} failed: {failure}", self.peer.name));
                self.remember(PeerProblem { verb: (*verb).to_owned(), what: failure.to_string() });
                None
            }
        }
    }

    /// Records a problem once, even when it occurs in every round.
    fn remember(&self, problem: PeerProblem) {
        if let Ok(mut problems) = self.problems.lock()
            && !problems.contains(&problem)
        {
            problems.push(problem);
        }
    }
}

/// Runs a peer's program. The last line of its output is JSON.
async fn ask(program: &Path, arguments: &[&str]) -> Result<Value, Failure> {
    let ran = Command::new(program).args(arguments).stdin(Stdio::null()).kill_on_drop(true).output().await?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().lines().last().unwrap_or_default().to_owned();
    if !ran.status.success() {
        return Err(Failure::new(Exit::Failed, text(&ran.stderr)));
    }
    serde_json::from_str(&text(&ran.stdout))
        .map_err(|e| Failure::new(Exit::Failed, format!("the last line of the peer's output is not JSON: {e}")))
}

/// The figures of every peer, round by round.
#[derive(Default)]
pub struct PeerFigures(Vec<(String, Vec<f64>)>);

impl PeerFigures {
    pub fn add(&mut self, runner: &InstalledPeer, figure: Option<f64>) {
        let Some(figure) = figure else { return };
        match self.0.iter_mut().find(|(name, _)| *name == runner.peer.name) {
            Some((_, figures)) => figures.push(figure),
            None => self.0.push((runner.peer.name.clone(), vec![figure])),
        }
    }

    /// The figures of every peer as a series, the smallest median first.
    pub fn series(self, unit: &str) -> Vec<Series> {
        let mut all: Vec<Series> = self.0.into_iter().map(|(name, figures)| Series::of(name, unit, figures)).collect();
        all.sort_by(|a, b| a.median.total_cmp(&b.median));
        all
    }
}

/// A comparison with the best peer, whose ratio must keep a bar (a limit).
pub struct Comparison<'a> {
    pub id: &'a str,
    /// A description; `{}` stands for the peer's name.
    pub what: &'a str,
    pub bar: Threshold,
    /// The peers that are missing, and the reasons.
    pub missing: Option<String>,
}

impl Comparison<'_> {
    /// Returns the findings. The best peer comes first and has the bar; the others are only reported. Without peers the
    /// bar is not judged.
    pub fn of(self, ours: &Series, peers: Vec<Series>) -> Vec<Finding> {
        let what = |name: &str| self.what.replace("{}", name);
        if peers.is_empty() {
            let why = self.missing.unwrap_or_default();
            return vec![Finding::unjudged(self.id, what("the best peer"), ours.clone(), self.bar, why)];
        }
        let named = |id: &str, peer: Series| Finding::ratio(id, what(&peer.name), ours.clone(), peer);
        let mut peers = peers.into_iter();
        let best = peers.next().map(|peer| named(self.id, peer).must(self.bar));
        let best = best.map(|best| match &self.missing {
            Some(missing) => best.noting(missing.clone()),
            None => best,
        });
        best.into_iter().chain(peers.map(|peer| named("peer", peer))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runner(name: &str) -> InstalledPeer {
        let peer = Peer { name: name.into(), version: "1".into(), settings: String::new(), problem: None };
        InstalledPeer { peer, program: PathBuf::new(), problems: Mutex::default() }
    }

    #[test]
    fn missing_peers_are_reported_for_each_verb() {
        assert_eq!(Peers::none("--no-peers").missing("drain").as_deref(), Some("--no-peers"));
        let peers = Peers { runners: vec![runner("a"), runner("b")], ..Peers::default() };
        assert_eq!(peers.missing("drain"), None);
        let problem = PeerProblem { verb: "drain".into(), what: "no room".into() };
        peers.runners[1].remember(problem.clone());
        peers.runners[1].remember(problem);
        assert_eq!(peers.missing("drain").as_deref(), Some("b: drain failed: no room"));
        assert_eq!(peers.missing("latency"), None);
        let listed: Vec<Option<String>> = peers.listed().into_iter().map(|peer| peer.problem).collect();
        assert_eq!(listed, [None, Some("drain failed: no room".into())]);
    }

    #[tokio::test]
    async fn a_peer_whose_info_fails_is_listed_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        assert!(installed(folder.path()).await.missing("drain").unwrap().starts_with("no peer is installed in "));
        std::fs::create_dir(folder.path().join("broken")).unwrap();
        std::fs::write(folder.path().join("broken/run"), "not a program").unwrap();
        let peers = installed(folder.path()).await;
        assert!(peers.missing("drain").unwrap().starts_with("broken: not compared, because its `run info` failed: "));
        assert_eq!(peers.listed().len(), 1);
    }
}
