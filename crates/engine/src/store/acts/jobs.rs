//! Jobs: operators' actions on many deliveries, selected by a filter and run in the background.
//!
//! A job runs in slices. A slice is one transaction that changes deliveries and advances the job's position, and it
//! takes effect only under the job's lease. So each delivery is changed once, even if a worker dies. The deliveries are
//! fixed when the job is created: parked deliveries must have been parked before that time, and waiting deliveries must
//! have been enqueued before it.

use std::time::Duration;

use postcommit::Timestamp;
use postcommit_channel::model::{Actor, DeliveryKey};
use serde::Serialize;
use sha2::{Digest, Sha256};
use uuid::{Builder, Uuid};

use crate::db::{Db, DbError, Row, Value, postgres, sqlite};
use crate::store::acts::deliveries::{Allowed, act_postgres, act_sqlite};
use crate::store::acts::job_draft::{bounded, list_of};
use crate::store::lists::keyset::{Page, Position, SqlParameters};
use crate::store::unreadable::{Reader, legible};
use crate::store::{Act, AuditEntry, DeliveryFilter, JobDraft, Store, masked};

/// How many deliveries a slice has at most, so that its transaction is short.
pub const SLICE: i64 = 500;
/// The default pace of a job, in deliveries per second.
pub const PACE: i32 = 500;
/// The highest pace, in deliveries per second.
pub const PACE_MOST: i32 = 10_000;
/// How long a process leases a job for one slice. After that another process may take the job.
const LEASE: Duration = Duration::from_secs(60);
/// The job fails after this many failed slices in a row. After each failure it pauses for [`AFTER_FAILURE`].
const FAILURES: i32 = 10;
const AFTER_FAILURE: Duration = Duration::from_secs(5);
/// A time that is longer than one tick of the database's clock, on both databases.
const TICK: Duration = Duration::from_millis(2);

/// A job: an operator's action on many deliveries.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Job {
    /// The tenant. `None` is all tenants.
    #[serde(skip)]
    pub tenant: Option<i32>,
    /// The name of the tenant. `null` is all tenants.
    #[serde(rename = "tenant")]
    pub tenant_name: Option<String>,
    /// The id of the job, a UUIDv7.
    pub id: Uuid,
    /// The action on each delivery.
    pub kind: Act,
    /// The filter that selects the deliveries. An address in it is masked.
    pub filter: DeliveryFilter,
    /// The actor that created the job.
    pub asked_by: String,
    /// When the job was created, or when its deliveries were counted for the person who then confirmed it. Deliveries
    /// that were parked or enqueued later are not affected.
    pub asked_at: Timestamp,
    /// How many deliveries matched when the job was created.
    pub total: i64,
    /// How many more deliveries matched when the job was created, but may have arrived. The retry leaves them out.
    pub left_out: i64,
    /// Whether `total` and `left_out` are exact. If `false`, they are lower bounds.
    pub is_exact: bool,
    /// Deliveries on which the action was done.
    pub done: i64,
    /// Deliveries that another action changed before the job reached them. When the job is done, `done` and `skipped`
    /// add up to `total`.
    pub skipped: i64,
    /// The pace, in deliveries per second.
    pub pace_per_s: i32,
    /// `queued`, `running`, `done`, `cancelled` or `failed`.
    pub state: String,
    /// The error of the last failed slice.
    pub last_error: Option<String>,
    /// When the job ended.
    pub finished_at: Option<Timestamp>,
}

/// The result of [`Store::run_job_slice`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SliceOutcome {
    /// No job has a slice that is due.
    Nothing,
    /// One slice was run.
    Moved {
        job: Uuid,
        /// How many deliveries the action changed.
        rows: usize,
        /// Whether this was the last slice.
        is_last: bool,
    },
    /// The job was taken over by another process or cancelled. Nothing was changed.
    Lost,
}

/// A job that this process has leased.
struct TakenJob {
    job: Job,
    filter: DeliveryFilter,
    place: Option<Position>,
    token: Uuid,
}

