//! Backoff after a failed read or write of our own. The wait doubles with each consecutive failure, so that a database
//! that refuses is not asked in a tight loop.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use postcommit_channel::clock;

/// The first wait. It doubles with each further failure.
pub const FIRST: Duration = Duration::from_secs(1);
/// The longest wait, unless the caller sets another limit.
const LONGEST: Duration = Duration::from_secs(60);

/// Counts consecutive failures of one kind of read or write.
#[derive(Default)]
pub struct Backoff(Mutex<Failures>);

#[derive(Default)]
struct Failures {
    in_a_row: u32,
    until: Option<Instant>,
}

impl Backoff {
    /// Counts a failure and returns how long to wait. Failures during a running wait are not counted again.
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

    /// Returns how much of the running wait is left.
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

/// Varies the interval randomly by up to a quarter, so that processes that start together do not poll together.
pub fn jittered(interval: Duration) -> Duration {
    let chance = f64::from(postcommit_channel::secret::random::<1>()[0]) / 255.0;
    interval.mul_f64(0.75 + 0.5 * chance)
}
