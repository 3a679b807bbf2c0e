//! Tests of the server over real sockets. Their routes misbehave on purpose: they panic, block or never end.

use postcommit_engine::metrics::Metrics;
use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::Extension;
use axum::http::{Uri, header};
use axum::response::{Html, IntoResponse};
use axum::routing::{get, post};
use axum::{Router, body::Body as AnswerBody};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tokio::io::BufReader;
use tokio::sync::{Notify, mpsc};

use super::*;

/// The time limit of every step. A step that takes longer fails the test.
const GUARD: Duration = Duration::from_secs(60);

fn settings() -> ServerSettings {
    let all: toml::Table = crate::settings::DEFAULTS.parse().unwrap();
    let mut settings: ServerSettings = all["server"].clone().try_into().unwrap();
    settings.listen = "127.0.0.1:0".into();
    settings
}

/// The channels between the routes and the test.
#[derive(Clone)]
struct Signals {
    tell: mpsc::UnboundedSender<&'static str>,
    go: Arc<Notify>,
}

struct OnDrop(Signals, &'static str);

impl Drop for OnDrop {
    fn drop(&mut self) {
        let _ = self.0.tell.send(self.1);
    }
}

fn routes(signals: Signals) -> Router {
    let router = Router::new()
        .route("/fast", get(async || "fast"))
        .route("/echo", post(async |body: Bytes| format!("{} bytes", body.len())))
        .route("/panic", get(async || -> &'static str { panic!("on purpose") }))
        .route("/html", get(async || ([(header::CACHE_CONTROL, "max-age=60")], Html("<p>"))))
        .route(
            "/client",
            get(async |Extension(client): Extension<Client>, Extension(id): Extension<RequestId>| {
                format!("{client:?} {}", id.0)
            }),
        )
        .route("/wait", get(wait))
        .route("/stream", get(endless))
        .route("/flood", get(flood));
    named_routes(router).layer(Extension(signals))
}

async fn wait(Extension(signals): Extension<Signals>) -> &'static str {
    let _ = signals.tell.send("waiting");
    signals.go.notified().await;
    let _ = signals.tell.send("done");
    "waited"
}

/// Sends one line and then nothing until the stream ends. The query string is the tenant's number.
async fn endless(
    Extension(streams): Extension<Streams>,
    Extension(signals): Extension<Signals>,
    uri: Uri,
) -> AnswerBody {
    let tenant = uri.query().and_then(|query| query.parse().ok()).unwrap_or(1);
    let answer = match streams.begin(tenant) {
        Ok(answer) => answer,
        Err(full) => return format!("no place: {full:?}").into(),
    };
    let gone = OnDrop(signals, "stream gone");
    let first = stream::iter([Ok::<_, Infallible>(Bytes::from_static(b"first\n"))]);
    let silence = stream::once(async move {
        let _gone = gone;
        std::future::pending().await
    });
    answer.body_ending_with(first.chain(silence), "")
}

/// An answer larger than any buffer.
async fn flood(Extension(signals): Extension<Signals>) -> impl IntoResponse {
    let gone = OnDrop(signals, "flood gone");
    AnswerBody::from_stream(stream::repeat_with(move || {
        let _ = &gone;
        Ok::<_, Infallible>(Bytes::from_static(&[b'x'; 65_536]))
    }))
}

/// A running server with the routes of this file.
struct Place {
    door: Door,
    stop: watch::Sender<Stop>,
    told: mpsc::UnboundedReceiver<&'static str>,
    go: Arc<Notify>,
}

impl Place {
    async fn with(change: impl FnOnce(&mut ServerSettings)) -> Self {
        let mut settings = settings();
        change(&mut settings);
        let (stop, stopped) = watch::channel(Stop::No);
        let (tell, told) = mpsc::unbounded_channel();
        let go = Arc::new(Notify::new());
        let door = open(&settings, routes(Signals { tell, go: go.clone() }), stopped, GUARD, &Metrics::default())
            .await
            .unwrap();
        Self { door, stop, told, go }
    }

    async fn visitor(&self) -> Visitor {
        Visitor(BufReader::new(TcpStream::connect(self.door.address).await.unwrap()))
    }

    async fn get(&self, path: &str) -> String {
        self.visitor().await.asks(&format!("GET {path} HTTP/1.1\r\nhost: h\r\n\r\n")).await
    }

    async fn is_told(&mut self, what: &str) {
        assert_eq!(timeout(GUARD, self.told.recv()).await.unwrap(), Some(what));
    }
}

/// A client that sends exactly the bytes that the test gives it.
struct Visitor(BufReader<TcpStream>);

impl Visitor {
    async fn says(&mut self, bytes: &str) {
        self.0.write_all(bytes.as_bytes()).await.unwrap();
    }

    async fn asks(&mut self, request: &str) -> String {
        self.says(request).await;
        self.hears().await
    }

    /// Reads one answer. Its Content-Length says how long it is.
    async fn hears(&mut self) -> String {
        let head = self.hears_head().await;
        let length =
            head.split("content-length: ").nth(1).map_or(0, |rest| rest.split("\r\n").next().unwrap().parse().unwrap());
        let mut body = vec![0; length];
        timeout(GUARD, self.0.read_exact(&mut body)).await.unwrap().unwrap();
        head + &String::from_utf8(body).unwrap()
    }

    async fn hears_head(&mut self) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(
                timeout(GUARD, self.0.read_u8())
                    .await
                    .unwrap()
                    .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&head))),
            );
        }
        String::from_utf8(head).unwrap()
    }

    /// Reads everything until the connection is closed.
    async fn hears_out(&mut self) -> String {
        let mut rest = Vec::new();
        timeout(GUARD, self.0.read_to_end(&mut rest)).await.unwrap().unwrap();
        String::from_utf8(rest).unwrap()
    }
}

