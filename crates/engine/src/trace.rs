//! Traces: the spans of a notification, in the trace in which the application enqueued it.
//!
//! A notification carries `source.traceparent`. If it has none, its trace id is the notification's own id. So every
//! process computes the same trace id, and nothing is stored. Spans go to an exporter through a bounded queue. If the
//! queue is full, the span is dropped and counted, so that no task waits for the exporter. Tracing is off by default. A
//! span then costs one check of an `Option`.

use std::sync::Arc;

use postcommit::{Timestamp, TraceParent};
use postcommit_channel::clock;
use postcommit_channel::model::StoredNotification;
use postcommit_channel::secret::random;
use tokio::sync::mpsc;

use crate::metrics::Metrics;

/// The most spans that wait for the exporter.
pub const QUEUE: usize = 4096;

/// The kind of a span. The numbers are those of OpenTelemetry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanKind {
    /// An internal operation.
    Internal = 1,
    /// The handling of a request.
    Server = 2,
    /// A request to another service.
    Client = 3,
    /// The creation of work that is done later.
    Producer = 4,
}

#[derive(Debug, Clone)]
pub struct Span {
    /// The trace id and the id of the span.
    pub context: TraceParent,
    /// The id of the parent span.
    pub parent: Option<u64>,
    pub name: &'static str,
    pub kind: SpanKind,
    pub began: Timestamp,
    pub ended: Timestamp,
    /// The attributes of the span. They never contain an address, a body or a secret.
    pub attributes: Vec<(&'static str, String)>,
    /// The error code, if the operation failed.
    pub failed: Option<String>,
}

/// A running span. [`Begun::ended`] turns it into a [`Span`].
#[derive(Debug)]
pub struct Begun {
    context: TraceParent,
    parent: Option<u64>,
    began: Timestamp,
}

impl Begun {
    /// Returns the trace context to pass on to called services.
    pub fn context(&self) -> TraceParent {
        self.context
    }

    /// Ends the span now.
    pub fn ended(
        self,
        name: &'static str,
        kind: SpanKind,
        attributes: Vec<(&'static str, String)>,
        failed: Option<String>,
    ) -> Span {
        let Self { context, parent, began } = self;
        Span { context, parent, name, kind, began, ended: clock::now(), attributes, failed }
    }
}

/// Begins spans and sends them to the exporter. Cheap to clone. The default value records nothing.
#[derive(Clone, Default)]
pub struct Tracer(Option<Arc<Shared>>);

struct Shared {
    spans: mpsc::Sender<Span>,
    /// The share of traces beginning in this process that are recorded, out of 2³².
    share: u64,
    metrics: Metrics,
}

impl Tracer {
    /// Creates a tracer that records `ratio` (0 to 1) of the traces that begin here. Traces that began elsewhere are
    /// recorded if they were sampled there. The exporter reads from the returned receiver.
    pub fn new(ratio: f64, metrics: Metrics) -> (Self, mpsc::Receiver<Span>) {
        let (spans, taken) = mpsc::channel(QUEUE);
        // The product fits into a `u64` for every ratio from 0 to 1.
        let share = (ratio.clamp(0.0, 1.0) * 4_294_967_296.0) as u64;
        (Self(Some(Arc::new(Shared { spans, share, metrics }))), taken)
    }

    /// Begins a span below `parent`, or in a new trace if there is no parent. Returns `None` if the span is not
    /// recorded.
    pub fn begin(&self, parent: Option<TraceParent>) -> Option<Begun> {
        self.begin_in(parent, || u128::from_be_bytes(random::<16>()))
    }

    /// Begins a span in the trace of a notification.
    pub fn begin_of(&self, note: &StoredNotification) -> Option<Begun> {
        self.0.as_ref()?;
        self.begin_in(note.traceparent(), || note.id.as_u128())
    }

    fn begin_in(&self, parent: Option<TraceParent>, own: impl FnOnce() -> u128) -> Option<Begun> {
        let shared = self.0.as_ref()?;
        let (trace_id, sampled) = match parent {
            Some(parent) => (parent.trace_id, parent.sampled),
            None => {
                let own = own();
                // The low 32 bits decide, because they are random even in a notification's id (UUIDv7).
                (own, u64::from(own as u32) < shared.share)
            }
        };
        sampled.then(|| Begun {
            context: TraceParent { trace_id, span_id: u64::from_be_bytes(random::<8>()) | 1, sampled },
            parent: parent.map(|parent| parent.span_id),
            began: clock::now(),
        })
    }

    /// Sends an ended span to the exporter. If the queue is full, the span is dropped and counted.
    pub fn end(&self, span: Span) {
        if let Some(shared) = &self.0
            && shared.spans.try_send(span).is_err()
        {
            shared.metrics.spans_dropped.add(1);
        }
    }
}

/// Returns the span attributes that describe a notification.
pub(crate) fn traits_of(note: &StoredNotification) -> Vec<(&'static str, String)> {
    let mut known =
        vec![("postcommit.notification", note.id.to_string()), ("postcommit.event_type", note.event_type.clone())];
    known.extend(note.correlation_id.clone().map(|id| ("postcommit.correlation_id", id)));
    known
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parent(sampled: bool) -> Option<TraceParent> {
        Some(TraceParent { trace_id: 7, span_id: 9, sampled })
    }

    #[test]
    fn sampling_is_decided_where_a_trace_begins() {
        let (tracer, _taken) = Tracer::new(0.0, Metrics::default());
        assert!(tracer.begin(None).is_none() && tracer.begin(parent(false)).is_none());
        let begun = tracer.begin(parent(true)).unwrap();
        assert_eq!((begun.context.trace_id, begun.parent, begun.context.sampled), (7, Some(9), true));
        let (all, _taken) = Tracer::new(1.0, Metrics::default());
        assert!(all.begin(None).is_some() && all.begin(parent(false)).is_none());
        assert!(Tracer::default().begin(parent(true)).is_none());
    }

    #[test]
    fn spans_beyond_the_queue_are_counted() {
        let metrics = Metrics::default();
        let (tracer, _taken) = Tracer::new(1.0, metrics.clone());
        for _ in 0..QUEUE + 3 {
            tracer.end(tracer.begin(None).unwrap().ended("x", SpanKind::Internal, vec![], None));
        }
        assert_eq!(metrics.spans_dropped.read(), 3);
    }
}
