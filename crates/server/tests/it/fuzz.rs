//! The server against its own OpenAPI document: the short form of `scripts/fuzz-api`, and a test for each bug that it
//! found.

use std::path::Path;
use std::process::Command;

use postcommit_testkit::{Child, HttpClient};
use serde_json::{Value, json};

use crate::installation::{Guarantee, Hooks, Installation, Kind};

/// Every operation of the document, with a key and without: every answer is one that the document promises.
fn each_answer_is_one_that_the_description_promises(more: &[&str]) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/fuzz-api");
    let mut fuzz = Command::new(script);
    fuzz.args(["--requests", "1500"]).args(more).env("POSTCOMMIT_BIN", env!("CARGO_BIN_EXE_postcommit"));
    let ran = fuzz.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let said = text(&ran.stdout);
    assert!(ran.status.success(), "{said}\n{}", text(&ran.stderr));
    println!("{}", said.lines().filter(|line| line.starts_with("==>")).collect::<Vec<_>>().join("\n"));
}

#[test]
fn each_answer_is_one_that_the_description_promises_on_sqlite() {
    each_answer_is_one_that_the_description_promises(&[]);
}

#[test]
fn each_answer_is_one_that_the_description_promises_on_postgres() {
    each_answer_is_one_that_the_description_promises(&["--postgres"]);
}

/// A server, and a client with a key that may do everything.
struct Served {
    client: HttpClient,
    nobody: HttpClient,
    _server: Child,
    _installation: Installation,
}

fn served(kind: Kind) -> Served {
    let installation = Installation::new(kind, Hooks::of(Guarantee::Idempotent));
    let server = installation.serve();
    let line = server.wait_for_line("/healthz");
    let address = line.split("http://").nth(1).unwrap().strip_suffix("/healthz").unwrap().parse().unwrap();
    let key = server.wait_for_line("  key  ").split_whitespace().nth(1).unwrap().to_owned();
    let nobody = HttpClient::new(address);
    Served { client: nobody.clone().key(&key), nobody, _server: server, _installation: installation }
}

/// The status of an answer, and the field that it names.
fn refusal(client: &HttpClient, method: &str, path: &str, body: Option<&Value>) -> (u16, Option<String>) {
    let answer = client.send(method, path, body.map(Value::to_string).as_deref().map(str::as_bytes));
    let problem = answer.json();
    (answer.status, problem["field"].as_str().map(str::to_owned))
}

/// Method, path and body of a request; the expected status and field.
type Nonsense<'a> = (&'a str, &'a str, Option<Value>, u16, Option<&'a str>);

fn invalid_requests_are_refused_with_their_field(kind: Kind) {
    let served = served(kind);
    let (long, too_many) = ("x".repeat(256), ["read"; 8]);
    let cases: &[Nonsense<'_>] = &[
        // PostgreSQL cannot store NUL, not even as a parameter.
        ("GET", "/v1/notifications?entity=a%00", None, 422, Some("entity")),
        ("GET", "/v1/providers?tenant=a%00", None, 404, Some("tenant")),
        ("GET", "/v1/providers/a%00", None, 400, None),
        ("POST", "/v1/entities/1/cancel", Some(json!({"event_type": "a\0"})), 422, Some("event_type")),
        ("POST", "/v1/deliveries/retry", Some(json!({"filter": {"entity": "a\0"}})), 422, Some("filter.entity")),
        ("POST", "/v1/notifications", Some(json!({"event_type": "a", "tenant": "a\0"})), 422, Some("tenant")),
        // Values beyond their limits.
        ("POST", "/v1/entities/1/cancel", Some(json!({"event_type": ""})), 422, Some("event_type")),
        ("POST", "/v1/entities/1/cancel", Some(json!({"event_type": long})), 422, Some("event_type")),
        ("POST", "/v1/deliveries/discard", Some(json!({"filter": {"site": long}})), 422, Some("filter.site")),
        ("POST", "/v1/deliveries/discard", Some(json!({"ids": ["x"], "pace_per_s": 0})), 422, Some("pace_per_s")),
        ("POST", "/v1/keys", Some(json!({"name": "a", "scopes": too_many})), 422, Some("scopes")),
        ("POST", "/v1/inbox/u/read-all", Some(json!({"up_to": -1})), 422, Some("up_to")),
        ("GET", "/v1/inbox/u/stream?after=-1", None, 422, Some("after")),
        ("GET", "/v1/deliveries?attempts=65536", None, 422, Some("attempts")),
        ("GET", "/v1/deliveries?reason=none", None, 422, Some("reason")),
    ];
    for (method, path, body, status, field) in cases {
        let expected = (*status, field.map(str::to_owned));
        assert_eq!(refusal(&served.client, method, path, body.as_ref()), expected, "{method} {path} {body:?}");
    }
    // A request that cannot be read is refused in the same form as any other.
    let answer = served.client.send("POST", "/v1/inbox/%FF/token", None);
    assert_eq!((answer.status, answer.header("content-type")), (404, Some("application/problem+json")));
}

#[test]
fn invalid_requests_are_refused_with_their_field_on_postgres() {
    invalid_requests_are_refused_with_their_field(Kind::Postgres);
}

#[test]
fn invalid_requests_are_refused_with_their_field_on_sqlite() {
    invalid_requests_are_refused_with_their_field(Kind::Sqlite);
}

/// An application with an old key must not lock out others behind the same address.
#[test]
fn failed_sign_ins_do_not_block_a_valid_key() {
    let served = served(Kind::Sqlite);
    let _ = served.client.get("/v1/session").expect(200);
    let stranger = served.nobody.clone().key("pc_0000000000000000_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA");
    let statuses: Vec<u16> = (0..25).map(|_| stranger.get("/v1/session").status).collect();
    assert_eq!((statuses[0], statuses[24]), (401, 429), "{statuses:?}");
    // This change clears the cache: every key is looked up again.
    let _ = served.client.post("/v1/tenants", &json!({"name": "other"})).expect(201);
    let _ = served.client.post("/v1/tenants/other/suspend", &json!({"reason": "a test"})).expect(200);
    let _ = served.client.get("/v1/session").expect(200);
    assert_eq!(stranger.get("/v1/session").status, 429);
}
