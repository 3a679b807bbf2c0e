//! Prints templates, versions and previews as text.

use postcommit_channel::template::Source;
use postcommit_channel::template::sms::Encoding;
use postcommit_engine::store::{TemplateRow, VersionRow};
use serde_json::json;

use crate::output::{self, or_dash};
use crate::templates::preview::Preview;

/// A template as text: its event type, channel and options, then its parts.
pub fn text(template: &TemplateRow, source: &Source) -> String {
    let draft = &template.draft;
    let scope = format!("{} {}", draft.scope_type, draft.scope_id);
    let fields = [
        ("event type", draft.event_type.clone()),
        ("channel", draft.channel.clone()),
        ("audience", draft.audience.clone()),
        ("language", draft.language.clone()),
        ("scope", scope.trim().to_owned()),
        ("active", if draft.active { "yes" } else { "no" }.to_owned()),
        ("once per", draft.once_per.clone()),
        ("throttle", draft.throttle.as_ref().map_or_else(|| "-".to_owned(), |rule| json!(rule).to_string())),
        ("digest", draft.digest.as_ref().map_or_else(|| "-".to_owned(), |rule| json!(rule).to_string())),
        ("version", template.version.to_string()),
        ("layout", source.layout.clone().unwrap_or_default()),
        ("missing", source.missing.name().to_owned()),
        ("dates", format!("{} {}", source.date_format, source.time_zone)),
    ];
    let lines = fields.iter().filter(|(_, value)| !value.is_empty());
    let lines = lines.map(|(name, value)| format!("  {name:<13}{value}"));
    let data = source.data.as_ref().map(|data| format!("{data:#}"));
    let parts = sections(&[
        ("to", &source.to),
        ("subject", &source.subject),
        ("text", &source.text),
        ("html", &source.html),
        ("data", &data),
    ]);
    std::iter::once(draft.id.clone()).chain(lines).chain(parts).collect::<Vec<_>>().join("\n")
}

/// The parts of the template that are set, each under its name.
fn sections(parts: &[(&str, &Option<String>)]) -> Vec<String> {
    parts.iter().filter_map(|(name, text)| Some(format!("--- {name}\n{}", text.as_ref()?.trim_end()))).collect()
}

pub fn preview(preview: &Preview) -> String {
    let data = preview.data.as_ref().map(|data| format!("{data:#}"));
    let sms = preview.sms.map(|sms| {
        let encoding = match sms.encoding {
            Encoding::Gsm7 => "GSM-7",
            Encoding::Ucs2 => "UCS-2",
        };
        format!("segments: {}, {encoding}, characters: {}", sms.segments, sms.characters)
    });
    sections(&[
        ("to", &preview.to),
        ("subject", &preview.subject),
        ("text", &preview.text),
        ("html", &preview.html),
        ("data", &data),
        ("sms", &sms),
    ])
    .join("\n")
}

pub const COLUMNS: [output::Column<TemplateRow>; 8] = [
    ("id", |row| row.draft.id.clone()),
    ("event type", |row| row.draft.event_type.clone()),
    ("channel", |row| row.draft.channel.clone()),
    ("audience", |row| dash(&row.draft.audience)),
    ("language", |row| dash(&row.draft.language)),
    ("scope", |row| dash(format!("{} {}", row.draft.scope_type, row.draft.scope_id).trim())),
    ("active", |row| if row.draft.active { "yes" } else { "no" }.to_owned()),
    ("version", |row| row.version.to_string()),
];

pub const VERSION_COLUMNS: [output::Column<VersionRow>; 4] = [
    ("version", |row| row.version.to_string()),
    ("created", |row| output::seconds(row.created_at)),
    ("by", |row| row.created_by.clone()),
    ("note", |row| or_dash(&row.note)),
];

fn dash(text: &str) -> String {
    if text.is_empty() { "-".into() } else { text.to_owned() }
}
