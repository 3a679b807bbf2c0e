//! Keeps idle connections open for a few seconds for the next request to the same origin.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::origin::Origin;
use crate::clock;

/// The maximum number of idle connections to one origin. If it were less than the number of concurrent requests, the
/// requests beyond it would each open a new connection.
pub(super) const IDLE_PER_ORIGIN: usize = 256;
/// The maximum number of idle connections in total.
pub(super) const IDLE_IN_ALL: usize = 512;
/// The longest idle time of a connection. Common servers close idle connections after five seconds. If a server does so
/// during a request, the outcome of the request is unclear.
pub(super) const IDLE_AGE: Duration = Duration::from_secs(4);
/// The interval at which idle connections are checked.
const LOOK: Duration = Duration::from_millis(250);
/// The time for which no connections are kept for an origin that closed a kept connection during a request.
pub(super) const DISTRUST: Duration = Duration::from_secs(60);

/// A connection that the pool can keep.
pub(in crate::egress) trait Reusable: Send + 'static {
    /// Whether another request can be sent on this connection, as far as is known now.
    fn usable(&mut self) -> bool;
}

struct Idle<C> {
    connection: C,
    since: Instant,
}

impl<C: Reusable> Idle<C> {
    fn fit(&mut self, now: Instant) -> bool {
        self.young(now) && self.connection.usable()
    }

    fn young(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) < IDLE_AGE
    }
}

/// The idle connections by origin. The last in each list was used most recently.
struct Shelves<C> {
    idle: HashMap<Origin, Vec<Idle<C>>>,
    /// Origins that closed a kept connection during a request, with the time when they last did so.
    distrusted: HashMap<Origin, Instant>,
    sweeping: bool,
}

impl<C: Reusable> Shelves<C> {
    fn count(&self) -> usize {
        self.idle.values().map(Vec::len).sum()
    }

    fn keep(&mut self, mut fit: impl FnMut(&mut Idle<C>) -> bool) {
        self.idle.retain(|_, shelf| {
            shelf.retain_mut(&mut fit);
            !shelf.is_empty()
        });
    }

    fn take(&mut self, origin: &Origin, now: Instant) -> Option<C> {
        let shelf = self.idle.get_mut(origin)?;
        let idle = std::iter::from_fn(|| shelf.pop()).find_map(|mut idle| idle.fit(now).then_some(idle));
        if shelf.is_empty() {
            self.idle.remove(origin);
        }
        idle.map(|idle| idle.connection)
    }

    /// Stops keeping connections to `origin` for a while. Some peers answer and then close the connection without
    /// announcing it. A request that follows immediately on that connection is lost, and its outcome is unclear.
    fn distrust(&mut self, origin: &Origin, now: Instant) {
        self.idle.remove(origin);
        if self.distrusted.len() >= IDLE_IN_ALL {
            self.distrusted.retain(|_, since| now.saturating_duration_since(*since) < DISTRUST);
        }
        if self.distrusted.len() < IDLE_IN_ALL {
            self.distrusted.insert(origin.clone(), now);
        }
    }

    fn put(&mut self, origin: Origin, connection: C, now: Instant) {
        if self.distrusted.get(&origin).is_some_and(|since| now.saturating_duration_since(*since) < DISTRUST) {
            return;
        }
        if self.count() >= IDLE_IN_ALL {
            self.keep(|idle| idle.young(now));
        }
        if self.count() >= IDLE_IN_ALL {
            return;
        }
        let shelf = self.idle.entry(origin).or_default();
        if shelf.len() >= IDLE_PER_ORIGIN {
            shelf.remove(0);
        }
        shelf.push(Idle { connection, since: now });
    }
}

/// The idle connections of one [`Egress`](crate::egress::Egress).
pub(in crate::egress) struct Pool<C>(Arc<Mutex<Shelves<C>>>);

impl<C: Reusable> Pool<C> {
    pub(in crate::egress) fn new() -> Self {
        let shelves = Shelves { idle: HashMap::new(), distrusted: HashMap::new(), sweeping: false };
        Self(Arc::new(Mutex::new(shelves)))
    }

    /// Takes the most recently used connection to `origin` that is still usable.
    pub(super) fn take(&self, origin: &Origin) -> Option<C> {
        lock(&self.0).take(origin, clock::monotonic())
    }

    /// Records that `origin` closed a kept connection during a request. For a while, each request to it opens its own
    /// connection.
    pub(super) fn distrust(&self, origin: &Origin) {
        lock(&self.0).distrust(origin, clock::monotonic());
    }

