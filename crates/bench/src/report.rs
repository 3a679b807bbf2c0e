//! The results of a run as data: printed as text, written as JSON, drawn as HTML.

use serde::Serialize;

/// The results of one run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The version of this program.
    pub version: String,
    /// When the run began, in RFC 3339.
    pub started_at: String,
    /// The command line, to repeat the run.
    pub command: String,
    /// How often each pair was measured.
    pub rounds: usize,
    /// The factor of all counts and durations. Only a run with 1 is meaningful.
    pub scale: f64,
    /// The machine on which the benchmark ran.
    pub machine: Machine,
    /// The database, e.g. `PostgreSQL 15.14 (shared_buffers 2GB, fsync on, synchronous_commit on), in a database of its
    /// own`.
    pub database: String,
    /// The peers that took part, and the peers that could not.
    pub peers: Vec<Peer>,
    /// The suites, in the order in which they ran.
    pub suites: Vec<Suite>,
    /// Problems outside the suites: the run was interrupted, or something could not be removed.
    pub problems: Vec<String>,
}

impl Report {
    /// The number of rounds and the scale, in words.
    pub fn extent(&self) -> String {
        let scale = if self.scale == 1.0 { String::new() } else { format!(", at scale {}: a quick look", self.scale) };
        format!("{}{scale}", self.rounds)
    }

    /// Everything that makes the report incomplete.
    pub fn failures(&self) -> Vec<String> {
        let suites =
            self.suites.iter().filter_map(|suite| Some(format!("{}: {}", suite.name, suite.problem.as_ref()?)));
        suites.chain(self.problems.iter().cloned()).collect()
    }
}

/// The machine on which the benchmark ran.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// Processor cores that this process may use.
    pub cores: usize,
    /// The total memory of the machine.
    pub memory_mib: u64,
    /// The processor's name as the system reports it.
    pub cpu: String,
    /// The kernel and the distribution.
    pub system: String,
}

/// Another program that was measured in the same run.
#[derive(Debug, Clone, Serialize)]
pub struct Peer {
    pub name: String,
    pub version: String,
    /// The peer's runtime and configuration.
    pub settings: String,
    /// The work that the peer failed to do, with the reasons. The peer has no figure for that work.
    pub problem: Option<String>,
}

/// The results of a suite.
#[derive(Debug, Clone, Serialize)]
pub struct Suite {
    /// The name, e.g. `drain` or `enqueue`.
    pub name: String,
    /// A description in one sentence.
    pub about: String,
    /// How long the suite took.
    pub seconds: f64,
    /// Figures with and without a bar.
    pub findings: Vec<Finding>,
    /// Figures over time or over a size.
    pub charts: Vec<Chart>,
    /// The reason why the suite could not be measured. The suite then has no findings.
    pub problem: Option<String>,
}

/// One figure: a ratio of two series that were measured alternately, or a plain number.
#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    /// The id: `P1` … `P14`, or a word for a figure without such a number.
    pub id: String,
    /// The comparison in words.
    pub what: String,
    /// The measurements of Postcommit.
    pub ours: Series,
    /// The measurements of the other side.
    pub against: Option<Series>,
    /// The median of Postcommit divided by the median of the other side. Without another side, the median of
    /// Postcommit.
    pub figure: f64,
    /// The limit that the figure must keep, if there is one.
    pub bar: Option<Threshold>,
    /// Whether the bar is held. `None` without a bar, or when it could not be judged.
    pub held: Option<bool>,
    /// A note for the reader, such as why the bar was missed or which peer is missing.
    pub note: Option<String>,
}

/// Repeated measurements of one quantity.
#[derive(Debug, Clone, Serialize)]
pub struct Series {
    /// The name of the measured quantity.
    pub name: String,
    /// The unit: `/s`, `ms`, `MiB`, `bytes`, …
    pub unit: String,
    /// The values, in the order in which they were measured.
    pub values: Vec<f64>,
    pub median: f64,
    /// The smallest and the largest value.
    pub spread: (f64, f64),
}

/// A bar: the limit that a figure must keep.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Threshold {
    /// The figure must be this or more.
    AtLeast(f64),
    /// The figure must be this or less.
    AtMost(f64),
}

/// A chart of lines over a common axis.
#[derive(Debug, Clone, Serialize)]
pub struct Chart {
    pub title: String,
    /// The label of the horizontal axis.
    pub x: String,
    /// The label of the vertical axis.
    pub y: String,
    /// The name and the points of each line.
    pub lines: Vec<(String, Vec<(f64, f64)>)>,
}
