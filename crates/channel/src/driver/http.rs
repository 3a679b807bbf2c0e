//! Translates the result of an HTTP request into an outcome, for every driver that uses HTTP. The outcome depends on
//! the status, or after a failure on whether any bytes were sent.

use crate::egress::{Call, EgressFailure, HttpAnswer, Phase};
use crate::model::{ErrorClass, Evidence, Guarantee, Outcome, Report};

/// The number of characters of an answer that the attempt log keeps.
const EXCERPT_CHARS: usize = 512;
/// The number of characters of a request that are shown to an operator.
const SHOWN_CHARS: usize = 8000;
/// The text that takes the place of a secret.
pub(super) const REDACTED: &str = "[redacted]";
/// The maximum number of characters of a receiver's own id.
pub(super) const REFERENCE_CHARS: usize = 255;

/// Translates the answer or the failure of a request into a report. `secrets` are redacted in the excerpt of the
/// answer.
pub(crate) fn report(result: Result<HttpAnswer, EgressFailure>, guarantee: Guarantee, secrets: &[String]) -> Report {
    match result {
        Err(failure) => failed(&failure),
        Ok(answer) => answered(&answer, guarantee, secrets),
    }
}

/// Translates the failure of a request into a report.
pub(super) fn failed(failure: &EgressFailure) -> Report {
    let outcome = match failure.phase {
        // Our own address filter refused the request, or its URL is malformed. Another attempt would fail in the same
        // way.
        Phase::Refused => Outcome::refused(failure.code),
        _ if failure.reached_wire() => Outcome::unclear(failure.code),
        _ => Outcome::deferred(failure.code),
    };
    Report::from(outcome).because(failure.detail.clone())
}

fn answered(answer: &HttpAnswer, guarantee: Guarantee, secrets: &[String]) -> Report {
    let code = || format!("http_{}", answer.status);
    let outcome = match answer.status {
        200..=299 => Outcome::Sent,
        401..=403 | 407 => Outcome::config(code()),
        // Another request with our idempotency key is being processed. If the provider respects keys, the next attempt
        // may succeed.
        409 | 423 if guarantee == Guarantee::Idempotent => Outcome::deferred(code()),
        425 | 429 | 503 | 507 => Outcome::deferred(code()),
        // The receiver read the request and may have acted on it before it failed.
        408 | 500..=599 => Outcome::unclear(code()),
        300..=499 => Outcome::refused(code()),
        _ => Outcome::Rejected { code: code(), because: crate::model::Because::Unrecognised },
    };
    let detail = (answer.status >= 300).then(|| sentence(answer.status));
    let evidence = Evidence {
        detail,
        provider_ref: None,
        excerpt: Some(excerpt(&answer.body, secrets)).filter(|text| !text.is_empty()),
    };
    let class = (answer.status >= 300).then(|| ErrorClass::of_http(answer.status));
    Report { class, evidence, after: answer.retry_after(), ..Report::from(outcome) }
}

fn sentence(status: u16) -> String {
    match status {
        300..=399 => format!("the receiver answered {status}; redirects are not followed, use the final URL"),
        401..=403 | 407 => format!("the receiver answered {status}: it does not accept the provider's credentials"),
        410 => "the receiver answered 410: the endpoint no longer exists".into(),
        429 => "the receiver answered 429: too many requests".into(),
        _ => format!("the receiver answered {status}"),
    }
}

/// A request as text, for an operator. Our own secrets are redacted.
pub(super) fn shown(call: &Call, secrets: &[String]) -> String {
    let mut text = format!("{} {}\n", call.method, call.url);
    for (name, value) in &call.headers {
        text += &format!("{name}: {}\n", String::from_utf8_lossy(value.as_bytes()));
    }
    text += "\n";
    text += &String::from_utf8_lossy(&call.body);
    without(text, secrets).chars().take(SHOWN_CHARS).collect()
}

/// Replaces the secrets in a text.
fn without(text: String, secrets: &[String]) -> String {
    secrets.iter().filter(|secret| secret.len() > 1).fold(text, |text, secret| redacted(text, secret))
}

