use postcommit::Timestamp;
use serde::{Deserialize, Serialize};

use super::{DeliveryId, DeliveryState, ErrorClass, FinishedState, Reason};

/// What happened to a message, as its provider reports it after the send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Happened {
    /// The provider accepted the message, or passed it on to the next network.
    Sent,
    /// The message has arrived.
    Delivered,
    /// The message will not arrive. Another message to the same address may arrive.
    Failed,
    /// The message will not arrive, because the address accepts no messages at all.
    Bounced,
    /// The recipient got the message and reported it as unwanted.
    Complained,
}

impl Happened {
    /// Every kind of event.
    pub const ALL: [Self; 5] = [Self::Sent, Self::Delivered, Self::Failed, Self::Bounced, Self::Complained];

    pub fn name(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::Delivered => "delivered",
            Self::Failed => "failed",
            Self::Bounced => "bounced",
            Self::Complained => "complained",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|happened| happened.name() == name)
    }

    /// The reason why nothing may be sent to the address any more. `None` if the event gives no such reason.
    pub fn suppresses(self) -> Option<&'static str> {
        match self {
            Self::Bounced => Some("hard bounce"),
            Self::Complained => Some("complaint"),
            Self::Sent | Self::Delivered | Self::Failed => None,
        }
    }

    /// The class of the error, if the provider's own code does not give a better one.
    pub fn class(self) -> Option<ErrorClass> {
        match self {
            Self::Bounced => Some(ErrorClass::InvalidAddress),
            Self::Failed => Some(ErrorClass::Unknown),
            Self::Sent | Self::Delivered | Self::Complained => None,
        }
    }
}

/// A receipt: one event in a callback of a provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reported {
    /// The provider's id of the event, or a hash of its content if it has none. A repeated event has the same id.
    pub event_id: String,
    /// The delivery, if the provider returned the delivery's key.
    pub delivery: Option<DeliveryId>,
    /// The provider's own id of the message.
    pub provider_ref: Option<String>,
    pub happened: Happened,
    /// The time of the event, by the provider's clock.
    pub at: Option<Timestamp>,
    /// The provider's code of an error.
    pub code: Option<String>,
    pub class: Option<ErrorClass>,
    /// The provider's text, redacted and cut.
    pub detail: Option<String>,
}

/// The state of the delivery that a receipt is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    pub state: DeliveryState,
    /// Whether an attempt was unclear, so that the message may have arrived.
    pub unclear: bool,
    /// Whether the receipt names another message than that of the last attempt, so that it is about an earlier attempt.
    pub is_earlier_message: bool,
    /// Whether any attempt was made.
    pub was_attempted: bool,
}

/// The effect of a receipt on the state of its delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceiptEffect {
    /// The delivery ends in this state.
    Becomes(FinishedState),
    /// The state stays as it is, for this reason.
    Stays(&'static str),
    /// The receipt waits, because its delivery is being sent or will be sent.
    Waits,
}

