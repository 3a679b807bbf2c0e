//! Settling a target that has no row of its own, on both databases: its notification's row (n = 0) holds it, and the
//! target's delivery (n = 1) is written. And the changes of providers that a claim reports for such a target.

use std::collections::BTreeSet;

use postcommit::Timestamp;
use postcommit_channel::model::{Delivery, DeliveryKey, Facts, Finish, FinishedState, Reason};
use postcommit_engine::store::{Place, Settlement, Want};
use serde_json::json;
use uuid::Uuid;

use crate::store::{LEASE, SENT, claim, in_lane, settlement};
use crate::world::World;

const PARKED: Finish = Finish::Ended(FinishedState::Parked(Reason::Exhausted));
const LATER: Finish = Finish::Again { at: Timestamp::from_micros(4_000_000_000_000_000), counted: true };

/// The settlement of the only target, sent from its notification's row.
fn from_own_row(delivery: &Delivery, lane: i32, finish: Finish, outcome: &'static str) -> Settlement {
    let place = Place { n: 1, lane, facts: Facts::new("email", "guest@example.com") };
    Settlement { place: Some(place), ..settlement(delivery, finish, outcome) }
}

/// The settlement of a delivery that was never begun.
fn returned(delivery: &Delivery) -> Settlement {
    Settlement { attempt: None, unclear: false, ..settlement(delivery, Finish::Returned, "none") }
}

fn target_of(delivery: &Delivery) -> DeliveryKey {
    DeliveryKey { n: 1, ..delivery.key }
}

/// The rows of a table: number, lane, channel, address.
async fn places(world: &World, table: &str) -> Vec<(i32, i32, Option<String>, Option<String>)> {
    let sql = format!("SELECT n, lane, channel, target FROM postcommit.{table} ORDER BY notification_id, n");
    let rows = world.sql(&sql, vec![]).await;
    rows.iter()
        .map(|row| (row.get(0).unwrap(), row.get(1).unwrap(), row.get(2).unwrap(), row.get(3).unwrap()))
        .collect()
}

fn routed(lane: i32) -> (i32, i32, Option<String>, Option<String>) {
    (1, lane, Some("email".into()), Some("guest@example.com".into()))
}

async fn keys(world: &World, table: &str) -> BTreeSet<DeliveryKey> {
    let rows = world.sql(&format!("SELECT tenant, notification_id, n FROM postcommit.{table}"), vec![]).await;
    rows.iter()
        .map(|row| DeliveryKey {
            tenant: row.get(0).unwrap(),
            notification: row.get(1).unwrap(),
            n: row.get(2).unwrap(),
        })
        .collect()
}

/// Enqueues and claims one notification.
async fn one(world: &World) -> Delivery {
    world.enqueue("test.event", json!({})).await;
    claim(&world.store, -world.tenant, 1).await.remove(0)
}

