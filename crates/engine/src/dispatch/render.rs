//! Renders the content of deliveries before they are announced, and builds the message for the driver.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use postcommit::Timestamp;
use postcommit_channel::driver::{Message, RawEvent};
use postcommit_channel::model::{Delivery, Finish, FinishedState, Reason, StoredNotification, digest_payload};
use postcommit_channel::render::{Content, render};
use postcommit_channel::template::{FlatPayload, Warning};

use super::digests::{self, Items};
use super::lanes::Lane;
use super::links::Links;
use super::parked_log::About;
use super::settler::{Noted, unbegun};
use super::templates::Versions;
use super::{Claimed, Crew};
use crate::db::DbError;
use crate::store::{Lease, VersionKey};

/// The rendered content of a delivery.
pub(super) struct Rendering {
    pub content: Content,
    /// Warnings of the template, for the log of attempts. They never fail a send.
    pub warnings: Option<String>,
}

/// A claimed delivery and its rendered content.
pub(super) type Rendered = (Claimed, Rendering);

/// The reason why a delivery cannot be rendered: a code and a sentence.
type Refusal = (&'static str, String);

impl Rendering {
    /// Renders a direct message: the title and the body as they were enqueued.
    pub(super) fn direct(delivery: &Delivery, note: &StoredNotification) -> Self {
        Self { content: render(note, &delivery.facts), warnings: None }
    }
}

/// Renders a direct message of a batch.
pub(super) fn render_direct(claimed: Claimed) -> Rendered {
    let rendering = Rendering::direct(&claimed.0, &claimed.1);
    (claimed, rendering)
}

/// Renders a batch of one lane. A delivery whose template fails is parked before anything is announced.
pub(super) async fn render_all(crew: &Crew, lane: &Lane, batch: Vec<Claimed>, now: Timestamp) -> Vec<Rendered> {
    let (templated, direct): (Vec<_>, Vec<_>) =
        batch.into_iter().partition(|(delivery, _)| delivery.facts.template.is_some());
    let mut rendered: Vec<Rendered> = direct.into_iter().map(render_direct).collect();
    let (templated, items) = digests::read_items(crew, lane, templated, now).await;
    if templated.is_empty() {
        return rendered;
    }
    let ingredients = match load(crew, &templated, items).await {
        Ok(loaded) => loaded,
        Err(problem) => {
            let wait = crew.reading.wait();
            tracing::warn!(%problem, ?wait, "could not read templates; the deliveries go back to the queue and are tried again after the wait");
            crew.settler.put_off(templated.iter().map(|(delivery, _)| Lease::of(delivery)), now.plus(wait));
            return rendered;
        }
    };
    for (claimed, result) in crew.templates.in_turns(templated, renderer(ingredients)).await {
        match result {
            Ok(rendering) => rendered.push((claimed, rendering)),
            Err(refusal) => park(crew, lane, claimed, refusal),
        }
    }
    rendered
}

/// The template versions, links and digest items with which a batch is rendered.
struct Ingredients {
    versions: Versions,
    links: Links,
    items: Items,
}

async fn load(crew: &Crew, batch: &[Claimed], items: Items) -> Result<Ingredients, DbError> {
    let store = &crew.tools.store;
    let wanted: BTreeSet<VersionKey> = batch.iter().map(|(delivery, _)| version_of(delivery)).collect();
    let versions = crew.templates.load(store, wanted).await?;
    let shows_link =
        |(delivery, _): &&Claimed| versions.get(&version_of(delivery)).is_some_and(|version| version.unsubscribes());
    let links = match versions.values().any(|version| version.unsubscribes()) {
        false => Links::default(),
        true => {
            let of_note = |(_, note): &Claimed| (note.tenant, note.event_type.clone());
            let event_types = batch.iter().filter(shows_link).map(of_note).collect();
            Links::load(store, &crew.tools.public_url, event_types).await?
        }
    };
    Ok(Ingredients { versions, links, items })
}

/// Returns the payload from which a notification is rendered: its own payload, or the items of a digest.
fn payload_of(note: &StoredNotification, items: &Items) -> FlatPayload {
    match items.get(&note.id) {
        Some(items) => FlatPayload::new(&digest_payload(items)),
        None => note.payload.flat().clone(),
    }
}

fn version_of(delivery: &Delivery) -> VersionKey {
    let facts = &delivery.facts;
    (delivery.key.tenant, facts.template.clone().unwrap_or_default(), facts.template_version.unwrap_or_default())
}

/// Returns the function that renders one delivery after the other. Deliveries of one notification follow each other and
/// share its flat payload.
fn renderer(
    Ingredients { versions, links, items }: Ingredients,
) -> impl FnMut(Claimed) -> (Claimed, Result<Rendering, Refusal>) + Send + 'static {
    let mut last: Option<(Arc<StoredNotification>, FlatPayload)> = None;
    move |claimed| {
        let (delivery, note) = &claimed;
        let key = version_of(delivery);
        let Some(version) = versions.get(&key) else {
            let detail = format!("version {} of template {:?} does not exist", key.2, key.1);
            return (claimed, Err(("template_not_found", detail)));
        };
        let known = last.take().filter(|(known, _)| known.id == note.id);
        let (_, payload) = last.insert(known.unwrap_or_else(|| (note.clone(), payload_of(note, &items))));
        let result = match version.render(&delivery.facts, note, payload, &links) {
            Ok((content, warnings)) => Ok(Rendering { content, warnings: written(&warnings) }),
            Err(failure) => Err((failure.code(), format!("template {:?}, version {}: {failure}", key.1, key.2))),
        };
        (claimed, result)
    }
}

/// Formats warnings for the log of attempts.
fn written(warnings: &[Warning]) -> Option<String> {
    let one = |warning: &Warning| match (warning.line, warning.column) {
        (Some(line), Some(column)) => {
            format!("{}, line {line}, column {column}: {}", warning.part, warning.message)
        }
        _ => format!("{}: {}", warning.part, warning.message),
    };
    let all: Vec<String> = warnings.iter().map(one).collect();
    (!all.is_empty()).then(|| format!("warning: {}", all.join("; ")))
}

fn park(crew: &Crew, lane: &Lane, (delivery, note): Claimed, (code, detail): Refusal) {
    let finish = Finish::Ended(FinishedState::Parked(Reason::Config));
    let channel = delivery.facts.channel();
    let counts = crew.tools.metrics.of(&note.event_type, channel);
    let noted = Noted::new(counts, finish, || About::new(&note, channel, Some(&lane.name)));
    crew.settler.settle(unbegun(&delivery, finish, Some(code), Some(detail)), None, Some(noted));
}

/// Builds the message that the driver gets.
pub(super) fn message<'a>(
    (delivery, note): (&'a Delivery, &'a StoredNotification),
    content: Content,
    timeout: Duration,
    traceparent: Option<&'a str>,
) -> Message<'a> {
    Message {
        content,
        raw_event: RawEvent::from(note),
        key: delivery.key,
        channel: delivery.facts.channel(),
        target: delivery.facts.target(),
        attempt: delivery.attempts + 1,
        timeout,
        traceparent,
    }
}
