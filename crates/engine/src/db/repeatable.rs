//! Functions, triggers and views: files that `migrate` applies again if their text has changed.

use std::sync::LazyLock;

use rusqlite::Connection;
use sha2::{Digest, Sha256};

use super::client::Transaction;
use super::migrate::MIGRATIONS;
use super::{DbError, Value, postgres, roles, sqlite};

/// A file of the schema: its path below `migrations/<database>`, and its text.
pub type File = (&'static str, &'static str);

macro_rules! files {
    ($database:literal: $($path:literal),+ $(,)?) => {
        &[$(($path, include_str!(concat!("../../migrations/", $database, "/", $path)))),+]
    };
}

/// The files in the order in which they are applied. A file depends only on tables. A function body that PostgreSQL
/// parses at creation (`RETURN …`) may also use functions of its own file.
pub(super) const POSTGRES: &[File] = files!["postgres":
    "views.sql",
    "functions/ids.sql",
    "functions/limits.sql",
    "functions/enqueue.sql",
    "functions/accept.sql",
    "functions/cancel.sql",
    "functions/ledger.sql",
    "functions/partitions.sql",
    "functions/providers.sql",
    "functions/content.sql",
    "functions/rollups.sql",
    "functions/inbox.sql",
    "functions/audit.sql",
];

pub(super) const SQLITE: &[File] = files!["sqlite":
    "views.sql",
    "functions/tenants.sql",
    "functions/enqueue.sql",
    "functions/cancel.sql",
    "functions/providers.sql",
    "functions/content.sql",
    "functions/rollups.sql",
    "functions/audit.sql",
];

/// Returns a hash of all schema files for one database, including the numbered files and, on PostgreSQL, the files
/// about roles.
pub fn schema_hash(is_postgres: bool) -> &'static str {
    static POSTGRES_HASH: LazyLock<String> = LazyLock::new(|| {
        let numbered = MIGRATIONS.iter().map(|step| step.postgres);
        hash(numbered.chain(POSTGRES.iter().map(|(_, sql)| *sql)).chain(roles::SCRIPTS))
    });
    static SQLITE_HASH: LazyLock<String> = LazyLock::new(|| {
        let numbered = MIGRATIONS.iter().map(|step| step.sqlite);
        hash(numbered.chain(SQLITE.iter().map(|(_, sql)| *sql)))
    });
    if is_postgres { &POSTGRES_HASH } else { &SQLITE_HASH }
}

fn hash<'a>(texts: impl Iterator<Item = &'a str>) -> String {
    let mut hash = Sha256::new();
    texts.for_each(|text| hash.update(text));
    hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// Lists the current grants on views and functions as GRANT statements. A function is named without arguments, because
/// each function name has one definition.
const GRANTED: &str = "SELECT format('GRANT %s ON %s TO %s%s', a.privilege_type || granted.columns, granted.thing,
        CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END,
        CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END)
    FROM (
      SELECT format('FUNCTION postcommit.%I', p.proname) AS thing, '' AS columns, p.proowner AS owner, p.proacl AS acl
      FROM pg_proc p WHERE p.pronamespace = 'postcommit'::regnamespace
      UNION ALL SELECT format('postcommit.%I', c.relname), '', c.relowner, c.relacl
      FROM pg_class c WHERE c.relnamespace = 'postcommit'::regnamespace AND c.relkind = 'v'
      UNION ALL SELECT format('postcommit.%I', c.relname), format(' (%I)', col.attname), c.relowner, col.attacl
      FROM pg_class c JOIN pg_attribute col ON col.attrelid = c.oid
      WHERE c.relnamespace = 'postcommit'::regnamespace AND c.relkind = 'v'
    ) granted CROSS JOIN aclexplode(granted.acl) a WHERE a.grantee <> granted.owner";

pub(super) async fn granted(transaction: &Transaction<'_>) -> Result<Vec<String>, DbError> {
    let rows = transaction.query(GRANTED, &[]).await.map_err(postgres::refused)?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Applies the files to PostgreSQL. Then repeats the grants in `before` that were lost because a numbered step dropped
/// their objects.
pub(super) async fn apply_postgres(transaction: &Transaction<'_>, before: &[String]) -> Result<(), DbError> {
    for (_, sql) in POSTGRES {
        transaction.batch_execute(sql).await.map_err(postgres::refused)?;
    }
    // PUBLIC's default privilege is revoked first. After a grant on a new function it would look like a deliberate
    // grant.
    transaction.batch_execute(roles::PUBLIC).await.map_err(postgres::refused)?;
    let after = granted(transaction).await?;
    for grant in before.iter().filter(|grant| !after.contains(grant)) {
        // A grant on an object that no longer exists fails, and the failure is ignored.
        roles::tried(transaction, grant).await?;
    }
    Ok(())
}

/// Applies the files to SQLite. Before that, all views and triggers of postcommit are dropped, even if no file contains
/// them any more.
pub(super) fn apply_sqlite(connection: &Connection) -> Result<(), DbError> {
    let ours = "SELECT type, name FROM sqlite_schema WHERE type IN ('view', 'trigger') AND name LIKE 'postcommit\\_%' ESCAPE '\\'";
    for row in sqlite::query(connection, ours, &[] as &[Value])? {
        let (kind, name): (String, String) = (row.get(0)?, row.get(1)?);
        // A view's triggers are dropped together with the view, so the trigger may already be gone.
        connection.execute_batch(&format!("DROP {kind} IF EXISTS \"{name}\"")).map_err(sqlite::refused)?;
    }
    for (_, sql) in SQLITE {
        connection.execute_batch(&with_clock(sql)).map_err(sqlite::refused)?;
    }
    Ok(())
}

/// Returns a script for SQLite in which `{now}` is replaced with the database's clock.
pub(super) fn with_clock(sql: &str) -> String {
    sql.replace("{now}", sqlite::NOW)
}

#[cfg(test)]
mod tests {
    use super::super::Db;
    use super::*;

    /// Drops objects as a numbered step does for changes that CREATE OR REPLACE cannot make.
    #[tokio::test]
    async fn what_a_step_drops_is_made_again_with_its_grants() {
        let (login, database) =
            (postcommit_testkit::Postgres::shared().login("").await, postcommit_testkit::database().await);
        let db = Db::open(&database.url, postgres::CONNECT_TIMEOUT).await.unwrap();
        db.migrate().await.unwrap();
        let Db::Postgres(postgres) = &db else { panic!("not PostgreSQL") };
        let mut client = postgres.client().await.unwrap();
        let granting = format!(
            "GRANT EXECUTE ON FUNCTION postcommit.cancel TO {0} WITH GRANT OPTION; GRANT SELECT ON postcommit.delivery TO PUBLIC;
             GRANT SELECT (id) ON postcommit.notification_status TO {0}",
            login.name()
        );
        let transaction = client.transaction().await.unwrap();
        transaction.batch_execute(&granting).await.unwrap();
        let mut before = granted(&transaction).await.unwrap();
        let dropping = "DROP FUNCTION postcommit.cancel; DROP VIEW postcommit.delivery, postcommit.notification_status";
        transaction.batch_execute(dropping).await.unwrap();
        assert!(granted(&transaction).await.unwrap().len() < before.len());
        apply_postgres(&transaction, &before).await.unwrap();
        let mut after = granted(&transaction).await.unwrap();
        before.sort();
        after.sort();
        assert_eq!(after, before);
    }
}
