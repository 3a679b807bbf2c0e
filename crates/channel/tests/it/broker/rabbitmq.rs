//! The RabbitMQ driver against a scripted broker and against the real one.

use std::time::Duration;

use postcommit::Timestamp;
use postcommit_channel::driver::Driver;
use postcommit_channel::model::Outcome;
use postcommit_testkit::broker::RabbitMq;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{
    Act, Certificate, Journal, Plan, build, build_with, deliver, envelope, hold, id, loopback, send, send_within,
    settings, told,
};
use crate::egress::peer::Peer;

const QUEUE: &str = "orders";

fn frame(kind: u8, channel: u16, content: &[u8]) -> Vec<u8> {
    let size = u32::try_from(content.len()).unwrap();
    [&[kind][..], &channel.to_be_bytes(), &size.to_be_bytes(), content, &[0xce]].concat()
}

fn method(channel: u16, (class, number): (u16, u16), arguments: &[u8]) -> Vec<u8> {
    frame(1, channel, &[&class.to_be_bytes()[..], &number.to_be_bytes(), arguments].concat())
}

/// Close of the connection (10, 50) or of the channel (20, 40), because of a method.
fn close(which: (u16, u16), code: u16, text: &str, because: (u16, u16)) -> Vec<u8> {
    let mut arguments = code.to_be_bytes().to_vec();
    arguments.push(u8::try_from(text.len()).unwrap());
    arguments.extend(text.as_bytes());
    arguments.extend([because.0.to_be_bytes(), because.1.to_be_bytes()].concat());
    method(if which.0 == 10 { 0 } else { 1 }, which, &arguments)
}

fn ack(tag: u64, is_multiple: bool) -> Vec<u8> {
    method(1, (60, 80), &[&tag.to_be_bytes()[..], &[u8::from(is_multiple)]].concat())
}

/// The next frame: its kind and its content.
async fn read(stream: &mut TcpStream) -> Option<(u8, Vec<u8>)> {
    let kind = stream.read_u8().await.ok()?;
    stream.read_u16().await.ok()?;
    let mut content = vec![0; usize::try_from(stream.read_u32().await.ok()?).unwrap() + 1];
    stream.read_exact(&mut content).await.ok()?;
    assert_eq!(content.pop(), Some(0xce));
    Some((kind, content))
}

/// The answers of a good broker up to the confirm mode, in order.
pub fn opening() -> Vec<Vec<u8>> {
    let start = [&[0, 9, 0, 0, 0, 0][..], &[0, 0, 0, 5], b"PLAIN", &[0, 0, 0, 5], b"en_US"].concat();
    vec![
        method(0, (10, 10), &start),
        method(0, (10, 30), &[7, 255, 0, 2, 0, 0, 0, 60]),
        method(0, (10, 41), &[0]),
        method(1, (20, 11), &[0, 0, 0, 0]),
        method(1, (85, 11), &[]),
    ]
}

/// Says the answers of the opening. Returns false when the client has left.
async fn open(stream: &mut TcpStream, answers: &[Vec<u8>]) -> bool {
    let mut greeting = [0; 8];
    if stream.read_exact(&mut greeting).await.is_err() {
        return false;
    }
    assert_eq!(&greeting, b"AMQP\0\0\x09\x01");
    for (place, answer) in answers.iter().enumerate() {
        // TUNE-OK and OPEN come together.
        let frames = [0, 1, 2, 1, 1][place];
        for _ in 0..frames {
            if read(stream).await.is_none() {
                return false;
            }
        }
        if stream.write_all(answer).await.is_err() {
            return false;
        }
    }
    true
}

/// Speaks AMQP until the script says otherwise.
async fn speak(mut stream: TcpStream, journal: Journal, script: Plan) {
    if !open(&mut stream, &opening()).await {
        return;
    }
    let mut tag = 0;
    while let Some((1, _)) = read(&mut stream).await {
        let Some((2, header)) = read(&mut stream).await else { return };
        let size = usize::try_from(u64::from_be_bytes(header[4..12].try_into().unwrap())).unwrap();
        let mut body = vec![];
        while body.len() < size {
            let Some((3, piece)) = read(&mut stream).await else { return };
            body.extend(piece);
        }
        tag += 1;
        let act = script(journal.add(body));
        let ack = ack(tag, matches!(act, Act::AckAndClose));
        let Some(open) = journal.act(act, stream, &ack).await else { return };
        stream = open;
    }
}

async fn scripted(script: impl Fn(usize) -> Act + Send + Sync + 'static) -> (Peer, Journal) {
    super::scripted(speak, script).await
}

fn plain(port: u16, more: &Value) -> Box<dyn Driver> {
    build("rabbitmq", &settings(port, more), &[])
}

