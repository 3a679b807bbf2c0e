//! The glossary: every state, every reason why a delivery is parked, and every code of a skipped delivery, in plain words.

use axum::extract::State;
use minijinja::context;
use postcommit_channel::model::{DeliveryState, Reason};
use postcommit_engine::store::DeliveryRow;
use serde::Serialize;

use super::frame::Visitor;
use super::words::{sentence_case, shown};
use crate::app::AppState;
use crate::problem::Answer;

/// A word of the glossary. Its name is the anchor of its entry.
#[derive(Serialize)]
struct Entry {
    name: &'static str,
    words: String,
    says: &'static str,
    advice: &'static str,
}

impl Entry {
    fn new(name: &'static str, (says, advice): (&'static str, &'static str)) -> Self {
        Self { name, words: sentence_case(name), says, advice }
    }
}

/// Five kinds of systems whose names of the states are compared, as in `docs/names.md`.
const OTHERS: [&str; 5] =
    ["A booking marketplace", "A team hub", "A hotel platform", "A home-alarm system", "An industrial control system"];

/// The states of a row, and the names that the other systems have for them.
const NAMES: [(&[DeliveryState], [&str; 5]); 4] = {
    use DeliveryState::{Cancelled, Delivered, Discarded, Expired, Parked, Pending, Retrying, Sending, Sent, Skipped};
    [
        (
            &[Pending, Sending, Retrying],
            ["PENDING", "pending, sent-will-retry", "Pending", "pending, sending", "Pending, Retrying"],
        ),
        (&[Sent, Delivered], ["SENT", "sent, delivered", "Sent, Published, Completed", "sent", "Delivered"]),
        (&[Parked], ["FAILED", "failed", "Failed", "failed, dead", "Parked"]),
        (&[Discarded, Cancelled, Expired, Skipped], ["–", "expired", "Cancelled", "–", "Discarded"]),
    ]
};

pub async fn page(State(app): State<AppState>, visitor: Visitor) -> Answer {
    let states = DeliveryState::ALL.map(|state| Entry::new(state.name(), of_state(state)));
    let reasons = Reason::ALL.map(|reason| Entry::new(reason.name(), of_reason(reason)));
    let codes = SKIPPED.map(|(code, says, advice)| Entry::new(code, (says, advice)));
    let names = NAMES.map(|(states, names)| (states.iter().map(|state| state.name()).collect::<Vec<_>>(), names));
    let content = context! {
        states => shown(states),
        reasons => shown(reasons),
        codes => shown(codes),
        others => OTHERS,
        names => shown(names),
    };
    visitor.page(&app, "glossary.html", "What the states mean", content).await
}

/// The anchor of the entry that explains the state of a delivery best.
pub fn entry_of(row: &DeliveryRow) -> &str {
    let reason = row.reason.as_deref().filter(|reason| Reason::ALL.iter().any(|known| known.name() == *reason));
    let code = row.error_code.as_deref().filter(|code| SKIPPED.iter().any(|(known, ..)| known == code));
    match row.state.as_str() {
        "parked" => reason.unwrap_or("parked"),
        "skipped" => code.unwrap_or("skipped"),
        state => state,
    }
}

/// What a state means, and what a person can do.
fn of_state(state: DeliveryState) -> (&'static str, &'static str) {
    match state {
        DeliveryState::Pending => (
            "It is accepted and not sent yet. Nothing is lost.",
            "Nothing, usually. Its page says what it waits for: its time, a paused provider, a rate limit, or a process that delivers. \
             It can be cancelled.",
        ),
        DeliveryState::Sending => (
            "A worker is sending it now. If the worker dies, another one takes over when the lease ends.",
            "Wait. It lasts for seconds.",
        ),
        DeliveryState::Retrying => (
            "An attempt failed in a way that may pass. The next attempt has a time.",
            "Wait: the next attempt comes by itself. It can be cancelled.",
        ),
        DeliveryState::Sent => (
            "The provider accepted it. No receipt says yet whether it arrived, and many providers never send one.",
            "Nothing. If you know that it arrived, mark it as delivered. If the recipient misses it, send it again.",
        ),
        DeliveryState::Delivered => {
            ("It arrived: a receipt or a person says so.", "Nothing. It can be sent again if it is about an entity.")
        }
        DeliveryState::Parked => (
            "It is not tried any more and waits for a person. Its reason says why.",
            "Mend the cause, then retry it; or discard it. Ask first whether it arrived if the page says that it may have.",
        ),
        DeliveryState::Discarded => (
            "A person decided that a parked delivery is not sent again. Its page says if an earlier attempt may have arrived.",
            "Nothing. It cannot be retried; send a new one.",
        ),
        DeliveryState::Cancelled => {
            ("It was cancelled before it was sent, by a person or by the application.", "Nothing.")
        }
        DeliveryState::Expired => (
            "It could not be sent before its expiry, and is not sent any more.",
            "Look at what it waited for. The application sets the expiry.",
        ),
        DeliveryState::Skipped => (
            "It was left out on purpose when the notification was expanded. Its code says why.",
            "Look up the code below.",
        ),
    }
}

