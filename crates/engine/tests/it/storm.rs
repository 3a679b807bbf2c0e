//! A provider that answers 429 for ten minutes, or for forty without a time to wait. The time is compressed: instead of waiting, all times in the database are
//! moved back. On both databases.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use postcommit_channel::model::{Guarantee, ProviderDraft};
use postcommit_engine::dispatch::Dispatcher;
use postcommit_testkit::{HttpServer, Reply};
use serde_json::json;

use crate::world::World;

/// What the provider asks for, and how many such waits are ten minutes.
const WAIT_S: u64 = 60;
const ROUNDS: usize = 10;
const DELIVERIES: usize = 40;
const CONCURRENCY: i32 = 8;

async fn provider(world: &World, name: &str, channel: &str, server: &HttpServer, guarantee: Guarantee) {
    let settings = json!({"url": server.url("/in")});
    let draft = ProviderDraft {
        channel: channel.into(),
        concurrency: CONCURRENCY,
        guarantee,
        ..world.draft(name, "webhook", settings)
    };
    world.provider(draft).await;
}

/// One pass by a process of its own. Another one would remember from which due time it reads the queue, and the times are
/// moved back.
async fn pass(world: &World) {
    let tools = world.tools(world.another_store().await);
    Dispatcher::new(tools).await.unwrap().pass(None).await.unwrap();
}

/// Moves the holds and due times back, as if this time had passed.
async fn time_passes(world: &World, seconds: u64) {
    let earlier = |column: &str| match world.is_postgres() {
        true => format!("{column} = {column} - interval '{seconds} seconds'"),
        false => format!("{column} = {column} - {seconds} * 1000000"),
    };
    world.execute(&format!("UPDATE postcommit.provider SET {}", earlier("held_until")), vec![]).await;
    world.execute(&format!("UPDATE postcommit.delivery_queue SET {}", earlier("due_at")), vec![]).await;
}

on_both! {
    async fn ten_minutes_of_429_hold_their_lane_alone_and_park_nothing(world) {
        for guarantee in Guarantee::ALL {
            let world = if world.is_postgres() { World::postgres().await } else { World::sqlite().await };
            let is_over = Arc::<AtomicBool>::default();
            let over = is_over.clone();
            let stormy = HttpServer::start(move |_| match over.load(Ordering::SeqCst) {
                true => Reply::ok(),
                false => Reply::status(429).with_header("Retry-After", WAIT_S.to_string()),
            });
            let calm = HttpServer::start(|_| Reply::ok());
            provider(&world, "stormy", "email", &stormy, guarantee).await;
            provider(&world, "calm", "sms", &calm, guarantee).await;
            for _ in 0..DELIVERIES {
                world.enqueue("t", json!({})).await;
            }
            for round in 1..=ROUNDS {
                let before = stormy.requests().len();
                for _ in 0..5 {
                    world.enqueue("t", json!({"recipients": [{"phone": "+14155550100"}]})).await;
                }
                pass(&world).await;
                assert_eq!(calm.requests().len(), 5 * round, "the other lane sends everything in the same pass");
                let asked = stormy.requests().len() - before;
                assert!((1..=8).contains(&asked), "one answer for each slot: {asked} in round {round}");
                let held = world.store.provider(world.tenant, "stormy").await.unwrap().unwrap();
                let left = held.held_until.unwrap().since(world.store.now().await.unwrap());
                assert!(left > Duration::from_secs(WAIT_S / 2) && left <= Duration::from_secs(WAIT_S), "as told: {left:?}");
                assert_eq!((held.trips, held.hold_reason), (0, None), "a rate limit is no failure of the service");
                // While the hold lasts nothing is sent, and what waits uses no attempts.
                time_passes(&world, WAIT_S / 2).await;
                pass(&world).await;
                assert_eq!(stormy.requests().len(), before + asked);
                time_passes(&world, WAIT_S / 2).await;
            }
            assert_eq!(world.count("delivery_ledger").await, 5 * i64::try_from(ROUNDS).unwrap(), "nothing of the storm has ended");
            let waiting = world.sql("SELECT count(*), sum(attempts) FROM postcommit.delivery_queue", vec![]).await.remove(0);
            assert_eq!(waiting.get::<i64>(0).unwrap(), i64::try_from(DELIVERIES).unwrap());
            assert_eq!(waiting.get::<i64>(1).unwrap(), i64::try_from(stormy.requests().len()).unwrap(), "one attempt for each request");

            is_over.store(true, Ordering::SeqCst);
            time_passes(&world, 3600).await;
            pass(&world).await;
            let sent = world.sql("SELECT count(*) FROM postcommit.delivery_ledger WHERE state = 'sent'", vec![]).await;
            assert_eq!(sent[0].get::<i64>(0).unwrap(), i64::try_from(DELIVERIES + 5 * ROUNDS).unwrap(), "{guarantee:?}");
            assert_eq!(world.count("delivery_queue").await, 0);
        }
    }

    /// Many services name no time. Without a hold, each delivery would meet the limit again and again until its attempts
    /// are used up.
    async fn forty_minutes_of_429_without_a_time_to_wait_are_probed_and_park_nothing(world) {
        const MINUTES: usize = 40;
        for guarantee in Guarantee::ALL {
            let world = if world.is_postgres() { World::postgres().await } else { World::sqlite().await };
            let is_over = Arc::<AtomicBool>::default();
            let over = is_over.clone();
            let stormy = HttpServer::start(move |_| Reply::status(if over.load(Ordering::SeqCst) { 200 } else { 429 }));
            let calm = HttpServer::start(|_| Reply::ok());
            provider(&world, "stormy", "email", &stormy, guarantee).await;
            provider(&world, "calm", "sms", &calm, guarantee).await;
            for _ in 0..DELIVERIES {
                world.enqueue("t", json!({})).await;
            }
            for minute in 1..=MINUTES {
                let before = stormy.requests().len();
                world.enqueue("t", json!({"recipients": [{"phone": "+14155550100"}]})).await;
                pass(&world).await;
                assert_eq!(calm.requests().len(), minute, "the other lane sends everything in the same pass");
                let asked = stormy.requests().len() - before;
                let most = if minute == 1 { 4 + usize::try_from(CONCURRENCY).unwrap() } else { 1 };
                assert!(asked <= most, "the first run and then one probe for each hold: {asked} in minute {minute}");
                time_passes(&world, 60).await;
            }
            let held = world.store.provider(world.tenant, "stormy").await.unwrap().unwrap();
            assert!(held.trips > 5 && held.hold_reason.unwrap().ends_with("failed with http_429"), "{guarantee:?}");
            let most = world.sql("SELECT max(attempts), count(*) FROM postcommit.delivery_queue", vec![]).await.remove(0);
            assert!(most.get::<i32>(0).unwrap() <= 4, "no delivery is near the end of its policy");
            assert_eq!(most.get::<i64>(1).unwrap(), i64::try_from(DELIVERIES).unwrap(), "nothing of the storm has ended");

            is_over.store(true, Ordering::SeqCst);
            time_passes(&world, 24 * 3600).await;
            pass(&world).await;
            let sent = world.sql("SELECT count(*) FROM postcommit.delivery_ledger WHERE state = 'sent'", vec![]).await;
            assert_eq!(sent[0].get::<i64>(0).unwrap(), i64::try_from(DELIVERIES + MINUTES).unwrap(), "{guarantee:?}");
        }
    }
}
