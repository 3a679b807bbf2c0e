//! The SQL condition that a lane is closed, which means that no claim may take rows from it now.

/// The condition that the lane of provider `p` is closed at `now`: it is paused or held, or its tenant is suspended. A
/// rate limit does not close a lane. The condition can be NULL, which means that the lane is open, so negate it with
/// `IS NOT TRUE`.
fn closed(p: &str, now: &str, is_suspended: &str) -> String {
    format!("({p}.paused IS NOT NULL OR {p}.held_until > {now} OR {p}.tenant {is_suspended})")
}

/// The condition that the lane of provider `p` is closed, for PostgreSQL. It reads the suspended tenants once per
/// statement, regardless of the plan.
pub(in crate::store) fn closed_postgres(p: &str) -> String {
    closed(p, "now()", "= ANY (ARRAY(SELECT t.id FROM postcommit.tenant t WHERE t.suspended_at IS NOT NULL))")
}

/// The condition that the lane of provider `p` is closed, for SQLite. `now` is the parameter that holds the
/// transaction's time.
pub(in crate::store) fn closed_sqlite(p: &str, now: &str) -> String {
    closed(p, now, "IN (SELECT t.id FROM postcommit_tenant t WHERE t.suspended_at IS NOT NULL)")
}

/// The condition that the lane of provider `p` is closed, in SQL that both databases accept.
pub(in crate::store) fn closed_on_both(p: &str) -> String {
    closed(p, "{now}", "IN (SELECT t.id FROM postcommit.tenant t WHERE t.suspended_at IS NOT NULL)")
}
