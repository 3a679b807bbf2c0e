//! Numbered pairs of migrations, applied in order under a lock. Append-only: a landed migration is never changed.

use rusqlite::Connection;

use super::client::Transaction;
use super::postgres::Postgres;
use super::{Db, DbError, Row, Value, postgres, roles, sqlite};

/// One step of the schema, in both dialects.
#[derive(Debug, Clone, Copy)]
pub struct Migration {
    /// From 1, without gaps.
    pub version: i32,
    /// What it brings.
    pub name: &'static str,
    /// For PostgreSQL.
    pub postgres: &'static str,
    /// For SQLite.
    pub sqlite: &'static str,
}

/// All of them, oldest first.
pub const MIGRATIONS: &[Migration] = &[
    Migration {
        version: 1,
        name: "core",
        postgres: include_str!("../../migrations/postgres/0001_core.sql"),
        sqlite: include_str!("../../migrations/sqlite/0001_core.sql"),
    },
    Migration {
        version: 2,
        name: "speed",
        postgres: include_str!("../../migrations/postgres/0002_speed.sql"),
        sqlite: include_str!("../../migrations/sqlite/0002_speed.sql"),
    },
    Migration {
        version: 3,
        name: "lean",
        postgres: include_str!("../../migrations/postgres/0003_lean.sql"),
        sqlite: include_str!("../../migrations/sqlite/0003_lean.sql"),
    },
    Migration {
        version: 4,
        name: "tenants",
        postgres: include_str!("../../migrations/postgres/0004_tenants.sql"),
        sqlite: include_str!("../../migrations/sqlite/0004_tenants.sql"),
    },
    Migration {
        version: 5,
        name: "kpis",
        postgres: include_str!("../../migrations/postgres/0005_kpis.sql"),
        sqlite: include_str!("../../migrations/sqlite/0005_kpis.sql"),
    },
    Migration {
        version: 6,
        name: "inbox",
        postgres: include_str!("../../migrations/postgres/0006_inbox.sql"),
        sqlite: include_str!("../../migrations/sqlite/0006_inbox.sql"),
    },
    Migration {
        version: 7,
        name: "jobs",
        postgres: include_str!("../../migrations/postgres/0007_jobs.sql"),
        sqlite: include_str!("../../migrations/sqlite/0007_jobs.sql"),
    },
    Migration {
        version: 8,
        name: "rates",
        postgres: include_str!("../../migrations/postgres/0008_rates.sql"),
        sqlite: include_str!("../../migrations/sqlite/0008_rates.sql"),
    },
    Migration {
        version: 9,
        name: "identity",
        postgres: include_str!("../../migrations/postgres/0009_identity.sql"),
        sqlite: include_str!("../../migrations/sqlite/0009_identity.sql"),
    },
    Migration {
        version: 10,
        name: "hosts",
        postgres: include_str!("../../migrations/postgres/0010_hosts.sql"),
        sqlite: include_str!("../../migrations/sqlite/0010_hosts.sql"),
    },
    Migration {
        version: 11,
        name: "turns",
        postgres: include_str!("../../migrations/postgres/0011_turns.sql"),
        sqlite: include_str!("../../migrations/sqlite/0011_turns.sql"),
    },
    Migration {
        version: 12,
        name: "installation",
        postgres: include_str!("../../migrations/postgres/0012_installation.sql"),
        sqlite: include_str!("../../migrations/sqlite/0012_installation.sql"),
    },
    Migration {
        version: 13,
        name: "settings",
        postgres: include_str!("../../migrations/postgres/0013_settings.sql"),
        sqlite: include_str!("../../migrations/sqlite/0013_settings.sql"),
    },
    Migration {
        version: 14,
        name: "types",
        postgres: include_str!("../../migrations/postgres/0014_types.sql"),
        sqlite: include_str!("../../migrations/sqlite/0014_types.sql"),
    },
    Migration {
        version: 15,
        name: "delivery_facts",
        postgres: include_str!("../../migrations/postgres/0015_delivery_facts.sql"),
        sqlite: include_str!("../../migrations/sqlite/0015_delivery_facts.sql"),
    },
];

