//! A batch on PostgreSQL: a statement for what ended, and one for what goes on.

use std::sync::LazyLock;

use postcommit_channel::model::{DeliveryKey, Facts};
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::{ATTEMPT, Settlement, due_of, state_of};
use crate::db::DbError;
use crate::db::columns::{Columns, arrays, names, unnest};
use crate::db::postgres::{self, Postgres};
use crate::store::inbox;

arrays! {
    /// What a statement is told of each settlement. From `as_n` on it is what the row of a target without one would say.
    struct Given<'a>, GivenArrays {
        tenant: i32,
        notification_id: Uuid,
        n: i32,
        token: Uuid,
        code: Option<&'a str>,
        detail: Option<&'a str>,
        at: postgres::Time,
        sent_by: Option<&'a str>,
        outcome: Option<&'a str>,
        latency_ms: Option<i32>,
        provider_ref: Option<&'a str>,
        excerpt: Option<&'a str>,
        unclear: bool,
        as_n: Option<i32>,
        lane: Option<i32>,
        channel: Option<&'a str>,
        target: Option<&'a str>,
        provider: Option<&'a str>,
    }
}
arrays! {
    /// What is told of one that ended.
    struct Ended<'a>, EndedArrays {
        state: &'a str,
        reason: Option<&'a str>,
        site: Option<&'a str>,
    }
}
arrays! {
    /// What is told of one that goes on.
    struct GoesOn, GoesOnArrays {
        due: postgres::Time,
        counted: i32,
    }
}

const HELD: &str = "q.tenant = ANY (ARRAY[g.tenant]) AND q.notification_id = g.notification_id AND q.n = g.n AND q.lease_token = g.token";

/// What ended moves by DELETE … RETURNING, so that nothing can enter the ledger that did not leave the queue under its token.
pub(in crate::store) static END_POSTGRES: LazyLock<String> = LazyLock::new(|| {
    let given = unnest(&[GivenArrays::COLUMNS, EndedArrays::COLUMNS].concat());
    let (facts, left, log, answer) =
        (names::<Facts>(""), each_fact(|name| format!("{} AS {name}", settled(name))), log("ended"), answer("ended"));
    format!(
        "WITH ended AS (
          DELETE FROM postcommit.delivery_queue q USING {given}
          WHERE {HELD}
          RETURNING q.tenant, q.notification_id, q.n AS row, coalesce(g.as_n, q.n) AS n, coalesce(g.lane, q.lane) AS lane, {left},
            q.attempts + (g.outcome IS NOT NULL)::int AS attempts, q.seq + (g.outcome IS NOT NULL)::int AS seq, q.unclear OR g.unclear AS unclear,
            g.token, g.state, g.reason, g.code, g.detail, g.at, g.sent_by, g.outcome, g.latency_ms, g.provider_ref, g.excerpt, g.site
        ), entered AS (
          INSERT INTO postcommit.delivery_ledger
            (tenant, notification_id, n, lane, state, reason, code, detail, attempts, seq, unclear, provider_ref, sent_at, finished_at, site, {facts})
          SELECT tenant, notification_id, n, lane, state, reason, code, detail, attempts, seq, unclear, provider_ref,
            CASE WHEN state IN ('sent', 'delivered') THEN now() END, now(), site, {facts} FROM ended
        ), counted AS (
          -- With a site the ledger's trigger leaves it to us.
          INSERT INTO postcommit.rollup_fresh (tenant, slot, site, channel, state, count)
          SELECT tenant, date_trunc('minute', now()), site, coalesce(channel, ''), state, count(*) FROM ended
          WHERE site IS NOT NULL GROUP BY tenant, site, channel, state
        ), logged AS ({log})
        {answer}"
    )
});

