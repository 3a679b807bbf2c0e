//! The drivers: each turns a message into an outcome, and knows nothing of storage, timing or retries.

mod capture;
mod host;
pub(crate) mod http;
mod in_app;
mod kind;
mod redact;
pub(crate) mod webhook;

use std::pin::Pin;
use std::time::Duration;

use postcommit::Timestamp;
use serde_json::Value;
use serde_json::value::RawValue;
use uuid::Uuid;

pub use capture::{FailOn, Mode};
pub use host::host_of;
pub use kind::{
    Destination, KeyWindow, Kind, LocalSetting, NewSecret, Occasion, ReadyMade, destination, key_window, kind, kinds,
    ready_made,
};
pub use webhook::sign;

use crate::egress::Egress;
use crate::model::{DeliveryKey, Guarantee, Provider, Report, StoredNotification};
use crate::render::Content;
use crate::secret::Secrets;

/// One message to one address.
#[derive(Debug)]
pub struct Message<'a> {
    /// What to say.
    pub content: Content,
    /// The event that the message tells of, for drivers that pass events on. A driver that speaks to people takes `content` alone.
    pub raw_event: RawEvent<'a>,
    /// Which delivery this is; its `provider_key` is the same on every attempt.
    pub key: DeliveryKey,
    /// The medium.
    pub channel: &'a str,
    /// The address.
    pub target: &'a str,
    /// Which attempt of this round, from 1.
    pub attempt: u32,
    /// How long it may take in all.
    pub timeout: Duration,
    /// The W3C `traceparent` to pass on, for drivers that speak HTTP.
    pub traceparent: Option<&'a str>,
}

/// An event as it was enqueued, not rendered: what a program at the other end reads.
#[derive(Debug, Clone, Copy)]
pub struct RawEvent<'a> {
    /// The notification's id.
    pub id: Uuid,
    /// The name of its owner.
    pub tenant: &'a str,
    /// Unique in the tenant.
    pub idempotency_key: &'a str,
    /// Dotted name of what happened.
    pub event_type: &'a str,
    /// The thing it is about.
    pub entity: Option<&'a str>,
    /// The stream it belongs to.
    pub topic: Option<&'a str>,
    /// Version of the payload's shape.
    pub schema_version: Option<i32>,
    /// The event's data, digit for digit as it is stored.
    pub payload: &'a RawValue,
    /// What single channels need, by channel.
    pub data: Option<&'a RawValue>,
    /// The request or trace that caused it.
    pub correlation_id: Option<&'a str>,
    /// When it was enqueued.
    pub created_at: Timestamp,
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
            created_at: note.created_at,
        }
    }
}

/// A send under way.
pub type Sending<'a> = Pin<Box<dyn Future<Output = Report> + Send + 'a>>;

/// Code that talks to one kind of provider. It returns what happened, never an error to be guessed at.
pub trait Driver: Send + Sync {
    /// Sends, once.
    fn send<'a>(&'a self, message: Message<'a>) -> Sending<'a>;

    /// Whether each host among its receivers is held and paused on its own. By default a receiver's answer concerns the
    /// whole lane.
    fn isolates_hosts(&self) -> bool {
        false
    }

    /// The host that an address leads to, name and port; none when there is none. Asked where
    /// [`Driver::isolates_hosts`].
    fn host_of(&self, _target: &str) -> Option<String> {
        None
    }
}

/// What a driver is made of.
pub struct Parts<'a> {
    /// The provider's settings.
    pub settings: &'a Value,
    /// Its secrets, opened.
    pub secrets: &'a Secrets,
    /// Its guarantee.
    pub guarantee: Guarantee,
    /// The way out.
    pub egress: &'a Egress,
    /// On what the capture driver fails, from the environment.
    pub capture_fail_on: &'a FailOn,
}

/// Makes the driver of a stored provider.
///
/// # Errors
/// As [`Kind::build`]; or the driver is not known.
pub fn of_provider(
    provider: &Provider,
    secrets: &Secrets,
    egress: &Egress,
    capture_fail_on: &FailOn,
) -> Result<Box<dyn Driver>, String> {
    let (settings, guarantee) = (&provider.settings, provider.guarantee);
    kind(&provider.driver)?.build(&Parts { settings, secrets, guarantee, egress, capture_fail_on })
}

/// Reads a driver's settings into its own struct; an error names the setting.
fn settings<T: serde::de::DeserializeOwned>(value: &Value) -> Result<T, String> {
    serde_path_to_error::deserialize(value).map_err(|problem| {
        // `u64` means nothing to an operator.
        let words = problem.inner().to_string().replace("expected u64", "expected a whole number, 0 or more");
        match problem.path().to_string().as_str() {
            "." => format!("settings: {words}"),
            path => format!("settings.{path}: {words}"),
        }
    })
}