    /// Keeps `connection` for the next request. If the origin already has [`IDLE_PER_ORIGIN`] idle connections, the
    /// oldest of them is closed. If the pool is full, `connection` itself is closed.
    pub(super) fn put(&self, origin: Origin, connection: C) {
        let mut shelves = lock(&self.0);
        shelves.put(origin, connection, clock::monotonic());
        if !shelves.sweeping {
            shelves.sweeping = true;
            tokio::spawn(sweep(Arc::downgrade(&self.0)));
        }
    }
}

/// Closes connections that were idle for too long or that the peer has closed. Runs only while there are idle
/// connections, and does not keep the pool alive.
async fn sweep<C: Reusable>(pool: Weak<Mutex<Shelves<C>>>) {
    loop {
        tokio::time::sleep(LOOK).await;
        let Some(pool) = pool.upgrade() else { return };
        let mut shelves = lock(&pool);
        let now = clock::monotonic();
        shelves.keep(|idle| idle.fit(now));
        if shelves.idle.is_empty() {
            shelves.sweeping = false;
            return;
        }
    }
}

fn lock<C>(shelves: &Mutex<Shelves<C>>) -> MutexGuard<'_, Shelves<C>> {
    // A panic in another thread cannot leave inconsistent data, because each change is a single step.
    shelves.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::egress::Endpoint;

    #[derive(Debug, PartialEq)]
    struct Fake(usize, bool);

    impl Reusable for Fake {
        fn usable(&mut self) -> bool {
            self.1
        }
    }

    fn origin(host: &str) -> Origin {
        Origin { is_tls: true, endpoint: Endpoint::new(host, 443).unwrap() }
    }

    fn shelves() -> (Shelves<Fake>, Instant) {
        (Shelves { idle: HashMap::new(), distrusted: HashMap::new(), sweeping: true }, clock::monotonic())
    }

    #[test]
    fn the_connection_used_last_comes_first_and_only_once() {
        let (mut shelves, now) = shelves();
        shelves.put(origin("a"), Fake(1, true), now);
        shelves.put(origin("a"), Fake(2, true), now);
        assert_eq!(shelves.take(&origin("b"), now), None);
        assert_eq!(shelves.take(&origin("a"), now), Some(Fake(2, true)));
        assert_eq!(shelves.take(&origin("a"), now), Some(Fake(1, true)));
        assert_eq!(shelves.take(&origin("a"), now), None);
        assert!(shelves.idle.is_empty());
    }

    #[test]
    fn scheme_and_port_are_part_of_the_origin() {
        let (mut shelves, now) = shelves();
        shelves.put(origin("a"), Fake(1, true), now);
        assert_eq!(shelves.take(&Origin { is_tls: false, ..origin("a") }, now), None);
        assert_eq!(shelves.take(&Origin { endpoint: Endpoint::new("a", 8443).unwrap(), ..origin("a") }, now), None);
    }

    #[test]
    fn closed_and_aged_connections_are_not_handed_out() {
        let (mut shelves, now) = shelves();
        shelves.put(origin("a"), Fake(1, false), now);
        assert_eq!(shelves.take(&origin("a"), now), None);
        shelves.put(origin("a"), Fake(2, true), now);
        assert_eq!(shelves.take(&origin("a"), now + IDLE_AGE), None);
    }

    #[test]
    fn nothing_is_kept_for_a_while_for_an_origin_that_hung_up() {
        let (mut shelves, now) = shelves();
        shelves.put(origin("a"), Fake(1, true), now);
        shelves.put(origin("b"), Fake(2, true), now);
        shelves.distrust(&origin("a"), now);
        shelves.put(origin("a"), Fake(3, true), now);
        assert_eq!((shelves.take(&origin("a"), now), shelves.take(&origin("b"), now)), (None, Some(Fake(2, true))));
        shelves.put(origin("a"), Fake(4, true), now + DISTRUST);
        assert_eq!(shelves.take(&origin("a"), now + DISTRUST), Some(Fake(4, true)));
    }

    #[test]
    fn one_origin_keeps_its_newest() {
        let (mut shelves, now) = shelves();
        for n in 0..=IDLE_PER_ORIGIN {
            shelves.put(origin("a"), Fake(n, true), now);
        }
        assert_eq!(shelves.count(), IDLE_PER_ORIGIN);
        assert_eq!(shelves.idle[&origin("a")][0].connection, Fake(1, true));
    }

    #[test]
    fn a_full_pool_makes_room_only_by_dropping_the_unfit() {
        let (mut shelves, now) = shelves();
        for n in 0..=IDLE_IN_ALL {
            shelves.put(origin(&format!("host-{n}")), Fake(n, true), now);
        }
        assert_eq!(shelves.count(), IDLE_IN_ALL);
        shelves.put(origin("late"), Fake(0, true), now + IDLE_AGE);
        assert_eq!(shelves.count(), 1);
    }
}
