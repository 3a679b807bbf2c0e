//! One HTTP/1.1 connection: a request goes out, an answer comes back, and what happened is told apart.

use std::error::Error;
use std::future::{Future, ready};
use std::io::{self, ErrorKind};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::task::{JoinHandle, unconstrained};

use super::pool::Reusable;
use super::wire::{Meter, Stream, Wire};
use super::{ANSWER_BYTES, Answer, Failure, Phase};
use crate::clock;

/// The most bytes of an answer's head, and of its body in flight, that are buffered.
const BUFFER_BYTES: usize = 65_536;
/// The most characters of an error's text that are kept.
const DETAIL_CHARS: usize = 200;
/// How long a connection may take to come to rest after its answer was read, before it is dropped.
const REST: Duration = Duration::from_millis(50);
/// The longest a call may take, whatever its timeout says.
const LONGEST: Duration = Duration::from_secs(3600);

/// The moment by which a whole call must be over.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline(Instant);

impl Deadline {
    pub(super) fn after(timeout: Duration) -> Self {
        Self(clock::monotonic() + timeout.min(LONGEST))
    }

    pub(super) fn left(self) -> Duration {
        self.0.saturating_duration_since(clock::monotonic())
    }

    /// Runs `work` until the deadline; does not begin it when that has passed.
    pub(super) async fn run<F: Future>(self, work: F) -> Result<F::Output, Late> {
        self.run_within(LONGEST, work).await
    }

    /// Runs `work` until the deadline, but no longer than `limit`.
    pub(super) async fn run_within<F: Future>(self, limit: Duration, work: F) -> Result<F::Output, Late> {
        let left = self.left().min(limit);
        if left.is_zero() {
            return Err(Late);
        }
        tokio::time::timeout(left, work).await.map_err(|_| Late)
    }
}

/// The deadline has passed.
#[derive(Debug, thiserror::Error)]
#[error("no answer in time")]
pub(super) struct Late;

/// Why a request brought no head of an answer.
#[derive(Debug, thiserror::Error)]
enum SendError {
    #[error(transparent)]
    Http(hyper::Error),
    #[error("the connection ended")]
    Ended,
}

/// An open connection and the task that drives it. Dropping it ends both, and no byte leaves afterwards.
pub(super) struct Connection {
    sender: SendRequest<Full<Bytes>>,
    meter: Arc<Meter>,
    driver: JoinHandle<()>,
}

impl Connection {
    /// Readies `stream` for requests; writes nothing yet.
    pub(super) async fn open(stream: impl Stream, tls: bool) -> hyper::Result<Self> {
        let meter = Arc::new(Meter::default());
        let wire = TokioIo::new(Wire::new(stream, tls, Arc::clone(&meter)));
        let (sender, connection) = Builder::new().max_buf_size(BUFFER_BYTES).handshake(wire).await?;
        let driver = tokio::spawn(async move {
            // The call on the connection learns of the error; without a call there is nobody to tell.
            let _ = connection.await;
        });
        Ok(Self { sender, meter, driver })
    }

    /// Sends `request` and reads the answer. The connection comes back when it can carry another request.
    pub(super) async fn exchange(mut self, request: Request<Full<Bytes>>, deadline: Deadline) -> Result<(Answer, Option<Self>), Failure> {
        self.meter.begin();
        let response = match deadline.run(self.request(request)).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(self.fail(code(&error), &error)),
            Err(Late) => return Err(self.fail("timeout", &Late)),
        };
        let (head, body) = response.into_parts();
        let (body, end) = read(body, deadline).await;
        let answer = Answer {
            status: head.status.as_u16(),
            headers: head.headers,
            body,
            truncated: end == End::TooLong,
            body_complete: end == End::Whole,
        };
        let at_rest = answer.body_complete && self.comes_to_rest(deadline).await;
        Ok((answer, at_rest.then_some(self)))
    }

    /// Gives the connection up and tells how much of the request had gone out by then.
    fn fail(&self, code: &'static str, error: &(dyn Error + 'static)) -> Failure {
        Failure { phase: Phase::Request, bytes_written: self.meter.close(), code, detail: text(error) }
    }

    /// Hands `request` to the driver and waits for the head of the answer.
    ///
    /// A request handed over in the very moment in which the driver ends can be left in their channel, neither
    /// sent nor given back. So the driver is watched too, or such a call would sit out its whole timeout.
    async fn request(&mut self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, SendError> {
        let mut answer = pin!(unconstrained(self.sender.try_send_request(request)));
        tokio::select! {
            biased;
            answer = &mut answer => return answer.map_err(|unsent| SendError::Http(unsent.into_error())),
            _ = &mut self.driver => {}
        }
        // The driver's last act may have been to deliver the answer.
        tokio::select! {
            biased;
            answer = answer => answer.map_err(|unsent| SendError::Http(unsent.into_error())),
            () = ready(()) => Err(SendError::Ended),
        }
    }

    /// Whether the peer keeps the connection open and has taken the whole request. A peer may answer before
    /// it has read everything; the rest of that request must not count for the next one.
    async fn comes_to_rest(&mut self, deadline: Deadline) -> bool {
        matches!(deadline.run_within(REST, self.sender.ready()).await, Ok(Ok(())))
    }
}

impl Reusable for Connection {
    fn usable(&self) -> bool {
        self.sender.is_ready()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.meter.close();
        self.driver.abort();
    }
}

/// How the body of an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Whole,
    TooLong,
    Broken,
}

/// Reads at most [`ANSWER_BYTES`] of `body`, as they come: nothing is decompressed.
async fn read(mut body: Incoming, deadline: Deadline) -> (Bytes, End) {
    let mut kept = BytesMut::new();
    let end = loop {
        let frame = match deadline.run(body.frame()).await {
            Ok(Some(Ok(frame))) => frame,
            Ok(None) => break End::Whole,
            Ok(Some(Err(_))) | Err(Late) => break End::Broken,
        };
        // Trailers are dropped.
        let Ok(data) = frame.into_data() else { continue };
        let room = ANSWER_BYTES - kept.len();
        kept.extend_from_slice(&data[..data.len().min(room)]);
        if data.len() > room {
            break End::TooLong;
        }
    };
    (kept.freeze(), end)
}

/// What an error between the first byte of the request and the answer's head amounts to.
fn code(error: &SendError) -> &'static str {
    if matches!(error, SendError::Http(error) if error.is_parse()) {
        return "bad_answer";
    }
    let io_error = chain(error).find_map(|cause| cause.downcast_ref::<io::Error>());
    match io_error.map(io::Error::kind) {
        Some(ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe) => "reset",
        Some(ErrorKind::InvalidData) => "tls",
        _ => "closed",
    }
}

/// The text of `error` and its causes, cut to a sane length.
pub(super) fn text(error: &(dyn Error + 'static)) -> String {
    let causes: Vec<String> = chain(error).map(ToString::to_string).collect();
    causes.join(": ").chars().take(DETAIL_CHARS).collect()
}

fn chain<'e>(error: &'e (dyn Error + 'static)) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}
