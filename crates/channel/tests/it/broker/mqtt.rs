//! The MQTT driver against a scripted broker and against the real one.

use std::time::Duration;

use postcommit::Timestamp;
use postcommit_channel::driver::Driver;
use postcommit_channel::model::{Guarantee, Outcome};
use postcommit_testkit::broker::Mosquitto;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{
    Act, Certificate, Journal, PAYLOAD, Plan, build, build_with, deliver, envelope, loopback, name, send, send_within,
    settings, told,
};
use crate::egress::peer::Peer;

const TOPIC: &str = "orders/created";
const CONNACK: &[u8] = &[0x20, 3, 0, 0, 0];

/// PUBACK for the publish with this body.
fn puback(publish: &[u8]) -> [u8; 4] {
    let topic = usize::from(u16::from_be_bytes([publish[0], publish[1]]));
    [0x40, 2, publish[2 + topic], publish[3 + topic]]
}

/// The next packet: its first byte and its body.
async fn packet(stream: &mut TcpStream) -> Option<(u8, Vec<u8>)> {
    let kind = stream.read_u8().await.ok()?;
    let mut length = 0;
    for place in 0..4 {
        let byte = stream.read_u8().await.ok()?;
        length |= usize::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            break;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some((kind, body))
}

/// Speaks MQTT until the script says otherwise.
async fn speak(mut stream: TcpStream, connack: Vec<u8>, journal: Journal, script: Plan) {
    let Some((0x10, connect)) = packet(&mut stream).await else { return };
    // MQTT 5 with a clean start.
    assert_eq!((&connect[..7], connect[7] & 2), (&b"\0\x04MQTT\x05"[..], 2));
    stream.write_all(&connack).await.unwrap();
    while let Some((0x32, body)) = packet(&mut stream).await {
        let puback = puback(&body);
        let Some(open) = journal.act(script(journal.add(body)), stream, &puback).await else { return };
        stream = open;
    }
}

async fn scripted(connack: &[u8], script: impl Fn(usize) -> Act + Send + Sync + 'static) -> (Peer, Journal) {
    let connack = connack.to_vec();
    super::scripted(move |stream, journal, script| speak(stream, connack.clone(), journal, script), script).await
}

fn plain(port: u16, more: &Value) -> Box<dyn Driver> {
    build("mqtt", &settings(port, more), &[])
}

#[tokio::test]
async fn an_answer_to_a_publish_decides_the_outcome() {
    let say = |bytes: &[u8]| Act::Say(bytes.to_vec());
    let reason = |reason: u8| Act::Say(vec![0x40, 3, 0, 1, reason]);
    for (act, expected) in [
        (Act::Ack, "sent - -"),
        (reason(0), "sent - -"),
        (say(&[0x40, 4, 0, 1, 0, 0]), "sent - -"),
        // PUBACK of another number and PINGRESP come first.
        (say(&[0x40, 2, 0, 9, 0xd0, 0, 0x40, 2, 0, 1]), "sent - -"),
        (Act::Close, "unclear closed network"),
        (reason(0x10), "rejected no_subscribers invalid_address"),
        (reason(0x87), "rejected mqtt_87 forbidden"),
        (reason(0x90), "rejected mqtt_90 invalid_address"),
        (reason(0x99), "rejected mqtt_99 invalid_content"),
        (reason(0x97), "deferred mqtt_97 rate_limited"),
        (reason(0x91), "deferred mqtt_91 server_error"),
        (reason(0x80), "rejected mqtt_80 unknown"),
        (say(&[0xe0, 1, 0x95]), "rejected too_large invalid_content"),
        // Some brokers refuse an event by ending the connection.
        (say(&[0xe0, 1, 0x87]), "rejected mqtt_87 forbidden"),
        (say(&[0xe0, 1, 0x90]), "rejected mqtt_90 invalid_address"),
        (say(&[0xe0, 1, 0x99]), "rejected mqtt_99 invalid_content"),
        (say(&[0xe0, 1, 0x97]), "unclear disconnected server_error"),
        (say(&[0xe0, 1, 0x8b]), "unclear disconnected server_error"),
        (say(&[0xe0, 0]), "unclear disconnected server_error"),
        // A PUBACK without a number is of no publish.
        (say(&[0x40, 0, 0xe0, 0]), "unclear disconnected server_error"),
        (say(&[0x30, 3, 0, 1, b'a']), "unclear bad_answer server_error"),
        (say(&[0x40, 0xff, 0xff, 0xff, 0xff, 0x7f]), "unclear bad_answer server_error"),
        (say(&[0x40, 0xff, 0xff, 0xff, 0x7f]), "unclear bad_answer server_error"),
        (say(&[0, 0]), "unclear bad_answer server_error"),
    ] {
        let shown = format!("{act:?}");
        let (peer, journal) = scripted(CONNACK, move |_| act.clone()).await;
        let driver = plain(peer.port, &json!({}));
        let report = send(driver.as_ref(), TOPIC, 1).await;
        assert_eq!(told(&report), expected, "{shown}: {report:?}");
        assert_eq!(journal.all().len(), 1, "{shown}");
    }
    let (peer, _) = scripted(CONNACK, |_| Act::Silence).await;
    let report = send_within(plain(peer.port, &json!({})).as_ref(), TOPIC, 1, Duration::from_millis(300)).await;
    assert_eq!(told(&report), "unclear timeout timeout");
}

#[tokio::test]
async fn an_answer_to_connect_decides_whether_the_lane_is_paused() {
    let refused = |reason: u8| vec![0x20, 3, 0, reason, 0];
    for (connack, expected) in [
        (refused(0x86), "config auth_failed auth_failed"),
        (refused(0x87), "config auth_failed auth_failed"),
        (refused(0x84), "config mqtt_84 config"),
        // A broker that knows only MQTT 3 sends no properties.
        (vec![0x20, 2, 0, 1], "config mqtt_01 config"),
        (refused(0x85), "config mqtt_85 config"),
        (refused(0x88), "deferred mqtt_88 server_error"),
        (refused(0x9f), "deferred mqtt_9f rate_limited"),
        (refused(0x9d), "config mqtt_9d config"),
        (refused(0x8a), "config mqtt_8a account"),
        // QoS 0 only; packets of 50 bytes.
        (vec![0x20, 5, 0, 0, 2, 0x24, 0], "config qos_missing config"),
        (vec![0x20, 8, 0, 0, 5, 0x27, 0, 0, 0, 50], "rejected too_large invalid_content"),
        // Malformed properties.
        (vec![0x20, 4, 0, 0, 5, 0x27], "deferred bad_answer server_error"),
        (vec![0x20, 5, 0, 0, 2, 0xee, 0], "deferred bad_answer server_error"),
        (vec![0x20, 6, 0, 0, 3, 0x1f, 0xff, 0xff], "deferred bad_answer server_error"),
        (vec![0x20, 2, 0, 0], "deferred bad_answer server_error"),
        (vec![0x20, 0], "deferred bad_answer server_error"),
        (vec![0x40, 2, 0, 1], "deferred bad_answer server_error"),
    ] {
        let shown = format!("{connack:02x?}");
        let (peer, journal) = scripted(&connack, |_| Act::Ack).await;
        let report = send(plain(peer.port, &json!({})).as_ref(), TOPIC, 1).await;
        assert_eq!(told(&report), expected, "{shown}: {report:?}");
        assert!(journal.all().is_empty(), "{shown}");
    }
}

#[tokio::test]
async fn connections_are_used_again_and_a_closed_one_is_replaced() {
    let (peer, journal) = scripted(CONNACK, |number| if number == 2 { Act::AckAndClose } else { Act::Ack }).await;
    let driver = plain(peer.port, &json!({}));
    for n in 1..=2 {
        assert_eq!(send(driver.as_ref(), TOPIC, n).await.outcome, Outcome::Sent);
    }
    assert_eq!(peer.accepted(), 1);
    journal.wait_until_closed(1).await;
    assert_eq!(send(driver.as_ref(), TOPIC, 3).await.outcome, Outcome::Sent);
    assert_eq!((peer.accepted(), journal.all().len()), (2, 3));
}

/// What is left in an idle connection could be taken for the acknowledgement of the next event.
#[tokio::test]
async fn a_late_acknowledgement_is_not_that_of_the_next_event() {
    let (peer, journal) = scripted(CONNACK, |number| match number {
        // The acknowledgement comes twice.
        2 => Act::Say([&[0x40, 2, 0, 2][..], &[0x40, 2, 0, 2]].concat()),
        // A refusal of the first event comes in place of that of this one, then the broker hangs up.
        4 => Act::Say([&[0x40, 3, 0, 1, 0x97][..], &[0xe0, 0]].concat()),
        _ => Act::Ack,
    })
    .await;
    let driver = plain(peer.port, &json!({}));
    for (n, expected) in [(1, "sent - -"), (2, "sent - -"), (3, "sent - -"), (4, "unclear disconnected server_error")] {
        assert_eq!(told(&send(driver.as_ref(), TOPIC, n).await), expected, "{n}");
    }
    assert_eq!((peer.accepted(), journal.all().len()), (2, 4));
}

#[tokio::test]
async fn wildcards_and_topics_of_the_broker_are_refused() {
    for target in ["orders/+", "orders/#", "#", "a\u{0}b", "$SYS/broker", "$share/a/b", &"x".repeat(1025)] {
        let report = send(plain(1, &json!({})).as_ref(), target, 1).await;
        assert_eq!(told(&report), "rejected bad_address invalid_address", "{target}");
    }
}

#[test]
fn settings_of_mqtt_are_checked() {
    let built = |more| build_with("mqtt", &settings(1, &more), &[], None, &loopback()).err().unwrap_or_default();
    assert!(built(json!({"client_id_prefix": "a b"})).starts_with("settings.client_id_prefix: at most 100 letters"));
    assert!(built(json!({"unrouted": "keep"})).starts_with("settings.unrouted: unknown variant"));
    assert!(built(json!({"username": "a"})).starts_with("secret: settings.username needs the secret"));
}

#[tokio::test]
async fn the_real_broker_hands_on_the_same_bytes_with_the_expiry() {
    let mosquitto = Mosquitto::start("allow_anonymous true", &[]);
    let mut subscriber = mosquitto.subscriber("reader", "orders/#");
    let settings = settings(mosquitto.addr().port(), &json!({}));
    // Another driver each time, as after a restart. MQTT knows no repetition.
    for _ in 0..2 {
        let driver = build("mqtt", &settings, &[]);
        let soon = Timestamp::from(std::time::SystemTime::now()).plus(Duration::from_secs(100));
        let report = deliver(driver.as_ref(), TOPIC, 1, Duration::from_secs(30), PAYLOAD, soon).await;
        assert_eq!(report.outcome, Outcome::Sent, "{report:?}");
        let event = subscriber.next_event();
        assert_eq!((event.target.as_str(), event.body), (TOPIC, envelope(1)));
        let (expiry, content_type) = event.id.split_once(' ').unwrap();
        assert!((1..=100).contains(&expiry.parse::<u32>().unwrap()), "{expiry}");
        assert_eq!(content_type, "application/cloudevents+json");
    }
}

#[tokio::test]
async fn the_real_broker_refuses_in_ways_that_are_understood() {
    // The password is `s3cret`, hashed by mosquitto_passwd.
    let passwords = "desk:$7$101$03dMd4wQ2qaM7+hi$eFhLqgPAlH37iOFfbiaqYfbrXktVOJo5k5UKysi5vn5NkJSm7LHtG4I4Q7mje8tt5YXXhHV58ELDT/7bLD0NpQ==";
    let rules = "user desk\ntopic write orders/#\n";
    let more = "allow_anonymous false\npassword_file FOLDER/passwords\nacl_file FOLDER/rules\nmax_packet_size 1000";
    let mut mosquitto = Mosquitto::start(more, &[("passwords", passwords), ("rules", rules)]);
    let settings = settings(mosquitto.addr().port(), &json!({"username": "desk", "unrouted": "drop"}));
    let driver = build("mqtt", &settings, &[("password", "s3cret")]);
    assert_eq!(told(&send(driver.as_ref(), TOPIC, 1).await), "sent - -");
    let report = send(driver.as_ref(), "other/topic", 2).await;
    assert_eq!(told(&report), "rejected mqtt_87 forbidden", "{report:?}");
    let large = format!("\"{}\"", "x".repeat(2000));
    let later = Timestamp::from_micros(4_000_000_000_000_000);
    let report = deliver(driver.as_ref(), TOPIC, 3, Duration::from_secs(30), &large, later).await;
    assert_eq!(told(&report), "rejected too_large invalid_content", "{report:?}");
    mosquitto.restart();
    assert_eq!(told(&send(driver.as_ref(), TOPIC, 4).await), "sent - -");
    let wrong = send(build("mqtt", &settings, &[("password", "wrong")]).as_ref(), TOPIC, 5).await;
    assert_eq!(told(&wrong), "config auth_failed auth_failed", "{wrong:?}");
    assert!(!format!("{wrong:?}").contains("wrong\""), "{wrong:?}");
}

#[tokio::test]
async fn an_event_without_a_subscriber_is_not_lost_silently() {
    let mosquitto = Mosquitto::start("allow_anonymous true", &[]);
    let port = mosquitto.addr().port();
    let report = send(plain(port, &json!({})).as_ref(), TOPIC, 1).await;
    assert_eq!(told(&report), "rejected no_subscribers invalid_address", "{report:?}");
    let dropped = send(plain(port, &json!({"unrouted": "drop"})).as_ref(), TOPIC, 1).await;
    assert_eq!(dropped.outcome, Outcome::Sent);
    assert_eq!(dropped.evidence.excerpt.as_deref(), Some("no subscriber has this topic"));
    let once = build_with("mqtt", &settings(port, &json!({})), &[], Some(Guarantee::AtMostOnce), &loopback()).unwrap();
    assert_eq!(name(&send(once.as_ref(), TOPIC, 1).await), "rejected");
}

#[tokio::test]
async fn the_real_broker_is_reached_over_tls() {
    let certificate = Certificate::new();
    let [cert, key] = ["cert.pem", "key.pem"].map(|name| certificate.file(name).display().to_string());
    let mosquitto = Mosquitto::start(&format!("allow_anonymous true\ncertfile {cert}\nkeyfile {key}"), &[]);
    for (host, expected) in [("tls.example", "sent - -"), ("127.0.0.1", "config tls_certificate config")] {
        let settings = json!({"host": host, "port": mosquitto.addr().port(), "unrouted": "drop"});
        let driver = build_with("mqtt", &settings, &[], None, &certificate.egress).unwrap();
        let report = send(driver.as_ref(), TOPIC, 1).await;
        assert_eq!(told(&report), expected, "{host}: {report:?}");
    }
}
