//! The SMTP dialogue over one connection (RFC 5321): greeting, EHLO, STARTTLS, sign-in, then one message after the
//! other.
//!
//! Each message has one recipient, so that each outcome belongs to one delivery. The step that failed decides the
//! outcome. Before the first byte of the final dot was written, the server has not taken the message. After that, only
//! the server's answer tells.

use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::mail::{Mail, dot_stuffed};
use super::reply::{Reply, ReplyReader, Step};
use super::{Account, Encryption, SignIn};
use crate::clock;
use crate::driver::idle::Reusable;
use crate::egress::{Deadline, DialledStream, Egress, EgressFailure, Tls};

/// How long the server may take for its answer after the final dot. RFC 5321 asks for ten minutes: a client that gives
/// up earlier sends a mail again that the server has taken.
pub(super) const ANSWER_AFTER_DOT: Duration = Duration::from_secs(600);
/// The maximum number of messages over one connection. Many servers refuse more than 100.
const MESSAGES: u32 = 100;
/// How long to wait for a reply after a write has failed. The reply has usually arrived already.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// The maximum number of bytes of a mail that are written in one call.
const CHUNK: usize = 16 * 1024;

/// The failure of a dialogue.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) step: Step,
    pub(super) cause: Cause,
}

/// The cause of a failure.
#[derive(Debug)]
pub(super) enum Cause {
    /// No connection could be opened.
    NotConnected(EgressFailure),
    /// The server refused the step.
    Refused(Reply),
    /// The connection broke, was silent for too long, or carried something that is not SMTP.
    Broken { code: &'static str, detail: String },
    /// The server lacks something that our settings or this message need.
    Lacking { code: &'static str, detail: String },
}

/// The extensions that the server offers in its answer to EHLO.
#[derive(Debug, Default)]
struct Extensions {
    starttls: bool,
    smtputf8: bool,
    /// The largest message in bytes. `None` if the server does not say, 0 if it has no limit.
    size: Option<u64>,
    is_size_known: bool,
    mechanisms: Vec<String>,
}

/// A dialogue that is ready for the next message.
pub(super) struct Dialogue {
    stream: DialledStream,
    buffer: Vec<u8>,
    extensions: Extensions,
    opened: Instant,
    messages: u32,
    is_used: bool,
}

impl Dialogue {
    /// Connects, encrypts the connection as the settings ask, and signs in.
    pub(super) async fn open(account: &Account, egress: &Egress, deadline: Deadline) -> Result<Self, Failed> {
        let tls = if account.encryption == Encryption::Implicit { Tls::Implicit(&[]) } else { Tls::None };
        let stream = egress.dial(&account.endpoint, tls, deadline).await.map_err(not_connected)?;
        let mut dialogue = Self {
            stream,
            buffer: vec![],
            extensions: Extensions::default(),
            opened: clock::monotonic(),
            messages: 0,
            is_used: false,
        };
        let greeting = dialogue.answer(Step::Greeting, deadline).await?;
        accepted(Step::Greeting, greeting, 220)?;
        dialogue.ehlo(account, deadline).await?;
        if matches!(account.encryption, Encryption::Starttls | Encryption::Opportunistic) {
            dialogue = dialogue.start_tls(account, deadline).await?;
        }
        if let Some(sign_in) = &account.sign_in {
            dialogue.sign_in(sign_in, deadline).await?;
        }
        Ok(dialogue)
    }

    /// Sends one message. The deadline is for all steps up to the final dot.
    pub(super) async fn send(&mut self, mail: &Mail, deadline: Deadline) -> Result<Reply, Failed> {
        if std::mem::replace(&mut self.is_used, true) {
            // RSET discards an earlier message that did not finish. It also shows whether the connection still works.
            let reply = self.command(Step::Reset, "RSET", deadline).await?;
            accepted(Step::Reset, reply, 250)?;
        }
        self.messages += 1;
        let wire = dot_stuffed(&mail.bytes);
        let parameters = self.parameters(mail, wire.len())?;
        let reply = self.command(Step::MailFrom, &format!("MAIL FROM:<{}>{parameters}", mail.sender), deadline).await?;
        accepted(Step::MailFrom, reply, 250)?;
        let reply = self.command(Step::RcptTo, &format!("RCPT TO:<{}>", mail.recipient), deadline).await?;
        accepted(Step::RcptTo, reply, 250)?;
        let reply = self.command(Step::Data, "DATA", deadline).await?;
        accepted(Step::Data, reply, 354)?;
        for chunk in wire.chunks(CHUNK) {
            if let Err(failed) = self.write(Step::Content, chunk, deadline).await {
                return Err(self.refused_meanwhile(failed).await);
            }
        }
        self.finish().await
    }

    /// Writes the final dot. From its first byte on the server may have taken the message, whatever happens.
    async fn finish(&mut self) -> Result<Reply, Failed> {
        let deadline = Deadline::after(ANSWER_AFTER_DOT);
        let counter = self.stream.counter();
        counter.begin();
        if let Err(failed) = self.write(Step::Accepted, b".\r\n", deadline).await {
            // No further byte may be sent, because the number of written bytes decides the outcome.
            return Err(match counter.close() {
                0 => self.refused_meanwhile(Failed { step: Step::Content, ..failed }).await,
                _ => failed,
            });
        }
        let reply = self.answer(Step::Accepted, deadline).await?;
        accepted(Step::Accepted, reply, 250)
    }

    /// Returns the failure of a connection that broke before the final dot. If the server sent a refusal before it
    /// closed the connection, such as for a message that is too large, that refusal is the failure.
    async fn refused_meanwhile(&mut self, failed: Failed) -> Failed {
        match self.answer(Step::Content, Deadline::after(LAST_WORDS)).await {
            Ok(reply) if reply.code >= 400 => Failed { step: Step::Content, cause: Cause::Refused(reply) },
            _ => failed,
        }
    }

    async fn ehlo(&mut self, account: &Account, deadline: Deadline) -> Result<(), Failed> {
        let reply = self.command(Step::Ehlo, &format!("EHLO {}", account.ehlo_name), deadline).await?;
        let reply = accepted(Step::Ehlo, reply, 250)?;
        // An attacker may have changed the extensions that were offered before TLS, so each EHLO replaces them.
        self.extensions = Extensions::default();
        for line in reply.lines.iter().skip(1) {
            let mut words = line.split_ascii_whitespace();
            match words.next().unwrap_or_default().to_ascii_uppercase().as_str() {
                "STARTTLS" => self.extensions.starttls = true,
                "SMTPUTF8" => self.extensions.smtputf8 = true,
                "SIZE" => {
                    self.extensions.is_size_known = true;
                    self.extensions.size = words.next().and_then(|size| size.parse().ok());
                }
                "AUTH" => self.extensions.mechanisms.extend(words.map(str::to_ascii_uppercase)),
                _ => {}
            }
        }
        Ok(())
    }

    async fn start_tls(mut self, account: &Account, deadline: Deadline) -> Result<Self, Failed> {
        if !self.extensions.starttls {
            return match account.encryption {
                Encryption::Opportunistic => Ok(self),
                _ => Err(lacking(
                    Step::StartTls,
                    "starttls_missing",
                    "the server does not offer STARTTLS; check settings.port and settings.tls".into(),
                )),
            };
        }
        let reply = self.command(Step::StartTls, "STARTTLS", deadline).await?;
        accepted(Step::StartTls, reply, 220)?;
        // Bytes that arrived with the answer were not encrypted. An attacker may have added them.
        if !self.buffer.is_empty() {
            let detail = "the server sent bytes after its answer to STARTTLS, before the encryption began";
            return Err(broken(Step::StartTls, "bad_answer", detail.into()));
        }
        let Self { stream, buffer, extensions, opened, messages, is_used } = self;
        let stream = stream.start_tls(deadline).await.map_err(not_connected)?;
        let mut encrypted = Self { stream, buffer, extensions, opened, messages, is_used };
        encrypted.ehlo(account, deadline).await?;
        Ok(encrypted)
    }

    async fn sign_in(&mut self, sign_in: &SignIn, deadline: Deadline) -> Result<(), Failed> {
        if !self.stream.is_encrypted() {
            let detail = "the connection is not encrypted, so the password was not sent; set settings.tls to starttls \
                          or implicit";
            return Err(lacking(Step::Auth, "auth_needs_tls", detail.into()));
        }
        let mechanism = sign_in.mechanism(&self.extensions.mechanisms).ok_or_else(|| {
            let offered = self.extensions.mechanisms.join(", ");
            let detail = format!("the server offers no sign-in that the settings allow; it offers: {offered}");
            lacking(Step::Auth, "auth_missing", detail)
        })?;
        let mut reply = match mechanism {
            "LOGIN" => {
                let asked = self.command(Step::Auth, "AUTH LOGIN", deadline).await?;
                let asked = accepted(Step::Auth, asked, 334).map(|_| STANDARD.encode(&sign_in.username))?;
                let asked = self.command(Step::Auth, &asked, deadline).await?;
                let answer = accepted(Step::Auth, asked, 334).map(|_| sign_in.login())?;
                self.command(Step::Auth, &answer, deadline).await?
            }
            "XOAUTH2" => self.command(Step::Auth, &format!("AUTH XOAUTH2 {}", sign_in.xoauth2()), deadline).await?,
            _ => self.command(Step::Auth, &format!("AUTH PLAIN {}", sign_in.plain()), deadline).await?,
        };
        if reply.code == 334 && mechanism == "XOAUTH2" {
            // The server has explained its refusal. It sends the refusal itself after an empty line.
            reply = self.command(Step::Auth, "", deadline).await?;
        }
        accepted(Step::Auth, reply, 235).map(drop)
    }

    /// The parameters of the command MAIL. Refuses a mail that this server cannot take.
    fn parameters(&self, mail: &Mail, bytes: usize) -> Result<String, Failed> {
        let mut parameters = String::new();
        if let Some(limit) = self.extensions.size.filter(|limit| *limit > 0 && bytes as u64 > *limit) {
            let detail = format!("the message has {bytes} bytes; the server takes at most {limit}");
            return Err(lacking(Step::MailFrom, "too_large", detail));
        }
        if self.extensions.is_size_known {
            parameters.push_str(&format!(" SIZE={bytes}"));
        }
        if !mail.sender.is_ascii() || !mail.recipient.is_ascii() {
            if !self.extensions.smtputf8 {
                let detail = "the address has letters outside of ASCII, and the server does not offer SMTPUTF8";
                return Err(lacking(Step::RcptTo, "smtputf8_missing", detail.into()));
            }
            parameters.push_str(" SMTPUTF8");
        }
        Ok(parameters)
    }

    async fn command(&mut self, step: Step, line: &str, deadline: Deadline) -> Result<Reply, Failed> {
        // No value of ours contains a line end. If one did, the server would read two commands.
        if line.contains(['\r', '\n', '\0']) {
            return Err(broken(step, "bad_header", "a command would contain a line end".into()));
        }
        self.write(step, format!("{line}\r\n").as_bytes(), deadline).await?;
        self.answer(step, deadline).await
    }

    async fn write(&mut self, step: Step, bytes: &[u8], deadline: Deadline) -> Result<(), Failed> {
        let write = async {
            self.stream.write_all(bytes).await?;
            self.stream.flush().await
        };
        match tokio::time::timeout(deadline.left(), write).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(broken(step, "reset", format!("the connection broke: {error}"))),
            Err(_) => Err(broken(step, "timeout", "the server did not read in time".into())),
        }
    }

    async fn answer(&mut self, step: Step, deadline: Deadline) -> Result<Reply, Failed> {
        let mut reader = ReplyReader::default();
        loop {
            while let Some(line) = ReplyReader::take_line(&mut self.buffer).map_err(|text| bad_answer(step, text))? {
                if let Some(reply) = reader.add(&line).map_err(|text| bad_answer(step, text))? {
                    return Ok(reply);
                }
            }
            match tokio::time::timeout(deadline.left(), self.stream.read_buf(&mut self.buffer)).await {
                Ok(Ok(0)) => return Err(broken(step, "closed", "the server closed the connection".into())),
                Ok(Ok(_)) => {}
                Ok(Err(error)) => return Err(broken(step, "reset", format!("the connection broke: {error}"))),
                Err(_) => return Err(broken(step, "timeout", "the server did not answer in time".into())),
            }
        }
    }
}

impl Reusable for Dialogue {
    fn opened(&self) -> Instant {
        self.opened
    }

