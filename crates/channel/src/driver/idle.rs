//! Connections of a lane that wait for the next message.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::clock;

/// A connection that was idle for longer is not used again. Servers close idle connections after some minutes.
const IDLE: Duration = Duration::from_secs(60);
/// A connection that is older is not used again, so that a change of the server's address is noticed.
const AGE: Duration = Duration::from_secs(300);
/// The most idle connections. More are closed.
const KEPT: usize = 16;

/// A connection that can carry several messages, one after the other.
pub(super) trait Reusable: Send + Sized + 'static {
    /// When the connection was opened.
    fn opened(&self) -> Instant;

    /// Whether the connection has carried as many messages as servers usually allow.
    fn is_spent(&self) -> bool {
        false
    }

    /// Ends the connection politely. Failures do not matter.
    fn close(self) -> impl Future<Output = ()> + Send;
}

/// The idle connections of one provider, the one used last at the end.
pub(super) struct IdleConnections<C>(Mutex<Vec<(C, Instant)>>);

impl<C> Default for IdleConnections<C> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<C: Reusable> IdleConnections<C> {
    /// Takes a connection that may be used again. Closes those that may not.
    pub(super) fn take(&self) -> Option<C> {
        let now = clock::monotonic();
        let (old, found) = {
            let mut idle = self.lock();
            let is_old = |(connection, since): &(C, Instant)| {
                now.duration_since(*since) > IDLE || now.duration_since(connection.opened()) > AGE
            };
            let old: Vec<_> = idle.extract_if(.., |kept| is_old(kept)).collect();
            (old, idle.pop())
        };
        old.into_iter().for_each(|(connection, _)| close(connection));
        found.map(|(connection, _)| connection)
    }

    /// Keeps a connection for the next message, if it may be used again.
    pub(super) fn put(&self, connection: C) {
        let surplus = {
            let mut idle = self.lock();
            if !connection.is_spent() && idle.len() < KEPT {
                idle.push((connection, clock::monotonic()));
                None
            } else {
                Some(connection)
            }
        };
        surplus.into_iter().for_each(close);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(C, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends a connection in the background, so that no send waits for it.
fn close<C: Reusable>(connection: C) {
    tokio::spawn(connection.close());
}
