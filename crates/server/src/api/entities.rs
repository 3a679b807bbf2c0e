//! Everything about one entity, such as a booking.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use postcommit::limits;
use postcommit_engine::store::{DeliveryRow, Resend};
use serde::Deserialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::notifications::{Cancelled, Enqueued, Enqueueing, enqueued};
use super::page::{Listing, PageQuery};
use super::{ProblemResponses, TenantQuery};
use crate::app::AppState;
use crate::auth::{Operator, Reader};
use crate::notifications::resend;
use crate::problem::Problem;
use crate::read::{Body, Id, Params};
use crate::watching::Traced;

/// Everything sent for an entity and what is scheduled for it, newest first.
#[utoipa::path(get, path = "/v1/entities/{entity}/deliveries", tag = "entities", security(("key" = ["read"])), params(("entity" = String, Path), PageQuery, TenantQuery),
    responses((status = 200, description = "A page", body = Listing<DeliveryRow>), ProblemResponses))]
pub async fn list_entity_deliveries(
    State(app): State<AppState>,
    Reader(caller): Reader,
    Id(entity): Id<String>,
    Params(page): Params<PageQuery>,
) -> Result<Json<Listing<DeliveryRow>>, Problem> {
    let before = page.place()?;
    Ok(Json(Listing::walked(caller.store(&app).entity_rows(caller.tenant(), &entity, before, page.limit()).await?)))
}

/// What to send once more.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResendRequest {
    /// Over which channel.
    #[schema(min_length = 1, max_length = 63, pattern = "^[A-Za-z0-9_.-]+$")]
    channel: String,
    /// Only of this event type; none is the last one sent.
    #[schema(min_length = 1, max_length = 255)]
    event_type: Option<String>,
    /// A repeated id is not sent again; without one, every request is a new send.
    #[schema(min_length = 1, max_length = 63, pattern = "^[A-Za-z0-9_.-]+$")]
    request_id: Option<String>,
}

/// Sends again what was last sent for an entity over a channel, to the same recipients.
///
/// It is a new notification with the key `manual:{entity}:{channel}::{request_id}`; the first one is not touched, and
/// both are listed for the entity. Its story names the actor.
#[utoipa::path(post, path = "/v1/entities/{entity}/resend", tag = "entities", security(("key" = ["operate"])), params(("entity" = String, Path), TenantQuery),
    request_body = ResendRequest,
    responses((status = 202, description = "Accepted", body = Enqueued, headers(("Location" = String, description = "Where its story is told"))),
        (status = 200, description = "This request was accepted before", body = Enqueued), ProblemResponses))]
pub async fn resend_entity(
    State(app): State<AppState>,
    Operator(caller): Operator,
    Id(entity): Id<String>,
    traced: Option<Extension<Traced>>,
    Body(what): Body<ResendRequest>,
) -> Result<Response, Problem> {
    let ResendRequest { channel, event_type, request_id } = what;
    let request_id = request_id.unwrap_or_else(|| Uuid::now_v7().to_string());
    let wish = Resend { entity, channel, event_type, request_id };
    let (reader, writer) = (caller.store_of_one(&app), caller.store_of_all(&app));
    let trace = Enqueueing::below(&app, traced);
    let accepted = resend(&reader, &writer, caller.tenant(), &wish, |incoming| trace.mark(incoming)).await?;
    let none = || Problem::not_found("delivery: nothing was sent for this entity over that channel");
    let accepted = accepted.ok_or_else(none)?;
    if !accepted.duplicate {
        trace.end(&app, 1);
    }
    Ok(enqueued(&accepted).map_err(|conflict| conflict.about("request_id"))?.into_response())
}

/// Which deliveries to cancel.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CancelRequest {
    /// Only of this event type; none is all.
    #[schema(min_length = 1, max_length = 255)]
    event_type: Option<String>,
}

/// Cancels what is not yet sent for an entity, e.g. the reminders of a cancelled booking.
#[utoipa::path(post, path = "/v1/entities/{entity}/cancel", tag = "entities", security(("key" = ["operate"])), params(("entity" = String, Path), TenantQuery),
    request_body = CancelRequest, responses((status = 200, description = "Done; nothing to take back is 0", body = Cancelled), ProblemResponses))]
pub async fn cancel_entity(
    State(app): State<AppState>,
    Operator(caller): Operator,
    Id(entity): Id<String>,
    Body(what): Body<CancelRequest>,
) -> Result<Json<Cancelled>, Problem> {
    let length = what.event_type.as_ref().map_or(1, |name| name.chars().count());
    if !(1..=limits::NAME_CHARS).contains(&length) {
        return Err(Problem::invalid(
            "event_type",
            format!("has {length} characters; 1 to {} are allowed", limits::NAME_CHARS),
        ));
    }
    let (cancelled, under_way) =
        caller.store(&app).cancel_entity(caller.tenant(), &entity, what.event_type.as_deref()).await?;
    Ok(Json(Cancelled { cancelled, under_way }))
}
