//! The schema: golden dumps, versions, the limits that the database checks, roles, partitions.

use std::path::Path;

use postcommit_engine::db::{DbError, LATEST};
use postcommit_engine::store::{KpiSettings, Store};
use serde_json::json;

use crate::world::World;

/// Compares the text with the file that is checked in; `UPDATE_GOLDEN=1` writes it.
fn golden(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        text == expected,
        "the schema differs from {name}; look at the difference, then run this test with UPDATE_GOLDEN=1"
    );
}

const POSTGRES_DUMP: &str = "
    SELECT kind || ' ' || line FROM (
      SELECT 1 AS part, 'column' AS kind, format('%s.%s %s%s%s', c.relname, a.attname, format_type(a.atttypid, a.atttypmod), CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END,
          coalesce(' DEFAULT ' || pg_get_expr(d.adbin, d.adrelid), '')) AS line, c.relname AS one, a.attnum AS two
        FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
        WHERE c.relnamespace = 'postcommit'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition AND a.attnum > 0 AND NOT a.attisdropped
      UNION ALL SELECT 2, 'constraint', format('%s %s %s', c.relname, k.conname, pg_get_constraintdef(k.oid)), c.relname, 0
        FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid WHERE c.relnamespace = 'postcommit'::regnamespace AND NOT c.relispartition AND k.contype <> 'n'
      UNION ALL SELECT 3, 'index', pg_get_indexdef(i.indexrelid), c.relname, 0
        FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid WHERE c.relnamespace = 'postcommit'::regnamespace AND NOT c.relispartition
      UNION ALL SELECT 4, 'function', format('%s -> %s%s', p.oid::regprocedure, pg_get_function_result(p.oid), CASE WHEN p.prosecdef THEN ' SECURITY DEFINER ' || p.proconfig::text ELSE '' END), p.proname, 0
        FROM pg_proc p WHERE p.pronamespace = 'postcommit'::regnamespace
      UNION ALL SELECT 5, 'view', format('%s.%s %s', c.relname, a.attname, format_type(a.atttypid, a.atttypmod)), c.relname, a.attnum
        FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid WHERE c.relnamespace = 'postcommit'::regnamespace AND c.relkind = 'v' AND a.attnum > 0
      UNION ALL SELECT 6, 'policy', format('%s %s %s to %s: %s', c.relname, p.polname, CASE WHEN p.polpermissive THEN 'permissive' ELSE 'restrictive' END,
          CASE p.polroles WHEN '{0}' THEN 'public' ELSE (SELECT string_agg(r.rolname, ', ') FROM pg_roles r WHERE r.oid = ANY (p.polroles)) END, pg_get_expr(p.polqual, p.polrelid)), c.relname, 0
        FROM pg_policy p JOIN pg_class c ON c.oid = p.polrelid WHERE c.relnamespace = 'postcommit'::regnamespace
    ) dump ORDER BY part, one, two, line";

#[tokio::test]
async fn the_postgres_schema_is_the_one_checked_in() {
    let world = World::postgres().await;
    let rows = world.sql(POSTGRES_DUMP, vec![]).await;
    // Role names contain the database's OID.
    let lines: Vec<String> = rows
        .iter()
        .map(|row| row.get::<String>(0).unwrap().replace(&world.role("tenant"), "postcommit_tenant_OID"))
        .collect();
    golden("postgres/schema.golden", &(lines.join("\n") + "\n"));
}

#[tokio::test]
async fn the_sqlite_schema_is_the_one_checked_in() {
    let world = World::sqlite().await;
    let rows = world
        .sql(
            "SELECT sql \
            FROM sqlite_schema \
            WHERE sql IS NOT NULL AND name LIKE 'postcommit%' \
            ORDER BY type, name",
            vec![],
        )
        .await;
    let lines: Vec<String> = rows.iter().map(|row| row.get(0).unwrap()).collect();
    golden("sqlite/schema.golden", &(lines.join(";\n\n") + ";\n"));
}

