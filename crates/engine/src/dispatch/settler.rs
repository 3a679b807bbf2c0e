//! The settler writes the results of all lanes in batches. While one batch is written, the next one is collected. No
//! timer decides how large a batch gets.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use postcommit::Timestamp;
use postcommit_channel::model::{Delivery, DeliveryKey, ErrorClass, Evidence, Finish, FinishedState, Reason};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;

use super::Tools;
use super::leases::Leases;
use super::outage::OutageLog;
use super::parked_log::{About, is_parked};
use crate::db::{DbError, postgres};
use crate::metrics::{Counts, Metrics};
use crate::store::{Attempted, Lease, Place, Settled, Settlement, Store};

/// The most results that one statement writes.
const BATCH: usize = 1000;
/// The most settle statements in flight.
const WRITERS: usize = 2;
/// The most unwritten results of sends: as many as the statements in flight can write.
const ROOM: usize = WRITERS * BATCH;
/// The wait before a refused result is written again. It doubles with each further refusal.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// The longest wait before a refused result is written again.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// The longest wait between writes while the database is unreachable. It is short because the database may return at
/// any moment.
const WHILE_AWAY: Duration = Duration::from_secs(2);

/// Results written so far, by outcome.
#[derive(Debug, Default)]
pub struct Tally {
    /// Deliveries that were sent or delivered.
    pub sent: AtomicU64,
    /// Attempts that failed and will be repeated.
    pub again: AtomicU64,
    /// Deliveries that were parked.
    pub parked: AtomicU64,
    /// Deliveries that expired, were cancelled or were skipped.
    pub dropped: AtomicU64,
    /// Results whose lease had passed to another worker.
    pub stale: AtomicU64,
}

/// A result that is not written yet.
struct PendingResult {
    settlement: Settlement,
    room: Option<OwnedSemaphorePermit>,
    /// `None` for a delivery that was returned without an attempt.
    noted: Option<Noted>,
}

/// The metrics that count a result, and the details for the log if the delivery is parked.
#[derive(Clone)]
pub struct Noted {
    counts: Arc<Counts>,
    about: Option<Box<About>>,
}

impl Noted {
    pub fn new(counts: Arc<Counts>, finish: Finish, about: impl FnOnce() -> About) -> Self {
        Self { counts, about: is_parked(finish).then(|| Box::new(about())) }
    }
}

/// State about results that are known and not written.
#[derive(Default)]
struct Unwritten {
    /// Whether the last write found the database unreachable.
    is_away: AtomicBool,
    /// How many results the database refused. They are kept and written again.
    refused: AtomicUsize,
}

/// Accepts results from all tasks and hands them to the writing task.
#[derive(Clone)]
pub struct Settler {
    results: mpsc::UnboundedSender<PendingResult>,
    room: Arc<Semaphore>,
    tally: Arc<Tally>,
    metrics: Metrics,
    unwritten_results: Arc<Unwritten>,
}

impl Settler {
    pub fn start(tools: &Tools, stir: Arc<Notify>, leases: Arc<Leases>, outage: Arc<OutageLog>) -> Self {
        let (store, metrics) = (tools.store.clone(), tools.metrics.clone());
        let (results, received) = mpsc::unbounded_channel();
        let tally = Arc::new(Tally::default());
        let unwritten_results = Arc::<Unwritten>::default();
        let writer = ResultWriter {
            store,
            stir,
            leases,
            outage,
            tally: tally.clone(),
            metrics: metrics.clone(),
            unwritten_results: unwritten_results.clone(),
        };
        tokio::spawn(write_all(Arc::new(writer), received));
        Self { results, room: Arc::new(Semaphore::new(ROOM)), tally, metrics, unwritten_results }
    }

    pub fn tally(&self) -> Arc<Tally> {
        self.tally.clone()
    }

    /// Returns whether the writing task has ended. That is a bug, and the dispatcher then ends the process.
    pub fn is_gone(&self) -> bool {
        self.results.is_closed()
    }

    /// Returns whether nothing more should be claimed. While results cannot be written, a new claim might take over an
    /// expired lease of this same process.
    pub fn is_behind(&self) -> bool {
        self.unwritten_results.is_away.load(Ordering::Relaxed) || self.unwritten() >= ROOM
    }

    /// Returns how many results the database refused. This process keeps them and writes them again.
    pub fn unwritten(&self) -> usize {
        self.unwritten_results.refused.load(Ordering::Relaxed)
    }

