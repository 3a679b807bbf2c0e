//! The form of a provider, built from the settings and secrets of its driver or recipe, and the change that a sent form
//! describes.

use std::collections::{BTreeMap, BTreeSet};

use postcommit_channel::driver::{Field, FieldType, Kind, described};
use postcommit_channel::model::{Guarantee, Policy, ProviderDraft, Schedule};
use postcommit_channel::secret::Secret;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::problem::Problem;
use crate::providers::Change;
use crate::ui::acts::Fields;
use crate::ui::words::sentence_case;

/// The beginning of the names of inputs for settings and for secrets.
const SETTING: &str = "settings.";
const SECRET: &str = "secret.";
/// The name of a policy that is not one of the listed schedules.
const OTHER_POLICY: &str = "other";
const SCHEDULES: [(&str, Schedule, &str); 3] = [
    ("doubling", Schedule::Doubling, "1, 2, 4, 8, 16 minutes"),
    ("marketplace", Schedule::Marketplace, "30 s, 2, 10, 30 minutes, 2 hours"),
    ("standard_webhooks", Schedule::StandardWebhooks, "5 s to 24 hours, 9 retries"),
];

/// A field of the form.
#[derive(Debug, Serialize)]
pub struct Input {
    pub name: String,
    pub label: String,
    pub help: String,
    /// The type of the HTML input, or `lines` or `choice`.
    kind: &'static str,
    value: String,
    /// The values to choose from, and their labels.
    options: Vec<(String, String)>,
    placeholder: String,
    is_required: bool,
    /// Whether the field is one of the limits, which are folded away.
    pub is_limit: bool,
    pub problem: Option<String>,
}

/// A field whose value was refused.
#[derive(Debug)]
pub struct Wrong {
    pub field: String,
    pub problem: String,
}

/// What the form is about: a driver, and the provider that is changed.
pub struct Sheet<'a> {
    pub kind: &'a Kind,
    /// The configuration that is changed, or the defaults of a new provider.
    pub draft: ProviderDraft,
    pub is_new: bool,
    /// The secrets that are stored. `None` if they cannot be decrypted here.
    pub stored: Option<BTreeSet<String>>,
    /// The other providers of the tenant, with their channels.
    pub others: Vec<(String, String)>,
}

/// The name of a field as a label.
pub fn label(name: &str) -> String {
    let upper = ["url", "id", "ip", "tls", "ttl", "api", "dkim", "sms", "ehlo"];
    let words: Vec<String> =
        name.split('_').map(|word| if upper.contains(&word) { word.to_uppercase() } else { word.to_owned() }).collect();
    sentence_case(&words.join(" "))
}

/// A JSON value as a person types it: a text without quotes.
pub fn as_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

