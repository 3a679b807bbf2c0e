use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::error::Error;
use crate::{check, limits};

/// A recipient: a user or list that Postcommit knows, or an address.
///
/// In JSON, a recipient is one object: `{"user": id}`, `{"list": name}`, `{"email": a}`, `{"phone": "+…"}`, `{"slack":
/// url}`, `{"teams": url}`, `{"webhook": url}`, `{"push": token}`, `{"web_push": subscription}` or `{"provider": name,
/// "address": a}`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Recipient {
    /// A user, by the application's id of 1 to 255 characters: no control characters, and no `.` or `..` as the whole
    /// id or between slashes. Postcommit looks up addresses and preferences when it expands the notification.
    User(String),
    /// A named list. Postcommit looks up its members when it expands the notification.
    List(String),
    /// A mail address.
    Email(String),
    /// A phone number in E.164: `+` and 7 to 15 digits.
    Phone(String),
    /// A Slack incoming webhook. The URL is a secret.
    Slack(String),
    /// A Teams workflow webhook. The URL is a secret.
    Teams(String),
    /// An http(s) endpoint that receives signed JSON.
    Webhook(String),
    /// The token of an app on a device, as a push service such as FCM gave it out, or a topic of that service.
    Push(String),
    /// The subscription of a browser as JSON text without spaces, as `JSON.stringify` writes it:
    /// `{"endpoint":"https://…","keys":{"p256dh":"…","auth":"…"}}`. It is a secret.
    WebPush(String),
    /// An address that the named provider understands.
    Provider {
        /// The provider's name, as configured.
        provider: String,
        /// An address in the provider's own format.
        address: String,
    },
}

impl Recipient {
    /// A user, by the application's id.
    pub fn user(id: impl Into<String>) -> Self {
        Self::User(id.into())
    }

    /// A named list.
    pub fn list(name: impl Into<String>) -> Self {
        Self::List(name.into())
    }

    /// A mail address.
    pub fn email(address: impl Into<String>) -> Self {
        Self::Email(address.into())
    }

    /// A phone number in E.164.
    pub fn phone(number: impl Into<String>) -> Self {
        Self::Phone(number.into())
    }

    /// An http(s) endpoint.
    pub fn webhook(url: impl Into<String>) -> Self {
        Self::Webhook(url.into())
    }

    /// The token of an app on a device.
    pub fn push(token: impl Into<String>) -> Self {
        Self::Push(token.into())
    }

    /// The subscription of a browser as JSON text.
    pub fn web_push(subscription: impl Into<String>) -> Self {
        Self::WebPush(subscription.into())
    }

    /// An address of the named provider, in the provider's own format.
    pub fn at(provider: impl Into<String>, address: impl Into<String>) -> Self {
        Self::Provider { provider: provider.into(), address: address.into() }
    }

    /// The kind of recipient, as named in JSON.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        self.parts().0
    }

    /// The address, id or name of the recipient.
    #[must_use]
    pub fn value(&self) -> &str {
        self.parts().1
    }

    fn parts(&self) -> (&'static str, &str) {
        match self {
            Self::User(id) => ("user", id),
            Self::List(name) => ("list", name),
            Self::Email(address) => ("email", address),
            Self::Phone(number) => ("phone", number),
            Self::Slack(url) => ("slack", url),
            Self::Teams(url) => ("teams", url),
            Self::Webhook(url) => ("webhook", url),
            Self::Push(token) => ("push", token),
            Self::WebPush(subscription) => ("web_push", subscription),
            Self::Provider { address, .. } => ("address", address),
        }
    }

    /// Reads one entry of `recipients`.
    ///
    /// # Errors
    /// The JSON has none of the allowed forms. The error lists them.
    pub fn from_json(value: &Value) -> Result<Self, String> {
        const SHAPES: &str = concat!(
            r#"a recipient is one of {"user": id}, {"list": name}, {"email": a}, {"phone": "+…"}, "#,
            r#"{"slack": url}, {"teams": url}, {"webhook": url}, {"push": token}, {"web_push": subscription}, "#,
            r#"{"provider": name, "address": a}"#
        );
        let map = value.as_object().ok_or(SHAPES)?;
        if let (Some(provider), Some(address), 2) = (text(map, "provider"), text(map, "address"), map.len()) {
            return Ok(Self::Provider { provider, address });
        }
        let (kind, Some(value), 1) =
            map.iter().next().map_or(("", None, 0), |(k, v)| (k.as_str(), v.as_str(), map.len()))
        else {
            return Err(SHAPES.into());
        };
        let value = value.to_owned();
        Ok(match kind {
            "user" => Self::User(value),
            "list" => Self::List(value),
            "email" => Self::Email(value),
            "phone" => Self::Phone(value),
            "slack" => Self::Slack(value),
            "teams" => Self::Teams(value),
            "webhook" => Self::Webhook(value),
            "push" => Self::Push(value),
            "web_push" => Self::WebPush(value),
            _ => return Err(SHAPES.into()),
        })
    }

    /// Checks whether the address is valid for its kind.
    ///
    /// # Errors
    /// Returns a sentence that says what is wrong and what is allowed.
    pub fn check(&self) -> Result<(), String> {
        let (_, value) = self.parts();
        if value.is_empty() || value.len() > limits::ADDRESS_BYTES {
            return Err(format!("has {} bytes; 1 to {} are allowed", value.len(), limits::ADDRESS_BYTES));
        }
        check::one_line(value)?;
        match self {
            Self::Email(address) => check::email(address),
            Self::Phone(number) => check::phone(number),
            Self::Slack(url) | Self::Teams(url) | Self::Webhook(url) => check::web_url(url),
            Self::Push(token) => check::push(token),
            Self::WebPush(subscription) => check::web_push(subscription),
            Self::Provider { provider, .. } => check::short_name(provider),
            Self::User(id) => check::user_id(id),
            Self::List(_) => Ok(()),
        }
    }

    pub(crate) fn check_at(&self, index: usize) -> Result<(), Error> {
        self.check().map_err(|problem| Error::invalid(format!("recipients[{index}].{}", self.kind()), problem))
    }
}

fn text(map: &Map<String, Value>, name: &str) -> Option<String> {
    map.get(name)?.as_str().map(str::to_owned)
}

impl Serialize for Recipient {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(None)?;
        if let Self::Provider { provider, .. } = self {
            map.serialize_entry("provider", provider)?;
        }
        let (kind, value) = self.parts();
        map.serialize_entry(kind, value)?;
        map.end()
    }
}

impl<'de> Deserialize<'de> for Recipient {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Self::from_json(&Value::deserialize(from)?).map_err(serde::de::Error::custom)
    }
}
