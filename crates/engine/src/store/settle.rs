//! Settle: what became of a batch of attempts, in one statement, fenced by each one's token.

use std::sync::Arc;

use postcommit::Timestamp;
use rusqlite::{Connection, params};
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::inbox::{self, Received};
use super::{Lease, Store};
use crate::crash_point;
use crate::db::sqlite::{Id, Prepared};
use crate::db::{Cells, Db, DbError, postgres, sqlite};
use crate::model::{DeliveryKey, Evidence, Finish, FinishedState, InboxMessage};

/// Microseconds.
const MINUTE: i64 = 60_000_000;

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
    /// Its notification's site, as [`StoredNotification::site_label`](crate::model::StoredNotification::site_label) says; empty when it has none. None: not looked
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
    /// The medium.
    pub channel: String,
    /// The address.
    pub target: String,
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

/// What ended moves by DELETE … RETURNING, so that nothing can enter the ledger that did not leave the queue under its token. The answer is how many did;
/// which ones follow only when some did not, since nearly always all do.
pub(super) const END_POSTGRES: &str = "
    WITH ended AS (
      DELETE FROM postcommit.delivery_queue q
      USING unnest($1::int[], $2::uuid[], $3::int[], $4::uuid[], $5::text[], $6::text[], $7::timestamptz[], $8::text[], $9::text[], $10::int[], $11::text[], $12::text[],
          $13::boolean[], $14::int[], $15::int[], $16::text[], $17::text[], $18::text[], $19::text[], $20::text[])
        AS g (tenant, notification_id, n, token, code, detail, at, provider, outcome, latency_ms, provider_ref, excerpt, unclear, as_n, lane, channel, target, state, reason, site)
      WHERE q.tenant = ANY (ARRAY[g.tenant]) AND q.notification_id = g.notification_id AND q.n = g.n AND q.lease_token = g.token
      RETURNING q.tenant, q.notification_id, q.n AS row, coalesce(g.as_n, q.n) AS n, coalesce(g.lane, q.lane) AS lane, coalesce(g.channel, q.channel) AS channel,
        coalesce(g.target, q.target) AS target, q.attempts + (g.outcome IS NOT NULL)::int AS attempts, q.seq + (g.outcome IS NOT NULL)::int AS seq,
        q.unclear OR g.unclear AS unclear, g.token, g.state, g.reason, g.code, g.detail, g.at, g.provider, g.outcome, g.latency_ms, g.provider_ref, g.excerpt, g.site
    ), entered AS (
      INSERT INTO postcommit.delivery_ledger (tenant, notification_id, n, lane, channel, target, state, reason, code, detail, attempts, seq, unclear, provider_ref, sent_at, finished_at, site)
      SELECT tenant, notification_id, n, lane, channel, target, state, reason, code, detail, attempts, seq, unclear, provider_ref,
        CASE WHEN state IN ('sent', 'delivered') THEN now() END, now(), site FROM ended
    ), counted AS (
      -- With a site the ledger's trigger leaves it to us.
      INSERT INTO postcommit.rollup_fresh (tenant, slot, site, channel, state, count)
      SELECT tenant, date_trunc('minute', now()), site, coalesce(channel, ''), state, count(*) FROM ended WHERE site IS NOT NULL GROUP BY tenant, site, channel, state
    ), logged AS (
      INSERT INTO postcommit.attempt (tenant, notification_id, n, seq, at, provider, outcome, code, detail, latency_ms, provider_ref, excerpt, token)
      SELECT tenant, notification_id, n, seq, at, provider, outcome, code, detail, latency_ms, provider_ref, excerpt, token FROM ended WHERE outcome IS NOT NULL
    )
    SELECT NULL, NULL, (SELECT count(*)::int FROM ended) UNION ALL SELECT tenant, notification_id, row FROM ended WHERE (SELECT count(*) FROM ended) <> cardinality($1)";

