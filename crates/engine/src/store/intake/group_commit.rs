//! Group commit: many requests share one commit.
//!
//! A request that arrives while no commit runs is committed immediately, without a timer. A request that arrives during
//! a commit waits for the next commit. A request is committed even if its caller disconnects.
//!
//! If an open transaction of an application has locked an idempotency key, a request with that key would delay its
//! whole group. So requests with a key that is known to be locked are committed separately.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use postcommit_channel::clock;
use tokio::sync::{Semaphore, oneshot};

use super::accept::{AcceptResult, key_of};
use crate::store::{ACCEPT_BATCH, NotAccepted, NotificationRequest, Store};

/// How many commits run concurrently on PostgreSQL. SQLite has one writer.
const CONCURRENT_COMMITS: usize = 3;
/// The approximate maximum size of one commit in bytes.
const COMMIT_BYTES: usize = 1024 * 1024;
/// The maximum number of waiting requests. [`MAX_WAITING_BYTES`] limits their total size. Requests beyond either limit
/// are refused.
const MAX_WAITING: usize = 20_000;
const MAX_WAITING_BYTES: usize = 64 * COMMIT_BYTES;

/// How long this process remembers that another transaction had locked an idempotency key. [`MAX_HELD_KEYS`] limits how
/// many keys are remembered. [`SEPARATE_COMMITS`] limits how many requests with a remembered key are tried
/// concurrently.
const HELD_FOR: Duration = Duration::from_secs(10);
const MAX_HELD_KEYS: usize = 1000;
const SEPARATE_COMMITS: usize = 2;

/// The group commit of one process. Clones share its state.
#[derive(Clone)]
pub struct GroupCommit {
    committer: Arc<Committer>,
}

struct Committer {
    store: Store,
    max_running: usize,
    queue: Mutex<WaitingRequests>,
    /// Tenants and idempotency keys that another transaction recently had locked, and until when this is remembered.
    held: Mutex<HashMap<(String, String), Instant>>,
    separate: Arc<Semaphore>,
}

#[derive(Default)]
struct WaitingRequests {
    waiting: VecDeque<(NotificationRequest, oneshot::Sender<AcceptResult>)>,
    bytes: usize,
    running: usize,
}

impl GroupCommit {
    pub fn new(store: Store) -> Self {
        let max_running = if store.db().kind() == "postgres" { CONCURRENT_COMMITS } else { 1 };
        let (queue, held, separate) = (Mutex::default(), Mutex::default(), Arc::new(Semaphore::new(SEPARATE_COMMITS)));
        Self { committer: Arc::new(Committer { store, max_running, queue, held, separate }) }
    }

    /// Enqueues and commits a request together with concurrent ones. The notification is durable when this returns. If
    /// the future is dropped, the request is either committed or not written at all.
    pub async fn accept(&self, request: NotificationRequest) -> AcceptResult {
        let (reply, answer) = oneshot::channel();
        let lost = || {
            NotAccepted::Unavailable(
                "the commit ended without a result; repeat the request with the same idempotency key".into(),
            )
        };
        if self.committer.is_held(&request) {
            self.committer.commit_separately(request, reply)?;
        } else {
            self.committer.enter(request, reply)?;
        }
        answer.await.unwrap_or_else(|_| Err(lost()))
    }
}

impl Committer {
    fn queue(&self) -> MutexGuard<'_, WaitingRequests> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held(&self) -> MutexGuard<'_, HashMap<(String, String), Instant>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_held(&self, request: &NotificationRequest) -> bool {
        let held = self.held();
        // The map of locked keys is nearly always empty. Then the key of the request is not built.
        !held.is_empty() && held.get(&key_of(request)).is_some_and(|until| *until > clock::monotonic())
    }

