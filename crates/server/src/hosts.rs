//! The host names that a server on a loopback address accepts.
//! A website can point its own name to 127.0.0.1 (DNS rebinding). A visitor's browser then treats this server as part
//! of that site, and the site's scripts can read our answers. Such a request has the site's name in `Host`, which no
//! script can change.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use url::Url;

use crate::problem::{Problem, ProblemKind};
use crate::settings::Settings;

/// Restricts the host names of `router` if the server listens on loopback and trusts no proxy. The routes then answer
/// only to the names of loopback and to the host of `api.public_url`. Otherwise they answer to any name.
pub fn guarded(router: Router, settings: &Settings) -> Router {
    if !settings.server.is_loopback() {
        return router;
    }
    let public = Url::parse(&settings.api.public_url).ok().and_then(|url| url.host_str().map(str::to_ascii_lowercase));
    router.layer(from_fn_with_state(Arc::new(public), check))
}

async fn check(State(public): State<Arc<Option<String>>>, request: Request, next: Next) -> Response {
    let is_ours = |host: &str| {
        is_loopback_name(host) || public.as_deref().is_some_and(|public| without_dot(host).eq_ignore_ascii_case(public))
    };
    if !named_hosts(request.headers(), request.uri()).is_some_and(|hosts| hosts.into_iter().all(is_ours)) {
        let detail = "the header Host names another host; localhost, 127.0.0.1 and [::1] are allowed with any port, and the host of the setting api.public_url. \
            Behind a proxy set api.public_url or server.trusted_proxies";
        return Problem::new(ProblemKind::Misdirected, detail).into_response();
    }
    next.run(request).await
}

/// Whether all hosts that the request names are loopback, with any port.
pub fn is_loopback(headers: &HeaderMap, uri: &Uri) -> bool {
    named_hosts(headers, uri).is_some_and(|hosts| hosts.into_iter().all(is_loopback_name))
}

/// The hosts that a request names, without ports: in `Host`, and in its target if that is a full URL. `None` if `Host`
/// is missing or repeated, or if one of them is invalid.
fn named_hosts<'a>(headers: &'a HeaderMap, uri: &'a Uri) -> Option<Vec<&'a str>> {
    let mut given = headers.get_all(header::HOST).iter();
    let (Some(host), None) = (given.next(), given.next()) else { return None };
    let target = uri.authority().map(|authority| authority.as_str());
    std::iter::once(host.to_str().ok()).chain(target.map(Some)).map(|named| without_port(named?)).collect()
}

fn without_port(named: &str) -> Option<&str> {
    let (host, port) = match named.rfind(']') {
        Some(end) if named.starts_with('[') => named.split_at(end + 1),
        _ => named.split_at(named.find(':').unwrap_or(named.len())),
    };
    let is_port =
        port.is_empty() || port.strip_prefix(':').is_some_and(|digits| digits.bytes().all(|b| b.is_ascii_digit()));
    (is_port && !host.is_empty()).then_some(host)
}

/// The host name without a trailing dot, which marks a fully qualified name.
fn without_dot(host: &str) -> &str {
    host.strip_suffix('.').unwrap_or(host)
}

fn is_loopback_name(host: &str) -> bool {
    if let Some(address) = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        return address.parse().is_ok_and(|address: Ipv6Addr| IpAddr::V6(address).to_canonical().is_loopback());
    }
    let name = without_dot(host);
    name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(|address: Ipv4Addr| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names_us(host: &str) -> bool {
        let headers = HeaderMap::from_iter([(header::HOST, host.parse().unwrap())]);
        is_loopback(&headers, &Uri::from_static("/metrics"))
    }

    #[test]
    fn loopback_has_these_names_and_no_others() {
        for host in [
            "localhost",
            "LocalHost:7410",
            "localhost.",
            "localhost.:80",
            "127.0.0.1",
            "127.0.0.1:7410",
            "127.9.8.7",
            "127.0.0.1.",
            "[::1]",
            "[::1]:7410",
            "[0:0:0:0:0:0:0:1]",
            "localhost:",
        ] {
            assert!(names_us(host), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:7410",
            "localhost.evil.example",
            "evil.localhost",
            "127.0.0.1.evil.example",
            "127.1",
            "0.0.0.0",
            "[::]",
            "::1",
            "[::1",
            "[::1]x",
            "localhost:x",
            "localhost:80:80",
            "127.0.0.1@evil.example",
            "evil.example@127.0.0.1",
            "",
            ":80",
            "localhost..",
            "10.0.0.1",
            "0x7f.0.0.1",
        ] {
            assert!(!names_us(host), "{host}");
        }
        assert!(!is_loopback(&HeaderMap::new(), &Uri::from_static("/")), "no Host at all");
        let headers = HeaderMap::from_iter([(header::HOST, "localhost".parse().unwrap())]);
        assert!(!is_loopback(&headers, &Uri::from_static("http://evil.example/metrics")), "the target has a say too");
    }
}
