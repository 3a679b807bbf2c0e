//! The `smtp` driver sends mail through a mail server (RFC 5321).
//! A mail has the same bytes and the same Message-ID on every attempt, so that mail programs recognise a repeated mail.

mod dialogue;
mod dkim;
pub(super) mod mail;
mod reply;

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use postcommit::check;
use serde::Deserialize;

use self::dialogue::{ANSWER_AFTER_DOT, Cause, Dialogue, Failed};
use self::dkim::Dkim;
use self::mail::{Mail, Sender};
use self::reply::{Reply, Step, refusal};
use super::idle::IdleConnections;
use super::redact::Redactions;
use super::{Driver, KeyWindow, Kind, Message, Parts, Sending, http};
use crate::egress::{Deadline, Egress, Endpoint};
use crate::model::{ErrorClass, Guarantee, Happened, Outcome, Report, Schedule};
use crate::secret::Secret;

/// The sign-in methods by their SMTP names, the preferred one first.
const MECHANISMS: [&str; 3] = ["PLAIN", "LOGIN", "XOAUTH2"];
/// The maximum number of characters of the server's answer that are kept as the server's own id of the message.
const REFERENCE_CHARS: usize = 255;

pub(super) fn kind() -> Kind {
    Kind {
        channel: "email".into(),
        policy: Schedule::Marketplace.into(),
        secrets: vec!["password".into(), "dkim_key".into()],
        secret_routes: vec!["host".into(), "port".into(), "tls".into()],
        // SMTP has no keys. A mail that may have arrived is sent again with the same Message-ID.
        ..Kind::new("smtp", Guarantee::AtLeastOnce, KeyWindow::day(60..=2_592_000), build)
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// The host name of the mail server.
    host: String,
    /// The port. By default 465 for `implicit`, 25 for `none`, otherwise 587.
    port: Option<u16>,
    /// How the connection is encrypted. By default `implicit` if the port is 465, otherwise `starttls`.
    tls: Option<Encryption>,
    /// The user name of the sign-in. The password is the secret `password`.
    username: Option<String>,
    /// The method of the sign-in. By default the first of `plain`, `login` that the server offers.
    auth: Option<Method>,
    /// The sender of every mail, such as `Hotel Sonne <desk@hotel.example>`.
    from: String,
    /// The address to which people answer. By default they answer to `from`.
    reply_to: Option<String>,
    /// The address that gets reports of failed deliveries. By default that of `from`.
    envelope_from: Option<String>,
    /// The domain of the Message-ID. By default that of `from`.
    message_id_domain: Option<String>,
    /// The name by which this program introduces itself. By default the domain of `from`.
    ehlo_name: Option<String>,
    /// The domain that signs mails by DKIM with the secret `dkim_key`. By default that of `from`.
    dkim_domain: Option<String>,
    /// The name under which the domain publishes the key: `SELECTOR._domainkey.DOMAIN`.
    dkim_selector: Option<String>,
}

/// How a connection to a mail server is encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Encryption {
    /// TLS from the first byte, usually on port 465.
    Implicit,
    /// TLS by STARTTLS. A server that does not offer STARTTLS gets no mail.
    Starttls,
    /// TLS by STARTTLS if the server offers it, otherwise no TLS.
    Opportunistic,
    /// No TLS, for servers on the same machine or in a closed network.
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Method {
    Plain,
    Login,
    Xoauth2,
}

/// The mail server and the account there.
#[derive(Debug)]
pub(super) struct Account {
    endpoint: Endpoint,
    encryption: Encryption,
    ehlo_name: String,
    sign_in: Option<SignIn>,
}

/// The sign-in at the mail server.
#[derive(Debug)]
pub(super) struct SignIn {
    username: String,
    /// The password, or the access token for `xoauth2`.
    password: Secret,
    method: Option<Method>,
}

/// The methods `plain`, `login` and `xoauth2` reveal the password, to send it and to search for it in the server's
/// answers.
impl SignIn {
    /// The token that `AUTH PLAIN` sends.
    fn plain(&self) -> String {
        STANDARD.encode(format!("\0{}\0{}", self.username, self.password.reveal()))
    }

    /// The token that `AUTH LOGIN` sends for the password.
    fn login(&self) -> String {
        STANDARD.encode(self.password.reveal())
    }

    /// The token that `AUTH XOAUTH2` sends.
    fn xoauth2(&self) -> String {
        STANDARD.encode(format!("user={}\x01auth=Bearer {}\x01\x01", self.username, self.password.reveal()))
    }

    /// The sign-in method to use. `None` if the server offers none that the settings allow.
    fn mechanism(&self, offered: &[String]) -> Option<&'static str> {
        let allowed: &[&str] = match self.method {
            None => &MECHANISMS[..2],
            Some(Method::Plain) => &MECHANISMS[..1],
            Some(Method::Login) => &MECHANISMS[1..2],
            Some(Method::Xoauth2) => &MECHANISMS[2..],
        };
        MECHANISMS.into_iter().find(|name| allowed.contains(name) && offered.iter().any(|offered| offered == name))
    }
}

