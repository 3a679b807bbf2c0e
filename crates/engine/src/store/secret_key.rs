//! The fingerprint of the key that encrypts providers' secrets, and the lanes that processes cannot serve: they cannot
//! decrypt the secrets, or cannot set up the driver.

use std::collections::BTreeMap;
use std::time::Duration;

use postcommit::Timestamp;
use postcommit_channel::secret::Fingerprint;
use serde::Serialize;
use uuid::Uuid;

use crate::db::{DbError, Row, Statement, Value};
use crate::store::duties::{EARLIER_PASS, PASS, PRESENT, WORKER};
use crate::store::numbers::kpis::before;
use crate::store::providers::turn;
use crate::store::{AuditEntry, Store};

/// How long a pass's report of lanes that it cannot serve counts. Cron usually starts a pass every minute, so two
/// passes within this time mean cron, and a single pass means a pass by hand.
const PASS_COUNTS: Duration = Duration::from_secs(600);

/// The encrypted secrets of a provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sealed {
    /// The id of the provider.
    pub id: i32,
    /// The tenant of the provider.
    pub tenant: i32,
    /// The name of the provider.
    pub provider: String,
    /// The encrypted secrets.
    pub secrets: Vec<u8>,
}

/// The key that encrypted the secrets of a provider that is to be written. The key was checked earlier, outside the
/// transaction.
#[derive(Debug, Clone)]
pub struct SealedWith {
    /// The fingerprint of the key.
    pub fingerprint: Fingerprint,
    /// The fingerprint that the database had when the key was checked. If the database has another fingerprint now,
    /// nothing is written.
    pub known: Option<Fingerprint>,
    /// Whether the key may be used although encrypted secrets exist already. If not, the write also checks that no
    /// encrypted secrets exist.
    pub may_follow: bool,
}

impl SealedWith {
    fn is_known(&self) -> bool {
        self.known.as_ref() == Some(&self.fingerprint)
    }

    /// Returns the parameters of [`key_allowed`].
    pub(in crate::store) fn parameters(&self) -> [Value; 2] {
        [self.known.as_ref().map(|known| known.0.clone()).into(), self.may_follow.into()]
    }
}

/// Returns the condition for writing encrypted secrets: the installation's key has not changed since this key was
/// checked. So two processes that start with different keys cannot both succeed. `$first` and the next parameter are
/// [`SealedWith::parameters`].
pub(in crate::store) fn key_allowed(first: usize) -> String {
    format!(
        "(SELECT k.fingerprint FROM postcommit.secret_key k) IS NOT DISTINCT FROM ${first}
         AND (${} OR NOT EXISTS (SELECT 1 FROM postcommit.provider s WHERE s.secrets IS NOT NULL))",
        first + 1
    )
}

/// What a process lacks to serve a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Lacking {
    /// The process cannot decrypt the provider's secrets.
    Secrets,
    /// The process cannot set up the provider's driver: it does not know the recipe, or a newer version of this program
    /// wrote the settings.
    Driver,
}

impl Lacking {
    fn name(self) -> &'static str {
        match self {
            Self::Secrets => "secrets",
            Self::Driver => "driver",
        }
    }
}

/// A provider that a process cannot serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unopened {
    /// The tenant of the provider.
    pub tenant: i32,
    /// The lane of the provider.
    pub lane: i32,
    /// What the process lacks.
    pub lacking: Lacking,
    /// The reason, without a path or a secret, because it is shown to tenants.
    pub reason: String,
}

/// The reason why a lane is closed: no delivering process can serve it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnopenedLane {
    /// What the processes lack.
    pub lacking: Lacking,
    /// The reason, without a path, a host or a secret, because it is shown to tenants.
    pub reason: String,
    /// The host of the pass that reported the reason, for operators. `None` if running workers reported it.
    pub pass_on: Option<String>,
}

impl UnopenedLane {
    /// Returns the cause as a part of a sentence about the provider.
    #[must_use]
    pub fn cause(&self) -> String {
        match self.lacking {
            Lacking::Secrets => format!("its secrets cannot be decrypted: {}", self.reason),
            Lacking::Driver => format!("no running process can set up its driver: {}", self.reason),
        }
    }

    /// Reads what [`unopened_lanes`] gives as `told`: the problem, a space, and the reason.
    pub(in crate::store) fn read(told: &str) -> Self {
        let (problem, reason) = told.split_once(' ').unwrap_or(("", told));
        let lacking = if problem == Lacking::Driver.name() { Lacking::Driver } else { Lacking::Secrets };
        Self { lacking, reason: reason.to_owned(), pass_on: None }
    }
}

/// The process that cannot serve a lane.
#[derive(Debug, Clone, Copy)]
pub enum Opener {
    /// A running worker.
    Worker(Uuid),
    /// A pass, which delivers once and ends.
    Pass,
}

impl Opener {
    /// Returns the name under which the process reports lanes that it cannot serve. A worker has the name of its
    /// row in the duty table. The name of a pass contains the host.
    fn name(self) -> String {
        match self {
            Self::Worker(worker) => format!("{WORKER}{worker}"),
            Self::Pass => format!("{NOTED_BY_PASS}{}", rustix::system::uname().nodename().to_string_lossy()),
        }
    }

