//! How pages show states, times and numbers. The templates use these as filters and functions.

use std::fmt::Write;

use minijinja::value::Serde;
use minijinja::{Environment, State, Value};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use postcommit::Timestamp;
use postcommit_channel::clock;
use postcommit_engine::store::Depth;
use serde::Serialize;

use super::chart;
use super::frame::with_tenant;
pub use crate::html::sentence_case;
use crate::html::{entity, escape};

/// Adds the filters and functions to the engine of the templates.
pub fn add_to(engine: &mut Environment<'_>) {
    engine.add_filter("pill", |state: &str| Value::from_safe_string(pill(state)));
    // A row shows the absolute form of its times while one of its links has the focus. A time elsewhere takes the focus
    // itself.
    engine.add_filter("ago", |at: &str, alone: Option<bool>| {
        Value::from_safe_string(moment(at, if alone == Some(true) { " tabindex=\"0\"" } else { "" }))
    });
    engine.add_filter("exact", |at: &str| Value::from_safe_string(format!("{}, {}", plain(at), moment(at, ""))));
    engine.add_filter("utc", |at: &str| Value::from_safe_string(plain(at)));
    engine.add_filter("clock", |at: &str| Value::from_safe_string(time_of_day(at)));
    engine.add_filter("number", |number: i64| grouped(number));
    engine.add_filter("query", |text: &str| form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>());
    engine.add_filter("short", |text: &str| short(text));
    engine.add_filter("segment", |text: &str| segment(text));
    engine.add_filter("typed", |text: &str| Value::from_safe_string(typed(text)));
    engine.add_function("to", |state: &State<'_, '_>, path: &str| {
        with_tenant(path, state.lookup("tenant").as_ref().and_then(Value::as_str))
    });
}

/// The characters that are percent-encoded in a segment of a path: all except letters, digits, `-`, `.`, `_` and `~`.
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Encodes a text as one segment of a path, because ids may contain slashes.
pub fn segment(text: &str) -> String {
    utf8_percent_encode(text, UNRESERVED).to_string()
}

/// Escapes the value of a form field. Unlike [`escape`], it replaces no character, because the form sends the value
/// back.
fn typed(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match entity(c) {
            Some(entity) => safe.push_str(entity),
            // A browser would read a plain CR as a line feed.
            None if c == '\r' => safe.push_str("&#13;"),
            None => safe.push(c),
        }
    }
    safe
}

/// Converts a value for the template of a page.
pub fn shown(value: impl Serialize) -> Value {
    Value::from(Serde(value))
}

/// The tint of a state. The shape and the word say the same, for people who do not see the colour.
fn tint(state: &str) -> &'static str {
    match state {
        "sent" | "delivered" | "done" | "active" => "good",
        "retrying" | "deferred" | "unclear" => "warn",
        "parked" | "failed" | "rejected" => "bad",
        "sending" | "running" => "busy",
        _ => "calm",
    }
}

/// A state as shape, word and tint. `frame.html` has the shapes.
pub fn pill(state: &str) -> String {
    let shape = match state {
        "sent" => "dot",
        "delivered" | "done" | "active" => "check",
        "retrying" | "deferred" => "again",
        "parked" | "failed" | "rejected" | "unclear" => "alert",
        "sending" | "running" => "arrow",
        "pending" | "queued" => "clock",
        _ => "bar",
    };
    let word = sentence_case(state);
    format!(
        r##"<span class="pill {}"><svg class="i" aria-hidden="true"><use href="#i-{shape}"/></svg>{}</span>"##,
        tint(state),
        escape(&word)
    )
}

/// Formats a number with separators between the thousands.
pub fn grouped(number: i64) -> String {
    chart::grouped(&number.to_string())
}

/// Returns a number of deliveries in words, e.g. `1 delivery` or `2 deliveries`.
pub fn counted(deliveries: i64) -> String {
    if deliveries == 1 { "1 delivery".into() } else { format!("{} deliveries", grouped(deliveries)) }
}

/// The deliveries that wait for their first attempt: those that are due, and those that are scheduled. This is what a
/// list of the state `pending` shows.
pub fn waiting_of(depth: &Depth) -> i64 {
    depth.pending + depth.scheduled
}

/// Says how many deliveries wait for a provider, and how many are retrying.
pub fn waits_in_words(depth: Option<&Depth>) -> String {
    let (waiting, retrying) = (depth.map_or(0, waiting_of), depth.map_or(0, |depth| depth.retrying));
    let verb = if waiting == 1 { "waits" } else { "wait" };
    let is = if retrying == 1 { "is" } else { "are" };
    match (waiting, retrying) {
        (0, 0) => "Nothing waits for it.".into(),
        (0, _) => format!("{} {is} retrying.", counted(retrying)),
        (_, 0) => format!("{} {verb} for it.", counted(waiting)),
        _ => format!("{} {verb} for it, and {} {is} retrying.", counted(waiting), grouped(retrying)),
    }
}

