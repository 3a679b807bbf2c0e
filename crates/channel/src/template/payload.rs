//! The flat view of a payload. `{"guest": {"Phone": "+91"}}` has the field `guestphone`, and so have the payloads
//! `{"guestPhone": "+91"}` and `{"guest_phone": "+91"}`: case, dots, underscores and hyphens do not matter.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use foldhash::fast::RandomState;
use serde::{Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

use super::limits;

/// Levels of nesting that are read. A payload has at most [`postcommit::limits::JSON_DEPTH`] levels.
const LEVELS: usize = 64;

/// The name of a field in the flat view: lower case, letters and digits only.
#[must_use]
pub fn flat_name(name: &str) -> String {
    if name.is_ascii() {
        return name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect();
    }
    name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

/// The payload of a notification: the JSON as it was enqueued. Many drivers and templates never read it, so it is parsed
/// when it is first needed, and so is its flat view.
#[derive(Debug, Clone)]
pub struct Payload {
    text: Box<str>,
    /// The text as a JSON string. Set only if the text itself is not JSON.
    quoted: OnceLock<Box<RawValue>>,
    flat: OnceLock<FlatPayload>,
}

impl Payload {
    /// The flat view of the payload.
    pub fn flat(&self) -> &FlatPayload {
        self.flat.get_or_init(|| FlatPayload::new(self))
    }
}

/// Takes the text of the stored payload. Text that is not JSON is a JSON string.
impl From<String> for Payload {
    fn from(text: String) -> Self {
        Self { text: text.into(), quoted: OnceLock::new(), flat: OnceLock::new() }
    }
}

impl From<Box<RawValue>> for Payload {
    fn from(json: Box<RawValue>) -> Self {
        Self { text: json.into(), quoted: OnceLock::new(), flat: OnceLock::new() }
    }
}

impl Deref for Payload {
    type Target = RawValue;

    fn deref(&self) -> &RawValue {
        let quoted = || self.quoted.get_or_init(|| serde_json::value::to_raw_value(&self.text).unwrap_or_default());
        serde_json::from_str::<&RawValue>(&self.text).unwrap_or_else(|_| quoted())
    }
}

impl Serialize for Payload {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (**self).serialize(serializer)
    }
}

/// A JSON value of a payload. A number keeps its digits. A clone is cheap.
#[derive(Debug, Clone)]
pub(super) enum Node {
    Null,
    Bool(bool),
    Number(Arc<str>),
    Text(Arc<str>),
    List(Arc<[Node]>),
    Map(Arc<Fields>),
}

/// The fields of a JSON object.
#[derive(Debug, Default)]
pub(super) struct Fields {
    entries: Vec<(String, Node)>,
    flat: OnceLock<HashMap<String, Node, RandomState>>,
}

impl Node {
    /// Reads JSON. Invalid JSON and levels that are nested too deeply become null.
    fn read(json: &str, level: usize) -> Self {
        let json = json.trim_start();
        if level > LEVELS {
            return Self::Null;
        }
        match json.as_bytes().first() {
            Some(b'{') => {
                let fields: BTreeMap<String, &RawValue> = serde_json::from_str(json).unwrap_or_default();
                Self::map(fields.into_iter().map(|(name, raw)| (name, Self::read(raw.get(), level + 1))))
            }
            Some(b'[') => {
                let items: Vec<&RawValue> = serde_json::from_str(json).unwrap_or_default();
                Self::List(items.into_iter().map(|raw| Self::read(raw.get(), level + 1)).collect())
            }
            Some(b'"') => serde_json::from_str::<String>(json).map_or(Self::Null, |text| Self::Text(text.into())),
            Some(b't') => Self::Bool(true),
            Some(b'f') => Self::Bool(false),
            Some(b'-' | b'0'..=b'9') => Self::Number(json.trim_end().into()),
            _ => Self::Null,
        }
    }

    fn map(fields: impl Iterator<Item = (String, Self)>) -> Self {
        Self::Map(Arc::new(Fields { entries: fields.collect(), flat: OnceLock::new() }))
    }

    fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) | Self::Number(text) => Some(text),
            Self::Bool(true) => Some("true"),
            Self::Bool(false) => Some("false"),
            Self::Null | Self::List(_) | Self::Map(_) => None,
        }
    }
}

impl From<&Value> for Node {
    fn from(value: &Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(yes) => Self::Bool(*yes),
            Value::Number(number) => Self::Number(number.to_string().into()),
            Value::String(text) => Self::Text(text.as_str().into()),
            Value::Array(items) => Self::List(items.iter().map(Self::from).collect()),
            Value::Object(fields) => Self::map(fields.iter().map(|(name, value)| (name.clone(), Self::from(value)))),
        }
    }
}

