//! Keeps a lane or host closed in this process when its pause or hold could not be written. The write is repeated until
//! it succeeds. So a failed write of our own does not lead to another send (docs/decisions/0027).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use postcommit_channel::clock;
use postcommit_channel::model::Provider;
use tokio::sync::Notify;

use super::backoff::{self, Backoff};
use crate::db::DbError;
use crate::store::{CloseOutcome as Written, Store};

/// The longest wait before the write is repeated.
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// Within this time every process has read that a lane is paused.
const HEARD: Duration = Duration::from_secs(60);
/// Within this time a process that claims has read the present state of a lane.
const READ: Duration = Duration::from_secs(1);

/// A pause or hold that a provider's answer asks for, for the whole lane or host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CloseDemand {
    /// Pause the lane or host. Contains the reason.
    Pause(String),
    /// Send nothing for the duration, which begins at the instant.
    Hold(Instant, Duration),
    /// Send nothing for the time `wait` from `since` on, because the breaker tripped.
    Trip { since: Instant, wait: Duration, trips: i32, why: String },
}

impl CloseDemand {
    pub fn hold(wait: Duration) -> Self {
        Self::Hold(clock::monotonic(), wait)
    }

    /// A hold because the breaker tripped. `trips` is the number of earlier trips.
    pub fn trip(wait: Duration, trips: i32, why: String) -> Self {
        Self::Trip { since: clock::monotonic(), wait, trips, why }
    }

    /// Returns how much of the hold is left. `None` for a pause, which has no end.
    fn left(&self) -> Option<Duration> {
        match self {
            Self::Pause(_) => None,
            Self::Hold(since, wait) | Self::Trip { since, wait, .. } => Some(wait.saturating_sub(since.elapsed())),
        }
    }

    /// Writes the pause or hold for one host of the lane.
    pub async fn write_of_host(&self, store: &Store, provider: &Provider, host: &str) -> Result<Written, DbError> {
        let (lane, revision) = (provider.id, Some(provider.revision));
        match (self, self.left()) {
            (_, Some(Duration::ZERO)) => Ok(Written::Already),
            (Self::Trip { trips, why, .. }, Some(left)) => {
                store.trip_host((lane, host), revision, (*trips, left, why)).await
            }
            (Self::Pause(why), _) => store.pause_host(lane, host, revision, why).await,
            (_, left) => store.hold_host(lane, host, revision, left.unwrap_or_default()).await,
        }
    }

    /// Writes the pause or hold for the lane, unless the provider was changed or resumed since. Returns false when
    /// nothing had to be written.
    pub async fn write(&self, store: &Store, provider: &Provider) -> Result<bool, DbError> {
        let (lane, revision) = (provider.id, Some(provider.revision));
        match (self, self.left()) {
            (_, Some(Duration::ZERO)) => Ok(false),
            (Self::Trip { trips, why, .. }, Some(left)) => store.trip_lane(lane, revision, (*trips, left, why)).await,
            (Self::Pause(why), _) => match store.pause_lane(lane, revision, why).await? {
                true => Ok(true),
                false => is_closed_by_others(store, provider).await,
            },
            (_, left) => store.hold_lane(lane, revision, left.unwrap_or_default()).await,
        }
    }

    /// Returns the stronger of two demands. A pause is stronger than any hold, and a hold that ends later is stronger.
    fn or(self, other: Self) -> Self {
        match (self.left(), other.left()) {
            (None, _) => self,
            (_, None) => other,
            (Some(left), Some(longer)) => {
                if left >= longer {
                    self
                } else {
                    other
                }
            }
        }
    }
}

/// Checks why the write of a pause changed nothing. Returns `Ok` when another process has paused or changed the lane.
/// Otherwise the write has failed, for example because a trigger in the database suppressed it.
async fn is_closed_by_others(store: &Store, provider: &Provider) -> Result<bool, DbError> {
    match store.provider(provider.tenant, &provider.name).await? {
        Some(now) if now.id == provider.id && now.revision == provider.revision && now.paused.is_none() => {
            Err(DbError::Refused {
                code: "unwritten".into(),
                message: "the database accepted the pause of the provider, but changed no row".into(),
            })
        }
        _ => Ok(false),
    }
}

/// Whether a lane or host is closed in this process, regardless of its state in the database.
#[derive(Default)]
pub struct LocalClose {
    /// Whether a pause or hold could not be written yet. Read for every lane at every claim.
    is_unwritten: AtomicBool,
    backoff: Backoff,
    state: Mutex<CloseState>,
    /// The host that is closed. `None` for the whole lane.
    host: Option<Arc<str>>,
    /// Whether a pause or hold was written and may still be in force. Read before every send.
    is_closed: AtomicBool,
}

#[derive(Default)]
struct CloseState {
    demand: Option<CloseDemand>,
    /// Whether a task of this process repeats the write.
    is_tried: bool,
    /// When a written hold ends, or when this process has certainly read a written pause.
    closed_until: Option<Instant>,
}

