use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::{Error, Recipient, Timestamp, TraceParent, check, limits};

/// A notification: its content, recipients, channels and times. It cannot be changed after it was enqueued.
///
/// Create it with [`Notification::event`] or [`Notification::message`], or read it from JSON with the same field names.
/// Both check the limits of [`crate::limits`], so Postcommit accepts every `Notification` value.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Notification {
    /// The event type, a dotted name of 1 to 255 characters.
    pub event_type: String,
    /// The event's data, at most 256 KB and 32 levels. `null` becomes `{}`.
    pub payload: Value,
    /// The idempotency key: 1 to 255 characters, unique in the tenant. A second notification with the same key is not
    /// sent.
    pub idempotency_key: String,
    /// The tenant that owns the notification: 1 to 63 letters, digits, `_`, `-`, `.`. Default `default`.
    pub tenant: String,
    /// The id of the entity that the notification is about, e.g. of a booking; 1 to 255 characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entity: Option<String>,
    /// The recipients, at most 1,000.
    pub recipients: Vec<Recipient>,
    /// The channels to use, at most 32. When empty, each recipient's kind of address determines the channels.
    pub channels: Vec<String>,
    /// The subject or heading: one line, at most 998 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The text of the message, at most 256 KB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// The link for the reader: http, https, mailto or tel, at most 2,048 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action_url: Option<String>,
    /// Data for single channels, an object by channel: `{"whatsapp": {…}}`. At most 64 KB and 32 levels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
    /// The priority, 0 to 9. 9 is sent first. Default 5.
    pub priority: i16,
    /// The notification is not sent before this time. Default: it is due immediately.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub due_at: Option<Timestamp>,
    /// The notification is not sent after this time; at least a millisecond after `due_at`. Default: 30 days after it
    /// is due.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// The origin of the notification, at most 4 KB as JSON.
    #[serde(skip_serializing_if = "Source::is_empty")]
    pub source: Source,
    /// The id of the request or trace that caused the notification; 1 to 255 characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// The stream that the event belongs to, e.g. `booking.events`; 1 to 255 characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    /// The version of the payload's format.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema_version: Option<i32>,
    /// Whether the same key with other content is an error. If false, the first notification is kept and the conflict
    /// is recorded. Default false.
    pub strict: bool,
}

/// The origin of a notification: the site, the instance, the script or rule that created it, and the time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Source {
    /// The name of the remote site.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub site: Option<String>,
    /// The process or machine at the site.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// The script that created the notification.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub script: Option<String>,
    /// The rule that created the notification.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// The time at which the site created the notification.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enqueued_at: Option<Timestamp>,
    /// The W3C `traceparent` of the span that enqueued the notification. Its attempts become part of that trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
}

impl Source {
    /// Creates a source with the name of its site.
    pub fn site(site: impl Into<String>) -> Self {
        Self { site: Some(site.into()), ..Self::default() }
    }

    /// Makes the notification part of the trace of `parent`.
    #[must_use]
    pub fn traced_by(mut self, parent: TraceParent) -> Self {
        self.traceparent = Some(parent.to_string());
        self
    }

    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Notification {
    /// Begins a notification about an event. Title and body come from templates, or are set on the builder.
    pub fn event(event_type: impl Into<String>, payload: Value) -> Builder {
        Builder(Draft { event_type: event_type.into(), payload, ..Draft::default() })
    }

    /// Begins a direct message: event type `message`, no payload.
    pub fn message(title: impl Into<String>, body: impl Into<String>) -> Builder {
        let draft =
            Draft { event_type: "message".into(), payload: Value::Object(serde_json::Map::new()), ..Draft::default() };
        Builder(Draft { title: Some(title.into()), body: Some(body.into()), ..draft })
    }
}

/// Builds a [`Notification`]. Every method sets one field; [`Builder::build`] checks them all.
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until build() is called"]
pub struct Builder(Draft);

impl Builder {
    /// Sets the idempotency key, 1 to 255 characters. Without this call the key is random, and a repeated enqueue is
    /// not recognised.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.0.idempotency_key = Some(key.into());
        self
    }

