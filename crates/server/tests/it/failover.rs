//! Two servers on one PostgreSQL, and one of them dies. The other goes on with what waits, and takes up what the dead one
//! had under way when its lease has run out.

use postcommit_testkit::{HttpServer, Reply};

use crate::installation::{Guarantee, Hooks, Installation, Kind, wait_until};
use crate::records::{Answer, Records, Told, addresses};

const UNDER_WAY: usize = 4;
const WAITING: usize = 20;

#[test]
fn e9_when_a_server_dies_another_goes_on_and_nothing_is_lost() {
    std::thread::scope(|scope| {
        Guarantee::ALL.iter().for_each(|guarantee| drop(scope.spawn(|| fail_over(*guarantee))));
    });
}

fn fail_over(guarantee: Guarantee) {
    let installation = Installation::new(Kind::Postgres, Hooks { timeout_ms: 10_000, ..Hooks::of(guarantee) });
    // The requests of the first server are not answered while it lives.
    let receiver = HttpServer::start(|request| if request.n <= UNDER_WAY { Reply::ok().slow() } else { Reply::ok() });
    let mut told = Told::default();
    let mut enqueue = |name: &str, count: usize, more: &str| {
        told.0.extend((0..count).map(|n| enqueued(&installation, &receiver, &format!("{name}-{n}"), more)));
    };

    let dies = installation.serve();
    enqueue("waiting", WAITING, ", due_at => now() + interval '1 hour'");
    enqueue("under-way", UNDER_WAY, "");
    wait_until("the requests of the first server", || receiver.requests().len() == UNDER_WAY);
    // The second server starts now, so that the first one has all that is under way.
    let lives = installation.serve();
    dies.kill9();

    installation.rows("UPDATE postcommit.delivery_queue SET due_at = now() WHERE due_at > now()");
    let arrived = |path: &str| receiver.requests().iter().filter(|request| request.path.contains(path)).count();
    wait_until("what waited goes on", || arrived("/waiting-") == WAITING);
    enqueue("new", 1, "");
    wait_until("what is new goes on", || arrived("/new-") == 1);
    installation.wait_until_quiet();
    lives.term();
    lives.wait();

    // What was under way was taken up; its receiver saw the same id, or at most one request.
    let requests = if guarantee == Guarantee::AtMostOnce { 1 } else { 2 };
    assert_eq!(arrived("/under-way-"), UNDER_WAY * requests, "{guarantee:?}");
    let lost = "SELECT count(*) FROM postcommit.attempt WHERE code = 'lease_expired' AND outcome = 'unclear'";
    assert_eq!(installation.count(lost), UNDER_WAY, "{guarantee:?}: each lost attempt is in the log");
    let records = Records::read(told, &installation, &receiver, receiver.effects_by("webhook-id"));
    assert_eq!(records.violations(guarantee), Vec::<String>::new(), "{guarantee:?}");
    let (counts, unknown) = (records.counts(), if requests == 1 { UNDER_WAY } else { 0 });
    assert_eq!((counts.sent, counts.parked), (UNDER_WAY + WAITING + 1 - unknown, unknown), "{guarantee:?}");
}

fn enqueued(installation: &Installation, receiver: &HttpServer, key: &str, more: &str) -> Answer {
    let address = addresses(&receiver.url(&format!("/{key}")), 1).remove(0);
    let recipients = format!(r#"[{{"webhook": "{address}"}}]"#);
    let sql = format!("SELECT postcommit.enqueue('case.made', '{{}}', '{key}', recipients => '{recipients}'{more})");
    Answer { key: key.to_owned(), id: installation.rows(&sql)[0][0].clone(), targets: 1 }
}
