//! The token bucket that limits how often a provider is called and how often a client may call the API.
//! A bucket stores how many permits are in use and not when they were taken. So a changed rate also applies to permits
//! that were used before the change. In any time t, at most `burst + per_s × t` permits are given. PostgreSQL does the
//! same calculation in the claim (`store/queue/limited.rs`). The engine's `tests/it/rates.rs` compares the two.

use std::time::Duration;

use postcommit::Timestamp;

/// The lowest allowed rate, in sends per second.
const MIN_PER_S: f64 = 0.001;
/// The highest allowed rate, in sends per second.
const MAX_PER_S: f64 = 10_000.0;
/// The largest allowed burst.
const MAX_BURST: i32 = 10_000;

/// The largest backward difference of the database's clock that does not count as a step of the clock. Small
/// differences are normal, because a statement that began earlier may be processed later.
const JITTER: Duration = Duration::from_secs(1);

/// [`Rate::wait`] waits until the permits of this period are refilled, if the burst allows that many. A claim for each
/// single permit would cost more than the sends.
const WORTH: Duration = Duration::from_millis(20);

/// The longest wait, in case the database holds wrong values.
const LONGEST_MS: f64 = 1e12;

/// A limit on sends or requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Permits per second. For a provider: 0.001 to 10,000.
    pub per_s: f64,
    /// The maximum number of permits that can be taken together after an idle time, 1 or more. For a provider: at most
    /// 10,000.
    pub burst: i32,
}

/// The state of a rate limit: how many permits are in use.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bucket {
    /// The number of permits in use, 0 or more.
    pub used: f64,
    /// The time at which `used` was computed, by the caller's clock. For providers this is the database's clock.
    pub as_of: Timestamp,
}

impl Rate {
    /// Creates a limit. The default burst is the permits of one second, and at least 1.
    pub fn new(per_s: f64, burst: Option<i32>) -> Self {
        Self { per_s, burst: burst.unwrap_or(per_s.clamp(1.0, MAX_PER_S) as i32) }
    }

    /// Checks that the numbers are in range.
    pub fn check(per_s: Option<f64>, burst: Option<i32>) -> Result<(), String> {
        match (per_s, burst) {
            (Some(per_s), _) if !(MIN_PER_S..=MAX_PER_S).contains(&per_s) => {
                Err(format!("rate_per_s: is {per_s}; {MIN_PER_S} to {MAX_PER_S} are allowed"))
            }
            (_, Some(burst)) if !(1..=MAX_BURST).contains(&burst) => {
                Err(format!("burst: is {burst}; 1 to {MAX_BURST} are allowed"))
            }
            (None, Some(burst)) => Err(format!(
                "burst: is {burst}, but rate_per_s is not set; burst is allowed only together with rate_per_s"
            )),
            _ => Ok(()),
        }
    }

    /// The bucket at `now`, with the permits that were refilled since `as_of`. If the clock has stepped back, nothing
    /// is refilled, and time counts from `now`.
    pub fn refill(&self, bucket: Bucket, now: Timestamp) -> Bucket {
        let elapsed = seconds_between(bucket.as_of, now).max(0.0);
        let stepped_back = bucket.as_of > now.plus(JITTER);
        let as_of = if stepped_back { now } else { bucket.as_of.max(now) };
        Bucket { used: (bucket.used - self.per_s * elapsed).max(0.0), as_of }
    }

    /// Returns the number of available permits, at most `up_to`. The caller must refill the bucket first.
    pub fn permits(&self, bucket: Bucket, up_to: i32) -> i32 {
        ((f64::from(self.burst) - bucket.used).floor() as i32).clamp(0, up_to.max(0))
    }

    /// Whether all permits are available again at `now`. Such a bucket equals a new one.
    pub fn is_full(&self, bucket: Bucket, now: Timestamp) -> bool {
        bucket.used <= self.per_s * seconds_between(bucket.as_of, now)
    }

