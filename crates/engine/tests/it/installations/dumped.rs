//! An installation does not break backups: an ordinary owner dumps its database and restores it elsewhere.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use postcommit_engine::dispatch::Dispatcher;
use postcommit_engine::store::Store;
use postcommit_testkit::Postgres;
use tokio_postgres::Client;
use uuid::Uuid;

use super::{Installation, connect, is_shut_out, texts};
use crate::world::World;

const ENQUEUE: &str = "SELECT postcommit.enqueue('booking.confirmed', '{\"note\": \"ä\"}', 'b1', recipients => '[{\"email\": \"a@example.com\"}]')";

/// A `pg_dump` that is not older than the server, because the server's version refuses older ones.
async fn pg_dump(admin: &Client) -> Option<PathBuf> {
    let version: i32 =
        admin.query_one("SELECT current_setting('server_version_num')::int / 10000", &[]).await.unwrap().get(0);
    let beside =
        std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten().map(|entry| entry.path().join("bin"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let suits = |program: &PathBuf| {
        let said = Command::new(program)
            .arg("--version")
            .output()
            .map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        let number = said
            .unwrap_or_default()
            .split(' ')
            .nth(2)
            .and_then(|number| number.split('.').next()?.trim().parse::<i32>().ok());
        number.is_some_and(|number| number >= version)
    };
    let found = std::env::split_paths(&path).chain(beside).map(|folder| folder.join("pg_dump")).find(suits);
    if found.is_none() {
        eprintln!("skipped: there is no pg_dump of version {version} or newer, and an older one refuses this server");
    }
    found
}

fn restore(dump: &[u8], url: &str) {
    let mut psql = Command::new("psql")
        .args(["-q", "-v", "ON_ERROR_STOP=1", url])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut psql.stdin.take().unwrap(), dump).unwrap();
    let done = psql.wait_with_output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

async fn dump_and_restore(with_roles: bool) {
    let original = Installation::make(with_roles, "").await;
    let Some(pg_dump) = pg_dump(&original.admin().await).await else { return };
    let url = original.database.url_as(original.owner.name());
    let application = connect(&url).await;
    let mine = "CREATE TABLE booking (id int PRIMARY KEY, guest text); INSERT INTO booking VALUES (1, 'Ada')";
    application.batch_execute(mine).await.unwrap();
    let id: Uuid = application.query_one(ENQUEUE, &[]).await.unwrap().get(0);
    // The owner's dump, with its grants, as a plain pg_dump writes it.
    let dumped = Command::new(pg_dump).args(["--no-owner", &url]).output().unwrap();
    assert!(dumped.status.success(), "{}", String::from_utf8_lossy(&dumped.stderr));

    let postgres = Postgres::shared();
    let owner = postgres.login("").await;
    let database = postgres.database_with(&format!("OWNER {} TEMPLATE template0 ENCODING 'UTF8'", owner.name())).await;
    restore(&dumped.stdout, &database.url_as(owner.name()));
    let store = Store::open(&database.url_as(owner.name())).await.unwrap();
    let copy = Installation { store, database, owner, members: vec![] };
    assert!(copy.store.check_isolation().await.is_err(), "the grants are the original's");
    copy.migrate(with_roles).await;
    let world = World::sqlite().await;
    Dispatcher::new(world.tools(copy.store.clone())).await.unwrap().pass(None).await.unwrap();
    assert_eq!(copy.store.of_tenant(1).notification_row(id).await.unwrap().unwrap().state, "sent");
    assert!(copy.store.of_tenant(2).notification_row(id).await.unwrap().is_none());
    let guests =
        connect(&copy.database.url_as(copy.owner.name())).await.query("SELECT guest FROM booking", &[]).await.unwrap();
    assert_eq!(guests[0].get::<_, &str>(0), "Ada");
    for login in original.members.iter().chain([&original.owner]) {
        is_shut_out(&copy.database, login.name()).await;
    }
    original.assert_works().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ordinary_owner_dumps_and_another_restores() {
    dump_and_restore(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ordinary_owner_dumps_and_another_restores_with_roles() {
    dump_and_restore(true).await;
}

/// pg_dump and careful sessions set this value. With it, a policy that would hide rows is an error.
#[tokio::test(flavor = "multi_thread")]
async fn enqueueing_works_with_row_security_off() {
    for with_roles in [false, true] {
        let installation = Installation::make(with_roles, "").await;
        let producer = installation.members.first();
        for login in producer.into_iter().chain([&installation.owner]) {
            let session = connect(&installation.database.url_as(login.name())).await;
            session
                .batch_execute(&format!(
                    "SET row_security = off; {}",
                    ENQUEUE.replace("'b1'", "gen_random_uuid()::text")
                ))
                .await
                .unwrap();
            session
                .batch_execute(
                    "SELECT postcommit.enqueue_many('[{\"event_type\": \"a\", \"idempotency_key\": \"k\"}]')",
                )
                .await
                .unwrap();
            session.batch_execute("SELECT postcommit.cancel('default', 'e')").await.unwrap();
        }
    }
}

/// Reads each table as pg_dump does, on every version of the server.
#[tokio::test(flavor = "multi_thread")]
async fn an_ordinary_owner_reads_every_table_as_pg_dump_does() {
    for with_roles in [false, true] {
        let installation = Installation::make(with_roles, "").await;
        let owner = connect(&installation.database.url_as(installation.owner.name())).await;
        owner.batch_execute("SET row_security = off").await.unwrap();
        let tables = "SELECT c.oid::regclass::text \
                FROM pg_class c \
                WHERE c.relnamespace = 'postcommit'::regnamespace AND c.relkind IN ('r', 'p')";
        for table in texts(&owner, tables).await {
            owner
                .batch_execute(&format!(
                    "BEGIN; LOCK TABLE ONLY {table} IN ACCESS SHARE MODE; SELECT * FROM {table}; COMMIT"
                ))
                .await
                .unwrap();
        }
    }
}

/// After another login ran `migrate --roles`, the owner can still do everything it could do before.
#[tokio::test(flavor = "multi_thread")]
async fn a_superuser_that_makes_roles_takes_nothing_from_the_owner() {
    let installation = Installation::make(false, "").await;
    Store::open(&installation.database.url).await.unwrap().db().make_roles().await.unwrap();
    installation.assert_works().await;
    let owner = connect(&installation.database.url_as(installation.owner.name())).await;
    owner
        .batch_execute("SET row_security = off; SELECT * FROM postcommit.notification; ALTER TABLE postcommit.duty SET (fillfactor = 90)")
        .await
        .unwrap();
    installation.store.db().migrate().await.unwrap();
}
