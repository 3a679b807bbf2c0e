//! Checks the head of a request before hyper sees it. Hyper accepts heads that a proxy in front of this server may read
//! differently: two lengths, a length together with chunks, or a line that ends in LF alone. If two programs read the
//! same bytes differently, requests can be smuggled. Such a head is refused.

use super::framing::Framing;
use super::refusal::DoorRefusal;

/// The maximum number of bytes of a head, from the request line to the empty line at its end.
pub const HEAD_BYTES: usize = 32 * 1024;
/// The maximum number of header fields of a request. Hyper has the same limit.
pub const HEADER_FIELDS: usize = 100;
const METHOD_BYTES: usize = 16;
/// The segment after each of these prefixes is a name that applications choose. It may hold an encoded slash or
/// backslash. The router splits a path before it decodes it, so an encoded slash stays within its segment. If a proxy
/// decodes the slash first, the path matches no route or a route that needs the same rights.
const NAMED_BY_OTHERS: [&str; 8] = [
    "/v1/entities/",
    "/v1/event-types/",
    "/v1/inbox/",
    "/v1/lists/",
    "/v1/users/",
    "/event-types/",
    "/lists/",
    "/users/",
];

/// The result of searching for a head.
#[derive(Debug, PartialEq, Eq)]
pub enum HeadSearch {
    /// The head is not complete yet.
    Unfinished,
    /// The head has this many bytes. The framing describes the body after it.
    Head(usize, Framing),
    Refused(DoorRefusal),
}

/// Looks for a complete head at the beginning of `bytes`. The first `seen` bytes were searched by an earlier call.
pub fn find(bytes: &[u8], seen: usize, body_limit: u64) -> HeadSearch {
    // Step back, because the four bytes that end a head may have arrived in parts.
    let from = seen.saturating_sub(3);
    if let Some(refusal) = stray_line_end(bytes, from) {
        return HeadSearch::Refused(refusal);
    }
    let end = bytes[from..].windows(4).position(|window| window == b"\r\n\r\n").map(|at| from + at + 4);
    match end {
        Some(end) if end <= HEAD_BYTES => match check(&bytes[..end], body_limit) {
            Ok(framing) => HeadSearch::Head(end, framing),
            Err(refusal) => HeadSearch::Refused(refusal),
        },
        None if bytes.len() < HEAD_BYTES => HeadSearch::Unfinished,
        _ => HeadSearch::Refused(DoorRefusal::large_header(HEAD_BYTES)),
    }
}

/// Finds a CR or LF that is not part of a CR LF. It checks only the head, because a body may hold any byte.
fn stray_line_end(bytes: &[u8], from: usize) -> Option<DoorRefusal> {
    for at in from..bytes.len() {
        match bytes[at] {
            b'\n' if at == 0 || bytes[at - 1] != b'\r' => {
                return Some(DoorRefusal::bad("a line of the header does not end in CR LF"));
            }
            b'\r' if bytes.get(at + 1).is_some_and(|next| *next != b'\n') => {
                return Some(DoorRefusal::bad("the header contains a CR without a LF"));
            }
            b'\n' if at >= 3 && &bytes[at - 3..=at] == b"\r\n\r\n" => return None,
            _ => {}
        }
    }
    None
}

fn check(head: &[u8], body_limit: u64) -> Result<Framing, DoorRefusal> {
    let mut fields = [httparse::EMPTY_HEADER; HEADER_FIELDS];
    let mut request = httparse::Request::new(&mut fields);
    match request.parse(head) {
        Ok(_) => {}
        Err(httparse::Error::TooManyHeaders) => return Err(DoorRefusal::many_headers(HEADER_FIELDS)),
        Err(problem) => return Err(DoorRefusal::bad(format!("the header cannot be read: {problem}"))),
    }
    if request.method.is_none_or(|method| method.len() > METHOD_BYTES) {
        return Err(DoorRefusal::bad(format!("the method is too long; at most {METHOD_BYTES} letters are allowed")));
    }
    check_target(request.path.unwrap_or_default())?;
    let is_1_1 = request.version == Some(1);
    check_host(request.headers, is_1_1)?;
    let framing = framing(request.headers, is_1_1)?;
    match framing {
        Framing::Length(length) if length > body_limit => Err(DoorRefusal::large_body(body_limit)),
        framing => Ok(framing),
    }
}

fn values<'a>(fields: &'a [httparse::Header<'a>], name: &'a str) -> impl Iterator<Item = &'a [u8]> {
    fields.iter().filter(move |field| field.name.eq_ignore_ascii_case(name)).map(|field| field.value)
}

