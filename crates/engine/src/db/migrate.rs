//! Numbered pairs of migrations, applied in order under a lock. Append-only: a landed migration is never changed.

use super::{Db, DbError, Row, Value, postgres, sqlite};

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
];

/// Who may do what in the schema, for `migrate --roles`.
const ROLES: &str = include_str!("../../migrations/postgres/roles.sql");

/// Whom [`ROLES`] is about.
const ROLE_NAMES: [&str; 4] = ["postcommit_owner", "postcommit_producer", "postcommit_worker", "postcommit_reader"];

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

    /// Applies what is missing, each in a transaction, under a lock; then walls off the tenants of what is new. Returns what was applied.
    ///
    /// # Errors
    /// As the database says; the steps before the failing one remain.
    pub async fn migrate(&self) -> Result<Vec<Migration>, DbError> {
        let applied = self.apply_missing().await?;
        self.isolate_tenants(!applied.is_empty()).await?;
        Ok(applied)
    }

    async fn apply_missing(&self) -> Result<Vec<Migration>, DbError> {
        let mut applied = Vec::new();
        // Looking first: with nothing to do, no lock is taken and no file is changed.
        if self.migration_plan().await?.missing.is_empty() {
            return Ok(applied);
        }
        if let Self::Sqlite(db) = self {
            db.use_wal()?;
        }
        while let Some(step) = self.migrate_one().await? {
            applied.push(step);
        }
        Ok(applied)
    }

    async fn migrate_one(&self) -> Result<Option<Migration>, DbError> {
        match self {
            Self::Postgres(db) => {
                let mut client = db.client().await?;
                let transaction = client.transaction().await.map_err(postgres::refused)?;
                // A migration may take its time; the lock makes others wait, not fail.
                let prepare = format!("SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0; SELECT pg_advisory_xact_lock({LOCK})");
                transaction.batch_execute(&prepare).await.map_err(postgres::refused)?;
                let found = transaction
                    .query_one("SELECT to_regclass('postcommit.migration') IS NOT NULL", &[])
                    .await
                    .map_err(postgres::refused)?;
                if !found.get::<_, bool>(0) {
                    transaction.batch_execute(POSTGRES_START).await.map_err(postgres::refused)?;
                }
                let row = transaction
                    .query_one("SELECT coalesce(max(version), 0) FROM postcommit.migration", &[])
                    .await
                    .map_err(postgres::refused)?;
                let Some(step) = plan(row.get(0))?.missing.first().copied() else { return Ok(None) };
                transaction.batch_execute(step.postgres).await.map_err(postgres::refused)?;
                // What a step adds belongs to whoever applies it; where roles were made, they must be able to use it.
                if transaction.query_one(HAS_ROLES, &[]).await.map_err(postgres::refused)?.get(0) {
                    transaction.batch_execute(&make_roles()).await.map_err(postgres::refused)?;
                    transaction.batch_execute(ROLES).await.map_err(postgres::refused)?;
                }
                let noted = "INSERT INTO postcommit.migration (version, name) VALUES ($1, $2)";
                transaction.execute(noted, &[&step.version, &step.name]).await.map_err(postgres::refused)?;
                transaction.commit().await.map_err(postgres::refused)?;
                Ok(Some(step))
            }
            // The write transaction is the lock.
            Self::Sqlite(db) => {
                db.write(|connection| {
                    connection.execute_batch(SQLITE_START).map_err(sqlite::refused)?;
                    let rows = sqlite::query(connection, "SELECT coalesce(max(version), 0) FROM postcommit_migration", &[])?;
                    let Some(step) = plan(first(&rows)?)?.missing.first().copied() else { return Ok(None) };
                    connection.execute_batch(step.sqlite).map_err(sqlite::refused)?;
                    let noted = format!("INSERT INTO postcommit_migration (version, name, applied_at) VALUES (?1, ?2, {})", sqlite::NOW);
                    connection.execute(&noted, (step.version, step.name)).map_err(sqlite::refused)?;
                    Ok(Some(step))
                })
                .await
            }
        }
    }

    /// Makes the PostgreSQL roles and their grants. Repeatable.
    ///
    /// # Errors
    /// When the login may not, or on SQLite, which has no roles.
    pub async fn make_roles(&self) -> Result<(), DbError> {
        let Self::Postgres(db) = self else {
            return Err(DbError::Refused { code: "roles".into(), message: "SQLite has no roles; --roles is for PostgreSQL".into() });
        };
        let mut client = db.client().await?;
        client.batch_execute(&make_roles()).await.map_err(postgres::refused)?;
        let transaction = client.transaction().await.map_err(postgres::refused)?;
        transaction.batch_execute(ROLES).await.map_err(postgres::refused)?;
        transaction.commit().await.map_err(postgres::refused)?;
        drop(client);
        self.isolate_tenants(true).await
    }

    /// Makes partitions far ahead; nothing to do on SQLite. Returns how many were made.
    ///
    /// # Errors
    /// As the database says.
    pub async fn make_partitions(&self, months_ahead: i32) -> Result<i64, DbError> {
        let Self::Postgres(_) = self else { return Ok(0) };
        let rows = self.query("SELECT postcommit.make_partitions($1)", vec![Value::from(months_ahead)]).await?;
        first(&rows)
    }
}

const POSTGRES_START: &str = "CREATE SCHEMA IF NOT EXISTS postcommit; \
    CREATE TABLE postcommit.migration (version int PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())";

const HAS_ROLES: &str = "SELECT EXISTS (SELECT 1 FROM pg_namespace n JOIN pg_roles r ON r.oid = n.nspowner WHERE n.nspname = 'postcommit' AND r.rolname = 'postcommit_owner')";

const SQLITE_START: &str =
    "CREATE TABLE IF NOT EXISTS postcommit_migration (version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at INTEGER NOT NULL)";

fn make_roles() -> String {
    ROLE_NAMES.map(|name| make_role(name, "")).join("; ")
}

/// Makes a role if it is missing. Roles belong to the cluster: another database may be making it at this moment. To be committed before the role is
/// used: a transaction that has looked for it in vain may remember that for longer than it is true.
pub(super) fn make_role(name: &str, or_when: &str) -> String {
    format!(
        "DO $$ BEGIN
           IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{name}') THEN
             CREATE ROLE {name} NOLOGIN;
           END IF;
         EXCEPTION WHEN duplicate_object OR unique_violation{or_when} THEN NULL;
         END $$"
    )
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
