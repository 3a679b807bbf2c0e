//! A migration is done as a whole or not at all, and only where it can be. Functions and views follow their files.

use postcommit_engine::db::{DbError, LATEST};
use postcommit_engine::store::Store;
use postcommit_testkit::Postgres;

use crate::installations::connect;

/// An object of the baseline that another application has created here.
const IN_THE_WAY: &str = "inbox_message";
/// Makes the schema look as if the files had other texts when it was created.
const OLDER: &str = "UPDATE postcommit.migration SET name = 'older' WHERE version = 0";

#[tokio::test]
async fn an_encoding_that_cannot_hold_every_text_is_refused_before_the_first_step() {
    for encoding in ["SQL_ASCII", "LATIN1"] {
        let database =
            Postgres::shared().database_with(&format!("TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'")).await;
        let refused = Store::open(&database.url).await.err().unwrap();
        assert!(matches!(&refused, DbError::Refused { code, .. } if code == "encoding"), "{refused:?}");
        let said = refused.to_string();
        assert!(
            said.contains(&format!("{} has the encoding {encoding}, and postcommit needs UTF8", database.name())),
            "{said}"
        );
        // The command in the error text works.
        let (_, create) = said.split_once("database.url: ").unwrap();
        let create = create.split_once(", or").unwrap().0.replace(" name ", &format!(" {}_utf8 ", database.name()));
        Postgres::shared().execute(&create).await;
        Postgres::shared().execute(&format!("DROP DATABASE {}_utf8", database.name())).await;
        let made = connect(&database.url)
            .await
            .query_one("SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'postcommit%'", &[])
            .await;
        assert_eq!(made.unwrap().get::<_, i64>(0), 0);
    }
}

#[tokio::test]
async fn a_first_migration_that_fails_makes_nothing_on_postgres() {
    let database = postcommit_testkit::database().await;
    let client = connect(&database.url).await;
    client.batch_execute(&format!("CREATE SCHEMA postcommit CREATE TABLE {IN_THE_WAY} (mine int)")).await.unwrap();
    let store = Store::open(&database.url).await.unwrap();
    store.db().migrate().await.unwrap_err();
    let left = client
        .query("SELECT relname::text FROM pg_class WHERE relnamespace = 'postcommit'::regnamespace", &[])
        .await
        .unwrap();
    assert_eq!(left.iter().map(|row| row.get::<_, String>(0)).collect::<Vec<_>>(), [IN_THE_WAY]);
    assert_eq!(store.db().schema_version().await.unwrap(), 0);
}

#[tokio::test]
async fn a_first_migration_that_fails_makes_nothing_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.db");
    let file = rusqlite::Connection::open(&path).unwrap();
    file.execute_batch(&format!("CREATE TABLE postcommit_{IN_THE_WAY} (mine INTEGER)")).unwrap();
    let store = Store::open(&format!("sqlite:{}", path.display())).await.unwrap();
    let refused = store.db().migrate().await.unwrap_err().to_string();
    assert!(refused.contains(IN_THE_WAY), "{refused}");
    assert_eq!((store.db().schema_version().await.unwrap(), objects(&file).len()), (0, 1));
    file.execute_batch(&format!("DROP TABLE postcommit_{IN_THE_WAY}")).unwrap();
    store.db().migrate().await.unwrap();
    assert_eq!(store.db().schema_version().await.unwrap(), LATEST);
}

fn objects(file: &rusqlite::Connection) -> Vec<String> {
    let mut all = file.prepare("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name").unwrap();
    all.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
}

/// The versions of functions, triggers and views in the catalog. Every DDL statement changes them.
const VERSIONS: &str = "SELECT string_agg(xmin::text || ':' || oid, ' ' ORDER BY oid) FROM (
    SELECT xmin, oid FROM pg_proc WHERE pronamespace = 'postcommit'::regnamespace
    UNION ALL SELECT xmin, oid FROM pg_class WHERE relnamespace = 'postcommit'::regnamespace
    UNION ALL SELECT t.xmin, t.oid FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
      WHERE c.relnamespace = 'postcommit'::regnamespace) things";

