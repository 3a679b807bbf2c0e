//! The expander turns claimed notifications into deliveries. It writes them in chunks, each in one transaction. A
//! notification that cannot be expanded is parked with the reason.
//!
//! A notification with a single target is sent and settled from its own row. This saves three steps: writing a row for
//! the target, claiming that row, and reading the notification again (docs/decisions/0014).

mod hold;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use postcommit::Timestamp;
use postcommit_channel::driver::{self, Occasion};
use postcommit_channel::model::{
    self, Delivery, DeliveryKey, Expansion, Fate, Finish, FinishedState, IN_APP, ListMember, Lookup, MAX_LOSSES,
    Reason, StoredNotification, Target,
};
use tokio::sync::OwnedSemaphorePermit;

use hold::Held;

use super::attempt::{self, ASK_RECEIVER, Waiting};
use super::lanes::{self, Lane, Table};
use super::lookup::{self, Answer, Sought};
use super::parked_log::About;
use super::settler::{Noted, unbegun};
use super::turns::expansion_lane;
use super::{Claimed, Crew, DatabaseTime};
use crate::FastMap;
use crate::db::DbError;
use crate::store::{DUPLICATE, Expanded, Lease, Part, Settlement, Written};
use crate::trace::SpanKind;

/// The approximate number of rows that one statement of an expansion writes.
const CHUNK_ROWS: usize = 1000;

/// How long a notification that can be sent from its own row waits for a slot. After that its delivery gets a row in
/// the lane. A slow lane causes this delay once. From then on the lane has a backlog, and new notifications get their
/// rows immediately.
const PATIENCE: Duration = Duration::from_millis(250);

/// How long a notification waits if the templates of its tenant took too long in this batch.
const NEXT_TURN: Duration = Duration::from_secs(1);

/// The expander's next step for one claimed row.
enum Step {
    /// Write a row for each target, or move the row of a retried delivery into its lane.
    Expand(Expanded, Vec<Ended>),
    /// Send the notification from its own row. If the send cannot begin soon, write a row for its target.
    SendFromOwnRow(Arc<Lane>, Delivery),
    /// Write the row of the notification's only target under the same lease, and send it.
    Hold(Arc<Lane>, Delivery, Box<Target>),
    /// Move the row into the lane of its provider.
    Enter(Lease, i32),
    /// Copy the members of the notification's lists, to expand the notification in parts.
    BeginParts(Lease, Vec<ListMember>, Vec<String>),
    /// Write the next part of a large expansion.
    WritePart(Part, Vec<Ended>),
    /// Settle the delivery without an attempt, for example because it expired.
    Settle(Settlement),
    /// Look up the notification's templates, users and lists, then expand it.
    LookUp(Delivery, Box<Lookup>),
    /// The tenant has no provider for inboxes yet. Create one, then claim the row again.
    MakeInApp(Delivery),
}

/// A target that ends, or may end, without an attempt. It is counted and logged when it is written.
#[derive(Clone)]
struct Ended {
    n: i32,
    state: FinishedState,
    code: &'static str,
    noted: Noted,
    /// Whether the target ends only if another delivery holds its send key, or if a throttle or digest takes it.
    if_written: bool,
}

/// The steps of a batch, grouped by kind.
#[derive(Default)]
struct Sorted {
    /// Notifications that are sent from their own rows, by lane.
    sending: FastMap<i32, (Arc<Lane>, Vec<Claimed>)>,
    /// Notifications whose only targets are sent as soon as their rows are written, by lane.
    holding: FastMap<i32, (Arc<Lane>, Vec<Held>)>,
    writing: Vec<Step>,
    sought: Vec<Sought>,
}

