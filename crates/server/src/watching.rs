//! Metrics and traces of requests, and the route `/metrics`.
//! If the server listens on loopback, `/metrics` needs no token for requests whose `Host` is a loopback name, because a
//! local caller could read the database anyway. Otherwise it needs `Authorization: Bearer` with the setting
//! `metrics.token`. Without that setting it is closed.

use std::sync::Arc;

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use postcommit::TraceParent;
use postcommit_channel::clock;
use postcommit_engine::dispatch::Tools;
use postcommit_engine::metrics::Scrape;
use postcommit_engine::trace::SpanKind;
use serde::Deserialize;
use subtle::ConstantTimeEq;

use crate::auth::bearer;
use crate::hosts;

#[derive(Debug, Clone, Deserialize)]
pub struct MetricsSettings {
    /// The bearer token for scrapers on other machines. If it is empty, `/metrics` can only be read over loopback.
    pub token: String,
    /// The maximum number of event types with their own label in the metrics.
    pub event_types: usize,
}

impl MetricsSettings {
    pub fn validate(&self) -> Result<(), String> {
        if !self.token.is_empty() && !(16..=255).contains(&self.token.len()) {
            return Err(format!("metrics.token: has {} bytes; empty or 16 to 255 are allowed", self.token.len()));
        }
        if !(1..=10_000).contains(&self.event_types) {
            return Err(format!("metrics.event_types: is {}; 1 to 10000 are allowed", self.event_types));
        }
        Ok(())
    }
}

/// The trace context of the request. Notifications that the request enqueues belong to it.
#[derive(Debug, Clone, Copy)]
pub struct Traced(pub TraceParent);

struct MetricsPage {
    scrape: Scrape,
    open: bool,
    token: String,
}

/// The route `/metrics`. With `open`, requests to a loopback name need no token.
pub fn routes(tools: &Tools, settings: &MetricsSettings, open: bool) -> Router {
    let scrape = Scrape::new(tools.metrics.clone(), tools.store.clone(), tools.kpi.clone());
    Router::new().route("/metrics", get(page)).with_state(Arc::new(MetricsPage {
        scrape,
        open,
        token: settings.token.clone(),
    }))
}

async fn page(State(page): State<Arc<MetricsPage>>, uri: Uri, headers: HeaderMap) -> Response {
    let shown = bearer(&headers).ok().flatten();
    let has_token = shown.is_some_and(|shown| is_same(shown, &page.token));
    // A request to loopback with any other host name may come from a foreign page (see hosts.rs).
    if page.open && !has_token && !hosts::is_loopback(&headers, &uri) {
        let why = "send the value of the setting metrics.token as a bearer token; without it, the header Host must be \
            localhost, 127.0.0.1 or [::1], with any port\n";
        return (StatusCode::MISDIRECTED_REQUEST, why).into_response();
    }
    if !page.open && !has_token {
        let why = "send the value of the setting metrics.token as a bearer token; without it, /metrics is open only if \
            the server listens on loopback and trusts no proxy\n";
        return (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Bearer")], why).into_response();
    }
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page.scrape.text().await).into_response()
}

/// Compares in constant time. An empty `token` means that no token is set, and never matches.
fn is_same(shown: &str, token: &str) -> bool {
    !token.is_empty() && bool::from(shown.as_bytes().ct_eq(token.as_bytes()))
}

/// Counts every request of `router` by its route, and records a span as a child of the caller's span. Call it after the
/// last route is added.
pub fn watched(router: Router, tools: &Tools) -> Router {
    router.layer(from_fn_with_state(tools.clone(), watch))
}

async fn watch(State(tools): State<Tools>, mut request: Request, next: Next) -> Response {
    let began = clock::monotonic();
    // Use the pattern of the route and not the path, because the path may hold an id or a secret.
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map_or_else(|| "unmatched".to_owned(), |path| path.as_str().to_owned());
    let method = known_method(request.method().as_str());
    // An invalid `traceparent` is ignored, as the standard requires.
    let parent =
        request.headers().get("traceparent").and_then(|value| value.to_str().ok()?.parse::<TraceParent>().ok());
    let span = tools.tracer.begin(parent);
    if let Some(context) = span.as_ref().map(|span| span.context()).or(parent) {
        request.extensions_mut().insert(Traced(context));
    }
    let response = next.run(request).await;
    let status = response.status();
    tools.metrics.answered(method, &route, status.as_u16(), began.elapsed());
    if let Some(span) = span {
        let attributes = vec![
            ("http.request.method", method.to_owned()),
            ("http.route", route),
            ("http.response.status_code", status.as_str().to_owned()),
        ];
        let failed = status.is_server_error().then(|| status.as_str().to_owned());
        tools.tracer.end(span.ended("request", SpanKind::Server, attributes, failed));
    }
    response
}

/// The method as a label for metrics. A client may send any method, but a label should have few values, so unknown
/// methods become "other".
fn known_method(method: &str) -> &'static str {
    ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
        .into_iter()
        .find(|known| *known == method)
        .unwrap_or("other")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_very_token_is_right() {
        assert!(is_same("0123456789abcdef", "0123456789abcdef"));
        for shown in ["", "0123456789abcdeF", "0123456789abcde", "0123456789abcdef0"] {
            assert!(!is_same(shown, "0123456789abcdef"), "{shown}");
        }
        assert!(!is_same("", ""), "without a token nobody has it");
    }
}
