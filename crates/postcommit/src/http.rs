//! A client that enqueues over HTTP, for applications that do not share a database with Postcommit. Behind the feature
//! `http`.
//!
//! An HTTP call before or after a COMMIT is lost if the process dies between the two. If the application shares the
//! database with Postcommit, use the [`adapters`](crate::adapters) instead.
//!
//! Every request can be repeated safely: a notification always carries a key, and the server answers a repeated key
//! with the first id. A [`Client`] therefore repeats a request after a broken connection, a timeout, a 429 or a 503. It
//! repeats at most [`REPEATS`] times by default and waits longer each time, or as long as the server asks. It never
//! follows a redirect, because that would send the API key to another server.
//!
//! ```no_run
//! # async fn example() -> Result<(), postcommit::Error> {
//! use postcommit::{Notification, Recipient, http, key};
//!
//! let client = http::Client::new("https://postcommit.example.com", "pc_…")?;
//! let note = Notification::event("booking.confirmed", serde_json::json!({"bookingId": 12345}))
//!     .key(key::of("booking", (12345, "confirmed", 1)))
//!     .to(Recipient::email("guest@example.com"))
//!     .build()?;
//! let enqueued = client.enqueue(&note).await?;
//! println!("{} is {}", enqueued.id, client.status(enqueued.id).await?.state);
//! # Ok(())
//! # }
//! ```
//!
//! The client needs a tokio runtime with time and I/O enabled. HTTPS trusts the system's root certificates and those of
//! [`Builder::root_certificates`].

mod answer;
mod connection;
mod repeat;

use std::fmt;
use std::time::Duration;

use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, USER_AGENT};
use hyper::{Method, Request, Uri};
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{Error, Notification, Timestamp, limits};
use connection::Connections;
use repeat::Repeats;

pub use connection::ANSWER_BYTES;
pub use repeat::{LONGEST_WAIT, REPEATS};

/// The default time limit of one try, including the connection. [`Builder::timeout`] changes it.
pub const TIMEOUT: Duration = Duration::from_secs(10);

/// A client of one Postcommit server, with its API key. Create one client and keep it, because it reuses connections.
/// Its `Debug` output does not show the key.
pub struct Client {
    connections: Connections,
    prefix: String,
    host: HeaderValue,
    authorization: HeaderValue,
    repeats: Repeats,
}

/// The result of an enqueue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Enqueued {
    /// The notification's id. If the key was used before, this is the id of the first notification.
    pub id: Uuid,
    /// Whether the key was already used with the same content, so that nothing new was enqueued.
    pub duplicate: bool,
}

/// The current state of a notification.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Status {
    /// The notification's id.
    pub id: Uuid,
    /// The state of the least finished delivery: `pending`, `sending`, `retrying`, `sent`, `delivered`, `parked`,
    /// `discarded`, `cancelled`, `expired` or `skipped`.
    pub state: String,
    /// The number of retries of the delivery with the most attempts.
    pub retries: u64,
    /// The error of the last failed attempt.
    #[serde(default)]
    pub last_error: Option<String>,
    /// The time at which the server accepted the notification.
    pub enqueued_at: Timestamp,
    /// The time at which a provider accepted the last delivery. Set only if the state is `sent` or `delivered`.
    #[serde(default)]
    pub sent_at: Option<Timestamp>,
    /// The time at which the arrival of the last delivery became known. Set only if the state is `delivered`.
    #[serde(default)]
    pub delivered_at: Option<Timestamp>,
    /// The time at which the last attempt began.
    #[serde(default)]
    pub last_attempt_at: Option<Timestamp>,
    /// Whether a provider for development recorded a delivery instead of sending it.
    #[serde(default)]
    pub captured: bool,
}

/// Builds a [`Client`].
#[derive(Clone)]
#[must_use = "a builder does nothing until build() is called"]
pub struct Builder {
    url: String,
    key: String,
    timeout: Duration,
    repeats: u32,
    roots: Vec<u8>,
}

impl Builder {
    /// Sets the time limit of one try, including the connection. Default 10 seconds.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the maximum number of repeats after the first try: 0 to 10. Default [`REPEATS`].
    pub fn repeats(mut self, repeats: u32) -> Self {
        self.repeats = repeats;
        self
    }

    /// Adds trusted certificates in PEM to those of the system: of a private authority, or the server's own.
    pub fn root_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.roots = pem.into();
        self
    }

    /// Checks the settings. Opens no connection.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming `url`, `key`, `repeats` or `root_certificates`.
    pub fn build(self) -> Result<Client, Error> {
        let (uri, prefix) = server(&self.url)?;
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        let host = HeaderValue::from_str(authority)
            .map_err(|_| Error::invalid("url", "has a host that is not allowed in an HTTP header; check the host"))?;
        Ok(Client {
            connections: Connections::new(&uri, self.timeout, &self.roots)?,
            prefix,
            host,
            authorization: bearer(&self.key)?,
            repeats: Repeats::at_most(self.repeats)?,
        })
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("url", &self.url)
            .field("timeout", &self.timeout)
            .field("repeats", &self.repeats)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("host", &self.host).finish_non_exhaustive()
    }
}

