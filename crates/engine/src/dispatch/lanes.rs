//! Lanes: one queue per provider, and one per tenant for notifications that are not expanded or routed yet.

mod table;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use postcommit::Timestamp;
use postcommit_channel::driver::{self, Destination, Driver};
use postcommit_channel::model::{Delivery, Provider};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Tools;
use super::backoff::Backoff;
use super::breaker::Breaker;
use super::content::ContentIndex;
use super::cow_map::CowMap;
use super::drivers::{NotBuilt, build};
use super::hosts::Hosts;
use super::hosts::registry::HostRegistry;
use super::local_close::LocalClose;
use super::permits::{LanePermits, Permits};
use super::recipients::RecipientPace;
use super::settlement::storable;
use super::turns::{Turns, is_expansion};
use crate::db::DbError;
use crate::store::{Claim, ContentChanges, Lacking, LimitedClaim, Metered, ProviderChanges, Search, Unopened, Want};
pub use table::{LatestTable, Table};

/// How many notifications may be in expansion or wait for a slot of their lane. This is two batches, so that one is
/// claimed while the other is processed.
const EXPANSION_SLOTS: usize = 1000;
/// A send must end this long before its lease does. The rest of the lease is for judging and settling.
pub const MARGIN: Duration = Duration::from_secs(2);

/// A provider and the state of its lane in this process.
pub struct Lane {
    /// The provider as it was last read.
    pub provider: Provider,
    /// The provider's name, for the log of attempts.
    pub name: Arc<str>,
    /// The driver, or why it cannot be built.
    pub driver: Result<Arc<dyn Driver>, NotBuilt>,
    /// How long the provider remembers the key of a delivery.
    pub key_window: Duration,
    /// The slots of the lane: how many sends may be in flight.
    pub slots: Arc<Semaphore>,
    /// Whether deliveries wait in this lane's queue. Newer deliveries must not overtake them.
    pub backlog: Arc<AtomicBool>,
    /// The permits of a rate-limited lane, as far as this process knows them.
    pub permits: Arc<LanePermits>,
    /// Closes the lane in this process, for example while a pause or hold cannot be written.
    pub local_close: Arc<LocalClose>,
    /// Counts failures of the service in a row. If the lane tells hosts apart, each host has its own counter instead.
    pub breaker: Arc<Breaker>,
    /// The recipients who got a message a moment ago, if the provider asks for time between two messages to one of them.
    pub recipients: Arc<RecipientPace>,
    /// The hosts that the lane sends to. `None` if the driver does not tell hosts apart.
    pub hosts: Option<Arc<Hosts>>,
    /// Backoff after a failed announcement.
    pub backoff: Arc<Backoff>,
    /// The lane adds itself to this list when it gets a backlog.
    stirred: Stirred,
}

/// Lanes that got a backlog since the last claim.
type Stirred = Arc<Mutex<Vec<i32>>>;

impl Lane {
    /// Returns whether a send could begin now: the lane is served, no hold is in force, and it is not probed.
    fn is_open(&self, now: Timestamp) -> bool {
        self.is_served() && !self.is_probed() && self.provider.held_until.is_none_or(|until| until <= now)
    }

    /// Builds the lane for a changed provider. Backlog, permits and backoff carry over. Slots carry over if the
    /// concurrency is the same.
    fn with(&self, provider: Provider, driver: Result<Arc<dyn Driver>, NotBuilt>) -> Self {
        let same_slots = (self.provider.concurrency == provider.concurrency).then(|| self.slots.clone());
        if self.provider.rate() != provider.rate() {
            self.permits.expect_after(Duration::ZERO);
        }
        // A pause or hold that was demanded under other settings says nothing about the current settings.
        let local_close =
            if self.provider.revision == provider.revision { self.local_close.clone() } else { Arc::default() };
        let is_same = (self.provider.revision, self.provider.trips) == (provider.revision, provider.trips);
        let breaker = if is_same { self.breaker.clone() } else { Arc::default() };
        let backoff = self.backoff.clone();
        let fresh = Self::new(provider, driver, same_slots, self.stirred.clone());
        let (permits, recipients) = (self.permits.clone(), self.recipients.clone());
        Self { backlog: self.backlog.clone(), permits, recipients, local_close, breaker, backoff, ..fresh }
    }

