//! The HTTP client against servers that misbehave. The client against the real server is tested in
//! `crates/server/tests/it/clients.rs`.

use std::sync::Arc;
use std::time::Duration;

use postcommit::http::{ANSWER_BYTES, Client};
use postcommit::{Error, Notification};
use postcommit_testkit::{HttpServer, Reply};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use crate::world::booking;

const KEY: &str = "pc_1_a-very-secret-key";
const ID: &str = "01a1dfe4-d3eb-744a-9dfd-6472a841db01";

fn note() -> Notification {
    booking("booking:1:confirmed:1").build().unwrap()
}

fn client(server: &HttpServer) -> Client {
    Client::new(server.url(""), KEY).unwrap()
}

fn accepted() -> Reply {
    Reply::json(202, json!({"id": ID, "duplicate": false}))
}

fn problem(status: u16, kind: &str, rest: Value) -> Reply {
    let mut body = json!({"type": format!("urn:postcommit:problem:{kind}"), "title": "No", "status": status, "detail": "what is wrong"});
    body.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    Reply::json(status, body)
}

fn busy(status: u16) -> Reply {
    problem(status, "unavailable", json!({})).with_header("retry-after", "0")
}

#[tokio::test]
async fn a_request_is_what_the_contract_says() {
    let server = HttpServer::start(|_| accepted());
    let client = Client::new(format!("{}/below/", server.url("")), KEY).unwrap();
    let enqueued = client.enqueue(&note()).await.unwrap();
    assert_eq!((enqueued.id.to_string().as_str(), enqueued.duplicate), (ID, false));

    let named = booking("k").tenant("other").strict().build().unwrap();
    client.enqueue(&named).await.unwrap();
    let requests = server.requests();
    let first = requests[0].json();
    assert_eq!((requests[0].method.as_str(), requests[0].path.as_str()), ("POST", "/below/v1/notifications"));
    assert_eq!(requests[0].header("authorization"), Some(format!("Bearer {KEY}").as_str()));
    assert_eq!(requests[0].header("content-type"), Some("application/json"));
    assert_eq!(first["idempotency_key"], "booking:1:confirmed:1");
    assert_eq!(
        (&first["tenant"], &first["strict"]),
        (&Value::Null, &Value::Null),
        "the key has a tenant; HTTP is always strict"
    );
    assert_eq!(requests[1].json()["tenant"], "other");
    assert_eq!(server.connections(), 1, "the connection is kept");
}

#[tokio::test]
async fn requests_to_busy_servers_and_over_broken_connections_are_repeated_under_the_same_key() {
    let server = HttpServer::start(|request| match request.n {
        1 => busy(503),
        2 => Reply::Reset,
        3 => busy(429),
        4 => Reply::HalfAnswer,
        _ => accepted(),
    });
    // A notification without a key of its own keeps its random key.
    let unnamed = Notification::message("Hello", "world").build().unwrap();
    client(&server).enqueue(&unnamed).await.unwrap();
    let keys: Vec<Value> = server.requests().iter().map(|request| request.json()["idempotency_key"].clone()).collect();
    assert_eq!(keys, vec![json!(unnamed.idempotency_key); 5]);
}

#[tokio::test]
async fn repeats_are_bounded() {
    let server = HttpServer::start(|_| busy(503));
    let error = client(&server).enqueue(&note()).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    assert_eq!(error.to_string(), "server: 503: what is wrong (tries: 5)");
    assert_eq!(server.requests().len(), 5);

    let never = Client::builder(server.url(""), KEY).repeats(0).build().unwrap();
    never.enqueue(&note()).await.unwrap_err();
    assert_eq!(server.requests().len(), 6);
}

