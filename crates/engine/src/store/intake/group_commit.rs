//! Where many requests share a commit.
//!
//! A request that comes while nothing is under way is committed at once: nobody waits for company, and there is no timer. While a commit is under way those who come gather, and the
//! next one takes them all. What was handed in is committed whether its caller still listens or not.
//!
//! A key that an application's open transaction holds would keep all of them waiting. Once it is known, whoever uses it is kept apart from the others.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use postcommit_channel::clock;
use tokio::sync::{Semaphore, oneshot};

use super::accept::key_of;
use crate::store::{ACCEPT_BATCH, Accepted, Incoming, Refusal, Store};

/// Commits under way at once on PostgreSQL. SQLite has one writer.
const UNDER_WAY: usize = 3;
/// Bytes of one commit, about.
const BYTES: usize = 1024 * 1024;
/// Who may wait, and with how many bytes, before the next is told to come later.
const WAITING: usize = 20_000;
const WAITING_BYTES: usize = 64 * BYTES;

/// How long a held key is remembered after it was last found so, how many are, and how many of those who use one are tried at once.
const HELD: Duration = Duration::from_secs(10);
const HELD_KEYS: usize = 1000;
const APART: usize = 2;

type Answer = Result<Accepted, Refusal>;

/// The gate of one process. Cheap to clone.
#[derive(Clone)]
pub struct GroupCommit {
    shared: Arc<Shared>,
}

struct Shared {
    store: Store,
    most: usize,
    queue: Mutex<Queue>,
    /// Keys, with their tenants, that somebody's transaction held a moment ago.
    held: Mutex<HashMap<(String, String), Instant>>,
    apart: Arc<Semaphore>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<(Incoming, oneshot::Sender<Answer>)>,
    bytes: usize,
    under_way: usize,
}

impl GroupCommit {
    /// A gate before that store.
    #[must_use]
    pub fn new(store: Store) -> Self {
        let most = if store.db().kind() == "postgres" { UNDER_WAY } else { 1 };
        let (queue, held, apart) = (Mutex::default(), Mutex::default(), Arc::new(Semaphore::new(APART)));
        Self { shared: Arc::new(Shared { store, most, queue, held, apart }) }
    }

    /// Enqueues and commits, with whoever comes at the same time. The id is durable when this returns. Dropped before that, it is committed all the same, or not at all.
    ///
    /// # Errors
    /// As [`Store::accept`]; and when too many wait.
    pub async fn accept(&self, incoming: Incoming) -> Answer {
        let (reply, answer) = oneshot::channel();
        let lost = || Refusal::Unavailable("the commit ended without an answer; repeat it under the same key".into());
        if self.shared.is_held(&incoming) {
            self.shared.enter_apart(incoming, reply)?;
        } else {
            self.shared.enter(incoming, reply)?;
        }
        answer.await.unwrap_or_else(|_| Err(lost()))
    }

    /// The same for many; answers in the order given. They need not share one commit.
    pub async fn accept_all(&self, batch: Vec<Incoming>) -> Vec<Answer> {
        join_all(batch.into_iter().map(|incoming| self.accept(incoming))).await
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held(&self) -> MutexGuard<'_, HashMap<(String, String), Instant>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_held(&self, incoming: &Incoming) -> bool {
        let held = self.held();
        // Nearly always there is none.
        !held.is_empty() && held.get(&key_of(incoming)).is_some_and(|until| *until > clock::monotonic())
    }

    /// Remembers what was found of a key.
    fn note(&self, key: (String, String), answer: &Answer) {
        let (now, mut held) = (clock::monotonic(), self.held());
        if !matches!(answer, Err(Refusal::Held)) {
            held.remove(&key);
            return;
        }
        if held.len() >= HELD_KEYS {
            held.retain(|_, until| *until > now);
        }
        if held.len() < HELD_KEYS {
            held.insert(key, now + HELD);
        }
    }

    /// Commits it by itself, if not too many are at that.
    fn enter_apart(self: &Arc<Self>, incoming: Incoming, reply: oneshot::Sender<Answer>) -> Result<(), Refusal> {
        let place = self.apart.clone().try_acquire_owned().map_err(|_| Refusal::Held)?;
        let this = self.clone();
        tokio::spawn(async move {
            let key = key_of(&incoming);
            let answer = this.store.accept(vec![incoming]).await.pop().unwrap_or(Err(Refusal::Held));
            this.note(key, &answer);
            drop(place);
            let _ = reply.send(answer);
        });
        Ok(())
    }

    fn enter(self: &Arc<Self>, incoming: Incoming, reply: oneshot::Sender<Answer>) -> Result<(), Refusal> {
        let mut queue = self.queue();
        let bytes = queue.bytes + incoming.size();
        if queue.waiting.len() >= WAITING || bytes > WAITING_BYTES {
            return Err(Refusal::Unavailable(format!(
                "more than {WAITING} notifications or {WAITING_BYTES} bytes wait to be written; come later"
            )));
        }
        queue.bytes = bytes;
        queue.waiting.push_back((incoming, reply));
        self.begin(&mut queue);
        Ok(())
    }

    /// Begins to commit what waits, unless enough are at it.
    fn begin(self: &Arc<Self>, queue: &mut Queue) {
        if queue.under_way < self.most && !queue.waiting.is_empty() {
            queue.under_way += 1;
            // A task of its own: a caller that goes away must not take the commit with it.
            tokio::spawn(commit(Turn(self.clone())));
        }
    }

    /// What the next commit takes.
    fn batch(&self) -> (Vec<Incoming>, Vec<oneshot::Sender<Answer>>) {
        let mut queue = self.queue();
        let (mut bytes, mut batch) = (0, Vec::new());
        while batch.len() < ACCEPT_BATCH
            && let Some((incoming, _)) = queue.waiting.front()
            && (batch.is_empty() || bytes + incoming.size() <= BYTES)
            && let Some(next) = queue.waiting.pop_front()
        {
            bytes += next.0.size();
            batch.push(next);
        }
        queue.bytes = queue.bytes.saturating_sub(bytes);
        batch.into_iter().unzip()
    }
}

/// One of those who commit. However it ends, those who came meanwhile are not forgotten.
struct Turn(Arc<Shared>);

impl Drop for Turn {
    fn drop(&mut self) {
        let mut queue = self.0.queue();
        queue.under_way -= 1;
        // Outside of a runtime there is nobody left to wait.
        if tokio::runtime::Handle::try_current().is_ok() {
            self.0.begin(&mut queue);
        }
    }
}

async fn commit(turn: Turn) {
    loop {
        let (batch, replies) = turn.0.batch();
        if batch.is_empty() {
            return;
        }
        let keys: Vec<_> = batch.iter().map(key_of).collect();
        for ((reply, key), answer) in replies.into_iter().zip(keys).zip(turn.0.store.accept(batch).await) {
            if matches!(answer, Err(Refusal::Held)) {
                turn.0.note(key, &answer);
            }
            // Who no longer listens has lost nothing: it is committed.
            let _ = reply.send(answer);
        }
    }
}
