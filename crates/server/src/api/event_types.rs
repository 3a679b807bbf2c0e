//! Declared event types.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use postcommit_channel::model::QuietRule;
use postcommit_engine::store::{EventTypeChange, EventTypeDraft, EventTypeFilter, EventTypeRow};
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::page::{Listing, PageQuery};
use super::{ProblemResponses, TenantQuery};
use crate::app::AppState;
use crate::auth::{Editor, Reader};
use crate::problem::Problem;
use crate::read::{Body, Id, Params, given};

/// Lists declared event types, ordered by name.
#[utoipa::path(get, path = "/v1/event-types", tag = "event types", security(("key" = ["read"])), params(PageQuery, TenantQuery),
    responses((status = 200, description = "A page", body = Listing<EventTypeRow>), ProblemResponses))]
pub async fn list_event_types(
    State(app): State<AppState>,
    Reader(caller): Reader,
    Params(page): Params<PageQuery>,
) -> Result<Json<Listing<EventTypeRow>>, Problem> {
    let filter = EventTypeFilter { tenant: caller.whose(), after: page.place()?, limit: page.limit() + 1 };
    let rows = caller.store(&app).event_type_rows(&filter).await?;
    Ok(Json(Listing::of(rows, page.limit(), |row| (row.tenant_id, row.name.clone()))))
}

/// The declaration of an event type.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewEventType {
    /// The name of the event type, as in notifications: no control characters, and no `.` or `..` as the whole name or
    /// between slashes.
    #[schema(min_length = 1, max_length = 255, example = "booking.confirmed")]
    name: String,
    /// The description of the event type.
    #[schema(min_length = 1, max_length = 1000)]
    description: Option<String>,
    /// A sample payload for previews: at most 262,144 bytes of JSON.
    sample: Option<Map<String, Value>>,
    /// The names that templates of this event type may use.
    #[serde(default)]
    #[schema(max_items = 500)]
    placeholders: Vec<String>,
    /// Whether the event type is mandatory: users cannot opt out of it. Suppressed addresses stay suppressed.
    #[serde(default)]
    mandatory: bool,
    /// The rule for messages in the quiet hours of a user: `delay` (the default), `skip` or `ignore`.
    #[serde(default)]
    quiet_hours: QuietRule,
}

/// Declares an event type.
#[utoipa::path(post, path = "/v1/event-types", tag = "event types", security(("key" = ["edit"])), params(TenantQuery), request_body = NewEventType,
    responses((status = 201, description = "Declared", body = EventTypeRow), ProblemResponses))]
pub async fn create_event_type(
    State(app): State<AppState>,
    Editor(caller): Editor,
    Body(new): Body<NewEventType>,
) -> Result<(StatusCode, Json<EventTypeRow>), Problem> {
    let draft = EventTypeDraft {
        description: new.description,
        sample: new.sample.map(Value::Object),
        placeholders: new.placeholders,
        mandatory: new.mandatory,
        quiet_hours: new.quiet_hours,
    };
    let made = caller.store_of_one(&app).create_event_type(caller.tenant(), &new.name, &draft).await?;
    Ok((StatusCode::CREATED, Json(made)))
}

/// Returns one declared event type.
#[utoipa::path(get, path = "/v1/event-types/{name}", tag = "event types", security(("key" = ["read"])), params(("name" = String, Path), TenantQuery),
    responses((status = 200, description = "The event type", body = EventTypeRow), ProblemResponses))]
pub async fn get_event_type(
    State(app): State<AppState>,
    Reader(caller): Reader,
    Id(name): Id<String>,
) -> Result<Json<EventTypeRow>, Problem> {
    let found = caller.store_of_one(&app).event_type(caller.tenant(), &name).await?;
    found.map(Json).ok_or_else(|| Problem::not_found("event type"))
}

/// The fields to change. Omitted fields keep their values.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EventTypeUpdate {
    /// Change the event type only if it still has this revision. Without it, the change applies to any revision.
    #[schema(minimum = 1)]
    revision: Option<i32>,
    /// The description of the event type. `null` removes it.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<String>, min_length = 1, max_length = 1000)]
    description: Option<Option<String>>,
    /// A sample payload for previews. `null` removes it.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Map<String, Value>>)]
    sample: Option<Option<Map<String, Value>>>,
    /// All names that templates of this event type may use.
    #[schema(max_items = 500)]
    placeholders: Option<Vec<String>>,
    /// Whether the event type is mandatory: users cannot opt out of it.
    mandatory: Option<bool>,
    /// The rule for messages in the quiet hours of a user: `delay`, `skip` or `ignore`.
    quiet_hours: Option<QuietRule>,
}

/// Changes the given fields of an event type and keeps the others.
#[utoipa::path(patch, path = "/v1/event-types/{name}", tag = "event types", security(("key" = ["edit"])), params(("name" = String, Path), TenantQuery), request_body = EventTypeUpdate,
    responses((status = 200, description = "The event type after the change", body = EventTypeRow), ProblemResponses))]
pub async fn update_event_type(
    State(app): State<AppState>,
    Editor(caller): Editor,
    Id(name): Id<String>,
    Body(to): Body<EventTypeUpdate>,
) -> Result<Json<EventTypeRow>, Problem> {
    let change = EventTypeChange {
        description: to.description,
        sample: to.sample.map(|sample| sample.map(Value::Object)),
        placeholders: to.placeholders,
        mandatory: to.mandatory,
        quiet_hours: to.quiet_hours,
    };
    Ok(Json(caller.store_of_one(&app).update_event_type(caller.tenant(), &name, to.revision, &change).await?))
}

/// Deletes the declaration. Notifications of the event type are still accepted.
#[utoipa::path(delete, path = "/v1/event-types/{name}", tag = "event types", security(("key" = ["edit"])), params(("name" = String, Path), TenantQuery),
    responses((status = 204, description = "The declaration is deleted"), ProblemResponses))]
pub async fn delete_event_type(
    State(app): State<AppState>,
    Editor(caller): Editor,
    Id(name): Id<String>,
) -> Result<StatusCode, Problem> {
    caller.store_of_one(&app).delete_event_type(caller.tenant(), &name).await?;
    Ok(StatusCode::NO_CONTENT)
}
