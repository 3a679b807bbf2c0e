//! Runs the jobs that operators asked for: a slice at a time, beside the dispatcher, at the pace that was asked for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use postcommit_channel::clock;

use crate::db::DbError;
use crate::store::{Sliced, Store};

/// How long until a look at whether somebody asked for a job.
const LOOK: Duration = Duration::from_secs(1);

/// Takes one job that is due a slice further.
///
/// # Errors
/// As the database says; the next look tries again.
pub async fn run_once(store: &Store) -> Result<Sliced, DbError> {
    store.run_job_slice().await
}

pub async fn run_forever(store: Store, quiet: Arc<AtomicBool>) {
    while !quiet.load(Ordering::Relaxed) {
        match run_once(&store).await {
            Ok(Sliced::Moved { job, rows, is_last: true }) => tracing::info!(%job, rows, "job done"),
            Ok(Sliced::Moved { .. } | Sliced::Lost) => {}
            Ok(Sliced::Nothing) => tokio::time::sleep(pause(&store).await).await,
            Err(problem) => {
                tracing::warn!(%problem, "a slice of a job failed; it will be tried again");
                tokio::time::sleep(LOOK).await;
            }
        }
    }
}

/// Takes every job that is due a slice further, for a pass: where cron is the only worker nobody else would. What is due only later, by the pace, is for
/// the next pass. A job that fails is noted with it, and holds no delivery up.
pub async fn run_due(store: &Store, end: Option<Instant>) {
    while end.is_none_or(|end| clock::monotonic() < end) {
        match run_once(store).await {
            Ok(Sliced::Moved { .. } | Sliced::Lost) => {}
            Ok(Sliced::Nothing) => return,
            Err(problem) => {
                tracing::warn!(%problem, "a slice of a job failed; it will be tried again");
                return;
            }
        }
    }
}

/// Until the next slice, but never so long that a new job would wait for it. A job that is due and was not found cannot be read, or has just become due.
async fn pause(store: &Store) -> Duration {
    let next = store.next_slice_in().await.ok().flatten().filter(|next| !next.is_zero());
    next.unwrap_or(LOOK).clamp(Duration::from_millis(5), LOOK)
}
