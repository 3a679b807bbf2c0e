//! The `rabbitmq` driver publishes events to an exchange of RabbitMQ (AMQP 0-9-1) and waits for the publisher confirm.
//! AMQP has no idempotency keys, so the broker does not recognise a repeated event; consumers recognise it by its id.

mod frame;

use std::time::Instant;

use serde::Deserialize;

use self::frame::{Closed, Frame, method};
use super::broker::{
    Acknowledged, Broker, Encryption, Event, Failed, Publisher, SignIn, Unrouted, Wire, Writer, check_characters,
    endpoint,
};
use super::{Driver, KeyWindow, Kind, Parts, cloudevents};
use crate::egress::{Deadline, Egress, Endpoint};
use crate::model::{ErrorClass, Guarantee, Outcome};
use crate::secret::Secret;

/// The maximum number of bytes of a short string, such as a routing key.
const SHORT_BYTES: usize = 255;
/// The maximum number of bytes of a frame, in both directions. A returned event comes back in frames of this size.
const FRAME_BYTES: u32 = 32 * 1024;
/// The longest expiry of a message that RabbitMQ takes, in milliseconds.
const EXPIRATION_MS: u128 = u32::MAX as u128;
/// The only channel of a connection.
const CHANNEL: u16 = 1;

pub(super) fn kind() -> Kind {
    super::broker::kind("rabbitmq", Guarantee::AtLeastOnce, KeyWindow::day(60..=2_592_000), &["password"], build)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// The host name of the broker.
    host: String,
    /// The port. By default 5671, or 5672 without TLS.
    port: Option<u16>,
    /// How the connection is encrypted. By default `implicit`.
    #[serde(default)]
    tls: Encryption,
    /// The user name. The password is the secret `password`.
    username: Option<String>,
    /// The virtual host. By default `/`.
    vhost: Option<String>,
    /// The exchange. By default the default exchange, whose routing keys are names of queues.
    #[serde(default)]
    exchange: String,
    /// What happens to an event that the exchange can give to no queue.
    #[serde(default)]
    unrouted: Unrouted,
    /// The attribute `source` of the events. By default it names the tenant.
    source: Option<String>,
}

struct Account {
    endpoint: Endpoint,
    encryption: Encryption,
    sign_in: SignIn,
    vhost: String,
    exchange: String,
    unrouted: Unrouted,
}

fn build(parts: &Parts<'_>) -> Result<Box<dyn Driver>, String> {
    let settings: Settings = super::settings(parts.settings)?;
    let vhost = settings.vhost.unwrap_or_else(|| "/".into());
    check_characters(&vhost, SHORT_BYTES, &[]).map_err(|problem| format!("settings.vhost: {problem}"))?;
    if !settings.exchange.is_empty() {
        let named = check_characters(&settings.exchange, SHORT_BYTES, &[]);
        named.map_err(|problem| format!("settings.exchange: {problem}"))?;
    }
    let port = if settings.tls == Encryption::None { 5672 } else { 5671 };
    let account = Account {
        endpoint: endpoint(&settings.host, settings.port.unwrap_or(port), parts.egress)?,
        encryption: settings.tls,
        sign_in: SignIn::read(settings.username.as_deref(), parts)?.whole()?,
        vhost,
        exchange: settings.exchange,
        unrouted: settings.unrouted,
    };
    Broker::<Connection>::boxed(account, settings.source, parts)
}

/// A connection with a channel on which publishes are confirmed.
struct Connection {
    wire: Wire,
    /// The maximum number of bytes of a frame, as agreed with the broker.
    frame_bytes: usize,
    /// The number of the last publish. The broker counts in the same way, and its confirm contains the number.
    published: u64,
}

impl Publisher for Connection {
    type Account = Account;
    /// The method Close of the connection, with the code 200 and no text.
    const FAREWELL: &'static [u8] = &[1, 0, 0, 0, 0, 0, 11, 0, 10, 0, 50, 0, 200, 0, 0, 0, 0, 0, 0xce];

    fn check_target(_: &Account, target: &str) -> Result<(), String> {
        check_characters(target, SHORT_BYTES, &[])?;
        // Names that begin with `amq.` belong to the broker itself, such as the queues for answers to other programs.
        match target.starts_with("amq.") {
            true => Err("begins with \"amq.\", which the broker itself uses; choose another routing key".into()),
            false => Ok(()),
        }
    }

