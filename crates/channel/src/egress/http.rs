//! Makes HTTP/1.1 requests over dialled streams and keeps idle connections in a pool.
//! It follows no redirects, ignores proxy variables, repeats no request, decompresses nothing and reads at most
//! [`ANSWER_BYTES`] of an answer's body.

mod connection;
mod origin;
mod pool;

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request};
use http_body_util::Full;
use url::{Position, Url};

use super::deadline::Deadline;
use super::dial::Tls;
use super::{Egress, EgressFailure};
use crate::clock;
use connection::Connection;
use origin::Origin;
use pool::Pool;

/// The maximum number of bytes of an answer's body that are read. The connection is closed if the body is longer.
pub const ANSWER_BYTES: usize = 65_536;

/// Headers that belong to the connection, so the caller cannot set them. `accept-encoding` and `expect` are among them
/// because we neither decompress answers nor wait for `100 Continue`.
const OURS: [HeaderName; 10] = [
    header::HOST,
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
    header::TE,
    header::TRAILER,
    header::UPGRADE,
    header::EXPECT,
    header::ACCEPT_ENCODING,
    header::PROXY_AUTHORIZATION,
];

/// The open connections that no request uses.
pub(super) type IdleConnections = Pool<Box<Connection>>;

/// One HTTP request to make.
#[derive(Clone)]
pub struct Call {
    pub method: Method,
    /// The URL of the request: `http` or `https`, without a user name or password.
    pub url: Url,
    /// The headers of the request. Headers that belong to the connection, such as `host`, are replaced or dropped.
    pub headers: HeaderMap,
    pub body: Bytes,
    /// The time limit for everything from resolving the name to reading the answer. At most one hour.
    pub timeout: Duration,
    /// Whether to open a new connection instead of reusing an idle one. Deliveries that must be sent at most once need
    /// it: if the peer closes a reused connection during the request, the outcome is unclear.
    pub fresh: bool,
}

/// The shortest wait that a peer can ask for.
pub const LEAST_WAIT: Duration = Duration::from_secs(1);

/// The answer of the peer. Any status counts as an answer, even if reading the body failed.
#[derive(Debug, Clone)]
pub struct HttpAnswer {
    /// The HTTP status. Redirects are not followed.
    pub status: u16,
    pub headers: HeaderMap,
    /// The body without any decoding, at most [`ANSWER_BYTES`].
    pub body: Bytes,
    /// Whether the body was longer than [`ANSWER_BYTES`], so that the rest is missing.
    pub truncated: bool,
    /// Whether the body was read to its end.
    pub body_complete: bool,
}

impl HttpAnswer {
    /// Whether the whole body was read.
    pub fn is_whole(&self) -> bool {
        self.body_complete && !self.truncated
    }

    /// The wait that the header `Retry-After` asks for: a number of seconds, perhaps with decimals, or a date. It is at
    /// least [`LEAST_WAIT`]. Zero, a date in the past and any other value count as no request to wait. There is no
    /// upper limit here, because the notification's expiry limits the wait.
    pub fn retry_after(&self) -> Option<Duration> {
        let text = self.headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let wait = if is_number(text) {
            // A number that is too large for u64 means the longest wait.
            Duration::from_secs(text.parse().unwrap_or(u64::MAX))
        } else if text.split_once('.').is_some_and(|(whole, parts)| is_number(whole) && is_number(parts)) {
            Duration::try_from_secs_f64(text.parse().ok()?).unwrap_or(Duration::MAX)
        } else {
            let at = httpdate::parse_http_date(text).ok()?;
            let now = SystemTime::UNIX_EPOCH + Duration::from_micros(u64::try_from(clock::now().as_micros()).ok()?);
            at.duration_since(now).ok()?
        };
        Some(wait).filter(|wait| !wait.is_zero()).map(|wait| wait.max(LEAST_WAIT))
    }
}

impl Egress {
    /// Checks whether `url` may be called, without resolving its name. Use it when a URL is saved. [`Egress::send`]
    /// checks again.
    pub fn check_url(&self, url: &Url) -> Result<(), EgressFailure> {
        origin::target(url)?;
        self.0.dialer.check_literal(&Origin::of(url)?.endpoint)
    }

    /// Makes the request once.
    /// # Errors
    /// No answer came. Once the head of an answer has arrived, the request counts as answered with any status, even if
    /// reading the body fails.
    pub async fn send(&self, call: Call) -> Result<HttpAnswer, EgressFailure> {
        let (fresh, deadline) = (call.fresh, Deadline::after(call.timeout));
        let origin = Origin::of(&call.url)?;
        let request = request(call)?;
        self.0.dialer.check_literal(&origin.endpoint)?;
        if !fresh && let Some(idle) = self.0.idle.take(&origin) {
            match self.exchange(idle, &origin, request.clone(), deadline).await {
                // The peer closed the idle connection before any byte of the request was written. The request cannot
                // arrive twice, so it is safe to send it on a new connection.
                Err(failure) if !failure.reached_wire() && failure.code != "timeout" => {}
                Err(failure) => {
                    if matches!(failure.code, "closed" | "reset") {
                        self.0.idle.distrust(&origin);
                    }
                    return Err(failure);
                }
                done => return done,
            }
        }
        // Boxed because dialling is rare and its state is large. Without the box, every send would be moved with that
        // state.
        Box::pin(async {
            let connection = self.connect(&origin, deadline).await?;
            self.exchange(connection, &origin, request, deadline).await
        })
        .await
    }

    async fn connect(&self, origin: &Origin, deadline: Deadline) -> Result<Box<Connection>, EgressFailure> {
        let tls = if origin.is_tls { Tls::Implicit(&["http/1.1"]) } else { Tls::None };
        Connection::open(self.dial(&origin.endpoint, tls, deadline).await?, &origin.endpoint).await
    }

    async fn exchange(
        &self,
        connection: Box<Connection>,
        origin: &Origin,
        request: Request<Full<Bytes>>,
        deadline: Deadline,
    ) -> Result<HttpAnswer, EgressFailure> {
        let (answer, connection) = connection.exchange(request, deadline).await?;
        if let Some(connection) = connection {
            self.0.idle.put(origin.clone(), connection);
        }
        Ok(answer)
    }
}

fn request(call: Call) -> Result<Request<Full<Bytes>>, EgressFailure> {
    let Call { method, url, mut headers, body, .. } = call;
    for name in &OURS {
        headers.remove(name);
    }
    let host = HeaderValue::from_str(&url[Position::BeforeHost..Position::AfterPort]);
    headers.insert(header::HOST, host.map_err(|_| origin::bad_url("the URL's host is malformed"))?);
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = method;
    *request.uri_mut() = origin::target(&url)?;
    *request.headers_mut() = headers;
    Ok(request)
}
