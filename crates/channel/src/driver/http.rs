//! What an HTTP answer means, for every driver that speaks HTTP. One table, from bytes written and status.

use std::time::{Duration, SystemTime};

use crate::clock;
use crate::egress::{EgressFailure, HttpAnswer, Phase};
use crate::model::{Evidence, Guarantee, Outcome, Report};

/// The longest wait that a provider may ask for.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 3600);
/// Characters of an answer that are kept in the attempt log.
const EXCERPT_CHARS: usize = 512;

/// What a failed or answered call means. `secrets` are redacted in the excerpt that is kept.
pub(crate) fn report(result: Result<HttpAnswer, EgressFailure>, guarantee: Guarantee, secrets: &[String]) -> Report {
    match result {
        Err(failure) => failed(&failure),
        Ok(answer) => answered(&answer, guarantee, secrets),
    }
}

fn failed(failure: &EgressFailure) -> Report {
    let outcome = match failure.phase {
        // Our own filter or a malformed URL: the next attempt would meet the same.
        Phase::Refused => Outcome::refused(failure.code),
        _ if failure.reached_wire() => Outcome::unclear(failure.code),
        _ => Outcome::deferred(failure.code),
    };
    Report::from(outcome).because(failure.detail.clone())
}

fn answered(answer: &HttpAnswer, guarantee: Guarantee, secrets: &[String]) -> Report {
    let code = || format!("http_{}", answer.status);
    let after = retry_after(answer);
    let outcome = match answer.status {
        200..=299 => Outcome::Sent,
        401..=403 | 407 => Outcome::config(code()),
        // Another request holds our key at this moment. Where keys count, the next attempt may succeed.
        409 | 423 if guarantee == Guarantee::Idempotent => Outcome::Deferred { code: code(), after },
        425 | 429 | 503 | 507 => Outcome::Deferred { code: code(), after },
        // The request was read and something broke behind it.
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
    Report { evidence, ..Report::from(outcome) }
}

fn sentence(status: u16) -> String {
    match status {
        300..=399 => format!("answered {status}; redirects are not followed, give the final URL"),
        401..=403 | 407 => format!("answered {status}: it does not accept our credentials"),
        410 => "answered 410: the endpoint is gone".into(),
        429 => "answered 429: too many requests".into(),
        _ => format!("answered {status}"),
    }
}

/// The wait that the answer asks for, in seconds, with or without a fraction, or as a date. Zero, a date in the past
/// and a malformed value are none.
fn retry_after(answer: &HttpAnswer) -> Option<Duration> {
    let text = answer.headers.get("retry-after")?.to_str().ok()?.trim();
    let wait = match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 => Duration::try_from_secs_f64(seconds).unwrap_or(LONGEST_WAIT),
        Ok(_) => return None,
        Err(_) => {
            let at = httpdate::parse_http_date(text).ok()?;
            let now = SystemTime::UNIX_EPOCH + Duration::from_micros(u64::try_from(clock::now().as_micros()).ok()?);
            at.duration_since(now).ok()?
        }
    };
    Some(wait.min(LONGEST_WAIT))
}

/// The beginning of the answer as one line of text, with our own secrets redacted.
pub(super) fn excerpt(body: &[u8], secrets: &[String]) -> String {
    // Redacted before it is cut: half a secret would not be found.
    let text = String::from_utf8_lossy(body).into_owned();
    let text = secrets.iter().filter(|secret| secret.len() > 1).fold(text, |text, secret| redacted(text, secret));
    let line: String = text.chars().take(EXCERPT_CHARS).map(|c| if c.is_control() { ' ' } else { c }).collect();
    line.trim().to_owned()
}

/// Without that secret, in upper or lower case: `%2f` is `%2F`, and some receivers change the case of what they repeat.
fn redacted(text: String, secret: &str) -> String {
    let (lower, secret) = (text.to_ascii_lowercase(), secret.to_ascii_lowercase());
    let (mut left, mut from) = (String::new(), 0);
    for (at, found) in lower.match_indices(&secret) {
        left.push_str(&text[from..at]);
        left.push_str("[redacted]");
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
        retry_after(&answer(429, Some(text))).map(|d| d.as_secs())
    }

    #[test]
    fn d6_retry_after_in_every_shape() {
        assert_eq!(waits("120"), Some(120));
        assert_eq!(waits("1.5"), Some(1));
        assert_eq!(waits("1e18"), Some(86_400));
        assert_eq!(waits("Wed, 01 Jan 2200 00:00:00 GMT"), Some(86_400));
        for nothing in ["0", "-1", "soon", "Wed, 01 Jan 2020 00:00:00 GMT", "NaN", ""] {
            assert_eq!(waits(nothing), None, "{nothing:?}");
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
