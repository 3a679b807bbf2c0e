//! Deliveries: list, show, retry and discard; by id, or by filter as a job.

mod query;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use postcommit_channel::model::{DeliveryId, DeliveryKey, Scope};
use postcommit_engine::store::{
    Act, Acted, AttemptRow, DeliveryFilter, DeliveryRow, Job, JobCount, MAX_IDS, PACE_MOST, ReceiptRow, Store,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::page::{Listing, PageQuery, Paged};
use super::{ProblemResponses, TenantQuery};
use crate::acts::{self, FilterError};
use crate::app::AppState;
use crate::auth::{Caller, Operator, Reader};
use crate::problem::{Problem, ProblemKind};
use crate::read::{Body, Id, Params};
use query::{DeliveryQuery, FullQuery};

/// Lists deliveries, newest first. Addresses are masked, except with `full` and the scope `operate`.
#[utoipa::path(get, path = "/v1/deliveries", tag = "deliveries", security(("key" = ["read"])), params(DeliveryQuery, PageQuery, TenantQuery),
    responses((status = 200, description = "A page of the list", body = Listing<DeliveryRow>), ProblemResponses))]
pub async fn list_deliveries(
    State(app): State<AppState>,
    Reader(caller): Reader,
    Paged(wanted, page): Paged<DeliveryQuery>,
) -> Result<Json<Listing<DeliveryRow>>, Problem> {
    let full = shows_addresses(&caller, wanted.full);
    let filter = wanted.filter(app.stuck_after)?;
    let filter = DeliveryFilter { full, tenant: caller.whose(), before: page.place()?, limit: page.limit(), ..filter };
    Ok(Json(Listing::walked(caller.store(&app).delivery_rows(&filter).await?)))
}

/// One delivery, its attempts and its receipts.
#[derive(Debug, Serialize, ToSchema)]
pub struct DeliveryStory {
    #[serde(flatten)]
    delivery: DeliveryRow,
    /// All attempts in order, including the attempts before a retry by an operator.
    attempt_log: Vec<AttemptRow>,
    /// The receipts: reports of the provider after the send, in the order in which they came.
    receipts: Vec<ReceiptRow>,
}

/// Returns one delivery with all its attempts and receipts.
#[utoipa::path(get, path = "/v1/deliveries/{id}", tag = "deliveries", security(("key" = ["read"])), params(("id" = String, Path, description = "The id of the delivery: `{notification}.{n}`"), FullQuery, TenantQuery),
    responses((status = 200, description = "The delivery", body = DeliveryStory), ProblemResponses))]
pub async fn get_delivery(
    State(app): State<AppState>,
    Reader(caller): Reader,
    Id(id): Id<DeliveryId>,
    Params(shown): Params<FullQuery>,
) -> Result<Json<DeliveryStory>, Problem> {
    let store = caller.store(&app);
    let key = find(&store, &caller, id).await?;
    let full = shows_addresses(&caller, shown.full);
    let row = store.delivery_row(Some(key.tenant), id, full).await?;
    let delivery = row.ok_or_else(|| Problem::not_found("delivery"))?;
    let mut attempt_log = store.attempts(key.tenant, key.notification).await?;
    attempt_log.retain(|attempt| attempt.delivery_id == delivery.id);
    let receipts = store.receipts(key.tenant, key.notification, key.n).await?;
    Ok(Json(DeliveryStory { delivery, attempt_log, receipts }))
}

/// Whether full addresses are shown: the caller asked for them and has the scope `operate`.
fn shows_addresses(caller: &Caller, asked: Option<bool>) -> bool {
    asked == Some(true) && caller.scopes().allows(Scope::Operate)
}

async fn find(store: &Store, caller: &Caller, id: DeliveryId) -> Result<DeliveryKey, Problem> {
    store.delivery_key(caller.whose(), id).await?.ok_or_else(|| Problem::not_found("delivery"))
}

/// The result of an action on one delivery.
#[derive(Debug, Serialize, ToSchema)]
pub struct DeliveryDone {
    /// The id of the delivery: `{notification}.{n}`.
    id: String,
    /// The current state of the delivery.
    state: String,
}

async fn act_on_one(
    app: &AppState,
    caller: &Caller,
    id: DeliveryId,
    act: Act,
    unclear: bool,
) -> Result<Json<DeliveryDone>, Problem> {
    let store = caller.store(app);
    match acts::on_ids(&store, caller.whose(), act, &[Some(id)], unclear).await?.pop() {
        Some(Acted::Done) => Ok(Json(DeliveryDone { id: id.to_string(), state: act.result().into() })),
        Some(Acted::Refused { state, .. }) => Err(not_parked(&state)),
        Some(Acted::Unclear { reason }) => Err(unclear_needed(reason.as_deref())),
        _ => Err(Problem::not_found("delivery")),
    }
}

