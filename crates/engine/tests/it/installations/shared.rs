//! Databases of schema 8, whose roles were shared by all databases of a cluster. Every test has a cluster of its own,
//! because role names are unique per cluster.

use postcommit_engine::db::{LATEST, MIGRATIONS};
use postcommit_engine::store::Store;
use postcommit_testkit::{Cluster, TestDatabase};

use super::{asked, connect, is_shut_out, texts};
use crate::world::role;

const ROLES: &str = include_str!("shared_roles.sql");
const ISOLATION: &str = include_str!("shared_isolation.sql");
const START: &str = "CREATE SCHEMA postcommit;
    CREATE TABLE postcommit.migration (version int PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())";
const SHARED: &str = "SELECT rolname::text FROM pg_roles WHERE rolname ~ '^postcommit_[a-z]+$' ORDER BY 1";

/// A database as the last release created it, by the login that owns the database.
async fn schema_8(cluster: &Cluster, owner: &str, with_roles: bool) -> TestDatabase {
    let admin = connect(&cluster.url()).await;
    if texts(&admin, SHARED).await.is_empty() {
        let kinds = ["owner", "producer", "worker", "reader", "tenant"];
        admin.batch_execute(&kinds.map(|kind| format!("CREATE ROLE postcommit_{kind}")).join(";")).await.unwrap();
    }
    if texts(&admin, &format!("SELECT rolname::text FROM pg_roles WHERE rolname = '{owner}'")).await.is_empty() {
        admin.batch_execute(&format!("CREATE ROLE {owner} LOGIN SUPERUSER")).await.unwrap();
    }
    let database = cluster.postgres().database_with(&format!("OWNER {owner}")).await;
    let client = connect(&database.url_as(owner)).await;
    let steps = MIGRATIONS[..8]
        .iter()
        .map(|step| format!("{}; INSERT INTO postcommit.migration VALUES ({}, '{}')", step.postgres, step.version, step.name));
    client.batch_execute(&format!("BEGIN; {START}; {}; COMMIT", steps.collect::<Vec<_>>().join("; "))).await.unwrap();
    if with_roles {
        client.batch_execute(ROLES).await.unwrap();
    }
    client.batch_execute(ISOLATION).await.unwrap();
    client.batch_execute(&format!("GRANT postcommit_tenant TO {owner}; GRANT postcommit_tenant TO postcommit_worker")).await.unwrap();
    admin.batch_execute(&format!("ALTER ROLE {owner} NOSUPERUSER")).await.unwrap();
    client.batch_execute("SELECT postcommit.enqueue('a', '{}', 'k', recipients => '[{\"email\": \"a@example.com\"}]')").await.unwrap();
    database
}

