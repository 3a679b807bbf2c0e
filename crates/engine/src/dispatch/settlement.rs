//! Builds the settlement of an attempt from the driver's report and the verdict.

use std::sync::Arc;
use std::time::Duration;

use postcommit::Timestamp;
use postcommit_channel::model::{
    Delivery, Evidence, Finish, FinishedState, InboxMessage, Outcome, Reason, Report, StoredNotification,
};
use postcommit_channel::render::Content;

use super::lanes::Lane;
use super::settler::place_of;
use crate::store::{Attempted, DeadAddress, Lease, Settlement};

/// Codes, details and excerpts of answers are cut to this many characters.
const TEXT_CHARS: usize = 1000;

/// Returns the settlement that the settler writes for an attempt.
pub(super) fn settlement(
    (delivery, note): (&Delivery, &StoredNotification),
    lane: &Lane,
    report: Report,
    finish: Finish,
    at: Timestamp,
    took: Duration,
) -> Settlement {
    let class = report.class();
    let Report { outcome, evidence, inbox, captured, suppress, .. } = report;
    let unknown = finish == Finish::Ended(FinishedState::Parked(Reason::OutcomeUnknown));
    let unclear = unknown || matches!(outcome, Outcome::Unclear { .. }) || outcome.code() == Some("panic");
    // A message that was not really sent proves nothing about its address.
    let is_refused = finish == Finish::Ended(FinishedState::Parked(Reason::Rejected)) && !captured;
    let dead = suppress.filter(|_| is_refused).and_then(|reason| dead_address(delivery, lane, reason));
    let detail = evidence.detail.as_deref().map(storable);
    let evidence = Evidence {
        detail: None,
        provider_ref: evidence.provider_ref.as_deref().map(storable),
        excerpt: evidence.excerpt.as_deref().map(storable),
    };
    let attempted = Attempted {
        at,
        provider: lane.name.clone(),
        outcome: outcome.name(),
        latency_ms: i32::try_from(took.as_millis()).unwrap_or(i32::MAX),
        evidence,
    };
    Settlement {
        lease: Lease::of(delivery),
        place: place_of(delivery),
        finish,
        moved_to: None,
        attempt: Some(attempted),
        code: outcome.code().map(storable),
        class,
        detail,
        unclear,
        captured,
        dead: dead.map(Box::new),
        message: inbox.map(|content| Box::new(inbox_message((delivery, note), *content))),
        site: note.site_label(),
        event_type: Some(note.event_type.as_str().into()),
    }
}

/// Returns the address of the delivery as one to which nothing can be sent any more.
fn dead_address(delivery: &Delivery, lane: &Lane, reason: Arc<str>) -> Option<DeadAddress> {
    let (channel, address) = (delivery.facts.channel.clone()?, delivery.facts.target.clone()?);
    Some(DeadAddress { channel, address, reason, provider: lane.name.clone() })
}

/// Builds the message for the user's inbox.
fn inbox_message((delivery, note): (&Delivery, &StoredNotification), content: Content) -> InboxMessage {
    InboxMessage {
        user: delivery.facts.target().to_owned(),
        event_type: note.event_type.clone(),
        entity: note.entity.clone(),
        title: content.subject,
        body: content.text,
        action_url: content.action_url,
        data: content.data.map(|data| Box::<str>::from(data).into()),
        expires_at: note.expires_at,
    }
}

/// Cuts a provider's text and removes NUL characters. PostgreSQL would refuse the whole batch because of a NUL.
pub(super) fn storable(text: &str) -> String {
    text.chars().filter(|c| *c != '\0').take(TEXT_CHARS).collect()
}
