//! The dispatcher: claim → expand → (claim again, on its lane) → check → permit → render → send → judge → settle.
//!
//! - [`Dispatcher`]: the loop that claims what free slots can start, and no more;
//! - `lanes`: one queue per provider, each with its own slots; `cow_map`: the map that holds them;
//! - `turns`: which lanes the next claim asks for, and where it searches for others with due work;
//! - `hosts`: receivers of one lane that are told apart, so that a held, paused or slow one delays no other;
//! - `local_close`: lanes and hosts whose pause or hold could not be written;
//! - `permits`: what this process knows of the permits of rate-limited lanes;
//! - `batch`: a claimed batch of one lane, until each delivery goes its own way;
//! - `expander`: turns a claimed notification into deliveries;
//! - `attempt`: the pipeline of one delivery;
//! - `settler`: writes the results of all lanes in batches; sends stop when too many results wait to be written;
//! - `parked_log`: what the log says about a parked delivery;
//! - `leases`: the leases of this process, renewed while they are in use;
//! - `backoff`: how long the process waits after a failed read or write of its own;
//! - `wake_up`: wakes the loop after a commit; a poll is the fallback;
//! - `pass`: bounded passes, one at a time; `trial`: one test send past the queue;
//! - `duties`: background duties; `jobs`: acts of operators on many deliveries; `heartbeat`: tells others that this worker runs.

mod attempt;
mod backoff;
mod batch;
mod cow_map;
mod duties;
mod expander;
mod heartbeat;
mod hosts;
mod jobs;
mod lanes;
mod leases;
mod local_close;
mod parked_log;
mod pass;
mod permits;
mod render;
mod settings;
mod settler;
mod trial;
mod turns;
mod wake_up;

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
pub use pass::PassOutcome;
pub use settings::DispatchSettings;
pub use settler::Tally;
pub use trial::{Trial, try_provider};

use crate::db::DbError;
use crate::metrics::Metrics;
use crate::store::{Claim, KpiSettings, LimitedClaim, Search, Store, Want};
use crate::trace::Tracer;
use backoff::Backoff;
use batch::{DatabaseTime, Route, begin};
use lanes::{Lanes, LookMode, Wants};
use leases::Leases;
use permits::Permits;
use settler::Settler;
use turns::is_expansion;
use wake_up::WakeUp;

/// How long the loop keeps looking after the last work before it goes idle.
const LINGER: Duration = Duration::from_millis(50);

/// The resolution of the coarser database clock, SQLite's.
const TICK: Duration = Duration::from_millis(1);

/// Stands for the expansion lanes of all tenants. No lane has this number.
const UNEXPANDED: i32 = 0;

/// How long a stop waits for the last heartbeat.
const FAREWELL: Duration = Duration::from_secs(1);

/// What a dispatcher works with.
#[derive(Clone)]
pub struct Tools {
    /// The store.
    pub store: Store,
    /// Outgoing connections.
    pub egress: Egress,
    /// Opens providers' secrets.
    pub keys: KeySource,
    /// On what the capture driver fails; from the environment.
    pub capture_fail_on: FailOn,
    /// The section `[dispatch]` of the settings.
    pub settings: DispatchSettings,
    /// When a delivery counts as stuck, and how long roll-ups are kept.
    pub kpi: KpiSettings,
    /// Metrics.
    pub metrics: Metrics,
    /// Where spans go; off by default.
    pub tracer: Tracer,
}

/// Whether and how the dispatcher is asked to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    /// Keep running.
    No,
    /// Claim nothing more and finish the sends in flight.
    Finish,
    /// Stop immediately; leases run out by themselves.
    Now,
}

/// A claimed row and the notification behind it.
type Claimed = (Delivery, Arc<StoredNotification>);

/// Notifications by their ids.
type Notes = HashMap<Uuid, Arc<StoredNotification>>;

/// The result of a look at the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Looked {
    /// Work was started.
    Began,
    /// Nothing is due.
    Nothing,
    /// Nothing was found yet, and not all lanes have been searched.
    Searching,
    /// There was no free slot to claim for.
    Full,
}

