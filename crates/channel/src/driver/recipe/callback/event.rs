//! Splits the body of a callback into events and reads each event.

use minijinja::Value;
use postcommit::Timestamp;
use serde::Deserialize;
use serde_json::{Value as Json, json};
use sha2::{Digest, Sha256};

use super::super::expression::{Expression, Names, digits, shown, value};
use super::Around;
use crate::driver::callback::CallbackRefusal;
use crate::driver::http::{REFERENCE_CHARS, excerpt};
use crate::model::{DeliveryId, ErrorClass, Happened, Reported};

/// The names that expressions on events may read.
const NAMES: [&str; 5] = ["body", "event", "headers", "parent", "query"];
/// The maximum number of events in one callback. Services that collect events send fewer.
const MOST_EVENTS: usize = 1000;
/// The maximum number of characters of an event's id. A longer id is replaced by its hash.
const ID_CHARS: usize = 200;
const CODE_CHARS: usize = 64;
const TEXT_CHARS: usize = 300;
/// The minimum number of digits of a phone number. A recipient with fewer digits is not redacted as one.
const PHONE_DIGITS: usize = 7;
/// A number from this value on is a time in milliseconds. In seconds, it would be in the year 5138.
const MILLISECONDS_FROM: f64 = 1e11;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RuleText {
    when: String,
    means: Means,
    class: Option<ErrorClass>,
}

/// What an event means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Means {
    Sent,
    Delivered,
    Failed,
    Bounced,
    Complained,
    Ignored,
}

impl Means {
    fn happened(self) -> Option<Happened> {
        Some(match self {
            Self::Sent => Happened::Sent,
            Self::Delivered => Happened::Delivered,
            Self::Failed => Happened::Failed,
            Self::Bounced => Happened::Bounced,
            Self::Complained => Happened::Complained,
            Self::Ignored => return None,
        })
    }
}

/// The rules by which events are found and read.
#[derive(Debug)]
pub(super) struct Events {
    paths: Vec<Vec<String>>,
    id: Option<Expression>,
    key: Option<Expression>,
    provider_ref: Option<Expression>,
    time: Option<Expression>,
    code: Option<Expression>,
    text: Option<Expression>,
    /// The recipient, which is redacted in the texts.
    to: Option<Expression>,
    rules: Vec<(Expression, Means, Option<ErrorClass>)>,
}

impl Events {
    /// Compiles the expressions `id`, `key`, `ref`, `time`, `code`, `text` and `to`, and the rules.
    pub(super) fn new(paths: &[String], reads: [Option<String>; 7], rules: &[RuleText]) -> Result<Self, String> {
        let names = Names { roots: &NAMES, settings: vec![], secrets: vec![], data: vec![] };
        let compile = |path: String, text: &str| {
            Expression::new(text, &names).map_err(|problem| format!("callback.{path}: {problem}"))
        };
        let [id, key, provider_ref, time, code, text, to] = reads;
        if key.is_none() && provider_ref.is_none() {
            return Err(
                "callback.key: is missing, and so is callback.ref; one of them must say which message it is".into()
            );
        }
        let some = |name: &str, text: Option<String>| text.map(|text| compile(name.to_owned(), &text)).transpose();
        let rule = |(i, rule): (usize, &RuleText)| {
            Ok::<_, String>((compile(format!("rule[{i}].when"), &rule.when)?, rule.means, rule.class))
        };
        Ok(Self {
            paths: paths.iter().map(|path| segments(path)).collect(),
            id: some("id", id)?,
            key: some("key", key)?,
            provider_ref: some("ref", provider_ref)?,
            time: some("time", time)?,
            code: some("code", code)?,
            text: some("text", text)?,
            to: some("to", to)?,
            rules: rules.iter().enumerate().map(rule).collect::<Result<_, _>>()?,
        })
    }