on_both! {
    async fn a_schema_newer_than_the_program_is_refused(world) {
        let newer = if world.is_postgres() { "INSERT INTO postcommit.migration (version, name) VALUES (99, 'future')" } else { "INSERT INTO postcommit_migration VALUES (99, 'future', 0)" };
        world.execute(newer, vec![]).await;
        let store = Store::open(&world.url).await.unwrap();
        assert!(matches!(store.db().check_schema().await, Err(DbError::TooNew { found: 99, known: LATEST })));
        assert!(matches!(store.db().migrate().await, Err(DbError::TooNew { .. })), "and nothing is applied to it");
    }

    async fn limits_hold_for_every_language_and_name_field_and_limit(world) {
        let fields = "event_type, payload, idempotency_key, title, priority, entity, action_url, recipients, data, expires_at";
        let attempt = async |index: usize, value: &str| {
            let mut values = ["'e'", "'{}'", "'k'", "NULL", "5", "NULL", "NULL", "'[]'", "NULL", "NULL"].map(str::to_owned);
            values[index] = value.to_owned();
            let sql = if world.is_postgres() {
                let named: Vec<String> = fields.split(", ").zip(&values).map(|(field, value)| format!("{field} => {value}")).collect();
                format!("SELECT postcommit.enqueue({})", named.join(", "))
            } else {
                format!("INSERT INTO postcommit_enqueue ({fields}) VALUES ({})", values.join(", "))
            };
            match world.store.db().execute_one(&sql, vec![]).await {
                Ok(_) => "accepted".to_owned(),
                Err(problem) => problem.to_string(),
            }
        };
        let long = |count: usize| format!("'{}'", "x".repeat(count));
        let big = format!("'[\"{}\"]'", "x".repeat(262_144));
        for (index, value, expected) in [
            (0, long(256), "event_type_1_to_255_characters"),
            (0, "''".into(), "event_type_1_to_255_characters"),
            (1, big, "payload_at_most_262144_bytes"),
            (2, "NULL".into(), "idempotency_key is missing; 1 to 255 characters are needed"),
            (2, long(256), "idempotency_key_1_to_255_characters"),
            (3, long(999), "title_at_most_998_bytes"),
            (3, "'a' || chr(10) || 'b'".into(), "title_without_line_breaks"),
            (4, "10".into(), "priority_0_to_9"),
            (5, long(256), "entity_1_to_255_characters"),
            (6, "'javascript:alert(1)'".into(), "action_url_is_http_https_mailto_or_tel"),
            (7, "'{}'".into(), "recipients_is_an_array_of_at_most_1000"),
            (8, "'[]'".into(), "data_is_an_object_by_channel"),
            (9, "'2020-01-01T00:00:00Z'".into(), "expires_at_after_due_at"),
        ] {
            let value = if world.is_postgres() { value } else { value.replace("chr(", "char(") };
            let said = attempt(index, &value).await;
            assert!(said.contains(expected), "{value:.40} → {said}");
        }
        assert_eq!(world.count("notification").await + world.count("idempotency").await, 0, "what was refused left nothing");
        assert_eq!(attempt(3, &long(998)).await, "accepted");
    }
}

/// Each value is beyond a limit that only `limit_exceeded` checks. None may pass the quick check of `plainly_kept`.
#[tokio::test]
async fn the_quick_check_passes_only_values_within_every_limit() {
    let world = World::postgres().await;
    let fields = [
        "event_type",
        "idempotency_key",
        "entity",
        "title",
        "channels",
        "payload",
        "recipients",
        "priority",
        "expires_at",
    ];
    let attempt = async |field: &str, value: &str| {
        let mut values = ["'e'", "'k'", "'1'", "'t'", "'{email}'", "'{}'", "'[]'", "5", "NULL"].map(str::to_owned);
        values[fields.iter().position(|known| *known == field).unwrap()] = value.to_owned();
        let named: Vec<String> =
            fields.iter().zip(&values).map(|(field, value)| format!("{field} => {value}")).collect();
        world
            .store
            .db()
            .execute_one(&format!("SELECT postcommit.enqueue({})", named.join(", ")), vec![])
            .await
            .map(drop)
    };
    for (field, value) in [
        ("event_type", "''"),
        ("event_type", "repeat('ä', 256)"),
        ("idempotency_key", "''"),
        ("idempotency_key", "'k' || chr(10)"),
        ("entity", "''"),
        ("title", "chr(13)"),
        ("channels", "'{NULL}'"),
        ("channels", "'{{a},{b}}'"),
        ("channels", "'{\"a b\"}'"),
        ("channels", "array_fill('a'::text, ARRAY[33])"),
        ("payload", "(repeat('[', 34) || repeat(']', 34))::jsonb"),
        ("recipients", "'1'"),
        ("recipients", "to_jsonb(array_fill(1, ARRAY[1001]))"),
        ("priority", "-1"),
        ("expires_at", "now()"),
    ] {
        assert!(attempt(field, value).await.unwrap_err().to_string().contains(field), "{field} => {value}");
    }
    attempt("channels", "array_fill('a'::text, ARRAY[32])").await.unwrap();
}

