//! Bounded passes. Only one pass over everything runs at a time, whichever process starts it: cron starts the next one
//! without waiting.

use std::time::Duration;

use postcommit_channel::clock;
use tokio::sync::oneshot;

use super::Dispatcher;
use crate::db::DbError;
use crate::store::{PASSING_SAID, Store};

/// How a pass over everything ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PassOutcome {
    /// Another pass runs, in this process or another. Nothing was claimed.
    Elsewhere,
    /// The pass ended, and what it began is finished.
    Done {
        /// Time ran out first: due work may be left.
        more: bool,
    },
}

impl Dispatcher {
    /// [`Dispatcher::pass_for`], unless another such pass is under way. The database knows it for 30 seconds at a time,
    /// so that one which was killed keeps nobody waiting for longer.
    pub async fn pass_alone(&mut self, bound: Duration) -> Result<PassOutcome, DbError> {
        let store = self.crew.tools.store.clone();
        if !store.begin_pass().await? {
            return Ok(PassOutcome::Elsewhere);
        }
        let (over, told) = oneshot::channel();
        let saying = tokio::spawn(say_so(store.clone(), told));
        let passed = self.pass_for(bound).await;
        drop(over);
        // Waited for: a mark that is written after the end would delay the next pass.
        let _ = saying.await;
        if let Err(problem) = store.end_pass().await {
            tracing::debug!(%problem, "could not end the mark of the pass; it runs out by itself");
        }
        passed.map(|more| PassOutcome::Done { more })
    }

    /// Whether nothing is in flight except results that the database refuses.
    pub(super) fn is_quiet(&self) -> bool {
        self.crew.leases.len() <= self.crew.settler.unwritten()
    }

    /// Waits for refused results as long as a stop does: a pass must end.
    pub(super) async fn finish_pass(&self) {
        let leases = &self.crew.leases;
        let mut end = None;
        while !leases.is_empty() {
            match self.is_quiet() {
                false => end = None,
                true if clock::monotonic() >= *end.get_or_insert(clock::monotonic() + self.grace()) => {
                    return tracing::error!(
                        results = leases.len(),
                        "ended with results that the database refuses; their leases will run out"
                    );
                }
                true => {}
            }
            let _ = tokio::time::timeout(self.interval(), self.crew.stir.notified()).await;
        }
    }
}

/// Renews the mark of the running pass until it is over.
async fn say_so(store: Store, mut over: oneshot::Receiver<()>) {
    let mut beat = tokio::time::interval(PASSING_SAID);
    beat.tick().await;
    loop {
        tokio::select! {
            _ = beat.tick() => {}
            _ = &mut over => return,
        }
        if let Err(problem) = store.go_on_passing().await {
            tracing::debug!(%problem, "could not renew the mark of the running pass");
        }
    }
}