impl TakenJob {
    fn allowed(&self) -> Allowed {
        Allowed {
            bound: Some(self.job.asked_at),
            unclear: self.filter.unclear != Some(false),
            retrying: self.job.kind.brings_forward(&self.filter.states),
        }
    }
}

/// How many due jobs are examined to find a job whose key is readable.
const LOOKED_AT: i64 = 20;
const COLUMNS: &str = "tenant, id, kind, filter, asked_by, asked_at, total, is_exact, done, skipped, pace_per_s, state, last_error, finished_at,
     position, (SELECT t.name FROM postcommit.tenant t WHERE t.id = tenant), left_out";

/// Returns the id of a job: a UUIDv7 of the time at which the deliveries were counted, and a hash of the job's tenant,
/// time and `parts` (action, actor, filter). So the same request always gets the same id.
fn id_of(tenant: Option<i32>, asked_at: Timestamp, parts: &[&str]) -> Uuid {
    let mut hash = Sha256::new();
    hash.update(format!("{tenant:?} {} ", asked_at.as_micros()));
    for part in parts {
        hash.update(format!("{} {part} ", part.len()));
    }
    let mut bytes = [0; 10];
    bytes.copy_from_slice(&hash.finalize()[..10]);
    Builder::from_unix_timestamp_millis(u64::try_from(asked_at.as_micros() / 1000).unwrap_or(0), &bytes).into_uuid()
}

impl Store {
    /// Creates a job. The deliveries that the job may change are fixed when it is created.
    pub async fn create_job(&self, tenant: Option<i32>, draft: &JobDraft) -> Result<Job, DbError> {
        // Deliveries that were parked or enqueued before this call must be within the bound, even if that was in the
        // same clock tick. The sleep moves the bound to a later tick.
        tokio::time::sleep(TICK).await;
        self.create_job_as_of(tenant, draft, self.now().await?).await
    }