impl Sheet<'_> {
    /// The settings that a person who is not on the server's own machine may give, the required ones first.
    fn settings(&self) -> Vec<(&String, &Field)> {
        let fields = match &self.kind.recipe {
            Some(recipe) => Some(&recipe.settings),
            None => described(&self.kind.name).map(|told| &told.settings),
        };
        let is_local = |name: &str| self.kind.local_settings.iter().any(|local| local.name == name);
        let mut all: Vec<_> = fields.into_iter().flatten().filter(|(name, _)| !is_local(name)).collect();
        all.sort_by_key(|(_, field)| !field.is_required());
        all
    }

    fn secrets(&self) -> Vec<(&String, &Field)> {
        let fields = match &self.kind.recipe {
            Some(recipe) => Some(&recipe.secrets),
            None => described(&self.kind.name).map(|told| &told.secrets),
        };
        fields.into_iter().flatten().collect()
    }

    fn is_stored(&self, secret: &str) -> bool {
        self.stored.as_ref().is_none_or(|stored| stored.contains(secret)) && !self.is_new
    }

    /// The fields with the values of the draft, or those that were typed. Secrets are never sent back to the page.
    pub fn inputs(&self, typed: Option<&Fields>, wrong: &[Wrong]) -> Vec<Input> {
        let typed: Option<BTreeMap<&str, &str>> = typed.map(|fields| fields.pairs().collect());
        let mut all = self.own();
        all.extend(self.settings().into_iter().map(|(name, field)| self.setting(name, field)));
        all.extend(self.secrets().into_iter().map(|(name, field)| self.secret(name, field)));
        all.extend(self.limits());
        for input in &mut all {
            let given = typed.as_ref().and_then(|typed| typed.get(input.name.as_str()));
            if let Some(given) = given.filter(|_| !input.name.starts_with(SECRET)) {
                input.value = (*given).to_owned();
            }
            input.problem = wrong.iter().find(|wrong| wrong.field == input.name).map(|wrong| wrong.problem.clone());
        }
        all
    }

    /// Returns the inputs for the name, the channel, and whether the provider is the default of its channel.
    fn own(&self) -> Vec<Input> {
        let draft = &self.draft;
        let mut all = Vec::new();
        if self.is_new {
            let help = "1 to 63 letters, digits, '_', '-' and '.'; it cannot be changed later";
            all.push(Input { is_required: true, ..text("name", "Name", help, &draft.name) });
        }
        let help = "the channel that it serves; * is every channel";
        all.push(text("channel", "Channel", help, &draft.channel));
        let automatic = ("", "Yes, if the channel has none yet");
        let chosen = if self.is_new { "" } else { yes_no(draft.is_default) };
        let help = "whether it serves recipients that name no provider";
        all.push(choice("is_default", "Default of its channel", help, chosen, self.is_new.then_some(automatic)));
        all
    }

    fn setting(&self, name: &str, field: &Field) -> Input {
        let stored = self.draft.settings.get(name).map(as_text).unwrap_or_default();
        let default = field.default.as_ref().map(as_text).unwrap_or_default();
        let moves = !self.is_new && self.kind.secret_routes.iter().any(|route| route == name);
        let again = if moves { "; if you change it, give the secrets again" } else { "" };
        let kind = match field.r#type {
            _ if !field.choices.is_empty() => "choice",
            FieldType::Boolean => "choice",
            FieldType::Url => "url",
            FieldType::Email => "email",
            FieldType::Phone => "tel",
            FieldType::List | FieldType::Object => "lines",
            FieldType::Text | FieldType::Mailbox | FieldType::Number => "text",
        };
        let choices: Vec<String> = match field.r#type {
            FieldType::Boolean => vec!["true".into(), "false".into()],
            _ => field.choices.iter().map(as_text).collect(),
        };
        let none = if default.is_empty() { "Not set".to_owned() } else { format!("Default: {default}") };
        let options = std::iter::once((String::new(), none))
            .chain(choices.into_iter().map(|value| (value.clone(), value)))
            .collect();
        let form = match field.r#type {
            FieldType::List => ", as a JSON list",
            FieldType::Object => ", as a JSON object",
            FieldType::Phone => ", in the form +491701234567",
            _ => "",
        };
        Input {
            kind,
            options: if kind == "choice" { options } else { vec![] },
            placeholder: default,
            is_required: field.is_required(),
            ..text(&format!("{SETTING}{name}"), &label(name), &format!("{}{form}{again}", field.help), &stored)
        }
    }

    fn secret(&self, name: &str, field: &Field) -> Input {
        let several = described(&self.kind.name).is_some_and(|told| told.several_lines.iter().any(|one| one == name));
        let is_stored = self.is_stored(name);
        Input {
            kind: if several { "lines" } else { "password" },
            placeholder: if is_stored { "stored; empty keeps it".into() } else { String::new() },
            is_required: field.is_required() && !is_stored,
            ..text(&format!("{SECRET}{name}"), &label(name), &field.help, "")
        }
    }

    /// Returns the inputs for the guarantee, the retry policy and the limits.
    fn limits(&self) -> Vec<Input> {
        let draft = &self.draft;
        let guarantees = Guarantee::ALL.map(|one| (one.name().to_owned(), sentence_case(one.name())));
        let (policy, json) = policy_of(&draft.policy);
        let policies = SCHEDULES.map(|(name, _, waits)| (name.to_owned(), format!("{}: {waits}", sentence_case(name))));
        let other = (OTHER_POLICY.to_owned(), "Other, as JSON".to_owned());
        let nobody = (String::new(), "Nobody".to_owned());
        let next = self.others.iter().map(|(name, channel)| (name.clone(), format!("{name} ({channel})")));
        let select = |name: &str, label: &str, help: &str, value: &str, options: Vec<(String, String)>| Input {
            kind: "choice",
            options,
            ..text(name, label, help, value)
        };
        let number = |name: &str, label: &str, help: &str, value: String| text(name, label, help, &value);
        let optional = |value: Option<String>| value.unwrap_or_default();
        let mut all = vec![
            select(
                "guarantee",
                "Guarantee",
                "what happens after an unclear attempt",
                draft.guarantee.name(),
                guarantees.into(),
            ),
            select(
                "policy",
                "Retry policy",
                "the waits between attempts",
                policy,
                policies.into_iter().chain([other]).collect(),
            ),
            number(
                "policy_json",
                "Other policy",
                r#"such as {"name": "fixed", "interval_s": 60, "max_attempts": 5}"#,
                json,
            ),
            number("concurrency", "Concurrent sends", "per server process: 1 to 1000", draft.concurrency.to_string()),
            number(
                "rate_per_s",
                "Rate",
                "sends a second, 0.001 to 10000; empty is no limit",
                optional(draft.rate_per_s.map(|rate| rate.to_string())),
            ),
            number(
                "burst",
                "Burst",
                "sends allowed together after a pause, 1 to 10000",
                optional(draft.burst.map(|burst| burst.to_string())),
            ),
            number(
                "timeout_ms",
                "Time limit of one send",
                "in milliseconds: 100 to 300000",
                draft.timeout_ms.to_string(),
            ),
            number(
                "breaker_failures",
                "Breaker trips after",
                "failures of the service in a row: 0 to 100; 0 is never",
                draft.breaker_failures.to_string(),
            ),
            number(
                "breaker_cool_down_s",
                "First hold of the breaker",
                "in seconds: 1 to 300; it doubles each time",
                draft.breaker_cool_down_s.to_string(),
            ),
            select(
                "failover",
                "Next provider",
                "takes over while this one cannot send",
                draft.failover.as_deref().unwrap_or_default(),
                std::iter::once(nobody).chain(next).collect(),
            ),
            number(
                "failover_after_s",
                "Failover after",
                "a wait that the service asks for, in seconds: 0 to 86400",
                draft.failover_after_s.to_string(),
            ),
        ];
        all.iter_mut().for_each(|input| input.is_limit = true);
        all
    }

    /// Returns the change that the sent form describes, or the fields with wrong values.
    pub fn change(&self, fields: &Fields) -> Result<Change, Vec<Wrong>> {
        let mut wrong = Vec::new();
        let mut settings = Map::new();
        for (name, field) in self.settings() {
            match self.given(&format!("{SETTING}{name}"), name, field, fields) {
                Ok(Some(value)) => drop(settings.insert(name.clone(), value)),
                Ok(None) => {}
                Err(problem) => wrong.push(problem),
            }
        }
        let mut secrets = BTreeMap::new();
        for (name, field) in self.secrets() {
            let input = format!("{SECRET}{name}");
            match fields.get(&input).map(str::trim).filter(|text| !text.is_empty()) {
                Some(text) => drop(secrets.insert(name.clone(), Secret::new(text))),
                None if field.is_required() && !self.is_stored(name) => {
                    wrong.push(Wrong { field: input, problem: format!("is missing: {}", field.help) });
                }
                None => {}
            }
        }
        let change = Change {
            channel: fields.get("channel").map(|channel| channel.trim().to_owned()),
            settings,
            secrets,
            guarantee: fields.get("guarantee").map(str::to_owned),
            policy: policy(fields, &mut wrong),
            concurrency: number(fields, "concurrency", "a whole number", &mut wrong),
            timeout_ms: number(fields, "timeout_ms", "a whole number", &mut wrong),
            is_default: fields.get("is_default").map(|chosen| chosen == "true"),
            rate_per_s: Some(number(fields, "rate_per_s", "a number", &mut wrong)),
            burst: Some(number(fields, "burst", "a whole number", &mut wrong)),
            breaker_failures: number(fields, "breaker_failures", "a whole number", &mut wrong),
            breaker_cool_down_s: number(fields, "breaker_cool_down_s", "a whole number", &mut wrong),
            failover: Some(fields.get("failover").map(str::to_owned)),
            failover_after_s: number(fields, "failover_after_s", "a whole number", &mut wrong),
            enabled: None,
        };
        if wrong.is_empty() { Ok(change) } else { Err(wrong) }
    }

    /// Returns the value of a setting from the form. Null removes a stored value.
    fn given(&self, input: &str, name: &str, field: &Field, fields: &Fields) -> Result<Option<Value>, Wrong> {
        let refused = |problem: String| Wrong { field: input.to_owned(), problem };
        let Some(text) = fields.get(input).map(str::trim).filter(|text| !text.is_empty()) else {
            let is_stored = self.draft.settings.get(name).is_some();
            return match field.is_required() {
                true => Err(refused(format!("is missing: {}", field.help))),
                false => Ok(is_stored.then_some(Value::Null)),
            };
        };
        if let Some(chosen) = field.choices.iter().find(|choice| as_text(choice) == text) {
            return Ok(Some(chosen.clone()));
        }
        let (is_right, expected): (fn(&Value) -> bool, &str) = match field.r#type {
            FieldType::Number => (Value::is_number, "must be a number, such as 30"),
            FieldType::Boolean => (Value::is_boolean, "must be true or false"),
            FieldType::List => (Value::is_array, r#"must be a JSON list, such as ["a", "b"]"#),
            FieldType::Object => (Value::is_object, r#"must be a JSON object, such as {"a": "b"}"#),
            _ => return Ok(Some(text.into())),
        };
        let parsed = serde_json::from_str(text).ok().filter(is_right);
        parsed.map(Some).ok_or_else(|| refused(expected.to_owned()))
    }
}

