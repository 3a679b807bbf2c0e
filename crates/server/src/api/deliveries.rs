//! Deliveries: list, show, retry, discard; by id, or by filter as a job.

mod query;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use postcommit_channel::model::{DeliveryId, DeliveryKey};
use postcommit_engine::store::{Act, Acted, AttemptRow, DeliveryFilter, DeliveryRow, Job, MAX_IDS, PACE_MOST, Store};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::page::{Listing, PageQuery, Paged};
use super::{ProblemResponses, TenantQuery};
use crate::acts::{self, FilterError};
use crate::app::AppState;
use crate::auth::{Caller, Operator, Reader};
use crate::problem::{Problem, ProblemKind};
use crate::read::{Body, Id};
use query::DeliveryQuery;

/// Deliveries, newest first; addresses are masked.
#[utoipa::path(get, path = "/v1/deliveries", tag = "deliveries", security(("key" = ["read"])), params(DeliveryQuery, PageQuery, TenantQuery),
    responses((status = 200, description = "A page", body = Listing<DeliveryRow>), ProblemResponses))]
pub async fn list_deliveries(
    State(app): State<AppState>,
    Reader(caller): Reader,
    Paged(wanted, page): Paged<DeliveryQuery>,
) -> Result<Json<Listing<DeliveryRow>>, Problem> {
    let filter = wanted.filter(app.stuck_after)?;
    let filter = DeliveryFilter { tenant: caller.whose(), before: page.place()?, limit: page.limit(), ..filter };
    Ok(Json(Listing::walked(caller.store(&app).delivery_rows(&filter).await?)))
}

/// One delivery and its attempts.
#[derive(Debug, Serialize, ToSchema)]
pub struct DeliveryStory {
    #[serde(flatten)]
    delivery: DeliveryRow,
    /// In order, over all rounds.
    attempt_log: Vec<AttemptRow>,
}

/// One delivery, with every attempt.
#[utoipa::path(get, path = "/v1/deliveries/{id}", tag = "deliveries", security(("key" = ["read"])), params(("id" = String, Path, description = "{notification}.{n}"), TenantQuery),
    responses((status = 200, description = "The delivery", body = DeliveryStory), ProblemResponses))]
pub async fn get_delivery(
    State(app): State<AppState>,
    Reader(caller): Reader,
    Id(id): Id<DeliveryId>,
) -> Result<Json<DeliveryStory>, Problem> {
    let store = caller.store(&app);
    let key = find(&store, &caller, id).await?;
    let delivery = store.delivery_row(Some(key.tenant), id).await?.ok_or_else(|| Problem::not_found("delivery"))?;
    let mut attempt_log = store.attempts(key.tenant, key.notification).await?;
    attempt_log.retain(|attempt| attempt.delivery == delivery.id);
    Ok(Json(DeliveryStory { delivery, attempt_log }))
}

async fn find(store: &Store, caller: &Caller, id: DeliveryId) -> Result<DeliveryKey, Problem> {
    store.delivery_key(caller.whose(), id).await?.ok_or_else(|| Problem::not_found("delivery"))
}

/// The result for one delivery.
#[derive(Debug, Serialize, ToSchema)]
pub struct DeliveryDone {
    /// `{notification}.{n}`.
    id: String,
    /// Its state now.
    state: String,
}

async fn act_on_one(app: &AppState, caller: &Caller, id: DeliveryId, act: Act) -> Result<Json<DeliveryDone>, Problem> {
    let store = caller.store(app);
    match acts::on_ids(&store, caller.whose(), act, &[Some(id)]).await?.pop() {
        Some(Acted::Done) => Ok(Json(DeliveryDone {
            id: id.to_string(),
            state: if act == Act::Retry { "pending" } else { "discarded" }.into(),
        })),
        Some(Acted::Refused { state, .. }) => Err(not_parked(&state)),
        _ => Err(Problem::not_found("delivery")),
    }
}

fn not_parked(state: &str) -> Problem {
    Problem::new(
        ProblemKind::StateConflict,
        format!("the delivery is {state}; only what is parked can be retried or discarded"),
    )
}

