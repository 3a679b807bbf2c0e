//! A scripted SMTP server on loopback. It speaks SMTP by itself, and at any step it can do what its script says instead.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use crate::background::Background;

/// A line that a client sent, or an event of its connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heard {
    /// The number of the connection, starting at 1.
    pub connection: usize,
    /// The line without its line ending, or an event: `connect` when the connection was opened, `.` when the content of
    /// a message has ended, `amid` when its first line has arrived under [`SmtpAct::HoldAmid`].
    pub line: String,
    /// The bytes of the line with its line ending, exactly as they came. Empty for `connect`, `.` and `amid`.
    pub raw: Vec<u8>,
    /// How many lines with the same first word the server has heard before, on all connections.
    pub before: usize,
}

impl Heard {
    /// The first word in capitals, such as `MAIL`, `CONNECT` or `.`.
    pub fn verb(&self) -> String {
        self.line.split([' ', ':']).next().unwrap_or_default().to_ascii_uppercase()
    }
}

/// What the server does at a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SmtpAct {
    /// Answers as a correct server does.
    Usual,
    /// Sends these lines instead, each with CR LF added.
    Say(String),
    /// Sends exactly these bytes instead.
    SayRaw(Vec<u8>),
    /// Sends these lines, then closes the connection.
    SayAndClose(String),
    /// Closes the connection without an answer.
    Close,
    /// Sends nothing until [`SmtpServer::release`], then answers as a correct server does.
    Hold,
    /// For DATA: takes the first line of the content and no more, waits until [`SmtpServer::release`], and closes the
    /// connection.
    HoldAmid,
}

impl SmtpAct {
    /// Returns whether the server answers as a correct server does, immediately or later.
    fn is_usual(&self) -> bool {
        matches!(self, Self::Usual | Self::Hold | Self::HoldAmid)
    }
}

/// A mail that the server has accepted with 250.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedMail {
    /// The argument of MAIL, such as `FROM:<a@example.com> SIZE=300`.
    pub sender: String,
    /// The arguments of RCPT.
    pub recipients: Vec<String>,
    /// The bytes between DATA's answer and the final dot, exactly as they came.
    pub wire: Vec<u8>,
    /// Whether the connection was encrypted.
    pub is_encrypted: bool,
    /// The user and the password of the sign-in, as `AUTH PLAIN` sent them.
    pub credentials: Option<String>,
}

impl ReceivedMail {
    /// Returns the mail with the dot-stuffing removed.
    pub fn bytes(&self) -> Vec<u8> {
        let text = String::from_utf8_lossy(&self.wire).into_owned();
        let lines = text.split_inclusive("\r\n");
        lines.map(|line| line.strip_prefix('.').unwrap_or(line)).collect::<String>().into_bytes()
    }
}

type Script = dyn Fn(&Heard) -> SmtpAct + Send + Sync;

/// How the server encrypts its connections.
#[derive(Clone)]
pub enum SmtpTls {
    /// Without encryption.
    None,
    /// Encrypted after STARTTLS, which the server offers.
    Starttls(TlsAcceptor),
    /// Encrypted from the first byte.
    Implicit(TlsAcceptor),
}

/// A server that records what it hears and the mails that it accepts.
pub struct SmtpServer {
    addr: SocketAddr,
    state: Arc<State>,
    background: Background,
}

struct State {
    script: Box<Script>,
    extensions: Vec<String>,
    tls: SmtpTls,
    heard: Mutex<Vec<Heard>>,
    mails: Mutex<Vec<ReceivedMail>>,
    contents: Mutex<Vec<Vec<u8>>>,
    accepted: watch::Sender<usize>,
    told: watch::Sender<usize>,
    released: watch::Sender<bool>,
}

impl SmtpServer {
    /// Starts a server on a free port of 127.0.0.1. `extensions` are the lines of its answer to EHLO.
    pub fn start(
        tls: SmtpTls,
        extensions: &[&str],
        script: impl Fn(&Heard) -> SmtpAct + Send + Sync + 'static,
    ) -> Self {
        let background = Background::start();
        let (listener, addr) = background.listen((Ipv4Addr::LOCALHOST, 0).into());
        let state = Arc::new(State {
            script: Box::new(script),
            extensions: extensions.iter().map(|line| (*line).to_owned()).collect(),
            tls,
            heard: Mutex::default(),
            mails: Mutex::default(),
            contents: Mutex::default(),
            accepted: watch::Sender::new(0),
            told: watch::Sender::new(0),
            released: watch::Sender::new(false),
        });
        background.handle().spawn(accept(listener, state.clone()));
        Self { addr, state, background }
    }

    /// The address that the server listens on.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns the mails that were accepted so far.
    pub fn mails(&self) -> Vec<ReceivedMail> {
        self.state.mails.lock().expect("mails").clone()
    }

