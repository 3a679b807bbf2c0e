//! Live inboxes: an open page is notified of changes within a moment, regardless of which process made them.
//!
//! One task per process watches the inboxes of all open pages. A signal of the database wakes the task, and it reads
//! the positions of the signalled inboxes. It also polls every second, in case a signal is lost. A page then reads its
//! changes with [`Store::inbox_changes`], from its own position.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use postcommit_channel::clock;
use sha2::{Digest, Sha256};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::db::{DbError, Signal};
use crate::store::Store;

/// How often the positions of all open inboxes are read without a signal.
const POLL: Duration = Duration::from_secs(1);
/// How long the registration of this process as a watcher is valid if it is not renewed.
const WATCH: Duration = Duration::from_secs(60);

/// A user of a tenant: the tenant's number and the user's id.
type User = (i32, String);

/// The inboxes that pages have open in this process.
#[derive(Clone)]
pub struct Inboxes(Arc<Watcher>);

struct Watcher {
    store: Store,
    registry: Mutex<Registry>,
    /// Wakes the watching task so that it reads positions.
    wake: Notify,
}

#[derive(Default)]
struct Registry {
    users: HashMap<User, watch::Sender<i64>>,
    /// Users whose inbox was signalled and whose position was not read yet.
    signalled: HashSet<User>,
    /// Users by the payload of the signal that concerns them.
    by_payload: HashMap<String, HashSet<User>>,
    /// The key with which payloads are hashed, so that a listener can neither read nor guess a user's id. While the key
    /// is not known, every signal counts as concerning every user.
    key: Option<Vec<u8>>,
    watching: Option<JoinHandle<()>>,
}

impl Inboxes {
    /// Creates a registry without open inboxes. Nothing is watched until an inbox is opened.
    pub fn new(store: Store) -> Self {
        Self(Arc::new(Watcher { store, registry: Mutex::default(), wake: Notify::new() }))
    }

    /// Opens an inbox until the returned value is dropped. Open it before reading the inbox, so that no change in
    /// between is missed.
    pub fn open(&self, tenant: i32, user: &str) -> OpenInbox {
        let key = (tenant, user.to_owned());
        let mut registry = self.0.lock();
        let moved = match registry.users.get(&key) {
            Some(known) => known.subscribe(),
            None => registry.enter(key.clone()),
        };
        if registry.watching.as_ref().is_none_or(JoinHandle::is_finished) {
            registry.watching = Some(tokio::spawn(watch_all(self.0.clone())));
        }
        drop(registry);
        OpenInbox { watcher: self.0.clone(), key, moved }
    }

    /// Returns how many pages of a user are open in this process.
    pub fn pages(&self, tenant: i32, user: &str) -> usize {
        self.0.lock().users.get(&(tenant, user.to_owned())).map_or(0, watch::Sender::receiver_count)
    }

    /// Returns how many users have open pages in this process.
    pub fn users(&self) -> usize {
        self.0.lock().users.len()
    }
}

/// An inbox that a page has open.
pub struct OpenInbox {
    watcher: Arc<Watcher>,
    key: User,
    moved: watch::Receiver<i64>,
}

