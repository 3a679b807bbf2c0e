//! A worker frozen past its lease with a request out. Another takes over; what the first learns when it wakes changes nothing.

use postcommit_testkit::{Child, HttpServer, Reply};

use crate::installation::{Guarantee, Hooks, Installation, Kind, wait_until};
use crate::records::{Records, Told, ledger, stale_settles};

#[test]
fn a_frozen_worker_is_overtaken_and_its_late_result_refused_on_postgresql() {
    Guarantee::ALL.into_iter().for_each(|guarantee| overtake(Kind::Postgres, guarantee));
}

#[test]
fn a_frozen_worker_is_overtaken_and_its_late_result_refused_on_sqlite() {
    Guarantee::ALL.into_iter().for_each(|guarantee| overtake(Kind::Sqlite, guarantee));
}

fn overtake(kind: Kind, guarantee: Guarantee) {
    let case = format!("{kind:?}, {guarantee}");
    // Time enough to freeze it before it gives the request up by itself.
    let installation = Installation::new(kind, Hooks { timeout_ms: 3000, ..Hooks::of(guarantee) });
    let receiver = HttpServer::start(|request| if request.n == 1 { Reply::ok().slow() } else { Reply::ok() });
    let target = format!("webhook:{}", receiver.url("/hook"));
    let id = installation.run(&["enqueue", "case.made", "--to", &target, "--key", "k"]).trim().to_owned();

    let frozen = installation.serve();
    wait_until("the first request", || receiver.requests().len() == 1);
    freeze_beside_the_file(&frozen, &installation);
    let healthy = installation.serve();
    installation.wait_until_quiet();
    let before = ledger(&installation);
    assert_eq!(stale_settles(&installation), 0, "{case}");

    // Now the answer to the first request comes, a success even; it comes too late.
    receiver.release();
    frozen.cont();
    frozen.wait_for_line("a result came after its lease had gone to someone else");
    frozen.term();
    frozen.wait();
    assert_eq!(ledger(&installation), before, "{case}: the late result changed the ledger");
    assert_eq!(stale_settles(&installation), 1, "{case}");
    healthy.term();
    healthy.wait();

    let requests = if guarantee == Guarantee::AtMostOnce { 1 } else { 2 };
    assert_eq!(receiver.effects_by("webhook-id"), [(format!("{id}_1"), requests)].into(), "{case}");
    let state = installation.rows("SELECT state, reason FROM postcommit.delivery_ledger").remove(0);
    let expected = if guarantee == Guarantee::AtMostOnce { ["parked", "outcome_unknown"] } else { ["sent", ""] };
    assert_eq!(state, expected, "{case}");
    let told = Told(vec![("k".into(), id)]);
    let records = Records::read(told, &installation, &receiver, receiver.effects_by("webhook-id"));
    assert_eq!(records.violations(guarantee), Vec::<String>::new(), "{case}");
}

/// Freezes it while it does not hold SQLite's write lock: with that it would hold everybody up, not only its delivery.
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
