//! What a commit publishes, and that nothing else does.

use std::time::{Duration, SystemTime};

use postcommit::{Error, Notification, Recipient, Source, Timestamp, limits};
use serde_json::json;

use crate::adapter::{Adapter, Kind, on_every_adapter};
use crate::world::{World, booking, count};

on_every_adapter!(
    a1_rollback_leaves_nothing,
    a1_only_the_commit_publishes_the_notification,
    a1_the_applications_own_rows_share_its_fate,
    c2_every_field_is_stored_as_given,
    c2_absent_fields_take_their_defaults,
    a_null_payload_is_an_empty_one,
    a_batch_stores_the_same_as_one_by_one,
    e13_provenance_is_stored_with_both_times,
    unicode_is_stored_unchanged,
    quotes_and_backslashes_are_data,
    a_channel_may_be_called_null,
    a_payload_at_the_limit_is_taken,
    a_payload_beyond_the_limit_is_refused_by_builder_and_database,
    an_expiry_in_the_past_is_invalid,
    the_shortest_life_is_taken,
    d4_enqueue_writes_the_queue_and_nothing_else,
);

async fn a1_rollback_leaves_nothing<A: Adapter>(mut world: World<A>) {
    world.run("BEGIN").await;
    world.enqueue(&booking("one").tenant("new-tenant").build().unwrap()).await.unwrap();
    world.enqueue_many(&[booking("two").build().unwrap(), booking("three").build().unwrap()]).await.unwrap();
    assert_eq!(world.count("notification").await, 3);
    world.run("ROLLBACK").await;
    for table in ["notification", "delivery_queue", "idempotency", "delivery_ledger", "key_conflict"] {
        assert_eq!(world.count(table).await, 0, "{table}");
    }
    assert_eq!(world.all("SELECT name FROM postcommit.tenant").await, ["default"]);
}

async fn a1_only_the_commit_publishes_the_notification<A: Adapter>(mut world: World<A>) {
    let mut onlooker = world.onlooker().await;
    world.run("BEGIN").await;
    let id = world.enqueue(&booking("k").build().unwrap()).await.unwrap();
    assert_eq!(count(&mut onlooker, "delivery_queue").await, 0);
    world.run("COMMIT").await;
    assert_eq!(count(&mut onlooker, "delivery_queue").await, 1);
    assert_eq!(world.all("SELECT CAST(id AS text) FROM postcommit.notification").await, [id.to_string()]);
    assert_eq!(id.get_version_num(), 7);
}

async fn a1_the_applications_own_rows_share_its_fate<A: Adapter>(mut world: World<A>) {
    world.run("CREATE TABLE booking (id text PRIMARY KEY)").await;
    for (key, end) in [("kept", "COMMIT"), ("lost", "ROLLBACK")] {
        world.run("BEGIN").await;
        world.run(&format!("INSERT INTO booking VALUES ('{key}')")).await;
        world.enqueue(&booking(key).build().unwrap()).await.unwrap();
        world.run(end).await;
    }
    assert_eq!(world.all("SELECT id FROM booking").await, ["kept"]);
    assert_eq!(world.all("SELECT idempotency_key FROM postcommit.notification").await, ["kept"]);
}

fn everything(key: &str) -> Notification {
    let mut source = Source::site("plant-7");
    source.instance = Some("pi-3".into());
    source.script = Some("level.py".into());
    source.rule = Some("water-high".into());
    source.enqueued_at = Some("2026-03-15T09:29:58.123456Z".parse().unwrap());
    Notification::event("booking.confirmed", json!({"id": 1, "nested": {"list": [1, 2.5, null, true, "x"]}}))
        .key(key)
        .tenant("acme")
        .entity("12345")
        .to(Recipient::user("u1"))
        .to(Recipient::list("crew"))
        .to(Recipient::email("guest@example.com"))
        .to(Recipient::phone("+14155550100"))
        .to(Recipient::Slack("https://hooks.example.com/s".into()))
        .to(Recipient::Teams("https://hooks.example.com/t".into()))
        .to(Recipient::webhook("https://example.com/hook"))
        .to(Recipient::at("siren", "roof"))
        .channel("email")
        .channel("sms")
        .title("Confirmed")
        .body("See you\nsoon")
        .action_url("https://example.com/b/12345?x=1#y")
        .data(json!({"whatsapp": {"template": "t1"}}))
        .priority(9)
        .due_at("2026-03-15T15:00:00.250+05:30".parse::<Timestamp>().unwrap())
        .expires_at("2026-03-16T00:00:00Z".parse::<Timestamp>().unwrap())
        .source(source)
        .correlation_id("trace-1")
        .topic("booking.events")
        .schema_version(3)
        .build()
        .unwrap()
}

