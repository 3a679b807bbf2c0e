//! Decides what happens to a delivery after an outcome. [`judge`] is pure, so that all cases can be tested.

use std::time::Duration;

use postcommit::Timestamp;

use super::{Because, Guarantee, Outcome, Policy, Reason};

/// The number of leases of one delivery that may run out before it is parked, so that a payload that crashes its worker
/// does not crash workers forever.
pub const MAX_LOSSES: u32 = 10;

/// The maximum number of attempts of one delivery in all its rounds. After that it is always parked.
pub const MAX_ATTEMPTS_IN_ALL: u32 = 1000;

/// The share of the provider's key window in which an unclear attempt may be repeated. The rest is a margin for the
/// slowest attempt.
const WINDOW_SHARE: f64 = 0.8;

/// The decision after an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The delivery has succeeded.
    Done,
    /// Another attempt follows.
    Again {
        /// The time at which the next attempt is due. It is never after the expiry, unless the expiry has already
        /// passed.
        at: Timestamp,
        /// Whether this attempt counts towards the policy's maximum.
        counted: bool,
    },
    /// The delivery is parked until an operator acts.
    Park(Reason),
}

/// An attempt whose end was not recorded, because its lease ran out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lost {
    /// The number of leases that ran out in this round, including this one.
    pub losses: u32,
    /// The time at which the lease of this attempt began.
    pub since: Timestamp,
}

/// All inputs of a decision.
#[derive(Debug, Clone, Copy)]
pub struct Case<'a> {
    /// The outcome that the driver reported.
    pub outcome: &'a Outcome,
    /// The wait that the provider asked for.
    pub after: Option<Duration>,
    /// The number of the attempt in this round, starting at 1.
    pub attempt: u32,
    /// The lost lease, if the lease of the attempt ran out.
    pub lost: Option<Lost>,
    /// The provider's retry policy.
    pub policy: &'a Policy,
    /// The provider's guarantee.
    pub guarantee: Guarantee,
    /// The time for which the provider remembers our key.
    pub key_window: Duration,
    /// The earliest time at which the provider may have seen the key.
    pub first_try_at: Timestamp,
    /// The expiry. No send begins after it.
    pub expires_at: Timestamp,
    /// The current time.
    pub now: Timestamp,
    /// A random number in 0..1 for the jitter.
    pub chance: f64,
}

impl Case<'_> {
    /// The wait before the next attempt: the longer of the policy's wait and the wait that the provider asked for. A
    /// provider's wait that ends at or after the expiry is ignored, because one wrong answer would otherwise end all
    /// further attempts.
    #[must_use]
    pub fn wait(&self) -> Duration {
        let own = self.policy.wait(self.attempt, self.chance);
        let asked = self.after.filter(|asked| self.now.plus(*asked) < self.expires_at);
        own.max(asked.unwrap_or_default())
    }
}

/// Decides what happens with a delivery after an attempt.
#[must_use]
pub fn judge(case: &Case<'_>) -> Verdict {
    match case.outcome {
        Outcome::Sent | Outcome::Delivered => Verdict::Done,
        Outcome::Deferred { .. } => again(case),
        Outcome::Rejected { because: Because::Refused, .. } => Verdict::Park(Reason::Rejected),
        Outcome::Rejected { because: Because::Config, .. } => Verdict::Park(Reason::Config),
        // After an unknown answer the provider may still have accepted the message, so `at_most_once` does not repeat
        // it.
        Outcome::Rejected { because: Because::Unrecognised, .. } if case.guarantee == Guarantee::AtMostOnce => {
            Verdict::Park(Reason::OutcomeUnknown)
        }
        Outcome::Rejected { because: Because::Unrecognised, .. }
            if case.attempt > case.policy.unknown_retries.into() =>
        {
            Verdict::Park(Reason::Rejected)
        }
        Outcome::Rejected { because: Because::Unrecognised, .. } => again(case),
        // The message may have been sent, so the delivery is parked as `outcome_unknown` and not as `rejected`.
        Outcome::Unclear { is_unknown: true, .. } if case.attempt > case.policy.unknown_retries.into() => {
            Verdict::Park(Reason::OutcomeUnknown)
        }
        Outcome::Unclear { .. } => match case.guarantee {
            Guarantee::AtMostOnce => Verdict::Park(Reason::OutcomeUnknown),
            Guarantee::AtLeastOnce => again(case),
            Guarantee::Idempotent => inside_window(case, again(case)),
        },
    }
}

