//! One lane per provider, and one per tenant for what is not expanded or routed yet.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use postcommit::Timestamp;
use postcommit_channel::driver::{self, Driver};
use postcommit_channel::model::{Delivery, Fate, Guarantee, Provider, Routes, Target};
use postcommit_channel::secret::Secrets;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Tools;
use super::host_book::HostBook;
use super::hosts::Hosts;
use super::permits::{Meter, Permits};
use super::setback::Setback;
use super::shards::Shards;
use super::shut::Shut;
use super::turns::{Turns, is_expansion};
use crate::db::DbError;
use crate::store::{Claim, LimitedClaim, Metered, ProviderChanges, Search, Want};

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
    /// Its hosts, where its driver tells them apart.
    pub hosts: Option<Arc<Hosts>>,
    /// How long what could not be announced waits.
    pub setback: Arc<Setback>,
    /// Where it says that it has a backlog now.
    stirred: Stirred,
}

/// Lanes that have got a backlog since somebody looked.
type Stirred = Arc<Mutex<Vec<i32>>>;

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
        let fresh = Self::new(provider, driver, same_slots, self.stirred.clone());
        Self { backlog: self.backlog.clone(), meter: self.meter.clone(), shut, setback, ..fresh }
    }

    fn new(provider: Provider, driver: Result<Arc<dyn Driver>, String>, slots: Option<Arc<Semaphore>>, stirred: Stirred) -> Self {
        let concurrency = usize::try_from(provider.concurrency).unwrap_or(1);
        let slots = slots.unwrap_or_else(|| Arc::new(Semaphore::new(concurrency)));
        let name = provider.name.as_str().into();
        let (backlog, meter, shut, setback) = Default::default();
        Self { name, slots, backlog, meter, shut, setback, hosts: None, stirred, provider, driver }
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
        self.driver.as_ref().ok()?.host_of(delivery.facts.target())
    }

    /// Whether this process may begin sends on it at all. A lane that it cannot serve, e.g. for want of the key, is left to those who can; doctor tells.
    fn is_served(&self) -> bool {
        !self.provider.is_paused() && self.driver.is_ok() && !self.shut.is_shut()
    }

    fn is_limited(&self) -> bool {
        self.provider.rate_per_s.is_some()
    }

    pub fn set_backlog(&self, waits: bool) {
        if !self.backlog.swap(waits, Ordering::Relaxed) && waits {
            self.stirred.lock().unwrap_or_else(PoisonError::into_inner).push(self.provider.id);
        }
    }

    /// What could be started on it now.
    fn want(&self, batch: i32) -> Option<Want> {
        let quota = i32::try_from(self.slots.available_permits()).unwrap_or(batch).min(batch);
        (quota > 0 && (!self.is_limited() || self.meter.may_have_one())).then_some(Want { lane: self.provider.id, quota })
    }
}

/// The lanes as they were when something was claimed.
#[derive(Clone)]
pub struct Table {
    lanes: Shards<Arc<Lane>>,
    by_tenant: Shards<Arc<Vec<Provider>>>,
    lease: Duration,
    /// When something may last have been sent by another provider than it would be now.
    pub rerouted_at: Timestamp,
}

impl Table {
    pub fn routes(&self, tenant: i32) -> Routes<'_> {
        Routes(self.by_tenant.get(tenant).map_or(&[], |providers| providers.as_slice()))
    }

    pub fn lane(&self, id: i32) -> Option<&Arc<Lane>> {
        self.lanes.get(id)
    }

    fn of_tenant(&self, tenant: i32) -> impl Iterator<Item = &Arc<Lane>> {
        self.routes(tenant).0.iter().filter_map(|provider| self.lane(provider.id))
    }

    fn put(&mut self, lane: Arc<Lane>) {
        let mut providers = self.without(lane.provider.tenant, lane.provider.id);
        let place = providers.partition_point(|known| known.id < lane.provider.id);
        providers.insert(place, lane.provider.clone());
        self.by_tenant.insert(lane.provider.tenant, providers.into());
        self.lanes.insert(lane.provider.id, lane);
    }

    fn remove(&mut self, id: i32) {
        if let Some(lane) = self.lanes.remove(id) {
            let providers = self.without(lane.provider.tenant, id);
            self.by_tenant.insert(lane.provider.tenant, providers.into());
        }
    }

    /// A tenant's providers but that one.
    fn without(&self, tenant: i32, id: i32) -> Vec<Provider> {
        self.routes(tenant).0.iter().filter(|known| known.id != id).cloned().collect()
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
    /// The state of the providers that the table shows; none before they have been read.
    version: Option<i64>,
    expansion: Arc<Semaphore>,
    lease: Duration,
    book: HostBook,
    turns: Turns,
    /// Of tenants that have another weight than 1.
    weights: HashMap<i32, u32>,
    stirred: Stirred,
    /// Providers that this process cannot use.
    broken: BTreeSet<i32>,
    /// Lanes whose permits are under way.
    metered: BTreeSet<i32>,
}

