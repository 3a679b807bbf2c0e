//! A key stands for one notification, however often it is sent, whatever happens to the server in between.

use std::net::SocketAddr;
use std::sync::{Barrier, RwLock};
use std::thread;
use std::time::Instant;

use postcommit_testkit::{Child, HttpClient, HttpResponse};
use serde_json::{Value, json};

use super::app::{App, address, refused, text};
use crate::installation::{GUARD, Installation};

/// Callers that send the same request concurrently.
const CALLERS: usize = 50;

fn booking(key: &str) -> Value {
    json!({"event_type": "booking.confirmed", "idempotency_key": key, "recipients": [{"email": "guest@example.com"}], "payload": {"booking": 7}})
}

/// Sends until a server answers, at its current address.
fn insist(place: &RwLock<SocketAddr>, token: &str, body: &str) -> HttpResponse {
    let deadline = Instant::now() + GUARD;
    loop {
        let client = HttpClient::new(*place.read().unwrap()).key(token);
        match client.try_send("POST", "/v1/notifications", Some(body.as_bytes())) {
            Ok(answer) if answer.status != 503 => return answer,
            unanswered => assert!(Instant::now() < deadline, "{unanswered:?}"),
        }
        thread::yield_now();
    }
}

/// All callers concurrently against a server that crashes at a crash point. Another server replaces it.
fn answers_across_a_crash(installation: &Installation, token: &str, crash: &str, body: &str) -> Vec<HttpResponse> {
    let doomed = installation.doomed(&["serve", "--role", "api"], crash);
    let place = RwLock::new(address(&doomed));
    let together = Barrier::new(CALLERS);
    thread::scope(|scope| {
        let caller = || {
            together.wait();
            insist(&place, token, body)
        };
        let callers: Vec<_> = (0..CALLERS).map(|_| scope.spawn(caller)).collect();
        doomed.wait();
        let heir = Child::spawn(installation.command(&["serve", "--role", "api"]));
        *place.write().unwrap() = address(&heir);
        callers.into_iter().map(|caller| caller.join().unwrap()).collect()
    })
}

on_both! {
    fn a5_fifty_posts_of_one_key_over_a_kill_are_one_notification(kind) {
        let app = App::at_rest(kind);
        let token = app.create_key("default", &["enqueue"]).token;
        // Before anything is written; committed, but not answered; and with only some requests answered.
        for crash in ["enqueue.before:1:kill", "enqueue.after_commit:1:kill", "enqueue.before:2:kill", "enqueue.after_commit:2:kill"] {
            let answers = answers_across_a_crash(&app.installation, &token, crash, &booking(crash).to_string());
            let ids: Vec<String> = answers.iter().map(|answer| text(&answer.json(), "id")).collect();
            assert!(answers.iter().all(|answer| [200, 202].contains(&answer.status)), "{crash}: {answers:?}");
            assert_eq!(ids.iter().filter(|id| **id == ids[0]).count(), CALLERS, "{crash}: {ids:?}");
            let rows = app.installation.rows(&format!("SELECT id FROM postcommit.notification WHERE idempotency_key = '{crash}'"));
            assert_eq!(rows, [[ids[0].clone()]], "{crash}");
            let new = answers.iter().filter(|answer| answer.status == 202).count();
            assert!(new <= 1, "{crash}: {new} were told that theirs is new");
        }
    }

    fn a5_the_same_key_again_is_the_first_and_other_content_a_conflict(kind) {
        let app = App::at_rest(kind);
        let client = app.client("default", &["enqueue"]);
        let first = client.post("/v1/notifications", &booking("k")).expect(202);
        let id = text(&first.json(), "id");
        assert_eq!(first.json()["duplicate"], false);
        assert_eq!(first.header("location"), Some(format!("/v1/notifications/{id}").as_str()));
        let again = client.post("/v1/notifications", &booking("k")).expect(200).json();
        assert_eq!(again, json!({"id": id, "duplicate": true}));
        let mut other = booking("k");
        other["payload"] = json!({"booking": 8});
        let problem = refused(client.post("/v1/notifications", &other), 409, Some("idempotency_key"));
        assert_eq!((&problem["type"], &problem["first"]), (&json!("urn:postcommit:problem:key-conflict"), &json!(id)));
        assert_eq!(app.installation.count("SELECT count(*) FROM postcommit.notification"), 1);
        assert_eq!(app.story(&id)["conflicts"].as_array().unwrap().len(), 1, "what was refused is told in the story of the first");
    }

    fn a5_the_header_is_another_name_for_the_field(kind) {
        let app = App::at_rest(kind);
        let client = app.client("default", &["enqueue"]);
        let mut bare = booking("");
        bare.as_object_mut().unwrap().remove("idempotency_key");
        let by_header = client.clone().with("Idempotency-Key", "k");
        let id = app.enqueue(&by_header, &bare);
        for answer in [client.post("/v1/notifications", &booking("k")), by_header.post("/v1/notifications", &booking("k"))] {
            assert_eq!(answer.expect(200).json(), json!({"id": id, "duplicate": true}));
        }
        refused(by_header.post("/v1/notifications", &booking("another")), 422, Some("idempotency_key"));
        refused(client.clone().with("Idempotency-Key", &"k".repeat(256)).post("/v1/notifications", &bare), 422, Some("idempotency_key"));
        refused(by_header.with("Idempotency-Key", "k").post("/v1/notifications", &bare), 422, Some("Idempotency-Key"));
        // Without a key no request is recognised as a repetition.
        assert_ne!(app.enqueue(&client, &bare), app.enqueue(&client, &bare));
    }

    fn b4_a_key_is_unique_in_its_tenant_alone(kind) {
        let app = App::at_rest(kind);
        for tenant in ["north", "south"] {
            app.create_tenant(tenant);
        }
        let (north, south) = (app.client("north", &["enqueue", "read"]), app.client("south", &["enqueue", "read"]));
        let mut other = booking("k");
        other["payload"] = json!({"booking": 8});
        let (of_north, of_south) = (app.enqueue(&north, &booking("k")), app.enqueue(&south, &other));
        assert_ne!(of_north, of_south);
        for (client, own, tenant) in [(&north, &of_north, "north"), (&south, &of_south, "south")] {
            let story = client.get(&format!("/v1/notifications/{own}")).expect(200).json();
            assert_eq!((&story["tenant"], &story["idempotency_key"]), (&json!(tenant), &json!("k")));
        }
        // A request may name the key's tenant, but no other.
        let said = |tenant: &str| json!({"event_type": "a", "tenant": tenant, "recipients": [{"email": "guest@example.com"}]});
        app.enqueue(&north, &said("north"));
        refused(north.post("/v1/notifications", &said("south")), 403, Some("tenant"));
        let for_south = app.enqueue(&app.ops(), &said("south"));
        assert_eq!(app.story(&for_south)["tenant"], "south");
        refused(app.ops().post("/v1/notifications", &said("nobody")), 422, Some("tenant"));
    }
}
