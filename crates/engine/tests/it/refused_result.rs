//! The database refuses writes while a receiver answers: a known result is kept until it is written, and its request is
//! not repeated. On both databases.

use postcommit::Timestamp;
use postcommit_channel::model::{Guarantee, ProviderDraft};
use postcommit_engine::store::{Lease, Store};
use postcommit_testkit::{HttpServer, RefusedWrite, Reply};
use serde_json::json;
use tokio_postgres::NoTls;
use uuid::Uuid;

use crate::store::claim;
use crate::world::World;

const ENTER: RefusedWrite = RefusedWrite::of("INSERT", "delivery_ledger");
const POISON: RefusedWrite = ENTER.when("NEW.target LIKE '%poison%'");
const TEXTS: RefusedWrite = RefusedWrite::of("INSERT", "logged_attempt").when("NEW.excerpt IS NOT NULL");
const ANNOUNCE: RefusedWrite = RefusedWrite::of("UPDATE", "delivery_queue").when("NEW.intent IS NOT NULL");
const EXPAND: RefusedWrite = RefusedWrite::of("INSERT", "delivery_queue").when("NEW.n > 0");
const MESSAGE: RefusedWrite = RefusedWrite::of("INSERT", "inbox_message");

async fn hooks(world: &World, guarantee: Guarantee) {
    world.provider(ProviderDraft { guarantee, ..world.draft("hooks", "webhook", json!({})) }).await;
}

async fn to(world: &World, server: &HttpServer, path: &str) -> Uuid {
    world.enqueue("t", json!({"recipients": [{"webhook": server.url(path)}]})).await
}

async fn fresh(world: &World) -> World {
    if world.is_postgres() { World::postgres().await } else { World::sqlite().await }
}

async fn is_put_off(world: &World) -> bool {
    let sql = "SELECT count(*) FROM postcommit.delivery_queue WHERE due_at > {now} AND lease_token IS NULL";
    world.sql(sql, vec![]).await[0].get::<i64>(0).unwrap() > 0
}

on_both! {
    async fn a_known_result_is_kept_until_it_can_be_written(world) {
        for guarantee in Guarantee::ALL {
            let world = fresh(&world).await;
            hooks(&world, guarantee).await;
            let server = HttpServer::start(|_| Reply::ok());
            world.refuse(ENTER).await;
            let running = world.run().await;
            let id = to(&world, &server, "/hook").await;
            world.until("it is kept", async || world.metrics.unwritten.read() == 1).await;
            world.heal(ENTER).await;
            world.drained().await;
            running.finish().await;
            let row = world.delivery(id).await;
            assert_eq!((row.state.as_str(), row.attempts, row.unclear), ("sent", 1, false), "{guarantee:?}");
            assert_eq!((server.requests().len(), world.metrics.unwritten.read()), (1, 0), "{guarantee:?}");
        }
    }

    async fn a_refused_result_delays_no_other(world) {
        hooks(&world, Guarantee::Idempotent).await;
        let server = HttpServer::start(|_| Reply::ok());
        world.refuse(POISON).await;
        let poisoned = to(&world, &server, "/poison").await;
        for i in 0..30 {
            to(&world, &server, &format!("/{i}")).await;
        }
        let running = world.run().await;
        world.until("all others are written", async || world.count("delivery_ledger").await == 30).await;
        for i in 0..30 {
            to(&world, &server, &format!("/{i}")).await;
        }
        world.until("and those of later batches", async || world.count("delivery_ledger").await == 60).await;
        world.until("it is kept", async || world.metrics.unwritten.read() == 1).await;
        world.heal(POISON).await;
        world.drained().await;
        running.finish().await;
        assert_eq!((world.delivery(poisoned).await.attempts, server.requests().len()), (1, 61));
    }

    async fn the_lease_of_a_refused_result_is_renewed_and_no_worker_takes_it_over(world) {
        let mut world = world;
        world.settings.lease_s = 2;
        hooks(&world, Guarantee::AtLeastOnce).await;
        world.update(&ProviderDraft { timeout_ms: 100, guarantee: Guarantee::AtLeastOnce, ..world.draft("hooks", "webhook", json!({})) }).await;
        let server = HttpServer::start(|_| Reply::ok());
        world.refuse(ENTER).await;
        let (one, other) = (world.run().await, world.run().await);
        let id = to(&world, &server, "/hook").await;
        let until = async || {
            let rows = world.sql("SELECT lease_until FROM postcommit.delivery_queue", vec![]).await;
            rows[0].get::<Option<Timestamp>>(0).unwrap()
        };
        world.until("it is kept", async || world.metrics.unwritten.read() == 1).await;
        for _ in 0..3 {
            let before = until().await.unwrap();
            world.until("its lease is renewed", async || until().await.unwrap() > before).await;
        }
        world.heal(ENTER).await;
        world.drained().await;
        one.finish().await;
        other.finish().await;
        assert_eq!((server.requests().len(), world.attempts(id).await.len(), world.delivery(id).await.unclear), (1, 1, false));
    }

    async fn a_refused_excerpt_does_not_prevent_the_state_from_being_written(world) {
        hooks(&world, Guarantee::AtMostOnce).await;
        let server = HttpServer::start(|_| Reply::status(400).with_body("what the receiver says"));
        world.refuse(TEXTS).await;
        let running = world.run().await;
        let id = to(&world, &server, "/hook").await;
        world.drained().await;
        running.finish().await;
        assert_eq!(world.delivery(id).await.error_code.as_deref(), Some("http_400"));
        assert_eq!((world.attempts(id).await[0].excerpt.as_deref(), server.requests().len()), (None, 1));
    }

    async fn a_delivery_that_cannot_be_announced_or_expanded_waits_and_is_not_sent(world) {
        // On PostgreSQL the row of a notification with one target becomes the target's.
        let updated = RefusedWrite::of("UPDATE", "delivery_queue").when("OLD.n = 0 AND NEW.n > 0");
        for refusal in [ANNOUNCE, if world.is_postgres() { updated } else { EXPAND }] {
            let world = fresh(&world).await;
            hooks(&world, Guarantee::AtMostOnce).await;
            let server = HttpServer::start(|_| Reply::ok());
            world.refuse(refusal).await;
            let running = world.run().await;
            let id = to(&world, &server, "/hook").await;
            world.until("it is put off", async || is_put_off(&world).await).await;
            assert_eq!(server.requests().len(), 0, "{refusal:?}");
            world.heal(refusal).await;
            world.drained().await;
            running.finish().await;
            let row = world.delivery(id).await;
            assert_eq!((row.state.as_str(), row.attempts, server.requests().len()), ("sent", 1, 1), "{refusal:?}");
        }
    }

    async fn a_refused_inbox_message_is_delivered_later_and_once(world) {
        world.refuse(MESSAGE).await;
        let running = world.run().await;
        let id = world.enqueue("a", json!({"recipients": [{"user": "ada"}], "title": "hello"})).await;
        world.until("it is kept", async || world.metrics.unwritten.read() == 1).await;
        world.heal(MESSAGE).await;
        world.drained().await;
        running.finish().await;
        assert_eq!((world.delivery(id).await.state.as_str(), world.inbox("ada").await.messages.len()), ("delivered", 1));
        assert_eq!(world.attempts(id).await.len(), 1);
    }

    async fn a_pass_by_hand_ends_although_a_result_is_refused(world) {
        let mut world = world;
        world.settings.stop_grace_s = 1;
        hooks(&world, Guarantee::Idempotent).await;
        let server = HttpServer::start(|_| Reply::ok());
        world.refuse(ENTER).await;
        let id = to(&world, &server, "/hook").await;
        world.pass().await;
        assert_eq!((world.delivery(id).await.state.as_str(), server.requests().len()), ("sending", 1), "its lease runs out by itself");
        world.heal(ENTER).await;
    }
}

