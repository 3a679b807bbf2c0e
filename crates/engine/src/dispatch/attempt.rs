//! The pipeline of one delivery: check → render → announce → permit → send → judge → settle.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use postcommit::Timestamp;
use postcommit_channel::clock;
use postcommit_channel::driver::{Driver, Message};
use postcommit_channel::model::{
    self, Case, Delivery, Finish, FinishedState, Guarantee, Lost, MAX_ATTEMPTS_IN_ALL, Outcome, QuietWindow, Reason,
    Report, StoredNotification, Verdict,
};
use tokio::sync::{Notify, OwnedSemaphorePermit};

use super::breaker::{self, Turn};
use super::demands::{demand_of, tell_lane};
use super::failover;
use super::hosts::HostSlot;
use super::hosts::admission::{self, put_off_refused};
use super::lanes::Lane;
use super::parked_log::About;
use super::permits::Permits;
use super::render::{Rendered, Rendering, message, render_all, render_direct};
use super::settlement::{settlement, storable};
use super::settler::{Noted, unbegun};
use super::{Claimed, Crew, DatabaseTime};
use crate::crash_point;
use crate::metrics::Counts;
use crate::store::{Lease, Settlement};
use crate::trace::{self, Begun, Span, SpanKind};

/// The additional time for a driver that does not return within its timeout. After that time the send counts as timed
/// out.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long other processes may still use a provider's former guarantee after a change: the longest polling interval
/// plus one send.
const HEARSAY: Duration = Duration::from_secs(360);
/// How long a delivery is put off when its lane was closed after the claim.
const CLOSED_WAIT: Duration = Duration::from_secs(1);

/// How many sends share a task. With one task per send, a driver that answers immediately would wake another thread for
/// each send. With one task per batch, the other threads would be idle.
const TOGETHER: usize = 16;
/// The action for the operator. It ends the detail text of a parked delivery that may have arrived.
pub const ASK_RECEIVER: &str =
    "ask the receiver whether the message arrived, then retry the delivery with `unclear`, or discard it";

/// Deliveries that wait for a slot of their lane. When a send has ended, its slot passes directly to the next waiting
/// delivery.
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

    /// Waits until no delivery waits for a slot any more.
    pub async fn all_begun(&self) {
        while self.len() > 0 {
            self.all_begun.notified().await;
        }
    }

    /// Removes and returns the deliveries that still wait for a slot.
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

/// Starts a claimed batch of one lane. The permits of deliveries that are not started are returned.
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
    let rendered = render_all(crew, lane, checked, now).await;
    let ready = announce(crew, lane, rendered, now).await;
    if let Some(mut permits) = permits {
        permits.spend(ready.len());
    }
    let group = Group { crew: crew.clone(), lane: lane.clone(), waiting: Arc::new(Waiting::new(vec![])), clock };
    spawn_attempts(&group, ready, slots);
}

/// Starts as many waiting deliveries as there are slots. When a send ends, its slot takes the next waiting delivery.
/// Call it only for lanes whose sends need no announcement, and only for direct messages.
pub fn attempt_waiting(
    crew: &Arc<Crew>,
    lane: &Arc<Lane>,
    waiting: &Arc<Waiting>,
    clock: DatabaseTime,
    slots: OwnedSemaphorePermit,
) {
    let first = (0..slots.num_permits()).map_while(|_| waiting.next()).collect();
    let ready = check_all(crew, lane, first, clock.now()).into_iter().map(render_direct).collect();
    let group = Group { crew: crew.clone(), lane: lane.clone(), waiting: waiting.clone(), clock };
    spawn_attempts(&group, ready, Some(slots));
}

