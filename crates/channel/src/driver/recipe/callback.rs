//! The callbacks to the providers of a recipe: how they are verified and read.

mod event;
mod verify;

use std::sync::Arc;

use minijinja::Value;
use serde::Deserialize;
use serde_json::{Map, Value as Json};
use url::form_urlencoded;

use self::event::{Events, RuleText};
use self::verify::{Verify, VerifyText};
use super::expression::{Expression, Names, json, shown, value};
use super::{Recipe, Redactions};
use crate::driver::callback::{Callback, CallbackAnswer, CallbackParts, CallbackRefusal, CallbackRequest, Trust};

/// The maximum number of bytes of the challenge in a handshake.
const CHALLENGE_BYTES: usize = 256;

/// The section `[callback]` as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CallbackText {
    help: String,
    #[serde(default)]
    body: Body,
    json_field: Option<String>,
    #[serde(default)]
    get: bool,
    #[serde(default)]
    events: Paths,
    id: Option<String>,
    key: Option<String>,
    r#ref: Option<String>,
    time: Option<String>,
    code: Option<String>,
    text: Option<String>,
    to: Option<String>,
    verify: Option<VerifyText>,
    handshake: Option<HandshakeText>,
    #[serde(default)]
    rule: Vec<RuleText>,
}

/// The format of the body.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Body {
    #[default]
    Json,
    /// The fields of a form. With the method GET, the fields of the query.
    Form,
}

/// One path to the events, or several paths. Of several, the first path that leads to an event is used.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Paths {
    One(String),
    Many(Vec<String>),
}

impl Default for Paths {
    fn default() -> Self {
        Self::One(String::new())
    }
}

/// The handshake by which Meta asks whether we expect its callbacks.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HandshakeText {
    token: String,
    given: String,
    challenge: String,
}

#[derive(Debug)]
struct Handshake {
    /// The verify token that the operator entered at the provider.
    token: Expression,
    /// The verify token that the provider sends.
    given: Expression,
    challenge: Expression,
}

/// The compiled section `[callback]`.
#[derive(Debug)]
pub(super) struct CallbackForm {
    help: String,
    body: Body,
    /// The field of a form that contains the JSON.
    json_field: Option<String>,
    get: bool,
    verify: Verify,
    handshake: Option<Handshake>,
    events: Events,
}

impl CallbackForm {
    pub(super) fn new(text: CallbackText, settings: &[String], secrets: &[String]) -> Result<Self, String> {
        if text.help.trim().is_empty() {
            return Err("callback.help: is empty; say where the operator enters the URL".into());
        }
        if text.rule.is_empty() {
            return Err("callback.rule: is missing; at least one [[callback.rule]] says what an event means".into());
        }
        if text.body == Body::Form && text.json_field.is_some() {
            return Err("callback.json_field: is only for body = \"json\"".into());
        }
        let asked = Names {
            roots: &["query", "secret", "settings"],
            settings: settings.to_vec(),
            secrets: secrets.to_vec(),
            data: vec![],
        };
        let handshake = text.handshake.map(|handshake| {
            let compile = |name: &str, text: &str| {
                Expression::new(text, &asked).map_err(|problem| format!("callback.handshake.{name}: {problem}"))
            };
            Ok::<_, String>(Handshake {
                token: compile("token", &handshake.token)?,
                given: compile("given", &handshake.given)?,
                challenge: compile("challenge", &handshake.challenge)?,
            })
        });
        let paths = match text.events {
            Paths::One(path) => vec![path],
            Paths::Many(paths) => paths,
        };
        let reads = [text.id, text.key, text.r#ref, text.time, text.code, text.text, text.to];
        Ok(Self {
            help: text.help,
            body: text.body,
            json_field: text.json_field,
            get: text.get,
            verify: Verify::new(text.verify, settings, secrets)?,
            handshake: handshake.transpose()?,
            events: Events::new(&paths, reads, &text.rule)?,
        })
    }

    /// The body as JSON. A form becomes an object of texts.
    fn body(&self, request: &CallbackRequest<'_>) -> Result<Json, CallbackRefusal> {
        let malformed = |problem: String| CallbackRefusal::Malformed(problem);
        let fields = |bytes: &[u8]| -> Map<String, Json> {
            form_urlencoded::parse(bytes).map(|(name, value)| (name.into_owned(), value.into_owned().into())).collect()
        };
        if self.body == Body::Form {
            let bytes = if request.is_get { request.query.as_bytes() } else { request.body };
            return Ok(Json::Object(fields(bytes)));
        }
        let is_form =
            request.headers.get(::http::header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).is_some_and(|kind| {
                kind.trim_start().to_ascii_lowercase().starts_with("application/x-www-form-urlencoded")
            });
        let parse = |text: &[u8]| {
            serde_json::from_slice(text).map_err(|problem| malformed(format!("the body is not JSON: {problem}")))
        };
        match &self.json_field {
            Some(name) if is_form => match fields(request.body).get(name).and_then(Json::as_str) {
                Some(text) => parse(text.as_bytes()),
                None => Err(malformed(format!("the form has no field {name:?}"))),
            },
            _ => parse(request.body),
        }
    }
}

impl Handshake {
    /// Returns the challenge if the provider sent the verify token that the operator entered at the provider. If no
    /// verify token is set, the token in the URL is the only proof.
    fn answer(&self, context: &Value) -> Result<String, CallbackRefusal> {
        let text = |expression: &Expression| expression.value(context).map(|value| shown(&value)).unwrap_or_default();
        let (token, challenge) = (text(&self.token), text(&self.challenge));
        if !token.is_empty() && !verify::is_equal(&token, &text(&self.given)) {
            return Err(CallbackRefusal::Unverified("the verify token is wrong; set it again at the provider".into()));
        }
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.~+/=".contains(c);
        match challenge.len() {
            1..=CHALLENGE_BYTES if challenge.chars().all(is_plain) => Ok(challenge),
            _ => Err(CallbackRefusal::Malformed("the query has no challenge of 1 to 256 plain characters".into())),
        }
    }
}

/// The names of a query, each with its last value.
fn query(request: &CallbackRequest<'_>) -> Value {
    let pairs = form_urlencoded::parse(request.query.as_bytes());
    Value::from_pairs(pairs.map(|(name, text)| (name.into_owned(), Value::from(text.as_ref()))))
}

/// The headers, with names in lower case.
fn headers(request: &CallbackRequest<'_>) -> Value {
    let pairs =
        request.headers.iter().filter_map(|(name, value)| Some((name.as_str(), Value::from(value.to_str().ok()?))));
    Value::from_pairs(pairs)
}

/// The callbacks of a recipe.
pub(super) struct OfRecipe(pub(super) Arc<Recipe>);

impl OfRecipe {
    fn form(&self) -> Result<&CallbackForm, CallbackRefusal> {
        self.0.callback.as_ref().ok_or(CallbackRefusal::Method)
    }

