//! How long what we could not write or read waits: longer with each failure in a row, so that a database that refuses is not asked in a hot loop.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use postcommit_channel::clock;

/// The first wait; it doubles with each failure.
pub const FIRST: Duration = Duration::from_secs(1);
/// The longest one, unless told otherwise.
const LONGEST: Duration = Duration::from_secs(60);

/// Failures in a row of one kind of write.
#[derive(Default)]
pub struct Setback(Mutex<Failures>);

#[derive(Default)]
struct Failures {
    in_a_row: u32,
    until: Option<Instant>,
}

impl Setback {
    /// One more failure: how long to wait. Those that come while a wait runs are one failure, however many they are.
    pub fn wait(&self) -> Duration {
        self.wait_up_to(LONGEST)
    }

    pub fn wait_up_to(&self, longest: Duration) -> Duration {
        let (mut failures, now) = (self.lock(), clock::monotonic());
        if let Some(until) = failures.until.filter(|until| *until > now) {
            return until - now;
        }
        let wait = FIRST.saturating_mul(1 << failures.in_a_row.min(16)).min(longest);
        failures.in_a_row += 1;
        failures.until = Some(now + wait);
        wait
    }

    /// How long the wait still lasts.
    pub fn left(&self) -> Duration {
        self.lock().until.map_or(Duration::ZERO, |until| until.saturating_duration_since(clock::monotonic()))
    }

    /// It worked.
    pub fn over(&self) {
        *self.lock() = Failures::default();
    }

    fn lock(&self) -> MutexGuard<'_, Failures> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