async fn c2_every_field_is_stored_as_given<A: Adapter>(mut world: World<A>) {
    let id = world.enqueue(&everything("k")).await.unwrap();
    let mut stored = world.stored(id).await;
    stored.as_object_mut().unwrap().remove("created_at");
    assert_eq!(
        stored,
        json!({
            "event_type": "booking.confirmed",
            "payload": {"id": 1, "nested": {"list": [1, 2.5, null, true, "x"]}},
            "idempotency_key": "k",
            "tenant": "acme",
            "entity": "12345",
            "recipients": [
                {"user": "u1"}, {"list": "crew"}, {"email": "guest@example.com"}, {"phone": "+14155550100"},
                {"slack": "https://hooks.example.com/s"}, {"teams": "https://hooks.example.com/t"},
                {"webhook": "https://example.com/hook"}, {"provider": "siren", "address": "roof"},
            ],
            "channels": ["email", "sms"],
            "title": "Confirmed",
            "body": "See you\nsoon",
            "action_url": "https://example.com/b/12345?x=1#y",
            "data": {"whatsapp": {"template": "t1"}},
            "priority": 9,
            "due_at": 1_773_567_000_250_000_i64,
            "expires_at": 1_773_619_200_000_000_i64,
            "source": {
                "site": "plant-7", "instance": "pi-3", "script": "level.py", "rule": "water-high",
                "enqueued_at": "2026-03-15T09:29:58.123456Z",
            },
            "correlation_id": "trace-1",
            "topic": "booking.events",
            "schema_version": 3,
        })
    );
}

async fn c2_absent_fields_take_their_defaults<A: Adapter>(mut world: World<A>) {
    let id = world.enqueue(&Notification::message("Hello", "World").key("k").build().unwrap()).await.unwrap();
    let mut stored = world.stored(id).await;
    let mut time = |name: &str| stored.as_object_mut().unwrap().remove(name).unwrap().as_i64().unwrap();
    let (due, expires, _) = (time("due_at"), time("expires_at"), time("created_at"));
    assert_eq!(expires - due, limits::EXPIRY_DAYS * 86_400_000_000);
    assert_eq!(
        stored,
        json!({
            "event_type": "message", "payload": {}, "idempotency_key": "k", "tenant": "default", "entity": null,
            "recipients": [], "channels": [], "title": "Hello", "body": "World", "action_url": null, "data": null,
            "priority": limits::PRIORITY_DEFAULT, "source": null, "correlation_id": null, "topic": null, "schema_version": null,
        })
    );
}

async fn a_null_payload_is_an_empty_one<A: Adapter>(mut world: World<A>) {
    let note = Notification::event("tick", json!(null)).key("k").strict().build().unwrap();
    let id = world.enqueue(&note).await.unwrap();
    assert_eq!(world.enqueue_many(&[note]).await.unwrap(), [id]);
    assert_eq!(world.stored(id).await["payload"], json!({}));
}

async fn a_batch_stores_the_same_as_one_by_one<A: Adapter>(mut world: World<A>) {
    let plain = |key: &str| booking(key).due_at(Timestamp::from_micros(0)).build().unwrap();
    let single = [world.enqueue(&everything("a")).await.unwrap(), world.enqueue(&plain("b")).await.unwrap()];
    let batch = world.enqueue_many(&[everything("c"), plain("d")]).await.unwrap();
    for (one, other) in single.into_iter().zip(batch) {
        let (mut one, mut other) = (world.stored(one).await, world.stored(other).await);
        for stored in [&mut one, &mut other] {
            stored.as_object_mut().unwrap().retain(|name, _| name != "idempotency_key" && name != "created_at");
        }
        assert_eq!(one, other);
    }
}

async fn e13_provenance_is_stored_with_both_times<A: Adapter>(mut world: World<A>) {
    let before = Timestamp::from(SystemTime::now());
    let id = world.enqueue(&everything("k")).await.unwrap();
    let after = Timestamp::from(SystemTime::now());
    let stored = world.stored(id).await;
    assert_eq!(stored["source"]["site"], "plant-7");
    assert_eq!(stored["source"]["instance"], "pi-3");
    assert_eq!(stored["source"]["script"], "level.py");
    assert_eq!(stored["source"]["rule"], "water-high");
    let there: Timestamp = stored["source"]["enqueued_at"].as_str().unwrap().parse().unwrap();
    let received = Timestamp::from_micros(stored["created_at"].as_i64().unwrap());
    assert_eq!(there.to_string(), "2026-03-15T09:29:58.123456Z");
    // SQLite's clock has a resolution of milliseconds, and rounds.
    let tick = Duration::from_millis(2);
    assert!(
        before <= received.plus(tick) && received <= after.plus(tick),
        "received {received}, enqueued {before} to {after}"
    );
}

