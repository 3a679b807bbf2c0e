//! Jobs: actions on many deliveries in the background.

use axum::Json;
use axum::extract::State;
use postcommit_engine::store::Job;
use uuid::Uuid;

use super::page::{Listing, PageQuery};
use super::{ProblemResponses, TenantQuery};
use crate::app::AppState;
use crate::auth::{Operator, Reader};
use crate::problem::{Problem, ProblemKind};
use crate::read::{Id, Params};

/// Lists jobs, newest first.
#[utoipa::path(get, path = "/v1/jobs", tag = "jobs", security(("key" = ["read"])), params(PageQuery, TenantQuery),
    responses((status = 200, description = "A page of the list", body = Listing<Job>), ProblemResponses))]
pub async fn list_jobs(
    State(app): State<AppState>,
    Reader(caller): Reader,
    Params(page): Params<PageQuery>,
) -> Result<Json<Listing<Job>>, Problem> {
    let before: Option<Uuid> = page.place()?;
    let rows = caller.store(&app).jobs(caller.whose(), before, page.limit() + 1).await?;
    Ok(Json(Listing::of(rows, page.limit(), |job| job.id)))
}

/// Returns the progress of a job.
#[utoipa::path(get, path = "/v1/jobs/{id}", tag = "jobs", security(("key" = ["read"])), params(("id" = Uuid, Path), TenantQuery),
    responses((status = 200, description = "The job", body = Job), ProblemResponses))]
pub async fn get_job(
    State(app): State<AppState>,
    Reader(caller): Reader,
    Id(id): Id<Uuid>,
) -> Result<Json<Job>, Problem> {
    let job = caller.store(&app).job(caller.whose(), id).await?;
    job.map(Json).ok_or_else(|| Problem::not_found("job"))
}

/// Stops a job after its current batch. Deliveries that it has changed stay changed.
#[utoipa::path(post, path = "/v1/jobs/{id}/cancel", tag = "jobs", security(("key" = ["operate"])), params(("id" = Uuid, Path), TenantQuery),
    responses((status = 200, description = "The cancelled job", body = Job), ProblemResponses))]
pub async fn cancel_job(
    State(app): State<AppState>,
    Operator(caller): Operator,
    Id(id): Id<Uuid>,
) -> Result<Json<Job>, Problem> {
    let store = caller.store(&app);
    let was_open = store.cancel_job(caller.whose(), id).await?;
    let job = store.job(caller.whose(), id).await?.ok_or_else(|| Problem::not_found("job"))?;
    if was_open {
        Ok(Json(job))
    } else {
        Err(Problem::new(
            ProblemKind::StateConflict,
            format!("the job is already {} and cannot be cancelled", job.state),
        ))
    }
}
