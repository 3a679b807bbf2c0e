//! How long providers took to answer, from the newest attempts. No rollup has latencies.

use minijinja::{Value, context};

use crate::ui::chart;
use crate::ui::words::{grouped, shown};

/// The longest latency of each class in milliseconds. Longer latencies are in an additional class.
const CLASSES: [i32; 8] = [20, 50, 100, 250, 500, 1000, 2500, 10_000];

/// The latencies of the newest attempts: the tenant, the provider and the milliseconds, the shortest first.
pub struct Latencies(Vec<(i32, String, i32)>);

impl Latencies {
    /// Takes the tenant, the provider and the milliseconds of attempts.
    pub fn of(attempts: &[(i32, String, i32)]) -> Self {
        let mut all = attempts.to_vec();
        all.sort_by_key(|(.., took)| *took);
        Self(all)
    }

    /// The latency that half of a provider's attempts did not exceed.
    pub fn median_of(&self, tenant: i32, provider: &str) -> Option<i32> {
        let of_provider = self.0.iter().filter(|(of, name, _)| *of == tenant && name == provider);
        at_share(&of_provider.map(|(.., took)| *took).collect::<Vec<_>>(), 50)
    }

    /// The chart with its sentence and its numbers. `None` without attempts.
    pub fn shown(&self) -> Option<Value> {
        let took: Vec<i32> = self.0.iter().map(|(.., took)| *took).collect();
        let (half, most) = (at_share(&took, 50)?, at_share(&took, 95)?);
        let rows = classes(&took);
        let count = i64::try_from(took.len()).unwrap_or(i64::MAX);
        let attempts = if count == 1 { "attempt".into() } else { format!("{} attempts", grouped(count)) };
        let sentence = format!(
            "Of the newest {attempts}, half were answered within {}, and 95 % within {}.",
            in_words(half),
            in_words(most)
        );
        Some(context! {
            chart => Value::from_safe_string(chart::histogram(&rows, &sentence)),
            rows => shown(rows),
            sentence,
        })
    }
}

/// The latency that half of some attempts did not exceed, in words.
pub fn median(mut took: Vec<i32>) -> String {
    took.sort_unstable();
    at_share(&took, 50).map_or_else(|| "–".into(), in_words)
}

/// Returns the value that `percent` of the sorted values do not exceed.
fn at_share(sorted: &[i32], percent: usize) -> Option<i32> {
    let place = (sorted.len() * percent).div_ceil(100);
    sorted.get(place.checked_sub(1)?).copied()
}

/// How many latencies each class has. The classes before the first and after the last one in use are left out.
fn classes(took: &[i32]) -> Vec<(String, u64)> {
    let mut counts = [0; CLASSES.len() + 1];
    for took in took {
        counts[CLASSES.partition_point(|longest| longest < took)] += 1;
    }
    let labels = CLASSES.iter().map(|longest| in_words(*longest)).chain(["more".to_owned()]);
    let rows: Vec<(String, u64)> = labels.zip(counts).collect();
    let first = counts.iter().position(|count| *count > 0).unwrap_or(0);
    let last = counts.iter().rposition(|count| *count > 0).unwrap_or(0);
    rows[first..=last].to_vec()
}

/// Formats a latency, e.g. `120 ms` or `1.2 s`.
pub fn in_words(ms: i32) -> String {
    if ms < 1 {
        "< 1 ms".into()
    } else if ms < 1000 {
        format!("{ms} ms")
    } else {
        format!("{} s", (f64::from(ms) / 100.0).round() / 10.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_told_by_the_median_and_the_share_of_95_percent() {
        let took: Vec<i32> = (1..=100).collect();
        assert_eq!((at_share(&took, 50), at_share(&took, 95), at_share(&[], 50)), (Some(50), Some(95), None));
        assert_eq!((at_share(&[7], 50), at_share(&[7], 95)), (Some(7), Some(7)));
        let said = [20, 21, 300, 300].map(|ms| classes(&[ms]).remove(0).0);
        assert_eq!(said, ["20 ms", "50 ms", "500 ms", "500 ms"]);
        assert_eq!(classes(&[0, 999_999]).last().map(|(label, count)| (label.as_str(), *count)), Some(("more", 1)));
        assert_eq!([999, 1000, 1249, 12_000].map(in_words), ["999 ms", "1 s", "1.2 s", "12 s"]);
        let rows = classes(&[120, 300]);
        assert_eq!(rows.iter().map(|(_, count)| *count).collect::<Vec<_>>(), [1, 1], "{rows:?}");
    }
}
