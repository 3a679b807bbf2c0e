//! The lines of a NATS server, and what they mean for an event.

use serde::Deserialize;

use crate::driver::broker::{ANSWER_BYTES, Acknowledged, Failed, Wire};
use crate::egress::Deadline;
use crate::model::{ErrorClass, Outcome};

/// The maximum number of bytes of a line. The first line of a server in a large cluster names all servers of the
/// cluster.
const LINE_BYTES: usize = 32 * 1024;

/// The first line of the server. The addresses of other servers in it are never used.
#[derive(Debug, Deserialize)]
pub(super) struct Info {
    #[serde(default)]
    pub(super) headers: bool,
    #[serde(default)]
    pub(super) tls_required: bool,
    #[serde(default)]
    tls_available: bool,
    /// The maximum number of bytes of headers and payload together.
    pub(super) max_payload: usize,
}

impl Info {
    pub(super) async fn read(wire: &mut Wire, deadline: Deadline) -> Result<Self, Failed> {
        let line = wire.line(LINE_BYTES, deadline).await?;
        let text = String::from_utf8_lossy(&line);
        if let Some(error) = text.strip_prefix("-ERR ") {
            return Err(server_error(wire, error));
        }
        let info = text.strip_prefix("INFO ").and_then(|json| serde_json::from_str(json).ok());
        info.ok_or_else(|| wire.broken("bad_answer", "the server's first line is not that of a NATS server"))
    }

    pub(super) fn offers_tls(&self) -> bool {
        self.tls_required || self.tls_available
    }
}

/// A line that the server sends.
pub(super) enum Answer {
    Ping,
    Pong,
    Error(String),
    /// A message to our inbox. `status` is the status of its headers, such as 503.
    Message {
        subject: String,
        status: Option<u16>,
        body: Vec<u8>,
    },
    /// A line that needs no reaction: `+OK`, or another `INFO`.
    Other,
}

impl Answer {
    pub(super) async fn read(wire: &mut Wire, deadline: Deadline) -> Result<Self, Failed> {
        let line = wire.line(LINE_BYTES, deadline).await?;
        let text = String::from_utf8_lossy(&line).into_owned();
        let mut words = text.split_ascii_whitespace();
        match words.next().unwrap_or_default() {
            "PING" => Ok(Self::Ping),
            "PONG" => Ok(Self::Pong),
            "+OK" | "INFO" => Ok(Self::Other),
            "-ERR" => Ok(Self::Error(words.collect::<Vec<_>>().join(" "))),
            "MSG" => Self::message(wire, &words.collect::<Vec<_>>(), false, deadline).await,
            "HMSG" => Self::message(wire, &words.collect::<Vec<_>>(), true, deadline).await,
            _ => Err(wire.broken("bad_answer", "the server sent a line that is not of NATS")),
        }
    }

    /// Reads the rest of `MSG subject sid [reply] bytes` or `HMSG subject sid [reply] header-bytes bytes`.
    async fn message(wire: &mut Wire, words: &[&str], has_headers: bool, deadline: Deadline) -> Result<Self, Failed> {
        let bad = |wire: &Wire| wire.broken("bad_answer", "the server sent a message with malformed sizes");
        let size = |from_end: usize| -> Option<usize> {
            words.get(words.len().checked_sub(from_end)?)?.parse().ok().filter(|size| *size < ANSWER_BYTES)
        };
        let least = if has_headers { 4 } else { 3 };
        let sizes = if has_headers { size(2).zip(size(1)) } else { Some(0).zip(size(1)) };
        let (Some((head, total)), true) = (sizes, words.len() >= least) else { return Err(bad(wire)) };
        let bytes = wire.exactly(total + 2, deadline).await?;
        let (Some(headers), Some(body), true) = (bytes.get(..head), bytes.get(head..total), bytes.ends_with(b"\r\n"))
        else {
            return Err(bad(wire));
        };
        let status = headers.strip_prefix(b"NATS/1.0 ").and_then(|rest| rest.get(..3));
        let status = status.and_then(|code| std::str::from_utf8(code).ok()?.parse().ok());
        Ok(Self::Message { subject: words[0].to_owned(), status, body: body.to_vec() })
    }
}

/// The code of the error for a publish whose key belongs to an earlier publish that is still being stored, and that may
/// fail.
const KEY_IN_PROCESS: u32 = 10_158;

/// The answer of JetStream to a publish.
#[derive(Deserialize)]
struct Ack {
    stream: Option<String>,
    seq: Option<u64>,
    error: Option<AckError>,
}