/// What a reason means, and what a person can do.
fn of_reason(reason: Reason) -> (&'static str, &'static str) {
    match reason {
        Reason::Rejected => (
            "The provider refused this message for good. Another attempt would be refused too.",
            "Correct the address, the content or the template, then retry it; or discard it.",
        ),
        Reason::Exhausted => (
            "All attempts of the policy failed. If one of them was unclear, the message may have arrived.",
            "Retry it when the provider works again. If it may have arrived, ask the provider or the recipient first.",
        ),
        Reason::OutcomeUnknown => (
            "It may have arrived: the connection ended before the provider answered, and another attempt could send it twice.",
            "Ask the provider or the recipient. Mark it as delivered if it arrived; otherwise retry it and tick the box.",
        ),
        Reason::Config => (
            "It cannot be sent as things are set up: a provider, its account, a template or a list is missing or wrong.",
            "Correct that, then retry it. A resumed provider does not retry it by itself.",
        ),
    }
}

/// The codes of skipped deliveries: what each means, and what a person can do.
const SKIPPED: [(&str, &str, &str); 11] = [
    (
        "duplicate",
        "The same message went to the address already, or its template is sent once per entity and another delivery was first.",
        "Nothing. Send again sends it nevertheless.",
    ),
    (
        "opted_out",
        "The user does not want this event type on this channel.",
        "Nothing. A mandatory event type is sent all the same.",
    ),
    (
        "suppressed",
        "Nothing is sent to this address: it bounced, somebody complained, or a person suppressed it.",
        "Remove the suppression if the address works again, then send again.",
    ),
    (
        "quiet_hours",
        "It fell into the quiet hours of the user, and its event type is skipped then.",
        "Nothing. The event type's rule can be to delay instead.",
    ),
    (
        "throttled",
        "The recipient had as many messages of this template as its throttle allows.",
        "Nothing. The template's throttle can be raised, or collect the rest in a digest.",
    ),
    ("digested", "It is an item of a digest, one message for many events.", "Nothing. Its page names the digest."),
    ("no_address", "The user has no address on this channel.", "Add the address to the user, then send again."),
    ("bad_address", "The address is not valid.", "Correct the address, then enqueue it under a new key."),
    (
        "unknown_user",
        "The recipient names a user that is not known here. Other recipients were reached.",
        "Create the user, then send again to that user.",
    ),
    (
        "not_on_channels",
        "The recipient is not reached on any channel that the notification names.",
        "Name the channel of the recipient too, under a new key.",
    ),
    (
        "template_not_found",
        "The event type has no active template for this kind of recipient.",
        "Create or activate a template for the channel.",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// The source code of the modules that decide which deliveries are skipped.
    const EXPANSION: [&str; 4] = [
        include_str!("../../../channel/src/model/expand.rs"),
        include_str!("../../../channel/src/model/fan_out.rs"),
        include_str!("../../../channel/src/model/fan_out/fan.rs"),
        include_str!("../../../channel/src/model/fan_out/unreached.rs"),
    ];

    #[test]
    fn each_state_has_its_names_and_each_code_of_the_expansion_its_entry() {
        for state in DeliveryState::ALL {
            assert_eq!(NAMES.iter().filter(|(states, _)| states.contains(&state)).count(), 1, "{}", state.name());
        }
        let known = |code: &str| SKIPPED.iter().any(|(name, ..)| *name == code);
        let said = EXPANSION.iter().flat_map(|text| text.split("skipped(\"").skip(1));
        let codes: Vec<&str> = said.filter_map(|rest| rest.split('"').next()).collect();
        assert!(codes.len() >= 6, "{codes:?}");
        for code in codes.into_iter().chain([postcommit_channel::model::THROTTLED]) {
            assert!(known(code), "the glossary lacks the code {code}");
        }
    }
}
