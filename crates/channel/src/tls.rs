//! The TLS of every client: outgoing messages and the connection to PostgreSQL.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

/// TLS 1.2 and 1.3 by ring, trusting `roots`, without a client certificate.
///
/// # Errors
/// The cryptography does not support these versions.
pub fn client_config(roots: RootCertStore) -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

/// The operating system's root certificates; none where it has none. Reads files, so it blocks.
#[must_use]
pub fn system_roots() -> RootCertStore {
    let system = rustls_native_certs::load_native_certs();
    if !system.errors.is_empty() {
        tracing::warn!(errors = system.errors.len(), "some system root certificates could not be read");
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(system.certs);
    roots
}

/// The root certificates of a PEM file.
///
/// # Errors
/// It cannot be read, holds no certificate, or holds one that cannot be a root.
pub fn read_roots(file: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(file).map_err(|error| error.to_string())? {
        let certificate = certificate.map_err(|error| error.to_string())?;
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    if roots.is_empty() { Err("it holds no certificate".to_owned()) } else { Ok(roots) }
}