    async fn open(account: &Account, egress: &Egress, deadline: Deadline) -> Result<Self, Failed> {
        let is_encrypted = account.encryption == Encryption::Implicit;
        let wire = Wire::open(&account.endpoint, is_encrypted, egress, deadline).await?;
        let mut this = Self { wire, frame_bytes: FRAME_BYTES as usize, published: 0 };
        this.wire.write(b"AMQP\0\0\x09\x01", deadline).await?;
        this.method(method::START, deadline).await?;
        this.wire.write(&start_ok(account), deadline).await?;
        let tune = this.method(method::TUNE, deadline).await?;
        let tune_ok = this.tuned(&tune)?;
        this.wire.write(&tune_ok, deadline).await?;
        let mut open = Writer::method(method::OPEN);
        open.short(&account.vhost).short("").u8(0);
        this.wire.write(&open.frame(0), deadline).await?;
        this.method(method::OPEN_OK, deadline).await?;
        this.wire.write(&Writer::method(method::CHANNEL_OPEN).short("").frame(CHANNEL), deadline).await?;
        this.method(method::CHANNEL_OPEN_OK, deadline).await?;
        this.wire.write(&Writer::method(method::CONFIRM).u8(0).frame(CHANNEL), deadline).await?;
        this.method(method::CONFIRM_OK, deadline).await?;
        Ok(this)
    }