    /// Sets the tenant that owns the notification: 1 to 63 letters, digits, `_`, `-`, `.`. Default `default`.
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.0.tenant = tenant.into();
        self
    }

    /// Sets the id of the entity that the notification is about, 1 to 255 characters. `cancel` finds notifications by
    /// it.
    pub fn entity(mut self, entity: impl Into<String>) -> Self {
        self.0.entity = Some(entity.into());
        self
    }

    /// Adds a recipient; at most 1,000.
    pub fn to(mut self, recipient: Recipient) -> Self {
        self.0.recipients.push(recipient);
        self
    }

    /// Adds a channel: at most 32, each of 1 to 63 letters, digits, `_`, `-`, `.`. `in-app` means `in_app`. Without
    /// channels, each recipient's kind of address determines the channels.
    pub fn channel(mut self, channel: impl Into<String>) -> Self {
        self.0.channels.push(channel.into());
        self
    }

    /// Sets the subject or heading: one line, at most 998 bytes.
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.0.title = Some(title.into());
        self
    }

    /// Sets the text of the message, at most 256 KB.
    pub fn body(mut self, body: impl Into<String>) -> Self {
        self.0.body = Some(body.into());
        self
    }

    /// Sets the link for the reader: http, https, mailto or tel, at most 2,048 bytes.
    pub fn action_url(mut self, url: impl Into<String>) -> Self {
        self.0.action_url = Some(url.into());
        self
    }

    /// Sets the data for single channels, an object by channel: `{"whatsapp": {…}}`, at most 64 KB.
    pub fn data(mut self, data: Value) -> Self {
        self.0.data = Some(data);
        self
    }

    /// Sets the priority, 0 to 9. 9 is sent first. Default 5.
    pub fn priority(mut self, priority: i16) -> Self {
        self.0.priority = priority;
        self
    }

    /// Sets the time before which the notification is not sent. Default: it is due immediately.
    pub fn due_at(mut self, at: impl Into<Timestamp>) -> Self {
        self.0.due_at = Some(at.into());
        self
    }

    /// Sets the time after which the notification is not sent. Default: 30 days after it is due. `build` compares it
    /// with `due_at` if that is given. Without `due_at`, the database refuses a time that has passed when the
    /// notification is enqueued.
    pub fn expires_at(mut self, at: impl Into<Timestamp>) -> Self {
        self.0.expires_at = Some(at.into());
        self
    }

    /// Sets the origin of the notification, at most 4 KB.
    pub fn source(mut self, source: Source) -> Self {
        self.0.source = source;
        self
    }

    /// Sets the id of the request or trace that caused the notification, 1 to 255 characters.
    pub fn correlation_id(mut self, id: impl Into<String>) -> Self {
        self.0.correlation_id = Some(id.into());
        self
    }

    /// Sets the stream that the event belongs to, 1 to 255 characters.
    pub fn topic(mut self, topic: impl Into<String>) -> Self {
        self.0.topic = Some(topic.into());
        self
    }

    /// Sets the version of the payload's format.
    pub fn schema_version(mut self, version: i32) -> Self {
        self.0.schema_version = Some(version);
        self
    }

    /// Makes the same key with other content an error. Default: the first notification is kept and the conflict is
    /// recorded.
    pub fn strict(mut self) -> Self {
        self.0.strict = true;
        self
    }

    /// Checks every field and returns the notification.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the first invalid field, and what is allowed.
    pub fn build(self) -> Result<Notification, Error> {
        self.0.check()?;
        Ok(self.0.into_notification())
    }
}

/// The fields of a notification before they are checked. JSON is also read into this type.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Draft {
    event_type: String,
    payload: Value,
    idempotency_key: Option<String>,
    tenant: String,
    entity: Option<String>,
    recipients: Vec<Recipient>,
    channels: Vec<String>,
    title: Option<String>,
    body: Option<String>,
    action_url: Option<String>,
    data: Option<Value>,
    priority: i16,
    due_at: Option<Timestamp>,
    expires_at: Option<Timestamp>,
    source: Source,
    correlation_id: Option<String>,
    topic: Option<String>,
    schema_version: Option<i32>,
    strict: bool,
}

impl Default for Draft {
    fn default() -> Self {
        Self {
            event_type: String::new(),
            payload: Value::Object(serde_json::Map::new()),
            idempotency_key: None,
            tenant: "default".into(),
            entity: None,
            recipients: Vec::new(),
            channels: Vec::new(),
            title: None,
            body: None,
            action_url: None,
            data: None,
            priority: limits::PRIORITY_DEFAULT,
            due_at: None,
            expires_at: None,
            source: Source::default(),
            correlation_id: None,
            topic: None,
            schema_version: None,
            strict: false,
        }
    }
}