    fn new(
        provider: Provider,
        driver: Result<Arc<dyn Driver>, NotBuilt>,
        slots: Option<Arc<Semaphore>>,
        stirred: Stirred,
    ) -> Self {
        let concurrency = usize::try_from(provider.concurrency).unwrap_or(1);
        let slots = slots.unwrap_or_else(|| Arc::new(Semaphore::new(concurrency)));
        let name = provider.name.as_str().into();
        let key_window = driver::key_window(&provider);
        let (backlog, permits, local_close, breaker, recipients, backoff) = Default::default();
        Self {
            name,
            slots,
            backlog,
            permits,
            local_close,
            breaker,
            recipients,
            backoff,
            hosts: None,
            stirred,
            key_window,
            provider,
            driver,
        }
    }

    /// Returns whether the lane delivers into inboxes. The settler writes those messages.
    pub fn is_inbox(&self) -> bool {
        driver::destination(&self.provider.driver) == Destination::Inbox
    }

    /// Returns whether a send may wait for an answer longer than its time limit.
    pub fn waits_for_late_answer(&self) -> bool {
        self.driver.as_ref().is_ok_and(|driver| !driver.late_answer().is_zero())
    }

    /// Attaches the lane's hosts if the driver tells hosts apart.
    fn telling_hosts_apart(mut self, known: Option<&Arc<Self>>, registry: &HostRegistry) -> Self {
        let isolates = self.driver.as_ref().is_ok_and(|driver| driver.isolates_hosts());
        self.hosts = isolates.then(|| registry.of_lane(self.provider.id));
        if let Some(hosts) =
            self.hosts.as_ref().filter(|_| known.is_some_and(|known| known.provider.revision != self.provider.revision))
        {
            hosts.forget_unwritten();
        }
        self
    }

    /// Returns the host that a delivery goes to. `None` where the lane does not tell hosts apart.
    pub fn host_of(&self, delivery: &Delivery) -> Option<String> {
        self.hosts.as_ref()?;
        self.driver.as_ref().ok()?.host_of(delivery.facts.target())
    }

    /// Returns whether this process may begin sends on the lane at all. If the driver cannot be built here, for example
    /// because the secrets key is missing, the lane is left to other processes and `doctor` reports it.
    pub(super) fn is_served(&self) -> bool {
        !self.provider.is_paused() && self.driver.is_ok() && !self.local_close.is_unwritten()
    }

    fn is_limited(&self) -> bool {
        self.provider.rate_per_s.is_some()
    }

    pub fn set_backlog(&self, waits: bool) {
        if !self.backlog.swap(waits, Ordering::Relaxed) && waits {
            self.stirred.lock().unwrap_or_else(PoisonError::into_inner).push(self.provider.id);
        }
    }

    /// Returns whether the lane's breaker has tripped, so that one send at a time probes the service. Where the lane tells
    /// hosts apart, this concerns only deliveries without a host, which are sent over the provider's own URL.
    pub fn is_probed(&self) -> bool {
        self.provider.is_tripped()
    }

    /// Returns how many deliveries could be started on the lane now. `None` if there is no free slot or no permit.
    fn want(&self, batch: i32) -> Option<Want> {
        let free = i32::try_from(self.slots.available_permits()).unwrap_or(batch);
        // A probe needs all slots free, because sends that began before the breaker tripped may still be in flight. Where
        // the lane tells hosts apart, most deliveries go to other hosts, and `attempt` admits one probe.
        let quota = match self.is_probed() && self.hosts.is_none() {
            true => i32::from(free >= self.provider.concurrency),
            false => free.min(batch),
        };
        (quota > 0 && (!self.is_limited() || self.permits.may_have_one()))
            .then_some(Want { lane: self.provider.id, quota })
    }
}

