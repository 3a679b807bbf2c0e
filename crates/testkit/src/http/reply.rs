//! Replies of the scripted server, both valid and faulty.

use std::io;

use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use super::Request;

/// The reply to one request. The server sends it after it has read the request completely.
#[derive(Clone, Debug)]
pub enum Reply {
    /// A well-formed answer. `content-length` is added unless `headers` contains it or `transfer-encoding`.
    Answer {
        /// The status code.
        status: u16,
        /// The headers, sent as they are.
        headers: Vec<(String, String)>,
        /// The body.
        body: Vec<u8>,
    },
    /// Never answers, and keeps the connection open until the server is dropped.
    Hang,
    /// Resets the connection (RST) without an answer.
    Reset,
    /// Closes the connection gracefully (FIN) without an answer.
    Close,
    /// Sends bytes that are not a status line, then closes the connection.
    Garbage,
    /// Sends the status line and half of a header, then closes the connection.
    HalfAnswer,
    /// Waits until [`HttpServer::release`](super::HttpServer::release) is called, then sends `then`.
    Slow {
        /// The reply that is held back.
        then: Box<Reply>,
    },
    /// A 200 with a body of this many bytes, sent as fast as the client reads.
    HugeBody(u64),
    /// A 307 redirect to this location. Status 307 asks the client to repeat the method and the body.
    RedirectTo(String),
    /// A 200 whose headers never end.
    EndlessHeaders,
}

/// The state of the connection after a reply.
pub(super) enum Then {
    KeepAlive,
    Close,
}

impl Reply {
    /// Returns an answer with this status, no headers and no body.
    pub fn status(status: u16) -> Self {
        Self::Answer { status, headers: Vec::new(), body: Vec::new() }
    }

    /// Returns an empty 200 answer.
    pub fn ok() -> Self {
        Self::status(200)
    }

    /// Returns an answer with this status and a JSON body.
    #[allow(clippy::needless_pass_by_value)] // called with `json!(..)`, a temporary
    pub fn json(status: u16, body: serde_json::Value) -> Self {
        Self::status(status).with_header("content-type", "application/json").with_body(body.to_string())
    }

    /// Holds the reply back until the test calls the server's `release`.
    pub fn slow(self) -> Self {
        Self::Slow { then: Box::new(self) }
    }

    /// Adds a header to a [`Reply::Answer`].
    ///
    /// # Panics
    /// On any other reply.
    pub fn with_header(mut self, name: &str, value: impl Into<String>) -> Self {
        let Self::Answer { headers, .. } = &mut self else {
            panic!("only Reply::Answer takes headers, not {self:?}");
        };
        headers.push((name.to_owned(), value.into()));
        self
    }

    /// Sets the body of a [`Reply::Answer`].
    ///
    /// # Panics
    /// On any other reply.
    pub fn with_body(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        let Self::Answer { body, .. } = &mut self else {
            panic!("only Reply::Answer takes a body, not {self:?}");
        };
        *body = bytes.into();
        self
    }

    pub(super) async fn send(self, socket: &mut BufReader<TcpStream>, request: &Request) -> io::Result<Then> {
        match self {
            Self::Answer { status, headers, body } => return answer(socket, request, status, headers, &body).await,
            Self::RedirectTo(location) => {
                let headers = vec![("location".to_owned(), location)];
                return answer(socket, request, 307, headers, b"").await;
            }
            Self::Hang | Self::Slow { .. } => std::future::pending::<()>().await,
            Self::Reset => socket.get_ref().set_zero_linger()?,
            Self::Close => {}
            Self::Garbage => socket.write_all(b"\x00\xffno such protocol\r\n\r\n").await?,
            Self::HalfAnswer => socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-le").await?,
            Self::HugeBody(length) => huge_body(socket, length).await?,
            Self::EndlessHeaders => endless_headers(socket).await?,
        }
        Ok(Then::Close)
    }
}

async fn answer(
    socket: &mut BufReader<TcpStream>,
    request: &Request,
    status: u16,
    headers: Vec<(String, String)>,
    body: &[u8],
) -> io::Result<Then> {
    let mut keep_alive = request.keep_alive;
    let bodiless = matches!(status, 100..=199 | 204 | 304);
    let mut head = format!("HTTP/1.1 {status} {}\r\n", reason(status));
    let mut sized = bodiless;
    for (name, value) in headers {
        sized |= name.eq_ignore_ascii_case("content-length");
        sized |= name.eq_ignore_ascii_case("transfer-encoding");
        keep_alive &= !(name.eq_ignore_ascii_case("connection") && value == "close");
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if !sized {
        head.push_str(&format!("content-length: {}\r\n", body.len()));
    }
    let mut bytes = (head + "\r\n").into_bytes();
    if request.method != "HEAD" && !bodiless {
        bytes.extend_from_slice(body);
    }
    socket.write_all(&bytes).await?;
    Ok(if keep_alive { Then::KeepAlive } else { Then::Close })
}

/// Returns the reason phrase of a status. HTTP allows an empty one, which is used where no test reads it.
fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        503 => "Service Unavailable",
        _ => "",
    }
}

/// A block of bytes that is sent repeatedly as a huge body.
static BLOCK: [u8; 16 * 1024] = [b'x'; 16 * 1024];

async fn huge_body(socket: &mut BufReader<TcpStream>, length: u64) -> io::Result<()> {
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n");
    socket.write_all(head.as_bytes()).await?;
    let mut left = length;
    while left > 0 {
        let now = left.min(BLOCK.len() as u64);
        socket.write_all(&BLOCK[..now as usize]).await?;
        left -= now;
    }
    Ok(())
}

async fn endless_headers(socket: &mut BufReader<TcpStream>) -> io::Result<()> {
    socket.write_all(b"HTTP/1.1 200 OK\r\n").await?;
    for n in 0_u64.. {
        let header = format!("x-filler-{n}: {}\r\n", "x".repeat(100));
        socket.write_all(header.as_bytes()).await?;
    }
    Ok(())
}
