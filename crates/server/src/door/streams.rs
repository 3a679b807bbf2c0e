//! Answers that go on for hours. They have a cap of their own, below that of connections, and are told when the server stops.

#![cfg_attr(not(test), allow(dead_code, reason = "the inbox is the first to have such answers"))]

use std::sync::Arc;

use axum::BoxError;
use axum::body::Body;
use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use postcommit_engine::dispatch::Stop;
use postcommit_engine::metrics::Metrics;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// An extension of every request: the way to an answer that goes on.
#[derive(Clone)]
pub struct Streams {
    places: Arc<Semaphore>,
    stop: watch::Receiver<Stop>,
    metrics: Metrics,
}

/// The right to one such answer; free again when dropped.
pub struct LongAnswer {
    place: (OwnedSemaphorePermit, Open),
    stop: watch::Receiver<Stop>,
}

/// Counted as open until it is dropped.
struct Open(Metrics);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.streams.add(-1);
    }
}

impl Streams {
    pub(super) fn new(most: usize, stop: watch::Receiver<Stop>, metrics: Metrics) -> Self {
        Self { places: Arc::new(Semaphore::new(most)), stop, metrics }
    }

    /// None when there are `server.streams` already.
    pub fn begin(&self) -> Option<LongAnswer> {
        let place = self.places.clone().try_acquire_owned().ok()?;
        self.metrics.streams.add(1);
        Some(LongAnswer { place: (place, Open(self.metrics.clone())), stop: self.stop.clone() })
    }
}

impl LongAnswer {
    /// A body that ends when `frames` do, or when the server stops.
    pub fn body<E: Into<BoxError> + Send + 'static>(self, frames: impl Stream<Item = Result<Bytes, E>> + Send + 'static) -> Body {
        self.body_ending_with(frames, "")
    }

    /// The same with a last word, so that who listens knows how to come back.
    pub fn body_ending_with<E: Into<BoxError> + Send + 'static>(
        self,
        frames: impl Stream<Item = Result<Bytes, E>> + Send + 'static,
        farewell: &'static str,
    ) -> Body {
        let Self { place, mut stop } = self;
        let told = async move {
            let _held = place;
            let _ = stop.wait_for(|stop| *stop != Stop::No).await;
        };
        let last = (!farewell.is_empty()).then(|| Ok(Bytes::from_static(farewell.as_bytes())));
        Body::from_stream(frames.take_until(Box::pin(told)).chain(stream::iter(last)))
    }
}
