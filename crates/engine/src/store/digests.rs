//! The events of digests. `queue/pacing.rs` collects them.

use std::collections::HashMap;

use serde_json::json;
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::db::{DbError, Row, Value};
use crate::store::Store;
use crate::store::unreadable::legible;

/// A digest: its tenant and the id of its own notification.
pub type DigestKey = (i32, Uuid);

impl Store {
    /// Reads the payloads of digests in the order in which their notifications were enqueued, all in one query. They do
    /// not change any more when the digest's own notification is expanded, so every attempt renders the same bytes. What is
    /// no digest is not in the result.
    pub async fn digest_items(&self, digests: &[DigestKey]) -> Result<HashMap<Uuid, Vec<Box<RawValue>>>, DbError> {
        let mut items: HashMap<Uuid, Vec<Box<RawValue>>> = HashMap::new();
        if digests.is_empty() {
            return Ok(items);
        }
        let given = self.rows_given(1, &[("tenant", "int"), ("id", "uuid")]);
        // On PostgreSQL ids are in the order of enqueueing, also within a millisecond. On SQLite the rows are numbered.
        let order = if self.db.kind() == "postgres" { "n.id" } else { "n.seq" };
        let sql = format!(
            "SELECT i.digest_id, n.payload
             FROM {given}
             JOIN postcommit.digest_item i ON i.tenant = g.tenant AND i.digest_id = g.id
             JOIN postcommit.notification n ON n.tenant = i.tenant AND n.id = i.notification_id
             ORDER BY i.digest_id, {order}, i.n"
        );
        let keys: Vec<_> = digests.iter().map(|(tenant, id)| json!({"tenant": tenant, "id": id})).collect();
        let rows = self.db.query(&sql, vec![Value::from(json!(keys))]).await?;
        let read = |row: &Row| Ok((row.get::<Uuid>(0)?, row.get::<Box<RawValue>>(1)?));
        for (digest, payload) in legible("items of digests", rows.iter().map(read)) {
            items.entry(digest).or_default().push(payload);
        }
        Ok(items)
    }

    /// Forgets the periods of throttles that are over, and the keys of digests that are closed. Returns how many.
    pub async fn forget_pacing_once(&self) -> Result<u64, DbError> {
        let closed = "NOT EXISTS (SELECT 1 FROM postcommit.delivery_queue q
            WHERE q.tenant = d.tenant AND q.notification_id = d.notification_id AND q.n = 0)";
        let statements = vec![
            ("DELETE FROM postcommit.throttle WHERE until < {now}".to_owned(), vec![]),
            // The mark is a lock. The second statement sees what was committed before it, so that a digest which was opened
            // meanwhile stays.
            (format!("UPDATE postcommit.digest AS d SET bytes = -1 WHERE {closed}"), vec![]),
            (format!("DELETE FROM postcommit.digest AS d WHERE d.bytes = -1 AND {closed}"), vec![]),
        ];
        let touched = self.db.execute(statements).await?;
        Ok(touched.first().copied().unwrap_or_default() + touched.last().copied().unwrap_or_default())
    }
}
