//! The schema. Three kinds of files, all in `migrations`:
//!
//! - Numbered pairs ([`MIGRATIONS`]) make and change tables. They are applied once, in order. A landed pair is never changed.
//! - `functions/` and `views.sql` (`repeatable.rs`) hold each function, trigger and view once. All of them are applied again when
//!   [`schema_hash`] is not the one that the database has noted, in the row of `migration` with version 0.
//! - `roles.sql`, `isolation.sql`, `foreign.sql` and `public.sql` (`roles.rs`) say who may do what. They follow every change, and
//!   mend what is missing.
//!
//! On PostgreSQL the second kind says CREATE OR REPLACE, which keeps the owner of an object and what was granted on it. It cannot
//! give a function another return type or other arguments, nor change the columns of a view except by new ones at the end, nor
//! remove anything. A numbered pair drops such an object: its file makes it again in the same transaction, and `migrate` grants
//! again what was granted on it. On SQLite, which has neither CREATE OR REPLACE nor grants, all views and triggers are dropped
//! and made again.

use rusqlite::Connection;

use super::client::Transaction;
use super::postgres::Postgres;
use super::repeatable::{self, schema_hash};
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
pub const MIGRATIONS: &[Migration] = &[Migration {
    version: 1,
    name: "baseline",
    postgres: include_str!("../../migrations/postgres/0001_baseline.sql"),
    sqlite: include_str!("../../migrations/sqlite/0001_baseline.sql"),
}];

/// The schema this program was made for.
pub const LATEST: i32 = MIGRATIONS[MIGRATIONS.len() - 1].version;

/// Two processes that start concurrently must not both migrate; "postcommit" in eight bytes.
pub(super) const LOCK: i64 = 0x706f_7374_636f_6d6d;

/// What stands between the database and this program.
#[derive(Debug, Clone)]
pub struct MigrationPlan {
    /// The schema found; 0 is none.
    pub found: i32,
    /// The steps to be applied, in order.
    pub missing: Vec<Migration>,
    /// Functions, triggers and views are to be applied again.
    pub renews: bool,
}

impl MigrationPlan {
    /// For a database with this version, and this note of the files that were applied.
    fn of(found: i32, noted: Option<&str>, is_postgres: bool) -> Result<Self, DbError> {
        if found > LATEST {
            return Err(DbError::TooNew { found, known: LATEST });
        }
        let missing: Vec<Migration> = MIGRATIONS.iter().filter(|step| step.version > found).copied().collect();
        let renews = !missing.is_empty() || noted != Some(schema_hash(is_postgres));
        Ok(Self { found, missing, renews })
    }

    /// For a database that does not exist yet.
    #[must_use]
    pub fn fresh() -> Self {
        Self { found: 0, missing: MIGRATIONS.to_vec(), renews: true }
    }

    fn is_empty(&self) -> bool {
        self.missing.is_empty() && !self.renews
    }

    /// The names and texts of what is to be applied, in order.
    #[must_use]
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
    /// Its file's name without the ending: `0001_baseline`.
    #[must_use]
    pub fn label(&self) -> String {
        format!("{:04}_{}", self.version, self.name)
    }
}

/// What a migration did.
#[derive(Debug, Clone, Default)]
pub struct Migrated {
    /// The steps that were missing, in order.
    pub applied: Vec<Migration>,
    /// Functions, triggers and views were applied again.
    pub renewed: bool,
    /// PostgreSQL: this database is a copy, and these GRANTs would let members of the original's roles do here what they did there. They
    /// were not made, because only an administrator can know who is meant to use the copy.
    pub grants: Vec<String>,
    /// PostgreSQL: roles, grants or policies were put in order although nothing was to be applied.
    pub arranged: bool,
}

impl Db {
    /// The schema version found; 0 is none.
    ///
    /// # Errors
    /// When it cannot be read.
    pub async fn schema_version(&self) -> Result<i32, DbError> {
        Ok(self.noted().await?.0)
    }

    /// What is to be done.
    ///
    /// # Errors
    /// [`DbError::TooNew`] when the schema is ahead of this program.
    pub async fn migration_plan(&self) -> Result<MigrationPlan, DbError> {
        let (found, files) = self.noted().await?;
        MigrationPlan::of(found, files.as_deref(), matches!(self, Self::Postgres(_)))
    }