    /// Returns the pattern of the names whose reports a new report replaces. A later pass replaces the reports of all
    /// earlier passes.
    fn replaces(self) -> String {
        match self {
            Self::Worker(_) => self.name(),
            Self::Pass => format!("{NOTED_BY_PASS}%"),
        }
    }

    /// Returns the reason with "the pass" instead of "the server" if this is a pass.
    fn reason(self, of_server: &str) -> String {
        match self {
            Self::Worker(_) => of_server.to_owned(),
            Self::Pass => of_server.replace("the server", "the pass"),
        }
    }
}

/// The prefix of the name under which a pass reports lanes that it cannot serve. The host follows it.
const NOTED_BY_PASS: &str = "pass@";

/// Selects the lanes that no delivering process can serve, each with what the processes lack and the reason. `$1` is the tenant or null.
/// `$2` and `$3` are the times after which a worker or a pass counts as running. A report of an earlier pass is ignored
/// once a later pass has begun. A single pass does not count, because a person may have run it in a directory without
/// the key. Passes also do not count while a worker that ended abruptly may come back.
pub(in crate::store) fn unopened_lanes() -> String {
    let counts = format!(
        "(d.name LIKE '{WORKER}%' AND d.ran_at > $2)
         OR (d.name = '{PASS}' AND d.ran_at > $3
           AND EXISTS (SELECT 1 FROM postcommit.duty e WHERE e.name = '{EARLIER_PASS}' AND e.ran_at > $3)
           AND NOT EXISTS (
             SELECT 1 FROM postcommit.duty w WHERE w.name LIKE '{WORKER}%' AND w.ran_at > $3 AND w.ran_at <= $2))"
    );
    format!(
        "SELECT u.lane AS lane, min(u.problem || ' ' || u.reason) AS told, max(u.noted_at) AS noted_at, min(u.worker) AS worker,
           count(CASE WHEN u.worker LIKE '{WORKER}%' THEN 1 END) AS workers
         FROM postcommit.unopened_secret u
         JOIN postcommit.duty d ON ({counts})
           AND (d.name = u.worker OR (d.name = '{PASS}' AND u.worker LIKE '{NOTED_BY_PASS}%' AND d.ran_at <= u.noted_at))
         JOIN postcommit.provider p ON p.tenant = u.tenant AND p.id = u.lane
         WHERE u.tenant = coalesce($1, u.tenant)
         GROUP BY u.lane
         HAVING count(*) >= (SELECT count(*) FROM postcommit.duty d WHERE {counts})"
    )
}

impl Store {
    /// Returns the parameters of [`unopened_lanes`].
    pub(in crate::store) async fn who_opens(&self, tenant: Option<i32>) -> Result<Vec<Value>, DbError> {
        let now = self.now().await?;
        Ok(vec![tenant.into(), before(now, PRESENT).into(), before(now, PASS_COUNTS).into()])
    }

    /// Returns the lanes that are closed because no delivering process can serve them, with the reason. With `tenant` = `None`, the lanes of all tenants. The result is empty if no process delivers.
    pub async fn unopened(&self, tenant: Option<i32>) -> Result<BTreeMap<i32, UnopenedLane>, DbError> {
        let rows = self.db.query(&unopened_lanes(), self.who_opens(tenant).await?).await?;
        rows.iter().map(|row| Ok((row.get(0)?, unopened_lane(row)?))).collect()
    }

    /// Replaces the list of lanes that this process cannot serve. A listed lane is closed unless another process can
    /// serve it.
    pub async fn note_unopened(&self, opener: Opener, unopened: &[Unopened]) -> Result<(), DbError> {
        let worker = opener.name();
        let forget =
            ("DELETE FROM postcommit.unopened_secret WHERE worker LIKE $1".to_owned(), vec![opener.replaces().into()]);
        let note = |one: &Unopened| {
            let sql = "INSERT INTO postcommit.unopened_secret (tenant, lane, worker, reason, noted_at, problem)
                VALUES ($1, $2, $3, $4, {now}, $5)";
            let parameters = vec![
                one.tenant.into(),
                one.lane.into(),
                worker.clone().into(),
                opener.reason(&one.reason).into(),
                one.lacking.name().into(),
            ];
            (sql.to_owned(), parameters)
        };
        self.db.execute(std::iter::once(forget).chain(unopened.iter().map(note)).collect()).await.map(drop)
    }

    /// Returns the fingerprint of the key that encrypts secrets. `None` if no secret was encrypted yet, or if an older
    /// version encrypted the secrets.
    pub async fn secret_key(&self) -> Result<Option<Fingerprint>, DbError> {
        let rows = self.db.query("SELECT fingerprint FROM postcommit.secret_key", vec![]).await?;
        rows.first().map(|row| row.get::<Vec<u8>>(0).map(Fingerprint)).transpose()
    }

