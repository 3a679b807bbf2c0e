//! The moment by which a whole call, or one conversation over a dialled stream, must be over.

use std::time::{Duration, Instant};

use crate::clock;

/// The longest a call may take, whatever its timeout says.
const LONGEST: Duration = Duration::from_secs(3600);

/// A moment of the monotonic clock, at most an hour away when it is made.
#[derive(Debug, Clone, Copy)]
pub struct Deadline(Instant);

impl Deadline {
    /// So long from now; more than an hour is an hour.
    pub fn after(timeout: Duration) -> Self {
        Self(clock::monotonic() + timeout.min(LONGEST))
    }

    /// The time left, zero when it has passed.
    pub fn left(self) -> Duration {
        self.0.saturating_duration_since(clock::monotonic())
    }

    /// Runs `work` until the deadline; does not begin it when the deadline has passed.
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

/// The deadline has passed.
#[derive(Debug, thiserror::Error)]
#[error("no answer in time")]
pub(super) struct Late;
