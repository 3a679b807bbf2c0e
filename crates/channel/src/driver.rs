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

use serde_json::Value;

pub use capture::{FailOn, Mode};
pub use host::host_of;
pub use kind::{
    Destination, KeyWindow, Kind, LocalSetting, NewSecret, Occasion, ReadyMade, destination, key_window, kind, kinds, ready_made,
};
pub use webhook::sign;

use crate::egress::Egress;
use crate::model::{DeliveryKey, Guarantee, Provider, Report, StoredNotification};
use crate::secret::Secrets;

/// One message to one address.
#[derive(Debug, Clone, Copy)]
pub struct Message<'a> {
    /// What to say.
    pub note: &'a StoredNotification,
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
pub fn of_provider(provider: &Provider, secrets: &Secrets, egress: &Egress, capture_fail_on: &FailOn) -> Result<Box<dyn Driver>, String> {
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