/// All lanes that this process knows.
pub struct Lanes {
    table: Arc<Table>,
    latest: LatestTable,
    /// The version of the provider table that `table` was built from. `None` before the first read.
    version: Option<i64>,
    expansion: Arc<Semaphore>,
    lease: Duration,
    host_registry: HostRegistry,
    turns: Turns,
    /// Weights of tenants whose weight is not 1.
    weights: HashMap<i32, u32>,
    stirred: Stirred,
    /// Providers whose driver cannot be built here.
    broken: BTreeSet<i32>,
    /// Rate-limited lanes whose permits may still come back unused.
    metered: BTreeSet<i32>,
}

/// How many deliveries could be started now, by lane.
pub struct Wants {
    /// Lanes without a rate limit, grouped by lease length. Each group is one claim, and usually there is only one
    /// group.
    pub by_lease: BTreeMap<Duration, Vec<Want>>,
    /// Rate-limited lanes that may have a permit, grouped by lease length.
    pub limited: BTreeMap<Duration, Vec<Want>>,
    /// Where to search for other lanes with due work. The claim with the usual lease length carries the search.
    pub search: Search,
    /// Whether there is no room to expand more notifications. If so, more may be due, regardless of the result of the
    /// claim.
    pub full: bool,
}

/// How thoroughly to look for due work.
#[derive(Debug, Clone, Copy)]
pub struct LookMode {
    /// Whether the last check of the queue found due work.
    pub busy: bool,
    /// Whether the search must not be deferred, regardless of its cost.
    pub insists: bool,
}

impl Lanes {
    pub fn new(tools: &Tools) -> Self {
        let lease = Duration::from_secs(tools.settings.lease_s);
        let nothing = Table {
            lanes: CowMap::default(),
            chained: Arc::default(),
            by_tenant: CowMap::default(),
            content: ContentIndex::default(),
            lease,
            rerouted_at: Timestamp::from_micros(0),
        };
        let table = Arc::new(nothing);
        Self {
            latest: LatestTable::new(table.clone()),
            table,
            version: None,
            expansion: Arc::new(Semaphore::new(EXPANSION_SLOTS)),
            lease,
            host_registry: HostRegistry::default(),
            turns: Turns::default(),
            weights: HashMap::new(),
            stirred: Stirred::default(),
            broken: BTreeSet::new(),
            metered: BTreeSet::new(),
        }
    }

    /// Reads changed providers if the version differs from the known one.
    pub async fn catch_up(&mut self, tools: &Tools, version: i64) -> Result<(), DbError> {
        if Some(version) == self.version { Ok(()) } else { self.refresh(tools).await }
    }

    /// Reads changed providers and templates, and rebuilds the lanes. A lane keeps its slots while its concurrency stays the same.
    pub async fn refresh(&mut self, tools: &Tools) -> Result<(), DbError> {
        let changes = tools.store.provider_changes(self.version).await?;
        let version = changes.version;
        let content = tools.store.content_changes(self.version.filter(|_| !changes.is_all)).await?;
        if changes.is_all {
            self.host_registry.start_over();
        }
        self.apply(tools, changes, content);
        // The hosts are read before a claim relies on them. A change of a host counts as a change of its provider.
        self.host_registry.read(&tools.store).await?;
        self.version = Some(version);
        Ok(())
    }

    /// Reads all closed hosts if a full read is due.
    pub async fn look_at_hosts(&self, tools: &Tools) -> Result<(), DbError> {
        if self.host_registry.is_due() { self.host_registry.read(&tools.store).await } else { Ok(()) }
    }

