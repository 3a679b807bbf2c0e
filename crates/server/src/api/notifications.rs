//! Notifications: enqueue, list, show, cancel.

use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use postcommit::{Source, Timestamp, TraceParent, limits};
use postcommit_channel::model::DeliveryState;
use postcommit_engine::store::{
    Accepted, NotificationDetails, NotificationFilter, NotificationRequest, NotificationRow, Status,
};
use postcommit_engine::trace::{Begun, SpanKind};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::page::{Listing, PageQuery, Paged};
use super::recipients::To;
use super::{ProblemResponses, TenantQuery};
use crate::app::{App, AppState};
use crate::auth::{Caller, Enqueuer, Operator, Reader};
use crate::door::Waits;
use crate::notifications::{self, Owner, named_tenant};
use crate::problem::{Problem, ProblemBody, ProblemKind};
use crate::read::{self, Id, Text, check_lengths};
use crate::watching::Traced;

/// The header form of `idempotency_key`, for clients that repeat requests automatically.
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Most words of a title filter.
const TITLE_WORDS: usize = 8;

/// A notification: content, recipients, channels and times.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "describes what the engine reads digit for digit")]
pub struct NewNotification {
    /// Dotted name of what happened.
    #[schema(min_length = 1, max_length = 255, example = "booking.confirmed")]
    event_type: String,
    /// The event's data: at most 256 KB and 32 levels. Digits are kept as they are.
    #[schema(value_type = Option<Value>, example = json!({"bookingId": 12345}))]
    payload: Option<Value>,
    /// Unique in the tenant: the same key is sent once. Without one, a repetition is not recognised. May also be
    /// given as the header `Idempotency-Key`.
    #[schema(min_length = 1, max_length = 255, example = "booking:12345:confirmed:1")]
    idempotency_key: Option<String>,
    /// The tenant. Only a key of scope `ops` may name another than its own.
    #[schema(min_length = 1, max_length = 63, pattern = "^[A-Za-z0-9_.-]+$")]
    tenant: Option<String>,
    /// The entity that it is about.
    #[schema(min_length = 1, max_length = 255, example = "12345")]
    entity: Option<String>,
    /// The recipients, one object each.
    #[schema(max_items = 1000, value_type = Option<Vec<To>>, example = json!([{"email": "guest@example.com"}]))]
    recipients: Option<Vec<Value>>,
    /// Narrows the channels; empty means what each kind of address implies.
    #[schema(max_items = 32, example = json!(["email"]))]
    channels: Option<Vec<String>>,
    /// Subject or heading, one line, at most 998 bytes.
    #[schema(max_length = 998)]
    title: Option<String>,
    /// Text, at most 256 KB.
    #[schema(max_length = 262_144)]
    body: Option<String>,
    /// Where the reader should go: http, https, mailto or tel.
    #[schema(max_length = 2048)]
    action_url: Option<String>,
    /// Data for single channels, by channel; at most 64 KB.
    #[schema(value_type = Option<Object>)]
    data: Option<Value>,
    /// 0 to 9, 9 first. Default 5.
    #[schema(minimum = 0, maximum = 9, default = 5)]
    priority: Option<i16>,
    /// Not before this time. Default: immediately.
    #[schema(value_type = Option<String>, format = DateTime)]
    due_at: Option<Timestamp>,
    /// Never after this time. Default: 30 days after it is due.
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Timestamp>,
    /// Where it came from.
    #[schema(value_type = Option<NotificationSource>)]
    source: Option<Source>,
    /// The request or trace that caused it.
    #[schema(min_length = 1, max_length = 255)]
    correlation_id: Option<String>,
    /// The stream the event belongs to.
    #[schema(min_length = 1, max_length = 255)]
    topic: Option<String>,
    /// Version of the payload's shape.
    schema_version: Option<i32>,
}

/// Where a notification came from; at most 4 KB in all.
#[derive(ToSchema)]
#[allow(dead_code, reason = "describes the SDK's type, which knows nothing of OpenAPI")]
pub struct NotificationSource {
    /// The remote place.
    site: Option<String>,
    /// The process or machine there.
    instance: Option<String>,
    /// The script that made it.
    script: Option<String>,
    /// The rule that made it.
    rule: Option<String>,
    /// When it was made there.
    #[schema(format = DateTime)]
    enqueued_at: Option<String>,
    /// The W3C `traceparent` that it belongs to; the header of that name is taken when there is none in here.
    #[schema(pattern = "^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")]
    traceparent: Option<String>,
}

/// The accepted notification.
#[derive(Debug, Serialize, ToSchema)]
pub struct Enqueued {
    /// The notification's id; for a repeated key, that of the first one.
    #[schema(value_type = String, format = Uuid)]
    id: Uuid,
    /// The key was used before with the same content: nothing new was enqueued.
    duplicate: bool,
}

