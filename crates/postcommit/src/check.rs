//! The rules for the fields of a notification. Each error says what is wrong and what is allowed. The server uses these
//! functions, too; they are not part of the crate's API.

use serde_json::Value;

use crate::limits;

/// Refuses CR, LF and NUL, because they would end a header line or a C string on the way to the provider.
pub fn one_line(text: &str) -> Result<(), String> {
    match text.chars().find(|c| matches!(c, '\r' | '\n' | '\0')) {
        Some(c) => Err(format!("holds {c:?}; line breaks and NUL are not allowed")),
        None => Ok(()),
    }
}

/// Refuses NUL. PostgreSQL cannot store NUL in text or JSON, and both databases must refuse the same values.
pub fn no_nul(text: &str) -> Result<(), String> {
    if text.contains('\0') { Err("holds NUL (\\u0000), which is not allowed".into()) } else { Ok(()) }
}

pub fn chars(text: &str, min: usize, max: usize) -> Result<(), String> {
    let count = text.chars().count();
    if count < min || count > max {
        return Err(format!("has {count} characters; {min} to {max} are allowed"));
    }
    one_line(text)
}

/// Checks a user's id. The id is part of URL paths, so it must not contain a character or a path segment that a server
/// or proxy would refuse or resolve, in any encoding.
pub fn user_id(id: &str) -> Result<(), String> {
    chars(id, 1, limits::NAME_CHARS)?;
    if let Some(c) = id.chars().find(|c| c.is_control()) {
        return Err(format!("holds {c:?}; control characters are not allowed"));
    }
    match id.split(['/', '\\']).find(|part| matches!(*part, "." | "..")) {
        Some(step) => Err(format!(
            "is or contains the path segment {step:?}, which is not allowed, because the id is part of URL paths"
        )),
        None => Ok(()),
    }
}

pub fn bytes(text: &str, max: usize) -> Result<(), String> {
    if text.len() > max {
        return Err(format!("has {} bytes; at most {max} are allowed", text.len()));
    }
    no_nul(text)
}

/// Checks the name of a tenant, channel or provider. Such names appear in paths, labels and logs, so only letters,
/// digits, `_`, `-` and `.` are allowed.
pub fn short_name(name: &str) -> Result<(), String> {
    chars(name, 1, limits::SHORT_NAME_CHARS)?;
    // HTTP clients remove the segments "." and ".." from the path of a URL.
    if matches!(name, "." | "..") {
        return Err(format!("is {name:?}; any other name of letters, digits, '_', '-' and '.' is allowed"));
    }
    match name.chars().find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'))) {
        Some(c) => Err(format!("holds {c:?}; letters, digits, '_', '-' and '.' are allowed")),
        None => Ok(()),
    }
}

/// Checks the size and depth of JSON, and that it contains no NUL. Returns the JSON text, because every caller needs
/// it.
pub fn json(value: &Value, max_bytes: usize) -> Result<String, String> {
    if depth(value) > limits::JSON_DEPTH {
        return Err(format!("is nested deeper than {} levels", limits::JSON_DEPTH));
    }
    if holds_nul(value) {
        return no_nul("\0").map(|()| String::new());
    }
    let text = value.to_string();
    let size = text.len() + separators(value);
    if size > max_bytes {
        return Err(format!("has {size} bytes; at most {max_bytes} are allowed"));
    }
    Ok(text)
}

/// The number of bytes that PostgreSQL adds to JSON: it writes a space after every comma and colon, and its limit
/// counts them.
fn separators(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.len().saturating_sub(1) + items.iter().map(separators).sum::<usize>(),
        Value::Object(map) => (2 * map.len()).saturating_sub(1) + map.values().map(separators).sum::<usize>(),
        _ => 0,
    }
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(map) => 1 + map.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

fn holds_nul(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains('\0'),
        Value::Array(items) => items.iter().any(holds_nul),
        Value::Object(map) => map.iter().any(|(name, value)| name.contains('\0') || holds_nul(value)),
        _ => false,
    }
}

