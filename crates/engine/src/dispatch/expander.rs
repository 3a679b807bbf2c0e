//! What a claimed notification becomes: its deliveries, in one transaction; or it is parked, with the reason.
//!
//! One with a single target need not become anything: it is sent and settled from its own row. That saves writing the target's row, claiming it and
//! reading the notification once more (docs/decisions/0014).

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use postcommit::Timestamp;
use postcommit_channel::driver::{self, Occasion};
use postcommit_channel::model::{
    self, Delivery, DeliveryKey, Expansion, Fate, Finish, FinishedState, IN_APP, MAX_LOSSES, Reason,
    StoredNotification, Target,
};
use tokio::sync::OwnedSemaphorePermit;

use super::attempt::{self, Waiting};
use super::lanes::{self, Lane, Table};
use super::parked_log::About;
use super::settler::{Noted, unbegun};
use super::turns::expansion_lane;
use super::{Claimed, Crew, DatabaseTime};
use crate::db::DbError;
use crate::store::{Expanded, Lease, Settlement};
use crate::trace::SpanKind;

/// Rows that one statement of an expansion writes, more or less.
const CHUNK_ROWS: usize = 1000;

/// How long a notification that could be sent at once waits for a slot of its lane before it gets a row in there. A slow lane makes others wait this
/// long once: from then on it has a backlog, and nothing more waits for it here.
const PATIENCE: Duration = Duration::from_millis(250);

/// What is to be done with one claimed row.
enum Step {
    /// Write its targets.
    Expand(Expanded, Ended),
    /// Send it from its own row; or, if that cannot be begun soon, write its target.
    SendAtOnce(Arc<Lane>, Delivery),
    /// Move it into its lane.
    Enter(Lease, i32),
    /// It ends here.
    Settle(Settlement),
    /// Its tenant's inboxes have no provider yet: make it, then claim this again.
    MakeInApp(Delivery),
}