    /// Creates a job for the deliveries that matched at an earlier time, when a person was shown their number
    /// ([`Store::count_for_job_as_of`]). Deliveries that were parked or enqueued after `as_of` are not changed. A time
    /// in the future counts as now. A repeated call with the same actor, time, action and filter returns the job that
    /// already exists.
    pub async fn create_job_as_of(
        &self,
        tenant: Option<i32>,
        draft: &JobDraft,
        as_of: Timestamp,
    ) -> Result<Job, DbError> {
        let pace = draft.pace_per_s.unwrap_or(PACE);
        if !(1..=PACE_MOST).contains(&pace) {
            return Err(DbError::Refused {
                code: "pace_per_s".into(),
                message: format!("pace_per_s: is {pace}; 1 to {PACE_MOST} are allowed"),
            });
        }
        let now = self.now().await?;
        let asked_at = as_of.min(now);
        let counted = self.count_for_job_as_of(tenant, draft, asked_at).await?;
        // The states are omitted where the action alone determines them.
        let states = if draft.brings_forward() { draft.filter.states.clone() } else { vec![] };
        let filter = DeliveryFilter { tenant, states, ..draft.wanted() };
        let as_json =
            |filter: &DeliveryFilter| serde_json::to_value(filter).map_err(|e| DbError::Unreadable(e.to_string()));
        let asked = as_json(&filter)?;
        let id = id_of(tenant, asked_at, &[draft.act.name(), &self.actor.name, &asked.to_string()]);
        let sql =
            "INSERT INTO postcommit.job (tenant, id, kind, filter, asked_by, asked_at, total, is_exact, pace_per_s,
              next_at, left_out)
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $6, $10)
            ON CONFLICT DO NOTHING";
        let parameters = vec![
            owner(tenant),
            id.into(),
            draft.act.name().into(),
            asked.into(),
            self.actor.name.as_str().into(),
            asked_at.into(),
            counted.total.into(),
            counted.is_exact.into(),
            pace.into(),
            counted.left_out.into(),
        ];
        // A job for all tenants is recorded in the audit log of tenant 1.
        let entry = AuditEntry::new(tenant.unwrap_or(1), "job.create", id.to_string()).count(counted.total);
        let told = as_json(&without_address(filter))?;
        self.change(sql, parameters, entry.details(serde_json::json!({"kind": draft.act.name(), "filter": told})))
            .await?;
        self.job(tenant, id).await?.ok_or_else(|| {
            DbError::Unreadable(format!("job {id} was created, but cannot be found; report it as a bug"))
        })
    }

    /// Reads one job. With a tenant, it returns the job only if that tenant owns it.
    pub async fn job(&self, tenant: Option<i32>, id: Uuid) -> Result<Option<Job>, DbError> {
        let mut parameters = SqlParameters::default();
        let which = format!("id = {}{}", parameters.add(id), of_tenant(tenant, &mut parameters));
        let rows = self.db.query(&format!("SELECT {COLUMNS} FROM postcommit.job WHERE {which}"), parameters.0).await?;
        rows.first().map(shown).transpose()
    }

    /// Reads the jobs of one tenant or of all, newest first. `before` is the last id of the previous page.
    pub async fn jobs(&self, tenant: Option<i32>, before: Option<Uuid>, limit: i64) -> Result<Vec<Job>, DbError> {
        let mut parameters = SqlParameters::default();
        let which =
            format!("id < {}{}", parameters.add(before.unwrap_or(Uuid::max())), of_tenant(tenant, &mut parameters));
        let limit = parameters.add(limit);
        let sql = format!("SELECT {COLUMNS} FROM postcommit.job WHERE {which} ORDER BY id DESC LIMIT {limit}");
        Ok(legible("jobs", self.db.query(&sql, parameters.0).await?.iter().map(shown)))
    }

    /// Cancels a job between two slices. Deliveries that it has changed stay changed. Returns false if the job has
    /// ended or belongs to another tenant.
    pub async fn cancel_job(&self, tenant: Option<i32>, id: Uuid) -> Result<bool, DbError> {
        let mut parameters = SqlParameters::default();
        let which = format!("id = {}{}", parameters.add(id), of_tenant(tenant, &mut parameters));
        let sql = format!(
            "UPDATE postcommit.job
             SET state = 'cancelled', finished_at = {{now}}, lease_token = NULL, lease_until = NULL
             WHERE {which} AND state IN ('queued', 'running')"
        );
        let Some(job) = self.job(tenant, id).await? else { return Ok(false) };
        self.change(&sql, parameters.0, AuditEntry::new(job.tenant.unwrap_or(1), "job.cancel", id.to_string())).await
    }

    /// Runs one slice of a due job. If the database refuses a statement or a value is unreadable, the error is recorded
    /// in the job and the slice is tried again, up to 10 times in a row.
    pub async fn run_job_slice(&self) -> Result<SliceOutcome, DbError> {
        let Some(taken) = self.take_job().await? else { return Ok(SliceOutcome::Nothing) };
        match self.slice(&taken).await {
            Err(problem @ (DbError::Refused { .. } | DbError::Unreadable(_))) => {
                self.note_failure(&taken, &problem).await?;
                Err(problem)
            }
            // After a connection failure the lease runs out and another process continues the job.
            sliced => sliced,
        }
    }

    /// Returns the time until the next slice of any job is due, or `None` if there is no unfinished job.
    pub async fn next_slice_in(&self) -> Result<Option<Duration>, DbError> {
        // A leased job is not due until its lease ends.
        let sql = "SELECT {now}, min(CASE WHEN lease_until > next_at THEN lease_until ELSE next_at END)
            FROM postcommit.job
            WHERE state IN ('queued', 'running')";
        let rows = self.db.query(sql, vec![]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let (now, next): (Timestamp, Option<Timestamp>) = (row.get(0)?, row.get(1).unwrap_or_default());
        Ok(next.map(|next| next.since(now)))
    }

    async fn take_job(&self) -> Result<Option<TakenJob>, DbError> {
        // The jobs are read before any write, because nearly always no job is due.
        let due =
            "state IN ('queued', 'running') AND next_at <= {now} AND (lease_until IS NULL OR lease_until < {now})";
        let sql = format!("SELECT tenant, id FROM postcommit.job WHERE {due} ORDER BY next_at LIMIT {LOOKED_AT}");
        let rows = self.db.query(&sql, vec![]).await?;
        // A job with an unreadable key is skipped, so that it does not block the others.
        let key = |row: &Row| Some((row.get::<i32>(0).ok()?, row.get::<Uuid>(1).ok()?));
        let Some((tenant, id)) = rows.iter().find_map(key) else { return Ok(None) };
        let token = Uuid::new_v4();
        let until = self.later(LEASE).await?;
        let sql = format!(
            "UPDATE postcommit.job
             SET state = 'running', lease_token = $3, lease_until = $4
             WHERE tenant = $1 AND id = $2 AND {due}"
        );
        if self.db.execute_one(&sql, vec![tenant.into(), id.into(), token.into(), until.into()]).await? == 0 {
            return Ok(None);
        }
        // The job is read again under the lease, because another process may have run a slice in between.
        let sql = format!("SELECT {COLUMNS} FROM postcommit.job WHERE tenant = $1 AND id = $2 AND lease_token = $3");
        let rows = self.db.query(&sql, vec![tenant.into(), id.into(), token.into()]).await?;
        let read = rows.first().map(|row| taken(row, token)).transpose();
        if let Err(problem @ DbError::Unreadable(_)) = &read {
            // The job fails immediately, because a second try could not read it either.
            let sql = "UPDATE postcommit.job
                 SET state = 'failed', last_error = $4, finished_at = {now}, lease_token = NULL, lease_until = NULL
                 WHERE tenant = $1 AND id = $2 AND lease_token = $3";
            self.db.execute_one(sql, vec![tenant.into(), id.into(), token.into(), problem.to_string().into()]).await?;
        }
        read
    }

    async fn later(&self, by: Duration) -> Result<Timestamp, DbError> {
        Ok(self.now().await?.plus(by))
    }

    async fn slice(&self, taken: &TakenJob) -> Result<SliceOutcome, DbError> {
        let page = self.slice_of(taken).await?;
        let now = self.now().await?;
        // The pace counts the rows examined. A slice has at most as many rows as the pace allows in one second.
        let pause = Duration::from_secs_f64(page.rows.len() as f64 / f64::from(taken.job.pace_per_s));
        let next_at = now.plus(if page.more.is_some() { pause } else { Duration::ZERO });
        let moved = match &self.db {
            Db::Postgres(_) => self.slice_postgres(taken, &page, next_at).await?,
            Db::Sqlite(db) => {
                let (act, which, keys, fence) =
                    (taken.job.kind, taken.allowed(), page.rows.clone(), Fence::of(taken, &page, next_at));
                let this = self.for_job(taken);
                db.write(move |connection| {
                    if fence.hold_sqlite(connection)? == 0 {
                        return Ok(None);
                    }
                    let done = act_sqlite(connection, act, &keys, which)?;
                    let (sql, parameters) = this.audit_each(which.action(act), &done);
                    sqlite::run(connection, &sqlite::dialect(&sql), &parameters)?;
                    let done = done.len();
                    sqlite::run(connection, &sqlite::dialect(STEP), &fence.step(keys.len(), done))?;
                    Ok(Some(done))
                })
                .await?
            }
        };
        Ok(moved.map_or(SliceOutcome::Lost, |rows| SliceOutcome::Moved {
            job: taken.job.id,
            rows,
            is_last: page.more.is_none(),
        }))
    }

    async fn slice_postgres(
        &self,
        taken: &TakenJob,
        page: &Page<DeliveryKey>,
        next_at: Timestamp,
    ) -> Result<Option<usize>, DbError> {
        let Db::Postgres(db) = &self.db else { return Ok(None) };
        let fence = Fence::of(taken, page, next_at);
        let mut client = db.client().await?;
        let transaction = client.transaction().await.map_err(postgres::refused)?;
        // The job's row is locked first. A concurrent cancel then waits for this slice, or this slice finds the job
        // cancelled.
        let hold = transaction.prepare_cached(&format!("{HOLD} FOR UPDATE")).await.map_err(postgres::refused)?;
        if transaction.query(&hold, &borrow(&fence.own())).await.map_err(postgres::refused)?.is_empty() {
            return Ok(None);
        }
        let done = act_postgres(&transaction, taken.job.kind, &page.rows, taken.allowed()).await?;
        postgres::run(&transaction, &self.for_job(taken).audit_each(taken.allowed().action(taken.job.kind), &done))
            .await?;
        let done = done.len();
        let step = transaction.prepare_cached(STEP).await.map_err(postgres::refused)?;
        transaction.execute(&step, &borrow(&fence.step(page.rows.len(), done))).await.map_err(postgres::refused)?;
        transaction.commit().await.map_err(postgres::refused)?;
        Ok(Some(done))
    }

    /// Returns a store handle that acts in the name of the job's creator.
    fn for_job(&self, taken: &TakenJob) -> Self {
        self.by(Actor::new(&taken.job.asked_by).by_request(format!("job:{}", taken.job.id)))
    }

    /// Reads the keys of the next slice, and the position where the slice after it begins.
    async fn slice_of(&self, taken: &TakenJob) -> Result<Page<DeliveryKey>, DbError> {
        let filter = bounded(taken.job.kind, &taken.filter, taken.job.asked_at);
        let list = list_of(taken.job.kind, &filter, taken.job.asked_at, self.dialect());
        let from = taken.place.map_or(list.start(), |place| place.further(list.start()));
        self.list_keys(&list, from, SLICE.min(i64::from(taken.job.pace_per_s))).await
    }

    async fn note_failure(&self, taken: &TakenJob, problem: &DbError) -> Result<(), DbError> {
        let next_at = self.later(AFTER_FAILURE).await?;
        let sql = "UPDATE postcommit.job
             SET last_error = $4, failures = failures + 1, lease_token = NULL, lease_until = NULL, next_at = $5,
               state = CASE WHEN failures + 1 >= $6 THEN 'failed' ELSE state END,
               finished_at = CASE WHEN failures + 1 >= $6 THEN {now} END
             WHERE tenant = $1 AND id = $2 AND lease_token = $3 AND state = 'running'";
        let mut parameters = Fence::key(taken);
        parameters.extend([problem.to_string().into(), next_at.into(), FAILURES.into()]);
        self.db.execute_one(sql, parameters).await.map(drop)
    }
}

