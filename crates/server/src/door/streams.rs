//! Answers that last for hours. They have a limit of their own, below that of connections, and end when the server
//! stops.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::BoxError;
use axum::body::Body;
use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use postcommit_engine::dispatch::Stop;
use postcommit_engine::metrics::Metrics;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// An extension of every request: the way to an answer that lasts.
#[derive(Clone)]
pub struct Streams {
    places: Arc<Semaphore>,
    held: OpenByTenant,
    share: usize,
    stop: watch::Receiver<Stop>,
    metrics: Metrics,
}

/// Open streams by tenant.
type OpenByTenant = Arc<Mutex<HashMap<i32, usize>>>;

/// Why no further stream may open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamsFull {
    /// `server.streams` are open.
    ForAll,
    /// The tenant has its share of this many; other tenants may still open streams.
    ForTenant(usize),
}

/// The right to one stream; returned when dropped.
pub struct LongAnswer {
    place: (OwnedSemaphorePermit, OpenStream),
    stop: watch::Receiver<Stop>,
}

/// Counts as open until it is dropped.
struct OpenStream {
    tenant: i32,
    held: OpenByTenant,
    metrics: Metrics,
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.metrics.streams.add(-1);
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = held.get_mut(&self.tenant) {
            *count -= 1;
            if *count == 0 {
                held.remove(&self.tenant);
            }
        }
    }
}

impl Streams {
    pub(super) fn new(most: usize, stop: watch::Receiver<Stop>, metrics: Metrics) -> Self {
        Self {
            places: Arc::new(Semaphore::new(most)),
            held: OpenByTenant::default(),
            share: (most / 2).max(1),
            stop,
            metrics,
        }
    }

    /// A place, unless all are taken, or half of them by that tenant.
    pub fn begin(&self, tenant: i32) -> Result<LongAnswer, StreamsFull> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.get(&tenant).is_some_and(|count| *count >= self.share) {
            return Err(StreamsFull::ForTenant(self.share));
        }
        let place = self.places.clone().try_acquire_owned().map_err(|_| StreamsFull::ForAll)?;
        *held.entry(tenant).or_default() += 1;
        drop(held);
        self.metrics.streams.add(1);
        let open = OpenStream { tenant, held: self.held.clone(), metrics: self.metrics.clone() };
        Ok(LongAnswer { place: (place, open), stop: self.stop.clone() })
    }
}

impl LongAnswer {
    /// A body that ends with `frames`, or when the server stops; then `farewell` tells the client how to come back.
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
