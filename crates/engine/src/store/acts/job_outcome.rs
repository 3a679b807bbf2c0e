//! What became of the deliveries that a job changed.

use std::collections::BTreeMap;

use crate::db::DbError;
use crate::store::lists::keyset::{Dialect, SqlParameters};
use crate::store::lists::notifications::LIVE_STATE;
use crate::store::{Job, StateCounts, Store};

/// How many entries of the audit log are examined, from the entry about the job on.
const EXAMINED: i64 = 5000;

impl Store {
    /// Counts the states that the deliveries of a job have now. The audit log names the deliveries. Only a part of the
    /// deliveries is counted if more than 5,000 entries were written since the job was created.
    pub async fn job_outcome(&self, job: &Job) -> Result<StateCounts, DbError> {
        // The subject is the id of a delivery: the id of its notification, a dot and a number.
        let (id, n) = match self.dialect() {
            Dialect::Postgres => ("split_part(a.subject, '.', 1)::uuid", "split_part(a.subject, '.', 2)::int"),
            Dialect::Sqlite => ("substr(a.subject, 1, 36)", "CAST(substr(a.subject, 38) AS INTEGER)"),
        };
        let key = |row: &str| format!("{row}.tenant = a.tenant AND {row}.notification_id = {id} AND {row}.n = {n}");
        let mut parameters = SqlParameters::default();
        let by_job = parameters.add(format!("job:{}", job.id));
        let (owner, about) = (parameters.add(job.tenant.unwrap_or(1)), parameters.add(job.id.to_string()));
        let within = job.tenant.map(|_| format!(" AND tenant = {owner}")).unwrap_or_default();
        // Entries have rising numbers, so those of the job follow the entry about its creation. Each delivery is looked
        // up by its key.
        let sql = format!(
            "SELECT s.state, count(*)
             FROM (SELECT coalesce((SELECT l.state FROM postcommit.delivery_ledger l WHERE {}),
                 (SELECT {LIVE_STATE} FROM postcommit.delivery_queue q WHERE {})) AS state
               FROM (SELECT tenant, subject, request_id
                 FROM postcommit.audit
                 WHERE id > (SELECT min(c.id)
                   FROM postcommit.audit c
                   WHERE c.tenant = {owner} AND c.subject = {about} AND c.action = 'job.create'){within}
                 ORDER BY id
                 LIMIT {EXAMINED}) a
               WHERE a.request_id = {by_job}) s
             WHERE s.state IS NOT NULL
             GROUP BY s.state",
            key("l"),
            key("q")
        );
        let rows = self.db.query(&sql, parameters.0).await?;
        let counted: Result<BTreeMap<String, i64>, DbError> =
            rows.iter().map(|row| Ok((row.get(0)?, row.get(1)?))).collect();
        counted.map(StateCounts)
    }
}
