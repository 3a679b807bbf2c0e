//! The `mqtt` driver publishes events to an MQTT 5 broker with QoS 1. MQTT has no idempotency keys, so the broker does
//! not recognise a repeated event; consumers recognise it by its id.

mod packet;

use std::time::{Duration, Instant};

use serde::Deserialize;

use self::packet::{Connack, Packet, connect_refusal, publish_refusal};
use super::broker::{
    Acknowledged, Broker, Encryption, Event, Failed, Publisher, SignIn, Unrouted, Wire, Writer, check_characters,
    endpoint,
};
use super::{Driver, KeyWindow, Kind, Parts, cloudevents};
use crate::egress::{Deadline, Egress, Endpoint};
use crate::model::{ErrorClass, Guarantee, Outcome};
use crate::secret::{Secret, random};

/// The maximum number of bytes of a topic.
const TOPIC_BYTES: usize = 1024;
/// The time without a packet after which the broker may close the connection, in seconds. It is longer than any send
/// and any idle time.
const KEEP_ALIVE_S: u16 = 600;

pub(super) fn kind() -> Kind {
    super::broker::kind("mqtt", Guarantee::AtLeastOnce, KeyWindow::day(60..=2_592_000), &["password"], build)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// The host name of the broker.
    host: String,
    /// The port. By default 8883, or 1883 without TLS.
    port: Option<u16>,
    /// How the connection is encrypted. By default `implicit`.
    #[serde(default)]
    tls: Encryption,
    /// The user name. The password is the secret `password`.
    username: Option<String>,
    /// The beginning of the client's id, letters and digits. Random digits follow for each connection.
    client_id_prefix: Option<String>,
    /// What happens to an event on a topic without a subscriber.
    #[serde(default)]
    unrouted: Unrouted,
    /// The attribute `source` of the events. By default it names the tenant.
    source: Option<String>,
}

struct Account {
    endpoint: Endpoint,
    encryption: Encryption,
    sign_in: SignIn,
    client_id_prefix: String,
    unrouted: Unrouted,
}

fn build(parts: &Parts<'_>) -> Result<Box<dyn Driver>, String> {
    let settings: Settings = super::settings(parts.settings)?;
    let client_id_prefix = settings.client_id_prefix.unwrap_or_else(|| "postcommit".into());
    let is_plain = client_id_prefix.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
    if !is_plain || client_id_prefix.len() > 100 {
        return Err("settings.client_id_prefix: at most 100 letters, digits, '-' and '_' are allowed".into());
    }
    let port = if settings.tls == Encryption::None { 1883 } else { 8883 };
    let account = Account {
        endpoint: endpoint(&settings.host, settings.port.unwrap_or(port), parts.egress)?,
        encryption: settings.tls,
        sign_in: SignIn::read(settings.username.as_deref(), parts)?.whole()?,
        client_id_prefix,
        unrouted: settings.unrouted,
    };
    Broker::<Connection>::boxed(account, settings.source, parts)
}

/// A connection that the broker has accepted.
struct Connection {
    wire: Wire,
    connack: Connack,
    /// The number of the last publish. Publishes run one at a time, but a late answer to an earlier publish must not be
    /// taken for the answer to the last one.
    packet_id: u16,
}

impl Publisher for Connection {
    type Account = Account;
    /// The packet DISCONNECT.
    const FAREWELL: &'static [u8] = &[0xe0, 0];

    fn check_target(_: &Account, target: &str) -> Result<(), String> {
        check_characters(target, TOPIC_BYTES, &['+', '#'])?;
        // Topics that begin with `$`, such as `$SYS/…`, belong to the broker itself.
        match target.starts_with('$') {
            true => Err("begins with \"$\", which the broker itself uses; choose another topic".into()),
            false => Ok(()),
        }
    }

    async fn open(account: &Account, egress: &Egress, deadline: Deadline) -> Result<Self, Failed> {
        let is_encrypted = account.encryption == Encryption::Implicit;
        let mut wire = Wire::open(&account.endpoint, is_encrypted, egress, deadline).await?;
        wire.write(&connect(account), deadline).await?;
        let packet = Packet::read(&mut wire, deadline).await?;
        let Some(connack) = Connack::of(&packet) else {
            return Err(wire.broken("bad_answer", "the broker did not answer as an MQTT 5 broker"));
        };
        if connack.reason != 0 {
            return Err(connect_refusal(connack.reason));
        }
        if connack.maximum_qos == 0 {
            let detail = "the broker offers QoS 0 only, which acknowledges nothing; use another broker";
            return Err(Failed::config("qos_missing", ErrorClass::Config, detail));
        }
        Ok(Self { wire, connack, packet_id: 0 })
    }

