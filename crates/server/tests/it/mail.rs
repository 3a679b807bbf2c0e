//! Mail by the real binary: killed at every step of the SMTP dialogue, and through a real mail server.

use std::sync::Arc;

use postcommit_testkit::{Child, Heard, Postfix, SmtpAct, SmtpServer, SmtpTls};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tokio::runtime::{Builder, Runtime};
use tokio_rustls::TlsAcceptor;

use crate::cli::Shell;
use crate::crash::run_all;
use crate::docs::snippet;
use crate::installation::{Guarantee, Hooks, Installation, Kind};

/// The steps at which the scripted server lets the process wait: what it hears, and how often it heard that before. EHLO
/// comes once more after STARTTLS. `AMID` is after the first line of the mail, and the last step is its final dot.
const STEPS: [Step; 10] = [
    ("CONNECT", 0),
    ("EHLO", 0),
    ("STARTTLS", 0),
    ("EHLO", 1),
    ("AUTH", 0),
    ("MAIL", 0),
    ("RCPT", 0),
    ("DATA", 0),
    ("AMID", 0),
    (".", 0),
];
/// Lines that servers and clients have treated differently: dots, a long line, and letters outside of ASCII.
const BODY: &str = "Grüße aus Köln\n.\n..\n.hidden\nFrom here on\n\n  indented  \n日本語 😀\n";

