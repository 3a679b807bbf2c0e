//! The `webhook` driver sends signed JSON to an HTTP endpoint, as Standard Webhooks specifies.
//! `webhook-id` is the delivery's key. It is the same on every attempt, so that a receiver can recognise a repetition.
//! The body is the same on every attempt, too. Only `webhook-timestamp` and the signature change. If there are several
//! secrets, each adds a signature, so that secrets can be rotated.

use ::http::header::{CONTENT_TYPE, USER_AGENT};
use ::http::{HeaderMap, HeaderName, HeaderValue, Method};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use postcommit::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use sha2::Sha256;
use std::collections::BTreeMap;
use url::Url;
use uuid::Uuid;

use super::redact::Redactions;
use super::{Driver, KeyWindow, Kind, MadeSecret, Message, NewSecret, Parts, RawEvent, Sending, http};
use crate::clock;
use crate::egress::{Call, Egress, HttpAnswer};
use crate::model::{Because, Guarantee, Outcome, Report, Schedule};
use crate::render::{Content, data_for};
use crate::secret::{Secret, random};

/// The driver's default channel, and the key of its part of a notification's `data`.
pub(super) const CHANNEL: &str = "webhook";
pub(super) const AGENT: &str = concat!("postcommit/", env!("CARGO_PKG_VERSION"));
const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
pub(super) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// Headers that cannot be configured, in addition to `webhook-…`. The driver sets them itself, or they belong to the
/// connection. A configured value would be ignored or break the request.
pub(super) const RESERVED: [&str; 15] = [
    "connection",
    "content-length",
    "content-type",
    "expect",
    "host",
    "http2-settings",
    "idempotency-key",
    "keep-alive",
    "proxy-connection",
    "te",
    "traceparent",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
];
/// The number of headers that the driver itself adds, including `host`.
const OWN_HEADERS: usize = 8;
/// Headers of an answer that may hold the receiver's own id of the message, in order of preference.
const REFERENCE_HEADERS: [&str; 2] = ["webhook-message-id", "x-request-id"];
/// The key window: one week by default. Attempts may use 0.8 of it, which is longer than the default policy, whose last
/// attempt is 76 hours after the first.
const KEY_WINDOW: KeyWindow = KeyWindow { default_s: 604_800, allowed_s: 60..=2_592_000 };

pub(super) fn kind() -> Kind {
    Kind {
        policy: Schedule::StandardWebhooks.into(),
        secrets: vec!["secret".into()],
        new_secret: Some(NewSecret {
            name: "secret".into(),
            make: new_secret,
            public: None,
            about: "receivers verify the signature with this secret; it is not shown again".into(),
        }),
        ..Kind::new("webhook", Guarantee::Idempotent, KEY_WINDOW, build)
    }
}

