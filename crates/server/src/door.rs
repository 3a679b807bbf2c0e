//! The accept loop of the HTTP server. It limits the number of connections, the duration of a request and its size.
//! - [`open`] binds the address and accepts or refuses connections. `connection_limit.rs` counts connections and
//!   `streams.rs` counts answers that stay open for hours.
//! - `checked_stream.rs` sits between the socket and hyper and enforces the deadlines. It uses `head.rs`, which refuses
//!   ambiguous request heads, and `framing.rs`, which finds the end of a body.
//! - `answer.rs` turns one request into its answer. `body.rs` limits the size and the speed of a request's body.
//!   `client.rs` finds the address of the client. `refusal.rs` builds the answers to refused requests.
//! - `tls.rs` loads and reloads the certificate.
//!
//! Only HTTP/1.1 is served; docs/decisions/0020 has the reasons.

mod answer;
mod body;
mod checked_stream;
mod client;
mod connection_limit;
mod framing;
mod head;
mod refusal;
mod settings;
mod streams;
#[cfg(test)]
mod tests;
mod tls;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use postcommit_engine::dispatch::Stop;
use postcommit_engine::metrics::Metrics;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

pub use answer::{RequestId, Serves, Waits, named_routes};
pub use client::Client;
pub use connection_limit::holder;
pub use settings::ServerSettings;
pub use streams::{Streams, StreamsFull};

use answer::Visit;
use checked_stream::{CheckedStream, Exchange};
use connection_limit::{ConnectionLimit, Slot};
use refusal::DoorRefusal;
use tls::Tls;

/// The number of refused clients that the server concurrently gives time to read the refusal. Further refused clients
/// are disconnected without waiting.
const LOBBY: usize = 128;
const LOBBY_DEADLINE: Duration = Duration::from_secs(1);
/// The backlog of connections that the kernel has completed and the server has not accepted yet. The kernel may allow
/// fewer. A client that meets a full backlog retries after about a second.
const BACKLOG: u32 = 4096;
/// The number of file descriptors that the process needs in addition to one per connection: for the database, the log
/// and refused clients that are still reading.
const OTHER_FILES: usize = 256;

/// The reason why the server could not start to listen.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(
        "server.listen: cannot listen on {0}: {1}; if another server is running there, choose another address with \
         --listen"
    )]
    Listen(String, std::io::Error),
    #[error("{0}")]
    Tls(String),
}

pub struct Door {
    pub address: SocketAddr,
    is_tls: bool,
    closed: JoinHandle<()>,
}

impl Door {
    /// The URL to open in a browser.
    pub fn url(&self) -> String {
        format!("http{}://{}", if self.is_tls { "s" } else { "" }, self.address)
    }

    /// Waits until every connection is closed or the grace period is over. Call it after a stop was requested.
    pub async fn closed(self) {
        let _ = self.closed.await;
    }
}

/// Starts to listen and serves requests with `service`. [`Stop::Finish`] refuses new connections and lets running
/// requests finish within `grace`. [`Stop::Now`] closes all connections immediately.
pub async fn open<S: Serves>(
    settings: &ServerSettings,
    service: S,
    stop: watch::Receiver<Stop>,
    grace: Duration,
    metrics: &Metrics,
) -> Result<Door, OpenError> {
    raise_files(settings.connections);
    let tls = Tls::load(settings).map_err(OpenError::Tls)?;
    let listen = |e| OpenError::Listen(settings.listen.clone(), e);
    let listener = bind(&settings.listen).map_err(listen)?;
    let address = listener.local_addr().map_err(listen)?;
    let acceptor = Acceptor {
        connections: ConnectionLimit::new(settings.connections, settings.connections_per_address, metrics.clone()),
        lobby: Arc::new(Semaphore::new(LOBBY)),
        streams: Streams::new(settings.streams, stop.clone(), metrics.clone()),
        settings: Arc::new(settings.clone()),
        tls,
        service,
        stop,
    };
    let is_tls = acceptor.tls.is_some();
    let closed = tokio::spawn(Arc::new(acceptor).keep(listener, grace));
    Ok(Door { address, is_tls, closed })
}