    fn apply(&mut self, tools: &Tools, changes: ProviderChanges, content: ContentChanges) {
        let ProviderChanges { rerouted_at, is_all, providers, gone, weights, .. } = changes;
        let mut table = Table { rerouted_at, ..(*self.table).clone() };
        if is_all {
            (table.lanes, table.chained, table.by_tenant, table.content) = Default::default();
            self.broken.clear();
            self.weights.clear();
        }
        for provider in providers {
            let lane = self.reopen(tools, provider);
            self.note_broken(&lane);
            table.put(lane);
        }
        for id in gone {
            self.broken.remove(&id);
            table.remove(id);
        }
        table.content.apply(content);
        self.weights.extend(weights);
        self.weights.retain(|_, weight| *weight != 1);
        self.use_table(table);
    }

    fn reopen(&self, tools: &Tools, provider: Provider) -> Arc<Lane> {
        let Some(known) = self.table.lane(provider.id) else {
            let driver = build(tools, &provider, None);
            return Arc::new(
                Lane::new(provider, driver, None, self.stirred.clone()).telling_hosts_apart(None, &self.host_registry),
            );
        };
        let apart = |lane: Lane| Arc::new(lane.telling_hosts_apart(Some(known), &self.host_registry));
        match &known.driver {
            Ok(_) if known.provider == provider => known.clone(),
            // Only a hold was set or ended, which does not change the revision. The driver and its connections are
            // kept.
            Ok(driver) if known.provider.revision == provider.revision => {
                apart(known.with(provider, Ok(driver.clone())))
            }
            // A driver that could not be built before is tried again, because the key may be available now.
            _ => {
                let driver = build(tools, &provider, Some(known));
                apart(known.with(provider, driver))
            }
        }
    }

    fn note_broken(&mut self, lane: &Lane) {
        match lane.driver {
            Ok(_) => self.broken.remove(&lane.provider.id),
            Err(_) => self.broken.insert(lane.provider.id),
        };
    }

    /// Tries again to build the drivers that could not be built.
    pub fn mend(&mut self, tools: &Tools) {
        if self.broken.is_empty() {
            return;
        }
        let mut table = (*self.table).clone();
        for id in self.broken.clone() {
            let Some(known) = self.table.lane(id) else { continue };
            let lane = self.reopen(tools, known.provider.clone());
            self.note_broken(&lane);
            table.put(lane);
        }
        self.use_table(table);
    }

    /// Returns the providers that this process cannot serve, because it cannot decrypt their secrets or cannot set up
    /// their driver. A disabled provider needs no process.
    pub fn unopened(&self) -> Vec<Unopened> {
        let unopened = |id: &i32| {
            let lane = self.table.lane(*id).filter(|lane| lane.provider.enabled)?;
            let problem = lane.driver.as_ref().err()?;
            let (lacking, reason) = match problem.unopened {
                Some(reason) => (Lacking::Secrets, reason.to_owned()),
                None if driver::kind(&lane.provider.driver).is_err() => {
                    (Lacking::Driver, format!("the driver {:?} is not known", lane.provider.driver))
                }
                None => (Lacking::Driver, storable(&problem.problem)),
            };
            Some(Unopened { tenant: lane.provider.tenant, lane: *id, lacking, reason })
        };
        self.broken.iter().filter_map(unopened).collect()
    }

    pub fn table(&self) -> Arc<Table> {
        self.table.clone()
    }

    /// Returns the handle by which other tasks get the latest table.
    pub fn latest(&self) -> LatestTable {
        self.latest.clone()
    }

    fn use_table(&mut self, table: Table) {
        self.table = Arc::new(table);
        self.latest.set(self.table.clone());
    }

    pub fn lane(&self, id: i32) -> Option<Arc<Lane>> {
        self.table.lane(id).cloned()
    }

    pub fn expansion(&self) -> Arc<Semaphore> {
        self.expansion.clone()
    }

    /// Starts a new search over all lanes that have rows.
    pub fn look_anew(&mut self) {
        self.turns.look_anew();
    }

    /// Returns whether the current search has covered all lanes.
    pub fn is_through(&self) -> bool {
        self.turns.is_through()
    }