/// Targets that end without an attempt: their numbers, how and why, and where they are counted.
type Ended = Vec<(i32, FinishedState, &'static str, Noted)>;

/// Expands a batch. What cannot be written now goes back and is claimed again.
pub async fn expand_batch(
    crew: &Arc<Crew>,
    table: &Table,
    batch: Vec<Claimed>,
    clock: DatabaseTime,
    mut slots: Option<OwnedSemaphorePermit>,
) {
    let mut sending: HashMap<i32, (Arc<Lane>, Vec<Claimed>)> = HashMap::new();
    let mut writing = Vec::new();
    let spans: Vec<_> =
        batch.iter().filter_map(|(_, note)| Some((crew.tools.tracer.begin_of(note)?, note.clone()))).collect();
    for (delivery, note) in batch {
        match step(delivery, &note, table, clock.now()) {
            Step::SendAtOnce(lane, delivery) => {
                sending.entry(lane.provider.id).or_insert((lane, vec![])).1.push((delivery, note));
            }
            Step::Expand(expanded, _) => {
                let ended = counted(crew, &note, &expanded);
                writing.push(Step::Expand(expanded, ended));
            }
            Step::Settle(settlement) => {
                let channel = settlement.place.as_ref().map_or("", |place| place.facts.channel());
                let provider = settlement.place.as_ref().and_then(|place| Some(&*table.lane(place.lane)?.name));
                let counts = crew.tools.metrics.of(&note.event_type, channel);
                let noted = Noted::new(counts, settlement.finish, || About::new(&note, channel, provider));
                crew.settler.settle(settlement, None, Some(noted));
            }
            step => writing.push(step),
        }
    }
    for (lane, batch) in sending.into_values() {
        let (crew, held) = (crew.clone(), slots.as_mut().and_then(|slots| slots.split(batch.len())));
        tokio::spawn(async move { send_at_once(&crew, &lane, batch, clock, held).await });
    }
    write_all(crew, writing, clock.now()).await;
    for (begun, note) in spans {
        crew.tools.tracer.end(begun.ended("expand", SpanKind::Internal, super::traits_of(&note), None));
    }
    drop(slots);
    crew.stir.notify_one();
}

fn counted(crew: &Crew, note: &StoredNotification, expanded: &Expanded) -> Ended {
    let ended = |(n, target): (i32, &Target)| {
        let Fate::Ended { state, code, .. } = target.fate else { return None };
        let channel = target.facts.channel();
        let counts = crew.tools.metrics.of(&note.event_type, channel);
        Some((n, state, code, Noted::new(counts, Finish::Ended(state), || About::new(note, channel, None))))
    };
    (1..).zip(&expanded.targets).filter_map(ended).collect()
}

/// Sends from the notifications' own rows as slots of the lane come free. Those that would wait too long get rows in the lane.
async fn send_at_once(
    crew: &Arc<Crew>,
    lane: &Arc<Lane>,
    batch: Vec<Claimed>,
    clock: DatabaseTime,
    held: Option<OwnedSemaphorePermit>,
) {
    let unsettled = crew.leases.guard(batch.iter().map(|(delivery, _)| Lease::of(delivery)));
    let waiting = Arc::new(Waiting::new(batch));
    let patience = tokio::time::sleep(PATIENCE);
    tokio::pin!(patience);
    loop {
        let first = tokio::select! {
            biased;
            () = waiting.all_begun() => None,
            slot = lane.slots.clone().acquire_owned() => slot.ok(),
            () = &mut patience => None,
        };
        let Some(mut slots) = first else { break };
        let more = lanes::take_up_to(&lane.slots, waiting.len().saturating_sub(1));
        more.into_iter().for_each(|more| slots.merge(more));
        attempt::attempt_waiting(crew, lane, &waiting, clock, slots);
    }
    let rest = waiting.take_rest();
    if !rest.is_empty() {
        lane.set_backlog(true);
    }
    let late: Vec<Step> = rest.iter().map(|(delivery, _)| Step::Expand(as_expanded(delivery), vec![])).collect();
    write_all(crew, late, clock.now()).await;
    unsettled.disarm();
    drop(held);
    crew.stir.notify_one();
}

/// The row that a delivery without one gets after all.
fn as_expanded(delivery: &Delivery) -> Expanded {
    let target = Target { facts: delivery.facts.clone(), fate: Fate::Lane(delivery.lane) };
    Expanded { lease: Lease::of(delivery), targets: vec![target] }
}

async fn write_all(crew: &Crew, steps: Vec<Step>, now: Timestamp) {
    let (mut expanded, mut entering, mut lacking) = (vec![], vec![], vec![]);
    for step in steps {
        match step {
            Step::MakeInApp(delivery) => lacking.push(delivery),
            Step::Expand(one, ended) => expanded.push((one, ended)),
            Step::Enter(lease, lane) => entering.push((lease, lane)),
            Step::SendAtOnce(..) | Step::Settle(_) => unreachable!("sent or settled by now"),
        }
    }
    for chunk in chunks(expanded) {
        expand_chunk(crew, chunk, now).await;
    }
    for (lease, lane) in entering {
        enter(crew, lease, lane, now).await;
    }
    make_in_app(crew, lacking, now).await;
}

/// Inboxes need no operator: a tenant without a provider for them gets one now. The deliveries are claimed again
/// immediately, and find it.
async fn make_in_app(crew: &Crew, lacking: Vec<Delivery>, now: Timestamp) {
    let tenants: BTreeSet<i32> = lacking.iter().map(|delivery| delivery.key.tenant).collect();
    let mut drafts = driver::ready_made(Occasion::FirstUse);
    drafts.retain(|draft| draft.channel == IN_APP);
    let mut finish = Finish::Returned;
    for tenant in tenants {
        for draft in &drafts {
            if let Err(problem) = crew.tools.store.create_missing_provider(tenant, draft).await {
                let wait = crew.expanding.wait();
                tracing::warn!(%problem, tenant, ?wait, "could not create the in-app provider; trying again after a wait");
                finish = Finish::Again { at: now.plus(wait), counted: false };
            }
        }
    }
    lacking
        .iter()
        .for_each(|delivery| crew.settler.settle(Settlement::unbegun(Lease::of(delivery), finish), None, None));
}

async fn enter(crew: &Crew, lease: Lease, lane: i32, now: Timestamp) {
    match crew.tools.store.enter_lane(lease, lane).await {
        Ok(_) => crew.leases.release(&lease),
        Err(problem) => {
            let wait = crew.expanding.wait();
            tracing::warn!(%problem, delivery = %lease.key.id(), ?wait, "could not move a delivery into its lane; it is returned and waits");
            crew.settler.put_off([lease], now.plus(wait));
        }
    }
}

/// Writes one chunk. Where it is refused, one notification is at fault: alone it cannot hold the others up. What cannot be written waits a moment.
async fn expand_chunk(crew: &Crew, chunk: Vec<(Expanded, Ended)>, now: Timestamp) {
    match (write_chunk(crew, chunk.clone()).await, chunk.len()) {
        (Ok(()), _) => {}
        (Err(DbError::Refused { message, .. }), 2..) => {
            tracing::error!(message, "the database refused an expansion; expanding one by one");
            for one in chunk {
                Box::pin(expand_chunk(crew, vec![one], now)).await;
            }
        }
        (Err(problem), notifications) => {
            let wait = crew.expanding.wait();
            tracing::warn!(%problem, notifications, ?wait, "could not expand notifications; trying again after a wait");
            crew.settler.put_off(chunk.into_iter().map(|(expanded, _)| expanded.lease), now.plus(wait));
        }
    }
}

async fn write_chunk(crew: &Crew, chunk: Vec<(Expanded, Ended)>) -> Result<(), DbError> {
    let done: Vec<Lease> = chunk.iter().map(|(e, _)| e.lease).collect();
    let (chunk, ended): (Vec<Expanded>, Vec<Ended>) = chunk.into_iter().unzip();
    crew.tools.store.expand(chunk).await?;
    crew.expanding.reset();
    for (lease, ended) in done.iter().zip(ended) {
        for (n, state, code, noted) in ended {
            crew.settler.count_ended(DeliveryKey { n, ..lease.key }, state, code, &noted);
        }
        crew.leases.release(lease);
    }
    Ok(())
}

/// As many notifications at once as make up so many rows: on SQLite the application waits for each chunk, and nothing waits for all.
fn chunks(expanded: Vec<(Expanded, Ended)>) -> Vec<Vec<(Expanded, Ended)>> {
    let mut chunks: Vec<Vec<_>> = Vec::new();
    let mut rows = CHUNK_ROWS;
    for one in expanded {
        if rows >= CHUNK_ROWS {
            chunks.push(Vec::new());
            rows = 0;
        }
        rows += one.0.targets.len();
        if let Some(chunk) = chunks.last_mut() {
            chunk.push(one);
        }
    }
    chunks
}

fn step(delivery: Delivery, note: &StoredNotification, table: &Table, now: Timestamp) -> Step {
    let routes = table.routes(delivery.key.tenant);
    let ended = |state, code| Step::Settle(unbegun(&delivery, Finish::Ended(state), Some(code), None));
    match () {
        () if note.is_cancelled(delivery.key.n) && delivery.lost_since.is_none() => {
            ended(FinishedState::Cancelled, "cancelled")
        }
        () if note.expires_at <= now && delivery.lost_since.is_none() => ended(FinishedState::Expired, "expired"),
        () if model::lacks_in_app(note, routes) => Step::MakeInApp(delivery),
        // Its provider was missing when it was expanded: it looks for one again.
        () if delivery.key.n > 0 => match model::route(&delivery.facts, routes) {
            Fate::Lane(lane) => Step::Enter(Lease::of(&delivery), lane),
            Fate::Ended { code, detail, .. } => parked(&delivery, code, detail),
        },
        () => match model::expand(note, routes) {
            Expansion::OneDelivery(target) => only_target(delivery, note, target, table, now),
            Expansion::Deliveries(targets) => expand(&delivery, targets, table),
            Expansion::Parked { code, detail } => parked(&delivery, code, detail),
        },
    }
}

fn expand(delivery: &Delivery, targets: Vec<Target>, table: &Table) -> Step {
    if delivery.losses > MAX_LOSSES {
        return parked(delivery, "lease_expired", "every worker that tried to expand it was lost".into());
    }
    for lane in targets.iter().filter_map(|target| table.lane_of(target)) {
        lane.set_backlog(true);
    }
    Step::Expand(Expanded { lease: Lease::of(delivery), targets }, vec![])
}

/// A notification with one target is sent from its own row where its lane allows it. So may have done whoever held the row before: what became of that
/// is not known, and the guarantee decides.
fn only_target(delivery: Delivery, note: &StoredNotification, target: Target, table: &Table, now: Timestamp) -> Step {
    let lane = table.lane_of(&target);
    let sent_since = delivery
        .lost_since
        .filter(|since| lane.is_none_or(|lane| attempt::may_have_been_sent_at_once(lane, table.rerouted_at, *since)));
    match (lane, sent_since) {
        (Some(lane), Some(since)) => {
            let delivery = delivery.of_only_target(lane.provider.id, target);
            let elsewhere = attempt::was_before(since, table.rerouted_at);
            Step::Settle(attempt::take_over(&delivery, note, lane, since, now, elsewhere))
        }
        (Some(lane), None) if table.may_send_at_once(lane, now) => {
            Step::SendAtOnce(lane.clone(), delivery.of_only_target(lane.provider.id, target))
        }
        (None, Some(_)) => ended_unclear(delivery, target),
        _ => expand(&delivery, vec![target], table),
    }
}

/// Its provider is gone or disabled by now, after it may have been sent.
fn ended_unclear(delivery: Delivery, target: Target) -> Step {
    let (state, code, detail) = match target.fate.clone() {
        Fate::Ended { state, code, detail } => (state, code, detail),
        Fate::Lane(_) => {
            (FinishedState::Parked(Reason::Config), "unknown_provider", "its provider is not known here".into())
        }
    };
    let lane = expansion_lane(delivery.key.tenant);
    let delivery = delivery.of_only_target(lane, target);
    Step::Settle(Settlement { unclear: true, ..unbegun(&delivery, Finish::Ended(state), Some(code), Some(detail)) })
}

fn parked(delivery: &Delivery, code: &str, detail: String) -> Step {
    Step::Settle(unbegun(delivery, Finish::Ended(FinishedState::Parked(Reason::Config)), Some(code), Some(detail)))
}
