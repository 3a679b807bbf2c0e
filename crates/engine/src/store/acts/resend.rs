//! Resends a notification of an entity on request of an operator. The resend is a new notification, and the first one
//! is not changed.

use postcommit::{Recipient, Source, key, limits};
use postcommit_channel::model::{Facts, StoredNotification, recipients_of, short_name};
use serde_json::json;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::crash_point;
use crate::db::columns::{Columns, in_order, names};
use crate::db::{Db, DbError, postgres, sqlite};
use crate::store::intake::accept::{Accepted, BatchItem, enter_one_postgres, enter_one_sqlite};
use crate::store::{AuditEntry, DeliveryFilter, NotAccepted, NotificationFilter, NotificationRequest, Store};

/// A request to resend.
#[derive(Debug, Clone)]
pub struct Resend {
    /// The entity.
    pub entity: String,
    /// The channel.
    pub channel: String,
    /// Only this event type. `None` is the latest notification of any type.
    pub event_type: Option<String>,
    /// A repeated request with the same id does not send again.
    pub request_id: String,
}

impl Resend {
    /// Checks the names.
    ///
    /// # Errors
    /// [`NotAccepted::Invalid`] names the field and the limit.
    pub fn check(&self) -> Result<(), NotAccepted> {
        for (field, name) in [("channel", &self.channel), ("request_id", &self.request_id)] {
            short_name(field, name).map_err(|said| {
                NotAccepted::invalid(field, said.split_once(": ").map_or(said.as_str(), |(_, problem)| problem))
            })?;
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

    /// The idempotency key: `manual:{entity}:{channel}:{template}:{request}` with an empty template. A long entity is
    /// replaced by its hash.
    fn key(&self) -> String {
        let of = |entity: &str| key::of("manual", &[entity, &self.channel, "", &self.request_id]);
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
    /// A copy of the first notification without its times, to the recipients whom it reached on the channel, and on
    /// that channel only.
    pub request: NotificationRequest,
    /// The first notification.
    of: Uuid,
}

impl Store {
    /// The result of an earlier request with the same id, if there was one. A repeated request gets the same answer. It
    /// is a conflict if the event type differs.
    pub async fn resent(&self, tenant: i32, wish: &Resend) -> Result<Option<Accepted>, NotAccepted> {
        let filter = NotificationFilter {
            tenant: Some(tenant),
            idempotency_key: Some(wish.key()),
            limit: 1,
            ..NotificationFilter::default()
        };
        let Some(first) = self.notification_rows(&filter).await?.rows.pop() else { return Ok(None) };
        let conflict = wish.event_type.as_ref().is_some_and(|wanted| *wanted != first.event_type);
        Ok(Some(Accepted { id: first.id, duplicate: true, conflict }))
    }

    /// A copy of the newest notification of the entity that was sent on the channel. `None` if there is none.
    ///
    /// # Errors
    /// When no recipient can be reached on the channel any more, or the database fails.
    pub async fn copied(&self, tenant: i32, wish: &Resend) -> Result<Option<Copied>, NotAccepted> {
        let Some(of) = self.newest_over(tenant, wish).await? else { return Ok(None) };
        let Some(note) = self.notification(Some(tenant), of).await? else { return Ok(None) };
        let providers = self.providers_of(tenant).await?;
        let recipients = recipients_of(&note, &self.facts_over(tenant, of, &wish.channel).await?);
        if recipients.is_empty() {
            let problem = format!("no recipient of notification {of} can be reached on {:?} any more", wish.channel);
            return Err(NotAccepted::invalid("channel", problem));
        }
        for recipient in &recipients {
            let Recipient::Provider { provider, .. } = recipient else { continue };
            if !providers.iter().any(|known| known.name == *provider && known.enabled) {
                return Err(NotAccepted::invalid(
                    "channel",
                    format!("notification {of} went by provider {provider:?}, which is gone or disabled"),
                ));
            }
        }
        let request = NotificationRequest::read(&said_again(&note, wish, &recipients)?, &note.tenant_name)?;
        Ok(Some(Copied { request, of }))
    }

    /// Enqueues the copy and writes the audit entry in one commit. Not for a handle of one tenant.
    pub async fn resend(&self, tenant: i32, wish: &Resend, copied: Copied) -> Result<Accepted, NotAccepted> {
        let Resend { entity, channel, event_type, request_id } = wish;
        let details = json!({"entity": entity, "channel": channel, "event_type": event_type, "request_id": request_id, "of": copied.of});
        let entry = move |id: Uuid| AuditEntry::new(tenant, "entity.resend", id.to_string()).details(details.clone());
        crash_point!("enqueue.before");
        let accepted = match &self.db {
            Db::Postgres(db) => {
                let mut client = db.client().await?;
                let transaction = client.transaction().await.map_err(postgres::refused)?;
                let accepted = enter_one_postgres(&transaction, &copied.request).await?;
                if !accepted.duplicate {
                    postgres::run(&transaction, &self.audit(entry(accepted.id))).await?;
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
                        let (sql, parameters) = this.audit(entry(accepted.id));
                        sqlite::run(connection, &sqlite::dialect(&sql), &parameters)?;
                    }
                    crash_point!("enqueue.in_tx");
                    Ok(accepted)
                })
                .await?
            }
        };
        crash_point!("enqueue.after_commit");
        if !accepted.conflict {
            return Ok(accepted);
        }
        // Two concurrent requests with the same id may copy different notifications if a new one was sent in between.
        Ok(self.resent(tenant, wish).await?.unwrap_or(accepted))
    }

    /// What the deliveries of a notification say that went over a channel or still will.
    async fn facts_over(&self, tenant: i32, id: Uuid, channel: &str) -> Result<Vec<Facts>, DbError> {
        let (facts, of_it) = (names::<Facts>(""), "tenant = $1 AND notification_id = $2 AND channel = $3");
        let sql = format!(
            "SELECT {facts} FROM postcommit.delivery_queue WHERE {of_it}
             UNION ALL SELECT {facts} FROM postcommit.delivery_ledger WHERE {of_it} AND state <> 'skipped'"
        );
        let rows = self.db.query(&sql, vec![tenant.into(), id.into(), channel.into()]).await?;
        rows.into_iter().map(|mut row| Facts::read(&mut row, &in_order::<Facts>())).collect()
    }

    async fn newest_over(&self, tenant: i32, wish: &Resend) -> Result<Option<Uuid>, DbError> {
        let mut filter = DeliveryFilter {
            tenant: Some(tenant),
            entity: Some(wish.entity.clone()),
            channel: Some(wish.channel.clone()),
            event_type: wish.event_type.clone(),
            // Cancelled, expired and parked deliveries were never sent, and waiting ones will be.
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

/// The first notification as JSON, without its times and its trace.
fn said_again(note: &StoredNotification, wish: &Resend, recipients: &[Recipient]) -> Result<String, DbError> {
    // An application may have written any JSON as source by plain SQL.
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
