//! The SMTP driver against a scripted server: the mail on the wire, and the outcome of each way to fail.

mod hostile;
mod refusals;
mod secure;

use std::time::Duration;

use postcommit::Timestamp;
use postcommit_channel::driver::{self, Driver, FailOn, Message, Parts, RawEvent};
use postcommit_channel::egress::{Egress, EgressSettings};
use postcommit_channel::model::{Because, DeliveryKey, Guarantee, Outcome, Report};
use postcommit_channel::render::Content;
use postcommit_channel::secret::{Secret, Secrets};
use postcommit_channel::template::Payload;
use postcommit_testkit::{Heard, ReceivedMail, SmtpAct, SmtpServer, SmtpTls};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::egress::peer::{Script, open};
use crate::event::booking;

const ID: Uuid = Uuid::from_u128(0x0199_a5c2_6a3e_7c1d_9a31_0f5f_6c1b_2d3e);

pub(crate) fn loopback() -> Egress {
    Egress::with_resolver(&open(&["127.0.0.0/8"]), Script::new(&[&["127.0.0.1"]])).unwrap()
}

fn build(settings: &Value, password: Option<&str>, egress: &Egress) -> Result<Box<dyn Driver>, String> {
    build_with(settings, password.map(|text| ("password", text)), egress)
}

pub(crate) fn build_with<'s>(
    settings: &Value,
    secrets: impl IntoIterator<Item = (&'s str, &'s str)>,
    egress: &Egress,
) -> Result<Box<dyn Driver>, String> {
    let secrets: Secrets = secrets.into_iter().map(|(name, text)| (name.to_owned(), Secret::new(text))).collect();
    let (guarantee, capture_fail_on) = (Guarantee::AtLeastOnce, &FailOn::default());
    driver::kind("smtp").unwrap().build(&Parts { settings, secrets: &secrets, guarantee, egress, capture_fail_on })
}

/// A driver for the server, without encryption.
fn plain(server: &SmtpServer) -> Box<dyn Driver> {
    let settings = json!({"host": "tls.example", "port": server.addr().port(), "tls": "none",
        "from": "Hotel Sonne <desk@hotel.example>"});
    build(&settings, None, &loopback()).unwrap()
}

pub(crate) fn content(subject: &str, text: &str) -> Content {
    Content { subject: Some(subject.into()), text: Some(text.into()), ..Content::default() }
}

async fn send_to(driver: &dyn Driver, target: &str, content: Content) -> Report {
    deliver(driver, target, content, Duration::from_secs(30)).await
}

async fn send_within(driver: &dyn Driver, timeout: Duration) -> Report {
    deliver(driver, "ann@guest.example", content("a", "b"), timeout).await
}

async fn deliver(driver: &dyn Driver, target: &str, content: Content, timeout: Duration) -> Report {
    let payload = Payload::from("{}".to_owned());
    let [created_at, expires_at] = [1_772_000_000_000_000, 4_000_000_000_000_000].map(Timestamp::from_micros);
    let raw_event = RawEvent { id: ID, tenant: "default", created_at, expires_at, ..booking(&payload) };
    let key = DeliveryKey { tenant: 1, notification: ID, n: 1 };
    let channel = "email";
    driver.send(Message { content, raw_event, key, channel, target, attempt: 1, timeout, traceparent: None }).await
}

pub(crate) async fn send(driver: &dyn Driver, content: Content) -> Report {
    send_to(driver, "ann@guest.example", content).await
}

fn name(report: &Report) -> String {
    match &report.outcome {
        Outcome::Rejected { because: Because::Config, .. } => "config".into(),
        other => other.name().into(),
    }
}

