//! Inboxes: messages are delivered exactly once, listed with marks, and pushed immediately; on both databases.

mod live;

use postcommit::Timestamp;
use postcommit_channel::model::{DeliveryId, Finish, FinishedState};
use postcommit_engine::store::{Folder, InboxPage, Mark, Settlement, UserDraft};
use postcommit_engine::user_token::{self, TokenError};
use serde_json::json;
use uuid::Uuid;

use crate::lost::{ended, lose};
use crate::store::{claim, lease};
use crate::world::World;

impl World {
    /// Delivers a message with this title to this user.
    pub async fn deliver(&self, user: &str, title: &str) -> DeliveryId {
        let id = self.enqueue("a", json!({"recipients": [{"user": user}], "title": title})).await;
        self.pass().await;
        DeliveryId { notification: id, n: 1 }
    }

    pub async fn inbox(&self, user: &str) -> InboxPage {
        self.store.inbox(self.tenant, user, Folder::Current, None, 200).await.unwrap()
    }

    pub async fn titles(&self, user: &str, folder: Folder) -> Vec<String> {
        let page = self.store.inbox(self.tenant, user, folder, None, 200).await.unwrap();
        page.messages.into_iter().map(|message| message.title.unwrap_or_default()).collect()
    }

    pub async fn mark(&self, user: &str, id: DeliveryId, mark: Mark) -> bool {
        self.store.mark_message(self.tenant, user, id, mark).await.unwrap()
    }
}

/// The state, channel, provider and code of each delivery.
async fn rows(world: &World, id: Uuid) -> Vec<(String, String, Option<String>, Option<String>)> {
    let rows = world.deliveries(id).await;
    rows.into_iter().map(|row| (row.state, row.channel.unwrap_or_default(), row.provider, row.error_code)).collect()
}

