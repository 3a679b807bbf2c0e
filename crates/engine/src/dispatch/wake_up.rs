//! Wakes the dispatcher after a commit. This only saves time: the dispatcher also polls, and finds all work without it.

use std::sync::Arc;

use tokio::sync::Notify;

use crate::db;
use crate::store::Store;

/// Signals that a commit may have brought work.
pub struct WakeUp {
    rung: Arc<Notify>,
    watching: tokio::task::JoinHandle<()>,
}

impl WakeUp {
    pub fn watch(store: &Store) -> Self {
        let rung = Arc::new(Notify::new());
        let ringing = rung.clone();
        Self { watching: tokio::spawn(store.db().clone().watch(db::Signal::Work, move |_| ringing.notify_one())), rung }
    }

    pub async fn rung(&self) {
        self.rung.notified().await;
    }
}

impl Drop for WakeUp {
    fn drop(&mut self) {
        self.watching.abort();
    }
}
