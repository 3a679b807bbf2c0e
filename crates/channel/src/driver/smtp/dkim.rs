//! Signs mails by DKIM (RFC 6376, and RFC 8463 for Ed25519), with the canonical form `relaxed` for headers and body. The
//! signature has the time of the notification, so a mail has the same bytes on every attempt.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use postcommit::Timestamp;
use sha2::{Digest, Sha256};

use super::Settings;
use super::mail::mailbox;
use crate::keys::PrivateKey;
use crate::secret::Secrets;

/// The headers that are signed, if the mail has them. `From` is listed once more than it exists, so that adding a
/// second `From` to the mail breaks the signature.
const SIGNED: [&str; 11] = [
    "From",
    "From",
    "To",
    "Reply-To",
    "Subject",
    "Date",
    "Message-ID",
    "MIME-Version",
    "Content-Type",
    "List-Unsubscribe",
    "List-Unsubscribe-Post",
];
/// The number of characters of the signature in one line.
const LINE_CHARS: usize = 72;

/// The DKIM key of a domain.
pub(super) struct Dkim {
    domain: String,
    selector: String,
    key: PrivateKey,
}

impl Dkim {
    /// The key of the settings, or `None` if mails are not signed. `from` is the domain of the sender.
    pub(super) fn new(settings: &Settings, secrets: &Secrets, from: &str) -> Result<Option<Self>, String> {
        let Some(key) = secrets.get("dkim_key") else {
            return match settings.dkim_domain.is_some() || settings.dkim_selector.is_some() {
                true => {
                    Err("secret: settings.dkim_selector needs the secret \"dkim_key\"; set it with --secret".into())
                }
                false => Ok(None),
            };
        };
        let selector = settings.dkim_selector.clone();
        let selector = selector.ok_or("settings.dkim_selector: is missing; the secret dkim_key needs it")?;
        let is_label = |label: &str| {
            let plain = label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
            (1..=63).contains(&label.len()) && plain
        };
        if selector.len() > 200 || !selector.split('.').all(is_label) {
            return Err("settings.dkim_selector: must be a name such as mail or 2026.mail".into());
        }
        // `mailbox` converts the domain to ASCII.
        let domain = mailbox(&format!("postmaster@{}", settings.dkim_domain.as_deref().unwrap_or(from)));
        let domain = domain.map_err(|_| "settings.dkim_domain: must be a domain such as example.com")?;
        // The key is revealed here to read it.
        let key = PrivateKey::from_pem(key.reveal()).map_err(|problem| format!("secret dkim_key: {problem}"))?;
        Ok(Some(Self { domain: domain.email.domain().to_owned(), selector, key }))
    }

    /// The mail with its signature. Lines must end with CR LF.
    pub(super) fn sign(&self, mail: &[u8], at: Timestamp) -> Result<Vec<u8>, String> {
        let end = mail.windows(4).position(|bytes| bytes == b"\r\n\r\n").map_or(mail.len(), |at| at + 2);
        let (head, body) = (&mail[..end], mail.get(end + 2..).unwrap_or_default());
        let headers = fields(head);
        let find = |wanted: &str| headers.iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted));
        let names: Vec<String> =
            SIGNED.iter().filter(|name| find(name).is_some()).map(|name| name.to_ascii_lowercase()).collect();
        let algorithm = match self.key {
            PrivateKey::Rsa(_) => "rsa-sha256",
            PrivateKey::Ed25519(_) => "ed25519-sha256",
        };
        let (domain, selector, time) = (&self.domain, &self.selector, at.as_micros() / 1_000_000);
        let (names, hash) = (names.join(":"), STANDARD.encode(Sha256::digest(relaxed_body(body))));
        let unsigned = format!(
            "DKIM-Signature: v=1; a={algorithm}; c=relaxed/relaxed; d={domain}; s={selector};\r\n t={time};\r\n h={names};\r\n \
             bh={hash};\r\n b="
        );
        // The mail has only one `From`, so its second listing adds nothing to the signed text.
        let mut text: Vec<u8> = SIGNED[1..]
            .iter()
            .filter_map(|name| find(name))
            .flat_map(|(name, value)| [relaxed_header(name, value), b"\r\n".to_vec()].concat())
            .collect();
        let (name, value) = unsigned.split_once(':').unwrap_or_default();
        text.extend(relaxed_header(name, value.as_bytes()));
        let signature = STANDARD.encode(self.key.sign(&text)?);
        let lines: Vec<&str> =
            signature.as_bytes().chunks(LINE_CHARS).filter_map(|line| std::str::from_utf8(line).ok()).collect();
        Ok([unsigned.as_bytes(), lines.join("\r\n ").as_bytes(), b"\r\n", mail].concat())
    }
}

/// The headers of a mail: the name and everything after the colon. A header goes on in lines that begin with a space.
fn fields(head: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut fields: Vec<(String, Vec<u8>)> = vec![];
    for line in head.split_inclusive(|byte| *byte == b'\n') {
        match (line.first(), line.iter().position(|byte| *byte == b':')) {
            (Some(b' ' | b'\t'), _) => {
                if let Some((_, value)) = fields.last_mut() {
                    value.extend(line);
                }
            }
            (_, Some(colon)) => {
                let name = String::from_utf8_lossy(&line[..colon]).trim_end().to_owned();
                fields.push((name, line[colon + 1..].to_vec()));
            }
            _ => {}
        }
    }
    fields
}

/// A header in canonical form, without its line end: the name in lower case, one line, and one space between words.
fn relaxed_header(name: &str, value: &[u8]) -> Vec<u8> {
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
    let words: Vec<&[u8]> = value.split(is_space).filter(|word| !word.is_empty()).collect();
    [name.to_ascii_lowercase().as_bytes(), b":", &words.join(&b' ')].concat()
}

/// A body in canonical form: no space at the end of a line, one space between words, no empty lines at the end.
fn relaxed_body(body: &[u8]) -> Vec<u8> {
    let mut lines: Vec<Vec<u8>> = vec![];
    for line in body.split(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let mut relaxed: Vec<u8> = Vec::with_capacity(line.len());
        for byte in line {
            match byte {
                b' ' | b'\t' if relaxed.last() == Some(&b' ') => {}
                b' ' | b'\t' => relaxed.push(b' '),
                byte => relaxed.push(*byte),
            }
        }
        relaxed.pop_if(|last| *last == b' ');
        lines.push(relaxed);
    }
    while lines.pop_if(|line| line.is_empty()).is_some() {}
    lines.into_iter().flat_map(|line| [line, b"\r\n".to_vec()].concat()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_canonical_forms_are_those_of_the_rfc() {
        // The example of RFC 6376, 3.4.5.
        let headers: Vec<Vec<u8>> =
            fields(b"A: X\r\nB : Y\t\r\n\tZ  \r\n").iter().map(|(name, value)| relaxed_header(name, value)).collect();
        assert_eq!(headers, [b"a:X".to_vec(), b"b:Y Z".to_vec()]);
        assert_eq!(relaxed_body(b" C \r\nD \t E\r\n\r\n\r\n"), b" C\r\nD E\r\n");
        assert_eq!(relaxed_body(b""), b"", "an empty body stays empty");
        assert_eq!(relaxed_body(b"\r\n\r\n"), b"");
        assert_eq!(relaxed_body(b"a"), b"a\r\n");
    }
}
