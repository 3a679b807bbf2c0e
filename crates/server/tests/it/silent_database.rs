//! A port that accepts connections and does not answer as PostgreSQL does: every command ends, by its deadline for new
//! connections and by a signal.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use postcommit_testkit::{Child, Proxy, ProxyMode};

use crate::cli::Shell;
use crate::installation::Kind;

/// A PostgreSQL that reads what a client sends first, answers with these bytes, and then nothing more.
struct SilentDatabase {
    address: SocketAddr,
    /// One for each connection that has got its answer.
    answered: Receiver<()>,
}

impl SilentDatabase {
    fn answering(bytes: &'static [u8]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (tell, answered) = channel();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            // Kept open: a closed connection would be an answer.
            let mut held: Vec<TcpStream> = Vec::new();
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let _ = stream.read(&mut [0; 1024]);
                let _ = stream.write_all(bytes);
                held.push(stream);
                let _ = tell.send(());
            }
        });
        Self { address, answered }
    }

    fn shell(&self, query: &str, seconds: &str) -> Shell {
        Shell::empty()
            .with("POSTCOMMIT_DATABASE_URL", &format!("postgres://somebody:hush@{}/d{query}", self.address))
            .with("POSTCOMMIT_DATABASE_CONNECT_TIMEOUT_S", seconds)
    }
}

const SILENT: &[u8] = b"";
/// The beginning of AuthenticationOk.
const HALF_A_MESSAGE: &[u8] = b"R\0\0\0";
/// The server is willing to encrypt.
const TLS_BEGINS: &[u8] = b"S";
/// AuthenticationOk and ReadyForQuery: all but the first answer to a statement.
const CONNECTED: &[u8] = b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I";

#[test]
fn a_database_that_accepts_and_does_not_answer_ends_a_command_with_five() {
    let commands: [&[&str]; 5] = [
        &["notifications", "list"],
        &["enqueue", "a", "--to", "email:guest@example.com"],
        &["migrate"],
        &["dispatch", "--once"],
        &["serve", "--listen", "127.0.0.1:0"],
    ];
    let answers = [
        (SILENT, ""),
        (HALF_A_MESSAGE, ""),
        (CONNECTED, ""),
        (SILENT, "?sslmode=require"),
        (TLS_BEGINS, "?sslmode=require"),
    ];
    for (place, (bytes, query)) in answers.into_iter().enumerate() {
        let database = SilentDatabase::answering(bytes);
        // All commands on the silent port; the other cases differ below the commands.
        for command in if place == 0 { &commands[..] } else { &commands[..1] } {
            let said = database.shell(query, "1").run(command).ends(5).stderr;
            let expected = format!(
                "cannot reach the database: 127.0.0.1 port {}: the server did not answer a new connection within 1 s (database.connect_timeout_s); check the host",
                database.address.port()
            );
            assert!(said.contains(&expected) && !said.contains("hush"), "{command:?} {query}: {said}");
        }
    }
}

#[test]
fn the_url_may_name_the_deadline_of_new_connections() {
    let database = SilentDatabase::answering(SILENT);
    let said = database.shell("?connect_timeout=2", "60").run(&["notifications", "list"]).ends(5).stderr;
    assert!(said.contains("the server did not answer a new connection within 2 s"), "{said}");
}

/// The kernel drops what arrives for a queue that is full, as a firewall does.
#[test]
fn a_port_that_drops_connections_ends_a_command_with_five() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _inside = runtime.enter();
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let connect = || TcpStream::connect_timeout(&address, Duration::from_millis(200));
    let _held: Vec<TcpStream> = std::iter::from_fn(|| connect().ok()).collect();
    let shell = Shell::empty()
        .with("POSTCOMMIT_DATABASE_URL", &format!("postgres://somebody:hush@{address}/d"))
        .with("POSTCOMMIT_DATABASE_CONNECT_TIMEOUT_S", "3");
    let said = shell.run(&["notifications", "list"]).ends(5).stderr;
    let expected = format!("127.0.0.1 port {}: no connection within 1.0 s for each address", address.port());
    assert!(said.contains(&expected) && said.contains("; check the host") && !said.contains("hush"), "{said}");
}

/// The exit code is the process's own: the first process of a container is not ended by a signal that it does not handle.
#[test]
fn a_signal_ends_a_command_that_waits_for_its_database() {
    let commands: [&[&str]; 2] = [&["notifications", "list"], &["serve", "--listen", "127.0.0.1:0"]];
    for (signal, code) in [("TERM", 143), ("INT", 130)] {
        for command in commands {
            let database = SilentDatabase::answering(SILENT);
            let process = Child::spawn(database.shell("", "60").command(command));
            database.answered.recv().unwrap();
            process.signal(signal);
            assert_eq!(process.wait().code(), Some(code), "{command:?}: {:?}", process.output());
            process.wait_for_line(&format!("postcommit: ended by SIG{signal}"));
        }
    }
}

/// Serves on a database behind a proxy. Once the server is ready, the proxy forwards nothing more.
fn server_whose_database_falls_silent(grace: &str) -> (Shell, Proxy, Child) {
    let shell = Shell::ready_on(Kind::Postgres);
    let url = shell.setting("POSTCOMMIT_DATABASE_URL");
    let (before, rest) = url.split_once("127.0.0.1:").unwrap();
    let (port, after) = rest.split_once('/').unwrap();
    let proxy = Proxy::start(([127, 0, 0, 1], port.parse().unwrap()).into());
    let mut command = shell.command(&["serve", "--listen", "127.0.0.1:0"]);
    command.env("POSTCOMMIT_DATABASE_URL", format!("{before}{}/{after}", proxy.addr()));
    command.env("POSTCOMMIT_DISPATCH_STOP_GRACE_S", grace);
    let server = Child::spawn(command);
    server.wait_for_line("is ready");
    proxy.set(ProxyMode::BlackHole);
    shell.enqueue("a", &[]);
    (shell, proxy, server)
}

#[test]
fn a_server_whose_database_falls_silent_stops_after_its_grace_period() {
    let (_shell, _proxy, server) = server_whose_database_falls_silent("0");
    server.term();
    assert_eq!(server.wait().code(), Some(1), "{:?}", server.output());
    assert!(server.output().iter().any(|line| line.contains("did not stop in time")), "{:?}", server.output());
}

#[test]
fn a_second_signal_ends_a_server_whose_database_falls_silent() {
    let (_shell, _proxy, server) = server_whose_database_falls_silent("600");
    server.term();
    server.wait_for_line("a second signal stops immediately");
    server.term();
    assert_eq!(server.wait().code(), Some(1), "{:?}", server.output());
}
