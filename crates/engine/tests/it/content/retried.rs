//! Deliveries that were parked before anything was sent, and are retried: they are throttled, collected and held back like
//! new ones.

use std::collections::BTreeMap;

use postcommit_channel::model::ProviderDraft;
use serde_json::json;
use uuid::Uuid;

use super::pacing::{begin, bodies, counted, digest_of, digests, outcomes_of, task, tasks};
use super::{CONFIRMED, outcome, quiet_hours};
use crate::world::World;

/// Enables or disables the only provider.
async fn set_enabled(world: &World, enabled: bool) {
    world.update(&ProviderDraft { enabled, ..world.draft("capture", "capture", json!({})) }).await;
}

/// Expands events for a user while there is no provider, and enables it again.
async fn parked(world: &World, user: &str, names: &[&str]) -> Vec<Uuid> {
    set_enabled(world, false).await;
    let ids = tasks(world, user, names).await;
    world.pass().await;
    let expected = BTreeMap::from([counted("parked", "no_provider", names.len())]);
    assert_eq!(outcomes_of(world, &ids).await, expected);
    set_enabled(world, true).await;
    ids
}

async fn retry(world: &World, ids: &[Uuid]) {
    for id in ids {
        assert!(world.store.retry(world.key(*id, 1)).await.unwrap());
    }
    world.pass().await;
}

