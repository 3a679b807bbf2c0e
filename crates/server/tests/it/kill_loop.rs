//! A load, and a server that is killed repeatedly while it works on it. Every notification ends in one outcome.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use postcommit::{Notification, Recipient, adapters};
use postcommit_testkit::{HttpServer, Receiver, Reply};
use serde_json::json;
use tokio_postgres::NoTls;

use crate::crash::chain::{Taken, violations};
use crate::installation::{GUARD, Guarantee, Hooks, Installation, Kind, full_form, wait_until, within};
use crate::records::{Answer, Counts, Records, Told, addresses};

/// Notifications that the client enqueues in one transaction.
const TRANSACTION: usize = 250;

#[test]
fn kill_loop_on_postgresql_loses_nothing_and_repeats_under_the_same_key() {
    kill_loop(Kind::Postgres, Guarantee::Idempotent);
}

#[test]
fn kill_loop_on_sqlite_loses_nothing_and_repeats_under_the_same_key() {
    kill_loop(Kind::Sqlite, Guarantee::Idempotent);
}

#[test]
fn kill_loop_on_postgresql_never_sends_an_at_most_once_twice() {
    kill_loop(Kind::Postgres, Guarantee::AtMostOnce);
}

#[test]
fn kill_loop_on_sqlite_never_sends_an_at_most_once_twice() {
    kill_loop(Kind::Sqlite, Guarantee::AtMostOnce);
}

#[test]
fn kill_loop_of_failover_on_postgresql_sends_nothing_through_two_providers() {
    kill_loop_of_failover(Kind::Postgres);
}

#[test]
fn kill_loop_of_failover_on_sqlite_sends_nothing_through_two_providers() {
    kill_loop_of_failover(Kind::Sqlite);
}

/// The first provider is down now and then, and cuts some connections. The second one works.
fn kill_loop_of_failover(kind: Kind) {
    let guarantees = if full_form() { &Guarantee::ALL[..] } else { &[Guarantee::AtMostOnce] };
    for &guarantee in guarantees {
        let (notes, kills) = if full_form() { (5_000, 20) } else { (300, 3) };
        let mut chance = Chance::new();
        println!("failover, {kind:?}, {guarantee:?}: POSTCOMMIT_SEED={}", chance.0);
        let installation = Installation::new(kind, Hooks::of(guarantee));
        let (first, second) = (Flapping::start(true), Flapping::start(false));
        create_chain(&installation, guarantee, [&first, &second]);
        let ids = std::thread::scope(|scope| {
            let client = scope.spawn(|| enqueue_mails(&installation, notes));
            let requests = || first.server.count() + second.server.count();
            kill_again_and_again(&installation, requests, notes, kills, &mut chance);
            client.join().unwrap()
        });
        let _healthy = installation.serve();
        assert!(
            within(4 * GUARD, || installation.is_quiet()),
            "{:?}",
            installation.rows("SELECT * FROM postcommit.delivery_queue LIMIT 5")
        );
        let (by_first, by_second) = (first.taken(), second.taken());
        println!(
            "failover, {kind:?}, {guarantee:?}: {} by the first, {} by the second",
            by_first.len(),
            by_second.len()
        );
        assert!(!by_first.is_empty() && !by_second.is_empty());
        let violations = violations((&installation, guarantee), &ids, (&by_first, &by_second), false);
        assert_eq!(violations, Vec::<String>::new());
    }
}

/// A service that records what may have arrived. If it flaps, it is down for a while and cuts some connections.
struct Flapping {
    server: HttpServer,
    taken: Arc<Mutex<Vec<Taken>>>,
}

impl Flapping {
    fn start(flaps: bool) -> Self {
        let taken = Arc::<Mutex<Vec<Taken>>>::default();
        let journal = taken.clone();
        let server = HttpServer::start(move |request| {
            let (reply, is_accepted) = match request.n % 40 {
                // Enough to trip the breaker. Each further one would double the time until the next probe.
                0..6 if flaps => (Reply::status(503), None),
                20 if flaps => (Reply::Close, Some(false)),
                _ => (Reply::ok(), Some(true)),
            };
            let id = request.header("webhook-id").unwrap_or_default().to_owned();
            journal.lock().unwrap().extend(is_accepted.map(|is_accepted| Taken { id, is_accepted }));
            reply
        });
        Self { server, taken }
    }

    fn taken(&self) -> Vec<Taken> {
        self.taken.lock().unwrap().clone()
    }
}

fn create_chain(installation: &Installation, guarantee: Guarantee, [first, second]: [&Flapping; 2]) {
    let create = |name: &str, service: &Flapping, more: &[&str]| {
        let url = format!("url={}", service.server.url("/in"));
        let own = ["providers", "create", name, "--driver", "webhook", "--channel", "email", "--set", &url];
        let policy = r#"{"name":"fixed","interval_s":0.2,"max_attempts":100}"#;
        let limits = ["--guarantee", guarantee.name(), "--timeout-ms", "1000", "--policy", policy];
        installation.run(&[&own[..], &limits, &["--breaker-cool-down-s", "1"], more].concat());
    };
    create("second", second, &["--is-default", "false"]);
    create("first", first, &["--is-default", "true", "--failover", "second"]);
}

