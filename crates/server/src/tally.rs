//! The counts that every page shows: live and parked deliveries, and the latencies of providers. Each count is made by
//! one request at a time, and kept for a while if it took long, so that open pages do not count a long queue again and
//! again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use postcommit_channel::clock;
use postcommit_channel::model::Provider;
use postcommit_engine::db::DbError;
use postcommit_engine::store::{KpiGrouping, Kpis};

use crate::app::App;
use crate::auth::Caller;

/// A count that took less time than this is not kept.
const QUICK: Duration = Duration::from_millis(50);
/// A count is kept for this many times the time that it took, so that counting uses at most a twentieth of the time.
const REST: u32 = 20;
/// The maximum number of counts that are kept.
const KEPT: usize = 1000;
/// The number of newest attempts of a tenant from which latencies are computed.
const ATTEMPTS: i64 = 500;
/// The maximum number of tenants whose latencies are computed, for people who see all of them.
const TENANTS: usize = 5;

/// The tenant, the grouping and the interval of counts.
type Key = (Option<i32>, Option<&'static str>, u64);

/// The latencies of attempts: the tenant, the provider and the milliseconds that the attempt took.
pub type Latencies = Vec<(i32, String, i32)>;

/// The counts that pages show.
#[derive(Default)]
pub struct Tallies {
    kpis: Kept<Kpis>,
    latencies: Kept<Latencies>,
}

impl Tallies {
    /// The current counts of the caller's tenant, or of all tenants.
    pub async fn current(&self, app: &App, caller: &Caller) -> Result<Arc<Kpis>, DbError> {
        self.over(app, caller, None, app.tools.kpi.interval()).await
    }

    /// Returns the counts over an interval, grouped by `by`.
    pub async fn over(
        &self,
        app: &App,
        caller: &Caller,
        by: Option<KpiGrouping>,
        interval: Duration,
    ) -> Result<Arc<Kpis>, DbError> {
        let key = (caller.whose(), by.map(KpiGrouping::name), interval.as_secs());
        let count = async || caller.store(app).kpis(caller.whose(), by, app.stuck_after, interval).await;
        self.kpis.get(key, count).await
    }

    /// The latencies of the newest attempts of the tenants that have these providers.
    pub async fn latencies(
        &self,
        app: &App,
        caller: &Caller,
        providers: &[Provider],
    ) -> Result<Arc<Latencies>, DbError> {
        let read = async || {
            let mut tenants: Vec<i32> = providers.iter().map(|provider| provider.tenant).collect();
            tenants.sort_unstable();
            tenants.dedup();
            let (store, mut all) = (caller.store(app), Vec::new());
            for tenant in tenants.into_iter().take(TENANTS) {
                let newest = store.newest_latencies(tenant, ATTEMPTS).await?;
                all.extend(newest.into_iter().map(|(provider, took)| (tenant, provider, took)));
            }
            Ok(all)
        };
        self.latencies.get((caller.whose(), None, 0), read).await
    }

    /// Drops the kept counts of a tenant, and those of all tenants together. Called after a retry or a similar act of
    /// this process has changed them. `None` drops all counts.
    pub fn forget(&self, tenant: Option<i32>) {
        self.kpis.forget(tenant);
    }
}

/// Kept values by key. Each value is counted by one request at a time.
struct Kept<V>(Mutex<HashMap<Key, Slot<V>>>);

struct Slot<V> {
    known: Option<Known<V>>,
    /// How often the value was dropped because it had changed. A count that began before the last drop is not kept.
    generation: u64,
    /// The lock that the counting request holds.
    counting: Arc<tokio::sync::Mutex<()>>,
}

struct Known<V> {
    value: Arc<V>,
    counted_at: Instant,
    /// Until this time the value is used without a new count.
    fresh_until: Instant,
    /// Until this time the value is used while another request counts.
    usable_until: Instant,
}

impl<V> Default for Kept<V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<V> Default for Slot<V> {
    fn default() -> Self {
        Self { known: None, generation: 0, counting: Arc::default() }
    }
}

impl<V> Slot<V> {
    fn known(&self, is_usable: impl Fn(&Known<V>) -> bool) -> Option<Arc<V>> {
        self.known.as_ref().filter(|known| is_usable(known)).map(|known| known.value.clone())
    }
}

impl<V> Kept<V> {
    /// Returns the kept value, or else counts. While one request counts, the others use the last value, or wait if
    /// there is none.
    async fn get(&self, key: Key, count: impl AsyncFnOnce() -> Result<V, DbError>) -> Result<Arc<V>, DbError> {
        let asked_at = clock::monotonic();
        let (fresh, counting) =
            self.with(key, |slot| (slot.known(|known| known.fresh_until > asked_at), slot.counting.clone()));
        if let Some(fresh) = fresh {
            return Ok(fresh);
        }
        let turn = match counting.try_lock() {
            Ok(turn) => turn,
            Err(_) => {
                if let Some(last) = self.with(key, |slot| slot.known(|known| known.usable_until > asked_at)) {
                    return Ok(last);
                }
                counting.lock().await
            }
        };
        if let Some(counted) = self.with(key, |slot| slot.known(|known| known.counted_at >= asked_at)) {
            return Ok(counted);
        }
        let (began, generation) = (clock::monotonic(), self.with(key, |slot| slot.generation));
        let value = Arc::new(count().await?);
        self.keep(key, generation, began, &value);
        drop(turn);
        Ok(value)
    }

    fn keep(&self, key: Key, generation: u64, began: Instant, value: &Arc<V>) {
        let now = clock::monotonic();
        let rest = if now - began < QUICK { Duration::ZERO } else { (now - began) * REST };
        let known =
            Known { value: value.clone(), counted_at: now, fresh_until: now + rest, usable_until: now + rest * 2 };
        self.with(key, |slot| {
            if slot.generation == generation {
                slot.known = Some(known);
            }
        });
    }

    fn forget(&self, tenant: Option<i32>) {
        for ((of, ..), slot) in self.0.lock().unwrap_or_else(PoisonError::into_inner).iter_mut() {
            if tenant.is_none() || of.is_none() || *of == tenant {
                slot.known = None;
                slot.generation += 1;
            }
        }
    }

    fn with<R>(&self, key: Key, read: impl FnOnce(&mut Slot<V>) -> R) -> R {
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if slots.len() >= KEPT && !slots.contains_key(&key) {
            let now = clock::monotonic();
            let is_used = |slot: &Slot<V>| Arc::strong_count(&slot.counting) > 1;
            slots.retain(|_, slot| is_used(slot) || slot.known(|known| known.usable_until > now).is_some());
        }
        read(slots.entry(key).or_default())
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::task::{Context, Waker};

    use tokio::sync::oneshot;

    use super::*;

    const OURS: Key = (Some(1), None, 60);
    const ALL: Key = (None, None, 60);

    /// A count that lasts until its result is sent. It fails if the sender is dropped.
    async fn told(result: oneshot::Receiver<u64>) -> Result<u64, DbError> {
        result.await.map_err(|_| DbError::Unreadable("no result".into()))
    }

    /// Polls a request once. Returns whether it waits.
    fn is_pending<T>(request: &mut Pin<Box<impl Future<Output = T>>>) -> bool {
        request.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    #[tokio::test]
    async fn concurrent_requests_share_one_count() {
        let (kept, counts) = (Arc::new(Kept::default()), Arc::new(AtomicU64::new(0)));
        let (tell, result) = oneshot::channel();
        let first = kept.get(OURS, async || told(result).await);
        let others = (0..20).map(|_| {
            let (kept, counts) = (kept.clone(), counts.clone());
            async move { kept.get(OURS, async || Ok(counts.fetch_add(1, Ordering::Relaxed))).await }
        });
        let mut waiting = tokio::task::JoinSet::new();
        let mut first = Box::pin(first);
        // The first request has begun to count before the others ask.
        assert!(is_pending(&mut first));
        for other in others {
            waiting.spawn(other);
        }
        tokio::task::yield_now().await;
        tell.send(7).unwrap();
        assert_eq!(*first.await.unwrap(), 7);
        while let Some(got) = waiting.join_next().await {
            assert_eq!(*got.unwrap().unwrap(), 7);
        }
        assert_eq!(counts.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn a_failed_count_is_made_by_the_next_request() {
        let kept = Kept::<u64>::default();
        let failed = kept.get(OURS, async || Err(DbError::Unreadable("broken".into()))).await;
        assert!(failed.is_err());
        assert_eq!(*kept.get(OURS, async || Ok(2)).await.unwrap(), 2);
    }

    #[tokio::test]
    async fn a_slow_count_is_kept_and_used_while_it_is_made_anew() {
        let kept = Kept::<u64>::default();
        let long_ago = clock::monotonic() - Duration::from_secs(1);
        kept.keep(OURS, 0, long_ago, &Arc::new(1));
        assert_eq!(*kept.get(OURS, async || Ok(2)).await.unwrap(), 1, "it is fresh");
        kept.with(OURS, |slot| slot.known.as_mut().unwrap().fresh_until = long_ago);
        let (tell, result) = oneshot::channel();
        let mut anew = Box::pin(kept.get(OURS, async || told(result).await));
        assert!(is_pending(&mut anew));
        assert_eq!(*kept.get(OURS, async || Ok(3)).await.unwrap(), 1, "nobody waits for the new count");
        tell.send(2).unwrap();
        assert_eq!(*anew.await.unwrap(), 2);
    }

    #[tokio::test]
    async fn an_act_forgets_the_counts_of_its_tenant_alone_also_those_that_are_being_made() {
        let kept = Kept::<u64>::default();
        let (long_ago, other) = (clock::monotonic() - Duration::from_secs(1), (Some(2), None, 60));
        for key in [OURS, other, ALL] {
            kept.keep(key, 0, long_ago, &Arc::new(1));
        }
        kept.forget(Some(1));
        assert_eq!(*kept.get(other, async || Ok(2)).await.unwrap(), 1);
        assert_eq!(*kept.get(ALL, async || Ok(2)).await.unwrap(), 2);
        let (tell, result) = oneshot::channel();
        let mut before = Box::pin(kept.get(OURS, async || told(result).await));
        assert!(is_pending(&mut before));
        kept.forget(Some(1));
        tell.send(3).unwrap();
        assert_eq!(*before.await.unwrap(), 3);
        assert!(kept.with(OURS, |slot| slot.known.is_none()), "it was counted before the act");
    }
}
