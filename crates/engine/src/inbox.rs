//! Live inboxes: an open page hears within moments that something has changed, whichever process changed it.
//!
//! One task per process watches for all its open pages. It is woken by the database's bell, and asks where the inboxes of its users stand; a poll
//! is the floor, so that a bell nobody heard only costs a moment. What has changed is then read by [`Store::inbox_changes`], from where the
//! page stands.

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

/// How often all open inboxes are looked at when no bell rings.
const POLL: Duration = Duration::from_secs(1);
/// How long others may believe that we watch.
const WATCH: Duration = Duration::from_secs(60);

/// A user of a tenant.
type User = (i32, String);

/// The open inboxes of this process.
#[derive(Clone)]
pub struct Inboxes(Arc<Inner>);

struct Inner {
    store: Store,
    open: Mutex<Open>,
    /// Rung when somebody is to be looked at.
    stir: Notify,
}

#[derive(Default)]
struct Open {
    users: HashMap<User, watch::Sender<i64>>,
    /// Of these something was heard; none of it is looked at yet.
    heard: HashSet<User>,
    /// The bell's words for each.
    by_word: HashMap<String, HashSet<User>>,
    /// What those words are hashed with, so that whoever listens can neither read nor guess an id. Until it is known, every word may mean anybody.
    key: Option<Vec<u8>>,
    watching: Option<JoinHandle<()>>,
}

impl Inboxes {
    /// Over this store; nothing is watched until something is opened.
    #[must_use]
    pub fn new(store: Store) -> Self {
        Self(Arc::new(Inner { store, open: Mutex::default(), stir: Notify::new() }))
    }

    /// Opens an inbox, for as long as what is returned lives. Open first, then look: what changes in between is told.
    #[must_use]
    pub fn open(&self, tenant: i32, user: &str) -> OpenInbox {
        let key = (tenant, user.to_owned());
        let mut open = self.0.lock();
        let moved = match open.users.get(&key) {
            Some(known) => known.subscribe(),
            None => open.enter(key.clone()),
        };
        if open.watching.as_ref().is_none_or(JoinHandle::is_finished) {
            open.watching = Some(tokio::spawn(watch_all(self.0.clone())));
        }
        drop(open);
        OpenInbox { inner: self.0.clone(), key, moved }
    }

    /// How many pages a user has open here.
    #[must_use]
    pub fn pages(&self, tenant: i32, user: &str) -> usize {
        self.0.lock().users.get(&(tenant, user.to_owned())).map_or(0, watch::Sender::receiver_count)
    }

    /// How many users have a page open here.
    #[must_use]
    pub fn users(&self) -> usize {
        self.0.lock().users.len()
    }
}

/// One page's hold on an inbox.
pub struct OpenInbox {
    inner: Arc<Inner>,
    key: User,
    moved: watch::Receiver<i64>,
}

