//! The `web_push` driver sends messages to browsers (RFC 8030). A message is encrypted for one browser (RFC 8291), and the
//! request is signed with the provider's own key (VAPID, RFC 8292).

mod encryption;

use std::sync::Arc;

use ::http::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, LOCATION, USER_AGENT};
use ::http::{HeaderMap, HeaderName, HeaderValue, Method};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use url::Url;

use self::encryption::{ADDED_BYTES, BODY_BYTES, encrypted};
use super::redact::Redactions;
use super::webhook::{AGENT, TRACEPARENT};
use super::{Driver, KeyWindow, Kind, MadeSecret, Message, NewSecret, Parts, Sending, http};
use crate::clock;
use crate::egress::{Call, Egress, HttpAnswer};
use crate::keys::{P256Key, from_base64};
use crate::model::{ErrorClass, Evidence, Guarantee, Outcome, Report};
use crate::secret::Secret;

const TTL: HeaderName = HeaderName::from_static("ttl");
const URGENCY: HeaderName = HeaderName::from_static("urgency");
const TOPIC: HeaderName = HeaderName::from_static("topic");
/// The longest time for which a push service keeps a message, in seconds: four weeks.
const TTL_MOST_S: u32 = 2_419_200;
/// The time for which a signature is valid, in seconds. Push services accept at most a day.
const SIGNATURE_S: i64 = 43_200;
/// The maximum number of characters of a topic that push services accept.
const TOPIC_CHARS: usize = 32;
const URGENCIES: [&str; 4] = ["very-low", "low", "normal", "high"];

pub(super) fn kind() -> Kind {
    Kind {
        // No setting is a route of the private key, because the key is never sent.
        secrets: vec!["private_key".into()],
        new_secret: Some(NewSecret {
            name: "private_key".into(),
            make: new_pair,
            public: Some("public_key".into()),
            about: "browsers subscribe with this public key (applicationServerKey)".into(),
        }),
        // Push services have no idempotency keys. A repeated message replaces one that was not delivered yet, but if
        // the first was delivered, the browser shows both.
        ..Kind::new("web_push", Guarantee::AtLeastOnce, KeyWindow::day(60..=2_592_000), build)
    }
}

fn new_pair() -> MadeSecret {
    // Without randomness there is no key. The provider is then refused, because its key is not valid.
    let (private, public) = P256Key::generate().unwrap_or_default();
    MadeSecret { secret: Secret::new(private), public: Some(public) }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// The mail address or web page of the sender, for the operators of push services: `mailto:…` or `https://…`.
    subject: String,
    /// The public key, in base64. It is generated together with the secret `private_key`.
    public_key: Option<String>,
    /// How long a push service keeps a message for a browser that is not running: 0 to 2419200 seconds. By default a
    /// day.
    #[serde(default = "day")]
    ttl_s: u32,
}

const fn day() -> u32 {
    86_400
}

struct WebPush {
    subject: String,
    public_key: String,
    key: P256Key,
    secret: Secret,
    ttl_s: u32,
    guarantee: Guarantee,
    egress: Egress,
}

fn build(parts: &Parts<'_>) -> Result<Box<dyn Driver>, String> {
    let Settings { subject, public_key, ttl_s } = super::settings(parts.settings)?;
    if parts.guarantee == Guarantee::Idempotent {
        return Err(
            "guarantee: idempotent is not possible, because push services have no keys for messages that were \
                    delivered; use at_least_once or at_most_once"
                .into(),
        );
    }
    let is_url = Url::parse(&subject).is_ok_and(|url| match url.scheme() {
        "mailto" => postcommit::check::email(url.path()).is_ok(),
        scheme => scheme == "https" && url.has_host(),
    });
    if !is_url {
        return Err(format!(
            "settings.subject: is {subject:?}; it must be mailto: and a mail address, or the https URL of a page"
        ));
    }
    if ttl_s > TTL_MOST_S {
        return Err(format!("settings.ttl_s: is {ttl_s}; 0 to {TTL_MOST_S} are allowed"));
    }
    let secret = parts.secrets.get("private_key").cloned();
    let (Some(secret), Some(public_key)) = (secret, public_key) else {
        return Err(
            "secret: settings.public_key and the secret \"private_key\" belong together; give both, or none for \
                    a new pair"
                .into(),
        );
    };
    // The private key is revealed here to read it.
    let key = P256Key::from_pair(secret.reveal(), &public_key).ok_or(
        "settings.public_key: is not the public half of the secret private_key; both are base64 for URLs, as tools for \
         VAPID write them",
    )?;
    let public_key = public_key.trim_end_matches('=').to_owned();
    let (guarantee, egress) = (parts.guarantee, parts.egress.clone());
    Ok(Box::new(WebPush { subject, public_key, key, secret, ttl_s, guarantee, egress }))
}

