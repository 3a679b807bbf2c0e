//! The stream between the socket and hyper. It passes a request head to hyper only after the head is complete and was
//! checked. The deadlines are enforced here, because only this stream knows which event is awaited: the next request,
//! the rest of a head, or a client that does not read its answer.
//! A refused head is replaced by [`STAND_IN`]. The refusal is then answered like any request: in order, flushed and
//! logged. Its answer closes the connection.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use futures_util::task::AtomicWaker;
use postcommit_channel::clock;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use super::framing::Framing;
use super::head::{self, HeadSearch};
use super::refusal::DoorRefusal;
use super::settings::ServerSettings;

/// The request head that hyper reads in place of a refused one.
const STAND_IN: &[u8] = b"GET /refused HTTP/1.1\r\nhost: refused\r\nconnection: close\r\n\r\n";
/// The time for which the stream reads and discards the bytes that a client still sends at the end of a connection.
/// Closing a socket with unread bytes would discard our answer.
const LINGER: Duration = Duration::from_secs(2);
const READ_BYTES: usize = 8 * 1024;

/// The state of the current request on one connection. The stream and the service share it.
#[derive(Default)]
pub struct Exchange {
    /// Whether a request was passed to hyper and is not fully answered.
    busy: AtomicBool,
    /// Whether the connection accepts no further request.
    closing: AtomicBool,
    refusal: Mutex<Option<DoorRefusal>>,
    reader: AtomicWaker,
}

impl Exchange {
    fn begin(&self, refusal: Option<DoorRefusal>) {
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = refusal;
        self.busy.store(true, Ordering::SeqCst);
    }

    /// Marks the current request as answered and lets the stream read the next one.
    pub fn end(&self) {
        self.busy.store(false, Ordering::SeqCst);
        self.reader.wake();
    }

    /// Closes the connection: immediately if it is idle, otherwise after its current request.
    pub fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
        self.reader.wake();
    }

    /// Takes the reason if hyper was given [`STAND_IN`] in place of a refused request. Otherwise returns `None`.
    pub fn refusal(&self) -> Option<DoorRefusal> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

enum ReadState {
    Head,
    /// A request: the number of bytes of its head that are not yet passed to hyper, and the framing of the body.
    Request(usize, Framing),
    /// A refused request: the number of bytes of [`STAND_IN`] that are not yet passed to hyper. Nothing is read after
    /// them.
    Refused(usize),
}

/// The event that the read deadline applies to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Deadline {
    NextRequest,
    Head,
}

pub struct CheckedStream<S> {
    inner: S,
    exchange: Arc<Exchange>,
    settings: Arc<ServerSettings>,
    /// Bytes that were read from the socket and not yet passed to hyper.
    buffer: BytesMut,
    /// The number of bytes of the buffer that were already searched for the end of a head.
    seen: usize,
    reading: ReadState,
    waiting: Option<Deadline>,
    clock: Pin<Box<Sleep>>,
    is_first: bool,
    /// The write deadline. It runs while the client accepts no bytes.
    stalled: Option<Pin<Box<Sleep>>>,
    linger: Option<Pin<Box<Sleep>>>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> CheckedStream<S> {
    pub fn new(inner: S, exchange: Arc<Exchange>, settings: Arc<ServerSettings>) -> Self {
        Self {
            inner,
            exchange,
            buffer: BytesMut::new(),
            seen: 0,
            reading: ReadState::Head,
            waiting: None,
            clock: Box::pin(sleep(settings.header_deadline())),
            settings,
            is_first: true,
            stalled: None,
            linger: None,
        }
    }

    /// Reads from the socket into the buffer. Returns 0 at the end of the stream.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut chunk = [const { MaybeUninit::uninit() }; READ_BYTES];
        let mut read = ReadBuf::uninit(&mut chunk);
        ready!(Pin::new(&mut self.inner).poll_read(cx, &mut read))?;
        self.buffer.extend_from_slice(read.filled());
        Poll::Ready(Ok(read.filled().len()))
    }

