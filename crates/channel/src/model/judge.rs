//! What an outcome means. A pure function, so that its table can be read and tested whole.

use std::time::Duration;

use postcommit::Timestamp;

use super::{Because, Guarantee, Outcome, Policy, Reason};

/// Leases of one delivery that may run out before it is parked: a payload that kills its worker must not do so forever.
pub const MAX_LOSSES: u32 = 10;

/// Attempts of one delivery in all its rounds, counted and uncounted alike. After that it is parked in any case.
pub const MAX_ATTEMPTS_IN_ALL: u32 = 1000;

/// The share of the provider's key window inside which an unclear attempt is repeated. The rest outlasts the slowest
/// attempt.
const WINDOW_SHARE: f64 = 0.8;

/// What we decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The delivery is over, and succeeded.
    Done,
    /// One more attempt. `counted` attempts use up the policy.
    Again {
        /// When; never after the expiry.
        at: Timestamp,
        /// Whether the policy counts this attempt.
        counted: bool,
    },
    /// Operator action is needed.
    Park(Reason),
}

/// An attempt that was not seen to end: its lease ran out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lost {
    /// Leases that ran out in this round, this one included.
    pub losses: u32,
    /// When this one began.
    pub since: Timestamp,
}

/// Everything a verdict depends on.
#[derive(Debug, Clone, Copy)]
pub struct Case<'a> {
    /// What the channel saw.
    pub outcome: &'a Outcome,
    /// The attempt's number in this round, from 1.
    pub attempt: u32,
    /// The attempt was not seen to end.
    pub lost: Option<Lost>,
    /// The provider's policy.
    pub policy: &'a Policy,
    /// The provider's guarantee.
    pub guarantee: Guarantee,
    /// How long the provider remembers our key.
    pub key_window: Duration,
    /// When the provider may first have seen the key.
    pub first_try_at: Timestamp,
    /// The expiry: no send begins after it.
    pub expires_at: Timestamp,
    /// Now.
    pub now: Timestamp,
    /// A random number in 0..1, for jitter.
    pub chance: f64,
}

/// Decides.
#[must_use]
pub fn judge(case: &Case<'_>) -> Verdict {
    match case.outcome {
        Outcome::Sent | Outcome::Delivered => Verdict::Done,
        Outcome::Deferred { after, .. } => again(case, after.unwrap_or_default()),
        Outcome::Rejected { because: Because::Refused, .. } => Verdict::Park(Reason::Rejected),
        Outcome::Rejected { because: Because::Config, .. } => Verdict::Park(Reason::Config),
        // No answer says that the provider did not take it.
        Outcome::Rejected { because: Because::Unrecognised, .. } if case.guarantee == Guarantee::AtMostOnce => {
            Verdict::Park(Reason::OutcomeUnknown)
        }
        Outcome::Rejected { because: Because::Unrecognised, .. }
            if case.attempt > case.policy.unknown_retries.into() =>
        {
            Verdict::Park(Reason::Rejected)
        }
        Outcome::Rejected { because: Because::Unrecognised, .. } => again(case, Duration::ZERO),
        Outcome::Unclear { .. } => match case.guarantee {
            Guarantee::AtMostOnce => Verdict::Park(Reason::OutcomeUnknown),
            Guarantee::AtLeastOnce => again(case, Duration::ZERO),
            Guarantee::Idempotent => inside_window(case, again(case, Duration::ZERO)),
        },
    }
}

/// Whether a provider may have forgotten a key that an unclear attempt left with it. Asked before every send as well: a
/// paused lane can outlast the window.
#[must_use]
pub fn key_window_over(first_try_at: Timestamp, key_window: Duration, at: Timestamp) -> bool {
    at.since(first_try_at) >= key_window.mul_f64(WINDOW_SHARE)
}

fn again(case: &Case<'_>, after: Duration) -> Verdict {
    if let Some(lost) = case.lost {
        return again_after_loss(case, lost);
    }
    if case.attempt >= case.policy.max_attempts.into() {
        return Verdict::Park(Reason::Exhausted);
    }
    let wait = case.policy.wait(case.attempt, case.chance).max(after);
    // Due at the expiry at the latest: there it is found expired, instead of waiting for a retry that cannot come.
    Verdict::Again { at: case.now.plus(wait).min(case.expires_at.max(case.now)), counted: true }
}