impl IntoResponse for Enqueued {
    fn into_response(self) -> Response {
        let status = if self.duplicate { StatusCode::OK } else { StatusCode::ACCEPTED };
        let place = HeaderValue::from_str(&format!("/v1/notifications/{}", self.id)).ok();
        let mut response = (status, Json(self)).into_response();
        if let Some(place) = place {
            response.headers_mut().insert(header::LOCATION, place);
        }
        response
    }
}

/// The header, which may be given once, as text.
fn key_header(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let mut all = headers.get_all(IDEMPOTENCY_KEY).iter();
    match (all.next(), all.next()) {
        (None, _) => Ok(None),
        (Some(only), None) => only.to_str().map(Some).map_err(|_| {
            Problem::invalid("Idempotency-Key", "must be plain ASCII in a header; use the body's field for others")
        }),
        _ => Err(Problem::invalid("Idempotency-Key", "is given more than once")),
    }
}

/// Accepts a notification. The answer comes after the row is durable.
///
/// A repeated key answers 200 with the first id; with other content 409, and nothing is enqueued.
#[utoipa::path(post, path = "/v1/notifications", tag = "notifications", security(("key" = ["enqueue"])),
    params(("Idempotency-Key" = Option<String>, Header, min_length = 1, max_length = 255, description = "Another name for `idempotency_key`")),
    request_body = NewNotification,
    responses((status = 202, description = "Accepted", body = Enqueued, headers(("Location" = String, description = "Where its story is told"))),
        (status = 200, description = "The key stood already, with the same content", body = Enqueued), ProblemResponses))]
pub async fn enqueue_notification(
    State(app): State<AppState>,
    Enqueuer(caller): Enqueuer,
    headers: HeaderMap,
    traced: Option<Extension<Traced>>,
    Text(json): Text,
) -> Result<Response, Problem> {
    let trace = Enqueueing::below(&app, traced);
    let incoming = trace.mark(checked(&app, &caller, &json, key_header(&headers)?).await?);
    let accepted = app.gate.accept(incoming).await?;
    trace.end(&app, 1);
    Ok(enqueued(&accepted)?.into_response())
}

/// The span of enqueueing, if it is recorded; otherwise the caller's trace is passed on unchanged.
pub(super) struct Enqueueing(Option<Begun>, Option<TraceParent>);

impl Enqueueing {
    pub(super) fn below(app: &App, traced: Option<Extension<Traced>>) -> Self {
        let parent = traced.map(|Extension(Traced(parent))| parent);
        let begun = parent.and_then(|parent| app.tools.tracer.begin(Some(parent)));
        let told = begun.as_ref().map(Begun::context).or(parent);
        Self(begun, told)
    }

    pub(super) fn mark(&self, incoming: NotificationRequest) -> NotificationRequest {
        match self.1 {
            Some(parent) => incoming.traced(parent),
            None => incoming,
        }
    }

    pub(super) fn end(self, app: &App, count: usize) {
        if let Some(begun) = self.0 {
            app.tools.tracer.end(begun.ended(
                "enqueue",
                SpanKind::Producer,
                vec![("postcommit.count", count.to_string())],
                None,
            ));
        }
    }
}

/// Checks a notification against its limits and the configuration.
async fn checked(app: &App, caller: &Caller, json: &str, key: Option<&str>) -> Result<NotificationRequest, Problem> {
    let named = match named_tenant(json) {
        Ok(named) => named,
        Err(problem) if problem.is_syntax() || problem.is_eof() => {
            return Err(Problem::new(ProblemKind::Malformed, format!("the body is not JSON: {problem}")));
        }
        // The tenant is not a text: reading the rest names the field.
        Err(_) => None,
    };
    let (tenant, name) = caller.tenant_named(app, named.as_deref()).await?;
    Ok(notifications::read(&app.store, Owner { id: Some(tenant), name: &name }, json, key).await?)
}

pub(super) fn enqueued(accepted: &Accepted) -> Result<Enqueued, Problem> {
    if accepted.conflict {
        return Err(Problem::key_conflict(accepted.id));
    }
    Ok(Enqueued { id: accepted.id, duplicate: accepted.duplicate })
}

/// Up to 1,000 notifications.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewNotifications {
    /// Each as for a single one.
    #[schema(value_type = Vec<NewNotification>, min_items = 1, max_items = 1000)]
    notifications: Vec<Box<RawValue>>,
}

/// A result per item, in the order given.
#[derive(Debug, Serialize, ToSchema)]
pub struct EnqueuedMany {
    /// How many are new.
    accepted: usize,
    /// How many keys were used before.
    duplicates: usize,
    /// How many were refused.
    refused: usize,
    /// One for each.
    results: Vec<EnqueuedItem>,
}

