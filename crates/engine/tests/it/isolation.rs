//! Row-level security: as one tenant, PostgreSQL shows no row of another tenant, whatever the statement selects.

use std::time::Duration;

use postcommit::Notification;
use postcommit_channel::model::Scopes;
use postcommit_engine::db::{DbError, Value};
use postcommit_engine::dispatch::Dispatcher;
use postcommit_engine::store::{Act, DeliveryFilter, JobDraft, KpiSettings, Lacking, Login, Opener, Store, Unopened};
use postcommit_engine::user_token;
use postcommit_testkit::Cluster;
use serde_json::json;

use crate::installations::asked;
use crate::keys::draft;
use crate::world::{World, role};

/// All tables with a tenant, and the name of that column.
const TABLES: &str = "SELECT c.relname, CASE c.relname WHEN 'tenant' THEN 'id' ELSE 'tenant' END FROM pg_class c
    WHERE c.relnamespace = 'postcommit'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
    AND (c.relname = 'tenant' OR EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'tenant')) ORDER BY 1";

/// The tables of this version.
const KNOWN: [&str; 25] = [
    "api_key",
    "audit",
    "cancel_request",
    "delivery_ledger",
    "delivery_queue",
    "idempotency",
    "inbox",
    "inbox_message",
    "inbox_token_key",
    "job",
    "key_conflict",
    "lane_host",
    "logged_attempt",
    "login_link",
    "notification",
    "provider",
    "rollup_fresh",
    "rollup_group",
    "rollup_hour",
    "rollup_label",
    "rollup_minute",
    "session",
    "stale_settle",
    "tenant",
    "unopened_secret",
];

async fn tables(world: &World) -> Vec<(String, String)> {
    world.sql(TABLES, vec![]).await.iter().map(|row| (row.get(0).unwrap(), row.get(1).unwrap())).collect()
}

async fn count(store: &Store, sql: &str) -> i64 {
    store.db().query(&format!("SELECT count(*) FROM {sql}"), vec![]).await.unwrap()[0].get(0).unwrap()
}

/// Creates two tenants with a row in every table. A new table needs a row here.
async fn tenants(world: &World) -> (i32, i32) {
    let (a, b) = (tenant(world, "a").await, tenant(world, "b").await);
    world.store.fold_rollups_once(&KpiSettings::default()).await.unwrap();
    // These rows are counted, but not folded into roll-ups yet.
    let counted = "INSERT INTO postcommit.rollup_fresh (tenant, slot, site, channel, state, count) \
        SELECT t, now(), '', '', 'sent', 1 \
        FROM generate_series($1::int, $2::int) t";
    world.execute(counted, vec![a.into(), b.into()]).await;
    (a, b)
}