on_both! {
    async fn a_finished_delivery_enters_the_ledger_as_the_target(world) {
        let lane = world.capture(json!({})).await;
        let held = one(&world).await;
        assert_eq!((held.key.n, held.row, held.lane), (0, 0, -world.tenant));
        let settled = world.store.settle(vec![from_own_row(&held, lane, SENT, "sent")]).await.unwrap();
        assert_eq!((settled.applied, settled.stale), (vec![held.key], vec![]), "the row is named, as it was claimed");
        assert_eq!(world.count("delivery_queue").await, 0);
        assert_eq!(places(&world, "delivery_ledger").await, [routed(lane)]);
        let row = world.sql("SELECT state, attempts, seq, provider_ref FROM postcommit.delivery_ledger", vec![]).await.remove(0);
        assert_eq!((row.get::<String>(0).unwrap(), row.get::<i64>(1).unwrap(), row.get::<i64>(2).unwrap()), ("sent".into(), 1, 1));
        assert_eq!(row.get::<String>(3).unwrap(), "ref-1");
        let row = world.sql("SELECT n, seq, outcome, token FROM postcommit.attempt", vec![]).await.remove(0);
        assert_eq!((row.get::<i32>(0).unwrap(), row.get::<i64>(1).unwrap(), row.get::<String>(2).unwrap()), (1, 1, "sent".into()));
        assert_eq!(row.get::<Uuid>(3).unwrap(), held.token);
    }

    async fn b6_an_attempt_reads_the_same_in_the_ledger_and_in_a_row_of_its_own(world) {
        let lane = world.capture(json!({})).await;
        let (plain, warned) = (one(&world).await, one(&world).await);
        let warning = Settlement { detail: Some("warning: no name".into()), ..from_own_row(&warned, lane, SENT, "sent") };
        world.store.settle(vec![from_own_row(&plain, lane, SENT, "sent"), warning]).await.unwrap();
        assert_eq!((world.count("logged_attempt").await, world.count("attempt").await), (1, 2), "a warning has a row of its own");
        let read = async |held: &Delivery| world.attempts(held.key.notification).await.remove(0);
        let (mut kept, mut logged) = (read(&plain).await, read(&warned).await);
        assert_eq!((kept.excerpt.as_deref(), kept.provider_ref.as_deref(), kept.seq), (Some("hello"), Some("ref-1"), 1));
        assert_eq!((kept.detail.take(), logged.detail.take().as_deref()), (None, Some("warning: no name")));
        (kept.delivery_id, logged.delivery_id) = (String::new(), String::new());
        assert_eq!(format!("{kept:?}"), format!("{logged:?}"));
        let row = world.delivery(plain.key.notification).await;
        assert_eq!(row.last_attempt_at, Some(kept.at));
    }

    async fn a_delivery_that_ended_without_an_attempt_says_so(world) {
        let lane = world.capture(json!({})).await;
        let held = one(&world).await;
        let mut gone = Settlement { attempt: None, unclear: true, ..from_own_row(&held, lane, Finish::Ended(FinishedState::Parked(Reason::Config)), "none") };
        gone.code = Some("unknown_provider".into());
        world.store.settle(vec![gone]).await.unwrap();
        let row = world.delivery(held.key.notification).await;
        assert_eq!((row.n, row.state.as_str(), row.attempts, row.unclear, row.error_code.as_deref()), (1, "parked", 0, true, Some("unknown_provider")));
        assert_eq!(world.count("attempt").await, 0);
    }

    async fn a_retry_becomes_a_row_of_its_lane(world) {
        let lane = world.capture(json!({})).await;
        let held = one(&world).await;
        let at: Timestamp = "2098-01-01T00:00:00Z".parse().unwrap();
        let mut again = from_own_row(&held, lane, Finish::Again { at, counted: true }, "unclear");
        again.code = Some("timeout".into());
        assert_eq!(world.store.settle(vec![again]).await.unwrap().applied, [held.key]);
        assert_eq!(places(&world, "delivery_queue").await, [routed(lane)]);
        let row = world.delivery(held.key.notification).await;
        assert_eq!((row.n, row.state.as_str(), row.attempts, row.next_attempt_at, row.unclear), (1, "retrying", 1, Some(at), true));
        assert!(claim(&world.store, lane, 1).await.is_empty(), "not before it is due");
        world.make_due().await;
        assert!(claim(&world.store, -world.tenant, 1).await.is_empty(), "it is expanded");
        let second = claim(&world.store, lane, 1).await.remove(0);
        assert_eq!((second.key, second.row, second.lane), (target_of(&held), 1, lane));
        assert_eq!((second.attempts, second.seq, second.losses, second.unclear, second.lost_since), (1, 1, 0, true, None));
        assert_eq!(second.first_try_at, Some(held.leased_at), "the provider may have seen the key since then");
        assert_eq!(second.facts, Facts::new("email", "guest@example.com"));
        world.store.settle(vec![settlement(&second, SENT, "sent")]).await.unwrap();
        let log: Vec<_> = world.attempts(held.key.notification).await.into_iter().map(|a| (a.delivery_id, a.seq, a.outcome)).collect();
        let id = target_of(&held).id().to_string();
        assert_eq!(log, [(id.clone(), 1, "unclear".into()), (id, 2, "sent".into())]);
    }

    async fn a_row_that_is_given_back_is_unchanged(world) {
        let lane = world.capture(json!({})).await;
        let held = one(&world).await;
        let before = world.delivery(held.key.notification).await.next_attempt_at;
        assert_eq!(world.store.settle(vec![returned(&held)]).await.unwrap().applied, [held.key]);
        assert_eq!(places(&world, "delivery_queue").await, [(0, -world.tenant, None, None)]);
        let row = world.delivery(held.key.notification).await;
        assert_eq!((row.state.as_str(), row.attempts, row.next_attempt_at, row.unclear), ("pending", 0, before, false));
        assert!(claim(&world.store, lane, 1).await.is_empty());
        let second = claim(&world.store, -world.tenant, 1).await.remove(0);
        assert_eq!((second.key, second.attempts, second.losses, second.seq, second.lost_since), (held.key, 0, 0, 0, None));
        assert_eq!((world.count("attempt").await, world.store.stale_settles().await.unwrap()), (0, 0));
    }

    async fn a_late_result_changes_nothing_and_names_the_target(world) {
        let lane = world.capture(json!({})).await;
        let frozen = one(&world).await;
        world.expire_leases().await;
        let second = claim(&world.store, -world.tenant, 1).await.remove(0);
        assert_eq!((second.lost_since, second.losses, second.first_try_at), (Some(frozen.leased_at), 1, Some(frozen.leased_at)));
        // The result is late in three cases: another worker holds the notification's row, that row has become the
        // target's row, or the delivery is finished.
        let late = world.store.settle(vec![from_own_row(&frozen, lane, PARKED, "rejected")]).await.unwrap();
        assert_eq!((late.applied, late.stale), (vec![], vec![frozen.key]));
        assert_eq!(places(&world, "delivery_queue").await, [(0, -world.tenant, None, None)]);
        world.store.settle(vec![from_own_row(&second, lane, LATER, "unclear")]).await.unwrap();
        world.store.settle(vec![from_own_row(&frozen, lane, SENT, "sent")]).await.unwrap();
        assert_eq!(world.delivery(frozen.key.notification).await.state, "retrying");
        world.make_due().await;
        let third = claim(&world.store, lane, 1).await.remove(0);
        world.store.settle(vec![settlement(&third, SENT, "sent")]).await.unwrap();
        world.store.settle(vec![from_own_row(&frozen, lane, LATER, "unclear")]).await.unwrap();
        assert_eq!((world.delivery(frozen.key.notification).await.state.as_str(), world.count("attempt").await), ("sent", 2));
        let rows = world.sql("SELECT n, token, outcome FROM postcommit.stale_settle ORDER BY id", vec![]).await;
        let noted: Vec<(i32, Uuid, String)> = rows.iter().map(|row| (row.get(0).unwrap(), row.get(1).unwrap(), row.get(2).unwrap())).collect();
        assert_eq!(noted, ["rejected", "sent", "unclear"].map(|outcome| (1, frozen.token, outcome.to_owned())));
    }

    async fn a_result_that_its_own_worker_writes_twice_is_not_late(world) {
        let lane = world.capture(json!({})).await;
        for finish in [SENT, PARKED, LATER] {
            let held = one(&world).await;
            for _ in 0..2 {
                let settled = world.store.settle(vec![from_own_row(&held, lane, finish, "unclear")]).await.unwrap();
                assert!(settled.stale.is_empty(), "{finish:?}");
            }
            assert_eq!(world.attempts(held.key.notification).await.len(), 1, "{finish:?}");
        }
        assert_eq!((world.store.stale_settles().await.unwrap(), world.count("delivery_ledger").await, world.count("delivery_queue").await), (0, 2, 1));
    }

    async fn a_mixed_batch_applies_exactly_the_results_whose_token_matches(world) {
        let lane = world.capture(json!({})).await;
        in_lane(&world, lane, 8).await;
        let mut held = claim(&world.store, lane, 8).await;
        for _ in 0..8 {
            world.enqueue("test.event", json!({})).await;
        }
        held.extend(claim(&world.store, -world.tenant, 8).await);
        assert_eq!(held.len(), 16);
        let (mut batch, mut ended, mut stays) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
        for (i, delivery) in held.iter().enumerate() {
            let finish = [SENT, PARKED, LATER, Finish::Returned][i % 4];
            let mut one = match finish {
                Finish::Returned => returned(delivery),
                _ if delivery.row == 0 => from_own_row(delivery, lane, finish, "unclear"),
                _ => settlement(delivery, finish, "unclear"),
            };
            // The second four of either kind were taken over by another worker.
            if i % 8 >= 4 {
                one.lease.token = Uuid::new_v4();
                stays.insert(delivery.key);
            } else if matches!(finish, Finish::Ended(_)) {
                ended.insert(one.key());
            } else {
                stays.insert(one.key());
            }
            batch.push(one);
        }
        batch.reverse();
        let settled = world.store.settle(batch).await.unwrap();
        let of_half = |first: bool| held.iter().enumerate().filter(|(i, _)| (i % 8 < 4) == first).map(|(_, d)| d.key).collect::<BTreeSet<_>>();
        assert_eq!(settled.applied.into_iter().collect::<BTreeSet<_>>(), of_half(true));
        assert_eq!(settled.stale.into_iter().collect::<BTreeSet<_>>(), of_half(false));
        assert_eq!((keys(&world, "delivery_ledger").await, keys(&world, "delivery_queue").await), (ended, stays));
        assert_eq!(places(&world, "delivery_ledger").await, [routed(lane), routed(lane), routed(lane), routed(lane)]);
        assert_eq!((world.count("attempt").await, world.store.stale_settles().await.unwrap()), (6, 8));
        let free: BTreeSet<DeliveryKey> =
            claim(&world.store, lane, 20).await.iter().chain(&claim(&world.store, -world.tenant, 20).await).map(|d| d.key).collect();
        assert_eq!(free, BTreeSet::from([held[3].key, held[11].key]), "given back; the others wait or are held");
    }

    async fn every_change_of_a_provider_is_reported_by_the_next_claim(world) {
        let told = async || {
            world.enqueue("test.event", json!({})).await;
            world.store.claim(&[Want { lane: -world.tenant, quota: 1 }], LEASE, None).await.unwrap().providers
        };
        let mut last = told().await;
        let mut changed = async |what: &str| {
            let now = told().await;
            assert!(now > last, "{what}: {last} became {now}");
            assert_eq!((told().await, world.store.providers_version().await.unwrap().0), (now, now), "{what}: once");
            last = now;
        };
        let mut draft = world.draft("capture", "capture", json!({}));
        let lane = world.provider(draft.clone()).await;
        changed("insert").await;
        draft.concurrency = 2;
        assert!(world.another_store().await.update_provider(&world.change(&draft).await).await.unwrap());
        changed("update").await;
        assert!(world.store.pause_lane(lane, None, "by hand").await.unwrap());
        changed("pause").await;
        assert!(world.store.resume_lane(lane).await.unwrap());
        changed("resume").await;
        world.store.hold_lane(lane, None, LEASE).await.unwrap();
        changed("hold").await;
        world.execute("UPDATE postcommit.provider SET enabled = $1", vec![false.into()]).await;
        changed("disable, in plain SQL").await;
        assert_eq!(world.store.delete_provider(world.tenant, "capture").await.unwrap(), Some(0));
        changed("delete").await;
    }

    async fn a_claim_of_one_notification_reports_changes_of_providers_too(world) {
        world.capture(json!({})).await;
        let id = world.enqueue("test.event", json!({})).await;
        let claimed = world.store.claim_notification(world.tenant, id, LEASE, world.store.now().await.unwrap()).await.unwrap();
        assert_eq!((claimed.deliveries.len(), claimed.providers), (1, world.store.providers_version().await.unwrap().0));
    }
}