/// Sets a parked delivery back to pending, with its counters reset. A delivery that was sent is not sent again.
#[utoipa::path(post, path = "/v1/deliveries/{id}/retry", tag = "deliveries", security(("key" = ["operate"])), params(("id" = String, Path), TenantQuery),
    responses((status = 200, description = "Done", body = DeliveryDone), ProblemResponses))]
pub async fn retry_delivery(
    State(app): State<AppState>,
    Operator(caller): Operator,
    Id(id): Id<DeliveryId>,
) -> Result<Json<DeliveryDone>, Problem> {
    act_on_one(&app, &caller, id, Act::Retry).await
}

/// Ends a parked delivery for good; the row stays.
#[utoipa::path(post, path = "/v1/deliveries/{id}/discard", tag = "deliveries", security(("key" = ["operate"])), params(("id" = String, Path), TenantQuery),
    responses((status = 200, description = "Done", body = DeliveryDone), ProblemResponses))]
pub async fn discard_delivery(
    State(app): State<AppState>,
    Operator(caller): Operator,
    Id(id): Id<DeliveryId>,
) -> Result<Json<DeliveryDone>, Problem> {
    act_on_one(&app, &caller, id, Act::Discard).await
}

/// Marks a delivery as delivered that was sent, or is parked as `outcome_unknown`.
#[utoipa::path(post, path = "/v1/deliveries/{id}/mark-delivered", tag = "deliveries", security(("key" = ["operate"])), params(("id" = String, Path), TenantQuery),
    responses((status = 200, description = "Done", body = DeliveryDone), ProblemResponses))]
pub async fn mark_delivery_delivered(
    State(app): State<AppState>,
    Operator(caller): Operator,
    Id(id): Id<DeliveryId>,
) -> Result<Json<DeliveryDone>, Problem> {
    let store = caller.store(&app);
    match store.mark_delivered(find(&store, &caller, id).await?).await? {
        Acted::Done => Ok(Json(DeliveryDone { id: id.to_string(), state: "delivered".into() })),
        Acted::Refused { state, reason } => {
            let reason = reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
            let allowed = "only what was sent, or is parked as outcome_unknown, can be marked";
            Err(Problem::new(ProblemKind::StateConflict, format!("the delivery is {state}{reason}; {allowed}")))
        }
        Acted::NotFound => Err(Problem::not_found("delivery")),
    }
}

/// Deliveries by their ids, answered immediately; or all that match a filter, as a job.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ActRequest {
    /// Up to 1,000 ids.
    #[schema(min_items = 1, max_items = 1000)]
    ids: Option<Vec<String>>,
    /// All parked deliveries that match now; deliveries parked later are left alone. It names at least one condition:
    /// `{"state": "parked"}` is all of the tenant's. A key of scope `ops` names the tenant by `?tenant=`; otherwise
    /// it is its own.
    filter: Option<DeliveryQuery>,
    /// With a filter: at most this many per second. Default 500.
    #[schema(minimum = 1, maximum = 10_000)]
    pace_per_s: Option<i32>,
    /// With a filter: only count the matches.
    #[serde(default)]
    dry_run: bool,
}

/// How many deliveries a filter matches now.
#[derive(Debug, Serialize, ToSchema)]
pub struct MatchCount {
    /// The act that was asked for.
    kind: Act,
    /// How many deliveries match.
    total: i64,
    /// False: at least this many.
    is_exact: bool,
}

/// The answer by ids, or to `dry_run`.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum ActAnswer {
    /// By ids: a result for each.
    Results(ActResults),
    /// By filter, with `dry_run`: how many match.
    Count(MatchCount),
}

/// The results by id.
#[derive(Debug, Serialize, ToSchema)]
pub struct ActResults {
    /// How many were acted on.
    done: usize,
    /// One for each id, in the order given.
    results: Vec<ActResult>,
}

/// The result for one id.
#[derive(Debug, Serialize, ToSchema)]
pub struct ActResult {
    /// The id as given.
    id: String,
    /// `done`, `refused` or `not_found`.
    result: &'static str,
    /// The state of a refused one.
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<String>,
}

