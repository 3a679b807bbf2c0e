//! The events of digests. `queue/pacing.rs` collects them.

use std::collections::HashMap;

use postcommit::Timestamp;
use postcommit_channel::model::{DIGESTED, DeliveryKey};
use serde_json::json;
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::db::{DbError, Row, Value};
use crate::store::unreadable::legible;
use crate::store::{Lease, Store};

/// A digest: its tenant and the id of its own notification.
pub type DigestKey = (i32, Uuid);

/// An event in a digest.
#[derive(Debug, Clone)]
pub struct DigestItem {
    /// The event's own notification.
    pub notification: Uuid,
    /// The number of the delivery that was skipped as digested.
    pub n: i32,
    /// When the event's own notification expires.
    pub expires_at: Timestamp,
    pub payload: Box<RawValue>,
}

impl Store {
    /// Reads the items of digests in the order in which their notifications were enqueued, all in one query. Once the
    /// digest's own notification is being expanded, no more items are added. A digest without items is not in the
    /// result.
    pub async fn digest_items(&self, digests: &[DigestKey]) -> Result<HashMap<Uuid, Vec<DigestItem>>, DbError> {
        let mut items: HashMap<Uuid, Vec<DigestItem>> = HashMap::new();
        if digests.is_empty() {
            return Ok(items);
        }
        let given = self.rows_given(1, &[("tenant", "int"), ("id", "uuid")]);
        // On PostgreSQL ids are in the order of enqueueing, also within a millisecond. On SQLite the column `seq` has
        // that order.
        let order = if self.db.kind() == "postgres" { "n.id" } else { "n.seq" };
        let sql = format!(
            "SELECT i.digest_id, i.notification_id, i.n, n.expires_at, n.payload
             FROM {given}
             JOIN postcommit.digest_item i ON i.tenant = g.tenant AND i.digest_id = g.id
             JOIN postcommit.notification n ON n.tenant = i.tenant AND n.id = i.notification_id
             ORDER BY i.digest_id, {order}, i.n"
        );
        let keys: Vec<_> = digests.iter().map(|(tenant, id)| json!({"tenant": tenant, "id": id})).collect();
        let rows = self.db.query(&sql, vec![Value::from(json!(keys))]).await?;
        let read = |row: &Row| {
            let (notification, n, expires_at) = (row.get(1)?, row.get(2)?, row.get(3)?);
            Ok((row.get::<Uuid>(0)?, DigestItem { notification, n, expires_at, payload: row.get(4)? }))
        };
        for (digest, item) in legible("items of digests", rows.iter().map(read)) {
            items.entry(digest).or_default().push(item);
        }
        Ok(items)
    }

    /// Removes items that have expired from a digest that is leased, and ends their deliveries as expired. Returns
    /// false, and changes nothing, if the lease is lost.
    pub async fn expire_items(&self, lease: Lease, expired: &[DigestItem]) -> Result<bool, DbError> {
        let DeliveryKey { tenant, notification: digest, n } = lease.key;
        // This write locks the digest's queue row until the commit, so that the lease cannot be lost in between.
        let is_leased = "UPDATE postcommit.delivery_queue SET lease_token = lease_token
            WHERE tenant = $1 AND notification_id = $2 AND n = $3 AND lease_token = $4";
        let given = self.rows_given(2, &[("notification_id", "uuid"), ("n", "int")]);
        let end = format!(
            "UPDATE postcommit.delivery_ledger AS l
             SET state = 'expired', code = 'expired', error_class = NULL, detail = $3, finished_at = {{now}}
             FROM {given}
             WHERE l.tenant = $1 AND l.notification_id = g.notification_id AND l.n = g.n AND l.code = '{DIGESTED}'"
        );
        let remove = format!(
            "DELETE FROM postcommit.digest_item AS i
             WHERE i.tenant = $1 AND i.digest_id = $3 AND EXISTS (SELECT 1
               FROM {given}
               WHERE i.notification_id = g.notification_id AND i.n = g.n)"
        );
        let keys: Vec<_> =
            expired.iter().map(|item| json!({"notification_id": item.notification, "n": item.n})).collect();
        let keys = Value::from(json!(keys));
        let detail = format!("the event expired before its digest {digest} was sent");
        let statements = vec![
            (is_leased.to_owned(), vec![tenant.into(), digest.into(), n.into(), lease.token.into()]),
            (end, vec![tenant.into(), keys.clone(), detail.into()]),
            (remove, vec![tenant.into(), keys, digest.into()]),
        ];
        self.db.execute_if(statements, 0).await
    }

    /// Deletes the periods of throttles that are over, and the keys of closed digests. Returns the number of deleted
    /// rows.
    pub async fn forget_pacing_once(&self) -> Result<u64, DbError> {
        let closed = "NOT EXISTS (SELECT 1 FROM postcommit.delivery_queue q
            WHERE q.tenant = d.tenant AND q.notification_id = d.notification_id AND q.n = 0)";
        let statements = vec![
            ("DELETE FROM postcommit.throttle WHERE until < {now}".to_owned(), vec![]),
            // The UPDATE marks and locks the keys of closed digests. The DELETE sees all earlier commits, so the key of
            // a digest that was opened in between is kept.
            (format!("UPDATE postcommit.digest AS d SET bytes = -1 WHERE {closed}"), vec![]),
            (format!("DELETE FROM postcommit.digest AS d WHERE d.bytes = -1 AND {closed}"), vec![]),
        ];
        let touched = self.db.execute(statements).await?;
        Ok(touched.first().copied().unwrap_or_default() + touched.last().copied().unwrap_or_default())
    }
}
