//! Rate limits: a token bucket per key.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Most buckets kept; beyond that the least recently used are dropped.
const REMEMBERED: usize = 10_000;

/// A bucket per key: a burst, refilled per second.
pub struct Buckets<K> {
    per_s: f64,
    burst: f64,
    levels: Mutex<HashMap<K, Level>>,
}

#[derive(Clone, Copy)]
struct Level {
    left: f64,
    at: Instant,
}

impl<K: Hash + Eq> Buckets<K> {
    /// At most `per_s` per second in the long run, and `burst` together. 0 per second is no limit.
    pub fn new(per_s: f64, burst: f64) -> Self {
        Self { per_s, burst: burst.max(1.0), levels: Mutex::default() }
    }

    /// Takes one token, or returns how long to wait for it.
    pub fn take(&self, key: K, now: Instant) -> Result<(), Duration> {
        if self.per_s <= 0.0 {
            return Ok(());
        }
        let mut levels = self.levels.lock().unwrap_or_else(PoisonError::into_inner);
        if levels.len() >= REMEMBERED && !levels.contains_key(&key) {
            levels.retain(|_, level| self.filled(*level, now) < self.burst);
        }
        let level = levels.get(&key).map_or(self.burst, |level| self.filled(*level, now));
        if level < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - level) / self.per_s));
        }
        if levels.len() < REMEMBERED || levels.contains_key(&key) {
            levels.insert(key, Level { left: level - 1.0, at: now });
        }
        Ok(())
    }

    fn filled(&self, level: Level, now: Instant) -> f64 {
        (level.left + now.saturating_duration_since(level.at).as_secs_f64() * self.per_s).min(self.burst)
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
        assert!(some.levels.lock().unwrap().len() <= REMEMBERED);
    }
}
