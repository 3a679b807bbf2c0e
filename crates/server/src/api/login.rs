//! Signing in by a browser: a link that works once begins a session, which a cookie holds. What people see of it is pages.

use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use super::Shared;
use super::problem::{Kind, Problem};
use super::read::{Form, Params};
use crate::auth::{self, COOKIE, SESSION_LASTS};
use crate::door::Client;

/// Our own pages send their form under their own name. By the policy of other answers, which tells nobody anything, browsers say `Origin: null`.
const TELLS_ITS_ORIGIN: (HeaderName, HeaderValue) = (header::REFERRER_POLICY, HeaderValue::from_static("same-origin"));

/// A link's token.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// What the link holds.
    token: Option<String>,
}

/// Who is signed in here, and how to be: what is seen at the server's own address.
pub async fn home() -> Response {
    let words = "<div id=\"who\" aria-live=\"polite\"><p>One moment…</p></div><noscript><p>This page needs JavaScript.</p></noscript>";
    page(StatusCode::OK, words)
}

/// What a sign-in link opens: a button, so that whatever looks at links ahead of people does not use it up.
pub async fn login_page(Params(link): Params<Link>) -> Response {
    let Some(token) = link.token else { return home().await };
    let token: String = token.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_')).collect();
    let form = format!(
        "<p>This link works once.</p><form method=\"post\" action=\"/login\"><input type=\"hidden\" name=\"token\" value=\"{token}\"><button autofocus>Sign in</button></form>"
    );
    page(StatusCode::OK, &form)
}

/// Uses the link up and begins a session.
pub async fn login(
    State(api): State<Shared>,
    client: Option<axum::Extension<Client>>,
    headers: HeaderMap,
    Form(link): Form<Link>,
) -> Response {
    let is_person = headers.get(header::ACCEPT).and_then(|kinds| kinds.to_str().ok()).is_some_and(|kinds| kinds.contains("text/html"));
    match begin(&api, client.map(|client| client.0), &headers, link).await {
        Ok(response) => response,
        Err(problem) if is_person => {
            let body = problem.body();
            let status = StatusCode::from_u16(body.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            page(status, &format!("<p>{}.</p>", escaped(&body.detail)))
        }
        Err(problem) => problem.into_response(),
    }
}

async fn begin(api: &Shared, client: Option<Client>, headers: &HeaderMap, link: Link) -> Result<Response, Problem> {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    if !auth::same_origin(text(header::ORIGIN), text(header::HOST)) {
        return Err(Problem::new(Kind::Forbidden, "the form was sent by another site; open the link itself"));
    }
    let Some(token) = link.token else { return Err(Problem::invalid("token", "is missing")) };
    let Some(begun) = api.store.redeem_login_link(&token, SESSION_LASTS).await? else {
        let used = "the link was used or is too old; `postcommit keys login-link` makes another";
        return Err(api.auth.link_failed(client.map(|client| client.address), Problem::new(Kind::Unauthenticated, used)));
    };
    // Revealed to the browser that keeps it.
    let cookie = format!("{COOKIE}={}; Path=/; Secure; HttpOnly; SameSite=Strict", begun.token.reveal());
    Ok((StatusCode::SEE_OTHER, [(header::SET_COOKIE, cookie), (header::LOCATION, "/".to_owned())]).into_response())
}

fn page(status: StatusCode, words: &str) -> Response {
    let html = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Postcommit</title>\n<link rel=\"icon\" href=\"/icon.svg\">\n<link rel=\"stylesheet\" href=\"/sign-in.css\">\n\
         <script type=\"module\" src=\"/sign-in.js\"></script>\n</head>\n<body>\n<main>\n<h1>Postcommit</h1>\n{words}\n</main>\n</body>\n</html>\n"
    );
    (status, [TELLS_ITS_ORIGIN, (header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"))], html).into_response()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
