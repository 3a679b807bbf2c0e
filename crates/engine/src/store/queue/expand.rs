//! Expansion: replaces a notification's own row with one row per target, in one transaction and only while the lease
//! token matches.

use std::collections::HashSet;
use std::sync::LazyLock;

use postcommit::Timestamp;
use postcommit_channel::model::{DeliveryId, DeliveryKey, ErrorClass, Facts, Fate, Target};
use rusqlite::{Connection, params};
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::crash_point;
use crate::db::columns::{arrays, insert, names, unnest};
use crate::db::sqlite::{Id, Prepared};
use crate::db::{Cells, Client, Db, DbError, postgres, sqlite};
use crate::store::queue::pacing::{PacingSql, is_paced, pace_postgres, pace_sqlite};
use crate::store::queue::row::{FactArrays, fact_values};
use crate::store::{Lease, Store};

/// The targets of one expanded notification, or the new target of a retried delivery.
#[derive(Debug, Clone)]
pub struct Expanded {
    /// The lease on the notification's own row, whose key has n = 0, or on the row of a retried delivery.
    pub lease: Lease,
    /// The targets, in the order of their numbers.
    pub targets: Vec<Target>,
    /// The number of the first target: 1, or more for a later chunk of a large expansion.
    pub first: i32,
}

impl Expanded {
    /// Creates the expansion with all targets of a notification.
    pub fn new(lease: Lease, targets: Vec<Target>) -> Self {
        Self { lease, targets, first: 1 }
    }

    /// Returns whether this is a retried delivery and not a notification.
    #[must_use]
    pub fn is_retried(&self) -> bool {
        self.lease.key.n > 0
    }
}

arrays! {
    /// One target of a notification, without its facts.
    struct Given<'a>, GivenArrays {
        tenant: i32,
        notification_id: Uuid,
        token: Uuid,
        n: i32,
        lane: i32,
        state: Option<&'a str>,
        reason: Option<&'a str>,
        code: Option<&'a str>,
        error_class: Option<&'a str>,
        detail: Option<&'a str>,
    }
}
arrays! {
    /// The send key and the earliest send time of a target. Passed only if a target of the batch has a send key or such
    /// a time.
    struct Once, OnceArrays {
        key_hash: Option<Uuid>,
        not_before: postgres::Time,
    }
}
arrays! {
    /// The only target of a notification, without its facts.
    struct Only, OnlyArrays {
        tenant: i32,
        notification_id: Uuid,
        token: Uuid,
        lane: i32,
    }
}
/// The columns that identify the notification's own row. All other columns of [`Given`] belong to the target.
const OF_NOTIFICATION: &str = "tenant, notification_id, token";

/// Replaces the rows of notifications with the rows of their targets. The new rows keep the due times and the priority,
/// so that the oldest is sent first in every lane. The targets of a notification are passed as arrays next to its row,
/// because a later join would compare every target with every notification.
pub(in crate::store) static EXPAND_POSTGRES: LazyLock<String> = LazyLock::new(|| expand_postgres(LEAVE, false, false));
/// Expands like [`EXPAND_POSTGRES`], for a batch with send keys or earliest send times. A target is queued only if this
/// statement wrote its send key. Concurrent expansions with the same send key wait for each other, and only one of them
/// writes the key.
pub(in crate::store) static EXPAND_ONCE_POSTGRES: LazyLock<String> =
    LazyLock::new(|| expand_postgres(LEAVE, true, false));
/// Expands like [`EXPAND_ONCE_POSTGRES`], for targets that are sent immediately. Their rows take over the lease of the
/// notification's row.
pub(in crate::store) static EXPAND_HELD_POSTGRES: LazyLock<String> =
    LazyLock::new(|| expand_postgres(LEAVE, true, true));
/// Expands like [`EXPAND_ONCE_POSTGRES`], for a part of a large expansion. The notification's row stays for the next
/// part.
pub(in crate::store) static EXPAND_PART_POSTGRES: LazyLock<String> =
    LazyLock::new(|| expand_postgres(STAY, true, false));

