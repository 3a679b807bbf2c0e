//! Mail by the real binary: killed at every step of the SMTP dialogue, and through a real mail server.

use postcommit_testkit::{Child, Heard, Postfix, SmtpAct, SmtpServer, SmtpTls};
use tokio::runtime::{Builder, Runtime};

use crate::cli::Shell;
use crate::crash::run_all;
use crate::docs::snippet;
use crate::installation::{Guarantee, Hooks, Installation, Kind};

/// The steps at which the scripted server hears something. The last one is the final dot of the mail.
const STEPS: [&str; 6] = ["CONNECT", "EHLO", "MAIL", "RCPT", "DATA", "."];
/// Lines that servers and clients have treated differently: dots, a long line, and letters outside of ASCII.
const BODY: &str = "Grüße aus Köln\n.\n..\n.hidden\nFrom here on\n\n  indented  \n日本語 😀\n";

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn port_of(port: u16) -> String {
    format!("port={port}")
}

/// Creates the provider `mail` for the server on this port of 127.0.0.1.
fn create(port: u16) -> Vec<String> {
    let words = ["providers", "create", "mail", "--driver", "smtp", "--set", "host=127.0.0.1", "--set", "tls=none"];
    let more = ["--set", "from=Hotel Sonne <desk@hotel.example>", "--timeout-ms", "1000", "--set"];
    words.iter().chain(&more).map(|word| (*word).to_owned()).chain([port_of(port)]).collect()
}

