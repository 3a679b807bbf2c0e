//! The heartbeat of a running dispatcher, so that people can be told when no worker runs.

use std::future::pending;
use std::time::Duration;

use tokio::sync::watch;
use uuid::Uuid;

use super::Stop;
use crate::store::Store;

/// Several heartbeats fit into the time for which the store believes one.
const EVERY: Duration = Duration::from_secs(15);

/// Writes heartbeats until asked to stop, then removes the worker.
pub async fn beat(store: Store, worker: Uuid, mut stop: watch::Receiver<Stop>) {
    let mut beat = tokio::time::interval(EVERY);
    let mut is_new = true;
    loop {
        tokio::select! {
            _ = beat.tick() => {}
            () = told(&mut stop) => break,
        }
        if let Err(problem) = store.be_present(worker).await {
            tracing::debug!(%problem, "could not write the heartbeat");
        }
        // Not at the start, when there is other work.
        if !is_new && let Err(problem) = store.forget_workers().await {
            tracing::debug!(%problem, "could not remove workers that are gone");
        }
        is_new = false;
    }
    if let Err(problem) = store.leave(worker).await {
        tracing::debug!(%problem, "could not remove this worker; its heartbeat runs out by itself");
    }
}

/// A dropped sender is not a stop request: wait forever.
async fn told(stop: &mut watch::Receiver<Stop>) {
    if stop.wait_for(|stop| *stop != Stop::No).await.is_err() {
        pending::<()>().await;
    }
}
