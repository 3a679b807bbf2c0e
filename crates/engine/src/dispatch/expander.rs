//! What a claimed notification becomes: its deliveries, in one transaction; or it is parked, with the reason.

use std::sync::Arc;

use tokio::sync::{Notify, OwnedSemaphorePermit};

use super::Tools;
use super::leases::Leases;
use super::settler::{Settler, unbegun};
use crate::db::DbError;
use crate::model::{self, Delivery, Expansion, Fate, Finish, FinishedState, Provider, Reason, Routes, StoredNotification};
use crate::store::{Expanded, Lease};

/// Expands a batch. What cannot be written now goes back and is claimed again.
pub async fn expand_batch(
    tools: &Tools,
    settler: &Settler,
    leases: &Leases,
    slots: Option<OwnedSemaphorePermit>,
    batch: Vec<(Delivery, Arc<StoredNotification>)>,
    stir: &Notify,
) {
    if let Err(problem) = expand_all(tools, settler, leases, &batch).await {
        tracing::warn!(%problem, notifications = batch.len(), "could not expand; they go back");
        settler.return_unbegun(batch.into_iter().map(|(delivery, _)| delivery).collect()).await;
    }
    drop(slots);
    stir.notify_one();
}

async fn expand_all(
    tools: &Tools,
    settler: &Settler,
    leases: &Leases,
    batch: &[(Delivery, Arc<StoredNotification>)],
) -> Result<(), DbError> {
    let providers = tools.store.providers().await?;
    let now = tools.store.now().await?;
    let mut expanded = Vec::with_capacity(batch.len());
    for (delivery, note) in batch {
        let lease = Lease { key: delivery.key, token: delivery.token };
        let routes: Vec<Provider> = providers.iter().filter(|p| p.tenant == delivery.key.tenant).cloned().collect();
        if let Some((state, code)) = over_already(note, now) {
            settler.settle(unbegun(delivery, Finish::Ended(state), Some(code), None), None);
        } else if delivery.key.n > 0 {
            route(tools, settler, leases, delivery, Routes(&routes)).await?;
        } else {
            match model::expand(note, Routes(&routes)) {
                Expansion::Deliveries(targets) => expanded.push(Expanded { lease, targets }),
                Expansion::Parked { code, detail } => settler.settle(parked(delivery, code, detail), None),
            }
        }
    }
    if !expanded.is_empty() {
        let done: Vec<Lease> = expanded.iter().map(|e| e.lease).collect();
        tools.store.expand(expanded).await?;
        done.iter().for_each(|lease| leases.release(lease));
    }
    Ok(())
}

/// A delivery whose provider was missing when it was expanded looks for one again.
async fn route(tools: &Tools, settler: &Settler, leases: &Leases, delivery: &Delivery, routes: Routes<'_>) -> Result<(), DbError> {
    match model::route(delivery.channel.as_deref().unwrap_or(""), routes) {
        Fate::Lane(lane) => {
            let lease = Lease { key: delivery.key, token: delivery.token };
            tools.store.enter_lane(lease, lane).await?;
            leases.release(&lease);
        }
        Fate::Ended { code, detail, .. } => settler.settle(parked(delivery, code, detail), None),
    }
    Ok(())
}

fn over_already(note: &StoredNotification, now: postcommit::Timestamp) -> Option<(FinishedState, &'static str)> {
    match () {
        () if note.cancelled => Some((FinishedState::Cancelled, "cancelled")),
        () if note.expires_at <= now => Some((FinishedState::Expired, "expired")),
        () => None,
    }
}

fn parked(delivery: &Delivery, code: &str, detail: String) -> crate::store::Settlement {
    unbegun(delivery, Finish::Ended(FinishedState::Parked(Reason::Config)), Some(code), Some(detail))
}