/// What could be started now.
pub struct Wants {
    /// By the length of lease it needs: one claim each, nearly always one in all.
    pub by_lease: BTreeMap<Duration, Vec<Want>>,
    /// The same for lanes whose rate is limited, if they may have a permit.
    pub limited: BTreeMap<Duration, Vec<Want>>,
    /// Where to look for others. It goes with the claim for the usual lease.
    pub search: Search,
    /// There is no room for what is not expanded: whatever is found, more may be due.
    pub full: bool,
}

/// How to look for what is due.
#[derive(Debug, Clone, Copy)]
pub struct Mood {
    /// The last look brought work.
    pub busy: bool,
    /// The search is not put off, whatever it costs.
    pub insists: bool,
}

impl Lanes {
    pub fn new(tools: &Tools) -> Self {
        let lease = Duration::from_secs(tools.settings.lease_s);
        let nothing = Table { lanes: Shards::default(), by_tenant: Shards::default(), lease, rerouted_at: Timestamp::from_micros(0) };
        Self {
            table: Arc::new(nothing),
            version: None,
            expansion: Arc::new(Semaphore::new(EXPANSION_SLOTS)),
            lease,
            book: HostBook::default(),
            turns: Turns::default(),
            weights: HashMap::new(),
            stirred: Stirred::default(),
            broken: BTreeSet::new(),
            metered: BTreeSet::new(),
        }
    }

    /// Reads what has changed of the providers if they are not those of that version.
    pub async fn catch_up(&mut self, tools: &Tools, version: i64) -> Result<(), DbError> {
        if Some(version) == self.version { Ok(()) } else { self.refresh(tools).await }
    }

    /// Reads what has changed of the providers, and makes that anew. A lane keeps its slots while its concurrency stays.
    pub async fn refresh(&mut self, tools: &Tools) -> Result<(), DbError> {
        let changes = tools.store.provider_changes(self.version).await?;
        let version = changes.version;
        if changes.is_all {
            self.book.start_over();
        }
        self.apply(tools, changes);
        // Before a claim may rely on them; a change of theirs counts as one of the providers, too.
        self.book.read(&tools.store).await?;
        self.version = Some(version);
        Ok(())
    }

    /// Reads all hosts that are shut, if that is due.
    pub async fn look_at_hosts(&self, tools: &Tools) -> Result<(), DbError> {
        if self.book.is_due() { self.book.read(&tools.store).await } else { Ok(()) }
    }

