//! Settles a batch on PostgreSQL: one statement for deliveries that ended, and one for deliveries that stay queued.

use std::collections::HashMap;
use std::sync::LazyLock;

use postcommit_channel::model::{DeliveryKey, ErrorClass, Facts, FinishedState};
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::{KEPT, LOGGED, Settlement, Suppression, due_of, state_of};
use crate::db::DbError;
use crate::db::columns::{Columns, arrays, names, unnest, unnest_from};
use crate::db::postgres::{self, Postgres};
use crate::store::inbox;

arrays! {
    /// The parameters that differ from settlement to settlement. `kind` is the number of a set of [`Shared`] values.
    struct Given<'a>, GivenArrays {
        notification_id: Uuid,
        n: i32,
        kind: i32,
        at: postgres::Time,
        latency_ms: Option<i32>,
        provider_ref: Option<&'a str>,
        target: Option<&'a str>,
        due: postgres::Time,
    }
}
arrays! {
    /// The parameters that most settlements of a batch share. Each set of values is sent once, because PostgreSQL takes
    /// 0.1 µs for every value of an array. The columns from `as_n` on, and `target`, are set only for a target without
    /// a row of its own, and hold the values its row would have.
    #[derive(Clone, PartialEq, Eq, Hash)]
    struct Shared<'a>, SharedArrays {
        tenant: i32,
        token: Uuid,
        code: Option<&'a str>,
        error_class: Option<&'a str>,
        detail: Option<&'a str>,
        sent_by: Option<&'a str>,
        outcome: Option<&'a str>,
        excerpt: Option<&'a str>,
        unclear: bool,
        captured: bool,
        counted: i32,
        state: Option<&'a str>,
        reason: Option<&'a str>,
        site: Option<&'a str>,
        event_type: Option<&'a str>,
        as_n: Option<i32>,
        lane: Option<i32>,
        channel: Option<&'a str>,
        provider: Option<&'a str>,
        moved: Option<i32>,
        kept: bool,
    }
}

/// The column with the number of a set of [`Shared`] values, after the values themselves.
const KIND: (&str, &str) = ("kind", "int");

/// The SQL for the settlements, each with its shared values. OFFSET 0 makes the planner join the two tables first. Each
/// settlement has a kind and each kind has a settlement, so a FULL JOIN returns the same rows as an inner join. But a
/// FULL JOIN must use a hash, where an inner join might compare every settlement with every kind.
static GIVEN: LazyLock<String> = LazyLock::new(|| {
    let given = unnest(GivenArrays::COLUMNS);
    format!("(SELECT * FROM {given} FULL JOIN {} USING (kind) OFFSET 0) AS g", *SHARED)
});
/// The SQL for the sets of shared values, each with its number.
static SHARED: LazyLock<String> =
    LazyLock::new(|| unnest_from(GivenArrays::COLUMNS.len() + 1, &[SharedArrays::COLUMNS, &[KIND]].concat(), "shared"));

const HELD: &str = "q.tenant = ANY (ARRAY[g.tenant]) AND q.notification_id = g.notification_id AND q.n = g.n AND q.lease_token = g.token";

