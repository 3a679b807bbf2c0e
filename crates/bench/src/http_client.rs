//! A bare HTTP client: POST requests with hyper over persistent connections.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::SendRequest;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use postcommit_channel::clock;
use postcommit_server::output::Exit;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::failure::Failure;

/// A complete request.
pub type Post = Request<Full<Bytes>>;

/// Sends `count` requests over `connections` connections and returns how long that took. Each connection waits for a
/// response before it sends the next request. The first request of each connection is not measured; these requests have
/// the numbers from `count` on. A status other than `expected` is an error.
pub async fn pump(
    address: &str,
    count: u64,
    connections: u64,
    expected: StatusCode,
    post: impl Fn(u64) -> Result<Post, Failure> + Send + Sync + 'static,
) -> Result<Duration, Failure> {
    let post = Arc::new(post);
    let mut ready = Vec::new();
    for place in 0..connections {
        let mut sender = connect(address).await?;
        send(&mut sender, post(count + place)?, expected).await?;
        ready.push(sender);
    }
    let started = clock::monotonic();
    let mut sending = JoinSet::new();
    for (place, mut sender) in (0..connections).zip(ready) {
        let post = post.clone();
        sending.spawn(async move {
            for i in (place..count).step_by(usize::try_from(connections).unwrap_or(1)) {
                send(&mut sender, post(i)?, expected).await?;
            }
            Ok::<(), Failure>(())
        });
    }
    while let Some(sent) = sending.join_next().await {
        sent??;
    }
    Ok(clock::monotonic().duration_since(started))
}

/// One connection that opens pages, one after the other.
pub struct Visitor(SendRequest<Full<Bytes>>);

impl Visitor {
    pub async fn on(address: &str) -> Result<Self, Failure> {
        Ok(Self(connect(address).await?))
    }

    /// Opens a page and returns how long its first byte took. The rest of the page is read afterwards.
    pub async fn first_byte(&mut self, page: Post) -> Result<Duration, Failure> {
        self.0.ready().await.map_err(failed)?;
        let path = page.uri().to_string();
        let began = clock::monotonic();
        let answer = self.0.send_request(page).await.map_err(failed)?;
        let took = clock::monotonic().duration_since(began);
        let status = answer.status();
        answer.into_body().collect().await.map_err(failed)?;
        if status != StatusCode::OK {
            return Err(failed(format!("{path} was answered with {status}")));
        }
        Ok(took)
    }
}

async fn connect(address: &str) -> Result<SendRequest<Full<Bytes>>, Failure> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
    tokio::spawn(connection);
    Ok(sender)
}

async fn send(sender: &mut SendRequest<Full<Bytes>>, post: Post, expected: StatusCode) -> Result<(), Failure> {
    sender.ready().await.map_err(failed)?;
    let answer = sender.send_request(post).await.map_err(failed)?;
    let status = answer.status();
    let said = answer.into_body().collect().await.map_err(failed)?.to_bytes();
    if status != expected {
        return Err(failed(format!("the answer was {status}: {}", String::from_utf8_lossy(&said))));
    }
    Ok(())
}

pub fn failed(problem: impl ToString) -> Failure {
    Failure::new(Exit::Failed, format!("a request of the benchmark failed: {}", problem.to_string()))
}
