//! Crash points: named places where a test can kill, stop or fail the real process. Without the feature `crash-points`
//! they compile to nothing.
//!
//! `POSTCOMMIT_CRASH=name:nth:action` acts the nth time the process passes that place: `kill` ends the process like
//! SIGKILL, `stop` freezes it like SIGSTOP, `error` panics.
//!
//! `POSTCOMMIT_LEAK=name` removes the tenant from the query of that name, as a bug would: [`held_to`].

/// A crash point.
#[macro_export]
macro_rules! crash_point {
    ($name:literal) => {
        #[cfg(feature = "crash-points")]
        $crate::crash::pass($name);
    };
}

/// All crash points in the order of the flow.
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
];

/// The tenant that a query is restricted to. With a planted leak it is dropped: a test shows that this is noticed, and
/// that row-level security still hides the rows.
#[must_use]
pub fn held_to(tenant: Option<i32>, name: &str) -> Option<i32> {
    let is_planted = cfg!(feature = "crash-points") && std::env::var("POSTCOMMIT_LEAK").is_ok_and(|leak| leak == name);
    if is_planted {
        eprintln!("leak {name}: the tenant is forgotten");
        return None;
    }
    tenant
}

/// Acts if the environment names this place and this is the nth time it is passed.
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

/// Uses the `kill` of the shell: otherwise signals need unsafe code or a dependency, and this code never ships.
#[cfg(feature = "crash-points")]
fn signal_self(signal: &str) {
    let kill = format!("kill -{signal} {}", std::process::id());
    let _ = std::process::Command::new("sh").args(["-c", &kill]).status();
    // The first thread that sees SIGSTOP begins the stop, and this thread is stopped a moment later. It must not run on
    // meanwhile.
    if signal == "STOP" {
        std::thread::sleep(std::time::Duration::from_millis(500));
    }
}
