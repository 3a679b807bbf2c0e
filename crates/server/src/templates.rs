//! The rules for writing and previewing templates that the API and the command line share. `parts` finds the layouts
//! and partials that a template uses; `layouts` changes them and the content settings; `preview` renders without
//! sending; `data` checks channel
//! data against the providers.

mod data;
pub mod layouts;
mod parts;
pub mod preview;
pub mod subjects;

use std::collections::{BTreeMap, BTreeSet};

use postcommit::{channel_name, limits};
use postcommit_channel::model::{DigestRule, Throttle, check_pacing, short_name};
use postcommit_channel::template::{self, Compiled, FlatPayload, Missing, Source, Warning, flat_name};
use postcommit_engine::db::DbError;
use postcommit_engine::store::{
    ContentSettings, EVENTS_EXAMINED, EditError, EventTypeDraft, LayoutRow, MadeFrom, Store, TEMPLATES, TRIES,
    TemplateDraft, TemplateRow, Waiting,
};
use serde_json::Value;
use serde_json::value::to_raw_value;

/// The maximum number of characters of the note of a template version.
pub const NOTE_CHARS: usize = 1000;
/// The values of `once_per`.
pub const ONCE_PER: [&str; 2] = ["entity", "notification"];

/// Constraints of the database on sizes that only the database can measure exactly, and their fields.
const CONSTRAINTS: [(&str, &str); 2] = [
    (
        "parts_of_a_template_at_most_65536_bytes",
        "data: the parts of the template have more than 65536 bytes together; at most 65536 are allowed",
    ),
    ("brand_at_most_16384_bytes", "brand: has more than 16384 bytes; at most 16384 are allowed"),
];

/// Converts the error of a write. A violated size constraint becomes an error of its field.
fn written(error: DbError) -> EditError {
    let known = match &error {
        DbError::Refused { message, .. } => CONSTRAINTS.iter().find(|(name, _)| message.contains(name)),
        _ => None,
    };
    known.map_or_else(|| error.into(), |(_, problem)| EditError::Refused((*problem).to_owned()))
}

/// The error of a part that cannot be compiled: the part, the place and the problem. If all parts together are too
/// large, the error names the largest part.
fn refused(problem: &template::Problem, source: &Source) -> EditError {
    if problem.part == "template" {
        let size = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let data = source.data.as_ref().map_or(0, |data| data.to_string().len());
        let parts = [("text", size(&source.text)), ("html", size(&source.html)), ("data", data)];
        let largest = parts.into_iter().max_by_key(|(_, size)| *size).map_or("text", |(part, _)| part);
        return EditError::Refused(format!("{largest}: {}", problem.message));
    }
    let place = match (problem.line, problem.column) {
        (Some(line), Some(column)) => format!("line {line}, column {column}: "),
        _ => String::new(),
    };
    EditError::Refused(format!("{}: {place}{}", problem.part, problem.message))
}

pub fn too_many(most: usize, what: &str) -> EditError {
    EditError::Conflict(format!(
        "the tenant has {most} {what}, which is the most it may have; delete one that is not needed"
    ))
}

fn overtaken(what: &'static str, name: &str) -> EditError {
    EditError::Overtaken { what, name: name.to_owned() }
}

/// Refuses a change that was made for another revision.
fn is_still(what: &'static str, name: &str, asked: Option<i32>, found: i32) -> Result<(), EditError> {
    match asked.filter(|asked| *asked != found) {
        Some(asked) => Err(EditError::Outdated { what, name: name.to_owned(), asked, found }),
        None => Ok(()),
    }
}

/// The fields to set. Other fields keep their value, or get the default if the template is new. `Some(None)` removes a
/// value; `missing`, `date_format` and `time_zone` then use the content settings.
#[derive(Debug, Default, Clone)]
pub struct Change {
    pub event_type: Option<String>,
    pub channel: Option<String>,
    pub audience: Option<String>,
    pub language: Option<String>,
    pub scope_type: Option<String>,
    pub scope_id: Option<String>,
    pub active: Option<bool>,
    pub once_per: Option<String>,
    pub throttle: Option<Option<Throttle>>,
    pub digest: Option<Option<DigestRule>>,
    /// The version whose parts the change starts from. `None`: the current version.
    pub from_version: Option<i32>,
    pub to: Option<Option<String>>,
    pub subject: Option<Option<String>>,
    pub text: Option<Option<String>>,
    pub html: Option<Option<String>>,
    pub data: Option<Option<Value>>,
    pub layout: Option<Option<String>>,
    pub missing: Option<Option<String>>,
    pub date_format: Option<Option<String>>,
    pub time_zone: Option<Option<String>>,
    /// A note about the new version.
    pub note: Option<String>,
}

