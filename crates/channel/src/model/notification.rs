use postcommit::{Timestamp, TraceParent};
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;
use uuid::Uuid;

use super::Facts;

/// How many characters of a site's name the KPIs keep. The migration `kpis` uses the same number.
pub const SITE_CHARS: usize = 64;

/// The first part of a resend's idempotency key. The entity, the channel, the template and the request follow.
pub const RESEND_KEY: &str = "manual";

/// The first part of a digest's idempotency key. A random id follows, so that no application can hold the key already.
pub const DIGEST_KEY: &str = "digest";

/// Who made a notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Maker {
    /// An application enqueued it.
    Application,
    /// An operator asked for it: a copy of an earlier notification.
    Resend,
    /// An expansion opened it: a digest of other notifications.
    Digest,
}

/// A notification as it is stored: immutable.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StoredNotification {
    /// Its owner.
    #[serde(skip)]
    pub tenant: i32,
    /// The owner's name.
    #[serde(rename = "tenant")]
    pub tenant_name: String,
    /// UUIDv7.
    pub id: Uuid,
    /// Dotted name of what happened.
    pub event_type: String,
    /// The thing it is about.
    pub entity: Option<String>,
    /// The stream it belongs to.
    pub topic: Option<String>,
    /// Version of the payload's shape.
    pub schema_version: Option<i32>,
    /// Unique in the tenant.
    pub idempotency_key: String,
    /// The event's data, digit for digit as it is stored.
    #[cfg_attr(feature = "openapi", schema(value_type = serde_json::Value))]
    pub payload: Box<RawValue>,
    /// To whom, as given.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<Object>))]
    pub recipients: Value,
    /// By which channels, as given.
    pub channels: Vec<String>,
    /// Subject or heading.
    pub title: Option<String>,
    /// Text.
    pub body: Option<String>,
    /// Where the reader should go.
    pub action_url: Option<String>,
    /// What one channel alone needs, by channel.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub data: Option<Box<RawValue>>,
    /// 0 to 9, 9 first.
    pub priority: i16,
    /// Not before this.
    pub due_at: Timestamp,
    /// Never after this.
    pub expires_at: Timestamp,
    /// Where it came from.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub source: Option<Value>,
    /// The request or trace that caused it.
    pub correlation_id: Option<String>,
    /// When it was enqueued.
    pub created_at: Timestamp,
    /// The deliveries that were cancelled while they were under way; 0 is all.
    #[serde(skip)]
    pub cancelled: Vec<i32>,
}

impl StoredNotification {
    /// Whether the delivery with this number was cancelled.
    pub fn is_cancelled(&self, n: i32) -> bool {
        self.cancelled.contains(&0) || self.cancelled.contains(&n)
    }

    /// Says who made it, by the facts of its own row or of a delivery that a template renders. An application may use any
    /// key, and writes no rows. So a key of Postcommit's own counts only where it stands on the row as the send key, too.
    #[must_use]
    pub fn maker(&self, facts: &Facts) -> Maker {
        if facts.send_key.as_ref() != Some(&self.idempotency_key) {
            return Maker::Application;
        }
        let mut parts = self.idempotency_key.split(':');
        // The send key of an entity has four parts, so it is neither of the two.
        match (parts.next(), parts.count()) {
            (Some(RESEND_KEY), 4) => Maker::Resend,
            (Some(DIGEST_KEY), 1) => Maker::Digest,
            _ => Maker::Application,
        }
    }

    /// The name of the site that the notification came from, as the KPIs use it: at most [`SITE_CHARS`] characters, and
    /// empty without a site. `None` if the site is not a text, because then only the database decides how it is
    /// written.
    pub fn site_label(&self) -> Option<Box<str>> {
        match self.source.as_ref().and_then(|source| source.get("site")) {
            None | Some(Value::Null) => Some(Box::default()),
            Some(Value::String(site)) => Some(site.chars().take(SITE_CHARS).collect::<String>().into()),
            Some(_) => None,
        }
    }

    /// The trace context of the request that enqueued the notification. A malformed `traceparent` is ignored, because
    /// SQL clients may write any text.
    pub fn traceparent(&self) -> Option<TraceParent> {
        self.source.as_ref()?.get("traceparent")?.as_str()?.parse().ok()
    }
}