/// Checks a mail address as common mail servers do: no comments, no quoted local part, no address literal.
pub fn email(address: &str) -> Result<(), String> {
    let (local, domain) = address.rsplit_once('@').ok_or("is not a mail address: it has no '@'")?;
    let local_ok = (1..=64).contains(&local.len())
        && !local.contains(['@', '"', '(', ')', '<', '>', ',', ';', ':', '\\', '[', ']', ' ']);
    let dots_ok = !local.starts_with('.') && !local.ends_with('.') && !local.contains("..");
    if !local_ok || !dots_ok || address.len() > 320 || address.chars().any(char::is_control) {
        return Err("is not a mail address: the part before '@' must be 1 to 64 plain characters".into());
    }
    domain_name(domain).map_err(|problem| format!("is not a mail address: {problem}"))
}

fn domain_name(domain: &str) -> Result<(), String> {
    let label_ok = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.chars().all(|c| c.is_alphanumeric() || c == '-')
    };
    if domain.len() <= 253 && domain.contains('.') && domain.split('.').all(label_ok) {
        return Ok(());
    }
    Err("the part after '@' must be a domain such as example.com".into())
}

/// Checks a phone number in E.164. The number is used exactly as it was checked.
pub fn phone(number: &str) -> Result<(), String> {
    let digits = number.strip_prefix('+').unwrap_or("");
    if (7..=15).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit()) && !digits.starts_with('0') {
        return Ok(());
    }
    Err("is not a phone number in E.164: '+', then 7 to 15 digits, the first not 0".into())
}

pub fn web_url(url: &str) -> Result<(), String> {
    scheme_in(url, &["http", "https"])
}

/// Checks the token of an app on a device. Tokens of push services have no spaces.
pub fn push(token: &str) -> Result<(), String> {
    match token.chars().any(char::is_whitespace) {
        true => Err("is not a token of a device: it holds a space".into()),
        false => Ok(()),
    }
}

/// Checks the subscription of a browser. Spaces are refused, so that a subscription has one form.
pub fn web_push(subscription: &str) -> Result<(), String> {
    const SHAPE: &str = concat!(
        "is not a subscription of a browser: write it as JSON without spaces, ",
        r#"{"endpoint":"https://…","keys":{"p256dh":"…","auth":"…"}}"#
    );
    let is_key = |value: &Value, chars: usize| {
        let key = value.as_str().unwrap_or_default().trim_end_matches('=');
        key.len() == chars && key.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
    };
    let json: Value = serde_json::from_str(subscription).map_err(|_| SHAPE)?;
    let has_endpoint = json["endpoint"].as_str().is_some_and(|url| web_url(url).is_ok());
    // 65 and 16 bytes in base64.
    let has_keys = is_key(&json["keys"]["p256dh"], 87) && is_key(&json["keys"]["auth"], 22);
    if has_endpoint && has_keys && !subscription.chars().any(char::is_whitespace) { Ok(()) } else { Err(SHAPE.into()) }
}

/// Checks the link of a button. `javascript:` and `data:` are never allowed.
pub fn action_url(url: &str) -> Result<(), String> {
    bytes(url, limits::ACTION_URL_BYTES)?;
    one_line(url)?;
    scheme_in(url, &["http", "https", "mailto", "tel"])
}