/// Generates a secret in the format that Standard Webhooks libraries expect.
fn new_secret() -> MadeSecret {
    MadeSecret { secret: Secret::new(format!("whsec_{}", STANDARD.encode(random::<32>()))), public: None }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Settings {
    /// The URL for recipients that name this provider and have no URL of their own.
    url: Option<String>,
    /// Additional headers for every request.
    headers: BTreeMap<String, String>,
    /// The unit that is held, paused or limited if a receiver asks us to wait, refuses our credentials or is slow: its
    /// `host` or the whole `lane`. The default is `lane` if `url` is set, because there is only one receiver then.
    /// Otherwise it is `host`.
    isolate: Option<Isolate>,
    /// The effect of the statuses 401, 402, 403 and 407: `pause` the host or lane (the default), or `park` only this
    /// delivery.
    on_auth_error: OnAuthError,
    /// The time for which receivers remember a `webhook-id`: 60 seconds to 30 days.
    key_window_s: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Isolate {
    Host,
    Lane,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum OnAuthError {
    #[default]
    Pause,
    Park,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            url: None,
            headers: BTreeMap::new(),
            isolate: None,
            on_auth_error: OnAuthError::Pause,
            key_window_s: KEY_WINDOW.default_s,
        }
    }
}

struct Webhook {
    url: Option<Url>,
    headers: HeaderMap,
    isolates_hosts: bool,
    on_auth_error: OnAuthError,
    keys: Vec<Vec<u8>>,
    secret: Option<Secret>,
    guarantee: Guarantee,
    egress: Egress,
}

fn build(parts: &Parts<'_>) -> Result<Box<dyn Driver>, String> {
    let settings: Settings = super::settings(parts.settings)?;
    KEY_WINDOW.check(settings.key_window_s)?;
    let url = settings
        .url
        .as_deref()
        .map(|url| parse_url(url, parts.egress).map_err(|problem| format!("settings.url: {problem}")))
        .transpose()?;
    let secret = parts.secrets.get("secret").cloned();
    // The secret is revealed here to decode the signing keys.
    let keys = secret.as_ref().map_or(Ok(vec![]), |secret| parse_secrets(secret.reveal()))?;
    let headers = parse_headers(&settings.headers)?;
    let (guarantee, egress) = (parts.guarantee, parts.egress.clone());
    let isolates_hosts =
        settings.isolate.unwrap_or(if url.is_some() { Isolate::Lane } else { Isolate::Host }) == Isolate::Host;
    Ok(Box::new(Webhook {
        url,
        headers,
        isolates_hosts,
        on_auth_error: settings.on_auth_error,
        keys,
        secret,
        guarantee,
        egress,
    }))
}

fn parse_url(text: &str, egress: &Egress) -> Result<Url, String> {
    const SHAPE: &str = "must be a full http or https URL, such as https://example.com/hook";
    let url = Url::parse(text).ok().filter(|url| matches!(url.scheme(), "http" | "https")).ok_or(SHAPE)?;
    egress.check_url(&url).map_err(|failure| failure.detail)?;
    Ok(url)
}

/// Parses one or several secrets, separated by spaces. Each is `whsec_` followed by 24 to 64 bytes in base64. During a
/// rotation the newest is first.
fn parse_secrets(text: &str) -> Result<Vec<Vec<u8>>, String> {
    const SHAPE: &str =
        "secret: must be whsec_ followed by 24 to 64 random bytes in base64; several are separated by spaces";
    let decode =
        |part: &str| STANDARD.decode(part.strip_prefix("whsec_")?).ok().filter(|key| (24..=64).contains(&key.len()));
    text.split_whitespace().map(|part| decode(part).ok_or_else(|| SHAPE.to_owned())).collect()
}

fn parse_headers(given: &BTreeMap<String, String>) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (name, value) in given {
        let parsed = HeaderName::try_from(name.as_str()).ok().zip(HeaderValue::try_from(value.as_str()).ok());
        let (header, value) = parsed.ok_or_else(|| {
            format!("settings.headers.{name}: is not a valid HTTP header; check its name and its value")
        })?;
        if header.as_str().starts_with("webhook-") || RESERVED.contains(&header.as_str()) {
            return Err(format!("settings.headers.{name}: is set by postcommit; remove it from the settings"));
        }
        headers.insert(header, value);
    }
    Ok(headers)
}

/// The value of `webhook-signature`. For each key it holds `v1,` and the HMAC-SHA256 of `id.timestamp.body` in base64.
pub fn sign(keys: &[Vec<u8>], id: &str, timestamp: i64, body: &[u8]) -> String {
    let one = |key: &Vec<u8>| {
        let mut mac = Hmac::<Sha256>::new_from_slice(key).ok()?;
        mac.update(format!("{id}.{timestamp}.").as_bytes());
        mac.update(body);
        Some(format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes())))
    };
    keys.iter().filter_map(one).collect::<Vec<_>>().join(" ")
}

impl Driver for Webhook {
    fn send<'a>(&'a self, message: Message<'a>) -> Sending<'a> {
        Box::pin(async move {
            let call = match self.call(&message) {
                Ok(call) => call,
                Err(report) => return *report,
            };
            let result = self.egress.send(call).await;
            let reference = result.as_ref().ok().and_then(reference);
            let secrets = match &result {
                Ok(answer) if !answer.body.is_empty() || reference.is_some() => self.redactions(message.target),
                _ => vec![],
            };
            let mut report = self.own_rules(http::report(result, self.guarantee, &secrets));
            report.evidence.provider_ref = reference.filter(|text| http::excerpt(text.as_bytes(), &secrets) == *text);
            report
        })
    }

    fn shown_request(&self, message: &Message<'_>) -> Option<String> {
        let mut redactions = Redactions::default();
        self.headers.values().for_each(|value| redactions.header(&String::from_utf8_lossy(value.as_bytes())));
        Some(http::shown(&self.call(message).ok()?, &redactions.into_texts()))
    }

    fn isolates_hosts(&self) -> bool {
        self.isolates_hosts
    }

    fn host_of(&self, target: &str) -> Option<String> {
        super::host::of_url(&self.url_for(target).ok()?)
    }
}

impl Webhook {
    fn url_for(&self, target: &str) -> Result<Url, String> {
        match (Url::parse(target), &self.url) {
            (Ok(url), _) if matches!(url.scheme(), "http" | "https") => Ok(url),
            (_, Some(url)) => Ok(url.clone()),
            _ => Err("the address is not an http or https URL, and the provider has no settings.url; set settings.url, or name a URL as recipient".into()),
        }
    }

