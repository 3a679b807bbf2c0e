//! The suites of the benchmark, in one list. Each suite is a file of its name.

mod binary;
mod doorbell;
mod drain;
mod enqueue;
mod growth;
mod http;
mod latency;
mod lists;
mod memory;
mod pages;
mod pinned;
mod processes;
mod sqlite;
mod templates;
mod tenants;
mod webhook;

use std::pin::Pin;

use crate::failure::Failure;
use crate::report::{Chart, Finding};
use crate::run::Bench;

/// All suites, in the order in which they run.
pub const ALL: &[SuiteSpec] = &[
    drain::SUITE,
    enqueue::SUITE,
    latency::SUITE,
    growth::SUITE,
    pinned::SUITE,
    doorbell::SUITE,
    memory::SUITE,
    lists::SUITE,
    webhook::SUITE,
    sqlite::SUITE,
    templates::SUITE,
    http::SUITE,
    processes::SUITE,
    tenants::SUITE,
    pages::SUITE,
    binary::SUITE,
];

/// A suite: its description and its code.
pub struct SuiteSpec {
    pub name: &'static str,
    /// A description in one sentence.
    pub about: &'static str,
    /// The bars of the suite, in words.
    pub bars: &'static str,
    /// The databases that the suite supports.
    pub fits: Fits,
    pub run: for<'a> fn(&'a Bench) -> Measuring<'a>,
}

/// The databases that a suite supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fits {
    Postgres,
    Sqlite,
    Both,
}

/// The future of a running suite.
pub type Measuring<'a> = Pin<Box<dyn Future<Output = Result<SuiteFindings, Failure>> + Send + 'a>>;

/// The results of a suite.
#[derive(Default)]
pub struct SuiteFindings {
    pub findings: Vec<Finding>,
    pub charts: Vec<Chart>,
}

impl Fits {
    pub fn postgres(self) -> bool {
        self != Self::Sqlite
    }

    pub fn sqlite(self) -> bool {
        self != Self::Postgres
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Postgres => "PostgreSQL",
            Self::Sqlite => "SQLite",
            Self::Both => "both",
        }
    }
}