    /// Returns the contents of all mails so far, accepted or not: the bytes before the final dot, as they came.
    pub fn contents(&self) -> Vec<Vec<u8>> {
        self.state.contents.lock().expect("contents").clone()
    }

    /// Returns everything that clients have sent so far.
    pub fn heard(&self) -> Vec<Heard> {
        self.state.heard.lock().expect("heard").clone()
    }

    /// Returns how many lines with this first word the server has heard.
    pub fn count(&self, verb: &str) -> usize {
        self.heard().iter().filter(|heard| heard.verb() == verb).count()
    }

    /// Waits until `n` mails are accepted.
    ///
    /// # Panics
    /// After [`GUARD`](crate::GUARD). The message shows what was heard.
    pub async fn wait_for(&self, n: usize) -> Vec<ReceivedMail> {
        let mut accepted = self.state.accepted.subscribe();
        let enough = async move {
            // This cannot fail, because the sender belongs to the server, which is borrowed here.
            let _ = accepted.wait_for(|count| *count >= n).await;
        };
        if self.background.guarded(enough).await.is_none() {
            panic!("waited for {n} mails, got {}: {:#?}", self.mails().len(), self.heard());
        }
        self.mails()
    }

    /// Waits until the server has heard `n` lines with this first word.
    ///
    /// # Panics
    /// After [`GUARD`](crate::GUARD). The message shows what was heard.
    pub async fn wait_until_heard(&self, verb: &str, n: usize) {
        let (mut told, state, wanted) = (self.state.told.subscribe(), self.state.clone(), verb.to_owned());
        let enough = async move {
            let count = || state.heard.lock().expect("heard").iter().filter(|heard| heard.verb() == wanted).count();
            let _ = told.wait_for(|_| count() >= n).await;
        };
        if self.background.guarded(enough).await.is_none() {
            panic!("waited to hear {verb} {n} times, heard {:#?}", self.heard());
        }
    }

    /// Ends every [`SmtpAct::Hold`], also later ones.
    pub fn release(&self) {
        self.state.released.send_replace(true);
    }
}

impl State {
    fn act(&self, connection: usize, line: &str, raw: &[u8]) -> SmtpAct {
        let mut heard = self.heard.lock().expect("heard");
        let mut now = Heard { connection, line: line.to_owned(), raw: raw.to_vec(), before: 0 };
        now.before = heard.iter().filter(|earlier| earlier.verb() == now.verb()).count();
        heard.push(now.clone());
        drop(heard);
        let act = (self.script)(&now);
        self.told.send_modify(|told| *told += 1);
        act
    }
}

async fn accept(listener: TcpListener, state: Arc<State>) {
    for connection in 1.. {
        let Ok((socket, _)) = listener.accept().await else { continue };
        let state = state.clone();
        tokio::spawn(async move {
            // Errors are ignored, because many tests close the connection early.
            let _ = serve(socket, connection, &state).await;
        });
    }
}

async fn serve(socket: TcpStream, connection: usize, state: &State) -> io::Result<()> {
    socket.set_nodelay(true)?;
    match &state.tls {
        SmtpTls::Implicit(acceptor) => {
            let stream = BufReader::new(acceptor.accept(socket).await?);
            converse(stream, connection, state, (true, true)).await.map(drop)
        }
        SmtpTls::None => converse(BufReader::new(socket), connection, state, (true, false)).await.map(drop),
        SmtpTls::Starttls(acceptor) => {
            match converse(BufReader::new(socket), connection, state, (true, false)).await? {
                Some(plain) => {
                    let stream = BufReader::new(acceptor.accept(plain.into_inner()).await?);
                    converse(stream, connection, state, (false, true)).await.map(drop)
                }
                None => Ok(()),
            }
        }
    }
}

/// Answers one connection. Returns the stream when the client asks for STARTTLS.
async fn converse<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: BufReader<S>,
    connection: usize,
    state: &State,
    (greets, is_encrypted): (bool, bool),
) -> io::Result<Option<BufReader<S>>> {
    let mut mail =
        ReceivedMail { sender: String::new(), recipients: vec![], wire: vec![], is_encrypted, credentials: None };
    if greets && !say(&mut stream, state, state.act(connection, "connect", b""), "220 test.example ESMTP").await? {
        return Ok(None);
    }
    loop {
        let Some(raw) = line(&mut stream).await? else { return Ok(None) };
        let line = String::from_utf8_lossy(&raw).trim_end_matches(['\r', '\n']).to_owned();
        let act = state.act(connection, &line, &raw);
        let (is_usual, holds_amid) = (act.is_usual(), act == SmtpAct::HoldAmid);
        let usual = usual(state, &mut mail, &Heard { connection, line, raw, before: 0 }, is_usual);
        if !say(&mut stream, state, act, &usual).await? || usual.starts_with("221") {
            return Ok(None);
        }
        match usual.as_str() {
            "220 go ahead" if is_usual => return Ok(Some(stream)),
            "354 go ahead" if holds_amid => {
                // The content of this line is not needed.
                let _ = self::line(&mut stream).await?;
                state.act(connection, "amid", b"");
                wait_for_release(state).await;
                return Ok(None);
            }
            "354 go ahead" if is_usual && !receive(&mut stream, connection, state, &mut mail).await? => {
                return Ok(None);
            }
            _ => {}
        }
    }
}

