//! The drivers for brokers, each against scripted servers that misbehave and against the real broker.

mod hostile;
mod mqtt;
mod nats;
mod rabbitmq;
mod redis_streams;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use postcommit::Timestamp;
use postcommit_channel::driver::{self, Driver, FailOn, Message, Parts, RawEvent};
use postcommit_channel::egress::{Egress, EgressSettings};
use postcommit_channel::model::{Because, DeliveryKey, Guarantee, Outcome, Report};
use postcommit_channel::render::Content;
use postcommit_channel::secret::{Secret, Secrets};
use postcommit_channel::template::Payload;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use uuid::Uuid;

use crate::egress::peer::{Peer, Script, open};

const ID: Uuid = Uuid::from_u128(0x0199_a5c2_6a3e_7c1d_9a31_0f5f_6c1b_2d3e);
/// A number with more digits than a float has.
const PAYLOAD: &str = r#"{"orderId": 12345678901234567890123, "total": 10.10, "note": "Grüße\n😀"}"#;
const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn loopback() -> Egress {
    Egress::with_resolver(&open(&["127.0.0.0/8"]), Script::new(&[&["127.0.0.1"]])).unwrap()
}

fn build_with(
    name: &str,
    settings: &Value,
    secrets: &[(&str, &str)],
    guarantee: Option<Guarantee>,
    egress: &Egress,
) -> Result<Box<dyn Driver>, String> {
    let secrets: Secrets = secrets.iter().map(|(name, text)| ((*name).to_owned(), Secret::new(*text))).collect();
    let kind = driver::kind(name).unwrap();
    let (guarantee, capture_fail_on) = (guarantee.unwrap_or(kind.guarantee), &FailOn::default());
    kind.build(&Parts { settings, secrets: &secrets, guarantee, egress, capture_fail_on })
}

fn build(name: &str, settings: &Value, secrets: &[(&str, &str)]) -> Box<dyn Driver> {
    build_with(name, settings, secrets, None, &loopback()).unwrap()
}

/// The settings for a server on this port, without encryption, and `more`.
fn settings(port: u16, more: &Value) -> Value {
    let mut settings = json!({"host": "127.0.0.1", "port": port, "tls": "none"});
    settings.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    settings
}

/// Sends delivery `n` to a target.
async fn send(driver: &dyn Driver, target: &str, n: i32) -> Report {
    send_within(driver, target, n, Duration::from_secs(30)).await
}

async fn send_within(driver: &dyn Driver, target: &str, n: i32, timeout: Duration) -> Report {
    deliver(driver, target, n, timeout, PAYLOAD, Timestamp::from_micros(4_000_000_000_000_000)).await
}

async fn deliver(
    driver: &dyn Driver,
    target: &str,
    n: i32,
    timeout: Duration,
    payload: &str,
    expires_at: Timestamp,
) -> Report {
    let sample = Sample::new(payload);
    let message = sample.message(target, n);
    let raw_event = RawEvent { expires_at, ..message.raw_event };
    driver.send(Message { raw_event, timeout, ..message }).await
}

/// The parts of a message that it borrows.
struct Sample {
    payload: Payload,
    source: Value,
}

impl Sample {
    fn new(payload: &str) -> Self {
        Self { payload: Payload::from(payload.to_owned()), source: json!({ "site": "berlin", "traceparent": TRACE }) }
    }

    fn message<'a>(&'a self, target: &'a str, n: i32) -> Message<'a> {
        let raw_event = RawEvent {
            id: ID,
            tenant: "shop",
            idempotency_key: "order:1:created:1",
            event_type: "order.created",
            entity: Some("1"),
            topic: None,
            schema_version: Some(2),
            payload: &self.payload,
            data: None,
            correlation_id: Some("request-7"),
            priority: 5,
            created_at: Timestamp::from_micros(1_772_000_000_000_000),
            expires_at: Timestamp::from_micros(4_000_000_000_000_000),
            source: Some(&self.source),
        };
        Message {
            content: Content::default(),
            raw_event,
            key: DeliveryKey { tenant: 1, notification: ID, n },
            channel: "events",
            target,
            attempt: 1,
            timeout: Duration::from_secs(30),
            traceparent: None,
        }
    }
}

/// The id of delivery `n`.
fn id(n: i32) -> String {
    format!("{ID}_{n}")
}

/// The envelope of delivery `n`, byte for byte.
fn envelope(n: i32) -> String {
    format!(
        r#"{{"specversion":"1.0","id":"{}","source":"urn:postcommit:shop","type":"order.created","subject":"1","time":"2026-02-25T06:13:20Z","datacontenttype":"application/json","notificationid":"{ID}","idempotencykey":"order:1:created:1","schemaversion":2,"correlationid":"request-7","traceparent":"{TRACE}","data":{PAYLOAD}}}"#,
        id(n)
    )
}

