//! A load, and a server that is killed repeatedly while it works on it. Every notification ends in one outcome.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use postcommit::{Notification, Recipient, adapters};
use postcommit_testkit::Receiver;
use serde_json::json;
use tokio_postgres::NoTls;

use crate::installation::{GUARD, Guarantee, Hooks, Installation, Kind, full_form, within};
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

fn kill_loop(kind: Kind, guarantee: Guarantee) {
    let (notes, kills) = if full_form() { (20_000, 50) } else { (1_500, 6) };
    let mut chance = Chance::new();
    println!("{kind:?}, {guarantee:?}: POSTCOMMIT_SEED={}", chance.0);
    let installation = Installation::new(kind, Hooks::of(guarantee));
    let receiver = Receiver::start(&installation.path("journal"));
    let told = std::thread::scope(|scope| {
        let client = scope.spawn(|| enqueue_all(&installation, notes, &receiver.server().url("/hook")));
        kill_again_and_again(&installation, &receiver, notes, kills, &mut chance);
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
    receiver: &Receiver,
    notes: usize,
    kills: usize,
    chance: &mut Chance,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mut seen = 0;
    for _ in 0..kills {
        let server = installation.serve();
        let wanted = seen + chance.below(notes / kills);
        seen = runtime.block_on(receiver.server().wait_for(wanted)).len();
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

type Enqueue = Box<dyn FnMut(&[Notification]) -> Vec<String>>;

fn enqueuer(installation: &Installation) -> Enqueue {
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
struct Chance(u64);

impl Chance {
    fn new() -> Self {
        let given = std::env::var("POSTCOMMIT_SEED").ok().and_then(|seed| seed.parse().ok());
        Self(given.unwrap_or_else(|| u64::from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos())))
    }

    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((x ^ (x >> 31)) % limit.max(1) as u64).unwrap()
    }
}
