//! The sweep: every crash point × every action × first, second and third passing × both databases × every guarantee,
//! each on an empty database.
//!
//! The short form passes every crash point once with every action, on both databases, with alternating guarantees. The
//! full form (`scripts/sweep`) covers all combinations. `chain` does the same with two providers, of which the first one
//! cannot send.

mod case;
pub mod chain;

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use postcommit_engine::crash::POINTS;

use crate::installation::{Guarantee, Kind, full_form};
use case::{Action, Case, Ran};
use chain::{ChainCase, ChainRan, Medium};

/// Cases that run concurrently. They mostly wait for leases to run out.
const CONCURRENCY: usize = 8;

#[test]
fn crash_sweep_on_postgresql_holds_every_invariant() {
    sweep(Kind::Postgres);
}

#[test]
fn crash_sweep_on_sqlite_holds_every_invariant() {
    sweep(Kind::Sqlite);
}

#[test]
fn crash_sweep_of_failover_on_postgresql() {
    sweep_chain(Kind::Postgres, Medium::Http);
}

#[test]
fn crash_sweep_of_failover_on_sqlite() {
    sweep_chain(Kind::Sqlite, Medium::Http);
}

#[test]
fn crash_sweep_of_failover_between_mail_servers_on_postgresql() {
    sweep_chain(Kind::Postgres, Medium::Mail);
}

#[test]
fn crash_sweep_of_failover_between_mail_servers_on_sqlite() {
    sweep_chain(Kind::Sqlite, Medium::Mail);
}

fn sweep_chain(kind: Kind, medium: Medium) {
    let started = Instant::now();
    let cases = chosen(if full_form() { chain::full(kind, medium) } else { chain::short(kind, medium) });
    let ran = run_all(&cases, |case: &ChainCase| {
        caught(|| case.run()).unwrap_or_else(|said| ChainRan { violations: vec![said], ..ChainRan::default() })
    });
    let (fired, moved) =
        (ran.iter().filter(|ran| ran.fired).count(), ran.iter().map(|ran| ran.by_second).sum::<usize>());
    println!(
        "{kind:?} {medium:?}: {} cases with two providers in {} s, {fired} fired, {moved} messages by the second one",
        cases.len(),
        started.elapsed().as_secs()
    );
    let violations: Vec<String> = cases
        .iter()
        .zip(&ran)
        .flat_map(|(case, ran)| ran.violations.iter().map(move |what| format!("{case}: {what}")))
        .collect();
    assert!(violations.is_empty(), "{} violations:\n{}", violations.len(), violations.join("\n"));
    let is_part = std::env::var("POSTCOMMIT_SWEEP_ONLY").is_ok();
    assert!(is_part || moved > 0, "the second provider was never used");
}

/// The crash points of a notification that goes to one provider.
fn points() -> impl Iterator<Item = &'static str> {
    POINTS.iter().copied().filter(|point| !point.starts_with("move."))
}

fn sweep(kind: Kind) {
    let started = Instant::now();
    let cases = chosen(if full_form() { full(kind) } else { short(kind) });
    let ran = run_all(&cases, run_one);
    print!("{}", table(kind, &cases, &ran));
    println!("{} cases in {} s", cases.len(), started.elapsed().as_secs());
    let violations: Vec<String> = cases
        .iter()
        .zip(&ran)
        .flat_map(|(case, ran)| ran.violations.iter().map(move |what| format!("{case}: {what}")))
        .collect();
    assert!(violations.is_empty(), "{} violations:\n{}", violations.len(), violations.join("\n"));
}

fn full(kind: Kind) -> Vec<Case> {
    let mut cases = Vec::new();
    for point in points() {
        for action in Action::ALL {
            for nth in 1..=3 {
                cases.extend(Guarantee::ALL.map(|guarantee| Case { point, action, nth, kind, guarantee }));
            }
        }
    }
    cases
}

fn short(kind: Kind) -> Vec<Case> {
    let mut turns = Guarantee::ALL.into_iter().cycle();
    let mut cases = Vec::new();
    for point in points() {
        for action in Action::ALL {
            let turn = turns.next().unwrap();
            let guarantee = if point.starts_with("intent.") { Guarantee::AtMostOnce } else { turn };
            cases.push(Case { point, action, nth: 1, kind, guarantee });
        }
        // Begins with another guarantee at the next crash point, or each action would always meet the same one.
        turns.next();
    }
    cases
}

/// `POSTCOMMIT_SWEEP_ONLY=settle` runs only the cases whose name contains `settle`.
pub fn chosen<C: std::fmt::Display>(mut cases: Vec<C>) -> Vec<C> {
    if let Ok(only) = std::env::var("POSTCOMMIT_SWEEP_ONLY") {
        cases.retain(|case| case.to_string().contains(&only));
    }
    cases
}

/// Runs cases concurrently. The results are in their order.
pub fn run_all<C: Sync, R: Send>(cases: &[C], run_one: impl Fn(&C) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let ran: Mutex<BTreeMap<usize, R>> = Mutex::default();
    thread::scope(|scope| {
        for _ in 0..CONCURRENCY {
            scope.spawn(|| {
                while let Some((place, case)) =
                    Some(next.fetch_add(1, Ordering::SeqCst)).and_then(|place| Some((place, cases.get(place)?)))
                {
                    let one = run_one(case);
                    ran.lock().unwrap().insert(place, one);
                }
            });
        }
    });
    ran.into_inner().unwrap().into_values().collect()
}

/// A wait that timed out is a violation like any other.
fn run_one(case: &Case) -> Ran {
    caught(|| case.run()).unwrap_or_else(|said| Ran { violations: vec![said], ..Ran::default() })
}

/// The result, or the message of the panic.
pub fn caught<R>(run: impl FnOnce() -> R) -> Result<R, String> {
    std::panic::catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        text.unwrap_or_else(|| "panicked".to_owned())
    })
}

fn table(kind: Kind, cases: &[Case], ran: &[Ran]) -> String {
    let mut text = format!(
        "\n{:<10} {:<6} {:>6} {:>6} {:>12} {:>14} {:>12} {:>14} {:>14} {:>10}\n",
        "database",
        "action",
        "cases",
        "fired",
        "not on path",
        "passed too few",
        "late refused",
        "held the file",
        "survived panic",
        "violations"
    );
    for action in Action::ALL {
        let of_action: Vec<&Ran> =
            cases.iter().zip(ran).filter(|(case, _)| case.action == action).map(|(_, ran)| ran).collect();
        let count = |wanted: fn(&Ran) -> bool| of_action.iter().filter(|ran| wanted(ran)).count();
        text += &format!(
            "{:<10} {:<6} {:>6} {:>6} {:>12} {:>14} {:>12} {:>14} {:>14} {:>10}\n",
            format!("{kind:?}").to_lowercase(),
            action.name(),
            of_action.len(),
            count(|ran| ran.fired),
            count(|ran| !ran.fired && !ran.on_path),
            count(|ran| !ran.fired && ran.on_path),
            count(|ran| ran.refused_late),
            count(|ran| ran.held_file),
            count(|ran| ran.survived),
            count(|ran| !ran.violations.is_empty()),
        );
    }
    text
}
