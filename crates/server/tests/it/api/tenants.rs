//! Suspended tenants, and the audit log.

use postcommit_testkit::{HttpClient, HttpServer, Reply};
use serde_json::{Value, json};

use super::app::{App, items, refused, text};
use crate::installation::wait_until;

/// The newest entry of this action.
fn entry(app: &App, action: &str) -> Value {
    let entries = items(app.ops().get(&format!("/v1/audit?action={action}&limit=1")));
    entries.into_iter().next().unwrap_or_else(|| panic!("{action} is not in the log"))
}

/// Makes changes under a request id and asserts their entries.
struct Auditor<'a> {
    app: &'a App,
    client: HttpClient,
    actor: String,
}

impl Auditor<'_> {
    /// Sends the change. Returns the answer and the entry.
    fn change(&self, method: &str, path: &str, body: &Value, action: &str) -> (Value, Value) {
        let request = format!("request-of-{action}");
        let body = body.to_string();
        let answer = self.client.clone().with("X-Request-Id", &request).send(method, path, Some(body.as_bytes()));
        assert!(answer.status < 300, "{action}: {} {}", answer.status, answer.text());
        let entry = entry(self.app, action);
        assert_eq!((&entry["actor"], &entry["request_id"]), (&json!(self.actor), &json!(request)), "{entry}");
        let answer = if answer.body.is_empty() { Value::Null } else { answer.json() };
        (answer, entry)
    }

    /// Like [`Auditor::change`]; also asserts the entry's subject.
    fn changes(&self, method: &str, path: &str, body: &Value, action: &str, subject: &str) {
        let (_, entry) = self.change(method, path, body, action);
        assert_eq!((&entry["subject"], &entry["count"]), (&json!(subject), &json!(1)), "{entry}");
    }
}

/// Parks `count` deliveries of the tenant `north`. Returns their ids, oldest first.
fn parked(app: &App, client: &HttpClient, count: usize) -> Vec<String> {
    let bad = json!({"event_type": "bad", "recipients": [{"email": "guest@example.com"}]});
    let _ = client.post("/v1/notifications/batch", &json!({"notifications": vec![bad; count]})).expect(200);
    app.pass();
    items(client.get("/v1/deliveries?state=parked")).iter().rev().map(|row| text(row, "id")).collect()
}

