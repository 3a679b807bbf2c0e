//! C15: every operation of the server's own OpenAPI document is called by every kind of caller. A new route is walked
//! without a change here. A route whose path the walk cannot fill fails the test.

mod operation;
mod pages;
mod planted;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use postcommit::Timestamp;
use postcommit_channel::model::{Scope, Scopes};
use postcommit_testkit::{HttpClient, HttpResponse};
use serde_json::{Value, json};

use super::app::{App, items, refused};
use crate::door::RawClient;
use crate::installation::{Kind, wait_until};
use operation::Operation;
use planted::Planted;

/// Failed sign-ins are limited per address: here each comes from another address, as a trusted proxy reports it.
const BEHIND_A_PROXY: (&str, &str) = ("SERVER_TRUSTED_PROXIES", "127.0.0.1/32");

/// A server that delivers only on request, and two tenants on it.
struct Walk {
    app: App,
    operations: Vec<Operation>,
    a: Planted,
    b: Planted,
    strangers: AtomicU32,
}

impl Walk {
    fn begin(kind: Kind, settings: &[(&str, &str)]) -> Self {
        let app = App::with(kind, "api", &[&[BEHIND_A_PROXY], settings].concat());
        let (open, operations): (Vec<_>, Vec<_>) =
            Operation::all(&app.nobody().get("/openapi.json").expect(200).json())
                .into_iter()
                .partition(|one| one.is_open);
        assert!(operations.len() > 35, "{} operations are not all", operations.len());
        // Their credential is the token in the path. `callbacks.rs` tests them.
        let open: Vec<&str> = open.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(open, ["answer_callback", "take_callback"]);
        let (a, b) = (Planted::in_tenant(&app, "canary-alpha"), Planted::in_tenant(&app, "canary-beta"));
        Self { app, operations, a, b, strangers: AtomicU32::new(0) }
    }

    /// Calls an operation on objects of `whose`.
    fn call(&self, client: &HttpClient, operation: &Operation, whose: &Planted, query: &str) -> HttpResponse {
        let path = operation.filled(|parameter| whose.parameter(&operation.path, parameter));
        let body = whose.body(&operation.name).or_else(|| operation.smallest_body()).map(|body| body.to_string());
        let target = format!("{path}{query}");
        if operation.streams {
            return self.first_of_a_stream(client, &target);
        }
        client.send(&operation.method, &target, body.as_ref().map(String::as_bytes))
    }

    /// The beginning of an endless answer.
    fn first_of_a_stream(&self, client: &HttpClient, target: &str) -> HttpResponse {
        let mut raw = RawClient::at(self.app.address());
        raw.send(client.head("GET", target));
        let heard = raw.read_head();
        HttpResponse { status: heard.split(' ').nth(1).unwrap().parse().unwrap(), headers: vec![], body: vec![] }
    }

    /// A client from an address without failed sign-ins.
    fn stranger(&self, token: Option<&str>) -> HttpClient {
        let [.., a, b, c] = self.strangers.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        let client = self.app.nobody().with("X-Forwarded-For", &format!("10.{a}.{b}.{c}"));
        token.map_or(client.clone(), |token| client.key(token))
    }

    fn expired_token(&self) -> String {
        let soon = Timestamp::from(SystemTime::now()).plus(Duration::from_secs(1)).to_string();
        let key =
            self.app.create_key_as(&self.a.name, &json!({"name": "short", "scopes": ["admin"], "expires_at": soon}));
        wait_until("a key to expire", || self.stranger(Some(&key.token)).get("/v1/session").status == 401);
        key.token
    }

    fn revoked_token(&self) -> String {
        let key = self.app.create_key(&self.a.name, &["admin"]);
        let _ = self.app.nobody().key(&key.token).get("/v1/session").expect(200);
        let _ = self.app.ops().send("DELETE", &format!("/v1/keys/{}", key.id), None).expect(204);
        key.token
    }

    /// What the other tenant's administrator can see or do that it must not.
    fn leaks(&self) -> Vec<String> {
        self.operations.iter().filter_map(|operation| self.leak(operation)).collect()
    }