    /// Takes one permit.
    /// # Errors
    /// The time to wait for a permit, if no permit is available.
    pub fn take(&self, bucket: Bucket, now: Timestamp) -> Result<Bucket, Duration> {
        let bucket = self.refill(bucket, now);
        if self.permits(bucket, 1) == 0 {
            return Err(self.wait(bucket, now));
        }
        Ok(Bucket { used: bucket.used + 1.0, ..bucket })
    }

    /// The time to wait for the next permits. Zero if a permit is available.
    pub fn wait(&self, bucket: Bucket, now: Timestamp) -> Duration {
        let bucket = self.refill(bucket, now);
        if self.permits(bucket, 1) > 0 {
            return Duration::ZERO;
        }
        let worth = (self.per_s * WORTH.as_secs_f64()).floor().clamp(1.0, f64::from(self.burst));
        let missing = bucket.used + worth - f64::from(self.burst);
        let wait = missing / self.per_s + seconds_between(now, bucket.as_of);
        // Round up to whole milliseconds, because neither timers nor SQLite's clock are more precise.
        Duration::from_millis((wait * 1000.0).ceil().clamp(1.0, LONGEST_MS) as u64)
    }
}

fn seconds_between(earlier: Timestamp, later: Timestamp) -> f64 {
    later.as_micros().saturating_sub(earlier.as_micros()) as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: f64) -> Timestamp {
        Timestamp::from_micros(1_800_000_000_000_000 + (seconds * 1e6) as i64)
    }

    fn bucket(used: f64, seconds: f64) -> Bucket {
        Bucket { used, as_of: at(seconds) }
    }

    #[test]
    fn b12_time_gives_permits_back_and_never_more_than_a_burst() {
        // The columns: rate, burst, used at 0, now, and the permits given if 20,000 are wanted.
        for (per_s, burst, used, now, permits) in [
            (1.0, 3, 0.0, 0.0, 3),
            (1.0, 3, 3.0, 0.0, 0),
            (1.0, 3, 3.0, 0.999, 0),
            (1.0, 3, 3.0, 1.0, 1),
            (1.0, 3, 3.0, 2.5, 2),
            (1.0, 3, 3.0, 1e9, 3),
            (0.001, 1, 1.0, 999.0, 0),
            (0.001, 1, 1.0, 1000.0, 1),
            (0.5, 4, 3.5, 0.0, 0),
            (0.5, 4, 3.5, 1.0, 1),
            (2.5, 5, 5.0, 1.0, 2),
            (10_000.0, 10_000, 0.0, 0.0, 10_000),
            (10_000.0, 10_000, 10_000.0, 0.0005, 5),
            (10_000.0, 10_000, 10_000.0, 1e9, 10_000),
            // After a limit was lowered, the permits that were used before still count.
            (1.0, 1, 50.0, 49.0, 0),
            (1.0, 1, 50.0, 50.0, 1),
        ] {
            let rate = Rate { per_s, burst };
            let found = rate.permits(rate.refill(bucket(used, 0.0), at(now)), 20_000);
            assert_eq!(found, permits, "{rate:?}, {used} used, after {now} s");
        }
    }

    #[test]
    fn b12_no_more_is_given_than_was_wanted() {
        let rate = Rate { per_s: 10.0, burst: 10 };
        for (up_to, permits) in [(0, 0), (1, 1), (10, 10), (11, 10), (-1, 0), (i32::MAX, 10)] {
            assert_eq!(rate.permits(bucket(0.0, 0.0), up_to), permits);
        }
    }

    #[test]
    fn b12_a_clock_that_goes_back_gives_nothing_and_stops_nothing() {
        let rate = Rate { per_s: 1.0, burst: 3 };
        // The bucket is slightly ahead of `now`, because another statement began later. That time must not be counted
        // twice.
        assert_eq!(rate.refill(bucket(2.0, 10.0), at(9.5)), bucket(2.0, 10.0));
        assert_eq!(rate.wait(bucket(3.0, 10.0), at(9.5)), Duration::from_millis(1500));
        // The bucket is an hour ahead of `now`, which is a step of the clock. Time counts from `now`.
        let stepped = rate.refill(bucket(3.0, 3600.0), at(0.0));
        assert_eq!(stepped, bucket(3.0, 0.0));
        assert_eq!(rate.permits(rate.refill(stepped, at(1.0)), 9), 1);
        assert_eq!(rate.wait(bucket(3.0, 3600.0), at(0.0)), Duration::from_secs(1));
        // When the clock steps forward again, at most one burst is available.
        assert_eq!(rate.permits(rate.refill(stepped, at(3600.0)), 9), 3);
    }

    #[test]
    fn b12_the_wait_ends_when_enough_has_come_back() {
        // The columns: rate, burst, used, and the wait in milliseconds.
        for (per_s, burst, used, wait) in [
            (1.0, 3, 2.0, 0),
            (1.0, 3, 2.25, 250),
            (1.0, 3, 3.0, 1000),
            (0.001, 1, 1.0, 1_000_000),
            (3.0, 1, 1.0, 334),
            // At 100 permits per second, `wait` waits for 2 permits (20 ms). With a burst of 1 it waits for 1 permit.
            (100.0, 100, 100.0, 20),
            (100.0, 1, 1.0, 10),
            (10_000.0, 10_000, 10_000.0, 20),
            (10_000.0, 1, 1.0, 1),
        ] {
            let rate = Rate { per_s, burst };
            let found = rate.wait(bucket(used, 0.0), at(0.0));
            assert_eq!(found, Duration::from_millis(wait), "{rate:?}, {used} used");
            let then = at(0.0).plus(found);
            assert!(rate.permits(rate.refill(bucket(used, 0.0), then), 1) == 1, "{rate:?}: then there is one");
        }
        // Invalid values from the database cause neither a panic nor an endless wait.
        let nonsense = Rate { per_s: 0.0, burst: 1 };
        assert_eq!(nonsense.permits(nonsense.refill(bucket(f64::NAN, 0.0), at(0.0)), 9), 1);
        for used in [1.0, f64::INFINITY] {
            assert_eq!(nonsense.wait(bucket(used, 0.0), at(0.0)).as_millis() as f64, LONGEST_MS);
        }
    }

    #[test]
    fn b12_without_a_burst_it_is_what_fits_one_second() {
        for (per_s, burst) in [(0.001, 1), (0.5, 1), (1.0, 1), (2.9, 2), (100.0, 100), (10_000.0, 10_000)] {
            assert_eq!(Rate::new(per_s, None).burst, burst);
            assert_eq!(Rate::new(per_s, Some(7)).burst, 7);
        }
    }

    #[test]
    fn b12_limits_of_the_limit_are_named() {
        for (per_s, burst, said) in [
            (None, None, ""),
            (Some(0.001), None, ""),
            (Some(10_000.0), Some(10_000), ""),
            (Some(0.0009), None, "rate_per_s: is 0.0009; 0.001 to 10000 are allowed"),
            (Some(10_000.5), None, "rate_per_s: is 10000.5; 0.001 to 10000 are allowed"),
            (Some(-1.0), None, "rate_per_s: is -1; 0.001 to 10000 are allowed"),
            (Some(f64::NAN), None, "rate_per_s: is NaN; 0.001 to 10000 are allowed"),
            (Some(f64::INFINITY), None, "rate_per_s: is inf; 0.001 to 10000 are allowed"),
            (Some(1.0), Some(0), "burst: is 0; 1 to 10000 are allowed"),
            (Some(1.0), Some(10_001), "burst: is 10001; 1 to 10000 are allowed"),
            (None, Some(5), "burst: is 5, but rate_per_s is not set; burst is allowed only together with rate_per_s"),
        ] {
            assert_eq!(Rate::check(per_s, burst).err().unwrap_or_default(), said);
        }
    }
}
