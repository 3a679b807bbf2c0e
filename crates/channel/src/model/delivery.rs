use std::fmt;
use std::str::FromStr;

use postcommit::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Period, QuietWindow, Target};

/// Identifies a delivery in the database. Every key begins with the tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeliveryKey {
    pub tenant: i32,
    pub notification: Uuid,
    /// The number of the delivery within its notification. 0 is the notification's own row before expansion.
    pub n: i32,
}

impl DeliveryKey {
    /// The id that users see: the key without the tenant.
    pub fn id(&self) -> DeliveryId {
        DeliveryId { notification: self.notification, n: self.n }
    }

    /// The idempotency key that the provider sees. It is the same on every attempt. It contains no `.`, because signed
    /// webhooks use `.` as a separator.
    pub fn provider_key(&self) -> String {
        format!("{}_{}", self.notification, self.n)
    }
}

/// The id of a delivery as users see it: `{notification}.{n}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeliveryId {
    pub notification: Uuid,
    /// The number of the delivery within its notification.
    pub n: i32,
}

impl DeliveryId {
    /// Reads the output of [`DeliveryKey::provider_key`], which a provider returns in a callback.
    pub fn of_provider_key(text: &str) -> Option<Self> {
        let (notification, n) = text.split_once('_')?;
        let n = n.parse().ok().filter(|n| *n > 0)?;
        // Only the form with hyphens counts, because `provider_key` writes the UUID in that form.
        (notification.len() == 36).then(|| Some(Self { notification: notification.parse().ok()?, n })).flatten()
    }
}

impl fmt::Display for DeliveryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.notification, self.n)
    }
}

impl FromStr for DeliveryId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed =
            text.rsplit_once('.').and_then(|(id, n)| Some(Self { notification: id.parse().ok()?, n: n.parse().ok()? }));
        parsed.ok_or_else(|| {
            format!("{text:?} is not a delivery id; an example is 0199a5c2-6a3e-7c1d-9a31-0f5f6c1b2d3e.1")
        })
    }
}

/// The columns of a delivery's own row that are fixed at its expansion, in the queue and in the ledger. They are not
/// computed again from the notification.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// The channel of the delivery.
    pub channel: Option<String>,
    /// The address of the receiver.
    pub target: Option<String>,
    /// The provider that the recipient named.
    pub provider: Option<String>,
    /// The template that renders the message. If `None`, the notification's own title and body are used.
    pub template: Option<String>,
    pub template_version: Option<i32>,
    /// The language of the message.
    pub language: Option<String>,
    /// The user whose address this is. `None` for an address without a user, and for a direct message to an inbox,
    /// whose address is the user's id.
    pub user_id: Option<String>,
    /// The fields of the user that the template may read, as they were at expansion: JSON of at most 4 KB.
    pub context: Option<String>,
    /// For a template that is sent once per entity: `{entity}:{event type}:{channel}:{template}`. For a resend by a
    /// template, and for a digest: the idempotency key of its notification, which [`super::StoredNotification::maker`]
    /// recognises.
    pub send_key: Option<String>,
}

impl Facts {
    /// Facts with only a channel and an address.
    pub fn new(channel: impl Into<String>, target: impl Into<String>) -> Self {
        Self { channel: Some(channel.into()), target: Some(target.into()), ..Self::default() }
    }

    /// The fields of the user that a template may read: those of the context, and the id. `None` without a user.
    pub fn user(&self) -> Option<Value> {
        let id = self.user_id.as_deref()?;
        let context = self.context.as_deref().and_then(|context| serde_json::from_str(context).ok());
        let mut user = context.unwrap_or_else(|| json!({}));
        if let Some(fields) = user.as_object_mut() {
            QuietWindow::remove_from(fields);
            Period::remove_from(fields);
            fields.insert("id".into(), id.into());
        }
        Some(user)
    }

    /// The channel, or an empty string before expansion.
    pub fn channel(&self) -> &str {
        self.channel.as_deref().unwrap_or_default()
    }

    /// The address, or an empty string before expansion.
    pub fn target(&self) -> &str {
        self.target.as_deref().unwrap_or_default()
    }
}

/// A live delivery as a claim returns it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    pub key: DeliveryKey,
    /// The number of the queue row that holds the delivery. It is the delivery's own number, or 0 if the delivery is
    /// sent from its notification's row.
    pub row: i32,
    /// The lane of its provider, or 0 if no provider is assigned.
    pub lane: i32,
    /// The priority, 0 to 9. 9 is sent first.
    pub priority: i16,
    /// The time since which the delivery is due.
    pub due_at: Timestamp,
    /// The time at which this lease began, by the database's clock.
    pub leased_at: Timestamp,
    /// The number of earlier attempts in this round.
    pub attempts: u32,
    /// The number of leases that ran out in this round, including the lease that this claim took over.
    pub losses: u32,
    /// The number of recorded attempts in all rounds.
    pub seq: u32,
    /// How often failover moved the delivery to another provider in this round.
    pub moves: u32,
    /// The time at which the lost lease began, if this claim took over a lease that had run out.
    pub lost_since: Option<Timestamp>,
    /// Whether a send with `at_most_once` was announced under an earlier lease and its result was not recorded.
    pub intent_stands: bool,
    /// Whether an attempt of this round was unclear, so that the message may have arrived.
    pub unclear: bool,
    /// The earliest time at which the provider may have seen the idempotency key.
    pub first_try_at: Option<Timestamp>,
    /// The columns of the delivery's row. They are empty before expansion.
    pub facts: Facts,
    /// A random token of this claim. A later write succeeds only if the row still has this token.
    pub token: Uuid,
}

