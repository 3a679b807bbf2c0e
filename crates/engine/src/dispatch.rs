//! The dispatcher: claim → expand → (claim again, on its lane) → check → permit → render → send → judge → settle.
//!
//! - [`Dispatcher`]: the loop that claims as much work as free slots can start;
//! - `lanes`: one queue per provider, each with its own slots; `cow_map`: the map that holds them;
//! - `turns`: which lanes the next claim asks for, and where it searches for other lanes with due work;
//! - `hosts`: the receivers' hosts of one lane, told apart so that a held, paused or slow host delays no other host;
//! - `demands`: answers of providers that concern a whole lane or host;
//! - `breaker`: holds a lane whose service failed several times in a row, and probes it afterwards;
//! - `failover`: moves deliveries to the next provider while their own cannot send;
//! - `local_close`: lanes and hosts whose pause or hold could not be written to the database;
//! - `recipients`: the time between two messages to one recipient;
//! - `permits`: the permits of rate-limited lanes, as far as this process knows them;
//! - `batch`: a claimed batch of one lane, until its deliveries are expanded or sent;
//! - `expander`: turns notifications into deliveries; `lookup`: reads users and lists; `content`: the index of templates;
//! - `attempt`: the pipeline of one delivery; `links`: signs the unsubscribe links of a batch;
//! - `templates`: compiled versions, and the threads that render;
//! - `settler`: writes the results of all lanes in batches; sends stop when too many results wait to be written;
//! - `parked_log`: the log line of a parked delivery;
//! - `leases`: the leases of this process, renewed while they are in use; `wake_up`: wakes the loop after a commit;
//! - `backoff`: how long the process waits after its own read or write of the database has failed;
//! - `pass`: passes over all due work with a time limit, one at a time; `trial`: one test send that bypasses the queue;
//! - `duties`: background duties; `jobs`: operators' actions on many deliveries;
//! - `heartbeat`: shows other processes that this worker runs.

mod attempt;
mod backoff;
mod batch;
mod breaker;
mod content;
mod cow_map;
mod demands;
mod digests;
mod drivers;
mod duties;
mod expander;
mod failover;
mod heartbeat;
mod hosts;
mod jobs;
mod lanes;
mod leases;
mod links;
mod local_close;
mod lookup;
mod outage;
mod parked_log;
mod pass;
mod permits;
mod recipients;
mod render;
mod settings;
mod settlement;
mod settler;
mod templates;
mod trial;
mod turns;
mod wake_up;

use std::collections::HashMap;
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

pub use duties::{run_once as run_duties_once, run_receipts_once};
pub use jobs::run_once as run_job_once;
pub use pass::PassOutcome;
pub use settings::DispatchSettings;
pub use settler::Tally;
pub use trial::{Trial, TrialContent, try_provider};

use crate::FastMap;
use crate::db::DbError;
use crate::metrics::Metrics;
use crate::store::{Claim, KpiSettings, Opener, Search, Store, Unopened, Want};
use crate::trace::Tracer;
use backoff::{Backoff, jittered};
use batch::{DatabaseTime, Route, begin};
use lanes::{Lanes, LatestTable, LookMode, Wants};
use leases::Leases;
use outage::OutageLog;
use permits::Permits;
use settler::Settler;
use templates::Templates;
use turns::is_expansion;
use wake_up::WakeUp;

/// How long the dispatcher keeps looking for work after it last found some, before it marks itself idle.
const LINGER: Duration = Duration::from_millis(50);

/// The resolution of SQLite's clock. PostgreSQL's clock is finer.
const TICK: Duration = Duration::from_millis(1);

/// Groups the claimed rows of all tenants' expansion lanes into one batch. No lane has this number.
const UNEXPANDED: i32 = 0;

/// How long a stopping dispatcher waits until its heartbeat task has removed the worker from the database.
const FAREWELL: Duration = Duration::from_secs(1);

/// The store, connections, keys and settings that a dispatcher uses.
#[derive(Clone)]
pub struct Tools {
    pub store: Store,
    /// Opens the outgoing connections.
    pub egress: Egress,
    /// The source of the key that decrypts providers' secrets.
    pub keys: KeySource,
    /// The sends that the capture driver fails on purpose. Set by an environment variable.
    pub capture_fail_on: FailOn,
    /// The URL of the server for people, without a slash at its end. Empty if it is not set; templates then have no
    /// unsubscribe links.
    pub public_url: String,
    /// The section `[dispatch]` of the settings.
    pub settings: DispatchSettings,
    /// The time after which a delivery counts as stuck, and how long roll-ups are kept.
    pub kpi: KpiSettings,
    pub metrics: Metrics,
    /// Exports spans; off by default.
    pub tracer: Tracer,
}