/// Expands a batch. Notifications that cannot be written now go back to the queue and are claimed again.
pub async fn expand_batch(
    crew: &Arc<Crew>,
    table: &Table,
    batch: Vec<Claimed>,
    clock: DatabaseTime,
    mut slots: Option<OwnedSemaphorePermit>,
) {
    let spans: Vec<_> =
        batch.iter().filter_map(|(_, note)| Some((crew.tools.tracer.begin_of(note)?, note.clone()))).collect();
    let mut sorted = Sorted::default();
    for (delivery, note) in batch {
        sorted.add(crew, table, step(delivery, &note, table, clock.now()), note);
    }
    let sought = sorted.begin(crew, clock, &mut slots).await;
    // Lookups come last, so that direct messages do not wait for them.
    if !sought.is_empty() {
        expand_sought(crew, table, sought, clock, &mut slots).await;
    }
    for (begun, note) in spans {
        crew.tools.tracer.end(begun.ended("expand", SpanKind::Internal, crate::trace::traits_of(&note), None));
    }
    drop(slots);
    crew.stir.notify_one();
}

/// Expands the notifications of a batch that need a lookup.
async fn expand_sought(
    crew: &Arc<Crew>,
    table: &Table,
    sought: Vec<Sought>,
    clock: DatabaseTime,
    slots: &mut Option<OwnedSemaphorePermit>,
) {
    let leases: Vec<Lease> = sought.iter().map(|(delivery, ..)| Lease::of(delivery)).collect();
    let answered = match lookup::expand_all(crew, table, sought, clock.now()).await {
        Ok(answered) => answered,
        Err(problem) => {
            let wait = crew.expanding.wait();
            tracing::warn!(%problem, notifications = leases.len(), ?wait, "could not look up templates, users or lists; trying again after a wait");
            return crew.settler.put_off(leases, clock.now().plus(wait));
        }
    };
    let mut sorted = Sorted::default();
    for (delivery, note, answer) in answered {
        let step = match answer {
            found if model::needs_in_app(found.targets(), table.routes(note.tenant)) => Step::MakeInApp(delivery),
            Answer::Expansion(found) if delivery.key.n > 0 => expanded_again(&delivery, found, table, clock.now()),
            Answer::Expansion(found) => expanded(delivery, &note, found, table, clock.now()),
            Answer::BeginParts { named, lists } => Step::BeginParts(Lease::of(&delivery), named, lists),
            Answer::Part(part) => next_part(&delivery, part, table, clock.now()),
            Answer::Wait => {
                crew.settler.put_off([Lease::of(&delivery)], clock.now().plus(NEXT_TURN));
                continue;
            }
        };
        sorted.add(crew, table, step, note);
    }
    sorted.begin(crew, clock, slots).await;
}

impl Sorted {
    fn add(&mut self, crew: &Crew, table: &Table, step: Step, note: Arc<StoredNotification>) {
        match step {
            Step::SendFromOwnRow(lane, delivery) => {
                self.sending.entry(lane.provider.id).or_insert((lane, vec![])).1.push((delivery, note));
            }
            Step::Expand(expanded, _) => {
                let ended = counted(crew, &note, &expanded);
                self.writing.push(Step::Expand(expanded, ended));
            }
            Step::Hold(lane, delivery, target) => {
                let expanded = Expanded::new(Lease::of(&delivery), vec![(*target).clone()]);
                let ended = counted(crew, &note, &expanded);
                let claimed = (delivery.held_for(lane.provider.id, *target), note);
                self.holding.entry(lane.provider.id).or_insert((lane, vec![])).1.push(Held {
                    expanded,
                    ended,
                    claimed,
                });
            }
            Step::WritePart(part, _) => {
                let ended = counted(crew, &note, &part.expanded);
                self.writing.push(Step::WritePart(part, ended));
            }
            Step::LookUp(delivery, lookup) => self.sought.push((delivery, note, *lookup)),
            Step::Settle(settlement) => {
                let channel = settlement.place.as_ref().map_or("", |place| place.facts.channel());
                let provider = settlement.place.as_ref().and_then(|place| Some(&*table.lane(place.lane)?.name));
                let counts = crew.tools.metrics.of(&note.event_type, channel);
                let noted = Noted::new(counts, settlement.finish, || About::new(&note, channel, provider));
                crew.settler.settle(settlement, None, Some(noted));
            }
            step => self.writing.push(step),
        }
    }

