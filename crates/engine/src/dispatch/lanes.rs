//! One lane per provider, and lane 0 for what is not expanded or routed yet.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use postcommit::Timestamp;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Tools;
use super::host_book::HostBook;
use super::hosts::Hosts;
use super::permits::{Meter, Permits};
use super::setback::Setback;
use super::shut::Shut;
use crate::channel::{self, Driver};
use crate::db::DbError;
use crate::model::{Delivery, Fate, Guarantee, Provider, Routes, Target};
use crate::secret::Secrets;
use crate::store::{LimitedClaim, Metered, Want};

/// The lane of what is not expanded or routed yet.
pub const EXPANSION: i32 = 0;
/// Notifications that are expanded at once, or wait for a slot of their lane: two batches, so that one is claimed while the other is on its way.
const EXPANSION_SLOTS: usize = 1000;
/// A send must be over this long before its lease is: time to judge and to settle.
pub const MARGIN: Duration = Duration::from_secs(2);

/// A provider at work.
pub struct Lane {
    /// Its description.
    pub provider: Provider,
    /// Its name, for the log of attempts.
    pub name: Arc<str>,
    /// Its code; or why it cannot be made.
    pub driver: Result<Arc<dyn Driver>, String>,
    /// Sends that may be under way at once.
    pub slots: Arc<Semaphore>,
    /// Whether rows of its own wait for it: they go first.
    pub backlog: Arc<AtomicBool>,
    /// What is known of its permits, where its rate is limited.
    pub meter: Arc<Meter>,
    /// Whether it is shut in this process, because its pause or hold could not be written.
    pub shut: Arc<Shut>,
    /// How long what could not be announced waits.
    pub setback: Arc<Setback>,
    /// Its hosts, where its driver tells them apart.
    pub hosts: Option<Arc<Hosts>>,
}

impl Lane {
    /// Whether it could begin a send now.
    fn is_open(&self, now: Timestamp) -> bool {
        self.is_served() && self.provider.not_before.is_none_or(|until| until <= now)
    }

    /// The same lane, described anew.
    fn with(&self, provider: Provider, driver: Result<Arc<dyn Driver>, String>) -> Self {
        let same_slots = (self.provider.concurrency == provider.concurrency).then(|| self.slots.clone());
        if self.provider.rate() != provider.rate() {
            self.meter.expect_after(Duration::ZERO);
        }
        // What an answer to other settings demanded says nothing about these.
        let shut = if self.provider.revision == provider.revision { self.shut.clone() } else { Arc::default() };
        let setback = self.setback.clone();
        Self { backlog: self.backlog.clone(), meter: self.meter.clone(), shut, setback, ..Self::new(provider, driver, same_slots) }
    }

    fn new(provider: Provider, driver: Result<Arc<dyn Driver>, String>, slots: Option<Arc<Semaphore>>) -> Self {
        let concurrency = usize::try_from(provider.concurrency).unwrap_or(1);
        let slots = slots.unwrap_or_else(|| Arc::new(Semaphore::new(concurrency)));
        let name = provider.name.as_str().into();
        let (backlog, meter, shut, setback) = Default::default();
        Self { name, slots, backlog, meter, shut, setback, hosts: None, provider, driver }
    }

    /// With its hosts, if its driver tells them apart.
    fn telling_hosts_apart(mut self, known: Option<&Arc<Self>>, book: &HostBook) -> Self {
        let isolates = self.driver.as_ref().is_ok_and(|driver| driver.isolates_hosts());
        self.hosts = isolates.then(|| book.of_lane(self.provider.id));
        if let Some(hosts) = self.hosts.as_ref().filter(|_| known.is_some_and(|known| known.provider.revision != self.provider.revision)) {
            hosts.forget_unwritten();
        }
        self
    }

    /// The host that a delivery goes to; none where the lane does not tell hosts apart.
    pub fn host_of(&self, delivery: &Delivery) -> Option<String> {
        self.hosts.as_ref()?;
        self.driver.as_ref().ok()?.host_of(delivery.target.as_deref().unwrap_or_default())
    }

