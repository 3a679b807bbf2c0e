//! Health: which workers run, and whether the database can be written, checked without a write that stays.

use std::fs::Permissions;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use postcommit::Timestamp;
use postcommit_engine::store::Store;

on_both! {
    async fn running_workers_are_known_by_their_heartbeats(world) {
        let nobody = world.store.attendance().await.unwrap();
        assert_eq!((nobody.workers, nobody.last_worker_at, nobody.last_pass_at, nobody.due, nobody.jobs), (0, None, None, 0, 0));
        world.capture(serde_json::json!({})).await;
        let is_unattended = async || world.store.is_unattended().await.unwrap();
        world.enqueue("later", serde_json::json!({"due_at": "2099-01-01T00:00:00Z"})).await;
        assert!(!is_unattended().await, "nothing is due");
        world.enqueue("a", serde_json::json!({})).await;
        assert!(is_unattended().await);
        let waiting = world.store.attendance().await.unwrap();
        assert!(waiting.due == 1 && waiting.oldest_due_at.is_some() && nobody.oldest_due_at.is_none());
        let running = world.run().await;
        world.until("it has said that it is here", async || world.store.attendance().await.unwrap().workers == 1).await;
        world.enqueue("a", serde_json::json!({})).await;
        assert!(!is_unattended().await, "a worker is there");
        running.finish().await;
        assert_eq!(world.store.attendance().await.unwrap().workers, 0, "and that it leaves");
        let ghost = uuid::Uuid::new_v4();
        world.store.be_present(ghost).await.unwrap();
        let past = Timestamp::from_micros(world.store.now().await.unwrap().as_micros() - 120_000_000);
        world.execute("UPDATE postcommit.duty SET ran_at = $1 WHERE name LIKE 'worker:%'", vec![past.into()]).await;
        let there = world.store.attendance().await.unwrap();
        assert_eq!((there.workers, there.last_worker_at), (0, Some(past)), "one that ended without a word is not believed for ever");
        world.pass().await;
        assert!(world.store.attendance().await.unwrap().last_pass_at.is_some());
    }

    async fn workers_leases_and_space_are_told_with_a_limit(world) {
        assert!(world.store.workers(10).await.unwrap().is_empty() && world.store.held_leases(10).await.unwrap().is_empty());
        let (here, gone) = (uuid::Uuid::new_v4(), uuid::Uuid::new_v4());
        for worker in [here, gone] {
            world.store.be_present(worker).await.unwrap();
        }
        let past = Timestamp::from_micros(world.store.now().await.unwrap().as_micros() - 120_000_000);
        let name = format!("worker:{gone}");
        world.execute("UPDATE postcommit.duty SET ran_at = $1 WHERE name = $2", vec![past.into(), name.into()]).await;
        let told: Vec<(String, bool)> =
            world.store.workers(10).await.unwrap().into_iter().map(|worker| (worker.id, worker.is_present)).collect();
        assert_eq!(told, [(here.to_string(), true), (gone.to_string(), false)]);
        assert_eq!(world.store.workers(1).await.unwrap().len(), 1);
        // A lease of a lane, and one of a notification that is expanded. The second one has run out.
        world.capture(serde_json::json!({})).await;
        for event in ["a", "b", "c"] {
            world.enqueue(event, serde_json::json!({})).await;
        }
        let (token, later) = (uuid::Uuid::new_v4(), Timestamp::from_micros(past.as_micros() + 3_600_000_000));
        world.execute("UPDATE postcommit.delivery_queue SET lease_token = $1, leased_at = $2, lease_until = $3",
            vec![token.into(), past.into(), later.into()]).await;
        let leases = world.store.held_leases(10).await.unwrap();
        assert_eq!(leases.len(), 1);
        let one = &leases[0];
        assert_eq!((one.tenant.as_str(), &one.provider, one.count, one.run_out, one.oldest_at), ("default", &None, 3, 0, Some(past)));
        world.execute("UPDATE postcommit.delivery_queue SET lease_until = $1", vec![past.into()]).await;
        assert_eq!(world.store.held_leases(10).await.unwrap()[0].run_out, 3);
        let space = world.store.space(3).await.unwrap();
        assert!(space.bytes > 0);
        match world.store.db().kind() {
            "postgres" => {
                assert_eq!(space.tables.len(), 3);
                let all = world.store.space(100).await.unwrap().tables;
                let attempts = all.iter().find(|table| table.name == "logged_attempt").unwrap();
                assert!(attempts.partitions > 12 && attempts.bytes > 0, "partitions are added to their table: {attempts:?}");
            }
            _ => assert!(space.tables.is_empty() && space.free.is_some_and(|free| free < space.bytes)),
        }
    }

    async fn workers_that_were_killed_are_forgotten_after_two_hours(world) {
        let (now, minute) = (world.store.now().await.unwrap().as_micros(), 60_000_000);
        for (name, minutes) in [("worker:long-gone", 121), ("worker:gone", 119), ("another duty", 121)] {
            let at = Timestamp::from_micros(now - minutes * minute);
            world.execute("INSERT INTO postcommit.duty (name, ran_at) VALUES ($1, $2)", vec![name.into(), at.into()]).await;
        }
        let here = uuid::Uuid::new_v4();
        world.store.be_present(here).await.unwrap();
        world.store.forget_workers().await.unwrap();
        let rows = world.sql("SELECT name FROM postcommit.duty", vec![]).await;
        let known: Vec<String> = rows.iter().map(|row| row.get(0).unwrap()).collect();
        let expected = ["another duty".to_owned(), "worker:gone".to_owned(), format!("worker:{here}")];
        assert!(expected.iter().all(|name| known.contains(name)) && !known.iter().any(|name| name == "worker:long-gone"), "{known:?}");
    }

    async fn a_database_that_takes_writes_is_not_read_only(world) {
        assert!(!world.store.is_read_only().await.unwrap());
    }
}

