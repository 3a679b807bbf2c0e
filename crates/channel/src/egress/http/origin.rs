//! The origin of a URL. It decides whether the URL may be called, and which requests can share a connection.

use http::Uri;
use url::{Position, Url};

use crate::egress::{EgressFailure, Endpoint};

/// The scheme, host and port of a URL.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Origin {
    pub(super) is_tls: bool,
    pub(super) endpoint: Endpoint,
}

impl Origin {
    /// The origin of `url`, or an error if the URL may not be called.
    pub(super) fn of(url: &Url) -> Result<Self, EgressFailure> {
        let is_tls = match url.scheme() {
            "https" => true,
            "http" => false,
            _ => return Err(bad_url("only http and https URLs can be called")),
        };
        if !url.username().is_empty() || url.password().is_some() {
            return Err(bad_url("the URL contains a user name or password; send them in a header"));
        }
        let host = url.host().ok_or_else(|| bad_url("the URL has no host"))?.to_owned();
        match url.port_or_known_default() {
            None | Some(0) => Err(bad_url("the URL's port must be from 1 to 65535")),
            Some(port) => Ok(Self { is_tls, endpoint: Endpoint { host, port } }),
        }
    }
}

/// The path and query of `url` in the form that the request line needs.
pub(super) fn target(url: &Url) -> Result<Uri, EgressFailure> {
    let target = &url[Position::BeforePath..Position::AfterQuery];
    target.parse().map_err(|_| bad_url("the URL's path and query are too long or malformed"))
}

pub(super) fn bad_url(detail: &str) -> EgressFailure {
    EgressFailure::refused("bad_url", detail)
}
