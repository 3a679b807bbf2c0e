//! The rules for accepting notifications that the API and the command line share.

use std::collections::HashSet;

use postcommit::Recipient;
use postcommit_channel::model::{CHANNELS, Provider, Routes};
use postcommit_engine::db::DbError;
use postcommit_engine::store::{Accepted, NotAccepted, NotificationRequest, Resend, Store, TemplateFilter};
use serde::Deserialize;
use serde_json::Value;

use crate::providers::recipe_of;

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
    check_channels(store, owner.id, &incoming).await?;
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

/// Checks that the named channels exist, and checks the data of channels that only the tenant's providers define. The
/// providers are read only if a name is not one of [`CHANNELS`].
async fn check_channels(store: &Store, tenant: Option<i32>, incoming: &NotificationRequest) -> Result<(), NotAccepted> {
    let channels = &incoming.note().channels;
    if channels.iter().all(|channel| CHANNELS.contains(&channel.as_str())) {
        return Ok(());
    }
    let unread = |error: DbError| NotAccepted::unread(&error);
    let providers = match tenant {
        Some(tenant) => store.providers_of(tenant).await.map_err(unread)?,
        None => vec![],
    };
    let routes = Routes(&providers);
    for provider in providers.iter().filter(|provider| provider.is_default && channels.contains(&provider.channel)) {
        check_data(store, provider, incoming).await?;
    }
    match channels.iter().enumerate().find(|(_, channel)| !routes.know(channel)) {
        Some((index, unknown)) => Err(NotAccepted::Invalid {
            field: Some(format!("channels[{index}]")),
            problem: format!("is {unknown:?}; allowed are {}", routes.channels().join(", ")),
        }),
        None => Ok(()),
    }
}

/// Checks that the channel data of a message has what its provider needs, unless a template makes the message.
async fn check_data(store: &Store, provider: &Provider, incoming: &NotificationRequest) -> Result<(), NotAccepted> {
    let Err(refused) = check_own_data(provider, incoming) else { return Ok(()) };
    let (tenant, event_type) = (Some(provider.tenant), Some(incoming.note().event_type.clone()));
    let filter = TemplateFilter { tenant, event_type, active: Some(true), limit: 200, ..TemplateFilter::default() };
    let templates = store.template_rows(&filter).await.map_err(|error| NotAccepted::unread(&error))?;
    if templates.iter().any(|template| template.draft.channel == provider.channel) { Ok(()) } else { Err(refused) }
}

/// Checks the channel data that the notification itself contains, if it has a title or a body.
fn check_own_data(provider: &Provider, incoming: &NotificationRequest) -> Result<(), NotAccepted> {
    let note = incoming.note();
    let Some(recipe) = recipe_of(provider).filter(|_| note.title.is_some() || note.body.is_some()) else {
        return Ok(());
    };
    let data: Option<Value> = incoming.data().and_then(|data| serde_json::from_str(data.get()).ok());
    let data = data.as_ref().and_then(|data| data.get(&provider.channel));
    recipe.check_data(&provider.settings, data).map_err(|problem| {
        let (field, problem) = problem.split_once(": ").unwrap_or(("", &problem));
        NotAccepted::Invalid { field: Some(format!("data.{}.{field}", provider.channel)), problem: problem.to_owned() }
    })
}

/// Checks that each provider that a recipient names is configured and enabled.
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
            Some(found) if found.enabled => {
                check_data(store, &found, incoming).await?;
                continue;
            }
            Some(_) => format!("{provider:?} is disabled; enable it first"),
            None => format!("{provider:?} is not configured; create it first"),
        };
        return Err(NotAccepted::Invalid { field: Some(format!("recipients[{index}].provider")), problem });
    }
    Ok(())
}
