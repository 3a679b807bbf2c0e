//! Settling: writes the outcomes of a batch of attempts in one transaction. Each write takes effect only if the row
//! still has the attempt's lease token.

mod postgres;
mod sqlite;

use std::sync::Arc;

use postcommit::Timestamp;
use postcommit_channel::model::{
    Actor, DeliveryKey, ErrorClass, Evidence, Facts, Finish, FinishedState, InboxMessage, comparable,
};

pub(in crate::store) use postgres::{AGAIN_POSTGRES, END_POSTGRES};

use crate::crash_point;
use crate::db::{Db, DbError, Statement};
use crate::store::inbox::Received;
use crate::store::{Lease, Store};

/// The outcome of one claimed delivery.
#[derive(Debug, Clone)]
pub struct Settlement {
    /// The lease under which the delivery was attempted.
    pub lease: Lease,
    /// The values that the target's own row would have. Set only if the target has no row of its own, because it was
    /// sent from its notification's row.
    pub place: Option<Place>,
    /// How the delivery continues: ended, to be tried again, or returned to the queue.
    pub finish: Finish,
    /// The lane of the next provider, if the delivery moves there by failover. The delivery begins there with no
    /// attempts.
    pub moved_to: Option<i32>,
    /// The attempt to log. `None` if no attempt was begun, because the delivery expired, was cancelled or was returned.
    pub attempt: Option<Attempted>,
    /// The code to show: the code of the attempt, or the code for why no attempt was begun.
    pub code: Option<String>,
    /// The error class of the code. `None` if the code is not a failure.
    pub class: Option<ErrorClass>,
    /// The explanation to show with the code.
    pub detail: Option<String>,
    /// Whether the message may have arrived although the attempt did not confirm it.
    pub unclear: bool,
    /// Whether the message was captured instead of sent.
    pub captured: bool,
    /// The message that an `in_app` delivery puts into an inbox. It is written in the same transaction, and only if the
    /// delivery ends as delivered.
    pub message: Option<Box<InboxMessage>>,
    /// The address to suppress, because the provider refused it as dead. The suppression is written in the same
    /// transaction, and only if the settlement takes effect.
    pub dead: Option<Box<DeadAddress>>,
    /// The site of the notification, from
    /// [`StoredNotification::site_label`](postcommit_channel::model::StoredNotification::site_label). Empty if the
    /// notification has no site. `None` if the site was not looked up. Then the database looks it up.
    pub site: Option<Box<str>>,
    /// The event type of the notification. It is given together with the site.
    pub event_type: Option<Box<str>>,
}

/// The values that a target's own row would have. A notification with one target is sent from the notification's row,
/// which becomes the target's row only if the delivery must wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The target's number within its notification.
    pub n: i32,
    /// The lane of the target's provider.
    pub lane: i32,
    /// The facts of the target, such as its channel and address.
    pub facts: Facts,
}

/// One attempt, as it is logged.
#[derive(Debug, Clone)]
pub struct Attempted {
    /// When the attempt began.
    pub at: Timestamp,
    /// The provider's name.
    pub provider: Arc<str>,
    /// The name of the outcome.
    pub outcome: &'static str,
    /// How long the attempt took, in milliseconds.
    pub latency_ms: i32,
    /// The evidence of the outcome, such as the provider's reference.
    pub evidence: Evidence,
}

/// An address to which nothing can be sent any more, as the answer to a send says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadAddress {
    /// The channel of the delivery.
    pub channel: String,
    /// The address of the delivery.
    pub address: String,
    /// The reason for the suppression, for operators.
    pub reason: Arc<str>,
    /// The name of the provider that refused the address. The audit log names it as the actor.
    pub provider: Arc<str>,
}

/// The suppression that follows from a settlement.
struct Suppression {
    /// The key of the settlement's lease.
    of: DeliveryKey,
    statements: Vec<Statement>,
}

/// The deliveries whose settlements took effect, and the deliveries whose settlements came too late.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settled {
    /// Settlements that were written.
    pub applied: Vec<DeliveryKey>,
    /// Settlements that were refused because the lease was lost. They are recorded in `stale_settle`.
    pub stale: Vec<DeliveryKey>,
}

/// The columns of an attempt that has a row of its own.
pub(in crate::store) const LOGGED: &str = "tenant, notification_id, n, seq, at, provider, outcome, code, error_class, detail, latency_ms, provider_ref, excerpt, captured, token";
/// The ledger columns for the attempt by which a delivery was sent ([`Settlement::is_kept_in_ledger`]).
const KEPT: &str = "attempted_at, attempted_by, outcome, latency_ms, excerpt, token";

impl Store {
    /// Writes a batch of outcomes. An outcome whose lease token is no longer valid changes nothing and is returned as
    /// stale. On an error nothing of the batch was written.
    pub async fn settle(&self, batch: impl Into<Arc<[Settlement]>>) -> Result<Settled, DbError> {
        let batch = batch.into();
        crash_point!("settle.before");
        let suppressions = self.suppressions(&batch);
        let applied = match &self.db {
            Db::Postgres(db) => postgres::settle(db, &batch, &suppressions).await?,
            Db::Sqlite(db) => {
                let batch = batch.clone();
                db.write(move |connection| {
                    let applied = sqlite::settle(connection, &batch, &suppressions)?;
                    crash_point!("settle.in_tx");
                    Ok(applied)
                })
                .await?
            }
        };
        crash_point!("settle.after_commit");
        let stale: Vec<&Settlement> = if applied.len() == batch.len() {
            vec![]
        } else {
            batch.iter().filter(|s| !applied.contains(&s.lease.key)).collect()
        };
        let stale = self.not_our_own(stale).await?;
        // The record of stale outcomes is only evidence. If the record fails, the settled batch stays written.
        if let Err(problem) = self.note_stale(&stale).await {
            tracing::warn!(
                %problem, results = stale.len(),
                "could not record results of sends that came after their leases had gone to other workers; the other results are written"
            );
        }
        Ok(Settled { stale: stale.iter().map(|s| s.lease.key).collect(), applied })
    }

