//! The rules for callbacks that the API and the command line share: the URL that an operator gives to a provider, and what
//! is done with a callback.

use std::panic::resume_unwind;
use std::sync::Arc;

use axum::body::Bytes;
use axum::http::HeaderMap;
use postcommit_channel::clock;
use postcommit_channel::driver::{
    self, Callback, CallbackAnswer, CallbackParts, CallbackRefusal, CallbackRequest, Trust,
};
use postcommit_channel::model::{Actor, Provider};
use postcommit_channel::secret::{KeySource, SecretError, Secrets};
use postcommit_engine::db::DbError;
use postcommit_engine::dispatch::Tools;
use postcommit_engine::store::Store;
use serde::Serialize;
use utoipa::ToSchema;

/// The URL to which a provider sends its callbacks.
#[derive(Debug, Serialize, ToSchema)]
pub struct CallbackUrl {
    /// The URL. Whoever knows it can send callbacks, so treat it as a secret. Without the setting `api.public_url` it is
    /// only a path.
    pub url: String,
    /// Where the URL is entered.
    pub help: String,
    /// How callbacks are verified: `verified` by a signature or a credential in the request, `token_alone` by the token
    /// in the URL, because the service has no other proof, or `token_until_set`: by the token in the URL, until the
    /// setting or the secret is set that verifies them. `null` if the provider's secrets cannot be decrypted here.
    pub trust: Option<&'static str>,
}

/// Whether a provider gets a new callback URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rotation {
    Keep,
    /// The previous URL works for another day.
    Rotate,
    /// The previous URLs no longer work.
    RotateNow,
}

/// The reason why there is no callback URL.
#[derive(Debug, thiserror::Error)]
pub enum NoCallback {
    #[error("driver {0:?} takes no callbacks; its deliveries end as `sent` or `delivered` by the answer to the send")]
    NotTaken(String),
    #[error(transparent)]
    Database(#[from] DbError),
}

/// Returns the callback URL of a provider. The first call creates its token.
pub async fn url(
    store: &Store,
    keys: &KeySource,
    public_url: &str,
    provider: &Provider,
    rotation: Rotation,
) -> Result<CallbackUrl, NoCallback> {
    let taken = driver::kind(&provider.driver).ok().and_then(|kind| kind.callback.clone());
    let callback = taken.ok_or_else(|| NoCallback::NotTaken(provider.driver.clone()))?;
    let token = match rotation {
        Rotation::Keep => store.callback_token(provider).await?,
        Rotation::Rotate => store.rotate_callback_token(provider, false).await?,
        Rotation::RotateNow => store.rotate_callback_token(provider, true).await?,
    };
    Ok(CallbackUrl {
        // The token is revealed here, because it is a part of the URL.
        url: format!("{public_url}{}", path(token.reveal())),
        help: callback.help().to_owned(),
        trust: trust(keys, provider).map(name),
    })
}

pub fn path(token: &str) -> String {
    format!("/v1/callbacks/{token}")
}

/// How callbacks of a provider are verified. `None` if its driver takes none, or its secrets cannot be decrypted.
pub fn trust(keys: &KeySource, provider: &Provider) -> Option<Trust> {
    let callback = driver::kind(&provider.driver).ok()?.callback.clone()?;
    let secrets = secrets(keys, provider).ok()?;
    Some(callback.trust(CallbackParts { settings: &provider.settings, secrets: &secrets }))
}

pub fn name(trust: Trust) -> &'static str {
    match trust {
        Trust::Verified => "verified",
        Trust::TokenAlone => "token_alone",
        Trust::TokenUntilSet => "token_until_set",
    }
}

/// How callbacks are verified, as the end of a sentence that begins with "callbacks are".
pub fn words(trust: Option<&str>) -> &'static str {
    match trust {
        Some("verified") => "verified by the proof that they carry",
        Some("token_alone") => "trusted by the token in the URL alone: the service has no other proof",
        Some("token_until_set") => {
            "trusted by the token in the URL alone, until the setting or secret is set that verifies them; `postcommit providers drivers DRIVER` names it"
        }
        _ => "verified in a way that is not known here, because the secrets cannot be decrypted",
    }
}

fn secrets(keys: &KeySource, provider: &Provider) -> Result<Secrets, SecretError> {
    match &provider.secrets {
        None => Ok(Secrets::new()),
        Some(sealed) => keys.existing()?.open(sealed, provider.tenant, &provider.name),
    }
}

/// The reason why a callback was not accepted.
#[derive(Debug)]
pub enum NotTaken {
    Refused(CallbackRefusal),
    /// The server cannot decrypt the secrets that verify the callback. The provider should repeat it.
    Secrets(SecretError),
    /// The receipts could not be stored. The provider should repeat the callback.
    Database(DbError),
}

/// The answer to a callback that was accepted.
pub enum Taken {
    /// The number of receipts that were new.
    Receipts(usize),
    Challenge(String),
}

/// A callback as it arrived.
pub struct Arrived {
    /// Whether the method is GET. Otherwise it is POST.
    pub is_get: bool,
    /// The URL that the provider called, without the query.
    pub url: String,
    pub query: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// Verifies a callback of this provider, records its receipts and applies those that can be applied now. Everything
/// happens in the provider's tenant.
pub async fn take(
    tools: &Tools,
    provider: &Provider,
    arrived: Arrived,
    request_id: Option<String>,
) -> Result<Taken, NotTaken> {
    let callback = driver::kind(&provider.driver).ok().and_then(|kind| kind.callback.clone());
    let callback = callback.ok_or(NotTaken::Refused(CallbackRefusal::Method))?;
    let secrets = secrets(&tools.keys, provider).map_err(NotTaken::Secrets)?;
    let reported = match read(callback, provider, secrets, arrived).await.map_err(NotTaken::Refused)? {
        CallbackAnswer::Challenge(text) => return Ok(Taken::Challenge(text)),
        CallbackAnswer::Receipts(reported) => reported,
    };
    let actor = Actor { name: format!("provider:{}", provider.name), request_id };
    let store = tools.store.of_tenant(provider.tenant).by(actor);
    let received = store.receive(provider, &reported).await.map_err(NotTaken::Database)?;
    received.fates.iter().for_each(|(happened, fate)| tools.metrics.receipt(*happened, *fate));
    Ok(Taken::Receipts(received.new))
}

/// Verifies and reads a callback on a thread for blocking work: the sender of a large one must not hold up a thread that
/// serves other requests.
async fn read(
    callback: Arc<dyn Callback>,
    provider: &Provider,
    secrets: Secrets,
    arrived: Arrived,
) -> Result<CallbackAnswer, CallbackRefusal> {
    let settings = provider.settings.clone();
    let read = tokio::task::spawn_blocking(move || {
        let request = CallbackRequest {
            is_get: arrived.is_get,
            url: &arrived.url,
            query: &arrived.query,
            headers: &arrived.headers,
            body: &arrived.body,
            now: clock::now(),
        };
        callback.read(request, CallbackParts { settings: &settings, secrets: &secrets })
    });
    read.await.unwrap_or_else(|failed| resume_unwind(failed.into_panic()))
}
