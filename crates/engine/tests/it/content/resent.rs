//! Resends of messages that templates rendered, and the deliveries of one entity.

use postcommit::Recipient;
use postcommit_channel::model::Actor;
use postcommit_engine::store::{NotAccepted, Original, Resend};
use serde_json::json;
use uuid::Uuid;

use super::{booking, outcome};
use crate::world::World;

fn wish(channel: &str, template: Option<&str>, recipient: Option<Recipient>) -> Resend {
    Resend {
        entity: "12345".into(),
        channel: channel.into(),
        event_type: None,
        template: template.map(str::to_owned),
        recipient,
        of: None,
        request_id: Uuid::now_v7().to_string(),
    }
}

async fn resend(world: &World, wish: &Resend) -> Result<Uuid, NotAccepted> {
    let store = world.store.by(Actor::new("cli:ada"));
    let copied = store.copied(world.tenant, wish).await?.unwrap();
    Ok(store.resend(world.tenant, wish, copied).await?.id)
}

on_both! {
    async fn c11_a_resend_is_a_row_of_its_own_and_never_a_duplicate(world) {
        world.capture(json!({})).await;
        world.booking_templates("entity").await;
        let first = world.book("12345", json!({})).await;
        world.pass().await;
        world.write_template("sms-confirmed", "sms", json!({"text": "Newer text"})).await;
        let sms = wish("sms", None, None);
        let copy = resend(&world, &sms).await.unwrap();
        world.pass().await;
        let to = ("sms".to_owned(), "+919876543210".to_owned());
        assert_eq!(world.captured(copy).await[&to]["body"], world.captured(first).await[&to]["body"], "the copy of what was sent");
        let row = world.delivery(copy).await;
        assert_eq!((row.template_version, row.copy_of, row.asked_by.as_deref()), (Some(1), Some(first), Some("cli:ada")));
        assert_eq!(row.send_key, Some(format!("manual:12345:sms::{}", sms.request_id)));
        assert_eq!(world.outcomes(first).await.len(), 3, "the original is untouched");
        let rows = world.store.entity_rows(world.tenant, "12345", None, 50).await.unwrap().rows;
        assert_eq!(rows.len(), 4);
        assert_eq!(rows[0].notification_id, copy, "newest first");
    }

    async fn c11_a_resend_of_a_named_notification_copies_that_one_to_the_chosen_recipients(world) {
        world.capture(json!({})).await;
        let direct = async |title: &str, to: &[&str]| {
            let to: Vec<_> = to.iter().map(|email| json!({"email": email})).collect();
            world.book("12345", json!({"title": title, "recipients": to, "channels": ["email"]})).await
        };
        let older = direct("Older", &["a@example.com", "b@example.com"]).await;
        direct("Newer", &["c@example.com"]).await;
        world.pass().await;
        let of = |notification, n| Resend { of: Some(Original { notification, n }), ..wish("email", None, None) };
        let titles = async |copy| {
            let sent = world.captured(copy).await;
            sent.iter().map(|((_, to), message)| format!("{} {to}", message["title"].as_str().unwrap())).collect::<Vec<_>>()
        };
        let (one, all) = (resend(&world, &of(older, Some(2))).await.unwrap(), resend(&world, &of(older, None)).await.unwrap());
        world.pass().await;
        assert_eq!(titles(one).await, ["Older b@example.com"]);
        assert_eq!(titles(all).await, ["Older a@example.com", "Older b@example.com"]);
        assert_eq!(world.delivery(one).await.copy_of, Some(older));
        let missing = world.store.copied(world.tenant, &of(older, Some(9))).await.unwrap_err().to_string();
        assert!(missing.contains("no recipient"), "{missing}");
        let other = world.book("67890", json!({"title": "Other"})).await;
        assert!(world.store.copied(world.tenant, &of(other, None)).await.unwrap().is_none(), "it is about another entity");
    }

    async fn c11_with_a_template_its_current_text_is_sent_with_the_newest_event(world) {
        world.capture(json!({})).await;
        world.booking_templates("entity").await;
        world.book("12345", json!({})).await;
        world.pass().await;
        let mut newer = booking();
        newer["guestName"] = json!("Bina");
        world.book("12345", json!({"payload": newer})).await;
        world.enqueue("note.added", json!({"entity": "12345"})).await;
        world.pass().await;
        world.write_template("sms-confirmed", "sms", json!({"text": "Dear {{guestName}}"})).await;
        let by_template = wish("sms", Some("sms-confirmed"), None);
        let copy = resend(&world, &by_template).await.unwrap();
        // A version that is saved later is not used.
        world.write_template("sms-confirmed", "sms", json!({"text": "Too late"})).await;
        world.pass().await;
        let to = ("sms".to_owned(), "+919876543210".to_owned());
        assert_eq!(world.captured(copy).await[&to]["body"], "Dear Bina");
        let key = world.delivery(copy).await.send_key;
        assert_eq!(key, Some(format!("manual:12345:sms:sms-confirmed:{}", by_template.request_id)));
    }

    async fn c11_it_works_on_a_channel_never_sent_before(world) {
        world.capture(json!({})).await;
        world.write_template("sms", "sms", json!({"text": "SMS for {{guestName}}"})).await;
        world.book("12345", json!({})).await;
        world.pass().await;
        world.write_template("mail", "email", json!({"text": "Mail for {{guestName}}"})).await;
        let unnamed = resend(&world, &wish("email", None, None)).await.unwrap();
        let named = resend(&world, &wish("email", Some("mail"), Some(Recipient::email("other@example.com")))).await.unwrap();
        world.pass().await;
        assert_eq!(world.captured(unnamed).await[&("email".to_owned(), "guest@example.com".to_owned())]["body"], "Mail for Asha");
        assert_eq!(world.captured(named).await[&("email".to_owned(), "other@example.com".to_owned())]["body"], "Mail for Asha");
    }

    async fn c11_the_copy_of_a_direct_message_stays_one(world) {
        world.capture(json!({})).await;
        world.book("12345", json!({"title": "Direct", "recipients": [{"email": "a@example.com"}]})).await;
        world.pass().await;
        world.booking_templates("entity").await;
        let copy = resend(&world, &wish("email", None, None)).await.unwrap();
        world.pass().await;
        assert_eq!(world.outcomes(copy).await, [outcome("email", "sent", "")]);
        let row = world.delivery(copy).await;
        assert_eq!((row.template, row.template_version, row.n), (None, None, 1));
        assert_eq!(world.captured(copy).await.values().next().unwrap()["title"], "Direct");
    }

    async fn c11_a_direct_message_to_a_user_or_a_list_is_resent_after_they_were_created(world) {
        world.capture(json!({})).await;
        let to = json!([{"user": "ana"}, {"list": "crew"}, {"email": "a@example.com"}]);
        world.list("crew", &[("user", "bob", "")]).await;
        let first = world.book("12345", json!({"title": "Direct", "recipients": to, "channels": ["sms", "email"]})).await;
        world.pass().await;
        assert_eq!(world.outcomes(first).await, [
            outcome("sms", "skipped", "unknown_user"), outcome("email", "skipped", "unknown_user"), outcome("sms", "skipped", "unknown_user"),
            outcome("email", "skipped", "unknown_user"), outcome("email", "sent", ""),
        ]);
        world.user("ana", &[("phone", "+14155550100")], json!({})).await;
        world.user("bob", &[("phone", "+14155550101")], json!({})).await;
        let copy = resend(&world, &wish("sms", None, None)).await.unwrap();
        let asked = resend(&world, &wish("sms", None, Some(Recipient::user("bob")))).await.unwrap();
        world.pass().await;
        assert_eq!(world.outcomes(copy).await, [outcome("sms", "sent", ""), outcome("sms", "sent", "")]);
        assert_eq!(world.outcomes(asked).await, [outcome("sms", "sent", "")]);
    }

    async fn c11_a_template_that_cannot_be_used_is_refused_with_the_reason(world) {
        world.capture(json!({})).await;
        world.booking_templates("entity").await;
        world.write_template("guest", "voice", json!({"audience": "guest", "to": "{{guestPhone}}", "text": "a"})).await;
        world.write_template("host", "voice", json!({"audience": "host", "to": "+14155550100", "text": "b"})).await;
        world.book("12345", json!({})).await;
        world.pass().await;
        world.execute("UPDATE postcommit.template SET active = (1 = 0) WHERE id = 'mail-confirmed'", vec![]).await;
        for (wish, why) in [
            (wish("sms", Some("none"), None), "is \"none\", which does not exist"),
            (wish("sms", Some("whatsapp-confirmed"), None), "a template for channel \"whatsapp\"; name one for channel \"sms\""),
            (wish("email", Some("mail-confirmed"), None), "is not active"),
            (wish("voice", None, None), "with several templates: guest, host; name one of them"),
        ] {
            match resend(&world, &wish).await {
                Err(NotAccepted::Invalid { field, problem }) => {
                    assert_eq!(field.as_deref(), Some("template"));
                    assert!(problem.contains(why), "{problem}");
                }
                other => panic!("{other:?}"),
            }
        }
    }

    async fn c10_one_entity_shows_what_was_sent_by_which_template_and_what_is_scheduled(world) {
        world.capture(json!({})).await;
        world.booking_templates("entity").await;
        world.book("12345", json!({})).await;
        let reminder = world.book("12345", json!({"due_at": "2099-01-01T00:00:00Z"})).await;
        world.pass().await;
        let rows = world.store.entity_rows(world.tenant, "12345", None, 50).await.unwrap().rows;
        assert_eq!((rows.len(), rows[0].notification_id, rows[0].state.as_str()), (4, reminder, "pending"));
        let sms = rows.iter().find(|row| row.channel.as_deref() == Some("sms")).unwrap();
        assert_eq!(
            (sms.event_type.as_str(), sms.template.as_deref(), sms.template_version, sms.target.as_deref(), sms.attempts),
            ("booking.confirmed", Some("sms-confirmed"), Some(1), Some("+91…10"), 1)
        );
        assert_eq!(sms.send_key.as_deref(), Some("12345:booking.confirmed:sms:sms-confirmed"));
        assert!(sms.sent_at.is_some());
    }
}