/// Finds the job only if this process still holds its lease and the job is not cancelled.
const HOLD: &str = "SELECT 1
    FROM postcommit.job
    WHERE tenant = $1 AND id = $2 AND lease_token = $3 AND state = 'running'";
const STEP: &str = "UPDATE postcommit.job
     SET position = $4, done = done + $5, skipped = skipped + $6, total = $10, next_at = $7, state = $8,
       finished_at = $9, failures = 0, lease_token = NULL, lease_until = NULL
     WHERE tenant = $1 AND id = $2 AND lease_token = $3";

/// The values that the end of a slice writes to the job, if this process still holds the lease.
struct Fence {
    key: Vec<Value>,
    place: Option<Position>,
    next_at: Timestamp,
    /// The job's total when it was leased. `accounted` is its number of done and skipped deliveries at that time.
    total: i64,
    accounted: i64,
}

impl Fence {
    fn of(taken: &TakenJob, page: &Page<DeliveryKey>, next_at: Timestamp) -> Self {
        let accounted = taken.job.done + taken.job.skipped;
        Self { key: Self::key(taken), place: page.more, next_at, total: taken.job.total, accounted }
    }

    fn key(taken: &TakenJob) -> Vec<Value> {
        vec![owner(taken.job.tenant), taken.job.id.into(), taken.token.into()]
    }