/// What is to be tried again stays in the queue; a target without a row of its own gets the notification's. Without an attempt nobody has judged yet what a
/// lease that ran out before means: that is not forgotten.
pub(super) const AGAIN_POSTGRES: &str = "
    WITH again AS (
      UPDATE postcommit.delivery_queue q
      SET lease_token = NULL, lease_until = NULL, due_at = coalesce(g.due, q.due_at),
        lost_since = CASE WHEN g.outcome IS NULL THEN q.lost_since END, intent = CASE WHEN g.outcome IS NULL AND q.lost_since IS NOT NULL THEN q.intent END, attempts = q.attempts + g.counted,
        seq = q.seq + (g.outcome IS NOT NULL)::int, unclear = q.unclear OR g.unclear, code = coalesce(g.code, q.code), detail = coalesce(g.detail, q.detail),
        first_try_at = CASE WHEN g.outcome IS NULL THEN q.first_try_at ELSE coalesce(q.first_try_at, q.leased_at) END,
        n = coalesce(g.as_n, q.n), lane = coalesce(g.lane, q.lane), channel = coalesce(g.channel, q.channel), target = coalesce(g.target, q.target)
      FROM unnest($1::int[], $2::uuid[], $3::int[], $4::uuid[], $5::text[], $6::text[], $7::timestamptz[], $8::text[], $9::text[], $10::int[], $11::text[], $12::text[],
          $13::boolean[], $14::int[], $15::int[], $16::text[], $17::text[], $18::timestamptz[], $19::int[])
        AS g (tenant, notification_id, n, token, code, detail, at, provider, outcome, latency_ms, provider_ref, excerpt, unclear, as_n, lane, channel, target, due, counted)
      WHERE q.tenant = ANY (ARRAY[g.tenant]) AND q.notification_id = g.notification_id AND q.n = g.n AND q.lease_token = g.token
      RETURNING q.tenant, q.notification_id, g.n AS row, q.n, q.seq, g.token, g.code, g.detail, g.at, g.provider, g.outcome, g.latency_ms, g.provider_ref, g.excerpt
    ), logged AS (
      INSERT INTO postcommit.attempt (tenant, notification_id, n, seq, at, provider, outcome, code, detail, latency_ms, provider_ref, excerpt, token)
      SELECT tenant, notification_id, n, seq, at, provider, outcome, code, detail, latency_ms, provider_ref, excerpt, token FROM again WHERE outcome IS NOT NULL
    )
    SELECT NULL, NULL, (SELECT count(*)::int FROM again) UNION ALL SELECT tenant, notification_id, row FROM again WHERE (SELECT count(*) FROM again) <> cardinality($1)";

impl Store {
    /// Writes a batch of results. A stale token changes nothing and is counted.
    ///
    /// # Errors
    /// As the database says; nothing of the batch was written then.
    pub async fn settle(&self, batch: impl Into<Arc<[Settlement]>>) -> Result<Settled, DbError> {
        let batch = batch.into();
        crash_point!("settle.before");
        let applied = match &self.db {
            Db::Postgres(_) => self.settle_postgres(&batch).await?,
            Db::Sqlite(db) => {
                let batch = batch.clone();
                db.write(move |connection| {
                    let applied = settle_sqlite(connection, &batch)?;
                    crash_point!("settle.in_tx");
                    Ok(applied)
                })
                .await?
            }
        };
        crash_point!("settle.after_commit");
        let stale: Vec<&Settlement> =
            if applied.len() == batch.len() { vec![] } else { batch.iter().filter(|s| !applied.contains(&s.lease.key)).collect() };
        let stale = self.not_our_own(stale).await?;
        self.note_stale(&stale).await?;
        Ok(Settled { stale: stale.iter().map(|s| s.lease.key).collect(), applied })
    }

