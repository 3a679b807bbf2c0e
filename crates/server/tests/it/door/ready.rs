//! `/readyz`, and a stop that finishes what is under way.

use std::path::Path;
use std::process::Command;

use postcommit_testkit::{Child, Client};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::json;
use tokio_postgres::NoTls;

use super::{House, after, shell};
use crate::installation::wait_until;

const READY: &str = "GET /readyz HTTP/1.1\r\nhost: h\r\n\r\n";

impl House {
    fn is_ready(&self) -> bool {
        self.ask(READY).starts_with("HTTP/1.1 200 ")
    }

    fn is_unready_because(&self, words: &str) -> bool {
        let answer = self.ask(READY);
        answer.starts_with("HTTP/1.1 503 ") && answer.contains(words)
    }

    /// How far into a file it may write.
    pub(super) fn may_write(&self, bytes: Option<u64>) {
        let pid = Pid::from_raw(i32::try_from(self.server.pid()).unwrap()).unwrap();
        let now = prlimit(Some(pid), Resource::Fsize, Rlimit { current: None, maximum: None }).unwrap();
        prlimit(Some(pid), Resource::Fsize, Rlimit { current: bytes, maximum: now.maximum }).unwrap();
    }
}

#[test]
fn a_disk_that_takes_no_more_is_not_ready() {
    let shell = shell(&[]);
    // Past its limit of file size a write fails as on a full disk; without the trap it would end the process.
    let server = Child::spawn(after("trap '' XFSZ", &shell.command(&["serve"])));
    let house = House::found(shell, server);
    assert!(house.is_ready());
    house.may_write(Some(0));
    wait_until("it to be seen", || house.is_unready_because("postcommit.db: "));
    assert!(house.is_well(), "the process lives");
    house.may_write(None);
    wait_until("room on the disk", || house.is_ready());
}

/// The log is written over from its beginning: while there is room in it a small write succeeds where others do not.
#[test]
fn a_write_that_found_no_room_makes_it_unready_until_another_succeeds() {
    let shell = shell(&[]);
    let server = Child::spawn(after("trap '' XFSZ", &shell.command(&["serve", "--role", "api"])));
    let house = House::found(shell, server);
    let key = house.server.wait_for_line("  key  ").split_whitespace().nth(1).unwrap().to_owned();
    let client = Client::new(house.address).key(&key);
    let large = json!({"event_type": "a", "recipients": [{"email": "guest@example.com"}], "payload": "x".repeat(200_000)});
    let _ = client.post("/v1/notifications", &large).expect(202);
    let file = house.shell.path().join("postcommit-data/postcommit.db");
    rusqlite::Connection::open(&file).unwrap().query_row("PRAGMA wal_checkpoint(RESTART)", [], |_| Ok(())).unwrap();
    let log = std::fs::metadata(file.with_extension("db-wal")).unwrap().len();
    house.may_write(Some(log));
    wait_until("the log to be full", || client.post("/v1/notifications", &large).status == 503);
    assert!(house.is_unready_because("a write failed"), "{}", house.ask(READY));
    house.may_write(None);
    let _ = client.post("/v1/notifications", &large).expect(202);
    wait_until("it to be ready", || house.is_ready());
}

