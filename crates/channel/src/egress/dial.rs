//! From a place to an open connection: resolve once, filter, connect to a filtered address, TLS if asked.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio::sync::OnceCell;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use url::Host;

use super::address::Filter;
use super::connection::{Connection, Deadline, Late, text};
use super::place::Place;
use super::{EgressError, EgressSettings, Failure, Phase};

/// The most addresses of one host that are tried before giving up.
const ADDRESSES_TRIED: usize = 8;

/// What a [`Resolver`] returns.
pub type Resolved<'a> = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send + 'a>>;

/// Turns a host name into addresses. It need not be trusted: every address is filtered afterwards.
pub trait Resolver: Send + Sync {
    /// The addresses of `host`, best first. Asked once per new connection and never for an address.
    fn resolve<'a>(&'a self, host: &'a str) -> Resolved<'a>;
}

/// Asks the operating system, hosts file included.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemResolver;

impl Resolver for SystemResolver {
    fn resolve<'a>(&'a self, host: &'a str) -> Resolved<'a> {
        Box::pin(async move {
            let found = tokio::net::lookup_host((host, 0)).await?;
            Ok(found.map(|address| address.ip()).collect())
        })
    }
}

/// Opens connections.
pub(super) struct Dialer {
    filter: Filter,
    resolver: Arc<dyn Resolver>,
    connect_timeout: Duration,
    extra_roots: Vec<CertificateDer<'static>>,
    /// Made at the first TLS connection: reading the system's roots costs files and milliseconds that a
    /// process without webhooks never needs.
    tls: OnceCell<TlsConnector>,
}

impl Dialer {
    pub(super) fn new(settings: &EgressSettings, resolver: Arc<dyn Resolver>) -> Result<Self, EgressError> {
        settings.validate().map_err(EgressError::Settings)?;
        Ok(Self {
            filter: Filter::new(&settings.allow),
            resolver,
            connect_timeout: Duration::from_secs(settings.connect_timeout_s),
            extra_roots: settings.ca_file.as_deref().map_or(Ok(Vec::new()), read_roots)?,
            tls: OnceCell::new(),
        })
    }

    /// Opens a connection to `place`. Nothing of the request is written.
    pub(super) async fn open(&self, place: &Place, deadline: Deadline) -> Result<Box<Connection>, Failure> {
        let addresses = self.addresses(place, deadline).await?;
        let tcp = self.connect(place, &addresses, deadline).await?;
        let opened = if place.tls {
            Connection::open(self.handshake(place, tcp, deadline).await?, true).await
        } else {
            Connection::open(tcp, false).await
        };
        opened.map_err(|error| place.failure(Phase::Connect, "connect", &text(&error)))
    }

    /// Refuses a place whose host is written as a forbidden address.
    pub(super) fn check_literal(&self, place: &Place) -> Result<(), Failure> {
        match place.literal().and_then(|ip| self.filter.blocked(ip)) {
            Some(reason) => Err(blocked(place, reason)),
            None => Ok(()),
        }
    }

    /// The addresses of `place` that may be connected to.
    async fn addresses(&self, place: &Place, deadline: Deadline) -> Result<Vec<IpAddr>, Failure> {
        let found = match &place.host {
            Host::Domain(name) => self.resolve(place, name, deadline).await?,
            Host::Ipv4(ip) => vec![IpAddr::V4(*ip)],
            Host::Ipv6(ip) => vec![IpAddr::V6(*ip)],
        };
        self.filter.keep(&found).map_err(|reason| blocked(place, reason))
    }

    async fn resolve(&self, place: &Place, name: &str, deadline: Deadline) -> Result<Vec<IpAddr>, Failure> {
        let fail = |code, detail: &str| place.failure(Phase::Resolve, code, detail);
        match deadline.run(self.resolver.resolve(name)).await {
            Err(Late) => Err(fail("timeout", "the name was not resolved in time")),
            Ok(Err(error)) => Err(fail("dns", &text(&error))),
            Ok(Ok(found)) if found.is_empty() => Err(fail("dns", "the name has no address")),
            Ok(Ok(found)) => Ok(found),
        }
    }

