//! Encryption and sign-in.

use postcommit_channel::driver::Driver;
use postcommit_channel::egress::Egress;
use postcommit_channel::model::Outcome;
use postcommit_testkit::{Heard, SmtpAct, SmtpServer, SmtpTls};
use serde_json::{Value, json};

use super::{at, build, content, loopback, send};
use crate::egress::tls::{certified, trusting};

fn secure(server: &SmtpServer, tls: &str, more: &Value, egress: &Egress) -> Box<dyn Driver> {
    let mut settings =
        json!({"host": "tls.example", "port": server.addr().port(), "tls": tls, "from": "desk@hotel.example"});
    let object = settings.as_object_mut().unwrap();
    object.extend(more.as_object().unwrap().clone());
    let password = more.get("username").map(|_| "s3cret-pass");
    build(&settings, password, egress).unwrap()
}

#[tokio::test]
async fn passwords_go_only_over_tls_by_the_method_that_the_server_offers() {
    let (acceptor, file) = certified();
    for (tls, server_tls) in
        [("implicit", SmtpTls::Implicit(acceptor.clone())), ("starttls", SmtpTls::Starttls(acceptor.clone()))]
    {
        let server = SmtpServer::start(server_tls, &["AUTH LOGIN PLAIN"], |_| SmtpAct::Usual);
        let driver = secure(&server, tls, &json!({"username": "desk"}), &trusting(&file));
        assert_eq!(send(driver.as_ref(), content("a", "b")).await.outcome, Outcome::Sent, "{tls}");
        let mail = &server.mails()[0];
        assert!(mail.is_encrypted);
        assert_eq!(mail.credentials.as_deref(), Some("PLAIN AGRlc2sAczNjcmV0LXBhc3M="));
    }
    let server = SmtpServer::start(SmtpTls::None, &["AUTH PLAIN"], |_| SmtpAct::Usual);
    let driver = secure(&server, "opportunistic", &json!({"username": "desk"}), &loopback());
    let report = send(driver.as_ref(), content("a", "b")).await;
    assert_eq!(report.outcome, Outcome::config("auth_needs_tls"));
    assert_eq!(server.count("AUTH"), 0);
}

#[tokio::test]
async fn login_and_xoauth2_are_spoken_as_servers_expect() {
    let (acceptor, file) = certified();
    let script = |heard: &Heard| match heard.line.as_str() {
        "AUTH LOGIN" => SmtpAct::Say("334 VXNlcm5hbWU6".into()),
        "ZGVzaw==" => SmtpAct::Say("334 UGFzc3dvcmQ6".into()),
        "czNjcmV0LXBhc3M=" => SmtpAct::Say("235 2.7.0 welcome".into()),
        _ => SmtpAct::Usual,
    };
    let server = SmtpServer::start(SmtpTls::Implicit(acceptor.clone()), &["AUTH LOGIN"], script);
    let driver = secure(&server, "implicit", &json!({"username": "desk"}), &trusting(&file));
    assert_eq!(send(driver.as_ref(), content("a", "b")).await.outcome, Outcome::Sent);

    let server = SmtpServer::start(SmtpTls::Implicit(acceptor.clone()), &["AUTH XOAUTH2"], |_| SmtpAct::Usual);
    let settings = json!({"username": "desk", "auth": "xoauth2"});
    let driver = secure(&server, "implicit", &settings, &trusting(&file));
    assert_eq!(send(driver.as_ref(), content("a", "b")).await.outcome, Outcome::Sent);
    let credentials = server.mails()[0].credentials.clone().unwrap();
    assert_eq!(credentials, "XOAUTH2 dXNlcj1kZXNrAWF1dGg9QmVhcmVyIHMzY3JldC1wYXNzAQE=");

    let refuse = |heard: &Heard| match heard.verb().as_str() {
        "AUTH" => SmtpAct::Say("334 eyJzdGF0dXMiOiI0MDEifQ==".into()),
        "" => SmtpAct::Say("535 5.7.8 s3cret-pass is expired".into()),
        _ => SmtpAct::Usual,
    };
    let server = SmtpServer::start(SmtpTls::Implicit(acceptor), &["AUTH XOAUTH2"], refuse);
    let driver = secure(&server, "implicit", &settings, &trusting(&file));
    let report = send(driver.as_ref(), content("a", "b")).await;
    assert_eq!(report.outcome, Outcome::config("smtp_535"));
    assert!(!format!("{report:?}").contains("s3cret-pass"), "{report:?}");
    let said = server.heard().into_iter().find(|heard| heard.verb() == "AUTH").unwrap().line;
    assert_eq!(said, "AUTH XOAUTH2 dXNlcj1kZXNrAWF1dGg9QmVhcmVyIHMzY3JldC1wYXNzAQE=");
}

#[tokio::test]
async fn starttls_cannot_be_stripped_or_injected_into() {
    // The server, or somebody on the way, does not offer STARTTLS.
    let server = SmtpServer::start(SmtpTls::None, &[], |_| SmtpAct::Usual);
    let report = send(secure(&server, "starttls", &json!({}), &loopback()).as_ref(), content("a", "b")).await;
    assert_eq!(report.outcome, Outcome::config("starttls_missing"));
    assert_eq!(server.count("MAIL"), 0);
    // Somebody on the way adds an answer before the encryption begins.
    let injected = SmtpAct::SayRaw(b"220 go ahead\r\n250-evil\r\n250 AUTH PLAIN\r\n".to_vec());
    let (acceptor, file) = certified();
    let server = SmtpServer::start(SmtpTls::Starttls(acceptor), &[], at("STARTTLS", injected));
    let report = send(secure(&server, "starttls", &json!({}), &trusting(&file)).as_ref(), content("a", "b")).await;
    assert_eq!(report.outcome, Outcome::deferred("bad_answer"));
    assert_eq!(server.count("MAIL"), 0);
}