/// Moves ended deliveries from the queue to the ledger. Because it uses DELETE … RETURNING, a delivery enters the
/// ledger only if it left the queue under its lease token.
pub(in crate::store) static END_POSTGRES: LazyLock<String> = LazyLock::new(|| {
    let (given, shared) = (&*GIVEN, &*SHARED);
    let (facts, left) = (names::<Facts>(""), each_fact(|name| format!("{} AS {name}", settled(name))));
    let answer = answer("ended", "sum(count)", "by_kind");
    // If the ledger keeps every attempt of the batch, this is false for the whole statement. PostgreSQL then does not
    // read the rows once more to look for attempts to log.
    let has_logged = format!("false = ANY (${}::boolean[])", parameter("kept"));
    let log = format!("{} AND NOT kept AND {has_logged}", log("ended"));
    format!(
        "WITH ended AS (
          DELETE FROM postcommit.delivery_queue q USING {given}
          WHERE {HELD}
          RETURNING q.tenant, q.notification_id, q.n AS row, coalesce(g.as_n, q.n) AS n, coalesce(g.lane, q.lane) AS lane, {left},
            q.attempts + (g.outcome IS NOT NULL)::int AS attempts, q.seq + (g.outcome IS NOT NULL)::int AS seq, q.unclear OR g.unclear AS unclear,
            g.token, g.state, g.reason, g.code, g.error_class, g.detail, g.at, g.sent_by, g.outcome, g.latency_ms, g.provider_ref, g.excerpt,
            g.captured, g.site, g.kept, g.kind
        ), entered AS (
          INSERT INTO postcommit.delivery_ledger
            (tenant, notification_id, n, lane, state, reason, code, error_class, detail, attempts, seq, unclear, captured, provider_ref, sent_at,
              finished_at, site, recipient_hash, {KEPT}, {facts})
          SELECT tenant, notification_id, n, lane, state, reason, code, error_class, detail, attempts, seq, unclear, captured, provider_ref,
            CASE WHEN state IN ('sent', 'delivered') THEN now() END, now(), site, hashtext(target),
            CASE WHEN kept THEN at END, CASE WHEN kept THEN sent_by END, CASE WHEN kept THEN outcome END, CASE WHEN kept THEN latency_ms END,
            CASE WHEN kept THEN excerpt END, CASE WHEN kept THEN token END, {facts} FROM ended
        ), by_kind AS MATERIALIZED (
          SELECT kind, channel, lane, count(*) AS count FROM ended GROUP BY kind, channel, lane
        ), counted AS (
          -- The trigger of the ledger counts only rows without a site. The rows are grouped by the number of their shared values first, so
          -- that the texts of few groups are compared instead of those of every row.
          INSERT INTO postcommit.rollup_fresh (tenant, slot, site, channel, state, count, event_type, lane, error_class)
          SELECT tenant, date_trunc('minute', now()), site, coalesce(b.channel, ''),
            CASE WHEN captured THEN 'captured' ELSE state END, sum(b.count)::bigint, event_type, b.lane, error_class
          FROM (SELECT s.*, k.channel, k.lane, k.count
            FROM by_kind k FULL JOIN (SELECT kind, tenant, site, captured, state, event_type, error_class FROM {shared}) s USING (kind)
            OFFSET 0) b
          WHERE b.site IS NOT NULL AND b.count IS NOT NULL
          GROUP BY tenant, site, b.channel, state, captured, event_type, b.lane, error_class
        ), logged AS ({log})
        {answer}"
    )
});

/// Releases deliveries that stay in the queue. A target without a row of its own takes over the notification's row. If
/// no attempt was made, an earlier lost lease is still to be judged, so `lost_since` and `intent` are kept.
pub(in crate::store) static AGAIN_POSTGRES: LazyLock<String> = LazyLock::new(|| {
    let given = &*GIVEN;
    let (facts, log) = (each_fact(|name| format!("{name} = {}", settled(name))), log("again"));
    let answer = answer("again", "count(*)", "again");
    format!(
        "WITH again AS (
          UPDATE postcommit.delivery_queue q
          SET lease_token = NULL, lease_until = NULL, due_at = coalesce(g.due, q.due_at),
            lost_since = CASE WHEN g.outcome IS NULL THEN q.lost_since END,
            intent = CASE WHEN g.outcome IS NULL AND q.lost_since IS NOT NULL THEN q.intent END,
            attempts = CASE WHEN g.moved IS NULL THEN q.attempts + g.counted ELSE 0 END, moves = q.moves + (g.moved IS NOT NULL)::int, seq = q.seq + (g.outcome IS NOT NULL)::int, unclear = q.unclear OR g.unclear,
            code = coalesce(g.code, q.code), detail = coalesce(g.detail, q.detail),
            error_class = CASE WHEN g.code IS NULL THEN q.error_class ELSE g.error_class END,
            first_try_at = CASE WHEN g.moved IS NOT NULL THEN NULL WHEN g.outcome IS NULL THEN q.first_try_at ELSE coalesce(q.first_try_at, q.leased_at) END,
            n = coalesce(g.as_n, q.n), lane = coalesce(g.moved, g.lane, q.lane), {facts}
          FROM {given}
          WHERE {HELD}
          RETURNING q.tenant, q.notification_id, g.n AS row, q.n, q.seq,
            g.token, g.code, g.error_class, g.detail, g.at, g.sent_by, g.outcome, g.latency_ms, g.provider_ref, g.excerpt, g.captured
        ), logged AS ({log})
        {answer}"
    )
});

