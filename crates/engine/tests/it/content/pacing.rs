//! Throttles and digests of templates.

use std::collections::{BTreeMap, BTreeSet};

use postcommit_channel::model::DIGEST_ITEMS;
use postcommit_engine::dispatch::run_duties_once;
use postcommit_engine::store::{KpiSettings, Resend};
use serde_json::json;
use uuid::Uuid;

use super::{CONFIRMED, outcome};
use crate::world::World;

const ALL_ITEMS: &str = "{{ count }} for {{ task }}:{% for item in items %} {{ item.task }}{% endfor %}";

/// A provider, a user with a mail address, and a template with these rules.
pub(super) async fn begin(world: &World, rules: serde_json::Value) {
    world.capture(json!({})).await;
    let mut template = json!({"text": ALL_ITEMS});
    for (name, value) in rules.as_object().cloned().unwrap_or_default() {
        template[name] = value;
    }
    world.write_template("mail", "email", template).await;
    for user in ["ana", "bob"] {
        world.user(user, &[("email", &format!("{user}@example.com"))], json!({})).await;
    }
}

pub(super) async fn task(world: &World, user: &str, task: &str) -> Uuid {
    let fields = json!({"recipients": [{"user": user}], "channels": ["email"], "payload": {"task": task, "listingId": task.len()}, "entity": task});
    world.enqueue(CONFIRMED, fields).await
}

pub(super) async fn tasks(world: &World, user: &str, names: &[&str]) -> Vec<Uuid> {
    let mut ids = vec![];
    for name in names {
        ids.push(task(world, user, name).await);
    }
    ids
}

/// The digest that an event is in.
pub(super) async fn digest_of(world: &World, item: Uuid) -> Uuid {
    let sql = "SELECT digest_id FROM postcommit.digest_item WHERE notification_id = $1";
    world.sql(sql, vec![item.into()]).await[0].get(0).unwrap()
}

/// The digests there are.
pub(super) async fn digests(world: &World) -> Vec<Uuid> {
    let rows = world.sql("SELECT DISTINCT digest_id FROM postcommit.digest_item ORDER BY digest_id", vec![]).await;
    rows.iter().map(|row| row.get(0).unwrap()).collect()
}

/// The texts that were sent for a notification, by address.
pub(super) async fn bodies(world: &World, id: Uuid) -> BTreeMap<String, String> {
    let sent = world.captured(id).await;
    sent.into_iter().map(|((_, to), sent)| (to, sent["body"].as_str().unwrap().to_owned())).collect()
}

/// Returns the items that a text names, sorted, because notifications of the same millisecond have no fixed order.
fn items_in(body: &str) -> Vec<String> {
    let (_, items) = body.split_once(": ").unwrap();
    let mut items: Vec<String> = items.split(' ').map(str::to_owned).collect();
    items.sort();
    items
}

/// The only outcome of each notification: its state and code.
pub(super) async fn outcomes_of(world: &World, ids: &[Uuid]) -> BTreeMap<(String, String), usize> {
    let mut counts = BTreeMap::new();
    for id in ids {
        for (_, state, code) in world.outcomes(*id).await {
            *counts.entry((state, code)).or_default() += 1;
        }
    }
    counts
}

pub(super) fn counted(state: &str, code: &str, count: usize) -> ((String, String), usize) {
    ((state.to_owned(), code.to_owned()), count)
}

