//! TLS: which certificates are trusted, and that a failed handshake has sent nothing.

use std::io::Write;
use std::sync::Arc;

use postcommit_channel::egress::{BAD_CERTIFICATE, Egress, EgressFailure, EgressSettings, Phase};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use super::peer::{OK, Peer, Script, answered, brief, failed, open, post, read_request};

/// What makes a peer `tls.example`, and the PEM file of its certificate.
pub fn certified() -> (TlsAcceptor, tempfile::NamedTempFile) {
    let made = rcgen::generate_simple_self_signed(["tls.example".to_owned()]).unwrap();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(made.cert.pem().as_bytes()).unwrap();
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let builder = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let config = builder.with_single_cert(vec![made.cert.der().clone()], key).unwrap();
    (TlsAcceptor::from(Arc::new(config)), file)
}

/// A TLS peer that names itself `tls.example`, and the PEM file of its certificate.
async fn tls_peer() -> (Peer, tempfile::NamedTempFile) {
    let (acceptor, file) = certified();
    (Peer::new(move |stream| answer_tls(acceptor.clone(), stream)).await, file)
}

async fn answer_tls(acceptor: TlsAcceptor, stream: TcpStream) {
    let Ok(mut stream) = acceptor.accept(stream).await else { return };
    while let Some(request) = read_request(&mut stream).await {
        if request.contains("hang up") {
            return;
        }
        stream.write_all(OK.as_bytes()).await.unwrap();
    }
}

fn egress(settings: EgressSettings) -> Egress {
    let settings = EgressSettings { allow: open(&["127.0.0.0/8"]).allow, ..settings };
    Egress::with_resolver(&settings, Script::new(&[&["127.0.0.1"]])).unwrap()
}

pub fn trusting(file: &tempfile::NamedTempFile) -> Egress {
    egress(EgressSettings { ca_file: Some(file.path().to_owned()), ..EgressSettings::default() })
}

fn url(name: &str, peer: &Peer) -> String {
    format!("https://{name}:{}/hook?token=s3cret", peer.port)
}

fn seen(failure: &EgressFailure) -> (Phase, &'static str, u64) {
    (failure.phase, failure.code, failure.bytes_written)
}

#[tokio::test]
async fn a_peer_with_a_trusted_certificate_answers_and_is_kept() {
    let (peer, file) = tls_peer().await;
    let egress = trusting(&file);
    for _ in 0..3 {
        assert_eq!(answered(&egress, post(&url("tls.example", &peer), "x")).await.status, 200);
    }
    assert_eq!(peer.accepted(), 1);
    assert_eq!(answered(&egress, post(&url("tls.example.", &peer), "x")).await.status, 200);
}

#[tokio::test]
async fn a_peer_with_an_untrusted_certificate_sees_no_request() {
    let (peer, file) = tls_peer().await;
    let wrong_name = failed(&trusting(&file), post(&url("other.example", &peer), "x")).await;
    assert_eq!(seen(&wrong_name), (Phase::Tls, BAD_CERTIFICATE, 0));
    let unknown = failed(&egress(EgressSettings::default()), post(&url("tls.example", &peer), "x")).await;
    assert_eq!(seen(&unknown), (Phase::Tls, BAD_CERTIFICATE, 0));
}

#[tokio::test]
async fn a_peer_that_does_not_speak_tls_sees_no_request() {
    let (_, file) = tls_peer().await;
    let plain = Peer::new(|mut stream| async move {
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        read_request(&mut stream).await;
    });
    let failure = failed(&trusting(&file), post(&url("tls.example", &plain.await), "x")).await;
    assert_eq!(seen(&failure), (Phase::Tls, "tls", 0));
    let silent = Peer::new(|mut stream| async move {
        read_request(&mut stream).await;
    });
    let failure = failed(&trusting(&file), brief(post(&url("tls.example", &silent.await), "x"))).await;
    assert_eq!(seen(&failure), (Phase::Tls, "timeout", 0));
}

#[tokio::test]
async fn a_tls_peer_that_disconnects_leaves_the_request_unclear() {
    let (peer, file) = tls_peer().await;
    let failure = failed(&trusting(&file), post(&url("tls.example", &peer), "hang up")).await;
    assert_eq!((failure.phase, failure.code), (Phase::Request, "closed"));
    assert!(failure.reached_wire());
}

#[test]
fn an_unusable_ca_file_is_reported_at_start() {
    let empty = tempfile::NamedTempFile::new().unwrap();
    for path in [empty.path().to_owned(), empty.path().with_extension("missing")] {
        let settings = EgressSettings { ca_file: Some(path), ..EgressSettings::default() };
        assert!(Egress::new(&settings).unwrap_err().to_string().starts_with("egress.ca_file "));
    }
}
