//! The driver for Redis Streams against a scripted server and against the real one.

use std::time::Duration;

use postcommit_channel::driver::Driver;
use postcommit_channel::model::Outcome;
use postcommit_testkit::broker::Redis;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{
    Act, Certificate, Journal, Plan, build, build_with, envelope, heard, id, loopback, send, send_within, settings,
    told,
};
use crate::egress::peer::Peer;

const STREAM: &str = "orders";

/// The next command, word by word.
async fn command(stream: &mut TcpStream) -> Option<Vec<String>> {
    let number = |line: Vec<u8>| String::from_utf8_lossy(&line[1..line.len() - 2]).parse::<usize>().ok();
    let count = number(heard(stream, b"\r\n").await?)?;
    let mut words = vec![];
    for _ in 0..count {
        let length = number(heard(stream, b"\r\n").await?)?;
        let mut word = vec![0; length + 2];
        stream.read_exact(&mut word).await.ok()?;
        words.push(String::from_utf8_lossy(&word[..length]).into_owned());
    }
    Some(words)
}

/// Speaks RESP until the script says otherwise.
async fn speak(mut stream: TcpStream, journal: Journal, script: Plan) {
    const ACK: &[u8] = b"*2\r\n$3\r\n7-1\r\n:0\r\n";
    while let Some(words) = command(&mut stream).await {
        if words[0] != "EVAL" {
            stream.write_all(b"+OK\r\n").await.unwrap();
            continue;
        }
        let act = script(journal.add(words.join(" ").into_bytes()));
        let Some(open) = journal.act(act, stream, ACK).await else { return };
        stream = open;
    }
}

async fn scripted(script: impl Fn(usize) -> Act + Send + Sync + 'static) -> (Peer, Journal) {
    super::scripted(speak, script).await
}

fn plain(port: u16) -> Box<dyn Driver> {
    build("redis_streams", &settings(port, &json!({})), &[])
}

#[tokio::test]
async fn an_answer_to_the_script_decides_the_outcome() {
    let say = |text: &str| Act::Say(text.as_bytes().to_vec());
    let in_script = |text: &str| {
        say(&format!("-ERR Error running script (call to f_1): @user_script:4: @user_script: 4: {text}\r\n"))
    };
    for (act, expected) in [
        (Act::Ack, "sent - -"),
        (Act::Close, "unclear closed network"),
        (say("-NOAUTH Authentication required.\r\n"), "config auth_failed auth_failed"),
        (say("-NOPERM No permissions to access a key\r\n"), "rejected forbidden forbidden"),
        (say("-NOPERM User desk has no permissions to run the 'eval' command\r\n"), "config forbidden forbidden"),
        (say("-WRONGTYPE Operation against a key holding the wrong kind\r\n"), "rejected not_a_stream invalid_address"),
        (
            say("-ERR Error running script (call to f_1): @user_script:1: WRONGTYPE Operation\r\n"),
            "rejected not_a_stream invalid_address",
        ),
        (say("-MOVED 3999 10.0.0.1:6381\r\n"), "rejected redis_cluster config"),
        (say("-OOM command not allowed when used memory > 'maxmemory'.\r\n"), "deferred redis_busy account"),
        (say("-LOADING Redis is loading the dataset in memory\r\n"), "deferred redis_busy server_error"),
        (say("-READONLY You can't write against a read only replica.\r\n"), "deferred redis_busy server_error"),
        // Inside of a script, Redis before version 7 and Dragonfly put other words and a dash before the code.
        (in_script("-READONLY You can't write against a read only replica."), "deferred redis_busy server_error"),
        (in_script("-OOM command not allowed when used memory > 'maxmemory'."), "deferred redis_busy account"),
        (in_script("-MISCONF Redis is configured to save RDB snapshots"), "deferred redis_busy server_error"),
        (in_script("-NOREPLICAS Not enough good replicas to write."), "deferred redis_busy server_error"),
        (
            in_script("The user executing the script can't access at least one of the keys mentioned"),
            "rejected forbidden forbidden",
        ),
        (in_script("The user executing the script can't run this command"), "config forbidden forbidden"),
        (say("-NOPERM User monkey has no permissions to run the 'eval' command\r\n"), "config forbidden forbidden"),
        (say("-ERR unknown command 'EVAL'\r\n"), "config redis_error config"),
        (say("-ERR something of tomorrow\r\n"), "rejected redis_error unknown"),
        (say("+OK\r\n"), "unclear bad_answer server_error"),
        (say("*1\r\n$3\r\n7-1\r\n"), "unclear bad_answer server_error"),
        (say("*2\r\n*2\r\n:1\r\n:1\r\n:0\r\n"), "unclear bad_answer server_error"),
        (say("*2147483647\r\n"), "unclear bad_answer server_error"),
        (say("$999999999999\r\n"), "unclear bad_answer server_error"),
        (say("$-7\r\n"), "unclear bad_answer server_error"),
        (say("$1\r\nabc"), "unclear bad_answer server_error"),
        (say("\r\n"), "unclear bad_answer server_error"),
        (say("é\r\n"), "unclear bad_answer server_error"),
        (Act::Say(vec![b'+'; 100_000]), "unclear bad_answer server_error"),
    ] {
        let shown = format!("{act:?}").chars().take(100).collect::<String>();
        let (peer, journal) = scripted(move |_| act.clone()).await;
        let report = send(plain(peer.port).as_ref(), STREAM, 1).await;
        assert_eq!(told(&report), expected, "{shown}: {report:?}");
        assert_eq!(journal.all().len(), 1, "{shown}");
    }
    let (peer, _) = scripted(|_| Act::Silence).await;
    let report = send_within(plain(peer.port).as_ref(), STREAM, 1, Duration::from_millis(300)).await;
    assert_eq!(told(&report), "unclear timeout timeout");
}

