//! The deliveries about one entity, such as a booking: list, resend and cancel.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use postcommit::{Recipient, channel_name, limits};
use postcommit_engine::store::{DeliveryRow, Resend};
use serde::Deserialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::notifications::{Cancelled, Enqueued, Enqueueing, enqueued};
use super::page::{Listing, PageQuery};
use super::recipients::To;
use super::{ProblemResponses, TenantQuery};
use crate::app::AppState;
use crate::auth::{Operator, Reader};
use crate::notifications::resend;
use crate::problem::Problem;
use crate::read::{Body, Id, Params};
use crate::watching::Traced;

/// Lists all deliveries about an entity, sent and scheduled, newest first.
#[utoipa::path(get, path = "/v1/entities/{entity}/deliveries", tag = "entities", security(("key" = ["read"])), params(("entity" = String, Path), PageQuery, TenantQuery),
    responses((status = 200, description = "A page of the list", body = Listing<DeliveryRow>), ProblemResponses))]
pub async fn list_entity_deliveries(
    State(app): State<AppState>,
    Reader(caller): Reader,
    Id(entity): Id<String>,
    Params(page): Params<PageQuery>,
) -> Result<Json<Listing<DeliveryRow>>, Problem> {
    let before = page.place()?;
    Ok(Json(Listing::walked(caller.store(&app).entity_rows(caller.tenant(), &entity, before, page.limit()).await?)))
}

/// The notification to send again, and its recipient.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResendRequest {
    /// The channel to send over.
    #[schema(min_length = 1, max_length = 63, pattern = "^[A-Za-z0-9_.-]+$")]
    channel: String,
    /// Copy only a notification of this event type. Default: any event type.
    #[schema(min_length = 1, max_length = 255)]
    event_type: Option<String>,
    /// Send the current text of this template, with the newest event of the entity. Default: a copy of the text that
    /// was sent.
    #[schema(min_length = 1, max_length = 63, pattern = "^[A-Za-z0-9_.-]+$")]
    template: Option<String>,
    /// Send to this recipient. Default: the recipients of the original.
    #[schema(value_type = Option<To>)]
    recipient: Option<Recipient>,
    /// The id of this request. A second request with the same id sends nothing. Without an id, every request sends.
    #[schema(min_length = 1, max_length = 63, pattern = "^[A-Za-z0-9_.-]+$")]
    request_id: Option<String>,
}

/// Sends the last notification of an entity over a channel again, to the same recipients or to another one.
///
/// If nothing was sent over that channel, the newest notification of the entity is sent over it: to its recipients that
/// have an address on the channel, or to `recipient`. That notification must have a title, a body or data for the
/// channel, or its event type must have an active template for the channel.
///
/// With `template`, the current text of that template is sent, with the newest event of its event type.
///
/// The copy is a new notification with the key `manual:{entity}:{channel}:{template}:{request_id}`. The original is not
/// changed, and both are listed for the entity. The history of the copy names the actor.
#[utoipa::path(post, path = "/v1/entities/{entity}/resend", tag = "entities", security(("key" = ["operate"])), params(("entity" = String, Path), TenantQuery),
    request_body = ResendRequest,
    responses((status = 202, description = "Accepted", body = Enqueued, headers(("Location" = String, description = "URL of the notification"))),
        (status = 200, description = "This request was accepted before", body = Enqueued), ProblemResponses))]
pub async fn resend_entity(
    State(app): State<AppState>,
    Operator(caller): Operator,
    Id(entity): Id<String>,
    traced: Option<Extension<Traced>>,
    Body(what): Body<ResendRequest>,
) -> Result<Response, Problem> {
    let ResendRequest { channel, event_type, template, recipient, request_id } = what;
    let request_id = request_id.unwrap_or_else(|| Uuid::now_v7().to_string());
    let channel = channel_name(&channel).to_owned();
    let wish = Resend { entity, channel, event_type, template, recipient, of: None, request_id };
    let (reader, writer) = (caller.store_of_one(&app), caller.store_of_all(&app));
    let trace = Enqueueing::below(&app, traced);
    let accepted = resend(&reader, &writer, caller.tenant(), &wish, |incoming| trace.mark(incoming)).await?;
    let none = || Problem::not_found("notification of this entity and event type");
    let accepted = accepted.ok_or_else(none)?;
    if !accepted.duplicate {
        trace.end(&app, 1);
    }
    Ok(enqueued(&accepted).map_err(|conflict| conflict.about("request_id"))?.into_response())
}

/// The deliveries to cancel.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CancelRequest {
    /// Cancel only deliveries of this event type. Default: all.
    #[schema(min_length = 1, max_length = 255)]
    event_type: Option<String>,
}

/// Cancels the deliveries about an entity that are not sent yet, e.g. the reminders of a cancelled booking.
#[utoipa::path(post, path = "/v1/entities/{entity}/cancel", tag = "entities", security(("key" = ["operate"])), params(("entity" = String, Path), TenantQuery),
    request_body = CancelRequest, responses((status = 200, description = "Done; `cancelled` is 0 if there was nothing to cancel", body = Cancelled), ProblemResponses))]
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