/// On a small disk of its own; where none can be mounted, by root or in a user's own namespace, there is nothing to show it with.
#[test]
fn a_disk_with_hardly_any_room_left_is_not_ready() {
    let shell = shell(&[]);
    let mounts = "mkdir postcommit-data && mount -t tmpfs -o size=32m tmpfs postcommit-data";
    let is_allowed =
        Command::new("unshare").args(["-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]).status().is_ok_and(|status| status.success());
    if !is_allowed {
        return println!("no disk can be mounted here");
    }
    let command = after(mounts, &shell.command(&["serve"]));
    let mut apart = Command::new("unshare");
    apart.arg("-rm").arg(command.get_program()).args(command.get_args()).current_dir(shell.path());
    apart.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let house = House::found(shell, Child::spawn(apart));
    assert!(house.is_ready());
    // Its mounts are its own: they are seen through it alone.
    let folder = format!("/proc/{}/root{}/postcommit-data", house.server.pid(), house.shell.path().display());
    let filler = Path::new(&folder).join("filler");
    std::fs::write(&filler, vec![1; 20 * 1024 * 1024]).unwrap();
    wait_until("it to be seen", || house.is_unready_because("bytes are free on its disk; 16777216 are needed"));
    assert!(house.is_well(), "the process lives");
    std::fs::remove_file(&filler).unwrap();
    wait_until("room on the disk", || house.is_ready());
}

/// It is answered while the lock is held: it is given back only then.
#[test]
fn a_lock_of_the_application_is_told_while_it_lasts() {
    let house = House::with(&[]);
    for begin in ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"] {
        wait_until("it to be ready", || house.is_ready());
        let file = rusqlite::Connection::open(house.shell.path().join("postcommit-data/postcommit.db")).unwrap();
        file.busy_timeout(std::time::Duration::from_secs(60)).unwrap();
        file.execute_batch(begin).unwrap();
        // What was found a moment ago is believed for a second.
        wait_until("the lock to be seen", || house.is_unready_because("has held a lock for longer than 1 s"));
        assert!(house.is_well());
        file.execute_batch("ROLLBACK").unwrap();
    }
    wait_until("it to be ready again", || house.is_ready());
}

#[test]
fn files_that_are_removed_or_replaced_under_it_are_noticed() {
    for role in ["all", "api"] {
        for (ending, replace) in [("-wal", false), ("-wal", true), ("-shm", true), ("", false), ("", true)] {
            let shell = shell(&[]);
            let server = Child::spawn(shell.command(&["serve", "--role", role]));
            let house = House::found(shell, server);
            assert!(house.is_ready());
            let file = house.shell.path().join(format!("postcommit-data/postcommit.db{ending}"));
            let content = std::fs::read(&file).unwrap();
            std::fs::remove_file(&file).unwrap();
            if replace {
                // Another file, as a restored copy is. The old number may not be given again while the old file is open.
                std::fs::write(&file, content).unwrap();
            }
            let words = format!("postcommit.db{ending} was moved, deleted or replaced under us; restart");
            wait_until("it to be seen", || house.is_unready_because(&words));
            assert!(house.is_well(), "the process lives");
            house.server.kill9();
        }
    }
}

#[test]
fn a_standby_is_not_ready() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let database = runtime.block_on(postcommit_testkit::database());
    let house = House::with(&[("DATABASE_URL", &database.url)]);
    assert!(house.is_ready());
    let say = |sql: &str| {
        runtime.block_on(async {
            let (client, connection) = tokio_postgres::connect(&database.url, NoTls).await.unwrap();
            let driven = tokio::spawn(connection);
            client.batch_execute(sql).await.unwrap();
            drop(client);
            driven.await.unwrap().unwrap();
        });
    };
    // What a session on a standby says of itself; for new sessions, so the old ones end.
    let switch = |read_only: &str| {
        say(&format!(
            "BEGIN READ WRITE;
             DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = {read_only}', current_database()); END $$;
             SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid();
             COMMIT"
        ));
    };
    switch("on");
    wait_until("it to be seen", || house.is_unready_because("the database is read-only"));
    switch("off");
    wait_until("it to take writes again", || house.is_ready());
}

#[test]
fn a_stop_finishes_the_request_under_way() {
    let house = House::with(&[("LOG_LEVEL", "info,postcommit_server::door=trace"), ("DISPATCH_STOP_GRACE_S", "60")]);
    let mut idle = house.connect();
    assert!(idle.is_well());
    let key = house.server.wait_for_line("  key  ").split_whitespace().nth(1).unwrap().to_owned();
    // Somebody holds the file: what is to be written has to wait.
    let file = rusqlite::Connection::open(house.shell.path().join("postcommit-data/postcommit.db")).unwrap();
    file.busy_timeout(std::time::Duration::from_secs(60)).unwrap();
    file.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut waiting = house.connect();
    let body = r#"{"event_type":"a","recipients":[{"email":"guest@example.com"}]}"#;
    let head = format!(
        "content-type: application/json\r\ncontent-length: {}\r\nauthorization: Bearer {key}\r\nx-request-id: under-way",
        body.len()
    );
    waiting.say(format!("POST /v1/notifications HTTP/1.1\r\nhost: localhost\r\n{head}\r\n\r\n{body}"));
    house.server.wait_for_line("under-way");
    house.server.term();
    assert_eq!(idle.hear_out(), "", "who is idle is not waited for");
    wait_until("the door to be shut", || std::net::TcpStream::connect(house.address).is_err());
    file.execute_batch("ROLLBACK").unwrap();
    let answer = waiting.hear_out();
    assert!(answer.starts_with("HTTP/1.1 202 ") && answer.contains("connection: close\r\n"), "{answer}");
    assert!(house.server.wait().success());
}

#[test]
fn a_method_that_is_not_served_is_said() {
    let house = House::with(&[]);
    for path in ["/healthz", "/readyz"] {
        assert!(house.ask(&format!("POST {path} HTTP/1.1\r\nhost: h\r\n\r\n")).starts_with("HTTP/1.1 405 "));
        let mut head = house.connect();
        head.say(format!("HEAD {path} HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n"));
        let answer = head.hear_out();
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\n"), "{answer}");
    }
}
