//! Drivers that are described by data: `docs/recipes.md`. A recipe is a TOML file that says how an HTTP service is called
//! and how its answers are read.

mod answer;
mod callback;
mod expression;
mod field;
mod file;
mod report;
mod request;
mod shipped;
mod sign;
mod tree;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use ::http::HeaderValue;
use ::http::header::AUTHORIZATION;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use minijinja::Value;
use serde_json::Value as Json;
use sha2::{Digest, Sha256};
use url::Url;
use uuid::Uuid;

use self::answer::Answers;
use self::callback::{CallbackForm, OfRecipe};
use self::expression::{Expression, digits, is_url, shown, value};
pub use self::field::{Field, FieldType};
use self::field::{Fields, Part};
use self::report::{of_account, of_one_receiver, warned};
use self::request::RequestForm;
pub(super) use self::shipped::SHIPPED;
use self::sign::{Signer, With};
use super::redact::Redactions;
use super::smtp::mail::{self, Sender};
use super::webhook::TRACEPARENT;
use super::{Callback, Driver, KeyWindow, Kind, Message, Parts, Sending, http};
use crate::egress::{Call, Deadline, Egress, EgressFailure, HttpAnswer};
use crate::model::{ErrorClass, Guarantee, Outcome, Policy, Report};
use crate::secret::Secrets;

/// The names that the expressions of a request may read.
const VALUES: [&str; 16] = [
    "action_url",
    "channel",
    "data",
    "event",
    "html",
    "key",
    "key_uuid",
    "mail",
    "mail_from",
    "mail_to",
    "secret",
    "settings",
    "subject",
    "text",
    "to",
    "unsubscribe_url",
];

/// An address with fewer characters is a word such as `all`. Redacting it would make the answer unreadable.
const PERSONAL_CHARS: usize = 4;

/// A recipe: an HTTP service that is described by data.
#[derive(Debug)]
pub struct Recipe {
    /// The name of the driver.
    pub name: String,
    /// The name of the service.
    pub title: String,
    pub channel: String,
    /// What an address is for this service, such as `a phone number`.
    pub address: String,
    pub guarantee: Guarantee,
    /// The reason for the guarantee.
    pub because: String,
    key_window_s: Option<u64>,
    policy: Policy,
    pub rate_per_s: Option<f64>,
    pub burst: Option<i32>,
    /// The time that the service asks for between two messages to the same recipient.
    pub recipient_interval: Option<Duration>,
    /// Where the facts about the service come from, and when they were checked.
    pub facts: String,
    pub settings: Fields,
    pub secrets: Fields,
    pub data: Fields,
    limits: Vec<Limit>,
    request: RequestForm,
    answers: Answers,
    callback: Option<CallbackForm>,
    /// Whether the request contains a whole mail.
    mail: bool,
    /// Whether the request may contain any field of the channel data.
    all_data: bool,
    /// Whether an address may be the URL to send to.
    url_of_recipient: bool,
    /// The type that addresses must have.
    address_type: FieldType,
}

/// A limit of the service on a value.
#[derive(Debug)]
struct Limit {
    /// The name of the value in error messages.
    name: String,
    of: Limited,
    chars: Option<usize>,
    bytes: Option<usize>,
    /// Texts that the value must not contain.
    without: Vec<String>,
}

/// The value that a limit is about.
#[derive(Debug)]
enum Limited {
    Value(Expression),
    /// The value of a field in the request's body. The field is given by its path.
    Sent(Vec<String>),
}

/// The reason why no request can be made.
struct Refusal {
    code: &'static str,
    /// `Config` means that the provider is configured wrongly, so no message can be sent.
    class: ErrorClass,
    detail: String,
}

impl Refusal {
    fn content(detail: String) -> Self {
        Self { code: "bad_content", class: ErrorClass::InvalidContent, detail }
    }

    fn too_long(detail: String) -> Self {
        Self { code: "too_long", class: ErrorClass::InvalidContent, detail }
    }
}

