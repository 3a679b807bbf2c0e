//! The event stream as bytes: its events, its positions, and how it ends.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use postcommit_channel::model::{Scope, Scopes};
use postcommit_engine::store::{KeyDraft, Login};
use serde_json::{Value, json};

use super::{Place, Server, on_both, problem};

/// A reader of one stream.
struct Listener {
    lines: BufReader<TcpStream>,
    status: u16,
}

impl Listener {
    fn on(server: &Server, path: &str, headers: &str) -> Self {
        let mut socket = TcpStream::connect(server.address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        socket
            .write_all(format!("GET {path} HTTP/1.1\r\nHost: {}\r\n{headers}\r\n", server.address).as_bytes())
            .unwrap();
        let mut lines = BufReader::new(socket);
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        let status = line.split(' ').nth(1).unwrap().parse().unwrap();
        while !line.trim().is_empty() {
            line.clear();
            lines.read_line(&mut line).unwrap();
        }
        Self { lines, status }
    }

    /// The rest of the next line that begins with `beginning`. `None` when the stream ends first.
    fn find(&mut self, beginning: &str) -> Option<String> {
        let mut line = String::new();
        while self.lines.read_line(&mut line).unwrap() > 0 {
            if let Some(rest) = line.strip_prefix(beginning) {
                return Some(rest.trim().to_owned());
            }
            line.clear();
        }
        None
    }

    /// The names of the events up to the count that ends a group, and the group's id.
    fn group(&mut self) -> (Vec<String>, String) {
        let mut events = Vec::new();
        loop {
            let event = self.find("event: ").expect("the stream goes on");
            if event == "unread-count" {
                return (events, self.find("id: ").unwrap());
            }
            let data: Value = serde_json::from_str(&self.find("data: ").unwrap()).unwrap();
            events.push(format!("{event} {}", data["title"].as_str().unwrap_or_default()));
        }
    }
}

impl Listener {
    /// Why the stream ended, according to its last event.
    fn refusal(&mut self) -> String {
        loop {
            let event = self.find("event: ").expect("it is said why the stream ends");
            let data: Value = serde_json::from_str(&self.find("data: ").unwrap()).unwrap();
            if event == "refused" {
                assert_eq!(self.find("event: "), None, "and that was all");
                return data["type"].as_str().unwrap().trim_start_matches("urn:postcommit:problem:").to_owned();
            }
        }
    }
}

on_both!(
    a_stream_sends_changes_resumes_at_its_position_and_ends_with_an_event,
    a_stream_ends_when_its_reader_may_no_longer_read,
    a_client_that_reads_nothing_is_cut_off_and_sent_nothing_later,
    a_tenant_has_a_share_of_all_streams,
);

mod check {
    use super::*;

    pub async fn a_stream_sends_changes_resumes_at_its_position_and_ends_with_an_event(place: Place) {
        let server = place.serve("all", &["log.level=debug"]);
        let token = server.token(&place.key("default", &["operate"]).await, "alice");
        let authorized = format!("Authorization: Bearer {token}\r\n");
        let path = "/v1/inbox/alice/stream";

        let mut page = Listener::on(&server, path, &authorized);
        let (nothing, begun) = page.group();
        assert_eq!((nothing.len(), begun.as_str()), (0, "0"), "from now on: only where it stands");
        place.enqueue("alice", "one", "https://example.com").await;
        let (told, id) = page.group();
        assert_eq!((told, id.as_str()), (vec!["message one".to_owned()], "1"));
        drop(page);

        // The stream is cut. Changes in the meantime are sent after the reconnect.
        place.enqueue("alice", "two", "https://example.com").await;
        let listed = server.holds(&token, "alice", 2).await;
        let first = listed["items"][1]["id"].as_str().unwrap();
        let marked = server.with(&token).send("POST", &format!("/v1/inbox/alice/{first}/read"), None).expect(200);
        assert_eq!(marked.json()["unread"], 1);
        let mut back = Listener::on(&server, path, &format!("{authorized}Last-Event-ID: {id}\r\n"));
        assert_eq!(back.group(), (vec!["message two".into(), "mark one".into()], "3".into()));
        // The same for EventSource, which cannot send headers; and from an unknown position.
        let mut source = Listener::on(&server, &format!("{path}?after=2&token={token}"), "");
        assert_eq!(source.group(), (vec!["mark one".into()], "3".into()));
        assert_eq!(Listener::on(&server, &format!("{path}?after=99"), &authorized).group().0, ["reload "]);
        assert_eq!(Listener::on(&server, &format!("{path}?token=pcu_x"), "").status, 401);
        assert_eq!(Listener::on(&server, path, &format!("{authorized}Last-Event-ID: x\r\n")).status, 422);

        server.child.signal("TERM");
        assert_eq!(back.find("retry: ").as_deref(), Some("2000"), "told when to come back");
        assert_eq!(back.find("event: "), None, "and that was all");
        let logged = server.child.output().join("\n");
        assert!(logged.contains("/v1/inbox/{user}/stream") && !logged.contains("pcu_"), "{logged}");
    }

