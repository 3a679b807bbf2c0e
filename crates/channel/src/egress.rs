//! Makes every outgoing connection.
//! - [`Egress::dial`] resolves a host once, drops every address that is not public (see [`forbidden`]) and connects to
//!   one of the others. If asked, it starts TLS and checks the certificate for the host's name. Any protocol can run
//!   over the [`DialledStream`].
//! - [`Egress::send`] makes one HTTP request over such a stream.
//!
//! The written bytes are counted. A failure says in which phase it happened and how many bytes were written before.
//! This decides whether the message may be sent again.

mod deadline;
mod dial;
mod failure;
mod http;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use ipnet::IpNet;

pub use self::deadline::Deadline;
pub use self::dial::{DialledStream, Endpoint, Resolved, Resolver, SystemResolver, Tls, WriteCounter, forbidden};
pub use self::failure::{BAD_CERTIFICATE, EgressFailure, Phase};
pub use self::http::{ANSWER_BYTES, Call, HttpAnswer, LEAST_WAIT};

use self::dial::Dialer;
use self::http::IdleConnections;

/// The `[egress]` section of the settings.
#[derive(Debug, Clone, serde::Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct EgressSettings {
    /// Address ranges that are forbidden by default and that the operator allows, such as `10.1.0.0/16`. Default: none.
    pub allow: Vec<IpNet>,
    /// Whether public addresses may be connected to. If not, only the ranges in `allow` may. Default: true.
    pub public: bool,
    /// The time limit for a TCP connection to one address, in seconds, 1 to 60. Default: 10.
    pub connect_timeout_s: u64,
    /// A PEM file of root certificates that are trusted in addition to the system's. Default: none.
    pub ca_file: Option<PathBuf>,
}

impl Default for EgressSettings {
    fn default() -> Self {
        Self { allow: Vec::new(), public: true, connect_timeout_s: 10, ca_file: None }
    }
}

impl EgressSettings {
    /// Checks that the settings are in their allowed ranges.
    pub fn validate(&self) -> Result<(), String> {
        if !(1..=60).contains(&self.connect_timeout_s) {
            return Err(format!("egress.connect_timeout_s: is {}; 1 to 60 are allowed", self.connect_timeout_s));
        }
        match self.allow.iter().find(|net| is_mapped(net)) {
            Some(net) => Err(format!("egress.allow: {net} is an IPv4 range in IPv6 form; write it as IPv4")),
            None => Ok(()),
        }
    }
}

/// Whether the range consists of IPv4-mapped addresses. The filter treats such an address as IPv4, so allowing the
/// range would have no effect.
fn is_mapped(net: &IpNet) -> bool {
    matches!(net, IpNet::V6(net) if net.prefix_len() >= 96 && net.addr().to_ipv4_mapped().is_some())
}

/// The error when [`Egress`] cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum EgressError {
    /// A setting is out of range. The text names it.
    #[error("{0}")]
    Settings(String),
    /// The additional root certificates cannot be used.
    #[error("egress.ca_file {path}: {reason}", path = .path.display())]
    CaFile {
        /// The path of the file, as configured.
        path: PathBuf,
        /// The reason why the file cannot be used.
        reason: String,
    },
}

/// Opens streams and makes HTTP requests. It is cheap to clone, and clones share the idle connections.
#[derive(Clone)]
pub struct Egress(Arc<Inner>);

struct Inner {
    dialer: Dialer,
    idle: IdleConnections,
}

impl Egress {
    /// Creates an egress that resolves names with the operating system.
    pub fn new(settings: &EgressSettings) -> Result<Self, EgressError> {
        Self::with_resolver(settings, Arc::new(SystemResolver))
    }

    /// Creates an egress that resolves names with `resolver`. The address filter still applies.
    pub fn with_resolver(settings: &EgressSettings, resolver: Arc<dyn Resolver>) -> Result<Self, EgressError> {
        let dialer = Dialer::new(settings, resolver)?;
        Ok(Self(Arc::new(Inner { dialer, idle: IdleConnections::new() })))
    }

    /// Checks whether a stream to `endpoint` may be opened, without resolving its name. Use it when an endpoint is saved.
    /// [`Egress::dial`] checks again.
    /// # Errors
    /// The host is an IP address that the filter refuses.
    pub fn check_endpoint(&self, endpoint: &Endpoint) -> Result<(), EgressFailure> {
        self.0.dialer.check_literal(endpoint)
    }

    /// Opens a stream to `endpoint`, for a protocol other than HTTP.
    /// # Errors
    /// The address filter refused the endpoint, or no stream was opened before the deadline.
    pub async fn dial(
        &self,
        endpoint: &Endpoint,
        tls: Tls<'_>,
        deadline: Deadline,
    ) -> Result<DialledStream, EgressFailure> {
        self.0.dialer.dial(endpoint, tls, deadline).await
    }
}

impl fmt::Debug for Egress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Egress").finish_non_exhaustive()
    }
}
