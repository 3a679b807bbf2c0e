//! How often somebody may knock, and settings that are refused.

use postcommit_testkit::Child;
use serde_json::json;

use super::app::{App, refused};
use crate::installation::{Guarantee, Hooks, Installation, Kind};

/// Insists on being told to come later, and when.
fn told_to_wait(answer: postcommit_testkit::Answer) {
    let seconds: u64 = answer.header("retry-after").unwrap_or_else(|| panic!("no Retry-After: {}", answer.text())).parse().unwrap();
    assert!(seconds >= 1);
    assert_eq!(refused(answer, 429, None)["type"], "urn:postcommit:problem:rate-limited");
}

on_both! {
    fn a_key_may_knock_so_often_and_no_other_pays_for_it(kind) {
        let app = App::with(kind, "api", &[("API_REQUESTS_PER_S", "0.01"), ("API_BURST", "5")]);
        let (busy, quiet) = (app.client("default", &["read"]), app.client("default", &["read"]));
        for _ in 0..5 {
            let _ = busy.get("/v1/notifications").expect(200);
        }
        told_to_wait(busy.get("/v1/notifications"));
        told_to_wait(busy.post("/v1/notifications", &json!({})));
        let _ = quiet.get("/v1/notifications").expect(200);
        let _ = app.nobody().get("/healthz").expect(200);
    }

    fn who_fails_to_sign_in_too_often_waits(kind) {
        let app = App::with(kind, "api", &[("SERVER_TRUSTED_PROXIES", "127.0.0.1/32")]);
        let from = |address: &str| app.nobody().with("X-Forwarded-For", address);
        let guess = |n: usize| format!("pc_{n:016}_{}", "b".repeat(43));
        let guessed = (0..40).map(|n| from("203.0.113.7").key(&guess(n)).get("/v1/session")).find(|answer| answer.status != 401);
        told_to_wait(guessed.unwrap_or_else(|| panic!("forty guesses were let through")));
        told_to_wait(from("203.0.113.7").send_as("application/x-www-form-urlencoded", "POST", "/login", b"token=guess"));
        refused(from("203.0.113.8").key(&guess(1)).get("/v1/session"), 401, None);
        let _ = app.ops().get("/v1/session").expect(200);
    }
}

#[test]
fn e14_settings_that_cannot_be_are_refused_at_the_start_by_name() {
    let installation = Installation::new(Kind::Sqlite, Hooks::of(Guarantee::Idempotent));
    for (setting, value, said) in [
        ("API_BURST", "-1", "api.burst"),
        ("API_REQUESTS_PER_S", "2000000", "api.requests_per_s"),
        ("API_PUBLIC_URL", "ftp://example.com", "api.public_url"),
        ("DISPATCH_INTERVAL_MS", "5", "dispatch.interval_ms"),
        ("DISPATCH_BATCH", "many", "dispatch.batch"),
        ("KPI_STUCK_AFTER_S", "0", "kpi.stuck_after_s"),
        ("SERVER_LISTEN", "0.0.0.0:0", "server.allow_public"),
        ("SERVER_BODY_BYTES", "1", "server.body_bytes"),
        ("SERVER_TRUSTED_PROXIES", "everybody", "server.trusted_proxies"),
        ("METRICS_TOKEN", "short", "metrics.token"),
        ("LOG_FORMAT", "xml", "log.format"),
    ] {
        let mut command = installation.command(&["serve"]);
        command.env(format!("POSTCOMMIT_{setting}"), value);
        let server = Child::spawn(command);
        assert_eq!(server.wait().code(), Some(2), "{setting}: {:?}", server.output());
        server.wait_for_line(said);
    }
}
