//! What the server answered, and what it means.

use std::time::Duration;

use hyper::body::Bytes;
use hyper::header::{HeaderMap, RETRY_AFTER};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use super::Enqueued;
use super::repeat::Unsettled;
use crate::Error;

/// An answer that came whole.
#[derive(Debug)]
pub(super) struct Answer {
    status: u16,
    after: Option<Duration>,
    body: Bytes,
}

/// A refusal as it is written (RFC 9457). All is optional: a proxy on the way may refuse in its own words.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Problem {
    r#type: String,
    status: u16,
    detail: String,
    field: Option<String>,
    first: Option<Uuid>,
}

/// The answer to a batch.
#[derive(Debug, Deserialize)]
pub(super) struct Batch {
    pub(super) results: Vec<OfBatch>,
}

/// What became of one of a batch.
#[derive(Debug, Deserialize)]
pub(super) struct OfBatch {
    id: Option<Uuid>,
    duplicate: Option<bool>,
    problem: Option<Problem>,
}

/// The answer to a cancel.
#[derive(Debug, Deserialize)]
pub(super) struct Cancelled {
    pub(super) cancelled: u64,
}

impl Answer {
    pub(super) fn new(status: u16, headers: &HeaderMap, body: Bytes) -> Self {
        // In seconds, as our server writes it. A date, as proxies may, leaves the wait to us.
        let after = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok()).map(Duration::from_secs);
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

    /// The answer as what was asked for, or the refusal.
    pub(super) fn json<T: DeserializeOwned>(&self) -> Result<T, Error> {
        match self.status {
            200..=299 => serde_json::from_slice(&self.body).map_err(|e| Error::unavailable(format!("an answer that cannot be read: {e}"))),
            300..=399 => Err(Error::refused(self.status, "redirect", "a redirect, which is not followed; is the URL right?")),
            status => Err(serde_json::from_slice::<Problem>(&self.body).unwrap_or_default().into_error(status)),
        }
    }
}

impl OfBatch {
    pub(super) fn read(self) -> Result<Enqueued, Error> {
        match (self.id, self.problem) {
            (_, Some(problem)) => {
                let status = problem.status;
                Err(problem.into_error(status))
            }
            (Some(id), None) => Ok(Enqueued { id, duplicate: self.duplicate.unwrap_or(false) }),
            (None, None) => Err(Error::unavailable("a result that cannot be read")),
        }
    }
}

impl Problem {
    fn into_error(self, status: u16) -> Error {
        let kind = self.r#type.strip_prefix("urn:postcommit:problem:").unwrap_or("");
        match (kind, self.first, self.field) {
            ("key-conflict", Some(first), _) => Error::Conflict { key: String::new(), first },
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

    /// A conflict as it comes over the wire does not repeat the key.
    pub(super) fn with_key(self, named: &str) -> Self {
        match self {
            Self::Conflict { first, .. } => Self::Conflict { key: named.to_owned(), first },
            other => other,
        }
    }
}

/// A text from outside, for an error: no longer than a person reads, and on one line.
fn shortened(text: &str) -> String {
    text.chars().take(300).map(|c| if c.is_control() { ' ' } else { c }).collect()
}