    /// What ended and what goes on are a statement each, and so are messages for inboxes; only a batch that has several needs a transaction around them.
    async fn settle_postgres(&self, batch: &[Settlement]) -> Result<Vec<DeliveryKey>, DbError> {
        let Db::Postgres(db) = &self.db else { return Ok(vec![]) };
        // In one order for everybody: two batches must not deadlock.
        let mut sorted: Vec<&Settlement> = batch.iter().collect();
        sorted.sort_unstable_by_key(|s| s.lease.key);
        let (ended, again): (Vec<_>, Vec<_>) = sorted.into_iter().partition(|s| state_of(s.finish).is_some());
        let has_messages = ended.iter().any(|s| s.message.is_some());
        let mut client = db.hot().await?;
        if (ended.is_empty() || again.is_empty()) && !has_messages {
            let (sql, part) = if again.is_empty() { (END_POSTGRES, ended) } else { (AGAIN_POSTGRES, again) };
            let statement = client.prepare_cached(sql).await.map_err(postgres::refused)?;
            return applied(&part, client.query(&statement, &Columns::of(&part).borrow()).await);
        }
        let end = client.prepare_cached(END_POSTGRES).await.map_err(postgres::refused)?;
        let go_on = client.prepare_cached(AGAIN_POSTGRES).await.map_err(postgres::refused)?;
        let transaction = client.transaction().await.map_err(postgres::refused)?;
        let mut keys = applied(&ended, transaction.query(&end, &Columns::of(&ended).borrow()).await)?;
        if has_messages {
            // Only what left the queue under its token has been delivered.
            let all = keys.len() == ended.len();
            let delivered: Vec<_> = ended.iter().filter(|s| all || keys.contains(&s.lease.key)).filter_map(|s| s.received()).collect();
            inbox::receive_postgres(&transaction, &delivered).await?;
        }
        if !again.is_empty() {
            keys.extend(applied(&again, transaction.query(&go_on, &Columns::of(&again).borrow()).await)?);
        }
        transaction.commit().await.map_err(postgres::refused)?;
        Ok(keys)
    }