impl Client {
    /// Creates a client of the server at `url` (`https://host[:port][/path]`), with a key of scope `enqueue` or more.
    /// Plain `http` exposes the key to everyone on the network path.
    ///
    /// # Errors
    /// The same errors as [`Builder::build`].
    pub fn new(url: impl Into<String>, key: impl Into<String>) -> Result<Self, Error> {
        Self::builder(url, key).build()
    }

    /// Returns a builder for a client with settings that differ from the defaults of [`Client::new`].
    pub fn builder(url: impl Into<String>, key: impl Into<String>) -> Builder {
        Builder { url: url.into(), key: key.into(), timeout: TIMEOUT, repeats: REPEATS, roots: Vec::new() }
    }

    /// Enqueues a notification. When this returns, the notification is durable. `strict` has no effect: over HTTP a
    /// conflict is always an error. A tenant other than `default` is sent to the server, which refuses it unless the
    /// key may name a tenant.
    ///
    /// # Errors
    /// [`Error::Conflict`] when the key was used with other content; [`Error::Invalid`], [`Error::Refused`] or
    /// [`Error::Unavailable`] otherwise. After `Unavailable` the notification may have been enqueued or not: repeat the
    /// call with the same key.
    pub async fn enqueue(&self, note: &Notification) -> Result<Enqueued, Error> {
        let answer = self.post("/v1/notifications", &outward(note)?).await?;
        answer.json::<Enqueued>().map_err(|error| error.with_key(&note.idempotency_key))
    }

    /// Enqueues 1 to 1,000 notifications. Returns one result for each, in the order given. A refused notification does
    /// not affect the others.
    ///
    /// # Errors
    /// The same errors as [`Client::enqueue`], if the whole batch was refused.
    pub async fn enqueue_many(&self, notes: &[Notification]) -> Result<Vec<Result<Enqueued, Error>>, Error> {
        if notes.is_empty() || notes.len() > limits::BATCH {
            return Err(Error::invalid(
                "notifications",
                format!("has {} entries; 1 to {} are allowed", notes.len(), limits::BATCH),
            ));
        }
        let outward = notes.iter().map(outward).collect::<Result<Vec<_>, _>>()?;
        let answer = self.post("/v1/notifications/batch", &json!({"notifications": outward})).await?;
        let results = answer.json::<answer::BatchResponse>()?.results;
        if results.len() != notes.len() {
            return Err(Error::unavailable(format!(
                "{} notifications were sent, but the response has {} results; repeat the call with the same keys",
                notes.len(),
                results.len()
            )));
        }
        let one = |(result, note): (answer::BatchResult, &Notification)| {
            result.read().map_err(|error| error.with_key(&note.idempotency_key))
        };
        Ok(results.into_iter().zip(notes).map(one).collect())
    }

    /// Returns the state of a notification. Needs a key with the scope `read`.
    ///
    /// # Errors
    /// [`Error::Refused`] with status 404 when no notification has this id; otherwise as [`Client::enqueue`].
    pub async fn status(&self, id: Uuid) -> Result<Status, Error> {
        self.send(Method::GET, &format!("/v1/notifications/{id}/status"), Bytes::new()).await?.json()
    }

    /// Cancels the deliveries of `entity` that are not yet sent, of all event types or of one. Returns the number of
    /// cancelled deliveries; if the request was repeated, the number that the last try cancelled. Needs a key with the
    /// scope `operate`.
    ///
    /// # Errors
    /// The same errors as [`Client::enqueue`].
    pub async fn cancel(&self, entity: &str, event_type: Option<&str>) -> Result<u64, Error> {
        let body = event_type.map_or_else(|| json!({}), |name| json!({"event_type": name}));
        let answer = self.post(&format!("/v1/entities/{}/cancel", segment("entity", entity)?), &body).await?;
        Ok(answer.json::<answer::Cancelled>()?.cancelled)
    }

    async fn post(&self, path: &str, body: &Value) -> Result<answer::Answer, Error> {
        self.send(Method::POST, path, Bytes::from(body.to_string())).await
    }

    /// Sends a request, and repeats it until a response settles it or no repeats are left.
    async fn send(&self, method: Method, path: &str, body: Bytes) -> Result<answer::Answer, Error> {
        let mut repeats = self.repeats;
        loop {
            let request = self.request(&method, path, body.clone())?;
            let unsettled = match self.connections.exchange(request).await {
                Ok(answer) if !answer.may_be_repeated() => return Ok(answer),
                Ok(answer) => answer.unsettled(),
                Err(unsettled) => unsettled,
            };
            tokio::time::sleep(repeats.next(unsettled)?).await;
        }
    }

