//! The same key again: alone, in a batch, with other content, under another tenant.

use postcommit::{Error, Notification, Recipient, Source, limits};
use serde_json::{Value, json};

use crate::adapter::{Adapter, Kind, on_every_adapter};
use crate::world::{World, booking};

on_every_adapter!(
    a5_the_same_key_twice_is_one_notification,
    a5_a_key_is_remembered_across_transactions,
    a5_due_time_and_priority_are_not_content,
    other_content_under_a_key_returns_the_first_id_and_is_recorded,
    every_part_of_the_content_is_compared,
    strict_names_the_key_and_the_first_id,
    a_strict_conflict_says_whether_the_transaction_is_aborted,
    strict_with_the_same_content_is_no_conflict,
    strict_in_a_batch_names_the_conflicting_key,
    a_strict_conflict_can_be_survived_by_a_savepoint,
    d3_key_order_in_the_payload_is_not_other_content,
    d3_number_spelling_and_array_order_are_other_content,
    b4_keys_are_independent_per_tenant,
    a_batch_returns_ids_in_order_and_sends_duplicates_once,
    other_content_inside_a_batch_is_recorded,
    an_empty_batch_is_nothing,
    a_full_batch_is_taken_and_one_more_is_refused,
);

async fn a5_the_same_key_twice_is_one_notification<A: Adapter>(mut world: World<A>) {
    let note = booking(&postcommit::key::of("booking", &["12345", "confirmed", "1"])).build().unwrap();
    world.run("BEGIN").await;
    let first = world.enqueue(&note).await.unwrap();
    assert_eq!(world.enqueue(&note).await.unwrap(), first);
    world.run("COMMIT").await;
    for table in ["notification", "delivery_queue", "idempotency"] {
        assert_eq!(world.count(table).await, 1, "{table}");
    }
    assert_eq!(world.count("key_conflict").await, 0);
}

async fn a5_a_key_is_remembered_across_transactions<A: Adapter>(mut world: World<A>) {
    let note = booking("k").build().unwrap();
    let first = world.enqueue(&note).await.unwrap();
    let mut another = world.onlooker().await;
    assert_eq!(another.enqueue(&note).await.unwrap(), first);
    assert_eq!(another.enqueue_many(&[note]).await.unwrap(), [first]);
    assert_eq!(world.count("notification").await, 1);
}

async fn a5_due_time_and_priority_are_not_content<A: Adapter>(mut world: World<A>) {
    let first = world.enqueue(&booking("k").build().unwrap()).await.unwrap();
    let later = booking("k")
        .priority(9)
        .due_at(std::time::SystemTime::now())
        .correlation_id("other")
        .source(Source::site("other"));
    assert_eq!(world.enqueue(&later.strict().build().unwrap()).await.unwrap(), first);
    assert_eq!(world.count("key_conflict").await, 0);
    assert_eq!(world.stored(first).await["priority"], 5);
}

async fn other_content_under_a_key_returns_the_first_id_and_is_recorded<A: Adapter>(mut world: World<A>) {
    let first = world.enqueue(&booking("k").title("first").build().unwrap()).await.unwrap();
    let other = booking("k").title("second").entity("777").source(Source::site("plant-7")).build().unwrap();
    assert_eq!(world.enqueue(&other).await.unwrap(), first);
    assert_eq!(world.stored(first).await["title"], "first");
    assert_eq!(world.count("notification").await, 1);
    let noted = "CAST(notification_id AS text) || ' ' || event_type || ' ' || entity";
    let noted = world.all(&format!("SELECT {noted} FROM postcommit.key_conflict")).await;
    assert_eq!(noted, [format!("{first} booking.confirmed 777")]);
    let source = world.all("SELECT CAST(source AS text) FROM postcommit.key_conflict").await;
    assert_eq!(serde_json::from_str::<Value>(&source[0]).unwrap(), json!({"site": "plant-7"}));
}

async fn every_part_of_the_content_is_compared<A: Adapter>(mut world: World<A>) {
    let first = world.enqueue(&booking("k").build().unwrap()).await.unwrap();
    let mut renamed = booking("k").build().unwrap();
    renamed.event_type = "booking.moved".into();
    let mut emptied = booking("k").build().unwrap();
    emptied.payload = json!({});
    let others = [
        renamed,
        emptied,
        booking("k").entity("other").build().unwrap(),
        booking("k").to(Recipient::email("another@example.com")).build().unwrap(),
        booking("k").channel("email").build().unwrap(),
        booking("k").title("t").build().unwrap(),
        booking("k").body("b").build().unwrap(),
        booking("k").action_url("https://example.com").build().unwrap(),
        booking("k").data(json!({"email": {}})).build().unwrap(),
        booking("k").topic("t").build().unwrap(),
        booking("k").schema_version(1).build().unwrap(),
    ];
    for (noted, other) in others.iter().enumerate() {
        assert_eq!(world.count("key_conflict").await, noted, "before {other:?}");
        assert_eq!(world.enqueue(other).await.unwrap(), first);
    }
    assert_eq!(world.count("key_conflict").await, others.len());
}

