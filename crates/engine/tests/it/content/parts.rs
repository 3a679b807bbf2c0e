//! Large expansions: in parts, each a transaction.

use std::collections::BTreeSet;
use std::time::Duration;

use postcommit_channel::model::{Facts, Fate, ListMember, Target};
use postcommit_engine::dispatch::run_duties_once;
use postcommit_engine::store::{Expanded, KpiSettings, Lease, Part, Want};
use serde_json::json;
use uuid::Uuid;

use crate::world::World;

/// Creates a list with this many mail addresses, by one statement.
async fn crowd(world: &World, name: &str, count: i32) {
    world.list(name, &[]).await;
    let (from, number) = match world.is_postgres() {
        true => (format!("generate_series(1, {count}) AS g (x)"), "g.x"),
        false => (
            format!(
                "(WITH RECURSIVE g (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM g WHERE x < {count}) SELECT x FROM g) AS g"
            ),
            "g.x",
        ),
    };
    let sql = format!(
        "INSERT INTO postcommit.list_member (tenant, list, kind, member, channel, added_at)
         SELECT {}, $1, 'email', 'member' || {number} || '@example.com', '', {{now}} FROM {from}",
        world.tenant
    );
    world.execute(&sql, vec![name.into()]).await;
}

async fn to_crowd(world: &World, more: serde_json::Value) -> Uuid {
    let mut fields = json!({"title": "Up", "recipients": [{"list": "crowd"}], "entity": "e"});
    for (name, value) in more.as_object().cloned().unwrap_or_default() {
        fields[name] = value;
    }
    world.enqueue("alert", fields).await
}

/// A notification to a list of 2,500 addresses, and their provider, which is paused.
async fn paused_crowd(world: &World) -> (i32, Uuid) {
    let lane = world.capture(json!({"record": false})).await;
    world.store.pause_lane(lane, None, "test").await.unwrap();
    crowd(world, "crowd", 2500).await;
    (lane, to_crowd(world, json!({})).await)
}

/// Returns states, codes and the number of rows of each, without addresses.
async fn tally(world: &World, id: Uuid) -> Vec<(String, i64)> {
    let sql =
        "SELECT state, count(*) FROM postcommit.delivery WHERE notification_id = $1 GROUP BY state ORDER BY state";
    let rows = world.sql(sql, vec![id.into()]).await;
    rows.iter().map(|row| (row.get(0).unwrap(), row.get(1).unwrap())).collect()
}

/// The addresses that a notification went to.
async fn reached(world: &World, id: Uuid) -> BTreeSet<String> {
    let rows = world.sql("SELECT target FROM postcommit.delivery WHERE notification_id = $1", vec![id.into()]).await;
    rows.iter().map(|row| row.get(0).unwrap()).collect()
}

