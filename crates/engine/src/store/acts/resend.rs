//! Resends a notification of an entity at an operator's request. The resend is a new notification. The original does
//! not change.

use std::collections::{BTreeSet, HashSet};

use postcommit::{Recipient, Source, key, limits};
use postcommit_channel::model::{
    Facts, Provider, RESEND_KEY, Routes, StoredNotification, channels_of_kind, lacks_template, reachable,
    recipients_of, short_name,
};
use postcommit_channel::render::render;
use serde_json::json;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::crash_point;
use crate::db::columns::{Columns, in_order, names};
use crate::db::{Db, DbError, Row, Statement, Value, postgres, sqlite};
use crate::store::intake::accept::{Accepted, BatchItem, enter_one_postgres, enter_one_sqlite};
use crate::store::{
    AuditEntry, DeliveryFilter, NotAccepted, NotificationFilter, NotificationRequest, NotificationRow, Store, masked,
};

/// A request to resend a notification.
#[derive(Debug, Clone)]
pub struct Resend {
    pub entity: String,
    pub channel: String,
    /// The event type of the notification to copy. `None` means the latest notification of any type.
    pub event_type: Option<String>,
    /// The template whose current text is sent with the entity's newest event. `None` means a copy of the sent text.
    pub template: Option<String>,
    /// The recipient of the resend. `None` means the recipients of the notification that is copied.
    pub recipient: Option<Recipient>,
    /// The notification to copy, which must belong to the entity. `None` means the entity's newest notification that
    /// was sent.
    pub of: Option<Original>,
    /// The request's id. A repeated request with the same id does not send again.
    pub request_id: String,
}

/// The notification that a resend copies, and maybe one of its deliveries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Original {
    pub notification: Uuid,
    /// The number of the delivery whose recipient gets the copy. `None` means all recipients that the notification
    /// reached on the channel.
    pub n: Option<i32>,
}

impl Resend {
    /// Checks the names and the recipient.
    pub fn check(&self) -> Result<(), NotAccepted> {
        let template = self.template.iter().map(|template| ("template", template));
        for (field, name) in [("channel", &self.channel), ("request_id", &self.request_id)].into_iter().chain(template)
        {
            short_name(field, name).map_err(|said| {
                NotAccepted::invalid(field, said.split_once(": ").map_or(said.as_str(), |(_, problem)| problem))
            })?;
        }
        if let Some(recipient) = &self.recipient {
            let field = format!("recipient.{}", recipient.kind());
            recipient.check().map_err(|problem| NotAccepted::invalid(&field, problem))?;
        }
        let length = self.event_type.as_ref().map_or(1, |name| name.chars().count());
        if !(1..=limits::NAME_CHARS).contains(&length) {
            return Err(NotAccepted::invalid(
                "event_type",
                format!("has {length} characters; 1 to {} are allowed", limits::NAME_CHARS),
            ));
        }
        Ok(())
    }

    /// Returns the idempotency key: `manual:{entity}:{channel}:{template}:{request}`. Without a template that part is
    /// empty. If the key would be too long, the entity is replaced with its hash.
    fn key(&self) -> String {
        let template = self.template.as_deref().unwrap_or_default();
        let of = |entity: &str| key::of(RESEND_KEY, &[entity, &self.channel, template, &self.request_id]);
        let plain = of(&self.entity);
        if plain.chars().count() <= limits::KEY_CHARS {
            return plain;
        }
        let hash: String =
            Sha256::digest(self.entity.as_bytes()).iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        of(&hash)
    }
}

/// A resend that is ready to be enqueued.
#[derive(Debug, Clone)]
pub struct Copied {
    /// The request for a copy of the original notification without its times, on the requested channel only. The copy
    /// goes to the requested recipient. If no recipient is requested, it goes to the recipients that the original
    /// reached on this channel. If the original was not sent on this channel, the copy goes to the original's
    /// recipients that the channel can reach.
    pub request: NotificationRequest,
    /// The id of the original notification.
    of: Uuid,
    /// How the copy is rendered.
    pin: PinnedText,
}

