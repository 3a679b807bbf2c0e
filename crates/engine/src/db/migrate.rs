//! Creates and migrates the schema. The directory `migrations` has three kinds of files:
//!
//! - Numbered pairs ([`MIGRATIONS`]) create and change tables. Each pair is applied once, in order. Once it is merged,
//!   a pair is never changed.
//! - `functions/` and `views.sql` (`repeatable.rs`) contain each function, trigger and view once. All of them are
//!   applied again if [`schema_hash`] differs from the hash stored in the database, in the row of `migration` with
//!   version 0.
//! - `roles.sql`, `isolation.sql`, `foreign.sql` and `public.sql` (`roles.rs`) define the privileges of each role. They
//!   run after every change and restore privileges that are missing.
//!
//! On PostgreSQL the second kind uses CREATE OR REPLACE, which keeps an object's owner and its grants. It cannot change
//! a function's arguments or return type, cannot change a view's columns except by adding new ones at the end, and
//! cannot remove an object. For these changes a numbered pair drops the object, its file creates it again in the same
//! transaction, and `migrate` restores its grants. SQLite has neither CREATE OR REPLACE nor grants, so all views and
//! triggers are dropped and created again.

use rusqlite::Connection;

use super::client::Transaction;
use super::postgres::Postgres;
use super::repeatable::{self, schema_hash};
use super::{Db, DbError, Row, Value, postgres, roles, sqlite};

/// One step of the schema, for both databases.
#[derive(Debug, Clone, Copy)]
pub struct Migration {
    /// The version number. Versions start at 1 and have no gaps.
    pub version: i32,
    /// The name of the step, which is part of its file's name.
    pub name: &'static str,
    pub postgres: &'static str,
    pub sqlite: &'static str,
}

/// All migrations, oldest first.
pub const MIGRATIONS: &[Migration] = &[
    Migration {
        version: 1,
        name: "baseline",
        postgres: include_str!("../../migrations/postgres/0001_baseline.sql"),
        sqlite: include_str!("../../migrations/sqlite/0001_baseline.sql"),
    },
    Migration {
        version: 2,
        name: "secret_key",
        postgres: include_str!("../../migrations/postgres/0002_secret_key.sql"),
        sqlite: include_str!("../../migrations/sqlite/0002_secret_key.sql"),
    },
    Migration {
        version: 3,
        name: "outcome",
        postgres: include_str!("../../migrations/postgres/0003_outcome.sql"),
        sqlite: include_str!("../../migrations/sqlite/0003_outcome.sql"),
    },
    Migration {
        version: 4,
        name: "recipients",
        postgres: include_str!("../../migrations/postgres/0004_recipients.sql"),
        sqlite: include_str!("../../migrations/sqlite/0004_recipients.sql"),
    },
    Migration {
        version: 5,
        name: "operators",
        postgres: include_str!("../../migrations/postgres/0005_operators.sql"),
        sqlite: include_str!("../../migrations/sqlite/0005_operators.sql"),
    },
    Migration {
        version: 6,
        name: "kpis",
        postgres: include_str!("../../migrations/postgres/0006_kpis.sql"),
        sqlite: include_str!("../../migrations/sqlite/0006_kpis.sql"),
    },
    Migration {
        version: 7,
        name: "content",
        postgres: include_str!("../../migrations/postgres/0007_content.sql"),
        sqlite: include_str!("../../migrations/sqlite/0007_content.sql"),
    },
    Migration {
        version: 8,
        name: "pacing",
        postgres: include_str!("../../migrations/postgres/0008_pacing.sql"),
        sqlite: include_str!("../../migrations/sqlite/0008_pacing.sql"),
    },
    Migration {
        version: 9,
        name: "receipts",
        postgres: include_str!("../../migrations/postgres/0009_receipts.sql"),
        sqlite: include_str!("../../migrations/sqlite/0009_receipts.sql"),
    },
    Migration {
        version: 10,
        name: "failover",
        postgres: include_str!("../../migrations/postgres/0010_failover.sql"),
        sqlite: include_str!("../../migrations/sqlite/0010_failover.sql"),
    },
    Migration {
        version: 11,
        name: "ledger",
        postgres: include_str!("../../migrations/postgres/0011_ledger.sql"),
        sqlite: include_str!("../../migrations/sqlite/0011_ledger.sql"),
    },
    Migration {
        version: 12,
        name: "unserved",
        postgres: include_str!("../../migrations/postgres/0012_unserved.sql"),
        sqlite: include_str!("../../migrations/sqlite/0012_unserved.sql"),
    },
];

