//! A request from the network to enqueue a notification. Reading checks it, and numbers in its JSON keep every digit.

use std::collections::HashSet;
use std::fmt;

use postcommit::{Notification, TraceParent, limits};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::db::DbError;

/// The reason why a notification was not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotAccepted {
    /// The request is invalid.
    #[error("{}{problem}", .field.as_ref().map(|field| format!("{field}: ")).unwrap_or_default())]
    Invalid {
        /// The field, for example `recipients[3].phone`. `None` if the request is not valid JSON.
        field: Option<String>,
        /// The problem, and which values are allowed.
        problem: String,
    },
    /// An open transaction has locked the idempotency key, so it is not known yet whether the request is a duplicate.
    #[error(
        "idempotency_key: is in use by a transaction that is still open; repeat the request when that transaction has \
         ended"
    )]
    Held,
    /// The database cannot accept the request now, but may have written it. If the request is repeated with the same
    /// idempotency key, it is enqueued only once.
    #[error("{0}")]
    Unavailable(String),
    /// The database refuses this program's login, and an administrator must act. Nothing was written.
    #[error("{0}")]
    NoRights(String),
}

impl NotAccepted {
    /// Converts the error of a database read without which a notification cannot be checked.
    #[must_use]
    pub fn unread(error: &DbError) -> Self {
        if error.is_lack_of_rights() { Self::NoRights(error.to_string()) } else { Self::Unavailable(error.to_string()) }
    }

    pub(in crate::store) fn invalid(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Invalid { field: Some(field.into()), problem: problem.into() }
    }

    /// Converts an error of the JSON parser. This program's own errors have the form `field: problem`, and the parser
    /// appends the line and column.
    fn of_parser(error: &serde_json::Error) -> Self {
        let text = error.to_string();
        let text = text.rsplit_once(" at line ").map_or(text.as_str(), |(said, _)| said);
        match text.split_once(": ") {
            Some((field, problem)) if is_path(field) => Self::invalid(field, problem),
            _ => Self::Invalid { field: None, problem: text.to_owned() },
        }
    }

    /// Adds the field's name to an error about a wrong type or an unknown field. The parser does not report the field
    /// of a wrong type, so the JSON is parsed a second time.
    fn located_in(self, json: &str) -> Self {
        let Self::Invalid { field: None, problem } = self else { return self };
        if let Some((unknown, _)) = problem.strip_prefix("unknown field `").and_then(|rest| rest.split_once('`')) {
            return Self::invalid(unknown, problem.clone());
        }
        let again: Result<Notification, _> =
            serde_path_to_error::deserialize(&mut serde_json::Deserializer::from_str(json));
        let field = again.err().map(|error| error.path().to_string()).filter(|path| is_path(path));
        Self::Invalid { field, problem }
    }
}

/// Returns whether the path begins with a field of a notification, such as `recipients[3].phone`.
fn is_path(path: &str) -> bool {
    path.split(['.', '[']).next().is_some_and(|name| FIELDS.contains(&name))
}

/// The error text for an `expires_at` that is too early. Other limits get their text from the name of the check
/// constraint, but the name of this constraint does not make a sentence.
const EXPIRES_TOO_SOON: &str = "must be later than due_at; a notification without due_at is due now";

/// Converts a database error. Limits are check constraints whose names contain the field and the limit, so the field
/// and the limit are read from the error message.
impl From<DbError> for NotAccepted {
    fn from(error: DbError) -> Self {
        if error.is_lack_of_rights() {
            return Self::NoRights(error.to_string());
        }
        let DbError::Refused { message, .. } = error else { return Self::Unavailable(error.to_string()) };
        let words = message.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        let mut limits = words.filter_map(|word| {
            let field = FIELDS
                .iter()
                .filter(|field| word.strip_prefix(**field).is_some_and(|rest| rest.starts_with('_')))
                .max_by_key(|field| field.len())?;
            // A word that equals a field's name is not a constraint, although it may begin with another field's name.
            let limit = || match word {
                "expires_at_after_due_at" => EXPIRES_TOO_SOON.to_owned(),
                _ => word[field.len()..].replace('_', " ").trim().to_owned(),
            };
            (!FIELDS.contains(&word)).then(|| Self::invalid(*field, limit()))
        });
        if let Some(limit) = limits.next_back() {
            return limit;
        }
        let said = message.strip_prefix("postcommit: ").unwrap_or(&message);
        match said.split_once(' ') {
            Some((field, problem)) if FIELDS.contains(&field) => Self::invalid(field, problem),
            _ => Self::Invalid { field: None, problem: said.to_owned() },
        }
    }
}

