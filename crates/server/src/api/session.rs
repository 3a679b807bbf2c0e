//! The session: shows the signed-in caller, and signs out.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use postcommit_engine::store::csrf_token;
use serde::Serialize;
use utoipa::ToSchema;

use super::ProblemResponses;
use crate::app::AppState;
use crate::auth::{self, COOKIE, Caller};
use crate::problem::Problem;

/// The authenticated caller.
#[derive(Debug, Serialize, ToSchema)]
pub struct SignedIn {
    /// The name of the caller in the audit log.
    actor: String,
    /// The caller's tenant.
    tenant: String,
    /// The caller's scopes.
    scopes: Vec<String>,
    /// The CSRF token of a session. Send it with every change, as the header `X-CSRF-Token` or the form field
    /// `csrf_token`.
    #[serde(skip_serializing_if = "Option::is_none")]
    csrf_token: Option<String>,
}

/// Returns the authenticated caller.
#[utoipa::path(get, path = "/v1/session", tag = "session", security(("key" = [])), responses((status = 200, description = "The caller", body = SignedIn), ProblemResponses))]
pub async fn show_session(caller: Caller, headers: HeaderMap) -> Json<SignedIn> {
    let by_cookie = auth::cookie(&headers).filter(|_| !headers.contains_key(header::AUTHORIZATION));
    Json(SignedIn {
        actor: caller.actor().to_owned(),
        tenant: caller.tenant_name().to_owned(),
        scopes: caller.scopes().names(),
        // The token is revealed here to the page that must send it.
        csrf_token: by_cookie.and_then(csrf_token).map(|token| token.reveal().to_owned()),
    })
}

/// Ends the session. A request with a key has no session to end.
#[utoipa::path(delete, path = "/v1/session", tag = "session", security(("key" = [])), responses((status = 204, description = "The session has ended"), ProblemResponses))]
pub async fn end_session(State(app): State<AppState>, caller: Caller, headers: HeaderMap) -> Result<Response, Problem> {
    if let Some(token) = auth::cookie(&headers) {
        // The session ends regardless of the tenant that the query names.
        caller.store_of_all(&app).end_session(token).await?;
    }
    Ok((
        StatusCode::NO_CONTENT,
        [(header::SET_COOKIE, format!("{COOKIE}=; Path=/; Secure; HttpOnly; SameSite=Strict; Max-Age=0"))],
    )
        .into_response())
}