fn scheme_in(url: &str, schemes: &[&str]) -> Result<(), String> {
    let (scheme, rest) = url.split_once(':').unwrap_or(("", ""));
    let known = schemes.iter().any(|s| scheme.eq_ignore_ascii_case(s));
    let authority = rest.strip_prefix("//").map(|rest| rest.split(['/', '?', '#']).next().unwrap_or(""));
    let shaped = match authority {
        Some(host) => !host.is_empty() && !host.contains('@'),
        None => !scheme.to_ascii_lowercase().starts_with("http") && !rest.is_empty(),
    };
    if known && shaped && !url.chars().any(|c| c.is_control() || c.is_whitespace() || c == '\\') {
        return Ok(());
    }
    Err(format!("must be an absolute URL with scheme {}, a host, no user name and no spaces", schemes.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_ok(rule: fn(&str) -> Result<(), String>, texts: &[&str]) {
        for text in texts {
            assert_eq!(rule(text), Ok(()), "{text:?}");
        }
    }

    fn all_refused(rule: fn(&str) -> Result<(), String>, texts: &[&str]) {
        for text in texts {
            assert!(rule(text).is_err(), "{text:?} was accepted");
        }
    }

    #[test]
    fn mail_addresses() {
        all_ok(email, &["a@example.com", "first.last+tag@sub.example.co", "ü@exämple.org"]);
        all_refused(
            email,
            &[
                "",
                "a",
                "a@b",
                "@example.com",
                "a@",
                "a@@example.com",
                "a b@example.com",
                "\"a\"@example.com",
                "a@[127.0.0.1]",
                ".a@example.com",
                "a..b@example.com",
                "a@-example.com",
                "a\u{7f}@example.com",
                "a(c)@example.com",
            ],
        );
    }

    #[test]
    fn c7_phone_numbers_are_e164() {
        all_ok(phone, &["+919876543210", "+14155550100", "+4930123456"]);
        all_refused(
            phone,
            &[
                "",
                "919876543210",
                "+0123456789",
                "+12345",
                "+1234567890123456",
                "+91 98765",
                "+91-98765-43210",
                "+９１９８７６５",
            ],
        );
    }

    #[test]
    fn subscriptions_of_browsers_are_json_in_one_form() {
        let (p256dh, auth) = ("B".repeat(87), "a".repeat(22));
        let whole =
            format!(r#"{{"endpoint":"https://push.example/x","keys":{{"p256dh":"{p256dh}","auth":"{auth}"}}}}"#);
        let more = whole.replacen('{', r#"{"expirationTime":null,"#, 1);
        all_ok(web_push, &[&whole, &more, &whole.replace(&auth, &format!("{auth}=="))]);
        let others = [
            whole.replace(':', ": "),
            whole.replace("https://", "ftp://"),
            whole.replace("https://push.example/x", "/x"),
            whole.replace(&p256dh, "B"),
            whole.replace(&auth, &"+".repeat(22)),
            whole.replace("auth", "oath"),
            format!("[{whole}]"),
        ];
        all_refused(web_push, &["", "{}", "[]", "https://push.example/x"]);
        all_refused(web_push, &others.each_ref().map(String::as_str));
        all_ok(push, &["cXb7:APA91bE", "/topics/news"]);
        all_refused(push, &["'a' in topics", "a\u{a0}b"]);
    }

    #[test]
    fn only_safe_action_urls_are_accepted() {
        all_ok(
            action_url,
            &["https://example.com/a?b=c", "http://localhost:8080", "mailto:a@example.com", "tel:+14155550100"],
        );
        all_refused(
            action_url,
            &[
                "javascript:alert(1)",
                "data:text/html,x",
                "//example.com",
                "/path",
                "https:///x",
                "https://u:p@example.com",
                "https://a b",
                "https://example.com/a\u{3000}b",
                "https://example.com/\r\nx",
                "https:\\\\example.com",
                "http:example.com",
            ],
        );
    }

    #[test]
    fn json_depth_and_nul() {
        let deep = |levels: usize| {
            serde_json::from_str::<Value>(&format!("{}{}", "[".repeat(levels), "]".repeat(levels))).unwrap()
        };
        assert!(json(&deep(32), 1000).is_ok());
        assert!(json(&deep(33), 1000).unwrap_err().contains("32"));
        assert!(json(&serde_json::json!({"a": "b\0"}), 1000).unwrap_err().contains("NUL"));
        assert!(json(&serde_json::json!("abc"), 4).unwrap_err().contains('4'));
    }
}
