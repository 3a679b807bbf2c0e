//! A worker is frozen past its lease. Another takes over; whatever the first does when it continues changes nothing,
//! whether the other has finished or is in the middle of its own attempt.

use postcommit_testkit::{Child, HttpServer, Reply};

use crate::installation::{Guarantee, Hooks, Installation, Kind, wait_until, wait_until_frozen};
use crate::records::{Answer, Records, Told, addresses, ledger, stale_settles};

#[test]
fn a_frozen_worker_is_overtaken_and_its_late_result_refused_on_postgresql() {
    together(Kind::Postgres, &Guarantee::ALL, overtake);
}

#[test]
fn a_frozen_worker_is_overtaken_and_its_late_result_refused_on_sqlite() {
    together(Kind::Sqlite, &Guarantee::ALL, overtake);
}

/// Runs each guarantee, sent from a row of its own and from the notification's row, concurrently. They mostly wait for
/// leases to run out.
fn together(kind: Kind, guarantees: &[Guarantee], run: fn(Kind, Hooks)) {
    std::thread::scope(|scope| {
        for by_rows in [true, false] {
            // Long enough to freeze the worker before its request times out.
            let hooks = move |guarantee| Hooks { timeout_ms: 3000, by_rows, ..Hooks::of(guarantee) };
            guarantees.iter().for_each(|guarantee| drop(scope.spawn(move || run(kind, hooks(*guarantee)))));
        }
    });
}

fn overtake(kind: Kind, hooks: Hooks) {
    let Hooks { guarantee, by_rows, .. } = hooks;
    let case = format!("{kind:?}, {guarantee:?}, by rows: {by_rows}");
    let installation = Installation::new(kind, hooks);
    let receiver = HttpServer::start(|request| if request.n == 1 { Reply::ok().slow() } else { Reply::ok() });
    let told = enqueue_one(&installation, &receiver);

    let frozen = installation.serve();
    wait_until("the first request", || receiver.requests().len() == 1);
    freeze_beside_the_file(&frozen, &installation);
    assert_eq!(sent_from(&installation), u32::from(by_rows || guarantee == Guarantee::AtMostOnce), "{case}");
    let healthy = installation.serve();
    installation.wait_until_quiet();
    let before = ledger(&installation);
    assert_eq!(stale_settles(&installation), 0, "{case}");

    // Now the first request is answered with success, which is too late.
    receiver.release();
    frozen.cont();
    frozen.wait_for_line("the result of a send came after the lease of its delivery had gone to another worker");
    frozen.term();
    frozen.wait();
    assert_eq!(ledger(&installation), before, "{case}: the late result changed the ledger");
    assert_eq!(stale_settles(&installation), 1, "{case}");
    healthy.term();
    healthy.wait();

    let requests = if guarantee == Guarantee::AtMostOnce { 1 } else { 2 };
    assert_eq!(receiver.effects_by("webhook-id"), [(format!("{}_1", told.0[0].id), requests)].into(), "{case}");
    let state = installation.rows("SELECT state, reason FROM postcommit.delivery_ledger").remove(0);
    let expected = if guarantee == Guarantee::AtMostOnce { ["parked", "outcome_unknown"] } else { ["sent", ""] };
    assert_eq!(state, expected, "{case}");
    let records = Records::read(told, &installation, &receiver, receiver.effects_by("webhook-id"));
    assert_eq!(records.violations(guarantee), Vec::<String>::new(), "{case}");
}

#[test]
fn a_late_result_is_refused_while_the_next_attempt_is_under_way() {
    let repeated = [Guarantee::Idempotent, Guarantee::AtLeastOnce];
    together(Kind::Postgres, &repeated, meet_the_next_attempt);
    together(Kind::Sqlite, &repeated, meet_the_next_attempt);
}

