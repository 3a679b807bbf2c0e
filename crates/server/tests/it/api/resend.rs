//! Resending by hand.

use std::collections::HashSet;

use postcommit_testkit::{HttpServer, Reply};
use serde_json::{Value, json};

use super::app::{App, items, refused, text};
use crate::installation::wait_until;

/// A booking confirmation to a webhook and to a user's inbox. The number has more digits than a float.
fn confirmed(receiver: &HttpServer, entity: &str) -> Value {
    json!({"event_type": "booking.confirmed", "entity": entity, "title": "Confirmed", "payload": {"bookingId": 9_007_199_254_740_993_u64},
        "source": {"site": "north"}, "recipients": [{"webhook": receiver.url("/x")}, {"user": "u-7"}]})
}

on_both! {
    fn c11_a_resend_is_a_new_notification_beside_the_first(kind) {
        let app = App::start(kind);
        let receiver = HttpServer::start(|_| Reply::ok());
        let key = app.create_key("default", &["enqueue", "operate"]);
        let client = app.nobody().key(&key.token);
        let first = app.enqueue(&client, &confirmed(&receiver, "b:1"));
        app.wait_for_state(&first, "sent");
        let before = app.story(&first);

        let resent = client.post("/v1/entities/b:1/resend", &json!({"channel": "webhook"})).expect(202).json();
        let again = text(&resent, "id");
        app.wait_for_state(&again, "sent");

        assert_eq!(app.story(&first), before, "the first one is as it was");
        let requests = receiver.requests();
        let [one, two] = requests.as_slice() else { panic!("{} requests", requests.len()) };
        let (one, two): (Value, Value) = (serde_json::from_slice(&one.body).unwrap(), serde_json::from_slice(&two.body).unwrap());
        assert_eq!((&one["title"], &one["data"]), (&two["title"], &two["data"]));
        assert_eq!(two["data"]["bookingId"], json!(9_007_199_254_740_993_u64));
        assert_eq!(items(client.get("/v1/inbox/u-7")).len(), 1, "the other channel got nothing more");

        let story = app.story(&again);
        assert!(text(&story, "idempotency_key").starts_with("manual:b%3A1:webhook::"), "{story}");
        assert_eq!(story["source"], json!({"site": "north"}));
        let act = &story["acts"][0];
        assert_eq!((&act["action"], &act["details"]["of"], &act["details"]["channel"]), (&json!("entity.resend"), &json!(first), &json!("webhook")));
        assert!(text(act, "actor").contains(&key.id), "{act}");
        let listed = items(client.get("/v1/entities/b:1/deliveries"));
        let row = |id: &str| listed.iter().find(|row| row["notification_id"] == id && row["channel"] == "webhook").unwrap();
        let copy = row(&again);
        assert_eq!((&copy["copy_of"], &copy["asked_by"], &copy["idempotency_key"]), (&json!(first), &act["actor"], &story["idempotency_key"]));
        assert_eq!((&row(&first)["copy_of"], &row(&first)["asked_by"]), (&Value::Null, &Value::Null));
        let of: HashSet<String> = listed.iter().map(|delivery| text(delivery, "notification_id")).collect();
        assert_eq!(of, HashSet::from([first, again]));
    }

    fn c3_every_resend_is_a_new_send_unless_the_request_id_is_the_same(kind) {
        let app = App::start(kind);
        let receiver = HttpServer::start(|_| Reply::ok());
        let client = app.client("default", &["enqueue", "operate"]);
        let entity = "e".repeat(255);
        let path = format!("/v1/entities/{entity}/resend");
        let first = app.enqueue(&client, &confirmed(&receiver, &entity));
        app.wait_for_state(&first, "sent");
        let wish = |request: &str| json!({"channel": "webhook", "event_type": "booking.confirmed", "request_id": request});
        let one = client.post(&path, &wish("r-1")).expect(202).json();
        app.wait_for_state(&text(&one, "id"), "sent");
        // Now the copy is the newest notification on this channel.
        let repeated = client.post(&path, &wish("r-1")).expect(200).json();
        assert_eq!(repeated, json!({"id": one["id"], "duplicate": true}));
        let two = client.post(&path, &wish("r-2")).expect(202).json();
        app.wait_for_state(&text(&two, "id"), "sent");
        let listed = items(client.get(&format!("/v1/entities/{entity}/deliveries")));
        let copy_of = |id: &Value| &listed.iter().find(|row| row["notification_id"] == *id && row["channel"] == "webhook").unwrap()["copy_of"];
        assert_eq!((copy_of(&one["id"]), copy_of(&two["id"])), (&json!(first), &one["id"]), "each names what it copied");
        assert_eq!(receiver.requests().len(), 3);
        let audit = items(app.ops().get("/v1/audit?action=entity.resend"));
        assert_eq!(audit.len(), 2, "a repeated request is no act: {audit:?}");

        let reminder = json!({"event_type": "booking.reminder", "entity": entity, "recipients": [{"webhook": receiver.url("/x")}]});
        app.wait_for_state(&app.enqueue(&client, &reminder), "sent");
        // A client that lost its answer gets it again, whatever happened in between.
        assert_eq!(client.post(&path, &json!({"channel": "webhook", "request_id": "r-1"})).expect(200).json()["id"], one["id"]);
        let _ = app.ops().send("PATCH", "/v1/providers/hooks", Some(br#"{"enabled": false}"#)).expect(200);
        assert_eq!(client.post(&path, &wish("r-1")).expect(200).json()["id"], one["id"]);
        let other = json!({"channel": "webhook", "event_type": "booking.reminder", "request_id": "r-1"});
        assert_eq!(refused(client.post(&path, &other), 409, Some("request_id"))["type"], "urn:postcommit:problem:key-conflict");
    }

    fn c11_by_a_template_its_present_text_is_sent_also_on_a_new_channel(kind) {
        let app = App::start(kind);
        app.create_capture("default", "capture", "nothing");
        let client = app.client("default", &["enqueue", "operate", "edit", "read"]);
        let template = |id: &str, channel: &str, words: &str| json!({"id": id, "event_type": "booking.confirmed", "channel": channel, "text": words});
        let _ = client.post("/v1/templates", &template("sms", "sms", "Welcome, {{guestName}}")).expect(201);
        let event = json!({"event_type": "booking.confirmed", "entity": "b-1", "payload": {"guestName": "Asha", "guestPhone": "+919876543210"}});
        let first = app.enqueue(&client, &event);
        app.wait_for_state(&first, "sent");
        let _ = client.post("/v1/templates", &template("call", "whatsapp", "Dear {{guestName}}")).expect(201);
        let wish = json!({"channel": "whatsapp", "template": "call", "request_id": "r-1"});
        let copy = text(&client.post("/v1/entities/b-1/resend", &wish).expect(202).json(), "id");
        app.wait_for_state(&copy, "sent");
        assert!(app.story(&copy)["attempt_log"][0]["excerpt"].as_str().unwrap().contains("Dear Asha"));
        let listed = items(client.get("/v1/entities/b-1/deliveries"));
        let row = listed.iter().find(|row| row["notification_id"] == copy.as_str()).unwrap();
        assert_eq!((&row["template"], &row["template_version"], &row["send_key"]), (&json!("call"), &json!(1), &json!("manual:b-1:whatsapp:call:r-1")));
        for template in ["call", "none", "no name"] {
            let wish = json!({"channel": "sms", "template": template});
            let _ = refused(client.post("/v1/entities/b-1/resend", &wish), 422, Some("template"));
        }
    }

    fn c11_a_refused_resend_says_why(kind) {
        let app = App::start(kind);
        let receiver = HttpServer::start(|_| Reply::ok());
        let client = app.client("default", &["enqueue", "operate"]);
        let mut named = confirmed(&receiver, "b-1");
        named["recipients"] = json!([{"provider": "hooks", "address": receiver.url("/y")}]);
        let first = app.enqueue(&client, &named);
        app.wait_for_state(&first, "sent");
        let resend = |wish: Value| client.post("/v1/entities/b-1/resend", &wish);
        let _ = refused(resend(json!({"channel": "email"})), 422, Some("channel"));
        let _ = refused(resend(json!({"channel": "email", "recipient": {"phone": "+14155550100"}})), 422, Some("recipient"));
        let _ = refused(resend(json!({"channel": "email", "recipient": {"email": "nobody"}})), 422, Some("recipient.email"));
        let _ = refused(resend(json!({"channel": "email", "recipient": "a@example.com"})), 422, Some("recipient"));
        let _ = refused(resend(json!({"channel": "webhook", "event_type": "booking.reminder"})), 404, None);
        let _ = refused(resend(json!({"channel": "a b"})), 422, Some("channel"));
        let _ = refused(resend(json!({"channel": "webhook", "request_id": "a:b"})), 422, Some("request_id"));
        let _ = refused(resend(json!({"channel": "webhook", "event_type": ""})), 422, Some("event_type"));
        let _ = refused(client.post("/v1/entities/b-2/resend", &json!({"channel": "webhook"})), 404, None);
        let _ = refused(app.client("default", &["enqueue", "read"]).post("/v1/entities/b-1/resend", &json!({"channel": "webhook"})), 403, None);
        app.create_tenant("other");
        let _ = refused(app.client("other", &["operate"]).post("/v1/entities/b-1/resend", &json!({"channel": "webhook"})), 404, None);
        let _ = app.ops().send("PATCH", "/v1/providers/hooks", Some(br#"{"enabled": false}"#)).expect(200);
        let _ = refused(resend(json!({"channel": "webhook"})), 422, Some("channel"));
        assert_eq!(receiver.requests().len(), 1);
    }

    fn c11_a_resend_reaches_a_channel_that_was_never_used(kind) {
        let app = App::start(kind);
        let receiver = HttpServer::start(|_| Reply::ok());
        let client = app.client("default", &["enqueue", "operate"]);
        let told = json!({"event_type": "a", "entity": "b-1", "title": "Hello", "recipients": [{"user": "u-7"}]});
        app.wait_for_state(&app.enqueue(&client, &told), "delivered");
        let resend = |wish: Value| client.post("/v1/entities/b-1/resend", &wish);
        let wish = json!({"channel": "webhook", "recipient": {"webhook": receiver.url("/y")}, "request_id": "r-1"});
        let again = text(&resend(wish.clone()).expect(202).json(), "id");
        app.wait_for_state(&again, "sent");
        assert_eq!(receiver.requests().len(), 1);
        assert_eq!(resend(wish).expect(200).json()["id"], json!(again));
        let other = json!({"channel": "webhook", "recipient": {"webhook": receiver.url("/z")}, "request_id": "r-1"});
        assert_eq!(refused(resend(other), 409, Some("request_id"))["type"], "urn:postcommit:problem:key-conflict");
        let act = &app.story(&again)["acts"][0];
        assert!(!act.to_string().contains("/y"), "an address in the audit log is masked: {act}");
    }

    fn c11_what_was_sent_is_copied_before_what_was_not(kind) {
        let app = App::start(kind);
        let receiver = HttpServer::start(|request| Reply::status(if request.path == "/gone" { 410 } else { 200 }));
        let client = app.client("default", &["enqueue", "operate"]);
        let about = |title: &str, path: &str| json!({"event_type": "a", "entity": "b-1", "title": title, "recipients": [{"webhook": receiver.url(path)}]});
        app.wait_for_state(&app.enqueue(&client, &about("right", "/x")), "sent");
        let given_up = app.enqueue(&client, &about("given up", "/gone"));
        app.wait_for_state(&given_up, "parked");
        let _ = client.post(&format!("/v1/deliveries/{given_up}.1/discard"), &json!({})).expect(200);
        let _ = app.ops().post("/v1/providers/hooks/pause", &json!({"reason": "a test"})).expect(200);
        let taken_back = app.enqueue(&client, &about("taken back", "/x"));
        wait_until("it to be expanded", || app.story(&taken_back)["deliveries"][0]["channel"] == "webhook");
        let _ = client.post(&format!("/v1/notifications/{taken_back}/cancel"), &json!({})).expect(200);
        let waiting = app.enqueue(&client, &about("waiting", "/x"));
        wait_until("it to be expanded", || app.story(&waiting)["deliveries"][0]["channel"] == "webhook");
        let again = text(&client.post("/v1/entities/b-1/resend", &json!({"channel": "webhook"})).expect(202).json(), "id");
        assert_eq!(app.story(&again)["title"], "right");
    }
}
