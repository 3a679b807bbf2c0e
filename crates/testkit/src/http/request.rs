//! A recorded request, and the code that reads it from the socket.

use std::fmt;
use std::io::{self, ErrorKind};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// The limit in bytes for one line of a request, and for all its headers together.
const HEAD_BYTES_MAX: u64 = 256 * 1024;
/// The limit in bytes for the body of a request.
const BODY_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// A request as it was received.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The number of the request in order of arrival. The server's first request is 1.
    pub n: usize,
    /// The method, as sent.
    pub method: String,
    /// The request target as sent, including the query.
    pub path: String,
    /// The headers in the order in which they were sent. Names are in lower case, and values are trimmed.
    pub headers: Vec<(String, String)>,
    /// The body. A chunked transfer encoding is already decoded.
    pub body: Vec<u8>,
    /// Whether the client expects the connection to stay open.
    pub(crate) keep_alive: bool,
}

impl Request {
    /// Returns the first value of the header `name`. The case of the name does not matter.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(header, _)| header.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// Returns the body as text.
    ///
    /// # Panics
    /// When the body is not UTF-8.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("the request's body is UTF-8")
    }

    /// Returns the body as JSON.
    ///
    /// # Panics
    /// When the body is not JSON; the message shows the body.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| {
            let body = String::from_utf8_lossy(&self.body);
            panic!("the body of {self} is not JSON: {error}: {body}")
        })
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { n, method, path, .. } = self;
        write!(f, "#{n} {method} {path} ({} bytes)", self.body.len())
    }
}

/// Reads the next request. Returns `None` when the client closed the connection between requests.
pub(super) async fn read(socket: &mut BufReader<TcpStream>) -> io::Result<Option<Request>> {
    let Some(mut request) = read_head(socket).await? else {
        return Ok(None);
    };
    if request.header("expect") == Some("100-continue") {
        socket.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
    }
    request.body = match request.header("transfer-encoding") {
        Some("chunked") => read_chunks(socket).await?,
        Some(_) => return Err(malformed("transfer-encoding")),
        None => {
            let length = request.header("content-length").unwrap_or("0");
            let length = length.parse().map_err(|_| malformed("content-length"))?;
            read_bytes(socket, length).await?
        }
    };
    Ok(Some(request))
}

async fn read_head(socket: &mut BufReader<TcpStream>) -> io::Result<Option<Request>> {
    let start = read_line(socket).await?;
    if start.is_empty() {
        return Ok(None);
    }
    let mut words = start.split(' ');
    let (Some(method), Some(path), Some(version)) = (words.next(), words.next(), words.next()) else {
        return Err(malformed("request line"));
    };
    let mut request = Request {
        method: method.to_owned(),
        path: path.to_owned(),
        headers: read_headers(socket).await?,
        ..Request::default()
    };
    let close = request.header("connection") == Some("close");
    request.keep_alive = version == "HTTP/1.1" && !close;
    Ok(Some(request))
}

async fn read_headers(socket: &mut BufReader<TcpStream>) -> io::Result<Vec<(String, String)>> {
    let mut headers = Vec::new();
    let mut bytes = 0;
    loop {
        let line = read_line(socket).await?;
        bytes += line.len() as u64;
        if line.is_empty() {
            return Ok(headers);
        }
        if bytes > HEAD_BYTES_MAX {
            return Err(malformed("head, too long"));
        }
        let (name, value) = line.split_once(':').ok_or_else(|| malformed("header"))?;
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
}

async fn read_chunks(socket: &mut BufReader<TcpStream>) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let line = read_line(socket).await?;
        let size = line.split(';').next().unwrap_or_default().trim();
        let size = u64::from_str_radix(size, 16).map_err(|_| malformed("chunk size"))?;
        if size == 0 {
            read_headers(socket).await?; // trailers, up to the empty line
            return Ok(body);
        }
        body.extend(read_bytes(socket, size).await?);
        read_line(socket).await?;
        if body.len() as u64 > BODY_BYTES_MAX {
            return Err(malformed("body, too long"));
        }
    }
}

async fn read_bytes(socket: &mut BufReader<TcpStream>, length: u64) -> io::Result<Vec<u8>> {
    if length > BODY_BYTES_MAX {
        return Err(malformed("body, too long"));
    }
    let mut body = Vec::new();
    socket.take(length).read_to_end(&mut body).await?;
    if body.len() as u64 == length { Ok(body) } else { Err(ErrorKind::UnexpectedEof.into()) }
}

/// Reads a line and returns it without its line ending. At the end of the stream it returns an empty line.
async fn read_line(socket: &mut BufReader<TcpStream>) -> io::Result<String> {
    let mut line = String::new();
    socket.take(HEAD_BYTES_MAX).read_line(&mut line).await?;
    if !line.is_empty() && !line.ends_with('\n') {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    line.truncate(line.trim_end_matches(['\r', '\n']).len());
    Ok(line)
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("malformed request: {what}"))
}
