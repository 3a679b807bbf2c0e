//! The Web Push driver against a scripted push service. The tests read messages as a browser does.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use postcommit_channel::clock;
use postcommit_channel::driver::{self, Driver, FailOn, Kind, Message, Parts, RawEvent};
use postcommit_channel::egress::{Egress, EgressSettings};
use postcommit_channel::model::{DeliveryKey, Guarantee, Report};
use postcommit_channel::render::Content;
use postcommit_channel::secret::{Secret, Secrets};
use postcommit_channel::template::Payload;
use postcommit_testkit::http::{HttpServer, Reply, Request};
use ring::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::agreement::{ECDH_P256, EphemeralPrivateKey, UnparsedPublicKey, agree_ephemeral};
use ring::hkdf::{HKDF_SHA256, KeyType, Salt};
use ring::rand::SystemRandom;
use ring::signature::{self, ECDSA_P256_SHA256_FIXED};
use serde_json::value::to_raw_value;
use serde_json::{Value, json};

use crate::event::booking;
use crate::recipes::{outcome, scripted};

const AUTH: &str = "BTBZMqHH6r4Tts7J_aSIgg";
const LONG: Duration = Duration::from_secs(10);

/// A browser that has subscribed. It can read one message, because `ring` lets a key agree only once.
struct Browser {
    key: EphemeralPrivateKey,
    public: Vec<u8>,
    target: String,
}

fn browser(endpoint: &str) -> Browser {
    let key = EphemeralPrivateKey::generate(&ECDH_P256, &SystemRandom::new()).unwrap();
    let public = key.compute_public_key().unwrap().as_ref().to_vec();
    let p256dh = URL_SAFE_NO_PAD.encode(&public);
    let keys = json!({"p256dh": p256dh, "auth": AUTH});
    Browser { key, public, target: json!({"endpoint": endpoint, "expirationTime": null, "keys": keys}).to_string() }
}

struct Bytes(usize);

impl KeyType for Bytes {
    fn len(&self) -> usize {
        self.0
    }
}

fn derived(salt: &[u8], input: &[u8], info: &[&[u8]], length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let secret = Salt::new(HKDF_SHA256, salt).extract(input);
    secret.expand(info, Bytes(length)).unwrap().fill(&mut bytes).unwrap();
    bytes
}

impl Browser {
    /// Decrypts the body of a request, as RFC 8188 and RFC 8291 describe it.
    fn read(self, body: &[u8]) -> Vec<u8> {
        let (salt, rest) = body.split_at(16);
        let (size, rest) = rest.split_at(4);
        assert_eq!(size, 4096_u32.to_be_bytes());
        let (server, record) = rest[1..].split_at(usize::from(rest[0]));
        let theirs = UnparsedPublicKey::new(&ECDH_P256, server);
        let secret = agree_ephemeral(self.key, &theirs, <[u8]>::to_vec).unwrap();
        let auth = URL_SAFE_NO_PAD.decode(AUTH).unwrap();
        let input = derived(&auth, &secret, &[b"WebPush: info\0", &self.public, server], 32);
        let key =
            UnboundKey::new(&AES_128_GCM, &derived(salt, &input, &[b"Content-Encoding: aes128gcm\0"], 16)).unwrap();
        let nonce = derived(salt, &input, &[b"Content-Encoding: nonce\0"], 12).try_into().unwrap();
        let mut text = record.to_vec();
        let opened = LessSafeKey::new(key);
        let opened = opened.open_in_place(Nonce::assume_unique_for_key(nonce), Aad::empty(), &mut text).unwrap();
        let (end, message) = opened.split_last().unwrap();
        assert_eq!(*end, 2, "the mark of the last record");
        message.to_vec()
    }
}

fn kind() -> std::sync::Arc<Kind> {
    driver::kind("web_push").unwrap()
}

fn built(
    settings: &Value,
    private: Option<&str>,
    guarantee: Guarantee,
    egress: &Egress,
) -> Result<Box<dyn Driver>, String> {
    let secrets: Secrets = private.map(|text| ("private_key".to_owned(), Secret::new(text))).into_iter().collect();
    kind().build(&Parts { settings, secrets: &secrets, guarantee, egress, capture_fail_on: &FailOn::default() })
}

