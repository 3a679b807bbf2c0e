//! A dialled stream that counts the bytes written to it.
//! Whether a failed send may be repeated depends on how many bytes were written to the stream. The bytes are counted
//! here, before encryption, and not guessed from the text of an error.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::endpoint::Endpoint;
use super::tls::TlsClient;
use crate::egress::{Deadline, EgressFailure, Phase};

/// A byte stream to a peer: TCP, or TLS over TCP.
pub(super) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> ByteStream for S {}

#[derive(Debug, Default)]
struct Written {
    bytes: u64,
    closed: bool,
}

/// Counts the bytes that were written to a stream since the current request began. It can also refuse all further
/// writes.
/// One lock covers both the write and its count. So no byte can be written after [`WriteCounter::close`] has returned
/// the count, whichever task polls the stream.
#[derive(Debug, Default)]
pub struct WriteCounter(Mutex<Written>);

impl WriteCounter {
    /// Resets the count for a new request.
    pub fn begin(&self) {
        self.lock().bytes = 0;
    }

    /// The number of bytes that were written since [`WriteCounter::begin`], or since the stream was opened.
    pub fn written(&self) -> u64 {
        self.lock().bytes
    }

    /// Refuses all further writes. Returns the number of bytes that were written before.
    pub fn close(&self) -> u64 {
        let mut written = self.lock();
        written.closed = true;
        written.bytes
    }

    fn lock(&self) -> MutexGuard<'_, Written> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An open stream to an endpoint, plain or encrypted. Dropping it closes the connection.
pub struct DialledStream {
    stream: Box<dyn ByteStream>,
    is_tls: bool,
    counter: Arc<WriteCounter>,
    endpoint: Endpoint,
    tls: Arc<TlsClient>,
}

impl DialledStream {
    pub(super) fn new(stream: Box<dyn ByteStream>, is_tls: bool, endpoint: Endpoint, tls: Arc<TlsClient>) -> Self {
        Self { stream, is_tls, counter: Arc::default(), endpoint, tls }
    }

    /// A stream over any other, for tests of protocols.
    #[cfg(test)]
    pub(crate) fn over(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static, is_tls: bool) -> Self {
        let (endpoint, tls) = (Endpoint::new("peer.example", 25).unwrap(), TlsClient::new(None).unwrap());
        Self::new(Box::new(stream), is_tls, endpoint, Arc::new(tls))
    }

    /// The counter of the written bytes. It stays valid after the stream was moved into another client.
    pub fn counter(&self) -> Arc<WriteCounter> {
        Arc::clone(&self.counter)
    }

    /// Whether the stream is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.is_tls
    }

    /// Starts TLS on a plain stream, after the peer has agreed to STARTTLS. The peer's certificate must match the
    /// endpoint's name. The count of bytes continues, without the bytes of the handshake.
    /// Before the call, the caller must discard all bytes from the peer that it has buffered, because they were not
    /// encrypted.
    /// # Errors
    /// The stream is already encrypted, or the handshake failed. The stream is closed then.
    pub async fn start_tls(self, deadline: Deadline) -> Result<Self, EgressFailure> {
        let Self { stream, is_tls, counter, endpoint, tls } = self;
        let upgraded = match is_tls {
            true => Err(endpoint.failure(Phase::Tls, "tls", "the connection is already encrypted")),
            false => tls.handshake(&endpoint, stream, &[], deadline).await,
        };
        match upgraded {
            Ok(stream) => Ok(Self { stream: Box::new(stream), is_tls: true, counter, endpoint, tls }),
            Err(failure) => Err(EgressFailure { bytes_written: counter.close(), ..failure }),
        }
    }
}

impl std::fmt::Debug for DialledStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DialledStream").field("is_tls", &self.is_tls).finish_non_exhaustive()
    }
}

impl AsyncWrite for DialledStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let mut written = this.counter.lock();
        if written.closed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let wrote = Pin::new(&mut this.stream).poll_write(cx, buf);
        written.bytes += match &wrote {
            Poll::Ready(Ok(bytes)) => *bytes as u64,
            // A failed TCP write has sent nothing. A failed TLS write may have sent some records before it failed and
            // does not report them, so all its bytes are counted.
            Poll::Ready(Err(_)) if this.is_tls => buf.len() as u64,
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

impl AsyncRead for DialledStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buf)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    /// A socket whose writes all succeed or all fail.
    struct FakeSocket(bool);

    impl AsyncRead for FakeSocket {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    impl AsyncWrite for FakeSocket {
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

    fn stream(works: bool, is_tls: bool) -> (DialledStream, Arc<WriteCounter>) {
        let stream = DialledStream::over(FakeSocket(works), is_tls);
        let counter = stream.counter();
        (stream, counter)
    }

    #[tokio::test]
    async fn a_closed_counter_lets_no_byte_through() {
        let (mut stream, counter) = stream(true, false);
        stream.write_all(b"abc").await.unwrap();
        assert_eq!(counter.close(), 3);
        assert_eq!(stream.write_all(b"d").await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        assert_eq!(counter.close(), 3);
    }

    #[tokio::test]
    async fn each_request_is_counted_from_zero() {
        let (mut stream, counter) = stream(true, true);
        stream.write_all(b"first").await.unwrap();
        counter.begin();
        stream.write_all(b"2").await.unwrap();
        assert_eq!(counter.close(), 1);
    }

    #[tokio::test]
    async fn a_failed_write_counts_only_where_bytes_may_have_left() {
        for (tls, counted) in [(false, 0), (true, 3)] {
            let (mut stream, counter) = stream(false, tls);
            stream.write_all(b"abc").await.unwrap_err();
            assert_eq!(counter.close(), counted);
        }
    }
}
