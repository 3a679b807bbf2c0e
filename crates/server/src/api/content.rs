//! The content settings of a tenant: what its templates have in common.

use axum::Json;
use axum::extract::State;
use postcommit::Timestamp;
use postcommit_channel::template::Missing;
use postcommit_engine::store::{ContentSettings, Store};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::{ProblemResponses, TenantQuery};
use crate::app::AppState;
use crate::auth::{Caller, Editor, Reader};
use crate::problem::Problem;
use crate::read::{Body, given};
use crate::templates::Templates;
use crate::templates::layouts::{Effect, SettingsChange};

/// The content settings of a tenant.
#[derive(Debug, Serialize, ToSchema)]
pub struct ShownContent {
    /// Its tenant.
    tenant: String,
    /// The language of users without one.
    language: Option<String>,
    /// The time zone in which templates write times.
    time_zone: String,
    /// How a bare date is written, by strftime.
    date_format: String,
    /// What a placeholder without a value becomes.
    missing: Missing,
    /// Values that templates read as `brand.name`.
    #[schema(value_type = Object)]
    brand: Value,
    /// Counts changes; 0: nothing was ever set.
    revision: i32,
    /// When they were last changed.
    updated_at: Option<Timestamp>,
}

async fn shown(store: &Store, caller: &Caller) -> Result<ShownContent, Problem> {
    let settings = store.content_settings(caller.tenant()).await?;
    let ContentSettings { language, time_zone, date_format, missing, brand, revision, updated_at } = settings;
    let tenant = caller.tenant_name().to_owned();
    Ok(ShownContent { tenant, language, time_zone, date_format, missing, brand, revision, updated_at })
}

/// Shows the content settings of the tenant.
#[utoipa::path(get, path = "/v1/content", tag = "content", security(("key" = ["read"])), params(TenantQuery),
    responses((status = 200, description = "The settings", body = ShownContent), ProblemResponses))]
pub async fn get_content(State(app): State<AppState>, Reader(caller): Reader) -> Result<Json<ShownContent>, Problem> {
    Ok(Json(shown(&caller.store_of_one(&app), &caller).await?))
}

/// What to change. A field that is left out keeps its value.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ContentChange {
    /// Change them only if they still have this revision. Without one, the change applies to their present state.
    #[schema(minimum = 0)]
    revision: Option<i32>,
    /// The language of users without one, e.g. `en` or `pt-BR`; `null` removes it.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<String>, max_length = 35, pattern = "^[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8}){0,3}$")]
    language: Option<Option<String>>,
    /// The time zone in which templates write times, e.g. `Asia/Kolkata`.
    #[schema(min_length = 1, max_length = 63)]
    time_zone: Option<String>,
    /// How a bare date is written, by strftime.
    #[schema(min_length = 1, max_length = 63)]
    date_format: Option<String>,
    /// What a placeholder without a value becomes.
    missing: Option<Missing>,
    /// Values that templates read as `brand.name`. They replace all of the present ones.
    #[schema(value_type = Option<Object>)]
    brand: Option<Map<String, Value>>,
    /// Write nothing. The answer lists the templates that would get a new version.
    #[serde(default)]
    dry_run: bool,
}

/// What a change of the content settings did, or would do.
#[derive(Debug, Serialize, ToSchema)]
pub struct SavedContent {
    /// The settings as they are now.
    settings: ShownContent,
    /// Whether something was written, or would be.
    changed: bool,
    /// The templates that get a new version.
    templates: Vec<String>,
    /// Notifications of their event types that are not expanded yet: the change counts for them.
    waiting: i64,
    /// Whether `waiting` is exact. If not, there may be more.
    waiting_is_exact: bool,
}

/// Changes the content settings, and creates a new version of each template that follows them: a template that has the
/// same value as the settings before the change, or that uses brand values. With `dry_run` the answer only lists these
/// templates.
#[utoipa::path(patch, path = "/v1/content", tag = "content", security(("key" = ["edit"])), params(TenantQuery), request_body = ContentChange,
    responses((status = 200, description = "The settings after the change, and the templates that follow them", body = SavedContent), ProblemResponses))]
pub async fn update_content(
    State(app): State<AppState>,
    Editor(caller): Editor,
    Body(given): Body<ContentChange>,
) -> Result<Json<SavedContent>, Problem> {
    let store = caller.store_of_one(&app);
    let change = SettingsChange {
        language: given.language,
        time_zone: given.time_zone,
        date_format: given.date_format,
        missing: given.missing.map(|missing| missing.name().to_owned()),
        brand: given.brand.map(Value::Object),
    };
    let content = Templates { store: &store, tenant: caller.tenant() };
    let Effect { is_changed: changed, templates, waiting } =
        content.update_settings(given.revision, &change, given.dry_run).await?;
    let (waiting, waiting_is_exact) = (waiting.count, waiting.is_exact);
    Ok(Json(SavedContent { settings: shown(&store, &caller).await?, changed, templates, waiting, waiting_is_exact }))
}
