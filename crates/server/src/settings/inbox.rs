//! The settings of inboxes in browsers.

use std::ops::RangeInclusive;

use serde::Deserialize;

/// The `[inbox]` section.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InboxSettings {
    /// The origins whose pages may call the inbox routes from a browser, or `*` for all.
    pub origins: Vec<String>,
    /// The interval at which a stream sends a heartbeat and checks that its user may still read the inbox.
    pub heartbeat_ms: u64,
}

/// The allowed range of the heartbeat. Proxies close an idle connection after a minute, and the script `inbox.js` in
/// browsers does so after 45 seconds. A user who loses access can read for at most one more heartbeat.
const HEARTBEAT_MS: RangeInclusive<u64> = 100..=30_000;

impl InboxSettings {
    /// Checks the format of each origin and the range of the heartbeat.
    /// # Errors
    /// The setting's name and the allowed values.
    pub fn validate(&self) -> Result<(), String> {
        if !HEARTBEAT_MS.contains(&self.heartbeat_ms) {
            let (low, high) = (HEARTBEAT_MS.start(), HEARTBEAT_MS.end());
            return Err(format!("inbox.heartbeat_ms: is {}; {low} to {high} are allowed", self.heartbeat_ms));
        }
        match self.origins.iter().find(|origin| *origin != "*" && !is_origin(origin)) {
            Some(origin) => Err(format!(
                "inbox.origins: {origin:?} is not an origin; write one such as https://app.example.com, without a \
                 path, or * for all"
            )),
            None => Ok(()),
        }
    }
}

/// Whether the text is an origin as browsers send it: scheme, host and port.
fn is_origin(text: &str) -> bool {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '-' | ':' | '[' | ']');
    rest.is_some_and(|host| !host.is_empty() && host.chars().all(plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e14_origins_are_held_to_their_form() {
        let checked = |origin: &str| InboxSettings { origins: vec![origin.into()], heartbeat_ms: 15_000 }.validate();
        for good in ["*", "https://app.example.com", "http://localhost:3000", "http://[::1]:8080"] {
            assert_eq!(checked(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            "app.example.com",
            "https://",
            "https://app.example.com/",
            "https://APP.example.com",
            "https://*.example.com",
            "null",
        ] {
            assert!(checked(bad).unwrap_err().starts_with("inbox.origins: "), "{bad}");
        }
    }
}
