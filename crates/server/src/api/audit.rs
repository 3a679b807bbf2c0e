//! Who changed what.

use axum::Json;
use axum::extract::State;
use postcommit::Timestamp;
use postcommit_engine::model::Scope;
use postcommit_engine::store::{AuditFilter, AuditRow};
use serde::Deserialize;
use utoipa::IntoParams;

use super::page::{self, Limit, Page};
use super::problem::Problem;
use super::read::Params;
use super::{OfTenant, Refusals, Shared};
use crate::auth::Caller;

/// Which entries.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Wanted {
    /// Only by this actor, e.g. `key:…`.
    actor: Option<String>,
    /// Only this action, e.g. `delivery.retry`.
    action: Option<String>,
    /// Only on this, e.g. a delivery's id or a provider's name.
    subject: Option<String>,
    /// Only at this time or later.
    from: Option<Timestamp>,
    /// Only before this time.
    to: Option<Timestamp>,
    /// Rows of a page.
    #[serde(default)]
    #[param(value_type = Option<i64>, minimum = 1, maximum = 200, default = 50)]
    limit: Limit,
    /// `next` of the page before.
    cursor: Option<String>,
}

/// The audit log, newest first: who, what, on which filter, how many.
#[utoipa::path(get, path = "/v1/audit", tag = "audit", security(("key" = ["admin"])), params(Wanted, OfTenant),
    responses((status = 200, description = "A page", body = Page<AuditRow>), Refusals))]
pub async fn list_audit(
    State(api): State<Shared>,
    caller: Caller,
    Params(wanted): Params<Wanted>,
) -> Result<Json<Page<AuditRow>>, Problem> {
    caller.may(Scope::Admin)?;
    let limit = wanted.limit.0;
    let filter = AuditFilter {
        tenant: caller.whose(),
        actor: wanted.actor,
        action: wanted.action,
        subject: wanted.subject,
        from: wanted.from,
        to: wanted.to,
        before: wanted.cursor.as_deref().map(page::decode).transpose()?,
        limit: limit + 1,
    };
    Ok(Json(Page::of(caller.store(&api).audit_rows(&filter).await?, limit, |entry| entry.id)))
}
