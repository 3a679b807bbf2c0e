//! Applies one receipt. The delivery is read, the model decides, and one transaction writes the delivery, the receipt,
//! the suppression and the audit log. If the delivery has changed since it was read, the first statement changes no
//! row: then nothing is written, and the receipt is judged again.

use std::time::Duration;

use postcommit_channel::model::{
    Actor, DeliveryId, DeliveryState, ErrorClass, Facts, FinishedState, ReceiptEffect, Standing, comparable,
    receipt_effect,
};
use serde_json::json;
use uuid::Uuid;

use super::{Fate, Waiting};
use crate::db::columns::names;
use crate::db::{DbError, Row, Statement, Value};
use crate::store::{AuditEntry, Store};

/// How often a receipt is judged if its delivery changes concurrently. After that it is postponed.
const TRIES: usize = 8;
/// The longest time between two tries to apply a receipt.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);
/// How long a receipt waits for a delivery that is not found or was never attempted. For a delivery that was attempted
/// or is being sent, it waits without a limit, e.g. while the lane is paused for days.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(24 * 3600);

/// The delivery that a receipt is about.
struct Found {
    id: DeliveryId,
    lane: i32,
    channel: Option<String>,
    target: Option<String>,
    state: DeliveryState,
    unclear: bool,
    was_attempted: bool,
    provider_ref: Option<String>,
}

/// The result of the search for a receipt's delivery.
enum Search {
    Found(Box<Found>),
    /// The delivery is not found, but may appear later.
    NotYet,
    /// The delivery cannot appear any more. Holds the reason to show with the receipt.
    Never(&'static str),
}

impl Store {
    /// Applies a receipt, or postpones it if its delivery is not ready for it.
    pub(super) async fn apply_receipt(&self, receipt: &Waiting) -> Result<Fate, DbError> {
        for _ in 0..TRIES {
            let found = match self.delivery_of(receipt).await? {
                Search::Found(found) => found,
                Search::NotYet => return self.put_off(receipt, None, GIVEN_UP_AFTER).await,
                Search::Never(reason) => return self.ignore(receipt, None, reason).await,
            };
            if found.lane != receipt.lane {
                // A live delivery may still enter the lane of the receipt's provider: it is not expanded yet, or was
                // moved.
                return match DeliveryState::LIVE.contains(&found.state) {
                    true => self.put_off(receipt, Some(found.id), GIVEN_UP_AFTER).await,
                    false => self.ignore(receipt, Some(found.id), "other_provider").await,
                };
            }
            let is_other = |(one, other): (&String, &String)| one != other;
            let refs = receipt.provider_ref.as_ref().zip(found.provider_ref.as_ref());
            let standing = Standing {
                state: found.state,
                unclear: found.unclear,
                is_earlier_message: refs.is_some_and(is_other),
                was_attempted: found.was_attempted,
            };
            match receipt_effect(receipt.happened, standing) {
                ReceiptEffect::Waits => {
                    let is_unsent = found.state == DeliveryState::Pending && !found.was_attempted;
                    let given_up_after = if is_unsent { GIVEN_UP_AFTER } else { Duration::MAX };
                    return self.put_off(receipt, Some(found.id), given_up_after).await;
                }
                ReceiptEffect::Stays(reason) if receipt.happened.suppresses().is_none() => {
                    return self.ignore(receipt, Some(found.id), reason).await;
                }
                ReceiptEffect::Stays(reason) => return self.only_suppress(receipt, &found, reason).await,
                ReceiptEffect::Becomes(state) => {
                    if self.end(receipt, &found, state).await? {
                        return Ok(Fate::Applied);
                    }
                }
            }
        }
        self.put_off(receipt, None, GIVEN_UP_AFTER).await
    }

