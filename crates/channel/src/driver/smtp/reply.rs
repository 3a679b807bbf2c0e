//! Replies of an SMTP server: how they are read, and what a refusal means for the message and for the lane.

use crate::model::{Because, ErrorClass, Outcome};

/// The longest line of a reply, in bytes. RFC 5321 allows 512.
const LINE_BYTES: usize = 2048;
/// The maximum number of lines of a reply.
const LINES: usize = 128;

/// A step of the SMTP dialogue. The step that failed decides whether the message may have been sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Greeting,
    Ehlo,
    StartTls,
    Auth,
    Reset,
    MailFrom,
    RcptTo,
    Data,
    /// The content of the message, up to its final dot.
    Content,
    /// The answer after the final dot.
    Accepted,
}

impl Step {
    /// The name of the step for operators.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Greeting => "the greeting",
            Self::Ehlo => "EHLO",
            Self::StartTls => "STARTTLS",
            Self::Auth => "the sign-in",
            Self::Reset => "RSET",
            Self::MailFrom => "the sender",
            Self::RcptTo => "the recipient",
            Self::Data => "DATA",
            Self::Content | Self::Accepted => "the message",
        }
    }
}

/// A reply of the server: its code and its lines without the code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) code: u16,
    pub(super) lines: Vec<String>,
}

impl Reply {
    /// Whether the reply says that the command succeeded.
    pub(super) fn is_positive(&self) -> bool {
        self.code / 100 == 2
    }

    /// The text of the reply in one line.
    pub(super) fn text(&self) -> String {
        self.lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
    }

    /// Whether the text says that the server does not accept mail from our sender. A recipient's own refusal of a
    /// sender says nothing about other recipients.
    fn is_about_sender(&self) -> bool {
        const WORDS: [&str; 3] = ["sender address rejected", "sender rejected", "permissions to send as"];
        let text = self.text().to_ascii_lowercase();
        WORDS.iter().any(|words| text.contains(words)) && !text.contains("recipient")
    }

    /// Whether the reply says that the mailbox or its domain does not exist, or that the mailbox is disabled (RFC 3463,
    /// RFC 7505). A reply without an enhanced code may be a matter of policy, so it says nothing about the address.
    pub(super) fn is_dead_address(&self, step: Step) -> bool {
        let is_of_recipient = matches!(step, Step::RcptTo | Step::Data | Step::Content | Step::Accepted);
        is_of_recipient
            && match self.enhanced() {
                Some([5, 1, 1 | 2 | 3 | 6 | 10]) => true,
                // Gmail also gives this code to a mailbox that gets too many mails at the moment.
                Some([5, 2, 1]) => {
                    let text = self.text().to_ascii_lowercase();
                    !["rate", "quickly"].iter().any(|word| text.contains(word))
                }
                _ => false,
            }
    }

    /// The enhanced status code (RFC 3463) at the beginning of the text, such as `5.1.1`.
    pub(super) fn enhanced(&self) -> Option<[u16; 3]> {
        let word = self.lines.first()?.split_whitespace().next()?;
        let mut numbers = word.split('.').map(|part| part.parse::<u16>().ok().filter(|_| part.len() <= 3));
        let code = [numbers.next()??, numbers.next()??, numbers.next()??];
        let fits = numbers.next().is_none() && [2, 4, 5].contains(&code[0]) && code[0] == self.code / 100;
        fits.then_some(code)
    }
}

/// Collects the lines of one reply.
#[derive(Debug, Default)]
pub(super) struct ReplyReader {
    code: Option<u16>,
    lines: Vec<String>,
}

