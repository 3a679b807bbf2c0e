//! The meaning of the store's methods, on both databases: claim, announce, renew, expand, settle, retry, discard,
//! cancel.

use std::time::Duration;

use postcommit::Timestamp;
use postcommit_channel::model::{Delivery, Evidence, Facts, Fate, Finish, FinishedState, Reason, Target};
use postcommit_engine::store::{Act, Acted, Attempted, Expanded, Lease, Settlement, Store, Want};
use serde_json::json;
use uuid::Uuid;

use crate::world::World;

pub const LEASE: Duration = Duration::from_secs(60);

pub async fn claim(store: &Store, lane: i32, quota: i32) -> Vec<Delivery> {
    store.claim(&[Want { lane, quota }], LEASE, None).await.unwrap().deliveries
}

pub fn lease(delivery: &Delivery) -> Lease {
    Lease::of(delivery)
}

pub fn settlement(delivery: &Delivery, finish: Finish, outcome: &'static str) -> Settlement {
    let at = Timestamp::from_micros(1_800_000_000_000_000);
    let evidence = Evidence { detail: None, provider_ref: Some("ref-1".into()), excerpt: Some("hello".into()) };
    let attempt = Attempted { at, provider: "capture".into(), outcome, latency_ms: 12, evidence };
    Settlement {
        lease: lease(delivery),
        place: None,
        finish,
        moved_to: None,
        attempt: Some(attempt),
        code: None,
        class: None,
        detail: None,
        unclear: outcome == "unclear",
        captured: false,
        message: None,
        dead: None,
        site: None,
        event_type: None,
    }
}

pub const SENT: Finish = Finish::Ended(FinishedState::Sent);

/// Enqueues `count` notifications and moves them into the lane by a pass of the expander alone.
pub async fn in_lane(world: &World, lane: i32, count: usize) -> Vec<Uuid> {
    let mut ids = Vec::new();
    for i in 0..count {
        ids.push(world.enqueue("test.event", json!({"idempotency_key": format!("k{i}-{}", Uuid::new_v4())})).await);
    }
    let own: Vec<Expanded> = claim(&world.store, -world.tenant, 1000).await.iter().map(|d| expanded(d, lane)).collect();
    assert_eq!(world.store.expand(own).await.unwrap().expanded, count);
    ids
}

fn expanded(delivery: &Delivery, lane: i32) -> Expanded {
    Expanded::new(lease(delivery), vec![target(Fate::Lane(lane))])
}

fn target(fate: Fate) -> Target {
    Target::new(Facts::new("email", "guest@example.com"), fate)
}

