//! The expressions of recipes. They read values and compare them. They have no loops, call no functions and reach nothing
//! outside of the values that are given to them.

use std::fmt;
use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use minijinja::value::ValueKind;
use minijinja::{Environment, ErrorKind, UndefinedBehavior, Value};
use serde_json::Value as Json;

/// The longest expression, in bytes. The engine's parser is recursive, so expressions are compiled on a thread with a
/// large stack.
const EXPRESSION_BYTES: usize = 4000;
/// The number of steps after which an expression is ended.
const STEPS: u64 = 20_000;
/// The largest text that an expression or a text with expressions may give, in bytes. A whole mail, which no filter
/// changes, may be larger.
const VALUE_BYTES: usize = 1024 * 1024;
/// Operators that are not allowed in recipes. Some of them could make a large text from a small one.
const OPERATORS: [char; 5] = ['*', '+', '/', '%', '~'];
/// The names of the filters.
const FILTERS: [&str; 14] = [
    "after",
    "base64",
    "before",
    "contains",
    "digits",
    "every",
    "is_url",
    "join",
    "json",
    "max",
    "no_mentions",
    "slack",
    "smtp_status",
    "texts",
];

static ENGINE: LazyLock<Environment<'static>> = LazyLock::new(|| {
    let mut engine = Environment::empty();
    engine.set_undefined_behavior(UndefinedBehavior::Chainable);
    engine.set_fuel(Some(STEPS));
    engine.add_filter("after", |text: Value, mark: String| part_of(&text, &mark, |(_, after)| after));
    engine.add_filter("base64", |text: Value| capped(of_text(&text, |text| STANDARD.encode(text))));
    engine.add_filter("before", |text: Value, mark: String| match part_of(&text, &mark, |(before, _)| before) {
        none if none.is_undefined() => text,
        before => before,
    });
    engine.add_filter("contains", contains);
    engine.add_filter("digits", |text: Value| of_text(&text, digits));
    engine.add_filter("every", |list: Value, field: String, wanted: Value| {
        let mut items = list.try_iter().into_iter().flatten().peekable();
        items.peek().is_some() && items.all(|item| item.get_attr(&field).is_ok_and(|value| value == wanted))
    });
    engine.add_filter("is_url", |text: Value| text.as_str().is_some_and(is_url));
    engine.add_filter("join", |list: Value, between: String| {
        let mut joined: Option<String> = None;
        for item in list.try_iter().into_iter().flatten() {
            let text = match &mut joined {
                None => joined.insert(String::new()),
                Some(text) => {
                    text.push_str(&between);
                    text
                }
            };
            text.push_str(&shown(&item));
            // Check the size before the next item is copied.
            if text.len() > VALUE_BYTES {
                return Err(too_large());
            }
        }
        Ok(joined.map_or(Value::UNDEFINED, Value::from))
    });
    engine.add_filter("json", |value: Value| {
        if bytes_of(&value, 0) > VALUE_BYTES {
            return Err(too_large());
        }
        capped(json(&value).map_or(Value::UNDEFINED, |json| json.to_string().into()))
    });
    engine.add_filter("max", |text: Value, chars: usize| of_text(&text, |text| cut(text, chars)));
    engine.add_filter("no_mentions", |text: Value| capped(of_text(&text, without_mentions)));
    engine.add_filter("slack", |text: Value| {
        capped(of_text(&text, |text| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")))
    });
    engine.add_filter("smtp_status", |text: Value| {
        text.as_str().and_then(smtp_status).map_or(Value::UNDEFINED, Value::from)
    });
    engine.add_filter("texts", |object: Value| match json(&object) {
        Some(Json::Object(fields)) => Value::from_pairs(
            fields
                .iter()
                .filter(|(_, field)| !field.is_null())
                .map(|(name, field)| (name.clone(), shown(&value(field)))),
        ),
        _ => Value::UNDEFINED,
    });
    engine
});

/// Whether a text is meant as a URL. A malformed URL counts, too, because its message must not go to another receiver.
pub(super) fn is_url(text: &str) -> bool {
    let text = text.trim_start().to_ascii_lowercase();
    text.starts_with("http:") || text.starts_with("https:") || text.contains("://")
}

