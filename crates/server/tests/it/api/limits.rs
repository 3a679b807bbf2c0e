//! Rate limits of requests, and settings that are refused.

use postcommit_testkit::{Child, HttpResponse, forged};
use serde_json::json;

use super::app::{App, refused, text};
use super::sessions::{link, sign_in};
use crate::installation::{Guarantee, Hooks, Installation, Kind};

/// Asserts a 429 with a `Retry-After`.
fn assert_told_to_wait(answer: HttpResponse) {
    let seconds: u64 =
        answer.header("retry-after").unwrap_or_else(|| panic!("no Retry-After: {}", answer.text())).parse().unwrap();
    assert!(seconds >= 1);
    // Pages refuse by a page.
    if answer.header("content-type").is_some_and(|kind| kind.starts_with("text/html")) {
        let page = answer.expect(429).text();
        assert!(page.contains("<h1>Too many requests</h1>"), "{page}");
        return;
    }
    assert_eq!(refused(answer, 429, None)["type"], "urn:postcommit:problem:rate-limited");
}

on_both! {
    fn a_key_has_a_rate_limit_of_its_own(kind) {
        let app = App::with(kind, "api", &[("API_REQUESTS_PER_S", "0.01"), ("API_BURST", "5")]);
        let (busy, quiet) = (app.client("default", &["read"]), app.client("default", &["read"]));
        for _ in 0..5 {
            let _ = busy.get("/v1/notifications").expect(200);
        }
        assert_told_to_wait(busy.get("/v1/notifications"));
        assert_told_to_wait(busy.post("/v1/notifications", &json!({})));
        let _ = quiet.get("/v1/notifications").expect(200);
        let _ = app.nobody().get("/healthz").expect(200);
    }

    fn too_many_failed_sign_ins_must_wait(kind) {
        let app = App::with(kind, "api", &[("SERVER_TRUSTED_PROXIES", "127.0.0.1/32")]);
        let from = |address: &str| app.nobody().with("X-Forwarded-For", address);
        let guess = |n: usize| format!("pc_{n:016}_{}", "b".repeat(43));
        let in_office = || from("203.0.113.7");
        let exhausted = |guess: &dyn Fn(usize) -> HttpResponse| {
            let refused = (0..40).map(guess).find(|answer| answer.status != 401);
            assert_told_to_wait(refused.unwrap_or_else(|| panic!("forty guesses were let through")));
        };
        exhausted(&|n| in_office().key(&guess(n)).get("/v1/session"));
        // Other clients behind the same address still sign in with valid credentials. Invalid ones are counted.
        let key = app.create_key("default", &["operate"]).token;
        let _ = in_office().key(&key).get("/v1/session").expect(200);
        let token = text(&in_office().key(&key).send("POST", "/v1/inbox/alice/token", None).expect(200).json(), "token");
        let _ = in_office().key(&token).get("/v1/inbox/alice").expect(200);
        assert_told_to_wait(in_office().key(&forged(&token)).get("/v1/inbox/alice"));
        assert_told_to_wait(in_office().with("Cookie", "__Host-postcommit=guess").get("/v1/session"));
        // Links are counted separately, and a valid link still signs in.
        exhausted(&|n| sign_in(&in_office(), &format!("guess{n}")));
        let session = sign_in(&in_office(), &link(&app)).expect(303);
        let cookie = session.header("set-cookie").unwrap().split(';').next().unwrap();
        let _ = in_office().with("Cookie", cookie).get("/v1/session").expect(200);
        // Guessed cookies are counted, and one IPv6 network counts as one client.
        exhausted(&|n| from("203.0.113.9").with("Cookie", &format!("__Host-postcommit={n:043}")).get("/v1/session"));
        exhausted(&|n| from(&format!("2001:db8::{n}")).key(&guess(n)).get("/v1/session"));
        refused(from("203.0.113.8").key(&guess(1)).get("/v1/session"), 401, None);
        let _ = app.ops().get("/v1/session").expect(200);
    }
}

#[test]
fn e14_invalid_settings_are_refused_at_start_by_name() {
    let installation = Installation::new(Kind::Sqlite, Hooks::of(Guarantee::Idempotent));
    for (setting, value, said) in [
        ("API_BURST", "-1", "api.burst"),
        ("API_REQUESTS_PER_S", "2000000", "api.requests_per_s"),
        ("API_PUBLIC_URL", "ftp://example.com", "api.public_url"),
        ("API_PUBLIC_URL", "https://", "api.public_url: is \"https://\", which is not such a URL; allowed are"),
        (
            "API_PUBLIC_URL",
            "https://ada:hush@example.com",
            "api.public_url: has a user name or a password; allowed are",
        ),
        ("API_PUBLIC_URL", "https://example.com/?a=1", "api.public_url: has a query; allowed are"),
        ("DISPATCH_INTERVAL_MS", "5", "dispatch.interval_ms"),
        ("DISPATCH_BATCH", "many", "dispatch.batch"),
        ("KPI_STUCK_AFTER_S", "0", "kpi.stuck_after_s"),
        ("SERVER_LISTEN", "0.0.0.0:0", "server.allow_public"),
        ("SERVER_BODY_BYTES", "1", "server.body_bytes"),
        ("SERVER_TRUSTED_PROXIES", "everybody", "server.trusted_proxies"),
        ("METRICS_TOKEN", "short", "metrics.token"),
        ("INBOX_HEARTBEAT_MS", "60000", "inbox.heartbeat_ms"),
        ("LOG_FORMAT", "xml", "log.format"),
    ] {
        let mut command = installation.command(&["serve"]);
        command.env(format!("POSTCOMMIT_{setting}"), value);
        let server = Child::spawn(command);
        assert_eq!(server.wait().code(), Some(2), "{setting}: {:?}", server.output());
        server.wait_for_line(said);
    }
}
