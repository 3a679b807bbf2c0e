//! The rules for accepting notifications that the API and the command line share.

use std::collections::HashSet;

use postcommit::Recipient;
use postcommit_channel::model::{CHANNELS, Routes};
use postcommit_engine::db::DbError;
use postcommit_engine::store::{Accepted, NotAccepted, NotificationRequest, Resend, Store};
use serde::Deserialize;

/// The tenant that the JSON of a notification names.
pub fn named_tenant(json: &str) -> serde_json::Result<Option<String>> {
    #[derive(Deserialize)]
    struct TenantField {
        tenant: Option<String>,
    }
    serde_json::from_str::<TenantField>(json).map(|field| field.tenant)
}

/// The tenant that a notification belongs to.
#[derive(Debug, Clone, Copy)]
pub struct Owner<'a> {
    /// The id of the tenant. `None` if the tenant does not exist yet and the notification will create it.
    pub id: Option<i32>,
    pub name: &'a str,
}

/// Parses a notification and checks every rule that can be checked before it is accepted. `key` is an idempotency key
/// that was sent outside the JSON.
pub async fn read(
    store: &Store,
    owner: Owner<'_>,
    json: &str,
    key: Option<&str>,
) -> Result<NotificationRequest, NotAccepted> {
    let mut incoming = NotificationRequest::read(json, owner.name)?;
    if let Some(key) = key {
        incoming = incoming.with_key(key)?;
    }
    check_providers(store, owner.id, &incoming).await?;
    check_channels(store, owner.id, &incoming.note().channels).await?;
    Ok(incoming)
}

/// Sends again the last message that was sent for an entity over a channel. If none was sent, sends the last
/// notification that was enqueued for the entity. Returns `None` if there is neither. Repeating the same request
/// returns the first answer. `reader` may be a store that is restricted to one tenant, but `writer` must not be. `mark`
/// adds the caller's trace.
pub async fn resend(
    reader: &Store,
    writer: &Store,
    tenant: i32,
    wish: &Resend,
    mark: impl FnOnce(NotificationRequest) -> NotificationRequest,
) -> Result<Option<Accepted>, NotAccepted> {
    wish.check()?;
    if let Some(before) = reader.resent(tenant, wish).await? {
        return Ok(Some(before));
    }
    let Some(mut copied) = reader.copied(tenant, wish).await? else { return Ok(None) };
    copied.request = mark(copied.request);
    writer.resend(tenant, wish, copied).await.map(Some)
}

/// Checks that the named channels exist. The tenant's providers are read only if a name is not one of [`CHANNELS`].
async fn check_channels(store: &Store, tenant: Option<i32>, channels: &[String]) -> Result<(), NotAccepted> {
    if channels.iter().all(|channel| CHANNELS.contains(&channel.as_str())) {
        return Ok(());
    }
    let unread = |error: DbError| NotAccepted::unread(&error);
    let providers = match tenant {
        Some(tenant) => store.providers_of(tenant).await.map_err(unread)?,
        None => vec![],
    };
    let routes = Routes(&providers);
    match channels.iter().enumerate().find(|(_, channel)| !routes.know(channel)) {
        Some((index, unknown)) => Err(NotAccepted::Invalid {
            field: Some(format!("channels[{index}]")),
            problem: format!("is {unknown:?}; allowed are {}", routes.channels().join(", ")),
        }),
        None => Ok(()),
    }
}

/// Checks that each named provider is configured and enabled (D1).
async fn check_providers(
    store: &Store,
    tenant: Option<i32>,
    incoming: &NotificationRequest,
) -> Result<(), NotAccepted> {
    let unread = |error: DbError| NotAccepted::unread(&error);
    // Each provider is looked up once, even if many recipients name it.
    let mut seen = HashSet::new();
    for (index, recipient) in incoming.note().recipients.iter().enumerate() {
        let Recipient::Provider { provider, .. } = recipient else { continue };
        if !seen.insert(provider) {
            continue;
        }
        let found = match tenant {
            Some(tenant) => store.provider(tenant, provider).await.map_err(unread)?,
            None => None,
        };
        let problem = match found {
            Some(found) if found.enabled => continue,
            Some(_) => format!("{provider:?} is disabled; enable it first"),
            None => format!("{provider:?} is not configured; create it first"),
        };
        return Err(NotAccepted::Invalid { field: Some(format!("recipients[{index}].provider")), problem });
    }
    Ok(())
}
