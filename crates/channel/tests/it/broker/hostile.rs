//! Servers that are no brokers, or attack their clients. Every driver ends with an outcome and without a large buffer.

use std::time::Duration;

use postcommit_channel::driver::Driver;
use postcommit_channel::egress::{Egress, EgressSettings};
use postcommit_channel::model::Outcome;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::{build, build_with, hold, name, send, send_within, settings};
use crate::egress::peer::{Peer, Script};

/// The drivers, each with settings that it needs beside the host, and an address.
fn drivers() -> Vec<(&'static str, Value, &'static str)> {
    vec![
        ("mqtt", json!({}), "orders/created"),
        ("nats", json!({}), "orders.created"),
        ("rabbitmq", json!({}), "orders"),
        ("redis_streams", json!({}), "orders"),
    ]
}

fn driver(driver: &str, port: u16, more: &Value) -> Box<dyn Driver> {
    build(driver, &settings(port, more), &[])
}

/// What a hostile server sends. It repeats it until the client has left.
const TEXTS: [&[u8]; 9] = [
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    b"\r\n",
    b"\0\0\0\0\0\0\0\0",
    b"\xff\xff\xff\xff\xff\xff\xff\xff",
    b"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    b"INFO {\"max_payload\":18446744073709551615}\r\n",
    b"$99999999999\r\n",
    b"*2147483647\r\n",
    b"\x20\xff\xff\xff\x7f",
];

async fn flood(mut stream: TcpStream, text: &'static [u8]) {
    let bytes = text.repeat(1000);
    while stream.write_all(&bytes).await.is_ok() {}
}

#[tokio::test]
async fn a_server_that_talks_nonsense_gets_no_event_and_the_send_ends() {
    for (name_of, more, target) in drivers() {
        for text in TEXTS {
            for once in [true, false] {
                let peer = Peer::new(move |mut stream| async move {
                    if once {
                        let _ = stream.write_all(text).await;
                        hold(stream).await;
                    } else {
                        flood(stream, text).await;
                    }
                })
                .await;
                let driver = driver(name_of, peer.port, &more);
                let report = send_within(driver.as_ref(), target, 1, Duration::from_millis(300)).await;
                let shown = String::from_utf8_lossy(text);
                assert!(["deferred", "config"].contains(&name(&report).as_str()), "{name_of} {shown:?}: {report:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_silent_server_and_one_that_hangs_up_are_left() {
    for (name_of, more, target) in drivers() {
        let silent = Peer::new(hold).await;
        let report =
            send_within(driver(name_of, silent.port, &more).as_ref(), target, 1, Duration::from_millis(200)).await;
        assert_eq!(report.outcome, Outcome::deferred("timeout"), "{name_of}");
        let closing = Peer::new(|stream| async { drop(stream) }).await;
        let report = send(driver(name_of, closing.port, &more).as_ref(), target, 1).await;
        assert_eq!(name(&report), "deferred", "{name_of}: {report:?}");
    }
}

/// Random numbers that are the same in every run: splitmix64.
fn random_bytes(seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)).to_be_bytes()[0]
    };
    let length = next();
    (0..length).map(|_| next()).collect()
}

/// What a good broker says until it has the event.
fn opening(driver: &str) -> Vec<u8> {
    match driver {
        "mqtt" => vec![0x20, 3, 0, 0, 0],
        "nats" => b"INFO {\"headers\":true,\"max_payload\":100000}\r\nPONG\r\n".to_vec(),
        "rabbitmq" => super::rabbitmq::opening().concat(),
        _ => b"+OK\r\n".to_vec(),
    }
}

#[tokio::test]
async fn random_bytes_before_and_after_the_event_end_with_an_outcome() {
    for (name_of, more, target) in drivers() {
        for seed in 0..200 {
            let is_late = seed % 2 == 1;
            let opening = if is_late { opening(name_of) } else { vec![] };
            let peer = Peer::new(move |mut stream: TcpStream| {
                let opening = opening.clone();
                async move {
                    let _ = stream.write_all(&opening).await;
                    // The envelope ends with two braces.
                    if !is_late || super::heard(&mut stream, b"}}").await.is_some() {
                        let _ = stream.write_all(&random_bytes(seed)).await;
                    }
                    let _ = stream.shutdown().await;
                    hold(stream).await;
                }
            })
            .await;
            let report = send(driver(name_of, peer.port, &more).as_ref(), target, 1).await;
            let expected: &[&str] = if is_late { &["unclear", "rejected"] } else { &["deferred", "config"] };
            assert!(expected.contains(&name(&report).as_str()), "{name_of}, seed {seed}: {report:?}");
        }
    }
}

#[test]
fn an_operator_sees_the_event_without_the_secrets() {
    for (name_of, more, target) in drivers() {
        let mut settings = settings(4222, &more);
        settings["username"] = "desk".into();
        let driver = build(name_of, &settings, &[("password", "s3cret")]);
        let sample = super::Sample::new(super::PAYLOAD);
        let shown = driver.shown_request(&sample.message(target, 1)).unwrap();
        assert_eq!(shown, format!("PUBLISH {target}\n\n{}", super::envelope(1)), "{name_of}");
        assert_eq!(driver.shown_request(&sample.message("a\nb", 1)), None, "{name_of}");
    }
}

#[tokio::test]
async fn private_addresses_are_blocked_for_brokers_too() {
    for (name_of, more, target) in drivers() {
        let of_host = |host: &str| {
            let mut settings = settings(4222, &more);
            settings["host"] = host.into();
            settings
        };
        let closed = Egress::with_resolver(&EgressSettings::default(), Script::new(&[&["169.254.169.254"]])).unwrap();
        let refused = build_with(name_of, &of_host("169.254.169.254"), &[], None, &closed).err().unwrap();
        assert!(refused.starts_with("settings.host:") && refused.contains("egress.allow"), "{refused}");
        let driver = build_with(name_of, &of_host("broker.example"), &[], None, &closed).unwrap();
        let report = send(driver.as_ref(), target, 1).await;
        assert_eq!(report.outcome, Outcome::refused("blocked_address"), "{name_of}");
    }
}

#[tokio::test]
async fn an_address_with_a_line_end_or_nul_is_refused_before_anything_is_sent() {
    for (name_of, more, _) in drivers() {
        let peer = Peer::new(hold).await;
        let driver = driver(name_of, peer.port, &more);
        for target in ["a\r\nb", "a\nb", "a\0b", "a\u{7f}b", "", &"x".repeat(70_000)] {
            let report = send(driver.as_ref(), target, 1).await;
            assert_eq!(report.outcome, Outcome::refused("bad_address"), "{name_of} {target:?}");
        }
        assert_eq!(peer.accepted(), 0, "{name_of}");
    }
}

#[test]
fn wrong_settings_are_refused_with_the_field() {
    for (name_of, more, _) in drivers() {
        for (field, value, words) in [
            ("host", json!(""), "settings.host: the host is neither a name nor an IP address"),
            ("port", json!(0), "settings.host: the port must be from 1 to 65535"),
            ("tls", json!("ssl"), "settings.tls: unknown variant"),
            ("source", json!("two words"), "settings.source: must be a URI"),
            ("hots", json!("x"), "settings.hots: unknown field"),
        ] {
            let mut settings = settings(4222, &more);
            settings[field] = value.clone();
            let problem = build_with(name_of, &settings, &[], None, &super::loopback()).err().unwrap_or_default();
            assert!(problem.starts_with(words), "{name_of} {field} {value}: {problem}");
        }
    }
}