#[tokio::test]
async fn a_request_is_not_repeated_when_the_server_asks_for_too_long_a_wait() {
    let server = HttpServer::start(|_| problem(429, "rate-limited", json!({})).with_header("retry-after", "3600"));
    let error = client(&server).enqueue(&note()).await.unwrap_err();
    assert!(error.to_string().contains("asks to wait 3600 s"), "{error}");
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn refusals_are_final_and_typed() {
    for (reply, expected) in [
        (problem(401, "unauthenticated", json!({})), "401 unauthenticated: what is wrong"),
        (problem(403, "forbidden", json!({})), "403 forbidden: what is wrong"),
        (problem(500, "internal", json!({})), "500 internal: what is wrong"),
        (problem(422, "invalid", json!({"field": "title"})), "title: what is wrong"),
        (Reply::status(502), "502: "),
        (Reply::status(404).with_body("<html>a proxy's own page</html>"), "404: "),
    ] {
        let server = HttpServer::start(move |_| reply.clone());
        assert_eq!(client(&server).enqueue(&note()).await.unwrap_err().to_string(), expected);
        assert_eq!(server.requests().len(), 1, "{expected}");
    }
}

#[tokio::test]
async fn a_conflict_names_the_key_and_the_first_id() {
    let server = HttpServer::start(|_| problem(409, "key-conflict", json!({"first": ID})));
    match client(&server).enqueue(&note()).await.unwrap_err() {
        Error::Conflict { key, first, .. } => {
            assert_eq!((key.as_str(), first.to_string().as_str()), ("booking:1:confirmed:1", ID));
        }
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let elsewhere = HttpServer::start(|_| accepted());
    let location = elsewhere.url("/v1/notifications");
    let server = HttpServer::start(move |_| Reply::RedirectTo(location.clone()));
    let error = client(&server).enqueue(&note()).await.unwrap_err();
    assert!(matches!(error, Error::Refused { status: 307, .. }), "{error:?}");
    assert!(elsewhere.requests().is_empty());
}

#[tokio::test]
async fn invalid_responses_end_in_an_error() {
    let broken: [(Reply, &str); 5] = [
        (Reply::Hang, "no answer within 200 ms"),
        (Reply::Garbage, "no answer"),
        (Reply::HugeBody(ANSWER_BYTES as u64 + 1), "the answer has more than 4194304 bytes"),
        (Reply::EndlessHeaders, "no answer"),
        (Reply::json(202, json!({"ID": 1})), "the answer cannot be read"),
    ];
    for (reply, expected) in broken {
        let slow_enough =
            if matches!(reply, Reply::Hang) { Duration::from_millis(200) } else { postcommit_testkit::GUARD };
        let server = HttpServer::start(move |_| reply.clone());
        let client = Client::builder(server.url(""), KEY).repeats(0).timeout(slow_enough).build().unwrap();
        let error = client.enqueue(&note()).await.unwrap_err();
        assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
        assert!(error.to_string().contains(expected), "{expected}: {error}");
    }
    // A port that was free a moment ago.
    let gone = HttpServer::start(|_| accepted()).url("");
    let error = Client::builder(gone, KEY).repeats(1).build().unwrap().enqueue(&note()).await.unwrap_err();
    assert!(error.to_string().contains("cannot connect"), "{error}");
    assert!(error.to_string().contains("(tries: 2)"), "{error}");
}

#[tokio::test]
async fn a_kept_connection_that_was_closed_costs_no_try() {
    let server = HttpServer::start(|_| accepted());
    let addr = server.addr();
    let client = Client::builder(server.url(""), KEY).repeats(0).build().unwrap();
    client.enqueue(&note()).await.unwrap();
    drop(server);
    let again = HttpServer::start_at(addr, |_| accepted());
    client.enqueue(&note()).await.unwrap();
    assert_eq!(again.requests().len(), 1);
}

#[tokio::test]
async fn each_notification_of_a_batch_has_its_own_result() {
    let server = HttpServer::start(|_| {
        let conflict =
            json!({"type": "urn:postcommit:problem:key-conflict", "status": 409, "detail": "used", "first": ID});
        let results = json!([{"status": 202, "id": ID, "duplicate": false}, {"status": 409, "problem": conflict}]);
        Reply::json(200, json!({"accepted": 1, "duplicates": 0, "refused": 1, "results": results}))
    });
    let client = client(&server);
    let results = client.enqueue_many(&[note(), booking("second").build().unwrap()]).await.unwrap();
    assert!(!results[0].as_ref().unwrap().duplicate);
    assert!(matches!(&results[1], Err(Error::Conflict { key, .. }) if key == "second"));
    // A response with another number of results is an error.
    assert!(client.enqueue_many(&[note()]).await.is_err());
    assert!(matches!(client.enqueue_many(&[]).await, Err(Error::Invalid { .. })));
    assert_eq!(server.requests().len(), 2);
}

#[tokio::test]
async fn neither_errors_nor_debug_show_the_key() {
    let server = HttpServer::start(|_| problem(401, "unauthenticated", json!({})));
    let client = client(&server);
    let error = client.status(ID.parse().unwrap()).await.unwrap_err();
    for text in [format!("{client:?}"), format!("{error:?} {error}")] {
        assert!(!text.contains("secret"), "{text}");
    }
}

/// A TLS server that accepts everything, and its certificate.
async fn tls_server(name: &str) -> (String, String) {
    let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap();
    let config = config.with_no_client_auth().with_single_cert(vec![made.cert.der().clone()], key).unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let mut read = [0; 4096];
            let _ = stream.read(&mut read).await;
            let body = json!({"id": ID, "duplicate": true}).to_string();
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
            let _ = stream.write_all((head + &body).as_bytes()).await;
            let _ = stream.shutdown().await;
        }
    });
    (url, made.cert.pem())
}

#[tokio::test]
async fn https_works_and_trusts_only_the_given_roots() {
    let (url, root) = tls_server("localhost").await;
    let trusting = Client::builder(&url, KEY).root_certificates(root).build().unwrap();
    assert!(trusting.enqueue(&note()).await.unwrap().duplicate);

    let stranger = Client::builder(&url, KEY).repeats(0).build().unwrap();
    assert!(stranger.enqueue(&note()).await.unwrap_err().to_string().contains("certificate"));
    let (url, root) = tls_server("other.example").await;
    let wrong_name = Client::builder(&url, KEY).root_certificates(root).repeats(0).build().unwrap();
    assert!(wrong_name.enqueue(&note()).await.unwrap_err().to_string().contains("certificate"));
}
