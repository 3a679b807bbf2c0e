use postcommit::{Timestamp, TraceParent};
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;
use uuid::Uuid;

use super::Facts;
use crate::template::Payload;

/// How many characters of a site's name the KPIs keep. The migration `kpis` uses the same number.
pub const SITE_CHARS: usize = 64;

/// The first part of a resend's idempotency key. The entity, the channel, the template and the request follow.
pub const RESEND_KEY: &str = "manual";

/// The first part of a digest's idempotency key. A random id follows, so that no application can hold the key already.
pub const DIGEST_KEY: &str = "digest";

/// The origin of a notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Maker {
    /// An application enqueued the notification.
    Application,
    /// An operator requested a copy of an earlier notification.
    Resend,
    /// An expansion created a digest of other notifications.
    Digest,
}

/// A stored notification. It never changes.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StoredNotification {
    /// The id of the tenant that owns the notification.
    #[serde(skip)]
    pub tenant: i32,
    /// The name of the tenant that owns the notification.
    #[serde(rename = "tenant")]
    pub tenant_name: String,
    /// The id of the notification, a UUIDv7.
    pub id: Uuid,
    /// The event type, a dotted name.
    pub event_type: String,
    /// The entity that the notification is about.
    pub entity: Option<String>,
    /// The stream that the notification belongs to.
    pub topic: Option<String>,
    /// The version of the payload's format.
    pub schema_version: Option<i32>,
    /// The idempotency key, unique in the tenant.
    pub idempotency_key: String,
    /// The event's data. Numbers keep all digits that were enqueued.
    #[cfg_attr(feature = "openapi", schema(value_type = serde_json::Value))]
    pub payload: Payload,
    /// The recipients, as they were enqueued.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<Object>))]
    pub recipients: Value,
    /// The channels, as they were enqueued.
    pub channels: Vec<String>,
    /// The subject or heading.
    pub title: Option<String>,
    /// The text of the message.
    pub body: Option<String>,
    /// The link that the reader should open.
    pub action_url: Option<String>,
    /// Additional data for single channels, by channel.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub data: Option<Box<RawValue>>,
    /// The priority, 0 to 9. 9 is sent first.
    pub priority: i16,
    /// The notification is not sent before this time.
    pub due_at: Timestamp,
    /// The notification is never sent after this time.
    pub expires_at: Timestamp,
    /// The origin of the notification.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub source: Option<Value>,
    /// The id of the request or trace that caused the notification.
    pub correlation_id: Option<String>,
    /// The time at which the notification was enqueued.
    pub created_at: Timestamp,
    /// The numbers of deliveries that were cancelled during an attempt. 0 means all deliveries.
    #[serde(skip)]
    pub cancelled: Vec<i32>,
}

impl StoredNotification {
    /// Whether the delivery with this number was cancelled.
    pub fn is_cancelled(&self, n: i32) -> bool {
        self.cancelled.contains(&0) || self.cancelled.contains(&n)
    }

    /// The origin of the notification. `facts` belong to its own row, or to a delivery that a template renders. An
    /// application can use any idempotency key, but cannot write a send key. So the notification counts as a resend or
    /// a digest only if its idempotency key is also the send key in `facts`.
    #[must_use]
    pub fn maker(&self, facts: &Facts) -> Maker {
        if facts.send_key.as_ref() != Some(&self.idempotency_key) {
            return Maker::Application;
        }
        let mut parts = self.idempotency_key.split(':');
        // The send key of an entity has four parts, so it is never taken for the key of a resend (five parts) or of a
        // digest (two parts).
        match (parts.next(), parts.count()) {
            (Some(RESEND_KEY), 4) => Maker::Resend,
            (Some(DIGEST_KEY), 1) => Maker::Digest,
            _ => Maker::Application,
        }
    }

    /// The name of the site that the notification came from, as the KPIs use it: at most [`SITE_CHARS`] characters, and
    /// empty without a site. `None` if the site is not a string: only the database knows how the KPIs write such a
    /// site.
    pub fn site_label(&self) -> Option<Box<str>> {
        match self.source.as_ref().and_then(|source| source.get("site")) {
            None | Some(Value::Null) => Some(Box::default()),
            Some(Value::String(site)) => Some(site.chars().take(SITE_CHARS).collect::<String>().into()),
            Some(_) => None,
        }
    }

    /// The trace context of the request that enqueued the notification. A malformed `traceparent` is ignored, because
    /// SQL clients may write any string.
    pub fn traceparent(&self) -> Option<TraceParent> {
        self.source.as_ref()?.get("traceparent")?.as_str()?.parse().ok()
    }
}