/// The text of a copy. It is stored on the copy's own row until the copy is expanded.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct PinnedText {
    /// The id of the template. `None` for the copy of a direct message.
    template: Option<String>,
    /// The version of the template. 0 for the copy of a direct message. `None` lets the expansion choose a template.
    version: Option<i32>,
    language: Option<String>,
}

impl PinnedText {
    fn direct() -> Self {
        Self { version: Some(0), ..Self::default() }
    }
}

/// A template that a resend names.
struct Named {
    event_type: String,
    pin: PinnedText,
}

impl Store {
    /// Returns the result of an earlier resend request with the same id, if there was one. The result is a conflict if
    /// the event type or the recipient differs.
    ///
    /// # Errors
    /// Fails if an application has used the request's idempotency key, or if the database fails.
    pub async fn resent(&self, tenant: i32, wish: &Resend) -> Result<Option<Accepted>, NotAccepted> {
        let filter = NotificationFilter {
            tenant: Some(tenant),
            idempotency_key: Some(wish.key()),
            limit: 1,
            ..NotificationFilter::default()
        };
        let Some(first) = self.notification_rows(&filter).await?.rows.pop() else { return Ok(None) };
        if !self.copies_among(tenant, &[first.id]).await?.contains(&first.id) {
            let problem = format!(
                "is {:?}, and the key {:?} of that resend is held by notification {}, which an application enqueued; name \
                 another request_id",
                wish.request_id,
                wish.key(),
                first.id
            );
            return Err(NotAccepted::invalid("request_id", problem));
        }
        let mut conflict = wish.event_type.as_ref().is_some_and(|wanted| *wanted != first.event_type);
        if let Some(recipient) = &wish.recipient {
            let note = self.notification(Some(tenant), first.id).await?;
            conflict |= note.is_some_and(|note| note.recipients != json!([recipient]));
        }
        Ok(Some(Accepted { id: first.id, duplicate: true, conflict }))
    }

    /// Prepares a copy of the named notification, with the text that was sent. If no notification is named, it copies
    /// the entity's newest notification that was sent on the channel, or else the entity's newest notification. With a
    /// template, it prepares the current text of that template with the entity's newest event. Returns `None` if the
    /// entity has no notification.
    ///
    /// # Errors
    /// Fails if no recipient can be reached on the channel, if the notification has no content for it, if the template
    /// cannot be used, or if the database fails.
    pub async fn copied(&self, tenant: i32, wish: &Resend) -> Result<Option<Copied>, NotAccepted> {
        if let Some(template) = &wish.template {
            let named = self.named_template(tenant, template, &wish.channel).await?;
            return self.rendered_anew(tenant, wish, named).await;
        }
        let sent = self.newest_over(tenant, wish).await?;
        let newest = match (sent, &wish.of) {
            (None, Some(named)) => Some(named.notification),
            (None, None) => self.newest_of(tenant, wish, wish.event_type.as_deref()).await?,
            (sent, _) => sent,
        };
        let Some(of) = newest else { return Ok(None) };
        let Some(note) = self.notification(Some(tenant), of).await? else { return Ok(None) };
        if note.entity.as_ref() != Some(&wish.entity) {
            return Ok(None);
        }
        if sent.is_none() && self.has_template(&note, &wish.channel).await? {
            let recipients = suited(&note, wish)?;
            let request = again(&note, wish, &recipients)?;
            return Ok(Some(Copied { request, of, pin: PinnedText::default() }));
        }
        let providers = self.providers_of(tenant).await?;
        let n = wish.of.and_then(|original| original.n);
        let facts = if sent.is_some() { self.facts_over(note.tenant, of, &wish.channel, n).await? } else { vec![] };
        let pin = text_of(of, &facts)?;
        let recipients = match &wish.recipient {
            None if sent.is_some() => reached_before(&note, wish, &facts, &providers)?,
            Some(_) if pin.template.is_some() => suited(&note, wish)?,
            asked => to_be_reached(&note, wish, asked.as_ref(), &providers)?,
        };
        if sent.is_none() && !has_content(&note, &wish.channel, &recipients) {
            let problem = format!(
                "notification {of} has no content for channel {:?}: it has neither a title nor a body nor data for \
                 that channel, and its event type has no template for it",
                wish.channel
            );
            return Err(NotAccepted::invalid("channel", problem));
        }
        Ok(Some(Copied { request: again(&note, wish, &recipients)?, of, pin }))
    }

