//! Claims from rate-limited lanes. The claim takes one permit for each claimed row, in the same statement or
//! transaction and by the database's clock. So all processes together keep to the limit, and no process reserves
//! permits in advance.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use postcommit::Timestamp;
use postcommit_channel::model::{Bucket, Rate};
use rusqlite::{Connection, params};
use uuid::Uuid;

use crate::crash_point;
use crate::db::columns::find;
use crate::db::sqlite::{Id, Prepared};
use crate::db::{Cells, Db, DbError, Value, postgres, sqlite};
use crate::store::queue::claim::{
    IS_DUE, OF_IT, PICK, SET_LEASE_SQLITE, Term, claim_lane_sqlite, found, is_due, lease, open_lanes,
};
use crate::store::queue::closed::closed_postgres;
use crate::store::queue::row::{Leased, Places, claimed_sqlite};
use crate::store::{Claim, Store, Want};

/// The state of one rate-limited lane in a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metered {
    pub lane: i32,
    /// How many rows the claim could take: the free slots, or the permits if there were fewer.
    pub quota: i32,
    /// When the permits were taken, by the database's clock.
    pub taken_at: Timestamp,
    /// How long to wait until the next claim can succeed. Zero while permits are left.
    pub wait: Duration,
}

/// The result of a claim from rate-limited lanes.
#[derive(Debug, Clone, Default)]
pub struct LimitedClaim {
    /// The claimed deliveries.
    pub claim: Claim,
    /// The rate-limited lanes with due rows. A lane is left out while another process is claiming from it.
    pub lanes: Vec<Metered>,
}

impl LimitedClaim {
    /// Returns the lanes that the claim examined, with the quota that it used. A lane without a permit was not
    /// examined, so nothing is known about where its due rows begin.
    fn looked_at(&self, wants: &[Want]) -> Vec<Want> {
        let quota_of = |want: &Want| {
            self.lanes.iter().find(|metered| metered.lane == want.lane).map_or(want.quota, |metered| metered.quota)
        };
        wants.iter().map(|want| Want { quota: quota_of(want), ..*want }).filter(|want| want.quota > 0).collect()
    }
}

/// Locks the buckets of the lanes with due rows and computes the permits of each, like [`Rate::refill`] and
/// [`Rate::permits`]. A lane that another claim has locked is skipped, because waiting for it would delay the other
/// lanes.
const METER: &str = "locked AS MATERIALIZED (
      SELECT want.lane, want.quota, want.place, of_lane.rate_per_s AS per_s, of_lane.burst,
        greatest(r.used - of_lane.rate_per_s * greatest(extract(epoch FROM now() - r.as_of)::float8, 0), 0) AS used,
        CASE WHEN r.as_of > now() + interval '1 second' THEN now() ELSE greatest(r.as_of, now()) END AS as_of
      FROM {wanted} JOIN postcommit.provider of_lane ON of_lane.id = want.lane JOIN postcommit.lane_rate r ON r.lane = want.lane
      WHERE of_lane.rate_per_s IS NOT NULL AND {closed} IS NOT TRUE AND EXISTS ({due})
      FOR UPDATE OF r SKIP LOCKED
    ), want AS MATERIALIZED (
      SELECT lane, place, per_s, burst, used, as_of, greatest(least(quota, floor(coalesce(burst, greatest(floor(per_s), 1)) - used)), 0)::int AS quota FROM locked
    )";
/// Takes one permit for each picked row, leases the rows, and reports every examined lane.
const SPEND_AND_LEASE: &str = "spent AS (
      UPDATE postcommit.lane_rate r SET used = want.used + (SELECT count(*) FROM picked WHERE picked.lane = want.lane), as_of = want.as_of FROM want WHERE r.lane = want.lane
    ), claimed AS ({lease})
    SELECT claimed.*, want.lane AS want_lane, want.quota, want.per_s, want.burst, want.used, want.as_of, now() AS now
    FROM want LEFT JOIN claimed ON claimed.lane = want.lane";