/// The result of saving a template.
#[derive(Debug)]
pub struct Saved {
    /// Whether something was written.
    pub is_changed: bool,
    pub warnings: Vec<Warning>,
    /// The notifications of its event type that are not expanded yet. They will use the changed template.
    pub waiting: Waiting,
}

/// The settings, layouts and event types that the templates of a tenant share: as stored or, in a rehearsal, as they
/// would be after the steps so far.
#[derive(Clone)]
pub struct Common {
    pub settings: ContentSettings,
    pub layouts: BTreeMap<String, parts::Layout>,
    /// Event types that a rehearsal declares. They take precedence over stored event types of the same name.
    pub event_types: BTreeMap<String, EventTypeDraft>,
}

/// Changes templates of one tenant.
pub struct Templates<'a> {
    pub store: &'a Store,
    pub tenant: i32,
}

impl Templates<'_> {
    pub async fn find(&self, id: &str) -> Result<TemplateRow, EditError> {
        let unknown = || EditError::Unknown { what: "template", name: id.to_owned() };
        self.store.template(self.tenant, id).await?.ok_or_else(unknown)
    }

    /// The parts of a version.
    pub async fn source(&self, id: &str, version: i32) -> Result<Source, EditError> {
        let found = self.store.template_version(self.tenant, id, version).await?;
        let unknown = || EditError::Unknown { what: "version", name: format!("{version} of template {id}") };
        found.map(|(_, source)| source).ok_or_else(unknown)
    }

    /// Creates a template. A deleted template with this id is restored.
    pub async fn create(&self, id: &str, change: &Change) -> Result<Saved, EditError> {
        let draft = new_draft(id, change)?;
        for _ in 0..TRIES {
            let common = self.common().await?;
            let (source, made_from) = common.source(common.empty(), change)?;
            let warnings = self.check(&common, &draft, &source).await?;
            self.check_place(id, &draft, true).await?;
            let parts = (&source, change.note.as_deref());
            if self.store.create_template(self.tenant, &draft, parts, &made_from).await.map_err(written)? {
                return Ok(Saved { is_changed: true, warnings, waiting: self.waiting(&draft).await? });
            }
        }
        Err(overtaken("template", id))
    }

    /// Changes the given fields. A change of a part creates a new version. With a revision, the change is made only if
    /// the template still has that revision. Writes nothing if no field differs.
    pub async fn update(&self, id: &str, revision: Option<i32>, change: &Change) -> Result<Saved, EditError> {
        for _ in 0..TRIES {
            let from = self.find(id).await?;
            is_still("template", id, revision, from.revision)?;
            let to = laid_over(from.draft.clone(), change)?;
            let was = self.source(id, from.version).await?;
            let base = match change.from_version {
                Some(version) => self.source(id, version).await?,
                None => was.clone(),
            };
            let common = self.common().await?;
            let (source, made_from) = common.source(base, change)?;
            let warnings = self.check(&common, &to, &source).await?;
            let is_changed = to != from.draft || source != was;
            if is_changed {
                self.check_place(id, &to, false).await?;
            }
            let version = (source != was).then_some((&source, change.note.as_deref(), &made_from));
            if !is_changed || self.store.update_template((&from, &to), version).await.map_err(written)? {
                return Ok(Saved { is_changed, warnings, waiting: self.waiting(&to).await? });
            }
        }
        Err(overtaken("template", id))
    }

    /// Deletes an inactive template. Its versions are kept.
    pub async fn delete(&self, id: &str) -> Result<(), EditError> {
        for _ in 0..TRIES {
            let found = self.find(id).await?;
            if found.draft.active {
                let problem = format!("template {id:?} is active; deactivate it, then delete it");
                return Err(EditError::Conflict(problem));
            }
            if self.store.delete_template(&found).await? {
                return Ok(());
            }
        }
        Err(overtaken("template", id))
    }

    /// Checks a template as [`Templates::create`] and [`Templates::update`] do before they write. Returns its draft,
    /// its parts and warnings.
    pub async fn rehearse(
        &self,
        common: &Common,
        id: &str,
        change: &Change,
        is_new: bool,
    ) -> Result<(TemplateDraft, Source, Vec<Warning>), EditError> {
        let (draft, source) = if is_new {
            drafted(common, id, change)?
        } else {
            let from = self.find(id).await?;
            let base = self.source(id, from.version).await?;
            (laid_over(from.draft, change)?, common.source(base, change)?.0)
        };
        let warnings = self.check(common, &draft, &source).await?;
        Ok((draft, source, warnings))
    }

    pub async fn common(&self) -> Result<Common, EditError> {
        let settings = self.store.content_settings(self.tenant).await?;
        let layouts = self.store.layouts_of(self.tenant).await?.into_iter().map(|layout| {
            let LayoutRow { name, kind, source, revision, .. } = layout;
            (name, parts::Layout { kind, source, revision })
        });
        Ok(Common { settings, layouts: layouts.collect(), event_types: BTreeMap::new() })
    }

    /// Refuses a template if another active template has the same event type, channel, audience, language and scope,
    /// and a new template beyond the limit.
    async fn check_place(&self, id: &str, draft: &TemplateDraft, is_new: bool) -> Result<(), EditError> {
        if is_new && self.store.template(self.tenant, id).await?.is_some() {
            return Err(EditError::Exists { what: "template", name: id.to_owned() });
        }
        if is_new && self.store.count_templates(self.tenant).await? >= i64::try_from(TEMPLATES).unwrap_or(i64::MAX) {
            return Err(too_many(TEMPLATES, "templates"));
        }
        match self.store.template_at(self.tenant, draft).await? {
            Some(other) if draft.active => Err(place_taken(&other)),
            _ => Ok(()),
        }
    }

    /// Compiles the parts, and returns warnings about names that events of the type do not have.
    async fn check(&self, common: &Common, draft: &TemplateDraft, source: &Source) -> Result<Vec<Warning>, EditError> {
        let compiled = compiled(source).await?;
        let providers = self.store.providers_of(self.tenant).await?;
        let unsent = data::check(&providers, &draft.channel, source.data.as_ref())?;
        let mut names = self.known_names(common, &draft.event_type).await?;
        if let Some(names) = names.as_mut().filter(|_| draft.digest.is_some()) {
            names.extend(["items".to_owned(), "count".to_owned()]);
        }
        let unknown = unknown_names(&compiled, &draft.event_type, names.as_ref());
        Ok(compiled.warnings().iter().cloned().chain(unknown).chain(unsent).collect())
    }

    /// Returns the names that events of the type have: by its declaration or, if it is not declared, in recent events.
    /// `None` if it is not declared and has no events.
    async fn known_names(&self, common: &Common, event_type: &str) -> Result<Option<BTreeSet<String>>, EditError> {
        let declared = match common.event_types.get(event_type) {
            Some(declared) => Some(declared.clone()),
            None => self.store.event_type(self.tenant, event_type).await?.map(|row| row.event_type),
        };
        let (placeholders, payloads) = match declared {
            Some(declared) => {
                let sample = declared.sample.and_then(|sample| to_raw_value(&sample).ok());
                (declared.placeholders, sample.into_iter().collect())
            }
            None => {
                let payloads = self.store.recent_payloads(self.tenant, event_type, EVENTS_EXAMINED).await?;
                if payloads.is_empty() {
                    return Ok(None);
                }
                (vec![], payloads)
            }
        };
        let held = payloads.iter().flat_map(|payload| FlatPayload::new(payload).names());
        Ok(Some(held.chain(placeholders.iter().map(|name| flat_name(name))).collect()))
    }

    /// The notifications of the template's event type that are not expanded yet.
    pub async fn waiting(&self, draft: &TemplateDraft) -> Result<Waiting, EditError> {
        Ok(self.store.waiting_of_types(self.tenant, std::slice::from_ref(&draft.event_type)).await?)
    }
}

