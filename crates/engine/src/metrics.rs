//! Metrics: counters of this process, and the state of the store. Counters are atomic additions where the events
//! happen. The state of the store is read when metrics are scraped.
//!
//! The number of label values is bounded. No label contains a tenant or an id, and the number of event types and
//! channels is limited.

mod instruments;
mod scrape;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use postcommit_channel::clock;
use postcommit_channel::model::{DeliveryState, ErrorClass, FinishedState, Happened};

use crate::FastMap;
use crate::store::Fate;

pub use instruments::{Counter, Gauge, Histogram, PrometheusText};
pub use scrape::Scrape;

/// The default limit of event types with a label of their own. Further event types are counted as `other`.
pub const EVENT_TYPES: usize = 200;
/// The most channels of one event type with a label of their own. Further channels are counted as `other`.
const CHANNELS: usize = 50;
/// The most combinations of route, method and status. The server's routes stay below this limit.
const ROUTES: usize = 2000;
const OTHER: &str = "other";

/// Bucket bounds in seconds, for calls over a network.
const SECONDS: [f64; 14] = [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
/// Bucket bounds for the number of results in one settle statement.
const SIZES: [f64; 9] = [1.0, 2.0, 5.0, 10.0, 50.0, 100.0, 250.0, 500.0, 1000.0];

/// The number of error classes.
const CLASSES: usize = ErrorClass::ALL.len();
const OUTCOMES: [&str; 5] = ["sent", "delivered", "deferred", "rejected", "unclear"];

/// The counts of one event type on one channel.
#[derive(Debug)]
pub struct Counts {
    /// Attempts by outcome and error class. The last counter of each outcome is for attempts without a class.
    attempts: [[Counter; CLASSES + 1]; 5],
    states: [Counter; DeliveryState::ENDED.len()],
    send: Histogram<14>,
}

impl Counts {
    fn new() -> Self {
        Self { attempts: Default::default(), states: Default::default(), send: Histogram::new(&SECONDS) }
    }

    /// Counts an attempt by its outcome and, if it failed, by the class of its error.
    pub fn attempt(&self, outcome: &str, class: Option<ErrorClass>) {
        if let Some(place) = OUTCOMES.iter().position(|name| *name == outcome) {
            self.attempts[place][class.map_or(CLASSES, |class| class as usize)].add(1);
        }
    }

    /// Counts a delivery that has ended.
    pub fn ended(&self, state: FinishedState) {
        if let Some(place) = DeliveryState::ENDED.iter().position(|ended| ended.name() == state.name()) {
            self.states[place].add(1);
        }
    }

    /// Records how long a send to a provider took.
    pub fn sent(&self, took: Duration) {
        self.send.took(took);
    }
}

/// Counts by event type and channel.
type ByEvent = FastMap<Box<str>, FastMap<Box<str>, Arc<Counts>>>;

/// The labels of counted requests: method, route and status.
type RequestLabels = (String, String, u16);

/// The metrics of a process. Cheap to clone; clones share their counts.
#[derive(Clone)]
pub struct Metrics(Arc<Instruments>);

/// The counters, gauges and histograms of [`Metrics`].
pub struct Instruments {
    by_event: RwLock<ByEvent>,
    event_types: usize,
    began: postcommit::Timestamp,
    /// Time from the commit, or from the due time if that is later, to the first attempt.
    commit_to_send: Histogram<14>,
    pub claims: Counter,
    /// How many deliveries were claimed.
    pub claimed: Counter,
    settle_size: Histogram<9>,
    /// Results that arrived after another worker had taken over their lease.
    pub stale_settles: Counter,
    /// Results that the database refuses. They are kept and written again.
    pub unwritten: Gauge,
    /// Attempts with an unclear outcome that are repeated.
    pub possible_duplicates: Counter,
    /// How often this process tripped the breaker of a provider or a host.
    pub trips: Counter,
    /// Deliveries that this process moved to the next provider.
    pub failovers: Counter,
    /// How many dispatchers run in this process.
    pub dispatchers: Gauge,
    /// When a dispatcher last looked for work, in milliseconds since 1970.
    pub looked_at: Gauge,
    /// Receipts by event and fate.
    receipts: [[Counter; Fate::ALL.len()]; Happened::ALL.len()],
    http: Mutex<BTreeMap<RequestLabels, Counter>>,
    http_seconds: Mutex<BTreeMap<String, Histogram<14>>>,
    /// The number of open HTTP connections.
    pub connections: Gauge,
    /// The number of open event streams.
    pub streams: Gauge,
    /// Spans that the collector accepted.
    pub spans_exported: Counter,
    /// Spans that were dropped because the queue was full or the collector failed.
    pub spans_dropped: Counter,
    /// Spans that the collector may have accepted or rejected: it accepted the request, and its answer could not be read.
    pub spans_unknown: Counter,
}

impl std::ops::Deref for Metrics {
    type Target = Instruments;

    fn deref(&self) -> &Instruments {
        &self.0
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new(EVENT_TYPES)
    }
}

impl Metrics {
    /// Creates metrics with a limit of event types that get a label of their own.
    pub fn new(event_types: usize) -> Self {
        Self(Arc::new(Instruments {
            by_event: RwLock::default(),
            event_types,
            began: clock::now(),
            commit_to_send: Histogram::new(&SECONDS),
            claims: Counter::default(),
            claimed: Counter::default(),
            settle_size: Histogram::new(&SIZES),
            stale_settles: Counter::default(),
            unwritten: Gauge::default(),
            possible_duplicates: Counter::default(),
            trips: Counter::default(),
            failovers: Counter::default(),
            dispatchers: Gauge::default(),
            looked_at: Gauge::default(),
            receipts: Default::default(),
            http: Mutex::default(),
            http_seconds: Mutex::default(),
            connections: Gauge::default(),
            streams: Gauge::default(),
            spans_exported: Counter::default(),
            spans_dropped: Counter::default(),
            spans_unknown: Counter::default(),
        }))
    }

    /// Returns the counts of an event type on a channel. For a known pair this takes two lookups and no allocation.
    pub fn of(&self, event_type: &str, channel: &str) -> Arc<Counts> {
        let known = self.by_event.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(counts) = known.get(event_type).and_then(|channels| channels.get(channel)) {
            return counts.clone();
        }
        drop(known);
        self.of_new(event_type, channel)
    }

    fn of_new(&self, event_type: &str, channel: &str) -> Arc<Counts> {
        let mut known = self.by_event.write().unwrap_or_else(PoisonError::into_inner);
        let full = known.len() >= self.event_types;
        let event_type = if full && !known.contains_key(event_type) { OTHER } else { event_type };
        let channels = known.entry(event_type.into()).or_default();
        let channel = if channels.len() >= CHANNELS && !channels.contains_key(channel) { OTHER } else { channel };
        channels.entry(channel.into()).or_insert_with(|| Arc::new(Counts::new())).clone()
    }

    /// Records how long a delivery waited for its first attempt.
    pub fn began_after(&self, wait: Duration) {
        self.commit_to_send.took(wait);
    }

    /// Records how many results one settle statement writes.
    pub fn settled(&self, results: usize) {
        self.settle_size.saw(results);
    }

    /// Counts a receipt that was applied or ignored, or that must wait for its delivery.
    pub fn receipt(&self, happened: Happened, fate: Fate) {
        self.receipts[happened as usize][fate as usize].add(1);
    }

    /// Counts an answered request. `route` must be the route's pattern and never the path, which may contain ids.
    pub fn answered(&self, method: &str, route: &str, status: u16, took: Duration) {
        let mut http = self.http.lock().unwrap_or_else(PoisonError::into_inner);
        let full = http.len() >= ROUTES;
        let asked = (method.to_owned(), route.to_owned(), status);
        let asked = if full && !http.contains_key(&asked) { (OTHER.into(), OTHER.into(), status) } else { asked };
        http.entry(asked).or_default().add(1);
        drop(http);
        let mut seconds = self.http_seconds.lock().unwrap_or_else(PoisonError::into_inner);
        let route = if seconds.len() >= ROUTES && !seconds.contains_key(route) { OTHER } else { route };
        seconds.entry(route.to_owned()).or_insert_with(|| Histogram::new(&SECONDS)).took(took);
    }

    /// Writes the metrics of this process as Prometheus text.
    fn write(&self, text: &mut PrometheusText) {
        self.write_events(text);
        text.head(
            "postcommit_commit_to_send_seconds",
            "histogram",
            "Time from enqueue, or from the due time if that is later, to the first attempt.",
        );
        text.histogram("postcommit_commit_to_send_seconds", &[], &self.commit_to_send);
        text.one("postcommit_claims_total", "counter", "Claims of deliveries from the queue.", self.claims.read());
        text.one("postcommit_claimed_total", "counter", "Deliveries claimed from the queue.", self.claimed.read());
        text.head(
            "postcommit_settle_batch_size",
            "histogram",
            "Number of results of sends that are written to the database in one batch.",
        );
        text.histogram("postcommit_settle_batch_size", &[], &self.settle_size);
        text.one(
            "postcommit_stale_settles_total",
            "counter",
            "Results of sends that came after the lease of their delivery had gone to another worker.",
            self.stale_settles.read(),
        );
        text.one(
            "postcommit_unwritten_results",
            "gauge",
            "Results of sends that the database refuses. This process keeps them and writes them again.",
            self.unwritten.read(),
        );
        text.one(
            "postcommit_possible_duplicates_total",
            "counter",
            "Attempts with an unknown outcome that are repeated with the same idempotency key.",
            self.possible_duplicates.read(),
        );
        text.one(
            "postcommit_breaker_trips_total",
            "counter",
            "How often this process tripped the breaker of a provider or a host.",
            self.trips.read(),
        );
        text.one(
            "postcommit_failovers_total",
            "counter",
            "Deliveries that this process moved to the next provider, because their own could not send.",
            self.failovers.read(),
        );
        text.one("postcommit_dispatchers", "gauge", "Dispatchers that run in this process.", self.dispatchers.read());
        // A process without a dispatcher does not export this metric. A 0 would look like a dispatcher that never
        // looked.
        if self.dispatchers.read() > 0 {
            text.one(
                "postcommit_dispatcher_last_look_timestamp_seconds",
                "gauge",
                "Unix time at which a dispatcher of this process last looked for work; 0 means not yet.",
                self.looked_at.read() as f64 / 1e3,
            );
        }
        text.head(
            "postcommit_receipts_total",
            "counter",
            "Receipts of providers by event and fate. A receipt that waits is counted at each look for its delivery.",
        );
        for (happened, fates) in Happened::ALL.iter().zip(&self.receipts) {
            for (fate, count) in Fate::ALL.iter().zip(fates).filter(|(_, count)| count.read() > 0) {
                let labels = [("event", happened.name()), ("fate", fate.name())];
                text.sample("postcommit_receipts_total", &labels, count.read());
            }
        }
        self.write_http(text);
        text.one(
            "postcommit_spans_exported_total",
            "counter",
            "Trace spans that the collector accepted.",
            self.spans_exported.read(),
        );
        text.one(
            "postcommit_spans_dropped_total",
            "counter",
            "Trace spans that were dropped because the buffer was full or the collector did not accept them.",
            self.spans_dropped.read(),
        );
        text.one(
            "postcommit_spans_unknown_total",
            "counter",
            "Trace spans in requests that the collector accepted with an answer that could not be read.",
            self.spans_unknown.read(),
        );
        let began = self.began.as_micros() as f64 / 1e6;
        text.one("postcommit_start_time_seconds", "gauge", "Unix time at which this process started.", began);
        text.head("postcommit_build_info", "gauge", "The version of this process, as a label.");
        text.sample("postcommit_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
    }

    fn write_events(&self, text: &mut PrometheusText) {
        let known = self.by_event.read().unwrap_or_else(PoisonError::into_inner);
        let all: BTreeMap<(&str, &str), &Arc<Counts>> = known
            .iter()
            .flat_map(|(event, channels)| {
                channels.iter().map(move |(channel, counts)| ((&**event, &**channel), counts))
            })
            .collect();
        text.head("postcommit_attempts_total", "counter", "Attempts by outcome and class of error.");
        for ((event, channel), counts) in &all {
            for (outcome, by_class) in OUTCOMES.iter().zip(&counts.attempts) {
                let classes = ErrorClass::ALL.iter().map(|class| Some(("error_class", class.name()))).chain([None]);
                for (class, count) in classes.zip(by_class).filter(|(_, count)| count.read() > 0) {
                    let labels = [("event_type", *event), ("channel", *channel), ("outcome", *outcome)];
                    let labels: Vec<_> = labels.into_iter().chain(class).collect();
                    text.sample("postcommit_attempts_total", &labels, count.read());
                }
            }
        }
        text.head("postcommit_deliveries_total", "counter", "Deliveries that ended, by state.");
        for ((event, channel), counts) in &all {
            for (state, count) in DeliveryState::ENDED.iter().zip(&counts.states).filter(|(_, count)| count.read() > 0)
            {
                text.sample(
                    "postcommit_deliveries_total",
                    &[("event_type", *event), ("channel", *channel), ("state", state.name())],
                    count.read(),
                );
            }
        }
        text.head("postcommit_send_seconds", "histogram", "Time that sends took, by event type and channel.");
        for ((event, channel), counts) in &all {
            text.histogram("postcommit_send_seconds", &[("event_type", *event), ("channel", *channel)], &counts.send);
        }
    }

    fn write_http(&self, text: &mut PrometheusText) {
        text.head("postcommit_http_requests_total", "counter", "HTTP requests that were answered.");
        for ((method, route, status), count) in self.http.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let labels = [("method", method.as_str()), ("route", route.as_str()), ("status", &status.to_string())];
            text.sample("postcommit_http_requests_total", &labels, count.read());
        }
        text.head("postcommit_http_request_seconds", "histogram", "Time that HTTP requests took, by route.");
        for (route, seconds) in self.http_seconds.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            text.histogram("postcommit_http_request_seconds", &[("route", route)], seconds);
        }
        text.one("postcommit_http_connections", "gauge", "HTTP connections that are open.", self.connections.read());
        text.one("postcommit_http_streams", "gauge", "Event streams (SSE) that are open.", self.streams.read());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_bounded() {
        let metrics = Metrics::new(3);
        for i in 0..10 {
            metrics.of(&format!("event{i}"), "email").attempt("sent", None);
        }
        for i in 0..100 {
            metrics.of("event0", &format!("channel{i}")).ended(FinishedState::Sent);
        }
        let mut text = PrometheusText::default();
        metrics.write(&mut text);
        let text = text.into_string();
        assert!(
            text.contains("postcommit_attempts_total{event_type=\"event2\",channel=\"email\",outcome=\"sent\"} 1\n"),
            "{text}"
        );
        assert!(
            text.contains("postcommit_attempts_total{event_type=\"other\",channel=\"email\",outcome=\"sent\"} 7\n"),
            "{text}"
        );
        assert!(text.contains("{event_type=\"event0\",channel=\"other\",state=\"sent\"} 51\n"), "{text}");
        assert_eq!(text.lines().filter(|line| line.starts_with("postcommit_deliveries_total")).count(), CHANNELS);
    }

    #[test]
    fn only_a_process_that_dispatches_exports_when_it_last_looked() {
        let metrics = Metrics::default();
        let exported = || {
            let mut text = PrometheusText::default();
            metrics.write(&mut text);
            text.into_string().contains("postcommit_dispatcher_last_look_timestamp_seconds 0\n")
        };
        assert!(!exported(), "without a dispatcher");
        metrics.dispatchers.add(1);
        assert!(exported(), "a dispatcher that has not looked yet");
        metrics.dispatchers.add(-1);
        assert!(!exported(), "after its end");
    }

    #[test]
    fn requests_are_counted_by_route() {
        let metrics = Metrics::default();
        metrics.answered("GET", "/v1/kpis", 200, Duration::from_millis(3));
        metrics.answered("GET", "/v1/kpis", 401, Duration::from_millis(3));
        let mut text = PrometheusText::default();
        metrics.write(&mut text);
        let text = text.into_string();
        assert!(
            text.contains("postcommit_http_requests_total{method=\"GET\",route=\"/v1/kpis\",status=\"401\"} 1\n"),
            "{text}"
        );
        assert!(text.contains("postcommit_http_request_seconds_count{route=\"/v1/kpis\"} 2\n"), "{text}");
    }
}