#[tokio::test]
async fn connections_are_used_again_and_a_closed_one_is_replaced() {
    let (peer, journal) = scripted(|number| if number == 2 { Act::AckAndClose } else { Act::Ack }).await;
    let driver = plain(peer.port);
    for n in 1..=2 {
        assert_eq!(send(driver.as_ref(), STREAM, n).await.outcome, Outcome::Sent);
    }
    assert_eq!(peer.accepted(), 1);
    journal.wait_until_closed(1).await;
    assert_eq!(send(driver.as_ref(), STREAM, 3).await.outcome, Outcome::Sent);
    assert_eq!((peer.accepted(), journal.all().len()), (2, 3));
}

/// What is left in an idle connection could be taken for the answer to the next event.
#[tokio::test]
async fn a_connection_on_which_the_server_spoke_unasked_is_replaced() {
    let (peer, journal) = scripted(|number| match number {
        1 => Act::Say(b"*2\r\n$3\r\n7-1\r\n:0\r\n*2\r\n$3\r\n6-6\r\n:0\r\n".to_vec()),
        _ => Act::Ack,
    })
    .await;
    let driver = plain(peer.port);
    for n in 1..=2 {
        let report = send(driver.as_ref(), STREAM, n).await;
        assert_eq!(report.evidence.provider_ref.as_deref(), Some("7-1"), "{report:?}");
    }
    assert_eq!((peer.accepted(), journal.all().len()), (2, 2));
}

#[tokio::test]
async fn names_with_blanks_and_the_names_of_keys_are_refused() {
    // The last four would make a cluster keep the stream and its keys on different servers.
    let of_clusters = ["a}b", "{}", "a{}b", "{}{shop}"];
    for target in ["a b", "postcommit:key:{orders}:1", &"x".repeat(1025)].into_iter().chain(of_clusters) {
        let report = send(plain(1).as_ref(), target, 1).await;
        assert_eq!(told(&report), "rejected bad_address invalid_address", "{target}");
    }
}

#[test]
fn settings_of_redis_are_checked() {
    let built =
        |more| build_with("redis_streams", &settings(1, &more), &[], None, &loopback()).err().unwrap_or_default();
    assert_eq!(built(json!({"key_window_s": 59})), "settings.key_window_s: is 59; 60 to 2592000 are allowed");
    assert_eq!(built(json!({"max_entries": 0})), "settings.max_entries: is 0; 1 or more are allowed");
    assert!(built(json!({"database": -1})).starts_with("settings.database: "));
    assert!(built(json!({"username": "a"})).starts_with("secret: settings.username needs the secret"));
}

#[tokio::test]
async fn the_real_server_appends_each_event_once_with_the_same_bytes() {
    let mut redis = Redis::start(&["--requirepass", "s3cret"]);
    let settings = settings(redis.addr().port(), &json!({"key_window_s": 600}));
    let driver = || build("redis_streams", &settings, &[("password", "s3cret")]);
    // Another driver each time, as after a restart. The second attempt is a repetition.
    let first = send(driver().as_ref(), STREAM, 1).await;
    let second = send(driver().as_ref(), STREAM, 1).await;
    assert_eq!((&first.outcome, &second.outcome), (&Outcome::Sent, &Outcome::Sent), "{first:?} {second:?}");
    assert!(first.evidence.provider_ref.as_deref().unwrap().ends_with("-0"), "{first:?}");
    assert_eq!(first.evidence.provider_ref, second.evidence.provider_ref);
    assert_eq!((first.evidence.excerpt, second.evidence.excerpt), (None, Some("the key was known already".into())));
    // The keys are written with the entries, so they survive a crash of the server together.
    let kept = driver();
    assert_eq!(send(kept.as_ref(), STREAM, 2).await.outcome, Outcome::Sent);
    redis.restart();
    for n in 1..=2 {
        assert_eq!(send(kept.as_ref(), STREAM, n).await.outcome, Outcome::Sent);
    }
    // A key without an entry, as a crash in the middle of a script would leave it, does not pass for an event.
    let mut client = redis.client(&["s3cret"]);
    client.ask(&["SET", &format!("postcommit:key:{{{STREAM}}}:{}", id(3)), ""]);
    let report = send(kept.as_ref(), STREAM, 3).await;
    assert!(report.outcome == Outcome::Sent && report.evidence.excerpt.is_none(), "{report:?}");
    let events: Vec<_> = client.events(STREAM).into_iter().map(|event| (event.id, event.body)).collect();
    assert_eq!(events, [1, 2, 3].map(|n| (id(n), envelope(n))));
    let left: u64 = client.ask(&["TTL", &format!("postcommit:key:{{{STREAM}}}:{}", id(1))])[0].parse().unwrap();
    assert!((1..=600).contains(&left), "{left}");
}