fn at(verb: &'static str, act: SmtpAct) -> impl Fn(&Heard) -> SmtpAct + Send + Sync + 'static {
    move |heard| if heard.verb() == verb { act.clone() } else { SmtpAct::Usual }
}

fn text_of(mail: &ReceivedMail) -> String {
    String::from_utf8(mail.bytes()).unwrap()
}

#[tokio::test]
async fn a_mail_has_the_same_bytes_on_every_attempt() {
    let server = SmtpServer::start(SmtpTls::None, &["SIZE 1000000", "8BITMIME"], |_| SmtpAct::Usual);
    let html = Content { html: Some("<p>See you <b>soon</b></p>".into()), ..content("Grüße", "See you soon\n") };
    let unsubscribe = Content { unsubscribe_url: Some("https://hotel.example/u/1".into()), ..html };
    for _ in 0..2 {
        // Another driver each time, as after a restart.
        assert_eq!(send(plain(&server).as_ref(), unsubscribe.clone()).await.outcome, Outcome::Sent);
    }
    let mails = server.mails();
    assert_eq!(mails[0].wire, mails[1].wire);
    let mail = text_of(&mails[0]);
    for line in [
        "From: \"Hotel Sonne\" <desk@hotel.example>\r\n",
        "To: ann@guest.example\r\n",
        "Date: Wed, 25 Feb 2026 06:13:20 +0000\r\n",
        "Message-ID: <0199a5c2-6a3e-7c1d-9a31-0f5f6c1b2d3e_1@hotel.example>\r\n",
        "Auto-Submitted: auto-generated\r\n",
        "List-Unsubscribe: <https://hotel.example/u/1>\r\n",
        "List-Unsubscribe-Post: List-Unsubscribe=One-Click\r\n",
        "multipart/alternative",
        "Content-Type: text/plain; charset=utf-8\r\n",
        "Content-Type: text/html; charset=utf-8\r\n",
        "<p>See you <b>soon</b></p>",
    ] {
        assert!(mail.contains(line), "{line:?} is not in\n{mail}");
    }
    assert!(mails[0].sender.starts_with("FROM:<desk@hotel.example> SIZE="), "{}", mails[0].sender);
    assert_eq!(mails[0].recipients, ["TO:<ann@guest.example>"]);
}

#[tokio::test]
async fn the_server_s_answer_is_kept_as_its_own_id() {
    let server = SmtpServer::start(SmtpTls::None, &[], |_| SmtpAct::Usual);
    let report = send(plain(&server).as_ref(), content("a", "b")).await;
    assert_eq!(report.evidence.provider_ref.as_deref(), Some("2.0.0 queued as T1"));
}

#[tokio::test]
async fn a_direct_message_shows_its_link_and_needs_no_subject() {
    let server = SmtpServer::start(SmtpTls::None, &[], |_| SmtpAct::Usual);
    let message = Content {
        subject: None,
        text: Some("\nYour room is ready\nCome in.\n".into()),
        action_url: Some("https://hotel.example/b/1".into()),
        ..Content::default()
    };
    send(plain(&server).as_ref(), message).await;
    let mail = text_of(&server.mails()[0]);
    assert!(mail.contains("Subject: Your room is ready\r\n"), "{mail}");
    assert!(mail.trim_end().ends_with("Come in.\r\n\r\nhttps://hotel.example/b/1"), "{mail}");
}

/// Before the final dot nothing was sent, whatever happens. After it, only an answer tells.
#[tokio::test]
async fn the_step_that_failed_decides_the_outcome() {
    let say = |text: &str| SmtpAct::Say(text.into());
    let nonsense = SmtpAct::SayRaw(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec());
    for verb in ["CONNECT", "EHLO", "MAIL", "RCPT", "DATA", "."] {
        let lost = if verb == "." { "unclear" } else { "deferred" };
        let refused = if matches!(verb, "CONNECT" | "EHLO" | "MAIL") { "config" } else { "rejected" };
        for (act, expected) in [
            (SmtpAct::Close, lost),
            (nonsense.clone(), lost),
            (say("421 4.3.2 shutting down"), "deferred"),
            (say("451 4.3.0 try later"), "deferred"),
            (say("550 5.1.0 no"), refused),
        ] {
            let server = SmtpServer::start(SmtpTls::None, &[], at(verb, act.clone()));
            let report = send(plain(&server).as_ref(), content("a", "b")).await;
            assert_eq!(name(&report), expected, "{verb} {act:?}: {report:?}");
            assert_eq!(server.mails(), [], "{verb}");
        }
    }
}

#[tokio::test]
async fn a_silent_server_is_left_before_the_final_dot_and_waited_for_after_it() {
    for verb in ["CONNECT", "RCPT"] {
        let server = SmtpServer::start(SmtpTls::None, &[], at(verb, SmtpAct::Hold));
        let report = send_within(plain(&server).as_ref(), Duration::from_millis(200)).await;
        assert_eq!((name(&report).as_str(), report.outcome.code()), ("deferred", Some("timeout")), "{verb}");
    }
    let server = SmtpServer::start(SmtpTls::None, &[], at(".", SmtpAct::Hold));
    let driver = plain(&server);
    assert_eq!(driver.late_answer(), Duration::from_secs(600));
    let late = async {
        server.wait_until_heard(".", 1).await;
        // The time limit of the send is over. The answer is still awaited.
        tokio::time::sleep(Duration::from_millis(300)).await;
        server.release();
    };
    let (report, ()) = tokio::join!(send_within(driver.as_ref(), Duration::from_millis(200)), late);
    assert_eq!(report.outcome, Outcome::Sent);
}

#[tokio::test]
async fn an_error_names_the_step_and_hides_the_address() {
    let server =
        SmtpServer::start(SmtpTls::None, &[], at("RCPT", SmtpAct::Say("550 5.1.1 <ann@guest.example> unknown".into())));
    let report = send(plain(&server).as_ref(), content("a", "b")).await;
    assert_eq!(report.outcome, Outcome::refused("smtp_550"));
    assert_eq!(report.class().unwrap().name(), "invalid_address");
    let detail = report.evidence.detail.unwrap();
    assert_eq!(detail, "the mail server refused the recipient: 550 5.1.1 <[redacted]> unknown");
    assert_eq!(report.suppress.as_deref(), Some("hard bounce"));
}

#[tokio::test]
async fn connections_are_used_again_and_a_closed_one_is_replaced() {
    // The server closes the connection before the third message, as after a long pause.
    let server = SmtpServer::start(SmtpTls::None, &[], |heard| match (heard.verb().as_str(), heard.before) {
        ("RSET", 1) => SmtpAct::Close,
        ("RCPT", 3) => SmtpAct::Say("550 5.1.1 no".into()),
        _ => SmtpAct::Usual,
    });
    let driver = plain(&server);
    let mut outcomes = vec![];
    for _ in 0..5 {
        outcomes.push(name(&send(driver.as_ref(), content("a", "b")).await));
    }
    // A refused recipient leaves the connection usable.
    assert_eq!(outcomes, ["sent", "sent", "sent", "rejected", "sent"]);
    assert_eq!((server.mails().len(), server.count("CONNECT")), (4, 2));
}

#[tokio::test]
async fn a_server_without_what_the_message_needs_gets_no_message() {
    let server = SmtpServer::start(SmtpTls::None, &["SIZE 100"], |_| SmtpAct::Usual);
    let driver = plain(&server);
    let report = send(driver.as_ref(), content("a", "b")).await;
    assert_eq!(report.outcome, Outcome::refused("too_large"));
    assert!(report.evidence.detail.unwrap().ends_with("the server takes at most 100"));

    let server = SmtpServer::start(SmtpTls::None, &[], |_| SmtpAct::Usual);
    let report = send_to(plain(&server).as_ref(), "jürgen@guest.example", content("a", "b")).await;
    assert_eq!(report.outcome, Outcome::refused("smtputf8_missing"));

    let server = SmtpServer::start(SmtpTls::None, &["SMTPUTF8"], |_| SmtpAct::Usual);
    let report = send_to(plain(&server).as_ref(), "jürgen@gäste.example", content("a", "b")).await;
    assert_eq!(report.outcome, Outcome::Sent);
    assert_eq!(server.mails()[0].recipients, ["TO:<jürgen@xn--gste-loa.example>"]);
    assert!(server.mails()[0].sender.ends_with(" SMTPUTF8"));
}

#[tokio::test]
async fn private_addresses_are_blocked_for_mail_too() {
    let settings = |host: &str| json!({"host": host, "from": "desk@hotel.example"});
    let closed = Egress::with_resolver(&EgressSettings::default(), Script::new(&[&["169.254.169.254"]])).unwrap();
    let refused = build(&settings("169.254.169.254"), None, &closed).err().unwrap();
    assert!(refused.starts_with("settings.host:") && refused.contains("egress.allow"), "{refused}");
    let report = send(build(&settings("mail.example"), None, &closed).unwrap().as_ref(), content("a", "b")).await;
    assert_eq!(report.outcome, Outcome::refused("blocked_address"));
}

#[test]
fn wrong_settings_are_refused_with_the_field() {
    let egress = loopback();
    let mut base = json!({"host": "mail.example", "from": "desk@hotel.example"});
    assert!(build(&base, None, &egress).is_ok());
    for (field, value, words) in [
        ("host", json!(""), "settings.host: the host is neither a name nor an IP address"),
        ("port", json!(0), "settings.host: the port must be from 1 to 65535"),
        ("from", json!("desk"), "settings.from: must be a mail address"),
        ("from", json!("A\r\nBcc: x@y.example <desk@hotel.example>"), "settings.from:"),
        ("tls", json!("ssl"), "settings.tls: unknown variant"),
        ("username", json!("desk"), "secret: settings.username needs the secret \"password\""),
        ("ehlo_name", json!("a b"), "settings.ehlo_name: must be a host name"),
        ("message_id_domain", json!("a b"), "settings.message_id_domain: must be a domain"),
        ("reply_to", json!("x"), "settings.reply_to: must be a mail address"),
        ("hots", json!("x"), "settings.hots: unknown field"),
    ] {
        let before = base.as_object_mut().unwrap().insert(field.to_owned(), value.clone());
        let problem = build(&base, None, &egress).err().unwrap_or_default();
        assert!(problem.starts_with(words), "{field} {value}: {problem}");
        match before {
            Some(before) => base[field] = before,
            None => drop(base.as_object_mut().unwrap().remove(field)),
        }
    }
    let plain = json!({"host": "mail.example", "from": "desk@hotel.example", "tls": "none", "username": "desk"});
    let problem = build(&plain, Some("x"), &egress).err().unwrap();
    assert!(problem.starts_with("settings.tls: is none, but a password is sent only over TLS"), "{problem}");
}