/// What is to be tried again stays in the queue; a target without a row of its own gets the notification's. Without an attempt nobody has judged yet what a
/// lease that ran out before means: that is not forgotten.
pub(in crate::store) static AGAIN_POSTGRES: LazyLock<String> = LazyLock::new(|| {
    let given = unnest(&[GivenArrays::COLUMNS, GoesOnArrays::COLUMNS].concat());
    let (facts, log, answer) = (each_fact(|name| format!("{name} = {}", settled(name))), log("again"), answer("again"));
    format!(
        "WITH again AS (
          UPDATE postcommit.delivery_queue q
          SET lease_token = NULL, lease_until = NULL, due_at = coalesce(g.due, q.due_at),
            lost_since = CASE WHEN g.outcome IS NULL THEN q.lost_since END,
            intent = CASE WHEN g.outcome IS NULL AND q.lost_since IS NOT NULL THEN q.intent END,
            attempts = q.attempts + g.counted, seq = q.seq + (g.outcome IS NOT NULL)::int, unclear = q.unclear OR g.unclear,
            code = coalesce(g.code, q.code), detail = coalesce(g.detail, q.detail),
            first_try_at = CASE WHEN g.outcome IS NULL THEN q.first_try_at ELSE coalesce(q.first_try_at, q.leased_at) END,
            n = coalesce(g.as_n, q.n), lane = coalesce(g.lane, q.lane), {facts}
          FROM {given}
          WHERE {HELD}
          RETURNING q.tenant, q.notification_id, g.n AS row, q.n, q.seq,
            g.token, g.code, g.detail, g.at, g.sent_by, g.outcome, g.latency_ms, g.provider_ref, g.excerpt
        ), logged AS ({log})
        {answer}"
    )
});

fn each_fact(write: impl Fn(&str) -> String) -> String {
    Facts::COLUMNS.iter().map(|column| write(column.name)).collect::<Vec<_>>().join(", ")
}

/// A fact as it is from now on. Those that a target without a row of its own can have are given.
fn settled(fact: &str) -> String {
    match GivenArrays::COLUMNS.iter().any(|(given, _)| *given == fact) {
        true => format!("coalesce(g.{fact}, q.{fact})"),
        false => format!("q.{fact}"),
    }
}

fn log(from: &str) -> String {
    let read = ATTEMPT.replace("provider,", "sent_by,");
    format!("INSERT INTO postcommit.attempt ({ATTEMPT}) SELECT {read} FROM {from} WHERE outcome IS NOT NULL")
}

/// How many rows were reached, as `n` of the first row. Which ones follows only when some were not, since nearly always all are.
fn answer(from: &str) -> String {
    format!(
        "SELECT NULL::int AS tenant, NULL::uuid AS notification_id, (SELECT count(*)::int FROM {from}) AS n
        UNION ALL SELECT tenant, notification_id, row FROM {from} WHERE (SELECT count(*) FROM {from}) <> cardinality($1)"
    )
}

/// What ended and what goes on are a statement each, and so are messages for inboxes; only a batch that has several needs a transaction around them.
pub(in crate::store) async fn settle(db: &Postgres, batch: &[Settlement]) -> Result<Vec<DeliveryKey>, DbError> {
    // In one order for everybody: two batches must not deadlock.
    let mut sorted: Vec<&Settlement> = batch.iter().collect();
    sorted.sort_unstable_by_key(|s| s.lease.key);
    let (ended, again): (Vec<_>, Vec<_>) = sorted.into_iter().partition(|s| state_of(s.finish).is_some());
    let has_messages = ended.iter().any(|s| s.message.is_some());
    let mut client = db.hot().await?;
    if (ended.is_empty() || again.is_empty()) && !has_messages {
        let (sql, part) = if again.is_empty() { (&END_POSTGRES, ended) } else { (&AGAIN_POSTGRES, again) };
        let statement = client.prepare_cached(sql).await.map_err(postgres::refused)?;
        return applied(&part, client.query(&statement, &Told::of(&part).parameters()).await);
    }
    let end = client.prepare_cached(&END_POSTGRES).await.map_err(postgres::refused)?;
    let go_on = client.prepare_cached(&AGAIN_POSTGRES).await.map_err(postgres::refused)?;
    let transaction = client.transaction().await.map_err(postgres::refused)?;
    let mut keys = applied(&ended, transaction.query(&end, &Told::of(&ended).parameters()).await)?;
    if has_messages {
        // Only what left the queue under its token has been delivered.
        let all = keys.len() == ended.len();
        let delivered: Vec<_> =
            ended.iter().filter(|s| all || keys.contains(&s.lease.key)).filter_map(|s| s.received()).collect();
        inbox::receive_postgres(&transaction, &delivered).await?;
    }
    if !again.is_empty() {
        keys.extend(applied(&again, transaction.query(&go_on, &Told::of(&again).parameters()).await)?);
    }
    transaction.commit().await.map_err(postgres::refused)?;
    Ok(keys)
}