/// State that the sends of one batch share.
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
    let attempts = some.into_iter().map(|((first, rendering), slot)| async move {
        let (mut next, mut rendering) = (Some(first), Some(rendering));
        while let Some((delivery, note)) = next {
            let unsettled = group.crew.leases.guard([Lease::of(&delivery)]);
            // A panic in our own code fails only this delivery, like a panic in the driver.
            // The future of an attempt is large, so it is pinned where it is made. Each move would copy it.
            let attempt = pin!(group.attempt(&delivery, &note, rendering.take()));
            let attempted = AssertUnwindSafe(attempt).catch_unwind().await;
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
    /// Attempts one delivery. If `rendering` is `None`, the delivery is checked and rendered first.
    async fn attempt(&self, delivery: &Delivery, note: &StoredNotification, rendering: Option<Rendering>) {
        let now = self.clock.now();
        let rendering = match rendering {
            Some(rendering) => rendering,
            None => match check(delivery, note, &self.lane, now) {
                Some(settlement) => {
                    let noted =
                        noted(counts(&self.crew, delivery, note), settlement.finish, &self.lane, (delivery, note));
                    return self.crew.settler.settle(settlement, None, Some(noted));
                }
                None => Rendering::direct(delivery, note),
            },
        };
        // The wait for a slow host must not count as time of this attempt.
        let Ok(turn) = admission::take_slot(&self.crew, &self.lane, (delivery, note), self.clock).await else { return };
        let now = if turn.is_some() { self.clock.now() } else { now };
        attempt(&self.crew, &self.lane, (delivery, note), rendering, now, turn).await;
    }
}

/// Settles the deliveries that must not be sent, and returns the others.
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

/// Returns the settlement of a delivery that must not be sent, or `None` if it may be sent.
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
                "this delivery has had {} attempts; at most {MAX_ATTEMPTS_IN_ALL} are allowed. Resend the \
                 notification to send it again.",
                delivery.seq
            )),
        ),
        () if provider.guarantee == Guarantee::AtMostOnce && delivery.unclear => (
            FinishedState::Parked(Reason::OutcomeUnknown),
            "earlier_unclear",
            Some(format!("an earlier attempt may have arrived, and the guarantee is now at_most_once; {ASK_RECEIVER}")),
        ),
        () if forgotten() => (
            FinishedState::Parked(Reason::OutcomeUnknown),
            "key_window_over",
            Some(format!(
                "an earlier attempt may have arrived, and the receiver may have forgotten the idempotency key; \
                 {ASK_RECEIVER}"
            )),
        ),
        () => {
            return quiet_until(delivery, note, now)
                .map(|at| unbegun(delivery, Finish::Again { at, counted: false }, None, None));
        }
    };
    Some(unbegun(delivery, Finish::Ended(state), Some(code), detail))
}

/// Returns when the quiet hours of the delivery's user end, or `None` if `at` is outside of them. A delivery can become
/// due in quiet hours by a retry, after a pause, or because of a backlog.
fn quiet_until(delivery: &Delivery, note: &StoredNotification, at: Timestamp) -> Option<Timestamp> {
    let end = QuietWindow::of(delivery.facts.context.as_deref())?.end(at)?;
    Some(end.min(note.expires_at.max(at)))
}

/// Moves a retry out of the quiet hours of the delivery's user.
fn after_quiet_hours(finish: Finish, delivery: &Delivery, note: &StoredNotification) -> Finish {
    match finish {
        Finish::Again { at, counted } => Finish::Again { at: quiet_until(delivery, note, at).unwrap_or(at), counted },
        other => other,
    }
}

/// Settles a delivery whose previous lease expired. The outcome of that attempt is unclear, so the guarantee decides
/// whether to send again. An at_most_once attempt without an announcement certainly sent nothing. An inbox message is
/// written together with its settlement, so an unsettled attempt did not arrive, unless it may have gone to another
/// provider (`elsewhere`).
pub fn take_over(
    delivery: &Delivery,
    note: &StoredNotification,
    lane: &Lane,
    since: Timestamp,
    now: Timestamp,
    elsewhere: bool,
) -> Settlement {
    let provider = &lane.provider;
    // Only at_most_once sends from a delivery's own row are announced. Other processes learn of a changed guarantee
    // with a delay, so a missing announcement proves nothing soon after a change.
    let own_row = delivery.row == delivery.key.n;
    let announcing =
        own_row && provider.guarantee == Guarantee::AtMostOnce && since > provider.guarantee_since.plus(HEARSAY);
    let certainly_unsent = (announcing && !delivery.intent_stands) || (lane.is_inbox() && !elsewhere);
    let outcome = if certainly_unsent { Outcome::deferred("lease_expired") } else { Outcome::unclear("lease_expired") };
    let lost = Some(Lost { losses: delivery.losses, since });
    let verdict = model::judge(&Case { lost, ..case(delivery, note, lane, &outcome, now) });
    let report = Report::from(outcome).because("the worker gave no result before the lease of the delivery expired");
    let finish = after_quiet_hours(finish(verdict, None), delivery, note);
    settlement((delivery, note), lane, report, finish, since, Duration::ZERO)
}

/// Returns whether the holder of an expired lease may have sent the notification from its own row. Under at_most_once
/// this never happens, unless the guarantee or the routing was changed after the attempt began or shortly before.
pub fn may_have_been_sent_from_own_row(lane: &Lane, rerouted_at: Timestamp, since: Timestamp) -> bool {
    lane.provider.guarantee != Guarantee::AtMostOnce
        || was_before(since, lane.provider.guarantee_since.max(rerouted_at))
}

/// Returns whether the attempt began before every process had certainly read the change that was made at `change`.
pub fn was_before(began: Timestamp, change: Timestamp) -> bool {
    began <= change.plus(HEARSAY)
}

