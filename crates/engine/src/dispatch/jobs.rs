//! Runs jobs of operators, slice by slice, beside the dispatcher and at the pace of each job.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use postcommit_channel::clock;

use crate::db::DbError;
use crate::store::{SliceOutcome, Store};

/// How often the process looks for new jobs.
const LOOK: Duration = Duration::from_secs(1);

/// Runs one slice of a due job.
///
/// # Errors
/// When the database fails; the next look tries again.
pub async fn run_once(store: &Store) -> Result<SliceOutcome, DbError> {
    store.run_job_slice().await
}

pub async fn run_forever(store: Store, quiet: Arc<AtomicBool>) {
    while !quiet.load(Ordering::Relaxed) {
        match run_once(&store).await {
            Ok(SliceOutcome::Moved { job, rows, is_last: true }) => tracing::info!(%job, rows, "job done"),
            Ok(SliceOutcome::Moved { .. } | SliceOutcome::Lost) => {}
            Ok(SliceOutcome::Nothing) => tokio::time::sleep(pause(&store).await).await,
            Err(problem) => {
                tracing::warn!(%problem, "a slice of a job failed; trying again later");
                tokio::time::sleep(LOOK).await;
            }
        }
    }
}

/// Runs due slices of all jobs, for a pass: where cron is the only worker nobody else would. Slices that are due later
/// are left for the next pass. A job that fails delays no delivery.
pub async fn run_due(store: &Store, end: Option<Instant>) {
    while end.is_none_or(|end| clock::monotonic() < end) {
        match run_once(store).await {
            Ok(SliceOutcome::Moved { .. } | SliceOutcome::Lost) => {}
            Ok(SliceOutcome::Nothing) => return,
            Err(problem) => {
                tracing::warn!(%problem, "a slice of a job failed; trying again later");
                return;
            }
        }
    }
}

/// The wait until the next slice, but at most one look, so that a new job is found. A due job that was not found is
/// unreadable, or has just become due.
async fn pause(store: &Store) -> Duration {
    let next = store.next_slice_in().await.ok().flatten().filter(|next| !next.is_zero());
    next.unwrap_or(LOOK).clamp(Duration::from_millis(5), LOOK)
}