/// The beginning of the answer as one line of text. Our own secrets are redacted.
pub(super) fn excerpt(body: &[u8], secrets: &[String]) -> String {
    // Redact before the text is cut, because a part of a secret would not be found.
    let text = without(String::from_utf8_lossy(body).into_owned(), secrets);
    let line: String = text.chars().take(EXCERPT_CHARS).map(|c| if c.is_control() { ' ' } else { c }).collect();
    line.trim().to_owned()
}

/// Replaces `secret` in `text`, ignoring case. `%2f` and `%2F` mean the same, and some receivers change the case of a
/// text that they echo.
fn redacted(text: String, secret: &str) -> String {
    let (lower, secret) = (text.to_ascii_lowercase(), secret.to_ascii_lowercase());
    let (mut left, mut from) = (String::new(), 0);
    for (at, found) in lower.match_indices(&secret) {
        left.push_str(&text[from..at]);
        left.push_str(REDACTED);
        from = at + found.len();
    }
    if from == 0 {
        return text;
    }
    left.push_str(&text[from..]);
    left
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use ::http::{HeaderMap, HeaderValue};
    use bytes::Bytes;

    fn answer(status: u16, retry_after: Option<&str>) -> HttpAnswer {
        let mut headers = HeaderMap::new();
        if let Some(value) = retry_after {
            headers.insert("retry-after", HeaderValue::from_str(value).unwrap());
        }
        HttpAnswer { status, headers, body: Bytes::new(), truncated: false, body_complete: true }
    }

    fn waits(text: &str) -> Option<u64> {
        answer(429, Some(text)).retry_after().map(|d| d.as_secs())
    }

    #[test]
    fn d6_retry_after_in_every_shape() {
        assert_eq!(waits("120"), Some(120));
        assert_eq!(waits("259200"), Some(259_200), "three days");
        assert_eq!(waits("99999999999999999999"), Some(u64::MAX));
        assert!(waits("Wed, 01 Jan 2200 00:00:00 GMT").unwrap() > 86_400);
        assert_eq!((waits("2.5"), waits("0.25")), (Some(2), Some(1)), "at least a second");
        let malformed = ["-1", "+1", ".5", "1.", "1.2.3", "1e9", "1e400", "inf", "infinity", "NaN", "soon", "1 2", ""];
        for nothing in malformed.into_iter().chain(["0", "000", "Wed, 01 Jan 2020 00:00:00 GMT"]) {
            assert_eq!(waits(nothing), None, "{nothing:?}");
        }
    }

    #[test]
    fn d6_every_answer_may_ask_to_wait() {
        for status in 100..=999 {
            let report = report(Ok(answer(status, Some("120"))), Guarantee::Idempotent, &[]);
            assert_eq!(report.after, Some(Duration::from_secs(120)), "{status}");
        }
    }

    #[test]
    fn every_status_has_a_meaning() {
        let name = |status, guarantee| match report(Ok(answer(status, None)), guarantee, &[]).outcome {
            Outcome::Rejected { because, .. } => format!("{because:?}"),
            other => other.name().to_owned(),
        };
        for status in 100..=999 {
            let expected = match status {
                200..=299 => "sent",
                401 | 402 | 403 | 407 => "Config",
                409 | 423 | 425 | 429 | 503 | 507 => "deferred",
                408 | 500..=599 => "unclear",
                300..=499 => "Refused",
                _ => "Unrecognised",
            };
            assert_eq!(name(status, Guarantee::Idempotent), expected, "{status}");
        }
        assert_eq!(name(409, Guarantee::AtMostOnce), "Refused");
    }

    #[test]
    fn an_excerpt_is_one_line_without_secrets() {
        assert_eq!(excerpt(b"token hush\r\n\0 refused", &["hush".to_owned()]), "token [redacted]    refused");
        assert_eq!(excerpt("é HUSH, hush é".as_bytes(), &["Hush".to_owned()]), "é [redacted], [redacted] é");
        assert_eq!(excerpt(&vec![b'x'; 10_000], &[]).len(), EXCERPT_CHARS);
    }
}
