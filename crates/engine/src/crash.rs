//! Named places where a test can end, stop or fail the real process. Without the feature `crash-points` they are nothing at all.
//!
//! `POSTCOMMIT_CRASH=name:nth:action` acts at the nth passing of that place: `kill` ends the process as SIGKILL would, `stop` freezes it as
//! SIGSTOP does, `error` panics there, as a bug would.
//!
//! `POSTCOMMIT_LEAK=name` takes the first wall between tenants away at one place, as a bug would: [`held_to`].

/// A place that a test may name.
#[macro_export]
macro_rules! crash_point {
    ($name:literal) => {
        #[cfg(feature = "crash-points")]
        $crate::crash::pass($name);
    };
}

/// Every place there is, in the order of the flow.
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

/// The tenant that a query is held to. Where the environment plants a leak it is forgotten: a test shows that this is noticed, and that the second wall
/// still stands.
#[must_use]
pub fn held_to(tenant: Option<i32>, name: &str) -> Option<i32> {
    let is_planted = cfg!(feature = "crash-points") && std::env::var("POSTCOMMIT_LEAK").is_ok_and(|leak| leak == name);
    if is_planted {
        eprintln!("leak {name}: the tenant is forgotten");
        return None;
    }
    tenant
}

/// Acts if the environment names this place and it has been passed often enough.
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

/// By the shell's own `kill`: signals need unsafe code or a dependency otherwise, and this never ships.
#[cfg(feature = "crash-points")]
fn signal_self(signal: &str) {
    let kill = format!("kill -{signal} {}", std::process::id());
    let _ = std::process::Command::new("sh").args(["-c", &kill]).status();
    // A stop is begun by whichever thread sees it first and reaches this one a moment later: it must not run on meanwhile.
    if signal == "STOP" {
        std::thread::sleep(std::time::Duration::from_millis(500));
    }
}
