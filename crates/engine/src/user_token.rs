//! User tokens. With a token, a browser can read its user's inbox and nothing else. Tokens are short-lived, signed with
//! a key of the tenant, and not stored.
//!
//! A token is `pcu_` followed by base64url of: a version, the tenant's number, the expiry in seconds since 1970, 8
//! random bytes, the user's id, and an HMAC-SHA256 of all these.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use postcommit::{Recipient, Timestamp};
use postcommit_channel::secret::random;
use serde::Serialize;
use sha2::Sha256;

use crate::db::DbError;
use crate::store::{AuditEntry, Store};

/// The prefix of every token.
pub const PREFIX: &str = "pcu_";
/// The default lifetime of a token.
pub const DEFAULT_TTL: Duration = Duration::from_secs(3600);
/// The longest lifetime of a token.
pub const MAX_TTL: Duration = Duration::from_secs(86_400);

const VERSION: u8 = 1;
const HEAD_BYTES: usize = 1 + 4 + 8 + 8;
const MAC_BYTES: usize = 32;
/// The most characters of a token after its prefix. Enough for the longest user id: 255 characters of four bytes each,
/// in base64.
const MAX_CHARS: usize = 2048;

/// The user that a token identifies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bearer {
    /// The tenant's number.
    pub tenant: i32,
    /// The user's id.
    pub user: String,
    /// When the token expires, by the database's clock.
    pub expires_at: Timestamp,
    /// How long the token was still valid when it was verified.
    pub left: Duration,
}

/// A user token and its expiry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UserToken {
    /// The token for the user's browser. It opens this user's inbox and nothing else.
    #[cfg_attr(feature = "openapi", schema(example = "pcu_…"))]
    pub token: String,
    /// When the token expires.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub expires_at: Timestamp,
}

/// The reason why a token was not created or not accepted.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The token was valid and has expired.
    #[error("the token has expired; ask the application for a new one")]
    Expired,
    /// The token is malformed, or signed with another key.
    #[error("the token is not valid; ask the application for a new one")]
    Bad,
    /// The user's id or the lifetime is not allowed.
    #[error("{0}")]
    Refused(String),
    #[error(transparent)]
    Db(#[from] DbError),
}

/// Creates a token for a user, valid for 1 second to [`MAX_TTL`].
pub async fn mint(store: &Store, tenant: i32, user: &str, ttl: Duration) -> Result<UserToken, TokenError> {
    Recipient::user(user).check().map_err(|problem| TokenError::Refused(format!("user: {problem}")))?;
    if !(1..=MAX_TTL.as_secs()).contains(&ttl.as_secs()) {
        return Err(TokenError::Refused(format!(
            "ttl_s: is {}; 1 to {} are allowed",
            ttl.as_secs(),
            MAX_TTL.as_secs()
        )));
    }
    let key = store.inbox_token_key_or(tenant, random()).await?;
    let expires_at = Timestamp::from_micros((key.now.plus(ttl).as_micros() / 1_000_000) * 1_000_000);
    // The audit entry is the only record of the token, so it is written before the token is returned.
    let entry =
        AuditEntry::new(tenant, "user_token.create", user).details(serde_json::json!({"expires_at": expires_at}));
    store.note(entry).await?;
    Ok(UserToken { token: sign(&key.key, tenant, user, expires_at), expires_at })
}

/// Verifies a token and returns the user that it identifies.
///
/// # Errors
/// [`TokenError::Expired`] for a token that was valid and has expired. [`TokenError::Bad`] for any other invalid token.
pub async fn verify(store: &Store, token: &str) -> Result<Bearer, TokenError> {
    let parts = Parts::read(token).ok_or(TokenError::Bad)?;
    let key = store.inbox_token_key(parts.tenant()).await?.ok_or(TokenError::Bad)?;
    parts.verified(&key.key).ok_or(TokenError::Bad)?.at(key.now)
}

impl Bearer {
    /// Sets the remaining lifetime at `now`. Fails if the token has expired.
    fn at(self, now: Timestamp) -> Result<Self, TokenError> {
        let left = self.expires_at.since(now);
        if left.is_zero() { Err(TokenError::Expired) } else { Ok(Self { left, ..self }) }
    }
}

