//! Lists over a long history: the rows that they find, their order, and that they examine a bounded part of the
//! history. Nothing here is timed.

use std::collections::BTreeSet;
use std::time::Duration;

use postcommit::{Recipient, Timestamp};
use postcommit_channel::model::Actor;
use postcommit_engine::store::{
    Act, DeliveryFilter, JobDraft, NotificationFilter, NotificationRow, Page, Resend, SliceOutcome, Store,
};
use serde_json::json;
use uuid::Uuid;

use crate::world::World;

fn all() -> NotificationFilter {
    NotificationFilter { limit: 50, ..NotificationFilter::default() }
}

fn deliveries() -> DeliveryFilter {
    DeliveryFilter { limit: 50, ..DeliveryFilter::default() }
}

/// Reads all pages, and returns all rows and the number of pages.
async fn pages(store: &Store, filter: &NotificationFilter) -> (Vec<NotificationRow>, usize) {
    let (mut filter, mut rows, mut pages) = (filter.clone(), Vec::new(), 0);
    loop {
        let page: Page<NotificationRow> = store.notification_rows(&filter).await.unwrap();
        rows.extend(page.rows);
        pages += 1;
        match page.more {
            Some(place) => filter.before = Some(place),
            None => return (rows, pages),
        }
    }
}

async fn delivery_ids(store: &Store, filter: &DeliveryFilter) -> Vec<String> {
    let (mut filter, mut ids) = (filter.clone(), Vec::new());
    loop {
        let page = store.delivery_rows(&filter).await.unwrap();
        ids.extend(page.rows.into_iter().map(|row| format!("{} {}", row.tenant, row.id)));
        match page.more {
            Some(place) => filter.before = Some(place),
            None => return ids,
        }
    }
}

/// Sorts ids like the list, because notifications that were enqueued in the same millisecond have no fixed order.
fn newest_first(mut ids: Vec<Uuid>) -> Vec<Uuid> {
    ids.sort_by(|x, y| y.cmp(x));
    ids
}

/// Sorts deliveries like the list, by tenant and id.
fn in_order(mut names: Vec<String>) -> Vec<String> {
    let place = |name: &String| {
        let (id, n) = name.rsplit(' ').next().unwrap().split_once('.').unwrap();
        (std::cmp::Reverse(id.to_owned()), n.parse::<i32>().unwrap())
    };
    names.sort_by_key(place);
    names
}

fn ids(rows: &[NotificationRow]) -> Vec<Uuid> {
    rows.iter().map(|row| row.id).collect()
}

fn wish(entity: &str, channel: &str, recipient: Option<Recipient>) -> Resend {
    let request_id = Uuid::now_v7().to_string();
    Resend {
        entity: entity.into(),
        channel: channel.into(),
        event_type: None,
        template: None,
        recipient,
        of: None,
        request_id,
    }
}

/// Resends as the operator Ada. Returns the id of the copy.
async fn resend(world: &World, entity: &str, channel: &str, recipient: Option<Recipient>) -> Uuid {
    let (wish, store) = (wish(entity, channel, recipient), world.store.by(Actor::new("cli:ada")));
    let copied = store.copied(world.tenant, &wish).await.unwrap().unwrap();
    store.resend(world.tenant, &wish, copied).await.unwrap().id
}

