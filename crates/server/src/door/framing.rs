//! Finds where a request's body ends, so that the next head can be checked. It decodes nothing; hyper decodes the body.
//! It is stricter than hyper, and both agree on every body that it accepts: sizes must have no signs or spaces, and
//! lines must end in CR LF.

/// The maximum number of bytes of a chunk's size line. All trailers together have the same limit.
const LINE_BYTES: usize = 1024;

/// The rest of a body that has not been read yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Framing {
    /// The body ends after this many bytes. 0 means that it has ended.
    Length(u64),
    Chunked(Chunk),
}

/// The position within a chunked body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Chunk {
    /// Inside the size line of a chunk. Holds the part of the line that was read.
    Size(Vec<u8>),
    /// Inside the data of a chunk. Holds the number of bytes until the next size line, including CR LF.
    Data(u64),
    /// After the last chunk. Holds the part of the trailers that was read.
    Trailers(Vec<u8>),
}

/// The error for malformed chunks.
#[derive(Debug, PartialEq, Eq)]
pub struct Malformed;

impl Framing {
    pub fn chunked() -> Self {
        Self::Chunked(Chunk::Size(Vec::new()))
    }

    pub fn is_over(&self) -> bool {
        matches!(self, Self::Length(0))
    }

    /// Returns the number of `bytes` that belong to the body, and advances the position by them.
    pub fn take(&mut self, bytes: &[u8]) -> Result<usize, Malformed> {
        let mut taken = 0;
        while taken < bytes.len() && !self.is_over() {
            taken += self.step(&bytes[taken..])?;
        }
        Ok(taken)
    }

    fn step(&mut self, bytes: &[u8]) -> Result<usize, Malformed> {
        match self {
            Self::Length(left) => Ok(pass(left, bytes)),
            Self::Chunked(Chunk::Data(left)) => {
                let passed = pass(left, bytes);
                if *left == 0 {
                    *self = Self::chunked();
                }
                Ok(passed)
            }
            Self::Chunked(Chunk::Size(line)) => {
                let taken = read_line(line, bytes)?;
                if line.ends_with(b"\r\n") {
                    *self = match size_of(line)? {
                        0 => Self::Chunked(Chunk::Trailers(Vec::new())),
                        size => Self::Chunked(Chunk::Data(size + 2)),
                    };
                }
                Ok(taken)
            }
            Self::Chunked(Chunk::Trailers(lines)) => {
                let taken = read_line(lines, bytes)?;
                if lines == b"\r\n" || lines.ends_with(b"\r\n\r\n") {
                    *self = Self::Length(0);
                }
                Ok(taken)
            }
        }
    }
}

fn pass(left: &mut u64, bytes: &[u8]) -> usize {
    let passed = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
    *left -= passed as u64;
    passed
}

/// Appends `bytes` to `line` up to and including the next LF. Returns the number of bytes that were taken.
fn read_line(line: &mut Vec<u8>, bytes: &[u8]) -> Result<usize, Malformed> {
    let end = bytes.iter().position(|b| *b == b'\n').map_or(bytes.len(), |at| at + 1);
    line.extend_from_slice(&bytes[..end]);
    let ends_badly = line.ends_with(b"\n") && !line.ends_with(b"\r\n");
    if line.len() > LINE_BYTES || ends_badly { Err(Malformed) } else { Ok(end) }
}

/// Parses the size line of a chunk: at most 15 hexadecimal digits and an optional extension.
fn size_of(line: &[u8]) -> Result<u64, Malformed> {
    let text = std::str::from_utf8(&line[..line.len() - 2]).map_err(|_| Malformed)?;
    let (size, extension) = text.split_once(';').unwrap_or((text, ""));
    let is_size = (1..=15).contains(&size.len()) && size.bytes().all(|b| b.is_ascii_hexdigit());
    if !is_size || extension.bytes().any(|b| b.is_ascii_control()) {
        return Err(Malformed);
    }
    u64::from_str_radix(size, 16).map_err(|_| Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_ends_where_it_says() {
        let mut length = Framing::Length(3);
        assert_eq!((length.take(b"abcGET"), length.is_over()), (Ok(3), true));
        let chunks = b"3\r\nabc\r\n1F;name=value\r\n0123456789012345678901234567890\r\n0\r\n";
        for trailers in [&b"\r\n"[..], b"x: y\r\nz: 0\r\n\r\n"] {
            let whole = [&chunks[..], trailers].concat();
            let mut in_one_piece = Framing::chunked();
            assert_eq!(in_one_piece.take(&[&whole[..], b"GET / "].concat()), Ok(whole.len()));
            assert!(in_one_piece.is_over());
            let mut by_bytes = Framing::chunked();
            for (at, byte) in whole.iter().enumerate() {
                assert!(!by_bytes.is_over(), "{at}");
                assert_eq!(by_bytes.take(&[*byte]), Ok(1));
            }
            assert!(by_bytes.is_over());
        }
    }

    #[test]
    fn chunks_that_could_be_read_in_two_ways_are_malformed() {
        for chunks in [
            "3\nabc",
            "-3\r\n",
            "+3\r\n",
            " 3\r\n",
            "3 \r\n",
            "0x3\r\n",
            "\r\n",
            ";x\r\n",
            "1111111111111111\r\n",
            "3;a\rb\r\n",
            "0\r\nx: y\n",
        ] {
            assert_eq!(Framing::chunked().take(chunks.as_bytes()), Err(Malformed), "{chunks:?}");
        }
        assert_eq!(Framing::chunked().take(&[b'1'; LINE_BYTES + 1]), Err(Malformed));
    }
}
