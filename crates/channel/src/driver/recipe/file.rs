//! Reads the file of a recipe. Every problem names its line.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value as Json};
use toml::de::{DeTable, DeValue};

use super::answer::{AnswerText, Answers, ErrorText, SuccessText, WaitText};
use super::callback::{CallbackForm, CallbackText};
use super::expression::{Expression, Names};
use super::field::{FieldType, Fields, Part};
use super::request::{RequestForm, RequestText};
use super::{Limit, Limited, Recipe, VALUES};
use crate::model::{Guarantee, Policy, Rate};

/// The stack of the thread that reads a recipe. The parser of expressions is recursive.
const STACK_BYTES: usize = 64 * 1024 * 1024;
/// The allowed seconds between two messages to one recipient.
const RECIPIENT_INTERVAL_S: RangeInclusive<f64> = 0.01..=3600.0;
/// The largest file, in bytes.
const FILE_BYTES: usize = 256 * 1024;

/// The file as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    title: String,
    channel: String,
    address: String,
    #[serde(default)]
    address_type: FieldType,
    guarantee: Guarantee,
    because: String,
    key_window_s: Option<u64>,
    policy: Option<Json>,
    rate_per_s: Option<f64>,
    burst: Option<i32>,
    recipient_interval_s: Option<f64>,
    #[serde(default)]
    facts: String,
    #[serde(default)]
    settings: Fields,
    #[serde(default)]
    secrets: Fields,
    #[serde(default)]
    data: Fields,
    #[serde(default)]
    limit: Vec<LimitText>,
    request: RequestText,
    success: SuccessText,
    #[serde(default)]
    answer: AnswerText,
    #[serde(default)]
    error: Vec<ErrorText>,
    #[serde(default)]
    retry_after: Vec<WaitText>,
    callback: Option<CallbackText>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitText {
    of: Option<String>,
    sent: Option<String>,
    chars: Option<usize>,
    bytes: Option<usize>,
    without: Option<Vec<String>>,
    name: Option<String>,
}

/// Reads a recipe. A problem begins with the line and the place in the file.
pub(super) fn read(text: &str) -> Result<Recipe, String> {
    if text.len() > FILE_BYTES {
        return Err(format!("the file has {} bytes; at most {FILE_BYTES} are allowed", text.len()));
    }
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("recipe".into()).stack_size(STACK_BYTES);
        let thread = thread.spawn_scoped(scope, || read_here(text));
        let thread = thread.map_err(|problem| format!("no thread could be started to read the recipe: {problem}"))?;
        thread.join().unwrap_or_else(|_| Err("reading the recipe failed; report it as a bug, with the file".into()))
    })
}

fn read_here(text: &str) -> Result<Recipe, String> {
    let table = DeTable::parse(text).map_err(|problem| {
        let before = problem.span().map_or("", |span| text.get(..span.start).unwrap_or_default());
        let line = before.matches('\n').count() + 1;
        format!("line {line}: {}", problem.message())
    })?;
    let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at).collect();
    let mut lines = Lines { ends, by_path: BTreeMap::new(), problem: None };
    let json = lines.table(table.get_ref(), "");
    if let Some(problem) = &lines.problem {
        return Err(lines.placed(problem));
    }
    let file: File = serde_path_to_error::deserialize(&json).map_err(|problem| {
        let path = problem.path().to_string();
        match path.as_str() {
            "." => lines.placed(&problem.inner().to_string()),
            path => lines.placed(&format!("{path}: {}", problem.inner())),
        }
    })?;
    compile(file).map_err(|problem| lines.placed(&problem))
}

fn compile(mut file: File) -> Result<Recipe, String> {
    check(&file)?;
    file.data.values_mut().for_each(|field| field.require_unless_said(false));
    let given = file.settings.values_mut().chain(file.secrets.values_mut());
    given.for_each(|field| field.require_unless_said(field.default.is_none() && field.substitute().is_none()));
    let mut settings: Vec<String> = file.settings.keys().cloned().collect();
    if file.settings.get("from").is_some_and(|from| from.r#type == FieldType::Mailbox) {
        settings.extend(["from_email".into(), "from_name".into()]);
    }
    let secrets: Vec<String> = file.secrets.keys().cloned().collect();
    let data = file.data.keys().cloned().collect();
    let callback = file.callback.take().map(|text| CallbackForm::new(text, &settings, &secrets)).transpose()?;
    let names = Names { roots: &VALUES, settings, secrets, data };
    let request = RequestForm::new(&file.request, &names)?;
    let limit = |(i, limit): (usize, &LimitText)| {
        let of = match (&limit.of, &limit.sent) {
            (Some(text), None) => {
                Limited::Value(Expression::new(text, &names).map_err(|problem| format!("limit[{i}].of: {problem}"))?)
            }
            (None, Some(path)) => {
                let path: Vec<String> = path.split('.').map(str::to_owned).collect();
                if !request.has_field(&path) {
                    return Err(format!("limit[{i}].sent: the body has no field {:?}", path.join(".")));
                }
                Limited::Sent(path)
            }
            _ => return Err(format!("limit[{i}]: must have either `of` or `sent`")),
        };
        let without = limit.without.clone().unwrap_or_default();
        if limit.chars.is_none() && limit.bytes.is_none() && without.is_empty() {
            return Err(format!("limit[{i}]: must have `chars`, `bytes` or `without`"));
        }
        let name = limit.name.as_ref().or(limit.of.as_ref()).or(limit.sent.as_ref()).cloned().unwrap_or_default();
        Ok(Limit { name, of, chars: limit.chars, bytes: limit.bytes, without })
    };
    let limits = file.limit.iter().enumerate().map(limit).collect::<Result<_, String>>()?;
    let policy = file.policy.as_ref().map(Policy::from_json).transpose();
    let policy = policy.map_err(|problem| format!("policy: {problem}"))?.unwrap_or_default();
    let url_of_recipient = request.has_url_of_recipient();
    let answers = Answers::new(&file.success, &file.answer, &file.error, &file.retry_after, url_of_recipient)?;
    Ok(Recipe {
        name: file.name,
        title: file.title,
        channel: file.channel,
        address: file.address,
        guarantee: file.guarantee,
        because: file.because,
        key_window_s: file.key_window_s,
        policy,
        rate_per_s: file.rate_per_s,
        burst: file.burst,
        recipient_interval: file.recipient_interval_s.map(Duration::from_secs_f64),
        facts: file.facts,
        settings: file.settings,
        secrets: file.secrets,
        all_data: file.data.is_empty() || file.request.reads_all_data(),
        data: file.data,
        limits,
        mail: file.request.mail,
        url_of_recipient,
        address_type: file.address_type,
        request,
        answers,
        callback,
    })
}

