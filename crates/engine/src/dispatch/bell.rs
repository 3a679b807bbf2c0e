//! Wakes the dispatcher when something was committed. Only a hint: everything is found by the poll as well.

use std::sync::Arc;

use tokio::sync::Notify;

use crate::db;
use crate::store::Store;

/// Rings when a commit may have brought work.
pub struct Bell {
    rung: Arc<Notify>,
    watching: tokio::task::JoinHandle<()>,
}

impl Bell {
    pub fn hang(store: &Store) -> Self {
        let rung = Arc::new(Notify::new());
        let ringing = rung.clone();
        Self { watching: tokio::spawn(store.db().clone().watch(db::Bell::Work, move |_| ringing.notify_one())), rung }
    }

    pub async fn rung(&self) {
        self.rung.notified().await;
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        self.watching.abort();
    }
}
