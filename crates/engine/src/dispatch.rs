//! The moving part. One notification's way: claim → expand → (claim again, on its lane) → check → permit → render → send → judge → settle.
//!
//! - [`Dispatcher`]: the loop that claims what free slots can start, and no more;
//! - `lanes`: one queue per provider, each with its own slots, so that a slow or paused one holds nobody up; `shards`: a table of them that is cheap to change;
//! - `turns`: whose turn it is, and where to look for others who have something due;
//! - `hosts`, `host_book`, `by_host`: receivers of one lane that are told apart, so that one that is held, paused or slow holds up no other;
//! - `shut`: lanes and hosts whose pause or hold could not be written;
//! - `setback`: how long what we could not write waits;
//! - `pass`: bounded passes, one at a time, and how they end;
//! - `permits`: what is known of the permits of lanes whose rate is limited;
//! - `batch`: what was claimed for one lane, until each of it goes its own way;
//! - `expander`: what a claimed notification becomes;
//! - `attempt`: one delivery's pipeline;
//! - `settler`: results of all lanes, written in batches; sends stop when too many wait to be written;
//! - `parked`: what the log says of what is parked;
//! - `leases`: what is under way, renewed while it is;
//! - `bell`: wakes the loop; a poll is the floor;
//! - `trial`, `pass`: one send past the queue, to try a provider out; how a bounded pass ends;
//! - `duties`: what is done now and then;
//! - `jobs`: what an operator does to many at once;
//! - `presence`: that somebody is here to deliver.

mod attempt;
mod batch;
mod bell;
mod by_host;
mod duties;
mod expander;
mod host_book;
mod hosts;
mod jobs;
mod lanes;
mod leases;
mod parked;
mod pass;
mod permits;
mod presence;
mod render;
mod setback;
mod settings;
mod settler;
mod shards;
mod shut;
mod trial;
mod turns;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use postcommit::Timestamp;
use postcommit_channel::clock;
use postcommit_channel::driver::FailOn;
use postcommit_channel::egress::Egress;
use postcommit_channel::model::{Delivery, StoredNotification};
use postcommit_channel::secret::KeySource;
use tokio::sync::{Notify, watch};
use uuid::Uuid;

pub use duties::run_once as run_duties_once;
pub use jobs::run_once as run_job_once;
pub use pass::Passed;
pub use settings::DispatchSettings;
pub use settler::Tally;
pub use trial::{Trial, try_provider};

use crate::db::DbError;
use crate::metrics::Metrics;
use crate::store::{Claim, KpiSettings, LimitedClaim, Search, Store, Want};
use crate::trace::Tracer;
use batch::{Reckoning, Way, begin};
use bell::Bell;
use lanes::{Lanes, Mood, Wants};
use leases::Leases;
use permits::Permits;
use setback::Setback;
use settler::Settler;
use turns::is_expansion;

/// How long after the last work we look again and again before we fall asleep.
const LINGER: Duration = Duration::from_millis(50);

/// The coarser of the two databases' clocks.
const TICK: Duration = Duration::from_millis(1);

/// Stands for the lanes of what is not expanded yet, of all tenants. No lane has this number.
const UNEXPANDED: i32 = 0;

/// How long a stop waits until it has said that it leaves.
const FAREWELL: Duration = Duration::from_secs(1);

/// Everything a dispatcher works with.
#[derive(Clone)]
pub struct Tools {
    /// What is kept.
    pub store: Store,
    /// The way out.
    pub egress: Egress,
    /// Opens providers' secrets.
    pub keys: KeySource,
    /// On what the capture driver fails, from the environment.
    pub capture_fail_on: FailOn,
    /// How to go about it.
    pub settings: DispatchSettings,
    /// What is stuck, and how long roll-ups are kept.
    pub kpi: KpiSettings,
    /// What is counted.
    pub metrics: Metrics,
    /// Where spans go; off by default.
    pub tracer: Tracer,
}

/// How far a stop has gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    /// Go on.
    No,
    /// Claim nothing more, finish what is under way.
    Finish,
    /// At once; leases run out by themselves.
    Now,
}

/// A claimed row and the notification behind it.
type Claimed = (Delivery, Arc<StoredNotification>);

/// Notifications by their ids.
type Notes = HashMap<Uuid, Arc<StoredNotification>>;

/// What a look at the queue brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Looked {
    /// Something was begun.
    Began,
    /// There is nothing due.
    Nothing,
    /// Nothing was found so far, and not all lanes have been searched.
    Searching,
    /// There was no room to look for more.
    Full,
}