impl OpenInbox {
    /// Waits until the position of the inbox is greater than `position`.
    pub async fn beyond(&mut self, position: i64) {
        if self.moved.wait_for(|at| *at > position).await.is_err() {
            // The sender is dropped only when the process ends. That is no change of the inbox, so wait forever.
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for OpenInbox {
    fn drop(&mut self) {
        let mut registry = self.watcher.lock();
        // The count includes this receiver, which is being dropped. So 1 means that no other page of the user is open.
        if registry.users.get(&self.key).is_some_and(|sender| sender.receiver_count() <= 1) {
            registry.leave(&self.key);
        }
    }
}

impl Registry {
    fn enter(&mut self, user: User) -> watch::Receiver<i64> {
        let (sender, receiver) = watch::channel(0);
        self.add_payload(&user);
        self.users.insert(user, sender);
        receiver
    }

    fn add_payload(&mut self, user: &User) {
        if let Some(key) = &self.key {
            self.by_payload.entry(payload_of(key, user)).or_default().insert(user.clone());
        }
    }

    /// Uses this key from now on, and computes the payloads of all users again.
    fn set_key(&mut self, key: Vec<u8>) {
        if self.key.as_ref() == Some(&key) {
            return;
        }
        self.key = Some(key);
        self.by_payload.clear();
        let users: Vec<User> = self.users.keys().cloned().collect();
        for user in &users {
            self.add_payload(user);
        }
    }

    fn leave(&mut self, user: &User) {
        self.users.remove(user);
        self.signalled.remove(user);
        let Some(payload) = self.key.as_ref().map(|key| payload_of(key, user)) else { return };
        if self.by_payload.get_mut(&payload).is_some_and(|users| users.remove(user) && users.is_empty()) {
            self.by_payload.remove(&payload);
        }
    }

    /// Notes which users a signal concerns. An empty payload concerns all users, as does any payload while the key is
    /// not known. Returns whether any user of this process is concerned.
    fn on_signal(&mut self, payload: &str) -> bool {
        let meant: Vec<User> = if payload.is_empty() || self.key.is_none() {
            self.users.keys().cloned().collect()
        } else {
            self.by_payload.get(payload).into_iter().flatten().cloned().collect()
        };
        let any = !meant.is_empty();
        self.signalled.extend(meant);
        any
    }
}

impl Watcher {
    fn lock(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn on_signal(&self, payload: &str) {
        if self.lock().on_signal(payload) {
            self.wake.notify_one();
        }
    }

    /// Reads the positions of signalled users and notifies their pages.
    async fn read_positions(&self) -> Result<(), DbError> {
        let signalled: Vec<User> = self.lock().signalled.drain().collect();
        if signalled.is_empty() {
            return Ok(());
        }
        let positions = self.store.inbox_positions(&signalled).await?;
        let registry = self.lock();
        for (user, position) in signalled.iter().zip(positions) {
            if let Some(sender) = registry.users.get(user) {
                sender.send_if_modified(|at| std::mem::replace(at, position) != position);
            }
        }
        Ok(())
    }
}

/// Computes the payload of a user's signal, like `inbox_moved` in migrations/postgres/functions/inbox.sql.
fn payload_of(key: &[u8], (tenant, user): &User) -> String {
    let inner = Sha256::new().chain_update(key).chain_update(format!("{tenant}:{user}")).finalize();
    let hash = Sha256::new().chain_update(key).chain_update(inner).finalize();
    hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// Watches for changes as long as any page is open.
async fn watch_all(watcher: Arc<Watcher>) {
    let id = Uuid::new_v4();
    let listening = {
        let watcher = watcher.clone();
        tokio::spawn(async move {
            watcher.store.db().clone().watch(Signal::Inbox, |payload| watcher.on_signal(payload)).await;
        })
    };
    let mut registered_at = None;
    loop {
        if registered_at.is_none_or(|at: std::time::Instant| at.elapsed() > WATCH / 2) {
            match watcher.register(id).await {
                Ok(()) => registered_at = Some(clock::monotonic()),
                Err(problem) => {
                    tracing::debug!(
                        %problem,
                        "could not register this process for signals about inbox changes; it continues to poll"
                    );
                }
            }
        }
        if tokio::time::timeout(POLL, watcher.wake.notified()).await.is_err() {
            watcher.lock().on_signal("");
        }
        if let Err(problem) = watcher.read_positions().await {
            tracing::warn!(%problem, "could not check the open inboxes for changes; trying again after a wait");
            tokio::time::sleep(POLL).await;
        }
        if watcher.close_when_empty() {
            break;
        }
    }
    listening.abort();
    if let Err(problem) = watcher.store.unwatch_inboxes(id).await {
        tracing::debug!(
            %problem,
            "could not delete the registration for signals about inbox changes; it expires by itself"
        );
    }
}

impl Watcher {
    /// Registers this process as a watcher. The key is read before each registration, because an operator may have
    /// deleted it.
    async fn register(&self, id: Uuid) -> Result<(), DbError> {
        let key = self.store.inbox_bell_key().await?;
        if let Some(key) = key {
            self.lock().set_key(key);
        }
        self.store.watch_inboxes(id, WATCH.as_secs_f64()).await
    }

    /// Ends the watch if no page is open. The check runs under the lock, so that a page that opens later starts a new
    /// watch.
    fn close_when_empty(&self) -> bool {
        let mut registry = self.lock();
        let empty = registry.users.is_empty();
        if empty {
            registry.watching = None;
        }
        empty
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_payload_is_the_one_of_the_database() {
        // The test in tests/it/inbox/live.rs compares this payload with the one that PostgreSQL computes.
        assert_eq!(payload_of(&[7; 32], &(1, "zoë".into())), "e083bebe06c62ead4e2b829d2c3bdb9f");
        assert_ne!(payload_of(&[8; 32], &(1, "zoë".into())), payload_of(&[7; 32], &(1, "zoë".into())));
    }

    #[test]
    fn until_the_key_is_known_a_signal_concerns_every_user() {
        let mut registry = Registry::default();
        let (zoe, ada): (User, User) = ((1, "zoë".into()), (2, "ada".into()));
        drop((registry.enter(zoe.clone()), registry.enter(ada.clone())));
        assert!(registry.on_signal("something") && registry.signalled.len() == 2);
        registry.signalled.clear();
        registry.set_key(vec![7; 32]);
        assert!(!registry.on_signal("something"));
        assert!(
            registry.on_signal("e083bebe06c62ead4e2b829d2c3bdb9f")
                && registry.signalled == HashSet::from([zoe.clone()])
        );
        registry.set_key(vec![8; 32]);
        assert!(!registry.on_signal("e083bebe06c62ead4e2b829d2c3bdb9f"), "another key gives another payload");
        registry.leave(&zoe);
        registry.leave(&ada);
        assert!(registry.by_payload.is_empty());
    }
}
