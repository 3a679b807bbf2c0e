//! The page of an unsubscribe link. Only a POST unsubscribes, so that mail scanners that open links do not. Mail
//! programs send that POST themselves (RFC 8058), and the page has a button that sends it.

use axum::Extension;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use postcommit_channel::model::ANY;
use postcommit_engine::unsubscribe::{Unsubscribe, Who};

use crate::app::{App, AppState};
use crate::door::Client;
use crate::html;
use crate::problem::{Answer, Problem, ProblemKind};

const TITLE: &str = "Unsubscribe";

/// Shows which messages the link stops, and the button that unsubscribes.
pub async fn unsubscribe_page(
    State(app): State<AppState>,
    client: Option<Extension<Client>>,
    Path(token): Path<String>,
) -> Answer {
    let link = find(&app, client.as_deref(), &token).await?;
    let form = format!(
        "<p>Do you want to stop {}?</p><form method=\"post\" action=\"\"><button autofocus>Unsubscribe</button></form>",
        what(&link)
    );
    Ok(html::page(StatusCode::OK, TITLE, &form))
}

/// Unsubscribes. The body is not read: a mail program sends `List-Unsubscribe=One-Click`, and the page's form sends
/// none.
pub async fn unsubscribe(
    State(app): State<AppState>,
    client: Option<Extension<Client>>,
    Path(token): Path<String>,
) -> Answer {
    let link = find(&app, client.as_deref(), &token).await?;
    link.apply(&app.store).await.map_err(Problem::from)?;
    Ok(html::page(StatusCode::OK, TITLE, &format!("<p>Done. You will get no more {}.</p>", what(&link))))
}

async fn find(app: &App, client: Option<&Client>, token: &str) -> Result<Unsubscribe, Problem> {
    match Unsubscribe::verify(&app.store, token).await? {
        Some(link) => Ok(link),
        None => {
            let refusal = Problem::new(ProblemKind::NotFound, "the link is not valid; it may have been cut off");
            Err(app.auth.link_failed(client.map(|client| client.address), refusal))
        }
    }
}

/// The messages that the link stops, in HTML.
fn what(link: &Unsubscribe) -> String {
    let of = match (&link.who, link.event_type.as_str()) {
        (Who::Address(_), _) | (Who::User(_), ANY) => String::new(),
        (Who::User(_), event_type) => format!(" of type <b>{}</b>", html::escape(event_type)),
    };
    let on = match link.channel.as_str() {
        ANY => String::new(),
        channel => format!(" by <b>{}</b>", html::escape(channel)),
    };
    format!("messages{of}{on}")
}
