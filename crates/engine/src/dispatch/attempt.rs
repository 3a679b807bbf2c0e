//! One delivery's pipeline: check → render → announce → permit → send → judge → settle. The steps are small; this file holds them together.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use postcommit::Timestamp;
use postcommit_channel::clock;
use postcommit_channel::driver::{Driver, Message};
use postcommit_channel::model::{
    self, Because, Case, Delivery, Evidence, Finish, FinishedState, Guarantee, InboxMessage, Lost, MAX_ATTEMPTS_IN_ALL,
    Outcome, Reason, Report, StoredNotification, Verdict,
};
use postcommit_channel::render::{Content, render};
use tokio::sync::{Notify, OwnedSemaphorePermit};

use super::hosts::HostSlot;
use super::hosts::admission::{self, put_off_refused};
use super::lanes::Lane;
use super::local_close::CloseDemand;
use super::parked_log::About;
use super::permits::Permits;
use super::render::{Rendered, message, render_all};
use super::settler::{Noted, place_of, unbegun};
use super::{Claimed, Crew, DatabaseTime};
use crate::crash_point;
use crate::metrics::Counts;
use crate::store::{Attempted, Lease, Settlement};
use crate::trace::{Begun, Span, SpanKind};

/// How much longer than the driver's own deadline we wait for a driver that does not keep it.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long other processes may go by a guarantee that was changed: the longest interval, and one send.
const HEARSAY: Duration = Duration::from_secs(360);
/// Attempts of one delivery that may go uncounted because its lane was paused meanwhile.
const MAX_UNCOUNTED: u32 = 10;
/// What was claimed before its lane closed is looked at again after this at the earliest.
const CLOSED_WAIT: Duration = Duration::from_secs(1);
/// Characters of a code, a detail and an excerpt that are kept.
const TEXT_CHARS: usize = 1000;

/// Sends that share a task: with a task for each, a driver that answers at once wakes another thread for each; with one task for a whole batch, the other
/// threads are idle.
const TOGETHER: usize = 16;

/// Deliveries that wait for a slot of their lane. A slot whose send is over takes the next of them, rather than being let go and asked for again.
pub struct Waiting {
    left: Mutex<std::vec::IntoIter<Claimed>>,
    all_begun: Notify,
}

impl Waiting {
    pub fn new(batch: Vec<Claimed>) -> Self {
        Self { left: Mutex::new(batch.into_iter()), all_begun: Notify::new() }
    }

    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Until none waits any more.
    pub async fn all_begun(&self) {
        while self.len() > 0 {
            self.all_begun.notified().await;
        }
    }

    /// Those that no slot took: from now on none will.
    pub fn take_rest(&self) -> Vec<Claimed> {
        self.lock().by_ref().collect()
    }

    fn next(&self) -> Option<Claimed> {
        let mut left = self.lock();
        let next = left.next()?;
        if left.len() == 0 {
            self.all_begun.notify_one();
        }
        Some(next)
    }

