//! Encryption of connections to PostgreSQL: with `sslmode=require`, and then the server's certificate is always checked.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::DbError;

/// Takes `sslrootcert=FILE` out of a URL: the driver does not know it.
pub fn split_root_certificates(url: &str) -> (String, Option<PathBuf>) {
    let Some((base, query)) = url.split_once('?') else { return (url.to_owned(), None) };
    let (ours, theirs): (Vec<&str>, Vec<&str>) = query.split('&').partition(|pair| pair.starts_with("sslrootcert="));
    let file = ours.first().and_then(|pair| pair.split_once('=')).map(|(_, file)| PathBuf::from(file));
    let rest = if theirs.is_empty() { base.to_owned() } else { format!("{base}?{}", theirs.join("&")) };
    (rest, file)
}

/// Trusts the given roots, or the system's.
pub fn connector(root_certificates: Option<&Path>) -> Result<MakeRustlsConnect, DbError> {
    let mut roots = RootCertStore::empty();
    match root_certificates {
        Some(file) => {
            let unreadable = |e: rustls::pki_types::pem::Error| DbError::Url(format!("sslrootcert {}: {e}", file.display()));
            for certificate in CertificateDer::pem_file_iter(file).map_err(unreadable)? {
                roots.add(certificate.map_err(unreadable)?).map_err(|e| DbError::Url(format!("sslrootcert {}: {e}", file.display())))?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    let builder =
        ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider())).with_safe_default_protocol_versions();
    let config = builder.map_err(|e| DbError::Unreachable(e.to_string()))?.with_root_certificates(roots).with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}
