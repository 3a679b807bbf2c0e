use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::tz::TimeZone;
use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, UndefinedBehavior, Value};
use serde_json::value::RawValue;

use super::data::{self, Tree};
use super::dates::{self, Manner};
use super::expression::{Root, Slot};
use super::payload::{FlatPayload, flat_name};
use super::run::{self, Miss, Reading};
use super::translate::{Code, Form, TagInfo, Translator};
use super::{Cap, Failure, Input, Missing, Note, Placeholder, Problem, Source, Warning, limits, plain, values};
use crate::render::Content;

/// The stack of the thread that compiles. The engine's parser is recursive: each level of nesting needs stack.
const STACK_BYTES: usize = 256 * 1024 * 1024;

/// The fields of a notification that templates may read without the prefix `notification.`, as flat names.
const NOTE_FIELDS: [&str; 11] = [
    "id",
    "eventtype",
    "entity",
    "topic",
    "title",
    "body",
    "actionurl",
    "correlationid",
    "dueat",
    "createdat",
    UNSUBSCRIBE_URL,
];

/// The field that holds the unsubscribe link, as a flat name.
const UNSUBSCRIBE_URL: &str = "unsubscribeurl";

/// A compiled version of a template. The same input is rendered to the same bytes on every machine.
#[derive(Debug)]
pub struct Compiled {
    engine: Environment<'static>,
    to: Option<Part>,
    subject: Option<Part>,
    text: Option<Part>,
    html: Option<Part>,
    data: Option<(Tree, Vec<Part>)>,
    slots: Vec<Slot>,
    tags: Arc<[TagInfo]>,
    placeholders: Vec<Placeholder>,
    /// The first placeholder that reads the unsubscribe link.
    unsubscribe: Option<Placeholder>,
    warnings: Vec<Warning>,
    brand: FlatPayload,
    missing: Missing,
    date_format: Arc<str>,
    zone: TimeZone,
}

/// A translated part of a template.
#[derive(Debug)]
struct Part {
    /// The name of the part in messages to users.
    name: String,
    /// The name of the part in the engine.
    key: String,
    code: Code,
    form: Form,
}

