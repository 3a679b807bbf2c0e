//! The hosts of all lanes, and what this process has read of closed hosts.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use postcommit_channel::clock;

use crate::db::DbError;
use crate::dispatch::hosts::Hosts;
use crate::store::{HostChange, Store};

/// While a host is closed, all closed hosts are read again this often: an operator may have deleted a row by hand.
const ANEW: Duration = Duration::from_secs(300);

/// A delivery that was claimed before its host was opened is put off, and that is written, within this time.
const CROSSING: Duration = Duration::from_secs(2);

/// Opening a host brings its deliveries forward. Deliveries that this process is putting off at that moment come later,
/// and would wait for minutes: they are brought forward once more.
async fn bring_forward(store: Store, opened: Vec<(i32, Arc<str>)>) {
    tokio::time::sleep(CROSSING).await;
    for (lane, host) in opened {
        if let Err(problem) = store.bring_hosts_forward(lane, Some(&host)).await {
            tracing::warn!(%problem, lane, "could not bring deliveries of an opened host forward; they become due by themselves");
        }
    }
}

/// The hosts of all lanes that tell them apart.
#[derive(Default)]
pub struct HostRegistry {
    lanes: Mutex<HashMap<i32, Arc<Hosts>>>,
    /// All closed hosts must be read.
    anew: Arc<AtomicBool>,
    read: Mutex<Read>,
}

#[derive(Default)]
struct Read {
    /// The last change that was read.
    changed: i64,
    /// When all were last read, if some are closed.
    shut_as_of: Option<Instant>,
}

impl HostRegistry {
    /// The hosts of a lane, the same object each time. The next [`HostRegistry::read`] tells a new lane which hosts are
    /// closed.
    pub fn of_lane(&self, lane: i32) -> Arc<Hosts> {
        let mut lanes = self.lanes();
        let make = || {
            self.anew.store(true, Ordering::Release);
            Arc::new(Hosts::new(self.anew.clone()))
        };
        lanes.entry(lane).or_insert_with(make).clone()
    }

    /// Forgets what was read so far: the database was restored from a backup, or too much has changed.
    pub fn start_over(&self) {
        self.reading().changed = 0;
        self.anew.store(true, Ordering::Release);
    }

    /// Whether all closed hosts must be read although no change was announced.
    pub fn is_due(&self) -> bool {
        let stale = self.reading().shut_as_of.is_some_and(|at| at.elapsed() > ANEW);
        stale || (self.anew.load(Ordering::Acquire) && !self.lanes().is_empty())
    }

    /// Reads changed hosts. Does nothing where no lane tells hosts apart.
    pub async fn read(&self, store: &Store) -> Result<(), DbError> {
        if self.lanes().is_empty() {
            return Ok(());
        }
        let all = self.is_due();
        self.anew.store(false, Ordering::Release);
        let after = if all { 0 } else { self.reading().changed };
        match store.host_changes(after).await {
            Ok(changes) => {
                let opened = self.note(&changes, after == 0);
                if !opened.is_empty() {
                    tokio::spawn(bring_forward(store.clone(), opened));
                }
                Ok(())
            }
            Err(problem) => {
                self.anew.store(true, Ordering::Release);
                Err(problem)
            }
        }
    }

    /// Returns the opened hosts for which this process has put off deliveries.
    fn note(&self, changes: &[HostChange], all: bool) -> Vec<(i32, Arc<str>)> {
        let mut read = self.reading();
        read.changed = changes.iter().map(|change| change.changed).max().unwrap_or(0).max(read.changed);
        if all {
            read.shut_as_of = (!changes.is_empty()).then(clock::monotonic);
        } else if !changes.is_empty() {
            read.shut_as_of.get_or_insert_with(clock::monotonic);
        }
        drop(read);
        let (mut lanes, mut opened) = (self.lanes(), Vec::new());
        if all {
            // Hosts of deleted providers.
            lanes.retain(|_, hosts| Arc::strong_count(hosts) > 1);
            let mut shut: HashMap<i32, HashSet<&str>> = HashMap::new();
            for change in changes {
                shut.entry(change.lane).or_default().insert(&change.host);
            }
            let none = HashSet::new();
            for (lane, hosts) in lanes.iter() {
                opened.extend(hosts.open_others(shut.get(lane).unwrap_or(&none)).into_iter().map(|host| (*lane, host)));
            }
        }
        for change in changes {
            if lanes.get(&change.lane).is_some_and(|hosts| hosts.set(change)) {
                opened.push((change.lane, change.host.as_str().into()));
            }
        }
        opened
    }

    fn lanes(&self) -> MutexGuard<'_, HashMap<i32, Arc<Hosts>>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reading(&self) -> MutexGuard<'_, Read> {
        self.read.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