    /// Reads the events that mean something, in their order. `secrets` are redacted in the stored texts.
    pub(super) fn read(&self, around: &Around<'_>, secrets: &[String]) -> Result<Vec<Reported>, CallbackRefusal> {
        let mut found = vec![];
        for path in &self.paths {
            walk(around.body, path, (None, None), &mut found);
            if !found.is_empty() {
                break;
            }
        }
        if found.len() > MOST_EVENTS {
            let problem = format!("the body has {} events; at most {MOST_EVENTS} are allowed", found.len());
            return Err(CallbackRefusal::Malformed(problem));
        }
        let body = value(around.body);
        // Several events may be in the same item of a list, and the item may be most of the body. So it is converted
        // once for all of them.
        let mut parents = Parents::default();
        let mut reported = vec![];
        for (parent, event) in found {
            let context = Value::from_pairs([
                ("event", value(event)),
                ("parent", parents.of(parent)),
                ("body", body.clone()),
                ("query", around.query.clone()),
                ("headers", around.headers.clone()),
            ]);
            reported.extend(self.reported(&context, secrets));
        }
        Ok(reported)
    }

    fn reported(&self, context: &Value, secrets: &[String]) -> Option<Reported> {
        // An expression that fails, because the event has another shape, counts as false.
        let (_, means, class) = self.rules.iter().find(|(when, ..)| when.is_true(context).unwrap_or(false))?;
        let happened = means.happened()?;
        let read = |expression: &Option<Expression>| {
            let text = shown(&expression.as_ref()?.value(context).ok()?).trim().to_owned();
            Some(text).filter(|text| !text.is_empty())
        };
        let (mut redacted, to) = (secrets.to_vec(), read(&self.to).unwrap_or_default());
        // Services write a phone number with or without its plus sign, so both forms are redacted.
        redacted.extend(Some(digits(&to)).filter(|digits| digits.len() >= PHONE_DIGITS));
        redacted.extend(Some(to).filter(|to| to.chars().count() > 3));
        let cut = |text: Option<String>, chars: usize| {
            let text: String = excerpt(text?.as_bytes(), &redacted).chars().take(chars).collect();
            Some(text).filter(|text| !text.is_empty())
        };
        let (key, time) = (read(&self.key), read(&self.time));
        let is_kept = |text: &String| text.chars().count() <= REFERENCE_CHARS && !text.chars().any(char::is_control);
        let provider_ref = read(&self.provider_ref).filter(is_kept);
        let code = cut(read(&self.code), CODE_CHARS);
        let is_id = |id: &String| id.chars().count() <= ID_CHARS && !id.chars().any(char::is_control);
        let event_id = match read(&self.id) {
            Some(id) if is_id(&id) => id,
            Some(long) => hash(&json!(long)),
            // An event without an id is identified by the values that tell it from other events.
            None => hash(&json!([key, provider_ref, happened, time, code])),
        };
        Some(Reported {
            event_id,
            delivery: key.as_deref().and_then(DeliveryId::of_provider_key),
            provider_ref,
            happened,
            at: time.as_deref().and_then(time_of),
            code,
            class: *class,
            detail: cut(read(&self.text), TEXT_CHARS),
        })
    }
}

/// The list item that contains an event, as a value. Only the last item is kept.
#[derive(Default)]
struct Parents<'j> {
    last: Option<&'j Json>,
    value: Value,
    /// The number of conversions, for the tests.
    converted: usize,
}

impl<'j> Parents<'j> {
    fn of(&mut self, parent: Option<&'j Json>) -> Value {
        let Some(parent) = parent else { return Value::UNDEFINED };
        if !self.last.is_some_and(|last| std::ptr::eq(last, parent)) {
            self.value = value(parent);
            self.last = Some(parent);
            self.converted += 1;
        }
        self.value.clone()
    }
}

fn hash(content: &Json) -> String {
    let hash: [u8; 32] = Sha256::digest(content.to_string()).into();
    hash.iter().fold("sha256:".to_owned(), |text, byte| text + &format!("{byte:02x}"))
}

fn segments(path: &str) -> Vec<String> {
    path.split('.').filter(|segment| !segment.is_empty()).map(str::to_owned).collect()
}

