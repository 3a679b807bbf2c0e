//! A webhook receiver for crash tests. It records requests in a file, so that they survive a restart.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::http::{HttpServer, Reply, Request};

/// A receiver that appends a JSON line per request to its journal, and answers 200 only after that.
///
/// A line is `{"webhook_id": …, "n": …, "at": …}`. `webhook_id` is the request's `webhook-id` header, or empty without
/// one. `n` is how often that id has been received, including this request. `at` is the number of the line. A receiver
/// that is started again with the same journal continues its counts.
pub struct Receiver {
    server: HttpServer,
    journal: Arc<Mutex<Journal>>,
    path: PathBuf,
}

/// A fault in the answers of a [`Receiver`]. The request is written to the journal in any case. So the request has
/// taken effect, but the sender cannot know that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// Every request is answered with 200.
    #[default]
    None,
    /// Every k-th request is never answered. A k of 0 counts as 1.
    HangEvery(usize),
    /// Every k-th request ends in a connection reset. A k of 0 counts as 1.
    ResetEvery(usize),
}

impl Receiver {
    /// Starts a receiver on a free port of 127.0.0.1. The journal file is created if it is missing.
    pub fn start(journal: &Path) -> Self {
        let path = journal.to_owned();
        let journal = Arc::new(Mutex::new(Journal::open(&path)));
        let writer = journal.clone();
        let server = HttpServer::start(move |request| {
            let mut journal = writer.lock().expect("journal");
            journal.append(request);
            journal.fault.reply(request.n)
        });
        Self { server, journal, path }
    }

    /// Returns the scripted server that receives the requests.
    pub fn server(&self) -> &HttpServer {
        &self.server
    }

    /// Sets the fault, beginning with the next request.
    pub fn misbehave(&self, fault: Fault) {
        self.journal.lock().expect("journal").fault = fault;
    }

    /// Returns how often each webhook id has been received, according to the journal.
    pub fn counts(&self) -> HashMap<String, usize> {
        counts(&self.path)
    }
}

impl Fault {
    fn reply(self, n: usize) -> Reply {
        match self {
            Self::HangEvery(k) if n.is_multiple_of(k.max(1)) => Reply::Hang,
            Self::ResetEvery(k) if n.is_multiple_of(k.max(1)) => Reply::Reset,
            _ => Reply::ok(),
        }
    }
}

/// Returns how often each webhook id appears in a journal.
///
/// # Panics
/// When the journal cannot be read, or a line was not written by a [`Receiver`].
pub fn counts(journal: &Path) -> HashMap<String, usize> {
    let text = std::fs::read_to_string(journal).expect("read the journal");
    let mut counts = HashMap::new();
    for line in text.lines() {
        let entry: Value = serde_json::from_str(line).expect("a journal line is JSON");
        let id = entry["webhook_id"].as_str().expect("a journal line has an id");
        *counts.entry(id.to_owned()).or_default() += 1;
    }
    counts
}

struct Journal {
    file: File,
    seen: HashMap<String, usize>,
    lines: usize,
    fault: Fault,
}

impl Journal {
    fn open(path: &Path) -> Self {
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .unwrap_or_else(|error| panic!("open the journal {}: {error}", path.display()));
        let seen = counts(path);
        let lines = seen.values().sum();
        Self { file, seen, lines, fault: Fault::None }
    }

    fn append(&mut self, request: &Request) {
        let id = request.header("webhook-id").unwrap_or_default();
        let n = self.seen.entry(id.to_owned()).or_default();
        *n += 1;
        self.lines += 1;
        let entry = json!({"webhook_id": id, "n": *n, "at": self.lines});
        // Each line is one write, so that a reader never sees half a line.
        let line = format!("{entry}\n");
        self.file.write_all(line.as_bytes()).expect("write the journal");
    }
}
