//! Rate limits of a provider, over all processes together, on both databases. The tests use the lowest rate, one permit
//! in 1,000 seconds. No further permit comes during a test, so exactly the burst is sent, regardless of the duration.

use std::time::Duration;

use postcommit::Timestamp;
use postcommit_channel::model::{Bucket, Guarantee, Policy, ProviderDraft, Rate};
use postcommit_engine::dispatch::Dispatcher;
use postcommit_engine::store::{LimitedClaim, Store, Want};
use serde_json::json;
use uuid::Uuid;

use crate::world::World;

const SLOWEST: f64 = 0.001;
const LEASE: Duration = Duration::from_secs(60);

impl World {
    /// The provider of phone numbers, which has a rate limit. Mail goes to `capture`.
    fn limited(&self, burst: i32) -> ProviderDraft {
        let draft = self.draft("phones", "capture", json!({}));
        ProviderDraft { channel: "sms".into(), rate_per_s: Some(SLOWEST), burst: Some(burst), ..draft }
    }

    async fn call(&self) -> Uuid {
        self.enqueue("call", json!({"recipients": [{"phone": "+14155550100"}]})).await
    }

    async fn calls(&self, count: usize) -> Vec<Uuid> {
        let mut ids = vec![];
        for _ in 0..count {
            ids.push(self.call().await);
        }
        ids
    }

    /// `count` untried rows in the limited lane, due in the order of their ids. Without distinct times, any of them
    /// could be first within one tick of SQLite's clock.
    async fn waiting_calls(&self, lane: i32, count: usize) -> Vec<Uuid> {
        self.set_bucket(lane, 1e9, self.store.now().await.unwrap()).await;
        let ids = self.calls(count).await;
        self.pass().await;
        assert_eq!(self.in_lane(lane).await, i64::try_from(count).unwrap());
        for (id, at) in ids.iter().zip(1_000_000..) {
            let due = vec![(*id).into(), Timestamp::from_micros(at * 1000).into()];
            self.execute("UPDATE postcommit.delivery_queue SET due_at = $2 WHERE notification_id = $1", due).await;
        }
        self.set_bucket(lane, 0.0, self.store.now().await.unwrap()).await;
        ids
    }

    async fn in_lane(&self, lane: i32) -> i64 {
        self.sql("SELECT count(*) FROM postcommit.delivery_queue WHERE lane = $1", vec![lane.into()]).await[0]
            .get(0)
            .unwrap()
    }

    /// Sets the permits that were used by this time.
    async fn set_bucket(&self, lane: i32, used: f64, as_of: Timestamp) {
        let values = vec![lane.into(), postcommit_engine::db::Value::Real(used), as_of.into()];
        assert_eq!(
            self.execute("UPDATE postcommit.lane_rate SET used = $2, as_of = $3 WHERE lane = $1", values).await,
            1
        );
    }

    /// How many of these are sent. The others must wait and be untried.
    async fn sent_of(&self, ids: &[Uuid]) -> usize {
        let mut sent = 0;
        for id in ids {
            let row = self.delivery(*id).await;
            match (row.state.as_str(), row.attempts) {
                ("sent", 1) => sent += 1,
                ("pending", 0) => assert!(self.attempts(*id).await.is_empty()),
                other => panic!("{id}: {other:?}"),
            }
        }
        sent
    }

    async fn leased(&self) -> i64 {
        self.sql("SELECT count(*) FROM postcommit.delivery_queue WHERE lease_token IS NOT NULL", vec![]).await[0]
            .get(0)
            .unwrap()
    }
}

async fn claim(store: &Store, lane: i32, quota: i32) -> LimitedClaim {
    store.claim_limited(&[Want { lane, quota }], LEASE, None).await.unwrap()
}