async fn tenant(world: &World, name: &str) -> i32 {
    let store = &world.store;
    let tenant = store.create_tenant(name).await.unwrap();
    store.create_provider(tenant, &world.draft("capture", "capture", json!({}))).await.unwrap();
    let lane = store.provider(tenant, "capture").await.unwrap().unwrap().id;
    store.hold_host(lane, "example.com:443", None, Duration::from_secs(60)).await.unwrap();
    store.create_key(tenant, &draft("k", &["admin"])).await.unwrap();
    let login = Login { tenant, key_id: None, actor: "ada".into(), scopes: Scopes::from_names(&["read"]).unwrap() };
    store.create_login_link(&login, Duration::from_secs(60)).await.unwrap();
    store.create_session(&login, Duration::from_secs(60)).await.unwrap();
    user_token::mint(store, tenant, "ada", user_token::DEFAULT_TTL).await.unwrap();
    store
        .create_job(
            Some(tenant),
            &JobDraft { act: Act::Retry, filter: DeliveryFilter::default(), unclear: false, pace_per_s: None },
        )
        .await
        .unwrap();
    let enqueue = async |key: &str, title: &str, due: &str| {
        let document = json!({"event_type": "a", "tenant": name, "idempotency_key": key, "title": title, "due_at": due, "expires_at": "2100-01-01T00:00:00Z", "recipients": [{"email": "a@example.com"}, {"user": "ada"}], "source": {"site": "plant"}});
        let note: Notification = serde_json::from_value(document).unwrap();
        store.enqueue(&note).await.unwrap()
    };
    let id = enqueue("sent", "a", "2020-01-01T00:00:00Z").await;
    enqueue("sent", "b", "2020-01-01T00:00:00Z").await;
    world.pass().await;
    enqueue("waits", "c", "2099-01-01T00:00:00Z").await;
    let unopened = Unopened { tenant, lane, lacking: Lacking::Secrets, reason: "it is another key".into() };
    store.note_unopened(Opener::Worker(id), &[unopened]).await.unwrap();
    let of: Vec<Value> = vec![tenant.into(), id.into()];
    world
        .execute("INSERT INTO postcommit.cancel_request (tenant, notification_id, n) VALUES ($1, $2, 7)", of.clone())
        .await;
    world
        .execute(
            "INSERT INTO postcommit.stale_settle (tenant, notification_id, n, token, outcome) \
            VALUES ($1, $2, 1, $2, 'sent')",
            of.clone(),
        )
        .await;
    world
        .execute(
            "INSERT INTO postcommit.logged_attempt (tenant, notification_id, n, seq, at, outcome, latency_ms, token) \
            VALUES ($1, $2, 1, 7, now(), 'deferred', 1, $2)",
            of.clone(),
        )
        .await;
    content(world, tenant, of).await;
    tenant
}

