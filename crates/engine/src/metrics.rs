//! Metrics: what this process has done, counted where it happens, in a few additions that nobody waits for; and how the store stands, asked when somebody looks.
//!
//! Labels are bounded: no tenant, no id, and only so many event types and channels have a name of their own.

mod instruments;
mod scrape;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use postcommit_channel::clock;
use postcommit_channel::model::FinishedState;

pub use instruments::{Counter, Gauge, Histogram, Text};
pub use scrape::Scrape;

/// Event types that have a name of their own unless told otherwise; what comes later is `other`.
pub const EVENT_TYPES: usize = 200;
/// Channels of one event type that have a name of their own.
const CHANNELS: usize = 50;
/// Routes, methods and statuses together that have a name of their own: a bound that no table of routes reaches.
const ROUTES: usize = 2000;
const OTHER: &str = "other";

/// Seconds, for what crosses a network.
const SECONDS: [f64; 14] = [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
/// Results written at once.
const SIZES: [f64; 9] = [1.0, 2.0, 5.0, 10.0, 50.0, 100.0, 250.0, 500.0, 1000.0];

const OUTCOMES: [&str; 5] = ["sent", "delivered", "deferred", "rejected", "unclear"];
const STATES: [&str; 6] = ["sent", "delivered", "parked", "cancelled", "expired", "skipped"];

/// What is counted for one event type on one channel.
#[derive(Debug)]
pub struct Counts {
    attempts: [Counter; 5],
    states: [Counter; 6],
    send: Histogram<14>,
}

impl Counts {
    fn new() -> Self {
        Self { attempts: Default::default(), states: Default::default(), send: Histogram::new(&SECONDS) }
    }

    /// An attempt was logged, with that outcome.
    pub fn attempt(&self, outcome: &str) {
        if let Some(place) = OUTCOMES.iter().position(|name| *name == outcome) {
            self.attempts[place].add(1);
        }
    }

    /// A delivery has ended.
    pub fn ended(&self, state: FinishedState) {
        if let Some(place) = STATES.iter().position(|name| *name == state.name()) {
            self.states[place].add(1);
        }
    }

    /// A provider took so long.
    pub fn sent(&self, took: Duration) {
        self.send.took(took);
    }
}

/// Counts by event type and channel.
type ByEvent = HashMap<Box<str>, HashMap<Box<str>, Arc<Counts>>>;

/// One route's requests that ended with one status.
type Asked = (String, String, u16);

/// All of a process. Cheap to clone; clones count together.
#[derive(Clone)]
pub struct Metrics(Arc<Counted>);

/// What is counted.
pub struct Counted {
    by_event: RwLock<ByEvent>,
    event_types: usize,
    began: postcommit::Timestamp,
    /// From commit, or from when it was due, to the first attempt.
    commit_to_send: Histogram<14>,
    /// Claims made, and deliveries that they brought.
    pub claims: Counter,
    /// Deliveries claimed.
    pub claimed: Counter,
    settle_size: Histogram<9>,
    /// Results whose lease had gone to someone else.
    pub stale_settles: Counter,
    /// Results that the database refuses, kept until it takes them.
    pub unwritten: Gauge,
    /// Unclear attempts that are made again.
    pub possible_duplicates: Counter,
    /// Dispatchers that run in this process.
    pub dispatchers: Gauge,
    /// When one of them last looked for work, in milliseconds since 1970.
    pub looked_at: Gauge,
    http: Mutex<BTreeMap<Asked, Counter>>,
    http_seconds: Mutex<BTreeMap<String, Histogram<14>>>,
    /// Connections that are open.
    pub connections: Gauge,
    /// Streams of events that are open.
    pub streams: Gauge,
    /// Spans that were taken by the collector.
    pub spans_exported: Counter,
    /// Spans that found no room or no collector.
    pub spans_dropped: Counter,
}

impl std::ops::Deref for Metrics {
    type Target = Counted;

    fn deref(&self) -> &Counted {
        &self.0
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new(EVENT_TYPES)
    }
}

impl Metrics {
    /// With so many event types that have a name of their own.
    #[must_use]
    pub fn new(event_types: usize) -> Self {
        Self(Arc::new(Counted {
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
            dispatchers: Gauge::default(),
            looked_at: Gauge::default(),
            http: Mutex::default(),
            http_seconds: Mutex::default(),
            connections: Gauge::default(),
            streams: Gauge::default(),
            spans_exported: Counter::default(),
            spans_dropped: Counter::default(),
        }))
    }

    /// Where an event type on a channel is counted. Known ones cost two lookups and no allocation.
    #[must_use]
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

    /// A first attempt begins so long after it could have.
    pub fn began_after(&self, wait: Duration) {
        self.commit_to_send.took(wait);
    }

    /// So many results were written at once.
    pub fn settled(&self, results: usize) {
        self.settle_size.saw(results);
    }

    /// A request was answered. `route` is the pattern, never the path.
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

    /// What this process has done.
    fn write(&self, text: &mut Text) {
        self.write_events(text);
        text.head("postcommit_commit_to_send_seconds", "histogram", "From enqueue, or from when it was due, to the first attempt.");
        text.histogram("postcommit_commit_to_send_seconds", &[], &self.commit_to_send);
        text.one("postcommit_claims_total", "counter", "Claims made.", self.claims.read());
        text.one("postcommit_claimed_total", "counter", "Deliveries claimed.", self.claimed.read());
        text.head("postcommit_settle_batch_size", "histogram", "Results written at once.");
        text.histogram("postcommit_settle_batch_size", &[], &self.settle_size);
        text.one(
            "postcommit_stale_settles_total",
            "counter",
            "Results that came after their lease had gone to someone else.",
            self.stale_settles.read(),
        );
        text.one(
            "postcommit_unwritten_results",
            "gauge",
            "Results that the database refuses; they are kept and written again.",
            self.unwritten.read(),
        );
        text.one(
            "postcommit_possible_duplicates_total",
            "counter",
            "Unclear attempts that are made again under the same key.",
            self.possible_duplicates.read(),
        );
        text.one("postcommit_dispatchers", "gauge", "Dispatchers that run in this process.", self.dispatchers.read());
        let looked = self.looked_at.read() as f64 / 1e3;
        text.one(
            "postcommit_dispatcher_last_look_timestamp_seconds",
            "gauge",
            "When a dispatcher of this process last looked for work; 0 is never.",
            looked,
        );
        self.write_http(text);
        text.one("postcommit_spans_exported_total", "counter", "Spans that the collector took.", self.spans_exported.read());
        text.one("postcommit_spans_dropped_total", "counter", "Spans that found no room or no collector.", self.spans_dropped.read());
        let began = self.began.as_micros() as f64 / 1e6;
        text.one("postcommit_start_time_seconds", "gauge", "When this process began.", began);
        text.head("postcommit_build_info", "gauge", "What this process is.");
        text.sample("postcommit_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
    }

    fn write_events(&self, text: &mut Text) {
        let known = self.by_event.read().unwrap_or_else(PoisonError::into_inner);
        let all: BTreeMap<(&str, &str), &Arc<Counts>> = known
            .iter()
            .flat_map(|(event, channels)| channels.iter().map(move |(channel, counts)| ((&**event, &**channel), counts)))
            .collect();
        text.head("postcommit_attempts_total", "counter", "Attempts by outcome.");
        for ((event, channel), counts) in &all {
            for (outcome, count) in OUTCOMES.iter().zip(&counts.attempts).filter(|(_, count)| count.read() > 0) {
                let labels = [("event_type", *event), ("channel", *channel), ("outcome", *outcome)];
                text.sample("postcommit_attempts_total", &labels, count.read());
            }
        }
        text.head("postcommit_deliveries_total", "counter", "Deliveries that ended, by state.");
        for ((event, channel), counts) in &all {
            for (state, count) in STATES.iter().zip(&counts.states).filter(|(_, count)| count.read() > 0) {
                text.sample(
                    "postcommit_deliveries_total",
                    &[("event_type", *event), ("channel", *channel), ("state", *state)],
                    count.read(),
                );
            }
        }
        text.head("postcommit_send_seconds", "histogram", "How long providers took.");
        for ((event, channel), counts) in &all {
            text.histogram("postcommit_send_seconds", &[("event_type", *event), ("channel", *channel)], &counts.send);
        }
    }

    fn write_http(&self, text: &mut Text) {
        text.head("postcommit_http_requests_total", "counter", "Requests answered.");
        for ((method, route, status), count) in self.http.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let labels = [("method", method.as_str()), ("route", route.as_str()), ("status", &status.to_string())];
            text.sample("postcommit_http_requests_total", &labels, count.read());
        }
        text.head("postcommit_http_request_seconds", "histogram", "How long requests took.");
        for (route, seconds) in self.http_seconds.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            text.histogram("postcommit_http_request_seconds", &[("route", route)], seconds);
        }
        text.one("postcommit_http_connections", "gauge", "Connections that are open.", self.connections.read());
        text.one("postcommit_http_streams", "gauge", "Streams of events that are open.", self.streams.read());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_bounded() {
        let metrics = Metrics::new(3);
        for i in 0..10 {
            metrics.of(&format!("event{i}"), "email").attempt("sent");
        }
        for i in 0..100 {
            metrics.of("event0", &format!("channel{i}")).ended(FinishedState::Sent);
        }
        let mut text = Text::default();
        metrics.write(&mut text);
        let text = text.into_string();
        assert!(text.contains("postcommit_attempts_total{event_type=\"event2\",channel=\"email\",outcome=\"sent\"} 1\n"), "{text}");
        assert!(text.contains("postcommit_attempts_total{event_type=\"other\",channel=\"email\",outcome=\"sent\"} 7\n"), "{text}");
        assert!(text.contains("{event_type=\"event0\",channel=\"other\",state=\"sent\"} 51\n"), "{text}");
        assert_eq!(text.lines().filter(|line| line.starts_with("postcommit_deliveries_total")).count(), CHANNELS);
    }

    #[test]
    fn requests_are_counted_by_route() {
        let metrics = Metrics::default();
        metrics.answered("GET", "/v1/kpis", 200, Duration::from_millis(3));
        metrics.answered("GET", "/v1/kpis", 401, Duration::from_millis(3));
        let mut text = Text::default();
        metrics.write(&mut text);
        let text = text.into_string();
        assert!(text.contains("postcommit_http_requests_total{method=\"GET\",route=\"/v1/kpis\",status=\"401\"} 1\n"), "{text}");
        assert!(text.contains("postcommit_http_request_seconds_count{route=\"/v1/kpis\"} 2\n"), "{text}");
    }
}
