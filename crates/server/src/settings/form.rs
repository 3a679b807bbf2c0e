//! The text format of setting values. It follows from the type of the default, or for address ranges from the setting's
//! name.

use std::net::IpAddr;

use ipnet::IpNet;
use toml::{Table, Value};

/// The settings that are lists of address ranges.
const RANGES: [&str; 2] = ["egress.allow", "server.trusted_proxies"];

/// Parses the text of an environment variable or a flag with the type of the default. A list is separated by commas, or
/// written as in the file.
/// # Errors
/// The expected format.
pub fn read(default: &Value, text: &str) -> Result<Value, String> {
    let parsed = match default {
        Value::Integer(_) => text.parse().ok().map(Value::Integer),
        Value::Boolean(_) => text.parse().ok().map(Value::Boolean),
        Value::Float(_) => text.parse().ok().map(Value::Float),
        Value::Array(_) if text.trim_start().starts_with('[') => {
            format!("list = {text}").parse::<Table>().ok().and_then(|mut table| table.remove("list"))
        }
        Value::Array(_) => {
            Some(Value::Array(text.split(',').map(str::trim).filter(|t| !t.is_empty()).map(Value::from).collect()))
        }
        _ => Some(Value::from(text)),
    };
    parsed.ok_or_else(|| match default {
        Value::Array(_) => "one value, or several values separated by commas".to_owned(),
        other => described(other),
    })
}

/// The type of a value, in words.
pub fn described(value: &Value) -> String {
    match value {
        Value::Integer(_) => "a whole number".into(),
        Value::Boolean(_) => "true or false".into(),
        Value::Float(_) => "a number".into(),
        Value::Array(_) => "a list".into(),
        Value::String(_) => "a string".into(),
        other => format!("a {}", other.type_str()),
    }
}

/// The value of the setting `name`. If the setting is a list of address ranges, single addresses become ranges of one
/// address.
/// # Errors
/// The setting's name, the invalid entry, and the expected format.
pub fn checked(name: &str, value: &Value) -> Result<Value, String> {
    let (true, Value::Array(entries)) = (RANGES.contains(&name), value) else { return Ok(value.clone()) };
    let range = |entry: &Value| {
        let text = entry.as_str().unwrap_or_default();
        let range = text.parse::<IpNet>().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
        range.map(|range| Value::from(range.to_string())).ok_or_else(|| {
            format!(
                "{name}: {entry} is not a range of addresses; write one such as 10.1.0.0/16, or several: in the file \
                 [\"10.1.0.0/16\", \"fd00::/8\"], in an environment variable or a flag 10.1.0.0/16,fd00::/8"
            )
        })
    };
    Ok(Value::Array(entries.iter().map(range).collect::<Result<_, _>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e14_a_list_is_written_with_commas_or_as_in_the_file() {
        let read = |text: &str| checked("egress.allow", &read(&Value::Array(vec![]), text).unwrap());
        let ranges = |texts: &[&str]| Ok(Value::Array(texts.iter().map(|text| Value::from(*text)).collect()));
        assert_eq!(read("10.1.0.0/16"), ranges(&["10.1.0.0/16"]));
        assert_eq!(read(" 10.1.0.0/16, fd00::/8 ,"), ranges(&["10.1.0.0/16", "fd00::/8"]));
        assert_eq!(read("[\"10.1.0.0/16\", \"fd00::/8\"]"), ranges(&["10.1.0.0/16", "fd00::/8"]));
        assert_eq!(read("10.1.2.3,::1"), ranges(&["10.1.2.3/32", "::1/128"]));
        assert_eq!(read(""), ranges(&[]));
        for bad in ["everything", "10.1.0.0/33", "10.1.0.0/16 10.2.0.0/16", "10.1.0.0/16;10.2.0.0/16", "[1]"] {
            let problem = read(bad).unwrap_err();
            assert!(problem.starts_with("egress.allow: ") && problem.contains("10.1.0.0/16,fd00::/8"), "{problem}");
        }
    }
}