impl LocalClose {
    pub fn of_host(host: Arc<str>) -> Self {
        Self { host: Some(host), ..Self::default() }
    }

    async fn write(&self, demand: &CloseDemand, store: &Store, provider: &Provider) -> Result<(), DbError> {
        match &self.host {
            Some(host) => demand.write_of_host(store, provider, host).await.map(drop),
            None => demand.write(store, provider).await.map(drop),
        }
    }

    pub fn is_unwritten(&self) -> bool {
        self.is_unwritten.load(Ordering::Acquire)
    }

    /// Returns the shortest time for which the lane stays closed because of an unwritten demand. `None` if there is
    /// none.
    pub fn time_left(&self) -> Option<Duration> {
        self.is_unwritten().then(|| self.backoff.left().max(backoff::FIRST))
    }

    /// Closes the lane or host in this process until the pause or hold is written, and starts the task that writes it.
    pub fn close_until_written(
        self: &Arc<Self>,
        store: &Store,
        stir: &Arc<Notify>,
        provider: &Provider,
        demand: CloseDemand,
    ) {
        let mut state = self.lock();
        state.demand = Some(match state.demand.take() {
            Some(known) => known.or(demand),
            None => demand,
        });
        self.backoff.wait_up_to(LONGEST_WAIT);
        self.is_unwritten.store(true, Ordering::Release);
        if !std::mem::replace(&mut state.is_tried, true) {
            tokio::spawn(try_again(Arc::downgrade(self), store.clone(), stir.clone(), provider.clone()));
        }
    }

    /// Ends the closing for an unwritten demand, because a demand was written or is outdated. A pause that is still
    /// unwritten keeps the lane closed.
    pub fn open(&self, written: &CloseDemand) {
        let mut state = self.lock();
        if matches!(state.demand, Some(CloseDemand::Pause(_))) && !matches!(written, CloseDemand::Pause(_)) {
            return;
        }
        state.demand = None;
        self.backoff.reset();
        self.is_unwritten.store(false, Ordering::Release);
    }

    /// Records that the demand is written, so that claims find the lane closed. Deliveries that were claimed earlier must
    /// not begin either, so the lane stays closed in this process for a time.
    pub fn note_written(&self, written: &CloseDemand) {
        self.close(written);
        self.open(written);
    }

    /// Closes the lane or host in this process for as long as the demand lasts. If it is already closed for longer, the
    /// later end stays. Returns the previous end.
    pub fn close(&self, written: &CloseDemand) -> Option<Instant> {
        let closed_for = written.left().unwrap_or(HEARD);
        // This process soon reads from the database that the host is closed. The local close bridges only the time
        // until then.
        let closed_for = if self.host.is_some() { closed_for.min(HEARD) } else { closed_for };
        let closed_until = clock::monotonic().checked_add(closed_for);
        let mut state = self.lock();
        let before = state.closed_until;
        state.closed_until = closed_until.max(before);
        self.is_closed.store(true, Ordering::Release);
        before
    }

    /// Ends a close whose demand was not written, because another process changed the lane first. Sends still wait
    /// until this process has read that change, and until `before`, the end of an earlier close.
    pub fn close_until_read(&self, before: Option<Instant>) {
        self.lock().closed_until = clock::monotonic().checked_add(READ).max(before);
    }

    /// Returns whether a written pause or hold is still in force, as far as this process knows.
    pub fn is_closed(&self) -> bool {
        if !self.is_closed.load(Ordering::Acquire) {
            return false;
        }
        let is_over = self.lock().closed_until.is_some_and(|end| end <= clock::monotonic());
        if is_over {
            self.is_closed.store(false, Ordering::Release);
        }
        !is_over
    }

    /// Returns the wait before the next try. `None` when nothing is left to write.
    fn wait(&self) -> Option<Duration> {
        let mut state = self.lock();
        state.is_tried = state.demand.is_some();
        state.is_tried.then(|| self.backoff.left())
    }

    fn lock(&self) -> MutexGuard<'_, CloseState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Repeats the write until it succeeds or nothing is left to write, for example because the provider was changed.
async fn try_again(shut: Weak<LocalClose>, store: Store, stir: Arc<Notify>, provider: Provider) {
    while let Some(wait) = shut.upgrade().and_then(|shut| shut.wait()) {
        tokio::time::sleep(wait).await;
        let Some(shut) = shut.upgrade() else { return };
        let Some(demand) = shut.lock().demand.clone() else { continue };
        match shut.write(&demand, &store, &provider).await {
            Ok(()) => {
                tracing::warn!(
                    provider = provider.name,
                    ?demand,
                    "the pause or hold of the provider or host is now in the database, after earlier writes had failed"
                );
                shut.note_written(&demand);
                stir.notify_one();
            }
            Err(problem) => {
                let wait = shut.backoff.wait_up_to(LONGEST_WAIT);
                tracing::error!(
                    %problem, provider = provider.name, ?wait,
                    "still could not write to the database that the provider or host is paused or on hold; this \
                     process sends nothing there and repeats the write after the wait"
                );
            }
        }
    }
}
