//! The items of digests. They are read before each attempt, and expired items are removed.

use std::collections::HashMap;

use postcommit::Timestamp;
use postcommit_channel::model::{Delivery, Finish, FinishedState, Maker, StoredNotification};
use serde_json::value::RawValue;
use uuid::Uuid;

use super::lanes::Lane;
use super::parked_log::About;
use super::settler::{Noted, unbegun};
use super::{Claimed, Crew};
use crate::db::DbError;
use crate::store::{DigestItem, DigestKey, Lease};

/// The payloads of the items, by the id of the digest's notification.
pub(super) type Items = HashMap<Uuid, Vec<Box<RawValue>>>;

/// Reads the items of the digests in a batch. Returns the deliveries that may be rendered, and the items. A digest without
/// an item left ends as expired.
pub(super) async fn read_items(crew: &Crew, lane: &Lane, batch: Vec<Claimed>, now: Timestamp) -> (Vec<Claimed>, Items) {
    let is_digest = |(delivery, note): &Claimed| note.maker(&delivery.facts) == Maker::Digest;
    let (digests, mut ready): (Vec<_>, Vec<_>) = batch.into_iter().partition(is_digest);
    if digests.is_empty() {
        return (ready, Items::new());
    }
    let items = match unexpired(crew, &digests, now).await {
        Ok(items) => items,
        Err(problem) => {
            let wait = crew.reading.wait();
            tracing::warn!(%problem, ?wait, "could not read the items of digests; the deliveries go back to the queue and are tried again after the wait");
            crew.settler.put_off(digests.iter().map(|(delivery, _)| Lease::of(delivery)), now.plus(wait));
            return (ready, Items::new());
        }
    };
    for (delivery, note) in digests {
        match items.get(&note.id) {
            Some(some) if !some.is_empty() => ready.push((delivery, note)),
            Some(_) => expire(crew, lane, &delivery, &note),
            None => crew.leases.release(&Lease::of(&delivery)),
        }
    }
    (ready, items)
}

/// Reads the items that have not expired, and removes the expired ones. If an earlier attempt may have arrived, all
/// items stay, so that the same message is repeated. A digest whose lease is lost is not in the result.
async fn unexpired(crew: &Crew, digests: &[Claimed], now: Timestamp) -> Result<Items, DbError> {
    let store = &crew.tools.store;
    let keys: Vec<DigestKey> = digests.iter().map(|(_, note)| (note.tenant, note.id)).collect();
    let mut found = store.digest_items(&keys).await?;
    let mut items = Items::new();
    for (delivery, note) in digests {
        let all = found.remove(&note.id).unwrap_or_default();
        let has_expired = |item: &DigestItem| item.expires_at <= now && !delivery.unclear;
        let (expired, kept): (Vec<_>, Vec<_>) = all.into_iter().partition(has_expired);
        if !expired.is_empty() {
            if !store.expire_items(Lease::of(delivery), &expired).await? {
                continue;
            }
            let counts = crew.tools.metrics.of(&note.event_type, delivery.facts.channel());
            expired.iter().for_each(|_| counts.ended(FinishedState::Expired));
        }
        items.insert(note.id, kept.into_iter().map(|item| item.payload).collect());
    }
    Ok(items)
}

fn expire(crew: &Crew, lane: &Lane, delivery: &Delivery, note: &StoredNotification) {
    let finish = Finish::Ended(FinishedState::Expired);
    let channel = delivery.facts.channel();
    let counts = crew.tools.metrics.of(&note.event_type, channel);
    let noted = Noted::new(counts, finish, || About::new(note, channel, Some(&lane.name)));
    let detail = Some("all items of the digest have expired".to_owned());
    crew.settler.settle(unbegun(delivery, finish, Some("expired"), detail), None, Some(noted));
}