#[tokio::test]
async fn partitions_are_made_far_ahead_and_the_default_catches_the_rest() {
    let world = World::postgres().await;
    let health = world.store.partition_health().await.unwrap().unwrap();
    assert_eq!((health.months_ahead, health.in_default), (24, 0));
    assert_eq!(world.store.make_partitions_once().await.unwrap(), 0, "nothing to do twice");
    // This is like an installation whose server has not run for years: this month's partition does not exist.
    let month: String =
        world.sql("SELECT to_char(now() AT TIME ZONE 'UTC', 'YYYY_MM')", vec![]).await[0].get(0).unwrap();
    for table in ["notification", "delivery_ledger", "logged_attempt"] {
        world.execute(&format!("DROP TABLE postcommit.{table}_{month}"), vec![]).await;
    }
    world.capture(json!({"fail_on": "transient=b"})).await;
    let (id, again) = (world.enqueue("a", json!({})).await, world.enqueue("b", json!({})).await);
    world.pass().await;
    assert_eq!(
        (world.delivery(id).await.state.as_str(), world.delivery(again).await.state.as_str()),
        ("sent", "retrying")
    );
    // Two notifications, one delivery in the ledger, and the attempt of the other one.
    assert_eq!(world.store.partition_health().await.unwrap().unwrap().in_default, 4);
    assert_eq!(world.store.make_partitions_once().await.unwrap(), 3);
    assert_eq!(world.store.partition_health().await.unwrap().unwrap().in_default, 0);
    assert_eq!((world.attempts(id).await.len(), world.attempts(again).await.len()), (1, 1));
}

#[tokio::test]
async fn the_producer_role_can_enqueue_and_read_nothing() {
    let world = World::postgres().await;
    world.store.db().make_roles().await.unwrap();
    world.store.db().make_roles().await.unwrap();
    let as_role = async |kind: &str, sql: &str| {
        let statements = vec![(format!("SET LOCAL ROLE {}", world.role(kind)), vec![]), (sql.to_owned(), vec![])];
        world.store.db().execute(statements).await.map(drop).map_err(|e| e.to_string())
    };
    as_role("producer", "SELECT postcommit.enqueue('a', '{}', 'k', entity => 'e')").await.unwrap();
    as_role("producer", "SELECT postcommit.enqueue_many('[{\"event_type\": \"a\", \"idempotency_key\": \"k2\"}]')")
        .await
        .unwrap();
    as_role("producer", "SELECT postcommit.cancel('default', 'e')").await.unwrap();
    let tables = "SELECT c.oid::regclass::text \
            FROM pg_class c \
            WHERE c.relnamespace = 'postcommit'::regnamespace AND c.relkind IN ('r', 'p', 'v')";
    for row in world.sql(tables, vec![]).await {
        let table: String = row.get(0).unwrap();
        let read = as_role("producer", &format!("SELECT * FROM {table}")).await;
        assert!(read.unwrap_err().contains("permission denied"), "{table}");
    }
    for function in [
        "enqueue_batch('[]')",
        "make_partitions()",
        "tenant_id('x')",
        "settle_duplicate(1, 'a', 'b', gen_random_uuid(), false, 'a', 'b', '{}')",
    ] {
        assert!(
            as_role("producer", &format!("SELECT postcommit.{function}"))
                .await
                .unwrap_err()
                .contains("permission denied"),
            "{function}"
        );
    }
    as_role("worker", "SELECT * FROM postcommit.delivery_queue").await.unwrap();
    as_role("reader", "SELECT * FROM postcommit.notification_status").await.unwrap();
    as_role("reader", "SELECT concurrency, rate_per_s, burst FROM postcommit.provider").await.unwrap();
    assert!(as_role("reader", "SELECT secrets FROM postcommit.provider").await.is_err());
    assert!(as_role("reader", "DELETE FROM postcommit.delivery_queue").await.is_err());
    let open: i64 = world
        .sql(
            "SELECT count(*) \
        FROM pg_proc p \
        WHERE p.pronamespace = 'postcommit'::regnamespace \
        AND has_function_privilege('public', p.oid, 'EXECUTE')",
            vec![],
        )
        .await[0]
        .get(0)
        .unwrap();
    assert_eq!(open, 0, "nothing is open to PUBLIC");
}

