//! A real RabbitMQ node.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::{Connection, StoredEvent, free_addr, program, text};
use crate::GUARD;
use crate::process::Child;

/// A running RabbitMQ node with ports, a cookie and a folder of its own. It takes about ten seconds to start.
pub struct RabbitMq {
    addr: SocketAddr,
    /// Declared before `_folder`, so that the processes end before their folder is removed.
    _server: Child,
    /// Erlang's port mapper. Without it, the node would start one by itself and leave it running.
    _epmd: Child,
    _folder: TempDir,
}

impl RabbitMq {
    /// Starts a node on a free port of 127.0.0.1, with the user `guest`. `more` are further lines of its configuration,
    /// such as a second listener.
    ///
    /// # Panics
    /// If RabbitMQ is not installed, or does not start.
    pub fn start(more: &str) -> Self {
        // The folder is not in /dev/shm, because in a container that has less free space than a node requires.
        let folder = tempfile::tempdir().expect("a folder for RabbitMQ");
        let (addr, epmd, dist) = (free_addr(), free_addr().port(), free_addr().port());
        let in_folder = |name: &str| text(&folder.path().join(name));
        // With the default limits, a node blocks publishers when the machine is short of memory or disk.
        let alarms = "disk_free_limit.absolute = 1MB\nvm_memory_high_watermark.relative = 0.9\n";
        let lines = format!("listeners.tcp.1 = {addr}\n{alarms}{more}\n");
        std::fs::write(in_folder("rabbitmq.conf"), lines).expect("rabbitmq.conf");
        std::fs::write(in_folder("plugins"), "[].\n").expect("a list without plugins");
        let mut mapper = program("epmd");
        mapper.args(["-port", &epmd.to_string(), "-address", "127.0.0.1"]);
        let mapper = Child::spawn(mapper);
        wait_until_open(epmd);
        // Debian's /usr/sbin/rabbitmq-server changes the user. This script keeps the user and the environment.
        let mut command = program("/usr/lib/rabbitmq/bin/rabbitmq-server");
        command
            .env("HOME", folder.path())
            .env("ERL_EPMD_PORT", epmd.to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_NODENAME", format!("test{}@localhost", addr.port()))
            .env("RABBITMQ_CONF_ENV_FILE", "/dev/null")
            .env("RABBITMQ_DIST_PORT", dist.to_string())
            .env("RABBITMQ_MNESIA_BASE", in_folder("data"))
            .env("RABBITMQ_LOG_BASE", in_folder("log"))
            .env("RABBITMQ_LOGS", "-")
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", in_folder("plugins"))
            .env("RABBITMQ_CONFIG_FILE", in_folder("rabbitmq.conf"))
            // If this is set, the script replaces itself with the node. Otherwise the node would outlive the script.
            .env("NOTIFY_SOCKET", in_folder("supervisor"));
        let server = Child::spawn(command);
        server.wait_for_line("Server startup complete");
        Self { addr, _server: server, _epmd: mapper, _folder: folder }
    }

    /// The address that the node listens on.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns a client that is signed in as `guest`.
    pub fn client(&self) -> RabbitMqClient {
        RabbitMqClient::open(self.addr)
    }
}

/// Waits until the port mapper listens. A node that does not find one starts its own and leaves it running.
fn wait_until_open(port: u16) {
    let deadline = Instant::now() + GUARD;
    // The state is polled, because the port mapper says nothing when it is ready.
    while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
        assert!(Instant::now() < deadline, "epmd does not listen");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A client that creates queues and reads their messages.
pub struct RabbitMqClient(Connection);

impl RabbitMqClient {
    fn open(addr: SocketAddr) -> Self {
        let mut this = Self(Connection::open(addr));
        this.0.write(b"AMQP\0\0\x09\x01");
        this.until((10, 10));
        let start = [&0_u32.to_be_bytes()[..], &short("PLAIN"), &long("\0guest\0guest"), &short("en_US")].concat();
        this.send(0, (10, 11), &start);
        let tune = this.until((10, 30));
        this.send(0, (10, 31), &tune);
        this.send(0, (10, 40), &[short("/"), short(""), vec![0]].concat());
        this.until((10, 41));
        this.send(1, (20, 10), &short(""));
        this.until((20, 11));
        this
    }

    /// Creates a durable queue. It refuses further messages when it holds `most`.
    pub fn add_queue(&mut self, name: &str, most: Option<i64>) {
        let limits = most.map_or(vec![], |most| {
            [
                [short("x-max-length"), vec![b'l'], most.to_be_bytes().to_vec()].concat(),
                [short("x-overflow"), vec![b'S'], long("reject-publish")].concat(),
            ]
            .concat()
        });
        let limits = [&u32::try_from(limits.len()).expect("a short table").to_be_bytes()[..], &limits].concat();
        // The flags 0b10 mean durable.
        self.send(1, (50, 10), &[vec![0, 0], short(name), vec![0b10], limits].concat());
        self.until((50, 11));
    }

    /// Creates a durable topic exchange and binds a queue to it.
    pub fn add_exchange(&mut self, name: &str, queue: &str, pattern: &str) {
        let none = [0; 4];
        self.send(1, (40, 10), &[&[0, 0], &short(name)[..], &short("topic"), &[0b10], &none].concat());
        self.until((40, 11));
        let bind = [&[0, 0], &short(queue)[..], &short(name), &short(pattern), &[0], &none].concat();
        self.send(1, (50, 20), &bind);
        self.until((50, 21));
    }

    /// Takes all messages out of a queue.
    pub fn events(&mut self, queue: &str) -> Vec<StoredEvent> {
        let mut events = vec![];
        loop {
            // The method basic.get, without acknowledgement.
            self.send(1, (60, 70), &[&[0, 0], &short(queue)[..], &[1]].concat());
            let (which, arguments) = self.method();
            if which == (60, 72) {
                return events;
            }
            assert_eq!(which, (60, 71), "GET-OK");
            // The tag of eight bytes and a flag come before the exchange and the routing key.
            let (_, rest) = text_at(&arguments[9..]);
            let (target, _) = text_at(rest);
            let (_, header) = self.frame();
            let size = usize::try_from(u64::from_be_bytes(header[4..12].try_into().expect("a size"))).expect("a size");
            let mut body = vec![];
            while body.len() < size {
                body.extend(self.frame().1);
            }
            let body = String::from_utf8_lossy(&body).into_owned();
            events.push(StoredEvent { target, id: message_id(&header), body });
        }
    }

    fn send(&mut self, channel: u16, (class, method): (u16, u16), arguments: &[u8]) {
        let size = u32::try_from(4 + arguments.len()).expect("a short method");
        let head = [&[1][..], &channel.to_be_bytes(), &size.to_be_bytes()].concat();
        let which = [class.to_be_bytes(), method.to_be_bytes()].concat();
        self.0.write(&[&head, &which, arguments, &[0xce]].concat());
    }

    /// Reads the next method, which must be `expected`. Returns its arguments.
    fn until(&mut self, expected: (u16, u16)) -> Vec<u8> {
        let (which, arguments) = self.method();
        assert_eq!(which, expected, "{}", String::from_utf8_lossy(&arguments));
        arguments
    }

    fn method(&mut self) -> ((u16, u16), Vec<u8>) {
        let (kind, content) = self.frame();
        assert_eq!(kind, 1, "a method");
        let number = |at: usize| u16::from_be_bytes([content[at], content[at + 1]]);
        ((number(0), number(2)), content[4..].to_vec())
    }

    /// Returns the kind and the content of the next frame that is no heartbeat.
    fn frame(&mut self) -> (u8, Vec<u8>) {
        loop {
            let head = self.0.exactly(7);
            let size = u32::from_be_bytes([head[3], head[4], head[5], head[6]]);
            let mut content = self.0.exactly(usize::try_from(size).expect("a size") + 1);
            assert_eq!(content.pop(), Some(0xce), "the end of a frame");
            if head[0] != 8 {
                return (head[0], content);
            }
        }
    }
}

/// Returns the property `message_id` of a content header. The driver sets only texts, a table and the delivery mode
/// before it.
fn message_id(header: &[u8]) -> String {
    let flags = u16::from_be_bytes([header[12], header[13]]);
    let mut left = &header[14..];
    for flag in (0..16).rev().map(|bit| 1_u16 << bit).filter(|flag| flags & flag != 0) {
        match flag {
            0x2000 => {
                let size = u32::from_be_bytes([left[0], left[1], left[2], left[3]]);
                left = &left[4 + usize::try_from(size).expect("a size")..];
            }
            0x1000 => left = &left[1..],
            0x0080 => return text_at(left).0,
            _ => left = text_at(left).1,
        }
    }
    String::new()
}

/// Splits the bytes into the short string at their beginning and the rest.
fn text_at(bytes: &[u8]) -> (String, &[u8]) {
    let (text, rest) = bytes[1..].split_at(bytes[0].into());
    (String::from_utf8_lossy(text).into_owned(), rest)
}

fn short(text: &str) -> Vec<u8> {
    [&[u8::try_from(text.len()).expect("a short text")], text.as_bytes()].concat()
}

fn long(text: &str) -> Vec<u8> {
    [&u32::try_from(text.len()).expect("a text").to_be_bytes(), text.as_bytes()].concat()
}