/// The keys that a statement has reached: the first row tells how many, and the others, unless it was all, which.
fn applied(
    part: &[&Settlement],
    answer: Result<Vec<tokio_postgres::Row>, tokio_postgres::Error>,
) -> Result<Vec<DeliveryKey>, DbError> {
    let answer = answer.map_err(postgres::refused)?;
    let reached = answer.first().map_or(0, |row| row.get::<_, i32>("n"));
    if usize::try_from(reached).is_ok_and(|reached| reached == part.len()) {
        return Ok(part.iter().map(|s| s.lease.key).collect());
    }
    let key = |row: &tokio_postgres::Row| DeliveryKey {
        tenant: row.get("tenant"),
        notification: row.get("notification_id"),
        n: row.get("n"),
    };
    Ok(answer.iter().skip(1).map(key).collect())
}

/// A part of the batch, all ended or all to be tried again.
#[derive(Default)]
struct Told<'a> {
    given: GivenArrays<'a>,
    ended: EndedArrays<'a>,
    goes_on: GoesOnArrays,
    goes: bool,
}

impl<'a> Told<'a> {
    fn of(part: &[&'a Settlement]) -> Self {
        let mut told = Self::default();
        for settlement in part {
            told.given.push(given(settlement));
            match state_of(settlement.finish) {
                Some(state) => {
                    told.ended.push(Ended {
                        state: state.name(),
                        reason: state.reason(),
                        site: settlement.site.as_deref(),
                    });
                }
                None => {
                    let (due, counted) = due_of(settlement.finish);
                    told.goes_on.push(GoesOn { due: postgres::Time(due), counted: counted.into() });
                    told.goes = true;
                }
            }
        }
        told
    }

    fn parameters(&self) -> Vec<&(dyn ToSql + Sync)> {
        [self.given.parameters(), if self.goes { self.goes_on.parameters() } else { self.ended.parameters() }].concat()
    }
}

fn given(s: &Settlement) -> Given<'_> {
    let (attempt, place) = (s.attempt.as_ref(), s.place.as_ref());
    Given {
        tenant: s.lease.key.tenant,
        notification_id: s.lease.key.notification,
        n: s.lease.key.n,
        token: s.lease.token,
        code: s.code.as_deref(),
        detail: s.detail.as_deref(),
        at: postgres::Time(attempt.map(|a| a.at)),
        sent_by: attempt.map(|a| &*a.provider),
        outcome: attempt.map(|a| a.outcome),
        latency_ms: attempt.map(|a| a.latency_ms),
        provider_ref: attempt.and_then(|a| a.evidence.provider_ref.as_deref()),
        excerpt: attempt.and_then(|a| a.evidence.excerpt.as_deref()),
        unclear: s.unclear,
        as_n: place.map(|p| p.n),
        lane: place.map(|p| p.lane),
        channel: place.and_then(|p| p.facts.channel.as_deref()),
        target: place.and_then(|p| p.facts.target.as_deref()),
        provider: place.and_then(|p| p.facts.provider.as_deref()),
    }
}
