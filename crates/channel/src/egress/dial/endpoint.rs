//! A host and a port to connect to.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use rustls::pki_types::ServerName;
use url::Host;

use crate::egress::{EgressFailure, Phase};

/// A host, as a name or an IP address, and a port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Endpoint {
    pub(in crate::egress) host: Host<String>,
    pub(in crate::egress) port: u16,
}

impl Endpoint {
    /// Parses an endpoint from the settings, such as `mail.example.com` and 587. An IPv6 address may be in brackets.
    /// Unusual forms of IPv4 addresses (`0x7f.1`, `2130706433`) are read as addresses.
    /// # Errors
    /// `bad_host` if the host is malformed or the port is 0.
    pub fn new(host: &str, port: u16) -> Result<Self, EgressFailure> {
        let bad_host = |detail| EgressFailure::refused("bad_host", detail);
        if port == 0 {
            return Err(bad_host("the port must be from 1 to 65535"));
        }
        let host = match host.parse::<Ipv6Addr>() {
            Ok(ip) => Host::Ipv6(ip),
            Err(_) => Host::parse(host).map_err(|_| bad_host("the host is neither a name nor an IP address"))?,
        };
        Ok(Self { host, port })
    }

    /// The IP address if the host is one, or `None` if it is a name.
    pub(super) fn literal(&self) -> Option<IpAddr> {
        match self.host {
            Host::Domain(_) => None,
            Host::Ipv4(ip) => Some(ip.into()),
            Host::Ipv6(ip) => Some(ip.into()),
        }
    }

    /// The name that the peer's certificate must match. Resolvers accept a trailing dot, but certificates do not
    /// contain it.
    pub(super) fn server_name(&self) -> Option<ServerName<'static>> {
        match &self.host {
            Host::Domain(name) => ServerName::try_from(name.trim_end_matches('.').to_owned()).ok(),
            Host::Ipv4(ip) => Some(ServerName::IpAddress(IpAddr::V4(*ip).into())),
            Host::Ipv6(ip) => Some(ServerName::IpAddress(IpAddr::V6(*ip).into())),
        }
    }

    /// A failure before the first byte was written. Its text begins with the host. It contains no other part of a URL,
    /// because paths and queries may hold secrets.
    pub(in crate::egress) fn failure(&self, phase: Phase, code: &'static str, detail: &str) -> EgressFailure {
        EgressFailure { phase, bytes_written: 0, code, detail: format!("{}: {detail}", self.host) }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}