fn check_host(fields: &[httparse::Header<'_>], is_1_1: bool) -> Result<(), DoorRefusal> {
    match values(fields, "host").count() {
        0 if is_1_1 => Err(DoorRefusal::bad("the header has no Host")),
        0 | 1 => Ok(()),
        _ => Err(DoorRefusal::bad("the header has more than one Host")),
    }
}

fn framing(fields: &[httparse::Header<'_>], is_1_1: bool) -> Result<Framing, DoorRefusal> {
    let lengths: Vec<&[u8]> = values(fields, "content-length").collect();
    let encodings: Vec<&[u8]> = values(fields, "transfer-encoding").collect();
    match (&lengths[..], &encodings[..]) {
        ([], []) => Ok(Framing::Length(0)),
        ([length], []) => content_length(length),
        ([], [encoding]) if is_1_1 && encoding.eq_ignore_ascii_case(b"chunked") => Ok(Framing::chunked()),
        ([], [_]) if is_1_1 => Err(DoorRefusal::bad("Transfer-Encoding: only chunked is supported")),
        ([], [_]) => Err(DoorRefusal::bad("HTTP/1.0 has no Transfer-Encoding")),
        ([], _) => Err(DoorRefusal::bad("the header has more than one Transfer-Encoding")),
        (_, []) => Err(DoorRefusal::bad("the header has more than one Content-Length")),
        _ => Err(DoorRefusal::bad("the header has both Content-Length and Transfer-Encoding")),
    }
}

fn content_length(value: &[u8]) -> Result<Framing, DoorRefusal> {
    // Accept only digits: Rust's parser would also accept a sign.
    let digits =
        std::str::from_utf8(value).ok().filter(|text| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()));
    let Some(digits) = digits else { return Err(DoorRefusal::bad("Content-Length is not a number")) };
    // A number that does not fit into a u64 exceeds every limit.
    Ok(Framing::Length(digits.parse().unwrap_or(u64::MAX)))
}

/// Refuses a path that a proxy may normalise and then route differently.
fn check_target(target: &str) -> Result<(), DoorRefusal> {
    if !target.starts_with('/') {
        return Err(DoorRefusal::bad("the request target must be a path that begins with /"));
    }
    if target.bytes().any(|b| !b.is_ascii_graphic() || b == b'#' || b == b'\\') {
        return Err(DoorRefusal::bad("the request target contains a character that must be percent-encoded"));
    }
    let path = target.split('?').next().unwrap_or_default();
    if path.contains("//") {
        return Err(DoorRefusal::bad("the path contains an empty segment"));
    }
    let named_by_others = NAMED_BY_OTHERS.iter().find(|prefix| path.starts_with(**prefix));
    // The index of the path segment that follows the prefix.
    let name_at = named_by_others.map(|prefix| prefix.matches('/').count());
    path.split('/').enumerate().try_for_each(|(place, segment)| check_segment(segment, name_at == Some(place)))
}

fn check_segment(segment: &str, is_named_by_others: bool) -> Result<(), DoorRefusal> {
    for (at, _) in segment.match_indices('%') {
        let code = segment.get(at + 1..at + 3).and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match code {
            None => return Err(DoorRefusal::bad("the path contains a % without two hexadecimal digits after it")),
            Some(0..0x20 | 0x7f) => return Err(DoorRefusal::bad("the path contains an encoded control character")),
            Some(b'/' | b'\\') if is_named_by_others => {}
            Some(b'/' | b'\\' | b'.') => {
                return Err(DoorRefusal::bad("the path contains an encoded slash, backslash or dot"));
            }
            Some(_) => {}
        }
    }
    // Check for dot segments after decoding as well, because a proxy may decode the path.
    if segment.to_ascii_uppercase().replace("%5C", "%2F").split("%2F").any(|part| part == "." || part == "..") {
        return Err(DoorRefusal::bad("the path contains a . or .. segment"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 1000;

    fn found(text: &str) -> HeadSearch {
        find(text.as_bytes(), 0, LIMIT)
    }

    fn refused(text: &str) -> String {
        match found(text) {
            HeadSearch::Refused(refusal) => refusal.json(),
            other => panic!("{text:?}: {other:?}"),
        }
    }

    #[test]
    fn a_plain_head_is_found_with_its_body() {
        let get = "GET /v1/x?a=%2f.. HTTP/1.1\r\nhost: h\r\n\r\n";
        assert_eq!(found(get), HeadSearch::Head(get.len(), Framing::Length(0)));
        assert_eq!(
            found(&format!("{get}\nrest\r")),
            HeadSearch::Head(get.len(), Framing::Length(0)),
            "the bytes after the head are not part of it"
        );
        let post = "POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 12\r\n\r\n";
        assert_eq!(found(post), HeadSearch::Head(post.len(), Framing::Length(12)));
        let chunks = "POST / HTTP/1.1\r\nhost: h\r\nTransfer-Encoding: Chunked\r\n\r\n";
        assert_eq!(found(chunks), HeadSearch::Head(chunks.len(), Framing::chunked()));
        assert_eq!(found("GET / HTTP/1.0\r\n\r\n"), HeadSearch::Head(18, Framing::Length(0)));
    }

    #[test]
    fn a_head_may_come_byte_by_byte() {
        let get = b"GET / HTTP/1.1\r\nhost: h\r\n\r\n";
        for length in 1..get.len() {
            assert_eq!(find(&get[..length], length - 1, LIMIT), HeadSearch::Unfinished);
        }
        assert_eq!(find(get, get.len() - 1, LIMIT), HeadSearch::Head(get.len(), Framing::Length(0)));
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        for fields in [
            "content-length: 1\r\ncontent-length: 1",
            "content-length: 1\r\ncontent-length: 2",
            "content-length: 1, 1",
            "content-length: +1",
            "content-length: 0x1",
            "content-length:",
            "content-length: 1\r\ntransfer-encoding: chunked",
            "transfer-encoding: chunked\r\ncontent-length: 1",
            "transfer-encoding: chunked\r\ntransfer-encoding: chunked",
            "transfer-encoding: chunked\r\ntransfer-encoding: identity",
            "transfer-encoding: identity, chunked",
            "transfer-encoding: xchunked",
            "transfer-encoding : chunked",
            "x: y\r\n transfer-encoding: chunked",
            "host: other",
            "x: a\nb: c",
            "x: a\rb",
            "x: a\0b",
        ] {
            let answer = refused(&format!("POST / HTTP/1.1\r\nhost: h\r\n{fields}\r\n\r\n"));
            assert!(answer.contains("\"status\":400"), "{fields}: {answer}");
        }
        refused("POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n");
        refused("GET / HTTP/1.1\r\n\r\n");
        refused("GET / HTTP/2.0\r\nhost: h\r\n\r\n");
        refused("GET / HTTP/1.1\n");
    }

    #[test]
    fn odd_paths_are_refused() {
        for target in [
            "http://h/healthz",
            "*",
            "h:443",
            "//healthz",
            "/a//b",
            "/a%2fb",
            "/a%2Fb",
            "/v1/inbox%2Fa",
            "/v1/inbox/a/b%2Fc/read",
            "/users/a/b%2Fc",
            "/templates/a%2Fb",
            "/users/a%2F..%2Fb",
            "/v1/keys/a%2Fb",
            "/v1/inbox/a%2F..%2Fb",
            "/v1/inbox/..%2f..%2fkeys",
            "/v1/inbox/%2E%2E%2Fb",
            "/v1/inbox/a%5C..%5Cb",
            "/v1/inbox/..%5c..%2fkeys",
            "/v1/keys/a%5Cb",
            "/keys/a%2Fb",
            "/event-types/a/b%2Fc",
            "/event-types/a%2F..%2Fb",
            "/a%5cb",
            "/../x",
            "/a/..",
            "/a/./b",
            "/%2e%2e/x",
            "/a%00",
            "/a%0d%0aset-cookie:x",
            "/a%",
            "/a%zz",
            "/a%+1",
            "/a\\b",
            "/a#b",
            "/a\0b",
            "/caf\u{e9}",
        ] {
            refused(&format!("GET {target} HTTP/1.1\r\nhost: h\r\n\r\n"));
        }
        for target in [
            "/",
            "/a..b/...",
            "/a%20b/%C3%A9",
            "/x?y=//..%2f%00",
            "/v1/inbox/a%2Fb/stream",
            "/v1/entities/%2frooms%2f7/cancel",
            "/v1/inbox/CORP%5Calice/stream",
            "/v1/entities/a%5c7/cancel",
            "/v1/users/a%2Fb/preferences",
            "/v1/lists/night%2Fday/members",
            "/v1/event-types/a%2Fb",
            "/users/a%2Fb/address",
            "/lists/a%5Cb",
            "/event-types/a%2Fb/delete",
        ] {
            assert!(
                matches!(found(&format!("GET {target} HTTP/1.1\r\nhost: h\r\n\r\n")), HeadSearch::Head(..)),
                "{target}"
            );
        }
    }

    #[test]
    fn each_limit_is_named_and_reached_exactly() {
        let with = |fields: usize| format!("GET / HTTP/1.1\r\nhost: h\r\n{}\r\n", "x: y\r\n".repeat(fields));
        assert!(matches!(found(&with(HEADER_FIELDS - 1)), HeadSearch::Head(..)));
        assert!(refused(&with(HEADER_FIELDS)).contains("at most 100 are allowed"));
        let long = |bytes: usize| {
            let frame = "GET / HTTP/1.1\r\nhost: h\r\nx: \r\n\r\n".len();
            format!("GET / HTTP/1.1\r\nhost: h\r\nx: {}\r\n\r\n", "y".repeat(bytes - frame))
        };
        assert!(matches!(found(&long(HEAD_BYTES)), HeadSearch::Head(..)));
        assert!(refused(&long(HEAD_BYTES + 1)).contains("at most 32768 bytes"));
        assert!(refused(&long(HEAD_BYTES + 1)[..HEAD_BYTES]).contains("\"status\":431"), "without waiting for its end");
        let body = |length: &str| format!("POST / HTTP/1.1\r\nhost: h\r\ncontent-length: {length}\r\n\r\n");
        assert!(matches!(found(&body("1000")), HeadSearch::Head(..)));
        assert!(refused(&body("1001")).contains("at most 1000 bytes"));
        assert!(refused(&body("99999999999999999999999")).contains("\"status\":413"));
    }
}
