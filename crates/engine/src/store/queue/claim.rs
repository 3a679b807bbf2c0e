//! Claims due rows under a lease, announces sends, and renews leases.

use std::sync::LazyLock;
use std::sync::atomic::Ordering;
use std::time::Duration;

use postcommit::Timestamp;
use postcommit_channel::model::{Delivery, DeliveryKey, StoredNotification};
use rusqlite::{Connection, params};
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::crash_point;
use crate::db::columns::{Columns, place, places};
use crate::db::postgres::Postgres;
use crate::db::sqlite::{Id, Prepared, Sqlite};
use crate::db::{Cells, Db, DbError, Row, postgres, sqlite};
use crate::store::Store;
use crate::store::notifications::readable;
use crate::store::queue::closed::{closed_postgres, closed_sqlite};
use crate::store::queue::due_lanes::{
    CLAIM_READING_POSTGRES, CLAIM_SEARCHING_POSTGRES, NOTE, Search, Searched, claim_fresh_sqlite, search_sqlite, split,
};
use crate::store::queue::row::{Leased, Places, claimed_postgres, claimed_sqlite};

/// A lane to claim from, and how many deliveries it can start now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Want {
    /// The lane's number. A positive number is a provider's lane. A negative number is a tenant's lane of notifications
    /// that are not expanded yet.
    pub lane: i32,
    /// How many deliveries the lane has free slots for.
    pub quota: i32,
}

/// The right to attempt a delivery until the lease expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lease {
    pub key: DeliveryKey,
    /// The random token of this lease. Later writes to the row take effect only while the row still has this token.
    pub token: Uuid,
}

impl Lease {
    /// Returns the lease of a claimed delivery. The key of the lease names the row that holds the delivery, which can
    /// be the row of its notification.
    pub fn of(delivery: &Delivery) -> Self {
        Self { key: DeliveryKey { n: delivery.row, ..delivery.key }, token: delivery.token }
    }
}

/// The result of a claim.
#[derive(Debug, Clone, Default)]
pub struct Claim {
    /// The claimed deliveries, sorted by key. All of them have the same new token.
    pub deliveries: Vec<Delivery>,
    /// The version of the provider table at the time of the claim. If it differs from the version that the dispatcher
    /// knows, a provider has changed.
    pub providers: i64,
    /// Notifications that the claim read in the same statement as their rows. It may be empty.
    pub notes: Vec<StoredNotification>,
    /// The result of the search for other lanes with due rows.
    pub searched: Searched,
}

/// The condition that row `q` is due and not leased, for the lane `want` and the priority `p`. It uses `now()`, because
/// a volatile clock function would prevent the use of the index.
pub(in crate::store) const IS_DUE: &str = "q.lane = want.lane AND q.priority = p.priority AND q.due_at <= least(now(), $5::timestamptz)
            AND q.due_at >= coalesce(($6::timestamptz[])[10 * want.place - p.priority], '-infinity') AND (q.lease_until IS NULL OR q.lease_until < now())";
/// Picks due rows, the highest priority first. Each priority is compared by equality, because a range over priorities
/// would also read rows that are scheduled for later. The outer LIMIT stops the loop before lower priorities are read.
pub(in crate::store) const PICK: &str = "SELECT c.ctid, want.lane FROM want CROSS JOIN LATERAL (
        SELECT r.ctid FROM generate_series(9, 0, -1) AS p (priority) CROSS JOIN LATERAL (
          SELECT q.ctid FROM postcommit.delivery_queue q WHERE {is_due} ORDER BY q.due_at LIMIT want.quota FOR UPDATE SKIP LOCKED
        ) r LIMIT want.quota
      ) c";
/// The lanes that the claim asks for and that are open. Rate-limited lanes are excluded, even if a dispatcher does not
/// know of the limit yet. Only [`Store::claim_limited`] claims from them.
const WANT: &str = "want AS MATERIALIZED (
      SELECT w.lane, w.quota, w.place FROM unnest($1::int[], $2::int[]) WITH ORDINALITY AS w (lane, quota, place){commit}
      WHERE NOT EXISTS (SELECT 1 FROM postcommit.provider p WHERE p.id = w.lane AND {held})
    )";