fn post_of(length: usize) -> String {
    format!("POST /echo HTTP/1.1\r\nhost: h\r\ncontent-length: {length}\r\n\r\n")
}

const CHUNKS: &str = "POST /echo HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n";

#[tokio::test]
async fn every_answer_carries_what_it_must() {
    let place = Place::with(|_| {}).await;
    let mut visitor = place.visitor().await;
    let named = visitor.asks("GET /client HTTP/1.1\r\nhost: h\r\nx-request-id: my.id-1\r\n\r\n").await;
    assert!(named.contains("x-request-id: my.id-1\r\n") && named.ends_with("secure: false } my.id-1"), "{named}");
    for odd in ["", "a b", &"x".repeat(65), "<script>"] {
        let made = visitor.asks(&format!("GET /fast HTTP/1.1\r\nhost: h\r\nx-request-id: {odd}\r\n\r\n")).await;
        let id = made.split("x-request-id: ").nth(1).unwrap().split("\r\n").next().unwrap();
        assert!(id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit()), "{made}");
        assert!(
            made.contains("x-content-type-options: nosniff\r\n") && made.contains("referrer-policy: no-referrer\r\n"),
            "{made}"
        );
        assert!(made.contains("cache-control: no-store\r\n") && !made.contains("content-security-policy"), "{made}");
    }
    let html = place.get("/html").await;
    assert!(html.contains("cache-control: max-age=60\r\n"), "{html}");
    assert!(
        html.contains("content-security-policy: default-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'\r\n"),
        "{html}"
    );
    let refused = place.get("/../fast").await;
    assert!(
        refused.starts_with("HTTP/1.1 400") && refused.contains("x-request-id: ") && refused.contains("nosniff"),
        "{refused}"
    );
    assert!(
        refused.contains("content-type: application/problem+json\r\n") && refused.contains("connection: close\r\n"),
        "{refused}"
    );
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let place = Place::with(|_| {}).await;
    let mut visitor = place.visitor().await;
    let chunked = format!("{CHUNKS}5;x=y\r\nabcde\r\n2\r\nfg\r\n0\r\ntrailer: t\r\n\r\n");
    let get = "GET /fast HTTP/1.1\r\nhost: h\r\n\r\n";
    // The body of the first request looks like a request itself. The last request is refused, but only after the
    // answers to those before it.
    visitor
        .says(&format!(
            "{}{get}{chunked}{get}\r\n{}abcGET /.. HTTP/1.1\r\nhost: h\r\n\r\n{get}",
            post_of(get.len()),
            post_of(3)
        ))
        .await;
    assert!(visitor.hears().await.ends_with(&format!("{} bytes", get.len())));
    assert!(visitor.hears().await.ends_with("7 bytes"));
    assert!(visitor.hears().await.ends_with("fast"));
    assert!(visitor.hears().await.ends_with("3 bytes"));
    assert!(visitor.hears().await.starts_with("HTTP/1.1 400"));
    assert_eq!(visitor.hears_out().await, "", "after a refusal nothing is served");
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_with_the_limit() {
    let place = Place::with(|settings| settings.body_bytes = 2048).await;
    assert!(
        place.visitor().await.asks(&format!("{}{}", post_of(2048), "x".repeat(2048))).await.ends_with("2048 bytes")
    );
    // The announced length is too large. The server refuses before it reads any of the body and without sending 100
    // Continue.
    let announced =
        format!("POST /echo HTTP/1.1\r\nhost: h\r\nexpect: 100-continue\r\ncontent-length: {}\r\n\r\n", 2049);
    let mut visitor = place.visitor().await;
    let answer = visitor.asks(&announced).await;
    assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("\"limit\":2048"), "{answer}");
    // The chunks together are too large although each is small. The server refuses while it reads them.
    let mut visitor = place.visitor().await;
    visitor.says(CHUNKS).await;
    for _ in 0..5 {
        visitor.says(&format!("200\r\n{}\r\n", "x".repeat(512))).await;
    }
    let answer = visitor.hears_out().await;
    assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("\"limit\":2048"), "{answer}");
}