/// Applies a function to a text. A missing value stays missing.
fn of_text(value: &Value, change: impl FnOnce(&str) -> String) -> Value {
    match value.is_undefined() || value.is_none() {
        true => Value::UNDEFINED,
        false => change(&shown(value)).into(),
    }
}

/// The digits of a text.
pub(super) fn digits(text: &str) -> String {
    text.chars().filter(char::is_ascii_digit).collect()
}

/// The first enhanced status code of a failure (RFC 3463) in the answer of a mail server: `5.1.1` in `550-5.1.1 no such
/// user`.
fn smtp_status(text: &str) -> Option<&str> {
    let is_code = |word: &&str| {
        let parts: Vec<&str> = word.split('.').collect();
        let is_number = |part: &&str| (1..=3).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
        matches!(parts[..], ["4" | "5", _, _]) && parts.iter().all(is_number)
    };
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '.')).find(is_code)
}

fn too_large() -> minijinja::Error {
    minijinja::Error::new(ErrorKind::InvalidOperation, format!("a value has more than {VALUE_BYTES} bytes"))
}

/// Refuses a text that is too large.
fn capped(value: Value) -> Result<Value, minijinja::Error> {
    if value.as_str().is_some_and(|text| text.len() > VALUE_BYTES) { Err(too_large()) } else { Ok(value) }
}

/// Converts a value to JSON, unless it is too large. A value may contain the same text many times, so its size is
/// checked before it is copied.
pub(super) fn small_json(value: &Value) -> Result<Option<Json>, String> {
    if bytes_of(value, 0) > VALUE_BYTES {
        return Err(format!("a value has more than {VALUE_BYTES} bytes"));
    }
    Ok(json(value))
}

/// The size of a value in bytes, added to `before`: the bytes of its texts, and eight for each item. Counting stops
/// when the limit is exceeded.
fn bytes_of(value: &Value, before: usize) -> usize {
    let before = before.saturating_add(8);
    let add = |sum: usize, item: Value| if sum > VALUE_BYTES { sum } else { bytes_of(&item, sum) };
    match value.kind() {
        ValueKind::String => before.saturating_add(value.as_str().map_or(0, str::len)),
        ValueKind::Seq | ValueKind::Iterable => value.try_iter().into_iter().flatten().fold(before, add),
        ValueKind::Map => {
            let fields = value.try_iter().into_iter().flatten().filter_map(|name| value.get_item(&name).ok());
            fields.fold(before, add)
        }
        _ => before,
    }
}

/// Disarms the words by which chat services notify everybody, such as `@all` and `<users/all>`: a character without
/// width is inserted, which people do not see.
fn without_mentions(text: &str) -> String {
    const EVERYBODY: [&str; 5] = ["all", "channel", "everyone", "here", "room"];
    let begins = |rest: &str, word: &str| rest.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word));
    let mut quiet = String::with_capacity(text.len());
    for (at, c) in text.char_indices() {
        quiet.push(c);
        let (before, rest) = (&text[..at], &text[at + c.len_utf8()..]);
        // An address such as ann@all.example mentions nobody.
        let is_word = before.ends_with(char::is_alphanumeric);
        let is_everybody = c == '@' && !is_word && EVERYBODY.iter().any(|word| begins(rest, word));
        if is_everybody || (c == '<' && begins(rest, "users/")) {
            quiet.push('\u{200b}');
        }
    }
    quiet
}

/// A part of a text that `mark` divides. Missing if the text does not contain `mark`.
fn part_of<'t>(text: &'t Value, mark: &str, part: impl FnOnce((&'t str, &'t str)) -> &'t str) -> Value {
    text.as_str().and_then(|text| text.split_once(mark)).map_or(Value::UNDEFINED, |halves| part(halves).into())
}

fn contains(value: Value, wanted: Value) -> bool {
    match (value.as_str(), wanted.as_str()) {
        (Some(text), Some(wanted)) => text.to_lowercase().contains(&wanted.to_lowercase()),
        _ => value.try_iter().into_iter().flatten().any(|item| item == wanted),
    }
}