    /// Starts the sends and writes the rest. Returns the notifications that need a lookup.
    async fn begin(
        self,
        crew: &Arc<Crew>,
        clock: DatabaseTime,
        slots: &mut Option<OwnedSemaphorePermit>,
    ) -> Vec<Sought> {
        for (lane, batch) in self.sending.into_values() {
            let (crew, held) = (crew.clone(), slots.as_mut().and_then(|slots| slots.split(batch.len())));
            tokio::spawn(async move { send_from_own_row(&crew, &lane, batch, clock, held).await });
        }
        for (lane, batch) in self.holding.into_values() {
            hold::expand_and_send(crew, &lane, batch, clock).await;
        }
        write_all(crew, self.writing, clock.now()).await;
        self.sought
    }
}

fn counted(crew: &Crew, note: &StoredNotification, expanded: &Expanded) -> Vec<Ended> {
    let ended = |(n, target): (i32, &Target)| {
        let (state, code, if_written) = match target.fate {
            Fate::Ended { state, code, .. } => (state, code, false),
            Fate::Lane(_) if target.once.is_none() && target.pacing.is_none() => return None,
            Fate::Lane(_) => (FinishedState::Skipped, DUPLICATE, true),
        };
        let channel = target.facts.channel();
        let counts = crew.tools.metrics.of(&note.event_type, channel);
        let noted = Noted::new(counts, Finish::Ended(state), || About::new(note, channel, None));
        Some(Ended { n, state, code, noted, if_written })
    };
    (expanded.first..).zip(&expanded.targets).filter_map(ended).collect()
}

