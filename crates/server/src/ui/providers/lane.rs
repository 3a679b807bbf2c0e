//! The state of a provider's lane as a shape, a word and a sentence.

use postcommit::Timestamp;
use postcommit_channel::clock;
use postcommit_channel::model::Provider;
use postcommit_engine::store::{Depth, Lacking, UnopenedLane};
use serde::Serialize;

use crate::ui::words::{relative, sentence_case, waits_in_words};

/// The state of a lane.
#[derive(Serialize)]
pub struct LaneState {
    pub word: &'static str,
    tint: &'static str,
    shape: &'static str,
    /// Why the lane is not open, and by whom it was closed.
    pub reason: String,
    /// What a person can do.
    advice: &'static str,
    /// Whether a person can resume the lane.
    pub may_resume: bool,
    /// Whether a person can pause the lane.
    pub may_pause: bool,
}

impl LaneState {
    /// The state of the provider's lane. `unopened` says why no process can serve it.
    pub fn of(provider: &Provider, unopened: Option<&UnopenedLane>, now: Timestamp) -> Self {
        let held = provider.held_until.filter(|until| *until > now);
        let open = Self {
            word: "Open",
            tint: "good",
            shape: "check",
            reason: String::new(),
            advice: "",
            may_resume: false,
            may_pause: true,
        };
        if let Some(reason) = &provider.paused {
            let advice = "Mend the cause, then resume it; nothing is lost.";
            let reason = format!("Paused: {}", reason.trim_end_matches('.'));
            return Self {
                may_resume: true,
                may_pause: false,
                ..open.closed("Paused", "bad", "alert", reason, advice)
            };
        }
        if provider.suspended {
            let reason = "Its tenant is suspended".into();
            return open.closed("Suspended", "bad", "alert", reason, "Resume the tenant to send again.");
        }
        if let Some(not) = unopened {
            let reason = sentence_case(not.cause().trim_end_matches('.'));
            let advice = match not.lacking {
                Lacking::Secrets => "Set its secrets again, or give the server its key.",
                Lacking::Driver => "Run servers that know its driver and its settings, or change the provider.",
            };
            return open.closed("Closed", "bad", "alert", reason, advice);
        }
        if let Some(until) = held {
            let when = relative(until.as_micros() - clock::now().as_micros());
            let reason = match &provider.hold_reason {
                Some(why) => format!("Its breaker tripped: {}. It is tried again {when}", why.trim_end_matches('.')),
                None => format!("The service asked to wait. It goes on {when}"),
            };
            let advice = "It goes on by itself; resume it to try now.";
            return Self { may_resume: true, ..open.closed("Held", "warn", "clock", reason, advice) };
        }
        if provider.is_tripped() {
            let why = provider.hold_reason.as_deref().unwrap_or("the service failed").trim_end_matches('.');
            let reason = format!("Its breaker probes with one send at a time, after: {why}");
            let advice = "The first success opens it.";
            return Self { may_resume: true, ..open.closed("Probing", "warn", "again", reason, advice) };
        }
        open
    }

    fn closed(
        self,
        word: &'static str,
        tint: &'static str,
        shape: &'static str,
        reason: String,
        advice: &'static str,
    ) -> Self {
        Self { word, tint, shape, reason, advice, ..self }
    }

    /// The state in a sentence, and what to do.
    pub fn sentence(&self, depth: Option<&Depth>) -> String {
        let waits = waits_in_words(depth);
        if self.reason.is_empty() {
            return format!("It is open. {waits}");
        }
        format!("{}. {waits} {}", self.reason, self.advice)
    }
}
