//! The processor time of a measurement, read from Linux's `/proc`. On other systems it is missing.

use std::time::Duration;

use crate::failure::Failure;
use crate::report::{Finding, Series};
use crate::series::rate;

/// Clock ticks per second in `/proc`, which do not depend on the kernel's configuration.
const TICKS: f64 = 100.0;

/// A rate, and the processor time of one unit of work.
#[derive(Debug, Clone, Copy)]
pub struct MeasuredRate {
    pub rate: f64,
    spent: Option<ProcessorTime>,
}

/// Processor time in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
struct ProcessorTime {
    /// The processor time of this process.
    here: f64,
    /// The processor time of other processes, such as the database or a receiver.
    elsewhere: f64,
    idle: f64,
}

/// Does `count` units of work and returns the rate.
pub async fn measure_rate(
    count: u64,
    work: impl Future<Output = Result<Duration, Failure>>,
) -> Result<MeasuredRate, Failure> {
    let before = ProcessorTime::so_far();
    let took = work.await?;
    let spent = ProcessorTime::so_far().zip(before).map(|(after, before)| after.since(before).of_each(count));
    Ok(MeasuredRate { rate: rate(count, took), spent })
}

impl ProcessorTime {
    /// The processor time since the machine and this process were started.
    fn so_far() -> Option<Self> {
        Self::read(&std::fs::read_to_string("/proc/self/stat").ok()?, &std::fs::read_to_string("/proc/stat").ok()?)
    }

    fn read(own: &str, all: &str) -> Option<Self> {
        // The second field is the program's name in parentheses, which may contain spaces and parentheses. So the fields
        // are counted from the last closing parenthesis: utime is the 12th after it, and stime the 13th.
        let mut own = own.rsplit_once(')')?.1.split_whitespace().skip(11);
        let here = own.next()?.parse::<f64>().ok()? + own.next()?.parse::<f64>().ok()?;
        // user, nice, system, idle, iowait, irq, softirq
        let fields: Vec<f64> =
            all.lines().next()?.split_whitespace().skip(1).map_while(|field| field.parse().ok()).collect();
        let [user, nice, system, idle, waiting, irq, softirq, ..] = fields[..] else { return None };
        let busy = user + nice + system + irq + softirq;
        Some(Self { here: here / TICKS, elsewhere: (busy - here) / TICKS, idle: (idle + waiting) / TICKS })
    }

    fn since(self, before: Self) -> Self {
        self.with(before, |after, before| (after - before).max(0.0))
    }

    fn of_each(self, count: u64) -> Self {
        self.with(self, |all, _| all / count as f64)
    }

    fn with(self, other: Self, of: impl Fn(f64, f64) -> f64) -> Self {
        Self {
            here: of(self.here, other.here),
            elsewhere: of(self.elsewhere, other.elsewhere),
            idle: of(self.idle, other.idle),
        }
    }
}

impl Series {
    /// The rate of every round.
    pub fn measured_rates(name: impl Into<String>, measured: &[MeasuredRate]) -> Self {
        Self::rates(name, measured.iter().map(|measured| measured.rate).collect())
    }
}

impl Finding {
    /// Adds a note with the processor time of one unit of work on both sides and, if the bar is missed, the known
    /// reasons for that.
    pub fn explained(self, each: &str, ours: &[MeasuredRate], theirs: &[MeasuredRate], known: &str) -> Self {
        let profile = median_round(ours).zip(median_round(theirs)).map(|(ours, theirs)| {
            let told = |spent: ProcessorTime| {
                format!(
                    "{:.1} µs in this process, {:.1} in others, {:.1} idle",
                    spent.here * 1e6,
                    spent.elsewhere * 1e6,
                    spent.idle * 1e6
                )
            };
            format!("{each} took {}; theirs {}", told(ours), told(theirs))
        });
        let known = (self.held == Some(false)).then(|| known.to_owned());
        let note = [profile, known].into_iter().flatten().collect::<Vec<_>>().join(". ");
        if note.is_empty() { self } else { self.noting(note) }
    }
}

/// Returns the processor time of the round with the median rate.
fn median_round(measured: &[MeasuredRate]) -> Option<ProcessorTime> {
    let mut sorted: Vec<&MeasuredRate> = measured.iter().collect();
    sorted.sort_by(|a, b| f64::total_cmp(&a.rate, &b.rate));
    sorted.get(sorted.len() / 2)?.spent
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "77 (a) b) S 1 77 77 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 4 0 123 1 1";
    const ALL: &str = "cpu  1000 100 400 5000 500 10 90 0 0 0\ncpu0 1 2 3 4 5 6 7\n";

    #[test]
    fn processor_time_is_split_into_own_other_and_idle() {
        assert_eq!(ProcessorTime::read(OWN, ALL), Some(ProcessorTime { here: 3.0, elsewhere: 13.0, idle: 55.0 }));
        assert_eq!(ProcessorTime::read("nonsense", ALL), None);
        assert_eq!(ProcessorTime::read(OWN, "cpu 1 2"), None);
    }

    #[test]
    fn a_missed_bar_says_what_is_known_and_a_held_one_does_not() {
        let measured_rates =
            |rate| vec![MeasuredRate { rate, spent: Some(ProcessorTime { here: 1e-6, elsewhere: 2e-6, idle: 0.0 }) }];
        let found = |ours: f64| {
            Finding::ratio(
                "P0",
                "x",
                Series::measured_rates("a", &measured_rates(ours)),
                Series::measured_rates("b", &measured_rates(10.0)),
            )
            .must(crate::report::Threshold::AtLeast(0.6))
            .explained("a delivery", &measured_rates(ours), &measured_rates(10.0), "Known.")
            .note
            .unwrap()
        };
        assert_eq!(
            found(9.0),
            "a delivery took 1.0 µs in this process, 2.0 in others, 0.0 idle; theirs 1.0 µs in this process, 2.0 in others, 0.0 idle"
        );
        assert!(found(5.0).ends_with(" idle. Known."), "{}", found(5.0));
    }
}