    /// The values that expressions on the provider may read: its settings with their defaults, and its secrets.
    fn own(&self, provider: CallbackParts<'_>) -> (Value, Value) {
        let given = |name: &String| provider.settings.get(name).filter(|value| !value.is_null());
        let settings = self
            .0
            .settings
            .iter()
            .filter_map(|(name, field)| Some((name.as_str(), value(given(name).or(field.default.as_ref())?))));
        // The secrets are revealed here, because signatures are verified with them.
        let secrets = provider.secrets.iter().map(|(name, secret)| (name.as_str(), Value::from(secret.reveal())));
        (Value::from_pairs(settings), Value::from_pairs(secrets))
    }
}

impl Callback for OfRecipe {
    fn help(&self) -> &str {
        self.0.callback.as_ref().map_or("", |form| &form.help)
    }

    fn trust(&self, provider: CallbackParts<'_>) -> Trust {
        let Ok(form) = self.form() else { return Trust::TokenAlone };
        let (settings, secret) = self.own(provider);
        form.verify.trust(&Value::from_pairs([("settings", settings), ("secret", secret)]))
    }

    fn read(
        &self,
        request: CallbackRequest<'_>,
        provider: CallbackParts<'_>,
    ) -> Result<CallbackAnswer, CallbackRefusal> {
        let form = self.form()?;
        let (settings, secret) = self.own(provider);
        let own = Value::from_pairs([("settings", settings), ("secret", secret), ("query", query(&request))]);
        if let (true, Some(handshake)) = (request.is_get, &form.handshake) {
            return handshake.answer(&own).map(CallbackAnswer::Challenge);
        }
        if request.is_get && !form.get {
            return Err(CallbackRefusal::Method);
        }
        form.verify.check(&request, &own).map_err(CallbackRefusal::Unverified)?;
        let body = form.body(&request)?;
        form.verify.check_body(&body, &request, &own).map_err(CallbackRefusal::Unverified)?;
        let mut redactions = Redactions::default();
        // The secrets are revealed here to search for them in the texts that are kept.
        provider.secrets.values().for_each(|secret| redactions.secrets(secret.reveal()));
        let around = Around { body: &body, query: query(&request), headers: headers(&request) };
        form.events.read(&around, &redactions.into_texts()).map(CallbackAnswer::Receipts)
    }
}

/// The parts of a callback that every event in it may read.
struct Around<'a> {
    body: &'a Json,
    query: Value,
    headers: Value,
}

/// A value of an expression as JSON. An empty text counts as missing.
fn as_json(expression: &Expression, context: &Value) -> Option<Json> {
    json(&expression.value(context).ok()?).filter(|value| value.as_str() != Some(""))
}
