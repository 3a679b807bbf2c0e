//! Reads the answer of a service by the rules of a recipe.

use std::sync::Arc;
use std::time::Duration;

use ::http::HeaderMap;
use minijinja::Value;
use serde::Deserialize;

use super::expression::{Expression, Names, shown, value};
use crate::clock;
use crate::driver::http::{REDACTED, REFERENCE_CHARS, excerpt};
use crate::egress::{HttpAnswer, LEAST_WAIT};
use crate::model::{ErrorClass, Evidence, Guarantee, Outcome, Report};

/// The names that expressions on answers may read. `code` is the result of the expression `[answer] code`.
const NAMES: [&str; 5] = ["code", "headers", "json", "status", "text"];
/// The maximum number of characters of a service's error code that are kept.
const CODE_CHARS: usize = 64;
/// The maximum number of characters of a service's error text that are kept.
const TEXT_CHARS: usize = 300;
/// The maximum number of characters of the reason for a suppression.
const SUPPRESS_CHARS: usize = 255;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SuccessText {
    when: String,
    id: Option<String>,
    #[serde(default)]
    delivered: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AnswerText {
    code: Option<String>,
    text: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ErrorText {
    when: String,
    outcome: Effect,
    class: ErrorClass,
    #[serde(default)]
    holds: Holds,
    suppress: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WaitText {
    seconds: Option<String>,
    milliseconds: Option<String>,
    epoch: Option<String>,
}

/// The meaning of an answer for the delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Effect {
    Deferred,
    Rejected,
    Config,
    Unclear,
}

/// Whether the lane or only this delivery waits, if the service asks to wait.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Holds {
    #[default]
    Lane,
    Delivery,
}

/// A compiled rule for an answer that is not a success.
#[derive(Debug)]
struct Rule {
    when: Expression,
    effect: Effect,
    class: ErrorClass,
    holds: Holds,
    /// The reason for which the address is suppressed.
    suppress: Option<Arc<str>>,
}

/// The compiled rules for the answers of a service.
#[derive(Debug)]
pub(super) struct Answers {
    success: Expression,
    id: Option<Expression>,
    delivered: bool,
    code: Option<Expression>,
    text: Option<Expression>,
    errors: Vec<Rule>,
    waits: Vec<(Unit, Expression)>,
}

#[derive(Debug, Clone, Copy)]
enum Unit {
    Seconds,
    Milliseconds,
    /// Seconds since 1970.
    Epoch,
}

impl ErrorText {
    /// Checks the reason for a suppression. Only an answer about the recipient may suppress its address. `config` is
    /// such an answer if the address is the URL that was called.
    fn check_suppress(&self, place: usize, url_of_recipient: bool) -> Result<(), String> {
        let Some(reason) = &self.suppress else { return Ok(()) };
        let is_of_recipient = self.outcome == Effect::Rejected || (self.outcome == Effect::Config && url_of_recipient);
        if !is_of_recipient {
            return Err(format!(
                "error[{place}].suppress: needs outcome = \"rejected\", or \"config\" in a recipe whose URL is the \
                 address"
            ));
        }
        let chars = reason.chars().count();
        if reason.trim().is_empty() || chars > SUPPRESS_CHARS || reason.contains(char::is_control) {
            return Err(format!(
                "error[{place}].suppress: has {chars} characters; 1 to {SUPPRESS_CHARS} in one line are allowed"
            ));
        }
        Ok(())
    }
}

impl Answers {
    /// Compiles the rules. `url_of_recipient` says whether an address may be the URL that is called.
    pub(super) fn new(
        success: &SuccessText,
        answer: &AnswerText,
        errors: &[ErrorText],
        waits: &[WaitText],
        url_of_recipient: bool,
    ) -> Result<Self, String> {
        let names = Names { roots: &NAMES, settings: vec![], secrets: vec![], data: vec![] };
        let compile =
            |path: String, text: &str| Expression::new(text, &names).map_err(|problem| format!("{path}: {problem}"));
        let some =
            |path: &str, text: &Option<String>| text.as_deref().map(|text| compile(path.to_owned(), text)).transpose();
        let error = |(i, error): (usize, &ErrorText)| {
            let when = compile(format!("error[{i}].when"), &error.when)?;
            error.check_suppress(i, url_of_recipient)?;
            let suppress = error.suppress.as_deref().map(Arc::from);
            Ok(Rule { when, effect: error.outcome, class: error.class, holds: error.holds, suppress })
        };
        let wait = |(i, wait): (usize, &WaitText)| {
            let (unit, name, text) = match (&wait.seconds, &wait.milliseconds, &wait.epoch) {
                (Some(text), None, None) => (Unit::Seconds, "seconds", text),
                (None, Some(text), None) => (Unit::Milliseconds, "milliseconds", text),
                (None, None, Some(text)) => (Unit::Epoch, "epoch", text),
                _ => return Err(format!("retry_after[{i}]: must have one of seconds, milliseconds and epoch")),
            };
            Ok((unit, compile(format!("retry_after[{i}].{name}"), text)?))
        };
        Ok(Self {
            success: compile("success.when".into(), &success.when)?,
            id: some("success.id", &success.id)?,
            delivered: success.delivered,
            code: some("answer.code", &answer.code)?,
            text: some("answer.text", &answer.text)?,
            errors: errors.iter().enumerate().map(error).collect::<Result<_, String>>()?,
            waits: waits.iter().enumerate().map(wait).collect::<Result<_, String>>()?,
        })
    }

    /// The reasons for which an answer suppresses its address, in the order of the rules.
    pub(super) fn suppressions(&self) -> impl Iterator<Item = &str> {
        self.errors.iter().filter_map(|rule| rule.suppress.as_deref())
    }

    /// Translates an answer into a report. `secrets` are redacted in the stored parts of the answer.
    pub(super) fn report(&self, answer: &HttpAnswer, guarantee: Guarantee, secrets: &[String]) -> Report {
        let context = context(answer, self.code.as_ref());
        // An expression that fails, because the answer has another shape, counts as false.
        let is_true = |expression: &Expression| expression.is_true(&context).unwrap_or(false);
        let read = |expression: &Option<Expression>| {
            let text =
                expression.as_ref().and_then(|expression| expression.value(&context).ok()).map(|value| shown(&value));
            text.map(|text| excerpt(text.as_bytes(), secrets)).filter(|text| !text.is_empty())
        };
        let mut evidence = Evidence { excerpt: Some(excerpt(&answer.body, secrets)), ..Evidence::default() };
        evidence.excerpt.take_if(|text| text.is_empty());
        let after = self.wait(&context).max(answer.retry_after());
        if (200..=299).contains(&answer.status) && is_true(&self.success) {
            // A shortened or redacted id is useless.
            let is_useful = |id: &String| id.chars().count() <= REFERENCE_CHARS && !id.contains(REDACTED);
            evidence.provider_ref = read(&self.id).filter(is_useful);
            let outcome = if self.delivered { Outcome::Delivered } else { Outcome::Sent };
            return Report { evidence, after, ..Report::from(outcome) };
        }
        let own_code = read(&self.code).map(|code| code.chars().take(CODE_CHARS).collect::<String>());
        let said = read(&self.text).map(|text| text.chars().take(TEXT_CHARS).collect::<String>());
        let rule = self.errors.iter().find(|rule| is_true(&rule.when));
        let (effect, class, holds) = match rule {
            Some(rule) => (Some(rule.effect), rule.class, rule.holds),
            None => {
                let (effect, class) = by_status(answer.status, guarantee);
                (effect, class, Holds::Lane)
            }
        };
        // With these statuses the service may have acted on the request before it failed. With 503 and 507 it has not,
        // if the answer names a wait or a rule of the recipe matches.
        let may_be_sent = match answer.status {
            500 | 502 | 504 => true,
            503 | 507 => rule.is_none() && after.is_none(),
            _ => false,
        };
        let may_be_sent = may_be_sent && guarantee == Guarantee::AtMostOnce;
        let effect = effect.map(|effect| match effect {
            Effect::Deferred if may_be_sent => Effect::Unclear,
            other => other,
        });
        let default_code =
            || if effect.is_none() { "unexpected_answer".into() } else { format!("http_{}", answer.status) };
        let code = own_code.unwrap_or_else(default_code);
        let outcome = match effect {
            Some(Effect::Deferred) => Outcome::deferred(code),
            Some(Effect::Rejected) => Outcome::refused(code),
            Some(Effect::Config) => Outcome::config(code),
            Some(Effect::Unclear) => Outcome::unclear(code),
            None => Outcome::unknown(code),
        };
        evidence.detail = Some(match (said, effect) {
            (Some(said), _) => format!("the service answered {}: {said}", answer.status),
            (None, None) if !answer.is_whole() => {
                format!("the service answered {}, but its answer could not be read to its end", answer.status)
            }
            (None, None) => {
                format!("the service answered {}, but not as the recipe expects it of a success", answer.status)
            }
            (None, Some(_)) => format!("the service answered {}", answer.status),
        });
        let only_delivery = holds == Holds::Delivery;
        let suppress = rule.and_then(|rule| rule.suppress.clone());
        Report { class: Some(class), evidence, after, only_delivery, suppress, ..Report::from(outcome) }
    }

    /// The wait that the service asks for in fields of its own, such as a number in the JSON.
    fn wait(&self, context: &Value) -> Option<Duration> {
        let read = |(unit, expression): &(Unit, Expression)| {
            let number: f64 = shown(&expression.value(context).ok()?).trim().parse().ok()?;
            let seconds = match unit {
                Unit::Seconds => number,
                Unit::Milliseconds => number / 1000.0,
                Unit::Epoch => number - clock::now().as_micros() as f64 / 1_000_000.0,
            };
            let wait = Duration::try_from_secs_f64(seconds).ok().filter(|wait| !wait.is_zero());
            wait.map(|wait| wait.max(LEAST_WAIT))
        };
        self.waits.iter().find_map(read)
    }
}

/// The meaning of a status if no rule of the recipe matches. `None` for a success that the recipe does not accept.
fn by_status(status: u16, guarantee: Guarantee) -> (Option<Effect>, ErrorClass) {
    let class = ErrorClass::of_http(status);
    match status {
        200..=299 => (None, ErrorClass::Unknown),
        300..=399 | 404 | 405 => (Some(Effect::Config), ErrorClass::Config),
        401..=403 | 407 => (Some(Effect::Config), class),
        // The service is processing another request with our key. Without idempotency keys, the conflict is permanent.
        409 | 423 if guarantee != Guarantee::Idempotent => (Some(Effect::Rejected), class),
        409 | 423 | 425 | 429 | 503 | 507 => (Some(Effect::Deferred), class),
        400..=407 | 410..=499 => (Some(Effect::Rejected), class),
        _ => (Some(Effect::Unclear), class),
    }
}

/// The values of an answer that expressions read. `code` is the expression that reads the service's error code.
fn context(answer: &HttpAnswer, code: Option<&Expression>) -> Value {
    let parsed = serde_json::from_slice(&answer.body).ok().filter(|_| answer.is_whole());
    // A body that was cut has no text, because the missing rest might say the opposite.
    let text = answer.is_whole().then(|| String::from_utf8_lossy(&answer.body));
    let mut values = vec![
        ("status", Value::from(answer.status)),
        ("json", parsed.as_ref().map_or(Value::UNDEFINED, value)),
        ("text", text.map_or(Value::UNDEFINED, |text| Value::from(text.trim()))),
        ("headers", headers(&answer.headers)),
    ];
    if let Some(code) = code {
        let code = code.value(&Value::from_pairs(values.clone())).unwrap_or_default();
        values.push(("code", code));
    }
    Value::from_pairs(values)
}

fn headers(headers: &HeaderMap) -> Value {
    let pairs = headers.iter().filter_map(|(name, value)| Some((name.as_str(), Value::from(value.to_str().ok()?))));
    Value::from_pairs(pairs)
}
