//! B5: callbacks of providers over HTTP. The token in the path is the credential.

use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use postcommit::Timestamp;
use postcommit_channel::driver::sign;
use postcommit_testkit::{HttpClient, HttpResponse, HttpServer, RefusedWrite, Reply};
use serde_json::{Value, json};

use super::app::{App, refused, text};
use crate::installation::{Kind, wait_until};

const KEY: &[u8] = b"0123456789abcdef01234567";
const TO: &str = "ann@guest.example";

fn now_s() -> i64 {
    Timestamp::from(SystemTime::now()).as_micros() / 1_000_000
}

/// A service that takes every mail, and a provider that sends through it.
struct Mails {
    _service: HttpServer,
    client: HttpClient,
    url: String,
}

impl Mails {
    fn in_tenant(app: &App, tenant: &str) -> Self {
        let service = HttpServer::start(|_| Reply::json(200, json!({"id": "re-1"})));
        let client = app.client(tenant, &["admin"]);
        let draft = json!({
            "name": "mails", "driver": "resend", "rate_per_s": null, "burst": null, "settings": {"from": "desk@hotel.example", "base_url": service.url("")},
            "secrets": {"api_key": "re_0123456789", "webhook_secret": format!("whsec_{}", STANDARD.encode(KEY))},
        });
        let _ = client.post("/v1/providers", &draft).expect(201);
        let shown = client.post("/v1/providers/mails/callback", &json!({})).expect(200).json();
        assert_eq!(shown["trust"], "verified", "{shown}");
        Self { _service: service, client, url: text(&shown, "url") }
    }

    /// Sends a mail. Returns the id of its delivery.
    fn send(&self, app: &App) -> String {
        let mail = json!({"event_type": "booking.confirmed", "title": "Booked", "recipients": [{"provider": "mails", "address": TO}]});
        let id = app.enqueue(&self.client, &mail);
        app.pass();
        format!("{id}.1")
    }

    fn delivery(&self, id: &str) -> Value {
        self.client.get(&format!("/v1/deliveries/{id}")).expect(200).json()
    }
}

/// The body of a callback about a delivery.
fn event(kind: &str, delivery: &str) -> String {
    let key = delivery.replace('.', "_");
    let bounce = (kind == "email.bounced").then(|| json!({"type": "Permanent"}));
    json!({"type": kind, "data": {"email_id": "re-1", "to": [TO], "tags": {"postcommit_key": key}, "bounce": bounce}})
        .to_string()
}

/// A callback that the service signed at this time.
fn signed(app: &App, url: &str, id: &str, at: i64, body: &str) -> HttpResponse {
    let client = app.nobody().with("svix-id", id).with("svix-timestamp", &at.to_string());
    let signature = sign(&[KEY.to_vec()], id, at, body.as_bytes());
    client.with("svix-signature", &signature).send("POST", url, Some(body.as_bytes()))
}

