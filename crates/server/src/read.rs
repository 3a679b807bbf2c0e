//! Parses requests: a JSON body, a form or a query. Errors name the field.

use std::borrow::Cow;

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::header;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use crate::auth::csrf;
use crate::problem::{Problem, ProblemKind};

pub struct Body<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let bytes = json_of(request, state).await?;
        let read = parse(&bytes)?;
        // Serde would also accept an array whose items fit the fields in their order.
        if bytes.trim_ascii_start().first() != Some(&b'{') {
            return Err(Problem::new(ProblemKind::Invalid, "the body must be a JSON object"));
        }
        if let Some(field) = holds_nul(&bytes) {
            return Err(Problem::invalid(field, NUL));
        }
        Ok(Self(read))
    }
}

/// PostgreSQL cannot store NUL in text. SQLite could, but both databases must refuse the same requests.
const NUL: &str = "must not contain a NUL character; remove it";

/// Parses a JSON object that was typed into the field `name` of a form.
pub fn typed_object(name: &str, text: &str) -> Result<Map<String, Value>, Problem> {
    let read = serde_json::from_str::<Value>(text).map_err(|problem| {
        let said = format!("line {}, column {}: {}", problem.line(), problem.column(), without_place(&problem));
        Problem::invalid(name, format!("{said}; type a JSON object such as {{\"guestName\": \"Ada\"}}"))
    })?;
    match (holds_nul(text.as_bytes()), read) {
        (Some(_), _) => Err(Problem::invalid(name, NUL)),
        (None, Value::Object(fields)) => Ok(fields),
        (None, _) => Err(Problem::invalid(name, "is not a JSON object; begin with { and end with }")),
    }
}

/// Refuses a parameter of a page's URL whose value contains a NUL.
pub fn holds_no_nul(name: &str, value: &str) -> Result<(), Problem> {
    if value.contains('\0') { Err(Problem::invalid(name, NUL)) } else { Ok(()) }
}

/// The first field of a JSON document that has a NUL in its value or its name.
fn holds_nul(json: &[u8]) -> Option<String> {
    // In JSON, NUL can only be written as `\u0000`. Only documents that contain it are parsed a second time.
    if !json.windows(6).any(|window| window == br"\u0000") {
        return None;
    }
    nul_within(&serde_json::from_slice(json).ok()?, String::new())
}

fn nul_within(value: &Value, path: String) -> Option<String> {
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    match value {
        Value::String(text) => text.contains('\0').then_some(path),
        Value::Array(items) => {
            items.iter().enumerate().find_map(|(place, item)| nul_within(item, format!("{path}[{place}]")))
        }
        Value::Object(fields) => {
            fields.iter().find_map(
                |(name, field)| if name.contains('\0') { Some(below(name)) } else { nul_within(field, below(name)) },
            )
        }
        _ => None,
    }
}

/// A JSON body kept as its original text and not parsed, so that numbers keep every digit.
pub struct Text(pub String);

impl<S: Send + Sync> FromRequest<S> for Text {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let bytes = json_of(request, state).await?;
        String::from_utf8(bytes.into())
            .map(Self)
            .map_err(|_| Problem::new(ProblemKind::Malformed, "the body is not UTF-8; send JSON in UTF-8"))
    }
}

/// The bytes of a JSON body. An empty body counts as an object without fields, so that the error names the missing
/// field if one is required.
async fn json_of<S: Send + Sync>(request: Request, state: &S) -> Result<Bytes, Problem> {
    let says_json = says_json(request.headers());
    let bytes = Bytes::from_request(request, state).await?;
    match (bytes.is_empty(), says_json) {
        (true, _) => Ok(Bytes::from_static(b"{}")),
        (false, true) => Ok(bytes),
        (false, false) => {
            Err(Problem::new(ProblemKind::NotJson, "the body must be JSON; send `Content-Type: application/json`"))
        }
    }
}

/// Whether the content type is JSON. A form on another site cannot send this content type.
fn says_json(headers: &axum::http::HeaderMap) -> bool {
    let named = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    let kind = named.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json"))
}

/// Parses JSON. An error names the field.
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let read = serde_path_to_error::deserialize(&mut json).map_err(|problem| refused(&problem))?;
    json.end().map_err(|e| Problem::new(ProblemKind::Malformed, format!("the body is not one JSON document: {e}")))?;
    Ok(read)
}

fn refused(problem: &serde_path_to_error::Error<serde_json::Error>) -> Problem {
    match problem.inner().classify() {
        serde_json::error::Category::Data => located(&problem.path().to_string(), without_place(problem.inner())),
        _ => Problem::new(ProblemKind::Malformed, format!("the body is not JSON: {}", problem.inner())),
    }
}

/// The error message without line and column, because the field already says where the error is.
fn without_place(problem: &serde_json::Error) -> String {
    let (words, place) = (problem.to_string(), format!(" at line {} column {}", problem.line(), problem.column()));
    words.strip_suffix(&place).map(str::to_owned).unwrap_or(words)
}

/// A problem that names the field. If a field is missing or unknown, `path` is its object, and the field's name is
/// taken from the message.
fn located(path: &str, words: String) -> Problem {
    let after = |beginning: &str| {
        words.strip_prefix(beginning).and_then(|rest| rest.split_once('`')).map(|(name, _)| name.to_owned())
    };
    let missing = after("missing field `");
    let unknown = after("unknown field `")
        .or_else(|| after("unknown parameter `"))
        .filter(|name| path.rsplit('.').next() != Some(name));
    match (path, missing.or(unknown)) {
        (".", None) => Problem::new(ProblemKind::Invalid, words),
        (".", Some(name)) => Problem::invalid(name, words),
        (path, Some(name)) => Problem::invalid(format!("{path}.{name}"), words),
        (path, None) => Problem::invalid(path, words),
    }
}

