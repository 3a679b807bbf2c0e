//! The DKIM signatures of the SMTP driver, verified as RFC 6376 describes it by code that shares nothing with the driver.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use postcommit_channel::driver::Driver;
use postcommit_channel::model::Outcome;
use postcommit_channel::render::Content;
use postcommit_testkit::{SmtpAct, SmtpServer, SmtpTls};
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, RSA_PKCS1_2048_8192_SHA256, RsaKeyPair, UnparsedPublicKey};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::recipes::RSA_KEY;
use crate::smtp::{build_with, content, loopback, send};

const ED25519_KEY: &str = include_str!("../keys/ed25519.pem");

fn settings(server: &SmtpServer) -> Value {
    json!({"host": "tls.example", "port": server.addr().port(), "tls": "none", "from": "Hotel Sönne <desk@hotel.example>",
        "reply_to": "front@hotel.example", "dkim_selector": "mail"})
}

fn signing(server: &SmtpServer, key: &str) -> Box<dyn Driver> {
    build_with(&settings(server), [("dkim_key", key)], &loopback()).unwrap()
}

/// The public half of a key, as the domain would publish it.
fn public(key: &str) -> Vec<u8> {
    let der = STANDARD.decode(key.lines().filter(|line| !line.starts_with('-')).collect::<String>()).unwrap();
    match RsaKeyPair::from_pkcs8(&der) {
        Ok(pair) => pair.public_key().as_ref().to_vec(),
        Err(_) => Ed25519KeyPair::from_pkcs8_maybe_unchecked(&der).unwrap().public_key().as_ref().to_vec(),
    }
}

/// Collapses every run of spaces and tabs.
fn one_space(text: &str) -> String {
    let mut text = text.replace('\t', " ");
    while text.contains("  ") {
        text = text.replace("  ", " ");
    }
    text
}

/// Whether the first header of the mail is a signature of the mail.
fn is_valid(mail: &str, public: &[u8]) -> bool {
    let (head, body) = mail.split_once("\r\n\r\n").unwrap();
    let headers: Vec<String> = head.replace("\r\n ", " ").replace("\r\n\t", " ").split("\r\n").map(one_space).collect();
    let canonical = |header: &str| {
        let (name, value) = header.split_once(':').unwrap();
        format!("{}:{}", name.trim().to_lowercase(), value.trim())
    };
    let signature = canonical(&headers[0]);
    let tag = |name: &str| {
        let tags = signature.strip_prefix("dkim-signature:").unwrap().split(';');
        let found = tags.map(str::trim).find_map(|tag| tag.strip_prefix(&format!("{name}="))).unwrap();
        found.replace(' ', "")
    };
    let mut lines: Vec<String> = body.split("\r\n").map(|line| one_space(line).trim_end().to_owned()).collect();
    while lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    let body: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
    let mut left: Vec<String> = headers[1..].iter().map(|header| canonical(header)).collect();
    let mut signed = String::new();
    for name in tag("h").split(':') {
        // A header that is named more often than it exists adds nothing.
        if let Some(at) = left.iter().rposition(|header| header.starts_with(&format!("{name}:"))) {
            signed += &format!("{}\r\n", left.remove(at));
        }
    }
    signed += &signature[..signature.rfind("b=").unwrap() + 2];
    let bytes = STANDARD.decode(tag("b")).unwrap();
    let is_signed = match tag("a").as_str() {
        "rsa-sha256" => UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, public).verify(signed.as_bytes(), &bytes),
        _ => UnparsedPublicKey::new(&ED25519, public).verify(&Sha256::digest(&signed), &bytes),
    };
    is_signed.is_ok() && tag("bh") == STANDARD.encode(Sha256::digest(body))
}