type Step = (&'static str, usize);

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn port_of(port: u16) -> String {
    format!("port={port}")
}

/// Creates the provider `mail` for the server on this port of 127.0.0.1.
fn create(port: u16, more: &[&str]) -> Vec<String> {
    let words = ["providers", "create", "mail", "--driver", "smtp", "--set", "host=127.0.0.1"];
    let from = ["--set", "from=Hotel Sonne <desk@hotel.example>", "--set"];
    words.iter().chain(more).chain(&from).map(|word| (*word).to_owned()).chain([port_of(port)]).collect()
}

const PLAIN: [&str; 4] = ["--set", "tls=none", "--timeout-ms", "4000"];

fn strs(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

/// An installation with a mail server that lets the first process wait at a step. For the steps of encryption and sign-in
/// the server demands both.
struct Desk {
    installation: Installation,
    server: SmtpServer,
    step: Step,
}

fn is_secure(step: Step) -> bool {
    matches!(step, ("STARTTLS" | "AUTH", _) | ("EHLO", 1))
}

impl Desk {
    fn new(kind: Kind, guarantee: Guarantee, step: Step) -> Self {
        let installation = Installation::new(kind, Hooks::of(guarantee));
        let hold = move |heard: &Heard| match step {
            ("AMID", _) if heard.verb() == "DATA" && heard.before == 0 => SmtpAct::HoldAmid,
            (verb, before) if heard.verb() == verb && heard.before == before => SmtpAct::Hold,
            _ => SmtpAct::Usual,
        };
        let guarantee = ["--guarantee", guarantee.name()];
        if !is_secure(step) {
            let server = SmtpServer::start(SmtpTls::None, &["SIZE 1000000"], hold);
            installation.run(&strs(&create(server.addr().port(), &[&PLAIN[..], &guarantee].concat())));
            return Self { installation, server, step };
        }
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let (ca, password) = (installation.path("ca.pem"), installation.path("password"));
        std::fs::write(&ca, made.cert.pem()).unwrap();
        std::fs::write(&password, "s3cret").unwrap();
        let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
        let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let config = config.with_single_cert(vec![made.cert.der().clone()], key).unwrap();
        let tls = SmtpTls::Starttls(TlsAcceptor::from(Arc::new(config)));
        let server = SmtpServer::start(tls, &["SIZE 1000000", "AUTH PLAIN"], hold);
        let installation = installation.with("EGRESS_CA_FILE", ca.to_str().unwrap());
        let secret = format!("password=@{}", password.display());
        let more = ["--set", "tls=starttls", "--set", "username=desk", "--secret", &secret, "--timeout-ms", "15000"];
        installation.run(&strs(&create(server.addr().port(), &[&more[..], &guarantee].concat())));
        Self { installation, server, step }
    }

    fn enqueue(&self) -> String {
        let words =
            ["enqueue", "booking.confirmed", "--to", "email:guest@guest.example", "--title", "Grüße", "--body", BODY];
        self.installation.run(&words).trim().to_owned()
    }

    /// Kills the process while the server lets it wait.
    fn kill(&self, doomed: &Child) {
        let (verb, before) = self.step;
        runtime().block_on(self.server.wait_until_heard(verb, before + 1));
        doomed.kill9();
    }

    /// Another process finishes the work.
    fn finish(&self) {
        let healthy = self.installation.serve();
        self.installation.wait_until_quiet();
        healthy.term();
        healthy.wait();
    }
}

#[test]
fn a_mail_killed_at_every_step_of_the_dialogue_on_postgresql_arrives_with_the_same_bytes() {
    run_all(&STEPS, |step| kill_at(Kind::Postgres, *step));
}

#[test]
fn a_mail_killed_at_every_step_of_the_dialogue_on_sqlite_arrives_with_the_same_bytes() {
    run_all(&STEPS, |step| kill_at(Kind::Sqlite, *step));
}

fn kill_at(kind: Kind, step: Step) {
    let desk = Desk::new(kind, Guarantee::AtLeastOnce, step);
    let id = desk.enqueue();
    desk.kill(&desk.installation.serve());
    desk.finish();
    let (contents, mails) = (desk.server.contents(), desk.server.mails());
    // The first server heard the final dot and did not answer, so it may have taken the mail: the bytes went out twice.
    let expected = (if step.0 == "." { 2 } else { 1 }, 1);
    assert_eq!((contents.len(), mails.len()), expected, "{step:?}: {:#?}", desk.server.heard());
    assert!(contents.iter().all(|content| *content == mails[0].wire), "{step:?}");
    assert_eq!((mails[0].is_encrypted, mails[0].credentials.is_some()), (is_secure(step), is_secure(step)), "{step:?}");
    let text = String::from_utf8(mails[0].bytes()).unwrap();
    assert!(text.contains(&format!("\r\nMessage-ID: <{id}_1@hotel.example>\r\n")), "{step:?}: {text}");
    let ended = desk.installation.rows("SELECT state, attempts FROM postcommit.delivery_ledger");
    assert_eq!(ended, [["sent".to_owned(), "2".to_owned()].to_vec()], "{step:?}");
}

#[test]
fn a_process_killed_on_a_connection_that_it_uses_again_loses_and_repeats_nothing() {
    run_all(&[Kind::Postgres, Kind::Sqlite], |kind| {
        let desk = Desk::new(*kind, Guarantee::AtLeastOnce, ("RSET", 0));
        let doomed = desk.installation.serve();
        let first = desk.enqueue();
        runtime().block_on(desk.server.wait_for(1));
        let second = desk.enqueue();
        desk.kill(&doomed);
        desk.finish();
        let texts: Vec<String> =
            desk.server.mails().iter().map(|mail| String::from_utf8(mail.bytes()).unwrap()).collect();
        assert_eq!((texts.len(), desk.server.contents().len()), (2, 2), "{kind:?}: {:#?}", desk.server.heard());
        for (text, id) in texts.iter().zip([first, second]) {
            assert!(text.contains(&format!("\r\nMessage-ID: <{id}_1@hotel.example>\r\n")), "{kind:?}: {text}");
        }
    });
}

/// The killed process may have sent the mail, and nobody knows.
#[test]
fn a_mail_that_may_be_sent_at_most_once_is_not_sent_again_after_a_kill() {
    let cases = [Kind::Postgres, Kind::Sqlite].map(|kind| [(kind, ("RCPT", 0)), (kind, ("AMID", 0)), (kind, (".", 0))]);
    run_all(&cases.concat(), |(kind, step)| {
        let desk = Desk::new(*kind, Guarantee::AtMostOnce, *step);
        desk.enqueue();
        desk.kill(&desk.installation.serve());
        desk.finish();
        let contents = usize::from(step.0 == ".");
        assert_eq!(desk.server.contents().len(), contents, "{kind:?} {step:?}: {:#?}", desk.server.heard());
        assert_eq!((desk.server.mails().len(), desk.server.count("CONNECT")), (0, 1), "{kind:?} {step:?}");
        let ended = desk.installation.rows("SELECT state, reason, attempts FROM postcommit.delivery_ledger");
        assert_eq!(ended, [["parked", "outcome_unknown", "1"].map(str::to_owned).to_vec()], "{kind:?} {step:?}");
    });
}

#[test]
fn a_real_mail_server_gets_the_same_bytes_after_a_kill() {
    let desk = Desk::new(Kind::Postgres, Guarantee::AtLeastOnce, (".", 0));
    desk.enqueue();
    desk.kill(&desk.installation.serve());
    let postfix = Postfix::start();
    desk.installation.run(&["providers", "update", "mail", "--set", &port_of(postfix.addr().port())]);
    desk.finish();
    assert_eq!(own_part(&postfix.wait_for(1)[0]), unstuffed(&desk.server.contents()[0]));
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
    shell.run(&strs(&create(silent.addr().port(), &PLAIN))).ends(0);
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
