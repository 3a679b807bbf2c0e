//! The circuit breaker: when a service has failed several times in a row, its lane or host is held for a while. The
//! functions here are pure; the dispatcher counts the failures.

use std::time::Duration;

use super::{Because, ErrorClass, Outcome, Report};

/// The default number of failures in a row after which the breaker trips.
pub const BREAKER_FAILURES: i32 = 5;
/// The default length of the first cool-down, in seconds. It doubles with each further trip.
pub const BREAKER_COOL_DOWN_S: i32 = 5;
/// The longest cool-down.
pub const LONGEST_COOL_DOWN: Duration = Duration::from_secs(300);
/// The largest share by which a cool-down is randomly shortened, so that processes do not all try the service again at
/// the same moment.
const JITTER: f64 = 0.2;

/// What a report says about the service that was asked to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// The service works: it accepted the message, or refused it because of its address or content.
    Well,
    /// The service itself failed: it could not be reached, did not answer in time, or failed to process the request. A rate
    /// limit without a time to wait counts as well: the cool-down finds out how long the service needs.
    Failed,
    /// The report says nothing about the health of the service: a rate limit with a time to wait or a refused account,
    /// which close the lane without the breaker, or a failure that concerns one recipient only.
    Unknown,
}

impl Health {
    /// The health of the service according to a report.
    #[must_use]
    pub fn of(report: &Report) -> Self {
        match &report.outcome {
            Outcome::Sent | Outcome::Delivered => Self::Well,
            // A wrong account or setting pauses the lane, so the breaker does not count it.
            Outcome::Rejected { because: Because::Config, .. } => Self::Unknown,
            Outcome::Deferred { .. } | Outcome::Rejected { .. } | Outcome::Unclear { .. } => Self::of_failure(report),
        }
    }

    #[cold]
    fn of_failure(report: &Report) -> Self {
        match report.class() {
            Some(ErrorClass::InvalidAddress | ErrorClass::InvalidContent | ErrorClass::TemplateRejected) => Self::Well,
            _ if report.only_delivery => Self::Unknown,
            Some(ErrorClass::Timeout | ErrorClass::Network | ErrorClass::ServerError) => Self::Failed,
            Some(ErrorClass::RateLimited) if report.after.is_none() => Self::Failed,
            _ => Self::Unknown,
        }
    }
}

/// The time for which the lane or host is held when its breaker trips. `trips` is the number of earlier trips since the
/// last success, and `chance` a random number in 0..1.
#[must_use]
pub fn cool_down(first_s: i32, trips: i32, chance: f64) -> Duration {
    let doublings = u32::try_from(trips).unwrap_or(0).min(16);
    let first = Duration::from_secs(u64::try_from(first_s).unwrap_or(1).max(1));
    (first * 2_u32.pow(doublings)).min(LONGEST_COOL_DOWN).mul_f64(1.0 - JITTER * chance.clamp(0.0, 1.0))
}

/// Checks the settings `breaker_failures` and `breaker_cool_down_s`.
pub(super) fn check(failures: i32, cool_down_s: i32) -> Result<(), String> {
    if !(0..=100).contains(&failures) {
        return Err(format!("breaker_failures: is {failures}; 0 to 100 are allowed, and 0 switches the breaker off"));
    }
    if !(1..=300).contains(&cool_down_s) {
        return Err(format!("breaker_cool_down_s: is {cool_down_s}; 1 to 300 are allowed"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_failures_of_the_service_itself_count() {
        let of = |outcome: Outcome, class| Health::of(&Report { class, ..Report::from(outcome) });
        for class in ErrorClass::ALL {
            let expected = match class.name() {
                "timeout" | "network" | "server_error" | "rate_limited" => Health::Failed,
                "invalid_address" | "invalid_content" | "template_rejected" => Health::Well,
                _ => Health::Unknown,
            };
            for outcome in [Outcome::deferred("x"), Outcome::unclear("x"), Outcome::refused("x")] {
                assert_eq!(of(outcome.clone(), Some(class)), expected, "{outcome:?} {class:?}");
            }
            assert_eq!(of(Outcome::config("http_401"), Some(class)), Health::Unknown);
        }
        assert_eq!((of(Outcome::Sent, None), of(Outcome::Delivered, None)), (Health::Well, Health::Well));
        assert_eq!(of(Outcome::deferred("connect"), None), Health::Failed, "the class follows from the code");
        assert_eq!(of(Outcome::unclear("lease_expired"), None), Health::Unknown);
    }

    #[test]
    fn a_rate_limit_that_closes_the_lane_or_concerns_one_recipient_does_not_count() {
        let limited = Report { class: Some(ErrorClass::RateLimited), ..Report::from(Outcome::deferred("http_429")) };
        assert_eq!(Health::of(&limited), Health::Failed);
        assert_eq!(Health::of(&Report { after: Some(Duration::from_secs(9)), ..limited.clone() }), Health::Unknown);
        for class in [ErrorClass::RateLimited, ErrorClass::ServerError, ErrorClass::Network] {
            let report = Report { only_delivery: true, class: Some(class), ..limited.clone() };
            assert_eq!(Health::of(&report), Health::Unknown, "{class:?}");
        }
    }

    #[test]
    fn the_cool_down_doubles_to_five_minutes_and_is_only_shortened() {
        let seconds: Vec<u64> = (0..9).map(|trips| cool_down(5, trips, 0.0).as_secs()).collect();
        assert_eq!(seconds, [5, 10, 20, 40, 80, 160, 300, 300, 300]);
        assert_eq!(cool_down(300, i32::MAX, 0.0), LONGEST_COOL_DOWN);
        for trips in [-1, 0, 3, 40] {
            let (longest, shortest) = (cool_down(5, trips, 0.0), cool_down(5, trips, 1.0));
            assert_eq!(shortest, longest.mul_f64(0.8));
            assert!((shortest..=longest).contains(&cool_down(5, trips, 0.4)));
        }
    }

    #[test]
    fn settings_out_of_range_are_refused_by_name() {
        assert_eq!((check(0, 1), check(100, 300)), (Ok(()), Ok(())));
        for (failures, cool_down_s, expected) in [
            (-1, 5, "breaker_failures: is -1; 0 to 100 are allowed"),
            (101, 5, "breaker_failures: is 101; 0 to 100 are allowed"),
            (5, 0, "breaker_cool_down_s: is 0; 1 to 300 are allowed"),
            (5, 301, "breaker_cool_down_s: is 301; 1 to 300 are allowed"),
        ] {
            assert!(check(failures, cool_down_s).unwrap_err().starts_with(expected));
        }
    }
}