fn check(file: &File) -> Result<(), String> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if !(1..=63).contains(&file.name.len()) || !file.name.chars().all(plain) {
        return Err(format!("name: {:?} is not allowed; use 1 to 63 of a-z, 0-9 and _", file.name));
    }
    if file.channel != "*" {
        crate::model::short_name("channel", &file.channel)?;
    }
    for (name, text) in [("title", &file.title), ("address", &file.address), ("because", &file.because)] {
        if text.trim().is_empty() {
            return Err(format!("{name}: is empty"));
        }
    }
    if file.key_window_s.is_some() && file.guarantee != Guarantee::Idempotent {
        return Err("key_window_s: is only for guarantee = \"idempotent\"".into());
    }
    Rate::check(file.rate_per_s, file.burst)?;
    if let Some(seconds) = file.recipient_interval_s.filter(|seconds| !RECIPIENT_INTERVAL_S.contains(seconds)) {
        let (least, most) = (RECIPIENT_INTERVAL_S.start(), RECIPIENT_INTERVAL_S.end());
        return Err(format!("recipient_interval_s: is {seconds}; {least} to {most} are allowed"));
    }
    for (table, fields) in [("settings", &file.settings), ("secrets", &file.secrets), ("data", &file.data)] {
        for (name, field) in fields {
            let path = format!("{table}.{name}");
            if name == "key_window_s" || !name.chars().all(plain) || name.is_empty() {
                return Err(format!("{path}: is not allowed as a name; use a-z, 0-9 and _"));
            }
            if field.default.is_some() && table != "settings" {
                return Err(format!("{path}.default: only settings have defaults"));
            }
            if let Some(default) = &field.default {
                field.check(default, None, Part::Setting).map_err(|problem| format!("{path}.default: {problem}"))?;
            }
            if let Some(setting) = field.substitute()
                && (table == "secrets" || !file.settings.contains_key(setting))
            {
                return Err(format!("{path}.required_unless: {setting:?} is not a setting of this recipe"));
            }
        }
    }
    let has_sender = file.settings.get("from").is_some_and(|from| from.r#type == FieldType::Mailbox);
    if file.request.mail && !has_sender {
        return Err("request.mail: needs [settings.from] of type \"mailbox\"".into());
    }
    Ok(())
}

/// The line of each value in a file.
struct Lines {
    /// The positions of the line ends.
    ends: Vec<usize>,
    by_path: BTreeMap<String, usize>,
    /// The error for the first number that cannot be used.
    problem: Option<String>,
}

impl Lines {
    fn line_of(&self, at: usize) -> usize {
        self.ends.partition_point(|end| *end < at) + 1
    }

    fn number<T: Into<Json>>(&mut self, number: Option<T>, path: &str) -> Json {
        let json = number.map(Into::into).filter(|json: &Json| json.is_number());
        json.unwrap_or_else(|| {
            self.problem.get_or_insert(format!("{path}: is not a number that can be used"));
            Json::Null
        })
    }

    fn table(&mut self, table: &DeTable<'_>, path: &str) -> Json {
        let mut fields = Map::new();
        for (name, value) in table {
            let name_text = name.get_ref().to_string();
            let path = if path.is_empty() { name_text.clone() } else { format!("{path}.{name_text}") };
            self.by_path.insert(path.clone(), self.line_of(name.span().start));
            fields.insert(name_text, self.value(value.get_ref(), &path));
        }
        fields.into()
    }

    fn value(&mut self, value: &DeValue<'_>, path: &str) -> Json {
        match value {
            DeValue::String(text) => text.to_string().into(),
            DeValue::Integer(number) => self.number(i64::from_str_radix(number.as_str(), number.radix()).ok(), path),
            DeValue::Float(number) => self.number(number.as_str().parse::<f64>().ok(), path),
            DeValue::Boolean(yes) => (*yes).into(),
            DeValue::Datetime(time) => time.to_string().into(),
            DeValue::Array(items) => {
                let mut values = vec![];
                for (i, item) in items.iter().enumerate() {
                    let path = format!("{path}[{i}]");
                    self.by_path.insert(path.clone(), self.line_of(item.span().start));
                    values.push(self.value(item.get_ref(), &path));
                }
                values.into()
            }
            DeValue::Table(table) => self.table(table, path),
        }
    }

    /// Adds the line number to an error that begins with the path of a value.
    fn placed(&self, problem: &str) -> String {
        let is_begun =
            |path: &str| problem.starts_with(path) && !problem[path.len()..].starts_with(char::is_alphanumeric);
        let longest = self.by_path.iter().filter(|(path, _)| is_begun(path)).max_by_key(|(path, _)| path.len());
        match longest {
            Some((_, line)) => format!("line {line}: {problem}"),
            None => problem.to_owned(),
        }
    }
}
