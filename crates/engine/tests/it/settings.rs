//! Settings of the server, the database, the role and the session: none of them changes the meaning of our statements,
//! the stored data, or the durability.

use postcommit_engine::db::Db;
use postcommit_engine::dispatch::Dispatcher;
use postcommit_engine::store::{NotificationFilter, Store};
use postcommit_testkit::Cluster;
use serde_json::json;
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

use crate::world::World;

/// Settings that an administrator may have changed. `evil` is a schema with wrong functions, `other` an access method.
const HOSTILE: &[(&str, &str)] = &[
    ("standard_conforming_strings", "off"),
    ("backslash_quote", "off"),
    ("transform_null_equals", "on"),
    ("array_nulls", "off"),
    ("search_path", "evil, pg_catalog"),
    ("quote_all_identifiers", "on"),
    ("row_security", "off"),
    ("default_transaction_isolation", "serializable"),
    ("default_transaction_deferrable", "on"),
    ("timezone", "Europe/Berlin"),
    ("datestyle", "SQL, DMY"),
    ("intervalstyle", "iso_8601"),
    ("bytea_output", "escape"),
    ("extra_float_digits", "-15"),
    ("session_replication_role", "replica"),
    ("statement_timeout", "1ms"),
    ("lock_timeout", "1ms"),
    ("idle_in_transaction_session_timeout", "1ms"),
    ("idle_session_timeout", "1ms"),
    // Not 1 ms, because the statement that resets it needs some time itself.
    ("transaction_timeout", "1s"),
    ("exit_on_error", "on"),
    ("client_encoding", "LATIN1"),
    ("default_table_access_method", "other"),
    ("check_function_bodies", "off"),
    ("enable_indexscan", "off"),
    ("enable_nestloop", "off"),
    ("plpgsql.extra_errors", "all"),
    ("plpgsql.variable_conflict", "use_column"),
    ("restrict_nonsystem_relation_kind", "view"),
    ("synchronous_commit", "off"),
    ("postcommit.doorbell", "off"),
];

const TRAPS: &str = "CREATE SCHEMA evil;
    CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$ SELECT '2000-01-01 00:00:00Z'::timestamptz $$;
    CREATE FUNCTION evil.now() RETURNS timestamptz LANGUAGE sql AS $$ SELECT '2000-01-01 00:00:00Z'::timestamptz $$;
    CREATE FUNCTION evil.lower(text) RETURNS text LANGUAGE sql AS $$ SELECT 'off' $$;
    CREATE FUNCTION evil.same(text, text) RETURNS boolean LANGUAGE sql AS $$ SELECT false $$;
    CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, PROCEDURE = evil.same);
    GRANT USAGE ON SCHEMA evil TO PUBLIC;
    CREATE ACCESS METHOD other TYPE TABLE HANDLER heap_tableam_handler";

