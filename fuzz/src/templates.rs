//! Compiles and renders whatever comes. It fails on a panic, on output beyond the limits, on HTML in which a value of
//! the payload is not escaped, and on channel data that is no JSON. libFuzzer itself fails on what takes too long.
#![no_main]

use libfuzzer_sys::fuzz_target;
use postcommit_channel::template::{Compiled, FlatPayload, Input, Missing, NO_PUBLIC_URL, Note, Source, limits, text_of_html};
use serde_json::json;

/// The tag in a hostile value. It may never be found in HTML; templates that could spell it are passed over.
const TAG: &str = "<q7!k";
const HOSTILE: &str = "<q7!k y='1'>&\"";

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let mut parts = text.split('\u{1}').map(str::to_owned);
    let missing = Missing::ALL[bytes.len() % Missing::ALL.len()];
    let mut next = || parts.next();
    let (html, text, subject, partial) = (next(), next(), next(), next().unwrap_or_default());
    let source = Source {
        to: subject.clone(),
        data: text.clone().map(|text| json!({"a": [text]})),
        parts: [("p".to_owned(), partial)].into(),
        missing,
        html,
        text,
        subject,
        ..Source::default()
    };
    let Ok(compiled) = Compiled::new(&source) else { return };
    let payload = FlatPayload::from(&json!({
        "a": HOSTILE, "b": 12345, "c": 1500.5, "d": "2026-03-15", "e": "2026-03-15T10:00:00Z", "f": true, "g": null,
        "l": [1, "two", {"a": HOSTILE}, ["x"]], "m": {"a": HOSTILE, "b": [1, 2]}, "u": "javascript:x"
    }));
    let note = Note { event_type: "a.b", title: Some(HOSTILE), ..Note::default() };
    let input = Input { payload: &payload, note, user: None, language: Some("de"), time_zone: Some("Asia/Kolkata"), unsubscribe_url: Err(NO_PUBLIC_URL) };
    let _ = compiled.address(&input);
    let Ok((content, warnings)) = compiled.render(&input) else { return };
    assert!(warnings.len() <= limits::WARNINGS);
    assert!(content.subject.is_none_or(|it| it.len() <= limits::SUBJECT_BYTES && !it.contains(char::is_control)));
    assert!(content.data.is_none_or(|it| it.get().len() <= limits::DATA_BYTES));
    if let Some(html) = content.html {
        assert!(html.len() <= limits::BODY_BYTES);
        let written = source.html.unwrap_or_default() + &source.parts["p"];
        let may_be_raw = (written.contains('7') && written.contains('!')) || written.contains("safe");
        assert!(may_be_raw || !html.contains(TAG), "{html}");
        let _ = text_of_html(&html);
    }
});
