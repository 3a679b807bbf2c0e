//! The database refuses to write a lane's pause or hold: the lane stays closed, and the provider sees no further
//! request. On both databases.

use postcommit_channel::model::{Guarantee, ProviderDraft};
use postcommit_testkit::{HttpServer, RefusedWrite, Reply};
use serde_json::json;
use uuid::Uuid;

use crate::world::World;

/// The write that a publication of all tables refused before the table had a key. Without it neither a pause nor a hold
/// can be written.
const VERSION: RefusedWrite = RefusedWrite::of("UPDATE", "provider_version");

async fn hooks(world: &World, guarantee: Guarantee, concurrency: i32) -> i32 {
    world
        .provider(ProviderDraft {
            guarantee,
            concurrency,
            ..world.draft("hooks", "webhook", json!({"isolate": "lane"}))
        })
        .await
}

async fn to(world: &World, server: &HttpServer) -> Uuid {
    world.enqueue("t", json!({"recipients": [{"webhook": server.url("/hook")}]})).await
}

async fn provider(world: &World) -> postcommit_channel::model::Provider {
    world.store.provider(world.tenant, "hooks").await.unwrap().unwrap()
}

on_both! {
    async fn a_401_whose_pause_is_refused_is_one_request(world) {
        for guarantee in Guarantee::ALL {
            let world = if world.is_postgres() { World::postgres().await } else { World::sqlite().await };
            hooks(&world, guarantee, 8).await;
            let server = HttpServer::start(|_| Reply::status(401));
            world.refuse(VERSION).await;
            let running = world.run().await;
            let id = to(&world, &server).await;
            world.until("it is parked", async || world.delivery(id).await.state == "parked").await;
            // The lane is closed now: later deliveries wait.
            let later = to(&world, &server).await;
            world.until("it is expanded", async || world.delivery(later).await.n == 1).await;
            world.heal(VERSION).await;
            world.until("the pause is written at last", async || provider(&world).await.paused.is_some()).await;
            running.finish().await;
            let row = world.delivery(id).await;
            assert_eq!((row.reason.as_deref(), row.attempts), (Some("config"), 1), "{guarantee:?}");
            assert_eq!(server.requests().len(), 1, "{guarantee:?}");
            assert_eq!(world.delivery(later).await.state, "pending");
        }
    }

    /// A foreign trigger that silently drops the update: no error shows that the pause is missing.
    async fn a_pause_that_a_trigger_drops_closes_the_lane_like_a_refused_one(world) {
        let (swallow, heal) = match world.is_postgres() {
            true => ("CREATE TRIGGER swallow BEFORE UPDATE ON postcommit.provider \
                FOR EACH ROW \
                EXECUTE FUNCTION public.swallow()", "DROP TRIGGER swallow ON postcommit.provider"),
            false => ("CREATE TRIGGER swallow BEFORE UPDATE ON postcommit_provider BEGIN \
                SELECT RAISE(IGNORE); END", "DROP TRIGGER swallow"),
        };
        if world.is_postgres() {
            world.execute("CREATE FUNCTION public.swallow() RETURNS trigger \
                LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'", vec![]).await;
        }
        hooks(&world, Guarantee::Idempotent, 8).await;
        let server = HttpServer::start(|_| Reply::status(401));
        world.execute(swallow, vec![]).await;
        let running = world.run().await;
        let id = to(&world, &server).await;
        world.until("it is parked", async || world.delivery(id).await.state == "parked").await;
        world.execute(heal, vec![]).await;
        world.until("the pause is written at last", async || provider(&world).await.paused.is_some()).await;
        running.finish().await;
        assert_eq!(server.requests().len(), 1);
    }

    async fn a_claimed_delivery_that_was_not_begun_goes_back_and_is_sent_when_the_lane_opens(world) {
        for guarantee in [Guarantee::Idempotent, Guarantee::AtMostOnce] {
            let world = if world.is_postgres() { World::postgres().await } else { World::sqlite().await };
            let lane = hooks(&world, guarantee, 1).await;
            let server = HttpServer::start(|request| Reply::status(if request.n == 1 { 401 } else { 200 }));
            for _ in 0..20 {
                to(&world, &server).await;
            }
            world.refuse(VERSION).await;
            let running = world.run().await;
            world.until("its pause was refused", async || world.count("delivery_ledger").await == 1).await;
            world.heal(VERSION).await;
            world.until("the lane is paused", async || provider(&world).await.paused.is_some()).await;
            assert_eq!(server.requests().len(), 1, "{guarantee:?}");
            assert!(world.store.resume_lane(lane).await.unwrap());
            world.drained().await;
            running.finish().await;
            assert_eq!(server.requests().len(), 20, "{guarantee:?}: each once");
            let ended = world.sql("SELECT state, count(*), max(attempts) \
                FROM postcommit.delivery_ledger \
                GROUP BY state \
                ORDER BY state", vec![]).await;
            let ended: Vec<(String, i64, i64)> = ended.iter().map(|row| (row.get(0).unwrap(), row.get(1).unwrap(), row.get(2).unwrap())).collect();
            assert_eq!(ended, [("parked".into(), 1, 1), ("sent".into(), 19, 1)], "{guarantee:?}");
        }
    }

    async fn a_429_whose_hold_is_refused_waits_as_judged_and_shuts_the_lane(world) {
        hooks(&world, Guarantee::Idempotent, 8).await;
        let server = HttpServer::start(|_| Reply::status(429).with_header("Retry-After", "3600"));
        world.refuse(VERSION).await;
        let running = world.run().await;
        let id = to(&world, &server).await;
        world.until("it is to be retried", async || world.delivery(id).await.state == "retrying").await;
        let later = to(&world, &server).await;
        world.until("it is expanded", async || world.delivery(later).await.n == 1).await;
        world.heal(VERSION).await;
        world.until("the hold is written at last", async || provider(&world).await.held_until.is_some()).await;
        running.finish().await;
        let row = world.delivery(id).await;
        assert_eq!(row.attempts, 1, "it is counted");
        assert!(row.next_attempt_at.unwrap().since(row.updated_at).as_secs() >= 3590, "honoured in full");
        assert_eq!((server.requests().len(), world.delivery(later).await.state.as_str()), (1, "pending"));
    }

    async fn a_delivery_whose_lane_is_paused_goes_back_uncounted_a_limited_number_of_times(world) {
        let lane = hooks(&world, Guarantee::AtLeastOnce, 8).await;
        let server = HttpServer::start(|_| Reply::status(401).slow());
        let id = to(&world, &server).await;
        for made in 1..=10 {
            let running = world.run().await;
            server.wait_for(made).await;
            assert!(world.store.pause_lane(lane, None, "by hand").await.unwrap());
            server.release();
            world.until("it has gone back", async || world.attempts(id).await.len() == made).await;
            running.finish().await;
            assert_eq!(world.delivery(id).await.attempts, 0, "uncounted");
            assert!(world.store.resume_lane(lane).await.unwrap());
        }
        let running = world.run().await;
        server.wait_for(11).await;
        assert!(world.store.pause_lane(lane, None, "by hand").await.unwrap());
        server.release();
        world.drained().await;
        running.finish().await;
        assert_eq!(world.delivery(id).await.reason.as_deref(), Some("config"));
        assert_eq!(server.requests().len(), 11);
    }
}