    /// Returns the suppressions that follow from a batch. They are sorted, so that two batches cannot deadlock.
    fn suppressions(&self, batch: &[Settlement]) -> Vec<Suppression> {
        let mut dead: Vec<(&Settlement, &DeadAddress)> =
            batch.iter().filter_map(|s| Some((s, s.dead.as_deref()?))).collect();
        dead.sort_unstable_by_key(|(s, dead)| (s.lease.key.tenant, &dead.channel, comparable(&dead.address)));
        let suppression = |(s, dead): (&Settlement, &DeadAddress)| {
            let actor = Actor { name: format!("provider:{}", dead.provider), request_id: None };
            let (key, address) = (s.key(), comparable(&dead.address));
            let statements =
                self.by(actor).suppress_from_now((key.tenant, key.id()), &dead.channel, &address, &dead.reason);
            Suppression { of: s.lease.key, statements }
        };
        dead.into_iter().map(suppression).collect()
    }

    /// Removes the settlements from `stale` that this process has already written. After a lost connection during a
    /// commit, the batch is written again and no longer finds its rows. Such a settlement is not late: the attempt log
    /// holds its token.
    async fn not_our_own<'a>(&self, stale: Vec<&'a Settlement>) -> Result<Vec<&'a Settlement>, DbError> {
        let mut strangers = Vec::new();
        for settlement in stale {
            let (key, token) = (settlement.key(), settlement.lease.token);
            let sql =
                "SELECT 1 FROM postcommit.attempt WHERE tenant = $1 AND notification_id = $2 AND n = $3 AND token = $4";
            let ours = self
                .db
                .query(sql, vec![key.tenant.into(), key.notification.into(), key.n.into(), token.into()])
                .await?;
            if ours.is_empty() || settlement.attempt.is_none() {
                strangers.push(settlement);
            }
        }
        Ok(strangers)
    }

    async fn note_stale(&self, stale: &[&Settlement]) -> Result<(), DbError> {
        let note = |s: &&Settlement| {
            let key = s.key();
            let (outcome, provider_ref) =
                s.attempt.as_ref().map_or(("none", None), |a| (a.outcome, a.evidence.provider_ref.clone()));
            let sql = "INSERT INTO postcommit.stale_settle (tenant, notification_id, n, token, outcome, code, provider_ref, at) VALUES ($1, $2, $3, $4, $5, $6, $7, {now})";
            let parameters = vec![
                key.tenant.into(),
                key.notification.into(),
                key.n.into(),
                s.lease.token.into(),
                outcome.into(),
                s.code.clone().into(),
                provider_ref.into(),
            ];
            (sql.to_owned(), parameters)
        };
        if stale.is_empty() { Ok(()) } else { self.db.execute(stale.iter().map(note).collect()).await.map(drop) }
    }
}

impl Settlement {
    /// Creates a settlement without an attempt.
    #[must_use]
    pub fn unbegun(lease: Lease, finish: Finish) -> Self {
        Self {
            lease,
            place: None,
            finish,
            moved_to: None,
            attempt: None,
            code: None,
            class: None,
            detail: None,
            unclear: false,
            captured: false,
            message: None,
            dead: None,
            site: None,
            event_type: None,
        }
    }

    /// Returns whether the delivery's ledger row holds the attempt, so that the attempt needs no row of its own. This
    /// is so for nearly every delivery: it was sent, without a code and without a warning. A receipt may later
    /// overwrite the ledger row's code and detail, but such an attempt has neither.
    fn is_kept_in_ledger(&self) -> bool {
        let is_sent = matches!(self.finish, Finish::Ended(FinishedState::Sent | FinishedState::Delivered));
        is_sent && self.attempt.is_some() && self.code.is_none() && self.class.is_none() && self.detail.is_none()
    }

    /// Returns the inbox message to write, if the delivery ends as delivered and has one.
    fn received(&self) -> Option<Received<'_>> {
        let delivered = self.finish == Finish::Ended(FinishedState::Delivered);
        self.message.as_deref().filter(|_| delivered).map(|message| Received { key: self.key(), message })
    }

    /// Returns the key of the delivery that this settlement is about.
    #[must_use]
    pub fn key(&self) -> DeliveryKey {
        DeliveryKey { n: self.place.as_ref().map_or(self.lease.key.n, |place| place.n), ..self.lease.key }
    }
}

fn state_of(finish: Finish) -> Option<FinishedState> {
    match finish {
        Finish::Ended(state) => Some(state),
        Finish::Again { .. } | Finish::Returned => None,
    }
}

fn due_of(finish: Finish) -> (Option<Timestamp>, bool) {
    match finish {
        Finish::Again { at, counted } => (Some(at), counted),
        Finish::Ended(_) | Finish::Returned => (None, false),
    }
}