impl From<Refusal> for Report {
    fn from(refusal: Refusal) -> Self {
        let outcome = match refusal.class {
            ErrorClass::Config => Outcome::config(refusal.code),
            _ => Outcome::refused(refusal.code),
        };
        let report = Self::from(outcome).because(refusal.detail);
        Self { class: Some(refusal.class), ..report }
    }
}

impl Recipe {
    /// Reads a recipe from the text of its file.
    /// # Errors
    /// The first problem, with its line.
    pub fn read(text: &str) -> Result<Self, String> {
        file::read(text)
    }

    /// Checks the channel data of a message against what the recipe needs. The error names the field.
    pub fn check_data(&self, settings: &Json, data: Option<&Json>) -> Result<(), String> {
        field::data(&self.data, settings, data)
    }

    /// Checks the channel data of a template, whose texts are rendered later. The error names the field.
    pub fn check_template_data(&self, settings: &Json, data: Option<&Json>) -> Result<(), String> {
        let rendered = |value: &Json| value.as_str().is_some_and(|text| text.contains("{{") || text.contains("{%"));
        let fixed = self.data.iter().filter(|(name, _)| !data.and_then(|data| data.get(name)).is_some_and(rendered));
        field::data(fixed, settings, data)
    }

    /// The fields of the channel data that the recipe does not know and therefore does not send. Empty if the recipe
    /// sends every field.
    #[must_use]
    pub fn unknown_data(&self, data: Option<&Json>) -> Vec<String> {
        let given = data.and_then(Json::as_object).into_iter().flatten().map(|(name, _)| name);
        given.filter(|name| !self.all_data && !self.data.contains_key(*name)).cloned().collect()
    }

    /// The limits of the service, as operators read them: `text: at most 1600 characters`.
    pub fn limits(&self) -> Vec<String> {
        let mut all: Vec<String> = self.limits.iter().flat_map(Limit::words).collect();
        all.extend(self.request.request_bytes.map(|most| format!("the whole request: at most {most} bytes")));
        all
    }

    /// The reasons for which an answer of the service suppresses the address of its delivery.
    pub fn suppressions(&self) -> impl Iterator<Item = &str> {
        self.answers.suppressions()
    }

    /// The driver of this recipe.
    #[must_use]
    pub fn into_kind(self) -> Kind {
        let recipe = Arc::new(self);
        let window = recipe.key_window_s.unwrap_or(86_400);
        let builder = Arc::clone(&recipe);
        let callback = recipe.callback.as_ref().map(|_| Arc::new(OfRecipe(Arc::clone(&recipe))) as Arc<dyn Callback>);
        // The settings that decide which server gets the secrets.
        let routes = recipe.request.routes();
        let is_route =
            |(name, field): &(&String, &Field)| field.r#type == FieldType::Url || routes.contains(&name.as_str());
        let secret_routes = recipe.settings.iter().filter(is_route).map(|(name, _)| Cow::from(name.clone())).collect();
        let (name, guarantee) = (recipe.name.clone(), recipe.guarantee);
        let window = KeyWindow { default_s: window, allowed_s: window..=window };
        Kind {
            channel: recipe.channel.clone().into(),
            policy: recipe.policy.clone(),
            secrets: recipe.secrets.keys().map(|name| Cow::from(name.clone())).collect(),
            secret_routes,
            callback,
            recipe: Some(recipe),
            ..Kind::new(name, guarantee, window, move |parts| build(Arc::clone(&builder), parts))
        }
    }
}

/// The driver of one provider that uses a recipe.
struct FromRecipe {
    recipe: Arc<Recipe>,
    /// The settings with their defaults, for expressions and for the check of the channel data.
    settings: (Value, Json),
    secret: Value,
    secrets: Secrets,
    signer: Option<Signer>,
    sender: Option<Sender>,
    guarantee: Guarantee,
    egress: Egress,
}