/// The draft of a new template.
fn new_draft(id: &str, change: &Change) -> Result<TemplateDraft, EditError> {
    short_name("id", id).map_err(EditError::Refused)?;
    if change.from_version.is_some() {
        return Err(EditError::Refused("from_version: a new template has no earlier version".into()));
    }
    let once_per = "notification".to_owned();
    let new = TemplateDraft { id: id.to_owned(), active: true, once_per, ..TemplateDraft::default() };
    laid_over(new, change)
}

/// A new template with its parts, which are not compiled.
pub fn drafted(common: &Common, id: &str, change: &Change) -> Result<(TemplateDraft, Source), EditError> {
    Ok((new_draft(id, change)?, common.source(common.empty(), change)?.0))
}

/// The error for a template if another active template has the same event type, channel, audience, language and scope.
pub fn place_taken(other: &str) -> EditError {
    EditError::Conflict(format!(
        "template {other:?} is active for the same event type, channel, audience, language and scope; deactivate it \
         first, or change one of these"
    ))
}

/// Compiles on a thread for blocking work, because compiling would block a thread that serves requests.
async fn compiled(source: &Source) -> Result<Compiled, EditError> {
    let copy = source.clone();
    let compiled = tokio::task::spawn_blocking(move || Compiled::new(&copy)).await;
    compiled.map_err(|e| stopped(&e))?.map_err(|problem| refused(&problem, source))
}