/// Expands notifications with one target each, none of which has a send key, an earliest send time or an end. The
/// notification's row becomes the row of the target. This takes half as long as inserting a new row.
pub(in crate::store) static EXPAND_ONLY_POSTGRES: LazyLock<String> =
    LazyLock::new(|| only_postgres("lease_token = NULL, lease_until = NULL, leased_at = NULL"));
/// Expands like [`EXPAND_ONLY_POSTGRES`], for targets that are sent immediately. Their rows keep the lease.
pub(in crate::store) static EXPAND_ONLY_HELD_POSTGRES: LazyLock<String> =
    LazyLock::new(|| only_postgres("lease_token = q.lease_token"));

const LEAVE: &str = "DELETE FROM postcommit.delivery_queue q USING given g";
/// Keeps the notification's row for the next part. Each part resets the count of lost leases, because a large expansion
/// may lose several workers.
const STAY: &str = "UPDATE postcommit.delivery_queue q
            SET lease_token = NULL, lease_until = NULL, lost_since = NULL, losses = 0
            FROM given g";

/// The statement for notifications with one target each. Columns that a new row would leave empty get their defaults.
/// The number 0 of a notification's row is a column of `given`: with a constant, the planner might scan the rows of all
/// unexpanded notifications.
fn only_postgres(lease: &str) -> String {
    let columns = [OnlyArrays::COLUMNS, FactArrays::COLUMNS].concat();
    let facts: Vec<String> = FactArrays::COLUMNS.iter().map(|(name, _)| format!("{name} = g.{name}")).collect();
    format!(
        "WITH given AS MATERIALIZED (SELECT *, 0 AS n FROM {given}), moved AS (
          UPDATE postcommit.delivery_queue q
          SET n = 1, lane = g.lane, {facts}, {lease}, intent = NULL, lost_since = NULL, losses = 0, attempts = 0, seq = 0,
            first_try_at = NULL, unclear = false, code = NULL, detail = NULL, error_class = NULL
          FROM given g
          WHERE q.tenant = ANY (ARRAY[g.tenant]) AND q.notification_id = g.notification_id AND q.n = g.n AND q.lease_token = g.token
          RETURNING q.notification_id
        )
        SELECT count(*), ARRAY[]::int[], ARRAY[]::uuid[], ARRAY[]::int[], coalesce(array_agg(notification_id), '{{}}') FROM moved",
        facts = facts.join(", "),
        given = unnest(&columns),
    )
}