/// What the tasks of one dispatcher share.
struct Crew {
    tools: Tools,
    settler: Settler,
    leases: Arc<Leases>,
    /// How long what could not be read waits.
    reading: Setback,
    /// How long what could not be expanded waits.
    expanding: Setback,
    /// Rung when slots have come free or rows have moved between lanes.
    stir: Arc<Notify>,
}

/// Claims and delivers until told to stop.
pub struct Dispatcher {
    crew: Arc<Crew>,
    worker: Uuid,
    lanes: Lanes,
    idle_until: Option<Instant>,
    /// The last look brought work.
    busy: bool,
    /// It did not come to its end.
    searching: bool,
    /// When a look last did.
    worked_at: Option<Instant>,
    /// Where a stop is told, once it runs.
    stop: Option<watch::Receiver<Stop>>,
    refreshed_at: Option<Instant>,
}

impl Dispatcher {
    /// Makes a dispatcher with its lanes loaded.
    pub async fn new(tools: Tools) -> Result<Self, DbError> {
        let stir = Arc::new(Notify::new());
        let leases = Arc::new(Leases::default());
        let settler = Settler::start(tools.store.clone(), tools.metrics.clone(), stir.clone(), leases.clone());
        let mut lanes = Lanes::new(&tools);
        lanes.refresh(&tools).await?;
        let crew = Arc::new(Crew { tools, settler, leases, reading: Setback::default(), expanding: Setback::default(), stir });
        Ok(Self {
            crew,
            worker: Uuid::new_v4(),
            lanes,
            idle_until: None,
            busy: false,
            searching: false,
            worked_at: None,
            stop: None,
            refreshed_at: None,
        })
    }

    /// What was done so far.
    #[must_use]
    pub fn tally(&self) -> Arc<Tally> {
        self.crew.settler.tally()
    }

    /// Delivers until told to stop, then finishes what is under way, within the grace.
    pub async fn run(mut self, mut stop: watch::Receiver<Stop>) {
        self.stop = Some(stop.clone());
        let bell = Bell::hang(&self.crew.tools.store);
        let renewing = leases::renew_forever(self.crew.tools.clone(), self.crew.leases.clone());
        let quiet = Arc::new(AtomicBool::new(false));
        tokio::spawn(duties::run_forever(self.crew.tools.store.clone(), self.crew.tools.kpi.clone(), quiet.clone()));
        tokio::spawn(jobs::run_forever(self.crew.tools.store.clone(), quiet.clone()));
        let present = tokio::spawn(presence::stay(self.crew.tools.store.clone(), self.worker, stop.clone()));
        self.crew.tools.metrics.dispatchers.add(1);
        while *stop.borrow() == Stop::No {
            self.refresh_when_due().await;
            match self.round(None).await {
                Ok(Looked::Began | Looked::Searching) => {}
                Ok(Looked::Full) => self.rest(&bell, &mut stop).await,
                // On a busy day the next commit is a moment away: falling asleep in between would make everybody ring.
                Ok(Looked::Nothing) if self.idle_until.is_none() && self.worked_at.is_some_and(|at| at.elapsed() < LINGER) => {
                    tokio::time::sleep(LINGER / 25).await;
                }
                Ok(Looked::Nothing) => {
                    let certain = self.fall_idle().await;
                    if !certain || self.look_through().await.is_ok_and(|looked| looked == Looked::Nothing) {
                        self.rest(&bell, &mut stop).await;
                    }
                }
                Err(problem) => {
                    tracing::warn!(%problem, "could not claim; trying again");
                    tokio::time::sleep(jittered(self.interval())).await;
                }
            }
            // Without its settler this process would hold leases for ever and write nothing: better none.
            assert!(!self.crew.settler.is_gone(), "the settler has ended");
        }
        quiet.store(true, Ordering::Relaxed);
        self.drain(stop).await;
        self.crew.tools.metrics.dispatchers.add(-1);
        renewing.abort();
        // Not for ever: the database may be away, and then it is noticed without a word.
        let _ = tokio::time::timeout(FAREWELL, present).await;
    }

    /// One bounded pass: what is due now, or one notification whether due or not. Ends when nothing of it is under way.
    pub async fn pass(&mut self, only: Option<(i32, Uuid)>) -> Result<(), DbError> {
        self.pass_until(only, None).await.map(drop)
    }

    /// A pass over what is due now that claims nothing more after so long. True when something may be left.
    pub async fn pass_for(&mut self, bound: Duration) -> Result<bool, DbError> {
        self.pass_until(None, Some(clock::monotonic() + bound)).await
    }

