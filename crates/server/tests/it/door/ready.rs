//! `/readyz`, and a stop that finishes the requests in progress.

use std::path::Path;
use std::process::Command;

use postcommit_testkit::{Child, HttpClient};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::json;
use tokio_postgres::NoTls;

use super::{TestServer, after, shell};
use crate::installation::wait_until;

const READY: &str = "GET /readyz HTTP/1.1\r\nhost: h\r\n\r\n";

impl TestServer {
    fn is_ready(&self) -> bool {
        self.ask(READY).starts_with("HTTP/1.1 200 ")
    }

    fn is_unready_because(&self, words: &str) -> bool {
        let answer = self.ask(READY);
        answer.starts_with("HTTP/1.1 503 ") && answer.contains(words)
    }

    /// Limits the size of files that the server may write.
    pub(super) fn may_write(&self, bytes: Option<u64>) {
        let pid = Pid::from_raw(i32::try_from(self.process.pid()).unwrap()).unwrap();
        let now = prlimit(Some(pid), Resource::Fsize, Rlimit { current: None, maximum: None }).unwrap();
        prlimit(Some(pid), Resource::Fsize, Rlimit { current: bytes, maximum: now.maximum }).unwrap();
    }
}

#[test]
fn a_full_disk_is_not_ready() {
    let shell = shell(&[]);
    // Beyond its file size limit a write fails as on a full disk. Without the trap the signal would end the process.
    let server = Child::spawn(after("trap '' XFSZ", &shell.command(&["serve"])));
    let server = TestServer::from_process(shell, server);
    assert!(server.is_ready());
    server.may_write(Some(0));
    wait_until("it to be seen", || server.is_unready_because("postcommit.db: "));
    assert!(server.is_healthy(), "the process lives");
    server.may_write(None);
    wait_until("room on the disk", || server.is_ready());
}

/// SQLite's log is overwritten from its beginning: while there is room in it, a small write succeeds where others fail.
#[test]
fn a_write_that_found_no_room_makes_it_unready_until_another_succeeds() {
    let shell = shell(&[]);
    let server = Child::spawn(after("trap '' XFSZ", &shell.command(&["serve", "--role", "api"])));
    let server = TestServer::from_process(shell, server);
    let key = server.process.wait_for_line("  key  ").split_whitespace().nth(1).unwrap().to_owned();
    let client = HttpClient::new(server.address).key(&key);
    let large =
        json!({"event_type": "a", "recipients": [{"email": "guest@example.com"}], "payload": "x".repeat(200_000)});
    let _ = client.post("/v1/notifications", &large).expect(202);
    let file = server.shell.path().join("postcommit-data/postcommit.db");
    rusqlite::Connection::open(&file).unwrap().query_row("PRAGMA wal_checkpoint(RESTART)", [], |_| Ok(())).unwrap();
    let log = std::fs::metadata(file.with_extension("db-wal")).unwrap().len();
    server.may_write(Some(log));
    wait_until("the log to be full", || client.post("/v1/notifications", &large).status == 503);
    assert!(server.is_unready_because("a write failed"), "{}", server.ask(READY));
    server.may_write(None);
    let _ = client.post("/v1/notifications", &large).expect(202);
    wait_until("it to be ready", || server.is_ready());
}

/// On a small disk of its own. Where none can be mounted, by root or in a user namespace, the test does nothing.
#[test]
fn a_disk_with_hardly_any_room_left_is_not_ready() {
    let shell = shell(&[]);
    let mounts = "mkdir postcommit-data && mount -t tmpfs -o size=32m tmpfs postcommit-data";
    let is_allowed = Command::new("unshare")
        .args(["-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"])
        .status()
        .is_ok_and(|status| status.success());
    if !is_allowed {
        return println!("no disk can be mounted here");
    }
    let command = after(mounts, &shell.command(&["serve"]));
    let mut apart = Command::new("unshare");
    apart.arg("-rm").arg(command.get_program()).args(command.get_args()).current_dir(shell.path());
    apart.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let server = TestServer::from_process(shell, Child::spawn(apart));
    assert!(server.is_ready());
    // The mounts belong to the server's namespace and are visible only through its /proc entry.
    let folder = format!("/proc/{}/root{}/postcommit-data", server.process.pid(), server.shell.path().display());
    let filler = Path::new(&folder).join("filler");
    std::fs::write(&filler, vec![1; 20 * 1024 * 1024]).unwrap();
    wait_until("it to be seen", || server.is_unready_because("bytes are free on its disk; 16777216 are needed"));
    assert!(server.is_healthy(), "the process lives");
    std::fs::remove_file(&filler).unwrap();
    wait_until("room on the disk", || server.is_ready());
}

