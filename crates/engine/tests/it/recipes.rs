//! Providers that are recipes, through the whole engine: from the enqueueing statement to the request that the service
//! gets. The examples are those of the channel crate.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use postcommit_channel::driver;
use postcommit_channel::secret::{Secret, Secrets};
use postcommit_testkit::{HttpServer, Reply};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::world::World;

pub fn example(name: &str, server: &str) -> toml::Table {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../channel/tests/recipes");
    let text = std::fs::read_to_string(folder.join(format!("{name}.toml"))).unwrap();
    text.replace("{server}", server).parse().unwrap()
}

/// Creates a provider with the settings and secrets of the example. It has the name of its driver.
async fn provider(world: &World, name: &str, example: &toml::Table) {
    provider_of(world, name, name, example).await;
}

/// Creates a provider of a driver with the settings and secrets of the example.
pub async fn provider_of(world: &World, kind: &str, name: &str, example: &toml::Table) {
    let mut draft = driver::kind(kind).unwrap().draft(name);
    draft.settings = example.get("settings").map_or(json!({}), |settings| serde_json::to_value(settings).unwrap());
    let secret = |(name, text): (&String, &toml::Value)| (name.clone(), Secret::new(text.as_str().unwrap()));
    let secrets: Secrets =
        example.get("secrets").and_then(|s| s.as_table()).into_iter().flatten().map(secret).collect();
    draft.secrets = Some(world.keys.or_new().unwrap().seal(&secrets, world.tenant, name));
    draft.rate_per_s = None;
    draft.burst = None;
    world.provider(draft).await;
}

/// Enqueues the message of a case by SQL, to the provider that has the name of its driver.
async fn enqueue(world: &World, name: &str, message: &Value) -> Uuid {
    enqueue_to(world, name, name, "booking.confirmed", message).await
}

/// Enqueues the message of a case by SQL.
pub async fn enqueue_to(world: &World, kind: &str, name: &str, event_type: &str, message: &Value) -> Uuid {
    let channel = driver::kind(kind).unwrap().channel.clone();
    let mut more = json!({
        "title": message["subject"], "body": message["text"], "action_url": message["action_url"], "entity": "12345",
        "recipients": [{"provider": name, "address": message["to"]}],
    });
    if !message["data"].is_null() {
        more["data"] = json!({channel.as_ref(): message["data"]});
    }
    more.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    world.enqueue(event_type, more).await
}

