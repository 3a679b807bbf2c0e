//! Opens a stream to an endpoint. It resolves the name once, filters the addresses, connects to one of the allowed
//! ones, and starts TLS if asked.
//! Every outgoing connection of any protocol is opened here, so that no connection bypasses the address filter.

mod address;
mod endpoint;
mod stream;
mod tls;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use url::Host;

pub use address::forbidden;
pub use endpoint::Endpoint;
pub use stream::{DialledStream, WriteCounter};

use super::deadline::{Deadline, Late};
use super::failure::text;
use super::{EgressError, EgressFailure, EgressSettings, Phase};
use address::Filter;
use stream::ByteStream;
use tls::TlsClient;

/// The maximum number of addresses of one host that are tried.
const ADDRESSES_TRIED: usize = 8;

/// The future that a [`Resolver`] returns.
pub type Resolved<'a> = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send + 'a>>;

/// Resolves a host name to addresses. It need not be trusted, because every address is filtered afterwards.
pub trait Resolver: Send + Sync {
    /// The addresses of `host`, best first. It is called once per new connection, and never if the host is an IP
    /// address already.
    fn resolve<'a>(&'a self, host: &'a str) -> Resolved<'a>;
}

/// Resolves names with the operating system, which includes the hosts file.
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

/// Whether a stream is encrypted from its first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tls<'a> {
    /// The stream is not encrypted. A protocol with STARTTLS starts in this way and later calls
    /// [`DialledStream::start_tls`].
    None,
    /// The stream is encrypted from the first byte. The listed protocols are offered by ALPN. An empty list offers
    /// none.
    Implicit(&'a [&'a str]),
}

/// Opens streams to endpoints.
pub(super) struct Dialer {
    filter: Filter,
    resolver: Arc<dyn Resolver>,
    connect_timeout: Duration,
    tls: Arc<TlsClient>,
}

impl Dialer {
    pub(super) fn new(settings: &EgressSettings, resolver: Arc<dyn Resolver>) -> Result<Self, EgressError> {
        settings.validate().map_err(EgressError::Settings)?;
        Ok(Self {
            filter: Filter::new(&settings.allow, settings.public),
            resolver,
            connect_timeout: Duration::from_secs(settings.connect_timeout_s),
            tls: Arc::new(TlsClient::new(settings.ca_file.as_deref())?),
        })
    }

    /// Opens a stream to `endpoint`. Writes nothing except the TLS handshake.
    pub(super) async fn dial(
        &self,
        endpoint: &Endpoint,
        tls: Tls<'_>,
        deadline: Deadline,
    ) -> Result<DialledStream, EgressFailure> {
        let addresses = self.addresses(endpoint, deadline).await?;
        let tcp = self.connect(endpoint, &addresses, deadline).await?;
        let stream: Box<dyn ByteStream> = match tls {
            Tls::None => Box::new(tcp),
            Tls::Implicit(protocols) => Box::new(self.tls.handshake(endpoint, tcp, protocols, deadline).await?),
        };
        Ok(DialledStream::new(stream, tls != Tls::None, endpoint.clone(), Arc::clone(&self.tls)))
    }

    /// Refuses an endpoint whose host is an IP address that is forbidden.
    pub(super) fn check_literal(&self, endpoint: &Endpoint) -> Result<(), EgressFailure> {
        match endpoint.literal().and_then(|ip| self.filter.blocked(ip)) {
            Some(reason) => Err(blocked(endpoint, reason)),
            None => Ok(()),
        }
    }

    /// The addresses of `endpoint` that the filter allows.
    async fn addresses(&self, endpoint: &Endpoint, deadline: Deadline) -> Result<Vec<IpAddr>, EgressFailure> {
        let found = match &endpoint.host {
            Host::Domain(name) => self.resolve(endpoint, name, deadline).await?,
            Host::Ipv4(ip) => vec![IpAddr::V4(*ip)],
            Host::Ipv6(ip) => vec![IpAddr::V6(*ip)],
        };
        self.filter.keep(&found).map_err(|reason| blocked(endpoint, reason))
    }

    async fn resolve(&self, endpoint: &Endpoint, name: &str, deadline: Deadline) -> Result<Vec<IpAddr>, EgressFailure> {
        let fail = |code, detail: &str| endpoint.failure(Phase::Resolve, code, detail);
        match deadline.run(self.resolver.resolve(name)).await {
            Err(Late) => Err(fail("timeout", "the host name was not resolved in time")),
            Ok(Err(error)) => Err(fail("dns", &text(&error))),
            Ok(Ok(found)) if found.is_empty() => Err(fail("dns", "the host name has no IP address")),
            Ok(Ok(found)) => Ok(found),
        }
    }

    /// Connects to the first address that accepts. If none does, returns the failure of the last address.
    async fn connect(
        &self,
        endpoint: &Endpoint,
        addresses: &[IpAddr],
        deadline: Deadline,
    ) -> Result<TcpStream, EgressFailure> {
        let late = || endpoint.failure(Phase::Connect, "connect_timeout", "the connection was not opened in time");
        let mut failure = late();
        for ip in addresses.iter().take(ADDRESSES_TRIED) {
            let socket = SocketAddr::new(*ip, endpoint.port);
            failure = match deadline.run_within(self.connect_timeout, TcpStream::connect(socket)).await {
                Ok(Ok(tcp)) => {
                    // Without TCP_NODELAY, small requests would wait for acknowledgements. A failure here does not
                    // matter.
                    let _ = tcp.set_nodelay(true);
                    return Ok(tcp);
                }
                Ok(Err(error)) => endpoint.failure(Phase::Connect, "connect", &text(&error)),
                Err(Late) => late(),
            };
            if deadline.left().is_zero() {
                break;
            }
        }
        Err(failure)
    }
}

fn blocked(endpoint: &Endpoint, reason: &str) -> EgressFailure {
    let detail = format!("the IP address is not allowed ({reason}); the setting egress.allow can allow it");
    endpoint.failure(Phase::Refused, "blocked_address", &detail)
}
