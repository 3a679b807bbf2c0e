//! Counters, gauges and histograms that are updated by atomic additions, and their Prometheus text.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

/// A value that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A value that goes up and down.
#[derive(Debug, Default)]
pub struct Gauge(AtomicI64);

impl Gauge {
    pub fn add(&self, more: i64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub fn set(&self, value: i64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub fn read(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A histogram with `N` upper bounds, and one more bucket for values above the last bound.
#[derive(Debug)]
pub struct Histogram<const N: usize> {
    bounds: &'static [f64; N],
    buckets: [AtomicU64; N],
    beyond: AtomicU64,
    /// The sum of all values, in millionths.
    sum: AtomicU64,
}

impl<const N: usize> Histogram<N> {
    /// Creates an empty histogram. The bounds must be ascending.
    pub fn new(bounds: &'static [f64; N]) -> Self {
        Self {
            bounds,
            buckets: std::array::from_fn(|_| AtomicU64::new(0)),
            beyond: AtomicU64::new(0),
            sum: AtomicU64::new(0),
        }
    }

    /// Records a duration, in seconds.
    pub fn took(&self, long: Duration) {
        self.observe(long.as_secs_f64(), u64::try_from(long.as_micros()).unwrap_or(u64::MAX));
    }

    /// Records a size in the histogram.
    pub fn saw(&self, size: usize) {
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        self.observe(size.into(), u64::from(size) * 1_000_000);
    }

    fn observe(&self, value: f64, millionths: u64) {
        let bucket =
            self.bounds.iter().position(|bound| value <= *bound).map_or(&self.beyond, |place| &self.buckets[place]);
        bucket.fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(millionths, Ordering::Relaxed);
    }
}

/// Metrics in the Prometheus text format 0.0.4.
#[derive(Debug, Default)]
pub struct PrometheusText(String);

impl PrometheusText {
    /// Writes the HELP and TYPE lines of a metric.
    pub fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        let _ = writeln!(self.0, "{name}{} {value}", written(labels, None));
    }

    /// Writes a metric with one sample.
    pub fn one(&mut self, name: &str, kind: &str, help: &str, value: impl std::fmt::Display) {
        self.head(name, kind, help);
        self.sample(name, &[], value);
    }

    /// Writes the samples of a histogram.
    pub fn histogram<const N: usize>(&mut self, name: &str, labels: &[(&str, &str)], histogram: &Histogram<N>) {
        let mut below = 0;
        for (bound, bucket) in histogram.bounds.iter().zip(&histogram.buckets) {
            below += bucket.load(Ordering::Relaxed);
            let _ = writeln!(self.0, "{name}_bucket{} {below}", written(labels, Some(&bound.to_string())));
        }
        let count = below + histogram.beyond.load(Ordering::Relaxed);
        let sum = histogram.sum.load(Ordering::Relaxed) as f64 / 1e6;
        let _ = writeln!(self.0, "{name}_bucket{} {count}", written(labels, Some("+Inf")));
        let _ = writeln!(
            self.0,
            "{name}_sum{} {sum}\n{name}_count{} {count}",
            written(labels, None),
            written(labels, None)
        );
    }

    pub fn into_string(self) -> String {
        self.0
    }
}

fn written(labels: &[(&str, &str)], bound: Option<&str>) -> String {
    let escaped = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let pairs: Vec<String> = labels
        .iter()
        .copied()
        .chain(bound.map(|bound| ("le", bound)))
        .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)))
        .collect();
    if pairs.is_empty() { String::new() } else { format!("{{{}}}", pairs.join(",")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_adds_up() {
        let histogram = Histogram::new(&[0.1, 1.0]);
        for millis in [50, 100, 500, 5000] {
            histogram.took(Duration::from_millis(millis));
        }
        let mut text = PrometheusText::default();
        text.histogram("x", &[("a", "b\"\\\n")], &histogram);
        let expected = "x_bucket{a=\"b\\\"\\\\\\n\",le=\"0.1\"} 2\nx_bucket{a=\"b\\\"\\\\\\n\",le=\"1\"} 3\nx_bucket{a=\"b\\\"\\\\\\n\",le=\"+Inf\"} 4\n\
            x_sum{a=\"b\\\"\\\\\\n\"} 5.65\nx_count{a=\"b\\\"\\\\\\n\"} 4\n";
        assert_eq!(text.into_string(), expected);
    }
}
