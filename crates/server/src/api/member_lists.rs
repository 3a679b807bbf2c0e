//! Lists of recipients and their members.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use postcommit_engine::store::{ListFilter, ListRow, MemberDraft, MemberPlace, MemberRow, MembersChanged};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::page::{Listing, PageQuery};
use super::{ProblemResponses, TenantQuery};
use crate::app::AppState;
use crate::auth::{Editor, Reader};
use crate::problem::Problem;
use crate::read::{Body, Id, Params, given};

/// Lists the lists of recipients, ordered by name, without their members.
#[utoipa::path(get, path = "/v1/lists", tag = "lists", security(("key" = ["read"])), params(PageQuery, TenantQuery),
    responses((status = 200, description = "A page", body = Listing<ListRow>), ProblemResponses))]
pub async fn list_lists(
    State(app): State<AppState>,
    Reader(caller): Reader,
    Params(page): Params<PageQuery>,
) -> Result<Json<Listing<ListRow>>, Problem> {
    let filter = ListFilter { tenant: caller.whose(), after: page.place()?, limit: page.limit() + 1 };
    let rows = caller.store(&app).member_list_rows(&filter).await?;
    Ok(Json(Listing::of(rows, page.limit(), |list| (list.tenant_id, list.name.clone()))))
}

/// A list to be created.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewList {
    /// The name, unique in the tenant: no control characters, and no `.` or `..` as the whole name or between slashes.
    #[schema(min_length = 1, max_length = 255, example = "night-shift")]
    name: String,
    /// The description of the list.
    #[schema(min_length = 1, max_length = 1000)]
    description: Option<String>,
}

/// Creates a list without members.
#[utoipa::path(post, path = "/v1/lists", tag = "lists", security(("key" = ["edit"])), params(TenantQuery), request_body = NewList,
    responses((status = 201, description = "Created", body = ListRow), ProblemResponses))]
pub async fn create_list(
    State(app): State<AppState>,
    Editor(caller): Editor,
    Body(new): Body<NewList>,
) -> Result<(StatusCode, Json<ListRow>), Problem> {
    let store = caller.store_of_one(&app);
    let made = store.create_list(caller.tenant(), &new.name, new.description.as_deref()).await?;
    Ok((StatusCode::CREATED, Json(made)))
}

/// A list and the number of its members.
#[derive(Debug, Serialize, ToSchema)]
pub struct ShownList {
    #[serde(flatten)]
    list: ListRow,
    /// The number of members. Members of nested lists are not counted.
    members: i64,
}

/// Returns one list.
#[utoipa::path(get, path = "/v1/lists/{name}", tag = "lists", security(("key" = ["read"])), params(("name" = String, Path), TenantQuery),
    responses((status = 200, description = "The list", body = ShownList), ProblemResponses))]
pub async fn get_list(
    State(app): State<AppState>,
    Reader(caller): Reader,
    Id(name): Id<String>,
) -> Result<Json<ShownList>, Problem> {
    let store = caller.store_of_one(&app);
    let list = store.member_list_row(caller.tenant(), &name).await?.ok_or_else(|| Problem::not_found("list"))?;
    Ok(Json(ShownList { list, members: store.member_count(caller.tenant(), &name).await? }))
}

/// The fields to change. Omitted fields keep their values.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ListUpdate {
    /// Change the list only if it still has this revision. Without it, the change applies to any revision.
    #[schema(minimum = 1)]
    revision: Option<i32>,
    /// The description of the list. `null` removes it.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<String>, min_length = 1, max_length = 1000)]
    description: Option<Option<String>>,
}

/// Changes the given fields of a list and keeps the others.
#[utoipa::path(patch, path = "/v1/lists/{name}", tag = "lists", security(("key" = ["edit"])), params(("name" = String, Path), TenantQuery), request_body = ListUpdate,
    responses((status = 200, description = "The list after the change", body = ListRow), ProblemResponses))]
pub async fn update_list(
    State(app): State<AppState>,
    Editor(caller): Editor,
    Id(name): Id<String>,
    Body(to): Body<ListUpdate>,
) -> Result<Json<ListRow>, Problem> {
    let store = caller.store_of_one(&app);
    let description = to.description.as_ref().map(Option::as_deref);
    Ok(Json(store.update_list(caller.tenant(), &name, to.revision, description).await?))
}

/// Deletes a list and its members. A list that is a member of another list is not deleted.
#[utoipa::path(delete, path = "/v1/lists/{name}", tag = "lists", security(("key" = ["edit"])), params(("name" = String, Path), TenantQuery),
    responses((status = 204, description = "The list is deleted"), ProblemResponses))]
pub async fn delete_list(
    State(app): State<AppState>,
    Editor(caller): Editor,
    Id(name): Id<String>,
) -> Result<StatusCode, Problem> {
    caller.store_of_one(&app).delete_list(caller.tenant(), &name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Lists the members of a list, ordered by kind and name. Members of nested lists are not shown.
#[utoipa::path(get, path = "/v1/lists/{name}/members", tag = "lists", security(("key" = ["read"])), params(("name" = String, Path), PageQuery, TenantQuery),
    responses((status = 200, description = "A page", body = Listing<MemberRow>), ProblemResponses))]
pub async fn list_members(
    State(app): State<AppState>,
    Reader(caller): Reader,
    Id(name): Id<String>,
    Params(page): Params<PageQuery>,
) -> Result<Json<Listing<MemberRow>>, Problem> {
    let (store, after) = (caller.store_of_one(&app), page.place::<MemberPlace>()?);
    if store.member_list_row(caller.tenant(), &name).await?.is_none() {
        return Err(Problem::not_found("list"));
    }
    let rows = store.member_rows(caller.tenant(), &name, after.as_ref(), page.limit() + 1).await?;
    Ok(Json(Listing::of(rows, page.limit(), MemberRow::place)))
}

/// Members to be added and removed: at most 1,000 together.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MembersUpdate {
    /// Members to be added. Existing members are kept.
    #[serde(default)]
    #[schema(max_items = 1000)]
    add: Vec<MemberDraft>,
    /// Members to be removed. Entries that are not members are ignored.
    #[serde(default)]
    #[schema(max_items = 1000)]
    remove: Vec<MemberDraft>,
}

/// Adds and removes members in one transaction.
#[utoipa::path(patch, path = "/v1/lists/{name}/members", tag = "lists", security(("key" = ["edit"])), params(("name" = String, Path), TenantQuery), request_body = MembersUpdate,
    responses((status = 200, description = "The number of added and removed members", body = MembersChanged), ProblemResponses))]
pub async fn change_members(
    State(app): State<AppState>,
    Editor(caller): Editor,
    Id(name): Id<String>,
    Body(to): Body<MembersUpdate>,
) -> Result<Json<MembersChanged>, Problem> {
    let store = caller.store_of_one(&app);
    Ok(Json(store.change_members(caller.tenant(), &name, &to.add, &to.remove).await?))
}
