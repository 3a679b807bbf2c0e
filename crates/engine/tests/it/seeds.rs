//! B1, C6: the nine services of the five teams, through the whole engine. Each example of the channel crate is enqueued,
//! and what the service gets is compared; each answer of the service is judged and recorded.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use postcommit_channel::driver;
use postcommit_channel::model::Guarantee;
use postcommit_testkit::http::Request;
use postcommit_testkit::{HttpServer, Reply};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::recipes::{enqueue_to, example, provider_of};
use crate::world::World;

/// The providers of the five teams.
const SEEDS: [&str; 9] =
    ["home_assistant", "interakt", "msg91", "postal", "slack", "slack_api", "teams", "twilio", "whatsapp_cloud"];
/// Headers that every request has and that no example repeats.
const EVERYWHERE: [&str; 5] = ["host", "content-length", "user-agent", "traceparent", "accept"];
/// The key of the deliveries in the examples, where it is within base64.
const KEY: &str = "0198c6d5-0000-7000-8000-000000000001_1";

/// The items of a list of the example.
fn list(example: &toml::Table, name: &str) -> Vec<Value> {
    let items = example[name].as_array().unwrap();
    items.iter().map(|item| serde_json::to_value(item).unwrap()).collect()
}

/// The scripted answer of an example, with the first of its codes.
fn reply(answer: &Value) -> Reply {
    let code = answer["codes"][0].as_str().unwrap_or_default();
    let status = u16::try_from(answer["status"].as_u64().unwrap()).unwrap();
    let body = answer["body"].as_str().unwrap_or_default().replace("{code}", code);
    let headers = answer["headers"].as_object().into_iter().flatten();
    headers.fold(Reply::status(status).with_body(body), |reply, (name, value)| {
        reply.with_header(name, value.as_str().unwrap())
    })
}

/// The UUID of a key, as decision 0038 makes it: the first half of its SHA-256.
fn uuid_of(key: &str) -> String {
    let half: [u8; 16] = Sha256::digest(key)[..16].try_into().unwrap();
    uuid::Builder::from_random_bytes(half).into_uuid().to_string()
}

/// The mail in the request to Postal, without its date and with the key of the examples.
fn mail(body: &Value, key: &str) -> String {
    let mail = String::from_utf8(STANDARD.decode(body["data"].as_str().unwrap()).unwrap()).unwrap();
    let undated: Vec<&str> = mail.split("\r\n").filter(|line| !line.starts_with("Date: ")).collect();
    undated.join("\r\n").replace(key, KEY)
}

fn compare(name: &str, wanted: &Value, request: &Request, key: &str) {
    let filled = |text: &str| text.replace("{key_uuid}", &uuid_of(key)).replace("{key}", key);
    let line = format!("{} {}", request.method, request.path);
    assert_eq!(line, filled(wanted["line"].as_str().unwrap()), "{name}");
    let headers: BTreeMap<String, String> =
        request.headers.iter().filter(|(header, _)| !EVERYWHERE.contains(&header.as_str())).cloned().collect();
    let mut wanted_headers: BTreeMap<String, String> = wanted["headers"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(header, value)| (header.clone(), filled(value.as_str().unwrap())))
        .collect();
    wanted_headers.entry("content-type".into()).or_insert_with(|| "application/json".into());
    assert_eq!(headers, wanted_headers, "{name}");
    match (&wanted["json"], &wanted["body"]) {
        (Value::Null, body) => assert_eq!(request.text(), filled(body.as_str().unwrap()), "{name}"),
        (json, _) => {
            let text = json.as_str().map_or_else(|| json.to_string(), str::to_owned);
            let (mut wanted, mut got): (Value, _) = (serde_json::from_str(&filled(&text)).unwrap(), request.json());
            if name.starts_with("postal") {
                assert_eq!(mail(&got, key), mail(&wanted, key), "{name}");
                (wanted["data"], got["data"]) = (Value::Null, Value::Null);
            }
            assert_eq!(got, wanted, "{name}");
        }
    }
}

/// Enqueues the message of a case. Where it has HTML, a template makes its content, since nothing else makes HTML.
async fn enqueue_case(world: &World, seed: &str, i: usize, message: &Value) -> Uuid {
    let event_type = format!("{seed}.case{i}");
    if !message["html"].is_null() {
        let channel = driver::kind(seed).unwrap().channel.clone();
        let parts = json!({"event_type": event_type, "subject": message["subject"], "text": message["text"],
            "html": message["html"], "data": message["data"]});
        world.write_template(&event_type.replace('.', "-"), &channel, parts).await;
    }
    enqueue_to(world, seed, seed, &event_type, message).await
}