    async fn delivery_of(&self, receipt: &Waiting) -> Result<Search, DbError> {
        let ended = "SELECT l.notification_id, l.n, l.lane, l.channel, l.target, l.state, l.unclear, l.provider_ref,
              l.seq > 0
            FROM postcommit.delivery_ledger l WHERE l.tenant = $1 AND";
        let Some((notification, n)) = receipt.delivery else {
            let Some(provider_ref) = &receipt.provider_ref else { return Ok(Search::Never("no_reference")) };
            let sql = format!("{ended} l.provider_ref = $2 AND l.lane = $3 ORDER BY l.notification_id DESC LIMIT 1");
            let parameters = vec![receipt.tenant.into(), provider_ref.as_str().into(), receipt.lane.into()];
            let rows = self.db.query(&sql, parameters).await?;
            return rows.first().map_or(Ok(Search::NotYet), found);
        };
        let sql = format!(
            "{ended} l.notification_id = $2 AND l.n = $3
             UNION ALL
             SELECT q.notification_id, q.n, q.lane, q.channel, q.target,
               CASE WHEN q.lease_token IS NOT NULL THEN 'sending' WHEN q.attempts > 0 OR q.losses > 0 THEN 'retrying'
                 ELSE 'pending' END,
               q.unclear, NULL, q.seq > 0
             FROM postcommit.delivery_queue q WHERE q.tenant = $1 AND q.notification_id = $2 AND q.n = $3"
        );
        let rows = self.db.query(&sql, vec![receipt.tenant.into(), notification.into(), n.into()]).await?;
        if let Some(row) = rows.first() {
            return found(row);
        }
        // The delivery may have no row of its own: it is sent from its notification's row, or the notification is not
        // expanded yet.
        let sql = "SELECT 1 FROM postcommit.notification WHERE tenant = $1 AND id = $2";
        let known = !self.db.query(sql, vec![receipt.tenant.into(), notification.into()]).await?.is_empty();
        Ok(if known { Search::NotYet } else { Search::Never("unknown_delivery") })
    }

    /// Postpones the receipt, each time for longer. After `given_up_after` the receipt is ignored as `never_sent`.
    async fn put_off(
        &self,
        receipt: &Waiting,
        delivery: Option<DeliveryId>,
        given_up_after: Duration,
    ) -> Result<Fate, DbError> {
        if self.now().await?.since(receipt.received_at) > given_up_after {
            return self.ignore(receipt, delivery, "never_sent").await;
        }
        self.look_later(receipt).await?;
        Ok(Fate::Waiting)
    }

    /// Postpones the next try to apply a receipt. If another process has postponed it in the meantime, nothing changes.
    pub(super) async fn look_later(&self, receipt: &Waiting) -> Result<(), DbError> {
        let wait = Duration::from_secs(1 << receipt.looks.clamp(0, 12)).min(LONGEST_WAIT);
        let sql = format!(
            "UPDATE postcommit.receipt SET looks = looks + 1, look_at = {}
             WHERE tenant = $1 AND id = $2 AND fate = 'waiting' AND looks = $4",
            self.db.seconds_from_now(3)
        );
        let wait = Value::Real(wait.as_secs_f64());
        let parameters = vec![receipt.tenant.into(), receipt.id.into(), wait, receipt.looks.into()];
        self.db.execute_one(&sql, parameters).await.map(drop)
    }

    async fn ignore(
        &self,
        receipt: &Waiting,
        delivery: Option<DeliveryId>,
        reason: &'static str,
    ) -> Result<Fate, DbError> {
        self.db.execute(vec![close(receipt, Fate::Ignored, Some(reason), delivery)]).await?;
        Ok(Fate::Ignored)
    }

    async fn only_suppress(&self, receipt: &Waiting, found: &Found, reason: &'static str) -> Result<Fate, DbError> {
        let mut statements = vec![close(receipt, Fate::Applied, Some(reason), Some(found.id))];
        statements.extend(self.suppress_address(receipt, found));
        self.db.execute_if(statements, 0).await?;
        Ok(Fate::Applied)
    }

