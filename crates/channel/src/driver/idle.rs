//! Keeps the idle connections of a provider for its next messages.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::clock;

/// The longest idle time after which a connection is used again. Servers close idle connections after some minutes.
const IDLE: Duration = Duration::from_secs(60);
/// The greatest age at which a connection is used again, so that a change of the server's address is noticed.
const AGE: Duration = Duration::from_secs(300);
/// The maximum number of idle connections. Further connections are closed.
const KEPT: usize = 16;

/// A connection that can carry several messages, one after the other.
pub(super) trait Reusable: Send + Sized + 'static {
    /// The time at which the connection was opened.
    fn opened(&self) -> Instant;

    /// The idle time after which the server may close the connection, if the server has announced one.
    fn idle_limit(&self) -> Option<Duration> {
        None
    }

    /// Whether the connection has carried as many messages as servers usually allow.
    fn is_spent(&self) -> bool {
        false
    }

    /// Closes the connection as the protocol asks. Failures are ignored.
    fn close(self) -> impl Future<Output = ()> + Send;
}

/// The idle connections of one provider, each with the time since which it is idle. The last one was used most
/// recently.
pub(super) struct IdleConnections<C>(Mutex<Vec<(C, Instant)>>);

impl<C> Default for IdleConnections<C> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<C: Reusable> IdleConnections<C> {
    /// Takes a connection that may be used again, and closes the connections that are too old.
    pub(super) fn take(&self) -> Option<C> {
        let now = clock::monotonic();
        let (old, found) = {
            let mut idle = self.lock();
            let is_old = |(connection, since): &(C, Instant)| {
                let idle = connection.idle_limit().map_or(IDLE, |limit| limit.min(IDLE));
                now.duration_since(*since) > idle || now.duration_since(connection.opened()) > AGE
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

#[cfg(test)]
mod tests {
    use super::*;

    struct Connection(Option<Duration>);

    impl Reusable for Connection {
        fn opened(&self) -> Instant {
            clock::monotonic()
        }

        fn idle_limit(&self) -> Option<Duration> {
            self.0
        }

        async fn close(self) {}
    }

    #[tokio::test]
    async fn a_connection_is_not_kept_for_longer_than_its_server_does() {
        let idle = IdleConnections::default();
        // Each row: the idle limit of the server, and the time for which the connection was idle, in seconds.
        for (limit, idle_s, is_kept) in [
            (None, 50, true),
            (None, 70, false),
            (Some(30), 20, true),
            (Some(30), 50, false),
            // A longer limit of the server does not extend our own limit.
            (Some(600), 50, true),
            (Some(600), 70, false),
        ] {
            let since = clock::monotonic().checked_sub(Duration::from_secs(idle_s)).unwrap();
            idle.lock().push((Connection(limit.map(Duration::from_secs)), since));
            assert_eq!(idle.take().is_some(), is_kept, "{limit:?} {idle_s}");
        }
    }
}
