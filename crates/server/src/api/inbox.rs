//! Inboxes: in-app messages of users, for the tenant's keys and for the users' browsers.
//!
//! A key can read and mark messages in every inbox of its tenant, a user token only in the inbox of its user. Browsers
//! call from the tenant's pages; `cors.rs` allows the origins of the setting `inbox.origins`.

pub mod cors;
mod stream;
mod visitor;

pub use stream::__path_follow_inbox;
pub use stream::follow_inbox;

use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use postcommit_channel::model::DeliveryId;
use postcommit_engine::store::{Folder, InboxRow, Mark};
use postcommit_engine::user_token::{self, TokenError, UserToken};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::page::{Listing, PageQuery, Paged};
use super::{ProblemResponses, TenantQuery};
use crate::app::AppState;
use crate::auth::Operator;
use crate::problem::{Problem, ProblemKind};
use crate::read::{Body, Id, Params};
use visitor::Visitor;

/// The filter of inbox messages.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct InboxQuery {
    /// The folder to list.
    #[serde(default)]
    #[param(inline, default = "current")]
    folder: Folder,
}

/// A page of an inbox.
#[derive(Debug, Serialize, ToSchema)]
pub struct InboxListing {
    /// The messages, newest first, without expired messages.
    items: Vec<InboxRow>,
    /// Pass it as `cursor` to get the next page. Absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
    /// The number of all unread messages.
    unread: i64,
    /// The position of the last change that the page shows. Pass it as `after` to the stream, and as `up_to` to mark
    /// all messages as read.
    position: i64,
}

/// Lists a user's messages, newest first.
#[utoipa::path(get, path = "/v1/inbox/{user}", tag = "inbox", security(("key" = ["read"]), ("user_token" = [])),
    params(("user" = String, Path, description = "The user's id"), InboxQuery, PageQuery, TenantQuery), responses((status = 200, description = "A page of the list", body = InboxListing), ProblemResponses))]
pub async fn list_inbox(
    visitor: Visitor,
    Paged(wanted, page): Paged<InboxQuery>,
) -> Result<Json<InboxListing>, Problem> {
    let (before, limit) = (page.place()?, page.limit());
    let found = visitor.store.inbox(visitor.tenant, &visitor.user, wanted.folder, before, limit + 1).await?;
    let Listing { items, next } = Listing::of(found.messages, limit, |message| message.position);
    Ok(Json(InboxListing { items, next, unread: found.unread, position: found.position }))
}

/// The number of unread messages.
#[derive(Debug, Serialize, ToSchema)]
pub struct UnreadCount {
    /// Messages that are neither read, archived nor expired.
    unread: i64,
}

/// Returns the number of a user's unread messages.
#[utoipa::path(get, path = "/v1/inbox/{user}/unread-count", tag = "inbox", security(("key" = ["read"]), ("user_token" = [])),
    params(("user" = String, Path, description = "The user's id"), TenantQuery), responses((status = 200, description = "The number of unread messages", body = UnreadCount), ProblemResponses))]
pub async fn count_unread(visitor: Visitor) -> Result<Json<UnreadCount>, Problem> {
    Ok(Json(UnreadCount { unread: visitor.unread().await? }))
}

/// The position up to which messages are marked as read.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadAll {
    /// The `position` of the list that the user saw. Later messages stay unread.
    #[schema(minimum = 0)]
    up_to: i64,
}

fn check_position(field: &str, position: i64) -> Result<(), Problem> {
    if position < 0 { Err(Problem::invalid(field, format!("is {position}; 0 or more is allowed"))) } else { Ok(()) }
}

/// The result of marking all messages as read.
#[derive(Debug, Serialize, ToSchema)]
pub struct ReadAllDone {
    /// The number of messages that were marked as read.
    read: u64,
    /// The number of unread messages after the change.
    unread: i64,
}

/// Marks all messages up to a position as read.
#[utoipa::path(post, path = "/v1/inbox/{user}/read-all", tag = "inbox", security(("key" = ["operate"]), ("user_token" = [])),
    params(("user" = String, Path, description = "The user's id"), TenantQuery), request_body = ReadAll,
    responses((status = 200, description = "Done", body = ReadAllDone), ProblemResponses))]
pub async fn read_all(visitor: Visitor, Body(asked): Body<ReadAll>) -> Result<Json<ReadAllDone>, Problem> {
    check_position("up_to", asked.up_to)?;
    let read = visitor.store.mark_all_read(visitor.tenant, &visitor.user, asked.up_to).await?;
    Ok(Json(ReadAllDone { read, unread: visitor.unread().await? }))
}

