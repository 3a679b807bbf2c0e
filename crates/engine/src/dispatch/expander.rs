//! What a claimed notification becomes: its deliveries, in one transaction; or it is parked, with the reason.

use std::collections::HashMap;
use std::time::Duration;

use postcommit::Timestamp;

use tokio::sync::OwnedSemaphorePermit;

use super::settler::unbegun;
use super::{Claimed, Crew};
use crate::db::DbError;
use crate::model::{self, Delivery, Expansion, Fate, Finish, FinishedState, MAX_LOSSES, Provider, Reason, Routes, StoredNotification};
use crate::store::{Expanded, Lease, Settlement};

/// Rows that one statement of an expansion writes, more or less.
const CHUNK_ROWS: usize = 1000;

/// How long an expansion that could not be written waits.
const MOMENT: Duration = Duration::from_secs(1);

/// What is to be written for one claimed row.
enum Step {
    Expand(Expanded),
    Enter(Lease, i32),
    Settle(Settlement),
}

/// Expands a batch. What cannot be written now goes back and is claimed again.
pub async fn expand_batch(crew: &Crew, batch: Vec<Claimed>, slots: Option<OwnedSemaphorePermit>) {
    let unsettled = crew.leases.guard(batch.iter().map(|(delivery, _)| lease(delivery)));
    if let Err(problem) = expand_all(crew, &batch).await {
        tracing::warn!(%problem, notifications = batch.len(), "could not expand; they go back");
        // What an earlier chunk has expanded is no longer held, and not given back.
        let held = batch.into_iter().map(|(delivery, _)| delivery).filter(|delivery| crew.leases.holds(&lease(delivery)));
        crew.settler.return_unbegun(held.collect::<Vec<_>>());
    }
    unsettled.disarm();
    drop(slots);
    crew.stir.notify_one();
}

async fn expand_all(crew: &Crew, batch: &[Claimed]) -> Result<(), DbError> {
    let Crew { tools, settler, leases, .. } = crew;
    let mut routes: HashMap<i32, Vec<Provider>> = HashMap::new();
    for provider in tools.store.providers().await? {
        routes.entry(provider.tenant).or_default().push(provider);
    }
    let now = tools.store.now().await?;
    let (mut expanded, mut entering, mut settling) = (vec![], vec![], vec![]);
    for (delivery, note) in batch {
        let routes = Routes(routes.get(&delivery.key.tenant).map_or(&[], Vec::as_slice));
        match step(delivery, note, routes, now) {
            Step::Expand(one) => expanded.push(one),
            Step::Enter(lease, lane) => entering.push((lease, lane)),
            Step::Settle(settlement) => settling.push(settlement),
        }
    }
    settling.into_iter().for_each(|settlement| settler.settle(settlement, None));
    for chunk in chunks(expanded) {
        expand_chunk(crew, chunk, now).await;
    }
    for (lease, lane) in entering {
        tools.store.enter_lane(lease, lane).await?;
        leases.release(&lease);
    }
    Ok(())
}

/// Writes one chunk. Where it is refused, one notification is at fault: alone it cannot hold the others up. What cannot be written waits a moment.
async fn expand_chunk(crew: &Crew, chunk: Vec<Expanded>, now: Timestamp) {
    match (write_chunk(crew, chunk.clone()).await, chunk.len()) {
        (Ok(()), _) => {}
        (Err(DbError::Refused { message, .. }), 2..) => {
            tracing::error!(message, "an expansion was refused; expanding one by one");
            for one in chunk {
                Box::pin(expand_chunk(crew, vec![one], now)).await;
            }
        }
        (Err(problem), notifications) => {
            tracing::warn!(%problem, notifications, "could not expand; trying again in a moment");
            let finish = Finish::Again { at: now.plus(MOMENT), counted: false };
            for Expanded { lease, .. } in chunk {
                crew.settler.settle(Settlement { lease, finish, attempt: None, code: None, detail: None, unclear: false }, None);
            }
        }
    }
}

async fn write_chunk(crew: &Crew, chunk: Vec<Expanded>) -> Result<(), DbError> {
    let done: Vec<Lease> = chunk.iter().map(|e| e.lease).collect();
    let ended: Vec<_> =
        chunk.iter().flat_map(|e| e.targets.iter().filter_map(|target| Some((e.lease.key.notification, target.fate.ended()?)))).collect();
    crew.tools.store.expand(chunk).await?;
    ended.into_iter().for_each(|(notification, state)| crew.settler.count_ended(notification, state));
    done.iter().for_each(|lease| crew.leases.release(lease));
    Ok(())
}

/// As many notifications at once as make up so many rows: on SQLite the application waits for each chunk, and nothing waits for all.
fn chunks(expanded: Vec<Expanded>) -> Vec<Vec<Expanded>> {
    let mut chunks: Vec<Vec<Expanded>> = Vec::new();
    let mut rows = CHUNK_ROWS;
    for one in expanded {
        if rows >= CHUNK_ROWS {
            chunks.push(Vec::new());
            rows = 0;
        }
        rows += one.targets.len();
        if let Some(chunk) = chunks.last_mut() {
            chunk.push(one);
        }
    }
    chunks
}

fn step(delivery: &Delivery, note: &StoredNotification, routes: Routes<'_>, now: Timestamp) -> Step {
    let ended = |state, code| Step::Settle(unbegun(delivery, Finish::Ended(state), Some(code), None));
    match () {
        () if note.is_cancelled(delivery.key.n) => ended(FinishedState::Cancelled, "cancelled"),
        () if note.expires_at <= now => ended(FinishedState::Expired, "expired"),
        () if delivery.losses > MAX_LOSSES => parked(delivery, "lease_expired", "every worker that tried to expand it was lost".into()),
        // Its provider was missing when it was expanded: it looks for one again.
        () if delivery.key.n > 0 => match model::route(note, delivery.key.n, routes) {
            Fate::Lane(lane) => Step::Enter(lease(delivery), lane),
            Fate::Ended { code, detail, .. } => parked(delivery, code, detail),
        },
        () => match model::expand(note, routes) {
            Expansion::Deliveries(targets) => Step::Expand(Expanded { lease: lease(delivery), targets }),
            Expansion::Parked { code, detail } => parked(delivery, code, detail),
        },
    }
}

fn lease(delivery: &Delivery) -> Lease {
    Lease { key: delivery.key, token: delivery.token }
}

fn parked(delivery: &Delivery, code: &str, detail: String) -> Step {
    Step::Settle(unbegun(delivery, Finish::Ended(FinishedState::Parked(Reason::Config)), Some(code), Some(detail)))
}