    fn lock(&self) -> MutexGuard<'_, std::vec::IntoIter<Claimed>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sets a claimed batch of one lane on its way. Permits of what is not begun go back.
pub async fn attempt_batch(
    crew: &Arc<Crew>,
    lane: &Arc<Lane>,
    batch: Vec<Claimed>,
    clock: DatabaseTime,
    slots: Option<OwnedSemaphorePermit>,
    permits: Option<Permits>,
) {
    let now = clock.now();
    let checked = put_off_refused(crew, lane, check_all(crew, lane, batch, now), now);
    let ready = announce(crew, lane, render_all(checked), now).await;
    if let Some(mut permits) = permits {
        permits.spend(ready.len());
    }
    let group = Group { crew: crew.clone(), lane: lane.clone(), waiting: Arc::new(Waiting::new(vec![])), clock };
    spawn_attempts(&group, ready, slots);
}

/// Begins as many of those that wait as there are slots; these go on with the others. None of them is to be announced.
pub fn attempt_waiting(
    crew: &Arc<Crew>,
    lane: &Arc<Lane>,
    waiting: &Arc<Waiting>,
    clock: DatabaseTime,
    slots: OwnedSemaphorePermit,
) {
    let first = (0..slots.num_permits()).map_while(|_| waiting.next()).collect();
    let ready = render_all(check_all(crew, lane, first, clock.now()));
    let group = Group { crew: crew.clone(), lane: lane.clone(), waiting: waiting.clone(), clock };
    spawn_attempts(&group, ready, Some(slots));
}

/// What sends that share a task have in common.
#[derive(Clone)]
struct Group {
    crew: Arc<Crew>,
    lane: Arc<Lane>,
    waiting: Arc<Waiting>,
    clock: DatabaseTime,
}

fn spawn_attempts(group: &Group, ready: Vec<Rendered>, mut slots: Option<OwnedSemaphorePermit>) {
    let mut ready = ready.into_iter();
    while ready.len() > 0 {
        let some: Vec<_> = ready
            .by_ref()
            .take(TOGETHER)
            .map(|rendered| (rendered, slots.as_mut().and_then(|slots| slots.split(1))))
            .collect();
        tokio::spawn(attempt_some(group.clone(), some));
    }
}

async fn attempt_some(group: Group, some: Vec<(Rendered, Option<OwnedSemaphorePermit>)>) {
    let group = &group;
    let attempts = some.into_iter().map(|((first, content), slot)| async move {
        let (mut next, mut content) = (Some(first), Some(content));
        while let Some((delivery, note)) = next {
            let unsettled = group.crew.leases.guard([Lease::of(&delivery)]);
            // A panic of ours concerns this delivery alone, as one of the driver does.
            let attempted = AssertUnwindSafe(group.attempt(&delivery, &note, content.take())).catch_unwind().await;
            if attempted.is_ok() {
                unsettled.disarm();
            }
            next = group.waiting.next();
        }
        drop(slot);
    });
    attempts.collect::<FuturesUnordered<_>>().collect::<()>().await;
}

impl Group {
    /// Without content, it has not been checked and rendered yet.
    async fn attempt(&self, delivery: &Delivery, note: &StoredNotification, content: Option<Content>) {
        let now = self.clock.now();
        let content = match content {
            Some(content) => content,
            None => match check(delivery, note, &self.lane, now) {
                Some(settlement) => {
                    let noted =
                        noted(counts(&self.crew, delivery, note), settlement.finish, &self.lane, (delivery, note));
                    return self.crew.settler.settle(settlement, None, Some(noted));
                }
                None => render(note, &delivery.facts),
            },
        };
        // A host's slowness must not be what makes the time of this attempt old.
        let Ok(turn) = admission::take_slot(&self.crew, &self.lane, (delivery, note), self.clock).await else { return };
        let now = if turn.is_some() { self.clock.now() } else { now };
        attempt(&self.crew, &self.lane, (delivery, note), content, now, turn).await;
    }
}

/// Settles what should not be begun, and returns the rest.
fn check_all(crew: &Crew, lane: &Lane, batch: Vec<Claimed>, now: Timestamp) -> Vec<Claimed> {
    let mut begin = Vec::with_capacity(batch.len());
    for (delivery, note) in batch {
        match check(&delivery, &note, lane, now) {
            Some(settlement) => {
                let noted = noted(counts(crew, &delivery, &note), settlement.finish, lane, (&delivery, &note));
                crew.settler.settle(settlement, None, Some(noted));
            }
            None => begin.push((delivery, note)),
        }
    }
    begin
}

/// Whether it should be begun at all.
fn check(delivery: &Delivery, note: &StoredNotification, lane: &Lane, now: Timestamp) -> Option<Settlement> {
    let provider = &lane.provider;
    if let Some(since) = delivery.lost_since {
        return Some(take_over(delivery, note, lane, since, now, false));
    }
    let forgotten = || {
        let first = delivery.first_try_at.unwrap_or(now);
        provider.guarantee == Guarantee::Idempotent
            && delivery.unclear
            && model::key_window_over(first, lane.key_window, now)
    };
    let (state, code, detail) = match () {
        () if note.is_cancelled(delivery.key.n) => (FinishedState::Cancelled, "cancelled", None),
        () if note.expires_at <= now => (FinishedState::Expired, "expired", None),
        () if delivery.seq >= MAX_ATTEMPTS_IN_ALL => (
            FinishedState::Parked(Reason::Exhausted),
            "attempts_in_all",
            Some(format!(
                "{} attempts were made in all; at most {MAX_ATTEMPTS_IN_ALL} are. Resend it to begin anew.",
                delivery.seq
            )),
        ),
        () if provider.guarantee == Guarantee::AtMostOnce && delivery.unclear => (
            FinishedState::Parked(Reason::OutcomeUnknown),
            "earlier_unclear",
            Some("an earlier attempt, under another guarantee, was unclear".into()),
        ),
        () if forgotten() => (
            FinishedState::Parked(Reason::OutcomeUnknown),
            "key_window_over",
            Some("an earlier attempt was unclear and the provider may have forgotten its key".into()),
        ),
        () => return None,
    };
    Some(unbegun(delivery, Finish::Ended(state), Some(code), detail))
}

/// The lease before this one ran out: its attempt is unclear, and the guarantee decides. Without an announcement an at_most_once attempt never began; and an
/// inbox is written by settling, so what did not settle did not arrive, unless it went elsewhere then.
pub fn take_over(
    delivery: &Delivery,
    note: &StoredNotification,
    lane: &Lane,
    since: Timestamp,
    now: Timestamp,
    elsewhere: bool,
) -> Settlement {
    let provider = &lane.provider;
    // Under another guarantee nothing is announced, nor what is sent from its notification's row; and others hear of a change a little later.
    let own_row = delivery.row == delivery.key.n;
    let announcing =
        own_row && provider.guarantee == Guarantee::AtMostOnce && since > provider.guarantee_since.plus(HEARSAY);
    let certainly_unsent = (announcing && !delivery.intent_stands) || (lane.is_inbox() && !elsewhere);
    let outcome = if certainly_unsent { Outcome::deferred("lease_expired") } else { Outcome::unclear("lease_expired") };
    let lost = Some(Lost { losses: delivery.losses, since });
    let verdict = model::judge(&Case { lost, ..case(delivery, note, lane, &outcome, now) });
    let report = Report::from(outcome).because("the worker that held it did not come back in time");
    settlement((delivery, note), lane, report, finish(verdict, None), since, Duration::ZERO)
}

/// Whether a lease of the notification's own row that ran out may have been used to send. Never under at_most_once, unless that was told just then, or it
/// would have gone to another provider then.
pub fn may_have_been_sent_at_once(lane: &Lane, rerouted_at: Timestamp, since: Timestamp) -> bool {
    lane.provider.guarantee != Guarantee::AtMostOnce
        || was_before(since, lane.provider.guarantee_since.max(rerouted_at))
}

/// Whether it began before everybody can have heard of a change.
pub fn was_before(began: Timestamp, change: Timestamp) -> bool {
    began <= change.plus(HEARSAY)
}

/// at_most_once sends are announced before their first byte, all of a batch at once. What cannot be announced is not begun.
async fn announce(crew: &Crew, lane: &Lane, batch: Vec<Rendered>, now: Timestamp) -> Vec<Rendered> {
    if lane.provider.guarantee != Guarantee::AtMostOnce || batch.is_empty() {
        return batch;
    }
    let asked: Vec<Lease> = batch.iter().map(|((d, _), _)| Lease::of(d)).collect();
    match crew.tools.store.announce(&asked).await {
        Ok(announced) => {
            lane.backoff.reset();
            let (go, gone): (Vec<_>, Vec<_>) =
                batch.into_iter().partition(|((d, _), _)| announced.contains(&Lease::of(d).key));
            gone.iter().for_each(|((d, _), _)| crew.leases.release(&Lease::of(d)));
            go
        }
        Err(problem) => {
            // It may have been written: then taking the lease over will find it, and park. Nothing was sent under it.
            let wait = lane.backoff.wait();
            tracing::warn!(%problem, provider = &*lane.name, ?wait, "could not announce the sends; nothing was sent, trying again after a wait");
            crew.settler.put_off(batch.iter().map(|((delivery, _), _)| Lease::of(delivery)), now.plus(wait));
            vec![]
        }
    }
}

/// One attempt, from permit to settle.
async fn attempt(
    crew: &Crew,
    lane: &Lane,
    (delivery, note): (&Delivery, &StoredNotification),
    content: Content,
    now: Timestamp,
    slot: Option<HostSlot>,
) {
    if let Some(left) = lane.local_close.time_left() {
        // Claimed before the lane was shut, and not begun: it waits like those that are not claimed.
        let at = now.plus(left).min(note.expires_at.max(now));
        return crew.settler.settle(unbegun(delivery, Finish::Again { at, counted: false }, None, None), None, None);
    }
    if lane.local_close.is_closed() {
        // A claim leaves it alone until the lane is open again.
        let at = now.plus(CLOSED_WAIT).min(note.expires_at.max(now));
        return crew.settler.settle(unbegun(delivery, Finish::Again { at, counted: false }, None, None), None, None);
    }
    let Some(timeout) = permit(crew, lane, delivery) else {
        tracing::warn!(delivery = %delivery.key.id(), "the lease is too close to its end to begin a send; the delivery is returned");
        return crew.settler.settle(unbegun(delivery, Finish::Returned, None, None), None, None);
    };
    let counts = counts(crew, delivery, note);
    if delivery.seq == 0 {
        crew.tools.metrics.began_after(now.since(note.created_at.max(note.due_at)));
    }
    let span = crew.tools.tracer.begin_of(note);
    let parent = span.as_ref().map(Begun::context).or_else(|| note.traceparent()).map(|parent| parent.to_string());
    let began = clock::monotonic();
    let report = send(lane, message((delivery, note), content, timeout, parent.as_deref())).await;
    let took = began.elapsed();
    drop(slot);
    counts.sent(took);
    if let Some(span) = span {
        crew.tools.tracer.end(ended(span, lane, delivery, note, &report));
    }
    // The next send may begin while this result is being written; but results that wait to be written are bounded, too.
    let room = crew.settler.room().await;
    let verdict = model::judge(&case(delivery, note, lane, &report.outcome, now.plus(took)));
    let verdict = tell_lane(crew, lane, delivery, &report, verdict, now.plus(took)).await;
    let finish = finish(verdict, Some(&report.outcome));
    let noted = noted(counts, finish, lane, (delivery, note));
    crew.settler.settle(settlement((delivery, note), lane, report, finish, now, took), room, Some(noted));
}

fn noted(
    counts: Arc<Counts>,
    finish: Finish,
    lane: &Lane,
    (delivery, note): (&Delivery, &StoredNotification),
) -> Noted {
    Noted::new(counts, finish, || About::new(note, delivery.facts.channel(), Some(&lane.name)))
}

/// Where a delivery is counted.
fn counts(crew: &Crew, delivery: &Delivery, note: &StoredNotification) -> Arc<Counts> {
    crew.tools.metrics.of(&note.event_type, delivery.facts.channel())
}

/// What a trace tells of an attempt: ids, names and codes; never an address, a body or what the provider said.
fn ended(span: Begun, lane: &Lane, delivery: &Delivery, note: &StoredNotification, report: &Report) -> Span {
    let mut attributes = super::traits_of(note);
    attributes.extend([
        ("postcommit.delivery", delivery.key.id().to_string()),
        ("postcommit.provider", lane.provider.name.clone()),
        ("postcommit.channel", delivery.facts.channel().to_owned()),
        ("postcommit.attempt", (delivery.attempts + 1).to_string()),
        ("postcommit.outcome", report.outcome.name().to_owned()),
    ]);
    let failed = report.outcome.code().map(storable);
    attributes.extend(failed.clone().map(|code| ("postcommit.code", code)));
    span.ended("send", SpanKind::Client, attributes, failed)
}

/// A slot is held already; the lease must outlast the send. Returns how long that may take.
fn permit(crew: &Crew, lane: &Lane, delivery: &Delivery) -> Option<Duration> {
    crew.leases
        .time_left(&Lease::of(delivery))
        .map(|left| left.min(lane.provider.timeout()))
        .filter(|left| !left.is_zero())
}

/// Calls the driver, with a deadline and a net: neither a hang nor a panic of one send concerns any other.
async fn send(lane: &Lane, message: Message<'_>) -> Report {
    let driver = match &lane.driver {
        Ok(driver) => driver,
        Err(problem) => return Report::from(Outcome::config("bad_provider")).because(problem.clone()),
    };
    crash_point!("send.before");
    let report = call(driver.as_ref(), &lane.provider.name, message).await;
    crash_point!("send.answered");
    report
}

/// One call of a driver, which ends in an outcome whatever the driver does.
pub(super) async fn call(driver: &dyn Driver, provider: &str, message: Message<'_>) -> Report {
    let (id, timeout) = (message.key.id(), message.timeout);
    let sending = AssertUnwindSafe(async { driver.send(message).await }).catch_unwind();
    match tokio::time::timeout(timeout + PATIENCE, sending).await {
        Ok(Ok(report)) => report,
        Ok(Err(_panic)) => {
            tracing::error!(delivery = %id, provider, "a driver panicked; only this send has failed");
            Report::from(Outcome::refused("panic")).because("the driver panicked; it may have been sent")
        }
        Err(_elapsed) => Report::from(Outcome::unclear("timeout")).because(format!("no outcome within {timeout:?}")),
    }
}

/// What concerns the whole lane: a provider's wish to wait, or an answer that nothing on this lane would survive. A demand that cannot be written shuts the
/// lane in this process; the delivery is judged as if it had been written, so that a failure of ours is never another send.
async fn tell_lane(
    crew: &Crew,
    lane: &Lane,
    delivery: &Delivery,
    report: &Report,
    verdict: Verdict,
    now: Timestamp,
) -> Verdict {
    let Some(demand) = demand_of(report) else { return verdict };
    if let Some(host) = lane.host_of(delivery) {
        return admission::tell_host(crew, lane, delivery, &host, demand, verdict, now).await;
    }
    let (store, name) = (&crew.tools.store, &lane.provider.name);
    let written = demand.write(store, &lane.provider).await;
    match (written, &demand) {
        (Ok(true), CloseDemand::Pause(why)) => tracing::error!(provider = name, why, "lane paused"),
        // Whoever pauses the lane is parked; others under way meet the same answer, and only go back.
        (Ok(false), CloseDemand::Pause(_)) if may_go_back(delivery) => {
            lane.local_close.open(&demand);
            lane.local_close.note_written(&demand);
            return Verdict::Again { at: now, counted: false };
        }
        (Ok(_), _) => {}
        (Err(problem), _) => {
            tracing::error!(%problem, provider = name, ?demand, "could not write the pause or hold of the lane; it stays closed in this process");
            lane.local_close.close_until_written(store, &crew.stir, &lane.provider, demand);
            return verdict;
        }
    }
    lane.local_close.open(&demand);
    lane.local_close.note_written(&demand);
    verdict
}

fn demand_of(report: &Report) -> Option<CloseDemand> {
    match &report.outcome {
        Outcome::Deferred { after: Some(wait), .. } => Some(CloseDemand::hold(*wait)),
        Outcome::Rejected { because: Because::Config, code } => {
            let why =
                report.evidence.detail.as_deref().unwrap_or("the provider does not accept our account or settings");
            Some(CloseDemand::Pause(format!("{code}: {why}")))
        }
        _ => None,
    }
}

/// A lane that others pause again and again must not make one delivery a loop of uncounted sends.
pub(super) fn may_go_back(delivery: &Delivery) -> bool {
    delivery.seq.saturating_sub(delivery.attempts) < MAX_UNCOUNTED
}

fn case<'a>(
    delivery: &Delivery,
    note: &StoredNotification,
    lane: &'a Lane,
    outcome: &'a Outcome,
    now: Timestamp,
) -> Case<'a> {
    Case {
        outcome,
        attempt: delivery.attempts + 1,
        lost: None,
        policy: &lane.provider.policy,
        guarantee: lane.provider.guarantee,
        key_window: lane.key_window,
        first_try_at: delivery.first_try_at.unwrap_or(now),
        expires_at: note.expires_at,
        now,
        chance: chance(delivery),
    }
}