    /// A batch whose commit was not heard of is written again, and finds its own rows gone. That is no late result: the log holds its token.
    async fn not_our_own<'a>(&self, stale: Vec<&'a Settlement>) -> Result<Vec<&'a Settlement>, DbError> {
        let mut strangers = Vec::new();
        for settlement in stale {
            let (key, token) = (settlement.key(), settlement.lease.token);
            let sql = "SELECT 1 FROM postcommit.attempt WHERE tenant = $1 AND notification_id = $2 AND n = $3 AND token = $4";
            let ours = self.db.query(sql, vec![key.tenant.into(), key.notification.into(), key.n.into(), token.into()]).await?;
            if ours.is_empty() || settlement.attempt.is_none() {
                strangers.push(settlement);
            }
        }
        Ok(strangers)
    }

    async fn note_stale(&self, stale: &[&Settlement]) -> Result<(), DbError> {
        let note = |s: &&Settlement| {
            let key = s.key();
            let (outcome, provider_ref) = s.attempt.as_ref().map_or(("none", None), |a| (a.outcome, a.evidence.provider_ref.clone()));
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
        Self { lease, place: None, finish, attempt: None, code: None, detail: None, unclear: false, message: None, site: None }
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

/// The keys that a statement has reached: the first row tells how many, and the others, unless it was all, which.
fn applied(part: &[&Settlement], answer: Result<Vec<tokio_postgres::Row>, tokio_postgres::Error>) -> Result<Vec<DeliveryKey>, DbError> {
    let answer = answer.map_err(postgres::refused)?;
    let reached = answer.first().map_or(0, |row| row.get::<_, i32>(2));
    if usize::try_from(reached).is_ok_and(|reached| reached == part.len()) {
        return Ok(part.iter().map(|s| s.lease.key).collect());
    }
    Ok(answer.iter().skip(1).map(|row| DeliveryKey { tenant: row.get(0), notification: row.get(1), n: row.get(2) }).collect())
}

/// A part of the batch, all ended or all to be tried again, as the arrays that PostgreSQL unnests.
#[derive(Default)]
struct Columns<'a> {
    tenant: Vec<i32>,
    id: Vec<Uuid>,
    n: Vec<i32>,
    token: Vec<Uuid>,
    code: Vec<Option<&'a str>>,
    detail: Vec<Option<&'a str>>,
    at: Vec<postgres::Time>,
    provider: Vec<Option<&'a str>>,
    outcome: Vec<Option<&'static str>>,
    latency: Vec<Option<i32>>,
    provider_ref: Vec<Option<&'a str>>,
    excerpt: Vec<Option<&'a str>>,
    unclear: Vec<bool>,
    as_n: Vec<Option<i32>>,
    lane: Vec<Option<i32>>,
    channel: Vec<Option<&'a str>>,
    target: Vec<Option<&'a str>>,
    state: Vec<&'static str>,
    reason: Vec<Option<&'static str>>,
    site: Vec<Option<&'a str>>,
    due: Vec<postgres::Time>,
    counted: Vec<i32>,
}

impl<'a> Columns<'a> {
    fn of(part: &[&'a Settlement]) -> Self {
        let mut columns = Self::default();
        for settlement in part {
            columns.push(settlement);
        }
        columns
    }

    fn push(&mut self, s: &'a Settlement) {
        self.tenant.push(s.lease.key.tenant);
        self.id.push(s.lease.key.notification);
        self.n.push(s.lease.key.n);
        self.token.push(s.lease.token);
        self.code.push(s.code.as_deref());
        self.detail.push(s.detail.as_deref());
        self.push_attempt(s.attempt.as_ref());
        self.unclear.push(s.unclear);
        let place = s.place.as_ref();
        self.as_n.push(place.map(|p| p.n));
        self.lane.push(place.map(|p| p.lane));
        self.channel.push(place.map(|p| p.channel.as_str()));
        self.target.push(place.map(|p| p.target.as_str()));
        match state_of(s.finish) {
            Some(state) => {
                self.state.push(state.name());
                self.reason.push(state.reason());
                self.site.push(s.site.as_deref());
            }
            None => {
                let (due, counted) = due_of(s.finish);
                self.due.push(postgres::Time(due));
                self.counted.push(counted.into());
            }
        }
    }

    fn push_attempt(&mut self, attempt: Option<&'a Attempted>) {
        self.at.push(postgres::Time(attempt.map(|a| a.at)));
        self.provider.push(attempt.map(|a| &*a.provider));
        self.outcome.push(attempt.map(|a| a.outcome));
        self.latency.push(attempt.map(|a| a.latency_ms));
        self.provider_ref.push(attempt.and_then(|a| a.evidence.provider_ref.as_deref()));
        self.excerpt.push(attempt.and_then(|a| a.evidence.excerpt.as_deref()));
    }

    fn borrow(&self) -> Vec<&(dyn ToSql + Sync)> {
        let own: &[&(dyn ToSql + Sync)] =
            if self.due.is_empty() { &[&self.state, &self.reason, &self.site] } else { &[&self.due, &self.counted] };
        let shared: [&(dyn ToSql + Sync); 17] = [
            &self.tenant,
            &self.id,
            &self.n,
            &self.token,
            &self.code,
            &self.detail,
            &self.at,
            &self.provider,
            &self.outcome,
            &self.latency,
            &self.provider_ref,
            &self.excerpt,
            &self.unclear,
            &self.as_n,
            &self.lane,
            &self.channel,
            &self.target,
        ];
        [&shared, own].concat()
    }
}

const LOOK_SQLITE: &str = "SELECT lane, channel, target, attempts, seq, unclear FROM postcommit_delivery_queue
    WHERE tenant = ?1 AND notification_id = ?2 AND n = ?3 AND lease_token = ?4";
const LEAVE_SQLITE: &str = "DELETE FROM postcommit_delivery_queue WHERE tenant = ?1 AND notification_id = ?2 AND n = ?3";
const ENTER_SQLITE: &str = "INSERT INTO postcommit_delivery_ledger
    (tenant, notification_id, n, lane, channel, target, state, reason, code, detail, attempts, seq, unclear, provider_ref, sent_at, finished_at, site)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)";
const COUNT_SQLITE: &str =
    "INSERT INTO postcommit_rollup_fresh (tenant, slot, site, channel, state, count) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
const LOG_SQLITE: &str = "INSERT INTO postcommit_attempt
    (tenant, notification_id, n, seq, at, provider, outcome, code, detail, latency_ms, provider_ref, excerpt, token)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)";
