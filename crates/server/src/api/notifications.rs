//! Notifications: enqueue, list, show and cancel.

use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use postcommit::{Source, Timestamp, TraceParent, limits};
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
use super::states::States;
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

/// The maximum number of words of a title filter.
const TITLE_WORDS: usize = 8;

/// A notification: content, recipients, channels and times.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(
    dead_code,
    reason = "only describes the body for OpenAPI; the engine parses it, so that numbers keep every digit"
)]
pub struct NewNotification {
    /// The event type, a dotted name.
    #[schema(min_length = 1, max_length = 255, example = "booking.confirmed")]
    event_type: String,
    /// The event's data: at most 256 KB and 32 levels of nesting. Numbers keep every digit.
    #[schema(value_type = Option<Value>, example = json!({"bookingId": 12345}))]
    payload: Option<Value>,
    /// The idempotency key, unique in the tenant: a second notification with the same key is not sent. Without a key, a
    /// repeated request is not recognised. The key may also be given as the header `Idempotency-Key`.
    #[schema(min_length = 1, max_length = 255, example = "booking:12345:confirmed:1")]
    idempotency_key: Option<String>,
    /// The tenant. Default: the tenant of the key. Only a key of scope `ops` may name another one.
    #[schema(min_length = 1, max_length = 63, pattern = "^[A-Za-z0-9_.-]+$")]
    tenant: Option<String>,
    /// The entity that the event is about, e.g. the id of a booking.
    #[schema(min_length = 1, max_length = 255, example = "12345")]
    entity: Option<String>,
    /// The recipients, one object per recipient.
    #[schema(max_items = 1000, value_type = Option<Vec<To>>, example = json!([{"email": "guest@example.com"}]))]
    recipients: Option<Vec<Value>>,
    /// Send only over these channels. If it is empty, the kind of each address determines its channels.
    #[schema(max_items = 32, example = json!(["email"]))]
    channels: Option<Vec<String>>,
    /// The subject or heading: one line, at most 998 bytes.
    #[schema(max_length = 998)]
    title: Option<String>,
    /// The text of the message, at most 256 KB.
    #[schema(max_length = 262_144)]
    body: Option<String>,
    /// A link for the reader: http, https, mailto or tel.
    #[schema(max_length = 2048)]
    action_url: Option<String>,
    /// Additional data for single channels, by channel; at most 64 KB.
    #[schema(value_type = Option<Object>)]
    data: Option<Value>,
    /// The priority, 0 to 9; 9 is sent first. Default 5.
    #[schema(minimum = 0, maximum = 9, default = 5)]
    priority: Option<i16>,
    /// Do not send before this time. Default: immediately.
    #[schema(value_type = Option<String>, format = DateTime)]
    due_at: Option<Timestamp>,
    /// Do not send after this time. Default: 30 days after it is due.
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Timestamp>,
    /// The origin of the notification.
    #[schema(value_type = Option<NotificationSource>)]
    source: Option<Source>,
    /// The id of the request or trace that caused the notification.
    #[schema(min_length = 1, max_length = 255)]
    correlation_id: Option<String>,
    /// The stream that the event belongs to.
    #[schema(min_length = 1, max_length = 255)]
    topic: Option<String>,
    /// The version of the payload's format.
    schema_version: Option<i32>,
}

/// The origin of a notification; at most 4 KB in total.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only describes the SDK's `Source` for OpenAPI; the SDK does not depend on utoipa")]
pub struct NotificationSource {
    /// The name of the remote site.
    site: Option<String>,
    /// The process or machine at the site.
    instance: Option<String>,
    /// The script that created the notification.
    script: Option<String>,
    /// The rule that created the notification.
    rule: Option<String>,
    /// The time at which the site created the notification.
    #[schema(format = DateTime)]
    enqueued_at: Option<String>,
    /// The W3C `traceparent` of the notification. Default: the header `traceparent` of the request.
    #[schema(pattern = "^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")]
    traceparent: Option<String>,
}