fn expand_postgres(leave: &str, once: bool, held: bool) -> String {
    let lease = if held { "lease_token, lease_until, leased_at, " } else { "" };
    let of_row = if held { "q.lease_token, q.lease_until, q.leased_at, " } else { "" };
    let of_gone = if held { "gone.lease_token, gone.lease_until, gone.leased_at, " } else { "" };
    let keys = if once { OnceArrays::COLUMNS } else { &[] };
    let columns = [GivenArrays::COLUMNS, FactArrays::COLUMNS, keys].concat();
    let of_target =
        columns.iter().map(|(name, _)| *name).filter(|name| OF_NOTIFICATION.split(", ").all(|of_it| of_it != *name));
    let each = |write: fn(&str) -> String| of_target.clone().map(write).collect::<Vec<_>>().join(", ");
    let (given, facts) = (unnest(&columns), names::<Facts>(""));
    let (gathered, passed_on) =
        (each(|name| format!("array_agg(g.{name}) AS all_{name}")), each(|name| format!("g.all_{name}")));
    let (apart, named) = (each(|name| format!("all_{name}")), each(str::to_owned));
    let [before, after] = SENT_ALREADY;
    // The send keys are written in order, so that two batches cannot deadlock.
    let (target, judged) = match once {
        false => ("target", String::new()),
        true => (
            "judged",
            format!(
                "held AS (
                  INSERT INTO postcommit.send_key AS k (tenant, key_hash, notification_id, n)
                  SELECT DISTINCT ON (tenant, key_hash) tenant, key_hash, notification_id, n
                  FROM target
                  WHERE state IS NULL AND key_hash IS NOT NULL
                  ORDER BY tenant, key_hash, notification_id, n
                  {take_over}
                  RETURNING tenant, key_hash, notification_id, n
                ), judged AS MATERIALIZED (
                  SELECT t.tenant, t.notification_id, t.n, t.lane, t.priority, greatest(t.due_at, t.not_before) AS due_at,
                    CASE WHEN t.not_before > t.due_at THEN NULL ELSE t.first_due_at END AS first_due_at, {lease}{facts},
                    CASE WHEN twice THEN 'skipped' ELSE state END AS state, CASE WHEN twice THEN NULL ELSE reason END AS reason,
                    CASE WHEN twice THEN '{DUPLICATE}' ELSE code END AS code, CASE WHEN twice THEN {class} ELSE error_class END AS error_class,
                    CASE WHEN twice THEN '{before}' || coalesce('delivery ' || ({in_batch}), 'delivery ' || ({earlier}), 'another delivery') || '{after}'
                      ELSE detail END AS detail, twice
                  FROM target t
                  CROSS JOIN LATERAL (SELECT t.state IS NULL AND t.key_hash IS NOT NULL AND NOT EXISTS (
                    SELECT 1 FROM held h WHERE h.tenant = t.tenant AND h.notification_id = t.notification_id AND h.n = t.n) AS twice) k
                ), ",
                take_over = take_over(true),
                // A send key that a concurrent expansion wrote is not visible to this statement. Then the text says
                // `another delivery`.
                in_batch = "SELECT h.notification_id || '.' || h.n FROM held h WHERE h.tenant = t.tenant AND h.key_hash = t.key_hash",
                earlier = "SELECT k.notification_id || '.' || k.n FROM postcommit.send_key k WHERE k.tenant = ANY (ARRAY[t.tenant]) AND k.key_hash = t.key_hash",
                class = ErrorClass::of_code(DUPLICATE).map_or("NULL".into(), |class| format!("'{}'", class.name())),
            ),
        ),
    };
    let duplicates = match once {
        false => "ARRAY[]::int[], ARRAY[]::uuid[], ARRAY[]::int[]".to_owned(),
        true => ["tenant", "notification_id", "n"].map(|name| format!("(SELECT coalesce(array_agg({name} ORDER BY tenant, notification_id, n), '{{}}') FROM judged WHERE twice)")).join(", "),
    };
    let (returning, queued) = match held {
        false => ("", ""),
        true => ("RETURNING notification_id", ", (SELECT coalesce(array_agg(notification_id), '{}') FROM queued)"),
    };
    format!(
        "WITH given AS MATERIALIZED (
          SELECT {OF_NOTIFICATION}, 0 AS n, {gathered} FROM {given} GROUP BY {OF_NOTIFICATION}
        ), gone AS (
          {leave}
          WHERE q.tenant = ANY (ARRAY[g.tenant]) AND q.notification_id = g.notification_id AND q.n = g.n AND q.lease_token = g.token
          RETURNING q.tenant, q.notification_id, q.priority, q.due_at, q.first_due_at, {of_row}{passed_on}
        ), target AS (
          SELECT gone.tenant, gone.notification_id, gone.priority, gone.due_at, gone.first_due_at, {of_gone}t.*
          FROM gone CROSS JOIN LATERAL unnest({apart}) AS t ({named})
        ), {judged}queued AS (
          INSERT INTO postcommit.delivery_queue
            (tenant, notification_id, n, lane, priority, due_at, first_due_at, {lease}{facts})
          SELECT tenant, notification_id, n, lane, priority, due_at, first_due_at, {lease}{facts}
          FROM {target} WHERE state IS NULL ORDER BY tenant, notification_id, n
          {returning}
        ), entered AS (
          INSERT INTO postcommit.delivery_ledger (tenant, notification_id, n, lane, state, reason, code, error_class, detail, attempts, seq, finished_at, {facts})
          SELECT tenant, notification_id, n, 0, state, reason, code, error_class, detail, 0, 0, clock_timestamp(), {facts} FROM {target} WHERE state IS NOT NULL
          ORDER BY tenant, notification_id, n
        )
        SELECT (SELECT count(*) FROM gone), {duplicates}{queued}"
    )
}

/// The code of a target whose send key another delivery holds.
pub const DUPLICATE: &str = "duplicate";
/// The detail of a target that is skipped as a duplicate, before and after the name of the delivery that holds the send
/// key.
const SENT_ALREADY: [&str; 2] = [
    "the template is sent once per entity, and ",
    " holds the send key; `postcommit deliveries resend` sends it nevertheless",
];

