//! The promise as a model check: one delivery, a few workers and an adversary, in every possible order of events.
//!
//! The model ([`protocol`]) is written from the description of the protocol: claim → intent → send → settle, with a
//! random token that fences every later write. The guarantee decides what follows an unclear attempt. In some variants
//! the target has no row of its own at first: it is sent and settled from its notification's row, which is expanded
//! where the send must be announced. The adversary crashes workers, lets leases run out at any moment (also while
//! another worker judges an earlier loss), loses requests and replies, and delivers requests late. In some variants it
//! also fails the database over to a replica without the last commit, lets the provider forget the key, or changes the
//! guarantee to at_most_once. `stateright` visits every reachable state within the bounds (2 workers, 4 attempts, 2
//! lost leases and 2 crashes unless said otherwise).
//!
//! Every invariant must hold in all safe variants. As a check on the check, each guard is then removed alone, and
//! exactly the named invariants must break: a guard whose removal breaks nothing is either useless or untested.
//!
//! Limits of the model: it does not run the product's code, and it trusts the database to make each transaction atomic.
//! It has one delivery, no clock, and no rejections, deferrals, cancels or receipts. It assumes that the margin between
//! a key's window and its life is longer than an attempt, and that a lease shows which guarantee its holder knew (the
//! product derives that from the time, with a margin). When the attempts are used up after an unclear one, the model
//! says unknown; the product says `exhausted` and sets `unclear` (docs/decisions/0009). The store and crash tests show
//! that the code does what the model says.
//!
//! `cargo test -p postcommit-engine model_ -- --nocapture` prints the table and, for each removed guard, the shortest
//! trace to the violation.

mod protocol;
mod state;
mod steps;

use protocol::{
    ACCEPTED_ONCE, INVARIANTS, NO_FALSE_FAILURE, NO_FALSE_SUCCESS, ONE_EFFECT, ONE_PLACE, QUIET_IS_FINISHED, REACHED,
    STALE_NEVER_WRITES, SUCCESS_STAYS,
};
use protocol::{Classing, Intent, Loss, OwnRow, Protocol, Settle, TokenKind, Window};
use state::Guarantee;
use stateright::{Checker, HasDiscoveries, Model};
use std::collections::BTreeSet;

const AT_MOST_ONCE: Protocol = Protocol::ours(Guarantee::AtMostOnce);
const AT_LEAST_ONCE: Protocol = Protocol::ours(Guarantee::AtLeastOnce);
const IDEMPOTENT: Protocol = Protocol::ours(Guarantee::Idempotent);

/// The only target, sent from its notification's own row.
const AT_MOST_ONCE_OWN: Protocol = Protocol::from_own_row(Guarantee::AtMostOnce);
const AT_LEAST_ONCE_OWN: Protocol = Protocol::from_own_row(Guarantee::AtLeastOnce);
const IDEMPOTENT_OWN: Protocol = Protocol::from_own_row(Guarantee::Idempotent);

/// Repeated freely until the guarantee is changed to at_most_once.
const STRICTER: Protocol = Protocol { made_stricter: true, ..AT_LEAST_ONCE };
const STRICTER_OWN: Protocol = Protocol { made_stricter: true, ..AT_LEAST_ONCE_OWN };

/// A protocol and the invariants that it breaks, apart from those that are not promised. All others must hold.
struct Variant {
    name: &'static str,
    protocol: Protocol,
    breaks: &'static [&'static str],
}

