//! Writes the bytes of a binary protocol, with numbers in network byte order. The modules of the protocols add their own
//! types.

/// The bytes of a packet or a frame, or of a part of it.
#[derive(Debug, Default)]
pub(in crate::driver) struct Writer(pub(in crate::driver) Vec<u8>);

impl Writer {
    pub(in crate::driver) fn u8(&mut self, number: u8) -> &mut Self {
        self.bytes(&[number])
    }

    pub(in crate::driver) fn u16(&mut self, number: u16) -> &mut Self {
        self.bytes(&number.to_be_bytes())
    }

    pub(in crate::driver) fn u32(&mut self, number: u32) -> &mut Self {
        self.bytes(&number.to_be_bytes())
    }

    pub(in crate::driver) fn u64(&mut self, number: u64) -> &mut Self {
        self.bytes(&number.to_be_bytes())
    }

    pub(in crate::driver) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }
}