    fn apply(&mut self, tools: &Tools, changes: ProviderChanges) {
        let ProviderChanges { rerouted_at, is_all, providers, gone, weights, .. } = changes;
        let mut table = Table { rerouted_at, ..(*self.table).clone() };
        if is_all {
            (table.lanes, table.by_tenant) = (Shards::default(), Shards::default());
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
        self.weights.extend(weights);
        self.weights.retain(|_, weight| *weight != 1);
        self.table = Arc::new(table);
    }

    fn reopen(&self, tools: &Tools, provider: Provider) -> Arc<Lane> {
        let Some(known) = self.table.lane(provider.id) else {
            let driver = open(tools, &provider, None);
            return Arc::new(Lane::new(provider, driver, None, self.stirred.clone()).telling_hosts_apart(None, &self.book));
        };
        let apart = |lane: Lane| Arc::new(lane.telling_hosts_apart(Some(known), &self.book));
        match &known.driver {
            Ok(_) if known.provider == provider => known.clone(),
            // Only held or released: that is no revision, and the driver keeps its connections.
            Ok(driver) if known.provider.revision == provider.revision => apart(known.with(provider, Ok(driver.clone()))),
            // One that could not be used is tried again: the key may be back.
            _ => {
                let driver = open(tools, &provider, Some(known));
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

    /// Tries the providers again that this process could not use.
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
        self.table = Arc::new(table);
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

    /// From now on every lane that has rows is to be looked at once.
    pub fn look_anew(&mut self) {
        self.turns.look_anew();
    }

    /// Whether that is so.
    pub fn is_through(&self) -> bool {
        self.turns.is_through()
    }

    /// When the search goes on, if it was put off.
    pub fn next_search_at(&self) -> Option<Instant> {
        self.turns.next_search_at()
    }

    /// What could be started now.
    pub fn wants(&mut self, batch: i32, mood: Mood) -> Wants {
        for lane in std::mem::take(&mut *self.stirred.lock().unwrap_or_else(PoisonError::into_inner)) {
            self.turns.wait(lane);
        }
        // Claiming a few at a time, as slots come free one by one, would cost a round trip each.
        let (free, most) = (self.expansion.available_permits(), usize::try_from(batch).unwrap_or(1));
        let full = free < most.min(EXPANSION_SLOTS / 2);
        let lanes = self.turns.next_lanes(mood.busy);
        let mut wants = self.wants_on(&lanes, batch);
        wants.full = full;
        if !full {
            let asked: Vec<i32> = wants.by_lease.values().chain(wants.limited.values()).flatten().map(|want| want.lane).collect();
            self.want_expansion(&mut wants, asked, most.min(free), mood);
        }
        wants
    }

    /// The same of what is not expanded, and the search. For whom it finds there is always some room, if need be an eighth beyond the slots: those that are
    /// known to wait get whole batches all the same.
    fn want_expansion(&mut self, wants: &mut Wants, mut asked: Vec<i32>, most: usize, mood: Mood) {
        let dealt = self.turns.deal(most, mood.busy, |tenant| self.weights.get(&tenant).copied().unwrap_or(1));
        asked.extend(dealt.iter().map(|want| want.lane));
        let taken: usize = dealt.iter().filter_map(|want| usize::try_from(want.quota).ok()).sum();
        let room = self.expansion.available_permits().saturating_sub(taken).min(most).max(most.div_ceil(8));
        wants.search = self.turns.search(&asked, room, mood.busy, mood.insists);
        if !dealt.is_empty() || !wants.search.between.is_empty() {
            wants.by_lease.entry(self.lease).or_default().extend(dealt);
        }
    }

    /// What could be started on those lanes. One that this process may not serve is asked again when it is found again.
    pub fn wants_on(&mut self, lanes: &[i32], batch: i32) -> Wants {
        let (mut by_lease, mut limited): (BTreeMap<_, Vec<Want>>, BTreeMap<_, Vec<Want>>) = (BTreeMap::new(), BTreeMap::new());
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

    /// Limited lanes of a tenant that may have a permit, whatever their slots: for a pass by hand.
    pub fn wants_of(&self, tenant: i32, batch: i32) -> Vec<Want> {
        let may = |lane: &&Arc<Lane>| lane.is_served() && lane.is_limited() && lane.meter.may_have_one();
        self.table.of_tenant(tenant).filter(may).map(|lane| Want { lane: lane.provider.id, quota: batch }).collect()
    }

    /// Learns from a claim. A lane that gave all that was asked for may hold more; one that gave less is empty. Returns the lanes that were found beside.
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

    /// Learns from a claim on limited lanes. One that was not looked at has nothing due, or another process is at it.
    pub fn note_limited(&mut self, wants: &[Want], found: &LimitedClaim) {
        for lane in wants.iter().filter_map(|want| self.table.lane(want.lane)) {
            let metered = found.lanes.iter().find(|metered| metered.lane == lane.provider.id);
            let given = found.claim.deliveries.iter().filter(|delivery| delivery.lane == lane.provider.id).count();
            lane.meter.expect_after(metered.map_or(Duration::ZERO, |metered| metered.wait));
            let waits = metered.is_some_and(|metered| usize::try_from(metered.quota).is_ok_and(|quota| given >= quota));
            lane.set_backlog(waits);
            if waits {
                self.turns.wait(lane.provider.id);
            } else {
                self.turns.forget(lane.provider.id);
            }
        }
    }

    /// The permits that came with a claim, by lane.
    pub fn permits(&mut self, found: &LimitedClaim) -> HashMap<i32, Permits> {
        let permits = |metered: &Metered| {
            let count = found.claim.deliveries.iter().filter(|delivery| delivery.lane == metered.lane).count();
            Some((metered.lane, Permits::new(self.table.lane(metered.lane)?.meter.clone(), metered.taken_at, count)))
        };
        self.metered.extend(found.lanes.iter().map(|metered| metered.lane));
        found.lanes.iter().filter_map(permits).collect()
    }

    /// Permits that were not used, by lane, and when they were taken. Each is told once.
    pub fn take_unused(&mut self) -> Vec<(i32, Timestamp, usize)> {
        let (table, mut unused) = (&self.table, vec![]);
        self.metered.retain(|id| {
            let Some(lane) = table.lane(*id) else { return false };
            // Asked first: what comes back in between is taken with the next round.
            let more = lane.meter.are_under_way();
            unused.extend(lane.meter.take_unused().into_iter().map(|(taken_at, count)| (*id, taken_at, count)));
            more
        });
        unused
    }

    /// When the next permit is due on a lane where something waits for it and could begin.
    pub fn next_permit_at(&self) -> Option<Instant> {
        let waits = |lane: &&Arc<Lane>| {
            lane.is_limited() && lane.is_served() && lane.backlog.load(Ordering::Relaxed) && lane.slots.available_permits() > 0
        };
        self.turns.waiting().filter_map(|id| self.table.lane(id)).filter(waits).filter_map(|lane| lane.meter.next_at()).min()
    }

    /// That any of a tenant's lanes needs.
    pub fn longest_lease(&self, tenant: i32) -> Duration {
        self.table.of_tenant(tenant).map(|lane| lease_of(&lane.provider, self.lease)).max().unwrap_or(self.lease).max(self.lease)
    }

    pub fn lease(&self) -> Duration {
        self.lease
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

fn open(tools: &Tools, provider: &Provider, known: Option<&Arc<Lane>>) -> Result<Arc<dyn Driver>, String> {
    let driver = open_secrets(tools, provider)
        .and_then(|secrets| driver::of_provider(provider, &secrets, &tools.egress, &tools.capture_fail_on))
        .map(Arc::from);
    let known_problem = known.and_then(|lane| lane.driver.as_ref().err());
    if let Err(problem) = &driver
        && known_problem != Some(problem)
    {
        tracing::error!(provider = provider.name, problem, "this process cannot use a provider; what waits for it is left alone");
    }
    driver
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
