//! Packets of MQTT 5, as far as a publisher writes and reads them.

use crate::driver::broker::{Failed, Wire, Writer};
use crate::egress::Deadline;
use crate::model::{Because, ErrorClass, Outcome};

/// Identifiers of MQTT properties.
pub(super) const PAYLOAD_IS_TEXT: u8 = 0x01;
pub(super) const MESSAGE_EXPIRY: u8 = 0x02;
pub(super) const CONTENT_TYPE: u8 = 0x03;
pub(super) const USER_PROPERTY: u8 = 0x26;
pub(super) const MAXIMUM_PACKET_SIZE: u8 = 0x27;
const MAXIMUM_QOS: u8 = 0x24;
const SERVER_KEEP_ALIVE: u8 = 0x13;

/// The reason of PUBACK that says that no subscriber has the topic.
pub(super) const NO_SUBSCRIBERS: u8 = 0x10;
/// The reason of DISCONNECT that says that the packet was larger than the broker allows.
pub(super) const TOO_LARGE: u8 = 0x95;
/// Reasons of PUBACK, and of a DISCONNECT that some brokers send instead: the user may not publish to the topic, the
/// topic is not valid, the payload is not valid.
pub(super) const NOT_AUTHORIZED: u8 = 0x87;
pub(super) const TOPIC_INVALID: u8 = 0x90;
pub(super) const PAYLOAD_INVALID: u8 = 0x99;

/// The types of MQTT.
impl Writer {
    /// Writes a text with its length. The length has two bytes, and all our texts are shorter than 65,535 bytes.
    pub(super) fn text(&mut self, text: &str) -> &mut Self {
        let bytes = &text.as_bytes()[..text.len().min(usize::from(u16::MAX))];
        self.u16(bytes.len() as u16).bytes(bytes)
    }

    /// Writes the properties with their length.
    pub(super) fn properties(&mut self, properties: &Self) -> &mut Self {
        self.length(properties.0.len()).bytes(&properties.0)
    }

    /// Writes a length of variable size: seven bits in each byte, the lowest first.
    fn length(&mut self, mut length: usize) -> &mut Self {
        loop {
            let (byte, more) = ((length & 0x7f) as u8, length >> 7);
            self.u8(if more > 0 { byte | 0x80 } else { byte });
            length = more;
            if more == 0 {
                return self;
            }
        }
    }

    /// The whole packet. `first` is its first byte: type and flags.
    pub(super) fn packet(&self, first: u8) -> Vec<u8> {
        let mut packet = Self::default();
        packet.u8(first).length(self.0.len()).bytes(&self.0);
        packet.0
    }
}

/// A packet from the broker.
#[derive(Debug)]
pub(super) struct Packet {
    kind: u8,
    body: Vec<u8>,
}

impl Packet {
    pub(super) async fn read(wire: &mut Wire, deadline: Deadline) -> Result<Self, Failed> {
        let kind = wire.exactly(1, deadline).await?[0] >> 4;
        let mut length = 0;
        for place in 0.. {
            let byte = wire.exactly(1, deadline).await?[0];
            length |= usize::from(byte & 0x7f) << (7 * place);
            if byte & 0x80 == 0 {
                break;
            }
            if place == 3 {
                return Err(wire.broken("bad_answer", "the broker sent a packet with a malformed length"));
            }
        }
        Ok(Self { kind, body: wire.exactly(length, deadline).await? })
    }

    /// The reason in a PUBACK for the publish with this number. `None` for any other packet.
    pub(super) fn puback(&self, id: u16) -> Option<u8> {
        let is_ours = self.kind == 4 && self.body.get(..2) == Some(&id.to_be_bytes()[..]);
        is_ours.then(|| self.body.get(2).copied().unwrap_or(0))
    }

    /// The reason in a DISCONNECT. `None` for any other packet.
    pub(super) fn disconnect(&self) -> Option<u8> {
        (self.kind == 14).then(|| self.body.first().copied().unwrap_or(0))
    }

    /// Whether the packet changes nothing for a publisher: PINGRESP, or PUBACK of another number.
    pub(super) fn is_harmless(&self) -> bool {
        matches!(self.kind, 4 | 13)
    }
}

/// The broker's answer to CONNECT.
#[derive(Debug)]
pub(super) struct Connack {
    pub(super) reason: u8,
    /// The highest QoS that the broker takes.
    pub(super) maximum_qos: u8,
    /// The maximum number of bytes of a packet that the broker accepts.
    pub(super) maximum_packet: usize,
    /// The time without a packet after which the broker may close the connection, if the broker set another time than
    /// we asked for. 0 means never.
    pub(super) keep_alive_s: Option<u16>,
}

impl Connack {
    /// Reads the packet. `None` if it is no CONNACK or is malformed.
    pub(super) fn of(packet: &Packet) -> Option<Self> {
        let [_, reason, properties @ ..] = packet.body.as_slice() else { return None };
        if packet.kind != 2 {
            return None;
        }
        let mut connack = Self { reason: *reason, maximum_qos: 2, maximum_packet: usize::MAX, keep_alive_s: None };
        // A broker that knows only MQTT 3 sends no properties, and refuses the connection. So they are read only after
        // a success.
        if *reason == 0 {
            let mut left = Reader(properties);
            let length = left.length()?;
            let mut properties = Reader(left.take(length)?);
            while !properties.0.is_empty() {
                connack.property(&mut properties)?;
            }
        }
        Some(connack)
    }