/// Cuts a text to this number of characters. The last character of a cut text is `…`.
fn cut(text: &str, chars: usize) -> String {
    match text.char_indices().nth(chars) {
        None => text.to_owned(),
        Some(_) => text.chars().take(chars.saturating_sub(1)).chain(['…']).collect(),
    }
}

/// A compiled expression.
pub(super) struct Expression {
    compiled: minijinja::Expression<'static, 'static>,
    /// The names that the expression reads, such as `settings.base_url`.
    names: Vec<String>,
}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Expression")
    }
}

impl Expression {
    /// Compiles an expression. `names` are the names that it may read.
    pub(super) fn new(text: &str, names: &Names<'_>) -> Result<Self, String> {
        if text.len() > EXPRESSION_BYTES {
            return Err(format!("the expression has {} bytes; at most {EXPRESSION_BYTES} are allowed", text.len()));
        }
        if let Some(operator) = operator(text) {
            return Err(format!(
                "{text:?}: the operator {operator:?} is not allowed; join texts with [a, b] | join('')"
            ));
        }
        let expression = ENGINE.compile_expression_owned(text.to_owned()).map_err(|problem| {
            let reason = problem.detail().map_or_else(|| problem.kind().to_string(), str::to_owned);
            format!(
                "{text:?} is not an expression: {reason}; compare with ==, combine with \"and\" and \"or\", and put texts \
                 into quotes"
            )
        })?;
        if let Some(unknown) = filters(text).into_iter().find(|name| !FILTERS.contains(&name.as_str())) {
            return Err(format!("filter {unknown:?} does not exist; allowed are {}", FILTERS.join(", ")));
        }
        let mut read: Vec<String> = expression.undeclared_variables(true).into_iter().collect();
        read.sort();
        read.iter().try_for_each(|name| names.check(name))?;
        // Evaluate the expression once: a filter with a wrong number of arguments fails on any value.
        let wrong =
            |error: &minijinja::Error| matches!(error.kind(), ErrorKind::MissingArgument | ErrorKind::TooManyArguments);
        match expression.eval(Value::from_pairs(names.roots.iter().map(|name| (*name, Value::from("x"))))) {
            Err(error) if wrong(&error) => Err(format!("{text:?}: a filter has too few or too many arguments")),
            _ => Ok(Self { compiled: expression, names: read }),
        }
    }

    /// The value of the expression. Undefined if a value that it needs is missing.
    pub(super) fn value(&self, context: &Value) -> Result<Value, String> {
        let value = self.compiled.eval(context.clone()).map_err(|problem| match problem.detail() {
            Some(detail) => format!("{}: {detail}", problem.kind()),
            None => problem.kind().to_string(),
        })?;
        Ok(if value.is_none() { Value::UNDEFINED } else { value })
    }

    /// Whether the expression reads a value whose name begins with `root`, such as `to`.
    pub(super) fn reads(&self, root: &str) -> bool {
        self.names.iter().any(|read| read.split('.').next() == Some(root))
    }

    /// Whether the expression reads no other values than those whose names begin with one of `roots`.
    pub(super) fn reads_only(&self, roots: &[&str]) -> bool {
        self.names.iter().all(|read| read.split('.').next().is_some_and(|root| roots.contains(&root)))
    }

    /// The names of the settings that the expression reads.
    pub(super) fn settings(&self) -> impl Iterator<Item = &str> {
        self.names.iter().filter_map(|read| read.strip_prefix("settings.")?.split('.').next())
    }

    pub(super) fn is_true(&self, context: &Value) -> Result<bool, String> {
        Ok(self.value(context)?.is_true())
    }
}

/// The names that an expression may read.
pub(super) struct Names<'n> {
    /// The first parts of the names, such as `settings`.
    pub(super) roots: &'n [&'static str],
    /// The names of the settings, after `settings.`.
    pub(super) settings: Vec<String>,
    /// The names of the secrets, after `secret.`.
    pub(super) secrets: Vec<String>,
    /// The names of the fields of the channel data, after `data.`. Empty means any name.
    pub(super) data: Vec<String>,
}

