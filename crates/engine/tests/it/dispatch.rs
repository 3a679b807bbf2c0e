//! The dispatcher on both databases: the result of a notification under each outcome, guarantee and policy.

use std::time::Duration;

use postcommit_channel::driver::FailOn;
use postcommit_channel::model::{Guarantee, Policy};
use postcommit_engine::dispatch::{Dispatcher, PassOutcome};
use postcommit_testkit::{HttpServer, Reply};
use serde_json::json;

use crate::world::{World, id_of};

fn policy(value: serde_json::Value) -> Policy {
    Policy::from_json(&value).unwrap()
}

/// Seconds between an attempt and the next one, as planned.
async fn planned_wait(world: &World, id: uuid::Uuid) -> u64 {
    let last = world.attempts(id).await.pop().unwrap();
    world.delivery(id).await.next_attempt_at.unwrap().since(last.at).as_secs()
}

/// The planned waits of a delivery that fails until it is parked.
async fn waits_until_exhausted(world: &World) -> Vec<u64> {
    let (id, mut waits) = (world.enqueue("a", json!({})).await, Vec::new());
    world.pass().await;
    while world.delivery(id).await.state == "retrying" {
        waits.push(planned_wait(world, id).await);
        world.make_due().await;
        world.pass().await;
    }
    let row = world.delivery(id).await;
    assert_eq!((row.state.as_str(), row.reason.as_deref()), ("parked", Some("exhausted")));
    assert_eq!(row.attempts, waits.len() as i64 + 1, "one attempt more than waits");
    waits
}

