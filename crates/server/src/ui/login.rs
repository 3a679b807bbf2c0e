//! Sign-in for browsers. A link that works once starts a session, and a cookie holds the session's token.

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use crate::app::AppState;
use crate::auth::csrf::same_origin;
use crate::auth::{COOKIE, SESSION_LASTS};
use crate::door::Client;
use crate::html;
use crate::problem::{Problem, ProblemKind, ProblemPage};
use crate::read::{Form, Params};

/// The query of a sign-in link. The form on the sign-in page posts the same field.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    token: Option<String>,
}

/// The home page. It shows the signed-in caller, or how to sign in.
pub async fn home() -> Response {
    let content = "<div id=\"who\" aria-live=\"polite\"><p>One moment…</p></div>\
        <noscript><p>This page needs JavaScript.</p></noscript>";
    html::page(StatusCode::OK, TITLE, content)
}

const TITLE: &str = "Postcommit";

/// The page of a sign-in link. Only its button uses up the link, so that mail scanners that open links do not.
pub async fn login_page(link: Result<Params<Link>, Problem>) -> Result<Response, ProblemPage> {
    let Params(Link { token: Some(token) }) = link? else { return Ok(home().await) };
    let token: String = token.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_')).collect();
    let form = format!(
        "<p>This link works once.</p><form method=\"post\" action=\"/login\">\
         <input type=\"hidden\" name=\"token\" value=\"{token}\"><button autofocus>Sign in</button></form>"
    );
    Ok(html::page(StatusCode::OK, TITLE, &form))
}

/// Uses up the link and starts a session.
pub async fn login(
    State(app): State<AppState>,
    client: Option<Extension<Client>>,
    headers: HeaderMap,
    link: Result<Form<Link>, Problem>,
) -> Result<Response, ProblemPage> {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    if !same_origin(text(header::ORIGIN), text(header::HOST)) {
        return Err(Problem::new(
            ProblemKind::Forbidden,
            "the form was sent by another site; open the sign-in link directly",
        )
        .into());
    }
    let Form(Link { token: Some(token) }) = link? else {
        return Err(Problem::invalid("token", "the token of the sign-in link is missing; open the whole link").into());
    };
    let Some(begun) = app.store.redeem_login_link(&token, SESSION_LASTS).await? else {
        let refusal = Problem::new(
            ProblemKind::Unauthenticated,
            "the sign-in link was used before or has expired; `postcommit keys login-link` prints a new one",
        );
        return Err(app.auth.link_failed(client.map(|client| client.address), refusal).into());
    };
    // The secret is revealed here to send it to the browser, which keeps it.
    let cookie = format!("{COOKIE}={}; Path=/; Secure; HttpOnly; SameSite=Strict", begun.token.reveal());
    Ok((StatusCode::SEE_OTHER, [(header::SET_COOKIE, cookie), (header::LOCATION, "/".to_owned())]).into_response())
}
