use std::fmt;
use std::str::FromStr;

use postcommit::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Target;

/// Names a delivery in the store. The tenant leads every key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeliveryKey {
    /// Its owner.
    pub tenant: i32,
    /// The notification it belongs to.
    pub notification: Uuid,
    /// Which of its targets; 0 is the notification itself, not yet expanded.
    pub n: i32,
}

impl DeliveryKey {
    /// The id that people see: the key without the tenant.
    #[must_use]
    pub fn id(&self) -> DeliveryId {
        DeliveryId { notification: self.notification, n: self.n }
    }

    /// The key a provider sees, the same on every attempt. No `.`: signed webhooks separate by it.
    #[must_use]
    pub fn provider_key(&self) -> String {
        format!("{}_{}", self.notification, self.n)
    }
}

/// A delivery as people write it: `{notification}.{n}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeliveryId {
    /// The notification it belongs to.
    pub notification: Uuid,
    /// Which of its targets.
    pub n: i32,
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
            format!("{text:?} is not a delivery id; it looks like 0199a5c2-6a3e-7c1d-9a31-0f5f6c1b2d3e.1")
        })
    }
}

/// What a delivery's own row says, in the queue and in the ledger: nothing of it is worked out again from the notification.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// The medium.
    pub channel: Option<String>,
    /// The address.
    pub target: Option<String>,
    /// The provider that the recipient named.
    pub provider: Option<String>,
    /// What it is rendered by; none: the notification's own title and body.
    pub template: Option<String>,
    /// Which version of the template.
    pub template_version: Option<i32>,
    /// The language it is rendered in.
    pub language: Option<String>,
}

impl Facts {
    /// A target on a channel, and nothing else.
    #[must_use]
    pub fn new(channel: impl Into<String>, target: impl Into<String>) -> Self {
        Self { channel: Some(channel.into()), target: Some(target.into()), ..Self::default() }
    }

    /// The medium; empty before expansion.
    #[must_use]
    pub fn channel(&self) -> &str {
        self.channel.as_deref().unwrap_or_default()
    }

    /// The address; empty before expansion.
    #[must_use]
    pub fn target(&self) -> &str {
        self.target.as_deref().unwrap_or_default()
    }
}

/// A live delivery as a claim hands it out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// Which one.
    pub key: DeliveryKey,
    /// The number of the queue row it is held by: its own, or 0 when it is sent from its notification's row.
    pub row: i32,
    /// Its provider's lane; 0 when not routed.
    pub lane: i32,
    /// 0 to 9, 9 first.
    pub priority: i16,
    /// Since when it waits.
    pub due_at: Timestamp,
    /// When this lease began, by the database's clock.
    pub leased_at: Timestamp,
    /// Attempts made in this round, not counting the one about to start.
    pub attempts: u32,
    /// Leases that ran out in this round, the present takeover included.
    pub losses: u32,
    /// Attempts ever recorded.
    pub seq: u32,
    /// When the lease began that this claim found run out; none when it was free.
    pub lost_since: Option<Timestamp>,
    /// An at_most_once send had been announced under an earlier lease.
    pub intent_stands: bool,
    /// Some attempt of this round was unclear: it may have arrived.
    pub unclear: bool,
    /// When the provider may first have seen the key.
    pub first_try_at: Option<Timestamp>,
    /// What it says of itself; nothing before expansion.
    pub facts: Facts,
    /// The random token that fences every later write.
    pub token: Uuid,
}

impl Delivery {
    /// The notification's row as its only target, without a row of the target's own. Expansion would have given the
    /// target the same number.
    #[must_use]
    pub fn of_only_target(self, lane: i32, target: Target) -> Self {
        let key = DeliveryKey { n: 1, ..self.key };
        Self { key, lane, facts: target.facts, ..self }
    }
}

/// Where a delivery can stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the names are the glossary's")]
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

    /// Every state, the least finished first. A notification has the least finished state of its deliveries.
    pub const LEAST_FINISHED_FIRST: [Self; 10] = {
        let ([pending, sending, retrying], ended) = (Self::LIVE, Self::ENDED);
        let [sent, delivered, parked, discarded, cancelled, expired, skipped] = ended;
        [sending, retrying, pending, parked, sent, delivered, expired, cancelled, discarded, skipped]
    };

    /// Its name, as stored.
    #[must_use]
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

/// Why a delivery is parked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The provider rejected it.
    Rejected,
    /// The policy's attempts are used up.
    Exhausted,
    /// It may have arrived; only a receipt or a person can tell.
    OutcomeUnknown,
    /// Our account, settings or data are at fault.
    Config,
}

impl Reason {
    /// Every reason.
    pub const ALL: [Self; 4] = [Self::Rejected, Self::Exhausted, Self::OutcomeUnknown, Self::Config];

    /// Its name, as stored.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Rejected => "rejected",
            Self::Exhausted => "exhausted",
            Self::OutcomeUnknown => "outcome_unknown",
            Self::Config => "config",
        }
    }
}

/// The states a delivery can end in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishedState {
    /// The provider took it.
    Sent,
    /// It has arrived.
    Delivered,
    /// Waiting for a person.
    Parked(Reason),
    /// Taken back in time.
    Cancelled,
    /// Too late to send.
    Expired,
    /// Never to be sent: opted out, no address, duplicate.
    Skipped,
}

impl FinishedState {
    /// Its name, as stored.
    #[must_use]
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

    /// The reason of a parked one.
    #[must_use]
    pub fn reason(self) -> Option<&'static str> {
        match self {
            Self::Parked(reason) => Some(reason.name()),
            _ => None,
        }
    }
}

/// What settle does with a queue row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// Moves it to the ledger.
    Ended(FinishedState),
    /// Leaves it in the queue, due again then; counted against the policy or not.
    Again {
        /// When.
        at: Timestamp,
        /// Whether the policy counts this attempt.
        counted: bool,
    },
    /// Gives it back as it was: it was claimed but never begun.
    Returned,
}
