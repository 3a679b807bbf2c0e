//! Where a URL points: what may be called at all, and what two calls must share to share a connection.

use std::net::IpAddr;

use http::Uri;
use url::{Host, Position, Url};

use super::{Failure, Phase};

/// The scheme, host and port of a URL.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) tls: bool,
    pub(super) host: Host<String>,
    pub(super) port: u16,
}

impl Place {
    /// The place `url` names, if it is one we call.
    pub(super) fn of(url: &Url) -> Result<Self, Failure> {
        let tls = match url.scheme() {
            "https" => true,
            "http" => false,
            _ => return Err(bad_url("only http and https URLs can be called")),
        };
        if !url.username().is_empty() || url.password().is_some() {
            return Err(bad_url("the URL holds a user name or password; use a header"));
        }
        let host = url.host().ok_or_else(|| bad_url("the URL has no host"))?.to_owned();
        match url.port_or_known_default() {
            None | Some(0) => Err(bad_url("the URL's port must be from 1 to 65535")),
            Some(port) => Ok(Self { tls, host, port }),
        }
    }

    /// The address, where the URL holds one instead of a name.
    ///
    /// The URL parser has already read the odd spellings (`0x7f.1`, `2130706433`) as addresses.
    pub(super) fn literal(&self) -> Option<IpAddr> {
        match self.host {
            Host::Domain(_) => None,
            Host::Ipv4(ip) => Some(ip.into()),
            Host::Ipv6(ip) => Some(ip.into()),
        }
    }

    /// A failure before the first byte of the request. Its detail begins with the host and nothing more of
    /// the URL: paths and queries carry secrets.
    pub(super) fn failure(&self, phase: Phase, code: &'static str, detail: &str) -> Failure {
        Failure { phase, bytes_written: 0, code, detail: format!("{}: {detail}", self.host) }
    }
}

/// The path and query of `url`, as the request line wants them.
pub(super) fn target(url: &Url) -> Result<Uri, Failure> {
    let target = &url[Position::BeforePath..Position::AfterQuery];
    target.parse().map_err(|_| bad_url("the URL's path and query are too long or malformed"))
}

pub(super) fn bad_url(detail: &str) -> Failure {
    Failure { phase: Phase::Refused, bytes_written: 0, code: "bad_url", detail: detail.to_owned() }
}