impl OpenInbox {
    /// Waits until the inbox is known to stand beyond that position.
    pub async fn beyond(&mut self, position: i64) {
        if self.moved.wait_for(|at| *at > position).await.is_err() {
            // Nobody watches any more: the process ends.
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for OpenInbox {
    fn drop(&mut self) {
        let mut open = self.inner.lock();
        // The last but for the sender's own: it is ours, and goes with us.
        if open.users.get(&self.key).is_some_and(|sender| sender.receiver_count() <= 1) {
            open.leave(&self.key);
        }
    }
}

impl Open {
    fn enter(&mut self, user: User) -> watch::Receiver<i64> {
        let (sender, receiver) = watch::channel(0);
        self.add_word(&user);
        self.users.insert(user, sender);
        receiver
    }

    fn add_word(&mut self, user: &User) {
        if let Some(key) = &self.key {
            self.by_word.entry(word_of(key, user)).or_default().insert(user.clone());
        }
    }

    /// Goes by this key from now on.
    fn learn(&mut self, key: Vec<u8>) {
        if self.key.as_ref() == Some(&key) {
            return;
        }
        self.key = Some(key);
        self.by_word.clear();
        let users: Vec<User> = self.users.keys().cloned().collect();
        for user in &users {
            self.add_word(user);
        }
    }

    fn leave(&mut self, user: &User) {
        self.users.remove(user);
        self.heard.remove(user);
        let Some(word) = self.key.as_ref().map(|key| word_of(key, user)) else { return };
        if self.by_word.get_mut(&word).is_some_and(|users| users.remove(user) && users.is_empty()) {
            self.by_word.remove(&word);
        }
    }

    /// Notes of whom a bell spoke; without a word, or before the key is known, of everybody. True when somebody here is meant.
    fn hear(&mut self, word: &str) -> bool {
        let meant: Vec<User> = if word.is_empty() || self.key.is_none() {
            self.users.keys().cloned().collect()
        } else {
            self.by_word.get(word).into_iter().flatten().cloned().collect()
        };
        let any = !meant.is_empty();
        self.heard.extend(meant);
        any
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hear(&self, word: &str) {
        if self.lock().hear(word) {
            self.stir.notify_one();
        }
    }

    /// Looks where those stand of whom something was heard, and tells their pages.
    async fn look(&self) -> Result<(), DbError> {
        let heard: Vec<User> = self.lock().heard.drain().collect();
        if heard.is_empty() {
            return Ok(());
        }
        let positions = self.store.inbox_positions(&heard).await?;
        let open = self.lock();
        for (user, position) in heard.iter().zip(positions) {
            if let Some(sender) = open.users.get(user) {
                sender.send_if_modified(|at| std::mem::replace(at, position) != position);
            }
        }
        Ok(())
    }
}

/// As the database says it: `inbox_moved` in migrations/postgres/0013_settings.sql.
fn word_of(key: &[u8], (tenant, user): &User) -> String {
    let inner = Sha256::new().chain_update(key).chain_update(format!("{tenant}:{user}")).finalize();
    let hash = Sha256::new().chain_update(key).chain_update(inner).finalize();
    hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// Watches while anybody has a page open.
async fn watch_all(inner: Arc<Inner>) {
    let watcher = Uuid::new_v4();
    let listening = {
        let inner = inner.clone();
        tokio::spawn(async move { inner.store.db().clone().watch(Signal::Inbox, |word| inner.hear(word)).await })
    };
    let mut said_at = None;
    loop {
        if said_at.is_none_or(|at: std::time::Instant| at.elapsed() > WATCH / 2) {
            match inner.say_watching(watcher).await {
                Ok(()) => said_at = Some(clock::monotonic()),
                Err(problem) => tracing::debug!(%problem, "could not say that inboxes are watched; the poll goes on"),
            }
        }
        if tokio::time::timeout(POLL, inner.stir.notified()).await.is_err() {
            inner.lock().hear("");
        }
        if let Err(problem) = inner.look().await {
            tracing::warn!(%problem, "could not look at the open inboxes; trying again");
            tokio::time::sleep(POLL).await;
        }
        if inner.close_when_empty() {
            break;
        }
    }
    listening.abort();
    if let Err(problem) = inner.store.unwatch_inboxes(watcher).await {
        tracing::debug!(%problem, "could not say that no inbox is watched any more; that ends by itself");
    }
}

impl Inner {
    /// Says that somebody watches. The key is read first, and read again each time: an operator may have deleted it.
    async fn say_watching(&self, watcher: Uuid) -> Result<(), DbError> {
        let key = self.store.inbox_bell_key().await?;
        if let Some(key) = key {
            self.lock().learn(key);
        }
        self.store.watch_inboxes(watcher, WATCH.as_secs_f64()).await
    }

    /// Ends the watch when nothing is open; under the lock, so that who opens something next begins a new one.
    fn close_when_empty(&self) -> bool {
        let mut open = self.lock();
        let empty = open.users.is_empty();
        if empty {
            open.watching = None;
        }
        empty
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_is_the_one_that_the_database_says() {
        // tests/it/inbox/live.rs hears it of PostgreSQL.
        assert_eq!(word_of(&[7; 32], &(1, "zoë".into())), "e083bebe06c62ead4e2b829d2c3bdb9f");
        assert_ne!(word_of(&[8; 32], &(1, "zoë".into())), word_of(&[7; 32], &(1, "zoë".into())));
    }

    #[test]
    fn until_the_key_is_known_every_word_means_anybody() {
        let mut open = Open::default();
        let (zoe, ada): (User, User) = ((1, "zoë".into()), (2, "ada".into()));
        drop((open.enter(zoe.clone()), open.enter(ada.clone())));
        assert!(open.hear("something") && open.heard.len() == 2);
        open.heard.clear();
        open.learn(vec![7; 32]);
        assert!(!open.hear("something"));
        assert!(open.hear("e083bebe06c62ead4e2b829d2c3bdb9f") && open.heard == HashSet::from([zoe.clone()]));
        open.learn(vec![8; 32]);
        assert!(!open.hear("e083bebe06c62ead4e2b829d2c3bdb9f"), "another key, another word");
        open.leave(&zoe);
        open.leave(&ada);
        assert!(open.by_word.is_empty());
    }
}
