//! The first five minutes, and the server process itself.

use std::io::{Read, Write};
use std::net::TcpStream;

use postcommit_testkit::Child;

use super::Shell;

pub fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn serve_without_arguments_makes_a_database_and_says_what_to_try() {
    let address = format!("127.0.0.1:{}", free_port());
    let shell = Shell::empty().with("POSTCOMMIT_SERVER_LISTEN", &address);
    let server = Child::spawn(shell.command(&["serve"]));
    let line = server.wait_for_line("enqueue booking.confirmed");
    assert!(shell.path().join("postcommit-data/postcommit.db").exists());
    // The printed line, run in another shell.
    let ran = std::process::Command::new("sh").args(["-c", line.trim()]).current_dir(shell.path()).output().unwrap();
    let shown = String::from_utf8(ran.stdout).unwrap();
    assert!(ran.status.success() && shown.contains("  sent\n") && shown.contains("by capture"), "{shown}");
    assert!(get(&address, "/healthz").starts_with("HTTP/1.1 200"));
    assert!(get(&address, "/readyz").ends_with("ready\n"));
    assert!(get(&address, "/etc").starts_with("HTTP/1.1 404"));
    server.term();
    assert!(server.wait().success(), "a stop that was asked for is no failure");
}

#[test]
fn a_second_start_keeps_the_existing_database() {
    let shell = Shell::empty().with("POSTCOMMIT_SERVER_LISTEN", "127.0.0.1:0");
    for _ in 0..2 {
        let server = Child::spawn(shell.command(&["serve"]));
        server.wait_for_line("is ready");
        server.term();
        server.wait();
    }
    assert_eq!(shell.run(&["providers", "list", "-o", "json"]).ends(0).json().as_array().unwrap().len(), 1);
}

#[test]
fn a_second_signal_stops_immediately() {
    let shell =
        Shell::ready().with("POSTCOMMIT_SERVER_LISTEN", "127.0.0.1:0").with("POSTCOMMIT_CAPTURE_FAIL_ON", "hang=h");
    let id = shell.enqueue("h", &[]);
    let server = Child::spawn(shell.command(&["serve"]));
    server.wait_for_line("is ready");
    let sending = || shell.run(&["notifications", "list", "-o", "json"]).json()[0]["state"] == "sending";
    while !sending() {
        std::thread::yield_now();
    }
    server.term();
    server.wait_for_line("running sends and requests are finished first");
    server.term();
    assert!(server.wait().success());
    assert_eq!(
        shell.run(&["notifications", "show", &id, "-o", "json"]).json()["state"],
        "sending",
        "its lease will run out"
    );
}

#[test]
fn a_slow_client_of_the_health_page_blocks_no_other() {
    let address = format!("127.0.0.1:{}", free_port());
    let shell = Shell::empty().with("POSTCOMMIT_SERVER_LISTEN", &address);
    let server = Child::spawn(shell.command(&["serve"]));
    server.wait_for_line("is ready");
    let _silent: Vec<TcpStream> = (0..50).map(|_| TcpStream::connect(&address).unwrap()).collect();
    assert!(get(&address, "/healthz").starts_with("HTTP/1.1 200"));
    let mut nonsense = TcpStream::connect(&address).unwrap();
    nonsense.write_all(&[0xff; 4096]).unwrap();
    assert!(get(&address, "/healthz").starts_with("HTTP/1.1 200"));
}

#[test]
fn a_port_in_use_is_reported_plainly() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let ran = Shell::empty().run(&["serve", "--listen", &address]).ends(4);
    assert!(ran.stderr.contains(&format!("server.listen: cannot listen on {address}: ")), "{}", ran.stderr);
}

#[test]
fn the_server_works_on_when_its_log_is_not_read() {
    let shell = Shell::ready()
        .with("POSTCOMMIT_SERVER_LISTEN", "127.0.0.1:0")
        .with("POSTCOMMIT_CAPTURE_FAIL_ON", "permanent=p");
    let mut server = shell.command(&["serve"]).stderr(std::process::Stdio::piped()).spawn().unwrap();
    // The reader of the log closes its end. The next parked delivery would be logged.
    drop(server.stderr.take());
    for event in ["p", "p", "fine"] {
        shell.enqueue(event, &[]);
    }
    let open = || {
        shell
            .run(&["notifications", "list", "-o", "json"])
            .json()
            .as_array()
            .unwrap()
            .iter()
            .filter(|n| n["state"] == "pending" || n["state"] == "sending")
            .count()
    };
    while open() > 0 {
        assert!(server.try_wait().unwrap().is_none(), "it ended");
        std::thread::yield_now();
    }
    assert!(server.try_wait().unwrap().is_none(), "it lives on");
    server.kill().unwrap();
    server.wait().unwrap();
}

#[test]
fn unusual_environments_cause_no_panic() {
    use std::os::unix::ffi::OsStrExt;
    let shell = Shell::ready();
    let odd = std::ffi::OsStr::from_bytes(b"\xff\xfe");
    let ran = shell.command(&["config", "show"]).env("FOO", odd).output().unwrap();
    assert!(ran.status.success());
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    assert_eq!(shell.command(&["config", "show"]).stdout(full).status().unwrap().code(), Some(1));
    let id = shell
        .run(&["enqueue", "a", "--to", "a@example.com", "--title", "\u{1b}[31mred\u{9b}"])
        .ends(0)
        .stdout
        .trim()
        .to_owned();
    assert!(!shell.run(&["notifications", "show", &id]).ends(0).stdout.contains(|c: char| c.is_control() && c != '\n'));
}

#[test]
fn a_stopped_server_leaves_everything_in_the_file() {
    let shell = Shell::empty().with("POSTCOMMIT_SERVER_LISTEN", "127.0.0.1:0");
    let server = Child::spawn(shell.command(&["serve"]));
    server.wait_for_line("is ready");
    shell.run(&["enqueue", "a", "--to", "a@example.com", "--wait"]).ends(0);
    server.term();
    server.wait();
    let data = shell.path().join("postcommit-data");
    std::fs::copy(data.join("postcommit.db"), data.join("copy.db")).unwrap();
    let copied = shell
        .run(&["notifications", "list", "-o", "json", "--database-url", "sqlite:postcommit-data/copy.db"])
        .ends(0)
        .json();
    assert_eq!(copied[0]["state"], "sent");
}