fn not_parked(state: &str) -> Problem {
    Problem::new(
        ProblemKind::StateConflict,
        format!("the delivery is {state}; only parked deliveries can be retried or discarded"),
    )
}

fn unclear_needed(reason: Option<&str>) -> Problem {
    let reason = reason.map(|reason| format!(" as {reason}")).unwrap_or_default();
    let detail = format!(
        "is false; the delivery is parked{reason}: it {}. Send \"unclear\": true to retry it anyway",
        acts::MAY_HAVE_ARRIVED
    );
    Problem::new(ProblemKind::StateConflict, detail).about("unclear")
}

/// The options of a retry of one delivery.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RetryRequest {
    /// Retry the delivery although it may have arrived: it is parked as `outcome_unknown`, or marked `unclear`.
    #[serde(default)]
    unclear: bool,
}

/// Sets a parked delivery back to pending and resets its attempt counters. A delivery that was sent is not sent again.
/// A delivery that may have arrived is retried only with `"unclear": true`; otherwise the answer is 409.
#[utoipa::path(post, path = "/v1/deliveries/{id}/retry", tag = "deliveries", security(("key" = ["operate"])), params(("id" = String, Path), TenantQuery),
    request_body = RetryRequest,
    responses((status = 200, description = "Done", body = DeliveryDone), ProblemResponses))]
pub async fn retry_delivery(
    State(app): State<AppState>,
    Operator(caller): Operator,
    Id(id): Id<DeliveryId>,
    Body(how): Body<RetryRequest>,
) -> Result<Json<DeliveryDone>, Problem> {
    act_on_one(&app, &caller, id, Act::Retry, how.unclear).await
}

/// Discards a parked delivery: it is never sent, and its row is kept.
#[utoipa::path(post, path = "/v1/deliveries/{id}/discard", tag = "deliveries", security(("key" = ["operate"])), params(("id" = String, Path), TenantQuery),
    responses((status = 200, description = "Done", body = DeliveryDone), ProblemResponses))]
pub async fn discard_delivery(
    State(app): State<AppState>,
    Operator(caller): Operator,
    Id(id): Id<DeliveryId>,
) -> Result<Json<DeliveryDone>, Problem> {
    act_on_one(&app, &caller, id, Act::Discard, false).await
}

/// Marks a delivery as delivered. It must have been sent, or be parked as `outcome_unknown`.
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
            let allowed =
                "only a delivery that was sent, or that is parked as outcome_unknown, can be marked as delivered";
            Err(Problem::new(ProblemKind::StateConflict, format!("the delivery is {state}{reason}; {allowed}")))
        }
        // `Unclear` cannot happen here, because only a retry asks for consent.
        Acted::Unclear { .. } | Acted::NotFound => Err(Problem::not_found("delivery")),
    }
}

/// The deliveries to act on: by ids, which are processed immediately, or by a filter, which creates a job.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ActRequest {
    /// The ids of up to 1,000 deliveries.
    #[schema(min_items = 1, max_items = 1000)]
    ids: Option<Vec<String>>,
    /// All parked deliveries that match now; deliveries that are parked later are not changed. The filter needs at
    /// least one condition: `{"state": "parked"}` matches all parked deliveries of the tenant. A retry with
    /// `"state": "retrying"` brings deliveries forward that wait for their next attempt: they become due now and keep
    /// their attempts. The tenant is that of the key. A key of scope `ops` may name another tenant by `?tenant=`.
    filter: Option<DeliveryQuery>,
    /// Also retry deliveries that may have arrived. Without it, the result of such an id is `unclear`, and a filter
    /// leaves such deliveries out and counts them. A filter with `"unclear": true` selects only such deliveries. A
    /// discard does not need it.
    #[serde(default)]
    unclear: bool,
    /// With a filter: change at most this many deliveries per second. Default 500.
    #[schema(minimum = 1, maximum = 10_000)]
    pace_per_s: Option<i32>,
    /// With a filter: only count the matching deliveries and change nothing.
    #[serde(default)]
    dry_run: bool,
}

/// The number of deliveries that a filter matches now.
#[derive(Debug, Serialize, ToSchema)]
pub struct MatchCount {
    /// The requested action.
    kind: Act,
    #[serde(flatten)]
    count: JobCount,
}

/// The answer to a retry or a discard by ids, or with `dry_run`.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum ActAnswer {
    /// By ids: one result for each id.
    Results(ActResults),
    /// By filter with `dry_run`: the number of matching deliveries.
    Count(MatchCount),
}

