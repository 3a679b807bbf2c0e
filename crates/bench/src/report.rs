//! What a run of the benchmark found, as data: printed, written as JSON, drawn as HTML.

use serde::Serialize;

/// One run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Of this program.
    pub version: String,
    /// When it began, RFC 3339.
    pub started_at: String,
    /// How to repeat it.
    pub command: String,
    /// How often each pair was measured.
    pub rounds: usize,
    /// By what all counts and durations were multiplied: 1 in a run that counts.
    pub scale: f64,
    /// Where it ran.
    pub machine: Machine,
    /// Against what: `PostgreSQL 15.14 (shared_buffers 2GB, fsync on, synchronous_commit on), in a database of its own`.
    pub database: String,
    /// Peers that took part, and those that were to.
    pub peers: Vec<Peer>,
    /// In the order they were run.
    pub suites: Vec<Suite>,
    /// What went wrong beside the suites: it was interrupted, something could not be removed.
    pub problems: Vec<String>,
}

impl Report {
    /// How much was measured, in words.
    pub fn extent(&self) -> String {
        let scale = if self.scale == 1.0 { String::new() } else { format!(", at scale {}: a quick look", self.scale) };
        format!("{}{scale}", self.rounds)
    }

    /// All that kept it from being complete.
    pub fn failures(&self) -> Vec<String> {
        let suites = self.suites.iter().filter_map(|suite| Some(format!("{}: {}", suite.name, suite.problem.as_ref()?)));
        suites.chain(self.problems.iter().cloned()).collect()
    }
}

/// Where it ran.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// Cores this process may use.
    pub cores: usize,
    /// Memory in all.
    pub memory_mib: u64,
    /// As the system calls it.
    pub cpu: String,
    /// Kernel and distribution.
    pub system: String,
}

/// Another program measured in the same run.
#[derive(Debug, Clone, Serialize)]
pub struct Peer {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// With what it was run, and how it was set up.
    pub settings: String,
    /// What it could not do: it has no figure there.
    pub problem: Option<String>,
}

/// A suite's findings.
#[derive(Debug, Clone, Serialize)]
pub struct Suite {
    /// `drain`, `enqueue`, …
    pub name: String,
    /// What it does, in a sentence.
    pub about: String,
    /// How long it took.
    pub seconds: f64,
    /// Bars, and figures without one.
    pub findings: Vec<Finding>,
    /// Figures over time or over a size, for charts.
    pub charts: Vec<Chart>,
    /// Why it could not be measured; it has no findings then.
    pub problem: Option<String>,
}

/// One figure: a ratio of two series measured in turns, or a plain number.
#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    /// `P1` … `P13`, or a word for what has no number there.
    pub id: String,
    /// What is compared, in words.
    pub what: String,
    /// What we did.
    pub ours: Series,
    /// What it is compared with.
    pub against: Option<Series>,
    /// Median of ours over median of theirs; or the figure itself where there is nothing to compare.
    pub figure: f64,
    /// What it must be.
    pub bar: Option<Bar>,
    /// Whether it is.
    pub held: Option<bool>,
    /// What a reader should know: why it was missed, what was left out.
    pub note: Option<String>,
}

/// Repeated measurements of one thing.
#[derive(Debug, Clone, Serialize)]
pub struct Series {
    /// Of what.
    pub name: String,
    /// `/s`, `ms`, `MiB`, `bytes`, …
    pub unit: String,
    /// In the order measured.
    pub values: Vec<f64>,
    /// The middle one.
    pub median: f64,
    /// Smallest and largest.
    pub spread: (f64, f64),
}

/// What a figure must be.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bar {
    /// This or more.
    AtLeast(f64),
    /// This or less.
    AtMost(f64),
}

/// Lines over a common axis.
#[derive(Debug, Clone, Serialize)]
pub struct Chart {
    /// What is drawn.
    pub title: String,
    /// What runs along the bottom.
    pub x: String,
    /// What runs up the side.
    pub y: String,
    /// Name and points of each line.
    pub lines: Vec<(String, Vec<(f64, f64)>)>,
}