on_both! {
    fn b5_a_callback_confirms_a_delivery_and_is_safe_to_repeat(kind) {
        let app = App::at_rest(kind);
        let mails = Mails::in_tenant(&app, "default");
        assert!(mails.url.starts_with("/v1/callbacks/"), "{}", mails.url);
        let id = mails.send(&app);
        assert_eq!(mails.delivery(&id)["state"], "sent");
        let body = event("email.delivered", &id);
        assert_eq!(signed(&app, &mails.url, "m1", now_s(), &body).expect(200).json(), json!({"receipts": 1}));
        let shown = mails.delivery(&id);
        assert_eq!((&shown["state"], &shown["receipts"][0]["happened"], &shown["receipts"][0]["fate"]), (&json!("delivered"), &json!("delivered"), &json!("applied")));
        assert_eq!(signed(&app, &mails.url, "m1", now_s(), &body).expect(200).json(), json!({"receipts": 0}));
        // Late news changes nothing, and is shown.
        let _ = signed(&app, &mails.url, "m2", now_s(), &event("email.sent", &id)).expect(200);
        let shown = mails.delivery(&id);
        assert_eq!((&shown["state"], &shown["receipts"][1]["reason"]), (&json!("delivered"), &json!("already_delivered")));
        let audit = mails.client.get("/v1/audit?action=delivery.receipt").expect(200).json();
        assert_eq!(audit["items"][0]["actor"], "provider:mails", "{audit}");
        assert!(audit["items"][0]["request_id"].is_string(), "{audit}");
    }

    fn b5_a_forged_stale_or_unknown_callback_is_refused(kind) {
        let app = App::at_rest(kind);
        let mails = Mails::in_tenant(&app, "default");
        let id = mails.send(&app);
        let body = event("email.bounced", &id);
        refused(app.nobody().send("POST", &mails.url, Some(body.as_bytes())), 401, None);
        let other = sign(&[b"another key of 24 bytes!".to_vec()], "m1", now_s(), body.as_bytes());
        let forged = app.nobody().with("svix-id", "m1").with("svix-timestamp", &now_s().to_string()).with("svix-signature", &other);
        refused(forged.send("POST", &mails.url, Some(body.as_bytes())), 401, None);
        let stale = refused(signed(&app, &mails.url, "m1", now_s() - 3600, &body), 401, None);
        assert!(text(&stale, "detail").contains("at most 300 are allowed"), "{stale}");
        assert_eq!(mails.delivery(&id)["state"], "sent");
        assert_eq!(mails.delivery(&id)["receipts"], json!([]));
        // What cannot be read is the sender's mistake.
        refused(signed(&app, &mails.url, "m2", now_s(), "no JSON"), 400, None);
        let large = format!("{{\"type\": \"{}\"}}", "x".repeat(300_000));
        refused(signed(&app, &mails.url, "m3", now_s(), &large), 413, None);
        for (method, path) in [("POST", "/v1/callbacks/nonsense"), ("GET", "/v1/callbacks/AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"), ("GET", &mails.url)] {
            refused(app.nobody().send(method, path, (method == "POST").then_some(b"{}")), 404, None);
        }
        // The body of a stranger is not even read.
        refused(app.nobody().send("POST", "/v1/callbacks/nonsense", Some(large.as_bytes())), 404, None);
        // Whoever tries tokens is slowed down, and a provider with a token is not.
        wait_until("an address that guesses is slowed down", || app.nobody().send("POST", "/v1/callbacks/guess", Some(b"{}")).status == 429);
        let _ = signed(&app, &mails.url, "m4", now_s(), &event("email.delivered", &id)).expect(200);
        assert_eq!(mails.delivery(&id)["state"], "delivered");
    }

    fn b5_a_callback_with_too_many_events_is_refused(kind) {
        let app = App::at_rest(kind);
        let client = app.client("default", &["admin"]);
        let draft = json!({"name": "sms", "driver": "msg91", "secrets": {"authkey": "393055Ahush0123456789"}});
        let _ = client.post("/v1/providers", &draft).expect(201);
        let url = text(&client.post("/v1/providers/sms/callback", &json!({})).expect(200).json(), "url");
        let body = format!("[{{\"report\":[{}1]}}]", "1,".repeat(130_000));
        let problem = refused(app.nobody().send("POST", &url, Some(body.as_bytes())), 400, None);
        assert_eq!(problem["detail"], "the body has 130001 events; at most 1000 are allowed", "{problem}");
    }

    fn b5_a_service_repeats_a_callback_that_could_not_be_stored(kind) {
        let app = App::at_rest(kind);
        let mails = Mails::in_tenant(&app, "default");
        let (id, refusal) = (mails.send(&app), RefusedWrite::of("INSERT", "receipt"));
        refusal.begin(kind == Kind::Postgres).iter().for_each(|sql| drop(app.installation.rows(sql)));
        let body = event("email.delivered", &id);
        let answer = signed(&app, &mails.url, "m1", now_s(), &body);
        assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")), "{}", answer.text());
        assert_eq!(mails.delivery(&id)["state"], "sent");
        let _ = app.installation.rows(&refusal.end(kind == Kind::Postgres));
        let _ = signed(&app, &mails.url, "m1", now_s(), &body).expect(200);
        assert_eq!(mails.delivery(&id)["state"], "delivered");
    }

    fn b5_c15_a_callback_reaches_only_its_own_tenant(kind) {
        let app = App::at_rest(kind);
        app.create_tenant("north");
        let (south, north) = (Mails::in_tenant(&app, "default"), Mails::in_tenant(&app, "north"));
        let id = south.send(&app);
        // The other tenant's service signs with the same secret, and names our delivery.
        let _ = signed(&app, &north.url, "m1", now_s(), &event("email.bounced", &id)).expect(200);
        let shown = south.delivery(&id);
        assert_eq!((&shown["state"], &shown["receipts"]), (&json!("sent"), &json!([])));
        for client in [&south.client, &north.client] {
            assert_eq!(client.get("/v1/suppressions").expect(200).json()["items"], json!([]));
        }
    }

    fn b5_a_bounce_suppresses_the_address_for_the_next_notification(kind) {
        let app = App::at_rest(kind);
        let mails = Mails::in_tenant(&app, "default");
        let id = mails.send(&app);
        let _ = signed(&app, &mails.url, "m1", now_s(), &event("email.bounced", &id)).expect(200);
        let shown = mails.delivery(&id);
        assert_eq!((&shown["state"], &shown["reason"], &shown["error_class"]), (&json!("parked"), &json!("rejected"), &json!("invalid_address")));
        let all = mails.client.get("/v1/suppressions").expect(200).json();
        let one = &all["items"][0];
        assert_eq!((&one["address"], &one["reason"], &one["created_by"]), (&json!(TO), &json!("hard bounce"), &json!("provider:mails")));
        let next = mails.delivery(&mails.send(&app));
        assert_eq!((&next["state"], &next["error_code"]), (&json!("skipped"), &json!("suppressed")));
    }

    fn b5_an_early_callback_is_applied_when_the_send_has_ended(kind) {
        let app = App::at_rest(kind);
        let mails = Mails::in_tenant(&app, "default");
        let mail = json!({"event_type": "booking.confirmed", "title": "Booked", "recipients": [{"provider": "mails", "address": TO}]});
        let id = format!("{}.1", app.enqueue(&mails.client, &mail));
        assert_eq!(signed(&app, &mails.url, "m1", now_s(), &event("email.delivered", &id)).expect(200).json(), json!({"receipts": 1}));
        wait_until("the receipt to be applied by a pass", || {
            app.pass();
            mails.delivery(&id)["state"] == "delivered"
        });
    }

    fn b5_the_callback_url_is_rotated_by_an_editor(kind) {
        let app = App::with(kind, "api", &[("API_PUBLIC_URL", "https://hooks.hotel.example")]);
        let mails = Mails::in_tenant(&app, "default");
        let first = mails.url.strip_prefix("https://hooks.hotel.example").unwrap().to_owned();
        let show = |body: Value| mails.client.post("/v1/providers/mails/callback", &body);
        assert_eq!(text(&show(json!({})).expect(200).json(), "url"), mails.url, "it stays the same");
        let second = text(&show(json!({"rotate": true})).expect(200).json(), "url");
        assert_ne!(second, mails.url);
        let id = mails.send(&app);
        let _ = signed(&app, &first, "m1", now_s(), &event("email.sent", &id)).expect(200);
        let _ = show(json!({"rotate": true, "now": true})).expect(200);
        refused(signed(&app, &first, "m2", now_s(), &event("email.sent", &id)), 404, None);
        refused(signed(&app, second.strip_prefix("https://hooks.hotel.example").unwrap(), "m2", now_s(), &event("email.sent", &id)), 404, None);
        refused(show(json!({"now": true})), 422, Some("now"));
        refused(app.client("default", &["operate"]).post("/v1/providers/mails/callback", &json!({})), 403, None);
        refused(mails.client.post("/v1/providers/hooks/callback", &json!({})), 409, None);
        refused(mails.client.post("/v1/providers/nobody/callback", &json!({})), 404, None);
    }

    fn b5_meta_asks_whether_its_callbacks_are_expected(kind) {
        let app = App::at_rest(kind);
        let client = app.client("default", &["admin"]);
        let draft = json!({
            "name": "whatsapp", "driver": "whatsapp_cloud", "settings": {"phone_number_id": "1"},
            "secrets": {"token": "EAAG0123456789", "verify_token": "vt0123456789"},
        });
        let _ = client.post("/v1/providers", &draft).expect(201);
        let shown = client.post("/v1/providers/whatsapp/callback", &json!({})).expect(200).json();
        assert_eq!(shown["trust"], "token_until_set");
        let url = text(&shown, "url");
        let asked = |token: &str, challenge: &str| app.nobody().get(&format!("{url}?hub.mode=subscribe&hub.verify_token={token}&hub.challenge={challenge}"));
        let answer = asked("vt0123456789", "1158201444").expect(200);
        assert_eq!((answer.text().as_str(), answer.header("content-type")), ("1158201444", Some("text/plain; charset=utf-8")));
        refused(asked("another", "1158201444"), 401, None);
        refused(asked("vt0123456789", "%3Cscript%3E"), 400, None);
    }
}