/// The schema version of this program.
pub const LATEST: i32 = MIGRATIONS[MIGRATIONS.len() - 1].version;

/// The advisory lock that keeps two processes from migrating concurrently. The number is the first eight bytes of
/// "postcommit".
pub(super) const LOCK: i64 = 0x706f_7374_636f_6d6d;

/// The steps from the database's schema to this program's schema.
#[derive(Debug, Clone)]
pub struct MigrationPlan {
    /// The schema version of the database. 0 means that there is no schema.
    pub found: i32,
    /// The steps to apply, in order.
    pub missing: Vec<Migration>,
    /// Whether functions, triggers and views are to be applied again.
    pub renews: bool,
}

impl MigrationPlan {
    /// Returns the plan for a database with this version and this hash of applied files.
    fn of(found: i32, noted: Option<&str>, is_postgres: bool) -> Result<Self, DbError> {
        if found > LATEST {
            return Err(DbError::TooNew { found, known: LATEST });
        }
        let missing: Vec<Migration> = MIGRATIONS.iter().filter(|step| step.version > found).copied().collect();
        let renews = !missing.is_empty() || noted != Some(schema_hash(is_postgres));
        Ok(Self { found, missing, renews })
    }

    /// Returns the plan for a database that does not exist yet.
    pub fn fresh() -> Self {
        Self { found: 0, missing: MIGRATIONS.to_vec(), renews: true }
    }

    fn is_empty(&self) -> bool {
        self.missing.is_empty() && !self.renews
    }

    /// Returns the names and the SQL of the steps to apply, in order.
    pub fn scripts(&self, is_postgres: bool) -> Vec<(String, String)> {
        let numbered = |step: &Migration| {
            let sql = if is_postgres { step.postgres.to_owned() } else { repeatable::with_clock(step.sqlite) };
            (step.label(), sql)
        };
        let files = if is_postgres { repeatable::POSTGRES } else { repeatable::SQLITE };
        let files =
            files.iter().filter(|_| self.renews).map(|(path, sql)| ((*path).to_owned(), repeatable::with_clock(sql)));
        self.missing.iter().map(numbered).chain(files).collect()
    }
}

impl Migration {
    /// Returns the name of the file without its ending, such as `0001_baseline`.
    pub fn label(&self) -> String {
        format!("{:04}_{}", self.version, self.name)
    }
}

/// The result of a migration.
#[derive(Debug, Clone, Default)]
pub struct Migrated {
    /// The steps that were applied, in order.
    pub applied: Vec<Migration>,
    /// Whether functions, triggers and views were applied again.
    pub renewed: bool,
    /// On PostgreSQL, if this database is a copy: GRANTs that would give members of the original's roles the same
    /// rights here. They were not executed, because only an administrator can decide which logins may use the copy.
    pub grants: Vec<String>,
    /// On PostgreSQL, sentences that say which roles were granted to which logins.
    pub granted: Vec<String>,
    /// On PostgreSQL, whether roles, grants or policies were repaired although no step was applied.
    pub arranged: bool,
}

impl Db {
    /// Returns the schema version of the database. 0 means that there is no schema.
    pub async fn schema_version(&self) -> Result<i32, DbError> {
        Ok(self.noted().await?.0)
    }

