//! The contents of the files in a folder.

use std::collections::BTreeMap;
use std::path::Path;

use postcommit_channel::model::{DigestRule, QuietRule, Throttle, channels_of_kind};
use postcommit_engine::store::{ContentSettings, MemberDraft};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Kind, Object};

/// A template. Omitted fields have their defaults.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Template {
    pub event_type: String,
    pub channel: String,
    #[serde(default)]
    pub audience: String,
    #[serde(default)]
    pub language: String,
    #[serde(default)]
    pub scope_type: String,
    #[serde(default)]
    pub scope_id: String,
    #[serde(default = "yes")]
    pub active: bool,
    #[serde(default = "notification")]
    pub once_per: String,
    pub throttle: Option<Throttle>,
    pub digest: Option<DigestRule>,
    pub to: Option<String>,
    pub subject: Option<String>,
    pub text: Option<String>,
    pub html: Option<String>,
    pub data: Option<Value>,
    pub layout: Option<String>,
    /// The treatment of placeholders without a value. This field, the date format and the time zone are omitted if they
    /// equal the content settings.
    pub missing: Option<String>,
    pub date_format: Option<String>,
    pub time_zone: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layout {
    pub kind: String,
    pub source: String,
}

/// The content settings. Omitted fields have their defaults.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Content {
    pub language: Option<String>,
    pub time_zone: Option<String>,
    pub date_format: Option<String>,
    pub missing: Option<String>,
    #[serde(default)]
    pub brand: Map<String, Value>,
}

/// A declared event type. Omitted fields have their defaults.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventType {
    pub description: Option<String>,
    pub sample: Option<Value>,
    #[serde(default)]
    pub placeholders: Vec<String>,
    #[serde(default)]
    pub mandatory: bool,
    #[serde(default)]
    pub quiet_hours: QuietRule,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct List {
    pub description: Option<String>,
    #[serde(default)]
    pub members: Vec<MemberDraft>,
}

/// A provider. Omitted fields keep their values, or have the driver's defaults if the provider is new.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provider {
    pub driver: String,
    pub channel: Option<String>,
    #[serde(default)]
    pub settings: Map<String, Value>,
    pub guarantee: Option<String>,
    pub policy: Option<Value>,
    pub concurrency: Option<i32>,
    pub timeout_ms: Option<i32>,
    pub is_default: Option<bool>,
    pub rate_per_s: Option<f64>,
    pub burst: Option<i32>,
    pub breaker_failures: Option<i32>,
    pub breaker_cool_down_s: Option<i32>,
    pub failover: Option<String>,
    pub failover_after_s: Option<i32>,
    pub enabled: Option<bool>,
    /// The source of each secret: `env:NAME`, `file:PATH`, or `stored` to keep the provider's current secret.
    #[serde(default)]
    pub secrets: BTreeMap<String, String>,
}

fn yes() -> bool {
    true
}

fn notification() -> String {
    "notification".to_owned()
}

/// Checks the content of a file, and returns the object in its canonical form.
pub fn checked(kind: Kind, file: &Path, content: Value) -> Result<Object, String> {
    let checked = match kind {
        Kind::EventType => usual::<EventType>(content),
        Kind::Content => parsed(content).map(settings),
        Kind::Layout => usual::<Layout>(content),
        Kind::Provider => usual::<Provider>(content),
        Kind::Template => usual::<Template>(content),
        Kind::List => parsed(content).map(list),
    };
    checked.map_err(|problem| format!("{}: {problem}", file.display()))
}

fn parsed<T: DeserializeOwned>(content: Value) -> Result<T, String> {
    serde_path_to_error::deserialize(content).map_err(|e| e.to_string())
}

fn usual<T: DeserializeOwned + Serialize>(content: Value) -> Result<Object, String> {
    parsed::<T>(content).map(|value| object(&value))
}

/// The fields of a value that are not empty.
pub fn object(value: &impl Serialize) -> Object {
    let Ok(Value::Object(mut fields)) = serde_json::to_value(value) else { return Object::new() };
    fields.retain(|_, value| match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => true,
    });
    fields
}

/// Content settings in their canonical form, without defaults.
pub fn settings(mut content: Content) -> Object {
    let defaults = ContentSettings::default();
    let missing = defaults.missing.name();
    for (value, default) in [
        (&mut content.time_zone, defaults.time_zone.as_str()),
        (&mut content.date_format, &defaults.date_format),
        (&mut content.missing, missing),
    ] {
        *value = value.take().filter(|value| value != default);
    }
    object(&content)
}

/// A list in its canonical form.
pub fn list(list: List) -> Object {
    let mut fields = object(&sorted(list));
    for member in fields.get_mut("members").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(member) = member.as_object_mut() {
            member.retain(|_, value| !value.is_null());
        }
    }
    fields
}

/// Converts an object to its type.
pub fn of<T: DeserializeOwned>(object: &Object) -> Result<T, String> {
    parsed(Value::Object(object.clone()))
}

/// Returns the list with its members in order. The default channel of an address is omitted.
pub fn sorted(mut list: List) -> List {
    for member in &mut list.members {
        let default = channels_of_kind(&member.kind).first().copied();
        member.channel = member.channel.take().filter(|channel| Some(channel.as_str()) != default);
    }
    list.members.sort_by(|a, b| (&a.kind, &a.member, &a.channel).cmp(&(&b.kind, &b.member, &b.channel)));
    list.members.dedup();
    list
}
