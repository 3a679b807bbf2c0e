//! The hosts of a lane that serves many receivers. A host that is held, paused or slow delays only its own deliveries.
//! A delivery that would have to wait for such a host gives its slot back and is put off (docs/decisions/0028).
//!
//! - `admission`: decides for each delivery whether its host accepts it now;
//! - `registry`: the hosts of all lanes, and the closed hosts that this process has read from the database.

pub mod admission;
pub mod registry;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use postcommit::Timestamp;
use postcommit_channel::clock;
use postcommit_channel::model::Health;
use tokio::sync::Notify;

use super::breaker::Turn;
use super::local_close::{CloseDemand, LocalClose};
use crate::store::{HOST_HELD, HOST_PAUSED, HostChange};

/// A host is slow if its sends take longer than this on average, or if a send in flight has taken longer.
const SLOW: Duration = Duration::from_secs(1);
/// The share of a lane's slots that one host may use. The other slots stay free for other hosts.
const SHARE: (usize, usize) = (3, 4);
/// The share of a lane's slots that a slow host may use while other hosts are active.
const SLOW_SHARE: (usize, usize) = (1, 8);
/// The share of a lane's slots that all slow hosts may use together.
const ALL_SLOW_SHARE: (usize, usize) = (1, 2);
/// The share of a lane's slots that all hosts without a known quick answer may use together. Many names may lead to one
/// machine that hangs, and each name is new at first. One host counts at most with the share of a slow host, so that a
/// single host cannot delay all new hosts.
const UNPROVEN_SHARE: (usize, usize) = (3, 4);
/// How long a new host waits for a slot before it tries again, while the sends of the other new hosts are quick.
const UNPROVEN_LOOK: Duration = Duration::from_millis(20);
/// The longest time for which a delivery to a new host is put off, while sends to other hosts hang.
const UNPROVEN_WAIT: Duration = Duration::from_secs(30);
/// A host is active if a send to it is in flight, or began or ended within this time.
const ABOUT: Duration = Duration::from_secs(60);

/// A delivery that is put off for a slow host waits at least this long.
const SHORTEST_WAIT: Duration = Duration::from_millis(100);
/// How long a delivery is put off when its host was closed and this process has not read that from the database yet.
const UNREAD_WAIT: Duration = Duration::from_secs(1);
/// How long a delivery is put off for a paused host, or for a slow host with a long backlog. The time grows with the
/// number of waiting deliveries, to at most twice this value.
const LOOK: Duration = Duration::from_secs(300);
/// The longest time for which a delivery is put off for a held host. The hold may end early while the delivery is being
/// put off.
const HELD_LOOK: Duration = Duration::from_secs(3600);
/// The longest random time that is added to a wait, so that deliveries to one host do not all come back together.
const SPREAD: Duration = Duration::from_secs(10);

/// The weight of the latest send in the moving average of latencies.
const WEIGHT: f64 = 0.25;
/// How many hosts of one lane are remembered. Beyond that, hosts that were idle for `MEMORY` are forgotten.
const REMEMBERED: usize = 4096;
const MEMORY: Duration = Duration::from_secs(900);

/// How long a delivery is put off, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PutOff {
    pub wait: Duration,
    /// The code that the delivery's queue row shows during the wait.
    pub code: Option<&'static str>,
}

/// Whether a send to a host may begin.
enum Admission {
    Yes,
    PutOff(PutOff),
    /// Sends to this host are in flight and quick. A slot will be free soon, or the host counts as slow after this
    /// time.
    Soon(Duration),
}

/// The result of asking for a slot of a host.
enum SlotOutcome {
    Taken(HostSlot),
    PutOff(PutOff),
    Soon(Arc<Notify>, Duration),
}

/// The hosts of one lane.
#[derive(Default)]
pub struct Hosts {
    by_name: Mutex<HashMap<Arc<str>, Host>>,
    /// Whether the closed hosts in memory may be outdated, so that all must be read again. Shared by all lanes.
    is_stale: Arc<AtomicBool>,
}