pub(in crate::store) static CLAIM_LIMITED_POSTGRES: LazyLock<String> = LazyLock::new(|| {
    let wanted = "unnest($1::int[], $2::int[]) WITH ORDINALITY AS want (lane, quota, place)";
    let due = format!(
        "SELECT FROM generate_series(9, 0, -1) AS p (priority) CROSS JOIN LATERAL (SELECT 1 FROM postcommit.delivery_queue q WHERE {IS_DUE} LIMIT 1) due"
    );
    format!(
        "WITH {}, picked AS MATERIALIZED ({}), {}",
        meter(wanted, &due),
        PICK.replace("{is_due}", IS_DUE),
        spend_and_lease()
    )
});
/// The claim of one notification's deliveries from rate-limited lanes. The rows are found by the notification's key.
pub(in crate::store) static CLAIM_LIMITED_NOTIFICATION_POSTGRES: LazyLock<String> = LazyLock::new(|| {
    let wanted = "unnest($6::int[], $7::int[]) WITH ORDINALITY AS want (lane, quota, place)";
    let picked = "picked AS MATERIALIZED (
      SELECT nth.ctid, nth.lane FROM (SELECT due.ctid, due.lane, row_number() OVER (PARTITION BY due.lane) AS nth FROM due) nth JOIN want ON want.lane = nth.lane AND nth.nth <= want.quota
    )";
    format!("{OF_IT}, {}, {picked}, {}", meter(wanted, "SELECT FROM due WHERE due.lane = want.lane"), spend_and_lease())
});

fn meter(wanted: &str, due: &str) -> String {
    METER.replace("{wanted}", wanted).replace("{due}", due).replace("{closed}", &closed_postgres("of_lane"))
}

fn spend_and_lease() -> String {
    SPEND_AND_LEASE.replace("{lease}", &lease())
}

const BUCKET_SQLITE: &str = "SELECT p.rate_per_s, p.burst, r.used, r.as_of FROM postcommit_provider p JOIN postcommit_lane_rate r ON r.lane = p.id WHERE p.id = ?1";
/// Returns unused permits to a lane's bucket. SQLite has its own statement, because function names and time units
/// differ.
const GIVE_BACK_POSTGRES: &str = "UPDATE postcommit.lane_rate r
    SET used = greatest(r.used - greatest($2::float8 - p.rate_per_s * greatest(extract(epoch FROM r.as_of - $3::timestamptz)::float8, 0), 0), 0)
    FROM postcommit.provider p WHERE r.lane = $1 AND p.id = r.lane AND p.rate_per_s IS NOT NULL";
const GIVE_BACK_SQLITE: &str = "UPDATE postcommit_lane_rate AS r
    SET used = max(r.used - max(?2 - p.rate_per_s * max((r.as_of - ?3) / 1000000.0, 0), 0), 0)
    FROM postcommit_provider p WHERE r.lane = ?1 AND p.id = r.lane AND p.rate_per_s IS NOT NULL";
const SPEND_SQLITE: &str = "UPDATE postcommit_lane_rate SET used = ?2, as_of = ?3 WHERE lane = ?1";
static DUE_OF_IT_SQLITE: LazyLock<String> = LazyLock::new(|| {
    let due = "tenant = ?2 AND notification_id = ?3 AND lane = ?4 AND due_at <= ?5 AND (lease_until IS NULL OR lease_until < ?1)";
    format!("SELECT {} FROM postcommit_delivery_queue q WHERE {due} ORDER BY n LIMIT ?6", claimed_sqlite())
});
static LEASE_ONE_SQLITE: LazyLock<String> =
    LazyLock::new(|| format!("{SET_LEASE_SQLITE} WHERE tenant = ?4 AND notification_id = ?5 AND n = ?6"));

