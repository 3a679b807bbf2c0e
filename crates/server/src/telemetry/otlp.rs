//! Spans to a collector: OTLP over HTTP as JSON, through our own egress (docs/decisions/0025). They go in batches; an
//! unreachable collector costs spans, never time.

use std::sync::Arc;
use std::time::Duration;

use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue, Method};
use postcommit_channel::egress::{Call, Egress, EgressSettings};
use postcommit_engine::metrics::Metrics;
use postcommit_engine::trace::{Span, Tracer};
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use url::Url;

use super::TelemetrySettings;

/// Most spans of a batch.
const BATCH: usize = 512;
/// How long the first span of a batch waits for others.
const GATHER: Duration = Duration::from_secs(1);
/// How long the collector may take, and how long a stop waits for it.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Sends spans until it is told to finish.
pub struct Exporter {
    task: JoinHandle<()>,
    finish: Arc<Notify>,
}

impl Exporter {
    /// Waits a bounded time until the queued spans are sent.
    pub async fn finish(self) {
        self.finish.notify_one();
        let _ = tokio::time::timeout(TIMEOUT, self.task).await;
    }
}

/// A tracer by the settings: off without an endpoint.
///
/// # Errors
/// When the endpoint or the egress cannot be used.
pub fn start(
    settings: &TelemetrySettings,
    egress: &EgressSettings,
    metrics: &Metrics,
) -> Result<(Tracer, Option<Exporter>), String> {
    let Some(url) = settings.traces_url()? else { return Ok((Tracer::default(), None)) };
    // The operator names the collector, not a user: it may be on this machine or in this network.
    let everywhere = ["0.0.0.0/0", "::/0"].iter().filter_map(|net| net.parse().ok()).collect();
    let egress = Egress::new(&EgressSettings { allow: everywhere, ..egress.clone() }).map_err(|e| e.to_string())?;
    let (tracer, spans) = Tracer::new(settings.sample_ratio, metrics.clone());
    let sending = Sending { egress, url, metrics: metrics.clone(), reached: true };
    let finish = Arc::new(Notify::new());
    let task = tokio::spawn(sending.run(spans, finish.clone()));
    Ok((tracer, Some(Exporter { task, finish })))
}

struct Sending {
    egress: Egress,
    url: Url,
    metrics: Metrics,
    reached: bool,
}

impl Sending {
    async fn run(mut self, mut spans: mpsc::Receiver<Span>, finish: Arc<Notify>) {
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            tokio::select! {
                biased;
                taken = spans.recv_many(&mut batch, BATCH) => if taken == 0 { return },
                () = finish.notified() => {
                    // Nothing more is queued; send the rest.
                    spans.close();
                    continue;
                }
            }
            let gathering = async { while batch.len() < BATCH && spans.recv_many(&mut batch, BATCH).await > 0 {} };
            let told = tokio::select! {
                _ = tokio::time::timeout(GATHER, gathering) => false,
                () = finish.notified() => true,
            };
            if told {
                spans.close();
            }
            for some in batch.chunks(BATCH) {
                self.send(some).await;
            }
            batch.clear();
        }
    }

    async fn send(&mut self, spans: &[Span]) {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let body = document(spans).to_string().into();
        let call = Call { method: Method::POST, url: self.url.clone(), headers, body, timeout: TIMEOUT, fresh: false };
        let problem = match self.egress.send(call).await {
            Ok(answer) if (200..300).contains(&answer.status) => None,
            Ok(answer) => Some(format!("it answered {}", answer.status)),
            Err(failure) => Some(failure.code.to_owned()),
        };
        let count = spans.len() as u64;
        match &problem {
            None => self.metrics.spans_exported.add(count),
            Some(_) => self.metrics.spans_dropped.add(count),
        }
        // Logged when it changes, not every second.
        if let (Some(problem), true) = (&problem, self.reached) {
            tracing::warn!(problem, "the collector of traces does not take them; they are dropped and counted");
        }
        self.reached = problem.is_none();
    }
}

fn document(spans: &[Span]) -> Value {
    let resource =
        json!({"attributes": [text("service.name", "postcommit"), text("service.version", env!("CARGO_PKG_VERSION"))]});
    let spans: Vec<Value> = spans.iter().map(span).collect();
    json!({"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {"name": "postcommit"}, "spans": spans}]}]})
}

fn span(span: &Span) -> Value {
    let nanos = |at: postcommit::Timestamp| (i128::from(at.as_micros()) * 1000).to_string();
    let attributes: Vec<Value> = span.attributes.iter().map(|(name, value)| text(name, value)).collect();
    let mut written = json!({
        "traceId": format!("{:032x}", span.context.trace_id),
        "spanId": format!("{:016x}", span.context.span_id),
        "name": span.name,
        "kind": span.kind as i32,
        "startTimeUnixNano": nanos(span.began),
        "endTimeUnixNano": nanos(span.ended),
        "attributes": attributes,
    });
    if let Some(parent) = span.parent {
        written["parentSpanId"] = format!("{parent:016x}").into();
    }
    if let Some(why) = &span.failed {
        written["status"] = json!({"code": 2, "message": why});
    }
    written
}

fn text(name: &str, value: &str) -> Value {
    json!({"key": name, "value": {"stringValue": value}})
}
