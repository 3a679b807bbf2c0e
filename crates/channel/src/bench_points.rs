//! Private parts of the hot path, for `benches/instructions.rs`. Not for use.

use bytes::Bytes;

use crate::driver::{http, webhook};
use crate::egress::HttpAnswer;
use crate::model::{Guarantee, Report, StoredNotification};

/// What the webhook driver makes of a notification.
#[must_use]
pub fn render(note: &StoredNotification) -> Bytes {
    webhook::body(note)
}

/// What an answer means.
#[must_use]
pub fn classify(answer: HttpAnswer, secrets: &[String]) -> Report {
    http::report(Ok(answer), Guarantee::Idempotent, secrets)
}