fn loopback() -> Egress {
    Egress::new(&EgressSettings { allow: vec!["127.0.0.0/8".parse().unwrap()], ..EgressSettings::default() }).unwrap()
}

/// A new pair of keys: the private and the public one.
fn pair() -> (String, String) {
    let made = (kind().new_secret.as_ref().unwrap().make)();
    (made.secret.reveal().to_owned(), made.public.unwrap())
}

fn provider() -> Box<dyn Driver> {
    let (private, public) = pair();
    let settings = json!({"subject": "mailto:desk@hotel.example", "public_key": public});
    built(&settings, Some(&private), Guarantee::AtLeastOnce, &loopback()).unwrap()
}

fn content(data: Value) -> Content {
    Content {
        subject: Some("Booked".into()),
        text: Some("Room 7".into()),
        action_url: Some("https://hotel.example/b/7".into()),
        data: Some(to_raw_value(&data).unwrap()),
        ..Content::default()
    }
}

/// Calls `act` with a message.
async fn with<T>(
    target: &str,
    (content, priority): (Content, i16),
    timeout: Duration,
    act: impl AsyncFnOnce(Message<'_>) -> T,
) -> T {
    let payload = Payload::from("{}".to_owned());
    let key = DeliveryKey { tenant: 1, notification: "0198c6d5-0000-7000-8000-000000000001".parse().unwrap(), n: 1 };
    let raw_event = RawEvent { id: key.notification, priority, ..booking(&payload) };
    act(Message { content, raw_event, key, channel: "web_push", target, attempt: 1, timeout, traceparent: None }).await
}

async fn send(driver: &dyn Driver, target: &str, content: Content) -> Report {
    with(target, (content, 5), LONG, async |message| driver.send(message).await).await
}

#[tokio::test]
async fn a_browser_reads_the_message_and_the_push_service_knows_the_sender() {
    let server = HttpServer::start(|_| {
        Reply::status(201).with_header("location", "https://push.example/m/msg-1?x=1").with_body("")
    });
    let (private, public) = pair();
    let settings = json!({"subject": "mailto:desk@hotel.example", "public_key": public, "ttl_s": 600});
    let driver = built(&settings, Some(&private), Guarantee::AtLeastOnce, &loopback()).unwrap();
    let browser = browser(&server.url("/push/secret-endpoint"));
    let report = send(&*driver, &browser.target, content(json!({"icon": "/i.png", "title": "other"}))).await;
    assert_eq!((outcome(&report), report.evidence.provider_ref.as_deref()), ("sent", Some("msg-1")), "{report:?}");
    let request = &server.requests()[0];
    assert_eq!((request.method.as_str(), request.path.as_str()), ("POST", "/push/secret-endpoint"));
    for (name, value) in [("ttl", "600"), ("urgency", "normal"), ("content-encoding", "aes128gcm")] {
        assert_eq!(request.header(name), Some(value), "{name}");
    }
    let message: Value = serde_json::from_slice(&browser.read(&request.body)).unwrap();
    assert_eq!(
        message,
        json!({"id": "0198c6d5-0000-7000-8000-000000000001_1", "title": "Booked", "body": "Room 7",
            "url": "https://hotel.example/b/7", "icon": "/i.png"})
    );
    let authorization = request.header("authorization").unwrap();
    let (token, key) = authorization.strip_prefix("vapid t=").unwrap().split_once(", k=").unwrap();
    assert_eq!(key, public);
    let (text, signature) = token.rsplit_once('.').unwrap();
    let key = signature::UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, URL_SAFE_NO_PAD.decode(key).unwrap());
    key.verify(text.as_bytes(), &URL_SAFE_NO_PAD.decode(signature).unwrap()).unwrap();
    let claims: Value =
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(text.split_once('.').unwrap().1).unwrap()).unwrap();
    assert_eq!(claims["aud"].as_str(), Some(server.url("").as_str()), "the origin of the endpoint");
    assert_eq!(claims["sub"], "mailto:desk@hotel.example");
    let life = claims["exp"].as_i64().unwrap() - clock::now().as_micros() / 1_000_000;
    assert!((0..86_400).contains(&life), "{life}");
}

