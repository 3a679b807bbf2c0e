//! The leases that this process holds, and how long it may act on each.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use postcommit_channel::clock;
use postcommit_channel::model::{Delivery, DeliveryKey};
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::Tools;
use super::lanes::MARGIN;
use crate::FastMap;
use crate::store::Lease;

/// The leases of all rows that are claimed and not settled yet.
#[derive(Default)]
pub struct Leases(Mutex<FastMap<DeliveryKey, HeldLease>>);

#[derive(Clone, Copy)]
struct HeldLease {
    token: Uuid,
    /// The time before the claim or renewal was sent. So the lease in the database never ends earlier than computed
    /// here.
    since: Instant,
    length: Duration,
}

impl Leases {
    pub fn hold(&self, deliveries: &[Delivery], since: Instant, length: Duration) {
        let mut held = self.lock();
        held.extend(deliveries.iter().map(|d| (Lease::of(d).key, HeldLease { token: d.token, since, length })));
    }

    /// Passes a lease on to another row, which has taken it over in the database.
    pub fn pass_on(&self, from: &Lease, to: DeliveryKey) {
        let mut held = self.lock();
        if held.get(&from.key).is_some_and(|h| h.token == from.token)
            && let Some(passed) = held.remove(&from.key)
        {
            held.insert(to, passed);
        }
    }

    pub fn release(&self, lease: &Lease) {
        self.release_all([lease]);
    }

    pub fn release_all<'a>(&self, leases: impl IntoIterator<Item = &'a Lease>) {
        let mut held = self.lock();
        for lease in leases {
            if held.get(&lease.key).is_some_and(|h| h.token == lease.token) {
                held.remove(&lease.key);
            }
        }
    }

    /// Returns how long a send may still take. `None` when the lease is lost or too close to its end.
    pub fn time_left(&self, lease: &Lease) -> Option<Duration> {
        let held = self.lock().get(&lease.key).copied().filter(|h| h.token == lease.token)?;
        held.length.checked_sub(clock::monotonic().duration_since(held.since))?.checked_sub(MARGIN)
    }

    /// Waits until no send may go on under the lease: it was lost, or it ends without having been renewed.
    pub async fn ended(&self, lease: &Lease) {
        while let Some(left) = self.time_left(lease).filter(|left| !left.is_zero()) {
            tokio::time::sleep(left).await;
        }
    }

    /// Returns a guard that releases these leases when it is dropped, unless it is disarmed. Without it, a task that
    /// panics would leave leases that are renewed forever.
    pub fn guard(&self, leases: impl IntoIterator<Item = Lease>) -> Guard<'_> {
        Guard { held: self, leases: leases.into_iter().collect() }
    }

    pub fn len(&self) -> usize {
        self.lock().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, FastMap<DeliveryKey, HeldLease>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the leases of which more than a third is over, grouped by length.
    fn ageing(&self) -> HashMap<Duration, Vec<Lease>> {
        let now = clock::monotonic();
        let mut by_length: HashMap<Duration, Vec<Lease>> = HashMap::new();
        for (key, held) in self.lock().iter().filter(|(_, held)| now.duration_since(held.since) > held.length / 3) {
            by_length.entry(held.length).or_default().push(Lease { key: *key, token: held.token });
        }
        by_length
    }

    fn renewed(&self, asked: &[Lease], kept: &[DeliveryKey], since: Instant) {
        let mut held = self.lock();
        for lease in asked.iter().filter(|lease| kept.contains(&lease.key)) {
            if let Some(one) = held.get_mut(&lease.key).filter(|h| h.token == lease.token) {
                one.since = since;
            }
        }
    }
}

/// Stops the renewal of leases when the task that holds them panics.
pub struct Guard<'a> {
    held: &'a Leases,
    leases: Vec<Lease>,
}

impl Guard<'_> {
    /// Keeps the leases when the guard is dropped, because the settler will release them.
    pub fn disarm(mut self) {
        self.leases.clear();
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.held.release_all(&self.leases);
    }
}

/// Starts a task that renews leases until it is aborted.
pub fn renew_forever(tools: Tools, leases: Arc<Leases>) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut tick = tokio::time::interval(Duration::from_secs(tools.settings.lease_s) / 6);
        loop {
            tick.tick().await;
            renew_once(&tools, &leases).await;
        }
    })
}

async fn renew_once(tools: &Tools, leases: &Leases) {
    for (length, asked) in leases.ageing() {
        let since = clock::monotonic();
        match tools.store.renew(&asked, length).await {
            Ok(kept) => leases.renewed(&asked, &kept, since),
            Err(problem) => {
                tracing::warn!(
                    %problem,
                    "could not renew the leases of claimed deliveries; trying again at the next renewal"
                );
            }
        }
    }
}
