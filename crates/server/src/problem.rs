//! The errors of the API and the pages. Each has a stable type, the field, and a text that says what is wrong and what
//! is allowed.
//! The API answers with JSON, `application/problem+json`. Pages answer with HTML, [`ProblemPage`].

use std::fmt;

use axum::Json;
use axum::extract::rejection::BytesRejection;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use postcommit::Error;
use postcommit_engine::db::DbError;
use postcommit_engine::store::{EditError, NotAccepted};
use serde::Serialize;
use utoipa::ToSchema;

use crate::html::{self, sentence_case};

/// The `Retry-After`, in seconds, of a request that fails until an operator corrects the installation.
const REPAIR_S: u64 = 30;

/// The kinds of problems. Their names are stable, because clients may depend on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProblemKind {
    /// The request cannot be parsed.
    Malformed,
    /// A field is missing, malformed or beyond its limit.
    Invalid,
    /// The request has no key, or an unknown one.
    Unauthenticated,
    /// The key does not allow this request.
    Forbidden,
    /// The tenant is suspended.
    Suspended,
    /// The object does not exist, or belongs to another tenant.
    NotFound,
    /// The path exists, but it does not support the method.
    MethodNotAllowed,
    /// The idempotency key was used with other content.
    KeyConflict,
    /// The object is in a state that does not allow this request.
    StateConflict,
    /// The body is larger than allowed.
    TooLarge,
    /// The content type is not JSON.
    NotJson,
    /// The caller has sent too many requests.
    RateLimited,
    /// The limit of open streams is reached.
    TooManyStreams,
    /// The request names another host.
    Misdirected,
    /// An internal error of the server.
    Internal,
    /// The database cannot be reached or accepts no writes. Nothing was accepted.
    Unavailable,
}

impl ProblemKind {
    fn parts(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::Malformed => (StatusCode::BAD_REQUEST, "malformed", "The request cannot be read"),
            Self::Invalid => (StatusCode::UNPROCESSABLE_ENTITY, "invalid", "A field is invalid"),
            Self::Unauthenticated => (StatusCode::UNAUTHORIZED, "unauthenticated", "Not authenticated"),
            Self::Forbidden => (StatusCode::FORBIDDEN, "forbidden", "The key does not allow this"),
            Self::Suspended => (StatusCode::FORBIDDEN, "suspended", "The tenant is suspended"),
            Self::NotFound => (StatusCode::NOT_FOUND, "not-found", "Not found"),
            Self::MethodNotAllowed => (StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", "Method not allowed"),
            Self::KeyConflict => {
                (StatusCode::CONFLICT, "key-conflict", "The idempotency key was used with other content")
            }
            Self::StateConflict => (StatusCode::CONFLICT, "state-conflict", "The state does not allow this"),
            Self::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "too-large", "The body is too large"),
            Self::NotJson => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "not-json", "The body must be JSON"),
            Self::RateLimited => (StatusCode::TOO_MANY_REQUESTS, "rate-limited", "Too many requests"),
            Self::Misdirected => (StatusCode::MISDIRECTED_REQUEST, "misdirected", "The request names another host"),
            Self::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal", "Internal error"),
            Self::TooManyStreams => (StatusCode::SERVICE_UNAVAILABLE, "too-many-streams", "Too many streams"),
            Self::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "unavailable", "The database is unavailable"),
        }
    }
}

impl ProblemKind {
    fn advice(self) -> &'static str {
        match self {
            Self::Unauthenticated => "Sign in with a new link: `postcommit keys login-link` prints one.",
            Self::Forbidden | Self::Suspended => "Ask the operator of this server.",
            Self::NotFound | Self::MethodNotAllowed | Self::Misdirected => "Check the address.",
            Self::RateLimited | Self::TooManyStreams | Self::Unavailable => "Wait a moment, then try again.",
            Self::Internal => "Ask the operator of this server to read its log.",
            Self::Malformed
            | Self::Invalid
            | Self::KeyConflict
            | Self::StateConflict
            | Self::TooLarge
            | Self::NotJson => "Go back, correct the input and send it again.",
        }
    }
}

/// The maximum number of characters of a detail, because it may quote the refused value, which may be as long as a
/// body.
const SAID_CHARS: usize = 1000;
/// The maximum numbers of characters of a detail on a page, and of the label of a field on a page.
const PAGE_CHARS: usize = 400;
const LABEL_CHARS: usize = 60;

/// A refused request.
#[derive(Debug, Clone)]
pub struct Problem {
    kind: ProblemKind,
    detail: String,
    field: Option<String>,
    first: Option<uuid::Uuid>,
    retry_after_s: Option<u64>,
}

