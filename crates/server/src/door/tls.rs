//! TLS. The certificate and its key are read again when their files change.

use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_rustls::TlsAcceptor;

use super::settings::ServerSettings;

/// The interval at which the files are checked for changes. A SIGHUP checks them immediately.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The certificate for new connections, and its files.
pub struct Tls {
    certificate: String,
    key: String,
    config: RwLock<Arc<ServerConfig>>,
}

#[derive(PartialEq, Eq)]
struct Files {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

impl Tls {
    /// Reads the certificate and its key, or returns `None` if TLS is off. Watches the files until the result is
    /// dropped.
    pub fn load(settings: &ServerSettings) -> Result<Option<Arc<Self>>, String> {
        if settings.tls_certificate.is_empty() {
            return Ok(None);
        }
        let (certificate, key) = (settings.tls_certificate.clone(), settings.tls_key.clone());
        let files = Files::read(&certificate, &key)?;
        let config = RwLock::new(files.config(&certificate, &key)?);
        let tls = Arc::new(Self { certificate, key, config });
        // Register the handler now, because a SIGHUP without a handler ends the process.
        let hangup = signal(SignalKind::hangup()).ok();
        tokio::spawn(watch(Arc::downgrade(&tls), files, hangup));
        Ok(Some(tls))
    }

    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.config.read().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Uses the new content of the files if it changed and is valid.
    fn look(&self, seen: &mut Result<Files, String>) {
        let now = Files::read(&self.certificate, &self.key);
        if now == *seen {
            return;
        }
        match now.as_ref().map_err(Clone::clone).and_then(|files| files.config(&self.certificate, &self.key)) {
            Ok(config) => {
                *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
                tracing::info!("the server uses the new certificate");
            }
            Err(problem) => {
                tracing::warn!(%problem, "the new certificate cannot be used; the server keeps the old one");
            }
        }
        *seen = now;
    }
}

async fn watch(tls: Weak<Tls>, files: Files, mut hangup: Option<Signal>) {
    let mut seen = Ok(files);
    loop {
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            Some(()) = async { hangup.as_mut()?.recv().await } => {}
        }
        let Some(tls) = tls.upgrade() else { return };
        tls.look(&mut seen);
    }
}

impl Files {
    fn read(certificate: &str, key: &str) -> Result<Self, String> {
        let read = |setting: &str, path: &str| {
            std::fs::read(Path::new(path)).map_err(|e| format!("server.{setting}: {path}: {e}"))
        };
        Ok(Self { certificate: read("tls_certificate", certificate)?, key: read("tls_key", key)? })
    }

    fn config(&self, certificate: &str, key: &str) -> Result<Arc<ServerConfig>, String> {
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&self.certificate)
            .collect::<Result<_, _>>()
            .map_err(|e| format!("server.tls_certificate: {certificate}: {e}"))?;
        if chain.is_empty() {
            return Err(format!("server.tls_certificate: {certificate}: contains no certificate in PEM format"));
        }
        // The parser's own error is not shown, because it could quote the key.
        let secret = PrivateKeyDer::from_pem_slice(&self.key)
            .map_err(|_| format!("server.tls_key: {key}: contains no private key in PEM format"))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| e.to_string())?;
        let config = builder.with_no_client_auth().with_single_cert(chain, secret);
        let mut config = config.map_err(|e| format!("server.tls_certificate: {certificate} with {key}: {e}"))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}
