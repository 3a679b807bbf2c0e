//! Notifications with one target that needs a row of its own, such as an event with one template. The row takes over the
//! lease under which the notification was expanded, and the send begins. This saves another claim, and reading the
//! notification again.

use std::sync::Arc;

use postcommit::Timestamp;
use postcommit_channel::model::{Delivery, Target};

use super::{Ended, Step, expand_chunk, note_written, write_all};
use crate::dispatch::lanes::{self, Lane, Table};
use crate::dispatch::{Claimed, Crew, DatabaseTime, attempt};
use crate::store::{Expanded, Lease};

/// A notification whose only target is sent as soon as its row is written.
pub(super) struct Held {
    pub(super) expanded: Expanded,
    pub(super) ended: Vec<Ended>,
    /// The target's delivery, as a claim would return it.
    pub(super) claimed: Claimed,
}

/// Returns the only target and its lane, if the target may keep the lease of its notification. Otherwise returns all
/// targets.
pub(super) fn only(
    delivery: &Delivery,
    mut targets: Vec<Target>,
    table: &Table,
    now: Timestamp,
) -> Result<(Arc<Lane>, Target), Vec<Target>> {
    let may_keep = |lane: &&Arc<Lane>| delivery.lost_since.is_none() && table.may_keep_lease(lane, now);
    let lane = match &targets[..] {
        [only] if is_due(only) => table.lane_of(only).filter(may_keep).cloned(),
        _ => None,
    };
    match lane {
        Some(lane) => targets.pop().map(|only| (lane, only)).ok_or(targets),
        None => Err(targets),
    }
}

/// Returns whether the target needs neither a wait, a throttle nor a digest before it is sent.
fn is_due(target: &Target) -> bool {
    target.not_before.is_none() && target.pacing.is_none()
}

/// Writes the rows of the targets and starts their sends, as many as there are free slots. The others get rows that wait
/// in the lane.
pub(super) async fn expand_and_send(crew: &Arc<Crew>, lane: &Arc<Lane>, mut batch: Vec<Held>, clock: DatabaseTime) {
    let slots = lanes::take_up_to(&lane.slots, batch.len());
    let rest = batch.split_off(slots.as_ref().map_or(0, |slots| slots.num_permits()));
    if !rest.is_empty() {
        lane.set_backlog(true);
    }
    let claimed = write(crew, batch, clock.now()).await;
    let (own_crew, own_lane) = (crew.clone(), lane.clone());
    // The sends run in a task of their own, because rendering may take long and other lanes must not wait for it.
    tokio::spawn(async move {
        let unsettled = own_crew.leases.guard(claimed.iter().map(|(delivery, _)| Lease::of(delivery)));
        attempt::attempt_batch(&own_crew, &own_lane, claimed, clock, slots, None).await;
        unsettled.disarm();
    });
    let waiting = rest.into_iter().map(|held| Step::Expand(held.expanded, held.ended)).collect();
    write_all(crew, waiting, clock.now()).await;
}

/// Writes rows that take the leases over. Returns the deliveries that may be sent.
async fn write(crew: &Crew, batch: Vec<Held>, now: Timestamp) -> Vec<Claimed> {
    if batch.is_empty() {
        return vec![];
    }
    let expanded: Vec<Expanded> = batch.iter().map(|held| held.expanded.clone()).collect();
    let Ok((written, begun)) = crew.tools.store.expand_held(expanded).await else {
        // The write is repeated as plain rows that wait in the lane. If one of them is refused, each row is written
        // alone.
        let plain = batch.into_iter().map(|held| (held.expanded, held.ended)).collect();
        expand_chunk(crew, plain, now).await;
        return vec![];
    };
    crew.expanding.reset();
    let mut claimed = Vec::with_capacity(batch.len());
    for held in batch {
        let lease = held.expanded.lease;
        if begun.contains(&lease.key.notification) {
            crew.leases.pass_on(&lease, held.claimed.0.key);
            claimed.push(held.claimed);
        }
        note_written(crew, &lease, held.ended, &written);
    }
    claimed
}