/// Another transaction holds the row of one delivery, such as a cancel that is not committed. The other results of its
/// batch are settled and not sent again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_locked_by_another_transaction_delays_no_other_result() {
    let world = World::postgres().await;
    let impatient = Store::open(&format!("{}?options=-c%20lock_timeout%3D200ms", world.url)).await.unwrap();
    // Sends all of them concurrently, although they go to one host.
    let draft = world.draft("hooks", "webhook", json!({"isolate": "lane"}));
    world.provider(ProviderDraft { guarantee: Guarantee::AtLeastOnce, concurrency: 8, ..draft }).await;
    let server = HttpServer::start(|request| if request.path == "/later" { Reply::ok() } else { Reply::ok().slow() });
    let locked = to(&world, &server, "/locked").await;
    for i in 0..5 {
        to(&world, &server, &format!("/{i}")).await;
    }
    let running = world.run_on(impatient).await;
    world.until("all are under way", async || server.requests().len() == 6).await;
    let (stranger, connection) = tokio_postgres::connect(&world.url, NoTls).await.unwrap();
    tokio::spawn(connection);
    let hold = format!("BEGIN; SELECT FROM postcommit.delivery_queue WHERE notification_id = '{locked}' FOR UPDATE");
    stranger.batch_execute(&hold).await.unwrap();
    server.release();
    world.until("all others are written", async || world.count("delivery_ledger").await == 5).await;
    // The results of later batches are settled as well.
    to(&world, &server, "/later").await;
    world.until("a later one is written", async || world.count("delivery_ledger").await == 6).await;
    stranger.batch_execute("COMMIT").await.unwrap();
    world.drained().await;
    running.finish().await;
    assert_eq!((world.delivery(locked).await.attempts, server.requests().len()), (1, 7));
}

/// A renewal does not wait for a row that another transaction holds, because the other leases would run out in the
/// meantime.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_locked_by_another_transaction_delays_no_other_renewal() {
    let world = World::postgres().await;
    for _ in 0..3 {
        world.enqueue("t", json!({"recipients": [{"email": "guest@example.com"}]})).await;
    }
    let leases: Vec<Lease> = claim(&world.store, -world.tenant, 3).await.iter().map(Lease::of).collect();
    let (stranger, connection) = tokio_postgres::connect(&world.url, NoTls).await.unwrap();
    tokio::spawn(connection);
    let hold = format!(
        "BEGIN; SELECT FROM postcommit.delivery_queue WHERE notification_id = '{}' FOR UPDATE",
        leases[1].key.notification
    );
    stranger.batch_execute(&hold).await.unwrap();
    let renew = async || world.store.renew(&leases, std::time::Duration::from_secs(60)).await.unwrap();
    let kept = renew().await;
    assert_eq!(kept.len(), 2);
    assert!(!kept.contains(&leases[1].key));
    stranger.batch_execute("COMMIT").await.unwrap();
    assert_eq!(renew().await.len(), 3);
}
