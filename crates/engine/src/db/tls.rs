//! Encryption of connections to PostgreSQL. `sslmode=require` switches it on, and then the server's certificate is
//! always checked.

use std::path::{Path, PathBuf};

use postcommit_channel::tls;
use tokio_postgres_rustls::MakeRustlsConnect;

use super::DbError;

/// Removes `sslrootcert=FILE` from a URL and returns the file, because the driver does not know this parameter.
pub fn split_root_certificates(url: &str) -> (String, Option<PathBuf>) {
    let Some((base, query)) = url.split_once('?') else { return (url.to_owned(), None) };
    let (ours, theirs): (Vec<&str>, Vec<&str>) = query.split('&').partition(|pair| pair.starts_with("sslrootcert="));
    let file = ours.first().and_then(|pair| pair.split_once('=')).map(|(_, file)| PathBuf::from(file));
    let rest = if theirs.is_empty() { base.to_owned() } else { format!("{base}?{}", theirs.join("&")) };
    (rest, file)
}

/// Creates the TLS connector. It trusts the given root certificates, or those of the system.
pub fn connector(root_certificates: Option<&Path>) -> Result<MakeRustlsConnect, DbError> {
    let read =
        |file: &Path| tls::read_roots(file).map_err(|e| DbError::Url(format!("sslrootcert {}: {e}", file.display())));
    let roots = root_certificates.map_or_else(|| Ok(tls::system_roots()), read)?;
    let config = tls::client_config(roots).map_err(|e| DbError::Unreachable(e.to_string()))?;
    Ok(MakeRustlsConnect::new(config))
}