async fn strict_names_the_key_and_the_first_id<A: Adapter>(mut world: World<A>) {
    for key in ["k", r"it's \ 'quoted' by notification", "schlüssel-🔑"] {
        let first = world.enqueue(&booking(key).build().unwrap()).await.unwrap();
        let refused = world.enqueue(&booking(key).title("other").strict().build().unwrap()).await.unwrap_err();
        assert_conflict(&refused, key, first);
        assert!(refused.to_string().contains(&first.to_string()));
    }
    assert_eq!(world.count("notification").await, 3);
    assert_eq!(world.count("key_conflict").await, 0);
}

fn assert_conflict(refused: &Error, wanted_key: &str, wanted: uuid::Uuid) {
    match refused {
        Error::Conflict { key, first, .. } => assert_eq!((key.as_str(), *first), (wanted_key, wanted)),
        other => panic!("expected a conflict, found {other:?}"),
    }
}

/// On SQLite only the statement is undone, so another key can be used in the same transaction.
async fn a_strict_conflict_says_whether_the_transaction_is_aborted<A: Adapter>(mut world: World<A>) {
    world.enqueue(&booking("k").build().unwrap()).await.unwrap();
    let other = booking("k").title("other").strict().build().unwrap();
    world.run("BEGIN").await;
    let one = world.enqueue(&other).await.unwrap_err().to_string();
    let next = world.enqueue(&booking("another").build().unwrap()).await;
    world.run("COMMIT").await;
    world.run("BEGIN").await;
    let many = world.enqueue_many(&[other]).await.unwrap_err().to_string();
    world.run("ROLLBACK").await;
    let (ending, stored) = match A::KIND {
        Kind::Postgres => ("; nothing was enqueued. The transaction is aborted; roll back", 1),
        Kind::Sqlite => ("; nothing was enqueued; use another key", 2),
    };
    assert!(one.ends_with(ending) && many.ends_with(ending), "{one}, {many}");
    assert_eq!((next.is_ok(), world.count("notification").await), (A::KIND == Kind::Sqlite, stored));
}

async fn strict_with_the_same_content_is_no_conflict<A: Adapter>(mut world: World<A>) {
    let first = world.enqueue(&booking("k").build().unwrap()).await.unwrap();
    assert_eq!(world.enqueue(&booking("k").strict().build().unwrap()).await.unwrap(), first);
    assert_eq!(world.enqueue_many(&[booking("k").strict().build().unwrap()]).await.unwrap(), [first]);
}

async fn strict_in_a_batch_names_the_conflicting_key<A: Adapter>(mut world: World<A>) {
    let first = world.enqueue(&booking("b'c").tenant("acme").build().unwrap()).await.unwrap();
    let batch = [
        booking("a").strict().build().unwrap(),
        booking("c").strict().build().unwrap(),
        booking("b'c").strict().build().unwrap(),
        booking("b'c").tenant("acme").title("other").strict().build().unwrap(),
    ];
    world.run("BEGIN").await;
    let refused = world.enqueue_many(&batch).await.unwrap_err();
    world.run("ROLLBACK").await;
    assert_conflict(&refused, "b'c", first);
    assert_eq!(world.count("notification").await, 1);
}

async fn a_strict_conflict_can_be_survived_by_a_savepoint<A: Adapter>(mut world: World<A>) {
    world.enqueue(&booking("k").build().unwrap()).await.unwrap();
    world.run("BEGIN").await;
    world.enqueue(&booking("before").build().unwrap()).await.unwrap();
    world.run("SAVEPOINT before_it").await;
    world.enqueue(&booking("k").title("other").strict().build().unwrap()).await.unwrap_err();
    world.run("ROLLBACK TO before_it").await;
    world.enqueue(&booking("after").build().unwrap()).await.unwrap();
    world.run("COMMIT").await;
    let keys = world.all("SELECT idempotency_key FROM postcommit.notification ORDER BY idempotency_key").await;
    assert_eq!(keys, ["after", "before", "k"]);
}

/// Parsed from text, because the texts differ while the values are equal.
fn with_payload(key: &str, payload: &str) -> Notification {
    Notification::event("level.high", serde_json::from_str(payload).unwrap()).key(key).build().unwrap()
}