/// Distinguishes an omitted field from null.
pub fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(from).map(Some)
}

/// A form from a browser. Its CSRF token is left out, because `auth::csrf` checks it.
pub struct Form<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Form<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let bytes = Bytes::from_request(request, state).await?;
        let pairs = form_urlencoded::parse(&bytes).filter(|(name, _)| name != csrf::FIELD);
        if let Some((name, _)) = pairs.clone().find(|(_, value)| value.contains('\0')) {
            return Err(Problem::invalid(name, NUL));
        }
        let text = form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish();
        let pairs = serde_urlencoded::Deserializer::new(form_urlencoded::parse(text.as_bytes()));
        T::deserialize(pairs).map(Self).map_err(|problem| located(".", problem.to_string()))
    }
}

/// An id in the path. An invalid id gives the answer "not found".
pub struct Id<T>(pub T);

impl<S: Send + Sync, T: std::str::FromStr> FromRequestParts<S> for Id<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let none = Problem::not_found(noun(parts.uri.path()));
        let Ok(Path(text)) = Path::<String>::from_request_parts(parts, state).await else { return Err(none) };
        text.parse().map(Self).map_err(|_| none)
    }
}

fn noun(path: &str) -> &'static str {
    match path.split('/').nth(2) {
        Some("notifications") => "notification",
        Some("deliveries") => "delivery",
        Some("entities") => "entity",
        Some("jobs") => "job",
        Some("keys") => "key",
        Some("providers") => "provider",
        Some("callbacks") => "callback",
        Some("tenants") => "tenant",
        Some("inbox") => "inbox",
        Some("templates") => "template",
        Some("layouts") => "layout",
        Some("users") => "user",
        Some("lists") => "list",
        Some("event-types") => "event type",
        _ => "thing",
    }
}

/// Refuses a filter value that is too long to match anything.
pub fn check_lengths(fields: &[(&str, Option<&str>)], most: usize) -> Result<(), Problem> {
    for (name, value) in fields {
        let length = value.map_or(0, |value| value.chars().count());
        if length > most {
            return Err(Problem::invalid(*name, format!("has {length} characters; at most {most} are allowed")));
        }
    }
    Ok(())
}

/// The parameters of a query. Unknown parameters are refused.
pub struct Params<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        of_pairs(query(parts)?, &["tenant"]).map(Self)
    }
}

/// A parameter of a query and its value.
pub type Pair<'a> = (Cow<'a, str>, Cow<'a, str>);

/// The parameters of a query, except `tenant`, which `auth` reads.
pub fn query(parts: &Parts) -> Result<Vec<Pair<'_>>, Problem> {
    let pairs: Vec<Pair<'_>> = form_urlencoded::parse(parts.uri.query().unwrap_or("").as_bytes()).collect();
    if let Some((name, _)) = pairs.iter().find(|(_, value)| value.contains('\0')) {
        return Err(Problem::invalid(name.as_ref(), NUL));
    }
    Ok(pairs.into_iter().filter(|(name, _)| name != "tenant").collect())
}

/// Parses parameters and refuses unknown ones. `others` are parameters that are parsed elsewhere. They are listed as
/// known in the error.
pub fn of_pairs<T: DeserializeOwned>(pairs: Vec<Pair<'_>>, others: &[&str]) -> Result<T, Problem> {
    let text = form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish();
    let pairs = form_urlencoded::parse(text.as_bytes());
    serde_path_to_error::deserialize(serde_urlencoded::Deserializer::new(pairs))
        .map_err(|problem| located(&problem.path().to_string(), with_others(problem.inner().to_string(), others)))
}

fn with_others(words: String, others: &[&str]) -> String {
    if !words.starts_with("unknown field `") {
        return words;
    }
    // In serde's message the unknown name is quoted first, then the known names.
    let mut quoted = words.split('`').skip(1).step_by(2);
    let unknown = quoted.next().unwrap_or_default().to_owned();
    let known: Vec<&str> = quoted.chain(others.iter().copied()).collect();
    format!("unknown parameter `{unknown}`; allowed are {}", known.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_parameter_is_refused_with_the_allowed_names() {
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        #[allow(dead_code, reason = "the test only deserializes it")]
        struct Two {
            one: Option<String>,
            two: Option<String>,
        }
        let refused = of_pairs::<Two>(vec![("limits".into(), "1".into())], &["limit", "tenant"]).unwrap_err();
        let body = serde_json::to_value(refused.body()).unwrap();
        assert_eq!(
            (&body["field"], &body["detail"]),
            (&"limits".into(), &"unknown parameter `limits`; allowed are one, two, limit, tenant".into())
        );
    }

    #[test]
    fn nul_is_found_wherever_it_is_and_a_backslash_before_it_is_not_it() {
        for (json, field) in [
            (r#"{"a": "b\u0000"}"#, Some("a")),
            (r#"{"a": {"b": ["c", {"d": "\u0000"}]}}"#, Some("a.b[1].d")),
            (r#"{"a\u0000": 1}"#, Some("a\0")),
            (r#"{"a": "\\u0000"}"#, None),
            (r#"{"a": "\u0001"}"#, None),
        ] {
            assert_eq!(holds_nul(json.as_bytes()).as_deref(), field, "{json}");
        }
    }
}
