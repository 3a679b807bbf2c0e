//! Applications that use keys such as Postcommit makes for its own notifications.

use postcommit_channel::model::QuietRule;
use postcommit_engine::store::{NotAccepted, Resend};
use serde_json::{Value, json};
use uuid::Uuid;

use super::pacing::{begin, bodies, digest_of};
use super::{CONFIRMED, outcome, quiet_hours};
use crate::world::World;

/// An event for Ana with this key.
async fn keyed(world: &World, key: &str, more: Value) -> Uuid {
    let mut fields = json!({"idempotency_key": key, "recipients": [{"user": "ana"}], "channels": ["email"], "entity": "1",
        "payload": {"task": key}});
    for (name, value) in more.as_object().cloned().unwrap_or_default() {
        fields[name] = value;
    }
    world.enqueue(CONFIRMED, fields).await
}

fn wish(channel: &str, request_id: &str) -> Resend {
    let (event_type, template, recipient) = (None, None, None);
    Resend {
        entity: "1".into(),
        channel: channel.into(),
        event_type,
        template,
        recipient,
        of: None,
        request_id: request_id.into(),
    }
}

on_both! {
    async fn no_key_of_an_application_prevents_a_digest(world) {
        begin(&world, json!({"digest": {"window_s": 3600}})).await;
        let item = keyed(&world, "a", json!({})).await;
        // The keys that might be derived from what the application knows.
        let mut own = vec![];
        for key in [format!("digest:{item}.1"), format!("digest:{item}"), "digest:mail:ana".into()] {
            own.push(world.enqueue("plain", json!({"idempotency_key": key, "title": "Own"})).await);
        }
        world.pass().await;
        let digest = digest_of(&world, item).await;
        assert!(!own.contains(&digest));
        world.make_due().await;
        world.pass().await;
        assert_eq!(bodies(&world, digest).await["ana@example.com"], "1 for a: a");
        for id in own {
            assert_eq!(world.outcomes(id).await, [outcome("email", "sent", "")]);
            assert_eq!(world.captured(id).await.values().next().unwrap()["title"], "Own");
        }
    }

    async fn an_event_with_the_key_of_a_digest_is_an_ordinary_event(world) {
        quiet_hours::ana(&world, quiet_hours::NOW).await;
        quiet_hours::rule(&world, QuietRule::Skip).await;
        let id = keyed(&world, "digest:0199a5c2-6a3e-7c1d-9a31-0f5f6c1b2d3e", json!({})).await;
        world.pass().await;
        assert_eq!(world.outcomes(id).await, [outcome("email", "skipped", "quiet_hours")]);
    }

    async fn an_event_with_the_key_of_a_resend_is_throttled_and_may_be_a_duplicate(world) {
        begin(&world, json!({"throttle": {"max": 1, "per_s": 3600, "then": "skip"}, "once_per": "entity"})).await;
        let mut ids = vec![];
        for (key, entity) in [("manual:1:email::r1", "1"), ("manual:1:email:mail:r2", "1"), ("manual:2:email::r3", "2")] {
            ids.push(keyed(&world, key, json!({"entity": entity})).await);
            world.pass().await;
        }
        for (id, (state, code)) in ids.iter().zip([("sent", ""), ("skipped", "duplicate"), ("skipped", "throttled")]) {
            assert_eq!(world.outcomes(*id).await, [outcome("email", state, code)]);
        }
        let row = world.delivery(ids[0]).await;
        assert_eq!((row.send_key.as_deref(), row.copy_of), (Some("1:booking.confirmed:email:mail"), None));
    }

    async fn a_resend_whose_key_an_application_holds_is_refused_and_names_the_request(world) {
        begin(&world, json!({"throttle": {"max": 1, "per_s": 3600, "then": "skip"}})).await;
        let original = keyed(&world, "manual:1:email::r1", json!({})).await;
        world.pass().await;
        let refused = world.store.resent(world.tenant, &wish("email", "r1")).await.unwrap_err();
        let NotAccepted::Invalid { field, problem } = refused else { panic!("{refused:?}") };
        assert_eq!(field.as_deref(), Some("request_id"));
        assert!(problem.contains(&original.to_string()) && problem.contains("name another"), "{problem}");
        // The same if the application was a moment faster.
        let copied = world.store.copied(world.tenant, &wish("email", "r1")).await.unwrap().unwrap();
        let refused = world.store.resend(world.tenant, &wish("email", "r1"), copied).await.unwrap_err();
        assert!(matches!(&refused, NotAccepted::Invalid { field: Some(field), .. } if field == "request_id"), "{refused:?}");
        // Another request is made, and is neither throttled nor a duplicate.
        let other = wish("email", "r2");
        assert!(world.store.resent(world.tenant, &other).await.unwrap().is_none());
        let copied = world.store.copied(world.tenant, &other).await.unwrap().unwrap();
        let copy = world.store.resend(world.tenant, &other, copied).await.unwrap();
        world.pass().await;
        let row = world.delivery(copy.id).await;
        assert_eq!((row.state.as_str(), row.copy_of, row.send_key.as_deref()), ("sent", Some(original), Some("manual:1:email::r2")));
        let again = world.store.resent(world.tenant, &other).await.unwrap().unwrap();
        assert_eq!((again.id, again.duplicate, again.conflict), (copy.id, true, false));
    }

    async fn an_event_with_the_key_of_a_resend_is_an_original(world) {
        begin(&world, json!({})).await;
        keyed(&world, "first", json!({"payload": {"task": "older"}})).await;
        world.pass().await;
        keyed(&world, "manual:1:sms::r1", json!({"payload": {"task": "newer"}})).await;
        world.pass().await;
        world.write_template("chat", "slack", json!({"to": "https://hooks.example.com/x", "text": "Now {{ task }}"})).await;
        let mut of_it = wish("slack", "r9");
        of_it.template = Some("chat".into());
        let copied = world.store.copied(world.tenant, &of_it).await.unwrap().unwrap();
        assert_eq!(copied.request.payload().get().replace(' ', ""), r#"{"task":"newer"}"#);
    }
}