impl Draft {
    fn check(&self) -> Result<(), Error> {
        field("event_type", check::chars(&self.event_type, 1, limits::NAME_CHARS))?;
        field("payload", check::json(&self.payload, limits::PAYLOAD_BYTES).map(drop))?;
        optional("idempotency_key", &self.idempotency_key, |key| check::chars(key, 1, limits::KEY_CHARS))?;
        field("tenant", check::short_name(&self.tenant))?;
        for (name, value) in
            [("entity", &self.entity), ("topic", &self.topic), ("correlation_id", &self.correlation_id)]
        {
            optional(name, value, |text| check::chars(text, 1, limits::NAME_CHARS))?;
        }
        optional("title", &self.title, |title| {
            check::bytes(title, limits::TITLE_BYTES).and_then(|()| check::one_line(title))
        })?;
        optional("body", &self.body, |body| check::bytes(body, limits::BODY_BYTES))?;
        optional("action_url", &self.action_url, |url| check::action_url(url))?;
        optional("data", &self.data, data_by_channel)?;
        self.check_targets()?;
        self.check_times()
    }

    fn check_targets(&self) -> Result<(), Error> {
        field("recipients", at_most(self.recipients.len(), limits::RECIPIENTS))?;
        for (i, recipient) in self.recipients.iter().enumerate() {
            recipient.check_at(i)?;
        }
        field("channels", at_most(self.channels.len(), limits::CHANNELS))?;
        self.channels.iter().try_for_each(|channel| field("channels", check::short_name(channel)))
    }

    fn check_times(&self) -> Result<(), Error> {
        if !(0..=limits::PRIORITY_MAX).contains(&self.priority) {
            return Err(Error::invalid(
                "priority",
                format!("is {}; 0 to {} are allowed", self.priority, limits::PRIORITY_MAX),
            ));
        }
        let times =
            [("due_at", self.due_at), ("expires_at", self.expires_at), ("source.enqueued_at", self.source.enqueued_at)];
        for (name, at) in times {
            optional(name, &at, |at| at.check())?;
        }
        if let (Some(due), Some(expires)) = (self.due_at, self.expires_at)
            && expires < due.plus(limits::LIFE)
        {
            return Err(Error::invalid(
                "expires_at",
                format!("is {expires}; it must be at least one millisecond after due_at, which is {due}"),
            ));
        }
        optional("source.traceparent", &self.source.traceparent, |text| text.parse::<TraceParent>().map(drop))?;
        let source = serde_json::to_value(&self.source).map_err(|e| Error::invalid("source", e.to_string()))?;
        field("source", check::json(&source, limits::SOURCE_BYTES).map(drop))
    }

    fn into_notification(self) -> Notification {
        Notification {
            event_type: self.event_type,
            // The schema treats an absent payload as an empty object, so `null` becomes an empty object, too.
            payload: if self.payload.is_null() { Value::Object(serde_json::Map::new()) } else { self.payload },
            idempotency_key: self.idempotency_key.unwrap_or_else(random_key),
            tenant: self.tenant,
            entity: self.entity,
            recipients: self.recipients,
            channels: self.channels.iter().map(|channel| channel_name(channel).to_owned()).collect(),
            title: self.title,
            body: self.body,
            action_url: self.action_url,
            data: self.data,
            priority: self.priority,
            due_at: self.due_at,
            expires_at: self.expires_at,
            source: self.source,
            correlation_id: self.correlation_id,
            topic: self.topic,
            schema_version: self.schema_version,
            strict: self.strict,
        }
    }
}

/// Returns the name under which a channel is stored. `in-app` becomes `in_app`; any other name stays as it is.
#[must_use]
pub fn channel_name(channel: &str) -> &str {
    if channel == "in-app" { "in_app" } else { channel }
}

fn random_key() -> String {
    format!("random:{}", uuid::Uuid::new_v4())
}

fn data_by_channel(data: &Value) -> Result<(), String> {
    if !data.is_object() {
        return Err("must be an object with one member per channel, e.g. {\"whatsapp\": {…}}".into());
    }
    check::json(data, limits::DATA_BYTES).map(drop)
}

fn at_most(count: usize, max: usize) -> Result<(), String> {
    if count > max { Err(format!("has {count} entries; at most {max} are allowed")) } else { Ok(()) }
}