#[tokio::test]
async fn a_worker_role_is_enough_to_deliver() {
    let world = World::postgres().await;
    world.capture(json!({})).await;
    let id = world.enqueue("a", json!({})).await;
    world.store.db().make_roles().await.unwrap();
    let login = format!("worker_{}", id.simple());
    world.execute(&format!("CREATE ROLE {login} LOGIN IN ROLE {}", world.role("worker")), vec![]).await;
    let url = world.url.replacen("postgres@", &format!("{login}@"), 1);
    assert_ne!(url, world.url);
    let store = Store::open(&url).await.unwrap();
    postcommit_engine::dispatch::Dispatcher::new(world.tools(store.clone())).await.unwrap().pass(None).await.unwrap();
    postcommit_engine::dispatch::run_duties_once(&store, &KpiSettings::default()).await.unwrap();
    assert_eq!(world.delivery(id).await.state, "sent");
    world.execute("UPDATE postcommit.provider SET rate_per_s = 1", vec![]).await;
    let limited = world.enqueue("b", json!({})).await;
    postcommit_engine::dispatch::Dispatcher::new(world.tools(store.clone())).await.unwrap().pass(None).await.unwrap();
    assert_eq!(world.delivery(limited).await.state, "sent");
    drop(store);
    world.execute(&format!("DROP ROLE {login}"), vec![]).await;
}

#[tokio::test]
async fn sqlite_shares_its_file_with_the_application_s_own_tables() {
    let world = World::sqlite().await;
    world.capture(json!({})).await;
    world.execute("CREATE TABLE booking (id INTEGER PRIMARY KEY, guest TEXT)", vec![]).await;
    let path = world.url.strip_prefix("sqlite:").unwrap().to_owned();
    let mut application = rusqlite::Connection::open(path).unwrap();
    let note = postcommit::Notification::event("booking.confirmed", json!({}))
        .key("b1")
        .to(postcommit::Recipient::email("a@example.com"))
        .build()
        .unwrap();
    let begun = application.transaction().unwrap();
    begun.execute("INSERT INTO booking (guest) VALUES ('Ada')", []).unwrap();
    postcommit::adapters::rusqlite::enqueue(&begun, &note).unwrap();
    begun.rollback().unwrap();
    assert_eq!(world.count("notification").await, 0);
    let begun = application.transaction().unwrap();
    begun.execute("INSERT INTO booking (guest) VALUES ('Ada')", []).unwrap();
    let id = postcommit::adapters::rusqlite::enqueue(&begun, &note).unwrap();
    begun.commit().unwrap();
    world.pass().await;
    assert_eq!(world.delivery(id).await.state, "sent");
}