/// Finds the rows of one notification by key alone. The due time and the lane are checked in a second step, because the
/// planner could otherwise choose the index on those columns.
pub(in crate::store) const OF_IT: &str = "
    WITH of_it AS MATERIALIZED (
      SELECT r.ctid, r.lane, r.due_at, r.lease_until FROM postcommit.delivery_queue r WHERE r.tenant = $1 AND r.notification_id = $2 FOR UPDATE SKIP LOCKED
    ), due AS MATERIALIZED (SELECT r.ctid, r.lane FROM of_it r WHERE r.due_at <= $5 AND (r.lease_until IS NULL OR r.lease_until < now()))";
const PICKED_OF_IT: &str = "picked AS MATERIALIZED (
      SELECT r.ctid FROM due r WHERE NOT EXISTS (
        SELECT 1 FROM postcommit.provider p WHERE p.id = r.lane AND {held})
    )";
/// The condition that a claim skips the lane of provider `p`: the lane is closed or rate-limited.
/// [`Store::claim_limited`] claims from rate-limited lanes.
fn held_postgres() -> String {
    format!("({} OR p.rate_per_s IS NOT NULL)", closed_postgres("p"))
}
/// Leases the picked rows. A lease begins when the statement begins, before the statement's snapshot is taken. So the
/// worker knows every change that was committed before the lease began (docs/decisions/0033). The rows are found by
/// `ctid`, so that the plan does not depend on statistics. This is safe, because the same statement has locked the
/// rows.
const LEASE: &str = "
    UPDATE postcommit.delivery_queue q
    SET lease_token = $3, lease_until = clock_timestamp() + $4::float8 * interval '1 second', leased_at = now(),
      lost_since = CASE WHEN q.lease_token IS NOT NULL THEN coalesce(q.lost_since, q.leased_at) ELSE q.lost_since END, losses = q.losses + (q.lease_token IS NOT NULL)::int, first_try_at = CASE WHEN q.lease_token IS NOT NULL THEN coalesce(q.first_try_at, q.leased_at) ELSE q.first_try_at END
    WHERE q.ctid = ANY (ARRAY(SELECT ctid FROM picked))
    RETURNING ";

/// The SQL that leases the picked rows and returns them.
pub(in crate::store) fn lease() -> String {
    format!("{LEASE}{}", claimed_postgres())
}

pub(in crate::store) static CLAIM_POSTGRES: LazyLock<String> = LazyLock::new(|| {
    format!("WITH {}, picked AS MATERIALIZED ({}) {}", want(""), PICK.replace("{is_due}", IS_DUE), lease())
});
pub(in crate::store) static CLAIM_NOTIFICATION_POSTGRES: LazyLock<String> =
    LazyLock::new(|| format!("{OF_IT}, {} {}", PICKED_OF_IT.replace("{held}", &held_postgres()), lease()));
/// The SQL for the open lanes among the lanes that the claim asks for. `commit` is inserted into the FROM clause.
pub(in crate::store) fn want(commit: &str) -> String {
    WANT.replace("{commit}", commit).replace("{held}", &held_postgres())
}

/// The claim on SQLite takes two statements for each lane and priority. This statement reads the free rows in index
/// order. [`LEASE_SQLITE`] then leases every free row up to the last row that was read. No other claim can come between
/// them: the writer thread is the only claimer of its process, and `BEGIN IMMEDIATE` excludes other processes. UPDATE …
/// RETURNING would copy each row and takes 6.8 µs per row instead of 5.7, measured with perf.
static DUE_SQLITE: LazyLock<String> = LazyLock::new(|| {
    let free = "lane = ?2 AND priority = ?3 AND due_at <= ?4 AND (lease_until IS NULL OR lease_until < ?1)";
    format!(
        "SELECT {} FROM postcommit_delivery_queue q WHERE {free} ORDER BY due_at, tenant, notification_id, n LIMIT ?5",
        claimed_sqlite()
    )
});
static LEASE_SQLITE: LazyLock<String> = LazyLock::new(|| {
    // A condition on `due_at` alone would read every row with the same due time, e.g. the deliveries to all members of
    // a large list.
    let up_to = "(due_at, tenant, notification_id, n) <= (?6, ?7, ?8, ?9)";
    format!(
        "{SET_LEASE_SQLITE} WHERE lane = ?4 AND priority = ?5 AND {up_to} AND (lease_until IS NULL OR lease_until < ?1)"
    )
});
pub(in crate::store) const IS_DUE_SQLITE: &str = "SELECT 1 FROM postcommit_delivery_queue
    WHERE lane = ?1 AND priority = ?2 AND due_at <= ?3 AND (lease_until IS NULL OR lease_until < ?4) LIMIT 1";