    /// Returns the migration plan for this database.
    ///
    /// # Errors
    /// Returns [`DbError::TooNew`] if the schema is newer than this program.
    pub async fn migration_plan(&self) -> Result<MigrationPlan, DbError> {
        let (found, files) = self.noted().await?;
        MigrationPlan::of(found, files.as_deref(), matches!(self, Self::Postgres(_)))
    }

    /// Reads the schema version, and the hash of the applied files.
    async fn noted(&self) -> Result<(i32, Option<String>), DbError> {
        let exists = match self {
            Self::Postgres(_) => "SELECT to_regclass('postcommit.migration') IS NOT NULL",
            Self::Sqlite(_) => "SELECT count(*) > 0 FROM sqlite_schema WHERE name = 'postcommit_migration'",
        };
        if !first::<bool>(&self.query(exists, vec![]).await?)? {
            return Ok((0, None));
        }
        let rows = self.query(NOTED, vec![]).await?;
        let row =
            rows.first().ok_or_else(|| DbError::Unreadable("a query returned no row; report it as a bug".into()))?;
        Ok((row.get(0)?, row.get(1)?))
    }

    /// Fails if the schema is not exactly this program's schema.
    pub async fn check_schema(&self) -> Result<(), DbError> {
        let plan = self.migration_plan().await?;
        if !plan.missing.is_empty() {
            return Err(DbError::TooOld { found: plan.found, needed: LATEST });
        }
        if plan.renews { Err(DbError::OtherFunctions) } else { Ok(()) }
    }

    /// Applies missing and changed files under a lock and enables row-level security on new tables, all in one
    /// transaction. If the schema is up to date and the login does not own it, nothing is changed. On an error the
    /// schema is unchanged.
    pub async fn migrate(&self) -> Result<Migrated, DbError> {
        // Checks first without a lock. If there is nothing to do, no lock is taken and no file is changed.
        let is_current = self.migration_plan().await?.is_empty();
        match self {
            Self::Postgres(_) if is_current && !self.is_wall_to_mend().await? => Ok(Migrated::default()),
            Self::Postgres(db) => migrate_postgres(db).await,
            Self::Sqlite(_) if is_current => Ok(Migrated::default()),
            Self::Sqlite(db) => {
                db.use_wal()?;
                // The write transaction serves as the lock.
                db.write(migrate_sqlite).await
            }
        }
    }

    /// Creates partitions for the coming months and returns how many were created. SQLite has no partitions.
    pub async fn make_partitions(&self, months_ahead: i32) -> Result<i64, DbError> {
        let Self::Postgres(_) = self else { return Ok(0) };
        let rows = self.query("SELECT postcommit.make_partitions($1)", vec![Value::from(months_ahead)]).await?;
        first(&rows)
    }
}

const POSTGRES_START: &str = "CREATE SCHEMA IF NOT EXISTS postcommit; \
    CREATE TABLE postcommit.migration (version int PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())";

const SQLITE_START: &str = "CREATE TABLE IF NOT EXISTS postcommit_migration (version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at INTEGER NOT NULL)";

/// Reads the schema version, and the hash of the applied files, which is the name of the row with version 0.
const NOTED: &str =
    "SELECT coalesce(max(version), 0), max(CASE WHEN version = 0 THEN name END) FROM postcommit.migration";