/// Whether and how the dispatcher is asked to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    /// Keep running.
    No,
    /// Claim nothing more and finish the sends in flight.
    Finish,
    /// Stop immediately. The leases of sends in flight run out by themselves.
    Now,
}

/// A claimed queue row and its notification.
type Claimed = (Delivery, Arc<StoredNotification>);

/// Notifications by their ids.
type Notes = FastMap<Uuid, Arc<StoredNotification>>;

/// The result of one check of the queue for due work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Looked {
    /// Work was started.
    Began,
    /// Nothing is due.
    Nothing,
    /// Nothing was found yet, and some lanes have not been searched.
    Searching,
    /// No slot was free, so nothing could be claimed.
    Full,
}

/// State that all tasks of one dispatcher share.
struct Crew {
    tools: Tools,
    settler: Settler,
    leases: Arc<Leases>,
    /// Backoff after a failed read of notifications.
    reading: Backoff,
    /// Backoff after a failed expansion.
    expanding: Backoff,
    templates: Templates,
    /// The lanes as the dispatcher last read them.
    latest: LatestTable,
    /// Notified when slots become free or rows move between lanes. Wakes the dispatcher's loop.
    stir: Arc<Notify>,
    outage: Arc<OutageLog>,
}

/// Claims and delivers until it is asked to stop.
pub struct Dispatcher {
    crew: Arc<Crew>,
    worker: Uuid,
    lanes: Lanes,
    idle_until: Option<Instant>,
    /// Whether the last check of the queue found due work.
    busy: bool,
    /// Whether the search has not covered all lanes yet.
    searching: bool,
    /// When a check of the queue last found due work.
    worked_at: Option<Instant>,
    /// Receives the request to stop. `None` until the dispatcher runs.
    stop: Option<watch::Receiver<Stop>>,
    refreshed_at: Option<Instant>,
    /// Providers whose secrets this process cannot decrypt, as last written to the store.
    unopened: Vec<Unopened>,
}

