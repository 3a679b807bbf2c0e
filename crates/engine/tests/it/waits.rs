//! The reason why an unfinished delivery waits, in words.

use std::time::Duration;

use postcommit_channel::driver::FailOn;
use postcommit_engine::store::{DeliveryFilter, Lacking, Opener, Store, Unopened};
use serde_json::json;
use uuid::Uuid;

use crate::world::World;

/// Returns the reason why the delivery waits, from the list and by its id.
async fn waits(world: &World, store: &Store, id: Uuid) -> String {
    let filter = DeliveryFilter { tenant: Some(world.tenant), ..DeliveryFilter::of_notification(id) };
    let listed = store.delivery_rows(&filter).await.unwrap().rows.pop().unwrap();
    let shown = store.delivery_row(Some(world.tenant), listed.id.parse().unwrap(), false).await.unwrap().unwrap();
    assert_eq!(listed.waits_for, shown.waits_for);
    listed.waits_for.unwrap_or_else(|| panic!("{} waits for nothing", listed.state))
}

/// A notification that was expanded and waits for its second attempt, which is due.
async fn due_again(world: &mut World) -> Uuid {
    world.fail_on = FailOn::parse("transient=again").unwrap();
    let id = world.enqueue("again", json!({})).await;
    world.pass().await;
    let said = waits(world, &world.store, id).await;
    assert!(said.starts_with("its next attempt, at 2") && !said.contains('.'), "a full second: {said}");
    world.make_due().await;
    id
}

on_both! {
    async fn a_due_delivery_shows_why_it_waits(world) {
        let mut world = world;
        let lane = world.capture(json!({})).await;
        let id = due_again(&mut world).await;
        // The tenant sees the same reason.
        let own = world.store.of_tenant(world.tenant);
        let said = async || {
            let said = waits(&world, &world.store, id).await;
            assert_eq!(said, waits(&world, &own, id).await);
            said
        };
        assert_eq!(said().await, "its turn in the queue", "a pass was made a moment ago");
        world.execute("DELETE FROM postcommit.duty WHERE name = 'pass'", vec![]).await;
        assert!(said().await.starts_with("a process that delivers: start `postcommit serve`"));
        world.store.hold_lane(lane, None, Duration::from_secs(600)).await.unwrap();
        assert!(said().await.starts_with("its provider, which asked to wait until 2"));
        world.store.pause_lane(lane, None, "http_401").await.unwrap();
        assert_eq!(said().await, "its provider, which is paused: http_401");
        world.store.suspend_tenant(world.tenant, "unpaid").await.unwrap();
        assert_eq!(said().await, "its tenant, which is suspended");
        world.store.resume_tenant(world.tenant).await.unwrap();
        world.store.resume_lane(lane).await.unwrap();
        world.fail_on = FailOn::default();
        world.pass().await;
        let sent = world.delivery(id).await;
        assert_eq!((sent.state.as_str(), sent.waits_for), ("sent", None));
    }

    async fn a_notification_that_is_not_expanded_shows_why_it_waits(world) {
        let later = world.enqueue("later", json!({"due_at": "2099-01-01T00:00:00Z"})).await;
        assert_eq!(waits(&world, &world.store, later).await, "its due time, 2099-01-01T00:00:00Z");
        let now = world.enqueue("now", json!({})).await;
        assert!(waits(&world, &world.store, now).await.starts_with("a process that delivers"));
        world.store.suspend_tenant(world.tenant, "unpaid").await.unwrap();
        assert_eq!(waits(&world, &world.store, now).await, "its tenant, which is suspended");
    }

    async fn a_delivery_that_is_being_sent_says_when_its_lease_ends(world) {
        let id = world.enqueue("a", json!({})).await;
        let until = postcommit::Timestamp::from_micros(4_000_000_000_000_000);
        let lease = "UPDATE postcommit.delivery_queue SET lease_token = $1, lease_until = $2";
        world.execute(lease, vec![Uuid::new_v4().into(), until.into()]).await;
        assert_eq!(waits(&world, &world.store, id).await, format!("the end of its attempt; its lease ends at {until}"));
    }

    async fn a_lane_whose_secrets_no_process_can_decrypt_is_named(world) {
        let mut world = world;
        let lane = world.capture(json!({})).await;
        let id = due_again(&mut world).await;
        let unopened = Unopened { tenant: world.tenant, lane, lacking: Lacking::Secrets, reason: "no key".into() };
        let worker = Uuid::new_v4();
        world.store.be_present(worker).await.unwrap();
        let opener = Opener::Worker(worker);
        world.store.note_unopened(opener, &[unopened]).await.unwrap();
        world.execute("DELETE FROM postcommit.duty WHERE name = 'pass'", vec![]).await;
        assert_eq!(waits(&world, &world.store, id).await, "its provider, whose secrets cannot be decrypted: no key");
    }
}
