//! Values in the engine: numbers keep their digits, dates are recognized, and fields of objects are found under any
//! spelling.

use std::cmp::Ordering;
use std::sync::Arc;

use minijinja::Value;
use minijinja::value::{Enumerator, Object, ObjectRepr, ValueKind};

use super::dates::{Manner, Moment};
use super::numbers::Decimal;
use super::payload::Node;

/// A value of the payload that the engine has no type for.
#[derive(Debug)]
pub(super) struct Held {
    node: Node,
    moment: Option<Moment>,
    manner: Arc<Manner>,
}

/// Converts a node to a value of the engine. A null becomes undefined, which counts as missing.
pub(super) fn value(node: &Node, manner: &Arc<Manner>) -> Value {
    let held = |moment| Value::from_object(Held { node: node.clone(), moment, manner: Arc::clone(manner) });
    match node {
        Node::Null => Value::UNDEFINED,
        Node::Bool(yes) => Value::from(*yes),
        Node::Number(digits) => match digits.parse::<i64>() {
            Ok(number) if number.to_string() == **digits => Value::from(number),
            _ => held(None),
        },
        Node::Text(text) => match Moment::read(text) {
            Some(moment) => held(Some(moment)),
            None => Value::from(Arc::clone(text)),
        },
        Node::List(_) | Node::Map(_) => held(None),
    }
}

impl Object for Held {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        match self.node {
            Node::List(_) => ObjectRepr::Seq,
            Node::Map(_) => ObjectRepr::Map,
            _ => ObjectRepr::Plain,
        }
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let node = match &self.node {
            Node::Map(fields) => fields.get(key.as_str()?)?,
            Node::List(items) => items.get(key.as_usize()?)?,
            _ => return None,
        };
        Some(value(node, &self.manner))
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        match &self.node {
            Node::List(items) => Enumerator::Seq(items.len()),
            _ => Enumerator::NonEnumerable,
        }
    }

    fn is_true(self: &Arc<Self>) -> bool {
        match &self.node {
            Node::List(items) => !items.is_empty(),
            Node::Map(fields) => !fields.entries().is_empty(),
            Node::Number(digits) => !Decimal::read(digits).is_some_and(Decimal::is_zero),
            _ => true,
        }
    }

    fn render(self: &Arc<Self>, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The engine never prints a value itself: `filters::shown` prints it, with its limits.
        f.write_str("")
    }
}

fn held(value: &Value) -> Option<&Held> {
    value.downcast_object_ref::<Held>()
}

/// Reads a value as a date or time. `None` if it is neither.
pub(super) fn moment(value: &Value) -> Option<Moment> {
    match held(value) {
        Some(held) => held.moment,
        None => Moment::read(value.as_str()?),
    }
}

/// Reads a value as a number. A string that contains a number counts as a number.
pub(super) fn decimal(value: &Value) -> Option<Decimal> {
    match held(value) {
        Some(Held { node: Node::Number(digits), .. }) => Decimal::read(digits),
        Some(_) => None,
        None if value.is_number() => Decimal::read(&value.to_string()),
        None => Decimal::read(value.as_str()?.trim()),
    }
}

/// The items of a list.
pub(super) fn items(value: &Value) -> Option<Vec<Value>> {
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => value.try_iter().ok().map(Iterator::collect),
        _ => None,
    }
}

/// The number of items or characters of a value.
pub(super) fn length(of: &Value) -> Option<usize> {
    match held(of).map(|held| &held.node) {
        Some(Node::List(items)) => Some(items.len()),
        Some(Node::Map(fields)) => Some(fields.entries().len()),
        Some(Node::Text(text)) => Some(text.chars().count()),
        Some(_) => None,
        None => of.as_str().map(|text| text.chars().count()).or_else(|| items(of).map(|items| items.len())),
    }
}

/// The text of a value as in the payload. `None` for lists and objects.
pub(super) fn plain(value: &Value) -> Option<String> {
    if let Some(held) = held(value) {
        return match &held.node {
            Node::Number(text) | Node::Text(text) => Some(text.to_string()),
            _ => None,
        };
    }
    match value.kind() {
        ValueKind::Bool => Some(value.is_true().to_string()),
        ValueKind::Number | ValueKind::String => Some(value.to_string()),
        _ => None,
    }
}

/// The text of a value for readers: dates in the format of the template, lists with commas, objects as JSON. Stops
/// when the text is longer than `limit` bytes.
pub(super) fn shown(of: &Value, limit: usize) -> Result<String, String> {
    if let Some(Held { moment: Some(moment), manner, .. }) = held(of) {
        return manner.date(*moment);
    }
    if let Some(text) = plain(of) {
        return Ok(text);
    }
    let Some(items) = items(of) else {
        let mut json = String::new();
        write_json(of, &mut json, limit);
        return Ok(json);
    };
    let mut all = String::new();
    for item in items {
        if all.len() > limit {
            break;
        }
        if !all.is_empty() {
            all.push_str(", ");
        }
        all.push_str(&shown(&item, limit - all.len().min(limit))?);
    }
    Ok(all)
}

/// Writes a value as JSON, as in the payload. Stops when `out` is longer than `limit` bytes.
pub(super) fn write_json(of: &Value, out: &mut String, limit: usize) {
    if let Some(held) = held(of) {
        return write_node(&held.node, out, limit);
    }
    match of.kind() {
        ValueKind::Bool => out.push_str(if of.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&of.to_string()),
        ValueKind::String => out.push_str(&json_text(of.as_str().unwrap_or(""))),
        _ => match items(of) {
            Some(items) => write_list(items.iter(), out, limit, write_json),
            None => out.push_str("null"),
        },
    }
}

fn write_node(node: &Node, out: &mut String, limit: usize) {
    match node {
        Node::Null => out.push_str("null"),
        Node::Bool(yes) => out.push_str(if *yes { "true" } else { "false" }),
        Node::Number(digits) => out.push_str(digits),
        Node::Text(text) => out.push_str(&json_text(text)),
        Node::List(items) => write_list(items.iter(), out, limit, write_node),
        Node::Map(fields) => {
            out.push('{');
            for (i, (name, node)) in fields.entries().iter().enumerate() {
                if out.len() > limit {
                    break;
                }
                out.push_str(if i > 0 { "," } else { "" });
                out.push_str(&json_text(name));
                out.push(':');
                write_node(node, out, limit);
            }
            out.push('}');
        }
    }
}

fn write_list<'a, T: 'a>(
    items: impl Iterator<Item = &'a T>,
    out: &mut String,
    limit: usize,
    write: impl Fn(&T, &mut String, usize),
) {
    out.push('[');
    for (i, item) in items.enumerate() {
        if out.len() > limit {
            break;
        }
        out.push_str(if i > 0 { "," } else { "" });
        write(item, out, limit);
    }
    out.push(']');
}

/// Writes a string as a JSON string.
pub(super) fn json_text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Compares two values: strings and dates as strings, numbers as numbers. A string that contains a number can be
/// compared with a number. `None` if the values cannot be compared.
pub(super) fn compare(left: &Value, right: &Value) -> Option<Ordering> {
    if left.kind() == ValueKind::Bool && right.kind() == ValueKind::Bool {
        return Some(left.is_true().cmp(&right.is_true()));
    }
    if let (Some(left), Some(right)) = (text(left), text(right)) {
        return Some(left.cmp(right));
    }
    Some(decimal(left)?.compare(decimal(right)?))
}

fn text(of: &Value) -> Option<&str> {
    match held(of).map(|held| &held.node) {
        Some(Node::Text(text)) => Some(text),
        Some(_) => None,
        None => of.as_str(),
    }
}
