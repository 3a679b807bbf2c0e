use postcommit::Timestamp;

/// A message for an inbox. The inbox is its own destination, so the message is written along with the outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InboxMessage {
    /// Whose inbox: 1 to 255 characters, no line breaks.
    pub user: String,
    /// What happened.
    pub event_type: String,
    /// About what.
    pub entity: Option<String>,
    /// Heading.
    pub title: Option<String>,
    /// Text.
    pub body: Option<String>,
    /// Where the reader should go.
    pub action_url: Option<String>,
    /// What the notification holds for `in_app` alone, as JSON.
    pub data: Option<String>,
    /// From then on it is not listed.
    pub expires_at: Timestamp,
}