#[tokio::test]
async fn a_client_that_sends_on_still_hears_why_it_was_refused() {
    let place = Place::with(|_| {}).await;
    let mut visitor = place.visitor().await;
    visitor.says(&post_of(100_000_000)).await;
    let (mut read, mut write) = visitor.0.into_inner().into_split();
    let sending = tokio::spawn(async move { while write.write_all(&[b'x'; 65_536]).await.is_ok() {} });
    let mut answer = vec![0; 12];
    timeout(GUARD, read.read_exact(&mut answer)).await.unwrap().unwrap();
    assert_eq!(answer, b"HTTP/1.1 413");
    timeout(GUARD, sending).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_body_that_comes_too_slowly_is_refused() {
    let place = Place::with(|settings| settings.body_grace_ms = 50).await;
    for begun in [post_of(100), format!("{}abc", post_of(100)), format!("{CHUNKS}3\r\na")] {
        let answer = place.visitor().await.asks(&begun).await;
        assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("\"limit\":1024"), "{answer}");
    }
    // The body comes fast enough to earn more time, but it still exceeds the total deadline.
    let place = Place::with(|settings| (settings.body_deadline_ms, settings.body_bytes_per_s) = (50, 1)).await;
    let answer = place.visitor().await.asks(&format!("{}{}", post_of(1000), "x".repeat(999))).await;
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
}

#[tokio::test]
async fn a_body_that_is_malformed_is_refused() {
    let place = Place::with(|_| {}).await;
    for chunks in ["zz\r\n", "3\nabc\n", "3\r\nabcd\r\n"] {
        let answer = place.visitor().await.asks(&format!("{CHUNKS}{chunks}")).await;
        assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("malformed"), "{chunks:?}: {answer}");
    }
}

#[tokio::test]
async fn a_client_may_ask_before_it_sends() {
    let place = Place::with(|_| {}).await;
    let mut visitor = place.visitor().await;
    visitor.says("POST /echo HTTP/1.1\r\nhost: h\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n").await;
    assert_eq!(visitor.hears_head().await, "HTTP/1.1 100 Continue\r\n\r\n");
    assert!(visitor.asks("abc").await.ends_with("3 bytes"));
}

#[tokio::test]
async fn a_panic_is_one_requests_problem() {
    let place = Place::with(|_| {}).await;
    let mut visitor = place.visitor().await;
    let answer = visitor.asks("GET /panic HTTP/1.1\r\nhost: h\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 500") && answer.contains("urn:postcommit:problem:internal"), "{answer}");
    assert!(!answer.contains("on purpose"), "{answer}");
    assert!(visitor.asks("GET /fast HTTP/1.1\r\nhost: h\r\n\r\n").await.ends_with("fast"), "on the same connection");
}

#[tokio::test]
async fn a_handler_outlives_its_client() {
    let mut place = Place::with(|_| {}).await;
    let mut visitor = place.visitor().await;
    visitor.says("GET /wait HTTP/1.1\r\nhost: h\r\n\r\n").await;
    place.is_told("waiting").await;
    visitor.0.shutdown().await.unwrap();
    assert_eq!(visitor.hears_out().await, "", "the server has noticed that the client disconnected");
    place.go.notify_one();
    place.is_told("done").await;
}