async fn migrate_postgres(db: &Postgres) -> Result<Migrated, DbError> {
    let mut client = db.client().await?;
    let transaction = client.transaction().await.map_err(postgres::refused)?;
    roles::take_lock(&transaction).await?;
    let plan = plan_postgres(&transaction).await?;
    // Another process has migrated in the meantime, and this login cannot repair roles.
    if plan.is_empty()
        && !transaction.query_one(roles::MAY_ARRANGE, &[]).await.map_err(postgres::refused)?.get::<_, bool>(0)
    {
        return Ok(Migrated::default());
    }
    let before = roles::Holders::read(&transaction, db.installation).await?;
    let foreigners = roles::foreigners(&transaction, db.installation).await?;
    if plan.renews {
        apply_postgres(&transaction, &plan).await?;
    }
    let grants = roles::arrange(&transaction, db.installation, &foreigners).await?;
    if !plan.missing.is_empty() {
        transaction.execute("SELECT postcommit.make_partitions()", &[]).await.map_err(postgres::refused)?;
    }
    let granted = before.granted(&transaction, db.installation).await?;
    transaction.commit().await.map_err(postgres::refused)?;
    granted.iter().for_each(|granted| tracing::info!("{granted}"));
    if !grants.is_empty() {
        let grants = grants.join("; ");
        tracing::warn!(
            grants,
            "this database is a copy and now has its own roles; run these grants for the logins of the original that \
             need the copy"
        );
    }
    let arranged = plan.is_empty();
    Ok(Migrated { applied: plan.missing, renewed: plan.renews, grants, granted, arranged })
}

/// Computes the plan again under the lock.
async fn plan_postgres(transaction: &Transaction<'_>) -> Result<MigrationPlan, DbError> {
    let found = transaction
        .query_one("SELECT to_regclass('postcommit.migration') IS NOT NULL", &[])
        .await
        .map_err(postgres::refused)?;
    if !found.get::<_, bool>(0) {
        transaction.batch_execute(POSTGRES_START).await.map_err(postgres::refused)?;
    }
    let noted = transaction.query_one(NOTED, &[]).await.map_err(postgres::refused)?;
    MigrationPlan::of(noted.get(0), noted.get(1), true)
}

async fn apply_postgres(transaction: &Transaction<'_>, plan: &MigrationPlan) -> Result<(), DbError> {
    let granted = repeatable::granted(transaction).await?;
    let note = "INSERT INTO postcommit.migration (version, name) VALUES ($1, $2)
        ON CONFLICT (version) DO UPDATE SET name = excluded.name, applied_at = excluded.applied_at";
    for step in &plan.missing {
        transaction.batch_execute(step.postgres).await.map_err(postgres::refused)?;
        transaction.execute(note, &[&step.version, &step.name]).await.map_err(postgres::refused)?;
    }
    repeatable::apply_postgres(transaction, &granted).await?;
    transaction.execute(note, &[&0, &schema_hash(true)]).await.map(drop).map_err(postgres::refused)
}

fn migrate_sqlite(connection: &Connection) -> Result<Migrated, DbError> {
    connection.execute_batch(SQLITE_START).map_err(sqlite::refused)?;
    let rows = sqlite::query(connection, &NOTED.replace("postcommit.", "postcommit_"), &[])?;
    let row = rows.first().ok_or_else(|| DbError::Unreadable("a query returned no row; report it as a bug".into()))?;
    let plan = MigrationPlan::of(row.get(0)?, row.get::<Option<String>>(1)?.as_deref(), false)?;
    let note = format!(
        "INSERT OR REPLACE INTO postcommit_migration (version, name, applied_at) VALUES (?1, ?2, {})",
        sqlite::NOW
    );
    for step in &plan.missing {
        connection.execute_batch(&repeatable::with_clock(step.sqlite)).map_err(sqlite::refused)?;
        connection.execute(&note, (step.version, step.name)).map_err(sqlite::refused)?;
    }
    if plan.renews {
        repeatable::apply_sqlite(connection)?;
        connection.execute(&note, (0, schema_hash(false))).map_err(sqlite::refused)?;
    }
    Ok(Migrated { applied: plan.missing, renewed: plan.renews, ..Migrated::default() })
}

pub(super) fn first<T: super::value::FromValue>(rows: &[Row]) -> Result<T, DbError> {
    rows.first().ok_or_else(|| DbError::Unreadable("a query returned no row; report it as a bug".into()))?.get(0)
}
