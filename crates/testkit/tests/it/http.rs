use postcommit_testkit::{HttpServer, Reply};
use serde_json::json;
use std::io::ErrorKind;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::wire;

#[tokio::test]
async fn a_request_is_recorded_as_sent_and_answered_as_scripted() {
    let server = HttpServer::start(|request| match request.n {
        1 => Reply::json(201, json!({"ok": true})).with_header("x-a", "b"),
        _ => Reply::status(503),
    });
    let mut socket = wire::connect(server.addr()).await;
    wire::post(&mut socket, "msg_1", r#"{"hello":"there"}"#).await;
    assert_eq!(
        wire::read_all(&mut socket).await.unwrap(),
        "HTTP/1.1 201 \r\ncontent-type: application/json\r\nx-a: b\r\ncontent-length: 11\r\n\r\n\
         {\"ok\":true}"
    );
    let second = wire::exchange(server.addr(), "msg_1").await.unwrap();
    assert!(second.starts_with("HTTP/1.1 503 "), "{second}");

    let requests = server.wait_for(2).await;
    let first = &requests[0];
    assert_eq!((first.n, requests[1].n), (1, 2));
    assert_eq!((first.method.as_str(), first.path.as_str()), ("POST", "/hook?a=1"));
    assert_eq!(first.header("Webhook-ID"), Some("msg_1"));
    assert!(first.headers.contains(&("host".into(), "test".into())));
    assert_eq!(first.json(), json!({"hello": "there"}));
    assert_eq!(server.effects_by("webhook-id"), [("msg_1".to_owned(), 2)].into());
    assert_eq!(server.effects_by("absent"), [(String::new(), 2)].into());
    assert_eq!(server.connections(), 2);
}

#[tokio::test]
async fn a_connection_is_kept_alive_and_a_chunked_body_is_put_together() {
    let server = HttpServer::start(|request| Reply::ok().with_body(request.body.clone()));
    let mut socket = wire::connect(server.addr()).await;
    let chunked = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n";
    socket.write_all(chunked.as_bytes()).await.unwrap();
    socket.write_all(b"GET / HTTP/1.0\r\n\r\n").await.unwrap();
    let answers = wire::read_all(&mut socket).await.unwrap();
    assert_eq!(
        answers,
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nabcde\
         HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
    );
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn each_kind_of_misbehaviour_arrives_at_the_client() {
    let answer_to = async |reply: Reply| {
        let server = HttpServer::start(move |_| reply.clone());
        wire::exchange(server.addr(), "msg_1").await
    };
    let reset = answer_to(Reply::Reset).await.unwrap_err();
    assert_eq!(reset.kind(), ErrorKind::ConnectionReset);
    assert_eq!(answer_to(Reply::Close).await.unwrap(), "");
    let garbage = answer_to(Reply::Garbage).await.unwrap();
    assert!(!garbage.starts_with("HTTP/"));
    let half = answer_to(Reply::HalfAnswer).await.unwrap();
    assert!(half.starts_with("HTTP/1.1 200") && !half.contains("\r\n\r\n"));
    let redirect = answer_to(Reply::RedirectTo("http://x/".into())).await.unwrap();
    assert!(redirect.starts_with("HTTP/1.1 307 \r\nlocation: http://x/\r\n"));
    let huge = answer_to(Reply::HugeBody(1_000_000)).await.unwrap();
    assert_eq!(huge.split_once("\r\n\r\n").unwrap().1.len(), 1_000_000);
    assert_eq!(answer_to(Reply::status(204)).await.unwrap(), "HTTP/1.1 204 \r\n\r\n");
}

#[tokio::test]
async fn endless_headers_go_on_for_as_long_as_they_are_read() {
    let server = HttpServer::start(|_| Reply::EndlessHeaders);
    let mut socket = wire::connect(server.addr()).await;
    wire::post(&mut socket, "msg_1", "").await;
    let mut bytes = vec![0; 1_000_000];
    socket.read_exact(&mut bytes).await.unwrap();
    assert!(!String::from_utf8(bytes).unwrap().contains("\r\n\r\n"));
}

#[tokio::test]
async fn a_slow_answer_waits_for_the_release_after_its_request() {
    let server = HttpServer::start(|_| Reply::ok().slow());
    for round in 1..=2 {
        let mut socket = wire::connect(server.addr()).await;
        wire::post(&mut socket, "msg_1", "").await;
        server.wait_for(round).await;
        let nothing_yet = socket.try_read(&mut [0]).unwrap_err();
        assert_eq!(nothing_yet.kind(), ErrorKind::WouldBlock);
        server.release();
        let answer = wire::read_all(&mut socket).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK"));
    }
}

#[tokio::test]
async fn a_hanging_answer_ends_with_the_server_whose_address_can_be_taken_again() {
    let server = HttpServer::start(|_| Reply::Hang);
    let addr = server.addr();
    let mut socket = wire::connect(addr).await;
    wire::post(&mut socket, "msg_1", "").await;
    server.wait_for(1).await;
    drop(server);
    assert_eq!(wire::read_all(&mut socket).await.unwrap(), "");

    let refused = tokio::net::TcpStream::connect(addr).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    let again = HttpServer::start_at(addr, |_| Reply::ok());
    let answer = wire::exchange(again.addr(), "msg_1").await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"));
}
