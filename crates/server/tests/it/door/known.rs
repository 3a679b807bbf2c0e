//! A notification that was accepted before is acknowledged again, even while nothing can be written.

use postcommit_testkit::{Child, HttpClient};
use serde_json::{Value, json};

use super::{TestServer, after, shell};
use crate::api::{App, on_both};
use crate::installation::{Kind, wait_until};

fn booking(key: &str, payload: Value) -> Value {
    json!({"event_type": "booking.confirmed", "idempotency_key": key, "recipients": [{"email": "guest@example.com"}], "payload": payload, "channels": ["email"],
        "data": {"email": {"x": 1.50}}, "title": "Ä", "entity": "booking:7"})
}

/// The known notification is answered with its first id, other content is a conflict, and a new one is refused: alone
/// and in a batch.
fn assert_known_is_acknowledged(client: &HttpClient, id: &str, too_much: &Value) {
    let again = client.post("/v1/notifications", &booking("known", json!({"n": 7}))).expect(200).json();
    assert_eq!(again, json!({"id": id, "duplicate": true}));
    let _ = client.post("/v1/notifications", &booking("known", json!({"n": 8}))).expect(409);
    let batch =
        json!({"notifications": [booking("known", json!({"n": 7})), too_much, booking("known", json!({"n": 8}))]});
    let results = client.post("/v1/notifications/batch", &batch).expect(200).json();
    let statuses: Vec<u64> =
        results["results"].as_array().unwrap().iter().map(|result| result["status"].as_u64().unwrap()).collect();
    assert_eq!(statuses, [200, 503, 409], "{results}");
    assert_eq!(results["results"][0]["id"], id, "{results}");
}

#[test]
fn a_known_key_is_acknowledged_on_a_full_disk() {
    let shell = shell(&[]);
    let server = Child::spawn(after("trap '' XFSZ", &shell.command(&["serve", "--role", "api"])));
    let server = TestServer::from_process(shell, server);
    let key = server.process.wait_for_line("  key  ").split_whitespace().nth(1).unwrap().to_owned();
    let client = HttpClient::new(server.address).key(&key);
    let first = client.post("/v1/notifications", &booking("known", json!({"n": 7}))).expect(202).json();
    let large = |n: usize| booking(&format!("large {n}"), json!("x".repeat(200_000)));
    server.may_write(Some(0));
    let mut tried = 0;
    wait_until("the disk to be full", || {
        tried += 1;
        client.post("/v1/notifications", &large(tried)).status == 503
    });
    assert_known_is_acknowledged(&client, first["id"].as_str().unwrap(), &large(0));
    server.may_write(None);
    let _ = client.post("/v1/notifications", &booking("new", json!({}))).expect(202);
}

on_both! {
    fn a_known_key_is_acknowledged_while_the_database_accepts_no_writes(kind) {
        let app = App::at_rest(kind);
        let client = app.client("default", &["enqueue"]);
        let id = app.enqueue(&client, &booking("known", json!({"n": 7})));
        let new = booking("new", json!({}));
        match kind {
            Kind::Postgres => {
                let sql = "BEGIN READ WRITE;
                    DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database()); END $$;
                    SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid(); COMMIT";
                app.installation.rows(sql);
                wait_until("it to be seen", || client.post("/v1/notifications", &booking("probe", json!({}))).status == 503);
                assert_known_is_acknowledged(&client, &id, &new);
            }
            Kind::Sqlite => {
                // The application holds its lock for longer than any request waits.
                let file = rusqlite::Connection::open(app.installation.sqlite_path().unwrap()).unwrap();
                file.busy_timeout(std::time::Duration::from_secs(60)).unwrap();
                file.execute_batch("BEGIN IMMEDIATE").unwrap();
                let again = client.post("/v1/notifications", &booking("known", json!({"n": 7}))).expect(200).json();
                assert_eq!(again, json!({"id": id, "duplicate": true}));
            }
        }
    }
}
