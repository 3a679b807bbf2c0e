//! Layouts, which surround the HTML of templates, and partials, which templates and layouts include.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use postcommit_engine::store::{LayoutRow, Store, TemplatePosition};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa::openapi::schema::Object;

use super::page::{Listing, PageQuery};
use super::{ProblemResponses, TenantQuery, one_of};
use crate::app::AppState;
use crate::auth::{Caller, Editor, Reader};
use crate::problem::Problem;
use crate::read::{Body, Id, Params};
use crate::templates::Templates;
use crate::templates::layouts::{Effect, KINDS};

/// Lists layouts and partials, ordered by name. The built-in layout `mail` is listed only if the tenant has replaced
/// it.
#[utoipa::path(get, path = "/v1/layouts", tag = "layouts", security(("key" = ["read"])), params(PageQuery, TenantQuery),
    responses((status = 200, description = "A page", body = Listing<LayoutRow>), ProblemResponses))]
pub async fn list_layouts(
    State(app): State<AppState>,
    Reader(caller): Reader,
    Params(page): Params<PageQuery>,
) -> Result<Json<Listing<LayoutRow>>, Problem> {
    let after: Option<TemplatePosition> = page.place()?;
    let rows = caller.store(&app).layout_rows(caller.whose(), after.as_ref(), page.limit() + 1).await?;
    Ok(Json(Listing::of(rows, page.limit(), |row| TemplatePosition(row.tenant_id, row.name.clone()))))
}

/// A layout or partial to be created.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewLayout {
    /// The name: 1 to 63 letters, digits, `_`, `-`, `.`; unique in the tenant. A layout with the name of a built-in
    /// layout replaces it.
    #[schema(min_length = 1, max_length = 63, pattern = "^[A-Za-z0-9_.-]+$")]
    name: String,
    /// The kind: `layout` (surrounds the HTML of templates) or `partial` (templates and layouts include it).
    #[schema(schema_with = kinds)]
    kind: String,
    /// The source of the layout, in the template language.
    source: String,
    /// Whether to write nothing and only list the templates that would get a new version.
    #[serde(default)]
    dry_run: bool,
}

fn kinds() -> Object {
    one_of(KINDS).build()
}

/// The fields to change. Omitted fields keep their values.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LayoutChange {
    /// Change the layout only if it still has this revision. Without it, the change applies to any revision.
    #[schema(minimum = 1)]
    revision: Option<i32>,
    /// The source of the layout, in the template language.
    source: Option<String>,
    /// Whether to write nothing and only list the templates that would get a new version.
    #[serde(default)]
    dry_run: bool,
}

/// The effect of a change of a layout, or of a dry run.
#[derive(Debug, Serialize, ToSchema)]
pub struct SavedLayout {
    /// The layout after the change. `null` if a dry run was requested and the layout does not exist.
    layout: Option<LayoutRow>,
    /// Whether the change wrote something, or would write something.
    changed: bool,
    /// The templates that get a new version.
    templates: Vec<String>,
    /// The number of notifications of the templates' event types that are not expanded yet. They will use the new
    /// versions.
    waiting: i64,
    /// Whether `waiting` is exact. If not, there may be more.
    waiting_is_exact: bool,
}

fn layouts<'a>(store: &'a Store, caller: &Caller) -> Templates<'a> {
    Templates { store, tenant: caller.tenant() }
}

async fn saved(store: &Store, caller: &Caller, name: &str, effect: Effect) -> Result<Json<SavedLayout>, Problem> {
    let Effect { is_changed: changed, templates, waiting } = effect;
    let (waiting, waiting_is_exact) = (waiting.count, waiting.is_exact);
    let layout = store.layout(caller.tenant(), name).await?;
    Ok(Json(SavedLayout { layout, changed, templates, waiting, waiting_is_exact }))
}

/// Creates a layout or a partial. With `dry_run` nothing is written.
#[utoipa::path(post, path = "/v1/layouts", tag = "layouts", security(("key" = ["edit"])), params(TenantQuery), request_body = NewLayout,
    responses((status = 201, description = "The layout is created, or was only checked", body = SavedLayout), ProblemResponses))]
pub async fn create_layout(
    State(app): State<AppState>,
    Editor(caller): Editor,
    Body(new): Body<NewLayout>,
) -> Result<(StatusCode, Json<SavedLayout>), Problem> {
    let store = caller.store_of_one(&app);
    let made = layouts(&store, &caller).create_layout(&new.name, &new.kind, &new.source, new.dry_run).await?;
    Ok((StatusCode::CREATED, saved(&store, &caller, &new.name, made).await?))
}

/// Shows a layout or partial.
#[utoipa::path(get, path = "/v1/layouts/{name}", tag = "layouts", security(("key" = ["read"])), params(("name" = String, Path), TenantQuery),
    responses((status = 200, description = "The layout", body = LayoutRow), ProblemResponses))]
pub async fn get_layout(
    State(app): State<AppState>,
    Reader(caller): Reader,
    Id(name): Id<String>,
) -> Result<Json<LayoutRow>, Problem> {
    Ok(Json(layouts(&caller.store_of_one(&app), &caller).find_layout(&name).await?))
}

/// Changes a layout, and creates a new version of each template that uses it. With `dry_run` the
/// answer only lists these templates.
#[utoipa::path(patch, path = "/v1/layouts/{name}", tag = "layouts", security(("key" = ["edit"])), params(("name" = String, Path), TenantQuery), request_body = LayoutChange,
    responses((status = 200, description = "The layout after the change, and the templates that use it", body = SavedLayout), ProblemResponses))]
pub async fn update_layout(
    State(app): State<AppState>,
    Editor(caller): Editor,
    Id(name): Id<String>,
    Body(given): Body<LayoutChange>,
) -> Result<Json<SavedLayout>, Problem> {
    let store = caller.store_of_one(&app);
    let layouts = layouts(&store, &caller);
    let made = layouts.update_layout(&name, given.revision, given.source.as_deref(), given.dry_run).await?;
    saved(&store, &caller, &name, made).await
}

/// Deletes a layout that neither a template nor another layout uses.
#[utoipa::path(delete, path = "/v1/layouts/{name}", tag = "layouts", security(("key" = ["edit"])), params(("name" = String, Path), TenantQuery),
    responses((status = 204, description = "The layout is deleted"), ProblemResponses))]
pub async fn delete_layout(
    State(app): State<AppState>,
    Editor(caller): Editor,
    Id(name): Id<String>,
) -> Result<StatusCode, Problem> {
    layouts(&caller.store_of_one(&app), &caller).delete_layout(&name).await?;
    Ok(StatusCode::NO_CONTENT)
}