#[tokio::test]
async fn urgency_follows_the_priority_and_a_repetition_replaces_what_waits() {
    let (server, _) = scripted();
    let driver = provider();
    let target = browser(&server.url("/p")).target;
    for priority in [0, 3, 5, 9, 9] {
        with(&target, (content(json!({})), priority), LONG, async |message| driver.send(message).await).await;
    }
    let wish = json!({"urgency": "high", "topic": "news", "ttl_s": 0});
    with(&target, (content(wish), 0), LONG, async |message| driver.send(message).await).await;
    let seen = |name: &str| -> Vec<String> {
        server.requests().iter().map(|request| request.header(name).unwrap_or_default().to_owned()).collect()
    };
    assert_eq!(seen("urgency"), ["very-low", "low", "normal", "high", "high", "high"]);
    assert_eq!(seen("ttl"), ["86400", "86400", "86400", "86400", "86400", "0"]);
    let topics = seen("topic");
    assert!(topics[..5].iter().all(|topic| *topic == topics[0]) && topics[0].len() == 32, "{topics:?}");
    assert_eq!(topics[5], "news");
    let bodies: Vec<Vec<u8>> = server.requests().into_iter().map(|request| request.body).collect();
    assert_ne!(bodies[3], bodies[4], "a key encrypts one message");
}

