//! A batch on PostgreSQL: a statement for what ended, and one for what goes on.

use postcommit_channel::model::DeliveryKey;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::{Attempted, Settlement, due_of, state_of};
use crate::db::DbError;
use crate::db::postgres::{self, Postgres};
use crate::store::inbox;

/// What ended moves by DELETE … RETURNING, so that nothing can enter the ledger that did not leave the queue under its token. The answer is how many did;
/// which ones follow only when some did not, since nearly always all do.
pub(in crate::store) const END_POSTGRES: &str = "
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
pub(in crate::store) const AGAIN_POSTGRES: &str = "
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

/// What ended and what goes on are a statement each, and so are messages for inboxes; only a batch that has several needs a transaction around them.
pub(in crate::store) async fn settle(db: &Postgres, batch: &[Settlement]) -> Result<Vec<DeliveryKey>, DbError> {
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
        self.channel.push(place.map(|p| p.facts.channel()));
        self.target.push(place.map(|p| p.facts.target()));
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