/// The result for one item.
#[derive(Debug, Serialize, ToSchema)]
pub struct EnqueuedItem {
    /// The status that a single request would have had: 202, 200, 409, 422 or 503.
    status: u16,
    /// The notification's id, if it was accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = Uuid)]
    id: Option<Uuid>,
    /// The key was used before with the same content.
    #[serde(skip_serializing_if = "Option::is_none")]
    duplicate: Option<bool>,
    /// Why it was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<ProblemBody>,
}

impl From<Result<Enqueued, Problem>> for EnqueuedItem {
    fn from(result: Result<Enqueued, Problem>) -> Self {
        match result {
            Ok(Enqueued { id, duplicate }) => Self {
                status: if duplicate { 200 } else { 202 },
                id: Some(id),
                duplicate: Some(duplicate),
                problem: None,
            },
            Err(problem) => {
                let body = problem.body();
                Self { status: body.status, id: None, duplicate: None, problem: Some(body) }
            }
        }
    }
}

/// Accepts up to 1,000 notifications independently: a refused one does not affect the others. All valid ones are
/// written in one commit. If the client hangs up before that begins, nothing is written.
#[utoipa::path(post, path = "/v1/notifications/batch", tag = "notifications", security(("key" = ["enqueue"])), request_body = NewNotifications,
    responses((status = 200, description = "A result per item", body = EnqueuedMany), ProblemResponses))]
pub async fn enqueue_notifications(
    State(app): State<AppState>,
    Enqueuer(caller): Enqueuer,
    traced: Option<Extension<Traced>>,
    Extension(waits): Extension<Waits>,
    Text(json): Text,
) -> Result<Json<EnqueuedMany>, Problem> {
    let batch: NewNotifications = read::parse(json.as_bytes())?;
    let trace = Enqueueing::below(&app, traced);
    let count = batch.notifications.len();
    if !(1..=limits::BATCH).contains(&count) {
        return Err(Problem::invalid(
            "notifications",
            format!("has {count} entries; 1 to {} are allowed", limits::BATCH),
        ));
    }
    let mut results: Vec<Option<EnqueuedItem>> = Vec::with_capacity(count);
    let (mut sound, mut places) = (Vec::new(), Vec::new());
    for (place, item) in batch.notifications.iter().enumerate() {
        still_waited_for(&waits)?;
        match checked(&app, &caller, item.get(), None).await {
            Ok(incoming) => {
                sound.push(trace.mark(incoming));
                places.push(place);
                results.push(None);
            }
            Err(problem) => results.push(Some(Err(problem).into())),
        }
    }
    still_waited_for(&waits)?;
    let accepted = app.store.accept(sound).await;
    trace.end(&app, places.len());
    for (place, accepted) in places.into_iter().zip(accepted) {
        results[place] = Some(accepted.map_err(Problem::from).and_then(|accepted| enqueued(&accepted)).into());
    }
    let results: Vec<EnqueuedItem> = results.into_iter().flatten().collect();
    let having = |duplicate: bool| results.iter().filter(|item| item.duplicate == Some(duplicate)).count();
    Ok(Json(EnqueuedMany {
        accepted: having(false),
        duplicates: having(true),
        refused: count - having(false) - having(true),
        results,
    }))
}

/// A client that hung up will repeat the batch, perhaps without keys: do not begin it.
fn still_waited_for(waits: &Waits) -> Result<(), Problem> {
    if waits.has_left() {
        Err(Problem::new(ProblemKind::Malformed, "the client hung up; nothing was enqueued"))
    } else {
        Ok(())
    }
}

/// Which notifications to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct NotificationQuery {
    /// Only in this state; a notification has the state of its least finished delivery.
    #[param(inline)]
    state: Option<DeliveryState>,
    /// Only with a delivery on this channel, or asking for it.
    #[param(max_length = 255)]
    channel: Option<String>,
    /// Only of this event type.
    #[param(max_length = 255)]
    event_type: Option<String>,
    /// Only about this entity.
    #[param(max_length = 255)]
    entity: Option<String>,
    /// Only from this site.
    #[param(max_length = 255)]
    site: Option<String>,
    /// Only to this list.
    #[param(max_length = 255)]
    list: Option<String>,
    /// Only the one with this idempotency key.
    #[param(max_length = 255)]
    idempotency_key: Option<String>,
    /// Only enqueued at this time or later.
    from: Option<Timestamp>,
    /// Only enqueued before this time.
    to: Option<Timestamp>,
    /// `true`: only with a delivery that has been due for longer than the threshold and is not under way.
    stuck: Option<bool>,
    /// Only with this many attempts or more.
    #[param(minimum = 0, maximum = 65_535)]
    attempts: Option<u16>,
    /// Only with each of these words in the title, in any case; at most 8.
    #[param(max_length = 998)]
    title: Option<String>,
}