    fn leak(&self, operation: &Operation) -> Option<String> {
        let answer = self.call(&self.b.admin, operation, &self.a, "");
        let asked = operation.filled(|parameter| self.a.parameter(&operation.path, parameter))
            + &self.a.body(&operation.name).map(|body| body.to_string()).unwrap_or_default();
        let (said, name) = (answer.text(), &operation.name);
        if name == "put_user" {
            // The other tenant has its own user of that id now, and must be without it for the operations that follow.
            let _ =
                self.b.admin.send("DELETE", &asked[..asked.len() - self.a.body(name).unwrap().to_string().len()], None);
        }
        // Texts of the request may be repeated in the answer.
        let told = self.a.canaries.iter().find(|canary| said.contains(*canary) && !asked.contains(*canary));
        if let Some(canary) = told {
            return Some(format!("{name} tells {canary}: {said}"));
        }
        let is_right = match operation.scope {
            Some(Scope::Ops) => answer.status == 403,
            // Two tenants may have users and entities of the same name: those of the other tenant look empty.
            _ if operation.has_parameter() && !is_shared_name(operation) => answer.status == 404,
            _ => answer.status < 300,
        };
        (!is_right).then(|| format!("{name} answers {}: {said}", answer.status))
    }
}

fn is_shared_name(operation: &Operation) -> bool {
    operation.path.ends_with("/{user}")
        // A user needs no profile to have preferences, and PUT creates a user that does not exist.
        || operation.path == "/v1/users/{id}/preferences"
        || operation.name == "put_user"
        // A resend needs a notification of the entity.
        || operation.path.starts_with("/v1/entities/") && !operation.path.ends_with("/resend")
        || operation.path.contains("{user}/") && !operation.path.contains("{id}")
}

/// The scopes that do not include this one, without `site`, which stands alone.
fn all_but(scope: Scope) -> Vec<&'static str> {
    Scope::ALL.into_iter().filter(|other| *other != Scope::Site && !other.includes(scope)).map(Scope::name).collect()
}

