//! Crash points: named places where a test can kill, freeze or fail the real process. Without the feature
//! `crash-points` they compile to nothing.
//!
//! `POSTCOMMIT_CRASH=name:nth:action` triggers the action when the process passes the named place for the nth time.
//! `kill` ends the process with SIGKILL, `stop` freezes it with SIGSTOP, and `error` panics.
//!
//! `POSTCOMMIT_LEAK=name` removes the tenant filter from the query of that name, as a bug might. See [`held_to`].

#[macro_export]
macro_rules! crash_point {
    ($name:literal) => {
        #[cfg(feature = "crash-points")]
        $crate::crash::pass($name);
    };
}

/// All crash points, in the order in which a notification passes them.
pub const POINTS: &[&str] = &[
    "enqueue.before",
    "enqueue.in_tx",
    "enqueue.after_commit",
    "claim.before",
    "claim.in_tx",
    "claim.after_commit",
    "expand.before",
    "expand.in_tx",
    "expand.after_commit",
    "intent.before",
    "intent.in_tx",
    "intent.after_commit",
    "send.before",
    "send.answered",
    "settle.before",
    "settle.in_tx",
    "settle.after_commit",
    "move.before",
    "move.in_tx",
    "move.after_commit",
];

/// Returns the tenant that a query is restricted to. If `POSTCOMMIT_LEAK` names the query, returns `None` instead.
/// Tests use this to show that a missing tenant filter is noticed, and that row-level security still hides the rows.
pub fn held_to(tenant: Option<i32>, name: &str) -> Option<i32> {
    let is_planted = cfg!(feature = "crash-points") && std::env::var("POSTCOMMIT_LEAK").is_ok_and(|leak| leak == name);
    if is_planted {
        eprintln!("leak {name}: the query runs without its tenant filter");
        return None;
    }
    tenant
}

/// Runs the action if `POSTCOMMIT_CRASH` names this place and it is passed for the nth time.
#[cfg(feature = "crash-points")]
pub fn pass(name: &str) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    struct Plan {
        name: String,
        nth: u64,
        action: String,
    }
    static PLAN: OnceLock<Option<Plan>> = OnceLock::new();
    static PASSED: AtomicU64 = AtomicU64::new(0);
    let plan = PLAN.get_or_init(|| {
        let text = std::env::var("POSTCOMMIT_CRASH").ok()?;
        let mut parts = text.split(':').map(str::to_owned);
        Some(Plan { name: parts.next()?, nth: parts.next()?.parse().ok()?, action: parts.next()? })
    });
    let Some(plan) = plan.as_ref().filter(|plan| plan.name == name) else { return };
    if PASSED.fetch_add(1, Ordering::SeqCst) + 1 != plan.nth {
        return;
    }
    eprintln!("crash point {name}: {}", plan.action);
    match plan.action.as_str() {
        "error" => panic!("crash point {name}"),
        action => signal_self(if action == "stop" { "STOP" } else { "KILL" }),
    }
}

/// Sends a signal to this process with the shell's `kill`. Otherwise signals would need unsafe code or a dependency.
/// This code is not part of a release.
#[cfg(feature = "crash-points")]
fn signal_self(signal: &str) {
    let kill = format!("kill -{signal} {}", std::process::id());
    let _ = std::process::Command::new("sh").args(["-c", &kill]).status();
    // SIGSTOP stops this thread with a short delay. The sleep keeps it at the crash point until then.
    if signal == "STOP" {
        std::thread::sleep(std::time::Duration::from_millis(500));
    }
}
