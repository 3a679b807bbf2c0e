//! Renders the content of a delivery. The function is pure, so that every attempt has the same content.

use std::collections::BTreeMap;

use postcommit::channel_name;
use serde_json::value::RawValue;

use crate::model::{Facts, StoredNotification};

/// The content of a message to one recipient on one channel.
#[derive(Debug, Clone, Default)]
pub struct Content {
    /// The subject or heading.
    pub subject: Option<String>,
    /// The message as plain text.
    pub text: Option<String>,
    /// The message as HTML, for channels that show it.
    pub html: Option<String>,
    /// The link that the reader should open: http(s), mailto or tel.
    pub action_url: Option<String>,
    /// Additional data for this channel only, as JSON.
    pub data: Option<Box<RawValue>>,
    /// The link by which the recipient unsubscribes, if the message shows it. A mail also has it in its headers:
    /// [`Content::mail_headers`].
    pub unsubscribe_url: Option<String>,
}

impl Content {
    /// The names and values of the headers by which mail programs unsubscribe with one click (RFC 8058). Empty if the
    /// message shows no unsubscribe link.
    #[must_use]
    pub fn mail_headers(&self) -> Vec<(&'static str, String)> {
        let headers = |url: &String| {
            let one_click = "List-Unsubscribe=One-Click".to_owned();
            vec![("List-Unsubscribe", format!("<{url}>")), ("List-Unsubscribe-Post", one_click)]
        };
        self.unsubscribe_url.as_ref().map(headers).unwrap_or_default()
    }
}

/// Renders a notification for one of its deliveries. The title and the body are used as they were enqueued.
pub fn render(note: &StoredNotification, facts: &Facts) -> Content {
    Content {
        subject: note.title.clone(),
        text: note.body.clone(),
        html: None,
        action_url: note.action_url.clone(),
        data: note.data.as_deref().and_then(|data| data_for(facts.channel(), data)),
        unsubscribe_url: None,
    }
}

/// The part of `data` for one channel. `data` is an object with one entry per channel.
pub(crate) fn data_for(channel: &str, data: &RawValue) -> Option<Box<RawValue>> {
    let mut by_channel: BTreeMap<String, Box<RawValue>> = serde_json::from_str(data.get()).ok()?;
    by_channel
        .remove(channel)
        .or_else(|| by_channel.into_iter().find(|(name, _)| channel_name(name) == channel).map(|(_, part)| part))
}