async fn unicode_is_stored_unchanged<A: Adapter>(mut world: World<A>) {
    let text = "Grüße 🎉 नमस्ते \u{202e}abc\u{200d} e\u{301} 中文";
    let note = Notification::event("größe.geändert", json!({text: [text]}))
        .key("schlüssel-🔑")
        .entity("größe")
        .title(text)
        .body(text)
        .to(Recipient::email("ü@exämple.org"));
    let id = world.enqueue(&note.build().unwrap()).await.unwrap();
    let stored = world.stored(id).await;
    assert_eq!(stored["payload"], json!({text: [text]}));
    assert_eq!((&stored["title"], &stored["body"]), (&json!(text), &json!(text)));
    assert_eq!(stored["idempotency_key"], "schlüssel-🔑");
    assert_eq!(stored["recipients"], json!([{"email": "ü@exämple.org"}]));
    assert_eq!(world.cancel("default", "größe", Some("größe.geändert")).await.unwrap(), 1);
    let longest = "é".repeat(limits::KEY_CHARS);
    let id = world.enqueue(&booking(&longest).build().unwrap()).await.unwrap();
    assert_eq!(world.stored(id).await["idempotency_key"], longest);
}

async fn quotes_and_backslashes_are_data<A: Adapter>(mut world: World<A>) {
    let text = r#"'; DROP TABLE booking; -- " \ {} $1 ?1 %"#;
    let note = booking(text).entity(text).title(text).body(text).correlation_id(text).topic(text);
    let mut note = note.build().unwrap();
    note.payload = json!({text: text});
    for id in [world.enqueue(&note).await.unwrap(), world.enqueue_many(&[note]).await.unwrap()[0]] {
        let stored = world.stored(id).await;
        assert_eq!(stored["payload"], json!({text: text}));
        for field in ["idempotency_key", "entity", "title", "body", "correlation_id", "topic"] {
            assert_eq!(stored[field], text, "{field}");
        }
    }
}

async fn a_channel_may_be_called_null<A: Adapter>(mut world: World<A>) {
    let id = world.enqueue(&booking("k").channel("null").channel("NULL").build().unwrap()).await.unwrap();
    assert_eq!(world.stored(id).await["channels"], json!(["null", "NULL"]));
}

async fn a_payload_at_the_limit_is_taken<A: Adapter>(mut world: World<A>) {
    // A plain string, because in arrays and objects PostgreSQL counts the spaces that it adds.
    let payload = json!("x".repeat(limits::PAYLOAD_BYTES - 2));
    let id = world.enqueue(&Notification::event("big", payload.clone()).key("k").build().unwrap()).await.unwrap();
    assert_eq!(world.stored(id).await["payload"], payload);
}

async fn a_payload_beyond_the_limit_is_refused_by_builder_and_database<A: Adapter>(mut world: World<A>) {
    let payload = json!("x".repeat(limits::PAYLOAD_BYTES - 1));
    let refused = Notification::event("big", payload.clone()).key("k").build().unwrap_err();
    assert_eq!(refused.to_string(), "payload: has 262145 bytes; at most 262144 are allowed");
    // Changed after the check: the database checks again.
    let mut note = booking("k").build().unwrap();
    note.payload = payload;
    let text = world.enqueue(&note).await.unwrap_err().to_string();
    assert!(text.starts_with("payload: is refused; the rule is: at most 262144 bytes"), "{text}");
    assert!(!text.contains("guest@example.com") && text.len() < 300, "the row is in the error text: {text}");
    assert_eq!(world.count("notification").await, 0);
}

/// Only the database knows the current time.
async fn an_expiry_in_the_past_is_invalid<A: Adapter>(mut world: World<A>) {
    let note = booking("k").expires_at(Timestamp::from_micros(0)).build().unwrap();
    world.run("BEGIN").await;
    let one = world.enqueue(&note).await.unwrap_err();
    world.run("ROLLBACK").await;
    let many = world.enqueue_many(&[note]).await.unwrap_err();
    let aborted = if A::KIND == Kind::Postgres { ". The transaction is aborted; roll back" } else { "" };
    for refused in [one, many] {
        assert_eq!(refused.to_string(), format!("expires_at: is refused; the rule is: after due at{aborted}"));
        assert!(matches!(refused, Error::Invalid { .. }), "{refused:?}");
    }
}

async fn the_shortest_life_is_taken<A: Adapter>(mut world: World<A>) {
    for micros in [0, 499, 500, 999] {
        let due = Timestamp::from_micros(4_000_000_000_000_000 + micros);
        let note = booking(&micros.to_string()).due_at(due).expires_at(due.plus(limits::LIFE));
        world.enqueue(&note.build().unwrap()).await.unwrap();
    }
    assert_eq!(world.count("notification").await, 4);
}

async fn d4_enqueue_writes_the_queue_and_nothing_else<A: Adapter>(mut world: World<A>) {
    // No server runs here, and the recipient's host does not exist: enqueue succeeds nevertheless.
    let note = booking("k").to(Recipient::webhook("https://nowhere.invalid/hook")).build().unwrap();
    let id = world.enqueue(&note).await.unwrap();
    assert_eq!(
        world.all("SELECT CAST(notification_id AS text) FROM postcommit.delivery_queue").await,
        [id.to_string()]
    );
    assert_eq!(world.all("SELECT state FROM postcommit.notification_status").await, ["pending"]);
    for table in ["attempt", "delivery_ledger", "cancel_request", "key_conflict", "stale_settle", "provider"] {
        assert_eq!(world.count(table).await, 0, "{table}");
    }
}
