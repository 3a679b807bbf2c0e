//! The rate limit of API clients, with one token bucket per key or address.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use postcommit::Timestamp;
use postcommit_channel::clock;
use postcommit_channel::model::{Bucket, Rate};

/// The maximum number of buckets in memory. When it is reached, full buckets are dropped, because they equal new
/// buckets.
const REMEMBERED: usize = 10_000;

/// Token buckets, one per key, that all have the same limit.
pub struct Buckets<K> {
    /// The limit of each bucket. `None` means no limit.
    rate: Option<Rate>,
    /// The instant that counts as time 0 in the buckets. It comes from the monotonic clock.
    began: Instant,
    buckets: Mutex<HashMap<K, Bucket>>,
}

impl<K: Hash + Eq> Buckets<K> {
    /// Allows `per_s` permits per second on average, and `burst` permits, at least 1, after an idle time. If `per_s` is
    /// 0, there is no limit.
    pub fn new(per_s: f64, burst: f64) -> Self {
        let rate = (per_s > 0.0).then(|| Rate::new(per_s, Some(burst.max(1.0) as i32)));
        Self { rate, began: clock::monotonic(), buckets: Mutex::default() }
    }

    /// Takes one permit, or returns how long to wait for one.
    pub fn take(&self, key: K, now: Instant) -> Result<(), Duration> {
        let Some(rate) = self.rate else { return Ok(()) };
        let elapsed = now.saturating_duration_since(self.began).as_micros();
        let now = Timestamp::from_micros(i64::try_from(elapsed).unwrap_or(i64::MAX));
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= REMEMBERED && !buckets.contains_key(&key) {
            buckets.retain(|_, bucket| !rate.is_full(*bucket, now));
        }
        let full = Bucket { used: 0.0, as_of: now };
        let bucket = rate.take(buckets.get(&key).copied().unwrap_or(full), now)?;
        if buckets.len() < REMEMBERED || buckets.contains_key(&key) {
            buckets.insert(key, bucket);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_then_the_rate_and_each_for_itself() {
        let buckets = Buckets::new(2.0, 3.0);
        let start = Instant::now();
        for _ in 0..3 {
            buckets.take("a", start).unwrap();
        }
        assert_eq!(buckets.take("a", start), Err(Duration::from_millis(500)));
        buckets.take("b", start).unwrap();
        buckets.take("a", start + Duration::from_millis(500)).unwrap();
        assert!(buckets.take("a", start + Duration::from_millis(500)).is_err());
        buckets.take("a", start + Duration::from_secs(1)).unwrap();
    }

    #[test]
    fn nothing_is_limited_at_zero_and_memory_is_bounded() {
        let (off, some) = (Buckets::new(0.0, 0.0), Buckets::new(1.0, 2.0));
        let start = Instant::now();
        for i in 0..30_000 {
            off.take(0, start).unwrap();
            some.take(i, start).unwrap();
        }
        assert!(some.buckets.lock().unwrap().len() <= REMEMBERED);
    }
}
