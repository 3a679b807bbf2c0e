//! Egress makes every outgoing connection.
//!
//! A call resolves its host once, drops every address that is not public ([`forbidden`]), and connects to
//! what is left under the URL's own name. It follows no redirect, honours no proxy variable, repeats no
//! request, decompresses nothing and reads at most [`ANSWER_BYTES`] of the answer. When it fails it says how
//! far it got and how many bytes of the request had left, which decides whether it may be repeated.

mod address;
mod connection;
mod dial;
mod place;
mod pool;
mod wire;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request};
use http_body_util::Full;
use ipnet::IpNet;
use url::{Position, Url};

pub use address::forbidden;
pub use dial::{Resolved, Resolver, SystemResolver};

use connection::{Connection, Deadline};
use dial::Dialer;
use place::Place;
use pool::Pool;

/// The most bytes of an answer's body that are read; the connection is dropped at the next one.
pub const ANSWER_BYTES: usize = 65_536;

/// Headers that belong to the connection and not to the caller. `accept-encoding` and `expect` are among
/// them because we neither decompress nor wait for `100 Continue`.
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

/// The `[egress]` section of the settings.
#[derive(Debug, Clone, serde::Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct EgressSettings {
    /// Ranges that are forbidden otherwise and are opened on purpose, such as `10.1.0.0/16`. Default: none.
    pub allow: Vec<IpNet>,
    /// Seconds to wait for a TCP connection to one address, 1 to 60. Default: 10.
    pub connect_timeout_s: u64,
    /// A PEM file of root certificates trusted besides the system's. Default: none.
    pub ca_file: Option<PathBuf>,
}

impl Default for EgressSettings {
    fn default() -> Self {
        Self { allow: Vec::new(), connect_timeout_s: 10, ca_file: None }
    }
}

impl EgressSettings {
    /// Checks what the types cannot.
    ///
    /// # Errors
    /// A sentence that names the setting and what is allowed.
    pub fn validate(&self) -> Result<(), String> {
        if !(1..=60).contains(&self.connect_timeout_s) {
            return Err(format!("egress.connect_timeout_s must be from 1 to 60, not {}", self.connect_timeout_s));
        }
        match self.allow.iter().find(|net| is_mapped(net)) {
            Some(net) => Err(format!("egress.allow must hold IPv4 ranges in IPv4 form, not {net}")),
            None => Ok(()),
        }
    }
}

/// An IPv4-mapped address is judged as IPv4, so a range of them would open nothing.
fn is_mapped(net: &IpNet) -> bool {
    matches!(net, IpNet::V6(net) if net.prefix_len() >= 96 && net.addr().to_ipv4_mapped().is_some())
}

/// Why [`Egress`] cannot start.
#[derive(Debug, thiserror::Error)]
pub enum EgressError {
    /// A setting is out of its range; the text names it.
    #[error("{0}")]
    Settings(String),
    /// The extra root certificates cannot be used.
    #[error("egress.ca_file {path}: {reason}", path = .path.display())]
    CaFile {
        /// The file as set.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

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
    /// Never reuse an idle connection. For deliveries sent at most once: a request on a connection that the
    /// peer is just closing has an unclear outcome.
    pub fresh: bool,
}

/// What the peer answered. Any status is an answer, and so is one whose body broke off.
#[derive(Debug, Clone)]
pub struct Answer {
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

/// How far a failed call got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Refused by our own filter or the rules for URLs.
    Refused,
    /// Resolving the name.
    Resolve,
    /// Opening the TCP connection.
    Connect,
    /// The TLS handshake.
    Tls,
    /// Writing the request, or waiting for the head of the answer.
    Request,
}

/// A call that brought no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {detail}")]
pub struct Failure {
    /// How far the call got.
    pub phase: Phase,
    /// Bytes of this request, before encryption, that were handed to the connection. 0 is a promise that the
    /// peer saw nothing and never will; more means only that it may have.
    pub bytes_written: u64,
    /// One of `blocked_address`, `bad_url`, `dns`, `connect`, `connect_timeout`, `tls`, `timeout`, `reset`,
    /// `closed`, `bad_answer`.
    pub code: &'static str,
    /// For the operator. Of the URL it holds at most the host.
    pub detail: String,
}

impl Failure {
    /// Whether any byte of the request may have reached the peer.
    pub fn reached_wire(&self) -> bool {
        self.bytes_written > 0
    }
}

/// Makes calls. Cheap to clone; clones share the idle connections.
#[derive(Clone)]
pub struct Egress(Arc<Inner>);

struct Inner {
    dialer: Dialer,
    idle: Pool<Box<Connection>>,
}

impl Egress {
    /// An egress that resolves names by the operating system.
    ///
    /// # Errors
    /// A setting that is out of range or an unusable `ca_file`.
    pub fn new(settings: &EgressSettings) -> Result<Self, EgressError> {
        Self::with_resolver(settings, Arc::new(SystemResolver))
    }

