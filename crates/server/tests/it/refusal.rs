//! The second half of the sweep: writes of the product fail. At every step the real database refuses a write of the
//! real binary, once or several times, while the receiver answers in every possible way; then both are healed. No
//! receiver may have seen more requests than the policy allows, nor earlier, and every delivery has exactly one outcome
//! in the end.
//!
//! The short form covers every step twice on both databases, with alternating answers and guarantees. The full form
//! (`scripts/sweep`) covers all combinations.

mod case;

use std::collections::BTreeMap;
use std::time::Instant;

use crate::crash::{caught, chosen, run_all};
use crate::installation::{Guarantee, Kind, full_form};
use case::{Answer, Case, Ran, STEPS};

/// How many refusals a case waits for before it heals the database.
const TIMES: [usize; 3] = [1, 2, 4];

#[test]
fn crash_sweep_of_refused_writes_on_postgresql() {
    sweep(Kind::Postgres);
}

#[test]
fn crash_sweep_of_refused_writes_on_sqlite() {
    sweep(Kind::Sqlite);
}

fn sweep(kind: Kind) {
    let started = Instant::now();
    let cases = chosen(if full_form() { full(kind) } else { short(kind) });
    let ran = run_all(&cases, |case: &Case| {
        caught(|| case.run()).unwrap_or_else(|said| Ran { violations: vec![said], ..Ran::default() })
    });
    let fired = table(&cases, &ran);
    println!("{} cases of refused writes in {} s", cases.len(), started.elapsed().as_secs());
    let mut violations: Vec<String> = cases
        .iter()
        .zip(&ran)
        .flat_map(|(case, ran)| ran.violations.iter().map(move |what| format!("{case}: {what}")))
        .collect();
    violations
        .extend(fired.iter().filter(|(_, fired)| **fired == 0).map(|(step, _)| format!("{step} was never refused")));
    assert!(violations.is_empty(), "{} violations:\n{}", violations.len(), violations.join("\n"));
}

fn full(kind: Kind) -> Vec<Case> {
    let mut cases = Vec::new();
    for step in &STEPS {
        for answer in Answer::ALL {
            for times in TIMES {
                cases.extend(Guarantee::ALL.map(|guarantee| Case { step, answer, times, kind, guarantee }));
            }
        }
    }
    cases
}

fn short(kind: Kind) -> Vec<Case> {
    let (mut guarantees, mut answers) = (Guarantee::ALL.into_iter().cycle(), Answer::ALL.into_iter().cycle());
    let mut cases = Vec::new();
    for step in &STEPS {
        for (answer, times) in [(step.meant_for, 1), (answers.next().unwrap(), 2)] {
            let guarantee = match step.name {
                "announce" => Guarantee::AtMostOnce,
                // What was announced never moves.
                "move" => Guarantee::Idempotent,
                _ => guarantees.next().unwrap(),
            };
            cases.push(Case { step, answer, times, kind, guarantee });
        }
    }
    cases
}

/// Prints the numbers of each step. Returns how many of its cases met a refusal.
fn table(cases: &[Case], ran: &[Ran]) -> BTreeMap<&'static str, usize> {
    let mut fired = BTreeMap::new();
    println!("\n{:<16} {:>6} {:>6} {:>9} {:>11}", "refused", "cases", "fired", "requests", "violations");
    for step in &STEPS {
        let of_step: Vec<&Ran> =
            cases.iter().zip(ran).filter(|(case, _)| case.step.name == step.name).map(|(_, ran)| ran).collect();
        let count = of_step.iter().filter(|ran| ran.fired).count();
        let (requests, bad): (usize, usize) =
            of_step.iter().fold((0, 0), |(r, v), ran| (r + ran.requests, v + ran.violations.len()));
        println!("{:<16} {:>6} {count:>6} {requests:>9} {bad:>11}", step.name, of_step.len());
        if !of_step.is_empty() {
            fired.insert(step.name, count);
        }
    }
    fired
}