impl Names<'_> {
    fn check(&self, name: &str) -> Result<(), String> {
        let (root, field) = name.split_once('.').unwrap_or((name, ""));
        if !self.roots.contains(&root) {
            return Err(format!("{root:?} does not exist here; allowed are {}", self.roots.join(", ")));
        }
        let known = match root {
            "settings" => &self.settings,
            "secret" => &self.secrets,
            "data" if !field.is_empty() && !self.data.is_empty() => &self.data,
            _ => return Ok(()),
        };
        let field = field.split('.').next().unwrap_or_default();
        match known.iter().any(|known| known == field) {
            true => Ok(()),
            false => Err(format!(
                "{root}.{field} is not declared; add [{}.{field}]",
                if root == "secret" { "secrets" } else { root }
            )),
        }
    }
}

/// The characters of an expression that are not inside quotes.
fn unquoted(text: &str) -> impl Iterator<Item = char> {
    let (mut quote, mut chars) = (None, text.chars());
    std::iter::from_fn(move || {
        loop {
            match (quote, chars.next()?) {
                (Some(_), '\\') => drop(chars.next()),
                (Some(open), c) if open == c => quote = None,
                (Some(_), _) => {}
                (None, c @ ('\'' | '"')) => quote = Some(c),
                (None, c) => return Some(c),
            }
        }
    })
}

/// The first operator in an expression that is not allowed in recipes.
fn operator(text: &str) -> Option<char> {
    unquoted(text).find(|c| OPERATORS.contains(c))
}

/// The names of the filters that an expression uses.
fn filters(text: &str) -> Vec<String> {
    let (mut names, mut chars) = (vec![], unquoted(text).peekable());
    while let Some(c) = chars.next() {
        if c == '|' {
            while chars.next_if(|c| c.is_whitespace()).is_some() {}
            names.push(std::iter::from_fn(|| chars.next_if(|c| c.is_alphanumeric() || *c == '_')).collect());
        }
    }
    names
}

/// A text with expressions in it.
#[derive(Debug)]
pub(super) struct Text(pub(super) Vec<Piece>);

#[derive(Debug)]
pub(super) enum Piece {
    Literal(String),
    Value(Expression),
}

impl Piece {
    fn expression(&self) -> Option<&Expression> {
        if let Self::Value(expression) = self { Some(expression) } else { None }
    }
}

impl Text {
    pub(super) fn new(text: &str, names: &Names<'_>) -> Result<Self, String> {
        let (mut pieces, mut rest) = (vec![], text);
        while let Some((before, after)) = rest.split_once("{{") {
            let (expression, left) = after.split_once("}}").ok_or("\"{{\" is not closed by \"}}\"")?;
            if !before.is_empty() {
                pieces.push(Piece::Literal(before.to_owned()));
            }
            pieces.push(Piece::Value(Expression::new(expression.trim(), names)?));
            rest = left;
        }
        if !rest.is_empty() {
            pieces.push(Piece::Literal(rest.to_owned()));
        }
        Ok(Self(pieces))
    }

    /// The text with the values of its expressions. A missing value is empty.
    pub(super) fn render(&self, context: &Value) -> Result<String, String> {
        let mut whole = String::new();
        for piece in &self.0 {
            match piece {
                Piece::Literal(text) => whole.push_str(text),
                Piece::Value(expression) => whole.push_str(&shown(&expression.value(context)?)),
            }
            if whole.len() > VALUE_BYTES {
                return Err(format!("a text has more than {VALUE_BYTES} bytes"));
            }
        }
        Ok(whole)
    }

    /// Whether one of the text's expressions reads a value whose name begins with `root`.
    pub(super) fn reads(&self, root: &str) -> bool {
        self.0.iter().any(|piece| matches!(piece, Piece::Value(expression) if expression.reads(root)))
    }

    pub(super) fn expressions(&self) -> impl Iterator<Item = &Expression> {
        self.0.iter().filter_map(Piece::expression)
    }

