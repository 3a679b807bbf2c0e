//! The connection handling of the real binary: clients that are slow, too many, too large or ambiguous are refused
//! clearly, and all others are served. Tests that need misbehaving routes are in `src/door/tests.rs`.

mod crowd;
mod hosts;
mod known;
mod ready;
mod refused;
mod tls;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use postcommit_testkit::Child;

use crate::cli::Shell;
use crate::installation::GUARD;

/// A running server and its address.
pub struct TestServer {
    pub shell: Shell,
    pub process: Child,
    pub address: SocketAddr,
}

impl TestServer {
    /// A server on a new SQLite file, with settings beside the defaults.
    pub fn with(settings: &[(&str, &str)]) -> Self {
        let shell = shell(settings);
        let process = Child::spawn(shell.command(&["serve"]));
        Self::from_process(shell, process)
    }

    /// A server that the test has started.
    pub fn from_process(shell: Shell, process: Child) -> Self {
        process.wait_for_line("is ready");
        let line = process.wait_for_line("/healthz");
        let address = line.split("://").nth(1).unwrap().strip_suffix("/healthz").unwrap().parse().unwrap();
        Self { shell, process, address }
    }

    pub fn connect(&self) -> RawClient {
        RawClient::at(self.address)
    }

    /// Connects from another loopback address.
    pub fn connect_from(&self, source: Ipv4Addr) -> RawClient {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let stream = runtime.block_on(async {
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.bind((IpAddr::V4(source), 0).into()).unwrap();
            socket.connect(self.address).await.unwrap().into_std().unwrap()
        });
        stream.set_nonblocking(false).unwrap();
        RawClient(stream).with_timeouts()
    }

    /// The answer to a request of exactly this text.
    pub fn ask(&self, request: &str) -> String {
        self.connect().ask(request)
    }

    pub fn is_healthy(&self) -> bool {
        self.connect().is_healthy()
    }
}

pub fn shell(settings: &[(&str, &str)]) -> Shell {
    let mut shell = Shell::empty().with("POSTCOMMIT_SERVER_LISTEN", "127.0.0.1:0");
    for (name, value) in settings {
        shell = shell.with(&format!("POSTCOMMIT_{name}"), value);
    }
    shell
}

/// `command` through a shell that runs `first` before it.
pub fn after(first: &str, command: &Command) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{first}; exec \"$0\" \"$@\"")]).arg(command.get_program()).args(command.get_args());
    shell
        .envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .current_dir(command.get_current_dir().unwrap());
    shell
}

/// A client that sends exactly the given bytes.
pub struct RawClient(pub TcpStream);

impl RawClient {
    pub fn at(address: SocketAddr) -> Self {
        Self(TcpStream::connect(address).unwrap()).with_timeouts()
    }

    /// Sets timeouts, so that a missing answer fails the test instead of blocking it.
    fn with_timeouts(self) -> Self {
        self.0.set_read_timeout(Some(GUARD)).unwrap();
        self.0.set_write_timeout(Some(GUARD)).unwrap();
        self
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.write_all(bytes.as_ref()).unwrap();
    }

    pub fn ask(&mut self, request: &str) -> String {
        self.send(request);
        self.read_response()
    }

    /// One answer, as long as its Content-Length says.
    pub fn read_response(&mut self) -> String {
        read_response(&mut self.0)
    }

    /// The head of an answer whose body may be endless.
    pub fn read_head(&mut self) -> String {
        read_head(&mut self.0)
    }

    /// Everything until the connection is closed.
    pub fn read_to_end(&mut self) -> String {
        let mut rest = String::new();
        self.0.read_to_string(&mut rest).unwrap();
        rest
    }

    pub fn is_healthy(&mut self) -> bool {
        self.ask("GET /healthz HTTP/1.1\r\nhost: h\r\n\r\n").ends_with("\r\n\r\nok\n")
    }

    /// The bytes that arrive within a short time, if any.
    pub fn read_if_any(&mut self) -> Option<String> {
        self.0.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
        let mut first = [0; 1];
        let read = self.0.read(&mut first);
        self.0.set_read_timeout(Some(GUARD)).unwrap();
        match read {
            Ok(0) => Some(String::new()),
            Ok(_) => Some(char::from(first[0]).to_string() + &self.read_response()),
            Err(_) => None,
        }
    }
}

fn read_head(stream: &mut impl Read) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        let read = stream.read(&mut byte).unwrap_or_else(|e| panic!("{e} after {}", String::from_utf8_lossy(&head)));
        assert_eq!(read, 1, "it ended after {:?}", String::from_utf8_lossy(&head));
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

pub fn read_response(stream: &mut impl Read) -> String {
    let head = read_head(stream);
    let length =
        head.split("content-length: ").nth(1).map_or(0, |rest| rest.split("\r\n").next().unwrap().parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    head + &String::from_utf8(body).unwrap()
}
