//! A TCP proxy between a client and its server. A test can make it fail.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::background::Background;

/// How the proxy handles the bytes of its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyMode {
    /// Forwards all bytes.
    Pass,
    /// Accepts connections and forwards nothing in either direction. The bytes are held and arrive when the mode is
    /// `Pass` again, as after a network partition.
    BlackHole,
    /// Forwards this many bytes per connection, both directions together, then resets both ends. Counting starts when
    /// the mode is set or when the connection is opened, whichever is later.
    ResetAfter(usize),
}

/// A proxy on a free port of 127.0.0.1 in front of one target. Dropping it resets all connections and closes the port.
pub struct Proxy {
    addr: SocketAddr,
    shared: Arc<ProxyState>,
    // This field is declared last, so that it is dropped last.
    _background: Background,
}

struct ProxyState {
    target: SocketAddr,
    setting: watch::Sender<Setting>,
    connections: Mutex<JoinSet<()>>,
}

/// A mode and how often the mode was set. With this number, setting the same mode again counts as a change.
#[derive(Clone, Copy)]
struct Setting {
    mode: ProxyMode,
    number: usize,
}

impl Proxy {
    /// Starts a proxy that forwards all bytes to `target`. For each client connection it opens one connection to the
    /// target. If that fails, the client connection is reset.
    pub fn start(target: SocketAddr) -> Self {
        let background = Background::start();
        let (listener, addr) = background.listen((Ipv4Addr::LOCALHOST, 0).into());
        let shared = Arc::new(ProxyState {
            target,
            setting: watch::Sender::new(Setting { mode: ProxyMode::Pass, number: 0 }),
            connections: Mutex::default(),
        });
        background.handle().spawn(accept(listener, shared.clone()));
        Self { addr, shared, _background: background }
    }

    /// Returns the address that clients connect to.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Changes the mode of all connections, including open ones.
    pub fn set(&self, mode: ProxyMode) {
        self.shared.setting.send_modify(|setting| {
            setting.mode = mode;
            setting.number += 1;
        });
    }

    /// Returns how many connections are open.
    pub fn live(&self) -> usize {
        let mut connections = self.shared.connections.lock().expect("connections");
        while connections.try_join_next().is_some() {}
        connections.len()
    }

    /// Resets all open connections at both ends. They are closed when this returns. If the connection to the target is
    /// still being opened, only the client's end is reset.
    pub async fn cut_all(&self) {
        let mut live = std::mem::take(&mut *self.shared.connections.lock().expect("connections"));
        live.shutdown().await;
    }
}

async fn accept(listener: TcpListener, shared: Arc<ProxyState>) {
    loop {
        let Ok((client, _)) = listener.accept().await else {
            continue;
        };
        let relay = relay(client, shared.target, shared.setting.subscribe());
        let mut connections = shared.connections.lock().expect("connections");
        while connections.try_join_next().is_some() {}
        connections.spawn(relay);
    }
}

/// Relays one connection until both ends have closed it, or until it must be reset.
async fn relay(client: TcpStream, target: SocketAddr, mut setting: watch::Receiver<Setting>) {
    let mut client = ResetOnDrop(Some(client));
    if forwarding(&mut setting).await.is_none() {
        return;
    }
    let Ok(server) = TcpStream::connect(target).await else {
        return;
    };
    let mut server = ResetOnDrop(Some(server));
    let passed = Mutex::new(Passed::default());
    let (client_reads, client_writes) = client.get().split();
    let (server_reads, server_writes) = server.get().split();
    let up = pump(client_reads, server_writes, setting.clone(), &passed);
    let down = pump(server_reads, client_writes, setting, &passed);
    let end = tokio::try_join!(up, down);
    if end.is_ok() {
        client.close_gracefully();
        server.close_gracefully();
    }
}

/// An error after which the connection must be reset.
struct Reset;

/// Copies the bytes of one direction until the sender closes it. The mode may hold them back or stop them.
async fn pump(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    mut setting: watch::Receiver<Setting>,
    passed: &Mutex<Passed>,
) -> Result<(), Reset> {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let read = from.read(&mut buffer).await.map_err(|_| Reset)?;
        let now = forwarding(&mut setting).await.ok_or(Reset)?;
        if read == 0 {
            return to.shutdown().await.map_err(|_| Reset);
        }
        let (allowed, last) = passed.lock().expect("passed").take(now, read);
        to.write_all(&buffer[..allowed]).await.map_err(|_| Reset)?;
        if last {
            return Err(Reset);
        }
    }
}

/// Waits until the mode is not a black hole. Returns `None` when the proxy is being dropped.
async fn forwarding(setting: &mut watch::Receiver<Setting>) -> Option<Setting> {
    setting.wait_for(|setting| setting.mode != ProxyMode::BlackHole).await.ok().map(|setting| *setting)
}

/// How many bytes a connection has forwarded since the mode was last set.
#[derive(Default)]
struct Passed {
    setting: usize,
    bytes: usize,
}

impl Passed {
    /// Returns how many of `wanted` bytes may be forwarded, and whether the connection must be reset after them.
    fn take(&mut self, now: Setting, wanted: usize) -> (usize, bool) {
        if self.setting != now.number {
            *self = Self { setting: now.number, bytes: 0 };
        }
        let ProxyMode::ResetAfter(limit) = now.mode else {
            return (wanted, false);
        };
        let allowed = wanted.min(limit - self.bytes);
        self.bytes += allowed;
        (allowed, self.bytes == limit)
    }
}

/// A socket that is reset when dropped, even when its task is aborted.
struct ResetOnDrop(Option<TcpStream>);

impl ResetOnDrop {
    fn get(&mut self) -> &mut TcpStream {
        self.0.as_mut().expect("closed only at the end")
    }

    fn close_gracefully(&mut self) {
        self.0 = None;
    }
}

impl Drop for ResetOnDrop {
    fn drop(&mut self) {
        if let Some(socket) = &self.0 {
            // This fails only on a socket that is already closed.
            let _ = socket.set_zero_linger();
        }
    }
}
