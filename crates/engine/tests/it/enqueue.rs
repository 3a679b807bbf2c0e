//! On SQLite, enqueueing through the store and through the application's view gives the same result, although the store
//! bypasses the view where it can. Requests that share a commit share nothing else.

use std::time::Duration;

use postcommit::{Error, Notification, adapters};
use postcommit_engine::db::{Db, DbError};
use postcommit_engine::store::EnqueueError;
use rusqlite::Connection;
use serde_json::{Value, json};

use crate::world::World;

/// A notification with all fields except the times.
fn note(key: &str, payload: Value) -> Notification {
    let document = json!({
        "event_type": "booking.made", "payload": payload, "idempotency_key": key, "entity": "booking:7", "topic": "bookings", "schema_version": 3,
        "recipients": [{"email": "ü@example.com"}, {"webhook": "https://example.com/hook"}], "channels": ["email", "webhook"],
        "title": "Héllo \"you\"", "body": "two\nlines", "action_url": "https://example.com/a?b=c", "data": {"email": {"reply_to": "a@example.com"}},
        "priority": 7, "source": {"site": "north", "script": "import"}, "correlation_id": "trace-1",
    });
    serde_json::from_value(document).unwrap()
}

fn payload() -> Value {
    json!({"z": 1, "a": [1.5, -2e-9, 18_446_744_073_709_551_615_u64, true, null], "text": "tab\t \\u0041 / \u{1f600} \u{7f}", "nested": {"": {}}})
}

fn application(world: &World) -> Connection {
    Connection::open(world.url.strip_prefix("sqlite:").unwrap()).unwrap()
}

/// The rows that were written for a key, without ids and times.
fn written(connection: &Connection, key: &str) -> Vec<String> {
    let sql = "SELECT json_array(n.tenant, n.event_type, n.entity, n.topic, n.schema_version, n.payload, n.recipients, n.channels, n.title, n.body, n.action_url, n.data,
          n.priority, n.source, n.correlation_id, typeof(n.schema_version), typeof(n.priority), typeof(n.due_at), n.created_at = n.due_at, n.expires_at - n.due_at,
          length(n.id), n.id = lower(n.id), substr(n.id, 15, 1), instr('89ab', substr(n.id, 20, 1)) > 0, substr(n.id, 1, 8) || substr(n.id, 10, 4) = printf('%012x', n.due_at / 1000),
          q.n, q.lane, q.priority, q.due_at = n.due_at, q.lease_token, q.attempts, q.seq, q.channel)
        FROM postcommit_idempotency i JOIN postcommit_notification n ON n.tenant = i.tenant AND n.id = i.notification_id AND n.idempotency_key = i.key
        JOIN postcommit_delivery_queue q ON q.tenant = n.tenant AND q.notification_id = n.id WHERE i.key = ?1";
    let mut statement = connection.prepare(sql).unwrap();
    statement.query_map([key], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
}

#[tokio::test]
async fn store_and_view_write_the_same() {
    let world = World::sqlite().await;
    let connection = application(&world);
    adapters::rusqlite::enqueue(&connection, &note("by-view", payload())).unwrap();
    world.store.enqueue(&note("by-store", payload())).await.unwrap();
    let by_view = written(&connection, "by-view");
    assert_eq!(by_view.len(), 1);
    assert_eq!(written(&connection, "by-store"), by_view);
}

#[tokio::test]
async fn a_key_is_the_same_through_the_store_and_through_the_view() {
    let world = World::sqlite().await;
    let connection = application(&world);
    let first = adapters::rusqlite::enqueue(&connection, &note("a", payload())).unwrap();
    assert_eq!(world.store.enqueue(&note("a", payload())).await.unwrap(), first);
    let second = world.store.enqueue(&note("b", payload())).await.unwrap();
    assert_eq!(adapters::rusqlite::enqueue(&connection, &note("b", payload())).unwrap(), second);
    assert_eq!(world.count("key_conflict").await, 0, "the same content");

    assert_eq!(world.store.enqueue(&note("b", json!({"other": 1}))).await.unwrap(), second);
    assert_eq!(world.count("key_conflict").await, 1);
    let mut strict = note("b", json!({"other": 1}));
    strict.strict = true;
    let refused = world.store.enqueue(&strict).await;
    assert!(matches!(refused, Err(EnqueueError::Refused(Error::Conflict { first, .. })) if first == second));
    assert_eq!(world.count("notification").await, 2);
}

#[tokio::test]
async fn new_tenants_given_times_and_exceeded_limits() {
    let world = World::sqlite().await;
    let mut of_new_tenant = note("a", payload());
    of_new_tenant.tenant = "new".into();
    world.store.enqueue(&of_new_tenant).await.unwrap();
    assert!(world.store.tenant("new").await.unwrap().is_some());
    world.store.enqueue(&of_new_tenant).await.unwrap();

    let mut later = note("later", payload());
    later.due_at = Some("2031-05-04T10:00:00.1234Z".parse().unwrap());
    let id = world.store.enqueue(&later).await.unwrap();
    let stored = world.store.notification(None, id).await.unwrap().unwrap();
    assert_eq!(stored.due_at.to_string(), "2031-05-04T10:00:00.123Z");

    // The SDK does not check this field, because it is set after the build.
    let mut beyond = note("beyond", payload());
    beyond.title = Some("x".repeat(999));
    let refused = world.store.enqueue(&beyond).await.unwrap_err();
    assert!(refused.to_string().contains("title") && refused.to_string().contains("at most 998 bytes"), "{refused}");
    assert_eq!(world.count("notification").await, 2);
    assert_eq!(world.count("idempotency").await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_request_is_rolled_back_alone() {
    let world = World::sqlite().await;
    application(&world).execute_batch("CREATE TABLE t (x INTEGER PRIMARY KEY)").unwrap();
    let Db::Sqlite(db) = world.store.db().clone() else { panic!("SQLite") };
    let mut writing = tokio::task::JoinSet::new();
    for x in 0..20_i64 {
        let db = db.clone();
        writing.spawn(async move {
            let write = db.write(move |connection| {
                // In the meantime the other requests arrive, and share the commit.
                std::thread::sleep(Duration::from_millis(if x == 0 { 100 } else { 0 }));
                connection.execute("INSERT INTO t VALUES (?1)", [x]).unwrap();
                match x {
                    7 => Err(DbError::Unreadable("seven".into())),
                    8 => panic!("eight"),
                    _ => Ok(x),
                }
            });
            (x, write.await.ok())
        });
    }
    while let Some(done) = writing.join_next().await {
        let (x, answer) = done.unwrap();
        assert_eq!(answer, (x != 7 && x != 8).then_some(x));
    }
    let count: i64 =
        application(&world).query_row("SELECT count(*) FROM t WHERE x NOT IN (7, 8)", [], |row| row.get(0)).unwrap();
    let strays: i64 =
        application(&world).query_row("SELECT count(*) FROM t WHERE x IN (7, 8)", [], |row| row.get(0)).unwrap();
    assert_eq!((count, strays), (18, 0));
}