/// The fields of a notification.
const FIELDS: [&str; 19] = [
    "event_type",
    "payload",
    "idempotency_key",
    "tenant",
    "entity",
    "recipients",
    "channels",
    "title",
    "body",
    "action_url",
    "data",
    "priority",
    "due_at",
    "expires_at",
    "source",
    "correlation_id",
    "topic",
    "schema_version",
    "strict",
];

/// The space in bytes that a `traceparent` needs in the JSON of a source, including PostgreSQL's formatting.
const TRACE_ROOM: usize = 128;

/// The maximum number of decimal places of a `numeric` in PostgreSQL, and so of a number in `jsonb`. The same limit
/// applies on SQLite, so that both databases accept the same requests.
const DECIMALS: i64 = 16_383;

/// A request to enqueue a notification. It has passed every check that needs no database.
#[derive(Debug, Clone)]
pub struct NotificationRequest {
    note: Notification,
    payload: Box<RawValue>,
    data: Option<Box<RawValue>>,
    has_key: bool,
}

/// Fields that are read a second time: payload and data as their original text, and the tenant and key to see whether
/// they were given.
#[derive(Deserialize)]
struct Raw<'a> {
    #[serde(borrow, default)]
    payload: Option<&'a RawValue>,
    #[serde(borrow, default)]
    data: Option<&'a RawValue>,
    #[serde(default)]
    tenant: Option<String>,
    #[serde(default)]
    idempotency_key: Option<String>,
}

impl NotificationRequest {
    /// Reads a request from JSON. The request belongs to `tenant`, and is refused if it names another tenant. An object
    /// with a duplicate key is refused at any depth, because JSON parsers handle duplicates differently.
    pub fn read(json: &str, tenant: &str) -> Result<Self, NotAccepted> {
        // Without this check, serde would accept an array as the list of fields.
        if !json.trim_start().starts_with('{') && !json.trim().is_empty() {
            return Err(NotAccepted::Invalid { field: None, problem: "must be a JSON object".into() });
        }
        let mut parser = serde_json::Deserializer::from_str(json);
        Once { of: None }
            .deserialize(&mut parser)
            .and_then(|()| parser.end())
            .map_err(|e| NotAccepted::of_parser(&e))?;
        let mut note: Notification =
            serde_json::from_str(json).map_err(|e| NotAccepted::of_parser(&e).located_in(json))?;
        let raw: Raw<'_> = serde_json::from_str(json).map_err(|e| NotAccepted::of_parser(&e))?;
        if let Some(named) = raw.tenant.filter(|named| named != tenant) {
            return Err(NotAccepted::invalid(
                "tenant",
                format!("is {named:?}, but the API key belongs to tenant {tenant:?}; leave the field out"),
            ));
        }
        tenant.clone_into(&mut note.tenant);
        // Payload and data are kept only as their original text.
        note.payload = serde_json::Value::Null;
        note.data = None;
        let payload = compact("payload", raw.payload.map_or("{}", RawValue::get))?;
        let data = raw.data.map(|data| compact("data", data.get())).transpose()?;
        Ok(Self { note, payload, data, has_key: raw.idempotency_key.is_some() })
    }

    /// Sets the idempotency key from the header `Idempotency-Key`. A different key inside the request is refused.
    pub fn with_key(mut self, key: &str) -> Result<Self, NotAccepted> {
        if self.has_key && self.note.idempotency_key != key {
            return Err(NotAccepted::invalid(
                "idempotency_key",
                "differs from the header Idempotency-Key; send only one of them, or the same value in both",
            ));
        }
        let count = key.chars().count();
        if !(1..=255).contains(&count) || key.contains(['\r', '\n', '\0']) {
            return Err(NotAccepted::invalid(
                "idempotency_key",
                format!("has {count} characters; 1 to 255 are allowed, without line breaks and NUL"),
            ));
        }
        key.clone_into(&mut self.note.idempotency_key);
        Ok(self)
    }

    /// Adds a trace to the request's source, unless the source already names a trace or has no space left.
    pub fn traced(mut self, parent: TraceParent) -> Self {
        let source = &self.note.source;
        let has_room =
            || serde_json::to_string(source).is_ok_and(|text| text.len() + TRACE_ROOM <= limits::SOURCE_BYTES);
        if source.traceparent.is_none() && has_room() {
            self.note.source = std::mem::take(&mut self.note.source).traced_by(parent);
        }
        self
    }

    /// Returns the notification without its payload and data.
    pub fn note(&self) -> &Notification {
        &self.note
    }

    /// Returns the payload as its original text, without whitespace between tokens.
    pub fn payload(&self) -> &RawValue {
        &self.payload
    }

