//! Runs operators' jobs in slices, concurrently with the dispatcher and at the pace of each job.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use postcommit_channel::clock;

use super::outage::OutageLog;
use crate::db::DbError;
use crate::store::{SliceOutcome, Store};

/// How often the process looks for new jobs.
const LOOK: Duration = Duration::from_secs(1);

/// Runs one slice of a due job.
pub async fn run_once(store: &Store) -> Result<SliceOutcome, DbError> {
    store.run_job_slice().await
}

pub async fn run_forever(store: Store, quiet: Arc<AtomicBool>, outage: Arc<OutageLog>) {
    while !quiet.load(Ordering::Relaxed) {
        match run_once(&store).await {
            Ok(SliceOutcome::Moved { job, rows, is_last: true }) => tracing::info!(%job, rows, "bulk job done"),
            Ok(SliceOutcome::Moved { .. } | SliceOutcome::Lost) => {}
            Ok(SliceOutcome::Nothing) => tokio::time::sleep(pause(&store).await).await,
            Err(problem) => {
                outage.failed(&problem, "could not look for bulk jobs, or run the next part of one; trying again");
                tokio::time::sleep(LOOK).await;
            }
        }
    }
}

/// Runs all due slices of jobs, as part of a pass. Where cron starts the only worker, no other process would run them.
/// Slices that are due later are left for the next pass. A job that fails delays no delivery.
pub async fn run_due(store: &Store, end: Option<Instant>) {
    while end.is_none_or(|end| clock::monotonic() < end) {
        match run_once(store).await {
            Ok(SliceOutcome::Moved { .. } | SliceOutcome::Lost) => {}
            Ok(SliceOutcome::Nothing) => return,
            Err(problem) => {
                tracing::warn!(%problem, "could not run the next part of a bulk job; trying again later");
                return;
            }
        }
    }
}

/// Returns the wait until the next slice, at most `LOOK`, so that a new job is found soon. A wait of zero is ignored:
/// that job is unreadable or has become due just now.
async fn pause(store: &Store) -> Duration {
    let next = store.next_slice_in().await.ok().flatten().filter(|next| !next.is_zero());
    next.unwrap_or(LOOK).clamp(Duration::from_millis(5), LOOK)
}
