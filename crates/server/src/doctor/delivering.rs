//! Checks whether a process delivers: running dispatchers by their heartbeats, or passes of `dispatch --once`.

use postcommit::Timestamp;
use postcommit_engine::store::Attendance;

use super::{Finding, finding};

/// The age in seconds from which a heartbeat is late. A dispatcher writes a heartbeat every 15 seconds; after two
/// missed heartbeats it may have ended.
const HEARTBEAT_LATE_S: u64 = 35;
/// The interval in seconds below which passes are never late.
const PASSES_S: u64 = 120;
/// The longest interval in seconds between passes that counts as regular delivery, even with an empty queue.
const PASSES_MOST_S: u64 = 600;

const REMEDY: &str = "start `postcommit serve` or `postcommit serve --role worker`, or let cron run `postcommit dispatch --once` every minute";

/// Decides whether a process delivers. A single pass that an operator ran is not enough: if deliveries are due and the
/// last pass is longer ago than the usual interval of passes, the check warns.
pub fn judge(there: &Attendance, now: Timestamp) -> Finding {
    let ago = |at: Option<Timestamp>| at.map(|at| now.since(at).as_secs());
    let job = if there.jobs == 1 { "job" } else { "jobs" };
    let waiting = format!("{} due, {} {job} open", there.due, there.jobs);
    if there.workers > 0 {
        return running(there, [there.last_worker_at, there.oldest_worker_at].map(|at| ago(at).unwrap_or(0)), &waiting);
    }
    let is_waited_for = there.due + there.jobs > 0;
    // Twice the last interval between passes, so that the next pass may be a little late.
    let usual =
        there.last_pass_at.zip(there.earlier_pass_at).map_or(0, |(last, before)| 2 * last.since(before).as_secs());
    let usual = usual.clamp(PASSES_S, PASSES_MOST_S);
    match ago(there.last_pass_at) {
        Some(pass) if pass <= usual || (pass <= PASSES_MOST_S && !is_waited_for) => {
            finding("delivering", "ok", format!("by passes of `dispatch --once`, the last one {pass} s ago; {waiting}"))
        }
        Some(pass) if pass <= PASSES_MOST_S && there.jobs == 0 && ago(there.oldest_due_at) <= Some(usual) => {
            let told = format!("no process has looked for due deliveries for {pass} s; {waiting}: {REMEDY}");
            finding("delivering", "warning", told)
        }
        _ => {
            let last = ago(there.last_worker_at.max(there.last_pass_at))
                .map(|s| format!(", the last sign of one was {s} s ago"))
                .unwrap_or_default();
            let result = if is_waited_for { "problem" } else { "warning" };
            finding("delivering", result, format!("no process delivers{last}; {waiting}: {REMEDY}"))
        }
    }
}

/// The finding if dispatchers have a current heartbeat. The heartbeat of a killed dispatcher stays current for a
/// minute.
fn running(there: &Attendance, [latest, oldest]: [u64; 2], waiting: &str) -> Finding {
    let workers = there.workers;
    let beats = match workers {
        1 => format!("the last heartbeat {latest} s ago"),
        _ => format!("the last heartbeats {latest} to {oldest} s ago"),
    };
    let told = format!("running dispatchers: {workers}, {beats}; {waiting}");
    if latest > HEARTBEAT_LATE_S {
        let told = format!("{told}. A heartbeat is due every 15 s: all of them may have ended or lost the database");
        return finding("delivering", "warning", told);
    }
    let ended = if oldest > HEARTBEAT_LATE_S { ". At least one of them may have ended" } else { "" };
    finding("delivering", "ok", format!("{told}{ended}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

    fn ago(seconds: i64) -> Option<Timestamp> {
        Some(Timestamp::from_micros(NOW.as_micros() - seconds * 1_000_000))
    }

    const IDLE: Attendance = Attendance {
        workers: 0,
        last_worker_at: None,
        oldest_worker_at: None,
        last_pass_at: None,
        earlier_pass_at: None,
        due: 0,
        oldest_due_at: None,
        jobs: 0,
    };

    #[test]
    fn one_pass_by_hand_is_no_cron() {
        for (earlier, pass, due, expected) in [
            (None, 30, 0, "ok"),
            (None, 30, 300, "ok"),
            (None, 300, 0, "ok"),
            (None, 353, 100, "warning"),
            (None, 300, 121, "problem"),
            (None, 121, 121, "problem"),
            (None, 601, 1, "problem"),
            (None, 601, 0, "warning"),
            (Some(600), 300, 100, "ok"),
            (Some(600), 300, 200, "ok"),
            (Some(360), 300, 100, "warning"),
        ] {
            let there = Attendance {
                last_pass_at: ago(pass),
                earlier_pass_at: earlier.and_then(ago),
                due: i64::from(due > 0),
                oldest_due_at: ago(due).filter(|_| due > 0),
                ..IDLE
            };
            let judged = judge(&there, NOW);
            assert_eq!(judged.result, expected, "passes {earlier:?} and {pass} s ago, something due for {due} s");
            assert!(judged.detail.contains(&format!("{pass} s")), "{}", judged.detail);
        }
    }

    #[test]
    fn a_killed_dispatcher_shows_by_its_heartbeat() {
        for (workers, latest, oldest, expected, says) in [
            (1, 3, 3, "ok", "running dispatchers: 1, the last heartbeat 3 s ago; 0 due"),
            (2, 3, 14, "ok", "running dispatchers: 2, the last heartbeats 3 to 14 s ago; 0 due, 0 jobs open"),
            (2, 3, 50, "ok", "At least one of them may have ended"),
            (1, 50, 50, "warning", "all of them may have ended"),
        ] {
            let there = Attendance { workers, last_worker_at: ago(latest), oldest_worker_at: ago(oldest), ..IDLE };
            let judged = judge(&there, NOW);
            assert_eq!(judged.result, expected, "{}", judged.detail);
            assert!(judged.detail.contains(says), "{}", judged.detail);
        }
    }
}
