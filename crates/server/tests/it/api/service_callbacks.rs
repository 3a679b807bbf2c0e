//! B5: the callbacks of the five services among the seeds that report, through the door: each callback of the channel
//! crate's examples is about a delivery that is really there, and signed here as its service signs.

use std::collections::BTreeMap;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use postcommit_testkit::{HttpResponse, HttpServer, Reply};
use ring::{hmac, rand, rsa, signature};
use serde_json::{Value, json};

use super::app::{App, refused, text};

/// The services that report, of those with which the five teams begin.
const REPORTING: [&str; 5] = ["interakt", "msg91", "postal", "twilio", "whatsapp_cloud"];
/// The key of the delivery in the examples.
const KEY: &str = "0198c6d5-0000-7000-8000-000000000001_1";
const RSA_KEY: &str = include_str!("../../../../channel/tests/keys/rsa.pem");

fn rsa_key() -> rsa::KeyPair {
    let lines: String = RSA_KEY.lines().filter(|line| !line.starts_with('-')).collect();
    rsa::KeyPair::from_pkcs8(&STANDARD.decode(lines).unwrap()).unwrap()
}

/// The Message-ID of the mail that Postal gets, which it returns.
fn message_id(body: &Value) -> String {
    let mail = String::from_utf8(STANDARD.decode(body["data"].as_str().unwrap()).unwrap()).unwrap();
    let (_, after) = mail.split_once("Message-ID: <").unwrap();
    after.split_once('>').unwrap().0.to_owned()
}

/// A service that takes every message under an id of its own, and its provider.
struct Service {
    seed: &'static str,
    example: Value,
    url: String,
    _server: HttpServer,
}

impl Service {
    fn new(app: &App, seed: &'static str) -> Self {
        let server = HttpServer::start(move |request| {
            let id = format!("id{}", request.n);
            match seed {
                "interakt" => Reply::json(201, json!({"result": true, "id": id})),
                "msg91" => Reply::json(200, json!({"type": "success", "message": id})),
                "postal" => {
                    Reply::json(200, json!({"status": "success", "data": {"message_id": message_id(&request.json())}}))
                }
                "twilio" => Reply::json(201, json!({"sid": id})),
                _ => Reply::json(200, json!({"messages": [{"id": id}]})),
            }
        });
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../channel/tests/recipes/{seed}.toml"));
        let text_of_file = std::fs::read_to_string(path).unwrap().replace("{server}", &server.url(""));
        let mut example = serde_json::to_value(text_of_file.parse::<toml::Table>().unwrap()).unwrap();
        if seed == "postal" {
            let public = rsa::PublicKeyComponents::<Vec<u8>>::from(rsa_key().public());
            let key = json!({"n": URL_SAFE_NO_PAD.encode(public.n), "e": URL_SAFE_NO_PAD.encode(public.e)});
            example["settings"]["webhook_keys"] = json!({"keys": [key]});
        }
        let draft = json!({"name": seed, "driver": seed, "rate_per_s": null, "burst": null, "settings": example["settings"], "secrets": example["secrets"]});
        let client = app.client("default", &["admin"]);
        let _ = client.post("/v1/providers", &draft).expect(201);
        let shown = client.post(&format!("/v1/providers/{seed}/callback"), &json!({})).expect(200).json();
        assert_eq!(shown["trust"], if seed == "msg91" { "token_alone" } else { "verified" }, "{seed}: {shown}");
        Self { seed, example, url: text(&shown, "url"), _server: server }
    }

    /// Enqueues the first message of the example, to another address for each number.
    fn enqueue(&self, app: &App, n: usize) -> String {
        let message = &self.example["case"][0]["message"];
        let address = if self.seed == "postal" { format!("ann{n}@guest.example") } else { format!("+9198765{n:05}") };
        let channel = match self.seed {
            "postal" => "email",
            "twilio" | "msg91" => "sms",
            _ => "whatsapp",
        };
        let mut notification = json!({"event_type": "booking.confirmed", "title": "Booked", "body": message["text"],
            "recipients": [{"provider": self.seed, "address": address}]});
        if !message["data"].is_null() {
            notification["data"] = json!({channel: message["data"]});
        }
        app.enqueue(&app.client("default", &["admin"]), &notification)
    }

