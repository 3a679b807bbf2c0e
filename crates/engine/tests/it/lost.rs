//! The lease of a notification's own row ran out, on both databases. If the notification has one target, it may have
//! been sent, and the guarantee decides what follows.

use postcommit::Timestamp;
use postcommit_channel::model::{Delivery, Guarantee, Policy, ProviderDraft};
use postcommit_engine::store::{Act, Acted};
use serde_json::json;
use uuid::Uuid;

use crate::store::claim;
use crate::world::World;

pub fn an_hour_before(at: Timestamp) -> Timestamp {
    Timestamp::from_micros(at.as_micros() - 3_600_000_000)
}

/// A notification whose worker died after the claim. It is not known whether it was sent.
pub async fn lose(world: &World, more: serde_json::Value) -> Delivery {
    world.enqueue("a", more).await;
    let held = claim(&world.store, -world.tenant, 1).await.remove(0);
    assert_eq!((held.key.n, held.lost_since), (0, None));
    world.expire_leases().await;
    held
}

async fn with(world: &World, guarantee: Guarantee) -> (i32, ProviderDraft) {
    let draft = ProviderDraft { guarantee, ..world.draft("capture", "capture", json!({})) };
    (world.provider(draft.clone()).await, draft)
}

/// The delivery's number, state, reason, and whether it may have arrived.
pub async fn ended(world: &World, id: Uuid) -> (i32, String, Option<String>, bool) {
    let row = world.delivery(id).await;
    (row.n, row.state, row.reason, row.unclear)
}

pub fn parked(reason: &str, unclear: bool) -> (i32, String, Option<String>, bool) {
    (1, "parked".into(), Some(reason.into()), unclear)
}

/// The outcome and code of each attempt, in order.
async fn log(world: &World, id: Uuid) -> Vec<(String, Option<String>)> {
    let attempts = world.attempts(id).await;
    assert!(attempts.iter().all(|a| a.delivery_id == format!("{id}.1")), "{attempts:?}");
    assert!(attempts.iter().zip(1..).all(|(a, seq)| a.seq == seq), "{attempts:?}");
    attempts.into_iter().map(|a| (a.outcome, a.code)).collect()
}

fn lease_expired() -> (String, Option<String>) {
    ("unclear".into(), Some("lease_expired".into()))
}

fn sent() -> (String, Option<String>) {
    ("sent".into(), None)
}

