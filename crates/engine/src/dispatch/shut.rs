//! A lane, or a host of one, whose pause or hold could not be written. It stays shut in this process, and the write is tried again until it succeeds: our own failure must not
//! become another send (docs/decisions/0027).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::clock;
use crate::db::DbError;
use crate::model::Provider;
use crate::store::{Shut as Written, Store};

/// The wait before the write is tried again; it doubles with each failure.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// The longest such wait.
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// What an answer demands of its whole lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Demand {
    /// The lane is to be paused, for this reason.
    Pause(String),
    /// The lane is to be held for so long from then on.
    Hold(Instant, Duration),
}

impl Demand {
    pub fn hold(wait: Duration) -> Self {
        Self::Hold(clock::monotonic(), wait)
    }

    /// Writes it for one host of the lane.
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

    /// Writes it, unless the provider was changed or resumed since. False when nothing had to be written.
    pub async fn write(&self, store: &Store, provider: &Provider) -> Result<bool, DbError> {
        let (lane, revision) = (provider.id, Some(provider.revision));
        match self {
            Self::Pause(why) => store.pause_lane(lane, revision, why).await,
            Self::Hold(since, wait) => match wait.saturating_sub(since.elapsed()) {
                Duration::ZERO => Ok(false),
                left => store.hold_lane(lane, revision, left).await.map(|()| true),
            },
        }
    }

    /// The stronger of two: a pause outlasts every hold.
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

/// Whether a lane or a host of one is shut in this process, whatever the database says of it.
#[derive(Default)]
pub struct Shut {
    /// Read for every lane at every claim.
    is_shut: AtomicBool,
    state: Mutex<State>,
    /// The host that it is about; none: the whole lane.
    host: Option<Arc<str>>,
}

#[derive(Default)]
struct State {
    demand: Option<Demand>,
    /// Failures in a row, not counting those of one wait twice.
    failures: u32,
    next_try: Option<Instant>,
    /// A task of this process tries again.
    is_tried: bool,
}

impl Shut {
    pub fn of_host(host: Arc<str>) -> Self {
        Self { host: Some(host), ..Self::default() }
    }

    async fn write(&self, demand: &Demand, store: &Store, provider: &Provider) -> Result<(), DbError> {
        match &self.host {
            Some(host) => demand.write_of_host(store, provider, host).await.map(drop),
            None => demand.write(store, provider).await.map(drop),
        }
    }

    pub fn is_shut(&self) -> bool {
        self.is_shut.load(Ordering::Acquire)
    }

    /// How long the lane stays shut at least. None while it is open.
    pub fn time_left(&self) -> Option<Duration> {
        if !self.is_shut() {
            return None;
        }
        let left = self.lock().next_try.map(|at| at.saturating_duration_since(clock::monotonic()));
        Some(left.unwrap_or_default().max(FIRST_WAIT))
    }

    /// Shuts the lane until the demand is written.
    pub fn shut(self: &Arc<Self>, store: &Store, stir: &Arc<Notify>, provider: &Provider, demand: Demand) {
        let mut state = self.lock();
        state.demand = Some(match state.demand.take() {
            Some(known) => known.or(demand),
            None => demand,
        });
        state.fail();
        self.is_shut.store(true, Ordering::Release);
        if !std::mem::replace(&mut state.is_tried, true) {
            tokio::spawn(try_again(Arc::downgrade(self), store.clone(), stir.clone(), provider.clone()));
        }
    }

    /// This demand is written, or is none any more. A pause that still waits to be written keeps the lane shut.
    pub fn open(&self, written: &Demand) {
        let mut state = self.lock();
        if matches!((&state.demand, written), (Some(Demand::Pause(_)), Demand::Hold(..))) {
            return;
        }
        (state.demand, state.failures, state.next_try) = (None, 0, None);
        self.is_shut.store(false, Ordering::Release);
    }

    /// How long until the next try; none when there is nothing to try any more.
    fn wait(&self) -> Option<Duration> {
        let mut state = self.lock();
        state.is_tried = state.demand.is_some();
        let next = state.next_try.filter(|_| state.is_tried);
        next.map(|at| at.saturating_duration_since(clock::monotonic()))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn fail(&mut self) {
        let now = clock::monotonic();
        if self.next_try.is_none_or(|at| at <= now) {
            let wait = FIRST_WAIT.saturating_mul(1 << self.failures.min(16)).min(LONGEST_WAIT);
            self.next_try = Some(now + wait);
            self.failures += 1;
        }
    }
}

/// Tries to write what is demanded until it is written, or the lane is described anew.
async fn try_again(shut: Weak<Shut>, store: Store, stir: Arc<Notify>, provider: Provider) {
    while let Some(wait) = shut.upgrade().and_then(|shut| shut.wait()) {
        tokio::time::sleep(wait).await;
        let Some(shut) = shut.upgrade() else { return };
        let Some(demand) = shut.lock().demand.clone() else { continue };
        match shut.write(&demand, &store, &provider).await {
            Ok(()) => {
                tracing::warn!(provider = provider.name, ?demand, "the pause or hold of the lane, or of a host of it, is written at last");
                shut.open(&demand);
                stir.notify_one();
            }
            Err(problem) => {
                shut.lock().fail();
                tracing::error!(%problem, provider = provider.name, "still could not pause or hold the lane, or a host of it; it stays shut in this process");
            }
        }
    }
}
