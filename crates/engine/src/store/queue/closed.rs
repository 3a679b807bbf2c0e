//! The condition that a lane is closed: nothing may be taken from it now.

/// The lane of provider `p` is closed at `now`: it is paused or held, or its tenant is suspended. A rate-limited lane is
/// not closed; only `claim_limited` takes from it. Null is not closed: negate it by `IS NOT TRUE`.
fn closed(p: &str, now: &str, is_suspended: &str) -> String {
    format!("({p}.paused IS NOT NULL OR {p}.not_before > {now} OR {p}.tenant {is_suspended})")
}

/// For PostgreSQL. The suspended tenants are read once per statement, whatever the plan.
pub(in crate::store) fn closed_postgres(p: &str) -> String {
    closed(p, "now()", "= ANY (ARRAY(SELECT t.id FROM postcommit.tenant t WHERE t.suspended_at IS NOT NULL))")
}

/// For SQLite, whose transaction has one time, the parameter `now`.
pub(in crate::store) fn closed_sqlite(p: &str, now: &str) -> String {
    closed(p, now, "IN (SELECT t.id FROM postcommit_tenant t WHERE t.suspended_at IS NOT NULL)")
}

/// For a statement that is written once for both.
pub(in crate::store) fn closed_on_both(p: &str) -> String {
    closed(p, "{now}", "IN (SELECT t.id FROM postcommit.tenant t WHERE t.suspended_at IS NOT NULL)")
}