/// Returns the detail of a target that is skipped because the delivery `holder` holds the send key.
pub(in crate::store) fn sent_already(holder: DeliveryId) -> String {
    let [before, after] = SENT_ALREADY;
    format!("{before}delivery {holder}{after}")
}

/// The end of a statement that writes send keys into the table `k`. A key stays with the delivery that holds it. But if
/// the holder ended before any attempt, it was not sent and never will be, so the new delivery takes over the key.
pub(in crate::store) fn take_over(is_postgres: bool) -> String {
    // On PostgreSQL the tenant is compared with an array, so that the planner uses the primary key
    // (tests/it/planner.rs).
    let tenant = if is_postgres { "ANY (ARRAY[k.tenant])" } else { "k.tenant" };
    format!(
        "ON CONFLICT (tenant, key_hash) DO UPDATE
         SET notification_id = excluded.notification_id, n = excluded.n, created_at = excluded.created_at
         WHERE EXISTS (SELECT 1 FROM postcommit.delivery_ledger l
           WHERE l.tenant = {tenant} AND l.notification_id = k.notification_id AND l.n = k.n
             AND l.state IN ('discarded', 'cancelled', 'expired') AND l.seq = 0 AND NOT l.unclear)"
    )
}

/// The result of an expansion.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Written {
    /// How many notifications were replaced by their targets.
    pub expanded: usize,
    /// Targets that were skipped, because another delivery holds their send key.
    pub duplicates: Vec<DeliveryKey>,
    /// Targets that were skipped by a throttle or collected in a digest, with their codes.
    pub ended: Vec<(DeliveryKey, &'static str)>,
}

impl Written {
    /// Adds the targets that the throttles and digests ended in the same transaction.
    pub(in crate::store) fn with(mut self, paced: Self) -> Self {
        self.duplicates.extend(paced.duplicates);
        self.ended.extend(paced.ended);
        self
    }
}

impl Store {
    /// Replaces each notification's own row with the rows of its targets. A notification whose lease is lost is
    /// skipped. On an error nothing was written.
    pub async fn expand(&self, mut batch: Vec<Expanded>) -> Result<Written, DbError> {
        crash_point!("expand.before");
        batch.sort_by_key(|e| e.lease.key);
        let pacing = is_paced(&batch).then(|| self.pacing_sql());
        let written = match &self.db {
            Db::Postgres(db) => {
                let mut client = db.hot().await?;
                match pacing {
                    Some(sql) => expand_paced(&mut client, &sql, batch).await?,
                    None => {
                        let has_key = |target: &Target| target.once.is_some() || target.not_before.is_some();
                        let has_keys = batch.iter().flat_map(|one| &one.targets).any(has_key);
                        let sql = if has_keys { &EXPAND_ONCE_POSTGRES } else { &EXPAND_POSTGRES };
                        written(&replace(&client, (&EXPAND_ONLY_POSTGRES, sql), &batch, has_keys).await?)
                    }
                }
            }
            Db::Sqlite(db) => {
                db.write(move |connection| {
                    let (mut written, now) = (Written::default(), sqlite::now(connection)?.as_micros());
                    // If another writer fails, this closure runs once more, so it must not change the batch itself.
                    let paced = pacing.as_ref().map(|sql| pace_sqlite(connection, sql, &batch)).transpose()?;
                    if let Some((_, paced)) = &paced {
                        written = paced.clone();
                    }
                    for one in paced.as_ref().map_or(&batch, |(kept, _)| kept) {
                        expand_sqlite(connection, OwnRow::Leaves, one, now, &mut written)?;
                    }
                    crash_point!("expand.in_tx");
                    Ok(written)
                })
                .await?
            }
        };
        crash_point!("expand.after_commit");
        Ok(written)
    }

