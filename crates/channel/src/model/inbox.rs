use postcommit::Timestamp;

/// A message for a user's inbox. The inbox is in our own database, so the transaction that records the outcome also
/// writes the message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InboxMessage {
    /// The id of the user: 1 to 255 characters without line breaks.
    pub user: String,
    /// The type of the event.
    pub event_type: String,
    /// The entity that the event is about.
    pub entity: Option<String>,
    /// The heading of the message.
    pub title: Option<String>,
    pub body: Option<String>,
    /// The link that the reader should open.
    pub action_url: Option<String>,
    /// The notification's data for the `in_app` channel, as JSON.
    pub data: Option<String>,
    /// From this time on the message is not listed.
    pub expires_at: Timestamp,
}