impl Dispatcher {
    /// Creates a dispatcher and loads its lanes.
    pub async fn new(tools: Tools) -> Result<Self, DbError> {
        let stir = Arc::new(Notify::new());
        let leases = Arc::new(Leases::default());
        let outage = Arc::<OutageLog>::default();
        let settler = Settler::start(&tools, stir.clone(), leases.clone(), outage.clone());
        let mut lanes = Lanes::new(&tools);
        lanes.refresh(&tools).await?;
        let (reading, expanding, templates) = Default::default();
        let latest = lanes.latest();
        let crew = Arc::new(Crew { tools, settler, leases, reading, expanding, templates, latest, stir, outage });
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
            unopened: vec![],
        })
    }

    /// Returns the counts of results so far.
    pub fn tally(&self) -> Arc<Tally> {
        self.crew.settler.tally()
    }

    /// Delivers until asked to stop, then finishes the sends in flight within the grace period.
    pub async fn run(mut self, mut stop: watch::Receiver<Stop>) {
        self.stop = Some(stop.clone());
        let bell = WakeUp::watch(&self.crew.tools.store);
        let renewing = leases::renew_forever(self.crew.tools.clone(), self.crew.leases.clone());
        let quiet = Arc::new(AtomicBool::new(false));
        let (tools, outage) = (&self.crew.tools, &self.crew.outage);
        tokio::spawn(duties::run_forever(tools.clone(), quiet.clone(), outage.clone()));
        tokio::spawn(failover::run_forever(self.crew.clone(), quiet.clone()));
        tokio::spawn(jobs::run_forever(tools.store.clone(), quiet.clone(), outage.clone()));
        let present = tokio::spawn(heartbeat::beat(self.crew.tools.store.clone(), self.worker, stop.clone()));
        self.crew.tools.metrics.dispatchers.add(1);
        while *stop.borrow() == Stop::No {
            self.refresh_when_due().await;
            match self.round(None).await {
                Ok(Looked::Began | Looked::Searching) => {}
                Ok(Looked::Full) => self.rest(&bell, &mut stop).await,
                // Under load the next commit comes within milliseconds. If the dispatcher went idle before it, every
                // producer would have to send NOTIFY.
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
                    self.crew.outage.failed(&problem, "could not claim deliveries from the queue; trying again");
                    tokio::time::sleep(jittered(self.interval())).await;
                }
            }
            // Without the settler no result is written, but leases are renewed forever. So the process must end.
            assert!(!self.crew.settler.is_gone(), "the task that writes results has ended; restart postcommit");
        }
        quiet.store(true, Ordering::Relaxed);
        self.drain(stop).await;
        self.crew.tools.metrics.dispatchers.add(-1);
        renewing.abort();
        // The wait has a limit: if the database is unreachable, the heartbeat expires by itself.
        let _ = tokio::time::timeout(FAREWELL, present).await;
    }

    /// Runs one bounded pass: over everything due now, or over one notification (tenant and id) whether due or not.
    /// Returns when no delivery that the pass began is in flight any more.
    pub async fn pass(&mut self, only: Option<(i32, Uuid)>) -> Result<(), DbError> {
        self.pass_until(only, None).await.map(drop)
    }

    /// Runs a pass over everything due now. It claims nothing more after `bound`. Returns true when due work may be
    /// left.
    pub async fn pass_for(&mut self, bound: Duration) -> Result<bool, DbError> {
        self.pass_until(None, Some(clock::monotonic() + bound)).await
    }

    async fn pass_until(&mut self, only: Option<(i32, Uuid)>, end: Option<Instant>) -> Result<bool, DbError> {
        if only.is_none() {
            self.crew.tools.store.note_pass().await?;
            self.note_unopened(Opener::Pass).await;
        }
        let renewing = leases::renew_forever(self.crew.tools.clone(), self.crew.leases.clone());
        let passed = self.claim_until_quiet(only, end).await;
        // This also runs after an error. Sends that have begun are finished, and unused permits are returned.
        self.finish_pass().await;
        renewing.abort();
        self.give_back_unused().await;
        passed
    }

    /// Claims until nothing is due and nothing is in flight. Returns true when the time `end` was reached before that.
    async fn claim_until_quiet(&mut self, only: Option<(i32, Uuid)>, end: Option<Instant>) -> Result<bool, DbError> {
        if let Some((tenant, id)) = only {
            self.crew.tools.store.bring_forward(tenant, id).await?;
        } else {
            jobs::run_due(&self.crew.tools.store, end).await;
            duties::run_due_receipts(&self.crew.tools).await;
        }
        // Work that becomes due during the pass, such as a retry, is left for the next pass. Otherwise a pass might
        // never end.
        let started = self.crew.tools.store.now().await?;
        // SQLite's clock counts milliseconds. Without this wait, a row that is put off to the current millisecond would
        // still count as due in this pass.
        tokio::time::sleep(TICK).await;
        loop {
            if end.is_some_and(|end| clock::monotonic() >= end) {
                return Ok(true);
            }
            // `quiet` is read before the check, because a send in flight may put a row into a lane after the check.
            let quiet = self.is_quiet();
            let looked = match only {
                None => self.round(Some(started)).await?,
                Some((tenant, id)) => self.round_of(tenant, id, started).await?,
            };
            match looked {
                Looked::Began | Looked::Searching => {}
                Looked::Nothing if quiet && (only.is_some() || failover::run_once(&self.crew).await? == 0) => {
                    return Ok(false);
                }
                // A freed slot ends this wait. The interval is the fallback, for results that waited for the database.
                Looked::Nothing | Looked::Full => {
                    let _ = tokio::time::timeout(self.interval(), self.crew.stir.notified()).await;
                }
            }
        }
    }

    /// Repeats the check of the queue until work is found or all lanes that have rows have been searched.
    async fn look_through(&mut self) -> Result<Looked, DbError> {
        loop {
            let looked = self.round(None).await?;
            if looked != Looked::Searching {
                return Ok(looked);
            }
        }
    }

    /// Waits until there may be work: a commit, a free slot, a due permit, the end of a deferred search, or the next
    /// poll. A request to stop ends the wait, too.
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

    /// Claims as much due work as the lanes have room for, and starts it.
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
        // The search only finds these lanes. A second claim takes from each of them what its free slots can start.
        if !beside.is_empty() {
            let more = self.lanes.wants_on(&beside, self.crew.tools.settings.batch);
            for (lease, wants) in more.by_lease {
                begun += self.claim(&wants, &Search::default(), lease, due_before, &mut beside).await?;
            }
            more.limited.into_iter().for_each(|(lease, wants)| limited.entry(lease).or_default().extend(wants));
        }
        // Work of rate-limited lanes does not count as load, so it does not end the idle state.
        let paced = self.round_of_limited(limited, due_before).await?;
        // A single notification does not end the idle state, because that would cost two writes for each notification
        // on a quiet day. More than one means load, and then producers should not have to send NOTIFY.
        if begun > 1 || (begun > 0 && self.busy) {
            self.awake().await;
        }
        let was_busy = std::mem::replace(&mut self.busy, begun > 0);
        if self.busy {
            self.worked_at = Some(clock::monotonic());
        }
        // Under load, some checks of the queue skip the search for other lanes. So one more check follows the last busy
        // one and starts a new search. A deferred search counts as over: nothing waits for it here.
        let is_over = self.lanes.is_through() || self.lanes.next_search_at().is_some();
        self.searching = begun + paced == 0 && !full && !was_busy && !is_over;
        Ok(match begun + paced {
            0 if full => Looked::Full,
            0 if was_busy || self.searching => Looked::Searching,
            0 => Looked::Nothing,
            _ => Looked::Began,
        })
    }

    /// Runs one claim and starts the claimed deliveries. Adds the lanes that the search found to `beside`. Returns how
    /// many deliveries were started.
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

    fn note_claim(&self, claim: &Claim) {
        self.crew.outage.worked();
        let metrics = &self.crew.tools.metrics;
        metrics.claims.add(1);
        metrics.claimed.add(claim.deliveries.len() as u64);
        metrics.looked_at.set(clock::now().as_micros() / 1000);
    }

    /// Claims the due deliveries of one notification and starts them.
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

    /// Takes slots for claimed deliveries and starts them. Deliveries that this process cannot serve go back to the
    /// queue. Returns how many were started.
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
            // The stop was requested during the claim, so nothing more is started.
            self.crew.settler.return_unbegun(deliveries);
            return Ok(0);
        }
        if let Err(problem) = self.lanes.catch_up(&self.crew.tools, providers).await {
            // The deliveries are returned now. Otherwise they would wait until their leases run out.
            self.crew.settler.return_unbegun(deliveries);
            return Err(problem);
        }
        let mut notes: Notes = notes.into_iter().map(|note| (note.id, Arc::new(note))).collect();
        let mut begun = 0;
        let mut by_lane: FastMap<i32, Vec<Delivery>> = FastMap::default();
        // The expansion rows of all tenants form one batch, so that one statement reads their notifications.
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
            // A separate task reads the notifications, so that the next claim does not wait for them.
            let known = if id == UNEXPANDED { std::mem::take(&mut notes) } else { Notes::default() };
            tokio::spawn(begin(self.crew.clone(), way, batch, known, clock));
        }
        Ok(begun)
    }

    /// Marks this dispatcher idle in the database, unless its mark is still fresh. Returns true when the queue must be
    /// checked once more, for commits between the last check and the mark.
    async fn fall_idle(&mut self) -> bool {
        const NAP: Duration = Duration::from_secs(60);
        let now = clock::monotonic();
        if self.idle_until.is_some_and(|until| until > now + NAP / 2) {
            return false;
        }
        match self.crew.tools.store.fall_idle(self.worker, NAP).await {
            Ok(()) => self.idle_until = Some(now + NAP),
            Err(problem) => tracing::debug!(%problem, "could not mark this dispatcher as idle; it continues to poll"),
        }
        self.idle_until.is_some()
    }

    async fn awake(&mut self) {
        if self.idle_until.take().is_some()
            && let Err(problem) = self.crew.tools.store.wake_up(self.worker).await
        {
            tracing::debug!(%problem, "could not mark this dispatcher as busy; its idle mark expires by itself");
        }
    }

    /// Reads the providers that other processes have changed, once per interval. Every claim checks for changes as
    /// well.
    async fn refresh_when_due(&mut self) {
        let now = clock::monotonic();
        if self.refreshed_at.is_some_and(|at| now.duration_since(at) < self.interval()) {
            return;
        }
        self.refreshed_at = Some(now);
        if let Err(problem) = self.refresh().await {
            let what = "could not read changed providers; the dispatcher uses the ones it knows";
            self.crew.outage.failed(&problem, what);
        }
        self.note_unopened(Opener::Worker(self.worker)).await;
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
                "the dispatcher stopped with sends in flight; when their leases expire, the guarantee of each provider \
                 decides whether they are sent again"
            );
        }
    }
}