    /// Counts a delivery that ended at expansion, without an attempt.
    pub fn count_ended(&self, delivery: DeliveryKey, state: FinishedState, code: &str, noted: &Noted) {
        noted.counts.ended(state);
        let counter = match state {
            FinishedState::Parked(reason) => {
                noted.about.iter().for_each(|about| about.warn(delivery, reason, Some(code)));
                &self.tally.parked
            }
            _ => &self.tally.dropped,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until there is room for one more unwritten result. So sends stop while results cannot be written.
    pub async fn room(&self) -> Option<OwnedSemaphorePermit> {
        self.room.clone().acquire_owned().await.ok()
    }

    /// Accepts a result to be written. Only a result of an attempt takes room. The number of other results is bounded
    /// by the number of claimed deliveries.
    pub fn settle(&self, settlement: Settlement, room: Option<OwnedSemaphorePermit>, noted: Option<Noted>) {
        // The receiver lives as long as the process. If it is gone, no task needs the result.
        let _ = self.results.send(PendingResult { settlement, room, noted });
    }

    /// Gives claimed deliveries back to the queue. No send of them has begun.
    pub fn return_unbegun(&self, deliveries: impl IntoIterator<Item = Delivery>) {
        for delivery in deliveries {
            self.settle(unbegun(&delivery, Finish::Returned, None, None), None, None);
        }
    }

    /// Gives claimed deliveries back to the queue, due again at `at`. Used when a delivery could not begin because of a
    /// failure of our own, such as a failed read.
    pub fn put_off(&self, leases: impl IntoIterator<Item = Lease>, at: Timestamp) {
        for lease in leases {
            self.settle(Settlement::unbegun(lease, Finish::Again { at, counted: false }), None, None);
        }
    }

    /// Parks a delivery whose notification is purged or unreadable.
    pub fn orphan(&self, delivery: &Delivery) {
        let finish = Finish::Ended(FinishedState::Parked(Reason::Config));
        let detail = "the notification was purged or cannot be read; see the log of the server";
        let unclear = delivery.unclear || delivery.lost_since.is_some();
        let counts = self.metrics.of("unknown", delivery.facts.channel());
        let settlement = unbegun(delivery, finish, Some("notification_unreadable"), Some(detail.into()));
        let noted = Noted::new(counts, finish, || About::orphan(delivery));
        self.settle(Settlement { unclear, ..settlement }, None, Some(noted));
    }
}

/// Builds a settlement without an attempt.
pub fn unbegun(delivery: &Delivery, finish: Finish, code: Option<&str>, detail: Option<String>) -> Settlement {
    let of_delivery = Settlement::unbegun(Lease::of(delivery), finish);
    // A delivery that is returned keeps its row as it was.
    let place = place_of(delivery).filter(|_| finish != Finish::Returned);
    Settlement {
        place,
        code: code.map(str::to_owned),
        class: code.and_then(ErrorClass::of_code),
        detail,
        ..of_delivery
    }
}

/// For a delivery that is sent from its notification's row, returns the content that its own row would have. Otherwise
/// returns `None`.
pub fn place_of(delivery: &Delivery) -> Option<Place> {
    let place = || Place { n: delivery.key.n, lane: delivery.lane, facts: delivery.facts.clone() };
    (delivery.row != delivery.key.n).then(place)
}

/// State that the writing tasks share.
struct ResultWriter {
    store: Store,
    stir: Arc<Notify>,
    leases: Arc<Leases>,
    outage: Arc<OutageLog>,
    tally: Arc<Tally>,
    metrics: Metrics,
    unwritten_results: Arc<Unwritten>,
}

/// Writes one batch while the next one is collected. A second write starts in parallel when half a batch has been
/// collected, so that the database is not idle while a commit waits for the disk.
async fn write_all(writer: Arc<ResultWriter>, mut received: mpsc::UnboundedReceiver<PendingResult>) {
    let (mut gathered, mut writing, mut open) = (Vec::new(), JoinSet::new(), true);
    while open || !gathered.is_empty() || !writing.is_empty() {
        let worth_a_write = if writing.is_empty() { 1 } else { BATCH / 2 };
        if writing.len() < WRITERS && gathered.len() >= worth_a_write {
            gather_the_rest(&mut received, &mut gathered).await;
            let batch = std::mem::replace(&mut gathered, Vec::with_capacity(BATCH));
            writing.spawn(writer.clone().write(ResultBatch::of(batch)));
            continue;
        }
        let room = BATCH - gathered.len();
        tokio::select! {
            more = received.recv_many(&mut gathered, room), if open && room > 0 => open = more > 0,
            Some(_) = writing.join_next() => {}
        }
    }
}

/// Takes more results until no new ones arrive or the batch is full. Results come in bursts, and the first result of a
/// burst should not be written alone.
async fn gather_the_rest(received: &mut mpsc::UnboundedReceiver<PendingResult>, gathered: &mut Vec<PendingResult>) {
    loop {
        tokio::task::yield_now().await;
        let before = gathered.len();
        while gathered.len() < BATCH
            && let Ok(one) = received.try_recv()
        {
            gathered.push(one);
        }
        if gathered.len() == before || gathered.len() >= BATCH {
            return;
        }
    }
}

/// Results that one statement writes.
struct ResultBatch {
    settlements: Arc<[Settlement]>,
    noted: Vec<Option<Noted>>,
    /// Released when the results are written. Until then they still count against the limit of unwritten results.
    room: Vec<Option<OwnedSemaphorePermit>>,
}

impl ResultBatch {
    fn of(gathered: Vec<PendingResult>) -> Self {
        let room_for = gathered.len();
        let (mut settlements, mut noted, mut room) =
            (Vec::with_capacity(room_for), Vec::with_capacity(room_for), Vec::with_capacity(room_for));
        for result in gathered {
            settlements.push(result.settlement);
            noted.push(result.noted);
            room.push(result.room);
        }
        Self { settlements: settlements.into(), noted, room }
    }

    /// Splits the batch into batches of one result.
    fn split(self) -> impl Iterator<Item = Self> {
        let Self { settlements, noted, room } = self;
        let parts = noted.into_iter().zip(room).enumerate();
        parts.map(move |(place, (noted, room))| Self {
            settlements: [settlements[place].clone()].into(),
            noted: vec![noted],
            room: vec![room],
        })
    }

    /// Returns the results without the provider's texts. A text that the database refuses must not prevent the
    /// delivery's state from being written. `None` if no result has a text.
    fn without_texts(&self) -> Option<Arc<[Settlement]>> {
        let has_texts = |s: &Settlement| {
            s.detail.is_some()
                || s.attempt.as_ref().is_some_and(|a| a.evidence.excerpt.is_some() || a.evidence.provider_ref.is_some())
        };
        let without = |s: &Settlement| {
            let attempt = s.attempt.clone().map(|attempt| Attempted { evidence: Evidence::default(), ..attempt });
            Settlement { detail: None, attempt, ..s.clone() }
        };
        self.settlements.iter().any(has_texts).then(|| self.settlements.iter().map(without).collect())
    }
}

impl ResultWriter {
    /// Writes one batch, and repeats it as long as the database is unreachable. Meanwhile nothing more is claimed. If
    /// the database refuses the batch, each result is written alone. A result that is refused alone is kept and does
    /// not delay other results.
    async fn write(self: Arc<Self>, batch: ResultBatch) {
        self.metrics.settled(batch.settlements.len());
        let mut wait = Duration::from_millis(50);
        loop {
            match self.settle(batch.settlements.clone()).await {
                Ok(settled) => return self.done(&batch, &settled.stale),
                // Another transaction holds the lock of one row. It must not delay the other results.
                Err(problem) if postgres::is_held(&problem) && batch.settlements.len() > 1 => {
                    tracing::warn!(
                        %problem, results = batch.settlements.len(),
                        "a row of this batch is locked by another transaction; the results are written one at a time"
                    );
                    return self.write_each(batch).await;
                }
                Err(problem @ DbError::Unreachable(_)) if !postgres::is_held(&problem) => {
                    self.outage.failed(&problem, "could not write the results of sends to the database; trying again");
                }
                Err(problem) if batch.settlements.len() == 1 => return self.keep(batch, &problem),
                Err(problem) => {
                    tracing::error!(
                        %problem,
                        "the database refused a batch of results of sends; the results are written one at a time"
                    );
                    return self.write_each(batch).await;
                }
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(WHILE_AWAY);
        }
    }

    async fn write_each(self: Arc<Self>, batch: ResultBatch) {
        for one in batch.split() {
            match self.settle(one.settlements.clone()).await {
                Ok(settled) => self.done(&one, &settled.stale),
                Err(problem) => self.keep(one, &problem),
            }
        }
    }

    /// Writes results in one statement. A panic would end all writing in this process, so it is caught and handled like
    /// a refusal by the database.
    async fn settle(&self, settlements: Arc<[Settlement]>) -> Result<Settled, DbError> {
        let settled = AssertUnwindSafe(self.store.settle(settlements)).catch_unwind().await;
        let settled = settled.unwrap_or_else(|_panic| {
            Err(DbError::Refused {
                code: "panic".into(),
                message: "the code that writes the results of sends panicked; report it as a bug".into(),
            })
        });
        let is_away = settled
            .as_ref()
            .is_err_and(|problem| matches!(problem, DbError::Unreachable(_)) && !postgres::is_held(problem));
        self.unwritten_results.is_away.store(is_away, Ordering::Relaxed);
        settled
    }

    /// Keeps a refused result and writes it again and again, as long as the process lives. Only this process knows the
    /// result of the send. If the result were dropped, the delivery would be sent again.
    fn keep(self: &Arc<Self>, one: ResultBatch, problem: &DbError) {
        let delivery = one.settlements[0].key().id();
        tracing::error!(
            %problem, %delivery,
            "the database refused the result of a send; this process keeps the result and writes it again after a wait"
        );
        self.metrics.unwritten.add(1);
        self.unwritten_results.refused.fetch_add(1, Ordering::Relaxed);
        tokio::spawn(self.clone().keep_writing(one));
    }

    async fn keep_writing(self: Arc<Self>, one: ResultBatch) {
        let mut wait = FIRST_WAIT;
        loop {
            tokio::time::sleep(wait).await;
            match self.settle_somehow(&one).await {
                Ok(settled) => {
                    self.metrics.unwritten.add(-1);
                    self.unwritten_results.refused.fetch_sub(1, Ordering::Relaxed);
                    return self.done(&one, &settled.stale);
                }
                Err(DbError::Unreachable(_)) => wait = WHILE_AWAY,
                Err(problem) => {
                    let longer = (wait * 2).min(LONGEST_WAIT);
                    if longer > wait {
                        tracing::error!(
                            %problem, delivery = %one.settlements[0].key().id(), next = ?longer,
                            "the database still refuses the result of a send; this process keeps the result and tries \
                             again"
                        );
                    }
                    wait = longer;
                }
            }
        }
    }

    async fn settle_somehow(&self, one: &ResultBatch) -> Result<Settled, DbError> {
        let problem = match self.settle(one.settlements.clone()).await {
            Err(problem @ DbError::Refused { .. }) => problem,
            other => return other,
        };
        let Some(bare) = one.without_texts() else { return Err(problem) };
        let settled = self.settle(bare).await?;
        tracing::warn!(
            %problem, delivery = %one.settlements[0].key().id(),
            "the database refused the result of a send; the result was written without the texts of the provider's \
             answer"
        );
        Ok(settled)
    }

    fn done(&self, batch: &ResultBatch, stale: &[DeliveryKey]) {
        self.count(&batch.settlements, &batch.noted, stale);
        self.leases.release_all(batch.settlements.iter().map(|settlement| &settlement.lease));
        self.stir.notify_one();
    }

    fn count(&self, batch: &[Settlement], noted: &[Option<Noted>], stale: &[DeliveryKey]) {
        for (settlement, noted) in batch.iter().zip(noted) {
            if stale.contains(&settlement.lease.key) {
                tracing::warn!(
                    delivery = %settlement.key().id(),
                    "the result of a send came after the lease of its delivery had gone to another worker; the \
                     delivery is not changed"
                );
                self.metrics.stale_settles.add(1);
                self.tally.stale.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            if let Some(noted) = noted {
                self.measure(settlement, noted);
            }
            if let Some(counter) = self.tally_of(settlement) {
                counter.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn measure(&self, settlement: &Settlement, noted: &Noted) {
        let counts = &noted.counts;
        if let (Finish::Ended(FinishedState::Parked(reason)), Some(about)) = (settlement.finish, &noted.about) {
            about.warn(settlement.key(), reason, settlement.code.as_deref());
        }
        let outcome = settlement.attempt.as_ref().map(|attempt| attempt.outcome);
        outcome.into_iter().for_each(|outcome| counts.attempt(outcome, settlement.class));
        match settlement.finish {
            Finish::Ended(state) => counts.ended(state),
            Finish::Again { .. } if outcome == Some("unclear") => self.metrics.possible_duplicates.add(1),
            Finish::Again { .. } | Finish::Returned => {}
        }
    }

    fn tally_of(&self, settlement: &Settlement) -> Option<&AtomicU64> {
        match settlement.finish {
            Finish::Ended(FinishedState::Sent | FinishedState::Delivered) => Some(&self.tally.sent),
            Finish::Ended(FinishedState::Parked(_)) => Some(&self.tally.parked),
            Finish::Ended(_) => Some(&self.tally.dropped),
            // Deliveries that are put off without an attempt are not counted, because one host may have thousands of
            // them.
            Finish::Again { .. } if settlement.attempt.is_none() => None,
            Finish::Again { at, .. } => {
                tracing::info!(
                    delivery = %settlement.key().id(), code = settlement.code.as_deref(), next = %at,
                    "an attempt failed; the delivery is tried again later"
                );
                Some(&self.tally.again)
            }
            Finish::Returned => None,
        }
    }
}