/// Sends from the notifications' own rows as slots of the lane become free. Deliveries that would wait too long get
/// rows in the lane instead.
async fn send_from_own_row(
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

/// Builds the row for a delivery that was to be sent from its notification's row.
fn as_expanded(delivery: &Delivery) -> Expanded {
    let target = Target::new(delivery.facts.clone(), Fate::Lane(delivery.lane));
    Expanded::new(Lease::of(delivery), vec![target])
}

async fn write_all(crew: &Crew, steps: Vec<Step>, now: Timestamp) {
    let (mut expanded, mut entering, mut lacking) = (vec![], vec![], vec![]);
    for step in steps {
        match step {
            Step::BeginParts(lease, named, lists) => begin_parts(crew, lease, &named, &lists, now).await,
            Step::WritePart(part, ended) => write_part(crew, part, ended, now).await,
            Step::MakeInApp(delivery) => lacking.push(delivery),
            Step::Expand(one, ended) => expanded.push((one, ended)),
            Step::Enter(lease, lane) => entering.push((lease, lane)),
            Step::SendFromOwnRow(..) | Step::Hold(..) | Step::Settle(_) | Step::LookUp(..) => {
                unreachable!("these steps were sent or settled before this match")
            }
        }
    }
    let (retried, expanded): (Vec<_>, Vec<_>) = expanded.into_iter().partition(|(one, _)| one.is_retried());
    for chunk in chunks(expanded).into_iter().chain(chunks(retried)) {
        expand_chunk(crew, chunk, now).await;
    }
    for (lease, lane) in entering {
        enter(crew, lease, lane, now).await;
    }
    make_in_app(crew, lacking, now).await;
}

/// Creates the missing in-app providers of tenants, which need no settings by an operator. The deliveries are returned
/// to the queue, so that the next claim finds the new provider.
async fn make_in_app(crew: &Crew, lacking: Vec<Delivery>, now: Timestamp) {
    let tenants: BTreeSet<i32> = lacking.iter().map(|delivery| delivery.key.tenant).collect();
    let mut drafts = driver::ready_made(Occasion::FirstUse);
    drafts.retain(|draft| draft.channel == IN_APP);
    let mut finish = Finish::Returned;
    for tenant in tenants {
        for draft in &drafts {
            if let Err(problem) = crew.tools.store.create_missing_provider(tenant, draft).await {
                let wait = crew.expanding.wait();
                tracing::warn!(
                    %problem, tenant, ?wait,
                    "could not create the in-app provider of the tenant; its deliveries are tried again after the wait"
                );
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
            tracing::warn!(
                %problem, delivery = %lease.key.id(), ?wait,
                "could not move the delivery into the queue of its provider; it is tried again after the wait"
            );
            crew.settler.put_off([lease], now.plus(wait));
        }
    }
}

/// Writes one chunk. If the database refuses it, one notification may be the cause. Each notification is then written
/// alone, so that one cannot delay the others. A notification that cannot be written is put off.
async fn expand_chunk(crew: &Crew, chunk: Vec<(Expanded, Vec<Ended>)>, now: Timestamp) {
    match (write_chunk(crew, chunk.clone()).await, chunk.len()) {
        (Ok(()), _) => {}
        (Err(DbError::Refused { message, .. }), 2..) => {
            tracing::error!(
                message,
                "the database refused to write the deliveries of a batch of notifications; each notification is now \
                 written alone"
            );
            for one in chunk {
                Box::pin(expand_chunk(crew, vec![one], now)).await;
            }
        }
        (Err(problem), notifications) => {
            let wait = crew.expanding.wait();
            tracing::warn!(
                %problem, notifications, ?wait,
                "could not write the deliveries of the notifications; they are tried again after the wait"
            );
            crew.settler.put_off(chunk.into_iter().map(|(expanded, _)| expanded.lease), now.plus(wait));
        }
    }
}

async fn write_chunk(crew: &Crew, chunk: Vec<(Expanded, Vec<Ended>)>) -> Result<(), DbError> {
    let done: Vec<Lease> = chunk.iter().map(|(e, _)| e.lease).collect();
    let (chunk, ended): (Vec<Expanded>, Vec<Vec<Ended>>) = chunk.into_iter().unzip();
    let written = match chunk.first() {
        Some(first) if first.is_retried() => crew.tools.store.enter_paced(chunk).await?,
        _ => crew.tools.store.expand(chunk).await?,
    };
    crew.expanding.reset();
    for (lease, ended) in done.iter().zip(ended) {
        note_written(crew, lease, ended, &written);
    }
    Ok(())
}

/// Counts the targets that ended when they were written, and gives the lease up.
fn note_written(crew: &Crew, lease: &Lease, ended: Vec<Ended>, written: &Written) {
    for Ended { n, state, code, noted, if_written } in ended {
        let key = DeliveryKey { n, ..lease.key };
        let paced = || written.ended.iter().find(|(ended, _)| *ended == key).map(|(_, code)| *code);
        let code = match if_written {
            true if written.duplicates.contains(&key) => Some(code),
            true => paced(),
            false => Some(code),
        };
        if let Some(code) = code {
            crew.settler.count_ended(key, state, code, &noted);
        }
    }
    crew.leases.release(lease);
}

async fn begin_parts(crew: &Crew, lease: Lease, named: &[ListMember], lists: &[String], now: Timestamp) {
    match crew.tools.store.begin_parts(lease, named, lists).await {
        Ok(_) => crew.leases.release(&lease),
        Err(problem) => put_off_parts(crew, lease, &problem, now),
    }
}

async fn write_part(crew: &Crew, part: Part, ended: Vec<Ended>, now: Timestamp) {
    let lease = part.expanded.lease;
    match crew.tools.store.expand_part(part).await {
        Ok(written) => note_written(crew, &lease, ended, &written),
        Err(problem) => put_off_parts(crew, lease, &problem, now),
    }
}

fn put_off_parts(crew: &Crew, lease: Lease, problem: &DbError, now: Timestamp) {
    let wait = crew.expanding.wait();
    tracing::warn!(%problem, notification = %lease.key.notification, ?wait, "could not expand the next part of a notification; trying again after a wait");
    crew.settler.put_off([lease], now.plus(wait));
}

/// Splits notifications into chunks of about `CHUNK_ROWS` rows. On SQLite an application that wants to write then waits
/// for one chunk at most.
fn chunks(expanded: Vec<(Expanded, Vec<Ended>)>) -> Vec<Vec<(Expanded, Vec<Ended>)>> {
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
    if note.is_cancelled(delivery.key.n) && delivery.lost_since.is_none() {
        return ended(FinishedState::Cancelled, "cancelled");
    }
    if note.expires_at <= now && delivery.lost_since.is_none() {
        return ended(FinishedState::Expired, "expired");
    }
    if delivery.key.n == 0
        && let Some(lookup) = lookup::of(&delivery, note, table)
    {
        return Step::LookUp(delivery, lookup.into());
    }
    if model::lacks_template(&delivery.facts) {
        return match lookup::again(&delivery, note, table) {
            Some(lookup) => Step::LookUp(delivery, lookup.into()),
            None => parked(
                &delivery,
                "no_recipient",
                format!(
                    "this delivery cannot be routed again, because a notification cannot name its address on {:?}; enqueue \
                     the event again, under a new key",
                    delivery.facts.channel()
                ),
            ),
        };
    }
    if model::lacks_in_app(note, routes) {
        return Step::MakeInApp(delivery);
    }
    if delivery.key.n == 0 {
        return expanded(delivery, note, model::expand(note, routes), table, now);
    }
    // The delivery's provider was missing when the notification was expanded, so the delivery is routed again.
    match model::route(&delivery.facts, routes) {
        Fate::Lane(lane) => entering(&delivery, note, table.lane_or_next(&delivery, lane, now), table),
        Fate::Ended { code, detail, .. } => parked(&delivery, code, detail),
    }
}

/// Decides how a delivery gets into its provider's lane. A retried delivery without a template version was never sent.
/// It is throttled and put into digests like a new target.
fn entering(delivery: &Delivery, note: &StoredNotification, lane: i32, table: &Table) -> Step {
    let (facts, lease) = (&delivery.facts, Lease::of(delivery));
    let is_unsent = facts.template_version.is_none();
    let content = table.content.get(note.tenant).filter(|_| is_unsent);
    match model::retried(note, content, facts, lane) {
        Some(target) => Step::Expand(Expanded { lease, targets: vec![target], first: delivery.key.n }, vec![]),
        None => Step::Enter(lease, lane),
    }
}

/// Decides what is done with a notification whose targets are known.
fn expanded(
    delivery: Delivery,
    note: &StoredNotification,
    mut expansion: Expansion,
    table: &Table,
    now: Timestamp,
) -> Step {
    // A lost worker may have sent the notification from its own row over its first provider, so then the delivery stays
    // there. A target that passes its first provider over always gets a row of its own, which names the lane.
    let is_passed = delivery.lost_since.is_none() && table.pass_over(expansion.targets_mut(), now);
    match expansion {
        Expansion::OneDelivery(target) if is_passed => expanded_rows(delivery, vec![*target], table, now),
        Expansion::OneDelivery(target) => only_target(delivery, note, *target, table, now),
        Expansion::Deliveries(targets) => expanded_rows(delivery, targets, table, now),
        Expansion::Parked { code, detail } => parked(&delivery, code, detail),
    }
}

/// Decides what is done with a notification whose targets get rows of their own.
fn expanded_rows(delivery: Delivery, targets: Vec<Target>, table: &Table, now: Timestamp) -> Step {
    match hold::only(&delivery, targets, table, now) {
        Ok((lane, only)) => Step::Hold(lane, delivery, only.into()),
        Err(targets) => expand(&delivery, targets, table),
    }
}

/// Decides what is done with a retried delivery whose channel had no template when its notification was expanded.
fn expanded_again(delivery: &Delivery, mut expansion: Expansion, table: &Table, now: Timestamp) -> Step {
    let (lease, first) = (Lease::of(delivery), delivery.key.n);
    table.pass_over(expansion.targets_mut(), now);
    let mut targets = match expansion {
        Expansion::Deliveries(targets) => targets,
        Expansion::OneDelivery(only) => vec![*only],
        Expansion::Parked { code, detail } => return parked(delivery, code, detail),
    };
    match (targets.pop(), targets.is_empty()) {
        (Some(Target { fate: Fate::Ended { state, code, detail }, .. }), true) => {
            Step::Settle(unbegun(delivery, Finish::Ended(state), Some(code), Some(detail)))
        }
        (Some(only), true) => Step::Expand(Expanded { lease, targets: vec![model::as_retried(only)], first }, vec![]),
        _ => parked(
            delivery,
            "template_not_found",
            "the channel has templates for several audiences, and this delivery has no audience; enqueue the event \
             again, under a new key"
                .into(),
        ),
    }
}

fn expand(delivery: &Delivery, targets: Vec<Target>, table: &Table) -> Step {
    if delivery.losses > MAX_LOSSES {
        return parked(
            delivery,
            "lease_expired",
            "every worker that tried to create the deliveries of this notification stopped before it was done; find \
             the cause in the logs of the workers, then retry"
                .into(),
        );
    }
    for lane in targets.iter().filter_map(|target| table.lane_of(target)) {
        lane.set_backlog(true);
    }
    Step::Expand(Expanded::new(Lease::of(delivery), targets), vec![])
}

/// Decides the next step for a part of a large expansion.
fn next_part(delivery: &Delivery, mut part: Part, table: &Table, now: Timestamp) -> Step {
    match expand(delivery, vec![], table) {
        Step::Expand(..) => {}
        lost => return lost,
    }
    table.pass_over(&mut part.expanded.targets, now);
    for lane in part.expanded.targets.iter().filter_map(|target| table.lane_of(target)) {
        lane.set_backlog(true);
    }
    Step::WritePart(part, vec![])
}

/// Decides the next step for a notification with one target. It is sent from its own row if its lane allows that. If a
/// previous lease expired, its holder may have sent the notification. That outcome is unknown, so the guarantee
/// decides.
fn only_target(delivery: Delivery, note: &StoredNotification, target: Target, table: &Table, now: Timestamp) -> Step {
    let lane = table.lane_of(&target);
    let sent_since = delivery.lost_since.filter(|since| {
        lane.is_none_or(|lane| attempt::may_have_been_sent_from_own_row(lane, table.rerouted_at, *since))
    });
    match (lane, sent_since) {
        (Some(lane), Some(since)) => {
            let delivery = delivery.of_only_target(lane.provider.id, target);
            let elsewhere = attempt::was_before(since, table.rerouted_at);
            Step::Settle(attempt::take_over(&delivery, note, lane, since, now, elsewhere))
        }
        (Some(lane), None) if table.may_send_from_own_row(lane, now) => {
            Step::SendFromOwnRow(lane.clone(), delivery.of_only_target(lane.provider.id, target))
        }
        (None, Some(_)) => ended_unclear(delivery, target),
        _ => expand(&delivery, vec![target], table),
    }
}

/// Settles a notification that may have been sent before its provider was deleted or disabled.
fn ended_unclear(delivery: Delivery, target: Target) -> Step {
    let (state, code, detail) = match target.fate.clone() {
        Fate::Ended { state, code, detail } => (state, code, detail),
        Fate::Lane(_) => (
            FinishedState::Parked(Reason::Config),
            "unknown_provider",
            format!(
                "the worker does not know the provider of this delivery, and an earlier attempt may have arrived; \
                 {ASK_RECEIVER}"
            ),
        ),
    };
    let lane = expansion_lane(delivery.key.tenant);
    let delivery = delivery.of_only_target(lane, target);
    Step::Settle(Settlement { unclear: true, ..unbegun(&delivery, Finish::Ended(state), Some(code), Some(detail)) })
}

fn parked(delivery: &Delivery, code: &str, detail: String) -> Step {
    Step::Settle(unbegun(delivery, Finish::Ended(FinishedState::Parked(Reason::Config)), Some(code), Some(detail)))
}
