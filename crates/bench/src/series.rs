//! Repeated measurements: median and spread, and a finding that compares two series.

use std::time::Duration;

use crate::report::{Finding, Series, Threshold};

impl Series {
    /// Creates a series of measurements, in the order in which they were made.
    pub fn of(name: impl Into<String>, unit: impl Into<String>, values: Vec<f64>) -> Self {
        let mut sorted = values.clone();
        sorted.sort_by(f64::total_cmp);
        let spread = (sorted.first().copied().unwrap_or(f64::NAN), sorted.last().copied().unwrap_or(f64::NAN));
        Self { name: name.into(), unit: unit.into(), values, median: quantile(&sorted, 0.5), spread }
    }

    /// A series of rates per second.
    pub fn rates(name: impl Into<String>, values: Vec<f64>) -> Self {
        Self::of(name, "/s", values)
    }
}

impl Finding {
    /// Compares the median of Postcommit with the median of the other side, as a ratio.
    pub fn ratio(id: &str, what: impl Into<String>, ours: Series, against: Series) -> Self {
        let figure = ours.median / against.median;
        Self {
            id: id.into(),
            what: what.into(),
            ours,
            against: Some(against),
            figure,
            bar: None,
            held: None,
            note: None,
        }
    }

    /// Creates a finding with a figure that is not compared with another side.
    pub fn figure(id: &str, what: impl Into<String>, ours: Series) -> Self {
        let figure = ours.median;
        Self { id: id.into(), what: what.into(), ours, against: None, figure, bar: None, held: None, note: None }
    }

    /// Creates a finding whose bar could not be judged, because there is nothing to compare with. `why` has the reason.
    pub fn unjudged(
        id: &str,
        what: impl Into<String>,
        ours: Series,
        bar: Threshold,
        why: impl std::fmt::Display,
    ) -> Self {
        let nothing = Series::of("nothing", ours.unit.clone(), vec![]);
        Self { bar: Some(bar), ..Self::ratio(id, what, ours, nothing) }.noting(format!("not measured: {why}"))
    }

    /// Compares the figure with a bar, the limit that it must keep.
    pub fn must(mut self, bar: Threshold) -> Self {
        self.bar = Some(bar);
        self.held = Some(bar.holds(self.figure));
        self
    }

    /// Adds a note for the reader.
    pub fn noting(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }
}

impl Threshold {
    /// Returns whether the figure reaches the bar. A figure that could not be measured does not.
    pub fn holds(self, figure: f64) -> bool {
        match self {
            Self::AtLeast(least) => figure >= least,
            Self::AtMost(most) => figure <= most,
        }
    }
}

/// Returns the rate per second.
pub fn rate(count: u64, took: Duration) -> f64 {
    count as f64 / took.as_secs_f64()
}

/// A quantile of a sorted list, interpolated between two values.
pub fn quantile(sorted: &[f64], share: f64) -> f64 {
    if sorted.is_empty() {
        return f64::NAN;
    }
    let position = share * (sorted.len() - 1) as f64;
    let (low, high) = (sorted[position.floor() as usize], sorted[position.ceil() as usize]);
    low + (high - low) * position.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(values: &[f64]) -> Series {
        Series::rates("x", values.to_vec())
    }

    #[test]
    fn a_series_has_a_median_and_a_spread() {
        let odd = rates(&[3.0, 1.0, 2.0]);
        assert_eq!((odd.median, odd.spread, odd.values), (2.0, (1.0, 3.0), vec![3.0, 1.0, 2.0]));
        assert_eq!(rates(&[1.0, 2.0]).median, 1.5);
        assert!(rates(&[]).median.is_nan());
        let hundred: Vec<f64> = (0..=100).map(f64::from).collect();
        assert_eq!(quantile(&hundred, 0.99), 99.0);
    }

    #[test]
    fn a_bar_is_held_or_missed_by_the_ratio_of_the_medians() {
        let found =
            |ours: &[f64], bar| Finding::ratio("P0", "x", rates(ours), rates(&[10.0, 10.0, 50.0])).must(bar).held;
        assert_eq!(found(&[6.0, 1.0, 9.0], Threshold::AtLeast(0.6)), Some(true));
        assert_eq!(found(&[5.9], Threshold::AtLeast(0.6)), Some(false));
        assert_eq!(found(&[12.0], Threshold::AtMost(1.2)), Some(true));
        assert_eq!(found(&[12.1], Threshold::AtMost(1.2)), Some(false));
        assert_eq!(found(&[], Threshold::AtMost(1.2)), Some(false), "what was not measured is not held");
        assert_eq!(Finding::figure("P0", "x", rates(&[3.0])).held, None);
    }
}
