//! Generated templates: whatever is written, nothing panics, the limits hold, and values are escaped in HTML.
//! `scripts/fuzz-templates` does the same for as long as one likes.

use postcommit_channel::template::{
    Compiled, FlatPayload, Input, Missing, NO_PUBLIC_URL, Note, Source, limits, sms, text_of_html,
};
use proptest::prelude::*;
use serde_json::{Value, json};

/// The tag in a hostile value. It may never be found in HTML; templates that hold its name are passed over.
const TAG: &str = "<q7!k";
const HOSTILE: &str = "<q7!k y='1'>&\"";

fn payload() -> Value {
    json!({
        "a": HOSTILE, "b": 12345, "c": 1500.5, "d": "2026-03-15", "e": "2026-03-15T10:00:00Z", "f": true, "g": null,
        "l": [1, "two", {"a": HOSTILE}, ["x"]], "m": {"a": HOSTILE, "b": [1, 2]}, "u": "javascript:x"
    })
}

fn name() -> impl Strategy<Value = String> {
    let names =
        ["a", "b", "C", "d", "e", "f", "g", "l", "m", "u", "m.a", "m.B", "l[2].a", "i", "i.a", "nothing", "user.a"];
    prop_oneof![8 => prop::sample::select(names.to_vec()).prop_map(str::to_owned), 1 => "[a-z_.0-9]{1,8}"]
}

fn filter() -> impl Strategy<Value = String> {
    let filters = [
        "upper",
        "lower",
        "title",
        "capitalize",
        "trim",
        "json",
        "length",
        "first",
        "last",
        "phone",
        "plain",
        "urlencode",
        "link",
        "number",
        "number(2)",
        "date",
        "date('%H:%M %Z')",
        "date('%d', 'Asia/Kolkata')",
        "currency('INR')",
        "currency('JPY', a)",
        "plus(1)",
        "minus(c)",
        "times(0.5)",
        "default('<')",
        "d(a)",
        "join(a)",
        "truncate(3)",
        "truncate(b)",
        "nl2br",
        "unknown",
    ];
    prop::sample::select(filters.to_vec()).prop_map(|name| format!("|{name}"))
}

fn expression() -> impl Strategy<Value = String> {
    let value = prop_oneof![5 => name(), 1 => "'[a-z<&]{0,4}'", 1 => "[0-9]{1,3}"];
    let chain = (value, prop::collection::vec(filter(), 0..4)).prop_map(|(value, filters)| value + &filters.concat());
    chain.prop_recursive(3, 12, 3, |inner| {
        let operators = ["==", "!=", "<", ">=", "and", "or", "in", "not in", "if"];
        prop_oneof![
            (inner.clone(), prop::sample::select(operators.to_vec()), inner.clone())
                .prop_map(|(a, op, b)| format!("{a} {op} {b}")),
            inner.clone().prop_map(|it| format!("({it})")),
            inner.clone().prop_map(|it| format!("not {it}")),
            inner.prop_map(|it| format!("{it} is defined")),
        ]
    })
}

/// Texts that are templates more often than not.
fn template() -> impl Strategy<Value = String> {
    let plain = prop_oneof![
        "[ a-z\n]{0,8}",
        Just("<p title=\"".to_owned()),
        Just("<a href=\"".to_owned()),
        Just("\">".to_owned()),
        Just("{".to_owned()),
        ".{0,4}"
    ];
    let leaf =
        prop_oneof![plain, expression().prop_map(|it| format!("{{{{ {it} }}}}")), Just("{% include 'p' %}".to_owned())];
    let tree = leaf.prop_recursive(4, 32, 4, |inner| {
        let all = prop::collection::vec(inner, 0..4).prop_map(|all| all.concat());
        prop_oneof![
            (expression(), all.clone())
                .prop_map(|(it, all)| format!("{{% if {it} -%}}{all}{{% else %}}{all}{{% endif %}}")),
            (name(), all.clone()).prop_map(|(it, all)| format!("{{% for i in {it} %}}{all}{{%- endfor %}}")),
            all.prop_map(|all| format!("{{% raw %}}{all}{{% endraw %}}")),
        ]
    });
    prop::collection::vec(tree, 0..4).prop_map(|all| all.concat())
}