/// The schema this program was made for.
pub const LATEST: i32 = MIGRATIONS[MIGRATIONS.len() - 1].version;

/// Two processes that start at once must not both migrate; "postcommit" in eight bytes.
pub(super) const LOCK: i64 = 0x706f_7374_636f_6d6d;

/// What stands between the database and this program.
#[derive(Debug, Clone)]
pub struct MigrationPlan {
    /// The schema found; 0 is none.
    pub found: i32,
    /// What is to be applied, in order.
    pub missing: Vec<Migration>,
}

/// What a migration did.
#[derive(Debug, Clone, Default)]
pub struct Migrated {
    /// The steps that were missing, in order.
    pub applied: Vec<Migration>,
    /// PostgreSQL: the GRANTs that members of former roles need for this database. They were not made, because those roles are, or were, other databases' as
    /// well: somebody must decide.
    pub grants: Vec<String>,
    /// PostgreSQL: roles, grants or policies were put in order although no step was missing.
    pub arranged: bool,
}

impl Db {
    /// The schema version found; 0 is none.
    ///
    /// # Errors
    /// When it cannot be read.
    pub async fn schema_version(&self) -> Result<i32, DbError> {
        let exists = match self {
            Self::Postgres(_) => "SELECT to_regclass('postcommit.migration') IS NOT NULL",
            Self::Sqlite(_) => "SELECT count(*) > 0 FROM sqlite_schema WHERE name = 'postcommit_migration'",
        };
        if !first::<bool>(&self.query(exists, vec![]).await?)? {
            return Ok(0);
        }
        let rows = self.query("SELECT coalesce(max(version), 0) FROM postcommit.migration", vec![]).await?;
        first(&rows)
    }

    /// What is to be done.
    ///
    /// # Errors
    /// [`DbError::TooNew`] when the schema is ahead of this program.
    pub async fn migration_plan(&self) -> Result<MigrationPlan, DbError> {
        plan(self.schema_version().await?)
    }

    /// Refuses a schema that is not exactly this program's.
    ///
    /// # Errors
    /// [`DbError::TooNew`] or [`DbError::TooOld`].
    pub async fn check_schema(&self) -> Result<(), DbError> {
        let plan = self.migration_plan().await?;
        if plan.missing.is_empty() { Ok(()) } else { Err(DbError::TooOld { found: plan.found, needed: LATEST }) }
    }

    /// Applies what is missing, under a lock, and walls off the tenants of what is new: all of it in one transaction. A login that does not own the schema
    /// leaves one that is up to date as it is.
    ///
    /// # Errors
    /// As the database says; the schema is as it was then.
    pub async fn migrate(&self) -> Result<Migrated, DbError> {
        // Looking first: with nothing to do, no lock is taken and no file is changed.
        let is_current = self.migration_plan().await?.missing.is_empty();
        match self {
            Self::Postgres(_) if is_current && !self.is_wall_to_mend().await? => Ok(Migrated::default()),
            Self::Postgres(db) => migrate_postgres(db).await,
            Self::Sqlite(_) if is_current => Ok(Migrated::default()),
            Self::Sqlite(db) => {
                db.use_wal()?;
                // The write transaction is the lock.
                Ok(Migrated { applied: db.write(migrate_sqlite).await?, ..Migrated::default() })
            }
        }
    }

    /// Makes partitions far ahead; nothing to do on SQLite. Returns how many were made.
    pub async fn make_partitions(&self, months_ahead: i32) -> Result<i64, DbError> {
        let Self::Postgres(_) = self else { return Ok(0) };
        let rows = self.query("SELECT postcommit.make_partitions($1)", vec![Value::from(months_ahead)]).await?;
        first(&rows)
    }
}

