//! Sign-in for browsers. A link that works once starts a session, and a cookie holds the session's token.

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde::Deserialize;

use super::frame::{Visitor, own_path, reads};
use crate::app::AppState;
use crate::auth::csrf::same_origin;
use crate::auth::{self, COOKIE, SESSION_LASTS, cookie_named};
use crate::door::Client;
use crate::html;
use crate::problem::{Answer, Problem, ProblemKind};
use crate::read::{Form, Params};

/// The query of a sign-in link. The form on the sign-in page posts the same field.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    token: Option<String>,
}

const TITLE: &str = "Sign in to Postcommit";

/// The cookie with the page that was asked for before the sign-in. It lasts for an hour. It holds a path of this server
/// and no secret. Browsers also send it after a click on a link in a mail, which `SameSite=Strict` would forbid.
const BACK: &str = "__Host-postcommit-back";
const BACK_LASTS_S: u32 = 3600;
/// The maximum number of bytes of the path in the cookie. A longer path is not kept.
const BACK_BYTES: usize = 2000;

/// Redirects a person who is not signed in to the sign-in page, and keeps the path of the requested page in a cookie.
pub fn to_sign_in(method: &Method, asked: &Uri) -> Response {
    let mut response = (StatusCode::SEE_OTHER, [(header::LOCATION, "/login")]).into_response();
    let path = asked.path_and_query().map_or("/", |path| path.as_str());
    if reads(method) && path.len() <= BACK_BYTES {
        let kept = utf8_percent_encode(path, NON_ALPHANUMERIC);
        let cookie = format!("{BACK}={kept}; Path=/; Max-Age={BACK_LASTS_S}; Secure; HttpOnly; SameSite=Lax");
        if let Ok(cookie) = HeaderValue::from_str(&cookie) {
            response.headers_mut().insert(header::SET_COOKIE, cookie);
        }
    }
    response
}

/// Returns the path of the page that was requested before the sign-in.
fn way_back(headers: &HeaderMap) -> String {
    let kept = cookie_named(headers, BACK).map(|kept| percent_decode_str(kept).decode_utf8_lossy().into_owned());
    own_path(&kept.unwrap_or_default())
}

/// The page of a sign-in link. Only its button uses up the link, so that mail scanners that open links do not. Without a
/// link it says how to get one.
pub async fn login_page(headers: HeaderMap, link: Result<Params<Link>, Problem>) -> Answer {
    let Params(Link { token: Some(token) }) = link? else { return Ok(how_to_sign_in(&headers)) };
    let token: String = token.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_')).collect();
    let form = format!(
        "<p>This link works once.</p><form method=\"post\" action=\"/login\">\
         <input type=\"hidden\" name=\"token\" value=\"{token}\"><button class=\"main\" autofocus>Sign in</button></form>"
    );
    Ok(html::page(StatusCode::OK, TITLE, &form))
}

/// With a link from another site, the browser does not send the session cookie, so a person who is signed in may see
/// this page. With the link on this page, the browser sends it.
fn how_to_sign_in(headers: &HeaderMap) -> Response {
    let back = html::escape(&way_back(headers));
    let content = format!(
        "<p>You are not signed in. Open the link that the server printed when it started, or a new one that \
         <code>postcommit keys login-link</code> prints.</p>\
         <p class=\"soft\">Are you signed in already? <a href=\"{back}\">Continue to {back}</a></p>"
    );
    html::page(StatusCode::OK, TITLE, &content)
}

/// Starts a session with a sign-in link, which then no longer works.
pub async fn login(
    State(app): State<AppState>,
    client: Option<Extension<Client>>,
    headers: HeaderMap,
    link: Result<Form<Link>, Problem>,
) -> Answer {
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
    let back = way_back(&headers);
    // In a demo, the first page is the tour.
    let place = if app.demo.is_some() && back == "/" { "/demo".to_owned() } else { back };
    let mut response = (StatusCode::SEE_OTHER, [(header::LOCATION, place)]).into_response();
    for cookie in [cookie, ended(BACK)] {
        if let Ok(cookie) = HeaderValue::from_str(&cookie) {
            response.headers_mut().append(header::SET_COOKIE, cookie);
        }
    }
    Ok(response)
}

/// Ends the session of the person who is signed in.
pub async fn sign_out(State(app): State<AppState>, visitor: Visitor, headers: HeaderMap) -> Answer {
    if let Some(token) = auth::cookie(&headers) {
        // The session ends regardless of the tenant that the query names.
        visitor.caller.store_of_all(&app).end_session(token).await?;
    }
    let headers = [(header::SET_COOKIE, ended(COOKIE)), (header::LOCATION, "/login".to_owned())];
    Ok((StatusCode::SEE_OTHER, headers).into_response())
}

fn ended(cookie: &str) -> String {
    format!("{cookie}=; Path=/; Secure; HttpOnly; SameSite=Strict; Max-Age=0")
}