fn field(name: &str, checked: Result<(), String>) -> Result<(), Error> {
    checked.map_err(|problem| Error::invalid(name, problem))
}

fn optional<T>(name: &str, value: &Option<T>, rule: impl Fn(&T) -> Result<(), String>) -> Result<(), Error> {
    value.as_ref().map_or(Ok(()), |value| field(name, rule(value)))
}

impl<'de> Deserialize<'de> for Notification {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let draft = Draft::deserialize(from)?;
        draft.check().map_err(serde::de::Error::custom)?;
        Ok(draft.into_notification())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn sample() -> Builder {
        Notification::event("booking.confirmed", json!({"id": 1})).key("k").to(Recipient::email("a@example.com"))
    }

    fn problem(builder: Builder) -> String {
        builder.build().unwrap_err().to_string()
    }

    #[test]
    fn every_limit_is_named_with_its_field() {
        for (builder, expected) in [
            (sample().key(""), "idempotency_key: has 0 characters; 1 to 255 are allowed"),
            (sample().key("x".repeat(256)), "idempotency_key: has 256 characters; 1 to 255 are allowed"),
            (sample().title("x".repeat(999)), "title: has 999 bytes; at most 998 are allowed"),
            (sample().title("a\r\nBcc: b@example.com"), "title: holds '\\r'; line breaks and NUL are not allowed"),
            (sample().priority(10), "priority: is 10; 0 to 9 are allowed"),
            (sample().tenant("a b"), "tenant: holds ' '; letters, digits, '_', '-' and '.' are allowed"),
            (
                sample().data(json!([1])),
                "data: must be an object with one member per channel, e.g. {\"whatsapp\": {…}}",
            ),
        ] {
            assert_eq!(problem(builder), expected);
        }
        assert!(problem(sample().body("x".repeat(262_145))).starts_with("body: has 262145 bytes; at most 262144"));
        let crowd = (0..1001).fold(sample(), |b, i| b.to(Recipient::user(i.to_string())));
        assert_eq!(problem(crowd), "recipients: has 1002 entries; at most 1000 are allowed");
    }

    #[test]
    fn c7_a_bad_phone_number_is_refused_with_its_place() {
        let text = problem(sample().to(Recipient::phone("98765")));
        assert!(text.starts_with("recipients[1].phone: is not a phone number in E.164"), "{text}");
    }

    #[test]
    fn b1_in_app_has_two_names_and_is_stored_under_one() {
        assert_eq!(sample().channel("in-app").channel("email").build().unwrap().channels, ["in_app", "email"]);
        let read: Notification = serde_json::from_str(r#"{"event_type": "a", "channels": ["in-app"]}"#).unwrap();
        assert_eq!(read.channels, ["in_app"]);
    }

    #[test]
    fn expiry_must_follow_due() {
        let at: Timestamp = "2026-03-15T00:00:00Z".parse().unwrap();
        assert!(problem(sample().due_at(at).expires_at(at)).starts_with("expires_at: is 2026-03-15T00:00:00Z"));
        assert!(sample().due_at(at).expires_at(at.plus(limits::LIFE)).build().is_ok());
    }

    #[test]
    fn a_time_no_database_can_read_is_refused() {
        for micros in [i64::MAX, i64::MIN, 253_402_300_800_000_000] {
            let text = problem(sample().due_at(Timestamp::from_micros(micros)));
            assert!(text.starts_with("due_at: is ") && text.ends_with("; the years 1 to 9999 are allowed"), "{text}");
        }
        assert!(sample().due_at(Timestamp::from_micros(253_402_300_799_999_999)).build().is_ok());
    }

    #[test]
    fn json_and_back_is_the_same_notification() {
        let note = sample().title("t").source(Source::site("plant-7")).priority(9).build().unwrap();
        let text = serde_json::to_string(&note).unwrap();
        assert_eq!(serde_json::from_str::<Notification>(&text).unwrap(), note);
    }

    #[test]
    fn json_with_an_unknown_or_bad_field_is_refused() {
        let read = |text: &str| serde_json::from_str::<Notification>(text).unwrap_err().to_string();
        assert!(read(r#"{"event_type": "a", "titel": "x"}"#).contains("titel"));
        assert!(read(r#"{"event_type": ""}"#).contains("event_type: has 0 characters"));
        assert!(read(r#"{"event_type": "a", "recipients": [{"mail": "x"}]}"#).contains("a recipient is one of"));
    }
}
