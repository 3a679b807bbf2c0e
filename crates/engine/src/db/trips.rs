//! How often the database is asked. What a delivery costs is counted, not timed: a test holds the hot path to it on any machine.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a database was asked since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Trips {
    /// PostgreSQL: requests that waited for an answer, BEGIN, COMMIT and preparing a statement among them; opening a connection is not. SQLite: calls
    /// handed to the writer or to a reader.
    pub trips: u64,
    /// Trips to prepare a statement, once for each connection; always 0 on SQLite.
    pub prepared: u64,
    /// Statements executed, BEGIN and COMMIT apart.
    pub statements: u64,
    /// Transactions committed. On PostgreSQL a statement outside of one is its own; on SQLite those who write at once share one.
    pub commits: u64,
}

impl Trips {
    /// What was asked since then.
    #[must_use]
    pub fn since(self, then: Self) -> Self {
        Self {
            trips: self.trips - then.trips,
            prepared: self.prepared - then.prepared,
            statements: self.statements - then.statements,
            commits: self.commits - then.commits,
        }
    }
}

/// Counts while others read it: a few additions that nobody waits for.
#[derive(Debug, Default)]
pub(super) struct Counter {
    trips: AtomicU64,
    prepared: AtomicU64,
    statements: AtomicU64,
    commits: AtomicU64,
}

impl Counter {
    pub(super) fn trips(&self, more: u64) {
        self.trips.fetch_add(more, Ordering::Relaxed);
    }

    pub(super) fn prepared(&self) {
        self.trips(1);
        self.prepared.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn statements(&self, more: u64) {
        self.statements.fetch_add(more, Ordering::Relaxed);
    }

    pub(super) fn commit(&self) {
        self.commits.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> Trips {
        let now = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Trips { trips: now(&self.trips), prepared: now(&self.prepared), statements: now(&self.statements), commits: now(&self.commits) }
    }

    /// Runs `work` on a connection of this thread's, and counts the statements that it [noted](note_statement).
    pub(super) fn around<T>(&self, work: impl FnOnce() -> T) -> T {
        let before = STATEMENTS.get();
        let result = work();
        self.statements(STATEMENTS.get() - before);
        result
    }
}

thread_local! {
    /// SQLite's connections know nothing of the pool they are from, but a statement never leaves its thread.
    static STATEMENTS: Cell<u64> = const { Cell::new(0) };
}

/// A statement of SQLite's is executed by this thread.
pub(super) fn note_statement() {
    STATEMENTS.set(STATEMENTS.get() + 1);
}
