//! What is measured. One list; each suite is a file of its name.

mod binary;
mod doorbell;
mod drain;
mod enqueue;
mod growth;
mod http;
mod latency;
mod memory;
mod pinned;
mod processes;
mod sqlite;
mod tenants;
mod webhook;

use std::pin::Pin;

use crate::failure::Failure;
use crate::report::{Chart, Finding};
use crate::run::Bench;

/// All suites, in the order they are run.
pub const ALL: &[Kind] = &[
    drain::SUITE,
    enqueue::SUITE,
    latency::SUITE,
    growth::SUITE,
    pinned::SUITE,
    doorbell::SUITE,
    memory::SUITE,
    webhook::SUITE,
    sqlite::SUITE,
    http::SUITE,
    processes::SUITE,
    tenants::SUITE,
    binary::SUITE,
];

/// A suite.
pub struct Kind {
    pub name: &'static str,
    /// What it does, in a sentence.
    pub about: &'static str,
    /// What it is held to.
    pub bars: &'static str,
    /// Whether it can be run on PostgreSQL, and on SQLite.
    pub fits: Fits,
    pub run: for<'a> fn(&'a Bench) -> Measuring<'a>,
}

/// On which databases a suite can be run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fits {
    Postgres,
    Sqlite,
    Both,
}

/// A suite under way.
pub type Measuring<'a> = Pin<Box<dyn Future<Output = Result<Found, Failure>> + Send + 'a>>;

/// What a suite found.
#[derive(Default)]
pub struct Found {
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