/// Decides what a receipt does. The state of a delivery only moves forwards: a delivery that has arrived, or that its
/// provider has finally refused, keeps its state, whatever receipts come later.
pub fn receipt_effect(happened: Happened, standing: Standing) -> ReceiptEffect {
    use DeliveryState::{Cancelled, Delivered, Discarded, Expired, Parked, Pending, Retrying, Sending, Sent, Skipped};
    let arrived = ReceiptEffect::Becomes(FinishedState::Delivered);
    let refused = ReceiptEffect::Becomes(FinishedState::Parked(Reason::Rejected));
    match (standing.state, happened) {
        // A message that has arrived is not sent again, even if an operator has just retried its delivery.
        (Pending | Retrying, Happened::Delivered | Happened::Complained) if standing.was_attempted => arrived,
        (Pending | Sending, _) => ReceiptEffect::Waits,
        // No earlier attempt can have arrived, so the receipt is about an attempt that is not settled yet.
        (Retrying, _) if !standing.unclear => ReceiptEffect::Waits,
        (Retrying, Happened::Failed) => ReceiptEffect::Stays("tried_again"),
        (Parked, _) if !standing.unclear => ReceiptEffect::Stays("already_parked"),
        (Delivered, _) => ReceiptEffect::Stays("already_delivered"),
        (Discarded | Cancelled | Expired | Skipped, _) => ReceiptEffect::Stays("already_ended"),
        (Sent, Happened::Sent) => ReceiptEffect::Stays("already_sent"),
        // An operator retried a failed delivery, and the receipt of its first failure comes late.
        (Sent, Happened::Failed | Happened::Bounced) if standing.is_earlier_message => {
            ReceiptEffect::Stays("earlier_attempt")
        }
        (Retrying | Parked, Happened::Sent) => ReceiptEffect::Becomes(FinishedState::Sent),
        // A recipient can only complain about a message that has arrived.
        (Retrying | Parked | Sent, Happened::Delivered | Happened::Complained) => arrived,
        (Retrying | Parked | Sent, Happened::Failed | Happened::Bounced) => refused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use DeliveryState::{Delivered, Parked, Pending, Retrying, Sending, Sent};

    fn effect(state: DeliveryState, unclear: bool, happened: Happened) -> ReceiptEffect {
        receipt_effect(happened, Standing { state, unclear, is_earlier_message: false, was_attempted: unclear })
    }

    #[test]
    fn b5_what_has_arrived_is_not_sent_again_although_it_was_retried() {
        let effect = |state, happened| {
            receipt_effect(happened, Standing { state, unclear: false, is_earlier_message: false, was_attempted: true })
        };
        for state in [Pending, Retrying] {
            for (happened, arrives) in Happened::ALL.into_iter().zip([false, true, false, false, true]) {
                let arrived = ReceiptEffect::Becomes(FinishedState::Delivered);
                let expected = if arrives { arrived } else { ReceiptEffect::Waits };
                assert_eq!(effect(state, happened), expected, "{state:?} {happened:?}");
            }
        }
        assert_eq!(effect(Sending, Happened::Delivered), ReceiptEffect::Waits, "it may be on its way a second time");
    }

    #[test]
    fn b5_a_receipt_moves_a_delivery_forwards_only() {
        let (becomes, stays) = (ReceiptEffect::Becomes, ReceiptEffect::Stays);
        let rejected = FinishedState::Parked(Reason::Rejected);
        for (state, unclear, wanted) in [
            (Pending, false, [ReceiptEffect::Waits; 5]),
            (Sending, true, [ReceiptEffect::Waits; 5]),
            (Retrying, false, [ReceiptEffect::Waits; 5]),
            (
                Retrying,
                true,
                [
                    becomes(FinishedState::Sent),
                    becomes(FinishedState::Delivered),
                    stays("tried_again"),
                    becomes(rejected),
                    becomes(FinishedState::Delivered),
                ],
            ),
            (
                Sent,
                false,
                [
                    stays("already_sent"),
                    becomes(FinishedState::Delivered),
                    becomes(rejected),
                    becomes(rejected),
                    becomes(FinishedState::Delivered),
                ],
            ),
            (
                Parked,
                true,
                [
                    becomes(FinishedState::Sent),
                    becomes(FinishedState::Delivered),
                    becomes(rejected),
                    becomes(rejected),
                    becomes(FinishedState::Delivered),
                ],
            ),
            (Parked, false, [stays("already_parked"); 5]),
            (Delivered, false, [stays("already_delivered"); 5]),
            (DeliveryState::Cancelled, true, [stays("already_ended"); 5]),
            (DeliveryState::Discarded, true, [stays("already_ended"); 5]),
        ] {
            let effects = Happened::ALL.map(|happened| effect(state, unclear, happened));
            assert_eq!(effects, wanted, "{state:?}, unclear: {unclear}");
        }
    }

    #[test]
    fn b5_late_news_of_an_earlier_attempt_does_not_undo_a_later_one() {
        let standing = Standing { state: Sent, unclear: false, is_earlier_message: true, was_attempted: true };
        assert_eq!(receipt_effect(Happened::Bounced, standing), ReceiptEffect::Stays("earlier_attempt"));
        let arrived = ReceiptEffect::Becomes(FinishedState::Delivered);
        assert_eq!(receipt_effect(Happened::Delivered, standing), arrived);
    }
}