#[derive(Default)]
struct Host {
    /// The time until which the host asked us to send nothing, by the database's clock.
    held_until: Option<Timestamp>,
    paused: bool,
    /// Closes the host while a pause or hold could not be written to the database.
    unwritten: Option<Arc<LocalClose>>,
    /// How often the breaker tripped since the last success. While it is above 0, one send is made at a time.
    trips: i32,
    /// How many sends failed in a row.
    failures: u32,
    /// When each send in flight began, oldest first.
    under_way: VecDeque<Instant>,
    /// The moving average of how long sends take.
    latency: Option<Duration>,
    /// The time given to the delivery that was put off last. The next one gets a later time.
    next_free: Option<Instant>,
    /// How many deliveries were put off since the host was last quick or was last closed or opened.
    put_off: u32,
    /// Whether deliveries were put off because the host was held or paused.
    keeps_waiting: bool,
    used_at: Option<Instant>,
    freed: Arc<Notify>,
}

/// A slot of a host, held while a send to it is in flight. Dropping it records that the send has ended.
pub struct HostSlot {
    hosts: Arc<Hosts>,
    host: Arc<str>,
    began: Instant,
    /// The trips of the host's breaker when the send began. The result of a send from before a trip is not counted.
    trips: i32,
    is_ended: bool,
}

impl HostSlot {
    /// Records that the send has ended, and returns what follows for the breaker of the host, with the trips so far.
    pub fn end(mut self, health: Health, limit: i32) -> (Turn, i32) {
        self.is_ended = true;
        let mut hosts = self.hosts.lock();
        let Some(host) = hosts.get_mut(&self.host) else { return (Turn::None, 0) };
        host.end(self.began);
        if host.trips != self.trips {
            return (Turn::None, 0);
        }
        match health {
            Health::Well => host.failures = 0,
            Health::Failed => host.failures = host.failures.saturating_add(1),
            Health::Unknown => {}
        }
        let turn = Turn::of(health, host.failures, host.trips, limit);
        if turn == Turn::Recover {
            host.trips = 0;
        }
        (turn, self.trips)
    }
}

impl Drop for HostSlot {
    fn drop(&mut self) {
        if self.is_ended {
            return;
        }
        if let Some(host) = self.hosts.lock().get_mut(&self.host) {
            host.end(self.began);
        }
    }
}

impl Hosts {
    pub fn new(is_stale: Arc<AtomicBool>) -> Self {
        Self { is_stale, ..Self::default() }
    }

    /// Waits until a send to this host may begin, or returns how long the delivery is put off.
    pub async fn take_slot(
        self: &Arc<Self>,
        host: &str,
        slots: i32,
        now: impl Fn() -> Timestamp,
        chance: f64,
    ) -> Result<HostSlot, PutOff> {
        loop {
            match self.try_slot(host, slots, now()) {
                SlotOutcome::Taken(slot) => return Ok(slot),
                SlotOutcome::PutOff(put_off) => return Err(put_off.spread(chance)),
                // A slot that becomes free before this wait begins is not missed, because `Notify` keeps one permit.
                SlotOutcome::Soon(freed, longest) => drop(tokio::time::timeout(longest, freed.notified()).await),
            }
        }
    }

    fn try_slot(self: &Arc<Self>, host: &str, slots: i32, now: Timestamp) -> SlotOutcome {
        let mut hosts = self.lock();
        let began = clock::monotonic();
        match admit(&mut hosts, host, 0, SlotShares::of(slots), now, began) {
            Admission::Yes => SlotOutcome::Taken(self.begin(&mut hosts, host, began, now)),
            Admission::PutOff(put_off) => SlotOutcome::PutOff(put_off),
            Admission::Soon(longest) => {
                SlotOutcome::Soon(hosts.get(host).map(|host| host.freed.clone()).unwrap_or_default(), longest)
            }
        }
    }

    /// Decides before the announcement whether a delivery must be put off, and for how long. Returns `None` if it may
    /// go on. `begun` is the number of earlier deliveries of its batch that go to the same host.
    pub fn refuses(&self, host: &str, begun: usize, slots: i32, now: Timestamp, chance: f64) -> Option<PutOff> {
        match admit(&mut self.lock(), host, begun, SlotShares::of(slots), now, clock::monotonic()) {
            Admission::PutOff(put_off) => Some(put_off.spread(chance)),
            Admission::Yes | Admission::Soon(_) => None,
        }
    }