on_both! {
    async fn b1_c6_an_enqueued_message_becomes_the_request_of_each_service(world) {
        for seed in SEEDS {
            let sent = {
                let answers = list(&example(seed, ""), "answer");
                answers.into_iter().find(|answer| answer["outcome"] == "sent").unwrap()
            };
            let success = reply(&sent);
            let server = HttpServer::start(move |_| success.clone());
            let example = example(seed, &server.url(""));
            provider_of(&world, seed, seed, &example).await;
            for (i, case) in list(&example, "case").iter().enumerate() {
                let (name, message) = (format!("{seed}: {}", case["name"]), &case["message"]);
                // The layout of mails and the link to unsubscribe are not in the example: `a_mail_by_a_template…`.
                if seed == "postal" && !message["html"].is_null() {
                    continue;
                }
                let before = server.requests().len();
                let id = enqueue_case(&world, seed, i, message).await;
                world.pass().await;
                let requests = server.requests();
                assert_eq!(requests.len(), before + 1, "{name}: {:?}", world.attempts(id).await);
                let key = world.key(id, 1).provider_key();
                compare(&name, &case["request"], &requests[before], &key);
                let attempts = world.attempts(id).await;
                assert_eq!((world.delivery(id).await.state.as_str(), attempts.len()), ("sent", 1), "{name}: {attempts:?}");
                if let Some(wanted) = sent["ref"].as_str() {
                    assert_eq!(attempts[0].provider_ref.as_deref(), Some(wanted), "{name}");
                }
            }
        }
    }

    async fn b1_a_mail_by_a_template_reaches_postal_with_its_text_and_its_html(world) {
        let server = HttpServer::start(|_| Reply::json(200, json!({"status": "success", "data": {"message_id": "m-1"}})));
        let example = example("postal", &server.url(""));
        provider_of(&world, "postal", "postal", &example).await;
        let case = list(&example, "case").into_iter().find(|case| !case["message"]["html"].is_null()).unwrap();
        let id = enqueue_case(&world, "postal", 0, &case["message"]).await;
        world.pass().await;
        assert_eq!(world.delivery(id).await.state, "sent", "{:?}", world.attempts(id).await);
        let key = world.key(id, 1).provider_key();
        let mail = mail(&server.requests()[0].json(), &key);
        assert!(mail.contains("\r\nContent-Type: multipart/alternative;") && mail.contains("See you"), "{mail}");
        assert!(mail.contains("Content-Type: text/html; charset=utf-8") && mail.contains(&format!("Message-ID: <{KEY}@")), "{mail}");
    }

    async fn c8_each_answer_of_each_service_is_judged_and_recorded(world) {
        let mut cases = vec![];
        for seed in SEEDS {
            cases.extend(list(&example(seed, ""), "answer").into_iter().map(|answer| (seed, answer)));
        }
        let replies: Vec<Reply> = cases.iter().map(|(_, answer)| reply(answer)).collect();
        // Each answer has a provider of its own, whose number is the beginning of the path.
        let server = HttpServer::start(move |request| {
            let i: usize = request.path.split('/').nth(1).and_then(|part| part.parse().ok()).unwrap();
            replies[i].clone()
        });
        let mut sent = vec![];
        for (i, (seed, _)) in cases.iter().enumerate() {
            let (example, name) = (example(seed, &server.url(&format!("/{i}"))), format!("p{i}"));
            provider_of(&world, seed, &name, &example).await;
            let mut message = list(&example, "case")[0]["message"].clone();
            message.as_object_mut().unwrap().remove("html");
            sent.push(enqueue_to(&world, seed, &name, "booking.confirmed", &message).await);
        }
        world.pass().await;
        for (i, (seed, answer)) in cases.iter().enumerate() {
            let (row, attempts) = (world.delivery(sent[i]).await, world.attempts(sent[i]).await);
            let name = format!("{seed}: {answer}: {row:?} {attempts:?}");
            let at_most_once = driver::kind(seed).unwrap().guarantee == Guarantee::AtMostOnce;
            let outcome = answer["outcome"].as_str().unwrap();
            let wanted = match outcome {
                "sent" => ("sent", None),
                "deferred" => ("retrying", None),
                "rejected" => ("parked", Some("rejected")),
                "config" => ("parked", Some("config")),
                "unclear" if at_most_once => ("parked", Some("outcome_unknown")),
                "unclear" => ("retrying", None),
                other => panic!("{other}"),
            };
            assert_eq!((row.state.as_str(), row.reason.as_deref()), wanted, "{name}");
            assert_eq!(attempts.len(), 1, "{name}");
            if let Some(class) = answer["class"].as_str() {
                assert_eq!(row.error_class.as_deref(), Some(class), "{name}");
            }
            if let Some(wanted) = answer["ref"].as_str() {
                assert_eq!(attempts[0].provider_ref.as_deref(), Some(wanted), "{name}");
            }
            let provider = world.store.provider(world.tenant, &format!("p{i}")).await.unwrap().unwrap();
            assert_eq!(provider.paused.is_some(), outcome == "config", "{name}: {:?}", provider.paused);
            // Meta asks to wait for this one recipient.
            let is_of_one = answer["code"] == "131056";
            let holds = outcome == "deferred" && !answer["after_s"].is_null() && !is_of_one;
            assert!(provider.held_until.is_some() || !holds, "{name}: {provider:?}");
            assert!(provider.held_until.is_none() || !is_of_one, "{name}: {provider:?}");
        }
    }

    async fn c8_an_answer_that_no_recipe_knows_is_repeated_as_often_as_the_policy_says(world) {
        let server = HttpServer::start(|_| Reply::ok().with_body("<html>Welcome</html>"));
        for (retries, attempts) in [(0, 1), (2, 3)] {
            let name = format!("slack{retries}");
            provider_of(&world, "slack", &name, &example("slack", &server.url(""))).await;
            let policy = json!({"name": "doubling", "unknown_retries": retries});
            let mut draft = world.store.provider(world.tenant, &name).await.unwrap().unwrap().draft;
            draft.policy = postcommit_channel::model::Policy::from_json(&policy).unwrap();
            world.update(&draft).await;
            let message = json!({"to": server.url("/hers"), "text": "Booked"});
            let id = enqueue_to(&world, "slack", &name, "booking.confirmed", &message).await;
            for _ in 0..4 {
                world.make_due().await;
                world.pass().await;
            }
            let row = world.delivery(id).await;
            let got = (row.state.as_str(), row.reason.as_deref(), row.error_code.as_deref(), world.attempts(id).await.len());
            assert_eq!(got, ("parked", Some("outcome_unknown"), Some("unexpected_answer"), attempts), "{row:?}");
        }
    }
}