impl NotificationQuery {
    fn filter(
        self,
        page: &PageQuery,
        whose: Option<i32>,
        stuck_after: Duration,
    ) -> Result<NotificationFilter, Problem> {
        let words: Vec<String> =
            self.title.iter().flat_map(|title| title.split_whitespace()).map(str::to_owned).collect();
        if words.len() > TITLE_WORDS {
            return Err(Problem::invalid(
                "title",
                format!("has {} words; at most {TITLE_WORDS} are allowed", words.len()),
            ));
        }
        let names = [
            ("channel", self.channel.as_deref()),
            ("event_type", self.event_type.as_deref()),
            ("entity", self.entity.as_deref()),
            ("site", self.site.as_deref()),
            ("list", self.list.as_deref()),
            ("idempotency_key", self.idempotency_key.as_deref()),
        ];
        check_lengths(&names, limits::NAME_CHARS)?;
        check_lengths(&[("title", self.title.as_deref())], limits::TITLE_BYTES)?;
        Ok(NotificationFilter {
            tenant: whose,
            status: self.state.map(|state| state.name().to_owned()),
            event_type: self.event_type,
            entity: self.entity,
            site: self.site,
            list: self.list,
            idempotency_key: self.idempotency_key,
            channel: self.channel,
            priority: None,
            from: self.from,
            to: self.to,
            stuck: self.stuck.unwrap_or(false).then_some(stuck_after),
            attempts: self.attempts.map(i64::from),
            words,
            before: page.place()?,
            limit: page.limit(),
        })
    }
}

/// Notifications, newest first.
///
/// A page may end before it is full, since one request examines a bounded number of rows; `next` continues.
#[utoipa::path(get, path = "/v1/notifications", tag = "notifications", security(("key" = ["read"])), params(NotificationQuery, PageQuery, TenantQuery),
    responses((status = 200, description = "A page", body = Listing<NotificationRow>), ProblemResponses))]
pub async fn list_notifications(
    State(app): State<AppState>,
    Reader(caller): Reader,
    Paged(wanted, page): Paged<NotificationQuery>,
) -> Result<Json<Listing<NotificationRow>>, Problem> {
    let filter = wanted.filter(&page, caller.whose(), app.stuck_after)?;
    Ok(Json(Listing::walked(caller.store(&app).notification_rows(&filter).await?)))
}

/// The full story: the notification, its deliveries, every attempt in order, and the acts of operators.
#[utoipa::path(get, path = "/v1/notifications/{id}", tag = "notifications", security(("key" = ["read"])), params(("id" = Uuid, Path), TenantQuery),
    responses((status = 200, description = "The story", body = NotificationDetails), ProblemResponses))]
pub async fn get_notification(
    State(app): State<AppState>,
    Reader(caller): Reader,
    Id(id): Id<Uuid>,
) -> Result<Json<NotificationDetails>, Problem> {
    let story = caller.store(&app).notification_details(caller.whose(), id).await?;
    story.map(Json).ok_or_else(|| Problem::not_found("notification"))
}

/// The status in brief: state, retries, last error, when it was enqueued and delivered.
#[utoipa::path(get, path = "/v1/notifications/{id}/status", tag = "notifications", security(("key" = ["read"])), params(("id" = Uuid, Path), TenantQuery),
    responses((status = 200, description = "The status", body = Status), ProblemResponses))]
pub async fn get_notification_status(
    State(app): State<AppState>,
    Reader(caller): Reader,
    Id(id): Id<Uuid>,
) -> Result<Json<Status>, Problem> {
    let status = caller.store(&app).status(caller.whose(), id).await?;
    status.map(Json).ok_or_else(|| Problem::not_found("notification"))
}

/// How many deliveries were cancelled.
#[derive(Debug, Serialize, ToSchema)]
pub struct Cancelled {
    /// Deliveries that will not be sent.
    pub cancelled: i64,
    /// Deliveries that were under way: this attempt goes on, but they are not retried.
    pub under_way: i64,
}

/// Cancels the deliveries that are not yet sent.
#[utoipa::path(post, path = "/v1/notifications/{id}/cancel", tag = "notifications", security(("key" = ["operate"])), params(("id" = Uuid, Path), TenantQuery),
    responses((status = 200, description = "Done; nothing to take back is 0", body = Cancelled), ProblemResponses))]
pub async fn cancel_notification(
    State(app): State<AppState>,
    Operator(caller): Operator,
    Id(id): Id<Uuid>,
) -> Result<Json<Cancelled>, Problem> {
    let cancelled = caller.store(&app).cancel_notification(caller.whose(), id).await?;
    let (cancelled, under_way) = cancelled.ok_or_else(|| Problem::not_found("notification"))?;
    Ok(Json(Cancelled { cancelled, under_way }))
}
