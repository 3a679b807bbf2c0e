//! Texts that a receiver may echo and that must not get into the attempt log: secrets, and those parts of an address
//! that only its owner knows, in every form in which programs repeat them.

use std::collections::BTreeSet;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use url::{Position, Url};

/// A path segment or header of fewer characters is a word, such as `hooks`. Redacting it would make the answer
/// unreadable, and it is no secret.
const WORD: usize = 8;
/// A value of fewer characters in a query is no secret.
const GIVEN: usize = 4;
/// What `encodeURIComponent` and similar functions leave as it is.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
const ENCODED_BUT_SLASHES: &AsciiSet = &ENCODED.remove(b'/');

/// Texts to be redacted.
#[derive(Default)]
pub(super) struct Redactions(BTreeSet<String>);

impl Redactions {
    /// One secret, or several separated by spaces.
    pub(super) fn secrets(&mut self, text: &str) {
        text.split_whitespace().for_each(|secret| self.every_form(secret, 1));
    }

    /// A header's value, and each word of it that may be a secret: not `Bearer`, but the token after it.
    pub(super) fn header(&mut self, value: &str) {
        self.every_form(value, WORD);
        value.split_whitespace().for_each(|word| self.every_form(word, WORD));
    }

    /// The address of a message: as it was given, its path and query together and apart, and each part of them.
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

    /// The longest first, so that a text which contains another is redacted as a whole.
    pub(super) fn into_texts(self) -> Vec<String> {
        let mut texts: Vec<String> = self.0.into_iter().collect();
        texts.sort_by_key(|text| std::cmp::Reverse(text.len()));
        texts
    }

    /// Adds `part` encoded, decoded, decoded as a form and encoded anew, and each of them as a text within JSON. Adds
    /// nothing when `part` has fewer characters than `least`.
    fn every_form(&mut self, part: &str, least: usize) {
        let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let (plain, of_form) = (decoded(part), decoded(&part.replace('+', " ")));
        if plain.trim().chars().count() < least {
            return;
        }
        let anew = [ENCODED, ENCODED_BUT_SLASHES]
            .map(|set| [&plain, &of_form].map(|text| utf8_percent_encode(text, set).to_string()));
        for text in anew.into_iter().flatten().chain([part.to_owned(), plain, of_form]) {
            let in_json = serde_json::to_string(&text).unwrap_or_default();
            let in_json = in_json.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(&in_json);
            self.0.extend([in_json.to_owned(), in_json.replace('/', "\\/"), text.replace('/', "\\/"), text]);
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
