//! Failover: which deliveries may go on with the next provider, and which chains of providers are allowed. The functions
//! are pure.

use std::time::Duration;

use super::{Because, Case, Delivery, ErrorClass, Guarantee, Outcome, ProviderDraft, Report};

/// The maximum number of providers in a chain, including the first one.
pub const CHAIN: usize = 5;
/// The maximum number of moves of a delivery in one round.
pub const MAX_MOVES: u32 = CHAIN as u32 - 1;
/// The default of `failover_after_s`, in seconds.
pub const FAILOVER_AFTER_S: i32 = 30;
/// The longest allowed `failover_after_s`, in seconds.
const LONGEST_AFTER_S: i32 = 86_400;

/// Whether a delivery may go on with the next provider after this attempt: the message was certainly not sent, the
/// provider and not the message is the cause, and no earlier attempt may have arrived. Under `at_most_once` a delivery
/// stays with the provider to which it was announced, whatever the answer was.
#[must_use]
pub fn may_move(delivery: &Delivery, report: &Report, case: &Case<'_>, failover_after: Duration) -> bool {
    let is_free = case.guarantee != Guarantee::AtMostOnce
        && !delivery.unclear
        && delivery.facts.provider.is_none()
        && delivery.moves < MAX_MOVES;
    is_free && is_its_fault(report, case.wait() > failover_after)
}

/// Whether the provider is the cause of a failure in which the message was certainly not sent.
fn is_its_fault(report: &Report, waits_long: bool) -> bool {
    match &report.outcome {
        Outcome::Rejected { because: Because::Config, .. } => true,
        Outcome::Deferred { .. } => match report.class() {
            Some(ErrorClass::RateLimited) => waits_long,
            Some(
                ErrorClass::Network
                | ErrorClass::Timeout
                | ErrorClass::ServerError
                | ErrorClass::AuthFailed
                | ErrorClass::Forbidden
                | ErrorClass::Account
                | ErrorClass::Config,
            ) => true,
            _ => false,
        },
        _ => false,
    }
}

/// A provider as a link of a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    pub name: String,
    pub channel: String,
    /// The name of the next provider.
    pub failover: Option<String>,
}

impl From<&ProviderDraft> for Link {
    fn from(draft: &ProviderDraft) -> Self {
        Self { name: draft.name.clone(), channel: draft.channel.clone(), failover: draft.failover.clone() }
    }
}

/// Whether a provider of the channel `next` can serve the deliveries of a provider of the channel `first`.
#[must_use]
pub fn can_follow(first: &str, next: &str) -> bool {
    next == first || next == "*"
}

/// Checks the chains of a tenant's providers after a change of `changed`. `others` may contain its former state.
/// # Errors
/// The field, the problem, and what is allowed.
pub fn check_chains(changed: &Link, others: &[Link]) -> Result<(), String> {
    let mut all: Vec<&Link> = others.iter().filter(|link| link.name != changed.name).collect();
    all.push(changed);
    let find = |name: &str| all.iter().find(|link| link.name == name).copied();
    if let Some(next) = &changed.failover {
        if *next == changed.name {
            return Err(format!("failover: is {next:?}, which is the provider itself; name another provider"));
        }
        let Some(found) = find(next) else {
            return Err(format!("failover: provider {next:?} is not configured; create it first"));
        };
        if !can_follow(&changed.channel, &found.channel) {
            let allowed = match changed.channel.as_str() {
                "*" => "\"*\"".to_owned(),
                channel => format!("{channel:?} or of \"*\""),
            };
            return Err(format!(
                "failover: provider {next:?} serves {:?}; a provider of {allowed} is allowed",
                found.channel
            ));
        }
    }
    let names_it = |link: &&&Link| link.failover.as_ref() == Some(&changed.name);
    if let Some(link) = all.iter().filter(names_it).find(|link| !can_follow(&link.channel, &changed.channel)) {
        return Err(format!(
            "channel: is {:?}, but provider {:?} of {:?} names this provider as its failover; change that first",
            changed.channel, link.name, link.channel
        ));
    }
    all.iter().try_for_each(|first| check_chain(first, find, changed))
}

