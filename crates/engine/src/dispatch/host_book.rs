//! The hosts of all lanes, and what this process has read of those that are shut.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use postcommit_channel::clock;

use super::hosts::Hosts;
use crate::db::DbError;
use crate::store::{HostChange, Store};

/// While a host is shut, all that are shut are read anew this often: somebody may have deleted a row by hand.
const ANEW: Duration = Duration::from_secs(300);

/// What was claimed before a host was opened is put off, and that is written, within this.
const CROSSING: Duration = Duration::from_secs(2);

/// Whoever opens a host brings forward what waits for it. What this process was just putting off comes after that, and would wait for minutes.
async fn bring_forward(store: Store, opened: Vec<(i32, Arc<str>)>) {
    tokio::time::sleep(CROSSING).await;
    for (lane, host) in opened {
        if let Err(problem) = store.bring_hosts_forward(lane, Some(&host)).await {
            tracing::warn!(%problem, lane, "could not bring forward what waits for a host that is open; it comes by itself");
        }
    }
}

/// The hosts of all lanes that tell them apart.
#[derive(Default)]
pub struct HostBook {
    lanes: Mutex<HashMap<i32, Arc<Hosts>>>,
    /// All that are shut are to be read.
    anew: Arc<AtomicBool>,
    read: Mutex<Read>,
}

#[derive(Default)]
struct Read {
    /// The last change that was read.
    changed: i64,
    /// When all were last read, if some are shut.
    shut_as_of: Option<Instant>,
}

impl HostBook {
    /// The hosts of a lane, the same ones each time. A lane that is new here finds out which are shut by the next [`HostBook::read`].
    pub fn of_lane(&self, lane: i32) -> Arc<Hosts> {
        let mut lanes = self.lanes();
        let make = || {
            self.anew.store(true, Ordering::Release);
            Arc::new(Hosts::new(self.anew.clone()))
        };
        lanes.entry(lane).or_insert_with(make).clone()
    }

    /// What was read so far may be that of another database, from before this one was restored: all is read again.
    pub fn start_over(&self) {
        self.reading().changed = 0;
        self.anew.store(true, Ordering::Release);
    }

    /// Whether all are to be read, although no change was heard of.
    pub fn is_due(&self) -> bool {
        let stale = self.reading().shut_as_of.is_some_and(|at| at.elapsed() > ANEW);
        stale || (self.anew.load(Ordering::Acquire) && !self.lanes().is_empty())
    }

    /// Reads what has changed. Costs nothing where no lane tells hosts apart.
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

    /// Returns the hosts that were opened and for which this process has put something off.
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
            // Those of providers that are gone.
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
