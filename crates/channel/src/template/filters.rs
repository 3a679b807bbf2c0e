//! All filters and tests of templates; those of the engine are not available. A filter reads only its arguments, and
//! its result is limited in size.

use std::cmp::Ordering;

use minijinja::value::{Rest, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, Value};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use url::Url;

use super::payload::Node;
use super::run::{Miss, Run};
use super::{Cap, Missing, dates, limits, numbers, phones, values};

/// A filter: a function of the current rendering (formats, language), the value and the arguments.
type Filter = fn(&Run, &Value, &[Value]) -> Result<Value, String>;

/// The filters: name, minimum and maximum number of arguments, function.
const FILTERS: [(&str, usize, usize, Filter); 25] = [
    ("capitalize", 0, 0, |_, it, _| Ok(capitalized(&text(it)?).into())),
    ("currency", 1, 2, currency),
    ("date", 0, 2, date),
    ("first", 0, 0, |_, it, _| Ok(list(it)?.into_iter().next().unwrap_or(Value::UNDEFINED))),
    ("join", 0, 1, join),
    ("json", 0, 0, json),
    ("last", 0, 0, |_, it, _| Ok(list(it)?.pop().unwrap_or(Value::UNDEFINED))),
    ("length", 0, 0, |_, it, _| Ok(values::length(it).ok_or("the value is not a text, a list or an object")?.into())),
    ("lower", 0, 0, |_, it, _| Ok(text(it)?.to_lowercase().into())),
    ("minus", 1, 1, |run, it, by| calculated(run, it, &by[0], numbers::Decimal::minus)),
    ("nl2br", 0, 0, |_, it, _| Ok(Value::from_safe_string(escaped(&text(it)?).replace('\n', "<br>\n")))),
    ("number", 0, 1, number),
    ("phone", 0, 0, |_, it, _| Ok(phones::displayed(&text(it)?).into())),
    ("plain", 0, 0, |_, it, _| Ok(values::plain(it).ok_or("the value is not a text or a number")?.into())),
    ("plus", 1, 1, |run, it, by| calculated(run, it, &by[0], numbers::Decimal::plus)),
    ("safe", 0, 0, |_, it, _| Ok(Value::from_safe_string(text(it)?))),
    ("times", 1, 1, |run, it, by| calculated(run, it, &by[0], numbers::Decimal::times)),
    ("title", 0, 0, |_, it, _| Ok(titled(&text(it)?).into())),
    ("trim", 0, 0, |_, it, _| Ok(text(it)?.trim().into())),
    ("truncate", 1, 1, truncate),
    ("upper", 0, 0, |_, it, _| Ok(text(it)?.to_uppercase().into())),
    (
        "urlencode",
        0,
        0,
        |_, it, _| Ok(encoded(&values::plain(it).ok_or("the value is not a text or a number")?).into()),
    ),
    ("within", 1, 1, |_, it, of| contains(it, &of[0]).map(Value::from)),
    ("outside", 1, 1, |_, it, of| contains(it, &of[0]).map(|yes| Value::from(!yes))),
    ("link", 0, 0, |_, it, _| Ok(if is_link(it) { it.clone() } else { Value::UNDEFINED })),
];

/// The filters that templates may use. `default` and `d` are not in `FILTERS`, because they accept a missing value.
pub(super) const NAMES: [&str; 25] = [
    "capitalize",
    "currency",
    "d",
    "date",
    "default",
    "first",
    "join",
    "json",
    "last",
    "length",
    "link",
    "lower",
    "minus",
    "nl2br",
    "number",
    "phone",
    "plain",
    "plus",
    "safe",
    "times",
    "title",
    "trim",
    "truncate",
    "upper",
    "urlencode",
];

/// The tests that may follow `is`.
pub(super) const TESTS: [&str; 7] = ["defined", "undefined", "number", "text", "list", "even", "odd"];