    async fn pass_until(&mut self, only: Option<(i32, Uuid)>, end: Option<Instant>) -> Result<bool, DbError> {
        if only.is_none() {
            self.crew.tools.store.note_pass().await?;
        }
        let renewing = leases::renew_forever(self.crew.tools.clone(), self.crew.leases.clone());
        let passed = self.claim_until_quiet(only, end).await;
        // Whatever happened: what was begun is finished, and what was not goes back.
        self.finish_pass().await;
        renewing.abort();
        self.give_back_unused().await;
        passed
    }

    /// True when the end came first.
    async fn claim_until_quiet(&mut self, only: Option<(i32, Uuid)>, end: Option<Instant>) -> Result<bool, DbError> {
        if let Some((tenant, id)) = only {
            self.crew.tools.store.bring_forward(tenant, id).await?;
        } else {
            jobs::run_due(&self.crew.tools.store, end).await;
        }
        // What becomes due while the pass runs, such as a retry, is left for the next: a pass ends.
        let started = self.crew.tools.store.now().await?;
        // SQLite's clock counts milliseconds: what a claim in this one puts off to "at once" would still be due.
        tokio::time::sleep(TICK).await;
        loop {
            if end.is_some_and(|end| clock::monotonic() >= end) {
                return Ok(true);
            }
            // Asked before looking: what is under way may be just about to put something into a lane.
            let quiet = self.is_quiet();
            let looked = match only {
                None => self.round(Some(started)).await?,
                Some((tenant, id)) => self.round_of(tenant, id, started).await?,
            };
            match looked {
                Looked::Began | Looked::Searching => {}
                Looked::Nothing if quiet => return Ok(false),
                // Somebody's slot frees within the send's timeout; the floor is for results that waited for the database.
                Looked::Nothing | Looked::Full => {
                    let _ = tokio::time::timeout(self.interval(), self.crew.stir.notified()).await;
                }
            }
        }
    }

    /// Looks at every lane that has rows, unless it finds something before.
    async fn look_through(&mut self) -> Result<Looked, DbError> {
        loop {
            let looked = self.round(None).await?;
            if looked != Looked::Searching {
                return Ok(looked);
            }
        }
    }

    /// Until something may have changed, a permit is due that something waits for, or a search that was put off.
    async fn rest(&self, bell: &Bell, stop: &mut watch::Receiver<Stop>) {
        let poll = clock::monotonic() + jittered(self.interval());
        let look_at = [self.lanes.next_permit_at(), self.lanes.next_search_at()].into_iter().flatten().fold(poll, Instant::min);
        tokio::select! {
            () = bell.rung() => {}
            () = self.crew.stir.notified() => {}
            () = tokio::time::sleep_until(look_at.into()) => {}
            _ = stop.changed() => {}
        }
    }

    /// Claims what the lanes have room for, and starts it.
    async fn round(&mut self, due_before: Option<Timestamp>) -> Result<Looked, DbError> {
        self.give_back_unused().await;
        if self.crew.settler.is_behind() {
            return Ok(Looked::Full);
        }
        if !self.busy && !self.searching {
            self.lanes.look_anew();
        }
        let mood = Mood { busy: self.busy, insists: due_before.is_some() };
        let Wants { by_lease, mut limited, search, full } = self.lanes.wants(self.crew.tools.settings.batch, mood);
        let (mut begun, mut beside) = (0, vec![]);
        for (lease, wants) in by_lease {
            let search = if lease == self.lanes.lease() { search.clone() } else { Search::default() };
            begun += self.claim(&wants, &search, lease, due_before, &mut beside).await?;
        }
        // Lanes that were found to have something: how much each can start was not known before.
        if !beside.is_empty() {
            let more = self.lanes.wants_on(&beside, self.crew.tools.settings.batch);
            for (lease, wants) in more.by_lease {
                begun += self.claim(&wants, &Search::default(), lease, due_before, &mut beside).await?;
            }
            more.limited.into_iter().for_each(|(lease, wants)| limited.entry(lease).or_default().extend(wants));
        }
        // What comes at a set pace is no reason to stay awake for more.
        let paced = self.round_of_limited(limited, due_before).await?;
        // One notification does not end the sleep: saying so, and that we sleep again, would be two writes for each of a quiet day. More than one is a day
        // that is not quiet, on which nobody should pay for a bell.
        if begun > 1 || (begun > 0 && self.busy) {
            self.awake().await;
        }
        let was_busy = std::mem::replace(&mut self.busy, begun > 0);
        if self.busy {
            self.worked_at = Some(clock::monotonic());
        }
        // On a busy day not every look searches: after it one more is made, from the beginning. A search that is put off is not waited for.
        let is_over = self.lanes.is_through() || self.lanes.next_search_at().is_some();
        self.searching = begun + paced == 0 && !full && !was_busy && !is_over;
        Ok(match begun + paced {
            0 if full => Looked::Full,
            0 if was_busy || self.searching => Looked::Searching,
            0 => Looked::Nothing,
            _ => Looked::Began,
        })
    }

