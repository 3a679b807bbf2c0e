//! HTTP/1.1 over dialled streams: one request, one answer, and a pool of idle connections.
//!
//! It follows no redirect, honours no proxy variable, repeats no request, decompresses nothing and reads at most
//! [`ANSWER_BYTES`] of the answer.

mod connection;
mod origin;
mod pool;

use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request};
use http_body_util::Full;
use url::{Position, Url};

use super::deadline::Deadline;
use super::dial::Tls;
use super::{Egress, EgressFailure};
use connection::Connection;
use origin::Origin;
use pool::Pool;

/// The most bytes of an answer's body that are read; the connection is dropped at the next one.
pub const ANSWER_BYTES: usize = 65_536;

/// Headers that belong to the connection and not to the caller. `accept-encoding` and `expect` are among them because
/// we neither decompress nor wait for `100 Continue`.
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

/// The open connections that no call uses.
pub(super) type IdleConnections = Pool<Box<Connection>>;

/// One request to be made.
#[derive(Clone)]
pub struct Call {
    /// The method.
    pub method: Method,
    /// Where to; `http` or `https`, without user name and password.
    pub url: Url,
    /// The headers. Those that belong to the connection, such as `host`, are ours and are replaced or dropped.
    pub headers: HeaderMap,
    /// The body, sent as it is.
    pub body: Bytes,
    /// The time for everything, from resolving the name to reading the answer. At most an hour.
    pub timeout: Duration,
    /// Never reuse an idle connection. For deliveries sent at most once: a request on a connection that the peer is
    /// just closing has an unclear outcome.
    pub fresh: bool,
}

/// What the peer answered. Any status is an answer, and so is one whose body broke off.
#[derive(Debug, Clone)]
pub struct HttpAnswer {
    /// The status; redirects are not followed.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The body as it came, at most [`ANSWER_BYTES`].
    pub body: Bytes,
    /// There was more of the body than is kept.
    pub truncated: bool,
    /// The body was read to its end.
    pub body_complete: bool,
}

impl Egress {
    /// Whether `url` could be called, as far as can be told without resolving its name. Meant for the moment a URL is
    /// saved; [`Egress::send`] checks again.
    ///
    /// # Errors
    /// The failure that a call would have.
    pub fn check_url(&self, url: &Url) -> Result<(), EgressFailure> {
        origin::target(url)?;
        self.0.dialer.check_literal(&Origin::of(url)?.endpoint)
    }

    /// Makes `call` once.
    ///
    /// # Errors
    /// No answer came. Once the head of an answer is there the call has succeeded, whatever its status and whatever
    /// becomes of its body.
    pub async fn send(&self, call: Call) -> Result<HttpAnswer, EgressFailure> {
        let (fresh, deadline) = (call.fresh, Deadline::after(call.timeout));
        let origin = Origin::of(&call.url)?;
        let request = request(call)?;
        self.0.dialer.check_literal(&origin.endpoint)?;
        if !fresh && let Some(idle) = self.0.idle.take(&origin) {
            match self.exchange(idle, &origin, request.clone(), deadline).await {
                // The peer closed the connection before a byte of the request left, and none can leave now: a new
                // connection carries the request for the first time.
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
        // In a box: dialling is rare and its state is large, and a send is moved about.
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