/// The subscription of a browser.
struct Subscription {
    endpoint: Url,
    keys: SubscriptionKeys,
}

#[derive(Deserialize)]
struct SubscriptionKeys {
    p256dh: String,
    auth: String,
}

impl Subscription {
    fn parse(target: &str) -> Option<Self> {
        #[derive(Deserialize)]
        struct Written {
            endpoint: String,
            keys: SubscriptionKeys,
        }
        let Written { endpoint, keys } = serde_json::from_str(target).ok()?;
        let endpoint = Url::parse(&endpoint).ok().filter(|url| matches!(url.scheme(), "http" | "https"))?;
        Some(Self { endpoint, keys })
    }
}

/// The fields of the channel data that control the delivery. The other fields are sent to the web page.
#[derive(Default, Deserialize)]
struct Wishes {
    ttl_s: Option<u32>,
    urgency: Option<String>,
    topic: Option<String>,
}

fn refused(code: &str, class: ErrorClass, detail: String) -> Box<Report> {
    Box::new(Report { class: Some(class), ..Report::from(Outcome::refused(code)).because(detail) })
}

impl Driver for WebPush {
    fn send<'a>(&'a self, message: Message<'a>) -> Sending<'a> {
        Box::pin(async move {
            let (call, subscription) = match self.call(&message) {
                Ok(call) => call,
                Err(report) => return *report,
            };
            let redactions = self.redactions(&call, &subscription, message.target);
            let result = self.egress.send(call).await;
            let reference = result.as_ref().ok().and_then(reference);
            let is_foreign = result.as_ref().is_ok_and(is_foreign);
            // The browser or its user has ended the subscription (RFC 8030).
            let is_gone = result.as_ref().is_ok_and(|answer| matches!(answer.status, 404 | 410));
            let mut report = http::report(result, self.guarantee, &redactions);
            report.suppress = is_gone.then(|| Arc::from("the subscription has ended"));
            if is_foreign {
                let detail =
                    "the subscription does not belong to the provider's key; the browser has to subscribe anew";
                report = of_foreign(report, detail);
            }
            report.evidence.provider_ref = reference.filter(|id| http::excerpt(id.as_bytes(), &redactions) == *id);
            report
        })
    }

    /// The request as text, with the message before its encryption.
    fn shown_request(&self, message: &Message<'_>) -> Option<String> {
        let (mut call, _) = self.call(message).ok()?;
        call.headers.insert(AUTHORIZATION, HeaderValue::from_static(http::REDACTED));
        call.body = text(message).ok()?.0;
        Some(http::shown(&call, &[]))
    }

    fn isolates_hosts(&self) -> bool {
        true
    }

    fn host_of(&self, target: &str) -> Option<String> {
        super::host::of_url(&Subscription::parse(target)?.endpoint)
    }
}