    pub async fn a_stream_ends_when_its_reader_may_no_longer_read(place: Place) {
        let server = place.serve("api", &["inbox.heartbeat_ms=100"]);
        let (store, tenant) = (&place.store, place.store.tenant_or_new("default").await.unwrap());
        let follow =
            |shown: &str| Listener::on(&server, "/v1/inbox/alice/stream", &format!("{shown}\r\nConnection: close\r\n"));
        let bearer = |token: &str| format!("Authorization: Bearer {token}");

        let key = place.key("default", &["read"]).await;
        let mut stream = follow(&bearer(&key));
        assert_eq!(stream.find(": ").as_deref(), Some("still here"), "a sign of life to who may read");
        store.revoke_key(tenant, key.split('_').nth(1).unwrap()).await.unwrap();
        assert_eq!((stream.refusal().as_str(), follow(&bearer(&key)).status), ("unauthenticated", 401));

        let soon = Some(store.now().await.unwrap().plus(Duration::from_secs(3)));
        let scopes: Scopes = [Scope::Read].into_iter().collect();
        let draft = KeyDraft { name: "short".into(), scopes: scopes.clone(), expires_at: soon };
        let key = bearer(store.create_key(tenant, &draft).await.unwrap().token.reveal());
        assert_eq!((follow(&key).refusal().as_str(), follow(&key).status), ("unauthenticated", 401));

        let login = Login { tenant, key_id: None, actor: "cli:somebody".into(), scopes };
        let session = store.create_session(&login, Duration::from_secs(3600)).await.unwrap().token;
        let cookie = format!("Cookie: __Host-postcommit={}", session.reveal());
        let mut stream = follow(&cookie);
        assert!(store.end_session(session.reveal()).await.unwrap());
        assert_eq!((stream.refusal().as_str(), follow(&cookie).status), ("unauthenticated", 401));

        let key = place.key("default", &["operate"]).await;
        let brief = server.with(&key).send("POST", "/v1/inbox/alice/token?ttl_s=3", None).expect(200).json();
        let brief = bearer(brief["token"].as_str().unwrap());
        assert_eq!((follow(&brief).refusal().as_str(), follow(&brief).status), ("unauthenticated", 401));

        let token = bearer(&server.token(&key, "alice"));
        let mut stream = follow(&token);
        store.suspend_tenant(tenant, "unpaid").await.unwrap();
        assert_eq!((stream.refusal().as_str(), follow(&token).status), ("suspended", 403));
        store.resume_tenant(tenant).await.unwrap();
        // The way to revoke every token of a tenant.
        let mut stream = follow(&token);
        store.db().execute_one("DELETE FROM postcommit.inbox_token_key", vec![]).await.unwrap();
        assert_eq!((stream.refusal().as_str(), follow(&token).status), ("unauthenticated", 401));
    }

    pub async fn a_client_that_reads_nothing_is_cut_off_and_sent_nothing_later(place: Place) {
        let server = place.serve("all", &["inbox.heartbeat_ms=100", "log.level=debug"]);
        let key = place.key("default", &["operate"]).await;
        let tenant = place.store.tenant_or_new("default").await.unwrap();
        let shown = format!("Authorization: Bearer {key}\r\nConnection: close\r\n");
        let mut stalled = Listener::on(&server, "/v1/inbox/alice/stream", &shown);
        // More than the socket's buffers hold. The heartbeats after it have to wait.
        let large = "x".repeat(250_000);
        let producer = server.with(&place.key("default", &["enqueue"]).await);
        for batch in 0..8 {
            let one = |n: u32| json!({"event_type": "demo.said", "idempotency_key": format!("{batch}:{n}"), "title": "before", "body": large, "recipients": [{"user": "alice"}]});
            let all: Vec<Value> = (0..10).map(one).collect();
            assert_eq!(
                producer.post("/v1/notifications/batch", &json!({"notifications": all})).expect(200).json()["accepted"],
                10
            );
        }
        server.child.wait_for_line("a client does not read its inbox stream");
        place.store.revoke_key(tenant, key.split('_').nth(1).unwrap()).await.unwrap();
        place.enqueue("alice", "after", "https://example.com").await;
        let mut told = String::new();
        stalled.lines.read_to_string(&mut told).unwrap();
        assert!(
            told.contains(r#""title":"before""#) && told.ends_with("retry: 2000\n\n\r\n0\r\n\r\n"),
            "{:?}",
            &told[told.len().saturating_sub(200)..]
        );
        assert!(!told.contains(r#""title":"after""#));
    }

    pub async fn a_tenant_has_a_share_of_all_streams(place: Place) {
        let server = place.serve("api", &["server.streams=3"]);
        let keys = [
            place.key("default", &["read"]).await,
            place.key("other", &["read"]).await,
            place.key("third", &["read"]).await,
        ];
        let follow = |key: &str, user: &str| {
            Listener::on(&server, &format!("/v1/inbox/{user}/stream"), &format!("Authorization: Bearer {key}\r\n"))
        };
        let first = follow(&keys[0], "alice");
        assert_eq!(follow(&keys[0], "bob").status, 503);
        let refused = server.with(&keys[0]).get("/v1/inbox/bob/stream");
        assert_eq!((refused.status, refused.header("retry-after")), (503, Some("5")));
        let refused = refused.json();
        assert_eq!(refused["type"], "urn:postcommit:problem:too-many-streams");
        let said = refused["detail"].as_str().unwrap();
        assert!(said.contains("the tenant has 1 streams") && said.contains("server.streams"), "{said}");
        let others = [follow(&keys[1], "alice"), follow(&keys[2], "alice")];
        assert_eq!([&first, &others[0], &others[1]].map(|stream| stream.status), [200; 3]);
        let fourth = place.key("fourth", &["read"]).await;
        assert_eq!(problem(server.with(&fourth).get("/v1/inbox/alice/stream")), (503, "too-many-streams".into()));
    }
}