on_both! {
    async fn a_throttle_sends_so_many_and_skips_the_rest_for_each_recipient(world) {
        begin(&world, json!({"throttle": {"max": 2, "per_s": 3600, "then": "skip"}})).await;
        let ana = tasks(&world, "ana", &["a", "b", "c", "d", "e"]).await;
        let bob = tasks(&world, "bob", &["a"]).await;
        world.pass().await;
        let expected = BTreeMap::from([counted("sent", "", 2), counted("skipped", "throttled", 3)]);
        assert_eq!(outcomes_of(&world, &ana).await, expected);
        assert_eq!(outcomes_of(&world, &bob).await, BTreeMap::from([counted("sent", "", 1)]));
        let later = task(&world, "ana", "f").await;
        world.pass().await;
        assert_eq!(world.outcomes(later).await, [outcome("email", "skipped", "throttled")], "in a later batch of the period");
        world.execute("UPDATE postcommit.throttle SET until = {now}", vec![]).await;
        let next = task(&world, "ana", "g").await;
        world.pass().await;
        assert_eq!(world.outcomes(next).await, [outcome("email", "sent", "")], "in the next period");
    }

    async fn a_lost_worker_is_counted_once_and_a_throttled_target_gives_its_send_key_back(world) {
        begin(&world, json!({"throttle": {"max": 1, "per_s": 3600, "then": "skip"}, "once_per": "entity"})).await;
        let first = task(&world, "ana", "a").await;
        world.claim_and_lose().await;
        world.pass().await;
        assert_eq!(world.outcomes(first).await, [outcome("email", "sent", "")]);
        let again = task(&world, "ana", "a").await;
        let other = task(&world, "ana", "b").await;
        world.pass().await;
        assert_eq!(world.outcomes(again).await, [outcome("email", "skipped", "duplicate")]);
        assert_eq!(world.outcomes(other).await, [outcome("email", "skipped", "throttled")]);
        world.execute("UPDATE postcommit.throttle SET until = {now}", vec![]).await;
        let other = task(&world, "ana", "b").await;
        world.pass().await;
        assert_eq!(world.outcomes(other).await, [outcome("email", "sent", "")], "the skipped one held no key");
        assert_eq!(world.count("send_key").await, 2);
    }

    async fn a_digest_sends_one_message_with_all_items_and_the_next_event_opens_another(world) {
        begin(&world, json!({"digest": {"window_s": 3600}})).await;
        let mut ids = tasks(&world, "ana", &["a", "b"]).await;
        world.pass().await;
        ids.extend(tasks(&world, "ana", &["c", "d", "e"]).await);
        let bob = task(&world, "bob", "z").await;
        world.pass().await;
        assert_eq!(outcomes_of(&world, &ids).await, BTreeMap::from([counted("skipped", "digested", 5)]));
        let (anas, bobs) = (digest_of(&world, ids[0]).await, digest_of(&world, bob).await);
        let detail = world.delivery(ids[4]).await.last_error.unwrap_or_default();
        assert!(detail.contains(&anas.to_string()), "{detail}");
        world.make_due().await;
        world.pass().await;
        let sent = bodies(&world, anas).await;
        assert_eq!((sent.len(), items_in(&sent["ana@example.com"])), (1, ["a", "b", "c", "d", "e"].map(str::to_owned).to_vec()));
        assert!(sent["ana@example.com"].starts_with("5 for "), "{sent:?}");
        assert_eq!(bodies(&world, bobs).await.into_values().collect::<Vec<_>>(), ["1 for z: z"]);
        assert_eq!(world.outcomes(anas).await, [outcome("email", "sent", "")]);
        let late = task(&world, "ana", "f").await;
        world.pass().await;
        assert_eq!(digests(&world).await.len(), 3);
        world.make_due().await;
        world.pass().await;
        assert_eq!((world.outcomes(late).await, world.outcomes(bob).await.len()), (vec![outcome("email", "skipped", "digested")], 1));
        assert_eq!(bodies(&world, digest_of(&world, late).await).await.into_values().collect::<Vec<_>>(), ["1 for f: f"]);
    }

    async fn a_key_collects_apart_and_a_throttle_may_collect_the_rest(world) {
        let throttle = json!({"max": 1, "per_s": 3600, "then": "digest"});
        begin(&world, json!({"digest": {"window_s": 60, "key": "listing_id"}, "throttle": throttle})).await;
        let ids = tasks(&world, "ana", &["a", "b", "cc", "d", "ee"]).await;
        world.pass().await;
        let expected = BTreeMap::from([counted("sent", "", 1), counted("skipped", "digested", 4)]);
        assert_eq!(outcomes_of(&world, &ids).await, expected);
        world.make_due().await;
        world.pass().await;
        let mut sent = vec![];
        for digest in digests(&world).await {
            sent.extend(bodies(&world, digest).await.into_values().map(|body| items_in(&body)));
        }
        let all: BTreeSet<String> = sent.iter().flatten().cloned().collect();
        assert_eq!((sent.len(), all.len()), (2, 4), "{sent:?}");
        assert!(sent.iter().all(|items| items.iter().all(|item| item.len() == items[0].len())), "{sent:?}");
    }

    async fn concurrent_expanders_lose_no_item_and_count_no_message_twice(world) {
        begin(&world, json!({"digest": {"window_s": 3600}, "throttle": {"max": 3, "per_s": 3600, "then": "digest"}})).await;
        let mut ids = vec![];
        for n in 0..40 {
            for user in ["ana", "bob"] {
                ids.push(task(&world, user, &format!("t{n}")).await);
            }
        }
        let (one, two) = (world.run().await, world.run_on(world.another_store().await).await);
        world.until("all events to be expanded", async || world.sql("SELECT 1 FROM postcommit.delivery_ledger", vec![]).await.len() == 80).await;
        for running in [one, two] {
            running.finish().await;
        }
        let expected = BTreeMap::from([counted("sent", "", 6), counted("skipped", "digested", 74)]);
        assert_eq!(outcomes_of(&world, &ids).await, expected);
        assert_eq!((world.count("digest_item").await, digests(&world).await.len()), (74, 2));
    }

    async fn a_full_digest_is_due_immediately_and_the_next_event_opens_another(world) {
        begin(&world, json!({"digest": {"window_s": 3600}, "text": "{{ count }} for {{ task }}, {{ items|length }}"})).await;
        for n in 0..=DIGEST_ITEMS {
            task(&world, "ana", &format!("t{n}")).await;
        }
        world.pass().await;
        world.pass().await;
        let by_size = "SELECT digest_id FROM postcommit.digest_item GROUP BY digest_id ORDER BY count(*) DESC";
        let by_size: Vec<Uuid> = world.sql(by_size, vec![]).await.iter().map(|row| row.get(0).unwrap()).collect();
        let [full, next] = by_size[..] else { panic!("two digests: {by_size:?}") };
        let sent = bodies(&world, full).await;
        assert!(sent["ana@example.com"].starts_with("500 for t") && sent["ana@example.com"].ends_with(", 500"), "{sent:?}");
        assert_eq!(world.outcomes(next).await, [outcome("email", "pending", "")], "it waits for the end of its window");
        world.make_due().await;
        world.pass().await;
        assert!(bodies(&world, next).await["ana@example.com"].ends_with(", 1"));
        assert_eq!(world.count("digest_item").await, i64::from(DIGEST_ITEMS) + 1);
    }

    async fn a_digest_that_ended_takes_no_more_items(world) {
        begin(&world, json!({"digest": {"window_s": 3600}})).await;
        task(&world, "ana", "a").await;
        world.pass().await;
        let sql = "UPDATE postcommit.notification SET due_at = created_at, expires_at = {now} WHERE id = $1";
        world.execute(sql, vec![digests(&world).await[0].into()]).await;
        world.make_due().await;
        world.pass().await;
        assert_eq!(world.outcomes(digests(&world).await[0]).await, [outcome("email", "expired", "expired")]);
        task(&world, "ana", "b").await;
        world.pass().await;
        assert_eq!(digests(&world).await.len(), 2);
        run_duties_once(&world.store, &KpiSettings::default()).await.unwrap();
        assert_eq!(world.count("digest").await, 1, "the open one is kept");
        world.make_due().await;
        world.pass().await;
        world.execute("DELETE FROM postcommit.duty", vec![]).await;
        run_duties_once(&world.store, &KpiSettings::default()).await.unwrap();
        assert_eq!(world.count("digest").await, 0);
    }

    async fn preferences_and_the_template_are_looked_up_when_the_digest_is_sent(world) {
        begin(&world, json!({"digest": {"window_s": 3600}})).await;
        let (ana, bob) = (task(&world, "ana", "a").await, task(&world, "bob", "b").await);
        world.pass().await;
        let (anas, bobs) = (digest_of(&world, ana).await, digest_of(&world, bob).await);
        world.prefer("ana", CONFIRMED, "email", false).await;
        world.write_template("mail", "email", json!({"text": "now {{ count }}"})).await;
        world.make_due().await;
        world.pass().await;
        assert_eq!(world.outcomes(anas).await, [outcome("email", "skipped", "opted_out")]);
        assert_eq!(bodies(&world, bobs).await["bob@example.com"], "now 1");
        let last = task(&world, "bob", "c").await;
        world.pass().await;
        world.execute("UPDATE postcommit.template SET active = false", vec![]).await;
        world.make_due().await;
        world.pass().await;
        assert_eq!(bodies(&world, digest_of(&world, last).await).await["bob@example.com"], "now 1", "without a template, the version of its first event");
    }

    async fn an_address_is_collected_like_a_user_and_a_resend_is_not(world) {
        begin(&world, json!({"digest": {"window_s": 3600}})).await;
        let to = json!({"recipients": [{"email": "Desk@example.com"}], "payload": {"task": "a"}, "entity": "1"});
        let id = world.enqueue(CONFIRMED, to).await;
        let other = json!({"recipients": [{"email": "desk@example.com"}], "payload": {"task": "b"}, "entity": "2"});
        world.enqueue(CONFIRMED, other).await;
        world.pass().await;
        let wish = Resend {
            entity: "1".into(),
            channel: "email".into(),
            event_type: None,
            template: Some("mail".into()),
            recipient: None,
            of: None,
            request_id: "r1".into(),
        };
        let copied = world.store.copied(world.tenant, &wish).await.unwrap().unwrap();
        let copy = world.store.resend(world.tenant, &wish, copied).await.unwrap().id;
        world.pass().await;
        assert_eq!(world.outcomes(copy).await, [outcome("email", "sent", "")]);
        assert_eq!(world.outcomes(id).await, [outcome("email", "skipped", "digested")]);
        world.make_due().await;
        world.pass().await;
        let [digest] = digests(&world).await[..] else { panic!("one digest: case makes no difference in a mail address") };
        let sent = bodies(&world, digest).await;
        assert_eq!(sent.into_values().map(|body| items_in(&body)).collect::<Vec<_>>(), [["a", "b"]]);
    }
}
