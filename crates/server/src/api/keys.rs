//! API keys: create, list and revoke.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use postcommit::Timestamp;
use postcommit_channel::model::Scope;
use postcommit_engine::store::{Key, KeyDraft, KeyFilter};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa::openapi::schema::{Array, ArrayBuilder};

use super::page::{Listing, PageQuery};
use super::{ProblemResponses, TenantQuery, one_of};
use crate::app::AppState;
use crate::auth::Administrator;
use crate::people;
use crate::problem::Problem;
use crate::read::{Body, Id, Params};

/// Lists API keys, newest first, including revoked and expired ones, without their secrets.
#[utoipa::path(get, path = "/v1/keys", tag = "keys", security(("key" = ["admin"])), params(PageQuery, TenantQuery),
    responses((status = 200, description = "A page of the list", body = Listing<Key>), ProblemResponses))]
pub async fn list_keys(
    State(app): State<AppState>,
    Administrator(caller): Administrator,
    Params(page): Params<PageQuery>,
) -> Result<Json<Listing<Key>>, Problem> {
    let before: Option<(Timestamp, String)> = page.place()?;
    let filter = KeyFilter { tenant: caller.whose(), before, limit: page.limit() + 1 };
    let rows = caller.store(&app).key_rows(&filter).await?;
    Ok(Json(Listing::of(rows, page.limit(), |key| (key.created_at, key.id.clone()))))
}

/// A key to be created.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewKey {
    /// The purpose of the key.
    #[schema(min_length = 1, max_length = 255)]
    name: String,
    /// The scopes of the new key. The key of this request must have them, too.
    #[schema(schema_with = scopes, example = json!(["enqueue", "read"]))]
    scopes: Vec<String>,
    /// The expiry of the key. Default: never.
    expires_at: Option<Timestamp>,
}

fn scopes() -> Array {
    let names = Scope::ALL.map(Scope::name);
    ArrayBuilder::new().items(one_of(names)).min_items(Some(1)).max_items(Some(names.len())).build()
}

/// A key that was just created.
#[derive(Debug, Serialize, ToSchema)]
pub struct MadeKey {
    /// The public part of the key.
    id: String,
    /// The whole key. It is not shown again.
    token: String,
}

/// Creates a key. The key is shown only in this answer.
#[utoipa::path(post, path = "/v1/keys", tag = "keys", security(("key" = ["admin"])), params(TenantQuery), request_body = NewKey,
    responses((status = 201, description = "Created", body = MadeKey), ProblemResponses))]
pub async fn create_key(
    State(app): State<AppState>,
    Administrator(caller): Administrator,
    Body(new): Body<NewKey>,
) -> Result<(StatusCode, Json<MadeKey>), Problem> {
    let draft = KeyDraft { scopes: people::scopes(&new.scopes)?, name: new.name, expires_at: new.expires_at };
    let made = people::create_key(&app, &caller, &draft).await?;
    // The key is revealed here to return it once.
    Ok((StatusCode::CREATED, Json(MadeKey { id: made.id, token: made.token.reveal().to_owned() })))
}

/// Revokes a key immediately and permanently, and ends its sessions.
#[utoipa::path(delete, path = "/v1/keys/{id}", tag = "keys", security(("key" = ["admin"])), params(("id" = String, Path), TenantQuery),
    responses((status = 204, description = "The key is revoked"), ProblemResponses))]
pub async fn revoke_key(
    State(app): State<AppState>,
    Administrator(caller): Administrator,
    Id(id): Id<String>,
) -> Result<StatusCode, Problem> {
    people::revoke_key(&app, &caller, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}
