//! Checks the PostgreSQL server for `doctor`: whether commits are durable, and which snapshots hold back vacuum.

use std::time::Duration;

use crate::db::{Db, DbError, Row, Value};
use crate::store::Store;

/// A place where `synchronous_commit` is set to a value with which commits do not wait for the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeakCommit {
    /// The place: `database app`, `role app`, `role app in database app`, `every role`, or `server`.
    pub place: String,
    /// The value: `off`, or `local` or `remote_write` if the server has synchronous standbys.
    pub value: String,
}

/// The data that a crash of the server may destroy, according to its settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Durability {
    /// The setting `fsync`. If false, a crash of the machine may destroy the whole cluster.
    pub fsync: bool,
    /// The setting `full_page_writes`. If false, a crash while a page is written may destroy the cluster.
    pub full_page_writes: bool,
    /// Places where commits do not wait for the disk. Connections of this program always wait.
    pub weak: Vec<WeakCommit>,
}

/// The kinds of objects that can hold back vacuum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    /// A transaction of a session.
    Session,
    /// A standby with `hot_standby_feedback`.
    Standby,
    /// A prepared transaction that was neither committed nor rolled back.
    Prepared,
    /// A replication slot.
    Slot,
}

/// An old snapshot that is still held, so that vacuum cannot remove rows that died after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldSnapshot {
    /// The kind of the holder.
    pub holder: Holder,
    /// The process id, if there is one.
    pub pid: Option<i32>,
    /// The application name of the session, or the name of the transaction or slot.
    pub name: String,
    /// The user that owns the session or transaction.
    pub user: Option<String>,
    /// The state of the session, for example `idle in transaction`. `None` for a login without `pg_read_all_stats`.
    pub state: Option<String>,
    /// The time for which the snapshot has been held. `None` for slots, and for a login without `pg_read_all_stats`.
    pub age: Option<Duration>,
    /// How many transactions have begun since the snapshot.
    pub transactions: i64,
}

/// Finds the holders of old snapshots in this database, and standbys. A transaction that has neither written nor holds
/// a snapshot does not hold back vacuum, and neither does vacuum itself.
const HELD: &str = "SELECT holder, pid, name, owner, state, seconds, transactions
    FROM (SELECT CASE backend_type WHEN 'walsender' THEN 'standby' ELSE 'session' END AS holder, pid,
        application_name::text AS name, usename::text AS owner, state::text,
        extract(epoch FROM clock_timestamp() - xact_start)::float8 AS seconds,
        greatest(age(backend_xmin), age(backend_xid))::bigint AS transactions
      FROM pg_stat_activity
      WHERE (datname = current_database() OR backend_type = 'walsender')
        AND coalesce(backend_xmin, backend_xid) IS NOT NULL AND pid <> pg_backend_pid()
        AND backend_type IS DISTINCT FROM 'autovacuum worker'
      UNION ALL SELECT 'prepared', NULL, gid, owner::text, NULL,
        extract(epoch FROM clock_timestamp() - prepared)::float8, age(transaction)::bigint
      FROM pg_prepared_xacts
      WHERE database = current_database()
      UNION ALL SELECT 'slot', active_pid, slot_name::text, NULL, CASE WHEN active THEN 'active' ELSE 'not in use' END,
        NULL, age(xmin)::bigint
      FROM pg_replication_slots
      WHERE xmin IS NOT NULL) held
    WHERE seconds >= $1 OR (seconds IS NULL AND transactions >= $2)
    ORDER BY seconds DESC NULLS LAST, transactions DESC
    LIMIT 5";

/// Finds settings of `synchronous_commit` for databases and roles, in this database or in all databases, for roles that
/// can use the schema `postcommit`. A role's setting in this database overrides its setting in all databases. The last
/// column says whether the setting applies to this login. If a setting applies, the login's initial value does not come
/// from the server.
const KEPT: &str = "SELECT d.datname::text, r.rolname::text, lower(split_part(c.setting, '=', 2)), s.setrole = 0
      OR r.rolname = session_user
    FROM pg_db_role_setting s
    CROSS JOIN unnest(s.setconfig) AS c (setting)
    LEFT JOIN pg_database d ON d.oid = s.setdatabase
    LEFT JOIN pg_roles r ON r.oid = s.setrole
    WHERE c.setting LIKE 'synchronous\\_commit=%' AND (s.setdatabase = 0 OR d.datname = current_database())
      AND (s.setrole = 0 OR has_schema_privilege(s.setrole, 'postcommit', 'USAGE'))
      AND NOT (s.setdatabase = 0 AND s.setrole <> 0
        AND EXISTS (SELECT FROM pg_db_role_setting o
          JOIN pg_database here ON here.oid = o.setdatabase
          WHERE o.setrole = s.setrole AND here.datname = current_database()
            AND EXISTS (SELECT FROM unnest(o.setconfig) AS n (setting) WHERE n.setting LIKE 'synchronous\\_commit=%')))
    ORDER BY 1, 2";

