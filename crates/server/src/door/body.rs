//! Bodies of requests and responses. A request's body is limited in size and speed. The end of a response's body lets
//! the connection read its next request.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use postcommit_channel::clock;
use tokio::time::{Sleep, sleep};

use super::checked_stream::Exchange;
use super::refusal::DoorRefusal;
use super::settings::ServerSettings;

/// The body of a request. Reading it fails if it is too large, too slow or malformed. If the handler then returns an
/// unsuccessful answer, the server replaces that answer with the reason.
pub struct Body {
    inner: Incoming,
    settings: Arc<ServerSettings>,
    read: u64,
    /// The time spent waiting for the client. Time in which the handler did not ask for data is not counted.
    waited: Duration,
    since: Option<Instant>,
    patience: Option<Pin<Box<Sleep>>>,
    trouble: Trouble,
}

/// The reason why reading the body failed. It is read after the handler has ended.
pub(super) type Trouble = Arc<OnceLock<DoorRefusal>>;

/// The reason why a body could not be read to its end.
#[derive(Debug)]
pub struct BodyError(DoorRefusal);

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.detail())
    }
}

impl std::error::Error for BodyError {}

impl Body {
    pub(super) fn new(inner: Incoming, settings: Arc<ServerSettings>, trouble: Trouble) -> Self {
        Self { inner, settings, read: 0, waited: Duration::ZERO, since: None, patience: None, trouble }
    }

    fn fail<T>(&self, refusal: DoorRefusal) -> Poll<Option<Result<T, BodyError>>> {
        let _ = self.trouble.set(refusal.clone());
        Poll::Ready(Some(Err(BodyError(refusal))))
    }

    fn arrived(&mut self, frame: Frame<Bytes>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(since) = self.since.take() {
            self.waited += since.elapsed();
        }
        self.patience = None;
        self.read += frame.data_ref().map_or(0, |data| data.len() as u64);
        if self.read > self.settings.body_bytes {
            return self.fail(DoorRefusal::large_body(self.settings.body_bytes));
        }
        Poll::Ready(Some(Ok(frame)))
    }

    /// The time for which the body may have kept the server waiting so far. It is the grace period plus the time that
    /// the received bytes take at the lowest allowed speed, and never more than the deadline.
    fn budget(&self) -> Duration {
        let settings = &self.settings;
        let earned = self.read.saturating_mul(1000) / settings.body_bytes_per_s;
        Duration::from_millis(settings.body_grace_ms.saturating_add(earned).min(settings.body_deadline_ms))
    }

    fn poll_patience(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let left = self.budget().saturating_sub(self.waited);
        self.since.get_or_insert_with(clock::monotonic);
        self.patience.get_or_insert_with(|| Box::pin(sleep(left))).as_mut().poll(cx)
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        if let Some(refusal) = this.trouble.get() {
            return Poll::Ready(Some(Err(BodyError(refusal.clone()))));
        }
        match Pin::new(&mut this.inner).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => this.arrived(frame),
            Poll::Ready(Some(Err(_))) => {
                this.fail(DoorRefusal::bad("the request's body ends early, or its chunks are malformed"))
            }
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => {
                ready!(this.poll_patience(cx));
                this.fail(DoorRefusal::slow_body(this.settings.body_bytes_per_s))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// The body of a response. When it ends, the connection reads the next request.
pub(super) struct Outgoing {
    inner: axum::body::Body,
    exchange: Arc<Exchange>,
}

impl Outgoing {
    pub(super) fn new(inner: axum::body::Body, exchange: Arc<Exchange>) -> Self {
        Self { inner, exchange }
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        self.exchange.end();
    }
}

impl HttpBody for Outgoing {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.inner).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
