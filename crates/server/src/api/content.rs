//! The content settings of a tenant, which all its templates share.

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
    /// The name of the tenant.
    tenant: String,
    /// The language of users without a language.
    language: Option<String>,
    /// The time zone in which templates write times.
    time_zone: String,
    /// The format of dates without a format of their own, as a strftime pattern.
    date_format: String,
    /// The treatment of placeholders without a value.
    missing: Missing,
    /// Values that templates read as `brand.name`.
    #[schema(value_type = Object)]
    brand: Value,
    /// The number of changes so far. 0 means that the settings were never changed.
    revision: i32,
    /// The time of the last change.
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

/// The content settings to change. Omitted fields keep their values.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ContentChange {
    /// Change the settings only if they still have this revision. Without it, the change applies to any revision.
    #[schema(minimum = 0)]
    revision: Option<i32>,
    /// The language of users without a language, e.g. `en` or `pt-BR`. `null` removes it.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<String>, max_length = 35, pattern = "^[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8}){0,3}$")]
    language: Option<Option<String>>,
    /// The time zone in which templates write times, e.g. `Asia/Kolkata`.
    #[schema(min_length = 1, max_length = 63)]
    time_zone: Option<String>,
    /// The format of dates without a format of their own, as a strftime pattern.
    #[schema(min_length = 1, max_length = 63)]
    date_format: Option<String>,
    /// The treatment of placeholders without a value.
    missing: Option<Missing>,
    /// Values that templates read as `brand.name`. They replace all current values.
    #[schema(value_type = Option<Object>)]
    brand: Option<Map<String, Value>>,
    /// Whether to write nothing and only list the templates that would get a new version.
    #[serde(default)]
    dry_run: bool,
}

/// The effect of a change of the content settings, or of a dry run.
#[derive(Debug, Serialize, ToSchema)]
pub struct SavedContent {
    /// The settings after the change.
    settings: ShownContent,
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

/// Changes the content settings, and creates a new version of each template that uses them: a template that has the
/// same value as the settings before the change, or that uses brand values. With `dry_run` the answer only lists these
/// templates.
#[utoipa::path(patch, path = "/v1/content", tag = "content", security(("key" = ["edit"])), params(TenantQuery), request_body = ContentChange,
    responses((status = 200, description = "The settings after the change, and the templates that use them", body = SavedContent), ProblemResponses))]
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
