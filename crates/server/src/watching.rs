//! Metrics and spans of requests, and `/metrics`.
//!
//! `/metrics` is open on loopback to requests whose `Host` is loopback's: a local caller can read the database
//! anyway. Elsewhere it needs `Authorization: Bearer` with the setting `metrics.token`; without that setting it is
//! closed.

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

use crate::hosts;

/// `[metrics]`.
#[derive(Debug, Clone, Deserialize)]
pub struct MetricsSettings {
    /// The bearer token of scrapers from other machines; empty: loopback alone may read.
    pub token: String,
    /// Event types that have their own label in metrics.
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

/// The span of the request: what it enqueues belongs to it.
#[derive(Debug, Clone, Copy)]
pub struct Traced(pub TraceParent);

struct MetricsPage {
    scrape: Scrape,
    open: bool,
    token: String,
}

/// `/metrics`; `open` lets every caller read it.
pub fn routes(tools: &Tools, settings: &MetricsSettings, open: bool) -> Router {
    let scrape = Scrape::new(tools.metrics.clone(), tools.store.clone(), tools.kpi.clone());
    Router::new().route("/metrics", get(page)).with_state(Arc::new(MetricsPage {
        scrape,
        open,
        token: settings.token.clone(),
    }))
}

async fn page(State(page): State<Arc<MetricsPage>>, uri: Uri, headers: HeaderMap) -> Response {
    let shown = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    let has_token = shown.is_some_and(|shown| is_same(shown, &page.token));
    // Another name for loopback belongs to a foreign page (see hosts.rs).
    if page.open && !has_token && !hosts::is_loopback(&headers, &uri) {
        let why = "without the setting metrics.token as a bearer token, Host must be localhost, 127.0.0.1 or [::1], with any port\n";
        return (StatusCode::MISDIRECTED_REQUEST, why).into_response();
    }
    if !page.open && !has_token {
        let why = "metrics are open where the server listens on loopback with no proxy before it; elsewhere show the setting metrics.token as a bearer token\n";
        return (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Bearer")], why).into_response();
    }
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page.scrape.text().await).into_response()
}

/// Compares in constant time. An empty token, which means that none is set, is never the same.
fn is_same(shown: &str, token: &str) -> bool {
    !token.is_empty() && bool::from(shown.as_bytes().ct_eq(token.as_bytes()))
}

/// Counts every request of `router` by its route, and records a span below the caller's. Call it after the last route
/// is added.
pub fn watched(router: Router, tools: &Tools) -> Router {
    router.layer(from_fn_with_state(tools.clone(), watch))
}

async fn watch(State(tools): State<Tools>, mut request: Request, next: Next) -> Response {
    let began = clock::monotonic();
    // The pattern, never the path: that may hold an id or a secret.
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map_or_else(|| "unmatched".to_owned(), |path| path.as_str().to_owned());
    let method = known_method(request.method().as_str());
    // An invalid traceparent is ignored, as the standard requires.
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

/// A label has few values, but a client may send any method.
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
