//! Where the processors' time went while something was measured: the profile behind a figure. Read from Linux's `/proc`; elsewhere nothing is said.

use std::time::Duration;

use crate::failure::Failure;
use crate::report::{Finding, Series};
use crate::series::rate;

/// Ticks a second in `/proc`, whatever the kernel counts by itself.
const TICKS: f64 = 100.0;

/// How fast something went, and what that took.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    pub rate: f64,
    spent: Option<Spent>,
}

/// Seconds of the processors' time.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Spent {
    /// In this process.
    here: f64,
    /// In others: the database, a receiver.
    elsewhere: f64,
    idle: f64,
}

/// Does `count` things and says how fast that went.
pub async fn pace(count: u64, work: impl Future<Output = Result<Duration, Failure>>) -> Result<Pace, Failure> {
    let before = Spent::so_far();
    let took = work.await?;
    let spent = Spent::so_far().zip(before).map(|(after, before)| after.since(before).of_each(count));
    Ok(Pace { rate: rate(count, took), spent })
}

impl Spent {
    /// Since the machine and this process were started.
    fn so_far() -> Option<Self> {
        Self::read(&std::fs::read_to_string("/proc/self/stat").ok()?, &std::fs::read_to_string("/proc/stat").ok()?)
    }

    fn read(own: &str, all: &str) -> Option<Self> {
        // The second field is the program's name, which may hold anything; utime and stime are the 12th and 13th after it.
        let mut own = own.rsplit_once(')')?.1.split_whitespace().skip(11);
        let here = own.next()?.parse::<f64>().ok()? + own.next()?.parse::<f64>().ok()?;
        // user, nice, system, idle, iowait, irq, softirq
        let fields: Vec<f64> = all.lines().next()?.split_whitespace().skip(1).map_while(|field| field.parse().ok()).collect();
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
        Self { here: of(self.here, other.here), elsewhere: of(self.elsewhere, other.elsewhere), idle: of(self.idle, other.idle) }
    }
}

impl Series {
    /// How fast it went each time.
    pub fn paces(name: impl Into<String>, paces: &[Pace]) -> Self {
        Self::rates(name, paces.iter().map(|pace| pace.rate).collect())
    }
}

impl Finding {
    /// Says what one thing took of the processors, on both sides; and, if the bar is missed, what was found out about that so far.
    pub fn explained(self, each: &str, ours: &[Pace], theirs: &[Pace], known: &str) -> Self {
        let profile = middle(ours).zip(middle(theirs)).map(|(ours, theirs)| {
            let told = |spent: Spent| {
                format!("{:.1} µs in this process, {:.1} in others, {:.1} idle", spent.here * 1e6, spent.elsewhere * 1e6, spent.idle * 1e6)
            };
            format!("{each} took {}; theirs {}", told(ours), told(theirs))
        });
        let known = (self.held == Some(false)).then(|| known.to_owned());
        let note = [profile, known].into_iter().flatten().collect::<Vec<_>>().join(". ");
        if note.is_empty() { self } else { self.noting(note) }
    }
}

/// What it took in the middle round.
fn middle(paces: &[Pace]) -> Option<Spent> {
    let mut sorted: Vec<&Pace> = paces.iter().collect();
    sorted.sort_by(|a, b| f64::total_cmp(&a.rate, &b.rate));
    sorted.get(sorted.len() / 2)?.spent
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "77 (a) b) S 1 77 77 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 4 0 123 1 1";
    const ALL: &str = "cpu  1000 100 400 5000 500 10 90 0 0 0\ncpu0 1 2 3 4 5 6 7\n";

    #[test]
    fn what_is_ours_is_told_from_what_is_others_and_idle() {
        assert_eq!(Spent::read(OWN, ALL), Some(Spent { here: 3.0, elsewhere: 13.0, idle: 55.0 }));
        assert_eq!(Spent::read("nonsense", ALL), None);
        assert_eq!(Spent::read(OWN, "cpu 1 2"), None);
    }

    #[test]
    fn a_missed_bar_says_what_is_known_and_a_held_one_does_not() {
        let paces = |rate| vec![Pace { rate, spent: Some(Spent { here: 1e-6, elsewhere: 2e-6, idle: 0.0 }) }];
        let found = |ours: f64| {
            Finding::ratio("P0", "x", Series::paces("a", &paces(ours)), Series::paces("b", &paces(10.0)))
                .must(crate::report::Bar::AtLeast(0.6))
                .explained("a delivery", &paces(ours), &paces(10.0), "Known.")
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