    /// Connects to the first address that answers; the last failure is the one reported.
    async fn connect(&self, place: &Place, addresses: &[IpAddr], deadline: Deadline) -> Result<TcpStream, Failure> {
        let late = || place.failure(Phase::Connect, "connect_timeout", "no connection in time");
        let mut failure = late();
        for ip in addresses.iter().take(ADDRESSES_TRIED) {
            let socket = SocketAddr::new(*ip, place.port);
            failure = match deadline.run_within(self.connect_timeout, TcpStream::connect(socket)).await {
                Ok(Ok(tcp)) => {
                    // Without it the small requests we send wait for acknowledgements. Not fatal.
                    let _ = tcp.set_nodelay(true);
                    return Ok(tcp);
                }
                Ok(Err(error)) => place.failure(Phase::Connect, "connect", &text(&error)),
                Err(Late) => late(),
            };
            if deadline.left().is_zero() {
                break;
            }
        }
        Err(failure)
    }

    async fn handshake(&self, place: &Place, tcp: TcpStream, deadline: Deadline) -> Result<TlsStream<TcpStream>, Failure> {
        let fail = |code, detail: &str| place.failure(Phase::Tls, code, detail);
        let name = server_name(&place.host).ok_or_else(|| fail("tls", "the host cannot be named in TLS"))?;
        let shake = async {
            let connector = self.tls.get_or_try_init(|| connector(self.extra_roots.clone())).await?;
            connector.connect(name, tcp).await
        };
        match deadline.run(shake).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(fail("tls", &text(&error))),
            Err(Late) => Err(fail("timeout", "no TLS handshake in time")),
        }
    }
}

fn blocked(place: &Place, reason: &str) -> Failure {
    let detail = format!("the address is not allowed ({reason}); egress.allow can open it");
    place.failure(Phase::Refused, "blocked_address", &detail)
}

/// The name the peer must prove. A trailing dot is for resolvers; certificates do not carry it.
fn server_name(host: &Host<String>) -> Option<ServerName<'static>> {
    match host {
        Host::Domain(name) => ServerName::try_from(name.trim_end_matches('.').to_owned()).ok(),
        Host::Ipv4(ip) => Some(ServerName::IpAddress(IpAddr::V4(*ip).into())),
        Host::Ipv6(ip) => Some(ServerName::IpAddress(IpAddr::V6(*ip).into())),
    }
}

fn read_roots(path: &Path) -> Result<Vec<CertificateDer<'static>>, EgressError> {
    let fail = |reason: String| EgressError::CaFile { path: path.to_owned(), reason };
    let certificates = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let roots: Vec<_> = certificates.map_err(|error| fail(error.to_string()))?;
    if roots.is_empty() {
        return Err(fail("it holds no certificate".to_owned()));
    }
    // Refuse at start what would otherwise fail at the first call.
    roots.iter().try_for_each(|root| {
        let added = RootCertStore::empty().add(root.clone());
        added.map_err(|error| fail(error.to_string()))
    })?;
    Ok(roots)
}

/// TLS 1.2 and 1.3 by ring, HTTP/1.1 only, trusting the system's roots and `extra`.
async fn connector(extra: Vec<CertificateDer<'static>>) -> io::Result<TlsConnector> {
    let system = tokio::task::spawn_blocking(rustls_native_certs::load_native_certs).await?;
    if !system.errors.is_empty() {
        tracing::warn!(errors = system.errors.len(), "some system root certificates could not be read");
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(system.certs.into_iter().chain(extra));
    if roots.is_empty() {
        return Err(io::Error::other("no root certificates found; set egress.ca_file"));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config = builder.map_err(io::Error::other)?.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}
