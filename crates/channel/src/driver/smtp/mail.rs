//! Builds the bytes of a mail. They are the same on every attempt: the time is that of the notification, and the
//! Message-ID and the boundary of the parts come from the key of the delivery.

use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use lettre::Address;
use lettre::message::header::{HeaderName, HeaderValue};
use lettre::message::{Mailbox, MultiPart, MultiPartKind, SinglePart};
use postcommit::check;
use url::Host;

use crate::driver::Message;
use crate::render::Content;

/// The longest subject that is made from the first line of the text, in characters.
const SUBJECT_CHARS: usize = 78;

/// The longest name beside an address, in characters. A quoted name is one word, so it cannot be folded.
const NAME_CHARS: usize = 255;

/// The maximum number of bytes of text in one encoded word (RFC 2047). After its encoding, a word has at most 75
/// characters.
const ENCODED_BYTES: usize = 36;

/// The longest word of a subject, in bytes. A header is folded between words, and a line of a mail has at most 998.
const WORD_BYTES: usize = 900;

/// A mail as it is sent: the addresses of the envelope and the bytes.
#[derive(Debug)]
pub(in crate::driver) struct Mail {
    pub(in crate::driver) sender: String,
    pub(in crate::driver) recipient: String,
    /// The message with CR LF at the end of each line. Dots are not doubled yet.
    pub(in crate::driver) bytes: Vec<u8>,
}

/// The sender of all mails of a provider.
#[derive(Debug, Clone)]
pub(in crate::driver) struct Sender {
    /// The address in the header `From`.
    pub(in crate::driver) from: Mailbox,
    /// The address in the header `Reply-To`.
    pub(in crate::driver) reply_to: Option<Mailbox>,
    /// The sender of the envelope, which gets the reports of failed deliveries.
    pub(in crate::driver) envelope: String,
    /// The domain of the Message-ID.
    pub(in crate::driver) domain: String,
}

