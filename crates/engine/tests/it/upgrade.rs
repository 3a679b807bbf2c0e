//! From each released schema to this one: earlier notifications are delivered, and no record is lost.

use postcommit_engine::db::{Db, MIGRATIONS};
use postcommit_engine::store::Store;

/// The statements before the first migration.
const POSTGRES_START: &str = "CREATE SCHEMA postcommit;
    CREATE TABLE postcommit.migration (version int PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())";
const SQLITE_START: &str =
    "CREATE TABLE postcommit_migration (version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at INTEGER NOT NULL)";

async fn count(store: &Store, table: &str) -> i64 {
    store.db().query(&format!("SELECT count(*) FROM postcommit.{table}"), vec![]).await.unwrap()[0].get(0).unwrap()
}

#[tokio::test]
async fn from_schema_1_on_postgres_with_roles() {
    let database = postcommit_testkit::database().await;
    let store = Store::open(&database.url).await.unwrap();
    let Db::Postgres(db) = store.db() else { panic!("not PostgreSQL") };
    let client = db.client().await.unwrap();
    let noted = "INSERT INTO postcommit.migration VALUES (1, 'core')";
    client.batch_execute(&format!("BEGIN; {POSTGRES_START}; {}; {noted}; COMMIT", MIGRATIONS[0].postgres)).await.unwrap();
    store.db().make_roles().await.unwrap();
    let (producer, worker, reader) = (db.role("producer"), db.role("worker"), db.role("reader"));
    let enqueue = format!(
        "SET ROLE {producer}; SELECT postcommit.enqueue('a', '{{\"x\": 1.0}}', 'k', recipients => '[{{\"email\": \"a@example.com\"}}]'); RESET ROLE"
    );
    client.batch_execute(&enqueue).await.unwrap();

    store.db().migrate().await.unwrap();
    store.db().check_schema().await.unwrap();
    client.batch_execute(&enqueue).await.expect("the roles reach what was added, and the key is recognised");
    assert_eq!((count(&store, "notification").await, count(&store, "key_conflict").await), (1, 0));
    client.batch_execute(&enqueue.replace("1.0", "1")).await.unwrap();
    assert_eq!((count(&store, "notification").await, count(&store, "key_conflict").await), (1, 1));
    client.batch_execute(&format!("SET ROLE {worker}; SELECT version FROM postcommit.provider_version; RESET ROLE")).await.unwrap();
    let held = "SELECT count(*) \
        FROM pg_constraint \
        WHERE contype = 'c' AND conrelid::regclass::text LIKE 'postcommit.notification%'";
    assert_eq!(store.db().query(held, vec![]).await.unwrap()[0].get::<i64>(0).unwrap(), 0, "limits are kept by the functions");
    store.check_isolation().await.unwrap();
    client.batch_execute(&format!("SET ROLE {reader}; SELECT * FROM postcommit.delivery; SELECT * FROM postcommit.notification_status; SELECT name FROM postcommit.api_key; RESET ROLE")).await.unwrap();
    for secret in ["SELECT secret_hash FROM postcommit.api_key", "SELECT * FROM postcommit.session", "SELECT * FROM postcommit.login_link"]
    {
        assert!(client.batch_execute(&format!("BEGIN; SET LOCAL ROLE {reader}; {secret}")).await.is_err(), "{secret}");
        client.batch_execute("ROLLBACK").await.unwrap();
    }
    let refused = client.batch_execute("SELECT postcommit.enqueue('a', '{}', 'k2', priority => 10)").await.unwrap_err();
    assert_eq!(refused.as_db_error().unwrap().constraint(), Some("priority_0_to_9"));
}

