//! Logs on stderr: text on a terminal, JSON otherwise. A closed stderr does not stop the process.

pub mod otlp;

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use serde::Deserialize;
use tracing_subscriber::EnvFilter;
use url::Url;

use crate::settings::LogSettings;

/// The `[telemetry]` section.
#[derive(Debug, Clone, Deserialize)]
pub struct TelemetrySettings {
    /// The URL of the collector. If it is empty, the variable OTEL_EXPORTER_OTLP_ENDPOINT applies. Without either, no
    /// traces are sent.
    pub otlp_endpoint: String,
    /// Headers for the collector: `name=value`, separated by commas. If it is empty, the variable
    /// OTEL_EXPORTER_OTLP_HEADERS applies.
    pub otlp_headers: String,
    /// The fraction of traces that is recorded, 0 to 1. It applies to traces that begin here.
    pub sample_ratio: f64,
}

impl TelemetrySettings {
    pub fn validate(&self) -> Result<(), String> {
        if !(0.0..=1.0).contains(&self.sample_ratio) {
            return Err(format!("telemetry.sample_ratio: is {}; 0 to 1 are allowed", self.sample_ratio));
        }
        self.traces_url()?;
        self.headers().map(drop)
    }

    /// The headers for the collector in the format of OpenTelemetry: `name=value`, separated by commas, with
    /// percent-encoded values. An error gives the position of a bad entry and not its text, which may be a secret.
    fn headers(&self) -> Result<HeaderMap, String> {
        let (name, text) = match self.otlp_headers.as_str() {
            "" => ("OTEL_EXPORTER_OTLP_HEADERS", std::env::var("OTEL_EXPORTER_OTLP_HEADERS").unwrap_or_default()),
            given => ("telemetry.otlp_headers", given.to_owned()),
        };
        let mut headers = HeaderMap::new();
        for (place, entry) in text.split(',').enumerate().filter(|(_, entry)| !entry.trim().is_empty()) {
            let header = header(entry).ok_or_else(|| {
                format!(
                    "{name}: entry {} is not name=value; write one such as api-key=secret, or several with commas, and a \
                     comma or a space of a value as %2C or %20",
                    place + 1
                )
            })?;
            headers.append(header.0, header.1);
        }
        Ok(headers)
    }

    /// The URL for traces: the path `/v1/traces` below the endpoint, as OpenTelemetry specifies.
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

fn header(entry: &str) -> Option<(HeaderName, HeaderValue)> {
    let (name, value) = entry.split_once('=')?;
    let value = percent_encoding::percent_decode_str(value.trim()).decode_utf8().ok()?;
    Some((name.trim().parse().ok()?, HeaderValue::from_str(&value).ok()?))
}

/// Writes to stderr and ignores errors. A closed reader or a full disk loses lines, but does not end the process.
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

/// Escapes U+2028, U+2029 and U+0080 to U+009F in a log line, in the form `\u2028`. Some readers treat them as line
/// breaks or commands. A JSON parser reads the escaped form as the same character.
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

/// Prints a line to stderr for the user, and ignores errors.
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
    // A panic is logged, too. The default hook would panic again if stderr is closed.
    std::panic::set_hook(Box::new(|panic| tracing::error!(%panic, "a task panicked")));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_for_the_collector_are_written_as_opentelemetry_asks() {
        let read = |text: &str| {
            let settings =
                TelemetrySettings { otlp_endpoint: String::new(), otlp_headers: text.into(), sample_ratio: 1.0 };
            settings.headers().map(|read| read.iter().map(|(n, v)| format!("{n}: {}", v.to_str().unwrap())).collect())
        };
        let good: [(&str, &[&str]); 4] = [
            ("api-key=secret", &["api-key: secret"]),
            (" API-Key = se%20cret , x-tenant=a%2Cb,", &["api-key: se cret", "x-tenant: a,b"]),
            ("authorization=Basic dTpw=", &["authorization: Basic dTpw="]),
            ("empty=", &["empty: "]),
        ];
        for (text, expected) in good {
            assert_eq!(read(text), Ok(expected.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>()), "{text}");
        }
        for bad in ["hush", "a=b,hush", "ha ush=x", "a=%0Ahush", "=hush"] {
            let problem = read(bad).unwrap_err();
            assert!(problem.contains("is not name=value") && !problem.contains("hush"), "{problem}");
        }
    }

    #[test]
    fn a_line_of_the_log_is_one() {
        let line = "{\"problem\":\"a\u{2028}b\u{85}c é\"}\n";
        assert_eq!(without_breaks(line.as_bytes()).as_ref(), "{\"problem\":\"a\\u2028b\\u0085c é\"}\n".as_bytes());
        assert!(matches!(without_breaks("plain é\n".as_bytes()), Cow::Borrowed(_)));
        assert_eq!(
            without_breaks(&[0xff, 0xe2]).as_ref(),
            [0xff, 0xe2],
            "bytes that are not UTF-8 are written unchanged"
        );
    }
}
