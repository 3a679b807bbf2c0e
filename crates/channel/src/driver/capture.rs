//! The `capture` driver, for development and tests. It records messages instead of sending them. It can simulate
//! failures.

use std::collections::BTreeMap;
use std::fs::{Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;

use super::{Destination, Driver, KeyWindow, Kind, LocalSetting, Message, Occasion, Parts, ReadyMade, Sending};
use crate::model::{Evidence, Guarantee, Outcome, Report};
use crate::template::Payload;

/// The way in which a send fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The message is certainly not sent, and the delivery is tried again.
    Transient,
    /// The message is rejected permanently.
    Permanent,
    /// The message is sent after a delay.
    Slow,
    /// The send never ends.
    Hang,
    /// The message is recorded, but the outcome is reported as unclear.
    Unclear,
    /// The driver panics.
    Panic,
}

const MODES: [(&str, Mode); 6] = [
    ("transient", Mode::Transient),
    ("permanent", Mode::Permanent),
    ("slow", Mode::Slow),
    ("hang", Mode::Hang),
    ("unclear", Mode::Unclear),
    ("panic", Mode::Panic),
];

/// The failures to simulate: a list of `mode=match` entries, separated by commas.
/// A match is an event type or an idempotency key. The mode may be left out and is then `transient`. `mode*2=match`
/// fails only the first two attempts. Example: `transient*2=booking.confirmed,permanent=booking:7:cancelled:1`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FailOn(Vec<Rule>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    mode: Mode,
    first: Option<u16>,
    matching: String,
}

impl FailOn {
    /// Parses a list of failure rules.
    pub fn parse(text: &str) -> Result<Self, String> {
        let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
        entries.map(parse_rule).collect::<Result<_, _>>().map(Self)
    }

    fn mode(&self, message: &Message<'_>) -> Option<Mode> {
        let matches = |rule: &&Rule| {
            rule.matching == message.raw_event.event_type || rule.matching == message.raw_event.idempotency_key
        };
        let due = |rule: &&Rule| rule.first.is_none_or(|first| message.attempt <= first.into());
        self.0.iter().filter(matches).find(due).map(|rule| rule.mode)
    }
}

fn parse_rule(entry: &str) -> Result<Rule, String> {
    let Some((mode, matching)) = entry.split_once('=') else {
        return Ok(Rule { mode: Mode::Transient, first: None, matching: entry.to_owned() });
    };
    let (name, first) = match mode.split_once('*') {
        Some((name, count)) => {
            let first = count.parse().ok().filter(|first| *first > 0);
            (
                name,
                Some(first.ok_or_else(|| {
                    format!("capture.fail_on: {entry:?}: {count:?} is not a number of attempts; 1 to 65535 are allowed")
                })?),
            )
        }
        None => (mode, None),
    };
    let found = MODES.iter().find(|(known, _)| *known == name);
    let (_, mode) = found.ok_or_else(|| {
        format!("capture.fail_on: {entry:?}: mode {name:?} is not known; allowed are transient, permanent, slow, hang, unclear, panic")
    })?;
    Ok(Rule { mode: *mode, first, matching: matching.to_owned() })
}

/// The name of the mail channel.
const EMAIL: &str = "email";

const KEY_WINDOW: KeyWindow = KeyWindow::day(1..=315_360_000);

