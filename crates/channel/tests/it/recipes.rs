//! Every recipe that comes with the program sends the request that its file in `tests/recipes` describes, and reads each
//! answer as that file says. Then all of them meet the same troubles.

mod catalogue;
mod receivers;
mod rules;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use postcommit_channel::driver::{self, Driver, FailOn, Kind, Message, Parts, RawEvent, Recipe};
use postcommit_channel::egress::{Egress, EgressSettings};
use postcommit_channel::model::{Because, DeliveryKey, Guarantee, Outcome, Report};
use postcommit_channel::render::Content;
use postcommit_channel::secret::{Secret, Secrets};
use postcommit_channel::template::Payload;
use postcommit_testkit::http::{HttpServer, Reply, Request};
use serde::Deserialize;
use serde_json::value::to_raw_value;
use serde_json::{Value, json};

use crate::callbacks::CallbackExample;
use crate::event::booking;

/// The key of the service account in the examples. It belongs to no account.
pub(crate) const RSA_KEY: &str = include_str!("../keys/rsa.pem");

/// A stand-in for Google's token service.
static TOKENS: LazyLock<HttpServer> = LazyLock::new(|| {
    HttpServer::start(|_| Reply::json(200, json!({"access_token": "ya29.token", "expires_in": 3599})))
});

/// Headers that every request has and that no file repeats.
const EVERYWHERE: [&str; 5] = ["host", "content-length", "user-agent", "traceparent", "accept"];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Example {
    #[serde(default)]
    pub(crate) settings: toml::Table,
    #[serde(default)]
    pub(crate) secrets: BTreeMap<String, String>,
    pub(crate) case: Vec<Case>,
    pub(crate) answer: Vec<Answer>,
    #[serde(default)]
    pub(crate) callback: Vec<CallbackExample>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Case {
    name: String,
    pub(crate) message: Given,
    request: Wanted,
}

#[derive(Deserialize, Clone)]
#[serde(deny_unknown_fields)]
pub(crate) struct Given {
    pub(crate) to: String,
    pub(crate) subject: Option<String>,
    pub(crate) text: Option<String>,
    pub(crate) html: Option<String>,
    pub(crate) action_url: Option<String>,
    pub(crate) unsubscribe_url: Option<String>,
    pub(crate) data: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    line: String,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    body: Option<String>,
    json: Option<Value>,
}

#[derive(Debug, Deserialize, Clone)]
#[serde(deny_unknown_fields)]
pub(crate) struct Answer {
    status: u16,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) body: String,
    pub(crate) outcome: String,
    r#ref: Option<String>,
    pub(crate) class: Option<String>,
    code: Option<String>,
    after_s: Option<f64>,
    /// The reason for which the address is suppressed.
    suppress: Option<String>,
    /// The answer is repeated with each of these in place of `{code}`.
    #[serde(default)]
    codes: Vec<String>,
}

impl Answer {
    fn each(self) -> Vec<Self> {
        let with = |code: &String| Self {
            headers: self.headers.iter().map(|(name, text)| (name.clone(), text.replace("{code}", code))).collect(),
            body: self.body.replace("{code}", code),
            code: self.code.as_ref().map(|text| text.replace("{code}", code)),
            codes: vec![],
            ..self.clone()
        };
        if self.codes.is_empty() { vec![self] } else { self.codes.iter().map(with).collect() }
    }
}

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/recipes"))
}

pub(crate) fn kinds() -> Vec<Arc<Kind>> {
    let kinds = driver::names().into_iter().map(|name| driver::kind(&name).unwrap());
    kinds.filter(|kind| kind.recipe.is_some()).collect()
}