impl ReplyReader {
    /// Takes the first line out of `buffer`, without its line end. `Ok(None)` if the line is not complete yet.
    pub(super) fn take_line(buffer: &mut Vec<u8>) -> Result<Option<Vec<u8>>, &'static str> {
        let Some(end) = buffer.iter().position(|byte| *byte == b'\n') else {
            return if buffer.len() > LINE_BYTES { Err("the server sent a line that is too long") } else { Ok(None) };
        };
        let mut line: Vec<u8> = buffer.drain(..=end).collect();
        line.pop();
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        if line.len() > LINE_BYTES { Err("the server sent a line that is too long") } else { Ok(Some(line)) }
    }

    /// Adds a line. Returns the reply if this line is its last one.
    pub(super) fn add(&mut self, line: &[u8]) -> Result<Option<Reply>, &'static str> {
        const NO_REPLY: &str = "the server sent a line that is no SMTP reply";
        let code = line.get(..3).and_then(|code| std::str::from_utf8(code).ok()?.parse::<u16>().ok());
        let code = code.filter(|code| (200..600).contains(code)).ok_or(NO_REPLY)?;
        let is_last = match line.get(3) {
            None | Some(b' ') => true,
            Some(b'-') => false,
            Some(_) => return Err(NO_REPLY),
        };
        if self.code.is_some_and(|first| first != code) {
            return Err("the lines of one reply have different codes");
        }
        if self.lines.len() >= LINES {
            return Err("the server sent a reply with too many lines");
        }
        self.code = Some(code);
        self.lines.push(String::from_utf8_lossy(line.get(4..).unwrap_or_default()).into_owned());
        Ok(is_last.then(|| Reply { code, lines: std::mem::take(&mut self.lines) }))
    }
}

/// The outcome of a reply that is not the expected one, and the class of the error.
///
/// A reply of 400 to 499 is temporary. Of the permanent ones, some concern this message or recipient and others our
/// account, which pauses the lane. The enhanced code decides if there is one, otherwise the step and the code.
pub(super) fn refusal(step: Step, reply: &Reply) -> (Outcome, ErrorClass) {
    let code = format!("smtp_{}", reply.code);
    let enhanced = reply.enhanced();
    match reply.code {
        400..=499 => (Outcome::deferred(code), temporary(step, reply.code, enhanced)),
        // Many servers report a refused sender only at the recipient, or after the message.
        500..=599 if enhanced.is_some_and(|[_, subject, _]| subject == 7) && reply.is_about_sender() => {
            (Outcome::config(code), ErrorClass::Account)
        }
        500..=599 => {
            let (because, class) = permanent(step, reply.code, enhanced);
            (Outcome::Rejected { code, because }, class)
        }
        // An unexpected positive reply, such as 250 instead of 354. The message may have been sent only after its final
        // dot.
        _ if step == Step::Accepted => (Outcome::unclear(code), ErrorClass::ServerError),
        _ => (Outcome::deferred(code), ErrorClass::ServerError),
    }
}

fn temporary(step: Step, code: u16, enhanced: Option<[u16; 3]>) -> ErrorClass {
    match (code, enhanced) {
        (421, _) | (_, Some([_, 7, _])) if step != Step::Auth => ErrorClass::RateLimited,
        // The sender is refused, even if the server reports this at the recipient.
        (_, Some([_, 1, 7 | 8])) => ErrorClass::Account,
        (_, Some([_, 1 | 2, _])) => ErrorClass::InvalidAddress,
        (_, Some([_, 4, _])) => ErrorClass::Network,
        _ if step == Step::Auth => ErrorClass::AuthFailed,
        _ => ErrorClass::ServerError,
    }
}

