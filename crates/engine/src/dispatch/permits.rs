//! Permits of lanes whose rate is limited. A claim takes them in the database (`store/rates.rs`); here is what this process knows of the next ones, and what
//! it took and did not use.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use postcommit::Timestamp;
use postcommit_channel::clock;

/// Another process may give permits back, a person may write the table, the database's clock may be set: after so long it is asked again in any case.
const LONGEST: Duration = Duration::from_secs(60);

/// What this process knows of one lane's permits.
#[derive(Default)]
pub struct LanePermits(Mutex<PermitCounts>);

#[derive(Default)]
struct PermitCounts {
    /// When the next permits are due; none if there may be some now.
    next_at: Option<Instant>,
    /// Taken then, by the database's clock, and not used.
    unused: Vec<(Timestamp, usize)>,
    /// Batches that hold permits.
    under_way: usize,
}

impl LanePermits {
    /// Whether there may be a permit by now.
    pub fn may_have_one(&self) -> bool {
        self.next_at().is_none_or(|at| at <= clock::monotonic())
    }

    pub fn next_at(&self) -> Option<Instant> {
        self.lock().next_at
    }

    /// As a claim has said; zero is now.
    pub fn expect_after(&self, wait: Duration) {
        self.lock().next_at = (!wait.is_zero()).then(|| clock::monotonic() + wait.min(LONGEST));
    }

    /// Permits that were not used, and when they were taken. They are gone from here then, and there may be one soon.
    pub fn take_unused(&self) -> Vec<(Timestamp, usize)> {
        let mut reading = self.lock();
        if !reading.unused.is_empty() {
            reading.next_at = None;
        }
        std::mem::take(&mut reading.unused)
    }

    /// Whether some batch holds permits that may come back.
    pub fn are_under_way(&self) -> bool {
        self.lock().under_way > 0
    }

    fn lock(&self) -> MutexGuard<'_, PermitCounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The permits of a claimed batch. What is not spent when it is dropped goes back with the next round: an expired delivery must not cost an hour where one an
/// hour is allowed.
pub struct Permits {
    meter: Arc<LanePermits>,
    taken_at: Timestamp,
    left: usize,
}

impl Permits {
    pub fn new(meter: Arc<LanePermits>, taken_at: Timestamp, count: usize) -> Self {
        meter.lock().under_way += 1;
        Self { meter, taken_at, left: count }
    }

    /// These are about to be sent.
    pub fn spend(&mut self, count: usize) {
        self.left = self.left.saturating_sub(count);
    }
}

impl Drop for Permits {
    fn drop(&mut self) {
        let mut reading = self.meter.lock();
        reading.under_way -= 1;
        if self.left > 0 {
            reading.unused.push((self.taken_at, self.left));
        }
    }
}