/// Returns a row if the claim must skip the lane. A claim of rate-limited lanes (`?3` is true) skips lanes without a
/// rate limit, and every other claim skips lanes with a rate limit.
static HELD_SQLITE: LazyLock<String> = LazyLock::new(|| {
    let closed = closed_sqlite("p", "?2");
    format!("SELECT 1 FROM postcommit_provider p WHERE p.id = ?1 AND ({closed} OR (p.rate_per_s IS NOT NULL) <> ?3)")
});
pub(in crate::store) const SET_LEASE_SQLITE: &str = "UPDATE postcommit_delivery_queue SET leased_at = ?1, lease_until = ?2, lease_token = ?3,
    lost_since = CASE WHEN lease_token IS NOT NULL THEN coalesce(lost_since, leased_at) ELSE lost_since END, losses = losses + (lease_token IS NOT NULL),
    first_try_at = CASE WHEN lease_token IS NOT NULL THEN coalesce(first_try_at, leased_at) ELSE first_try_at END";

static OF_NOTIFICATION_SQLITE: LazyLock<String> = LazyLock::new(|| {
    let closed = closed_sqlite("p", "?1");
    format!(
        "tenant = ?4 AND notification_id = ?5 AND due_at <= ?6 AND (lease_until IS NULL OR lease_until < ?1)
        AND NOT EXISTS (SELECT 1 FROM postcommit_provider p WHERE p.id = lane AND ({closed} OR p.rate_per_s IS NOT NULL))"
    )
});
static DUE_OF_NOTIFICATION_SQLITE: LazyLock<String> = LazyLock::new(|| {
    let (claimed, of_notification) = (claimed_sqlite(), &*OF_NOTIFICATION_SQLITE);
    format!("SELECT {claimed} FROM postcommit_delivery_queue q WHERE ?2 > 0 AND ?3 IS NOT NULL AND {of_notification}")
});
static LEASE_OF_NOTIFICATION_SQLITE: LazyLock<String> =
    LazyLock::new(|| format!("{SET_LEASE_SQLITE} WHERE {}", *OF_NOTIFICATION_SQLITE));

impl Store {
    /// Claims due rows of these lanes, at most the quota of each, under one new random token. `due_before` is the end
    /// of a pass: rows that become due after it are left for the next pass.
    pub async fn claim(
        &self,
        wants: &[Want],
        lease: Duration,
        due_before: Option<Timestamp>,
    ) -> Result<Claim, DbError> {
        self.claim_and_search(wants, &Search::default(), lease, due_before).await
    }

    /// Claims like [`Store::claim`], and also searches for other lanes with due rows. If the search finds notifications
    /// that are not expanded yet, the same statement (on SQLite, the same transaction) claims them.
    pub async fn claim_and_search(
        &self,
        wants: &[Want],
        search: &Search,
        lease: Duration,
        due_before: Option<Timestamp>,
    ) -> Result<Claim, DbError> {
        crash_point!("claim.before");
        let token = Uuid::new_v4();
        let found = match &self.db {
            Db::Postgres(db) => self.claim_postgres(db, (wants, search), (token, lease), due_before).await?,
            Db::Sqlite(db) => self.claim_sqlite(db, (wants, search), (token, lease), due_before).await?,
        };
        crash_point!("claim.after_commit");
        self.found.store(!found.deliveries.is_empty(), Ordering::Relaxed);
        Ok(found)
    }