    /// The request of a message, or the report on a message that cannot be sent.
    fn call(&self, message: &Message<'_>) -> Result<Call, Box<Report>> {
        let url = self.url_for(message.target);
        let url = url.map_err(|problem| Report::from(Outcome::refused("bad_url")).because(problem))?;
        let body = body((message.channel, message.target), &message.content, message.raw_event);
        let headers = self.headers(message, &body).ok_or_else(|| {
            Report::from(Outcome::refused("bad_header"))
                .because("the key or the traceparent of the delivery holds a character that a header cannot have")
        })?;
        // The peer may close a reused connection during the request, which makes the outcome unclear. So `at_most_once`
        // uses a new connection for every request.
        let fresh = self.guarantee == Guarantee::AtMostOnce;
        Ok(Call { method: Method::POST, url, headers, body, timeout: message.timeout, fresh })
    }

    fn headers(&self, message: &Message<'_>, body: &[u8]) -> Option<HeaderMap> {
        let id = message.key.provider_key();
        let seconds = clock::now().as_micros() / 1_000_000;
        let mut headers = HeaderMap::with_capacity(self.headers.len() + OWN_HEADERS);
        headers.extend(self.headers.iter().map(|(name, value)| (name.clone(), value.clone())));
        let key = HeaderValue::from_str(&id).ok()?;
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
        headers.insert(WEBHOOK_ID, key.clone());
        headers.insert(IDEMPOTENCY_KEY, key);
        headers.insert(WEBHOOK_TIMESTAMP, seconds.into());
        if let Some(parent) = message.traceparent {
            headers.insert(TRACEPARENT, HeaderValue::from_str(parent).ok()?);
        }
        if !self.keys.is_empty() {
            headers.insert(WEBHOOK_SIGNATURE, sign(&self.keys, &id, seconds, body).try_into().ok()?);
        }
        Some(headers)
    }

    /// The strings to redact in the answer. A receiver may echo the request. The secrets and the path and query of the
    /// address must not get into the attempt log.
    fn redactions(&self, target: &str) -> Vec<String> {
        let mut redactions = Redactions::default();
        // The secret is revealed here to search for it in the answer.
        self.secret.iter().for_each(|secret| redactions.secrets(secret.reveal()));
        self.headers.values().for_each(|value| redactions.header(&String::from_utf8_lossy(value.as_bytes())));
        redactions.address(target, self.url_for(target).ok().as_ref());
        redactions.into_texts()
    }

    fn own_rules(&self, mut report: Report) -> Report {
        if let Outcome::Rejected { because, .. } = &mut report.outcome
            && *because == Because::Config
            && self.on_auth_error == OnAuthError::Park
        {
            *because = Because::Refused;
        }
        report
    }
}

/// The receiver's own id of the message or the request. It is taken from a header, or from the `id` of a JSON object if
/// that is a string or a number. An id that is too long or not printable is ignored, because a shortened id is useless.
fn reference(answer: &HttpAnswer) -> Option<String> {
    #[derive(Deserialize)]
    struct Told {
        id: Value,
    }
    let of_header = |name: &str| Some(answer.headers.get(name)?.to_str().ok()?.trim().to_owned());
    let of_body = || {
        // Accept only an object, because serde would also read a JSON list as the fields in order.
        let object = Some(&answer.body).filter(|body| body.trim_ascii_start().starts_with(b"{"))?;
        match serde_json::from_slice::<Told>(object).ok()?.id {
            Value::String(id) => Some(id.trim().to_owned()),
            Value::Number(id) => Some(id.to_string()),
            _ => None,
        }
    };
    let is_good =
        |id: &String| (1..=http::REFERENCE_CHARS).contains(&id.chars().count()) && !id.chars().any(char::is_control);
    let in_header = REFERENCE_HEADERS.iter().find_map(|name| of_header(name).filter(is_good));
    in_header.or_else(|| of_body().filter(is_good))
}

/// The body of the request. The payload is sent as its stored text, so that numbers keep every digit.
#[derive(Serialize)]
struct Body<'a> {
    r#type: &'a str,
    timestamp: Timestamp,
    data: &'a RawValue,
    id: Uuid,
    tenant: &'a str,
    idempotency_key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    entity: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    action_url: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    topic: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    correlation_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    schema_version: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    webhook: Option<&'a RawValue>,
    /// The whole message, on a channel other than `webhook`: the receiver forwards it to a person.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<Forwarded<'a>>,
}

/// A message that the receiver of a webhook sends on, e.g. as a mail.
#[derive(Serialize)]
struct Forwarded<'a> {
    channel: &'a str,
    /// The address of the recipient.
    to: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    html: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a RawValue>,
}