#[tokio::test]
async fn an_answer_to_a_publish_decides_the_outcome() {
    const PUBLISH: (u16, u16) = (60, 40);
    let say = |bytes: Vec<u8>| Act::Say(bytes);
    let channel = |code, text| Act::Say(close((20, 40), code, text, PUBLISH));
    let returned = method(1, (60, 50), &[&312_u16.to_be_bytes()[..], &[8], b"NO_ROUTE", &[0, 6], b"orders"].concat());
    let content = [frame(2, 1, &[0; 14]), frame(3, 1, b"{}")].concat();
    for (act, expected) in [
        (Act::Ack, "sent - -"),
        (say(ack(9, true)), "sent - -"),
        // A heartbeat and the confirm of another number come first.
        (say([frame(8, 0, &[]), ack(7, false), ack(1, false)].concat()), "sent - -"),
        (Act::Close, "unclear closed network"),
        (say([returned, content, ack(1, false)].concat()), "rejected unroutable invalid_address"),
        (say(method(1, (60, 120), &[0, 0, 0, 0, 0, 0, 0, 1, 0])), "unclear amqp_nack server_error"),
        (channel(404, "NOT_FOUND - no exchange 'x'"), "config no_exchange config"),
        (channel(403, "ACCESS_REFUSED - access to exchange 'x' refused"), "config forbidden forbidden"),
        (channel(403, "ACCESS_REFUSED - access to exchange 'amq.topic' refused"), "config forbidden forbidden"),
        (channel(403, "ACCESS_REFUSED - access to topic 'x' refused"), "rejected forbidden forbidden"),
        (channel(406, "PRECONDITION_FAILED - message size"), "rejected amqp_406 invalid_content"),
        (channel(541, "INTERNAL_ERROR"), "unclear amqp_closed server_error"),
        (say(close((10, 50), 320, "CONNECTION_FORCED", (0, 0))), "unclear amqp_closed server_error"),
        (say(close((10, 50), 403, "ACCESS_REFUSED", (0, 0))), "unclear amqp_closed server_error"),
        (say(method(0, (10, 50), &[])), "unclear amqp_closed server_error"),
        (say(frame(9, 0, &[])), "unclear bad_answer server_error"),
        (say(vec![1, 0, 0, 0xff, 0xff, 0xff, 0xff]), "unclear bad_answer server_error"),
        (say(vec![8, 0, 0, 0, 0, 0, 0, 0]), "unclear bad_answer server_error"),
        (say(b"HTTP/1.1 200 OK\r\n\r\n".to_vec()), "unclear bad_answer server_error"),
    ] {
        let shown = format!("{act:?}");
        let (peer, journal) = scripted(move |_| act.clone()).await;
        let report = send(plain(peer.port, &json!({})).as_ref(), QUEUE, 1).await;
        assert_eq!(told(&report), expected, "{shown}: {report:?}");
        assert_eq!(journal.all(), [envelope(1).into_bytes()], "{shown}");
    }
    // Methods without arguments, and frames without a method, are no confirm.
    for nothing in [method(1, (60, 80), &[]), frame(1, 1, &[0]), frame(1, 1, &[])] {
        let (peer, _) = scripted(move |_| Act::Say(nothing.clone())).await;
        let driver = plain(peer.port, &json!({}));
        let report = send_within(driver.as_ref(), QUEUE, 1, Duration::from_millis(200)).await;
        assert_eq!(told(&report), "unclear timeout timeout");
    }
}

#[tokio::test]
async fn an_answer_to_the_opening_decides_whether_the_lane_is_paused() {
    for (place, answer, expected) in [
        (1, close((10, 50), 403, "ACCESS_REFUSED - Login was refused", (0, 0)), "config auth_failed auth_failed"),
        (2, close((10, 50), 530, "NOT_ALLOWED - vhost x not found", (10, 40)), "config no_vhost config"),
        (
            2,
            close((10, 50), 530, "NOT_ALLOWED - connection limit (1) is reached", (10, 40)),
            "deferred amqp_closed rate_limited",
        ),
        (0, close((10, 50), 320, "CONNECTION_FORCED", (0, 0)), "deferred amqp_closed server_error"),
        (0, method(0, (10, 41), &[]), "deferred bad_answer server_error"),
        (1, method(0, (10, 30), &[0]), "deferred bad_answer server_error"),
        // Frames of one byte.
        (1, method(0, (10, 30), &[0, 0, 0, 0, 0, 1, 0, 0]), "deferred bad_answer server_error"),
        // A broker of another version says which one it knows.
        (0, b"AMQP\0\x01\0\0".to_vec(), "deferred bad_answer server_error"),
    ] {
        let mut answers = opening();
        answers[place] = answer;
        answers.truncate(place + 1);
        let shown = format!("{:?}", answers[place]);
        let peer = Peer::new(move |mut stream: TcpStream| {
            let answers = answers.clone();
            async move {
                open(&mut stream, &answers).await;
                hold(stream).await;
            }
        })
        .await;
        let report = send(plain(peer.port, &json!({})).as_ref(), QUEUE, 1).await;
        assert_eq!(told(&report), expected, "{shown}: {report:?}");
    }
}

