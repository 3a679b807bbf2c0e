//! The live stream of an inbox: server-sent events, resumed by `Last-Event-ID`.
//!
//! `message`: a message arrived. `mark`: a message was marked as read or archived, or the mark was removed.
//! `unread-count`: the number of unread messages. It ends every group of events and is the only event with an `id`, so
//! a client that is disconnected within a group gets the whole group again. `reload`: too many changes, read the list
//! again. `refused`: the client may no longer read the inbox; it is the last event.

use std::pin::Pin;
use std::time::Duration;

use axum::Extension;
use axum::extract::{FromRequestParts, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use postcommit_engine::inbox::OpenInbox;
use postcommit_engine::store::{InboxChange, InboxChanges};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::time::{Interval, MissedTickBehavior, Sleep};
use utoipa::IntoParams;

use super::visitor::Visitor;
use super::{UnreadCount, check_position};
use crate::api::{ProblemResponses, TenantQuery};
use crate::app::AppState;
use crate::door::{Streams, StreamsFull};
use crate::output;
use crate::problem::{Problem, ProblemKind};
use crate::read::Params;

/// The longest duration of a stream. A client that reconnects is authenticated again.
const LONGEST: Duration = Duration::from_secs(600);
/// The maximum number of inbox streams (open browser pages) of one user at one server.
const PAGES_OF_ONE: usize = 20;
/// The last bytes of every stream: the client reconnects after 2,000 ms.
const FAREWELL: &str = "retry: 2000\n\n";
/// The maximum number of frames that wait for a slow client.
const WAITING: usize = 16;

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// The position at which the stream begins. The type has no `Debug`, because it may contain a token.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Following {
    /// The `position` of the list that the client shows: the stream begins with the changes after it. `Last-Event-ID`
    /// takes precedence. Without either, the stream begins now.
    #[param(minimum = 0)]
    after: Option<i64>,
    /// A user token, for `EventSource`, which cannot send headers. Only this route accepts it.
    #[allow(dead_code, reason = "only describes the parameter for OpenAPI; `Follower` reads it from the query")]
    token: Option<String>,
}

/// A visitor whose token may be in the query string, because `EventSource` cannot send headers.
pub struct Follower(Visitor);

impl FromRequestParts<AppState> for Follower {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, Problem> {
        let query = parts.uri.query().unwrap_or("");
        let token = form_urlencoded::parse(query.as_bytes())
            .find(|(name, _)| name == "token")
            .map(|(_, value)| value.into_owned());
        Visitor::of(parts, app, token).await.map(Self)
    }
}

/// Streams the changes of an inbox as server-sent events: `message`, `mark`, `unread-count`, `reload`, `refused`.
#[utoipa::path(get, path = "/v1/inbox/{user}/stream", tag = "inbox", security(("key" = ["read"]), ("user_token" = [])),
    params(("user" = String, Path, description = "The user's id"), Following, TenantQuery,
        ("Last-Event-ID" = Option<i64>, Header, description = "The last `id` that the client received; browsers send it when they reconnect")),
    responses((status = 200, description = "Events, until the client or the server closes the connection", body = String, content_type = "text/event-stream"), ProblemResponses))]
