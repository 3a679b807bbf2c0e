//! Deliveries of a lane that tells hosts apart: which may begin, which wait for their host, and what an answer means for its host.

use std::collections::HashMap;
use std::time::Duration;

use postcommit::Timestamp;
use postcommit_channel::model::{Delivery, Finish, StoredNotification, Verdict};

use super::attempt::{chance, may_go_back};
use super::hosts::{PutOff, Turn};
use super::lanes::Lane;
use super::settler::unbegun;
use super::shut::Demand;
use super::{Claimed, Crew, Reckoning};
use crate::store::{Shut as Written, waits_for};

/// A host that asks for no more is held in this process alone: a write, which every process would read, is not worth it.
const BRIEF: Duration = Duration::from_secs(1);

/// Puts off what its host would keep waiting, before anything of it is announced, and returns the rest.
pub fn sift(crew: &Crew, lane: &Lane, batch: Vec<Claimed>, now: Timestamp) -> Vec<Claimed> {
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

/// The turn of a delivery at its host; none where the lane does not tell hosts apart. `Err` when it was put off.
pub async fn turn(
    crew: &Crew,
    lane: &Lane,
    (delivery, note): (&Delivery, &StoredNotification),
    clock: Reckoning,
) -> Result<Option<Turn>, ()> {
    let Some((hosts, host)) = lane.hosts.as_ref().zip(lane.host_of(delivery)) else { return Ok(None) };
    match hosts.turn(&host, lane.provider.concurrency, || clock.now(), chance(delivery)).await {
        Ok(turn) => Ok(Some(turn)),
        Err(wait) => {
            put_off(crew, (delivery, note), &host, wait, clock.now());
            Err(())
        }
    }
}

/// Back into its lane, for later: not sent, not counted, and without a trace in the log of attempts.
fn put_off(crew: &Crew, (delivery, note): (&Delivery, &StoredNotification), host: &str, PutOff { wait, code }: PutOff, now: Timestamp) {
    // Due at the expiry at the latest: there it is found expired.
    let at = now.plus(wait).min(note.expires_at.max(now));
    let detail = code.map(|_| waits_for(host));
    crew.settler.settle(unbegun(delivery, Finish::Again { at, counted: false }, code, detail), None, None);
}

/// What concerns a host: its wish to wait, or an answer that nothing sent there would survive. As with a lane, what cannot be written shuts the host in this
/// process, and the delivery is judged as if it had been written.
pub async fn tell_host(
    crew: &Crew,
    lane: &Lane,
    delivery: &Delivery,
    host: &str,
    demand: Demand,
    verdict: Verdict,
    now: Timestamp,
) -> Verdict {
    let Some(hosts) = &lane.hosts else { return verdict };
    let (store, name) = (&crew.tools.store, &lane.provider.name);
    // Before it is written: then whoever opens it afterwards is not overruled by us.
    hosts.demanded(host, &demand, now);
    if matches!(demand, Demand::Hold(_, wait) if wait <= BRIEF) {
        return verdict;
    }
    let written = demand.write_of_host(store, &lane.provider, host).await;
    if written.is_ok() {
        hosts.written(host, &demand);
    }
    match (written, &demand) {
        (Ok(Written::Now), Demand::Pause(why)) => {
            tracing::error!(provider = name, why, "a host of this lane is paused; `providers show` names it");
        }
        (Ok(Written::Now), Demand::Hold(_, wait)) => {
            tracing::warn!(provider = name, ?wait, "a host of this lane asked to wait and is held; `providers show` names it");
        }
        // Whoever pauses the host is parked; others under way meet the same answer, and wait with the rest: the host is shut here, too.
        (Ok(Written::Already), Demand::Pause(_)) if may_go_back(delivery) => {
            return Verdict::Again { at: now, counted: false };
        }
        (Ok(Written::Already), _) => {}
        (Ok(Written::Outdated), Demand::Pause(_)) if may_go_back(delivery) => {
            hosts.open(host);
            return Verdict::Again { at: now, counted: false };
        }
        (Ok(Written::Outdated), _) => hosts.open(host),
        (Ok(Written::TooMany), _) => {
            tracing::warn!(provider = name, "too many hosts of this lane are shut; the answer of one more concerns its own delivery alone");
            hosts.open(host);
        }
        (Err(problem), _) => {
            tracing::error!(%problem, provider = name, ?demand, "could not pause or hold a host of this lane; it stays shut in this process");
            hosts.open(host);
            hosts.unwritten(host).shut(store, &crew.stir, &lane.provider, demand);
        }
    }
    verdict
}