const fn variant(name: &'static str, protocol: Protocol, breaks: &'static [&'static str]) -> Variant {
    Variant { name, protocol, breaks }
}

/// The product's protocol, in environments in which it keeps its promise.
const SAFE: &[Variant] = &[
    variant("at_most_once", AT_MOST_ONCE, &[]),
    variant(
        "at_most_once, 3 workers, 5 attempts, 3 crashes",
        Protocol { workers: 3, attempts: 5, crashes: 3, ..AT_MOST_ONCE },
        &[],
    ),
    variant("at_most_once, given back", Protocol { give_backs: 1, ..AT_MOST_ONCE }, &[]),
    variant("at_least_once", AT_LEAST_ONCE, &[]),
    variant("at_least_once, failover", Protocol { failovers: 1, ..AT_LEAST_ONCE }, &[]),
    variant("idempotent, key expires", Protocol { key_expires: true, ..IDEMPOTENT }, &[]),
    variant("idempotent, failover", Protocol { failovers: 1, ..IDEMPOTENT }, &[]),
    variant("made at_most_once", STRICTER, &[]),
    variant("made at_most_once, given back", Protocol { give_backs: 1, ..STRICTER }, &[]),
    variant("own row: at_most_once", AT_MOST_ONCE_OWN, &[]),
    variant("own row: at_least_once", AT_LEAST_ONCE_OWN, &[]),
    variant("own row: at_least_once, failover", Protocol { failovers: 1, ..AT_LEAST_ONCE_OWN }, &[]),
    variant(
        "own row: idempotent, key expires, given back",
        Protocol { key_expires: true, give_backs: 1, ..IDEMPOTENT_OWN },
        &[],
    ),
    variant("own row: made at_most_once", STRICTER_OWN, &[]),
    variant("own row: made at_most_once, given back", Protocol { give_backs: 1, ..STRICTER_OWN }, &[]),
    variant("own row: made at_most_once, 3 workers", Protocol { workers: 3, ..STRICTER_OWN }, &[]),
];

/// Protocols with one guard removed.
const UNGUARDED: &[Variant] = &[
    variant(
        "settle by key alone",
        Protocol { settle: Settle::ByKey, ..AT_LEAST_ONCE },
        &[STALE_NEVER_WRITES, SUCCESS_STAYS],
    ),
    variant(
        "settle guarded by state alone",
        Protocol { settle: Settle::WhereLeased, ..AT_LEAST_ONCE },
        &[STALE_NEVER_WRITES],
    ),
    variant(
        "ledger insert not tied to the delete",
        Protocol { settle: Settle::InsertUntied, ..AT_LEAST_ONCE },
        &[STALE_NEVER_WRITES, ONE_PLACE],
    ),
    variant(
        "attempt number as token, failover",
        Protocol { token: TokenKind::AttemptNumber, failovers: 1, ..IDEMPOTENT },
        &[STALE_NEVER_WRITES],
    ),
    variant(
        "intent not fenced",
        Protocol { intent: Intent::Unfenced, ..AT_MOST_ONCE },
        &[ACCEPTED_ONCE, STALE_NEVER_WRITES, NO_FALSE_FAILURE],
    ),
    variant("no intent", Protocol { intent: Intent::Never, ..AT_MOST_ONCE }, &[ACCEPTED_ONCE, NO_FALSE_FAILURE]),
    variant(
        "accepted, then reset: classed as not sent",
        Protocol { classing: Classing::ResetIsNotSent, ..AT_MOST_ONCE },
        &[ACCEPTED_ONCE, NO_FALSE_FAILURE],
    ),
    variant(
        "written classed as sent",
        Protocol { classing: Classing::WrittenIsSent, ..AT_MOST_ONCE },
        &[NO_FALSE_SUCCESS],
    ),
    variant("client re-sends silently", Protocol { client_resends: true, ..AT_MOST_ONCE }, &[ACCEPTED_ONCE]),
    variant(
        "key's window ignored",
        Protocol { window: Window::Ignored, key_expires: true, ..IDEMPOTENT },
        &[ONE_EFFECT],
    ),
    variant(
        "key's window judged at settle only",
        Protocol { window: Window::AtSettleOnly, key_expires: true, ..IDEMPOTENT },
        &[ONE_EFFECT],
    ),
    variant(
        "key's window without margin",
        Protocol { window: Window::WithoutMargin, key_expires: true, ..IDEMPOTENT },
        &[ONE_EFFECT],
    ),
    variant(
        "earlier unclear attempt forgotten",
        Protocol { remembers_unclear: false, key_expires: true, ..IDEMPOTENT },
        &[ONE_EFFECT, NO_FALSE_FAILURE],
    ),
    variant("no takeover", Protocol { takeover: false, ..AT_LEAST_ONCE }, &[QUIET_IS_FINISHED]),
    variant(
        "at_most_once, a loss forgotten when given back",
        Protocol { loss: Loss::ForgottenWhenGivenBack, give_backs: 1, ..AT_MOST_ONCE },
        &[ACCEPTED_ONCE, NO_FALSE_FAILURE],
    ),
    variant(
        "made at_most_once, the last loss judged alone",
        Protocol { loss: Loss::LastJudged, ..STRICTER },
        &[ACCEPTED_ONCE, NO_FALSE_FAILURE],
    ),
    variant(
        "made at_most_once, the time of the change is ignored",
        Protocol { loss: Loss::ByPresentGuarantee, ..STRICTER },
        &[ACCEPTED_ONCE, NO_FALSE_FAILURE],
    ),
    variant(
        "own row: settle by key alone",
        Protocol { settle: Settle::ByKey, ..AT_LEAST_ONCE_OWN },
        &[STALE_NEVER_WRITES, SUCCESS_STAYS],
    ),
    variant(
        "own row: settle guarded by state alone",
        Protocol { settle: Settle::WhereLeased, ..AT_LEAST_ONCE_OWN },
        &[STALE_NEVER_WRITES],
    ),
    variant(
        "own row: expansion not fenced",
        Protocol { expansion_fenced: false, ..AT_MOST_ONCE_OWN },
        &[ACCEPTED_ONCE, STALE_NEVER_WRITES, ONE_PLACE, NO_FALSE_FAILURE],
    ),
    variant(
        "own row: at_most_once sends from it",
        Protocol { own_row: OwnRow::SendsUnannounced, ..AT_MOST_ONCE_OWN },
        &[ACCEPTED_ONCE, NO_FALSE_FAILURE],
    ),
    variant(
        "own row: its loss taken for harmless",
        Protocol { loss: Loss::HarmlessWhenOwn, key_expires: true, ..IDEMPOTENT_OWN },
        &[ONE_EFFECT, NO_FALSE_FAILURE],
    ),
    variant(
        "own row: made at_most_once, its loss harmless",
        Protocol { loss: Loss::HarmlessWhenOwn, ..STRICTER_OWN },
        &[ACCEPTED_ONCE, NO_FALSE_FAILURE],
    ),
    variant(
        "own row: made at_most_once, the time of the change is ignored",
        Protocol { loss: Loss::ByPresentGuarantee, ..STRICTER_OWN },
        &[ACCEPTED_ONCE, NO_FALSE_FAILURE],
    ),
    variant(
        "own row: made at_most_once, last loss alone",
        Protocol { loss: Loss::LastJudged, ..STRICTER_OWN },
        &[ACCEPTED_ONCE, NO_FALSE_FAILURE],
    ),
    variant(
        "own row: made at_most_once, loss given back",
        Protocol { loss: Loss::ForgottenWhenGivenBack, give_backs: 1, ..STRICTER_OWN },
        &[ACCEPTED_ONCE, NO_FALSE_FAILURE],
    ),
];

/// No guard is missing here: a database that forgets a commit loses the memory that the promise rests on. Hence the
/// documented demand for a synchronous standby.
const LIMITS: &[Variant] = &[
    variant("at_most_once, failover", Protocol { failovers: 1, ..AT_MOST_ONCE }, &[ACCEPTED_ONCE]),
    variant(
        "idempotent, key expires, failover",
        Protocol { failovers: 1, key_expires: true, ..IDEMPOTENT },
        &[ONE_EFFECT],
    ),
];

#[test]
fn model_safe_variants_hold_exhaustively() {
    for variant in check_all(SAFE) {
        let missed: Vec<_> = REACHED.iter().filter(|name| !variant.found.contains(*name)).collect();
        assert!(missed.is_empty(), "never reached, so the invariants say little: {missed:?}");
    }
}

#[test]
fn model_each_removed_guard_is_caught() {
    check_all(UNGUARDED);
    print_traces(UNGUARDED);
}

#[test]
fn model_documented_limits_are_real() {
    check_all(LIMITS);
    print_traces(LIMITS);
}

/// An invariant that no removed guard breaks would prove nothing.
#[test]
fn model_every_invariant_is_broken_by_some_removed_guard() {
    let broken: BTreeSet<_> = UNGUARDED.iter().flat_map(|variant| variant.breaks).copied().collect();
    assert_eq!(broken, BTreeSet::from(INVARIANTS));
}

/// The results of `stateright`: broken invariants and reached goals.
struct Findings {
    states: usize,
    found: BTreeSet<&'static str>,
}

fn check_all(variants: &[Variant]) -> Vec<Findings> {
    println!("{:<50}{:>8}  I1 I2 I3 I4 I5 I6 I7 I8", "variant", "states");
    variants.iter().map(check).collect()
}

/// Checks both directions: the named invariants break, and no other invariant does in any reachable state.
fn check(variant: &Variant) -> Findings {
    let findings = explore(variant.protocol);
    println!("{}", table_row(variant, &findings));
    let broken: BTreeSet<_> = INVARIANTS.into_iter().filter(|name| findings.found.contains(name)).collect();
    let expected: BTreeSet<_> = unpromised(variant.protocol).chain(variant.breaks.iter().copied()).collect();
    for surprise in broken.difference(&expected) {
        println!("{surprise}: {}", shortest_trace(variant.protocol, surprise));
    }
    assert_eq!(broken, expected, "invariants broken by \"{}\"", variant.name);
    findings
}

/// Invariants that are not promised. Only at_most_once, once the workers know it, promises that the provider sees a
/// delivery once. No verdict can be certain when the database may have forgotten an attempt.
fn unpromised(protocol: Protocol) -> impl Iterator<Item = &'static str> {
    let repeats = protocol.guarantee != Guarantee::AtMostOnce && !protocol.made_stricter;
    let forgets = protocol.failovers > 0;
    repeats.then_some(ACCEPTED_ONCE).into_iter().chain(forgets.then_some(NO_FALSE_FAILURE))
}

