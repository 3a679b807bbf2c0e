use std::time::Duration;

use crate::render::Content;

/// What the channel saw. What it means is decided by [`super::judge`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The provider took responsibility.
    Sent,
    /// It has arrived: the channel is itself the destination, or confirmed it immediately.
    Delivered,
    /// Certainly not done this time; may be tried again.
    Deferred {
        /// Short and stable, e.g. `http_429`.
        code: String,
        /// How long the provider asked us to wait. Holds the whole lane.
        after: Option<Duration>,
    },
    /// Certainly not done, and trying again would not help.
    Rejected {
        /// Short and stable, e.g. `http_410`.
        code: String,
        /// What stood in the way.
        because: Because,
    },
    /// It may have been done: bytes had left us and no usable answer came.
    Unclear {
        /// Short and stable, e.g. `timeout`.
        code: String,
    },
}

/// Why a provider rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Because {
    /// This message or this recipient: others may be accepted.
    Refused,
    /// Our account or settings: every message of this lane would be rejected, so the lane is paused.
    Config,
    /// An answer that the driver does not know. Tried again as often as the policy says.
    Unrecognised,
}

impl Outcome {
    /// Its name in the attempt log.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::Delivered => "delivered",
            Self::Deferred { .. } => "deferred",
            Self::Rejected { .. } => "rejected",
            Self::Unclear { .. } => "unclear",
        }
    }

    /// The code, where there is one.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Sent | Self::Delivered => None,
            Self::Deferred { code, .. } | Self::Rejected { code, .. } | Self::Unclear { code } => Some(code),
        }
    }

    /// A deferral without a wait that the provider asked for.
    pub fn deferred(code: impl Into<String>) -> Self {
        Self::Deferred { code: code.into(), after: None }
    }

    /// A rejection of this message or recipient.
    pub fn refused(code: impl Into<String>) -> Self {
        Self::Rejected { code: code.into(), because: Because::Refused }
    }

    /// A rejection that concerns the whole lane.
    pub fn config(code: impl Into<String>) -> Self {
        Self::Rejected { code: code.into(), because: Because::Config }
    }

    /// An outcome that cannot be known.
    pub fn unclear(code: impl Into<String>) -> Self {
        Self::Unclear { code: code.into() }
    }
}

/// What a driver hands back: the outcome, and what an operator may want to see of it.
#[derive(Debug, Clone)]
pub struct Report {
    /// What the channel saw.
    pub outcome: Outcome,
    /// What backs it.
    pub evidence: Evidence,
    /// The content for a user's inbox. The transaction that settles the delivery writes it, so it is written exactly once.
    pub inbox: Option<Box<Content>>,
}

/// What backs an outcome. Holds no address, secret or URL.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Evidence {
    /// A sentence for people.
    pub detail: Option<String>,
    /// The provider's own id of the message.
    pub provider_ref: Option<String>,
    /// The beginning of the answer, redacted.
    pub excerpt: Option<String>,
}

impl From<Outcome> for Report {
    fn from(outcome: Outcome) -> Self {
        Self { outcome, evidence: Evidence::default(), inbox: None }
    }
}

impl Report {
    /// Adds a sentence for people.
    #[must_use]
    pub fn because(mut self, detail: impl Into<String>) -> Self {
        self.evidence.detail = Some(detail.into());
        self
    }
}