    /// Replaces each notification's own row with the row of its only target. The new row takes over the lease, so that
    /// the target can be sent without another claim. Also returns the notifications whose targets can be sent now. The
    /// other targets were duplicates, or the leases of their notifications are lost. On an error nothing was written.
    pub async fn expand_held(&self, mut batch: Vec<Expanded>) -> Result<(Written, HashSet<Uuid>), DbError> {
        crash_point!("expand.before");
        batch.sort_by_key(|e| e.lease.key);
        let done = match &self.db {
            Db::Postgres(db) => {
                let client = db.hot().await?;
                let row = replace(&client, (&EXPAND_ONLY_HELD_POSTGRES, &EXPAND_HELD_POSTGRES), &batch, true).await?;
                (written(&row), row.get::<_, Vec<Uuid>>(4).into_iter().collect())
            }
            Db::Sqlite(db) => {
                db.write(move |connection| {
                    let (mut done, now) = (Written::default(), sqlite::now(connection)?.as_micros());
                    let mut held = HashSet::new();
                    for one in &batch {
                        let (before, twice) = (done.expanded, done.duplicates.len());
                        expand_sqlite(connection, OwnRow::PassesLeaseOn, one, now, &mut done)?;
                        if done.expanded > before && done.duplicates.len() == twice {
                            held.insert(one.lease.key.notification);
                        }
                    }
                    crash_point!("expand.in_tx");
                    Ok((done, held))
                })
                .await?
            }
        };
        crash_point!("expand.after_commit");
        Ok(done)
    }
}

/// Replaces the rows of a batch. The first statement is for a batch of notifications with one target each, the second
/// for any other batch.
async fn replace(
    client: &Client,
    (only, any): (&str, &str),
    batch: &[Expanded],
    has_keys: bool,
) -> Result<tokio_postgres::Row, DbError> {
    let lanes: Option<Vec<i32>> = batch.iter().map(only_lane).collect();
    let (sql, told) = match lanes {
        Some(lanes) => (only, Told::only(batch, &lanes)),
        None => (any, Told::of(batch, has_keys)),
    };
    let statement = client.prepare_cached(sql).await.map_err(postgres::refused)?;
    client.query_one(&statement, &told.parameters()).await.map_err(postgres::refused)
}

/// Returns the lane of the only target, if the notification's row can become the target's row.
fn only_lane(one: &Expanded) -> Option<i32> {
    match (&one.targets[..], one.first, one.is_retried()) {
        ([Target { fate: Fate::Lane(lane), once: None, not_before: None, pacing: None, .. }], 1, false) => Some(*lane),
        _ => None,
    }
}

/// Writes a batch with targets that have a throttle or digest, in one transaction.
async fn expand_paced(client: &mut Client, sql: &PacingSql, mut batch: Vec<Expanded>) -> Result<Written, DbError> {
    let statement = client.prepare_cached(&EXPAND_ONCE_POSTGRES).await.map_err(postgres::refused)?;
    let transaction = client.transaction().await.map_err(postgres::refused)?;
    let paced = pace_postgres(&transaction, sql, &mut batch).await?;
    let told = Told::of(&batch, true);
    let row = transaction.query_one(&statement, &told.parameters()).await.map_err(postgres::refused)?;
    crash_point!("expand.in_tx");
    transaction.commit().await.map_err(postgres::refused)?;
    Ok(written(&row).with(paced))
}

/// The parameters of the statement that writes an expansion on PostgreSQL.
pub(in crate::store) struct Told<'a> {
    given: Whose<'a>,
    facts: FactArrays<'a>,
    keys: Option<OnceArrays>,
}

impl<'a> Told<'a> {
    pub(in crate::store) fn of(batch: &'a [Expanded], has_keys: bool) -> Self {
        let targets =
            || batch.iter().flat_map(|one| (one.first..).zip(&one.targets).map(|(n, target)| (one.lease, n, target)));
        Self {
            given: Whose::Targets(targets().map(|(lease, n, target)| given(lease, n, target)).collect()),
            facts: targets().map(|(_, _, target)| (&target.facts).into()).collect(),
            keys: has_keys.then(|| targets().map(|(_, _, target)| once(target)).collect()),
        }
    }

    /// Creates the parameters for notifications with one target each. `lanes` are the lanes of the targets.
    fn only(batch: &'a [Expanded], lanes: &[i32]) -> Self {
        let only = |(one, lane): (&Expanded, &i32)| Only {
            tenant: one.lease.key.tenant,
            notification_id: one.lease.key.notification,
            token: one.lease.token,
            lane: *lane,
        };
        Self {
            given: Whose::Only(batch.iter().zip(lanes).map(only).collect()),
            facts: batch.iter().flat_map(|one| &one.targets).map(|target| (&target.facts).into()).collect(),
            keys: None,
        }
    }

