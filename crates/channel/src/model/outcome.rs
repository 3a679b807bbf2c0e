use std::sync::Arc;
use std::time::Duration;

use super::ErrorClass;
use crate::render::Content;

/// The result of a send as the driver saw it. [`super::judge`] decides what follows from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The provider accepted the message.
    Sent,
    /// The message has arrived. Either the channel is itself the destination, or it confirmed the arrival immediately.
    Delivered,
    /// The message was certainly not sent. Another attempt is allowed.
    Deferred {
        /// A short, stable code, such as `http_429`.
        code: String,
    },
    /// The message was certainly not sent, and another attempt would not help.
    Rejected {
        /// A short, stable code, such as `http_410`.
        code: String,
        /// The reason of the rejection.
        because: Because,
    },
    /// The message may have been sent: bytes were written, and no usable answer came.
    Unclear {
        /// A short, stable code, such as `timeout`.
        code: String,
        /// Whether an answer came that the driver does not know. The policy's `unknown_retries` limits further attempts.
        is_unknown: bool,
    },
}

/// The reason why a message was rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Because {
    /// The provider refused this message or this recipient. It may accept others.
    Refused,
    /// Our account or settings are wrong. Every message of this lane would be rejected, so the lane is paused.
    Config,
    /// The driver does not know this answer. The policy's `unknown_retries` limits further attempts.
    Unrecognised,
}

impl Outcome {
    /// The name of the outcome in the attempt log.
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

    /// The code of the outcome, if it has one.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Sent | Self::Delivered => None,
            Self::Deferred { code } | Self::Rejected { code, .. } | Self::Unclear { code, .. } => Some(code),
        }
    }

    /// A deferred outcome with this code.
    pub fn deferred(code: impl Into<String>) -> Self {
        Self::Deferred { code: code.into() }
    }

    /// A rejection of this message or recipient.
    pub fn refused(code: impl Into<String>) -> Self {
        Self::Rejected { code: code.into(), because: Because::Refused }
    }

    /// A rejection that affects the whole lane.
    pub fn config(code: impl Into<String>) -> Self {
        Self::Rejected { code: code.into(), because: Because::Config }
    }

    /// An unclear outcome with this code.
    pub fn unclear(code: impl Into<String>) -> Self {
        Self::Unclear { code: code.into(), is_unknown: false }
    }

    /// An unclear outcome after an answer that the driver does not know.
    pub fn unknown(code: impl Into<String>) -> Self {
        Self::Unclear { code: code.into(), is_unknown: true }
    }
}

/// The result of a driver's send: the outcome and further information for the operator.
#[derive(Debug, Clone)]
pub struct Report {
    /// The outcome that the driver saw.
    pub outcome: Outcome,
    /// The class of the failure, if the driver knows a better class than the one that follows from the code.
    pub class: Option<ErrorClass>,
    /// Whether the message was only recorded and not sent, by a driver for development.
    pub captured: bool,
    /// The wait that the provider asked for, with any outcome. If another attempt is allowed, the wait applies to the
    /// delivery and holds its host or lane.
    pub after: Option<Duration>,
    /// Whether the answer concerns this recipient alone: only this delivery waits as the provider asked, and a failure does
    /// not count for the breaker. If false, its host or lane is held.
    pub only_delivery: bool,
    /// The reason why nothing may be sent to this address any more: the provider says that the address is dead, or that
    /// the recipient has opted out. It counts only if the recipient was refused (`Because::Refused`).
    pub suppress: Option<Arc<str>>,
    /// The evidence for the outcome.
    pub evidence: Evidence,
    /// The content for a user's inbox. The transaction that settles the delivery writes it, so it is written exactly
    /// once.
    pub inbox: Option<Box<Content>>,
}

/// The evidence for an outcome. It holds no address, secret or URL.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Evidence {
    /// A sentence for the operator.
    pub detail: Option<String>,
    /// The provider's own id of the message or of the request.
    pub provider_ref: Option<String>,
    /// The beginning of the provider's answer, redacted.
    pub excerpt: Option<String>,
}

impl From<Outcome> for Report {
    fn from(outcome: Outcome) -> Self {
        Self {
            outcome,
            class: None,
            captured: false,
            after: None,
            only_delivery: false,
            suppress: None,
            evidence: Evidence::default(),
            inbox: None,
        }
    }
}

impl Report {
    /// Adds a sentence for the operator.
    #[must_use]
    pub fn because(mut self, detail: impl Into<String>) -> Self {
        self.evidence.detail = Some(detail.into());
        self
    }

    /// The class of the failure, or `None` if the send succeeded.
    #[must_use]
    pub fn class(&self) -> Option<ErrorClass> {
        self.outcome.code().and_then(|code| self.class.or_else(|| ErrorClass::of_code(code)))
    }
}
