//! The log of an outage of the database: one line when the database is lost, one when it is back, few in between.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use postcommit_channel::clock;

use crate::db::{DbError, postgres};

/// The shortest time between two log lines about failures of one duty.
const PACE: Duration = Duration::from_secs(10);

/// The log lines that the tasks of one dispatcher have written about the database.
#[derive(Debug, Default)]
pub struct OutageLog {
    is_lost: AtomicBool,
    /// When each duty last logged a failure, by the text of its line.
    logged_at: Mutex<HashMap<&'static str, Instant>>,
}

impl OutageLog {
    /// Logs that a duty failed. The first failure to reach the database is an error. Later lines are warnings, at most
    /// one per duty and ten seconds. `what` says what failed and what happens next.
    pub fn failed(&self, problem: &DbError, what: &'static str) {
        let is_away = matches!(problem, DbError::Unreachable(_)) && !postgres::is_held(problem);
        if is_away && !self.is_lost.swap(true, Ordering::Relaxed) {
            self.may_log(what);
            return tracing::error!(
                %problem,
                "the database cannot be reached; nothing is claimed or written until it answers, and this process keeps trying"
            );
        }
        if self.may_log(what) {
            tracing::warn!(%problem, "{what}");
        }
    }

    /// Logs that the database is back, if it was lost.
    pub fn worked(&self) {
        if self.is_lost.load(Ordering::Relaxed) && self.is_lost.swap(false, Ordering::Relaxed) {
            tracing::info!("the database answers again; deliveries continue");
        }
    }

    fn may_log(&self, what: &'static str) -> bool {
        let now = clock::monotonic();
        let mut logged = self.logged_at.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = logged.get(what).is_none_or(|at| now.duration_since(*at) >= PACE);
        if is_due {
            logged.insert(what, now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duty_logs_its_failures_at_a_pace_of_its_own() {
        let log = OutageLog::default();
        assert!(log.may_log("claim") && !log.may_log("claim"), "one line in ten seconds");
        assert!(log.may_log("jobs"), "another duty has its own pace");
        log.logged_at.lock().unwrap().insert("claim", clock::monotonic() - PACE);
        assert!(log.may_log("claim"));
    }

    #[test]
    fn the_database_is_lost_only_when_it_cannot_be_reached() {
        let log = OutageLog::default();
        log.failed(&DbError::Unreadable("a row".into()), "claim");
        assert!(!log.is_lost.load(Ordering::Relaxed));
        log.failed(&DbError::Unreachable("connection refused".into()), "claim");
        assert!(log.is_lost.load(Ordering::Relaxed));
        log.worked();
        assert!(!log.is_lost.load(Ordering::Relaxed));
    }
}