/// Visits every reachable state. It would stop early only if every invariant were broken and every goal reached.
fn explore(protocol: Protocol) -> Findings {
    let checker = protocol.checker().spawn_bfs().join();
    Findings { states: checker.unique_state_count(), found: checker.discoveries().into_keys().collect() }
}

/// `ok` where an invariant holds, `--` where it is not promised, `XX` where it breaks because of a removed guard.
fn table_row(variant: &Variant, findings: &Findings) -> String {
    let verdict = |name| match findings.found.contains(name) {
        false => " ok",
        true if unpromised(variant.protocol).any(|allowed| allowed == name) => " --",
        true => " XX",
    };
    let verdicts: String = INVARIANTS.into_iter().map(verdict).collect();
    format!("{:<50}{:>8} {verdicts}", variant.name, findings.states)
}

fn print_traces(variants: &[Variant]) {
    for variant in variants {
        for broken in variant.breaks {
            println!("{} / {broken}: {}", variant.name, shortest_trace(variant.protocol, broken));
        }
    }
}

/// The checker keeps the last violation that it finds, so the shortest one is found by allowing one more step at a
/// time.
fn shortest_trace(protocol: Protocol, broken: &'static str) -> String {
    let within = |depth| {
        let wanted = HasDiscoveries::AnyOf(BTreeSet::from([broken]));
        let checker = protocol.checker().finish_when(wanted).target_max_depth(depth).spawn_bfs();
        checker.join().discovery(broken)
    };
    let path = (2..).find_map(within).map(stateright::Path::into_actions);
    format!("{:?}", path.unwrap_or_default())
}
