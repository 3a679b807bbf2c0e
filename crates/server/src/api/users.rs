//! Users: profiles, addresses and preferences.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use postcommit_channel::model::QuietHours;
use postcommit_engine::store::{
    PreferenceDraft, PreferenceRow, Store, UserAddress, UserChange, UserDraft, UserFilter, UserRow,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::page::{Listing, PageQuery};
use super::{ProblemResponses, TenantQuery};
use crate::app::AppState;
use crate::auth::{Editor, Reader};
use crate::problem::Problem;
use crate::read::{Body, Id, Params, given};

/// Lists users, ordered by id.
#[utoipa::path(get, path = "/v1/users", tag = "users", security(("key" = ["read"])), params(PageQuery, TenantQuery),
    responses((status = 200, description = "A page", body = Listing<UserRow>), ProblemResponses))]
pub async fn list_users(
    State(app): State<AppState>,
    Reader(caller): Reader,
    Params(page): Params<PageQuery>,
) -> Result<Json<Listing<UserRow>>, Problem> {
    let filter = UserFilter { tenant: caller.whose(), after: page.place()?, limit: page.limit() + 1 };
    let rows = caller.store(&app).user_rows(&filter).await?;
    Ok(Json(Listing::of(rows, page.limit(), |user| (user.tenant_id, user.id.clone()))))
}

/// Defines a body that describes a whole user.
macro_rules! description {
    ($(#[$about:meta])* $name:ident { $($(#[$field_about:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$about])*
        #[derive(Debug, Deserialize, ToSchema)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            $($(#[$field_about])* $field: $type,)*
            /// The display name.
            #[schema(min_length = 1, max_length = 255)]
            name: Option<String>,
            /// The language, a tag such as `pt-BR`.
            #[schema(pattern = "^[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8}){0,3}$", max_length = 30)]
            language: Option<String>,
            /// The time zone, an IANA name such as `Asia/Kolkata`.
            #[schema(min_length = 1, max_length = 63)]
            time_zone: Option<String>,
            /// The quiet hours, in the user's time zone, or else in the tenant's time zone.
            quiet_hours: Option<QuietHours>,
            /// Fields that templates read as `user.data.name`: at most 2,048 bytes of JSON.
            #[serde(default)]
            data: Map<String, Value>,
            /// The addresses. For each kind, the first address that is not disabled is used.
            #[serde(default)]
            #[schema(max_items = 20)]
            addresses: Vec<UserAddress>,
        }

        impl $name {
            fn draft(self) -> UserDraft {
                UserDraft {
                    name: self.name,
                    language: self.language,
                    time_zone: self.time_zone,
                    quiet_hours: self.quiet_hours,
                    data: self.data.into(),
                    addresses: self.addresses,
                }
            }
        }
    };
}

description! {
    /// A user to be created.
    NewUser {
        /// The application's id of the user: no control characters, and no `.` or `..` as the whole id or between
        /// slashes.
        #[schema(min_length = 1, max_length = 255, example = "42")]
        id: String,
    }
}

description! {
    /// The new content of a user. Omitted fields become empty.
    UserReplacement {
        /// Replace the user only if it still has this revision. Without it, a user that does not exist is created.
        #[schema(minimum = 1)]
        revision: Option<i32>,
    }
}

/// Creates a user.
#[utoipa::path(post, path = "/v1/users", tag = "users", security(("key" = ["edit"])), params(TenantQuery), request_body = NewUser,
    responses((status = 201, description = "Created", body = UserRow), ProblemResponses))]
pub async fn create_user(
    State(app): State<AppState>,
    Editor(caller): Editor,
    Body(new): Body<NewUser>,
) -> Result<(StatusCode, Json<UserRow>), Problem> {
    let id = new.id.clone();
    let made = caller.store_of_one(&app).create_user(caller.tenant(), &id, &new.draft()).await?;
    Ok((StatusCode::CREATED, Json(made)))
}

/// Returns one user.
#[utoipa::path(get, path = "/v1/users/{id}", tag = "users", security(("key" = ["read"])), params(("id" = String, Path, description = "The user's id"), TenantQuery),
    responses((status = 200, description = "The user", body = UserRow), ProblemResponses))]
pub async fn get_user(
    State(app): State<AppState>,
    Reader(caller): Reader,
    Id(id): Id<String>,
) -> Result<Json<UserRow>, Problem> {
    let found = caller.store_of_one(&app).user_row(caller.tenant(), &id).await?;
    found.map(Json).ok_or_else(|| Problem::not_found("user"))
}

/// Replaces a user, or creates it if it does not exist.
#[utoipa::path(put, path = "/v1/users/{id}", tag = "users", security(("key" = ["edit"])), params(("id" = String, Path, description = "The user's id"), TenantQuery), request_body = UserReplacement,
    responses((status = 200, description = "The user after the change", body = UserRow), (status = 201, description = "Created", body = UserRow), ProblemResponses))]
pub async fn put_user(
    State(app): State<AppState>,
    Editor(caller): Editor,
    Id(id): Id<String>,
    Body(to): Body<UserReplacement>,
) -> Result<(StatusCode, Json<UserRow>), Problem> {
    let revision = to.revision;
    let (user, is_new) = caller.store_of_one(&app).put_user(caller.tenant(), &id, revision, &to.draft()).await?;
    Ok((if is_new { StatusCode::CREATED } else { StatusCode::OK }, Json(user)))
}