#[tokio::test]
async fn the_real_server_refuses_in_ways_that_are_understood() {
    let redis = Redis::start(&[]);
    let mut client = redis.client(&[]);
    client.ask(&["SET", "text", "x"]);
    client.ask(&["ACL", "SETUSER", "desk", "on", ">s3cret", "~orders", "~postcommit:key:*", "+@all"]);
    client.ask(&["ACL", "SETUSER", "reader", "on", ">s3cret", "~*", "+@read", "+select"]);
    // This one could append entries, but not remember their keys.
    client.ask(&["ACL", "SETUSER", "forgetful", "on", ">s3cret", "%RW~orders", "%R~postcommit:key:*", "+@all"]);
    let driver = |user: &str, password: &str| {
        let settings = settings(redis.addr().port(), &json!({"username": user}));
        build("redis_streams", &settings, &[("password", password)])
    };
    for (user, password, target, expected) in [
        ("desk", "s3cret", STREAM, "sent - -"),
        ("desk", "s3cret", "other", "rejected forbidden forbidden"),
        ("desk", "wrong", STREAM, "config auth_failed auth_failed"),
        ("reader", "s3cret", STREAM, "config forbidden forbidden"),
        ("forgetful", "s3cret", STREAM, "rejected forbidden forbidden"),
    ] {
        let n = if user == "forgetful" { 2 } else { 1 };
        let report = send(driver(user, password).as_ref(), target, n).await;
        assert_eq!(told(&report), expected, "{user} {target}: {report:?}");
    }
    let plain = |more| build("redis_streams", &settings(redis.addr().port(), &more), &[]);
    let report = send(plain(json!({})).as_ref(), "text", 1).await;
    assert_eq!(told(&report), "rejected not_a_stream invalid_address", "{report:?}");
    assert!(client.ask(&["KEYS", "postcommit:key:{text}*"]).is_empty(), "the key of a refused event is removed");
    let report = send(plain(json!({"database": 9999})).as_ref(), STREAM, 1).await;
    assert_eq!(told(&report), "config redis_error config", "{report:?}");
    assert_eq!(client.events(STREAM).len(), 1);
    client.ask(&["CONFIG", "SET", "requirepass", "s3cret"]);
    let report = send(plain(json!({})).as_ref(), STREAM, 1).await;
    assert_eq!(told(&report), "config auth_failed auth_failed", "{report:?}");
}

#[tokio::test]
async fn a_stream_is_shortened_and_a_database_is_chosen_as_the_settings_ask() {
    let redis = Redis::start(&[]);
    let settings = settings(redis.addr().port(), &json!({"database": 3, "max_entries": 100}));
    let driver = build("redis_streams", &settings, &[]);
    for n in 1..=400 {
        assert_eq!(send(driver.as_ref(), STREAM, n).await.outcome, Outcome::Sent);
    }
    let mut client = redis.client(&[]);
    assert!(client.events(STREAM).is_empty());
    client.ask(&["SELECT", "3"]);
    let left = client.events(STREAM).len();
    // Redis shortens a stream by whole nodes of 100 entries.
    assert!((100..=200).contains(&left), "{left}");
}

#[tokio::test]
async fn the_real_server_is_reached_over_tls() {
    let certificate = Certificate::new();
    let [cert, key] = ["cert.pem", "key.pem"].map(|name| certificate.file(name).display().to_string());
    let redis = Redis::start(&[
        "--tls-port",
        "PORT",
        "--tls-cert-file",
        &cert,
        "--tls-key-file",
        &key,
        "--tls-auth-clients",
        "no",
    ]);
    let port = redis.addr().port();
    for (host, expected) in [("tls.example", "sent - -"), ("127.0.0.1", "config tls_certificate config")] {
        let settings = json!({"host": host, "port": port});
        let driver = build_with("redis_streams", &settings, &[], None, &certificate.egress).unwrap();
        let report = send(driver.as_ref(), STREAM, 1).await;
        assert_eq!(told(&report), expected, "{host}: {report:?}");
    }
}