/// Checks the chain that begins with `first`, if `changed` is part of it.
fn check_chain<'a>(first: &'a Link, find: impl Fn(&str) -> Option<&'a Link>, changed: &Link) -> Result<(), String> {
    let mut chain = vec![first];
    while let Some(next) = chain.last().and_then(|last| last.failover.as_deref()).and_then(&find) {
        let names = || chain.iter().map(|link| link.name.as_str()).collect::<Vec<_>>().join(", ");
        let concerns = chain.iter().any(|link| link.name == changed.name);
        if chain.iter().any(|link| link.name == next.name) {
            let problem = format!("failover: {} and again {} would be a circle; end the chain", names(), next.name);
            return if concerns { Err(problem) } else { Ok(()) };
        }
        chain.push(next);
        if chain.len() > CHAIN && (concerns || next.name == changed.name) {
            let names = chain.iter().map(|link| link.name.as_str()).collect::<Vec<_>>().join(", ");
            return Err(format!("failover: the chain {names} is too long; at most {CHAIN} providers are allowed"));
        }
    }
    Ok(())
}

/// Checks the setting `failover_after_s`.
pub(super) fn check_after(seconds: i32) -> Result<(), String> {
    if (0..=LONGEST_AFTER_S).contains(&seconds) {
        return Ok(());
    }
    Err(format!("failover_after_s: is {seconds}; 0 to {LONGEST_AFTER_S} are allowed"))
}

#[cfg(test)]
mod tests {
    use postcommit::Timestamp;
    use uuid::Uuid;

    use super::*;
    use crate::model::{DeliveryKey, Facts, Policy, Schedule};

    const T0: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

    fn delivery() -> Delivery {
        Delivery {
            key: DeliveryKey { tenant: 1, notification: Uuid::nil(), n: 1 },
            row: 1,
            lane: 1,
            priority: 5,
            due_at: T0,
            leased_at: T0,
            attempts: 0,
            losses: 0,
            seq: 0,
            moves: 0,
            lost_since: None,
            intent_stands: false,
            unclear: false,
            first_try_at: None,
            facts: Facts::new("email", "a@example.com"),
            token: Uuid::nil(),
        }
    }

    /// Whether the delivery moves after this outcome of this class, with a policy that waits 45 seconds.
    fn moves(
        delivery: &Delivery,
        guarantee: Guarantee,
        outcome: Outcome,
        class: Option<ErrorClass>,
        after: u64,
    ) -> bool {
        let policy = Policy::from(Schedule::Fixed { interval_s: 45.0 });
        let report = Report { class, ..Report::from(outcome.clone()) };
        let case = Case {
            outcome: &outcome,
            after: None,
            attempt: 1,
            lost: None,
            policy: &policy,
            guarantee,
            key_window: Duration::from_secs(86_400),
            first_try_at: T0,
            expires_at: T0.plus(Duration::from_secs(86_400)),
            now: T0,
            chance: 0.0,
        };
        may_move(delivery, &report, &case, Duration::from_secs(after))
    }

    #[test]
    fn only_what_was_certainly_not_sent_and_is_the_providers_fault_moves() {
        let faults = ["auth_failed", "forbidden", "timeout", "network", "server_error", "account", "config"];
        for class in ErrorClass::ALL {
            for guarantee in Guarantee::ALL {
                let of = |outcome| moves(&delivery(), guarantee, outcome, Some(class), 60);
                let free = guarantee != Guarantee::AtMostOnce;
                assert_eq!(
                    of(Outcome::deferred("x")),
                    free && faults.contains(&class.name()),
                    "{class:?} {guarantee:?}"
                );
                assert_eq!(of(Outcome::config("x")), free, "a refused account: {guarantee:?}");
                assert!(!of(Outcome::unclear("x")) && !of(Outcome::refused("x")), "{class:?} {guarantee:?}");
                assert!(!of(Outcome::Sent) && !of(Outcome::Delivered));
                assert!(!of(Outcome::Rejected { code: "x".into(), because: Because::Unrecognised }));
            }
        }
    }