/// The reason why no mail can be made: a code and a sentence.
pub(in crate::driver) type Refusal = (&'static str, String);

/// Parses a mail address with an optional name, such as `Hotel Sonne <desk@hotel.example>`.
pub(in crate::driver) fn mailbox(text: &str) -> Result<Mailbox, String> {
    const SHAPE: &str = "must be a mail address such as desk@hotel.example or Hotel Sonne <desk@hotel.example>";
    no_controls(text)?;
    let (name, address) = match text.trim().strip_suffix('>').and_then(|text| text.split_once('<')) {
        Some((name, address)) => (Some(name.trim().trim_matches('"').trim()), address.trim()),
        None => (None, text.trim()),
    };
    let address = address_of(address).map_err(|_| SHAPE.to_owned())?;
    let name = name.filter(|name| !name.is_empty()).map(str::to_owned);
    if let Some(chars) = name.as_deref().map(|name| name.chars().count()).filter(|chars| *chars > NAME_CHARS) {
        return Err(format!("has a name of {chars} characters; at most {NAME_CHARS} are allowed"));
    }
    Ok(Mailbox::new(name, address))
}

/// Refuses ASCII control characters, because mail programs treat them in different ways.
pub(super) fn no_controls(text: &str) -> Result<(), String> {
    match text.chars().find(char::is_ascii_control) {
        Some(c) => Err(format!("holds {c:?}; line breaks and control characters are not allowed")),
        None => Ok(()),
    }
}

/// Checks a mail address and writes its domain in ASCII.
fn address_of(text: &str) -> Result<Address, String> {
    check::email(text)?;
    let (local, domain) = text.rsplit_once('@').unwrap_or_default();
    let Ok(Host::Domain(domain)) = Host::parse(domain) else {
        return Err("is not a mail address: the part after '@' is no domain".into());
    };
    Address::new(local, domain).map_err(|problem| format!("is not a mail address: {problem}"))
}

/// Builds the mail of a delivery.
pub(in crate::driver) fn build(sender: &Sender, message: &Message<'_>) -> Result<Mail, Refusal> {
    let recipient = address_of(message.target).map_err(|problem| ("bad_address", format!("the address {problem}")))?;
    let id = message.key.provider_key();
    let bad_header = |problem: String| ("bad_header", problem);
    let subject = subject_header(&message.content).map_err(|problem| bad_header(format!("the subject {problem}")))?;
    let micros = u64::try_from(message.raw_event.created_at.as_micros()).unwrap_or(0);
    let mut builder = lettre::Message::builder()
        .from(sender.from.clone())
        .to(Mailbox::new(None, recipient.clone()))
        .raw_header(subject)
        .date(SystemTime::UNIX_EPOCH + Duration::from_micros(micros))
        .message_id(Some(format!("<{id}@{}>", sender.domain)))
        .raw_header(HeaderValue::new(HeaderName::new_from_ascii_str("Auto-Submitted"), "auto-generated".into()));
    if let Some(reply_to) = &sender.reply_to {
        builder = builder.reply_to(reply_to.clone());
    }
    for (name, value) in message.content.mail_headers() {
        plain_value(&value).map_err(|problem| bad_header(format!("the header {name} {problem}")))?;
        builder = builder.raw_header(HeaderValue::new(HeaderName::new_from_ascii_str(name), value));
    }
    let text = text(&message.content);
    let built = match &message.content.html {
        None => builder.singlepart(SinglePart::plain(text)),
        Some(html) => builder.multipart(
            MultiPart::builder()
                .kind(MultiPartKind::Alternative)
                .boundary(format!("postcommit-{id}"))
                .singlepart(SinglePart::plain(text))
                .singlepart(SinglePart::html(with_crlf(html))),
        ),
    };
    let built = built.map_err(|problem| ("bad_header", format!("the mail cannot be made: {problem}")))?;
    Ok(Mail { sender: sender.envelope.clone(), recipient: recipient.to_string(), bytes: built.formatted() })
}

fn subject_header(content: &Content) -> Result<HeaderValue, String> {
    // A tab would be refused as a control character, so it becomes a space.
    let subject = subject(content).replace('\t', " ");
    no_controls(&subject)?;
    let subject = subject.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some(bytes) = subject.split_whitespace().map(str::len).find(|bytes| *bytes > WORD_BYTES) {
        return Err(format!("has a word of {bytes} bytes; at most {WORD_BYTES} are allowed"));
    }
    let name = HeaderName::new_from_ascii_str("Subject");
    match subject.contains("=?") {
        // A mail program would decode `=?` in the application's text as an encoded word, so the whole subject is
        // encoded.
        true => Ok(HeaderValue::dangerous_new_pre_encoded(name, subject.clone(), encoded_words(&subject))),
        false => Ok(HeaderValue::new(name, subject)),
    }
}

/// A text as encoded words (RFC 2047), one in each line. The words contain only the characters of base64.
fn encoded_words(text: &str) -> String {
    let mut words = vec![String::new()];
    for c in text.chars() {
        match words.last_mut() {
            Some(word) if word.len() + c.len_utf8() <= ENCODED_BYTES => word.push(c),
            _ => words.push(c.into()),
        }
    }
    let encoded = words.iter().map(|word| format!("=?utf-8?b?{}?=", STANDARD.encode(word)));
    encoded.collect::<Vec<_>>().join("\r\n ")
}

/// Checks a header that is written as it is: a URL in angle brackets, or a word.
fn plain_value(value: &str) -> Result<(), String> {
    let inner = value.strip_prefix('<').and_then(|url| url.strip_suffix('>')).unwrap_or(value);
    if inner.len() > WORD_BYTES {
        return Err(format!("has {} bytes; at most {WORD_BYTES} are allowed", inner.len()));
    }
    match inner.chars().find(|c| !c.is_ascii_graphic() || matches!(c, '<' | '>')) {
        Some(c) => {
            Err(format!("holds {c:?}; letters, digits and signs of ASCII without spaces, '<' and '>' are allowed"))
        }
        None => Ok(()),
    }
}

/// The subject, or the first line of the text if there is no subject.
fn subject(content: &Content) -> String {
    let first_line = || {
        let line = content.text.as_deref()?.lines().map(str::trim).find(|line| !line.is_empty())?;
        Some(line.chars().filter(|c| !c.is_control()).take(SUBJECT_CHARS).collect())
    };
    content.subject.clone().filter(|subject| !subject.trim().is_empty()).or_else(first_line).unwrap_or_default()
}

/// The plain text of the mail. The link of a message without HTML follows the text, unless the text contains it.
fn text(content: &Content) -> String {
    let text = content.text.as_deref().unwrap_or_default();
    let link = content.action_url.as_deref().filter(|url| content.html.is_none() && !text.contains(*url));
    match link {
        Some(url) => with_crlf(&format!("{}\n\n{url}\n", text.trim_end())),
        None => with_crlf(text),
    }
}

/// Ends every line with CR LF, even a line that ended with a CR or LF alone. Servers disagree about such lines, which
/// has allowed attackers to hide a second mail in a mail. NUL is left out, because no mail may contain it.
fn with_crlf(text: &str) -> String {
    text.replace('\0', "").replace("\r\n", "\n").replace('\r', "\n").replace('\n', "\r\n")
}

/// The bytes of the mail as they are written after DATA, without the final dot: a dot at the beginning of a line is
/// doubled, every line ends with CR LF, and there is no CR or LF alone.
pub(in crate::driver) fn dot_stuffed(bytes: &[u8]) -> Vec<u8> {
    let mut wire = Vec::with_capacity(bytes.len() + bytes.len() / 64 + 2);
    let mut rest = bytes;
    while !rest.is_empty() {
        let end = rest.iter().position(|byte| matches!(byte, b'\r' | b'\n')).unwrap_or(rest.len());
        let (line, tail) = rest.split_at(end);
        if line.first() == Some(&b'.') {
            wire.push(b'.');
        }
        wire.extend_from_slice(line);
        wire.extend_from_slice(b"\r\n");
        rest = tail.strip_prefix(b"\r\n").or_else(|| tail.get(1..)).unwrap_or_default();
    }
    wire
}