fn name(report: &Report) -> String {
    match &report.outcome {
        Outcome::Rejected { because: Because::Config, .. } => "config".into(),
        other => other.name().into(),
    }
}

/// The outcome, its code and its class, such as `config auth_failed auth_failed`.
fn told(report: &Report) -> String {
    let class = report.class().map_or("-", postcommit_channel::model::ErrorClass::name);
    format!("{} {} {class}", name(report), report.outcome.code().unwrap_or("-"))
}

fn detail(report: &Report) -> &str {
    report.evidence.detail.as_deref().unwrap_or_default()
}

/// The certificate and the key of `tls.example`, as files for a real broker, and an egress that trusts it.
struct Certificate {
    folder: TempDir,
    egress: Egress,
}

impl Certificate {
    fn new() -> Self {
        let made = rcgen::generate_simple_self_signed(["tls.example".to_owned()]).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("cert.pem"), made.cert.pem()).unwrap();
        std::fs::write(folder.path().join("key.pem"), made.signing_key.serialize_pem()).unwrap();
        let ca_file = Some(folder.path().join("cert.pem"));
        let egress = EgressSettings { ca_file, ..open(&["127.0.0.0/8"]) };
        let egress = Egress::with_resolver(&egress, Script::new(&[&["127.0.0.1"]])).unwrap();
        Self { folder, egress }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// Reads until the received bytes end with `end`. `None` when the client has left.
async fn heard(stream: &mut TcpStream, end: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = vec![];
    while !bytes.ends_with(end) {
        bytes.push(stream.read_u8().await.ok()?);
    }
    Some(bytes)
}

/// Keeps the connection open until the client leaves.
async fn hold(mut stream: TcpStream) {
    let mut rest = [0; 1024];
    while stream.read(&mut rest).await.is_ok_and(|count| count > 0) {}
}

/// What a scripted broker does when it has the event with this number, starting at 1.
#[derive(Debug, Clone)]
enum Act {
    /// Acknowledges it.
    Ack,
    /// Closes the connection.
    Close,
    /// Says nothing.
    Silence,
    /// Sends these bytes.
    Say(Vec<u8>),
    /// Acknowledges it, then closes the connection.
    AckAndClose,
}

/// Decides what a broker does when it has the event with this number.
type Plan = Arc<dyn Fn(usize) -> Act + Send + Sync>;

/// Starts a broker. `speak` speaks its protocol, and asks the script what happens to each event.
async fn scripted<F: Future<Output = ()> + Send + 'static>(
    speak: impl Fn(TcpStream, Journal, Plan) -> F + Send + Sync + 'static,
    script: impl Fn(usize) -> Act + Send + Sync + 'static,
) -> (Peer, Journal) {
    let (journal, script): (_, Plan) = (Journal::new(), Arc::new(script));
    let shared = journal.clone();
    (Peer::new(move |stream| speak(stream, shared.clone(), script.clone())).await, journal)
}

/// The events that a scripted broker has received, and when it closed a connection.
#[derive(Clone)]
struct Journal {
    events: Arc<std::sync::Mutex<Vec<Vec<u8>>>>,
    closed: Arc<watch::Sender<usize>>,
}

impl Journal {
    fn new() -> Self {
        Self { events: Arc::default(), closed: Arc::new(watch::Sender::new(0)) }
    }

    /// Adds an event and returns its number.
    fn add(&self, event: Vec<u8>) -> usize {
        let mut events = self.events.lock().unwrap();
        events.push(event);
        events.len()
    }

    fn all(&self) -> Vec<Vec<u8>> {
        self.events.lock().unwrap().clone()
    }

    /// Does what the script says. `ack` acknowledges the event. Returns the connection, unless it has ended.
    async fn act(&self, act: Act, mut stream: TcpStream, ack: &[u8]) -> Option<TcpStream> {
        match act {
            Act::Ack => stream.write_all(ack).await.unwrap(),
            Act::Say(bytes) => stream.write_all(&bytes).await.unwrap(),
            Act::AckAndClose => {
                stream.write_all(ack).await.unwrap();
                self.close(stream).await;
                return None;
            }
            Act::Close => {
                self.close(stream).await;
                return None;
            }
            Act::Silence => {
                hold(stream).await;
                return None;
            }
        }
        Some(stream)
    }

    /// Ends the connection in order, so that the client reads its end and no error.
    async fn close(&self, mut stream: TcpStream) {
        stream.shutdown().await.unwrap();
        self.closed.send_modify(|count| *count += 1);
        hold(stream).await;
    }

    /// Waits until the broker has closed this many connections.
    async fn wait_until_closed(&self, count: usize) {
        self.closed.subscribe().wait_for(|closed| *closed >= count).await.unwrap();
    }
}