/// Builds the body. It is byte for byte the same on every attempt, because nothing in it depends on the time or the
/// number of the attempt.
pub(crate) fn body((channel, target): (&str, &str), content: &Content, event: RawEvent<'_>) -> Bytes {
    // A provider of this driver may serve a channel with another name. Its receivers still get the part for `webhook`.
    let of_webhook = if channel == CHANNEL { None } else { event.data.and_then(|data| data_for(CHANNEL, data)) };
    let body = Body {
        r#type: event.event_type,
        timestamp: event.created_at,
        data: event.payload,
        id: event.id,
        tenant: event.tenant,
        idempotency_key: event.idempotency_key,
        entity: event.entity,
        title: content.subject.as_deref(),
        body: content.text.as_deref(),
        action_url: content.action_url.as_deref(),
        topic: event.topic,
        correlation_id: event.correlation_id,
        schema_version: event.schema_version,
        webhook: if channel == CHANNEL { content.data.as_deref() } else { of_webhook.as_deref() },
        message: (channel != CHANNEL).then_some(Forwarded {
            channel,
            to: target,
            subject: content.subject.as_deref(),
            text: content.text.as_deref(),
            html: content.html.as_deref(),
            data: content.data.as_deref(),
        }),
    };
    serde_json::to_vec(&body).unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signature_is_the_published_one() {
        // The example from the reference libraries of the Standard Webhooks specification.
        let keys = parse_secrets("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let signature = sign(&keys, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn receivers_remember_a_key_for_longer_than_the_default_policy_takes() {
        let policy = kind().draft("hooks").policy;
        assert_eq!(policy.schedule, Schedule::StandardWebhooks);
        let longest: std::time::Duration = (1..policy.max_attempts.into()).map(|failed| policy.wait(failed, 0.0)).sum();
        let first = Timestamp::from_micros(0);
        assert!(!crate::model::key_window_over(first, KEY_WINDOW.of(&serde_json::json!({})), first.plus(longest)));
    }

    #[test]
    fn two_secrets_sign_twice() {
        let keys =
            parse_secrets("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA").unwrap();
        assert_eq!(sign(&keys, "a", 1, b"{}").split(' ').filter(|s| s.starts_with("v1,")).count(), 2);
    }

    #[test]
    fn b6_the_receiver_s_own_id_is_in_a_header_or_in_the_json() {
        let of = |headers: &[(&'static str, &str)], body: &str| {
            let headers = headers.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()));
            let body = Bytes::copy_from_slice(body.as_bytes());
            reference(&HttpAnswer {
                status: 200,
                headers: headers.collect(),
                body,
                truncated: false,
                body_complete: true,
            })
        };
        let both = [("x-request-id", "r-1"), ("webhook-message-id", "m-1")];
        assert_eq!(of(&both, r#"{"id": "b-1"}"#).as_deref(), Some("m-1"));
        assert_eq!(of(&both[..1], r#"{"id": "b-1"}"#).as_deref(), Some("r-1"));
        assert_eq!(of(&[], r#"{"ok": true, "id": "b-1"}"#).as_deref(), Some("b-1"));
        assert_eq!(of(&[], r#"{"id": 12345678901234567890}"#).as_deref(), Some("12345678901234567890"));
        let (fits, too_long) = ("x".repeat(255), "x".repeat(256));
        assert_eq!(of(&[("x-request-id", &too_long)], &format!(r#"{{"id": "{fits}"}}"#)), Some(fits));
        for body in [
            "ok",
            "",
            "[1]",
            r#"{"id": null}"#,
            r#"{"id": {"a": 1}}"#,
            r#"{"id": " "}"#,
            r#"{"id": "a\nb"}"#,
            r#"{"id": "x"#,
        ] {
            assert_eq!(of(&[("x-request-id", "")], body), None, "{body}");
        }
    }

    #[test]
    fn headers_that_would_not_be_sent_as_given_are_refused() {
        let given = |name: &str| parse_headers(&BTreeMap::from([(name.to_owned(), "x".to_owned())]));
        for name in [
            "Host",
            "content-length",
            "Transfer-Encoding",
            "connection",
            "TE",
            "upgrade",
            "User-Agent",
            "webhook-id",
            "idempotency-key",
        ] {
            assert_eq!(
                given(name).unwrap_err(),
                format!("settings.headers.{name}: is set by postcommit; remove it from the settings")
            );
        }
        assert_eq!(given("Authorization").unwrap().len(), 1);
    }

    #[test]
    fn secrets_of_another_shape_are_refused_without_being_repeated() {
        for text in ["hush", "whsec_c2hvcnQ=", "whsec_!!!"] {
            let problem = parse_secrets(text).unwrap_err();
            assert!(problem.contains("whsec_") && !problem.contains(text), "{problem}");
        }
    }
}
