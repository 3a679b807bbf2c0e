//! The problems that `doctor` finds on the server: sessions that hold a snapshot, and roles whose commits do not wait
//! for the disk.

use std::time::Duration;

use postcommit_engine::store::{HeldSnapshot, Holder, Store, WeakCommit};
use postcommit_testkit::Cluster;
use tokio_postgres::{Client, NoTls};

use crate::world::World;

async fn connect(url: &str, application: &str) -> Client {
    let mut config: tokio_postgres::Config = url.parse().unwrap();
    let (client, connection) = config.application_name(application).connect(NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn held(store: &Store, transactions: i64) -> Vec<HeldSnapshot> {
    store.held_snapshots(Duration::ZERO, transactions).await.unwrap()
}

/// Holds a snapshot until the transaction ends.
const HOLD: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_holds_a_snapshot_is_named() {
    let cluster =
        tokio::task::spawn_blocking(|| Cluster::start_with(&["max_prepared_transactions=4", "wal_level=logical"]))
            .await
            .unwrap();
    let world = World::on(cluster.postgres().database().await).await;
    let of = async |name: &str| held(&world.store, i64::MAX).await.into_iter().find(|one| one.name == name);

    let idle = connect(&world.url, "report").await;
    idle.batch_execute("BEGIN").await.unwrap();
    assert_eq!(of("report").await, None, "a transaction that has seen nothing yet holds nothing");
    idle.batch_execute("COMMIT").await.unwrap();
    idle.batch_execute(HOLD).await.unwrap();
    let pid: i32 = idle.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    let found = of("report").await.unwrap();
    assert_eq!(
        (found.holder, found.pid, found.user.as_deref(), found.state.as_deref()),
        (Holder::Session, Some(pid), Some("postgres"), Some("idle in transaction"))
    );
    assert!(found.age.is_some());
    assert!(
        world.store.held_snapshots(Duration::from_secs(3600), i64::MAX).await.unwrap().is_empty(),
        "not for an hour yet"
    );

    // A login that may not see the sessions of others still sees the user, and that many transactions have passed.
    idle.batch_execute("ROLLBACK; CREATE ROLE watcher LOGIN; GRANT USAGE ON SCHEMA postcommit TO watcher")
        .await
        .unwrap();
    idle.batch_execute(HOLD).await.unwrap();
    let little = Store::open(&world.url.replacen("postgres@", "watcher@", 1)).await.unwrap();
    let found = held(&little, 0).await.into_iter().find(|one| one.name == "report").unwrap();
    assert_eq!((found.pid, found.user.as_deref(), found.state, found.age), (Some(pid), Some("postgres"), None, None));
    assert_eq!(held(&little, i64::MAX).await, [], "a snapshot of unknown age is not reported");
    idle.batch_execute("ROLLBACK").await.unwrap();

    let other = connect(&world.url, "other").await;
    other.batch_execute("BEGIN; CREATE TABLE t (); PREPARE TRANSACTION 'forgotten'").await.unwrap();
    let found = of("forgotten").await.unwrap();
    assert_eq!((found.holder, found.pid, found.user.as_deref()), (Holder::Prepared, None, Some("postgres")));
    other.batch_execute("ROLLBACK PREPARED 'forgotten'").await.unwrap();

    // A logical slot holds only the catalogue back. Vacuum of Postcommit's tables continues.
    other.batch_execute("SELECT pg_create_logical_replication_slot('cdc', 'pgoutput')").await.unwrap();
    assert_eq!(held(&world.store, 0).await.into_iter().find(|one| one.holder == Holder::Slot), None);
}

on_both! {
    async fn roles_whose_commits_do_not_wait_are_reported_and_sqlite_always_waits(world) {
        if !world.is_postgres() {
            assert_eq!(world.store.durability().await.unwrap(), None);
            assert_eq!(held(&world.store, 0).await, []);
            return;
        }
        let weak = async || Store::open(&world.url).await.unwrap().durability().await.unwrap().unwrap().weak;
        let admin = connect(&world.url, "admin").await;
        let name: String = admin.query_one("SELECT current_database()::text", &[]).await.unwrap().get(0);
        let user: String = admin.query_one("SELECT current_user::text", &[]).await.unwrap().get(0);
        let before = weak().await;
        admin.batch_execute(&format!("ALTER DATABASE {name} SET synchronous_commit = false")).await.unwrap();
        admin.batch_execute(&format!("ALTER ROLE CURRENT_USER IN DATABASE {name} SET synchronous_commit = local")).await.unwrap();
        let found = weak().await;
        let database = WeakCommit { place: format!("database {name}"), value: "off".into() };
        assert!(found.contains(&database), "{found:?}");
        assert!(!found.iter().any(|one| one.place.starts_with(&format!("role {user}"))), "without standbys, local waits as long as on: {found:?}");
        admin.batch_execute(&format!("ALTER DATABASE {name} RESET synchronous_commit; ALTER ROLE CURRENT_USER IN DATABASE {name} RESET synchronous_commit")).await.unwrap();
        assert_eq!(weak().await, before);

        // A role that cannot use the schema is not reported. A role that can is reported, unless this database sets
        // another value for it.
        let other = format!("other_{name}");
        admin.batch_execute(&format!("CREATE ROLE {other}; ALTER ROLE {other} SET synchronous_commit = off")).await.unwrap();
        let told = async || weak().await.iter().any(|one| one.place == format!("role {other}"));
        assert!(!told().await);
        admin.batch_execute(&format!("GRANT USAGE ON SCHEMA postcommit TO {other}")).await.unwrap();
        assert!(told().await);
        admin.batch_execute(&format!("ALTER ROLE {other} IN DATABASE {name} SET synchronous_commit = on")).await.unwrap();
        assert!(!told().await);
        admin.batch_execute(&format!("DROP OWNED BY {other}; DROP ROLE {other}")).await.unwrap();
    }
}
