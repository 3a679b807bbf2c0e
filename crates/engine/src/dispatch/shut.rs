//! A lane, or a host of one, whose pause or hold could not be written. It stays shut in this process, and the write is tried again until it succeeds: our own failure must not
//! become another send (docs/decisions/0027).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use postcommit_channel::clock;
use postcommit_channel::model::Provider;
use tokio::sync::Notify;

use super::setback::{self, Setback};
use crate::db::DbError;
use crate::store::{Shut as Written, Store};

/// The longest wait before the write is tried again.
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// Within this a process has read that a lane is paused.
const HEARD: Duration = Duration::from_secs(60);

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

/// Ok when the lane is paused, or described anew, by somebody else. A write that changed nothing and met nobody else's has failed.
async fn is_closed_by_others(store: &Store, provider: &Provider) -> Result<bool, DbError> {
    match store.provider(provider.tenant, &provider.name).await? {
        Some(now) if now.id == provider.id && now.revision == provider.revision && now.paused.is_none() => {
            Err(DbError::Refused { code: "unwritten".into(), message: "the database took the pause and changed nothing".into() })
        }
        _ => Ok(false),
    }
}

/// Whether a lane or a host of one is shut in this process, whatever the database says of it.
#[derive(Default)]
pub struct Shut {
    /// Read for every lane at every claim.
    is_shut: AtomicBool,
    setback: Setback,
    state: Mutex<State>,
    /// The host that it is about; none: the whole lane.
    host: Option<Arc<str>>,
    /// A pause or hold of the lane is written. Read before every send.
    is_closed: AtomicBool,
}

#[derive(Default)]
struct State {
    demand: Option<Demand>,
    /// A task of this process tries again.
    is_tried: bool,
    /// When a written hold ends, or when this process has long heard of a written pause.
    closed_until: Option<Instant>,
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
        self.is_shut().then(|| self.setback.left().max(setback::FIRST))
    }

    /// Shuts the lane until the demand is written.
    pub fn shut(self: &Arc<Self>, store: &Store, stir: &Arc<Notify>, provider: &Provider, demand: Demand) {
        let mut state = self.lock();
        state.demand = Some(match state.demand.take() {
            Some(known) => known.or(demand),
            None => demand,
        });
        self.setback.wait_up_to(LONGEST_WAIT);
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
        state.demand = None;
        self.setback.over();
        self.is_shut.store(false, Ordering::Release);
    }

    /// The database knows of this demand, so that a claim finds the lane closed. What was claimed before and not begun must not be sent either.
    pub fn close(&self, written: &Demand) {
        let mut state = self.lock();
        state.closed_until = match written {
            Demand::Pause(_) => clock::monotonic().checked_add(HEARD),
            Demand::Hold(since, wait) => since.checked_add(*wait),
        };
        self.is_closed.store(true, Ordering::Release);
    }

    /// Whether a written pause or hold still stands, as far as this process has heard.
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

    /// How long until the next try; none when there is nothing to try any more.
    fn wait(&self) -> Option<Duration> {
        let mut state = self.lock();
        state.is_tried = state.demand.is_some();
        state.is_tried.then(|| self.setback.left())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
                let wait = shut.setback.wait_up_to(LONGEST_WAIT);
                tracing::error!(%problem, provider = provider.name, ?wait, "still could not pause or hold the lane, or a host of it; it stays shut in this process");
            }
        }
    }
}