pub(super) fn kind() -> Kind {
    Kind {
        channel: "*".into(),
        destination: Destination::Record,
        // Only an operator on the server's machine may set the journal. Otherwise any caller with an API key could make
        // the server write to any file.
        local_settings: vec![LocalSetting {
            name: "journal".into(),
            reason: "is the path of a file on the server".into(),
        }],
        ready_made: Some(ReadyMade { occasion: Occasion::NewDatabase, settings: json!({}), concurrency: 16 }),
        ..Kind::new("capture", Guarantee::Idempotent, KEY_WINDOW, build)
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Settings {
    /// The failures to simulate, in the format of `POSTCOMMIT_CAPTURE_FAIL_ON`.
    fail_on: String,
    /// The duration of a `slow` send in milliseconds, at most the longest time limit of a provider's send.
    slow_ms: u64,
    /// A regular file. Every send appends one line of JSON to it.
    journal: Option<PathBuf>,
    /// Whether to record messages. If false, a send does nothing, which is useful for benchmarks.
    record: bool,
    /// The time for which the simulated receiver remembers a key: one second to ten years.
    key_window_s: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { fail_on: String::new(), slow_ms: 2000, journal: None, record: true, key_window_s: KEY_WINDOW.default_s }
    }
}

struct Capture {
    settings: Settings,
    rules: [FailOn; 2],
}

fn build(parts: &Parts<'_>) -> Result<Box<dyn Driver>, String> {
    let settings: Settings = super::settings(parts.settings)?;
    if settings.slow_ms > 300_000 {
        return Err(format!("settings.slow_ms: is {}; 0 to 300000 are allowed", settings.slow_ms));
    }
    KEY_WINDOW.check(settings.key_window_s)?;
    let rules = [FailOn::parse(&settings.fail_on)?, parts.capture_fail_on.clone()];
    Ok(Box::new(Capture { settings, rules }))
}

impl Driver for Capture {
    fn send<'a>(&'a self, message: Message<'a>) -> Sending<'a> {
        Box::pin(async move {
            match self.rules.iter().find_map(|rules| rules.mode(&message)) {
                None => self.record(&message).await,
                Some(Mode::Transient) => {
                    Report::from(Outcome::deferred("capture_transient")).because("simulated temporary failure")
                }
                Some(Mode::Permanent) => {
                    Report::from(Outcome::refused("capture_permanent")).because("simulated permanent failure")
                }
                Some(Mode::Unclear) => {
                    self.record(&message).await;
                    Report::from(Outcome::unclear("capture_unclear")).because("simulated unknown outcome")
                }
                Some(Mode::Slow) => {
                    tokio::time::sleep(Duration::from_millis(self.settings.slow_ms)).await;
                    self.record(&message).await
                }
                Some(Mode::Hang) => std::future::pending().await,
                Some(Mode::Panic) => panic!("simulated panic of the capture driver"),
            }
        })
    }
}

/// The message that would have been sent.
#[derive(Serialize)]
struct Sent<'a> {
    key: String,
    channel: &'a str,
    to: &'a str,
    event_type: &'a str,
    entity: Option<&'a str>,
    title: Option<&'a str>,
    body: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    html: Option<&'a str>,
    action_url: Option<&'a str>,
    payload: &'a Payload,
    data: Option<&'a RawValue>,
    /// The headers of a mail. Empty on other channels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    headers: BTreeMap<&'static str, String>,
}

impl Capture {
    async fn record(&self, message: &Message<'_>) -> Report {
        if !self.settings.record {
            return Report { captured: true, ..Report::from(Outcome::Sent) };
        }
        let (content, event) = (&message.content, message.raw_event);
        let sent = Sent {
            key: message.key.provider_key(),
            channel: message.channel,
            to: message.target,
            event_type: event.event_type,
            entity: event.entity,
            title: content.subject.as_deref(),
            body: content.text.as_deref(),
            html: content.html.as_deref(),
            action_url: content.action_url.as_deref(),
            payload: event.payload,
            data: content.data.as_deref(),
            headers: if message.channel == EMAIL {
                content.mail_headers().into_iter().collect()
            } else {
                BTreeMap::new()
            },
        };
        let sent = serde_json::to_string(&sent).unwrap_or_default();
        if let Some(path) = self.settings.journal.clone() {
            let line = format!("{sent}\n");
            // A disk may be slow. Write on a blocking thread, so that no other send waits.
            let appended =
                tokio::task::spawn_blocking(move || append(&path, &line)).await.unwrap_or_else(|e| Err(e.into()));
            if let Err(problem) = appended {
                return Report::from(Outcome::config("capture_journal"))
                    .because(format!("settings.journal: {problem}"));
            }
        }
        let evidence = Evidence {
            detail: None,
            provider_ref: Some(format!("capture-{}", message.key.provider_key())),
            excerpt: Some(sent),
        };
        Report { evidence, captured: true, ..Report::from(Outcome::Sent) }
    }
}

