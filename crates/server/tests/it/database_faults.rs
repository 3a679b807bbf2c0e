//! PostgreSQL fails under load: it crashes and recovers, and its connections are cut repeatedly. The server keeps
//! running.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use postcommit_testkit::{Child, Cluster, HttpServer, Reply};

use crate::installation::{Guarantee, Hooks, Installation, wait_until, within};
use crate::records::{Answer, Records, Told, stale_settles};

const NOTES: usize = 300;

#[test]
fn a_crash_of_postgresql_under_load_loses_nothing() {
    for guarantee in [Guarantee::Idempotent, Guarantee::AtMostOnce] {
        under_load(guarantee, |cluster, _, receiver| {
            for share in [40, 120, 200] {
                wait_until("some requests", || receiver.requests().len() >= share);
                cluster.stop_immediate();
                cluster.start_again();
            }
        });
    }
}

#[test]
fn connections_cut_again_and_again_under_load_lose_nothing() {
    for guarantee in [Guarantee::Idempotent, Guarantee::AtMostOnce] {
        under_load(guarantee, |_, installation, receiver| {
            let mut cut = 0;
            wait_until("most requests", || {
                let before = receiver.requests().len();
                cut += installation
                    .rows(
                        "SELECT pg_terminate_backend(pid) \
                        FROM pg_stat_activity \
                        WHERE application_name = 'postcommit' AND pid <> pg_backend_pid()",
                    )
                    .len();
                // On a busy machine a server whose connections are cut every moment would do nothing at all.
                within(Duration::from_secs(2), || receiver.requests().len() > before);
                receiver.requests().len() >= NOTES * 2 / 3
            });
            println!("{guarantee:?}: {cut} connections cut");
        });
    }
}

#[test]
fn an_outage_of_postgresql_is_logged_when_it_begins_and_when_it_ends() {
    let mut cluster = Cluster::start();
    let installation = Installation::on(&cluster, Hooks::of(Guarantee::Idempotent));
    let server = installation.serve();
    cluster.stop_immediate();
    let lost = server.wait_for_line("the database cannot be reached; nothing is claimed");
    assert!(lost.contains("ERROR"), "{lost}");
    cluster.start_again();
    let back = server.wait_for_line("the database answers again");
    assert!(back.contains("INFO"), "{back}");
    let lines = server.output();
    let count = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
    let ends = (count("the database cannot be reached; nothing is claimed"), count("the database answers again"));
    assert_eq!(ends, (1, 1), "{lines:#?}");
    assert!(is_alive(&server));
}

fn under_load(guarantee: Guarantee, disturb: impl FnOnce(&mut Cluster, &Installation, &HttpServer)) {
    let mut cluster = Cluster::start();
    let installation = Installation::on(&cluster, Hooks { concurrency: 8, timeout_ms: 2000, ..Hooks::of(guarantee) });
    let receiver = HttpServer::start(|_| Reply::ok().slow());
    let told = enqueue(&installation, &receiver.url("/hook"));
    let done = AtomicBool::new(false);
    let server = installation.serve();
    thread::scope(|scope| {
        scope.spawn(|| answer_slowly(&receiver, &done));
        // Set when this closure ends, even by a panic.
        let _done = OnDrop(&done);
        disturb(&mut cluster, &installation, &receiver);
        installation.wait_until_quiet();
    });
    assert!(is_alive(&server), "the server did not survive: {:#?}", server.output());
    let records = Records::read(told, &installation, &receiver, receiver.effects_by("webhook-id"));
    // There is one worker and no takeover: a late result here is the worker's own settle, which was committed although
    // the connection broke.
    println!("{guarantee:?}: {:?}, {} noted as late", records.counts(), stale_settles(&installation));
    assert_eq!(records.violations(guarantee), Vec::<String>::new(), "{guarantee:?}");
    assert_eq!(records.counts().sent + records.counts().parked, NOTES + NOTES / 2, "{guarantee:?}");
    // N11: no session of the product is left idle in a transaction.
    let forgotten = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'postcommit' AND state LIKE 'idle in transaction%'
        AND clock_timestamp() - state_change > interval '5 seconds'";
    assert_eq!(installation.count(forgotten), 0, "{guarantee:?}");
    let idle = "SELECT count(*) \
        FROM pg_stat_activity \
        WHERE application_name = 'postcommit' AND state LIKE 'idle in transaction%'";
    wait_until("every transaction to end", || installation.count(idle) == 0);
}

/// Enqueues with one statement, as an application would. Every second notification has two recipients.
fn enqueue(installation: &Installation, url: &str) -> Told {
    let sql = format!(
        "SELECT 'k' || i, postcommit.enqueue('load.made', jsonb_build_object('i', i), 'k' || i,
           recipients => (SELECT jsonb_agg(jsonb_build_object('webhook', '{url}/' || n)) FROM generate_series(1, 2 - i % 2) AS n)), 2 - i % 2
         FROM generate_series(1, {NOTES}) AS i"
    );
    let answer =
        |row: Vec<String>| Answer { key: row[0].clone(), id: row[1].clone(), targets: row[2].parse().unwrap() };
    Told(installation.rows(&sql).into_iter().map(answer).collect())
}

/// Releases the waiting answers ten times a second: eight concurrent requests make eighty per second.
fn answer_slowly(receiver: &HttpServer, done: &AtomicBool) {
    while !done.load(Ordering::Relaxed) {
        receiver.release();
        thread::sleep(Duration::from_millis(100));
    }
}

fn is_alive(process: &Child) -> bool {
    Path::new(&format!("/proc/{}", process.pid())).exists()
}

struct OnDrop<'a>(&'a AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