    /// Returns when a deferred search may go on.
    pub fn next_search_at(&self) -> Option<Instant> {
        self.turns.next_search_at()
    }

    /// Returns how much could be started now: lanes with known work, notifications to expand, and where to search.
    pub fn wants(&mut self, batch: i32, mood: LookMode) -> Wants {
        for lane in std::mem::take(&mut *self.stirred.lock().unwrap_or_else(PoisonError::into_inner)) {
            self.turns.wait(lane);
        }
        // Slots become free one by one, and a claim for each of them would cost a round trip each. So expansion waits
        // until more slots are free.
        let (free, most) = (self.expansion.available_permits(), usize::try_from(batch).unwrap_or(1));
        let full = free < most.min(EXPANSION_SLOTS / 2);
        let lanes = self.turns.next_lanes(mood.busy);
        let mut wants = self.wants_on(&lanes, batch);
        wants.full = full;
        if !full {
            let asked: Vec<i32> =
                wants.by_lease.values().chain(wants.limited.values()).flatten().map(|want| want.lane).collect();
            self.want_expansion(&mut wants, asked, most.min(free), mood);
        }
        wants
    }

    /// Adds notifications that are not expanded yet, and the search. The search always gets some room: if necessary an
    /// eighth beyond the free slots, so that tenants with a known backlog still get whole batches.
    fn want_expansion(&mut self, wants: &mut Wants, mut asked: Vec<i32>, most: usize, mood: LookMode) {
        let dealt = self.turns.share_out(most, mood.busy, |tenant| self.weights.get(&tenant).copied().unwrap_or(1));
        asked.extend(dealt.iter().map(|want| want.lane));
        let taken: usize = dealt.iter().filter_map(|want| usize::try_from(want.quota).ok()).sum();
        let room = self.expansion.available_permits().saturating_sub(taken).min(most).max(most.div_ceil(8));
        wants.search = self.turns.search(&asked, room, mood.busy, mood.insists);
        if !dealt.is_empty() || !wants.search.between.is_empty() {
            wants.by_lease.entry(self.lease).or_default().extend(dealt);
        }
    }

    /// Returns how much could be started on these lanes. A lane that this process does not serve is not asked for again
    /// until the search finds it again.
    pub fn wants_on(&mut self, lanes: &[i32], batch: i32) -> Wants {
        let (mut by_lease, mut limited): (BTreeMap<_, Vec<Want>>, BTreeMap<_, Vec<Want>>) =
            (BTreeMap::new(), BTreeMap::new());
        for id in lanes {
            let Some(lane) = self.table.lane(*id).filter(|lane| lane.is_served()) else {
                self.turns.forget(*id);
                continue;
            };
            if let Some(want) = lane.want(batch) {
                let wants = if lane.is_limited() { &mut limited } else { &mut by_lease };
                wants.entry(lease_of(&lane.provider, self.lease)).or_default().push(want);
            }
        }
        Wants { by_lease, limited, search: Search::default(), full: false }
    }

    /// Returns the tenant's rate-limited lanes that may have a permit, even without a free slot. Used for a pass over
    /// one notification.
    pub fn wants_of(&self, tenant: i32, batch: i32) -> Vec<Want> {
        let may = |lane: &&Arc<Lane>| lane.is_served() && lane.is_limited() && lane.permits.may_have_one();
        self.table.of_tenant(tenant).filter(may).map(|lane| Want { lane: lane.provider.id, quota: batch }).collect()
    }

    /// Updates the known lanes after a claim. A lane that filled its quota may hold more deliveries; a lane that did
    /// not is empty. Returns the lanes that the search found.
    pub fn note_claim(&mut self, wants: &[Want], search: &Search, claim: &Claim, took: Duration) -> Vec<i32> {
        let filled = self.turns.note(wants, search, claim, took);
        for want in wants.iter().filter(|want| !is_expansion(want.lane)) {
            if let Some(lane) = self.table.lane(want.lane) {
                lane.set_backlog(filled.contains(&want.lane));
            }
        }
        for lane in &claim.searched.lanes {
            self.turns.wait(*lane);
        }
        claim.searched.lanes.clone()
    }

