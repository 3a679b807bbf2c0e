//! A service whose answers a test changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use postcommit_testkit::{HttpServer, Reply};

/// A server whose answers have this status. With 429, it asks to wait ten minutes.
pub struct Service {
    pub server: HttpServer,
    status: Arc<AtomicU16>,
}

impl Service {
    pub fn answering(status: u16) -> Self {
        let status = Arc::new(AtomicU16::new(status));
        let answer = status.clone();
        let server = HttpServer::start(move |_| match answer.load(Ordering::SeqCst) {
            429 => Reply::status(429).with_header("Retry-After", "600"),
            status => Reply::status(status),
        });
        Self { server, status }
    }

    pub fn answer(&self, status: u16) {
        self.status.store(status, Ordering::SeqCst);
    }

    pub fn requests(&self) -> usize {
        self.server.requests().len()
    }

    /// Returns how often each delivery arrived.
    pub fn arrived(&self) -> Vec<usize> {
        self.server.effects_by("webhook-id").into_values().collect()
    }
}
