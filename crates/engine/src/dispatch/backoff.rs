//! Backoff after a failed read or write of our own: the wait doubles with each consecutive failure, so that a database
//! that refuses is not asked in a hot loop.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use postcommit_channel::clock;

/// The first wait; it doubles with each failure.
pub const FIRST: Duration = Duration::from_secs(1);
/// The longest wait by default.
const LONGEST: Duration = Duration::from_secs(60);

/// Consecutive failures of one kind of read or write.
#[derive(Default)]
pub struct Backoff(Mutex<Failures>);

#[derive(Default)]
struct Failures {
    in_a_row: u32,
    until: Option<Instant>,
}

impl Backoff {
    /// Counts a failure and returns the wait. Failures during a running wait count as one.
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

    /// The rest of the running wait.
    pub fn left(&self) -> Duration {
        self.lock().until.map_or(Duration::ZERO, |until| until.saturating_duration_since(clock::monotonic()))
    }

    /// Ends the backoff after a success.
    pub fn reset(&self) {
        *self.lock() = Failures::default();
    }

    fn lock(&self) -> MutexGuard<'_, Failures> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
