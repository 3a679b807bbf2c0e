//! Links with which a person stops messages with one click and without signing in (RFC 8058).
//!
//! The token of a link is base64url of: a version, the tenant's number, the messages to stop as JSON, and an
//! HMAC-SHA256 of all these with the key that also signs the tenant's user tokens. Nothing is stored. The same link is
//! always the same string, so that a message that is rendered again has the same bytes. A link does not expire, because
//! a message may be kept for years.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use postcommit_channel::model::{ANY, Actor};
use postcommit_channel::secret::random;
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use crate::db::DbError;
use crate::store::{EditError, PreferenceDraft, Store, SuppressionDraft, check_user_id};

const VERSION: u8 = 1;
const HEAD_BYTES: usize = 1 + 4;
const MAC_BYTES: usize = 32;
/// The most characters of a token.
const MAX_CHARS: usize = 8192;
/// Separates signatures of unsubscribe links from those of user tokens, which use the same key.
const PURPOSE: &[u8] = b"unsubscribe";
/// The author of the preference or suppression that a link creates.
const AUTHOR: &str = "unsubscribe link";

/// The recipient that an unsubscribe link is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Who {
    /// A user. Using the link stores a preference of this user.
    User(String),
    /// An address that belongs to no user. Using the link suppresses it on the channel.
    Address(String),
}

/// The messages that an unsubscribe link stops.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsubscribe {
    /// The tenant's number.
    pub tenant: i32,
    /// The recipient that unsubscribes.
    pub who: Who,
    /// The event type whose messages are stopped. `*` means every event type. An address is suppressed for every event
    /// type.
    pub event_type: String,
    /// The channel on which messages are stopped. `*` means every channel.
    pub channel: String,
}

impl Unsubscribe {
    /// Checks every field by the rules for preferences and suppressions.
    ///
    /// # Errors
    /// The error names the field, the problem and the allowed values.
    pub async fn check(&self, store: &Store) -> Result<(), EditError> {
        match &self.who {
            Who::User(id) => {
                check_user_id(id).map_err(|problem| renamed(problem, "id", "user"))?;
                self.preference().check("")
            }
            Who::Address(_) if self.event_type != ANY => Err(EditError::Refused(
                "event_type: must be \"*\" for an address, because an address is suppressed for every event type"
                    .into(),
            )),
            Who::Address(address) => self.suppression(address).check(store.now().await?),
        }
    }

    /// Returns the link on the server with this URL, signed with the tenant's key.
    #[must_use]
    pub fn url(&self, server: &str, key: &[u8]) -> String {
        format!("{}/u/{}", server.trim_end_matches('/'), self.sign(key))
    }

    /// Returns the link's token. If the tenant has no key yet, this creates one.
    pub async fn token(&self, store: &Store) -> Result<String, DbError> {
        let key = store.inbox_token_key_or(self.tenant, random()).await?;
        Ok(self.sign(&key.key))
    }

    fn sign(&self, key: &[u8]) -> String {
        let mut bytes = vec![VERSION];
        bytes.extend(self.tenant.to_be_bytes());
        bytes.extend(serde_json::to_vec(&(&self.who, &self.event_type, &self.channel)).unwrap_or_default());
        if let Some(mac) = mac(key, &bytes) {
            bytes.extend(mac.finalize().into_bytes());
        }
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Reads a token. Returns `None` if it is malformed or was not signed by this installation.
    pub async fn verify(store: &Store, token: &str) -> Result<Option<Self>, DbError> {
        let Some((signed, mac)) = parts(token) else { return Ok(None) };
        let tenant = signed[1..HEAD_BYTES].try_into().map_or(0, i32::from_be_bytes);
        let Some(key) = store.inbox_token_key(tenant).await? else { return Ok(None) };
        Ok(verified(&signed, &mac, tenant, &key.key))
    }

    /// Stores the preference or creates the suppression. A repeated call changes nothing.
    pub async fn apply(&self, store: &Store) -> Result<(), EditError> {
        let store = store.of_tenant(self.tenant).by(Actor::new(AUTHOR));
        match &self.who {
            Who::User(id) => store.set_preferences(self.tenant, id, &[self.preference()]).await,
            Who::Address(address) => store.suppress(self.tenant, &self.suppression(address)).await.map(drop),
        }
    }

    fn preference(&self) -> PreferenceDraft {
        let (event_type, channel) = (self.event_type.clone(), self.channel.clone());
        PreferenceDraft { event_type, channel, allowed: Some(false) }
    }

    fn suppression(&self, address: &str) -> SuppressionDraft {
        let (channel, address) = (self.channel.clone(), address.to_owned());
        SuppressionDraft { channel, address, reason: "unsubscribed".into(), until: None }
    }
}

fn renamed(problem: EditError, from: &str, to: &str) -> EditError {
    match problem {
        EditError::Refused(text) => EditError::Refused(text.replacen(from, to, 1)),
        other => other,
    }
}

fn mac(key: &[u8], bytes: &[u8]) -> Option<Hmac<Sha256>> {
    // HMAC accepts keys of any length, so this never fails.
    let mut mac = Hmac::<Sha256>::new_from_slice(key).ok()?;
    mac.update(PURPOSE);
    mac.update(bytes);
    Some(mac)
}

/// Returns the signed bytes and the signature, which is not verified yet.
fn parts(token: &str) -> Option<(Vec<u8>, Vec<u8>)> {
    let mut signed = URL_SAFE_NO_PAD.decode(Some(token).filter(|token| token.len() <= MAX_CHARS)?).ok()?;
    let at = signed.len().checked_sub(MAC_BYTES).filter(|at| *at > HEAD_BYTES)?;
    let mac = signed.split_off(at);
    (signed[0] == VERSION).then_some((signed, mac))
}

/// Returns the content of a token that was signed with this key. The comparison takes constant time.
fn verified(signed: &[u8], signature: &[u8], tenant: i32, key: &[u8]) -> Option<Unsubscribe> {
    mac(key, signed)?.verify_slice(signature).ok()?;
    let (who, event_type, channel) = serde_json::from_slice(&signed[HEAD_BYTES..]).ok()?;
    Some(Unsubscribe { tenant, who, event_type, channel })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u8; 32] = [7; 32];

    fn unsubscribe() -> Unsubscribe {
        Unsubscribe {
            tenant: 3,
            who: Who::User("zoë".into()),
            event_type: "order.paid".into(),
            channel: "email".into(),
        }
    }

    fn read(token: &str, key: &[u8]) -> Option<Unsubscribe> {
        parts(token).and_then(|(signed, mac)| verified(&signed, &mac, 3, key))
    }

    #[test]
    fn a_link_is_the_same_text_each_time_and_proves_what_was_signed() {
        let token = unsubscribe().sign(&KEY);
        assert_eq!((token.clone(), read(&token, &KEY)), (unsubscribe().sign(&KEY), Some(unsubscribe())));
    }

    #[test]
    fn a_changed_byte_or_another_key_fails_verification() {
        let token = unsubscribe().sign(&KEY);
        let bytes = URL_SAFE_NO_PAD.decode(&token).unwrap();
        for place in 0..bytes.len() {
            let mut forged = bytes.clone();
            forged[place] ^= 1;
            assert_eq!(read(&URL_SAFE_NO_PAD.encode(forged), &KEY), None, "byte {place}");
        }
        assert_eq!(read(&token, &[8; 32]), None);
        for nonsense in ["", "AAAA", &token[..token.len() - 4], &"A".repeat(9000)] {
            assert_eq!(read(nonsense, &KEY), None, "{nonsense}");
        }
    }
}