on_both! {
    async fn a_retry_counts_against_the_throttle(world) {
        begin(&world, json!({"throttle": {"max": 1, "per_s": 3600, "then": "skip"}})).await;
        let ids = parked(&world, "ana", &["a", "b", "c"]).await;
        assert_eq!(world.count("throttle").await, 0, "nothing was counted yet");
        retry(&world, &ids).await;
        let expected = BTreeMap::from([counted("sent", "", 1), counted("skipped", "throttled", 2)]);
        assert_eq!(outcomes_of(&world, &ids).await, expected);
        assert_eq!(world.count("delivery_queue").await, 0);
        let next = task(&world, "ana", "d").await;
        world.pass().await;
        assert_eq!(world.outcomes(next).await, [outcome("email", "skipped", "throttled")]);
    }

    async fn a_retry_goes_into_the_digest_and_is_not_sent_alone(world) {
        begin(&world, json!({"digest": {"window_s": 3600}})).await;
        let ids = parked(&world, "ana", &["a", "b"]).await;
        retry(&world, &ids).await;
        assert_eq!(outcomes_of(&world, &ids).await, BTreeMap::from([counted("skipped", "digested", 2)]));
        let later = task(&world, "ana", "c").await;
        world.pass().await;
        let digest = digest_of(&world, ids[0]).await;
        assert_eq!((digests(&world).await, digest_of(&world, later).await), (vec![digest], digest));
        assert!(!world.store.retry(world.key(ids[0], 1)).await.unwrap(), "an item is not retried");
        world.make_due().await;
        world.pass().await;
        assert_eq!(bodies(&world, digest).await["ana@example.com"], "3 for a: a b c");
        assert!(world.attempts(ids[0]).await.is_empty() && world.attempts(ids[1]).await.is_empty());
    }

    async fn what_a_template_parked_is_counted_in_the_period_of_its_retry_and_only_once(world) {
        let (broken, mended) = (json!({"text": "Gate {{ gate }}", "missing": "refuse"}), json!({"text": "{{ task }}"}));
        begin(&world, json!({"throttle": {"max": 1, "per_s": 3600, "then": "skip"}})).await;
        world.write_template("mail", "email", broken.clone()).await;
        let first = task(&world, "ana", "a").await;
        world.pass().await;
        assert_eq!(world.outcomes(first).await, [outcome("email", "parked", "missing_data")]);
        world.write_template("mail", "email", mended.clone()).await;
        retry(&world, &[first]).await;
        assert_eq!(world.outcomes(first).await, [outcome("email", "sent", "")], "not held up by its own count");
        assert_eq!(bodies(&world, first).await["ana@example.com"], "a", "by the newest version");

        let over = "UPDATE postcommit.throttle SET until = {now}";
        world.execute(over, vec![]).await;
        world.write_template("mail", "email", broken).await;
        let late = task(&world, "ana", "b").await;
        world.pass().await;
        assert_eq!(world.outcomes(late).await, [outcome("email", "parked", "missing_data")]);
        world.execute(over, vec![]).await;
        world.write_template("mail", "email", mended).await;
        let other = task(&world, "ana", "c").await;
        world.pass().await;
        retry(&world, &[late]).await;
        assert_eq!(world.outcomes(other).await, [outcome("email", "sent", "")]);
        assert_eq!(world.outcomes(late).await, [outcome("email", "skipped", "throttled")], "the next period has its message");
    }

    async fn a_template_does_not_see_what_is_noted_of_a_throttle(world) {
        begin(&world, json!({"throttle": {"max": 1, "per_s": 3600, "then": "skip"}, "text": "[{{ user.counted_until }}]"})).await;
        let id = task(&world, "ana", "a").await;
        world.pass().await;
        assert_eq!(bodies(&world, id).await["ana@example.com"], "[]");
    }

    async fn a_retry_is_a_duplicate_if_another_delivery_holds_its_send_key(world) {
        begin(&world, json!({"once_per": "entity", "text": "Gate {{ gate }}", "missing": "refuse"})).await;
        let ids = parked(&world, "ana", &["a", "a"]).await;
        retry(&world, &ids).await;
        let expected = BTreeMap::from([counted("parked", "missing_data", 1), counted("skipped", "duplicate", 1)]);
        assert_eq!(outcomes_of(&world, &ids).await, expected);
        world.write_template("mail", "email", json!({"text": "{{ task }}"})).await;
        for id in &ids {
            let _ = world.store.retry(world.key(*id, 1)).await.unwrap();
        }
        world.pass().await;
        let expected = BTreeMap::from([counted("sent", "", 1), counted("skipped", "duplicate", 1)]);
        assert_eq!(outcomes_of(&world, &ids).await, expected, "it is no duplicate of itself");
    }

    async fn a_retry_waits_for_the_end_of_quiet_hours(world) {
        quiet_hours::ana(&world, quiet_hours::NOW).await;
        set_enabled(&world, false).await;
        let mut ids = vec![];
        for event_type in [CONFIRMED, "plain"] {
            ids.push(world.enqueue(event_type, json!({"recipients": [{"user": "ana"}], "channels": ["email"], "title": "Hello"})).await);
        }
        world.pass().await;
        assert_eq!(outcomes_of(&world, &ids).await, BTreeMap::from([counted("parked", "no_provider", 2)]));
        set_enabled(&world, true).await;
        retry(&world, &ids).await;
        assert_eq!(outcomes_of(&world, &ids).await, BTreeMap::from([counted("pending", "", 2)]), "also a direct message");
    }

    async fn a_retry_of_what_was_attempted_is_not_counted_again(world) {
        begin(&world, json!({"throttle": {"max": 1, "per_s": 3600, "then": "skip"}})).await;
        world.update(&world.draft("capture", "capture", json!({"fail_on": format!("permanent*1={CONFIRMED}")}))).await;
        let id = task(&world, "ana", "a").await;
        world.pass().await;
        assert_eq!(world.outcomes(id).await[0].1, "parked");
        world.update(&world.draft("capture", "capture", json!({}))).await;
        world.execute("UPDATE postcommit.throttle SET until = {now}", vec![]).await;
        let other = task(&world, "ana", "b").await;
        world.pass().await;
        retry(&world, &[id]).await;
        assert_eq!(outcomes_of(&world, &[id, other]).await, BTreeMap::from([counted("sent", "", 2)]));
    }

    async fn a_retry_of_a_digest_is_not_collected(world) {
        begin(&world, json!({"digest": {"window_s": 3600}, "text": "Gate {{ gate }}", "missing": "refuse"})).await;
        let item = task(&world, "ana", "a").await;
        world.pass().await;
        let digest = digest_of(&world, item).await;
        world.make_due().await;
        world.pass().await;
        assert_eq!(world.outcomes(digest).await, [outcome("email", "parked", "missing_data")]);
        world.write_template("mail", "email", json!({"text": "{{ count }}: {{ task }}"})).await;
        retry(&world, &[digest]).await;
        world.make_due().await;
        world.pass().await;
        assert_eq!(world.outcomes(digest).await, [outcome("email", "sent", "")]);
        assert_eq!(bodies(&world, digest).await["ana@example.com"], "1: a");
    }

    async fn a_worker_that_is_lost_with_a_retry_counts_it_once(world) {
        begin(&world, json!({"throttle": {"max": 1, "per_s": 3600, "then": "skip"}})).await;
        let ids = parked(&world, "ana", &["a"]).await;
        assert!(world.store.retry(world.key(ids[0], 1)).await.unwrap());
        world.claim_and_lose().await;
        world.pass().await;
        assert_eq!(outcomes_of(&world, &ids).await, BTreeMap::from([counted("sent", "", 1)]));
        assert_eq!(world.attempts(ids[0]).await.len(), 1);
    }

    async fn what_is_only_routed_again_is_not_counted_again(world) {
        begin(&world, json!({"throttle": {"max": 1, "per_s": 3600, "then": "skip"}})).await;
        let gone = world.store.provider(world.tenant, "capture").await.unwrap().unwrap();
        assert!(world.store.pause_lane(gone.id, None, "a test").await.unwrap());
        let id = task(&world, "ana", "a").await;
        world.pass().await;
        world.execute("UPDATE postcommit.throttle SET until = {now}", vec![]).await;
        world.execute("DELETE FROM postcommit.provider", vec![]).await;
        world.capture(json!({})).await;
        let other = task(&world, "ana", "b").await;
        world.pass().await;
        assert_eq!(world.store.reroute_strays_once().await.unwrap(), 1);
        world.pass().await;
        assert_eq!(outcomes_of(&world, &[id, other]).await, BTreeMap::from([counted("sent", "", 2)]));
    }
}
