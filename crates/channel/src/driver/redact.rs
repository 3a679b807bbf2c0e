//! Collects the strings that a receiver may echo and that must not get into the attempt log: secrets, and the
//! confidential parts of an address. Each string is collected in every encoding in which programs may echo it.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde_json::Value;
use url::{Position, Url};

/// A path segment or a word of a header with fewer characters is treated as an ordinary word, such as `hooks`, and not
/// as a secret. Redacting it would make the answer unreadable.
const WORD: usize = 8;
/// A query value with fewer characters is not treated as a secret.
const GIVEN: usize = 4;
/// The characters that percent-encoding functions usually encode.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
const ENCODED_BUT_SLASHES: &AsciiSet = &ENCODED.remove(b'/');

/// The strings to redact.
#[derive(Default)]
pub(super) struct Redactions(BTreeSet<String>);

impl Redactions {
    /// Adds one secret, or several separated by spaces, also in base64. A long part of a secret that has a colon is a
    /// secret, too.
    pub(super) fn secrets(&mut self, text: &str) {
        for secret in text.split_whitespace() {
            self.every_form(secret, 1);
            self.0.extend([STANDARD.encode(secret), URL_SAFE_NO_PAD.encode(secret)]);
            secret.split(':').for_each(|part| self.every_form(part, WORD));
        }
    }

    /// Adds a text with its spaces, such as the base64 of several secrets together.
    pub(super) fn exact(&mut self, text: &str) {
        self.0.insert(text.to_owned());
    }

    /// Adds the confidential fields of a JSON file, such as the key of a service account. The other fields are ordinary
    /// words that occur in many answers.
    pub(super) fn file(&mut self, json: &Value) {
        const CONFIDENTIAL: [&str; 5] = ["key", "secret", "token", "password", "credential"];
        let Value::Object(fields) = json else { return };
        for (name, field) in fields {
            let name = name.to_ascii_lowercase();
            match field.as_str() {
                Some(text) if CONFIDENTIAL.iter().any(|word| name.contains(word)) => self.secrets(text),
                _ => self.file(field),
            }
        }
    }

    /// Adds the value of a header and each of its long words. In `Bearer <token>` the token is long, and `Bearer` is
    /// not.
    pub(super) fn header(&mut self, value: &str) {
        self.every_form(value, WORD);
        value.split_whitespace().for_each(|word| self.every_form(word, WORD));
    }

    /// Adds the address of a message: the whole text, its path and query, and each segment and value in them.
    pub(super) fn address(&mut self, given: &str, url: Option<&Url>) {
        self.every_form(given, 1);
        let Some(url) = url else { return };
        self.every_form(&url[Position::BeforePath..Position::AfterQuery], 2);
        self.every_form(url.path(), 2);
        url.path().split('/').for_each(|segment| self.every_form(segment, WORD));
        let query = url.query().unwrap_or_default();
        self.every_form(query, WORD);
        for pair in query.split('&') {
            match pair.split_once('=') {
                Some((_, value)) => self.every_form(value, GIVEN),
                None => self.every_form(pair, WORD),
            }
        }
    }

    /// Returns the strings, longest first, so that a string that contains another one is redacted as a whole.
    pub(super) fn into_texts(self) -> Vec<String> {
        let mut texts: Vec<String> = self.0.into_iter().collect();
        texts.sort_by_key(|text| std::cmp::Reverse(text.len()));
        texts
    }

    /// Adds `part` in every encoding: unchanged, percent-decoded, decoded as form data, encoded again, and each of
    /// these as a JSON string. Adds nothing if `part` has fewer characters than `least`.
    fn every_form(&mut self, part: &str, least: usize) {
        let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let (plain, of_form) = (decoded(part), decoded(&part.replace('+', " ")));
        if plain.trim().chars().count() < least {
            return;
        }
        let anew = [ENCODED, ENCODED_BUT_SLASHES]
            .map(|set| [&plain, &of_form].map(|text| utf8_percent_encode(text, set).to_string()));
        let as_form = url::form_urlencoded::byte_serialize(plain.as_bytes()).collect();
        for text in anew.into_iter().flatten().chain([part.to_owned(), as_form, plain, of_form]) {
            let in_json = serde_json::to_string(&text).unwrap_or_default();
            let in_json = in_json.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(&in_json);
            // Some programs escape these characters in JSON.
            let escaped = in_json.replace('&', "\\u0026").replace('<', "\\u003c").replace('>', "\\u003e");
            self.0.extend([in_json.to_owned(), escaped, in_json.replace('/', "\\/"), text.replace('/', "\\/"), text]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::http::excerpt;

    fn left(target: &str, echo: &str) -> String {
        let mut redactions = Redactions::default();
        redactions.secrets("whsec_c2VjcmV0 whsec_b2xk");
        redactions.header("Bearer tok_4711_abc");
        redactions.header("short");
        redactions.address(target, Url::parse(target).ok().as_ref());
        excerpt(echo.as_bytes(), &redactions.into_texts())
    }

    #[test]
    fn an_echoed_address_is_redacted_in_every_form() {
        let target = "https://h.example/hooks/T0/s3cr%2Fet%20path?token=a%2Bb%20c+d/e&x=1&lone-s3cret";
        for echo in [
            target,
            "/hooks/T0/s3cr%2Fet%20path?token=a%2Bb%20c+d/e&x=1&lone-s3cret",
            "/hooks/T0/s3cr%2Fet%20path",
            "/hooks/T0/s3cr%2fet%20path",
            "/hooks/T0/s3cr/et path",
            r"\/hooks\/T0\/s3cr%2Fet%20path",
            r"\/hooks\/T0\/s3cr\/et path",
            "s3cr%2Fet%20path",
            "s3cr/et path",
            r"s3cr\/et path",
            "s3cr%2Fet%20path".to_lowercase().as_str(),
            "token=a%2Bb%20c+d/e&x=1&lone-s3cret",
            "a%2Bb%20c+d/e",
            "a+b c d/e",
            "a+b c+d/e",
            r"a+b c d\/e",
            "a%2Bb%20c%20d%2Fe",
            "a%2bb%20c%20d%2fe",
            "lone-s3cret",
            "whsec_c2VjcmV0",
            "whsec_b2xk",
            "Bearer tok_4711_abc",
            "tok_4711_abc",
        ] {
            assert_eq!(left(target, &format!("no {echo}!")), "no [redacted]!", "{echo}");
        }
        assert_eq!(left(target, "hooks are short, T0 too; x=1"), "hooks are short, T0 too; x=1", "words stay");
    }

    #[test]
    fn a_text_of_json_is_redacted_as_it_is_escaped() {
        let echo = serde_json::json!({"path": "/a/s3cret\"\\way", "q": "va\"lue"}).to_string();
        assert_eq!(left("http://h/a/s3cret%22%5Cway?q=va%22lue", &echo), r#"{"path":"[redacted]","q":"[redacted]"}"#);
    }

    #[test]
    fn an_address_without_a_path_leaves_the_answer_as_it_was() {
        assert_eq!(left("https://h.example/", "and/or"), "and/or");
        assert_eq!(left("https://h.example", "and/or https"), "and/or https");
        assert_eq!(left("no url", "it is no url"), "it is [redacted]");
    }
}