/// A cluster with a certificate of its own, and the file with its root certificate.
async fn cluster_with_tls(folder: &Path) -> (postcommit_testkit::Cluster, std::path::PathBuf) {
    let cluster = postcommit_testkit::Cluster::start();
    let plain = Store::open(&cluster.url()).await.unwrap();
    let key = rcgen::generate_simple_self_signed(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
    for (file, text) in [("server.crt", key.cert.pem()), ("server.key", key.signing_key.serialize_pem())] {
        // The server itself writes the files, because the key must be private to the user that it runs as.
        let lines = text.trim().lines().map(|line| format!("('{line}')")).collect::<Vec<_>>().join(", ");
        let copy = format!("COPY (VALUES {lines}) TO PROGRAM 'umask 077 && cat > {file}'");
        plain.db().execute_one(&copy, vec![]).await.unwrap();
    }
    let (client, connection) = tokio_postgres::connect(&cluster.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute("ALTER SYSTEM SET ssl = on").await.unwrap();
    client.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    let roots = folder.join("root.pem");
    std::fs::write(&roots, key.cert.pem()).unwrap();
    (cluster, roots)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_is_encrypted_and_its_server_checked_when_required() {
    let folder = tempfile::tempdir().unwrap();
    let (cluster, roots) = cluster_with_tls(folder.path()).await;
    let url = format!("{}?sslmode=require", cluster.url());
    // The reload is asynchronous: until it has happened, the server answers that it does not support TLS.
    let store = loop {
        match Store::open(&format!("{url}&sslrootcert={}", roots.display())).await {
            Ok(store) => break store,
            Err(problem) => assert!(problem.to_string().contains("TLS"), "{problem}"),
        }
    };
    let rows = store.db().query("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()", vec![]).await.unwrap();
    assert!(rows[0].get::<bool>(0).unwrap());
    let distrusted = Store::open(&url).await.err().unwrap().to_string();
    assert!(distrusted.contains("certificate"), "{distrusted}");
}

#[tokio::test]
async fn insert_or_ignore_loses_nothing_silently_and_sends_nothing_again() {
    let world = World::sqlite().await;
    world.capture(json!({})).await;
    world.enqueue("a", json!({"idempotency_key": "first"})).await;
    world.pass().await;
    world.execute("CREATE TABLE booking (id INTEGER PRIMARY KEY)", vec![]).await;
    let beyond = "INSERT OR IGNORE INTO postcommit_enqueue (event_type, payload, idempotency_key, priority) \
            VALUES ('a', '{}', 'second', 99)";
    for _ in 0..2 {
        world.execute("INSERT INTO booking DEFAULT VALUES", vec![]).await;
        let said = world.store.db().execute_one(beyond, vec![]).await.unwrap_err().to_string();
        assert!(said.contains("a field is beyond its limit"), "{said}");
    }
    assert_eq!((world.count("delivery_queue").await, world.count("notification").await), (0, 1));
    world
        .execute(
            "INSERT OR IGNORE INTO postcommit_enqueue (event_type, payload, idempotency_key) \
        VALUES ('a', '{\"path\": \"C:\\\\u0000\"}', 'third')",
            vec![],
        )
        .await;
    assert_eq!(world.count("delivery_queue").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_in_the_way_of_a_result_delays_it_and_loses_nothing() {
    let world = World::postgres().await;
    let mut draft = world.draft("capture", "capture", json!({}));
    draft.guarantee = postcommit_channel::model::Guarantee::AtMostOnce;
    let lane = world.provider(draft).await;
    let id = world.enqueue("a", json!({})).await;
    // Expanded already, so that the lock delays only the result.
    world.store.pause_lane(lane, None, "for the expansion").await.unwrap();
    world.pass().await;
    world.store.resume_lane(lane).await.unwrap();
    let impatient = Store::open(&format!("{}?options=-c%20lock_timeout%3D50ms", world.url)).await.unwrap();
    let (mut client, connection) = tokio_postgres::connect(&world.url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let lock = client.transaction().await.unwrap();
    lock.batch_execute("LOCK TABLE postcommit.delivery_ledger IN SHARE MODE").await.unwrap();
    let mut dispatcher = postcommit_engine::dispatch::Dispatcher::new(world.tools(impatient)).await.unwrap();
    let passing = tokio::spawn(async move { dispatcher.pass(None).await });
    let waiting = "SELECT count(*) FROM pg_stat_database WHERE datname = current_database() AND xact_rollback > 2";
    world
        .until("settling was refused a few times", async || {
            world.sql(waiting, vec![]).await[0].get::<i64>(0).unwrap() > 0
        })
        .await;
    lock.rollback().await.unwrap();
    passing.await.unwrap().unwrap();
    let row = world.delivery(id).await;
    assert_eq!((row.state.as_str(), row.attempts), ("sent", 1), "{row:?}");
}

#[tokio::test]
async fn a_file_that_was_replaced_is_noticed() {
    let world = World::sqlite().await;
    world.capture(json!({})).await;
    let running = world.run().await;
    let path = world.url.strip_prefix("sqlite:").unwrap().to_owned();
    let store = world.another_store().await;
    let watching = tokio::spawn(store.db().clone().watch(postcommit_engine::db::Signal::Work, |_| {}));
    std::fs::rename(&path, format!("{path}.old")).unwrap();
    let said = async || store.db().check_schema().await.err().map(|problem| problem.to_string()).unwrap_or_default();
    world.until("it is noticed", async || said().await.contains("moved, deleted or replaced")).await;
    watching.abort();
    drop(running);
}