    /// Returns the channels' data as its original text, without whitespace between tokens.
    pub fn data(&self) -> Option<&RawValue> {
        self.data.as_deref()
    }

    /// Returns the approximate size in bytes.
    pub(crate) fn size(&self) -> usize {
        let texts = [&self.note.body, &self.note.title, &self.note.action_url];
        let of_texts: usize = texts.iter().map(|text| text.as_ref().map_or(0, String::len)).sum();
        512 + of_texts
            + self.payload.get().len()
            + self.data.as_ref().map_or(0, |data| data.get().len())
            + self.note.recipients.len() * 64
    }
}

/// Removes whitespace between JSON tokens. A number with too many decimal places is refused here, because PostgreSQL's
/// error would not name the field.
fn compact(field: &str, json: &str) -> Result<Box<RawValue>, NotAccepted> {
    let most = numbers_in(json).map(decimals).max().unwrap_or(0);
    if most > DECIMALS {
        return Err(NotAccepted::invalid(
            field,
            format!("contains a number with {most} decimal places; at most {DECIMALS} are allowed"),
        ));
    }
    let (mut text, mut is_text, mut is_escaped) = (String::with_capacity(json.len()), false, false);
    for c in json.chars() {
        if !is_text && c.is_ascii_whitespace() {
            continue;
        }
        is_text ^= c == '"' && !is_escaped;
        is_escaped = is_text && c == '\\' && !is_escaped;
        text.push(c);
    }
    RawValue::from_string(text).map_err(|e| NotAccepted::of_parser(&e))
}

/// Returns the numbers in a JSON text as they are written.
fn numbers_in(json: &str) -> impl Iterator<Item = &str> {
    let (mut is_text, mut is_escaped) = (false, false);
    json.split(move |c: char| {
        is_text ^= c == '"' && !is_escaped;
        is_escaped = is_text && c == '\\' && !is_escaped;
        is_text || !(c.is_ascii_digit() || matches!(c, '+' | '-' | '.' | 'e' | 'E'))
    })
    .filter(|part| part.contains(|c: char| c.is_ascii_digit()))
}

/// Returns how many decimal places a number has when it is written without an exponent.
fn decimals(number: &str) -> i64 {
    let (digits, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let written = digits.split_once('.').map_or(0, |(_, after)| i64::try_from(after.len()).unwrap_or(i64::MAX));
    // An exponent that does not fit into an i64 counts as the largest or smallest i64.
    let moved = exponent.parse().unwrap_or(if exponent.starts_with('-') { i64::MIN } else { i64::MAX });
    written.saturating_sub(moved).max(0)
}

/// Reads any JSON and refuses objects with a duplicate key.
struct Once<'a> {
    /// The notification's field that contains the value.
    of: Option<&'a str>,
}

