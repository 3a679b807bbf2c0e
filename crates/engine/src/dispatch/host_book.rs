//! The hosts of all lanes, and what this process has read of those that are shut.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::hosts::Hosts;
use crate::clock;
use crate::db::DbError;
use crate::store::{HostChange, Store};

/// While a host is shut, all that are shut are read anew this often: somebody may have deleted a row by hand.
const ANEW: Duration = Duration::from_secs(300);

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
                self.note(&changes, after == 0);
                Ok(())
            }
            Err(problem) => {
                self.anew.store(true, Ordering::Release);
                Err(problem)
            }
        }
    }

    fn note(&self, changes: &[HostChange], all: bool) {
        let mut read = self.reading();
        read.changed = changes.iter().map(|change| change.changed).max().unwrap_or(0).max(read.changed);
        if all {
            read.shut_as_of = (!changes.is_empty()).then(clock::monotonic);
        } else if !changes.is_empty() {
            read.shut_as_of.get_or_insert_with(clock::monotonic);
        }
        drop(read);
        let mut lanes = self.lanes();
        if all {
            // Those of providers that are gone.
            lanes.retain(|_, hosts| Arc::strong_count(hosts) > 1);
            let mut shut: HashMap<i32, HashSet<&str>> = HashMap::new();
            for change in changes {
                shut.entry(change.lane).or_default().insert(&change.host);
            }
            let none = HashSet::new();
            lanes.iter().for_each(|(lane, hosts)| hosts.open_others(shut.get(lane).unwrap_or(&none)));
        }
        for change in changes {
            lanes.get(&change.lane).into_iter().for_each(|hosts| hosts.set(change));
        }
    }

    fn lanes(&self) -> MutexGuard<'_, HashMap<i32, Arc<Hosts>>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reading(&self) -> MutexGuard<'_, Read> {
        self.read.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
