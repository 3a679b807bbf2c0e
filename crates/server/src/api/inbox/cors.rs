//! CORS for the inbox routes, which the tenant's own pages call from browsers.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use axum::extract::{Request, State};
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD, HOST, HeaderMap, HeaderValue,
    ORIGIN, VARY,
};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::app::AppState;
use crate::auth::csrf::same_origin;
use crate::settings::InboxSettings;

/// Answers CORS requests for the inbox routes. Browsers on other origins cannot call other routes. Cookies are never
/// allowed, because the token identifies the user.
pub async fn answer_browsers(State(app): State<AppState>, request: Request, next: Next) -> Response {
    if !request.uri().path().starts_with("/v1/inbox/") {
        return next.run(request).await;
    }
    let origin = allowed(&app.inbox, request.headers());
    if origin.is_none() {
        note_refused(request.headers());
    }
    let asks_first =
        request.method() == Method::OPTIONS && request.headers().contains_key(ACCESS_CONTROL_REQUEST_METHOD);
    let mut response = match (&origin, asks_first) {
        (Some(_), true) => StatusCode::NO_CONTENT.into_response(),
        _ => next.run(request).await,
    };
    let headers = response.headers_mut();
    headers.append(VARY, HeaderValue::from_static("Origin"));
    if let Some(origin) = origin {
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("Retry-After, X-Request-Id"));
        if asks_first {
            headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST"));
            headers.insert(
                ACCESS_CONTROL_ALLOW_HEADERS,
                HeaderValue::from_static("Authorization, Content-Type, Last-Event-ID"),
            );
            headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
        }
    }
    response
}

/// The maximum number of origins that one process logs, because any client can send any origin.
const LOGGED: usize = 100;

/// Logs once each origin that may not call the inbox. The browser shows only a CORS error, which does not name the
/// setting `inbox.origins`.
fn note_refused(headers: &HeaderMap) {
    static SEEN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let Some(origin) = text(ORIGIN).filter(|origin| !same_origin(Some(origin), text(HOST))) else { return };
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    if seen.len() < LOGGED && origin.len() <= 255 && seen.insert(origin.to_owned()) {
        tracing::warn!(
            origin,
            "a page of another origin asked for an inbox, and its browser refuses the answer; if the origin is yours, \
             add it to inbox.origins"
        );
    }
}

/// The origin of the request, if it is allowed.
fn allowed(settings: &InboxSettings, headers: &HeaderMap) -> Option<HeaderValue> {
    let origin = headers.get(ORIGIN)?;
    let is_named = |named: &String| named == "*" || named.as_bytes() == origin.as_bytes();
    settings.origins.iter().any(is_named).then(|| origin.clone())
}