on_both! {
    async fn a_claim_leases_due_rows_and_no_other_claim_gets_them(world) {
        let lane = world.capture(json!({})).await;
        let ids = in_lane(&world, lane, 3).await;
        let (first, second) = (claim(&world.store, lane, 2).await, claim(&world.another_store().await, lane, 10).await);
        assert_eq!((first.len(), second.len()), (2, 1));
        let mut seen: Vec<Uuid> = first.iter().chain(&second).map(|d| d.key.notification).collect();
        seen.sort_unstable();
        assert_eq!(seen, { let mut ids = ids; ids.sort_unstable(); ids });
        assert!(claim(&world.store, lane, 10).await.is_empty());
        assert!(first.iter().all(|d| d.lost_since.is_none() && d.first_try_at.is_some()));
    }

    async fn a_delivery_keeps_its_facts_wherever_its_row_goes(world) {
        let lane = world.capture(json!({})).await;
        let facts = Facts {
            provider: Some("capture".into()),
            template: Some("booking".into()),
            template_version: Some(3),
            language: Some("de".into()),
            user_id: Some("ana".into()),
            context: Some("{}".into()),
            send_key: Some("e:test.event:email:booking".into()),
            ..Facts::new("email", "guest@example.com")
        };
        for entity in ["taken back", "by hand", "parked"] {
            world.enqueue("test.event", json!({"entity": entity})).await;
            let own = claim(&world.store, -world.tenant, 1).await.remove(0);
            let targets = vec![Target::new(facts.clone(), Fate::Lane(lane))];
            world.store.expand(vec![Expanded::new(lease(&own), targets)]).await.unwrap();
        }
        let claimed = claim(&world.store, lane, 3).await;
        assert!(claimed.len() == 3 && claimed.iter().all(|delivery| delivery.facts == facts));
        let again = |d: &Delivery| settlement(d, Finish::Again { at: d.due_at, counted: true }, "deferred");
        world.store.settle(claimed.iter().map(again).collect::<Vec<_>>()).await.unwrap();
        world.cancel("taken back").await;
        assert!(world.store.cancel_delivery(claimed[1].key).await.unwrap());
        let parked = claim(&world.store, lane, 3).await.remove(0);
        let park = Finish::Ended(FinishedState::Parked(Reason::Rejected));
        world.store.settle(vec![settlement(&parked, park, "rejected")]).await.unwrap();
        let ledger = "SELECT channel, target, provider, template, template_version, language, user_id, context, send_key
            FROM postcommit.delivery_ledger";
        for row in world.sql(ledger, vec![]).await {
            let read = Facts {
                channel: row.get(0).unwrap(),
                target: row.get(1).unwrap(),
                provider: row.get(2).unwrap(),
                template: row.get(3).unwrap(),
                template_version: row.get(4).unwrap(),
                language: row.get(5).unwrap(),
                user_id: row.get(6).unwrap(),
                context: row.get(7).unwrap(),
                send_key: row.get(8).unwrap(),
            };
            assert_eq!(read, facts);
        }
        assert_eq!(world.count("delivery_ledger").await, 3);
        assert!(world.store.retry(parked.key).await.unwrap());
        assert_eq!(claim(&world.store, lane, 3).await.remove(0).facts, facts);
    }

    async fn a_claim_takes_no_more_than_each_lane_has_room_for(world) {
        let (one, two) = (world.capture(json!({})).await, world.provider(world.draft("other", "capture", json!({}))).await);
        in_lane(&world, one, 4).await;
        in_lane(&world, two, 4).await;
        let claimed = world.store.claim(&[Want { lane: one, quota: 1 }, Want { lane: two, quota: 3 }], LEASE, None).await.unwrap().deliveries;
        let of = |lane| claimed.iter().filter(|d| d.lane == lane).count();
        assert_eq!((of(one), of(two)), (1, 3));
    }

    async fn b2_higher_priority_first_then_older_first(world) {
        let lane = world.capture(json!({})).await;
        let mut expected = Vec::new();
        for (i, priority) in [5, 0, 9, 5, 9].into_iter().enumerate() {
            let due = format!("2026-01-01T00:00:0{i}Z");
            let id = world.enqueue("test.event", json!({"priority": priority, "due_at": due, "expires_at": "2099-01-01T00:00:00Z"})).await;
            expected.push((9 - priority, i, id));
        }
        let own: Vec<Expanded> = claim(&world.store, -world.tenant, 10).await.iter().map(|d| expanded(d, lane)).collect();
        world.store.expand(own).await.unwrap();
        expected.sort_unstable();
        let mut order = Vec::new();
        while let [one] = &claim(&world.store, lane, 1).await[..] {
            order.push(one.key.notification);
        }
        assert_eq!(order, expected.into_iter().map(|(_, _, id)| id).collect::<Vec<_>>());
    }

    async fn a_scheduled_delivery_is_not_claimed_before_its_time(world) {
        world.enqueue("later", json!({"due_at": "2099-01-01T00:00:00Z"})).await;
        assert!(claim(&world.store, -world.tenant, 10).await.is_empty());
        world.make_due().await;
        assert_eq!(claim(&world.store, -world.tenant, 10).await.len(), 1);
    }

    async fn a_paused_or_held_lane_is_not_claimed(world) {
        let lane = world.capture(json!({})).await;
        in_lane(&world, lane, 1).await;
        assert!(world.store.pause_lane(lane, None, "by hand").await.unwrap());
        assert!(!world.store.pause_lane(lane, None, "again").await.unwrap(), "a paused lane keeps its reason");
        assert!(claim(&world.store, lane, 1).await.is_empty());
        world.store.resume_lane(lane).await.unwrap();
        world.store.hold_lane(lane, None, Duration::from_secs(3600)).await.unwrap();
        world.store.hold_lane(lane, None, Duration::from_secs(1)).await.unwrap();
        assert!(claim(&world.store, lane, 1).await.is_empty(), "a shorter hold does not end a longer one");
        world.store.resume_lane(lane).await.unwrap();
        assert_eq!(claim(&world.store, lane, 1).await.len(), 1);
    }

    async fn a_claim_takes_over_a_row_whose_lease_ran_out(world) {
        let lane = world.capture(json!({})).await;
        in_lane(&world, lane, 1).await;
        let first = claim(&world.store, lane, 1).await.remove(0);
        world.expire_leases().await;
        let second = claim(&world.store, lane, 1).await.remove(0);
        assert!(second.lost_since.is_some() && second.losses == 1 && second.token != first.token);
        assert_eq!(second.first_try_at, first.first_try_at, "the provider may have seen the key then");
    }

    async fn an_announcement_needs_token_and_lease(world) {
        let lane = world.capture(json!({})).await;
        in_lane(&world, lane, 2).await;
        let both = claim(&world.store, lane, 2).await;
        let stranger = Lease { token: Uuid::new_v4(), ..lease(&both[0]) };
        assert_eq!(world.store.announce(&[stranger, lease(&both[1])]).await.unwrap(), [both[1].key]);
        world.expire_leases().await;
        assert!(world.store.announce(&[lease(&both[0])]).await.unwrap().is_empty(), "the lease has run out");
        let taken: Vec<Delivery> = claim(&world.store, lane, 2).await;
        let stands = |n: usize| taken.iter().find(|d| d.key == both[n].key).unwrap().intent_stands;
        assert_eq!((stands(0), stands(1)), (false, true));
    }

    async fn a_lease_is_renewed_by_its_token_alone(world) {
        let lane = world.capture(json!({})).await;
        in_lane(&world, lane, 1).await;
        let held = claim(&world.store, lane, 1).await.remove(0);
        world.expire_leases().await;
        assert_eq!(world.store.renew(&[lease(&held)], LEASE).await.unwrap(), [held.key]);
        assert!(claim(&world.store, lane, 1).await.is_empty(), "renewed in time");
        let stranger = Lease { token: Uuid::new_v4(), ..lease(&held) };
        assert!(world.store.renew(&[stranger], LEASE).await.unwrap().is_empty());
    }

    async fn a4_settle_moves_the_row_to_the_ledger_once_and_logs_the_attempt(world) {
        let lane = world.capture(json!({})).await;
        let id = in_lane(&world, lane, 1).await[0];
        let held = claim(&world.store, lane, 1).await.remove(0);
        let settled = world.store.settle(vec![settlement(&held, SENT, "sent")]).await.unwrap();
        assert_eq!((settled.applied, settled.stale.len()), (vec![held.key], 0));
        assert_eq!((world.count("delivery_queue").await, world.count("delivery_ledger").await, world.count("attempt").await), (0, 1, 1));
        let row = world.delivery(id).await;
        assert_eq!((row.state.as_str(), row.attempts, row.provider_ref.as_deref()), ("sent", 1, Some("ref-1")));
        assert!(row.sent_at.is_some());
        let duplicate = world.store.db().execute_one("INSERT INTO postcommit.delivery_ledger SELECT * FROM postcommit.delivery_ledger", vec![]).await;
        assert!(duplicate.is_err(), "the ledger's key is the proof of one outcome");
    }

    async fn a_stale_settle_changes_nothing_and_is_kept_as_evidence(world) {
        let lane = world.capture(json!({})).await;
        let id = in_lane(&world, lane, 1).await[0];
        let frozen = claim(&world.store, lane, 1).await.remove(0);
        world.expire_leases().await;
        let second = claim(&world.store, lane, 1).await.remove(0);
        // The late result comes before the new holder has settled, and after.
        let late = world.store.settle(vec![settlement(&frozen, Finish::Ended(FinishedState::Parked(Reason::Rejected)), "rejected")]).await.unwrap();
        assert_eq!((late.applied.len(), late.stale), (0, vec![frozen.key]));
        world.store.settle(vec![settlement(&second, SENT, "sent")]).await.unwrap();
        world.store.settle(vec![settlement(&frozen, Finish::Again { at: second.first_try_at.unwrap(), counted: true }, "unclear")]).await.unwrap();
        assert_eq!(world.delivery(id).await.state, "sent");
        assert_eq!((world.store.stale_settles().await.unwrap(), world.count("attempt").await, world.count("delivery_queue").await), (2, 1, 0));
    }

    async fn a_result_written_twice_after_an_unacknowledged_commit_is_not_late(world) {
        let lane = world.capture(json!({})).await;
        in_lane(&world, lane, 1).await;
        let held = claim(&world.store, lane, 1).await.remove(0);
        for _ in 0..2 {
            assert!(world.store.settle(vec![settlement(&held, SENT, "sent")]).await.unwrap().stale.is_empty());
        }
        assert_eq!((world.store.stale_settles().await.unwrap(), world.count("attempt").await), (0, 1));
    }

    async fn a7_attempts_and_next_time_are_durable_before_the_wait(world) {
        let lane = world.capture(json!({})).await;
        let id = in_lane(&world, lane, 1).await[0];
        let held = claim(&world.store, lane, 1).await.remove(0);
        let at: Timestamp = "2098-01-01T00:00:00Z".parse().unwrap();
        let mut again = settlement(&held, Finish::Again { at, counted: true }, "unclear");
        again.code = Some("timeout".into());
        world.store.settle(vec![again]).await.unwrap();
        let row = world.another_store().await.delivery_row(None, world.key(id, 1).id(), false).await.unwrap().unwrap();
        assert_eq!((row.state.as_str(), row.attempts, row.next_attempt_at, row.error_code.as_deref()), ("retrying", 1, Some(at), Some("timeout")));
        world.make_due().await;
        let retried = claim(&world.store, lane, 1).await.remove(0);
        assert_eq!((retried.attempts, retried.seq, retried.unclear, retried.lost_since), (1, 1, true, None));
    }

    async fn a_batch_settles_whole_in_any_order_and_mixture(world) {
        let lane = world.capture(json!({})).await;
        in_lane(&world, lane, 50).await;
        let mut held = claim(&world.store, lane, 50).await;
        held.reverse();
        let finish = |i: usize| match i % 4 {
            0 => SENT,
            1 => Finish::Ended(FinishedState::Parked(Reason::Exhausted)),
            2 => Finish::Again { at: Timestamp::from_micros(4_000_000_000_000_000), counted: true },
            _ => Finish::Returned,
        };
        let mut batch: Vec<Settlement> = held.iter().enumerate().map(|(i, d)| settlement(d, finish(i), "unclear")).collect();
        batch.iter_mut().filter(|s| s.finish == Finish::Returned).for_each(|s| s.attempt = None);
        assert_eq!(world.store.settle(batch).await.unwrap().applied.len(), 50);
        assert_eq!((world.count("delivery_ledger").await, world.count("delivery_queue").await, world.count("attempt").await), (26, 24, 38));
        let returned = claim(&world.store, lane, 50).await;
        assert_eq!(returned.len(), 12, "rows that were given back can be claimed immediately");
        assert!(returned.iter().all(|d| d.lost_since.is_none() && d.attempts == 0 && d.seq == 0));
    }

    async fn expansion_is_fenced_and_repeatable(world) {
        let lane = world.capture(json!({})).await;
        let id = world.enqueue("test.event", json!({})).await;
        let first = claim(&world.store, -world.tenant, 1).await.remove(0);
        world.expire_leases().await;
        let second = claim(&world.store, -world.tenant, 1).await.remove(0);
        let skipped = Fate::Ended { state: FinishedState::Skipped, code: "bad_address", detail: "no".into() };
        let expand = |d: &Delivery| vec![Expanded::new(lease(d), vec![target(Fate::Lane(lane)), target(skipped.clone())])];
        assert_eq!(world.store.expand(expand(&first)).await.unwrap().expanded, 0, "its lease has gone to someone else");
        assert_eq!(world.store.expand(expand(&second)).await.unwrap().expanded, 1);
        assert_eq!(world.store.expand(expand(&second)).await.unwrap().expanded, 0);
        let states: Vec<String> = world.deliveries(id).await.into_iter().map(|d| d.state).collect();
        assert_eq!(states, ["pending", "skipped"]);
    }

    async fn e7_retry_resets_counters_and_keeps_the_attempts(world) {
        let lane = world.capture(json!({})).await;
        let id = in_lane(&world, lane, 1).await[0];
        let held = claim(&world.store, lane, 1).await.remove(0);
        let parked = Finish::Ended(FinishedState::Parked(Reason::Exhausted));
        world.store.settle(vec![settlement(&held, parked, "unclear")]).await.unwrap();
        let row = world.delivery(id).await;
        assert_eq!((row.state.as_str(), row.reason.as_deref()), ("parked", Some("exhausted")));
        assert_eq!(world.store.act_on_many(Act::Retry, &[held.key], true).await.unwrap(), [Acted::Done]);
        let row = world.delivery(id).await;
        assert_eq!((row.state.as_str(), row.attempts, row.reason), ("pending", 0, None));
        let again = claim(&world.store, lane, 1).await.remove(0);
        assert_eq!((again.attempts, again.losses, again.seq, again.unclear), (0, 0, 1, false));
        world.store.settle(vec![settlement(&again, SENT, "sent")]).await.unwrap();
        assert_eq!(world.attempts(id).await.iter().map(|a| a.seq).collect::<Vec<_>>(), [1, 2]);
    }

    async fn c14_a_retry_never_sends_a_sent_delivery_again(world) {
        let lane = world.capture(json!({})).await;
        in_lane(&world, lane, 1).await;
        let held = claim(&world.store, lane, 1).await.remove(0);
        assert!(!world.store.retry(held.key).await.unwrap(), "it is under way");
        world.store.settle(vec![settlement(&held, SENT, "sent")]).await.unwrap();
        assert!(!world.store.retry(held.key).await.unwrap(), "it is sent");
        assert_eq!(world.count("delivery_queue").await, 0);
    }

    async fn two_concurrent_retries_make_one(world) {
        let lane = world.capture(json!({})).await;
        in_lane(&world, lane, 1).await;
        let held = claim(&world.store, lane, 1).await.remove(0);
        world.store.settle(vec![settlement(&held, Finish::Ended(FinishedState::Parked(Reason::Rejected)), "rejected")]).await.unwrap();
        let other = world.another_store().await;
        let (a, b) = tokio::join!(world.store.retry(held.key), other.retry(held.key));
        assert_eq!(i32::from(a.unwrap()) + i32::from(b.unwrap()), 1);
        assert_eq!((world.count("delivery_queue").await, world.count("delivery_ledger").await), (1, 0));
    }

    async fn e7_discard_ends_a_parked_one_and_the_row_stays(world) {
        let lane = world.capture(json!({})).await;
        let id = in_lane(&world, lane, 1).await[0];
        let held = claim(&world.store, lane, 1).await.remove(0);
        assert!(!world.store.discard(held.key).await.unwrap());
        world.store.settle(vec![settlement(&held, Finish::Ended(FinishedState::Parked(Reason::Rejected)), "rejected")]).await.unwrap();
        assert!(world.store.discard(held.key).await.unwrap());
        assert!(!world.store.discard(held.key).await.unwrap());
        assert_eq!(world.delivery(id).await.state, "discarded");
    }

    async fn cancel_cancels_only_deliveries_without_a_lease(world) {
        let lane = world.capture(json!({})).await;
        let ids = in_lane(&world, lane, 2).await;
        let held = claim(&world.store, lane, 1).await.remove(0);
        let other = ids.iter().find(|id| **id != held.key.notification).unwrap();
        assert!(!world.store.cancel_delivery(held.key).await.unwrap(), "too late");
        assert!(world.store.cancel_delivery(world.key(*other, 1)).await.unwrap());
        assert_eq!(world.delivery(*other).await.state, "cancelled");
        assert!(claim(&world.store, lane, 5).await.is_empty());
    }

    async fn a_duty_is_taken_once_per_interval(world) {
        let day = Duration::from_secs(86_400);
        assert!(world.store.take_duty("sweep", day).await.unwrap());
        assert!(!world.another_store().await.take_duty("sweep", day).await.unwrap());
        assert!(world.store.take_duty("sweep", Duration::ZERO).await.unwrap());
    }

    async fn a_provider_that_work_waits_for_is_not_deleted(world) {
        let lane = world.capture(json!({})).await;
        in_lane(&world, lane, 2).await;
        assert_eq!(world.store.delete_provider(world.tenant, "capture").await.unwrap(), Some(2));
        let held = claim(&world.store, lane, 2).await;
        world.store.settle(held.iter().map(|d| settlement(d, SENT, "sent")).collect::<Vec<_>>()).await.unwrap();
        assert_eq!(world.store.delete_provider(world.tenant, "capture").await.unwrap(), Some(0));
        assert_eq!(world.store.delete_provider(world.tenant, "capture").await.unwrap(), None);
    }

    async fn one_default_provider_per_channel(world) {
        let first = world.capture(json!({})).await;
        world.provider(world.draft("newer", "capture", json!({}))).await;
        let defaults: Vec<bool> = world.store.providers().await.unwrap().iter().map(|p| p.is_default && p.id == first).collect();
        assert_eq!(defaults, [false, false]);
    }

    async fn many_claimers_share_without_overlap(world) {
        let lane = world.capture(json!({})).await;
        in_lane(&world, lane, 200).await;
        let mut tasks = Vec::new();
        for _ in 0..4 {
            let store = world.another_store().await;
            tasks.push(tokio::spawn(async move {
                let mut mine = Vec::new();
                loop {
                    let some = claim(&store, lane, 7).await;
                    if some.is_empty() {
                        return mine;
                    }
                    mine.extend(some.iter().map(|d| d.key));
                }
            }));
        }
        let mut all = Vec::new();
        for task in tasks {
            all.extend(task.await.unwrap());
        }
        let total = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!((total, all.len()), (200, 200));
    }
}