/// The accepted notification.
#[derive(Debug, Serialize, ToSchema)]
pub struct Enqueued {
    /// The notification's id. For a repeated key, this is the id of the first notification.
    #[schema(value_type = String, format = Uuid)]
    id: Uuid,
    /// Whether the key was used before with the same content, so that nothing new was enqueued.
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

/// Returns the header `Idempotency-Key`. Fails if it is given more than once.
fn key_header(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let mut all = headers.get_all(IDEMPOTENCY_KEY).iter();
    match (all.next(), all.next()) {
        (None, _) => Ok(None),
        (Some(only), None) => only.to_str().map(Some).map_err(|_| {
            Problem::invalid(
                "Idempotency-Key",
                "must be plain ASCII in a header; for other characters use the field idempotency_key of the body",
            )
        }),
        _ => Err(Problem::invalid("Idempotency-Key", "is given more than once; send it once")),
    }
}

/// Accepts a notification. The answer is sent after the notification is stored durably.
///
/// For a repeated key with the same content, the answer is 200 with the id of the first notification. With other
/// content, the answer is 409. In both cases nothing is enqueued.
#[utoipa::path(post, path = "/v1/notifications", tag = "notifications", security(("key" = ["enqueue"])),
    params(("Idempotency-Key" = Option<String>, Header, min_length = 1, max_length = 255, description = "Another name for `idempotency_key`")),
    request_body = NewNotification,
    responses((status = 202, description = "Accepted", body = Enqueued, headers(("Location" = String, description = "URL of the notification"))),
        (status = 200, description = "The idempotency key was used before with the same content", body = Enqueued), ProblemResponses))]
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

/// The span of an enqueue, if it is recorded, and the trace context of its notifications: that of the span, or else
/// that of the caller.
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
        // The tenant is not a string. Reading the whole notification gives the error with the name of the field.
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

/// A batch of up to 1,000 notifications.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewNotifications {
    /// The notifications, each in the form of a single request.
    #[schema(value_type = Vec<NewNotification>, min_items = 1, max_items = 1000)]
    notifications: Vec<Box<RawValue>>,
}

/// The results of the items, in the order of the request.
#[derive(Debug, Serialize, ToSchema)]
pub struct EnqueuedMany {
    /// The number of new notifications.
    accepted: usize,
    /// The number of idempotency keys that were used before with the same content.
    duplicates: usize,
    /// The number of refused notifications.
    refused: usize,
    /// One result for each notification.
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
    /// Whether the key was used before with the same content.
    #[serde(skip_serializing_if = "Option::is_none")]
    duplicate: Option<bool>,
    /// The reason why the notification was refused.
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

/// Accepts up to 1,000 notifications. A refused notification does not affect the others. All valid notifications are
/// written in one commit. If the client closes the connection before the commit begins, nothing is written.
#[utoipa::path(post, path = "/v1/notifications/batch", tag = "notifications", security(("key" = ["enqueue"])), request_body = NewNotifications,
    responses((status = 200, description = "One result for each notification", body = EnqueuedMany), ProblemResponses))]
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

/// Refuses the batch if the client has disconnected: the client will repeat the batch, and without idempotency keys its
/// notifications would be sent twice.
fn still_waited_for(waits: &Waits) -> Result<(), Problem> {
    if waits.has_left() {
        Err(Problem::new(ProblemKind::Malformed, "the client closed the connection; nothing was enqueued"))
    } else {
        Ok(())
    }
}

/// The filter of notifications.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct NotificationQuery {
    /// Only notifications in one of these states, separated by commas. A notification has the state of its least
    /// finished delivery.
    #[param(inline)]
    state: Option<States>,
    /// Only notifications with a delivery over this channel, or that name it in `channels`.
    #[param(max_length = 255)]
    channel: Option<String>,
    /// Only notifications of this event type.
    #[param(max_length = 255)]
    event_type: Option<String>,
    /// Only notifications about this entity.
    #[param(max_length = 255)]
    entity: Option<String>,
    /// Only notifications that came from this site.
    #[param(max_length = 255)]
    site: Option<String>,
    /// Only notifications to this list.
    #[param(max_length = 255)]
    list: Option<String>,
    /// Only notifications to exactly this user id or address.
    #[param(max_length = 2048)]
    recipient: Option<String>,
    /// Only the notification with this idempotency key.
    #[param(max_length = 255)]
    idempotency_key: Option<String>,
    /// Only notifications that were enqueued at this time or later.
    from: Option<Timestamp>,
    /// Only notifications that were enqueued before this time.
    until: Option<Timestamp>,
    /// `true`: only notifications with a stuck delivery: first due longer ago than the setting `kpi.stuck_after_s`, not
    /// finished and not being sent.
    stuck: Option<bool>,
    /// Only notifications with at least this many attempts.
    #[param(minimum = 0, maximum = 65_535)]
    attempts: Option<u16>,
    /// Only notifications whose title contains each of these words, ignoring case; at most 8 words.
    #[param(max_length = 998)]
    title: Option<String>,
}

