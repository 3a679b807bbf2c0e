//! The token bucket: how often a provider may be called, and how often a client may call the API.
//!
//! A bucket counts the permits that are used up, not times, so that a changed rate applies to what was used before the
//! change. In any time t at most `burst + per_s × t` permits are given. PostgreSQL does the same sum in the statement
//! that claims (`store/queue/limited.rs`); `tests/it/rates.rs` of the engine compares the two.

use std::time::Duration;

use postcommit::Timestamp;

/// The fewest sends a second.
const MIN_PER_S: f64 = 0.001;
/// The most sends a second.
const MAX_PER_S: f64 = 10_000.0;
/// The largest burst.
const MAX_BURST: i32 = 10_000;

/// The database's clock may seem to go back this far without having done so: a statement that began earlier may come
/// later. More than this was a step of the clock.
const JITTER: Duration = Duration::from_secs(1);

/// One claim per permit would cost more than the sends. Where the burst allows it, a wait lasts until the permits of
/// this time have come back.
const WORTH: Duration = Duration::from_millis(20);

/// The longest wait, whatever was written into the database by hand.
const LONGEST_MS: f64 = 1e12;

/// A limit on sends or requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Permits per second. For a provider: 0.001 to 10,000.
    pub per_s: f64,
    /// Permits that may be taken together after a pause, 1 or more. For a provider: at most 10,000.
    pub burst: i32,
}

/// The permits of a limit that are used up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bucket {
    /// Permits, 0 or more.
    pub used: f64,
    /// The time at which `used` was true, by the caller's clock: the database's for providers.
    pub as_of: Timestamp,
}

impl Rate {
    /// A limit. Without a burst, the burst is the permits of one second, and at least 1.
    #[must_use]
    pub fn new(per_s: f64, burst: Option<i32>) -> Self {
        Self { per_s, burst: burst.unwrap_or(per_s.clamp(1.0, MAX_PER_S) as i32) }
    }

    /// Holds the numbers to their limits.
    ///
    /// # Errors
    /// Naming the field and what is allowed.
    pub fn check(per_s: Option<f64>, burst: Option<i32>) -> Result<(), String> {
        match (per_s, burst) {
            (Some(per_s), _) if !(MIN_PER_S..=MAX_PER_S).contains(&per_s) => {
                Err(format!("rate_per_s: is {per_s}; {MIN_PER_S} to {MAX_PER_S} are allowed"))
            }
            (_, Some(burst)) if !(1..=MAX_BURST).contains(&burst) => {
                Err(format!("burst: is {burst}; 1 to {MAX_BURST} are allowed"))
            }
            (None, Some(burst)) => {
                Err(format!("burst: is {burst}, but there is no rate_per_s; it is allowed only with one"))
            }
            _ => Ok(()),
        }
    }

    /// The bucket at `now`, with the permits that time has given back. When the clock has stepped back, no permit comes
    /// back, and time counts from `now`.
    #[must_use]
    pub fn refill(&self, bucket: Bucket, now: Timestamp) -> Bucket {
        let elapsed = seconds_between(bucket.as_of, now).max(0.0);
        let stepped_back = bucket.as_of > now.plus(JITTER);
        let as_of = if stepped_back { now } else { bucket.as_of.max(now) };
        Bucket { used: (bucket.used - self.per_s * elapsed).max(0.0), as_of }
    }

    /// Permits left in a bucket that is refilled already, at most `up_to`.
    #[must_use]
    pub fn permits(&self, bucket: Bucket, up_to: i32) -> i32 {
        ((f64::from(self.burst) - bucket.used).floor() as i32).clamp(0, up_to.max(0))
    }

    /// Whether the bucket is full again at `now`: then it says no more than a new one.
    #[must_use]
    pub fn is_full(&self, bucket: Bucket, now: Timestamp) -> bool {
        bucket.used <= self.per_s * seconds_between(bucket.as_of, now)
    }

    /// Takes one permit.
    ///
    /// # Errors
    /// How long to wait for one.
    pub fn take(&self, bucket: Bucket, now: Timestamp) -> Result<Bucket, Duration> {
        let bucket = self.refill(bucket, now);
        if self.permits(bucket, 1) == 0 {
            return Err(self.wait(bucket, now));
        }
        Ok(Bucket { used: bucket.used + 1.0, ..bucket })
    }

    /// How long to wait until the next permits have come back. Zero when there is a permit.
    #[must_use]
    pub fn wait(&self, bucket: Bucket, now: Timestamp) -> Duration {
        let bucket = self.refill(bucket, now);
        if self.permits(bucket, 1) > 0 {
            return Duration::ZERO;
        }
        let worth = (self.per_s * WORTH.as_secs_f64()).floor().clamp(1.0, f64::from(self.burst));
        let missing = bucket.used + worth - f64::from(self.burst);
        let wait = missing / self.per_s + seconds_between(now, bucket.as_of);
        // In whole milliseconds, rounded up: neither timers nor SQLite's clock know less.
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
        // rate, burst, used at 0, now → permits of 20,000 wanted
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
            // A limit that was lowered: what was used before it counts.
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
        // A little is another's statement that began later: nothing of that time is counted twice.
        assert_eq!(rate.refill(bucket(2.0, 10.0), at(9.5)), bucket(2.0, 10.0));
        assert_eq!(rate.wait(bucket(3.0, 10.0), at(9.5)), Duration::from_millis(1500));
        // An hour is a step of the clock: time counts from there.
        let stepped = rate.refill(bucket(3.0, 3600.0), at(0.0));
        assert_eq!(stepped, bucket(3.0, 0.0));
        assert_eq!(rate.permits(rate.refill(stepped, at(1.0)), 9), 1);
        assert_eq!(rate.wait(bucket(3.0, 3600.0), at(0.0)), Duration::from_secs(1));
        // And back again: a burst at most.
        assert_eq!(rate.permits(rate.refill(stepped, at(3600.0)), 9), 3);
    }

    #[test]
    fn b12_the_wait_ends_when_enough_has_come_back() {
        // rate, burst, used → milliseconds
        for (per_s, burst, used, wait) in [
            (1.0, 3, 2.0, 0),
            (1.0, 3, 2.25, 250),
            (1.0, 3, 3.0, 1000),
            (0.001, 1, 1.0, 1_000_000),
            (3.0, 1, 1.0, 334),
            // More than one where the burst allows: 2 permits of 100 a second, but one at a time where it does not.
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
        // Nonsense from the database neither panics nor waits for ever and a day.
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
            (None, Some(5), "burst: is 5, but there is no rate_per_s; it is allowed only with one"),
        ] {
            assert_eq!(Rate::check(per_s, burst).err().unwrap_or_default(), said);
        }
    }
}
