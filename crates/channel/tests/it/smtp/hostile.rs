//! Texts of users and operators that try to become commands, headers or a second mail.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use postcommit_channel::model::Outcome;
use postcommit_channel::render::Content;
use postcommit_testkit::{ReceivedMail, SmtpAct, SmtpServer, SmtpTls};
use serde_json::json;

use super::{build, content, loopback, name, plain, send, send_to, text_of};

/// Texts that have broken mail programs: line ends in every shape, dots, NUL, long lines, encoded words, other scripts.
fn hostile() -> Vec<String> {
    let seeds = [
        "\r\nBcc: evil@bad.example",
        "\nBcc: evil@bad.example",
        "\rBcc: evil@bad.example",
        "\r\n.\r\n",
        "\n.\n",
        "\r.\r",
        "\n.\r\n",
        "\r\n.\n",
        "\r.\r\n",
        ".\r\n",
        ".",
        "..",
        "\r\n.\r\nMAIL FROM:<evil@bad.example>\r\n",
        "\0",
        "a\0b",
        "\u{7f}",
        "\u{85}",
        "\u{2028}",
        "\u{202e}abc",
        "=?utf-8?B?DQpCY2M6IGV2aWxAYmFkLmV4YW1wbGU=?=",
        "=?utf-8?Q?=0D=0ABcc:_x?=",
        "\"quoted\"",
        "<angle>",
        "a,b;c:d",
        "\\",
        "(comment)",
        "日本語",
        "😀".repeat(200).as_str(),
        "x".repeat(3000).as_str(),
        " ".repeat(2000).as_str(),
        "\t\t",
        "é".repeat(998).as_str(),
        "",
        " ",
        "\r\n",
        "\n\n\n",
        "\r\r\r",
        "--postcommit-0199a5c2-6a3e-7c1d-9a31-0f5f6c1b2d3e_1--",
        "From me",
        ">From",
        "Content-Type: text/html",
        "\u{1}",
        "\u{8}\u{b}\u{c}",
        "\u{1b}[2J",
    ]
    .map(str::to_owned);
    let mixed = seeds.iter().flat_map(|seed| {
        [
            seed.clone(),
            format!("Hello {seed} world"),
            format!("{seed}{seed}"),
            format!("ü{seed}"),
            format!("a\r\n{seed}\r\nb"),
        ]
    });
    mixed.collect()
}

/// Asserts that each mail is one mail, and each command one line.
fn assert_nothing_injected(server: &SmtpServer, before: usize, text: &str) {
    const HEADERS: [&str; 12] = [
        "From",
        "To",
        "Subject",
        "Date",
        "Message-ID",
        "Auto-Submitted",
        "MIME-Version",
        "Content-Type",
        "Content-Transfer-Encoding",
        "List-Unsubscribe",
        "List-Unsubscribe-Post",
        "Reply-To",
    ];
    for mail in &server.mails()[before..] {
        let wire = &mail.wire;
        let bare = |i: usize| match wire[i] {
            b'\r' => wire.get(i + 1) != Some(&b'\n'),
            b'\n' => i == 0 || wire[i - 1] != b'\r',
            b'\0' => true,
            _ => false,
        };
        assert!(!(0..wire.len()).any(bare), "{text:?}");
        assert!(wire.split(|byte| *byte == b'\n').all(|line| line.len() <= 999), "{text:?}");
        let (head, _) = split(mail);
        let mut names = vec![];
        for line in head.split("\r\n").filter(|line| !line.starts_with([' ', '\t'])) {
            let header = line.split(':').next().unwrap_or_default().to_owned();
            assert!(HEADERS.contains(&header.as_str()), "{text:?}: {line:?}");
            assert!(!names.contains(&header), "{text:?}: {header} is there twice");
            names.push(header);
        }
        assert!(!head.replace("\r\n", "").contains(|c: char| c.is_ascii_control() && c != '\t'), "{text:?}: {head:?}");
        assert_eq!(mail.recipients.len(), 1);
        let smtputf8 = if mail.recipients[0].is_ascii() { "" } else { " SMTPUTF8" };
        assert_eq!(mail.sender, format!("FROM:<desk@hotel.example>{smtputf8}"));
    }
    for heard in server.heard() {
        let line = heard.raw.strip_suffix(b"\r\n").unwrap_or(b"\r");
        let is_line = !line.iter().any(|byte| byte.is_ascii_control());
        assert!(is_line || ["connect", "."].contains(&heard.line.as_str()), "{text:?}: {heard:?}");
        assert!(!heard.line.contains("evil@bad.example>") || heard.verb() == "RCPT", "{heard:?}");
    }
    assert_eq!(server.count("MAIL"), server.mails().len());
}

