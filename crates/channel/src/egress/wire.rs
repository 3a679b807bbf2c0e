//! The bytes of a connection, counted on their way out.
//!
//! Whether a failed call may be repeated hangs on one number: how many bytes of the request were handed to
//! the connection. It is counted here, above TLS, and never guessed from the text of an error.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A byte stream to a peer: TCP, or TLS over it.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> Stream for S {}

#[derive(Debug, Default)]
struct Gauge {
    written: u64,
    closed: bool,
}

/// Counts the bytes written since the current request began, and can stop them for good.
///
/// One lock covers both the write and its count, so that no byte can leave after [`Meter::close`] has told how
/// many did, whoever drives the connection.
#[derive(Debug, Default)]
pub(super) struct Meter(Mutex<Gauge>);

impl Meter {
    /// Starts counting for a new request.
    pub(super) fn begin(&self) {
        self.lock().written = 0;
    }

    /// Refuses all further writes; returns the bytes written since [`Meter::begin`].
    pub(super) fn close(&self) -> u64 {
        let mut gauge = self.lock();
        gauge.closed = true;
        gauge.written
    }

    fn lock(&self) -> MutexGuard<'_, Gauge> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream whose writes pass through a [`Meter`].
pub(super) struct Wire {
    stream: Box<dyn Stream>,
    meter: Arc<Meter>,
    tls: bool,
}

impl Wire {
    pub(super) fn new(stream: impl Stream, tls: bool, meter: Arc<Meter>) -> Self {
        Self { stream: Box::new(stream), meter, tls }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let mut gauge = this.meter.lock();
        if gauge.closed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let wrote = Pin::new(&mut this.stream).poll_write(cx, buf);
        gauge.written += match &wrote {
            Poll::Ready(Ok(bytes)) => *bytes as u64,
            // A failed TCP write moved nothing. A failed TLS write may have sent whole records before it
            // failed, and does not say so: count all of it.
            Poll::Ready(Err(_)) if this.tls => buf.len() as u64,
            Poll::Ready(Err(_)) | Poll::Pending => 0,
        };
        wrote
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buf)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    /// Takes what it is given, or fails at once.
    struct Sink(bool);

    impl AsyncRead for Sink {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    impl AsyncWrite for Sink {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
            let wrote = if self.0 { Ok(buf.len()) } else { Err(io::ErrorKind::ConnectionReset.into()) };
            Poll::Ready(wrote)
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    fn wire(works: bool, tls: bool) -> (Wire, Arc<Meter>) {
        let meter = Arc::new(Meter::default());
        (Wire::new(Sink(works), tls, Arc::clone(&meter)), meter)
    }

    #[tokio::test]
    async fn a_closed_meter_lets_no_byte_through() {
        let (mut wire, meter) = wire(true, false);
        wire.write_all(b"abc").await.unwrap();
        assert_eq!(meter.close(), 3);
        assert_eq!(wire.write_all(b"d").await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        assert_eq!(meter.close(), 3);
    }

    #[tokio::test]
    async fn each_request_is_counted_from_zero() {
        let (mut wire, meter) = wire(true, true);
        wire.write_all(b"first").await.unwrap();
        meter.begin();
        wire.write_all(b"2").await.unwrap();
        assert_eq!(meter.close(), 1);
    }

    #[tokio::test]
    async fn a_failed_write_counts_only_where_bytes_may_have_left() {
        for (tls, counted) in [(false, 0), (true, 3)] {
            let (mut wire, meter) = wire(false, tls);
            wire.write_all(b"abc").await.unwrap_err();
            assert_eq!(meter.close(), counted);
        }
    }
}