/// Writes the announcement of at_most_once sends before their first byte is sent, a whole batch in one write. Returns
/// the deliveries that may be sent. A delivery that could not be announced is not sent.
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
            // The announcement may have been written although the call failed. In that case the next claim finds it and
            // parks the delivery, although nothing was sent.
            let wait = lane.backoff.wait();
            tracing::warn!(
                %problem, provider = &*lane.name, ?wait,
                "could not write to the database that these sends are about to begin; nothing was sent, they are \
                 tried again after the wait"
            );
            crew.settler.put_off(batch.iter().map(|((delivery, _), _)| Lease::of(delivery)), now.plus(wait));
            vec![]
        }
    }
}

/// Makes one attempt: takes the permit, sends, judges the answer and settles.
async fn attempt(
    crew: &Crew,
    lane: &Lane,
    (delivery, note): (&Delivery, &StoredNotification),
    Rendering { content, warnings }: Rendering,
    now: Timestamp,
    slot: Option<HostSlot>,
) {
    if let Some(wait) = not_yet(lane, delivery) {
        return put_off(crew, (delivery, note), now, wait);
    }
    // A delivery with a host of its own is probed by the breaker of that host.
    let is_probe = slot.is_none() && lane.is_probed();
    let probe = is_probe.then(|| lane.breaker.probe());
    if matches!(probe, Some(None)) {
        // Another send probes whether the service works again. This delivery waits for the result.
        return put_off(crew, (delivery, note), now, CLOSED_WAIT);
    }
    let Some(timeout) = permit(crew, lane, delivery) else {
        tracing::warn!(
            delivery = %delivery.key.id(),
            "the lease of the delivery ends too soon to begin a send; the delivery goes back to the queue"
        );
        return crew.settler.settle(unbegun(delivery, Finish::Returned, None, None), None, None);
    };
    let counts = counts(crew, delivery, note);
    if delivery.seq == 0 {
        crew.tools.metrics.began_after(now.since(note.created_at.max(note.due_at)));
    }
    let span = crew.tools.tracer.begin_of(note);
    let parent = span.as_ref().map(Begun::context).or_else(|| note.traceparent()).map(|parent| parent.to_string());
    let began = clock::monotonic();
    let message = message((delivery, note), content, timeout, parent.as_deref());
    let mut report = match lane.waits_for_late_answer() {
        false => send(lane, message).await,
        true => Box::pin(send_while_held(crew, lane, &Lease::of(delivery), message)).await,
    };
    let took = began.elapsed();
    let (turn, trips) = breaker::note(lane, slot, &report);
    counts.sent(took);
    if let Some(span) = span {
        crew.tools.tracer.end(ended(span, lane, delivery, note, &report));
    }
    // The settler writes the result later, so that the next send may begin meanwhile. This wait bounds the number of
    // unwritten results.
    let room = crew.settler.room().await;
    let ended = now.plus(took);
    let case = Case { after: report.after, ..case(delivery, note, lane, &report.outcome, ended) };
    let demand = demand_of(&report, &case);
    // These futures are boxed because they run rarely. Without the box, the future of every attempt would have room for
    // them.
    let verdict = match (demand, model::judge(&case)) {
        (Some(demand), verdict) => Box::pin(tell_lane(crew, lane, (delivery, note), demand, verdict, ended)).await,
        (None, verdict) => verdict,
    };
    match turn {
        Turn::None => {}
        Turn::Trip(failures) => {
            let demand = breaker::demand((lane, delivery), &report, failures, trips);
            Box::pin(tell_lane(crew, lane, (delivery, note), demand, verdict, ended)).await;
        }
        Turn::Recover => Box::pin(breaker::recover(crew, lane, (delivery, note), trips)).await,
    }
    drop(probe);
    let next = match verdict {
        Verdict::Done => None,
        verdict => failover::next_after(crew, lane, delivery, (&report, &case), verdict),
    };
    let finish = match &next {
        Some(next) => failover::moved(crew, (lane, next), delivery, note),
        None => after_quiet_hours(finish(verdict, Some(&report.outcome)), delivery, note),
    };
    let noted = noted(counts, finish, lane, (delivery, note));
    // The warnings go into `detail`. A detail without a code does not count as an error.
    if let Some(warnings) = warnings {
        let told = report.evidence.detail.take();
        report.evidence.detail = Some(told.map_or(warnings.clone(), |told| format!("{told}; {warnings}")));
    }
    let settlement = settlement((delivery, note), lane, report, finish, now, took);
    let moved_to = next.map(|next| next.provider.id);
    crew.settler.settle(Settlement { moved_to, ..settlement }, room, Some(noted));
}

