//! Answers of the server to requests that it refuses before a handler sees them. They are `application/problem+json`,
//! like all errors.

use std::borrow::Cow;

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};

/// The last part of each problem's `type` and its status. Clients may rely on both.
const BAD_REQUEST: (&str, u16) = ("bad-request", 400);
const TOO_SLOW: (&str, u16) = ("too-slow", 408);
const BODY_TOO_LARGE: (&str, u16) = ("body-too-large", 413);
const HEADER_TOO_LARGE: (&str, u16) = ("header-too-large", 431);
const FAILED: (&str, u16) = ("internal", 500);
const TOO_MANY: (&str, u16) = ("too-many-connections", 503);

/// The refusal of a request. Its answer is sent instead of calling the handler, or replaces the handler's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DoorRefusal {
    kind: (&'static str, u16),
    title: &'static str,
    detail: Cow<'static, str>,
    limit: Option<u64>,
}

impl DoorRefusal {
    /// The request is not valid HTTP.
    pub fn bad(detail: impl Into<Cow<'static, str>>) -> Self {
        Self { kind: BAD_REQUEST, title: "The request is malformed", detail: detail.into(), limit: None }
    }

    pub fn slow_header(limit_ms: u64) -> Self {
        let detail = format!("the request's header must be complete within {limit_ms} ms");
        Self { kind: TOO_SLOW, title: "The request was sent too slowly", detail: detail.into(), limit: Some(limit_ms) }
    }

    pub fn slow_body(bytes_per_s: u64) -> Self {
        let detail = format!(
            "the request's body must be sent at {bytes_per_s} bytes per second or faster, and within \
             server.body_deadline_ms"
        );
        Self {
            kind: TOO_SLOW,
            title: "The request was sent too slowly",
            detail: detail.into(),
            limit: Some(bytes_per_s),
        }
    }

    pub fn large_body(limit: u64) -> Self {
        let detail = format!("the request's body is too large; at most {limit} bytes are allowed");
        Self { kind: BODY_TOO_LARGE, title: "The body is too large", detail: detail.into(), limit: Some(limit) }
    }

    pub fn large_header(limit: usize) -> Self {
        let detail = format!("the request's header is too large; at most {limit} bytes are allowed");
        Self {
            kind: HEADER_TOO_LARGE,
            title: "The header is too large",
            detail: detail.into(),
            limit: u64::try_from(limit).ok(),
        }
    }

    pub fn many_headers(limit: usize) -> Self {
        let detail = format!("the request has too many header fields; at most {limit} are allowed");
        Self {
            kind: HEADER_TOO_LARGE,
            title: "The header is too large",
            detail: detail.into(),
            limit: u64::try_from(limit).ok(),
        }
    }

    /// The handler of the request panicked. The log has the message of the panic.
    pub fn failed() -> Self {
        let detail =
            "the request failed because of an error in the server; the server's log has details under the request id"
                .into();
        Self { kind: FAILED, title: "Internal error", detail, limit: None }
    }

    pub fn full(detail: String, limit: usize) -> Self {
        let limit = u64::try_from(limit).ok();
        Self { kind: TOO_MANY, title: "There are too many connections", detail: detail.into(), limit }
    }

    pub fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.kind.1).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    pub fn detail(&self) -> &str {
        &self.detail
    }

    pub fn json(&self) -> String {
        let (slug, status) = self.kind;
        let mut problem = serde_json::json!({
            "type": format!("urn:postcommit:problem:{slug}"), "title": self.title, "status": status, "detail": self.detail,
        });
        if let Some(limit) = self.limit {
            problem["limit"] = limit.into();
        }
        problem.to_string()
    }

    /// The answer to the client. It closes the connection, because the next request's start is unknown or not worth
    /// waiting for. Only the answer to a panic leaves the connection open.
    pub fn response(&self) -> Response<Body> {
        let mut response = Response::new(Body::from(self.json()));
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if self.kind != FAILED {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}
