//! TLS: the current certificate, and its replacement.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::{TestServer, read_response};

/// A self-signed certificate for localhost.
struct Identity {
    certificate: String,
    key: String,
    roots: Arc<RootCertStore>,
}

impl Identity {
    fn new() -> Self {
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(cert.der().clone()).unwrap();
        Self { certificate: cert.pem(), key: signing_key.serialize_pem(), roots: Arc::new(roots) }
    }

    /// Replaces the files like a certificate renewal: writes new ones, then renames them.
    fn install(&self, folder: &Path) {
        for (name, text) in [("key.pem", &self.key), ("certificate.pem", &self.certificate)] {
            replace(folder, name, text);
        }
    }

    /// The answer of `/healthz` to a client that trusts only this certificate.
    fn ask(&self, server: &TestServer) -> Result<String, String> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let mut config = config.with_root_certificates(self.roots.clone()).with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let connection = ClientConnection::new(Arc::new(config), ServerName::try_from("localhost").unwrap()).unwrap();
        let mut stream = StreamOwned::new(connection, server.connect().0);
        stream
            .write_all(b"GET /healthz HTTP/1.1\r\nhost: h\r\nx-request-id: by-tls\r\n\r\n")
            .map_err(|e| e.to_string())?;
        let answer = read_response(&mut stream);
        assert_eq!(stream.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
        Ok(answer)
    }
}

fn replace(folder: &Path, name: &str, text: &str) {
    let beside = folder.join(format!("{name}.new"));
    std::fs::write(&beside, text).unwrap();
    std::fs::rename(beside, folder.join(name)).unwrap();
}

fn settings(folder: &Path) -> [(&'static str, String); 2] {
    let path = |name: &str| folder.join(name).display().to_string();
    [("SERVER_TLS_CERTIFICATE", path("certificate.pem")), ("SERVER_TLS_KEY", path("key.pem"))]
}

fn server(folder: &Path, more: &[(&str, &str)]) -> TestServer {
    let files = settings(folder);
    let mut all: Vec<(&str, &str)> = files.iter().map(|(name, value)| (*name, value.as_str())).collect();
    all.extend(more);
    TestServer::with(&all)
}

#[test]
fn a_new_certificate_takes_the_old_ones_place_and_a_bad_one_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (Identity::new(), Identity::new());
    first.install(folder.path());
    let server = server(folder.path(), &[]);
    assert!(first.ask(&server).unwrap().ends_with("ok\n"));
    assert!(second.ask(&server).is_err());
    second.install(folder.path());
    server.process.signal("HUP");
    server.process.wait_for_line("the server uses the new certificate");
    assert!(second.ask(&server).unwrap().ends_with("ok\n"));
    assert!(first.ask(&server).is_err());
    // The files are also read again without a signal.
    replace(folder.path(), "certificate.pem", "nonsense");
    let line = server.process.wait_for_line("certificate.pem: contains no certificate in PEM format");
    assert!(line.contains("the server keeps the old one"), "{line}");
    assert!(second.ask(&server).unwrap().ends_with("ok\n"));
    first.install(folder.path());
    server.process.wait_for_lines("the server uses the new certificate", 2);
    assert!(first.ask(&server).unwrap().ends_with("ok\n"));
}

#[test]
fn a_client_without_a_handshake_is_cut_off_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let identity = Identity::new();
    identity.install(folder.path());
    let server =
        server(folder.path(), &[("SERVER_HEADER_DEADLINE_MS", "600000"), ("SERVER_CONNECTIONS_PER_ADDRESS", "2")]);
    let silent = [server.connect(), server.connect()];
    let answer = identity.ask(&server).unwrap();
    assert!(answer.starts_with("HTTP/1.1 503 "), "the refusal is encrypted as well: {answer}");
    drop(silent);
    crate::installation::wait_until("a place", || identity.ask(&server).is_ok_and(|answer| answer.ends_with("ok\n")));
    let quick = self::server(folder.path(), &[("SERVER_HEADER_DEADLINE_MS", "50")]);
    assert_eq!(quick.connect().read_to_end(), "");
}

#[test]
fn files_that_cannot_be_used_are_named_at_start() {
    let folder = tempfile::tempdir().unwrap();
    let refused = || {
        let files = settings(folder.path());
        let shell = super::shell(&[(files[0].0, &files[0].1), (files[1].0, &files[1].1)]);
        shell.run(&["serve"]).ends(2).stderr
    };
    assert!(refused().contains("server.tls_certificate: "), "there is no file");
    let (one, other) = (Identity::new(), Identity::new());
    one.install(folder.path());
    replace(folder.path(), "key.pem", "nonsense");
    assert!(refused().contains("key.pem: contains no private key in PEM format"));
    replace(folder.path(), "key.pem", &other.key);
    let problem = refused();
    assert!(problem.contains("server.tls_certificate: ") && problem.contains("key.pem"), "{problem}");
}