on_both! {
    fn c15_every_operation_needs_a_valid_key(kind) {
        let walk = Walk::begin(kind, &[]);
        let (revoked, expired) = (walk.revoked_token(), walk.expired_token());
        let nonsense = format!("pc_{}_{}", "a".repeat(16), "b".repeat(43));
        for operation in &walk.operations {
            for token in [None, Some("nonsense"), Some(&nonsense), Some(&revoked), Some(&expired)] {
                let answer = walk.call(&walk.stranger(token), operation, &walk.a, "");
                assert_eq!(answer.status, 401, "{} with {token:?}: {}", operation.name, answer.text());
                // The title is the same with and without a key, because a caller without a valid key is not told more.
                assert!(operation.streams || answer.json()["title"] == "Not authenticated", "{}", answer.text());
            }
        }
    }

    fn c15_every_operation_requires_the_scope_it_names(kind) {
        let walk = Walk::begin(kind, &[]);
        let site = walk.app.client(&walk.a.name, &["site"]);
        for scope in Scope::ALL {
            let lacking = all_but(scope);
            let client = (!lacking.is_empty()).then(|| walk.app.client(&walk.a.name, &lacking));
            for operation in walk.operations.iter().filter(|operation| operation.scope == Some(scope)) {
                for client in client.iter().chain((scope != Scope::Site).then_some(&site)) {
                    let answer = walk.call(client, operation, &walk.a, "");
                    assert_eq!(answer.status, 403, "{} with {lacking:?}: {}", operation.name, answer.text());
                }
            }
        }
    }

    fn c15_a_missing_scope_is_reported_before_any_other_error(kind) {
        let walk = Walk::begin(kind, &[]);
        for operation in &walk.operations {
            let lacking = operation.scope.map(all_but).unwrap_or_default();
            // Every key may call this operation, or no set of scopes lacks only its scope.
            if lacking.is_empty() {
                continue;
            }
            let client = walk.app.client(&walk.a.name, &lacking);
            let path = operation.filled(|parameter| walk.a.parameter(&operation.path, parameter));
            for (body, query) in [("{}", ""), ("nonsense", ""), (r#"{"nonsense": 1}"#, "?nonsense=1"), ("", "?limit=x")] {
                let sent = (operation.method != "GET").then_some(body.as_bytes());
                let answer = client.send(&operation.method, &format!("{path}{query}"), sent);
                assert_eq!(answer.status, 403, "{} with {body:?} and {query:?}: {}", operation.name, answer.text());
            }
        }
    }

    fn c15_a_key_reaches_nothing_of_another_tenant(kind) {
        let walk = Walk::begin(kind, &[]);
        let before = walk.a.seen_by_owner();
        assert!(walk.a.canaries.iter().all(|canary| before.contains(canary) || is_unlisted(canary)), "planted, but not to be seen: {before}");
        assert_eq!(walk.leaks(), Vec::<String>::new());
        assert_eq!(walk.a.seen_by_owner(), before, "something of the other's was changed");
    }

    fn c15_only_operations_choose_a_tenant(kind) {
        let walk = Walk::begin(kind, &[]);
        let (of_a, of_b) = (format!("?tenant={}", walk.a.name), format!("?tenant={}", walk.b.name));
        for operation in &walk.operations {
            let answer = walk.call(&walk.b.admin, operation, &walk.b, &of_a);
            assert_eq!(answer.status, 403, "{}: {}", operation.name, answer.text());
            // A caller that chose a tenant is limited to it like any other.
            let is_found_by_id = operation.has_parameter() && !is_shared_name(operation) && operation.scope != Some(Scope::Ops);
            if is_found_by_id {
                assert_eq!(walk.call(&walk.app.ops(), operation, &walk.a, &of_b).status, 404, "{}", operation.name);
            }
        }
        refused(walk.b.admin.get(&format!("/v1/notifications{of_a}")), 403, Some("tenant"));
        let by_query = refused(walk.app.ops().get("/v1/notifications?tenant=nobody"), 404, Some("tenant"));
        let by_body = refused(walk.app.ops().post("/v1/notifications", &json!({"event_type": "a", "tenant": "nobody"})), 422, Some("tenant"));
        assert_eq!((&by_query["detail"], &by_body["detail"]), (&json!(r#"there is no tenant "nobody"; create it first"#), &by_query["detail"]));
    }

    fn c15_a_permitted_caller_gets_an_answer_of_the_document(kind) {
        let walk = Walk::begin(kind, &[]);
        let clients: Vec<(Scope, HttpClient)> =
            Scope::ALL.into_iter().map(|scope| (scope, walk.app.client(&walk.a.name, &[scope.name()]))).collect();
        // Operations that delete come last.
        let (last, first): (Vec<_>, Vec<_>) = walk.operations.iter().partition(|operation| operation.method == "DELETE");
        for operation in first.into_iter().chain(last) {
            let scope = operation.scope.unwrap_or(Scope::Read);
            let client = &clients.iter().find(|(of, _)| *of == scope).unwrap().1;
            let answer = walk.call(client, operation, &walk.a, "");
            assert!(operation.statuses.contains(&answer.status.to_string()), "{} answers {}: {}", operation.name, answer.status, answer.text());
            // The walk itself changes states: a retried delivery cannot be discarded. Bodies that are built from the
            // schema may be refused.
            let was_taught = walk.a.body(&operation.name).is_some() || operation.smallest_body().is_none();
            let is_served = answer.status < 300 || answer.status == 409 || (answer.status == 422 && !was_taught);
            assert!(is_served, "{} answers {}: {}", operation.name, answer.status, answer.text());
        }
    }

    fn every_operation_names_a_missing_or_unknown_field(kind) {
        let walk = Walk::begin(kind, &[]);
        for operation in walk.operations.iter().filter(|operation| operation.smallest_body().is_some()) {
            let path = operation.filled(|parameter| walk.a.parameter(&operation.path, parameter));
            let send = |body: &Value| walk.app.ops().send(&operation.method, &format!("{path}?tenant={}", walk.a.name), Some(body.to_string().as_bytes()));
            let mut body = walk.a.body(&operation.name).or_else(|| operation.smallest_body()).unwrap();
            body["nonsense"] = json!(1);
            println!("{}", operation.name);
            refused(send(&body), 422, Some("nonsense"));
            let required: Vec<String> = operation.smallest_body().unwrap().as_object().unwrap().keys().cloned().collect();
            if !required.is_empty() {
                let problem = send(&json!({})).expect(422).json();
                assert!(required.iter().any(|name| problem["field"] == json!(name)), "{}: {problem}", operation.name);
            }
        }
    }

    fn an_optional_body_may_be_left_out_and_a_required_one_is_named(kind) {
        let walk = Walk::begin(kind, &[]);
        for operation in walk.operations.iter().filter(|operation| operation.smallest_body().is_some()) {
            let path = operation.filled(|parameter| walk.a.parameter(&operation.path, parameter));
            let send = |body: Option<&[u8]>| walk.app.ops().send(&operation.method, &format!("{path}?tenant={}", walk.a.name), body);
            let required: Vec<String> = operation.smallest_body().unwrap().as_object().unwrap().keys().cloned().collect();
            assert_eq!(operation.needs_body, !required.is_empty(), "{}", operation.name);
            // White space is not JSON.
            refused(send(Some(b" \n")), 400, None);
            for body in [None, Some(&b""[..])] {
                let answer = send(body);
                if ["retry_deliveries", "discard_deliveries"].contains(&operation.name.as_str()) {
                    refused(answer, 422, Some("ids"));
                } else if required.is_empty() {
                    // The first retry made the delivery pending, so the others have nothing to retry.
                    let is_repeated = operation.name == "retry_delivery" && body.is_some();
                    let is_read = answer.status < 300 || (is_repeated && answer.status == 409);
                    assert!(is_read, "{} with {body:?}: {}", operation.name, answer.text());
                } else {
                    let problem = answer.expect(422).json();
                    let (field, detail) = (problem["field"].as_str().unwrap_or_default(), problem["detail"].as_str().unwrap());
                    assert!(required.iter().any(|name| name == field) && !detail.contains(" column "), "{}: {problem}", operation.name);
                }
            }
        }
    }

    fn every_change_of_the_document_is_in_the_audit_log(kind) {
        let walk = Walk::begin(kind, &[]);
        for (place, operation) in walk.operations.iter().filter(|operation| operation.method != "GET").enumerate() {
            if let Some(reason) = no_entry_because(&operation.name) {
                println!("{}: {reason}", operation.name);
                continue;
            }
            // Each operation has a tenant of its own, in which everything is still to be done.
            let planted = Planted::in_tenant(&walk.app, &format!("audited-{place}"));
            let key = walk.app.create_key(&planted.name, &["ops"]);
            let client = walk.app.nobody().key(&key.token);
            if let Some(undone) = walk.operations.iter().find(|other| Some(other.name.as_str()) == undone_by(&operation.name)) {
                assert!(walk.call(&client, undone, &planted, "").status < 300, "{}", undone.name);
            }
            let client = client.with("X-Request-Id", "the-one");
            let answer = match operation.name.as_str() {
                // A delivery that was rejected cannot be marked as delivered.
                "mark_delivery_delivered" => client.post(&format!("/v1/deliveries/{}/mark-delivered", planted.sent()), &json!({})),
                _ => walk.call(&client, operation, &planted, ""),
            };
            assert!(answer.status < 300, "{} answers {}: {}", operation.name, answer.status, answer.text());
            let entries = items(walk.app.ops().get(&format!("/v1/audit?actor=key:{}&limit=200", key.id)));
            let of_it: Vec<&Value> = entries.iter().filter(|entry| entry["request_id"] == "the-one").collect();
            assert!(!of_it.is_empty() && of_it.iter().all(|entry| entry["count"].as_i64() >= Some(1)), "{}: {entries:?}", operation.name);
        }
    }

    fn c15_a_forgotten_tenant_in_one_query_is_noticed(kind) {
        let walk = Walk::begin(kind, &[("LEAK", "notification")]);
        let leaks = walk.leaks();
        walk.app.server.wait_for_line("leak notification: the query runs without its tenant filter");
        match kind {
            // Row-level security hides the row, although the query forgot the tenant.
            Kind::Postgres => assert_eq!(leaks, Vec::<String>::new()),
            Kind::Sqlite => {
                let caught = |name: &str| leaks.iter().any(|leak| leak.starts_with(&format!("{name} tells canary-alpha-")));
                assert!(caught("get_notification") && caught("get_notification_status"), "{leaks:?}");
            }
        }
    }
}

/// Why a change has no entry in the log.
fn no_entry_because(operation: &str) -> Option<&'static str> {
    match operation {
        "enqueue_notification" | "enqueue_notifications" => Some("the notification is its own record"),
        "preview_template" => Some("changes nothing"),
        "dispatch" => Some("does what a dispatcher does anyway, and cron asks every minute"),
        "create_unsubscribe_link" => Some("changes nothing; what the link does is entered when it is used"),
        "end_session" => Some("a key has no session; what people end is shown in `sessions`"),
        _ => None,
    }
}

/// What must be done before the operation can change something.
fn undone_by(operation: &str) -> Option<&'static str> {
    match operation {
        "resume_provider" => Some("pause_provider"),
        "resume_tenant" => Some("suspend_tenant"),
        "unread_message" => Some("read_message"),
        "unarchive_message" => Some("archive_message"),
        "activate_template" | "delete_template" => Some("deactivate_template"),
        _ => None,
    }
}

/// Texts that no list shows: those inside a notification, and the other tenant's.
fn is_unlisted(canary: &str) -> bool {
    ["-text", "-payload", "-site", "-spare", "-user", "-address", "-part"].iter().any(|end| canary.ends_with(end))
}

#[test]
fn the_scopes_of_the_walk_lack_what_they_must() {
    for scope in Scope::ALL {
        let lacking = all_but(scope);
        assert!(lacking.is_empty() || !Scopes::from_names(&lacking).unwrap().allows(scope), "{lacking:?}");
    }
}

#[test]
#[should_panic(expected = "the walk does not know")]
fn a_path_that_the_walk_cannot_fill_fails_it() {
    let said = json!({"operationId": "new", "security": [{"key": ["read"]}], "responses": {"200": {}}});
    let document: Value = json!({"paths": {"/v1/things/{thing}": {"get": said}}});
    Operation::all(&document)[0].filled(|_| None);
}