    /// Whether this process may begin sends on it at all. A lane that it cannot serve, e.g. for want of the key, is left to those who can; doctor tells.
    fn is_served(&self) -> bool {
        !self.provider.is_paused() && self.driver.is_ok() && !self.shut.is_shut()
    }

    fn is_limited(&self) -> bool {
        self.provider.rate_per_s.is_some()
    }

    pub fn set_backlog(&self, waits: bool) {
        self.backlog.store(waits, Ordering::Relaxed);
    }
}

/// The lanes as they were when something was claimed.
pub struct Table {
    lanes: HashMap<i32, Arc<Lane>>,
    by_tenant: HashMap<i32, Vec<Provider>>,
    lease: Duration,
    /// When something may last have been sent by another provider than it would be now.
    pub rerouted_at: Timestamp,
}

impl Table {
    pub fn routes(&self, tenant: i32) -> Routes<'_> {
        Routes(self.by_tenant.get(&tenant).map_or(&[], Vec::as_slice))
    }

    pub fn lane(&self, id: i32) -> Option<&Arc<Lane>> {
        self.lanes.get(&id)
    }

    /// The lane that a target goes into.
    pub fn lane_of(&self, target: &Target) -> Option<&Arc<Lane>> {
        match target.fate {
            Fate::Lane(lane) => self.lane(lane),
            Fate::Ended { .. } => None,
        }
    }

    /// Whether a notification with one target may be sent on this lane from its own row, without a row of the target's own: not what must be announced
    /// first, what needs a longer lease, a permit, or what would overtake those that wait.
    pub fn may_send_at_once(&self, lane: &Lane, now: Timestamp) -> bool {
        lane.provider.guarantee != Guarantee::AtMostOnce
            && !lane.is_limited()
            && lane.is_open(now)
            && lease_of(&lane.provider, self.lease) == self.lease
            && !lane.backlog.load(Ordering::Relaxed)
    }
}

/// All lanes this process knows.
pub struct Lanes {
    table: Arc<Table>,
    /// The state of the providers that the table shows.
    version: i64,
    expansion: Arc<Semaphore>,
    lease: Duration,
    book: HostBook,
}

/// What could be started now.
pub struct Wants {
    /// By the length of lease it needs: one claim each, nearly always one in all.
    pub by_lease: BTreeMap<Duration, Vec<Want>>,
    /// The same for lanes whose rate is limited, if they may have a permit.
    pub limited: BTreeMap<Duration, Vec<Want>>,
    /// There is no room for what is not expanded: whatever is found, more may be due.
    pub full: bool,
}

impl Lanes {
    pub fn new(tools: &Tools) -> Self {
        let lease = Duration::from_secs(tools.settings.lease_s);
        let nothing = Table { lanes: HashMap::new(), by_tenant: HashMap::new(), lease, rerouted_at: Timestamp::from_micros(0) };
        Self {
            table: Arc::new(nothing),
            version: 0,
            expansion: Arc::new(Semaphore::new(EXPANSION_SLOTS)),
            lease,
            book: HostBook::default(),
        }
    }

    /// Reads the providers again if they are not those of that version.
    pub async fn catch_up(&mut self, tools: &Tools, version: i64) -> Result<(), DbError> {
        if version == self.version { Ok(()) } else { self.refresh(tools).await }
    }

    /// Reads the providers and makes anew what has changed. A lane keeps its slots while its concurrency stays.
    pub async fn refresh(&mut self, tools: &Tools) -> Result<(), DbError> {
        // The version first: a change in between is then read twice, and never missed.
        let (version, rerouted_at) = tools.store.providers_version().await?;
        let providers = tools.store.providers().await?;
        let mut table = Table { lanes: HashMap::new(), by_tenant: HashMap::new(), lease: self.lease, rerouted_at };
        for provider in providers {
            table.by_tenant.entry(provider.tenant).or_default().push(provider.clone());
            let lane = self.reopen(tools, provider);
            table.lanes.insert(lane.provider.id, lane);
        }
        self.table = Arc::new(table);
        // Before a claim may rely on them; a change of theirs counts as one of the providers, too.
        self.book.read(&tools.store).await?;
        self.version = version;
        Ok(())
    }