fn bind(listen: &str) -> std::io::Result<TcpListener> {
    let address: SocketAddr = listen.parse().map_err(std::io::Error::other)?;
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // SO_REUSEADDR allows binding while old connections of this port are in TIME_WAIT.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// The state that all connections share.
struct Acceptor<S> {
    settings: Arc<ServerSettings>,
    tls: Option<Arc<Tls>>,
    connections: Arc<ConnectionLimit>,
    lobby: Arc<Semaphore>,
    streams: Streams,
    service: S,
    stop: watch::Receiver<Stop>,
}

impl<S: Serves> Acceptor<S> {
    async fn keep(self: Arc<Self>, listener: TcpListener, grace: Duration) {
        let mut stop = self.stop.clone();
        tokio::select! {
            () = self.clone().accept(&listener) => {}
            () = told(&mut stop, Stop::Finish) => {}
        }
        drop(listener);
        tokio::select! {
            _ = timeout(grace, self.connections.emptied()) => {}
            () = told(&mut stop, Stop::Now) => {}
        }
        let left = self.connections.inside();
        if left > 0 {
            tracing::warn!(left, "the server stopped before all connections had ended; they are closed");
        }
    }

    async fn accept(self: Arc<Self>, listener: &TcpListener) {
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => self.clone().receive(stream, peer.ip().to_canonical()),
                Err(problem) => {
                    // The most likely cause is that no file descriptor is free. Wait until other connections are
                    // closed.
                    tracing::warn!(%problem, "could not accept a connection; trying again");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    fn receive(self: Arc<Self>, stream: TcpStream, peer: IpAddr) {
        let is_proxy = client::is_trusted(peer, &self.settings.trusted_proxies);
        match self.connections.enter(peer, is_proxy) {
            Ok(slot) => {
                tokio::spawn(Box::pin(self.host(stream, peer, slot)));
            }
            Err(refusal) => self.turn_away(stream, &refusal),
        }
    }

    async fn host(self: Arc<Self>, stream: TcpStream, peer: IpAddr, slot: Slot) {
        let _ = stream.set_nodelay(true);
        let Some(tls) = &self.tls else { return self.talk(stream, peer, slot).await };
        let mut stop = self.stop.clone();
        let handshake = timeout(self.settings.header_deadline(), tls.acceptor().accept(stream));
        let shaken = tokio::select! {
            shaken = handshake => shaken,
            () = told(&mut stop, Stop::Finish) => return,
        };
        match shaken {
            Ok(Ok(stream)) => self.talk(stream, peer, slot).await,
            Ok(Err(problem)) => tracing::debug!(client = %peer, %problem, "the TLS handshake of a connection failed"),
            Err(_) => tracing::debug!(client = %peer, "the TLS handshake of a connection took too long"),
        }
    }

    async fn talk(&self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, peer: IpAddr, slot: Slot) {
        let exchange = Arc::<Exchange>::default();
        let visit = Arc::new(Visit {
            service: self.service.clone(),
            settings: self.settings.clone(),
            streams: self.streams.clone(),
            exchange: exchange.clone(),
            peer,
            by_tls: self.tls.is_some(),
            _slot: slot,
        });
        let wire = CheckedStream::new(stream, exchange.clone(), self.settings.clone());
        // The checked stream enforces the deadline for heads. Hyper's own timeout would also count the time between two
        // requests.
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(None)
            .serve_connection(TokioIo::new(wire), service_fn(move |request| visit.clone().answer(request)));
        let mut connection = Box::pin(connection);
        let mut stop = self.stop.clone();
        let ended = tokio::select! {
            ended = &mut connection => ended,
            () = told(&mut stop, Stop::Finish) => {
                connection.as_mut().graceful_shutdown();
                exchange.close();
                tokio::select! {
                    ended = &mut connection => ended,
                    () = told(&mut stop, Stop::Now) => Ok(()),
                }
            }
        };
        if let Err(problem) = ended {
            tracing::debug!(client = %peer, %problem, "a connection ended with an error");
        }
    }

    /// Writes the refusal and waits up to `LOBBY_DEADLINE` for the client to read it.
    fn turn_away(&self, stream: TcpStream, refusal: &DoorRefusal) {
        let words = farewell(refusal);
        let Ok(place) = self.lobby.clone().try_acquire_owned() else {
            if self.tls.is_none() {
                let _ = stream.try_write(words.as_bytes());
            }
            return;
        };
        let acceptor = self.tls.as_ref().map(|tls| tls.acceptor());
        tokio::spawn(async move {
            let said = async {
                match acceptor {
                    None => say_goodbye(stream, &words).await,
                    Some(acceptor) => say_goodbye(acceptor.accept(stream).await?, &words).await,
                }
            };
            let _ = timeout(LOBBY_DEADLINE, said).await;
            drop(place);
        });
    }
}

/// Writes the answer, then reads until the client closes. Closing a socket with unread bytes would discard the answer.
async fn say_goodbye(mut stream: impl AsyncRead + AsyncWrite + Unpin, words: &str) -> std::io::Result<()> {
    stream.write_all(words.as_bytes()).await?;
    stream.shutdown().await?;
    let mut rest = [0; 1024];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}

/// The HTTP answer to a connection beyond the limit. It is built without hyper to keep a refusal cheap.
fn farewell(refusal: &DoorRefusal) -> String {
    let body = refusal.json();
    let id = RequestId::new().0;
    format!(
        "HTTP/1.1 {}\r\ncontent-type: application/problem+json\r\ncontent-length: {}\r\nretry-after: 1\r\nconnection: close\r\n\
         cache-control: no-store\r\nx-content-type-options: nosniff\r\nreferrer-policy: no-referrer\r\n{}: {id}\r\n\r\n{body}",
        refusal.status(),
        body.len(),
        answer::REQUEST_ID,
    )
}

/// Waits until the stop channel holds `word` or a stronger request. A dropped sender counts as the strongest request.
async fn told(stop: &mut watch::Receiver<Stop>, word: Stop) {
    let _ = stop.wait_for(|said| *said == Stop::Now || (*said == Stop::Finish && word == Stop::Finish)).await;
}

/// Raises this process's limit of open files to its hard limit. Warns if that is too low for `connections`.
fn raise_files(connections: usize) {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let wanted = u64::try_from(connections + OTHER_FILES).unwrap_or(u64::MAX);
    if most < wanted {
        tracing::warn!(
            most,
            wanted,
            "this process may open fewer files than server.connections needs; raise its limit (ulimit -n, LimitNOFILE)"
        );
    }
}