on_both! {
    async fn b12_two_dispatchers_together_stay_within_the_limit(world) {
        let lane = world.provider(world.limited(3)).await;
        world.capture(json!({})).await;
        let workers = [world.run().await, world.run().await];
        let calls = world.calls(10).await;
        for _ in 0..20 {
            world.enqueue("mail", json!({})).await;
        }
        world.until("mail is sent, and calls wait in their lane", async || {
            world.count("delivery_ledger").await == 23 && world.in_lane(lane).await == 7 && world.leased().await == 0
        }).await;
        for worker in workers {
            worker.finish().await;
        }
        world.pass().await;
        assert_eq!((world.sent_of(&calls).await, world.count("attempt").await), (3, 23));
    }

    async fn b12_the_limit_counts_targets_of_every_guarantee(world) {
        for guarantee in Guarantee::ALL {
            let name = guarantee.name();
            let draft = ProviderDraft { name: name.into(), guarantee, channel: name.into(), is_default: false, ..world.limited(2) };
            let lane = world.provider(draft).await;
            let to = |address: &str| json!({"provider": name, "address": address});
            let many = world.enqueue("many", json!({"recipients": [to("a"), to("b"), to("c")]})).await;
            let one = world.enqueue("one", json!({"recipients": [to("d")]})).await;
            world.pass().await;
            world.pass().await;
            let mut rows = world.deliveries(many).await;
            rows.extend(world.deliveries(one).await);
            let in_state = |state: &str| rows.iter().filter(|row| row.state == state).count();
            assert_eq!((in_state("sent"), in_state("pending"), world.in_lane(lane).await), (2, 2, 2), "{name}: {rows:?}");
        }
    }

    async fn b12_concurrent_claims_of_many_processes_take_each_permit_once(world) {
        let lane = world.provider(world.limited(7)).await;
        world.waiting_calls(lane, 30).await;
        let mut claimers = tokio::task::JoinSet::new();
        for quota in 1..=4 {
            let store = world.another_store().await;
            claimers.spawn(async move {
                let mut claimed = 0;
                for _ in 0..20 {
                    claimed += claim(&store, lane, quota).await.claim.deliveries.len();
                }
                claimed
            });
        }
        let mut claimed: usize = claimers.join_all().await.into_iter().sum();
        // A claim that met another one at the lane took nothing. This last claim meets none.
        claimed += claim(&world.store, lane, 30).await.claim.deliveries.len();
        assert_eq!((claimed, world.leased().await), (7, 7));
    }

    async fn b12_a_claim_of_lanes_without_a_limit_takes_nothing_from_one_that_has_it(world) {
        let lane = world.provider(world.limited(3)).await;
        let ids = world.waiting_calls(lane, 2).await;
        let now = world.store.now().await.unwrap();
        // The claim is like that of a dispatcher that has not yet read the limit.
        assert!(world.store.claim(&[Want { lane, quota: 9 }], LEASE, None).await.unwrap().deliveries.is_empty());
        assert!(world.store.claim_notification(world.tenant, ids[0], LEASE, now).await.unwrap().deliveries.is_empty());
        // The next claim is like that of a dispatcher that has not yet read that the limit is removed.
        world.update(&ProviderDraft { rate_per_s: None, burst: None, ..world.limited(3) }).await;
        assert!(claim(&world.store, lane, 9).await.claim.deliveries.is_empty());
        assert_eq!(world.store.claim(&[Want { lane, quota: 9 }], LEASE, None).await.unwrap().deliveries.len(), 2);
    }

    async fn b12_a_changed_limit_takes_effect(world) {
        world.provider(world.limited(1)).await;
        let calls = world.calls(6).await;
        let running = world.run().await;
        world.until("the first is sent", async || world.count("delivery_ledger").await == 1).await;
        world.update(&world.limited(4)).await;
        world.until("a wider burst is", async || world.count("delivery_ledger").await == 4).await;
        running.finish().await;
        assert_eq!(world.sent_of(&calls).await, 4);
        // Used permits count for the lower limit as well.
        world.update(&world.limited(2)).await;
        world.pass().await;
        assert_eq!(world.sent_of(&calls).await, 4);
        let running = world.run().await;
        world.update(&ProviderDraft { rate_per_s: Some(1000.0), ..world.limited(1) }).await;
        world.drained().await;
        running.finish().await;
        assert_eq!(world.sent_of(&calls).await, 6);
    }

    async fn b12_a_limit_that_is_set_while_dispatchers_run_holds(world) {
        let unlimited = ProviderDraft { rate_per_s: None, burst: None, ..world.limited(1) };
        let lane = world.provider(unlimited.clone()).await;
        let running = world.run().await;
        world.call().await;
        world.until("it is sent immediately", async || world.count("delivery_ledger").await == 1).await;
        world.update(&world.limited(2)).await;
        let calls = world.calls(5).await;
        world.until("two are sent, three wait", async || world.count("delivery_ledger").await == 3 && world.in_lane(lane).await == 3).await;
        assert_eq!(world.sent_of(&calls).await, 2);
        // Without the limit everything is sent. Setting it again brings no new burst.
        world.update(&unlimited).await;
        world.drained().await;
        world.update(&world.limited(2)).await;
        let last = world.call().await;
        world.until("it waits", async || world.in_lane(lane).await == 1).await;
        running.finish().await;
        world.pass().await;
        assert_eq!(world.sent_of(&[last]).await, 0);
    }

    async fn b12_the_next_permit_wakes_the_loop(before) {
        // The poll interval is longer than the test.
        let mut world = before;
        world.settings.interval_ms = 60_000;
        world.provider(ProviderDraft { rate_per_s: Some(50.0), ..world.limited(1) }).await;
        let calls = world.calls(10).await;
        let running = world.run().await;
        world.drained().await;
        running.finish().await;
        assert_eq!(world.sent_of(&calls).await, 10);
    }

    async fn b12_a_retry_is_a_send(world) {
        let policy = Policy::from_json(&json!({"name": "fixed", "interval_s": 600, "max_attempts": 5})).unwrap();
        let draft = ProviderDraft { settings: json!({"fail_on": "transient*1=call"}), policy, ..world.limited(2) };
        let lane = world.provider(draft).await;
        let first = world.call().await;
        world.pass().await;
        assert_eq!(world.delivery(first).await.state, "retrying");
        world.make_due().await;
        world.pass().await;
        assert_eq!(world.delivery(first).await.state, "sent");
        let second = world.call().await;
        world.pass().await;
        assert_eq!((world.sent_of(&[second]).await, world.in_lane(lane).await), (0, 1));
    }

    async fn b12_a_delivery_that_is_not_sent_gives_its_permit_back(world) {
        let lane = world.provider(world.limited(1)).await;
        let calls = world.waiting_calls(lane, 4).await;
        let (past, then) = (Timestamp::from_micros(1_000_000), Timestamp::from_micros(2_000_000));
        for late in &calls[..3] {
            world.execute("UPDATE postcommit.notification SET due_at = $2, expires_at = $3 WHERE id = $1", vec![(*late).into(), past.into(), then.into()]).await;
        }
        world.pass().await;
        let mut states = vec![];
        for id in &calls {
            states.push(world.delivery(*id).await.state);
        }
        assert_eq!(states, ["expired", "expired", "expired", "sent"], "three permits came back");
    }

    async fn b12_a_permit_given_back_late_is_worth_less(world) {
        let lane = world.provider(world.limited(10)).await;
        let now = world.store.now().await.unwrap();
        let earlier = |seconds: i64| Timestamp::from_micros(now.as_micros() - seconds * 1_000_000);
        // Permits given back, seconds between taking them and the last claim, permits of 5 used afterwards.
        for (permits, before, left) in [(1, 0, 4.0), (5, 0, 0.0), (9, 0, 0.0), (3, 1000, 3.0), (3, 2500, 4.5), (3, 3000, 5.0), (3, 90_000_000, 5.0), (2, -1000, 3.0)] {
            world.set_bucket(lane, 5.0, now).await;
            world.store.give_back_permits(lane, permits, earlier(before)).await.unwrap();
            let used: f64 = world.sql("SELECT used FROM postcommit.lane_rate WHERE lane = $1", vec![lane.into()]).await[0].get(0).unwrap();
            assert!((used - left).abs() < 1e-9, "{permits}, {before} s before: {used}");
        }
    }

    async fn b12_a_worker_that_dies_takes_no_permit_for_ever(world) {
        let lane = world.provider(world.limited(2)).await;
        let calls = world.waiting_calls(lane, 2).await;
        let held = claim(&world.store, lane, 1).await.claim.deliveries;
        assert_eq!((held.len(), held[0].key.notification), (1, calls[0]));
        world.expire_leases().await;
        // One permit was lost with the worker. The other records the loss, is given back, and sends one of the two.
        world.pass().await;
        world.pass().await;
        assert_eq!(world.count("delivery_ledger").await, 1);
        assert_eq!(world.attempts(held[0].key.notification).await[0].code.as_deref(), Some("lease_expired"));
        world.pass().await;
        assert_eq!(world.count("delivery_ledger").await, 1, "both permits are used");
        // As if the time had passed.
        let long_ago = Timestamp::from_micros(world.store.now().await.unwrap().as_micros() - 2_000_000_000);
        world.set_bucket(lane, 2.0, long_ago).await;
        world.pass().await;
        assert_eq!((world.delivery(calls[0]).await.state, world.delivery(calls[1]).await.state), ("sent".into(), "sent".into()));
        assert_eq!(claim(&world.store, lane, 9).await.claim.deliveries.len(), 0);
    }

    async fn b12_a_pass_by_hand_for_one_notification_keeps_to_it(world) {
        let lane = world.provider(world.limited(2)).await;
        let recipients: Vec<_> = (0..5).map(|i| json!({"phone": format!("+1415555010{i}")})).collect();
        let id = world.enqueue("call", json!({"recipients": recipients})).await;
        let mut dispatcher = Dispatcher::new(world.tools(world.store.clone())).await.unwrap();
        for _ in 0..2 {
            dispatcher.pass(Some((world.tenant, id))).await.unwrap();
        }
        let rows = world.deliveries(id).await;
        let in_state = |state: &str| rows.iter().filter(|row| row.state == state).count();
        assert_eq!((in_state("sent"), in_state("pending"), world.in_lane(lane).await), (2, 3, 3));
    }

    async fn b12_both_databases_compute_the_same_permits(world) {
        let lane = world.provider(world.limited(1)).await;
        world.waiting_calls(lane, 40).await;
        // Rate, burst, permits used, seconds ago (negative: a clock that was set back), quota. The values are far from
        // where a little time would matter.
        for (per_s, burst, used, ago, quota) in [
            (0.001, Some(3), 0.0, 0.0, 9),
            (0.001, Some(3), 2.5, 0.0, 9),
            (0.001, Some(3), 3.0, 0.0, 9),
            (0.001, Some(3), 3.0, 1500.0, 9),
            (0.001, Some(3), 3.0, 2500.0, 1),
            (0.001, Some(3), 3.0, 1e8, 9),
            (0.001, None, 0.0, 0.0, 9),
            (0.005, Some(10), 10.0, 500.0, 9),
            (7.9, None, 0.0, 0.0, 9),
            (0.001, Some(10_000), 0.0, 0.0, 30),
            (0.001, Some(10_000), 9_989.5, 0.0, 30),
            (0.001, Some(5), 1000.0, 0.0, 9),
            (0.001, Some(5), 3.5, -0.5, 9),
            (0.001, Some(5), 3.5, -5000.0, 9),
            (0.001, Some(5), 5.0, -5000.0, 9),
        ] {
            world.update(&ProviderDraft { rate_per_s: Some(per_s), burst, ..world.limited(1) }).await;
            let now = world.store.now().await.unwrap();
            let as_of = Timestamp::from_micros(now.as_micros() - (ago * 1e6) as i64);
            world.set_bucket(lane, used, as_of).await;
            let rate = Rate::new(per_s, burst);
            let bucket = rate.refill(Bucket { used, as_of }, now);
            let expected = rate.permits(bucket, quota);
            let found = claim(&world.store, lane, quota).await;
            let case = format!("{rate:?}, {used} used {ago} s ago, {quota} wanted");
            assert_eq!((found.lanes[0].quota, i32::try_from(found.claim.deliveries.len()).unwrap()), (expected, expected), "{case}");
            let left = rate.permits(Bucket { used: bucket.used + f64::from(expected), ..bucket }, 1);
            assert_eq!(found.lanes[0].wait.is_zero(), left > 0, "{case}");
            let row = &world.sql("SELECT used, as_of FROM postcommit.lane_rate WHERE lane = $1", vec![lane.into()]).await[0];
            let (used, as_of): (f64, Timestamp) = (row.get(0).unwrap(), row.get(1).unwrap());
            assert!((used - bucket.used - f64::from(expected)).abs() < 0.1, "{case}: {used} used afterwards");
            assert!(as_of >= now && as_of.since(now) < Duration::from_secs(600), "{case}: time goes on from now");
            world.execute("UPDATE postcommit.delivery_queue SET lease_token = NULL, lease_until = NULL, leased_at = NULL", vec![]).await;
        }
    }

    async fn b12_a_limit_written_by_hand_is_kept_and_held_to_its_bounds(world) {
        let unlimited = ProviderDraft { rate_per_s: None, burst: None, ..world.limited(1) };
        let lane = world.provider(unlimited).await;
        for (column, value) in [("rate_per_s", "0"), ("rate_per_s", "10001"), ("burst", "0"), ("burst", "10001")] {
            let refused = world.store.db().execute_one(&format!("UPDATE postcommit.provider SET {column} = {value}"), vec![]).await;
            assert!(refused.unwrap_err().to_string().contains(column), "{column} = {value}");
        }
        world.execute("UPDATE postcommit.provider SET rate_per_s = 0.001", vec![]).await;
        let calls = world.calls(3).await;
        world.pass().await;
        assert_eq!((world.sent_of(&calls).await, world.in_lane(lane).await), (1, 2), "a burst of one second's worth is one");
        let stored = world.store.provider(world.tenant, "phones").await.unwrap().unwrap();
        assert_eq!(stored.rate(), Some(Rate { per_s: SLOWEST, burst: 1 }));
        // The bucket is deleted with the provider.
        world.execute("DELETE FROM postcommit.delivery_queue", vec![]).await;
        assert_eq!(world.store.delete_provider(world.tenant, "phones").await.unwrap(), Some(0));
        assert_eq!(world.count("lane_rate").await, 0);
    }
}