fn each_fact(write: impl Fn(&str) -> String) -> String {
    Facts::COLUMNS.iter().map(|column| write(column.name)).collect::<Vec<_>>().join(", ")
}

/// Returns the SQL for the new value of a fact. Only facts that a target without a row of its own can have are
/// parameters of the statement.
fn settled(fact: &str) -> String {
    match GivenArrays::COLUMNS.iter().chain(SharedArrays::COLUMNS).any(|(given, _)| *given == fact) {
        true => format!("coalesce(g.{fact}, q.{fact})"),
        false => format!("q.{fact}"),
    }
}

fn log(from: &str) -> String {
    let read = LOGGED.replace("provider,", "sent_by,");
    format!("INSERT INTO postcommit.logged_attempt ({LOGGED}) SELECT {read} FROM {from} WHERE outcome IS NOT NULL")
}

/// Returns the number of the parameter that holds the array of a shared column.
fn parameter(shared: &str) -> usize {
    let place = SharedArrays::COLUMNS.iter().position(|(name, _)| *name == shared);
    GivenArrays::COLUMNS.len() + 1 + place.unwrap_or_default()
}

/// The SQL for the result of a statement. The first row holds the number of settled rows as `n`, which is `count` of
/// `counted`. The keys of the rows follow only if some settlements found no row, which is rare.
fn answer(from: &str, count: &str, counted: &str) -> String {
    format!(
        ", total AS MATERIALIZED (SELECT coalesce({count}, 0)::int AS n FROM {counted})
        SELECT NULL::int AS tenant, NULL::uuid AS notification_id, n FROM total
        UNION ALL SELECT tenant, notification_id, row FROM {from} WHERE (SELECT n FROM total) <> cardinality($1)"
    )
}

/// Settles a batch. Ended deliveries, queued deliveries and inbox messages take one statement each, and suppressions two.
/// A transaction is opened only for a batch that needs several statements.
pub(in crate::store) async fn settle(
    db: &Postgres,
    batch: &[Settlement],
    suppressions: &[Suppression],
) -> Result<Vec<DeliveryKey>, DbError> {
    // Every batch is sorted in the same order, so that two batches cannot deadlock.
    let mut sorted: Vec<&Settlement> = batch.iter().collect();
    sorted.sort_unstable_by_key(|s| s.lease.key);
    let (ended, again): (Vec<_>, Vec<_>) = sorted.into_iter().partition(|s| state_of(s.finish).is_some());
    let has_messages = ended.iter().any(|s| s.message.is_some());
    let mut client = db.hot().await?;
    if (ended.is_empty() || again.is_empty()) && !has_messages && suppressions.is_empty() {
        let (sql, part) = if again.is_empty() { (&END_POSTGRES, ended) } else { (&AGAIN_POSTGRES, again) };
        let statement = client.prepare_cached(sql).await.map_err(postgres::refused)?;
        return applied(&part, client.query(&statement, &Told::of(&part).parameters()).await);
    }
    let end = client.prepare_cached(&END_POSTGRES).await.map_err(postgres::refused)?;
    let go_on = client.prepare_cached(&AGAIN_POSTGRES).await.map_err(postgres::refused)?;
    let transaction = client.transaction().await.map_err(postgres::refused)?;
    let mut keys = applied(&ended, transaction.query(&end, &Told::of(&ended).parameters()).await)?;
    if has_messages {
        // A message is written only for a delivery that left the queue under its lease token.
        let all = keys.len() == ended.len();
        let delivered: Vec<_> =
            ended.iter().filter(|s| all || keys.contains(&s.lease.key)).filter_map(|s| s.received()).collect();
        inbox::receive_postgres(&transaction, &delivered).await?;
    }
    if !again.is_empty() {
        keys.extend(applied(&again, transaction.query(&go_on, &Told::of(&again).parameters()).await)?);
    }
    for statement in suppressions.iter().filter(|one| keys.contains(&one.of)).flat_map(|one| &one.statements) {
        postgres::run(&transaction, statement).await?;
    }
    transaction.commit().await.map_err(postgres::refused)?;
    Ok(keys)
}