const POSTGRES_START: &str = "CREATE SCHEMA IF NOT EXISTS postcommit; \
    CREATE TABLE postcommit.migration (version int PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())";

const SQLITE_START: &str =
    "CREATE TABLE IF NOT EXISTS postcommit_migration (version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at INTEGER NOT NULL)";

async fn migrate_postgres(db: &Postgres) -> Result<Migrated, DbError> {
    let mut client = db.client().await?;
    let transaction = client.transaction().await.map_err(postgres::refused)?;
    roles::take_lock(&transaction).await?;
    let applied = missing_in_postgres(&transaction).await?;
    // Somebody else was faster, and this login has no say in the rest.
    if applied.is_empty() && !transaction.query_one(roles::MAY_ARRANGE, &[]).await.map_err(postgres::refused)?.get::<_, bool>(0) {
        return Ok(Migrated::default());
    }
    let foreigners = roles::foreigners(&transaction, db.installation).await?;
    for step in &applied {
        transaction.batch_execute(step.postgres).await.map_err(postgres::refused)?;
        // What a step adds belongs to whoever applies it. Where roles were made, the next one may run a function of theirs that must reach it.
        if roles::has_roles(&transaction).await? {
            roles::separate(&transaction, db.installation).await?;
        }
        let noted = "INSERT INTO postcommit.migration (version, name) VALUES ($1, $2)";
        transaction.execute(noted, &[&step.version, &step.name]).await.map_err(postgres::refused)?;
    }
    let grants = roles::arrange(&transaction, db.installation, &foreigners).await?;
    transaction.commit().await.map_err(postgres::refused)?;
    if !grants.is_empty() {
        let grants = grants.join("; ");
        tracing::warn!(
            grants,
            "roles of this database alone have taken the place of shared ones; members of those that need it are to be granted anew"
        );
    }
    let arranged = applied.is_empty();
    Ok(Migrated { applied, grants, arranged })
}

/// What is missing now that the lock is held.
async fn missing_in_postgres(transaction: &Transaction<'_>) -> Result<Vec<Migration>, DbError> {
    let found = transaction.query_one("SELECT to_regclass('postcommit.migration') IS NOT NULL", &[]).await.map_err(postgres::refused)?;
    if !found.get::<_, bool>(0) {
        transaction.batch_execute(POSTGRES_START).await.map_err(postgres::refused)?;
    }
    let version = "SELECT coalesce(max(version), 0) FROM postcommit.migration";
    Ok(plan(transaction.query_one(version, &[]).await.map_err(postgres::refused)?.get(0))?.missing)
}

fn migrate_sqlite(connection: &Connection) -> Result<Vec<Migration>, DbError> {
    connection.execute_batch(SQLITE_START).map_err(sqlite::refused)?;
    let rows = sqlite::query(connection, "SELECT coalesce(max(version), 0) FROM postcommit_migration", &[])?;
    let missing = plan(first(&rows)?)?.missing;
    for step in &missing {
        connection.execute_batch(step.sqlite).map_err(sqlite::refused)?;
        let noted = format!("INSERT INTO postcommit_migration (version, name, applied_at) VALUES (?1, ?2, {})", sqlite::NOW);
        connection.execute(&noted, (step.version, step.name)).map_err(sqlite::refused)?;
    }
    Ok(missing)
}

fn plan(found: i32) -> Result<MigrationPlan, DbError> {
    if found > LATEST {
        return Err(DbError::TooNew { found, known: LATEST });
    }
    Ok(MigrationPlan { found, missing: MIGRATIONS.iter().filter(|step| step.version > found).copied().collect() })
}

pub(super) fn first<T: super::value::FromValue>(rows: &[Row]) -> Result<T, DbError> {
    rows.first().ok_or_else(|| DbError::Unreadable("no row".into()))?.get(0)
}