#[tokio::test]
async fn a_stop_finishes_requests_ends_streams_and_closes_the_rest() {
    let mut place = Place::with(|_| {}).await;
    let (mut fresh, mut idle, mut streaming, mut waiting) =
        (place.visitor().await, place.visitor().await, place.visitor().await, place.visitor().await);
    idle.asks("GET /fast HTTP/1.1\r\nhost: h\r\n\r\n").await;
    streaming.says("GET /stream HTTP/1.1\r\nhost: h\r\n\r\n").await;
    streaming.hears_head().await;
    waiting.says("GET /wait HTTP/1.1\r\nhost: h\r\n\r\n").await;
    place.is_told("waiting").await;
    place.stop.send(Stop::Finish).unwrap();
    assert_eq!(fresh.hears_out().await, "");
    assert_eq!(idle.hears_out().await, "");
    assert_eq!(streaming.hears_out().await, "6\r\nfirst\n\r\n0\r\n\r\n", "the stream ends with a last chunk");
    place.is_told("stream gone").await;
    assert!(!place.door.closed.is_finished(), "one request is still running");
    place.go.notify_one();
    let answer = waiting.hears_out().await;
    assert!(answer.contains("connection: close\r\n") && answer.ends_with("waited"), "{answer}");
    timeout(GUARD, place.door.closed()).await.unwrap();
}

#[tokio::test]
async fn a_second_word_to_stop_waits_for_nobody() {
    let mut place = Place::with(|_| {}).await;
    let mut waiting = place.visitor().await;
    waiting.says("GET /wait HTTP/1.1\r\nhost: h\r\n\r\n").await;
    place.is_told("waiting").await;
    place.stop.send(Stop::Finish).unwrap();
    place.stop.send(Stop::Now).unwrap();
    timeout(GUARD, place.door.closed()).await.unwrap();
    assert_eq!(waiting.hears_out().await, "");
}

#[tokio::test]
async fn streams_have_a_cap_of_their_own() {
    let mut place = Place::with(|settings| settings.streams = 1).await;
    let mut first = place.visitor().await;
    first.says("GET /stream HTTP/1.1\r\nhost: h\r\n\r\n").await;
    first.hears_head().await;
    assert!(place.get("/stream?2").await.ends_with("no place: ForAll"));
    assert!(place.get("/fast").await.ends_with("fast"));
    drop(first);
    place.is_told("stream gone").await;
    let mut next = place.visitor().await;
    next.says("GET /stream HTTP/1.1\r\nhost: h\r\n\r\n").await;
    assert!(next.hears_head().await.contains("transfer-encoding: chunked"));
}

#[tokio::test]
async fn no_tenant_takes_more_than_half_of_all_streams() {
    let mut place = Place::with(|settings| settings.streams = 5).await;
    let mut open = Vec::new();
    for tenant in [1, 1, 2, 2] {
        let mut visitor = place.visitor().await;
        visitor.says(&format!("GET /stream?{tenant} HTTP/1.1\r\nhost: h\r\n\r\n")).await;
        visitor.hears_head().await;
        open.push(visitor);
    }
    for tenant in [1, 2] {
        let mut further = place.visitor().await;
        further.says(&format!("GET /stream?{tenant} HTTP/1.1\r\nhost: h\r\n\r\n")).await;
        assert!(further.hears_head().await.contains("content-length"), "the answer is a refusal, not a stream");
        assert!(place.get(&format!("/stream?{tenant}")).await.ends_with("no place: ForTenant(2)"));
    }
    let mut third = place.visitor().await;
    third.says("GET /stream?3 HTTP/1.1\r\nhost: h\r\n\r\n").await;
    assert!(third.hears_head().await.contains("transfer-encoding: chunked"), "another tenant may open a stream");
    drop(open.swap_remove(0));
    place.is_told("stream gone").await;
    let mut again = place.visitor().await;
    again.says("GET /stream?1 HTTP/1.1\r\nhost: h\r\n\r\n").await;
    assert!(again.hears_head().await.contains("transfer-encoding: chunked"), "the slot of the closed stream is free");
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_given_up() {
    let mut place = Place::with(|settings| settings.write_deadline_ms = 50).await;
    let mut visitor = place.visitor().await;
    visitor.says("GET /flood HTTP/1.1\r\nhost: h\r\n\r\n").await;
    place.is_told("flood gone").await;
}

#[tokio::test]
async fn an_idle_connection_is_closed() {
    let place = Place::with(|settings| settings.idle_deadline_ms = 50).await;
    let mut visitor = place.visitor().await;
    assert!(visitor.asks("GET /fast HTTP/1.1\r\nhost: h\r\n\r\n").await.ends_with("fast"));
    assert_eq!(visitor.hears_out().await, "", "closed without an answer, because no request was sent");
}
