//! The host of a receiver. Lanes use it to tell receivers apart.

use url::Url;

/// The maximum number of characters of a host with its port. A DNS name alone has at most 253 characters.
const HOST_CHARS: usize = 300;

/// The host name and port of a URL in lower case, such as `example.com:443`. `None` if the URL has no host, its port is
/// unknown, or both together are too long.
pub(super) fn of_url(url: &Url) -> Option<String> {
    // `example.com.` and `example.com` are the same host.
    let (host, port) = (url.host_str()?.trim_end_matches('.'), url.port_or_known_default()?);
    Some(format!("{}:{port}", host.to_ascii_lowercase())).filter(|host| host.chars().count() <= HOST_CHARS)
}

/// Parses a host from an operator: a name or an IP address, with an optional port. The default port is 443. A full URL
/// is accepted, too.
pub fn host_of(text: &str) -> Result<String, String> {
    let length = text.chars().count();
    if length > HOST_CHARS {
        return Err(format!("host: has {length} characters; 1 to {HOST_CHARS} are allowed"));
    }
    let whole = if text.contains("://") { text.to_owned() } else { format!("https://{text}") };
    let plain =
        |url: &Url| url.path() == "/" && url.query().is_none() && url.fragment().is_none() && url.username().is_empty();
    let host = Url::parse(&whole).ok().filter(|url| text.contains("://") || plain(url)).as_ref().and_then(of_url);
    host.ok_or_else(|| {
        format!(
            "host: {text:?} is not a host; write a name or an IP address, with the port if it is not 443, e.g. \
             example.com:8443"
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
        for text in ["", "a b", "example.com/hook", "example.com:70000", &"a".repeat(400), &"0".repeat(301)] {
            assert!(host_of(text).is_err(), "{text}");
        }
    }
}
