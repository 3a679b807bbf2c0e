//! The door: our own accept loop. It limits who may connect, how long a request may take and how large it may be.
//!
//! - [`open`]: binds, accepts, refuses; `connection_limit.rs` counts connections, `streams.rs` answers that last for hours;
//! - `checked_stream.rs`: between socket and hyper: deadlines, and `head.rs`, which refuses ambiguous heads;
//!   `framing.rs` finds the end of a body;
//! - `answer.rs`: one request to its answer; `body.rs` limits size and pace; `client.rs` is the client; `refusal.rs` the
//!   door's own answers;
//! - `tls.rs`: certificates.
//!
//! HTTP/1.1 alone: docs/decisions/0020.

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

/// How many of those turned away are waited for until they have read it, and how long. Others are cut off without.
const LOBBY: usize = 128;
const LOBBY_DEADLINE: Duration = Duration::from_secs(1);
/// The backlog of connections that are not accepted yet; the kernel may allow fewer. A client that finds it full
/// retries after a second.
const BACKLOG: u32 = 4096;
/// File descriptors beside connections: the database, the log, the lobby.
const OTHER_FILES: usize = 256;

/// Why the door did not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("server.listen: {0}: {1}; is another one running? --listen chooses another address")]
    Listen(String, std::io::Error),
    #[error("{0}")]
    Tls(String),
}

/// An open door.
pub struct Door {
    pub address: SocketAddr,
    is_tls: bool,
    closed: JoinHandle<()>,
}

impl Door {
    /// The URL for a browser.
    pub fn url(&self) -> String {
        format!("http{}://{}", if self.is_tls { "s" } else { "" }, self.address)
    }

    /// Waits after a stop until every request is answered or the grace is over.
    pub async fn closed(self) {
        let _ = self.closed.await;
    }
}

/// Opens the door for `service`. [`Stop::Finish`] refuses new connections and lets requests under way finish within
/// `grace`; [`Stop::Now`] closes immediately.
///
/// # Errors
/// The address is in use, or certificate and key cannot be used.
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
    // Allows binding while old connections are in TIME_WAIT.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Everything that connections share.
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
            tracing::warn!(left, "stopped with connections open");
        }
    }

    async fn accept(self: Arc<Self>, listener: &TcpListener) {
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => self.clone().receive(stream, peer.ip().to_canonical()),
                Err(problem) => {
                    // Most likely no file descriptor is free: wait until others are closed.
                    tracing::warn!(%problem, "could not accept a connection");
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
            Ok(Err(problem)) => tracing::debug!(client = %peer, %problem, "no TLS"),
            Err(_) => tracing::debug!(client = %peer, "no TLS in time"),
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
        // The checked stream has the deadline for heads: hyper's would count the time between two requests as well.
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
            tracing::debug!(client = %peer, %problem, "a connection broke");
        }
    }

    /// Writes the refusal, and waits a bounded time for the client to read it.
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

/// Writes, then reads until the client closes: closing with unread bytes would discard the answer.
async fn say_goodbye(mut stream: impl AsyncRead + AsyncWrite + Unpin, words: &str) -> std::io::Result<()> {
    stream.write_all(words.as_bytes()).await?;
    stream.shutdown().await?;
    let mut rest = [0; 1024];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}

/// The answer to a connection beyond the limit, written without hyper because it must be cheap.
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

/// Waits for this stop request or a stronger one. A dropped sender is the strongest.
async fn told(stop: &mut watch::Receiver<Stop>, word: Stop) {
    let _ = stop.wait_for(|said| *said == Stop::Now || (*said == Stop::Finish && word == Stop::Finish)).await;
}

/// Raises the limit of open files as far as allowed, and warns when it is too low.
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