    /// The pieces of a URL before its path. They decide which server is called.
    pub(super) fn server(&self) -> &[Piece] {
        let has_path = |text: &str| text.split_once("://").map_or(text.contains('/'), |(_, rest)| rest.contains('/'));
        let path = self.0.iter().position(|piece| matches!(piece, Piece::Literal(text) if has_path(text)));
        self.0.get(..path.unwrap_or(self.0.len())).unwrap_or_default()
    }

    /// The expressions in a URL before its path.
    pub(super) fn before_path(&self) -> impl Iterator<Item = &Expression> {
        self.server().iter().filter_map(Piece::expression)
    }

    /// The value, if the text consists of one expression and nothing else.
    pub(super) fn only(&self) -> Option<&Expression> {
        match self.0.as_slice() {
            [Piece::Value(expression)] => Some(expression),
            _ => None,
        }
    }
}

/// A value as text: empty if it is missing, JSON if it is a list or an object.
pub(super) fn shown(value: &Value) -> String {
    match value.kind() {
        ValueKind::String => value.as_str().unwrap_or_default().to_owned(),
        _ => match json(value) {
            None => String::new(),
            Some(Json::String(text)) => text,
            Some(json) => json.to_string(),
        },
    }
}

/// A value as JSON. `None` if it is missing.
pub(super) fn json(value: &Value) -> Option<Json> {
    Some(match value.kind() {
        ValueKind::Bool => value.is_true().into(),
        ValueKind::Number => match value.as_i64() {
            Some(number) if value.is_integer() => number.into(),
            _ if value.is_integer() => u64::try_from(value.clone()).ok()?.into(),
            _ => serde_json::Number::from_f64(f64::try_from(value.clone()).ok()?)?.into(),
        },
        ValueKind::String => value.as_str()?.into(),
        ValueKind::Seq | ValueKind::Iterable => {
            Json::Array(value.try_iter().ok()?.map(|item| json(&item).unwrap_or_default()).collect())
        }
        ValueKind::Map => {
            let field = |name: Value| Some((shown(&name), json(&value.get_item(&name).ok()?).unwrap_or_default()));
            Json::Object(value.try_iter().ok()?.filter_map(field).collect())
        }
        _ => return None,
    })
}