/// A row in each table of content.
async fn content(world: &World, tenant: i32, of: Vec<Value>) {
    for sql in [
        "INSERT INTO postcommit.content_settings (tenant) VALUES ($1)",
        "INSERT INTO postcommit.event_type (tenant, name) VALUES ($1, 'a')",
        "INSERT INTO postcommit.layout (tenant, name, kind, source) VALUES ($1, 'a', 'layout', 'x')",
        "INSERT INTO postcommit.template (tenant, id, event_type, channel, version) VALUES ($1, 'a', 'other', 'sms', 1)",
        "INSERT INTO postcommit.template_version (tenant, template, version, missing, date_format, time_zone, created_by) \
            VALUES ($1, 'a', 1, 'empty', '%d', 'UTC', 'ada')",
        "INSERT INTO postcommit.user_profile (tenant, id) VALUES ($1, 'ada')",
        "INSERT INTO postcommit.user_address (tenant, user_id, kind, position, address) \
            VALUES ($1, 'ada', 'email', 1, 'ada@example.com')",
        "INSERT INTO postcommit.preference (tenant, user_id, allowed, updated_by) VALUES ($1, 'ada', true, 'ada')",
        "INSERT INTO postcommit.list (tenant, name) VALUES ($1, 'a')",
        "INSERT INTO postcommit.list_member (tenant, list, kind, member) VALUES ($1, 'a', 'user', 'ada')",
        "INSERT INTO postcommit.suppression (tenant, channel, address, reason, created_by) \
            VALUES ($1, 'sms', '+14155550100', 'asked', 'ada')",
    ] {
        world.execute(sql, vec![tenant.into()]).await;
    }
    for sql in [
        "INSERT INTO postcommit.send_key (tenant, key_hash, notification_id, n) VALUES ($1, $2, $2, 1)",
        "INSERT INTO postcommit.expansion_member (tenant, notification_id, position, kind, member) \
            VALUES ($1, $2, 1, 'user', 'ada')",
        "INSERT INTO postcommit.throttle (tenant, key_hash, until, sent) VALUES ($1, $2, {now}, 1)",
        "INSERT INTO postcommit.digest (tenant, key_hash, notification_id, items, bytes) VALUES ($1, $2, $2, 1, 2)",
        "INSERT INTO postcommit.digest_item (tenant, digest_id, notification_id, n) VALUES ($1, $2, $2, 1)",
        "INSERT INTO postcommit.callback_token (tenant, hash, provider, token, created_at) \
            VALUES ($1, uuid_send($2), 1, 'a', {now})",
        "INSERT INTO postcommit.receipt (tenant, provider, event_id, notification_id, n, happened, received_at, look_at) \
            VALUES ($1, 1, 'a', $2, 1, 'sent', {now}, {now})",
    ] {
        world.execute(sql, of.clone()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c15_as_one_tenant_no_table_shows_or_accepts_a_row_of_another() {
    let world = World::postgres().await;
    let (a, b) = tenants(&world).await;
    let scoped = world.store.of_tenant(a);
    let tables = tables(&world).await;
    assert!(KNOWN.iter().all(|known| tables.iter().any(|(name, _)| name == known)), "{tables:?}");
    for (table, key) in &tables {
        let table_of = format!("postcommit.{table}");
        let (own, others) = (
            count(&world.store, &format!("{table_of} WHERE {key} = {a}")).await,
            count(&world.store, &format!("{table_of} WHERE {key} = {b}")).await,
        );
        assert!(own > 0 && others > 0, "{table} shows nothing: {own} and {others}");
        assert_eq!(count(&scoped, &table_of).await, own, "{table}: the WHERE was forgotten");
        assert_eq!(count(&scoped, &format!("{table_of} WHERE {key} = {b}")).await, 0, "{table}: the WHERE was wrong");
        // The statement is planned for one tenant and then run for the next, on any connection.
        assert_eq!(count(&world.store.of_tenant(b), &table_of).await, others, "{table}");
        if table != "tenant" && table != "audit" {
            assert_eq!(
                scoped.db().execute_one(&format!("UPDATE {table_of} SET tenant = tenant"), vec![]).await.unwrap(),
                own as u64,
                "{table}"
            );
            let given_away = scoped
                .db()
                .execute_one(&format!("UPDATE {table_of} SET tenant = {b}"), vec![])
                .await
                .unwrap_err()
                .to_string();
            assert!(given_away.contains("row-level security"), "{table}: {given_away}");
        }
    }
    for view in ["delivery", "notification_status"] {
        let of_a = count(&world.store, &format!("postcommit.{view} WHERE tenant = 'a'")).await;
        assert!(of_a > 0 && count(&world.store, &format!("postcommit.{view}")).await > of_a);
        assert_eq!(count(&scoped, &format!("postcommit.{view}")).await, of_a, "{view}");
    }
    for (table, _) in tables.iter().filter(|(name, _)| name != "tenant" && name != "audit") {
        scoped.db().execute_one(&format!("DELETE FROM postcommit.{table}"), vec![]).await.unwrap();
        let left = count(&world.store, &format!("postcommit.{table} WHERE tenant = {b}")).await;
        assert!(left > 0, "{table}: a DELETE without WHERE went too far");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c15_a_tenant_cannot_write_for_another_nor_make_or_change_tenants_nor_the_log() {
    let world = World::postgres().await;
    let (a, b) = tenants(&world).await;
    let scoped = world.store.of_tenant(a);
    let refused = |said: DbError| {
        let said = said.to_string();
        assert!(said.contains("row-level security") || said.contains("permission denied"), "{said}");
    };
    refused(scoped.create_provider(b, &world.draft("p", "capture", json!({}))).await.unwrap_err());
    refused(scoped.suspend_tenant(b, "mine").await.map_err(|e| DbError::Unreadable(e.to_string())).unwrap_err());
    for sql in [
        "DELETE FROM postcommit.audit".to_owned(),
        "UPDATE postcommit.audit SET actor = 'x'".to_owned(),
        "INSERT INTO postcommit.tenant (name) VALUES ('c')".to_owned(),
        format!(
            "INSERT INTO postcommit.audit (tenant, at, actor, action, subject, count) \
            VALUES ({b}, now(), 'x', 'y', 'z', 1)"
        ),
        "SELECT postcommit.tenant_id('c')".to_owned(),
        "SELECT * FROM postcommit.notification_default".to_owned(),
        "SELECT * FROM postcommit.logged_attempt_default".to_owned(),
        "SELECT postcommit.make_partitions()".to_owned(),
        "SELECT postcommit.enqueue('a', '{}', 'k', tenant => 'b')".to_owned(),
    ] {
        let said = scoped.db().execute_one(&sql, vec![]).await.unwrap_err().to_string();
        assert!(said.contains("row-level security") || said.contains("permission denied"), "{sql}: {said}");
    }
    // Without the setting, no row is visible.
    let nobody = vec![
        (format!("SET LOCAL ROLE {}", world.role("tenant")), vec![]),
        ("DELETE FROM postcommit.delivery_ledger".to_owned(), vec![]),
    ];
    assert_eq!(world.store.db().execute(nobody).await.unwrap()[1], 0);
    // Afterwards the connection has the privileges of its login again.
    assert!(count(&world.store, &format!("postcommit.provider WHERE tenant = {b}")).await > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_s_own_work_passes_row_level_security() {
    let world = World::postgres().await;
    let (a, b) = tenants(&world).await;
    let scoped = world.store.of_tenant(a);
    scoped.create_provider(a, &world.draft("second", "capture", json!({"fail_on": "permanent=a"}))).await.unwrap();
    let lane = scoped.provider(a, "second").await.unwrap().unwrap().id;
    assert!(scoped.pause_lane(lane, None, "by hand").await.unwrap() && scoped.resume_lane(lane).await.unwrap());
    let note: Notification =
        serde_json::from_value(json!({"event_type": "a", "tenant": "a", "recipients": [{"email": "a@example.com"}]}))
            .unwrap();
    let id = world.store.enqueue(&note).await.unwrap();
    world.pass().await;
    let key = postcommit_channel::model::DeliveryKey { tenant: a, notification: id, n: 1 };
    assert!(scoped.retry(key).await.unwrap() && scoped.cancel_delivery(key).await.unwrap());
    assert!(!world.store.of_tenant(b).discard(key).await.unwrap());
    assert_eq!(
        scoped
            .delivery_rows(&DeliveryFilter { notification_id: Some(id), limit: 10, ..DeliveryFilter::default() })
            .await
            .unwrap()
            .rows[0]
            .state,
        "cancelled"
    );
    assert!(world.store.of_tenant(b).notification(None, id).await.unwrap().is_none(), "and no row of another tenant");
    assert_eq!(scoped.delete_provider(a, "second").await.unwrap(), Some(0));
    let made = scoped.create_key(a, &draft("own", &["read"])).await.unwrap();
    assert!(
        !world.store.of_tenant(b).revoke_key(a, &made.id).await.unwrap()
            && scoped.revoke_key(a, &made.id).await.unwrap()
    );
}

/// The owner of a table bypasses row-level security, so that pg_dump reads everything. Therefore the tenants' role may
/// own nothing and be no member of an owner.
#[tokio::test(flavor = "multi_thread")]
async fn a_tenants_role_that_owns_a_table_is_found_and_loses_it() {
    let world = World::postgres().await;
    let (a, _) = tenants(&world).await;
    let before = count(&world.store.of_tenant(a), "postcommit.provider").await;
    let give = format!("ALTER TABLE postcommit.provider OWNER TO {}", world.role("tenant"));
    world.execute(&give, vec![]).await;
    assert!(count(&world.store.of_tenant(a), "postcommit.provider").await > before);
    let said = world.store.check_isolation().await.unwrap_err().to_string();
    assert!(said.contains("not active") && said.contains("provider"), "{said}");
    world.store.db().migrate().await.unwrap();
    world.store.check_isolation().await.unwrap();
    assert_eq!(count(&world.store.of_tenant(a), "postcommit.provider").await, before);
    world.store.db().make_roles().await.unwrap();
    world.execute(&format!("GRANT {} TO {}", world.role("owner"), world.role("tenant")), vec![]).await;
    let said = world.store.check_isolation().await.unwrap_err().to_string();
    assert!(said.contains("not active") && said.contains("provider"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_of_a_later_migration_gets_row_level_security() {
    let world = World::postgres().await;
    world.store.check_isolation().await.unwrap();
    world.execute("CREATE TABLE postcommit.later (tenant int NOT NULL, id int)", vec![]).await;
    world.execute("CREATE VIEW postcommit.latest AS SELECT max(id) FROM postcommit.later", vec![]).await;
    world.execute("INSERT INTO postcommit.later VALUES (1, 1), (2, 2)", vec![]).await;
    let said = world.store.check_isolation().await.unwrap_err().to_string();
    assert!(
        said.contains("the protection between tenants is missing on later, latest")
            && said.contains("ALTER TABLE postcommit.later ENABLE ROW LEVEL SECURITY"),
        "{said}"
    );
    world.store.db().migrate().await.unwrap();
    world.store.check_isolation().await.unwrap();
    let latest = world.store.of_tenant(1).db().query("SELECT * FROM postcommit.latest", vec![]).await.unwrap();
    assert_eq!((count(&world.store.of_tenant(1), "postcommit.later").await, latest[0].get::<i32>(0).unwrap()), (1, 1));
}

/// Roles belong to a cluster, so a test that changes them needs a cluster of its own.
#[tokio::test(flavor = "multi_thread")]
async fn the_self_check_refuses_a_role_that_bypasses_row_level_security() {
    let cluster = Cluster::start();
    let store = Store::open(&cluster.url()).await.unwrap();
    store.db().migrate().await.unwrap();
    store.check_isolation().await.unwrap();
    let role = role(&store, "tenant");
    for bypass in ["BYPASSRLS", "SUPERUSER"] {
        store.db().execute_one(&format!("ALTER ROLE {role} {bypass}"), vec![]).await.unwrap();
        let said = store.check_isolation().await.unwrap_err().to_string();
        let mend = format!("ALTER ROLE {role} NOSUPERUSER NOBYPASSRLS");
        assert!(said.ends_with(&mend), "{said}");
        store.db().execute_one(&mend, vec![]).await.unwrap();
        store.check_isolation().await.unwrap();
    }
}

/// A common login: it owns its database and may not create roles.
#[tokio::test(flavor = "multi_thread")]
async fn a_login_without_createrole_migrates_and_is_told_what_to_ask_for() {
    let cluster = Cluster::start();
    let (admin, connection) = tokio_postgres::connect(&cluster.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    admin.batch_execute("CREATE ROLE \"plain one\" LOGIN").await.unwrap();
    admin.batch_execute("CREATE DATABASE app OWNER \"plain one\"").await.unwrap();
    let mut config: tokio_postgres::Config = cluster.url().parse().unwrap();
    config.user("plain one").dbname("app");
    let (host, port) = (config.get_hosts()[0].clone(), config.get_ports()[0]);
    let tokio_postgres::config::Host::Tcp(host) = host else { panic!("over TCP") };
    let store = Store::open(&format!("postgres://plain%20one@{host}:{port}/app")).await.unwrap();
    store.db().migrate().await.unwrap();
    let said = store.check_isolation().await.unwrap_err().to_string();
    let role = role(&store, "tenant");
    let script = asked(&said);
    assert!(script.starts_with(&format!("CREATE ROLE {role} NOLOGIN; GRANT {role} TO \"plain one\"")), "{said}");
    assert!(store.of_tenant(1).tenants().await.is_err(), "without the role nothing is read");
    let (create, grant) = script.split_once("; ").unwrap();
    admin.batch_execute(create).await.unwrap();
    store.db().migrate().await.unwrap();
    let said = store.check_isolation().await.unwrap_err().to_string();
    assert!(said.ends_with(grant), "{said}");
    admin.batch_execute(grant).await.unwrap();
    store.db().migrate().await.unwrap();
    store.check_isolation().await.unwrap();

    // Before PostgreSQL 16 the role's policies always apply to the login. They must not hide rows.
    let world = World::sqlite().await;
    store.create_provider(1, &world.draft("capture", "capture", json!({}))).await.unwrap();
    let note: Notification =
        serde_json::from_value(json!({"event_type": "a", "recipients": [{"email": "a@example.com"}]})).unwrap();
    let other: Notification =
        serde_json::from_value(json!({"event_type": "a", "tenant": "acme", "recipients": []})).unwrap();
    let id = store.enqueue(&note).await.unwrap();
    store.enqueue(&other).await.unwrap();
    Dispatcher::new(world.tools(store.clone())).await.unwrap().pass(None).await.unwrap();
    assert_eq!(store.notification_row(id).await.unwrap().unwrap().state, "sent");
    assert_eq!((store.tenants().await.unwrap().len(), store.of_tenant(1).tenants().await.unwrap().len()), (2, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn many_databases_of_a_cluster_create_the_role_concurrently() {
    let cluster = Cluster::start();
    let (admin, connection) = tokio_postgres::connect(&cluster.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let mut making = Vec::new();
    for i in 0..6 {
        admin.batch_execute(&format!("CREATE DATABASE d{i}")).await.unwrap();
        let (place, _) =
            cluster.url().rsplit_once('/').map(|(place, name)| (place.to_owned(), name.to_owned())).unwrap();
        let url = format!("{place}/d{i}");
        making.push(tokio::spawn(async move {
            let store = Store::open(&url).await.unwrap();
            store.db().migrate().await?;
            store.db().make_roles().await?;
            store.check_isolation().await
        }));
    }
    for one in making {
        one.await.unwrap().unwrap();
    }
}

/// A separate login for the server, as `migrate --roles` intends: it may SET ROLE, and until then the role's policy
/// does not apply.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_s_login_may_take_the_role_and_is_no_tenant_until_then() {
    let world = World::postgres().await;
    let (a, _) = tenants(&world).await;
    world.store.db().make_roles().await.unwrap();
    let login = format!("worker_{}", uuid::Uuid::new_v4().simple());
    world.execute(&format!("CREATE ROLE {login} LOGIN IN ROLE {}", world.role("worker")), vec![]).await;
    let store = Store::open(&world.url.replacen("postgres@", &format!("{login}@"), 1)).await.unwrap();
    store.check_isolation().await.unwrap();
    store.db().migrate().await.expect("it owns nothing, and leaves everything as it is");
    let taken = store
        .db()
        .query("SELECT pg_has_role(postcommit.role_name('tenant'), 'USAGE'), row_security_active('postcommit.notification')", vec![])
        .await
        .unwrap();
    assert_eq!((taken[0].get::<bool>(0).unwrap(), taken[0].get::<bool>(1).unwrap()), (false, true));
    assert_eq!(
        (count(&store, "postcommit.session").await, count(&store.of_tenant(a), "postcommit.session").await),
        (2, 1)
    );
    let lane = store.of_tenant(a).provider(a, "capture").await.unwrap().unwrap().id;
    assert!(store.of_tenant(a).pause_lane(lane, None, "by hand").await.unwrap());
    let denied = store.db().execute_one("DELETE FROM postcommit.audit", vec![]).await.unwrap_err().to_string();
    assert!(denied.contains("permission denied"), "{denied}");
    drop(store);
    world.execute(&format!("DROP ROLE {login}"), vec![]).await;
}

#[tokio::test]
async fn on_sqlite_there_is_no_row_level_security_and_nothing_to_check() {
    let world = World::sqlite().await;
    world.store.check_isolation().await.unwrap();
    assert_eq!(world.store.of_tenant(99).tenants().await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn functions_that_were_restored_without_privileges_are_taken_from_public() {
    let world = World::postgres().await;
    let (db, open) = (world.store.db(), "SELECT has_function_privilege('public', 'postcommit.restored()', 'EXECUTE')");
    world.execute("CREATE FUNCTION postcommit.restored() RETURNS int LANGUAGE sql AS 'SELECT 1'", vec![]).await;
    let problem = db.check_isolation().await.unwrap_err().to_string();
    assert!(problem.contains("PUBLIC may call functions of the schema postcommit: restored"), "{problem}");
    assert!(db.migrate().await.unwrap().arranged);
    db.check_isolation().await.unwrap();
    assert!(!world.sql(open, vec![]).await[0].get::<bool>(0).unwrap());
    world.execute("GRANT EXECUTE ON FUNCTION postcommit.restored() TO PUBLIC", vec![]).await;
    assert!(!db.migrate().await.unwrap().arranged, "a manual grant stays");
    assert!(world.sql(open, vec![]).await[0].get::<bool>(0).unwrap());
}
