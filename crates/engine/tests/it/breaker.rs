//! The circuit breaker: a service that fails several times in a row is left alone for a while, then probed with one send
//! at a time. On both databases.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use postcommit_channel::model::{Guarantee, Policy, Provider, ProviderDraft};
use postcommit_engine::dispatch::Dispatcher;
use postcommit_engine::store::{AuditFilter, AuditNoise, DeliveryFilter};
use postcommit_testkit::{HttpServer, RefusedWrite, Reply};
use serde_json::json;
use uuid::Uuid;

use crate::service::Service;
use crate::world::World;

/// A provider of mails that are sent to this server.
fn draft(world: &World, service: &HttpServer) -> ProviderDraft {
    let settings = json!({"url": service.url("/hook")});
    ProviderDraft { channel: "email".into(), breaker_cool_down_s: 100, ..world.draft("hooks", "webhook", settings) }
}

/// Whether this is the reason of a breaker that tripped after five failures. It names ten if the tenth failure came before
/// the hold was written.
fn is_reason(why: &str) -> bool {
    [5, 10].map(|count| format!("{count} sends in a row failed, the last one with http_503")).contains(&why.to_owned())
}

async fn provider(world: &World) -> Provider {
    world.store.provider(world.tenant, "hooks").await.unwrap().unwrap()
}

async fn several(world: &World, count: usize) -> Vec<Uuid> {
    let mut ids = vec![];
    for _ in 0..count {
        ids.push(one(world).await);
    }
    ids
}

async fn one(world: &World) -> Uuid {
    world.enqueue("t", json!({})).await
}

/// Ends all holds, as if their time had passed. What was claimed when the breaker tripped was put off for a moment and
/// is due again as well.
async fn end_holds(world: &World) {
    for table in ["provider", "lane_host"] {
        let sql = format!("UPDATE postcommit.{table} SET held_until = {{now}} WHERE held_until > {{now}}");
        world.execute(&sql, vec![]).await;
    }
    due_unless_tried(world).await;
}

async fn due_unless_tried(world: &World) {
    let sql = "UPDATE postcommit.delivery_queue SET due_at = {now} WHERE due_at > {now} AND attempts = 0";
    world.execute(sql, vec![]).await;
}

async fn in_state(world: &World, state: &str) -> Vec<(String, i64)> {
    let filter = DeliveryFilter { limit: 200, ..DeliveryFilter::default() };
    let rows = world.store.delivery_rows(&filter).await.unwrap().rows;
    rows.into_iter().filter(|row| row.state == state).map(|row| (row.id, row.attempts)).collect()
}

/// How long the lane is held from now.
async fn held_for(world: &World) -> Duration {
    let (until, now) = (provider(world).await.held_until, world.store.now().await.unwrap());
    until.map_or(Duration::ZERO, |until| until.since(now))
}