/// JSON as a value of the engine. A null counts as missing.
pub(super) fn value(json: &Json) -> Value {
    match json {
        Json::Null => Value::UNDEFINED,
        Json::Bool(yes) => (*yes).into(),
        Json::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(number), ..) => number.into(),
            (_, Some(number), _) => number.into(),
            (.., number) => number.unwrap_or_default().into(),
        },
        Json::String(text) => text.as_str().into(),
        Json::Array(items) => items.iter().map(value).collect(),
        Json::Object(fields) => Value::from_pairs(fields.iter().map(|(name, field)| (name.as_str(), value(field)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn eval(text: &str) -> Result<Json, String> {
        let names =
            Names { roots: &["to", "data", "settings"], settings: vec!["a".into()], secrets: vec![], data: vec![] };
        let context = value(
            &json!({"to": "+49 30-1", "data": {"n": 2, "big": 18_446_744_073_709_551_615_u64, "list": ["a", "b"],
            "t": "x.y.z", "null": null, "all": [{"s": "0"}, {"s": "0"}]}, "settings": {"a": "<b>&"}}),
        );
        Ok(json(&Expression::new(text, &names)?.value(&context)?).unwrap_or_default())
    }

    #[test]
    fn expressions_read_compare_and_change_values() {
        for (text, wanted) in [
            ("to | digits", json!("49301")),
            ("data.n == 2 and data.t in ['x.y.z']", json!(true)),
            ("data.big", json!(18_446_744_073_709_551_615_u64)),
            ("data.missing.deeper or data.t", json!("x.y.z")),
            ("data.null", json!(null)),
            ("data.list", json!(["a", "b"])),
            ("data.list | join(', ')", json!("a, b")),
            ("data.missing | join(', ')", json!(null)),
            ("data.t | before('.')", json!("x")),
            ("data.t | after('.')", json!("y.z")),
            ("to | before('.')", json!("+49 30-1")),
            ("to | after('.')", json!(null)),
            ("settings.a | slack", json!("&lt;b&gt;&amp;")),
            ("data.missing | slack", json!(null)),
            ("'äöü' | max(2)", json!("ä…")),
            ("'äö' | max(2)", json!("äö")),
            ("data.n | json", json!("2")),
            (
                "data | texts",
                json!({"n": "2", "big": "18446744073709551615", "list": "[\"a\",\"b\"]", "t": "x.y.z",
                "all": "[{\"s\":\"0\"},{\"s\":\"0\"}]"}),
            ),
            ("data.t | texts", json!(null)),
            ("'a' | base64", json!("YQ==")),
            ("data.all | every('s', '0')", json!(true)),
            ("data.list | every('s', '0')", json!(false)),
            ("data.missing | every('s', '0')", json!(false)),
            ("'Rate LIMIT' | contains('limit')", json!(true)),
            ("data.list | contains('b')", json!(true)),
            ("to if to | is_url else settings.a", json!("<b>&")),
        ] {
            assert_eq!(eval(text), Ok(wanted), "{text}");
        }
    }

    #[test]
    fn no_expression_makes_a_large_text_from_a_small_one() {
        let names = Names { roots: &["text"], settings: vec![], secrets: vec![], data: vec![] };
        let context = value(&json!({"text": "\"".repeat(10_000)}));
        let chain = |filter: &str| format!("text{}", format!(" | {filter}").repeat(40));
        let copies = vec!["text"; 600].join(", ");
        for text in [
            "text | join(text)",
            &chain("json"),
            &chain("base64"),
            &format!("[{copies}] | json"),
            &format!("[{copies}] | join('')"),
        ] {
            let problem = Expression::new(text, &names).unwrap().value(&context).unwrap_err();
            assert!(problem.contains("a value has more than 1048576 bytes"), "{text}: {problem}");
        }
        let whole = Text::new(&"{{ text }}".repeat(200), &names).unwrap();
        assert_eq!(whole.render(&context).unwrap_err(), "a text has more than 1048576 bytes");
        assert!(Expression::new("'a * b' == text", &names).is_ok(), "a text in quotes is no operator");
    }

    #[test]
    fn nobody_can_be_made_to_notify_everybody() {
        for (text, wanted) in [
            ("@all", "@\u{200b}all"),
            ("hi @Channel, (@HERE) *@everyone*", "hi @\u{200b}Channel, (@\u{200b}HERE) *@\u{200b}everyone*"),
            ("@room\n@rooms", "@\u{200b}room\n@\u{200b}rooms"),
            ("<users/all> <USERS/1>", "<\u{200b}users/all> <\u{200b}USERS/1>"),
            ("ann@all.example, @ann, 5 < users/7, ä@all", "ann@all.example, @ann, 5 < users/7, ä@all"),
            ("@@all @é", "@@\u{200b}all @é"),
        ] {
            assert_eq!(without_mentions(text), wanted);
        }
    }

    #[test]
    fn an_expression_that_cannot_work_is_refused_with_the_reason() {
        for (text, reason) in [
            ("data.", "is not an expression"),
            ("tp", "\"tp\" does not exist here; allowed are to, data, settings"),
            ("settings.b", "settings.b is not declared; add [settings.b]"),
            ("to | max", "a filter has too few or too many arguments"),
            ("to = 'x'", "compare with =="),
            ("to | upper", "filter \"upper\" does not exist"),
            ("'a | b' == to | upper", "filter \"upper\" does not exist"),
            (&"-".repeat(4001), "has 4001 bytes"),
            ("'x' * 10 ** 8", "the operator '*' is not allowed"),
            ("to ~ to", "the operator '~' is not allowed"),
        ] {
            assert!(eval(text).unwrap_err().contains(reason), "{text}: {:?}", eval(text));
        }
        assert_eq!(eval("'a | upper' == to"), Ok(json!(false)), "a bar inside quotes is no filter");
    }
}