/// The results by id.
#[derive(Debug, Serialize, ToSchema)]
pub struct ActResults {
    /// The number of deliveries that were changed.
    done: usize,
    /// One result for each id, in the order of `ids`.
    results: Vec<ActResult>,
}

/// The result for one id.
#[derive(Debug, Serialize, ToSchema)]
pub struct ActResult {
    /// The id as it was given.
    id: String,
    /// `done`, `refused`, `not_found`, or `unclear`: the delivery may have arrived, and the request had no `"unclear":
    /// true`.
    result: &'static str,
    /// The current state of the delivery.
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<String>,
}

impl ActResult {
    fn of(id: &str, act: Act, acted: Acted) -> Self {
        let (result, state) = acts::told(act, acted);
        Self { id: id.to_owned(), result, state }
    }
}

/// Retries deliveries by their ids, or all deliveries that match a filter. Parked deliveries start a new round of
/// attempts. With `"state": "retrying"`, deliveries that wait for their next attempt become due now.
#[utoipa::path(post, path = "/v1/deliveries/retry", tag = "deliveries", security(("key" = ["operate"])), params(TenantQuery), request_body = ActRequest,
    responses((status = 200, description = "By ids: one result for each id. With `dry_run`: the number of matching deliveries", body = ActAnswer), (status = 202, description = "By filter: the job that was created", body = Job), ProblemResponses))]
pub async fn retry_deliveries(
    State(app): State<AppState>,
    Operator(caller): Operator,
    Body(many): Body<ActRequest>,
) -> Result<Response, Problem> {
    act_on_many(&app, &caller, many, Act::Retry).await
}

/// Discards deliveries by their ids, or all deliveries that match a filter.
#[utoipa::path(post, path = "/v1/deliveries/discard", tag = "deliveries", security(("key" = ["operate"])), params(TenantQuery), request_body = ActRequest,
    responses((status = 200, description = "By ids: one result for each id. With `dry_run`: the number of matching deliveries", body = ActAnswer), (status = 202, description = "By filter: the job that was created", body = Job), ProblemResponses))]
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
        (Some(_), None) if many.dry_run => {
            Err(Problem::invalid("dry_run", "is only allowed together with filter; omit it"))
        }
        (Some(ids), None) => {
            let results = act_on_ids(&store, caller, &ids, act, many.unclear).await?;
            Ok(Json(ActAnswer::Results(results)).into_response())
        }
        (None, Some(filter)) => {
            if filter.full.is_some() {
                return Err(Problem::invalid("filter.full", "is only allowed in a list; omit it"));
            }
            let filter = filter.filter(app.stuck_after).map_err(|problem| problem.within("filter"))?;
            let draft = acts::job(act, filter, many.unclear, many.pace_per_s).map_err(refused)?;
            if many.dry_run {
                let count = store.count_for_job(Some(caller.tenant()), &draft).await?;
                return Ok(Json(ActAnswer::Count(MatchCount { kind: act, count })).into_response());
            }
            let job = store.create_job(Some(caller.tenant()), &draft).await?;
            Ok((StatusCode::ACCEPTED, Json(job)).into_response())
        }
        _ => Err(Problem::invalid("ids", "either ids or filter must be given, and not both")),
    }
}

async fn act_on_ids(
    store: &Store,
    caller: &Caller,
    ids: &[String],
    act: Act,
    unclear: bool,
) -> Result<ActResults, Problem> {
    if ids.is_empty() || ids.len() > MAX_IDS {
        return Err(Problem::invalid("ids", format!("has {} entries; 1 to {MAX_IDS} are allowed", ids.len())));
    }
    let parsed: Vec<Option<DeliveryId>> = ids.iter().map(|id| id.parse().ok()).collect();
    let acted = acts::on_ids(store, caller.whose(), act, &parsed, unclear).await?;
    let results: Vec<ActResult> = ids.iter().zip(acted).map(|(id, acted)| ActResult::of(id, act, acted)).collect();
    Ok(ActResults { done: results.iter().filter(|one| one.result == "done").count(), results })
}

/// Converts the error to a problem that names the field of the filter.
fn refused(error: FilterError) -> Problem {
    match error {
        FilterError::NotParked(_) | FilterError::NotRetriable(_) => Problem::invalid("filter.state", error.to_string()),
        FilterError::Stuck => Problem::invalid("filter.stuck", error.to_string()),
        FilterError::Empty => {
            Problem::invalid("filter", format!(r#"{error}, e.g. {{"state": "parked"}} for all parked deliveries"#))
        }
    }
}