    /// Returns the statement that makes writes of encrypted secrets run one after another until the key is recorded.
    /// Writes with the known key run concurrently. SQLite has only one writer and needs no statement.
    pub(in crate::store) fn key_turn(&self, key: &SealedWith) -> Option<Statement> {
        let lock = if key.is_known() { "pg_advisory_xact_lock_shared" } else { "pg_advisory_xact_lock" };
        let sql = format!("SELECT {lock}(hashtext('postcommit.secret_key'), 0)");
        (self.db.kind() == "postgres").then_some((sql, vec![]))
    }

    /// Returns the statements that record the key as the one that encrypts secrets from now on. They run after the
    /// write that [`key_allowed`] allowed, in its transaction.
    pub(in crate::store) async fn note_key(&self, key: &SealedWith) -> Result<Vec<Statement>, DbError> {
        if key.is_known() {
            return Ok(vec![]);
        }
        // The primary key `one` is given explicitly, because SQLite ignores the default of an integer key and assigns
        // the next number.
        let sql = "INSERT INTO postcommit.secret_key (fingerprint, noted_at, one) VALUES ($1, {now}, $2)
            ON CONFLICT (one) DO UPDATE SET fingerprint = excluded.fingerprint, noted_at = excluded.noted_at";
        let tenant = self.tenant("default").await?.unwrap_or(1);
        let entry = AuditEntry::new(tenant, "secrets.key", "secrets.key");
        Ok(vec![(sql.to_owned(), vec![key.fingerprint.0.clone().into(), true.into()]), self.audit(entry)])
    }

    /// Returns the encrypted secrets of the newest providers, at most `limit`.
    pub async fn sealed(&self, limit: i64) -> Result<Vec<Sealed>, DbError> {
        self.sealed_before(i32::MAX, limit).await
    }

    /// Returns the encrypted secrets of the newest providers with a smaller id, at most `limit`. Needs a store handle
    /// for all tenants, because all tenants share one key.
    pub async fn sealed_before(&self, id: i32, limit: i64) -> Result<Vec<Sealed>, DbError> {
        let sql = "SELECT id, tenant, name, secrets FROM postcommit.provider WHERE secrets IS NOT NULL AND id < $1
            ORDER BY id DESC LIMIT $2";
        let rows = self.db.query(sql, vec![id.into(), limit.into()]).await?;
        let sealed = |row: &Row| {
            let (id, tenant, provider) = (row.get(0).ok()?, row.get(1).ok()?, row.get(2).ok()?);
            Some(Sealed { id, tenant, provider, secrets: row.get(3).unwrap_or_default() })
        };
        Ok(rows.iter().filter_map(sealed).collect())
    }

    /// Makes `to` the key that encrypts secrets from now on. Returns false without a change if the installation's key
    /// is no longer `from`.
    pub async fn change_secret_key(&self, from: &Fingerprint, to: &Fingerprint) -> Result<bool, DbError> {
        let lock = "SELECT pg_advisory_xact_lock(hashtext('postcommit.secret_key'), 0)";
        let mut statements: Vec<Statement> =
            (self.db.kind() == "postgres").then(|| (lock.to_owned(), vec![])).into_iter().collect();
        let deciding = statements.len();
        let sql = "INSERT INTO postcommit.secret_key AS known (fingerprint, noted_at, one) VALUES ($1, {now}, $2)
            ON CONFLICT (one) DO UPDATE SET fingerprint = excluded.fingerprint, noted_at = excluded.noted_at
            WHERE known.fingerprint = $3";
        statements.push((sql.to_owned(), vec![to.0.clone().into(), true.into(), from.0.clone().into()]));
        let tenant = self.tenant("default").await?.unwrap_or(1);
        self.change_all(statements, deciding, AuditEntry::new(tenant, "secrets.rotate", "secrets.key")).await
    }

    /// Replaces the encrypted secrets of a provider with the same secrets, encrypted with another key. Returns false
    /// without a change if the provider has other secrets by now.
    pub async fn reseal(&self, was: &Sealed, secrets: Vec<u8>) -> Result<bool, DbError> {
        let sql = "UPDATE postcommit.provider SET secrets = $3, revision = revision + 1, updated_at = {now}
            WHERE id = $1 AND secrets = $2";
        let _turn = turn().await?;
        let entry = AuditEntry::new(was.tenant, "provider.reseal", was.provider.as_str());
        self.change(sql, vec![was.id.into(), was.secrets.clone().into(), secrets.into()], entry).await
    }
}

fn unopened_lane(row: &Row) -> Result<UnopenedLane, DbError> {
    let (told, noted_at, by): (String, Timestamp, String) = (row.get(1)?, row.get(2)?, row.get(3)?);
    let lane = UnopenedLane::read(&told);
    Ok(match by.strip_prefix(NOTED_BY_PASS) {
        Some(host) if row.get::<i64>(4)? == 0 => UnopenedLane {
            reason: format!("{} (reported by `postcommit dispatch --once` at {noted_at})", lane.reason),
            pass_on: Some(host.to_owned()),
            ..lane
        },
        _ => lane,
    })
}