    fn request(&self, method: &Method, path: &str, body: Bytes) -> Result<Request<Bytes>, Error> {
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.prefix))
            .header(HOST, &self.host)
            .header(AUTHORIZATION, &self.authorization)
            .header(USER_AGENT, concat!("postcommit-rust/", env!("CARGO_PKG_VERSION")));
        let request = if body.is_empty() { request } else { request.header(CONTENT_TYPE, "application/json") };
        request.body(body).map_err(|_| Error::invalid("url", "cannot be used in an HTTP request; check its path"))
    }
}

/// The notification as JSON for the API. The API has no `strict`, because over HTTP every enqueue is strict. The
/// default tenant is left out, because the key implies it.
fn outward(note: &Notification) -> Result<Value, Error> {
    let mut value = serde_json::to_value(note).map_err(|e| Error::invalid("notification", e.to_string()))?;
    if let Value::Object(fields) = &mut value {
        fields.remove("strict");
        if note.tenant == "default" {
            fields.remove("tenant");
        }
    }
    Ok(value)
}

/// Splits the URL into the server and the path before `/v1`.
fn server(url: &str) -> Result<(Uri, String), Error> {
    let wrong = || Error::invalid("url", "must be http(s)://host[:port][/path], without user name, query and fragment");
    // `Uri` accepts a user name and a query, and silently drops a fragment.
    let uri: Uri = url.parse().map_err(|_| wrong())?;
    let known = matches!(uri.scheme_str(), Some("http" | "https"));
    let plain = uri.host().is_some_and(|host| !host.is_empty()) && uri.query().is_none() && !url.contains(['@', '#']);
    let prefix = uri.path().trim_end_matches('/').to_owned();
    if known && plain { Ok((uri, prefix)) } else { Err(wrong()) }
}

fn bearer(key: &str) -> Result<HeaderValue, Error> {
    // The error text must not contain the key.
    let wrong = |_| Error::invalid("key", "contains characters that are not allowed in an HTTP header");
    let mut value = HeaderValue::from_str(&format!("Bearer {key}")).map_err(wrong)?;
    if key.is_empty() {
        return Err(Error::invalid("key", "is empty; give an API key"));
    }
    value.set_sensitive(true);
    Ok(value)
}

/// Percent-encodes `text`, so that it stays one segment of a path.
fn segment(field: &str, text: &str) -> Result<String, Error> {
    // Proxies resolve "." and ".." even when they are percent-encoded.
    if matches!(text, "" | "." | "..") {
        return Err(Error::invalid(field, "must not be empty, \".\" or \"..\", because it is part of a URL path"));
    }
    let mut path = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => path.push(char::from(byte)),
            _ => path.push_str(&format!("%{byte:02X}")),
        }
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(url: &str, key: &str) -> Option<String> {
        match Client::new(url, key) {
            Ok(_) => None,
            Err(Error::Invalid { field, problem }) => {
                assert!(key.is_empty() || !problem.contains(key), "{problem}");
                Some(field)
            }
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn an_unusable_url_or_key_is_refused_before_any_request() {
        for url in [
            "https://postcommit.example.com",
            "http://127.0.0.1:7410",
            "http://[::1]:7410/",
            "https://example.com/notices/",
        ] {
            assert_eq!(field(url, "pc_1_x"), None, "{url}");
        }
        for url in [
            "",
            "postcommit.example.com",
            "ftp://example.com",
            "https://",
            "https://u:p@example.com",
            "https://a.example/?b",
            "https://a.example/#b",
        ] {
            assert_eq!(field(url, "pc_1_x").as_deref(), Some("url"), "{url}");
        }
        for key in ["", "pc_1\r\nX-Other: 1"] {
            assert_eq!(field("https://a.example", key).as_deref(), Some("key"), "{key:?}");
        }
        assert!(Client::builder("https://a.example", "k").repeats(11).build().is_err());
        assert!(Client::builder("https://a.example", "k").root_certificates("no certificate").build().is_err());
    }

    #[test]
    fn an_entity_stays_one_segment() {
        assert_eq!(segment("entity", "a/b?c#d%é").unwrap(), "a%2Fb%3Fc%23d%25%C3%A9");
        for dots in ["", ".", ".."] {
            assert!(segment("entity", dots).is_err());
        }
    }

    #[test]
    fn the_key_is_not_shown() {
        let builder = Client::builder("https://a.example", "pc_1_secret");
        assert!(!format!("{builder:?}").contains("secret"));
        assert!(!format!("{:?}", builder.build().unwrap()).contains("secret"));
    }
}
