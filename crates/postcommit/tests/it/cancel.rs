//! Cancelling deliveries that are not yet sent.

use postcommit::Timestamp;

use crate::adapter::{Adapter, on_every_adapter};
use crate::world::{World, booking};

on_every_adapter!(
    c12_cancel_cancels_and_counts,
    c12_cancel_can_be_limited_to_one_event_type,
    c12_cancel_does_not_affect_other_entities_and_tenants,
    c12_a_cancel_that_is_rolled_back_cancels_nothing,
    c12_enqueue_and_cancel_in_one_transaction_sends_nothing,
    c12_a_cancel_of_a_delivery_being_sent_is_recorded_and_not_counted,
    c12_a_cancelled_key_stays_used,
);

async fn c12_cancel_cancels_and_counts<A: Adapter>(mut world: World<A>) {
    let due: Timestamp = "2099-01-01T00:00:00Z".parse().unwrap();
    for key in ["a", "b"] {
        world.enqueue(&booking(key).due_at(due).build().unwrap()).await.unwrap();
    }
    assert_eq!(world.cancel("default", "12345", None).await.unwrap(), 2);
    assert_eq!(world.count("delivery_queue").await, 0);
    assert_eq!(world.all("SELECT state FROM postcommit.notification_status").await, ["cancelled", "cancelled"]);
    assert_eq!(world.cancel("default", "12345", None).await.unwrap(), 0, "a second time there is nothing left");
}

async fn c12_cancel_can_be_limited_to_one_event_type<A: Adapter>(mut world: World<A>) {
    let mut reminder = booking("reminder").build().unwrap();
    reminder.event_type = "booking.reminder".into();
    world.enqueue_many(&[booking("k").build().unwrap(), reminder]).await.unwrap();
    assert_eq!(world.cancel("default", "12345", Some("booking.reminder")).await.unwrap(), 1);
    let status = "SELECT event_type || ' ' || state FROM postcommit.notification_status ORDER BY event_type";
    assert_eq!(world.all(status).await, ["booking.confirmed pending", "booking.reminder cancelled"]);
}

async fn c12_cancel_does_not_affect_other_entities_and_tenants<A: Adapter>(mut world: World<A>) {
    world.enqueue(&booking("other entity").entity("777").build().unwrap()).await.unwrap();
    world.enqueue(&booking("other tenant").tenant("acme").build().unwrap()).await.unwrap();
    assert_eq!(world.cancel("default", "12345", None).await.unwrap(), 0);
    assert_eq!(world.cancel("unknown", "12345", None).await.unwrap(), 0);
    assert_eq!(world.count("delivery_queue").await, 2);
    assert_eq!(world.cancel("acme", "12345", None).await.unwrap(), 1);
}

async fn c12_a_cancel_that_is_rolled_back_cancels_nothing<A: Adapter>(mut world: World<A>) {
    world.enqueue(&booking("k").build().unwrap()).await.unwrap();
    world.run("BEGIN").await;
    assert_eq!(world.cancel("default", "12345", None).await.unwrap(), 1);
    world.run("ROLLBACK").await;
    assert_eq!(world.all("SELECT state FROM postcommit.notification_status").await, ["pending"]);
    assert_eq!(world.count("cancel_request").await, 0);
}

async fn c12_enqueue_and_cancel_in_one_transaction_sends_nothing<A: Adapter>(mut world: World<A>) {
    world.run("BEGIN").await;
    world.enqueue(&booking("k").build().unwrap()).await.unwrap();
    assert_eq!(world.cancel("default", "12345", None).await.unwrap(), 1);
    world.run("COMMIT").await;
    assert_eq!(world.count("delivery_queue").await, 0);
}

async fn c12_a_cancel_of_a_delivery_being_sent_is_recorded_and_not_counted<A: Adapter>(mut world: World<A>) {
    let id = world.enqueue(&booking("k").build().unwrap()).await.unwrap();
    let queue =
        if A::KIND == crate::adapter::Kind::Sqlite { "postcommit_delivery_queue" } else { "postcommit.delivery_queue" };
    world.run(&format!("UPDATE {queue} SET lease_token = '00000000-0000-4000-8000-000000000001'")).await;
    assert_eq!(world.cancel("default", "12345", None).await.unwrap(), 0);
    assert_eq!(world.count("delivery_queue").await, 1);
    assert_eq!(
        world.all("SELECT CAST(notification_id AS text) FROM postcommit.cancel_request").await,
        [id.to_string()]
    );
}

async fn c12_a_cancelled_key_stays_used<A: Adapter>(mut world: World<A>) {
    let note = booking("k").build().unwrap();
    let first = world.enqueue(&note).await.unwrap();
    world.cancel("default", "12345", None).await.unwrap();
    assert_eq!(world.enqueue(&note).await.unwrap(), first);
    assert_eq!(world.count("delivery_queue").await, 0);
}