    async fn claim_postgres(
        &self,
        db: &Postgres,
        (wants, search): (&[Want], &Search),
        (token, lease): (Uuid, Duration),
        due_before: Option<Timestamp>,
    ) -> Result<Claim, DbError> {
        let client = db.hot().await?;
        let (quiet, searches) = (!self.found.load(Ordering::Relaxed), !search.between.is_empty());
        let sql = match () {
            () if quiet => &CLAIM_READING_POSTGRES,
            () if searches => &CLAIM_SEARCHING_POSTGRES,
            () => &CLAIM_POSTGRES,
        };
        let statement = client.prepare_cached(sql).await.map_err(postgres::refused)?;
        let (lanes, quotas): (Vec<i32>, Vec<i32>) = wants.iter().map(|w| (w.lane, w.quota)).unzip();
        let (after, until): (Vec<i32>, Vec<i32>) = search.between.iter().copied().unzip();
        let look = self.marks().look(&lanes);
        let from: Vec<postgres::Time> = look.from.iter().copied().map(postgres::Time).collect();
        let (seconds, before) = (lease.as_secs_f64(), postgres::Time(due_before));
        let mut parameters: Vec<&(dyn ToSql + Sync)> = vec![&lanes, &quotas, &token, &seconds, &before, &from];
        if quiet || searches {
            parameters.extend([
                &after as &(dyn ToSql + Sync),
                &until,
                &search.around,
                &search.visits,
                &search.quota,
                &search.each,
            ]);
        }
        let mut rows = client.query(&statement, &parameters).await.map_err(postgres::refused)?;
        let mut searched = Searched::default();
        if quiet || searches {
            (rows, searched) = split(rows)?;
        }
        let notes = if quiet { notes_along(&rows)? } else { vec![] };
        let found = Claim { notes, searched, ..claim(rows, token)? };
        self.marks().note(&look, wants, &found.deliveries, searches);
        Ok(found)
    }

    async fn claim_sqlite(
        &self,
        db: &Sqlite,
        (wants, search): (&[Want], &Search),
        (token, lease): (Uuid, Duration),
        due_before: Option<Timestamp>,
    ) -> Result<Claim, DbError> {
        let (wants, search) = (wants.to_vec(), search.clone());
        // While nothing is due, a check on a read connection leaves the write lock to the application. If the last
        // claim found rows, this claim probably finds rows as well, so the check is left out.
        if !self.found.load(Ordering::Relaxed) {
            let (wants, search) = (wants.clone(), search.clone());
            let look = move |connection: &Connection| {
                let (now, latest) = times(connection, due_before)?;
                let (fresh, searched) = search_sqlite(connection, &search, now, latest)?;
                Ok((!fresh.is_empty() || is_due(connection, &wants, due_before, false)?, searched))
            };
            if let (false, searched) = db.read(look).await? {
                return Ok(Claim { searched, ..Claim::default() });
            }
        }
        let written = db.write(move |connection| {
            let (now, latest) = times(connection, due_before)?;
            let term = Term { token, now, until: now.plus(lease), latest };
            let (fresh, searched) = search_sqlite(connection, &search, now, latest)?;
            let mut rows = claim_fresh_sqlite(connection, &fresh, &search, &term)?;
            for want in open_lanes(connection, &wants, now, false)? {
                rows.extend(claim_lane_sqlite(connection, want, &term)?);
            }
            crash_point!("claim.in_tx");
            Ok(Claim { searched, ..found(rows) })
        });
        written.await
    }

    /// Makes the waiting deliveries of one notification due immediately. If a delivery was scheduled for later, its
    /// first due time becomes now as well.
    pub async fn bring_forward(&self, tenant: i32, id: Uuid) -> Result<(), DbError> {
        let sql = "UPDATE postcommit.delivery_queue
            SET due_at = {now}, first_due_at = CASE WHEN first_due_at > {now} THEN {now} ELSE first_due_at END
            WHERE tenant = $1 AND notification_id = $2 AND lease_token IS NULL AND due_at > {now}";
        self.db.execute_one(sql, vec![tenant.into(), id.into()]).await.map(drop)
    }