on_both! {
    async fn five_failures_in_a_row_hold_the_lane_and_a_success_opens_it(world) {
        let service = Service::answering(503);
        let lane = world.provider(draft(&world, &service.server)).await;
        several(&world, 40).await;
        world.pass().await;
        let first = service.requests();
        assert!((5..=5 + 7).contains(&first), "five, and those that were under way: {first}");
        let waiting = in_state(&world, "pending").await;
        assert_eq!(waiting.len(), 40 - first, "the others wait");
        assert!(waiting.iter().all(|(_, attempts)| *attempts == 0), "and use no attempts");
        let held = provider(&world).await;
        assert_eq!((held.trips, held.paused.is_none()), (1, true));
        let why = held.hold_reason.clone().unwrap();
        assert!(is_reason(&why), "{why}");
        let shut = world.store.count_closed(Some(world.tenant)).await.unwrap();
        assert_eq!((shut.lanes_held, shut.lanes_tripped), (1, 1));
        let waits = world.delivery(waiting[0].0.parse::<postcommit_channel::model::DeliveryId>().unwrap().notification).await.waits_for.unwrap();
        assert!(waits.starts_with("its provider, which is held until 2") && waits.ends_with(&why), "{waits}");
        let short = held_for(&world).await;
        assert!(short > Duration::from_secs(60), "{short:?}");
        world.pass().await;
        assert_eq!(service.requests(), first, "nothing is sent while it is held");

        // One send probes the service, fails, and the lane is held for longer.
        end_holds(&world).await;
        world.pass().await;
        assert_eq!((service.requests(), provider(&world).await.trips), (first + 1, 2));
        let reason = provider(&world).await.hold_reason.unwrap();
        assert_eq!(reason, "the send that probed the service failed with http_503");
        assert!(held_for(&world).await > short + Duration::from_secs(20), "twice as long");
        assert_eq!(in_state(&world, "retrying").await.len(), first + 1, "the probe is judged and counted as always");

        // The next probe succeeds, and everything that waited is sent. The failed ones wait as their policy says.
        service.answer(200);
        end_holds(&world).await;
        world.pass().await;
        assert_eq!((service.requests(), in_state(&world, "sent").await.len()), (40, 40 - first - 1));
        let well = provider(&world).await;
        assert_eq!((well.trips, well.hold_reason, well.revision), (0, None, held.revision));
        assert!(!world.store.resume_lane(lane).await.unwrap(), "nothing is left to resume");

        // The audit log has the first trip and the recovery, and not the trip in between.
        let filter = AuditFilter { only_breakers: true, limit: 10, ..AuditFilter::default() };
        let log = world.store.audit_rows(&filter).await.unwrap();
        let said: Vec<(&str, &str)> = log.iter().map(|entry| (entry.action.as_str(), entry.actor.as_str())).collect();
        assert_eq!(said, [("provider.recover", "system"), ("provider.trip", "system")]);
        assert_eq!((&log[0].details, &log[1].details), (&Some(json!({"trips": 2})), &Some(json!({"reason": why}))));
        let without = AuditFilter { without: Some(AuditNoise::System), limit: 100, ..AuditFilter::default() };
        assert!(world.store.audit_rows(&without).await.unwrap().iter().all(|entry| entry.actor != "system"));
    }

    async fn failures_among_successes_never_trip_it(world) {
        let server = HttpServer::start(|request| Reply::status(if request.n % 5 == 0 { 200 } else { 503 }));
        world.provider(ProviderDraft { concurrency: 1, ..draft(&world, &server) }).await;
        several(&world, 40).await;
        world.pass().await;
        assert_eq!((server.requests().len(), provider(&world).await.trips), (40, 0));
    }

    async fn answers_about_a_message_do_not_trip_it(world) {
        for status in [404, 400, 413] {
            let world = if world.is_postgres() { World::postgres().await } else { World::sqlite().await };
            let service = Service::answering(status);
            world.provider(draft(&world, &service.server)).await;
            several(&world, 20).await;
            world.pass().await;
            assert_eq!((service.requests(), provider(&world).await.trips), (20, 0), "{status}");
        }
    }

    async fn it_can_be_switched_off(world) {
        let service = Service::answering(503);
        world.provider(ProviderDraft { breaker_failures: 0, ..draft(&world, &service.server) }).await;
        several(&world, 20).await;
        world.pass().await;
        assert_eq!((service.requests(), provider(&world).await.trips), (20, 0));
    }

    /// Failures after bytes were sent count as well. Under at_most_once what was not begun stays free to be sent.
    async fn unclear_failures_trip_it_under_every_guarantee(world) {
        for guarantee in Guarantee::ALL {
            let world = if world.is_postgres() { World::postgres().await } else { World::sqlite().await };
            let service = Service::answering(500);
            world.provider(ProviderDraft { guarantee, concurrency: 2, ..draft(&world, &service.server) }).await;
            several(&world, 20).await;
            world.pass().await;
            let made = service.requests();
            assert!((5..=6).contains(&made), "{guarantee:?}: {made}");
            assert_eq!((in_state(&world, "pending").await.len(), provider(&world).await.trips), (20 - made, 1));
            service.answer(200);
            end_holds(&world).await;
            world.pass().await;
            assert_eq!((service.requests(), in_state(&world, "sent").await.len()), (20, 20 - made), "{guarantee:?}");
        }
    }

    async fn a_resume_resets_it_and_brings_nothing_forward(world) {
        let service = Service::answering(503);
        let policy = Policy::from_json(&json!({"name": "fixed", "interval_s": 98})).unwrap();
        let lane = world.provider(ProviderDraft { policy, ..draft(&world, &service.server) }).await;
        several(&world, 20).await;
        world.pass().await;
        let made = service.requests();
        assert!(world.store.resume_lane(lane).await.unwrap());
        let opened = provider(&world).await;
        assert_eq!((opened.trips, opened.hold_reason, opened.held_until), (0, None, None));
        service.answer(200);
        due_unless_tried(&world).await;
        world.pass().await;
        assert_eq!(service.requests(), 20, "all that waited");
        assert_eq!(in_state(&world, "retrying").await.len(), made, "what failed waits as its policy says");
    }

    async fn a_resume_ends_the_probing_as_well(world) {
        let service = Service::answering(503);
        let lane = world.provider(draft(&world, &service.server)).await;
        several(&world, 20).await;
        world.pass().await;
        end_holds(&world).await;
        assert_eq!(provider(&world).await.trips, 1);
        assert!(world.store.resume_lane(lane).await.unwrap());
        let before = service.requests();
        world.pass().await;
        assert!(service.requests() >= before + 5, "all slots are used again");
    }

    /// A process that never saw a failure probes as well, and its success is known to the others.
    async fn another_process_probes_with_one_send(world) {
        let service = Service::answering(503);
        world.provider(draft(&world, &service.server)).await;
        let mut other = Dispatcher::new(world.tools(world.another_store().await)).await.unwrap();
        several(&world, 20).await;
        world.pass().await;
        end_holds(&world).await;
        let before = service.requests();
        other.pass(None).await.unwrap();
        assert_eq!((service.requests(), provider(&world).await.trips), (before + 1, 2));
        service.answer(200);
        end_holds(&world).await;
        world.pass().await;
        assert_eq!((service.requests(), provider(&world).await.trips), (20, 0));
    }

    /// The lane is shut in this process until the hold is written.
    async fn a_trip_that_cannot_be_written_stops_the_sends_all_the_same(world) {
        const VERSION: RefusedWrite = RefusedWrite::of("UPDATE", "provider_version");
        let service = Service::answering(503);
        world.provider(draft(&world, &service.server)).await;
        several(&world, 40).await;
        world.refuse(VERSION).await;
        let running = world.run().await;
        world.until("it failed five times", async || service.requests() >= 5).await;
        world.until("the others are expanded", async || in_state(&world, "sending").await.is_empty()).await;
        world.heal(VERSION).await;
        world.until("the hold is written", async || provider(&world).await.trips == 1).await;
        running.finish().await;
        assert!(service.requests() <= 5 + 7, "{}", service.requests());
    }

    /// A delivery is parked after its own attempts, and a probe of another one is no attempt of it.
    async fn what_waits_behind_a_tripped_breaker_is_never_parked(world) {
        let service = Service::answering(503);
        let policy = Policy::from_json(&json!({"name": "fixed", "interval_s": 1, "max_attempts": 3})).unwrap();
        world.provider(ProviderDraft { policy, concurrency: 1, ..draft(&world, &service.server) }).await;
        several(&world, 20).await;
        world.pass().await;
        for trips in 2..=8 {
            end_holds(&world).await;
            world.pass().await;
            assert_eq!(provider(&world).await.trips, trips);
        }
        assert_eq!(service.requests(), 5 + 7);
        assert!(in_state(&world, "parked").await.is_empty());
        assert_eq!(in_state(&world, "pending").await.len(), 20 - 12, "each probe was another one, the oldest first");
    }

    async fn a_host_that_fails_is_held_alone(world) {
        let down = Arc::new(AtomicUsize::new(503));
        let status = down.clone();
        let server = HttpServer::start(move |request| match request.path.starts_with("/good") {
            true => Reply::ok(),
            false => Reply::status(u16::try_from(status.load(Ordering::SeqCst)).unwrap()),
        });
        let bad = server.one_more();
        let lane = world.provider(ProviderDraft { breaker_cool_down_s: 100, ..world.draft("hooks", "webhook", json!({})) }).await;
        let to = async |url: String| world.enqueue("t", json!({"recipients": [{"webhook": url}]})).await;
        let bad_requests = || server.requests().iter().filter(|request| !request.path.starts_with("/good")).count();
        for n in 0..20 {
            to(format!("http://{bad}/bad/{n}")).await;
        }
        world.pass().await;
        let first = bad_requests();
        assert!((5..=5 + 7).contains(&first), "{first}");
        let host = world.store.closed_hosts(None, Some(lane), 10).await.unwrap().remove(0);
        let why = host.hold_reason.unwrap();
        assert!(host.host == bad.to_string() && is_reason(&why), "{}: {why}", host.host);
        assert_eq!((provider(&world).await.trips, provider(&world).await.held_until), (0, None), "the lane is open");
        let shut = world.store.count_closed(None).await.unwrap();
        assert_eq!((shut.lanes_tripped, shut.hosts_tripped, shut.hosts_held), (0, 1, 1));
        let good = to(server.url("/good")).await;
        world.pass().await;
        assert_eq!((world.delivery(good).await.state.as_str(), bad_requests()), ("sent", first));
        assert_eq!(in_state(&world, "pending").await.len(), 20 - first);

        end_holds(&world).await;
        world.make_due().await;
        world.pass().await;
        let trips = world.sql("SELECT trips FROM postcommit.lane_host", vec![]).await[0].get::<i32>(0).unwrap();
        assert_eq!((bad_requests(), trips), (first + 1, 2), "one probe");
        down.store(200, Ordering::SeqCst);
        end_holds(&world).await;
        world.make_due().await;
        world.pass().await;
        assert_eq!((bad_requests(), world.count("delivery_queue").await), (first + 1 + 20, 0));
        let trips = world.sql("SELECT trips FROM postcommit.lane_host", vec![]).await[0].get::<i32>(0).unwrap();
        assert_eq!(trips, 0);
    }

    async fn a_resume_of_a_host_resets_its_breaker(world) {
        let server = HttpServer::start(|_| Reply::status(503));
        let lane = world.provider(ProviderDraft { breaker_cool_down_s: 100, ..world.draft("hooks", "webhook", json!({})) }).await;
        for _ in 0..20 {
            world.enqueue("t", json!({"recipients": [{"webhook": server.url("/hook")}]})).await;
        }
        world.pass().await;
        let host = server.addr().to_string();
        end_holds(&world).await;
        assert!(world.store.resume_host(lane, &host).await.unwrap(), "it was probed");
        assert!(!world.store.resume_host(lane, &host).await.unwrap());
        let before = server.requests().len();
        due_unless_tried(&world).await;
        world.pass().await;
        assert!(server.requests().len() >= before + 5);
    }
}
