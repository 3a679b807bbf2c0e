//! Renders a version of a template without sending it.

use postcommit_channel::model::{Facts, Maker, StoredNotification, digest_payload};
use postcommit_channel::render::{Content, render};
use postcommit_channel::template::sms::{Segments, segments};
use postcommit_channel::template::{
    Compiled, FlatPayload, IS_MANDATORY, Input, NO_PUBLIC_URL, Note, Source, Warning, check_time_zone, default_address,
};
use postcommit_engine::store::{EditError, TemplateDraft};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use utoipa::ToSchema;
use uuid::Uuid;

use super::{Change, Templates, compiled, stopped};

/// The version and the data to render.
#[derive(Debug, Default)]
pub struct Wanted {
    /// The number of the version. Default: the current version.
    pub version: Option<i32>,
    /// The event's data. Default: the sample of the event type, or else its newest event.
    pub payload: Option<Value>,
    /// The id of a past notification, whose data is used.
    pub notification: Option<Uuid>,
    /// The user that receives the message.
    pub user: Option<Value>,
    pub language: Option<String>,
    pub time_zone: Option<String>,
    /// The URL of the server for browsers. Empty if it is not set.
    pub public_url: String,
}

/// The rendered message, and the warnings.
#[derive(Debug, Serialize, ToSchema)]
pub struct Preview {
    /// The id of the template.
    pub template: String,
    /// The version that was rendered.
    pub version: i32,
    /// The channel of the template.
    pub channel: String,
    /// The source of the data: `given`, `notification`, `sample`, `newest event` or `none`.
    pub data_from: &'static str,
    /// The address that the template's part `to` renders, if any.
    pub to: Option<String>,
    /// The subject or heading.
    pub subject: Option<String>,
    /// The message as plain text.
    pub text: Option<String>,
    /// The message as HTML.
    pub html: Option<String>,
    /// Additional fields for the channel.
    #[schema(value_type = Option<Object>)]
    pub data: Option<Value>,
    /// The encoding and the number of segments. Only for the channel `sms`.
    pub sms: Option<Segments>,
    /// Warnings about the rendering.
    pub warnings: Vec<Warning>,
    /// The reason why the message would not be sent. `null` if it would be sent.
    pub failure: Option<RenderFailure>,
}

/// The reason why a template could not be rendered.
#[derive(Debug, Serialize, ToSchema)]
pub struct RenderFailure {
    /// The error code of the parked delivery.
    pub code: &'static str,
    /// A sentence that describes the error.
    pub detail: String,
}

/// The event that a preview renders: a past notification, or only data.
pub struct Event {
    pub from: &'static str,
    pub payload: Box<RawValue>,
    pub notification: Option<StoredNotification>,
}

impl Templates<'_> {
    /// Renders a version with sample data or a past notification.
    pub async fn preview(&self, id: &str, wanted: Wanted) -> Result<Preview, EditError> {
        let template = self.find(id).await?;
        let version = wanted.version.unwrap_or(template.version);
        let source = self.source(id, version).await?;
        self.sampled(template.draft, version, &source, wanted).await
    }

    /// Renders a change of a template that is not saved, with the warnings that saving it would give. A new template has
    /// version 0.
    pub async fn preview_change(
        &self,
        id: &str,
        change: &Change,
        is_new: bool,
        wanted: Wanted,
    ) -> Result<Preview, EditError> {
        let common = self.common().await?;
        let (draft, source, warnings) = self.rehearse(&common, id, change, is_new).await?;
        let version = if is_new { 0 } else { self.find(id).await?.version };
        let mut preview = self.sampled(draft, version, &source, wanted).await?;
        let rendering = std::mem::replace(&mut preview.warnings, warnings);
        let others: Vec<Warning> = rendering.into_iter().filter(|one| !preview.warnings.contains(one)).collect();
        preview.warnings.extend(others);
        Ok(preview)
    }

    async fn sampled(
        &self,
        draft: TemplateDraft,
        version: i32,
        source: &Source,
        wanted: Wanted,
    ) -> Result<Preview, EditError> {
        if let Some(zone) = &wanted.time_zone {
            check_time_zone(zone).map_err(|problem| EditError::Refused(format!("time_zone: {problem}")))?;
        }
        let compiled = compiled(source).await?;
        let event = self.event(&draft.event_type, &wanted).await?;
        let unsubscribe_url = self.sample_link(&draft.event_type, &wanted.public_url).await?;
        let rendered = tokio::task::spawn_blocking(move || {
            let payload = match draft.digest {
                Some(_) => FlatPayload::new(&digest_payload(&sample_items(&event.payload))),
                None => FlatPayload::new(&event.payload),
            };
            let alone = Note { event_type: &draft.event_type, ..Note::default() };
            let input = Input {
                payload: &payload,
                note: event.notification.as_ref().map_or(alone, Note::from),
                user: wanted.user.as_ref(),
                language: wanted
                    .language
                    .as_deref()
                    .or(Some(&draft.language).filter(|tag| !tag.is_empty()).map(|tag| tag.as_str())),
                time_zone: wanted.time_zone.as_deref(),
                unsubscribe_url: unsubscribe_url.as_deref().map_err(|why| *why),
            };
            let (template, channel, data_from) = (draft.id.clone(), draft.channel.clone(), event.from);
            rendered(&compiled, &input, Preview::empty(template, version, channel, data_from))
        });
        rendered.await.map_err(|e| stopped(&e))
    }

    /// Renders a delivery as it was or will be sent: with its version of the template, and with the data of its user at
    /// the time of the expansion. The unsubscribe link is a sample.
    pub async fn as_sent(
        &self,
        note: StoredNotification,
        facts: Facts,
        public_url: &str,
    ) -> Result<Preview, EditError> {
        let channel = facts.channel().to_owned();
        let Some((id, version)) = facts.template.clone().zip(facts.template_version.filter(|version| *version > 0))
        else {
            return Ok(filled(render(&note, &facts), Preview::empty(String::new(), 0, channel, "notification")));
        };
        let compiled = compiled(&self.source(&id, version).await?).await?;
        let items = match note.maker(&facts) {
            Maker::Digest => self.store.digest_items(&[(self.tenant, note.id)]).await?.remove(&note.id),
            _ => None,
        };
        let unsubscribe_url = self.sample_link(&note.event_type, public_url).await?;
        let rendered = tokio::task::spawn_blocking(move || {
            let items: Option<Vec<_>> = items.map(|items| items.into_iter().map(|item| item.payload).collect());
            let url = unsubscribe_url.as_deref().map_err(|why| *why);
            with_input((&note, &facts), items.as_deref(), url, |input| {
                rendered(&compiled, input, Preview::empty(id, version, channel, "notification"))
            })
        });
        rendered.await.map_err(|e| stopped(&e))
    }

    /// A sample unsubscribe link that has no effect. A preview needs only the scope `read`, so it must not return a
    /// signed link.
    async fn sample_link(&self, event_type: &str, public_url: &str) -> Result<Result<String, &'static str>, EditError> {
        let declared = self.store.event_type(self.tenant, event_type).await?;
        Ok(match declared.is_some_and(|declared| declared.event_type.mandatory) {
            _ if public_url.is_empty() => Err(NO_PUBLIC_URL),
            true => Err(IS_MANDATORY),
            false => Ok(format!("{public_url}/u/preview")),
        })
    }

    /// Returns the event that the preview renders.
    pub async fn event(&self, event_type: &str, wanted: &Wanted) -> Result<Event, EditError> {
        if let Some(id) = wanted.notification {
            let found = self.store.notification(Some(self.tenant), id).await?;
            let found = found.ok_or_else(|| EditError::Unknown { what: "notification", name: id.to_string() })?;
            return Ok(Event { from: "notification", payload: (*found.payload).to_owned(), notification: Some(found) });
        }
        let event = |from, payload| Event { from, payload, notification: None };
        if let Some(given) = &wanted.payload {
            return Ok(event("given", to_raw_value(given).unwrap_or_default()));
        }
        let declared = self.store.event_type(self.tenant, event_type).await?;
        if let Some(sample) = declared.and_then(|declared| declared.event_type.sample) {
            return Ok(event("sample", to_raw_value(&sample).unwrap_or_default()));
        }
        match self.store.recent_payloads(self.tenant, event_type, 1).await?.pop() {
            Some(payload) => Ok(event("newest event", payload)),
            None => Ok(event("none", to_raw_value(&serde_json::json!({})).unwrap_or_default())),
        }
    }
}