#[tokio::test]
async fn every_answer_of_a_push_service_has_a_meaning() {
    let (server, next) = scripted();
    let driver = provider();
    let target = browser(&server.url("/p")).target;
    for (reply, wanted, class) in [
        (Reply::status(201), "sent", None),
        (Reply::status(202), "sent", None),
        (Reply::status(201).with_header("content-type", "text/html").with_body("<html>"), "sent", None),
        (Reply::status(201).with_body("x".repeat(100_000)), "sent", None),
        (Reply::status(400), "rejected", Some("invalid_content")),
        (Reply::status(401), "config", Some("auth_failed")),
        (Reply::status(403).with_body(r#"{"reason":"BadJwtToken"}"#), "config", Some("forbidden")),
        (Reply::status(404), "rejected", Some("invalid_address")),
        (Reply::status(410), "rejected", Some("invalid_address")),
        (Reply::status(413), "rejected", Some("invalid_content")),
        (Reply::status(429).with_header("retry-after", "30"), "deferred", Some("rate_limited")),
        (Reply::status(500), "unclear", Some("server_error")),
        (Reply::status(503), "deferred", Some("server_error")),
        (Reply::RedirectTo("http://127.0.0.1:1/".into()), "rejected", Some("invalid_address")),
        (Reply::Close, "unclear", Some("network")),
    ] {
        *next.lock().unwrap() = reply.clone();
        let report = send(&*driver, &target, content(json!({}))).await;
        assert_eq!(
            (outcome(&report), report.class().map(|class| class.name())),
            (wanted, class),
            "{reply:?}: {report:?}"
        );
        let after = (report.outcome.code() == Some("http_429")).then_some(Duration::from_secs(30));
        assert_eq!(report.after, after, "{reply:?}");
        let is_gone = ["http_404", "http_410"].contains(&report.outcome.code().unwrap_or_default());
        assert_eq!(report.suppress.as_deref(), is_gone.then_some("the subscription has ended"), "{reply:?}");
    }
    *next.lock().unwrap() = Reply::status(201).slow();
    let slow =
        with(&target, (content(json!({})), 5), Duration::from_millis(200), async |message| driver.send(message).await);
    let report = slow.await;
    assert_eq!((outcome(&report), report.outcome.code()), ("unclear", Some("timeout")), "{report:?}");
    server.release();
}

/// Browsers that subscribed with an earlier key of the application.
#[tokio::test]
async fn a_subscription_of_another_key_is_refused_alone() {
    let (server, next) = scripted();
    let driver = provider();
    let target = browser(&server.url("/push/secret-endpoint")).target;
    let google = "the VAPID credentials in the authorization header do not correspond to the credentials used to create \
                  the subscriptions.";
    let mozilla = r#"{"code":401,"errno":109,"error":"Unauthorized","message":"VAPID public key mismatch"}"#;
    for (status, body) in [(403, google), (403, ""), (401, mozilla)] {
        *next.lock().unwrap() = Reply::status(status).with_body(body);
        let report = send(&*driver, &target, content(json!({}))).await;
        let code = format!("http_{status}");
        assert_eq!((outcome(&report), report.outcome.code()), ("rejected", Some(code.as_str())), "{report:?}");
        assert_eq!((report.class().unwrap().name(), report.only_delivery), ("config", true), "{report:?}");
        let detail = report.evidence.detail.unwrap();
        let wanted = "the subscription does not belong to the provider's key; the browser has to subscribe anew";
        assert_eq!(detail, format!("the push service answered {status}: {wanted}"));
    }
}

#[tokio::test]
async fn a_message_that_is_too_long_is_refused_before_it_is_sent() {
    let (server, _) = scripted();
    let driver = provider();
    let empty = json!({"id": "0198c6d5-0000-7000-8000-000000000001_1", "body": ""}).to_string().len();
    for (more, wanted) in [(0, "sent"), (1, "rejected")] {
        let browser = browser(&server.url("/p"));
        let text = Content { text: Some("x".repeat(3993 - empty + more)), ..Content::default() };
        let report = send(&*driver, &browser.target, text).await;
        assert_eq!(outcome(&report), wanted, "{report:?}");
        match wanted {
            "sent" => assert_eq!(server.requests()[0].body.len(), 4096),
            _ => {
                let detail = report.evidence.detail.clone().unwrap();
                assert_eq!(
                    detail,
                    "the message has 3994 bytes as JSON; push services take 3993, which are 4096 when encrypted"
                );
                assert_eq!(report.class().unwrap().name(), "invalid_content");
            }
        }
    }
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn an_endpoint_in_a_private_network_is_not_called() {
    let (server, _) = scripted();
    let (private, public) = pair();
    let settings = json!({"subject": "https://hotel.example/contact", "public_key": public});
    let egress = Egress::new(&EgressSettings::default()).unwrap();
    let driver = built(&settings, Some(&private), Guarantee::AtLeastOnce, &egress).unwrap();
    for endpoint in [server.url("/p"), "https://169.254.169.254/latest".into(), "http://[::1]/p".into()] {
        let report = send(&*driver, &browser(&endpoint).target, content(json!({}))).await;
        assert_eq!((outcome(&report), report.outcome.code()), ("rejected", Some("blocked_address")), "{report:?}");
    }
    assert_eq!(server.requests().len(), 0);
}

#[tokio::test]
async fn a_wrong_address_or_wish_is_refused_before_it_is_sent() {
    let (server, _) = scripted();
    let driver = provider();
    let good = browser(&server.url("/p")).target;
    let short = good.replace(AUTH, "AAAA");
    let point =
        json!({"endpoint": server.url("/p"), "keys": {"p256dh": URL_SAFE_NO_PAD.encode([4; 65]), "auth": AUTH}});
    let ftp = good.replace("http://", "ftp://");
    for target in ["", "https://push.example/x", "{}", &short, &point.to_string(), &ftp] {
        let report = send(&*driver, target, content(json!({}))).await;
        assert_eq!(
            (outcome(&report), report.outcome.code()),
            ("rejected", Some("bad_address")),
            "{target}: {report:?}"
        );
        assert_eq!(report.class().unwrap().name(), "invalid_address", "{target}");
    }
    for (data, field) in [
        (json!({"urgency": "now"}), "data.web_push.urgency: allowed are very-low, low, normal, high"),
        (json!({"topic": "a b"}), "data.web_push.topic: must be 1 to 32 letters"),
        (json!({"topic": "x".repeat(33)}), "data.web_push.topic: must be 1 to 32 letters"),
        (json!({"ttl_s": -1}), "data.web_push: invalid value"),
    ] {
        let report = send(&*driver, &good, content(data)).await;
        let detail = report.evidence.detail.clone().unwrap();
        assert!(outcome(&report) == "rejected" && detail.starts_with(field), "{report:?}");
    }
    assert_eq!(server.requests().len(), 0);
}

#[tokio::test]
async fn each_push_service_is_a_host_of_its_own() {
    let driver = provider();
    assert!(driver.isolates_hosts());
    let host = |endpoint: &str| driver.host_of(&browser(endpoint).target);
    assert_eq!(host("https://FCM.googleapis.example/fcm/send/x").as_deref(), Some("fcm.googleapis.example:443"));
    assert_eq!(host("https://web.push.example:8443/x").as_deref(), Some("web.push.example:8443"));
    assert_eq!(driver.host_of("no subscription"), None);
}

#[tokio::test]
async fn nothing_secret_is_kept_of_an_echo_or_shown() {
    let (private, public) = pair();
    let echoed = private.clone();
    let server = HttpServer::start(move |request: &Request| {
        let values: Vec<&str> = request.headers.iter().map(|(_, value)| value.as_str()).collect();
        Reply::status(400).with_body(format!("{} {} {echoed} {AUTH}", request.path, values.join(" ")))
    });
    let settings = json!({"subject": "mailto:desk@hotel.example", "public_key": public});
    let driver = built(&settings, Some(&private), Guarantee::AtLeastOnce, &loopback()).unwrap();
    let target = browser(&server.url("/push/secret-endpoint")).target;
    let kept = format!("{:?}", send(&*driver, &target, content(json!({}))).await.evidence);
    let token = server.requests()[0].header("authorization").unwrap()[8..60].to_owned();
    for secret in ["secret-endpoint", AUTH, &private, &token] {
        assert!(!kept.contains(secret), "{secret} is in {kept}");
    }
    let message = (content(json!({"icon": "/i.png"})), 5);
    let shown = with(&target, message, LONG, async |message| driver.shown_request(&message)).await.unwrap();
    assert!(shown.contains("authorization: [redacted]") && shown.contains(r#""title":"Booked""#), "{shown}");
    assert!(!shown.contains(&private) && !shown.contains("vapid t="), "{shown}");
}

#[test]
fn a_provider_needs_a_pair_and_a_subject() {
    let ((private, public), (other, _)) = (pair(), pair());
    let subject = json!("mailto:desk@hotel.example");
    let keys = |public: &str| json!({"subject": subject, "public_key": public});
    let least = Guarantee::AtLeastOnce;
    for (settings, private, guarantee, wanted) in [
        (keys(&public), Some(&private), least, ""),
        (keys(&format!("{public}=")), Some(&private), least, ""),
        (keys(&public), Some(&private), Guarantee::AtMostOnce, ""),
        (keys(&public), Some(&private), Guarantee::Idempotent, "guarantee: idempotent is not possible"),
        (keys(&public), Some(&other), least, "settings.public_key: is not the public half"),
        (keys("x"), Some(&private), least, "settings.public_key: is not the public half"),
        (keys(&public), None, least, "secret: settings.public_key and the secret \"private_key\" belong together"),
        (json!({"subject": subject}), Some(&private), least, "secret: settings.public_key and the secret"),
        (json!({"subject": "desk@hotel.example", "public_key": public}), Some(&private), least, "settings.subject: is"),
        (json!({"subject": "http://a.example", "public_key": public}), Some(&private), least, "settings.subject: is"),
        (json!({"public_key": public}), Some(&private), least, "settings: missing field `subject`"),
        (
            json!({"subject": subject, "public_key": public, "ttl_s": 2_419_201}),
            Some(&private),
            least,
            "settings.ttl_s: is 2419201",
        ),
    ] {
        let problem = built(&settings, private.map(String::as_str), guarantee, &loopback()).err().unwrap_or_default();
        assert!(problem.starts_with(wanted) && problem.is_empty() == wanted.is_empty(), "{settings}: {problem}");
        assert!(!problem.contains(private.map_or("\0", |private| private.as_str())), "{problem}");
    }
}
