//! Counts round trips to the database. A test limits the round trips of a delivery: counts are the same on any machine,
//! and times are not.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// How often a database was called since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Trips {
    /// PostgreSQL: round trips, including BEGIN, COMMIT and the preparation of statements, but not the opening of
    /// connections. SQLite: calls to the writer or to a reader.
    pub trips: u64,
    /// Round trips to prepare a statement, once per connection. Always 0 on SQLite.
    pub prepared: u64,
    /// Executed statements, without BEGIN and COMMIT.
    pub statements: u64,
    /// Committed transactions. On PostgreSQL a statement outside a transaction is one of its own. On SQLite concurrent
    /// writers share one.
    pub commits: u64,
}

impl Trips {
    /// The difference to an earlier reading.
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

    /// Runs `work` on this thread and counts the statements that it [noted](note_statement).
    pub(super) fn around<T>(&self, work: impl FnOnce() -> T) -> T {
        let before = STATEMENTS.get();
        let result = work();
        self.statements(STATEMENTS.get() - before);
        result
    }
}

thread_local! {
    /// A SQLite connection does not know its pool, but a statement never leaves its thread.
    static STATEMENTS: Cell<u64> = const { Cell::new(0) };
}

/// Counts one SQLite statement of this thread.
pub(super) fn note_statement() {
    STATEMENTS.set(STATEMENTS.get() + 1);
}
