//! The protection against cross-site request forgery. Another site can make a browser send the session cookie. It can
//! neither read the session's CSRF token nor fake this server's origin.

use axum::body::{Body, Bytes};
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use percent_encoding::percent_decode;
use postcommit_channel::secret::Secret;
use postcommit_engine::store::Session;

use crate::problem::{Problem, ProblemKind, ProblemPage};

/// The header in which the scripts of our pages send the token.
pub const HEADER: &str = "x-csrf-token";
/// The form field in which our pages send the token.
pub const FIELD: &str = "csrf_token";

/// The token from the body of a form, kept for [`check`].
#[derive(Clone)]
struct FormToken(Secret);

/// Refuses a change by a session unless it comes from our origin and has the session's token in the header or in the
/// form. Requests that only read need no token. Requests with a key are not checked, because a browser does not send a
/// key automatically.
pub fn check(parts: &Parts, session: &Session) -> Result<(), Problem> {
    if matches!(parts.method, Method::GET | Method::HEAD) {
        return Ok(());
    }
    let text = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
    if !same_origin(text("origin"), text("host")) {
        return Err(Problem::new(
            ProblemKind::Forbidden,
            "the request comes from another site; send it from a page of this server",
        ));
    }
    // The secret is revealed here to compare it.
    let in_form = || parts.extensions.get::<FormToken>().map(|token| token.0.reveal());
    match text(HEADER).or_else(in_form) {
        Some(token) if session.accepts_csrf(token) => Ok(()),
        _ => {
            let detail = format!("send the session's csrf_token as the header {HEADER} or as the form field {FIELD}");
            Err(Problem::new(ProblemKind::Forbidden, detail))
        }
    }
}

/// Reads the token from a form before the handlers run, because [`check`] does not see the body. A form may have at
/// most 2 MB.
pub async fn keep_form_token(request: Request, next: Next) -> Response {
    if !is_form(request.headers()) || super::cookie(request.headers()).is_none() {
        return next.run(request).await;
    }
    let (mut parts, body) = request.into_parts();
    let bytes = match Bytes::from_request(Request::new(body), &()).await.map_err(refused_form) {
        Ok(bytes) => bytes,
        Err(problem) => return ProblemPage::from(problem).into_response(),
    };
    if let Some(field) = not_utf8(&bytes) {
        let detail = "is not UTF-8; type it again, or paste it as plain text";
        return ProblemPage::from(Problem::invalid(field, detail)).into_response();
    }
    if let Some((_, token)) = form_urlencoded::parse(&bytes).find(|(name, _)| name == FIELD) {
        parts.extensions.insert(FormToken(Secret::new(token)));
    }
    next.run(Request::from_parts(parts, Body::from(bytes))).await
}

fn refused_form(rejection: BytesRejection) -> Problem {
    match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => Problem::new(
            ProblemKind::TooLarge,
            "the form has more than 2,097,152 bytes, which is the limit; shorten a field",
        ),
        _ => rejection.into(),
    }
}

/// Returns the first field of a form whose value is not UTF-8. Such a value would be stored with other characters.
fn not_utf8(form: &[u8]) -> Option<String> {
    form.split(|byte| *byte == b'&').find_map(|pair| {
        let place = pair.iter().position(|byte| *byte == b'=')?;
        let (name, value) = pair.split_at(place);
        let is_broken = percent_decode(value).decode_utf8().is_err();
        is_broken.then(|| percent_decode(name).decode_utf8_lossy().into_owned())
    })
}

fn is_form(headers: &HeaderMap) -> bool {
    let media_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    media_type
        .split(';')
        .next()
        .is_some_and(|name| name.trim().eq_ignore_ascii_case("application/x-www-form-urlencoded"))
}

/// Whether a request comes from our own pages. Browsers send the origin with a change. Clients that are not browsers
/// send none, which is accepted.
pub fn same_origin(origin: Option<&str>, host: Option<&str>) -> bool {
    let Some(origin) = origin else { return true };
    let Some((_, from)) = origin.split_once("://") else { return false };
    host.is_some_and(|host| from.eq_ignore_ascii_case(host))
}