    /// Ends the delivery in the given state. Returns false, and writes nothing, if the delivery has changed in the
    /// meantime.
    async fn end(&self, receipt: &Waiting, found: &Found, state: FinishedState) -> Result<bool, DbError> {
        let mut statements = match found.state {
            DeliveryState::Pending | DeliveryState::Retrying => self.leave_queue(receipt, found, state),
            _ => vec![change_ledger(receipt, found, state)],
        };
        statements.push(close(receipt, Fate::Applied, None, Some(found.id)));
        let details = json!({"happened": receipt.happened.name(), "state": state.name(), "code": receipt.code});
        let entry = AuditEntry::new(receipt.tenant, "delivery.receipt", found.id.to_string()).details(details);
        statements.push(self.by_provider(receipt).audit(entry));
        statements.extend(self.suppress_address(receipt, found));
        let done = self.db.execute_if(statements, 0).await?;
        if done && let FinishedState::Parked(_) = state {
            tracing::warn!(
                delivery = %found.id, provider = receipt.provider, happened = receipt.happened.name(), code = receipt.code,
                "delivery parked: the provider reported that it did not arrive"
            );
        }
        Ok(done)
    }

    /// Returns the statements that move a delivery from the queue, where it waits for another attempt, into the ledger.
    /// They change nothing if a worker holds the delivery. They also change nothing unless an attempt may have arrived,
    /// or the receipt proves that one has.
    fn leave_queue(&self, receipt: &Waiting, found: &Found, state: FinishedState) -> Vec<Statement> {
        let facts = names::<Facts>("");
        let parameters = change_parameters(receipt, found, state);
        let left = "tenant = $1 AND notification_id = $2 AND n = $3 AND lane = $4 AND lease_token IS NULL
          AND (unclear OR (seq > 0 AND CAST($5 AS text) = 'delivered'))";
        let columns = format!(
            "tenant, notification_id, n, lane, attempts, seq, state, reason, code, error_class, detail, unclear,
             provider_ref, sent_at, finished_at, {facts}"
        );
        // The receipt `$10` must still be waiting.
        let waits =
            "EXISTS (SELECT 1 FROM postcommit.receipt r WHERE r.tenant = $1 AND r.id = $10 AND r.fate = 'waiting')";
        let values = format!(
            "tenant, notification_id, n, lane, attempts, seq, CAST($5 AS text), CAST($6 AS text), CAST($7 AS text),
             CAST($8 AS text), CAST($9 AS text), {SEVERAL_UNCLEAR}, CAST($11 AS text),
             CASE WHEN CAST($5 AS text) <> 'parked' THEN {{now}} END, {{now}}, {facts}"
        );
        match self.db.kind() {
            // One statement moves the row, so that the row cannot be claimed in between.
            "postgres" => {
                let sql = format!(
                    "WITH gone AS (DELETE FROM postcommit.delivery_queue WHERE {left} AND {waits} RETURNING *)
                     INSERT INTO postcommit.delivery_ledger ({columns}) SELECT {values} FROM gone"
                );
                vec![(sql, parameters)]
            }
            _ => {
                let insert = format!(
                    "INSERT INTO postcommit.delivery_ledger ({columns})
                     SELECT {values} FROM postcommit.delivery_queue WHERE {left} AND {waits}"
                );
                let delete = format!("DELETE FROM postcommit.delivery_queue WHERE {left}");
                let key = parameters[..5].to_vec();
                vec![(insert, parameters), (delete, key)]
            }
        }
    }

    /// Returns the statements that suppress the delivery's address, if the receipt says that nothing may be sent to it
    /// any more. An existing suppression that never ends keeps its reason.
    fn suppress_address(&self, receipt: &Waiting, found: &Found) -> Vec<Statement> {
        let (Some(reason), Some(channel), Some(target)) =
            (receipt.happened.suppresses(), &found.channel, &found.target)
        else {
            return vec![];
        };
        self.by_provider(receipt).suppress_from_now((receipt.tenant, found.id), channel, &comparable(target), reason)
    }

