//! Admission of deliveries to the hosts of their lane: which begin, which wait, and what an answer means for its host.

use std::collections::HashMap;
use std::time::Duration;

use postcommit::Timestamp;
use postcommit_channel::model::{Delivery, Finish, StoredNotification, Verdict};

use crate::dispatch::attempt::{chance, may_go_back};
use crate::dispatch::hosts::{HostSlot, PutOff};
use crate::dispatch::lanes::Lane;
use crate::dispatch::local_close::CloseDemand;
use crate::dispatch::settler::unbegun;
use crate::dispatch::{Claimed, Crew, DatabaseTime};
use crate::store::{CloseOutcome as Written, waits_for};

/// A hold that is not longer than this is kept in this process only: a write, which every process would read, costs
/// more.
const BRIEF: Duration = Duration::from_secs(1);

/// Puts off deliveries whose host does not take them now, before they are announced. Returns the rest.
pub fn put_off_refused(crew: &Crew, lane: &Lane, batch: Vec<Claimed>, now: Timestamp) -> Vec<Claimed> {
    let Some(hosts) = &lane.hosts else { return batch };
    let mut begun: HashMap<String, usize> = HashMap::new();
    let mut begin = Vec::with_capacity(batch.len());
    for (delivery, note) in batch {
        let Some(host) = lane.host_of(&delivery) else {
            begin.push((delivery, note));
            continue;
        };
        let before = begun.get(&host).copied().unwrap_or_default();
        match hosts.refuses(&host, before, lane.provider.concurrency, now, chance(&delivery)) {
            Some(wait) => put_off(crew, (&delivery, &note), &host, wait, now),
            None => {
                *begun.entry(host).or_default() += 1;
                begin.push((delivery, note));
            }
        }
    }
    begin
}

/// Takes a slot of the delivery's host. `None` where the lane does not tell hosts apart, `Err` when the delivery was
/// put off.
pub async fn take_slot(
    crew: &Crew,
    lane: &Lane,
    (delivery, note): (&Delivery, &StoredNotification),
    clock: DatabaseTime,
) -> Result<Option<HostSlot>, ()> {
    let Some((hosts, host)) = lane.hosts.as_ref().zip(lane.host_of(delivery)) else { return Ok(None) };
    match hosts.take_slot(&host, lane.provider.concurrency, || clock.now(), chance(delivery)).await {
        Ok(turn) => Ok(Some(turn)),
        Err(wait) => {
            put_off(crew, (delivery, note), &host, wait, clock.now());
            Err(())
        }
    }
}

/// Returns a delivery to its lane for later. It was not sent: no attempt is counted or logged.
fn put_off(
    crew: &Crew,
    (delivery, note): (&Delivery, &StoredNotification),
    host: &str,
    PutOff { wait, code }: PutOff,
    now: Timestamp,
) {
    // Due at its expiry at the latest, where a check finds it expired.
    let at = now.plus(wait).min(note.expires_at.max(now));
    let detail = code.map(|_| waits_for(host));
    crew.settler.settle(unbegun(delivery, Finish::Again { at, counted: false }, code, detail), None, None);
}

/// Applies an answer that concerns a whole host: a request to wait, or the refusal of our account. A demand that cannot
/// be written closes the host in this process, and the delivery is judged as if it had been written.
pub async fn tell_host(
    crew: &Crew,
    lane: &Lane,
    delivery: &Delivery,
    host: &str,
    demand: CloseDemand,
    verdict: Verdict,
    now: Timestamp,
) -> Verdict {
    let Some(hosts) = &lane.hosts else { return verdict };
    let (store, name) = (&crew.tools.store, &lane.provider.name);
    // Applied before it is written, so that an operator who opens the host afterwards is not overruled.
    hosts.demanded(host, &demand, now);
    if matches!(demand, CloseDemand::Hold(_, wait) if wait <= BRIEF) {
        return verdict;
    }
    let written = demand.write_of_host(store, &lane.provider, host).await;
    if written.is_ok() {
        hosts.written(host, &demand);
    }
    match (written, &demand) {
        (Ok(Written::Now), CloseDemand::Pause(why)) => {
            tracing::error!(provider = name, why, "host paused; `providers show` names it");
        }
        (Ok(Written::Now), CloseDemand::Hold(_, wait)) => {
            tracing::warn!(provider = name, ?wait, "host held because it asked to wait; `providers show` names it");
        }
        // The delivery that paused the host is parked. Others in flight meet the same answer and wait with the rest.
        (Ok(Written::Already), CloseDemand::Pause(_)) if may_go_back(delivery) => {
            return Verdict::Again { at: now, counted: false };
        }
        (Ok(Written::Already), _) => {}
        (Ok(Written::Outdated), CloseDemand::Pause(_)) if may_go_back(delivery) => {
            hosts.open(host);
            return Verdict::Again { at: now, counted: false };
        }
        (Ok(Written::Outdated), _) => hosts.open(host),
        (Ok(Written::TooMany), _) => {
            tracing::warn!(
                provider = name,
                "too many hosts of this lane are closed; this answer concerns its own delivery only"
            );
            hosts.open(host);
        }
        (Err(problem), _) => {
            tracing::error!(%problem, provider = name, ?demand, "could not write the pause or hold of a host; the host stays closed in this process");
            hosts.open(host);
            hosts.unwritten(host).close_until_written(store, &crew.stir, &lane.provider, demand);
        }
    }
    verdict
}
