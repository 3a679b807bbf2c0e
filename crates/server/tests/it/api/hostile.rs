//! Malicious bodies: each is refused clearly, with its field, and affects no other client.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use postcommit_testkit::HttpClient;
use serde_json::{Value, json};

use super::app::{App, items, refused, text};
use crate::door::RawClient;

const PATH: &str = "/v1/notifications";

fn sound() -> Value {
    json!({"event_type": "a", "recipients": [{"email": "guest@example.com"}]})
}

/// A notification with another value for a field, as raw JSON.
fn with(field: &str, json: &str) -> Vec<u8> {
    format!(r#"{{"event_type": "a", "recipients": [{{"email": "guest@example.com"}}], "{field}": {json}}}"#)
        .into_bytes()
}

/// Unreadable bodies, the status of each, and the field that the answer names.
fn bodies() -> Vec<(&'static str, Vec<u8>, u16, Option<&'static str>)> {
    let nested = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
    let long = |bytes: usize| format!("{:?}", "x".repeat(bytes));
    vec![
        ("nothing", vec![], 422, Some("event_type")),
        ("no object", b"[1, 2]".to_vec(), 422, None),
        ("half of it", br#"{"event_type": "a""#.to_vec(), 400, None),
        ("two of them", [sound().to_string(), sound().to_string()].concat().into_bytes(), 400, None),
        ("bytes after it", format!("{}\0", sound()).into_bytes(), 400, None),
        ("a byte order mark", format!("\u{feff}{}", sound()).into_bytes(), 400, None),
        ("no UTF-8", b"{\"event_type\": \"\xff\xfe\"}".to_vec(), 400, None),
        ("UTF-16", sound().to_string().encode_utf16().flat_map(u16::to_le_bytes).collect(), 400, None),
        ("33 levels", with("payload", &nested(33)), 422, Some("payload")),
        ("100,000 levels", with("payload", &nested(100_000)), 422, None),
        ("a large payload", with("payload", &long(262_145)), 422, Some("payload")),
        ("a large text", with("body", &long(262_145)), 422, Some("body")),
        ("NUL in a payload", with("payload", r#"{"a": "\u0000"}"#), 422, Some("payload")),
        ("NUL in a name", with("payload", r#"{"\u0000": 1}"#), 422, Some("payload")),
        ("NUL in a title", with("title", r#""a\u0000b""#), 422, Some("title")),
        ("NUL in a text", with("body", r#""a\u0000b""#), 422, Some("body")),
        ("two lines of title", with("title", r#""a\r\nBcc: b@example.com""#), 422, Some("title")),
        ("two lines of key", with("idempotency_key", r#""a\nb""#), 422, Some("idempotency_key")),
        ("two lines of entity", with("entity", r#""a\r\nb""#), 422, Some("entity")),
        ("two lines of correlation", with("correlation_id", r#""a\nb""#), 422, Some("correlation_id")),
        ("two lines of topic", with("topic", r#""a\nb""#), 422, Some("topic")),
        ("half a character", with("title", r#""\ud800""#), 422, None),
        ("half a character in a payload", with("payload", r#"{"a": "\udc00"}"#), 422, None),
        ("a field twice", with("event_type", r#""b""#), 422, Some("event_type")),
        ("a name twice in a payload", with("payload", r#"{"a": 1, "a": 2}"#), 422, Some("payload")),
        ("an unknown field", with("recipient", "1"), 422, Some("recipient")),
        ("a script as a link", with("action_url", r#""javascript:alert(1)""#), 422, Some("action_url")),
        ("a priority of 10", with("priority", "10"), 422, Some("priority")),
        ("a priority beyond any number", with("priority", "99999999999999999999"), 422, Some("priority")),
        ("a day that is not", with("due_at", r#""2026-02-30T00:00:00Z""#), 422, Some("due_at")),
        ("an empty key", with("idempotency_key", r#""""#), 422, Some("idempotency_key")),
        ("no event", br#"{"recipients": [{"email": "guest@example.com"}]}"#.to_vec(), 422, Some("event_type")),
        (
            "no address",
            br#"{"event_type": "a", "recipients": [{"email": "guest"}]}"#.to_vec(),
            422,
            Some("recipients[0].email"),
        ),
        (
            "two lines of address",
            br#"{"event_type": "a", "recipients": [{"email": "a@b.c\r\nBcc: d@e.f"}]}"#.to_vec(),
            422,
            Some("recipients[0].email"),
        ),
    ]
}

/// Sends a head that the HTTP client would not send.
fn by_hand(app: &App, token: &str, fields: &str, body: &str) -> String {
    let length = body.len();
    let key = format!("Authorization: Bearer {token}\r\n");
    RawClient::at(app.address())
        .ask(&format!("POST {PATH} HTTP/1.1\r\nHost: localhost\r\n{key}{fields}Content-Length: {length}\r\n\r\n{body}"))
}

fn is_problem(answer: &str, status: u16, words: &str) -> bool {
    answer.starts_with(&format!("HTTP/1.1 {status} "))
        && answer.contains("application/problem+json")
        && answer.contains(words)
}

/// Sends chunks without end, until the server answers.
fn endless_chunks(app: &App, token: &str) -> String {
    let mut raw = RawClient::at(app.address());
    raw.send(format!("POST {PATH} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"));
    let chunk = format!("10000\r\n{}\r\n", " ".repeat(0x10000));
    // Far more than the server accepts: a server that reads everything would never answer.
    let _ = (0..10_000).try_for_each(|_| raw.0.write_all(chunk.as_bytes()));
    raw.read_response()
}

/// Posts of another client, one after the other, until asked to stop. Returns their number.
fn others(client: &HttpClient, is_over: &AtomicBool) -> usize {
    let mut posted = 0;
    while !is_over.load(Ordering::Relaxed) || posted == 0 {
        let _ = client.post(PATH, &sound()).expect(202);
        posted += 1;
    }
    posted
}

/// Runs `attack` while another client posts. Every post of that client must be accepted and stored.
fn while_others_post(app: &App, attack: impl FnOnce()) {
    let client = app.client("default", &["enqueue"]);
    let (is_over, count) =
        (AtomicBool::new(false), || app.installation.count("SELECT count(*) FROM postcommit.notification"));
    let before = count();
    let posted = thread::scope(|scope| {
        let others = scope.spawn(|| others(&client, &is_over));
        let attacked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(attack));
        is_over.store(true, Ordering::Relaxed);
        let posted = others.join().unwrap();
        attacked.unwrap_or_else(|problem| std::panic::resume_unwind(problem));
        posted
    });
    assert_eq!(count() - before, posted, "nothing of the attack is stored, and everything of the others");
}

on_both! {
    fn malicious_bodies_are_refused_with_their_field_and_affect_no_other_client(kind) {
        let app = App::at_rest(kind);
        let client = app.client("default", &["enqueue"]);
        while_others_post(&app, || {
            for (name, body, status, field) in bodies() {
                println!("{name}");
                refused(client.send("POST", PATH, Some(&body)), status, field);
            }
            let long = client.send("POST", PATH, Some(&with(&"x".repeat(1_000_000), "1"))).expect(422);
            assert!(long.body.len() < 8000, "a refusal repeats {} bytes of what it refuses", long.body.len());
            refused(client.send_as("text/plain", "POST", PATH, sound().to_string().as_bytes()), 415, None);
            refused(client.send_as("application/x-www-form-urlencoded", "POST", PATH, b"event_type=a"), 415, None);
            refused(client.send("POST", PATH, None), 422, Some("event_type"));
            let none = json!({"notifications": []});
            let many = json!({"notifications": vec![json!({}); 1001]});
            for batch in [none, many] {
                refused(client.post("/v1/notifications/batch", &batch), 422, Some("notifications"));
            }
        });
        let _ = client.post(PATH, &sound()).expect(202);
    }

    fn slow_giant_and_ambiguous_requests_are_refused_and_affect_no_other_client(kind) {
        let app = App::with(kind, "api", &[("SERVER_BODY_GRACE_MS", "300"), ("SERVER_BODY_BYTES_PER_S", "100000")]);
        let token = app.create_key("default", &["enqueue"]).token;
        let (json_kind, body) = ("Content-Type: application/json\r\n", sound().to_string());
        while_others_post(&app, || {
            let mut slow = RawClient::at(app.address());
            slow.send(format!("POST {PATH} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n{json_kind}Content-Length: 100000\r\n\r\n{{"));
            assert!(is_problem(&slow.read_response(), 408, "too-slow"));
            let mut giant = RawClient::at(app.address());
            giant.send(format!("POST {PATH} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n{json_kind}Content-Length: 4194305\r\n\r\n"));
            assert!(is_problem(&giant.read_response(), 413, "\"limit\":4194304"));
            assert!(is_problem(&endless_chunks(&app, &token), 413, "\"limit\":4194304"));
            let twice = by_hand(&app, &token, &format!("{json_kind}Authorization: Bearer {token}\r\n"), &body);
            assert!(is_problem(&twice, 400, "Authorization is given more than once"), "{twice}");
            let twice = by_hand(&app, &token, &format!("{json_kind}Idempotency-Key: a\r\nIdempotency-Key: b\r\n"), &body);
            assert!(is_problem(&twice, 422, "\"field\":\"Idempotency-Key\""), "{twice}");
            let basic = app.nobody().with("Authorization", "Basic cGM6cGM=").post(PATH, &sound());
            assert_eq!(refused(basic, 401, None)["type"], "urn:postcommit:problem:unauthenticated");
        });
    }

    fn lists_refuse_invalid_limits_cursors_and_names(kind) {
        let app = App::at_rest(kind);
        let client = app.client("default", &["admin"]);
        for list in ["notifications", "deliveries", "jobs", "keys", "audit", "entities/7/deliveries"] {
            for (query, field) in [
                ("limit=0", "limit"),
                ("limit=201", "limit"),
                ("limit=-1", "limit"),
                ("limit=ten", "limit"),
                ("limit=99999999999999999999", "limit"),
                ("cursor=nonsense", "cursor"),
                ("cursor=AAAA", "cursor"),
                ("cursor=", "cursor"),
            ] {
                refused(client.get(&format!("/v1/{list}?{query}")), 422, Some(field));
            }
            refused(client.get(&format!("/v1/{list}?cursor={}", "A".repeat(2000))), 422, Some("cursor"));
            assert_eq!(client.get(&format!("/v1/{list}?unknown=1")).status, 422, "{list}");
            assert_eq!(client.get(&format!("/v1/{list}?limit=1&limit=2")).status, 422, "{list}");
            let _ = client.get(&format!("/v1/{list}?limit=200")).expect(200);
        }
        refused(client.get("/v1/notifications?state=lost"), 422, Some("state"));
        refused(client.get("/v1/notifications?from=yesterday"), 422, Some("from"));
        for id in ["nonsense", "00000000-0000-0000-0000-000000000000", "%F0%9F%92%A9", "%FF"] {
            for (list, noun) in [("notifications", "notification"), ("deliveries", "delivery"), ("jobs", "job")] {
                let problem = refused(client.get(&format!("/v1/{list}/{id}")), 404, None);
                assert_eq!(problem["detail"], format!("there is no such {noun}"));
            }
        }
        refused(client.get("/v1/deliveries/00000000-0000-0000-0000-000000000000.99999999999"), 404, None);
    }

    fn a_cursor_that_was_made_by_hand_is_refused(kind) {
        let app = App::at_rest(kind);
        let by_hand = |json: &str| URL_SAFE_NO_PAD.encode(json);
        // Well-formed cursors that the server never issued: PostgreSQL cannot be asked for a NUL.
        for (list, cursor) in [("keys", r#"["2026-01-01T00:00:00Z","a\u0000"]"#), ("tenants", r#""a\u0000""#)] {
            refused(app.ops().get(&format!("/v1/{list}?cursor={}", by_hand(cursor))), 422, Some("cursor"));
            let _ = app.ops().get(&format!("/v1/{list}?cursor={}", by_hand(&cursor.replace(r"\u0000", "")))).expect(200);
        }
    }

    fn names_with_a_slash_are_reached_by_their_path(kind) {
        let app = App::at_rest(kind);
        let client = app.client("default", &["admin"]);
        let id = app.enqueue(&client, &json!({"event_type": "a", "entity": "/rooms/7", "recipients": [{"user": "team/alice"}]}));
        app.pass();
        let sent = items(client.get("/v1/entities/%2Frooms%2F7/deliveries"));
        assert_eq!((sent.len(), text(&sent[0], "notification_id")), (1, id), "{sent:?}");
        let _ = client.post("/v1/entities/%2Frooms%2F7/cancel", &json!({})).expect(200);
        let token = text(&client.send("POST", "/v1/inbox/team%2Falice/token", None).expect(200).json(), "token");
        let alice = app.nobody().key(&token);
        let message = text(&items(alice.get("/v1/inbox/team%2falice"))[0], "id");
        let _ = alice.send("POST", &format!("/v1/inbox/team%2Falice/{message}/read"), None).expect(200);
        // An encoded slash does not separate path segments: this is the inbox of that user only, and other paths are
        // refused.
        refused(alice.get("/v1/inbox/team"), 403, None);
        refused(alice.get("/v1/inbox/team/alice"), 404, None);
        for path in ["/v1/inbox/a%2F..%2Fb", "/v1/notifications%2F", "/v1/providers/a%2Fb"] {
            assert_eq!(client.get(path).status, 400, "{path}");
        }
    }

    fn names_with_a_backslash_are_reached_by_their_path(kind) {
        let app = App::at_rest(kind);
        let client = app.client("default", &["admin"]);
        let id = app.enqueue(&client, &json!({"event_type": "a", "entity": r"rooms\7", "recipients": [{"user": r"CORP\alice"}]}));
        app.pass();
        let sent = items(client.get("/v1/entities/rooms%5C7/deliveries"));
        assert_eq!((sent.len(), text(&sent[0], "notification_id")), (1, id), "{sent:?}");
        let token = text(&client.send("POST", "/v1/inbox/CORP%5Calice/token", None).expect(200).json(), "token");
        let alice = app.nobody().key(&token);
        assert_eq!(items(alice.get("/v1/inbox/CORP%5calice")).len(), 1);
        refused(alice.get("/v1/inbox/CORP%2Falice"), 403, None);
        for path in ["/v1/inbox/a%5C..%5Cb", "/v1/notifications%5C", "/v1/providers/a%5Cb"] {
            assert_eq!(client.get(path).status, 400, "{path}");
        }
    }

    fn a_user_whose_inbox_no_path_could_open_is_refused(kind) {
        let app = App::at_rest(kind);
        let client = app.client("default", &["enqueue"]);
        for user in [".", "..", "team/../alice", r"CORP\.", "a\tb", "a\u{1b}b", "a\u{7f}", "a\u{85}"] {
            refused(client.post(PATH, &json!({"event_type": "a", "recipients": [{"email": "a@example.com"}, {"user": user}]})), 422, Some("recipients[1].user"));
        }
        for user in ["...", "a..b", ".a", "team/.a", "\u{e9} \u{1f4a9}%"] {
            let _ = client.post(PATH, &json!({"event_type": "a", "recipients": [{"user": user}]})).expect(202);
        }
    }

    fn numbers_with_more_decimals_than_postgresql_keeps_are_refused_by_name(kind) {
        let app = App::at_rest(kind);
        let client = app.client("default", &["enqueue"]);
        let send = |field: &str, number: &str| client.send("POST", PATH, Some(&with(field, &format!(r#"{{"sms":{{"list":["1e-99999",{number}]}}}}"#))));
        let decimals = |count: usize| format!("0.{}1", "0".repeat(count - 1));
        for field in ["payload", "data"] {
            for number in [decimals(16_383), "-1.5E-16382".into(), format!("{}e1", decimals(16_384))] {
                let _ = send(field, &number).expect(202);
            }
            for number in [decimals(16_384), "1.5e-16383".into(), "1e-99999999999999999999".into()] {
                let said = refused(send(field, &number), 422, Some(field));
                assert!(text(&said, "detail").contains("16383"), "{said}");
            }
        }
    }

    fn digits_are_kept_as_they_were_written(kind) {
        let app = App::at_rest(kind);
        let client = app.client("default", &["enqueue", "read"]);
        let payload = r#"{"large":123456789012345678901234567890,"small":-0.10000000000000000000000001,"exact":1.10,"text":"\u00e9 \"q\" \\"}"#;
        let sent = client.send("POST", PATH, Some(&with("payload", payload))).expect(202).json();
        let story = client.get(&format!("{PATH}/{}", text(&sent, "id"))).expect(200).text();
        for digits in ["123456789012345678901234567890", "-0.10000000000000000000000001", "1.10"] {
            assert!(story.contains(digits), "{digits}: {story}");
        }
        let read: Value = serde_json::from_str(&story).unwrap();
        assert_eq!(read["payload"]["text"], "\u{e9} \"q\" \\");
    }
}
