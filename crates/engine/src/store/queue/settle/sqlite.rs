//! Settles a batch on SQLite, row by row in one write transaction.

use std::sync::LazyLock;

use postcommit::Timestamp;
use postcommit_channel::model::{DeliveryKey, ErrorClass, Facts, FinishedState};
use rusqlite::{Connection, params};

use super::{KEPT, LOGGED, Settlement, Suppression, due_of, state_of};
use crate::db::columns::{Column, Columns, columns, in_order, insert, list_sqlite, names};
use crate::db::sqlite::{self, Id, Prepared};
use crate::db::{Cells, DbError};
use crate::store::inbox;
use crate::store::queue::row::fact_values;

/// One minute in microseconds.
const MINUTE: i64 = 60_000_000;

columns! {
    /// The columns read from the queue row of a delivery that ends. The columns of its facts follow them.
    struct Left {
        lane: i32 = "q.lane",
        attempts: i64 = "q.attempts",
        seq: i64 = "q.seq",
        unclear: bool = "q.unclear",
    }
}
static LOOK_SQLITE: LazyLock<String> = LazyLock::new(|| {
    let (left, facts) = (list_sqlite::<Left>(), list_sqlite::<Facts>());
    format!(
        "SELECT {left}, {facts} FROM postcommit_delivery_queue q WHERE q.tenant = ?1 AND q.notification_id = ?2 AND q.n = ?3 AND q.lease_token = ?4"
    )
});
const LEAVE_SQLITE: &str =
    "DELETE FROM postcommit_delivery_queue WHERE tenant = ?1 AND notification_id = ?2 AND n = ?3";
static ENTER_SQLITE: LazyLock<String> = LazyLock::new(|| {
    let columns = "tenant, notification_id, n, lane, state, reason, code, error_class, detail, attempts, seq, unclear, captured, provider_ref, sent_at, finished_at, site";
    insert("postcommit_delivery_ledger", &format!("{columns}, {KEPT}, {}", names::<Facts>("")))
});
static COUNT_SQLITE: LazyLock<String> = LazyLock::new(|| {
    insert("postcommit_rollup_fresh", "tenant, slot, site, channel, state, count, event_type, lane, error_class")
});
static LOG_SQLITE: LazyLock<String> = LazyLock::new(|| insert("postcommit_logged_attempt", LOGGED));
/// Releases a delivery that stays in the queue. From `?15` on the parameters are the facts of a target without a row of
/// its own.
static AGAIN_SQLITE: LazyLock<String> = LazyLock::new(|| {
    let fact = |(place, column): (i32, &Column)| format!("{0} = coalesce(?{place}, {0})", column.name);
    let facts: Vec<String> = (15..).zip(Facts::COLUMNS).map(fact).collect();
    format!(
        "UPDATE postcommit_delivery_queue SET lease_token = NULL, lease_until = NULL, due_at = coalesce(?5, due_at),
           lost_since = CASE WHEN ?7 = 0 THEN lost_since END, intent = CASE WHEN ?7 = 0 AND lost_since IS NOT NULL THEN intent END,
           attempts = CASE WHEN ?14 IS NULL THEN attempts + ?6 ELSE 0 END, moves = moves + (?14 IS NOT NULL),
           first_try_at = CASE WHEN ?14 IS NOT NULL THEN NULL WHEN ?7 = 0 THEN first_try_at ELSE coalesce(first_try_at, leased_at) END,
           seq = seq + ?7, unclear = unclear OR ?8, code = coalesce(?9, code), detail = coalesce(?10, detail),
           error_class = CASE WHEN ?9 IS NULL THEN error_class ELSE ?13 END, n = coalesce(?11, n), lane = coalesce(?14, ?12, lane), {}
         WHERE tenant = ?1 AND notification_id = ?2 AND n = ?3 AND lease_token = ?4 RETURNING seq",
        facts.join(", ")
    )
});

/// Settles row by row with prepared statements, because on SQLite there are no network round trips to save. A SELECT
/// before the DELETE is no slower than RETURNING, for which SQLite creates a temporary table each time.
pub(in crate::store) fn settle(
    connection: &Connection,
    batch: &[Settlement],
    suppressions: &[Suppression],
) -> Result<Vec<DeliveryKey>, DbError> {
    let mut pen = Pen::on(connection)?;
    let mut applied = Vec::with_capacity(batch.len());
    for settlement in batch {
        let seq = match state_of(settlement.finish) {
            Some(state) => pen.end(settlement, state)?,
            None => pen.again(settlement)?,
        };
        if let Some(seq) = seq {
            if !settlement.is_kept_in_ledger() {
                pen.log(settlement, seq)?;
            }
            if let Some(received) = settlement.received() {
                inbox::receive_sqlite(connection, &received, pen.now)?;
            }
            applied.push(settlement.lease.key);
        }
    }
    pen.count(connection)?;
    for suppression in suppressions.iter().filter(|one| applied.contains(&one.of)) {
        sqlite::execute(connection, &suppression.statements, usize::MAX)?;
    }
    Ok(applied)
}

/// The labels of one counter of finished deliveries.
struct Outcome {
    tenant: i32,
    lane: i32,
    state: &'static str,
    class: Option<ErrorClass>,
    site: String,
    channel: String,
    event_type: Option<String>,
}