/// Whether the provider may have forgotten the key of an unclear attempt. The dispatcher also checks this before every
/// send, because a lane may be paused for longer than the window.
#[must_use]
pub fn key_window_over(first_try_at: Timestamp, key_window: Duration, at: Timestamp) -> bool {
    at.since(first_try_at) >= key_window.mul_f64(WINDOW_SHARE)
}

fn again(case: &Case<'_>) -> Verdict {
    if let Some(lost) = case.lost {
        return again_after_loss(case, lost);
    }
    if case.attempt >= case.policy.max_attempts.into() {
        return Verdict::Park(Reason::Exhausted);
    }
    // The retry is due at the expiry at the latest. The delivery then ends as expired and does not wait for a retry
    // that would come too late.
    Verdict::Again { at: case.now.plus(case.wait()).min(case.expires_at.max(case.now)), counted: true }
}

/// Decides after the lease of an attempt ran out. An attempt that may have sent the message counts towards the policy's
/// maximum. An attempt that certainly sent nothing does not count.
#[cold]
fn again_after_loss(case: &Case<'_>, lost: Lost) -> Verdict {
    let may_have_been_sent = matches!(case.outcome, Outcome::Unclear { .. });
    if lost.losses > MAX_LOSSES || (may_have_been_sent && case.attempt >= case.policy.max_attempts.into()) {
        return Verdict::Park(Reason::Exhausted);
    }
    let at = match lost.losses {
        // After a second loss, our own writes to the database may be failing. Keep the policy's wait, so that the
        // provider does not get attempts faster than the policy allows.
        2.. if may_have_been_sent => lost.since.plus(case.policy.wait(case.attempt, case.chance)).max(case.now),
        // One worker has died, and the delivery has already waited for its lease to run out. Try again immediately.
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
        let rejected = |because| Outcome::Rejected { code: "r".into(), because };
        vec![
            Outcome::Sent,
            Outcome::Delivered,
            Outcome::deferred("d"),
            rejected(Because::Refused),
            rejected(Because::Config),
            rejected(Because::Unrecognised),
            Outcome::unclear("u"),
            Outcome::unknown("u"),
        ]
    }

    fn policies() -> Vec<Policy> {
        let with = |schedule, max_attempts| Policy { max_attempts, ..Policy::from(schedule) };
        vec![
            Policy::default(),
            with(Schedule::Marketplace, 6),
            with(Schedule::StandardWebhooks, 10),
            with(Schedule::Fixed { interval_s: 45.0 }, 3),
            with(Schedule::Exponential { base_s: 1.0, factor: 2.0, cap_s: 300.0 }, 100),
            with(Schedule::Doubling, 1),
        ]
    }

    /// The rules of `judge`, written independently of its code.
    fn check(case: &Case<'_>, verdict: Verdict) {
        let last = case.attempt >= case.policy.max_attempts.into();
        let in_time = |after: &Duration| case.now.plus(*after) < case.expires_at;
        let floor = case.after.filter(in_time).unwrap_or_default();
        let retry = |verdict: Verdict| match verdict {
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
            (Outcome::Deferred { .. }, _) => retry(verdict),
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
            (Outcome::Unclear { is_unknown: true, .. }, _) if case.attempt > 1 => {
                assert_eq!(verdict, Verdict::Park(Reason::OutcomeUnknown));
            }
            (Outcome::Rejected { .. }, _) | (Outcome::Unclear { .. }, Guarantee::AtLeastOnce) => {
                retry(verdict);
            }
            (Outcome::Unclear { .. }, Guarantee::AtMostOnce) => {
                assert_eq!(verdict, Verdict::Park(Reason::OutcomeUnknown));
            }
            (Outcome::Unclear { .. }, Guarantee::Idempotent) => match verdict {
                Verdict::Again { at, .. } => {
                    assert!(at.since(case.first_try_at) < case.key_window.mul_f64(0.8), "{case:?}");
                    retry(verdict);
                }
                Verdict::Park(Reason::OutcomeUnknown) => {
                    let full = case.policy.wait(case.attempt, case.chance).max(floor);
                    let earliest = case.now.plus(full).min(case.expires_at.max(case.now));
                    assert!(earliest.since(case.first_try_at) >= case.key_window.mul_f64(0.8), "{case:?}");
                }
                other => retry(other),
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
                                let asked = [None, Some(Duration::from_secs(7)), Some(DAY * 90)];
                                for (chance, after) in [0.0, 0.5, 1.0].into_iter().flat_map(|c| asked.map(|a| (c, a))) {
                                    let first_try_at =
                                        Timestamp::from_micros(T0.as_micros() - tried_before * 1_000_000);
                                    let expires_at = Timestamp::from_micros(T0.as_micros() + expires_in * 1_000_000);
                                    let case = Case {
                                        outcome,
                                        after,
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
        assert_eq!(cases, 8 * 3 * 6 * 8 * 4 * 4 * 9);
    }

    #[test]
    fn c8_an_answer_that_nobody_has_described_is_tried_again_as_often_as_the_policy_says() {
        let outcome = Outcome::unknown("unexpected_answer");
        for (unknown_retries, attempts) in [(0, 1), (1, 2), (2, 3)] {
            let policy = Policy { unknown_retries, ..Policy::default() };
            for guarantee in REPEATING {
                let verdict = |attempt| judge(&Case { attempt, guarantee, ..base(&outcome, &policy) });
                let tried = (1..).find(|attempt| !matches!(verdict(*attempt), Verdict::Again { counted: true, .. }));
                assert_eq!(tried, Some(attempts), "{guarantee:?}");
                // The message may have been sent, so the delivery is not parked as rejected.
                assert_eq!(verdict(attempts), Verdict::Park(Reason::OutcomeUnknown));
            }
            let verdict = judge(&Case { guarantee: Guarantee::AtMostOnce, ..base(&outcome, &policy) });
            assert_eq!(verdict, Verdict::Park(Reason::OutcomeUnknown));
        }
    }

    #[test]
    fn d6_a_wait_beyond_the_expiry_does_not_cost_the_next_attempt() {
        let outcome = Outcome::deferred("http_429");
        let policy = Policy::from(Schedule::Fixed { interval_s: 45.0 });
        let wait = |after, expires_in| {
            let expires_at = T0.plus(expires_in);
            let case = Case { after: Some(after), attempt: 1, policy: &policy, expires_at, ..base(&outcome, &policy) };
            (judge(&case), case.wait())
        };
        let own = policy.wait(1, 0.0);
        let again = |wait| (Verdict::Again { at: T0.plus(wait), counted: true }, wait);
        assert_eq!(wait(DAY / 2, DAY), again(DAY / 2), "in time");
        for after in [DAY, DAY * 90, Duration::from_secs(u64::MAX)] {
            assert_eq!(wait(after, DAY), again(own), "the policy's wait");
        }
        let second = Duration::from_secs(1);
        let expiry = Verdict::Again { at: T0.plus(second), counted: true };
        assert_eq!(wait(DAY, second).0, expiry, "the policy's wait is too long as well");
    }

    fn base<'a>(outcome: &'a Outcome, policy: &'a Policy) -> Case<'a> {
        Case {
            outcome,
            after: None,
            attempt: 1,
            lost: None,
            policy,
            guarantee: Guarantee::AtLeastOnce,
            key_window: DAY,
            first_try_at: T0,
            expires_at: T0.plus(DAY),
            now: T0,
            chance: 0.0,
        }
    }

    /// The decision for an attempt whose lease began 100 s ago. After the fourth attempt the policy would wait 480 s.
    fn lost(outcome: &Outcome, guarantee: Guarantee, losses: u32, attempt: u32) -> Verdict {
        let policy = Policy::default();
        let lost = Some(Lost { losses, since: ago(100) });
        judge(&Case { attempt, lost, guarantee, ..base(outcome, &policy) })
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
                lost(&Outcome::unclear("lease_expired"), guarantee, losses, 6),
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
