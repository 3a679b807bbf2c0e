//! The step before a delivery is announced: what it says.

use std::time::Duration;

use postcommit_channel::driver::{Message, RawEvent};
use postcommit_channel::model::{Delivery, StoredNotification};
use postcommit_channel::render::{Content, render};

use super::Claimed;

/// A claimed delivery, and what it says.
pub(super) type Rendered = (Claimed, Content);

pub(super) fn render_all(batch: Vec<Claimed>) -> Vec<Rendered> {
    let rendered = |claimed: Claimed| {
        let content = render(&claimed.1, &claimed.0.facts);
        (claimed, content)
    };
    batch.into_iter().map(rendered).collect()
}

/// The message as the driver gets it.
pub(super) fn message<'a>(
    (delivery, note): (&'a Delivery, &'a StoredNotification),
    content: Content,
    timeout: Duration,
    traceparent: Option<&'a str>,
) -> Message<'a> {
    Message {
        content,
        raw_event: RawEvent::from(note),
        key: delivery.key,
        channel: delivery.facts.channel(),
        target: delivery.facts.target(),
        attempt: delivery.attempts + 1,
        timeout,
        traceparent,
    }
}