#[tokio::test]
async fn from_schema_2_on_postgres_keys_are_recognised_by_every_enqueue_function() {
    let database = postcommit_testkit::database().await;
    let store = Store::open(&database.url).await.unwrap();
    let Db::Postgres(db) = store.db() else { panic!("not PostgreSQL") };
    let client = db.client().await.unwrap();
    let noted = "INSERT INTO postcommit.migration VALUES (1, 'core'), (2, 'speed')";
    let until_2 = format!("BEGIN; {POSTGRES_START}; {}; {}; {noted}; COMMIT", MIGRATIONS[0].postgres, MIGRATIONS[1].postgres);
    client.batch_execute(&until_2).await.unwrap();
    let one = "SELECT postcommit.enqueue('a', '{\"x\": 1.0}', 'k', title => 'it''s', channels => '{email}')";
    client.batch_execute(one).await.unwrap();

    store.db().migrate().await.unwrap();
    let many = "SELECT * \
        FROM postcommit.enqueue_many('[{\"event_type\": \"a\", \"payload\": {\"x\": 1.0}, \"idempotency_key\": \"k\", \"title\": \"it''s\", \"channels\": [\"email\"]}]')";
    client.batch_execute(&format!("{one}; {many}")).await.unwrap();
    assert_eq!((count(&store, "notification").await, count(&store, "key_conflict").await), (1, 0));
    client
        .batch_execute(&format!(
            "{}; {}; {}",
            one.replace("1.0", "1"),
            many.replace("1.0", "1"),
            one.replace("email}'", "email}', body => ''")
        ))
        .await
        .unwrap();
    assert_eq!((count(&store, "notification").await, count(&store, "key_conflict").await), (1, 3));
    // A new notification has the same fingerprint by both functions.
    client.batch_execute(&format!("{}; {}", one.replace("'k'", "'k2'"), many.replace("\"k\"", "\"k2\""))).await.unwrap();
    assert_eq!((count(&store, "notification").await, count(&store, "key_conflict").await), (2, 3));
}

#[tokio::test]
async fn from_schema_1_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.db");
    let file = rusqlite::Connection::open(&path).unwrap();
    file.execute_batch(&format!("{SQLITE_START}; {}; INSERT INTO postcommit_migration VALUES (1, 'core', 0)", MIGRATIONS[0].sqlite))
        .unwrap();
    let enqueue = "INSERT INTO postcommit_enqueue (event_type, payload, idempotency_key, recipients) \
        VALUES ('a', '{\"x\": 1}', 'k', '[{\"email\": \"a@example.com\"}]')";
    file.execute_batch(enqueue).unwrap();

    let store = Store::open(&format!("sqlite:{}", path.display())).await.unwrap();
    store.db().migrate().await.unwrap();
    store.db().check_schema().await.unwrap();
    file.execute_batch(enqueue).unwrap();
    assert_eq!((count(&store, "notification").await, count(&store, "key_conflict").await), (1, 0));
    assert_eq!(store.providers_version().await.unwrap().0, 1);
    let default = store.tenant("default").await.unwrap().unwrap();
    assert_eq!(store.tenant_row(default).await.unwrap().unwrap().suspended_at, None);
    assert!(store.suspend_tenant(default, "unpaid").await.unwrap() && !store.any_key().await.unwrap());
    store.check_isolation().await.unwrap();
}

/// The rows in the tables of schema 3 are protected by the row-level security of schema 4.
#[tokio::test]
async fn from_schema_3_on_postgres_existing_rows_get_row_level_security() {
    let database = postcommit_testkit::database().await;
    let store = Store::open(&database.url).await.unwrap();
    let Db::Postgres(db) = store.db() else { panic!("not PostgreSQL") };
    let client = db.client().await.unwrap();
    let steps = MIGRATIONS[..3]
        .iter()
        .map(|step| format!("{}; INSERT INTO postcommit.migration VALUES ({}, '{}')", step.postgres, step.version, step.name));
    client.batch_execute(&format!("BEGIN; {POSTGRES_START}; {}; COMMIT", steps.collect::<Vec<_>>().join("; "))).await.unwrap();
    client
        .batch_execute(
            "SELECT postcommit.enqueue('a', '{}', 'k'); \
            SELECT postcommit.enqueue('a', '{}', 'k', tenant => 'acme')",
        )
        .await
        .unwrap();

    store.db().migrate().await.unwrap();
    store.check_isolation().await.unwrap();
    let acme = store.tenant("acme").await.unwrap().unwrap();
    assert_eq!((count(&store, "notification_status").await, count(&store.of_tenant(acme), "notification_status").await), (2, 1));
    assert_eq!((count(&store, "delivery").await, count(&store.of_tenant(acme), "delivery").await), (2, 1));
    assert_eq!(count(&store.of_tenant(acme), "tenant").await, 1);
}
