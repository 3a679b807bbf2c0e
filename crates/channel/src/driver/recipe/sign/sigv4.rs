//! AWS Signature Version 4: <https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv.html>. S3, which differs,
//! is not supported.

use ::http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName};
use ::http::{HeaderMap, HeaderValue};
use hmac::{Hmac, KeyInit, Mac};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use postcommit::Timestamp;
use sha2::{Digest, Sha256};
use url::{Position, Url};

use crate::egress::Call;
use crate::model::{ErrorClass, Outcome, Report};
use crate::secret::Secret;

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const DATE: HeaderName = HeaderName::from_static("x-amz-date");
const TOKEN: HeaderName = HeaderName::from_static("x-amz-security-token");
/// The characters of a value that AWS encodes: all but letters, digits, `-`, `_`, `.` and `~`.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
const ENCODED_IN_PATH: &AsciiSet = &ENCODED.remove(b'/');

/// The account and the service that requests are signed for.
pub(in crate::driver::recipe) struct Sigv4 {
    service: String,
    region: String,
    access_key_id: String,
    secret_access_key: Secret,
    session_token: Option<Secret>,
}

impl Sigv4 {
    pub(super) fn new(service: String, region: String, keys: [String; 3]) -> Result<Self, String> {
        let is_word = |text: &str| {
            !text.is_empty() && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
        };
        // The region is part of the host name, so other characters could change the host.
        if !is_word(&region) || !is_word(&service) {
            return Err(format!("the region {region:?} is not a region of AWS; write it as in eu-central-1"));
        }
        let [access_key_id, secret_access_key, session_token] = keys;
        if access_key_id.is_empty() || secret_access_key.is_empty() {
            return Err("secret: the access key has an id and a secret, and one of them is missing; set both".into());
        }
        let session_token = Some(session_token).filter(|token| !token.is_empty()).map(Secret::new);
        Ok(Self { service, region, access_key_id, secret_access_key: Secret::new(secret_access_key), session_token })
    }

    /// Adds the date and the signature to a request.
    pub(super) fn sign(&self, call: &mut Call, now: Timestamp) -> Result<(), Box<Report>> {
        self.try_sign(call, now).ok_or_else(|| {
            let report = Report::from(Outcome::config("not_signed"));
            let detail = "the request cannot be signed: the access key has characters other than printable ASCII";
            Box::new(Report { class: Some(ErrorClass::Config), ..report.because(detail) })
        })
    }

    fn try_sign(&self, call: &mut Call, now: Timestamp) -> Option<()> {
        let date = jiff::Timestamp::from_microsecond(now.as_micros()).ok()?.strftime("%Y%m%dT%H%M%SZ").to_string();
        call.headers.insert(DATE, HeaderValue::from_str(&date).ok()?);
        if let Some(token) = &self.session_token {
            // The token is revealed here, because the request contains it.
            let mut value = HeaderValue::from_str(token.reveal()).ok()?;
            value.set_sensitive(true);
            call.headers.insert(TOKEN, value);
        }
        let day = date.get(..8)?;
        let scope = format!("{day}/{}/{}/aws4_request", self.region, self.service);
        // The query is sent in the encoding that is signed, because some characters, such as a space, have two
        // encodings.
        if call.url.query().is_some_and(|query| !query.is_empty()) {
            let query = query(&call.url);
            call.url.set_query(Some(&query));
        }
        let (names, request) = canonical(call);
        let text = format!("{ALGORITHM}\n{date}\n{scope}\n{}", hex(&Sha256::digest(request)));
        // The secret is revealed here to derive the key of the day.
        let key = format!("AWS4{}", self.secret_access_key.reveal()).into_bytes();
        let key = [day, &self.region, &self.service, "aws4_request"]
            .into_iter()
            .try_fold(key, |key, part| hmac(&key, part))?;
        let signature = hex(&hmac(&key, &text)?);
        let credential = format!("{}/{scope}", self.access_key_id);
        let value = format!("{ALGORITHM} Credential={credential}, SignedHeaders={names}, Signature={signature}");
        let mut value = HeaderValue::from_str(&value).ok()?;
        value.set_sensitive(true);
        call.headers.insert(AUTHORIZATION, value);
        Some(())
    }
}

/// The names of the signed headers, and the request in the form that is signed.
fn canonical(call: &Call) -> (String, String) {
    // The host as the HTTP client sends it.
    let mut headers = vec![("host", call.url[Position::BeforeHost..Position::AfterPort].to_owned())];
    headers.extend(signed(&call.headers));
    headers.sort();
    let names = headers.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(";");
    let lines: String = headers.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
    let path = utf8_percent_encode(call.url.path(), ENCODED_IN_PATH);
    let body = hex(&Sha256::digest(&call.body));
    let request = format!("{}\n{path}\n{}\n{lines}\n{names}\n{body}", call.method, query(&call.url));
    (names, request)
}

/// The headers that are signed. Other headers are not signed, because proxies may change them.
fn signed(headers: &HeaderMap) -> impl Iterator<Item = (&str, String)> {
    let is_signed = |name: &HeaderName| *name == CONTENT_TYPE || name.as_str().starts_with("x-amz-");
    headers.iter().filter(move |(name, _)| is_signed(name)).map(|(name, value)| {
        let text = String::from_utf8_lossy(value.as_bytes());
        (name.as_str(), text.split_whitespace().collect::<Vec<_>>().join(" "))
    })
}