impl WebPush {
    /// The request of a message, or the report on a message that cannot be sent.
    fn call(&self, message: &Message<'_>) -> Result<(Call, Subscription), Box<Report>> {
        let subscription = Subscription::parse(message.target).ok_or_else(|| {
            let shape = r#"{"endpoint":"https://…","keys":{"p256dh":"…","auth":"…"}}"#;
            refused("bad_address", ErrorClass::InvalidAddress, format!("the address must be a subscription: {shape}"))
        })?;
        let (text, wishes) = text(message)?;
        let most = BODY_BYTES - ADDED_BYTES;
        if text.len() > most {
            let detail = format!(
                "the message has {} bytes as JSON; push services take {most}, which are {BODY_BYTES} when encrypted",
                text.len()
            );
            return Err(refused("too_long", ErrorClass::InvalidContent, detail));
        }
        let keys = from_base64(&subscription.keys.p256dh).zip(from_base64(&subscription.keys.auth));
        let body = keys.filter(|(_, auth)| auth.len() == 16);
        let body = body.and_then(|(browser, auth)| encrypted(&text, &browser, &auth)).ok_or_else(|| {
            let detail = "the address has a key p256dh or auth that is not a key of a browser";
            refused("bad_address", ErrorClass::InvalidAddress, detail.into())
        })?;
        let headers = self.headers(message, &subscription, &wishes)?;
        // The peer may close a reused connection during the request, which makes the outcome unclear. So `at_most_once`
        // uses a new connection for every request.
        let fresh = self.guarantee == Guarantee::AtMostOnce;
        let (method, url, body) = (Method::POST, subscription.endpoint.clone(), body.into());
        Ok((Call { method, url, headers, body, timeout: message.timeout, fresh }, subscription))
    }

    fn headers(
        &self,
        message: &Message<'_>,
        subscription: &Subscription,
        wishes: &Wishes,
    ) -> Result<HeaderMap, Box<Report>> {
        let content = |detail: String| refused("bad_content", ErrorClass::InvalidContent, detail);
        let urgency = match &wishes.urgency {
            None => by_priority(message.raw_event.priority),
            Some(wish) => URGENCIES.into_iter().find(|known| known == wish).ok_or_else(|| {
                content(format!("data.{}.urgency: allowed are {}", message.channel, URGENCIES.join(", ")))
            })?,
        };
        let topic = match &wishes.topic {
            // If this message is sent again, it replaces the message that the push service still keeps.
            None => topic_of(&message.key.provider_key()),
            Some(topic) => topic.clone(),
        };
        let is_topic = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if topic.is_empty() || topic.len() > TOPIC_CHARS || !topic.chars().all(is_topic) {
            let field = format!("data.{}.topic", message.channel);
            return Err(content(format!("{field}: must be 1 to {TOPIC_CHARS} letters, digits, - and _")));
        }
        let ttl = wishes.ttl_s.unwrap_or(self.ttl_s).min(TTL_MOST_S);
        let unsigned = |problem: String| {
            Box::new(Report {
                class: Some(ErrorClass::Config),
                ..Report::from(Outcome::config("not_signed"))
                    .because(format!("the request cannot be signed: {problem}"))
            })
        };
        let mut authorization = self.authorization(&subscription.endpoint).map_err(unsigned)?;
        authorization.set_sensitive(true);
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, authorization);
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("aes128gcm"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
        headers.insert(TTL, ttl.into());
        headers.insert(URGENCY, HeaderValue::from_static(urgency));
        headers.extend(HeaderValue::from_str(&topic).ok().map(|topic| (TOPIC, topic)));
        let parent = message.traceparent.and_then(|parent| HeaderValue::from_str(parent).ok());
        headers.extend(parent.map(|parent| (TRACEPARENT, parent)));
        Ok(headers)
    }

    /// The signature of the provider, for the origin of the endpoint (VAPID).
    fn authorization(&self, endpoint: &Url) -> Result<HeaderValue, String> {
        let expiry = clock::now().as_micros() / 1_000_000 + SIGNATURE_S;
        let head = json!({"typ": "JWT", "alg": "ES256"}).to_string();
        let claims = json!({"aud": endpoint.origin().ascii_serialization(), "exp": expiry, "sub": self.subject});
        let text = format!("{}.{}", URL_SAFE_NO_PAD.encode(head), URL_SAFE_NO_PAD.encode(claims.to_string()));
        let signature = URL_SAFE_NO_PAD.encode(self.key.sign(text.as_bytes())?);
        let value = format!("vapid t={text}.{signature}, k={}", self.public_key);
        HeaderValue::from_str(&value).map_err(|_| "the header is malformed".to_owned())
    }

