//! The `nats` driver publishes events into a stream of NATS JetStream.
//! The header `Nats-Msg-Id` is the key of the delivery, so that the stream recognises a repetition within its duplicate
//! window.

mod protocol;

use std::time::Instant;

use serde::Deserialize;

use self::protocol::{Answer, Info, server_error};
use super::broker::{Acknowledged, Broker, Event, Failed, Publisher, SignIn, Wire, check_characters, endpoint};
use super::{Driver, KeyWindow, Kind, Parts, cloudevents};
use crate::egress::{Deadline, Egress, Endpoint};
use crate::model::{ErrorClass, Guarantee, Outcome};
use crate::secret::{Secret, random};

/// The key window. The default is the default duplicate window of a stream: two minutes.
const KEY_WINDOW: KeyWindow = KeyWindow { default_s: 120, allowed_s: 1..=2_592_000 };
/// The maximum number of bytes of a subject. By default, the server takes 4096 bytes for the whole command line.
const SUBJECT_BYTES: usize = 1024;
const PORT: u16 = 4222;

pub(super) fn kind() -> Kind {
    super::broker::kind("nats", Guarantee::Idempotent, KEY_WINDOW, &["password", "token"], build)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// The host name of the server.
    host: String,
    /// The port. By default 4222.
    port: Option<u16>,
    /// How the connection is encrypted. By default `required`.
    #[serde(default)]
    tls: Encryption,
    /// The user name. The password is the secret `password`.
    username: Option<String>,
    /// The name of the stream that must take the events. By default any stream that has the subject.
    stream: Option<String>,
    /// The beginning of the subjects on which the server answers. By default `_INBOX`.
    inbox_prefix: Option<String>,
    /// The attribute `source` of the events. By default it names the tenant.
    source: Option<String>,
    /// The duplicate window of the stream, in seconds.
    key_window_s: Option<u64>,
}

/// How a connection to a NATS server is encrypted.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Encryption {
    /// TLS after the server's first line, as NATS servers usually do.
    #[default]
    Required,
    /// TLS from the first byte, for servers with `handshake_first`.
    Implicit,
    /// No TLS, for servers on the same machine or in a closed network.
    None,
}

struct Account {
    endpoint: Endpoint,
    encryption: Encryption,
    sign_in: SignIn,
    token: Option<Secret>,
    stream: Option<String>,
    inbox_prefix: String,
}

fn build(parts: &Parts<'_>) -> Result<Box<dyn Driver>, String> {
    let settings: Settings = super::settings(parts.settings)?;
    settings.key_window_s.map_or(Ok(()), |seconds| KEY_WINDOW.check(seconds))?;
    let sign_in = SignIn::read(settings.username.as_deref(), parts)?.whole()?;
    let token = parts.secrets.get("token").cloned();
    if token.is_some() && sign_in.username.is_some() {
        return Err("secret: either \"token\" or \"password\" is allowed, not both; remove one of them".into());
    }
    if let Some(stream) = &settings.stream {
        let named = check_characters(stream, 255, &['.', '*', '>', ' ', '/', '\\']);
        named.map_err(|problem| format!("settings.stream: {problem}"))?;
    }
    let inbox_prefix = settings.inbox_prefix.unwrap_or_else(|| "_INBOX".into());
    check_subject(&inbox_prefix).map_err(|problem| format!("settings.inbox_prefix: {problem}"))?;
    let account = Account {
        endpoint: endpoint(&settings.host, settings.port.unwrap_or(PORT), parts.egress)?,
        encryption: settings.tls,
        sign_in,
        token,
        stream: settings.stream,
        inbox_prefix,
    };
    Broker::<Connection>::boxed(account, settings.source, parts)
}

/// Refuses wildcards, blanks and empty tokens.
fn check_subject(subject: &str) -> Result<(), String> {
    check_characters(subject, SUBJECT_BYTES, &['*', '>', ' '])?;
    match subject.split('.').any(str::is_empty) {
        true => Err("begins or ends with a dot or has two dots in a row, which is not allowed".into()),
        false => Ok(()),
    }
}

/// A connection that is signed in and subscribed to its own inbox.
struct Connection {
    wire: Wire,
    info: Info,
    /// The beginning of the subjects on which the server answers. The number of the publish follows.
    inbox: String,
    published: u64,
}

impl Publisher for Connection {
    type Account = Account;
    /// On idle connections the server sends PING to check whether the client is still there.
    const SPEAKS_UNASKED: bool = true;

    fn check_target(account: &Account, target: &str) -> Result<(), String> {
        check_subject(target)?;
        // Subjects that begin with `$` are for the administration of the server, and on subjects of inboxes other
        // programs get their answers.
        let is_inbox =
            |prefix: &str| target.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        match target.starts_with('$') || is_inbox("_INBOX") || is_inbox(&account.inbox_prefix) {
            true => Err("is one of the server itself or of an inbox; choose another subject".into()),
            false => Ok(()),
        }
    }

