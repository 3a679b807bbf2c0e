//! Bounded passes. Only one pass over everything runs at a time in all processes, because cron starts the next one
//! without waiting for the previous one.

use std::time::Duration;

use postcommit_channel::clock;
use tokio::sync::oneshot;

use super::Dispatcher;
use crate::db::DbError;
use crate::store::{PASSING_SAID, Store};

/// How a pass over everything ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PassOutcome {
    /// Another pass is running, in this process or another. Nothing was claimed.
    Elsewhere,
    /// The pass ended, and all sends that it began are finished.
    Done {
        /// Whether the pass ran out of time, so that due work may be left.
        more: bool,
    },
}

impl Dispatcher {
    /// Runs [`Dispatcher::pass_for`], unless another such pass is running. The mark of a running pass in the database
    /// is valid for 30 seconds and is renewed, so that a killed pass does not block others for longer.
    pub async fn pass_alone(&mut self, bound: Duration) -> Result<PassOutcome, DbError> {
        let store = self.crew.tools.store.clone();
        if !store.begin_pass().await? {
            return Ok(PassOutcome::Elsewhere);
        }
        let (over, told) = oneshot::channel();
        let saying = tokio::spawn(say_so(store.clone(), told));
        let passed = self.pass_for(bound).await;
        drop(over);
        // Waits for the renewing task. If the mark were renewed after the end of the pass, it would delay the next
        // pass.
        let _ = saying.await;
        if let Err(problem) = store.end_pass().await {
            tracing::debug!(
                %problem,
                "could not delete the mark that a dispatch pass is running; it expires by itself"
            );
        }
        passed.map(|more| PassOutcome::Done { more })
    }

    /// Returns whether nothing is in flight except results that the database refuses.
    pub(super) fn is_quiet(&self) -> bool {
        self.crew.leases.len() <= self.crew.settler.unwritten()
    }

    /// Waits until everything in flight is finished. Results that the database refuses are waited for only during the
    /// grace period, because a pass must end.
    pub(super) async fn finish_pass(&self) {
        let leases = &self.crew.leases;
        let mut end = None;
        while !leases.is_empty() {
            match self.is_quiet() {
                false => end = None,
                true if clock::monotonic() >= *end.get_or_insert(clock::monotonic() + self.grace()) => {
                    return tracing::error!(
                        results = leases.len(),
                        "the dispatch pass ended with results of sends that the database refuses; when their leases \
                         expire, the guarantee of each provider decides whether they are sent again"
                    );
                }
                true => {}
            }
            let _ = tokio::time::timeout(self.interval(), self.crew.stir.notified()).await;
        }
    }
}

/// Renews the mark of the running pass until the pass is over.
async fn say_so(store: Store, mut over: oneshot::Receiver<()>) {
    let mut beat = tokio::time::interval(PASSING_SAID);
    beat.tick().await;
    loop {
        tokio::select! {
            _ = beat.tick() => {}
            _ = &mut over => return,
        }
        if let Err(problem) = store.go_on_passing().await {
            tracing::debug!(%problem, "could not renew the mark that a dispatch pass is running; trying again soon");
        }
    }
}
