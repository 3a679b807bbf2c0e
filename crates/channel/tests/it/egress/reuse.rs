//! When an idle connection is reused for the next call, and when it must not be.

use std::sync::Arc;

use postcommit_channel::egress::{ANSWER_BYTES, Call, Egress, Phase};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;

use super::peer::{OK, Peer, Script, answered, egress, failed, get, open, post, read_request};

#[tokio::test]
async fn calls_to_the_same_host_share_a_connection() {
    let peer = Peer::answering(OK).await;
    let egress = egress();
    for _ in 0..5 {
        let answer = answered(&egress.clone(), post(&peer.url(), "x")).await;
        assert_eq!(&answer.body[..], b"ok");
    }
    assert_eq!(peer.accepted(), 1);
}

#[tokio::test]
async fn calls_to_different_names_never_share_one() {
    let peer = Peer::answering(OK).await;
    let egress = Egress::with_resolver(&open(&["127.0.0.0/8"]), Script::new(&[&["127.0.0.1"]])).unwrap();
    for (name, connections) in [("a.example", 1), ("b.example", 2), ("a.example", 2), ("b.example", 2)] {
        answered(&egress, get(&format!("http://{name}:{}/", peer.port))).await;
        assert_eq!(peer.accepted(), connections, "{name}");
    }
}

#[tokio::test]
async fn a_fresh_call_opens_its_own_connection() {
    let peer = Peer::answering(OK).await;
    let egress = egress();
    for calls in 1..=3 {
        answered(&egress, Call { fresh: true, ..get(&peer.url()) }).await;
        assert_eq!(peer.accepted(), calls);
    }
}

#[tokio::test]
async fn a_connection_is_not_reused_unless_its_answer_was_read_to_the_end() {
    let too_long =
        format!("HTTP/1.1 200 OK\r\ncontent-length: {0}\r\n\r\n{1}", ANSWER_BYTES + 1, "x".repeat(ANSWER_BYTES + 1));
    let closing = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok";
    let old = "HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok";
    for answer in [&too_long, closing, old] {
        let peer = Peer::answering(answer).await;
        let egress = egress();
        for calls in 1..=2 {
            answered(&egress, get(&peer.url())).await;
            assert_eq!(peer.accepted(), calls);
        }
    }
}

/// A response without a request must not become the response to the next call.
#[tokio::test]
async fn a_second_answer_to_one_request_spoils_the_connection() {
    let peer = Peer::answering(format!("{OK}HTTP/1.1 500 Forged\r\ncontent-length: 0\r\n\r\n")).await;
    let egress = egress();
    for calls in 1..=3 {
        assert_eq!(answered(&egress, get(&peer.url())).await.status, 200);
        assert_eq!(peer.accepted(), calls);
    }
}

/// A peer that answers once and closes when the next request has arrived, so that this request is lost.
async fn hanging_up() -> Peer {
    Peer::new(|mut stream| async move {
        read_request(&mut stream).await;
        stream.write_all(OK.as_bytes()).await.unwrap();
        read_request(&mut stream).await;
    })
    .await
}

#[tokio::test]
async fn bytes_are_counted_for_this_request_only() {
    let peer = hanging_up().await;
    let egress = egress();
    answered(&egress, post(&peer.url(), "x".repeat(100_000))).await;
    let failure = failed(&egress, post(&peer.url(), "y")).await;
    assert_eq!(peer.accepted(), 1);
    assert_eq!((failure.phase, failure.code), (Phase::Request, "closed"));
    assert!((1..1000).contains(&failure.bytes_written), "{failure:?}");
}

/// A peer that answers and closes without `Connection: close` costs one request, not one after the other.
#[tokio::test]
async fn after_a_connection_was_closed_during_a_request_new_ones_are_opened() {
    let peer = hanging_up().await;
    let egress = egress();
    answered(&egress, get(&peer.url())).await;
    assert_eq!(failed(&egress, get(&peer.url())).await.code, "closed");
    for calls in 2..=5 {
        answered(&egress, get(&peer.url())).await;
        assert_eq!(peer.accepted(), calls);
    }
}

#[tokio::test]
async fn an_idle_connection_that_the_peer_closed_does_not_fail_the_next_call() {
    let gone = Arc::new(Notify::new());
    let signal = Arc::clone(&gone);
    let peer = Peer::new(move |mut stream| {
        let signal = Arc::clone(&signal);
        async move {
            read_request(&mut stream).await;
            stream.write_all(OK.as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
            // The end of the stream: the client has noticed the close and dropped the connection.
            assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
            signal.notify_one();
        }
    })
    .await;
    let egress = egress();
    for calls in 1..=3 {
        assert_eq!(answered(&egress, post(&peer.url(), "x")).await.status, 200);
        gone.notified().await;
        assert_eq!(peer.accepted(), calls);
    }
}

#[tokio::test]
async fn a_request_that_reached_the_peer_is_never_sent_again() {
    let peer = Peer::new(|mut stream| async move {
        read_request(&mut stream).await;
        stream.write_all(OK.as_bytes()).await.unwrap();
        read_request(&mut stream).await;
        stream.set_zero_linger().unwrap();
    })
    .await;
    let egress = egress();
    answered(&egress, get(&peer.url())).await;
    assert!(failed(&egress, post(&peer.url(), "pay")).await.reached_wire());
    assert_eq!(peer.accepted(), 1, "no second connection, so no second request");
}
