//! Verifies webhooks that Postcommit sends, for applications that receive them. They follow [Standard
//! Webhooks](https://www.standardwebhooks.com), so webhooks of other senders that follow it can be verified, too.
//!
//! ```
//! use std::time::{Duration, UNIX_EPOCH};
//! use postcommit::webhook;
//!
//! let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
//! let headers = std::collections::HashMap::from([
//!     ("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek"),
//!     ("webhook-timestamp", "1614265330"),
//!     ("webhook-signature", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="),
//! ]);
//! // With an `http::HeaderMap`, pass `|name| headers.get(name)?.to_str().ok()`. The time is `SystemTime::now()`.
//! let now = UNIX_EPOCH + Duration::from_secs(1_614_265_400);
//! let id = webhook::verify(secret, |name| headers.get(name).copied(), br#"{"test": 2432232314}"#, now)?;
//! assert_eq!(id, "msg_p5jXN8AQM9LWM0D4loKWxJek");
//! # Ok::<(), webhook::Unverified>(())
//! ```

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The largest allowed difference between `webhook-timestamp` and now, in both directions.
pub const TOLERANCE: Duration = Duration::from_secs(5 * 60);

/// The reason why a request was not verified. Answer the request with [`Unverified::status`]. No variant contains a
/// secret, a signature or a body.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unverified {
    /// A header is missing or malformed.
    #[error("{name}: {problem}")]
    Header {
        /// The header's name.
        name: &'static str,
        /// A sentence that says what is wrong and what is allowed.
        problem: &'static str,
    },
    /// The request was signed too long ago, or the clocks of sender and receiver differ. It may be a replay.
    #[error("webhook-timestamp: is {seconds} seconds from now; at most {} are allowed", TOLERANCE.as_secs())]
    Time {
        /// The difference in seconds, in either direction.
        seconds: u64,
    },
    /// No signature matches: the secret is wrong, or the body was changed on its way.
    #[error("webhook-signature: no signature matches; the secret is wrong, or the body differs from the signed bytes")]
    Signature,
    /// The receiver's own secret is missing or malformed: its configuration is wrong, not the request.
    #[error("secret: must be whsec_ followed by 24 to 64 bytes in base64; several are separated by spaces")]
    Secret,
}

impl Unverified {
    /// The HTTP status for the answer. After 400, Postcommit parks the delivery. After 500, which is for
    /// [`Unverified::Secret`], Postcommit tries again, so that no message is lost until the receiver's configuration is
    /// fixed.
    #[must_use]
    pub const fn status(&self) -> u16 {
        match self {
            Self::Secret => 500,
            Self::Header { .. } | Self::Time { .. } | Self::Signature => 400,
        }
    }
}

/// Verifies that `body` was signed with `secret` within five minutes of `now`, and returns its `webhook-id`. The id is
/// the same on every attempt. If the receiver has seen the id before, it must answer 2xx and ignore the request.
///
/// `secret` is `whsec_…`, or during a rotation several secrets, separated by spaces. `header` returns a header by its
/// name in lower case. `body` is the body as it was received, before any parsing. `now` is `SystemTime::now()`.
/// Signatures are compared in constant time.
///
/// # Errors
/// [`Unverified`].
pub fn verify<'a>(
    secret: &str,
    header: impl Fn(&'static str) -> Option<&'a str>,
    body: &[u8],
    now: SystemTime,
) -> Result<&'a str, Unverified> {
    let keys = keys_of(secret)?;
    let named =
        |name| header(name).filter(|value| !value.is_empty()).ok_or(Unverified::Header { name, problem: "is missing" });
    let (id, timestamp, given) = (named("webhook-id")?, named("webhook-timestamp")?, named("webhook-signature")?);
    check_time(timestamp, now)?;
    let fits = |key: &Vec<u8>, signature: &[u8]| {
        Hmac::<Sha256>::new_from_slice(key).is_ok_and(|mac| {
            let signed = [id.as_bytes(), b".", timestamp.as_bytes(), b".", body];
            signed.iter().fold(mac, |mac, part| mac.chain_update(part)).verify_slice(signature).is_ok()
        })
    };
    // Only signatures of version 1 are checked. Others are ignored.
    let signatures = given.split(' ').filter_map(|one| STANDARD.decode(one.strip_prefix("v1,")?).ok());
    match signatures.into_iter().any(|signature| keys.iter().any(|key| fits(key, &signature))) {
        true => Ok(id),
        false => Err(Unverified::Signature),
    }
}

fn keys_of(secret: &str) -> Result<Vec<Vec<u8>>, Unverified> {
    let decode =
        |part: &str| STANDARD.decode(part.strip_prefix("whsec_")?).ok().filter(|key| (24..=64).contains(&key.len()));
    let keys: Option<Vec<_>> = secret.split_whitespace().map(decode).collect();
    keys.filter(|keys| !keys.is_empty()).ok_or(Unverified::Secret)
}

fn check_time(timestamp: &str, now: SystemTime) -> Result<(), Unverified> {
    let problem = "must be a whole number of seconds since 1970";
    let whole = timestamp.bytes().all(|byte| byte.is_ascii_digit());
    let sent = timestamp.parse::<u64>().ok().filter(|_| whole);
    let sent = sent.ok_or(Unverified::Header { name: "webhook-timestamp", problem })?;
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()).abs_diff(sent);
    if seconds > TOLERANCE.as_secs() { Err(Unverified::Time { seconds }) } else { Ok(()) }
}
