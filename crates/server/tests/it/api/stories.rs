//! The history of a notification, as its sender reads it.

use postcommit_testkit::{HttpServer, Reply};
use serde_json::{Value, json};

use super::app::{App, items, refused, text};

/// A notification to this path of the receiver.
fn hook(receiver: &HttpServer, path: &str) -> Value {
    json!({"event_type": "booking.confirmed", "recipients": [{"webhook": receiver.url(path)}]})
}

/// Whether a time is in UTC, as the contract says.
fn is_utc(time: &Value) -> bool {
    time.as_str().is_some_and(|time| time.ends_with('Z') && time.contains('T'))
}

on_both! {
    fn b5_sent_and_delivered_are_different_states(kind) {
        let app = App::start(kind);
        let receiver = HttpServer::start(|_| Reply::ok());
        let client = app.client("default", &["enqueue", "operate"]);
        let id = app.enqueue(&client, &hook(&receiver, "/x"));
        app.wait_for_state(&id, "sent");
        let (status, story) = (app.status(&id), app.story(&id));
        for told in [&status, &story, &story["deliveries"][0]] {
            assert!(is_utc(&told["sent_at"]) && is_utc(&told["last_attempt_at"]) && told["delivered_at"].is_null(), "{told}");
            assert_eq!(told["captured"], false);
        }
        let delivery = text(&story["deliveries"][0], "id");
        let done = client.post(&format!("/v1/deliveries/{delivery}/mark-delivered"), &json!({})).expect(200).json();
        assert_eq!(done, json!({"id": delivery, "state": "delivered"}));
        assert_eq!(app.status(&id)["state"], "delivered");
        let delivered = client.get(&format!("/v1/deliveries/{delivery}")).expect(200).json();
        assert!(text(&delivered, "delivered_at") >= text(&delivered, "sent_at"), "{delivered}");
        assert!(text(&delivered, "sent_at") >= text(&delivered, "last_attempt_at"), "{delivered}");
        assert_eq!((&delivered["sent_at"], &delivered["last_attempt_at"]), (&story["deliveries"][0]["sent_at"], &story["deliveries"][0]["last_attempt_at"]), "both stay");
        assert!(is_utc(&app.status(&id)["delivered_at"]));
        let listed = items(client.get("/v1/notifications")).remove(0);
        assert!(is_utc(&listed["sent_at"]) && is_utc(&listed["delivered_at"]) && is_utc(&listed["last_attempt_at"]), "{listed}");
        assert_eq!(refused(client.post(&format!("/v1/deliveries/{delivery}/mark-delivered"), &json!({})), 409, None)["type"], "urn:postcommit:problem:state-conflict");
        // An inbox is the destination itself, so its messages are delivered.
        let message = app.enqueue(&client, &json!({"event_type": "a", "title": "Hello", "recipients": [{"user": "u-7"}]}));
        app.wait_for_state(&message, "delivered");
        assert!(is_utc(&app.status(&message)["delivered_at"]));
        assert_eq!(receiver.requests().len(), 1, "saying that it arrived sends nothing");
    }

    fn b6_every_attempt_is_shown_with_its_evidence(kind) {
        let app = App::start(kind);
        let receiver = HttpServer::start(|request| match request.n {
            1 => Reply::status(503).with_header("x-request-id", "theirs-0").with_body(format!("busy with {}", request.path)),
            _ => Reply::status(200).with_header("x-request-id", "theirs-1").with_body("thanks"),
        });
        let client = app.client("default", &["enqueue", "read"]);
        let id = app.enqueue(&client, &hook(&receiver, "/secret-path?token=hush-hush"));
        app.wait_for_state(&id, "sent");
        let answer = client.get(&format!("/v1/notifications/{id}")).expect(200);
        let story = answer.json();
        let [first, second] = story["attempt_log"].as_array().unwrap().as_slice() else { panic!("{story}") };
        assert_eq!((&first["seq"], &first["provider"], &first["outcome"], &first["code"]), (&json!(1), &json!("hooks"), &json!("deferred"), &json!("http_503")));
        assert_eq!((&first["error_class"], &first["provider_ref"]), (&json!("server_error"), &json!("theirs-0")));
        assert!(first["detail"].is_string() && second["excerpt"] == "thanks", "{first} {second}");
        assert_eq!((&second["provider"], &second["error_class"], &second["provider_ref"]), (&json!("hooks"), &Value::Null, &json!("theirs-1")));
        assert_eq!((&second["seq"], &second["outcome"], &second["code"]), (&json!(2), &json!("sent"), &Value::Null));
        for attempt in [first, second] {
            assert!(is_utc(&attempt["at"]) && attempt["latency_ms"].is_u64() && attempt["delivery_id"] == story["deliveries"][0]["id"], "{attempt}");
        }
        assert!(text(first, "excerpt").starts_with("busy with"), "{first}");
        assert!(!answer.text().contains("secret-path") && !answer.text().contains("hush-hush"), "{}", answer.text());
        assert_eq!((&story["state"], &story["deliveries"][0]["state"]), (&json!("sent"), &json!("sent")));
        assert_eq!(story["deliveries"][0]["provider_ref"], "theirs-1");
        // The same attempts, read by the delivery's id.
        let delivery = text(&story["deliveries"][0], "id");
        let told = client.get(&format!("/v1/deliveries/{delivery}")).expect(200).json();
        assert_eq!(told["attempt_log"], story["attempt_log"]);
    }

    fn e3_the_status_of_one_notification(kind) {
        let app = App::start(kind);
        let receiver = HttpServer::start(|request| Reply::status(if request.n < 3 { 500 } else { 200 }));
        let client = app.client("default", &["enqueue", "read"]);
        let id = app.enqueue(&client, &hook(&receiver, "/x"));
        app.wait_for_state(&id, "sent");
        let status = client.get(&format!("/v1/notifications/{id}/status")).expect(200).json();
        assert_eq!((&status["id"], &status["state"], &status["retries"]), (&json!(id), &json!("sent"), &json!(2)), "{status}");
        assert!(is_utc(&status["enqueued_at"]) && is_utc(&status["sent_at"]) && is_utc(&status["last_attempt_at"]), "{status}");
        assert_eq!(status["delivered_at"], Value::Null, "the receiver took it; nobody knows that it arrived");
        let inbox = app.enqueue(&client, &json!({"event_type": "a", "title": "Hello", "recipients": [{"user": "u-7"}]}));
        app.wait_for_state(&inbox, "delivered");
        assert!(is_utc(&app.status(&inbox)["delivered_at"]));
        let late = app.enqueue(&client, &json!({"event_type": "a", "recipients": [{"webhook": receiver.url("/")}], "due_at": "2099-01-01T00:00:00Z"}));
        let status = app.status(&late);
        assert_eq!((&status["state"], &status["retries"], &status["delivered_at"], &status["last_error"]), (&json!("pending"), &json!(0), &Value::Null, &Value::Null));
        let refusing = HttpServer::start(|_| Reply::status(410));
        let parked = app.enqueue(&client, &hook(&refusing, "/x"));
        app.wait_for_state(&parked, "parked");
        assert!(app.status(&parked)["last_error"].is_string(), "{}", app.status(&parked));
        refused(client.get("/v1/notifications/00000000-0000-7000-8000-000000000000/status"), 404, None);
    }

    fn e13_provenance_is_shown_in_utc(kind) {
        let app = App::at_rest(kind);
        let client = app.client("default", &["enqueue", "read"]);
        let source = json!({"site": "goa", "instance": "kiosk-3", "script": "nightly.py", "rule": "r-7", "enqueued_at": "2026-03-15T15:00:00+05:30"});
        let id = app.enqueue(&client, &json!({"event_type": "a", "recipients": [{"email": "guest@example.com"}], "source": source}));
        let status = app.status(&id);
        let from = &status["source"];
        assert_eq!((&from["site"], &from["instance"], &from["script"], &from["rule"]), (&json!("goa"), &json!("kiosk-3"), &json!("nightly.py"), &json!("r-7")));
        assert_eq!((text(from, "enqueued_at"), text(&status, "enqueued_at")), ("2026-03-15T09:30:00Z".to_owned(), "2026-03-15T09:30:00Z".to_owned()));
        assert!(is_utc(&from["received_at"]), "{status}");
        assert_eq!(items(client.get("/v1/notifications?site=goa")).len(), 1);
        assert_eq!(items(client.get("/v1/notifications?site=berlin")).len(), 0);
    }

    fn c12_pending_deliveries_are_cancelled(kind) {
        let app = App::at_rest(kind);
        let client = app.client("default", &["enqueue", "operate"]);
        let of = |event: &str| app.enqueue(&client, &json!({"event_type": event, "entity": "booking-7", "recipients": [{"webhook": "http://127.0.0.1:9/"}], "due_at": "2099-01-01T00:00:00Z"}));
        let (one, reminder, other) = (of("a"), of("reminder"), of("b"));
        assert_eq!(client.post(&format!("/v1/notifications/{one}/cancel"), &json!({})).expect(200).json()["cancelled"], 1);
        assert_eq!(client.post(&format!("/v1/notifications/{one}/cancel"), &json!({})).expect(200).json()["cancelled"], 0);
        assert_eq!(client.post("/v1/entities/booking-7/cancel", &json!({"event_type": "reminder"})).expect(200).json()["cancelled"], 1);
        let states: Vec<Value> = [&one, &reminder, &other].map(|id| app.status(id)["state"].clone()).into();
        assert_eq!(states, ["cancelled", "cancelled", "pending"]);
        assert_eq!(items(client.get("/v1/entities/booking-7/deliveries")).len(), 3);
        let acts: Vec<Value> = app.story(&one)["acts"].as_array().unwrap().iter().map(|act| act["action"].clone()).collect();
        assert_eq!(acts, ["notification.cancel", "delivery.cancel"]);
    }
}
