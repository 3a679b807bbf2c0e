//! The fake mail server. It keeps the mails that it accepts and forwards none. It knows only as much of RFC 5321 as the
//! `smtp` driver needs.

use std::io;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use super::mail::Mail;
use super::{Fake, NO_MAILBOX, PUTS_OFF};
use crate::demo::chaos::Fate;

/// The longest command line, in bytes.
const LINE_BYTES: u64 = 4096;
/// The longest mail, in bytes.
const MAIL_BYTES: u64 = 1 << 20;

/// Serves one connection until the client quits.
pub async fn serve(stream: TcpStream, fake: &Fake) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    say(&mut stream, "220 mail.demo.invalid keeps every mail and sends none").await?;
    let mut recipients: Vec<String> = vec![];
    while let Some(line) = line(&mut stream).await? {
        let verb: String = line.chars().take_while(char::is_ascii_alphabetic).collect();
        match verb.to_ascii_uppercase().as_str() {
            "EHLO" => say(&mut stream, "250-mail.demo.invalid\r\n250-8BITMIME\r\n250 SIZE 1048576").await?,
            "HELO" | "NOOP" => say(&mut stream, "250 ok").await?,
            "MAIL" | "RSET" => {
                recipients.clear();
                say(&mut stream, "250 2.1.0 ok").await?;
            }
            "RCPT" => {
                let to = between(&line);
                if to.starts_with(NO_MAILBOX) {
                    fake.refused();
                    say(&mut stream, "550 5.1.1 there is no such mailbox here").await?;
                } else {
                    recipients.push(to);
                    say(&mut stream, "250 2.1.5 ok").await?;
                }
            }
            "DATA" if recipients.is_empty() => say(&mut stream, "503 5.5.1 name a recipient first").await?,
            "DATA" => {
                say(&mut stream, "354 end with a dot").await?;
                let Some(bytes) = content(&mut stream).await? else { return Ok(()) };
                let reply = take(fake, &recipients, &bytes).await;
                recipients.clear();
                say(&mut stream, reply).await?;
            }
            "QUIT" => return say(&mut stream, "221 2.0.0 bye").await,
            _ => say(&mut stream, "502 5.5.1 this demo does not know the command").await?,
        }
    }
    Ok(())
}

/// Decides about a mail, and keeps it if it is accepted. Returns the reply.
async fn take(fake: &Fake, recipients: &[String], bytes: &[u8]) -> &'static str {
    let fate = fake.meet().await;
    let mail = Mail::read(bytes);
    if recipients.iter().any(|to| to.starts_with(PUTS_OFF)) && fake.puts_off(&mail.id) {
        return "451 4.7.1 greylisted: this server does not know you yet, try again soon";
    }
    match fate {
        Fate::Taken => {
            recipients.iter().for_each(|to| fake.keep(to.as_str(), mail.subject.as_str(), &mail.text));
            "250 2.0.0 kept"
        }
        Fate::Failed => "451 4.3.0 the demo's mail server fails on purpose, try again later",
        Fate::Limited => "450 4.7.1 too many mails, try again later",
    }
}

/// Reads the next line, without its line end. `None` if the client disconnected or the line is too long.
async fn line(stream: &mut BufReader<TcpStream>) -> io::Result<Option<String>> {
    let mut bytes = vec![];
    stream.take(LINE_BYTES).read_until(b'\n', &mut bytes).await?;
    let whole = bytes.strip_suffix(b"\n");
    Ok(whole.map(|line| String::from_utf8_lossy(line).trim_end().to_owned()))
}

/// Reads a mail up to the line with a single dot, and removes the dots that the client added before others. `None` if
/// the client disconnected or the mail is too large.
async fn content(stream: &mut BufReader<TcpStream>) -> io::Result<Option<Vec<u8>>> {
    let (mut mail, mut left) = (vec![], MAIL_BYTES);
    loop {
        let mut bytes = vec![];
        let read = stream.take(left).read_until(b'\n', &mut bytes).await?;
        left = left.saturating_sub(read as u64);
        if !bytes.ends_with(b"\n") {
            return Ok(None);
        }
        if bytes == b".\r\n" {
            return Ok(Some(mail));
        }
        mail.extend_from_slice(bytes.strip_prefix(b".").unwrap_or(&bytes));
    }
}

async fn say(stream: &mut BufReader<TcpStream>, reply: &str) -> io::Result<()> {
    stream.get_mut().write_all(format!("{reply}\r\n").as_bytes()).await
}

/// Returns the address between angle brackets.
fn between(line: &str) -> String {
    line.split_once('<')
        .and_then(|(_, rest)| rest.split_once('>'))
        .map(|(address, _)| address.to_owned())
        .unwrap_or_default()
}
