//! Frames of AMQP 0-9-1, as far as a publisher writes and reads them.

use crate::driver::broker::{Failed, Wire, Writer};
use crate::egress::Deadline;

/// The kinds of frames that carry content.
const METHOD: u8 = 1;
pub(super) const HEADER: u8 = 2;
pub(super) const BODY: u8 = 3;
/// The last byte of every frame.
const END: u8 = 0xce;

/// The class and the number of each method.
pub(super) mod method {
    pub(in crate::driver::rabbitmq) const BASIC: u16 = 60;
    pub(in crate::driver::rabbitmq) const START: (u16, u16) = (10, 10);
    pub(in crate::driver::rabbitmq) const START_OK: (u16, u16) = (10, 11);
    pub(in crate::driver::rabbitmq) const TUNE: (u16, u16) = (10, 30);
    pub(in crate::driver::rabbitmq) const TUNE_OK: (u16, u16) = (10, 31);
    pub(in crate::driver::rabbitmq) const OPEN: (u16, u16) = (10, 40);
    pub(in crate::driver::rabbitmq) const OPEN_OK: (u16, u16) = (10, 41);
    pub(in crate::driver::rabbitmq) const CLOSE: (u16, u16) = (10, 50);
    pub(in crate::driver::rabbitmq) const CHANNEL_OPEN: (u16, u16) = (20, 10);
    pub(in crate::driver::rabbitmq) const CHANNEL_OPEN_OK: (u16, u16) = (20, 11);
    pub(in crate::driver::rabbitmq) const CHANNEL_CLOSE: (u16, u16) = (20, 40);
    pub(in crate::driver::rabbitmq) const PUBLISH: (u16, u16) = (BASIC, 40);
    pub(in crate::driver::rabbitmq) const RETURN: (u16, u16) = (BASIC, 50);
    pub(in crate::driver::rabbitmq) const ACK: (u16, u16) = (BASIC, 80);
    pub(in crate::driver::rabbitmq) const NACK: (u16, u16) = (BASIC, 120);
    pub(in crate::driver::rabbitmq) const CONFIRM: (u16, u16) = (85, 10);
    pub(in crate::driver::rabbitmq) const CONFIRM_OK: (u16, u16) = (85, 11);
}

/// The types of AMQP.
impl Writer {
    /// Begins a method frame.
    pub(super) fn method((class, number): (u16, u16)) -> Self {
        let mut this = Self::default();
        this.u16(class).u16(number);
        this
    }

    /// Writes a text of at most 255 bytes. The callers have checked its length.
    pub(super) fn short(&mut self, text: &str) -> &mut Self {
        let bytes = &text.as_bytes()[..text.len().min(255)];
        self.u8(bytes.len() as u8).bytes(bytes)
    }

    /// Writes a property of the header, if it is given. Returns its flag, or 0.
    pub(super) fn optional_short(&mut self, flag: u16, text: Option<&str>) -> u16 {
        match text {
            Some(text) => {
                self.short(text);
                flag
            }
            None => 0,
        }
    }

    pub(super) fn long(&mut self, bytes: &[u8]) -> &mut Self {
        self.u32(bytes.len() as u32).bytes(bytes)
    }

    pub(super) fn table(&mut self, fields: &Self) -> &mut Self {
        self.long(&fields.0)
    }

    /// Writes a field of a table whose value is a text.
    pub(super) fn field(&mut self, name: &str, text: &str) -> &mut Self {
        self.short(name).u8(b'S').long(text.as_bytes())
    }

    /// Writes a field of a table whose value is true.
    pub(super) fn flag(&mut self, name: &str) -> &mut Self {
        self.short(name).u8(b't').u8(1)
    }

    /// Writes a field of a table whose value is a table.
    pub(super) fn table_field(&mut self, name: &str, fields: &Self) -> &mut Self {
        self.short(name).u8(b'F').table(fields)
    }

    /// The frame of a method.
    pub(super) fn frame(&self, channel: u16) -> Vec<u8> {
        self.of_kind(METHOD, channel)
    }

    pub(super) fn of_kind(&self, kind: u8, channel: u16) -> Vec<u8> {
        let mut frame = Self::default();
        frame.u8(kind).u16(channel).long(&self.0).u8(END);
        frame.0
    }
}

/// A frame from the broker.
pub(super) struct Frame {
    kind: u8,
    content: Vec<u8>,
}

impl Frame {
    pub(super) async fn read(wire: &mut Wire, deadline: Deadline) -> Result<Self, Failed> {
        let bad = |wire: &Wire| wire.broken("bad_answer", "the broker sent something that is no frame of AMQP 0-9-1");
        let head = wire.exactly(7, deadline).await?;
        let kind = head[0];
        if !matches!(kind, METHOD | HEADER | BODY | 8) {
            return Err(bad(wire));
        }
        let length = u32::from_be_bytes([head[3], head[4], head[5], head[6]]) as usize;
        let mut content = wire.exactly(length.saturating_add(1), deadline).await?;
        match content.pop() {
            Some(END) => Ok(Self { kind, content }),
            _ => Err(bad(wire)),
        }
    }

    /// The class and number of the method, and its arguments. `None` if the frame is no method.
    pub(super) fn method(&self) -> Option<((u16, u16), Reader<'_>)> {
        let mut left = Reader(&self.content);
        let which = (left.u16()?, left.u16()?);
        (self.kind == METHOD).then_some((which, left))
    }
}

/// The part of a method that is not read yet.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, left) = self.0.split_at_checked(count)?;
        self.0 = left;
        Some(taken)
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(self.take(2)?.try_into().ok()?))
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        Some(u32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        Some(u64::from_be_bytes(self.take(8)?.try_into().ok()?))
    }

    fn short(&mut self) -> Option<String> {
        let length = self.u8()?;
        self.take(length.into()).map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    }
}

/// The reason why a connection or channel was closed, or an event was returned.
#[derive(Debug, Default)]
pub(super) struct Closed {
    pub(super) code: u16,
    pub(super) text: String,
    /// The method that caused the close. Zeros if no method did, and for a returned event.
    pub(super) method: (u16, u16),
}

impl Closed {
    pub(super) fn read(left: &mut Reader<'_>) -> Option<Self> {
        let (code, text) = (left.u16()?, left.short()?);
        let method = left.u16().zip(left.u16()).unwrap_or_default();
        Some(Self { code, text, method })
    }
}