/// Returns how long a send that has not begun must wait: the lane was closed after the claim, or the recipient got a
/// message a moment ago.
fn not_yet(lane: &Lane, delivery: &Delivery) -> Option<Duration> {
    if let Some(left) = lane.local_close.time_left() {
        return Some(left);
    }
    if lane.local_close.is_closed() {
        // The pause or hold is written, so no claim takes the delivery before the lane is open again.
        return Some(CLOSED_WAIT);
    }
    let interval = lane.driver.as_ref().ok()?.recipient_interval()?;
    lane.recipients.take(delivery.facts.target(), interval, clock::monotonic())
}

/// Puts off a claimed delivery whose send has not begun. No attempt is counted.
fn put_off(crew: &Crew, (delivery, note): (&Delivery, &StoredNotification), now: Timestamp, wait: Duration) {
    let at = now.plus(wait).min(note.expires_at.max(now));
    crew.settler.settle(unbegun(delivery, Finish::Again { at, counted: false }, None, None), None, None);
}

fn noted(
    counts: Arc<Counts>,
    finish: Finish,
    lane: &Lane,
    (delivery, note): (&Delivery, &StoredNotification),
) -> Noted {
    Noted::new(counts, finish, || About::new(note, delivery.facts.channel(), Some(&lane.name)))
}

/// Returns the metrics that count this delivery.
fn counts(crew: &Crew, delivery: &Delivery, note: &StoredNotification) -> Arc<Counts> {
    crew.tools.metrics.of(&note.event_type, delivery.facts.channel())
}

/// Ends the span of an attempt. Its attributes are ids, names and codes, and never an address, a body or a provider's
/// answer.
fn ended(span: Begun, lane: &Lane, delivery: &Delivery, note: &StoredNotification, report: &Report) -> Span {
    let mut attributes = trace::traits_of(note);
    attributes.extend([
        ("postcommit.delivery", delivery.key.id().to_string()),
        ("postcommit.provider", lane.provider.name.clone()),
        ("postcommit.channel", delivery.facts.channel().to_owned()),
        ("postcommit.attempt", (delivery.attempts + 1).to_string()),
        ("postcommit.outcome", report.outcome.name().to_owned()),
    ]);
    let failed = report.outcome.code().map(storable);
    attributes.extend(failed.clone().map(|code| ("postcommit.code", code)));
    attributes.extend(report.class().map(|class| ("postcommit.error_class", class.name().to_owned())));
    span.ended("send", SpanKind::Client, attributes, failed)
}

/// Returns how long the send may take so that it ends before its lease does, or `None` if no time is left. Call this
/// only while a slot is held.
fn permit(crew: &Crew, lane: &Lane, delivery: &Delivery) -> Option<Duration> {
    crew.leases
        .time_left(&Lease::of(delivery))
        .map(|left| left.min(lane.provider.timeout()))
        .filter(|left| !left.is_zero())
}

/// Calls the lane's driver. A send that hangs or panics does not affect other sends.
async fn send(lane: &Lane, message: Message<'_>) -> Report {
    let driver = match &lane.driver {
        Ok(driver) => driver,
        Err(problem) => return Report::from(Outcome::config("bad_provider")).because(problem.problem.clone()),
    };
    crash_point!("send.before");
    let report = call(driver.as_ref(), &lane.provider.name, message).await;
    crash_point!("send.answered");
    report
}

/// Sends by a driver that may wait for an answer longer than the lease lasts. The lease is renewed meanwhile. If it is
/// lost, the send is given up, because another worker may attempt the delivery.
async fn send_while_held(crew: &Crew, lane: &Lane, lease: &Lease, message: Message<'_>) -> Report {
    tokio::select! {
        biased;
        report = send(lane, message) => report,
        () = crew.leases.ended(lease) => Report::from(Outcome::unclear("lease_lost"))
            .because("the lease of the delivery could not be renewed while the send waited for an answer"),
    }
}

/// Calls the driver once, with a deadline. A timeout or a panic becomes an outcome as well.
pub(super) async fn call(driver: &dyn Driver, provider: &str, message: Message<'_>) -> Report {
    let (id, timeout) = (message.key.id(), message.timeout);
    let sending = pin!(async { driver.send(message).await });
    let sending = AssertUnwindSafe(sending).catch_unwind();
    match tokio::time::timeout(timeout + driver.late_answer() + PATIENCE, sending).await {
        Ok(Ok(report)) => report,
        Ok(Err(_panic)) => {
            tracing::error!(delivery = %id, provider, "the driver of the provider panicked; only this send has failed");
            Report::from(Outcome::refused("panic")).because("the driver panicked; the message may have been sent")
        }
        Err(_elapsed) => {
            Report::from(Outcome::unclear("timeout")).because(format!("the send did not finish within {timeout:?}"))
        }
    }
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
        after: None,
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

/// Returns a number between 0 and 1 that differs by delivery and attempt. It is computed from random bits of the
/// notification's id, because asking the system for random bytes would cost a call per send.
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
