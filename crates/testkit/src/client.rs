//! A plain HTTP/1.1 client that sends exactly what the test specifies. It uses one connection per request.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

use serde_json::Value;

use crate::GUARD;

/// An HTTP client for one server. Every request opens a new connection.
#[derive(Clone, Debug)]
pub struct HttpClient {
    addr: SocketAddr,
    headers: Vec<(String, String)>,
}

/// An HTTP response as it was received.
#[derive(Clone, Debug)]
pub struct HttpResponse {
    /// The status code.
    pub status: u16,
    /// The headers in the order in which they were sent. Names are in lower case, and values are trimmed.
    pub headers: Vec<(String, String)>,
    /// The body. A chunked transfer encoding is already decoded.
    pub body: Vec<u8>,
}

impl HttpClient {
    /// Creates a client for the server at `addr`.
    pub fn new(addr: SocketAddr) -> Self {
        Self { addr, headers: Vec::new() }
    }

    /// Adds a header to every request.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Adds an API key to every request, as a bearer token.
    #[must_use]
    pub fn key(self, token: &str) -> Self {
        self.with("Authorization", &format!("Bearer {token}"))
    }

    /// Sends a GET request.
    ///
    /// # Panics
    /// When no complete response arrives. The same applies to all other methods that do not return a `Result`.
    pub fn get(&self, path: &str) -> HttpResponse {
        self.send("GET", path, None)
    }

    /// Sends a POST request with a JSON body.
    pub fn post(&self, path: &str, body: &Value) -> HttpResponse {
        self.send("POST", path, Some(body.to_string().as_bytes()))
    }

    /// Sends a request, with or without a JSON body.
    pub fn send(&self, method: &str, path: &str, body: Option<&[u8]>) -> HttpResponse {
        self.try_send(method, path, body).unwrap_or_else(|problem| panic!("{method} {path}: {problem}"))
    }

    /// Sends a request to a server that may stop before it answers.
    ///
    /// # Errors
    /// When no complete response arrives.
    pub fn try_send(&self, method: &str, path: &str, body: Option<&[u8]>) -> io::Result<HttpResponse> {
        self.say(method, path, body.map(|body| ("application/json", body)))
    }

    /// Sends a body with another content type than JSON.
    ///
    /// # Panics
    /// When no complete response arrives.
    pub fn send_as(&self, kind: &str, method: &str, path: &str, body: &[u8]) -> HttpResponse {
        self.say(method, path, Some((kind, body))).unwrap_or_else(|problem| panic!("{method} {path}: {problem}"))
    }

    /// Returns the head of a request without a body, up to and including the empty line.
    pub fn head(&self, method: &str, path: &str) -> String {
        self.opening(method, path) + "\r\n"
    }

    fn opening(&self, method: &str, path: &str) -> String {
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", self.addr);
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head
    }

    fn say(&self, method: &str, path: &str, body: Option<(&str, &[u8])>) -> io::Result<HttpResponse> {
        let mut head = self.opening(method, path);
        if let Some((kind, body)) = body {
            head.push_str(&format!("Content-Type: {kind}\r\nContent-Length: {}\r\n", body.len()));
        }
        head.push_str("\r\n");
        let mut socket = TcpStream::connect(self.addr)?;
        socket.set_read_timeout(Some(GUARD))?;
        socket.write_all(head.as_bytes())?;
        socket.write_all(body.map_or(&[], |(_, body)| body))?;
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer)?;
        HttpResponse::parse(&answer)
            .ok_or_else(|| io::Error::other(format!("not an HTTP response: {:?}", String::from_utf8_lossy(&answer))))
    }
}

impl HttpResponse {
    /// Parses a complete response.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
        let head = std::str::from_utf8(bytes.get(..end)?).ok()?;
        let mut lines = head.split("\r\n");
        let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let header =
            |line: &str| line.split_once(':').map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()));
        let headers = lines.map(header).collect::<Option<Vec<_>>>()?;
        let mut answer = Self { status, headers, body: bytes.get(end + 4..)?.to_owned() };
        if answer.header("transfer-encoding") == Some("chunked") {
            answer.body = unchunked(&answer.body)?;
        } else if let Some(length) = answer.header("content-length").and_then(|length| length.parse::<usize>().ok())
            && length != answer.body.len()
            && !answer.body.is_empty()
        {
            return None;
        }
        Some(answer)
    }

    /// Returns the first value of the header `name`. The case of the name does not matter.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(header, _)| header.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// Returns all values of the header `name`.
    pub fn headers(&self, name: &str) -> Vec<&str> {
        let all = self.headers.iter().filter(|(header, _)| header.eq_ignore_ascii_case(name));
        all.map(|(_, value)| value.as_str()).collect()
    }

    /// Returns the body as text. Invalid UTF-8 is replaced.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Returns the body as JSON.
    ///
    /// # Panics
    /// When the body is not JSON. The message shows the body.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|problem| panic!("{} is not JSON: {problem}: {}", self.status, self.text()))
    }

    /// Asserts the status. The message shows the body.
    ///
    /// # Panics
    /// When the status differs.
    #[must_use]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", self.text());
        self
    }
}

fn unchunked(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let line = rest.windows(2).position(|two| two == b"\r\n")?;
        let size =
            usize::from_str_radix(std::str::from_utf8(&rest[..line]).ok()?.split(';').next()?.trim(), 16).ok()?;
        rest = rest.get(line + 2..)?;
        if size == 0 {
            return Some(body);
        }
        body.extend_from_slice(rest.get(..size)?);
        rest = rest.get(size + 2..)?;
    }
}

/// Returns a token or a link with one character of its signature changed. The signature must be at its end.
///
/// # Panics
/// When there are fewer than 20 characters.
#[must_use]
pub fn forged(signed: &str) -> String {
    let (rest, signature) = signed.split_at(signed.len() - 20);
    let other = if signature.starts_with('A') { 'B' } else { 'A' };
    format!("{rest}{other}{}", &signature[1..])
}