/// Returns the keys of the rows that a statement settled. The first row of the answer holds their number. Their keys
/// follow unless all rows were settled.
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

/// The parameters of one part of the batch, in which all deliveries ended or all stay queued.
#[derive(Default)]
struct Told<'a> {
    given: GivenArrays<'a>,
    shared: SharedArrays<'a>,
    kinds: Vec<i32>,
}

impl<'a> Told<'a> {
    fn of(part: &[&'a Settlement]) -> Self {
        let (mut told, mut known, mut last) = (Self::default(), HashMap::new(), None);
        told.given.reserve(part.len());
        for settlement in part {
            let shared = shared(settlement);
            // Consecutive settlements nearly always share their values, and comparing is cheaper than hashing.
            let kind = match &last {
                Some((before, kind)) if *before == shared => *kind,
                _ => *known.entry(shared.clone()).or_insert_with(|| told.add(shared.clone())),
            };
            told.given.push(given(settlement, kind));
            last = Some((shared, kind));
        }
        told.given.clear_nulls();
        told
    }

    /// Adds a set of shared values and returns its number.
    fn add(&mut self, shared: Shared<'a>) -> i32 {
        let kind = i32::try_from(self.kinds.len()).unwrap_or(i32::MAX);
        self.kinds.push(kind);
        self.shared.push(shared);
        kind
    }

    fn parameters(&self) -> Vec<&(dyn ToSql + Sync)> {
        [self.given.parameters(), self.shared.parameters(), vec![&self.kinds]].concat()
    }
}

fn given(s: &Settlement, kind: i32) -> Given<'_> {
    let attempt = s.attempt.as_ref();
    Given {
        notification_id: s.lease.key.notification,
        n: s.lease.key.n,
        kind,
        at: postgres::Time(attempt.map(|a| a.at)),
        latency_ms: attempt.map(|a| a.latency_ms),
        provider_ref: attempt.and_then(|a| a.evidence.provider_ref.as_deref()),
        target: s.place.as_ref().and_then(|p| p.facts.target.as_deref()),
        due: postgres::Time(due_of(s.finish).0),
    }
}

fn shared(s: &Settlement) -> Shared<'_> {
    let (attempt, place, state) = (s.attempt.as_ref(), s.place.as_ref(), state_of(s.finish));
    Shared {
        tenant: s.lease.key.tenant,
        token: s.lease.token,
        code: s.code.as_deref(),
        error_class: s.class.map(ErrorClass::name),
        detail: s.detail.as_deref(),
        sent_by: attempt.map(|a| &*a.provider),
        outcome: attempt.map(|a| a.outcome),
        excerpt: attempt.and_then(|a| a.evidence.excerpt.as_deref()),
        unclear: s.unclear,
        captured: s.captured,
        counted: due_of(s.finish).1.into(),
        state: state.map(FinishedState::name),
        reason: state.and_then(FinishedState::reason),
        site: s.site.as_deref(),
        event_type: s.event_type.as_deref(),
        as_n: place.map(|p| p.n),
        lane: place.map(|p| p.lane),
        channel: place.and_then(|p| p.facts.channel.as_deref()),
        provider: place.and_then(|p| p.facts.provider.as_deref()),
        moved: s.moved_to,
        kept: s.is_kept_in_ledger(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Facts that only a target with a row of its own can have. A target that is sent from its notification's row has the
    /// facts that are parameters of settle, and no others.
    const OF_OWN_ROWS: [&str; 6] = ["template", "template_version", "language", "user_id", "context", "send_key"];

    #[test]
    fn each_fact_is_a_parameter_of_settle_or_belongs_to_targets_with_rows_of_their_own() {
        for column in Facts::COLUMNS {
            let is_parameter = settled(column.name).starts_with("coalesce");
            assert!(is_parameter != OF_OWN_ROWS.contains(&column.name), "decide where {} belongs", column.name);
        }
    }
}