pub async fn follow_inbox(
    State(app): State<AppState>,
    Follower(visitor): Follower,
    Extension(streams): Extension<Streams>,
    headers: HeaderMap,
    Params(following): Params<Following>,
) -> Result<Response, Problem> {
    check_position("after", following.after.unwrap_or(0))?;
    let after = last_event_id(&headers)?.or(following.after);
    if app.inboxes.pages(visitor.tenant, &visitor.user) >= PAGES_OF_ONE {
        return Err(Problem::new(
            ProblemKind::RateLimited,
            format!("the user has {PAGES_OF_ONE} streams open, which is the limit; close one first"),
        )
        .retry_after(30));
    }
    let answer = streams.begin(visitor.tenant).map_err(no_place)?;
    let page = app.inboxes.open(visitor.tenant, &visitor.user);
    let (told, mut frames) = mpsc::channel(WAITING);
    // The stream runs in its own task, so that a client that disconnects does not cancel a query.
    tokio::spawn(InboxStream::new(app, visitor, page, told).follow(after));
    let frames = futures_util::stream::poll_fn(move |cx| {
        frames.poll_recv(cx).map(|frame| frame.map(Ok::<_, std::convert::Infallible>))
    });
    let kind = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    // Without this header, nginx and similar proxies would buffer the stream.
    let unbuffered = [(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"))];
    Ok((kind, unbuffered, answer.body_ending_with(frames, FAREWELL)).into_response())
}

fn no_place(full: StreamsFull) -> Problem {
    let detail = match full {
        StreamsFull::ForAll => "the limit of open streams (server.streams) is reached; try again later".to_owned(),
        StreamsFull::ForTenant(share) => {
            format!("the tenant has {share} streams open, which is its limit (half of server.streams); try again later")
        }
    };
    Problem::new(ProblemKind::TooManyStreams, detail).retry_after(5)
}

fn last_event_id(headers: &HeaderMap) -> Result<Option<i64>, Problem> {
    let Some(given) = headers.get(LAST_EVENT_ID).filter(|given| !given.is_empty()) else { return Ok(None) };
    let position = given.to_str().ok().and_then(|text| text.parse().ok()).filter(|position| *position >= 0);
    position.map(Some).ok_or_else(|| {
        Problem::invalid(
            "Last-Event-ID",
            "is not an id of this stream; send the last `id` unchanged, or omit the header",
        )
    })
}

/// The stream of one client.
struct InboxStream {
    app: AppState,
    visitor: Visitor,
    page: OpenInbox,
    told: mpsc::Sender<Bytes>,
    heartbeat: Interval,
    /// Ends when the token expires or the stream reaches its longest duration.
    over: Pin<Box<Sleep>>,
}

impl InboxStream {
    fn new(app: AppState, visitor: Visitor, page: OpenInbox, told: mpsc::Sender<Bytes>) -> Self {
        let mut heartbeat = tokio::time::interval(Duration::from_millis(app.inbox.heartbeat_ms));
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        heartbeat.reset();
        let over = Box::pin(tokio::time::sleep(visitor.left.unwrap_or(LONGEST).min(LONGEST)));
        Self { app, visitor, page, told, heartbeat, over }
    }

    /// Sends changes until the client leaves or may no longer read the inbox.
    async fn follow(mut self, after: Option<i64>) {
        let mut position = after;
        loop {
            let Visitor { store, tenant, user, .. } = &self.visitor;
            // Without a position, the stream begins now: the first event is only the number of unread messages.
            let changes = match store.inbox_changes(*tenant, user, position.unwrap_or(i64::MAX)).await {
                Ok(changes) if position.is_none() => InboxChanges { changes: Some(vec![]), ..changes },
                Ok(changes) => changes,
                Err(problem) => {
                    return tracing::warn!(%problem, "the changes of an inbox could not be read; its stream is closed, \
                        and the client will reconnect");
                }
            };
            if position != Some(changes.position) && !self.tell(frames_of(&changes)).await {
                return;
            }
            position = Some(changes.position);
            if !self.wait(changes.position).await {
                return;
            }
        }
    }

    /// Waits for the next change. Sends heartbeats, and checks at each heartbeat that the client may still read the
    /// inbox. Returns false when the stream is over.
    async fn wait(&mut self, position: i64) -> bool {
        loop {
            let is_over = tokio::select! {
                // The order matters: the permission of a slow client is checked before more of the inbox is read.
                biased;
                () = self.told.closed() => return false,
                () = &mut self.over => true,
                _ = self.heartbeat.tick() => false,
                () = self.page.beyond(position) => return true,
            };
            // This query is outside of the select, so that it is never cancelled.
            if let Err(problem) = self.visitor.may_stay(&self.app).await {
                self.tell(refusal(&problem)).await;
                return false;
            }
            if is_over || !self.tell(Bytes::from_static(b": still here\n\n")).await {
                return false;
            }
        }
    }

    /// Sends frames to the client. Returns false if the client has left, or has read nothing for one heartbeat period.
    /// A slow client is disconnected, because its permission may end before it reads the data.
    async fn tell(&mut self, frames: Bytes) -> bool {
        let patience = self.heartbeat.period();
        tokio::select! {
            biased;
            told = self.told.send(frames) => return told.is_ok(),
            () = &mut self.over => {}
            () = tokio::time::sleep(patience) => {}
        }
        tracing::debug!("a client does not read its inbox stream; the stream is closed, and the client may reconnect");
        false
    }
}

/// The last event for a client that may no longer read the inbox, with the reason.
fn refusal(problem: &Problem) -> Bytes {
    let mut text = String::new();
    event(&mut text, "refused", None, &problem.body());
    text.into()
}

/// Formats changes as a group of events.
fn frames_of(changes: &InboxChanges) -> Bytes {
    let mut text = String::new();
    match &changes.changes {
        None => event(&mut text, "reload", None, &serde_json::json!({})),
        Some(each) => {
            for change in each {
                let (name, row) = match change {
                    InboxChange::Came(row) => ("message", row),
                    InboxChange::Marked(row) => ("mark", row),
                };
                event(&mut text, name, None, row);
            }
        }
    }
    event(&mut text, "unread-count", Some(changes.position), &UnreadCount { unread: changes.unread });
    text.into()
}

fn event(text: &mut String, name: &str, id: Option<i64>, data: &impl Serialize) {
    // A line break in JSON is white space, but in an event stream it would end the `data:` line.
    let data = output::escaped(serde_json::to_string(data).unwrap_or_default().replace(['\n', '\r'], " "));
    let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
    text.push_str(&format!("event: {name}\n{id}data: {data}\n\n"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use postcommit::Timestamp;
    use postcommit_engine::store::InboxRow;
    use serde_json::value::RawValue;

    fn row(title: &str) -> InboxRow {
        InboxRow {
            id: "0199a5c2-6a3e-7c1d-9a31-0f5f6c1b2d3e.1".into(),
            position: 7,
            event_type: "a".into(),
            entity: None,
            title: Some(title.into()),
            body: Some("two\nlines".into()),
            action_url: None,
            data: Some(RawValue::from_string("{\"a\":\r\n 1.0}".into()).unwrap()),
            created_at: Timestamp::from_micros(0),
            read_at: None,
            archived_at: None,
        }
    }

    #[test]
    fn a_group_ends_with_the_count_which_alone_has_an_id_and_no_text_breaks_a_line() {
        let changes = vec![InboxChange::Came(row("one")), InboxChange::Marked(row("data: x\n\nevent: y"))];
        let text =
            String::from_utf8(frames_of(&InboxChanges { position: 9, unread: 2, changes: Some(changes) }).to_vec())
                .unwrap();
        let events: Vec<&str> = text.split_terminator("\n\n").collect();
        assert_eq!(events.len(), 3, "{text}");
        assert!(events[0].starts_with("event: message\ndata: {\"id\":") && events[0].lines().count() == 2, "{text}");
        assert!(events[1].starts_with("event: mark\ndata: ") && events[1].lines().count() == 2, "{text}");
        assert_eq!(events[2], "event: unread-count\nid: 9\ndata: {\"unread\":2}");
    }

    #[test]
    fn too_much_is_told_as_one() {
        let text = frames_of(&InboxChanges { position: 9, unread: 2, changes: None });
        assert_eq!(text, "event: reload\ndata: {}\n\nevent: unread-count\nid: 9\ndata: {\"unread\":2}\n\n");
    }
}