on_both! {
    async fn b1_postal_gets_the_same_mail_as_a_mail_server_would(world) {
        let server = HttpServer::start(|_| Reply::json(200, json!({"status": "success", "data": {"message_id": "m-1"}})));
        provider(&world, "postal", &example("postal", &server.url(""))).await;
        let id = enqueue(&world, "postal", &json!({"to": "guest@example.com", "subject": "See you", "text": "Soon."})).await;
        world.pass().await;
        let body = server.requests()[0].json();
        assert_eq!(body["rcpt_to"], json!(["guest@example.com"]));
        let mail = STANDARD.decode(body["data"].as_str().unwrap()).unwrap();
        let mail = String::from_utf8(mail).unwrap();
        assert!(mail.contains("\r\nSubject: See you\r\n") && mail.ends_with("\r\n\r\nSoon.\r\n"), "{mail}");
        assert!(mail.contains(&format!("Message-ID: <{id}_1@")), "{mail}");
        assert_eq!(world.attempts(id).await[0].provider_ref.as_deref(), Some("m-1"));
    }

    async fn c7_a_phone_number_reaches_twilio_byte_for_byte(world) {
        let server = HttpServer::start(|_| Reply::json(201, json!({"sid": "SM1"})));
        provider(&world, "twilio", &example("twilio", &server.url(""))).await;
        let id = enqueue(&world, "twilio", &json!({"to": "+919876543210", "text": "Booked"})).await;
        world.pass().await;
        assert!(server.requests()[0].text().contains("To=%2B919876543210"), "{}", server.requests()[0].text());
        assert_eq!(world.delivery(id).await.state, "sent");
    }

    async fn b11_a_slack_message_has_the_text_and_a_button_to_the_action_url(world) {
        let server = HttpServer::start(|_| Reply::ok().with_body("ok"));
        provider(&world, "slack", &example("slack", &server.url(""))).await;
        let mut message = json!({"to": server.url("/hers"), "subject": "Booked & paid", "text": "See <b>you</b>"});
        enqueue(&world, "slack", &message).await;
        world.pass().await;
        // Slack asks for a second between two messages to one webhook.
        message["to"] = json!(server.url("/his"));
        message["action_url"] = json!("https://hotel.example/b/1?a=1&b=2");
        enqueue(&world, "slack", &message).await;
        world.pass().await;
        let section = json!({"type": "section", "text": {"type": "mrkdwn", "text": "See &lt;b&gt;you&lt;/b&gt;"}});
        let button = json!({"type": "button", "text": {"type": "plain_text", "text": "View"}, "url": message["action_url"]});
        let sent: Vec<Value> = server.requests().iter().map(|request| request.json()).collect();
        let text = "Booked &amp; paid";
        assert_eq!(sent[0], json!({"text": text, "blocks": [section]}));
        assert_eq!(sent[1], json!({"text": text, "blocks": [section, {"type": "actions", "elements": [button]}]}));
    }

    async fn b12_two_messages_to_one_recipient_keep_the_interval_of_the_service(world) {
        let server = HttpServer::start(|_| Reply::ok().with_body("ok"));
        provider(&world, "slack", &example("slack", &server.url(""))).await;
        let message = |to: &str| json!({"to": server.url(to), "text": "Booked"});
        let first = enqueue(&world, "slack", &message("/hers")).await;
        let second = enqueue(&world, "slack", &message("/hers")).await;
        enqueue(&world, "slack", &message("/his")).await;
        world.pass().await;
        let states = [world.delivery(first).await, world.delivery(second).await].map(|row| (row.state, row.attempts));
        let mut paths: Vec<String> = server.requests().iter().map(|request| request.path.clone()).collect();
        paths.sort();
        assert_eq!(paths, ["/hers", "/his"], "{states:?}");
        let waiting = states.iter().filter(|(state, attempts)| state == "pending" && *attempts == 0).count();
        assert_eq!(waiting, 1, "the other one waits and has used up no attempt: {states:?}");
        world.until("its turn has come", async || {
            world.pass().await;
            server.requests().len() == 3
        }).await;
    }

    async fn d7_a_delivery_without_a_service_is_parked_and_names_the_field(world) {
        let server = HttpServer::start(|_| Reply::ok());
        let mut example = example("home_assistant", &server.url(""));
        example["settings"].as_table_mut().unwrap().remove("service");
        provider(&world, "home_assistant", &example).await;
        let id = enqueue(&world, "home_assistant", &json!({"to": "house", "text": "Window open"})).await;
        world.pass().await;
        let row = world.delivery(id).await;
        assert_eq!((row.state.as_str(), row.error_code.as_deref()), ("parked", Some("missing_data")));
        let detail = world.attempts(id).await.remove(0).detail.unwrap();
        assert!(detail.starts_with("data.home_assistant.service: is missing"), "{detail}");
        // Channel data cannot operate the house.
        let unlock = json!({"to": "house", "text": "Window open", "data": {"service": "lock.unlock"}});
        let id = enqueue(&world, "home_assistant", &unlock).await;
        world.pass().await;
        assert_eq!(world.delivery(id).await.error_code.as_deref(), Some("missing_data"));
        assert_eq!(server.requests().len(), 0);
    }

    async fn b14_one_recipient_s_webhook_that_is_gone_pauses_nobody_else(world) {
        let server = HttpServer::start(|request| match request.path.as_str() {
            "/gone" => Reply::status(404).with_body("no_service"),
            "/busy" => Reply::status(429).with_header("retry-after", "3600"),
            _ => Reply::ok().with_body("ok"),
        });
        provider(&world, "slack", &example("slack", &server.url(""))).await;
        let mut ids = vec![];
        for path in ["/gone", "/busy", "/well"] {
            ids.push(enqueue(&world, "slack", &json!({"to": server.url(path), "text": "Booked"})).await);
            world.pass().await;
        }
        let provider = world.store.provider(world.tenant, "slack").await.unwrap().unwrap();
        assert_eq!((provider.paused, provider.held_until), (None, None));
        let mut states = vec![];
        for id in ids {
            states.push(world.delivery(id).await.state);
        }
        assert_eq!(states, ["parked", "retrying", "sent"]);
        // The provider's own webhook, on the other hand, is the account.
        let id = enqueue(&world, "slack", &json!({"to": "front-desk", "text": "Booked"})).await;
        world.pass().await;
        assert_eq!(world.delivery(id).await.state, "sent");
    }

    async fn unknown_channel_data_is_a_warning_of_the_attempt(world) {
        let server = HttpServer::start(|_| Reply::ok().with_body("ok"));
        provider(&world, "slack", &example("slack", &server.url(""))).await;
        let misspelt = json!({"to": "desk", "text": "Booked", "data": {"blokcs": [], "thread_ts": "1"}});
        let known = json!({"to": "desk", "text": "Booked", "data": {"thread_ts": "1"}});
        let warning = "warning: data.slack: unknown fields were not sent: \"blokcs\"";
        for (message, wanted) in [(misspelt, Some(warning)), (known, None)] {
            let id = enqueue(&world, "slack", &message).await;
            world.pass().await;
            let (row, attempt) = (world.delivery(id).await, world.attempts(id).await.remove(0));
            assert_eq!((row.state.as_str(), row.error_code), ("sent", None), "{message}");
            assert_eq!((attempt.outcome.as_str(), attempt.detail.as_deref()), ("sent", wanted));
        }
    }
}
