//! Moves deliveries that were routed again into the lanes of their providers. A retried delivery that was parked before
//! anything was sent has no template version. Throttle and digest decide about it as about a new target, and it gets
//! the current version of its template.

use postcommit_channel::model::{ErrorClass, Facts, Fate};
use serde_json::{Value as Json, json};

use super::expand::{Expanded, Written};
use super::pacing::{Dialect, Session, on_sqlite, pace_postgres, pace_sqlite};
use crate::crash_point;
use crate::db::columns::names;
use crate::db::{Db, DbError, postgres};
use crate::store::{Lease, Store};

/// The columns that change in a row that enters a lane. A retried delivery without a template version gets the current
/// version of its template. Its `lost_since` is cleared: a worker that lost the lease has sent nothing, because it was
/// only expanding the row.
fn entered(template: &str) -> String {
    format!(
        "lease_token = NULL, lease_until = NULL,
         lost_since = CASE WHEN {template} IS NOT NULL AND q.template_version IS NULL THEN NULL ELSE q.lost_since END,
         template_version = CASE WHEN {template} IS NULL THEN q.template_version
           ELSE coalesce(q.template_version, (SELECT t.version
             FROM postcommit.template t
             WHERE t.tenant = q.tenant AND t.id = {template})) END"
    )
}
/// The columns that a retried delivery takes from its new target. They can differ from the delivery's row, because the
/// channel may have had no template when the notification was expanded.
const TAKEN: [(&str, &str); 6] = [
    ("target", "text"),
    ("template", "text"),
    ("language", "text"),
    ("user_id", "text"),
    ("context", "text"),
    ("send_key", "text"),
];

/// The statements that move retried deliveries into lanes or end them. The only parameter of each is a JSON array of
/// rows.
struct EnterSql {
    enter: String,
    end: String,
    remove: String,
}

impl Store {
    /// Moves a delivery into its provider's lane and releases its lease. Returns false if the lease is lost.
    pub async fn enter_lane(&self, lease: Lease, lane: i32) -> Result<bool, DbError> {
        let sql = format!(
            "UPDATE postcommit.delivery_queue AS q
             SET lane = $5, {}
             WHERE q.tenant = $1 AND q.notification_id = $2 AND q.n = $3 AND q.lease_token = $4",
            entered("q.template")
        );
        let key = lease.key;
        let parameters =
            vec![key.tenant.into(), key.notification.into(), key.n.into(), lease.token.into(), lane.into()];
        Ok(self.db.execute_one(&sql, parameters).await? > 0)
    }

    /// Moves retried deliveries into their providers' lanes. A delivery that is throttled, collected in a digest or
    /// otherwise ended moves to the ledger. A delivery whose lease is lost is skipped. On an error nothing was written.
    pub async fn enter_paced(&self, mut batch: Vec<Expanded>) -> Result<Written, DbError> {
        crash_point!("expand.before");
        batch.sort_by_key(|one| one.lease.key);
        let (pacing, enter) = (self.pacing_sql(), self.enter_sql());
        let written = match &self.db {
            Db::Postgres(db) => {
                let mut client = db.hot().await?;
                let transaction = client.transaction().await.map_err(postgres::refused)?;
                let paced = pace_postgres(&transaction, &pacing, &mut batch).await?;
                write(&transaction, &enter, &batch).await?;
                crash_point!("expand.in_tx");
                transaction.commit().await.map_err(postgres::refused)?;
                paced
            }
            Db::Sqlite(db) => {
                db.write(move |connection| {
                    let (batch, paced) = pace_sqlite(connection, &pacing, &batch)?;
                    on_sqlite(write(&connection, &enter, &batch))?;
                    crash_point!("expand.in_tx");
                    Ok(paced)
                })
                .await?
            }
        };
        crash_point!("expand.after_commit");
        Ok(written)
    }

    fn enter_sql(&self) -> EnterSql {
        let own = Dialect(self);
        let key = [("notification_id", "uuid"), ("n", "int"), ("token", "uuid")];
        let columns = [&key[..], &[("lane", "int")], &TAKEN].concat();
        let ended =
            [&key[..], &[("state", "text"), ("code", "text"), ("error_class", "text"), ("detail", "text")]].concat();
        let leased = format!(
            "{} AND q.notification_id = g.notification_id AND q.n = g.n AND q.lease_token = g.token",
            own.tenant("q")
        );
        let (facts, of_row) = (names::<Facts>(""), names::<Facts>("q."));
        let taken = TAKEN.map(|(name, _)| format!("{name} = g.{name}")).join(", ");
        let set = format!("lane = g.lane, {taken}, {}", entered("g.template"));
        EnterSql {
            enter: own.update("delivery_queue AS q", &set, &columns, &leased),
            end: format!(
                "INSERT INTO postcommit.delivery_ledger (tenant, notification_id, n, lane, state, code, error_class, detail,
                   attempts, seq, finished_at, {facts})
                 SELECT q.tenant, q.notification_id, q.n, 0, g.state, g.code, g.error_class, g.detail, 0, 0, {{now}}, {of_row}
                 FROM {} JOIN postcommit.delivery_queue q ON {leased}",
                own.given(&ended)
            ),
            remove: own.delete("delivery_queue AS q", &key, &leased),
        }
    }
}

/// Writes each delivery's [`Fate`]: the delivery enters a lane or ends.
async fn write<S: Session>(session: &S, sql: &EnterSql, batch: &[Expanded]) -> Result<(), DbError> {
    let (mut entered, mut ended): (Vec<Json>, Vec<Json>) = (vec![], vec![]);
    for Expanded { lease, targets, .. } in batch {
        for target in targets {
            let mut row = json!({"tenant": lease.key.tenant, "notification_id": lease.key.notification, "n": lease.key.n,
                "token": lease.token});
            match &target.fate {
                Fate::Lane(lane) => {
                    let Facts { target, template, language, user_id, context, send_key, .. } = &target.facts;
                    row["lane"] = json!(lane);
                    let taken = [target, template, language, user_id, context, send_key];
                    TAKEN.iter().zip(taken).for_each(|((name, _), value)| row[*name] = json!(value));
                    entered.push(row);
                }
                Fate::Ended { state, code, detail } => {
                    (row["state"], row["code"], row["detail"]) = (json!(state.name()), json!(code), json!(detail));
                    row["error_class"] = json!(ErrorClass::of_code(code).map(ErrorClass::name));
                    ended.push(row);
                }
            }
        }
    }
    for (sql, rows) in [(&sql.enter, entered), (&sql.end, ended.clone()), (&sql.remove, ended)] {
        if !rows.is_empty() {
            session.query(sql, rows).await?;
        }
    }
    Ok(())
}
