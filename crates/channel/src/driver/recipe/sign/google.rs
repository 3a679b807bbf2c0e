//! Access tokens of Google for a service account: a JWT that is signed by the account's key is exchanged for a token
//! (RFC 7523). The token is used for all requests of a provider until shortly before it ends.

use std::time::{Duration, Instant};

use ::http::header::{AUTHORIZATION, CONTENT_TYPE};
use ::http::{HeaderMap, HeaderValue, Method};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::{Mutex, MutexGuard};
use url::Url;

use super::With;
use crate::clock;
use crate::driver::http::excerpt;
use crate::driver::redact::Redactions;
use crate::egress::{Call, Deadline, Egress, EgressFailure, HttpAnswer, Phase};
use crate::keys::PrivateKey;
use crate::model::{ErrorClass, Outcome, Report};

/// A token is not used in this last part of its life.
const RESERVE: Duration = Duration::from_secs(300);
/// The life of the JWT, in seconds. It is the longest that Google accepts.
const JWT_S: i64 = 3600;
/// The maximum number of characters of Google's error code that are kept.
const CODE_CHARS: usize = 64;

/// The fields that are read from the JSON file of a service account.
#[derive(Deserialize)]
struct ServiceAccount {
    client_email: String,
    private_key: String,
    #[serde(default)]
    private_key_id: String,
}

/// A service account, and its current token.
pub(in crate::driver::recipe) struct Google {
    email: String,
    key: PrivateKey,
    key_id: String,
    scope: String,
    token_url: Url,
    /// Locked while a token is fetched, so that concurrent requests fetch one token together.
    token: Mutex<Option<Token>>,
}

struct Token {
    authorization: HeaderValue,
    usable_until: Instant,
}

/// The answer of the token service.
#[derive(Deserialize)]
struct Granted {
    access_token: String,
    expires_in: u64,
}

#[derive(Deserialize)]
struct Refused {
    error: String,
    #[serde(default)]
    error_description: String,
}

impl Google {
    pub(super) fn new(service_account: &str, scope: String, token_url: &str) -> Result<Self, String> {
        const SHAPE: &str = "secret service_account: must be the JSON file of a service account, with client_email and \
                             private_key";
        let account: ServiceAccount = serde_json::from_str(service_account).map_err(|_| SHAPE)?;
        let key = PrivateKey::from_pem(&account.private_key);
        let key = key.map_err(|problem| format!("secret service_account: private_key {problem}"))?;
        if !matches!(key, PrivateKey::Rsa(_)) {
            return Err("secret service_account: private_key must be an RSA key".into());
        }
        let token_url = Url::parse(token_url).map_err(|_| "settings.token_url: must be a full https URL")?;
        let (email, key_id) = (account.client_email, account.private_key_id);
        Ok(Self { email, key, key_id, scope, token_url, token: Mutex::new(None) })
    }

    /// Adds a token to a request. If there is no usable token, fetches one first.
    pub(super) async fn sign(&self, call: &mut Call, egress: &Egress, deadline: Deadline) -> Result<With, Box<Report>> {
        let late =
            |_| Report::from(Outcome::deferred("timeout")).because("no token was fetched in time; nothing was sent");
        let mut token = tokio::time::timeout(deadline.left(), self.token.lock()).await.map_err(late)?;
        if let Some(known) = token.as_ref().filter(|token| token.usable_until > clock::monotonic()) {
            call.headers.insert(AUTHORIZATION, known.authorization.clone());
            return Ok(With::KnownToken);
        }
        let fetched = self.fetch(egress, deadline, &mut token).await?;
        call.headers.insert(AUTHORIZATION, fetched);
        Ok(With::New)
    }

    /// Forgets the token that this request was sent with.
    pub(super) async fn forget(&self, call: &Call) {
        let used = call.headers.get(AUTHORIZATION);
        self.token.lock().await.take_if(|token| Some(&token.authorization) == used);
    }

