//! Counts round trips to the database. A test limits the round trips of a delivery, because counts are the same on
//! every machine and times are not.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// How often a database was called since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Trips {
    /// On PostgreSQL, the round trips, including BEGIN, COMMIT and the preparation of statements, but not the opening
    /// of connections. On SQLite, the calls to the writer or to a reader.
    pub trips: u64,
    /// Round trips that prepare a statement, one per statement and connection. Always 0 on SQLite.
    pub prepared: u64,
    /// Executed statements, without BEGIN and COMMIT.
    pub statements: u64,
    /// Committed transactions. On PostgreSQL a statement outside a transaction counts as one. On SQLite concurrent
    /// writers share a transaction.
    pub commits: u64,
}

impl Trips {
    /// Returns the difference from an earlier reading.
    pub fn since(self, then: Self) -> Self {
        Self {
            trips: self.trips - then.trips,
            prepared: self.prepared - then.prepared,
            statements: self.statements - then.statements,
            commits: self.commits - then.commits,
        }
    }
}

/// The counters behind [`Trips`], shared by all connections.
#[derive(Debug, Default)]
pub(super) struct TripCounter {
    trips: AtomicU64,
    prepared: AtomicU64,
    statements: AtomicU64,
    commits: AtomicU64,
}

impl TripCounter {
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
        Trips {
            trips: now(&self.trips),
            prepared: now(&self.prepared),
            statements: now(&self.statements),
            commits: now(&self.commits),
        }
    }

    /// Runs `work` on this thread and counts the statements that it reports with [`note_statement`].
    pub(super) fn around<T>(&self, work: impl FnOnce() -> T) -> T {
        let before = STATEMENTS.get();
        let result = work();
        self.statements(STATEMENTS.get() - before);
        result
    }
}

thread_local! {
    /// The SQLite statements of this thread. A SQLite connection does not know its counter, but a statement runs on one
    /// thread.
    static STATEMENTS: Cell<u64> = const { Cell::new(0) };
}

/// Counts one SQLite statement on this thread.
pub(super) fn note_statement() {
    STATEMENTS.set(STATEMENTS.get() + 1);
}