/// Appends to a regular file and refuses any other kind. A write to a pipe waits for a reader, and opening a device may
/// have side effects.
fn append(path: &Path, line: &str) -> io::Result<()> {
    let is_file =
        |found: Metadata| if found.is_file() { Ok(()) } else { Err(io::Error::other("is not a regular file")) };
    std::fs::metadata(path).map_or(Ok(()), is_file)?;
    // The path may have become a pipe since the check. With O_NONBLOCK, opening a pipe does not wait. The flag does not
    // affect regular files.
    let no_wait = OFlags::NONBLOCK.bits().cast_signed();
    let mut file = OpenOptions::new().create(true).append(true).custom_flags(no_wait).open(path)?;
    is_file(file.metadata()?)?;
    file.write_all(line.as_bytes())
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, mkfifoat};

    use super::*;
    use crate::egress::{Egress, EgressSettings};
    use crate::secret::Secrets;

    #[test]
    fn a8_the_list_names_modes_counts_and_matches() {
        let rules = FailOn::parse("booking.cancelled, permanent=booking:7:x:1,transient*2=a=b").unwrap();
        let rule = |mode, first, matching: &str| Rule { mode, first, matching: matching.into() };
        assert_eq!(
            rules.0,
            [
                rule(Mode::Transient, None, "booking.cancelled"),
                rule(Mode::Permanent, None, "booking:7:x:1"),
                rule(Mode::Transient, Some(2), "a=b")
            ]
        );
        assert_eq!(FailOn::parse(" ,").unwrap(), FailOn::default());
    }

    #[test]
    fn nonsense_is_refused_with_what_is_allowed() {
        assert!(
            FailOn::parse("explode=x")
                .unwrap_err()
                .contains("allowed are transient, permanent, slow, hang, unclear, panic")
        );
        for count in ["many", "0", "-1", "65536", ""] {
            assert!(
                FailOn::parse(&format!("slow*{count}=x")).unwrap_err().contains("1 to 65535 are allowed"),
                "{count}"
            );
        }
    }

    #[test]
    fn settings_have_limits_that_an_error_names() {
        for (settings, problem) in [
            (json!({"slow_ms": 300_001}), "settings.slow_ms: is 300001; 0 to 300000 are allowed"),
            (json!({"slow_ms": u64::MAX}), "settings.slow_ms: is 18446744073709551615; 0 to 300000 are allowed"),
            (json!({"key_window_s": 0}), "settings.key_window_s: is 0; 1 to 315360000 are allowed"),
            (json!({"key_window_s": 315_360_001}), "settings.key_window_s: is 315360001; 1 to 315360000 are allowed"),
        ] {
            assert_eq!(built(&settings).err().as_deref(), Some(problem));
        }
        assert!(
            built(&json!({"slow_ms": 300_000, "key_window_s": 315_360_000})).is_ok()
                && built(&json!({"slow_ms": 0, "key_window_s": 1})).is_ok()
        );
    }

    fn built(settings: &serde_json::Value) -> Result<Box<dyn Driver>, String> {
        let egress = Egress::new(&EgressSettings::default()).unwrap();
        let (secrets, guarantee) = (&Secrets::new(), Guarantee::Idempotent);
        build(&Parts { settings, secrets, guarantee, egress: &egress, capture_fail_on: &FailOn::default() })
    }

    #[test]
    fn the_journal_is_a_regular_file_or_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let (file, pipe) = (folder.path().join("journal"), folder.path().join("pipe"));
        append(&file, "a\n").unwrap();
        append(&file, "b\n").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "a\nb\n");
        mkfifoat(CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
        for other in [pipe.as_path(), folder.path(), Path::new("/dev/null")] {
            assert_eq!(append(other, "a\n").unwrap_err().to_string(), "is not a regular file");
        }
    }
}
