//! Sends spans to a collector as OTLP over HTTP in JSON, through our own egress (docs/decisions/0025). Spans are sent
//! in batches. If the collector cannot be reached, spans are lost, but nothing waits for it.

use std::sync::Arc;
use std::time::Duration;

use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue, Method};
use bytes::Bytes;
use postcommit_channel::egress::{ANSWER_BYTES, Call, Egress, EgressFailure, EgressSettings, HttpAnswer};
use postcommit_engine::metrics::Metrics;
use postcommit_engine::trace::{Span, Tracer};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use url::Url;

use super::TelemetrySettings;

/// The maximum number of spans in a batch.
const BATCH: usize = 512;
/// The time for which the first span of a batch waits for others.
const GATHER: Duration = Duration::from_secs(1);
/// The time limit of a request to the collector, and of the wait for the last spans at a stop.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The longest wait before a batch is sent again. Spans that end during the wait are queued. If the queue is full, they
/// are dropped.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// The number of characters of a collector's error message that are logged.
const REASON_CHARS: usize = 200;

/// The background task that sends spans to the collector until [`Exporter::finish`] is called.
pub struct Exporter {
    task: JoinHandle<()>,
    finish: Arc<Notify>,
}

impl Exporter {
    /// Waits until the queued spans are sent, but only for a few seconds.
    pub async fn finish(self) {
        self.finish.notify_one();
        let _ = tokio::time::timeout(TIMEOUT, self.task).await;
    }
}

/// Creates the tracer from the settings. Without an endpoint, tracing is off.
/// # Errors
/// The endpoint, the headers or the egress settings cannot be used.
pub fn start(
    settings: &TelemetrySettings,
    egress: &EgressSettings,
    metrics: &Metrics,
) -> Result<(Tracer, Option<Exporter>), String> {
    let Some(url) = settings.traces_url()? else { return Ok((Tracer::default(), None)) };
    // The operator chooses the collector, so it may be on this machine or in this network.
    let everywhere = ["0.0.0.0/0", "::/0"].iter().filter_map(|net| net.parse().ok()).collect();
    let egress = Egress::new(&EgressSettings { allow: everywhere, ..egress.clone() }).map_err(|e| e.to_string())?;
    let (tracer, spans) = Tracer::new(settings.sample_ratio, metrics.clone());
    let mut headers = settings.headers()?;
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let sending = Sending { egress, url, headers, metrics: metrics.clone(), said: None };
    let finish = Arc::new(Notify::new());
    let task = tokio::spawn(sending.run(spans, finish.clone()));
    Ok((tracer, Some(Exporter { task, finish })))
}

struct Sending {
    egress: Egress,
    url: Url,
    headers: HeaderMap,
    metrics: Metrics,
    /// The last problem that was logged.
    said: Option<String>,
}

impl Sending {
    async fn run(mut self, mut spans: mpsc::Receiver<Span>, finish: Arc<Notify>) {
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            tokio::select! {
                biased;
                taken = spans.recv_many(&mut batch, BATCH) => if taken == 0 { return },
                () = finish.notified() => {
                    // Accept no further spans, and send those that are queued.
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
        let body = Bytes::from(document(spans).to_string());
        let mut answer = self.call(body.clone()).await;
        if let Some(wait) = answer.as_ref().ok().and_then(wait_before_repeat) {
            tokio::time::sleep(wait).await;
            answer = self.call(body).await;
        }
        let Judged { exported, dropped, unknown, problem } = judge(&answer, spans.len() as u64);
        self.metrics.spans_exported.add(exported);
        self.metrics.spans_dropped.add(dropped);
        self.metrics.spans_unknown.add(unknown);
        // A problem is logged only when it changes and not for every batch.
        if let Some(problem) = problem.as_ref().filter(|_| self.said != problem) {
            let message = match unknown {
                0 => "the OTLP collector does not accept spans; these spans are dropped and counted",
                _ => "the OTLP collector may have rejected spans; they are counted as unknown, and not sent again",
            };
            tracing::warn!(problem, spans = spans.len(), dropped, unknown, "{message}");
        }
        self.said = problem;
    }

    async fn call(&self, body: Bytes) -> Result<HttpAnswer, EgressFailure> {
        let (url, headers) = (self.url.clone(), self.headers.clone());
        self.egress.send(Call { method: Method::POST, url, headers, body, timeout: TIMEOUT, fresh: false }).await
    }
}

/// The wait before the batch is sent again. `None` if OTLP allows no retry after this answer, or if the collector asks
/// for a wait that is longer than [`LONGEST_WAIT`].
fn wait_before_repeat(answer: &HttpAnswer) -> Option<Duration> {
    let wait = answer.retry_after().unwrap_or(GATHER);
    (matches!(answer.status, 429 | 502..=504) && wait <= LONGEST_WAIT).then_some(wait)
}

/// The result of a batch: the number of spans by result, and the problem in words. The three counts add up to the
/// batch.
#[derive(Debug, Default, PartialEq, Eq)]
struct Judged {
    exported: u64,
    dropped: u64,
    /// Spans whose result is unknown: the collector accepted the request, but its answer, which may reject spans,
    /// cannot be read.
    unknown: u64,
    problem: Option<String>,
}

fn judge(answer: &Result<HttpAnswer, EgressFailure>, spans: u64) -> Judged {
    let dropped = |problem| Judged { dropped: spans, problem: Some(problem), ..Judged::default() };
    match answer {
        Ok(answer) if (200..300).contains(&answer.status) => match read(answer) {
            Ok(told) => told.judge(spans),
            Err(problem) => Judged { unknown: spans, problem: Some(problem), ..Judged::default() },
        },
        Ok(answer) => dropped(format!("the collector answered {}", answer.status)),
        Err(failure) => dropped(failure.code.to_owned()),
    }
}

/// Reads an answer that accepts the request. An empty body rejects nothing.
fn read(answer: &HttpAnswer) -> Result<Answered, String> {
    if answer.truncated {
        return Err(format!("the collector's answer is longer than {ANSWER_BYTES} bytes"));
    }
    if !answer.body_complete {
        return Err("the collector's answer ended too early".into());
    }
    if answer.body.is_empty() {
        return Ok(Answered::default());
    }
    serde_json::from_slice(&answer.body).map_err(|error| format!("the collector's answer is not OTLP in JSON: {error}"))
}

/// The answer of a collector that accepted the request: ExportTraceServiceResponse.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Answered {
    partial_success: PartialSuccess,
}

impl Answered {
    fn judge(self, spans: u64) -> Judged {
        let PartialSuccess { rejected_spans, error_message } = self.partial_success;
        let rejected = rejected_spans.as_u64().or_else(|| rejected_spans.as_str()?.parse().ok()).unwrap_or(0);
        let why: String = error_message.chars().take(REASON_CHARS).collect();
        let problem = (rejected > 0 || !why.is_empty()).then(|| format!("partial_success: {why}"));
        let dropped = rejected.min(spans);
        Judged { exported: spans - dropped, dropped, unknown: 0, problem }
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PartialSuccess {
    /// The number of rejected spans: a number, or a string as in the JSON form of protobuf.
    rejected_spans: Value,
    error_message: String,
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
