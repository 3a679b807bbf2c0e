//! Answers that stay open for hours, such as event streams. Their limit is lower than that of connections. They end
//! when the server stops.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::BoxError;
use axum::body::Body;
use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use postcommit_engine::dispatch::Stop;
use postcommit_engine::metrics::Metrics;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// Opens streaming answers and counts them. It is an extension of every request.
#[derive(Clone)]
pub struct Streams {
    places: Arc<Semaphore>,
    held: OpenByTenant,
    share: usize,
    stop: watch::Receiver<Stop>,
    metrics: Metrics,
}

type OpenByTenant = Arc<Mutex<HashMap<i32, usize>>>;

/// The reason why no further stream may be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamsFull {
    /// The limit of `server.streams` is reached.
    ForAll,
    /// The limit of one tenant is reached; the number is that limit. Other tenants may still open streams.
    ForTenant(usize),
}

/// The right to have one stream open. Dropping it gives the right back.
pub struct LongAnswer {
    place: (OwnedSemaphorePermit, OpenStream),
    stop: watch::Receiver<Stop>,
}

/// An open stream in the count of its tenant. Dropping it removes it from the count.
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

    /// Opens a stream for `tenant`. Fails if all streams are in use or this tenant already uses half of them.
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
    /// A body that ends with `frames` or when the server stops. Its last bytes are `farewell`, which tells the client
    /// how to reconnect.
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