    /// The strings to redact in the answer. A subscription is a secret of the browser.
    fn redactions(&self, call: &Call, subscription: &Subscription, target: &str) -> Vec<String> {
        let mut redactions = Redactions::default();
        // The private key is revealed here to search for it in the answer.
        redactions.secrets(self.secret.reveal());
        let authorization = call.headers.get(AUTHORIZATION).map(HeaderValue::as_bytes).unwrap_or_default();
        let authorization = String::from_utf8_lossy(authorization);
        redactions.header(&authorization);
        let parts = authorization.split([' ', ',', '=']).chain([target]);
        parts.for_each(|part| redactions.header(part));
        let SubscriptionKeys { p256dh, auth } = &subscription.keys;
        [p256dh, auth].into_iter().for_each(|key| redactions.secrets(key));
        redactions.address(subscription.endpoint.as_str(), Some(&subscription.endpoint));
        redactions.into_texts()
    }
}

/// The message for the web page, as JSON, and the fields that control its delivery.
fn text(message: &Message<'_>) -> Result<(Bytes, Wishes), Box<Report>> {
    let content = &message.content;
    let data = content.data.as_deref().map(|data| data.get()).unwrap_or("{}");
    let wishes = serde_json::from_str(data);
    let wishes: Wishes = wishes.map_err(|problem| {
        let detail = format!("data.{}: {problem}", message.channel);
        refused("bad_content", ErrorClass::InvalidContent, detail)
    })?;
    let mut fields: Map<String, Value> = serde_json::from_str(data).unwrap_or_default();
    ["ttl_s", "urgency", "topic"].iter().for_each(|name| drop(fields.remove(*name)));
    let own = [
        ("id", Some(message.key.provider_key())),
        ("title", content.subject.clone()),
        ("body", content.text.clone()),
        ("url", content.action_url.clone()),
    ];
    fields.extend(own.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.into()))));
    Ok((Value::Object(fields).to_string().into(), wishes))
}

fn by_priority(priority: i16) -> &'static str {
    match priority {
        ..=1 => URGENCIES[0],
        2..=3 => URGENCIES[1],
        4..=6 => URGENCIES[2],
        _ => URGENCIES[3],
    }
}

/// Derives a topic of the allowed length from a key. The same key always gives the same topic.
fn topic_of(key: &str) -> String {
    URL_SAFE_NO_PAD.encode(&Sha256::digest(key)[..24])
}

/// Whether the push service refuses this subscription because it was made with another key. Other subscriptions may be
/// valid: an application that changed its key has subscriptions of both keys.
fn is_foreign(answer: &HttpAnswer) -> bool {
    let text = String::from_utf8_lossy(&answer.body).to_ascii_lowercase();
    match answer.status {
        401 => text.contains("key mismatch"),
        // Apple gives this answer if the signature is not valid at all, whatever the subscription.
        403 => !text.contains("badjwttoken"),
        _ => false,
    }
}

/// The report on one refused subscription. It does not pause the push service's host.
fn of_foreign(report: Report, detail: &str) -> Report {
    let code = report.outcome.code().unwrap_or_default();
    let detail = format!("the push service answered {}: {detail}", code.trim_start_matches("http_"));
    let (outcome, class) = (Outcome::refused(code), Some(ErrorClass::Config));
    let evidence = Evidence { detail: Some(detail), ..report.evidence };
    Report { outcome, class, only_delivery: true, evidence, ..report }
}

/// The push service's own id of the message: the last part of the URL in `Location`.
fn reference(answer: &HttpAnswer) -> Option<String> {
    let location = answer.headers.get(LOCATION).filter(|_| (200..=299).contains(&answer.status))?.to_str().ok()?;
    let id = location.split(['?', '#']).next()?.rsplit('/').next()?;
    Some(id.to_owned()).filter(|id| (1..=http::REFERENCE_CHARS).contains(&id.chars().count()))
}