    fn property(&mut self, left: &mut Reader<'_>) -> Option<()> {
        let identifier = left.u8()?;
        match identifier {
            MAXIMUM_QOS => self.maximum_qos = left.u8()?,
            MAXIMUM_PACKET_SIZE => self.maximum_packet = usize::try_from(left.u32()?).ok()?,
            // Skip properties of one byte: retain, wildcards, subscription identifiers, shared subscriptions.
            0x25 | 0x28..=0x2a => drop(left.u8()?),
            SERVER_KEEP_ALIVE => self.keep_alive_s = Some(left.u16()?),
            // Skip properties of two bytes: receive maximum, topic alias maximum.
            0x21 | 0x22 => drop(left.take(2)?),
            // Skip a property of four bytes: the session expiry.
            0x11 => drop(left.u32()?),
            // Skip texts: assigned client id, authentication method and data, response information, server reference,
            // reason.
            0x12 | 0x15 | 0x16 | 0x1a | 0x1c | 0x1f => left.skip_text()?,
            USER_PROPERTY => {
                left.skip_text()?;
                left.skip_text()?;
            }
            _ => return None,
        }
        Some(())
    }
}

/// The part of a packet that is not read yet.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, left) = self.0.split_at_checked(count)?;
        self.0 = left;
        Some(taken)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(self.take(2)?.try_into().ok()?))
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }

    fn skip_text(&mut self) -> Option<()> {
        let length = u16::from_be_bytes(self.take(2)?.try_into().ok()?);
        self.take(length.into()).map(drop)
    }

    fn length(&mut self) -> Option<usize> {
        let mut length = 0;
        for place in 0..4 {
            let byte = self.u8()?;
            length |= usize::from(byte & 0x7f) << (7 * place);
            if byte & 0x80 == 0 {
                return Some(length);
            }
        }
        None
    }
}

/// The meaning of the reason with which a broker refuses a CONNECT.
pub(super) fn connect_refusal(reason: u8) -> Failed {
    let code = format!("mqtt_{reason:02x}");
    let detail = |words: &str| format!("the broker refused the connection with reason {reason:#04x}: {words}");
    let deferred = |class, words| Failed::refused(Outcome::deferred(code.clone()), class, detail(words));
    let config = |class, words| Failed::config(&code, class, detail(words));
    match reason {
        // Reason 1 is the answer of a broker that knows only MQTT 3.
        0x01 | 0x84 => config(ErrorClass::Config, "it does not know MQTT 5; use another broker"),
        0x85 => config(ErrorClass::Config, "it does not take our client id; change settings.client_id_prefix"),
        0x86 | 0x87 | 0x8c | 0x04 | 0x05 => {
            Failed::config("auth_failed", ErrorClass::AuthFailed, detail("it does not accept the credentials"))
        }
        0x8a => config(ErrorClass::Account, "the client is banned"),
        0x88 | 0x89 => deferred(ErrorClass::ServerError, "it is not available"),
        0x97 | 0x9f => deferred(ErrorClass::RateLimited, "there are too many connections"),
        0x9c | 0x9d => config(ErrorClass::Config, "it names another server, which is never followed"),
        _ => deferred(ErrorClass::ServerError, "it did not say why"),
    }
}

/// The meaning of a PUBACK that is no success. The broker has not taken the event.
pub(super) fn publish_refusal(reason: u8) -> Failed {
    let code = format!("mqtt_{reason:02x}");
    let detail = |words: &str| format!("the broker refused the event with reason {reason:#04x}: {words}");
    let refused = |class, words| Failed::refused(Outcome::refused(code.clone()), class, detail(words));
    match reason {
        NO_SUBSCRIBERS => {
            let words = "no subscriber has this topic, so the broker dropped the event";
            Failed::refused(Outcome::refused("no_subscribers"), ErrorClass::InvalidAddress, words)
        }
        NOT_AUTHORIZED => refused(ErrorClass::Forbidden, "the user may not publish to this topic"),
        TOPIC_INVALID => refused(ErrorClass::InvalidAddress, "the topic is not valid"),
        PAYLOAD_INVALID => refused(ErrorClass::InvalidContent, "the payload is not valid"),
        0x91 => Failed::refused(Outcome::deferred(code), ErrorClass::ServerError, detail("the number is in use")),
        0x97 => Failed::refused(Outcome::deferred(code), ErrorClass::RateLimited, detail("a quota is used up")),
        _ => {
            let outcome = Outcome::Rejected { code: code.clone(), because: Because::Unrecognised };
            Failed::refused(outcome, ErrorClass::Unknown, detail("it did not say why"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keep_alive_of_the_broker_is_read() {
        for (body, expected) in [
            (&[0, 0, 0][..], Some(None)),
            (&[0, 0, 3, 0x13, 0, 30], Some(Some(30))),
            (&[0, 0, 6, 0x21, 0, 9, 0x13, 1, 0], Some(Some(256))),
            (&[0, 0, 2, 0x13, 0], None),
        ] {
            let connack = Connack::of(&Packet { kind: 2, body: body.to_vec() });
            assert_eq!(connack.map(|connack| connack.keep_alive_s), expected, "{body:?}");
        }
    }
}
