//! Responses of all kinds, and failures that say how far the request got.

use std::time::Duration;

use http::HeaderValue;
use postcommit_channel::egress::{ANSWER_BYTES, Call, EgressFailure, Phase};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::mpsc;

use super::peer::{Peer, answered, brief, egress, failed, get, post, read_request};

fn seen(failure: &EgressFailure) -> (Phase, &'static str, bool) {
    (failure.phase, failure.code, failure.reached_wire())
}

#[tokio::test]
async fn a_refused_connection_writes_nothing() {
    // Bound, so that no other process gets the port, but not listening.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = socket.local_addr().unwrap().port();
    let failure = failed(&egress(), post(&format!("http://127.0.0.1:{port}/"), "x")).await;
    assert_eq!(seen(&failure), (Phase::Connect, "connect", false));
}

#[tokio::test]
async fn a_deadline_that_has_passed_is_a_timeout_of_the_current_phase() {
    let peer = Peer::answering("").await;
    let none = Call { timeout: Duration::ZERO, ..get(&peer.url()) };
    let failure = failed(&egress(), none).await;
    assert_eq!(seen(&failure), (Phase::Connect, "connect_timeout", false));
    assert_eq!(peer.accepted(), 0);
}

async fn reset(mut stream: TcpStream) {
    read_request(&mut stream).await;
    stream.set_zero_linger().unwrap();
}

async fn close(mut stream: TcpStream) {
    read_request(&mut stream).await;
}

async fn close_at_first_byte(mut stream: TcpStream) {
    let _ = stream.read_u8().await;
}

async fn stay_silent(mut stream: TcpStream) {
    while read_request(&mut stream).await.is_some() {}
}

async fn failure_of(peer: &Peer) -> EgressFailure {
    failed(&egress(), post(&peer.url(), "x".repeat(100))).await
}

#[tokio::test]
async fn a_peer_that_reads_the_request_and_disconnects_leaves_it_unclear() {
    let failure = failure_of(&Peer::new(reset).await).await;
    assert_eq!(seen(&failure), (Phase::Request, "reset", true));
    let failure = failure_of(&Peer::new(close).await).await;
    assert_eq!(seen(&failure), (Phase::Request, "closed", true));
    let failure = failure_of(&Peer::new(close_at_first_byte).await).await;
    assert_eq!(failure.phase, Phase::Request);
    assert!(failure.reached_wire() && matches!(failure.code, "reset" | "closed"), "{failure:?}");
    let silent = Peer::new(stay_silent).await;
    let failure = failed(&egress(), brief(post(&silent.url(), "x"))).await;
    assert_eq!(seen(&failure), (Phase::Request, "timeout", true));
}

#[tokio::test]
async fn an_answer_that_is_not_http_leaves_it_unclear() {
    let huge = format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "x".repeat(2 * ANSWER_BYTES));
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "x: y\r\n".repeat(1000));
    let two_lengths = "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab";
    for bytes in ["HTTP/1.1 banana\r\n\r\n", "220 mail.example ESMTP\r\n", "\0\0\u{12}\u{4}", two_lengths, &huge, &many]
    {
        let failure = failure_of(&Peer::answering(bytes).await).await;
        assert_eq!(seen(&failure), (Phase::Request, "bad_answer", true), "{:?}", bytes.get(..30));
    }
}

/// A peer that reports how many bytes each connection brought. It may close its own side immediately.
async fn counting_peer(closes: bool) -> (Peer, mpsc::UnboundedReceiver<u64>) {
    let (tell, told) = mpsc::unbounded_channel();
    let script = move |mut stream: TcpStream| {
        let tell = tell.clone();
        async move {
            if closes {
                let _ = stream.shutdown().await;
            }
            let mut read = Vec::new();
            let _ = stream.read_to_end(&mut read).await;
            let _ = tell.send(read.len() as u64);
        }
    };
    (Peer::new(script).await, told)
}

/// The peer's close races with the request. Either way, zero must mean that the peer read nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zero_bytes_written_means_the_peer_saw_none() {
    let (peer, mut told) = counting_peer(true).await;
    for _ in 0..200 {
        let failure = failed(&egress(), post(&peer.url(), "x")).await;
        let read = told.recv().await.unwrap();
        assert!(read <= failure.bytes_written, "the peer read {read}: {failure:?}");
        assert_ne!(failure.code, "timeout", "a closed connection is noticed immediately");
    }
}

