//! How a bounded pass ends.

use super::Dispatcher;
use crate::clock;

impl Dispatcher {
    /// Nothing is under way but results that the database refuses.
    pub(super) fn is_quiet(&self) -> bool {
        self.crew.leases.len() <= self.crew.settler.unwritten()
    }

    /// Results that the database refuses are waited for as long as a stop does: a pass ends.
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
