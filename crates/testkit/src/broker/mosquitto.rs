//! A real MQTT broker.

use std::net::SocketAddr;

use tempfile::TempDir;

use super::{Connection, StoredEvent, folder, free_addr, program, text};
use crate::process::Child;

/// A running `mosquitto` that keeps sessions in its file.
pub struct Mosquitto {
    /// Declared before `folder`, so that the process ends before its folder is removed.
    server: Option<Child>,
    addr: SocketAddr,
    folder: TempDir,
}

impl Mosquitto {
    /// Starts the broker on a free port of 127.0.0.1. `more` are further lines of its configuration, in which `FOLDER`
    /// stands for its folder. `files` are written into that folder.
    ///
    /// # Panics
    /// If `mosquitto` is not installed, or does not start.
    pub fn start(more: &str, files: &[(&str, &str)]) -> Self {
        let mut this = Self { folder: folder(), addr: free_addr(), server: None };
        let path = text(this.folder.path());
        // A broker that is started by root would change its user and could not read its own folder.
        let lines = format!(
            "user root\nlog_dest stderr\nlistener {} 127.0.0.1\npersistence true\npersistence_location {path}/\n\
             max_queued_messages 0\n{}\n",
            this.addr.port(),
            more.replace("FOLDER", &path)
        );
        for (name, lines) in [("mosquitto.conf", lines.as_str())].iter().chain(files) {
            std::fs::write(this.folder.path().join(name), lines).expect("a file for mosquitto");
        }
        this.run();
        this
    }

    fn run(&mut self) {
        let mut command = program("mosquitto");
        command.args(["-c", &text(&self.folder.path().join("mosquitto.conf"))]);
        let server = Child::spawn(command);
        server.wait_for_line(" running");
        self.server = Some(server);
    }

    /// Ends the broker, which saves its sessions, and starts it again on the same port.
    pub fn restart(&mut self) {
        if let Some(server) = self.server.take() {
            server.term();
            server.wait();
        }
        self.run();
    }

    /// The address that the broker listens on.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns a client that is subscribed to the filter. Its session outlives its connections.
    pub fn subscriber(&self, client_id: &str, filter: &str) -> Subscriber {
        let mut subscriber = Subscriber::open(self.addr, client_id);
        // The body of SUBSCRIBE: packet id 1, no properties, the filter, QoS 1.
        let body = [&[0, 1, 0], string(filter).as_slice(), &[1]].concat();
        subscriber.0.write(&packet(0x82, &body));
        let (kind, body) = subscriber.read();
        assert_eq!((kind >> 4, body.last()), (9, Some(&1)), "SUBACK with QoS 1");
        subscriber
    }

    /// Opens the session of an earlier subscriber again. The broker has kept its events meanwhile.
    pub fn session(&self, client_id: &str) -> Subscriber {
        Subscriber::open(self.addr, client_id)
    }
}

/// A subscriber with a session that never expires.
pub struct Subscriber(Connection);

impl Subscriber {
    fn open(addr: SocketAddr, client_id: &str) -> Self {
        let mut this = Self(Connection::open(addr));
        // MQTT 5, no clean start, no keep alive, a session that never expires.
        let head = [string("MQTT").as_slice(), &[5, 0, 0, 0, 5, 0x11, 0xff, 0xff, 0xff, 0xff]].concat();
        this.0.write(&packet(0x10, &[head, string(client_id)].concat()));
        let (kind, body) = this.read();
        assert_eq!((kind, body.get(1)), (0x20, Some(&0)), "CONNACK");
        this
    }

    /// Returns all events that the broker holds for this session. To find the end, it publishes a last message on
    /// `topic`, to which the session must be subscribed, and reads up to that message.
    pub fn events(&mut self, topic: &str) -> Vec<StoredEvent> {
        const LAST: &str = "the last message of the test";
        let body = [string(topic).as_slice(), &[0, 7, 0], LAST.as_bytes()].concat();
        self.0.write(&packet(0x32, &body));
        let mut events = vec![];
        loop {
            let (kind, body) = self.read();
            if kind >> 4 != 3 {
                continue;
            }
            let event = self.take(kind, &body);
            if event.body == LAST {
                return events;
            }
            events.push(event);
        }
    }

    /// Waits for the next event.
    pub fn next_event(&mut self) -> StoredEvent {
        loop {
            let (kind, body) = self.read();
            if kind >> 4 == 3 {
                return self.take(kind, &body);
            }
        }
    }

    /// Reads a PUBLISH packet and acknowledges it. The event's `id` is its message expiry and its content type, as
    /// text.
    fn take(&mut self, kind: u8, body: &[u8]) -> StoredEvent {
        let topic = usize::from(u16::from_be_bytes([body[0], body[1]]));
        let (target, mut rest) = (&body[2..2 + topic], &body[2 + topic..]);
        if kind & 0x06 != 0 {
            let number = [rest[0], rest[1]];
            self.0.write(&packet(0x40, &number));
            rest = &rest[2..];
        }
        let (length, size) = length(rest);
        let (properties, payload) = rest[size..].split_at(length);
        let utf8 = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        StoredEvent { target: utf8(target), id: described(properties), body: utf8(payload) }
    }

    fn read(&mut self) -> (u8, Vec<u8>) {
        let kind = self.0.exactly(1)[0];
        let mut bytes = vec![];
        loop {
            bytes.extend(self.0.exactly(1));
            if bytes.last().is_some_and(|byte| byte & 0x80 == 0) {
                break;
            }
        }
        let (length, _) = length(&bytes);
        (kind, self.0.exactly(length))
    }
}

/// Returns the message expiry and the content type from an event's properties, such as `60 text/plain`.
fn described(mut left: &[u8]) -> String {
    let (mut expiry, mut content_type) = (String::new(), String::new());
    while let Some((identifier, rest)) = left.split_first() {
        let text = |at: usize| usize::from(u16::from_be_bytes([rest[at], rest[at + 1]]));
        let size = match identifier {
            0x01 => 1,
            0x02 => {
                expiry = u32::from_be_bytes([rest[0], rest[1], rest[2], rest[3]]).to_string();
                4
            }
            0x03 => {
                content_type = String::from_utf8_lossy(&rest[2..2 + text(0)]).into_owned();
                2 + text(0)
            }
            0x26 => 4 + text(0) + text(2 + text(0)),
            other => panic!("a property {other:#x} that the test does not know"),
        };
        left = &rest[size..];
    }
    format!("{expiry} {content_type}")
}

fn string(text: &str) -> Vec<u8> {
    let length = u16::try_from(text.len()).expect("a short text");
    [&length.to_be_bytes(), text.as_bytes()].concat()
}

fn packet(first: u8, body: &[u8]) -> Vec<u8> {
    let (mut bytes, mut length) = (vec![first], body.len());
    loop {
        let (low, more) = ((length & 0x7f) as u8, length >> 7);
        bytes.push(if more > 0 { low | 0x80 } else { low });
        length = more;
        if more == 0 {
            return [bytes, body.to_vec()].concat();
        }
    }
}

/// Reads a variable-length integer. Returns its value and its number of bytes.
fn length(bytes: &[u8]) -> (usize, usize) {
    let mut length = 0;
    for (place, byte) in bytes.iter().enumerate() {
        length |= usize::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            return (length, place + 1);
        }
    }
    panic!("a length that does not end")
}
