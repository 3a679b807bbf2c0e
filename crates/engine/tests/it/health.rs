//! Whether the database can be written, found without leaving a trace.

use std::io::{Seek, SeekFrom, Write};

use postcommit_engine::store::Store;

on_both! {
    async fn a_database_that_takes_writes_is_not_read_only(world) {
        assert!(!world.store.is_read_only().await.unwrap());
    }
}

#[tokio::test]
async fn a_standby_is_read_only() {
    let database = postcommit_testkit::database().await;
    // What a session on a standby says of itself.
    let url = format!("{}?options=-c%20default_transaction_read_only%3Don", database.url);
    assert!(Store::open(&url).await.unwrap().is_read_only().await.unwrap());
}

#[tokio::test]
async fn a_file_that_may_not_be_written_is_read_only() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.db");
    let url = format!("sqlite:{}", path.display());
    let store = Store::open(&url).await.unwrap();
    store.db().migrate().await.unwrap();
    store.db().settle_file();
    drop(store);
    // Permissions do not hold root back. A file whose header asks for a newer writer is read-only for everybody.
    let mut file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.seek(SeekFrom::Start(18)).unwrap();
    file.write_all(&[3]).unwrap();
    drop(file);
    let store = Store::open(&url).await.unwrap();
    assert!(store.is_read_only().await.unwrap());
    store.db().check_schema().await.unwrap();
}

#[tokio::test]
async fn the_try_to_write_leaves_no_trace() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.db");
    let store = Store::open(&format!("sqlite:{}", path.display())).await.unwrap();
    store.db().migrate().await.unwrap();
    let watcher = rusqlite::Connection::open(&path).unwrap();
    let version = || watcher.query_row("PRAGMA data_version", (), |row| row.get::<_, i64>(0)).unwrap();
    let applied = || watcher.query_row("SELECT sum(applied_at) FROM postcommit_migration", (), |row| row.get::<_, i64>(0)).unwrap();
    let before = (version(), applied());
    assert!(!store.is_read_only().await.unwrap());
    assert_eq!((version(), applied()), before, "others would be woken by a commit");
    // The lock is free again, too.
    watcher.execute_batch("BEGIN IMMEDIATE; ROLLBACK").unwrap();
}