/// The server answers while the lock is held; the test releases it only afterwards.
#[test]
fn a_lock_of_the_application_is_reported_while_it_lasts() {
    let server = TestServer::with(&[]);
    for begin in ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"] {
        wait_until("it to be ready", || server.is_ready());
        let file = rusqlite::Connection::open(server.shell.path().join("postcommit-data/postcommit.db")).unwrap();
        file.busy_timeout(std::time::Duration::from_secs(60)).unwrap();
        file.execute_batch(begin).unwrap();
        // A result is cached for a second.
        wait_until("the lock to be seen", || server.is_unready_because("has held a lock for longer than 1 s"));
        assert!(server.is_healthy());
        file.execute_batch("ROLLBACK").unwrap();
    }
    wait_until("it to be ready again", || server.is_ready());
}

#[test]
fn removed_or_replaced_database_files_are_noticed() {
    for role in ["all", "api"] {
        for (ending, replace) in [("-wal", false), ("-wal", true), ("-shm", true), ("", false), ("", true)] {
            let shell = shell(&[]);
            let server = Child::spawn(shell.command(&["serve", "--role", role]));
            let server = TestServer::from_process(shell, server);
            assert!(server.is_ready());
            let file = server.shell.path().join(format!("postcommit-data/postcommit.db{ending}"));
            let content = std::fs::read(&file).unwrap();
            std::fs::remove_file(&file).unwrap();
            if replace {
                // Another file, like a restored copy. The inode number cannot be reused while the old file is open.
                std::fs::write(&file, content).unwrap();
            }
            let words = format!("postcommit.db{ending} was moved, deleted or replaced while it was open; restart");
            wait_until("it to be seen", || server.is_unready_because(&words));
            assert!(server.is_healthy(), "the process lives");
            server.process.kill9();
        }
    }
}

#[test]
fn a_standby_is_not_ready() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let database = runtime.block_on(crate::installation::copied());
    let server = TestServer::with(&[("DATABASE_URL", &database.url)]);
    assert!(server.is_ready());
    let say = |sql: &str| {
        runtime.block_on(async {
            let (client, connection) = tokio_postgres::connect(&database.url, NoTls).await.unwrap();
            let driven = tokio::spawn(connection);
            client.batch_execute(sql).await.unwrap();
            drop(client);
            driven.await.unwrap().unwrap();
        });
    };
    // The setting that a session on a standby has. It applies to new sessions, so the old ones are ended.
    let switch = |read_only: &str| {
        say(&format!(
            "BEGIN READ WRITE;
             DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = {read_only}', current_database()); END $$;
             SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid();
             COMMIT"
        ));
    };
    switch("on");
    wait_until("it to be seen", || server.is_unready_because("the database is read-only"));
    switch("off");
    wait_until("it to take writes again", || server.is_ready());
}

#[test]
fn a_stop_finishes_the_request_in_progress() {
    let server =
        TestServer::with(&[("LOG_LEVEL", "info,postcommit_server::door=trace"), ("DISPATCH_STOP_GRACE_S", "60")]);
    let mut idle = server.connect();
    assert!(idle.is_healthy());
    let key = server.process.wait_for_line("  key  ").split_whitespace().nth(1).unwrap().to_owned();
    // Another connection locks the file: the server's write has to wait.
    let file = rusqlite::Connection::open(server.shell.path().join("postcommit-data/postcommit.db")).unwrap();
    file.busy_timeout(std::time::Duration::from_secs(60)).unwrap();
    file.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut waiting = server.connect();
    let body = r#"{"event_type":"a","recipients":[{"email":"guest@example.com"}]}"#;
    let head = format!(
        "content-type: application/json\r\ncontent-length: {}\r\nauthorization: Bearer {key}\r\nx-request-id: under-way",
        body.len()
    );
    waiting.send(format!("POST /v1/notifications HTTP/1.1\r\nhost: localhost\r\n{head}\r\n\r\n{body}"));
    server.process.wait_for_line("under-way");
    server.process.term();
    assert_eq!(idle.read_to_end(), "", "who is idle is not waited for");
    wait_until("the door to be shut", || std::net::TcpStream::connect(server.address).is_err());
    file.execute_batch("ROLLBACK").unwrap();
    let answer = waiting.read_to_end();
    assert!(answer.starts_with("HTTP/1.1 202 ") && answer.contains("connection: close\r\n"), "{answer}");
    assert!(server.process.wait().success());
}

#[test]
fn an_unsupported_method_is_answered_with_405() {
    let server = TestServer::with(&[]);
    for path in ["/healthz", "/readyz"] {
        assert!(server.ask(&format!("POST {path} HTTP/1.1\r\nhost: h\r\n\r\n")).starts_with("HTTP/1.1 405 "));
        let mut head = server.connect();
        head.send(format!("HEAD {path} HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n"));
        let answer = head.read_to_end();
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\n"), "{answer}");
    }
}