    fn own(&self) -> Vec<Value> {
        self.key.clone()
    }

    fn hold_sqlite(&self, connection: &rusqlite::Connection) -> Result<usize, DbError> {
        Ok(sqlite::query(connection, &sqlite::dialect(HOLD), &self.key)?.len())
    }

    fn step(&self, looked_at: usize, done: usize) -> Vec<Value> {
        let count = |rows: usize| i64::try_from(rows).unwrap_or(i64::MAX);
        let ended = self.place.is_none();
        let (looked_at, done) = (count(looked_at), count(done));
        // Deliveries that were counted at the start and found by no slice were changed by other actions. They count as
        // skipped.
        let gone = if ended { (self.total - self.accounted - looked_at).max(0) } else { 0 };
        let skipped = looked_at - done + gone;
        let mut values = self.key.clone();
        values.extend([
            self.place.map(|place| place.to_string()).into(),
            done.into(),
            skipped.into(),
            self.next_at.into(),
            if ended { "done" } else { "running" }.into(),
            ended.then_some(self.next_at).into(),
            // The total grows if more deliveries were found than counted. The count may be a lower bound, or may have
            // missed deliveries that were being parked at that time.
            self.total.max(self.accounted + done + skipped).into(),
        ]);
        values
    }
}

/// Returns the tenant as it is stored with a job. 0 means all tenants.
fn owner(tenant: Option<i32>) -> Value {
    tenant.unwrap_or(0).into()
}

