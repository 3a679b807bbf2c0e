//! The one way to say no: `application/problem+json` with a stable type, the field and the limit.

use std::fmt;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use postcommit::Error;
use postcommit_engine::db::DbError;
use serde::Serialize;
use utoipa::ToSchema;

/// The kinds of refusal. Their names are part of the contract: a client may decide by them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The request cannot be read at all.
    Malformed,
    /// A field is missing, malformed or beyond its limit.
    Invalid,
    /// No key, or none that is known.
    Unauthenticated,
    /// The key may not do this.
    Forbidden,
    /// The tenant is suspended.
    Suspended,
    /// There is no such thing, or it belongs to somebody else.
    NotFound,
    /// The path is known, the method is not.
    MethodNotAllowed,
    /// The idempotency key stands for other content.
    KeyConflict,
    /// The thing is not in a state in which this can be done.
    StateConflict,
    /// The body is larger than allowed.
    TooLarge,
    /// The body is not JSON by its own words.
    NotJson,
    /// Too many requests.
    RateLimited,
    /// As many go on as may.
    TooManyStreams,
    /// The request names another host than ours.
    Misdirected,
    /// Our fault.
    Internal,
    /// The database cannot be reached, or takes no writes. Nothing was accepted.
    Unavailable,
}

impl Kind {
    fn parts(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::Malformed => (StatusCode::BAD_REQUEST, "malformed", "The request cannot be read"),
            Self::Invalid => (StatusCode::UNPROCESSABLE_ENTITY, "invalid", "A field is not as it must be"),
            Self::Unauthenticated => (StatusCode::UNAUTHORIZED, "unauthenticated", "Not signed in"),
            Self::Forbidden => (StatusCode::FORBIDDEN, "forbidden", "The key may not do this"),
            Self::Suspended => (StatusCode::FORBIDDEN, "suspended", "The tenant is suspended"),
            Self::NotFound => (StatusCode::NOT_FOUND, "not-found", "There is no such thing"),
            Self::MethodNotAllowed => (StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", "Not with this method"),
            Self::KeyConflict => (StatusCode::CONFLICT, "key-conflict", "The idempotency key stands for other content"),
            Self::StateConflict => (StatusCode::CONFLICT, "state-conflict", "Not in this state"),
            Self::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "too-large", "The body is too large"),
            Self::NotJson => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "not-json", "The body must be JSON"),
            Self::RateLimited => (StatusCode::TOO_MANY_REQUESTS, "rate-limited", "Too many requests"),
            Self::Misdirected => (StatusCode::MISDIRECTED_REQUEST, "misdirected", "The request names another host"),
            Self::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal", "Something is wrong here"),
            Self::TooManyStreams => (StatusCode::SERVICE_UNAVAILABLE, "too-many-streams", "There are too many streams"),
            Self::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "unavailable", "The database is not at hand"),
        }
    }
}

/// Characters of what is said: what is refused may be as long as a body, and is not repeated whole.
const SAID_CHARS: usize = 1000;

/// A refusal.
#[derive(Debug, Clone)]
pub struct Problem {
    kind: Kind,
    detail: String,
    field: Option<String>,
    first: Option<uuid::Uuid>,
    retry_after_s: Option<u64>,
}

/// What a refusal looks like on the wire (RFC 9457).
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Problem)]
pub struct ProblemBody {
    /// `urn:postcommit:problem:` and a stable name.
    #[schema(example = "urn:postcommit:problem:invalid")]
    r#type: String,
    /// The kind, in words.
    title: String,
    /// The status of the answer.
    pub status: u16,
    /// What is wrong and what is allowed.
    pub detail: String,
    /// The field it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    /// The notification that holds the key, on a key conflict.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = Uuid, value_type = Option<String>)]
    first: Option<uuid::Uuid>,
}

impl Problem {
    /// A refusal of that kind; the detail says what to do.
    pub fn new(kind: Kind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into(), field: None, first: None, retry_after_s: None }
    }

    /// A field is not as it must be.
    pub fn invalid(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { field: Some(field.into()), ..Self::new(Kind::Invalid, detail) }
    }

    /// A refusal that begins with the field's name, as those of the store do.
    pub fn of_field(text: &str) -> Self {
        match text.split_once(": ") {
            Some((field, problem)) => Self::invalid(field, problem),
            None => Self::new(Kind::Invalid, text),
        }
    }

    /// There is no such thing, or it is somebody else's: which, is not told.
    pub fn not_found(what: &str) -> Self {
        Self::new(Kind::NotFound, format!("there is no such {what}"))
    }

    /// The key stands for the content of that notification.
    pub fn key_conflict(first: uuid::Uuid) -> Self {
        let detail = format!("the key was used with other content by notification {first}; nothing was enqueued");
        Self { field: Some("idempotency_key".into()), first: Some(first), ..Self::new(Kind::KeyConflict, detail) }
    }

    /// Names the field.
    pub fn about(mut self, field: &str) -> Self {
        self.field = Some(field.to_owned());
        self
    }

    /// The field that it is about is one of that object.
    pub fn within(mut self, object: &str) -> Self {
        self.field = self.field.map(|field| format!("{object}.{field}"));
        self
    }

    /// Come again after so long.
    pub fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after_s = Some(seconds.max(1));
        self
    }

    /// As it is told, also for one item of many.
    pub fn body(&self) -> ProblemBody {
        let (status, name, title) = self.kind.parts();
        ProblemBody {
            r#type: format!("urn:postcommit:problem:{name}"),
            title: title.into(),
            status: status.as_u16(),
            detail: cut(&self.detail),
            field: self.field.as_deref().map(cut),
            first: self.first,
        }
    }
}

fn cut(said: &str) -> String {
    match said.char_indices().nth(SAID_CHARS) {
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
        if let Some(seconds) = self.retry_after_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.kind == Kind::Unauthenticated {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"postcommit\""));
        }
        response
    }
}

impl From<DbError> for Problem {
    fn from(error: DbError) -> Self {
        if let DbError::Unreachable(_) | DbError::TooOld { .. } | DbError::TooNew { .. } | DbError::OtherFunctions = error {
            tracing::warn!(problem = %error, "a request could not be served");
            return Self::new(Kind::Unavailable, "the database cannot be reached or takes no writes; nothing was done").retry_after(1);
        }
        tracing::error!(problem = %error, "a request failed");
        Self::new(Kind::Internal, "the server's log says more; look for the request id")
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        match error {
            Error::Invalid { field, problem } => Self::invalid(field, problem),
            Error::Conflict { first, .. } => Self::key_conflict(first),
            other => {
                tracing::error!(problem = %other, "a request failed");
                Self::new(Kind::Internal, "the server's log says more; look for the request id")
            }
        }
    }
}
