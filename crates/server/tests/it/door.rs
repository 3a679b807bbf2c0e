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
pub struct House {
    pub shell: Shell,
    pub server: Child,
    pub address: SocketAddr,
}

impl House {
    /// A server on a new SQLite file, with settings beside the defaults.
    pub fn with(settings: &[(&str, &str)]) -> Self {
        let shell = shell(settings);
        let server = Child::spawn(shell.command(&["serve"]));
        Self::found(shell, server)
    }

    /// A server that the test has started.
    pub fn found(shell: Shell, server: Child) -> Self {
        server.wait_for_line("is ready");
        let line = server.wait_for_line("/healthz");
        let address = line.split("://").nth(1).unwrap().strip_suffix("/healthz").unwrap().parse().unwrap();
        Self { shell, server, address }
    }

    pub fn connect(&self) -> Visitor {
        Visitor::at(self.address)
    }

    /// Connects from another loopback address.
    pub fn connect_from(&self, source: Ipv4Addr) -> Visitor {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let stream = runtime.block_on(async {
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.bind((IpAddr::V4(source), 0).into()).unwrap();
            socket.connect(self.address).await.unwrap().into_std().unwrap()
        });
        stream.set_nonblocking(false).unwrap();
        Visitor(stream).patient()
    }

    /// The answer to a request of exactly this text.
    pub fn ask(&self, request: &str) -> String {
        self.connect().ask(request)
    }

    pub fn is_well(&self) -> bool {
        self.connect().is_well()
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
    shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?)))).current_dir(command.get_current_dir().unwrap());
    shell
}

/// A client that sends exactly the given bytes.
pub struct Visitor(pub TcpStream);

impl Visitor {
    pub fn at(address: SocketAddr) -> Self {
        Self(TcpStream::connect(address).unwrap()).patient()
    }

    /// Sets a read timeout, so that a missing answer fails the test instead of blocking it.
    fn patient(self) -> Self {
        self.0.set_read_timeout(Some(GUARD)).unwrap();
        self.0.set_write_timeout(Some(GUARD)).unwrap();
        self
    }

    pub fn say(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.write_all(bytes.as_ref()).unwrap();
    }

    pub fn ask(&mut self, request: &str) -> String {
        self.say(request);
        self.hear()
    }

    /// One answer, as long as its Content-Length says.
    pub fn hear(&mut self) -> String {
        hear(&mut self.0)
    }

    /// The head of an answer whose body may be endless.
    pub fn hear_head(&mut self) -> String {
        hear_head(&mut self.0)
    }

    /// Everything until the connection is closed.
    pub fn hear_out(&mut self) -> String {
        let mut rest = String::new();
        self.0.read_to_string(&mut rest).unwrap();
        rest
    }

    pub fn is_well(&mut self) -> bool {
        self.ask("GET /healthz HTTP/1.1\r\nhost: h\r\n\r\n").ends_with("\r\n\r\nok\n")
    }

    /// The bytes that arrive within a short time, if any.
    pub fn heard_meanwhile(&mut self) -> Option<String> {
        self.0.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
        let mut first = [0; 1];
        let read = self.0.read(&mut first);
        self.0.set_read_timeout(Some(GUARD)).unwrap();
        match read {
            Ok(0) => Some(String::new()),
            Ok(_) => Some(char::from(first[0]).to_string() + &self.hear()),
            Err(_) => None,
        }
    }
}

fn hear_head(stream: &mut impl Read) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        let read = stream.read(&mut byte).unwrap_or_else(|e| panic!("{e} after {}", String::from_utf8_lossy(&head)));
        assert_eq!(read, 1, "it ended after {:?}", String::from_utf8_lossy(&head));
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

pub fn hear(stream: &mut impl Read) -> String {
    let head = hear_head(stream);
    let length = head.split("content-length: ").nth(1).map_or(0, |rest| rest.split("\r\n").next().unwrap().parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    head + &String::from_utf8(body).unwrap()
}