on_both! {
    async fn where_repeating_is_allowed_the_lost_attempt_is_logged_and_repeated_under_its_key(world) {
        for guarantee in [Guarantee::Idempotent, Guarantee::AtLeastOnce] {
            let mut draft = world.draft(guarantee.name(), "capture", json!({}));
            draft.guarantee = guarantee;
            let lane = world.provider(draft).await;
            let held = lose(&world, json!({})).await;
            let id = held.key.notification;
            world.pass().await;
            assert_eq!(log(&world, id).await, [lease_expired()], "{guarantee:?}");
            assert_eq!(world.attempts(id).await[0].at, held.leased_at, "it was made under the lease that was lost");
            let row = world.delivery(id).await;
            assert_eq!((row.n, row.state.as_str(), row.attempts, row.unclear), (1, "retrying", 1, true), "{guarantee:?}: it may have been sent, so it is counted");
            let first = world.sql("SELECT lane, first_try_at FROM postcommit.delivery_queue", vec![]).await.remove(0);
            assert_eq!((first.get::<i32>(0).unwrap(), first.get::<Timestamp>(1).unwrap()), (lane, held.leased_at));
            world.pass().await;
            assert_eq!(log(&world, id).await, [lease_expired(), sent()], "{guarantee:?}");
            let said: serde_json::Value = serde_json::from_str(world.attempts(id).await[1].excerpt.as_ref().unwrap()).unwrap();
            assert_eq!(said["key"], json!(format!("{id}_1")));
            assert_eq!(ended(&world, id).await, (1, "sent".into(), None, true));
        }
    }

    async fn under_at_most_once_a_lost_own_row_was_never_sent_and_is_announced_and_sent(world) {
        world.watch().await;
        with(&world, Guarantee::AtMostOnce).await;
        let id = lose(&world, json!({})).await.key.notification;
        world.pass().await;
        assert_eq!((log(&world, id).await, ended(&world, id).await), (vec![sent()], (1, "sent".into(), None, false)));
        assert_eq!(world.watched().await, ["intent 1", "row 1"]);
    }

    async fn shortly_after_a_change_to_at_most_once_a_lost_row_may_have_been_sent(world) {
        let (_, mut draft) = with(&world, Guarantee::Idempotent).await;
        let before = lose(&world, json!({})).await.key.notification;
        draft.guarantee = Guarantee::AtMostOnce;
        world.update(&draft).await;
        world.pass().await;
        // A worker that claims a moment later may not have read the change either.
        let after = lose(&world, json!({})).await.key.notification;
        world.pass().await;
        for id in [before, after] {
            assert_eq!((log(&world, id).await, ended(&world, id).await), (vec![lease_expired()], parked("outcome_unknown", true)));
        }
        world.pass().await;
        assert_eq!(world.count("attempt").await, 2, "and there it stays");
    }

    async fn a_weaker_guarantee_allows_a_repeat_of_the_lost_attempt(world) {
        let (_, mut draft) = with(&world, Guarantee::AtMostOnce).await;
        let id = lose(&world, json!({})).await.key.notification;
        draft.guarantee = Guarantee::AtLeastOnce;
        world.update(&draft).await;
        world.pass().await;
        world.pass().await;
        assert_eq!((log(&world, id).await, ended(&world, id).await), (vec![lease_expired(), sent()], (1, "sent".into(), None, true)));
    }

    async fn a_provider_deleted_in_the_meantime_parks_the_lost_delivery_as_unclear(world) {
        with(&world, Guarantee::Idempotent).await;
        let held = lose(&world, json!({})).await;
        let id = held.key.notification;
        assert_eq!(world.store.delete_provider(world.tenant, "capture").await.unwrap(), Some(0), "nothing waits in its lane");
        world.pass().await;
        assert_eq!((log(&world, id).await, ended(&world, id).await), (vec![], parked("config", true)));
        assert_eq!(world.delivery(id).await.error_code.as_deref(), Some("no_provider"));
        // An operator has decided that it is to be sent.
        with(&world, Guarantee::Idempotent).await;
        assert!(!world.store.retry(world.key(id, 1)).await.unwrap(), "it may have arrived");
        assert_eq!(world.store.act_on_many(Act::Retry, &[world.key(id, 1)], true).await.unwrap(), [Acted::Done]);
        world.pass().await;
        assert_eq!(log(&world, id).await, [sent()]);
    }

    async fn a_provider_disabled_in_the_meantime_parks_the_lost_delivery_as_unclear(world) {
        with(&world, Guarantee::AtLeastOnce).await;
        let id = lose(&world, json!({"recipients": [{"provider": "capture", "address": "hall"}]})).await.key.notification;
        world.execute("UPDATE postcommit.provider SET enabled = $1", vec![false.into()]).await;
        world.pass().await;
        assert_eq!((log(&world, id).await, ended(&world, id).await), (vec![], parked("config", true)));
    }

    async fn a_lane_paused_in_the_meantime_keeps_the_lost_delivery_and_its_loss(world) {
        let (lane, _) = with(&world, Guarantee::Idempotent).await;
        let held = lose(&world, json!({})).await;
        world.store.pause_lane(lane, None, "by hand").await.unwrap();
        world.pass().await;
        world.pass().await;
        let row = world.delivery(held.key.notification).await;
        assert_eq!((row.n, row.state.as_str(), row.unclear), (1, "retrying", true));
        assert_eq!(log(&world, held.key.notification).await, [lease_expired()]);
        world.store.resume_lane(lane).await.unwrap();
        world.pass().await;
        assert_eq!(log(&world, held.key.notification).await, [lease_expired(), sent()]);
    }

    async fn a_delivery_that_loses_every_worker_is_parked(world) {
        for (guarantee, repeated) in [(Guarantee::Idempotent, parked("exhausted", true)), (Guarantee::AtMostOnce, (0, "parked".into(), Some("config".into()), false))] {
            let draft = ProviderDraft { guarantee, ..world.draft(guarantee.name(), "capture", json!({})) };
            world.provider(draft).await;
            // The routing changed long ago, so the notification cannot have gone to the former provider.
            world.execute("UPDATE postcommit.provider_version SET rerouted_at = $1", vec![Timestamp::from_micros(0).into()]).await;
            for (losses, is_over) in [(10, false), (11, true)] {
                let id = lose(&world, json!({})).await.key.notification;
                for _ in 1..losses {
                    assert_eq!(claim(&world.store, -world.tenant, 1).await.len(), 1);
                    world.expire_leases().await;
                }
                world.pass().await;
                // After the first loss, a repeat waits as long as the policy says.
                world.make_due().await;
                world.pass().await;
                let expected = if is_over { repeated.clone() } else { (1, "sent".into(), None, guarantee == Guarantee::Idempotent) };
                assert_eq!(ended(&world, id).await, expected, "{guarantee:?}, {losses} losses");
            }
        }
    }

    async fn losses_count_as_attempts_and_wait_as_the_policy_says(world) {
        let policy = Policy::from_json(&json!({"name": "fixed", "interval_s": 1000, "max_attempts": 3})).unwrap();
        for guarantee in [Guarantee::Idempotent, Guarantee::AtLeastOnce] {
            let draft = ProviderDraft { guarantee, policy: policy.clone(), ..world.draft(guarantee.name(), "capture", json!({})) };
            let lane = world.provider(draft).await;
            let first = lose(&world, json!({})).await;
            let id = first.key.notification;
            world.pass().await;
            let row = world.delivery(id).await;
            assert_eq!(row.attempts, 1);
            assert!(row.next_attempt_at.unwrap() <= world.store.now().await.unwrap(), "the first is repeated immediately");
            let second = claim(&world.store, lane, 1).await.remove(0);
            world.expire_leases().await;
            world.pass().await;
            let row = world.delivery(id).await;
            assert_eq!((row.attempts, row.next_attempt_at), (2, Some(second.leased_at.plus(std::time::Duration::from_secs(1000)))));
            world.make_due().await;
            assert_eq!(claim(&world.store, lane, 1).await.len(), 1);
            world.expire_leases().await;
            world.pass().await;
            assert_eq!((log(&world, id).await, ended(&world, id).await), (vec![lease_expired(); 3], parked("exhausted", true)), "{guarantee:?}");
        }
    }

    async fn a_lost_attempt_is_logged_before_its_delivery_is_cancelled(world) {
        with(&world, Guarantee::Idempotent).await;
        let id = lose(&world, json!({"entity": "e1"})).await.key.notification;
        world.cancel("e1").await;
        world.pass().await;
        world.pass().await;
        assert_eq!((log(&world, id).await, ended(&world, id).await), (vec![lease_expired()], (1, "cancelled".into(), None, true)));
    }

    async fn a_lost_attempt_is_logged_before_its_delivery_expires(world) {
        with(&world, Guarantee::Idempotent).await;
        let id = lose(&world, json!({})).await.key.notification;
        let [due, expires] = ["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"].map(|at| at.parse::<Timestamp>().unwrap());
        world.execute("UPDATE postcommit.notification SET due_at = $1, expires_at = $2", vec![due.into(), expires.into()]).await;
        world.pass().await;
        world.pass().await;
        assert_eq!((log(&world, id).await, ended(&world, id).await), (vec![lease_expired()], (1, "expired".into(), None, true)));
    }

    async fn a_key_that_may_be_forgotten_is_not_used_again(world) {
        world.capture(json!({"key_window_s": 3000})).await;
        let id = lose(&world, json!({})).await.key.notification;
        let long_ago = an_hour_before(world.store.now().await.unwrap());
        world.execute("UPDATE postcommit.delivery_queue SET leased_at = $1", vec![long_ago.into()]).await;
        world.pass().await;
        world.pass().await;
        assert_eq!((log(&world, id).await, ended(&world, id).await), (vec![lease_expired()], parked("outcome_unknown", true)));
        let id = lose(&world, json!({})).await.key.notification;
        world.pass().await;
        world.pass().await;
        assert_eq!(log(&world, id).await, [lease_expired(), sent()], "the provider still knows this one");
    }

    async fn a_lost_notification_with_several_targets_was_not_sent_and_is_expanded(world) {
        with(&world, Guarantee::Idempotent).await;
        let id = lose(&world, json!({"recipients": [{"email": "a@example.com"}, {"email": "b@example.com"}]})).await.key.notification;
        world.pass().await;
        let rows: Vec<_> = world.deliveries(id).await.into_iter().map(|row| (row.n, row.state, row.unclear)).collect();
        assert_eq!(rows, [(1, "sent".into(), false), (2, "sent".into(), false)]);
        assert_eq!(world.count("attempt").await, 2);
    }
}