fn permanent(step: Step, code: u16, enhanced: Option<[u16; 3]>) -> (Because, ErrorClass) {
    let message = |class| (Because::Refused, class);
    let account = |class| (Because::Config, class);
    match (step, code, enhanced) {
        (Step::Auth, ..) | (_, 530 | 534 | 535 | 538, _) => account(ErrorClass::AuthFailed),
        (Step::Greeting | Step::Ehlo | Step::StartTls | Step::Reset, ..) => account(ErrorClass::Config),
        // SPF, DKIM or DMARC of our domain failed: every message would be refused.
        (_, _, Some([_, 7, 20..=29])) => account(ErrorClass::Account),
        // The sender is refused, whatever the step.
        (_, _, Some([_, 1, 7 | 8])) => account(ErrorClass::Account),
        (_, 552, None) | (_, _, Some([_, 3, 4] | [_, 2, 3] | [_, 6, _])) => message(ErrorClass::InvalidContent),
        (_, _, Some([_, 5, _])) | (_, 500..=503, None) => message(ErrorClass::Unknown),
        (Step::MailFrom, ..) => account(ErrorClass::Account),
        (Step::RcptTo, _, Some([_, 7, _])) => message(ErrorClass::Forbidden),
        (Step::RcptTo, ..) | (_, _, Some([_, 1 | 2, _])) => message(ErrorClass::InvalidAddress),
        _ => message(ErrorClass::InvalidContent),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(text: &str) -> Result<Option<Reply>, &'static str> {
        let (mut reader, mut buffer) = (ReplyReader::default(), text.as_bytes().to_vec());
        while let Some(line) = ReplyReader::take_line(&mut buffer)? {
            if let Some(reply) = reader.add(&line)? {
                return Ok(Some(reply));
            }
        }
        Ok(None)
    }

    #[test]
    fn replies_have_one_or_several_lines() {
        let one = reply("250 2.1.0 Ok\r\n").unwrap().unwrap();
        assert_eq!((one.code, one.text(), one.enhanced()), (250, "2.1.0 Ok".into(), Some([2, 1, 0])));
        let two = reply("250-mail.example\r\n250 SIZE 1000\r\n").unwrap().unwrap();
        assert_eq!(two.lines, ["mail.example", "SIZE 1000"]);
        assert_eq!(reply("250\r\n").unwrap().unwrap().text(), "");
        assert_eq!(reply("250-more\r\n").unwrap(), None);
        assert_eq!(reply("25").unwrap(), None);
    }

    #[test]
    fn nonsense_is_no_reply() {
        for text in
            ["hello\r\n", "99 x\r\n", "1234\r\n", "250_x\r\n", "250-a\r\n251 b\r\n", "\r\n", "700 x\r\n", "é50 x\r\n"]
        {
            assert!(reply(text).is_err(), "{text:?}");
        }
        assert!(reply(&"x".repeat(10_000)).is_err());
        assert!(reply(&"250-x\r\n".repeat(10_000)).is_err());
    }

    #[test]
    fn an_enhanced_code_must_fit_its_reply() {
        for (text, code) in [
            ("550 5.1.1 no such user\r\n", Some([5, 1, 1])),
            ("550 4.1.1 x\r\n", None),
            ("550 5.1 x\r\n", None),
            ("550 5.1.1.1 x\r\n", None),
            ("550 5.1.9999 x\r\n", None),
            ("550 no such user\r\n", None),
            ("550\r\n", None),
        ] {
            assert_eq!(reply(text).unwrap().unwrap().enhanced(), code, "{text}");
        }
    }

    #[test]
    fn only_an_address_that_does_not_exist_or_is_disabled_is_dead() {
        for (step, text, is_dead) in [
            (Step::RcptTo, "550 5.1.1 no such user", true),
            (Step::RcptTo, "551 5.1.6 moved", true),
            (Step::RcptTo, "553 5.1.3 bad syntax", true),
            (Step::RcptTo, "550 5.1.2 domain not found", true),
            (Step::RcptTo, "556 5.1.10 null MX", true),
            (Step::RcptTo, "550 5.2.1 mailbox disabled", true),
            (Step::Accepted, "550 5.1.1 no such user", true),
            (Step::RcptTo, "550 5.2.1 receiving mail at a rate that prevents more", false),
            (Step::RcptTo, "550 5.2.1 Receiving mail too Quickly", false),
            (Step::RcptTo, "552 5.2.2 mailbox full", false),
            (Step::RcptTo, "550 5.1.0 refused", false),
            (Step::RcptTo, "550 5.1.8 sender's domain not found", false),
            (Step::RcptTo, "550 5.7.1 policy", false),
            (Step::RcptTo, "550 no such user", false),
            (Step::RcptTo, "450 4.1.1 try later", false),
            (Step::MailFrom, "550 5.1.1 who are you", false),
            (Step::Accepted, "554 5.7.1 spam", false),
        ] {
            let reply = reply(&format!("{text}\r\n")).unwrap().unwrap();
            assert_eq!(reply.is_dead_address(step), is_dead, "{step:?} {text}");
        }
    }

    #[test]
    fn every_refusal_has_a_meaning() {
        use ErrorClass as C;
        let cases: &[(Step, &str, &str, C)] = &[
            (Step::Greeting, "421 too busy", "deferred", C::RateLimited),
            (Step::Greeting, "554 no service", "Config", C::Config),
            (Step::StartTls, "454 TLS not available", "deferred", C::ServerError),
            (Step::Auth, "535 5.7.8 bad password", "Config", C::AuthFailed),
            (Step::Auth, "454 4.7.0 try later", "deferred", C::AuthFailed),
            (Step::MailFrom, "530 5.7.0 authentication required", "Config", C::AuthFailed),
            (Step::MailFrom, "550 5.7.1 sender refused", "Config", C::Account),
            (Step::MailFrom, "552 5.3.4 too big", "Refused", C::InvalidContent),
            (Step::RcptTo, "450 4.2.0 greylisted", "deferred", C::InvalidAddress),
            (Step::RcptTo, "451 4.7.1 slow down", "deferred", C::RateLimited),
            (Step::RcptTo, "451 4.4.1 no answer", "deferred", C::Network),
            (Step::RcptTo, "550 5.1.1 no such user", "Refused", C::InvalidAddress),
            (Step::RcptTo, "550 no such user", "Refused", C::InvalidAddress),
            (Step::RcptTo, "554 5.7.1 relay access denied", "Refused", C::Forbidden),
            (Step::RcptTo, "552 5.2.2 mailbox full", "Refused", C::InvalidAddress),
            (Step::RcptTo, "550 5.2.1 mailbox disabled", "Refused", C::InvalidAddress),
            (Step::Accepted, "550 5.2.1 mailbox disabled", "Refused", C::InvalidAddress),
            // x.1.7 and x.1.8 are always about the sender. Postfix reports them at the recipient.
            (Step::RcptTo, "553 5.1.7 <desk>: Sender address rejected: bad syntax", "Config", C::Account),
            (
                Step::RcptTo,
                "550 5.1.8 <desk@x.example>: Sender address rejected: Domain not found",
                "Config",
                C::Account,
            ),
            (Step::RcptTo, "450 4.1.8 <desk@x.example>: Sender address rejected", "deferred", C::Account),
            (Step::MailFrom, "451 4.1.7 try later", "deferred", C::Account),
            (Step::Accepted, "550 5.1.8 sender's system", "Config", C::Account),
            (
                Step::RcptTo,
                "553 5.7.1 <desk@x.example>: Sender address rejected: not owned by user",
                "Config",
                C::Account,
            ),
            (
                Step::Accepted,
                "554 5.7.60 Client does not have permissions to send as this sender",
                "Config",
                C::Account,
            ),
            (Step::RcptTo, "550 5.7.1 Sender rejected by the recipient", "Refused", C::Forbidden),
            (Step::RcptTo, "452 4.5.3 too many recipients", "deferred", C::ServerError),
            (Step::Auth, "432 4.7.12 a password transition is needed", "deferred", C::AuthFailed),
            (Step::Auth, "504 5.5.4 unrecognised mechanism", "Config", C::AuthFailed),
            (Step::Auth, "534 5.7.9 mechanism is too weak", "Config", C::AuthFailed),
            (Step::MailFrom, "534 5.7.9 mechanism is too weak", "Config", C::AuthFailed),
            (Step::Auth, "538 5.7.11 encryption required", "Config", C::AuthFailed),
            (Step::RcptTo, "538 5.7.11 encryption required", "Config", C::AuthFailed),
            // The server refused the message before its end.
            (Step::Content, "552 5.3.4 too big", "Refused", C::InvalidContent),
            (Step::Data, "503 5.5.1 out of order", "Refused", C::Unknown),
            (Step::Data, "250 ok", "deferred", C::ServerError),
            (Step::Accepted, "550 5.7.26 unauthenticated", "Config", C::Account),
            (Step::Accepted, "554 5.6.0 bad content", "Refused", C::InvalidContent),
            (Step::Accepted, "554 rejected as spam", "Refused", C::InvalidContent),
            (Step::Accepted, "451 4.3.0 later", "deferred", C::ServerError),
            (Step::Accepted, "354 go on", "unclear", C::ServerError),
        ];
        for (step, text, expected, class) in cases {
            let reply = reply(&format!("{text}\r\n")).unwrap().unwrap();
            let (outcome, found) = refusal(*step, &reply);
            let name = match &outcome {
                Outcome::Rejected { because, .. } => format!("{because:?}"),
                other => other.name().to_owned(),
            };
            assert_eq!((name.as_str(), found), (*expected, *class), "{step:?} {text}");
        }
    }
}