#[derive(Deserialize)]
struct AckError {
    code: u16,
    #[serde(default)]
    err_code: u32,
    #[serde(default)]
    description: String,
}

/// Reads the answer to a publish. An answer that does not come from JetStream does not prove that a stream has the
/// event.
pub(super) fn acknowledged(wire: &Wire, status: Option<u16>, body: &[u8]) -> Result<Acknowledged, Failed> {
    if status == Some(503) {
        // Only the subject may be wrong, so the lane is not paused.
        let detail = "no stream takes this subject, or JetStream is not available; create a stream for the subject";
        let failed = Failed::refused(Outcome::deferred("no_responders"), ErrorClass::Config, detail);
        return Err(failed.and_leaves_connection());
    }
    let text = String::from_utf8_lossy(body).into_owned();
    match serde_json::from_slice::<Ack>(body) {
        Ok(Ack { error: Some(AckError { err_code: KEY_IN_PROCESS, .. }), .. }) => {
            Err(wire.broken("jetstream_10158", "an earlier attempt with the same key is being stored"))
        }
        Ok(Ack { error: Some(error), .. }) => Err(refusal(&error).and_leaves_connection()),
        // The numbers in a stream begin with 1. An answer with 0 says that the key is known, but not that an event is
        // stored.
        Ok(Ack { stream: Some(stream), seq: Some(seq @ 1..), .. }) => {
            Ok(Acknowledged { reference: Some(format!("{stream}:{seq}")), text: Some(text) })
        }
        _ => Err(wire.broken("bad_answer", "the answer is not that of a stream")),
    }
}

/// The meaning of an error of JetStream. The numbers are from the NATS server's list of errors.
fn refusal(error: &AckError) -> Failed {
    let code = format!("jetstream_{}", error.err_code);
    let detail = format!("JetStream refused the event: {} {}", error.err_code, error.description);
    match (error.err_code, error.code) {
        // The message is larger than the stream allows.
        (10_054, _) => Failed::refused(Outcome::refused(code), ErrorClass::InvalidContent, detail),
        // The subject belongs to another stream than settings.stream.
        (10_060, _) => Failed::refused(Outcome::refused(code), ErrorClass::InvalidAddress, detail),
        // JetStream is not enabled, for the account or on the server.
        (10_039 | 10_076, _) => Failed::config(&code, ErrorClass::Config, detail),
        // The stream is full and does not drop old messages, or the account has no space left.
        (10_077 | 10_023 | 10_028 | 10_047, _) => Failed::refused(Outcome::deferred(code), ErrorClass::Account, detail),
        (_, 500..=599) => Failed::refused(Outcome::deferred(code), ErrorClass::ServerError, detail),
        _ => Failed::refused(Outcome::refused(code), ErrorClass::Unknown, detail),
    }
}

/// The meaning of an error line (`-ERR`). Some errors say whether the event was taken. The others end the connection.
pub(super) fn server_error(wire: &Wire, text: &str) -> Failed {
    let text = text.trim_matches(['\'', ' ']);
    let lower = text.to_ascii_lowercase();
    let detail = format!("the server answered {text:?}");
    let is = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    if is(&["permissions violation for subscription"]) {
        let detail = format!("{detail}; allow the user to subscribe to settings.inbox_prefix");
        return Failed::config("forbidden", ErrorClass::Forbidden, detail);
    }
    if is(&["permissions violation"]) {
        return Failed::refused(Outcome::refused("forbidden"), ErrorClass::Forbidden, detail).and_leaves_connection();
    }
    if is(&["maximum payload"]) {
        return Failed::refused(Outcome::refused("too_large"), ErrorClass::InvalidContent, detail);
    }
    let broken = wire.broken("nats_error", &detail);
    if is(&["maximum connections", "maximum account active connections", "stale connection", "slow consumer"]) {
        return broken.of_class(ErrorClass::RateLimited);
    }
    if is(&["authentication timeout"]) {
        // Our sign-in came too late, which says nothing about the credentials.
        return broken.of_class(ErrorClass::Timeout);
    }
    match is(&["authorization", "authentication"]) {
        // The sign-in had succeeded before the publish, so the error says nothing about the event.
        true if !broken.is_published => Failed::config("auth_failed", ErrorClass::AuthFailed, detail),
        true => broken.of_class(ErrorClass::AuthFailed),
        false => broken.of_class(ErrorClass::ServerError),
    }
}