/// Follows a path, in which `*` means every item of a list. Adds each value at the end of the path, with the list item
/// that contains it. `at` holds the last two list items on the path: the outer and the inner one.
fn walk<'j>(
    json: &'j Json,
    path: &[String],
    at: (Option<&'j Json>, Option<&'j Json>),
    found: &mut Vec<(Option<&'j Json>, &'j Json)>,
) {
    match path.split_first() {
        None => {
            let is_item = at.1.is_some_and(|item| std::ptr::eq(item, json));
            found.push((if is_item { at.0 } else { at.1 }, json));
        }
        Some((segment, rest)) if segment == "*" => {
            for item in json.as_array().into_iter().flatten() {
                walk(item, rest, (at.1, Some(item)), found);
            }
        }
        Some((segment, rest)) => {
            if let Some(inner) = json.get(segment) {
                walk(inner, rest, at, found);
            }
        }
    }
}

/// Reads a time in one of the usual forms: seconds or milliseconds since 1970, RFC 3339, or RFC 3339 with a space
/// instead of `T` and without a time zone, which means UTC.
fn time_of(text: &str) -> Option<Timestamp> {
    if let Ok(number) = text.parse::<f64>() {
        let seconds = if number.abs() >= MILLISECONDS_FROM { number / 1000.0 } else { number };
        // The databases store times up to the year 9999.
        return (0.0..253_402_300_800.0).contains(&seconds).then(|| Timestamp::from_micros((seconds * 1e6) as i64));
    }
    let with_t = text.replacen(' ', "T", 1);
    let time = text.parse().or_else(|_| with_t.parse()).or_else(|_| format!("{with_t}Z").parse()).ok()?;
    (time >= Timestamp::from_micros(0)).then_some(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_read_in_every_form_that_providers_use() {
        for text in [
            "1772357400",
            "1772357400.0",
            "1772357400000",
            "2026-03-01T09:30:00Z",
            "2026-03-01T15:00:00+05:30",
            "2026-03-01 09:30:00",
            "2026-03-01T09:30:00.000",
        ] {
            assert_eq!(time_of(text).map(|time| time.to_string()).as_deref(), Some("2026-03-01T09:30:00Z"), "{text}");
        }
        for text in ["", "soon", "-1", "1e300", "NaN", "inf", "99999999999999999999"] {
            assert_eq!(time_of(text), None, "{text}");
        }
    }

    #[test]
    fn the_item_around_events_is_converted_once() {
        let body = json!([{"id": 1, "report": [1, 2, 3]}, {"id": 2, "report": [4, 5]}, {"report": 6}]);
        let mut found = vec![];
        walk(&body, &segments("*.report.*"), (None, None), &mut found);
        let mut parents = Parents::default();
        let ids: Vec<String> =
            found.iter().map(|(parent, _)| parents.of(*parent).get_attr("id").unwrap().to_string()).collect();
        assert_eq!((ids.join(" ").as_str(), parents.converted), ("1 1 1 2 2", 2));
        assert!(parents.of(None).is_undefined());
    }

    #[test]
    fn a_path_finds_every_item_and_the_item_around_it() {
        let body = json!({"entry": [{"changes": [{"of": 1, "s": [1, 2]}, {"of": 2, "s": [3]}]}, {"other": 1}]});
        let mut found = vec![];
        walk(&body, &segments("entry.*.changes.*.s.*"), (None, None), &mut found);
        let found: Vec<String> = found.iter().map(|(of, at)| format!("{} {at}", of.unwrap()["of"])).collect();
        assert_eq!(found, ["1 1", "1 2", "2 3"]);
        for (path, wanted) in [("", 1), ("*", 0), ("entry", 1), ("entry.*", 2), ("nothing.*", 0)] {
            let mut found = vec![];
            walk(&body, &segments(path), (None, None), &mut found);
            assert_eq!(found.len(), wanted, "{path}");
            assert!(found.iter().all(|(of, _)| of.is_none()), "{path}");
        }
    }
}
