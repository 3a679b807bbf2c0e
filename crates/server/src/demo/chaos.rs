//! How the fake services of the demo misbehave: how often they fail or refuse by a rate limit, and how slow they are.

use std::time::{Duration, Instant};

use postcommit_channel::clock;
use serde::Serialize;

/// The longest answer time that can be chosen, in milliseconds. It is below 5 seconds, the timeout of the demo's
/// providers.
pub const LATENCY_MS: u32 = 3000;
/// How long the outage lasts that the button "Break it" of the demo's page begins.
pub const BROKEN_FOR: Duration = Duration::from_secs(30);

/// How one fake service misbehaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Chaos {
    /// The share of requests that fail, in percent.
    pub errors: u32,
    /// The share of requests that are answered "too many requests", in percent.
    pub limited: u32,
    /// The time that every answer takes, in milliseconds.
    pub latency_ms: u32,
}

/// What a fake service does with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Taken,
    Failed,
    /// Refused because there were too many requests.
    Limited,
}

/// Random numbers that are the same for the same seed (SplitMix64).
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number from 0 to `sides` - 1.
    pub fn roll(&mut self, sides: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        u32::try_from((x ^ (x >> 31)) % u64::from(sides.max(1))).unwrap_or(0)
    }

    pub fn decide(&mut self, chaos: Chaos) -> Fate {
        let rolled = self.roll(100);
        if rolled < chaos.errors {
            Fate::Failed
        } else if rolled < chaos.errors.saturating_add(chaos.limited) {
            Fate::Limited
        } else {
            Fate::Taken
        }
    }
}

/// An outage of all fake services: the time at which it ends.
#[derive(Debug, Default)]
pub struct Outage(Option<Instant>);

impl Outage {
    pub fn begin(&mut self) {
        self.0 = Some(clock::monotonic() + BROKEN_FOR);
    }

    pub fn end(&mut self) {
        self.0 = None;
    }

    /// The time that is left, if there is an outage.
    pub fn left(&self) -> Option<Duration> {
        self.0?.checked_duration_since(clock::monotonic()).filter(|left| !left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_decides_the_same() {
        let chaos = Chaos { errors: 30, limited: 20, latency_ms: 0 };
        let fates = |seed| {
            let mut dice = Dice::new(seed);
            (0..1000).map(|_| dice.decide(chaos)).collect::<Vec<_>>()
        };
        assert_eq!(fates(7), fates(7));
        assert_ne!(fates(7), fates(8));
        let count = |fate| fates(7).iter().filter(|one| **one == fate).count();
        assert!((250..350).contains(&count(Fate::Failed)), "{}", count(Fate::Failed));
        assert!((150..250).contains(&count(Fate::Limited)), "{}", count(Fate::Limited));
    }
}
