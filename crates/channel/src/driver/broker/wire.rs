//! One connection to a broker: writes whole messages, reads lines and frames of limited size, and knows whether the
//! broker may have the event.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Instant;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf};

use super::{Cause, Failed};
use crate::clock;
use crate::egress::{Deadline, DialledStream, Egress, Endpoint, Tls};

/// The maximum number of bytes of one answer of a broker. All answers to a publisher are short.
pub(in crate::driver) const ANSWER_BYTES: usize = 64 * 1024;

/// A connection to a broker.
pub(in crate::driver) struct Wire {
    stream: DialledStream,
    /// Bytes from the broker that are not used yet: at most [`ANSWER_BYTES`] and one more read.
    buffer: Vec<u8>,
    opened: Instant,
    /// Whether all bytes of the current event were written, so that the broker may have it.
    is_published: bool,
}

impl Wire {
    pub(in crate::driver) async fn open(
        endpoint: &Endpoint,
        is_encrypted: bool,
        egress: &Egress,
        deadline: Deadline,
    ) -> Result<Self, Failed> {
        let tls = if is_encrypted { Tls::Implicit(&[]) } else { Tls::None };
        let stream = egress.dial(endpoint, tls, deadline).await.map_err(Failed::not_connected)?;
        Ok(Self { stream, buffer: vec![], opened: clock::monotonic(), is_published: false })
    }

    /// Starts TLS on a plain connection. Bytes that arrived before were not encrypted, so they are refused.
    pub(in crate::driver) async fn start_tls(self, deadline: Deadline) -> Result<Self, Failed> {
        if !self.buffer.is_empty() {
            return Err(self.broken("bad_answer", "the broker sent more bytes before the encryption began"));
        }
        let Self { stream, buffer, opened, is_published } = self;
        let stream = stream.start_tls(deadline).await.map_err(Failed::not_connected)?;
        Ok(Self { stream, buffer, opened, is_published })
    }

    pub(in crate::driver) fn opened(&self) -> Instant {
        self.opened
    }

    /// Begins a new event, of which nothing was written yet.
    pub(in crate::driver) fn begin(&mut self) {
        self.is_published = false;
    }

    /// Writes bytes that are not part of an event.
    pub(in crate::driver) async fn write(&mut self, bytes: &[u8], deadline: Deadline) -> Result<(), Failed> {
        let written = async {
            self.stream.write_all(bytes).await?;
            self.stream.flush().await
        };
        match tokio::time::timeout(deadline.left(), written).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(self.broken("reset", &format!("the connection broke: {error}"))),
            Err(_) => Err(self.broken("timeout", "the broker did not read in time")),
        }
    }

    /// Writes a whole event. A broker that has only a part of it when the connection ends does not take it, so the
    /// event counts as published only when its last byte was written.
    pub(in crate::driver) async fn publish(&mut self, bytes: &[u8], deadline: Deadline) -> Result<(), Failed> {
        let counter = self.stream.counter();
        counter.begin();
        let result = self.write(bytes, deadline).await;
        // After a failure no further byte may be sent, because the number of written bytes decides the outcome.
        let written = if result.is_ok() { counter.written() } else { counter.close() };
        self.is_published = written >= bytes.len() as u64;
        result.map_err(|failed| Failed { is_published: self.is_published, ..failed })
    }

    /// Reads the next line, without its CR LF. `most` is the maximum number of bytes.
    pub(in crate::driver) async fn line(&mut self, most: usize, deadline: Deadline) -> Result<Vec<u8>, Failed> {
        let mut searched = 0;
        loop {
            if let Some(place) = self.buffer[searched..].iter().position(|byte| *byte == b'\n') {
                let mut line: Vec<u8> = self.buffer.drain(..=searched + place).collect();
                line.pop();
                line.pop_if(|byte| *byte == b'\r');
                return Ok(line);
            }
            searched = self.buffer.len();
            if searched > most {
                return Err(self.broken("bad_answer", "the broker sent a line that is too long"));
            }
            self.fill(deadline).await?;
        }
    }

    /// Reads the next `count` bytes.
    pub(in crate::driver) async fn exactly(&mut self, count: usize, deadline: Deadline) -> Result<Vec<u8>, Failed> {
        if count > ANSWER_BYTES {
            return Err(
                self.broken("bad_answer", &format!("the broker sent {count} bytes; {ANSWER_BYTES} are allowed"))
            );
        }
        while self.buffer.len() < count {
            self.fill(deadline).await?;
        }
        Ok(self.buffer.drain(..count).collect())
    }

    /// Whether the broker has sent bytes that are not used yet.
    pub(in crate::driver) fn has_unread(&self) -> bool {
        !self.buffer.is_empty()
    }

    /// Whether the broker closed the connection while it was idle. Bytes that the broker sent meanwhile are kept.
    pub(in crate::driver) async fn is_closed(&mut self) -> bool {
        // The runtime notices a closed connection only when it runs, so let it run once.
        tokio::task::yield_now().await;
        let mut chunk = [0; 1024];
        loop {
            let mut read = ReadBuf::new(&mut chunk);
            let polled = poll_fn(|context| {
                // Poll once, without waiting.
                Poll::Ready(Pin::new(&mut self.stream).poll_read(context, &mut read))
            });
            match polled.await {
                Poll::Pending => return false,
                Poll::Ready(Ok(())) if !read.filled().is_empty() && self.buffer.len() <= ANSWER_BYTES => {
                    self.buffer.extend_from_slice(read.filled());
                }
                Poll::Ready(_) => return true,
            }
        }
    }

    async fn fill(&mut self, deadline: Deadline) -> Result<(), Failed> {
        // If the broker sends without end, every read succeeds and none times out. So the deadline is checked here.
        if deadline.left().is_zero() {
            return Err(self.broken("timeout", "the broker did not answer in time"));
        }
        self.buffer.reserve(4096);
        match tokio::time::timeout(deadline.left(), self.stream.read_buf(&mut self.buffer)).await {
            Ok(Ok(0)) => Err(self.broken("closed", "the broker closed the connection")),
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(self.broken("reset", &format!("the connection broke: {error}"))),
            Err(_) => Err(self.broken("timeout", "the broker did not answer in time")),
        }
    }

    /// A failure of the connection. The outcome depends on whether the event was published.
    pub(in crate::driver) fn broken(&self, code: &'static str, detail: &str) -> Failed {
        let cause = Cause::Broken { code, class: None, detail: detail.to_owned() };
        Failed { is_published: self.is_published, cause }
    }
}
