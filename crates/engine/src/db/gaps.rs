//! Regularly releases the lock of a SQLite file for a pause, so that other programs can write.
//!
//! A program that finds the file locked tries again, at last every 100 ms, until its busy timeout is over (5 seconds by
//! default in most languages). A writer that is always busy would hold the lock at nearly every try, and the
//! application's transaction would fail. So a busy writer pauses twice a second for a little longer than 100 ms. It
//! repeats the pause while other programs write.

use std::time::{Duration, Instant};

use postcommit_channel::clock;
use rusqlite::Connection;

/// How long the writer's use of the lock is measured before it may pause.
const PERIOD: Duration = Duration::from_millis(500);
/// The pause after a period in which the writer was busy: longer than the 100 ms after which SQLite tries again.
const PAUSE: Duration = Duration::from_millis(110);
/// The most pauses in a row, because other programs may write without end.
const PAUSES: usize = 5;

/// Measures how long the writer has held the lock of the file in the current period.
pub(super) struct Gaps {
    since: Instant,
    held: Duration,
}

impl Gaps {
    pub(super) fn new() -> Self {
        Self { since: clock::monotonic(), held: Duration::ZERO }
    }

    /// Adds the time of a transaction, and at the end of a period pauses if the writer left other programs too little
    /// time. A writer that holds the lock for less than four fifths of the time needs no pause: other programs soon
    /// find it free.
    pub(super) fn leave(&mut self, held: Duration, connection: &Connection) {
        self.held += held;
        let passed = self.since.elapsed();
        if passed < PERIOD {
            return;
        }
        if self.held > passed.mul_f64(0.8) {
            for _ in 0..PAUSES {
                let before = version(connection);
                std::thread::sleep(PAUSE);
                // Several programs may wait, and each tries once in a pause. If one of them wrote, others may have
                // found the lock taken and need another pause.
                if version(connection) == before {
                    break;
                }
            }
        }
        *self = Self::new();
    }
}

/// Returns a number that changes when another connection has written to the file.
fn version(connection: &Connection) -> Option<i64> {
    connection.query_row("PRAGMA data_version", (), |row| row.get(0)).ok()
}