/// Reads settings of the server. `reset_val` is the value with which a session begins, before this program's
/// connections raise it.
const SAID: &str = "SELECT current_setting('fsync') = 'on', current_setting('full_page_writes') = 'on',
    (SELECT s.reset_val FROM pg_settings s WHERE s.name = 'synchronous_commit'),
    current_setting('synchronous_standby_names') <> ''";

impl Store {
    /// Reads which data a crash of the server may destroy. `None` on SQLite, whose commits always wait for the disk.
    pub async fn durability(&self) -> Result<Option<Durability>, DbError> {
        let Db::Postgres(_) = self.db else { return Ok(None) };
        let rows = self.db.query(SAID, vec![]).await?;
        let said = rows.first().ok_or_else(|| {
            DbError::Unreadable("the query for the settings of the server returned no row; report it as a bug".into())
        })?;
        let (begins_with, has_standbys): (String, bool) = (said.get(2)?, said.get(3)?);
        let (mut weak, mut ours) = (vec![], false);
        for row in self.db.query(KEPT, vec![]).await? {
            weak.push(WeakCommit { place: place(&row)?, value: plain(row.get(2)?) });
            ours |= row.get::<bool>(3)?;
        }
        // If neither a database nor a role sets `synchronous_commit` for this login, the server's setting applies.
        if !ours {
            weak.push(WeakCommit { place: "server".into(), value: begins_with });
        }
        weak.retain(|one| {
            one.value == "off" || (has_standbys && ["local", "remote_write"].contains(&one.value.as_str()))
        });
        Ok(Some(Durability { fsync: said.get(0)?, full_page_writes: said.get(1)?, weak }))
    }

    /// Returns the five oldest snapshots that are held for longer than `longer_than`. A snapshot of unknown age is
    /// included after `transactions` transactions. Empty on SQLite, which has no vacuum to hold back: readers there
    /// only delay the reset of the WAL.
    pub async fn held_snapshots(&self, longer_than: Duration, transactions: i64) -> Result<Vec<HeldSnapshot>, DbError> {
        let Db::Postgres(_) = self.db else { return Ok(vec![]) };
        let rows = self.db.query(HELD, vec![Value::Real(longer_than.as_secs_f64()), transactions.into()]).await?;
        rows.iter().map(held).collect()
    }
}

fn place(row: &Row) -> Result<String, DbError> {
    let (database, role): (Option<String>, Option<String>) = (row.get(0)?, row.get(1)?);
    Ok(match (database, role) {
        (Some(database), None) => format!("database {database}"),
        (None, Some(role)) => format!("role {role}"),
        (Some(database), Some(role)) => format!("role {role} in database {database}"),
        (None, None) => "every role".into(),
    })
}

/// Returns the value of the setting, with other spellings of `off` replaced by `off`.
fn plain(value: String) -> String {
    if ["false", "no", "0"].contains(&value.as_str()) { "off".into() } else { value }
}

fn held(row: &Row) -> Result<HeldSnapshot, DbError> {
    let holder = match row.get::<String>(0)?.as_str() {
        "standby" => Holder::Standby,
        "prepared" => Holder::Prepared,
        "slot" => Holder::Slot,
        _ => Holder::Session,
    };
    let seconds: Option<f64> = row.get(5)?;
    Ok(HeldSnapshot {
        holder,
        pid: row.get(1)?,
        name: row.get::<Option<String>>(2)?.unwrap_or_default(),
        user: row.get(3)?,
        state: row.get(4)?,
        age: seconds.map(|seconds| Duration::from_secs_f64(seconds.max(0.0))),
        transactions: row.get(6)?,
    })
}
