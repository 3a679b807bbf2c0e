//! Access to private functions of the hot path, only for `benches/instructions.rs`.

use bytes::Bytes;

use crate::driver::{RawEvent, http, webhook};
use crate::egress::HttpAnswer;
use crate::model::{Facts, Guarantee, Report, StoredNotification};
use crate::render;

/// The body that the webhook driver builds for a notification.
pub fn render(note: &StoredNotification) -> Bytes {
    let facts = Facts::new("webhook", "https://hooks.example.com/booking");
    webhook::body((facts.channel(), facts.target()), &render::render(note, &facts), RawEvent::from(note))
}

/// The report for an HTTP answer.
pub fn classify(answer: HttpAnswer, secrets: &[String]) -> Report {
    http::report(Ok(answer), Guarantee::Idempotent, secrets)
}
