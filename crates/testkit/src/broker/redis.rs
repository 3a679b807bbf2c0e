//! A real Redis server.

use std::net::SocketAddr;

use tempfile::TempDir;

use super::{Connection, StoredEvent, folder, free_addr, program, text};
use crate::process::Child;

/// A running `redis-server` that writes each change to its file.
pub struct Redis {
    /// Declared before `folder`, so that the process ends before its folder is removed.
    server: Option<Child>,
    addr: SocketAddr,
    folder: TempDir,
    options: Vec<String>,
}

impl Redis {
    /// Starts the server on a free port of 127.0.0.1. `options` are further options of its command line, such as
    /// `--requirepass`.
    ///
    /// # Panics
    /// If `redis-server` is not installed, or does not start.
    pub fn start(options: &[&str]) -> Self {
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        let mut this = Self { folder: folder(), addr: free_addr(), server: None, options };
        this.run();
        this
    }

    fn run(&mut self) {
        let (port, folder) = (self.addr.port().to_string(), text(self.folder.path()));
        let mut command = program("redis-server");
        command.args(["--bind", "127.0.0.1", "--dir", &folder, "--appendonly", "yes", "--save", ""]);
        let is_tls = self.options.iter().any(|option| option == "--tls-port");
        command.args(if is_tls { ["--port", "0"] } else { ["--port", &port] });
        command.args(self.options.iter().map(|option| if option == "PORT" { &port } else { option }));
        let server = Child::spawn(command);
        server.wait_for_line("Ready to accept connections");
        self.server = Some(server);
    }

    /// Kills the server and starts it again, on the same port and with the same file.
    pub fn restart(&mut self) {
        self.server = None;
        self.run();
    }

    /// The address that the server listens on.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns a client. It signs in with AUTH and these words, if there are any.
    pub fn client(&self, sign_in: &[&str]) -> RedisClient {
        let mut client = RedisClient(Connection::open(self.addr));
        if !sign_in.is_empty() {
            client.ask(&[&["AUTH"], sign_in].concat());
        }
        client
    }
}

/// A client that sends commands.
pub struct RedisClient(Connection);

impl RedisClient {
    /// Sends a command and returns all texts of its answer, in order.
    ///
    /// # Panics
    /// If the server answers with an error.
    pub fn ask(&mut self, words: &[&str]) -> Vec<String> {
        let mut command = format!("*{}\r\n", words.len());
        words.iter().for_each(|word| command += &format!("${}\r\n{word}\r\n", word.len()));
        self.0.write(command.as_bytes());
        let mut texts = vec![];
        self.read(&mut texts);
        texts
    }

    fn read(&mut self, texts: &mut Vec<String>) {
        let line = self.0.line();
        let number = || line[1..].parse::<i64>().expect("a number of Redis");
        match &line[..1] {
            "-" => panic!("Redis answered {line}"),
            "*" => (0..number()).for_each(|_| self.read(texts)),
            "$" if number() >= 0 => {
                let length = usize::try_from(number()).expect("a length");
                let bytes = self.0.exactly(length + 2);
                texts.push(String::from_utf8_lossy(&bytes[..length]).into_owned());
            }
            "$" => {}
            _ => texts.push(line[1..].to_owned()),
        }
    }

    /// Returns all entries of a stream in order.
    pub fn events(&mut self, stream: &str) -> Vec<StoredEvent> {
        let texts = self.ask(&["XRANGE", stream, "-", "+"]);
        // An entry has seven texts: its own id, then name and value of three fields.
        let entries = texts.chunks(7).map(|entry| {
            assert_eq!((entry[1].as_str(), entry[3].as_str(), entry[5].as_str()), ("id", "type", "event"), "{entry:?}");
            StoredEvent { target: stream.to_owned(), id: entry[2].clone(), body: entry[6].clone() }
        });
        entries.collect()
    }
}
