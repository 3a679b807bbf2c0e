//! Single requests that are slow, large or ambiguous; and which client address is logged.

use std::net::Ipv4Addr;

use super::TestServer;

fn is_problem(answer: &str, status: u16, words: &str) -> bool {
    answer.starts_with(&format!("HTTP/1.1 {status} "))
        && answer.contains("content-type: application/problem+json\r\n")
        && answer.contains("x-request-id: ")
        && answer.contains(&format!("\"status\":{status}"))
        && answer.contains(words)
}

#[test]
fn a_header_that_comes_byte_by_byte_is_cut_off() {
    let server = TestServer::with(&[("SERVER_HEADER_DEADLINE_MS", "300")]);
    let mut old = server.connect();
    assert!(old.is_healthy());
    let mut slow = server.connect();
    slow.send("GET /healthz HTTP/1.1\r\nhost: h\r\nx: ");
    let answer = loop {
        slow.send("y");
        if let Some(answer) = slow.read_if_any() {
            break answer;
        }
        assert!(old.is_healthy() && server.is_healthy(), "others are served meanwhile");
    };
    assert!(is_problem(&answer, 408, "within 300 ms"), "{answer}");
    assert_eq!(server.connect().read_to_end(), "", "who says nothing at all is told nothing");
}

#[test]
fn a_request_that_is_too_large_is_refused_with_the_limit() {
    let server = TestServer::with(&[]);
    let post = |field: &str| server.ask(&format!("POST /healthz HTTP/1.1\r\nhost: h\r\n{field}\r\n\r\n"));
    assert!(is_problem(&post("content-length: 4194305"), 413, "\"limit\":4194304"));
    assert!(is_problem(&post("content-length: 99999999999999999999999999"), 413, "\"limit\":4194304"));
    assert!(is_problem(&post(&["x: y"; 100].join("\r\n")), 431, "\"limit\":100"));
    assert!(is_problem(&post(&format!("x: {}", "y".repeat(33_000))), 431, "\"limit\":32768"));
    assert!(server.is_healthy());
}

#[test]
fn a_request_that_a_proxy_could_read_differently_is_refused() {
    let server = TestServer::with(&[]);
    for fields in [
        "content-length: 3\r\ncontent-length: 3",
        "content-length: 3\r\ncontent-length: 4",
        "content-length: 3\r\ntransfer-encoding: chunked",
        "transfer-encoding: chunked\r\ncontent-length: 3",
        "transfer-encoding: gzip, chunked",
        "transfer-encoding: chunked\r\ntransfer-encoding: chunked",
        "transfer-encoding\t: chunked",
        "x: y\r\n\tz",
        "x: y\nz: a",
        "x: y\0",
    ] {
        let answer = server.ask(&format!("POST /healthz HTTP/1.1\r\nhost: h\r\n{fields}\r\n\r\n"));
        assert!(is_problem(&answer, 400, "bad-request"), "{fields:?}: {answer}");
    }
    for target in [
        "http://h/healthz",
        "//healthz",
        "/healthz//",
        "/x/../healthz",
        "/x%2fhealthz",
        "/x%2Fy",
        "/%2e%2e/healthz",
        "/healthz%00",
        "/healthz\0",
        "*",
    ] {
        let answer = server.ask(&format!("GET {target} HTTP/1.1\r\nhost: h\r\n\r\n"));
        assert!(is_problem(&answer, 400, "bad-request"), "{target:?}: {answer}");
    }
    assert!(
        is_problem(&server.ask(&"\u{0}\u{ff}".repeat(40_000)), 431, "\"limit\":32768"),
        "nonsense is not waited for"
    );
    assert!(server.is_healthy());
}

#[test]
fn the_log_has_route_status_and_the_client_that_a_trusted_proxy_names() {
    let server = TestServer::with(&[
        ("SERVER_TRUSTED_PROXIES", "127.0.0.1/32"),
        ("LOG_LEVEL", "postcommit=debug"),
        ("LOG_FORMAT", "json"),
    ]);
    let request = |id: &str, path: &str| {
        format!(
            "GET {path} HTTP/1.1\r\nhost: h\r\nx-request-id: {id}\r\nx-forwarded-for: 203.0.113.66, 198.51.100.7\r\n\r\n"
        )
    };
    let line = |id: &str| -> serde_json::Value {
        let line = server.process.wait_for_line(&format!("\"request\":\"{id}\""));
        serde_json::from_str(&line).unwrap()
    };
    server.ask(&request("by-proxy", "/healthz?token=hush"));
    let logged = &line("by-proxy")["fields"];
    assert_eq!((&logged["client"], &logged["route"]), (&"198.51.100.7".into(), &"/healthz".into()));
    assert_eq!((&logged["method"], &logged["status"]), (&"GET".into(), &200.into()));
    server.connect_from(Ipv4Addr::new(127, 0, 0, 2)).ask(&request("by-liar", "/hush"));
    let logged = &line("by-liar")["fields"];
    assert_eq!((&logged["client"], &logged["route"]), (&"127.0.0.2".into(), &"-".into()));
    assert_eq!(logged["status"], 404);
    assert!(!server.process.output().iter().any(|line| line.contains("hush")), "{:#?}", server.process.output());
}