    fn begin(
        self: &Arc<Self>,
        hosts: &mut HashMap<Arc<str>, Host>,
        host: &str,
        began: Instant,
        now: Timestamp,
    ) -> HostSlot {
        forget_the_idle(hosts, began, now);
        let name: Arc<str> = hosts.get_key_value(host).map_or_else(|| host.into(), |(name, _)| name.clone());
        let known = hosts.entry(name.clone()).or_default();
        known.under_way.push_back(began);
        known.used_at = Some(began);
        HostSlot { trips: known.trips, is_ended: false, hosts: self.clone(), host: name, began }
    }

    /// Closes the host in memory as an answer demands, before that is written to the database.
    pub fn demanded(&self, host: &str, demand: &CloseDemand, now: Timestamp) {
        let mut hosts = self.lock();
        let known = hosts.entry(host.into()).or_default();
        match demand {
            CloseDemand::Pause(_) => known.paused = true,
            CloseDemand::Hold(_, wait) => known.held_until = known.held_until.max(Some(now.plus(*wait))),
            CloseDemand::Trip { wait, trips, .. } => {
                known.held_until = known.held_until.max(Some(now.plus(*wait)));
                (known.trips, known.failures) = (trips + 1, 0);
            }
        }
    }

    /// Applies the state of a host as read from the database. Returns true when the host is open and this process has
    /// put off deliveries for it.
    pub fn set(&self, change: &HostChange) -> bool {
        let mut hosts = self.lock();
        let known = hosts.entry(change.host.as_str().into()).or_default();
        known.shut_by(change.held_until, change.paused);
        known.count_trips(change.trips);
        known.unwritten.take_if(|unwritten| !unwritten.is_unwritten());
        !known.paused && known.held_until.is_none() && std::mem::take(&mut known.keeps_waiting)
    }

    /// Opens all hosts except those in `shut`. Returns the opened hosts for which this process has put off deliveries.
    pub fn open_others(&self, shut: &HashSet<&str>) -> Vec<Arc<str>> {
        let mut opened = Vec::new();
        for (name, host) in self.lock().iter_mut().filter(|(name, _)| !shut.contains(&***name)) {
            // After a hold that ran out, the deliveries become due by themselves.
            let is_shut = host.paused || host.held_until.is_some();
            host.shut_by(None, false);
            host.count_trips(0);
            if is_shut && std::mem::take(&mut host.keeps_waiting) {
                opened.push(name.clone());
            }
        }
        opened
    }

    /// Opens a host whose pause or hold was not written. All closed hosts are then read again, because other processes
    /// may have closed it.
    pub fn open(&self, host: &str) {
        self.lock().entry(host.into()).or_default().shut_by(None, false);
        self.is_stale.store(true, Ordering::Release);
    }

    /// Returns the local close of a host, and creates it on first use. It keeps a pause or hold that cannot be written.
    pub fn unwritten(&self, host: &str) -> Arc<LocalClose> {
        let mut hosts = self.lock();
        let known = hosts.entry(host.into()).or_default();
        known.unwritten.get_or_insert_with(|| Arc::new(LocalClose::of_host(host.into()))).clone()
    }

    /// Records that a pause or hold was written, which replaces an earlier unwritten one.
    pub fn written(&self, host: &str, demand: &CloseDemand) {
        if let Some(unwritten) = self.lock().get(host).and_then(|host| host.unwritten.clone()) {
            unwritten.open(demand);
        }
    }