impl Store {
    /// Claims due rows of these lanes. From each lane it takes at most the quota, and no more than the rate permits
    /// now. Lanes without a rate limit are skipped.
    pub async fn claim_limited(
        &self,
        wants: &[Want],
        lease: Duration,
        due_before: Option<Timestamp>,
    ) -> Result<LimitedClaim, DbError> {
        crash_point!("claim.before");
        let token = Uuid::new_v4();
        let claimed = match &self.db {
            Db::Postgres(db) => {
                let client = db.hot().await?;
                let statement = client.prepare_cached(&CLAIM_LIMITED_POSTGRES).await.map_err(postgres::refused)?;
                let (lanes, quotas): (Vec<i32>, Vec<i32>) = wants.iter().map(|w| (w.lane, w.quota)).unzip();
                let look = self.marks().look(&lanes);
                let from: Vec<postgres::Time> = look.from.iter().copied().map(postgres::Time).collect();
                let rows = client
                    .query(
                        &statement,
                        &[&lanes, &quotas, &token, &lease.as_secs_f64(), &postgres::Time(due_before), &from],
                    )
                    .await
                    .map_err(postgres::refused)?;
                let claimed = metered(rows, token)?;
                self.marks().note(&look, &claimed.looked_at(wants), &claimed.claim.deliveries, false);
                claimed
            }
            Db::Sqlite(db) => {
                let (wants, wanted) = (wants.to_vec(), wants.to_vec());
                if !db.read(move |connection| is_due(connection, &wanted, due_before, true)).await? {
                    return Ok(LimitedClaim::default());
                }
                let written = db.write(move |connection| {
                    let now = sqlite::now(connection)?;
                    let latest = due_before.map_or(now, |before| before.min(now));
                    let term = Term { token, now, until: now.plus(lease), latest };
                    let claimed =
                        claim_sqlite(connection, &wants, &term, |want| claim_lane_sqlite(connection, want, &term))?;
                    crash_point!("claim.in_tx");
                    Ok(claimed)
                });
                written.await?
            }
        };
        crash_point!("claim.after_commit");
        Ok(claimed)
    }

    /// Claims the due deliveries of one notification with the rules of [`Store::claim_limited`]. Used by a pass that an
    /// operator starts for this notification.
    pub async fn claim_limited_notification(
        &self,
        (tenant, id): (i32, Uuid),
        wants: &[Want],
        lease: Duration,
        due_before: Timestamp,
    ) -> Result<LimitedClaim, DbError> {
        let token = Uuid::new_v4();
        match &self.db {
            Db::Postgres(db) => {
                let client = db.hot().await?;
                let statement =
                    client.prepare_cached(&CLAIM_LIMITED_NOTIFICATION_POSTGRES).await.map_err(postgres::refused)?;
                let (lanes, quotas): (Vec<i32>, Vec<i32>) = wants.iter().map(|w| (w.lane, w.quota)).unzip();
                let rows = client
                    .query(
                        &statement,
                        &[
                            &tenant,
                            &id,
                            &token,
                            &lease.as_secs_f64(),
                            &postgres::Time(Some(due_before)),
                            &lanes,
                            &quotas,
                        ],
                    )
                    .await
                    .map_err(postgres::refused)?;
                metered(rows, token)
            }
            Db::Sqlite(db) => {
                let wants = wants.to_vec();
                db.write(move |connection| {
                    let now = sqlite::now(connection)?;
                    let term = Term { token, now, until: now.plus(lease), latest: due_before };
                    claim_sqlite(connection, &wants, &term, |want| {
                        claim_of_it_sqlite(connection, (tenant, id), want, &term)
                    })
                })
                .await
            }
        }
    }

    /// Gives back the unused permits that were taken at `taken_at`, minus the permits that the bucket has refilled
    /// since then. Without this deduction more than one burst could be sent together, because the bucket may have been
    /// full.
    pub async fn give_back_permits(&self, lane: i32, permits: usize, taken_at: Timestamp) -> Result<(), DbError> {
        let sql = match &self.db {
            Db::Postgres(_) => GIVE_BACK_POSTGRES,
            Db::Sqlite(_) => GIVE_BACK_SQLITE,
        };
        self.db.execute_one(sql, vec![lane.into(), Value::Real(permits as f64), taken_at.into()]).await.map(drop)
    }
}