    async fn fetch(
        &self,
        egress: &Egress,
        deadline: Deadline,
        token: &mut MutexGuard<'_, Option<Token>>,
    ) -> Result<HeaderValue, Box<Report>> {
        let jwt = self.jwt().map_err(|problem| Box::new(config("not_signed", ErrorClass::Config, problem)))?;
        let grant = "urn:ietf:params:oauth:grant-type:jwt-bearer";
        let fields = [("grant_type", grant), ("assertion", jwt.as_str())];
        let body = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        let form = HeaderValue::from_static("application/x-www-form-urlencoded");
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, form)]);
        let (method, url, timeout) = (Method::POST, self.token_url.clone(), deadline.left());
        let call = Call { method, url, headers, body: body.into(), timeout, fresh: false };
        let answer = egress.send(call).await.map_err(|failure| Box::new(failed(&failure)))?;
        let Some((authorization, life)) = granted(&answer) else { return Err(Box::new(refused(&answer, &jwt))) };
        let usable_until = clock::monotonic() + life.saturating_sub(RESERVE);
        **token = Some(Token { authorization: authorization.clone(), usable_until });
        Ok(authorization)
    }

    fn jwt(&self) -> Result<String, String> {
        let now = clock::now().as_micros() / 1_000_000;
        let head = json!({"alg": "RS256", "typ": "JWT", "kid": self.key_id});
        let claims = json!({
            "iss": self.email, "scope": self.scope, "aud": self.token_url.as_str(), "iat": now, "exp": now + JWT_S,
        });
        let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let text = format!("{}.{}", encode(head.to_string().as_bytes()), encode(claims.to_string().as_bytes()));
        let signature = self.key.sign(text.as_bytes())?;
        Ok(format!("{text}.{}", encode(&signature)))
    }
}

/// The value of the header and the life of the token, if the service gave one.
fn granted(answer: &HttpAnswer) -> Option<(HeaderValue, Duration)> {
    let granted: Granted = serde_json::from_slice(&answer.body).ok().filter(|_| answer.status == 200)?;
    let mut value = HeaderValue::from_str(&format!("Bearer {}", granted.access_token)).ok()?;
    value.set_sensitive(true);
    // Google gives no token for longer than a day. The limit keeps a wrong answer from overflowing the clock.
    Some((value, Duration::from_secs(granted.expires_in.min(86_400))))
}

/// The report on a message for which no token was given. Nothing of the message was sent.
fn refused(answer: &HttpAnswer, jwt: &str) -> Report {
    let mut redactions = Redactions::default();
    redactions.secrets(jwt);
    let redactions = redactions.into_texts();
    let told: Option<Refused> = serde_json::from_slice(&answer.body).ok();
    let code = match &told {
        Some(told) => excerpt(told.error.as_bytes(), &redactions).chars().take(CODE_CHARS).collect(),
        None => format!("http_{}", answer.status),
    };
    let (outcome, class) = match answer.status {
        200..=299 => (Outcome::deferred("bad_token"), ErrorClass::ServerError),
        400..=403 => (Outcome::config(code), ErrorClass::AuthFailed),
        429 => (Outcome::deferred(code), ErrorClass::RateLimited),
        408 | 500..=599 => (Outcome::deferred(code), ErrorClass::ServerError),
        _ => (Outcome::config(code), ErrorClass::Config),
    };
    let said = told.map_or(String::new(), |told| format!(": {} {}", told.error, told.error_description));
    let said = excerpt(said.as_bytes(), &redactions);
    let detail = format!("the token service answered {}{said}; nothing was sent", answer.status);
    let mut report =
        Report { class: Some(class), after: answer.retry_after(), ..Report::from(outcome).because(detail) };
    report.evidence.excerpt = Some(excerpt(&answer.body, &redactions)).filter(|text| !text.is_empty());
    report
}

/// The report on a message for which the token service could not be reached.
fn failed(failure: &EgressFailure) -> Report {
    let detail = format!("no token could be fetched: {}; nothing was sent", failure.detail);
    match failure.phase {
        Phase::Refused => config(failure.code, ErrorClass::Config, detail),
        // Only the request for a token may have been sent, never the message itself.
        _ => Report::from(Outcome::deferred(failure.code)).because(detail),
    }
}

fn config(code: &str, class: ErrorClass, detail: String) -> Report {
    Report { class: Some(class), ..Report::from(Outcome::config(code)).because(detail) }
}
