//! TLS for every client in this process: outgoing messages and the connection to PostgreSQL.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

/// A configuration for TLS 1.2 and 1.3 with ring that trusts `roots` and has no client certificate.
pub fn client_config(roots: RootCertStore) -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

/// The root certificates of the operating system. The store is empty if there are none. The function reads files, so it
/// blocks.
pub fn system_roots() -> RootCertStore {
    let system = rustls_native_certs::load_native_certs();
    if !system.errors.is_empty() {
        tracing::warn!(
            errors = system.errors.len(),
            "some root certificates of the system could not be read; TLS continues with the others"
        );
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(system.certs);
    roots
}

/// Reads the root certificates of a PEM file.
pub fn read_roots(file: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(file).map_err(|error| error.to_string())? {
        let certificate = certificate.map_err(|error| error.to_string())?;
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    if roots.is_empty() {
        Err("the file contains no certificate; it must contain certificates in PEM form".to_owned())
    } else {
        Ok(roots)
    }
}
