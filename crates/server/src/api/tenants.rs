//! Tenants: create, list, change the weight, suspend and resume.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use postcommit_engine::store::{TenantError, TenantRow};
use serde::Deserialize;
use utoipa::ToSchema;

use super::ProblemResponses;
use super::page::{Listing, PageQuery};
use crate::app::AppState;
use crate::auth::Ops;
use crate::problem::{Problem, ProblemKind};
use crate::read::{Body, Id, Params};

/// Lists tenants, ordered by name.
#[utoipa::path(get, path = "/v1/tenants", tag = "tenants", security(("key" = ["ops"])), params(PageQuery),
    responses((status = 200, description = "A page of the list", body = Listing<TenantRow>), ProblemResponses))]
pub async fn list_tenants(
    State(app): State<AppState>,
    Ops(_): Ops,
    Params(page): Params<PageQuery>,
) -> Result<Json<Listing<TenantRow>>, Problem> {
    let after: Option<String> = page.place()?;
    let rows = app.store.tenant_rows(after.as_deref(), page.limit() + 1).await?;
    Ok(Json(Listing::of(rows, page.limit(), |tenant| tenant.name.clone())))
}

/// A tenant to be created.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewTenant {
    /// The name: 1 to 63 letters, digits, `_`, `-`, `.`.
    #[schema(min_length = 1, max_length = 63, pattern = "^[A-Za-z0-9_.-]+$")]
    name: String,
}

/// Creates a tenant.
#[utoipa::path(post, path = "/v1/tenants", tag = "tenants", security(("key" = ["ops"])), request_body = NewTenant,
    responses((status = 201, description = "Created", body = TenantRow), ProblemResponses))]
pub async fn create_tenant(
    State(app): State<AppState>,
    Ops(caller): Ops,
    Body(new): Body<NewTenant>,
) -> Result<(StatusCode, Json<TenantRow>), Problem> {
    let id = caller.store_of_all(&app).create_tenant(&new.name).await?;
    Ok((StatusCode::CREATED, shown(&app, id).await?))
}

/// The suspension of a tenant.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Suspension {
    /// The reason, shown to operators.
    #[schema(min_length = 1, max_length = 255)]
    reason: String,
}

/// Suspends a tenant: its deliveries are not sent and wait, and its keys are refused. Applications can still enqueue by
/// SQL.
#[utoipa::path(post, path = "/v1/tenants/{name}/suspend", tag = "tenants", security(("key" = ["ops"])), params(("name" = String, Path)), request_body = Suspension,
    responses((status = 200, description = "The suspended tenant", body = TenantRow), ProblemResponses))]
pub async fn suspend_tenant(
    State(app): State<AppState>,
    Ops(caller): Ops,
    Id(name): Id<String>,
    Body(why): Body<Suspension>,
) -> Result<Json<TenantRow>, Problem> {
    let id = find(&app, &name).await?;
    let suspended = caller.store_of_all(&app).suspend_tenant(id, &why.reason).await?;
    app.auth.forget();
    if suspended {
        shown(&app, id).await
    } else {
        Err(Problem::new(ProblemKind::StateConflict, "the tenant is already suspended"))
    }
}

/// Resumes a suspended tenant.
#[utoipa::path(post, path = "/v1/tenants/{name}/resume", tag = "tenants", security(("key" = ["ops"])), params(("name" = String, Path)),
    responses((status = 200, description = "The resumed tenant", body = TenantRow), ProblemResponses))]
pub async fn resume_tenant(
    State(app): State<AppState>,
    Ops(caller): Ops,
    Id(name): Id<String>,
) -> Result<Json<TenantRow>, Problem> {
    let id = find(&app, &name).await?;
    let resumed = caller.store_of_all(&app).resume_tenant(id).await?;
    app.auth.forget();
    if resumed {
        shown(&app, id).await
    } else {
        Err(Problem::new(ProblemKind::StateConflict, "the tenant is not suspended"))
    }
}

/// The fields to change.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TenantUpdate {
    /// The weight: the tenant's share of the sends while several tenants have due deliveries. Weight 3 gets three times
    /// as many sends as weight 1.
    #[schema(minimum = 1, maximum = 100, example = 3)]
    weight: i32,
}

/// Changes a tenant's weight, which is its share of the sends.
#[utoipa::path(patch, path = "/v1/tenants/{name}", tag = "tenants", security(("key" = ["ops"])), params(("name" = String, Path)), request_body = TenantUpdate,
    responses((status = 200, description = "The tenant after the change", body = TenantRow), ProblemResponses))]
pub async fn update_tenant(
    State(app): State<AppState>,
    Ops(caller): Ops,
    Id(name): Id<String>,
    Body(update): Body<TenantUpdate>,
) -> Result<Json<TenantRow>, Problem> {
    let id = find(&app, &name).await?;
    caller.store_of_all(&app).weigh_tenant(id, update.weight).await?;
    shown(&app, id).await
}

async fn find(app: &AppState, name: &str) -> Result<i32, Problem> {
    app.store.tenant(name).await?.ok_or_else(|| Problem::not_found("tenant"))
}

async fn shown(app: &AppState, id: i32) -> Result<Json<TenantRow>, Problem> {
    app.store.tenant_row(id).await?.map(Json).ok_or_else(|| Problem::not_found("tenant"))
}

impl From<TenantError> for Problem {
    fn from(error: TenantError) -> Self {
        match error {
            TenantError::Refused(problem) => Self::of_field(&problem),
            TenantError::Taken(name) => {
                Self::new(ProblemKind::StateConflict, format!("tenant {name:?} already exists; choose another name"))
                    .about("name")
            }
            TenantError::Database(problem) => problem.into(),
        }
    }
}