    async fn publish(
        &mut self,
        account: &Account,
        event: &Event<'_>,
        deadline: Deadline,
    ) -> Result<Acknowledged, Failed> {
        // MQTT does not allow 0 as the number of a packet.
        self.packet_id = self.packet_id.checked_add(1).unwrap_or(1);
        let bytes = publish(event, self.packet_id);
        if bytes.len() > self.connack.maximum_packet {
            let (length, most) = (bytes.len(), self.connack.maximum_packet);
            let detail = format!("the event has {length} bytes; the broker takes at most {most}");
            let failed = Failed::refused(Outcome::refused("too_large"), ErrorClass::InvalidContent, detail);
            return Err(failed.and_leaves_connection());
        }
        self.wire.publish(&bytes, deadline).await?;
        loop {
            let packet = Packet::read(&mut self.wire, deadline).await?;
            match packet.puback(self.packet_id) {
                Some(0) => return Ok(Acknowledged::default()),
                Some(packet::NO_SUBSCRIBERS) if account.unrouted == Unrouted::Drop => {
                    return Ok(Acknowledged { text: Some("no subscriber has this topic".into()), reference: None });
                }
                Some(reason) => return Err(publish_refusal(reason).and_leaves_connection()),
                None => {}
            }
            if let Some(reason) = packet.disconnect() {
                let detail = format!("the broker ended the connection with reason {reason:#04x}");
                return Err(match reason {
                    packet::TOO_LARGE => {
                        Failed::refused(Outcome::refused("too_large"), ErrorClass::InvalidContent, detail)
                    }
                    // These reasons refuse this event only. Any other reason concerns the connection.
                    packet::NOT_AUTHORIZED | packet::TOPIC_INVALID | packet::PAYLOAD_INVALID => publish_refusal(reason),
                    _ => self.wire.broken("disconnected", &detail).of_class(ErrorClass::ServerError),
                });
            }
            if !packet.is_harmless() {
                return Err(self.wire.broken("bad_answer", "the broker sent a packet that no publisher gets"));
            }
        }
    }

    fn wire(&mut self) -> &mut Wire {
        &mut self.wire
    }

    fn opened(&self) -> Instant {
        self.wire.opened()
    }

    fn idle_limit(&self) -> Option<Duration> {
        self.connack.keep_alive_s.filter(|seconds| *seconds > 0).map(|seconds| Duration::from_secs(seconds.into()))
    }
}

/// The packet CONNECT: a clean start without a session, because this client receives no events.
fn connect(account: &Account) -> Vec<u8> {
    const CLEAN_START: u8 = 0x02;
    const PASSWORD: u8 = 0x40;
    const USERNAME: u8 = 0x80;
    let SignIn { username, password } = &account.sign_in;
    let flags = CLEAN_START | if username.is_some() { USERNAME | PASSWORD } else { 0 };
    let mut properties = Writer::default();
    properties.u8(packet::MAXIMUM_PACKET_SIZE).u32(super::broker::ANSWER_BYTES as u32);
    let mut body = Writer::default();
    body.text("MQTT").u8(5).u8(flags).u16(KEEP_ALIVE_S).properties(&properties);
    let digits = u64::from_be_bytes(random::<8>()) >> 12;
    body.text(&format!("{}{digits:013x}", account.client_id_prefix));
    // The password is revealed here to be sent to the broker.
    for word in [username.as_deref(), password.as_ref().map(Secret::reveal)].into_iter().flatten() {
        body.text(word);
    }
    body.packet(0x10)
}

/// The packet PUBLISH with QoS 1. The broker drops the event when its notification expires.
fn publish(event: &Event<'_>, packet_id: u16) -> Vec<u8> {
    let seconds = u32::try_from(event.lifetime.as_secs().max(1)).unwrap_or(u32::MAX);
    let mut properties = Writer::default();
    properties.u8(packet::PAYLOAD_IS_TEXT).u8(1);
    properties.u8(packet::MESSAGE_EXPIRY).u32(seconds);
    properties.u8(packet::CONTENT_TYPE).text(cloudevents::CONTENT_TYPE);
    if let Some(parent) = event.traceparent {
        properties.u8(packet::USER_PROPERTY).text("traceparent").text(parent);
    }
    let mut body = Writer::default();
    body.text(event.target).u16(packet_id).properties(&properties).bytes(event.body);
    body.packet(0x32)
}