#[tokio::test]
async fn an_older_function_gets_its_new_text_and_keeps_its_grants_on_postgres() {
    let (reader, database) = (Postgres::shared().login("").await, postcommit_testkit::database().await);
    let store = Store::open(&database.url).await.unwrap();
    assert!(store.db().migrate().await.unwrap().renewed);
    let client = connect(&database.url).await;
    let one = async |sql: &str| client.query_one(sql, &[]).await.unwrap().get::<_, String>(0);
    let text = "SELECT pg_get_functiondef('postcommit.ring'::regproc) || pg_get_viewdef('postcommit.asleep'::regclass)";
    let held = format!(
        "SELECT concat(has_function_privilege('{0}', 'postcommit.ring(timestamptz)', 'EXECUTE'), has_table_privilege('{0}', 'postcommit.delivery', 'SELECT'),
           has_column_privilege('{0}', 'postcommit.notification_status', 'id', 'SELECT'))",
        reader.name()
    );
    let newer = one(text).await;
    client
        .batch_execute(&format!(
            "CREATE OR REPLACE FUNCTION postcommit.ring(due timestamptz) RETURNS void LANGUAGE sql AS 'SELECT';
             CREATE OR REPLACE VIEW postcommit.asleep AS SELECT worker FROM postcommit.idle;
             GRANT EXECUTE ON FUNCTION postcommit.ring TO {0}; GRANT SELECT ON postcommit.delivery TO {0};
             GRANT SELECT (id) ON postcommit.notification_status TO {0}; {OLDER}",
            reader.name()
        ))
        .await
        .unwrap();
    assert!(matches!(store.db().check_schema().await, Err(DbError::OtherFunctions)));
    let migrated = store.db().migrate().await.unwrap();
    assert!(migrated.renewed && migrated.applied.is_empty() && !migrated.arranged, "{migrated:?}");
    assert_eq!((one(text).await, one(&held).await), (newer, "ttt".to_owned()));
    store.db().check_schema().await.unwrap();
    store.check_isolation().await.unwrap();

    let before = one(VERSIONS).await;
    assert!(!store.db().migrate().await.unwrap().renewed);
    assert_eq!(one(VERSIONS).await, before, "nothing is applied when nothing changed");
}

#[tokio::test]
async fn functions_that_cannot_be_applied_leave_the_schema_as_it_was_on_postgres() {
    let database = postcommit_testkit::database().await;
    let store = Store::open(&database.url).await.unwrap();
    store.db().migrate().await.unwrap();
    let client = connect(&database.url).await;
    client
        .batch_execute(&format!(
            "DROP VIEW postcommit.notification_status; CREATE TABLE postcommit.notification_status (); {OLDER}"
        ))
        .await
        .unwrap();
    let seen = async || client.query_one(VERSIONS, &[]).await.unwrap().get::<_, String>(0);
    let before = seen().await;
    let refused = store.db().migrate().await.unwrap_err().to_string();
    assert!(refused.contains("notification_status"), "{refused}");
    assert_eq!(seen().await, before);
    client.batch_execute("SELECT postcommit.enqueue('a', '{}', 'k')").await.expect("what ran before runs on");
    client.batch_execute("DROP TABLE postcommit.notification_status").await.unwrap();
    assert!(store.db().migrate().await.unwrap().renewed);
    store.check_isolation().await.unwrap();
}

#[tokio::test]
async fn an_older_trigger_gets_its_new_text_on_sqlite_and_the_application_keeps_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.db");
    let store = Store::open(&format!("sqlite:{}", path.display())).await.unwrap();
    assert!(store.db().migrate().await.unwrap().renewed);
    let file = rusqlite::Connection::open(&path).unwrap();
    file.execute_batch("CREATE TRIGGER mine AFTER INSERT ON postcommit_duty BEGIN SELECT 1; END").unwrap();
    let newer = objects(&file);
    file.execute_batch(&format!(
        "DROP TRIGGER postcommit_audit_is_append_only; CREATE TRIGGER postcommit_audit_is_append_only AFTER DELETE ON postcommit_audit BEGIN SELECT 1; END;
         DROP VIEW postcommit_enqueue; CREATE TRIGGER postcommit_gone AFTER INSERT ON postcommit_audit BEGIN SELECT 1; END; {}",
        OLDER.replace("postcommit.", "postcommit_")
    ))
    .unwrap();
    assert!(matches!(store.db().check_schema().await, Err(DbError::OtherFunctions)));
    let migrated = store.db().migrate().await.unwrap();
    assert!(migrated.renewed && migrated.applied.is_empty(), "{migrated:?}");
    assert_eq!(objects(&file), newer);
    store.db().check_schema().await.unwrap();

    let version = || file.query_row("PRAGMA schema_version", [], |row| row.get::<_, i64>(0)).unwrap();
    let before = version();
    assert!(!store.db().migrate().await.unwrap().renewed);
    assert_eq!(version(), before, "nothing is applied when nothing changed");
}