    async fn publish(
        &mut self,
        account: &Account,
        event: &Event<'_>,
        deadline: Deadline,
    ) -> Result<Acknowledged, Failed> {
        self.published += 1;
        self.wire.publish(&publish(account, event, self.frame_bytes), deadline).await?;
        let mut returned = None;
        loop {
            let frame = Frame::read(&mut self.wire, deadline).await?;
            // Ignore the content of a returned event, and heartbeats.
            let Some((which, mut arguments)) = frame.method() else { continue };
            match which {
                method::RETURN => returned = Some(Closed::read(&mut arguments).unwrap_or_default()),
                method::ACK | method::NACK => {
                    let (tag, bits) = (arguments.u64().unwrap_or_default(), arguments.u8().unwrap_or_default());
                    if tag != self.published && !(bits & 1 == 1 && tag > self.published) {
                        continue;
                    }
                    return match (which, returned) {
                        (method::NACK, _) => {
                            let broken =
                                self.wire.broken("amqp_nack", "the broker could not store the event in every queue");
                            Err(broken.of_class(ErrorClass::ServerError))
                        }
                        (_, Some(why)) => Err(unrouted(&why).and_leaves_connection()),
                        (_, None) => Ok(Acknowledged::default()),
                    };
                }
                method::CLOSE | method::CHANNEL_CLOSE => {
                    return Err(self.closed(which, &Closed::read(&mut arguments).unwrap_or_default()));
                }
                _ => {}
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
    /// Reads frames until this method arrives, and returns its arguments.
    async fn method(&mut self, expected: (u16, u16), deadline: Deadline) -> Result<Vec<u8>, Failed> {
        loop {
            let frame = Frame::read(&mut self.wire, deadline).await?;
            let Some((which, mut arguments)) = frame.method() else { continue };
            return match which {
                _ if which == expected => Ok(arguments.0.to_vec()),
                method::CLOSE | method::CHANNEL_CLOSE => {
                    Err(self.closed(which, &Closed::read(&mut arguments).unwrap_or_default()))
                }
                _ => Err(self.wire.broken("bad_answer", "the broker sent a method that is not expected")),
            };
        }
    }

    /// Accepts the limits of the broker and states ours. Heartbeats are off, because an idle connection is kept for a
    /// minute at most.
    fn tuned(&mut self, tune: &[u8]) -> Result<Vec<u8>, Failed> {
        let mut arguments = frame::Reader(tune);
        let (channels, frame) = (arguments.u16(), arguments.u32());
        let (Some(channels), Some(frame)) = (channels, frame.filter(|bytes| *bytes == 0 || *bytes >= 4096)) else {
            return Err(self.wire.broken("bad_answer", "the broker sent malformed limits"));
        };
        let frame_bytes = if frame == 0 { FRAME_BYTES } else { frame.min(FRAME_BYTES) };
        self.frame_bytes = frame_bytes as usize;
        Ok(Writer::method(method::TUNE_OK).u16(channels).u32(frame_bytes).u16(0).frame(0))
    }

    /// The meaning of a closed connection or channel. Some codes say whether the broker has the event, others do not.
    fn closed(&self, which: (u16, u16), why: &Closed) -> Failed {
        let detail = format!("the broker closed the connection: {} {}", why.code, why.text);
        let code = format!("amqp_{}", why.code);
        let lower = why.text.to_ascii_lowercase();
        let is_publish = which == method::CHANNEL_CLOSE && why.method == method::PUBLISH;
        let broken = self.wire.broken("amqp_closed", &detail).of_class(ErrorClass::ServerError);
        match why.code {
            404 if is_publish => Failed::config("no_exchange", ErrorClass::Config, detail),
            // The broker checks routing keys, and may allow another one. So only this event is refused.
            403 if is_publish && lower.contains("access to topic '") => {
                Failed::refused(Outcome::refused("forbidden"), ErrorClass::Forbidden, detail)
            }
            403 if is_publish => Failed::config("forbidden", ErrorClass::Forbidden, detail),
            406 if is_publish => Failed::refused(Outcome::refused(code), ErrorClass::InvalidContent, detail),
            _ if broken.is_published => broken,
            403 => Failed::config("auth_failed", ErrorClass::AuthFailed, detail),
            _ if lower.contains("limit") => broken.of_class(ErrorClass::RateLimited),
            402 | 530 => Failed::config("no_vhost", ErrorClass::Config, detail),
            _ => broken,
        }
    }
}

/// The refusal of an event that no queue of the exchange takes.
fn unrouted(why: &Closed) -> Failed {
    let detail = format!("no queue takes this routing key: {} {}", why.code, why.text);
    Failed::refused(Outcome::refused("unroutable"), ErrorClass::InvalidAddress, detail)
}

/// The method with the sign-in. Without a user name it is the user `guest` of RabbitMQ, which may sign in only from the
/// same machine.
fn start_ok(account: &Account) -> Vec<u8> {
    let username = account.sign_in.username.as_deref().unwrap_or("guest");
    // The password is revealed here to be sent to the broker.
    let password = account.sign_in.password.as_ref().map_or("guest", Secret::reveal);
    let mut capabilities = Writer::default();
    // Without `authentication_failure_close` the broker ends the connection after a wrong password without a reason.
    capabilities.flag("authentication_failure_close").flag("publisher_confirms").flag("basic.nack");
    let mut properties = Writer::default();
    properties.field("product", "postcommit").field("version", env!("CARGO_PKG_VERSION"));
    properties.table_field("capabilities", &capabilities);
    let mut start = Writer::method(method::START_OK);
    start.table(&properties).short("PLAIN").long(format!("\0{username}\0{password}").as_bytes()).short("en_US");
    start.frame(0)
}

/// The frames of an event: the method, the properties, and the body in pieces.
fn publish(account: &Account, event: &Event<'_>, frame_bytes: usize) -> Vec<u8> {
    let mandatory = u8::from(account.unrouted == Unrouted::Refuse);
    let mut publish = Writer::method(method::PUBLISH);
    publish.u16(0).short(&account.exchange).short(event.target).u8(mandatory);
    let mut bytes = publish.frame(CHANNEL);
    bytes.extend(properties(event).of_kind(frame::HEADER, CHANNEL));
    // Each frame has seven bytes before its content and one after it.
    for piece in event.body.chunks(frame_bytes - 8) {
        bytes.extend(Writer::default().bytes(piece).of_kind(frame::BODY, CHANNEL));
    }
    bytes
}

/// The properties of an event. A text that is too long for a short string is left out; the envelope has it.
fn properties(event: &Event<'_>) -> Writer {
    let fits = |text: &&str| text.len() <= SHORT_BYTES;
    let expiration = event.lifetime.as_millis();
    let expiration = (expiration <= EXPIRATION_MS).then(|| expiration.to_string());
    let headers = event.traceparent.map(|parent| {
        let mut headers = Writer::default();
        headers.field("traceparent", parent);
        headers
    });
    let mut values = Writer::default();
    let mut flags = 0;
    flags |= values.optional_short(0x8000, Some(cloudevents::CONTENT_TYPE));
    if let Some(headers) = headers {
        flags |= 0x2000;
        values.table(&headers);
    }
    flags |= 0x1000;
    // Persistent: a durable queue keeps the event on disk.
    values.u8(2);
    flags |= values.optional_short(0x0400, event.correlation_id.filter(fits));
    flags |= values.optional_short(0x0100, expiration.as_deref());
    flags |= values.optional_short(0x0080, Some(event.id));
    flags |= 0x0040;
    values.u64(u64::try_from(event.created_at.as_micros() / 1_000_000).unwrap_or_default());
    flags |= values.optional_short(0x0020, Some(event.event_type).filter(fits));
    flags |= values.optional_short(0x0008, Some("postcommit"));
    let mut header = Writer::default();
    header.u16(method::BASIC).u16(0).u64(event.body.len() as u64).u16(flags).bytes(&values.0);
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_farewell_is_the_method_close() {
        let close = Writer::method(method::CLOSE).u16(200).short("").u16(0).u16(0).frame(0);
        assert_eq!(Connection::FAREWELL, close);
    }
}
