//! D1, D2, D5: providers over the API.

use postcommit_testkit::{HttpServer, Reply};
use serde_json::{Value, json};

use super::app::{App, items, refused, text};

fn by(provider: &str, address: &str) -> Value {
    json!({"event_type": "a", "recipients": [{"email": "guest@example.com"}, {"provider": provider, "address": address}]})
}

on_both! {
    fn d1_an_unknown_or_disabled_provider_is_refused_when_enqueueing(kind) {
        let app = App::at_rest(kind);
        let client = app.client("default", &["enqueue", "edit"]);
        app.create_capture("default", "desk", "nothing");
        let enqueue = |provider: &str| client.post("/v1/notifications", &by(provider, "x"));
        let problem = refused(enqueue("nobody"), 422, Some("recipients[1].provider"));
        assert!(text(&problem, "detail").contains("\"nobody\" is not configured"), "{problem}");
        let _ = enqueue("desk").expect(202);
        let enable = |enabled: bool| client.send("PATCH", "/v1/providers/desk", Some(json!({"enabled": enabled}).to_string().as_bytes())).expect(200).json();
        assert_eq!(enable(false)["enabled"], false);
        let problem = refused(enqueue("desk"), 422, Some("recipients[1].provider"));
        assert!(text(&problem, "detail").contains("\"desk\" is disabled"), "{problem}");
        assert_eq!(enable(true)["enabled"], true);
        let _ = enqueue("desk").expect(202);
        // Another tenant's is not known.
        app.create_tenant("north");
        refused(app.client("north", &["enqueue"]).post("/v1/notifications", &by("desk", "x")), 422, Some("recipients[1].provider"));
    }

    fn d1_of_many_who_make_the_same_provider_at_once_one_does(kind) {
        let app = App::at_rest(kind);
        let client = app.client("default", &["edit"]);
        let make = || client.post("/v1/providers", &json!({"name": "desk", "driver": "capture"})).status;
        let mut answers: Vec<u16> = std::thread::scope(|scope| {
            let all: Vec<_> = (0..8).map(|_| scope.spawn(make)).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        answers.sort_unstable();
        assert_eq!(answers, [[201].as_slice(), &[409; 7]].concat());
    }

    fn d1_providers_are_described_changed_and_removed_and_keep_their_secrets(kind) {
        let app = App::at_rest(kind);
        let client = app.client("default", &["edit", "operate"]);
        let secret = format!("whsec_{}", "QUJD".repeat(8));
        let draft = json!({"name": "partner", "driver": "webhook", "settings": {"url": "https://example.com/in"}, "secrets": {"secret": secret}});
        let made = client.post("/v1/providers", &draft).expect(201);
        assert!(!made.text().contains(&secret) && made.json()["secrets"] == true, "{}", made.text());
        assert_eq!(refused(client.post("/v1/providers", &draft), 409, Some("name"))["type"], "urn:postcommit:problem:state-conflict");
        for (change, field) in [
            (json!({"driver": "pigeon"}), "driver"),
            (json!({"name": "a b"}), "name"),
            (json!({"timeout_ms": 1}), "timeout_ms"),
            (json!({"settings": {"url": "http://169.254.169.254/"}}), "settings.url"),
            (json!({"guarantee": "maybe"}), "guarantee"),
            (json!({"driver": "capture", "settings": {"journal": "/tmp/any"}}), "settings.journal"),
            (json!({"settings": {"headers": {"x": "y".repeat(70_000)}}}), "settings"),
        ] {
            let mut other = json!({"name": "other", "driver": "webhook"});
            other.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
            refused(client.post("/v1/providers", &other), 422, Some(field));
        }
        refused(client.send("PATCH", "/v1/providers/partner", Some(br#"{"settings": {"journal": "/tmp/any"}}"#)), 422, Some("settings.journal"));
        // A webhook that brings no secret is given one, which is shown once.
        let made = client.post("/v1/providers", &json!({"name": "own", "driver": "webhook"})).expect(201).json();
        assert!(text(&made, "signing_secret").starts_with("whsec_"), "{made}");
        let changed = client.send("PATCH", "/v1/providers/own", Some(br#"{"concurrency": 7}"#)).expect(200).json();
        assert_eq!((&changed["concurrency"], &changed["secrets"]), (&json!(7), &json!(true)));
        assert_eq!(client.post("/v1/providers/own/pause", &json!({"reason": "asleep"})).expect(200).json()["paused"], "asleep");
        assert_eq!(client.post("/v1/providers/own/resume", &json!({})).expect(200).json()["paused"], Value::Null);
        let _ = client.send("DELETE", "/v1/providers/own", None).expect(204);
        refused(client.get("/v1/providers/own"), 404, None);
        let shown = client.get("/v1/providers").expect(200).text();
        assert!(shown.contains("partner") && !shown.contains(&secret) && !shown.contains("whsec_"), "{shown}");
    }

    fn d2_a_recipient_names_its_provider_and_code_and_message_are_kept_apart(kind) {
        let app = App::at_rest(kind);
        let receiver = HttpServer::start(|_| Reply::status(422).with_body("no such room"));
        let client = app.client("default", &["enqueue", "edit"]);
        let draft = json!({"name": "front-desk", "driver": "webhook", "is_default": false, "settings": {"url": receiver.url("/in")}});
        let _ = client.post("/v1/providers", &draft).expect(201);
        let id = app.enqueue(&client, &json!({"event_type": "a", "recipients": [{"provider": "front-desk", "address": "room-7"}]}));
        assert_eq!(app.pass()["parked"], 1);
        let delivery = items(client.get(&format!("/v1/deliveries?notification={id}"))).remove(0);
        assert_eq!((&delivery["provider"], &delivery["state"], &delivery["error_code"]), (&json!("front-desk"), &json!("parked"), &json!("http_422")));
        let message = text(&delivery, "last_error");
        assert!(!message.is_empty() && message != "http_422", "{delivery}");
        assert_eq!(receiver.requests()[0].path, "/in");
        assert_eq!(items(client.get("/v1/deliveries?provider=front-desk&error_code=http_422")).len(), 1);
        assert_eq!(items(client.get("/v1/deliveries?provider=hooks")).len(), 0);
    }

    fn d5_a_provider_is_tried_out_and_the_trial_is_in_the_log(kind) {
        let app = App::at_rest(kind);
        let receiver = HttpServer::start(|request| Reply::status(if request.path == "/no" { 403 } else { 200 }));
        let client = app.client("default", &["operate"]);
        let test = |address: &str| client.post("/v1/providers/hooks/test", &json!({"address": address, "text": "is this on?"}));
        let tried = test(&receiver.url("/yes?token=hush-hush")).expect(200).json();
        assert_eq!((&tried["outcome"], &tried["code"]), (&json!("sent"), &Value::Null), "{tried}");
        assert!(tried["latency_ms"].is_u64() && receiver.requests()[0].text().contains("is this on?"), "{tried}");
        let tried = test(&receiver.url("/no")).expect(200).json();
        assert_eq!((&tried["outcome"], &tried["code"]), (&json!("rejected"), &json!("http_403")), "{tried}");
        refused(client.post("/v1/providers/nobody/test", &json!({"address": "x"})), 404, None);
        refused(client.post("/v1/providers/hooks/test", &json!({"address": ""})), 422, Some("address"));
        refused(client.post("/v1/providers/hooks/test", &json!({"address": "x", "text": "x".repeat(1001)})), 422, Some("text"));
        let log = app.ops().get("/v1/audit?action=provider.test").expect(200);
        let entries = items(log.clone());
        assert_eq!(entries.iter().map(|entry| text(&entry["details"], "outcome")).collect::<Vec<_>>(), ["rejected", "sent"]);
        assert!(entries.iter().all(|entry| entry["subject"] == "hooks" && text(entry, "actor").starts_with("key:")), "{entries:?}");
        assert!(!log.text().contains("hush-hush"), "{}", log.text());
        assert_eq!(app.installation.count("SELECT count(*) FROM postcommit.notification"), 0, "a trial is no notification");
    }
}