    pub(in crate::store) fn parameters(&self) -> Vec<&(dyn ToSql + Sync)> {
        let keys = self.keys.as_ref().map(OnceArrays::parameters).unwrap_or_default();
        let given = match &self.given {
            Whose::Targets(given) => given.parameters(),
            Whose::Only(given) => given.parameters(),
        };
        [given, self.facts.parameters(), keys].concat()
    }
}

/// The parameters of the targets, without their facts.
enum Whose<'a> {
    /// The targets of notifications with any number of targets.
    Targets(GivenArrays<'a>),
    /// The only target of each notification.
    Only(OnlyArrays),
}

pub(in crate::store) fn written(row: &tokio_postgres::Row) -> Written {
    let (tenants, ids, ns): (Vec<i32>, Vec<Uuid>, Vec<i32>) = (row.get(1), row.get(2), row.get(3));
    let key = |((tenant, notification), n)| DeliveryKey { tenant, notification, n };
    Written {
        expanded: usize::try_from(row.get::<_, i64>(0)).unwrap_or(0),
        duplicates: tenants.into_iter().zip(ids).zip(ns).map(key).collect(),
        ended: vec![],
    }
}

fn once(target: &Target) -> Once {
    Once { key_hash: target.once, not_before: postgres::Time(target.not_before) }
}

fn given(lease: Lease, n: i32, target: &Target) -> Given<'_> {
    let (lane, ended) = match &target.fate {
        Fate::Lane(lane) => (*lane, None),
        Fate::Ended { state, code, detail } => (0, Some((*state, *code, detail.as_str()))),
    };
    Given {
        tenant: lease.key.tenant,
        notification_id: lease.key.notification,
        token: lease.token,
        n,
        lane,
        state: ended.map(|(state, _, _)| state.name()),
        reason: ended.and_then(|(state, _, _)| state.reason()),
        code: ended.map(|(_, code, _)| code),
        error_class: ended.and_then(|(_, code, _)| ErrorClass::of_code(code)).map(ErrorClass::name),
        detail: ended.map(|(_, _, detail)| detail),
    }
}

/// The treatment of the notification's own row by an expansion.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::store) enum OwnRow {
    /// The row is removed.
    Leaves,
    /// The row is removed, and the row of its only target takes over the lease.
    PassesLeaseOn,
    /// The row stays for the next part of a large expansion.
    Stays,
}

impl OwnRow {
    fn sqlite(self) -> &'static str {
        match self {
            Self::Leaves => LEAVE_SQLITE,
            Self::PassesLeaseOn => LEAVE_HELD_SQLITE,
            Self::Stays => STAY_SQLITE,
        }
    }
}

const LEAVE_SQLITE: &str = "DELETE FROM postcommit_delivery_queue
    WHERE tenant = ?1 AND notification_id = ?2 AND n = 0 AND lease_token = ?3 RETURNING priority, due_at, first_due_at";
const STAY_SQLITE: &str = "UPDATE postcommit_delivery_queue
    SET lease_token = NULL, lease_until = NULL, lost_since = NULL, losses = 0
    WHERE tenant = ?1 AND notification_id = ?2 AND n = 0 AND lease_token = ?3 RETURNING priority, due_at, first_due_at";
const LEAVE_HELD_SQLITE: &str = "DELETE FROM postcommit_delivery_queue
    WHERE tenant = ?1 AND notification_id = ?2 AND n = 0 AND lease_token = ?3
    RETURNING priority, due_at, first_due_at, lease_until, leased_at";
static QUEUE_SQLITE: LazyLock<String> = LazyLock::new(|| {
    insert(
        "postcommit_delivery_queue",
        &format!("tenant, notification_id, n, lane, priority, due_at, first_due_at, {}", names::<Facts>("")),
    )
});
static QUEUE_HELD_SQLITE: LazyLock<String> = LazyLock::new(|| {
    let lease = "lease_token, lease_until, leased_at";
    insert(
        "postcommit_delivery_queue",
        &format!("tenant, notification_id, n, lane, priority, due_at, first_due_at, {lease}, {}", names::<Facts>("")),
    )
});
static ENTER_SQLITE: LazyLock<String> = LazyLock::new(|| {
    let columns =
        "tenant, notification_id, n, lane, state, reason, code, error_class, detail, attempts, seq, finished_at";
    insert("postcommit_delivery_ledger", &format!("{columns}, {}", names::<Facts>("")))
});

