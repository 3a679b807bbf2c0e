//! Callbacks: requests by which a provider reports what happened to messages that it accepted. A driver verifies the
//! raw bytes of a callback and reads the receipts in it. It knows nothing of deliveries and of storage.

use ::http::HeaderMap;
use postcommit::Timestamp;
use serde_json::Value;

use crate::model::Reported;
use crate::secret::Secrets;

/// A callback as it arrived.
#[derive(Debug, Clone, Copy)]
pub struct CallbackRequest<'a> {
    /// Whether the method is GET. Otherwise it is POST.
    pub is_get: bool,
    /// The URL that the provider called, without the query, as far as the server knows its own URL.
    pub url: &'a str,
    /// The query as it was written, without its question mark.
    pub query: &'a str,
    pub headers: &'a HeaderMap,
    /// The body, byte for byte, because signatures are made over the bytes.
    pub body: &'a [u8],
    /// The current time, to which the time of a signature is compared.
    pub now: Timestamp,
}

/// The provider that a callback is meant for.
#[derive(Clone, Copy)]
pub struct CallbackParts<'a> {
    pub settings: &'a Value,
    /// The provider's secrets, decrypted.
    pub secrets: &'a Secrets,
}

/// The content of a callback that was verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallbackAnswer {
    /// The receipts in the callback. The list may be empty.
    Receipts(Vec<Reported>),
    /// The provider asks whether we expect its callbacks. This text is the answer.
    Challenge(String),
}

/// The reason why a callback is refused. The texts contain no secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallbackRefusal {
    /// The sender did not prove that it is the provider, or its proof is too old.
    Unverified(String),
    /// The callback cannot be read.
    Malformed(String),
    /// The HTTP method of the callback is one that the provider does not use.
    Method,
}

/// The proof that a callback comes from its provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// A signature or a credential in the request, besides the token in the URL.
    Verified,
    /// Only the token in the URL, because the provider offers no other proof.
    TokenAlone,
    /// Only the token in the URL, until the secret or setting that verifies a better proof is set.
    TokenUntilSet,
}

/// Reads the callbacks of a driver's providers.
pub trait Callback: Send + Sync {
    /// A sentence that says where the operator enters the URL for callbacks.
    fn help(&self) -> &str;

    /// How the callbacks of this provider are verified.
    fn trust(&self, provider: CallbackParts<'_>) -> Trust;

    /// Verifies a callback and reads it.
    /// # Errors
    /// The callback is not the provider's, is too old, or cannot be read.
    fn read(
        &self,
        request: CallbackRequest<'_>,
        provider: CallbackParts<'_>,
    ) -> Result<CallbackAnswer, CallbackRefusal>;
}
