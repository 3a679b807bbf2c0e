//! Users and members of lists, as the expansion sees them, and the rules for their addresses and preferences.

use std::borrow::Cow;
use std::collections::BTreeMap;

use postcommit::Recipient;
use serde_json::Value;

use super::QuietHours;

/// The kinds of address that a user or a list may have. They are the names of addresses in `recipients`.
pub const ADDRESS_KINDS: [&str; 7] = ["email", "phone", "slack", "teams", "webhook", "push", "web_push"];

/// The name that means every event type or every channel, in preferences and suppressions.
pub const ANY: &str = "*";

/// The data of a user that the expansion reads. A user without a profile may have preferences and an inbox.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct KnownUser {
    /// The profile of the user. `None` if the application never created the user.
    pub profile: Option<Profile>,
    /// One address per kind: of the addresses that are not disabled, the one with the lowest position.
    pub addresses: BTreeMap<String, String>,
    /// All preferences of the user.
    pub preferences: Vec<Preference>,
}

/// The fields of a user that templates may read.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Profile {
    /// The display name.
    pub name: Option<String>,
    /// A language tag such as `pt-BR`.
    pub language: Option<String>,
    /// A name of the IANA time zone database such as `Asia/Kolkata`.
    pub time_zone: Option<String>,
    /// The hours in which the user receives no messages.
    pub quiet_hours: Option<QuietHours>,
    /// Additional fields, a JSON object.
    pub data: Value,
}

/// Whether a user wants messages of an event type on a channel. [`ANY`] means every event type or channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preference {
    /// The event type that the preference is about, or [`ANY`].
    pub event_type: String,
    /// The channel that the preference is about, or [`ANY`].
    pub channel: String,
    /// Whether such messages are sent.
    pub allowed: bool,
}

impl KnownUser {
    /// Whether the user accepts messages of this event type on this channel. The most specific preference decides: for
    /// the event type and the channel, then for the event type, then for the channel, then for all. Without a
    /// preference, messages are accepted.
    #[must_use]
    pub fn allows(&self, event_type: &str, channel: &str) -> bool {
        let specific = |preference: &&Preference| (preference.event_type != ANY, preference.channel != ANY);
        let is_about = |preference: &&Preference| {
            [event_type, ANY].contains(&preference.event_type.as_str())
                && [channel, ANY].contains(&preference.channel.as_str())
        };
        self.preferences.iter().filter(is_about).max_by_key(specific).is_none_or(|preference| preference.allowed)
    }
}

/// A member of a list: a user, another list, or an address.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListMember {
    /// `user`, `list`, or one of [`ADDRESS_KINDS`].
    pub kind: String,
    /// The user's id, the list's name or the address.
    pub member: String,
    /// The channel of an address. Empty means the default channel of its kind. Always empty for users and lists.
    pub channel: String,
}

impl ListMember {
    /// The member as a recipient of a notification.
    ///
    /// # Errors
    /// A text that names the field and the allowed kinds, if the kind is unknown.
    pub fn recipient(&self) -> Result<Recipient, String> {
        match self.kind.as_str() {
            "user" => Ok(Recipient::user(self.member.as_str())),
            "list" => Ok(Recipient::list(self.member.as_str())),
            kind => address(kind, &self.member).ok_or_else(|| {
                format!("kind: is {kind:?}; allowed are user, list and, for an address, {}", ADDRESS_KINDS.join(", "))
            }),
        }
    }
}

/// The address as a recipient, if the kind is one of [`ADDRESS_KINDS`].
#[must_use]
pub fn address(kind: &str, value: &str) -> Option<Recipient> {
    let value = value.to_owned();
    match kind {
        "email" => Some(Recipient::Email(value)),
        "phone" => Some(Recipient::Phone(value)),
        "slack" => Some(Recipient::Slack(value)),
        "teams" => Some(Recipient::Teams(value)),
        "webhook" => Some(Recipient::Webhook(value)),
        "push" => Some(Recipient::Push(value)),
        "web_push" => Some(Recipient::WebPush(value)),
        _ => None,
    }
}

/// The channels on which a kind of address can be reached. The first one is the default.
#[must_use]
pub fn channels_of_kind(kind: &str) -> &'static [&'static str] {
    match kind {
        "email" => &["email"],
        "phone" => &["sms", "whatsapp", "voice"],
        "slack" => &["slack"],
        "teams" => &["teams"],
        "webhook" => &["webhook"],
        "push" => &["push"],
        "web_push" => &["web_push"],
        _ => &[],
    }
}

/// The kind of address that a channel uses. `None` for a channel that Postcommit does not know.
#[must_use]
pub fn kind_of_channel(channel: &str) -> Option<&'static str> {
    ADDRESS_KINDS.into_iter().find(|kind| channels_of_kind(kind).contains(&channel))
}

/// The form in which two addresses are compared. Case makes no difference in a mail address. Every other address is
/// compared byte for byte. Messages are always sent to the address as it was given.
#[must_use]
pub fn comparable(address: &str) -> Cow<'_, str> {
    if address.contains('@') && !address.contains("://") && address.chars().any(char::is_uppercase) {
        address.to_lowercase().into()
    } else {
        address.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn preference(event_type: &str, channel: &str, allowed: bool) -> Preference {
        Preference { event_type: event_type.into(), channel: channel.into(), allowed }
    }

    #[test]
    fn b10_the_most_specific_preference_decides() {
        let mut user = KnownUser::default();
        assert!(user.allows("order.paid", "email"), "without a preference");
        user.preferences.push(preference("*", "*", false));
        assert!(!user.allows("order.paid", "email"));
        user.preferences.push(preference("*", "email", true));
        assert!(user.allows("order.paid", "email") && !user.allows("order.paid", "sms"));
        user.preferences.push(preference("order.paid", "*", false));
        assert!(!user.allows("order.paid", "email") && user.allows("order.sent", "email"));
        user.preferences.push(preference("order.paid", "email", true));
        user.preferences.reverse();
        assert!(user.allows("order.paid", "email") && !user.allows("order.paid", "sms"));
    }

    #[test]
    fn mail_addresses_are_compared_without_case() {
        assert_eq!(comparable("Ada@Example.COM"), "ada@example.com");
        for same in ["ada@example.com", "+919876543210", "https://hooks.example.com/T1/Ab@c"] {
            assert_eq!(comparable(same), same);
        }
    }

    #[test]
    fn every_kind_has_a_channel_and_is_found_by_it() {
        for kind in ADDRESS_KINDS {
            assert!(address(kind, "x").is_some_and(|recipient| recipient.kind() == kind));
            for channel in channels_of_kind(kind) {
                assert_eq!(kind_of_channel(channel), Some(kind));
            }
        }
        assert_eq!((kind_of_channel("in_app"), kind_of_channel("pager")), (None, None));
    }
}
