//! How an outgoing connection or call failed.

use std::error::Error;

/// The most characters of an error's text that are kept.
const DETAIL_CHARS: usize = 200;

/// How far a failed connection or call got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Refused by our own filter or the rules for URLs.
    Refused,
    /// Resolving the name.
    Resolve,
    /// Opening the TCP connection.
    Connect,
    /// The TLS handshake.
    Tls,
    /// Writing the request, or waiting for the head of the answer.
    Request,
}

/// A connection that was not opened, or a call that brought no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {detail}")]
pub struct EgressFailure {
    /// How far it got.
    pub phase: Phase,
    /// Bytes, before encryption, that were handed to the connection: of this request, or of the whole stream for a
    /// failed STARTTLS. 0 is a promise that the peer saw nothing and never will; more means only that it may have.
    pub bytes_written: u64,
    /// One of `blocked_address`, `bad_url`, `bad_host`, `dns`, `connect`, `connect_timeout`, `tls`, `timeout`,
    /// `reset`, `closed`, `bad_answer`.
    pub code: &'static str,
    /// For the operator. Of a URL it holds at most the host.
    pub detail: String,
}

impl EgressFailure {
    /// Refused before anything was resolved or connected.
    pub(super) fn refused(code: &'static str, detail: impl Into<String>) -> Self {
        Self { phase: Phase::Refused, bytes_written: 0, code, detail: detail.into() }
    }

    /// Whether any byte may have reached the peer.
    pub fn reached_wire(&self) -> bool {
        self.bytes_written > 0
    }
}

/// The text of `error` and its causes, cut to a sane length.
pub(super) fn text(error: &(dyn Error + 'static)) -> String {
    let causes: Vec<String> = chain(error).map(ToString::to_string).collect();
    causes.join(": ").chars().take(DETAIL_CHARS).collect()
}

pub(super) fn chain<'e>(error: &'e (dyn Error + 'static)) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}