    /// Records whether the result shows that the idempotency key is locked.
    fn note(&self, key: (String, String), answer: &AcceptResult) {
        let (now, mut held) = (clock::monotonic(), self.held());
        if !matches!(answer, Err(NotAccepted::Held)) {
            held.remove(&key);
            return;
        }
        if held.len() >= MAX_HELD_KEYS {
            held.retain(|_, until| *until > now);
        }
        if held.len() < MAX_HELD_KEYS {
            held.insert(key, now + HELD_FOR);
        }
    }

    /// Commits a request with a locked idempotency key separately. The request is refused if too many such commits are
    /// running.
    fn commit_separately(
        self: &Arc<Self>,
        request: NotificationRequest,
        reply: oneshot::Sender<AcceptResult>,
    ) -> Result<(), NotAccepted> {
        let permit = self.separate.clone().try_acquire_owned().map_err(|_| NotAccepted::Held)?;
        let this = self.clone();
        tokio::spawn(async move {
            let key = key_of(&request);
            let answer = this.store.accept(vec![request]).await.pop().unwrap_or(Err(NotAccepted::Held));
            this.note(key, &answer);
            drop(permit);
            let _ = reply.send(answer);
        });
        Ok(())
    }

    fn enter(
        self: &Arc<Self>,
        request: NotificationRequest,
        reply: oneshot::Sender<AcceptResult>,
    ) -> Result<(), NotAccepted> {
        let mut queue = self.queue();
        let bytes = queue.bytes + request.size();
        if queue.waiting.len() >= MAX_WAITING || bytes > MAX_WAITING_BYTES {
            return Err(NotAccepted::Unavailable(format!(
                "more than {MAX_WAITING} notifications or {MAX_WAITING_BYTES} bytes wait to be written; try again later"
            )));
        }
        queue.bytes = bytes;
        queue.waiting.push_back((request, reply));
        self.begin(&mut queue);
        Ok(())
    }

    /// Starts a commit of the waiting requests, unless enough commits are running.
    fn begin(self: &Arc<Self>, queue: &mut WaitingRequests) {
        if queue.running < self.max_running && !queue.waiting.is_empty() {
            queue.running += 1;
            // The commit runs in its own task, so that a caller that disconnects does not cancel it.
            tokio::spawn(commit(CommitTask(self.clone())));
        }
    }

    /// Removes the requests of the next commit from the queue.
    fn batch(&self) -> (Vec<NotificationRequest>, Vec<oneshot::Sender<AcceptResult>>) {
        let mut queue = self.queue();
        let (mut bytes, mut batch) = (0, Vec::new());
        while batch.len() < ACCEPT_BATCH
            && let Some((request, _)) = queue.waiting.front()
            && (batch.is_empty() || bytes + request.size() <= COMMIT_BYTES)
            && let Some(next) = queue.waiting.pop_front()
        {
            bytes += next.0.size();
            batch.push(next);
        }
        queue.bytes = queue.bytes.saturating_sub(bytes);
        batch.into_iter().unzip()
    }
}

/// A running commit task. When the task ends for any reason, the next commit starts if requests are waiting.
struct CommitTask(Arc<Committer>);

impl Drop for CommitTask {
    fn drop(&mut self) {
        let mut queue = self.0.queue();
        queue.running -= 1;
        // Without a running Tokio runtime no caller can be waiting.
        if tokio::runtime::Handle::try_current().is_ok() {
            self.0.begin(&mut queue);
        }
    }
}

async fn commit(turn: CommitTask) {
    loop {
        let (batch, replies) = turn.0.batch();
        if batch.is_empty() {
            return;
        }
        let keys: Vec<_> = batch.iter().map(key_of).collect();
        for ((reply, key), answer) in replies.into_iter().zip(keys).zip(turn.0.store.accept(batch).await) {
            if matches!(answer, Err(NotAccepted::Held)) {
                turn.0.note(key, &answer);
            }
            // If the caller has stopped waiting, its request is committed nevertheless.
            let _ = reply.send(answer);
        }
    }
}