/// Returns the answer of a correct server. Records the command in `mail`, unless the script refuses it (`is_usual` is
/// false).
fn usual(state: &State, mail: &mut ReceivedMail, heard: &Heard, is_usual: bool) -> String {
    let argument = heard.line.split_once(' ').map_or("", |(_, argument)| argument).to_owned();
    match heard.verb().as_str() {
        "EHLO" => return ehlo(state, mail.is_encrypted),
        "STARTTLS" => "220 go ahead",
        "AUTH" if is_usual => {
            mail.credentials = Some(argument);
            "235 2.7.0 welcome"
        }
        "MAIL" if is_usual => {
            (mail.sender, mail.recipients) = (argument, vec![]);
            "250 2.1.0 sender ok"
        }
        "RCPT" if is_usual => {
            mail.recipients.push(argument);
            "250 2.1.5 recipient ok"
        }
        "DATA" => "354 go ahead",
        "QUIT" => "221 bye",
        _ => "250 ok",
    }
    .to_owned()
}

/// Receives the content of a mail and answers. Returns whether the dialogue goes on.
async fn receive<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut BufReader<S>,
    connection: usize,
    state: &State,
    mail: &mut ReceivedMail,
) -> io::Result<bool> {
    mail.wire = content(stream).await?;
    state.contents.lock().expect("contents").push(mail.wire.clone());
    let act = state.act(connection, ".", b"");
    if !act.is_usual() {
        return say(stream, state, act, "").await;
    }
    if act == SmtpAct::Hold {
        wait_for_release(state).await;
    }
    let count = {
        let mut mails = state.mails.lock().expect("mails");
        mails.push(mail.clone());
        mails.len()
    };
    let goes_on = say(stream, state, SmtpAct::Usual, &format!("250 2.0.0 queued as T{count}")).await;
    state.accepted.send_replace(count);
    goes_on
}

fn ehlo(state: &State, is_encrypted: bool) -> String {
    let mut lines = vec!["test.example".to_owned()];
    lines.extend(state.extensions.iter().cloned());
    if matches!(state.tls, SmtpTls::Starttls(_)) && !is_encrypted {
        lines.push("STARTTLS".into());
    }
    let last = lines.len() - 1;
    let line = |(place, line): (usize, &String)| format!("250{}{line}", if place == last { ' ' } else { '-' });
    lines.iter().enumerate().map(line).collect::<Vec<_>>().join("\r\n")
}

/// Does what the script says. Returns whether the dialogue goes on.
async fn say<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut BufReader<S>,
    state: &State,
    act: SmtpAct,
    usual: &str,
) -> io::Result<bool> {
    let (bytes, goes_on) = match act {
        SmtpAct::Usual | SmtpAct::HoldAmid => (format!("{usual}\r\n").into_bytes(), true),
        SmtpAct::Say(lines) => (format!("{lines}\r\n").into_bytes(), true),
        SmtpAct::SayRaw(bytes) => (bytes, true),
        SmtpAct::SayAndClose(lines) => (format!("{lines}\r\n").into_bytes(), false),
        SmtpAct::Close => (vec![], false),
        SmtpAct::Hold => {
            wait_for_release(state).await;
            (format!("{usual}\r\n").into_bytes(), true)
        }
    };
    stream.get_mut().write_all(&bytes).await?;
    stream.get_mut().flush().await?;
    Ok(goes_on)
}

async fn wait_for_release(state: &State) {
    let mut released = state.released.subscribe();
    // This cannot fail, because the sender belongs to `state`.
    let _ = released.wait_for(|released| *released).await;
}

/// Returns the next line with its line ending. `None` when the client has closed the connection.
async fn line<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut BufReader<S>) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    Ok((stream.read_until(b'\n', &mut line).await? > 0).then_some(line))
}

/// Reads the content of a message up to the line with a single dot. Like the most lenient servers, it accepts a LF
/// alone as the end of a line. So a test sees whether a message can be split in two (SMTP smuggling).
async fn content<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut BufReader<S>) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    loop {
        let mut line = Vec::new();
        if stream.read_until(b'\n', &mut line).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if matches!(&line[..], b".\r\n" | b".\n") {
            return Ok(all);
        }
        all.extend(line);
    }
}