on_both! {
    async fn a_large_list_is_throttled_in_its_parts(world) {
        world.capture(json!({"record": false})).await;
        let throttle = json!({"max": 1, "per_s": 3600, "then": "skip"});
        world.write_template("mail", "email", json!({"event_type": "alert", "text": "Up", "throttle": throttle})).await;
        crowd(&world, "crowd", 1200).await;
        let (first, second) = (to_crowd(&world, json!({})).await, to_crowd(&world, json!({})).await);
        world.pass().await;
        let (one, two) = (tally(&world, first).await, tally(&world, second).await);
        let count = |tally: &[(String, i64)], of: &str| tally.iter().filter(|(state, _)| state == of).map(|(_, n)| *n).sum::<i64>();
        assert_eq!(count(&one, "sent") + count(&two, "sent"), 1200, "{one:?} {two:?}");
        assert_eq!(count(&one, "skipped") + count(&two, "skipped"), 1200, "{one:?} {two:?}");
    }

    async fn a_large_list_is_expanded_in_parts_and_each_member_is_sent_to_once(world) {
        world.capture(json!({"record": false})).await;
        crowd(&world, "crowd", 2500).await;
        world.user("ana", &[("email", "Member7@example.com")], json!({})).await;
        world.list("crowd", &[("user", "ana", "")]).await;
        let id = to_crowd(&world, json!({"channels": ["email"], "recipients": [{"list": "crowd"}, {"email": "other@example.com"}]})).await;
        world.pass().await;
        assert_eq!(tally(&world, id).await, [("sent".to_owned(), 2501), ("skipped".to_owned(), 1)], "ana has the address of a member");
        assert_eq!((reached(&world, id).await.len(), world.count("expansion_member").await), (2501 + 1, 0));
        assert_eq!(world.count("delivery_queue").await, 0);
    }

    async fn the_members_are_those_of_the_moment_at_which_it_began(world) {
        let (lane, id) = paused_crowd(&world).await;
        let want = Want { lane: -world.tenant, quota: 1 };
        // The first worker copies the members, and writes the first part.
        world.begin(id).await;
        world.execute("DELETE FROM postcommit.list_member WHERE member LIKE '%5@example.com'", vec![]).await;
        world.list("crowd", &[("email", "late@example.com", "")]).await;
        // Ten workers are lost one after another between two parts. No target is lost or written twice.
        for _ in 0..10 {
            world.store.claim(&[want], Duration::from_secs(60), None).await.unwrap();
            world.expire_leases().await;
            world.part(id).await;
        }
        world.pass().await;
        world.store.resume_lane(lane).await.unwrap();
        world.pass().await;
        assert_eq!(tally(&world, id).await, [("sent".to_owned(), 2500)]);
        assert!(!reached(&world, id).await.contains("late@example.com"));
    }

    async fn cancelling_half_way_ends_what_is_left(world) {
        let (lane, id) = paused_crowd(&world).await;
        world.begin(id).await;
        world.part(id).await;
        world.cancel("e").await;
        world.store.resume_lane(lane).await.unwrap();
        world.pass().await;
        assert_eq!(tally(&world, id).await, [("cancelled".to_owned(), 101)], "100 that had rows, and the rest as one");
        run_duties_once(&world.store, &KpiSettings::default()).await.unwrap();
        assert_eq!(world.count("expansion_member").await, 0);
    }

    async fn expiry_half_way_ends_what_is_left(world) {
        let (lane, id) = paused_crowd(&world).await;
        world.begin(id).await;
        world.part(id).await;
        let past = [1_000_000, 2_000_000].map(|at| postcommit::Timestamp::from_micros(at).into());
        world.execute("UPDATE postcommit.notification SET due_at = $1, expires_at = $2", past.to_vec()).await;
        world.store.resume_lane(lane).await.unwrap();
        world.pass().await;
        assert_eq!(tally(&world, id).await, [("expired".to_owned(), 101)]);
    }

    async fn a_part_of_a_worker_that_was_taken_over_changes_nothing(world) {
        world.capture(json!({"record": false})).await;
        crowd(&world, "crowd", 2500).await;
        let id = to_crowd(&world, json!({})).await;
        world.begin(id).await;
        let want = Want { lane: -world.tenant, quota: 1 };
        let claim = world.store.claim(&[want], Duration::from_secs(60), None).await.unwrap();
        let frozen = Lease::of(&claim.deliveries[0]);
        world.expire_leases().await;
        world.pass().await;
        let targets = vec![Target::new(
            Facts::new("email", "frozen@example.com"),
            Fate::Lane(1),
        )];
        let part = Part { expanded: Expanded { lease: frozen, targets, first: 5000 }, until: i32::MAX, is_last: false };
        assert_eq!(world.store.expand_part(part).await.unwrap().expanded, 0);
        assert_eq!(tally(&world, id).await, [("sent".to_owned(), 2500)]);
    }

    async fn a_notification_of_higher_priority_overtakes_it(world) {
        world.capture(json!({"record": false})).await;
        crowd(&world, "crowd", 3000).await;
        let id = to_crowd(&world, json!({})).await;
        world.begin(id).await;
        let urgent = world.enqueue("urgent", json!({"priority": 9})).await;
        world.pass().await;
        let sql = "SELECT count(*)
            FROM postcommit.attempt a
            WHERE a.at < (SELECT b.at FROM postcommit.attempt b WHERE b.notification_id = $1)";
        let before: i64 = world.sql(sql, vec![urgent.into()]).await[0].get(0).unwrap();
        assert!(before < 3000, "{before} of the list were sent before it");
        assert_eq!(tally(&world, id).await, [("sent".to_owned(), 3000)]);
    }
}

impl World {
    /// Copies the members of a list, like the first worker.
    async fn begin(&self, id: Uuid) {
        let claim =
            self.store.claim(&[Want { lane: -self.tenant, quota: 1 }], Duration::from_secs(60), None).await.unwrap();
        let lease = Lease::of(&claim.deliveries[0]);
        assert_eq!(lease.key.notification, id);
        assert!(self.store.begin_parts(lease, &[], &["crowd".into()]).await.unwrap());
        assert_eq!(self.count("expansion_member").await, self.count("list_member").await);
    }

    /// Writes one part of 100 targets.
    async fn part(&self, id: Uuid) {
        let claim =
            self.store.claim(&[Want { lane: -self.tenant, quota: 1 }], Duration::from_secs(60), None).await.unwrap();
        let next = self.store.next_part(self.tenant, id, 100).await.unwrap();
        let lane = self.store.provider(self.tenant, "capture").await.unwrap().unwrap().id;
        let target = |member: &ListMember| Target::new(Facts::new("email", member.member.as_str()), Fate::Lane(lane));
        let targets = next.members.iter().map(target).collect();
        let expanded = Expanded { lease: Lease::of(&claim.deliveries[0]), targets, first: next.first };
        let part = Part { expanded, until: next.until, is_last: next.is_last };
        assert_eq!(self.store.expand_part(part).await.unwrap().expanded, 1);
    }
}
