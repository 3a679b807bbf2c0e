//! Events to real brokers by a server that is killed repeatedly. Afterwards the ledger and what the broker holds are
//! compared: every event arrived, once where the broker knows its key, and else each repetition with the same bytes.

use std::collections::BTreeMap;

use postcommit::{Notification, Recipient};
use postcommit_testkit::broker::{Mosquitto, Nats, RabbitMq, Redis, StoredEvent};
use serde_json::{Value, json};

use crate::cli::Shell;
use crate::installation::{GUARD, Guarantee, Hooks, Installation, Kind, full_form, wait_until, within};
use crate::kill_loop::{Chance, enqueuer};

/// How often a broker may have the same event.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Copies {
    /// Once, because the broker recognises the key.
    One,
    /// Once or more.
    Some,
}

/// A broker with the provider that publishes to it.
struct Broker {
    driver: &'static str,
    port: u16,
    /// Further settings of the provider.
    settings: Vec<&'static str>,
    /// The addresses of the recipients. Every second notification has both.
    targets: [&'static str; 2],
    copies: Copies,
}

#[test]
fn killed_publisher_nats_stores_each_event_once() {
    let nats = Nats::start("");
    let mut client = nats.client(&json!({}));
    client.add_stream("ORDERS", &["orders.>"], &json!({"duplicate_window": 600_000_000_000_u64}));
    let broker = Broker {
        driver: "nats",
        port: nats.addr().port(),
        settings: vec!["key_window_s=600", "stream=ORDERS"],
        targets: ["orders.created", "orders.audit"],
        copies: Copies::One,
    };
    publish_and_kill(Kind::Postgres, &broker, || client.events("ORDERS"));
}

#[test]
fn killed_publisher_redis_appends_each_event_once() {
    let redis = Redis::start(&[]);
    let mut client = redis.client(&[]);
    let broker = Broker {
        driver: "redis_streams",
        port: redis.addr().port(),
        settings: vec![],
        targets: ["orders", "audit"],
        copies: Copies::One,
    };
    publish_and_kill(Kind::Sqlite, &broker, || [client.events("orders"), client.events("audit")].concat());
}

#[test]
fn killed_publisher_an_mqtt_subscriber_gets_every_event() {
    let mosquitto = Mosquitto::start("allow_anonymous true", &[]);
    // The session is there before the first event, and outlives this connection.
    drop(mosquitto.subscriber("reader", "orders/#"));
    let broker = Broker {
        driver: "mqtt",
        port: mosquitto.addr().port(),
        settings: vec![],
        targets: ["orders/created", "orders/audit"],
        copies: Copies::Some,
    };
    publish_and_kill(Kind::Postgres, &broker, || mosquitto.session("reader").events("orders/end"));
}

#[test]
fn killed_publisher_a_rabbitmq_queue_has_every_event() {
    let rabbit = RabbitMq::start("");
    let mut client = rabbit.client();
    client.add_queue("orders", None);
    client.add_queue("audit", None);
    let broker = Broker {
        driver: "rabbitmq",
        port: rabbit.addr().port(),
        settings: vec![],
        targets: ["orders", "audit"],
        copies: Copies::Some,
    };
    publish_and_kill(Kind::Sqlite, &broker, || [client.events("orders"), client.events("audit")].concat());
}

#[test]
fn one_event_reaches_a_person_and_a_stream_and_a_wrong_password_pauses_the_stream_alone() {
    for kind in [Kind::Postgres, Kind::Sqlite] {
        person_and_stream(kind);
    }
}

fn person_and_stream(kind: Kind) {
    let nats = Nats::start("authorization { user: desk, password: \"s3cret\" }");
    let mut client = nats.client(&json!({"user": "desk", "pass": "s3cret"}));
    client.add_stream("ORDERS", &["orders.>"], &json!({}));
    let shell = Shell::empty_on(kind).with("POSTCOMMIT_EGRESS_ALLOW", "127.0.0.0/8");
    shell.run(&["migrate"]).ends(0);
    let port = format!("port={}", nats.addr().port());
    let mut create = vec!["providers", "create", "events", "--driver", "nats", "--secret", "password=wrong"];
    for setting in ["host=127.0.0.1", "tls=none", "username=desk", &port] {
        create.extend(["--set", setting]);
    }
    shell.run(&create).ends(0);
    let event = ["enqueue", "order.created", "--to", "user:ann", "--to", "provider:events:orders.created"];
    let id = shell.run(&[&event[..], &["--title", "Ordered", "--payload", r#"{"total": 10.10}"#]].concat());
    let id = id.ends(0).stdout.trim().to_owned();
    shell.dispatch();
    let shown = |n: u8| shell.run(&["deliveries", "show", &format!("{id}.{n}"), "-o", "json"]).ends(0).json();
    let (person, stream) = (shown(1), shown(2));
    assert_eq!((&person["channel"], &person["state"]), (&json!("in_app"), &json!("delivered")), "{person}");
    let parked = [&stream["state"], &stream["reason"], &stream["error_code"]].map(|value| value.as_str().unwrap());
    assert_eq!(parked, ["parked", "config", "auth_failed"], "{stream}");
    let paused = shell.run(&["providers", "show", "events", "-o", "json"]).ends(0).json();
    assert!(!paused["paused"].is_null() && paused["paused"] != json!(false), "{paused}");
    assert!(!paused.to_string().contains("wrong"), "{paused}");

    shell.run(&["providers", "update", "events", "--secret", "password=s3cret"]).ends(0);
    shell.run(&["providers", "resume", "events"]).ends(0);
    shell.run(&["deliveries", "retry", &format!("{id}.2")]).ends(0);
    shell.dispatch();
    assert_eq!(shown(2)["state"], "sent", "{}", shown(2));
    let events = client.events("ORDERS");
    assert_eq!(events.len(), 1, "{events:?}");
    assert!(events[0].body.contains(r#""total":10.10"#) || events[0].body.contains(r#""total": 10.10"#), "{events:?}");
}

fn publish_and_kill(kind: Kind, broker: &Broker, read: impl FnOnce() -> Vec<StoredEvent>) {
    let (notes, kills) = if full_form() { (4000, 20) } else { (400, 6) };
    let mut chance = Chance::new();
    let installation = Installation::new(kind, Hooks::of(Guarantee::AtLeastOnce)).in_batches_of(40);
    create_provider(&installation, broker);
    let numbers = enqueue_all(&installation, notes, broker);
    for round in 0..kills {
        match round % 2 {
            // Killed when the broker has acknowledged an event and nothing of it is recorded yet.
            0 => {
                let nth = 1 + chance.below(notes / kills);
                installation.doomed(&["serve"], &format!("send.answered:{nth}:kill")).wait();
            }
            // Killed at any moment after it has made some progress.
            _ => {
                let recorded = || installation.count("SELECT count(*) FROM postcommit.delivery_ledger");
                let wanted = recorded() + 1 + chance.below(notes / kills);
                let server = installation.serve();
                wait_until("the server to publish", || recorded() >= wanted);
                server.kill9();
            }
        }
    }
    let _healthy = installation.serve();
    assert!(
        within(4 * GUARD, || installation.is_quiet()),
        "{:#?}",
        installation.rows("SELECT * FROM postcommit.delivery_queue LIMIT 5")
    );
    let (events, total) = (read(), notes + notes / 2);
    let lost = installation.count("SELECT count(*) FROM postcommit.attempt WHERE code = 'lease_expired'");
    println!("{}: {kills} kills, {total} deliveries, {lost} lost attempts, {} events", broker.driver, events.len());
    assert!(lost >= kills / 2, "each kill at an answer leaves an attempt without a result");
    assert_eq!(violations(&installation, broker, &numbers, &events), Vec::<String>::new());
    assert_eq!(numbers.len(), notes);
    match broker.copies {
        Copies::One => assert_eq!(events.len(), total),
        Copies::Some => assert!(events.len() > total, "an event that was acknowledged and not recorded is repeated"),
    }
}

fn create_provider(installation: &Installation, broker: &Broker) {
    let port = format!("port={}", broker.port);
    let mut words = vec!["providers", "create", "events", "--driver", broker.driver, "--timeout-ms", "1000"];
    words.extend(["--concurrency", "8", "--policy", r#"{"name":"fixed","interval_s":0.2,"max_attempts":100}"#]);
    for setting in ["host=127.0.0.1", "tls=none", &port].iter().chain(&broker.settings) {
        words.extend(["--set", setting]);
    }
    installation.run(&words);
}

/// Enqueues the notifications in transactions of the application. Returns the number in each payload, by id.
fn enqueue_all(installation: &Installation, notes: usize, broker: &Broker) -> BTreeMap<String, usize> {
    let note = |i: usize| {
        let event = Notification::event("order.created", json!({ "i": i })).key(format!("k{i}"));
        let targets = broker.targets.iter().take(1 + i % 2);
        targets.fold(event, |event, target| event.to(Recipient::at("events", *target))).build().unwrap()
    };
    let all: Vec<Notification> = (0..notes).map(note).collect();
    let enqueue = enqueuer(installation);
    all.chunks(250).flat_map(enqueue).zip(0..).collect()
}

/// Compares the ledger with what the broker holds.
fn violations(
    installation: &Installation,
    broker: &Broker,
    numbers: &BTreeMap<String, usize>,
    events: &[StoredEvent],
) -> Vec<String> {
    let mut found = vec![];
    let mut by_id: BTreeMap<String, Vec<&StoredEvent>> = BTreeMap::new();
    for event in events {
        let envelope: Value = serde_json::from_str(&event.body).unwrap_or_default();
        let id = envelope["id"].as_str().unwrap_or_default().to_owned();
        // MQTT has no property for the id.
        if broker.driver != "mqtt" && event.id != id {
            found.push(format!("{id} has the key {}", event.id));
        }
        let number = id.split('_').next().and_then(|notification| numbers.get(notification));
        if number.map(|number| json!({ "i": number })) != Some(envelope["data"].clone()) {
            found.push(format!("{id} has the payload of another notification: {}", event.body));
        }
        by_id.entry(id).or_default().push(event);
    }
    let ledger = installation.rows("SELECT notification_id, n, target, state FROM postcommit.delivery_ledger");
    let expected: usize = numbers.values().map(|i| 1 + i % 2).sum();
    if ledger.len() != expected {
        found.push(format!("the ledger has {} deliveries instead of {expected}", ledger.len()));
    }
    for row in &ledger {
        let id = format!("{}_{}", row[0], row[1]);
        let copies = by_id.remove(&id).unwrap_or_default();
        if row[3] != "sent" {
            found.push(format!("{id} is {}", row[3]));
        }
        if copies.is_empty() || (broker.copies == Copies::One && copies.len() > 1) {
            found.push(format!("{id} arrived {} times", copies.len()));
        }
        if copies.iter().any(|copy| copy.target != row[2] || copy.body != copies[0].body) {
            found.push(format!("{id} arrived elsewhere or with other bytes: {copies:?}"));
        }
    }
    found.extend(by_id.into_keys().map(|id| format!("{id} is not in the ledger")));
    found
}
