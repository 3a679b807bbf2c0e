//! Connections that are open but idle, kept a few seconds for the next call to the same place.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::place::Place;
use crate::clock;

/// Idle connections kept for one place: with fewer than are in use at once, each call beyond would close one
/// and open another.
pub(super) const IDLE_PER_PLACE: usize = 256;
/// Idle connections kept in all.
pub(super) const IDLE_IN_ALL: usize = 512;
/// How long a connection may be idle. Common servers close idle connections after five seconds, and a
/// request that crosses such a close in flight has an unclear outcome.
pub(super) const IDLE_AGE: Duration = Duration::from_secs(4);
/// How often the idle ones are looked at, while there are any.
const LOOK: Duration = Duration::from_millis(250);
/// How long nothing is kept for a place that closed a kept connection under a request.
pub(super) const DISTRUST: Duration = Duration::from_secs(60);

/// Something the pool can keep.
pub(super) trait Reusable: Send + 'static {
    /// Whether another request can be sent on it, as far as is known now.
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

/// The idle connections by place, the one used last at the end.
struct Shelves<C> {
    idle: HashMap<Place, Vec<Idle<C>>>,
    /// Places that closed a connection under a request, and when they last did.
    distrusted: HashMap<Place, Instant>,
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

    fn take(&mut self, place: &Place, now: Instant) -> Option<C> {
        let shelf = self.idle.get_mut(place)?;
        let idle = std::iter::from_fn(|| shelf.pop()).find_map(|mut idle| idle.fit(now).then_some(idle));
        if shelf.is_empty() {
            self.idle.remove(place);
        }
        idle.map(|idle| idle.connection)
    }

    /// Some peers answer and hang up without having said so. Whoever is asked again at once on the same connection loses that request, and nobody
    /// knows what became of it.
    fn distrust(&mut self, place: &Place, now: Instant) {
        self.idle.remove(place);
        if self.distrusted.len() >= IDLE_IN_ALL {
            self.distrusted.retain(|_, since| now.saturating_duration_since(*since) < DISTRUST);
        }
        if self.distrusted.len() < IDLE_IN_ALL {
            self.distrusted.insert(place.clone(), now);
        }
    }

    fn put(&mut self, place: Place, connection: C, now: Instant) {
        if self.distrusted.get(&place).is_some_and(|since| now.saturating_duration_since(*since) < DISTRUST) {
            return;
        }
        if self.count() >= IDLE_IN_ALL {
            self.keep(|idle| idle.young(now));
        }
        if self.count() >= IDLE_IN_ALL {
            return;
        }
        let shelf = self.idle.entry(place).or_default();
        if shelf.len() >= IDLE_PER_PLACE {
            shelf.remove(0);
        }
        shelf.push(Idle { connection, since: now });
    }
}

/// The idle connections of one [`super::Egress`].
pub(super) struct Pool<C>(Arc<Mutex<Shelves<C>>>);

impl<C: Reusable> Pool<C> {
    pub(super) fn new() -> Self {
        let shelves = Shelves { idle: HashMap::new(), distrusted: HashMap::new(), sweeping: false };
        Self(Arc::new(Mutex::new(shelves)))
    }

    /// The connection to `place` that was used last, if one is still fit.
    pub(super) fn take(&self, place: &Place) -> Option<C> {
        lock(&self.0).take(place, clock::monotonic())
    }

    /// `place` has closed a kept connection under a request: for a while each call opens its own.
    pub(super) fn distrust(&self, place: &Place) {
        lock(&self.0).distrust(place, clock::monotonic());
    }

    /// Keeps `connection` for the next call. The oldest of its place makes room; a full pool drops it.
    pub(super) fn put(&self, place: Place, connection: C) {
        let mut shelves = lock(&self.0);
        shelves.put(place, connection, clock::monotonic());
        if !shelves.sweeping {
            shelves.sweeping = true;
            tokio::spawn(sweep(Arc::downgrade(&self.0)));
        }
    }
}

/// Closes what nobody came back for, and what the peer has closed. Runs only while something is idle, and never
/// keeps the pool alive.
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
    // A panic elsewhere leaves the shelves whole: each change is one step.
    shelves.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    struct Fake(usize, bool);

    impl Reusable for Fake {
        fn usable(&mut self) -> bool {
            self.1
        }
    }

    fn place(host: &str) -> Place {
        Place { tls: true, host: url::Host::Domain(host.to_owned()), port: 443 }
    }

    fn shelves() -> (Shelves<Fake>, Instant) {
        (Shelves { idle: HashMap::new(), distrusted: HashMap::new(), sweeping: true }, clock::monotonic())
    }

    #[test]
    fn the_connection_used_last_comes_first_and_only_once() {
        let (mut shelves, now) = shelves();
        shelves.put(place("a"), Fake(1, true), now);
        shelves.put(place("a"), Fake(2, true), now);
        assert_eq!(shelves.take(&place("b"), now), None);
        assert_eq!(shelves.take(&place("a"), now), Some(Fake(2, true)));
        assert_eq!(shelves.take(&place("a"), now), Some(Fake(1, true)));
        assert_eq!(shelves.take(&place("a"), now), None);
        assert!(shelves.idle.is_empty());
    }

    #[test]
    fn scheme_and_port_are_part_of_the_place() {
        let (mut shelves, now) = shelves();
        shelves.put(place("a"), Fake(1, true), now);
        assert_eq!(shelves.take(&Place { tls: false, ..place("a") }, now), None);
        assert_eq!(shelves.take(&Place { port: 8443, ..place("a") }, now), None);
    }

    #[test]
    fn closed_and_aged_connections_are_not_handed_out() {
        let (mut shelves, now) = shelves();
        shelves.put(place("a"), Fake(1, false), now);
        assert_eq!(shelves.take(&place("a"), now), None);
        shelves.put(place("a"), Fake(2, true), now);
        assert_eq!(shelves.take(&place("a"), now + IDLE_AGE), None);
    }

    #[test]
    fn nothing_is_kept_for_a_while_for_a_place_that_hung_up() {
        let (mut shelves, now) = shelves();
        shelves.put(place("a"), Fake(1, true), now);
        shelves.put(place("b"), Fake(2, true), now);
        shelves.distrust(&place("a"), now);
        shelves.put(place("a"), Fake(3, true), now);
        assert_eq!((shelves.take(&place("a"), now), shelves.take(&place("b"), now)), (None, Some(Fake(2, true))));
        shelves.put(place("a"), Fake(4, true), now + DISTRUST);
        assert_eq!(shelves.take(&place("a"), now + DISTRUST), Some(Fake(4, true)));
    }

    #[test]
    fn one_place_keeps_its_newest() {
        let (mut shelves, now) = shelves();
        for n in 0..=IDLE_PER_PLACE {
            shelves.put(place("a"), Fake(n, true), now);
        }
        assert_eq!(shelves.count(), IDLE_PER_PLACE);
        assert_eq!(shelves.idle[&place("a")][0].connection, Fake(1, true));
    }

    #[test]
    fn a_full_pool_makes_room_only_by_dropping_the_unfit() {
        let (mut shelves, now) = shelves();
        for n in 0..=IDLE_IN_ALL {
            shelves.put(place(&n.to_string()), Fake(n, true), now);
        }
        assert_eq!(shelves.count(), IDLE_IN_ALL);
        shelves.put(place("late"), Fake(0, true), now + IDLE_AGE);
        assert_eq!(shelves.count(), 1);
    }
}