    /// Prepares the current text of a template with the newest event of the entity. An event of the template's own
    /// event type is preferred.
    async fn rendered_anew(&self, tenant: i32, wish: &Resend, named: Named) -> Result<Option<Copied>, NotAccepted> {
        let newest = match &wish.event_type {
            Some(event_type) => self.newest_of(tenant, wish, Some(event_type)).await?,
            None => match self.newest_of(tenant, wish, Some(&named.event_type)).await? {
                Some(id) => Some(id),
                None => self.newest_of(tenant, wish, None).await?,
            },
        };
        let Some(of) = newest else { return Ok(None) };
        let Some(note) = self.notification(Some(tenant), of).await? else { return Ok(None) };
        let recipients = suited(&note, wish)?;
        Ok(Some(Copied { request: again(&note, wish, &recipients)?, of, pin: named.pin }))
    }

    /// Reads the template that a resend names.
    async fn named_template(&self, tenant: i32, id: &str, channel: &str) -> Result<Named, NotAccepted> {
        let sql = "SELECT event_type, channel, version, language, active
            FROM postcommit.template
            WHERE tenant = $1 AND id = $2 AND deleted_at IS NULL";
        let rows = self.db.query(sql, vec![tenant.into(), id.into()]).await?;
        let refused = |problem: String| NotAccepted::invalid("template", problem);
        let row = rows.first().ok_or_else(|| refused(format!("is {id:?}, which does not exist; name another one")))?;
        let its_channel: String = row.get(1)?;
        if its_channel != channel {
            return Err(refused(format!(
                "is {id:?}, a template for channel {its_channel:?}; name one for channel {channel:?}"
            )));
        }
        if !row.get::<bool>(4)? {
            return Err(refused(format!("is {id:?}, which is not active; activate it, then resend")));
        }
        let language = Some(row.get::<String>(3)?).filter(|language| !language.is_empty());
        let pin = PinnedText { template: Some(id.to_owned()), version: Some(row.get(2)?), language };
        Ok(Named { event_type: row.get(0)?, pin })
    }

    /// Returns whether the tenant has an active template of the notification's event type for the channel.
    async fn has_template(&self, note: &StoredNotification, channel: &str) -> Result<bool, DbError> {
        let sql = "SELECT 1
            FROM postcommit.template
            WHERE tenant = $1 AND event_type = $2 AND channel = $3 AND active AND deleted_at IS NULL";
        let of_it = vec![note.tenant.into(), note.event_type.as_str().into(), channel.into()];
        Ok(!self.db.query(sql, of_it).await?.is_empty())
    }

