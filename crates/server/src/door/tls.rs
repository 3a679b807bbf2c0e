//! TLS: the certificate and its key, read again when the files change.

use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_rustls::TlsAcceptor;

use super::settings::ServerSettings;

/// How often the files are checked for changes. SIGHUP checks immediately.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The certificate in force.
pub struct Tls {
    certificate: String,
    key: String,
    config: RwLock<Arc<ServerConfig>>,
}

/// The content of the files.
#[derive(PartialEq, Eq)]
struct Files {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

impl Tls {
    /// Reads certificate and key; none when TLS is off. Watches the files until the result is dropped.
    ///
    /// # Errors
    /// With the setting's name and what is wrong with its file.
    pub fn load(settings: &ServerSettings) -> Result<Option<Arc<Self>>, String> {
        if settings.tls_certificate.is_empty() {
            return Ok(None);
        }
        let (certificate, key) = (settings.tls_certificate.clone(), settings.tls_key.clone());
        let files = Files::read(&certificate, &key)?;
        let config = RwLock::new(files.config(&certificate, &key)?);
        let tls = Arc::new(Self { certificate, key, config });
        // Register now: an unhandled SIGHUP ends the process.
        let hangup = signal(SignalKind::hangup()).ok();
        tokio::spawn(watch(Arc::downgrade(&tls), files, hangup));
        Ok(Some(tls))
    }

    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.config.read().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Takes the content of the files if it is new and valid.
    fn look(&self, seen: &mut Result<Files, String>) {
        let now = Files::read(&self.certificate, &self.key);
        if now == *seen {
            return;
        }
        match now.as_ref().map_err(Clone::clone).and_then(|files| files.config(&self.certificate, &self.key)) {
            Ok(config) => {
                *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
                tracing::info!("the certificate was reloaded");
            }
            Err(problem) => tracing::warn!(%problem, "the new certificate cannot be used; the old one stays"),
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
            return Err(format!("server.tls_certificate: {certificate}: holds no certificate in PEM form"));
        }
        // The reader's own error could quote the key.
        let secret = PrivateKeyDer::from_pem_slice(&self.key)
            .map_err(|_| format!("server.tls_key: {key}: holds no private key in PEM form"))?;
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
