//! A migration is applied as a whole or not at all, and only where it can be.

use postcommit_engine::db::{DbError, LATEST, MIGRATIONS};
use postcommit_engine::store::Store;
use postcommit_testkit::Postgres;

use crate::installations::connect;

const POSTGRES_START: &str = "CREATE SCHEMA postcommit;
    CREATE TABLE postcommit.migration (version int PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())";
const SQLITE_START: &str =
    "CREATE TABLE postcommit_migration (version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at INTEGER NOT NULL)";
/// The schema version before the migration, and an object of a later step that exists already and is not Postcommit's.
const FOUND: usize = 3;
const IN_THE_WAY: &str = "inbox_message";

#[tokio::test]
async fn an_encoding_that_cannot_hold_every_text_is_refused_before_the_first_step() {
    for encoding in ["SQL_ASCII", "LATIN1"] {
        let database = Postgres::shared().database_with(&format!("TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'")).await;
        let refused = Store::open(&database.url).await.err().unwrap();
        assert!(matches!(&refused, DbError::Refused { code, .. } if code == "encoding"), "{refused:?}");
        let said = refused.to_string();
        assert!(said.contains(&format!("{} has the encoding {encoding}, and postcommit needs UTF8", database.name())), "{said}");
        // The command in the error text works.
        let (_, create) = said.split_once("database.url: ").unwrap();
        let create = create.split_once(", or").unwrap().0.replace(" name ", &format!(" {}_utf8 ", database.name()));
        Postgres::shared().execute(&create).await;
        Postgres::shared().execute(&format!("DROP DATABASE {}_utf8", database.name())).await;
        let made = connect(&database.url).await.query_one("SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'postcommit%'", &[]).await;
        assert_eq!(made.unwrap().get::<_, i64>(0), 0);
    }
}

#[tokio::test]
async fn a_migration_that_fails_half_way_leaves_the_schema_as_it_was_on_postgres() {
    let database = postcommit_testkit::database().await;
    let client = connect(&database.url).await;
    let steps = MIGRATIONS[..FOUND]
        .iter()
        .map(|step| format!("{}; INSERT INTO postcommit.migration VALUES ({}, '{}')", step.postgres, step.version, step.name));
    let steps = steps.collect::<Vec<_>>().join("; ");
    client
        .batch_execute(&format!("BEGIN; {POSTGRES_START}; {steps}; CREATE TABLE postcommit.{IN_THE_WAY} (mine int); COMMIT"))
        .await
        .unwrap();
    let objects =
        "SELECT coalesce(string_agg(c.relname || c.relrowsecurity, ' ' ORDER BY c.relname), '') || (SELECT count(*) FROM pg_roles r
        WHERE r.rolname LIKE '%\\_' || d.oid) FROM pg_class c, pg_database d WHERE c.relnamespace = 'postcommit'::regnamespace
        AND d.datname = current_database() GROUP BY d.oid";
    let seen = async || client.query_one(objects, &[]).await.unwrap().get::<_, String>(0);
    let before = seen().await;
    let store = Store::open(&database.url).await.unwrap();
    let refused = store.db().migrate().await.unwrap_err().to_string();
    assert!(refused.contains(IN_THE_WAY), "{refused}");
    assert_eq!((store.db().schema_version().await.unwrap(), seen().await), (FOUND as i32, before));
    client.batch_execute("SELECT postcommit.enqueue('a', '{}', 'k')").await.expect("what ran before runs on");

    client.batch_execute(&format!("DROP TABLE postcommit.{IN_THE_WAY}")).await.unwrap();
    assert_eq!(store.db().migrate().await.unwrap().applied.len(), MIGRATIONS.len() - FOUND);
    store.check_isolation().await.unwrap();
}

#[tokio::test]
async fn a_first_migration_that_fails_makes_nothing_on_postgres() {
    let database = postcommit_testkit::database().await;
    let client = connect(&database.url).await;
    client.batch_execute(&format!("CREATE SCHEMA postcommit CREATE TABLE {IN_THE_WAY} (mine int)")).await.unwrap();
    let store = Store::open(&database.url).await.unwrap();
    store.db().migrate().await.unwrap_err();
    let left = client.query("SELECT relname::text FROM pg_class WHERE relnamespace = 'postcommit'::regnamespace", &[]).await.unwrap();
    assert_eq!(left.iter().map(|row| row.get::<_, String>(0)).collect::<Vec<_>>(), [IN_THE_WAY]);
    assert_eq!(store.db().schema_version().await.unwrap(), 0);
}

#[tokio::test]
async fn a_migration_that_fails_half_way_leaves_the_schema_as_it_was_on_sqlite() {
    for found in [0, FOUND] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("app.db");
        let file = rusqlite::Connection::open(&path).unwrap();
        let steps = MIGRATIONS[..found]
            .iter()
            .map(|step| format!("{}; INSERT INTO postcommit_migration VALUES ({}, '{}', 0)", step.sqlite, step.version, step.name));
        let start = if found == 0 { "" } else { SQLITE_START };
        file.execute_batch(&format!(
            "{start}; {}; CREATE TABLE postcommit_{IN_THE_WAY} (mine INTEGER)",
            steps.collect::<Vec<_>>().join("; ")
        ))
        .unwrap();
        let seen = || {
            file.query_row("SELECT group_concat(sql, char(10)) FROM (SELECT sql FROM sqlite_schema ORDER BY name)", [], |row| {
                row.get::<_, String>(0)
            })
            .unwrap()
        };
        let before = seen();
        let store = Store::open(&format!("sqlite:{}", path.display())).await.unwrap();
        let refused = store.db().migrate().await.unwrap_err().to_string();
        assert!(refused.contains(IN_THE_WAY), "{refused}");
        assert_eq!((store.db().schema_version().await.unwrap(), seen()), (found as i32, before));
        file.execute_batch(&format!("DROP TABLE postcommit_{IN_THE_WAY}")).unwrap();
        store.db().migrate().await.unwrap();
        assert_eq!(store.db().schema_version().await.unwrap(), LATEST);
    }
}
