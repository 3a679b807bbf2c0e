//! A scripted peer on loopback, and calls to it.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method};
use postcommit_channel::egress::{Call, Egress, EgressFailure, EgressSettings, HttpAnswer, Resolved, Resolver};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use url::Url;

pub const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// A server that plays a script on every connection it accepts, and counts them.
pub struct Peer {
    pub port: u16,
    accepted: Arc<AtomicUsize>,
}

impl Peer {
    pub async fn new<S, F>(script: S) -> Self
    where
        S: Fn(TcpStream) -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        Self::at("127.0.0.1:0", script).await
    }

    pub async fn at<S, F>(address: &str, script: S) -> Self
    where
        S: Fn(TcpStream) -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind(address).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let accepted = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&accepted);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                counter.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(script(stream));
            }
        });
        Self { port, accepted }
    }

    /// A peer that answers each request with the same bytes and keeps the connection open.
    pub async fn answering(answer: impl Into<Vec<u8>>) -> Self {
        let answer = Arc::new(answer.into());
        Self::new(move |stream| answer_all(stream, Arc::clone(&answer))).await
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/hook?token=s3cret", self.port)
    }

    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

pub async fn answer_all(mut stream: TcpStream, answer: Arc<Vec<u8>>) {
    while read_request(&mut stream).await.is_some() {
        if stream.write_all(&answer).await.is_err() {
            return;
        }
    }
}

/// The next request, head and body. `None` at the end of the connection.
pub async fn read_request(stream: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    let mut read = Vec::new();
    while !read.ends_with(b"\r\n\r\n") {
        read.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(read).unwrap();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    stream.read_exact(&mut body).await.ok()?;
    Some(head + &String::from_utf8(body).unwrap())
}

/// A resolver that gives its answers one after the other and repeats the last one. It counts the queries.
#[derive(Default)]
pub struct Script {
    answers: Mutex<VecDeque<Vec<IpAddr>>>,
    pub asked: AtomicUsize,
}

impl Script {
    pub fn new(answers: &[&[&str]]) -> Arc<Self> {
        let parse = |answer: &&[&str]| answer.iter().map(|ip| ip.parse().unwrap()).collect();
        Arc::new(Self { answers: Mutex::new(answers.iter().map(parse).collect()), ..Self::default() })
    }
}

impl Resolver for Script {
    fn resolve<'a>(&'a self, _: &'a str) -> Resolved<'a> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let mut answers = self.answers.lock().unwrap();
        let next = if answers.len() > 1 { answers.pop_front() } else { answers.front().cloned() };
        Box::pin(async move { next.ok_or_else(|| io::Error::other("no such name")) })
    }
}

/// Settings that allow `ranges`.
pub fn open(ranges: &[&str]) -> EgressSettings {
    EgressSettings { allow: ranges.iter().map(|range| range.parse().unwrap()).collect(), ..EgressSettings::default() }
}

/// An egress that may call peers on loopback.
pub fn egress() -> Egress {
    Egress::new(&open(&["127.0.0.0/8"])).unwrap()
}

pub fn get(url: &str) -> Call {
    Call {
        method: Method::GET,
        url: Url::parse(url).unwrap(),
        headers: HeaderMap::new(),
        body: Bytes::new(),
        timeout: Duration::from_secs(30),
        fresh: false,
    }
}

pub fn post(url: &str, body: impl Into<Bytes>) -> Call {
    Call { method: Method::POST, body: body.into(), ..get(url) }
}

/// A call with a short timeout, for peers that never answer.
pub fn brief(call: Call) -> Call {
    Call { timeout: Duration::from_millis(500), ..call }
}

pub async fn answered(egress: &Egress, call: Call) -> HttpAnswer {
    egress.send(call).await.unwrap()
}

pub async fn failed(egress: &Egress, call: Call) -> EgressFailure {
    let failure = egress.send(call).await.unwrap_err();
    assert!(!failure.detail.contains("hook") && !failure.detail.contains("s3cret"), "{failure:?}");
    failure
}
