//! Receivers of webhooks on loopback.
//!
//! [`serve`] runs as a process of its own (`--sink`, hidden), so that it shares no thread with the engine that is
//! measured. [`Arrivals`] runs in this process and records when the first bytes of each request arrived.

use std::convert::Infallible;
use std::time::Instant;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use postcommit_channel::clock;
use postcommit_server::output::{self, Exit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use crate::failure::Failure;

const ANYWHERE: &str = "127.0.0.1:0";

/// Answers every request with an empty 200 until stdin ends, so that the process does not outlive the benchmark.
pub async fn serve() -> Result<Exit, Failure> {
    let listener = TcpListener::bind(ANYWHERE).await?;
    output::print(&listener.local_addr()?.port().to_string());
    let mut stdin = tokio::io::stdin();
    let mut nothing = [0; 1];
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (stream, _) = accepted?;
                let _ = stream.set_nodelay(true);
                let connection = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer));
                tokio::spawn(connection);
            }
            read = stdin.read(&mut nothing) => if matches!(read, Ok(0) | Err(_)) { return Ok(Exit::Ok) },
        }
    }
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let _ = request.into_body().collect().await;
    Ok(Response::new(Full::default()))
}

/// A request that arrived.
#[derive(Debug, Clone, Copy)]
pub struct Arrival {
    /// When the first bytes of the request arrived.
    pub at: Instant,
    /// Whether the request was sent to [`Arrivals::urgent_url`].
    pub urgent: bool,
}

/// A sink that reports every request. Dropping it stops accepting connections.
pub struct Arrivals {
    port: u16,
    told: mpsc::UnboundedReceiver<Arrival>,
    accepting: tokio::task::JoinHandle<()>,
}

impl Arrivals {
    pub async fn listen() -> Result<Self, Failure> {
        let listener = TcpListener::bind(ANYWHERE).await?;
        let port = listener.local_addr()?.port();
        let (tell, told) = mpsc::unbounded_channel();
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = stream.set_nodelay(true);
                tokio::spawn(receive(stream, tell.clone()));
            }
        });
        Ok(Self { port, told, accepting })
    }

    /// The URL for notifications whose arrival is timed.
    pub fn urgent_url(&self) -> String {
        format!("http://127.0.0.1:{}/urgent", self.port)
    }

    /// The URL for all other notifications.
    pub fn bulk_url(&self) -> String {
        format!("http://127.0.0.1:{}/bulk", self.port)
    }

    /// Waits for the next urgent request.
    pub async fn urgent(&mut self) -> Option<Arrival> {
        loop {
            let arrival = self.told.recv().await?;
            if arrival.urgent {
                return Some(arrival);
            }
        }
    }
}

impl Drop for Arrivals {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Reads the requests of a connection, and answers each before it reads the next.
async fn receive(mut stream: TcpStream, tell: mpsc::UnboundedSender<Arrival>) {
    let mut request = Vec::with_capacity(4096);
    loop {
        request.clear();
        let mut at = None;
        while !is_complete(&request) {
            match stream.read_buf(&mut request).await {
                Ok(0) | Err(_) => return,
                Ok(_) => at = at.or_else(|| Some(clock::monotonic())),
            }
        }
        if let Some(at) = at {
            let _ = tell.send(Arrival { at, urgent: request.starts_with(b"POST /urgent ") });
        }
        if stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.is_err() {
            return;
        }
    }
}

/// Returns whether the head and the body are complete.
fn is_complete(request: &[u8]) -> bool {
    let Some(end) = request.windows(4).position(|window| window == b"\r\n\r\n") else { return false };
    let head = String::from_utf8_lossy(&request[..end]).to_ascii_lowercase();
    let length =
        head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok()).unwrap_or(0);
    request.len() >= end + 4 + length
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_complete_with_its_body() {
        let request = b"POST /urgent HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}";
        assert!(is_complete(request));
        assert!(!is_complete(&request[..request.len() - 1]));
        assert!(!is_complete(&request[..20]));
    }
}