/// The body of an error answer (RFC 9457).
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Problem)]
pub struct ProblemBody {
    /// `urn:postcommit:problem:` and a stable name.
    #[schema(example = "urn:postcommit:problem:invalid")]
    r#type: String,
    /// The kind of problem, as a short text.
    title: String,
    /// The HTTP status of the answer.
    pub status: u16,
    /// A sentence that says what is wrong and what is allowed.
    pub detail: String,
    /// The field that the problem is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    /// On a key conflict: the notification that holds the idempotency key.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = Uuid, value_type = Option<String>)]
    first: Option<uuid::Uuid>,
}

impl Problem {
    /// Creates a problem. `detail` says what is wrong and what to do.
    pub fn new(kind: ProblemKind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into(), field: None, first: None, retry_after_s: None }
    }

    /// Creates a problem with the value of a field.
    pub fn invalid(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { field: Some(field.into()), ..Self::new(ProblemKind::Invalid, detail) }
    }

    /// Creates a problem from a text that begins with the name of the field. Errors of the store have this form.
    pub fn of_field(text: &str) -> Self {
        match text.split_once(": ") {
            Some((field, problem)) => Self::invalid(field, problem),
            None => Self::new(ProblemKind::Invalid, text),
        }
    }

    /// The object does not exist or belongs to another tenant. The answer does not say which of the two.
    pub fn not_found(what: &str) -> Self {
        Self::new(ProblemKind::NotFound, format!("there is no such {what}"))
    }

    /// The idempotency key was already used by notification `first` with other content.
    pub fn key_conflict(first: uuid::Uuid) -> Self {
        let detail =
            format!("the idempotency key was used with other content by notification {first}; nothing was enqueued");
        Self {
            field: Some("idempotency_key".into()),
            first: Some(first),
            ..Self::new(ProblemKind::KeyConflict, detail)
        }
    }

    /// The field that the problem is about.
    pub fn field(&self) -> Option<&str> {
        self.field.as_deref()
    }

    pub fn kind(&self) -> ProblemKind {
        self.kind
    }

    pub fn status(&self) -> StatusCode {
        self.kind.parts().0
    }

    /// The detail for a page, with the label of the field before it.
    pub fn told(&self) -> String {
        match self.field() {
            Some(field) => format!("{}: {}", cut(&sentence_case(field), LABEL_CHARS), cut(&self.detail, PAGE_CHARS)),
            None => cut(&self.detail, PAGE_CHARS),
        }
    }

    /// The title of the page that shows the problem.
    pub fn title(&self) -> &'static str {
        match self.kind {
            // A person who is signed in has no key, so the title for people does not name one.
            ProblemKind::Forbidden => "You may not do this",
            kind => kind.parts().2,
        }
    }

    /// Advice for a person who sees the error page.
    pub fn advice(&self) -> &'static str {
        self.kind.advice()
    }

    pub fn about(mut self, field: &str) -> Self {
        self.field = Some(field.to_owned());
        self
    }

    /// Prefixes the field with the name of the object that contains it.
    pub fn within(mut self, object: &str) -> Self {
        self.field = self.field.map(|field| format!("{object}.{field}"));
        self
    }

    pub fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after_s = Some(seconds.max(1));
        self
    }

    pub fn add_headers(&self, headers: &mut HeaderMap) {
        if let Some(seconds) = self.retry_after_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.kind == ProblemKind::Unauthenticated {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"postcommit\""));
        }
    }

    /// The JSON form, which is also used for single items of a batch.
    pub fn body(&self) -> ProblemBody {
        let (status, name, title) = self.kind.parts();
        ProblemBody {
            r#type: format!("urn:postcommit:problem:{name}"),
            title: title.into(),
            status: status.as_u16(),
            detail: cut(&self.detail, SAID_CHARS),
            field: self.field.as_deref().map(|field| cut(field, SAID_CHARS)),
            first: self.first,
        }
    }
}

fn cut(said: &str, most: usize) -> String {
    match said.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &said[..end]),
        None => said.to_owned(),
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = (self.kind.parts().0, Json(self.body())).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        self.add_headers(headers);
        response
    }
}

/// The answer of a page, or the problem with the request.
pub type Answer = Result<Response, ProblemPage>;

/// The HTML form of a problem. It says what was wrong and what the user can do.
pub struct ProblemPage(Problem);