    /// Enqueues the copy and writes the audit entry in one transaction. The handle must not be restricted to one
    /// tenant.
    pub async fn resend(&self, tenant: i32, wish: &Resend, copied: Copied) -> Result<Accepted, NotAccepted> {
        let Resend { entity, channel, event_type, template, recipient, request_id, of: _ } = wish;
        let recipient = recipient.as_ref().map(|recipient| json!({recipient.kind(): masked(recipient.value())}));
        let details = json!({"entity": entity, "channel": channel, "event_type": event_type, "recipient": recipient,
            "template": template, "request_id": request_id, "of": copied.of});
        let (pin, own_key) = ((copied.pin, channel.clone()), wish.key());
        let entry = move |id: Uuid| AuditEntry::new(tenant, "entity.resend", id.to_string()).details(details.clone());
        crash_point!("enqueue.before");
        let accepted = match &self.db {
            Db::Postgres(db) => {
                let mut client = db.client().await?;
                let transaction = client.transaction().await.map_err(postgres::refused)?;
                let accepted = enter_one_postgres(&transaction, &copied.request).await?;
                if !accepted.duplicate {
                    postgres::run(&transaction, &self.audit(entry(accepted.id))).await?;
                    postgres::run(&transaction, &pinned(tenant, accepted.id, &pin, &own_key)).await?;
                }
                crash_point!("enqueue.in_tx");
                transaction.commit().await.map_err(postgres::refused)?;
                accepted
            }
            Db::Sqlite(db) => {
                let this = self.clone();
                let enter = enter_one_sqlite(&copied.request)?;
                db.write(move |connection| {
                    let accepted = enter(connection)?;
                    if !accepted.duplicate {
                        let pin = pinned(tenant, accepted.id, &pin, &own_key);
                        for (sql, parameters) in [this.audit(entry(accepted.id)), pin] {
                            sqlite::run(connection, &sqlite::dialect(&sql), &parameters)?;
                        }
                    }
                    crash_point!("enqueue.in_tx");
                    Ok(accepted)
                })
                .await?
            }
        };
        crash_point!("enqueue.after_commit");
        if !accepted.duplicate {
            return Ok(accepted);
        }
        // The idempotency key exists. A concurrent request with the same id may have copied another notification, if a
        // new one was sent in between. Or an application has used the key, which is an error.
        Ok(self.resent(tenant, wish).await?.unwrap_or(accepted))
    }

    /// Reads the facts of a notification's deliveries on one channel, or of one of them, that were not skipped and have
    /// a text.
    async fn facts_over(&self, tenant: i32, id: Uuid, channel: &str, n: Option<i32>) -> Result<Vec<Facts>, DbError> {
        let of_one = n.map(|n| format!(" AND n = {n}")).unwrap_or_default();
        let facts = names::<Facts>("");
        let of_it = format!("tenant = $1 AND notification_id = $2 AND channel = $3{of_one}");
        let sql = format!(
            "SELECT {facts} FROM postcommit.delivery_queue WHERE {of_it}
             UNION ALL SELECT {facts} FROM postcommit.delivery_ledger WHERE {of_it} AND state <> 'skipped'"
        );
        let rows = self.db.query(&sql, vec![tenant.into(), id.into(), channel.into()]).await?;
        let facts = rows.into_iter().map(|mut row| Facts::read(&mut row, &in_order::<Facts>()));
        // A delivery whose channel had no template has no text that could be copied.
        facts.filter(|facts| facts.as_ref().map_or(true, |facts| !lacks_template(facts))).collect()
    }

    /// Returns the entity's newest notification of the event type, or of any type, that is not a copy. Its state does
    /// not matter. Copies are passed over, because a copy goes over one channel only. Returns the newest copy if the
    /// newest 200 notifications are copies.
    async fn newest_of(&self, tenant: i32, wish: &Resend, event_type: Option<&str>) -> Result<Option<Uuid>, DbError> {
        let filter = NotificationFilter {
            tenant: Some(tenant),
            entity: Some(wish.entity.clone()),
            event_type: event_type.map(str::to_owned),
            limit: 200,
            ..NotificationFilter::default()
        };
        let rows = self.notification_rows(&filter).await?.rows;
        let has_its_key = |row: &&NotificationRow| row.idempotency_key.split(':').next() == Some(RESEND_KEY);
        let copies: Vec<Uuid> = rows.iter().filter(has_its_key).map(|row| row.id).collect();
        let copies = self.copies_among(tenant, &copies).await?;
        let original = rows.iter().find(|row| !copies.contains(&row.id));
        Ok(original.or(rows.first()).map(|row| row.id))
    }

    /// Returns which of these notifications are copies. The audit log decides and not the form of the idempotency key,
    /// because an application may use any key.
    async fn copies_among(&self, tenant: i32, ids: &[Uuid]) -> Result<HashSet<Uuid>, DbError> {
        if ids.is_empty() {
            return Ok(HashSet::new());
        }
        let given = match &self.db {
            Db::Postgres(_) => "SELECT value #>> '{}' FROM jsonb_array_elements($2::jsonb)",
            Db::Sqlite(_) => "SELECT value FROM json_each($2)",
        };
        let sql = format!(
            "SELECT a.subject FROM postcommit.audit a
             WHERE a.tenant = $1 AND a.action = 'entity.resend' AND a.subject IN ({given})"
        );
        let rows = self.db.query(&sql, vec![tenant.into(), Value::from(json!(ids))]).await?;
        let read = |row: &Row| Ok(row.get::<String>(0)?.parse::<Uuid>().ok());
        Ok(rows.iter().map(read).collect::<Result<Vec<_>, DbError>>()?.into_iter().flatten().collect())
    }