    async fn open(account: &Account, egress: &Egress, deadline: Deadline) -> Result<Self, Failed> {
        let is_implicit = account.encryption == Encryption::Implicit;
        let mut wire = Wire::open(&account.endpoint, is_implicit, egress, deadline).await?;
        let info = Info::read(&mut wire, deadline).await?;
        match account.encryption {
            Encryption::Required if !info.offers_tls() => {
                let detail = "the server does not offer TLS; set up TLS there, or set settings.tls to none";
                return Err(Failed::config("tls_missing", ErrorClass::Config, detail));
            }
            Encryption::Required => wire = wire.start_tls(deadline).await?,
            Encryption::None if info.tls_required => {
                let detail = "the server demands TLS; set settings.tls to required";
                return Err(Failed::config("tls_required", ErrorClass::Config, detail));
            }
            Encryption::Implicit | Encryption::None => {}
        }
        if !info.headers {
            let detail = "the server takes no headers, which the key of an event needs; use version 2.2 or later";
            return Err(Failed::config("headers_missing", ErrorClass::Config, detail));
        }
        let inbox = format!("{}.{:032x}", account.inbox_prefix, u128::from_be_bytes(random::<16>()));
        let mut connection = Self { wire, info, inbox, published: 0 };
        connection.sign_in(account, deadline).await?;
        Ok(connection)
    }

    async fn publish(
        &mut self,
        account: &Account,
        event: &Event<'_>,
        deadline: Deadline,
    ) -> Result<Acknowledged, Failed> {
        self.published += 1;
        let reply = format!("{}.{}", self.inbox, self.published);
        let headers = headers(account, event);
        let total = headers.len() + event.body.len();
        if total > self.info.max_payload {
            let detail = format!("the event has {total} bytes; the server takes at most {}", self.info.max_payload);
            let outcome = Outcome::refused("too_large");
            return Err(Failed::refused(outcome, ErrorClass::InvalidContent, detail).and_leaves_connection());
        }
        let command = format!("HPUB {} {reply} {} {total}\r\n{headers}", event.target, headers.len());
        let bytes = [command.as_bytes(), event.body, b"\r\n"].concat();
        self.wire.publish(&bytes, deadline).await?;
        loop {
            match Answer::read(&mut self.wire, deadline).await? {
                Answer::Message { subject, status, body } if subject == reply => {
                    return protocol::acknowledged(&self.wire, status, &body);
                }
                Answer::Ping => self.wire.write(b"PONG\r\n", deadline).await?,
                Answer::Error(text) => return Err(server_error(&self.wire, &text)),
                // A late acknowledgement of an earlier event, or a line that needs no reaction.
                Answer::Message { .. } | Answer::Pong | Answer::Other => {}
            }
        }
    }

    fn wire(&mut self) -> &mut Wire {
        &mut self.wire
    }

    fn opened(&self) -> Instant {
        self.wire.opened()
    }
}

impl Connection {
    async fn sign_in(&mut self, account: &Account, deadline: Deadline) -> Result<(), Failed> {
        let connect = serde_json::json!({
            "verbose": false,
            "pedantic": false,
            "headers": true,
            "no_responders": true,
            "tls_required": account.encryption != Encryption::None,
            "name": "postcommit",
            "lang": "rust",
            "version": env!("CARGO_PKG_VERSION"),
            "protocol": 1,
            "user": account.sign_in.username,
            // The secrets are revealed here to be sent to the server.
            "pass": account.sign_in.password.as_ref().map(Secret::reveal),
            "auth_token": account.token.as_ref().map(Secret::reveal),
        });
        // The answer to PING shows that the sign-in and the subscription were accepted.
        let commands = format!("CONNECT {connect}\r\nSUB {}.* 1\r\nPING\r\n", self.inbox);
        self.wire.write(commands.as_bytes(), deadline).await?;
        loop {
            match Answer::read(&mut self.wire, deadline).await? {
                Answer::Pong => return Ok(()),
                Answer::Ping => self.wire.write(b"PONG\r\n", deadline).await?,
                Answer::Error(text) => return Err(server_error(&self.wire, &text)),
                Answer::Message { .. } | Answer::Other => {}
            }
        }
    }
}

/// The headers of an event. None of the values can hold a line end.
fn headers(account: &Account, event: &Event<'_>) -> String {
    let mut headers =
        format!("NATS/1.0\r\nNats-Msg-Id: {}\r\nContent-Type: {}\r\n", event.id, cloudevents::CONTENT_TYPE);
    for (name, value) in [("Nats-Expected-Stream", account.stream.as_deref()), ("traceparent", event.traceparent)] {
        if let Some(value) = value {
            headers += &format!("{name}: {value}\r\n");
        }
    }
    headers + "\r\n"
}