    /// Returns a store handle whose changes the audit log attributes to the provider. The id of the request is kept.
    fn by_provider(&self, receipt: &Waiting) -> Self {
        let name = receipt.provider.clone().unwrap_or_else(|| receipt.lane.to_string());
        self.by(Actor { name: format!("provider:{name}"), request_id: self.actor.request_id.clone() })
    }
}

fn found(row: &Row) -> Result<Search, DbError> {
    let state: String = row.get(5)?;
    let state = DeliveryState::ALL.into_iter().find(|known| known.name() == state);
    Ok(Search::Found(Box::new(Found {
        id: DeliveryId { notification: row.get::<Uuid>(0)?, n: row.get(1)? },
        lane: row.get(2)?,
        channel: row.get(3)?,
        target: row.get(4)?,
        state: state.ok_or_else(|| DbError::Unreadable("the column state names no known state".to_owned()))?,
        unclear: row.get(6)?,
        provider_ref: row.get(7)?,
        was_attempted: row.get(8)?,
    })))
}

/// Returns the statement that closes a waiting receipt.
fn close(receipt: &Waiting, fate: Fate, reason: Option<&str>, delivery: Option<DeliveryId>) -> Statement {
    let sql = "UPDATE postcommit.receipt
        SET fate = $3, reason = $4, applied_at = {now}, notification_id = coalesce($5, notification_id),
          n = coalesce($6, n)
        WHERE tenant = $1 AND id = $2 AND fate = 'waiting'";
    let parameters = vec![
        receipt.tenant.into(),
        receipt.id.into(),
        fate.name().into(),
        reason.into(),
        delivery.map(|delivery| delivery.notification).into(),
        delivery.map(|delivery| delivery.n).into(),
    ];
    (sql.to_owned(), parameters)
}

/// The condition that more than one attempt of the delivery may have arrived. A receipt reports on one message only, so
/// the outcomes of the other attempts stay unknown.
const SEVERAL_UNCLEAR: &str = "(SELECT count(*) > 1 FROM postcommit.attempt a
    WHERE a.tenant = $1 AND a.notification_id = $2 AND a.n = $3 AND a.outcome = 'unclear')";

/// Returns the statement that changes the state of a delivery in the ledger, if the delivery still has the state that
/// was read. If the message has arrived, the code and the text of an unclear attempt are removed, but a warning stays.
/// A sent delivery that is unclear stays unclear, because it may have been sent twice.
fn change_ledger(receipt: &Waiting, found: &Found, state: FinishedState) -> Statement {
    let sql = format!(
        "UPDATE postcommit.delivery_ledger
        SET state = $5, reason = $6, code = $7, error_class = $8,
          detail = coalesce($9, CASE WHEN code IS NULL THEN detail END),
          unclear = (unclear AND (state = 'sent' OR {SEVERAL_UNCLEAR})),
          provider_ref = coalesce(provider_ref, $11),
          sent_at = CASE WHEN $5 <> 'parked' THEN coalesce(sent_at, {{now}}) ELSE sent_at END, finished_at = {{now}}
        WHERE tenant = $1 AND notification_id = $2 AND n = $3 AND lane = $4 AND state = $12 AND unclear = $13
          AND EXISTS (SELECT 1 FROM postcommit.receipt r WHERE r.tenant = $1 AND r.id = $10 AND r.fate = 'waiting')"
    );
    let mut parameters = change_parameters(receipt, found, state);
    parameters.extend([found.state.name().into(), found.unclear.into()]);
    (sql, parameters)
}

/// Returns the parameters `$1` to `$11`: the delivery's tenant, notification, number and lane, its new state, reason,
/// code, class and detail, the id of the receipt, and the provider's id of the message.
fn change_parameters(receipt: &Waiting, found: &Found, state: FinishedState) -> Vec<Value> {
    let failed = matches!(state, FinishedState::Parked(_));
    let code = receipt.code.as_deref().unwrap_or(receipt.happened.name());
    let class = receipt.class.or(receipt.happened.class()).map(ErrorClass::name);
    let detail = receipt.detail.as_deref();
    vec![
        receipt.tenant.into(),
        found.id.notification.into(),
        found.id.n.into(),
        found.lane.into(),
        state.name().into(),
        state.reason().into(),
        Some(code).filter(|_| failed).into(),
        class.filter(|_| failed).into(),
        detail.filter(|_| failed).into(),
        receipt.id.into(),
        receipt.provider_ref.as_deref().into(),
    ]
}