on_both! {
    async fn b1_a_user_is_reached_in_app_by_default_without_configuration(world) {
        // The capture provider serves every channel except in_app.
        world.capture(json!({})).await;
        let more = json!({"recipients": [{"user": "alice"}], "entity": "booking:7", "title": "See you soon", "body": "At the gate", "action_url": "https://example.com/b/7",
            "data": {"in_app": {"icon": "plane"}, "sms": {"from": "x"}}});
        let id = world.enqueue("booking.confirmed", more).await;
        world.pass().await;
        assert_eq!(rows(&world, id).await, [("delivered".into(), "in_app".into(), Some("in_app".into()), None)]);
        let page = world.inbox("alice").await;
        assert_eq!((page.unread, page.position, page.messages.len()), (1, 1, 1));
        let message = serde_json::to_value(&page.messages[0]).unwrap();
        assert_eq!(message["id"], json!(format!("{id}.1")));
        for (field, value) in [("event_type", json!("booking.confirmed")), ("entity", json!("booking:7")), ("title", json!("See you soon")), ("body", json!("At the gate")),
            ("action_url", json!("https://example.com/b/7")), ("data", json!({"icon": "plane"})), ("read_at", json!(null)), ("archived_at", json!(null))] {
            assert_eq!(message[field], value, "{field}");
        }
        assert!(world.inbox("bob").await.messages.is_empty());
    }

    async fn b5_in_app_is_delivered_where_others_are_sent(world) {
        world.capture(json!({})).await;
        let id = world.enqueue("a", json!({"recipients": [{"user": "alice"}, {"email": "a@example.com"}]})).await;
        world.pass().await;
        let states: Vec<String> = world.deliveries(id).await.into_iter().map(|row| row.state).collect();
        assert_eq!(states, ["delivered", "sent"]);
        assert_eq!(world.attempts(id).await.into_iter().map(|a| a.outcome).collect::<Vec<_>>(), ["delivered", "sent"]);
    }

    async fn a_user_is_skipped_on_channels_that_it_has_no_address_for(world) {
        world.capture(json!({})).await;
        let id = world.enqueue("a", json!({"recipients": [{"user": "alice"}], "channels": ["email", "in_app", "sms"]})).await;
        world.pass().await;
        let because = |code: &'static str| move |channel: &str| ("skipped".to_owned(), channel.to_owned(), None, Some(code.to_owned()));
        let skipped = because("unknown_user");
        assert_eq!(rows(&world, id).await, [skipped("email"), ("delivered".into(), "in_app".into(), Some("in_app".into()), None), skipped("sms")]);
        world.store.create_user(world.tenant, "alice", &UserDraft::default()).await.unwrap();
        let elsewhere = world.enqueue("a", json!({"recipients": [{"user": "alice"}], "channels": ["email"]})).await;
        world.pass().await;
        assert_eq!(rows(&world, elsewhere).await, [because("no_address")("email")]);
        assert_eq!(world.count("inbox_message").await, 1);
    }

    async fn a_user_id_has_limits_and_an_invalid_one_delays_nothing(world) {
        let long = "x".repeat(256);
        let id = world.enqueue_by_sql("a", &format!("[{{\"user\": \"{long}\"}}, {{\"user\": \"alice\"}}, {{\"user\": \"a\\nb\"}}]")).await;
        world.pass().await;
        let codes: Vec<_> = rows(&world, id).await.into_iter().map(|(state, _, _, code)| (state, code)).collect();
        let bad = ("skipped".to_owned(), Some("bad_address".to_owned()));
        assert_eq!(codes, [bad.clone(), ("delivered".into(), None), bad]);
        // The notification names the provider itself, which bypasses the checks of a user's id.
        let past = world.enqueue("b", json!({"recipients": [{"provider": "in_app", "address": long}, {"provider": "in_app", "address": "bob"}]})).await;
        world.pass().await;
        let codes: Vec<_> = rows(&world, past).await.into_iter().map(|(state, _, _, code)| (state, code)).collect();
        assert_eq!(codes, [("parked".into(), Some("bad_user".into())), ("delivered".into(), None)]);
    }

    async fn a_disabled_inbox_provider_is_not_created_again(world) {
        world.make_in_app().await;
        world.make_in_app().await;
        world.execute("UPDATE postcommit.provider SET enabled = (1 = 0) WHERE name = 'in_app'", vec![]).await;
        let id = world.enqueue("a", json!({"recipients": [{"user": "alice"}]})).await;
        world.pass().await;
        assert_eq!(world.delivery(id).await.error_code.as_deref(), Some("no_provider"));
        world.execute("UPDATE postcommit.provider SET enabled = (1 = 1) WHERE name = 'in_app'", vec![]).await;
        assert!(world.store.retry(world.key(id, 1)).await.unwrap());
        world.pass().await;
        assert_eq!(world.delivery(id).await.state, "delivered");
        let taken = world.draft("in_app", "capture", json!({}));
        let other = world.store.tenant_or_new("other").await.unwrap();
        world.store.create_provider(other, &taken).await.unwrap();
        let id = world.enqueue("a", json!({"tenant": "other", "recipients": [{"user": "alice"}]})).await;
        world.pass().await;
        assert_eq!(world.delivery(id).await.error_code.as_deref(), Some("no_provider"), "the other provider keeps its name, and expansion does not loop");
    }

    async fn b15_a_user_s_messages_are_listed_newest_first_with_marks(world) {
        let mut ids = Vec::new();
        for title in ["one", "two", "three"] {
            ids.push(world.deliver("alice", title).await);
        }
        world.deliver("bob", "his").await;
        assert_eq!(world.titles("alice", Folder::Current).await, ["three", "two", "one"]);
        assert_eq!(world.titles("bob", Folder::Current).await, ["his"]);

        assert!(world.mark("alice", ids[1], Mark::Read).await);
        let read_at = world.inbox("alice").await.messages[1].read_at;
        assert!(read_at.is_some());
        let position = world.inbox("alice").await.position;
        assert!(world.mark("alice", ids[1], Mark::Read).await, "once more is fine");
        assert_eq!((world.inbox("alice").await.messages[1].read_at, world.inbox("alice").await.position), (read_at, position), "and changes nothing");
        assert_eq!(world.titles("alice", Folder::Unread).await, ["three", "one"]);
        assert_eq!(world.store.inbox_unread(world.tenant, "alice").await.unwrap(), 2);

        assert!(world.mark("alice", ids[2], Mark::Archive).await);
        assert_eq!(world.titles("alice", Folder::Current).await, ["two", "one"]);
        assert_eq!(world.titles("alice", Folder::Archived).await, ["three"]);
        assert_eq!(world.inbox("alice").await.unread, 1, "what is archived does not wait to be read");
        assert!(world.mark("alice", ids[2], Mark::Unarchive).await);
        assert!(world.mark("alice", ids[1], Mark::Unread).await);
        assert_eq!((world.titles("alice", Folder::Current).await, world.inbox("alice").await.unread), (vec!["three".into(), "two".into(), "one".into()], 3));

        assert!(!world.mark("bob", ids[0], Mark::Read).await, "it is not his");
        assert!(!world.mark("alice", DeliveryId { notification: ids[0].notification, n: 2 }, Mark::Read).await);
        assert!(!world.store.mark_message(world.tenant + 1, "alice", ids[0], Mark::Read).await.unwrap());
        assert_eq!(world.store.inbox(world.tenant + 1, "alice", Folder::Current, None, 10).await.unwrap().position, 0);
        assert_eq!(world.inbox("alice").await.unread, 3);
    }

    async fn pages_of_an_inbox_follow_each_other_while_messages_come(world) {
        for title in ["1", "2", "3", "4", "5"] {
            world.deliver("alice", title).await;
        }
        let mut seen = Vec::new();
        let mut before = None;
        loop {
            let page = world.store.inbox(world.tenant, "alice", Folder::Current, before, 2).await.unwrap();
            let Some(last) = page.messages.last() else { break };
            before = Some(last.position);
            seen.extend(page.messages.into_iter().filter_map(|message| message.title));
            world.deliver("alice", "meanwhile").await;
        }
        assert_eq!(seen, ["5", "4", "3", "2", "1"]);
    }

    async fn marking_all_as_read_does_not_mark_later_messages(world) {
        for title in ["one", "two"] {
            world.deliver("alice", title).await;
        }
        world.deliver("bob", "his").await;
        let seen = world.inbox("alice").await;
        let late = world.deliver("alice", "late").await;
        assert_eq!(world.store.mark_all_read(world.tenant, "alice", seen.position).await.unwrap(), 2);
        assert_eq!(world.titles("alice", Folder::Unread).await, ["late"]);
        assert_eq!(world.inbox("bob").await.unread, 1);
        let position = world.inbox("alice").await.position;
        assert_eq!(world.store.mark_all_read(world.tenant, "alice", seen.position).await.unwrap(), 0);
        assert_eq!(world.inbox("alice").await.position, position, "nothing happened");
        world.mark("alice", late, Mark::Archive).await;
        assert_eq!(world.store.mark_all_read(world.tenant, "alice", i64::MAX).await.unwrap(), 0, "what is archived is left alone");
    }

    async fn an_expired_message_is_neither_listed_nor_counted(world) {
        world.deliver("alice", "stays").await;
        let id = world.deliver("alice", "goes").await;
        let past: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let sql = "UPDATE postcommit.inbox_message SET expires_at = $1 WHERE notification_id = $2";
        world.execute(sql, vec![past.into(), id.notification.into()]).await;
        assert_eq!((world.titles("alice", Folder::Current).await, world.inbox("alice").await.unread), (vec!["stays".into()], 1));
        assert_eq!(world.store.inbox_changes(world.tenant, "alice", 0).await.unwrap().changes.unwrap().len(), 1);
    }

    async fn a_repeated_delivery_leaves_one_message(world) {
        world.make_in_app().await;
        // The worker died after the claim: the row is taken over, and its attempt is repeated.
        let lost = lose(&world, json!({"recipients": [{"user": "alice"}], "title": "once"})).await;
        world.pass().await;
        world.pass().await;
        let id = lost.key.notification;
        assert_eq!(world.delivery(id).await.state, "delivered");
        assert_eq!(world.attempts(id).await.into_iter().map(|a| a.outcome).collect::<Vec<_>>(), ["deferred", "delivered"]);
        // The same case with an expanded notification.
        let both = world.enqueue("a", json!({"recipients": [{"user": "alice"}, {"user": "bob"}], "title": "both"})).await;
        world.store.pause_lane(in_app(&world).await, None, "to be expanded first").await.unwrap();
        world.pass().await;
        world.store.resume_lane(in_app(&world).await).await.unwrap();
        assert_eq!(claim(&world.store, in_app(&world).await, 2).await.len(), 2);
        world.expire_leases().await;
        world.pass().await;
        world.pass().await;
        let rows = world.deliveries(both).await;
        assert_eq!(rows.into_iter().map(|row| (row.state, row.unclear)).collect::<Vec<_>>(), [("delivered".into(), false), ("delivered".into(), false)]);
        assert_eq!((world.titles("alice", Folder::Current).await, world.titles("bob", Folder::Current).await), (vec!["both".into(), "once".into()], vec!["both".into()]));
    }

    async fn an_unsettled_inbox_message_did_not_arrive_unless_another_provider_sent_it(world) {
        world.make_in_app().await;
        let lost = lose(&world, json!({"recipients": [{"user": "alice"}], "title": "once"})).await;
        world.pass().await;
        world.pass().await;
        assert_eq!(ended(&world, lost.key.notification).await, (1, "delivered".into(), None, false));
        // Another provider has just been created, and the notification may have been sent over it.
        let lost = lose(&world, json!({"recipients": [{"user": "alice"}], "title": "twice", "idempotency_key": "k2"})).await;
        world.capture(json!({})).await;
        world.pass().await;
        world.pass().await;
        assert_eq!(ended(&world, lost.key.notification).await, (1, "delivered".into(), None, true));
        assert_eq!(world.titles("alice", Folder::Current).await, ["twice", "once"]);
    }

    async fn a_result_that_comes_too_late_leaves_no_message(world) {
        world.make_in_app().await;
        let frozen = lose(&world, json!({"recipients": [{"user": "alice"}], "title": "once"})).await;
        let late = delivered(&world, &frozen, "alice");
        let other = claim(&world.store, -world.tenant, 1).await.remove(0);
        let settled = world.store.settle(vec![late.clone()]).await.unwrap();
        assert_eq!((settled.stale.len(), world.count("inbox_message").await, world.count("inbox").await), (1, 0, 0));
        world.store.settle(vec![delivered(&world, &other, "alice")]).await.unwrap();
        world.store.settle(vec![late]).await.unwrap();
        assert_eq!(world.titles("alice", Folder::Current).await, ["once"]);
        // An operator puts the delivery back by hand: the message exists already and stays unchanged, including its
        // read mark.
        world.store.mark_all_read(world.tenant, "alice", i64::MAX).await.unwrap();
        world.execute("INSERT INTO postcommit.delivery_queue (tenant, notification_id, n, lane, priority, due_at, channel, target) \
            SELECT tenant, notification_id, n, lane, 5, {now}, channel, target \
            FROM postcommit.delivery_ledger", vec![]).await;
        world.execute("DELETE FROM postcommit.delivery_ledger", vec![]).await;
        world.execute("DELETE FROM postcommit.logged_attempt", vec![]).await;
        world.pass().await;
        assert_eq!((world.count("delivery_ledger").await, world.count("inbox_message").await, world.inbox("alice").await.unread), (1, 1, 0));
    }

    async fn concurrent_messages_are_numbered_without_gaps_for_each_user(world) {
        world.make_in_app().await;
        let users: Vec<_> = (0..40).map(|i| json!({"user": format!("user-{}", i % 4)})).collect();
        for (title, user) in users.iter().enumerate() {
            world.enqueue("a", json!({"recipients": [user], "title": title.to_string()})).await;
        }
        world.pass().await;
        for user in 0..4 {
            let page = world.inbox(&format!("user-{user}")).await;
            assert_eq!(page.messages.iter().map(|m| m.position).collect::<Vec<_>>(), (1..=10).rev().collect::<Vec<i64>>());
            assert_eq!((page.position, page.unread), (10, 10));
        }
    }

    async fn c15_a_store_of_one_tenant_reads_and_marks_its_inboxes_and_no_other_tenant_s(world) {
        let id = world.deliver("alice", "ours").await;
        let other = world.store.tenant_or_new("other").await.unwrap();
        let (ours, theirs) = (world.store.of_tenant(world.tenant), world.store.of_tenant(other));
        world.store.watch_inboxes(Uuid::new_v4(), 60.0).await.unwrap();
        assert_eq!(ours.inbox(world.tenant, "alice", Folder::Current, None, 10).await.unwrap().messages.len(), 1);
        assert!(ours.mark_message(world.tenant, "alice", id, Mark::Read).await.unwrap());
        assert_eq!(ours.inbox_changes(world.tenant, "alice", 1).await.unwrap().changes.unwrap().len(), 1);
        let minted = user_token::mint(&ours, world.tenant, "alice", user_token::DEFAULT_TTL).await.unwrap();
        assert_eq!(user_token::verify(&world.store, &minted.token).await.unwrap().tenant, world.tenant);
        if world.is_postgres() {
            // Row-level security also hides the inbox when a query asks for another tenant's number.
            assert!(theirs.inbox(world.tenant, "alice", Folder::Current, None, 10).await.unwrap().messages.is_empty());
            assert!(!theirs.mark_message(world.tenant, "alice", id, Mark::Unread).await.unwrap());
            assert!(theirs.inbox_token_key(world.tenant).await.unwrap().is_none());
        }
        assert!(theirs.inbox(other, "alice", Folder::Current, None, 10).await.unwrap().messages.is_empty());
    }

    async fn user_tokens_open_one_user_s_inbox_until_they_expire_or_are_revoked(world) {
        let hour = user_token::DEFAULT_TTL;
        let minted = user_token::mint(&world.store, world.tenant, "alice", hour).await.unwrap();
        let bearer = user_token::verify(&world.store, &minted.token).await.unwrap();
        assert_eq!((bearer.tenant, bearer.user.as_str(), bearer.expires_at), (world.tenant, "alice", minted.expires_at));
        let refused = |result: Result<user_token::UserToken, TokenError>| result.unwrap_err().to_string();
        assert_eq!(refused(user_token::mint(&world.store, world.tenant, "alice", hour * 25).await), "ttl_s: is 90000; 1 to 86400 are allowed");
        assert_eq!(refused(user_token::mint(&world.store, world.tenant, "", hour).await), "user: has 0 bytes; 1 to 2048 are allowed");
        // Another tenant's key does not open the inbox, nor does a missing key.
        let other = world.store.tenant_or_new("other").await.unwrap();
        user_token::mint(&world.store, other, "alice", hour).await.unwrap();
        world.execute("DELETE FROM postcommit.inbox_token_key WHERE tenant = $1", vec![world.tenant.into()]).await;
        assert!(matches!(user_token::verify(&world.store, &minted.token).await, Err(TokenError::Bad)));
        world.execute("UPDATE postcommit.inbox_token_key SET tenant = $1", vec![world.tenant.into()]).await;
        assert!(matches!(user_token::verify(&world.store, &minted.token).await, Err(TokenError::Bad)));
    }
}

async fn in_app(world: &World) -> i32 {
    world.store.provider(world.tenant, "in_app").await.unwrap().unwrap().id
}

/// Builds the settlement of a worker that delivered the message from its notification's row.
fn delivered(world: &World, held: &postcommit_channel::model::Delivery, user: &str) -> Settlement {
    let message = postcommit_channel::model::InboxMessage {
        user: user.into(),
        event_type: "a".into(),
        entity: None,
        title: Some("once".into()),
        body: None,
        action_url: None,
        data: None,
        expires_at: Timestamp::from_micros(4_000_000_000_000_000),
    };
    let place = postcommit_engine::store::Place {
        n: 1,
        lane: world.tenant,
        facts: postcommit_channel::model::Facts::new("in_app", user),
    };
    let finish = Finish::Ended(FinishedState::Delivered);
    Settlement { message: Some(Box::new(message)), place: Some(place), ..Settlement::unbegun(lease(held), finish) }
}
