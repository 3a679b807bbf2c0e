//! Sending once more by hand what was sent for an entity. It is a notification of its own beside the first, which is not touched.

use postcommit::{Recipient, Source, key, limits};
use postcommit_channel::model::{Facts, StoredNotification, recipients_of, short_name};
use serde_json::json;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::crash_point;
use crate::db::columns::{Columns, in_order, names};
use crate::db::{Db, DbError, postgres, sqlite};
use crate::store::intake::accept::{Accepted, Said, enter_one_postgres, enter_one_sqlite};
use crate::store::{AuditEntry, DeliveryFilter, Incoming, NotificationFilter, Refusal, Store};

/// What somebody wants to have sent once more.
#[derive(Debug, Clone)]
pub struct Resend {
    /// What it is about.
    pub entity: String,
    /// Over which channel.
    pub channel: String,
    /// Only of this event type; none is whatever was last.
    pub event_type: Option<String>,
    /// The same again is not sent again.
    pub request_id: String,
}

impl Resend {
    /// Holds its names to what is allowed.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] names the field and the limit.
    pub fn check(&self) -> Result<(), Refusal> {
        for (field, name) in [("channel", &self.channel), ("request_id", &self.request_id)] {
            short_name(field, name)
                .map_err(|said| Refusal::invalid(field, said.split_once(": ").map_or(said.as_str(), |(_, problem)| problem)))?;
        }
        let length = self.event_type.as_ref().map_or(1, |name| name.chars().count());
        if !(1..=limits::NAME_CHARS).contains(&length) {
            return Err(Refusal::invalid("event_type", format!("has {length} characters; 1 to {} are allowed", limits::NAME_CHARS)));
        }
        Ok(())
    }

    /// `manual:{entity}:{channel}:{template}:{request}`, without a template. A long entity is told by its hash.
    fn key(&self) -> String {
        let of = |entity: &str| key::of("manual", &[entity, &self.channel, "", &self.request_id]);
        let plain = of(&self.entity);
        if plain.chars().count() <= limits::KEY_CHARS {
            return plain;
        }
        let hash: String = Sha256::digest(self.entity.as_bytes()).iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        of(&hash)
    }
}

/// What will be sent once more.
#[derive(Debug, Clone)]
pub struct Copied {
    /// Everything of the first one but its times, to those whom it reached on the channel, and by that channel alone.
    pub incoming: Incoming,
    /// The first one.
    of: Uuid,
}

impl Store {
    /// What this very request was answered with before, if it was: the same again is told the same, whatever came in between.
    ///
    /// # Errors
    /// As the database says; and when the request was for another event type.
    pub async fn resent(&self, tenant: i32, wish: &Resend) -> Result<Option<Accepted>, Refusal> {
        let filter =
            NotificationFilter { tenant: Some(tenant), idempotency_key: Some(wish.key()), limit: 1, ..NotificationFilter::default() };
        let Some(first) = self.notification_rows(&filter).await?.rows.pop() else { return Ok(None) };
        let conflict = wish.event_type.as_ref().is_some_and(|wanted| *wanted != first.event_type);
        Ok(Some(Accepted { id: first.id, duplicate: true, conflict }))
    }

    /// The newest notification of an entity that was sent over the channel, ready to be sent once more. None when nothing was.
    ///
    /// # Errors
    /// As the database says; and when nobody can be reached that way any more.
    pub async fn copied(&self, tenant: i32, wish: &Resend) -> Result<Option<Copied>, Refusal> {
        let Some(of) = self.newest_over(tenant, wish).await? else { return Ok(None) };
        let Some(note) = self.notification(Some(tenant), of).await? else { return Ok(None) };
        let providers = self.providers_of(tenant).await?;
        let recipients = recipients_of(&note, &self.facts_over(tenant, of, &wish.channel).await?);
        if recipients.is_empty() {
            let problem = format!("nobody whom notification {of} names can be reached on {:?} any more", wish.channel);
            return Err(Refusal::invalid("channel", problem));
        }
        for recipient in &recipients {
            let Recipient::Provider { provider, .. } = recipient else { continue };
            if !providers.iter().any(|known| known.name == *provider && known.enabled) {
                return Err(Refusal::invalid(
                    "channel",
                    format!("notification {of} went by provider {provider:?}, which is gone or disabled"),
                ));
            }
        }
        let incoming = Incoming::read(&said_again(&note, wish, &recipients)?, &note.tenant_name)?;
        Ok(Some(Copied { incoming, of }))
    }

    /// Enqueues it, and enters who asked for it in the audit log, in one commit. Not for a store of one tenant.
    ///
    /// # Errors
    /// As [`Store::accept`].
    pub async fn resend(&self, tenant: i32, wish: &Resend, copied: Copied) -> Result<Accepted, Refusal> {
        let Resend { entity, channel, event_type, request_id } = wish;
        let details = json!({"entity": entity, "channel": channel, "event_type": event_type, "request_id": request_id, "of": copied.of});
        let entry = move |id: Uuid| AuditEntry::new(tenant, "entity.resend", id.to_string()).details(details.clone());
        crash_point!("enqueue.before");
        let accepted = match &self.db {
            Db::Postgres(db) => {
                let mut client = db.client().await?;
                let transaction = client.transaction().await.map_err(postgres::refused)?;
                let accepted = enter_one_postgres(&transaction, &copied.incoming).await?;
                if !accepted.duplicate {
                    postgres::run(&transaction, &self.audit(entry(accepted.id))).await?;
                }
                crash_point!("enqueue.in_tx");
                transaction.commit().await.map_err(postgres::refused)?;
                accepted
            }
            Db::Sqlite(db) => {
                let this = self.clone();
                let enter = enter_one_sqlite(&copied.incoming)?;
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
        // Two of the same request at once, and something new in between: one of them copied that.
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
            // What was taken back, too late or given up never went out, and what waits still will.
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

/// The first one as it was said, without its times and its trace: those are the new one's own.
fn said_again(note: &StoredNotification, wish: &Resend, recipients: &[Recipient]) -> Result<String, DbError> {
    // Plain SQL may have written what is no source of ours.
    let mut source: Source = note.source.clone().and_then(|source| serde_json::from_value(source).ok()).unwrap_or_default();
    (source.enqueued_at, source.traceparent) = (None, None);
    let said = Said {
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