fn check(source: &Source) -> Result<(), TestCaseError> {
    let Ok(compiled) = Compiled::new(source) else { return Ok(()) };
    let payload = FlatPayload::from(&payload());
    let note = Note { event_type: "a.b", title: Some(HOSTILE), ..Note::default() };
    let input = Input {
        payload: &payload,
        note,
        user: None,
        language: Some("de"),
        time_zone: None,
        unsubscribe_url: Err(NO_PUBLIC_URL),
    };
    let _ = compiled.address(&input);
    let Ok((content, warnings)) = compiled.render(&input) else { return Ok(()) };
    prop_assert!(warnings.len() <= limits::WARNINGS);
    if let Some(subject) = content.subject {
        prop_assert!(subject.len() <= limits::SUBJECT_BYTES && !subject.contains(char::is_control), "{subject:?}");
    }
    if let Some(data) = content.data {
        let data: Value =
            serde_json::from_str(data.get()).map_err(|problem| TestCaseError::fail(problem.to_string()))?;
        prop_assert!(data["a"].as_array().is_some_and(|all| all.len() == 2), "{data}");
    }
    if let Some(html) = content.html {
        prop_assert!(html.len() <= limits::BODY_BYTES && !html.contains(TAG), "{html}");
        let javascript = html.contains("\"javascript:") || html.contains("'javascript:");
        prop_assert!(!javascript, "{html}");
    }
    Ok(())
}

proptest! {
    #[test]
    fn generated_templates_stay_within_their_limits(
        html in template(), text in template(), partial in template(),
        missing in prop::sample::select(&Missing::ALL[..])
    ) {
        prop_assume!(!html.contains("q7") && !partial.contains("q7"));
        check(&Source {
            to: Some(text.clone()),
            subject: Some(text.clone()),
            data: Some(json!({"a": [text, "x"]})),
            text: Some(text),
            html: Some(html),
            parts: [("p".to_owned(), partial)].into(),
            missing,
            ..Source::default()
        })?;
    }

    #[test]
    fn any_text_is_compiled_or_refused(text in "\\PC*|[{}%# a|\"'().\\[\\]]{0,40}") {
        prop_assume!(!text.contains("q7"));
        check(&Source { html: Some(text.clone()), subject: Some(text), ..Source::default() })?;
    }

    #[test]
    fn text_without_tags_is_rendered_as_it_is(text in "[^{\\pC]*") {
        let compiled = Compiled::new(&Source { text: Some(text.clone()), ..Source::default() }).unwrap();
        let payload = FlatPayload::default();
        let input = Input { payload: &payload, note: Note::default(), user: None, language: None, time_zone: None, unsubscribe_url: Err(NO_PUBLIC_URL) };
        prop_assert_eq!(compiled.render(&input).unwrap().0.text, Some(text));
    }

    #[test]
    fn any_html_has_a_text(html in "(<[a-z/! ='\"]{0,6}>?|&[a-z#0-9;]{0,6}|.){0,60}") {
        let text = text_of_html(&html);
        prop_assert!(text.len() <= 3 * html.len() + 64, "{text}");
    }

    #[test]
    fn segments_hold_what_they_say(text in ".{0,400}") {
        let it = sms::segments(&text);
        let (alone, each) = if it.encoding == sms::Encoding::Gsm7 { (160, 153) } else { (70, 67) };
        let fits = if it.segments == 1 { it.characters <= alone } else { it.characters <= it.segments * each };
        prop_assert!(fits && (it.characters == 0) == (it.segments == 0), "{it:?}");
        prop_assert_eq!(it.encoding == sms::Encoding::Gsm7, sms::outside_gsm7(&text).is_none());
    }
}