    /// Drops pauses and holds of hosts that are not in the database yet. They came from answers to requests under the
    /// provider's former settings.
    pub fn forget_unwritten(&self) {
        self.lock().values_mut().for_each(|host| host.unwritten = None);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, Host>> {
        self.by_name.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How many of a lane's slots one host, a slow host, all slow hosts and all new hosts may use.
#[derive(Clone, Copy)]
struct SlotShares {
    one: usize,
    slow: usize,
    all_slow: usize,
    unproven: usize,
}

impl SlotShares {
    fn of(slots: i32) -> Self {
        let slots = usize::try_from(slots).unwrap_or(1);
        let share = |(part, of): (usize, usize)| (slots * part / of).max(1);
        Self {
            one: share(SHARE),
            slow: share(SLOW_SHARE),
            all_slow: share(ALL_SLOW_SHARE),
            unproven: share(UNPROVEN_SHARE),
        }
    }
}

fn admit(
    hosts: &mut HashMap<Arc<str>, Host>,
    name: &str,
    begun: usize,
    room: SlotShares,
    now: Timestamp,
    at: Instant,
) -> Admission {
    if let Some(host) = hosts.get_mut(name)
        && let Some(put_off) = host.shut(now)
    {
        host.keeps_waiting = true;
        return Admission::PutOff(put_off);
    }
    if let Some(later) = crowded_out(hosts, name, room, at) {
        return later;
    }
    let Some(host) = hosts.get_mut(name) else {
        return if begun < room.one { Admission::Yes } else { Admission::Soon(SLOW) };
    };
    let under_way = host.under_way.len() + begun;
    // One send at a time probes a host whose breaker tripped. Other sends wait for its result.
    let room = if host.trips > 0 { SlotShares { one: 1, slow: 1, ..room } } else { room };
    if !host.is_slow(at) {
        host.put_off = 0;
        return if under_way < room.one { Admission::Yes } else { Admission::Soon(host.slow_after(at)) };
    }
    let crowd = Crowd::around(hosts, name, at);
    let most = if crowd.others_are_active { room.slow } else { room.one };
    if under_way < most && (!crowd.others_are_active || crowd.slow_under_way + begun < room.all_slow) {
        return Admission::Yes;
    }
    // The host exists, because it was read above.
    hosts.get_mut(name).map_or(Admission::Yes, |host| Admission::PutOff(host.pace(most, at)))
}

/// Decides whether a host without a known answer must wait. It waits while other new or slow hosts use the whole share
/// of new hosts.
fn crowded_out(hosts: &HashMap<Arc<str>, Host>, name: &str, room: SlotShares, at: Instant) -> Option<Admission> {
    if hosts.get(name).is_some_and(|host| host.latency.is_some()) {
        return None;
    }
    let (mut under_way, mut oldest) = (0, Duration::ZERO);
    for (_, host) in
        hosts.iter().filter(|(other, host)| &***other != name && (host.latency.is_none() || host.is_slow(at)))
    {
        under_way += host.under_way.len().min(room.slow);
        oldest = oldest.max(host.oldest(at));
    }
    match oldest > SLOW {
        _ if under_way < room.unproven => None,
        true => Some(Admission::PutOff(PutOff { wait: oldest.min(UNPROVEN_WAIT), code: None })),
        false => Some(Admission::Soon(UNPROVEN_LOOK)),
    }
}

/// The activity of other hosts on the lane, which limits a slow host.
struct Crowd {
    others_are_active: bool,
    /// Sends in flight to all slow hosts, including this one.
    slow_under_way: usize,
}

impl Crowd {
    fn around(hosts: &HashMap<Arc<str>, Host>, name: &str, at: Instant) -> Self {
        let about = |host: &Host| {
            !host.under_way.is_empty() || host.used_at.is_some_and(|used| at.duration_since(used) < ABOUT)
        };
        Self {
            others_are_active: hosts.iter().any(|(other, host)| &**other != name && about(host)),
            slow_under_way: hosts.values().filter(|host| host.is_slow(at)).map(|host| host.under_way.len()).sum(),
        }
    }
}

/// Forgets hosts that are not in use and have been idle for long, once many hosts are remembered.
fn forget_the_idle(hosts: &mut HashMap<Arc<str>, Host>, at: Instant, now: Timestamp) {
    if hosts.len() < REMEMBERED {
        return;
    }
    let recent = |host: &Host, within: Duration| host.used_at.is_some_and(|used| at.duration_since(used) < within);
    hosts.retain(|_, host| host.is_needed(now) || recent(host, MEMORY));
    if hosts.len() >= REMEMBERED {
        hosts.retain(|_, host| host.is_needed(now));
    }
}

impl Host {
    /// Returns whether the host must be remembered. A hold that is over is no reason to remember it.
    fn is_needed(&self, now: Timestamp) -> bool {
        let is_held = self.held_until.is_some_and(|until| until > now);
        !self.under_way.is_empty()
            || self.paused
            || is_held
            || self.unwritten.as_ref().is_some_and(|shut| shut.is_unwritten() || shut.is_closed())
    }

    fn shut_by(&mut self, held_until: Option<Timestamp>, paused: bool) {
        if (self.held_until, self.paused) != (held_until, paused) {
            (self.held_until, self.paused, self.put_off) = (held_until, paused, 0);
        }
    }

    /// Sets the trips of the breaker. Another number means that another process tripped it, or that it was reset.
    fn count_trips(&mut self, trips: i32) {
        if self.trips != trips {
            (self.trips, self.failures) = (trips, 0);
        }
    }

    fn shut(&mut self, now: Timestamp) -> Option<PutOff> {
        if self.paused {
            return Some(PutOff { wait: self.look_after(), code: Some(HOST_PAUSED) });
        }
        if let Some(unwritten) = &self.unwritten {
            // The pause or hold was written just now, and this process has not read it yet. A delivery that was claimed
            // before must not begin.
            let unread = || unwritten.is_closed().then_some(UNREAD_WAIT);
            if let Some(wait) = unwritten.time_left().or_else(unread) {
                return Some(PutOff { wait, code: Some(HOST_HELD) });
            }
        }
        match self.held_until {
            Some(until) if until > now => Some(PutOff { wait: until.since(now).min(HELD_LOOK), code: Some(HOST_HELD) }),
            Some(_) => {
                (self.held_until, self.keeps_waiting) = (None, false);
                None
            }
            None => None,
        }
    }

    /// Returns how long a delivery is put off. The time grows with the number of waiting deliveries.
    fn look_after(&mut self) -> Duration {
        self.put_off = self.put_off.saturating_add(1);
        LOOK + Duration::from_millis(self.put_off.into()).min(LOOK)
    }

    fn is_slow(&self, at: Instant) -> bool {
        self.latency.is_some_and(|latency| latency > SLOW) || self.oldest(at) > SLOW
    }

    fn oldest(&self, at: Instant) -> Duration {
        self.under_way.front().map_or(Duration::ZERO, |began| at.saturating_duration_since(*began))
    }

    /// Returns after what time the host counts as slow if no send ends before.
    fn slow_after(&self, at: Instant) -> Duration {
        (SLOW + Duration::from_millis(1)).saturating_sub(self.oldest(at)).max(Duration::from_millis(1))
    }

    /// Puts a delivery off to the next time at which the host may have a free slot. Each delivery gets its own time, so
    /// that the rows of a backlog are rewritten once instead of again and again.
    fn pace(&mut self, slots: usize, at: Instant) -> PutOff {
        let latency = self.latency.unwrap_or_default().max(self.oldest(at));
        let step = latency.div_f64(slots.max(1) as f64).max(SHORTEST_WAIT);
        let next = self.next_free.map_or(at, |next| next.max(at)) + step;
        let wait = next.duration_since(at);
        if wait > LOOK {
            return PutOff { wait: self.look_after(), code: None };
        }
        self.next_free = Some(next);
        PutOff { wait, code: None }
    }

    fn end(&mut self, began: Instant) {
        if let Ok(place) = self.under_way.binary_search(&began) {
            self.under_way.remove(place);
        }
        let (now, took) = (clock::monotonic(), began.elapsed());
        self.used_at = Some(now);
        self.latency = Some(self.latency.map_or(took, |known| known.mul_f64(1.0 - WEIGHT) + took.mul_f64(WEIGHT)));
        if !self.is_slow(now) {
            self.next_free = None;
        }
        self.freed.notify_one();
    }
}

impl PutOff {
    /// Adds a random part to the wait, so that deliveries that wait for the same time do not come back together.
    fn spread(self, chance: f64) -> Self {
        Self { wait: self.wait + (self.wait / 10).min(SPREAD).mul_f64(chance.clamp(0.0, 1.0)), ..self }
    }
}

#[cfg(test)]
mod tests;
