//! Settle: what became of a batch of attempts, written at once, fenced by each one's token.

mod postgres;
mod sqlite;

use std::sync::Arc;

use postcommit::Timestamp;
use postcommit_channel::model::{DeliveryKey, Evidence, Facts, Finish, FinishedState, InboxMessage};

pub(in crate::store) use postgres::{AGAIN_POSTGRES, END_POSTGRES};

use crate::crash_point;
use crate::db::{Db, DbError};
use crate::store::inbox::Received;
use crate::store::{Lease, Store};

/// What became of one claimed delivery.
#[derive(Debug, Clone)]
pub struct Settlement {
    /// The right under which it was attempted.
    pub lease: Lease,
    /// For a target without a row of its own, which is held by its notification's row: what its row would say.
    pub place: Option<Place>,
    /// What happens to it.
    pub finish: Finish,
    /// The attempt to log; none when it was never begun (expired, cancelled, returned).
    pub attempt: Option<Attempted>,
    /// The code to show; the attempt's, or why it was never begun.
    pub code: Option<String>,
    /// The sentence to show.
    pub detail: Option<String>,
    /// It may have arrived without our knowing.
    pub unclear: bool,
    /// What `in_app` delivers: written if, and when, the delivery leaves the queue as delivered.
    pub message: Option<Box<InboxMessage>>,
    /// Its notification's site, as [`StoredNotification::site_label`](postcommit_channel::model::StoredNotification::site_label) says; empty when it has none. None: not looked
    /// up, the database does.
    pub site: Option<Box<str>>,
}

/// What a target's row would say. A notification with one target is sent from its own row; a row of the target's own is only written when it must wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The target's number.
    pub n: i32,
    /// Its provider's lane.
    pub lane: i32,
    /// What it would say of itself.
    pub facts: Facts,
}

/// One attempt, as logged.
#[derive(Debug, Clone)]
pub struct Attempted {
    /// When it began.
    pub at: Timestamp,
    /// The provider's name.
    pub provider: Arc<str>,
    /// The outcome's name.
    pub outcome: &'static str,
    /// How long it took.
    pub latency_ms: i32,
    /// What backs it.
    pub evidence: Evidence,
}

/// Which settlements took effect.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settled {
    /// Written.
    pub applied: Vec<DeliveryKey>,
    /// Refused: the lease had gone to someone else. Kept as evidence.
    pub stale: Vec<DeliveryKey>,
}

/// What is logged of an attempt.
const ATTEMPT: &str =
    "tenant, notification_id, n, seq, at, provider, outcome, code, detail, latency_ms, provider_ref, excerpt, token";

impl Store {
    /// Writes a batch of results. A stale token changes nothing and is counted.
    ///
    /// # Errors
    /// As the database says; nothing of the batch was written then.
    pub async fn settle(&self, batch: impl Into<Arc<[Settlement]>>) -> Result<Settled, DbError> {
        let batch = batch.into();
        crash_point!("settle.before");
        let applied = match &self.db {
            Db::Postgres(db) => postgres::settle(db, &batch).await?,
            Db::Sqlite(db) => {
                let batch = batch.clone();
                db.write(move |connection| {
                    let applied = sqlite::settle(connection, &batch)?;
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
        // Evidence alone: what is written stays written without it.
        if let Err(problem) = self.note_stale(&stale).await {
            tracing::warn!(%problem, results = stale.len(), "could not note results that came too late");
        }
        Ok(Settled { stale: stale.iter().map(|s| s.lease.key).collect(), applied })
    }

    /// A batch whose commit was not heard of is written again, and finds its own rows gone. That is no late result: the log holds its token.
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
    /// Without an attempt.
    #[must_use]
    pub fn unbegun(lease: Lease, finish: Finish) -> Self {
        Self {
            lease,
            place: None,
            finish,
            attempt: None,
            code: None,
            detail: None,
            unclear: false,
            message: None,
            site: None,
        }
    }

    /// The message for an inbox that it brings, if it does.
    fn received(&self) -> Option<Received<'_>> {
        let delivered = self.finish == Finish::Ended(FinishedState::Delivered);
        self.message.as_deref().filter(|_| delivered).map(|message| Received { key: self.key(), message })
    }

    /// Which delivery it is about.
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