    async fn newest_over(&self, tenant: i32, wish: &Resend) -> Result<Option<Uuid>, DbError> {
        let mut filter = DeliveryFilter {
            tenant: Some(tenant),
            entity: Some(wish.entity.clone()),
            channel: Some(wish.channel.clone()),
            event_type: wish.event_type.clone(),
            notification_id: wish.of.map(|original| original.notification),
            // Only these states count as sent. Cancelled, expired and parked deliveries were not sent, and waiting ones
            // are still to be sent.
            states: vec!["sent".into(), "delivered".into()],
            limit: 1,
            ..DeliveryFilter::default()
        };
        loop {
            let page = self.delivery_rows(&filter).await?;
            if let Some(row) = page.rows.first() {
                return Ok(Some(row.notification_id));
            }
            if page.more.is_none() {
                return Ok(None);
            }
            filter.before = page.more;
        }
    }
}

/// Returns the statement that marks the copy's own row as a resend, and stores the template, version and language that
/// render it.
fn pinned(tenant: i32, id: Uuid, (pin, channel): &(PinnedText, String), own_key: &str) -> Statement {
    let sql = "UPDATE postcommit.delivery_queue
        SET channel = $3, template = $4, template_version = $5, language = $6, send_key = $7
        WHERE tenant = $1 AND notification_id = $2 AND n = 0";
    let parameters = vec![
        tenant.into(),
        id.into(),
        channel.as_str().into(),
        pin.template.clone().into(),
        pin.version.into(),
        pin.language.clone().into(),
        own_key.into(),
    ];
    (sql.to_owned(), parameters)
}

/// Returns how the deliveries of a notification were rendered. A copy has one text. If the deliveries had several
/// texts, the operator must choose a template.
fn text_of(of: Uuid, facts: &[Facts]) -> Result<PinnedText, NotAccepted> {
    let text = |facts: &Facts| PinnedText {
        template: facts.template.clone(),
        version: Some(facts.template_version.unwrap_or_default()),
        language: facts.language.clone().filter(|_| facts.template.is_some()),
    };
    let Some(first) = facts.first().map(text) else { return Ok(PinnedText::direct()) };
    if facts.iter().all(|facts| text(facts) == first) {
        return Ok(first);
    }
    let templates: BTreeSet<&str> = facts.iter().filter_map(|facts| facts.template.as_deref()).collect();
    let listed = templates.into_iter().collect::<Vec<_>>().join(", ");
    let problem = format!("is missing: notification {of} was sent with several templates: {listed}; name one of them");
    Err(NotAccepted::invalid("template", problem))
}

/// Returns the recipients that a notification reached on the channel. An address on a channel that Postcommit does not
/// know cannot be named and is left out; if no recipient is left, the template renders the address again. Fails if the
/// notification has no delivery on the channel, or if a recipient names a provider that is deleted or disabled.
fn reached_before(
    note: &StoredNotification,
    wish: &Resend,
    facts: &[Facts],
    providers: &[Provider],
) -> Result<Vec<Recipient>, NotAccepted> {
    let of = note.id;
    let recipients = recipients_of(note, facts);
    if facts.is_empty() {
        let problem = format!(
            "no recipient of notification {of} can be reached on channel {:?} any more; name a recipient",
            wish.channel
        );
        return Err(NotAccepted::invalid("channel", problem));
    }
    for recipient in &recipients {
        let Recipient::Provider { provider, .. } = recipient else { continue };
        if !providers.iter().any(|known| known.name == *provider && known.enabled) {
            return Err(NotAccepted::invalid(
                "channel",
                format!(
                    "notification {of} was sent over provider {provider:?}, which is deleted or disabled; create or \
                     enable the provider, or name another recipient"
                ),
            ));
        }
    }
    Ok(recipients)
}

