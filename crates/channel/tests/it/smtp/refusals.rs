//! What a server's refusal means, and what is kept of it.

use postcommit_channel::model::Outcome;
use postcommit_testkit::{Heard, SmtpAct, SmtpServer, SmtpTls};

use super::{at, content, name, plain, send, send_to};

/// Postfix reports a refused sender at the recipient.
#[tokio::test]
async fn a_refused_sender_pauses_the_lane_at_every_step() {
    for verb in ["MAIL", "RCPT", "DATA", "."] {
        for reply in [
            "550 5.1.8 <desk@hotel.example>: Sender address rejected: Domain not found",
            "553 5.1.7 bad sender",
            "553 5.7.1 <desk@hotel.example>: Sender address rejected: not owned by user desk",
        ] {
            let server = SmtpServer::start(SmtpTls::None, &[], at(verb, SmtpAct::Say(reply.into())));
            let report = send(plain(&server).as_ref(), content("a", "b")).await;
            assert_eq!(
                (name(&report).as_str(), report.class().unwrap().name()),
                ("config", "account"),
                "{verb} {reply}"
            );
        }
    }
}

#[tokio::test]
async fn the_address_is_hidden_in_the_form_in_which_the_server_got_it() {
    let echo = |heard: &Heard| match heard.verb().as_str() {
        "RCPT" => SmtpAct::Say(format!("550 5.1.1 {} is unknown", &heard.line[8..])),
        _ => SmtpAct::Usual,
    };
    let server = SmtpServer::start(SmtpTls::None, &[], echo);
    let report = send_to(plain(&server).as_ref(), "ann@gäste.example", content("a", "b")).await;
    let detail = report.evidence.detail.unwrap();
    assert_eq!(detail, "the mail server refused the recipient: 550 5.1.1 <[redacted]> is unknown");
}

/// A server that ends the connection amid the content has usually said why.
#[tokio::test]
async fn a_refusal_amid_the_content_is_read() {
    for (last_words, outcome, class) in [
        ("552 5.3.4 too big", Outcome::refused("smtp_552"), "invalid_content"),
        ("421 4.3.2 shutting down", Outcome::deferred("smtp_421"), "rate_limited"),
    ] {
        let server = SmtpServer::start(SmtpTls::None, &[], move |heard| match heard.verb().as_str() {
            "DATA" => SmtpAct::SayAndClose(format!("354 go ahead\r\n{last_words}")),
            _ => SmtpAct::Usual,
        });
        let driver = plain(&server);
        // More than the buffers of a connection hold.
        let large = "x".repeat(70).repeat(170_000);
        for _ in 0..2 {
            let report = send(driver.as_ref(), content("a", &large)).await;
            assert_eq!((&report.outcome, report.class().unwrap().name()), (&outcome, class), "{report:?}");
        }
        assert_eq!(server.count("CONNECT"), 2, "the connection is not used again");
    }
}
