//! The hosts of all lanes, and the closed hosts that this process has read from the database.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use postcommit_channel::clock;

use crate::db::DbError;
use crate::dispatch::hosts::Hosts;
use crate::store::{HostChange, Store};

/// While any host is closed, all closed hosts are read again this often, because an operator may have deleted a row by
/// hand.
const ANEW: Duration = Duration::from_secs(300);

/// How long after the opening of a host this process may still write that it puts off a delivery for that host.
const CROSSING: Duration = Duration::from_secs(2);

/// Brings deliveries of opened hosts forward a second time. Opening a host brings its deliveries forward, but misses
/// those that this process puts off at the same moment. They would otherwise wait for minutes.
async fn bring_forward(store: Store, opened: Vec<(i32, Arc<str>)>) {
    tokio::time::sleep(CROSSING).await;
    for (lane, host) in opened {
        if let Err(problem) = store.bring_hosts_forward(lane, Some(&host)).await {
            tracing::warn!(
                %problem, lane,
                "could not move the waiting deliveries of a reopened host to now; they are sent at their next retry \
                 time"
            );
        }
    }
}

/// The hosts of all lanes that tell hosts apart.
#[derive(Default)]
pub struct HostRegistry {
    lanes: Mutex<HashMap<i32, Arc<Hosts>>>,
    /// Whether the next read must read all closed hosts, and not only changes.
    anew: Arc<AtomicBool>,
    read: Mutex<Read>,
}

#[derive(Default)]
struct Read {
    /// The number of the last change that was read.
    changed: i64,
    /// When all closed hosts were last read. `None` if no host is closed.
    shut_as_of: Option<Instant>,
}

impl HostRegistry {
    /// Returns the hosts of a lane, the same object each time. For a new lane the closed hosts are filled in by the
    /// next [`HostRegistry::read`].
    pub fn of_lane(&self, lane: i32) -> Arc<Hosts> {
        let mut lanes = self.lanes();
        let make = || {
            self.anew.store(true, Ordering::Release);
            Arc::new(Hosts::new(self.anew.clone()))
        };
        lanes.entry(lane).or_insert_with(make).clone()
    }

    /// Makes the next read start from the beginning. Needed after the database was restored from a backup or when too
    /// much has changed.
    pub fn start_over(&self) {
        self.reading().changed = 0;
        self.anew.store(true, Ordering::Release);
    }

    /// Returns whether all closed hosts must be read although no change was announced.
    pub fn is_due(&self) -> bool {
        let stale = self.reading().shut_as_of.is_some_and(|at| at.elapsed() > ANEW);
        stale || (self.anew.load(Ordering::Acquire) && !self.lanes().is_empty())
    }

    /// Reads changed hosts. Does nothing if no lane tells hosts apart.
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

    /// Applies the changes that were read. Returns the opened hosts for which this process has put off deliveries.
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
            // Removes the hosts of deleted providers.
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