/// The result of marking a message.
#[derive(Debug, Serialize, ToSchema)]
pub struct Marked {
    /// The id of the message.
    id: String,
    /// The number of unread messages after the change.
    unread: i64,
}

async fn mark(visitor: &Visitor, id: &str, mark: Mark) -> Result<Json<Marked>, Problem> {
    let id: DeliveryId = id.parse().map_err(|_| Problem::not_found("message"))?;
    if !visitor.store.mark_message(visitor.tenant, &visitor.user, id, mark).await? {
        return Err(Problem::not_found("message"));
    }
    Ok(Json(Marked { id: id.to_string(), unread: visitor.unread().await? }))
}

/// Marks a message as read. Repeating the request changes nothing.
#[utoipa::path(post, path = "/v1/inbox/{user}/{id}/read", tag = "inbox", security(("key" = ["operate"]), ("user_token" = [])),
    params(("user" = String, Path, description = "The user's id"), ("id" = String, Path), TenantQuery), responses((status = 200, description = "Done", body = Marked), ProblemResponses))]
pub async fn read_message(visitor: Visitor, Path((_, id)): Path<(String, String)>) -> Result<Json<Marked>, Problem> {
    mark(&visitor, &id, Mark::Read).await
}

/// Marks a message as unread again.
#[utoipa::path(post, path = "/v1/inbox/{user}/{id}/unread", tag = "inbox", security(("key" = ["operate"]), ("user_token" = [])),
    params(("user" = String, Path, description = "The user's id"), ("id" = String, Path), TenantQuery), responses((status = 200, description = "Done", body = Marked), ProblemResponses))]
pub async fn unread_message(visitor: Visitor, Path((_, id)): Path<(String, String)>) -> Result<Json<Marked>, Problem> {
    mark(&visitor, &id, Mark::Unread).await
}

/// Archives a message. It no longer counts as unread.
#[utoipa::path(post, path = "/v1/inbox/{user}/{id}/archive", tag = "inbox", security(("key" = ["operate"]), ("user_token" = [])),
    params(("user" = String, Path, description = "The user's id"), ("id" = String, Path), TenantQuery), responses((status = 200, description = "Done", body = Marked), ProblemResponses))]
pub async fn archive_message(visitor: Visitor, Path((_, id)): Path<(String, String)>) -> Result<Json<Marked>, Problem> {
    mark(&visitor, &id, Mark::Archive).await
}

/// Moves a message out of the archive. It stays read or unread.
#[utoipa::path(post, path = "/v1/inbox/{user}/{id}/unarchive", tag = "inbox", security(("key" = ["operate"]), ("user_token" = [])),
    params(("user" = String, Path, description = "The user's id"), ("id" = String, Path), TenantQuery), responses((status = 200, description = "Done", body = Marked), ProblemResponses))]
pub async fn unarchive_message(
    visitor: Visitor,
    Path((_, id)): Path<(String, String)>,
) -> Result<Json<Marked>, Problem> {
    mark(&visitor, &id, Mark::Unarchive).await
}

/// The validity of a token.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TokenQuery {
    /// The time for which the token is valid, in seconds.
    #[param(minimum = 1, maximum = 86_400, default = 3600)]
    ttl_s: Option<u32>,
}

/// Creates a token that opens one user's inbox, for that user's browser. The token may read and mark messages, so the
/// key needs the scope `operate`: a key cannot give more rights than it has.
#[utoipa::path(post, path = "/v1/inbox/{user}/token", tag = "inbox", security(("key" = ["operate"])),
    params(("user" = String, Path, description = "The user's id"), TokenQuery, TenantQuery), responses((status = 200, description = "The token", body = UserToken), ProblemResponses))]
pub async fn mint_user_token(
    State(app): State<AppState>,
    Operator(caller): Operator,
    Id(user): Id<String>,
    Params(wanted): Params<TokenQuery>,
) -> Result<Json<UserToken>, Problem> {
    let ttl = wanted.ttl_s.map_or(user_token::DEFAULT_TTL, |seconds| Duration::from_secs(seconds.into()));
    user_token::mint(&caller.store(&app), caller.tenant(), &user, ttl).await.map(Json).map_err(refused)
}

fn refused(error: TokenError) -> Problem {
    match error {
        TokenError::Refused(problem) => Problem::of_field(&problem),
        TokenError::Db(problem) => problem.into(),
        bad @ (TokenError::Expired | TokenError::Bad) => Problem::new(ProblemKind::Unauthenticated, bad.to_string()),
    }
}
