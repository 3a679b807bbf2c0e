//! A server on loopback answers only to its own names: a site whose name resolves to this address (DNS rebinding)
//! cannot read it through its visitors' browsers.

use super::TestServer;

/// A request as a browser would send it.
fn get(path: &str, host: &str, more: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n{more}\r\n")
}

fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

/// The status of a page for a person who is not signed in.
const TO_SIGN_IN: u16 = 303;
const PATHS: [(&str, u16); 5] =
    [("/metrics", 200), ("/", TO_SIGN_IN), ("/openapi.json", 200), ("/v1/notifications", 401), ("/nowhere", 404)];

#[test]
fn a_foreign_host_is_refused_everywhere_but_by_the_probes() {
    let server = TestServer::with(&[]);
    let port = server.address.port();
    let key = server.process.wait_for_line("  key  ").split_whitespace().nth(1).unwrap().to_owned();
    for (path, expected) in PATHS {
        for host in [
            "localhost",
            "LOCALHOST:1",
            "localhost.",
            "127.0.0.1",
            "127.0.0.2:80",
            "[::1]",
            &format!("127.0.0.1:{port}"),
            &format!("[::1]:{port}"),
        ] {
            let answer = server.ask(&get(path, host, "x-forwarded-host: evil.example\r\n"));
            assert_eq!(status(&answer), expected, "{host}{path}: {answer}");
        }
        for host in [
            "evil.example",
            &format!("evil.example:{port}"),
            "EVIL.EXAMPLE.",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "0.0.0.0",
            "[::]",
            "localhost:x",
        ] {
            let answer = server.ask(&get(path, host, "x-forwarded-host: localhost\r\nforwarded: host=localhost\r\n"));
            assert_eq!(status(&answer), 421, "{host}{path}: {answer}");
            assert!(
                answer.contains("localhost, 127.0.0.1") && answer.contains("[::1]"),
                "it says what is allowed: {answer}"
            );
        }
        let answer = server.ask(&format!("GET {path} HTTP/1.0\r\n\r\n"));
        assert_eq!(status(&answer), 421, "no Host is none of ours: {answer}");
        let answer = server.ask(&format!("GET {path} HTTP/1.1\r\n\r\n"));
        assert_eq!(status(&answer), 400, "{answer}");
    }
    let with_key =
        |host: &str| server.ask(&get("/v1/notifications", host, &format!("authorization: Bearer {key}\r\n")));
    assert_eq!((status(&with_key("127.0.0.1")), status(&with_key("evil.example"))), (200, 421));
    assert!(with_key("evil.example").contains("urn:postcommit:problem:misdirected"));
    for path in ["/healthz", "/readyz"] {
        assert_eq!(status(&server.ask(&get(path, "evil.example", ""))), 200, "{path}");
    }
}

#[test]
fn the_public_url_is_an_own_name_but_exposes_no_metrics() {
    let server =
        TestServer::with(&[("API_PUBLIC_URL", "https://Notify.Example.com/"), ("METRICS_TOKEN", "0123456789abcdef")]);
    for host in ["notify.example.com", "NOTIFY.example.com.:443", "localhost"] {
        assert_eq!(status(&server.ask(&get("/", host, ""))), TO_SIGN_IN, "{host}");
    }
    assert_eq!(status(&server.ask(&get("/", "other.example.com", ""))), 421);
    // A proxy that forwards everything would expose the metrics to everyone.
    assert_eq!(status(&server.ask(&get("/metrics", "notify.example.com", ""))), 421);
    assert_eq!(
        status(&server.ask(&get("/metrics", "notify.example.com", "authorization: Bearer 0123456789abcdef\r\n"))),
        200
    );
    assert_eq!(
        status(&server.ask(&get("/metrics", "notify.example.com", "authorization: Bearer 0123456789abcdeF\r\n"))),
        421
    );
}

#[test]
fn behind_a_trusted_proxy_the_proxy_answers_for_the_name() {
    let server = TestServer::with(&[("SERVER_TRUSTED_PROXIES", "127.0.0.1/32")]);
    assert_eq!(status(&server.ask(&get("/", "anything.example", ""))), TO_SIGN_IN);
    assert_eq!(status(&server.ask(&get("/metrics", "localhost", ""))), 401, "there is no open door behind a proxy");
}
