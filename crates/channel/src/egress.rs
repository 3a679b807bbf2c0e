//! Egress makes every outgoing connection.
//!
//! - [`Egress::dial`]: resolves a host once, drops every address that is not public ([`forbidden`]), and connects to
//!   what is left, with TLS under the host's own name if asked. Any protocol can run over the [`DialledStream`].
//! - [`Egress::send`]: one HTTP call over such a stream.
//!
//! The bytes written are counted. A failure says how far it got and how many bytes had left, which decides whether the
//! message may be sent again.

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
pub use self::failure::{EgressFailure, Phase};
pub use self::http::{ANSWER_BYTES, Call, HttpAnswer};

use self::dial::Dialer;
use self::http::IdleConnections;

/// The `[egress]` section of the settings.
#[derive(Debug, Clone, serde::Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct EgressSettings {
    /// Ranges that are forbidden otherwise and are opened on purpose, such as `10.1.0.0/16`. Default: none.
    pub allow: Vec<IpNet>,
    /// Seconds to wait for a TCP connection to one address, 1 to 60. Default: 10.
    pub connect_timeout_s: u64,
    /// A PEM file of root certificates trusted besides the system's. Default: none.
    pub ca_file: Option<PathBuf>,
}

impl Default for EgressSettings {
    fn default() -> Self {
        Self { allow: Vec::new(), connect_timeout_s: 10, ca_file: None }
    }
}

impl EgressSettings {
    /// Checks what the types cannot.
    ///
    /// # Errors
    /// A sentence that names the setting and what is allowed.
    pub fn validate(&self) -> Result<(), String> {
        if !(1..=60).contains(&self.connect_timeout_s) {
            return Err(format!("egress.connect_timeout_s must be from 1 to 60, not {}", self.connect_timeout_s));
        }
        match self.allow.iter().find(|net| is_mapped(net)) {
            Some(net) => Err(format!("egress.allow must hold IPv4 ranges in IPv4 form, not {net}")),
            None => Ok(()),
        }
    }
}

/// An IPv4-mapped address is judged as IPv4, so a range of them would open nothing.
fn is_mapped(net: &IpNet) -> bool {
    matches!(net, IpNet::V6(net) if net.prefix_len() >= 96 && net.addr().to_ipv4_mapped().is_some())
}

/// Why [`Egress`] cannot start.
#[derive(Debug, thiserror::Error)]
pub enum EgressError {
    /// A setting is out of its range; the text names it.
    #[error("{0}")]
    Settings(String),
    /// The extra root certificates cannot be used.
    #[error("egress.ca_file {path}: {reason}", path = .path.display())]
    CaFile {
        /// The file as set.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

/// Opens streams and makes calls. Cheap to clone; clones share the idle connections.
#[derive(Clone)]
pub struct Egress(Arc<Inner>);

struct Inner {
    dialer: Dialer,
    idle: IdleConnections,
}

impl Egress {
    /// An egress that resolves names by the operating system.
    ///
    /// # Errors
    /// A setting that is out of range or an unusable `ca_file`.
    pub fn new(settings: &EgressSettings) -> Result<Self, EgressError> {
        Self::with_resolver(settings, Arc::new(SystemResolver))
    }

    /// An egress that resolves names by `resolver`. The filter applies all the same.
    ///
    /// # Errors
    /// As [`Egress::new`].
    pub fn with_resolver(settings: &EgressSettings, resolver: Arc<dyn Resolver>) -> Result<Self, EgressError> {
        let dialer = Dialer::new(settings, resolver)?;
        Ok(Self(Arc::new(Inner { dialer, idle: IdleConnections::new() })))
    }

    /// Opens a stream to `endpoint`, for a protocol other than HTTP.
    ///
    /// # Errors
    /// The endpoint is blocked, or no stream was opened by the deadline.
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
