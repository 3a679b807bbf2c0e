//! One HTTP/1.1 connection: a request goes out, an answer comes back, and what happened is told apart.
//!
//! A connection has no task of its own. Whoever makes a call drives it, so that handing over the request and
//! the answer wakes nobody; between two calls the pool looks after it now and then.

use std::error::Error;
use std::future::{Future, poll_fn};
use std::io::{self, ErrorKind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, Builder, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::task::unconstrained;
use tokio::time::{Sleep, sleep};

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

/// An open connection. Dropping it closes it, and no byte leaves afterwards.
pub(super) struct Connection {
    sender: SendRequest<Full<Bytes>>,
    driver: Driver,
    meter: Arc<Meter>,
}

impl Connection {
    /// Readies `stream` for requests; writes nothing yet.
    pub(super) async fn open(stream: impl Stream, tls: bool) -> hyper::Result<Box<Self>> {
        let meter = Arc::new(Meter::default());
        let wire = TokioIo::new(Wire::new(stream, tls, Arc::clone(&meter)));
        let (sender, connection) = Builder::new().max_buf_size(BUFFER_BYTES).handshake(wire).await?;
        Ok(Box::new(Self { sender, driver: Driver { connection, ended: false }, meter }))
    }

    /// Sends `request` and reads the answer. The connection comes back when it can carry another request.
    pub(super) async fn exchange(
        mut self: Box<Self>,
        request: Request<Full<Bytes>>,
        deadline: Deadline,
    ) -> Result<(Answer, Option<Box<Self>>), Failure> {
        self.meter.begin();
        let left = deadline.left();
        if left.is_zero() {
            return Err(self.fail("timeout", &Late));
        }
        let mut timer = pin!(sleep(left));
        let response = match self.request(request, timer.as_mut()).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(self.fail(code(&error), &error)),
            Err(Late) => return Err(self.fail("timeout", &Late)),
        };
        let (head, body) = response.into_parts();
        let (body, end) = self.read(body, timer.as_mut()).await;
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

    /// Writes `request` and waits for the head of the answer.
    async fn request(
        &mut self,
        request: Request<Full<Bytes>>,
        timer: Pin<&mut Sleep>,
    ) -> Result<Result<Response<Incoming>, SendError>, Late> {
        let answer = self.sender.try_send_request(request);
        match self.driver.run_for(answer, timer).await? {
            Some(answer) => Ok(answer.map_err(|unsent| SendError::Http(unsent.into_error()))),
            None => Ok(Err(SendError::Ended)),
        }
    }

    /// Reads at most [`ANSWER_BYTES`] of `body`, as they come: nothing is decompressed.
    async fn read(&mut self, mut body: Incoming, mut timer: Pin<&mut Sleep>) -> (Bytes, End) {
        let mut kept = BytesMut::new();
        let end = loop {
            let frame = match self.driver.run_for(body.frame(), timer.as_mut()).await {
                Ok(Some(Some(Ok(frame)))) => frame,
                Ok(Some(None)) => break End::Whole,
                Ok(Some(Some(Err(_))) | None) | Err(Late) => break End::Broken,
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

    /// Whether the peer keeps the connection open and has taken the whole request. A peer may answer before
    /// it has read everything; the rest of that request must not count for the next one.
    async fn comes_to_rest(&mut self, deadline: Deadline) -> bool {
        if !self.sender.is_ready() {
            let timer = pin!(sleep(deadline.left().min(REST)));
            let rested = self.driver.run_for(self.sender.ready(), timer).await;
            return matches!(rested, Ok(Some(Ok(())))) && !self.driver.ended;
        }
        !self.driver.ended
    }
}

impl Reusable for Box<Connection> {
    fn usable(&mut self) -> bool {
        // A look without waiting: the peer may have closed it meanwhile, or said something that nobody asked for.
        self.driver.advance(&mut Context::from_waker(Waker::noop())).is_pending() && self.sender.is_ready()
    }
}

/// What reads and writes on a connection, as long as somebody polls it.
struct Driver {
    connection: http1::Connection<TokioIo<Wire>, Full<Bytes>>,
    ended: bool,
}

impl Driver {
    /// Ready when the connection has ended.
    fn advance(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // The call on the connection learns of its error; without a call there is nobody to tell.
        self.ended = self.ended || Pin::new(&mut self.connection).poll(cx).is_ready();
        if self.ended { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Drives the connection until it has brought about `hoped`; None when it ends without.
    ///
    /// A request handed over in the very moment in which the connection ends is left in their channel, neither
    /// sent nor given back: without a look at the end such a call would sit out its whole timeout.
    async fn run_for<T>(&mut self, hoped: impl Future<Output = T>, mut timer: Pin<&mut Sleep>) -> Result<Option<T>, Late> {
        // What is hoped for changes only while the connection is advanced, so nothing else need wake us for it.
        // Being woken for it, too, would be a second poll for each step.
        let mut hoped = pin!(unconstrained(hoped));
        poll_fn(|cx| {
            let ended = self.advance(cx).is_ready();
            match hoped.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(brought) => Poll::Ready(Ok(Some(brought))),
                Poll::Pending if ended => Poll::Ready(Ok(None)),
                Poll::Pending => timer.as_mut().poll(cx).map(|()| Err(Late)),
            }
        })
        .await
    }
}

/// How the body of an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Whole,
    TooLong,
    Broken,
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
