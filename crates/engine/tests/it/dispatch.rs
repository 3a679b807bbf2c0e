//! The moving part on both databases: what becomes of a notification under each outcome, guarantee and policy.

use std::time::Duration;

use postcommit_engine::channel::FailOn;
use postcommit_engine::dispatch::Dispatcher;
use postcommit_engine::model::{Guarantee, Policy};
use postcommit_testkit::{HttpServer, Reply};
use serde_json::json;

use crate::world::{World, id_of};

fn policy(value: serde_json::Value) -> Policy {
    Policy::from_json(&value).unwrap()
}

/// Seconds between an attempt and the next, as planned.
async fn planned_wait(world: &World, id: uuid::Uuid) -> u64 {
    let last = world.attempts(id).await.pop().unwrap();
    world.delivery(id).await.next_attempt_at.unwrap().since(last.at).as_secs()
}

on_both! {
    async fn a2_the_picture_in_plain_sql(world) {
        world.capture(json!({"fail_on": "transient=booking.confirmed"})).await;
        let id = world.enqueue("booking.confirmed", json!({"entity": "12345", "idempotency_key": "k", "payload": {"bookingId": 12345}})).await;
        world.pass().await;
        let sql = "SELECT event_type, entity, idempotency_key, payload, status, attempts, next_attempt_at, last_error, created_at, updated_at FROM postcommit.notification_status WHERE id = $1";
        let row = world.sql(sql, vec![id.into()]).await.remove(0);
        let text = |place| row.get::<String>(place).unwrap();
        assert_eq!([text(0), text(1), text(2), text(4)], ["booking.confirmed", "12345", "k", "retrying"]);
        assert_eq!(row.get::<serde_json::Value>(3).unwrap(), json!({"bookingId": 12345}));
        assert_eq!((row.get::<i64>(5).unwrap(), text(7)), (1, "capture_transient: told to fail for a while".into()));
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
            // Idle is said before it sleeps; SQLite has no such table, there the file itself is watched.
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

    async fn a6_the_marketplace_policy_ends_after_the_fifth_attempt(world) {
        let mut draft = world.draft("capture", "capture", json!({"fail_on": "transient=a"}));
        draft.policy = policy(json!("marketplace"));
        world.provider(draft).await;
        let id = world.enqueue("a", json!({})).await;
        let mut waits = Vec::new();
        for _ in 0..4 {
            world.pass().await;
            waits.push(planned_wait(&world, id).await);
            world.make_due().await;
        }
        assert_eq!(waits, [30, 120, 600, 1800]);
        world.pass().await;
        let row = world.delivery(id).await;
        assert_eq!((row.state.as_str(), row.reason.as_deref(), row.attempts), ("parked", Some("exhausted"), 5));
    }

    async fn c13_the_default_policy_doubles_from_one_minute(world) {
        world.capture(json!({"fail_on": "transient=a"})).await;
        let id = world.enqueue("a", json!({})).await;
        for expected in [60, 120, 240, 480] {
            world.pass().await;
            assert_eq!(planned_wait(&world, id).await, expected);
            world.make_due().await;
        }
        world.pass().await;
        assert_eq!(world.delivery(id).await.reason.as_deref(), Some("exhausted"));
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
        // Two rules from settings, the others as from the environment.
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

    async fn b14_one_failing_channel_does_not_hold_back_the_others(world) {
        let mut bad = world.draft("bad", "capture", json!({"fail_on": "permanent=a"}));
        bad.channel = "sms".into();
        world.provider(bad).await;
        world.capture(json!({})).await;
        // Through plain SQL: the SDK would have refused the third address.
        let id = world.enqueue_by_sql("a", "[{\"phone\": \"+14155550100\"}, {\"email\": \"a@example.com\"}, {\"email\": \"nonsense\"}]").await;
        world.pass().await;
        let states: Vec<String> = world.deliveries(id).await.into_iter().map(|d| d.state).collect();
        assert_eq!(states, ["parked", "sent", "skipped"]);
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
        // Twenty wait on the slow lane, four of them under way: no more than it has slots were claimed.
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

    async fn c14_replay_sends_what_failed_and_nothing_else(world) {
        let id = world.enqueue("a", json!({"recipients": [{"email": "a@example.com"}, {"phone": "+14155550100"}]})).await;
        let mut sms = world.draft("sms", "capture", json!({"fail_on": "permanent=a"}));
        sms.channel = "sms".into();
        world.provider(sms.clone()).await;
        world.capture(json!({})).await;
        world.pass().await;
        sms.settings = json!({});
        world.store.update_provider(world.tenant, &sms).await.unwrap();
        for row in world.deliveries(id).await {
            let retried = world.store.retry(world.key(id, row.n)).await.unwrap();
            assert_eq!(retried, row.state == "parked");
        }
        world.pass().await;
        assert!(world.deliveries(id).await.iter().all(|d| d.state == "sent"));
        assert_eq!(world.attempts(id).await.len(), 3);
    }

    async fn an_unknown_user_or_list_parks_the_notification_with_that_reason(world) {
        world.capture(json!({})).await;
        for (recipient, code) in [(json!({"user": "u1"}), "unknown_user"), (json!({"list": "ops"}), "unknown_list")] {
            let id = world.enqueue("a", json!({"recipients": [{"email": "a@example.com"}, recipient]})).await;
            world.pass().await;
            let row = world.delivery(id).await;
            assert_eq!((row.state.as_str(), row.reason.as_deref(), row.error_code.as_deref(), row.n), ("parked", Some("config"), Some(code), 0));
        }
        let nobody = world.enqueue("a", json!({"recipients": []})).await;
        world.pass().await;
        assert_eq!(world.delivery(nobody).await.error_code.as_deref(), Some("no_recipient"));
    }

    async fn a_missing_provider_parks_that_delivery_and_a_retry_finds_a_new_one(world) {
        let id = world.enqueue("a", json!({"recipients": [{"email": "a@example.com"}, {"provider": "siren", "address": "hall"}]})).await;
        world.pass().await;
        let codes: Vec<_> = world.deliveries(id).await.into_iter().map(|d| (d.state, d.reason.unwrap(), d.error_code.unwrap())).collect();
        let parked = |code: &str| ("parked".to_owned(), "config".to_owned(), code.to_owned());
        assert_eq!(codes, [parked("no_provider"), parked("unknown_provider")]);
        world.capture(json!({})).await;
        assert!(world.store.retry(world.key(id, 1)).await.unwrap());
        world.pass().await;
        assert_eq!(world.deliveries(id).await[0].state, "sent");
    }

    async fn a_recipient_may_name_its_provider(world) {
        world.capture(json!({})).await;
        let mut siren = world.draft("siren", "capture", json!({}));
        (siren.channel, siren.is_default) = ("alarm".into(), false);
        world.provider(siren).await;
        let id = world.enqueue("a", json!({"recipients": [{"provider": "siren", "address": "hall"}]})).await;
        world.pass().await;
        let row = world.delivery(id).await;
        assert_eq!((row.provider.as_deref(), row.channel.as_deref(), row.state.as_str()), (Some("siren"), Some("alarm"), "sent"));
    }

    async fn channels_narrow_and_widen_what_an_address_implies(world) {
        world.capture(json!({})).await;
        let to = json!([{"phone": "+14155550100"}, {"email": "a@example.com"}]);
        let channels = async |wanted: serde_json::Value| {
            let id = world.enqueue("a", json!({"recipients": to, "channels": wanted})).await;
            world.pass().await;
            world.deliveries(id).await.into_iter().map(|d| d.channel.unwrap_or_default()).collect::<Vec<_>>()
        };
        assert_eq!(channels(json!([])).await, ["sms", "email"]);
        assert_eq!(channels(json!(["email"])).await, ["email", "sms"], "who cannot be reached is skipped, not forgotten");
        assert_eq!(channels(json!(["whatsapp", "sms"])).await, ["whatsapp", "sms", "email"]);
        let nobody = world.enqueue("a", json!({"recipients": to, "channels": ["slack"]})).await;
        world.pass().await;
        assert_eq!(world.delivery(nobody).await.error_code.as_deref(), Some("no_recipient"));
    }

    async fn an_entity_s_pending_work_is_cancelled_even_while_it_is_under_way(world) {
        world.capture(json!({"fail_on": "transient=a"})).await;
        let (waiting, later) = (world.enqueue("a", json!({"entity": "b1"})).await, world.enqueue("r", json!({"entity": "b1", "due_at": "2099-01-01T00:00:00Z"})).await);
        world.pass().await;
        // A claim that a crashed worker holds: cancel cannot touch the row, and leaves word.
        world.execute("UPDATE postcommit.delivery_queue SET lease_token = $1, lease_until = {now} WHERE notification_id = $2", vec![uuid::Uuid::new_v4().into(), waiting.into()]).await;
        let cancelled = match world.is_postgres() {
            true => world.sql("SELECT postcommit.cancel('default', 'b1')", vec![]).await[0].get::<i64>(0).unwrap(),
            false => {
                let reached = world.sql("SELECT count(*) FROM postcommit_cancellable WHERE tenant = 'default' AND entity = 'b1'", vec![]).await[0].get(0).unwrap();
                world.execute("INSERT INTO postcommit_cancel (tenant, entity) VALUES ('default', 'b1')", vec![]).await;
                reached
            }
        };
        assert_eq!(cancelled, 1);
        assert_eq!(world.delivery(later).await.state, "cancelled");
        // The takeover first records the lost attempt; the next claim meets the word that was left.
        world.make_due().await;
        world.pass().await;
        world.pass().await;
        assert_eq!(world.delivery(waiting).await.state, "cancelled");
    }

    async fn a_stop_finishes_what_is_under_way_and_claims_nothing_more(world) {
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
            let held = world.store.claim(&[postcommit_engine::store::Want { lane, quota: 1 }], Duration::from_secs(60), None).await.unwrap().remove(0);
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

    async fn what_somebody_broke_by_hand_holds_up_nothing_else(world) {
        world.capture(json!({})).await;
        let mut broken = world.draft("broken", "capture", json!({}));
        (broken.channel, broken.is_default) = ("sms".into(), true);
        world.provider(broken).await;
        let nonsense = |what: &str| (format!("UPDATE postcommit.provider SET {what} WHERE name = 'broken'"), vec![]);
        world.store.db().execute(vec![nonsense("policy = '{\"name\": \"never\"}', settings = '[7]', driver = 'pigeon'")]).await.unwrap();
        let stuck = world.enqueue("a", json!({"recipients": [{"phone": "+14155550100"}]})).await;
        let odd = world.enqueue_by_sql("a", "[7, {\"email\": null}, \"x\"]").await;
        let fine = world.enqueue("a", json!({})).await;
        world.pass().await;
        assert_eq!(world.delivery(fine).await.state, "sent");
        assert_eq!(world.delivery(odd).await.error_code.as_deref(), Some("bad_recipient"));
        assert_eq!(world.delivery(stuck).await.state, "pending", "its lane is not open");
        let shown = world.store.provider(world.tenant, "broken").await.unwrap().unwrap();
        assert!(shown.paused.unwrap().contains("never"));
    }

    async fn retry_cancel_and_dispatch_at_once_lose_nothing(world) {
        let mut draft = world.draft("capture", "capture", json!({"fail_on": "permanent=p,transient=t"}));
        draft.policy = policy(json!({"name": "fixed", "interval_s": 0.001, "max_attempts": 100}));
        world.provider(draft).await;
        let mut ids = Vec::new();
        for i in 0..20 {
            ids.push(world.enqueue(if i % 2 == 0 { "p" } else { "t" }, json!({"idempotency_key": format!("k{i}")})).await);
        }
        let running = world.run().await;
        let mut operators = Vec::new();
        for operator in 0..4 {
            let (store, keys) = (world.another_store().await, ids.iter().map(|id| world.key(*id, 1)).collect::<Vec<_>>());
            operators.push(tokio::spawn(async move {
                for _ in 0..15 {
                    for key in &keys {
                        if operator % 2 == 0 { store.retry(*key).await.unwrap() } else { store.cancel_delivery(*key).await.unwrap() };
                    }
                }
            }));
        }
        for operator in operators {
            operator.await.unwrap();
        }
        running.finish().await;
        let everywhere = "SELECT count(*) FROM (SELECT notification_id, n FROM postcommit.delivery_queue UNION ALL SELECT notification_id, n FROM postcommit.delivery_ledger) d";
        assert_eq!(world.sql(everywhere, vec![]).await[0].get::<i64>(0).unwrap(), 20, "each is in one place, and in one only");
    }

    async fn digits_are_sent_as_they_were_enqueued(world) {
        world.capture(json!({})).await;
        let payload = "{\"n\": 12345678901234567890123, \"d\": 0.12345678901234567890}";
        let id = world.enqueue_raw("a", payload).await;
        world.pass().await;
        let sent = world.attempts(id).await[0].excerpt.clone().unwrap();
        assert!(sent.contains("12345678901234567890123") && sent.contains("0.12345678901234567890"), "{sent}");
    }

    async fn a_payload_beyond_our_parser_is_sent_or_parked_and_holds_up_nothing(world) {
        world.capture(json!({})).await;
        let (odd, fine) = (world.enqueue_raw("a", "{\"n\": 1e400}").await, world.enqueue("b", json!({})).await);
        world.pass().await;
        assert_eq!(world.delivery(fine).await.state, "sent");
        assert_eq!(world.delivery(odd).await.state, "sent", "nobody needs to understand the number to pass it on");
    }

    async fn a_retry_goes_to_the_provider_that_was_named(world) {
        world.capture(json!({})).await;
        let id = world.enqueue("a", json!({"recipients": [{"provider": "siren", "address": "hall"}]})).await;
        world.pass().await;
        assert!(world.store.retry(world.key(id, 1)).await.unwrap());
        world.pass().await;
        assert_eq!(world.delivery(id).await.error_code.as_deref(), Some("unknown_provider"), "the default is not who was asked for");
        let mut siren = world.draft("siren", "capture", json!({}));
        (siren.channel, siren.is_default) = ("alarm".into(), false);
        world.provider(siren).await;
        assert!(world.store.retry(world.key(id, 1)).await.unwrap());
        world.pass().await;
        let row = world.delivery(id).await;
        assert_eq!((row.state.as_str(), row.provider.as_deref()), ("sent", Some("siren")));
    }

    async fn what_waits_on_a_lane_that_is_gone_is_routed_anew(world) {
        let lane = world.capture(json!({})).await;
        world.store.pause_lane(lane, None, "so that it waits").await.unwrap();
        let id = world.enqueue("a", json!({})).await;
        world.pass().await;
        world.execute("DELETE FROM postcommit.provider", vec![]).await;
        world.capture(json!({})).await;
        world.pass().await;
        assert_eq!(world.delivery(id).await.state, "pending");
        assert_eq!(world.store.reroute_strays_once().await.unwrap(), 1);
        world.pass().await;
        assert_eq!(world.delivery(id).await.state, "sent");
    }

    async fn a_large_expansion_is_written_in_pieces(world) {
        world.capture(json!({})).await;
        let crowd: Vec<_> = (0..900).map(|i| json!({"email": format!("u{i}@example.com")})).collect();
        for i in 0..3 {
            world.enqueue("a", json!({"idempotency_key": format!("k{i}"), "recipients": crowd})).await;
        }
        world.pass().await;
        assert_eq!((world.count("delivery_ledger").await, world.count("delivery_queue").await), (2700, 0));
    }

    async fn a_retry_keeps_recipients_apart_that_share_an_address(world) {
        let to = json!([{"provider": "a", "address": "x@example.com"}, {"provider": "b", "address": "x@example.com"}, {"email": "x@example.com"}]);
        let id = world.enqueue("e", json!({"recipients": to})).await;
        world.pass().await;
        for (name, channel) in [("a", "one"), ("b", "two"), ("mail", "email")] {
            let mut draft = world.draft(name, "capture", json!({}));
            draft.channel = channel.into();
            world.provider(draft).await;
        }
        for n in 1..=3 {
            assert!(world.store.retry(world.key(id, n)).await.unwrap());
        }
        world.pass().await;
        let providers: Vec<_> = world.deliveries(id).await.into_iter().map(|d| d.provider.unwrap_or(d.state)).collect();
        assert_eq!(providers, ["a", "b", "mail"]);
    }

    async fn a_guarantee_made_stricter_holds_for_what_is_unclear_already(world) {
        let mut draft = world.draft("capture", "capture", json!({"fail_on": "unclear*1=u"}));
        let lane = world.provider(draft.clone()).await;
        let (unclear, lost) = (world.enqueue("u", json!({})).await, world.enqueue("l", json!({"due_at": "2099-01-01T00:00:00Z"})).await);
        world.pass().await;
        // The other one was under way when its worker died: under this guarantee nothing was announced.
        world.store.pause_lane(lane, None, "so that the expansion alone runs").await.unwrap();
        world.make_due().await;
        world.pass().await;
        world.store.resume_lane(lane).await.unwrap();
        let taken = world.store.claim(&[postcommit_engine::store::Want { lane, quota: 10 }], Duration::from_secs(60), None).await.unwrap();
        assert_eq!(taken.len(), 2);
        let back: Vec<_> = taken.iter().filter(|d| d.key.notification == unclear).map(|d| postcommit_engine::store::Lease { key: d.key, token: d.token }).collect();
        world.execute("UPDATE postcommit.delivery_queue SET lease_token = NULL, lease_until = NULL WHERE notification_id = $1", vec![back[0].key.notification.into()]).await;
        world.expire_leases().await;
        draft.guarantee = Guarantee::AtMostOnce;
        world.store.update_provider(world.tenant, &draft).await.unwrap();
        world.pass().await;
        for id in [unclear, lost] {
            let row = world.delivery(id).await;
            assert_eq!((row.state.as_str(), row.reason.as_deref()), ("parked", Some("outcome_unknown")), "{row:?}");
        }
    }

    async fn a_retry_of_one_delivery_leaves_the_cancelling_of_another_alone(world) {
        world.capture(json!({"fail_on": "transient*1=a"})).await;
        let id = world.enqueue("a", json!({"entity": "e1", "recipients": [{"email": "a@example.com"}, {"provider": "siren", "address": "hall"}]})).await;
        world.pass().await;
        // Under way when the word comes.
        world.execute("UPDATE postcommit.delivery_queue SET lease_token = $1, lease_until = {now}", vec![uuid::Uuid::new_v4().into()]).await;
        match world.is_postgres() {
            true => drop(world.sql("SELECT postcommit.cancel('default', 'e1')", vec![]).await),
            false => drop(world.execute("INSERT INTO postcommit_cancel (tenant, entity) VALUES ('default', 'e1')", vec![]).await),
        }
        assert!(world.store.retry(world.key(id, 2)).await.unwrap());
        world.execute("UPDATE postcommit.delivery_queue SET lease_token = NULL, lease_until = NULL", vec![]).await;
        world.make_due().await;
        world.pass().await;
        let states: Vec<String> = world.deliveries(id).await.into_iter().map(|d| d.state).collect();
        assert_eq!(states, ["cancelled", "parked"], "the first was taken back, the second was tried again");
    }

    async fn an_answer_to_old_settings_does_not_pause_the_mended_lane(world) {
        let lane = world.capture(json!({})).await;
        let old = world.store.provider(world.tenant, "capture").await.unwrap().unwrap().revision;
        world.store.resume_lane(lane).await.unwrap();
        assert!(!world.store.pause_lane(lane, Some(old), "http_401").await.unwrap());
        let now = world.store.provider(world.tenant, "capture").await.unwrap().unwrap();
        assert!(now.paused.is_none() && world.store.pause_lane(lane, Some(now.revision), "http_401").await.unwrap());
    }

    async fn a_key_that_comes_back_opens_the_lane_without_a_restart(world) {
        let server = HttpServer::start(|_| Reply::ok());
        let mut draft = world.draft("hooks", "webhook", json!({}));
        let secrets = [("secret".to_owned(), postcommit_engine::secret::Secret::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"))].into();
        draft.secrets = Some(world.keys.or_new().unwrap().seal(&secrets, world.tenant, "hooks"));
        world.provider(draft).await;
        let postcommit_engine::secret::KeySource::File(file) = world.keys.clone() else { panic!("a file") };
        let away = file.with_extension("away");
        std::fs::rename(&file, &away).unwrap();
        let running = world.run().await;
        let id = world.enqueue("a", json!({"recipients": [{"webhook": server.url("/")}]})).await;
        let waits = "SELECT count(*) FROM postcommit.delivery_queue WHERE n = 1 AND lease_token IS NULL";
        world.until("it is expanded, and waits", async || world.sql(waits, vec![]).await[0].get::<i64>(0).unwrap() == 1).await;
        std::fs::rename(&away, &file).unwrap();
        world.drained().await;
        assert_eq!((world.delivery(id).await.state.as_str(), server.requests().len()), ("sent", 1));
        running.finish().await;
    }
}