/// Between 0 and 1, other for every delivery and attempt. The id's own random bits will do: asking the system for more is a call for each send.
pub(super) fn chance(delivery: &Delivery) -> f64 {
    let random = delivery.key.notification.as_u128() as u32;
    let which = (delivery.key.n as u32) << 8 | delivery.attempts;
    f64::from(random ^ which.wrapping_mul(0x9e37_79b9)) / f64::from(u32::MAX)
}

fn finish(verdict: Verdict, outcome: Option<&Outcome>) -> Finish {
    match verdict {
        Verdict::Done if outcome == Some(&Outcome::Delivered) => Finish::Ended(FinishedState::Delivered),
        Verdict::Done => Finish::Ended(FinishedState::Sent),
        Verdict::Again { at, counted } => Finish::Again { at, counted },
        Verdict::Park(reason) => Finish::Ended(FinishedState::Parked(reason)),
    }
}

fn settlement(
    (delivery, note): (&Delivery, &StoredNotification),
    lane: &Lane,
    report: Report,
    finish: Finish,
    at: Timestamp,
    took: Duration,
) -> Settlement {
    let Report { outcome, evidence, inbox } = report;
    let unknown = finish == Finish::Ended(FinishedState::Parked(Reason::OutcomeUnknown));
    let unclear = unknown || matches!(outcome, Outcome::Unclear { .. }) || outcome.code() == Some("panic");
    let detail = evidence.detail.as_deref().map(storable);
    let evidence = Evidence {
        detail: None,
        provider_ref: evidence.provider_ref.as_deref().map(storable),
        excerpt: evidence.excerpt.as_deref().map(storable),
    };
    let attempted = Attempted {
        at,
        provider: lane.name.clone(),
        outcome: outcome.name(),
        latency_ms: i32::try_from(took.as_millis()).unwrap_or(i32::MAX),
        evidence,
    };
    Settlement {
        lease: Lease::of(delivery),
        place: place_of(delivery),
        finish,
        attempt: Some(attempted),
        code: outcome.code().map(storable),
        detail,
        unclear,
        message: inbox.map(|content| Box::new(inbox_message((delivery, note), *content))),
        site: note.site_label(),
    }
}

/// What the user finds in the inbox.
fn inbox_message((delivery, note): (&Delivery, &StoredNotification), content: Content) -> InboxMessage {
    InboxMessage {
        user: delivery.facts.target().to_owned(),
        event_type: note.event_type.clone(),
        entity: note.entity.clone(),
        title: content.subject,
        body: content.text,
        action_url: content.action_url,
        data: content.data.map(|data| Box::<str>::from(data).into()),
        expires_at: note.expires_at,
    }
}

/// What a provider said may hold anything; a NUL would make PostgreSQL refuse the whole batch.
fn storable(text: &str) -> String {
    text.chars().filter(|c| *c != '\0').take(TEXT_CHARS).collect()
}
