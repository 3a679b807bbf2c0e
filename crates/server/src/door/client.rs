//! The address of a request's client. The `X-Forwarded-*` headers count only if a trusted proxy sent them.

use std::net::{IpAddr, SocketAddr};

use axum::http::{HeaderMap, HeaderName, header::AsHeaderName};
use ipnet::IpNet;

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// The address of a request's client, and whether it used TLS. It is an extension of every request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Client {
    pub address: IpAddr,
    /// Whether the request came over TLS, either to this server or to a trusted proxy.
    #[cfg_attr(not(test), allow(dead_code, reason = "only tests read it until cookies are set"))]
    pub secure: bool,
}

impl Client {
    /// Finds the client. `peer` is the address at the other end of the connection. Behind trusted proxies, the client
    /// is the rightmost entry of `X-Forwarded-For` that is not a trusted proxy. Entries to its left cannot be believed,
    /// because the client may have written them.
    pub fn of(peer: IpAddr, by_tls: bool, headers: &HeaderMap, trusted: &[IpNet]) -> Self {
        if !is_trusted(peer, trusted) {
            return Self { address: peer, secure: by_tls };
        }
        let mut address = peer;
        for hop in entries(headers, FORWARDED_FOR).into_iter().rev() {
            let Some(hop) = parse(hop) else { break };
            address = hop;
            if !is_trusted(hop, trusted) {
                break;
            }
        }
        let proto = entries(headers, FORWARDED_PROTO);
        Self { address, secure: by_tls || proto.last().is_some_and(|proto| proto.eq_ignore_ascii_case("https")) }
    }
}

pub fn is_trusted(address: IpAddr, trusted: &[IpNet]) -> bool {
    trusted.iter().any(|net| net.contains(&address))
}

/// The entries of a comma-separated list. The list may span several header fields.
fn entries(headers: &HeaderMap, name: impl AsHeaderName) -> Vec<&str> {
    // An unreadable entry becomes "?", so that the caller stops there and does not skip it.
    headers.get_all(name).iter().flat_map(|value| value.to_str().unwrap_or("?").split(',')).map(str::trim).collect()
}

/// Parses an address. A port is ignored, because some proxies add one.
fn parse(entry: &str) -> Option<IpAddr> {
    let bare = entry.trim_start_matches('[').trim_end_matches(']');
    let address = bare.parse().or_else(|_| entry.parse::<SocketAddr>().map(|with_port| with_port.ip()));
    address.ok().map(|address: IpAddr| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(peer: &str, forwarded: &[&str]) -> String {
        let trusted = ["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()];
        let mut headers = HeaderMap::new();
        for value in forwarded {
            headers.append(FORWARDED_FOR, value.parse().unwrap());
        }
        Client::of(peer.parse().unwrap(), false, &headers, &trusted).address.to_string()
    }

    #[test]
    fn only_a_trusted_proxy_is_believed() {
        assert_eq!(address("203.0.113.9", &["198.51.100.1"]), "203.0.113.9");
        assert_eq!(address("10.0.0.1", &["198.51.100.1"]), "198.51.100.1");
        assert_eq!(address("10.0.0.1", &[]), "10.0.0.1");
        assert_eq!(address("fd00::1", &["2001:db8::1"]), "2001:db8::1");
    }

    #[test]
    fn the_rightmost_untrusted_entry_is_the_client() {
        assert_eq!(address("10.0.0.1", &["6.6.6.6, 198.51.100.1, 10.0.0.2"]), "198.51.100.1");
        assert_eq!(address("10.0.0.1", &["6.6.6.6", "198.51.100.1,10.0.0.2"]), "198.51.100.1");
        assert_eq!(address("10.0.0.1", &["10.0.0.3, 10.0.0.2"]), "10.0.0.3");
        assert_eq!(address("10.0.0.1", &["6.6.6.6, nonsense, 10.0.0.2"]), "10.0.0.2");
        assert_eq!(address("10.0.0.1", &["198.51.100.1:1234"]), "198.51.100.1");
        assert_eq!(address("10.0.0.1", &["[2001:db8::1]:1234"]), "2001:db8::1");
        assert_eq!(address("10.0.0.1", &["::ffff:198.51.100.1"]), "198.51.100.1");
    }

    #[test]
    fn it_is_secure_by_tls_here_or_at_a_trusted_proxy() {
        let trusted = ["10.0.0.0/8".parse().unwrap()];
        let headers = HeaderMap::from_iter([(FORWARDED_PROTO, "https".parse().unwrap())]);
        let secure = |peer: &str, by_tls, headers: &HeaderMap| {
            Client::of(peer.parse().unwrap(), by_tls, headers, &trusted).secure
        };
        assert!(secure("10.0.0.1", false, &headers));
        assert!(!secure("203.0.113.9", false, &headers));
        assert!(secure("203.0.113.9", true, &HeaderMap::new()));
        assert!(!secure("10.0.0.1", false, &HeaderMap::new()));
    }
}