/// Shows a problem beside the input that it is about. If there is no such input, returns the text to show above the
/// form.
pub fn placed(inputs: &mut [Input], problem: &Problem) -> Option<String> {
    let said = problem.to_string();
    // The text may name an option of the command line, which does not help on a page.
    let said = said.split("; set it with --").next().unwrap_or_default().to_owned();
    let field = problem.field().unwrap_or_default();
    let quoted = |quote: char| said.split(quote).nth(1).unwrap_or_default().to_owned();
    let name = match field {
        "secret" => format!("{SECRET}{}", quoted('"')),
        "settings" => format!("{SETTING}{}", quoted('`')),
        field if field.starts_with("policy") => "policy_json".to_owned(),
        field => field.strip_prefix("secret ").map_or_else(|| field.to_owned(), |name| format!("{SECRET}{name}")),
    };
    match inputs.iter_mut().find(|input| input.name == name) {
        Some(input) => {
            input.problem = Some(said);
            None
        }
        None if field.is_empty() => Some(said),
        None => Some(format!("{field}: {said}")),
    }
}

fn text(name: &str, label: &str, help: &str, value: &str) -> Input {
    Input {
        name: name.to_owned(),
        label: label.to_owned(),
        help: help.to_owned(),
        kind: "text",
        value: value.to_owned(),
        options: vec![],
        placeholder: String::new(),
        is_required: false,
        is_limit: false,
        problem: None,
    }
}