on_both! {
    async fn a_notification_that_is_being_expanded_or_sent_is_listed_once(world) {
        world.capture(json!({})).await;
        for _ in 0..100 {
            world.enqueue("a", json!({})).await;
        }
        let running = world.run().await;
        let filter = DeliveryFilter { limit: 200, ..DeliveryFilter::default() };
        world.until("all are sent", async || {
            let rows = world.store.delivery_rows(&filter).await.unwrap().rows;
            let listed: BTreeSet<Uuid> = rows.iter().map(|row| row.notification_id).collect();
            assert_eq!((rows.len(), listed.len()), (100, 100), "{:?}", rows.iter().map(|row| (row.n, &row.state)).collect::<Vec<_>>());
            rows.iter().all(|row| row.state == "sent")
        }).await;
        running.finish().await;
    }

    async fn deliveries_are_found_by_the_correlation_id_of_their_notification_and_jobs_act_on_the_same(world) {
        world.capture(json!({"fail_on": "permanent=b"})).await;
        let of = |id: &str| DeliveryFilter { correlation_id: Some(id.into()), ..deliveries() };
        let sent = world.enqueue("a", json!({"correlation_id": "order-7", "channels": ["email"]})).await;
        let parked = world.enqueue("b", json!({"correlation_id": "order-7", "channels": ["email"]})).await;
        world.enqueue("b", json!({"correlation_id": "order-8", "channels": ["email"]})).await;
        world.enqueue("b", json!({"channels": ["email"]})).await;
        world.pass().await;
        let waits = world.enqueue("a", json!({"correlation_id": "order-7", "due_at": "2099-01-01T00:00:00Z"})).await;
        let found = delivery_ids(&world.store, &of("order-7")).await;
        assert_eq!(found, in_order(vec![format!("default {sent}.1"), format!("default {parked}.1"), format!("default {waits}.0")]));
        assert!(delivery_ids(&world.store, &of("order")).await.is_empty(), "the whole id must match");
        let draft = JobDraft { act: Act::Retry, filter: of("order-7"), unclear: false, pace_per_s: None };
        assert_eq!(world.store.create_job(Some(world.tenant), &draft).await.unwrap().total, 1);
    }

    async fn e12_deliveries_are_found_by_list_and_by_words_and_jobs_act_on_the_same(world) {
        world.capture(json!({"fail_on": "permanent=b"})).await;
        let a = world.enqueue("b", json!({"title": "Your Order is ready"})).await;
        let b = world.enqueue("b", json!({"title": "100%_order*", "entity": "e1"})).await;
        let c = world.enqueue("order.shipped", json!({"due_at": "2099-01-01T00:00:00Z", "recipients": [{"list": "guests"}], "channels": ["email"]})).await;
        let d = world.enqueue("b", json!({"title": "Über alles"})).await;
        world.pass().await;
        let words = |words: &[&str]| DeliveryFilter { words: words.iter().map(|&word| word.to_owned()).collect(), ..deliveries() };
        let list = |name: &str| DeliveryFilter { list: Some(name.to_owned()), ..deliveries() };
        for (filter, expected) in [
            (words(&["ORDER"]), vec![c, b, a]),
            (words(&["order", "Ready"]), vec![a]),
            (words(&["%_"]), vec![b]),
            (words(&["order", "nothing"]), vec![]),
            (words(&["Über"]), vec![d]),
            (DeliveryFilter { entity: Some("e1".into()), ..words(&["order"]) }, vec![b]),
            (list("guests"), vec![c]),
            (list("guest"), vec![]),
        ] {
            let found: Vec<Uuid> = world.store.delivery_rows(&filter).await.unwrap().rows.iter().map(|row| row.notification_id).collect();
            assert_eq!(newest_first(found), newest_first(expected.clone()), "{filter:?}");
            // A job counts the parked ones among them.
            let draft = JobDraft { act: Act::Retry, filter, unclear: false, pace_per_s: None };
            let parked = expected.iter().filter(|id| **id != c).count();
            assert_eq!(world.store.count_for_job(Some(world.tenant), &draft).await.unwrap().total, i64::try_from(parked).unwrap());
        }
        let titled = world.store.delivery_rows(&words(&["ready"])).await.unwrap().rows;
        assert_eq!(titled[0].title.as_deref(), Some("Your Order is ready"));
        // A stored job finds the same again.
        let draft = JobDraft { act: Act::Discard, filter: words(&["ready"]), unclear: false, pace_per_s: None };
        world.store.create_job(Some(world.tenant), &draft).await.unwrap();
        while world.store.run_job_slice().await.unwrap() != SliceOutcome::Nothing {}
        assert_eq!((world.delivery(a).await.state.as_str(), world.delivery(b).await.state.as_str()), ("discarded", "parked"));
    }

    async fn captured_deliveries_are_listed_alone(world) {
        world.capture(json!({"fail_on": "permanent=b"})).await;
        let captured = world.enqueue("a", json!({"entity": "e1"})).await;
        let rejected = world.enqueue("b", json!({"entity": "e1"})).await;
        world.pass().await;
        let waits = world.enqueue("a", json!({"entity": "e1"})).await;
        let ids_of = async |filter: DeliveryFilter| {
            let rows = world.store.delivery_rows(&filter).await.unwrap().rows;
            newest_first(rows.iter().map(|row| row.notification_id).collect())
        };
        assert_eq!(ids_of(deliveries()).await, newest_first(vec![captured, rejected, waits]));
        let only = DeliveryFilter { captured: true, ..deliveries() };
        assert_eq!(ids_of(only.clone()).await, [captured]);
        assert_eq!(ids_of(DeliveryFilter { entity: Some("e1".into()), ..only.clone() }).await, [captured]);
        assert_eq!(ids_of(DeliveryFilter { states: vec!["pending".into()], ..only }).await, Vec::<Uuid>::new());
    }

    async fn facts_attempts_and_latencies_are_read_with_a_limit(world) {
        world.capture(json!({"fail_on": "transient=b"})).await;
        let (sent, retrying) = (world.enqueue("a", json!({})).await, world.enqueue("b", json!({})).await);
        for _ in 0..3 {
            world.pass().await;
            world.make_due().await;
        }
        for id in [sent, retrying] {
            let key = world.key(id, 1);
            let facts = world.store.facts(key).await.unwrap().unwrap();
            let row = world.store.delivery_row(Some(world.tenant), key.id(), true).await.unwrap().unwrap();
            assert_eq!((facts.channel(), Some(facts.target())), ("email", row.address.as_deref()));
        }
        assert!(world.store.facts(world.key(sent, 9)).await.unwrap().is_none());
        let seqs = async |limit| world.store.attempts_of(world.key(retrying, 1), limit).await.unwrap().iter().map(|attempt| attempt.seq).collect::<Vec<_>>();
        assert_eq!((seqs(100).await, seqs(2).await), (vec![1, 2, 3], vec![2, 3]), "the newest, in order");
        let newest = world.store.newest_latencies(world.tenant, 100).await.unwrap();
        assert!(newest.len() == 4 && newest.iter().all(|(provider, took)| provider == "capture" && *took >= 0), "{newest:?}");
        assert_eq!(world.store.newest_latencies(world.tenant, 1).await.unwrap().len(), 1);
        assert_eq!(world.store.newest_latencies(world.tenant + 1, 100).await.unwrap(), vec![]);
        assert_eq!(world.store.attempts_of(world.key(sent, 1), 100).await.unwrap().len(), 1);
    }

    async fn every_filter_of_notifications_finds_its_matches(world) {
        world.capture(json!({"fail_on": "permanent=b"})).await;
        let a = world.enqueue("a", json!({"entity": "e1", "title": "Your Order is ready", "idempotency_key": "ka", "source": {"site": "s1"}})).await;
        let b = world.enqueue("b", json!({"entity": "e1", "title": "100%_order*", "priority": 9, "source": {"site": "s2"}})).await;
        let c = world.enqueue("c", json!({"entity": "e2", "due_at": "2099-01-01T00:00:00Z", "recipients": [{"list": "guests"}], "channels": ["email"]})).await;
        world.pass().await;
        let find = async |filter: NotificationFilter| ids(&pages(&world.store, &filter).await.0);
        let text = |value: &str| Some(value.to_owned());
        let words = |words: &[&str]| NotificationFilter { words: words.iter().map(|&word| word.to_owned()).collect(), ..all() };
                for (filter, expected) in [
            (NotificationFilter { tenant: Some(world.tenant), ..all() }, vec![c, b, a]),
            (NotificationFilter { tenant: Some(world.tenant + 1), ..all() }, vec![]),
            (NotificationFilter { states: vec!["sent".into()], ..all() }, vec![a]),
            (NotificationFilter { states: vec!["parked".into()], ..all() }, vec![b]),
            (NotificationFilter { states: vec!["pending".into()], ..all() }, vec![c]),
            (NotificationFilter { states: vec!["retrying".into()], ..all() }, vec![]),
            (NotificationFilter { states: vec!["sent".into(), "parked".into()], ..all() }, vec![b, a]),
            (NotificationFilter { states: vec!["pending".into(), "retrying".into()], ..all() }, vec![c]),
            (NotificationFilter { states: vec!["pending".into(), "parked".into()], ..all() }, vec![c, b]),
            (NotificationFilter { event_type: text("b"), ..all() }, vec![b]),
            (NotificationFilter { entity: text("e1"), ..all() }, vec![b, a]),
            (NotificationFilter { entity: text("e1"), site: text("s2"), ..all() }, vec![b]),
            (NotificationFilter { site: text("s1"), ..all() }, vec![a]),
            (NotificationFilter { list: text("guests"), ..all() }, vec![c]),
            (NotificationFilter { list: text("guest"), ..all() }, vec![]),
            (NotificationFilter { idempotency_key: text("ka"), ..all() }, vec![a]),
            (NotificationFilter { idempotency_key: text("none"), ..all() }, vec![]),
            (NotificationFilter { channel: text("email"), ..all() }, vec![c, b, a]),
            (NotificationFilter { channel: text("sms"), ..all() }, vec![]),
            (NotificationFilter { priority: Some(9), ..all() }, vec![b]),
            (NotificationFilter { attempts: Some(1), ..all() }, vec![b, a]),
            (NotificationFilter { attempts: Some(2), ..all() }, vec![]),
            (words(&["ORDER"]), vec![b, a]),
            (words(&["order", "ready"]), vec![a]),
            (words(&["%_"]), vec![b]),
            (words(&["order*"]), vec![b]),
            (words(&["or%er"]), vec![]),
        ] {
            assert_eq!(find(filter.clone()).await, newest_first(expected), "{filter:?}");
        }
    }

    async fn c16_operations_list_all_tenants_by_status_tenant_and_date_range_in_pages(world) {
        world.capture(json!({"fail_on": "permanent=bad"})).await;
        let mut expected = Vec::new();
        for i in 0..12 {
            let tenant = ["default", "north", "south"][i % 3];
            expected.push((tenant, world.enqueue(if i % 2 == 0 { "bad" } else { "good" }, json!({"tenant": tenant})).await));
        }
        world.pass().await;
        expected.reverse();
        let page_of = |limit| NotificationFilter { limit, ..NotificationFilter::default() };
        let (rows, _) = pages(&world.store, &page_of(5)).await;
        assert_eq!(ids(&rows), newest_first(ids(&rows)));
        let mut found: Vec<_> = rows.iter().map(|row| (row.tenant.as_str(), row.id)).collect();
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(found, expected, "each once, none left out");
        let north = world.store.tenant("north").await.unwrap();
        let (rows, _) = pages(&world.store, &NotificationFilter { tenant: north, ..page_of(3) }).await;
        assert!(rows.len() == 4 && rows.iter().all(|row| row.tenant == "north"));
        // Only the tenant `default` has a provider: all deliveries of the others are parked.
        let (rows, _) = pages(&world.store, &NotificationFilter { states: vec!["sent".into()], ..page_of(3) }).await;
        assert!(rows.len() == 2 && rows.iter().all(|row| row.tenant == "default" && row.event_type == "good"), "{rows:?}");
        let (parked, _) = pages(&world.store, &NotificationFilter { states: vec!["parked".into()], ..page_of(3) }).await;
        assert_eq!(parked.len(), 10);
        let now = world.store.now().await.unwrap();
        let (past, future) = (Timestamp::from_micros(now.as_micros() - 3_600_000_000), now.plus(Duration::from_secs(60)));
        for (from, to, count) in [(Some(past), Some(future), 12), (Some(future), None, 0), (None, Some(past), 0), (Some(past), None, 12)] {
            assert_eq!(pages(&world.store, &NotificationFilter { from, until: to, ..page_of(5) }).await.0.len(), count);
        }
    }

    async fn b7_dead_letters_are_listed_by_every_filter(world) {
        world.capture(json!({"fail_on": "permanent=p,transient=t"})).await;
        let both = json!([{"email": "a@example.com"}, {"email": "b@example.com"}]);
        let parked = world.enqueue("p", json!({"recipients": both, "entity": "e", "source": {"site": "s"}})).await;
        let waiting = world.enqueue("t", json!({})).await;
        let sent = world.enqueue("ok", json!({"entity": "e"})).await;
        let later = world.enqueue("ok", json!({"entity": "e", "due_at": "2099-01-01T00:00:00Z"})).await;
        world.pass().await;
        let name = |id: Uuid, n: i32| format!("default {id}.{n}");
        let text = |value: &str| Some(value.to_owned());
        let states = |states: &[&str]| DeliveryFilter { states: states.iter().map(|&state| state.to_owned()).collect(), ..deliveries() };
        let everything = vec![name(later, 0), name(sent, 1), name(waiting, 1), name(parked, 1), name(parked, 2)];
        for (filter, expected) in [
            (deliveries(), everything.clone()),
            (DeliveryFilter { limit: 1, ..deliveries() }, everything.clone()),
            (DeliveryFilter { tenant: Some(world.tenant), limit: 2, ..deliveries() }, everything),
            (states(&["parked"]), vec![name(parked, 1), name(parked, 2)]),
            (states(&["parked", "sent"]), vec![name(sent, 1), name(parked, 1), name(parked, 2)]),
            (states(&["parked", "retrying"]), vec![name(waiting, 1), name(parked, 1), name(parked, 2)]),
            (states(&["pending"]), vec![name(later, 0)]),
            (states(&["nonsense"]), vec![]),
            (DeliveryFilter { reason: text("rejected"), ..deliveries() }, vec![name(parked, 1), name(parked, 2)]),
            (DeliveryFilter { recipient: text("b@example.com"), ..deliveries() }, vec![name(parked, 2)]),
            (DeliveryFilter { recipient: text("b@example"), ..deliveries() }, vec![]),
            (DeliveryFilter { event_type: text("t"), ..deliveries() }, vec![name(waiting, 1)]),
            (DeliveryFilter { entity: text("e"), ..deliveries() }, vec![name(later, 0), name(sent, 1), name(parked, 1), name(parked, 2)]),
            (DeliveryFilter { entity: text("e"), limit: 1, ..states(&["parked"]) }, vec![name(parked, 1), name(parked, 2)]),
            (DeliveryFilter { site: text("s"), ..deliveries() }, vec![name(parked, 1), name(parked, 2)]),
            (DeliveryFilter { notification_id: Some(parked), limit: 1, ..deliveries() }, vec![name(parked, 1), name(parked, 2)]),
            (DeliveryFilter { provider: text("capture"), ..deliveries() }, vec![name(sent, 1), name(waiting, 1), name(parked, 1), name(parked, 2)]),
            (DeliveryFilter { provider: text("none"), ..deliveries() }, vec![]),
            (DeliveryFilter { attempts: Some(1), channel: text("email"), ..states(&["sent", "retrying"]) }, vec![name(sent, 1), name(waiting, 1)]),
        ] {
            assert_eq!(delivery_ids(&world.store, &filter).await, in_order(expected), "{filter:?}");
        }
        let code = world.store.delivery_rows(&states(&["parked"])).await.unwrap().rows[0].error_code.clone();
        assert_eq!(delivery_ids(&world.store, &DeliveryFilter { error_code: code, ..deliveries() }).await.len(), 2);
        let shown = world.store.delivery_rows(&DeliveryFilter { recipient: text("b@example.com"), ..deliveries() }).await.unwrap().rows;
        assert_eq!(shown[0].target.as_deref(), Some("b…@example.com"), "found by the address, shown masked");
    }

    async fn b4_lists_and_views_are_asked_by_tenant_and_recipient(world) {
        world.capture(json!({})).await;
        let alice = json!([{"user": "alice"}]);
        let mail = world.enqueue("a", json!({"entity": "e"})).await;
        let both = world.enqueue("a", json!({"entity": "e", "recipients": [{"user": "alice"}, {"email": "guest@example.com"}]})).await;
        let inbox = world.enqueue("a", json!({"recipients": alice})).await;
        world.enqueue("a", json!({"recipients": [{"user": "bob"}, {"provider": "capture", "address": "al"}]})).await;
        let elsewhere = world.enqueue("a", json!({"recipients": alice, "tenant": "other"})).await;
        let cancelled = world.enqueue("a", json!({"recipients": alice, "due_at": "2099-01-01T00:00:00Z"})).await;
        world.store.cancel_notification(None, cancelled).await.unwrap();
        world.pass().await;
        let scheduled = world.enqueue("a", json!({"recipients": alice, "due_at": "2099-01-01T00:00:00Z"})).await;

        let own = Some(world.tenant);
        let text = |value: &str| Some(value.to_owned());
        let name = |id: Uuid, n: i32| format!("{} {id}.{n}", if id == elsewhere { "other" } else { "default" });
        let of_alice = vec![name(both, 1), name(inbox, 1), name(cancelled, 0), name(scheduled, 0)];
        for limit in [1, 50] {
            let to = |recipient: &str| DeliveryFilter { recipient: text(recipient), tenant: own, limit, ..DeliveryFilter::default() };
            for (filter, expected) in [
                (to("alice"), of_alice.clone()),
                (DeliveryFilter { tenant: None, ..to("alice") }, [of_alice.clone(), vec![name(elsewhere, 1)]].concat()),
                (to("guest@example.com"), vec![name(mail, 1), name(both, 2)]),
                (DeliveryFilter { entity: text("e"), ..to("alice") }, vec![name(both, 1)]),
                (DeliveryFilter { states: vec!["delivered".into()], ..to("alice") }, vec![name(both, 1), name(inbox, 1)]),
                (DeliveryFilter { states: vec!["pending".into()], ..to("alice") }, vec![name(scheduled, 0)]),
                (to("alic"), vec![]),
                (to("capture"), vec![]),
            ] {
                assert_eq!(delivery_ids(&world.store, &filter).await, in_order(expected), "{filter:?}");
            }
            let to = |recipient: &str| NotificationFilter { recipient: text(recipient), tenant: own, limit, ..NotificationFilter::default() };
            for (filter, expected) in [
                (to("alice"), vec![both, inbox, cancelled, scheduled]),
                (NotificationFilter { tenant: None, ..to("alice") }, vec![both, inbox, cancelled, scheduled, elsewhere]),
                (to("guest@example.com"), vec![mail, both]),
                (NotificationFilter { entity: text("e"), ..to("alice") }, vec![both]),
                (NotificationFilter { states: vec!["pending".into()], ..to("alice") }, vec![scheduled]),
                (NotificationFilter { words: vec!["none".into()], ..to("alice") }, vec![]),
                (to("guest@example"), vec![]),
                (to("capture"), vec![]),
            ] {
                let found: Vec<Uuid> = pages(&world.store, &filter).await.0.into_iter().map(|row| row.id).collect();
                assert_eq!(found, newest_first(expected), "{filter:?}");
            }
        }
        let full = DeliveryFilter { recipient: text("guest@example.com"), full: true, ..deliveries() };
        let shown = world.store.delivery_rows(&full).await.unwrap().rows.remove(0);
        assert_eq!((shown.target.as_deref(), shown.address.as_deref()), (Some("g…@example.com"), Some("guest@example.com")));

        let hashed = if world.is_postgres() { "AND recipient_hash = hashtext('alice')" } else { "" };
        let named = if world.is_postgres() { "recipients @> '[{\"user\": \"alice\"}]'" } else { "EXISTS (SELECT 1 FROM json_each(recipients) r WHERE r.value ->> 'user' = 'alice')" };
        for (sql, count) in [
            (format!("SELECT count(*) FROM postcommit.delivery WHERE tenant = 'default' AND target = 'alice' {hashed}"), 2),
            (format!("SELECT count(*) FROM postcommit.notification_status WHERE tenant = 'default' AND {named}"), 4),
            (format!("SELECT count(*) FROM postcommit.notification_status WHERE tenant = 'other' AND {named}"), 1),
        ] {
            assert_eq!(world.sql(&sql, vec![]).await[0].get::<i64>(0).unwrap(), count, "{sql}");
        }
        if world.is_postgres() {
            // A delivery that was expanded and then cancelled enters the ledger by another statement than one that was sent.
            let later = world.enqueue("a", json!({"recipients": [{"email": "bob@example.com"}, {"email": "cleo@example.com"}]})).await;
            world.store.pause_lane(world.store.provider(world.tenant, "capture").await.unwrap().unwrap().id, None, "by hand").await.unwrap();
            world.pass().await;
            assert!(world.store.cancel_delivery(world.key(later, 1)).await.unwrap());
            let hashed = "SELECT count(*), count(*) FILTER (WHERE recipient_hash = hashtext(target)) FROM postcommit.delivery_ledger WHERE target IS NOT NULL";
            let row = world.sql(hashed, vec![]).await.remove(0);
            assert_eq!(row.get::<i64>(0).unwrap(), row.get::<i64>(1).unwrap());
            assert!(row.get::<i64>(0).unwrap() >= 4);
        }
    }

    async fn a_delivery_long_due_is_stuck_and_a_scheduled_one_is_not(world) {
        let stuck = world.enqueue("a", json!({})).await;
        let under_way = world.enqueue("a", json!({})).await;
        world.enqueue("a", json!({"due_at": "2099-01-01T00:00:00Z"})).await;
        world.enqueue("a", json!({})).await;
        let past = Timestamp::from_micros(1_000_000);
        world.execute("UPDATE postcommit.delivery_queue SET due_at = $1, first_due_at = $1 \
            WHERE notification_id IN ($2, $3)", vec![past.into(), stuck.into(), under_way.into()]).await;
        world.execute("UPDATE postcommit.delivery_queue SET lease_token = $1, lease_until = {now} \
            WHERE notification_id = $2", vec![Uuid::new_v4().into(), under_way.into()]).await;
        let hour = Some(Duration::from_secs(3600));
        assert_eq!(ids(&pages(&world.store, &NotificationFilter { stuck: hour, ..all() }).await.0), [stuck]);
        assert_eq!(delivery_ids(&world.store, &DeliveryFilter { stuck: hour, ..deliveries() }).await, [format!("default {stuck}.0")]);
    }

    async fn one_id_in_two_tenants_is_two_rows_on_two_pages(world) {
        let other = world.store.tenant_or_new("other").await.unwrap();
        let id = world.enqueue("a", json!({})).await;
        for (table, own) in [("notification", "id"), ("delivery_queue", "notification_id")] {
            let columns = match table {
                "notification" => "event_type, idempotency_key, payload, recipients, channels, priority, due_at, expires_at, created_at, id",
                _ => "n, lane, priority, due_at, notification_id",
            };
            world.execute(&format!("INSERT INTO postcommit.{table} (tenant, {columns}) \
                SELECT {other}, {columns} \
                FROM postcommit.{table} \
                WHERE {own} = $1"), vec![id.into()]).await;
        }
        let (rows, _) = pages(&world.store, &NotificationFilter { limit: 1, ..all() }).await;
        assert_eq!(rows.iter().map(|row| (row.tenant.as_str(), row.id)).collect::<Vec<_>>(), [("other", id), ("default", id)]);
        assert_eq!(delivery_ids(&world.store, &DeliveryFilter { limit: 1, ..deliveries() }).await, [format!("other {id}.0"), format!("default {id}.0")]);
    }

    async fn e3_and_e13_the_status_says_state_retries_error_times_and_where_it_came_from(world) {
        world.capture(json!({"fail_on": "transient=t,permanent=p"})).await;
        let source = json!({"site": "plant-7", "instance": "i-1", "script": "night.py", "rule": "r9", "enqueued_at": "2026-01-02T03:04:05+02:00"});
        let ok = world.enqueue("a", json!({"source": source})).await;
        let failing = world.enqueue("t", json!({})).await;
        let parked = world.enqueue("p", json!({})).await;
        world.pass().await;
        world.make_due().await;
        world.pass().await;
        let status = async |id| world.store.status(Some(world.tenant), id).await.unwrap().unwrap();
        let stood = status(ok).await;
        assert_eq!((stood.state.as_str(), stood.retries, stood.last_error.as_deref()), ("sent", 0, None));
        assert!(stood.sent_at >= stood.source.received_at && stood.last_attempt_at >= stood.source.received_at);
        assert_eq!((stood.delivered_at, stood.captured), (None, true), "sent is not delivered, and this was not even sent");
        assert_eq!(stood.source.site.as_deref(), Some("plant-7"));
        assert_eq!((stood.source.instance.as_deref(), stood.source.script.as_deref(), stood.source.rule.as_deref()), (Some("i-1"), Some("night.py"), Some("r9")));
        let shown = serde_json::to_value(&stood).unwrap();
        assert_eq!((&shown["enqueued_at"], &shown["source"]["enqueued_at"]), (&json!("2026-01-02T01:04:05Z"), &json!("2026-01-02T01:04:05Z")), "UTC");
        let stood = status(failing).await;
        assert_eq!((stood.state.as_str(), stood.retries, stood.delivered_at), ("retrying", 1, None));
        assert!(stood.last_error.is_some() && stood.next_attempt_at.is_some());
        assert_eq!(Some(stood.enqueued_at), stood.source.received_at, "it came from no site");
        let stood = status(parked).await;
        assert_eq!((stood.sent_at, stood.delivered_at, stood.captured), (None, None, false));
        assert!(stood.last_attempt_at.is_some());
        assert!(world.store.status(Some(world.tenant + 1), ok).await.unwrap().is_none(), "another tenant's is none");
        assert!(world.store.status(None, Uuid::nil()).await.unwrap().is_none());
    }

    async fn b7_a_dead_letter_s_full_story_is_told_in_order(world) {
        world.capture(json!({"fail_on": "permanent=p"})).await;
        let id = world.enqueue("p", json!({"idempotency_key": "k", "recipients": [{"email": "a@example.com"}, {"email": "b@example.com"}]})).await;
        world.pass().await;
        assert!(world.store.retry(world.key(id, 1)).await.unwrap());
        world.pass().await;
        world.enqueue("p", json!({"idempotency_key": "k", "title": "other"})).await;
        let story = world.store.notification_details(Some(world.tenant), id).await.unwrap().unwrap();
        assert_eq!((story.state.as_str(), story.deliveries.len(), story.attempt_log.len(), story.conflicts.len()), ("parked", 2, 3, 1));
        assert!(story.attempt_log.is_sorted_by_key(|attempt| attempt.at));
        assert_eq!(story.attempt_log[2].delivery_id, format!("{id}.1"));
        assert_eq!(story.notification.recipients[0]["email"], "a…@example.com");
        assert!(world.store.notification_details(Some(world.tenant + 1), id).await.unwrap().is_none());
    }

    async fn the_deliveries_of_a_notification_are_counted_by_state(world) {
        world.capture(json!({})).await;
        let to = json!([{"email": "a@example.com"}, {"email": "c@example.com"}, {"email": "b@example.com"}, {"phone": "+919876543210"}]);
        let id = world.enqueue("a", json!({"recipients": to, "channels": ["email", "sms"]})).await;
        let counts = async |channel| world.store.delivery_states(world.tenant, id, channel).await.unwrap();
        let waiting = counts(None).await;
        assert_eq!((waiting.only(), waiting.total(), waiting.is_exact()), (Some("pending"), 1, true));
        world.pass().await;
        let park = "UPDATE postcommit.delivery_ledger SET state = 'parked', reason = 'rejected' WHERE notification_id = $1 AND n = 2";
        world.execute(park, vec![id.into()]).await;
        let all = counts(None).await;
        assert_eq!((all.only(), all.total()), (None, 4), "{all:?}");
        assert_eq!((all.of(&["sent"]), all.of(&["parked"]), all.of(&["sent", "parked"])), (3, 1, 4));
        let sms = counts(Some("sms")).await;
        assert_eq!((sms.only(), sms.total()), (Some("sent"), 1));
        assert_eq!(world.store.delivery_states(world.tenant + 1, id, None).await.unwrap().total(), 0);
        // The counting stops at a limit, and says so.
        let many = "UPDATE postcommit.delivery_ledger SET n = n + 100 WHERE notification_id = $1";
        world.execute(many, vec![id.into()]).await;
        let copies = if world.is_postgres() { "generate_series(1000, 11000) AS s (g)" } else {
            "(WITH RECURSIVE s (g) AS (SELECT 1000 UNION ALL SELECT g + 1 FROM s WHERE g < 11000) SELECT g FROM s) s"
        };
        let copied = format!("INSERT INTO postcommit.delivery_ledger (tenant, notification_id, n, lane, channel, target, state, attempts, seq, finished_at)
            SELECT l.tenant, l.notification_id, s.g, l.lane, l.channel, l.target, l.state, l.attempts, l.seq, l.finished_at
            FROM postcommit.delivery_ledger l, {copies} WHERE l.notification_id = $1 AND l.channel = 'sms'");
        world.execute(&copied, vec![id.into()]).await;
        let many = counts(None).await;
        assert_eq!((many.is_exact(), many.of(&["parked"]), many.total()), (false, 1, 10_001));
    }

    async fn c10_everything_for_an_entity_newest_first_with_what_is_scheduled(world) {
        world.capture(json!({"fail_on": "permanent=refused"})).await;
        let sent = world.enqueue("a", json!({"entity": "b1", "title": "Hello", "idempotency_key": "k-1"})).await;
        let later = world.enqueue("reminder", json!({"entity": "b1", "due_at": "2099-01-01T00:00:00Z"})).await;
        world.enqueue("a", json!({"entity": "b2"})).await;
        world.enqueue("a", json!({"entity": "b1", "tenant": "other"})).await;
        world.pass().await;
        let first = world.store.entity_rows(world.tenant, "b1", None, 1).await.unwrap();
        let rest = world.store.entity_rows(world.tenant, "b1", first.more, 5).await.unwrap();
        assert_eq!((first.rows.len(), rest.rows.len(), rest.more), (1, 1, None));
        let rows = [&first.rows[0], &rest.rows[0]];
        assert_eq!(rows.map(|row| row.notification_id).to_vec(), newest_first(vec![sent, later]));
        let scheduled = rows.iter().find(|row| row.notification_id == later).unwrap();
        assert_eq!((scheduled.state.as_str(), scheduled.next_attempt_at.unwrap().to_string().as_str()), ("pending", "2099-01-01T00:00:00Z"));
        let parked = world.enqueue("refused", json!({"entity": "b1"})).await;
        world.pass().await;
        let again = resend(&world, "b1", "email", None).await;
        world.pass().await;
        world.execute("UPDATE postcommit.delivery_ledger SET template = 'booking-mail' WHERE notification_id = $1", vec![sent.into()]).await;
        let rows = world.store.entity_rows(world.tenant, "b1", None, 10).await.unwrap().rows;
        assert_eq!(rows.iter().map(|row| row.notification_id).collect::<Vec<_>>(), newest_first(vec![sent, later, parked, again]));
        let row = |id: Uuid| rows.iter().find(|row| row.notification_id == id).unwrap();
        let first = row(sent);
        assert_eq!((first.channel.as_deref(), first.event_type.as_str(), first.template.as_deref()), (Some("email"), "a", Some("booking-mail")));
        assert_eq!((first.target.as_deref(), first.state.as_str(), first.attempts), (Some("g…@example.com"), "sent", 1));
        assert!(first.sent_at.is_some_and(|at| at >= first.created_at) && first.last_error.is_none());
        assert_eq!((first.idempotency_key.as_str(), first.copy_of, first.asked_by.as_deref()), ("k-1", None, None));
        let refused = row(parked);
        assert_eq!((refused.state.as_str(), refused.attempts, refused.sent_at), ("parked", 1, None));
        assert_eq!((refused.error_code.as_deref(), refused.last_error.as_deref()), (Some("capture_permanent"), Some("simulated permanent failure")));
        let copy = row(again);
        assert_eq!((copy.state.as_str(), copy.copy_of, copy.asked_by.as_deref()), ("sent", Some(sent), Some("cli:ada")));
        assert!(copy.idempotency_key.starts_with("manual:b1:email::"), "{copy:?}");
        let sql = "SELECT idempotency_key, CAST(copy_of AS text), asked_by, template FROM postcommit.delivery WHERE notification_id = $1";
        let seen = world.sql(sql, vec![again.into()]).await.remove(0);
        let text = |place| seen.get::<Option<String>>(place).unwrap();
        assert_eq!((text(0), text(1), text(2), text(3)), (Some(copy.idempotency_key.clone()), Some(sent.to_string()), Some("cli:ada".into()), None));
    }

    async fn c11_a_notification_never_sent_on_a_channel_is_sent_on_it(world) {
        world.capture(json!({})).await;
        let reached = async |id: Uuid| -> Vec<(Option<String>, Option<String>)> {
            world.pass().await;
            let rows = world.store.delivery_rows(&DeliveryFilter::of_notification(id)).await.unwrap().rows;
            rows.into_iter().map(|row| (row.channel, row.target)).collect()
        };
        let pair = |channel: &str, target: &str| (Some(channel.to_owned()), Some(target.to_owned()));
        let recipients = json!([{"email": "guest@example.com"}, {"phone": "+14155550100"}]);
        world.enqueue("a", json!({"entity": "b1", "title": "Old", "recipients": recipients})).await;
        let newest = world.enqueue("a", json!({"entity": "b1", "title": "New", "channels": ["email"], "recipients": recipients})).await;
        world.pass().await;
        let by_phone = resend(&world, "b1", "whatsapp", None).await;
        assert_eq!(reached(by_phone).await, [pair("whatsapp", "+14…00")]);
        let details = world.store.notification_details(None, by_phone).await.unwrap().unwrap();
        assert_eq!((details.notification.title.as_deref(), details.deliveries[0].copy_of), (Some("New"), Some(newest)));
        let other = resend(&world, "b1", "email", Some(Recipient::email("desk@example.org"))).await;
        assert_eq!(reached(other).await, [pair("email", "d…@example.org")], "to the recipient that is given, and to no other");
        assert_eq!(reached(resend(&world, "b1", "slack", Some(Recipient::from_json(&json!({"slack": "https://hooks.example.com/x"})).unwrap())).await).await.len(), 1);
        // An inbox needs no provider beforehand.
        assert_eq!(reached(resend(&world, "b1", "in_app", Some(Recipient::user("u-7"))).await).await[0].0.as_deref(), Some("in_app"));
        // A waiting or cancelled notification can be resent as well, because the operator asks for it.
        let scheduled = world.enqueue("reminder", json!({"entity": "b3", "body": "Soon", "due_at": "2099-01-01T00:00:00Z"})).await;
        let now = resend(&world, "b3", "email", None).await;
        assert_eq!(reached(now).await, [pair("email", "g…@example.com")]);
        assert_eq!(world.delivery(scheduled).await.state, "pending");
    }

    async fn c11_a_resend_without_a_reachable_recipient_or_content_is_refused(world) {
        world.capture(json!({})).await;
        world.enqueue("a", json!({"entity": "b1", "title": "Hello"})).await;
        world.enqueue("a", json!({"entity": "b2", "payload": {"bookingId": 1}})).await;
        let refused = async |entity: &str, channel: &str, recipient: Option<Recipient>| {
            let wish = wish(entity, channel, recipient);
            let checked = match wish.check() {
                Ok(()) => world.store.copied(world.tenant, &wish).await.map(|copied| copied.is_some()),
                Err(refusal) => Err(refusal),
            };
            checked.unwrap_err().to_string()
        };
        let problem = refused("b1", "sms", None).await;
        assert!(problem.starts_with("channel: no recipient of notification") && problem.contains("name a recipient in `recipient`"), "{problem}");
        let problem = refused("b2", "email", None).await;
        assert!(problem.starts_with("channel: notification") && problem.contains("has no content for channel \"email\""), "{problem}");
        let problem = refused("b1", "sms", Some(Recipient::email("a@example.com"))).await;
        assert!(problem.starts_with("recipient: cannot be reached on channel \"sms\""), "{problem}");
        let problem = refused("b1", "email", Some(Recipient::email("nobody"))).await;
        assert!(problem.starts_with("recipient.email: is not a mail address"), "{problem}");
        assert!(world.store.copied(world.tenant, &wish("b9", "email", None)).await.unwrap().is_none());
        let event = wish("b2", "webhook", Some(Recipient::webhook("https://example.com/")));
        assert!(world.store.copied(world.tenant, &event).await.unwrap().is_some(), "a webhook gets the event itself");
    }
}
