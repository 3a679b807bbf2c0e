//! Failover: chooses the next lane for deliveries whose provider cannot send, and moves deliveries that already wait in
//! its lane (docs/decisions/0040).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use postcommit::Timestamp;
use postcommit_channel::clock;
use postcommit_channel::model::{
    self, CHAIN, Case, Delivery, Fate, Finish, MAX_MOVES, Report, StoredNotification, Target, Verdict, can_follow,
};

use super::Crew;
use super::lanes::{Lane, Table};
use crate::db::DbError;

/// The most deliveries of a lane that one check moves. On SQLite, applications that want to write wait for the
/// statement. If the provider recovers soon, only a few of its waiting deliveries have moved.
const MOST: u32 = 1000;

/// Whether a lane with a next provider can send.
enum Standing {
    /// The lane sends.
    Open,
    /// The lane is paused, its breaker tripped, or it is held for longer than `failover_after_s`.
    Closed,
    /// The lane's breaker tripped and the hold is over: one send at a time probes the service.
    Probed,
}

impl Lane {
    fn standing(&self, now: Timestamp) -> Standing {
        let provider = &self.provider;
        let held = provider.held_until.filter(|until| *until > now);
        match held {
            _ if provider.paused.is_some() => Standing::Closed,
            Some(until) if provider.trips > 0 || until.since(now) > provider.failover_after() => Standing::Closed,
            None if self.is_probed() => Standing::Probed,
            _ => Standing::Open,
        }
    }

    /// Returns whether the lane takes deliveries of other lanes now. A lane that is probed takes only one from time to
    /// time: its service may still be down, and further deliveries would wait there.
    fn can_take_over(&self, now: Timestamp) -> bool {
        self.comes_back()
            && !self.local_close.is_closed()
            && self.provider.held_until.is_none_or(|until| until <= now)
            && (!self.is_probed() || self.breaker.wants_probe(&self.provider))
    }

    /// Returns how many deliveries the lane takes in one check: no more than it can send soon.
    fn takes(&self) -> u32 {
        match self.provider.rate_per_s {
            _ if self.is_probed() => 1,
            Some(rate) => (rate.ceil() as u32).clamp(1, MOST),
            None => MOST,
        }
    }

    /// Returns whether the lane sends, now or when its hold is over.
    fn comes_back(&self) -> bool {
        self.is_served() && self.provider.enabled
    }
}

impl Table {
    /// Returns the lanes after this one in its failover chain that serve its channel.
    fn following<'a>(&'a self, lane: &'a Lane) -> impl Iterator<Item = &'a Arc<Lane>> {
        let of_tenant = self.routes(lane.provider.tenant).0;
        let next = |of: &Lane| {
            let name = of.provider.failover.as_deref()?;
            self.lane(of_tenant.iter().find(|provider| provider.name == name)?.id)
        };
        let chain = std::iter::successors(next(lane), move |last| next(last)).take(CHAIN - 1);
        chain
            .filter(|next| next.provider.id != lane.provider.id)
            .filter(|next| can_follow(&lane.provider.channel, &next.provider.channel))
    }

    /// Returns the first lane after this one in its chain that can send now.
    fn takes_over<'a>(&'a self, lane: &'a Lane, now: Timestamp) -> Option<&'a Arc<Lane>> {
        self.following(lane).find(|next| next.can_take_over(now))
    }

    /// Returns the next lane for a new delivery of this lane, or `None` if the delivery stays. A lane that is probed
    /// keeps one delivery from time to time, because only a send shows that its service works again.
    fn passing_over(&self, id: i32, now: Timestamp) -> Option<&Arc<Lane>> {
        let lane = self.lane(id).filter(|lane| lane.provider.failover.is_some())?;
        match lane.standing(now) {
            Standing::Open => None,
            Standing::Closed => self.takes_over(lane, now),
            Standing::Probed if lane.breaker.wants_probe(&lane.provider) => None,
            Standing::Probed => self.takes_over(lane, now),
        }
    }

    /// Gives targets whose provider cannot send now to the next provider. Returns whether a target changed.
    pub fn pass_over(&self, targets: &mut [Target], now: Timestamp) -> bool {
        if self.chained.is_empty() {
            return false;
        }
        let mut changed = false;
        for target in targets.iter_mut().filter(|target| target.facts.provider.is_none()) {
            let Fate::Lane(id) = target.fate else { continue };
            if let Some(next) = self.passing_over(id, now) {
                target.fate = Fate::Lane(next.provider.id);
                changed = true;
            }
        }
        changed
    }

