//! Logs on stderr: text on a terminal, JSON elsewhere. A closed stderr does not stop the process.

pub mod otlp;

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

use serde::Deserialize;

use tracing_subscriber::EnvFilter;
use url::Url;

use crate::settings::LogSettings;

/// `[telemetry]`.
#[derive(Debug, Clone, Deserialize)]
pub struct TelemetrySettings {
    /// The collector; empty: the variable OTEL_EXPORTER_OTLP_ENDPOINT, or none.
    pub otlp_endpoint: String,
    /// The fraction of traces begun here that is recorded: 0 to 1.
    pub sample_ratio: f64,
}

impl TelemetrySettings {
    pub fn validate(&self) -> Result<(), String> {
        if !(0.0..=1.0).contains(&self.sample_ratio) {
            return Err(format!("telemetry.sample_ratio: is {}; 0 to 1 are allowed", self.sample_ratio));
        }
        self.traces_url().map(drop)
    }

    /// The URL for traces: `/v1/traces` below the endpoint, by the OpenTelemetry convention.
    fn traces_url(&self) -> Result<Option<Url>, String> {
        let given = Some(self.otlp_endpoint.clone()).filter(|text| !text.is_empty());
        let Some(text) =
            given.or_else(|| std::env::var("OTEL_EXPORTER_OTLP_ENDPOINT").ok()).filter(|text| !text.is_empty())
        else {
            return Ok(None);
        };
        let full =
            if text.ends_with("/v1/traces") { text } else { format!("{}/v1/traces", text.trim_end_matches('/')) };
        match Url::parse(&full) {
            Ok(url) if matches!(url.scheme(), "http" | "https") && url.host().is_some() => Ok(Some(url)),
            _ => Err("telemetry.otlp_endpoint: is not an http or https URL such as http://127.0.0.1:4318".into()),
        }
    }
}

/// stderr without errors: a closed reader or a full disk loses lines, not the process.
struct Quiet;

impl Write for Quiet {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = io::stderr().write_all(&without_breaks(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let _ = io::stderr().flush();
        Ok(())
    }
}

/// A log line without other line breaks: U+2028, U+2029 and U+0080 to U+009F, which some readers take for line breaks
/// or commands, are written as `\u2028`. JSON reads that as the same character.
fn without_breaks(line: &[u8]) -> Cow<'_, [u8]> {
    let is_one = |c: char| matches!(c, '\u{80}'..='\u{9f}' | '\u{2028}' | '\u{2029}');
    match std::str::from_utf8(line) {
        Ok(text) if text.contains(is_one) => {
            let write = |c: char| if is_one(c) { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() };
            Cow::Owned(text.chars().map(write).collect::<String>().into_bytes())
        }
        _ => Cow::Borrowed(line),
    }
}

/// Prints a line for people to stderr, and ignores errors.
#[macro_export]
macro_rules! say {
    ($($what:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), "{}", $crate::output::harmless(&format!($($what)*)));
    }};
}
pub use say;

/// Starts logging.
pub fn start(settings: &LogSettings) {
    let filter = EnvFilter::try_new(&settings.level).unwrap_or_else(|_| EnvFilter::new("info"));
    let terminal = io::stderr().is_terminal();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| Quiet)
        .with_target(false)
        .log_internal_errors(false);
    let builder = builder.with_ansi(terminal && std::env::var_os("NO_COLOR").is_none());
    let json = settings.format == "json" || (settings.format == "auto" && !terminal);
    let started = if json { builder.json().try_init() } else { builder.compact().try_init() };
    if let Err(problem) = started {
        say!("postcommit: logging could not start: {problem}");
    }
    // A panic is a log line, too; the default hook would panic again on a closed stderr.
    std::panic::set_hook(Box::new(|panic| tracing::error!(%panic, "a task panicked")));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_log_is_one() {
        let line = "{\"problem\":\"a\u{2028}b\u{85}c é\"}\n";
        assert_eq!(without_breaks(line.as_bytes()).as_ref(), "{\"problem\":\"a\\u2028b\\u0085c é\"}\n".as_bytes());
        assert!(matches!(without_breaks("plain é\n".as_bytes()), Cow::Borrowed(_)));
        assert_eq!(without_breaks(&[0xff, 0xe2]).as_ref(), [0xff, 0xe2], "half a character is somebody else's");
    }
}