/// Adds the filters, the tests and the escaping rule to an engine.
pub(super) fn install(engine: &mut Environment<'static>) {
    for (name, least, most, filter) in FILTERS {
        engine.add_filter(name, move |state: &State<'_, '_>, it: Value, arguments: Rest<Value>| {
            Run::of(state, |run| called(run, name, (least, most), filter, &it, &arguments))
        });
    }
    for (name, holds) in COMPARISONS {
        engine.add_filter(name, move |state: &State<'_, '_>, left: Value, right: Value| {
            Run::of(state, |run| compared(run, name, holds, &left, &right))
        });
    }
    for name in ["d", "default"] {
        engine.add_filter(
            name,
            |it: Value, other: Option<Value>| {
                if it.is_undefined() { other.unwrap_or_else(|| Value::from("")) } else { it }
            },
        );
    }
    engine.add_filter("shown", shown);
    engine.add_filter("inserted", inserted);
    engine.add_filter("each", each);
    engine.add_test("defined", |it: Value| !it.is_undefined());
    engine.add_test("undefined", |it: Value| it.is_undefined());
    engine.add_test("number", |it: Value| it.as_str().is_none() && values::decimal(&it).is_some());
    engine.add_test("text", |it: Value| it.as_str().is_some() || values::moment(&it).is_some());
    engine.add_test("list", |it: Value| it.kind() == ValueKind::Seq);
    engine.add_test("even", |it: Value| it.as_i64().is_some_and(|number| number % 2 == 0));
    engine.add_test("odd", |it: Value| it.as_i64().is_some_and(|number| number % 2 != 0));
    engine.set_formatter(|out, state, value| {
        let text = value.as_str().unwrap_or("");
        let written = match state.auto_escape() {
            AutoEscape::Html if !value.is_safe() => out.write_str(&escaped(text)),
            _ => out.write_str(text),
        };
        written.map_err(Error::from)
    });
}

