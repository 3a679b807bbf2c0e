//! The NATS driver against a scripted server and against the real one.

use std::time::Duration;

use postcommit_channel::driver::Driver;
use postcommit_channel::model::{Guarantee, Outcome};
use postcommit_testkit::broker::Nats;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{
    Act, Certificate, Journal, Plan, build, build_with, deliver, detail, envelope, heard, hold, id, loopback, send,
    send_within, settings, told,
};
use crate::egress::peer::Peer;

const SUBJECT: &str = "orders.created";

/// Speaks NATS until the script says otherwise.
async fn speak(mut stream: TcpStream, journal: Journal, script: Plan) {
    stream.write_all(b"INFO {\"headers\":true,\"max_payload\":100000}\r\n").await.unwrap();
    if heard(&mut stream, b"PING\r\n").await.is_none() {
        return;
    }
    // A PING at any time must be answered.
    stream.write_all(b"PONG\r\nPING\r\n").await.unwrap();
    while let Some(line) = heard(&mut stream, b"\r\n").await {
        let line = String::from_utf8(line).unwrap();
        let Some(words) = line.strip_prefix("HPUB ") else { continue };
        let words: Vec<&str> = words.split_whitespace().collect();
        let mut body = vec![0; words[3].parse::<usize>().unwrap() + 2];
        if stream.read_exact(&mut body).await.is_err() {
            return;
        }
        let number = journal.add(body);
        let ack = format!("{{\"stream\":\"ORDERS\",\"seq\":{number}}}");
        let ack = format!("MSG {} 1 {}\r\n{ack}\r\n", words[1], ack.len());
        let act = match script(number) {
            Act::Say(bytes) => Act::Say(String::from_utf8_lossy(&bytes).replace("REPLY", words[1]).into_bytes()),
            act => act,
        };
        let Some(open) = journal.act(act, stream, ack.as_bytes()).await else { return };
        stream = open;
    }
}

async fn scripted(script: impl Fn(usize) -> Act + Send + Sync + 'static) -> (Peer, Journal) {
    super::scripted(speak, script).await
}

fn plain(port: u16) -> Box<dyn Driver> {
    build("nats", &settings(port, &json!({})), &[])
}

fn message(status: &str, body: &str) -> Vec<u8> {
    let headers = if status.is_empty() { String::new() } else { format!("NATS/1.0 {status}\r\n\r\n") };
    match status {
        "" => format!("MSG REPLY 1 {}\r\n{body}\r\n", body.len()).into_bytes(),
        _ => {
            format!("HMSG REPLY 1 {} {}\r\n{headers}{body}\r\n", headers.len(), headers.len() + body.len()).into_bytes()
        }
    }
}

