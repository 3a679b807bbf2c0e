//! The `[server]` section of the settings: the address to listen on, the limits and the deadlines.

use std::net::SocketAddr;
use std::time::Duration;

use ipnet::IpNet;
use serde::Deserialize;

/// The `[server]` section. `default.toml` describes each setting and its range.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerSettings {
    pub listen: String,
    pub allow_public: bool,
    /// The path of the certificate. If it is empty, TLS is off.
    pub tls_certificate: String,
    pub tls_key: String,
    pub trusted_proxies: Vec<IpNet>,
    pub connections: usize,
    pub connections_per_address: usize,
    pub streams: usize,
    pub body_bytes: u64,
    pub header_deadline_ms: u64,
    pub idle_deadline_ms: u64,
    pub body_grace_ms: u64,
    pub body_bytes_per_s: u64,
    pub body_deadline_ms: u64,
    pub write_deadline_ms: u64,
}

impl ServerSettings {
    /// The URL to open in a browser on this machine.
    pub fn url(&self) -> String {
        format!("http{}://{}", if self.tls_certificate.is_empty() { "" } else { "s" }, self.listen)
    }

    /// Whether only this machine can connect and no proxy is configured.
    pub fn is_loopback(&self) -> bool {
        self.listen.parse().is_ok_and(|listen: SocketAddr| listen.ip().is_loopback()) && self.trusted_proxies.is_empty()
    }

    /// Checks the range of each setting.
    /// # Errors
    /// The name of the first setting that is out of range, and the range.
    pub fn validate(&self) -> Result<(), String> {
        self.validate_place()?;
        let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        for (name, value, low, high) in [
            ("connections", count(self.connections), 1, 1_000_000),
            ("connections_per_address", count(self.connections_per_address), 1, 1_000_000),
            ("body_bytes", self.body_bytes, 1024, 1 << 30),
            ("header_deadline_ms", self.header_deadline_ms, 10, 600_000),
            ("idle_deadline_ms", self.idle_deadline_ms, 10, 3_600_000),
            ("body_grace_ms", self.body_grace_ms, 10, 600_000),
            ("body_bytes_per_s", self.body_bytes_per_s, 1, 1 << 30),
            ("body_deadline_ms", self.body_deadline_ms, 10, 3_600_000),
            ("write_deadline_ms", self.write_deadline_ms, 10, 3_600_000),
        ] {
            if !(low..=high).contains(&value) {
                return Err(format!("server.{name}: is {value}; {low} to {high} are allowed"));
            }
        }
        // A stream holds its connection for hours. Streams must leave connections for other requests.
        if self.streams >= self.connections {
            return Err(format!(
                "server.streams: is {}; fewer than server.connections ({}) are allowed",
                self.streams, self.connections
            ));
        }
        Ok(())
    }

    fn validate_place(&self) -> Result<(), String> {
        let listen: SocketAddr = self.listen.parse().map_err(|_| {
            format!("server.listen: {:?} is not an address and port such as 127.0.0.1:7410", self.listen)
        })?;
        if !listen.ip().is_loopback() && !self.allow_public {
            return Err(format!(
                "server.listen: {listen} can be reached from outside; allowed are loopback addresses, or any with server.allow_public = true"
            ));
        }
        match (self.tls_certificate.is_empty(), self.tls_key.is_empty()) {
            (false, true) => Err("server.tls_key: is empty; server.tls_certificate needs its key".into()),
            (true, false) => Err("server.tls_certificate: is empty; server.tls_key needs its certificate".into()),
            _ => Ok(()),
        }
    }

    pub(super) fn header_deadline(&self) -> Duration {
        Duration::from_millis(self.header_deadline_ms)
    }

    pub(super) fn idle_deadline(&self) -> Duration {
        Duration::from_millis(self.idle_deadline_ms)
    }

    pub(super) fn write_deadline(&self) -> Duration {
        Duration::from_millis(self.write_deadline_ms)
    }
}