async fn d3_key_order_in_the_payload_is_not_other_content<A: Adapter>(mut world: World<A>) {
    let texts =
        [r#"{"b": [1, {"y": null, "x": "é"}], "a": 1.50}"#, "{\"a\":1.50,\n\"b\":[1,{\"x\":\"\\u00e9\",\"y\":null}]}"];
    let first = world.enqueue(&with_payload("k", texts[0])).await.unwrap();
    let mut strict = with_payload("k", texts[1]);
    strict.strict = true;
    assert_eq!(world.enqueue(&strict).await.unwrap(), first);
    // serde_json sorts keys by default. Other languages do not.
    let unsorted = r#"'{"b": [1, {"y": null, "x": "é"}], "a": 1.5}'"#;
    match A::KIND {
        Kind::Postgres => {
            world.run(&format!("SELECT postcommit.enqueue('level.high', {unsorted}, 'k', strict => true)")).await;
        }
        Kind::Sqlite => {
            let columns = "event_type, payload, idempotency_key, strict";
            world
                .run(&format!("INSERT INTO postcommit_enqueue ({columns}) VALUES ('level.high', {unsorted}, 'k', 1)"))
                .await;
        }
    }
    assert_eq!(world.count("notification").await, 1);
    assert_eq!(world.count("key_conflict").await, 0);
}

async fn d3_number_spelling_and_array_order_are_other_content<A: Adapter>(mut world: World<A>) {
    world.enqueue(&with_payload("k", r#"{"a": [1, 2]}"#)).await.unwrap();
    for other in [
        r#"{"a": [2, 1]}"#,
        r#"{"a": [1, 2.0]}"#,
        r#"{"a": ["1", 2]}"#,
        r#"{"a": [1, 2, null]}"#,
        r#"{"a": {"0": 1, "1": 2}}"#,
    ] {
        let mut strict = with_payload("k", other);
        strict.strict = true;
        let refused = world.enqueue(&strict).await.unwrap_err();
        assert!(matches!(refused, Error::Conflict { .. }), "{other}: {refused}");
    }
}

async fn b4_keys_are_independent_per_tenant<A: Adapter>(mut world: World<A>) {
    let default = world.enqueue(&booking("k").build().unwrap()).await.unwrap();
    let acme = world.enqueue(&booking("k").tenant("acme").title("other").strict().build().unwrap()).await.unwrap();
    assert_ne!(default, acme);
    let batch = [booking("k").build().unwrap(), booking("k").tenant("acme").title("other").build().unwrap()];
    assert_eq!(world.enqueue_many(&batch).await.unwrap(), [default, acme]);
    assert_eq!(world.stored(acme).await["tenant"], "acme");
    assert_eq!(world.count("notification").await, 2);
    assert_eq!(world.count("key_conflict").await, 0);
}

async fn a_batch_returns_ids_in_order_and_sends_duplicates_once<A: Adapter>(mut world: World<A>) {
    let stood = world.enqueue(&booking("stood").build().unwrap()).await.unwrap();
    let keys = ["c", "a", "stood", "b", "a", "c"];
    let batch: Vec<_> = keys.iter().map(|key| booking(key).build().unwrap()).collect();
    let ids = world.enqueue_many(&batch).await.unwrap();
    for (id, key) in ids.iter().zip(keys) {
        assert_eq!(world.stored(*id).await["idempotency_key"], key);
    }
    assert_eq!((ids[2], ids[4], ids[5]), (stood, ids[1], ids[0]));
    assert_eq!(world.count("notification").await, 4);
    assert_eq!(world.count("delivery_queue").await, 4);
    assert_eq!(world.count("key_conflict").await, 0);
}

async fn other_content_inside_a_batch_is_recorded<A: Adapter>(mut world: World<A>) {
    let batch = [booking("k").title("first").build().unwrap(), booking("k").title("second").build().unwrap()];
    let ids = world.enqueue_many(&batch).await.unwrap();
    assert_eq!(ids[0], ids[1]);
    assert_eq!(world.stored(ids[0]).await["title"], "first");
    assert_eq!(world.count("key_conflict").await, 1);
}

async fn an_empty_batch_is_nothing<A: Adapter>(mut world: World<A>) {
    assert!(world.enqueue_many(&[]).await.unwrap().is_empty());
    assert_eq!(world.count("notification").await, 0);
}

async fn a_full_batch_is_taken_and_one_more_is_refused<A: Adapter>(mut world: World<A>) {
    let mut batch: Vec<_> = (0..limits::BATCH).map(|i| booking(&i.to_string()).build().unwrap()).collect();
    batch.push(booking("one more").build().unwrap());
    let refused = world.enqueue_many(&batch).await.unwrap_err();
    assert_eq!(refused.to_string(), "batch: has 1001 notifications; at most 1000 are allowed");
    assert_eq!(world.count("notification").await, 0);
    world.run("BEGIN").await;
    assert_eq!(world.enqueue_many(&batch[..limits::BATCH]).await.unwrap().len(), limits::BATCH);
    world.run("COMMIT").await;
    assert_eq!(world.count("notification").await, limits::BATCH);
}
