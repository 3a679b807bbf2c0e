//! TLS for dialled streams, from the first byte or after STARTTLS.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::RootCertStore;
use tokio::sync::OnceCell;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::endpoint::Endpoint;
use super::stream::ByteStream;
use crate::egress::deadline::{Deadline, Late};
use crate::egress::failure::{BAD_CERTIFICATE, text};
use crate::egress::{EgressError, EgressFailure, Phase};
use crate::tls;

/// Performs TLS handshakes. It trusts the system's root certificates and those of `egress.ca_file`.
pub(super) struct TlsClient {
    extra_roots: RootCertStore,
    /// The connector, created at the first handshake. Reading the system's root certificates takes milliseconds, and a
    /// process that sends nothing over TLS does not need them.
    connector: OnceCell<TlsConnector>,
}

impl TlsClient {
    pub(super) fn new(ca_file: Option<&Path>) -> Result<Self, EgressError> {
        // The file is read now, so that a bad file is reported at the start and not at the first handshake.
        let fail = |path: &Path, reason| EgressError::CaFile { path: path.to_owned(), reason };
        let read = |path: &Path| tls::read_roots(path).map_err(|reason| fail(path, reason));
        let extra_roots = ca_file.map_or(Ok(RootCertStore::empty()), read)?;
        Ok(Self { extra_roots, connector: OnceCell::new() })
    }

    /// Performs the handshake over `stream`. The peer's certificate must match the endpoint's name. `protocols` are
    /// offered by ALPN.
    pub(super) async fn handshake<S: ByteStream>(
        &self,
        endpoint: &Endpoint,
        stream: S,
        protocols: &[&str],
        deadline: Deadline,
    ) -> Result<TlsStream<S>, EgressFailure> {
        let fail = |code, detail: &str| endpoint.failure(Phase::Tls, code, detail);
        let name = endpoint.server_name().ok_or_else(|| fail("tls", "the host is not a valid TLS server name"))?;
        let protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        let handshake = async {
            let connector = self.connector.get_or_try_init(|| connector(&self.extra_roots)).await?;
            connector.with_alpn(protocols).connect(name, stream).await
        };
        match deadline.run(handshake).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) if is_of_certificate(&error) => Err(fail(BAD_CERTIFICATE, &text(&error))),
            Ok(Err(error)) => Err(fail("tls", &text(&error))),
            Err(Late) => Err(fail("timeout", "the TLS handshake did not finish in time")),
        }
    }
}

/// Whether the handshake failed because of the peer's certificate.
fn is_of_certificate(error: &io::Error) -> bool {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    matches!(cause, Some(rustls::Error::InvalidCertificate(_)))
}

async fn connector(extra: &RootCertStore) -> io::Result<TlsConnector> {
    let mut roots = tokio::task::spawn_blocking(tls::system_roots).await?;
    roots.extend(extra.roots.iter().cloned());
    if roots.is_empty() {
        return Err(io::Error::other("no root certificates found; set egress.ca_file"));
    }
    let config = tls::client_config(roots).map_err(io::Error::other)?;
    Ok(TlsConnector::from(Arc::new(config)))
}
