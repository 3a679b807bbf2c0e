//! Decides for each delivery whether it may be sent to its host now, and closes a host when an answer asks for it.

use std::collections::HashMap;
use std::time::Duration;

use postcommit::Timestamp;
use postcommit_channel::model::{Delivery, Finish, StoredNotification, Verdict};

use crate::dispatch::attempt::chance;
use crate::dispatch::demands::may_go_back;
use crate::dispatch::hosts::{HostSlot, PutOff};
use crate::dispatch::lanes::Lane;
use crate::dispatch::local_close::CloseDemand;
use crate::dispatch::settler::unbegun;
use crate::dispatch::{Claimed, Crew, DatabaseTime};
use crate::store::{CloseOutcome as Written, waits_for};

/// A hold of at most this length is kept only in this process. Writing it would cost more, because every process would
/// have to read it.
const BRIEF: Duration = Duration::from_secs(1);

/// Puts off deliveries whose host does not accept them now, before they are announced. Returns the other deliveries.
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

/// Takes a slot of the delivery's host. Returns `Ok(None)` where the lane does not tell hosts apart, and `Err` when the
/// delivery was put off.
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

/// Puts a delivery back into its lane, due later. It was not sent, so no attempt is counted or logged.
fn put_off(
    crew: &Crew,
    (delivery, note): (&Delivery, &StoredNotification),
    host: &str,
    PutOff { wait, code }: PutOff,
    now: Timestamp,
) {
    // The delivery becomes due at its expiry at the latest, so that it is found expired in time.
    let at = now.plus(wait).min(note.expires_at.max(now));
    let detail = code.map(|_| waits_for(host));
    crew.settler.settle(unbegun(delivery, Finish::Again { at, counted: false }, code, detail), None, None);
}

/// Handles an answer that concerns a whole host: a request to wait, or a refusal of the provider's account. If the hold
/// or pause cannot be written, the host is closed in this process. The delivery is then judged as if the write had
/// succeeded.
pub async fn tell_host(
    crew: &Crew,
    lane: &Lane,
    (delivery, note): (&Delivery, &StoredNotification),
    host: &str,
    demand: CloseDemand,
    verdict: Verdict,
    now: Timestamp,
) -> Verdict {
    let Some(hosts) = &lane.hosts else { return verdict };
    let (store, name) = (&crew.tools.store, &lane.provider.name);
    // The hold or pause is applied in memory before it is written. If it were applied after the write, it could
    // overrule an operator who has opened the host in between.
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
            tracing::error!(
                tenant = note.tenant_name,
                provider = name,
                host,
                why,
                "a host of the provider is paused; nothing is sent to it until `postcommit providers resume --host`"
            );
        }
        (Ok(Written::Now), CloseDemand::Hold(_, wait)) => {
            tracing::warn!(
                tenant = note.tenant_name,
                provider = name,
                host,
                ?wait,
                "a host of the provider asked to wait; nothing is sent to it for that time"
            );
        }
        (Ok(Written::Now), CloseDemand::Trip { wait, why, .. }) => {
            crew.tools.metrics.trips.add(1);
            tracing::warn!(
                tenant = note.tenant_name,
                provider = name,
                host,
                ?wait,
                why,
                "the breaker of a host of the provider tripped; nothing is sent to it for that time, then one send \
                 probes it"
            );
        }
        // The delivery that paused the host is parked. Other deliveries in flight get the same answer and go back to
        // the queue.
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
                "too many hosts of this provider are already paused or on hold; this host stays open, only its \
                 delivery is affected"
            );
            hosts.open(host);
        }
        (Err(problem), _) => {
            tracing::error!(
                %problem, provider = name, ?demand,
                "could not write to the database that a host is paused or on hold; this process sends nothing to it \
                 and repeats the write"
            );
            hosts.unwritten(host).close_until_written(store, &crew.stir, &lane.provider, demand);
            hosts.open(host);
        }
    }
    verdict
}