fn strs(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

#[test]
fn a_mail_killed_at_every_step_of_the_dialogue_on_postgresql_arrives_with_the_same_bytes() {
    run_all(&STEPS, |step| kill_at(Kind::Postgres, step));
}

#[test]
fn a_mail_killed_at_every_step_of_the_dialogue_on_sqlite_arrives_with_the_same_bytes() {
    run_all(&STEPS, |step| kill_at(Kind::Sqlite, step));
}

/// Kills the process while the mail server lets it wait for the answer to this step. Another process finishes the work.
fn kill_at(kind: Kind, step: &'static str) {
    let installation = Installation::new(kind, Hooks::of(Guarantee::AtLeastOnce));
    let hold = move |heard: &Heard| match heard.verb() == step && heard.before == 0 {
        true => SmtpAct::Hold,
        false => SmtpAct::Usual,
    };
    let server = SmtpServer::start(SmtpTls::None, &["SIZE 1000000"], hold);
    installation.run(&strs(&create(server.addr().port())));
    let words =
        ["enqueue", "booking.confirmed", "--to", "email:guest@guest.example", "--title", "Grüße", "--body", BODY];
    let id = installation.run(&words).trim().to_owned();
    let doomed = installation.serve();
    runtime().block_on(server.wait_until_heard(step, 1));
    doomed.kill9();
    let healthy = installation.serve();
    installation.wait_until_quiet();
    healthy.term();
    healthy.wait();
    check(&installation, &server, step, &id);
}

fn check(installation: &Installation, server: &SmtpServer, step: &str, id: &str) {
    let (contents, mails) = (server.contents(), server.mails());
    // The first server heard the final dot and did not answer, so it may have taken the mail: the bytes went out twice.
    assert_eq!((contents.len(), mails.len()), (if step == "." { 2 } else { 1 }, 1), "{step}: {:#?}", server.heard());
    assert!(contents.iter().all(|content| *content == mails[0].wire), "{step}");
    let text = String::from_utf8(mails[0].bytes()).unwrap();
    assert!(text.contains(&format!("\r\nMessage-ID: <{id}_1@hotel.example>\r\n")), "{step}: {text}");
    let ended = installation.rows("SELECT state, attempts FROM postcommit.delivery_ledger");
    assert_eq!(ended, [["sent".to_owned(), "2".to_owned()].to_vec()], "{step}");
}

#[test]
fn a_real_mail_server_gets_the_same_bytes_on_a_retry_on_postgresql() {
    through_postfix(Kind::Postgres);
}

#[test]
fn a_real_mail_server_gets_the_same_bytes_on_a_retry_on_sqlite() {
    through_postfix(Kind::Sqlite);
}

/// The first attempt goes to a server that records the mail and does not answer, the second one to Postfix.
fn through_postfix(kind: Kind) {
    let silent = SmtpServer::start(SmtpTls::None, &[], |heard| match heard.verb().as_str() {
        "." => SmtpAct::Close,
        _ => SmtpAct::Usual,
    });
    let shell = Shell::empty_on(kind).with("POSTCOMMIT_EGRESS_ALLOW", "127.0.0.0/8");
    shell.run(&["migrate"]).ends(0);
    shell.run(&strs(&create(silent.addr().port()))).ends(0);
    let key = format!("dkim_key=@{}/../channel/tests/keys/rsa.pem", env!("CARGO_MANIFEST_DIR"));
    shell.run(&["providers", "update", "mail", "--set", "dkim_selector=mail", "--secret", &key]).ends(0);
    let to = ["enqueue", "booking.confirmed", "--to", "email:guest@guest.example", "--title", "Grüße", "--body", BODY];
    let id = shell.run(&to).ends(0).stdout.trim().to_owned();
    shell.dispatch();
    assert_eq!(shell.run(&["notifications", "show", &id, "-o", "json"]).json()["state"], "retrying");

    let postfix = Postfix::start();
    shell.run(&["providers", "update", "mail", "--set", &port_of(postfix.addr().port())]).ends(0);
    shell.run(&["dispatch", "--once", "--id", &id]).ends(0);
    let delivery = shell.run(&["deliveries", "show", &format!("{id}.1"), "-o", "json"]).ends(0).json();
    assert_eq!((&delivery["state"], &delivery["attempts"]), (&"sent".into(), &2.into()), "{delivery}");
    let arrived = postfix.wait_for(1);
    let mail = own_part(&arrived[0]);
    // Its signature stays valid, because not one byte is another.
    assert_eq!(mail, unstuffed(&silent.contents()[0]));
    assert!(mail.starts_with("DKIM-Signature: v=1; a=rsa-sha256;"), "{mail}");
}

/// The mail without the headers that Postfix puts before it.
fn own_part(mail: &[u8]) -> String {
    let text = String::from_utf8(mail.to_vec()).unwrap();
    let begin = text.find("\nDKIM-Signature: ").or_else(|| text.find("\nFrom: "));
    let begin = begin.expect("the first header of the mail") + 1;
    assert!(text.starts_with("Return-Path: <desk@hotel.example>\n"), "{text}");
    text[begin..].to_owned()
}

/// The content of a mail as a mailbox stores it: dots are not doubled, and lines end with LF.
fn unstuffed(wire: &[u8]) -> String {
    let text = String::from_utf8(wire.to_vec()).unwrap().replace("\r\n", "\n");
    text.split_inclusive('\n').map(|line| line.strip_prefix('.').unwrap_or(line)).collect()
}

#[test]
fn the_walk_through_of_the_readme_sends_a_real_mail() {
    let postfix = Postfix::start();
    let shell =
        Shell::empty().with("POSTCOMMIT_SERVER_LISTEN", "127.0.0.1:0").with("POSTCOMMIT_EGRESS_ALLOW", "127.0.0.1/32");
    let server = Child::spawn(shell.command(&["serve"]));
    server.wait_for_line("is ready");
    let block = snippet("README.md", "mail-run").replace("port=2525", &port_of(postfix.addr().port()));
    let commands: Vec<&str> = block.lines().filter_map(|line| line.strip_prefix("$ ")).collect();
    assert_eq!(commands.len(), 3, "{block}");
    for line in commands {
        let shown = shell.sh(line).ends(0).stdout;
        assert!(line.contains(" create ") || shown.contains("sent"), "{line}: {shown}");
    }
    let mails: Vec<String> = postfix.wait_for(2).iter().map(|mail| own_part(mail)).collect();
    assert!(mails.iter().any(|mail| mail.contains("\nSubject: See you soon\n")), "{mails:?}");
    assert!(mails.iter().all(|mail| mail.contains("\nTo: guest@guest.example\n")), "{mails:?}");
}
