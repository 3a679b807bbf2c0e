//! Permits of rate-limited lanes. A claim takes them in the database (`store/queue/limited.rs`). This file holds what
//! the process knows of the next ones, and what it took and did not use.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use postcommit::Timestamp;
use postcommit_channel::clock;

/// The state is read again after this time in any case: another process may return permits, or the database's clock may
/// be set.
const LONGEST: Duration = Duration::from_secs(60);

/// What this process knows of one lane's permits.
#[derive(Default)]
pub struct LanePermits(Mutex<PermitCounts>);

#[derive(Default)]
struct PermitCounts {
    /// When the next permit is due; `None` if there may be one now.
    next_at: Option<Instant>,
    /// Unused permits and when they were taken, by the database's clock.
    unused: Vec<(Timestamp, usize)>,
    /// Batches that still hold permits.
    under_way: usize,
}

impl LanePermits {
    /// Whether there may be a permit now.
    pub fn may_have_one(&self) -> bool {
        self.next_at().is_none_or(|at| at <= clock::monotonic())
    }

    pub fn next_at(&self) -> Option<Instant> {
        self.lock().next_at
    }

    /// Sets when the next permit is due, as a claim reported. Zero means now.
    pub fn expect_after(&self, wait: Duration) {
        self.lock().next_at = (!wait.is_zero()).then(|| clock::monotonic() + wait.min(LONGEST));
    }

    /// Takes the unused permits with the time at which they were taken. A permit may be free soon then.
    pub fn take_unused(&self) -> Vec<(Timestamp, usize)> {
        let mut reading = self.lock();
        if !reading.unused.is_empty() {
            reading.next_at = None;
        }
        std::mem::take(&mut reading.unused)
    }

    /// Whether a batch holds permits that may come back.
    pub fn are_under_way(&self) -> bool {
        self.lock().under_way > 0
    }

    fn lock(&self) -> MutexGuard<'_, PermitCounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The permits of a claimed batch. Unspent ones go back with the next round when this is dropped: an expired delivery
/// must not cost an hour where one send an hour is allowed.
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

    /// Marks permits as used.
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