const AGAIN_SQLITE: &str = "UPDATE postcommit_delivery_queue SET lease_token = NULL, lease_until = NULL, due_at = coalesce(?5, due_at),
           lost_since = CASE WHEN ?7 = 0 THEN lost_since END, intent = CASE WHEN ?7 = 0 AND lost_since IS NOT NULL THEN intent END, attempts = attempts + ?6,
           first_try_at = CASE WHEN ?7 = 0 THEN first_try_at ELSE coalesce(first_try_at, leased_at) END, seq = seq + ?7, unclear = unclear OR ?8, code = coalesce(?9, code), detail = coalesce(?10, detail),
           n = coalesce(?11, n), lane = coalesce(?12, lane), channel = coalesce(?13, channel), target = coalesce(?14, target) WHERE tenant = ?1 AND notification_id = ?2 AND n = ?3 AND lease_token = ?4 RETURNING seq";

/// Row by row with prepared statements: on SQLite there is no round trip to save. Looking at a row before it is deleted is no slower than RETURNING, for
/// which SQLite makes a table each time.
fn settle_sqlite(connection: &Connection, batch: &[Settlement]) -> Result<Vec<DeliveryKey>, DbError> {
    let mut pen = Pen::on(connection)?;
    let mut applied = Vec::with_capacity(batch.len());
    for settlement in batch {
        let seq = match state_of(settlement.finish) {
            Some(state) => pen.end(settlement, state)?,
            None => pen.again(settlement)?,
        };
        if let Some(seq) = seq {
            pen.log(settlement, seq)?;
            if let Some(received) = settlement.received() {
                inbox::receive_sqlite(connection, &received, pen.now)?;
            }
            applied.push(settlement.lease.key);
        }
    }
    pen.count(connection)?;
    Ok(applied)
}

/// What a batch is written with.
struct Pen<'c> {
    look: Prepared<'c>,
    leave: Prepared<'c>,
    enter: Prepared<'c>,
    again: Prepared<'c>,
    log: Prepared<'c>,
    now: i64,
    /// What ended, by tenant, site, channel and state: few, so they are looked through one by one.
    counts: Vec<(i32, String, String, &'static str, i64)>,
}

/// What the queue says of a delivery that ends.
struct Left {
    lane: i32,
    channel: Option<String>,
    target: Option<String>,
    attempts: i64,
    seq: i64,
    unclear: bool,
}

impl<'c> Pen<'c> {
    fn on(connection: &'c Connection) -> Result<Self, DbError> {
        Ok(Self {
            look: Prepared::on(connection, LOOK_SQLITE)?,
            leave: Prepared::on(connection, LEAVE_SQLITE)?,
            enter: Prepared::on(connection, ENTER_SQLITE)?,
            again: Prepared::on(connection, AGAIN_SQLITE)?,
            log: Prepared::on(connection, LOG_SQLITE)?,
            now: sqlite::now(connection)?.as_micros(),
            counts: vec![],
        })
    }