    /// Returns the lane for a delivery that has no row in a lane yet: this lane or a next one, as in
    /// [`Table::pass_over`].
    pub fn lane_or_next(&self, delivery: &Delivery, lane: i32, now: Timestamp) -> i32 {
        let may_move = delivery.facts.provider.is_none()
            && !delivery.unclear
            && delivery.lost_since.is_none()
            && delivery.moves < MAX_MOVES;
        let next = if may_move { self.passing_over(lane, now) } else { None };
        next.map_or(lane, |next| next.provider.id)
    }
}

/// Returns the next lane for a delivery after a failed attempt, or `None` if the delivery stays. A delivery that would
/// otherwise be parked may also go to a lane that is held for a while.
pub fn next_after(
    crew: &Crew,
    lane: &Lane,
    delivery: &Delivery,
    (report, case): (&Report, &Case<'_>),
    verdict: Verdict,
) -> Option<Arc<Lane>> {
    // On a lane that tells hosts apart, failures are those of a receiver, and another provider would fail as well.
    if lane.provider.failover.is_none() || lane.hosts.is_some() {
        return None;
    }
    if !model::may_move(delivery, report, case, lane.provider.failover_after()) {
        return None;
    }
    let table = crew.latest.get();
    let waits = || table.following(lane).find(|next| next.comes_back()).filter(|_| matches!(verdict, Verdict::Park(_)));
    table.takes_over(lane, case.now).or_else(waits).cloned()
}

/// Records that a delivery goes on with the next provider. The delivery keeps its due time, and so its place in the
/// queue.
pub fn moved(crew: &Crew, (lane, next): (&Lane, &Lane), delivery: &Delivery, note: &StoredNotification) -> Finish {
    tracing::info!(
        tenant = note.tenant_name,
        delivery = %delivery.key.id(),
        provider = lane.provider.name,
        next = next.provider.name,
        "the delivery goes on with the next provider"
    );
    crew.tools.metrics.failovers.add(1);
    next.set_backlog(true);
    Finish::Again { at: delivery.due_at, counted: false }
}

/// Moves the deliveries that wait in closed lanes to the next providers. Returns how many moved.
pub async fn run_once(crew: &Crew) -> Result<u64, DbError> {
    let table = crew.latest.get();
    let is_held = |lane: &&Arc<Lane>| lane.provider.paused.is_some() || lane.provider.held_until.is_some();
    let lanes: Vec<&Arc<Lane>> = table.chained.iter().filter_map(|id| table.lane(*id)).filter(is_held).collect();
    if lanes.is_empty() {
        return Ok(0);
    }
    let (store, mut all) = (&crew.tools.store, 0);
    let now = store.now().await?;
    for lane in lanes.into_iter().filter(|lane| matches!(lane.standing(now), Standing::Closed)) {
        let Some(next) = table.takes_over(lane, now) else { continue };
        let count = store.move_waiting(&lane.provider, next.provider.id, now, next.takes()).await?;
        if count == 0 && next.is_probed() {
            next.breaker.keep_turn();
        }
        if count > 0 {
            tracing::warn!(
                provider = lane.provider.name,
                next = next.provider.name,
                count,
                "the provider cannot send now; deliveries that waited for it go on with the next provider"
            );
            crew.tools.metrics.failovers.add(count);
            next.set_backlog(true);
            crew.stir.notify_one();
            all += count;
        }
    }
    Ok(all)
}

/// Moves the deliveries that wait in closed lanes, once per interval, concurrently with the claims. After a slow check
/// the next one comes later.
pub async fn run_forever(crew: Arc<Crew>, quiet: Arc<AtomicBool>) {
    let interval = Duration::from_millis(crew.tools.settings.interval_ms);
    while !quiet.load(Ordering::Relaxed) {
        let began = clock::monotonic();
        if let Err(problem) = run_once(&crew).await {
            let what = "could not move deliveries of closed providers to the next ones; trying again later";
            crew.outage.failed(&problem, what);
        }
        tokio::time::sleep(interval.max(began.elapsed() * 10)).await;
    }
}