struct Smtp {
    account: Account,
    sender: Sender,
    dkim: Option<Dkim>,
    egress: Egress,
    idle: IdleConnections<Dialogue>,
}

fn build(parts: &Parts<'_>) -> Result<Box<dyn Driver>, String> {
    let settings: Settings = super::settings(parts.settings)?;
    let account = account(&settings, parts)?;
    let sender = sender(&settings)?;
    let dkim = Dkim::new(&settings, parts.secrets, sender.from.email.domain())?;
    Ok(Box::new(Smtp { account, sender, dkim, egress: parts.egress.clone(), idle: IdleConnections::default() }))
}

fn account(settings: &Settings, parts: &Parts<'_>) -> Result<Account, String> {
    let encryption = match (settings.tls, settings.port) {
        (Some(tls), _) => tls,
        (None, Some(465)) => Encryption::Implicit,
        (None, _) => Encryption::Starttls,
    };
    let port = settings.port.unwrap_or(match encryption {
        Encryption::Implicit => 465,
        Encryption::None => 25,
        Encryption::Starttls | Encryption::Opportunistic => 587,
    });
    let endpoint = Endpoint::new(&settings.host, port).map_err(|bad| format!("settings.host: {}", bad.detail))?;
    parts.egress.check_endpoint(&endpoint).map_err(|bad| format!("settings.host: {}", bad.detail))?;
    let name = settings.ehlo_name.clone().map_or_else(|| domain_of(&settings.from), Ok)?;
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-.[]:".contains(c));
    if !is_name || name.len() > 255 {
        return Err("settings.ehlo_name: must be a host name such as app.example.com".into());
    }
    Ok(Account { endpoint, encryption, ehlo_name: name, sign_in: sign_in(settings, parts, encryption)? })
}

fn sign_in(settings: &Settings, parts: &Parts<'_>, encryption: Encryption) -> Result<Option<SignIn>, String> {
    let password = parts.secrets.get("password").cloned();
    match (&settings.username, password) {
        (None, None) if settings.auth.is_some() => {
            Err("settings.auth: is set without settings.username; set the user name and the password, or remove it"
                .into())
        }
        (None, None) => Ok(None),
        (None, Some(_)) => Err("settings.username: is missing; set it, because the secret \"password\" is set".into()),
        (Some(_), None) => Err("secret: settings.username needs the secret \"password\"; set it with --secret".into()),
        (Some(_), Some(_)) if encryption == Encryption::None => {
            Err("settings.tls: is none, but a password is sent only over TLS; use starttls or implicit".into())
        }
        (Some(username), Some(password)) => {
            mail::no_controls(username).map_err(|problem| format!("settings.username: {problem}"))?;
            Ok(Some(SignIn { username: username.clone(), password, method: settings.auth }))
        }
    }
}

fn sender(settings: &Settings) -> Result<Sender, String> {
    let mailbox = |name: &str, text: &str| mail::mailbox(text).map_err(|bad| format!("settings.{name}: {bad}"));
    let from = mailbox("from", &settings.from)?;
    let reply_to = settings.reply_to.as_deref().map(|text| mailbox("reply_to", text)).transpose()?;
    let envelope = match settings.envelope_from.as_deref() {
        Some(text) => mailbox("envelope_from", text)?.email.to_string(),
        None => from.email.to_string(),
    };
    let domain = settings.message_id_domain.clone().unwrap_or_else(|| from.email.domain().to_owned());
    check::email(&format!("id@{domain}"))
        .map_err(|_| "settings.message_id_domain: must be a domain such as example.com".to_owned())?;
    Ok(Sender { from, reply_to, envelope, domain })
}

fn domain_of(from: &str) -> Result<String, String> {
    mail::mailbox(from).map(|from| from.email.domain().to_owned()).map_err(|bad| format!("settings.from: {bad}"))
}

impl Driver for Smtp {
    fn send<'a>(&'a self, message: Message<'a>) -> Sending<'a> {
        Box::pin(async move {
            let mail = match self.mail(&message) {
                Ok(mail) => mail,
                Err((code, detail)) => return Report::from(Outcome::refused(code)).because(detail),
            };
            let result = self.deliver(&mail, Deadline::after(message.timeout)).await;
            self.report(result, message.target, &mail.recipient)
        })
    }