    /// Reads all hosts that are shut, if that is due.
    pub async fn look_at_hosts(&self, tools: &Tools) -> Result<(), DbError> {
        if self.book.is_due() { self.book.read(&tools.store).await } else { Ok(()) }
    }

    fn reopen(&self, tools: &Tools, provider: Provider) -> Arc<Lane> {
        let Some(known) = self.table.lane(provider.id) else {
            return Arc::new(open_lane(tools, provider, None).telling_hosts_apart(None, &self.book));
        };
        let apart = |lane: Lane| Arc::new(lane.telling_hosts_apart(Some(known), &self.book));
        match &known.driver {
            Ok(_) if known.provider == provider => known.clone(),
            // Only held or released: that is no revision, and the driver keeps its connections.
            Ok(driver) if known.provider.revision == provider.revision => apart(known.with(provider, Ok(driver.clone()))),
            // One that could not be used is tried again: the key may be back.
            _ => apart(open_lane(tools, provider, Some(known))),
        }
    }

    /// Whether some provider cannot be used by this process.
    pub fn any_broken(&self) -> bool {
        self.table.lanes.values().any(|lane| lane.driver.is_err())
    }

    pub fn table(&self) -> Arc<Table> {
        self.table.clone()
    }

    pub fn lane(&self, id: i32) -> Option<Arc<Lane>> {
        self.table.lane(id).cloned()
    }

    pub fn expansion(&self) -> Arc<Semaphore> {
        self.expansion.clone()
    }

    /// What could be started now.
    pub fn wants(&self, batch: i32) -> Wants {
        let (mut by_lease, mut limited) = (BTreeMap::new(), BTreeMap::new());
        let want = |wants: &mut BTreeMap<Duration, Vec<Want>>, lane, free: usize, lease| {
            let quota = i32::try_from(free).unwrap_or(batch).min(batch);
            if quota > 0 {
                wants.entry(lease).or_default().push(Want { lane, quota });
            }
        };
        // Claiming a few at a time, as slots come free one by one, would cost a round trip each.
        let free = self.expansion.available_permits();
        let full = free < usize::try_from(batch).unwrap_or(free).min(EXPANSION_SLOTS / 2);
        if !full {
            want(&mut by_lease, EXPANSION, free, self.lease);
        }
        // While there is more than enough to do, lanes on which nothing is known to wait are not asked every time.
        let worth_asking = |lane: &Lane| !full || lane.backlog.load(Ordering::Relaxed);
        for (id, lane) in self.table.lanes.iter().filter(|(_, lane)| lane.is_served() && worth_asking(lane)) {
            let (free, lease) = (lane.slots.available_permits(), lease_of(&lane.provider, self.lease));
            match lane.is_limited() {
                false => want(&mut by_lease, *id, free, lease),
                true if lane.meter.may_have_one() => want(&mut limited, *id, free, lease),
                true => {}
            }
        }
        Wants { by_lease, limited, full }
    }

    /// Limited lanes of a tenant that may have a permit, whatever their slots: for a pass by hand.
    pub fn wants_of(&self, tenant: i32, batch: i32) -> Vec<Want> {
        let may = |lane: &&Arc<Lane>| lane.provider.tenant == tenant && lane.is_served() && lane.is_limited() && lane.meter.may_have_one();
        self.table.lanes.values().filter(may).map(|lane| Want { lane: lane.provider.id, quota: batch }).collect()
    }

    /// Learns from a claim on limited lanes. One that was not looked at has nothing due, or another process is at it.
    pub fn note_limited(&self, wants: &[Want], found: &LimitedClaim) {
        for lane in wants.iter().filter_map(|want| self.table.lane(want.lane)) {
            let metered = found.lanes.iter().find(|metered| metered.lane == lane.provider.id);
            let given = found.claim.deliveries.iter().filter(|delivery| delivery.lane == lane.provider.id).count();
            lane.meter.expect_after(metered.map_or(Duration::ZERO, |metered| metered.wait));
            lane.set_backlog(metered.is_some_and(|metered| usize::try_from(metered.quota).is_ok_and(|quota| given >= quota)));
        }
    }