fn stopped(problem: &tokio::task::JoinError) -> EditError {
    DbError::Unreadable(format!("compiling a template failed: {problem}; report it as a bug")).into()
}

/// Warnings about placeholders that events of the type do not have.
fn unknown_names(compiled: &Compiled, event_type: &str, known: Option<&BTreeSet<String>>) -> Vec<Warning> {
    match known {
        Some(known) => compiled.unknown(known),
        None if compiled.placeholders().is_empty() => vec![],
        None => {
            let message = format!(
                "event type {event_type:?} is not declared and has no events yet, so the names in the template were not checked"
            );
            vec![Warning { part: "event_type".into(), line: None, column: None, message, placeholder: None }]
        }
    }
}

impl Common {
    /// The layouts and partials that include this one, each with its kind.
    pub fn including(&self, name: &str) -> Vec<String> {
        let includes = |(other, layout): &(&String, &parts::Layout)| {
            other.as_str() != name && parts::included(&layout.source).contains(name)
        };
        let including = self.layouts.iter().filter(includes);
        including.map(|(other, layout)| format!("{} {other}", layout.kind)).collect()
    }

    /// Returns a version without parts, with the defaults of the content settings.
    fn empty(&self) -> Source {
        Source {
            missing: self.settings.missing,
            date_format: self.settings.date_format.clone(),
            time_zone: self.settings.time_zone.clone(),
            ..Source::default()
        }
    }

    /// Applies the change to the parts of a version, and copies the used layout, partials and brand values into it.
    fn source(&self, base: Source, change: &Change) -> Result<(Source, MadeFrom), EditError> {
        let given = |change: &Option<Option<String>>, value: Option<String>| change.clone().unwrap_or(value);
        let or_settings = |change: &Option<Option<String>>, value: String, setting: &str| match change {
            Some(given) => given.clone().unwrap_or_else(|| setting.to_owned()),
            None => value,
        };
        let settings = &self.settings;
        let missing = or_settings(&change.missing, base.missing.name().to_owned(), settings.missing.name());
        let mut source = Source {
            to: given(&change.to, base.to),
            subject: given(&change.subject, base.subject),
            text: given(&change.text, base.text),
            html: given(&change.html, base.html),
            data: change.data.clone().unwrap_or(base.data),
            layout: given(&change.layout, base.layout),
            missing: missing_of(&missing)?,
            date_format: or_settings(&change.date_format, base.date_format, &settings.date_format),
            time_zone: or_settings(&change.time_zone, base.time_zone, &settings.time_zone),
            ..Source::default()
        };
        if let (None, None, None, None) = (&source.subject, &source.text, &source.html, &source.data) {
            return Err(EditError::Refused(
                "text: is missing; a template needs at least one of subject, text, html and data".into(),
            ));
        }
        let made_from = parts::copy_into(&mut source, &self.layouts, settings)?;
        Ok((source, made_from))
    }
}

fn missing_of(name: &str) -> Result<Missing, EditError> {
    let allowed = Missing::ALL.map(Missing::name).join(", ");
    let unknown = || EditError::Refused(format!("missing: {name:?} is not known; allowed are {allowed}"));
    Missing::from_name(name).ok_or_else(unknown)
}

