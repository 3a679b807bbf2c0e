//! Dialled streams, for protocols that are not HTTP: the same filter, STARTTLS, and every byte counted.

use std::time::Duration;

use postcommit_channel::egress::{
    BAD_CERTIFICATE, Deadline, DialledStream, Egress, EgressFailure, EgressSettings, Endpoint, Phase, Tls,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use super::peer::{Peer, Script, open};
use super::tls::{certified, trusting};

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(30))
}

/// Greets, agrees to STARTTLS, and then sends every byte back over TLS.
async fn agree(acceptor: TlsAcceptor, mut stream: TcpStream) {
    stream.write_all(b"220 hello\r\n").await.unwrap();
    let mut asked = [0; 10];
    stream.read_exact(&mut asked).await.unwrap();
    assert_eq!(&asked, b"STARTTLS\r\n");
    stream.write_all(b"220 go on\r\n").await.unwrap();
    if let Ok(stream) = acceptor.accept(stream).await {
        let (mut from, mut to) = tokio::io::split(stream);
        let _ = tokio::io::copy(&mut from, &mut to).await;
    }
}

/// A stream to a peer that has agreed to STARTTLS.
async fn agreed(egress: &Egress, name: &str, peer: &Peer) -> DialledStream {
    let mut stream = egress.dial(&Endpoint::new(name, peer.port).unwrap(), Tls::None, soon()).await.unwrap();
    heard(&mut stream, b"220 hello\r\n").await;
    stream.write_all(b"STARTTLS\r\n").await.unwrap();
    heard(&mut stream, b"220 go on\r\n").await;
    stream
}

async fn heard(stream: &mut DialledStream, expected: &[u8]) {
    let mut read = vec![0; expected.len()];
    stream.read_exact(&mut read).await.unwrap();
    assert_eq!(read, expected);
}

#[tokio::test]
async fn starttls_encrypts_the_stream_and_goes_on_counting() {
    let (acceptor, file) = certified();
    let peer = Peer::new(move |stream| agree(acceptor.clone(), stream)).await;
    let stream = agreed(&trusting(&file), "tls.example", &peer).await;
    let counter = stream.counter();
    assert_eq!(counter.written(), 10);
    let mut stream = stream.start_tls(soon()).await.unwrap();
    assert_eq!(counter.written(), 10, "the handshake is not the caller's");
    stream.write_all(b"secret").await.unwrap();
    stream.flush().await.unwrap();
    heard(&mut stream, b"secret").await;
    assert_eq!(counter.close(), 16);
    assert!(stream.write_all(b"more").await.is_err(), "a closed counter lets no byte through");
    assert_eq!(counter.written(), 16);
}

#[tokio::test]
async fn a_peer_that_cannot_prove_its_name_gets_nothing_after_starttls() {
    let (acceptor, file) = certified();
    let peer = Peer::new(move |stream| agree(acceptor.clone(), stream)).await;
    let failure = agreed(&trusting(&file), "other.example", &peer).await.start_tls(soon()).await.unwrap_err();
    assert_eq!((failure.phase, failure.code, failure.bytes_written), (Phase::Tls, BAD_CERTIFICATE, 10));
}

#[tokio::test]
async fn a_stream_is_encrypted_from_its_first_byte_where_asked() {
    let (acceptor, file) = certified();
    let peer = Peer::new(move |stream| {
        let acceptor = acceptor.clone();
        async move {
            let mut stream = acceptor.accept(stream).await.unwrap();
            stream.write_all(b"220 hello\r\n").await.unwrap();
        }
    })
    .await;
    let endpoint = Endpoint::new("tls.example", peer.port).unwrap();
    let mut stream = trusting(&file).dial(&endpoint, Tls::Implicit(&[]), soon()).await.unwrap();
    heard(&mut stream, b"220 hello\r\n").await;
    assert_eq!(stream.counter().written(), 0);
    let failure = stream.start_tls(soon()).await.unwrap_err();
    assert_eq!((failure.phase, failure.code), (Phase::Tls, "tls"), "there is no TLS within TLS");
}

#[tokio::test]
async fn an_endpoint_that_is_not_public_is_refused_before_it_is_connected() {
    async fn refused(egress: &Egress, host: &str) -> EgressFailure {
        egress.dial(&Endpoint::new(host, 25).unwrap(), Tls::None, soon()).await.unwrap_err()
    }
    let egress = Egress::with_resolver(&EgressSettings::default(), Script::new(&[&["10.0.0.1"]])).unwrap();
    for host in ["169.254.169.254", "0xa9fea9fe", "::1", "[::ffff:127.0.0.1]", "mail.example"] {
        let failure = refused(&egress, host).await;
        let found = (failure.phase, failure.code, failure.bytes_written);
        assert_eq!(found, (Phase::Refused, "blocked_address", 0), "{host}");
    }
    let opened = Egress::new(&open(&["127.0.0.2/32"])).unwrap();
    assert_eq!(refused(&opened, "127.0.0.1").await.code, "blocked_address");
}

#[test]
fn an_endpoint_that_cannot_be_dialled_is_refused() {
    for (host, port) in [("mail.example", 0), ("", 25), ("a b", 25), ("[::1", 25)] {
        let failure = Endpoint::new(host, port).unwrap_err();
        assert_eq!((failure.phase, failure.code), (Phase::Refused, "bad_host"), "{host}:{port}");
    }
    assert_eq!(Endpoint::new("Mail.Example", 587).unwrap().to_string(), "mail.example:587");
    assert_eq!(Endpoint::new("::1", 25), Endpoint::new("[::1]", 25));
}