    /// Waits for the next request head. Returns false at the end of the stream.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        loop {
            self.exchange.reader.register(cx.waker());
            if self.exchange.busy.load(Ordering::SeqCst) {
                // Keep reading during a request: the end of the stream tells hyper that the client has disconnected.
                if !self.buffer.is_empty() {
                    return Poll::Pending;
                }
                if ready!(self.poll_fill(cx))? == 0 {
                    return Poll::Ready(Ok(false));
                }
                continue;
            }
            if self.look() {
                return Poll::Ready(Ok(true));
            }
            if self.buffer.is_empty() && self.exchange.closing.load(Ordering::SeqCst) {
                return Poll::Ready(Ok(false));
            }
            self.start_clock();
            match self.poll_fill(cx)? {
                Poll::Ready(0) => return Poll::Ready(Ok(false)),
                Poll::Ready(_) => {}
                Poll::Pending => {
                    ready!(self.clock.as_mut().poll(cx));
                    if self.buffer.is_empty() {
                        return Poll::Ready(Ok(false));
                    }
                    self.refuse(DoorRefusal::slow_header(self.settings.header_deadline_ms));
                    return Poll::Ready(Ok(true));
                }
            }
        }
    }

    /// Returns whether the buffer holds the complete head of a request. A head that must be refused is replaced in the
    /// buffer by a request that the server answers with the error.
    fn look(&mut self) -> bool {
        // Some clients send a superfluous empty line after a body.
        while self.buffer.starts_with(b"\r\n") {
            self.buffer.advance(2);
            self.seen = 0;
        }
        if self.buffer.is_empty() {
            // Drop the allocation, so that an idle connection keeps no buffer.
            self.buffer = BytesMut::new();
            return false;
        }
        match head::find(&self.buffer, self.seen, self.settings.body_bytes) {
            HeadSearch::Unfinished => {
                self.seen = self.buffer.len();
                return false;
            }
            HeadSearch::Head(length, body) => {
                self.exchange.begin(None);
                self.reading = ReadState::Request(length, body);
            }
            HeadSearch::Refused(refusal) => self.refuse(refusal),
        }
        self.seen = 0;
        self.is_first = false;
        self.waiting = None;
        true
    }

    fn refuse(&mut self, refusal: DoorRefusal) {
        self.exchange.begin(Some(refusal));
        self.buffer = BytesMut::from(STAND_IN);
        self.reading = ReadState::Refused(STAND_IN.len());
    }

    /// Starts the read deadline. A head's deadline runs from its first byte. The first head's deadline runs from the
    /// start of the connection.
    fn start_clock(&mut self) {
        let waiting = if self.buffer.is_empty() && !self.is_first { Deadline::NextRequest } else { Deadline::Head };
        if self.waiting != Some(waiting) {
            self.waiting = Some(waiting);
            let length =
                if waiting == Deadline::Head { self.settings.header_deadline() } else { self.settings.idle_deadline() };
            self.clock.as_mut().reset(Instant::from_std(clock::monotonic() + length));
        }
    }

    /// Copies at most `most` bytes of the buffer to `out` and returns their number.
    fn hand_on(&mut self, most: usize, out: &mut ReadBuf<'_>) -> usize {
        let length = most.min(out.remaining()).min(self.buffer.len());
        out.put_slice(&self.buffer[..length]);
        self.buffer.advance(length);
        length
    }

    fn hand_on_body(&mut self, out: &mut ReadBuf<'_>) -> io::Result<()> {
        let ReadState::Request(0, body) = &mut self.reading else { return Ok(()) };
        let room = out.remaining().min(self.buffer.len());
        let length = body
            .take(&self.buffer[..room])
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "the chunks of the body are malformed"))?;
        self.hand_on(length, out);
        Ok(())
    }

    /// Returns an error once the client has accepted no bytes for the write deadline.
    fn poll_stall(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let deadline = self.settings.write_deadline();
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(deadline)));
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(io::Error::new(io::ErrorKind::TimedOut, "the client did not read its answer in time"))
    }

    fn unless_stalled<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_pending() {
            return self.poll_stall(cx).map(Err);
        }
        self.stalled = None;
        written
    }

    fn owes_nothing(&self) -> bool {
        self.buffer.is_empty()
            && match &self.reading {
                ReadState::Head => true,
                ReadState::Request(head, body) => *head == 0 && body.is_over(),
                ReadState::Refused(_) => false,
            }
    }

    /// Reads and discards the bytes that the client still sends, for at most [`LINGER`].
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let linger = self.linger.get_or_insert_with(|| Box::pin(sleep(LINGER)));
        if linger.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        loop {
            self.buffer.clear();
            match ready!(self.poll_fill(cx)) {
                Ok(0) | Err(_) => return Poll::Ready(()),
                Ok(_) => {}
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for CheckedStream<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            match &mut this.reading {
                ReadState::Head => {
                    if !ready!(this.poll_head(cx))? {
                        return Poll::Ready(Ok(()));
                    }
                }
                // Hyper is writing the refusal and then closes the connection.
                ReadState::Refused(0) => return Poll::Pending,
                ReadState::Refused(left) | ReadState::Request(left @ 1.., _) => {
                    let most = *left;
                    let handed = this.hand_on(most, out);
                    if let ReadState::Refused(left) | ReadState::Request(left, _) = &mut this.reading {
                        *left -= handed;
                    }
                    return Poll::Ready(Ok(()));
                }
                ReadState::Request(0, body) if body.is_over() => this.reading = ReadState::Head,
                ReadState::Request(0, _) => {
                    if this.buffer.is_empty() && ready!(this.poll_fill(cx))? == 0 {
                        return Poll::Ready(Ok(()));
                    }
                    return Poll::Ready(this.hand_on_body(out));
                }
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for CheckedStream<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.inner).poll_write(cx, bytes);
        this.unless_stalled(cx, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.inner).poll_write_vectored(cx, slices);
        this.unless_stalled(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.inner).poll_flush(cx);
        this.unless_stalled(cx, flushed)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.linger.is_none() {
            let shut = Pin::new(&mut this.inner).poll_shutdown(cx);
            ready!(this.unless_stalled(cx, shut))?;
            if this.owes_nothing() {
                return Poll::Ready(Ok(()));
            }
        }
        this.poll_linger(cx).map(Ok)
    }
}
