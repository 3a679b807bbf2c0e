//! A receiver's host, as lanes tell receivers apart.

use url::Url;

/// Characters of a host and its port; a name has at most 253.
const HOST_CHARS: usize = 300;

/// Name and port of a URL, in lower case: `example.com:443`. None when there is no host, or one that no resolver takes.
pub(super) fn of_url(url: &Url) -> Option<String> {
    // A dot at its end means that the name is complete; it is the same name.
    let (host, port) = (url.host_str()?.trim_end_matches('.'), url.port_or_known_default()?);
    Some(format!("{}:{port}", host.to_ascii_lowercase())).filter(|host| host.chars().count() <= HOST_CHARS)
}

/// A host as people write it: a name or an address, with or without a port. Without one it is 443.
///
/// # Errors
/// With what is allowed.
pub fn host_of(text: &str) -> Result<String, String> {
    let whole = if text.contains("://") { text.to_owned() } else { format!("https://{text}") };
    let plain =
        |url: &Url| url.path() == "/" && url.query().is_none() && url.fragment().is_none() && url.username().is_empty();
    let host = Url::parse(&whole).ok().filter(|url| text.contains("://") || plain(url)).as_ref().and_then(of_url);
    host.ok_or_else(|| {
        format!(
            "host: {text:?} is refused; write a name or an address, with its port unless that is 443: example.com:8443"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_its_name_and_port_in_lower_case() {
        for (text, host) in [
            ("Example.COM", "example.com:443"),
            ("example.com.", "example.com:443"),
            ("example.com:8443", "example.com:8443"),
            ("http://example.com/hook?token=1", "example.com:80"),
            ("127.0.0.1:80", "127.0.0.1:80"),
            ("[2001:DB8::1]:8080", "[2001:db8::1]:8080"),
        ] {
            assert_eq!(host_of(text).as_deref(), Ok(host), "{text}");
        }
        for text in ["", "a b", "example.com/hook", "example.com:70000", &"a".repeat(400)] {
            assert!(host_of(text).is_err(), "{text}");
        }
    }
}
