//! Templates that are sent once per entity.

use serde_json::json;

use super::{CONFIRMED, booking, outcome};
use crate::world::World;

async fn key_of(world: &World, id: uuid::Uuid) -> Option<String> {
    world.deliveries(id).await.remove(0).send_key
}

on_both! {
    async fn c3_the_same_booking_confirmed_twice_is_sent_once_per_channel(world) {
        world.capture(json!({})).await;
        world.booking_templates("entity").await;
        let first = world.book("12345", json!({})).await;
        world.pass().await;
        let mut changed = booking();
        changed["guestPhone"] = json!("+14155550100");
        let second = world.book("12345", json!({"payload": changed})).await;
        let other = world.book("12346", json!({})).await;
        world.pass().await;
        let all = |state: &str, code: &str| ["email", "sms", "whatsapp"].map(|on| outcome(on, state, code));
        assert_eq!(world.outcomes(first).await, all("sent", ""));
        assert_eq!(world.outcomes(second).await, all("skipped", "duplicate"), "a changed phone number is no second send");
        assert_eq!(world.outcomes(other).await, all("sent", ""));
        assert_eq!(key_of(&world, first).await.as_deref(), Some("12345:booking.confirmed:email:mail-confirmed"));
        assert_eq!(key_of(&world, second).await, key_of(&world, first).await);
    }

    async fn c3_a_list_of_a_hundred_gets_a_hundred_and_the_second_time_none(world) {
        world.capture(json!({"record": false})).await;
        world.write_template("mail", "email", json!({"text": "x", "once_per": "entity"})).await;
        let addresses: Vec<String> = (0..100).map(|n| format!("guest{n}@example.com")).collect();
        let members: Vec<_> = addresses.iter().map(|address| ("email", address.as_str(), "")).collect();
        world.list("guests", &members).await;
        let to = json!({"recipients": [{"list": "guests"}]});
        let first = world.book("1", to.clone()).await;
        world.pass().await;
        world.list("guests", &[("email", "new@example.com", "")]).await;
        let second = world.book("1", to).await;
        world.pass().await;
        let count = async |id, state: &str| world.outcomes(id).await.iter().filter(|(_, found, _)| found == state).count();
        assert_eq!((count(first, "sent").await, count(second, "skipped").await, count(second, "sent").await), (100, 100, 1));
    }

    async fn c3_of_concurrent_expansions_one_sends(world) {
        world.capture(json!({"record": false})).await;
        world.booking_templates("entity").await;
        let mut ids = Vec::new();
        for booking in 0..10 {
            for _ in 0..8 {
                ids.push(world.book(&booking.to_string(), json!({})).await);
            }
        }
        let (one, two, three) = (world.run().await, world.run().await, world.run().await);
        world.drained().await;
        for running in [one, two, three] {
            running.finish().await;
        }
        let mut sent = 0;
        for id in ids {
            let rows = world.outcomes(id).await;
            assert_eq!(rows.len(), 3);
            assert!(rows.iter().all(|(_, state, code)| state == "sent" || code == "duplicate"), "{rows:?}");
            sent += rows.iter().filter(|(_, state, _)| state == "sent").count();
        }
        assert_eq!((sent, world.count("send_key").await), (30, 30));
    }

    async fn c3_a_target_skipped_or_parked_before_it_is_written_holds_no_key(world) {
        world.capture(json!({})).await;
        world.write_template("mail", "email", json!({"text": "x", "once_per": "entity"})).await;
        world.user("ana", &[("email", "ana@example.com")], json!({})).await;
        world.prefer("ana", "*", "email", false).await;
        let to = json!({"recipients": [{"user": "ana"}]});
        let unwanted = world.book("1", to.clone()).await;
        world.pass().await;
        world.execute("DELETE FROM postcommit.preference", vec![]).await;
        let wanted = world.book("1", to.clone()).await;
        let without_entity = world.enqueue(CONFIRMED, to).await;
        world.pass().await;
        assert_eq!(world.outcomes(unwanted).await, [outcome("email", "skipped", "opted_out")]);
        assert_eq!(world.outcomes(wanted).await, [outcome("email", "sent", "")]);
        assert_eq!(world.outcomes(without_entity).await, [outcome("email", "sent", "")], "without an entity there is nothing to be once for");
        assert_eq!(world.count("send_key").await, 1);
    }

    async fn c3_a_delivery_discarded_before_any_attempt_leaves_its_send_key_to_the_corrected_event(world) {
        world.capture(json!({})).await;
        let refusing = json!({"text": "Gate {{gateCode}}", "missing": "refuse", "once_per": "entity"});
        let throttled = json!({"to": "{{guestPhone}}", "text": "Gate {{gateCode}}", "missing": "refuse", "once_per": "entity",
            "throttle": {"max": 100, "per_s": 3600, "then": "skip"}});
        world.write_template("sms", "sms", refusing).await;
        world.write_template("voice", "voice", throttled).await;
        let on = |state: &str, code: &str| ["sms", "voice"].map(|on| outcome(on, state, code));
        let mut corrected = booking();
        corrected["gateCode"] = json!("4711");
        let wrong = world.book("1", json!({})).await;
        world.pass().await;
        assert_eq!(world.outcomes(wrong).await, on("parked", "missing_data"));
        let early = world.book("1", json!({"payload": corrected})).await;
        world.pass().await;
        assert_eq!(world.outcomes(early).await, on("skipped", "duplicate"), "a parked delivery keeps its key");
        for n in [1, 2] {
            let said = world.deliveries(early).await.remove(n - 1).last_error.unwrap();
            assert!(said.contains(&format!("delivery {wrong}.{n} holds")) && said.contains("postcommit deliveries resend"), "{said}");
            assert!(world.store.discard(world.key(wrong, i32::try_from(n).unwrap())).await.unwrap());
        }
        let right = world.book("1", json!({"payload": corrected})).await;
        let again = world.book("1", json!({"payload": corrected})).await;
        world.pass().await;
        let mut sent = [world.outcomes(right).await, world.outcomes(again).await];
        sent.sort();
        assert_eq!(sent, [on("sent", ""), on("skipped", "duplicate")]);
        assert_eq!((world.outcomes(wrong).await, world.count("send_key").await), (on("discarded", "missing_data").to_vec(), 2));
    }

    async fn c3_a_delivery_cancelled_or_expired_before_any_attempt_leaves_its_send_key_to_the_next(world) {
        let lane = world.capture(json!({})).await;
        world.write_template("sms", "sms", json!({"text": "x", "once_per": "entity"})).await;
        assert!(world.store.pause_lane(lane, None, "a test").await.unwrap());
        let cancelled = world.book("1", json!({})).await;
        let expired = world.book("2", json!({})).await;
        world.pass().await;
        world.cancel("1").await;
        world.execute("UPDATE postcommit.notification SET expires_at = {now} WHERE entity = '2'", vec![]).await;
        assert!(world.store.resume_lane(lane).await.unwrap());
        world.pass().await;
        assert_eq!(world.outcomes(cancelled).await, [outcome("sms", "cancelled", "cancelled")]);
        assert_eq!(world.outcomes(expired).await, [outcome("sms", "expired", "expired")]);
        for entity in ["1", "2"] {
            let next = world.book(entity, json!({})).await;
            world.pass().await;
            assert_eq!(world.outcomes(next).await, [outcome("sms", "sent", "")]);
        }
        assert_eq!(world.count("send_key").await, 2);
    }

    async fn c3_a_delivery_that_was_attempted_keeps_its_send_key_when_it_is_discarded(world) {
        world.capture(json!({"fail_on": format!("permanent*1={CONFIRMED}")})).await;
        world.write_template("sms", "sms", json!({"text": "x", "once_per": "entity"})).await;
        let attempted = world.book("1", json!({})).await;
        world.pass().await;
        assert_eq!((world.attempts(attempted).await.len(), world.outcomes(attempted).await[0].1.as_str()), (1, "parked"));
        assert!(world.store.discard(world.key(attempted, 1)).await.unwrap());
        let next = world.book("1", json!({})).await;
        world.pass().await;
        assert_eq!(world.outcomes(next).await, [outcome("sms", "skipped", "duplicate")]);
    }
}