fn yes_no(is: bool) -> &'static str {
    if is { "true" } else { "false" }
}

fn choice(name: &str, label: &str, help: &str, value: &str, first: Option<(&str, &str)>) -> Input {
    let options = first.into_iter().chain([("true", "Yes"), ("false", "No")]);
    let options = options.map(|(value, label)| (value.to_owned(), label.to_owned())).collect();
    Input { kind: "choice", options, ..text(name, label, help, value) }
}

/// The name of a policy for the choice, and its JSON if it is not one of the listed schedules.
fn policy_of(policy: &Policy) -> (&'static str, String) {
    let listed = SCHEDULES.iter().find(|(_, schedule, _)| Policy::from(schedule.clone()) == *policy);
    match listed {
        Some((name, _, _)) => (name, String::new()),
        None => (OTHER_POLICY, serde_json::to_string(policy).unwrap_or_default()),
    }
}

fn policy(fields: &Fields, wrong: &mut Vec<Wrong>) -> Option<Value> {
    let name = fields.get("policy")?;
    if name != OTHER_POLICY {
        return Some(name.into());
    }
    let json = fields.get("policy_json").unwrap_or_default();
    let policy = serde_json::from_str(json).ok().filter(Value::is_object);
    if policy.is_none() {
        let problem = r#"must be a JSON object, such as {"name": "fixed", "interval_s": 60, "max_attempts": 5}"#;
        wrong.push(Wrong { field: "policy_json".into(), problem: problem.into() });
    }
    policy
}

/// Parses a number. An empty field means that no number is given.
fn number<T: std::str::FromStr>(fields: &Fields, name: &str, what: &str, wrong: &mut Vec<Wrong>) -> Option<T> {
    let given = fields.get(name)?.trim();
    let parsed = given.parse().ok();
    if parsed.is_none() {
        wrong.push(Wrong { field: name.to_owned(), problem: format!("is {given:?}; it must be {what}") });
    }
    parsed
}