fn sign(key: &[u8], tenant: i32, user: &str, expires_at: Timestamp) -> String {
    let mut bytes = vec![VERSION];
    bytes.extend(tenant.to_be_bytes());
    bytes.extend((expires_at.as_micros() / 1_000_000).to_be_bytes());
    bytes.extend(random::<8>());
    bytes.extend(user.as_bytes());
    if let Some(mac) = mac(key, &bytes) {
        bytes.extend(mac.finalize().into_bytes());
    }
    format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes))
}

fn mac(key: &[u8], bytes: &[u8]) -> Option<Hmac<Sha256>> {
    // HMAC accepts keys of any length, so this never fails.
    let mut mac = Hmac::<Sha256>::new_from_slice(key).ok()?;
    mac.update(bytes);
    Some(mac)
}

/// The parts of a token. The signature is not verified yet.
struct Parts {
    signed: Vec<u8>,
    mac: Vec<u8>,
}

impl Parts {
    fn read(token: &str) -> Option<Self> {
        let text = token.strip_prefix(PREFIX).filter(|text| text.len() <= MAX_CHARS)?;
        let mut signed = URL_SAFE_NO_PAD.decode(text).ok()?;
        let at = signed.len().checked_sub(MAC_BYTES).filter(|at| *at > HEAD_BYTES)?;
        let mac = signed.split_off(at);
        (signed[0] == VERSION).then_some(Self { signed, mac })
    }

    fn tenant(&self) -> i32 {
        self.number::<4>(1).map_or(0, i32::from_be_bytes)
    }

    fn number<const N: usize>(&self, from: usize) -> Option<[u8; N]> {
        self.signed.get(from..from + N)?.try_into().ok()
    }

    /// Returns the user if the token was signed with this key. The comparison takes constant time.
    fn verified(&self, key: &[u8]) -> Option<Bearer> {
        mac(key, &self.signed)?.verify_slice(&self.mac).ok()?;
        let expires_at = Timestamp::from_micros(i64::from_be_bytes(self.number(5)?).checked_mul(1_000_000)?);
        let user = String::from_utf8(self.signed.get(HEAD_BYTES..)?.to_vec()).ok()?;
        Some(Bearer { tenant: self.tenant(), user, expires_at, left: Duration::ZERO })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u8; 32] = [7; 32];

    fn bearer() -> Bearer {
        Bearer {
            tenant: 3,
            user: "zoë@example".into(),
            expires_at: Timestamp::from_micros(1_800_000_000_000_000),
            left: Duration::ZERO,
        }
    }

    fn signed() -> String {
        let Bearer { tenant, user, expires_at, .. } = bearer();
        sign(&KEY, tenant, &user, expires_at)
    }

    #[test]
    fn a_token_proves_what_was_signed_and_tokens_are_unique() {
        let token = signed();
        assert!(
            token.starts_with("pcu_") && token.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c)),
            "{token}"
        );
        assert_eq!(Parts::read(&token).unwrap().verified(&KEY), Some(bearer()));
        assert_ne!(token, signed());
    }

    #[test]
    fn an_expired_token_is_distinguished_from_a_bad_one() {
        let at = |seconds: i64| bearer().at(Timestamp::from_micros(seconds * 1_000_000));
        assert_eq!(at(1_799_999_999).unwrap(), Bearer { left: Duration::from_secs(1), ..bearer() });
        assert!(matches!(at(1_800_000_000), Err(TokenError::Expired)));
    }

    #[test]
    fn a_changed_byte_or_another_key_fails_verification() {
        let token = signed();
        let bytes = URL_SAFE_NO_PAD.decode(&token[4..]).unwrap();
        for place in 0..bytes.len() {
            let mut forged = bytes.clone();
            forged[place] ^= 1;
            let forged = format!("pcu_{}", URL_SAFE_NO_PAD.encode(forged));
            assert!(Parts::read(&forged).and_then(|parts| parts.verified(&KEY)).is_none(), "byte {place}");
        }
        assert!(Parts::read(&token).unwrap().verified(&[8; 32]).is_none());
        for nonsense in
            ["", "pcu_", "pcu_AAAA", "pc_x", &token[..token.len() - 4], &format!("pcu_{}", "A".repeat(5000))]
        {
            assert!(Parts::read(nonsense).and_then(|parts| parts.verified(&KEY)).is_none(), "{nonsense}");
        }
    }
}