    /// Claims the due deliveries of one notification, except in lanes that are closed or rate-limited. Used by a pass
    /// that an operator starts for this notification.
    pub async fn claim_notification(
        &self,
        tenant: i32,
        id: Uuid,
        lease: Duration,
        due_before: Timestamp,
    ) -> Result<Claim, DbError> {
        let token = Uuid::new_v4();
        match &self.db {
            Db::Postgres(db) => {
                let client = db.hot().await?;
                let statement = client.prepare_cached(&CLAIM_NOTIFICATION_POSTGRES).await.map_err(postgres::refused)?;
                let rows = client
                    .query(&statement, &[&tenant, &id, &token, &lease.as_secs_f64(), &postgres::Time(Some(due_before))])
                    .await
                    .map_err(postgres::refused)?;
                claim(rows, token)
            }
            Db::Sqlite(db) => {
                db.write(move |connection| {
                    let now = sqlite::now(connection)?;
                    let (until, by, id) = (now.plus(lease).as_micros(), Id::from(token), Id::from(id));
                    let parameters = params![now.as_micros(), until, by, tenant, id, due_before.as_micros()];
                    let rows = Prepared::on(connection, &DUE_OF_NOTIFICATION_SQLITE)?
                        .rows(parameters, |row| Places::in_sqlite().leased(row, token))?;
                    Prepared::on(connection, &LEASE_OF_NOTIFICATION_SQLITE)?.run(parameters)?;
                    Ok(found(rows))
                })
                .await
            }
        }
    }

    /// Returns the time of the database's clock. Only this clock decides which rows are due.
    pub async fn now(&self) -> Result<Timestamp, DbError> {
        let rows = self.db.query("SELECT {now}", vec![]).await?;
        rows.first().map_or(
            Err(DbError::Unreadable("the query for the current time returned no row; report it as a bug".into())),
            |row| row.get(0),
        )
    }

    /// Announces sends of `at_most_once` deliveries, before their first byte is sent. Returns the deliveries that may
    /// be sent. The other deliveries have lost their lease.
    pub async fn announce(&self, leases: &[Lease]) -> Result<Vec<DeliveryKey>, DbError> {
        crash_point!("intent.before");
        let announced = match &self.db {
            Db::Postgres(db) => {
                let client = db.hot().await?;
                let statement = client.prepare_cached(INTENT_POSTGRES).await.map_err(postgres::refused)?;
                let (tenants, ids, ns, tokens) = columns(leases);
                let rows =
                    client.query(&statement, &[&tenants, &ids, &ns, &tokens]).await.map_err(postgres::refused)?;
                rows.into_iter().map(|mut row| key(&mut row)).collect()
            }
            Db::Sqlite(db) => {
                let leases = leases.to_vec();
                db.write(move |connection| {
                    let rows = each_lease(connection, &leases, &INTENT_SQLITE.replace("{now}", sqlite::NOW))?;
                    crash_point!("intent.in_tx");
                    rows.into_iter().map(|mut row| key(&mut row)).collect()
                })
                .await
            }
        };
        crash_point!("intent.after_commit");
        announced
    }

    /// Renews leases that are still held. Returns the keys of the renewed leases.
    pub async fn renew(&self, leases: &[Lease], lease: Duration) -> Result<Vec<DeliveryKey>, DbError> {
        match &self.db {
            Db::Postgres(db) => {
                let client = db.hot().await?;
                let statement = client.prepare_cached(RENEW_POSTGRES).await.map_err(postgres::refused)?;
                let (tenants, ids, ns, tokens) = columns(leases);
                let rows = client
                    .query(&statement, &[&tenants, &ids, &ns, &tokens, &lease.as_secs_f64()])
                    .await
                    .map_err(postgres::refused)?;
                rows.into_iter().map(|mut row| key(&mut row)).collect()
            }
            Db::Sqlite(db) => {
                let leases = leases.to_vec();
                let renew = format!(
                    "UPDATE postcommit_delivery_queue SET lease_until = {} + {} {HELD}",
                    sqlite::NOW,
                    lease.as_micros()
                );
                db.write(move |connection| {
                    each_lease(connection, &leases, &renew)?.into_iter().map(|mut row| key(&mut row)).collect()
                })
                .await
            }
        }
    }
}