pub(crate) fn example(name: &str, server: &str) -> Example {
    let path = folder().join(format!("{name}.toml"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let text = text.replace("{server}", server).replace("{tokens}", &TOKENS.url("/token"));
    let text = text.replace("{service_account}", &service_account().to_string());
    let mut example: Example = toml::from_str(&text).unwrap_or_else(|e| panic!("{name}: {e}"));
    example.answer = example.answer.into_iter().flat_map(Answer::each).collect();
    example.callback = example.callback.into_iter().flat_map(CallbackExample::each).collect();
    example
}

pub(crate) fn service_account() -> Value {
    json!({
        "type": "service_account", "project_id": "hotel", "private_key_id": "k1", "private_key": RSA_KEY,
        "client_email": "push@hotel.iam.gserviceaccount.com",
    })
}

pub(crate) fn provider(kind: &Kind, example: &Example, guarantee: Guarantee) -> Box<dyn Driver> {
    let settings = EgressSettings { allow: vec!["127.0.0.0/8".parse().unwrap()], ..EgressSettings::default() };
    let egress = Egress::new(&settings).unwrap();
    let secrets: Secrets = example.secrets.iter().map(|(name, text)| (name.clone(), Secret::new(text))).collect();
    let settings = serde_json::to_value(&example.settings).unwrap();
    let parts = Parts {
        settings: &settings,
        secrets: &secrets,
        guarantee,
        egress: &egress,
        capture_fail_on: &FailOn::default(),
    };
    kind.build(&parts).unwrap_or_else(|problem| panic!("{}: {problem}", kind.name))
}

pub(crate) fn key() -> DeliveryKey {
    DeliveryKey { tenant: 1, notification: "0198c6d5-0000-7000-8000-000000000001".parse().unwrap(), n: 1 }
}

pub(crate) async fn send(driver: &dyn Driver, channel: &str, given: &Given, timeout: Duration) -> Report {
    with_message(channel, given, timeout, async |message| driver.send(message).await).await
}

/// Calls `act` with the message of an example.
pub(crate) async fn with_message<T>(
    channel: &str,
    given: &Given,
    timeout: Duration,
    act: impl AsyncFnOnce(Message<'_>) -> T,
) -> T {
    let payload = Payload::from(json!({"guestName": "Asha"}).to_string());
    let content = Content {
        subject: given.subject.clone(),
        text: given.text.clone(),
        html: given.html.clone(),
        action_url: given.action_url.clone(),
        unsubscribe_url: given.unsubscribe_url.clone(),
        data: given.data.as_ref().map(|data| to_raw_value(data).unwrap()),
    };
    let raw_event = RawEvent {
        id: key().notification,
        idempotency_key: "booking:12345:confirmed:1",
        entity: Some("12345"),
        ..booking(&payload)
    };
    let (key, target) = (key(), given.to.as_str());
    let message = Message { content, raw_event, key, channel, target, attempt: 1, timeout, traceparent: None };
    act(message).await
}

/// What a file calls the outcome.
pub(crate) fn outcome(report: &Report) -> &'static str {
    match &report.outcome {
        Outcome::Rejected { because: Because::Config, .. } => "config",
        Outcome::Rejected { because: Because::Unrecognised, .. } => "unrecognised",
        other => other.name(),
    }
}

/// A server whose answer can be changed, and the requests that it got.
pub(crate) fn scripted() -> (HttpServer, Arc<Mutex<Reply>>) {
    let reply = Arc::new(Mutex::new(Reply::ok()));
    let next = Arc::clone(&reply);
    (HttpServer::start(move |_| next.lock().unwrap().clone()), reply)
}

pub(crate) fn reply(answer: &Answer) -> Reply {
    let mut reply = Reply::status(answer.status).with_body(answer.body.clone());
    for (name, value) in &answer.headers {
        reply = reply.with_header(name, value.as_str());
    }
    reply
}

/// Puts the key of the delivery into a text of an example.
fn with_key(text: &str, uuid: &str) -> String {
    text.replace("{key_uuid}", uuid).replace("{key}", &key().provider_key())
}

fn compare(name: &str, wanted: &Wanted, request: &Request) {
    // The first half of the SHA-256 of the key, as a UUID.
    const UUID: &str = "1fe94def-9f3a-48ba-b4c4-0d8d0f0bb804";
    assert_eq!(format!("{} {}", request.method, request.path), with_key(&wanted.line, UUID), "{name}");
    let headers: BTreeMap<String, String> =
        request.headers.iter().filter(|(name, _)| !EVERYWHERE.contains(&name.as_str())).cloned().collect();
    let mut wanted_headers: BTreeMap<String, String> =
        wanted.headers.iter().map(|(name, value)| (name.clone(), with_key(value, UUID))).collect();
    if wanted.json.is_some() {
        wanted_headers.entry("content-type".into()).or_insert_with(|| "application/json".into());
    }
    for (name, value) in &mut wanted_headers {
        // The rest of the header is another one every second.
        if let (Some(start), Some(got)) = (value.strip_suffix("{any}"), headers.get(name))
            && got.starts_with(start)
        {
            value.clone_from(got);
        }
    }
    assert_eq!(headers, wanted_headers, "{name}");
    match (&wanted.json, &wanted.body) {
        (Some(json), _) => {
            let text = json.as_str().map_or_else(|| json.to_string(), str::to_owned);
            let wanted: Value = serde_json::from_str(&with_key(&text, UUID)).unwrap_or_else(|e| panic!("{name}: {e}"));
            let got: Value = serde_json::from_slice(&request.body).unwrap();
            assert_eq!(got, wanted, "{name}: got {got:#}");
        }
        (None, body) => {
            let body = with_key(body.as_deref().unwrap_or_default(), UUID);
            assert_eq!(String::from_utf8_lossy(&request.body), body, "{name}");
        }
    }
}

#[test]
fn every_recipe_has_its_example() {
    let named: BTreeSet<String> = kinds().iter().map(|kind| kind.name.clone().into_owned()).collect();
    let file = |entry: std::fs::DirEntry| entry.path().file_stem().unwrap().to_string_lossy().into_owned();
    let examples: BTreeSet<String> = std::fs::read_dir(folder()).unwrap().map(|entry| file(entry.unwrap())).collect();
    assert_eq!(named, examples);
}

#[tokio::test]
async fn e5_every_recipe_sends_the_request_that_the_facts_describe() {
    for kind in kinds() {
        let (server, _) = scripted();
        let example = example(&kind.name, &server.url(""));
        let driver = provider(&kind, &example, kind.guarantee);
        for (i, case) in example.case.iter().enumerate() {
            let name = format!("{}: {}", kind.name, case.name);
            let report = send(&*driver, &kind.channel, &case.message, Duration::from_secs(10)).await;
            let requests = server.requests();
            assert_eq!(requests.len(), i + 1, "{name}: {report:?}");
            compare(&name, &case.request, &requests[i]);
        }
        // A second attempt sends the same bytes.
        let first = example.case.len();
        send(&*driver, &kind.channel, &example.case[first - 1].message, Duration::from_secs(10)).await;
        let requests = server.requests();
        let of = |request: &Request| {
            let (mut headers, is_dated) = (request.headers.clone(), request.header("x-amz-date").is_some());
            headers.retain(|(name, _)| !(is_dated && ["x-amz-date", "authorization"].contains(&name.as_str())));
            (request.path.clone(), headers, request.body.clone())
        };
        assert_eq!(of(&requests[first]), of(&requests[first - 1]), "{}", kind.name);
    }
}

#[tokio::test]
async fn c8_every_recipe_reads_answers_as_the_facts_describe() {
    for kind in kinds() {
        let (server, next) = scripted();
        let example = example(&kind.name, &server.url(""));
        let driver = provider(&kind, &example, kind.guarantee);
        for (i, answer) in example.answer.iter().enumerate() {
            *next.lock().unwrap() = reply(answer);
            let report = send(&*driver, &kind.channel, &example.case[0].message, Duration::from_secs(10)).await;
            let name = format!("{}: answer {i}: {} {} gives {report:?}", kind.name, answer.status, answer.body);
            assert_eq!(outcome(&report), answer.outcome, "{name}");
            if let Some(wanted) = &answer.r#ref {
                assert_eq!(report.evidence.provider_ref.as_deref(), Some(with_key(wanted, "").as_str()), "{name}");
            }
            if let Some(class) = &answer.class {
                assert_eq!(report.class().map(|class| class.name()), Some(class.as_str()), "{name}");
            }
            if let Some(code) = &answer.code {
                assert_eq!(report.outcome.code(), Some(code.as_str()), "{name}");
            }
            assert_eq!(report.suppress.as_deref(), answer.suppress.as_deref(), "{name}");
            let after = report.after.map(|after| after.as_secs_f64());
            match answer.after_s {
                Some(wanted) => assert!(after.is_some_and(|after| (after - wanted).abs() < 5.0), "{name}"),
                None => assert_eq!(after, None, "{name}"),
            }
        }
    }
}

#[tokio::test]
async fn every_recipe_meets_the_same_troubles() {
    for kind in kinds() {
        let (server, next) = scripted();
        let example = example(&kind.name, &server.url(""));
        let driver = provider(&kind, &example, kind.guarantee);
        let given = &example.case[0].message;
        let success = example.answer.iter().find(|answer| answer.outcome == "sent").unwrap();
        for (trouble, wanted) in [
            (Reply::Close, "unclear"),
            (reply(success).with_header("content-type", "text/html").with_body("<html>Welcome</html>"), "unclear"),
            (reply(success).with_body("x".repeat(100_000)), "unclear"),
            (Reply::status(500), "unclear"),
            (Reply::status(503), if kind.guarantee == Guarantee::AtMostOnce { "unclear" } else { "deferred" }),
            (Reply::RedirectTo("http://127.0.0.1:1/".into()), "config"),
        ] {
            *next.lock().unwrap() = trouble.clone();
            let report = send(&*driver, &kind.channel, given, Duration::from_secs(10)).await;
            // A service whose success is a status alone cannot be told from another one by its body.
            let by_status = success.body.is_empty() && outcome(&report) == "sent";
            assert!(outcome(&report) == wanted || by_status, "{}: {trouble:?} gives {report:?}", kind.name);
        }
        *next.lock().unwrap() = reply(success).slow();
        let report = send(&*driver, &kind.channel, given, Duration::from_millis(200)).await;
        assert_eq!((outcome(&report), report.outcome.code()), ("unclear", Some("timeout")), "{}", kind.name);
        server.release();
    }
}

#[tokio::test]
async fn no_secret_and_no_address_is_kept_of_an_echo() {
    for kind in kinds() {
        let (server, next) = scripted();
        let example = example(&kind.name, &server.url(""));
        let driver = provider(&kind, &example, kind.guarantee);
        let given = &example.case[0].message;
        let digits: String = given.to.chars().filter(char::is_ascii_digit).collect();
        let mut echo: Vec<&str> = example.secrets.values().map(String::as_str).chain([given.to.as_str()]).collect();
        // Most services get a phone number without its plus sign.
        echo.extend(Some(digits.as_str()).filter(|digits| given.to.starts_with('+') && !digits.is_empty()));
        let success = example.answer.iter().find(|answer| answer.outcome == "sent").unwrap();
        let taken = match serde_json::from_str(&success.body) {
            Ok(Value::Object(mut body)) => {
                body.insert("echo".into(), json!(echo));
                Value::Object(body).to_string()
            }
            _ => success.body.clone(),
        };
        for reply in [Reply::json(400, json!({"echo": echo})), reply(success).with_body(taken)] {
            *next.lock().unwrap() = reply;
            let report = send(&*driver, &kind.channel, given, Duration::from_secs(10)).await;
            let kept = format!("{:?}", report.evidence);
            for text in &echo {
                assert!(!kept.contains(text), "{}: {text:?} is in {kept}", kind.name);
            }
        }
    }
}

/// A small recipe with more lines at its end.
pub(crate) fn small(more: &str) -> Result<Kind, String> {
    let text = "name = 'small'\ntitle = 'Small'\nchannel = 'small'\naddress = 'a word'\nguarantee = 'at_least_once'\n\
        because = 'it has no keys'\nsettings.base_url = { type = 'url', help = 'its address' }\n\
        request = { url = '{{ to if to | is_url else settings.base_url }}', json = { text = '{{ text }}' } }\n\
        success.when = \"status == 200 and text == 'ok'\"\n";
    Recipe::read(&format!("{text}{more}")).map(Recipe::into_kind)
}

pub(crate) fn word(to: &str) -> Given {
    Given {
        to: to.into(),
        subject: None,
        text: Some("Booked".into()),
        html: None,
        action_url: None,
        unsubscribe_url: None,
        data: None,
    }
}

#[tokio::test]
async fn at_most_once_does_not_repeat_what_a_failing_service_may_have_sent() {
    let (server, next) = scripted();
    let more =
        "[[error]]\nwhen = \"status == 502 or text == 'closed'\"\noutcome = 'deferred'\nclass = 'server_error'\n";
    let kind = small(more).unwrap();
    let settings = toml::Table::from_iter([("base_url".to_owned(), server.url("/own").into())]);
    let example = Example { settings, secrets: BTreeMap::new(), case: vec![], answer: vec![], callback: vec![] };
    let (most, least) = (Guarantee::AtMostOnce, Guarantee::AtLeastOnce);
    let wait = |status| Reply::status(status).with_header("retry-after", "9");
    for (guarantee, reply, wanted) in [
        (least, Reply::status(502), "deferred"),
        (most, Reply::status(502), "unclear"),
        (least, Reply::status(503), "deferred"),
        (most, Reply::status(503), "unclear"),
        (most, wait(503), "deferred"),
        (most, Reply::status(507), "unclear"),
        (most, wait(507), "deferred"),
        // The rule of the recipe says that nothing was done.
        (most, Reply::status(503).with_body("closed"), "deferred"),
    ] {
        *next.lock().unwrap() = reply;
        let report =
            send(&*provider(&kind, &example, guarantee), "small", &word("desk"), Duration::from_secs(10)).await;
        assert_eq!(outcome(&report), wanted, "{guarantee:?}");
    }
}

#[test]
fn fields_of_the_data_that_a_recipe_does_not_send_are_named() {
    let data = json!({"attachments": [], "chanel": "x"});
    for (name, wanted) in [("rocketchat", vec![]), ("matrix", vec![]), ("google_chat", vec!["attachments", "chanel"])] {
        let kind = driver::kind(name).unwrap();
        assert_eq!(kind.recipe.as_ref().unwrap().unknown_data(Some(&data)), wanted, "{name}");
    }
    let kind = driver::kind("twilio").unwrap();
    let data = json!({"media_url": [], "content_sid": "HX1", "mediaurl": []});
    assert_eq!(kind.recipe.as_ref().unwrap().unknown_data(Some(&data)), ["mediaurl"]);
}

#[test]
fn a_refused_secret_is_not_repeated() {
    for rule in ["choices = ['a', 'b']", "starts_with = ['xoxb-']", "type = 'url'", "type = 'email'"] {
        let kind = small(&format!("[secrets.token]\nhelp = 'the token'\n{rule}\n")).unwrap();
        let egress = Egress::new(&EgressSettings::default()).unwrap();
        let secrets = Secrets::from([("token".to_owned(), Secret::new("SUPERSECRETVALUE"))]);
        let (settings, guarantee) = (&json!({"base_url": "https://small.example"}), kind.guarantee);
        let parts =
            Parts { settings, secrets: &secrets, guarantee, egress: &egress, capture_fail_on: &FailOn::default() };
        let problem = kind.build(&parts).err().unwrap();
        assert!(problem.starts_with("secret token: ") && !problem.contains("SUPERSECRET"), "{problem}");
    }
}

#[test]
fn numbers_and_policies_out_of_range_are_refused_with_their_line() {
    for (more, wanted) in [
        ("rate_per_s = 99999999999999999999\n", "line 10: rate_per_s: is not a number that can be used"),
        ("rate_per_s = nan\n", "line 10: rate_per_s: is not a number that can be used"),
        ("policy = { name = 'fixed', interval_s = 0 }\n", "line 10: policy"),
        ("policy = 'never'\n", "line 10: policy"),
    ] {
        let problem = small(more).err().unwrap_or_default();
        assert!(problem.starts_with(wanted), "{more}: {problem}");
    }
    assert!(small("policy = 'marketplace'\n").is_ok());
}

#[tokio::test]
async fn one_address_is_one_recipient() {
    for (name, to) in [("mailgun", "a@x.example, b@y.example"), ("pushover", "u1,u2"), ("twilio", "+1,+2")] {
        let (server, _) = scripted();
        let (kind, example) = (driver::kind(name).unwrap(), example(name, &server.url("")));
        let (driver, given) = (provider(&kind, &example, kind.guarantee), word(to));
        let report = send(&*driver, &kind.channel, &given, Duration::from_secs(5)).await;
        assert_eq!((outcome(&report), server.requests().len()), ("rejected", 0), "{name}");
    }
}