/// The timeout fires while the request is being handed over. A call that gave up while connecting may still be accepted
/// later, so each call has a peer of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_written_after_a_timeout_was_reported() {
    for step in 0..200 {
        let (peer, mut told) = counting_peer(false).await;
        let hurried = Call { timeout: Duration::from_micros(10 * step), ..post(&peer.url(), "x") };
        let failure = failed(&egress(), hurried).await;
        if failure.phase == Phase::Request {
            let read = told.recv().await.unwrap();
            assert!(read <= failure.bytes_written, "the peer read {read}: {failure:?}");
        }
    }
}

#[tokio::test]
async fn an_answer_counts_even_if_its_body_breaks_off() {
    let cut = Peer::new(|mut stream| async move {
        read_request(&mut stream).await;
        stream.write_all(b"HTTP/1.1 202 Accepted\r\ncontent-length: 100\r\n\r\nhalf").await.unwrap();
    });
    let stalled = Peer::answering("HTTP/1.1 202 Accepted\r\ncontent-length: 100\r\n\r\nhalf");
    for peer in [cut.await, stalled.await] {
        let answer = answered(&egress(), brief(get(&peer.url()))).await;
        assert_eq!((answer.status, &answer.body[..]), (202, &b"half"[..]));
        assert!(!answer.body_complete && !answer.truncated);
    }
}

#[tokio::test]
async fn informational_answers_are_passed_over() {
    let hints = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n";
    let peer = Peer::answering(format!("{hints}HTTP/1.1 204 No Content\r\n\r\n")).await;
    let answer = answered(&egress(), get(&peer.url())).await;
    assert_eq!((answer.status, answer.body_complete), (204, true));
}

#[tokio::test]
async fn a_body_of_a_gigabyte_is_cut_and_the_connection_dropped() {
    const GIGABYTE: usize = 1 << 30;
    let (tell, mut told) = mpsc::unbounded_channel();
    let peer = Peer::new(move |mut stream| {
        let tell = tell.clone();
        async move {
            read_request(&mut stream).await;
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {GIGABYTE}\r\n\r\n");
            stream.write_all(head.as_bytes()).await.unwrap();
            let mut sent = 0;
            while sent < GIGABYTE && stream.write_all(&[b'x'; ANSWER_BYTES]).await.is_ok() {
                sent += ANSWER_BYTES;
            }
            tell.send(sent).unwrap();
        }
    })
    .await;
    let answer = answered(&egress(), get(&peer.url())).await;
    assert_eq!((answer.status, answer.body.len()), (200, ANSWER_BYTES));
    assert!(answer.truncated && !answer.body_complete);
    assert!(told.recv().await.unwrap() < GIGABYTE / 10);
}

#[tokio::test]
async fn a_body_of_exactly_the_limit_is_whole() {
    let body = "x".repeat(ANSWER_BYTES);
    for (extra, truncated) in [("", false), ("x", true)] {
        let length = ANSWER_BYTES + extra.len();
        let peer = Peer::answering(format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}{extra}")).await;
        let answer = answered(&egress(), get(&peer.url())).await;
        assert_eq!((answer.body.len(), answer.truncated, answer.body_complete), (ANSWER_BYTES, truncated, !truncated));
    }
}

#[tokio::test]
async fn a_compressed_body_is_not_decompressed() {
    let gzip = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\x03\x00\x00\x00\x00\x00\x00\x00\x00\x00";
    let head = "HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 20\r\n\r\n";
    let peer = Peer::answering([head.as_bytes(), gzip].concat()).await;
    let answer = answered(&egress(), get(&peer.url())).await;
    assert_eq!(answer.body[..], gzip[..]);
    assert_eq!(answer.headers["content-encoding"], "gzip");
}

#[tokio::test]
async fn the_request_is_sent_as_given_and_connection_headers_are_set_by_egress() {
    let (tell, mut told) = mpsc::unbounded_channel();
    let peer = Peer::new(move |mut stream| {
        let tell = tell.clone();
        async move {
            tell.send(read_request(&mut stream).await.unwrap()).unwrap();
            stream.write_all(b"HTTP/1.0 200 OK\r\n\r\n").await.unwrap();
        }
    })
    .await;
    let mut call = post(&format!("http://127.0.0.1:{}/a%20b/../hook?q=1|2#part", peer.port), "hello");
    call.headers.insert("webhook-id", HeaderValue::from_static("42"));
    for ours in ["host", "connection", "transfer-encoding", "accept-encoding", "expect", "upgrade"] {
        call.headers.insert(ours, HeaderValue::from_static("mine"));
    }
    assert_eq!(answered(&egress(), call).await.status, 200);
    let host = format!("127.0.0.1:{}", peer.port);
    let request =
        format!("POST /hook?q=1|2 HTTP/1.1\r\nwebhook-id: 42\r\nhost: {host}\r\ncontent-length: 5\r\n\r\nhello");
    assert_eq!(told.recv().await.unwrap(), request);
}