/// Returns the recipients of a message that a template renders again: the requested recipient, or else the
/// notification's recipients that may have an address on the channel. If there is none, the template itself gives the
/// address.
fn suited(note: &StoredNotification, wish: &Resend) -> Result<Vec<Recipient>, NotAccepted> {
    let suits = |recipient: &Recipient| match recipient {
        Recipient::User(_) | Recipient::List(_) => true,
        Recipient::Provider { .. } => false,
        address => channels_of_kind(address.kind()).contains(&wish.channel.as_str()),
    };
    match &wish.recipient {
        Some(asked) if suits(asked) => Ok(vec![asked.clone()]),
        Some(asked) => {
            let problem = format!("is a {}, which has no address on channel {:?}", asked.kind(), wish.channel);
            Err(NotAccepted::invalid("recipient", problem))
        }
        None => {
            let named = note.recipients.as_array().into_iter().flatten();
            Ok(named.filter_map(|entry| Recipient::from_json(entry).ok()).filter(suits).collect())
        }
    }
}

fn again(
    note: &StoredNotification,
    wish: &Resend,
    recipients: &[Recipient],
) -> Result<NotificationRequest, NotAccepted> {
    NotificationRequest::read(&said_again(note, wish, recipients)?, &note.tenant_name)
}

/// Returns the requested recipient, or else the notification's recipients that the channel can reach.
fn to_be_reached(
    note: &StoredNotification,
    wish: &Resend,
    asked: Option<&Recipient>,
    providers: &[Provider],
) -> Result<Vec<Recipient>, NotAccepted> {
    let (of, channel) = (note.id, &wish.channel);
    let given = asked.map(|recipient| StoredNotification { recipients: json!([recipient]), ..note.clone() });
    reachable(given.as_ref().unwrap_or(note), channel, Routes(providers)).map_err(|why| match asked {
        Some(_) => NotAccepted::invalid("recipient", format!("cannot be reached on channel {channel:?}: {why}")),
        None => {
            let none = format!("no recipient of notification {of} can be reached on channel {channel:?}: {why}");
            NotAccepted::invalid("channel", format!("{none}; name a recipient in `recipient`"))
        }
    })
}

/// Returns whether a notification has content for a channel. A webhook or a provider that is named as recipient
/// receives the event itself, so they need no further content.
fn has_content(note: &StoredNotification, channel: &str, recipients: &[Recipient]) -> bool {
    let content = render(note, &Facts::new(channel, ""));
    let gets_event = |recipient: &Recipient| matches!(recipient, Recipient::Webhook(_) | Recipient::Provider { .. });
    content.subject.is_some() || content.text.is_some() || content.data.is_some() || recipients.iter().any(gets_event)
}

/// Writes the original notification as the JSON of a new request, without its times and its trace.
fn said_again(note: &StoredNotification, wish: &Resend, recipients: &[Recipient]) -> Result<String, DbError> {
    // The source can be any JSON, because an application may have written it with plain SQL.
    let mut source: Source =
        note.source.clone().and_then(|source| serde_json::from_value(source).ok()).unwrap_or_default();
    (source.enqueued_at, source.traceparent) = (None, None);
    let said = BatchItem {
        event_type: &note.event_type,
        payload: &note.payload,
        idempotency_key: &wish.key(),
        tenant: &note.tenant_name,
        entity: note.entity.as_deref(),
        recipients,
        channels: std::slice::from_ref(&wish.channel),
        title: note.title.as_deref(),
        body: note.body.as_deref(),
        action_url: note.action_url.as_deref(),
        data: note.data.as_deref(),
        priority: note.priority,
        due_at: None,
        expires_at: None,
        source: Some(&source),
        correlation_id: note.correlation_id.as_deref(),
        topic: note.topic.as_deref(),
        schema_version: note.schema_version,
    };
    serde_json::to_string(&said).map_err(|e| DbError::Unreadable(e.to_string()))
}