/// What the tasks of one dispatcher share.
struct Crew {
    tools: Tools,
    settler: Settler,
    leases: Arc<Leases>,
    /// Backoff after a failed read of notifications.
    reading: Backoff,
    /// Backoff after a failed expansion.
    expanding: Backoff,
    /// Notified when slots become free or rows move between lanes.
    stir: Arc<Notify>,
}

/// Claims and delivers until told to stop.
pub struct Dispatcher {
    crew: Arc<Crew>,
    worker: Uuid,
    lanes: Lanes,
    idle_until: Option<Instant>,
    /// The last look found work.
    busy: bool,
    /// The search has not covered all lanes yet.
    searching: bool,
    /// When a look last found work.
    worked_at: Option<Instant>,
    /// Receives the request to stop, once the dispatcher runs.
    stop: Option<watch::Receiver<Stop>>,
    refreshed_at: Option<Instant>,
}

impl Dispatcher {
    /// Makes a dispatcher and loads its lanes.
    pub async fn new(tools: Tools) -> Result<Self, DbError> {
        let stir = Arc::new(Notify::new());
        let leases = Arc::new(Leases::default());
        let settler = Settler::start(tools.store.clone(), tools.metrics.clone(), stir.clone(), leases.clone());
        let mut lanes = Lanes::new(&tools);
        lanes.refresh(&tools).await?;
        let crew =
            Arc::new(Crew { tools, settler, leases, reading: Backoff::default(), expanding: Backoff::default(), stir });
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

    /// Counts of results so far.
    #[must_use]
    pub fn tally(&self) -> Arc<Tally> {
        self.crew.settler.tally()
    }

    /// Delivers until asked to stop, then finishes the sends in flight within the grace period.
    pub async fn run(mut self, mut stop: watch::Receiver<Stop>) {
        self.stop = Some(stop.clone());
        let bell = WakeUp::watch(&self.crew.tools.store);
        let renewing = leases::renew_forever(self.crew.tools.clone(), self.crew.leases.clone());
        let quiet = Arc::new(AtomicBool::new(false));
        tokio::spawn(duties::run_forever(self.crew.tools.store.clone(), self.crew.tools.kpi.clone(), quiet.clone()));
        tokio::spawn(jobs::run_forever(self.crew.tools.store.clone(), quiet.clone()));
        let present = tokio::spawn(heartbeat::beat(self.crew.tools.store.clone(), self.worker, stop.clone()));
        self.crew.tools.metrics.dispatchers.add(1);
        while *stop.borrow() == Stop::No {
            self.refresh_when_due().await;
            match self.round(None).await {
                Ok(Looked::Began | Looked::Searching) => {}
                Ok(Looked::Full) => self.rest(&bell, &mut stop).await,
                // Under load the next commit is a moment away: going idle in between would make every producer send
                // NOTIFY.
                Ok(Looked::Nothing)
                    if self.idle_until.is_none() && self.worked_at.is_some_and(|at| at.elapsed() < LINGER) =>
                {
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
            // Without its settler this process would renew leases forever and write nothing: it must end.
            assert!(!self.crew.settler.is_gone(), "the settler has ended");
        }
        quiet.store(true, Ordering::Relaxed);
        self.drain(stop).await;
        self.crew.tools.metrics.dispatchers.add(-1);
        renewing.abort();
        // Not forever: the database may be unreachable, and then the missing heartbeat tells.
        let _ = tokio::time::timeout(FAREWELL, present).await;
    }

    /// Makes one bounded pass: over everything due now, or over one notification whether due or not. Ends when nothing
    /// of it is in flight.
    pub async fn pass(&mut self, only: Option<(i32, Uuid)>) -> Result<(), DbError> {
        self.pass_until(only, None).await.map(drop)
    }

    /// Makes a pass over everything due now that stops claiming after `bound`. Returns true when due work may be left.
    pub async fn pass_for(&mut self, bound: Duration) -> Result<bool, DbError> {
        self.pass_until(None, Some(clock::monotonic() + bound)).await
    }

    async fn pass_until(&mut self, only: Option<(i32, Uuid)>, end: Option<Instant>) -> Result<bool, DbError> {
        if only.is_none() {
            self.crew.tools.store.note_pass().await?;
        }
        let renewing = leases::renew_forever(self.crew.tools.clone(), self.crew.leases.clone());
        let passed = self.claim_until_quiet(only, end).await;
        // In every case: what was begun is finished, and what was not goes back.
        self.finish_pass().await;
        renewing.abort();
        self.give_back_unused().await;
        passed
    }

    /// Returns true when time ran out first.
    async fn claim_until_quiet(&mut self, only: Option<(i32, Uuid)>, end: Option<Instant>) -> Result<bool, DbError> {
        if let Some((tenant, id)) = only {
            self.crew.tools.store.bring_forward(tenant, id).await?;
        } else {
            jobs::run_due(&self.crew.tools.store, end).await;
        }
        // Work that becomes due while the pass runs, such as a retry, is left for the next pass: a pass must end.
        let started = self.crew.tools.store.now().await?;
        // SQLite's clock counts milliseconds: a row that is put off to the present millisecond would still be due.
        tokio::time::sleep(TICK).await;
        loop {
            if end.is_some_and(|end| clock::monotonic() >= end) {
                return Ok(true);
            }
            // Read before looking: a send in flight may be about to put a row into a lane.
            let quiet = self.is_quiet();
            let looked = match only {
                None => self.round(Some(started)).await?,
                Some((tenant, id)) => self.round_of(tenant, id, started).await?,
            };
            match looked {
                Looked::Began | Looked::Searching => {}
                Looked::Nothing if quiet => return Ok(false),
                // A slot becomes free within the send's timeout. The interval is the fallback, for results that waited
                // for the database.
                Looked::Nothing | Looked::Full => {
                    let _ = tokio::time::timeout(self.interval(), self.crew.stir.notified()).await;
                }
            }
        }
    }

    /// Looks at every lane that has rows, until something is found.
    async fn look_through(&mut self) -> Result<Looked, DbError> {
        loop {
            let looked = self.round(None).await?;
            if looked != Looked::Searching {
                return Ok(looked);
            }
        }
    }

    /// Waits until something may have changed, a permit becomes due, or a deferred search may go on.
    async fn rest(&self, bell: &WakeUp, stop: &mut watch::Receiver<Stop>) {
        let poll = clock::monotonic() + jittered(self.interval());
        let look_at =
            [self.lanes.next_permit_at(), self.lanes.next_search_at()].into_iter().flatten().fold(poll, Instant::min);
        tokio::select! {
            () = bell.rung() => {}
            () = self.crew.stir.notified() => {}
            () = tokio::time::sleep_until(look_at.into()) => {}
            _ = stop.changed() => {}
        }
    }

    /// Claims what the lanes have room for and starts it.
    async fn round(&mut self, due_before: Option<Timestamp>) -> Result<Looked, DbError> {
        self.give_back_unused().await;
        if self.crew.settler.is_behind() {
            return Ok(Looked::Full);
        }
        if !self.busy && !self.searching {
            self.lanes.look_anew();
        }
        let mood = LookMode { busy: self.busy, insists: due_before.is_some() };
        let Wants { by_lease, mut limited, search, full } = self.lanes.wants(self.crew.tools.settings.batch, mood);
        let (mut begun, mut beside) = (0, vec![]);
        for (lease, wants) in by_lease {
            let search = if lease == self.lanes.lease() { search.clone() } else { Search::default() };
            begun += self.claim(&wants, &search, lease, due_before, &mut beside).await?;
        }
        // The search found these lanes; how much each can start was not known before.
        if !beside.is_empty() {
            let more = self.lanes.wants_on(&beside, self.crew.tools.settings.batch);
            for (lease, wants) in more.by_lease {
                begun += self.claim(&wants, &Search::default(), lease, due_before, &mut beside).await?;
            }
            more.limited.into_iter().for_each(|(lease, wants)| limited.entry(lease).or_default().extend(wants));
        }
        // Rate-limited work is no reason to stay awake for more.
        let paced = self.round_of_limited(limited, due_before).await?;
        // A single notification does not end the idle state: telling others about it would cost two writes for each
        // notification of a quiet day. More than one means load, and then no producer should pay for NOTIFY.
        if begun > 1 || (begun > 0 && self.busy) {
            self.awake().await;
        }
        let was_busy = std::mem::replace(&mut self.busy, begun > 0);
        if self.busy {
            self.worked_at = Some(clock::monotonic());
        }
        // Under load not every look searches: one more look follows, from the start. A deferred search is not waited
        // for.
        let is_over = self.lanes.is_through() || self.lanes.next_search_at().is_some();
        self.searching = begun + paced == 0 && !full && !was_busy && !is_over;
        Ok(match begun + paced {
            0 if full => Looked::Full,
            0 if was_busy || self.searching => Looked::Searching,
            0 => Looked::Nothing,
            _ => Looked::Began,
        })
    }

    /// Makes one claim and starts what it brought. Adds lanes that the search found to `beside`.
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

    /// Claims from rate-limited lanes, apart from the others so that they pay nothing for it.
    async fn round_of_limited(
        &mut self,
        limited: BTreeMap<Duration, Vec<Want>>,
        due_before: Option<Timestamp>,
    ) -> Result<usize, DbError> {
        let mut begun = 0;
        for (lease, wants) in limited {
            let before = clock::monotonic();
            let found = self.crew.tools.store.claim_limited(&wants, lease, due_before).await?;
            begun += self.start_limited(&wants, found, before, lease).await?;
        }
        Ok(begun)
    }

    async fn start_limited(
        &mut self,
        wants: &[Want],
        found: LimitedClaim,
        claimed_at: Instant,
        lease: Duration,
    ) -> Result<usize, DbError> {
        self.lanes.note_limited(wants, &found);
        let permits = self.lanes.permits(&found);
        self.start(found.claim, claimed_at, lease, permits).await
    }

    /// Returns permits of deliveries that were claimed and not sent, for example expired ones.
    async fn give_back_unused(&mut self) {
        for (lane, taken_at, permits) in self.lanes.take_unused() {
            if let Err(problem) = self.crew.tools.store.give_back_permits(lane, permits, taken_at).await {
                tracing::debug!(%problem, lane, "could not return unused permits; they come back with time");
            }
        }
    }

    fn note_claim(&self, claim: &Claim) {
        let metrics = &self.crew.tools.metrics;
        metrics.claims.add(1);
        metrics.claimed.add(claim.deliveries.len() as u64);
        metrics.looked_at.set(clock::now().as_micros() / 1000);
    }

    /// Claims what is due of one notification and starts it.
    async fn round_of(&mut self, tenant: i32, id: Uuid, due_before: Timestamp) -> Result<Looked, DbError> {
        let before = clock::monotonic();
        let lease = self.lanes.longest_lease(tenant);
        let claim = self.crew.tools.store.claim_notification(tenant, id, lease, due_before).await?;
        let mut begun = self.start(claim, before, lease, HashMap::new()).await?;
        self.give_back_unused().await;
        let wants = self.lanes.wants_of(tenant, self.crew.tools.settings.batch);
        if !wants.is_empty() {
            let before = clock::monotonic();
            let found =
                self.crew.tools.store.claim_limited_notification((tenant, id), &wants, lease, due_before).await?;
            begun += self.start_limited(&wants, found, before, lease).await?;
        }
        Ok(if begun > 0 { Looked::Began } else { Looked::Nothing })
    }

    /// Takes the slots of claimed deliveries and starts them. Returns those that this process cannot serve.
    async fn start(
        &mut self,
        claim: Claim,
        claimed_at: Instant,
        lease: Duration,
        mut permits: HashMap<i32, Permits>,
    ) -> Result<usize, DbError> {
        let Claim { deliveries, providers, notes, .. } = claim;
        let Some(first) = deliveries.first() else { return Ok(0) };
        let clock = DatabaseTime { then: first.leased_at, since: clock::monotonic() };
        self.crew.leases.hold(&deliveries, claimed_at, lease);
        if self.stop.as_ref().is_some_and(|stop| *stop.borrow() != Stop::No) {
            // The stop came during the claim: nothing more is begun.
            self.crew.settler.return_unbegun(deliveries);
            return Ok(0);
        }
        if let Err(problem) = self.lanes.catch_up(&self.crew.tools, providers).await {
            // They go back now instead of when the lease runs out.
            self.crew.settler.return_unbegun(deliveries);
            return Err(problem);
        }
        let mut notes: Notes = notes.into_iter().map(|note| (note.id, Arc::new(note))).collect();
        let mut begun = 0;
        let mut by_lane: HashMap<i32, Vec<Delivery>> = HashMap::new();
        // Notifications of all tenants that are not expanded yet are read with one statement.
        let together = |delivery: &Delivery| if is_expansion(delivery.lane) { UNEXPANDED } else { delivery.lane };
        deliveries.into_iter().for_each(|delivery| by_lane.entry(together(&delivery)).or_default().push(delivery));
        for (id, batch) in by_lane {
            let way = match self.lanes.lane(id) {
                _ if id == UNEXPANDED => {
                    Route::Expand(self.lanes.table(), lanes::take_up_to(&self.lanes.expansion(), batch.len()))
                }
                Some(lane) if lane.driver.is_ok() => {
                    Route::Attempt(lane.clone(), lanes::take(&lane.slots, batch.len()), permits.remove(&id))
                }
                _ => {
                    self.crew.settler.return_unbegun(batch);
                    continue;
                }
            };
            begun += batch.len();
            // The next claim does not wait until these are read.
            let known = if id == UNEXPANDED { std::mem::take(&mut notes) } else { Notes::new() };
            tokio::spawn(begin(self.crew.clone(), way, batch, known, clock));
        }
        Ok(begun)
    }

    /// Marks this dispatcher idle unless it is already. Returns true when it did: then one more look is needed, for
    /// commits between the last look and the mark.
    async fn fall_idle(&mut self) -> bool {
        const NAP: Duration = Duration::from_secs(60);
        let now = clock::monotonic();
        if self.idle_until.is_some_and(|until| until > now + NAP / 2) {
            return false;
        }
        match self.crew.tools.store.fall_idle(self.worker, NAP).await {
            Ok(()) => self.idle_until = Some(now + NAP),
            Err(problem) => tracing::debug!(%problem, "could not mark this dispatcher as idle; polling goes on"),
        }
        self.idle_until.is_some()
    }

    async fn awake(&mut self) {
        if self.idle_until.take().is_some()
            && let Err(problem) = self.crew.tools.store.wake_up(self.worker).await
        {
            tracing::debug!(%problem, "could not mark this dispatcher as busy");
        }
    }

    /// Other processes change providers. Every claim tells, and so does a read at every interval.
    async fn refresh_when_due(&mut self) {
        let now = clock::monotonic();
        if self.refreshed_at.is_some_and(|at| now.duration_since(at) < self.interval()) {
            return;
        }
        self.refreshed_at = Some(now);
        if let Err(problem) = self.refresh().await {
            tracing::warn!(%problem, "could not read the providers; keeping the known ones");
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
            tracing::warn!(
                left,
                "stopped with sends in flight; their leases will run out and the guarantee of each provider decides"
            );
        }
    }
}

/// Processes that start together must not poll together.
fn jittered(interval: Duration) -> Duration {
    let chance = f64::from(postcommit_channel::secret::random::<1>()[0]) / 255.0;
    interval.mul_f64(0.75 + 0.5 * chance)
}

/// Attributes of every span of a notification.
fn traits_of(note: &StoredNotification) -> Vec<(&'static str, String)> {
    let mut known =
        vec![("postcommit.notification", note.id.to_string()), ("postcommit.event_type", note.event_type.clone())];
    known.extend(note.correlation_id.clone().map(|id| ("postcommit.correlation_id", id)));
    known
}