impl Fields {
    pub(super) fn entries(&self) -> &[(String, Node)] {
        &self.entries
    }

    /// The field with this flat name. `None` if the field is absent or null.
    pub(super) fn get(&self, flat: &str) -> Option<&Node> {
        self.flat.get_or_init(|| self.flatten()).get(flat)
    }

    /// Returns all fields by flat name. Of two fields with one flat name, the less deeply nested takes precedence, then
    /// the first in alphabetical order, because a database may store fields in any order.
    fn flatten(&self) -> HashMap<String, Node, RandomState> {
        let mut flat = HashMap::with_capacity_and_hasher(2 * self.entries.len(), RandomState::default());
        self.walk(|name, node| {
            if !matches!(node, Node::Null) {
                flat.entry(name.to_owned()).or_insert_with(|| node.clone());
            }
        });
        flat
    }

    /// Calls `see` with the flat name and the value of every field, level by level.
    fn walk(&self, mut see: impl FnMut(&str, &Node)) {
        let mut levels = VecDeque::from([(String::new(), self)]);
        while let Some((prefix, fields)) = levels.pop_front() {
            for (name, node) in &fields.entries {
                let flat = prefix.clone() + &flat_name(name);
                if flat.is_empty() || flat.len() > limits::NAME_BYTES {
                    continue;
                }
                see(&flat, node);
                if let Node::Map(inner) = node {
                    levels.push_back((flat, inner));
                }
            }
        }
    }
}

/// The flat view of a payload. A clone is cheap.
#[derive(Debug, Clone, Default)]
pub struct FlatPayload(Arc<Fields>);

impl FlatPayload {
    /// Reads a payload. A payload that is not a JSON object has no fields.
    #[must_use]
    pub fn new(payload: &RawValue) -> Self {
        Self::of(&Node::read(payload.get(), 0))
    }

    fn of(node: &Node) -> Self {
        match node {
            Node::Map(fields) => Self(Arc::clone(fields)),
            _ => Self::default(),
        }
    }

    /// A field as a string, under any spelling of its name. A number keeps the digits of the payload. `None` if the
    /// field is absent, null, a list or an object.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        self.0.get(&flat_name(name))?.text()
    }

    /// The flat names of all fields, including null fields.
    #[must_use]
    pub fn names(&self) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        self.0.walk(|name, _| {
            names.insert(name.to_owned());
        });
        names
    }

    pub(super) fn fields(&self) -> &Fields {
        &self.0
    }

    /// The fields whose flat name ends with `end`: name and text, ordered by name.
    fn ending_in<'a>(&'a self, end: &str) -> Vec<(String, &'a str)> {
        let mut found = BTreeMap::new();
        for name in self.names().into_iter().filter(|name| name.ends_with(end)) {
            if let Some(text) = self.0.get(&name).and_then(Node::text) {
                found.insert(name, text);
            }
        }
        found.into_iter().collect()
    }
}

impl From<&Value> for FlatPayload {
    fn from(value: &Value) -> Self {
        Self::of(&Node::from(value))
    }
}

/// The error when several fields of a payload could be the address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ambiguous {
    /// The flat names of the fields.
    pub names: Vec<String>,
}

impl fmt::Display for Ambiguous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the payload has several addresses: {}; set the template's part `to`", self.names.join(", "))
    }
}

impl std::error::Error for Ambiguous {}

