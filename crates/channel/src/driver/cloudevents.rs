//! Writes an event as CloudEvents 1.0 in structured mode: one JSON object with the attributes and the payload. The JSON
//! is byte for byte the same on every attempt and for every broker.

use postcommit::{Timestamp, TraceParent};
use serde::Serialize;
use serde_json::value::RawValue;
use url::Url;
use uuid::Uuid;

use super::Message;

/// The media type of an envelope.
pub(super) const CONTENT_TYPE: &str = "application/cloudevents+json";

/// The attributes in the order in which they are written. Names of extensions are lower-case letters and digits, as
/// CloudEvents demands.
#[derive(Serialize)]
struct Envelope<'a> {
    specversion: &'static str,
    id: &'a str,
    source: &'a str,
    r#type: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: Option<&'a str>,
    time: Timestamp,
    datacontenttype: &'static str,
    notificationid: Uuid,
    idempotencykey: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    topic: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    schemaversion: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    correlationid: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<String>,
    /// The payload as its stored text, so that numbers keep every digit.
    data: &'a RawValue,
}

/// The envelope of a message, as JSON. `id` is the key of the delivery. If `source` is `None`, the attribute `source`
/// names the tenant.
pub(super) fn envelope(message: &Message<'_>, id: &str, source: Option<&str>) -> Vec<u8> {
    let event = &message.raw_event;
    let of_tenant = || format!("urn:postcommit:{}", event.tenant);
    let envelope = Envelope {
        specversion: "1.0",
        id,
        source: &source.map_or_else(of_tenant, str::to_owned),
        r#type: event.event_type,
        // CloudEvents allows no empty attribute, so an empty one is left out.
        subject: event.entity.filter(|entity| !entity.is_empty()),
        time: event.created_at,
        datacontenttype: "application/json",
        notificationid: event.id,
        idempotencykey: event.idempotency_key,
        topic: event.topic.filter(|topic| !topic.is_empty()),
        schemaversion: event.schema_version,
        correlationid: event.correlation_id.filter(|id| !id.is_empty()),
        traceparent: event.source.and_then(origin).map(|parent| parent.to_string()),
        data: event.payload,
    };
    serde_json::to_vec(&envelope).unwrap_or_default()
}

/// The trace context of the request that enqueued the event. The context of the attempt is not used, because it differs
/// for every attempt.
fn origin(source: &serde_json::Value) -> Option<TraceParent> {
    source.get("traceparent")?.as_str()?.parse().ok()
}

/// Checks the setting `source`, which must be a URI, such as `https://shop.example/orders`.
pub(super) fn check_source(source: Option<&str>) -> Result<(), String> {
    let is_uri = |text: &str| text.len() <= 255 && text.is_ascii() && !text.contains(' ') && Url::parse(text).is_ok();
    match source {
        Some(text) if !is_uri(text) => {
            Err("settings.source: must be a URI of at most 255 characters, such as https://shop.example/orders".into())
        }
        _ => Ok(()),
    }
}