/// Logins that are members of the shared roles.
async fn members(cluster: &Cluster) {
    let logins = ["producer", "worker", "reader"].map(|kind| format!("CREATE ROLE {kind}_login LOGIN IN ROLE postcommit_{kind}"));
    connect(&cluster.url()).await.batch_execute(&logins.join(";")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn members_of_roles_that_one_database_used_are_carried_over() {
    let cluster = Cluster::start();
    let database = schema_8(&cluster, "app", true).await;
    members(&cluster).await;
    let admin = Store::open(&database.url).await.unwrap();
    let forced = "SELECT count(*) \
        FROM pg_class \
        WHERE relnamespace = 'postcommit'::regnamespace AND relforcerowsecurity";
    assert!(admin.db().query(forced, vec![]).await.unwrap()[0].get::<i64>(0).unwrap() > 20);
    let migrated = admin.db().migrate().await.unwrap();
    assert_eq!((migrated.applied.len() as i32, migrated.grants.as_slice()), (LATEST - 8, &[][..]));
    admin.check_isolation().await.unwrap();
    assert_eq!(admin.db().query(forced, vec![]).await.unwrap()[0].get::<i64>(0).unwrap(), 0, "the owner's pg_dump works");
    let client = connect(&database.url).await;
    assert_eq!(texts(&client, SHARED).await, Vec::<String>::new(), "nothing needs the shared roles any more");

    for (login, kind) in
        [("producer_login", "producer"), ("worker_login", "worker"), ("reader_login", "reader"), ("app", "owner"), ("app", "tenant")]
    {
        let sql = format!("SELECT pg_has_role('{login}', '{}', 'MEMBER')::text", role(&admin, kind));
        assert_eq!(texts(&client, &sql).await, ["true"], "{login}");
    }
    connect(&database.url_as("producer_login")).await.batch_execute("SELECT postcommit.enqueue('a', '{}', 'k2')").await.unwrap();
    connect(&database.url_as("reader_login")).await.batch_execute("SELECT * FROM postcommit.notification_status").await.unwrap();
    let worker = Store::open(&database.url_as("worker_login")).await.unwrap();
    worker.check_isolation().await.unwrap();
    assert_eq!(worker.of_tenant(1).tenants().await.unwrap().len(), 1);
}

/// A member of a role for one database must not become a member for another.
#[tokio::test(flavor = "multi_thread")]
async fn members_of_roles_that_two_databases_used_are_named_and_not_carried_over() {
    let cluster = Cluster::start();
    let (a, b) = (schema_8(&cluster, "app_a", true).await, schema_8(&cluster, "app_b", true).await);
    members(&cluster).await;
    for login in ["worker_login", "app_b"] {
        connect(&a.url_as(login)).await.batch_execute("SELECT * FROM postcommit.notification").await.expect("this is what is mended here");
    }
    for (database, own, other) in [(&a, "app_a", "app_b"), (&b, "app_b", "app_a")] {
        let admin = Store::open(&database.url).await.unwrap();
        let grants = admin.db().migrate().await.unwrap().grants;
        admin.check_isolation().await.unwrap();
        let expected =
            [("producer", "producer_login"), ("worker", "worker_login"), ("reader", "reader_login"), ("owner", other), ("tenant", other)];
        for (kind, login) in expected {
            let grant = format!("GRANT {} TO {login}", role(&admin, kind));
            assert!(grants.iter().any(|left| left.starts_with(&grant)), "{grant}: {grants:?}");
            is_shut_out(database, login).await;
        }
        assert!(grants.len() == expected.len() && admin.db().migrate().await.unwrap().grants.is_empty(), "it is said once: {grants:?}");
        let store = Store::open(&database.url_as(own)).await.unwrap();
        store.check_isolation().await.expect("the login that owns the database is as able as before");
        store.db().execute_one("SELECT postcommit.enqueue('a', '{}', 'k2')", vec![]).await.unwrap();
    }
    // As an administrator decides.
    let admin = Store::open(&a.url).await.unwrap();
    admin.db().execute_one(&format!("GRANT {} TO worker_login", role(&admin, "worker")), vec![]).await.unwrap();
    Store::open(&a.url_as("worker_login")).await.unwrap().check_isolation().await.unwrap();
    is_shut_out(&b, "worker_login").await;
}

/// A login without roles of its own was a member of the shared tenants' role, like every login, and could read other
/// installations.
#[tokio::test(flavor = "multi_thread")]
async fn a_login_that_took_the_shared_tenants_role_reaches_only_its_own() {
    let cluster = Cluster::start();
    let (a, b) = (schema_8(&cluster, "app_a", false).await, schema_8(&cluster, "app_b", false).await);
    let taken = "BEGIN; SET LOCAL ROLE postcommit_tenant; SET LOCAL postcommit.tenant = '1'; SELECT * FROM postcommit.notification; COMMIT";
    connect(&a.url_as("app_b")).await.batch_execute(taken).await.expect("this is what is mended here");
    for (database, own, other) in [(&a, "app_a", "app_b"), (&b, "app_b", "app_a")] {
        let admin = Store::open(&database.url).await.unwrap();
        let grants = admin.db().migrate().await.unwrap().grants;
        assert!(grants.len() == 1 && grants[0].ends_with(other) || grants[0].contains(&format!("TO {other} WITH")), "{grants:?}");
        is_shut_out(database, other).await;
        Store::open(&database.url_as(own)).await.unwrap().check_isolation().await.unwrap();
    }
    let left = texts(&connect(&cluster.url()).await, SHARED).await;
    assert!(
        left.contains(&"postcommit_tenant".to_owned()),
        "the role stays, because an administrator must decide about its members: {left:?}"
    );
}

/// A server that starts with a login without CREATEROLE changes nothing before it has the privileges it needs.
#[tokio::test(flavor = "multi_thread")]
async fn a_login_that_may_make_no_roles_is_told_what_the_upgrade_needs() {
    let cluster = Cluster::start();
    let database = schema_8(&cluster, "app", true).await;
    let store = Store::open(&database.url_as("app")).await.unwrap();
    let refused = store.db().migrate().await.unwrap_err().to_string();
    assert_eq!(store.db().schema_version().await.unwrap(), 8, "{refused}");
    connect(&cluster.url()).await.batch_execute(asked(&refused)).await.unwrap();
    store.db().migrate().await.unwrap();
    store.check_isolation().await.unwrap();
    assert_eq!(store.of_tenant(1).tenants().await.unwrap().len(), 1);

    let plain = schema_8(&cluster, "plain", false).await;
    let store = Store::open(&plain.url_as("plain")).await.unwrap();
    store.db().migrate().await.unwrap();
    let refused = store.check_isolation().await.unwrap_err().to_string();
    connect(&cluster.url()).await.batch_execute(asked(&refused)).await.unwrap();
    store.db().migrate().await.unwrap();
    store.check_isolation().await.unwrap();
    is_shut_out(&plain, "app").await;
}
