//! The form of a template: its fields, and the change that they describe.

use postcommit_channel::model::{DigestRule, Then, Throttle};
use postcommit_channel::template::{LAYOUTS, Missing, Source};
use postcommit_engine::store::{LayoutRow, TemplateRow};
use serde_json::Value;

use crate::problem::Problem;
use crate::read::typed_object;
use crate::templates::Change;
use crate::ui::typed::Typed;

/// The fields of the form, with those of the preview's data and of the test.
pub const FIELDS: [&str; 28] = [
    "id",
    "event_type",
    "channel",
    "audience",
    "language",
    "scope_type",
    "scope_id",
    "active",
    "once_per",
    "throttle_max",
    "throttle_per_s",
    "throttle_then",
    "digest_window_s",
    "digest_key",
    "to",
    "subject",
    "text",
    "html",
    "data",
    "layout",
    "missing",
    "date_format",
    "time_zone",
    "note",
    "revision",
    "payload",
    "loaded",
    "notification_id",
];

/// The form of a stored template.
pub fn filled(row: &TemplateRow, source: &Source) -> Typed {
    let draft = &row.draft;
    let number = |number: Option<u32>| number.map(|number| number.to_string()).unwrap_or_default();
    let throttle = draft.throttle.as_ref();
    let then = throttle.map_or("skip", |throttle| then_name(throttle.then));
    let mut typed = Typed::default();
    let texts: [(&str, &str); 10] = [
        ("id", &draft.id),
        ("event_type", &draft.event_type),
        ("channel", &draft.channel),
        ("audience", &draft.audience),
        ("language", &draft.language),
        ("scope_type", &draft.scope_type),
        ("scope_id", &draft.scope_id),
        ("once_per", &draft.once_per),
        ("throttle_then", then),
        ("digest_key", draft.digest.as_ref().and_then(|digest| digest.key.as_deref()).unwrap_or_default()),
    ];
    for (name, text) in texts {
        typed.set(name, text);
    }
    typed.set("throttle_max", &number(throttle.map(|throttle| throttle.max)));
    typed.set("throttle_per_s", &number(throttle.map(|throttle| throttle.per_s)));
    typed.set("digest_window_s", &number(draft.digest.as_ref().map(|digest| digest.window_s)));
    typed.set("revision", &row.revision.to_string());
    fill_parts(&mut typed, source);
    typed
}

fn fill_parts(typed: &mut Typed, source: &Source) {
    let data = source.data.as_ref().and_then(|data| serde_json::to_string_pretty(data).ok());
    let parts = [
        ("to", source.to.as_deref()),
        ("subject", source.subject.as_deref()),
        ("text", source.text.as_deref()),
        ("html", source.html.as_deref()),
        ("data", data.as_deref()),
        ("layout", source.layout.as_deref()),
        ("missing", Some(source.missing.name())),
        ("date_format", Some(source.date_format.as_str())),
        ("time_zone", Some(source.time_zone.as_str())),
    ];
    for (name, text) in parts {
        typed.set(name, text.unwrap_or_default());
    }
}

/// The form of a new template.
pub fn empty() -> Typed {
    let mut typed = Typed::default();
    for (name, value) in
        [("channel", "email"), ("active", "yes"), ("once_per", "notification"), ("throttle_then", "skip")]
    {
        typed.set(name, value);
    }
    typed
}

/// The change that the form describes. An empty field removes its value.
pub fn change(typed: &Typed) -> Result<Change, Problem> {
    let text = |name: &str| Some(typed.get(name).to_owned());
    let part = |name: &str| Some(typed.some(name));
    let data = typed.some("data").map(|data| typed_object("data", &data).map(Value::Object)).transpose()?;
    Ok(Change {
        event_type: text("event_type"),
        channel: text("channel"),
        audience: text("audience"),
        language: text("language"),
        scope_type: text("scope_type"),
        scope_id: text("scope_id"),
        // The form of an existing template has no such field: a separate button activates it.
        active: typed.some("active").map(|active| active == "yes"),
        once_per: text("once_per"),
        throttle: Some(throttle(typed)?),
        digest: Some(digest(typed)?),
        from_version: None,
        to: part("to"),
        subject: part("subject"),
        text: part("text"),
        html: part("html"),
        data: Some(data),
        layout: part("layout"),
        missing: part("missing"),
        date_format: part("date_format"),
        time_zone: part("time_zone"),
        note: typed.some("note"),
    })
}

fn throttle(typed: &Typed) -> Result<Option<Throttle>, Problem> {
    let (max, per_s) = (number(typed, "throttle_max")?, number(typed, "throttle_per_s")?);
    let then = if typed.get("throttle_then") == "digest" { Then::Digest } else { Then::Skip };
    match (max, per_s) {
        (Some(max), Some(per_s)) => Ok(Some(Throttle { max, per_s, then })),
        (None, None) => Ok(None),
        (Some(_), None) => Err(Problem::invalid("throttle_per_s", "is empty; a limit needs a period in seconds")),
        (None, Some(_)) => Err(Problem::invalid("throttle_max", "is empty; a limit needs a number of messages")),
    }
}

fn digest(typed: &Typed) -> Result<Option<DigestRule>, Problem> {
    match (number(typed, "digest_window_s")?, typed.some("digest_key")) {
        (Some(window_s), key) => Ok(Some(DigestRule { window_s, key })),
        (None, None) => Ok(None),
        (None, Some(_)) => Err(Problem::invalid("digest_window_s", "is empty; a digest needs a window in seconds")),
    }
}

fn number(typed: &Typed, name: &str) -> Result<Option<u32>, Problem> {
    let wrong = |text: String| Problem::invalid(name, format!("is {text:?}; a whole number is needed"));
    typed.some(name).map(|text| text.trim().parse().map_err(|_| wrong(text))).transpose()
}

fn then_name(then: Then) -> &'static str {
    match then {
        Then::Skip => "skip",
        Then::Digest => "digest",
    }
}

/// The choices of a layout: value and label.
pub fn layouts(known: &[LayoutRow]) -> Vec<(String, String)> {
    let own = known.iter().filter(|layout| layout.kind == "layout").map(|layout| layout.name.clone());
    let names: std::collections::BTreeSet<String> = own.chain(LAYOUTS.map(|(name, _)| name.to_owned())).collect();
    let none = (String::new(), "None".to_owned());
    std::iter::once(none).chain(names.into_iter().map(|name| (name.clone(), name))).collect()
}

/// The choices of a treatment of missing values.
pub fn treatments() -> Vec<(&'static str, String)> {
    let said = |missing: Missing| match missing {
        Missing::Empty => "Print nothing",
        Missing::Keep => "Print the placeholder",
        Missing::Refuse => "Do not send",
    };
    let all = Missing::ALL.into_iter().map(|missing| (missing.name(), said(missing).to_owned()));
    std::iter::once(("", "As the content settings say".to_owned())).chain(all).collect()
}
