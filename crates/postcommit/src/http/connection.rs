//! The connections of a client: opened when they are needed, and kept for the next call.

use std::error::Error as StdError;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::OnceCell;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};

use super::answer::Answer;
use super::repeat::Unsettled;
use crate::Error;

/// The maximum number of bytes of a response body. A longer body is an error.
pub const ANSWER_BYTES: usize = 4 * 1024 * 1024;
/// The maximum number of bytes of a response's head.
const HEAD_BYTES: usize = 64 * 1024;
/// The maximum number of idle connections.
const IDLE: usize = 8;

type Sender = SendRequest<Full<Bytes>>;

/// The server's address and the idle connections to it.
pub(super) struct Connections {
    host: String,
    port: u16,
    tls: Option<Tls>,
    timeout: Duration,
    idle: Mutex<Vec<Sender>>,
}

struct Tls {
    name: ServerName<'static>,
    roots: Vec<CertificateDer<'static>>,
    /// The TLS connector. It is built for the first connection, because reading the system's root certificates takes
    /// milliseconds.
    connector: OnceCell<TlsConnector>,
}

impl Connections {
    /// Creates the connections to the server of `uri`, without opening one. `roots` is PEM.
    pub(super) fn new(uri: &Uri, timeout: Duration, roots: &[u8]) -> Result<Self, Error> {
        let secure = uri.scheme_str() == Some("https");
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let tls = if secure { Some(Tls::new(&host, roots)?) } else { None };
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        Ok(Self { host, port, tls, timeout, idle: Mutex::default() })
    }

    /// Makes one try. After an error, the request may have arrived or not.
    pub(super) async fn exchange(&self, request: Request<Bytes>) -> Result<Answer, Unsettled> {
        let tried = tokio::time::timeout(self.timeout, self.try_exchange(request)).await;
        tried.unwrap_or_else(|_| Err(Unsettled::new(format!("no answer within {} ms", self.timeout.as_millis()))))
    }

    async fn try_exchange(&self, request: Request<Bytes>) -> Result<Answer, Unsettled> {
        // The server may have closed an idle connection in the meantime. That is not a failed try: open a new
        // connection.
        if let Some(mut kept) = self.kept()
            && let Ok(response) = kept.send_request(request.clone().map(Full::new)).await
        {
            return self.read(kept, response).await;
        }
        let mut sender = self.open().await.map_err(|error| Unsettled::new(shown("cannot connect", &error)))?;
        let response = sender
            .send_request(request.map(Full::new))
            .await
            .map_err(|error| Unsettled::new(shown("no answer", &error)))?;
        self.read(sender, response).await
    }

    async fn read(&self, sender: Sender, response: Response<Incoming>) -> Result<Answer, Unsettled> {
        let (head, body) = response.into_parts();
        let body = Limited::new(body, ANSWER_BYTES).collect().await.map_err(|error| {
            match error.downcast_ref::<LengthLimitError>() {
                Some(_) => Unsettled::new(format!("the answer has more than {ANSWER_BYTES} bytes")),
                None => Unsettled::new(shown("the answer is incomplete", &*error)),
            }
        })?;
        self.keep(sender);
        Ok(Answer::new(head.status.as_u16(), &head.headers, body.to_bytes()))
    }

    fn kept(&self) -> Option<Sender> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|sender| !sender.is_closed());
        idle.pop()
    }

    fn keep(&self, sender: Sender) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE && !sender.is_closed() {
            idle.push(sender);
        }
    }

    async fn open(&self) -> io::Result<Sender> {
        let tcp = TcpStream::connect((self.host.as_str(), self.port)).await?;
        // Without TCP_NODELAY, small requests would wait for acknowledgements. A failure to set it is harmless.
        let _ = tcp.set_nodelay(true);
        match &self.tls {
            Some(tls) => handshake(tls.connect(tcp).await?).await,
            None => handshake(tcp).await,
        }
    }
}

async fn handshake(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> io::Result<Sender> {
    let opened = Builder::new().max_buf_size(HEAD_BYTES).handshake(TokioIo::new(stream)).await;
    let (sender, connection) = opened.map_err(io::Error::other)?;
    // The task reads and writes for the sender, and reports errors to it. It ends when the sender is dropped.
    tokio::spawn(connection);
    Ok(sender)
}

impl Tls {
    fn new(host: &str, roots: &[u8]) -> Result<Self, Error> {
        let name = ServerName::try_from(host.trim_end_matches('.').to_owned());
        let name = name.map_err(|_| Error::invalid("url", "has a host that is not a valid TLS server name"))?;
        let wrong = |problem: String| Error::invalid("root_certificates", problem);
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(roots).collect();
        let found = found.map_err(|error| wrong(error.to_string()))?;
        if found.is_empty() && !roots.is_empty() {
            return Err(wrong("contains no certificate in PEM".into()));
        }
        for root in &found {
            RootCertStore::empty().add(root.clone()).map_err(|error| wrong(error.to_string()))?;
        }
        Ok(Self { name, roots: found, connector: OnceCell::new() })
    }

    async fn connect(&self, tcp: TcpStream) -> io::Result<impl AsyncRead + AsyncWrite + Unpin + Send + 'static> {
        let connector = self.connector.get_or_try_init(|| connector(self.roots.clone())).await?;
        connector.connect(self.name.clone(), tcp).await
    }
}

/// Builds a connector for TLS 1.2 and 1.3 and HTTP/1.1. It trusts the system's root certificates and `extra`.
async fn connector(extra: Vec<CertificateDer<'static>>) -> io::Result<TlsConnector> {
    let system = tokio::task::spawn_blocking(rustls_native_certs::load_native_certs).await?;
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(system.certs.into_iter().chain(extra));
    if roots.is_empty() {
        return Err(io::Error::other("the system has no root certificates; set root_certificates"));
    }
    let builder =
        ClientConfig::builder_with_provider(Arc::new(ring::default_provider())).with_safe_default_protocol_versions();
    let mut config = builder.map_err(io::Error::other)?.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

/// An error and its causes in one line.
fn shown(what: &str, error: &(dyn StdError + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |&error| error.source());
    causes.fold(what.to_owned(), |text, cause| format!("{text}: {cause}"))
}
