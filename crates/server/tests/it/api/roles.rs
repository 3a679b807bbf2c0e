//! What each role serves, and how a server stops.

use postcommit_testkit::Child;
use serde_json::json;

use super::app::{App, address, refused, text};
use crate::door::RawClient;
use crate::installation::{Guarantee, Hooks, Installation};

on_both! {
    fn a_worker_serves_only_its_health(kind) {
        let installation = Installation::new(kind, Hooks::of(Guarantee::Idempotent));
        let worker = Child::spawn(installation.command(&["serve", "--role", "worker"]));
        let client = postcommit_testkit::HttpClient::new(address(&worker));
        for path in ["/healthz", "/readyz", "/metrics"] {
            let _ = client.get(path).expect(200);
        }
        for path in ["/v1/notifications", "/v1/session", "/openapi.json", "/login?token=x", "/"] {
            let said = text(&refused(client.get(path), 404, None), "detail");
            assert!(said.contains("/readyz") && !said.contains("/openapi.json"), "{said}");
        }
        refused(client.post("/v1/notifications", &json!({})), 404, None);
        worker.term();
        assert!(worker.wait().success());
        assert!(!worker.output().iter().any(|line| line.contains("pc_") || line.contains("sign in")), "a worker makes no keys: {:?}", worker.output());
    }

    fn a_stop_finishes_the_request_in_progress(kind) {
        let app = App::start(kind);
        let token = app.create_key("default", &["enqueue"]).token;
        let body = json!({"event_type": "a", "recipients": [{"email": "guest@example.com"}]}).to_string();
        let (first, rest) = body.split_at(10);
        let mut raw = RawClient::at(app.address());
        raw.send(format!(
            "POST /v1/notifications HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nExpect: 100-continue\r\n\r\n",
            body.len()
        ));
        // The handler asks for the body: the request is in progress.
        assert!(raw.read_head().starts_with("HTTP/1.1 100 "));
        raw.send(first);
        app.server.term();
        app.server.wait_for_line("stopping");
        raw.send(rest);
        let answer = raw.read_response();
        assert!(answer.starts_with("HTTP/1.1 202 "), "{answer}");
        assert!(app.server.wait().success());
        assert_eq!(app.installation.count("SELECT count(*) FROM postcommit.notification"), 1);
    }
}