#[tokio::test]
async fn a_standby_is_read_only() {
    let database = postcommit_testkit::database().await;
    // A session on a standby has this setting.
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
    // File permissions do not stop root. A file whose header requires a newer writer is read-only for every user.
    let mut file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.seek(SeekFrom::Start(18)).unwrap();
    file.write_all(&[3]).unwrap();
    drop(file);
    let store = Store::open(&url).await.unwrap();
    assert!(store.is_read_only().await.unwrap());
    store.db().check_schema().await.unwrap();
}

/// A file that no user may write, not even root, where the file system supports that. Restored when dropped.
struct Barred(PathBuf);

impl Barred {
    fn new(path: PathBuf) -> Self {
        std::fs::set_permissions(&path, Permissions::from_mode(0o444)).unwrap();
        let _ = Command::new("chattr").arg("+i").arg(&path).output();
        Self(path)
    }

    /// False for root on a file system without that attribute.
    fn holds(&self) -> bool {
        std::fs::OpenOptions::new().append(true).open(&self.0).is_err()
    }
}

impl Drop for Barred {
    fn drop(&mut self) {
        let _ = Command::new("chattr").arg("-i").arg(&self.0).output();
    }
}

#[tokio::test]
async fn a_file_made_read_only_under_an_open_store_is_read_only() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.db");
    let store = Store::open(&format!("sqlite:{}", path.display())).await.unwrap();
    store.db().migrate().await.unwrap();
    let barred = Barred::new(path);
    // This is the first call, because a result is cached for a second.
    let found = store.is_read_only().await.unwrap();
    assert_eq!(found, barred.holds());
}

#[tokio::test]
async fn the_test_write_leaves_no_trace() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.db");
    let store = Store::open(&format!("sqlite:{}", path.display())).await.unwrap();
    store.db().migrate().await.unwrap();
    let watcher = rusqlite::Connection::open(&path).unwrap();
    let version = || watcher.query_row("PRAGMA data_version", (), |row| row.get::<_, i64>(0)).unwrap();
    let applied = || {
        watcher.query_row("SELECT sum(applied_at) FROM postcommit_migration", (), |row| row.get::<_, i64>(0)).unwrap()
    };
    let before = (version(), applied());
    assert!(!store.is_read_only().await.unwrap());
    assert_eq!((version(), applied()), before, "others would be woken by a commit");
    // The lock is released as well.
    watcher.execute_batch("BEGIN IMMEDIATE; ROLLBACK").unwrap();
}
