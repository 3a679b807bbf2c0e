//! One HTTP/1.1 connection. It sends a request and reads the answer. Each kind of failure has its own code.
//! A connection has no task of its own. During a request the caller's task polls it, so that no other task must be
//! woken. Between two requests the pool polls it regularly.

use std::error::Error;
use std::future::{Future, poll_fn};
use std::io::{self, ErrorKind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, Builder, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::task::unconstrained;
use tokio::time::{Sleep, sleep};

use super::pool::Reusable;
use super::{ANSWER_BYTES, HttpAnswer};
use crate::egress::deadline::{Deadline, Late};
use crate::egress::failure::{chain, text};
use crate::egress::{DialledStream, EgressFailure, Endpoint, Phase, WriteCounter};

/// The maximum number of buffered bytes of an answer's head, or of its body while it arrives.
const BUFFER_BYTES: usize = 65_536;
/// The time after an answer in which a connection must become ready for the next request. Otherwise it is closed.
const REST: Duration = Duration::from_millis(50);

/// The reason why the head of an answer did not arrive.
#[derive(Debug, thiserror::Error)]
enum SendError {
    #[error(transparent)]
    Http(hyper::Error),
    #[error("the connection was closed")]
    Ended,
}

/// An open connection. Dropping it closes it, and no byte is written afterwards.
pub(in crate::egress) struct Connection {
    sender: SendRequest<Full<Bytes>>,
    io: ConnectionIo,
    counter: Arc<WriteCounter>,
}

impl Connection {
    /// Prepares `stream` for requests. Writes nothing yet.
    pub(super) async fn open(stream: DialledStream, endpoint: &Endpoint) -> Result<Box<Self>, EgressFailure> {
        let counter = stream.counter();
        let handshake = Builder::new().max_buf_size(BUFFER_BYTES).handshake(TokioIo::new(stream)).await;
        let (sender, connection) =
            handshake.map_err(|error| endpoint.failure(Phase::Connect, "connect", &text(&error)))?;
        Ok(Box::new(Self { sender, io: ConnectionIo { connection, ended: false }, counter }))
    }

    /// Sends `request` and reads the answer. Also returns the connection if it can be used for another request.
    pub(super) async fn exchange(
        mut self: Box<Self>,
        request: Request<Full<Bytes>>,
        deadline: Deadline,
    ) -> Result<(HttpAnswer, Option<Box<Self>>), EgressFailure> {
        self.counter.begin();
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
        let answer = HttpAnswer {
            status: head.status.as_u16(),
            headers: head.headers,
            body,
            truncated: end == End::TooLong,
            body_complete: end == End::Whole,
        };
        let at_rest = answer.body_complete && self.comes_to_rest(deadline).await;
        Ok((answer, at_rest.then_some(self)))
    }

    /// Closes the connection. The failure says how many bytes of the request were written.
    fn fail(&self, code: &'static str, error: &(dyn Error + 'static)) -> EgressFailure {
        EgressFailure { phase: Phase::Request, bytes_written: self.counter.close(), code, detail: text(error) }
    }

    /// Writes `request` and waits for the head of the answer.
    async fn request(
        &mut self,
        request: Request<Full<Bytes>>,
        timer: Pin<&mut Sleep>,
    ) -> Result<Result<Response<Incoming>, SendError>, Late> {
        let answer = self.sender.try_send_request(request);
        match self.io.run_for(answer, timer).await? {
            Some(answer) => Ok(answer.map_err(|unsent| SendError::Http(unsent.into_error()))),
            None => Ok(Err(SendError::Ended)),
        }
    }

    /// Reads at most [`ANSWER_BYTES`] of `body`. Nothing is decompressed.
    async fn read(&mut self, mut body: Incoming, mut timer: Pin<&mut Sleep>) -> (Bytes, End) {
        let mut kept = BytesMut::new();
        let end = loop {
            let frame = match self.io.run_for(body.frame(), timer.as_mut()).await {
                Ok(Some(Some(Ok(frame)))) => frame,
                Ok(Some(None)) => break End::Whole,
                Ok(Some(Some(Err(_))) | None) | Err(Late) => break End::Broken,
            };
            // Trailers are ignored.
            let Ok(data) = frame.into_data() else { continue };
            let room = ANSWER_BYTES - kept.len();
            kept.extend_from_slice(&data[..data.len().min(room)]);
            if data.len() > room {
                break End::TooLong;
            }
        };
        (kept.freeze(), end)
    }

    /// Whether the peer keeps the connection open and the whole request was written. A peer may answer before it has
    /// read the whole request. The rest of that request must not be counted for the next one.
    async fn comes_to_rest(&mut self, deadline: Deadline) -> bool {
        if !self.sender.is_ready() {
            let timer = pin!(sleep(deadline.left().min(REST)));
            let rested = self.io.run_for(self.sender.ready(), timer).await;
            return matches!(rested, Ok(Some(Ok(())))) && !self.io.ended;
        }
        !self.io.ended
    }
}

impl Reusable for Box<Connection> {
    fn usable(&mut self) -> bool {
        // Poll once without waiting: the peer may have closed the connection, or sent bytes without a request.
        self.io.advance(&mut Context::from_waker(Waker::noop())).is_pending() && self.sender.is_ready()
    }
}

/// The reading and writing half of a connection. It makes progress only while it is polled.
struct ConnectionIo {
    connection: http1::Connection<TokioIo<DialledStream>, Full<Bytes>>,
    ended: bool,
}

impl ConnectionIo {
    /// Reads and writes as far as possible. Returns `Ready` when the connection has ended.
    fn advance(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // The error is ignored here. A running request gets it from hyper.
        self.ended = self.ended || Pin::new(&mut self.connection).poll(cx).is_ready();
        if self.ended { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Polls the connection until `hoped` is ready. Returns `None` if the connection ends first.
    /// A request that is passed to hyper just as the connection ends stays in hyper's channel. It is neither sent nor
    /// returned. Without the check for the end, its caller would wait for the whole timeout.
    async fn run_for<T>(
        &mut self,
        hoped: impl Future<Output = T>,
        mut timer: Pin<&mut Sleep>,
    ) -> Result<Option<T>, Late> {
        // `hoped` can only become ready while the connection is polled, so it gets a waker that does nothing. A real
        // waker would cause a second poll for each step.
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

/// The end of reading the body of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Whole,
    TooLong,
    Broken,
}

/// The failure code of an error that happened before the head of the answer arrived.
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