fn split(mail: &ReceivedMail) -> (String, String) {
    let text = text_of(mail);
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

/// The value of a header as a mail program shows it: unfolded, its encoded words decoded.
fn shown(mail: &ReceivedMail, name: &str) -> String {
    let head = split(mail).0.replace("\r\n ", " ").replace("\r\n\t", "\t");
    let value = head.split("\r\n").find_map(|line| line.strip_prefix(&format!("{name}: "))).unwrap_or_default();
    let (mut text, mut was_encoded) = (String::new(), false);
    for word in value.split(' ') {
        let encoded = word.strip_prefix("=?utf-8?b?").and_then(|word| word.strip_suffix("?="));
        // A space between encoded words is not shown.
        let belongs_together = was_encoded && encoded.is_some();
        if !text.is_empty() && !belongs_together {
            text.push(' ');
        }
        text += &encoded.map_or(word.to_owned(), |word| String::from_utf8(STANDARD.decode(word).unwrap()).unwrap());
        was_encoded = encoded.is_some();
    }
    text
}

/// The name in a header with an address, as a mail program shows it.
fn shown_name(mail: &ReceivedMail, header: &str) -> String {
    let text = shown(mail, header);
    let name = text.strip_suffix("<desk@hotel.example>").unwrap_or_default().trim_end();
    match name.strip_prefix('"').and_then(|name| name.strip_suffix('"')) {
        Some(quoted) => quoted.replace("\\\"", "\"").replace("\\\\", "\\"),
        None => name.to_owned(),
    }
}

#[tokio::test]
async fn two_hundred_hostile_texts_inject_nothing() {
    let server = SmtpServer::start(SmtpTls::None, &["SMTPUTF8"], |_| SmtpAct::Usual);
    let driver = plain(&server);
    let texts = hostile();
    assert!(texts.len() >= 200);
    for text in &texts {
        let before = server.mails().len();
        // As a subject: refused, or one header that shows the text.
        let subject = Content { html: Some(text.clone()), ..content(text, text) };
        let report = send(driver.as_ref(), subject).await;
        assert!(matches!(name(&report).as_str(), "sent" | "rejected"), "{text:?}: {report:?}");
        let has_control = text.chars().any(|c| c.is_ascii_control() && c != '\t');
        if !text.trim().is_empty() {
            assert!(!has_control || name(&report) == "rejected", "{text:?}");
            if name(&report) == "sent" {
                let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
                assert_eq!(shown(&server.mails()[before], "Subject"), words, "{text:?}");
            }
        }
        // As a text alone: always one mail.
        assert_eq!(name(&send(driver.as_ref(), content("plain", text)).await), "sent", "{text:?}");
        // As an address: refused, or exactly one recipient.
        let report = send_to(driver.as_ref(), &format!("{text}@guest.example"), content("a", "b")).await;
        assert!(matches!(name(&report).as_str(), "sent" | "rejected"), "{text:?}: {report:?}");
        // As the link to unsubscribe: refused, or one URL.
        let url = format!("https://hotel.example/u?{text}");
        let report = send(driver.as_ref(), Content { unsubscribe_url: Some(url.clone()), ..content("a", "b") }).await;
        let is_url = url.chars().all(|c| c.is_ascii_graphic() && c != '<' && c != '>') && url.len() <= 900;
        assert_eq!(name(&report), if is_url { "sent" } else { "rejected" }, "{text:?}");
        if is_url {
            let (head, _) = split(server.mails().last().unwrap());
            assert!(head.contains(&format!("List-Unsubscribe: <{url}>\r\n")), "{text:?}: {head}");
        }
        assert_nothing_injected(&server, before, text);
    }
}

#[tokio::test]
async fn two_hundred_hostile_names_of_senders_inject_nothing() {
    let server = SmtpServer::start(SmtpTls::None, &[], |_| SmtpAct::Usual);
    let mut sent = 0;
    for text in &hostile() {
        let mailbox = format!("{text} <desk@hotel.example>");
        for field in ["from", "reply_to"] {
            let before = server.mails().len();
            let mut settings = json!({"host": "tls.example", "port": server.addr().port(), "tls": "none",
                "from": "desk@hotel.example"});
            settings[field] = mailbox.as_str().into();
            let built = build(&settings, None, &loopback());
            let has_control = text.chars().any(|c| c.is_ascii_control());
            assert!(!has_control || built.is_err(), "{field} {text:?}");
            let Ok(driver) = built else { continue };
            assert_eq!(name(&send(driver.as_ref(), content("a", "b")).await), "sent", "{field} {text:?}");
            let header = if field == "from" { "From" } else { "Reply-To" };
            let name = text.trim().trim_matches('"').trim();
            assert_eq!(shown_name(&server.mails()[before], header), name, "{field} {text:?}");
            assert_nothing_injected(&server, before, text);
            sent += 1;
        }
    }
    assert!(sent > 100, "{sent} names were taken");
}

#[tokio::test]
async fn every_control_character_is_refused_in_a_subject_and_in_a_name() {
    let server = SmtpServer::start(SmtpTls::None, &[], |_| SmtpAct::Usual);
    let driver = plain(&server);
    for c in (0..=127_u8).map(char::from).filter(char::is_ascii_control) {
        let report = send(driver.as_ref(), content(&format!("room{c}7"), "b")).await;
        match c {
            '\t' => assert_eq!(shown(&server.mails()[0], "Subject"), "room 7", "a tab is as good as a space"),
            _ => assert_eq!(report.outcome, Outcome::refused("bad_header"), "{c:?}"),
        }
        for field in ["from", "reply_to", "envelope_from"] {
            let mut settings = json!({"host": "mail.example", "from": "desk@hotel.example"});
            settings[field] = format!("Hotel{c}Sonne <desk@hotel.example>").into();
            let problem = build(&settings, None, &loopback()).err().unwrap_or_default();
            assert!(problem.starts_with(&format!("settings.{field}: holds {c:?}")), "{field} {c:?}: {problem}");
        }
    }
    assert_eq!(server.mails().len(), 1);
    let long = json!({"host": "mail.example", "from": format!("{} <desk@hotel.example>", "x".repeat(256))});
    let problem = build(&long, None, &loopback()).err().unwrap();
    assert_eq!(problem, "settings.from: has a name of 256 characters; at most 255 are allowed");
}

/// A mail program would decode such a word, and show what the application did not mean.
#[tokio::test]
async fn an_encoded_word_of_the_application_is_shown_as_it_was_written() {
    let server = SmtpServer::start(SmtpTls::None, &[], |_| SmtpAct::Usual);
    let driver = plain(&server);
    let long = "=?utf-8?q?a?= ".repeat(50);
    for subject in ["=?utf-8?B?SGVsbG8=?=", "Re: =?iso-8859-1?Q?=0D=0ABcc:_x?= ü", "=?", long.trim()] {
        send(driver.as_ref(), content(subject, "b")).await;
        let mail = server.mails().pop().unwrap();
        assert_eq!(shown(&mail, "Subject"), subject);
        let raw = split(&mail).0.replace("=?utf-8?b?", "").replace("?=", "");
        assert!(!raw.contains("=?"), "{raw}");
        assert!(raw.lines().all(|line| line.len() <= 78), "{raw}");
    }
}