impl<E: Into<Problem>> From<E> for ProblemPage {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for ProblemPage {
    fn into_response(self) -> Response {
        let wrong = html::escape(&self.0.told());
        // A form of a page that was open for long may lead to a path without a page, so the answer links to the
        // overview.
        let home = match self.0.kind {
            ProblemKind::MethodNotAllowed | ProblemKind::NotFound => " <a href=\"/\">Open the overview</a>",
            _ => "",
        };
        let content = format!("<p>{wrong}.</p>\n<p>{}{home}</p>", html::escape(self.0.advice()));
        let mut response = html::page(self.0.status(), self.0.title(), &content);
        self.0.add_headers(response.headers_mut());
        // `ui/frame.rs` reads the problem from this extension and draws it again, with the navigation.
        response.extensions_mut().insert(self.0);
        response
    }
}

impl From<BytesRejection> for Problem {
    fn from(rejection: BytesRejection) -> Self {
        match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => Self::new(ProblemKind::TooLarge, rejection.body_text()),
            _ => Self::new(ProblemKind::Malformed, "the body is incomplete; send the request again"),
        }
    }
}

impl From<DbError> for Problem {
    fn from(error: DbError) -> Self {
        if let DbError::Unreachable(_) | DbError::TooOld { .. } | DbError::TooNew { .. } | DbError::OtherFunctions =
            error
        {
            tracing::warn!(problem = %error, "the database could not serve a request; the request is answered with \
                status 503");
            return Self::new(
                ProblemKind::Unavailable,
                "the database cannot be reached or accepts no writes; nothing was done",
            )
            .retry_after(1);
        }
        if error.is_lack_of_rights() {
            return Self::no_rights(&error);
        }
        tracing::error!(problem = %error, "a request failed; it is answered with status 500");
        Self::new(
            ProblemKind::Internal,
            "an internal error occurred; the server's log has details under the request id",
        )
    }
}

impl Problem {
    /// The database refuses the server's login, for example because its role was revoked. Only an operator can change
    /// that.
    fn no_rights(problem: &dyn fmt::Display) -> Self {
        tracing::error!(%problem, "the database refuses the rights of the server's login; the request is answered with \
            status 503. Run `postcommit doctor`; `postcommit migrate --roles` grants the roles' rights again");
        Self::new(
            ProblemKind::Unavailable,
            "the database refuses the server's login: it may not log in, or lacks rights that it needs; nothing was done. \
             The operator finds the cause with `postcommit doctor`; `postcommit migrate --roles` grants the roles' rights \
             again and prints the role that the login must be a member of",
        )
        .retry_after(REPAIR_S)
    }
}

impl From<EditError> for Problem {
    fn from(error: EditError) -> Self {
        let conflict = |error: &EditError| Self::new(ProblemKind::StateConflict, error.to_string());
        match error {
            EditError::Refused(problem) => Self::of_field(&problem),
            EditError::Exists { what, .. } => {
                conflict(&error).about(if matches!(what, "user" | "template") { "id" } else { "name" })
            }
            EditError::Outdated { .. } => conflict(&error).about("revision"),
            EditError::Overtaken { .. } => conflict(&error).retry_after(1),
            EditError::Conflict(_) => conflict(&error),
            EditError::Unknown { what, .. } => Self::not_found(what),
            EditError::Database(problem) => problem.into(),
        }
    }
}

impl From<NotAccepted> for Problem {
    fn from(refusal: NotAccepted) -> Self {
        match refusal {
            NotAccepted::Invalid { field: Some(field), problem } => Self::invalid(field, problem),
            NotAccepted::Invalid { field: None, problem } => Self::new(ProblemKind::Invalid, problem),
            NotAccepted::Held => {
                let detail = "is in use by a transaction that is still open; repeat the request after that transaction \
                    has ended";
                Self::new(ProblemKind::Unavailable, format!("idempotency_key: {detail}"))
                    .about("idempotency_key")
                    .retry_after(1)
            }
            NotAccepted::NoRights(problem) => Self::no_rights(&problem),
            NotAccepted::Unavailable(problem) => {
                tracing::warn!(%problem, "the database could not accept a notification; the client is asked to repeat \
                    the request");
                Self::new(
                    ProblemKind::Unavailable,
                    "the database cannot accept the notification now; repeat the request under the same key",
                )
                .retry_after(1)
            }
        }
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        match error {
            Error::Invalid { field, problem } => Self::invalid(field, problem),
            Error::Conflict { first, .. } => Self::key_conflict(first),
            other => {
                tracing::error!(problem = %other, "a request failed; it is answered with status 500");
                Self::new(
                    ProblemKind::Internal,
                    "an internal error occurred; the server's log has details under the request id",
                )
            }
        }
    }
}