fn build(recipe: Arc<Recipe>, parts: &Parts<'_>) -> Result<Box<dyn Driver>, String> {
    if parts.guarantee == Guarantee::Idempotent && recipe.guarantee != Guarantee::Idempotent {
        let because = &recipe.because;
        return Err(format!(
            "guarantee: idempotent is not possible, because {because}; use at_least_once or at_most_once"
        ));
    }
    let mut settings = field::settings(&recipe.settings, parts.settings, parts.egress)?;
    for (name, field) in &recipe.secrets {
        match parts.secrets.get(name) {
            // The secret is revealed here to check its form.
            Some(secret) => field
                .check(&secret.reveal().into(), Some(parts.egress), Part::Secret)
                .map_err(|problem| format!("secret {name}: {problem}"))?,
            None if field.is_required() => {
                return Err(format!("secret: {name:?} is missing: {}; set it with --secret {name}=@FILE", field.help));
            }
            None => {}
        }
    }
    let has_sender = recipe.settings.get("from").is_some_and(|from| from.r#type == FieldType::Mailbox);
    let sender = if has_sender { sender(&settings)? } else { None };
    if let Some(sender) = &sender {
        settings.insert("from_email".into(), sender.from.email.to_string().into());
        settings.insert("from_name".into(), sender.from.name.clone().into());
    }
    // The secrets are revealed here, because the request contains them.
    let secret = parts.secrets.iter().map(|(name, secret)| {
        let is_object = recipe.secrets.get(name).is_some_and(|field| field.r#type == FieldType::Object);
        let parsed: Option<Json> = serde_json::from_str(secret.reveal()).ok().filter(|_| is_object);
        (name.as_str(), parsed.as_ref().map_or_else(|| Value::from(secret.reveal()), value))
    });
    let (secret, settings) = (Value::from_pairs(secret), Json::Object(settings));
    let own = Value::from_pairs([("settings", value(&settings)), ("secret", secret.clone())]);
    let signer = recipe.request.signer(&own)?;
    Ok(Box::new(FromRecipe {
        recipe,
        settings: (value(&settings), settings),
        secret,
        signer,
        secrets: parts.secrets.clone(),
        sender,
        guarantee: parts.guarantee,
        egress: parts.egress.clone(),
    }))
}

/// The sender of mails, if the settings name one.
fn sender(settings: &serde_json::Map<String, Json>) -> Result<Option<Sender>, String> {
    let mailbox = |name: &str| {
        let text = settings.get(name).and_then(Json::as_str);
        text.map(|text| mail::mailbox(text).map_err(|problem| format!("settings.{name}: {problem}"))).transpose()
    };
    let Some(from) = mailbox("from")? else { return Ok(None) };
    let (envelope, domain) = (from.email.to_string(), from.email.domain().to_owned());
    Ok(Some(Sender { reply_to: mailbox("reply_to")?, envelope, domain, from }))
}

impl Driver for FromRecipe {
    fn isolates_hosts(&self) -> bool {
        self.recipe.request.has_server_of_recipient()
    }

    /// The host of a recipient's own URL. `None` if the address selects the provider's URL: its trouble concerns the
    /// lane.
    fn host_of(&self, target: &str) -> Option<String> {
        if self.recipe.url_of_recipient && !is_url(target) {
            return None;
        }
        let (settings, secret) = (self.settings.0.clone(), self.secret.clone());
        let context = Value::from_pairs([("to", target.into()), ("settings", settings), ("secret", secret)]);
        super::host::of_url(&self.recipe.request.server(&context)?)
    }

    fn recipient_interval(&self) -> Option<Duration> {
        self.recipe.recipient_interval
    }

    fn send<'a>(&'a self, message: Message<'a>) -> Sending<'a> {
        Box::pin(async move {
            let call = match self.call(&message) {
                Ok(call) => call,
                Err(refusal) => return refusal.into(),
            };
            let (result, mut redactions) = match self.exchange(call).await {
                Ok(done) => done,
                Err(report) => return *report,
            };
            if message.target.chars().count() >= PERSONAL_CHARS {
                redactions.address(message.target, Url::parse(message.target).ok().as_ref());
            }
            if self.recipe.address_type == FieldType::Phone {
                // Services often write a phone number without its plus sign, and most recipes send it in this form.
                redactions.address(&digits(message.target), None);
            }
            let redactions = redactions.into_texts();
            let report = match result {
                Ok(answer) => self.recipe.answers.report(&answer, self.guarantee, &redactions),
                Err(failure) => http::failed(&failure),
            };
            let is_own_url = self.recipe.url_of_recipient && is_url(message.target);
            let report = if is_own_url { of_one_receiver(report) } else { of_account(report) };
            let data = if self.recipe.all_data { None } else { data_of(&message) };
            warned(report, message.channel, &self.recipe.unknown_data(data.as_ref()))
        })
    }

    fn shown_request(&self, message: &Message<'_>) -> Option<String> {
        let mut call = self.call(message).ok()?;
        if self.signer.is_some() {
            call.headers.insert(AUTHORIZATION, HeaderValue::from_static(http::REDACTED));
        }
        Some(http::shown(&call, &self.secrets_in(&call).into_texts()))
    }
}

impl FromRecipe {
    fn call(&self, message: &Message<'_>) -> Result<Call, Refusal> {
        let request::Request { method, url, mut headers, body } = self.request(message)?;
        if let Some(parent) = message.traceparent.and_then(|parent| HeaderValue::from_str(parent).ok()) {
            headers.insert(TRACEPARENT, parent);
        }
        // The peer may close a reused connection during the request, which makes the outcome unclear. So `at_most_once`
        // uses a new connection for every request.
        let fresh = self.guarantee == Guarantee::AtMostOnce;
        Ok(Call { method, url, headers, body, timeout: message.timeout, fresh })
    }

    /// Signs the request, makes it, and returns the result with the strings to redact. The error is the report on a
    /// message that could not be signed.
    async fn exchange(&self, call: Call) -> Result<(Result<HttpAnswer, EgressFailure>, Redactions), Box<Report>> {
        let Some(signer) = &self.signer else {
            let redactions = self.secrets_in(&call);
            return Ok((self.egress.send(call).await, redactions));
        };
        let (deadline, mut is_second) = (Deadline::after(call.timeout), false);
        loop {
            let mut signed = call.clone();
            let with = signer.sign(&mut signed, &self.egress, deadline).await?;
            signed.timeout = deadline.left();
            let (redactions, result) = (self.secrets_in(&signed), self.egress.send(signed.clone()).await);
            // The service may withdraw a token before its end. A request that it refuses with 401 has had no effect, so
            // it is sent again with a new token.
            let is_refused = result.as_ref().is_ok_and(|answer| answer.status == 401) && with == With::KnownToken;
            if is_second || !is_refused {
                return Ok((result, redactions));
            }
            signer.forget(&signed).await;
            is_second = true;
        }
    }

    fn request(&self, message: &Message<'_>) -> Result<request::Request, Refusal> {
        self.recipe.address_type.check(&message.target.into(), None, Part::Data).map_err(|problem| Refusal {
            code: "bad_address",
            class: ErrorClass::InvalidAddress,
            detail: format!("the address {problem}"),
        })?;
        let data = data_of(message);
        self.recipe.check_data(&self.settings.1, data.as_ref()).map_err(|problem| Refusal {
            code: "missing_data",
            class: ErrorClass::InvalidContent,
            detail: format!("data.{}.{problem}", message.channel),
        })?;
        let key = message.key.provider_key();
        let key_uuid = uuid_of(&key).to_string();
        let context = self.context(message, &key, &key_uuid, data.as_ref())?;
        let body = self.recipe.request.body(&context)?;
        self.recipe.limits.iter().try_for_each(|limit| limit.check(&context, &body))?;
        self.recipe.request.build(&context, body, &key_uuid)
    }

    fn context(&self, message: &Message<'_>, key: &str, key_uuid: &str, data: Option<&Json>) -> Result<Value, Refusal> {
        let content = &message.content;
        let text = |text: &Option<String>| {
            text.as_deref().filter(|text| !text.is_empty()).map_or(Value::UNDEFINED, Value::from)
        };
        let mut values = vec![
            ("to", message.target.into()),
            ("channel", message.channel.into()),
            ("subject", text(&content.subject)),
            ("text", text(&content.text)),
            ("html", text(&content.html)),
            ("action_url", text(&content.action_url)),
            ("unsubscribe_url", text(&content.unsubscribe_url)),
            ("data", data.map_or(Value::UNDEFINED, value)),
            ("key", key.into()),
            ("key_uuid", key_uuid.into()),
            ("event", event(message)),
            ("settings", self.settings.0.clone()),
            ("secret", self.secret.clone()),
        ];
        if self.recipe.mail
            && let Some(sender) = &self.sender
        {
            let mail = mail::build(sender, message).map_err(|(code, detail)| Refusal {
                code,
                class: ErrorClass::InvalidContent,
                detail,
            })?;
            values.push(("mail", STANDARD.encode(mail.bytes).into()));
            values.push(("mail_from", mail.sender.into()));
            values.push(("mail_to", mail.recipient.into()));
        }
        Ok(Value::from_pairs(values))
    }

    /// The strings to redact: the secrets, and the credentials as they are sent.
    fn secrets_in(&self, call: &Call) -> Redactions {
        let mut redactions = Redactions::default();
        // The secrets are revealed here to search for them in the answer. A URL may be a secret.
        for secret in self.secrets.values() {
            if let Ok(file @ Json::Object(_)) = serde_json::from_str(secret.reveal()) {
                redactions.file(&file);
                continue;
            }
            redactions.secrets(secret.reveal());
            redactions.address(secret.reveal(), Url::parse(secret.reveal()).ok().as_ref());
        }
        if let Some(value) = call.headers.get(AUTHORIZATION) {
            redactions.header(&String::from_utf8_lossy(value.as_bytes()));
        }
        redactions
    }
}

impl Limit {
    fn words(&self) -> Vec<String> {
        let (name, without) = (&self.name, &self.without);
        let chars = self.chars.map(|most| format!("{name}: at most {most} characters"));
        let bytes = self.bytes.map(|most| format!("{name}: at most {most} bytes"));
        let without = (!without.is_empty()).then(|| format!("{name}: without `{}`", without.join("` and `")));
        [chars, bytes, without].into_iter().flatten().collect()
    }

    fn check(&self, context: &Value, body: &Json) -> Result<(), Refusal> {
        let text = match &self.of {
            Limited::Value(of) => shown(&of.value(context).map_err(Refusal::content)?),
            Limited::Sent(path) => {
                shown(&value(path.iter().try_fold(body, |json, name| json.get(name)).unwrap_or(&Json::Null)))
            }
        };
        let (chars, bytes) = (text.chars().count(), text.len());
        if let Some(most) = self.chars.filter(|most| chars > *most) {
            return Err(Refusal::too_long(format!("{} has {chars} characters; the service takes {most}", self.name)));
        }
        if let Some(most) = self.bytes.filter(|most| bytes > *most) {
            return Err(Refusal::too_long(format!("{} has {bytes} bytes; the service takes {most}", self.name)));
        }
        match self.without.iter().find(|forbidden| text.contains(forbidden.as_str())) {
            Some(forbidden) => Err(Refusal::content(format!(
                "{} contains {forbidden:?}, which the service would not take as text",
                self.name
            ))),
            None => Ok(()),
        }
    }
}

/// The channel data of a message.
fn data_of(message: &Message<'_>) -> Option<Json> {
    message.content.data.as_deref().and_then(|data| serde_json::from_str(data.get()).ok())
}

/// The event, as expressions read it.
fn event(message: &Message<'_>) -> Value {
    let event = &message.raw_event;
    let some = |text: Option<&str>| text.map_or(Value::UNDEFINED, Value::from);
    let payload: Option<Json> = serde_json::from_str(event.payload.get()).ok();
    Value::from_pairs([
        ("id", event.id.to_string().into()),
        ("type", event.event_type.into()),
        ("tenant", event.tenant.into()),
        ("entity", some(event.entity)),
        ("topic", some(event.topic)),
        ("key", event.idempotency_key.into()),
        ("created_at", event.created_at.to_string().into()),
        ("payload", payload.as_ref().map_or(Value::UNDEFINED, value)),
    ])
}

/// Derives a UUID from a key. The same key always gives the same UUID.
fn uuid_of(key: &str) -> Uuid {
    let hash: [u8; 32] = Sha256::digest(key).into();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash[..16]);
    uuid::Builder::from_random_bytes(bytes).into_uuid()
}
