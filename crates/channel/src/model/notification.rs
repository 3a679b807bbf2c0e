use postcommit::{Timestamp, TraceParent};
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;
use uuid::Uuid;

/// Characters of a site's name that KPIs tell apart; the migration `kpis` has the same number.
pub const SITE_CHARS: usize = 64;

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
    /// Whether this delivery of it was cancelled.
    #[must_use]
    pub fn is_cancelled(&self, n: i32) -> bool {
        self.cancelled.contains(&0) || self.cancelled.contains(&n)
    }

    /// The site it came from as KPIs know it: at most [`SITE_CHARS`] of its name, empty when there is none. None when
    /// it is not a text: the database alone decides how that is written.
    #[must_use]
    pub fn site_label(&self) -> Option<Box<str>> {
        match self.source.as_ref().and_then(|source| source.get("site")) {
            None | Some(Value::Null) => Some(Box::default()),
            Some(Value::String(site)) => Some(site.chars().take(SITE_CHARS).collect::<String>().into()),
            Some(_) => None,
        }
    }

    /// The span that enqueued it. A malformed `traceparent` is ignored: plain SQL may have written any text.
    #[must_use]
    pub fn traceparent(&self) -> Option<TraceParent> {
        self.source.as_ref()?.get("traceparent")?.as_str()?.parse().ok()
    }
}
