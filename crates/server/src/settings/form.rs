//! The text format of setting values. It follows from the type of the default, or for address ranges and the public URL
//! from the setting's name.

use std::net::IpAddr;

use ipnet::IpNet;
use toml::{Table, Value};
use url::Url;

/// The name of the setting with the URL that links begin with.
const PUBLIC_URL: &str = "api.public_url";
/// The names of the settings that are lists of address ranges.
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
/// address. The public URL loses the slash at its end.
/// # Errors
/// The setting's name, the invalid entry, and the expected format.
pub fn checked(name: &str, value: &Value) -> Result<Value, String> {
    if let (PUBLIC_URL, Some(text)) = (name, value.as_str()) {
        return public_url(text).map(Value::from);
    }
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

/// Returns the URL that links begin with, in its canonical spelling. An empty text means that no URL is set.
fn public_url(text: &str) -> Result<String, String> {
    let refused = |problem: String| {
        Err(format!(
            "{PUBLIC_URL}: {problem}; allowed are an http or https URL such as https://notify.example.com, if need be \
             with a port and a path, and an empty text"
        ))
    };
    if text.is_empty() {
        return Ok(String::new());
    }
    // The URL parser would accept more: it drops spaces and adds slashes.
    let lower = text.to_ascii_lowercase();
    let rest = lower.strip_prefix("https://").or_else(|| lower.strip_prefix("http://"));
    let is_plain = |c: char| !c.is_whitespace() && !c.is_control() && c != '\\';
    let written = rest.is_some_and(|rest| !rest.starts_with('/') && rest.chars().all(is_plain));
    let Some(url) = Url::parse(text).ok().filter(|url| written && url.has_host()) else {
        return refused(format!("is {text:?}, which is not such a URL"));
    };
    // These parts may hold secrets, so the value is not repeated.
    for (is_given, part) in [
        (!url.username().is_empty() || url.password().is_some(), "a user name or a password"),
        (url.query().is_some(), "a query"),
        (url.fragment().is_some(), "a fragment"),
    ] {
        if is_given {
            return refused(format!("has {part}"));
        }
    }
    Ok(url.as_str().trim_end_matches('/').to_owned())
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

    #[test]
    fn e14_the_public_url_is_a_web_address_that_links_can_begin_with() {
        for (text, usual) in [
            ("", ""),
            ("https://notify.example.com", "https://notify.example.com"),
            ("https://Notify.Example.com:443/", "https://notify.example.com"),
            ("HTTP://10.0.0.7:7410", "http://10.0.0.7:7410"),
            ("http://[::1]:7410/", "http://[::1]:7410"),
            ("https://example.com/notify//", "https://example.com/notify"),
            ("https://münchen.example/", "https://xn--mnchen-3ya.example"),
        ] {
            assert_eq!(public_url(text).as_deref(), Ok(usual), "{text}");
        }
        for (text, said) in [
            ("ftp://example.com", "is \"ftp://example.com\", which is not such a URL"),
            ("notify.example.com", "which is not such a URL"),
            ("https:notify.example.com", "which is not such a URL"),
            ("https://", "which is not such a URL"),
            ("https:///notify", "which is not such a URL"),
            ("https://not ify.example.com", "which is not such a URL"),
            (" https://notify.example.com", "which is not such a URL"),
            ("https://notify.example.com:99999", "which is not such a URL"),
            ("https:\\\\notify.example.com", "which is not such a URL"),
            ("https://ada:hush@notify.example.com", "has a user name or a password"),
            ("https://ada@notify.example.com", "has a user name or a password"),
            ("https://notify.example.com/?token=hush", "has a query"),
            ("https://notify.example.com?", "has a query"),
            ("https://notify.example.com/#hush", "has a fragment"),
        ] {
            let problem = public_url(text).unwrap_err();
            assert!(problem.starts_with("api.public_url: ") && problem.contains(said), "{problem}");
            assert!(
                problem.contains("https://notify.example.com, if need be") && !problem.contains("hush"),
                "{problem}"
            );
        }
    }
}