    /// From the queue into the ledger. Returns the attempt's number; none when the lease was gone.
    fn end(&mut self, s: &Settlement, state: FinishedState) -> Result<Option<i64>, DbError> {
        let (key, id) = (s.lease.key, Id::from(s.lease.key.notification));
        let Some(left) = self.look.first(params![key.tenant, id, key.n, Id::from(s.lease.token)], |row| left(row))? else {
            return Ok(None);
        };
        self.leave.run(params![key.tenant, id, key.n])?;
        let place = s.place.as_ref();
        let began = i64::from(s.attempt.is_some());
        let sent_at = matches!(state, FinishedState::Sent | FinishedState::Delivered).then_some(self.now);
        let channel = place.map_or(left.channel.as_deref(), |p| Some(&p.channel));
        self.enter.run(params![
            key.tenant,
            id,
            place.map_or(key.n, |p| p.n),
            place.map_or(left.lane, |p| p.lane),
            channel,
            place.map_or(left.target.as_deref(), |p| Some(&p.target)),
            state.name(),
            state.reason(),
            s.code,
            s.detail,
            left.attempts + began,
            left.seq + began,
            left.unclear || s.unclear,
            s.attempt.as_ref().and_then(|a| a.evidence.provider_ref.as_deref()),
            sent_at,
            self.now,
            s.site,
        ])?;
        // With a site the ledger's trigger leaves it to us.
        if let Some(site) = &s.site {
            add(&mut self.counts, key.tenant, site, channel.unwrap_or_default(), state.name());
        }
        Ok(Some(left.seq + began))
    }

    fn count(self, connection: &Connection) -> Result<(), DbError> {
        if self.counts.is_empty() {
            return Ok(());
        }
        let mut count = Prepared::on(connection, COUNT_SQLITE)?;
        for (tenant, site, channel, state, many) in self.counts {
            count.run(params![tenant, self.now - self.now % MINUTE, site, channel, state, many])?;
        }
        Ok(())
    }

    fn again(&mut self, s: &Settlement) -> Result<Option<i64>, DbError> {
        let (key, (due, counted), place) = (s.lease.key, due_of(s.finish), s.place.as_ref());
        let parameters = params![
            key.tenant,
            Id::from(key.notification),
            key.n,
            Id::from(s.lease.token),
            due.map(Timestamp::as_micros),
            counted,
            s.attempt.is_some(),
            s.unclear,
            s.code,
            s.detail,
            place.map(|p| p.n),
            place.map(|p| p.lane),
            place.map(|p| p.channel.as_str()),
            place.map(|p| p.target.as_str()),
        ];
        self.again.rows(parameters, |row| row.take(0))?.pop().transpose()
    }

    fn log(&mut self, s: &Settlement, seq: i64) -> Result<(), DbError> {
        let Some(attempt) = &s.attempt else { return Ok(()) };
        let key = s.key();
        let logged = self.log.run(params![
            key.tenant,
            Id::from(key.notification),
            key.n,
            seq,
            attempt.at.as_micros(),
            &*attempt.provider,
            attempt.outcome,
            s.code,
            s.detail,
            attempt.latency_ms,
            attempt.evidence.provider_ref,
            attempt.evidence.excerpt,
            Id::from(s.lease.token),
        ]);
        logged.map(drop)
    }
}

fn add(counts: &mut Vec<(i32, String, String, &'static str, i64)>, tenant: i32, site: &str, channel: &str, state: &'static str) {
    let known = counts.iter_mut().find(|(t, s, c, what, _)| *t == tenant && *what == state && c == channel && s == site);
    match known {
        Some((.., many)) => *many += 1,
        None => counts.push((tenant, site.to_owned(), channel.to_owned(), state, 1)),
    }
}

fn left(row: &mut impl Cells) -> Result<Left, DbError> {
    Ok(Left {
        lane: row.take(0)?,
        channel: row.take(1)?,
        target: row.take(2)?,
        attempts: row.take(3)?,
        seq: row.take(4)?,
        unclear: row.take(5)?,
    })
}
