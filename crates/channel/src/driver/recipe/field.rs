//! The settings and secrets that an operator sets for a recipe, and the fields that the channel data must contain.

use std::collections::BTreeMap;

use postcommit::check;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use url::Url;

use crate::driver::smtp::mail;
use crate::egress::Egress;

/// The fields of a table by name.
pub(super) type Fields = BTreeMap<String, Field>;

/// A setting, a secret or a field of the channel data.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Field {
    #[serde(default)]
    pub r#type: FieldType,
    #[serde(skip_serializing_if = "Option::is_none")]
    required: Option<bool>,
    /// The name of a setting. If that setting is set, this field is not required.
    #[serde(skip_serializing_if = "Option::is_none")]
    required_unless: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<Json>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub choices: Vec<Json>,
    /// The allowed beginnings of the text. Empty means any text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub starts_with: Vec<String>,
    /// The meaning of the field, in half a sentence.
    pub help: String,
}

/// The type of a field's value.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FieldType {
    /// One line of text.
    #[default]
    Text,
    /// An http or https URL.
    Url,
    /// A mail address.
    Email,
    /// A mail address with an optional name.
    Mailbox,
    /// A phone number in E.164.
    Phone,
    Number,
    Boolean,
    List,
    Object,
}

impl FieldType {
    /// Checks the type of a value. The error says what is expected, without the value.
    pub(super) fn check(self, value: &Json, egress: Option<&Egress>, part: Part) -> Result<(), String> {
        let text = || value.as_str().ok_or_else(|| "must be a text".to_owned());
        match self {
            Self::Text if part == Part::Data => drop(text()?),
            Self::Text => check::one_line(text()?)?,
            Self::Url => check_url(text()?, egress)?,
            Self::Email => check::email(text()?)?,
            Self::Mailbox => drop(mail::mailbox(text()?)?),
            Self::Phone => check::phone(text()?)?,
            Self::Number if !value.is_number() => return Err("must be a number".into()),
            Self::Boolean if !value.is_boolean() => return Err("must be true or false".into()),
            Self::List if !value.is_array() => return Err("must be a list".into()),
            // A secret is stored as a text. A secret of the type `object` is the text of a JSON file.
            Self::Object if part == Part::Secret => {
                serde_json::from_str::<Map<String, Json>>(text()?).map_err(|_| "must be a JSON object")?;
            }
            Self::Object if !value.is_object() => return Err("must be an object".into()),
            _ => {}
        }
        if value.as_str().is_some_and(str::is_empty) { Err("is empty".into()) } else { Ok(()) }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Url => "URL",
            Self::Email => "mail address",
            Self::Mailbox => "mail address, with a name or without",
            Self::Phone => "phone number",
            Self::Number => "number",
            Self::Boolean => "true or false",
            Self::List => "list",
            Self::Object => "object",
        }
    }
}

impl Field {
    /// Whether the field is required, regardless of `required_unless`.
    #[must_use]
    pub fn is_required(&self) -> bool {
        self.required == Some(true)
    }

    /// Sets whether the field is required, if the recipe does not say so itself.
    pub(super) fn require_unless_said(&mut self, required: bool) {
        self.required.get_or_insert(required);
    }

    /// Whether the field must be given with these settings.
    fn is_needed(&self, settings: Option<&Map<String, Json>>) -> bool {
        match &self.required_unless {
            Some(name) => settings.and_then(|settings| settings.get(name)).is_none_or(Json::is_null),
            None => self.is_required(),
        }
    }

    /// The setting that `required_unless` names.
    pub(super) fn substitute(&self) -> Option<&str> {
        self.required_unless.as_deref()
    }

    /// Checks a value. The error says what is expected, and never repeats a secret.
    pub(super) fn check(&self, value: &Json, egress: Option<&Egress>, part: Part) -> Result<(), String> {
        self.r#type.check(value, egress, part)?;
        let is = if part == Part::Secret { "is another text".to_owned() } else { format!("is {value}") };
        let begins = |text: &str| self.starts_with.iter().any(|start| text.starts_with(start));
        if value.as_str().is_some_and(|text| !self.starts_with.is_empty() && !begins(text)) {
            return Err(format!("{is}; it must begin with {}", self.starts_with.join(" or ")));
        }
        if self.choices.is_empty() || self.choices.contains(value) {
            return Ok(());
        }
        let choices: Vec<String> = self.choices.iter().map(Json::to_string).collect();
        Err(format!("{is}; allowed are {}", choices.join(", ")))
    }
}

/// The place of a value: a setting, a secret or the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Setting,
    Secret,
    /// The channel data of the message. Its texts may have several lines.
    Data,
}

fn check_url(text: &str, egress: Option<&Egress>) -> Result<(), String> {
    const SHAPE: &str = "must be a full http or https URL, such as https://example.com";
    let url = Url::parse(text)
        .ok()
        .filter(|url| matches!(url.scheme(), "http" | "https") && url.fragment().is_none())
        .ok_or(SHAPE)?;
    egress.map_or(Ok(()), |egress| egress.check_url(&url).map_err(|failure| failure.detail))
}

/// Checks the settings of a provider, and adds the defaults.
pub(super) fn settings(fields: &Fields, given: &Json, egress: &Egress) -> Result<Map<String, Json>, String> {
    let none = Map::new();
    let given = given.as_object().unwrap_or(&none);
    if let Some(unknown) = given.keys().find(|name| !fields.contains_key(*name)) {
        let known: Vec<&str> = fields.keys().map(String::as_str).collect();
        return Err(format!("settings.{unknown}: is not known; allowed are {}", known.join(", ")));
    }
    let mut all = Map::new();
    for (name, field) in fields {
        let value = given.get(name).filter(|value| !value.is_null()).or(field.default.as_ref());
        // The command line parses a text of digits as a number, so it is converted back.
        let digits = value.filter(|value| field.r#type == FieldType::Text && (value.is_i64() || value.is_u64()));
        let digits = digits.map(|number| Json::from(number.to_string()));
        match digits.as_ref().or(value) {
            Some(value) => {
                field
                    .check(value, Some(egress), Part::Setting)
                    .map_err(|problem| format!("settings.{name}: {problem}"))?;
                all.insert(name.clone(), value.clone());
            }
            None if field.is_needed(Some(given)) => {
                return Err(format!("settings.{name}: is missing: {}; set it with --set {name}=…", field.help));
            }
            None => {}
        }
    }
    Ok(all)
}

/// Checks the channel data of a message. The error names the field.
pub(super) fn data<'f>(
    fields: impl IntoIterator<Item = (&'f String, &'f Field)>,
    settings: &Json,
    given: Option<&Json>,
) -> Result<(), String> {
    for (name, field) in fields {
        match given.and_then(|given| given.get(name)).filter(|value| !value.is_null()) {
            Some(value) => field.check(value, None, Part::Data).map_err(|problem| format!("{name}: {problem}"))?,
            None if field.is_needed(settings.as_object()) => return Err(format!("{name}: is missing: {}", field.help)),
            None => {}
        }
    }
    Ok(())
}