#[tokio::test]
async fn opportunistic_encryption_is_used_where_it_is_offered() {
    let (acceptor, file) = certified();
    let server = SmtpServer::start(SmtpTls::Starttls(acceptor), &["AUTH PLAIN"], |_| SmtpAct::Usual);
    let driver = secure(&server, "opportunistic", &json!({"username": "desk"}), &trusting(&file));
    assert_eq!(send(driver.as_ref(), content("a", "b")).await.outcome, Outcome::Sent);
    assert!(server.mails()[0].is_encrypted && server.mails()[0].credentials.is_some());

    let server = SmtpServer::start(SmtpTls::None, &[], |_| SmtpAct::Usual);
    let driver = secure(&server, "opportunistic", &json!({}), &loopback());
    assert_eq!(send(driver.as_ref(), content("a", "b")).await.outcome, Outcome::Sent);
    assert_eq!((server.mails()[0].is_encrypted, server.count("STARTTLS")), (false, 0));
}

#[tokio::test]
async fn a_certificate_that_is_not_valid_for_the_host_pauses_the_lane() {
    let (acceptor, file) = certified();
    for (tls, server_tls) in [
        ("implicit", SmtpTls::Implicit(acceptor.clone())),
        ("starttls", SmtpTls::Starttls(acceptor.clone())),
        ("opportunistic", SmtpTls::Starttls(acceptor.clone())),
    ] {
        let server = SmtpServer::start(server_tls, &["AUTH PLAIN"], |_| SmtpAct::Usual);
        let other_name = json!({"username": "desk", "host": "other.example"});
        // The certificate has another name, or is signed by nobody we know.
        for (more, egress) in [(other_name, trusting(&file)), (json!({"username": "desk"}), loopback())] {
            let report = send(secure(&server, tls, &more, &egress).as_ref(), content("a", "b")).await;
            assert_eq!(report.outcome, Outcome::config("tls_certificate"), "{tls} {more}: {report:?}");
            assert_eq!(report.class().unwrap().name(), "config");
        }
        assert_eq!((server.count("AUTH"), server.count("MAIL")), (0, 0), "{tls}");
    }
    // A server that does not speak TLS may be another one tomorrow, or the port is wrong.
    let server = SmtpServer::start(SmtpTls::None, &[], |_| SmtpAct::Usual);
    let report = send(secure(&server, "implicit", &json!({}), &trusting(&file)).as_ref(), content("a", "b")).await;
    assert_eq!(report.outcome, Outcome::deferred("tls"), "{report:?}");
}

/// Servers that echo a command which they do not understand.
#[tokio::test]
async fn a_password_is_hidden_in_every_form_in_which_it_was_sent() {
    const PASSWORD: &str = "correct horse: battery";
    let (acceptor, file) = certified();
    for (mechanism, auth) in [("PLAIN", "plain"), ("LOGIN", "login"), ("XOAUTH2", "xoauth2")] {
        let echo = move |heard: &Heard| match heard.line.as_str() {
            "AUTH LOGIN" | "ZGVzaw==" => SmtpAct::Say("334 more".into()),
            line if heard.verb() == "AUTH" || heard.before == 0 && line.ends_with("eQ==") => {
                SmtpAct::Say(format!("535 5.7.8 not understood: {line} or {PASSWORD}"))
            }
            _ => SmtpAct::Usual,
        };
        let server = SmtpServer::start(SmtpTls::Implicit(acceptor.clone()), &[&format!("AUTH {mechanism}")], echo);
        let settings = json!({"host": "tls.example", "port": server.addr().port(), "tls": "implicit",
            "from": "desk@hotel.example", "username": "desk", "auth": auth});
        let driver = build(&settings, Some(PASSWORD), &trusting(&file)).unwrap();
        let report = send(driver.as_ref(), content("a", "b")).await;
        assert_eq!(report.outcome, Outcome::config("smtp_535"), "{auth}: {report:?}");
        let detail = report.evidence.detail.unwrap();
        let hidden = if auth == "login" { "[redacted]".to_owned() } else { format!("AUTH {mechanism} [redacted]") };
        assert!(detail.ends_with(&format!("not understood: {hidden} or [redacted]")), "{auth}: {detail}");
    }
}

/// What the server offers becomes the reason of the pause, which the database has to store.
#[tokio::test]
async fn the_reason_of_a_pause_is_one_short_line() {
    let (acceptor, file) = certified();
    let offers: Vec<String> = (0..100).map(|n| format!("AUTH X\0{n}\u{1b} {}", "y".repeat(1000))).collect();
    let offers: Vec<&str> = offers.iter().map(String::as_str).collect();
    let server = SmtpServer::start(SmtpTls::Implicit(acceptor), &offers, |_| SmtpAct::Usual);
    let driver = secure(&server, "implicit", &json!({"username": "desk"}), &trusting(&file));
    let report = send(driver.as_ref(), content("a", "b")).await;
    assert_eq!(report.outcome, Outcome::config("auth_missing"));
    let detail = report.evidence.detail.unwrap();
    assert!(detail.starts_with("the server offers no sign-in that the settings allow; it offers: X 0"), "{detail}");
    assert!(detail.chars().count() <= 512 && !detail.contains(char::is_control), "{detail}");
}