impl<'de> DeserializeSeed<'de> for Once<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Once<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<(), M::Error> {
        let mut seen = HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            map.next_value_seed(Once { of: Some(self.of.unwrap_or(&key)) })?;
            if let Some(twice) = seen.replace(key) {
                let field = self.of.unwrap_or(&twice);
                return Err(M::Error::custom(format!(
                    "{field}: has the key {twice:?} twice in one object; once is allowed"
                )));
            }
        }
        Ok(())
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<(), S::Error> {
        while list.next_element_seed(Once { of: self.of })?.is_some() {}
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(json: &str) -> (Option<String>, String) {
        match NotificationRequest::read(json, "default") {
            Err(NotAccepted::Invalid { field, problem }) => (field, problem),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn json_is_kept_digit_for_digit() {
        let json = r#"{"event_type": "a", "payload": {"big": 12345678901234567890123, "price": 0.10, "text": "a \" b \\", "list": [1, 2]}, "data": {"sms": {"x": 1.50}}}"#;
        let request = NotificationRequest::read(json, "t").unwrap();
        assert_eq!(
            request.payload().get(),
            r#"{"big":12345678901234567890123,"price":0.10,"text":"a \" b \\","list":[1,2]}"#
        );
        assert_eq!(request.data().unwrap().get(), r#"{"sms":{"x":1.50}}"#);
        assert_eq!(request.note().tenant, "t");
        assert_eq!(
            NotificationRequest::read(r#"{"event_type": "a", "payload": null}"#, "t").unwrap().payload().get(),
            "{}"
        );
    }

    #[test]
    fn a_refused_request_names_the_field() {
        for (json, field, problem) in [
            (
                r#"{"event_type": "a", "payload": {"x": [{"k": 1, "k": 2}]}}"#,
                Some("payload"),
                "has the key \"k\" twice",
            ),
            (r#"{"event_type": "a", "event_type": "b"}"#, Some("event_type"), "twice"),
            (r#"{"event_type": "a", "titel": "b"}"#, Some("titel"), "unknown field `titel`"),
            (r#"{"event_type": ""}"#, Some("event_type"), "1 to 255 are allowed"),
            (r#"{"event_type": "a", "recipients": [{"phone": "1"}]}"#, Some("recipients[0].phone"), "E.164"),
            (r#"{"event_type": "a", "tenant": "another"}"#, Some("tenant"), "belongs to tenant \"default\""),
            (r#"{"event_type": "a", "payload": "\ud800"}"#, None, "hex escape"),
            (r#"{"event_type": "a", "payload": "\u0000"}"#, Some("payload"), "NUL"),
            (r#"{"event_type": "a"} x"#, None, "trailing"),
            (r#"["a"]"#, None, "must be a JSON object"),
            ("", None, "EOF"),
        ] {
            let (named, said) = refused(json);
            assert_eq!(named.as_deref(), field, "{json}: {said}");
            assert!(said.contains(problem), "{json}: {said}");
        }
        let deep = format!(r#"{{"event_type": "a", "payload": {}{}}}"#, "[".repeat(200), "]".repeat(200));
        assert!(refused(&deep).1.contains("recursion"));
        let deep = format!(r#"{{"event_type": "a", "payload": {}{}}}"#, "[".repeat(33), "]".repeat(33));
        assert_eq!(refused(&deep).0.as_deref(), Some("payload"));
    }

    #[test]
    fn decimals_are_counted_in_numbers_only() {
        for (json, most) in [
            (r#"{"a": 1, "b": [-0.25, 1e3], "c": "1e-99999 \\"}"#, 2),
            (r#"{"1.23456": "\\\"0.123", "x": 1.5E-3}"#, 4),
            ("[1.2345e2, 1.5e+1]", 2),
            ("[1.2345e9, true, null]", 0),
            ("1e-99999999999999999999", i64::MAX),
            ("0e99999999999999999999", 0),
        ] {
            assert_eq!(numbers_in(json).map(decimals).max(), Some(most), "{json}");
        }
    }

    #[test]
    fn a_key_in_the_header_must_be_the_same() {
        let read = |json: &str| NotificationRequest::read(json, "t").unwrap();
        assert_eq!(read(r#"{"event_type": "a"}"#).with_key("k").unwrap().note().idempotency_key, "k");
        assert!(read(r#"{"event_type": "a", "idempotency_key": "k"}"#).with_key("k").is_ok());
        for (json, key) in [
            (r#"{"event_type": "a", "idempotency_key": "x"}"#, "k"),
            (r#"{"event_type": "a"}"#, ""),
            (r#"{"event_type": "a"}"#, "a\nb"),
        ] {
            assert!(read(json).with_key(key).unwrap_err().to_string().starts_with("idempotency_key: "));
        }
    }

    #[test]
    fn a_limit_is_read_from_its_name() {
        let of = |message: &str| {
            NotAccepted::from(DbError::Refused { code: String::new(), message: message.into() }).to_string()
        };
        let postgres = r#"new row for relation "notification" violates check constraint "title_at_most_998_bytes" (title_at_most_998_bytes)"#;
        assert_eq!(of(postgres), "title: at most 998 bytes");
        assert_eq!(
            of("CHECK constraint failed: action_url_is_http_https_mailto_or_tel"),
            "action_url: is http https mailto or tel"
        );
        assert_eq!(of("CHECK constraint failed: expires_at_after_due_at"), format!("expires_at: {EXPIRES_TOO_SOON}"));
        assert_eq!(of("postcommit: due_at is not a time"), "due_at: is not a time");
        assert_eq!(of("something else"), "something else");
        assert!(matches!(NotAccepted::from(DbError::Unreachable("x".into())), NotAccepted::Unavailable(_)));
        // The error names the function `tenant_id`, whose name begins with the name of a field.
        let denied = |code: &str, message: &str| DbError::Refused { code: code.into(), message: message.into() };
        for problem in
            [denied("42501", "permission denied for function tenant_id"), denied("28000", "role may not log in")]
        {
            assert!(matches!(NotAccepted::unread(&problem), NotAccepted::NoRights(_)), "{problem}");
            assert!(matches!(NotAccepted::from(problem), NotAccepted::NoRights(_)));
        }
        assert!(!denied("42501", "new row violates row-level security policy").is_lack_of_rights());
        assert!(!denied("2827", "a result code of SQLite").is_lack_of_rights());
    }
}