/// The fields to change. Omitted fields keep their values, and `null` removes a value.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UserUpdate {
    /// Change the user only if it still has this revision. Without it, the change applies to any revision.
    #[schema(minimum = 1)]
    revision: Option<i32>,
    /// The display name.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<String>, min_length = 1, max_length = 255)]
    name: Option<Option<String>>,
    /// The language, a tag such as `pt-BR`.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<String>, pattern = "^[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8}){0,3}$", max_length = 30)]
    language: Option<Option<String>>,
    /// The time zone, an IANA name such as `Asia/Kolkata`.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<String>, min_length = 1, max_length = 63)]
    time_zone: Option<Option<String>>,
    /// The quiet hours, in the user's time zone, or else in the tenant's time zone.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<QuietHours>)]
    quiet_hours: Option<Option<QuietHours>>,
    /// All fields that templates read as `user.data.name`: at most 2,048 bytes of JSON.
    data: Option<Map<String, Value>>,
    /// All addresses. For each kind, the first address that is not disabled is used.
    #[schema(max_items = 20)]
    addresses: Option<Vec<UserAddress>>,
}

/// Changes the given fields of a user and keeps the others.
#[utoipa::path(patch, path = "/v1/users/{id}", tag = "users", security(("key" = ["edit"])), params(("id" = String, Path, description = "The user's id"), TenantQuery), request_body = UserUpdate,
    responses((status = 200, description = "The user after the change", body = UserRow), ProblemResponses))]
pub async fn update_user(
    State(app): State<AppState>,
    Editor(caller): Editor,
    Id(id): Id<String>,
    Body(to): Body<UserUpdate>,
) -> Result<Json<UserRow>, Problem> {
    let change = UserChange {
        name: to.name,
        language: to.language,
        time_zone: to.time_zone,
        quiet_hours: to.quiet_hours,
        data: to.data.map(Value::Object),
        addresses: to.addresses,
    };
    Ok(Json(caller.store_of_one(&app).update_user(caller.tenant(), &id, to.revision, &change).await?))
}

/// Deletes a user with its addresses, preferences and list memberships.
#[utoipa::path(delete, path = "/v1/users/{id}", tag = "users", security(("key" = ["edit"])), params(("id" = String, Path, description = "The user's id"), TenantQuery),
    responses((status = 204, description = "The user is deleted"), ProblemResponses))]
pub async fn delete_user(
    State(app): State<AppState>,
    Editor(caller): Editor,
    Id(id): Id<String>,
) -> Result<StatusCode, Problem> {
    caller.store_of_one(&app).delete_user(caller.tenant(), &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// All preferences of a user.
#[derive(Debug, Serialize, ToSchema)]
pub struct ShownPreferences {
    /// The preferences by event type and channel. The most specific preference decides, in this order: for an event
    /// type on a channel, for an event type, for a channel, for all.
    items: Vec<PreferenceRow>,
}

impl ShownPreferences {
    async fn of(store: &Store, tenant: i32, user: &str) -> Result<Json<Self>, Problem> {
        Ok(Json(Self { items: store.preferences(tenant, user).await? }))
    }
}

/// Returns the preferences of a user. A user without a profile may have preferences.
#[utoipa::path(get, path = "/v1/users/{id}/preferences", tag = "users", security(("key" = ["read"])), params(("id" = String, Path, description = "The user's id"), TenantQuery),
    responses((status = 200, description = "All preferences of the user", body = ShownPreferences), ProblemResponses))]
pub async fn list_preferences(
    State(app): State<AppState>,
    Reader(caller): Reader,
    Id(id): Id<String>,
) -> Result<Json<ShownPreferences>, Problem> {
    ShownPreferences::of(&caller.store_of_one(&app), caller.tenant(), &id).await
}

/// Preferences to be set.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GivenPreferences {
    /// The preferences. Each pair of event type and channel may be given once.
    #[schema(max_items = 500)]
    preferences: Vec<PreferenceDraft>,
}

/// Replaces all preferences of a user.
#[utoipa::path(put, path = "/v1/users/{id}/preferences", tag = "users", security(("key" = ["edit"])), params(("id" = String, Path, description = "The user's id"), TenantQuery), request_body = GivenPreferences,
    responses((status = 200, description = "The preferences after the change", body = ShownPreferences), ProblemResponses))]
pub async fn replace_preferences(
    State(app): State<AppState>,
    Editor(caller): Editor,
    Id(id): Id<String>,
    Body(to): Body<GivenPreferences>,
) -> Result<Json<ShownPreferences>, Problem> {
    let store = caller.store_of_one(&app);
    store.replace_preferences(caller.tenant(), &id, &to.preferences).await?;
    ShownPreferences::of(&store, caller.tenant(), &id).await
}

/// Sets the given preferences of a user and keeps the others. A preference whose `allowed` is null is removed.
#[utoipa::path(patch, path = "/v1/users/{id}/preferences", tag = "users", security(("key" = ["edit"])), params(("id" = String, Path, description = "The user's id"), TenantQuery), request_body = GivenPreferences,
    responses((status = 200, description = "The preferences after the change", body = ShownPreferences), ProblemResponses))]
pub async fn set_preferences(
    State(app): State<AppState>,
    Editor(caller): Editor,
    Id(id): Id<String>,
    Body(to): Body<GivenPreferences>,
) -> Result<Json<ShownPreferences>, Problem> {
    let store = caller.store_of_one(&app);
    store.set_preferences(caller.tenant(), &id, &to.preferences).await?;
    ShownPreferences::of(&store, caller.tenant(), &id).await
}