    fn shown_request(&self, message: &Message<'_>) -> Option<String> {
        let mail = self.mail(message).ok()?;
        Some(String::from_utf8_lossy(&mail.bytes).replace("\r\n", "\n"))
    }

    fn late_answer(&self) -> Duration {
        ANSWER_AFTER_DOT
    }
}

impl Smtp {
    /// The mail of a message, with its signature if mails are signed.
    fn mail(&self, message: &Message<'_>) -> Result<Mail, mail::Refusal> {
        let mut mail = mail::build(&self.sender, message)?;
        if let Some(dkim) = &self.dkim {
            let signed = dkim.sign(&mail.bytes, message.raw_event.created_at);
            mail.bytes = signed.map_err(|problem| ("not_signed", format!("the mail has no signature: {problem}")))?;
        }
        Ok(mail)
    }

    async fn deliver(&self, mail: &Mail, deadline: Deadline) -> Result<Reply, Failed> {
        if let Some(mut idle) = self.idle.take() {
            match idle.send(mail, deadline).await {
                // The server closed the idle connection. Nothing was sent, so a new connection is opened.
                Err(Failed { step: Step::Reset, .. }) => {}
                result => return self.keep(idle, result),
            }
        }
        let mut dialogue = Dialogue::open(&self.account, &self.egress, deadline).await?;
        let result = dialogue.send(mail, deadline).await;
        self.keep(dialogue, result)
    }

    fn keep(&self, dialogue: Dialogue, result: Result<Reply, Failed>) -> Result<Reply, Failed> {
        if result.as_ref().err().is_none_or(Failed::leaves_connection) {
            self.idle.put(dialogue);
        }
        result
    }

    /// Translates the result of a dialogue into a report. The server's texts are redacted. `target` is the address as
    /// it was given, and `recipient` is the address as the server got it.
    fn report(&self, result: Result<Reply, Failed>, target: &str, recipient: &str) -> Report {
        let clean = |text: &str| http::excerpt(text.as_bytes(), &self.redactions(&[target, recipient]));
        let Failed { step, cause } = match result {
            Ok(reply) => {
                let mut report = Report::from(Outcome::Sent);
                let text: String = clean(&reply.text()).chars().take(REFERENCE_CHARS).collect();
                report.evidence.provider_ref = Some(text).filter(|text| !text.is_empty());
                return report;
            }
            Err(failed) => failed,
        };
        match cause {
            Cause::NotConnected(failure) => super::not_connected(failure),
            Cause::Refused(reply) => {
                let (outcome, class) = refusal(step, &reply);
                let detail =
                    format!("the mail server refused {}: {} {}", step.name(), reply.code, clean(&reply.text()));
                // A greylisted or busy mailbox says nothing about mails to other recipients. Code 421 concerns the
                // connection, and a refused sender concerns all mails.
                let is_of_recipient = step == Step::RcptTo && reply.code != 421;
                let only_delivery = is_of_recipient && class != ErrorClass::Account;
                let suppress =
                    reply.is_dead_address(step).then(|| Happened::Bounced.suppresses()).flatten().map(Arc::from);
                Report { class: Some(class), only_delivery, suppress, ..Report::from(outcome).because(detail) }
            }
            Cause::Broken { code, detail } => {
                let detail = format!("{} at {}", clean(&detail), step.name());
                match step {
                    Step::Accepted => Report::from(Outcome::unclear(code))
                        .because(format!("{detail}, after all of it was sent; the server may have taken it")),
                    _ => Report::from(Outcome::deferred(code)).because(detail),
                }
            }
            Cause::Lacking { code, detail } => {
                let (outcome, class) = match code {
                    "too_large" => (Outcome::refused(code), ErrorClass::InvalidContent),
                    "smtputf8_missing" => (Outcome::refused(code), ErrorClass::InvalidAddress),
                    _ => (Outcome::config(code), ErrorClass::Config),
                };
                Report { class: Some(class), ..Report::from(outcome).because(clean(&detail)) }
            }
        }
    }

    /// The strings to redact in the server's texts: the password in every form that is sent, and the forms of the
    /// recipient's address.
    fn redactions(&self, addresses: &[&str]) -> Vec<String> {
        let mut redactions = Redactions::default();
        if let Some(sign_in) = &self.account.sign_in {
            // The password is revealed here to search for it in the answer.
            redactions.secrets(sign_in.password.reveal());
            redactions.exact(sign_in.password.reveal());
            [sign_in.plain(), sign_in.login(), sign_in.xoauth2()].iter().for_each(|token| redactions.exact(token));
        }
        addresses.iter().for_each(|address| redactions.address(address, None));
        redactions.into_texts()
    }
}
