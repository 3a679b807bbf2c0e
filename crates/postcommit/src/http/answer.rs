//! The server's response, and its meaning for the caller.

use std::time::Duration;

use hyper::body::Bytes;
use hyper::header::{HeaderMap, RETRY_AFTER};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use super::Enqueued;
use super::repeat::Unsettled;
use crate::Error;

/// A complete response.
#[derive(Debug)]
pub(super) struct Answer {
    status: u16,
    after: Option<Duration>,
    body: Bytes,
}

/// A refusal in the form of RFC 9457. Every field is optional, because a proxy may refuse in another form.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Problem {
    r#type: String,
    status: u16,
    detail: String,
    field: Option<String>,
    first: Option<Uuid>,
}

/// The response to a batch.
#[derive(Debug, Deserialize)]
pub(super) struct BatchResponse {
    pub(super) results: Vec<BatchResult>,
}

/// The result for one notification of a batch.
#[derive(Debug, Deserialize)]
pub(super) struct BatchResult {
    id: Option<Uuid>,
    duplicate: Option<bool>,
    problem: Option<Problem>,
}

/// The response to a cancel.
#[derive(Debug, Deserialize)]
pub(super) struct Cancelled {
    pub(super) cancelled: u64,
}

impl Answer {
    pub(super) fn new(status: u16, headers: &HeaderMap, body: Bytes) -> Self {
        // The server writes `Retry-After` in seconds. A proxy may write a date, which is ignored: the client then
        // chooses the wait.
        let after = headers
            .get(RETRY_AFTER)
            .and_then(|value| value.to_str().ok()?.trim().parse().ok())
            .map(Duration::from_secs);
        Self { status, after, body }
    }

    pub(super) fn may_be_repeated(&self) -> bool {
        matches!(self.status, 429 | 503)
    }

    pub(super) fn unsettled(&self) -> Unsettled {
        let problem: Problem = serde_json::from_slice(&self.body).unwrap_or_default();
        let text = if problem.detail.is_empty() { "no reason given".to_owned() } else { shortened(&problem.detail) };
        Unsettled { problem: format!("{}: {text}", self.status), after: self.after }
    }

    /// Reads the body of a successful response. Any other response becomes an error.
    pub(super) fn json<T: DeserializeOwned>(&self) -> Result<T, Error> {
        match self.status {
            200..=299 => serde_json::from_slice(&self.body)
                .map_err(|e| Error::unavailable(format!("the answer cannot be read: {e}"))),
            300..=399 => Err(Error::refused(
                self.status,
                "redirect",
                "the server answered with a redirect, which is not followed; check the URL",
            )),
            status => Err(serde_json::from_slice::<Problem>(&self.body).unwrap_or_default().into_error(status)),
        }
    }
}

impl BatchResult {
    pub(super) fn read(self) -> Result<Enqueued, Error> {
        match (self.id, self.problem) {
            (_, Some(problem)) => {
                let status = problem.status;
                Err(problem.into_error(status))
            }
            (Some(id), None) => Ok(Enqueued { id, duplicate: self.duplicate.unwrap_or(false) }),
            (None, None) => Err(Error::unavailable("the answer cannot be read: a result has neither id nor problem")),
        }
    }
}

impl Problem {
    fn into_error(self, status: u16) -> Error {
        let kind = self.r#type.strip_prefix("urn:postcommit:problem:").unwrap_or("");
        match (kind, self.first, self.field) {
            ("key-conflict", Some(first), _) => Error::Conflict { key: String::new(), first, aborted: false },
            ("invalid", _, Some(field)) => Error::Invalid { field, problem: shortened(&self.detail) },
            (kind, ..) => Error::refused(status, kind, &shortened(&self.detail)),
        }
    }
}

impl Error {
    pub(super) fn unavailable(problem: impl Into<String>) -> Self {
        Self::Unavailable(problem.into())
    }

    fn refused(status: u16, kind: &str, detail: &str) -> Self {
        Self::Refused { status, kind: kind.to_owned(), detail: detail.to_owned() }
    }

    /// Adds the key to a conflict, because the server's response does not repeat it.
    pub(super) fn with_key(self, named: &str) -> Self {
        match self {
            Self::Conflict { first, aborted, .. } => Self::Conflict { key: named.to_owned(), first, aborted },
            other => other,
        }
    }
}

/// Shortens a text of the server for an error message: one line, at most 300 characters.
fn shortened(text: &str) -> String {
    text.chars().take(300).map(|c| if c.is_control() { ' ' } else { c }).collect()
}