    fn is_spent(&self) -> bool {
        self.messages >= MESSAGES
    }

    async fn close(mut self) {
        let _ = self.command(Step::Reset, "QUIT", Deadline::after(Duration::from_secs(5))).await;
    }
}

impl Failed {
    /// Whether the next message may use the same connection.
    pub(super) fn leaves_connection(&self) -> bool {
        match &self.cause {
            // After a refusal during the content, the connection cannot be used again.
            Cause::Refused(reply) => reply.code != 421 && !matches!(self.step, Step::Reset | Step::Content),
            Cause::Lacking { .. } => matches!(self.step, Step::MailFrom | Step::RcptTo),
            Cause::NotConnected(_) | Cause::Broken { .. } => false,
        }
    }
}

/// Returns the reply if it has the expected code. If 250 is expected, any positive reply is accepted.
fn accepted(step: Step, reply: Reply, expected: u16) -> Result<Reply, Failed> {
    if reply.code == expected || (expected == 250 && reply.is_positive()) {
        return Ok(reply);
    }
    Err(Failed { step, cause: Cause::Refused(reply) })
}

fn not_connected(failure: EgressFailure) -> Failed {
    Failed { step: Step::Greeting, cause: Cause::NotConnected(failure) }
}

fn broken(step: Step, code: &'static str, detail: String) -> Failed {
    Failed { step, cause: Cause::Broken { code, detail } }
}

fn bad_answer(step: Step, detail: &str) -> Failed {
    broken(step, "bad_answer", detail.to_owned())
}

fn lacking(step: Step, code: &'static str, detail: String) -> Failed {
    Failed { step, cause: Cause::Lacking { code, detail } }
}

#[cfg(test)]
mod tests {
    use tokio::io::{DuplexStream, duplex};

