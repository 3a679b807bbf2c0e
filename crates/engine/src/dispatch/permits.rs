//! Permits of rate-limited lanes. A claim takes them in the database (`store/queue/limited.rs`). This file keeps track
//! of when the next permit is due, and of permits that were taken and not used.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use postcommit::Timestamp;
use postcommit_channel::clock;

use super::Dispatcher;
use crate::db::DbError;
use crate::store::{LimitedClaim, Want};

/// The database is asked for permits again after this time at the latest. Another process may have returned permits, or
/// the database's clock may have been set.
const LONGEST: Duration = Duration::from_secs(60);

/// The permits of one lane, as far as this process knows them.
#[derive(Default)]
pub struct LanePermits(Mutex<PermitCounts>);

#[derive(Default)]
struct PermitCounts {
    /// When the next permit is due. `None` if there may be one now.
    next_at: Option<Instant>,
    /// Numbers of unused permits, each with the time at which they were taken, by the database's clock.
    unused: Vec<(Timestamp, usize)>,
    /// How many batches still hold permits.
    under_way: usize,
}

impl LanePermits {
    /// Returns whether the lane may have a permit now.
    pub fn may_have_one(&self) -> bool {
        self.next_at().is_none_or(|at| at <= clock::monotonic())
    }

    pub fn next_at(&self) -> Option<Instant> {
        self.lock().next_at
    }

    /// Sets when the next permit is due, as a claim reported. A wait of zero means that there may be one now.
    pub fn expect_after(&self, wait: Duration) {
        self.lock().next_at = (!wait.is_zero()).then(|| clock::monotonic() + wait.min(LONGEST));
    }

    /// Takes the unused permits with the times at which they were taken. When they are returned, a permit may be free,
    /// so the next claim asks again.
    pub fn take_unused(&self) -> Vec<(Timestamp, usize)> {
        let mut reading = self.lock();
        if !reading.unused.is_empty() {
            reading.next_at = None;
        }
        std::mem::take(&mut reading.unused)
    }

    /// Returns whether any batch holds permits that may come back unused.
    pub fn are_under_way(&self) -> bool {
        self.lock().under_way > 0
    }

    fn lock(&self) -> MutexGuard<'_, PermitCounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The permits of a claimed batch. When this is dropped, the next round returns the unspent permits to the database.
/// Otherwise an expired delivery would cost an hour where one send per hour is allowed.
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

impl Dispatcher {
    /// Claims from rate-limited lanes. These claims are separate, so that other lanes do not pay the cost of rate
    /// limits.
    pub(super) async fn round_of_limited(
        &mut self,
        limited: BTreeMap<Duration, Vec<Want>>,
        due_before: Option<Timestamp>,
    ) -> Result<usize, DbError> {
        let mut begun = 0;
        for (lease, wants) in limited {
            let before = clock::monotonic();
            let found = self.crew.tools.store.claim_limited(&wants, lease, due_before).await?;
            begun += self.start_limited(&wants, found, before, lease).await?;
        }
        Ok(begun)
    }

    pub(super) async fn start_limited(
        &mut self,
        wants: &[Want],
        found: LimitedClaim,
        claimed_at: Instant,
        lease: Duration,
    ) -> Result<usize, DbError> {
        self.lanes.note_limited(wants, &found);
        let permits = self.lanes.permits(&found);
        self.start(found.claim, claimed_at, lease, permits).await
    }

    /// Gives back the permits of deliveries that were claimed and not sent, for example expired ones.
    pub(super) async fn give_back_unused(&mut self) {
        for (lane, taken_at, permits) in self.lanes.take_unused() {
            if let Err(problem) = self.crew.tools.store.give_back_permits(lane, permits, taken_at).await {
                tracing::debug!(%problem, lane, "could not give back unused permits of a rate limit; they refill");
            }
        }
    }
}