impl Compiled {
    /// Checks and compiles a version. A separate thread with a large stack compiles; it has ended when this function
    /// returns.
    pub fn new(source: &Source) -> Result<Self, Problem> {
        let compile = || -> Result<Self, Problem> { Draft::new(source)?.compile() };
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("template".to_owned()).stack_size(STACK_BYTES);
            let thread = thread.spawn_scoped(scope, compile);
            let thread = thread.map_err(|problem| {
                Problem::of_part(
                    "template",
                    format!("no thread could be started to compile the template: {problem}; try again"),
                )
            })?;
            let bug = "the template engine failed on this template; report it as a bug, with the template";
            thread.join().unwrap_or_else(|_| Err(Problem::of_part("template", bug)))
        })
    }

    /// The names that the template reads from the payload, each with its first place. Names of `brand`, `user` and the
    /// notification's own fields are left out.
    #[must_use]
    pub fn placeholders(&self) -> &[Placeholder] {
        &self.placeholders
    }

    /// Warnings that are shown when the template is saved.
    #[must_use]
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// Warns of placeholders that are not among the known names, such as [`FlatPayload::names`] or the placeholders of
    /// a declared event type. Case, dots, underscores and hyphens do not matter.
    #[must_use]
    pub fn unknown(&self, known: &BTreeSet<String>) -> Vec<Warning> {
        let known: BTreeSet<String> = known.iter().map(|name| flat_name(name)).collect();
        let is_unknown = |placeholder: &&Placeholder| {
            let name = placeholder.name.split('[').next().unwrap_or("");
            !known.contains(&flat_name(name))
        };
        let warning = |placeholder: &Placeholder| Warning {
            part: placeholder.place.part.clone(),
            line: Some(placeholder.place.line),
            column: Some(placeholder.place.column),
            message: format!("no known event of this type has the field {}; check its spelling", placeholder.name),
            placeholder: Some(placeholder.name.clone()),
        };
        self.placeholders.iter().filter(is_unknown).map(warning).take(limits::WARNINGS).collect()
    }

    /// Whether the template may read the unsubscribe link.
    #[must_use]
    pub fn unsubscribes(&self) -> bool {
        self.unsubscribe.is_some()
    }

    /// Renders the part `to` and returns the address without surrounding spaces. `None`: the part is absent or renders
    /// to nothing. Placeholders without a value print nothing here, regardless of the setting `missing`.
    pub fn address(&self, input: &Input<'_>) -> Result<Option<String>, Failure> {
        let Some(part) = &self.to else { return Ok(None) };
        let (text, _) = self.run(part, &self.reading(input), Missing::Empty, limits::ADDRESS_BYTES)?;
        Ok(Some(text.trim()).filter(|text| !text.is_empty()).map(str::to_owned))
    }

    /// Renders the content of one delivery. Returns warnings for placeholders without a value.
    pub fn render(&self, input: &Input<'_>) -> Result<(Content, Vec<Warning>), Failure> {
        let reading = self.reading(input);
        let mut misses = Vec::new();
        let mut part = |part: &Part, limit| -> Result<String, Failure> {
            let (text, missed) = self.run(part, &reading, self.missing, limit)?;
            misses.extend(missed);
            Ok(text)
        };
        let subject = self.subject.as_ref().map(|it| part(it, limits::SUBJECT_BYTES)).transpose()?;
        let text = self.text.as_ref().map(|it| part(it, limits::BODY_BYTES)).transpose()?;
        let html = self.html.as_ref().map(|it| part(it, limits::BODY_BYTES)).transpose()?;
        let data = self.data.as_ref().map(|(tree, parts)| rendered_data(tree, parts, &mut part)).transpose()?;
        let html = html.map(|html| clean(&html));
        let content = Content {
            subject: subject.map(|subject| one_line(&subject)),
            text: text.map(|text| clean(&text)).or_else(|| html.as_deref().map(plain::text_of_html)),
            html,
            action_url: input.note.action_url.map(str::to_owned),
            data,
            unsubscribe_url: None,
        };
        let link = self.reads_unsubscribe_url(input.payload).map(|at| (at, input.unsubscribe_url));
        let (mut content, mut warnings) = self.judged(content, &misses, &reading)?;
        match link {
            Some((_, Ok(url))) => content.unsubscribe_url = Some(url.to_owned()),
            Some((at, Err(why))) => warnings.push(no_unsubscribe_url(at, why)),
            None => {}
        }
        Ok((content, warnings))
    }

    /// The first placeholder that reads the unsubscribe link. `None` if the payload has a field of that name, because
    /// the payload takes precedence.
    fn reads_unsubscribe_url(&self, payload: &FlatPayload) -> Option<&Placeholder> {
        let is_ours = |slot: &Slot| match slot.root {
            Root::Payload => slot.flat == UNSUBSCRIBE_URL && payload.fields().get(UNSUBSCRIBE_URL).is_none(),
            _ => is_unsubscribe_url(slot),
        };
        self.unsubscribe.as_ref().filter(|_| self.slots.iter().any(is_ours))
    }

    fn judged(&self, content: Content, misses: &[Miss], reading: &Reading) -> Result<(Content, Vec<Warning>), Failure> {
        if self.missing == Missing::Refuse && !misses.is_empty() {
            let mut names: Vec<String> = misses.iter().map(|miss| self.missed_name(*miss, reading)).collect();
            let mut seen = BTreeSet::new();
            names.retain(|name| seen.insert(name.clone()));
            return Err(Failure::Missing { names });
        }
        let warnings = misses.iter().take(limits::WARNINGS).map(|miss| self.warning(*miss, reading)).collect();
        Ok((content, warnings))
    }

    /// Of the names that the tag reads, the first one without a value.
    fn missed_name(&self, miss: Miss, reading: &Reading) -> String {
        let Some(tag) = self.tags.get(miss.tag) else { return String::new() };
        let is_missing = |slot: Option<usize>| slot.is_none_or(|slot| reading.slots[slot].is_undefined());
        let read = tag.reads.iter().find(|read| is_missing(read.slot)).or(tag.reads.first());
        read.map_or_else(|| tag.source.clone(), |read| read.name.clone())
    }

    fn warning(&self, miss: Miss, reading: &Reading) -> Warning {
        let name = self.missed_name(miss, reading);
        let message = match (miss.link, self.missing) {
            (true, _) => format!("{name} is not a link and is left out; allowed are http, https, mailto and tel links"),
            (false, Missing::Keep) => format!("the payload has no value for {name}: it is printed as it is written"),
            (false, _) => format!("the payload has no value for {name}: nothing is printed"),
        };
        let place = self.tags.get(miss.tag).map(|tag| tag.place.clone());
        Warning {
            part: place.as_ref().map_or_else(String::new, |place| place.part.clone()),
            line: place.as_ref().map(|place| place.line),
            column: place.as_ref().map(|place| place.column),
            message,
            placeholder: Some(name),
        }
    }

    fn run(
        &self,
        part: &Part,
        reading: &Reading,
        missing: Missing,
        limit: usize,
    ) -> Result<(String, Vec<Miss>), Failure> {
        let place = |byte: usize| {
            let tag = part.code.tag_at(byte)?;
            self.tags.get(tag).map(|tag| tag.place.clone())
        };
        run::render(&self.engine, &part.key, reading, missing, limit).map_err(|stop| stop.failure(&part.name, place))
    }

    /// Looks up all values that the template reads.
    fn reading(&self, input: &Input<'_>) -> Reading {
        let zone = input.time_zone.and_then(|name| dates::zone(name).ok()).unwrap_or_else(|| self.zone.clone());
        let language = input.language.map(str::to_owned);
        let manner = Arc::new(Manner { date_format: Arc::clone(&self.date_format), zone, language });
        let note = LazyCell::new(|| note_fields(&input.note, input.unsubscribe_url.unwrap_or("")));
        let user = LazyCell::new(|| input.user.map(FlatPayload::from).unwrap_or_default());
        let find = |slot: &Slot| {
            let payload = input.payload.fields().get(&slot.flat);
            if input.unsubscribe_url.is_err() && payload.is_none() && is_unsubscribe_url(slot) {
                // An unsubscribe link that does not exist is empty, not missing. The link filter accepts an empty
                // string only if it is marked as safe.
                return Value::from_safe_string(String::new());
            }
            match slot.root {
                Root::Payload => payload.or_else(|| note.fields().get(&slot.flat)),
                Root::Brand => self.brand.fields().get(&slot.rest).or(payload),
                Root::User => user.fields().get(&slot.rest).or(payload),
                Root::Notification => note.fields().get(&slot.rest).or(payload),
            }
            .map_or(Value::UNDEFINED, |node| values::value(node, &manner))
        };
        let slots = self.slots.iter().map(find).collect();
        Reading { slots, manner, tags: Arc::clone(&self.tags), budget: Arc::default() }
    }
}

