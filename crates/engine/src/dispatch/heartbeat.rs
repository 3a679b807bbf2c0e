//! The heartbeat of a running dispatcher. It lets other processes report when no worker runs.

use std::future::pending;
use std::time::Duration;

use tokio::sync::watch;
use uuid::Uuid;

use super::Stop;
use crate::store::Store;

/// How often a heartbeat is written. Several heartbeats fit into the time for which the store counts a worker as
/// running.
const EVERY: Duration = Duration::from_secs(15);

/// Writes heartbeats until a stop is requested, then removes the worker from the database.
pub async fn beat(store: Store, worker: Uuid, mut stop: watch::Receiver<Stop>) {
    let mut beat = tokio::time::interval(EVERY);
    let mut is_new = true;
    loop {
        tokio::select! {
            _ = beat.tick() => {}
            () = told(&mut stop) => break,
        }
        if let Err(problem) = store.be_present(worker).await {
            tracing::debug!(
                %problem,
                "could not write the heartbeat of this worker; trying again at the next heartbeat"
            );
        }
        // Skipped at the first heartbeat, because a starting process has other work to do.
        if !is_new && let Err(problem) = store.forget_workers().await {
            tracing::debug!(
                %problem,
                "could not delete the heartbeats of workers that no longer run; trying again at the next heartbeat"
            );
        }
        is_new = false;
    }
    if let Err(problem) = store.leave(worker).await {
        tracing::debug!(%problem, "could not delete the heartbeat of this worker; it expires by itself");
    }
}

/// Waits until a stop is requested. A dropped sender is not a request to stop, so the wait then never ends.
async fn told(stop: &mut watch::Receiver<Stop>) {
    if stop.wait_for(|stop| *stop != Stop::No).await.is_err() {
        pending::<()>().await;
    }
}
