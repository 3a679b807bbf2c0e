//! The failure of an outgoing connection or request.

use std::error::Error;

/// The number of characters of an error's text that are kept.
const DETAIL_CHARS: usize = 200;

/// The code of a handshake that failed because the peer's certificate is not trusted, is for another name, or has
/// expired. Another attempt fails in the same way until an operator changes the certificate or the settings.
pub const BAD_CERTIFICATE: &str = "tls_certificate";

/// The phase in which a connection or request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Our own address filter or the rules for URLs refused the request.
    Refused,
    /// Resolving the host name.
    Resolve,
    /// Opening the TCP connection.
    Connect,
    /// The TLS handshake.
    Tls,
    /// Writing the request, or waiting for the head of the answer.
    Request,
}

/// The failure of a connection that could not be opened or of a request that got no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {detail}")]
pub struct EgressFailure {
    /// The phase in which the connection or request failed.
    pub phase: Phase,
    /// The number of bytes, before encryption, that were written to the connection. For a request it counts the bytes
    /// of this request, for a failed STARTTLS the bytes of the whole stream. 0 guarantees that the peer received
    /// nothing and never will. A larger number means that the peer may have received something.
    pub bytes_written: u64,
    /// A stable code: one of `blocked_address`, `bad_url`, `bad_host`, `dns`, `connect`, `connect_timeout`, `tls`,
    /// `tls_certificate`, `timeout`, `reset`, `closed`, `bad_answer`.
    pub code: &'static str,
    /// A text for the operator. It contains no part of a URL except the host.
    pub detail: String,
}

impl EgressFailure {
    /// A failure before any name was resolved or any connection was opened.
    pub(super) fn refused(code: &'static str, detail: impl Into<String>) -> Self {
        Self { phase: Phase::Refused, bytes_written: 0, code, detail: detail.into() }
    }

    /// Whether any byte may have reached the peer.
    pub fn reached_wire(&self) -> bool {
        self.bytes_written > 0
    }
}

/// The text of `error` and its causes, cut to `DETAIL_CHARS`.
pub(super) fn text(error: &(dyn Error + 'static)) -> String {
    let causes: Vec<String> = chain(error).map(ToString::to_string).collect();
    causes.join(": ").chars().take(DETAIL_CHARS).collect()
}

pub(super) fn chain<'e>(error: &'e (dyn Error + 'static)) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}
