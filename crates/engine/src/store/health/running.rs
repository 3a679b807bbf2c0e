//! Reads the workers, the held leases and the sizes of tables, for the system page.

use postcommit::Timestamp;

use crate::db::{Db, DbError, Row};
use crate::store::Store;
use crate::store::duties::{PRESENT, WORKER};
use crate::store::numbers::kpis::before;

/// A worker that wrote a heartbeat. A worker that was stopped regularly has removed its heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerRow {
    /// The id of the worker. Each start of a process has a new one.
    pub id: String,
    /// The last heartbeat. A worker writes one every 15 seconds.
    pub seen_at: Timestamp,
    /// Whether the heartbeat is current. The heartbeat of a worker that was killed stays current for a minute.
    pub is_present: bool,
}

/// The leases that are held in one lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldLeases {
    /// The name of the tenant.
    pub tenant: String,
    /// The provider of the lane. `None` for notifications that are being expanded.
    pub provider: Option<String>,
    /// How many deliveries are under a lease.
    pub count: i64,
    /// How many of these leases have run out. The next claim takes over the delivery of such a lease.
    pub run_out: i64,
    /// When the oldest of the leases began.
    pub oldest_at: Option<Timestamp>,
}

/// The size of a table with its indexes and partitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableSize {
    /// The name of the table.
    pub name: String,
    /// The number of the table's partitions.
    pub partitions: i64,
    /// The bytes on disk.
    pub bytes: i64,
    /// The number of rows, estimated by the database.
    pub rows: i64,
}

/// The space that the database takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Space {
    /// The bytes of the whole database, or of the SQLite file without its `-wal`.
    pub bytes: i64,
    /// The bytes of a SQLite file that are free and will be reused. `None` on PostgreSQL.
    pub free: Option<i64>,
    /// The largest tables. Empty on SQLite, which would have to read the whole file to compute the sizes.
    pub tables: Vec<TableSize>,
}

impl Store {
    /// Reads the workers that wrote a heartbeat in the last two hours, the latest first.
    pub async fn workers(&self, limit: i64) -> Result<Vec<WorkerRow>, DbError> {
        let present = before(self.now().await?, PRESENT);
        let sql = format!(
            "SELECT name, ran_at FROM postcommit.duty WHERE name LIKE '{WORKER}%' ORDER BY ran_at DESC, name LIMIT $1"
        );
        let rows = self.db.query(&sql, vec![limit.into()]).await?;
        let worker = |row: &Row| -> Result<WorkerRow, DbError> {
            let (name, seen_at): (String, Timestamp) = (row.get(0)?, row.get(1)?);
            let id = name.strip_prefix(WORKER).unwrap_or(&name).to_owned();
            Ok(WorkerRow { id, seen_at, is_present: seen_at > present })
        };
        rows.iter().map(worker).collect()
    }

    /// Counts the leases that are held, by lane. The lane with the most leases comes first.
    pub async fn held_leases(&self, limit: i64) -> Result<Vec<HeldLeases>, DbError> {
        let sql = "SELECT t.name, p.name, count(*), count(*) FILTER (WHERE q.lease_until < {now}), min(q.leased_at)
            FROM postcommit.delivery_queue q
            JOIN postcommit.tenant t ON t.id = q.tenant
            LEFT JOIN postcommit.provider p ON p.id = q.lane
            WHERE q.lease_token IS NOT NULL
            GROUP BY t.name, p.name
            ORDER BY 3 DESC, 1, 2
            LIMIT $1";
        let rows = self.db.query(sql, vec![limit.into()]).await?;
        let lane = |row: &Row| -> Result<HeldLeases, DbError> {
            Ok(HeldLeases {
                tenant: row.get(0)?,
                provider: row.get(1)?,
                count: row.get(2)?,
                run_out: row.get(3)?,
                oldest_at: row.get(4)?,
            })
        };
        rows.iter().map(lane).collect()
    }

    /// Reads the space that the database takes, and the largest tables.
    pub async fn space(&self, limit: i64) -> Result<Space, DbError> {
        let lost = || DbError::Unreadable("the query for the size returned no row; report it as a bug".into());
        let Db::Postgres(_) = self.db else {
            let sql = "SELECT c.page_count * s.page_size, f.freelist_count * s.page_size
                FROM pragma_page_count() c, pragma_page_size() s, pragma_freelist_count() f";
            let rows = self.db.query(sql, vec![]).await?;
            let row = rows.first().ok_or_else(lost)?;
            return Ok(Space { bytes: row.get(0)?, free: Some(row.get(1)?), tables: vec![] });
        };
        let rows = self.db.query("SELECT pg_database_size(current_database())", vec![]).await?;
        let bytes = rows.first().ok_or_else(lost)?.get(0)?;
        let sql = "SELECT coalesce(parent.relname, c.relname)::text, count(i.inhrelid),
              sum(pg_total_relation_size(c.oid))::bigint, sum(greatest(c.reltuples, 0))::bigint
            FROM pg_class c
            LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
            LEFT JOIN pg_class parent ON parent.oid = i.inhparent
            WHERE c.relnamespace = 'postcommit'::regnamespace AND c.relkind = 'r'
            GROUP BY 1
            ORDER BY 3 DESC, 1
            LIMIT $1";
        let rows = self.db.query(sql, vec![limit.into()]).await?;
        let table = |row: &Row| -> Result<TableSize, DbError> {
            Ok(TableSize { name: row.get(0)?, partitions: row.get(1)?, bytes: row.get(2)?, rows: row.get(3)? })
        };
        Ok(Space { bytes, free: None, tables: rows.iter().map(table).collect::<Result<_, _>>()? })
    }
}