    #[test]
    fn a_rate_limit_moves_it_only_if_the_wait_is_long() {
        let limited = |after| {
            moves(
                &delivery(),
                Guarantee::Idempotent,
                Outcome::deferred("http_429"),
                Some(ErrorClass::RateLimited),
                after,
            )
        };
        assert!(limited(44) && limited(0) && !limited(45) && !limited(86_400));
    }

    #[test]
    fn what_may_have_arrived_was_named_or_has_moved_often_stays() {
        let network = |delivery: &Delivery| {
            moves(delivery, Guarantee::Idempotent, Outcome::deferred("connect"), Some(ErrorClass::Network), 30)
        };
        assert!(network(&delivery()) && network(&Delivery { moves: MAX_MOVES - 1, attempts: 9, ..delivery() }));
        assert!(!network(&Delivery { unclear: true, ..delivery() }));
        assert!(!network(&Delivery { moves: MAX_MOVES, ..delivery() }));
        let facts = Facts { provider: Some("desk".into()), ..delivery().facts };
        assert!(!network(&Delivery { facts, ..delivery() }));
    }

    fn links(all: &[(&str, &str, &str)]) -> Vec<Link> {
        let link = |(name, channel, failover): &(&str, &str, &str)| Link {
            name: (*name).into(),
            channel: (*channel).into(),
            failover: Some((*failover).to_owned()).filter(|next| !next.is_empty()),
        };
        all.iter().map(link).collect()
    }

    #[test]
    fn chains_that_lead_nowhere_are_refused_by_name() {
        let known = links(&[
            ("a", "sms", "b"),
            ("b", "sms", "c"),
            ("c", "sms", ""),
            ("all", "*", ""),
            ("mail", "email", ""),
            ("v", "voice", "w"),
            ("w", "voice", "x"),
            ("x", "voice", "y"),
            ("y", "voice", "z"),
            ("z", "voice", ""),
        ]);
        let check =
            |name: &str, channel: &str, failover: &str| check_chains(&links(&[(name, channel, failover)])[0], &known);
        for (name, channel, failover) in
            [("c", "sms", ""), ("c", "sms", "all"), ("new", "sms", "a"), ("b", "*", ""), ("a", "sms", "c")]
        {
            assert_eq!(check(name, channel, failover), Ok(()), "{name} {channel} {failover}");
        }
        for ((name, channel, failover), expected) in [
            (("c", "sms", "c"), "failover: is \"c\", which is the provider itself"),
            (("c", "sms", "nobody"), "failover: provider \"nobody\" is not configured"),
            (
                ("c", "sms", "mail"),
                "failover: provider \"mail\" serves \"email\"; a provider of \"sms\" or of \"*\" is allowed",
            ),
            (("c", "sms", "a"), "failover: a, b, c and again a would be a circle"),
            (("all", "*", "c"), "failover: provider \"c\" serves \"sms\""),
            (("b", "email", ""), "channel: is \"email\", but provider \"a\" of \"sms\" names this provider"),
            (("u", "voice", "v"), "failover: the chain u, v, w, x, y, z is too long; at most 5 providers are allowed"),
            (("z", "voice", "all"), "failover: the chain v, w, x, y, z, all is too long"),
        ] {
            let problem = check(name, channel, failover).unwrap_err();
            assert!(problem.starts_with(expected), "{problem}");
        }
        // A circle that was written directly into the database does not prevent a change of another provider.
        let circle = links(&[("p", "sms", "q"), ("q", "sms", "p"), ("r", "sms", "")]);
        assert_eq!(check_chains(&circle[2], &circle), Ok(()));
        assert!(check_chains(&circle[0], &circle).is_err());
    }
}
