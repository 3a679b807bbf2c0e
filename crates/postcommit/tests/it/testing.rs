//! `assert_enqueued` and `refute_enqueued` pass or panic as they should, and the panic shows what was found.

use postcommit::Notification;
use serde_json::json;
use tokio::task::LocalSet;

use crate::adapter::{Adapter, Kind, on_every_adapter};
use crate::world::{World, booking};

on_every_adapter!(
    assert_enqueued_passes_in_the_transaction,
    assert_enqueued_panics_with_the_notifications_it_found,
    refute_enqueued_passes_for_other_types_and_entities,
    refute_enqueued_panics_when_a_notification_matches,
    refute_enqueued_finds_a_match_among_many_notifications,
    on_postgres_only_this_transaction_counts,
    assertions_outside_a_transaction_panic,
    a_producer_is_told_that_asserting_needs_to_read,
);

/// The panic's text. `None` when it did not panic.
async fn panic_of<F: Future<Output = ()> + 'static>(check: F) -> Option<String> {
    let failed = LocalSet::new().run_until(async { tokio::task::spawn_local(check).await }).await.err()?;
    Some(*failed.into_panic().downcast::<String>().unwrap())
}

async fn assert_enqueued_passes_in_the_transaction<A: Adapter>(mut world: World<A>) {
    world.run("BEGIN").await;
    world.enqueue(&booking("k").build().unwrap()).await.unwrap();
    world.assert_enqueued("booking.confirmed", Some("12345")).await;
    world.assert_enqueued("booking.confirmed", None).await;
    world.run("ROLLBACK").await;
    world.run("BEGIN").await;
    world.refute_enqueued("booking.confirmed", None).await;
}

async fn assert_enqueued_panics_with_the_notifications_it_found<A: Adapter>(mut world: World<A>) {
    world.run("BEGIN").await;
    world.enqueue(&booking("k").build().unwrap()).await.unwrap();
    let text = panic_of(async move { world.assert_enqueued("booking.confirmed", Some("999")).await }).await.unwrap();
    assert!(
        text.starts_with(r#"expected a notification "booking.confirmed" about "999" in this transaction"#),
        "{text}"
    );
    assert!(text.ends_with(r#"found [("booking.confirmed", Some("12345"))]"#), "{text}");
}

async fn refute_enqueued_passes_for_other_types_and_entities<A: Adapter>(mut world: World<A>) {
    world.run("BEGIN").await;
    world.enqueue(&Notification::event("weather", json!({})).build().unwrap()).await.unwrap();
    world.enqueue(&booking("k").build().unwrap()).await.unwrap();
    world.refute_enqueued("booking.cancelled", None).await;
    world.refute_enqueued("booking.confirmed", Some("999")).await;
    world.refute_enqueued("weather", Some("12345")).await;
}

async fn refute_enqueued_panics_when_a_notification_matches<A: Adapter>(mut world: World<A>) {
    world.run("BEGIN").await;
    world.enqueue(&booking("k").build().unwrap()).await.unwrap();
    let text = panic_of(async move { world.refute_enqueued("booking.confirmed", Some("12345")).await }).await.unwrap();
    assert!(
        text.starts_with(r#"expected no notification "booking.confirmed" about "12345" in this transaction"#),
        "{text}"
    );
}

async fn refute_enqueued_finds_a_match_among_many_notifications<A: Adapter>(mut world: World<A>) {
    let crowd: Vec<_> = (0..1000).map(|i| booking(&i.to_string()).entity("crowd").build().unwrap()).collect();
    world.run("BEGIN").await;
    world.enqueue(&booking("k").build().unwrap()).await.unwrap();
    world.enqueue_many(&crowd).await.unwrap();
    world.assert_enqueued("booking.confirmed", Some("12345")).await;
    assert!(panic_of(async move { world.refute_enqueued("booking.confirmed", Some("12345")).await }).await.is_some());
}

async fn on_postgres_only_this_transaction_counts<A: Adapter>(mut world: World<A>) {
    world.enqueue(&booking("earlier").build().unwrap()).await.unwrap();
    world.run("BEGIN").await;
    match A::KIND {
        Kind::Postgres => world.refute_enqueued("booking.confirmed", None).await,
        Kind::Sqlite => world.assert_enqueued("booking.confirmed", None).await,
    }
}

async fn assertions_outside_a_transaction_panic<A: Adapter>(mut world: World<A>) {
    world.enqueue(&booking("k").build().unwrap()).await.unwrap();
    let mut onlooker = world.onlooker().await;
    let asserted = panic_of(async move { onlooker.assert_enqueued("booking.confirmed", None).await }).await.unwrap();
    let refuted = panic_of(async move { world.refute_enqueued("booking.cancelled", None).await }).await.unwrap();
    for text in [refuted, asserted] {
        assert!(text.starts_with("this connection is not in a transaction"), "{text}");
    }
}

/// SQLite has no roles.
async fn a_producer_is_told_that_asserting_needs_to_read<A: Adapter>(mut world: World<A>) {
    let Some(producer) = world.producer_role().await else { return };
    world.run(&format!("SET ROLE {producer}")).await;
    world.run("BEGIN").await;
    world.enqueue(&booking("k").build().unwrap()).await.unwrap();
    let text = panic_of(async move { world.assert_enqueued("booking.confirmed", None).await }).await.unwrap();
    assert!(text.starts_with("the assertion needs the right to read the view"), "{text}");
    assert!(text.contains("permission denied") && text.contains("A producer may only enqueue"), "{text}");
    assert!(text.contains("postcommit.role_name('reader')"), "{text}");
}