    use super::*;

    /// A dialogue over a connection that takes this many bytes, and its other end.
    fn over(bytes: usize, is_tls: bool) -> (Dialogue, DuplexStream) {
        let (ours, theirs) = duplex(bytes);
        let dialogue = Dialogue {
            stream: DialledStream::over(ours, is_tls),
            buffer: vec![],
            extensions: Extensions::default(),
            opened: clock::monotonic(),
            messages: 0,
            is_used: false,
        };
        (dialogue, theirs)
    }

    /// A failed write over TLS does not tell how many bytes were sent, so with TLS the mail may have been sent.
    #[tokio::test]
    async fn a_final_dot_of_which_no_byte_was_written_has_sent_nothing() {
        for (is_tls, expected) in [(false, Step::Content), (true, Step::Accepted)] {
            let (mut dialogue, theirs) = over(100, is_tls);
            drop(theirs);
            assert_eq!(dialogue.finish().await.unwrap_err().step, expected, "{is_tls}");
        }
    }

    #[tokio::test]
    async fn a_final_dot_of_which_a_byte_was_written_may_have_sent_the_mail() {
        let (mut dialogue, theirs) = over(1, false);
        let failed = tokio::join!(dialogue.finish(), async {
            // The first byte has been sent when the server closes the connection.
            tokio::task::yield_now().await;
            drop(theirs);
        });
        assert_eq!(failed.0.unwrap_err().step, Step::Accepted);
    }

    #[tokio::test]
    async fn the_last_words_of_a_server_before_the_dot_are_read() {
        for (words, expected) in [("552 5.3.4 too big\r\n", Some(552)), ("250 hello\r\n", None), ("nonsense\r\n", None)]
        {
            let (mut dialogue, mut theirs) = over(100, false);
            theirs.write_all(words.as_bytes()).await.unwrap();
            drop(theirs);
            let failed = dialogue.finish().await.unwrap_err();
            let code = match &failed.cause {
                Cause::Refused(reply) => Some(reply.code),
                _ => None,
            };
            assert_eq!((failed.step, code), (Step::Content, expected), "{words}");
            assert!(!failed.leaves_connection());
        }
    }
}
