//! A digest of five events, with the real binary killed at every step on its way: one message with five items.

use std::collections::BTreeSet;

use postcommit_engine::crash::POINTS;
use postcommit_testkit::{Child, HttpServer, Receiver};

use crate::crash::run_all;
use crate::installation::{Guarantee, Hooks, Installation, Kind, wait_until};

const EVENTS: usize = 5;
/// Batches of two: the events are collected by three transactions.
const BATCH: u32 = 2;
/// Claims are repeated while there is nothing to do; so many of them, and all passings of every other point, are killed.
const PASSINGS: usize = 8;
const TEXT: &str = "{{ count }} tasks:{% for item in items %} {{ item.task }}{% endfor %}";

#[test]
fn a_digest_of_five_events_killed_at_every_step_on_postgresql_sends_one_message_with_five_items() {
    kill_at_every_step(Kind::Postgres);
}

#[test]
fn a_digest_of_five_events_killed_at_every_step_on_sqlite_sends_one_message_with_five_items() {
    kill_at_every_step(Kind::Sqlite);
}

fn kill_at_every_step(kind: Kind) {
    // There is one provider, so nothing moves to another one.
    let elsewhere = ["enqueue.", "intent.", "move."];
    let on_its_way = |point: &&&str| !elsewhere.iter().any(|step| point.starts_with(step));
    let cases: Vec<(&str, usize)> =
        POINTS.iter().filter(on_its_way).flat_map(|point| (1..=PASSINGS).map(move |nth| (*point, nth))).collect();
    let killed = run_all(&cases, |(point, nth)| kill(kind, point, *nth));
    let fired: BTreeSet<&str> =
        cases.iter().zip(&killed).filter(|(_, fired)| **fired).map(|((point, _), _)| *point).collect();
    println!(
        "{kind:?}: {} of {} cases killed the process: {fired:?}",
        killed.iter().filter(|it| **it).count(),
        cases.len()
    );
    // On PostgreSQL a claim and a settlement are one statement each, so a crash cannot happen inside.
    let inside = |point: &str| kind == Kind::Postgres && ["claim.in_tx", "settle.in_tx"].contains(&point);
    let expected: BTreeSet<&str> = POINTS.iter().filter(on_its_way).copied().filter(|point| !inside(point)).collect();
    assert_eq!(fired, expected);
}

/// Kills the process where it passes a crash point for the nth time, and lets another one finish. Returns whether it was
/// killed.
fn kill(kind: Kind, point: &str, nth: usize) -> bool {
    let installation = Installation::new(kind, Hooks::of(Guarantee::Idempotent)).in_batches_of(BATCH);
    let receiver = Receiver::start(&installation.path("journal"));
    enqueue_all(&installation, &receiver.server().url("/hook"));
    let doomed = installation.doomed(&["serve"], &format!("{point}:{nth}:kill"));
    let has_fired = || doomed.output().iter().any(|line| line.starts_with("crash point"));
    let mut healthy: Option<Child> = None;
    let collected = || installation.count("SELECT count(*) FROM postcommit.digest_item") == EVENTS;
    wait_until("the crash, or all events to be collected", || has_fired() || collected());
    replace_if_dead(&installation, &doomed, &mut healthy, has_fired());
    wait_until("all events to be collected", collected);
    // The window ends. The digest's own row is all that is left.
    wait_until("the events' own rows to be gone", || {
        installation.count("SELECT count(*) FROM postcommit.delivery_queue") == 1
    });
    installation.rows("UPDATE postcommit.delivery_queue SET due_at = created_at FROM postcommit.notification WHERE id = notification_id");
    wait_until("the crash, or the end of the work", || (healthy.is_none() && has_fired()) || installation.is_quiet());
    replace_if_dead(&installation, &doomed, &mut healthy, has_fired());
    installation.wait_until_quiet();
    check(&installation, receiver.server(), &format!("{kind:?}, {point}:{nth}"));
    has_fired()
}

fn replace_if_dead(installation: &Installation, doomed: &Child, healthy: &mut Option<Child>, has_fired: bool) {
    if has_fired && healthy.is_none() {
        doomed.wait();
        *healthy = Some(installation.serve());
    }
}

fn enqueue_all(installation: &Installation, url: &str) {
    let digest = r#"{"window_s": 86400}"#;
    let to = ["--event-type", "task.done", "--channel", "webhook"];
    installation.run(&[&["templates", "create", "tasks", "--text", TEXT, "--digest", digest], &to[..]].concat());
    installation.run(&["users", "create", "ana", "--address", &format!("webhook:{url}")]);
    for n in 1..=EVENTS {
        let (key, payload) = (format!("k{n}"), format!(r#"{{"task": "t{n}"}}"#));
        let event = ["enqueue", "task.done", "--idempotency-key", &key, "--payload", &payload];
        installation.run(&[&event[..], &["--to", "user:ana", "--channel", "webhook"]].concat());
    }
}

/// One message with all items. A repeated request has the same id, by which its receiver knows it.
fn check(installation: &Installation, server: &HttpServer, case: &str) {
    let requests = server.requests();
    let ids: BTreeSet<_> =
        requests.iter().map(|request| request.header("webhook-id").unwrap_or_default().to_owned()).collect();
    assert_eq!(ids.len(), 1, "{case}: {ids:?}");
    for request in &requests {
        let body = String::from_utf8_lossy(&request.body);
        assert!(body.contains("5 tasks: t1 t2 t3 t4 t5"), "{case}: {body}");
    }
    let ended = installation.rows(
        "SELECT l.state, l.code, count(*) FROM postcommit.delivery_ledger l GROUP BY l.state, l.code ORDER BY l.state, l.code",
    );
    let expected = [["sent", "", "1"], ["skipped", "digested", "5"]].map(|row| row.map(str::to_owned).to_vec());
    assert_eq!(ended, expected, "{case}");
    // A duty removes the digest's own row some time after it was sent.
    let opened = installation.count("SELECT count(*) FROM postcommit.notification") - EVENTS;
    assert_eq!(opened, 1, "{case}: one digest was opened");
}