#[tokio::test]
async fn connections_are_used_again_and_a_closed_one_is_replaced() {
    let (peer, journal) = scripted(|number| match number {
        2 => Act::AckAndClose,
        // The broker ends the connection in order, and waits for the client to agree.
        4 => Act::Say([ack(2, false), close((10, 50), 320, "CONNECTION_FORCED", (0, 0))].concat()),
        _ => Act::Ack,
    })
    .await;
    let driver = plain(peer.port, &json!({}));
    for n in 1..=2 {
        assert_eq!(send(driver.as_ref(), QUEUE, n).await.outcome, Outcome::Sent);
    }
    assert_eq!(peer.accepted(), 1);
    journal.wait_until_closed(1).await;
    for n in 3..=5 {
        assert_eq!(send(driver.as_ref(), QUEUE, n).await.outcome, Outcome::Sent);
    }
    assert_eq!((peer.accepted(), journal.all().len()), (3, 5));
}

#[tokio::test]
async fn names_of_the_broker_and_long_keys_are_refused() {
    for target in ["amq.rabbitmq.reply-to.x", &"x".repeat(256)] {
        let report = send(plain(1, &json!({})).as_ref(), target, 1).await;
        assert_eq!(told(&report), "rejected bad_address invalid_address", "{target}");
    }
    let built = |more| build_with("rabbitmq", &settings(1, &more), &[], None, &loopback()).err().unwrap_or_default();
    assert!(built(json!({"vhost": ""})).starts_with("settings.vhost: has 0 bytes"));
    assert!(built(json!({"exchange": "a\nb"})).starts_with("settings.exchange: holds '\\n'"));
    assert!(built(json!({"unrouted": "keep"})).starts_with("settings.unrouted: unknown variant"));
    assert!(built(json!({"username": "a"})).starts_with("secret: settings.username needs the secret"));
}

/// One node for all, because it takes ten seconds to start.
#[tokio::test]
async fn the_real_broker_confirms_returns_and_refuses() {
    let certificate = Certificate::new();
    let [cert, key] = ["cert.pem", "key.pem"].map(|name| certificate.file(name).display().to_string());
    let tls = format!("ssl_options.certfile = {cert}\nssl_options.keyfile = {key}\nssl_options.verify = verify_none\n");
    let second = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let rabbit = RabbitMq::start(&format!("{tls}listeners.ssl.1 = {second}"));
    let mut client = rabbit.client();
    client.add_queue(QUEUE, None);
    client.add_queue("full", Some(0));
    client.add_exchange("events", QUEUE, "order.*");
    let port = rabbit.addr().port();
    let login = [("password", "guest")];
    let driver = |more: Value, secrets: &[(&str, &str)]| build("rabbitmq", &settings(port, &more), secrets);

    let guest = driver(json!({"username": "guest"}), &login);
    let exchange = driver(json!({"exchange": "events"}), &[]);
    for (driver, target, n, expected) in [
        (&guest, QUEUE, 1, "sent - -"),
        (&guest, "nobody", 2, "rejected unroutable invalid_address"),
        (&guest, "full", 3, "unclear amqp_nack server_error"),
        (&exchange, "order.created", 4, "sent - -"),
        (&exchange, "invoice.created", 5, "rejected unroutable invalid_address"),
        (&driver(json!({"unrouted": "drop"}), &[]), "nobody", 6, "sent - -"),
        (&driver(json!({"exchange": "missing"}), &[]), QUEUE, 7, "config no_exchange config"),
        (&driver(json!({"vhost": "missing"}), &[]), QUEUE, 8, "config no_vhost config"),
        (&driver(json!({"username": "guest"}), &[("password", "wrong")]), QUEUE, 9, "config auth_failed auth_failed"),
        // AMQP knows no repetition.
        (&guest, QUEUE, 1, "sent - -"),
    ] {
        let report = send(driver.as_ref(), target, n).await;
        assert_eq!(told(&report), expected, "{target} {n}: {report:?}");
    }
    // A body of several frames.
    let large = format!("\"{}\"", "x".repeat(200_000));
    let later = Timestamp::from_micros(4_000_000_000_000_000);
    let report = deliver(guest.as_ref(), QUEUE, 10, Duration::from_secs(30), &large, later).await;
    assert_eq!(report.outcome, Outcome::Sent, "{report:?}");

    let events = client.events(QUEUE);
    let seen: Vec<_> = events.iter().map(|event| (event.target.as_str(), event.id.clone())).collect();
    assert_eq!(seen, [(QUEUE, id(1)), ("order.created", id(4)), (QUEUE, id(1)), (QUEUE, id(10))]);
    assert_eq!((&events[0].body, &events[1].body, &events[2].body), (&envelope(1), &envelope(4), &envelope(1)));
    assert!(events[3].body.ends_with(&format!("{large}}}")), "every byte of a large event arrives");

    for (host, expected) in [("tls.example", "sent - -"), ("127.0.0.1", "config tls_certificate config")] {
        let settings = json!({"host": host, "port": second.port()});
        let driver = build_with("rabbitmq", &settings, &[], None, &certificate.egress).unwrap();
        let report = send(driver.as_ref(), QUEUE, 11).await;
        assert_eq!(told(&report), expected, "{host}: {report:?}");
    }
}
