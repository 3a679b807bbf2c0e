//! The rules for accepting notifications that the API and the command line share.

use std::collections::HashSet;

use postcommit::Recipient;
use postcommit_engine::db::DbError;
use postcommit_engine::store::{Accepted, NotAccepted, NotificationRequest, Resend, Store};
use serde::Deserialize;

/// The tenant that a notification's JSON names.
pub fn named_tenant(json: &str) -> serde_json::Result<Option<String>> {
    #[derive(Deserialize)]
    struct TenantField {
        tenant: Option<String>,
    }
    serde_json::from_str::<TenantField>(json).map(|field| field.tenant)
}

/// Whom a notification belongs to.
#[derive(Debug, Clone, Copy)]
pub struct Owner<'a> {
    /// None: a tenant that the notification will make.
    pub id: Option<i32>,
    pub name: &'a str,
}

/// Reads a notification and holds it to every rule that can be checked before it is accepted. `key` came beside it.
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
    Ok(incoming)
}

/// Sends once more what was last sent for an entity over a channel; none when nothing was. The same request again gets
/// the first answer. `reader` may be a store of one tenant, `writer` may not; `mark` adds the caller's trace.
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

/// A provider that is named must be configured and enabled (D1).
async fn check_providers(
    store: &Store,
    tenant: Option<i32>,
    incoming: &NotificationRequest,
) -> Result<(), NotAccepted> {
    let unavailable = |error: DbError| NotAccepted::Unavailable(error.to_string());
    // Each is looked up once, however many recipients name it.
    let mut seen = HashSet::new();
    for (index, recipient) in incoming.note().recipients.iter().enumerate() {
        let Recipient::Provider { provider, .. } = recipient else { continue };
        if !seen.insert(provider) {
            continue;
        }
        let found = match tenant {
            Some(tenant) => store.provider(tenant, provider).await.map_err(unavailable)?,
            None => None,
        };
        let problem = match found {
            Some(found) if found.enabled => continue,
            Some(_) => format!("{provider:?} is disabled"),
            None => format!("{provider:?} is not configured"),
        };
        return Err(NotAccepted::Invalid { field: Some(format!("recipients[{index}].provider")), problem });
    }
    Ok(())
}