fn of_tenant(tenant: Option<i32>, parameters: &mut SqlParameters) -> String {
    tenant.map(|tenant| format!(" AND tenant = {}", parameters.add(tenant))).unwrap_or_default()
}

fn borrow(values: &[Value]) -> Vec<&(dyn tokio_postgres::types::ToSql + Sync)> {
    values.iter().map(|value| value as _).collect()
}

fn filter_of(row: &Row, tenant: Option<i32>) -> Result<DeliveryFilter, DbError> {
    let filter = serde_json::from_value(row.get(3)?)
        .map_err(|e| DbError::Unreadable(format!("the filter of a job cannot be read: {e}")))?;
    Ok(DeliveryFilter { tenant, ..filter })
}

/// Masks the address in a filter for display and logs.
fn without_address(filter: DeliveryFilter) -> DeliveryFilter {
    DeliveryFilter { recipient: filter.recipient.map(|recipient| masked(&recipient)), ..filter }
}

/// Reads a job for display, and replaces unreadable columns with defaults. A worker uses [`taken`] instead, which
/// refuses unreadable columns.
fn shown(row: &Row) -> Result<Job, DbError> {
    let (mut read, never) = (Reader::of(row), Timestamp::from_micros(0));
    let tenant = Some(row.get::<i32>(0)?).filter(|tenant| *tenant != 0);
    let filter = filter_of(row, tenant);
    let kind = row.get::<String>(2)?;
    let mut job = Job {
        tenant,
        tenant_name: row.get(15)?,
        id: row.get(1)?,
        kind: serde_json::from_value(kind.into())
            .map_err(|e| DbError::Unreadable(format!("the kind of a job cannot be read: {e}")))?,
        filter: without_address(filter.as_ref().cloned().unwrap_or_default()),
        asked_by: row.get(4)?,
        asked_at: read.or(5, "asked_at", never),
        total: read.or(6, "total", 0),
        left_out: read.or(16, "left_out", 0),
        is_exact: read.or(7, "is_exact", false),
        done: read.or(8, "done", 0),
        skipped: read.or(9, "skipped", 0),
        pace_per_s: read.or(10, "pace_per_s", 1),
        state: row.get(11)?,
        last_error: row.get(12)?,
        finished_at: read.or(13, "finished_at", None),
    };
    job.last_error = filter.err().map(|problem| problem.to_string()).or_else(|| read.problem()).or(job.last_error);
    Ok(job)
}

fn taken(row: &Row, token: Uuid) -> Result<TakenJob, DbError> {
    let job = shown(row)?;
    let filter = filter_of(row, job.tenant)?;
    // These columns limit what the job changes, so they must be readable.
    let (_, _): (Timestamp, i32) = (row.get(5)?, row.get(10)?);
    let place: Option<String> = row.get(14)?;
    let place = place.map(|place| place.parse()).transpose().map_err(DbError::Unreadable)?;
    Ok(TakenJob { filter, place, token, job })
}
