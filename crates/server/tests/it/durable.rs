//! An acknowledged notification survives a crash of PostgreSQL, although server, database, role and URL all say that
//! commits need not wait for the disk.

use postcommit_testkit::{Cluster, HttpClient, HttpServer, Reply};
use serde_json::json;

use crate::api::app::{address, text};
use crate::installation::{Guarantee, Hooks, Installation, wait_until};

/// Settings under which only a waiting commit flushes the log: a crash loses every other commit.
const NEVER_BY_ITSELF: [&str; 5] = [
    "synchronous_commit=off",
    "wal_writer_delay=10s",
    "wal_writer_flush_after=1GB",
    "checkpoint_timeout=1h",
    "autovacuum=off",
];

const PARKED: &str = "SELECT count(*) \
    FROM postcommit.delivery_ledger \
    WHERE state = 'parked' AND reason = 'outcome_unknown'";

#[test]
fn a_crash_of_postgresql_loses_nothing_acknowledged_whatever_its_settings() {
    let mut cluster = Cluster::start_with(&NEVER_BY_ITSELF);
    let installation = Installation::on(&cluster, Hooks { timeout_ms: 60_000, ..Hooks::of(Guarantee::AtMostOnce) });
    let database = installation.rows("SELECT current_database()")[0][0].clone();
    installation.rows(&format!("ALTER DATABASE {database} SET synchronous_commit = off"));
    installation.rows(&format!("ALTER ROLE CURRENT_USER IN DATABASE {database} SET synchronous_commit = off"));
    let receiver = HttpServer::start(|_| Reply::ok().slow());
    let serve = || {
        let mut command = installation.command(&["serve"]);
        command.env("POSTCOMMIT_DATABASE_URL", format!("{}?options=-c%20synchronous_commit%3Doff", installation.url()));
        command.env("POSTCOMMIT_DISPATCH_LEASE_S", "5");
        postcommit_testkit::Child::spawn(command)
    };
    let server = serve();
    let key = server.wait_for_line("  key  ").split_whitespace().nth(1).unwrap().to_owned();
    let client = HttpClient::new(address(&server)).key(&key);
    // Earlier rows are not part of the test.
    installation.rows("CHECKPOINT");

    // Sent and not answered: announced, because it is sent at most once. This enqueue is durable in any case.
    let enqueue = format!(
        "SELECT postcommit.enqueue('once', '{{}}', 'once', recipients => '[{{\"webhook\": \"{}\"}}]')",
        receiver.url("/hook")
    );
    installation.rows(&format!("SET synchronous_commit = on; {enqueue}"));
    wait_until("the request to be out", || receiver.requests().len() == 1);
    // Accepted and due in the future, so that nothing is written for it later.
    let accepted: Vec<String> = (0..20)
        .map(|n| {
            let note = json!({"event_type": "later", "idempotency_key": format!("later-{n}"), "due_at": "2100-01-01T00:00:00Z", "expires_at": "2101-01-01T00:00:00Z"});
            text(&client.post("/v1/notifications", &note).expect(202).json(), "id")
        })
        .collect();
    // An operator's action is durable as well.
    let made = text(&client.post("/v1/keys", &json!({"name": "kept", "scopes": ["read"]})).expect(201).json(), "token");

    cluster.stop_immediate();
    server.kill9();
    cluster.start_again();
    let server = serve();
    let client = HttpClient::new(address(&server)).key(&made);
    for id in &accepted {
        let _ = client.get(&format!("/v1/notifications/{id}")).expect(200);
    }
    wait_until("the announced one to be parked", || installation.count(PARKED) == 1 || receiver.requests().len() > 1);
    assert_eq!(receiver.requests().len(), 1, "sent twice: its announcement was lost");
    drop(server);
}