    /// An egress that resolves names by `resolver`. The filter applies all the same.
    ///
    /// # Errors
    /// As [`Egress::new`].
    pub fn with_resolver(settings: &EgressSettings, resolver: Arc<dyn Resolver>) -> Result<Self, EgressError> {
        let dialer = Dialer::new(settings, resolver)?;
        Ok(Self(Arc::new(Inner { dialer, idle: Pool::new() })))
    }

    /// Whether `url` could be called, as far as can be told without resolving its name. Meant for the moment a
    /// URL is saved; [`Egress::send`] checks again.
    ///
    /// # Errors
    /// The failure that a call would have.
    pub fn check_url(&self, url: &Url) -> Result<(), Failure> {
        place::target(url)?;
        self.0.dialer.check_literal(&Place::of(url)?)
    }

    /// Makes `call` once.
    ///
    /// # Errors
    /// No answer came. Once the head of an answer is there the call has succeeded, whatever its status and
    /// whatever becomes of its body.
    pub async fn send(&self, call: Call) -> Result<Answer, Failure> {
        let (fresh, deadline) = (call.fresh, Deadline::after(call.timeout));
        let place = Place::of(&call.url)?;
        let request = request(call)?;
        self.0.dialer.check_literal(&place)?;
        if !fresh && let Some(idle) = self.0.idle.take(&place) {
            match self.exchange(idle, &place, request.clone(), deadline).await {
                // The peer closed the connection before a byte of the request left, and none can leave now:
                // a new connection carries the request for the first time.
                Err(failure) if !failure.reached_wire() && failure.code != "timeout" => {}
                Err(failure) => {
                    if matches!(failure.code, "closed" | "reset") {
                        self.0.idle.distrust(&place);
                    }
                    return Err(failure);
                }
                done => return done,
            }
        }
        // In a box: dialling is rare and its state is large, and a send is moved about.
        Box::pin(async {
            let connection = self.0.dialer.open(&place, deadline).await?;
            self.exchange(connection, &place, request, deadline).await
        })
        .await
    }

    async fn exchange(
        &self,
        connection: Box<Connection>,
        place: &Place,
        request: Request<Full<Bytes>>,
        deadline: Deadline,
    ) -> Result<Answer, Failure> {
        let (answer, connection) = connection.exchange(request, deadline).await?;
        if let Some(connection) = connection {
            self.0.idle.put(place.clone(), connection);
        }
        Ok(answer)
    }
}

impl fmt::Debug for Egress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Egress").finish_non_exhaustive()
    }
}

fn request(call: Call) -> Result<Request<Full<Bytes>>, Failure> {
    let Call { method, url, mut headers, body, .. } = call;
    for name in &OURS {
        headers.remove(name);
    }
    let host = HeaderValue::from_str(&url[Position::BeforeHost..Position::AfterPort]);
    headers.insert(header::HOST, host.map_err(|_| place::bad_url("the URL's host is malformed"))?);
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = method;
    *request.uri_mut() = place::target(&url)?;
    *request.headers_mut() = headers;
    Ok(request)
}
