//! Recipients: users and their addresses, languages and preferences; lists; suppressions.

use postcommit::Timestamp;
use postcommit_channel::model::ProviderDraft;
use postcommit_engine::store::{DeliveryFilter, NotificationFilter, Resend};
use serde_json::json;

use super::outcome;

on_both! {
    async fn b10_a_users_addresses_language_and_preferences_are_looked_up_when_sending(world) {
        world.capture(json!({})).await;
        for (id, language, text) in [("en", "en", "Hello {{user.name}}"), ("pt", "pt", "Ola {{user.name}}"), ("any", "", "Hi")] {
            world.write_template(&format!("mail-{id}"), "email", json!({"language": language, "text": text})).await;
        }
        world.write_template("sms", "sms", json!({"text": "SMS"})).await;
        world.user("ana", &[("email", "old@example.com"), ("phone", "+5511999990000")], json!({"name": "Ana", "language": "pt-BR"})).await;
        let id = world.book("1", json!({"recipients": [{"user": "ana"}]})).await;
        world.execute("UPDATE postcommit.user_address SET address = 'ana@example.com' WHERE kind = 'email'", vec![]).await;
        world.pass().await;
        let captured = world.captured(id).await;
        assert_eq!(captured[&("email".to_owned(), "ana@example.com".to_owned())]["body"], "Ola Ana");
        assert!(captured.contains_key(&("sms".into(), "+5511999990000".into())));
        let row = world.deliveries(id).await.remove(0);
        assert_eq!((row.user_id.as_deref(), row.language.as_deref(), row.template.as_deref()), (Some("ana"), Some("pt"), Some("mail-pt")));

        world.prefer("ana", "booking.confirmed", "sms", false).await;
        let again = world.book("2", json!({"recipients": [{"user": "ana"}]})).await;
        world.pass().await;
        assert_eq!(world.outcomes(again).await, [outcome("email", "sent", ""), outcome("sms", "skipped", "opted_out")]);

        let sql = "INSERT INTO postcommit.event_type (tenant, name, mandatory, created_at, updated_at)
            VALUES ($1, 'booking.confirmed', (1 = 1), {now}, {now})";
        world.execute(sql, vec![world.tenant.into()]).await;
        world.suppress("email", "ana@example.com").await;
        let mandatory = world.book("3", json!({"recipients": [{"user": "ana"}]})).await;
        world.pass().await;
        assert_eq!(world.outcomes(mandatory).await, [outcome("email", "skipped", "suppressed"), outcome("sms", "sent", "")],
            "a mandatory event type ignores preferences, not suppressions");
    }

    async fn b4_deliveries_of_a_user_are_found_by_the_user_and_by_the_address(world) {
        world.capture(json!({})).await;
        world.write_template("mail", "email", json!({"text": "Hello"})).await;
        world.write_template("sms", "sms", json!({"text": "Hello"})).await;
        world.user("ana", &[("email", "ana@example.com")], json!({})).await;
        world.user("bob", &[("email", "bob@example.com")], json!({})).await;
        world.list("desk", &[("user", "ana", ""), ("user", "bob", "")]).await;
        let ended = world.book("1", json!({"recipients": [{"list": "desk"}]})).await;
        world.pass().await;
        let waiting = world.book("2", json!({"recipients": [{"user": "ana"}], "due_at": "2099-01-01T00:00:00Z"})).await;
        let own = Some(world.tenant);
        for limit in [1, 50] {
            for (recipient, states) in [
                ("ana", &["pending", "sent", "skipped"][..]),
                ("ana@example.com", &["sent"][..]),
                ("bob", &["sent", "skipped"][..]),
                ("an", &[][..]),
            ] {
                let mut filter = DeliveryFilter { recipient: Some(recipient.into()), tenant: own, limit, ..DeliveryFilter::default() };
                let mut found = vec![];
                loop {
                    let page = world.store.delivery_rows(&filter).await.unwrap();
                    found.extend(page.rows.into_iter().map(|row| row.state));
                    filter.before = page.more;
                    if filter.before.is_none() {
                        break;
                    }
                }
                found.sort();
                assert_eq!(found, states, "{recipient} with limit {limit}");
            }
        }
        for (recipient, expected) in [("ana", vec![waiting, ended]), ("bob", vec![ended]), ("an", vec![])] {
            let filter = NotificationFilter { recipient: Some(recipient.into()), tenant: own, limit: 50, ..NotificationFilter::default() };
            let found: Vec<_> = world.store.notification_rows(&filter).await.unwrap().rows.into_iter().map(|row| row.id).collect();
            assert_eq!(found, expected, "{recipient}");
        }
    }

    async fn b10_the_context_of_a_user_is_fixed_at_expansion(world) {
        world.capture(json!({"fail_on": "transient*1=booking.confirmed"})).await;
        world.write_template("mail", "email", json!({"text": "{{user.name}}, {{user.data.tier}}, {{user.id}}"})).await;
        world.user("ana", &[("email", "ana@example.com")], json!({"name": "Ana", "data": {"tier": "gold"}})).await;
        let id = world.book("1", json!({"recipients": [{"user": "ana"}]})).await;
        world.pass().await;
        world.execute("UPDATE postcommit.user_profile SET name = 'Other'", vec![]).await;
        world.execute("UPDATE postcommit.user_address SET address = 'other@example.com'", vec![]).await;
        world.make_due().await;
        world.pass().await;
        assert_eq!(world.captured(id).await[&("email".to_owned(), "ana@example.com".to_owned())]["body"], "Ana, gold, ana");
    }

    async fn c7_a_user_without_addresses_is_skipped_with_the_reason(world) {
        world.capture(json!({})).await;
        world.booking_templates("notification").await;
        world.user("nobody", &[], json!({})).await;
        let id = world.book("1", json!({"recipients": [{"user": "nobody"}, {"user": "stranger"}, {"email": "a@example.com"}]})).await;
        world.pass().await;
        let channels = ["email", "sms", "whatsapp"];
        let mut expected = channels.map(|on| outcome(on, "skipped", "no_address")).to_vec();
        expected.extend(channels.map(|on| outcome(on, "skipped", "unknown_user")));
        expected.push(outcome("email", "sent", ""));
        assert_eq!(world.outcomes(id).await, expected);
        let said = world.deliveries(id).await[3].last_error.clone();
        let why = "recipients[1].user \"stranger\" does not exist; create the user, then enqueue a notification for this user";
        assert_eq!(said.as_deref(), Some(why));
    }

    async fn c4_a_notification_to_an_unknown_user_parks_and_a_retry_finds_the_user(world) {
        world.capture(json!({})).await;
        world.prefer("carla", "*", "sms", false).await;
        world.list("crew", &[("user", "carla", ""), ("user", "stranger", "")]).await;
        let to = |entry: serde_json::Value| json!({"title": "Up", "recipients": [entry], "channels": ["email"]});
        let user = world.enqueue("a", to(json!({"user": "stranger"}))).await;
        let list = world.enqueue("a", to(json!({"list": "crew"}))).await;
        world.write_template("mail", "email", json!({"text": "Hello"})).await;
        let event = world.book("1", json!({"recipients": [{"user": "stranger"}]})).await;
        world.pass().await;
        for id in [user, list, event] {
            assert_eq!(world.outcomes(id).await, [outcome("", "parked", "unknown_user")]);
        }
        let said = world.delivery(user).await;
        assert_eq!((said.last_error.as_deref(), said.error_class.as_deref()),
            (Some("user \"stranger\" does not exist; create the user, then retry"), Some("invalid_address")));
        assert_eq!(world.delivery(list).await.last_error.unwrap(), "users \"carla\", \"stranger\" do not exist; create the users, then retry",
            "preferences alone make no user");
        world.user("stranger", &[("email", "new@example.com")], json!({})).await;
        for id in [user, list, event] {
            assert!(world.store.retry(world.key(id, 0)).await.unwrap());
        }
        world.pass().await;
        assert_eq!(world.outcomes(user).await, [outcome("email", "sent", "")]);
        assert_eq!(world.outcomes(list).await, [outcome("email", "skipped", "unknown_user"), outcome("email", "sent", "")]);
        assert_eq!(world.outcomes(event).await, [outcome("email", "sent", "")]);
    }

    async fn e4_a_member_on_a_channel_that_is_not_asked_for_is_skipped_for_that_reason(world) {
        world.capture(json!({})).await;
        world.list("desk", &[("phone", "+14155550100", "whatsapp"), ("phone", "+14155550101", "")]).await;
        let mut expected = vec![outcome("sms", "sent", ""), outcome("whatsapp", "skipped", "not_on_channels")];
        let to_desk = json!({"title": "Up", "recipients": [{"list": "desk"}], "channels": ["sms"]});
        let direct = world.enqueue("alert", to_desk.clone()).await;
        world.booking_templates("notification").await;
        let event = world.book("1", to_desk).await;
        world.pass().await;
        for id in [direct, event] {
            let mut found = world.outcomes(id).await;
            found.sort();
            assert_eq!(found, expected);
            let skipped = world.deliveries(id).await.into_iter().find(|row| row.state == "skipped").unwrap();
            let why = "list \"desk\": the phone is reached on whatsapp, and the notification asks for sms";
            assert_eq!(skipped.last_error.as_deref(), Some(why));
        }
        // Without a template for its channel, that is the reason.
        world.execute("UPDATE postcommit.template SET active = (1 = 0) WHERE channel = 'whatsapp'", vec![]).await;
        let bare = world.book("2", json!({"recipients": [{"list": "desk"}]})).await;
        // Without any other member, the notification waits for somebody who mends the list or the notification.
        world.list("chat", &[("phone", "+14155550100", "whatsapp")]).await;
        let nobody = world.book("3", json!({"recipients": [{"list": "chat"}], "channels": ["sms"]})).await;
        let mail = world.book("4", json!({"recipients": [{"email": "a@example.com"}, {"phone": "+14155550100"}], "channels": ["sms"]})).await;
        world.pass().await;
        expected[1] = outcome("whatsapp", "skipped", "template_not_found");
        let mut found = world.outcomes(bare).await;
        found.sort();
        assert_eq!(found, expected);
        assert_eq!(world.outcomes(nobody).await, [outcome("", "parked", "no_recipient")]);
        assert_eq!(world.delivery(nobody).await.last_error.unwrap(),
            "no recipient can be reached: list \"chat\": the phone is reached on whatsapp, and the notification asks for sms");
        assert_eq!(world.outcomes(mail).await, [outcome("sms", "sent", ""), outcome("email", "skipped", "not_on_channels")]);
    }

    async fn e4_a_list_is_resolved_when_sending_and_its_recipients_are_recorded(world) {
        world.capture(json!({})).await;
        world.user("ana", &[("email", "ana@example.com")], json!({})).await;
        world.list("crew", &[("user", "ana", ""), ("email", "Bob@example.com", ""), ("phone", "+14155550100", "whatsapp")]).await;
        world.list("inner", &[("email", "carla@example.com", ""), ("email", "bob@example.com", "")]).await;
        let id = world.enqueue("alert", json!({"title": "Up", "recipients": [{"list": "crew"}], "channels": ["email", "whatsapp", "sms"]})).await;
        world.list("crew", &[("list", "inner", "")]).await;
        world.pass().await;
        let mut rows: Vec<_> = world.deliveries(id).await.into_iter().map(|row| {
            (row.channel.unwrap(), row.state, row.error_code.unwrap_or_default(), row.user_id.unwrap_or_default())
        }).collect();
        rows.sort();
        let row = |channel: &str, state: &str, code: &str, user: &str| (channel.to_owned(), state.to_owned(), code.to_owned(), user.to_owned());
        assert_eq!(rows, [
            row("email", "sent", "", ""), row("email", "sent", "", ""), row("email", "sent", "", "ana"),
            row("email", "skipped", "duplicate", ""), row("sms", "skipped", "no_address", "ana"),
            row("whatsapp", "sent", "", ""), row("whatsapp", "skipped", "no_address", "ana"),
        ]);
        world.execute("DELETE FROM postcommit.list_member WHERE member <> 'ana'", vec![]).await;
        let next = world.enqueue("alert", json!({"title": "Up", "recipients": [{"list": "crew"}], "channels": ["email"]})).await;
        world.pass().await;
        assert_eq!(world.delivery(next).await.user_id.as_deref(), Some("ana"));
        assert_eq!(world.deliveries(id).await.len(), 7, "what was sent stays recorded");
    }

    async fn e4_an_empty_or_missing_list_parks_and_a_retry_finds_its_members(world) {
        world.capture(json!({})).await;
        world.list("empty", &[]).await;
        let to = |name: &str| json!({"title": "Up", "recipients": [{"list": name}]});
        let (missing, empty) = (world.enqueue("a", to("missing")).await, world.enqueue("a", to("empty")).await);
        world.pass().await;
        assert_eq!(world.outcomes(missing).await, [outcome("", "parked", "unknown_list")]);
        assert_eq!(world.outcomes(empty).await, [outcome("", "parked", "no_recipient")]);
        world.list("missing", &[("email", "a@example.com", "")]).await;
        assert!(world.store.retry(world.key(missing, 0)).await.unwrap());
        world.pass().await;
        assert_eq!(world.outcomes(missing).await, [outcome("email", "sent", "")]);
    }

    async fn a_list_with_users_reaches_inboxes_even_if_the_tenant_had_no_provider_for_them(world) {
        world.list("crew", &[("user", "ana", "")]).await;
        let id = world.enqueue("a", json!({"title": "Up", "recipients": [{"list": "crew"}]})).await;
        world.pass().await;
        assert_eq!(world.outcomes(id).await, [outcome("in_app", "delivered", "")]);
    }

    async fn direct_messages_of_a_tenant_with_suppressions_and_preferences_are_looked_up(world) {
        world.capture(json!({})).await;
        let before = world.enqueue("a", json!({"recipients": [{"email": "Guest@example.com"}]})).await;
        world.pass().await;
        world.suppress("*", "guest@example.com").await;
        world.prefer("ana", "*", "*", false).await;
        let mail = world.enqueue("a", json!({"recipients": [{"email": "Guest@example.com"}]})).await;
        let inbox = world.enqueue("a", json!({"title": "x", "recipients": [{"user": "ana"}]})).await;
        let other = world.enqueue("a", json!({"recipients": [{"email": "other@example.com"}]})).await;
        world.pass().await;
        assert_eq!(world.outcomes(before).await, [outcome("email", "sent", "")]);
        assert_eq!(world.outcomes(mail).await, [outcome("email", "skipped", "suppressed")]);
        assert_eq!(world.outcomes(inbox).await, [outcome("in_app", "skipped", "opted_out")]);
        assert_eq!(world.outcomes(other).await, [outcome("email", "sent", "")]);
        let sql = "UPDATE postcommit.suppression SET until = $1";
        world.execute(sql, vec![Timestamp::from_micros(1_000_000).into()]).await;
        let after = world.enqueue("a", json!({"recipients": [{"email": "guest@example.com"}]})).await;
        world.pass().await;
        assert_eq!(world.outcomes(after).await, [outcome("email", "sent", "")]);
    }

    async fn a_lost_message_to_a_suppressed_address_is_not_sent_and_says_that_it_may_have_been(world) {
        world.capture(json!({})).await;
        let id = world.enqueue("a", json!({"recipients": [{"email": "guest@example.com"}]})).await;
        world.claim_and_lose().await;
        world.suppress("email", "guest@example.com").await;
        world.pass().await;
        let row = world.delivery(id).await;
        assert_eq!((row.state.as_str(), row.error_code.as_deref(), row.unclear), ("skipped", Some("suppressed"), true));
    }

    async fn a_tenant_never_reaches_the_users_lists_and_templates_of_another(world) {
        world.capture(json!({})).await;
        world.write_template("sms", "sms", json!({"text": "Of the default tenant"})).await;
        world.list("crew", &[("email", "a@example.com", "")]).await;
        world.user("ana", &[("email", "ana@example.com")], json!({})).await;
        let other = json!({"tenant": "other", "title": "x", "recipients": [{"list": "crew"}]});
        let list = world.enqueue("a", other).await;
        let user = world.enqueue("a", json!({"tenant": "other", "title": "x", "recipients": [{"user": "ana"}], "channels": ["email"]})).await;
        let event = world.book("1", json!({"tenant": "other"})).await;
        world.pass().await;
        assert_eq!(world.outcomes(list).await, [outcome("", "parked", "unknown_list")]);
        assert_eq!(world.outcomes(user).await, [outcome("", "parked", "unknown_user")]);
        assert_eq!(world.outcomes(event).await, [outcome("", "parked", "no_recipient")]);
    }

    async fn an_address_of_a_template_on_a_channel_of_a_provider_goes_by_the_channel(world) {
        // One provider has the channel, another one only its name.
        let named = |name: &str, channel: &str| ProviderDraft { channel: channel.into(), ..world.draft(name, "capture", json!({})) };
        world.provider(named("pager", "email")).await;
        world.provider(named("oncall", "pager")).await;
        world.write_template("page", "pager", json!({"to": "desk-{{listingId}}", "text": "Room {{bookingId}}"})).await;
        let id = world.book("1", json!({})).await;
        world.pass().await;
        let row = world.delivery(id).await;
        assert_eq!((row.state.as_str(), row.provider.as_deref()), ("sent", Some("oncall")), "{row:?}");
        assert_eq!(world.captured(id).await[&("pager".to_owned(), "desk-10".to_owned())]["body"], "Room 12345");

        // A copy of what was sent takes the same way.
        let wish = Resend { entity: "1".into(), channel: "pager".into(), event_type: None, template: None, recipient: None, of: None, request_id: "r1".into() };
        let copied = world.store.copied(world.tenant, &wish).await.unwrap().unwrap();
        let copy = world.store.resend(world.tenant, &wish, copied).await.unwrap().id;
        world.pass().await;
        assert_eq!(world.delivery(copy).await.provider.as_deref(), Some("oncall"));
        assert!(world.captured(copy).await.contains_key(&("pager".into(), "desk-10".into())));

        // So does a delivery that was parked without the provider.
        world.update(&ProviderDraft { enabled: false, ..named("oncall", "pager") }).await;
        let late = world.book("2", json!({})).await;
        world.pass().await;
        assert_eq!(world.outcomes(late).await, [outcome("pager", "parked", "no_provider")]);
        world.update(&named("oncall", "pager")).await;
        assert!(world.store.retry(world.key(late, 1)).await.unwrap());
        world.pass().await;
        assert_eq!(world.delivery(late).await.provider.as_deref(), Some("oncall"));
    }
}