    /// The headers of a callback with this query and body, as the service signs it.
    fn signed(&self, query: &str, body: &str) -> BTreeMap<&'static str, String> {
        let secret = |name: &str| self.example["secrets"][name].as_str().unwrap().as_bytes().to_vec();
        let sha256 = |name: &str| {
            let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &secret(name)), body.as_bytes());
            tag.as_ref().iter().fold("sha256=".to_owned(), |text, byte| text + &format!("{byte:02x}"))
        };
        match self.seed {
            "interakt" => [("interakt-signature", sha256("webhook_secret"))].into(),
            "whatsapp_cloud" => [("x-hub-signature-256", sha256("app_secret"))].into(),
            "postal" => {
                let (key, mut signature) = (rsa_key(), vec![0; rsa_key().public().modulus_len()]);
                let random = rand::SystemRandom::new();
                key.sign(&signature::RSA_PKCS1_SHA256, &random, body.as_bytes(), &mut signature).unwrap();
                [("x-postal-signature-256", STANDARD.encode(signature))].into()
            }
            "twilio" => {
                let mut fields: Vec<(String, String)> = form_urlencoded::parse(body.as_bytes()).into_owned().collect();
                fields.sort();
                let fields: String = fields.into_iter().map(|(name, value)| name + &value).collect();
                let url = self.example["settings"]["status_callback"].as_str().unwrap();
                let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, &secret("auth_token"));
                let tag = hmac::sign(&key, format!("{url}?{query}{fields}").as_bytes());
                [("x-twilio-signature", STANDARD.encode(tag))].into()
            }
            _ => BTreeMap::new(),
        }
    }

    fn post(
        &self,
        app: &App,
        query: &str,
        body: &str,
        headers: &BTreeMap<&'static str, String>,
        kind: &str,
    ) -> HttpResponse {
        let url = if query.is_empty() { self.url.clone() } else { format!("{}?{query}", self.url) };
        let client = headers.iter().fold(app.nobody(), |client, (name, value)| client.with(name, value));
        client.send_as(kind, "POST", &url, body.as_bytes())
    }

    /// The callbacks of the example that report something, with the first of their codes.
    fn callbacks(&self) -> Vec<Value> {
        let all = self.example["callback"].as_array().unwrap().iter();
        let all = all.filter(|one| one["get"] != true && one["receipt"].is_array());
        all.map(|one| {
            let text = one.to_string().replace("{code}", one["codes"][0].as_str().unwrap_or_default());
            serde_json::from_str(&text).unwrap()
        })
        .collect()
    }
}

/// The state in which receipts leave a delivery that was sent.
fn state_after(receipts: &Value) -> &'static str {
    let happened: Vec<&str> =
        receipts.as_array().unwrap().iter().map(|one| one["happened"].as_str().unwrap()).collect();
    match happened.iter().any(|one| ["delivered", "complained"].contains(one)) {
        true => "delivered",
        false if happened.contains(&"failed") || happened.contains(&"bounced") => "parked",
        false => "sent",
    }
}

on_both! {
    fn b5_each_callback_of_each_service_moves_the_delivery_that_it_is_about(kind) {
        let app = App::at_rest(kind);
        let services = REPORTING.map(|seed| Service::new(&app, seed));
        let mut sent = vec![];
        for service in &services {
            sent.extend(service.callbacks().into_iter().enumerate().map(|(n, one)| (service, one, service.enqueue(&app, n))));
        }
        app.pass();
        let client = app.client("default", &["admin"]);
        for (service, one, notification) in sent {
            let path = format!("/v1/deliveries/{notification}.1");
            let delivery = client.get(&path).expect(200).json();
            let name = format!("{}: {}: {delivery}", service.seed, one["name"]);
            assert_eq!(delivery["state"], "sent", "{name}");
            let key = format!("{notification}_1");
            // The ids of messages in the examples of MSG91, Twilio and Meta.
            let reference = delivery["attempt_log"][0]["provider_ref"].as_str().unwrap();
            let filled = |field: &str| {
                let text = one[field].as_str().unwrap_or_default().replace(KEY, &key);
                ["33656a", "SM1", "wamid.A1"].iter().fold(text, |text, id| text.replace(id, reference))
            };
            // Each event of Postal has an id of its own.
            let (query, body) = (filled("query"), filled("body").replace("\"uuid\": \"u-", &format!("\"uuid\": \"{key}-")));
            let content_type = one["headers"]["content-type"].as_str().unwrap_or("application/json");
            if service.seed != "msg91" {
                let forged = service.signed(&query, "another body");
                refused(service.post(&app, &query, &body, &forged, content_type), 401, None);
                assert_eq!(client.get(&path).expect(200).json()["receipts"], json!([]), "{name}");
            }
            let proof = service.signed(&query, &body);
            let count = one["receipt"].as_array().unwrap().len();
            let taken = service.post(&app, &query, &body, &proof, content_type).expect(200).json();
            assert_eq!(taken, json!({"receipts": count}), "{name}");
            let again = service.post(&app, &query, &body, &proof, content_type).expect(200).json();
            assert_eq!(again, json!({"receipts": 0}), "{name}: repeated");
            let moved = client.get(&path).expect(200).json();
            assert_eq!(moved["state"], state_after(&one["receipt"]), "{name}: {moved}");
            assert_eq!(moved["receipts"].as_array().unwrap().len(), count, "{name}: {moved}");
            if let Some(class) = one["receipt"][count - 1]["class"].as_str() {
                assert_eq!(moved["error_class"], class, "{name}: {moved}");
            }
        }
    }
}
