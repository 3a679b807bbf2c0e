//! A real NATS server with JetStream.

use std::net::SocketAddr;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Connection, StoredEvent, folder, free_addr, program, text};
use crate::process::Child;

/// A running `nats-server` with a JetStream store of its own.
pub struct Nats {
    /// Declared before `folder`, so that the process ends before its folder is removed.
    server: Option<Child>,
    addr: SocketAddr,
    folder: TempDir,
}

impl Nats {
    /// Starts the server on a free port of 127.0.0.1. `more` are further lines of its configuration.
    ///
    /// # Panics
    /// If `nats-server` is not installed, or does not start.
    pub fn start(more: &str) -> Self {
        let mut this = Self { folder: folder(), addr: free_addr(), server: None };
        let store = text(&this.folder.path().join("store"));
        let lines = format!(
            "listen: \"{}\"\njetstream {{ store_dir: \"{store}\", max_mem: 64MB, max_file: 256MB }}\n{more}\n",
            this.addr
        );
        std::fs::write(this.folder.path().join("nats.conf"), lines).expect("nats.conf");
        this.run();
        this
    }

    fn run(&mut self) {
        let mut command = program("nats-server");
        command.args(["-c", &text(&self.folder.path().join("nats.conf"))]);
        let server = Child::spawn(command);
        server.wait_for_line("Server is ready");
        self.server = Some(server);
    }

    /// Kills the server and starts it again, on the same port and with the same store.
    pub fn restart(&mut self) {
        self.server = None;
        self.run();
    }

    /// The address that the server listens on.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns a client that signs in with these fields of CONNECT.
    pub fn client(&self, sign_in: &Value) -> NatsClient {
        NatsClient::open(self.addr, sign_in)
    }
}

/// A client of JetStream's API.
pub struct NatsClient(Connection);

impl NatsClient {
    fn open(addr: SocketAddr, sign_in: &Value) -> Self {
        let mut connection = Connection::open(addr);
        let info = connection.line();
        assert!(info.starts_with("INFO "), "{info}");
        let mut connect = json!({"verbose": false, "pedantic": false, "headers": true});
        let fields = connect.as_object_mut().expect("an object");
        fields.extend(sign_in.as_object().cloned().unwrap_or_default());
        connection.write(format!("CONNECT {connect}\r\nSUB test.inbox 1\r\nPING\r\n").as_bytes());
        let mut this = Self(connection);
        while this.0.line() != "PONG" {}
        this
    }

    /// Creates a stream for the subjects. The stream recognises repeated ids for two minutes.
    pub fn add_stream(&mut self, name: &str, subjects: &[&str], more: &Value) {
        let mut config = json!({
            "name": name, "subjects": subjects, "retention": "limits", "storage": "file", "num_replicas": 1,
            "max_consumers": -1, "max_msgs": -1, "max_bytes": -1, "max_age": 0, "discard": "old",
            "duplicate_window": 120_000_000_000_u64,
        });
        let fields = config.as_object_mut().expect("an object");
        fields.extend(more.as_object().cloned().unwrap_or_default());
        let answer = self.ask(&format!("STREAM.CREATE.{name}"), &config);
        assert!(answer.get("error").is_none(), "{answer}");
    }

    /// Returns all messages of a stream in order.
    pub fn events(&mut self, stream: &str) -> Vec<StoredEvent> {
        let state = self.ask(&format!("STREAM.INFO.{stream}"), &json!({}))["state"].clone();
        let number = |name: &str| state[name].as_u64().expect("a number of the stream's state");
        let (first, last) = (number("first_seq"), number("last_seq"));
        (first..=last).filter(|_| number("messages") > 0).map(|seq| self.event(stream, seq)).collect()
    }

    fn event(&mut self, stream: &str, seq: u64) -> StoredEvent {
        let answer = self.ask(&format!("STREAM.MSG.GET.{stream}"), &json!({ "seq": seq }));
        let message = &answer["message"];
        let headers = decoded(&message["hdrs"]);
        let id = headers.lines().find_map(|line| line.strip_prefix("Nats-Msg-Id: ")).unwrap_or_default();
        let target = message["subject"].as_str().unwrap_or_default().to_owned();
        StoredEvent { target, id: id.to_owned(), body: decoded(&message["data"]) }
    }

    /// Sends a request to JetStream's API and returns the response.
    fn ask(&mut self, subject: &str, request: &Value) -> Value {
        let body = request.to_string();
        self.0.write(format!("PUB $JS.API.{subject} test.inbox {}\r\n{body}\r\n", body.len()).as_bytes());
        loop {
            let line = self.0.line();
            let words: Vec<&str> = line.split(' ').collect();
            match words.first().copied().unwrap_or_default() {
                "MSG" => {
                    let size = words[words.len() - 1].parse::<usize>().expect("a size");
                    let bytes = self.0.exactly(size + 2);
                    return serde_json::from_slice(&bytes[..size]).expect("JSON of JetStream");
                }
                "PING" => self.0.write(b"PONG\r\n"),
                "-ERR" | "HMSG" => panic!("the API of JetStream answered {line}"),
                _ => {}
            }
        }
    }
}

fn decoded(value: &Value) -> String {
    use base64::Engine as _;
    let text = value.as_str().unwrap_or_default();
    let bytes = base64::engine::general_purpose::STANDARD.decode(text).expect("base64 of JetStream");
    String::from_utf8_lossy(&bytes).into_owned()
}