/// A connection without Postcommit's session settings.
async fn stranger(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// The settings that this server knows.
async fn known(client: &Client) -> Vec<(&'static str, &'static str)> {
    let mut known = vec![];
    for (name, value) in HOSTILE {
        let row =
            client.query_one("SELECT current_setting($1, true) IS NOT NULL OR $1 LIKE '%.%'", &[name]).await.unwrap();
        if row.get(0) {
            known.push((*name, *value));
        }
    }
    assert!(known.len() >= HOSTILE.len() - 2, "{known:?}");
    known
}

/// The places of a setting: the database, and the role in the database. Both are dropped with the database.
fn places(database: &str) -> [String; 2] {
    [format!("ALTER DATABASE {database}"), format!("ALTER ROLE CURRENT_USER IN DATABASE {database}")]
}

async fn database(client: &Client) -> String {
    client.query_one("SELECT current_database()::text", &[]).await.unwrap().get(0)
}

fn assignment(name: &str, value: &str) -> String {
    let list = if name == "search_path" { value.to_owned() } else { format!("'{value}'") };
    format!("{name} = {list}")
}

/// Enqueues, delivers, settles, lists, and fires a trigger, through a store that was opened under the setting.
async fn use_everything(world: &World, store: &Store, label: &str) {
    let title = format!("C:\\temp\\new 'quoted' {label}");
    let version = async || -> i64 {
        world.sql("SELECT version FROM postcommit.provider_version", vec![]).await[0].get(0).unwrap()
    };
    let before = version().await;
    let draft = world.draft(&format!("p-{}", label.replace(['.', ' '], "-")), "capture", json!({}));
    assert!(store.create_provider(world.tenant, &draft).await.unwrap(), "{label}");
    assert!(version().await > before, "{label}: the trigger of providers");
    let note = json!({"event_type": "a", "recipients": [{"email": "guest@example.com"}, {"user": "zoë"}], "title": title, "payload": {"at": 1.5}});
    let id = store.enqueue(&serde_json::from_value(note).unwrap()).await.unwrap();
    Dispatcher::new(world.tools(store.clone())).await.unwrap().pass(None).await.unwrap();
    let states: Vec<String> = world.deliveries(id).await.iter().map(|row| row.state.clone()).collect();
    assert_eq!(states, ["sent", "delivered"], "{label}");
    let listed =
        store.notification_rows(&NotificationFilter { limit: 10, ..NotificationFilter::default() }).await.unwrap();
    assert_eq!(listed.rows[0].title.as_deref(), Some(title.as_str()), "{label}");
    assert!(store.inbox_unread(world.tenant, "zoë").await.unwrap() > 0, "{label}");
    assert!(!store.is_read_only().await.unwrap(), "{label}");
    let sql = "SELECT coalesce(current_setting('transaction_timeout', true), '0')";
    assert_eq!(store.db().query(sql, vec![]).await.unwrap()[0].get::<String>(0).unwrap(), "0", "{label}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_setting_of_database_or_role_changes_what_our_connections_do() {
    let world = World::postgres().await;
    let admin = stranger(&world.url).await;
    admin.batch_execute(TRAPS).await.unwrap();
    let name = database(&admin).await;
    for (place, (setting, value)) in known(&admin).await.into_iter().enumerate() {
        // Alternately, because the role's setting overrides the database's, and both end up in the same session.
        let place = &places(&name)[place % 2];
        admin.batch_execute(&format!("{place} SET {}", assignment(setting, value))).await.unwrap();
        let store = Store::open(&world.url).await.unwrap();
        use_everything(&world, &store, setting).await;
        admin.batch_execute(&format!("{place} RESET {setting}")).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_all_of_them_together_the_schema_is_made_and_works() {
    let fresh = postcommit_testkit::database().await;
    let admin = stranger(&fresh.url).await;
    admin.batch_execute(TRAPS).await.unwrap();
    let name = database(&admin).await;
    for (place, (setting, value)) in known(&admin).await.into_iter().enumerate() {
        admin.batch_execute(&format!("{} SET {}", places(&name)[place % 2], assignment(setting, value))).await.unwrap();
    }
    let world = World::on(fresh).await;
    use_everything(&world, &world.store, "all").await;
    // A partition has its parent's access method, whichever session creates it.
    admin
        .batch_execute("SET default_table_access_method = 'other'; SELECT postcommit.make_partitions(30)")
        .await
        .unwrap();
    let kinds = world
        .sql(
            "SELECT count(*) \
        FROM pg_class c \
        JOIN pg_am m ON m.oid = c.relam \
        WHERE c.relnamespace = 'postcommit'::regnamespace AND m.amname = 'other'",
            vec![],
        )
        .await;
    assert_eq!(kinds[0].get::<i64>(0).unwrap(), 0);
}

/// A read-only default is the operator's decision: it is reported, not overridden.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_was_made_read_only_is_reported_as_such() {
    let world = World::postgres().await;
    let admin = stranger(&world.url).await;
    admin
        .batch_execute(&format!("ALTER DATABASE {} SET default_transaction_read_only = on", database(&admin).await))
        .await
        .unwrap();
    assert!(Store::open(&world.url).await.unwrap().is_read_only().await.unwrap());
}

/// The stored row, without the columns that always differ.
async fn stored(client: &Client, key: &str) -> serde_json::Value {
    let sql = "SELECT to_jsonb(n) - ARRAY['id', 'created_at', 'idempotency_key'] || jsonb_build_object('expires_at', extract(epoch FROM n.expires_at),
        'due_at', extract(epoch FROM n.due_at), 'hash', (SELECT i.content_hash FROM postcommit.idempotency i WHERE i.notification_id = n.id))
        FROM postcommit.notification n WHERE n.idempotency_key = $1";
    client.query_one(sql, &[&key]).await.unwrap().get(0)
}

/// Returns whether an enqueue with each of these links is accepted. `limit_exceeded` decides that.
async fn verdicts(client: &Client) -> Vec<String> {
    let mut verdicts = vec![];
    for url in [
        "https://shop.example/sale",
        "https://shop.example/a\\b",
        "https://a b",
        "mailto:sales@example.com",
        "tel:\\s",
        "https://sss",
        "javascript:x",
    ] {
        let sql = "SELECT postcommit.enqueue('a', '{}', $1, action_url => $2)";
        let answer = client.query(sql, &[&Uuid::new_v4().to_string(), &url]).await;
        verdicts
            .push(answer.map_or_else(|error| error.as_db_error().unwrap().message().to_owned(), |_| "taken".into()));
    }
    verdicts
}

/// In a time zone with daylight saving, 30 days from that day are an hour short.
const SINGLE: &str = "SELECT postcommit.enqueue('a', '{\"n\": 1.50, \"b\": \"\\u00e9\"}', $1, entity => 'e\\1', recipients => '[{\"email\": \"guest@example.com\"}]',
    channels => ARRAY['email', 'null'], title => 'C:\\temp', action_url => 'https://shop.example/a', data => '{}', due_at => '2026-03-20T00:00:00Z')";
const MANY: &str = "SELECT postcommit.enqueue_many(jsonb_build_array(jsonb_build_object('event_type', 'a', 'idempotency_key', $1::text,
    'channels', jsonb_build_array('email', 'null'), 'title', 'C:\\temp', 'due_at', '2026-03-20T00:00:00Z', 'source', '{\"site\": \"s\"}'::jsonb)))";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_producers_own_settings_change_nothing_of_what_is_stored() {
    let world = World::postgres().await;
    let plain = stranger(&world.url).await;
    plain.batch_execute(TRAPS).await.unwrap();
    // The texts hold backslashes, which the producer's session may interpret differently: there they are passed as
    // parameters.
    plain.execute(SINGLE, &[&"plain"]).await.unwrap();
    plain.execute(MANY, &[&"plain-many"]).await.unwrap();
    let (single, many, links) =
        (stored(&plain, "plain").await, stored(&plain, "plain-many").await, verdicts(&plain).await);
    assert_eq!(single["expires_at"].as_f64().unwrap() - single["due_at"].as_f64().unwrap(), 720.0 * 3600.0);
    for (setting, value) in known(&plain).await {
        // Settings that end or refuse statements of the producer, or hide rows from it, are left out.
        if [
            "statement_timeout",
            "idle_session_timeout",
            "transaction_timeout",
            "exit_on_error",
            "client_encoding",
            "restrict_nonsystem_relation_kind",
        ]
        .contains(&setting)
        {
            continue;
        }
        // A new session, because a function's body is parsed when a session first calls it.
        let producer = stranger(&world.url).await;
        let (one, batch) = (producer.prepare(SINGLE).await.unwrap(), producer.prepare(MANY).await.unwrap());
        producer.batch_execute(&format!("SET {}", assignment(setting, value))).await.unwrap();
        let keys = [format!("one {setting}"), format!("many {setting}")];
        producer.execute(&one, &[&keys[0]]).await.unwrap_or_else(|error| panic!("{setting}: {error:?}"));
        producer.execute(&batch, &[&keys[1]]).await.unwrap_or_else(|error| panic!("{setting}: {error:?}"));
        assert_eq!(stored(&plain, &keys[0]).await, single, "{setting}");
        assert_eq!(stored(&plain, &keys[1]).await, many, "{setting}");
        assert_eq!(verdicts(&producer).await, links, "{setting}");
    }
}

