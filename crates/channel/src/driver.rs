//! The drivers. A driver sends a message and reports the outcome. It knows nothing of storage, timing or retries.

mod broker;
mod callback;
mod capture;
mod cloudevents;
mod described;
mod host;
pub(crate) mod http;
mod idle;
mod in_app;
mod kind;
mod mqtt;
mod nats;
mod rabbitmq;
mod recipe;
mod redact;
mod redis_streams;
mod smtp;
mod web_push;
pub(crate) mod webhook;

use std::pin::Pin;
use std::time::Duration;

use postcommit::Timestamp;
use serde_json::Value;
use serde_json::value::RawValue;
use uuid::Uuid;

pub use callback::{Callback, CallbackAnswer, CallbackParts, CallbackRefusal, CallbackRequest, Trust};
pub use capture::{FailOn, Mode};
pub use described::{Described, described};
pub use host::host_of;
pub use kind::{
    Destination, KeyWindow, Kind, LocalSetting, MadeSecret, NewSecret, Occasion, ReadyMade, add_recipe, destination,
    key_window, kind, names, ready_made,
};
pub use recipe::{Field, FieldType, Recipe};
pub use webhook::sign;

use crate::egress::{BAD_CERTIFICATE, Egress, EgressFailure, Phase};
use crate::model::{DeliveryKey, ErrorClass, Guarantee, Outcome, Provider, Report, StoredNotification};
use crate::render::Content;
use crate::secret::Secrets;
use crate::template::Payload;

/// One message to one address.
#[derive(Debug)]
pub struct Message<'a> {
    /// The rendered content of the message.
    pub content: Content,
    /// The original event, for drivers that forward events to programs. Drivers that write to people use only
    /// `content`.
    pub raw_event: RawEvent<'a>,
    /// Identifies the delivery. Its `provider_key` is the same on every attempt.
    pub key: DeliveryKey,
    /// The channel of the delivery.
    pub channel: &'a str,
    /// The address of the receiver.
    pub target: &'a str,
    /// The number of this attempt in the current round, starting at 1.
    pub attempt: u32,
    /// The time limit for the whole send.
    pub timeout: Duration,
    /// The W3C `traceparent` header to pass on, for drivers that use HTTP.
    pub traceparent: Option<&'a str>,
}

/// An event as it was enqueued and not rendered, for receivers that are programs.
#[derive(Debug, Clone, Copy)]
pub struct RawEvent<'a> {
    /// The id of the notification.
    pub id: Uuid,
    /// The name of the tenant that owns the notification.
    pub tenant: &'a str,
    /// The idempotency key, unique within the tenant.
    pub idempotency_key: &'a str,
    /// The type of the event as a dotted name.
    pub event_type: &'a str,
    /// The entity that the event is about.
    pub entity: Option<&'a str>,
    /// The topic that the event belongs to.
    pub topic: Option<&'a str>,
    /// The version of the payload's format.
    pub schema_version: Option<i32>,
    /// The data of the event as its stored text, so that numbers keep every digit.
    pub payload: &'a Payload,
    /// Additional data for single channels, by channel name.
    pub data: Option<&'a RawValue>,
    /// The id of the request or trace that caused the event.
    pub correlation_id: Option<&'a str>,
    /// The priority, 0 to 9. 9 is the highest.
    pub priority: i16,
    /// The time at which the event was enqueued.
    pub created_at: Timestamp,
    /// The time after which the event is of no use.
    pub expires_at: Timestamp,
    /// The origin of the event, with the `traceparent` of the request that enqueued it.
    pub source: Option<&'a Value>,
}

impl<'a> From<&'a StoredNotification> for RawEvent<'a> {
    fn from(note: &'a StoredNotification) -> Self {
        Self {
            id: note.id,
            tenant: &note.tenant_name,
            idempotency_key: &note.idempotency_key,
            event_type: &note.event_type,
            entity: note.entity.as_deref(),
            topic: note.topic.as_deref(),
            schema_version: note.schema_version,
            payload: &note.payload,
            data: note.data.as_deref(),
            correlation_id: note.correlation_id.as_deref(),
            priority: note.priority,
            created_at: note.created_at,
            expires_at: note.expires_at,
            source: note.source.as_ref(),
        }
    }
}

/// The future of a send.
pub type Sending<'a> = Pin<Box<dyn Future<Output = Report> + Send + 'a>>;

/// Sends messages to one kind of provider. It reports every outcome, failures included, as a [`Report`] and returns no
/// error.
pub trait Driver: Send + Sync {
    /// Sends the message once, without retries.
    fn send<'a>(&'a self, message: Message<'a>) -> Sending<'a>;

    /// The request of a message as text, without secrets, for an operator who tests the provider. `None` if the driver
    /// makes no request that could be shown.
    fn shown_request(&self, _message: &Message<'_>) -> Option<String> {
        None
    }

    /// Whether the receivers' hosts are held and paused separately. If false, which is the default, the answer of one
    /// receiver affects the whole lane.
    fn isolates_hosts(&self) -> bool {
        false
    }

    /// The time that the provider asks for between two messages to the same recipient. The default is none.
    fn recipient_interval(&self) -> Option<Duration> {
        None
    }

    /// How long the send may wait for the receiver's last answer beyond its time limit. Meanwhile the lease of the
    /// delivery is renewed. The default is not to wait.
    fn late_answer(&self) -> Duration {
        Duration::ZERO
    }

    /// The host name and port of an address, or `None` if it has no host. Used only if [`Driver::isolates_hosts`] is
    /// true.
    fn host_of(&self, _target: &str) -> Option<String> {
        None
    }
}

/// The inputs from which a driver is built.
pub struct Parts<'a> {
    /// The provider's settings.
    pub settings: &'a Value,
    /// The provider's secrets, decrypted.
    pub secrets: &'a Secrets,
    pub guarantee: Guarantee,
    /// The client for outgoing connections.
    pub egress: &'a Egress,
    /// The failures that the capture driver simulates, from the environment.
    pub capture_fail_on: &'a FailOn,
}

/// Builds the driver of a stored provider.
pub fn of_provider(
    provider: &Provider,
    secrets: &Secrets,
    egress: &Egress,
    capture_fail_on: &FailOn,
) -> Result<Box<dyn Driver>, String> {
    let (settings, guarantee) = (&provider.settings, provider.guarantee);
    kind(&provider.driver)?.build(&Parts { settings, secrets, guarantee, egress, capture_fail_on })
}

/// The report on a message for which no connection could be opened, so that the server cannot have the message.
fn not_connected(failure: EgressFailure) -> Report {
    let (outcome, class) = match failure.phase {
        // Our own address filter refused the connection. Another attempt would fail in the same way.
        Phase::Refused => (Outcome::refused(failure.code), None),
        // The server shows this certificate to every message, so the lane is paused.
        _ if failure.code == BAD_CERTIFICATE => (Outcome::config(failure.code), Some(ErrorClass::Config)),
        _ => (Outcome::deferred(failure.code), None),
    };
    Report { class, ..Report::from(outcome).because(failure.detail) }
}

/// Parses a driver's settings into its own struct. An error names the setting.
fn settings<T: serde::de::DeserializeOwned>(value: &Value) -> Result<T, String> {
    serde_path_to_error::deserialize(value).map_err(|problem| {
        // An operator may not know the type name `u64`, so it is replaced.
        let words = problem.inner().to_string().replace("expected u64", "expected a whole number, 0 or more");
        match problem.path().to_string().as_str() {
            "." => format!("settings: {words}"),
            path => format!("settings.{path}: {words}"),
        }
    })
}
