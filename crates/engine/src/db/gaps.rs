//! Leaves a SQLite file to other programs from time to time.
//!
//! A program that finds the file locked asks again, in the end every 100 ms, until its own busy timeout is over: 5
//! seconds by default in most languages. A writer that is always busy would hold the lock nearly every time it asks, and
//! the application's transaction would fail. So a busy writer pauses for a little longer than 100 ms twice a second, and
//! for as long again while others write.

use std::time::{Duration, Instant};

use postcommit_channel::clock;
use rusqlite::Connection;

/// How long the use of the file is observed.
const PERIOD: Duration = Duration::from_millis(500);
/// The pause after a period in which the writer was busy: longer than 100 ms, at which SQLite asks again.
const PAUSE: Duration = Duration::from_millis(110);
/// The most pauses in a row. Others may write without end.
const PAUSES: usize = 5;

/// How long the writer has held the lock of the file.
pub(super) struct Gaps {
    since: Instant,
    held: Duration,
}

impl Gaps {
    pub(super) fn new() -> Self {
        Self { since: clock::monotonic(), held: Duration::ZERO }
    }

    /// Notes a transaction, and pauses if the writer left other programs too little time. A writer that holds the lock
    /// for less than four fifths of the time needs no pause: others find the file free soon.
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
                // Several programs may wait, and each asks once in a pause. Who found the file taken asks again.
                if version(connection) == before {
                    break;
                }
            }
        }
        *self = Self::new();
    }
}

/// A number that changes when another connection has written to the file.
fn version(connection: &Connection) -> Option<i64> {
    connection.query_row("PRAGMA data_version", (), |row| row.get(0)).ok()
}