/// A version during its compilation.
struct Draft<'a> {
    source: &'a Source,
    translator: Translator<'a>,
    zone: TimeZone,
}

impl<'a> Draft<'a> {
    fn new(source: &'a Source) -> Result<Self, Problem> {
        check_sizes(source)?;
        dates::check_format(&source.date_format).map_err(|message| Problem::of_part("date_format", message))?;
        let zone = dates::zone(&source.time_zone).map_err(|message| Problem::of_part("time_zone", message))?;
        if !source.brand.is_object() && !source.brand.is_null() {
            return Err(Problem::of_part("brand", "must be a JSON object"));
        }
        Ok(Self { source, translator: Translator::new(source), zone })
    }

    fn compile(mut self) -> Result<Compiled, Problem> {
        let source = self.source;
        let to = self.part("to", source.to.as_deref(), Form::Text)?;
        let subject = self.part("subject", source.subject.as_deref(), Form::Text)?;
        let text = self.part("text", source.text.as_deref(), Form::Text)?;
        let html = match (source.layout.as_deref(), source.html.as_deref()) {
            (Some(layout), Some(html)) => {
                let code = self.translator.in_layout(layout, html)?;
                Some(Part { name: "html".to_owned(), key: "html".to_owned(), code, form: Form::Html })
            }
            (Some(_), None) => {
                return Err(Problem::of_part(
                    "layout",
                    "a layout is set, but the template has no part html; add html or remove the layout",
                ));
            }
            (None, html) => self.part("html", html, Form::Html)?,
        };
        let data = source.data.as_ref().map(|data| self.data(data)).transpose()?;
        let parts = [&to, &subject, &text, &html].into_iter().flatten();
        let engine = self.engine(parts.chain(data.iter().flat_map(|(_, parts)| parts)))?;
        let (placeholders, unsubscribe) = (self.placeholders(), self.unsubscribe());
        Ok(Compiled {
            engine,
            to,
            subject,
            text,
            html,
            data,
            slots: self.translator.names.slots,
            tags: self.translator.tags.into(),
            placeholders,
            unsubscribe,
            warnings: self.translator.warnings,
            brand: FlatPayload::from(&source.brand),
            missing: source.missing,
            date_format: source.date_format.as_str().into(),
            zone: self.zone,
        })
    }

