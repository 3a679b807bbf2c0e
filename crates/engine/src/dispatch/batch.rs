//! A claimed batch: its notifications are read, then its deliveries are expanded or attempted.

use std::sync::Arc;
use std::time::{Duration, Instant};

use postcommit::Timestamp;
use postcommit_channel::model::Delivery;
use tokio::sync::OwnedSemaphorePermit;
use uuid::Uuid;

use super::lanes::{Lane, Table};
use super::permits::Permits;
use super::{Claimed, Crew, Notes, attempt, expander};
use crate::db::DbError;
use crate::store::Lease;

/// The database's time, computed from the time of a claim. Asking the database would cost a round trip.
#[derive(Debug, Clone, Copy)]
pub(super) struct DatabaseTime {
    pub then: Timestamp,
    pub since: Instant,
}

impl DatabaseTime {
    /// Returns the current time in whole milliseconds, the resolution of SQLite's clock.
    pub fn now(&self) -> Timestamp {
        let elapsed = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.then.plus(Duration::from_millis(elapsed))
    }
}

/// Whether a claimed batch is expanded or attempted, with its slots and permits.
pub(super) enum Route {
    Expand(Arc<Table>, Option<OwnedSemaphorePermit>),
    Attempt(Arc<Lane>, Option<OwnedSemaphorePermit>, Option<Permits>),
}

/// Reads the notifications of a batch, then expands or attempts it.
pub(super) async fn begin(crew: Arc<Crew>, way: Route, batch: Vec<Delivery>, notes: Notes, clock: DatabaseTime) {
    let unsettled = crew.leases.guard(batch.iter().map(Lease::of));
    match load(&crew, batch, notes).await {
        Ok(batch) => match way {
            Route::Expand(table, slots) => expander::expand_batch(&crew, &table, batch, clock, slots).await,
            Route::Attempt(lane, slots, permits) => {
                attempt::attempt_batch(&crew, &lane, batch, clock, slots, permits).await;
            }
        },
        Err((batch, problem)) => {
            let wait = crew.reading.wait();
            tracing::warn!(
                %problem, ?wait,
                "could not read the claimed notifications; their deliveries go back to the queue and are tried again \
                 after the wait"
            );
            crew.settler.put_off(batch.iter().map(Lease::of), clock.now().plus(wait));
        }
    }
    unsettled.disarm();
}

/// Pairs each delivery with its notification. Notifications that did not come with the claim are read once each.
async fn load(crew: &Crew, batch: Vec<Delivery>, mut notes: Notes) -> Result<Vec<Claimed>, (Vec<Delivery>, DbError)> {
    let mut keys: Vec<(i32, Uuid)> = batch.iter().map(|d| (d.key.tenant, d.key.notification)).collect();
    keys.dedup();
    keys.retain(|(_, id)| !notes.contains_key(id));
    if !keys.is_empty() {
        match crew.tools.store.notifications(&keys).await {
            Ok(read) => {
                crew.reading.reset();
                notes.extend(read.into_iter().map(|note| (note.id, Arc::new(note))));
            }
            Err(problem) => return Err((batch, problem)),
        }
    }
    let mut claimed = Vec::with_capacity(batch.len());
    for delivery in batch {
        match notes.get(&delivery.key.notification) {
            Some(note) => claimed.push((delivery, note.clone())),
            // The notification is purged or unreadable, so there is nothing to send.
            None => crew.settler.orphan(&delivery),
        }
    }
    Ok(claimed)
}