    /// The permits that came with a claim, by lane.
    pub fn permits(&self, found: &LimitedClaim) -> HashMap<i32, Permits> {
        let permits = |metered: &Metered| {
            let count = found.claim.deliveries.iter().filter(|delivery| delivery.lane == metered.lane).count();
            Some((metered.lane, Permits::new(self.table.lane(metered.lane)?.meter.clone(), metered.taken_at, count)))
        };
        found.lanes.iter().filter_map(permits).collect()
    }

    /// Permits that were not used, by lane, and when they were taken. Each is told once.
    pub fn take_unused(&self) -> Vec<(i32, Timestamp, usize)> {
        let of_lane = |lane: &Arc<Lane>| {
            let id = lane.provider.id;
            lane.meter.take_unused().into_iter().map(move |(taken_at, count)| (id, taken_at, count))
        };
        self.table.lanes.values().flat_map(of_lane).collect()
    }

    /// When the next permit is due on a lane where something waits for it and could begin.
    pub fn next_permit_at(&self) -> Option<Instant> {
        let waits = |lane: &&Arc<Lane>| {
            lane.is_limited() && lane.is_served() && lane.backlog.load(Ordering::Relaxed) && lane.slots.available_permits() > 0
        };
        self.table.lanes.values().filter(waits).filter_map(|lane| lane.meter.next_at()).min()
    }

    /// A lane that gave all that was asked for may hold more; one that gave less is empty.
    pub fn note_backlogs(&self, wants: &[Want], found: &[Delivery]) {
        for want in wants {
            if let Some(lane) = self.table.lane(want.lane) {
                let given = found.iter().filter(|delivery| delivery.lane == want.lane).count();
                lane.set_backlog(usize::try_from(want.quota).is_ok_and(|quota| given >= quota));
            }
        }
    }

    pub fn longest_lease(&self) -> Duration {
        self.table.lanes.values().map(|lane| lease_of(&lane.provider, self.lease)).max().unwrap_or(self.lease).max(self.lease)
    }
}

/// Every send must fit into its lease, with a margin on either side.
fn lease_of(provider: &Provider, lease: Duration) -> Duration {
    lease.max(provider.timeout() + 2 * MARGIN)
}

/// Takes the slots of what was just claimed, before anything else can count them as free. A pass by hand may go beyond: then there are none to take.
pub fn take(slots: &Arc<Semaphore>, count: usize) -> Option<OwnedSemaphorePermit> {
    slots.clone().try_acquire_many_owned(u32::try_from(count).ok()?).ok()
}

/// As many as are free, up to so many.
pub fn take_up_to(slots: &Arc<Semaphore>, count: usize) -> Option<OwnedSemaphorePermit> {
    take(slots, count.min(slots.available_permits()))
}

fn open_lane(tools: &Tools, provider: Provider, known: Option<&Arc<Lane>>) -> Lane {
    let driver = open_secrets(tools, &provider)
        .and_then(|secrets| channel::of_provider(&provider, &secrets, &tools.egress, &tools.capture_fail_on))
        .map(Arc::from);
    let known_problem = known.and_then(|lane| lane.driver.as_ref().err());
    if let Err(problem) = &driver
        && known_problem != Some(problem)
    {
        tracing::error!(provider = provider.name, problem, "this process cannot use a provider; what waits for it is left alone");
    }
    match known {
        Some(known) => known.with(provider, driver),
        None => Lane::new(provider, driver, None),
    }
}

fn open_secrets(tools: &Tools, provider: &Provider) -> Result<Secrets, String> {
    match &provider.secrets {
        None => Ok(Secrets::new()),
        Some(sealed) => {
            let ring = tools.keys.existing().map_err(|e| e.to_string())?;
            ring.open(sealed, provider.tenant, &provider.name).map_err(|e| e.to_string())
        }
    }
}