    fn part(&mut self, name: &str, text: Option<&'a str>, form: Form) -> Result<Option<Part>, Problem> {
        let Some(text) = text else { return Ok(None) };
        let code = self.translator.part(name, text, form)?;
        Ok(Some(Part { name: name.to_owned(), key: name.to_owned(), code, form }))
    }

    fn data(&mut self, data: &'a serde_json::Value) -> Result<(Tree, Vec<Part>), Problem> {
        let mut parts = Vec::new();
        let tree = data::tree(data, "data", &mut |path: &str, text: &'a str| {
            let number = parts.len();
            let inserted = self.translator.inserted(path, text)?;
            let tree = if inserted.is_some() { Tree::Inserted(number) } else { Tree::Text(number) };
            let code = match inserted {
                Some(code) => code,
                None => self.translator.part(path, text, Form::Text)?,
            };
            // The key is a number, because two paths can have the same spelling: {"a.b": …} and {"a": {"b": …}}.
            parts.push(Part { name: path.to_owned(), key: format!("data {number}"), code, form: Form::Text });
            Ok(tree)
        })?;
        Ok((tree, parts))
    }

    /// Builds the engine. A template can reach only these filters and its own parts.
    fn engine<'p>(&self, parts: impl Iterator<Item = &'p Part>) -> Result<Environment<'static>, Problem> {
        let parts: Vec<&Part> = parts.collect();
        let mut engine = Environment::empty();
        engine.set_debug(false);
        engine.set_fuel(Some(limits::FUEL));
        engine.set_recursion_limit(4 * limits::DEPTH);
        engine.set_undefined_behavior(UndefinedBehavior::Chainable);
        let mut syntax = SyntaxConfig::builder();
        syntax.trim_blocks(true).lstrip_blocks(true).keep_trailing_newline(true);
        engine.set_syntax(syntax.build().map_err(|problem| Problem::of_part("template", problem.to_string()))?);
        let html: BTreeSet<String> =
            parts.iter().filter(|part| part.form == Form::Html).map(|part| part.key.clone()).collect();
        engine.set_auto_escape_callback(move |name| match html.contains(name) {
            true => AutoEscape::Html,
            false => AutoEscape::None,
        });
        super::filters::install(&mut engine);
        for part in parts {
            engine.add_template_owned(part.key.clone(), part.code.text.clone()).map_err(|problem| {
                let message = problem.detail().map_or_else(|| problem.to_string(), str::to_owned);
                let tag = problem.range().and_then(|range| part.code.tag_at(range.start));
                match tag.and_then(|tag| self.translator.tags.get(tag)) {
                    Some(tag) => Problem::at(tag.place.clone(), message),
                    None => Problem::of_part(&part.name, message),
                }
            })?;
        }
        Ok(engine)
    }

    fn placeholders(&self) -> Vec<Placeholder> {
        let mut found = BTreeMap::new();
        for tag in &self.translator.tags {
            for read in &tag.reads {
                let Some(slot) = read.slot.map(|slot| &self.translator.names.slots[slot]) else { continue };
                if slot.root == Root::Payload && !NOTE_FIELDS.contains(&slot.flat.as_str()) {
                    let new = || Placeholder { name: read.name.clone(), place: tag.place.clone() };
                    found.entry(slot.flat.clone()).or_insert_with(new);
                }
            }
        }
        found.into_values().collect()
    }

    /// The first placeholder that reads the unsubscribe link.
    fn unsubscribe(&self) -> Option<Placeholder> {
        let slots = &self.translator.names.slots;
        self.translator.tags.iter().find_map(|tag| {
            let is_link = |slot: usize| is_unsubscribe_url(&slots[slot]);
            let read = tag.reads.iter().find(|read| read.slot.is_some_and(is_link))?;
            Some(Placeholder { name: read.name.clone(), place: tag.place.clone() })
        })
    }
}