on_both! {
    fn a_suspended_tenant_is_refused_and_nothing_of_it_is_sent(kind) {
        let app = App::start(kind);
        let receiver = HttpServer::start(|_| Reply::ok());
        app.create_tenant("north");
        let client = app.client("north", &["admin"]);
        let _ = client.post("/v1/providers", &json!({"name": "hooks", "driver": "webhook"})).expect(201);
        let suspended = app.ops().post("/v1/tenants/north/suspend", &json!({"reason": "unpaid"})).expect(200).json();
        assert_eq!(suspended["suspended_reason"], "unpaid");
        let hook = json!({"event_type": "a", "recipients": [{"webhook": receiver.url("/")}]});
        for answer in [client.get("/v1/notifications"), client.post("/v1/notifications", &hook)] {
            assert_eq!(refused(answer, 403, None)["type"], "urn:postcommit:problem:suspended");
        }
        assert_eq!(refused(app.ops().post("/v1/tenants/north/suspend", &json!({"reason": "again"})), 409, None)["type"], "urn:postcommit:problem:state-conflict");
        refused(app.ops().post("/v1/tenants/nobody/suspend", &json!({"reason": "x"})), 404, None);
        refused(app.ops().post("/v1/tenants/north/suspend", &json!({"reason": ""})), 422, Some("reason"));
        // The tenant's application continues to enqueue by SQL: a notification must not abort its transaction.
        let to = format!("webhook:{}", receiver.url("/waits"));
        let id = app.installation.run(&["enqueue", "b", "--tenant", "north", "--to", &to]).trim().to_owned();
        // Later notifications of other tenants are sent in the meantime.
        let other = app.enqueue(&app.client("default", &["enqueue"]), &json!({"event_type": "a", "recipients": [{"webhook": receiver.url("/other")}]}));
        app.wait_for_state(&other, "sent");
        assert_eq!(app.status(&id)["state"], "pending");
        assert_eq!(receiver.requests().iter().map(|request| request.path.as_str()).collect::<Vec<_>>(), ["/other"]);
        assert_eq!(app.ops().post("/v1/tenants/north/resume", &json!({})).expect(200).json()["suspended_at"], Value::Null);
        app.wait_for_state(&id, "sent");
        let _ = client.get("/v1/notifications").expect(200);
        refused(app.ops().post("/v1/tenants/north/resume", &json!({})), 409, None);
    }

    fn a_tenants_weight_is_changed_only_with_the_right_scope(kind) {
        let app = App::at_rest(kind);
        app.create_tenant("north");
        let weigh = |client: &HttpClient, name: &str, weight: i32| {
            client.send("PATCH", &format!("/v1/tenants/{name}"), Some(json!({"weight": weight}).to_string().as_bytes()))
        };
        let north = weigh(&app.ops(), "north", 5).expect(200).json();
        assert_eq!((&north["name"], &north["weight"]), (&json!("north"), &json!(5)));
        assert_eq!(entry(&app, "tenant.weigh")["details"], json!({"weight": 5}));
        assert_eq!(weigh(&app.ops(), "north", 5).expect(200).json()["weight"], 5, "once more changes nothing");
        refused(weigh(&app.ops(), "north", 101), 422, Some("weight"));
        refused(weigh(&app.ops(), "nobody", 5), 404, None);
        refused(weigh(&app.client("north", &["admin"]), "north", 5), 403, None);
    }

    fn every_change_by_a_key_is_in_the_log(kind) {
        let app = App::at_rest(kind);
        app.create_tenant("north");
        app.create_capture("north", "capture", "bad");
        let key = app.create_key("north", &["admin"]);
        let client = app.nobody().key(&key.token);
        let all = parked(&app, &client, 5);
        let auditor = Auditor { app: &app, client: client.clone(), actor: format!("key:{}", key.id) };
        auditor.changes("POST", &format!("/v1/deliveries/{}/retry", all[0]), &json!({}), "delivery.retry", &all[0]);
        auditor.changes("POST", &format!("/v1/deliveries/{}/discard", all[1]), &json!({}), "delivery.discard", &all[1]);
        auditor.changes("POST", "/v1/deliveries/discard", &json!({"ids": [all[2]]}), "delivery.discard", &all[2]);
        let (job, entry) = auditor.change("POST", "/v1/deliveries/retry", &json!({"filter": {"event_type": "bad"}}), "job.create");
        assert_eq!((&entry["subject"], &entry["count"], &entry["details"]["filter"]["event_type"]), (&job["id"], &json!(2), &json!("bad")), "{entry}");
        let job = text(&job, "id");
        auditor.changes("POST", &format!("/v1/jobs/{job}/cancel"), &json!({}), "job.cancel", &job);
        let late = json!({"event_type": "late", "entity": "7", "recipients": [{"email": "guest@example.com"}], "due_at": "2099-01-01T00:00:00Z"});
        let id = app.enqueue(&client, &late);
        auditor.changes("POST", "/v1/entities/7/cancel", &json!({}), "delivery.cancel", &format!("{id}.0"));
        auditor.changes("POST", "/v1/providers", &json!({"name": "p", "driver": "capture", "is_default": false}), "provider.create", "p");
        auditor.changes("PATCH", "/v1/providers/p", &json!({"concurrency": 2}), "provider.update", "p");
        auditor.changes("PATCH", "/v1/providers/p", &json!({"enabled": false}), "provider.update", "p");
        let (_, paused) = auditor.change("POST", "/v1/providers/p/pause", &json!({"reason": "why not"}), "provider.pause");
        assert_eq!(paused["details"]["reason"], "why not");
        auditor.changes("POST", "/v1/providers/p/resume", &json!({}), "provider.resume", "p");
        auditor.changes("DELETE", "/v1/providers/p", &json!({}), "provider.delete", "p");
        let (made, entry) = auditor.change("POST", "/v1/keys", &json!({"name": "k", "scopes": ["read"]}), "key.create");
        assert_eq!((&entry["subject"], &entry["details"]["scopes"]), (&made["id"], &json!(["read"])));
        let made = text(&made, "id");
        auditor.changes("DELETE", &format!("/v1/keys/{made}"), &json!({}), "key.revoke", &made);
        // Filtered by actor, action and time; entries of other tenants are not shown.
        let own = items(client.get(&format!("/v1/audit?actor=key:{}&limit=200", key.id)));
        assert_eq!(own.len(), 15, "{own:?}");
        assert!(own.iter().all(|entry| entry["tenant"] == "north"));
        assert_eq!(items(client.get(&format!("/v1/audit?subject={}", all[1]))).len(), 1);
        let ops = Auditor { app: &app, client: app.ops(), actor: text(&app.ops().get("/v1/session").expect(200).json(), "actor") };
        ops.changes("POST", "/v1/tenants", &json!({"name": "south"}), "tenant.create", "south");
        ops.changes("POST", "/v1/tenants/south/suspend", &json!({"reason": "x"}), "tenant.suspend", "south");
        ops.changes("POST", "/v1/tenants/south/resume", &json!({}), "tenant.resume", "south");
    }

    fn c15_a_key_grants_no_more_than_it_has_and_is_revoked_immediately(kind) {
        let app = App::at_rest(kind);
        app.create_tenant("north");
        let admin = app.client("north", &["admin"]);
        let _ = admin.post("/v1/keys", &json!({"name": "k", "scopes": ["enqueue", "operate"]})).expect(201);
        for scopes in [json!(["ops"]), json!(["read", "ops"]), json!(["read", "site"])] {
            refused(admin.post("/v1/keys", &json!({"name": "k", "scopes": scopes})), 403, Some("scopes"));
        }
        for (draft, field) in [
            (json!({"name": "k", "scopes": ["everything"]}), "scopes"),
            (json!({"name": "k", "scopes": []}), "scopes"),
            (json!({"name": "", "scopes": ["read"]}), "name"),
            (json!({"name": "k", "scopes": ["read"], "expires_at": "2020-01-01T00:00:00Z"}), "expires_at"),
        ] {
            refused(admin.post("/v1/keys", &draft), 422, Some(field));
        }
        let key = app.create_key("north", &["admin"]);
        let client = app.nobody().key(&key.token);
        let shown = client.get("/v1/keys").expect(200).text();
        assert!(shown.contains(&key.id) && !shown.contains(&key.token) && !shown.contains("hash"), "{shown}");
        let _ = client.send("DELETE", &format!("/v1/keys/{}", key.id), None).expect(204);
        assert_eq!(refused(client.get("/v1/keys"), 401, None)["type"], "urn:postcommit:problem:unauthenticated");
        // A key with fewer scopes cannot revoke a key with more.
        let above = app.create_key("north", &["ops"]);
        refused(admin.send("DELETE", &format!("/v1/keys/{}", above.id), None), 403, None);
        let _ = app.nobody().key(&above.token).get("/v1/tenants").expect(200);
        let _ = app.ops().send("DELETE", &format!("/v1/keys/{}", above.id), None).expect(204);
        // A key that another process revoked is accepted for a second at most.
        let key = app.create_key("north", &["read"]);
        let client = app.nobody().key(&key.token);
        let _ = client.get("/v1/jobs").expect(200);
        app.installation.run(&["keys", "revoke", &key.id]);
        wait_until("the server to notice", || client.get("/v1/jobs").status == 401);
    }
}