/// Reads the result of [`SPEND_AND_LEASE`], which has at least one row for each examined lane.
fn metered(rows: Vec<tokio_postgres::Row>, token: Uuid) -> Result<LimitedClaim, DbError> {
    let places = Places::in_postgres(&rows)?;
    let [claimed, lane, quota, per_s, burst, used, as_of, now] =
        find(&rows, ["tenant", "want_lane", "quota", "per_s", "burst", "used", "as_of", "now"])?;
    let (mut lanes, mut deliveries): (BTreeMap<i32, (i32, Meter)>, Vec<Leased>) = (BTreeMap::new(), vec![]);
    for mut row in rows {
        let rate = Rate::new(row.take(per_s)?, row.take(burst)?);
        let bucket = Bucket { used: row.take(used)?, as_of: row.take(as_of)? };
        let meter = Meter { rate, bucket, now: row.take(now)? };
        let meter = &mut lanes.entry(row.take(lane)?).or_insert((row.take(quota)?, meter)).1;
        if row.take::<Option<i32>>(claimed)?.is_some() {
            meter.bucket.used += 1.0;
            deliveries.push(places.leased(&mut row, token));
        }
    }
    let lanes = lanes.into_iter().map(|(lane, (quota, meter))| meter.told(lane, quota)).collect();
    Ok(LimitedClaim { claim: found(deliveries), lanes })
}

/// A lane's rate limit, and how much of it is used now.
struct Meter {
    rate: Rate,
    bucket: Bucket,
    now: Timestamp,
}

impl Meter {
    fn told(&self, lane: i32, quota: i32) -> Metered {
        Metered { lane, quota, taken_at: self.bucket.as_of, wait: self.rate.wait(self.bucket, self.now) }
    }
}

/// Claims from rate-limited lanes on SQLite. The write transaction serves as the lock on the buckets.
fn claim_sqlite(
    connection: &Connection,
    wants: &[Want],
    term: &Term,
    claim: impl Fn(Want) -> Result<Vec<Leased>, DbError>,
) -> Result<LimitedClaim, DbError> {
    let (mut lanes, mut rows) = (vec![], vec![]);
    for want in open_lanes(connection, wants, term.now, true)? {
        let Some(mut meter) = meter_sqlite(connection, want.lane, term.now)? else { continue };
        let quota = meter.rate.permits(meter.bucket, want.quota);
        let more = claim(Want { quota, ..want })?;
        meter.bucket.used += more.len() as f64;
        Prepared::on(connection, SPEND_SQLITE)?.run(params![
            want.lane,
            meter.bucket.used,
            meter.bucket.as_of.as_micros()
        ])?;
        lanes.push(meter.told(want.lane, quota));
        rows.extend(more);
    }
    Ok(LimitedClaim { claim: found(rows), lanes })
}

fn meter_sqlite(connection: &Connection, lane: i32, now: Timestamp) -> Result<Option<Meter>, DbError> {
    let read = Prepared::on(connection, BUCKET_SQLITE)?.first((lane,), |row| {
        let rate = Rate::new(row.take(0)?, row.take(1)?);
        Ok((rate, Bucket { used: row.take(2)?, as_of: row.take(3)? }))
    })?;
    Ok(read.map(|(rate, bucket)| Meter { rate, bucket: rate.refill(bucket, now), now }))
}

fn claim_of_it_sqlite(
    connection: &Connection,
    (tenant, id): (i32, Uuid),
    want: Want,
    term: &Term,
) -> Result<Vec<Leased>, DbError> {
    let (now, id, by) = (term.now.as_micros(), Id::from(id), Id::from(term.token));
    let parameters = params![now, tenant, id, want.lane, term.latest.as_micros(), want.quota];
    let rows = Prepared::on(connection, &DUE_OF_IT_SQLITE)?
        .rows(parameters, |row| Places::in_sqlite().leased(row, term.token))?;
    let mut hold = Prepared::on(connection, &LEASE_ONE_SQLITE)?;
    for (delivery, _) in rows.iter().flatten() {
        hold.run(params![now, term.until.as_micros(), by, tenant, id, delivery.row])?;
    }
    Ok(rows)
}