/// Retries deliveries by id, or all that match.
#[utoipa::path(post, path = "/v1/deliveries/retry", tag = "deliveries", security(("key" = ["operate"])), params(TenantQuery), request_body = ActRequest,
    responses((status = 200, description = "By ids: a result for each; with `dry_run`: how many match", body = ActAnswer), (status = 202, description = "By filter: a job that does it", body = Job), ProblemResponses))]
pub async fn retry_deliveries(
    State(app): State<AppState>,
    Operator(caller): Operator,
    Body(many): Body<ActRequest>,
) -> Result<Response, Problem> {
    act_on_many(&app, &caller, many, Act::Retry).await
}

/// Discards deliveries by id, or all that match.
#[utoipa::path(post, path = "/v1/deliveries/discard", tag = "deliveries", security(("key" = ["operate"])), params(TenantQuery), request_body = ActRequest,
    responses((status = 200, description = "By ids: a result for each; with `dry_run`: how many match", body = ActAnswer), (status = 202, description = "By filter: a job that does it", body = Job), ProblemResponses))]
pub async fn discard_deliveries(
    State(app): State<AppState>,
    Operator(caller): Operator,
    Body(many): Body<ActRequest>,
) -> Result<Response, Problem> {
    act_on_many(&app, &caller, many, Act::Discard).await
}

async fn act_on_many(app: &AppState, caller: &Caller, many: ActRequest, act: Act) -> Result<Response, Problem> {
    let store = caller.store(app);
    if let Some(pace) = many.pace_per_s.filter(|pace| !(1..=PACE_MOST).contains(pace)) {
        return Err(Problem::invalid("pace_per_s", format!("is {pace}; 1 to {PACE_MOST} are allowed")));
    }
    match (many.ids, many.filter) {
        (Some(_), None) if many.dry_run => Err(Problem::invalid("dry_run", "is only allowed together with filter")),
        (Some(ids), None) => Ok(Json(ActAnswer::Results(act_on_ids(&store, caller, &ids, act).await?)).into_response()),
        (None, Some(filter)) => {
            let filter = filter.filter(app.stuck_after).map_err(|problem| problem.within("filter"))?;
            let draft = acts::job(act, filter, many.pace_per_s).map_err(refused)?;
            if many.dry_run {
                let (total, is_exact) = store.count_for_job(Some(caller.tenant()), &draft).await?;
                return Ok(Json(ActAnswer::Count(MatchCount { kind: act, total, is_exact })).into_response());
            }
            let job = store.create_job(Some(caller.tenant()), &draft).await?;
            Ok((StatusCode::ACCEPTED, Json(job)).into_response())
        }
        _ => Err(Problem::invalid("ids", "give either ids or a filter")),
    }
}

async fn act_on_ids(store: &Store, caller: &Caller, ids: &[String], act: Act) -> Result<ActResults, Problem> {
    if ids.is_empty() || ids.len() > MAX_IDS {
        return Err(Problem::invalid("ids", format!("has {} entries; 1 to {MAX_IDS} are allowed", ids.len())));
    }
    let parsed: Vec<Option<DeliveryId>> = ids.iter().map(|id| id.parse().ok()).collect();
    let acted = acts::on_ids(store, caller.whose(), act, &parsed).await?;
    let results: Vec<ActResult> = ids.iter().zip(acted).map(|(id, acted)| act_result(id, acted)).collect();
    Ok(ActResults { done: results.iter().filter(|one| one.result == "done").count(), results })
}

/// Names the field of the filter.
fn refused(error: FilterError) -> Problem {
    match error {
        FilterError::NotParked(_) => Problem::invalid("filter.state", error.to_string()),
        FilterError::Stuck => Problem::invalid("filter.stuck", error.to_string()),
        FilterError::Empty => {
            Problem::invalid("filter", format!(r#"{error}; {{"state": "parked"}} is all that is parked"#))
        }
    }
}

fn act_result(id: &str, acted: Acted) -> ActResult {
    let (result, state) = match acted {
        Acted::Done => ("done", None),
        Acted::Refused { state, .. } => ("refused", Some(state)),
        Acted::NotFound => ("not_found", None),
    };
    ActResult { id: id.to_owned(), result, state }
}