    /// The version, and the hash of the files that were applied.
    async fn noted(&self) -> Result<(i32, Option<String>), DbError> {
        let exists = match self {
            Self::Postgres(_) => "SELECT to_regclass('postcommit.migration') IS NOT NULL",
            Self::Sqlite(_) => "SELECT count(*) > 0 FROM sqlite_schema WHERE name = 'postcommit_migration'",
        };
        if !first::<bool>(&self.query(exists, vec![]).await?)? {
            return Ok((0, None));
        }
        let rows = self.query(NOTED, vec![]).await?;
        let row = rows.first().ok_or_else(|| DbError::Unreadable("no row".into()))?;
        Ok((row.get(0)?, row.get(1)?))
    }

    /// Refuses a schema that is not exactly this program's.
    ///
    /// # Errors
    /// [`DbError::TooNew`], [`DbError::TooOld`] or [`DbError::OtherFunctions`].
    pub async fn check_schema(&self) -> Result<(), DbError> {
        let plan = self.migration_plan().await?;
        if !plan.missing.is_empty() {
            return Err(DbError::TooOld { found: plan.found, needed: LATEST });
        }
        if plan.renews { Err(DbError::OtherFunctions) } else { Ok(()) }
    }

    /// Applies what is missing or has changed, under a lock, and walls off the tenants of what is new: all of it in one transaction. A login
    /// that does not own the schema leaves one that is up to date as it is.
    ///
    /// # Errors
    /// As the database says; the schema is as it was then.
    pub async fn migrate(&self) -> Result<Migrated, DbError> {
        // Looking first: with nothing to do, no lock is taken and no file is changed.
        let is_current = self.migration_plan().await?.is_empty();
        match self {
            Self::Postgres(_) if is_current && !self.is_wall_to_mend().await? => Ok(Migrated::default()),
            Self::Postgres(db) => migrate_postgres(db).await,
            Self::Sqlite(_) if is_current => Ok(Migrated::default()),
            Self::Sqlite(db) => {
                db.use_wal()?;
                // The write transaction is the lock.
                db.write(migrate_sqlite).await
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

const SQLITE_START: &str = "CREATE TABLE IF NOT EXISTS postcommit_migration (version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at INTEGER NOT NULL)";

/// The version, and the hash of the files that were applied: the name of row 0.
const NOTED: &str =
    "SELECT coalesce(max(version), 0), max(CASE WHEN version = 0 THEN name END) FROM postcommit.migration";

async fn migrate_postgres(db: &Postgres) -> Result<Migrated, DbError> {
    let mut client = db.client().await?;
    let transaction = client.transaction().await.map_err(postgres::refused)?;
    roles::take_lock(&transaction).await?;
    let plan = plan_postgres(&transaction).await?;
    // Another process was faster, and this login cannot put roles in order.
    if plan.is_empty()
        && !transaction.query_one(roles::MAY_ARRANGE, &[]).await.map_err(postgres::refused)?.get::<_, bool>(0)
    {
        return Ok(Migrated::default());
    }
    let foreigners = roles::foreigners(&transaction, db.installation).await?;
    if plan.renews {
        apply_postgres(&transaction, &plan).await?;
    }
    let grants = roles::arrange(&transaction, db.installation, &foreigners).await?;
    if !plan.missing.is_empty() {
        transaction.execute("SELECT postcommit.make_partitions()", &[]).await.map_err(postgres::refused)?;
    }
    transaction.commit().await.map_err(postgres::refused)?;
    if !grants.is_empty() {
        let grants = grants.join("; ");
        tracing::warn!(
            grants,
            "this database is a copy and now has roles of its own; members of the original's roles that need the copy are to be granted anew"
        );
    }
    let arranged = plan.is_empty();
    Ok(Migrated { applied: plan.missing, renewed: plan.renews, grants, arranged })
}

/// The plan, now that the lock is held.
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
    let row = rows.first().ok_or_else(|| DbError::Unreadable("no row".into()))?;
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
    rows.first().ok_or_else(|| DbError::Unreadable("no row".into()))?.get(0)
}
