//! Other programs that do the same work, run on the same database in turns with us. Each is a folder with a program `run`; see bench/peers.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;
use tokio::process::Command;

use super::Bench;
use super::report::{Peer, Series};
use crate::output::{Exit, Failure};

/// An installed peer.
pub struct Runner {
    pub peer: Peer,
    program: PathBuf,
}

/// What one run of a peer's took to call its handler, in milliseconds.
pub struct Latency {
    pub p50: f64,
    pub p99: f64,
}

/// Those below that folder that say who they are.
pub async fn installed(folder: &Path) -> Vec<Runner> {
    let mut programs: Vec<PathBuf> = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path().join("run")).collect();
    programs.retain(|program| program.is_file());
    programs.sort();
    let mut runners = vec![];
    for program in programs {
        if let Ok(info) = ask(&program, &["info"]).await {
            let text = |field: &str| info[field].as_str().unwrap_or_default().to_owned();
            runners.push(Runner { peer: Peer { name: text("name"), version: text("version"), settings: text("settings") }, program });
        }
    }
    runners
}

impl Runner {
    /// Jobs per second out of a backlog.
    pub async fn drain(&self, bench: &Bench, count: u64, processes: u32) -> Option<f64> {
        self.rate(bench, &["drain", "--count", &count.to_string(), "--processes", &processes.to_string()]).await
    }

    /// Enqueues per second, one per commit.
    pub async fn enqueue(&self, bench: &Bench, count: u64, connections: u64) -> Option<f64> {
        self.rate(bench, &["enqueue", "--count", &count.to_string(), "--connections", &connections.to_string()]).await
    }

    /// Enqueues per second, in batches.
    pub async fn enqueue_batches(&self, bench: &Bench, count: u64, batch: u64) -> Option<f64> {
        self.rate(bench, &["enqueue-batch", "--count", &count.to_string(), "--batch", &batch.to_string()]).await
    }

    pub async fn latency(&self, bench: &Bench, count: u64, pause_ms: u64) -> Option<Latency> {
        let answer = self.ask(bench, &["latency", "--count", &count.to_string(), "--pause-ms", &pause_ms.to_string()]).await?;
        Some(Latency { p50: answer["p50_ms"].as_f64()?, p99: answer["p99_ms"].as_f64()? })
    }

    async fn rate(&self, bench: &Bench, arguments: &[&str]) -> Option<f64> {
        let answer = self.ask(bench, arguments).await?;
        Some(answer["count"].as_f64()? / answer["seconds"].as_f64()?)
    }

    /// One that fails takes no part in what follows; we say so and go on.
    async fn ask(&self, bench: &Bench, arguments: &[&str]) -> Option<Value> {
        bench.progress.step(format!("{}: {}", self.peer.name, arguments.first().unwrap_or(&"")));
        let url = bench.place.url();
        let settled = bench.place.settle().await;
        let answered = ask(&self.program, &[arguments, &["--database", &url]].concat()).await;
        match settled.and(answered) {
            Ok(answer) => Some(answer),
            Err(problem) => {
                bench.progress.note(&format!("{} takes no part: {problem}", self.peer.name));
                None
            }
        }
    }
}

/// The last line of what it prints is JSON.
async fn ask(program: &Path, arguments: &[&str]) -> Result<Value, Failure> {
    let ran = Command::new(program).args(arguments).stdin(Stdio::null()).kill_on_drop(true).output().await?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().lines().last().unwrap_or_default().to_owned();
    if !ran.status.success() {
        return Err(Failure::new(Exit::Failed, text(&ran.stderr)));
    }
    serde_json::from_str(&text(&ran.stdout)).map_err(|e| Failure::new(Exit::Failed, format!("its answer is not JSON: {e}")))
}

/// One figure of each peer, round by round.
#[derive(Default)]
pub struct Figures(Vec<(String, Vec<f64>)>);

impl Figures {
    pub fn add(&mut self, runner: &Runner, figure: Option<f64>) {
        let Some(figure) = figure else { return };
        match self.0.iter_mut().find(|(name, _)| *name == runner.peer.name) {
            Some((_, figures)) => figures.push(figure),
            None => self.0.push((runner.peer.name.clone(), vec![figure])),
        }
    }

    /// All of them as series, the smallest median first.
    pub fn series(self, unit: &str) -> Vec<Series> {
        let mut all: Vec<Series> = self.0.into_iter().map(|(name, figures)| Series::of(name, unit, figures)).collect();
        all.sort_by(|a, b| a.median.total_cmp(&b.median));
        all
    }
}