    /// Updates the known permits after a claim on rate-limited lanes. If the claim reports nothing about a lane, the
    /// lane has nothing due or another process is claiming from it.
    pub fn note_limited(&mut self, wants: &[Want], found: &LimitedClaim) {
        for lane in wants.iter().filter_map(|want| self.table.lane(want.lane)) {
            let metered = found.lanes.iter().find(|metered| metered.lane == lane.provider.id);
            let given = found.claim.deliveries.iter().filter(|delivery| delivery.lane == lane.provider.id).count();
            lane.permits.expect_after(metered.map_or(Duration::ZERO, |metered| metered.wait));
            let waits = metered.is_some_and(|metered| usize::try_from(metered.quota).is_ok_and(|quota| given >= quota));
            lane.set_backlog(waits);
            if waits {
                self.turns.wait(lane.provider.id);
            } else {
                self.turns.forget(lane.provider.id);
            }
        }
    }

    /// Returns the permits that a claim took, by lane.
    pub fn permits(&mut self, found: &LimitedClaim) -> HashMap<i32, Permits> {
        let permits = |metered: &Metered| {
            let count = found.claim.deliveries.iter().filter(|delivery| delivery.lane == metered.lane).count();
            Some((metered.lane, Permits::new(self.table.lane(metered.lane)?.permits.clone(), metered.taken_at, count)))
        };
        self.metered.extend(found.lanes.iter().map(|metered| metered.lane));
        found.lanes.iter().filter_map(permits).collect()
    }

    /// Takes the unused permits: lane, time at which they were taken, and number.
    pub fn take_unused(&mut self) -> Vec<(i32, Timestamp, usize)> {
        let (table, mut unused) = (&self.table, vec![]);
        self.metered.retain(|id| {
            let Some(lane) = table.lane(*id) else { return false };
            // `more` is read first, so that permits that come back after this line are taken in the next round.
            let more = lane.permits.are_under_way();
            unused.extend(lane.permits.take_unused().into_iter().map(|(taken_at, count)| (*id, taken_at, count)));
            more
        });
        unused
    }

    /// Returns when the next permit is due on a lane that has waiting deliveries and a free slot.
    pub fn next_permit_at(&self) -> Option<Instant> {
        let waits = |lane: &&Arc<Lane>| {
            lane.is_limited()
                && lane.is_served()
                && lane.backlog.load(Ordering::Relaxed)
                && lane.slots.available_permits() > 0
        };
        self.turns
            .waiting()
            .filter_map(|id| self.table.lane(id))
            .filter(waits)
            .filter_map(|lane| lane.permits.next_at())
            .min()
    }

    /// Returns the longest lease that any lane of the tenant needs.
    pub fn longest_lease(&self, tenant: i32) -> Duration {
        self.table
            .of_tenant(tenant)
            .map(|lane| lease_of(&lane.provider, self.lease))
            .max()
            .unwrap_or(self.lease)
            .max(self.lease)
    }

    pub fn lease(&self) -> Duration {
        self.lease
    }
}

/// Returns the lease length for a provider. A send must fit into its lease, with a margin before and after it.
fn lease_of(provider: &Provider, lease: Duration) -> Duration {
    lease.max(provider.timeout() + 2 * MARGIN)
}

/// Takes the slots of a claimed batch before another task counts them as free. Returns `None` if there are not enough,
/// because a pass over one notification may exceed the slots.
pub fn take(slots: &Arc<Semaphore>, count: usize) -> Option<OwnedSemaphorePermit> {
    slots.clone().try_acquire_many_owned(u32::try_from(count).ok()?).ok()
}

/// Takes free slots, up to `count`.
pub fn take_up_to(slots: &Arc<Semaphore>, count: usize) -> Option<OwnedSemaphorePermit> {
    take(slots, count.min(slots.available_permits()))
}