fn failure(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

/// The size of a value in bytes, which counts against [`super::limits::WORK_BYTES`].
fn size(value: &Value) -> usize {
    value.as_str().map_or_else(|| values::length(value).unwrap_or(1) * 16, str::len)
}

/// Calls a filter within its limits. A missing value stays missing.
fn called(
    run: &Run,
    name: &str,
    (least, most): (usize, usize),
    filter: Filter,
    it: &Value,
    arguments: &[Value],
) -> Result<Value, Error> {
    if !(least..=most).contains(&arguments.len()) {
        let wanted = if least == most { least.to_string() } else { format!("{least} to {most}") };
        return Err(failure(format!("the filter {name} got {} arguments; it takes {wanted}", arguments.len())));
    }
    if it.is_undefined() && !["within", "outside"].contains(&name) || arguments.iter().any(Value::is_undefined) {
        return Ok(match name {
            "within" => false.into(),
            "outside" => true.into(),
            _ => Value::UNDEFINED,
        });
    }
    run.charge(size(it) + arguments.iter().map(size).sum::<usize>())?;
    let result = filter(run, it, arguments).map_err(|message| failure(format!("filter {name}: {message}")))?;
    let length = result.as_str().map_or(0, str::len);
    if length > limits::VALUE_BYTES {
        return Err(run.stop(Cap::Value));
    }
    run.charge(length)?;
    Ok(result)
}

/// Whether a comparison holds for two values in this order.
type Holds = fn(Ordering) -> bool;

/// The comparisons, by the name of the filter that replaces the operator.
const COMPARISONS: [(&str, Holds); 6] = [
    ("eq", Ordering::is_eq),
    ("ne", Ordering::is_ne),
    ("lt", Ordering::is_lt),
    ("le", Ordering::is_le),
    ("gt", Ordering::is_gt),
    ("ge", Ordering::is_ge),
];

/// Compares two values. A missing value is not equal to any value, not even to another missing value, and is neither
/// less nor greater.
fn compared(run: &Run, name: &str, holds: Holds, left: &Value, right: &Value) -> Result<Value, Error> {
    run.charge(size(left).min(size(right)))?;
    let order = values::compare(left, right);
    Ok(match (order, name) {
        (Some(order), _) => holds(order).into(),
        (None, "eq") => false.into(),
        (None, "ne") => true.into(),
        (None, _) if left.is_undefined() || right.is_undefined() => false.into(),
        (None, _) => return Err(failure("a number can be compared only with a number, and a text only with a text")),
    })
}

/// Returns the output of a tag. `tag` is its number; `link` is 1 if the value is the target of a link.
fn shown(state: &State<'_, '_>, it: Value, tag: usize, link: usize) -> Result<Value, Error> {
    Run::of(state, |run| {
        run.charge(size(&it))?;
        let refused = link == 1 && !it.is_safe() && !is_link(&it);
        if it.is_undefined() || refused {
            run.miss(Miss { tag, link: refused && !it.is_undefined() });
            return Ok(if run.missing == Missing::Keep { run.source(tag).into() } else { "".into() });
        }
        if it.as_str().is_some() {
            return Ok(it);
        }
        let text = values::shown(&it, limits::VALUE_BYTES).map_err(failure)?;
        if text.len() > limits::VALUE_BYTES {
            return Err(run.stop(Cap::Value));
        }
        run.charge(text.len())?;
        Ok(text.into())
    })
}

/// Returns a value as JSON, for channel data. A missing value becomes null, or the source of the tag.
fn inserted(state: &State<'_, '_>, it: Value, tag: usize) -> Result<Value, Error> {
    Run::of(state, |run| {
        if it.is_undefined() {
            run.miss(Miss { tag, link: false });
            let kept = run.missing == Missing::Keep;
            return Ok(if kept { values::json_text(run.source(tag)).into() } else { "null".into() });
        }
        json(run, &it, &[]).map_err(failure)
    })
}

/// Returns the items of a loop. A missing list has no items.
fn each(state: &State<'_, '_>, it: Value, tag: usize) -> Result<Value, Error> {
    Run::of(state, |run| {
        run.charge(size(&it))?;
        if it.is_undefined() {
            run.miss(Miss { tag, link: false });
            return Ok(Vec::<Value>::new().into());
        }
        if it.kind() == ValueKind::Seq {
            Ok(it)
        } else {
            Err(failure("the value of the tag `for` is not a list; use a list"))
        }
    })
}

fn text(it: &Value) -> Result<String, String> {
    values::shown(it, limits::VALUE_BYTES)
}

fn list(it: &Value) -> Result<Vec<Value>, String> {
    values::items(it).ok_or_else(|| "the value is not a list; use a list".to_owned())
}

fn amount(it: &Value) -> Result<numbers::Decimal, String> {
    values::decimal(it).ok_or_else(|| "the value is not a number of at most 30 digits".to_owned())
}

fn calculated(
    run: &Run,
    it: &Value,
    by: &Value,
    how: fn(numbers::Decimal, numbers::Decimal) -> Option<numbers::Decimal>,
) -> Result<Value, String> {
    let result = how(amount(it)?, amount(by)?).ok_or("the result has more than 30 digits; use smaller numbers")?;
    Ok(values::value(&Node::Number(result.to_string().into()), &run.manner))
}

fn number(run: &Run, it: &Value, arguments: &[Value]) -> Result<Value, String> {
    let amount = amount(it)?;
    let amount = match arguments.first().map(places).transpose()? {
        Some(places) => amount.rounded(places).ok_or("the number has more than 30 digits; use a smaller number")?,
        None => amount,
    };
    Ok(numbers::grouped(amount, run.manner.language.as_deref())?.into())
}

fn places(argument: &Value) -> Result<u32, String> {
    let places = argument
        .as_usize()
        .filter(|places| *places <= 10)
        .ok_or("the number of decimals is not allowed; use 0 to 10")?;
    Ok(places as u32)
}

fn currency(run: &Run, it: &Value, arguments: &[Value]) -> Result<Value, String> {
    let code = text(&arguments[0])?;
    let places = numbers::minor_units(&code)?;
    let amount = amount(it)?.rounded(places).ok_or("the number has more than 30 digits; use a smaller number")?;
    let written = numbers::grouped(amount, run.manner.language.as_deref())?;
    let (sign, digits) = written.strip_prefix('-').map_or(("", written.as_str()), |digits| ("-", digits));
    Ok(match arguments.get(1) {
        Some(symbol) => format!("{sign}{}{digits}", text(symbol)?),
        None => format!("{code} {written}"),
    }
    .into())
}

fn date(run: &Run, it: &Value, arguments: &[Value]) -> Result<Value, String> {
    let moment = values::moment(it).ok_or("the value is not an ISO date or time such as 2026-03-15")?;
    let format = arguments.first().map(text).transpose()?;
    if let Some(format) = &format {
        dates::check_format(format)?;
    }
    let zone = arguments.get(1).map(text).transpose()?.map(|name| dates::zone(&name)).transpose()?;
    let format = format.as_deref().unwrap_or(&run.manner.date_format);
    Ok(moment.write(format, zone.as_ref().unwrap_or(&run.manner.zone))?.into())
}

fn join(run: &Run, it: &Value, arguments: &[Value]) -> Result<Value, String> {
    let between = arguments.first().map_or_else(|| Ok(", ".to_owned()), text)?;
    let mut all = String::new();
    for (i, item) in list(it)?.iter().enumerate() {
        if i > 0 {
            all.push_str(&between);
        }
        all.push_str(&text(item)?);
        if all.len() > limits::VALUE_BYTES {
            return Err(run.stop(Cap::Value).to_string());
        }
    }
    Ok(all.into())
}

fn json(run: &Run, it: &Value, _: &[Value]) -> Result<Value, String> {
    let mut out = String::new();
    values::write_json(it, &mut out, limits::VALUE_BYTES);
    if out.len() > limits::VALUE_BYTES {
        return Err(run.stop(Cap::Value).to_string());
    }
    Ok(out.into())
}

fn truncate(_: &Run, it: &Value, arguments: &[Value]) -> Result<Value, String> {
    let length = arguments[0]
        .as_usize()
        .filter(|length| *length > 0)
        .ok_or("the length must be a whole number of at least 1")?;
    let text = text(it)?;
    if text.chars().count() <= length {
        return Ok(text.into());
    }
    let kept: String = text.chars().take(length - 1).collect();
    Ok(format!("{}…", kept.trim_end()).into())
}

fn contains(it: &Value, of: &Value) -> Result<bool, String> {
    if it.is_undefined() || of.is_undefined() {
        return Ok(false);
    }
    if let (Some(part), Some(whole)) = (it.as_str(), of.as_str()) {
        return Ok(whole.contains(part));
    }
    Ok(list(of)?.iter().any(|item| values::compare(it, item).is_some_and(Ordering::is_eq)))
}

/// Whether a value is an absolute URL that a message may link to. The rule is that of action URLs: http, https, mailto
/// or tel, without a user name and without spaces.
fn is_link(it: &Value) -> bool {
    let Some(text) = it.as_str() else { return false };
    let Ok(url) = Url::parse(text) else { return false };
    let is_web = matches!(url.scheme(), "http" | "https") && text[url.scheme().len()..].starts_with("://");
    let is_known = is_web || matches!(url.scheme(), "mailto" | "tel");
    let one_word = !text.contains(|c: char| c.is_control() || c.is_whitespace() || c == '\\');
    is_known && one_word && url.username().is_empty() && url.password().is_none()
}

fn capitalized(text: &str) -> String {
    let mut all = text.chars();
    all.next().map_or_else(String::new, |first| first.to_uppercase().collect::<String>() + &all.as_str().to_lowercase())
}

fn titled(text: &str) -> String {
    let mut begins = true;
    let letter = |c: char| {
        let word: String = if begins { c.to_uppercase().collect() } else { c.to_lowercase().collect() };
        begins = c.is_whitespace() || c == '-';
        word
    };
    text.chars().map(letter).collect()
}

/// Characters that a URL may contain without encoding.
const UNRESERVED: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, &UNRESERVED).to_string()
}

/// Escapes a string for HTML, also for use inside quotes.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            _ => out.push(c),
        }
    }
    out
}