/// The query, encoded anew and sorted.
fn query(url: &Url) -> String {
    let encode = |text: &str| utf8_percent_encode(text, ENCODED).to_string();
    let mut pairs: Vec<_> = url.query_pairs().map(|(name, value)| (encode(&name), encode(&value))).collect();
    pairs.sort();
    pairs.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&")
}

fn hmac(key: &[u8], text: &str) -> Option<Vec<u8>> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).ok()?;
    mac.update(text.as_bytes());
    Some(mac.finalize().into_bytes().to_vec())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::http::Method;
    use bytes::Bytes;
    use std::time::Duration;

    const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";

    fn signature(service: &str, token: &str, method: Method, url: &str, kind: Option<&str>, body: &str) -> String {
        let keys = ["AKIDEXAMPLE".into(), SECRET.into(), token.into()];
        let sigv4 = Sigv4::new(service.into(), "us-east-1".into(), keys).unwrap();
        let mut headers = HeaderMap::new();
        headers.insert("user-agent", HeaderValue::from_static("not signed"));
        if let Some(kind) = kind {
            headers.insert(CONTENT_TYPE, kind.parse().unwrap());
        }
        let (url, body) = (url.parse().unwrap(), Bytes::from(body.to_owned()));
        let mut call = Call { method, url, headers, body, timeout: Duration::ZERO, fresh: false };
        sigv4.sign(&mut call, "2015-08-30T12:36:00Z".parse().unwrap()).unwrap();
        let value = call.headers[AUTHORIZATION].to_str().unwrap();
        let start = format!("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/{service}/aws4_request, ");
        assert!(value.starts_with(&start) && !value.contains(SECRET), "{value}");
        assert_eq!(call.headers["x-amz-date"], "20150830T123600Z");
        value.rsplit('=').next().unwrap().to_owned()
    }

    /// The cases with these names of AWS's test suite for Signature Version 4, and the example of its documentation.
    #[test]
    fn the_signatures_are_the_published_ones() {
        const PLAIN: &str = "https://example.amazonaws.com/";
        for (case, method, url, kind, body, wanted) in [
            (
                "get-vanilla",
                Method::GET,
                PLAIN,
                None,
                "",
                "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
            ),
            (
                "get-vanilla-query-order-key-case",
                Method::GET,
                "https://example.amazonaws.com/?Param2=value2&Param1=value1",
                None,
                "",
                "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
            ),
            (
                "post-vanilla",
                Method::POST,
                PLAIN,
                None,
                "",
                "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b",
            ),
            (
                "post-x-www-form-urlencoded",
                Method::POST,
                PLAIN,
                Some("application/x-www-form-urlencoded"),
                "Param1=value1",
                "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a",
            ),
        ] {
            assert_eq!(signature("service", "", method, url, kind, body), wanted, "{case}");
        }
        let list_users = "https://iam.amazonaws.com/?Action=ListUsers&Version=2010-05-08";
        let kind = Some("application/x-www-form-urlencoded; charset=utf-8");
        assert_eq!(
            signature("iam", "", Method::GET, list_users, kind, ""),
            "5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7"
        );
    }

    /// The case `post-sts-header-before` of AWS's test suite for Signature Version 4.
    #[test]
    fn a_session_token_is_signed() {
        let token = "AQoDYXdzEPT//////////wEXAMPLEtc764bNrC9SAPBSM22wDOk4x4HIZ8j4FZTwdQWLWsKWHGBuFqwAeMicRXmxfpSPfIeoIYRqTfl\
                     fKD8YUuwthAx7mSEI/qkPpKPi/kMcGdQrmGdeehM4IC1NtBmUpp2wUE8phUZampKsburEDy0KPkyQDYwT7WZ0wq5VSXDvp75YU\
                     9HFvlRd8Tx6q6fE8YQcHNVXAkiY9q6d+xo0rKwT38xVqr7ZD0u0iPPkUL64lIZbqBAz+scqKmlzm8FDrypNC9Yjc8fPOLn9FX9\
                     KSYvKTr4rvx3iSIlTJabIQwj2ICCR/oLxBA==";
        let wanted = "85d96828115b5dc0cfc3bd16ad9e210dd772bbebba041836c64533a82be05ead";
        assert_eq!(signature("service", token, Method::POST, "https://example.amazonaws.com/", None, ""), wanted);
    }

    #[test]
    fn the_query_is_sent_as_it_is_signed() {
        let sigv4 = Sigv4::new("sns".into(), "us-east-1".into(), ["a".into(), "b".into(), String::new()]).unwrap();
        let url = "https://sns.example/?b=x+y*~&a=%c3%a4%2F".parse().unwrap();
        let (method, headers, body) = (Method::GET, HeaderMap::new(), Bytes::new());
        let mut call = Call { method, url, headers, body, timeout: Duration::ZERO, fresh: false };
        sigv4.sign(&mut call, "2015-08-30T12:36:00Z".parse().unwrap()).unwrap();
        assert_eq!(call.url.query(), Some("a=%C3%A4%2F&b=x%20y%2A~"));
        assert!(canonical(&call).1.contains("\n/\na=%C3%A4%2F&b=x%20y%2A~\n"), "{}", canonical(&call).1);
    }

    #[test]
    fn a_region_that_is_a_host_is_refused() {
        for region in ["", "evil.example/", "EU", "eu-central-1#"] {
            let keys = ["id".into(), "key".into(), String::new()];
            assert!(Sigv4::new("ses".into(), region.into(), keys).is_err(), "{region}");
        }
    }
}