fn meet_the_next_attempt(kind: Kind, hooks: Hooks) {
    let Hooks { guarantee, by_rows, .. } = hooks;
    let case = format!("{kind:?}, {guarantee:?}, by rows: {by_rows}");
    let installation = Installation::new(kind, hooks);
    let receiver = HttpServer::start(|_| Reply::ok().slow());
    let told = enqueue_one(&installation, &receiver);

    let frozen = installation.serve();
    wait_until("the first request", || receiver.requests().len() == 1);
    freeze_beside_the_file(&frozen, &installation);
    receiver.release();
    let healthy = installation.serve();
    wait_until("the second request", || receiver.requests().len() == 2);
    frozen.cont();
    // The answer was there when the worker continued: a success of an attempt that is no longer the current one.
    frozen.wait_for_line("the result of a send came after the lease of its delivery had gone to another worker");
    assert_eq!(ledger(&installation), Vec::<Vec<String>>::new(), "{case}: only the present attempt may end it");
    receiver.release();
    installation.wait_until_quiet();
    for worker in [frozen, healthy] {
        worker.term();
        worker.wait();
    }
    assert_eq!((receiver.requests().len(), stale_settles(&installation)), (2, 1), "{case}");
    let records = Records::read(told, &installation, &receiver, receiver.effects_by("webhook-id"));
    assert_eq!(records.violations(guarantee), Vec::<String>::new(), "{case}");
}

#[test]
fn an_at_most_once_send_cannot_be_announced_under_a_lease_that_is_gone() {
    for kind in [Kind::Postgres, Kind::Sqlite] {
        let receiver = HttpServer::start(|_| Reply::ok().slow());
        let (installation, told, frozen) = frozen_before_announcing(kind, &receiver);
        let healthy = installation.serve();
        wait_until("the request of the other", || receiver.requests().len() == 1);
        frozen.cont();
        frozen.term();
        frozen.wait();
        assert_eq!(receiver.requests().len(), 1, "{kind:?}: sent beside the one who holds it");
        receiver.release();
        installation.wait_until_quiet();
        healthy.term();
        healthy.wait();
        let records = Records::read(told, &installation, &receiver, receiver.effects_by("webhook-id"));
        assert_eq!(records.violations(Guarantee::AtMostOnce), Vec::<String>::new(), "{kind:?}");
    }
}

/// A worker that is frozen before it announces. When another of its threads holds SQLite's write lock, it blocks
/// everything and not only its delivery: then try again.
fn frozen_before_announcing(kind: Kind, receiver: &HttpServer) -> (Installation, Told, Child) {
    loop {
        let installation = Installation::new(kind, Hooks { timeout_ms: 3000, ..Hooks::of(Guarantee::AtMostOnce) });
        let told = enqueue_one(&installation, receiver);
        let frozen = installation.doomed(&["serve"], "intent.before:1:stop");
        frozen.wait_for_line("crash point");
        wait_until_frozen(&frozen);
        if !installation.file_is_held() {
            return (installation, told, frozen);
        }
        frozen.kill9();
    }
}

fn enqueue_one(installation: &Installation, receiver: &HttpServer) -> Told {
    let target = format!("webhook:{}", addresses(&receiver.url("/hook"), 1)[0]);
    let id = installation.run(&["enqueue", "case.made", "--to", &target, "--idempotency-key", "k"]).trim().to_owned();
    Told(vec![Answer { key: "k".into(), id, targets: 1 }])
}

/// The number of the row that is being sent: 0 is the notification's own.
fn sent_from(installation: &Installation) -> u32 {
    installation.rows("SELECT n FROM postcommit.delivery_queue")[0][0].parse().unwrap()
}

/// Freezes the worker while it does not hold SQLite's write lock, with which it would block everything and not only its
/// delivery.
fn freeze_beside_the_file(worker: &Child, installation: &Installation) {
    wait_until("a moment outside the file", || {
        worker.stop();
        let held = installation.file_is_held();
        if held {
            worker.cont();
        }
        !held
    });
}
