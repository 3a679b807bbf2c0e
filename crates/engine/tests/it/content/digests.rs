//! The items of digests: their order, and which of them are sent.

use std::collections::BTreeMap;

use postcommit_engine::store::NotificationRequest;
use serde_json::json;
use uuid::Uuid;

use super::pacing::{begin, bodies, counted, digests, outcomes_of, tasks};
use super::{CONFIRMED, outcome};
use crate::world::World;

/// The names of many events, in order.
fn names() -> Vec<String> {
    (0..60).map(|n| format!("t{n:02}")).collect()
}

/// Enqueues an event of each name in one transaction, by a statement for each.
async fn enqueue_one_by_one(world: &World, names: &[String]) {
    let names = json!(names).to_string();
    let sql = match world.is_postgres() {
        true => format!(
            "DO $$ DECLARE task text; BEGIN
               FOR task IN SELECT value FROM jsonb_array_elements_text('{names}') LOOP
                 PERFORM postcommit.enqueue('{CONFIRMED}', jsonb_build_object('task', task), task,
                   recipients => '[{{\"user\": \"ana\"}}]');
               END LOOP;
             END $$"
        ),
        false => format!(
            "INSERT INTO postcommit_enqueue (event_type, payload, idempotency_key, recipients)
             SELECT '{CONFIRMED}', json_object('task', value), value, '[{{\"user\": \"ana\"}}]' FROM json_each('{names}')"
        ),
    };
    world.execute(&sql, vec![]).await;
}

/// Enqueues an event of each name as one batch.
async fn enqueue_batch(world: &World, names: &[String]) {
    let request = |name: &String| {
        let said = json!({"event_type": CONFIRMED, "idempotency_key": name, "payload": {"task": name},
            "recipients": [{"user": "ana"}]});
        NotificationRequest::read(&said.to_string(), "default").unwrap()
    };
    let answers = world.store.accept(names.iter().map(request).collect()).await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
}

/// The only text that was sent for the only digest.
async fn text(world: &World) -> String {
    let [digest] = digests(world).await[..] else { panic!("one digest") };
    world.make_due().await;
    world.pass().await;
    bodies(world, digest).await.remove("ana@example.com").unwrap()
}

/// Lets notifications expire.
async fn expire(world: &World, ids: &[Uuid]) {
    for id in ids {
        let sql = "UPDATE postcommit.notification SET due_at = created_at, expires_at = {now} WHERE id = $1";
        world.execute(sql, vec![(*id).into()]).await;
    }
}

on_both! {
    async fn items_of_one_transaction_are_in_the_order_of_their_enqueueing(world) {
        begin(&world, json!({"digest": {"window_s": 3600}})).await;
        enqueue_one_by_one(&world, &names()).await;
        world.pass().await;
        assert_eq!(text(&world).await, format!("60 for t00: {}", names().join(" ")));
    }

    async fn items_of_one_batch_are_in_its_order(world) {
        begin(&world, json!({"digest": {"window_s": 3600}})).await;
        enqueue_batch(&world, &names()).await;
        world.pass().await;
        assert_eq!(text(&world).await, format!("60 for t00: {}", names().join(" ")));
    }

    async fn an_item_that_expired_is_not_sent_and_ends_as_expired(world) {
        begin(&world, json!({"digest": {"window_s": 3600}})).await;
        let ids = tasks(&world, "ana", &["a", "b", "c"]).await;
        world.pass().await;
        expire(&world, &ids[..1]).await;
        assert_eq!(text(&world).await, "2 for b: b c");
        assert_eq!(world.outcomes(ids[0]).await, [outcome("email", "expired", "expired")]);
        let detail = world.delivery(ids[0]).await.last_error.unwrap_or_default();
        assert!(detail.contains(&digests(&world).await[0].to_string()), "{detail}");
        assert_eq!(outcomes_of(&world, &ids[1..]).await, BTreeMap::from([counted("skipped", "digested", 2)]));
        assert_eq!(world.count("digest_item").await, 2);
    }

    async fn a_digest_whose_items_have_all_expired_is_not_sent(world) {
        begin(&world, json!({"digest": {"window_s": 3600}})).await;
        let ids = tasks(&world, "ana", &["a", "b"]).await;
        world.pass().await;
        let digest = digests(&world).await[0];
        expire(&world, &ids).await;
        world.make_due().await;
        world.pass().await;
        assert_eq!(world.outcomes(digest).await, [outcome("email", "expired", "expired")]);
        assert!(world.attempts(digest).await.is_empty());
        assert_eq!(outcomes_of(&world, &ids).await, BTreeMap::from([counted("expired", "expired", 2)]));
    }

    async fn an_item_that_expires_between_two_attempts_is_left_out_unless_the_first_may_have_arrived(world) {
        for (failure, sent) in [("transient", "1 for b: b"), ("unclear", "2 for a: a b")] {
            world.execute("DELETE FROM postcommit.digest_item", vec![]).await;
            let settings = json!({"fail_on": format!("{failure}*1={CONFIRMED}")});
            if failure == "transient" {
                begin(&world, json!({"digest": {"window_s": 3600}})).await;
            }
            world.update(&world.draft("capture", "capture", settings)).await;
            let ids = tasks(&world, "ana", &["a", "b"]).await;
            world.pass().await;
            let digest = digests(&world).await[0];
            world.make_due().await;
            world.pass().await;
            assert_eq!(world.outcomes(digest).await[0].1, "retrying", "{failure}");
            expire(&world, &ids[..1]).await;
            world.make_due().await;
            world.pass().await;
            assert_eq!(bodies(&world, digest).await["ana@example.com"], sent, "{failure}");
        }
    }
}