async fn sent(key: &str) -> String {
    let server = SmtpServer::start(SmtpTls::None, &["SIZE 1000000", "8BITMIME"], |_| SmtpAct::Usual);
    let text = "Dear  guest, \t\r\n.\r\nroom 7 äöü  \n\n\n";
    let message = Content {
        html: Some("<p>See  you</p>".into()),
        unsubscribe_url: Some("https://hotel.example/u/1".into()),
        ..content("Grüße aus dem Hotel Sonne, mit einem Betreff, der in mehrere Zeilen passt", text)
    };
    for _ in 0..2 {
        // Another driver each time, as after a restart.
        assert_eq!(send(signing(&server, key).as_ref(), message.clone()).await.outcome, Outcome::Sent);
    }
    let mails = server.mails();
    assert_eq!(mails[0].wire, mails[1].wire, "the same bytes on every attempt");
    String::from_utf8(mails[0].bytes()).unwrap()
}

#[tokio::test]
async fn a_signed_mail_is_verified_and_has_the_same_bytes_on_every_attempt() {
    for (key, algorithm) in [(RSA_KEY, "a=rsa-sha256;"), (ED25519_KEY, "a=ed25519-sha256;")] {
        let mail = sent(key).await;
        assert!(mail.starts_with("DKIM-Signature: v=1; ") && mail.contains(algorithm), "{mail}");
        // The time is that of the notification.
        let start = "c=relaxed/relaxed; d=hotel.example; s=mail;\r\n t=1772000000;\r\n ";
        let names = "h=from:from:to:reply-to:subject:date:message-id:mime-version:content-type:list-unsubscribe:list-unsubscribe-post;";
        assert!(mail.contains(&format!("{start}{names}")), "{mail}");
        let public = public(key);
        assert!(is_valid(&mail, &public), "{mail}");
        assert!(is_valid(&mail.replace("\r\nTo: ", "\r\nTO:   "), &public), "spaces and case make no difference");
        for (from, to) in [
            ("See  you", "Sea  you"),
            ("ann@guest.example", "eve@guest.example"),
            ("https://hotel.example/u/1", "https://hotel.example/u/2"),
            ("t=1772000000", "t=1772000001"),
            ("d=hotel.example", "d=other.example"),
            ("\r\nTo: ", "\r\nFrom: <eve@guest.example>\r\nTo: "),
            ("Reply-To: front", "Reply-To: back"),
        ] {
            let forged = mail.replacen(from, to, 1);
            assert!(forged != mail && !is_valid(&forged, &public), "{from} can be replaced by {to}");
        }
    }
}

#[test]
fn dkim_needs_a_selector_and_a_key() {
    let server = SmtpServer::start(SmtpTls::None, &[], |_| SmtpAct::Usual);
    let built = |name: &str, value: Value, key: Option<&str>| {
        let mut settings = settings(&server);
        settings[name] = value;
        build_with(&settings, key.map(|key| ("dkim_key", key)), &loopback()).err().unwrap_or_default()
    };
    for (name, value, key, wanted) in [
        (
            "dkim_selector",
            Value::Null,
            Some(RSA_KEY),
            "settings.dkim_selector: is missing; the secret dkim_key needs it",
        ),
        ("dkim_selector", json!("a b"), Some(RSA_KEY), "settings.dkim_selector: must be a name such as mail"),
        (
            "dkim_domain",
            json!("no domain"),
            Some(RSA_KEY),
            "settings.dkim_domain: must be a domain such as example.com",
        ),
        ("dkim_domain", json!("hotel.example"), None, "secret: settings.dkim_selector needs the secret \"dkim_key\""),
        ("dkim_domain", json!("hotel.example"), Some("hush"), "secret dkim_key: must be a private key in PEM"),
        ("dkim_domain", json!("hotel.example"), Some(ED25519_KEY), ""),
    ] {
        let problem = built(name, value, key);
        assert!(
            problem.starts_with(wanted) && !problem.contains("hush") && problem.is_empty() == wanted.is_empty(),
            "{problem}"
        );
    }
}
