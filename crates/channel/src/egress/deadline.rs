//! The time by which a whole HTTP request, or a whole conversation over a dialled stream, must have ended.

use std::time::{Duration, Instant};

use crate::clock;

/// The longest allowed time of a request, even if its timeout is longer.
const LONGEST: Duration = Duration::from_secs(3600);

/// A point in time of the monotonic clock. It is at most one hour in the future when it is created.
#[derive(Debug, Clone, Copy)]
pub struct Deadline(Instant);

impl Deadline {
    /// A deadline after `timeout`, or after one hour if that is shorter.
    pub fn after(timeout: Duration) -> Self {
        Self(clock::monotonic() + timeout.min(LONGEST))
    }

    /// The remaining time, or zero if the deadline has passed.
    pub fn left(self) -> Duration {
        self.0.saturating_duration_since(clock::monotonic())
    }

    /// Runs `work` until the deadline. Does not start it if the deadline has passed.
    pub(super) async fn run<F: Future>(self, work: F) -> Result<F::Output, Late> {
        self.run_within(LONGEST, work).await
    }

    /// Runs `work` until the deadline, but no longer than `limit`.
    pub(super) async fn run_within<F: Future>(self, limit: Duration, work: F) -> Result<F::Output, Late> {
        let left = self.left().min(limit);
        if left.is_zero() {
            return Err(Late);
        }
        tokio::time::timeout(left, work).await.map_err(|_| Late)
    }
}

/// The error when the deadline has passed.
#[derive(Debug, thiserror::Error)]
#[error("no answer in time")]
pub(super) struct Late;
