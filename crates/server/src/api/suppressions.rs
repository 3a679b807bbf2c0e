//! Suppressions: addresses that receive no messages.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use postcommit::limits;
use postcommit_engine::store::{SuppressionDraft, SuppressionFilter, SuppressionRow};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::page::{Listing, PageQuery, Paged};
use super::{ProblemResponses, TenantQuery};
use crate::app::AppState;
use crate::auth::{Editor, Reader};
use crate::problem::Problem;
use crate::read::{Body, check_lengths};

/// The filter of suppressions.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct SuppressionQuery {
    /// Only suppressions of this channel, and suppressions of all channels (`*`).
    #[param(max_length = 63)]
    channel: Option<String>,
    /// Only suppressions of this address.
    #[param(max_length = 2048)]
    address: Option<String>,
}

/// Lists suppressions, ordered by channel and address, including suppressions that have ended.
#[utoipa::path(get, path = "/v1/suppressions", tag = "suppressions", security(("key" = ["read"])), params(SuppressionQuery, PageQuery, TenantQuery),
    responses((status = 200, description = "A page", body = Listing<SuppressionRow>), ProblemResponses))]
pub async fn list_suppressions(
    State(app): State<AppState>,
    Reader(caller): Reader,
    Paged(wanted, page): Paged<SuppressionQuery>,
) -> Result<Json<Listing<SuppressionRow>>, Problem> {
    check_lengths(&[("channel", wanted.channel.as_deref())], limits::SHORT_NAME_CHARS)?;
    check_lengths(&[("address", wanted.address.as_deref())], limits::ADDRESS_BYTES)?;
    let filter = SuppressionFilter {
        tenant: caller.whose(),
        channel: wanted.channel,
        address: wanted.address,
        after: page.place()?,
        limit: page.limit() + 1,
    };
    let rows = caller.store(&app).suppression_rows(&filter).await?;
    Ok(Json(Listing::of(rows, page.limit(), |row| (row.tenant_id, row.channel.clone(), row.address.clone()))))
}

/// Suppresses an address on a channel. Replaces an earlier suppression of that address on that channel.
#[utoipa::path(post, path = "/v1/suppressions", tag = "suppressions", security(("key" = ["edit"])), params(TenantQuery), request_body = SuppressionDraft,
    responses((status = 200, description = "Replaced", body = SuppressionRow), (status = 201, description = "Created", body = SuppressionRow), ProblemResponses))]
pub async fn create_suppression(
    State(app): State<AppState>,
    Editor(caller): Editor,
    Body(new): Body<SuppressionDraft>,
) -> Result<(StatusCode, Json<SuppressionRow>), Problem> {
    let (made, is_new) = caller.store_of_one(&app).suppress(caller.tenant(), &new).await?;
    Ok((if is_new { StatusCode::CREATED } else { StatusCode::OK }, Json(made)))
}

/// The suppression to remove.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SuppressedAddress {
    /// The channel of the suppression. `*` means the suppression of every channel.
    #[schema(min_length = 1, max_length = 63, pattern = r"^(\*|[A-Za-z0-9_.-]+)$", example = "email")]
    channel: String,
    /// The suppressed address. Upper and lower case are the same in a mail address.
    #[schema(min_length = 1, max_length = 2048, example = "guest@example.com")]
    address: String,
}

/// The result of a removal.
#[derive(Debug, Serialize, ToSchema)]
pub struct SuppressionsRemoved {
    /// The number of removed suppressions: 1, or 0 if there was none.
    removed: i32,
}

/// Removes a suppression. The address is in the body, so that it appears in no log of a proxy.
#[utoipa::path(post, path = "/v1/suppressions/remove", tag = "suppressions", security(("key" = ["edit"])), params(TenantQuery), request_body = SuppressedAddress,
    responses((status = 200, description = "The number of removed suppressions", body = SuppressionsRemoved), ProblemResponses))]
pub async fn remove_suppression(
    State(app): State<AppState>,
    Editor(caller): Editor,
    Body(which): Body<SuppressedAddress>,
) -> Result<Json<SuppressionsRemoved>, Problem> {
    let store = caller.store_of_one(&app);
    let is_removed = store.remove_suppression(caller.tenant(), &which.channel, &which.address).await?;
    Ok(Json(SuppressionsRemoved { removed: i32::from(is_removed) }))
}