on_both! {
    async fn a2_the_picture_in_plain_sql(world) {
        world.capture(json!({"fail_on": "transient=booking.confirmed"})).await;
        let id = world.enqueue("booking.confirmed", json!({"entity": "12345", "idempotency_key": "k", "payload": {"bookingId": 12345}})).await;
        world.pass().await;
        let sql = "SELECT event_type, entity, idempotency_key, payload, state, attempts, next_attempt_at, last_error, created_at, updated_at \
            FROM postcommit.notification_status \
            WHERE id = $1";
        let row = world.sql(sql, vec![id.into()]).await.remove(0);
        let text = |place| row.get::<String>(place).unwrap();
        assert_eq!([text(0), text(1), text(2), text(4)], ["booking.confirmed", "12345", "k", "retrying"]);
        assert_eq!(row.get::<serde_json::Value>(3).unwrap(), json!({"bookingId": 12345}));
        assert_eq!((row.get::<i64>(5).unwrap(), text(7)), (1, "capture_transient: simulated temporary failure".into()));
        assert!(row.get::<Option<postcommit::Timestamp>>(6).unwrap() > row.get::<Option<postcommit::Timestamp>>(8).unwrap());
        let row = world.sql("SELECT state, attempts, error_code FROM postcommit.delivery WHERE notification_id = $1", vec![id.into()]).await.remove(0);
        assert_eq!((row.get::<String>(0).unwrap(), row.get::<i64>(1).unwrap(), row.get::<String>(2).unwrap()), ("retrying".into(), 1, "capture_transient".into()));
    }

    async fn a3_one_pass_or_one_notification_by_hand(world) {
        world.capture(json!({})).await;
        let (one, two) = (world.enqueue("a", json!({})).await, world.enqueue("b", json!({"due_at": "2099-01-01T00:00:00Z"})).await);
        let mut dispatcher = Dispatcher::new(world.tools(world.store.clone())).await.unwrap();
        dispatcher.pass(Some((world.tenant, two))).await.unwrap();
        assert_eq!(world.delivery(two).await.state, "sent");
        assert_eq!(world.delivery(one).await.state, "pending");
        world.pass().await;
        assert_eq!(world.delivery(one).await.state, "sent");
        world.pass().await;
        assert_eq!(world.count("attempt").await, 2, "a pass is safe to repeat");
    }

    async fn a3_a_running_dispatcher_picks_up_by_itself(world) {
        world.capture(json!({})).await;
        let running = world.run().await;
        let id = world.enqueue("a", json!({})).await;
        world.drained().await;
        assert_eq!(world.delivery(id).await.state, "sent");
        running.finish().await;
    }

    async fn an_idle_dispatcher_is_woken_by_the_commit_not_by_the_poll(world) {
        let mut world = world;
        world.settings.interval_ms = 60_000;
        world.capture(json!({})).await;
        let running = world.run().await;
        for i in 0..5 {
            // The dispatcher marks itself idle before it waits. SQLite has no such table: there the file is watched.
            if world.is_postgres() {
                world.until("it sleeps", async || world.count("idle").await == 1).await;
            }
            world.enqueue("a", json!({"idempotency_key": format!("k{i}")})).await;
            world.drained().await;
        }
        running.finish().await;
        assert_eq!(world.count("delivery_ledger").await, 5);
        if world.is_postgres() {
            assert_eq!(world.count("idle").await, 0, "who has stopped does not sleep");
        }
    }

    async fn a5_the_same_key_again_changes_nothing(world) {
        world.capture(json!({})).await;
        let first = world.enqueue("a", json!({"idempotency_key": "booking:1:confirmed:1"})).await;
        world.pass().await;
        assert_eq!(world.enqueue("a", json!({"idempotency_key": "booking:1:confirmed:1"})).await, first);
        world.pass().await;
        assert_eq!((world.count("notification").await, world.count("attempt").await, world.count("key_conflict").await), (1, 1, 0));
        assert_eq!(world.enqueue("b", json!({"idempotency_key": "booking:1:confirmed:1"})).await, first);
        assert_eq!((world.count("notification").await, world.count("key_conflict").await), (1, 1), "other content is noted, not sent");
    }

    async fn a6_the_marketplace_policy_ends_after_five_retries(world) {
        let mut draft = world.draft("capture", "capture", json!({"fail_on": "transient=a"}));
        draft.policy = policy(json!({"name": "marketplace", "jitter": 0}));
        world.provider(draft).await;
        assert_eq!(waits_until_exhausted(&world).await, [30, 120, 600, 1800, 7200]);
    }

    async fn c13_the_default_policy_doubles_from_one_minute_in_five_retries(world) {
        world.capture(json!({"fail_on": "transient=a"})).await;
        let waits = waits_until_exhausted(&world).await;
        assert_eq!(waits.len(), 5);
        for (wait, full) in waits.into_iter().zip([60, 120, 240, 480, 960]) {
            assert!((full * 9 / 10..=full).contains(&wait), "{wait} of {full}: jitter only shortens");
        }
    }

    async fn e6_a_fixed_interval_with_a_maximum(world) {
        let mut draft = world.draft("capture", "capture", json!({"fail_on": "transient=a"}));
        draft.policy = policy(json!({"name": "fixed", "interval_s": 45, "max_attempts": 2}));
        world.provider(draft).await;
        let id = world.enqueue("a", json!({})).await;
        world.pass().await;
        assert_eq!(planned_wait(&world, id).await, 45);
        world.make_due().await;
        world.pass().await;
        assert_eq!((world.delivery(id).await.state.as_str(), world.attempts(id).await.len()), ("parked", 2));
    }

    async fn a8_capture_fails_on_purpose_by_type_and_by_key(world) {
        let mut world = world;
        // Two rules come from the settings, the others as if from the environment.
        world.fail_on = FailOn::parse("unclear=u,panic=key-7,slow=s,transient*1=t").unwrap();
        let mut draft = world.draft("capture", "capture", json!({"fail_on": "permanent=p,hang=h", "slow_ms": 1}));
        draft.timeout_ms = 100;
        draft.guarantee = Guarantee::AtMostOnce;
        world.provider(draft).await;
        let mut states = Vec::new();
        for event in ["p", "h", "u", "x", "s", "t", "ok"] {
            let key = if event == "x" { json!({"idempotency_key": "key-7"}) } else { json!({}) };
            states.push(world.enqueue(event, key).await);
        }
        world.pass().await;
        let mut seen = Vec::new();
        for id in states {
            let row = world.delivery(id).await;
            seen.push(format!("{} {} {}", row.state, row.reason.unwrap_or_default(), row.error_code.unwrap_or_default()));
        }
        let expected = [
            "parked rejected capture_permanent", "parked outcome_unknown timeout", "parked outcome_unknown capture_unclear", "parked rejected panic", "sent  ",
            "retrying  capture_transient", "sent  ",
        ];
        assert_eq!(seen, expected);
    }

    async fn a8_capture_records_what_it_would_have_sent(world) {
        world.capture(json!({})).await;
        let id = world.enqueue("a", json!({"title": "Hello", "payload": {"x": 1}, "data": {"email": {"cc": "b@example.com"}}})).await;
        world.pass().await;
        let sent: serde_json::Value = serde_json::from_str(world.attempts(id).await[0].excerpt.as_ref().unwrap()).unwrap();
        assert_eq!((&sent["to"], &sent["title"], &sent["payload"]["x"], &sent["data"]["cc"]), (&json!("guest@example.com"), &json!("Hello"), &json!(1), &json!("b@example.com")));
    }

    async fn b3_an_expired_notification_is_never_sent_and_says_so(world) {
        world.capture(json!({})).await;
        let id = world.enqueue("a", json!({})).await;
        let thirty = "SELECT expires_at, due_at FROM postcommit.notification WHERE id = $1";
        let row = world.sql(thirty, vec![id.into()]).await.remove(0);
        let (expires, due): (postcommit::Timestamp, postcommit::Timestamp) = (row.get(0).unwrap(), row.get(1).unwrap());
        assert_eq!(expires.since(due), Duration::from_secs(30 * 86_400), "thirty days by default");
        let late = world.enqueue("a", json!({"due_at": "2026-01-01T00:00:00Z", "expires_at": "2026-01-02T00:00:00Z"})).await;
        world.pass().await;
        assert_eq!((world.delivery(id).await.state.as_str(), world.delivery(late).await.state.as_str()), ("sent", "expired"));
        assert!(world.attempts(late).await.is_empty());
    }

    async fn b3_one_that_expires_while_it_waits_is_expired_not_retried(world) {
        world.capture(json!({"fail_on": "transient=a"})).await;
        let id = world.enqueue("a", json!({})).await;
        world.pass().await;
        let past: postcommit::Timestamp = "2026-01-02T00:00:00Z".parse().unwrap();
        let before: postcommit::Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        world.execute("UPDATE postcommit.notification SET due_at = $1, expires_at = $2", vec![before.into(), past.into()]).await;
        world.make_due().await;
        world.pass().await;
        assert_eq!((world.delivery(id).await.state.as_str(), world.attempts(id).await.len()), ("expired", 1));
    }

    async fn b8_many_workers_send_each_once(world) {
        let server = HttpServer::start(|_| Reply::ok());
        world.provider(world.draft("hooks", "webhook", json!({}))).await;
        let workers = [world.run().await, world.run().await, world.run().await];
        for i in 0..150 {
            world.enqueue("a", json!({"idempotency_key": format!("k{i}"), "recipients": [{"webhook": server.url("/")}]})).await;
        }
        world.drained().await;
        let effects = server.effects_by("webhook-id");
        assert_eq!((effects.len(), effects.values().copied().max()), (150, Some(1)));
        assert_eq!((world.count("delivery_ledger").await, world.store.stale_settles().await.unwrap()), (150, 0));
        for worker in workers {
            worker.finish().await;
        }
    }

    async fn e15_a_hanging_provider_does_not_slow_another_lane(world) {
        let mut slow = world.draft("slow", "capture", json!({"fail_on": "hang=a"}));
        (slow.channel, slow.concurrency, slow.timeout_ms) = ("sms".into(), 4, 60_000);
        world.provider(slow).await;
        world.capture(json!({})).await;
        let running = world.run().await;
        for i in 0..20 {
            world.enqueue("a", json!({"idempotency_key": format!("s{i}"), "recipients": [{"phone": "+14155550100"}]})).await;
        }
        for i in 0..40 {
            world.enqueue("b", json!({"idempotency_key": format!("f{i}")})).await;
        }
        world.until("the fast lane is done", async || world.count("delivery_ledger").await == 40).await;
        // Twenty deliveries wait on the slow lane and four of them are being sent: the claim took no more than the lane
        // has slots.
        let leased = "SELECT count(*) FROM postcommit.delivery_queue WHERE lease_token IS NOT NULL";
        world.until("the slow lane is full", async || world.sql(leased, vec![]).await[0].get::<i64>(0).unwrap() == 4).await;
        assert_eq!(world.count("delivery_queue").await, 20);
        drop(running);
    }

    async fn a_panicking_send_parks_only_itself(world) {
        world.capture(json!({"fail_on": "panic=boom"})).await;
        let running = world.run().await;
        let bad = world.enqueue("boom", json!({})).await;
        for i in 0..20 {
            world.enqueue("fine", json!({"idempotency_key": format!("f{i}")})).await;
        }
        world.drained().await;
        let row = world.delivery(bad).await;
        assert_eq!((row.state.as_str(), row.error_code.as_deref()), ("parked", Some("panic")));
        assert_eq!(world.sql("SELECT count(*) FROM postcommit.delivery_ledger WHERE state = 'sent'", vec![]).await[0].get::<i64>(0).unwrap(), 20);
        running.finish().await;
    }

    async fn a_stop_finishes_the_sends_in_flight_and_claims_nothing_more(world) {
        let server = HttpServer::start(|_| Reply::ok().slow());
        world.provider(world.draft("hooks", "webhook", json!({}))).await;
        let first = world.enqueue("a", json!({"recipients": [{"webhook": server.url("/")}]})).await;
        let running = world.run().await;
        server.wait_for(1).await;
        running.ask_to_finish();
        let second = world.enqueue("a", json!({"recipients": [{"webhook": server.url("/")}]})).await;
        server.release();
        running.finish().await;
        assert_eq!((world.delivery(first).await.state.as_str(), world.delivery(second).await.state.as_str()), ("sent", "pending"));
        assert_eq!(server.requests().len(), 1);
    }

    async fn b9_a_pass_with_an_end_finishes_what_it_began_and_says_what_is_left(world) {
        world.capture(json!({})).await;
        for _ in 0..3 {
            world.enqueue("a", json!({})).await;
        }
        let mut dispatcher = Dispatcher::new(world.tools(world.store.clone())).await.unwrap();
        assert!(dispatcher.pass_for(Duration::ZERO).await.unwrap(), "no time, so there may be more");
        assert_eq!(world.count("delivery_queue").await, 3);
        assert!(!dispatcher.pass_for(Duration::from_secs(60)).await.unwrap());
        assert_eq!((world.count("delivery_queue").await, world.count("delivery_ledger").await), (0, 3));
    }

    async fn a_crashed_worker_s_attempt_is_unclear_and_the_guarantee_decides(world) {
        for (guarantee, announced, expected) in [
            (Guarantee::Idempotent, false, "sent"),
            (Guarantee::AtLeastOnce, false, "sent"),
            (Guarantee::AtMostOnce, false, "sent"),
            (Guarantee::AtMostOnce, true, "parked"),
        ] {
            let mut draft = world.draft(&format!("p-{guarantee:?}-{announced}"), "capture", json!({}));
            draft.guarantee = guarantee;
            let lane = world.provider(draft).await;
            world.store.pause_lane(lane, None, "so that the expansion alone runs").await.unwrap();
            let id = world.enqueue("a", json!({})).await;
            world.pass().await;
            world.store.resume_lane(lane).await.unwrap();
            let held = world.store.claim(&[postcommit_engine::store::Want { lane, quota: 1 }], Duration::from_secs(60), None).await.unwrap().deliveries.remove(0);
            if announced {
                world.store.announce(&[postcommit_engine::store::Lease { key: held.key, token: held.token }]).await.unwrap();
            }
            world.expire_leases().await;
            world.pass().await;
            world.pass().await;
            let row = world.delivery(id).await;
            assert_eq!((row.state.as_str(), guarantee), (expected, guarantee), "{row:?}");
            assert_eq!(world.attempts(id).await[0].code.as_deref(), Some("lease_expired"));
            assert_eq!(row.reason.as_deref(), announced.then_some("outcome_unknown"));
            assert_eq!(id_of(&row).n, 1);
        }
    }

    async fn digits_are_sent_as_they_were_enqueued(world) {
        world.capture(json!({})).await;
        let payload = "{\"n\": 12345678901234567890123, \"d\": 0.12345678901234567890}";
        let id = world.enqueue_raw("a", payload).await;
        world.pass().await;
        let sent = world.attempts(id).await[0].excerpt.clone().unwrap();
        assert!(sent.contains("12345678901234567890123") && sent.contains("0.12345678901234567890"), "{sent}");
    }

    async fn a_payload_that_serde_json_cannot_read_is_sent_or_parked_and_delays_nothing(world) {
        world.capture(json!({})).await;
        let (odd, fine) = (world.enqueue_raw("a", "{\"n\": 1e400}").await, world.enqueue("b", json!({})).await);
        world.pass().await;
        assert_eq!(world.delivery(fine).await.state, "sent");
        assert_eq!(world.delivery(odd).await.state, "sent", "the number is passed on without being parsed");
    }

    async fn a_pass_whose_time_is_up_claims_nothing_more_and_says_so(world) {
        world.capture(json!({})).await;
        let id = world.enqueue("a", json!({})).await;
        let mut dispatcher = Dispatcher::new(world.tools(world.store.clone())).await.unwrap();
        assert_eq!(dispatcher.pass_alone(Duration::ZERO).await.unwrap(), PassOutcome::Done { more: true });
        assert_eq!(world.delivery(id).await.state, "pending");
        assert!(world.store.begin_pass().await.unwrap(), "the pass before is over");
        assert_eq!(dispatcher.pass_alone(Duration::from_secs(60)).await.unwrap(), PassOutcome::Elsewhere);
        assert_eq!(world.delivery(id).await.state, "pending");
        world.store.end_pass().await.unwrap();
        assert_eq!(dispatcher.pass_alone(Duration::from_secs(60)).await.unwrap(), PassOutcome::Done { more: false });
        assert_eq!(world.delivery(id).await.state, "sent");
    }
}