/// The beginning of a long id.
fn short(id: &str) -> String {
    if id.chars().count() > 13 { format!("{}…", id.chars().take(12).collect::<String>()) } else { id.to_owned() }
}

/// A time relative to now. The exact time is in the title and in `datetime`, and the script keeps the words current.
fn moment(at: &str, attributes: &str) -> String {
    let Ok(time) = at.parse::<Timestamp>() else { return escape(at) };
    let words = relative(time.as_micros() - clock::now().as_micros());
    let plain = plain(at);
    format!(r#"<time datetime="{}" title="{plain}"{attributes} data-ago>{words}</time>"#, escape(at))
}

/// Returns the time of day of a timestamp, e.g. `08:12:03`.
pub fn time(at: &str) -> String {
    at.chars().skip(11).take(8).collect()
}

/// Returns the day of a timestamp, e.g. `2026-03-15`.
pub fn day(at: &str) -> String {
    at.chars().take(10).collect()
}

/// Formats the time of day as HTML. The tooltip has the date.
fn time_of_day(at: &str) -> String {
    let time = time(at);
    format!(r#"<time datetime="{}" title="{}">{}</time>"#, escape(at), plain(at), escape(&time))
}

/// Formats a time, e.g. `2026-03-15 08:12:03 UTC`.
fn plain(at: &str) -> String {
    let mut text: String = at.chars().take(19).map(|c| if c == 'T' { ' ' } else { c }).collect();
    text.push_str(" UTC");
    escape(&text)
}

/// A distance in time as words. A clock of another host may be a little ahead, so the next second is "now" as well.
pub fn relative(micros: i64) -> String {
    let seconds = micros.unsigned_abs() / 1_000_000;
    if seconds < 2 {
        return "now".into();
    }
    let words = span(seconds);
    if micros < 0 { format!("{words} ago") } else { format!("in {words}") }
}

/// Formats a length of time in one unit, e.g. `48 s` or `2 h`.
pub fn span(seconds: u64) -> String {
    let (count, unit) = match seconds {
        0..=119 => (seconds, "s"),
        120..=7199 => (seconds / 60, "min"),
        7200..=172_799 => (seconds / 3600, "h"),
        _ => (seconds / 86_400, "days"),
    };
    format!("{count} {unit}")
}

/// Joins the parts that are not empty with a middle dot.
pub fn dotted(parts: impl IntoIterator<Item = Option<String>>) -> String {
    let mut text = String::new();
    for part in parts.into_iter().flatten().filter(|part| !part.is_empty()) {
        let _ = write!(text, "{}{part}", if text.is_empty() { "" } else { " · " });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distance_in_time_is_told_in_one_unit() {
        for (seconds, words) in [
            (0, "now"),
            (1, "now"),
            (-1, "now"),
            (-2, "2 s ago"),
            (48, "in 48 s"),
            (-125, "2 min ago"),
            (-7200, "2 h ago"),
            (-200_000, "2 days ago"),
        ] {
            assert_eq!(relative(seconds * 1_000_000), words);
        }
    }

    #[test]
    fn what_waits_for_a_provider_is_a_sentence() {
        let said = |pending, scheduled, retrying| {
            waits_in_words(Some(&Depth { pending, scheduled, retrying, ..Depth::default() }))
        };
        assert_eq!(
            (waits_in_words(None), said(0, 0, 0)),
            ("Nothing waits for it.".into(), "Nothing waits for it.".into())
        );
        assert_eq!(said(1, 0, 0), "1 delivery waits for it.");
        assert_eq!(said(1, 1, 1), "2 deliveries wait for it, and 1 is retrying.");
        assert_eq!(said(0, 0, 2000), "2,000 deliveries are retrying.");
    }

    #[test]
    fn a_state_and_a_time_are_escaped() {
        assert!(!pill("<b>").contains("<b>"));
        assert_eq!(moment("<b>", ""), "&lt;b&gt;");
        assert_eq!(sentence_case("outcome_unknown"), "Outcome unknown");
        assert_eq!(
            typed("<b a='\"'>\u{202e}&"),
            "&lt;b a=&#39;&quot;&#39;&gt;\u{202e}&amp;",
            "every character is kept"
        );
        assert_eq!(segment("a/b c?"), "a%2Fb%20c%3F");
    }
}