/// Writes the announcement only while the token matches and the lease has not expired. Otherwise a sender that was
/// suspended for a while could announce a delivery that another worker has begun.
pub(in crate::store) const INTENT_POSTGRES: &str = "UPDATE postcommit.delivery_queue q SET intent = g.token
    FROM unnest($1::int[], $2::uuid[], $3::int[], $4::uuid[]) AS g (tenant, notification_id, n, token)
    WHERE q.tenant = ANY (ARRAY[g.tenant]) AND q.notification_id = g.notification_id AND q.n = g.n AND q.lease_token = g.token AND q.lease_until > clock_timestamp()
    RETURNING q.tenant, q.notification_id, q.n";
const INTENT_SQLITE: &str = "UPDATE postcommit_delivery_queue SET intent = ?4
    WHERE tenant = ?1 AND notification_id = ?2 AND n = ?3 AND lease_token = ?4 AND lease_until > {now} RETURNING tenant, notification_id, n";

/// Renews leases and skips rows that another transaction has locked. The skipped leases are renewed next time. Waiting
/// for a locked row would let all other leases expire.
pub(in crate::store) const RENEW_POSTGRES: &str = "WITH kept AS MATERIALIZED (
      SELECT r.ctid FROM unnest($1::int[], $2::uuid[], $3::int[], $4::uuid[]) AS g (tenant, notification_id, n, token)
      JOIN postcommit.delivery_queue r ON r.tenant = ANY (ARRAY[g.tenant]) AND r.notification_id = g.notification_id AND r.n = g.n AND r.lease_token = g.token
      FOR UPDATE OF r SKIP LOCKED
    )
    UPDATE postcommit.delivery_queue q SET lease_until = clock_timestamp() + $5::float8 * interval '1 second'
    WHERE q.ctid = ANY (ARRAY(SELECT ctid FROM kept))
    RETURNING q.tenant, q.notification_id, q.n";
const HELD: &str =
    "WHERE tenant = ?1 AND notification_id = ?2 AND n = ?3 AND lease_token = ?4 RETURNING tenant, notification_id, n";

