//! Channels that an event names and for which it has no template.

use serde_json::json;
use uuid::Uuid;

use super::outcome;
use crate::world::World;

/// Adds a provider of a channel that Postcommit does not know.
async fn serve(world: &World, channel: &str) {
    let mut draft = world.draft(channel, "capture", json!({}));
    draft.channel = channel.into();
    world.provider(draft).await;
}

async fn retry(world: &World, id: Uuid, n: i32) {
    assert!(world.store.retry(world.key(id, n)).await.unwrap());
    world.pass().await;
}

on_both! {
    async fn a_channel_without_a_template_gets_a_row_and_the_others_go_on(world) {
        world.capture(json!({})).await;
        world.write_template("mail", "email", json!({"text": "x"})).await;
        let id = world.book("1", json!({"channels": ["email", "whatsap", "voice"]})).await;
        world.pass().await;
        let (mail, pager) = (outcome("email", "sent", ""), outcome("whatsap", "parked", "unknown_channel"));
        assert_eq!(world.outcomes(id).await, [mail.clone(), pager.clone(), outcome("voice", "parked", "template_not_found")]);
        let rows = world.deliveries(id).await;
        let said: Vec<_> = rows.iter().map(|row| row.last_error.clone().unwrap_or_default()).collect();
        assert!(said[1].contains("\"whatsap\" does not exist"), "{said:?}");
        assert!(said[2].contains("can be used on voice; create one, then retry"), "{said:?}");
        let classes: Vec<_> = rows.iter().map(|row| row.error_class.as_deref()).collect();
        assert_eq!(classes, [None, Some("config"), Some("template_rejected")]);

        for n in [2, 3] {
            retry(&world, id, n).await;
        }
        assert_eq!(world.outcomes(id).await[1..], [pager, outcome("voice", "parked", "template_not_found")], "nothing has changed");
        world.write_template("call", "voice", json!({"to": "{{guestPhone}}", "text": "Dear {{guestName}}", "once_per": "entity"})).await;
        serve(&world, "whatsap").await;
        retry(&world, id, 2).await;
        retry(&world, id, 3).await;
        assert_eq!(world.outcomes(id).await, [mail, outcome("whatsap", "parked", "template_not_found"), outcome("voice", "sent", "")]);
        let row = world.deliveries(id).await.remove(2);
        assert_eq!((row.template.as_deref(), row.template_version), (Some("call"), Some(1)));
        assert_eq!(world.captured(id).await[&("voice".into(), "+919876543210".into())]["body"], "Dear Asha");
        world.write_template("app", "whatsap", json!({"to": "{{guestPhone}}", "text": "By its channel"})).await;
        retry(&world, id, 2).await;
        assert_eq!(world.captured(id).await[&("whatsap".into(), "+919876543210".into())]["body"], "By its channel");
    }

    async fn a_named_recipient_gets_a_row_for_each_channel_without_a_template(world) {
        world.capture(json!({})).await;
        world.write_template("mail", "email", json!({"text": "x"})).await;
        world.user("ana", &[("email", "ana@example.com"), ("phone", "+14155550100")], json!({"name": "Ana"})).await;
        let to = json!([{"user": "ana"}, {"email": "guest@example.com"}, {"phone": "+14155550199"}]);
        let id = world.book("1", json!({"recipients": to, "channels": ["email", "voice", "pager"]})).await;
        world.pass().await;
        let (mail, voice) = (outcome("email", "sent", ""), outcome("voice", "parked", "template_not_found"));
        let pager = outcome("pager", "parked", "unknown_channel");
        assert_eq!(world.outcomes(id).await, [
            mail.clone(), mail.clone(), voice.clone(), pager.clone(), pager.clone(), voice, pager.clone(),
        ]);
        world.write_template("call", "voice", json!({"text": "Dear {{user.name}}", "once_per": "entity"})).await;
        retry(&world, id, 3).await;
        retry(&world, id, 6).await;
        let called = outcome("voice", "sent", "");
        assert_eq!(world.outcomes(id).await, [mail.clone(), mail, called.clone(), pager.clone(), pager.clone(), called, pager]);
        let sent = world.captured(id).await;
        assert_eq!(sent[&("voice".into(), "+14155550100".into())]["body"], "Dear Ana");
        assert_eq!(sent[&("voice".into(), "+14155550199".into())]["body"], "Dear ");
        let users: Vec<_> = world.deliveries(id).await.into_iter().map(|row| row.user_id).collect();
        assert_eq!((users[2].as_deref(), users[3].as_deref(), users[5].as_deref()), (Some("ana"), Some("ana"), None));
    }

    async fn an_event_none_of_whose_channels_has_a_template_is_parked_as_a_whole(world) {
        world.capture(json!({})).await;
        world.write_template("mail", "email", json!({"text": "x"})).await;
        let misspelt = world.book("1", json!({"channels": ["whatsap"]})).await;
        let to = json!([{"email": "guest@example.com"}]);
        let named = world.book("2", json!({"recipients": to, "channels": ["whatsap"]})).await;
        let both = world.book("3", json!({"channels": ["voice", "whatsap"]})).await;
        world.pass().await;
        for id in [misspelt, named] {
            assert_eq!(world.outcomes(id).await, [outcome("", "parked", "unknown_channel")]);
        }
        assert_eq!(world.outcomes(both).await, [outcome("", "parked", "template_not_found")]);
        world.write_template("call", "voice", json!({"to": "{{guestPhone}}", "text": "x"})).await;
        retry(&world, both, 0).await;
        assert_eq!(world.outcomes(both).await, [outcome("voice", "sent", ""), outcome("whatsap", "parked", "unknown_channel")]);
    }
}
