//! A host and a port to connect to.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use rustls::pki_types::ServerName;
use url::Host;

use crate::egress::{EgressFailure, Phase};

/// A host, by name or address, and a port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Endpoint {
    pub(in crate::egress) host: Host<String>,
    pub(in crate::egress) port: u16,
}

impl Endpoint {
    /// The endpoint that settings name, such as `mail.example.com` and 587. An IPv6 address may stand in brackets. The
    /// odd spellings of IPv4 addresses (`0x7f.1`, `2130706433`) are read as addresses.
    ///
    /// # Errors
    /// `bad_host`: the host is malformed, or the port is 0.
    pub fn new(host: &str, port: u16) -> Result<Self, EgressFailure> {
        let bad_host = |detail| EgressFailure::refused("bad_host", detail);
        if port == 0 {
            return Err(bad_host("the port must be from 1 to 65535"));
        }
        let host = match host.parse::<Ipv6Addr>() {
            Ok(ip) => Host::Ipv6(ip),
            Err(_) => Host::parse(host).map_err(|_| bad_host("the host is neither a name nor an address"))?,
        };
        Ok(Self { host, port })
    }

    /// The address, where the host is one instead of a name.
    pub(super) fn literal(&self) -> Option<IpAddr> {
        match self.host {
            Host::Domain(_) => None,
            Host::Ipv4(ip) => Some(ip.into()),
            Host::Ipv6(ip) => Some(ip.into()),
        }
    }

    /// The name that the peer must prove. A trailing dot is for resolvers; certificates do not carry it.
    pub(super) fn server_name(&self) -> Option<ServerName<'static>> {
        match &self.host {
            Host::Domain(name) => ServerName::try_from(name.trim_end_matches('.').to_owned()).ok(),
            Host::Ipv4(ip) => Some(ServerName::IpAddress(IpAddr::V4(*ip).into())),
            Host::Ipv6(ip) => Some(ServerName::IpAddress(IpAddr::V6(*ip).into())),
        }
    }

    /// A failure before the first byte was written. Its detail begins with the host, and holds nothing else of a URL:
    /// paths and queries carry secrets.
    pub(in crate::egress) fn failure(&self, phase: Phase, code: &'static str, detail: &str) -> EgressFailure {
        EgressFailure { phase, bytes_written: 0, code, detail: format!("{}: {detail}", self.host) }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}
