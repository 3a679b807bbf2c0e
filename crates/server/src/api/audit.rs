//! The audit log.

use axum::Json;
use axum::extract::State;
use postcommit::{Timestamp, limits};
use postcommit_engine::store::{AuditFilter, AuditNoise, AuditRow};
use serde::Deserialize;
use utoipa::IntoParams;

use super::page::{Listing, PageQuery, Paged};
use super::{ProblemResponses, TenantQuery};
use crate::app::AppState;
use crate::auth::Administrator;
use crate::problem::Problem;
use crate::read::check_lengths;

/// The filter of audit entries.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct AuditQuery {
    /// Only entries by this actor, e.g. `key:…`.
    #[param(max_length = 255)]
    actor: Option<String>,
    /// Only entries of this action, e.g. `delivery.retry`.
    #[param(max_length = 255)]
    action: Option<String>,
    /// Only entries about this subject, e.g. a delivery's id or a provider's name.
    #[param(max_length = 255)]
    subject: Option<String>,
    /// `receipts`: leaves out what providers reported. `system`: leaves out everything that providers reported and that
    /// Postcommit did by itself.
    #[param(inline)]
    without: Option<AuditNoise>,
    /// Only entries at this time or later.
    from: Option<Timestamp>,
    /// Only entries before this time.
    until: Option<Timestamp>,
}

/// The audit log, newest first: actor, action, subject or filter, and count.
#[utoipa::path(get, path = "/v1/audit", tag = "audit", security(("key" = ["admin"])), params(AuditQuery, PageQuery, TenantQuery),
    responses((status = 200, description = "A page of the list", body = Listing<AuditRow>), ProblemResponses))]
pub async fn list_audit(
    State(app): State<AppState>,
    Administrator(caller): Administrator,
    Paged(wanted, page): Paged<AuditQuery>,
) -> Result<Json<Listing<AuditRow>>, Problem> {
    let limit = page.limit();
    let names = [
        ("actor", wanted.actor.as_deref()),
        ("action", wanted.action.as_deref()),
        ("subject", wanted.subject.as_deref()),
    ];
    check_lengths(&names, limits::NAME_CHARS)?;
    let filter = AuditFilter {
        tenant: caller.whose(),
        actor: wanted.actor,
        action: wanted.action,
        subject: wanted.subject,
        without: wanted.without,
        from: wanted.from,
        until: wanted.until,
        before: page.place()?,
        limit: limit + 1,
        ..AuditFilter::default()
    };
    Ok(Json(Listing::of(caller.store(&app).audit_rows(&filter).await?, limit, |entry| entry.id)))
}