/// A text with a backslash depends on the caller's `standard_conforming_strings`, unless it is written as E'…'. Bodies
/// that were parsed when they were created do not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_function_has_a_backslash_that_a_setting_could_change() {
    let world = World::postgres().await;
    let sql = "SELECT p.oid::regprocedure::text FROM pg_proc p WHERE p.pronamespace = 'postcommit'::regnamespace AND p.prosqlbody IS NULL
        AND regexp_replace(p.prosrc, E'\\\\mE''[^'']*''', '', 'g') LIKE E'%\\\\\\\\%' AND NOT coalesce(p.proconfig, '{}') @> ARRAY['standard_conforming_strings=on']";
    let found: Vec<String> = world.sql(sql, vec![]).await.iter().map(|row| row.get(0).unwrap()).collect();
    assert_eq!(found, Vec::<String>::new());
}

async fn commits(store: &Store) -> [String; 2] {
    let Db::Postgres(db) = store.db() else { panic!("not PostgreSQL") };
    let sql = "SELECT current_setting('synchronous_commit')";
    [
        db.client().await.unwrap().query_one(sql, &[]).await.unwrap().get(0),
        db.hot().await.unwrap().query_one(sql, &[]).await.unwrap().get(0),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_pools_commit_at_least_synchronously_whatever_the_settings() {
    let world = World::postgres().await;
    let admin = stranger(&world.url).await;
    let name = database(&admin).await;
    for (weak, held) in
        [("off", "on"), ("local", "on"), ("remote_write", "on"), ("on", "on"), ("remote_apply", "remote_apply")]
    {
        for place in places(&name) {
            admin.batch_execute(&format!("{place} SET synchronous_commit = {weak}")).await.unwrap();
            assert_eq!(commits(&Store::open(&world.url).await.unwrap()).await, [held; 2], "{place} {weak}");
            admin.batch_execute(&format!("{place} RESET synchronous_commit")).await.unwrap();
        }
        let url = format!("{}?options=-c%20synchronous_commit%3D{weak}", world.url);
        assert_eq!(commits(&Store::open(&url).await.unwrap()).await, [held; 2], "URL {weak}");
    }
}

/// A transaction with NOTIFY cannot be prepared. Without NOTIFY it can, and the poll delivers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prepared_transaction_enqueues_without_notify() {
    let cluster = tokio::task::spawn_blocking(|| Cluster::start_with(&["max_prepared_transactions=4"])).await.unwrap();
    let mut world = World::on(cluster.postgres().database().await).await;
    world.settings.interval_ms = 1000;
    world.capture(json!({})).await;
    let running = world.run().await;
    world.until("a dispatcher sleeps", async || world.count("asleep").await > 0).await;
    let producer = stranger(&world.url).await;
    let mut place = 0;
    let mut prepare = async |setting: &str| {
        place += 1;
        // Waits until a dispatcher is idle, which it marks for a short time only.
        world.until("a dispatcher sleeps", async || world.count("asleep").await > 0).await;
        let enqueue = format!(
            "BEGIN; {setting}; SELECT postcommit.enqueue('a', '{{}}', 'k{place}', recipients => '[{{\"email\": \"g@example.com\"}}]');
             SELECT postcommit.enqueue_many('[{{\"event_type\": \"a\", \"idempotency_key\": \"m{place}\"}}]'); SELECT postcommit.cancel('default', 'nothing')"
        );
        producer.batch_execute(&enqueue).await.unwrap();
        let prepared = producer.batch_execute(&format!("PREPARE TRANSACTION 't{place}'")).await.is_ok();
        let end = if prepared { format!("COMMIT PREPARED 't{place}'") } else { "ROLLBACK".into() };
        producer.batch_execute(&end).await.unwrap();
        prepared
    };
    for silent in [
        "SET LOCAL postcommit.doorbell = off",
        "SET postcommit.doorbell = 'OFF'",
        "SET postcommit.doorbell = false",
        "SET postcommit.doorbell = 0",
        "SET postcommit.doorbell = 'no'",
    ] {
        assert!(prepare(silent).await, "{silent}");
    }
    world.drained().await;
    assert_eq!(world.count("notification").await, 10);
    running.finish().await;
    // Marks a worker idle for an hour, so that every enqueue sends NOTIFY.
    world.store.fall_idle(Uuid::new_v4(), std::time::Duration::from_secs(3600)).await.unwrap();
    for loud in ["SET postcommit.doorbell = on", "SET postcommit.doorbell = ''", "RESET postcommit.doorbell"] {
        assert!(!prepare(loud).await, "{loud}");
    }
    assert!(prepare("SET LOCAL postcommit.doorbell = off").await, "beside an idle dispatcher");
}

/// Triggers that do not fire would go unnoticed, so a login that may not change the setting is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_for_which_no_trigger_fires_is_refused() {
    let cluster = tokio::task::spawn_blocking(Cluster::start).await.unwrap();
    let database = cluster.postgres().database().await;
    let admin = stranger(&database.url).await;
    admin
        .batch_execute(&format!(
            "CREATE ROLE little LOGIN; ALTER DATABASE {} SET session_replication_role = replica",
            database.name()
        ))
        .await
        .unwrap();
    let little = database.url.replacen("postgres@", "little@", 1);
    let refused = Store::open(&little).await.err().unwrap().to_string();
    assert!(refused.contains("session_replication_role is not `origin` for this login"), "{refused}");
    Store::open(&database.url).await.unwrap();
    admin.batch_execute(&format!("ALTER DATABASE {} RESET session_replication_role", database.name())).await.unwrap();
    Store::open(&little).await.unwrap();
}