/// Enqueues mails and returns the keys of their deliveries. Every second notification has two recipients.
fn enqueue_mails(installation: &Installation, notes: usize) -> BTreeSet<String> {
    let note = |i: usize| {
        let event = Notification::event("load.made", json!({ "i": i })).key(format!("k{i}"));
        let recipients = (0..=i % 2).map(|n| Recipient::email(format!("g{n}@guest.example")));
        recipients.fold(event, |event, recipient| event.to(recipient)).build().unwrap()
    };
    let all: Vec<Notification> = (0..notes).map(note).collect();
    let mut enqueue = enqueuer(installation);
    let mut keys = BTreeSet::new();
    for batch in all.chunks(TRANSACTION) {
        for (note, id) in batch.iter().zip(enqueue(batch)) {
            keys.extend((1..=note.recipients.len()).map(|n| format!("{id}_{n}")));
        }
    }
    keys
}

fn kill_loop(kind: Kind, guarantee: Guarantee) {
    let (notes, kills) = if full_form() { (20_000, 50) } else { (1_500, 6) };
    let mut chance = Chance::new();
    println!("{kind:?}, {guarantee:?}: POSTCOMMIT_SEED={}", chance.0);
    let installation = Installation::new(kind, Hooks::of(guarantee));
    let receiver = Receiver::start(&installation.path("journal"));
    let told = std::thread::scope(|scope| {
        let client = scope.spawn(|| enqueue_all(&installation, notes, &receiver.server().url("/hook")));
        kill_again_and_again(&installation, || receiver.server().count(), notes, kills, &mut chance);
        client.join().unwrap()
    });
    let _healthy = installation.serve();
    assert!(
        within(4 * GUARD, || installation.is_quiet()),
        "{:?}",
        installation.rows("SELECT * FROM postcommit.delivery_queue LIMIT 5")
    );
    let records = Records::read(told, &installation, receiver.server(), receiver.counts());
    let counts = records.counts();
    println!("{kind:?}, {guarantee:?}: {kills} kills, {counts:?}");
    assert_eq!(records.violations(guarantee), Vec::<String>::new());
    let Counts { notifications, targets, sent, parked, .. } = counts;
    assert_eq!((notifications, targets, sent + parked), (notes, notes + notes / 2, notes + notes / 2));
}

/// Each server runs until it has made a random number of requests, and a random time longer.
fn kill_again_and_again(
    installation: &Installation,
    requests: impl Fn() -> usize,
    notes: usize,
    kills: usize,
    chance: &mut Chance,
) {
    for _ in 0..kills {
        let server = installation.serve();
        let wanted = requests() + chance.below(notes / kills);
        wait_until("enough requests", || requests() >= wanted);
        std::thread::sleep(Duration::from_millis(chance.below(40) as u64));
        server.kill9();
    }
}

/// The application: a few hundred notifications in each transaction, through the SDK. Every second one has two
/// recipients.
fn enqueue_all(installation: &Installation, notes: usize, url: &str) -> Told {
    let note = |i: usize| {
        let event = Notification::event("load.made", json!({ "i": i })).key(format!("k{i}"));
        addresses(url, 1 + i % 2)
            .into_iter()
            .fold(event, |event, address| event.to(Recipient::webhook(address)))
            .build()
            .unwrap()
    };
    let all: Vec<Notification> = (0..notes).map(note).collect();
    let mut told = Told::default();
    let mut enqueue = enqueuer(installation);
    for batch in all.chunks(TRANSACTION) {
        let ids = enqueue(batch);
        let answer = |(note, id): (&Notification, String)| Answer {
            key: note.idempotency_key.clone(),
            id,
            targets: note.recipients.len(),
        };
        told.0.extend(batch.iter().zip(ids).map(answer));
    }
    told
}

pub type Enqueue = Box<dyn FnMut(&[Notification]) -> Vec<String>>;

/// Enqueues a batch in one transaction, through the SDK. Returns the ids.
pub fn enqueuer(installation: &Installation) -> Enqueue {
    match installation.sqlite_path() {
        Some(path) => {
            let mut connection = rusqlite::Connection::open(path).unwrap();
            connection.busy_timeout(GUARD).unwrap();
            Box::new(move |batch| {
                // Takes the write lock immediately: a transaction that began as a reader cannot wait for it.
                let transaction =
                    connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).unwrap();
                let ids = adapters::rusqlite::enqueue_many(&transaction, batch).unwrap();
                transaction.commit().unwrap();
                ids.iter().map(ToString::to_string).collect()
            })
        }
        None => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let (client, connection) = runtime.block_on(tokio_postgres::connect(&installation.url(), NoTls)).unwrap();
            runtime.spawn(connection);
            Box::new(move |batch| {
                let ids = runtime.block_on(adapters::tokio_postgres::enqueue_many(&client, batch)).unwrap();
                ids.iter().map(ToString::to_string).collect()
            })
        }
    }
}

/// Random numbers that can be repeated: splitmix64, seeded from POSTCOMMIT_SEED or the clock.
pub struct Chance(u64);

impl Chance {
    pub fn new() -> Self {
        let given = std::env::var("POSTCOMMIT_SEED").ok().and_then(|seed| seed.parse().ok());
        Self(given.unwrap_or_else(|| u64::from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos())))
    }

    pub fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((x ^ (x >> 31)) % limit.max(1) as u64).unwrap()
    }
}