static HOLD_SQLITE: LazyLock<String> = LazyLock::new(|| {
    let hold = "INSERT INTO postcommit.send_key AS k (tenant, key_hash, notification_id, n, created_at)
        VALUES ($1, $2, $3, $4, $5)";
    sqlite::dialect(&format!("{hold} {}", take_over(false)))
});
const HOLDER_SQLITE: &str = "SELECT notification_id, n FROM postcommit_send_key WHERE tenant = ?1 AND key_hash = ?2";

pub(in crate::store) fn expand_sqlite(
    connection: &Connection,
    own_row: OwnRow,
    one: &Expanded,
    now: i64,
    written: &mut Written,
) -> Result<(), DbError> {
    let (key, id) = (one.lease.key, Id::from(one.lease.key.notification));
    let (token, is_held) = (Id::from(one.lease.token), own_row == OwnRow::PassesLeaseOn);
    let left = Prepared::on(connection, own_row.sqlite())?.rows(params![key.tenant, id, token], |row| {
        let times = if is_held { (row.take::<i64>(3)?, row.take::<i64>(4)?) } else { (0, 0) };
        Ok((row.take::<i64>(0)?, row.take::<i64>(1)?, row.take::<Option<i64>>(2)?, times))
    })?;
    let Some(left) = left.into_iter().next().transpose()? else { return Ok(()) };
    let (priority, due_at, first_due_at, (lease_until, leased_at)) = left;
    for (n, target) in (one.first..).zip(&one.targets) {
        let (mut given, mut holder) = (given(one.lease, n, target), None);
        if let (Some(hash), None) = (target.once, given.state) {
            holder = other_holder(connection, DeliveryKey { n, ..key }, hash, now)?;
        }
        let said = holder.map(sent_already);
        if let Some(said) = &said {
            let class = ErrorClass::of_code(DUPLICATE).map(ErrorClass::name);
            let (state, code, detail) = (Some("skipped"), Some(DUPLICATE), Some(said.as_str()));
            given = Given { state, code, detail, error_class: class, lane: 0, ..given };
            written.duplicates.push(DeliveryKey { n, ..key });
        }
        let own = params![given.tenant, id, n, given.lane];
        // A delivery that waits for the end of quiet hours counts as first due at that end.
        let later = target.not_before.map(Timestamp::as_micros).filter(|later| *later > due_at);
        let (due_at, first_due_at) = later.map_or((due_at, first_due_at), |later| (later, None));
        let (sql, rest) = match given.state {
            None if is_held => {
                (&QUEUE_HELD_SQLITE, params![priority, due_at, first_due_at, token, lease_until, leased_at])
            }
            None => (&QUEUE_SQLITE, params![priority, due_at, first_due_at]),
            Some(_) => (
                &ENTER_SQLITE,
                params![given.state, given.reason, given.code, given.error_class, given.detail, 0, 0, now],
            ),
        };
        Prepared::on(connection, sql)?.run([own, rest, &fact_values(&target.facts)].concat().as_slice())?;
    }
    written.expanded += 1;
    Ok(())
}

/// Writes the send key of a target. If another delivery holds the key, returns that delivery.
fn other_holder(
    connection: &Connection,
    key: DeliveryKey,
    hash: Uuid,
    now: i64,
) -> Result<Option<DeliveryId>, DbError> {
    let (hash, id) = (Id::from(hash), Id::from(key.notification));
    if Prepared::on(connection, &HOLD_SQLITE)?.run(params![key.tenant, hash, id, key.n, now])? > 0 {
        return Ok(None);
    }
    Prepared::on(connection, HOLDER_SQLITE)?
        .first(params![key.tenant, hash], |row| Ok(DeliveryId { notification: row.take(0)?, n: row.take(1)? }))
}
