//! Reads the subject and the plain text of a mail, for the page of the demo. It understands the mails that the `smtp`
//! driver makes; the text of others is shown without decoding.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

pub struct Mail {
    /// The Message-ID, which is the same on every attempt.
    pub id: String,
    pub subject: String,
    pub text: String,
}

impl Mail {
    pub fn read(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let part = Part::read(&text);
        let header = |name| part.header(name).unwrap_or_default();
        Self { id: header("message-id"), subject: decoded(&header("subject")), text: part.plain() }
    }
}

/// A mail, or one part of a multipart mail.
struct Part<'a> {
    headers: Vec<(String, String)>,
    body: &'a str,
}

impl<'a> Part<'a> {
    fn read(text: &'a str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((text, ""));
        let mut headers: Vec<(String, String)> = vec![];
        for line in head.split("\r\n") {
            match (line.starts_with([' ', '\t']), headers.last_mut()) {
                (true, Some((_, value))) => {
                    value.push(' ');
                    value.push_str(line.trim());
                }
                _ => {
                    let (name, value) = line.split_once(':').unwrap_or((line, ""));
                    headers.push((name.trim().to_ascii_lowercase(), value.trim().to_owned()));
                }
            }
        }
        Self { headers, body }
    }

    fn header(&self, name: &str) -> Option<String> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
    }

    /// Returns the plain text. If no part is plain text, returns the text of the first part.
    fn plain(&self) -> String {
        let kind = self.header("content-type").unwrap_or_default();
        let boundary = kind.split_once("boundary=").map(|(_, rest)| rest.trim_matches('"').split(['"', ';']).next());
        let Some(Some(boundary)) = boundary else { return self.text() };
        let parts: Vec<Part<'_>> = self
            .body
            .split(&format!("--{boundary}"))
            .filter_map(|part| part.strip_prefix("\r\n"))
            .map(Part::read)
            .collect();
        let is_plain =
            |part: &&Part<'_>| part.header("content-type").is_some_and(|kind| kind.starts_with("text/plain"));
        parts.iter().find(is_plain).or(parts.first()).map(Part::plain).unwrap_or_default()
    }

    fn text(&self) -> String {
        match self.header("content-transfer-encoding").unwrap_or_default().to_ascii_lowercase().as_str() {
            "base64" => {
                let digits: String = self.body.chars().filter(|c| !c.is_whitespace()).collect();
                STANDARD.decode(digits).map_or_else(|_| self.body.to_owned(), |bytes| lossy(&bytes))
            }
            "quoted-printable" => lossy(&unquoted(&self.body.replace("=\r\n", ""))),
            _ => self.body.to_owned(),
        }
    }
}

/// Decodes the encoded words (RFC 2047) of a header.
fn decoded(header: &str) -> String {
    let words = header.split(' ').map(|word| {
        let inner = word.strip_prefix("=?").and_then(|word| word.strip_suffix("?="));
        let parts: Vec<&str> = inner.map(|inner| inner.splitn(3, '?').collect()).unwrap_or_default();
        let text = match parts[..] {
            [_, "b" | "B", text] => STANDARD.decode(text).ok().map(|bytes| lossy(&bytes)),
            [_, "q" | "Q", text] => Some(lossy(&unquoted(&text.replace('_', " ")))),
            _ => None,
        };
        (text.is_some(), text.unwrap_or_else(|| word.to_owned()))
    });
    let mut said = (false, String::new());
    for (is_encoded, word) in words {
        // RFC 2047: white space between two encoded words is not part of the text.
        let belongs_together = said.0 && is_encoded;
        if !said.1.is_empty() && !belongs_together {
            said.1.push(' ');
        }
        said.1.push_str(&word);
        said.0 = is_encoded;
    }
    said.1
}

fn unquoted(text: &str) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let Some((byte, tail)) = rest.split_first() {
        let hex = tail.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        let code = hex.filter(|_| *byte == b'=').and_then(|hex| u8::from_str_radix(hex, 16).ok());
        bytes.push(code.unwrap_or(*byte));
        rest = if code.is_some() { &tail[2..] } else { tail };
    }
    bytes
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mail_of_two_parts_shows_its_plain_text() {
        let mail = "Message-ID: <1@x>\r\nSubject: =?utf-8?b?R3LDvMOfZQ==?= from\r\n =?utf-8?q?M=C3=BC?= =?utf-8?q?nchen?=\r\n\
            Content-Type: multipart/alternative;\r\n boundary=\"b-1\"\r\n\r\n\
            --b-1\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n\
            Dear =C3=84da, a long =\r\nline = 1\r\n--b-1\r\nContent-Type: text/html\r\n\r\n<p>Hi</p>\r\n--b-1--\r\n";
        let mail = Mail::read(mail.as_bytes());
        assert_eq!((mail.id.as_str(), mail.subject.as_str()), ("<1@x>", "Grüße from München"));
        assert_eq!(mail.text.trim(), "Dear Äda, a long line = 1");
    }

    #[test]
    fn anything_else_is_shown_as_it_is() {
        for text in [
            "",
            "Subject",
            "Subject: =?utf-8?b?%%?=\r\n\r\nbody =ZZ =",
            "\r\n\r\n",
            "A: b\r\nContent-Type: multipart/x; boundary=\r\n\r\n--",
        ] {
            let _ = Mail::read(text.as_bytes());
        }
        assert_eq!(Mail::read(b"Subject: =?utf-8?b?%%?=\r\n\r\nbody =ZZ =").text, "body =ZZ =");
    }
}
