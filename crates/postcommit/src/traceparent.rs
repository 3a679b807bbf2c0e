//! W3C `traceparent`: the trace and the parent span that a notification belongs to.

use std::fmt;
use std::str::FromStr;

/// A `traceparent` header of <https://www.w3.org/TR/trace-context/>: `00-{trace}-{span}-{flags}`, in lower-case
/// hexadecimal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceParent {
    /// The id of the trace; never 0.
    pub trace_id: u128,
    /// The id of the parent span; never 0.
    pub span_id: u64,
    /// Whether the system that started the trace records it.
    pub sampled: bool,
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace_id, self.span_id, u8::from(self.sampled))
    }
}

impl FromStr for TraceParent {
    type Err = String;

    /// Parses version 00. In a later version, only the fields of version 00 are read, as the standard requires.
    fn from_str(text: &str) -> Result<Self, String> {
        parse(text).ok_or_else(|| {
            "is not a W3C traceparent such as 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned()
        })
    }
}

fn parse(text: &str) -> Option<TraceParent> {
    let fields: Vec<&str> = text.splitn(5, '-').collect();
    let (&[version, trace, span, flags], rest) = fields.split_first_chunk::<4>()?;
    let version = hex(version, 2)?;
    if version == 0xff || (version == 0 && !rest.is_empty()) {
        return None;
    }
    let parent = TraceParent {
        trace_id: hex(trace, 32)?,
        span_id: u64::try_from(hex(span, 16)?).ok()?,
        sampled: hex(flags, 2)? & 1 == 1,
    };
    (parent.trace_id != 0 && parent.span_id != 0).then_some(parent)
}

fn hex(text: &str, digits: usize) -> Option<u128> {
    let plain = text.len() == digits && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    plain.then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parsed_traceparent_is_written_unchanged() {
        let text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let parent: TraceParent = text.parse().unwrap();
        assert_eq!((parent.to_string().as_str(), parent.sampled), (text, true));
        let later: TraceParent =
            "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-02-what-is-to-come".parse().unwrap();
        assert!(!later.sampled);
    }

    #[test]
    fn an_invalid_traceparent_is_refused() {
        for text in [
            "",
            "00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c8031-b7ad6b7169203331-01",
            "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-é1",
        ] {
            assert!(text.parse::<TraceParent>().is_err(), "{text}");
        }
    }
}
