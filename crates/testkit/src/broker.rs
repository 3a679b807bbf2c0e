//! Real brokers from Debian's packages. Each has its own folder and ports, and ends with the test. A broker that the
//! system itself runs is not touched.
//!
//! For each broker there is a small client that reads its messages. It shares no code with the product's drivers.

mod mosquitto;
mod nats;
mod rabbitmq;
mod redis;

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::GUARD;

pub use mosquitto::{Mosquitto, Subscriber};
pub use nats::{Nats, NatsClient};
pub use rabbitmq::{RabbitMq, RabbitMqClient};
pub use redis::{Redis, RedisClient};

/// An event as a broker stored it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct StoredEvent {
    /// The subject, stream, topic or routing key.
    pub target: String,
    /// The id that is visible to the broker, such as a header or a property. Empty if the protocol has none.
    pub id: String,
    /// The body.
    pub body: String,
}

/// Returns an address of 127.0.0.1 with a free port.
fn free_addr() -> SocketAddr {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    free.local_addr().expect("the address of the free port")
}

/// Creates a folder for a broker's data, in memory where possible.
fn folder() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder for a broker")
}

/// Returns the command for a program of the system. Debian installs some of them outside the PATH of most users.
fn program(name: &str) -> Command {
    let mut command = Command::new(name);
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    command
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// A blocking connection that fails a test instead of waiting forever.
struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    fn open(addr: SocketAddr) -> Self {
        let stream = TcpStream::connect(addr).expect("a connection to the broker");
        stream.set_read_timeout(Some(GUARD)).expect("a timeout for reads");
        stream.set_nodelay(true).expect("no delay for small packets");
        Self { stream, buffer: vec![] }
    }

    fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the broker reads");
    }

    fn line(&mut self) -> String {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\r\n") {
                let line: Vec<u8> = self.buffer.drain(..end + 2).collect();
                return String::from_utf8_lossy(&line[..end]).into_owned();
            }
            self.fill();
        }
    }

    fn exactly(&mut self, count: usize) -> Vec<u8> {
        while self.buffer.len() < count {
            self.fill();
        }
        self.buffer.drain(..count).collect()
    }

    fn fill(&mut self) {
        let mut chunk = [0; 16 * 1024];
        match self.stream.read(&mut chunk) {
            Ok(0) => panic!("the broker closed the connection of the test"),
            Ok(count) => self.buffer.extend_from_slice(&chunk[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => panic!("the broker did not answer the test: {error}"),
        }
    }
}