    /// One claim, and the start of what it brought. Tells of lanes that it was not asked for.
    async fn claim(
        &mut self,
        wants: &[Want],
        search: &Search,
        lease: Duration,
        due_before: Option<Timestamp>,
        beside: &mut Vec<i32>,
    ) -> Result<usize, DbError> {
        let before = clock::monotonic();
        let claim = self.crew.tools.store.claim_and_search(wants, search, lease, due_before).await?;
        self.note_claim(&claim);
        beside.extend(self.lanes.note_claim(wants, search, &claim, before.elapsed()));
        self.start(claim, before, lease, HashMap::new()).await
    }

    /// The same for lanes whose rate is limited: a claim of their own, so that no other lane pays for it.
    async fn round_of_limited(&mut self, limited: BTreeMap<Duration, Vec<Want>>, due_before: Option<Timestamp>) -> Result<usize, DbError> {
        let mut begun = 0;
        for (lease, wants) in limited {
            let before = clock::monotonic();
            let found = self.crew.tools.store.claim_limited(&wants, lease, due_before).await?;
            begun += self.start_limited(&wants, found, before, lease).await?;
        }
        Ok(begun)
    }

    async fn start_limited(&mut self, wants: &[Want], found: LimitedClaim, claimed_at: Instant, lease: Duration) -> Result<usize, DbError> {
        self.lanes.note_limited(wants, &found);
        let permits = self.lanes.permits(&found);
        self.start(found.claim, claimed_at, lease, permits).await
    }

    /// Permits of what was claimed and not sent: cancelled, say, or expired.
    async fn give_back_unused(&mut self) {
        for (lane, taken_at, permits) in self.lanes.take_unused() {
            if let Err(problem) = self.crew.tools.store.give_back_permits(lane, permits, taken_at).await {
                tracing::debug!(%problem, lane, "could not give permits back; they come back with time");
            }
        }
    }

    fn note_claim(&self, claim: &Claim) {
        let metrics = &self.crew.tools.metrics;
        metrics.claims.add(1);
        metrics.claimed.add(claim.deliveries.len() as u64);
        metrics.looked_at.set(clock::now().as_micros() / 1000);
    }

    /// The same for one notification.
    async fn round_of(&mut self, tenant: i32, id: Uuid, due_before: Timestamp) -> Result<Looked, DbError> {
        let before = clock::monotonic();
        let lease = self.lanes.longest_lease(tenant);
        let claim = self.crew.tools.store.claim_notification(tenant, id, lease, due_before).await?;
        let mut begun = self.start(claim, before, lease, HashMap::new()).await?;
        self.give_back_unused().await;
        let wants = self.lanes.wants_of(tenant, self.crew.tools.settings.batch);
        if !wants.is_empty() {
            let before = clock::monotonic();
            let found = self.crew.tools.store.claim_limited_notification((tenant, id), &wants, lease, due_before).await?;
            begun += self.start_limited(&wants, found, before, lease).await?;
        }
        Ok(if begun > 0 { Looked::Began } else { Looked::Nothing })
    }

