//! Render: what a delivery says. Pure, so that every attempt says the same.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use crate::model::{Facts, StoredNotification};

/// What is said to one recipient on one channel.
#[derive(Debug, Clone, Default)]
pub struct Content {
    /// Subject or heading.
    pub subject: Option<String>,
    /// The message as plain text.
    pub text: Option<String>,
    /// The message as HTML, for channels that show it.
    pub html: Option<String>,
    /// Where the reader should go: http(s), mailto or tel.
    pub action_url: Option<String>,
    /// What this channel alone needs, as JSON.
    pub data: Option<Box<RawValue>>,
}

/// Renders a notification for one of its deliveries. Title and body go out as they were enqueued.
#[must_use]
pub fn render(note: &StoredNotification, facts: &Facts) -> Content {
    Content {
        subject: note.title.clone(),
        text: note.body.clone(),
        html: None,
        action_url: note.action_url.clone(),
        data: note.data.as_deref().and_then(|data| data_for(facts.channel(), data)),
    }
}

/// The part of `data`, an object by channel, that one channel needs.
pub(crate) fn data_for(channel: &str, data: &RawValue) -> Option<Box<RawValue>> {
    let mut by_channel: BTreeMap<String, Box<RawValue>> = serde_json::from_str(data.get()).ok()?;
    by_channel.remove(channel)
}