#[tokio::test]
async fn an_answer_to_a_publish_decides_the_outcome() {
    let error = |code: u16, err_code: u32| {
        message("", &format!(r#"{{"error":{{"code":{code},"err_code":{err_code},"description":"no"}}}}"#))
    };
    for (act, expected) in [
        (Act::Ack, "sent - -"),
        (Act::Close, "unclear closed network"),
        (Act::Say(message("503", "")), "deferred no_responders config"),
        (Act::Say(error(400, 10_054)), "rejected jetstream_10054 invalid_content"),
        (Act::Say(error(400, 10_060)), "rejected jetstream_10060 invalid_address"),
        (Act::Say(error(503, 10_039)), "config jetstream_10039 config"),
        (Act::Say(error(503, 10_077)), "deferred jetstream_10077 account"),
        (Act::Say(error(503, 10_008)), "deferred jetstream_10008 server_error"),
        (Act::Say(error(400, 10_071)), "rejected jetstream_10071 unknown"),
        // An earlier attempt with the same key is being stored.
        (Act::Say(error(409, 10_158)), "unclear jetstream_10158 unknown"),
        // Some servers acknowledge a repetition of such a key with the number 0.
        (Act::Say(message("", r#"{"stream":"ORDERS","seq":0,"duplicate":true}"#)), "unclear bad_answer server_error"),
        (Act::Say(message("", "{}")), "unclear bad_answer server_error"),
        (Act::Say(message("", "\u{1}")), "unclear bad_answer server_error"),
        (Act::Say(b"MSG REPLY 1 99999999999999999999\r\n".to_vec()), "unclear bad_answer server_error"),
        (Act::Say(b"HMSG REPLY 1 20 10\r\n0123456789\r\n".to_vec()), "unclear bad_answer server_error"),
        (Act::Say(b"MSG\r\n".to_vec()), "unclear bad_answer server_error"),
        (Act::Say(b"-ERR 'Permissions Violation for Publish to \"x\"'\r\n".to_vec()), "rejected forbidden forbidden"),
        (Act::Say(b"-ERR 'Maximum Payload Violation'\r\n".to_vec()), "rejected too_large invalid_content"),
        (Act::Say(b"-ERR 'User Authentication Expired'\r\n".to_vec()), "unclear nats_error auth_failed"),
        (Act::Say(b"-ERR 'Stale Connection'\r\n".to_vec()), "unclear nats_error rate_limited"),
        (Act::Say(b"HTTP/1.1 200 OK\r\n\r\n".to_vec()), "unclear bad_answer server_error"),
        (Act::Say(vec![b'x'; 100_000]), "unclear bad_answer server_error"),
    ] {
        let shown = format!("{act:?}").chars().take(100).collect::<String>();
        let (peer, journal) = scripted(move |_| act.clone()).await;
        let report = send(plain(peer.port).as_ref(), SUBJECT, 1).await;
        assert_eq!(told(&report), expected, "{shown}: {report:?}");
        assert_eq!(journal.all().len(), 1, "{shown}");
    }
    let (peer, _) = scripted(|_| Act::Silence).await;
    let report = send_within(plain(peer.port).as_ref(), SUBJECT, 1, Duration::from_millis(300)).await;
    assert_eq!(told(&report), "unclear timeout timeout");
}

#[tokio::test]
async fn a_refused_sign_in_pauses_the_lane_and_the_token_stays_hidden() {
    for (text, expected) in [
        ("-ERR 'Authorization Violation'\r\n", "config auth_failed auth_failed"),
        // Our sign-in came too late, and says nothing about the token.
        ("-ERR 'Authentication Timeout'\r\n", "deferred nats_error timeout"),
        ("-ERR 'maximum connections exceeded s3cret-token'\r\n", "deferred nats_error rate_limited"),
        ("-ERR 'Permissions Violation for Subscription to \"_INBOX\"'\r\n", "config forbidden forbidden"),
    ] {
        let peer = Peer::new(move |mut stream| async move {
            stream.write_all(b"INFO {\"headers\":true,\"max_payload\":100000}\r\n").await.unwrap();
            heard(&mut stream, b"PING\r\n").await;
            stream.write_all(text.as_bytes()).await.unwrap();
        })
        .await;
        let driver = build("nats", &settings(peer.port, &json!({})), &[("token", "s3cret-token")]);
        let report = send(driver.as_ref(), SUBJECT, 1).await;
        assert_eq!(told(&report), expected, "{text}");
        assert!(!format!("{report:?}").contains("s3cret"), "{report:?}");
    }
}

#[tokio::test]
async fn connections_are_used_again_and_a_closed_one_is_replaced() {
    let (peer, journal) = scripted(|number| if number == 3 { Act::AckAndClose } else { Act::Ack }).await;
    let driver = plain(peer.port);
    for n in 1..=3 {
        assert_eq!(send(driver.as_ref(), SUBJECT, n).await.outcome, Outcome::Sent);
    }
    assert_eq!(peer.accepted(), 1);
    journal.wait_until_closed(1).await;
    for n in 4..=5 {
        assert_eq!(send(driver.as_ref(), SUBJECT, n).await.outcome, Outcome::Sent);
    }
    assert_eq!((peer.accepted(), journal.all().len()), (2, 5));

    let once = build_with("nats", &settings(peer.port, &json!({})), &[], Some(Guarantee::AtMostOnce), &loopback());
    let once = once.unwrap();
    for n in 6..=7 {
        assert_eq!(send(once.as_ref(), SUBJECT, n).await.outcome, Outcome::Sent);
    }
    assert_eq!(peer.accepted(), 4, "with at_most_once each event has its own connection");
}

#[tokio::test]
async fn an_encrypted_provider_says_nothing_in_the_clear() {
    for (info, expected) in [
        // The server, or somebody on the way, does not offer TLS.
        (&b"INFO {\"headers\":true,\"max_payload\":1000}\r\n"[..], "config tls_missing config"),
        // Somebody on the way adds an answer before the encryption begins.
        (
            &b"INFO {\"headers\":true,\"max_payload\":1000,\"tls_required\":true}\r\nPONG\r\n"[..],
            "deferred bad_answer server_error",
        ),
    ] {
        let peer = Peer::new(move |mut stream| async move {
            stream.write_all(info).await.unwrap();
            let mut rest = vec![];
            let _ = stream.read_to_end(&mut rest).await;
            assert_eq!(rest, b"");
        })
        .await;
        let secure = json!({"host": "127.0.0.1", "port": peer.port});
        let report = send(build("nats", &secure, &[("token", "s3cret")]).as_ref(), SUBJECT, 1).await;
        assert_eq!(told(&report), expected);
    }
    let peer = Peer::new(|mut stream: TcpStream| async move {
        stream.write_all(b"INFO {\"headers\":true,\"max_payload\":1000,\"tls_required\":true}\r\n").await.unwrap();
        hold(stream).await;
    })
    .await;
    assert_eq!(told(&send(plain(peer.port).as_ref(), SUBJECT, 1).await), "config tls_required config");
}

#[tokio::test]
async fn wildcards_blanks_and_subjects_of_the_server_are_refused() {
    let (peer, journal) = scripted(|_| Act::Ack).await;
    let driver = build("nats", &settings(peer.port, &json!({"inbox_prefix": "shop.inbox"})), &[]);
    for target in [
        "orders.*",
        "orders.>",
        ">",
        "a b",
        "a\tb",
        ".a",
        "a.",
        "a..b",
        "$JS.API.STREAM.DELETE.ORDERS",
        "$SYS.REQ.SERVER.PING",
        "_INBOX.abc",
        "shop.inbox.abc",
    ] {
        let report = send(driver.as_ref(), target, 1).await;
        assert_eq!(told(&report), "rejected bad_address invalid_address", "{target}");
        assert!(detail(&report).starts_with("the address "), "{report:?}");
    }
    assert!(journal.all().is_empty());
    assert_eq!(send(driver.as_ref(), "shop.inboxes", 1).await.outcome, Outcome::Sent);
}

#[test]
fn settings_of_nats_are_checked() {
    let built = |more, secrets: &[(&str, &str)]| {
        build_with("nats", &settings(4222, &more), secrets, None, &loopback()).err().unwrap_or_default()
    };
    assert_eq!(built(json!({"key_window_s": 0}), &[]), "settings.key_window_s: is 0; 1 to 2592000 are allowed");
    assert!(built(json!({"stream": "A.B"}), &[]).starts_with("settings.stream: holds '.'"));
    assert!(built(json!({"inbox_prefix": "a.>"}), &[]).starts_with("settings.inbox_prefix: holds '>'"));
    assert!(built(json!({"username": "a"}), &[]).starts_with("secret: settings.username needs the secret"));
    assert!(built(json!({}), &[("password", "x")]).starts_with("settings.username: is missing"));
    let both = [("password", "x"), ("token", "y")];
    assert!(built(json!({"username": "a"}), &both).starts_with("secret: either"));
}

#[tokio::test]
async fn the_real_server_stores_each_event_once_with_the_same_bytes() {
    let nats = Nats::start("authorization { user: desk, password: \"s3cret\" }");
    let mut client = nats.client(&json!({"user": "desk", "pass": "s3cret"}));
    client.add_stream("ORDERS", &["orders.>"], &json!({}));
    let settings = settings(nats.addr().port(), &json!({"username": "desk", "stream": "ORDERS"}));
    let driver = || build("nats", &settings, &[("password", "s3cret")]);
    // Another driver each time, as after a restart. The second attempt is a repetition.
    for attempt in 1..=2 {
        let report = send(driver().as_ref(), SUBJECT, 1).await;
        assert_eq!(report.outcome, Outcome::Sent);
        assert_eq!(report.evidence.provider_ref.as_deref(), Some("ORDERS:1"), "{report:?}");
        let excerpt = report.evidence.excerpt.unwrap();
        assert_eq!(excerpt.contains("\"duplicate\": true"), attempt == 2, "{excerpt}");
    }
    assert_eq!(send(driver().as_ref(), "orders.paid", 2).await.outcome, Outcome::Sent);
    let events: Vec<_> =
        client.events("ORDERS").into_iter().map(|event| (event.target, event.id, event.body)).collect();
    let expected = [(SUBJECT, 1), ("orders.paid", 2)].map(|(to, n)| (to.to_owned(), id(n), envelope(n)));
    assert_eq!(events, expected);
}

#[tokio::test]
async fn the_real_server_refuses_in_ways_that_are_understood() {
    let limits = "max_payload: 20000\nauthorization { users: [
        { user: desk, password: \"s3cret\" }
        { user: clerk, password: \"s3cret\", permissions: { publish: \"orders.>\", subscribe: \"_INBOX.>\" } }
    ] }";
    let nats = Nats::start(limits);
    let mut client = nats.client(&json!({"user": "desk", "pass": "s3cret"}));
    client.add_stream("SMALL", &["small"], &json!({"max_msg_size": 100}));
    client.add_stream("FULL", &["full"], &json!({"max_msgs": 1, "discard": "new"}));
    let driver = |user: &str, password: &str, more: serde_json::Value| {
        let mut settings = settings(nats.addr().port(), &more);
        settings["username"] = user.into();
        build("nats", &settings, &[("password", password)])
    };
    let desk = driver("desk", "s3cret", json!({}));
    for (target, n, expected) in [
        ("nobody", 1, "deferred no_responders config"),
        ("small", 2, "rejected jetstream_10054 invalid_content"),
        ("full", 3, "sent - -"),
        ("full", 4, "deferred jetstream_10077 account"),
    ] {
        let report = send(desk.as_ref(), target, n).await;
        assert_eq!(told(&report), expected, "{target}: {report:?}");
    }
    let elsewhere = send(driver("desk", "s3cret", json!({"stream": "OTHER"})).as_ref(), "full", 5).await;
    assert_eq!(told(&elsewhere), "rejected jetstream_10060 invalid_address", "{elsewhere:?}");
    let forbidden = send(driver("clerk", "s3cret", json!({})).as_ref(), "full", 6).await;
    assert_eq!(told(&forbidden), "rejected forbidden forbidden", "{forbidden:?}");
    let wrong = send(driver("desk", "wrong", json!({})).as_ref(), "full", 7).await;
    assert_eq!(told(&wrong), "config auth_failed auth_failed", "{wrong:?}");
    let large = format!("\"{}\"", "x".repeat(20_000));
    let report =
        deliver(desk.as_ref(), "full", 8, Duration::from_secs(30), &large, "2100-01-01T00:00:00Z".parse().unwrap());
    let report = report.await;
    assert_eq!(told(&report), "rejected too_large invalid_content");
    assert!(detail(&report).ends_with("the server takes at most 20000"), "{report:?}");
}

#[tokio::test]
async fn the_real_server_is_reached_over_tls_and_by_a_token() {
    let certificate = Certificate::new();
    let files = (certificate.file("cert.pem"), certificate.file("key.pem"));
    let tls = format!("tls {{ cert_file: {:?}, key_file: {:?} }}", files.0, files.1);
    let mut nats = Nats::start(&format!("{tls}\nauthorization {{ token: \"s3cret\" }}"));
    let port = nats.addr().port();
    let settings = json!({"host": "tls.example", "port": port});
    let driver = build_with("nats", &settings, &[("token", "s3cret")], None, &certificate.egress).unwrap();
    // The server has no stream, which it can say only to a client that is signed in.
    assert_eq!(told(&send(driver.as_ref(), SUBJECT, 1).await), "deferred no_responders config");
    nats.restart();
    // The connection of the server before is closed, and a new one is opened.
    assert_eq!(told(&send(driver.as_ref(), SUBJECT, 1).await), "deferred no_responders config");
    let other_name = json!({"host": "127.0.0.1", "port": port});
    let driver = build_with("nats", &other_name, &[("token", "s3cret")], None, &certificate.egress).unwrap();
    let report = send(driver.as_ref(), SUBJECT, 1).await;
    assert_eq!(told(&report), "config tls_certificate config", "the certificate has another name: {report:?}");
}