fn is_unsubscribe_url(slot: &Slot) -> bool {
    match slot.root {
        Root::Payload => slot.flat == UNSUBSCRIBE_URL,
        Root::Notification => slot.rest == UNSUBSCRIBE_URL,
        Root::Brand | Root::User => false,
    }
}

fn no_unsubscribe_url(at: &Placeholder, why: &str) -> Warning {
    let (name, place) = (at.name.clone(), at.place.clone());
    Warning {
        part: place.part,
        line: Some(place.line),
        column: Some(place.column),
        message: format!("{name} is empty, because {why}"),
        placeholder: Some(name),
    }
}

fn check_sizes(source: &Source) -> Result<(), Problem> {
    let data = source.data.as_ref().map(ToString::to_string);
    let parts = [&source.to, &source.subject, &source.text, &source.html, &data];
    let bytes: usize = parts.into_iter().flatten().map(String::len).sum();
    if bytes > limits::SOURCE_BYTES {
        let limit = limits::SOURCE_BYTES;
        let message = format!("the parts have {bytes} bytes together; at most {limit} are allowed");
        return Err(Problem::of_part("template", message));
    }
    for (name, text) in &source.parts {
        if text.len() > limits::LAYOUT_BYTES {
            let (bytes, limit) = (text.len(), limits::LAYOUT_BYTES);
            let message = format!("has {bytes} bytes; at most {limit} are allowed");
            return Err(Problem::of_part(format!("partial {name}"), message));
        }
    }
    Ok(())
}

fn note_fields(note: &Note<'_>, unsubscribe_url: &str) -> FlatPayload {
    FlatPayload::from(&serde_json::json!({
        "id": note.id,
        "event_type": note.event_type,
        "entity": note.entity,
        "topic": note.topic,
        "title": note.title,
        "body": note.body,
        "action_url": note.action_url,
        "correlation_id": note.correlation_id,
        "due_at": note.due_at,
        "created_at": note.created_at,
        "unsubscribe_url": unsubscribe_url,
    }))
}

fn rendered_data(
    tree: &Tree,
    parts: &[Part],
    render: &mut impl FnMut(&Part, usize) -> Result<String, Failure>,
) -> Result<Box<RawValue>, Failure> {
    let too_long = || {
        let limit = limits::DATA_BYTES as u64;
        Failure::Limit { part: "data".to_owned(), what: Cap::Output, limit }
    };
    let (mut json, mut left) = (String::new(), limits::DATA_BYTES);
    tree.write(&mut json, &mut |number: usize| {
        let text = render(&parts[number], left).map_err(|failure| match failure {
            Failure::Limit { what: Cap::Output, .. } => too_long(),
            other => other,
        })?;
        left -= text.len();
        Ok(text)
    })?;
    if json.len() > limits::DATA_BYTES {
        return Err(too_long());
    }
    RawValue::from_string(json).map_err(|_| {
        Failure::Failed(Problem::of_part("data", "the rendered data is not valid JSON; report it as a bug"))
    })
}

/// Joins a subject into one line, because a line break in a mail header would begin another header.
fn one_line(text: &str) -> String {
    let spaced: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    spaced.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the text with line feeds as its only line breaks, and without other control characters except tabs.
fn clean(text: &str) -> String {
    let kept = |c: &char| !c.is_control() || matches!(c, '\n' | '\t');
    text.replace("\r\n", "\n").replace('\r', "\n").chars().filter(kept).collect()
}
