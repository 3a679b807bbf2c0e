//! A scripted HTTP/1.1 server on loopback. It uses raw sockets so that it can break the protocol.

mod reply;
mod request;

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::BufReader;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::background::Background;
pub use reply::Reply;
use reply::Then;
pub use request::Request;

type Script = dyn Fn(&Request) -> Reply + Send + Sync;

/// A server that records every request and answers it as its script decides.
///
/// Connections are kept alive unless the request or the reply asks to close them. Dropping the server closes all
/// connections and the port.
pub struct HttpServer {
    addr: SocketAddr,
    shared: Arc<ServerState>,
    background: Background,
}

struct ServerState {
    script: Box<Script>,
    requests: Mutex<Vec<Request>>,
    connections: AtomicUsize,
    /// How many requests have arrived.
    arrived: watch::Sender<usize>,
    /// Slow replies to requests up to this arrival number may be sent.
    released: watch::Sender<usize>,
}

impl HttpServer {
    /// Starts a server on a free port of 127.0.0.1. The script is called for each request after the request has been
    /// read completely and recorded. On one connection, requests are handled one after the other.
    pub fn start(script: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        Self::start_at((Ipv4Addr::LOCALHOST, 0).into(), script)
    }

    /// Starts a server at `addr`. With the address of a dropped server, a test can simulate the end of an outage.
    pub fn start_at(addr: SocketAddr, script: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let background = Background::start();
        let (listener, addr) = background.listen(addr);
        let shared = Arc::new(ServerState {
            script: Box::new(script),
            requests: Mutex::default(),
            connections: AtomicUsize::new(0),
            arrived: watch::Sender::new(0),
            released: watch::Sender::new(0),
        });
        background.handle().spawn(accept(listener, shared.clone()));
        Self { addr, shared, background }
    }

    /// Listens on one more free port of 127.0.0.1 and returns its address. The same script answers there. To clients it
    /// is another host, and the request's `host` header shows which one was called.
    pub fn one_more(&self) -> SocketAddr {
        let (listener, addr) = self.background.listen((Ipv4Addr::LOCALHOST, 0).into());
        self.background.handle().spawn(accept(listener, self.shared.clone()));
        addr
    }

    /// Returns the address that the server listens on.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns the `http://` URL of `path`, which must start with a slash.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.addr)
    }

    /// Returns all requests so far, in order of arrival.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.requests.lock().expect("requests").clone()
    }

    /// Returns how many requests have arrived so far.
    pub fn count(&self) -> usize {
        *self.shared.arrived.borrow()
    }

    /// Returns how many connections have been accepted so far, including closed ones.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Waits until `n` requests have arrived since the start. Returns all requests so far.
    ///
    /// # Panics
    /// After [`GUARD`](crate::GUARD). The message shows the requests that arrived.
    pub async fn wait_for(&self, n: usize) -> Vec<Request> {
        let mut arrived = self.shared.arrived.subscribe();
        let enough = async move {
            // This cannot fail, because the sender belongs to the server, which is borrowed here.
            let _ = arrived.wait_for(|count| *count >= n).await;
        };
        if self.background.guarded(enough).await.is_none() {
            let seen: Vec<_> = self.requests().iter().map(Request::to_string).collect();
            panic!("waited for {n} requests, got {}: {seen:#?}", seen.len());
        }
        self.requests()
    }

    /// Releases the [`Reply::Slow`] replies to all requests that have arrived so far. Replies to later requests wait
    /// for the next release.
    pub fn release(&self) {
        let arrived = *self.shared.arrived.borrow();
        self.shared.released.send_replace(arrived);
    }

    /// Returns how many requests had each value of the header `header`. Requests without the header are counted under
    /// the empty string.
    pub fn effects_by(&self, header: &str) -> HashMap<String, usize> {
        let mut effects = HashMap::new();
        for request in self.shared.requests.lock().expect("requests").iter() {
            let value = request.header(header).unwrap_or_default();
            *effects.entry(value.to_owned()).or_default() += 1;
        }
        effects
    }
}

impl ServerState {
    fn record(&self, mut request: Request) -> Request {
        let mut requests = self.requests.lock().expect("requests");
        request.n = requests.len() + 1;
        requests.push(request.clone());
        self.arrived.send_replace(requests.len());
        request
    }

    /// Returns the reply to a request. Waits first if the reply is slow and not released yet.
    async fn reply_to(&self, request: &Request) -> Reply {
        let mut reply = (self.script)(request);
        while let Reply::Slow { then } = reply {
            let mut released = self.released.subscribe();
            // This cannot fail, because the sender belongs to `self`.
            let _ = released.wait_for(|upto| *upto >= request.n).await;
            reply = *then;
        }
        reply
    }
}

async fn accept(listener: TcpListener, shared: Arc<ServerState>) {
    loop {
        let Ok((socket, _)) = listener.accept().await else {
            continue;
        };
        shared.connections.fetch_add(1, Ordering::SeqCst);
        let shared = shared.clone();
        tokio::spawn(async move {
            // Errors are ignored, because many tests close the connection early.
            let _ = converse(socket, &shared).await;
        });
    }
}

/// Reads and answers the requests of one connection until either side closes it.
async fn converse(socket: TcpStream, shared: &ServerState) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let mut socket = BufReader::new(socket);
    while let Some(request) = request::read(&mut socket).await? {
        let request = shared.record(request);
        let reply = shared.reply_to(&request).await;
        match reply.send(&mut socket, &request).await? {
            Then::KeepAlive => {}
            Then::Close => return Ok(()),
        }
    }
    Ok(())
}
