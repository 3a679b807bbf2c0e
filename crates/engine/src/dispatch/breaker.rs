//! The circuit breaker of a lane in this process: it counts consecutive failures of the service and, once it has
//! tripped, lets one send at a time probe the service (docs/decisions/0040). The hosts of a lane have breakers of their
//! own (`hosts`).

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use postcommit_channel::clock;
use postcommit_channel::model::{Delivery, Health, Provider, Report, StoredNotification, cool_down};

use super::hosts::HostSlot;
use super::lanes::Lane;
use super::local_close::CloseDemand;
use super::{Crew, attempt};

/// The breaker of one lane. A new value replaces it when the breaker trips or the lane recovers, so that late results
/// of earlier sends are not counted.
#[derive(Default)]
pub struct Breaker {
    /// How many sends failed in a row. Read after every successful send, which writes it only if it is not 0.
    failures: AtomicU32,
    /// Whether a send probes the lane now.
    is_probed: AtomicBool,
    /// When a new delivery was last given to a probed lane, instead of to the next provider.
    given_at: Mutex<Option<Instant>>,
}

/// The right to probe a lane whose breaker has tripped. Dropping it allows the next probe.
pub struct Probe<'a>(&'a Breaker);

impl Drop for Probe<'_> {
    fn drop(&mut self) {
        self.0.is_probed.store(false, Ordering::Release);
    }
}

/// What the result of a send means for the breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Nothing changes.
    None,
    /// The service failed once too often: hold the lane or host. Contains the failures in a row.
    Trip(u32),
    /// The service works again: end the probing.
    Recover,
}

impl Turn {
    /// Returns what a send's health means for the breaker. `failures` counts the failures in a row, including this one.
    /// A `limit` of 0 turns the breaker off.
    pub fn of(health: Health, failures: u32, trips: i32, limit: i32) -> Self {
        let limit = u32::try_from(limit).unwrap_or(0);
        match health {
            Health::Well if trips > 0 => Self::Recover,
            // Each multiple of the limit trips again, because a trip that could not be written has closed nothing.
            Health::Failed if limit > 0 && (trips > 0 || failures.is_multiple_of(limit)) => Self::Trip(failures),
            _ => Self::None,
        }
    }
}

impl Breaker {
    /// Takes the right to probe. `None` while another send probes.
    pub fn probe(&self) -> Option<Probe<'_>> {
        // Dropping a second `Probe` would end the running one, so it is created only if the right was free.
        let is_first = !self.is_probed.swap(true, Ordering::AcqRel);
        is_first.then(|| Probe(self))
    }

    /// Returns whether a new delivery should probe this lane. Returns true once per cool-down, because the last
    /// delivery that was chosen may never be sent.
    pub fn wants_probe(&self, provider: &Provider) -> bool {
        let mut given_at = self.given_at.lock().unwrap_or_else(PoisonError::into_inner);
        let cool_down = Duration::from_secs(u64::try_from(provider.breaker_cool_down_s).unwrap_or(1));
        let wants = given_at.is_none_or(|at| at.elapsed() >= cool_down);
        if wants {
            *given_at = Some(clock::monotonic());
        }
        wants
    }

    /// Gives back the turn that [`Breaker::wants_probe`] gave, because no delivery was there to take it. Otherwise the
    /// next delivery would have to wait for another cool-down.
    pub fn keep_turn(&self) {
        *self.given_at.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Counts the result of a send over the lane of this provider.
    fn note(&self, health: Health, provider: &Provider) -> Turn {
        let failures = match health {
            Health::Failed => self.failures.fetch_add(1, Ordering::Relaxed) + 1,
            Health::Well if self.failures.load(Ordering::Relaxed) > 0 => {
                self.failures.store(0, Ordering::Relaxed);
                0
            }
            Health::Well | Health::Unknown => 0,
        };
        Turn::of(health, failures, provider.trips, provider.breaker_failures)
    }
}

/// Releases the slot of the host. Returns what the send's result means for the breaker of its host or lane, and the
/// trips so far.
pub fn note(lane: &Lane, slot: Option<HostSlot>, report: &Report) -> (Turn, i32) {
    let health = Health::of(report);
    match slot {
        Some(slot) => slot.end(health, lane.provider.breaker_failures),
        None => (lane.breaker.note(health, &lane.provider), lane.provider.trips),
    }
}

/// Returns the hold for a breaker that trips.
pub fn demand((lane, delivery): (&Lane, &Delivery), report: &Report, failures: u32, trips: i32) -> CloseDemand {
    let wait = cool_down(lane.provider.breaker_cool_down_s, trips, attempt::chance(delivery));
    let code = report.outcome.code().unwrap_or("unknown");
    let why = match trips {
        0 => format!("{failures} sends in a row failed, the last one with {code}"),
        _ => format!("the send that probed the service failed with {code}"),
    };
    CloseDemand::trip(wait, trips, why)
}

/// Resets the breaker in the database, because the service works again. If the write fails, the next success repeats
/// it.
pub async fn recover(crew: &Crew, lane: &Lane, (delivery, note): (&Delivery, &StoredNotification), trips: i32) {
    let (store, provider, host) = (&crew.tools.store, &lane.provider, lane.host_of(delivery));
    let recovered = match &host {
        Some(host) => store.recover_host(provider.id, host, trips).await,
        None => store.recover_lane(provider.id, trips).await,
    };
    let tenant = &note.tenant_name;
    match recovered {
        Ok(true) => {
            tracing::info!(tenant, provider = provider.name, host, "a send succeeded again; the breaker is reset");
            crew.stir.notify_one();
        }
        Ok(false) => {}
        Err(problem) => tracing::warn!(
            %problem, tenant, provider = provider.name, host,
            "could not write to the database that sends succeed again; one send is made at a time until it is written"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_of_failures_trips_once_and_each_failed_probe_trips_again() {
        let trips = |failures, trips| Turn::of(Health::Failed, failures, trips, 5);
        let turns: Vec<Turn> = (1..=12).map(|failures| trips(failures, 0)).filter(|turn| *turn != Turn::None).collect();
        assert_eq!(turns, [Turn::Trip(5), Turn::Trip(10)], "the second trip if the first was not written");
        assert_eq!(trips(1, 1), Turn::Trip(1), "a failed probe");
        assert_eq!(Turn::of(Health::Failed, 5, 0, 0), Turn::None, "switched off");
        assert_eq!(Turn::of(Health::Failed, 1, 3, 0), Turn::None, "switched off after it tripped");
    }

    #[test]
    fn only_a_success_ends_the_probing() {
        assert_eq!(Turn::of(Health::Well, 0, 2, 5), Turn::Recover);
        assert_eq!(Turn::of(Health::Unknown, 0, 2, 5), Turn::None);
        assert_eq!(Turn::of(Health::Well, 0, 0, 5), Turn::None);
    }

    #[test]
    fn one_probe_is_under_way_at_a_time() {
        let breaker = Breaker::default();
        let probe = breaker.probe();
        assert!(probe.is_some() && breaker.probe().is_none() && breaker.probe().is_none());
        drop(probe);
        assert!(breaker.probe().is_some());
    }
}