/// The lease of the attempt ran out. What may have been sent uses up the policy; what certainly was not uses up
/// nothing.
#[cold]
fn again_after_loss(case: &Case<'_>, lost: Lost) -> Verdict {
    let may_have_been_sent = matches!(case.outcome, Outcome::Unclear { .. });
    if lost.losses > MAX_LOSSES || (may_have_been_sent && case.attempt >= case.policy.max_attempts.into()) {
        return Verdict::Park(Reason::Exhausted);
    }
    let at = match lost.losses {
        // If it is lost again, our own writes may be failing: then the provider must not see more attempts than the
        // policy allows.
        2.. if may_have_been_sent => lost.since.plus(case.policy.wait(case.attempt, case.chance)).max(case.now),
        // One worker has died, and its lease has been waited out: the delivery must not wait longer.
        _ => case.now,
    };
    Verdict::Again { at: at.min(case.expires_at.max(case.now)), counted: may_have_been_sent }
}

fn inside_window(case: &Case<'_>, verdict: Verdict) -> Verdict {
    match verdict {
        Verdict::Again { at, .. } if key_window_over(case.first_try_at, case.key_window, at) => {
            Verdict::Park(Reason::OutcomeUnknown)
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Schedule;

    const T0: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);
    const DAY: Duration = Duration::from_secs(86_400);

    fn outcomes() -> Vec<Outcome> {
        let deferred = |after| Outcome::Deferred { code: "d".into(), after };
        let rejected = |because| Outcome::Rejected { code: "r".into(), because };
        vec![
            Outcome::Sent,
            Outcome::Delivered,
            deferred(None),
            deferred(Some(Duration::from_secs(7))),
            deferred(Some(DAY * 90)),
            rejected(Because::Refused),
            rejected(Because::Config),
            rejected(Because::Unrecognised),
            Outcome::unclear("u"),
        ]
    }

    fn policies() -> Vec<Policy> {
        let with = |schedule, max_attempts| Policy { schedule, max_attempts, unknown_retries: 1 };
        vec![
            Policy::default(),
            with(Schedule::Marketplace, 5),
            with(Schedule::Fixed { interval_s: 45.0 }, 3),
            with(Schedule::Exponential { base_s: 1.0, factor: 2.0, cap_s: 300.0, jitter: 0.5 }, 100),
            with(Schedule::Doubling, 1),
        ]
    }

    /// The rules once more, stated as a table of what must hold, not as the code above.
    fn check(case: &Case<'_>, verdict: Verdict) {
        let last = case.attempt >= case.policy.max_attempts.into();
        let retry = |verdict: Verdict, floor: Duration| match verdict {
            Verdict::Again { at, counted: true } => {
                assert!(!last, "{case:?}");
                assert!(at <= case.expires_at.max(case.now), "never past the expiry: {case:?}");
                let full = case.policy.wait(case.attempt, case.chance).max(floor);
                assert!(at == case.now.plus(full) || at == case.expires_at.max(case.now), "{case:?} {verdict:?}");
            }
            Verdict::Park(Reason::Exhausted) => assert!(last, "{case:?}"),
            other => panic!("{case:?} gave {other:?}"),
        };
        match (case.outcome, case.guarantee) {
            (Outcome::Sent | Outcome::Delivered, _) => assert_eq!(verdict, Verdict::Done),
            (Outcome::Deferred { after, .. }, _) => retry(verdict, after.unwrap_or_default()),
            (Outcome::Rejected { because: Because::Refused, .. }, _) => {
                assert_eq!(verdict, Verdict::Park(Reason::Rejected));
            }
            (Outcome::Rejected { because: Because::Config, .. }, _) => {
                assert_eq!(verdict, Verdict::Park(Reason::Config));
            }
            (Outcome::Rejected { because: Because::Unrecognised, .. }, Guarantee::AtMostOnce) => {
                assert_eq!(verdict, Verdict::Park(Reason::OutcomeUnknown));
            }
            (Outcome::Rejected { because: Because::Unrecognised, .. }, _) if case.attempt > 1 => {
                assert_eq!(verdict, Verdict::Park(Reason::Rejected));
            }
            (Outcome::Rejected { .. }, _) | (Outcome::Unclear { .. }, Guarantee::AtLeastOnce) => {
                retry(verdict, Duration::ZERO);
            }
            (Outcome::Unclear { .. }, Guarantee::AtMostOnce) => {
                assert_eq!(verdict, Verdict::Park(Reason::OutcomeUnknown));
            }
            (Outcome::Unclear { .. }, Guarantee::Idempotent) => match verdict {
                Verdict::Again { at, .. } => {
                    assert!(at.since(case.first_try_at) < case.key_window.mul_f64(0.8), "{case:?}");
                    retry(verdict, Duration::ZERO);
                }
                Verdict::Park(Reason::OutcomeUnknown) => {
                    let earliest =
                        case.now.plus(case.policy.wait(case.attempt, case.chance)).min(case.expires_at.max(case.now));
                    assert!(earliest.since(case.first_try_at) >= case.key_window.mul_f64(0.8), "{case:?}");
                }
                other => retry(other, Duration::ZERO),
            },
        }
    }

    #[test]
    fn d6_every_outcome_guarantee_attempt_policy_and_expiry() {
        let mut cases = 0;
        for outcome in &outcomes() {
            for guarantee in Guarantee::ALL {
                for policy in &policies() {
                    for attempt in [1, 2, 3, 4, 5, 6, 99, 100] {
                        for expires_in in [-60_i64, 30, 90, 86_400 * 30] {
                            for (tried_before, window) in
                                [(0, DAY), (69_000, DAY), (90_000, DAY), (0, Duration::from_secs(1))]
                            {
                                for chance in [0.0, 0.5, 1.0] {
                                    let first_try_at =
                                        Timestamp::from_micros(T0.as_micros() - tried_before * 1_000_000);
                                    let expires_at = Timestamp::from_micros(T0.as_micros() + expires_in * 1_000_000);
                                    let case = Case {
                                        outcome,
                                        attempt,
                                        lost: None,
                                        policy,
                                        guarantee,
                                        key_window: window,
                                        first_try_at,
                                        expires_at,
                                        now: T0,
                                        chance,
                                    };
                                    check(&case, judge(&case));
                                    cases += 1;
                                }
                            }
                        }
                    }
                }
            }
        }
        println!("{cases} cases judged");
        assert_eq!(cases, 9 * 3 * 5 * 8 * 4 * 4 * 3);
    }

    /// The fourth attempt of five; its lease began 100 s ago, and the policy waits 480 s after it.
    fn lost(outcome: &Outcome, guarantee: Guarantee, losses: u32, attempt: u32) -> Verdict {
        let policy = Policy::default();
        judge(&Case {
            outcome,
            attempt,
            lost: Some(Lost { losses, since: ago(100) }),
            policy: &policy,
            guarantee,
            key_window: DAY,
            first_try_at: T0,
            expires_at: T0.plus(DAY),
            now: T0,
            chance: 0.0,
        })
    }

    fn ago(seconds: i64) -> Timestamp {
        Timestamp::from_micros(T0.as_micros() - seconds * 1_000_000)
    }

    const REPEATING: [Guarantee; 2] = [Guarantee::Idempotent, Guarantee::AtLeastOnce];

    #[test]
    fn the_first_lost_lease_is_repeated_immediately_and_counted() {
        for guarantee in REPEATING {
            let verdict = lost(&Outcome::unclear("lease_expired"), guarantee, 1, 4);
            assert_eq!(verdict, Verdict::Again { at: T0, counted: true });
        }
    }

    #[test]
    fn later_ones_wait_as_the_policy_says_from_where_the_lost_lease_began() {
        for guarantee in REPEATING {
            let verdict = lost(&Outcome::unclear("lease_expired"), guarantee, 2, 4);
            assert_eq!(verdict, Verdict::Again { at: ago(100).plus(Duration::from_secs(480)), counted: true });
            let verdict = lost(&Outcome::unclear("lease_expired"), guarantee, 2, 1);
            assert_eq!(verdict, Verdict::Again { at: T0, counted: true }, "waited for already");
        }
    }

    #[test]
    fn lost_leases_use_up_the_policy() {
        for (guarantee, losses) in REPEATING.into_iter().flat_map(|guarantee| [(guarantee, 1), (guarantee, 5)]) {
            assert_eq!(
                lost(&Outcome::unclear("lease_expired"), guarantee, losses, 5),
                Verdict::Park(Reason::Exhausted)
            );
        }
    }

    #[test]
    fn what_was_certainly_not_sent_is_repeated_immediately_and_uses_up_nothing() {
        for (losses, attempt) in [(1, 1), (10, 5), (10, 100)] {
            let verdict = lost(&Outcome::deferred("lease_expired"), Guarantee::AtMostOnce, losses, attempt);
            assert_eq!(verdict, Verdict::Again { at: T0, counted: false });
        }
    }

    #[test]
    fn a_lost_lease_after_an_announced_send_is_unknown() {
        assert_eq!(
            lost(&Outcome::unclear("lease_expired"), Guarantee::AtMostOnce, 1, 4),
            Verdict::Park(Reason::OutcomeUnknown)
        );
    }

    #[test]
    fn what_kills_its_worker_every_time_is_parked_in_the_end() {
        for guarantee in REPEATING {
            assert_eq!(lost(&Outcome::unclear("lease_expired"), guarantee, 11, 1), Verdict::Park(Reason::Exhausted));
        }
        assert_eq!(
            lost(&Outcome::deferred("lease_expired"), Guarantee::AtMostOnce, 11, 1),
            Verdict::Park(Reason::Exhausted)
        );
    }
}