/// Applies the change to the draft, and checks the result.
fn laid_over(mut draft: TemplateDraft, change: &Change) -> Result<TemplateDraft, EditError> {
    let fields: [(&mut String, &Option<String>); 4] = [
        (&mut draft.event_type, &change.event_type),
        (&mut draft.audience, &change.audience),
        (&mut draft.scope_id, &change.scope_id),
        (&mut draft.once_per, &change.once_per),
    ];
    for (to, given) in fields {
        if let Some(given) = given {
            to.clone_from(given);
        }
    }
    draft.active = change.active.unwrap_or(draft.active);
    draft.throttle = change.throttle.clone().unwrap_or(draft.throttle);
    draft.digest = change.digest.clone().unwrap_or(draft.digest);
    draft.channel = change.channel.as_deref().map_or(draft.channel, |channel| channel_name(channel).to_owned());
    draft.scope_type = change.scope_type.as_deref().map_or(draft.scope_type, flat_name);
    if let Some(language) = &change.language {
        draft.language = if language.is_empty() { String::new() } else { language_tag("language", language)? };
    }
    check(&draft).map_err(EditError::Refused)?;
    if let Some(note) = change.note.as_ref().map(|note| note.chars().count()).filter(|chars| *chars > NOTE_CHARS) {
        return Err(EditError::Refused(format!("note: has {note} characters; at most {NOTE_CHARS} are allowed")));
    }
    Ok(draft)
}

fn check(draft: &TemplateDraft) -> Result<(), String> {
    let chars = draft.event_type.chars().count();
    if !(1..=limits::NAME_CHARS).contains(&chars) {
        return Err(format!("event_type: has {chars} characters; 1 to {} are allowed", limits::NAME_CHARS));
    }
    short_name("channel", &draft.channel)?;
    if !draft.audience.is_empty() {
        short_name("audience", &draft.audience)?;
    }
    if !draft.scope_type.is_empty() {
        short_name("scope_type", &draft.scope_type)?;
    }
    let chars = draft.scope_id.chars().count();
    if chars > limits::NAME_CHARS {
        return Err(format!("scope_id: has {chars} characters; at most {} are allowed", limits::NAME_CHARS));
    }
    if draft.scope_type.is_empty() != draft.scope_id.is_empty() {
        return Err("scope_id: scope_type and scope_id must be given together; give both or neither".into());
    }
    if !ONCE_PER.contains(&draft.once_per.as_str()) {
        return Err(format!("once_per: {:?} is not known; allowed are {}", draft.once_per, ONCE_PER.join(", ")));
    }
    check_pacing(draft.throttle.as_ref(), draft.digest.as_ref())
}

/// Returns a language tag in its canonical spelling: `pt-br` becomes `pt-BR`.
fn language_tag(field: &str, tag: &str) -> Result<String, EditError> {
    let mut subtags = tag.split('-');
    let first = subtags.next().unwrap_or_default();
    let plain = |text: &str, range: std::ops::RangeInclusive<usize>| {
        range.contains(&text.len()) && text.chars().all(|c| c.is_ascii_alphanumeric())
    };
    let is_tag = plain(first, 2..=3)
        && first.chars().all(|c| c.is_ascii_alphabetic())
        && subtags.clone().all(|subtag| plain(subtag, 2..=8))
        && subtags.clone().count() <= 3;
    if !is_tag {
        return Err(EditError::Refused(format!(
            "{field}: {tag:?} is not a language tag; write one such as en or pt-BR"
        )));
    }
    let usual = |subtag: &str| match subtag.len() {
        2 => subtag.to_ascii_uppercase(),
        4 => format!("{}{}", subtag[..1].to_ascii_uppercase(), subtag[1..].to_ascii_lowercase()),
        _ => subtag.to_ascii_lowercase(),
    };
    Ok(std::iter::once(first.to_ascii_lowercase()).chain(subtags.map(usual)).collect::<Vec<_>>().join("-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_language_tag_has_one_spelling() {
        for (given, usual) in [("EN", "en"), ("pt-br", "pt-BR"), ("zh-HANT-tw", "zh-Hant-TW"), ("de-1996", "de-1996")] {
            assert_eq!(language_tag("language", given).unwrap(), usual);
        }
        for wrong in ["e", "english", "pt_BR", "pt-", "-BR", "pt-B", "a1-BR", "en-a-b-c-d", ""] {
            assert!(language_tag("language", wrong).is_err(), "{wrong}");
        }
    }
}