/// The words of a title filter.
pub fn title_words(title: Option<&str>) -> Result<Vec<String>, Problem> {
    check_lengths(&[("title", title)], limits::TITLE_BYTES)?;
    let words: Vec<String> = title.unwrap_or_default().split_whitespace().map(str::to_owned).collect();
    if words.len() > TITLE_WORDS {
        let detail = format!("has {} words; at most {TITLE_WORDS} are allowed", words.len());
        return Err(Problem::invalid("title", detail));
    }
    Ok(words)
}

impl NotificationQuery {
    fn filter(
        self,
        page: &PageQuery,
        whose: Option<i32>,
        stuck_after: Duration,
    ) -> Result<NotificationFilter, Problem> {
        let words = title_words(self.title.as_deref())?;
        let names = [
            ("channel", self.channel.as_deref()),
            ("event_type", self.event_type.as_deref()),
            ("entity", self.entity.as_deref()),
            ("site", self.site.as_deref()),
            ("list", self.list.as_deref()),
            ("idempotency_key", self.idempotency_key.as_deref()),
        ];
        check_lengths(&names, limits::NAME_CHARS)?;
        check_lengths(&[("recipient", self.recipient.as_deref())], limits::ADDRESS_BYTES)?;
        Ok(NotificationFilter {
            tenant: whose,
            states: self.state.map(States::names).unwrap_or_default(),
            event_type: self.event_type,
            entity: self.entity,
            site: self.site,
            list: self.list,
            recipient: self.recipient,
            idempotency_key: self.idempotency_key,
            channel: self.channel,
            priority: None,
            from: self.from,
            until: self.until,
            stuck: self.stuck.unwrap_or(false).then_some(stuck_after),
            attempts: self.attempts.map(i64::from),
            words,
            before: page.place()?,
            limit: page.limit(),
        })
    }
}

/// Lists notifications, newest first.
///
/// A page may have fewer rows than `limit` although more follow, because one request examines a limited number of rows.
/// Use `next` to continue.
#[utoipa::path(get, path = "/v1/notifications", tag = "notifications", security(("key" = ["read"])), params(NotificationQuery, PageQuery, TenantQuery),
    responses((status = 200, description = "A page of the list", body = Listing<NotificationRow>), ProblemResponses))]
pub async fn list_notifications(
    State(app): State<AppState>,
    Reader(caller): Reader,
    Paged(wanted, page): Paged<NotificationQuery>,
) -> Result<Json<Listing<NotificationRow>>, Problem> {
    let filter = wanted.filter(&page, caller.whose(), app.stuck_after)?;
    Ok(Json(Listing::walked(caller.store(&app).notification_rows(&filter).await?)))
}

/// Returns a notification with its deliveries, all attempts in order, and the actions of operators.
#[utoipa::path(get, path = "/v1/notifications/{id}", tag = "notifications", security(("key" = ["read"])), params(("id" = Uuid, Path), TenantQuery),
    responses((status = 200, description = "The notification with its history", body = NotificationDetails), ProblemResponses))]
pub async fn get_notification(
    State(app): State<AppState>,
    Reader(caller): Reader,
    Id(id): Id<Uuid>,
) -> Result<Json<NotificationDetails>, Problem> {
    let story = caller.store(&app).notification_details(caller.whose(), id).await?;
    story.map(Json).ok_or_else(|| Problem::not_found("notification"))
}

/// Returns a short status: state, retries, last error, and when the notification was enqueued and delivered.
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

/// The result of a cancellation.
#[derive(Debug, Serialize, ToSchema)]
pub struct Cancelled {
    /// The number of cancelled deliveries. They will not be sent.
    pub cancelled: i64,
    /// The number of deliveries that were being sent. Their running attempt continues, but they are not retried.
    pub under_way: i64,
}

/// Cancels the deliveries of a notification that are not sent yet.
#[utoipa::path(post, path = "/v1/notifications/{id}/cancel", tag = "notifications", security(("key" = ["operate"])), params(("id" = Uuid, Path), TenantQuery),
    responses((status = 200, description = "Done; `cancelled` is 0 if there was nothing to cancel", body = Cancelled), ProblemResponses))]
pub async fn cancel_notification(
    State(app): State<AppState>,
    Operator(caller): Operator,
    Id(id): Id<Uuid>,
) -> Result<Json<Cancelled>, Problem> {
    let cancelled = caller.store(&app).cancel_notification(caller.whose(), id).await?;
    let (cancelled, under_way) = cancelled.ok_or_else(|| Problem::not_found("notification"))?;
    Ok(Json(Cancelled { cancelled, under_way }))
}
