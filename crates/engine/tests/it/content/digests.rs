//! The items of digests: their order, and which of them are sent.

use postcommit_engine::store::NotificationRequest;
use serde_json::json;

use super::CONFIRMED;
use super::pacing::{begin, bodies, digests};
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
}
