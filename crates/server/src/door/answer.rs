//! Turns a request that hyper has read into its answer. Finds the client, runs the handler in its own task, and adds
//! the headers that every answer has.

use std::convert::Infallible;
use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use axum::Router;
use axum::body::Body as AnswerBody;
use axum::extract::{MatchedPath, Request as RouterRequest};
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::{Method, Request, Response, StatusCode};
use axum::middleware::{Next, from_fn};
use futures_util::FutureExt;
use hyper::body::Incoming;
use postcommit_channel::clock;
use tower::{Service, ServiceExt};
use tracing::Instrument;
use uuid::Uuid;

use super::body::{Body, Outgoing, Trouble};
use super::checked_stream::Exchange;
use super::client::Client;
use super::connection_limit::Slot;
use super::refusal::DoorRefusal;
use super::settings::ServerSettings;
use super::streams::Streams;

pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const REQUEST_ID_CHARS: usize = 64;
const POLICY: HeaderValue =
    HeaderValue::from_static("default-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'");

/// The service that answers the requests: an [`axum::Router`] or any other tower service of this shape.
pub trait Serves:
    Service<Request<Body>, Response = Response<AnswerBody>, Error = Infallible, Future: Send>
    + Clone
    + Send
    + Sync
    + 'static
{
}
impl<S> Serves for S where
    S: Service<Request<Body>, Response = Response<AnswerBody>, Error = Infallible, Future: Send>
        + Clone
        + Send
        + Sync
        + 'static
{
}

/// The id of the request in the log and in the answer's `X-Request-Id` header. It is an extension of every request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestId(pub String);

/// Whether the client still waits for the answer. It is an extension of every request. A handler is never cancelled,
/// but it may skip work that it has not begun.
#[derive(Debug, Clone)]
pub struct Waits(Weak<()>);

impl Waits {
    pub fn has_left(&self) -> bool {
        self.0.strong_count() == 0
    }
}

/// The route that the router matched. The log shows the route and not the path, because a path may hold secrets.
#[derive(Clone, Default)]
struct RouteNote(Arc<OnceLock<String>>);

/// Makes the routes of `router` appear in the request log. Call it after the last route is added.
pub fn named_routes(router: Router) -> Router {
    router.route_layer(from_fn(async |request: RouterRequest, next: Next| {
        if let (Some(note), Some(path)) =
            (request.extensions().get::<RouteNote>(), request.extensions().get::<MatchedPath>())
        {
            let _ = note.0.set(path.as_str().to_owned());
        }
        next.run(request).await
    }))
}

/// The state of one connection that its requests need.
pub struct Visit<S> {
    pub service: S,
    pub settings: Arc<ServerSettings>,
    pub streams: Streams,
    pub exchange: Arc<Exchange>,
    pub peer: IpAddr,
    pub by_tls: bool,
    /// The slot of the connection. It is released after the last request is answered, even if the connection was closed
    /// before.
    pub _slot: Slot,
}

struct RequestLog {
    began: Instant,
    method: Option<Method>,
    note: RouteNote,
    id: RequestId,
    client: IpAddr,
}

impl<S: Serves> Visit<S> {
    /// Answers one request in its own task. A client that disconnects must neither cancel a database call nor suppress
    /// the log line. A failed request gets an answer, too, so this function returns no error.
    pub async fn answer(self: Arc<Self>, mut request: Request<Incoming>) -> Result<Response<Outgoing>, Infallible> {
        let exchange = self.exchange.clone();
        // Hyper drops this future when the client disconnects, and `waits` with it.
        let waits = Arc::new(());
        request.extensions_mut().insert(Waits(Arc::downgrade(&waits)));
        let response = tokio::spawn(self.respond(request)).await.unwrap_or_else(|_| DoorRefusal::failed().response());
        drop(waits);
        Ok(response.map(|body| Outgoing::new(body, exchange)))
    }

    async fn respond(self: Arc<Self>, mut request: Request<Incoming>) -> Response<AnswerBody> {
        let id = RequestId::of(request.headers());
        let client = Client::of(self.peer, self.by_tls, request.headers(), &self.settings.trusted_proxies);
        let mut line = RequestLog {
            began: clock::monotonic(),
            method: None,
            note: RouteNote::default(),
            id,
            client: client.address,
        };
        let mut response = if let Some(refusal) = self.exchange.refusal() {
            refusal.response()
        } else {
            tracing::trace!(request = %line.id.0, "a request begins");
            line.method = Some(request.method().clone());
            let extensions = request.extensions_mut();
            extensions.insert(client);
            extensions.insert(line.id.clone());
            extensions.insert(self.streams.clone());
            extensions.insert(line.note.clone());
            self.ask(request, &line.id).await
        };
        dress(&mut response, &line.id);
        line.write(response.status());
        response
    }

    async fn ask(&self, request: Request<Incoming>, id: &RequestId) -> Response<AnswerBody> {
        let trouble = Trouble::default();
        let request = request.map(|body| Body::new(body, self.settings.clone(), trouble.clone()));
        let span = tracing::info_span!("request", id = %id.0);
        // A panic of the handler ends only this request.
        match AssertUnwindSafe(self.service.clone().oneshot(request)).catch_unwind().instrument(span).await {
            Ok(Ok(response)) => match trouble.get() {
                // The handler only knows that reading the body failed. `trouble` has the reason, so its refusal
                // replaces the answer.
                Some(refusal) if !response.status().is_success() => refusal.response(),
                _ => response,
            },
            Ok(Err(never)) => match never {},
            Err(_) => {
                tracing::error!(request = %id.0, "the handler of a request panicked; the request is answered with \
                    status 500");
                DoorRefusal::failed().response()
            }
        }
    }
}

impl RequestId {
    /// The request id that the caller sent if it is short and of safe characters, otherwise a new one.
    fn of(headers: &HeaderMap) -> Self {
        let plain = |text: &&str| {
            (1..=REQUEST_ID_CHARS).contains(&text.len())
                && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        };
        let given = headers.get(REQUEST_ID).and_then(|value| value.to_str().ok()).filter(plain);
        given.map_or_else(Self::new, |given| Self(given.to_owned()))
    }

    pub(super) fn new() -> Self {
        Self(Uuid::new_v4().simple().to_string())
    }
}

/// Adds the headers that every answer has.
fn dress(response: &mut Response<AnswerBody>, id: &RequestId) {
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(&id.0) {
        headers.insert(REQUEST_ID, id);
    }
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(header::REFERRER_POLICY).or_insert(HeaderValue::from_static("no-referrer"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    let is_html = headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/html"));
    if is_html {
        headers.entry(header::CONTENT_SECURITY_POLICY).or_insert(POLICY);
    }
}

impl RequestLog {
    fn write(&self, status: StatusCode) {
        let method = self.method.as_ref().map_or("-", Method::as_str);
        let route = self.note.0.get().map_or("-", String::as_str);
        let ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let (status, request, client) = (status.as_u16(), &self.id.0, self.client);
        if status >= 500 {
            tracing::info!(method, route, status, ms, %request, %client, "request");
        } else {
            tracing::debug!(method, route, status, ms, %request, %client, "request");
        }
    }
}