impl Delivery {
    /// Turns the notification's own row into its only delivery, without adding a row for the delivery. The delivery has
    /// number 1, as after an expansion.
    pub fn of_only_target(self, lane: i32, target: Target) -> Self {
        let key = DeliveryKey { n: 1, ..self.key };
        Self { key, lane, facts: target.facts, ..self }
    }

    /// Returns the notification's only delivery in a row of its own, which takes over the lease of the notification's
    /// row.
    pub fn held_for(self, lane: i32, target: Target) -> Self {
        let key = DeliveryKey { n: 1, ..self.key };
        Self {
            key,
            row: 1,
            lane,
            attempts: 0,
            losses: 0,
            seq: 0,
            moves: 0,
            intent_stands: false,
            unclear: false,
            first_try_at: Some(self.leased_at),
            facts: target.facts,
            ..self
        }
    }
}

/// The state of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "docs/names.md explains the states")]
pub enum DeliveryState {
    Pending,
    Sending,
    Retrying,
    Sent,
    Delivered,
    Parked,
    Discarded,
    Cancelled,
    Expired,
    Skipped,
}

impl DeliveryState {
    /// The states of a row in the queue.
    pub const LIVE: [Self; 3] = [Self::Pending, Self::Sending, Self::Retrying];
    /// The states of a row in the ledger.
    pub const ENDED: [Self; 7] =
        [Self::Sent, Self::Delivered, Self::Parked, Self::Discarded, Self::Cancelled, Self::Expired, Self::Skipped];
    /// Every state, in the order of a delivery's life.
    pub const ALL: [Self; 10] = {
        let ([pending, sending, retrying], ended) = (Self::LIVE, Self::ENDED);
        let [sent, delivered, parked, discarded, cancelled, expired, skipped] = ended;
        [pending, sending, retrying, sent, delivered, parked, discarded, cancelled, expired, skipped]
    };

    /// Every state, the least finished first. The state of a notification is the least finished state of its
    /// deliveries.
    pub const LEAST_FINISHED_FIRST: [Self; 10] = {
        let ([pending, sending, retrying], ended) = (Self::LIVE, Self::ENDED);
        let [sent, delivered, parked, discarded, cancelled, expired, skipped] = ended;
        [sending, retrying, pending, parked, sent, delivered, expired, cancelled, discarded, skipped]
    };

    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Sending => "sending",
            Self::Retrying => "retrying",
            Self::Sent => "sent",
            Self::Delivered => "delivered",
            Self::Parked => "parked",
            Self::Discarded => "discarded",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
            Self::Skipped => "skipped",
        }
    }
}

/// The reason why a delivery is parked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The provider rejected the message.
    Rejected,
    /// The policy's attempts are used up.
    Exhausted,
    /// The message may have arrived. Only a receipt or an operator can decide.
    OutcomeUnknown,
    /// Our account, settings or data are wrong.
    Config,
}

impl Reason {
    /// All reasons.
    pub const ALL: [Self; 4] = [Self::Rejected, Self::Exhausted, Self::OutcomeUnknown, Self::Config];

    pub fn name(self) -> &'static str {
        match self {
            Self::Rejected => "rejected",
            Self::Exhausted => "exhausted",
            Self::OutcomeUnknown => "outcome_unknown",
            Self::Config => "config",
        }
    }
}

/// The states in which a delivery can end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishedState {
    /// The provider accepted the message.
    Sent,
    /// The message has arrived.
    Delivered,
    /// The delivery waits for an operator.
    Parked(Reason),
    /// The delivery was cancelled before it was sent.
    Cancelled,
    /// The delivery expired before it was sent.
    Expired,
    /// The delivery is never sent because the recipient opted out, has no address, or is a duplicate.
    Skipped,
}

impl FinishedState {
    pub fn name(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::Delivered => "delivered",
            Self::Parked(_) => "parked",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
            Self::Skipped => "skipped",
        }
    }

    /// The reason if the state is parked.
    pub fn reason(self) -> Option<&'static str> {
        match self {
            Self::Parked(reason) => Some(reason.name()),
            _ => None,
        }
    }
}

/// The action of the settler on a queue row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// Moves the row to the ledger.
    Ended(FinishedState),
    /// Leaves the row in the queue for another attempt.
    Again {
        /// The time at which the next attempt is due.
        at: Timestamp,
        /// Whether this attempt counts towards the policy's maximum.
        counted: bool,
    },
    /// Releases the row unchanged, because its attempt was never started.
    Returned,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_that_a_provider_returns_is_read_back() {
        let key = DeliveryKey { tenant: 3, notification: Uuid::from_u128(7), n: 12 };
        assert_eq!(DeliveryId::of_provider_key(&key.provider_key()), Some(key.id()));
        for other in ["", "_", "_1", "order-1", "00000000-0000-0000-0000-000000000007", &format!("{}_0", Uuid::nil())] {
            assert_eq!(DeliveryId::of_provider_key(other), None, "{other}");
        }
        for wrong in ["_-1", "_1_1", "_99999999999", "_x"] {
            assert_eq!(DeliveryId::of_provider_key(&format!("{}{wrong}", Uuid::nil())), None, "{wrong}");
        }
    }
}
