//! Traces: what happened to a notification, as spans of the trace that enqueued it.
//!
//! A notification carries `source.traceparent`. One that carries none has a trace of its own, whose id is the notification's: whoever expands or sends it finds
//! the same one without anything being stored. Spans are handed to an exporter through a bounded queue; what finds no room is dropped and counted, and nothing
//! waits. Off, which is the default, a span costs a look at an option.

use std::sync::Arc;

use postcommit::{Timestamp, TraceParent};
use postcommit_channel::clock;
use postcommit_channel::model::StoredNotification;
use postcommit_channel::secret::random;
use tokio::sync::mpsc;

use crate::metrics::Metrics;

/// Spans that wait for the exporter at most.
pub const QUEUE: usize = 4096;

/// What a span stands for, in OpenTelemetry's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Something inside of us.
    Internal = 1,
    /// We were asked.
    Server = 2,
    /// We ask somebody.
    Client = 3,
    /// Something that is done later.
    Producer = 4,
}

/// A span that is over.
#[derive(Debug, Clone)]
pub struct Span {
    /// Its trace and its own id.
    pub context: TraceParent,
    /// The span that caused it.
    pub parent: Option<u64>,
    /// What was done.
    pub name: &'static str,
    /// What it stands for.
    pub kind: Kind,
    /// When it began.
    pub began: Timestamp,
    /// When it was over.
    pub ended: Timestamp,
    /// What is known of it. Never an address, a body or a secret.
    pub attributes: Vec<(&'static str, String)>,
    /// Why it failed, as a code.
    pub failed: Option<String>,
}

/// A span under way.
#[derive(Debug)]
pub struct Begun {
    context: TraceParent,
    parent: Option<u64>,
    began: Timestamp,
}

impl Begun {
    /// What those who are asked meanwhile are told.
    #[must_use]
    pub fn context(&self) -> TraceParent {
        self.context
    }

    /// It is over.
    #[must_use]
    pub fn ended(self, name: &'static str, kind: Kind, attributes: Vec<(&'static str, String)>, failed: Option<String>) -> Span {
        let Self { context, parent, began } = self;
        Span { context, parent, name, kind, began, ended: clock::now(), attributes, failed }
    }
}

/// Begins spans and hands them on. Cheap to clone; the default is off.
#[derive(Clone, Default)]
pub struct Tracer(Option<Arc<Shared>>);

struct Shared {
    spans: mpsc::Sender<Span>,
    /// Of traces that nobody else has begun, how many are recorded: of 2³².
    share: u64,
    metrics: Metrics,
}

impl Tracer {
    /// A tracer that records `ratio` (0 to 1) of the traces that begin here, and of others those that were recorded where they began. Who takes the spans gets the
    /// other end.
    #[must_use]
    pub fn new(ratio: f64, metrics: Metrics) -> (Self, mpsc::Receiver<Span>) {
        let (spans, taken) = mpsc::channel(QUEUE);
        // In range for every ratio from 0 to 1.
        let share = (ratio.clamp(0.0, 1.0) * 4_294_967_296.0) as u64;
        (Self(Some(Arc::new(Shared { spans, share, metrics }))), taken)
    }

    /// Whether anything is recorded at all.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Begins a span below `parent`, or a trace; none when it is not recorded.
    #[must_use]
    pub fn begin(&self, parent: Option<TraceParent>) -> Option<Begun> {
        self.begin_in(parent, || u128::from_be_bytes(random::<16>()))
    }

    /// Begins a span of a notification's trace.
    #[must_use]
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
                // The low bits are random, in an id of ours as well.
                (own, u64::from(own as u32) < shared.share)
            }
        };
        sampled.then(|| Begun {
            context: TraceParent { trace_id, span_id: u64::from_be_bytes(random::<8>()) | 1, sampled },
            parent: parent.map(|parent| parent.span_id),
            began: clock::now(),
        })
    }

    /// Hands a span on; without room it is dropped, and counted.
    pub fn end(&self, span: Span) {
        if let Some(shared) = &self.0
            && shared.spans.try_send(span).is_err()
        {
            shared.metrics.spans_dropped.add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parent(sampled: bool) -> Option<TraceParent> {
        Some(TraceParent { trace_id: 7, span_id: 9, sampled })
    }

    #[test]
    fn the_one_who_began_a_trace_decides() {
        let (tracer, _taken) = Tracer::new(0.0, Metrics::default());
        assert!(tracer.begin(None).is_none() && tracer.begin(parent(false)).is_none());
        let begun = tracer.begin(parent(true)).unwrap();
        assert_eq!((begun.context.trace_id, begun.parent, begun.context.sampled), (7, Some(9), true));
        let (all, _taken) = Tracer::new(1.0, Metrics::default());
        assert!(all.begin(None).is_some() && all.begin(parent(false)).is_none());
        assert!(Tracer::default().begin(parent(true)).is_none());
    }

    #[test]
    fn what_finds_no_room_is_counted() {
        let metrics = Metrics::default();
        let (tracer, _taken) = Tracer::new(1.0, metrics.clone());
        for _ in 0..QUEUE + 3 {
            tracer.end(tracer.begin(None).unwrap().ended("x", Kind::Internal, vec![], None));
        }
        assert_eq!(metrics.spans_dropped.read(), 3);
    }
}