/// The address in a payload for a template without the part `to`: the field `phone` for sms and whatsapp, `email` for
/// email, or the only field whose name ends with that word, such as `guestPhone`. Empty strings are ignored.
pub fn default_address(channel: &str, payload: &FlatPayload) -> Result<Option<String>, Ambiguous> {
    let kind = match channel {
        "sms" | "whatsapp" => "phone",
        "email" => "email",
        _ => return Ok(None),
    };
    let usable = |text: &&str| !text.trim().is_empty();
    if let Some(text) = payload.text(kind).filter(usable) {
        return Ok(Some(text.trim().to_owned()));
    }
    let mut found = payload.ending_in(kind);
    found.retain(|(_, text)| usable(text));
    match &found[..] {
        [] => Ok(None),
        [(_, text)] => Ok(Some(text.trim().to_owned())),
        _ => Err(Ambiguous { names: found.into_iter().map(|(name, _)| name).collect() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(json: &str) -> FlatPayload {
        FlatPayload::new(&RawValue::from_string(json.to_owned()).unwrap())
    }

    #[test]
    fn a_payload_keeps_its_text_and_text_that_is_not_json_becomes_a_string() {
        let kept = Payload::from(r#"{"price": 10.500, "n": 12345678901234567890123}"#.to_owned());
        assert_eq!(kept.get(), r#"{"price": 10.500, "n": 12345678901234567890123}"#);
        assert_eq!(kept.flat().text("price"), Some("10.500"));
        let broken = Payload::from("{\"price\": ".to_owned());
        assert_eq!(broken.get(), r#""{\"price\": ""#);
        assert_eq!(serde_json::to_string(&broken).unwrap(), broken.get());
        assert_eq!(broken.flat().text("price"), None);
    }

    #[test]
    fn the_spelling_of_a_name_does_not_matter() {
        for json in [
            r#"{"guestPhone": "+91"}"#,
            r#"{"GUEST_PHONE": "+91"}"#,
            r#"{"guest": {"Phone": "+91"}}"#,
            r#"{ "guest-phone" : "+91" }"#,
        ] {
            for name in ["guestPhone", "GUESTPHONE", "guest.Phone", "guest.phone", "guest_phone"] {
                assert_eq!(payload(json).text(name), Some("+91"), "{name} of {json}");
            }
        }
        assert_eq!(payload(r#"{"guest": {"Phone": "+91"}}"#).text("phone"), None);
    }

    #[test]
    fn a_number_keeps_its_digits() {
        let it = payload(r#"{"a": 1500.50, "b": 12345678901234567890123, "c": [1], "d": true, "e": null}"#);
        assert_eq!(it.text("a"), Some("1500.50"));
        assert_eq!(it.text("b"), Some("12345678901234567890123"));
        assert_eq!(it.text("c"), None);
        assert_eq!(it.text("d"), Some("true"));
        assert_eq!(it.text("e"), None);
        assert_eq!(it.names().into_iter().collect::<Vec<_>>(), ["a", "b", "c", "d", "e"]);
    }

    #[test]
    fn of_two_fields_with_one_flat_name_the_less_nested_comes_first() {
        assert_eq!(payload(r#"{"guest": {"phone": "nested"}, "guestPhone": "top"}"#).text("guestphone"), Some("top"));
        // A null does not hide a value, and the order of fields in the JSON does not matter.
        assert_eq!(payload(r#"{"guestPhone": null, "guest": {"phone": "x"}}"#).text("guestphone"), Some("x"));
        assert_eq!(payload(r#"{"a_b": 2, "a-b": 1}"#).text("ab"), Some("1"));
        assert_eq!(payload(r#"{"a-b": 1, "a_b": 2}"#).text("ab"), Some("1"));
    }

    #[test]
    fn what_is_not_an_object_has_no_fields() {
        for json in ["[]", "1", "null", r#""x""#] {
            assert_eq!(payload(json).names().len(), 0, "{json}");
        }
    }

    #[test]
    fn long_paths_are_not_flattened() {
        let long = "x".repeat(200);
        let it = payload(&format!(r#"{{"{long}": {{"{long}": 1, "y": 2}}}}"#));
        assert_eq!(it.names().len(), 2);
        assert_eq!(it.text(&format!("{long}y")), Some("2"));
    }

    #[test]
    fn the_default_address_is_the_only_field_of_its_kind() {
        let address = |channel: &str, json: &str| default_address(channel, &payload(json));
        let some = |text: &str| Ok(Some(text.to_owned()));
        assert_eq!(address("sms", r#"{"guestPhone": "+919876543210", "guestEmail": "a@b.c"}"#), some("+919876543210"));
        assert_eq!(address("email", r#"{"guest": {"email": " a@b.c "}}"#), some("a@b.c"));
        assert_eq!(address("whatsapp", r#"{"phone": "+1", "hostPhone": "+2"}"#), some("+1"));
        assert_eq!(address("sms", r#"{"guestPhone": "", "hostPhone": "+2"}"#), some("+2"));
        assert_eq!(address("sms", "{}"), Ok(None));
        assert_eq!(address("webhook", r#"{"phone": "+1"}"#), Ok(None));
        let ambiguous = address("sms", r#"{"guestPhone": "+1", "hostPhone": "+2"}"#).unwrap_err();
        assert_eq!(
            ambiguous.to_string(),
            "the payload has several addresses: guestphone, hostphone; set the template's part `to`"
        );
    }
}
