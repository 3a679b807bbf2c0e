//! Signing in: a link that works once begins a session, which a cookie holds.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use postcommit_engine::store::csrf_token;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::problem::{Kind, Problem};
use super::read::{Form, Params};
use super::{Refusals, Shared};
use crate::auth::{self, COOKIE, Caller, SESSION_LASTS};
use crate::door::Client;

/// Who is signed in.
#[derive(Debug, Serialize, ToSchema)]
pub struct SignedIn {
    /// As the audit log calls them.
    actor: String,
    /// Whose rows they see.
    tenant: String,
    /// What they may do.
    scopes: Vec<String>,
    /// Of a session: to be sent along with every change, as `X-CSRF-Token`.
    #[serde(skip_serializing_if = "Option::is_none")]
    csrf_token: Option<String>,
}

/// Who calls.
#[utoipa::path(get, path = "/v1/session", tag = "session", security(("key" = [])), responses((status = 200, description = "Who calls", body = SignedIn), Refusals))]
pub async fn show_session(caller: Caller, headers: HeaderMap) -> Json<SignedIn> {
    let by_cookie = auth::cookie(&headers).filter(|_| !headers.contains_key(header::AUTHORIZATION));
    Json(SignedIn {
        actor: caller.actor().to_owned(),
        tenant: caller.tenant_name().to_owned(),
        scopes: caller.scopes().names(),
        // Revealed to the page that must send it along.
        csrf_token: by_cookie.and_then(csrf_token).map(|token| token.reveal().to_owned()),
    })
}

/// Signs out. For a key there is nothing to end.
#[utoipa::path(delete, path = "/v1/session", tag = "session", security(("key" = [])), responses((status = 204, description = "It is over"), Refusals))]
pub async fn end_session(State(api): State<Shared>, caller: Caller, headers: HeaderMap) -> Result<Response, Problem> {
    if let Some(token) = auth::cookie(&headers) {
        // Whatever tenant was chosen: the session is where its cookie is.
        caller.store_of_all(&api).end_session(token).await?;
    }
    Ok((StatusCode::NO_CONTENT, [(header::SET_COOKIE, format!("{COOKIE}=; Path=/; Secure; HttpOnly; SameSite=Strict; Max-Age=0"))])
        .into_response())
}

/// A link's token.
#[derive(Debug, Deserialize, IntoParams, ToSchema)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Link {
    /// What the link holds.
    token: String,
}

/// What a sign-in link opens: a button, so that whatever looks at links ahead of people does not use it up.
pub async fn login_page(Params(link): Params<Link>) -> Html<String> {
    let token: String = link.token.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_')).collect();
    Html(format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>Sign in to Postcommit</title>\
         <main><h1>Postcommit</h1><form method=\"post\" action=\"/login\"><input type=\"hidden\" name=\"token\" value=\"{token}\"><button autofocus>Sign in</button></form></main></html>"
    ))
}

/// Uses the link up and begins a session.
pub async fn login(
    State(api): State<Shared>,
    client: Option<axum::Extension<Client>>,
    headers: HeaderMap,
    Form(link): Form<Link>,
) -> Result<Response, Problem> {
    let from = client.map(|client| client.0.address);
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    if !auth::same_origin(text(header::ORIGIN), text(header::HOST)) {
        return Err(Problem::new(Kind::Forbidden, "the form was sent by another site"));
    }
    let Some(begun) = api.store.redeem_login_link(&link.token, SESSION_LASTS).await? else {
        let used = "the link was used or is too old; `postcommit keys login-link` makes another";
        return Err(api.auth.link_failed(from, Problem::new(Kind::Unauthenticated, used)));
    };
    // Revealed to the browser that keeps it.
    let cookie = format!("{COOKIE}={}; Path=/; Secure; HttpOnly; SameSite=Strict", begun.token.reveal());
    Ok((StatusCode::SEE_OTHER, [(header::SET_COOKIE, cookie), (header::LOCATION, "/v1/session".to_owned())]).into_response())
}