    /// Takes the slots of what was claimed and sets it on its way. What this process cannot serve goes back.
    async fn start(
        &mut self,
        claim: Claim,
        claimed_at: Instant,
        lease: Duration,
        mut permits: HashMap<i32, Permits>,
    ) -> Result<usize, DbError> {
        let Claim { deliveries, providers, notes, .. } = claim;
        let Some(first) = deliveries.first() else { return Ok(0) };
        let clock = Reckoning { then: first.leased_at, since: clock::monotonic() };
        self.crew.leases.hold(&deliveries, claimed_at, lease);
        if self.stop.as_ref().is_some_and(|stop| *stop.borrow() != Stop::No) {
            // Told while the claim was under way: nothing more is begun.
            self.crew.settler.return_unbegun(deliveries);
            return Ok(0);
        }
        if let Err(problem) = self.lanes.catch_up(&self.crew.tools, providers).await {
            // They go back at once rather than when the lease runs out.
            self.crew.settler.return_unbegun(deliveries);
            return Err(problem);
        }
        let mut notes: Notes = notes.into_iter().map(|note| (note.id, Arc::new(note))).collect();
        let mut begun = 0;
        let mut by_lane: HashMap<i32, Vec<Delivery>> = HashMap::new();
        // What is not expanded yet goes together, whosever it is: it is read with one statement.
        let together = |delivery: &Delivery| if is_expansion(delivery.lane) { UNEXPANDED } else { delivery.lane };
        deliveries.into_iter().for_each(|delivery| by_lane.entry(together(&delivery)).or_default().push(delivery));
        for (id, batch) in by_lane {
            let way = match self.lanes.lane(id) {
                _ if id == UNEXPANDED => Way::Expand(self.lanes.table(), lanes::take_up_to(&self.lanes.expansion(), batch.len())),
                Some(lane) if lane.driver.is_ok() => Way::Attempt(lane.clone(), lanes::take(&lane.slots, batch.len()), permits.remove(&id)),
                _ => {
                    self.crew.settler.return_unbegun(batch);
                    continue;
                }
            };
            begun += batch.len();
            // The next claim need not wait until these are read.
            let known = if id == UNEXPANDED { std::mem::take(&mut notes) } else { Notes::new() };
            tokio::spawn(begin(self.crew.clone(), way, batch, known, clock));
        }
        Ok(begun)
    }

    /// Says that we sleep, unless we have said so. True when it was said just now: then one more look is needed, for what was committed between the
    /// last look and the saying.
    async fn fall_idle(&mut self) -> bool {
        const NAP: Duration = Duration::from_secs(60);
        let now = clock::monotonic();
        if self.idle_until.is_some_and(|until| until > now + NAP / 2) {
            return false;
        }
        match self.crew.tools.store.fall_idle(self.worker, NAP).await {
            Ok(()) => self.idle_until = Some(now + NAP),
            Err(problem) => tracing::debug!(%problem, "could not say that we are idle; the poll goes on"),
        }
        self.idle_until.is_some()
    }

    async fn awake(&mut self) {
        if self.idle_until.take().is_some()
            && let Err(problem) = self.crew.tools.store.wake_up(self.worker).await
        {
            tracing::debug!(%problem, "could not say that we are awake");
        }
    }

    /// Providers change by other hands: every claim tells, and so does a look at every interval, busy or not.
    async fn refresh_when_due(&mut self) {
        let now = clock::monotonic();
        if self.refreshed_at.is_some_and(|at| now.duration_since(at) < self.interval()) {
            return;
        }
        self.refreshed_at = Some(now);
        if let Err(problem) = self.refresh().await {
            tracing::warn!(%problem, "could not read the providers; keeping those known");
        }
    }

    async fn refresh(&mut self) -> Result<(), DbError> {
        self.lanes.mend(&self.crew.tools);
        let (version, _) = self.crew.tools.store.providers_version().await?;
        self.lanes.catch_up(&self.crew.tools, version).await?;
        self.lanes.look_at_hosts(&self.crew.tools).await
    }

    fn interval(&self) -> Duration {
        Duration::from_millis(self.crew.tools.settings.interval_ms)
    }

    fn grace(&self) -> Duration {
        Duration::from_secs(self.crew.tools.settings.stop_grace_s)
    }

    async fn drain(&mut self, mut stop: watch::Receiver<Stop>) {
        self.awake().await;
        let grace = tokio::time::sleep(self.grace());
        tokio::pin!(grace);
        while !self.crew.leases.is_empty() && *stop.borrow() != Stop::Now {
            tokio::select! {
                () = self.crew.stir.notified() => {}
                () = tokio::time::sleep(Duration::from_millis(100)) => {}
                () = &mut grace => break,
                _ = stop.changed() => {}
            }
        }
        if *stop.borrow() != Stop::Now {
            self.give_back_unused().await;
        }
        let left = self.crew.leases.len();
        if left > 0 {
            tracing::warn!(left, "stopped with sends under way; their leases will run out and the guarantee of each provider decides");
        }
    }
}

/// Processes that start together must not ask together for ever.
fn jittered(interval: Duration) -> Duration {
    let chance = f64::from(postcommit_channel::secret::random::<1>()[0]) / 255.0;
    interval.mul_f64(0.75 + 0.5 * chance)
}

/// What every span of a notification tells.
fn traits_of(note: &StoredNotification) -> Vec<(&'static str, String)> {
    let mut known = vec![("postcommit.notification", note.id.to_string()), ("postcommit.event_type", note.event_type.clone())];
    known.extend(note.correlation_id.clone().map(|id| ("postcommit.correlation_id", id)));
    known
}
