//! Mail by the command line: the provider is created, tested and used, and wrong settings are refused.

use postcommit_testkit::{SmtpAct, SmtpServer, SmtpTls};

use super::Shell;
use crate::installation::Kind;

const FROM: &str = "from=Hotel Sonne <desk@hotel.example>";

/// A migrated database and a provider `mail` for this server.
fn with_mail(kind: Kind, server: &SmtpServer) -> Shell {
    let shell = Shell::empty_on(kind).with("POSTCOMMIT_EGRESS_ALLOW", "127.0.0.0/8");
    shell.run(&["migrate"]).ends(0);
    let port = format!("port={}", server.addr().port());
    let create = ["providers", "create", "mail", "--driver", "smtp", "--set", "host=127.0.0.1", "--set", &port];
    shell.run(&[&create[..], &["--set", "tls=none", "--set", FROM]].concat()).ends(0);
    shell
}

fn sends_a_mail(kind: Kind) {
    let server = SmtpServer::start(SmtpTls::None, &["SIZE 1000000"], |_| SmtpAct::Usual);
    let shell = with_mail(kind, &server);
    let shown = shell.run(&["providers", "show", "mail", "-o", "json"]).ends(0).json();
    assert_eq!((&shown["channel"], &shown["guarantee"]), (&"email".into(), &"at_least_once".into()));

    let tested = shell.run(&["providers", "test", "mail", "--address", "desk@hotel.example"]).ends(0);
    assert!(tested.stdout.starts_with("sent  ") && tested.stdout.contains("2.0.0 queued as T1"), "{}", tested.stdout);

    let id = shell.enqueue("booking.confirmed", &["--title", "See you soon", "--body", "Your room is ready."]);
    shell.dispatch();
    let mails = server.mails();
    let text = String::from_utf8(mails[1].bytes()).unwrap();
    assert!(
        text.contains("\r\nSubject: See you soon\r\n") && text.ends_with("\r\n\r\nYour room is ready.\r\n"),
        "{text}"
    );
    assert_eq!((mails.len(), &mails[1].recipients[..]), (2, &["TO:<guest@example.com>".to_owned()][..]));

    let delivery = shell.run(&["deliveries", "show", &format!("{id}.1"), "-o", "json"]).ends(0).json();
    assert_eq!((&delivery["state"], &delivery["provider"]), (&"sent".into(), &"mail".into()), "{delivery}");
    let shown = shell.run(&["deliveries", "show", &format!("{id}.1")]).ends(0).stdout;
    assert!(shown.contains("sent") && shown.contains("2.0.0 queued as T2"), "{shown}");
}

#[test]
fn a_mail_is_sent_by_the_command_line_on_postgresql() {
    sends_a_mail(Kind::Postgres);
}

#[test]
fn a_mail_is_sent_by_the_command_line_on_sqlite() {
    sends_a_mail(Kind::Sqlite);
}

#[test]
fn a_refused_test_mail_is_shown_with_the_answer() {
    let server = SmtpServer::start(SmtpTls::None, &[], |heard| match heard.verb().as_str() {
        "RCPT" => SmtpAct::Say("550 5.1.1 no such user".into()),
        _ => SmtpAct::Usual,
    });
    let ran = with_mail(Kind::Sqlite, &server).run(&["providers", "test", "mail", "--address", "x@guest.example"]);
    let said = ran.ends(1).stdout;
    assert!(said.contains("smtp_550 [invalid_address]  the mail server refused the recipient: 550 5.1.1"), "{said}");
}

#[test]
fn wrong_settings_of_a_mail_provider_are_refused_with_the_field() {
    let shell = Shell::empty();
    shell.run(&["migrate"]).ends(0);
    let create = ["providers", "create", "mail", "--driver", "smtp"];
    for (more, words) in [
        (&["--set", FROM][..], "settings: missing field `host`"),
        (&["--set", "host=mail.example"], "settings: missing field `from`"),
        (&["--set", "host=mail.example", "--set", "from=desk"], "settings.from: must be a mail address such as"),
        (&["--set", "host=mail.example", "--set", FROM, "--set", "tls=ssl"], "settings.tls: unknown variant `ssl`"),
        (&["--set", "host=mail.example", "--set", FROM, "--set", "port=99999"], "settings.port"),
        (&["--set", "host=mail.example", "--set", FROM, "--set", "username=desk"], "needs the secret \"password\""),
        (&["--set", "host=127.0.0.1", "--set", FROM], "egress.allow"),
    ] {
        let said = shell.run(&[&create[..], more].concat()).ends(2).stderr;
        assert!(said.contains(words), "{more:?}: {said}");
    }
    assert_eq!(shell.run(&["providers", "list", "-o", "json"]).ends(0).json(), serde_json::json!([]));
}
