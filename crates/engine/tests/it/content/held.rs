//! An event with one target: its row takes over the lease under which the event was expanded, and is sent without
//! another claim.

use std::time::Duration;

use postcommit_channel::model::{Facts, Fate, Guarantee, Target};
use postcommit_engine::store::{Expanded, Lease, Want};
use serde_json::json;
use uuid::Uuid;

use super::outcome;
use crate::world::World;

/// Claims the event's own row and writes the row of its target, like a worker that is lost before it sends.
async fn expand_and_lose(world: &World, id: Uuid, lane: i32) -> Lease {
    let claim =
        world.store.claim(&[Want { lane: -world.tenant, quota: 1 }], Duration::from_secs(60), None).await.unwrap();
    let lease = Lease::of(&claim.deliveries[0]);
    let facts = Facts { template: Some("sms".into()), template_version: Some(1), ..Facts::new("sms", "+14155550100") };
    let expanded = Expanded::new(lease, vec![Target::new(facts, Fate::Lane(lane))]);
    let (written, begun) = world.store.expand_held(vec![expanded.clone()]).await.unwrap();
    assert_eq!((written.expanded, begun.contains(&id)), (1, true));
    let (written, begun) = world.store.expand_held(vec![expanded]).await.unwrap();
    assert_eq!((written.expanded, begun.len()), (0, 0), "the lease is not there any more");
    lease
}

/// The lease of an event's only row: whether the row is the target's, and its token.
async fn leased(world: &World, id: Uuid) -> (i32, Option<Uuid>, bool) {
    let sql = "SELECT n, lease_token, lease_until > {now} AND leased_at <= {now} FROM postcommit.delivery_queue WHERE notification_id = $1";
    let rows = world.sql(sql, vec![id.into()]).await;
    (rows[0].get(0).unwrap(), rows[0].get(1).unwrap(), rows[0].get(2).unwrap())
}

on_both! {
    async fn the_row_of_a_lost_worker_is_taken_over_as_the_guarantee_says(world) {
        for (guarantee, state, code) in [
            (Guarantee::Idempotent, "sent", ""),
            (Guarantee::AtLeastOnce, "sent", ""),
            // The send was not announced, so nothing was sent.
            (Guarantee::AtMostOnce, "sent", ""),
        ] {
            let name = format!("{guarantee:?}").to_lowercase();
            let mut draft = world.draft(&name, "capture", json!({}));
            (draft.guarantee, draft.is_default) = (guarantee, guarantee == Guarantee::Idempotent);
            let lane = world.provider(draft).await;
            world.write_template("sms", "sms", json!({"text": "Welcome"})).await;
            let id = world.book(&name, json!({})).await;
            let lease = expand_and_lose(&world, id, lane).await;
            assert_eq!(leased(&world, id).await, (1, Some(lease.token), true), "{guarantee:?}");
            world.pass().await;
            assert_eq!(world.count("delivery_queue").await, 1, "another worker does not take what is leased");
            world.expire_leases().await;
            world.pass().await;
            world.make_due().await;
            world.pass().await;
            assert_eq!(world.outcomes(id).await, [outcome("sms", state, code)], "{guarantee:?}");
        }
    }

    async fn a_target_whose_send_key_is_taken_is_skipped_and_not_sent(world) {
        world.capture(json!({})).await;
        world.write_template("sms", "sms", json!({"text": "Welcome", "once_per": "entity"})).await;
        let (first, second) = (world.book("1", json!({})).await, world.book("1", json!({})).await);
        world.pass().await;
        let mut outcomes = [world.outcomes(first).await, world.outcomes(second).await].concat();
        outcomes.sort();
        assert_eq!(outcomes, [outcome("sms", "sent", ""), outcome("sms", "skipped", "duplicate")]);
        assert_eq!([world.captured(first).await.len(), world.captured(second).await.len()].iter().sum::<usize>(), 1);
    }

    async fn more_events_than_slots_are_all_sent(world) {
        let mut draft = world.draft("capture", "capture", json!({"record": false}));
        draft.concurrency = 2;
        world.provider(draft).await;
        world.write_template("sms", "sms", json!({"text": "Welcome"})).await;
        for i in 0..50 {
            world.book(&i.to_string(), json!({})).await;
        }
        world.pass().await;
        let rows = world.sql("SELECT count(*) FROM postcommit.delivery WHERE state = 'sent' AND n = 1", vec![]).await;
        assert_eq!((rows[0].get::<i64>(0).unwrap(), world.count("delivery_queue").await), (50, 0));
    }
}
