//! Private parts of the hot path, for `benches/instructions.rs`. Not for use.

use bytes::Bytes;

use crate::driver::{RawEvent, http, webhook};
use crate::egress::HttpAnswer;
use crate::model::{Facts, Guarantee, Report, StoredNotification};
use crate::render;

/// What the webhook driver makes of a notification.
#[must_use]
pub fn render(note: &StoredNotification) -> Bytes {
    let facts = Facts::new("webhook", "https://hooks.example.com/booking");
    webhook::body(facts.channel(), &render::render(note, &facts), RawEvent::from(note))
}

/// What an answer means.
#[must_use]
pub fn classify(answer: HttpAnswer, secrets: &[String]) -> Report {
    http::report(Ok(answer), Guarantee::Idempotent, secrets)
}