/// Calls `render` with what the template of a delivery reads: the data of its notification or, for a digest, of the
/// digest's events, and its user at the time of the expansion.
pub fn with_input<T>(
    (note, facts): (&StoredNotification, &Facts),
    items: Option<&[Box<RawValue>]>,
    unsubscribe_url: Result<&str, &'static str>,
    render: impl FnOnce(&Input<'_>) -> T,
) -> T {
    let digest = items.map(|items| FlatPayload::new(&digest_payload(items)));
    let user = facts.user();
    render(&Input {
        payload: digest.as_ref().unwrap_or_else(|| note.payload.flat()),
        note: note.into(),
        user: user.as_ref(),
        language: facts.language.as_deref(),
        time_zone: user.as_ref().and_then(|user| user.get("time_zone")?.as_str()),
        unsubscribe_url,
    })
}

/// The items of a digest in a preview: the list `items` of the payload, or else the payload twice.
fn sample_items(payload: &RawValue) -> Vec<Box<RawValue>> {
    #[derive(Deserialize)]
    struct Given {
        items: Vec<Box<RawValue>>,
    }
    match serde_json::from_str::<Given>(payload.get()) {
        Ok(given) => given.items,
        Err(_) => vec![payload.to_owned(), payload.to_owned()],
    }
}

impl Preview {
    fn empty(template: String, version: i32, channel: String, data_from: &'static str) -> Self {
        let (to, subject, text, html) = (None, None, None, None);
        let (data, sms, warnings, failure) = (None, None, vec![], None);
        Self { template, version, channel, data_from, to, subject, text, html, data, sms, warnings, failure }
    }
}

/// The preview with the content of a message.
fn filled(content: Content, mut preview: Preview) -> Preview {
    preview.sms = content.text.as_deref().filter(|_| preview.channel == "sms").map(segments);
    preview.data = content.data.as_ref().and_then(|data| serde_json::from_str(data.get()).ok());
    (preview.subject, preview.text, preview.html) = (content.subject, content.text, content.html);
    preview
}

fn rendered(compiled: &Compiled, input: &Input<'_>, mut preview: Preview) -> Preview {
    let result = compiled.address(input).and_then(|to| Ok((to, compiled.render(input)?)));
    let (to, (content, warnings)) = match result {
        Ok(rendered) => rendered,
        Err(failure) => {
            preview.failure = Some(RenderFailure { code: failure.code(), detail: failure.to_string() });
            return preview;
        }
    };
    preview.warnings = warnings;
    preview.to = to.or_else(|| match default_address(&preview.channel, input.payload) {
        Ok(address) => address,
        Err(ambiguous) => {
            let message = ambiguous.to_string();
            preview.warnings.push(Warning { part: "to".into(), line: None, column: None, message, placeholder: None });
            None
        }
    });
    filled(content, preview)
}