/// The prepared statements and the counters of one batch.
struct Pen<'c> {
    look: Prepared<'c>,
    leave: Prepared<'c>,
    enter: Prepared<'c>,
    again: Prepared<'c>,
    log: Prepared<'c>,
    now: i64,
    /// How many deliveries ended with each set of labels. There are few sets of labels, so they are searched one by
    /// one.
    counts: Vec<(Outcome, i64)>,
}

impl<'c> Pen<'c> {
    fn on(connection: &'c Connection) -> Result<Self, DbError> {
        Ok(Self {
            look: Prepared::on(connection, &LOOK_SQLITE)?,
            leave: Prepared::on(connection, LEAVE_SQLITE)?,
            enter: Prepared::on(connection, &ENTER_SQLITE)?,
            again: Prepared::on(connection, &AGAIN_SQLITE)?,
            log: Prepared::on(connection, &LOG_SQLITE)?,
            now: sqlite::now(connection)?.as_micros(),
            counts: vec![],
        })
    }

    /// Moves a delivery from the queue into the ledger. Returns the number of its last attempt, or `None` if the lease
    /// was lost.
    fn end(&mut self, s: &Settlement, state: FinishedState) -> Result<Option<i64>, DbError> {
        let (key, id) = (s.lease.key, Id::from(s.lease.key.notification));
        let left = self.look.first(params![key.tenant, id, key.n, Id::from(s.lease.token)], |row| {
            Ok((Left::read(row, &LEFT.0)?, Facts::read(row, &LEFT.1)?))
        })?;
        let Some((left, facts)) = left else { return Ok(None) };
        self.leave.run(params![key.tenant, id, key.n])?;
        let place = s.place.as_ref();
        let facts = place.map_or(&facts, |p| &p.facts);
        let began = i64::from(s.attempt.is_some());
        let lane = place.map_or(left.lane, |p| p.lane);
        let sent_at = matches!(state, FinishedState::Sent | FinishedState::Delivered).then_some(self.now);
        let kept = s.attempt.as_ref().filter(|_| s.is_kept_in_ledger());
        let own = params![
            key.tenant,
            id,
            place.map_or(key.n, |p| p.n),
            lane,
            state.name(),
            state.reason(),
            s.code,
            s.class.map(ErrorClass::name),
            s.detail,
            left.attempts + began,
            left.seq + began,
            left.unclear || s.unclear,
            s.captured,
            s.attempt.as_ref().and_then(|a| a.evidence.provider_ref.as_deref()),
            sent_at,
            self.now,
            s.site,
            kept.map(|a| a.at.as_micros()),
            kept.map(|a| &*a.provider),
            kept.map(|a| a.outcome),
            kept.map(|a| a.latency_ms),
            kept.and_then(|a| a.evidence.excerpt.as_deref()),
            kept.map(|_| Id::from(s.lease.token)),
        ];
        self.enter.run([own, &fact_values(facts)].concat().as_slice())?;
        // If the site is known, the ledger's trigger does not count the row, so it is counted here.
        if let Some(site) = &s.site {
            let counted_as = if s.captured { "captured" } else { state.name() };
            let labels = (&**site, facts.channel(), s.event_type.as_deref());
            self.add((key.tenant, lane, counted_as, s.class), labels);
        }
        Ok(Some(left.seq + began))
    }

    fn add(&mut self, of: (i32, i32, &'static str, Option<ErrorClass>), labels: (&str, &str, Option<&str>)) {
        let ((tenant, lane, state, class), (site, channel, event_type)) = (of, labels);
        let is_same = |one: &Outcome| {
            (one.tenant, one.lane, one.state, one.class) == of
                && (&*one.site, &*one.channel, one.event_type.as_deref()) == labels
        };
        match self.counts.iter_mut().find(|(one, _)| is_same(one)) {
            Some((_, many)) => *many += 1,
            None => {
                let (site, channel, event_type) = (site.to_owned(), channel.to_owned(), event_type.map(str::to_owned));
                self.counts.push((Outcome { tenant, lane, state, class, site, channel, event_type }, 1));
            }
        }
    }

    fn count(self, connection: &Connection) -> Result<(), DbError> {
        if self.counts.is_empty() {
            return Ok(());
        }
        let mut count = Prepared::on(connection, &COUNT_SQLITE)?;
        for (one, many) in self.counts {
            let slot = self.now - self.now % MINUTE;
            let class = one.class.map(ErrorClass::name);
            let labels =
                params![one.tenant, slot, one.site, one.channel, one.state, many, one.event_type, one.lane, class];
            count.run(labels)?;
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
            s.class.map(ErrorClass::name),
            s.moved_to,
        ];
        let nothing = Facts::default();
        let facts = fact_values(place.map_or(&nothing, |p| &p.facts));
        self.again.rows([parameters, &facts].concat().as_slice(), |row| row.take(0))?.pop().transpose()
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
            s.class.map(ErrorClass::name),
            s.detail,
            attempt.latency_ms,
            attempt.evidence.provider_ref,
            attempt.evidence.excerpt,
            s.captured,
            Id::from(s.lease.token),
        ]);
        logged.map(drop)
    }
}

/// The positions of the columns of [`Left`] and of the facts in the result of [`LOOK_SQLITE`].
static LEFT: LazyLock<(Vec<usize>, Vec<usize>)> = LazyLock::new(|| {
    let left = in_order::<Left>();
    let facts = in_order::<Facts>().iter().map(|place| place + left.len()).collect();
    (left, facts)
});
