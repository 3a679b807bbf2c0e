//! A lane or host whose pause or hold could not be written. It stays closed in this process, and the write is repeated
//! until it succeeds: a failed write of our own must not lead to another send (docs/decisions/0027).

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

/// What an answer demands for its whole lane or host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CloseDemand {
    /// A pause, with the reason.
    Pause(String),
    /// A hold from that moment on, for that long.
    Hold(Instant, Duration),
}

impl CloseDemand {
    pub fn hold(wait: Duration) -> Self {
        Self::Hold(clock::monotonic(), wait)
    }

    /// Writes the demand for one host of the lane.
    pub async fn write_of_host(&self, store: &Store, provider: &Provider, host: &str) -> Result<Written, DbError> {
        let (lane, revision) = (provider.id, Some(provider.revision));
        match self {
            Self::Pause(why) => store.pause_host(lane, host, revision, why).await,
            Self::Hold(since, wait) => match wait.saturating_sub(since.elapsed()) {
                Duration::ZERO => Ok(Written::Already),
                left => store.hold_host(lane, host, revision, left).await,
            },
        }
    }

    /// Writes the demand unless the provider was changed or resumed since. Returns false when nothing had to be
    /// written.
    pub async fn write(&self, store: &Store, provider: &Provider) -> Result<bool, DbError> {
        let (lane, revision) = (provider.id, Some(provider.revision));
        match self {
            Self::Pause(why) => match store.pause_lane(lane, revision, why).await? {
                true => Ok(true),
                false => is_closed_by_others(store, provider).await,
            },
            Self::Hold(since, wait) => match wait.saturating_sub(since.elapsed()) {
                Duration::ZERO => Ok(false),
                left => store.hold_lane(lane, revision, left).await.map(|()| true),
            },
        }
    }

    /// The stronger of two demands: a pause outlasts every hold.
    fn or(self, other: Self) -> Self {
        match (&self, &other) {
            (Self::Pause(_), _) => self,
            (_, Self::Pause(_)) => other,
            (Self::Hold(one, long), Self::Hold(two, longer)) => {
                if long.saturating_sub(one.elapsed()) >= longer.saturating_sub(two.elapsed()) { self } else { other }
            }
        }
    }
}

/// Returns `Ok` when another process has paused or changed the lane. A write that changed nothing without such a reason
/// has failed: a foreign trigger may have swallowed it.
async fn is_closed_by_others(store: &Store, provider: &Provider) -> Result<bool, DbError> {
    match store.provider(provider.tenant, &provider.name).await? {
        Some(now) if now.id == provider.id && now.revision == provider.revision && now.paused.is_none() => {
            Err(DbError::Refused {
                code: "unwritten".into(),
                message: "the database took the pause and changed nothing".into(),
            })
        }
        _ => Ok(false),
    }
}

/// Whether a lane or host is closed in this process, whatever the database says about it.
#[derive(Default)]
pub struct LocalClose {
    /// Read for every lane at every claim.
    is_unwritten: AtomicBool,
    backoff: Backoff,
    state: Mutex<CloseState>,
    /// The host; `None` for the whole lane.
    host: Option<Arc<str>>,
    /// A pause or hold of the lane is written. Read before every send.
    is_closed: AtomicBool,
}

#[derive(Default)]
struct CloseState {
    demand: Option<CloseDemand>,
    /// A task of this process repeats the write.
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

    /// The shortest time for which the lane stays closed. `None` while it is open.
    pub fn time_left(&self) -> Option<Duration> {
        self.is_unwritten().then(|| self.backoff.left().max(backoff::FIRST))
    }

    /// Closes the lane until the demand is written.
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

    /// The demand is written or outdated. A pause that is still unwritten keeps the lane closed.
    pub fn open(&self, written: &CloseDemand) {
        let mut state = self.lock();
        if matches!((&state.demand, written), (Some(CloseDemand::Pause(_)), CloseDemand::Hold(..))) {
            return;
        }
        state.demand = None;
        self.backoff.reset();
        self.is_unwritten.store(false, Ordering::Release);
    }

    /// The demand is written, so a claim finds the lane closed. Deliveries that were claimed before must not begin
    /// either.
    pub fn note_written(&self, written: &CloseDemand) {
        let mut state = self.lock();
        state.closed_until = match written {
            CloseDemand::Pause(_) => clock::monotonic().checked_add(HEARD),
            CloseDemand::Hold(since, wait) => since.checked_add(*wait),
        };
        self.is_closed.store(true, Ordering::Release);
    }

    /// Whether a written pause or hold still stands, as far as this process knows.
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

    /// The wait before the next try; `None` when nothing is left to write.
    fn wait(&self) -> Option<Duration> {
        let mut state = self.lock();
        state.is_tried = state.demand.is_some();
        state.is_tried.then(|| self.backoff.left())
    }

    fn lock(&self) -> MutexGuard<'_, CloseState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Repeats the write until it succeeds or the provider changes.
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
                    "the pause or hold of the lane or host is now written"
                );
                shut.open(&demand);
                stir.notify_one();
            }
            Err(problem) => {
                let wait = shut.backoff.wait_up_to(LONGEST_WAIT);
                tracing::error!(%problem, provider = provider.name, ?wait, "still could not write the pause or hold; the lane or host stays closed in this process");
            }
        }
    }
}