/// Returns whether a claim of these lanes would find a due row.
pub(in crate::store) fn is_due(
    connection: &Connection,
    wants: &[Want],
    due_before: Option<Timestamp>,
    limited: bool,
) -> Result<bool, DbError> {
    let (now, latest) = times(connection, due_before)?;
    let latest = latest.as_micros();
    let mut look = Prepared::on(connection, IS_DUE_SQLITE)?;
    for want in open_lanes(connection, wants, now, limited)? {
        for priority in (0..=9).rev() {
            if look.first((want.lane, priority, latest, now.as_micros()), |_| Ok(()))?.is_some() {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Returns the current time, and the latest due time that this pass may claim.
fn times(connection: &Connection, due_before: Option<Timestamp>) -> Result<(Timestamp, Timestamp), DbError> {
    let now = sqlite::now(connection)?;
    Ok((now, due_before.map_or(now, |before| before.min(now))))
}

/// The terms of a new lease: its token, its beginning (`now`) and end (`until`), and the latest due time of the rows
/// that it may cover.
pub(in crate::store) struct Term {
    pub token: Uuid,
    pub now: Timestamp,
    pub until: Timestamp,
    pub latest: Timestamp,
}

pub(in crate::store) fn claim_lane_sqlite(
    connection: &Connection,
    want: Want,
    term: &Term,
) -> Result<Vec<Leased>, DbError> {
    let (now, until, by) = (term.now.as_micros(), term.until.as_micros(), Id::from(term.token));
    let (mut due, mut hold) = (Prepared::on(connection, &DUE_SQLITE)?, Prepared::on(connection, &LEASE_SQLITE)?);
    let (mut rows, mut left) = (Vec::new(), want.quota);
    for priority in (0..=9).rev() {
        let mut last = None;
        let more = due.rows((now, want.lane, priority, term.latest.as_micros(), left), |row| {
            last = Some(Places::rank(row));
            Places::in_sqlite().leased(row, term.token)
        })?;
        if let Some([due_at, tenant, id, n]) = last {
            hold.run(params![now, until, by, want.lane, priority, due_at, tenant, id, n])?;
        }
        left -= i32::try_from(more.len()).unwrap_or(left);
        rows.extend(more);
    }
    Ok(rows)
}

/// Returns the lanes that have free slots and are not closed. With `limited`, only rate-limited lanes are returned,
/// otherwise only lanes without a limit.
pub(in crate::store) fn open_lanes(
    connection: &Connection,
    wants: &[Want],
    now: Timestamp,
    limited: bool,
) -> Result<Vec<Want>, DbError> {
    let mut held = Prepared::on(connection, &HELD_SQLITE)?;
    let mut open = Vec::with_capacity(wants.len());
    for want in wants.iter().filter(|want| want.quota > 0) {
        if held.first((want.lane, now.as_micros(), limited), |_| Ok(()))?.is_none() {
            open.push(*want);
        }
    }
    Ok(open)
}

fn each_lease(connection: &Connection, leases: &[Lease], sql: &str) -> Result<Vec<Row>, DbError> {
    let mut rows = Vec::with_capacity(leases.len());
    for Lease { key, token } in leases {
        rows.extend(sqlite::query(
            connection,
            sql,
            &[key.tenant.into(), key.notification.into(), key.n.into(), (*token).into()],
        )?);
    }
    Ok(rows)
}

/// Turns leases into one array per column for `unnest`, sorted by key so that two batches cannot deadlock.
fn columns(leases: &[Lease]) -> (Vec<i32>, Vec<Uuid>, Vec<i32>, Vec<Uuid>) {
    let mut sorted = leases.to_vec();
    sorted.sort_by_key(|lease| lease.key);
    let (mut tenants, mut ids, mut ns, mut tokens) = (vec![], vec![], vec![], vec![]);
    for Lease { key, token } in sorted {
        tenants.push(key.tenant);
        ids.push(key.notification);
        ns.push(key.n);
        tokens.push(token);
    }
    (tenants, ids, ns, tokens)
}

pub(in crate::store) fn key(row: &mut impl Cells) -> Result<DeliveryKey, DbError> {
    Ok(DeliveryKey { tenant: row.take(0)?, notification: row.take(1)?, n: row.take(2)? })
}

fn claim(rows: Vec<tokio_postgres::Row>, token: Uuid) -> Result<Claim, DbError> {
    let places = Places::in_postgres(&rows)?;
    Ok(found(rows.into_iter().map(|mut row| places.leased(&mut row, token))))
}

pub(in crate::store) fn found(rows: impl IntoIterator<Item = Leased>) -> Claim {
    let rows = readable(rows);
    let providers = rows.first().map_or(0, |(_, providers)| *providers);
    let mut deliveries: Vec<Delivery> = rows.into_iter().map(|(delivery, _)| delivery).collect();
    deliveries.sort_unstable_by_key(|d| d.key);
    Claim { deliveries, providers, ..Claim::default() }
}

/// Reads the notifications that the claim returned next to their queue rows.
fn notes_along(rows: &[tokio_postgres::Row]) -> Result<Vec<StoredNotification>, DbError> {
    let (places, tenant) = (places::<StoredNotification>(rows, NOTE)?, place(rows, &format!("{NOTE}tenant"))?);
    let is_read =
        |row: &&tokio_postgres::Row| row.try_get::<_, Option<i32>>(tenant).is_ok_and(|tenant| tenant.is_some());
    Ok(readable(rows.iter().filter(is_read).map(|row| StoredNotification::read(&mut &*row, &places))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::Value;

    /// The deliveries to all members of a large list have the same due time.
    #[tokio::test]
    async fn a_claim_on_sqlite_does_not_read_every_row_with_the_same_due_time() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&format!("sqlite:{}", folder.path().join("app.db").display())).await.unwrap();
        store.db().migrate().await.unwrap();
        let parameters = vec![Value::Int(0); 9];
        let rows = store.db().query(&format!("EXPLAIN QUERY PLAN {}", *LEASE_SQLITE), parameters).await.unwrap();
        let plan: Vec<String> = rows.iter().map(|row| row.get(3).unwrap()).collect();
        assert!(
            plan[0].contains("(lane=? AND priority=? AND (due_at,tenant,notification_id,n)<(?,?,?,?))"),
            "{plan:?}"
        );
    }
}
